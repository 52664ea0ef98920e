//! The log as people and machines read it: one flat line a call, followed, and not filled by strangers.

use crate::harness::{Conn, Home, LONG, Volume, bare, signal, skipped, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736";

/// Sends a call under a parent span.
fn call_as(conn: &mut Conn<TcpStream>, volume: &Volume, span: &str, content: &str) -> u16 {
    let (auth, parent) = (format!("Bearer {}", volume.token), format!("{TRACE}-{span}-01"));
    let headers = [
        ("authorization", auth.as_str()),
        ("idempotency-key", "k"),
        ("user-agent", "agent/1"),
        ("traceparent", parent.as_str()),
    ];
    let body = json!({"path": "a", "content": content}).to_string();
    conn.send("POST", "/v1/tools/write_file", &headers, body.as_bytes())
        .status
}

#[test]
fn a_daemon_that_stands_still_keeps_nobody_from_the_log() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    assert_eq!(call_as(&mut daemon.conn(), &volume, "00f067aa0ba902b7", "1"), 200);
    signal(daemon.child.id(), libc::SIGSTOP);
    let lines = home.lines(&["log"]);
    assert!(lines.iter().any(|line| line["event"] == "executed"), "{lines:?}");
}

#[test]
fn every_call_is_one_flat_line() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut conn = daemon.conn();
    assert_eq!(call_as(&mut conn, &volume, "00f067aa0ba902b7", "1"), 200);
    assert_eq!(call_as(&mut conn, &volume, "00f067aa0ba902b7", "1"), 200);
    assert_eq!(call_as(&mut conn, &volume, "11f067aa0ba902b7", "1"), 200);
    assert_eq!(call_as(&mut conn, &volume, "22f067aa0ba902b7", "2"), 409);
    conn.call(&volume, "read_file", "", &json!({"path": "a"}));
    conn.call(&volume, "delete_file", "d", &json!({"path": "../x"}));
    let lines = home.lines(&["log"]);
    let events: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(
        events,
        [
            "daemon_started",
            "volume_opened",
            "volume_ready",
            "executed",
            "replayed",
            "replayed",
            "conflict",
            "read",
            "refused"
        ]
    );
    let executed = &lines[3];
    assert_eq!(
        executed["fingerprint_version"], 2,
        "the rules, not the digest's form"
    );
    an_execution_says_all(executed, &volume);
    for line in &lines {
        assert!(
            line.as_object().unwrap().values().all(|value| !value.is_object()),
            "flat: {line}"
        );
    }
    for replay in &lines[4..6] {
        for same in ["execution_id", "fingerprint", "idempotency_key"] {
            assert_eq!(replay[same], executed[same], "{same}");
        }
        assert_eq!(replay["replayed"], true);
    }
    assert_eq!(
        (&lines[6]["code"], &lines[6]["reason"]),
        (&json!("replay_conflict"), &json!("body_mismatch"))
    );
    assert_eq!(lines[8]["code"], "path_escapes_root");
    one_execution_has_its_parents(&home, executed["execution_id"].as_str().unwrap());
    let raw = home.lines(&["log", "--raw"]);
    assert_eq!(raw.len(), lines.len() + 1, "intent and receipt apart");
    assert!(
        raw.iter()
            .all(|entry| entry["hash"].as_str().unwrap().len() == 64)
    );
}

fn an_execution_says_all(executed: &Value, volume: &Volume) {
    for (name, value) in [
        ("schema", json!("semel.log.line/v1")),
        ("job", json!("job")),
        ("attempt", json!(1)),
        ("generation", json!(volume.generation)),
        ("tool", json!("write_file")),
        ("path", json!("a")),
        ("idempotency_key", json!("k")),
        ("replayed", json!(false)),
        ("code", Value::Null),
        ("door", json!("http")),
        ("user_agent", json!("agent/1")),
        ("traceparent", json!(format!("{TRACE}-00f067aa0ba902b7-01"))),
    ] {
        assert_eq!(executed[name], value, "{name}: {executed}");
    }
    assert!(
        executed["peer"].as_str().unwrap().starts_with("tcp:127.0.0.1:"),
        "{executed}"
    );
    assert!(executed["took_us"].as_u64().unwrap() > 0, "{executed}");
    assert!(executed["waited_us"].as_u64().unwrap() <= executed["took_us"].as_u64().unwrap());
}

/// One tool call, asked for by two spans: the effect is one, and that it had two parents is seen.
fn one_execution_has_its_parents(home: &Home, execution: &str) {
    let mut told = home.lines(&["log", "--execution", execution]);
    let story = told.pop().unwrap();
    assert_eq!(told[0]["event"], "executed");
    assert_eq!(
        (
            &story["event"],
            &story["replays"],
            &story["conflicts"],
            &story["parents"]
        ),
        (&json!("executed"), &json!(2), &json!(1), &json!(2)),
        "{story}"
    );
    let text = home.run(&["log", "--execution", execution]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.trim_end()
            .ends_with("executed; replays: 2; conflicts: 1; parents: 2"),
        "{text}"
    );
}

/// A call that runs is seen as such; once it has its receipt, it is one line.
#[test]
fn a_running_call_is_seen_and_told_once() {
    let home = Home::new();
    let daemon = home.serve(&["--pause-at", "begun:1500"]);
    let volume = home.open("job", "process");
    let events = || -> Vec<String> {
        let lines = home.lines(&["log", "--key", "k"]);
        lines
            .iter()
            .map(|line| line["event"].as_str().unwrap().to_owned())
            .collect()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            daemon
                .conn()
                .call(&volume, "write_file", "k", &json!({"path": "a", "content": "1"}))
        });
        assert!(wait_until(Duration::from_secs(20), || events() == ["running"]));
    });
    assert_eq!(events(), ["executed"]);
}

struct Following {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Following {
    fn begin(home: &Home, args: &[&str]) -> Self {
        let mut command = home.command(&[&["log", "--follow", "--json"], args].concat());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }

    /// Gives how it ended, and what it said.
    fn ended(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.child.stderr.take().unwrap(), &mut said).unwrap();
        (status.code(), said)
    }
}

#[test]
fn following_shows_what_comes_and_holds_nothing_up() {
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut following = Following::begin(&home, &["--limit", "1"]);
    assert_eq!(following.next()["event"], "volume_ready");
    let mut conn = daemon.conn();
    for n in 0..50 {
        let key = format!("k{n}");
        let arguments = json!({"path": key, "content": "1"});
        conn.call(&volume, "write_file", &key, &arguments);
        conn.call(&volume, "write_file", &key, &arguments);
    }
    let mut seen = Vec::new();
    while seen.len() < 100 {
        let line = following.next();
        // A call that was looked at while it ran is told again by its outcome.
        if line["event"] != "running" {
            seen.push((line["idempotency_key"].clone(), line["event"].clone()));
        }
    }
    let told: Vec<_> = (0..50)
        .flat_map(|n| ["executed", "replayed"].map(|event| (json!(format!("k{n}")), json!(event))))
        .collect();
    assert_eq!(seen, told, "each once, in order");
    // At its end the daemon leaves everything in the one file: somebody who follows keeps it from nothing.
    daemon.terminate();
    assert!(daemon.ended(Duration::from_secs(30)).unwrap().success());
    let log = std::fs::metadata(home.state().join("journal.db-wal")).map_or(0, |log| log.len());
    assert_eq!(log, 0, "the write-ahead log is pinned");
    // And it goes on with the next life.
    let _next = home.serve(&[]);
    assert_eq!(following.next()["event"], "daemon_started");
    signal(following.child.id(), libc::SIGINT);
    assert_eq!(following.ended(), (Some(0), String::new()));
}

#[test]
fn following_ends_with_its_reader() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    // Nobody reads any more, and nothing comes: it ends all the same.
    let mut idle = Following::begin(&home, &[]);
    idle.next();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(std::mem::replace(
        &mut idle.lines,
        BufReader::new(std::process::ChildStdout::from(std::os::fd::OwnedFd::from(
            reader,
        ))),
    ));
    drop(writer);
    assert_eq!(idle.ended(), (Some(0), String::new()));
    // A filter holds for what comes, too.
    let mut one = Following::begin(&home, &["--conflicts"]);
    let mut conn = daemon.conn();
    conn.call(&volume, "write_file", "k", &json!({"path": "a", "content": "1"}));
    conn.call(&volume, "write_file", "k", &json!({"path": "a", "content": "2"}));
    assert_eq!(one.next()["event"], "conflict");
    signal(one.child.id(), libc::SIGTERM);
    assert_eq!(one.ended(), (Some(0), String::new()));
}

/// Whoever has no token cannot fill the disk: a few notes, and a number.
#[test]
fn strangers_are_counted_and_sampled() {
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    let mut conn = daemon.conn();
    let (before, since) = (home.entries(), std::time::Instant::now());
    let sent = 3000;
    for n in 0..sent {
        let token = format!("Bearer smlvt1_{n:064x}");
        let headers = [("authorization", token.as_str()), ("user-agent", "stranger")];
        let reply = match n % 3 {
            0 => conn.send("POST", "/v1/tools/write_file", &headers, b"{\"path\":\"a\"}"),
            1 => conn.send("GET", "/v1/receipts/k", &headers, b""),
            _ => conn.send("POST", "/v1/admin/shutdown", &headers, b""),
        };
        assert_eq!(reply.status, 401, "{}", reply.body);
    }
    let status = home.admin("GET", "/v1/admin/status", &Value::Null);
    assert_eq!(status.body["counted"]["unauthorized"], sent, "{}", status.body);
    daemon.terminate();
    assert!(daemon.ended(Duration::from_secs(30)).unwrap().success());
    let noted = home.lines(&["log", "--after", &before.to_string()]);
    let own = noted.iter().filter(|line| line["event"] == "refused");
    let own = own.inspect(|line| {
        assert_eq!(
            (&line["code"], &line["user_agent"]),
            (&json!("unauthorized"), &json!("stranger"))
        );
        assert!(line["peer"].is_string() && line["job"].is_null(), "{line}");
    });
    let own = own.count() as u64;
    let counted: u64 = noted.iter().filter_map(|line| line["count"].as_u64()).sum();
    assert_eq!(own + counted, sent, "each is noted or counted");
    let minutes = since.elapsed().as_secs() / 60 + 2;
    assert!(
        own <= minutes * 6 && noted.len() as u64 <= minutes * 7,
        "{} entries",
        noted.len()
    );
    eprintln!("{sent} requests of strangers left {} entries", noted.len());
}

/// What has no effect of its own costs no sync: replays, conflicts, reads, and what probes send.
#[test]
fn a_thousand_replays_cost_no_sync() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    // Synced before it is answered: nothing is left to be synced in the background.
    let volume = home.open("job", "power-best-effort");
    let mut conn = daemon.conn();
    let arguments = json!({"path": "a", "content": "1"});
    assert_eq!(conn.call(&volume, "write_file", "k", &arguments).status, 200);
    let trace = home.path().join("trace");
    let Some(mut strace) = attach(daemon.child.id(), &trace) else {
        return skipped("strace cannot attach here");
    };
    for n in 0..1000 {
        let replay = conn.call(&volume, "write_file", "k", &arguments);
        assert_eq!((replay.status, &replay.body["replayed"]), (200, &json!(true)));
        if n % 10 == 0 {
            conn.call(&volume, "write_file", "k", &json!({"path": "a", "content": "2"}));
            conn.call(&volume, "read_file", "", &json!({"path": "a"}));
            conn.send("POST", "/v1/tools/write_file", &[], b"{}");
        }
    }
    let syncs = || {
        let text = std::fs::read_to_string(&trace).unwrap();
        text.lines()
            .filter(|line| line.contains("sync(") && !line.contains("resumed"))
            .count()
    };
    let quiet = syncs();
    // That the count can count: a new effect in this volume is synced.
    let fresh = conn.call(&volume, "write_file", "k2", &json!({"path": "b", "content": "1"}));
    assert_eq!(fresh.status, 200);
    assert!(
        wait_until(Duration::from_secs(10), || syncs() > quiet),
        "the trace sees syncs"
    );
    signal(strace.id(), libc::SIGINT);
    strace.wait().unwrap();
    eprintln!(
        "1000 replays, 100 conflicts, 100 reads, 100 probes: {quiet} syncs; then 1 write: {}",
        syncs() - quiet
    );
    assert_eq!(quiet, 0, "{}", std::fs::read_to_string(&trace).unwrap());
}

/// Attaches strace to every thread of a process; `None` where that cannot be done here.
fn attach(pid: u32, to: &std::path::Path) -> Option<Child> {
    let mut strace = Command::new("strace")
        .args(["-f", "-e", "trace=fsync,fdatasync,sync_file_range,syncfs", "-o"])
        .arg(to)
        .args(["-p", &pid.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut said = String::new();
    BufReader::new(strace.stderr.as_mut()?)
        .read_line(&mut said)
        .ok()?;
    if said.contains("attached") {
        Some(strace)
    } else {
        strace.wait().ok()?;
        None
    }
}

#[test]
fn there_is_no_log_before_there_is_a_journal() {
    let home = Home::new();
    for args in [
        &["log"][..],
        &["log", "--follow"],
        &["log", "verify"],
        &["log", "key"],
        &["check"],
    ] {
        let out = home.run(args);
        assert_eq!(out.status.code(), Some(17), "{args:?}");
        assert_eq!(String::from_utf8(out.stderr).unwrap().lines().count(), 3);
    }
    assert!(!home.state().exists(), "to look makes nothing");
    let out = bare(&["log", "verify", "--offline", "/nonexistent/journal.db"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(17));
}

/// Every call leaves a record, also one whose caller goes away while it waits for another.
#[test]
fn who_leaves_while_it_waits_leaves_a_record() {
    let home = Home::new();
    let daemon = home.serve(&["--pause-at", "begun:5000"]);
    let volume = home.open("job", "process");
    let arguments = json!({"path": "a", "content": "1"});
    std::thread::scope(|scope| {
        let first = scope.spawn(|| daemon.conn().call(&volume, "write_file", "k", &arguments));
        let running = || {
            home.lines(&["log", "--key", "k"])
                .iter()
                .any(|line| line["event"] == "running")
        };
        assert!(wait_until(LONG, running));
        let body = arguments.to_string();
        for key in ["k", "other"] {
            let mut conn = daemon.conn();
            let head = format!(
                "POST /v1/tools/write_file HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nidempotency-key: {key}\r\ncontent-length: {}\r\n\r\n{body}",
                volume.token,
                body.len()
            );
            conn.write(head.as_bytes()).unwrap();
        }
        let left = |key: &str| -> Vec<Value> {
            let lines = home.lines(&["log", "--key", key]);
            lines
                .into_iter()
                .filter(|line| line["reason"] == "caller_left")
                .collect()
        };
        for key in ["k", "other"] {
            assert!(wait_until(LONG, || !left(key).is_empty()), "{key}");
        }
        let first = first.join().unwrap();
        assert_eq!((first.status, &first.body["replayed"]), (200, &json!(false)));
        // Once each, and nothing of it began.
        for (key, lines) in [("k", 2), ("other", 1)] {
            assert_eq!(left(key).len(), 1, "{key}");
            assert_eq!(home.lines(&["log", "--key", key]).len(), lines, "{key}");
            let line = &left(key)[0];
            assert_eq!(
                (&line["event"], &line["code"]),
                (&json!("refused"), &json!("call_in_flight")),
                "{line}"
            );
        }
    });
}
