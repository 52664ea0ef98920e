//! What a server that behaves is guarded by: keys, records, conflicts, policy, tokens.

use super::{Client, Scene, execution, params, refused, replayed};
use crate::harness::{LONG, wait_until};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};

#[test]
fn its_tools_are_listed_beside_ours_and_each_says_all_four_hints() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let tools = Client::new(&daemon, &volume).tools();
    let named = |name: &str| {
        tools
            .iter()
            .find(|tool| tool["name"] == name)
            .expect("it is listed")
    };
    let note = named("fake__note");
    assert_eq!(note["annotations"]["readOnlyHint"], false);
    assert_eq!(note["description"], "does note");
    assert_eq!(
        note["inputSchema"]["properties"]["idempotency_key"]["type"],
        "string"
    );
    assert_eq!(note["outputSchema"]["anyOf"][0]["required"], json!(["count"]));
    let look = named("fake__look");
    assert_eq!(look["annotations"]["readOnlyHint"], true);
    assert_eq!(look["inputSchema"]["properties"].get("idempotency_key"), None);
    assert!(
        tools
            .iter()
            .any(|tool| tool["name"].as_str().unwrap().starts_with("fake__odd_name_here_"))
    );
    named("write_file");
    for tool in &tools {
        for hint in [
            "readOnlyHint",
            "destructiveHint",
            "idempotentHint",
            "openWorldHint",
        ] {
            assert!(tool["annotations"][hint].is_boolean(), "{tool}: {hint}");
        }
    }
}

#[test]
fn a_call_is_done_once_and_then_answered_from_the_record() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    let first = client.note("k-1", "");
    assert_eq!(replayed(&first), Some(false), "{}", first.body);
    assert_eq!(first.body["result"]["structuredContent"], json!({"count": 1}));
    assert_eq!(first.body["result"]["_meta"]["theirs"], 1);
    assert_eq!(first.body["result"]["_meta"]["dev.semel/upstream"], "fake");
    for _ in 0..3 {
        // Over another connection, under another id.
        let mut other = Client::new(&daemon, &volume);
        other.id = 1000;
        let again = other.note("k-1", "");
        assert_eq!(replayed(&again), Some(true), "{}", again.body);
        assert_eq!(again.header("idempotency-replayed"), Some("true"));
        assert_eq!(again.body["result"]["structuredContent"], json!({"count": 1}));
        assert_eq!(execution(&again), execution(&first));
        assert!(
            again.body["result"]["content"][1]["text"]
                .as_str()
                .unwrap()
                .contains("Replayed")
        );
    }
    assert_eq!(scene.effects(), 1);
    // The same call under another key is another call.
    assert_eq!(replayed(&client.note("k-2", "")), Some(false));
    assert_eq!(scene.effects(), 2);
    // Its receipt is told as any other.
    let receipt = client.call("get_receipt", None, &json!({"key": "k-1"}));
    let told = &receipt.body["result"]["structuredContent"];
    assert_eq!(
        (&told["state"], &told["tool"]),
        (&json!("done"), &json!("fake__note"))
    );
    assert_eq!(told["result"]["answer"]["structuredContent"], json!({"count": 1}));
}

#[test]
fn the_key_may_stand_wherever_it_may_of_our_own_tools() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    let arguments = json!({"text": "a"});
    client.call("fake__note", Some("k"), &arguments);
    let by_argument = client.call("fake__note", None, &json!({"text": "a", "idempotency_key": "k"}));
    let by_header = client.try_ask(
        "tools/call",
        &params("fake__note", None, &arguments),
        &[("idempotency-key", "\"k\"")],
    );
    let mut by_params = params("fake__note", None, &arguments);
    by_params["idempotencyKey"] = json!("k");
    let by_params = client.ask("tools/call", &by_params);
    for reply in [by_argument, by_header.unwrap(), by_params] {
        assert_eq!(replayed(&reply), Some(true), "{}", reply.body);
    }
    let both = client.call(
        "fake__note",
        Some("x"),
        &json!({"text": "a", "idempotency_key": "y"}),
    );
    assert_eq!(refused(&both), "idempotency_key_mismatch");
    assert_eq!(
        refused(&client.call("fake__note", None, &arguments)),
        "missing_idempotency_key"
    );
    assert_eq!(scene.effects(), 1);
    // The key was for us: the tool does not take it.
    assert_eq!(scene.seen()[0]["arguments"], arguments);
}

#[test]
fn another_call_under_a_known_key_is_a_conflict() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    client.note("k", "");
    let other_body = client.call("fake__note", Some("k"), &json!({"text": "another"}));
    assert_eq!(refused(&other_body), "replay_conflict");
    assert_eq!(other_body.body["error"]["code"], 40912);
    assert_eq!(other_body.body["error"]["data"]["reason"], "body_mismatch");
    let ours = client.call("write_file", Some("k"), &json!({"path": "a", "content": "1"}));
    assert_eq!(ours.body["error"]["data"]["reason"], "tool_mismatch");
    client.call("write_file", Some("w"), &json!({"path": "a", "content": "1"}));
    assert_eq!(
        client.note("w", "").body["error"]["data"]["reason"],
        "tool_mismatch"
    );
    assert_eq!(scene.effects(), 1);
}

#[test]
fn a_duplicate_waits_and_is_told_that_the_first_one_runs() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let call = params("fake__note", Some("k"), &json!({"text": "k", "how": "late"}));
    let mut first = Client::new(&daemon, &volume);
    first.write("tools/call", &call, &[]).unwrap();
    scene.wait_for("late");
    let mut second = Client::new(&daemon, &volume);
    let told = second
        .try_ask("tools/call", &call, &[("prefer", "wait=0")])
        .unwrap();
    assert_eq!(refused(&told), "call_in_flight", "{}", told.body);
    // Another body is a conflict, not a reason to wait.
    assert_eq!(refused(&second.note("k", "")), "replay_conflict");
    let mut waiting: Vec<Client> = (0..4).map(|_| Client::new(&daemon, &volume)).collect();
    for client in &mut waiting {
        client
            .write("tools/call", &call, &[("prefer", "wait=60")])
            .unwrap();
    }
    scene.let_go("late");
    assert_eq!(replayed(&first.conn.receive("POST").unwrap()), Some(false));
    for mut client in waiting {
        let reply = client.conn.receive("POST").unwrap();
        assert_eq!(replayed(&reply), Some(true), "{}", reply.body);
    }
    assert_eq!(scene.effects(), 1);
}

/// Whoever goes away ends nothing: the call runs to its receipt.
#[test]
fn a_client_that_goes_away_finds_its_answer() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let call = params("fake__note", Some("k"), &json!({"text": "k", "how": "late"}));
    let mut first = Client::new(&daemon, &volume);
    first.write("tools/call", &call, &[]).unwrap();
    scene.wait_for("late");
    drop(first);
    scene.let_go("late");
    let mut second = Client::new(&daemon, &volume);
    let reply = second
        .try_ask("tools/call", &call, &[("prefer", "wait=60")])
        .unwrap();
    assert_eq!(replayed(&reply), Some(true), "{}", reply.body);
    assert_eq!(scene.effects(), 1);
}

#[test]
fn errors_of_the_server_are_its_answers_and_replay() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    for again in [false, true] {
        let told = client.note("e", "error");
        assert_eq!(told.body["error"]["code"], -32050, "{}", told.body);
        assert_eq!(told.body["error"]["data"]["data"]["count"], 1);
        assert_eq!(told.body["error"]["data"]["replayed"], again);
    }
    assert_eq!(scene.effects(), 1);
    for again in [false, true] {
        let told = client.note("t", "tool_error");
        assert_eq!(told.body["result"]["isError"], true);
        assert_eq!(replayed(&told), Some(again));
    }
    assert_eq!(scene.effects(), 2);
    let unknown = client.call("fake__nothing", Some("n"), &json!({}));
    assert_eq!(unknown.body["error"]["code"], -32602);
    assert_eq!(
        client.call("other__note", Some("n"), &json!({})).body["error"]["code"],
        -32602
    );
}

#[test]
fn tools_that_read_need_no_key_and_leave_no_record() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    let look = |client: &mut Client, key| client.call("fake__look", key, &json!({}));
    assert_eq!(look(&mut client, None).body["result"]["content"][0]["text"], "0");
    client.note("k", "");
    let now = look(&mut client, Some("same"));
    assert_eq!(now.body["result"]["content"][0]["text"], "1");
    assert_eq!(replayed(&now), None);
    client.note("l", "");
    assert_eq!(
        look(&mut client, Some("same")).body["result"]["content"][0]["text"],
        "2"
    );
    let receipt = client.call("get_receipt", None, &json!({"key": "same"}));
    assert_eq!(refused(&receipt), "not_found");
}

/// What a server says of its tools may be another thing after it was started again.
#[test]
fn a_call_stays_done_though_its_tool_is_said_to_read_by_now() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    assert_eq!(
        replayed(&Client::new(&daemon, &volume).note("k-1", "")),
        Some(false)
    );
    daemon.kill();
    std::fs::write(scene.place.join("flip"), "").unwrap();
    let daemon = scene.serve();
    let mut client = Client::new(&daemon, &volume);
    let again = client.note("k-1", "");
    assert_eq!(replayed(&again), Some(true), "{}", again.body);
    assert_eq!(scene.effects(), 1);
    // Any other call is one that reads, whatever its key.
    for (key, text) in [("k-1", "other"), ("k-2", "k-2"), ("", "x"), ("k 3", "x")] {
        let reply = client.call("fake__note", Some(key), &json!({"text": text}));
        assert!(reply.body["result"]["structuredContent"]["count"].is_u64());
        assert_eq!(replayed(&reply), None, "{}", reply.body);
    }
}

#[test]
fn an_answer_without_content_gets_none_when_it_is_told_again() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    for again in [false, true] {
        let reply = client.note("k-1", "bare");
        assert_eq!(replayed(&reply), Some(again), "{}", reply.body);
        assert_eq!(reply.body["result"].get("content"), None, "{}", reply.body);
    }
}

#[test]
fn the_key_goes_on_to_the_server_and_two_jobs_stay_two() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let (one, two) = (
        scene.home.open("one", "process"),
        scene.home.open("two", "process"),
    );
    for volume in [&one, &two] {
        let reply = Client::new(&daemon, volume).note("k", "");
        assert_eq!(replayed(&reply), Some(false), "{}", reply.body);
    }
    let mut traced = params("fake__note", Some("t"), &json!({"text": "t"}));
    traced["_meta"]["traceparent"] = json!("00-1-2-01");
    traced["_meta"]["progressToken"] = json!(7);
    Client::new(&daemon, &one).ask("tools/call", &traced);
    let seen = scene.seen();
    let keys: Vec<&str> = seen
        .iter()
        .map(|call| call["_meta"]["dev.semel/idempotencyKey"].as_str().unwrap())
        .collect();
    assert!(keys[0].starts_with("semel-") && keys[0] != keys[1], "{keys:?}");
    assert_eq!(seen[2]["_meta"]["traceparent"], "00-1-2-01");
    assert_eq!(seen[2]["_meta"].get("progressToken"), None, "nobody hears of it");
    assert_eq!(scene.effects(), 3);
}

#[test]
fn the_operator_says_which_key_goes_on() {
    for (setting, wanted) in [("as_is", Some(json!("k"))), ("none", None)] {
        let scene = Scene::new();
        let daemon = scene.serve_by_file(&format!("keys = \"{setting}\""), &[]);
        let volume = scene.home.open("job", "process");
        Client::new(&daemon, &volume).note("k", "");
        assert_eq!(
            scene.seen()[0]["_meta"].get("dev.semel/idempotencyKey"),
            wanted.as_ref()
        );
    }
}

#[test]
fn an_ended_generation_calls_nobody() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    client.note("k", "");
    let path = format!("/v1/admin/volumes/{}/end", volume.generation);
    assert_eq!(
        scene.home.admin("POST", &path, &json!({"end": "clean"})).status,
        200
    );
    for key in ["k", "new"] {
        let reply = client.note(key, "");
        assert_eq!(refused(&reply), "replay_conflict");
        assert_eq!(
            reply.body["error"]["data"]["reason"], "stale_generation",
            "{}",
            reply.body
        );
    }
    // The next one of the job has keys of its own.
    let next = scene.home.open("job", "process");
    assert_eq!(replayed(&Client::new(&daemon, &next).note("k", "")), Some(false));
    assert_eq!(scene.effects(), 2);
}

#[test]
fn a_token_for_some_tools_is_for_no_others() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let auth = format!("Bearer {}", volume.token);
    let headers = [
        ("authorization", auth.as_str()),
        ("content-type", "application/json"),
    ];
    let asked = json!({"tools": ["fake__look", "read_file"]}).to_string();
    let token = daemon
        .conn()
        .send("POST", "/v1/tokens", &headers, asked.as_bytes());
    assert_eq!(token.status, 200, "{}", token.body);
    let mut client = Client::new(&daemon, &volume);
    client.token = token.body["token"].as_str().unwrap().to_owned();
    let names: Vec<Value> = client
        .tools()
        .into_iter()
        .map(|tool| tool["name"].clone())
        .collect();
    assert_eq!(names, [json!("read_file"), json!("fake__look")]);
    assert_eq!(refused(&client.note("k", "")), "denied");
    assert_eq!(scene.effects(), 0);
    assert!(client.call("fake__look", None, &json!({})).body["result"].is_object());
}

#[test]
fn the_policy_decides_by_the_names_of_its_tools() {
    let scene = Scene::new();
    let policy = scene.home.path().join("policy.toml");
    let rules = "[[rule]]\npaths = [\"**\"]\ntools = [\"fake__look\"]\nanswer = \"allow\"\n\
         [[rule]]\npaths = [\"**\"]\ntools = [\"fake__note\"]\nanswer = \"ask\"\n\
         [[rule]]\npaths = [\"secrets/**\"]\nanswer = \"deny\"\n";
    std::fs::write(&policy, rules).unwrap();
    let file = scene.home.path().join("more.toml");
    std::fs::write(&file, "approvals_without_confinement = true\n").unwrap();
    let daemon = scene.serve_with(&[
        "--policy",
        policy.to_str().unwrap(),
        "--config",
        file.to_str().unwrap(),
    ]);
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    assert!(client.call("fake__look", None, &json!({})).body["result"]["content"].is_array());
    // A server may touch whatever there is: a rule about some paths is about all that it can do.
    let odd = client.tools().into_iter().find_map(|tool| {
        let name = tool["name"].as_str().unwrap().to_owned();
        name.starts_with("fake__odd").then_some(name)
    });
    assert_eq!(
        refused(&client.call(&odd.unwrap(), Some("o"), &json!({}))),
        "denied"
    );
    let asked = client.note("k", "");
    assert_eq!(refused(&asked), "approval_required", "{}", asked.body);
    assert_eq!(scene.effects(), 0);
    let id = asked.body["result"]["structuredContent"]["error"]["approval_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let shown = scene.home.json(&["approvals"]);
    assert!(shown.to_string().contains("fake__note"), "{shown}");
    assert_eq!(
        refused(&client.call("fake__note", Some("k"), &json!({"text": "other"}))),
        "replay_conflict"
    );
    scene.home.json(&["approve", &id]);
    assert_eq!(replayed(&client.note("k", "")), Some(false));
    assert_eq!(replayed(&client.note("k", "")), Some(true));
    assert_eq!(scene.effects(), 1);
}

#[test]
fn progress_is_told_to_whoever_wants_to_hear() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut call = params("fake__note", Some("k"), &json!({"text": "k", "how": "progress"}));
    call["_meta"]["progressToken"] = json!("mine");
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).to_string();
    let mut stream = std::net::TcpStream::connect(daemon.url.strip_prefix("http://").unwrap()).unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {}\r\n\
         mcp-protocol-version: 2025-11-25\r\naccept: application/json, text/event-stream\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        volume.token,
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    scene.wait_for("progress");
    scene.let_go("progress");
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    assert!(
        told.contains("\"progressToken\":\"mine\"") && told.contains("half"),
        "{told}"
    );
    assert!(
        told.contains("dev.semel/executionId") && !told.contains("notifications/message"),
        "{told}"
    );
}

#[test]
fn a_list_that_changes_is_read_again() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    assert_eq!(
        client.call("fake__new", Some("n"), &json!({})).body["error"]["code"],
        -32602
    );
    client.note("k", "grow");
    assert!(wait_until(LONG, || client
        .tools()
        .iter()
        .any(|tool| tool["name"] == "fake__new")));
    let reply = client.call("fake__new", Some("n"), &json!({"text": "n"}));
    assert_eq!(replayed(&reply), Some(false), "{}", reply.body);
}

#[test]
fn a_server_of_the_newest_revision_is_spoken_to_in_it() {
    let scene = Scene::with("--modern");
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    assert_eq!(replayed(&client.note("k", "")), Some(false));
    assert_eq!(replayed(&client.note("k", "")), Some(true));
    let meta = &scene.seen()[0]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    // What it wants to ask first, nobody answers; it did nothing by its own word, and the key is free.
    let asks = client.note("i", "input");
    assert_eq!(
        asks.body["result"]["structuredContent"]["error"]["reason"], "input_required",
        "{}",
        asks.body
    );
    let receipt = client.call("get_receipt", None, &json!({"key": "i"}));
    assert_eq!(refused(&receipt), "not_found");
}
