//! Other servers behind the gateway, for an agent that sends no keys.

use super::Scene;
use crate::bridge::Agent;
use serde_json::json;

/// The gateway that comes after a killed one may know nothing of the server: what it says is no word on the call.
#[test]
fn a_gateway_without_the_server_settles_nothing() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut agent = Agent::start(&scene.home, &volume, &[]);
    let arguments = json!({"text": "x", "how": "late"});
    agent.send(1, "fake__note", &arguments);
    scene.wait_for("late");
    daemon.kill();
    let daemon = scene.home.serve(&[]);
    let answer = agent.hear();
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    daemon.kill();
    let _daemon = scene.serve();
    for id in 2..4 {
        let answer = agent.call(id, "fake__note", &arguments);
        let kind = &answer["error"]["data"]["type"];
        assert_eq!(kind, "outcome_unknown", "{answer}");
    }
    assert_eq!(scene.effects(), 1);
}

/// A server may have a use of its own for an argument of that name.
#[test]
fn a_tool_with_an_argument_named_like_a_key_has_it_and_a_key_too() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut agent = Agent::start(&scene.home, &volume, &[]);
    let listed = agent.ask(1, "tools/list", &json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    for tool in tools {
        let shown = tool["inputSchema"]["properties"].get("idempotency_key").is_some();
        assert_eq!(shown, tool["name"] == "fake__own", "{tool}");
    }
    let arguments = json!({"text": "x", "idempotency_key": "mine"});
    let answer = agent.call(2, "fake__own", &arguments);
    assert_eq!(answer["result"]["_meta"]["dev.semel/replayed"], false, "{answer}");
    assert_eq!(scene.seen().last().unwrap()["arguments"], arguments);
    // The gateway may be another one in between.
    daemon.kill();
    let _daemon = scene.serve();
    let answer = agent.call(3, "fake__own", &arguments);
    assert_eq!(answer["result"]["_meta"]["dev.semel/replayed"], false, "{answer}");
    assert_eq!(scene.effects(), 2);
}
