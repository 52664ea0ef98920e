//! Calls over HTTP: replay, conflicts, the order of checks, and every refusal by its name.

use crate::harness::{Conn, Home, LONG, wait_until};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[test]
fn a_call_has_one_effect_and_replays() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut conn = daemon.conn();
    let first = conn.call(
        &volume,
        "write_file",
        "\"k\"",
        &json!({"path": "a", "content": "1"}),
    );
    assert_eq!(
        (first.status, &first.body["replayed"]),
        (200, &json!(false)),
        "{}",
        first.body
    );
    assert_eq!(first.header("idempotency-replayed"), None);
    assert!(first.header("x-request-id").is_some());
    std::fs::write(volume.tree.join("a"), "changed by hand").unwrap();
    // Bare and quoted spell one key; aliases, other spelling and base64 are the same call.
    for (key, arguments) in [
        ("\"k\"", json!({"path": "a", "content": "1"})),
        ("k", json!({"content": "1", "file_path": "./x/../a"})),
        (
            "k",
            json!({"path_b64": "YQ==", "content_b64": "MQ==", "idempotency_key": "k"}),
        ),
    ] {
        let again = conn.call(&volume, "write_file", key, &arguments);
        assert_eq!(
            (again.status, &again.body["replayed"]),
            (200, &json!(true)),
            "{}",
            again.body
        );
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
        for same in [
            "execution_id",
            "sha256_before",
            "sha256_after",
            "size_bytes",
            "path",
            "generation",
        ] {
            assert_eq!(again.body[same], first.body[same], "{same}");
        }
    }
    let content = std::fs::read_to_string(volume.tree.join("a")).unwrap();
    assert_eq!(content, "changed by hand", "a replay has no effect");
    let deleted = conn.call(&volume, "delete_file", "d", &json!({"path": "a"}));
    assert_eq!(
        (deleted.status, &deleted.body["sha256_after"]),
        (200, &Value::Null)
    );
    let replayed = conn.call(&volume, "delete_file", "d", &json!({"path": "a"}));
    assert_eq!(replayed.body["replayed"], true);
    let late = conn.call(&volume, "delete_file", "d2", &json!({"path": "a"}));
    assert_eq!((late.status, late.code()), (404, "not_found"));
    assert_eq!(volume.trashed(), 1);
}

#[test]
fn every_conflict_has_its_reason() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut conn = daemon.conn();
    assert_eq!(
        conn.call(&volume, "write_file", "k", &json!({"path": "a", "content": "1"}))
            .status,
        200
    );
    for (tool, arguments, reason) in [
        (
            "write_file",
            json!({"path": "a", "content": "2"}),
            "body_mismatch",
        ),
        (
            "write_file",
            json!({"path": "a", "content": "1", "expected_sha256": "absent"}),
            "body_mismatch",
        ),
        (
            "write_file",
            json!({"path": "b", "content": "1"}),
            "path_mismatch",
        ),
        (
            "write_file",
            json!({"path": "../b", "content": "1"}),
            "path_mismatch",
        ),
        ("delete_file", json!({"path": "a"}), "tool_mismatch"),
        ("delete_file", json!({"path": "../a"}), "tool_mismatch"),
    ] {
        let reply = conn.call(&volume, tool, "k", &arguments);
        assert_eq!(
            (reply.status, reply.code(), reply.reason()),
            (409, "replay_conflict", reason),
            "{arguments}"
        );
        assert!(reply.body["execution_id"].is_string());
    }
    let read = conn.call(&volume, "read_file", "", &json!({"path": "a"}));
    assert_eq!(read.body["content"], "1");
}

#[test]
fn an_ended_generation_answers_nothing_but_receipts() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut conn = daemon.conn();
    assert_eq!(
        conn.call(&volume, "write_file", "k", &json!({"path": "a", "content": "1"}))
            .status,
        200
    );
    let path = format!("/v1/admin/volumes/{}/end", volume.generation);
    assert_eq!(home.admin("POST", &path, &json!({"end": "clean"})).status, 200);
    for (tool, key, arguments) in [
        ("write_file", "k", json!({"path": "a", "content": "1"})),
        ("write_file", "n", json!({"path": "../a", "content": "1"})),
        ("read_file", "", json!({"path": "a"})),
        ("list_directory", "", json!({"path": "."})),
        ("read_file", "", Value::Null),
    ] {
        let reply = conn.call(&volume, tool, key, &arguments);
        let got = (reply.status, reply.code(), reply.reason());
        assert_eq!(
            got,
            (409, "replay_conflict", "stale_generation"),
            "{tool} {arguments}"
        );
    }
    let receipt = conn.call(&volume, "get_receipt", "", &json!({"key": "k"}));
    assert_eq!(
        (receipt.status, receipt.body["state"].as_str()),
        (200, Some("done")),
        "{}",
        receipt.body
    );
    let auth = format!("Bearer {}", volume.token);
    let receipt = conn.send("GET", "/v1/receipts/k", &[("authorization", &auth)], b"");
    assert_eq!(receipt.body["result"]["size_bytes"], 1, "{}", receipt.body);
    let other = conn.send("GET", "/v1/receipts/other", &[("authorization", &auth)], b"");
    assert_eq!((other.status, other.code()), (404, "not_found"));
    // A new attempt has a generation, a scope of keys and a disk of its own.
    let next = home.open("job", "process");
    assert_ne!(next.generation, volume.generation);
    let fresh = conn.call(&next, "write_file", "k", &json!({"path": "a", "content": "2"}));
    assert_eq!(
        (
            fresh.status,
            &fresh.body["replayed"],
            &fresh.body["sha256_before"]
        ),
        (200, &json!(false), &Value::Null)
    );
}

#[test]
fn keys_are_checked_by_name() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut conn = daemon.conn();
    let auth = format!("Bearer {}", volume.token);
    let long = "k".repeat(256);
    let cases: &[(&[&str], Value, &str)] = &[
        (&[], json!({}), "missing_idempotency_key"),
        (&["\"\""], json!({}), "invalid_idempotency_key"),
        (&["\"a"], json!({}), "invalid_idempotency_key"),
        (&["a, b"], json!({}), "invalid_idempotency_key"),
        (&[&long], json!({}), "invalid_idempotency_key"),
        (
            &["a"],
            json!({"idempotency_key": "b"}),
            "idempotency_key_mismatch",
        ),
        (&["a", "b"], json!({}), "idempotency_key_mismatch"),
        (&["a"], json!({"idempotency_key": 7}), "invalid_idempotency_key"),
    ];
    for (keys, more, code) in cases {
        let mut headers = vec![("authorization", auth.as_str())];
        headers.extend(keys.iter().map(|key| ("idempotency-key", *key)));
        let mut arguments = json!({"path": "a", "content": "1"});
        arguments
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let reply = conn.send(
            "POST",
            "/v1/tools/write_file",
            &headers,
            arguments.to_string().as_bytes(),
        );
        assert_eq!((reply.status, reply.code()), (400, *code), "{keys:?} {more}");
    }
    let agreed = json!({"path": "a", "content": "1", "idempotency_key": "same"});
    assert_eq!(conn.call(&volume, "write_file", "\"same\"", &agreed).status, 200);
    // A read takes a key and gives it no meaning.
    assert_eq!(
        conn.call(&volume, "read_file", "same", &json!({"path": "a"}))
            .status,
        200
    );
}

#[test]
fn an_empty_body_is_never_a_request() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut conn = daemon.conn();
    assert_eq!(
        conn.call(&volume, "write_file", "k", &json!({"path": "a", "content": "1"}))
            .status,
        200
    );
    let auth = format!("Bearer {}", volume.token);
    let before = home.entries();
    for tool in [
        "write_file",
        "delete_file",
        "read_file",
        "list_directory",
        "get_file_info",
        "get_receipt",
    ] {
        for body in ["", "  \n", "{}", "[]", "null", "\"\"", "{ }"] {
            for key in [Some("k"), None] {
                let mut headers = vec![("authorization", auth.as_str())];
                headers.extend(key.map(|key| ("idempotency-key", key)));
                let reply = conn.send("POST", &format!("/v1/tools/{tool}"), &headers, body.as_bytes());
                assert_eq!(
                    (reply.status, reply.code()),
                    (400, "empty_body_not_replayable"),
                    "{tool} {body:?}"
                );
            }
        }
    }
    let only_key = conn.call(&volume, "write_file", "", &json!({"idempotency_key": "k"}));
    assert_eq!(only_key.code(), "empty_body_not_replayable");
    assert_eq!(home.entries(), before, "an empty body leaves no entry");
}

/// Rows of: method, path, token, key, body, and the code that is met first.
const ORDER: &str = r#"
POST /v1/nowhere           | -    | - |                                                | not_found
POST /v1/tools/no_such     | -    | - |                                                | not_found
PUT  /v1/tools/write_file  | -    | - |                                                | method_not_allowed
POST /v1/tools/write_file  | -    | - |                                                | unauthorized
POST /v1/tools/write_file  | none | - |                                                | unauthorized
POST /v1/tools/write_file  | dead | - |                                                | replay_conflict
POST /v1/tools/write_file  | live | - | {}                                             | empty_body_not_replayable
POST /v1/tools/write_file  | live | - | {not json                                      | missing_idempotency_key
POST /v1/tools/write_file  | live | k | {not json                                      | bad_input
POST /v1/tools/write_file  | live | k | {"path":"/etc/x","content":"1","x":1}          | bad_input
POST /v1/tools/write_file  | live | k | {"path":"a","path":"a","content":"1"}          | bad_input
POST /v1/tools/write_file  | live | k | {"path":"/etc/x","content":"1"}                | replay_conflict
POST /v1/tools/write_file  | live | n | {"path":"/etc/x","content":"1"}                | path_escapes_root
POST /v1/tools/write_file  | live | n | {"path":".git/config","content":"1"}           | path_escapes_root
POST /v1/tools/delete_file | live | n | {"path":"."}                                   | path_escapes_root
POST /v1/tools/write_file  | live | n | {"path":"a","content":"1","expected_sha256":"absent"} | precondition_failed
POST /v1/tools/write_file  | live | n | {"path":"no/a","content":"1"}                  | precondition_failed
"#;

/// Each check is met before the later ones, whatever they would say.
#[test]
fn checks_come_in_one_order() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let ended = home.open("ended", "process");
    let path = format!("/v1/admin/volumes/{}/end", ended.generation);
    assert_eq!(home.admin("POST", &path, &json!({"end": "dirty"})).status, 200);
    let volume = home.open("job", "process");
    let mut conn = daemon.conn();
    let arguments = json!({"path": "a", "content": "1"});
    assert_eq!(conn.call(&volume, "write_file", "k", &arguments).status, 200);
    for row in ORDER.trim().lines() {
        let cells: Vec<&str> = row.split(" | ").map(str::trim).collect();
        let [route, token, key, body, code] = cells[..] else {
            panic!("{row}")
        };
        let (method, path) = route.split_once(' ').unwrap();
        let auth = match token {
            "live" => format!("Bearer {}", volume.token),
            "dead" => format!("Bearer {}", ended.token),
            other => format!("Bearer {other}"),
        };
        let mut headers = Vec::new();
        headers.extend((token != "-").then_some(("authorization", auth.as_str())));
        headers.extend((key != "-").then_some(("idempotency-key", key)));
        let reply = conn.send(method, path.trim(), &headers, body.as_bytes());
        assert_eq!(reply.code(), code, "{row}: {}", reply.body);
        assert_eq!(reply.body["status"], json!(reply.status));
        assert_eq!(reply.header("content-type"), Some("application/problem+json"));
        assert!(reply.header("x-request-id").is_some());
    }
    // A refusal before the intent is not stored: the key is still free.
    let free = conn.call(&volume, "write_file", "n", &json!({"path": "c", "content": "1"}));
    assert_eq!((free.status, &free.body["replayed"]), (200, &json!(false)));
    assert_eq!(volume.staged(), 0);
}

#[test]
fn what_the_framework_refuses_is_a_problem_too() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let auth = format!("Bearer {}", volume.token);
    let mut conn = daemon.conn();
    let wrong = conn.send("GET", "/v1/tools/write_file", &[], b"");
    assert_eq!(
        (wrong.status, wrong.header("allow")),
        (405, Some("POST")),
        "{}",
        wrong.head
    );
    let form = [
        ("authorization", auth.as_str()),
        ("idempotency-key", "k"),
        ("content-type", "text/plain"),
    ];
    let media = conn.send(
        "POST",
        "/v1/tools/write_file",
        &form,
        br#"{"path":"a","content":"1"}"#,
    );
    assert_eq!(
        (media.code(), media.reason()),
        ("bad_input", "unsupported_media_type")
    );
    let big = vec![b' '; (8 << 20) + 1];
    let large = daemon
        .conn()
        .try_send("POST", "/v1/tools/write_file", &form, &big);
    if let Some(large) = large {
        assert_eq!((large.status, large.code()), (413, "too_large"));
    }
    for bytes in [
        "GARBAGE\r\n\r\n",
        "GET / HTTP/1.1\r\nbad header\r\n\r\n",
        "POST /v1/tools/read_file HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    ] {
        let reply = daemon.conn().raw(bytes.as_bytes()).unwrap();
        assert_eq!(
            (reply.status, reply.code()),
            (400, "bad_input"),
            "{bytes:?}: {}",
            reply.head
        );
    }
}

#[test]
fn a_path_that_is_no_text_is_a_problem() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let auth = format!("Bearer {}", volume.token);
    let form = [("authorization", auth.as_str()), ("idempotency-key", "k")];
    let mut conn = daemon.conn();
    for path in [
        "/v1/tools/%ff",
        "/v1/receipts/%ff",
        "/v1/executions/%ff/output/stdout",
        "/v1/admin/volumes/%ff/end",
        "/v1/admin/executions/%ff/undo",
    ] {
        let method = if path.contains("receipts") || path.contains("output") {
            "GET"
        } else {
            "POST"
        };
        let reply = if path.contains("admin") {
            home.admin(method, path, &json!({}))
        } else {
            conn.send(method, path, &form, b"{}")
        };
        assert_eq!(
            (reply.status, reply.code(), reply.header("content-type")),
            (400, "bad_input", Some("application/problem+json")),
            "{path}: {}",
            reply.body
        );
    }
}

#[test]
fn while_the_first_runs_others_wait_or_are_told() {
    let home = Home::new();
    let daemon = home.serve(&["--pause-at", "begun:700"]);
    let volume = home.open("job", "process");
    let arguments = json!({"path": "a", "content": "1"});
    let url = daemon.url.clone();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Conn::tcp(&url).call(&volume, "write_file", "k", &arguments));
        std::thread::sleep(Duration::from_millis(250));
        let auth = format!("Bearer {}", volume.token);
        let headers = [
            ("authorization", auth.as_str()),
            ("idempotency-key", "k"),
            ("prefer", "wait=0"),
        ];
        let since = Instant::now();
        let told = Conn::tcp(&url).send(
            "POST",
            "/v1/tools/write_file",
            &headers,
            arguments.to_string().as_bytes(),
        );
        assert_eq!(
            (told.status, told.code()),
            (409, "call_in_flight"),
            "{}",
            told.body
        );
        assert_eq!(told.header("retry-after"), Some("1"));
        assert!(since.elapsed() < Duration::from_millis(350));
        let other = json!({"path": "a", "content": "2"});
        let conflict = Conn::tcp(&url).call(&volume, "write_file", "k", &other);
        assert_eq!(
            conflict.reason(),
            "body_mismatch",
            "a conflict is seen before the wait"
        );
        let waiters: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| Conn::tcp(&url).call(&volume, "write_file", "k", &arguments)))
            .collect();
        let first = first.join().unwrap();
        assert_eq!((first.status, &first.body["replayed"]), (200, &json!(false)));
        for waiter in waiters {
            let reply = waiter.join().unwrap();
            assert_eq!(
                (reply.status, &reply.body["replayed"]),
                (200, &json!(true)),
                "{}",
                reply.body
            );
            assert_eq!(reply.body["execution_id"], first.body["execution_id"]);
        }
    });
}

#[test]
fn a_client_that_goes_away_after_the_intent_changes_nothing() {
    let home = Home::new();
    let held = home.path().join("held");
    let daemon = home.serve(&["--hold-at", &format!("begun={}", held.display())]);
    let volume = home.open("job", "process");
    let arguments = json!({"path": "a", "content": "1"}).to_string();
    let auth = format!("Bearer {}", volume.token);
    let head = format!(
        "POST /v1/tools/write_file HTTP/1.1\r\nhost: x\r\nauthorization: {auth}\r\nidempotency-key: k\r\ncontent-length: {}\r\n\r\n{arguments}",
        arguments.len()
    );
    use std::io::Write as _;
    let mut stream = std::net::TcpStream::connect(daemon.url.strip_prefix("http://").unwrap()).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    assert!(wait_until(LONG, || held.exists()));
    drop(stream);
    std::fs::remove_file(&held).unwrap();
    let again = daemon
        .conn()
        .call(&volume, "write_file", "k", &json!({"path": "a", "content": "1"}));
    assert_eq!(
        (again.status, &again.body["replayed"]),
        (200, &json!(true)),
        "{}",
        again.body
    );
}

#[test]
fn only_the_operator_administers() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let operator = std::fs::read_to_string(home.state().join("operator.token")).unwrap();
    let (operator, job) = (
        format!("Bearer {}", operator.trim()),
        format!("Bearer {}", volume.token),
    );
    let unix = || std::os::unix::net::UnixStream::connect(home.state().join("semel.sock")).unwrap();
    for path in [
        "/v1/admin/status",
        "/v1/admin/journal",
        "/v1/admin/shutdown",
        "/v1/admin/approvals/1",
        "/v1/admin/volumes",
        "/v1/admin/x",
    ] {
        for method in ["GET", "POST"] {
            for auth in [None, Some(operator.as_str()), Some(job.as_str())] {
                let headers: Vec<_> = auth.map(|auth| ("authorization", auth)).into_iter().collect();
                let reply = daemon.conn().send(method, path, &headers, b"{}");
                assert_eq!(
                    (reply.status, reply.code()),
                    (401, "unauthorized"),
                    "tcp {method} {path}"
                );
                if auth != Some(operator.as_str()) {
                    let reply = Conn::over(unix()).send(method, path, &headers, b"{}");
                    assert_eq!(
                        (reply.status, reply.code()),
                        (401, "unauthorized"),
                        "unix {method} {path}"
                    );
                }
            }
        }
    }
    let decided = home.admin("POST", "/v1/admin/approvals/1", &json!({"decision": "approve"}));
    assert_eq!((decided.status, decided.code()), (404, "not_found"));
    use std::os::unix::fs::PermissionsExt as _;
    for (name, mode) in [("operator.token", 0o600), ("semel.sock", 0o600), (".", 0o700)] {
        let facts = std::fs::metadata(home.state().join(name)).unwrap();
        assert_eq!(facts.permissions().mode() & 0o777, mode, "{name}");
    }
}

#[test]
fn sixty_four_clients_lose_nothing() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let url = daemon.url.clone();
    std::thread::scope(|scope| {
        for client in 0..64 {
            let (url, volume) = (&url, &volume);
            scope.spawn(move || {
                let mut conn = Conn::tcp(url);
                for n in 0..5 {
                    let (key, path) = (format!("{client}-{n}"), format!("f{}", client % 8));
                    let arguments = json!({"path": path, "content": key});
                    let first = conn.call(volume, "write_file", &key, &arguments);
                    assert_eq!(
                        (first.status, &first.body["replayed"]),
                        (200, &json!(false)),
                        "{}",
                        first.body
                    );
                    let again = conn.call(volume, "write_file", &key, &arguments);
                    assert_eq!(again.body["replayed"], true);
                }
            });
        }
    });
    // Each of the 320 writes replaced exactly one pre-image, but for the first of each of the 8 files.
    assert_eq!(volume.trashed(), 320 - 8);
    assert_eq!(volume.staged(), 0);
    drop(daemon);
    let report = home.json(&["log", "verify"]);
    assert_eq!(report["report"]["faults"], json!([]));
}

#[test]
fn a_volume_takes_a_copy_of_a_directory() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let from = home.path().join("from");
    std::fs::create_dir_all(from.join("sub/.git")).unwrap();
    std::fs::write(from.join("sub/f"), "x").unwrap();
    let volume = home.open_with(&json!({"job": "job", "from": from}));
    let mut conn = daemon.conn();
    let listed = conn.call(&volume, "list_directory", "", &json!({"path": "sub"}));
    assert_eq!(
        listed.body["entries"],
        json!([{"name": "f", "type": "file", "size_bytes": 1}])
    );
    let info = conn.call(&volume, "get_file_info", "", &json!({"path": "sub/f"}));
    assert_eq!(
        (info.body["type"].as_str(), info.body["size_bytes"].as_u64()),
        (Some("file"), Some(1)),
        "{}",
        info.body
    );
    let busy = home.admin("POST", "/v1/admin/volumes", &json!({"job": "job"}));
    assert_eq!((busy.status, busy.code()), (409, "volume_busy"));
}
