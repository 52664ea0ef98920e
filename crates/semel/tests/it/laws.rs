//! What holds whoever calls at the same time, other programs included.

mod handles;
mod saves;
mod swaps;

use crate::harness::{Conn, Daemon, Home, Reply, Volume, full};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::sync::Barrier;

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
