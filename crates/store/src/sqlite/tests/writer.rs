//! The writer itself, asked for what no verb does: to fail after it wrote, and to hint wrongly.

use super::super::queue::{Class, Hint};
use super::super::writer::SYNC_WITHIN;
use super::super::{OnCommit, Options, SqliteJournal};
use super::{Fresh, fresh, options};
use crate::OwnerLock;
use crate::conformance::sample;
use crate::journal::LogFilter;
use crate::{Error, Journal};
use semel_core::call::Note;
use semel_core::record::{Record, Sync};
use semel_core::volume::{Durability, Role};
use semel_core::{Code, Refusal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

#[test]
fn a_verb_that_fails_half_way_leaves_nothing_and_takes_nobody_with_it() {
    let Fresh(journal, _dir) = fresh();
    let volume = sample::draft(&journal, "job-a").unwrap();
    let before = journal.status().unwrap();
    let gate = Barrier::new(32);
    std::thread::scope(|scope| {
        for n in 0..32 {
            let (journal, volume, gate) = (&journal, &volume, &gate);
            scope.spawn(move || {
                let intent = sample::intent(volume, &format!("k{n}"), "a").unwrap();
                let note: Note = sample::conflict(&intent);
                gate.wait();
                if n % 2 == 0 {
                    journal.begin(intent).unwrap();
                } else {
                    let half = journal.ask(Class::Settles, Hint::Known(Sync::Later), move |desk| {
                        desk.note(&note)?;
                        Err::<(), Error>(Refusal::new(Code::BadInput, "half way").into())
                    });
                    assert_eq!(half.unwrap_err().code(), Code::BadInput);
                }
            });
        }
    });
    let after = journal.status().unwrap();
    assert_eq!(after.entries - before.entries, 16);
    assert!(after.commits - before.commits < 32, "nothing was grouped");
    assert_eq!(journal.open_calls().unwrap().len(), 16);
    assert_eq!(journal.check().unwrap().faults, vec![]);
}

#[test]
fn a_record_is_synced_as_it_needs_whatever_was_expected() {
    let Fresh(journal, _dir) = fresh();
    let before = journal.status().unwrap().synced_commits;
    for n in 1..=5 {
        let new = sample::run(&format!("job-{n}")).unwrap();
        journal
            .ask(Class::Settles, Hint::Known(Sync::Later), move |desk| {
                desk.start_run(&new)
            })
            .unwrap();
        assert_eq!(journal.status().unwrap().synced_commits - before, n);
    }
}

/// What has no effect of its own makes no sync, and is carried along by the next one that there is.
#[test]
fn a_note_is_never_synced_for_its_own_sake() {
    let Fresh(journal, _dir) = fresh();
    let volume = sample::open(
        &journal,
        sample::new_volume("job-a", Role::Draft, Durability::Power).unwrap(),
    )
    .unwrap();
    let intent = sample::intent(&volume, "k", "a").unwrap();
    journal.begin(intent.clone()).unwrap();
    journal
        .finish(intent.execution_id.clone(), sample::receipt(&intent))
        .unwrap();
    let before = journal.status().unwrap();
    for _ in 0..200 {
        journal.note(sample::conflict(&intent)).unwrap();
    }
    std::thread::sleep(SYNC_WITHIN * 2);
    journal.note(sample::conflict(&intent)).unwrap();
    // A read of the log shows what was noted before it.
    let all = journal.log(LogFilter::default()).unwrap().len() as u64;
    let after = journal.status().unwrap();
    assert_eq!(after.entries, all);
    assert_eq!(after.rows - before.rows, 201);
    assert_eq!(after.synced_commits, before.synced_commits);
    assert_eq!(journal.head().unwrap().size, after.entries);
}

#[test]
fn a_bug_in_the_writer_is_not_taken_for_silence() {
    let Fresh(journal, _dir) = fresh();
    let died = journal.ask(
        Class::Settles,
        Hint::Known(Sync::Later),
        |_| -> crate::Result<()> { panic!("a bug, on purpose") },
    );
    assert!(matches!(died, Err(Error::Poisoned { .. })), "{died:?}");
    assert!(journal.poisoned().is_some());
    assert!(journal.status().is_err());
}

/// A watchdog that is fed by a clock would be fed here, too.
#[test]
fn only_a_commit_is_told_and_a_writer_that_is_held_up_tells_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let told = Arc::new(AtomicU64::new(0));
    let counts = told.clone();
    let on_commit = Some(OnCommit(Arc::new(move || {
        counts.fetch_add(1, Ordering::SeqCst);
    })));
    let lock = OwnerLock::take(dir.path()).unwrap();
    let with = Options {
        on_commit,
        ..options()
    };
    let journal = SqliteJournal::open(lock, &with).unwrap();
    let heard = || told.load(Ordering::SeqCst);
    journal.heartbeat(Duration::from_secs(60)).unwrap();
    journal.heartbeat(Duration::from_secs(60)).unwrap();
    // Its start and the first beat are told for sure: the second was answered after them.
    assert!((2..=3).contains(&heard()), "{}", heard());
    let (holds, held) = channel();
    let (release, released) = channel::<()>();
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| {
            journal.ask(Class::Settles, Hint::Known(Sync::Later), move |_| {
                holds.send(()).unwrap();
                released.recv().unwrap();
                Ok(())
            })
        });
        held.recv().unwrap();
        let before = heard();
        let beat = journal.heartbeat(Duration::from_millis(20)).unwrap_err();
        let refusal = beat.into_refusal();
        assert_eq!(refusal.reason.as_deref(), Some("writer_stuck"));
        assert_eq!(heard(), before, "nothing was committed, and nothing told");
        let status = journal.status().unwrap();
        assert_eq!(status.queued, 2, "the one that holds, and the beat");
        assert!(status.busy_ms >= 20, "{status:?}");
        release.send(()).unwrap();
        stuck.join().unwrap().unwrap();
        journal.heartbeat(Duration::from_secs(60)).unwrap();
        assert!(heard() > before);
    });
}

/// A daemon that is idle for weeks beats all the time.
#[test]
fn beats_do_not_let_the_log_grow() {
    let Fresh(journal, dir) = fresh();
    let log = || {
        std::fs::metadata(dir.path().join("journal.db-wal"))
            .unwrap()
            .len()
    };
    for _ in 0..20_000 {
        journal.heartbeat(Duration::from_secs(60)).unwrap();
    }
    assert!(log() < 20_000 * 4096, "{} bytes after 20,000 pages", log());
}

#[test]
fn what_nobody_waits_for_shares_commits_and_stays_before_what_came_later() {
    let Fresh(journal, _dir) = fresh();
    let volume = sample::draft(&journal, "job-a").unwrap();
    let intent = sample::intent(&volume, "k", "a").unwrap();
    let note = |n: u64| Note {
        took_us: n,
        ..sample::conflict(&intent)
    };
    let before = journal.status().unwrap();
    for n in 0..100 {
        journal.note(note(n)).unwrap();
    }
    // Whoever reads the log is not shown less.
    let shown = journal.log(LogFilter::default()).unwrap().len();
    assert_eq!(shown as u64, before.entries + 100);
    let between = journal.status().unwrap();
    assert!(between.commits - before.commits < 100, "{between:?}");
    journal.note(note(100)).unwrap();
    journal.begin(sample::intent(&volume, "l", "b").unwrap()).unwrap();
    journal.note(note(101)).unwrap();
    journal.head().unwrap();
    let told: Vec<String> = journal
        .log(LogFilter::default())
        .unwrap()
        .iter()
        .skip(usize::try_from(before.entries).unwrap())
        .map(|line| match &line.entry.record {
            Record::CallNoted(note) => note.took_us.to_string(),
            Record::CallIntended(_) => "begun".to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    let in_order = (0..=100).map(|n: u64| n.to_string());
    let wanted: Vec<String> = in_order.chain(["begun".to_owned(), "101".to_owned()]).collect();
    assert_eq!(told, wanted);
    assert_eq!(journal.status().unwrap().queued, 0);
}
