//! The Inspector's command line, in revisions with and without a handshake, over HTTP and through the bridge: it lists every
//! tool and finds no fault in their schemas, calls every one with and without a key, and loads one with 16 calls at once.

use super::clients::{installed, root};
use super::scene;
use crate::harness::{Daemon, Home, Volume, said, skipped};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Output};

/// Says by which way the Inspector reaches the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Http,
    Bridge,
}

struct Inspector {
    node: PathBuf,
    program: PathBuf,
    era: &'static str,
    by: By,
    home: Home,
    daemon: Daemon,
    volume: Volume,
    /// It writes down whom it spoke to.
    own: tempfile::TempDir,
}

impl Inspector {
    fn new(era: &'static str, by: By) -> Option<Self> {
        let node = installed("node_modules/node/bin/node");
        let program = installed("node_modules/.bin/mcp-inspector");
        let (Some(node), Some(program)) = (node, program) else {
            skipped("scripts/setup.sh has not installed the Inspector");
            return None;
        };
        let (home, daemon, volume) = scene();
        Some(Self {
            node,
            program,
            era,
            by,
            home,
            daemon,
            volume,
            own: tempfile::tempdir().unwrap(),
        })
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(&self.node);
        command
            .arg(&self.program)
            .args(["--cli", "--quiet", "--protocol-era", self.era])
            .args(args)
            .env("HOME", self.own.path())
            .env_remove("http_proxy")
            .env_remove("HTTP_PROXY")
            .env_remove("ALL_PROXY");
        match self.by {
            By::Http => {
                command
                    .args(["--server-url", &format!("{}/mcp", self.daemon.url), "--header"])
                    .arg(format!("Authorization: Bearer {}", self.volume.token));
            }
            By::Bridge => {
                command.args(["-e", &format!("SEMEL_TOKEN={}", self.volume.token), "--"]);
                command.arg(env!("CARGO_BIN_EXE_semel"));
                command.args(["mcp", "--quiet", "--url", &self.daemon.url, "--state"]);
                command.arg(self.home.state());
            }
        }
        command.output().unwrap()
    }

    fn asks(&self, args: &[&str]) -> Value {
        let out = self.run(args);
        serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{args:?}: {}", said(&out)))
    }

    fn calls(&self, tool: &str, arguments: &Value) -> Value {
        let arguments = arguments.to_string();
        self.asks(&[
            "--method",
            "tools/call",
            "--tool-name",
            tool,
            "--tool-args-json",
            &arguments,
        ])
    }
}

/// Gives the calls that every client makes, each tool once, under keys with such a prefix.
fn every_call(prefix: &str) -> Vec<(String, Value)> {
    let text = std::fs::read_to_string(root().join("scripts/mcp/calls.json")).unwrap();
    serde_json::from_str(&text.replace("PREFIX", prefix)).unwrap()
}

fn changes(tool: &str) -> bool {
    const READ: [&str; 6] = [
        "read_file",
        "list_directory",
        "get_file_info",
        "search_files",
        "grep",
        "get_receipt",
    ];
    !READ.contains(&tool)
}

fn lists_and_calls(era: &'static str, by: By) {
    let Some(inspector) = Inspector::new(era, by) else {
        return;
    };
    let strict = inspector.run(&["--strict", "--method", "tools/list"]);
    assert!(strict.status.success(), "a schema is at fault: {}", said(&strict));
    let listed: Value = serde_json::from_slice(&strict.stdout).unwrap();
    let calls = every_call("i");
    assert_eq!(listed["tools"].as_array().unwrap().len(), calls.len());
    for (tool, mut arguments) in calls {
        if !changes(&tool) {
            // What the receipt is of is asked for with a key only.
            if tool != "get_receipt" || by == By::Http {
                let answer = inspector.calls(&tool, &arguments);
                assert_eq!(answer["isError"], false, "{tool}: {answer}");
            }
            continue;
        }
        if by == By::Http {
            let first = tool == "write_file";
            if first {
                let refused = inspector.calls(&tool, &arguments);
                let error = &refused["structuredContent"]["error"]["type"];
                assert_eq!(error, "missing_idempotency_key", "{refused}");
            }
            arguments["idempotency_key"] = json!(format!("i-{tool}"));
            for replayed in [false, true].into_iter().take(1 + usize::from(first)) {
                let answer = inspector.calls(&tool, &arguments);
                let told = &answer["structuredContent"]["replayed"];
                let is_error = &answer["isError"];
                assert_eq!(
                    (is_error, told),
                    (&json!(false), &json!(replayed)),
                    "{tool}: {answer}"
                );
            }
        } else {
            let answer = inspector.calls(&tool, &arguments);
            let told = &answer["structuredContent"]["replayed"];
            assert_eq!(
                (&answer["isError"], told),
                (&json!(false), &json!(false)),
                "{tool}: {answer}"
            );
        }
    }
}

#[test]
fn over_http_with_a_handshake() {
    lists_and_calls("legacy", By::Http);
}

#[test]
fn over_http_without_a_handshake() {
    lists_and_calls("modern", By::Http);
}

#[test]
fn through_the_bridge_with_a_handshake() {
    lists_and_calls("legacy", By::Bridge);
}

#[test]
fn through_the_bridge_without_a_handshake() {
    lists_and_calls("modern", By::Bridge);
}

#[test]
fn sixteen_at_once_are_answered_each() {
    for (era, by) in [("legacy", By::Bridge), ("modern", By::Http)] {
        let Some(inspector) = Inspector::new(era, by) else {
            return;
        };
        let load = [
            "--load",
            "--load-concurrency",
            "16",
            "--load-requests",
            "200",
            "--method",
            "tools/call",
        ];
        let (tool, arguments) = match by {
            By::Bridge => ("write_file", r#"{"path":"load","content":"x"}"#),
            // It would send the same key 200 times over; what reads has none.
            By::Http => ("list_directory", r#"{"path":"."}"#),
        };
        let of = ["--tool-name", tool, "--tool-args-json", arguments];
        let told = inspector.asks(&[&load[..], &of].concat());
        let counts = (
            &told["requests"],
            &told["ok"],
            &told["errors"],
            &told["toolErrors"],
        );
        assert_eq!(counts, (&json!(200), &json!(200), &json!(0), &json!(0)), "{told}");
    }
}
