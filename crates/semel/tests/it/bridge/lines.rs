//! Messages on lines: revisions, what is no message, cancellations, and the ends of either side.

use super::{Agent, held, mark, marks, replayed, scene, spools, until, wait_for};
use crate::harness::signal;
use serde_json::{Value, json};

fn modern(mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    params
}

#[test]
fn each_request_says_its_own_revision() {
    let (home, _daemon, volume) = scene();
    let mut agent = Agent::start(&home, &volume, &[]);
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
    let answer = agent.ask(1, "initialize", &hello);
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
    let keys = &answer["result"]["capabilities"]["experimental"]["dev.semel/idempotency"];
    assert_eq!(
        (&keys["required"], &keys["generation"]),
        (&json!(false), &json!(volume.generation))
    );
    agent.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    assert_eq!(agent.ask(2, "ping", &json!({}))["result"], json!({}));
    let found = agent.ask(3, "server/discover", &modern(json!({})));
    let keys = &found["result"]["capabilities"]["extensions"]["dev.semel/idempotency"];
    assert_eq!(keys["required"], false);
    assert!(
        found["result"]["instructions"]
            .as_str()
            .unwrap()
            .contains("without a key")
    );
    for params in [json!({}), modern(json!({}))] {
        let listed = agent.ask(4, "tools/list", &params);
        assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 15);
        for tool in listed["result"]["tools"].as_array().unwrap() {
            let arguments = tool["inputSchema"].to_string();
            assert!(
                !arguments.contains("idempotency_key"),
                "models are told of no key: {tool}"
            );
        }
    }
    let call = modern(json!({"name": "edit_file", "arguments": mark()}));
    let answer = agent.ask(5, "tools/call", &call);
    assert!(!replayed(&answer));
    assert_eq!(answer["result"]["resultType"], "complete");
    assert!(!replayed(&agent.call(6, "edit_file", &mark())));
    assert_eq!(marks(&volume), 2);
    // What a revision does not have.
    for (params, code) in [(json!({}), -32601), (modern(json!({})), -32601)] {
        assert_eq!(agent.ask(7, "resources/list", &params)["error"]["code"], code);
    }
    assert_eq!(agent.ask(8, "ping", &modern(json!({})))["error"]["code"], -32601);
    let unknown = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2030-01-01"}});
    assert_eq!(agent.ask(9, "tools/list", &unknown)["error"]["code"], -32022);
    let (rest, status) = agent.ends();
    assert!(rest.is_empty() && status.success(), "{rest:?}");
    assert!(spools(&home).is_empty(), "nothing is left to remember");
}

#[test]
fn what_is_no_message_is_answered_and_harms_nobody() {
    let (home, _daemon, volume) = scene();
    let mut agent = Agent::start(&home, &volume, &[]);
    agent.raw(b"\n  \n");
    agent.say(&json!({"jsonrpc": "2.0", "method": "notifications/whatever"}));
    agent.say(&json!({"jsonrpc": "2.0", "id": 5, "result": {}}));
    agent.say(
        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "none"}}),
    );
    agent.raw(b"{\n");
    assert_eq!(agent.hear()["error"]["code"], -32700);
    let twice = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}"#;
    agent.raw(&[&twice[..], b"\n"].concat());
    assert_eq!(agent.hear()["error"]["code"], -32600);
    // Clients wait for an answer to their id, and take no other.
    let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
    for content in [
        r#""\ud800""#,
        "9007199254740993",
        "1e999",
        &deep,
        r#"{"a":1,"a":2}"#,
    ] {
        agent.raw(
            format!(r#"{{"jsonrpc":"2.0","id":"i","method":"tools/call","params":{{"name":"write_file","arguments":{{"content":{content}}}}}}}"#)
                .as_bytes(),
        );
        agent.raw(b"\n");
        let refused = agent.hear();
        assert_eq!(
            (&refused["id"], refused.get("result")),
            (&json!("i"), None),
            "{content}"
        );
    }
    // Which of two ids is meant, nobody can say; and nobody waits for an answer to an answer.
    for nobodys in [
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2}}"#,
    ] {
        agent.raw(nobodys.as_bytes());
        agent.raw(b"\n");
        assert_eq!(agent.hear().get("id"), None, "{nobodys}");
    }
    agent.say(&json!([{"jsonrpc": "2.0", "id": 1, "method": "ping"}]));
    let batch = agent.hear();
    assert_eq!((&batch["error"]["code"], batch.get("id")), (&json!(-32600), None));
    // The id stands behind what is too large.
    let long = json!("x".repeat(10 << 20)).to_string();
    agent.raw(
        format!(r#"{{"method":"tools/call","params":{{"name":"write_file","arguments":{{"content":{long}}}}},"jsonrpc":"2.0","id":77}}"#)
            .as_bytes(),
    );
    agent.raw(b"\n");
    let refused = agent.hear();
    assert_eq!(
        (&refused["id"], &refused["error"]["data"]["type"]),
        (&json!(77), &json!("too_large"))
    );
    // What a client closes its end behind is a message, too.
    agent.raw(br#"{"jsonrpc":"2.0","id":"last","method":"ping"}"#);
    let (rest, status) = agent.ends();
    assert_eq!((rest[0]["id"].as_str(), status.success()), (Some("last"), true));
}

/// Whoever has closed its input and reads late, or slowly, has its answers all the same.
#[test]
fn what_is_read_late_is_whole() {
    let (home, _daemon, volume) = scene();
    std::fs::write(volume.tree.join("long"), "x".repeat(200_000)).unwrap();
    let mut agent = Agent::start(&home, &volume, &[]);
    for id in 1..=20 {
        agent.send(id, "read_file", &json!({"path": "long"}));
    }
    drop(agent.input.take());
    // Longer than one that is told to end would wait.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let (answers, status) = agent.ends();
    assert!(status.success());
    let mut ids: Vec<u64> = answers
        .iter()
        .filter_map(|answer| answer["id"].as_u64())
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=20).collect::<Vec<_>>());
}

#[test]
fn a_b_a_with_answers_delivered_runs_three_times() {
    let (home, _daemon, volume) = scene();
    let mut agent = Agent::start(&home, &volume, &[]);
    let write = |content: &str| json!({"path": "a", "content": content});
    let mut executions = std::collections::BTreeSet::new();
    for (id, content) in [(1, "A"), (2, "B"), (3, "A"), (4, "A")] {
        let answer = agent.call(id, "write_file", &write(content));
        assert!(!replayed(&answer), "{answer}");
        executions.insert(answer["result"]["structuredContent"]["execution_id"].to_string());
    }
    assert_eq!(executions.len(), 4);
}

#[test]
fn a_key_of_the_client_is_its_own_affair() {
    let (home, _daemon, volume) = scene();
    let mut agent = Agent::start(&home, &volume, &[]);
    let by_meta =
        json!({"name": "edit_file", "arguments": mark(), "_meta": {"dev.semel/idempotencyKey": "k"}});
    assert!(!replayed(&agent.ask(1, "tools/call", &by_meta)));
    let mut arguments = mark();
    arguments["idempotency_key"] = json!("k");
    assert!(replayed(&agent.call(2, "edit_file", &arguments)));
    let by_params = json!({"name": "edit_file", "arguments": mark(), "idempotencyKey": "k"});
    assert!(replayed(&agent.ask(3, "tools/call", &by_params)));
    // Also where the revision has the headers say it again.
    let again = modern(json!({"name": "edit_file", "arguments": arguments}));
    assert!(replayed(&agent.ask(4, "tools/call", &again)));
    assert_eq!(marks(&volume), 1);
    // Read from what the bridge was told: it made no key, and so keeps none.
    assert!(spools(&home).is_empty());
    let answer = agent.call(5, "edit_file", &mark());
    let key = answer["result"]["structuredContent"]["idempotency_key"]
        .as_str()
        .unwrap();
    assert!(key.starts_with("mcp-"), "{key}");
    let spool = std::fs::read_to_string(&spools(&home)[0]).unwrap();
    assert!(
        spool.contains(key) && !spool.contains("END"),
        "the key, and never the call: {spool}"
    );
}

#[test]
fn a_cancelled_call_is_not_run_twice() {
    let (home, _daemon, volume, file) = held("begun");
    let mut agent = Agent::start(&home, &volume, &[]);
    agent.send(1, "edit_file", &mark());
    wait_for(&file);
    agent.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}));
    agent.send(2, "edit_file", &mark());
    assert_eq!(agent.ask(3, "ping", &json!({}))["result"], json!({}));
    std::fs::remove_file(&file).unwrap();
    let answer = agent.hear();
    assert_eq!(answer["id"], 2, "a cancelled request has no answer: {answer}");
    assert!(replayed(&answer));
    assert_eq!(marks(&volume), 1);
    // It was delivered: the next one is another call.
    assert!(!replayed(&agent.call(4, "edit_file", &mark())));
    assert_eq!(marks(&volume), 2);
}

/// A client that gave up waiting says so, or says nothing: either way its repeat is the same call.
#[test]
fn a_repeat_while_the_first_one_runs_is_the_same_call() {
    let (home, _daemon, volume, file) = held("begun");
    let mut agent = Agent::start(&home, &volume, &[]);
    agent.send(1, "edit_file", &mark());
    wait_for(&file);
    agent.send(2, "edit_file", &mark());
    assert_eq!(agent.ask(3, "ping", &json!({}))["result"], json!({}));
    std::fs::remove_file(&file).unwrap();
    let (one, two) = (agent.hear(), agent.hear());
    assert_ne!(one["id"], two["id"]);
    assert_eq!(
        usize::from(replayed(&one)) + usize::from(replayed(&two)),
        1,
        "{one} {two}"
    );
    assert_eq!(marks(&volume), 1);
}

#[test]
fn a_client_that_sends_no_more_still_gets_its_answers() {
    let (home, _daemon, volume, file) = held("begun");
    let mut agent = Agent::start(&home, &volume, &[]);
    agent.send(1, "edit_file", &mark());
    wait_for(&file);
    drop(agent.input.take());
    std::fs::remove_file(&file).unwrap();
    assert!(!replayed(&agent.hear()));
    assert!(agent.try_hear().is_none());
    assert!(agent.child.wait().unwrap().success());
    assert!(spools(&home).is_empty());
}

#[test]
fn a_bridge_that_is_told_to_end_leaves_what_is_not_answered_in_its_spool() {
    let (home, _daemon, volume, file) = held("begun");
    let mut agent = Agent::start(&home, &volume, &[]);
    agent.send(1, "edit_file", &mark());
    wait_for(&file);
    signal(agent.child.id(), libc::SIGTERM);
    assert!(agent.try_hear().is_none());
    assert!(agent.child.wait().unwrap().success());
    assert_eq!(spools(&home).len(), 1);
    let mut agent = Agent::start(&home, &volume, &[]);
    agent.send(1, "edit_file", &mark());
    std::fs::remove_file(&file).unwrap();
    assert!(replayed(&agent.hear()));
    assert_eq!(marks(&volume), 1);
    agent.ends();
    assert!(spools(&home).is_empty());
}

#[test]
fn a_bridge_whose_client_is_gone_ends() {
    let (home, _daemon, volume, file) = held("begun");
    let mut agent = Agent::start(&home, &volume, &[]);
    agent.send(1, "edit_file", &mark());
    wait_for(&file);
    // Its input stays open: another process may have a copy of it.
    let (none, _writer) = std::io::pipe().unwrap();
    agent.output = std::io::BufReader::new(std::process::ChildStdout::from(std::os::fd::OwnedFd::from(none)));
    until("it ends", || agent.child.try_wait().unwrap().is_some());
    assert_eq!(spools(&home).len(), 1);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn progress_comes_while_a_command_runs() {
    let (home, _daemon, volume) = scene();
    let mut agent = Agent::start(&home, &volume, &[]);
    let params = json!({"name": "run_command", "arguments": {"command": "sleep 6; echo done"}, "_meta": {"progressToken": "p"}});
    agent.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}));
    let told = agent.hear();
    if told["id"] == 1 && told["result"]["isError"] == true {
        return crate::harness::skipped("no command can be run here");
    }
    assert_eq!(
        (&told["method"], &told["params"]["progressToken"]),
        (&json!("notifications/progress"), &json!("p")),
        "{told}"
    );
    let answer = agent.hear();
    assert_eq!(
        answer["result"]["structuredContent"]["stdout"], "done\n",
        "{answer}"
    );
}
