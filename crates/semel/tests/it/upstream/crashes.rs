//! Kills of the daemon at each step of a call of another server, and between its effect and its answer.

use super::{Client, Scene, params, refused, replayed};
use crate::harness::{LONG, wait_until};
use serde_json::json;

/// Says what the same call gets from the next life.
#[derive(Debug, PartialEq)]
enum Then {
    /// It is done, for the first time.
    Done,
    /// It is answered from the record.
    Replayed,
    /// Nobody can tell.
    Unknown,
}

#[test]
fn a_kill_at_each_step_repeats_nothing() {
    let steps = [
        // No intent: nothing was sent.
        ("checked", 0, Then::Done),
        // An intent, and nothing sent; but nobody can tell that from outside.
        ("begun", 0, Then::Unknown),
        ("acted", 1, Then::Unknown),
        ("receipted", 1, Then::Replayed),
    ];
    for durability in ["process", "power-best-effort"] {
        for (point, done, then) in &steps {
            let scene = Scene::new();
            let daemon = scene.serve_with(&["--crash-at", point]);
            let volume = scene.home.open("job", durability);
            let mut client = Client::new(&daemon, &volume);
            let call = params("fake__note", Some("k"), &json!({"text": "k"}));
            assert!(
                client.try_ask("tools/call", &call, &[]).is_none(),
                "{point}: it was killed"
            );
            drop(daemon);
            assert_eq!(scene.effects(), *done, "{point}");
            let daemon = scene.serve();
            let mut client = Client::new(&daemon, &volume);
            for n in 0..2 {
                let reply = client.ask("tools/call", &call);
                match then {
                    Then::Done => assert_eq!(replayed(&reply), Some(n > 0), "{point}: {}", reply.body),
                    Then::Replayed => assert_eq!(replayed(&reply), Some(true), "{point}: {}", reply.body),
                    Then::Unknown => {
                        assert_eq!(refused(&reply), "outcome_unknown", "{point}: {}", reply.body)
                    }
                }
            }
            let wanted = if *then == Then::Done { 1 } else { *done };
            assert_eq!(scene.effects(), wanted, "{point}");
        }
    }
}

/// The daemon is killed while the server is at it: before its effect, and between its effect and its answer.
#[test]
fn a_kill_while_the_server_is_at_it_repeats_nothing() {
    for (how, stop) in [("wait_before", "before"), ("late", "late")] {
        let scene = Scene::new();
        let daemon = scene.serve();
        let volume = scene.home.open("job", "process");
        let mut client = Client::new(&daemon, &volume);
        let call = params("fake__note", Some("k"), &json!({"text": "k", "how": how}));
        client.write("tools/call", &call, &[]).unwrap();
        scene.wait_for(stop);
        let servers = scene.lines("starts");
        daemon.kill();
        // The server goes with the daemon.
        let gone = |pid: &String| {
            std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
        };
        assert!(wait_until(LONG, || servers.iter().all(gone)));
        scene.let_go(stop);
        let done = scene.effects();
        let daemon = scene.serve();
        let mut client = Client::new(&daemon, &volume);
        let told = client.ask("tools/call", &call);
        assert_eq!(refused(&told), "outcome_unknown", "{}", told.body);
        assert_eq!(scene.effects(), done);
        let status = scene.home.admin("GET", "/v1/admin/status", &json!(null));
        assert_eq!(status.status, 200, "{}", status.body);
        let log = scene.home.run(&["log", "verify"]);
        assert!(log.status.success(), "{}", crate::harness::said(&log));
    }
}

/// Killed again while it recovers, it comes to the same.
#[test]
fn a_kill_in_recovery_changes_nothing() {
    for point in ["recovery_observed", "recovery_settled"] {
        let scene = Scene::new();
        let daemon = scene.serve_with(&["--crash-at", "acted"]);
        let volume = scene.home.open("job", "process");
        let call = params("fake__note", Some("k"), &json!({"text": "k"}));
        assert!(
            Client::new(&daemon, &volume)
                .try_ask("tools/call", &call, &[])
                .is_none()
        );
        drop(daemon);
        let args = ["--upstream", scene.upstream.as_str(), "--crash-at", point];
        drop(crate::harness::Daemon::start(&scene.home, &args));
        let daemon = scene.serve();
        assert_eq!(
            refused(&Client::new(&daemon, &volume).ask("tools/call", &call)),
            "outcome_unknown"
        );
        assert_eq!(scene.effects(), 1);
    }
}

/// A daemon that is told to end lets the call come to its receipt.
#[test]
fn a_daemon_that_drains_waits_for_the_answer() {
    let scene = Scene::new();
    let mut daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    let call = params("fake__note", Some("k"), &json!({"text": "k", "how": "late"}));
    client.write("tools/call", &call, &[]).unwrap();
    scene.wait_for("late");
    daemon.terminate();
    scene.let_go("late");
    assert_eq!(replayed(&client.conn.receive("POST").unwrap()), Some(false));
    assert!(daemon.ended(LONG).is_some_and(|status| status.success()));
    let daemon = scene.serve();
    assert_eq!(
        replayed(&Client::new(&daemon, &volume).ask("tools/call", &call)),
        Some(true)
    );
    assert_eq!(scene.effects(), 1);
}
