//! `run_command` through the gateway: once, whatever dies; told as it was; ended with its volume.

mod crash;
mod ends;
mod job;
mod output;
mod walls;

use crate::harness::{Conn, Daemon, Home, LONG, Reply, Volume, wait_until};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Has one effect, which can be counted.
const EFFECT: &str = "echo x >> effects";

/// Has its effect, says that it did, and runs until it is let go.
const WAITS: &str = "echo x >> effects; echo begun; while [ ! -e go ]; do sleep 0.02; done; echo done";

struct Lab {
    home: Home,
    daemon: Option<Daemon>,
    volume: Volume,
}

impl Lab {
    fn new() -> Self {
        Self::with("process", &[])
    }

    fn with(durability: &str, args: &[&str]) -> Self {
        let home = Home::new();
        let daemon = home.serve(args);
        let volume = home.open("job", durability);
        Self {
            home,
            daemon: Some(daemon),
            volume,
        }
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    fn conn(&self) -> Conn<std::net::TcpStream> {
        self.daemon().conn()
    }

    fn kill(&mut self) {
        self.daemon.take().unwrap().kill();
    }

    fn restart(&mut self, args: &[&str]) {
        self.daemon = None;
        self.daemon = Some(self.home.serve(args));
    }

    fn call(&self, key: &str, arguments: &Value) -> Reply {
        self.conn().call(&self.volume, "run_command", key, arguments)
    }

    fn sh(&self, key: &str, line: &str) -> Reply {
        self.call(key, &json!({"command": line}))
    }

    /// Sends a call, and waits no longer than it takes to begin.
    fn begin(&self, key: &str, arguments: &Value) -> Reply {
        let reply = prefer(&mut self.conn(), &self.volume, key, arguments, "wait=0");
        assert_eq!(
            (reply.status, reply.code()),
            (409, "call_in_flight"),
            "{}",
            reply.body
        );
        reply
    }

    fn in_tree(&self, name: &str) -> PathBuf {
        self.volume.tree.join(name)
    }

    fn go(&self) {
        std::fs::write(self.in_tree("go"), "").unwrap();
    }

    /// Counts how often the effect happened.
    fn effects(&self) -> usize {
        std::fs::read_to_string(self.in_tree("effects"))
            .unwrap_or_default()
            .lines()
            .count()
    }

    fn begun(&self) {
        assert!(wait_until(LONG, || self.effects() == 1), "it begins");
    }

    fn receipt(&self, key: &str) -> Value {
        self.conn()
            .call(&self.volume, "get_receipt", "", &json!({"key": key}))
            .body
    }

    /// Waits until the key has another state than running.
    fn settles(&self, key: &str) -> Value {
        assert!(wait_until(LONG, || self.receipt(key)["state"] != "running"));
        self.receipt(key)
    }

    /// The directory of an execution.
    fn exec(&self, execution: &Value) -> PathBuf {
        let generation = self.volume.tree.parent().unwrap().parent().unwrap();
        generation.join("meta/exec").join(execution.as_str().unwrap())
    }

    /// The process of the shim of an execution: the one that has its directory open.
    fn shim(&self, execution: &Value) -> u32 {
        let id = execution.as_str().unwrap().to_owned();
        let daemon = self.daemon().child.id();
        let has = |pid: u32| {
            let Ok(all) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
                return false;
            };
            let links = all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            links.into_iter().any(|to| to.ends_with(&id))
        };
        let pids = std::fs::read_dir("/proc").unwrap();
        let mut found: Vec<u32> = pids
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != daemon && has(*pid))
            .collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

fn prefer(
    conn: &mut Conn<std::net::TcpStream>,
    volume: &Volume,
    key: &str,
    arguments: &Value,
    preference: &str,
) -> Reply {
    let auth = format!("Bearer {}", volume.token);
    let headers = [
        ("authorization", auth.as_str()),
        ("content-type", "application/json"),
        ("idempotency-key", key),
        ("prefer", preference),
    ];
    let body = arguments.to_string();
    conn.send("POST", "/v1/tools/run_command", &headers, body.as_bytes())
}

#[test]
fn a_command_runs_once_and_its_answer_is_given_again() {
    let lab = Lab::new();
    let arguments = json!({"command": "echo x >> effects; echo out; echo err >&2; exit 3"});
    let first = lab.call("k", &arguments);
    let body = &first.body;
    assert_eq!(
        (first.status, &body["end"], &body["exit_code"], &body["timed_out"]),
        (200, &json!("exited"), &json!(3), &json!(false)),
        "{body}"
    );
    assert_eq!(
        (&body["stdout"], &body["stderr"]),
        (&json!("out\n"), &json!("err\n"))
    );
    assert_eq!((&body["cwd"], &body["replayed"]), (&json!("."), &json!(false)));
    assert_eq!(body["tree_ended"], "proved");
    let again = lab.call("k", &arguments);
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    let mut same = first.body.clone();
    same["replayed"] = json!(true);
    assert_eq!(again.body, same);
    assert_eq!(lab.effects(), 1);
    // Another call under the key is a conflict, in whatever scope.
    for other in [
        json!({"command": "true"}),
        json!({"command": "echo x >> effects; echo out; echo err >&2; exit 3", "scope": "job"}),
    ] {
        let reply = lab.call("k", &other);
        assert_eq!(
            (reply.status, reply.code()),
            (409, "replay_conflict"),
            "{}",
            reply.body
        );
        assert_eq!(reply.reason(), "body_mismatch");
    }
    let elsewhere = lab.call("k", &json!({"command": "true", "cwd": "a"}));
    assert_eq!(elsewhere.reason(), "path_mismatch");
    let written = lab.conn().call(
        &lab.volume,
        "write_file",
        "k",
        &json!({"path": "f", "content": ""}),
    );
    assert_eq!(written.reason(), "tool_mismatch");
    let receipt = lab.receipt("k");
    assert_eq!(
        (&receipt["state"], &receipt["result"]["exit_code"]),
        (&json!("done"), &json!(3))
    );
    assert_eq!(lab.effects(), 1);
}

#[test]
fn what_it_is_given_is_what_it_has() {
    let lab = Lab::new();
    std::fs::create_dir(lab.in_tree("sub")).unwrap();
    let reply = lab.call(
        "argv",
        &json!({"argv": ["printf", "%s|", "a b", "$HOME", "*"], "cwd": "sub"}),
    );
    assert_eq!(reply.body["stdout"], "a b|$HOME|*|", "{}", reply.body);
    let reply = lab.call(
        "env",
        &json!({"command": "pwd; echo $GREETING; cat; echo $SEMEL_TOKEN$SEMEL_URL", "cwd": "sub", "env": {"GREETING": "hi"}}),
    );
    let place = lab.in_tree("sub").canonicalize().unwrap();
    assert_eq!(reply.body["stdout"], format!("{}\nhi\n\n", place.display()));
    let reply = lab.call("missing", &json!({"argv": ["no-such-program"]}));
    assert_eq!((reply.status, &reply.body["exit_code"]), (200, &json!(127)));
    let reply = lab.sh("signal", "kill -9 $$");
    assert_eq!(
        (
            &reply.body["end"],
            &reply.body["signal"],
            &reply.body["exit_code"]
        ),
        (&json!("signalled"), &json!(9), &Value::Null)
    );
    let reply = lab.call(
        "slow",
        &json!({"command": "echo a; sleep 600", "timeout_ms": 300}),
    );
    assert_eq!(
        (
            reply.status,
            &reply.body["end"],
            &reply.body["timed_out"],
            &reply.body["stdout"]
        ),
        (200, &json!("timed_out"), &json!(true), &json!("a\n"))
    );
}

#[test]
fn what_leads_out_of_the_root_is_refused_before_anything_is_recorded() {
    let lab = Lab::new();
    std::os::unix::fs::symlink("/etc", lab.in_tree("out")).unwrap();
    std::fs::write(lab.in_tree("file"), "").unwrap();
    for (cwd, code) in [
        ("../x", "path_escapes_root"),
        ("/etc", "path_escapes_root"),
        ("out", "path_escapes_root"),
        ("none", "not_found"),
    ] {
        let reply = lab.call("k", &json!({"command": EFFECT, "cwd": cwd}));
        assert_eq!(reply.code(), code, "{cwd}: {}", reply.body);
    }
    assert_ne!(
        lab.call("k", &json!({"command": EFFECT, "cwd": "file"})).status,
        200
    );
    for env in [json!({"HOME": "/"}), json!({"A=B": "c"})] {
        let reply = lab.call("k", &json!({"command": EFFECT, "env": env}));
        assert_eq!(reply.code(), "bad_input", "{}", reply.body);
    }
    assert_eq!(lab.receipt("k")["code"], "not_found", "the key was never used");
    assert_eq!(lab.sh("k", EFFECT).body["replayed"], false);
    assert_eq!(lab.effects(), 1);
}

/// Sixteen callers at once, each with the same call: one run, and sixteen answers.
#[test]
fn sixteen_duplicates_run_once() {
    let lab = Lab::new();
    let arguments = json!({"command": "echo x >> effects; sleep 0.3; date +%s%N"});
    let replies: Vec<Reply> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| lab.call("k", &arguments)))
            .collect();
        callers.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let one = &replies[0].body;
    for reply in &replies {
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(
            (&reply.body["stdout"], &reply.body["execution_id"]),
            (&one["stdout"], &one["execution_id"])
        );
    }
    let first = replies.iter().filter(|reply| reply.body["replayed"] == false);
    assert_eq!(first.count(), 1);
    assert_eq!(lab.effects(), 1);
}

#[test]
fn who_does_not_wait_is_told_where_to_look_and_who_leaves_ends_nothing() {
    let lab = Lab::new();
    let arguments = json!({"command": WAITS});
    let told = lab.begin("k", &arguments);
    assert_eq!(told.header("retry-after"), Some("1"));
    lab.begun();
    let execution = told.body["execution_id"].clone();
    // Somebody who waits, and goes away.
    let auth = format!("Bearer {}", lab.volume.token);
    let body = arguments.to_string();
    let mut leaves = lab.conn();
    let request = format!(
        "POST /v1/tools/run_command HTTP/1.1\r\nhost: semel\r\nauthorization: {auth}\r\nidempotency-key: k\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    leaves.write(request.as_bytes()).unwrap();
    drop(leaves);
    let conflict = lab.sh("k", "true");
    assert_eq!(conflict.code(), "replay_conflict", "a conflict does not wait");
    let last = std::thread::scope(|scope| {
        let waits = scope.spawn(|| lab.call("k", &arguments));
        lab.go();
        waits.join().unwrap()
    });
    assert_eq!(
        (
            &last.body["execution_id"],
            &last.body["replayed"],
            &last.body["stdout"]
        ),
        (&execution, &json!(true), &json!("begun\ndone\n")),
        "{}",
        last.body
    );
    assert_eq!(lab.effects(), 1);
}

#[test]
fn commands_at_once_are_bounded_in_a_volume() {
    let lab = Lab::new();
    for n in 0..8 {
        lab.begin(
            &format!("k{n}"),
            &json!({"command": "while [ ! -e go ]; do sleep 0.05; done"}),
        );
    }
    let refused = lab.sh("k8", EFFECT);
    assert_eq!(
        (refused.status, refused.code(), refused.reason()),
        (429, "too_many", "commands_of_volume")
    );
    assert_eq!(refused.header("retry-after"), Some("1"));
    // The others go on meanwhile, and files are written.
    let write = json!({"path": "f", "content": "1"});
    assert_eq!(
        lab.conn().call(&lab.volume, "write_file", "w", &write).status,
        200
    );
    assert_eq!(
        lab.begin(
            "k3",
            &json!({"command": "while [ ! -e go ]; do sleep 0.05; done"})
        )
        .status,
        409
    );
    lab.go();
    for n in 0..8 {
        assert_eq!(lab.settles(&format!("k{n}"))["state"], "done");
    }
    assert_eq!(lab.sh("k8", EFFECT).body["exit_code"], 0);
}

/// A key of the job means one effect for all its generations.
#[test]
fn a_job_scoped_command_is_not_run_again_by_a_later_generation() {
    let mut lab = Lab::new();
    let arguments = json!({"command": "echo x >> effects; echo deployed", "scope": "job"});
    let first = lab.call("deploy", &arguments);
    assert_eq!(
        (first.status, &first.body["replayed"]),
        (200, &json!(false)),
        "{}",
        first.body
    );
    assert_eq!(lab.sh("own", EFFECT).status, 200);
    assert_eq!(lab.effects(), 2);
    let (gone, generation) = (lab.volume.clone(), lab.volume.generation.clone());
    lab.home.json(&["volume", "end", &generation]);
    lab.volume = lab.home.open("job", "process");
    let again = lab.call("deploy", &arguments);
    assert_eq!(
        (
            &again.body["replayed"],
            &again.body["execution_id"],
            &again.body["stdout"]
        ),
        (&json!(true), &first.body["execution_id"], &json!("deployed\n")),
        "{}",
        again.body
    );
    assert_eq!(lab.receipt("deploy")["result"]["exit_code"], 0);
    assert_eq!(lab.effects(), 0);
    // Another job has other keys, and a key of the generation went with it.
    let other = lab.home.open("other", "process");
    let theirs = lab.conn().call(&other, "run_command", "deploy", &arguments);
    assert_eq!(theirs.body["replayed"], false);
    assert_eq!(lab.sh("own", EFFECT).body["replayed"], false);
    // An ended token may ask, and do no more.
    let asks = lab
        .conn()
        .call(&gone, "get_receipt", "", &json!({"key": "deploy"}));
    assert_eq!(asks.body["state"], "done");
    assert_eq!(
        lab.conn()
            .call(&gone, "run_command", "deploy", &arguments)
            .reason(),
        "stale_generation"
    );
    // With its volume goes what it wrote; what is known of it stays.
    lab.home.json(&["volume", "destroy", &generation]);
    let digests = lab.call("deploy", &arguments);
    assert_eq!(
        (
            &digests.body["replayed"],
            &digests.body["stdout"],
            &digests.body["stdout_gone"]
        ),
        (&json!(true), &Value::Null, &json!(true))
    );
    assert_eq!(digests.body["stdout_sha256"], first.body["stdout_sha256"]);
}

/// Who forgets the scope in a retry means no other effect, in a later generation as in the first one; nor does a restart
/// forget it.
#[test]
fn a_job_scoped_command_sent_without_its_scope_is_a_conflict_in_every_generation() {
    let mut lab = Lab::new();
    let scoped = json!({"command": EFFECT, "scope": "job"});
    let first = lab.call("deploy", &scoped);
    assert_eq!(first.status, 200, "{}", first.body);
    for life in 0..2 {
        if life == 1 {
            lab.restart(&[]);
        } else {
            let ended = lab.volume.generation.clone();
            lab.home.json(&["volume", "end", &ended]);
            lab.volume = lab.home.open("job", "process");
        }
        let without = lab.sh("deploy", EFFECT);
        assert_eq!(
            (without.status, without.reason(), &without.body["execution_id"]),
            (409, "body_mismatch", &first.body["execution_id"]),
            "life {life}: {}",
            without.body
        );
        assert_eq!(lab.effects(), 0, "life {life}");
        assert_eq!(lab.call("deploy", &scoped).body["replayed"], true);
    }
    // Tools that know no scope have keys of the generation, which the job's are apart from.
    let write = json!({"path": "f", "content": "x"});
    let other = lab.conn().call(&lab.volume, "write_file", "deploy", &write);
    assert_eq!(other.status, 200, "{}", other.body);
}

#[test]
fn a_command_cannot_be_undone() {
    let lab = Lab::new();
    let execution = lab.sh("k", EFFECT).body["execution_id"].clone();
    let path = format!("/v1/admin/executions/{}/undo", execution.as_str().unwrap());
    let refused = lab.home.admin("POST", &path, &Value::Null);
    assert_eq!(
        (refused.status, refused.code(), refused.reason()),
        (412, "precondition_failed", "not_undoable")
    );
}

/// What the shim refuses is a receipt: here the directory is another one than the one that was looked at.
#[test]
fn what_the_shim_refuses_is_refused_again() {
    let place = tempfile::tempdir().unwrap();
    let held = place.path().join("held");
    let lab = Lab::with(
        "process",
        &["--hold-at", &format!("exec_made={}", held.display())],
    );
    std::fs::create_dir(lab.in_tree("sub")).unwrap();
    let arguments = json!({"command": EFFECT, "cwd": "sub"});
    let refused = std::thread::scope(|scope| {
        let call = scope.spawn(|| lab.call("k", &arguments));
        assert!(wait_until(LONG, || held.exists()));
        assert_eq!(lab.receipt("k")["state"], "running");
        std::fs::rename(lab.in_tree("sub"), lab.in_tree("old")).unwrap();
        std::fs::create_dir(lab.in_tree("sub")).unwrap();
        std::fs::remove_file(&held).unwrap();
        call.join().unwrap()
    });
    assert!(
        refused.status >= 400 && refused.code() != "call_in_flight",
        "{}",
        refused.body
    );
    assert_eq!(refused.body["replayed"], false);
    let again = lab.call("k", &arguments);
    if refused.code() == "io_failed" {
        assert_eq!(
            (again.status, &again.body["replayed"]),
            (200, &json!(false)),
            "{}",
            again.body
        );
    } else {
        assert_eq!(
            (again.code(), &again.body["replayed"]),
            (refused.code(), &json!(true))
        );
        assert!(!lab.in_tree("sub/effects").exists());
    }
    assert!(!lab.in_tree("old/effects").exists());
    eprintln!("refused with {}", refused.body["detail"]);
}
