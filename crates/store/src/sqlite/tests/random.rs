//! Any verbs in any order: whatever was answered, the state follows from the entries, and another life reads the same.

use super::{Fresh, fresh, open};
use crate::Journal;
use crate::conformance::sample;
use crate::journal::LogFilter;
use proptest::prelude::*;
use semel_core::approval::Decision;
use semel_core::call::{Aborting, Intent, Resolved, Settled};
use semel_core::ids::ApprovalId;
use semel_core::pipeline::{RunEnd, Stage};
use semel_core::volume::{Durability, End, Role, Volume};

/// Does one verb with whatever was made before; says whether it was answered.
fn verb(journal: &dyn Journal, made: &mut Made, what: u8, pick: usize) -> crate::Result<()> {
    let job = ["job-a", "job-b"][pick % 2];
    let volume = made.volumes.get(pick % made.volumes.len().max(1)).cloned();
    let intent = made.intents.get(pick % made.intents.len().max(1)).cloned();
    let at = sample::NOW;
    match (what, volume, intent) {
        (0, ..) => {
            let durability = [Durability::Process, Durability::Power][pick / 2 % 2];
            let role = [Role::Draft, Role::Cert][pick / 4 % 2];
            let volume = journal.open_volume(sample::new_volume(job, role, durability).unwrap())?;
            made.volumes.push(volume);
        }
        (1, Some(v), _) => {
            let identity = sample::identity(&v.generation).unwrap();
            journal.volume_ready(v.generation, v.fencing_token, identity, at)?;
        }
        (2, Some(v), _) => drop(journal.end_volume(v.generation, v.fencing_token, End::Clean, at)?),
        (3, Some(v), _) => {
            let end = End::Dirty {
                reason: "cancelled".to_owned(),
            };
            journal.end_volume(v.generation, v.fencing_token, end, at)?;
        }
        (4, Some(v), _) => drop(journal.volume_destroyed(v.generation, at)?),
        (5..=8, Some(v), _) => {
            let mut intent = sample::intent(&v, &format!("k{}", pick % 5), "a").unwrap();
            if pick.is_multiple_of(3) {
                intent.scope.generation = None;
            }
            made.intents.push(intent.clone());
            journal.begin(intent)?;
        }
        (9 | 10, _, Some(i)) => journal.finish(i.execution_id.clone(), sample::receipt(&i))?,
        (11, _, Some(i)) => journal.free(i.execution_id, "never".to_owned(), at)?,
        (12, _, Some(i)) => journal.unknown(i.execution_id, "gone".to_owned(), at)?,
        (19, _, Some(i)) => {
            let aborting = Aborting {
                refusal: None,
                why: "w".to_owned(),
                begun: 1,
            };
            journal.abort(i.execution_id, aborting, at)?;
        }
        (20 | 21, _, Some(i)) => {
            let settled = [Settled::Happened, Settled::NeverHappened][usize::from(what - 20)];
            journal.resolve(i.execution_id, settled, operator(), at)?;
        }
        (13, _, Some(i)) => journal.note(sample::conflict(&i))?,
        (14, ..) => drop(journal.start_run(sample::run(job).unwrap())?),
        (15, Some(v), _) => {
            if let Some(run) = journal.last_run(v.job)? {
                let stage = Stage::Drafted {
                    generation: v.generation,
                };
                journal.stage_run(run.new.run, stage, at)?;
            }
        }
        (16, Some(v), _) => {
            if let Some(run) = journal.last_run(v.job)? {
                journal.end_run(run.new.run, RunEnd::Cancelled, at)?;
            }
        }
        (22 | 23, volume, _) => person(journal, made, volume, pick)?,
        (17, Some(v), _) => journal.judge(sample::judgement(&v))?,
        (24, ..) => prepare(journal, job, pick)?,
        (_, Some(v), _) => drop(journal.consume(sample::consumption(&sample::judgement(&v)))?),
        _ => {}
    }
    Ok(())
}

fn prepare(journal: &dyn Journal, job: &str, pick: usize) -> crate::Result<()> {
    let (pin, tree) = (u8::try_from(pick % 3).unwrap(), u8::try_from(pick % 7).unwrap());
    journal
        .prepare_tree(sample::preparation(job, pin, tree).unwrap())
        .map(drop)
}

fn operator() -> Resolved {
    Resolved {
        by: "operator".to_owned(),
        note: "seen".to_owned(),
    }
}

/// Asks a person about a call in a volume, or has one decide.
fn person(journal: &dyn Journal, made: &mut Made, volume: Option<Volume>, pick: usize) -> crate::Result<()> {
    match (volume, made.asked.get(pick % made.asked.len().max(1))) {
        (Some(volume), _) if pick.is_multiple_of(2) => {
            let under = (!pick.is_multiple_of(3)).then(|| format!("k{}", pick % 5));
            let question = sample::question(&volume, under.as_deref(), "a").unwrap();
            made.asked
                .push(journal.ask_approval(question, 3)?.question.approval_id);
        }
        (_, Some(id)) => {
            let decision = [Decision::Approve, Decision::Deny][pick / 2 % 2];
            let late = if pick.is_multiple_of(7) { 60_000 } else { 1 };
            journal.decide_approval(id.clone(), sample::ruling(decision, "ada", late))?;
        }
        _ => {}
    }
    Ok(())
}

#[derive(Default)]
struct Made {
    volumes: Vec<Volume>,
    intents: Vec<Intent>,
    asked: Vec<ApprovalId>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_state_follows_from_the_entries(verbs in prop::collection::vec((0..25_u8, 0..64_usize), 1..120)) {
        let Fresh(journal, dir) = fresh();
        let mut made = Made::default();
        for (what, pick) in verbs {
            // In the writer's own order: nobody waits for a note.
            let before = journal.head().unwrap().size;
            let answered = verb(&journal, &mut made, what, pick).is_ok();
            let entries = journal.head().unwrap().size - before;
            prop_assert!(entries <= u64::from(answered), "a refused verb left {entries} entries");
        }
        prop_assert_eq!(journal.check().unwrap().faults, vec![]);
        let read = |journal: &dyn Journal| {
            let calls: Vec<_> = made.intents.iter()
                .map(|i| journal.prior(i.scope.clone(), i.key.clone()).unwrap())
                .collect();
            let leases: Vec<_> = made.volumes.iter()
                .map(|v| journal.volume(v.generation.clone()).unwrap())
                .collect();
            let asked: Vec<_> = made.asked.iter().map(|id| journal.approval(id.clone()).unwrap()).collect();
            assert!(asked.iter().all(Option::is_some));
            (asked, journal.approvals(sample::NOW).unwrap(), calls, leases, journal.open_calls().unwrap(), journal.runs().unwrap(), journal.volumes(None).unwrap())
        };
        let (state, log) = (read(&journal), journal.log(LogFilter::default()).unwrap());
        drop(journal);
        let journal = open(dir.path()).unwrap();
        prop_assert_eq!(read(&journal), state);
        prop_assert_eq!(&journal.log(LogFilter::default()).unwrap()[..log.len()], &log[..]);
    }
}
