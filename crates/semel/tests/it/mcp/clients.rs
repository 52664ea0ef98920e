//! The official clients, Python and TypeScript, of both kinds of revision: each lists and calls every tool, with and
//! without keys.

use super::scene;
use crate::harness::{said, skipped};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Gives what `scripts/setup.sh` installed; `None` where it did not.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    let place = root().join(".tools/mcp").join(name);
    place.exists().then_some(place)
}

/// Says by which way a client reaches the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Http,
    Bridge,
}

/// Says what every client has to see: of each tool its first answer, its replay, the same key as an argument, and what a
/// change without a key is refused with; by way of a bridge it is not.
fn check(seen: &Value, spoken: &str, by: By) {
    let client = &seen["client"];
    assert_eq!(seen["spoken"], spoken, "{client}");
    assert_eq!(seen["tools"].as_array().unwrap().len(), 15, "{client}: {seen}");
    let called = seen["called"].as_object().unwrap();
    assert_eq!(called.len(), 15, "{client}");
    let keyed = json!([false, false, false, true, false, true]);
    let mut changes = 0;
    for (tool, once) in called {
        let once = once.as_array().unwrap();
        if once.len() == 2 {
            assert_eq!(once[0], false, "{client} {tool}: {seen}");
            continue;
        }
        changes += 1;
        assert_eq!(once[..6], *keyed.as_array().unwrap(), "{client} {tool}: {seen}");
        let refused = once[7] == "missing_idempotency_key";
        assert_eq!(refused, by == By::Http, "{client} {tool}: {seen}");
    }
    assert_eq!(changes, 9, "{client}");
    assert_eq!(seen["keys"], by == By::Http, "{client}");
    let bare = seen["bare"].as_object();
    assert_eq!(
        bare.map(|bare| bare.len()),
        (by == By::Bridge).then_some(15),
        "{client}"
    );
    for (tool, once) in bare.into_iter().flatten() {
        let wanted = match tool.as_str() {
            "get_receipt" => json!([true, "not_found"]),
            name if called[name].as_array().unwrap().len() == 2 => json!([false, null]),
            _ => json!([false, false]),
        };
        assert_eq!(*once, wanted, "{client} {tool}");
    }
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

fn run(mut command: Command, spoken: &str, by: By) {
    let (home, daemon, volume) = scene();
    if by == By::Bridge {
        command.arg(env!("CARGO_BIN_EXE_semel"));
        command.args(["mcp", "--quiet", "--url", &daemon.url, "--state"]);
        command.arg(home.state());
    }
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
        by,
    );
}

fn python(line: &str, mode: &str, spoken: &str, by: By) {
    let Some(python) = installed(&format!("python-{line}/bin/python")) else {
        return skipped("scripts/setup.sh has not installed the Python clients");
    };
    let mut command = Command::new(python);
    command
        .arg(root().join("scripts/mcp/client.py"))
        .args([mode, "k"]);
    run(command, spoken, by);
}

fn typescript(line: &str, mode: &str, spoken: &str, by: By) {
    let (Some(node), Some(modules)) = (installed("node_modules/node/bin/node"), installed("node_modules"))
    else {
        return skipped("scripts/setup.sh has not installed the TypeScript clients");
    };
    let mut command = Command::new(node);
    command
        .arg(root().join("scripts/mcp/client.mjs"))
        .args([line, mode, "k"])
        .env("SEMEL_MCP_MODULES", modules.parent().unwrap());
    run(command, spoken, by);
}

#[test]
fn python_of_the_first_line() {
    python("1", "legacy", "2025-11-25", By::Http);
}

#[test]
fn python_of_the_first_line_through_the_bridge() {
    python("1", "legacy", "2025-11-25", By::Bridge);
}

#[test]
fn python_of_the_second_line_with_a_handshake() {
    python("2", "legacy", "2025-11-25", By::Http);
}

#[test]
fn python_of_the_second_line_with_a_handshake_through_the_bridge() {
    python("2", "legacy", "2025-11-25", By::Bridge);
}

#[test]
fn python_of_the_second_line_as_it_likes() {
    python("2", "auto", "2026-07-28", By::Http);
}

#[test]
fn python_of_the_second_line_as_it_likes_through_the_bridge() {
    python("2", "auto", "2026-07-28", By::Bridge);
}

#[test]
fn python_of_the_second_line_without_a_handshake() {
    python("2", "2026-07-28", "2026-07-28", By::Http);
}

#[test]
fn python_of_the_second_line_without_a_handshake_through_the_bridge() {
    python("2", "2026-07-28", "2026-07-28", By::Bridge);
}

#[test]
fn typescript_of_the_first_line() {
    typescript("1", "legacy", "2025-11-25", By::Http);
}

#[test]
fn typescript_of_the_first_line_through_the_bridge() {
    typescript("1", "legacy", "2025-11-25", By::Bridge);
}

#[test]
fn typescript_of_the_second_line_with_a_handshake() {
    typescript("2", "legacy", "2025-11-25", By::Http);
}

#[test]
fn typescript_of_the_second_line_with_a_handshake_through_the_bridge() {
    typescript("2", "legacy", "2025-11-25", By::Bridge);
}

#[test]
fn typescript_of_the_second_line_as_it_likes() {
    typescript("2", "auto", "2026-07-28", By::Http);
}

#[test]
fn typescript_of_the_second_line_as_it_likes_through_the_bridge() {
    typescript("2", "auto", "2026-07-28", By::Bridge);
}

#[test]
fn typescript_of_the_second_line_without_a_handshake() {
    typescript("2", "modern", "2026-07-28", By::Http);
}

#[test]
fn typescript_of_the_second_line_without_a_handshake_through_the_bridge() {
    typescript("2", "modern", "2026-07-28", By::Bridge);
}
