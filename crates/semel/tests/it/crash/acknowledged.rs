//! `kill -9` right after an answer, while other calls are in flight: what was acknowledged has its receipt and its
//! effect, and what was not is done once when it is sent again.

use super::lab::Chance;
use crate::harness::{Conn, Daemon, Home, Volume, full, signal};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const CLIENTS: usize = 16;
/// A file that many calls edit: each adds one line.
const SHARED: &str = "shared";

/// One call, and by which execution it was acknowledged, if it was.
struct Sent {
    key: String,
    tool: &'static str,
    arguments: Value,
    acknowledged: Option<String>,
}

/// Gives the n-th call of a client: every third adds its line to the shared file, the others write a file of their own.
fn call(round: usize, client: usize, n: usize) -> Sent {
    let key = format!("r{round}-c{client}-{n}");
    let (tool, arguments) = if n % 3 == 2 {
        let (end, line) = ("END\n", format!("{key}\nEND\n"));
        (
            "edit_file",
            json!({"path": SHARED, "old_string": end, "new_string": line}),
        )
    } else {
        (
            "write_file",
            json!({"path": format!("f-{key}"), "content": format!("content of {key}")}),
        )
    };
    Sent {
        key,
        tool,
        arguments,
        acknowledged: None,
    }
}

/// Sends calls from many clients until so many were acknowledged; the client that gets the last one kills at once.
fn until_killed(daemon: &Daemon, volume: &Volume, round: usize, target: usize) -> Vec<Sent> {
    let (answers, all) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (answers, all) = (&answers, &all);
            scope.spawn(move || {
                let mut conn = Conn::tcp(&daemon.url);
                for n in 0.. {
                    let mut sent = call(round, client, n);
                    let reply = conn.try_call(volume, sent.tool, &sent.key, &sent.arguments);
                    if let Some(reply) = &reply {
                        assert_eq!(reply.status, 200, "{}: {}", sent.key, reply.body);
                        if answers.fetch_add(1, Ordering::SeqCst) + 1 == target {
                            signal(daemon.pid, libc::SIGKILL);
                        }
                        sent.acknowledged = reply.body["execution_id"].as_str().map(str::to_owned);
                    }
                    all.lock().unwrap().push(sent);
                    if reply.is_none() {
                        return;
                    }
                }
            });
        }
    });
    all.into_inner().unwrap()
}

/// Sends everything again; gives how many acknowledged calls there were.
fn sent_again(daemon: &Daemon, volume: &Volume, all: &[Sent]) -> usize {
    let mut conn = daemon.conn();
    for sent in all {
        let again = conn.call(volume, sent.tool, &sent.key, &sent.arguments);
        assert_eq!(again.status, 200, "{}: {}", sent.key, again.body);
        if let Some(execution) = &sent.acknowledged {
            let got = (&again.body["replayed"], &again.body["execution_id"]);
            assert_eq!(
                got,
                (&json!(true), &json!(execution)),
                "{}: a lost receipt",
                sent.key
            );
        }
        if sent.tool == "write_file" {
            let path = sent.arguments["path"].as_str().unwrap();
            let there = std::fs::read_to_string(volume.tree.join(path)).unwrap();
            assert_eq!(json!(there), sent.arguments["content"], "{}", sent.key);
        }
    }
    all.iter().filter(|sent| sent.acknowledged.is_some()).count()
}

fn killed_after_answers(durability: &str, rounds: usize) {
    let mut chance = Chance::new();
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    let volume = home.open("job", durability);
    std::fs::write(volume.tree.join(SHARED), "END\n").unwrap();
    let (mut acknowledged, mut everything) = (0, Vec::new());
    for round in 0..rounds {
        let target = 10 + chance.below(60);
        let all = until_killed(&daemon, &volume, round, target);
        daemon.ended(Duration::from_secs(30)).expect("it was killed");
        daemon = home.serve(&[]);
        acknowledged += sent_again(&daemon, &volume, &all);
        everything.extend(all);
    }
    // The older ones, too, after all the kills that followed.
    assert_eq!(sent_again(&daemon, &volume, &everything), acknowledged);
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string(volume.tree.join(SHARED)).unwrap().lines() {
        *lines.entry(line.to_owned()).or_default() += 1;
    }
    let edits = everything.iter().filter(|sent| sent.tool == "edit_file");
    let wanted = edits
        .map(|sent| (sent.key.clone(), 1))
        .chain([("END".to_owned(), 1)]);
    assert_eq!(lines, wanted.collect(), "each line once");
    drop(daemon);
    assert_eq!(home.json(&["check"])["report"]["faults"], json!([]));
    eprintln!(
        "{durability}, seed {}: {rounds} kills right after an answer, {acknowledged} acknowledged calls, 0 lost receipts, \
         {} in flight, 0 double",
        chance.seed,
        everything.len() - acknowledged
    );
    assert!(acknowledged >= rounds * 10);
}

#[test]
fn no_receipt_is_lost_in_durability_process() {
    killed_after_answers("process", if full() { 500 } else { 9 });
}

#[test]
fn no_receipt_is_lost_in_durability_power() {
    killed_after_answers("power-best-effort", if full() { 500 } else { 4 });
}
