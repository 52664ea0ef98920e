//! The writer itself, asked for what no verb does: to fail after it wrote, and to hint wrongly.

use super::super::queue::{Class, Hint};
use super::{Fresh, fresh};
use crate::conformance::sample;
use crate::{Error, Journal};
use semel_core::call::Note;
use semel_core::record::Sync;
use semel_core::{Code, Refusal};
use std::sync::Barrier;

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
    assert_eq!(journal.check().unwrap().faults, Vec::<String>::new());
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

#[test]
fn a_bug_in_the_writer_is_not_taken_for_silence() {
    let Fresh(journal, _dir) = fresh();
    let (tell, told) = std::sync::mpsc::channel();
    journal.when_poisoned(move |why| tell.send(why.to_owned()).unwrap());
    let died = journal.ask(
        Class::Settles,
        Hint::Known(Sync::Later),
        |_| -> crate::Result<()> { panic!("a bug, on purpose") },
    );
    assert!(told.recv().unwrap().contains("bug"));
    assert!(matches!(died, Err(Error::Poisoned { .. })), "{died:?}");
    assert!(journal.poisoned().is_some());
    assert!(journal.status().is_err());
}
