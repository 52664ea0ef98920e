//! Tokens that a job gives out: narrower ones alone, with keys of their own, retired with the generation.

use crate::harness::{Daemon, Home, Reply, Volume};
use serde_json::{Value, json};

fn issue(daemon: &Daemon, token: &str, wanted: &Value) -> Reply {
    let auth = format!("Bearer {token}");
    let body = wanted.to_string();
    daemon
        .conn()
        .send("POST", "/v1/tokens", &[("authorization", &auth)], body.as_bytes())
}

fn with(volume: &Volume, reply: &Reply) -> Volume {
    assert_eq!(reply.status, 200, "{}", reply.body);
    Volume {
        token: reply.body["token"].as_str().unwrap().to_owned(),
        ..volume.clone()
    }
}

fn told(reply: &Reply) -> (u16, String, String) {
    (reply.status, reply.code().to_owned(), reply.reason().to_owned())
}

fn refused(status: u16, code: &str, reason: &str) -> (u16, String, String) {
    (status, code.to_owned(), reason.to_owned())
}

#[test]
fn a_part_gets_no_more_than_the_whole_has() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let reader = with(
        &volume,
        &issue(
            &daemon,
            &volume.token,
            &json!({"tools": ["read_file", "list_directory"], "name": "reader"}),
        ),
    );
    let write = json!({"path": "f", "content": "x"});
    assert_eq!(daemon.conn().call(&volume, "write_file", "k", &write).status, 200);
    assert_eq!(
        daemon
            .conn()
            .call(&reader, "read_file", "", &json!({"path": "f"}))
            .status,
        200
    );
    let denied = daemon.conn().call(&reader, "write_file", "k", &write);
    assert_eq!(told(&denied), refused(403, "denied", "tool_not_granted"));
    for (wanted, why) in [
        (
            json!({"tools": ["write_file"]}),
            refused(403, "denied", "wider_tools"),
        ),
        (json!({"tools": ["no_such_tool"]}), refused(404, "not_found", "")),
        (json!({"name": "a/b"}), refused(400, "bad_input", "")),
        (
            json!({"name": "x", "principal": "y"}),
            refused(400, "bad_input", ""),
        ),
        (json!({}), refused(400, "empty_body_not_replayable", "")),
        // Other spellings, which no schema has: each would be a token for everything that the parent may.
        (json!([null, null]), refused(400, "bad_input", "wrong_type")),
        (
            json!([["read_file"], "x"]),
            refused(400, "bad_input", "wrong_type"),
        ),
        (json!({"tools": null}), refused(400, "bad_input", "wrong_type")),
        (
            json!({"tools": ["read_file"], "name": null}),
            refused(400, "bad_input", "wrong_type"),
        ),
        (json!({"name": "x".repeat(61)}), refused(400, "bad_input", "")),
        (json!({"name": ""}), refused(400, "bad_input", "")),
    ] {
        assert_eq!(told(&issue(&daemon, &reader.token, &wanted)), why, "{wanted}");
    }
    assert_eq!(issue(&daemon, "", &json!({"name": "x"})).status, 401);
    let long = json!({"name": "x".repeat(60)});
    let named = with(&volume, &issue(&daemon, &volume.token, &long));
    let longer = issue(&daemon, &named.token, &long);
    assert_eq!(told(&longer), refused(413, "too_large", ""));
    let grandchild = with(
        &reader,
        &issue(&daemon, &reader.token, &json!({"tools": ["read_file"]})),
    );
    assert_eq!(
        daemon
            .conn()
            .call(&grandchild, "read_file", "", &json!({"path": "f"}))
            .status,
        200
    );
    let other = daemon
        .conn()
        .call(&grandchild, "list_directory", "", &json!({"path": "."}));
    assert_eq!(told(&other), refused(403, "denied", "tool_not_granted"));
}

#[test]
fn the_keys_of_a_part_are_its_own_and_end_with_the_generation() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let part = with(&volume, &issue(&daemon, &volume.token, &json!({"name": "part"})));
    let twin = with(
        &volume,
        &issue(&daemon, &volume.token, &json!({"tools": ["write_file"]})),
    );
    let first = daemon
        .conn()
        .call(&volume, "write_file", "k", &json!({"path": "f", "content": "1"}));
    assert_eq!((first.status, &first.body["replayed"]), (200, &json!(false)));
    // A token without a name of its own speaks for the same principal: the same key is the same call.
    let same = daemon
        .conn()
        .call(&twin, "write_file", "k", &json!({"path": "f", "content": "1"}));
    assert_eq!(
        (same.status, &same.body["replayed"]),
        (200, &json!(true)),
        "{}",
        same.body
    );
    let apart = daemon
        .conn()
        .call(&part, "write_file", "k", &json!({"path": "g", "content": "2"}));
    assert_eq!(
        (apart.status, &apart.body["replayed"]),
        (200, &json!(false)),
        "{}",
        apart.body
    );
    daemon.kill();
    let daemon = home.serve(&[]);
    let again = daemon
        .conn()
        .call(&part, "write_file", "k", &json!({"path": "g", "content": "2"}));
    assert_eq!(
        (again.status, &again.body["replayed"]),
        (200, &json!(true)),
        "a restarted daemon knows it"
    );
    assert!(home.run(&["volume", "end", &volume.generation]).status.success());
    let late = daemon.conn().call(&part, "read_file", "", &json!({"path": "g"}));
    assert_eq!(told(&late), refused(409, "replay_conflict", "stale_generation"));
    let more = issue(&daemon, &part.token, &json!({"name": "x"}));
    assert_eq!(told(&more), refused(409, "replay_conflict", "stale_generation"));
    assert_eq!(home.json(&["check"])["report"]["faults"], json!([]));
}

#[test]
fn a_job_gives_out_a_token_by_command() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut command = home.command(&["token", "--tools", "read_file", "--name", "reader"]);
    let out = command.env("SEMEL_TOKEN", &volume.token).output().unwrap();
    assert!(out.status.success(), "{}", crate::harness::said(&out));
    let reader = Volume {
        token: String::from_utf8(out.stdout).unwrap().trim().to_owned(),
        ..volume.clone()
    };
    let denied = daemon
        .conn()
        .call(&reader, "delete_file", "k", &json!({"path": "f"}));
    assert_eq!(told(&denied), refused(403, "denied", "tool_not_granted"));
    let nothing = home
        .command(&["token"])
        .env("SEMEL_TOKEN", &volume.token)
        .output()
        .unwrap();
    assert_eq!(nothing.status.code(), Some(64));
}

/// Who may not ask is told so before a byte of the body is waited for.
#[test]
fn the_body_is_not_read_before_the_token() {
    let home = Home::new();
    let daemon = home.serve(&["--hasten", "100"]);
    let volume = home.open("job", "process");
    home.json(&["volume", "end", &volume.generation]);
    for (auth, wanted) in [
        (String::new(), refused(401, "unauthorized", "")),
        (
            "authorization: Bearer x\r\n".to_owned(),
            refused(401, "unauthorized", ""),
        ),
        (
            format!("authorization: Bearer {}\r\n", volume.token),
            refused(409, "replay_conflict", "stale_generation"),
        ),
    ] {
        for length in [50, 100_000] {
            let head = format!(
                "POST /v1/tokens HTTP/1.1\r\nhost: semel\r\n{auth}content-length: {length}\r\n\r\n{{"
            );
            let reply = daemon.conn().raw(head.as_bytes()).unwrap();
            assert_eq!(told(&reply), wanted, "{length}: {}", reply.body);
        }
    }
}
