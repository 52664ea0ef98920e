//! `@modelcontextprotocol/server-filesystem` behind the gateway: what it does twice by itself, it does once.

use super::{Client, params, refused, replayed};
use crate::harness::{Home, LONG, skipped, wait_until};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Finds node and the server; says so where they are not there.
fn server() -> Option<(PathBuf, PathBuf)> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/mcp/node_modules");
    let node = place.join("node/bin/node");
    let program = place.join("@modelcontextprotocol/server-filesystem/dist/index.js");
    if !node.exists() || !program.exists() {
        skipped("server-filesystem is not in .tools; scripts/setup.sh makes it");
        return None;
    }
    Some((node, program))
}

/// The probes that have two effects each without the guard: the same edit again, and again under one id, and again after
/// the daemon or the server was killed.
#[test]
fn server_filesystem_does_each_call_once() {
    let Some((node, program)) = server() else { return };
    let home = Home::new();
    let files = home.path().join("files");
    std::fs::create_dir(&files).unwrap();
    let upstream = format!("fs={} {} {}", node.display(), program.display(), files.display());
    let start = || home.serve(&["--upstream", &upstream]);
    let daemon = start();
    let volume = home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    assert!(wait_until(LONG, || client
        .tools()
        .iter()
        .any(|tool| tool["name"] == "fs__edit_file")));
    let file = files.join("a.txt");
    std::fs::write(&file, "one x two\n").unwrap();
    let count = || std::fs::read_to_string(&file).unwrap().matches('+').count();
    let arguments = json!({"path": file, "edits": [{"oldText": "x", "newText": "x+"}]});
    let call = params("fs__edit_file", Some("k"), &arguments);
    assert_eq!(replayed(&client.ask("tools/call", &call)), Some(false));
    for again in 0..3 {
        // Under the very id of the first, too.
        client.id = again % 2;
        assert_eq!(replayed(&client.ask("tools/call", &call)), Some(true));
    }
    assert_eq!(count(), 1);
    daemon.kill();
    let daemon = start();
    let mut client = Client::new(&daemon, &volume);
    assert_eq!(replayed(&client.ask("tools/call", &call)), Some(true));
    assert_eq!(count(), 1);
    drop(daemon);
    // Killed between effect and record: nobody can tell, and it is not done again.
    let daemon = home.serve(&["--upstream", &upstream, "--crash-at", "acted"]);
    let mut client = Client::new(&daemon, &volume);
    let call = params("fs__edit_file", Some("l"), &arguments);
    assert!(client.try_ask("tools/call", &call, &[]).is_none());
    assert_eq!(count(), 2);
    drop(daemon);
    let daemon = start();
    let mut client = Client::new(&daemon, &volume);
    for _ in 0..2 {
        assert_eq!(refused(&client.ask("tools/call", &call)), "outcome_unknown");
    }
    assert_eq!(count(), 2);
    // What reads needs no key.
    let read = client.call("fs__read_text_file", None, &json!({"path": file}));
    assert_eq!(
        read.body["result"]["content"][0]["text"], "one x++ two\n",
        "{}",
        read.body
    );
}

/// The checker sees what it ought to: by itself the server does things twice.
#[test]
fn the_checker_finds_what_server_filesystem_does_twice() {
    let Some((node, program)) = server() else { return };
    let home = Home::new();
    let command = format!("{} {} {{dir}}", node.display(), program.display());
    let out = home.run(&["conformance", "--mcp", &command, "--rounds", "1", "--json"]);
    assert_eq!(
        out.status.code(),
        Some(33),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let verdict = |name: &str| {
        let cases = told["cases"].as_array().unwrap();
        cases.iter().find(|case| case["case"] == name).unwrap()["verdict"].clone()
    };
    for case in ["lost_answer", "lost_edit", "kill_then_retry"] {
        assert_eq!(verdict(case), "unsafe", "{told}");
    }
}

#[test]
fn ours_scores_full() {
    let home = Home::new();
    let out = home.run(&["conformance", "--mcp", "semel", "--rounds", "1", "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(out.status.success(), "{told}");
    assert_eq!((&told["right"], &told["verdict"]), (&json!(6), &json!("full")));
}
