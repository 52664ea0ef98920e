//! The official conformance suite: what a revision requires of a server with tools passes; what else it asks for is
//! named, with the reason, in a file that fails the test where it names too much.

use super::clients::{installed, root};
use crate::harness::{Home, said, skipped};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

fn runs(revision: &str) {
    let (Some(node), Some(suite)) = (
        installed("node_modules/node/bin/node"),
        installed("node_modules/@modelcontextprotocol/conformance/dist/index.js"),
    ) else {
        return skipped("scripts/setup.sh has not installed the conformance suite");
    };
    let home = Home::new();
    let daemon = home.serve(&["--conformance-fixture"]);
    let volume = home.open("job", "process");
    // The suite can send no token: it goes through somebody who adds it, and nothing else.
    let mut onward = Command::new(&node)
        .arg(root().join("scripts/mcp/with_token.mjs"))
        .arg(&daemon.url)
        .env("SEMEL_TOKEN", &volume.token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Node makes what it inherits non-blocking, for whoever else writes there, too.
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(onward.stdout.as_mut().unwrap())
        .read_line(&mut url)
        .unwrap();
    let out = Command::new(&node)
        .arg(suite)
        .args(["server", "--url", &format!("{}/mcp", url.trim())])
        .args(["--requirements", revision, "--expected-failures"])
        .arg(baseline(revision))
        .arg("-o")
        .arg(home.path().join("results"))
        .env_remove("http_proxy")
        .env_remove("HTTP_PROXY")
        .output()
        .unwrap();
    drop(onward.stdin.take());
    onward.wait().unwrap();
    assert!(out.status.success(), "{revision}: {}", said(&out));
}

fn baseline(revision: &str) -> std::path::PathBuf {
    root().join(format!("scripts/mcp/expected-failures-{revision}.yml"))
}

#[test]
fn what_2025_11_25_requires_of_tools() {
    runs("2025-11-25");
}

#[test]
fn what_2026_07_28_requires_of_tools() {
    runs("2026-07-28");
}

/// What is not asked for has its reason beside it.
#[test]
fn every_exception_has_its_reason() {
    for revision in ["2025-11-25", "2026-07-28"] {
        let text = std::fs::read_to_string(baseline(revision)).unwrap();
        let entries = text.lines().filter(|line| line.trim_start().starts_with("- "));
        for entry in entries {
            let reason = entry.split_once(" # ").map_or("", |(_, reason)| reason);
            assert!(reason.len() > 20, "{revision}: {entry}");
        }
    }
}

/// The tools of the suite are there for nobody else.
#[test]
fn nobody_else_has_the_tools_of_the_suite() {
    let (_home, daemon, volume) = super::scene();
    let mut raw = super::Raw::new(&daemon, &volume);
    let reply = raw.legacy("tools/call", &serde_json::json!({"name": "test_simple_text"}));
    assert_eq!(reply.body["error"]["code"], -32602, "{}", reply.body);
}
