//! What goes over the wire: both kinds of revision, errors with their numbers, and who is not answered.

use super::{LEGACY, MODERN, Raw, content, scene};
use crate::harness::{Home, RUN, Site, text};
use serde_json::{Value, json};

#[test]
fn a_client_of_a_handshake_lists_and_calls() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let params =
        json!({"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
    let hello = raw.request("initialize", &params);
    let hello = raw.post(
        &[("accept", "application/json, text/event-stream")],
        hello.as_bytes(),
    );
    assert_eq!(hello.status, 200, "{}", hello.body);
    assert_eq!(hello.header("content-type"), Some("application/json"));
    assert_eq!(hello.header("mcp-session-id"), None);
    let result = &hello.body["result"];
    assert_eq!(
        (&hello.body["id"], &result["protocolVersion"]),
        (&json!(1), &json!(LEGACY))
    );
    assert_eq!(result["serverInfo"]["name"], "semel");
    let extension = &result["capabilities"]["experimental"]["dev.semel/idempotency"];
    assert_eq!(
        (&extension["required"], &extension["durable"]),
        (&json!(true), &json!(true))
    );
    let body = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    let taken = raw.post(&[("mcp-protocol-version", LEGACY)], body.as_bytes());
    assert_eq!((taken.status, &taken.body), (202, &Value::Null));
    assert_eq!(raw.legacy("ping", &json!({})).body["result"], json!({}));
    let list = raw.legacy("tools/list", &json!({}));
    let tools = list.body["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 15);
    assert!(
        names.contains(&"write_file") && !names.contains(&"undo"),
        "{names:?}"
    );
}

/// A call has one effect, its answer is whole in either form, and a replay says that it is one.
#[test]
fn a_call_is_answered_as_text_and_as_structure_and_replayed() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let call = json!({
        "name": "write_file",
        "arguments": {"path": "a", "content": "1"},
        "_meta": {"dev.semel/idempotencyKey": "k"},
    });
    let first = raw.legacy("tools/call", &call);
    let result = &first.body["result"];
    assert_eq!(
        (first.status, &result["isError"]),
        (200, &json!(false)),
        "{}",
        first.body
    );
    let told = &result["structuredContent"];
    assert_eq!(
        (&told["replayed"], &told["idempotency_key"]),
        (&json!(false), &json!("k"))
    );
    assert_eq!(told["generation"], json!(volume.generation));
    assert!(told["execution_id"].is_string());
    let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(&text, told);
    assert_eq!(content(&volume, "a").as_deref(), Some("1"));
    std::fs::write(volume.tree.join("a"), "by hand").unwrap();
    let again = raw.legacy("tools/call", &call);
    let replay = &again.body["result"];
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(replay["structuredContent"]["replayed"], true);
    assert_eq!(replay["_meta"]["dev.semel/replayed"], true);
    assert_eq!(replay["structuredContent"]["execution_id"], told["execution_id"]);
    assert!(
        replay["content"][1]["text"]
            .as_str()
            .unwrap()
            .starts_with("Replayed: ")
    );
    assert_eq!(
        content(&volume, "a").as_deref(),
        Some("by hand"),
        "a replay has no effect"
    );
    let read = raw.legacy(
        "tools/call",
        &json!({"name": "read_file", "arguments": {"path": "a"}}),
    );
    assert_eq!(read.body["result"]["structuredContent"]["content"], "by hand");
}

/// A handshake is answered by a revision with a handshake, whatever it asks for.
#[test]
fn a_handshake_agrees_on_a_revision() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    for (asked, answered) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2024-11-05", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("x", "2025-11-25"),
    ] {
        let body = raw.request("initialize", &json!({"protocolVersion": asked}));
        let hello = raw.post(&[], body.as_bytes());
        assert_eq!(
            hello.body["result"]["protocolVersion"], answered,
            "{asked}: {}",
            hello.body
        );
    }
    // What was agreed on is remembered nowhere: each request says it again.
    let body = raw.request("tools/list", &json!({}));
    for (version, status) in [
        ("2025-06-18", 200),
        (LEGACY, 200),
        ("1999-01-01", 400),
        (MODERN, 400),
    ] {
        let reply = raw.post(&[("mcp-protocol-version", version)], body.as_bytes());
        assert_eq!(reply.status, status, "{version}: {}", reply.body);
    }
    assert_eq!(raw.post(&[], body.as_bytes()).status, 200);
}

#[test]
fn a_client_of_the_newest_revision_needs_no_handshake() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let call = json!({
        "name": "write_file",
        "arguments": {"path": "a", "content": "1"},
        "_meta": {"dev.semel/idempotencyKey": "k"},
    });
    let first = raw.modern("tools/call", &call);
    let result = &first.body["result"];
    assert_eq!(
        (first.status, &result["resultType"]),
        (200, &json!("complete")),
        "{}",
        first.body
    );
    assert_eq!(
        result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"],
        "semel"
    );
    assert_eq!(result["_meta"]["dev.semel/idempotencyKey"], "k");
    assert_eq!(
        raw.modern("tools/call", &call).body["result"]["structuredContent"]["replayed"],
        true
    );
    // The same call in the other kind of revision is the same call.
    assert_eq!(
        raw.legacy("tools/call", &call).body["result"]["structuredContent"]["replayed"],
        true
    );
    let found = raw.modern("server/discover", &json!({}));
    let found = &found.body["result"];
    assert_eq!(
        found["supportedVersions"],
        json!(["2026-07-28", "2025-11-25", "2025-06-18"])
    );
    assert_eq!(found["resultType"], "complete");
    let extension = &found["capabilities"]["extensions"]["dev.semel/idempotency"];
    assert_eq!(extension["carriers"].as_array().unwrap().len(), 4);
    assert_eq!(extension["retentionSeconds"], 90 * 86_400);
    let list = raw.modern("tools/list", &json!({}));
    let list = &list.body["result"];
    assert_eq!(list["cacheScope"], "private");
    assert!(list["ttlMs"].is_u64());
    let noted = home_log(&_home);
    assert!(
        noted.contains(&"2026-07-28".to_owned()) && noted.contains(&LEGACY.to_owned()),
        "{noted:?}"
    );
}

/// Gives the revisions that the log tells of, of calls through this door.
fn home_log(home: &Home) -> Vec<String> {
    let lines = home.lines(&["log"]);
    let ours = lines.iter().filter(|line| line["door"] == "mcp");
    ours.filter_map(|line| line["mcp_era"].as_str().map(str::to_owned))
        .collect()
}

/// What stands in `_meta`, the headers, and the status and number of the answer.
type Case<'a> = (&'a Value, &'a [(&'a str, &'a str)], u16, i32);

#[test]
fn what_the_newest_revision_has_to_say_is_asked_for() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let whole = json!({"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}});
    let no_version = json!({"io.modelcontextprotocol/clientCapabilities": {}});
    let no_capabilities = json!({"io.modelcontextprotocol/protocolVersion": MODERN});
    let other = json!({"io.modelcontextprotocol/protocolVersion": "v999", "io.modelcontextprotocol/clientCapabilities": {}});
    let version = ("mcp-protocol-version", MODERN);
    let method = ("mcp-method", "tools/list");
    let cases: [Case<'_>; 12] = [
        (&whole, &[version, method], 200, 0),
        (
            &whole,
            &[("MCP-PROTOCOL-VERSION", MODERN), ("MCP-METHOD", "  tools/list ")],
            200,
            0,
        ),
        (&json!({}), &[version, method], 400, -32602),
        (&no_version, &[version, method], 400, -32602),
        (&no_capabilities, &[version, method], 400, -32602),
        (&whole, &[method], 400, -32020),
        (&whole, &[("mcp-protocol-version", LEGACY), method], 400, -32020),
        (&whole, &[version, version, method], 400, -32020),
        (&whole, &[version], 400, -32020),
        (&whole, &[version, ("mcp-method", "TOOLS/LIST")], 400, -32020),
        (&other, &[version, method], 400, -32020),
        (&other, &[("mcp-protocol-version", "v999"), method], 400, -32022),
    ];
    for (meta, headers, status, code) in cases {
        let body = raw.request("tools/list", &json!({"_meta": meta}));
        let reply = raw.post(headers, body.as_bytes());
        let told = reply.body["error"]["code"].as_i64().unwrap_or(0);
        assert_eq!(
            (reply.status, told),
            (status, i64::from(code)),
            "{meta} {headers:?}: {}",
            reply.body
        );
        assert_eq!(reply.body["id"], json!(raw.id), "{}", reply.body);
    }
    for gone in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/list",
        "prompts/list",
        "nope",
    ] {
        let reply = raw.modern(gone, &json!({}));
        assert_eq!(
            (reply.status, &reply.body["error"]["code"]),
            (404, &json!(-32601)),
            "{gone}"
        );
    }
    // An older client reads errors in answers alone.
    for gone in ["server/discover", "logging/setLevel", "nope"] {
        let reply = raw.legacy(gone, &json!({}));
        assert_eq!(
            (reply.status, &reply.body["error"]["code"]),
            (200, &json!(-32601)),
            "{gone}"
        );
    }
}

#[test]
fn what_is_no_message_is_refused_by_number_and_has_no_effect() {
    let (home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let call = |id: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"write_file","arguments":{{"path":"a","content":"1"}},"idempotencyKey":"k"}}}}"#
        )
    };
    let twice = call("1").replace(r#""path":"a""#, r#""path":"b","path":"a""#);
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let cases = [
        (String::new(), 400, 40011, "empty_body_not_replayable"),
        ("{}".to_owned(), 400, 40011, "empty_body_not_replayable"),
        ("null".to_owned(), 400, 40011, "empty_body_not_replayable"),
        ("{".to_owned(), 400, -32700, "bad_input"),
        (format!("{0}{0}", call("1")), 400, -32700, "bad_input"),
        (format!("[{}]", call("1")), 400, -32600, "bad_input"),
        (twice, 400, -32600, "bad_input"),
        (call("null"), 400, -32600, "bad_input"),
        (call("1.5"), 400, -32600, "bad_input"),
        (call("1").replace("2.0", "1.0"), 400, -32600, "bad_input"),
        (deep, 400, -32600, "bad_input"),
        ("\"\\ud800\"".to_owned(), 400, -32600, "bad_input"),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_owned(),
            400,
            40065,
            "bad_input",
        ),
    ];
    let before = home.entries();
    for (body, status, code, named) in &cases {
        let reply = raw.post(&[("mcp-protocol-version", LEGACY)], body.as_bytes());
        let error = &reply.body["error"];
        assert_eq!(
            (reply.status, &error["code"], &error["data"]["type"]),
            (*status, &json!(code), &json!(named)),
            "{body}: {}",
            reply.body
        );
    }
    assert_eq!(content(&volume, "a"), None);
    assert_eq!(home.entries(), before, "nothing of it is recorded");
    let large = format!("{{\"jsonrpc\":\"{}\"}}", "x".repeat(9 << 20));
    let reply = raw.post(&[], large.as_bytes());
    assert_eq!((reply.status, &reply.body["error"]["code"]), (413, &json!(41379)));
    let mut raw = Raw::new(&daemon, &volume);
    let reply = raw.post(&[("content-type", "text/plain")], call("1").as_bytes());
    assert_eq!(
        (reply.status, &reply.body["error"]["data"]["reason"]),
        (400, &json!("unsupported_media_type"))
    );
    let reply = raw.post(
        &[("content-type", "application/json"), ("content-encoding", "gzip")],
        call("1").as_bytes(),
    );
    assert_eq!(reply.status, 400);
}

/// A page in a browser, and a name that somebody else made lead here, are told nothing.
#[test]
fn a_foreign_page_is_not_answered() {
    let (home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let body = raw.request("tools/list", &json!({}));
    let auth = format!("Bearer {}", volume.token);
    let authority = daemon.url.strip_prefix("http://").unwrap().to_owned();
    for (headers, status) in [
        (&[("host", authority.as_str())][..], 200),
        (&[("host", "localhost"), ("origin", "http://localhost:5173")], 200),
        (&[("host", "localhost"), ("origin", "http://evil.example")], 403),
        (&[("host", "localhost"), ("origin", "null")], 403),
        (
            &[("host", "evil.example"), ("origin", "http://evil.example")],
            403,
        ),
        (&[("host", "evil.example")], 403),
        (&[("host", "localhost.evil.example")], 403),
    ] {
        let all = [headers, &[("authorization", auth.as_str())]].concat();
        let reply = raw.bare(&all, body.as_bytes());
        assert_eq!(reply.status, status, "{headers:?}: {}", reply.body);
        if status == 403 {
            assert_eq!(reply.body["error"]["code"], 40318);
            assert!(reply.body.get("id").is_none());
        }
    }
    // Over the Unix socket there is no browser, and any name does.
    let reply = home
        .app()
        .send("POST", "/mcp", &[("authorization", &auth)], body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.body);
}

#[test]
fn only_the_holder_of_a_token_is_answered() {
    let (home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    for method in ["initialize", "tools/list", "tools/call"] {
        let body = raw.request(
            method,
            &json!({"name": "write_file", "arguments": {"path": "a", "content": "1"}}),
        );
        for auth in [None, Some("Bearer nope"), Some("Bearer 7bf8")] {
            let mut headers = vec![("host", "localhost")];
            headers.extend(auth.map(|auth| ("authorization", auth)));
            let reply = raw.bare(&headers, body.as_bytes());
            assert_eq!(
                (reply.status, &reply.body["error"]["code"]),
                (401, &json!(40177)),
                "{}",
                reply.body
            );
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        }
    }
    for method in ["GET", "DELETE", "PUT"] {
        let reply = daemon.conn().send(method, "/mcp", &[], b"");
        assert_eq!(
            (reply.status, reply.header("allow")),
            (405, Some("POST")),
            "{method}"
        );
    }
    // A token for fewer tools lists and calls no others.
    let auth = format!("Bearer {}", volume.token);
    let wanted = json!({"tools": ["read_file"], "name": "reader"}).to_string();
    let narrow = daemon.conn().send(
        "POST",
        "/v1/tokens",
        &[("authorization", &auth)],
        wanted.as_bytes(),
    );
    raw.token = narrow.body["token"].as_str().unwrap().to_owned();
    let list = raw.modern("tools/list", &json!({}));
    let names: Vec<&Value> = list.body["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| &tool["name"])
        .collect();
    assert_eq!(names, [&json!("read_file")]);
    let call =
        json!({"name": "write_file", "arguments": {"path": "a", "content": "1"}, "idempotencyKey": "k"});
    let reply = raw.modern("tools/call", &call);
    let error = &reply.body["result"]["structuredContent"]["error"];
    assert_eq!(
        (&error["type"], &error["reason"]),
        (&json!("denied"), &json!("tool_not_granted"))
    );
    // An ended generation takes no call.
    raw.token.clone_from(&volume.token);
    let end = format!("/v1/admin/volumes/{}/end", volume.generation);
    assert_eq!(home.admin("POST", &end, &json!({"end": "clean"})).status, 200);
    let reply = raw.modern("tools/call", &call);
    let error = &reply.body["error"];
    assert_eq!(
        (&error["code"], &error["data"]["type"], &error["data"]["reason"]),
        (
            &json!(40912),
            &json!("replay_conflict"),
            &json!("stale_generation")
        ),
        "{}",
        reply.body
    );
}

/// What a model can mend is a result that it reads; what it cannot is an error.
#[test]
fn a_refusal_reaches_whoever_can_do_something_about_it() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    for (tool, arguments, named) in [
        ("read_file", json!({"path": "nope"}), "not_found"),
        ("read_file", json!({"path": "../x"}), "path_escapes_root"),
        ("read_file", json!({"path": "a", "nope": 1}), "bad_input"),
        ("read_file", json!({}), "empty_body_not_replayable"),
        (
            "write_file",
            json!({"path": "a", "content": "1"}),
            "missing_idempotency_key",
        ),
        (
            "write_file",
            json!({"idempotency_key": "k"}),
            "empty_body_not_replayable",
        ),
        (
            "edit_file",
            json!({"path": "a", "old_string": "1", "new_string": "2", "idempotency_key": "e"}),
            "not_found",
        ),
    ] {
        for reply in [
            raw.legacy("tools/call", &json!({"name": tool, "arguments": arguments})),
            raw.modern("tools/call", &json!({"name": tool, "arguments": arguments})),
        ] {
            let result = &reply.body["result"];
            assert_eq!(
                (reply.status, &result["isError"]),
                (200, &json!(true)),
                "{}",
                reply.body
            );
            assert_eq!(
                result["structuredContent"]["error"]["type"], named,
                "{}",
                reply.body
            );
            assert!(result["content"][0]["text"].as_str().unwrap().starts_with(named));
        }
    }
    let call = json!({"name": "read_file"});
    assert_eq!(
        raw.modern("tools/call", &call).body["result"]["structuredContent"]["error"]["type"],
        "empty_body_not_replayable"
    );
    for wrong in [
        json!({"name": "nope", "arguments": {}}),
        json!({"name": "undo", "arguments": {"execution_id": "x"}}),
        json!({"arguments": {}}),
        json!({"name": "read_file", "arguments": ["a"]}),
    ] {
        let reply = raw.legacy("tools/call", &wrong);
        assert_eq!(
            (reply.status, &reply.body["error"]["code"]),
            (200, &json!(-32602)),
            "{wrong}"
        );
    }
    assert_eq!(
        raw.modern_with("tools/call", &json!({"name": "nope"}), &[])
            .status,
        400
    );
}

/// A file that would not fit into a client's buffer is asked for in parts.
#[test]
fn an_answer_stays_below_the_buffers_of_clients() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    std::fs::write(volume.tree.join("large"), "x\n".repeat(3 << 20)).unwrap();
    let read = |more: Value| {
        let mut arguments = json!({"path": "large"});
        arguments
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"name": "read_file", "arguments": arguments})
    };
    let whole = raw.legacy("tools/call", &read(json!({})));
    let error = &whole.body["result"]["structuredContent"]["error"];
    assert_eq!(
        (&error["type"], &error["reason"]),
        (&json!("too_large"), &json!("result_too_large"))
    );
    let part = raw.legacy(
        "tools/call",
        &read(json!({"byte_offset": 0, "byte_limit": 1 << 20})),
    );
    assert_eq!(part.body["result"]["structuredContent"]["bytes"], 1 << 20);
    assert!(part.header("content-length").unwrap().parse::<usize>().unwrap() < 10 << 20);
}

/// A caller that asks for it hears that a command still runs, and has its answer in the same stream.
#[test]
fn a_command_is_answered_in_a_stream_where_that_is_asked_for() {
    let (_home, daemon, volume) = scene();
    let mut raw = Raw::new(&daemon, &volume);
    let params = json!({
        "name": "run_command",
        "arguments": {"command": "echo hi"},
        "idempotencyKey": "c",
        "_meta": {"progressToken": 7},
    });
    let body = raw.request("tools/call", &params);
    let plain = raw.post(
        &[("mcp-protocol-version", LEGACY), ("accept", "application/json")],
        body.as_bytes(),
    );
    assert_eq!(plain.header("content-type"), Some("application/json"));
    assert_eq!(
        plain.body["result"]["structuredContent"]["stdout"], "hi\n",
        "{}",
        plain.body
    );
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {}\r\nmcp-protocol-version: {LEGACY}\r\naccept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
        volume.token,
        body.len()
    );
    let mut stream = std::net::TcpStream::connect(daemon.url.strip_prefix("http://").unwrap()).unwrap();
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    assert!(text.contains("content-type: text/event-stream"), "{text}");
    let data = text
        .lines()
        .find_map(|line| line.strip_prefix("data: "))
        .expect("an event");
    let told: Value = serde_json::from_str(data).unwrap();
    assert_eq!(told["id"], json!(raw.id));
    assert_eq!(told["result"]["structuredContent"]["replayed"], true, "{told}");
}

/// An agent of a job finds the door in its environment, from inside of its sandbox.
#[test]
fn an_agent_of_a_job_finds_the_door() {
    let site = Site::new();
    site.agent(
        r#"
import json, os, sys, urllib.request
body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
headers = {"Authorization": "Bearer " + os.environ["SEMEL_TOKEN"], "Content-Type": "application/json"}
request = urllib.request.Request(os.environ["SEMEL_MCP_URL"], json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as reply:
    sys.exit(40 + len(json.load(reply)["result"]["tools"]))
"#,
    );
    let refusal = site.refused(RUN, 3);
    assert_eq!(text(&refusal["reason"]), "agent_failed");
    assert!(text(&refusal["why"]).contains("55"), "{refusal}");
}
