//! `kill -9` of the daemon at every point of starting and ending a command: one effect, or a definite refusal.

use super::*;
use crate::harness::{bare, signal};

fn points() -> Vec<String> {
    let out = bare(&["generate", "crash-points"]).output().unwrap();
    let all = String::from_utf8(out.stdout).unwrap();
    all.lines().map(str::to_owned).collect()
}

/// The points that a call of `run_command` meets.
const LIVE: &[&str] = &[
    "checked",
    "begun",
    "exec_made",
    "exec_spawned",
    "exec_begun",
    "exec_ended",
    "receipted",
];

/// Counts what the journal has of a key.
fn kinds(lab: &Lab, key: &str) -> [usize; 4] {
    let filter = json!({"after_seq": null, "job": null, "execution": null, "key": key, "conflicts": null, "limit": null});
    let log = lab.home.admin(
        "POST",
        "/v1/admin/journal",
        &json!({"verb": "log", "filter": filter}),
    );
    ["call_intended", "call_receipted", "call_freed", "call_unknown"].map(|kind| {
        let lines = log.body.as_array().unwrap().iter();
        lines
            .filter(|line| line["entry"]["record"]["kind"] == kind)
            .count()
    })
}

/// Kills the daemon at a point of one call, and maybe again while it recovers; then sends the same call again.
fn trial(durability: &str, point: &str, again: Option<&str>, line: &str) {
    let name = format!("{durability} {point} {again:?}");
    let mut lab = Lab::with(durability, &["--crash-at", point]);
    let arguments = json!({"command": line});
    let first = lab.conn().try_call(&lab.volume, "run_command", "k", &arguments);
    assert!(first.is_none(), "{name}: the point is met");
    let died = lab.daemon.take().unwrap().ended(LONG);
    assert!(died.is_some(), "{name}: the daemon dies");
    if let Some(again) = again {
        drop(Daemon::start(&lab.home, &["--crash-at", again]));
    }
    lab.restart(&[]);
    let retried = lab.call("k", &arguments);
    assert_eq!(
        (retried.status, &retried.body["exit_code"]),
        (200, &json!(0)),
        "{name}: {}",
        retried.body
    );
    assert_eq!(lab.effects(), 1, "{name}: {}", retried.body);
    let again = lab.call("k", &arguments);
    assert_eq!(
        (&again.body["replayed"], &again.body["execution_id"]),
        (&json!(true), &retried.body["execution_id"]),
        "{name}"
    );
    let [intents, receipts, freed, unknown] = kinds(&lab, "k");
    assert_eq!((receipts, intents - freed, unknown), (1, 1, 0), "{name}");
    // Once it may have begun it is never begun by the retry; before, it always is.
    let replayed = &retried.body["replayed"];
    match point {
        "checked" | "begun" | "exec_made" => assert_eq!(replayed, &json!(false), "{name}"),
        "exec_begun" | "exec_ended" | "receipted" => assert_eq!(replayed, &json!(true), "{name}"),
        // The shim and recovery race: either way there is one effect.
        _ => {}
    }
    drop(lab.daemon.take());
    let report = lab.home.json(&["check"]);
    assert_eq!(report["report"]["faults"], json!([]), "{name}");
}

#[test]
fn one_effect_wherever_the_daemon_dies() {
    let all = points();
    let mut trials = 0;
    for point in LIVE {
        assert!(all.iter().any(|known| known == point), "{point}");
        trial("process", point, None, "echo x >> effects; echo out");
        trials += 1;
        let open = !["checked", "receipted"].contains(point);
        for again in ["recovery_observed", "recovery_settled"].iter().filter(|_| open) {
            trial(
                "process",
                point,
                Some(again),
                "echo x >> effects; sleep 0.5; echo out",
            );
            trials += 1;
        }
    }
    for point in ["begun", "exec_spawned", "exec_ended"] {
        trial("power-best-effort", point, None, EFFECT);
        trials += 1;
    }
    eprintln!("{trials} trials, 0 lost, 0 double");
}

/// It begins under one life of the daemon, lasts through two more, and ends under a fourth.
#[test]
fn a_long_command_outlasts_the_daemon() {
    let mut lab = Lab::new();
    let arguments = json!({"command": WAITS});
    let execution = lab.begin("k", &arguments).body["execution_id"].clone();
    lab.begun();
    for _ in 0..2 {
        lab.kill();
        lab.restart(&[]);
        let told = lab.begin("k", &arguments);
        assert_eq!(told.body["execution_id"], execution);
    }
    lab.kill();
    lab.restart(&[]);
    let done = std::thread::scope(|scope| {
        let waits = scope.spawn(|| lab.call("k", &arguments));
        lab.go();
        waits.join().unwrap()
    });
    assert_eq!(
        (
            &done.body["replayed"],
            &done.body["execution_id"],
            &done.body["stdout"]
        ),
        (&json!(true), &execution, &json!("begun\ndone\n")),
        "{}",
        done.body
    );
    assert_eq!(lab.effects(), 1);
    assert!(lab.receipt("k")["recovered"].is_string());
}

#[test]
fn a_command_that_ends_while_no_daemon_runs_has_its_receipt_in_the_next_life() {
    let mut lab = Lab::new();
    let arguments = json!({"command": WAITS});
    let execution = lab.begin("k", &arguments).body["execution_id"].clone();
    lab.begun();
    let status = lab.exec(&execution).join("status.json");
    lab.kill();
    lab.go();
    assert!(wait_until(LONG, || status.exists()));
    lab.restart(&[]);
    assert_eq!(lab.receipt("k")["state"], "done");
    let again = lab.call("k", &arguments);
    assert_eq!(
        (&again.body["replayed"], &again.body["stdout"]),
        (&json!(true), &json!("begun\ndone\n"))
    );
    assert_eq!(lab.effects(), 1);
}

/// A daemon that is asked to end keeps nobody waiting for a command, and leaves it running.
#[test]
fn a_daemon_that_drains_leaves_its_commands_alone() {
    let mut lab = Lab::new();
    let arguments = json!({"command": WAITS});
    let told = std::thread::scope(|scope| {
        let waits = scope.spawn(|| lab.call("k", &arguments));
        lab.begun();
        lab.daemon().terminate();
        waits.join().unwrap()
    });
    assert_eq!(
        (told.status, told.code()),
        (409, "call_in_flight"),
        "{}",
        told.body
    );
    assert!(
        lab.daemon
            .take()
            .unwrap()
            .ended(Duration::from_secs(15))
            .is_some()
    );
    lab.restart(&[]);
    lab.go();
    let done = lab.call("k", &arguments);
    assert_eq!(
        (&done.body["stdout"], lab.effects()),
        (&json!("begun\ndone\n"), 1)
    );
}

/// Whoever kills the shim takes with it what it knew: a person settles it.
#[test]
fn a_killed_shim_leaves_a_question_for_a_person() {
    for (watched, settled) in [(true, "--happened"), (false, "--never-happened")] {
        let mut lab = Lab::new();
        let arguments = json!({"command": WAITS});
        let execution = lab.begin("k", &arguments).body["execution_id"].clone();
        lab.begun();
        let shim = lab.shim(&execution);
        if watched {
            signal(shim, libc::SIGKILL);
        } else {
            lab.kill();
            signal(shim, libc::SIGKILL);
            lab.restart(&[]);
        }
        assert_eq!(lab.settles("k")["state"], "unknown");
        for _ in 0..2 {
            let asked = lab.call("k", &arguments);
            assert_eq!(
                (asked.status, asked.code()),
                (409, "outcome_unknown"),
                "{}",
                asked.body
            );
        }
        assert_eq!(lab.effects(), 1, "it is not run again");
        let id = execution.as_str().unwrap();
        let told = lab.call("k", &arguments).body["detail"].to_string();
        assert_eq!(told.matches(id).count(), 1, "{told}");
        lab.home.json(&["resolve", id, settled, "--note", "looked"]);
        lab.go();
        let after = lab.call("k", &arguments);
        if settled == "--happened" {
            assert_eq!(
                (&after.body["end"], &after.body["replayed"]),
                (&json!("unseen"), &json!(true))
            );
            assert_eq!(lab.effects(), 1);
        } else {
            assert_eq!(
                (&after.body["end"], &after.body["replayed"]),
                (&json!("exited"), &json!(false))
            );
            assert_eq!(lab.effects(), 2, "a person said that it had not happened");
        }
        // Nobody has proved that all of it has ended.
        let end = lab.home.run(&["volume", "end", &lab.volume.generation, "--json"]);
        assert_eq!(end.status.code(), Some(3));
        let refusal: Value = serde_json::from_slice(&end.stdout).unwrap();
        assert_eq!(refusal["reason"], "process_tree_unproved", "{refusal}");
        let why = refusal["why"].as_str().unwrap();
        assert!(
            why.ends_with("it stays open until semel volume end --dirty"),
            "{why}"
        );
        lab.home
            .json(&["volume", "end", &lab.volume.generation, "--dirty"]);
    }
}
