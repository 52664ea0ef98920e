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

