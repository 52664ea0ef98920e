//! The official clients, Python and TypeScript, of both kinds of revision: each lists and calls every tool, with and
//! without keys.

use super::scene;
use crate::harness::{said, skipped};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Gives what `scripts/setup.sh` installed; `None` where it did not.
pub(super) fn installed(name: &str) -> Option<PathBuf> {
    let place = root().join(".tools/mcp").join(name);
    place.exists().then_some(place)
}

/// Says what every client has to see: of each tool its first answer, its replay, the same key as an argument, and what a
/// change without a key is refused with.
fn check(seen: &Value, spoken: &str) {
    let client = &seen["client"];
    assert_eq!(seen["spoken"], spoken, "{client}");
    assert_eq!(seen["tools"].as_array().unwrap().len(), 15, "{client}: {seen}");
    let called = seen["called"].as_object().unwrap();
    assert_eq!(called.len(), 15, "{client}");
    let changes = json!([
        false,
        false,
        false,
        true,
        false,
        true,
        true,
        "missing_idempotency_key"
    ]);
    for (tool, once) in called {
        if once.as_array().unwrap().len() == 2 {
            assert_eq!(once[0], false, "{client} {tool}: {seen}");
        } else {
            assert_eq!(*once, changes, "{client} {tool}: {seen}");
        }
    }
    assert_eq!(
        called.values().filter(|once| **once == changes).count(),
        9,
        "{client}"
    );
    // A program that made the key is told in an error; a model that made it, in a result.
    let conflict = &seen["conflict"];
    assert_eq!(conflict["code"], 40912, "{client}: {conflict}");
    assert_eq!(
        conflict["data"]["type"], "replay_conflict",
        "{client}: {conflict}"
    );
    let model = &seen["model_conflict"]["result"];
    assert_eq!(
        (&model[0], &model[1]["error"]["type"]),
        (&json!(true), &json!("replay_conflict")),
        "{client}"
    );
    assert_eq!(seen["unknown"]["code"], -32602, "{client}: {}", seen["unknown"]);
}

fn run(mut command: Command, spoken: &str) {
    let (_home, daemon, volume) = scene();
    command
        .env("SEMEL_MCP_URL", format!("{}/mcp", daemon.url))
        .env("SEMEL_TOKEN", &volume.token)
        .env_remove("http_proxy")
        .env_remove("HTTP_PROXY")
        .env_remove("ALL_PROXY");
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", said(&out));
    let line = String::from_utf8(out.stdout).unwrap();
    check(
        &serde_json::from_str(line.lines().last().unwrap()).unwrap(),
        spoken,
    );
}

fn python(line: &str, mode: &str, spoken: &str) {
    let Some(python) = installed(&format!("python-{line}/bin/python")) else {
        return skipped("scripts/setup.sh has not installed the Python clients");
    };
    let mut command = Command::new(python);
    command
        .arg(root().join("scripts/mcp/client.py"))
        .args([mode, "k"]);
    run(command, spoken);
}

fn typescript(line: &str, mode: &str, spoken: &str) {
    let (Some(node), Some(modules)) = (installed("node_modules/node/bin/node"), installed("node_modules"))
    else {
        return skipped("scripts/setup.sh has not installed the TypeScript clients");
    };
    let mut command = Command::new(node);
    command
        .arg(root().join("scripts/mcp/client.mjs"))
        .args([line, mode, "k"])
        .env("SEMEL_MCP_MODULES", modules.parent().unwrap());
    run(command, spoken);
}

#[test]
fn python_of_the_first_line() {
    python("1", "legacy", "2025-11-25");
}

#[test]
fn python_of_the_second_line_with_a_handshake() {
    python("2", "legacy", "2025-11-25");
}

#[test]
fn python_of_the_second_line_as_it_likes() {
    python("2", "auto", "2026-07-28");
}

#[test]
fn python_of_the_second_line_without_a_handshake() {
    python("2", "2026-07-28", "2026-07-28");
}

#[test]
fn typescript_of_the_first_line() {
    typescript("1", "legacy", "2025-11-25");
}

#[test]
fn typescript_of_the_second_line_with_a_handshake() {
    typescript("2", "legacy", "2025-11-25");
}

#[test]
fn typescript_of_the_second_line_as_it_likes() {
    typescript("2", "auto", "2026-07-28");
}

#[test]
fn typescript_of_the_second_line_without_a_handshake() {
    typescript("2", "modern", "2026-07-28");
}
