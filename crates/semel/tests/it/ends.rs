//! What a command says where the disk, or whoever reads it, lets it down after the work was done.

use crate::harness::{Home, said, skipped};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

/// Gives exit, code and reason of a command that has to be refused.
fn refused(home: &Home, args: &[&str]) -> (Option<i32>, String, String) {
    let out = home.run(&[args, &["--json"]].concat());
    let refusal: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", said(&out)));
    let word = |name: &str| refusal[name].as_str().unwrap_or_default().to_owned();
    (out.status.code(), word("code"), word("reason"))
}

fn unknown(reason: &str) -> (Option<i32>, String, String) {
    (Some(16), "outcome_unknown".to_owned(), reason.to_owned())
}

/// The end is in the journal: nobody is told that it did not begin.
#[test]
fn a_volume_whose_mark_cannot_go_has_ended_all_the_same() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mark = volume.tree.join("../../meta/dirty");
    std::fs::remove_file(&mark).unwrap();
    std::fs::create_dir(&mark).unwrap();
    let end = ["volume", "end", &volume.generation];
    assert_eq!(refused(&home, &end), unknown("mark_kept"));
    let shown = home.json(&["volume", "show", &volume.generation]);
    assert_eq!(shown["volume"]["state"], "clean");
    let late = daemon
        .conn()
        .call(&volume, "write_file", "k", &json!({"path": "a", "content": ""}));
    assert_eq!(
        (late.code(), late.reason()),
        ("replay_conflict", "stale_generation")
    );
    let sealed = home.run(&["seal", &volume.generation]);
    assert_eq!(
        sealed.status.code(),
        Some(3),
        "nothing on it is trusted: {}",
        said(&sealed)
    );
    std::fs::remove_dir(&mark).unwrap();
    assert_eq!(home.json(&end)["volume"]["state"], "clean");
    // What more is to be written to a volume that is dirty anyway changes nothing.
    let other = home.open("other", "process");
    let record = other.tree.join("../../meta/quarantined");
    std::fs::create_dir(record).unwrap();
    let ended = home.json(&["volume", "end", "--dirty", &other.generation]);
    assert_eq!(ended["volume"]["state"], "quarantined");
    // What ended stays as it ended, whatever is asked for later.
    let otherwise = (
        Some(15),
        "precondition_failed".to_owned(),
        "ended_otherwise".to_owned(),
    );
    assert_eq!(refused(&home, &["volume", "end", &other.generation]), otherwise);
    assert_eq!(
        refused(&home, &["volume", "end", "--dirty", &volume.generation]),
        otherwise
    );
    let path = format!("/v1/admin/volumes/{}/end", other.generation);
    let reply = home.admin("POST", &path, &json!({"end": "clean"}));
    assert_eq!((reply.status, reply.reason()), (412, "ended_otherwise"));
}

#[test]
fn a_volume_that_is_removed_in_part_is_told_as_that() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let fixed = volume.tree.join("fixed");
    std::fs::write(&fixed, "").unwrap();
    // Where it is reached by, once its volume is put aside.
    let elsewhere = home.path().join("elsewhere");
    std::fs::hard_link(&fixed, &elsewhere).unwrap();
    home.json(&["volume", "end", &volume.generation]);
    let attributes = |how: &str, place: &std::path::Path| {
        let done = Command::new("chattr").arg(how).arg(place).output();
        done.is_ok_and(|out| out.status.success())
    };
    if !attributes("+i", &fixed) {
        skipped("no immutable files here: a volume that stays in part is not tried");
        return;
    }
    let destroy = ["volume", "destroy", &volume.generation];
    let answer = refused(&home, &destroy);
    assert!(attributes("-i", &elsewhere));
    assert_eq!(answer, unknown("partly_removed"));
    assert_eq!(elsewhere.metadata().unwrap().nlink(), 2, "it stays");
    assert!(!volume.tree.exists(), "the rest is gone");
    assert_eq!(home.json(&destroy)["volume"]["state"], "destroyed");
    assert_eq!(elsewhere.metadata().unwrap().nlink(), 1);
}

/// A token that nobody has is no success.
#[test]
fn an_answer_that_cannot_be_written_is_no_success() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let into = |place: &str, args: &[&str]| {
        let place = std::fs::File::options().write(true).open(place).unwrap();
        home.command(args).stdout(place).output().unwrap()
    };
    for args in [
        &["volume", "open", "job"][..],
        &["volume", "list", "--json"],
        &["status"],
        &["log"],
        &["log", "--json"],
        &["--help"],
    ] {
        let lost = into("/dev/full", args);
        assert_eq!(lost.status.code(), Some(16), "{args:?}: {}", said(&lost));
        let text = String::from_utf8_lossy(&lost.stderr).into_owned();
        assert!(text.contains("outcome_unknown (answer_lost)"), "{args:?}: {text}");
        assert_eq!(into("/dev/null", &["status"]).status.code(), Some(0));
    }
    let refusal = into("/dev/full", &["volume", "open", "job", "--json"]);
    assert_eq!(refusal.status.code(), Some(32), "a refusal keeps its status");
    // Whoever closes a pipe wants no more.
    let mut child = home
        .command(&["status"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn asking_makes_no_state_root() {
    let home = Home::new();
    let nowhere = (Some(17), "not_found".to_owned(), "nothing_begun".to_owned());
    let generation = "g-01a229ef-60a5-797b-8bad-5a345da1a7d9";
    for args in [&["volume", "list"][..], &["volume", "show", generation], &["log"]] {
        assert_eq!(refused(&home, args), nowhere, "{args:?}");
        assert!(!home.state().exists(), "{args:?}");
    }
    assert_eq!(home.json(&["status"])["journal"], Value::Null);
    std::fs::write(home.state(), "").unwrap();
    for args in [&["status"][..], &["volume", "list"], &["log"]] {
        let (exit, code, _) = refused(&home, args);
        assert_eq!((exit, code.as_str()), (Some(78), "bad_config"), "{args:?}");
    }
}

#[test]
fn a_url_that_leads_to_no_daemon_is_a_wrong_argument() {
    let home = Home::new();
    let token = home.path().join("token");
    std::fs::write(&token, "x").unwrap();
    let call = [
        "call",
        "read_file",
        "-a",
        "path=a",
        "--token-file",
        token.to_str().unwrap(),
    ];
    for url in [
        "ftp://127.0.0.1:1",
        "http://127.0.0.1",
        "http://:1",
        "http://127.0.0.1:1/v1",
        "",
    ] {
        let (exit, code, _) = refused(&home, &[&call[..], &["--url", url]].concat());
        assert_eq!((exit, code.as_str()), (Some(64), "usage"), "{url}");
    }
    let (exit, code, _) = refused(&home, &[&call[..], &["--url", "http://127.0.0.1:1/"]].concat());
    assert_eq!((exit, code.as_str()), (Some(69), "daemon_unreachable"));
}
