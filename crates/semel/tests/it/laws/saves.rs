//! Another program saves a file by rename, as editors do, while it is edited: what an edit displaces is the version that
//! it was made of, and no other.

use crate::harness::{Daemon, Home, Reply, Volume, full};
use semel_core::digest::Sha256;
use serde_json::json;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file that another program saves, and that is edited meanwhile.
struct Contended {
    tree: PathBuf,
    saves: usize,
}

/// What stands in the contended file: which save it is of, and how often it was edited since.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    save: usize,
    edits: usize,
}

impl Version {
    fn read(text: &str) -> Self {
        let mut lines = text.lines();
        let save = lines.next().unwrap().strip_prefix("saved: ").unwrap();
        let edits = lines.next().unwrap().strip_prefix("edited:").unwrap();
        assert!(
            edits.bytes().all(|b| b == b'.') && lines.next().is_none(),
            "{text}"
        );
        Self {
            save: save.parse().unwrap(),
            edits: edits.len(),
        }
    }

    fn text(&self) -> String {
        format!("saved: {}\nedited:{}\n", self.save, ".".repeat(self.edits))
    }
}

impl Contended {
    /// Saves by rename, as editors do, what it read with one change; gives how often its last save was not to be seen.
    fn save_all(&self) -> usize {
        let (place, new) = (self.tree.join("f"), self.tree.join("f.new"));
        let mut unseen = 0;
        for save in 1..=self.saves {
            let there = Version::read(&std::fs::read_to_string(&place).unwrap());
            unseen += usize::from(there.save != save - 1);
            let next = Version {
                save,
                edits: there.edits % 50,
            };
            std::fs::write(&new, next.text()).unwrap();
            std::fs::rename(&new, &place).unwrap();
        }
        unseen
    }
}

/// Edits until it is over; gives every answer.
fn edits(daemon: &Daemon, volume: &Volume, client: usize, over: &AtomicBool) -> Vec<Reply> {
    let mut conn = daemon.conn();
    let arguments = json!({"path": "f", "old_string": "edited:", "new_string": "edited:."});
    let mut answers = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let key = format!("{client}-{}", answers.len());
        answers.push(conn.call(volume, "edit_file", &key, &arguments));
    }
    answers
}

/// Reads what an execution keeps in `trash/` or `staging/`.
fn kept(volume: &Volume, place: &str, answer: &Reply) -> String {
    let execution = answer.body["execution_id"].as_str().unwrap();
    let beside = volume.tree.parent().unwrap().join(place);
    std::fs::read_to_string(beside.join(execution)).unwrap()
}

/// Holds an edit that was acknowledged: what it displaced is what it read, and what it made is made of that.
fn made_of_what_it_displaced(volume: &Volume, answer: &Reply) {
    let kept = kept(volume, "trash", answer);
    let read = Version::read(&kept);
    let made = Version {
        edits: read.edits + 1,
        ..read
    };
    let digests = (&answer.body["sha256_before"], &answer.body["sha256_after"]);
    let of = |text: &str| json!(Sha256::of(text.as_bytes()));
    assert_eq!(digests, (&of(&kept), &of(&made.text())), "{}", answer.body);
}

#[test]
fn no_version_that_another_program_saved_is_displaced_unread() {
    let saves = if full() { 15_000 } else { 1_000 };
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    std::fs::write(volume.tree.join("f"), Version { save: 0, edits: 0 }.text()).unwrap();
    let contended = Contended {
        tree: volume.tree.clone(),
        saves,
    };
    let over = AtomicBool::new(false);
    let (unseen, answers) = std::thread::scope(|scope| {
        let (daemon, volume, over) = (&daemon, &volume, &over);
        let editors = [0, 1].map(|client| scope.spawn(move || edits(daemon, volume, client, over)));
        let unseen = contended.save_all();
        over.store(true, Ordering::Relaxed);
        let answers = editors.map(|editor| editor.join().unwrap());
        (unseen, answers.into_iter().flatten().collect::<Vec<Reply>>())
    });
    let (mut displaced, mut refused, mut unknown) = (0, 0, 0);
    for answer in &answers {
        match (answer.code(), answer.reason()) {
            ("", _) => {
                made_of_what_it_displaced(&volume, answer);
                displaced += 1;
            }
            ("precondition_failed", "changed_meanwhile" | "sha256_mismatch") => refused += 1,
            // Another save came between an exchange and its undoing: the older one waits for a person.
            ("outcome_unknown", "changed_outside") => {
                Version::read(&kept(&volume, "staging", answer));
                unknown += 1;
            }
            _ => panic!("{}", answer.body),
        }
    }
    eprintln!(
        "{saves} saves by another program: {displaced} edits, each made of the very version that it displaced, 0 \
         displaced unread; {refused} refused, {unknown} unknown with both sides kept; {unseen} saves not seen by the \
         next read"
    );
    assert!(displaced > 0, "the race was on");
    assert_eq!(volume.trashed(), displaced, "nothing else was displaced");
    assert_eq!(volume.staged(), unknown, "nothing else is kept");
}
