//! What is past retention: what calls kept for undo is freed, receipts expire; whatever dies in between, nothing is lost
//! and nothing is done twice.

use crate::harness::{Daemon, Home, LONG, Reply, Volume, wait_until};
use serde_json::{Value, json};
use std::process::Stdio;

const ALL: &[&str] = &["gc", "--older-than-hours", "0"];

fn call(daemon: &Daemon, volume: &Volume, tool: &str, key: &str, arguments: &Value) -> Reply {
    daemon.conn().call(volume, tool, key, arguments)
}

/// Makes a call that must do what it asks; gives its execution.
fn done(daemon: &Daemon, volume: &Volume, tool: &str, key: &str, arguments: &Value) -> String {
    let reply = call(daemon, volume, tool, key, arguments);
    assert_eq!(reply.status, 200, "{tool} {arguments}: {}", reply.body);
    reply.body["execution_id"].as_str().unwrap().to_owned()
}

fn undo(home: &Home, execution: &str) -> Reply {
    let path = format!("/v1/admin/executions/{execution}/undo");
    home.admin("POST", &path, &Value::Null)
}

fn refused(reply: &Reply) -> (u16, &str) {
    (reply.status, reply.code())
}

fn faultless(home: &Home) {
    assert_eq!(home.json(&["check"])["report"]["faults"], json!([]));
}

/// How often the log says that pre-images were freed.
fn evictions(home: &Home) -> usize {
    let log = home.lines(&["log"]);
    log.iter()
        .filter(|line| line["event"] == "pre_images_evicted")
        .count()
}

/// A volume in which one file was replaced and a directory removed; gives both executions, the older one first.
fn with_two_kept(home: &Home, daemon: &Daemon) -> (Volume, String, String) {
    let volume = home.open("job", "power-best-effort");
    std::fs::write(volume.tree.join("f"), "one").unwrap();
    std::fs::create_dir_all(volume.tree.join("d/e")).unwrap();
    std::fs::write(volume.tree.join("d/e/g"), "two").unwrap();
    let replaced = done(
        daemon,
        &volume,
        "write_file",
        "k1",
        &json!({"path": "f", "content": "1"}),
    );
    let whole = json!({"path": "d", "recursive": true});
    let removed = done(daemon, &volume, "delete_directory", "k2", &whole);
    assert_eq!(volume.trashed(), 2);
    (volume, replaced, removed)
}

#[test]
fn gc_frees_what_calls_keep_and_they_cannot_be_undone() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let (volume, replaced, removed) = with_two_kept(&home, &daemon);

    let young = home.json(&["gc"]);
    assert_eq!(
        (&young["pre_images"], volume.trashed()),
        (&json!([]), 2),
        "{young}"
    );
    let mut calls = [replaced.clone(), removed.clone()];
    calls.sort();
    let named = home.json(&[ALL, &["--dry-run"]].concat());
    assert_eq!(
        (&named["pre_images"], volume.trashed()),
        (&json!(calls), 2),
        "{named}"
    );
    assert_eq!(evictions(&home), 0);

    let freed = home.json(ALL);
    assert_eq!(
        (&freed["pre_images"], volume.trashed()),
        (&json!(calls), 0),
        "{freed}"
    );
    assert_eq!(freed["kept"], json!([]));
    assert_eq!(evictions(&home), 1);
    for execution in &calls {
        assert_eq!(refused(&undo(&home, execution)), (410, "undo_expired"));
        assert_eq!(home.run(&["undo", execution]).status.code(), Some(19));
    }
    assert_eq!(home.json(ALL)["pre_images"], json!([]), "nothing is freed twice");
    assert_eq!(evictions(&home), 1);

    // The calls themselves stand, and what is done from now on can be undone.
    let again = call(
        &daemon,
        &volume,
        "write_file",
        "k1",
        &json!({"path": "f", "content": "1"}),
    );
    assert_eq!((again.status, &again.body["replayed"]), (200, &json!(true)));
    let newer = done(&daemon, &volume, "delete_file", "k3", &json!({"path": "f"}));
    assert_eq!(undo(&home, &newer).status, 200);
    assert_eq!(std::fs::read_to_string(volume.tree.join("f")).unwrap(), "1");

    let ended = home.run(&["volume", "end", &volume.generation]);
    assert!(ended.status.success());
    home.json(&["volume", "destroy", &volume.generation]);
    assert_eq!(
        refused(&undo(&home, &newer)),
        (410, "undo_expired"),
        "it went with its volume"
    );
    faultless(&home);
}

/// Where the daemon dies between the entry of the journal and the freeing.
#[test]
fn a_kill_while_pre_images_are_freed_loses_nothing_and_does_nothing_twice() {
    for point in ["eviction_recorded", "eviction_aside"] {
        let home = Home::new();
        let mut daemon = home.serve(&["--crash-at", point]);
        let (volume, replaced, removed) = with_two_kept(&home, &daemon);
        let gc = home.run(ALL);
        assert!(!gc.status.success(), "{point}: the daemon died under it");
        daemon.ended(LONG).expect("it died");
        assert_eq!(volume.trashed(), 2, "{point}: nothing is freed yet");

        let daemon = home.serve(&[]);
        if point == "eviction_recorded" {
            assert_eq!(evictions(&home), 1);
            // The disk says what can be undone.
            let undone = undo(&home, &removed);
            assert_eq!(undone.status, 200, "{}", undone.body);
            assert_eq!(std::fs::read_to_string(volume.tree.join("d/e/g")).unwrap(), "two");
            let freed = home.json(ALL);
            assert_eq!(freed["pre_images"], json!([replaced]), "{freed}");
            assert_eq!(evictions(&home), 2);
            // It had its effect once: it is answered from its receipt, though what it put back from is gone.
            let again = undo(&home, &removed);
            assert_eq!((again.status, &again.body["replayed"]), (200, &json!(true)));
        } else {
            assert!(
                wait_until(LONG, || volume.trashed() == 0),
                "the next life frees what lies aside"
            );
            assert_eq!(refused(&undo(&home, &removed)), (410, "undo_expired"));
            assert_eq!(home.json(ALL)["pre_images"], json!([]));
            assert_eq!(evictions(&home), 1);
        }
        assert_eq!(refused(&undo(&home, &replaced)), (410, "undo_expired"), "{point}");
        assert_eq!(volume.trashed(), 0, "{point}");
        let again = call(
            &daemon,
            &volume,
            "delete_directory",
            "k2",
            &json!({"path": "d", "recursive": true}),
        );
        assert_eq!((again.status, &again.body["replayed"]), (200, &json!(true)));
        assert_eq!(std::fs::read_to_string(volume.tree.join("f")).unwrap(), "1");
        faultless(&home);
    }
}

/// What is about to be put back is not freed under the hands of undo.
#[test]
fn nothing_is_freed_while_something_is_put_back() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let (volume, _, removed) = with_two_kept(&home, &daemon);
    drop(daemon);
    let held = home.path().join("held");
    let _daemon = home.serve(&["--hold-at", &format!("begun={}", held.display())]);
    std::thread::scope(|scope| {
        let undoing = scope.spawn(|| undo(&home, &removed));
        assert!(wait_until(LONG, || held.exists()));
        let freed = home.json(ALL);
        assert_eq!(freed["pre_images"], json!([]), "{freed}");
        let busy = format!("{} (a call holds the volume)", volume.generation);
        assert_eq!(freed["kept"], json!([busy]), "{freed}");
        std::fs::remove_file(&held).unwrap();
        let undone = undoing.join().unwrap();
        assert_eq!(undone.status, 200, "{}", undone.body);
    });
    assert_eq!(std::fs::read_to_string(volume.tree.join("d/e/g")).unwrap(), "two");
    assert_eq!(home.json(ALL)["pre_images"].as_array().unwrap().len(), 1);
    faultless(&home);
}

/// A key of a job outlives the generation that it was used in. Once its receipt expired, it is still not run afresh.
#[test]
fn a_key_whose_receipt_expired_has_no_effect() {
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    let first = home.open("job", "process");
    let job_scoped = json!({"command": "echo x >> effects", "scope": "job"});
    let execution = done(&daemon, &first, "run_command", "k", &job_scoped);
    assert!(home.run(&["volume", "end", &first.generation]).status.success());

    // Freed, and its receipts are kept.
    let expire = [ALL, &["--receipts-older-than-hours", "0"]].concat();
    let freed = home.json(ALL);
    assert_eq!(
        (&freed["volumes"], &freed["receipts"]),
        (&json!([first.generation]), &json!([])),
        "{freed}"
    );
    let second = home.open("job", "process");
    let again = call(&daemon, &second, "run_command", "k", &job_scoped);
    assert_eq!((again.status, &again.body["replayed"]), (200, &json!(true)));
    assert_eq!(
        home.json(&["receipt", &execution])["receipts"][0]["state"],
        "done"
    );

    let named = home.json(&[&expire[..], &["--dry-run"]].concat());
    assert_eq!(named["receipts"], json!([first.generation]), "{named}");
    let expired = home.json(&expire);
    assert_eq!(expired["receipts"], json!([first.generation]), "{expired}");
    assert_eq!(home.json(&expire)["receipts"], json!([]), "nothing expires twice");

    for life in 0..2 {
        let again = call(&daemon, &second, "run_command", "k", &job_scoped);
        assert_eq!(
            refused(&again),
            (410, "key_expired"),
            "life {life}: {}",
            again.body
        );
        assert!(!second.tree.join("effects").exists(), "life {life}");
        let other = json!({"command": "echo y >> effects", "scope": "job"});
        let other = call(&daemon, &second, "run_command", "k", &other);
        assert_eq!(
            (refused(&other), other.reason()),
            ((409, "replay_conflict"), "body_mismatch")
        );
        let key = json!({"key": "k"});
        for volume in [&first, &second] {
            let receipt = call(&daemon, volume, "get_receipt", "", &key);
            assert_eq!(refused(&receipt), (410, "key_expired"), "{}", receipt.body);
        }
        for looked in [
            ["receipt", execution.as_str()].as_slice(),
            &["receipt", "--key", "k"],
        ] {
            assert_eq!(home.run(looked).status.code(), Some(19), "{looked:?}");
        }
        // What was done stays in the log.
        let log = home.lines(&["log", "--execution", &execution]);
        assert!(log.iter().any(|line| line["event"] == "executed"), "{log:?}");
        daemon.kill();
        daemon = home.serve(&[]);
    }
    // Another call of the same kind runs.
    done(&daemon, &second, "run_command", "k2", &job_scoped);
    faultless(&home);
}

/// A daemon that nobody started before: gc starts one, and it ends by itself.
#[test]
fn gc_needs_no_running_daemon() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let (volume, ..) = with_two_kept(&home, &daemon);
    drop(daemon);
    let freed = home
        .command(&[ALL, &["--json"]].concat())
        .stderr(Stdio::null())
        .output()
        .unwrap();
    assert!(freed.status.success());
    assert_eq!(volume.trashed(), 0);
    assert!(home.run(&["volume", "end", &volume.generation]).status.success());
    assert!(
        wait_until(LONG, || !home.state().join("daemon.json").exists()),
        "it ends when it is idle"
    );
}
