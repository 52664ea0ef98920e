//! The cases of repeated tool calls, by `semel serve` and plain HTTP.

use crate::harness::{Conn, Daemon, Home, LONG, Reply, Volume, bare, wait_until};
use serde_json::{Value, json};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::time::Duration;

fn receipts(home: &Home, key: &str) -> usize {
    let verb = json!({"verb": "log", "filter": {"after_seq": null, "job": null, "execution": null, "key": key, "conflicts": null, "limit": null}});
    let log = home.admin("POST", "/v1/admin/journal", &verb);
    let lines = log.body.as_array().unwrap().iter();
    lines
        .filter(|line| line["entry"]["record"]["kind"] == "call_receipted")
        .count()
}

/// Sends a call and goes away before it is answered.
fn send_and_leave(daemon: &Daemon, volume: &Volume, tool: &str, key: &str, arguments: &Value) {
    let body = arguments.to_string();
    let mut stream = std::net::TcpStream::connect(daemon.url.strip_prefix("http://").unwrap()).unwrap();
    write!(
        stream,
        "POST /v1/tools/{tool} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nidempotency-key: {key}\r\ncontent-length: {}\r\n\r\n{body}",
        volume.token,
        body.len()
    )
    .unwrap();
    std::thread::sleep(Duration::from_millis(150));
}

#[test]
fn b01_a_late_answer_and_two_retries_are_one_effect() {
    let home = Home::new();
    let held = home.path().join("held");
    let daemon = home.serve(&["--hold-at", &format!("begun={}", held.display())]);
    let volume = home.open("job", "process");
    let call = json!({"path": "ledger", "content": "pay 1\n"});
    send_and_leave(&daemon, &volume, "write_file", "k", &call);
    assert!(wait_until(LONG, || held.exists()));
    send_and_leave(&daemon, &volume, "write_file", "k", &call);
    let auth = format!("Bearer {}", volume.token);
    let headers = [
        ("authorization", auth.as_str()),
        ("idempotency-key", "k"),
        ("prefer", "wait=0"),
    ];
    let body = call.to_string();
    let told = daemon
        .conn()
        .send("POST", "/v1/tools/write_file", &headers, body.as_bytes());
    assert_eq!(
        (told.status, told.code()),
        (409, "call_in_flight"),
        "{}",
        told.body
    );
    assert!(told.header("retry-after").is_some());
    std::fs::remove_file(&held).unwrap();
    let last = daemon.conn().call(&volume, "write_file", "k", &call);
    assert_eq!(
        (last.status, &last.body["replayed"]),
        (200, &json!(true)),
        "{}",
        last.body
    );
    assert_eq!(receipts(&home, "k"), 1);
    assert_eq!(std::fs::read(volume.tree.join("ledger")).unwrap(), b"pay 1\n");
    assert_eq!((volume.staged(), volume.trashed()), (0, 0));
}

#[test]
fn b04_a_late_retry_of_a_delete_spares_what_came_after_it() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let place = volume.tree.join("gen.sql");
    std::fs::write(&place, "old").unwrap();
    let mut conn = daemon.conn();
    let old = conn
        .call(&volume, "get_file_info", "", &json!({"path": "gen.sql"}))
        .body["sha256"]
        .clone();
    send_and_leave(&daemon, &volume, "delete_file", "k1", &json!({"path": "gen.sql"}));
    assert!(wait_until(Duration::from_secs(10), || !place.exists()));
    std::fs::write(&place, "new").unwrap();
    let retried = conn.call(&volume, "delete_file", "k1", &json!({"path": "gen.sql"}));
    assert_eq!(
        (retried.status, &retried.body["replayed"]),
        (200, &json!(true)),
        "{}",
        retried.body
    );
    let new_key = json!({"path": "gen.sql", "expected_sha256": old});
    let refused = conn.call(&volume, "delete_file", "k2", &new_key);
    assert_eq!(
        (refused.status, refused.code()),
        (412, "precondition_failed"),
        "{}",
        refused.body
    );
    assert_eq!(std::fs::read(&place).unwrap(), b"new");
}

#[test]
fn b05_a_change_that_is_applied_already_is_neither_applied_nor_undone() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let place = volume.tree.join("f");
    std::fs::write(&place, "a\nlimit = 1\nz\n").unwrap();
    let mut conn = daemon.conn();
    let old = conn
        .call(&volume, "get_file_info", "", &json!({"path": "f"}))
        .body["sha256"]
        .clone();
    let change = json!({"path": "f", "content": "a\nlimit = 2\nz\n", "expected_sha256": old});
    let seen = ["k1", "k1", "k2", "k1"].map(|key| {
        let reply = conn.call(&volume, "write_file", key, &change);
        assert_eq!(std::fs::read(&place).unwrap(), b"a\nlimit = 2\nz\n");
        (reply.status, reply.body["replayed"] == json!(true))
    });
    assert_eq!(seen, [(200, false), (200, true), (412, false), (200, true)]);
    assert_eq!(volume.trashed(), 1, "one pre-image");
}

#[test]
fn b05_a_patch_that_is_applied_already_is_neither_applied_nor_undone() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let place = volume.tree.join("f");
    let mut conn = daemon.conn();
    let unified = "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n-limit = 1\n+limit = 2\n z\n";
    let agents = "*** Begin Patch\n*** Update File: f\n@@\n a\n-limit = 1\n+limit = 2\n z\n*** End Patch\n";
    for (n, patch) in [unified, agents].into_iter().enumerate() {
        std::fs::write(&place, "a\nlimit = 1\nz\n").unwrap();
        let seen = ["first", "first", "other", "first"].map(|key| {
            let key = format!("{key}-{n}");
            let reply = conn.call(&volume, "apply_patch", &key, &json!({"patch": patch}));
            assert_eq!(std::fs::read(&place).unwrap(), b"a\nlimit = 2\nz\n");
            (reply.status, reply.body["replayed"] == json!(true))
        });
        assert_eq!(
            seen,
            [(200, false), (200, true), (412, false), (200, true)],
            "{patch}"
        );
    }
}

#[test]
fn b05_a_patch_that_appends_is_applied_once_under_whatever_key() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let place = volume.tree.join("h");
    std::fs::write(&place, "log\n").unwrap();
    let mut conn = daemon.conn();
    let patch =
        "diff --git a/h b/h\nindex 6bfe6b1..b75f417 100644\n--- a/h\n+++ b/h\n@@ -1 +1,2 @@\n log\n+entry\n";
    let seen = ["k1", "k2", "k1"].map(|key| {
        let reply = conn.call(&volume, "apply_patch", key, &json!({"patch": patch}));
        assert_eq!(std::fs::read(&place).unwrap(), b"log\nentry\n");
        (reply.status, reply.body["replayed"] == json!(true))
    });
    assert_eq!(seen, [(200, false), (412, false), (200, true)]);
}

#[test]
fn b06_siblings_links_and_hard_links_lead_nowhere() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let sibling = home.open("job-1", "process");
    std::fs::write(sibling.tree.join("data"), "other").unwrap();
    let out = home.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let outside = home.path().join("outside");
    std::fs::write(&outside, "secret").unwrap();
    symlink(&out, volume.tree.join("link")).unwrap();
    symlink(&outside, volume.tree.join("leak")).unwrap();
    std::fs::hard_link(&outside, volume.tree.join("hard")).unwrap();
    let beside = format!("../../../../job-1/{}/vol/tree/data", sibling.generation);
    assert!(
        volume.tree.join(&beside).exists(),
        "the sibling is where the path leads"
    );
    let mut conn = daemon.conn();
    for (n, path) in [
        beside.as_str(),
        "link/new.txt",
        "leak",
        "./x/../../y",
        outside.to_str().unwrap(),
    ]
    .into_iter()
    .enumerate()
    {
        for (tool, key, arguments) in [
            ("read_file", String::new(), json!({"path": path})),
            (
                "write_file",
                format!("w{n}"),
                json!({"path": path, "content": "agent"}),
            ),
        ] {
            let reply = conn.call(&volume, tool, &key, &arguments);
            let got = (reply.status, reply.code());
            assert_eq!(got, (403, "path_escapes_root"), "{tool} {path}: {}", reply.body);
        }
    }
    let hard = conn.call(
        &volume,
        "write_file",
        "h",
        &json!({"path": "hard", "content": "agent"}),
    );
    assert_eq!(hard.status, 200, "{}", hard.body);
    assert_eq!(hard.body["hard_link_broken"], 1, "{}", hard.body);
    assert_eq!(std::fs::read(&outside).unwrap(), b"secret");
    assert_eq!(std::fs::read(sibling.tree.join("data")).unwrap(), b"other");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
}

/// Runs a call that stands still at a point, and exchanges its parent directory for a link out of the root meanwhile.
fn swapped(home: &Home, point: &str, tool: &str, arguments: &Value) -> (Reply, Volume) {
    let daemon = home.serve(&["--pause-at", &format!("{point}:400")]);
    let volume = home.open(&format!("{point}-{}", tool.replace('_', "-")), "process");
    std::fs::create_dir(volume.tree.join("tmp")).unwrap();
    std::fs::write(volume.tree.join("tmp/x"), "mine").unwrap();
    let reply = std::thread::scope(|scope| {
        let call = scope.spawn(|| Conn::tcp(&daemon.url).call(&volume, tool, "k", arguments));
        std::thread::sleep(Duration::from_millis(150));
        std::fs::rename(volume.tree.join("tmp"), volume.tree.join("aside")).unwrap();
        symlink(home.path().join("other"), volume.tree.join("tmp")).unwrap();
        call.join().unwrap()
    });
    daemon.kill();
    (reply, volume)
}

#[test]
fn b10_a_parent_that_is_swapped_after_the_check_leads_nowhere() {
    let home = Home::new();
    let other = home.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("x"), "theirs").unwrap();
    for point in ["checked", "staged", "begun"] {
        for (tool, arguments) in [
            ("delete_file", json!({"path": "tmp/x"})),
            ("write_file", json!({"path": "tmp/x", "content": "agent"})),
        ] {
            if (point, tool) == ("staged", "delete_file") {
                continue;
            }
            let (reply, volume) = swapped(&home, point, tool, &arguments);
            assert_eq!(
                std::fs::read(other.join("x")).unwrap(),
                b"theirs",
                "{point} {tool}"
            );
            assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1, "{point} {tool}");
            let mine = std::fs::read(volume.tree.join("aside/x")).ok();
            match (reply.status, tool) {
                (200, "delete_file") => assert_eq!(mine, None, "{point}"),
                (200, _) => assert_eq!(mine.as_deref(), Some(&b"agent"[..]), "{point}"),
                _ => {
                    assert_eq!(
                        reply.code(),
                        "path_escapes_root",
                        "{point} {tool}: {}",
                        reply.body
                    );
                    assert_eq!(mine.as_deref(), Some(&b"mine"[..]), "{point} {tool}");
                }
            }
        }
    }
}

#[test]
fn b11_one_call_in_many_spellings_and_one_spelling_of_two_calls() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let auth = format!("Bearer {}", volume.token);
    let raw = |key: &str, body: &str| {
        let headers = [("authorization", auth.as_str()), ("idempotency-key", key)];
        daemon
            .conn()
            .send("POST", "/v1/tools/write_file", &headers, body.as_bytes())
    };
    for (n, body) in [
        r#"{"path":"a","content":"1"}"#,
        r#"{"content":"1","path":"a"}"#,
        r#" { "path" : "a" , "content" : "1" } "#,
        r#"{"path":"\u0061","content":"\u0031"}"#,
        r#"{"path":"./a","content":"1"}"#,
    ]
    .into_iter()
    .enumerate()
    {
        let reply = raw("k", body);
        assert_eq!(
            (reply.status, &reply.body["replayed"]),
            (200, &json!(n > 0)),
            "{body}: {}",
            reply.body
        );
    }
    assert_eq!(receipts(&home, "k"), 1);
    for body in [
        r#"{"path":"a","path":"b","content":"1"}"#,
        r#"{"path":"a","content":"1","\u0063ontent":"2"}"#,
        r#"{"path":"a","content":NaN}"#,
        r#"{"path":"a","content":"\ud800"}"#,
    ] {
        let reply = raw("k2", body);
        assert_eq!(
            (reply.status, reply.code()),
            (400, "bad_input"),
            "{body}: {}",
            reply.body
        );
    }
    assert_eq!(receipts(&home, "k2"), 0);
    // Composed and decomposed, the same name is two names.
    assert_eq!(
        raw("k3", "{\"path\":\"caf\u{e9}\",\"content\":\"1\"}").status,
        200
    );
    let other = raw("k3", "{\"path\":\"cafe\u{301}\",\"content\":\"1\"}");
    assert_eq!(
        (other.code(), other.reason()),
        ("replay_conflict", "path_mismatch")
    );
}

#[test]
fn b09_a_link_in_a_workspace_is_removed_and_what_lies_behind_it_stays() {
    let home = Home::new();
    let shared = home.path().join("shared/x");
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::write(shared.join("i.js"), "1").unwrap();
    let disk = home.path().join("workspace");
    std::fs::create_dir(&disk).unwrap();
    symlink(home.path().join("shared"), disk.join("node_modules")).unwrap();
    symlink(&disk, home.path().join("current")).unwrap();
    let wipe = |place: &str| {
        let mut command = bare(&["contract", "wipe", "--adopt"]);
        let place = home.path().join(place);
        command
            .env("HOME", home.path())
            .env("WORKSPACE", place)
            .env("VOLUME_GENERATION", "g2");
        command.output().unwrap().status.code()
    };
    assert_eq!(wipe("current/"), Some(14), "a linked root is refused");
    assert!(disk.join("node_modules").is_symlink());
    assert_eq!(wipe("workspace"), Some(0));
    assert!(!disk.join("node_modules").is_symlink());
    assert_eq!(std::fs::read(shared.join("i.js")).unwrap(), b"1");
}
