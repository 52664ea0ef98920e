//! What holds whoever calls at the same time, other programs included.

mod handles;
mod swaps;

use crate::harness::{Conn, Daemon, Home, Reply, Volume, full};
use semel_core::digest::Sha256;
use serde_json::{Value, json};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

const CLIENTS: usize = 16;

/// Sends one call from each of many clients at the same moment, again and again; each round is looked at in between.
fn together(
    daemon: &Daemon,
    volume: &Volume,
    rounds: usize,
    call: impl Fn(usize, usize) -> (&'static str, String, Value) + Sync,
    mut looked_at: impl FnMut(usize, Vec<Reply>),
) {
    let (ready, done) = (Barrier::new(CLIENTS + 1), Barrier::new(CLIENTS + 1));
    let (give, taken) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (ready, done, give, call) = (&ready, &done, give.clone(), &call);
            scope.spawn(move || {
                let mut conn: Conn<TcpStream> = daemon.conn();
                for round in 0..rounds {
                    ready.wait();
                    let (tool, key, arguments) = call(round, client);
                    give.send(conn.try_call(volume, tool, &key, &arguments)).unwrap();
                    done.wait();
                }
            });
        }
        let mut failed = None;
        for round in 0..rounds {
            ready.wait();
            let replies: Vec<_> = (0..CLIENTS).map(|_| taken.recv().unwrap()).collect();
            // A failure is kept for the end, so that nobody waits for a round that never comes.
            if failed.is_none() {
                let look = std::panic::AssertUnwindSafe(|| {
                    let replies = replies.into_iter().map(|reply| reply.expect("an answer"));
                    looked_at(round, replies.collect());
                });
                failed = std::panic::catch_unwind(look).err();
            }
            done.wait();
        }
        if let Some(failed) = failed {
            std::panic::resume_unwind(failed);
        }
    });
}

#[test]
fn parallel_edits_of_one_file_lose_nothing_and_fail_for_no_reason() {
    let rounds = if full() { 100 } else { 20 };
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let line = |client: usize, round: usize| format!("line {client:02} is {round}\n");
    let whole = |round| (0..CLIENTS).map(|client| line(client, round)).collect::<String>();
    std::fs::write(volume.tree.join("f"), whole(0)).unwrap();
    let call = |round, client| {
        let (old, new) = (line(client, round), line(client, round + 1));
        let arguments = json!({"path": "f", "old_string": old, "new_string": new});
        ("edit_file", format!("{round}-{client}"), arguments)
    };
    let mut acknowledged = 0;
    together(&daemon, &volume, rounds, call, |round, replies| {
        for reply in replies {
            assert_eq!(
                (reply.status, &reply.body["replayed"]),
                (200, &json!(false)),
                "{}",
                reply.body
            );
            acknowledged += 1;
        }
        let there = std::fs::read_to_string(volume.tree.join("f")).unwrap();
        assert_eq!(there, whole(round + 1), "round {round}");
    });
    assert_eq!(volume.trashed(), rounds * CLIENTS);
    eprintln!("{rounds} rounds of 16 parallel edits: {acknowledged} acknowledged, 0 lost, 0 failed");
}

#[test]
fn simultaneous_duplicates_have_one_effect() {
    let rounds = if full() { 1_000 } else { 60 };
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    std::fs::write(volume.tree.join("f"), "END\n").unwrap();
    let call = |round: usize, _| {
        let new = format!("{round}\nEND\n");
        let arguments = json!({"path": "f", "old_string": "END\n", "new_string": new});
        ("edit_file", format!("k{round}"), arguments)
    };
    let mut lines = String::new();
    together(&daemon, &volume, rounds, call, |round, replies| {
        let first = replies[0].body["execution_id"].clone();
        let executed = replies.iter().filter(|reply| reply.body["replayed"] == false);
        assert_eq!(executed.count(), 1, "round {round}");
        for reply in &replies {
            let got = (reply.status, &reply.body["execution_id"]);
            assert_eq!(got, (200, &first), "round {round}: {}", reply.body);
        }
        lines.push_str(&format!("{round}\n"));
        let there = std::fs::read_to_string(volume.tree.join("f")).unwrap();
        assert_eq!(there, format!("{lines}END\n"), "round {round}");
    });
    assert_eq!(volume.trashed(), rounds);
    eprintln!("{rounds} rounds of 16 simultaneous duplicates: 1 effect each");
}

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
        let editors: Vec<_> = (0..2)
            .map(|client| {
                let (daemon, volume, over) = (&daemon, &volume, &over);
                scope.spawn(move || {
                    let mut conn = daemon.conn();
                    let arguments = json!({"path": "f", "old_string": "edited:", "new_string": "edited:."});
                    let mut answers = Vec::new();
                    for n in 0.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        answers.push(conn.call(volume, "edit_file", &format!("{client}-{n}"), &arguments));
                    }
                    answers
                })
            })
            .collect();
        let unseen = contended.save_all();
        over.store(true, Ordering::Relaxed);
        let answers: Vec<Reply> = editors
            .into_iter()
            .flat_map(|editor| editor.join().unwrap())
            .collect();
        (unseen, answers)
    });
    let of = |code: &str| answers.iter().filter(|answer| answer.code() == code).count();
    let done = answers.iter().filter(|answer| answer.status == 200);
    let vol = volume.tree.parent().unwrap();
    let mut displaced = 0;
    for answer in done.clone() {
        let execution = answer.body["execution_id"].as_str().unwrap();
        let kept = std::fs::read_to_string(vol.join("trash").join(execution)).unwrap();
        let read = Version::read(&kept);
        let made = Version {
            edits: read.edits + 1,
            ..read
        };
        let digests = (&answer.body["sha256_before"], &answer.body["sha256_after"]);
        let of = |text: &str| json!(Sha256::of(text.as_bytes()));
        assert_eq!(digests, (&of(&kept), &of(&made.text())), "{}", answer.body);
        displaced += 1;
    }
    eprintln!(
        "{saves} saves by another program: {displaced} edits, each made of the very version that it displaced; \
         {} refused, {} unknown, with both sides kept; {unseen} saves not seen by the next read",
        of("precondition_failed"),
        of("outcome_unknown")
    );
    let told = displaced + of("precondition_failed") + of("outcome_unknown");
    assert_eq!(
        told,
        answers.len(),
        "{:?}",
        answers.iter().find(|a| a.status >= 500)
    );
    // Where another save came between an exchange and its undoing, the older one waits for a person.
    for answer in answers.iter().filter(|answer| answer.code() == "outcome_unknown") {
        assert_eq!(answer.reason(), "changed_outside", "{}", answer.body);
        let execution = answer.body["execution_id"].as_str().unwrap();
        Version::read(&std::fs::read_to_string(vol.join("staging").join(execution)).unwrap());
    }
    assert_eq!(volume.staged(), of("outcome_unknown"), "nothing else is kept");
    let trash = std::fs::read_dir(vol.join("trash")).unwrap().count();
    assert_eq!(trash, displaced, "nothing else was displaced");
}
