//! `kill -9` of the daemon at every point of every mutating use case: no effect lost, none doubled, and the same
//! generation goes on.

use crate::harness::{Daemon, Home, Volume, bare};
use serde_json::json;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

/// Points that only an outside writer, or a command, can bring about; they have tests of their own.
const OUTSIDE: &[&str] = &[
    "exchanged_back",
    "put_back",
    "exec_made",
    "exec_spawned",
    "exec_begun",
    "exec_ended",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    New,
    Replace,
    Delete,
}

fn points() -> Vec<String> {
    let out = bare(&["generate", "crash-points"]).output().unwrap();
    String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Says whether the effect is on the disk when the daemon dies at a point.
fn happened(point: &str) -> bool {
    !["checked", "staged", "staged_synced", "begun"].contains(&point)
}

struct Lab {
    home: Home,
    volume: Volume,
    trashed: usize,
    n: usize,
}

impl Lab {
    fn new(durability: &str) -> Self {
        let home = Home::new();
        let daemon = home.serve(&[]);
        let volume = home.open("job", durability);
        daemon.kill();
        Self {
            home,
            volume,
            trashed: 0,
            n: 0,
        }
    }

    /// Kills the daemon at a point of one call, and maybe again while it recovers; gives whether the point was met.
    fn trial(&mut self, case: Case, point: &str, again: Option<&str>) -> bool {
        self.n += 1;
        let (key, path) = (format!("k{}", self.n), format!("f{}", self.n));
        let name = format!("{case:?} {point} {again:?}");
        let place = self.volume.tree.join(&path);
        if case != Case::New {
            std::fs::write(&place, "before").unwrap();
        }
        let (tool, arguments) = match case {
            Case::New | Case::Replace => ("write_file", json!({"path": path, "content": "after"})),
            Case::Delete => ("delete_file", json!({"path": path})),
        };
        let mut daemon = self.home.serve(&["--crash-at", point]);
        let first = daemon.conn().try_call(&self.volume, tool, &key, &arguments);
        let met = first.is_none();
        if met {
            let status = daemon.ended(Duration::from_secs(20)).expect("the daemon dies");
            assert_eq!(status.signal(), Some(9), "{name}");
        }
        drop(daemon);
        if met && let Some(again) = again {
            // It may die while it starts, or have nothing to recover and start.
            drop(Daemon::start(&self.home, &["--crash-at", again]));
        }
        let daemon = self.home.serve(&[]);
        let retried = daemon.conn().call(&self.volume, tool, &key, &arguments);
        let replayed = if met { happened(point) } else { true };
        let got = (
            retried.status,
            &retried.body["replayed"],
            &retried.body["generation"],
        );
        assert_eq!(
            got,
            (200, &json!(replayed), &json!(self.volume.generation)),
            "{name}: {}",
            retried.body
        );
        let knows_before = retried.body["sha256_before"].is_string();
        assert_eq!(knows_before, case != Case::New, "{name}: {}", retried.body);
        self.one_effect(case, &key, &place, &name, &daemon);
        daemon.kill();
        met
    }

    /// Counts effects by what the disk and the journal kept of them.
    fn one_effect(&mut self, case: Case, key: &str, place: &std::path::Path, name: &str, daemon: &Daemon) {
        match case {
            Case::New | Case::Replace => {
                assert_eq!(std::fs::read_to_string(place).unwrap(), "after", "{name}")
            }
            Case::Delete => assert!(!place.exists(), "{name}"),
        }
        self.trashed += usize::from(case != Case::New);
        assert_eq!(
            self.volume.trashed(),
            self.trashed,
            "{name}: one pre-image is kept, no more"
        );
        assert_eq!(self.volume.staged(), 0, "{name}: nothing is left in staging");
        let verb = json!({"verb": "log", "filter": {"after_seq": null, "job": null, "execution": null, "key": key, "conflicts": null, "limit": null}});
        let log = self.home.admin("POST", "/v1/admin/journal", &verb);
        let kinds = |kind: &str| {
            let lines = log.body.as_array().unwrap().iter();
            lines
                .filter(|line| line["entry"]["record"]["kind"] == kind)
                .count()
        };
        let (intents, receipts, freed) = (
            kinds("call_intended"),
            kinds("call_receipted"),
            kinds("call_freed"),
        );
        assert_eq!((receipts, intents - freed), (1, 1), "{name}: {}", log.body);
        assert_eq!(kinds("call_unknown"), 0, "{name}");
        let again = daemon
            .conn()
            .call(&self.volume, "get_receipt", "", &json!({"key": key}));
        assert_eq!(again.body["state"], "done", "{name}");
    }
}

fn matrix(durability: &str) {
    let mut lab = Lab::new(durability);
    let all = points();
    let (live, recovery): (Vec<_>, Vec<_>) = all.iter().partition(|point| !point.starts_with("recovery"));
    assert!(live.len() > 10 && recovery.len() == 3);
    let mut met = BTreeSet::new();
    for case in [Case::New, Case::Replace, Case::Delete] {
        for point in &live {
            if lab.trial(case, point, None) {
                met.insert(point.to_string());
                // Without an open intent there is nothing to recover.
                let intent = !["checked", "staged", "staged_synced", "receipted"].contains(&point.as_str());
                for again in recovery.iter().filter(|_| intent) {
                    assert!(lab.trial(case, point, Some(again)));
                }
            }
        }
    }
    let synced = |point: &&&String| durability != "process" || !point.ends_with("_synced");
    let wanted: BTreeSet<String> = live
        .iter()
        .filter(synced)
        .filter(|point| !OUTSIDE.contains(&point.as_str()))
        .map(ToString::to_string)
        .collect();
    assert_eq!(met, wanted, "every point is met");
    eprintln!(
        "{durability}: {} trials, 0 lost, 0 double, generation {} goes on",
        lab.n, lab.volume.generation
    );
    drop(lab.home.serve(&[]));
    let report = lab.home.json(&["check"]);
    assert_eq!(report["report"]["faults"], json!([]));
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
    for crash in [None, Some("exchanged_back"), Some("acted")] {
        let home = Home::new();
        let mut args = vec!["--pause-at", "begun:500"];
        args.extend(crash.into_iter().flat_map(|point| ["--crash-at", point]));
        let daemon = home.serve(&args);
        let volume = home.open("job", "process");
        std::fs::write(volume.tree.join("f"), "before").unwrap();
        let arguments = json!({"path": "f", "content": "after"});
        let url = daemon.url.clone();
        let first = std::thread::scope(|scope| {
            let call = scope
                .spawn(|| crate::harness::Conn::tcp(&url).try_call(&volume, "write_file", "k", &arguments));
            std::thread::sleep(Duration::from_millis(200));
            std::fs::write(volume.tree.join("new"), "from outside").unwrap();
            std::fs::rename(volume.tree.join("new"), volume.tree.join("f")).unwrap();
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
        match crash {
            // The refusal came after the intent: it replays.
            None => {
                let first = first.unwrap();
                assert_eq!(
                    (first.status, first.code(), first.reason()),
                    (412, "precondition_failed", "changed_meanwhile")
                );
                assert_eq!(
                    (again.code(), &again.body["replayed"]),
                    ("precondition_failed", &json!(true))
                );
            }
            // It is proven that nothing happened: the key is free, and the call sees the file as it is now.
            Some(_) => {
                assert_eq!(
                    (again.status, &again.body["replayed"]),
                    (200, &json!(false)),
                    "{}",
                    again.body
                );
                assert_eq!(std::fs::read_to_string(volume.tree.join("f")).unwrap(), "after");
            }
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
