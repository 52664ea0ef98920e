//! `semel conformance`: our own gateway scores full, workers without a guard do not, and every case can fail.

use crate::harness::{Home, bare};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a run said.
struct Run {
    exit: i32,
    json: Value,
    stderr: String,
}

impl Run {
    fn of(command: &mut Command, tmp: &Path) -> Self {
        let path = std::env::var("PATH").unwrap();
        let out = command.env("PATH", path).env("TMPDIR", tmp).output().unwrap();
        let stderr = String::from_utf8(out.stderr).unwrap();
        let json = serde_json::from_slice(&out.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}\n{stderr}", String::from_utf8_lossy(&out.stdout)));
        assert_eq!(
            std::fs::read_dir(tmp).unwrap().count(),
            0,
            "nothing is left behind"
        );
        Self {
            exit: out.status.code().unwrap(),
            json,
            stderr,
        }
    }

    fn new(args: &[&str]) -> Self {
        let tmp = tempfile::tempdir().unwrap();
        Self::of(
            &mut bare(&[&["conformance", "--json"], args].concat()),
            tmp.path(),
        )
    }

    /// Gives every case with its verdict.
    fn verdicts(&self) -> BTreeMap<&str, &str> {
        let cases = self.json["cases"]
            .as_array()
            .unwrap_or_else(|| panic!("{:#}", self.json));
        cases
            .iter()
            .map(|case| (case["case"].as_str().unwrap(), case["verdict"].as_str().unwrap()))
            .collect()
    }

    fn case(&self, name: &str) -> &Value {
        let cases = self.json["cases"].as_array().unwrap();
        cases.iter().find(|case| case["case"] == name).unwrap()
    }

    /// Gives the names of the cases with a verdict.
    fn with(&self, verdict: &str) -> Vec<&str> {
        let verdicts = self.verdicts();
        verdicts
            .into_iter()
            .filter(|(_, v)| *v == verdict)
            .map(|(name, _)| name)
            .collect()
    }
}

fn python() -> bool {
    let path = std::env::var("PATH").unwrap();
    let found = std::env::split_paths(&path).any(|dir| dir.join("python3").is_file());
    if !found {
        eprintln!("SKIPPED: no python3 on PATH");
    }
    found
}

#[test]
fn our_own_gateway_scores_full() {
    let run = Run::new(&["--rounds", "3"]);
    assert_eq!(
        (run.exit, &run.json["verdict"]),
        (0, &Value::from("full")),
        "{:#}",
        run.json
    );
    assert_eq!(run.stderr, "");
    let verdicts = run.verdicts();
    assert!(
        verdicts.len() >= 17 && verdicts.values().all(|v| *v == "right"),
        "{verdicts:?}"
    );
    // The window was hit, at every point by name, and not just passed by.
    let window = run.case("kill_in_window");
    let told = window["happened"].as_str().unwrap();
    assert!(
        told.contains("at 8 points by name: 6 x happened, then 200 replayed"),
        "{told}"
    );
    assert_eq!(run.case("simultaneous")["effects"], 3);
}

#[test]
fn the_worker_of_the_incident_does_not() {
    if !python() {
        return;
    }
    let run = Run::new(&["--adapter", "naive", "--rounds", "3"]);
    assert_eq!(
        (run.exit, &run.json["verdict"]),
        (33, &Value::from("not_full")),
        "{:#}",
        run.json
    );
    assert_eq!(run.with("right"), ["two_keys_same_body"]);
    assert_eq!(run.with("not_applicable"), ["other_workspace"]);
    assert_eq!(run.with("wrong"), ["empty_body"]);
    assert_eq!(
        run.with("unsafe"),
        [
            "disconnect",
            "duplicate_members",
            "failed_then_retried",
            "kill_after_answer",
            "kill_in_window",
            "late_retry",
            "missing_key",
            "probe_shaped_requests",
            "recycled_workspace",
            "replay",
            "respelt_json",
            "same_key_other_body",
            "same_key_other_path",
            "simultaneous",
        ]
    );
    // The incident itself, by name.
    let faults = run.case("probe_shaped_requests")["faults"].to_string();
    assert!(
        faults.contains("POST /internal/replay-last deleted the file again"),
        "{faults}"
    );
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert!(
        lines[0].starts_with("error: drill_failed (conformance)"),
        "{}",
        run.stderr
    );
    assert!(
        lines[1].contains("replay unsafe") && lines[1].contains("empty_body wrong"),
        "{}",
        lines[1]
    );
}

/// A worker that remembers keys with their bodies, but in memory alone, and records what it did some time after it did it:
/// a kill in between is never far.
const FORGETFUL: &str = r#"
import json, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
port, root = int(sys.argv[1]), sys.argv[2]
seen, one = {}, threading.Lock()
def refuse_doubles(pairs):
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names): raise ValueError("doubled")
    return dict(pairs)
class Worker(BaseHTTPRequestHandler):
    def answer(self, status, **value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self): self.answer(404)
    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try: call = json.loads(raw, object_pairs_hook=refuse_doubles)
        except ValueError: return self.answer(400, code="bad_input")
        key = self.headers.get("Idempotency-Key")
        if not key or not call or "path" not in call: return self.answer(400, code="bad_input")
        with one:
            if key in seen:
                return self.answer(409) if seen[key] != call else self.answer(200, replayed=True)
            place = os.path.join(root, call["path"])
            if "text" in call:
                with open(place, "w") as f: f.write(call["text"])
            elif os.path.exists(place): os.remove(place)
            else: return self.answer(404)
            time.sleep(0.02)
            seen[key] = call
            self.answer(200, replayed=False)
    def log_message(self, *args): pass
ThreadingHTTPServer(("127.0.0.1", port), Worker).serve_forever()
"#;

const ADAPTER: &str = r#"
adapter = "semel.conformance.adapter/v1"
name = "forgetful"
[target]
start = ["python3", "-I", "{adapter}/forgetful.py", "{port}", "{state}/files"]
[workspace]
files = "{state}/files"
[calls.delete]
path = "/files"
headers = { Idempotency-Key = "{key}" }
body = '{"path": "{path}"}'
[calls.write]
path = "/files"
headers = { Idempotency-Key = "{key}" }
body = '{"path": "{path}", "text": "{content}"}'
[[replayed]]
member = "/replayed"
equals = true
"#;

fn adapter(dir: &Path, text: &str) -> PathBuf {
    std::fs::write(dir.join("forgetful.py"), FORGETFUL).unwrap();
    let file = dir.join("adapter.toml");
    std::fs::write(&file, text).unwrap();
    file
}

/// A guard in memory passes every case but those in which it dies, and that in which its directory becomes another's.
#[test]
fn a_worker_that_forgets_is_found_out() {
    if !python() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = adapter(dir.path(), ADAPTER);
    let run = Run::new(&["--adapter", file.to_str().unwrap(), "--rounds", "3"]);
    assert_eq!((run.exit, run.json["target"].as_str()), (33, Some("forgetful")));
    assert_eq!(
        run.with("unsafe"),
        ["kill_after_answer", "kill_in_window", "recycled_workspace"],
        "{:#}",
        run.json
    );
    assert_eq!(
        (run.with("wrong").len(), run.with("right").len()),
        (0, 13),
        "{:#}",
        run.json
    );
    let killed = run.case("kill_after_answer");
    assert_eq!(
        (&killed["effects"], &killed["effects_due"]),
        (&Value::from(6), &Value::from(3))
    );
}

/// A trial that cannot see what the target does says so, and finds nothing right.
#[test]
fn effects_that_cannot_be_seen_are_no_score() {
    if !python() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = ADAPTER.replace("files = \"{state}/files\"", "files = \"{state}/elsewhere\"");
    let other_root = elsewhere.replace("\"{state}/files\"", "\"{state}\"");
    for (text, code, exit) in [
        (other_root.as_str(), "bad_config", 78),
        (
            &ADAPTER.replace("forgetful.py", "nothing.py"),
            "daemon_unreachable",
            69,
        ),
        (
            &ADAPTER.replace("[target]", "[target]\nstop = 1"),
            "bad_config",
            78,
        ),
        (
            &ADAPTER.replace("Idempotency-Key = \"{key}\"", ""),
            "bad_config",
            78,
        ),
    ] {
        let file = adapter(dir.path(), text);
        let run = Run::new(&["--adapter", file.to_str().unwrap()]);
        assert_eq!(
            (run.json["code"].as_str(), run.exit),
            (Some(code), exit),
            "{:#}",
            run.json
        );
    }
    let run = Run::new(&["--target", "127.0.0.1"]);
    assert_eq!(run.exit, 64);
}

/// A target that runs already is tried and left alone: what needs its death is named, and no full score.
#[test]
fn a_running_target_is_never_killed() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let url = daemon.url.clone();
    let tmp = tempfile::tempdir().unwrap();
    let args = ["conformance", "--json", "--rounds", "2", "--target", url.as_str()];
    let run = Run::of(&mut home.command(&args), tmp.path());
    assert_eq!(run.exit, 33, "{:#}", run.json);
    assert_eq!(
        run.with("not_applicable"),
        ["kill_after_answer", "kill_in_window"]
    );
    assert_eq!(run.with("right").len(), 15, "{:#}", run.json);
    assert!(
        run.case("kill_in_window")["why"]
            .as_str()
            .unwrap()
            .contains("not ours to kill")
    );
    let args = [&args[..], &["--allow-skips"]].concat();
    let run = Run::of(&mut home.command(&args), tmp.path());
    assert_eq!(
        (run.exit, run.json["verdict"].as_str()),
        (0, Some("full")),
        "{:#}",
        run.json
    );
    assert_eq!(
        home.admin("GET", "/v1/admin/status", &Value::Null).status,
        200,
        "it lives"
    );
    // Without it there is nothing to try.
    daemon.kill();
    let run = Run::of(&mut home.command(&args), tmp.path());
    assert_eq!(
        (run.exit, run.json["code"].as_str()),
        (69, Some("daemon_unreachable")),
        "{:#}",
        run.json
    );
}

/// A person who gives up gets the status of the signal, and nothing lives on.
#[test]
fn an_interrupted_run_ends_what_it_started() {
    let tmp = tempfile::tempdir().unwrap();
    let mut child = bare(&["conformance", "--quiet", "--rounds", "10000"])
        .env("TMPDIR", tmp.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // It is under way as soon as its target lives.
    let inside = || {
        std::fs::read_dir(tmp.path())
            .unwrap()
            .next()
            .map(|dir| dir.unwrap().path())
    };
    let lives = || inside().is_some_and(|dir| dir.join("target/semel.sock").exists());
    while !lives() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: a signal to a child of ours that was not reaped.
    #[expect(unsafe_code, reason = "libc is how a test sends a signal")]
    let sent = unsafe { libc::kill(pid, libc::SIGINT) };
    assert_eq!(sent, 0);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(
        std::fs::read_dir(tmp.path()).unwrap().count(),
        0,
        "nothing is left behind"
    );
}
