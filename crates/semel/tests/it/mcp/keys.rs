//! The key of a call by every carrier, and what comes of carriers that disagree.

use super::{LEGACY, MODERN, Raw, content, scene};
use crate::harness::{Home, LONG, Reply, wait_until};
use serde_json::{Value, json};

/// Makes the parameters of a write with a key in some carriers.
fn write(path: &str, content: &str, carriers: &[(&str, Value)]) -> (Value, Vec<(String, String)>) {
    let mut params = json!({"name": "write_file", "arguments": {"path": path, "content": content}});
    let mut headers = Vec::new();
    for (carrier, key) in carriers {
        match *carrier {
            "meta" => params["_meta"]["dev.semel/idempotencyKey"] = key.clone(),
            "params" => params["idempotencyKey"] = key.clone(),
            "argument" => params["arguments"]["idempotency_key"] = key.clone(),
            "alias" => params["arguments"]["idempotencyKey"] = key.clone(),
            _ => headers.push(("idempotency-key".to_owned(), key.as_str().unwrap().to_owned())),
        }
    }
    (params, headers)
}

fn sent(raw: &mut Raw, version: &str, call: &(Value, Vec<(String, String)>)) -> Reply {
    let more: Vec<(&str, &str)> = call.1.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    if version == MODERN {
        return raw.modern_with("tools/call", &call.0, &more);
    }
    let body = raw.request("tools/call", &call.0);
    raw.post(
        &[&[("mcp-protocol-version", version)], &more[..]].concat(),
        body.as_bytes(),
    )
}

/// Gives the wire name of a refusal, in either face.
fn named(reply: &Reply) -> &str {
    let in_error = reply.body["error"]["data"]["type"].as_str();
    let in_result = reply.body["result"]["structuredContent"]["error"]["type"].as_str();
    in_error.or(in_result).unwrap_or_default()
}

#[test]
fn every_carrier_carries_the_same_key() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let carriers = ["meta", "params", "header", "argument", "alias"];
    for version in [LEGACY, "2025-06-18", MODERN] {
        for (n, first) in carriers.iter().enumerate() {
            let key = json!(format!("{version}-{n}"));
            let path = format!("{version}-{n}");
            let reply = sent(&mut raw, version, &write(&path, "1", &[(first, key.clone())]));
            assert_eq!(
                reply.body["result"]["structuredContent"]["replayed"], false,
                "{first}: {}",
                reply.body
            );
            // Whichever carries it the next time, and all of them at once, it is the same call.
            for again in carriers {
                let reply = sent(&mut raw, version, &write(&path, "1", &[(again, key.clone())]));
                let told = &reply.body["result"]["structuredContent"];
                assert_eq!(
                    (&told["replayed"], &told["idempotency_key"]),
                    (&json!(true), &key),
                    "{first} {again}"
                );
            }
            let all: Vec<(&str, Value)> = carriers.iter().map(|c| (*c, key.clone())).collect();
            let reply = sent(&mut raw, version, &write(&path, "1", &all));
            assert_eq!(
                reply.body["result"]["structuredContent"]["replayed"], true,
                "{}",
                reply.body
            );
        }
    }
    // The header has two forms of one key; the others are text as it is.
    let quoted = write("q", "1", &[("header", json!("\"q\"")), ("meta", json!("q"))]);
    assert_eq!(sent(&mut raw, LEGACY, &quoted).body["result"]["isError"], false);
}

#[test]
fn carriers_that_disagree_are_refused() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let carriers = ["meta", "params", "header", "argument"];
    for version in [LEGACY, MODERN] {
        for one in carriers {
            for other in carriers.iter().filter(|other| **other != one) {
                let call = write("a", "1", &[(one, json!("k1")), (other, json!("k2"))]);
                let reply = sent(&mut raw, version, &call);
                assert_eq!(
                    named(&reply),
                    "idempotency_key_mismatch",
                    "{one} {other}: {}",
                    reply.body
                );
                assert_eq!(reply.body["error"]["code"], 40010);
            }
        }
        for wrong in [
            json!(7),
            json!(""),
            json!("a b"),
            json!(null),
            json!("\u{e4}"),
            json!("x".repeat(256)),
        ] {
            for carrier in ["meta", "params", "argument"] {
                let reply = sent(&mut raw, LEGACY, &write("a", "1", &[(carrier, wrong.clone())]));
                assert_eq!(
                    named(&reply),
                    "invalid_idempotency_key",
                    "{carrier} {wrong}: {}",
                    reply.body
                );
            }
        }
    }
    assert_eq!(content(&volume, "a"), None);
}

/// A header that says again what the argument says has to say it, and one without the argument is believed in nothing.
#[test]
fn a_header_that_says_the_argument_again_has_to_say_it() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let call =
        json!({"name": "write_file", "arguments": {"path": "a", "content": "1", "idempotency_key": "k"}});
    let mut whole = call.clone();
    whole["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}});
    let base = [
        ("mcp-protocol-version", MODERN),
        ("mcp-method", "tools/call"),
        ("mcp-name", "write_file"),
    ];
    for (mirrored, status) in [
        (&[][..], 400),
        (&[("mcp-param-idempotency-key", "other")], 400),
        (&[("mcp-param-idempotency-key", "=?base64?aw?=")], 400),
        (
            &[
                ("mcp-param-idempotency-key", "k"),
                ("mcp-param-idempotency-key", "k"),
            ],
            400,
        ),
        (&[("mcp-param-idempotency-key", "=?base64?aw==?=")], 200),
    ] {
        let body = raw.request("tools/call", &whole);
        let reply = raw.post(&[&base[..], mirrored].concat(), body.as_bytes());
        assert_eq!(reply.status, status, "{mirrored:?}: {}", reply.body);
        if status == 400 {
            assert_eq!(reply.body["error"]["code"], -32020);
            assert_eq!(content(&volume, "a"), None);
        }
    }
    whole["arguments"]
        .as_object_mut()
        .unwrap()
        .remove("idempotency_key");
    let body = raw.request("tools/call", &whole);
    let reply = raw.post(
        &[&base[..], &[("mcp-param-idempotency-key", "k")]].concat(),
        body.as_bytes(),
    );
    assert_eq!(
        (reply.status, &reply.body["error"]["code"]),
        (400, &json!(-32020))
    );
}

/// The id of a message, a progress token, another vendor's key and the connection are no keys.
#[test]
fn nothing_else_is_a_key() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let mut params = write("a", "1", &[]).0;
    params["_meta"] = json!({"progressToken": "k", "com.example/idempotencyKey": "k"});
    params["requestState"] = json!("k");
    let reply = raw.legacy("tools/call", &params);
    assert_eq!(named(&reply), "missing_idempotency_key", "{}", reply.body);
    // One id twice is two requests; one key twice is one effect.
    let call = write("a", "1", &[("meta", json!("k"))]).0;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).to_string();
    let versions = [("mcp-protocol-version", LEGACY)];
    let replies = [
        raw.post(&versions, body.as_bytes()),
        raw.post(&versions, body.as_bytes()),
    ];
    let replayed: Vec<&Value> = replies
        .iter()
        .map(|r| &r.body["result"]["structuredContent"]["replayed"])
        .collect();
    assert_eq!(replayed, [&json!(false), &json!(true)]);
}

/// Who made the key is told of it: an error where it was the program, a result where it was the model.
#[test]
fn a_conflict_reaches_whoever_made_the_key() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    assert_eq!(
        sent(&mut raw, LEGACY, &write("a", "1", &[("meta", json!("k"))])).status,
        200
    );
    for version in [LEGACY, MODERN] {
        for carrier in ["meta", "params", "header"] {
            let reply = sent(&mut raw, version, &write("a", "2", &[(carrier, json!("k"))]));
            let error = &reply.body["error"];
            assert_eq!(
                (reply.status, &error["code"]),
                (200, &json!(40912)),
                "{}",
                reply.body
            );
            assert_eq!(error["data"]["type"], "replay_conflict");
            assert_eq!(
                (&error["data"]["reason"], &error["data"]["retry"]),
                (&json!("body_mismatch"), &json!("never"))
            );
            assert!(error["data"]["execution_id"].is_string());
        }
        let reply = sent(&mut raw, version, &write("a", "2", &[("argument", json!("k"))]));
        assert_eq!(reply.body["result"]["isError"], true, "{}", reply.body);
        assert_eq!(named(&reply), "replay_conflict");
    }
    assert_eq!(content(&volume, "a").as_deref(), Some("1"));
}

/// One gateway has two doors: what was done through one is known at the other.
#[test]
fn a_call_through_the_other_door_is_the_same_call() {
    let (home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let arguments = json!({"path": "a", "content": "1"});
    let http = daemon.conn().call(&volume, "write_file", "k", &arguments);
    assert_eq!(http.body["replayed"], false, "{}", http.body);
    let mcp = raw.modern("tools/call", &write("a", "1", &[("meta", json!("k"))]).0);
    let told = &mcp.body["result"]["structuredContent"];
    assert_eq!(
        (&told["replayed"], &told["execution_id"]),
        (&json!(true), &http.body["execution_id"])
    );
    raw.legacy("tools/call", &write("b", "1", &[("argument", json!("l"))]).0);
    let http = daemon
        .conn()
        .call(&volume, "write_file", "l", &json!({"path": "b", "content": "1"}));
    assert_eq!(http.body["replayed"], true, "{}", http.body);
    let doors: Vec<String> = home
        .lines(&["log", "--key", "k"])
        .iter()
        .map(|line| line["door"].to_string())
        .collect();
    assert!(
        doors.contains(&"\"http\"".to_owned()) && doors.contains(&"\"mcp\"".to_owned()),
        "{doors:?}"
    );
}

/// Sixteen at once, in all revisions, under one key: one effect, and everybody has its answer.
#[test]
fn a_crowd_under_one_key_has_one_effect() {
    let (_home, daemon, volume) = scene();
    std::fs::write(volume.tree.join("a"), "1").unwrap();
    let params = json!({
        "name": "edit_file",
        "arguments": {"path": "a", "old_string": "1", "new_string": "11", "replace_all": true},
        "idempotencyKey": "k",
    });
    let callers: Vec<_> = (0..16)
        .map(|n| {
            let (mut raw, params) = (Raw::new(&daemon, &volume), params.clone());
            std::thread::spawn(move || match n % 2 {
                0 => raw.legacy("tools/call", &params),
                _ => raw.modern("tools/call", &params),
            })
        })
        .collect();
    let told: Vec<Value> = callers
        .into_iter()
        .map(|caller| caller.join().unwrap().body["result"]["structuredContent"].clone())
        .collect();
    let fresh = told.iter().filter(|told| told["replayed"] == false).count();
    let replayed = told.iter().filter(|told| told["replayed"] == true).count();
    assert_eq!((fresh, replayed), (1, 15), "{told:?}");
    assert_eq!(content(&volume, "a").as_deref(), Some("11"));
}

/// A call that waits for a person is a result that says so, and runs once when it was decided.
#[test]
fn a_call_that_waits_for_a_person_says_so() {
    let home = Home::new();
    let rule = "[[rule]]\npaths = [\"**\"]\ntools = [\"delete_file\"]\nanswer = \"ask\"\n";
    let place = crate::policy::write(&home, rule);
    let config = home.path().join("config.toml");
    let said = format!(
        "policy = \"{}\"\napprovals_without_confinement = true\n",
        place.display()
    );
    std::fs::write(&config, said).unwrap();
    let daemon = home.serve(&["--config", config.to_str().unwrap()]);
    let volume = home.open("job", "process");
    std::fs::write(volume.tree.join("a"), "1").unwrap();
    let mut raw = Raw::new(&daemon, &volume);
    let params = json!({"name": "delete_file", "arguments": {"path": "a"}, "idempotencyKey": "k"});
    let reply = raw.modern("tools/call", &params);
    let error = &reply.body["result"]["structuredContent"]["error"];
    assert_eq!(
        (reply.status, &reply.body["result"]["isError"]),
        (200, &json!(true)),
        "{}",
        reply.body
    );
    assert_eq!(
        (&error["type"], &error["executed"]),
        (&json!("approval_required"), &json!(false))
    );
    assert_eq!(
        (&error["status"], &error["retry"]),
        (&json!(202), &json!("same_key"))
    );
    assert!(error["approval_id"].is_string() && content(&volume, "a").is_some());
    let place = format!("/v1/admin/approvals/{}", error["approval_id"].as_str().unwrap());
    let decided = home.admin("POST", &place, &json!({"decision": "approve", "by": "ada"}));
    assert_eq!(decided.status, 200, "{}", decided.body);
    for replayed in [false, true] {
        let reply = raw.modern("tools/call", &params);
        assert_eq!(
            reply.body["result"]["structuredContent"]["replayed"], replayed,
            "{}",
            reply.body
        );
    }
    assert_eq!(content(&volume, "a"), None);
}

/// While the first one runs, the same call waits for its receipt, or is told at once where it says so.
#[test]
fn a_call_under_way_is_told_of() {
    let (_home, daemon, volume) = scene();
    let call = json!({
        "name": "run_command",
        "arguments": {"command": "touch began; while [ ! -e go ]; do sleep 0.05; done; echo ran >>log"},
        "idempotencyKey": "c",
    });
    let first = {
        let mut raw = Raw::new(&daemon, &volume);
        let call = call.clone();
        std::thread::spawn(move || raw.legacy("tools/call", &call))
    };
    assert!(wait_until(LONG, || volume.tree.join("began").exists()));
    let mut raw = Raw::new(&daemon, &volume);
    let reply = raw.modern_with("tools/call", &call, &[("prefer", "wait=0")]);
    let error = &reply.body["error"];
    assert_eq!(
        (reply.status, &error["code"]),
        (200, &json!(40913)),
        "{}",
        reply.body
    );
    assert_eq!(
        (&error["data"]["type"], &error["data"]["retry"]),
        (&json!("call_in_flight"), &json!("same_key"))
    );
    assert_eq!(error["data"]["retry_after_ms"], 1000);
    std::fs::write(volume.tree.join("go"), "").unwrap();
    assert_eq!(
        first.join().unwrap().body["result"]["structuredContent"]["replayed"],
        false
    );
    let reply = raw.modern("tools/call", &call);
    assert_eq!(
        reply.body["result"]["structuredContent"]["replayed"], true,
        "{}",
        reply.body
    );
    assert_eq!(content(&volume, "log").as_deref(), Some("ran\n"));
}

/// Killed between effect and reply, the daemon answers the same call, sent anew under another id, from its record.
#[test]
fn a_retry_after_a_kill_has_no_second_effect() {
    let home = Home::new();
    let mut daemon = home.serve(&["--crash-at", "receipted"]);
    let volume = home.open("job", "process");
    let mut raw = Raw::new(&daemon, &volume);
    let params = json!({
        "name": "edit_file",
        "arguments": {"path": "a", "old_string": "1", "new_string": "11"},
        "idempotencyKey": "k",
    });
    std::fs::write(volume.tree.join("a"), "1").unwrap();
    let body = raw.request("tools/call", &params);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nmcp-protocol-version: {LEGACY}\r\ncontent-length: {}\r\n\r\n{body}",
        volume.token,
        body.len()
    );
    assert!(
        raw.conn.raw(head.as_bytes()).is_none(),
        "killed before it answered"
    );
    assert!(daemon.ended(LONG).is_some());
    assert_eq!(content(&volume, "a").as_deref(), Some("11"));
    let daemon = home.serve(&[]);
    let mut raw = Raw::new(&daemon, &volume);
    raw.id = 100;
    let reply = raw.legacy("tools/call", &params);
    assert_eq!(
        reply.body["result"]["structuredContent"]["replayed"], true,
        "{}",
        reply.body
    );
    assert_eq!(content(&volume, "a").as_deref(), Some("11"));
}
