//! The laws of calls and their keys.

use super::{Kept, done, refused, same, sample};
use crate::journal::{Began, Journal, LogFilter, OnlyConflicts};
use semel_core::Code;
use semel_core::call::{Aborting, CallState, Event, Intent, Note, OpenCall, Outcome, Resolved, Settled};
use semel_core::digest::Fingerprint;
use semel_core::ids::{AttemptId, FencingToken, UnixMs};
use semel_core::record::Record;
use semel_core::volume::{Durability, End, OUTCOME_UNKNOWN, VolumeState};
use std::sync::Barrier;

fn begin(journal: &dyn Journal, intent: &Intent) -> Kept {
    same(
        "begin",
        &done("begin", journal.begin(intent.clone()))?,
        &Began::Began,
    )
}

fn running(intent: &Intent) -> CallState {
    CallState::Running {
        intent: Box::new(intent.clone()),
        aborting: None,
    }
}

fn finished(intent: &Intent) -> CallState {
    CallState::Finished {
        intent: Box::new(intent.clone()),
        receipt: sample::receipt(intent),
    }
}

pub(super) fn a_key_begins_once(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let (first, second) = (
        sample::intent(&volume, "k", "a")?,
        sample::intent(&volume, "k", "a")?,
    );
    begin(journal, &first)?;
    let prior = done("begin", journal.begin(second.clone()))?;
    same("a duplicate", &prior, &Began::Prior(Box::new(running(&first))))?;
    let receipt = sample::receipt(&first);
    done("finish", journal.finish(first.execution_id.clone(), receipt))?;
    let prior = done("begin", journal.begin(second.clone()))?;
    same("a retry", &prior, &Began::Prior(Box::new(finished(&first))))?;
    let lost = done("execution", journal.execution(second.execution_id))?;
    same("the duplicate's execution", &lost, &None)
}

pub(super) fn sixty_four_threads_begin_one_key_once(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let gate = Barrier::new(64);
    let answers = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|_| {
                scope.spawn(|| {
                    let intent = sample::intent(&volume, "k", "a");
                    gate.wait();
                    done("begin", journal.begin(intent?))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err("a thread died".to_owned())))
            .collect::<Result<Vec<_>, String>>()
    })?;
    let began = answers.iter().filter(|a| **a == Began::Began).count();
    same("how many began", &began, &1)?;
    let winner = done(
        "prior",
        journal.prior(sample::intent(&volume, "k", "a")?.scope, sample::key("k")?),
    )?;
    let winner = winner.ok_or("the key is not known")?;
    for answer in answers {
        if let Began::Prior(prior) = answer {
            same("what a loser is shown", &*prior, &winner)?;
        }
    }
    Ok(())
}

pub(super) fn a_known_key_shows_its_first_call(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let first = sample::intent(&volume, "k", "a")?;
    begin(journal, &first)?;
    let other = Intent {
        tool: "delete_file".to_owned(),
        fingerprint: Fingerprint::of_canonical(b"another"),
        ..sample::intent(&volume, "k", "b")?
    };
    let prior = done("begin", journal.begin(other))?;
    same("a conflict", &prior, &Began::Prior(Box::new(running(&first))))
}

pub(super) fn a_receipt_is_given_once(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let intent = sample::intent(&volume, "k", "a")?;
    let (id, receipt) = (intent.execution_id.clone(), sample::receipt(&intent));
    let early = journal.finish(id.clone(), receipt.clone());
    refused("a receipt of nothing", early, Code::NotFound, None)?;
    begin(journal, &intent)?;
    done("finish", journal.finish(id.clone(), receipt.clone()))?;
    done("finish again", journal.finish(id.clone(), receipt))?;
    let other = journal.finish(id.clone(), sample::other_receipt(&intent));
    refused("another receipt", other, Code::Internal, None)?;
    let freed = journal.free(id.clone(), "never".to_owned(), sample::NOW);
    refused("a done call is freed", freed, Code::Internal, None)?;
    let known = done("execution", journal.execution(id))?;
    same("the call", &known, &Some(finished(&intent)))?;
    let entries = done(
        "log",
        journal.log(LogFilter {
            execution: Some(intent.execution_id),
            ..LogFilter::default()
        }),
    )?;
    same("how many entries it has", &entries.len(), &2)
}

pub(super) fn what_is_taken_back_is_said_first(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let intent = sample::intent(&volume, "k", "a")?;
    let id = intent.execution_id.clone();
    let aborting = Aborting {
        refusal: None,
        why: "another process was faster".to_owned(),
        begun: 1,
    };
    let early = journal.abort(id.clone(), aborting.clone(), sample::NOW);
    refused("nothing is taken back", early, Code::NotFound, None)?;
    begin(journal, &intent)?;
    for _ in 0..2 {
        done("abort", journal.abort(id.clone(), aborting.clone(), sample::NOW))?;
    }
    let other = Aborting {
        why: "for another reason".to_owned(),
        ..aborting.clone()
    };
    refused(
        "taken back for another reason",
        journal.abort(id.clone(), other, sample::NOW),
        Code::Internal,
        None,
    )?;
    let open = OpenCall {
        intent: intent.clone(),
        aborting: Some(aborting.clone()),
    };
    same(
        "the open calls",
        &done("open_calls", journal.open_calls())?,
        &vec![open],
    )?;
    let prior = done("begin", journal.begin(sample::intent(&volume, "k", "a")?))?;
    let running = CallState::Running {
        intent: Box::new(intent.clone()),
        aborting: Some(aborting.clone()),
    };
    same("a duplicate", &prior, &Began::Prior(Box::new(running)))?;
    done("finish", journal.finish(id.clone(), sample::receipt(&intent)))?;
    same(
        "the call",
        &done("execution", journal.execution(id.clone()))?,
        &Some(finished(&intent)),
    )?;
    let late = journal.abort(id, aborting, sample::NOW);
    refused("a done call is taken back", late, Code::Internal, None)
}

pub(super) fn a_person_settles_what_is_unknown(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let person = Resolved {
        by: "operator".to_owned(),
        note: "looked at the disk".to_owned(),
    };
    for (key, settled) in [("a", Settled::Happened), ("b", Settled::NeverHappened)] {
        let intent = sample::intent(&volume, key, "a")?;
        let id = intent.execution_id.clone();
        let resolve = || journal.resolve(id.clone(), settled, person.clone(), sample::NOW);
        refused("one that never was", resolve(), Code::NotFound, None)?;
        begin(journal, &intent)?;
        refused(
            "one that runs",
            resolve(),
            Code::PreconditionFailed,
            Some("not_unknown"),
        )?;
        let gone = "both are gone".to_owned();
        done("unknown", journal.unknown(id.clone(), gone, sample::NOW))?;
        let state = done("resolve", resolve())?;
        let prior = done("prior", journal.prior(intent.scope.clone(), intent.key.clone()))?;
        same("what is told and what is known", &prior, &state)?;
        match (settled, state) {
            (Settled::Happened, Some(CallState::Finished { receipt, .. })) => {
                same("who settled it", &receipt.resolved.as_ref(), &Some(&person))?;
                same("its outcome", &receipt.outcome, &Outcome::Done(intent.done()))?;
                same("a second time", &done("resolve", resolve())?, &prior)?;
            }
            (Settled::NeverHappened, None) => {
                refused("a second time", resolve(), Code::NotFound, None)?;
                begin(journal, &sample::intent(&volume, key, "a")?)?;
            }
            (settled, state) => return Err(format!("{settled:?} left {state:?}")),
        }
    }
    Ok(())
}

pub(super) fn the_last_unknown_outcome_lifts_its_mark(journal: &dyn Journal) -> Kept {
    let person = Resolved {
        by: "operator".to_owned(),
        note: "looked at the disk".to_owned(),
    };
    for (job, reason, lifted) in [
        ("job-a", OUTCOME_UNKNOWN, VolumeState::Clean),
        ("job-b", "agent_failed", VolumeState::Quarantined),
    ] {
        let volume = sample::draft(journal, job)?;
        let calls = [
            sample::intent(&volume, "a", "a")?,
            sample::intent(&volume, "b", "b")?,
        ];
        for call in &calls {
            begin(journal, call)?;
            let gone = "both are gone".to_owned();
            done(
                "unknown",
                journal.unknown(call.execution_id.clone(), gone, sample::NOW),
            )?;
        }
        let end = End::Dirty {
            reason: reason.to_owned(),
        };
        let (generation, fence) = (volume.generation.clone(), volume.fencing_token);
        done(
            "end_volume",
            journal.end_volume(generation, fence, end, sample::NOW),
        )?;
        for (call, state) in calls.into_iter().zip([VolumeState::Quarantined, lifted]) {
            let resolved = journal.resolve(call.execution_id, Settled::Happened, person.clone(), sample::NOW);
            done("resolve", resolved)?;
            let found = done("volume", journal.volume(volume.generation.clone()))?;
            same("the volume", &found.map(|volume| volume.state), &Some(state))?;
        }
    }
    Ok(())
}

pub(super) fn an_unknown_outcome_stays(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let intent = sample::intent(&volume, "k", "a")?;
    begin(journal, &intent)?;
    let why = "both are gone".to_owned();
    done(
        "unknown",
        journal.unknown(intent.execution_id.clone(), why.clone(), sample::NOW),
    )?;
    let unknown = CallState::Unknown {
        intent: Box::new(intent.clone()),
        why,
    };
    let again = done("begin", journal.begin(sample::intent(&volume, "k", "a")?))?;
    same("a retry", &again, &Began::Prior(Box::new(unknown)))?;
    let late = journal.finish(intent.execution_id.clone(), sample::receipt(&intent));
    refused("a late receipt", late, Code::Internal, None)?;
    let status = done("status", journal.status())?;
    same("unknown and running", &(status.unknown, status.running), &(1, 0))
}

pub(super) fn a_freed_key_begins_again(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let first = sample::intent(&volume, "k", "a")?;
    begin(journal, &first)?;
    done(
        "free",
        journal.free(
            first.execution_id.clone(),
            "never happened".to_owned(),
            sample::NOW,
        ),
    )?;
    let prior = done("prior", journal.prior(first.scope.clone(), first.key.clone()))?;
    same("a freed key", &prior, &None)?;
    let second = sample::intent(&volume, "k", "a")?;
    begin(journal, &second)?;
    done(
        "finish",
        journal.finish(second.execution_id.clone(), sample::receipt(&second)),
    )?;
    let late = journal.finish(first.execution_id.clone(), sample::receipt(&first));
    refused("a receipt of the freed call", late, Code::NotFound, None)?;
    let prior = done("prior", journal.prior(second.scope.clone(), second.key.clone()))?;
    same("the key", &prior, &Some(finished(&second)))
}

pub(super) fn an_execution_id_is_used_once(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let first = sample::intent(&volume, "k", "a")?;
    begin(journal, &first)?;
    let other_key = Intent {
        key: sample::key("other")?,
        ..first.clone()
    };
    refused(
        "under another key",
        journal.begin(other_key),
        Code::Internal,
        None,
    )?;
    done(
        "free",
        journal.free(
            first.execution_id.clone(),
            "never happened".to_owned(),
            sample::NOW,
        ),
    )?;
    refused("after it was freed", journal.begin(first), Code::Internal, None)
}

pub(super) fn an_intent_belongs_to_its_volume(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let other = sample::draft(journal, "job-b")?;
    let good = sample::intent(&volume, "k", "a")?;
    let mut foreign = vec![good.clone(), good.clone(), good.clone(), good.clone()];
    foreign[0].scope = sample::intent(&other, "k", "a")?.scope;
    foreign[1].attempt = AttemptId(volume.attempt.0 + 1);
    foreign[2].durability = Durability::Power;
    foreign[3].scope.generation = Some(other.generation.clone());
    for intent in foreign {
        refused("a foreign intent", journal.begin(intent), Code::Internal, None)?;
    }
    let nowhere = Intent {
        generation: sample::new_volume("job-c", other.role, other.durability)?.generation,
        ..good.clone()
    };
    refused(
        "an intent in no volume",
        journal.begin(nowhere),
        Code::NotFound,
        None,
    )?;
    begin(journal, &good)
}

pub(super) fn a_bad_verb_rolls_back_no_stranger(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let gate = Barrier::new(32);
    let work = |n: u32| -> Kept {
        let path = format!("f{n}");
        let mut intent = sample::intent(&volume, &path, &path)?;
        gate.wait();
        for round in 0..8 {
            intent.key = sample::key(&format!("{path}-{round}"))?;
            intent.execution_id = sample::intent(&volume, "k", "a")?.execution_id;
            match n % 4 {
                0 => {
                    intent.fencing_token = FencingToken(volume.fencing_token.0 + 7);
                    let stale = Some("stale_generation");
                    refused(
                        "a stale one",
                        journal.begin(intent.clone()),
                        Code::ReplayConflict,
                        stale,
                    )?;
                }
                1 => {
                    let receipt = sample::receipt(&intent);
                    let none = journal.finish(intent.execution_id.clone(), receipt);
                    refused("a receipt of nothing", none, Code::NotFound, None)?;
                }
                _ => {
                    begin(journal, &intent)?;
                    let receipt = sample::receipt(&intent);
                    done("finish", journal.finish(intent.execution_id.clone(), receipt))?;
                }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..32).map(|n| scope.spawn(move || work(n))).collect::<Vec<_>>();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or_else(|_| Err("a thread died".to_owned())))
    })?;
    for n in (0..32).filter(|n| n % 4 > 1) {
        for round in 0..8 {
            let key = sample::key(&format!("f{n}-{round}"))?;
            let scope = sample::intent(&volume, "k", "a")?.scope;
            let known = done("prior", journal.prior(scope, key))?;
            if !matches!(known, Some(CallState::Finished { .. })) {
                return Err(format!("the call f{n}-{round} is {known:?}"));
            }
        }
    }
    Ok(())
}

pub(super) fn a_caller_sees_its_own_writes(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let look = |thread: u32| -> Kept {
        for round in 0..10 {
            let intent = sample::intent(&volume, &format!("k-{thread}-{round}"), "a")?;
            let known = || done("prior", journal.prior(intent.scope.clone(), intent.key.clone()));
            same("before", &known()?, &None)?;
            begin(journal, &intent)?;
            same("after begin", &known()?, &Some(running(&intent)))?;
            done(
                "finish",
                journal.finish(intent.execution_id.clone(), sample::receipt(&intent)),
            )?;
            same("after finish", &known()?, &Some(finished(&intent)))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || look(n))).collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or_else(|_| Err("a thread died".to_owned())))
    })
}

pub(super) fn open_calls_come_in_order(journal: &dyn Journal) -> Kept {
    let (a, b) = (sample::draft(journal, "job-a")?, sample::draft(journal, "job-b")?);
    let mut intents = Vec::new();
    for n in 0..6 {
        let volume = if n % 2 == 0 { &a } else { &b };
        let intent = sample::intent(volume, &format!("k{n}"), "a")?;
        begin(journal, &intent)?;
        intents.push(intent);
    }
    let second = intents.remove(1);
    done(
        "finish",
        journal.finish(second.execution_id.clone(), sample::receipt(&second)),
    )?;
    same(
        "the open ones",
        &done("open_calls", journal.open_calls())?,
        &intents
            .into_iter()
            .map(|intent| OpenCall {
                intent,
                aborting: None,
            })
            .collect::<Vec<_>>(),
    )
}

pub(super) fn commits_outside_of_a_generation_are_counted(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let outside = |key: &str| {
        let mut intent = sample::intent(&volume, key, "a")?;
        intent.scope.generation = None;
        Ok::<_, String>(intent)
    };
    let count = |since| done("job_commits", journal.job_commits(volume.job.clone(), since));
    let inside = sample::intent(&volume, "inside", "a")?;
    begin(journal, &inside)?;
    done(
        "finish",
        journal.finish(inside.execution_id.clone(), sample::receipt(&inside)),
    )?;
    same("none outside", &count(sample::NOW)?, &0)?;
    let (finished, freed, unknown) = (outside("finished")?, outside("freed")?, outside("unknown")?);
    for intent in [&finished, &freed, &unknown] {
        begin(journal, intent)?;
    }
    done(
        "finish",
        journal.finish(finished.execution_id.clone(), sample::receipt(&finished)),
    )?;
    done(
        "free",
        journal.free(freed.execution_id, "never".to_owned(), sample::NOW),
    )?;
    done(
        "unknown",
        journal.unknown(unknown.execution_id, "gone".to_owned(), sample::NOW),
    )?;
    same("done and unknown", &count(sample::NOW)?, &2)?;
    same("later ones", &count(UnixMs(sample::NOW.0 + 1000))?, &0)?;
    // The same key means another effect within the generation.
    begin(journal, &sample::intent(&volume, "finished", "a")?)
}

pub(super) fn the_log_finds_a_call_and_what_it_met(journal: &dyn Journal) -> Kept {
    let (a, b) = (sample::draft(journal, "job-a")?, sample::draft(journal, "job-b")?);
    let (mine, other) = (
        sample::intent(&a, "mine", "a")?,
        sample::intent(&b, "other", "a")?,
    );
    begin(journal, &mine)?;
    begin(journal, &other)?;
    done(
        "finish",
        journal.finish(mine.execution_id.clone(), sample::receipt(&mine)),
    )?;
    let conflict = sample::conflict(&mine);
    let replay = Note {
        event: Event::Replayed,
        ..conflict.clone()
    };
    for note in [&conflict, &replay] {
        done("note", journal.note(note.clone()))?;
    }
    let log = |filter| {
        let lines = done("log", journal.log(filter))?;
        Ok::<_, String>(lines.into_iter().map(|l| l.entry.record).collect::<Vec<_>>())
    };
    let story = vec![
        Record::CallIntended(Box::new(mine.clone())),
        Record::CallReceipted {
            execution_id: mine.execution_id.clone(),
            receipt: sample::receipt(&mine),
        },
        Record::CallNoted(Box::new(conflict.clone())),
        Record::CallNoted(Box::new(replay)),
    ];
    let none = LogFilter::default;
    let by_execution = log(LogFilter {
        execution: Some(mine.execution_id.clone()),
        ..none()
    })?;
    same("by execution", &by_execution, &story)?;
    same(
        "by key",
        &log(LogFilter {
            key: Some(mine.key.clone()),
            ..none()
        })?,
        &story,
    )?;
    let conflicts = LogFilter {
        conflicts: Some(OnlyConflicts::Only),
        ..none()
    };
    same(
        "conflicts",
        &log(conflicts)?,
        &vec![Record::CallNoted(Box::new(conflict))],
    )?;
    let of_b = log(LogFilter {
        job: Some(b.job.clone()),
        ..none()
    })?;
    same(
        "by job",
        &of_b.last(),
        &Some(&Record::CallIntended(Box::new(other))),
    )?;
    same("by job, how many", &of_b.len(), &3)
}

pub(super) fn the_log_gives_the_newest_in_order(journal: &dyn Journal) -> Kept {
    for job in ["job-a", "job-b", "job-c"] {
        sample::draft(journal, job)?;
    }
    let none = LogFilter::default;
    let all = done("log", journal.log(none()))?;
    let newest = done(
        "log",
        journal.log(LogFilter {
            limit: Some(2),
            ..none()
        }),
    )?;
    same("the newest two", &newest.as_slice(), &&all[all.len() - 2..])?;
    let after = LogFilter {
        after_seq: Some(all[2].entry.seq),
        ..none()
    };
    same(
        "after the third",
        &done("log", journal.log(after))?.as_slice(),
        &&all[3..],
    )?;
    same("times", &all.iter().all(|l| l.at == l.entry.record.at()), &true)
}
