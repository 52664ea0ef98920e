//! Laws of the log as it is read, and held against checkpoints.

use super::{Kept, done, same, sample};
use crate::journal::{Depth, Journal, LogFilter, LogLine, View};
use semel_core::audit::FaultKind;
use semel_core::call::{Event, Intent, Note};
use semel_core::checkpoint::Checkpoint;
use semel_core::digest::Sha256;
use semel_core::record::Record;

fn calls(journal: &dyn Journal, filter: LogFilter) -> Result<Vec<LogLine>, String> {
    let filter = LogFilter {
        view: Some(View::Calls),
        ..filter
    };
    done("log", journal.log(filter))
}

pub(super) fn each_call_is_shown_once(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let mut intents = Vec::new();
    for key in ["done", "freed", "unknown", "running"] {
        let intent = sample::intent(&volume, key, "a")?;
        done("begin", journal.begin(intent.clone()))?;
        intents.push(intent);
    }
    let [finished, freed, unknown, running] = &intents[..] else {
        return Err("four calls".to_owned());
    };
    let id = |intent: &Intent| intent.execution_id.clone();
    done("finish", journal.finish(id(finished), sample::receipt(finished)))?;
    done("free", journal.free(id(freed), "never".to_owned(), sample::NOW))?;
    done(
        "unknown",
        journal.unknown(id(unknown), "gone".to_owned(), sample::NOW),
    )?;
    let again = sample::intent(&volume, "freed", "a")?;
    done("begin", journal.begin(again.clone()))?;
    done("finish", journal.finish(id(&again), sample::receipt(&again)))?;
    let replay = Note {
        event: Event::Replayed,
        ..sample::conflict(finished)
    };
    done("note", journal.note(replay))?;
    let shown = calls(journal, LogFilter::default())?;
    let seen: Vec<(&str, Option<&Intent>)> = shown
        .iter()
        .filter_map(|line| {
            let kind = match &line.entry.record {
                Record::CallIntended(_) => "running",
                Record::CallReceipted { .. } => "done",
                Record::CallFreed { .. } => "freed",
                Record::CallUnknown { .. } => "unknown",
                Record::CallNoted(_) => "note",
                _ => return None,
            };
            Some((kind, line.intent.as_deref()))
        })
        .collect();
    let story = vec![
        ("running", None),
        ("done", Some(finished)),
        ("freed", Some(freed)),
        ("unknown", Some(unknown)),
        ("done", Some(&again)),
        ("note", None),
    ];
    same("each call once, with its intent", &seen, &story)?;
    let of_one = calls(
        journal,
        LogFilter {
            execution: Some(id(finished)),
            ..LogFilter::default()
        },
    )?;
    same("the call and its replay", &of_one.len(), &2)?;
    same(
        "the one that runs",
        &shown
            .iter()
            .any(|line| line.entry.record == Record::CallIntended(Box::new(running.clone()))),
        &true,
    )
}

pub(super) fn the_log_is_read_in_windows(journal: &dyn Journal) -> Kept {
    for job in ["job-a", "job-b", "job-c"] {
        sample::draft(journal, job)?;
    }
    let all = done("log", journal.log(LogFilter::default()))?;
    let mut read = Vec::new();
    for after in [0, 2, 4, 6] {
        let window = LogFilter {
            after_seq: Some(after),
            up_to_seq: Some(after + 2),
            ..LogFilter::default()
        };
        read.extend(done("log", journal.log(window))?);
    }
    same("the windows, one after the other", &read, &all)
}

pub(super) fn a_head_is_what_is_verified(journal: &dyn Journal) -> Kept {
    let volume = sample::draft(journal, "job-a")?;
    let early = done("head", journal.head())?;
    done("begin", journal.begin(sample::intent(&volume, "k", "a")?))?;
    let late = done("head", journal.head())?;
    same("it grew by one", &late.size, &(early.size + 1))?;
    let audit = |held: Vec<Checkpoint>| {
        let report = done("audit", journal.audit(held, Depth::Structures))?;
        Ok::<_, String>(
            report
                .faults
                .iter()
                .map(|fault| (fault.kind, fault.seq))
                .collect::<Vec<_>>(),
        )
    };
    same("both hold", &audit(vec![early.clone(), late.clone()])?, &vec![])?;
    let other = Sha256::of(b"other");
    let (rewritten, truncated, foreign) = (
        Checkpoint {
            head: other,
            ..early.clone()
        },
        Checkpoint {
            size: late.size + 1,
            ..late.clone()
        },
        Checkpoint {
            first: other,
            ..late.clone()
        },
    );
    same(
        "what does not hold",
        &audit(vec![rewritten, truncated, foreign])?,
        &vec![
            (FaultKind::Rewritten, Some(early.size)),
            (FaultKind::Truncated, Some(late.size + 1)),
            (FaultKind::OtherLog, Some(1)),
        ],
    )
}
