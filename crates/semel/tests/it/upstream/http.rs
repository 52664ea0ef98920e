//! A server that listens.

use super::{Client, FAKE, Scene, refused, replayed};
use crate::harness::{Daemon, LONG, wait_until};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A listening server, and the scene in which it is named.
struct Listening {
    scene: Scene,
    child: Child,
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn start(place: &PathBuf, program: &PathBuf, more: &[&str]) -> Child {
    let mut command = Command::new("python3");
    command
        .arg(program)
        .arg(place)
        .arg("--http")
        .args(more)
        .stdin(Stdio::null())
        // Clients that go away are told of there.
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

impl Listening {
    fn new(more: &[&str]) -> Self {
        let mut scene = Scene::new();
        let program = scene.home.path().join("fake.py");
        std::fs::write(&program, FAKE).unwrap();
        let child = start(&scene.place, &program, more);
        let port = scene.place.join("port");
        assert!(wait_until(LONG, || port.exists()));
        let port = std::fs::read_to_string(port).unwrap();
        scene.upstream = format!("fake=http://127.0.0.1:{port}/mcp");
        Self { scene, child }
    }

    fn headers(&self) -> Vec<Value> {
        let lines = self.scene.lines("headers");
        lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn scene(&self) -> (Daemon, Client) {
        let daemon = self.scene.serve();
        let volume = self.scene.home.open("job", "process");
        let client = Client::new(&daemon, &volume);
        (daemon, client)
    }
}

#[test]
fn a_call_over_http_is_done_once_with_its_key() {
    for more in [&[][..], &["--modern"]] {
        let listening = Listening::new(more);
        let (_daemon, mut client) = listening.scene();
        for how in ["", "stream"] {
            assert_eq!(
                replayed(&client.note(&format!("k{how}"), how)),
                Some(false),
                "{more:?} {how}"
            );
            assert_eq!(replayed(&client.note(&format!("k{how}"), how)), Some(true));
        }
        assert_eq!(listening.scene.effects(), 2);
        let headers = listening.headers();
        let last = headers.last().unwrap();
        assert!(
            last["idempotency-key"].as_str().unwrap().starts_with("\"semel-"),
            "{last}"
        );
        if more.is_empty() {
            assert_eq!(
                (&last["mcp-session-id"], &last["mcp-protocol-version"]),
                (&json!("one"), &json!("2025-11-25"))
            );
        } else {
            assert_eq!(
                (
                    &last["mcp-protocol-version"],
                    &last["mcp-method"],
                    &last["mcp-name"]
                ),
                (&json!("2026-07-28"), &json!("tools/call"), &json!("note"))
            );
        }
    }
}

/// A session that is not known any more was not called in; another is begun, and the call is done once.
#[test]
fn a_session_that_ended_is_begun_anew() {
    let listening = Listening::new(&[]);
    let (_daemon, mut client) = listening.scene();
    assert_eq!(replayed(&client.note("a", "")), Some(false));
    std::fs::write(listening.scene.place.join("session"), "two").unwrap();
    assert_eq!(replayed(&client.note("b", "")), Some(false));
    assert_eq!(listening.scene.effects(), 2);
}

/// A call may itself end the session: a server that disowns the next one, too, is not asked a third time.
#[test]
fn a_session_that_ends_with_each_call_leaves_it_unknown() {
    let listening = Listening::new(&[]);
    let (_daemon, mut client) = listening.scene();
    for _ in 0..2 {
        assert_eq!(refused(&client.note("k", "gone")), "outcome_unknown");
        assert_eq!(listening.scene.effects(), 2);
    }
    assert_eq!(replayed(&client.note("other", "")), Some(false));
}

#[test]
fn what_breaks_off_is_unknown_and_what_is_not_reached_is_not() {
    let mut listening = Listening::new(&[]);
    let (_daemon, mut client) = listening.scene();
    for how in ["never", "wrong_id", "status"] {
        assert_eq!(refused(&client.note(how, how)), "outcome_unknown", "{how}");
        assert_eq!(refused(&client.note(how, how)), "outcome_unknown", "{how}");
    }
    assert_eq!(listening.scene.effects(), 3);
    // By the protocol it was not applied; and what is refused once is not asked again by itself.
    assert_eq!(refused(&client.note("f", "forbidden")), "io_failed");
    assert_eq!(listening.scene.effects(), 4);
    drop(listening.child.kill());
    drop(listening.child.wait());
    let gone = client.note("k", "");
    assert_eq!(refused(&gone), "io_failed", "{}", gone.body);
    let receipt = client.call("get_receipt", None, &json!({"key": "k"}));
    assert_eq!(refused(&receipt), "not_found");
}

#[test]
fn one_that_ends_in_a_call_leaves_it_unknown() {
    let listening = Listening::new(&[]);
    let (_daemon, mut client) = listening.scene();
    assert_eq!(refused(&client.note("k", "die_after")), "outcome_unknown");
    assert_eq!(refused(&client.note("k", "die_after")), "outcome_unknown");
    assert_eq!(listening.scene.effects(), 1);
}

/// The checker tries a server that listens, too: it kills nothing, and finds what is done twice.
#[test]
fn the_checker_tries_a_server_that_listens() {
    let mut listening = Listening::new(&["--files"]);
    let url = listening.scene.upstream.strip_prefix("fake=").unwrap().to_owned();
    let files = listening.scene.place.to_str().unwrap();
    let args = [
        "conformance",
        "--mcp",
        &url,
        "--files",
        files,
        "--rounds",
        "2",
        "--json",
    ];
    let out = listening.scene.home.run(&args);
    assert_eq!(out.status.code(), Some(33), "{}", crate::harness::said(&out));
    let told: Value = serde_json::from_slice(&out.stdout).unwrap();
    let verdicts: Vec<(&str, &str)> = told["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| (case["case"].as_str().unwrap(), case["verdict"].as_str().unwrap()))
        .collect();
    assert_eq!(verdicts[0], ("lost_answer", "unsafe"), "{told}");
    assert_eq!(verdicts[1], ("same_id", "unsafe"), "{told}");
    assert_eq!(verdicts[2], ("lost_edit", "right"), "{told}");
    assert_eq!(verdicts[3], ("kill_then_retry", "not_applicable"), "{told}");
    assert!(listening.child.try_wait().unwrap().is_none(), "it lives");
    let no_files = listening.scene.home.run(&["conformance", "--mcp", &url]);
    assert_eq!(
        no_files.status.code(),
        Some(64),
        "{}",
        crate::harness::said(&no_files)
    );
}
