//! Commands as tasks: recorded before their id is given out, found again after a kill, ended on request.

use super::{MODERN, Raw, content, scene};
use crate::harness::{Home, LONG, Reply, wait_until};
use serde_json::{Value, json};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// Adds what a client that takes tasks declares.
fn taking(mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({"extensions": {EXTENSION: {}}});
    params
}

fn command(key: &str, line: &str) -> Value {
    json!({"name": "run_command", "arguments": {"command": line}, "idempotencyKey": key})
}

const WAITS: &str = "touch began; while [ ! -e go ]; do sleep 0.05; done; echo ran >>log; echo done";

/// Begins a command that waits, and gives what it was answered with.
fn begun(raw: &mut Raw) -> Value {
    let reply = raw.modern_with(
        "tools/call",
        &taking(command("c", WAITS)),
        &[("prefer", "wait=0")],
    );
    let created = reply.body["result"].clone();
    assert_eq!(
        (reply.status, &created["resultType"]),
        (200, &json!("task")),
        "{}",
        reply.body
    );
    created
}

fn get(raw: &mut Raw, id: &Value) -> Reply {
    raw.modern("tasks/get", &taking(json!({"taskId": id})))
}

/// Waits until a task is something else than at work.
fn ended(raw: &mut Raw, id: &Value) -> Value {
    let mut last = Value::Null;
    assert!(wait_until(LONG, || {
        last = get(raw, id).body["result"].clone();
        last["status"] != "working"
    }));
    last
}

#[test]
fn a_command_that_runs_longer_is_a_task() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let found = raw.modern("server/discover", &json!({}));
    assert_eq!(
        found.body["result"]["capabilities"]["extensions"][EXTENSION],
        json!({})
    );
    let created = begun(&mut raw);
    assert_eq!(
        (&created["status"], &created["ttlMs"]),
        (&json!("working"), &Value::Null)
    );
    assert!(
        created["createdAt"].as_str().unwrap().ends_with('Z') && created.get("result").is_none(),
        "{created}"
    );
    let id = created["taskId"].clone();
    let working = get(&mut raw, &id);
    assert_eq!(working.body["result"]["status"], "working", "{}", working.body);
    assert_eq!(working.body["result"]["resultType"], "complete");
    // The same call again is the same task; under another key it would be another.
    assert_eq!(begun(&mut raw)["taskId"], id);
    std::fs::write(volume.tree.join("go"), "").unwrap();
    let done = ended(&mut raw, &id);
    assert_eq!(done["status"], "completed", "{done}");
    let told = &done["result"]["structuredContent"];
    assert_eq!((&told["stdout"], &told["execution_id"]), (&json!("done\n"), &id));
    assert_eq!(done["result"]["isError"], false);
    // Its result is its receipt: the same call, in any way, is answered from it.
    let again = raw.legacy("tools/call", &command("c", WAITS));
    assert_eq!(
        again.body["result"]["structuredContent"]["replayed"], true,
        "{}",
        again.body
    );
    assert_eq!(content(&volume, "log").as_deref(), Some("ran\n"));
    // What ends soon is answered at once, and so is whoever takes no tasks.
    let soon = raw.modern("tools/call", &taking(command("s", "echo soon")));
    assert_eq!(
        soon.body["result"]["structuredContent"]["stdout"], "soon\n",
        "{}",
        soon.body
    );
    let slow = raw.modern("tools/call", &command("l", "sleep 2.5; echo slow"));
    assert_eq!(
        slow.body["result"]["structuredContent"]["stdout"], "slow\n",
        "{}",
        slow.body
    );
}

/// The id is given out for what no kill makes forgotten.
#[test]
fn a_task_outlives_the_daemon() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut raw = Raw::new(&daemon, &volume);
    let id = begun(&mut raw)["taskId"].clone();
    assert!(wait_until(LONG, || volume.tree.join("began").exists()));
    daemon.kill();
    let daemon = home.serve(&[]);
    let mut raw = Raw::new(&daemon, &volume);
    assert_eq!(get(&mut raw, &id).body["result"]["status"], "working");
    std::fs::write(volume.tree.join("go"), "").unwrap();
    let done = ended(&mut raw, &id);
    assert_eq!(done["result"]["structuredContent"]["stdout"], "done\n", "{done}");
    assert_eq!(content(&volume, "log").as_deref(), Some("ran\n"));
}

#[test]
fn a_task_is_ended_by_whoever_began_it() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let id = begun(&mut raw)["taskId"].clone();
    assert!(wait_until(LONG, || volume.tree.join("began").exists()));
    let about = taking(json!({"taskId": id}));
    for method in ["tasks/update", "tasks/cancel", "tasks/cancel"] {
        let reply = raw.modern(method, &about);
        let result = &reply.body["result"];
        assert_eq!(
            (reply.status, &result["resultType"]),
            (200, &json!("complete")),
            "{}",
            reply.body
        );
        assert!(result.get("taskId").is_none() && result.get("status").is_none());
    }
    let done = ended(&mut raw, &id);
    assert_eq!(done["status"], "cancelled", "{done}");
    assert!(done.get("result").is_none());
    assert_eq!(content(&volume, "log"), None);
    assert_eq!(raw.modern("tasks/cancel", &about).status, 200);
}

#[test]
fn a_task_is_told_to_nobody_else() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let id = begun(&mut raw)["taskId"].clone();
    let about = json!({"taskId": id});
    // Who does not take tasks asks for none; no older revision has them.
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let reply = raw.modern(method, &about);
        let error = &reply.body["error"];
        assert_eq!(
            (reply.status, &error["code"]),
            (400, &json!(-32021)),
            "{}",
            reply.body
        );
        assert_eq!(
            error["data"]["requiredCapabilities"]["extensions"][EXTENSION],
            json!({})
        );
        assert_eq!(
            raw.legacy(method, &taking(about.clone())).body["error"]["code"],
            -32601
        );
    }
    for gone in ["tasks/list", "tasks/result"] {
        assert_eq!(
            raw.modern(gone, &taking(about.clone())).body["error"]["code"],
            -32601
        );
    }
    let write =
        json!({"name": "write_file", "arguments": {"path": "a", "content": "1"}, "idempotencyKey": "w"});
    let written = raw.modern("tools/call", &write);
    let written = &written.body["result"]["structuredContent"]["execution_id"];
    for other in [
        json!("nope"),
        json!(""),
        json!("01a22d14-6af6-7f5d-8966-10869d8aabd0"),
        written.clone(),
    ] {
        for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
            let reply = raw.modern(method, &taking(json!({"taskId": other})));
            assert_eq!(
                (reply.status, &reply.body["error"]["code"]),
                (400, &json!(-32602)),
                "{other}: {}",
                reply.body
            );
        }
    }
    assert_eq!(get(&mut raw, &id).body["result"]["status"], "working");
}

/// The header has to say the id, too; another principal of the volume, and another volume, do not find it.
#[test]
fn a_task_is_named_twice_and_found_by_its_owner_alone() {
    let (home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let id = begun(&mut raw)["taskId"].clone();
    let about = json!({"taskId": id});
    let mut whole = taking(about.clone());
    whole["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
    let body = raw.request("tasks/get", &whole);
    for name in [&[][..], &[("mcp-name", "other")]] {
        let headers = [
            &[("mcp-protocol-version", MODERN), ("mcp-method", "tasks/get")],
            name,
        ]
        .concat();
        let reply = raw.post(&headers, body.as_bytes());
        assert_eq!(
            (reply.status, &reply.body["error"]["code"]),
            (400, &json!(-32020)),
            "{}",
            reply.body
        );
    }
    let auth = format!("Bearer {}", volume.token);
    let part = json!({"name": "part"}).to_string();
    let part = daemon
        .conn()
        .send("POST", "/v1/tokens", &[("authorization", &auth)], part.as_bytes());
    let other = home.open("other", "process");
    for token in [part.body["token"].as_str().unwrap(), &other.token] {
        let mut stranger = Raw::new(&daemon, &volume);
        token.clone_into(&mut stranger.token);
        assert_eq!(get(&mut stranger, &id).body["error"]["code"], -32602);
        let cancel = stranger.modern("tasks/cancel", &taking(about.clone()));
        assert_eq!(cancel.body["error"]["code"], -32602);
    }
    assert_eq!(get(&mut raw, &id).body["result"]["status"], "working");
}
