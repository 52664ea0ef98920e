//! `kill -9` of the daemon at every point of every mutating use case: no effect lost, none doubled, and the same
//! generation goes on.

mod abort;
mod acknowledged;
mod boots;
mod filesystems;
pub(crate) mod lab;
mod strace;
pub(crate) mod tools;
pub(crate) mod tree;

use crate::harness::{Conn, Home, Share, bare, wait_until};
use lab::{Lab, Stands};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// Points that only an outside writer, a person who decides, a command, or retention can bring about; they have tests of
/// their own.
const OUTSIDE: &[&str] = &[
    "exchanged_back",
    "put_back",
    "approval_asked",
    "approval_decided",
    "exec_made",
    "exec_spawned",
    "exec_begun",
    "exec_ended",
    "eviction_recorded",
    "eviction_aside",
];

fn points() -> Vec<String> {
    let out = bare(&["generate", "crash-points"]).output().unwrap();
    String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Kills one call at every point, and again at every point that recovery then comes to, or at a share of them.
fn kill_everywhere(lab: &mut Lab, case: &'static tools::Case, share: &mut Share, met: &mut BTreeSet<String>) {
    for at in lab.points_of(case) {
        lab.trial(case, &at, None);
        let (stood, recovery) = (lab.stood(), lab.restart(&[]));
        // What is half done is taken back, and only that.
        let aborting = recovery.iter().any(|point| point.starts_with("aborting"));
        assert_eq!(aborting, stood == Stands::Between, "{} {at}", case.name);
        // The intent is recorded while what is staged is synced: nobody can say which was first.
        let open = !at.starts_with("staged_synced");
        for again in recovery.iter().filter(|_| open && share.takes()) {
            lab.trial(case, &at, Some(again));
        }
        if aborting {
            lab.trial(case, &at, None);
            let died = lab.die_while_recovering("rolled_back");
            let steps = recovery.iter().filter(|point| point.starts_with("rolled_back"));
            assert_eq!(died, steps.count(), "{} {at}", case.name);
        }
        let points = recovery.iter().chain([&at]);
        met.extend(points.filter_map(|point| Some(point.split_once(':')?.0.to_owned())));
    }
}

fn matrix(durability: &str) {
    let mut lab = Lab::new(durability);
    let (mut met, mut share) = (BTreeSet::new(), Share::of(4));
    for case in tools::all() {
        let before = lab.trials;
        kill_everywhere(&mut lab, case, &mut share, &mut met);
        lab.settle();
        eprintln!(
            "{durability} {}: {} trials, 0 lost, 0 double",
            case.name,
            lab.trials - before
        );
    }
    let synced = |point: &String| durability != "process" || !point.ends_with("_synced");
    let wanted: BTreeSet<String> = points()
        .into_iter()
        .filter(|point| synced(point) && !OUTSIDE.contains(&point.as_str()))
        .collect();
    assert_eq!(met, wanted, "every point is met");
    eprintln!(
        "{durability}: {} trials, 0 lost, 0 double, generation {} goes on",
        lab.trials, lab.volume.generation
    );
    lab.end();
}

#[test]
fn one_effect_at_every_point_in_durability_process() {
    matrix("process");
}

#[test]
fn one_effect_at_every_point_in_durability_power() {
    matrix("power-best-effort");
}

/// Another program replaces the file between intent and exchange: the exchange is undone, and dying there is no
/// worse.
#[test]
fn an_outside_writer_wins_and_nothing_is_lost() {
    for crash in [None, Some("exchanged_back"), Some("receipted")] {
        let home = Home::new();
        let held = home.path().join("held");
        let hold = format!("target_seen={}", held.display());
        let mut args = vec!["--hold-at", &hold];
        args.extend(crash.into_iter().flat_map(|point| ["--crash-at", point]));
        let daemon = home.serve(&args);
        let volume = home.open("job", "process");
        std::fs::write(volume.tree.join("f"), "before").unwrap();
        let arguments = json!({"path": "f", "content": "after"});
        let url = daemon.url.clone();
        let first = std::thread::scope(|scope| {
            let call = scope.spawn(|| Conn::tcp(&url).try_call(&volume, "write_file", "k", &arguments));
            assert!(wait_until(Duration::from_secs(30), || held.exists()));
            std::fs::write(volume.tree.join("new"), "from outside").unwrap();
            std::fs::rename(volume.tree.join("new"), volume.tree.join("f")).unwrap();
            std::fs::remove_file(&held).unwrap();
            call.join().unwrap()
        });
        assert_eq!(first.is_none(), crash.is_some());
        drop(daemon);
        assert_eq!(
            std::fs::read_to_string(volume.tree.join("f")).unwrap(),
            "from outside",
            "{crash:?}"
        );
        let daemon = home.serve(&[]);
        let again = daemon.conn().call(&volume, "write_file", "k", &arguments);
        if let Some(first) = first {
            assert_eq!(
                (first.status, first.code(), first.reason()),
                (412, "precondition_failed", "changed_meanwhile")
            );
        }
        match crash {
            // It is proven that nothing happened: the key is free, and the call sees the file as it is now.
            Some("exchanged_back") => {
                assert_eq!(
                    (again.status, &again.body["replayed"]),
                    (200, &json!(false)),
                    "{}",
                    again.body
                );
                assert_eq!(std::fs::read_to_string(volume.tree.join("f")).unwrap(), "after");
            }
            // The refusal came after the intent: it replays.
            _ => assert_eq!(
                (again.code(), again.reason(), &again.body["replayed"]),
                ("precondition_failed", "changed_meanwhile", &json!(true))
            ),
        }
        assert_eq!(volume.staged(), 0);
    }
}

#[test]
fn a_volume_that_vanished_leaves_its_call_unknown_and_ends_dirty() {
    let home = Home::new();
    let mut daemon = home.serve(&["--crash-at", "begun"]);
    let volume = home.open("job", "process");
    let arguments = json!({"path": "f", "content": "1"});
    assert!(
        daemon
            .conn()
            .try_call(&volume, "write_file", "k", &arguments)
            .is_none()
    );
    daemon.ended(Duration::from_secs(20)).unwrap();
    let generation = volume.tree.parent().unwrap().parent().unwrap();
    std::fs::rename(generation, home.path().join("away")).unwrap();
    let daemon = home.serve(&[]);
    let reply = daemon.conn().call(&volume, "write_file", "k", &arguments);
    assert_eq!(
        (reply.code(), reply.reason()),
        ("replay_conflict", "stale_generation")
    );
    let receipt = daemon
        .conn()
        .call(&volume, "get_receipt", "", &json!({"key": "k"}));
    assert_eq!(receipt.body["state"], "unknown", "{}", receipt.body);
    let status = home.json(&["status"]);
    assert_eq!(status["unknown"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(status["quarantined"][0]["dirty"], "identity_changed");
}
