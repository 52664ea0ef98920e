//! Servers that end, say nothing, too much, or something else: nothing that one may have had is sent again.

use super::{Client, Scene, execution, params, refused, replayed};
use crate::harness::{Home, LONG, wait_until};
use serde_json::json;

/// It may have done it: nobody can tell, and a person decides.
#[test]
fn a_server_that_ends_in_a_call_leaves_an_outcome_that_nobody_knows() {
    for (how, done) in [("die_before", 0), ("die_after", 1)] {
        let scene = Scene::new();
        let daemon = scene.serve();
        let volume = scene.home.open("job", "process");
        let mut client = Client::new(&daemon, &volume);
        let first = client.note("k", how);
        assert_eq!(refused(&first), "outcome_unknown", "{}", first.body);
        assert_eq!(first.body["error"]["code"].as_i64().unwrap() / 100, 409);
        // However often it is asked for, it is not sent again; other calls go on, by another life of the server.
        for _ in 0..3 {
            assert_eq!(refused(&client.note("k", how)), "outcome_unknown");
        }
        assert_eq!(scene.effects(), done, "{how}");
        assert_eq!(replayed(&client.note("other", "")), Some(false));
        assert_eq!(scene.effects(), done + 1);
        let sent = scene
            .seen()
            .iter()
            .filter(|call| call["arguments"]["text"] == "k")
            .count();
        assert_eq!(sent, 1, "{how}");
        let known = execution(&first).to_owned();
        if done == 1 {
            let settled = [
                "resolve",
                &known,
                "--happened",
                "--note",
                "it is there",
                "--by",
                "me",
            ];
            scene.home.json(&settled);
            let told = client.note("k", how);
            assert_eq!(replayed(&told), Some(true), "{}", told.body);
            assert!(
                told.body["result"]["content"][0]["text"]
                    .as_str()
                    .unwrap()
                    .contains("person")
            );
            assert_eq!(scene.effects(), 2);
        } else {
            let settled = [
                "resolve",
                &known,
                "--never-happened",
                "--note",
                "it is not",
                "--by",
                "me",
            ];
            scene.home.json(&settled);
            // It dies again at this very call: free is free.
            assert_eq!(refused(&client.note("k", how)), "outcome_unknown");
            let sent = scene
                .seen()
                .iter()
                .filter(|call| call["arguments"]["text"] == "k")
                .count();
            assert_eq!(sent, 2);
        }
    }
}

#[test]
fn a_call_that_reads_is_not_sent_again_by_itself() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    let reply = client.call("fake__look", None, &json!({"how": "die_once"}));
    assert_eq!(refused(&reply), "io_failed", "{}", reply.body);
    let told = reply.body.to_string();
    assert!(
        told.contains("may have had the call") && !told.contains("nothing was done"),
        "{told}"
    );
    let looks = scene.seen().iter().filter(|seen| seen["name"] == "look").count();
    assert_eq!(looks, 1);
    let reply = client.call("fake__look", None, &json!({"how": "die_once"}));
    assert_eq!(reply.body["result"]["content"][0]["text"], "0", "{}", reply.body);
    assert_eq!(scene.starts(), 2);
}

/// What is under way beside the call that ends it may have been done, too.
#[test]
fn all_that_was_under_way_is_unknown_and_each_alone() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut late = Client::new(&daemon, &volume);
    let call = params(
        "fake__note",
        Some("late"),
        &json!({"text": "late", "how": "late"}),
    );
    late.write("tools/call", &call, &[]).unwrap();
    scene.wait_for("late");
    let mut client = Client::new(&daemon, &volume);
    assert_eq!(refused(&client.note("k", "die_before")), "outcome_unknown");
    assert_eq!(refused(&late.conn.receive("POST").unwrap()), "outcome_unknown");
    assert_eq!(scene.effects(), 1);
    let reply = late.try_ask("tools/call", &call, &[]).unwrap();
    assert_eq!(refused(&reply), "outcome_unknown");
    assert_eq!(scene.effects(), 1);
}

#[test]
fn garbage_second_answers_and_answers_to_others_are_passed_by() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    for how in ["garbage", "twice"] {
        let first = client.note(how, how);
        assert_eq!(replayed(&first), Some(false), "{}", first.body);
        let text = first.body["result"]["content"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(text.starts_with(how), "{text}");
        let again = client.note(how, how);
        assert_eq!(again.body["result"]["content"][0]["text"], text);
    }
    // The answer under an id that nobody asked with answers nobody, and none is taken for it.
    for n in 0..20 {
        let key = format!("k-{n}");
        let reply = client.note(&key, "twice");
        let text = reply.body["result"]["content"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(text.starts_with(&format!("{key} ")), "{text}");
    }
    assert_eq!((scene.effects(), scene.starts()), (22, 1));
}

#[test]
fn a_server_that_gives_no_answer_in_time_may_have_done_it() {
    for how in ["never", "wrong_id"] {
        let scene = Scene::new();
        let daemon = scene.serve_by_file("timeout = \"1s\"", &[]);
        let volume = scene.home.open("job", "process");
        let mut client = Client::new(&daemon, &volume);
        assert_eq!(replayed(&client.note("before", "")), Some(false));
        assert_eq!(refused(&client.note("k", how)), "outcome_unknown");
        assert_eq!(refused(&client.note("k", how)), "outcome_unknown");
        // It lives on.
        assert_eq!(replayed(&client.note("after", "")), Some(false));
        assert_eq!((scene.effects(), scene.starts()), (3, 1), "{how}");
    }
}

/// What comes after the time was up changes nothing: a person may have settled it meanwhile.
/// A task goes on by itself, and nobody here could ask what comes of it.
#[test]
fn a_task_that_nobody_asked_for_is_unknown() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    for _ in 0..2 {
        assert_eq!(refused(&client.note("t", "task")), "outcome_unknown");
    }
    assert_eq!(scene.effects(), 1);
}

#[test]
fn an_answer_that_comes_too_late_is_nobodys() {
    let scene = Scene::new();
    let daemon = scene.serve_by_file("timeout = \"1s\"", &[]);
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    assert_eq!(refused(&client.note("k", "late")), "outcome_unknown");
    scene.let_go("late");
    for _ in 0..3 {
        let other = client.call("fake__note", Some("n"), &json!({"text": "n"}));
        assert!(replayed(&other).is_some(), "{}", other.body);
        assert_eq!(refused(&client.note("k", "late")), "outcome_unknown");
    }
    assert_eq!(scene.effects(), 2);
}

#[test]
fn an_answer_that_is_too_long_is_told_to_have_been_there() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    for again in [false, true] {
        let reply = client.note("k", "huge");
        assert_eq!(replayed(&reply), Some(again), "{}", reply.body);
        assert!(
            reply.body["result"]["content"][0]["text"]
                .as_str()
                .unwrap()
                .contains("left out")
        );
    }
    let read = client.call("fake__look", None, &json!({"how": "huge"}));
    assert_eq!(refused(&read), "too_large", "{}", read.body);
    assert_eq!((scene.effects(), scene.starts()), (1, 1));
}

#[test]
fn a_message_beyond_all_bounds_ends_the_server_and_is_unknown() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    assert_eq!(refused(&client.note("k", "endless")), "outcome_unknown");
    assert_eq!(replayed(&client.note("other", "")), Some(false));
    assert_eq!(scene.effects(), 2);
}

/// Where it never had the call, the key is free, and nothing is unknown.
#[test]
fn a_server_that_does_not_start_leaves_nothing_open() {
    let scene = Scene::new();
    let program = scene.home.path().join("fake.py");
    let text = std::fs::read_to_string(&program).unwrap();
    std::fs::write(&program, "import sys; sys.exit('it is broken')").unwrap();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    let reply = client.note("k", "");
    assert_eq!(refused(&reply), "io_failed", "{}", reply.body);
    assert_eq!(reply.body["error"]["data"]["reason"], "upstream_unavailable");
    assert!(
        reply.body["error"]["message"]
            .as_str()
            .unwrap()
            .contains("it is broken"),
        "{}",
        reply.body
    );
    // Our own tools do not mind.
    let ours = client.call("write_file", Some("w"), &json!({"path": "a", "content": "1"}));
    assert_eq!(ours.body["result"]["structuredContent"]["replayed"], false);
    assert!(!client.tools().iter().any(|tool| tool["name"] == "fake__note"));
    std::fs::write(&program, text).unwrap();
    assert!(wait_until(LONG, || replayed(&client.note("k", "")).is_some()));
    assert_eq!(scene.effects(), 1);
}

#[test]
fn a_list_that_is_none_is_told_and_breaks_nothing() {
    let scene = Scene::new();
    for (list, why) in [
        ("[]", "no object"),
        ("\"x\"", "no object"),
        ("7", "no object"),
        ("null", "no object"),
        ("{\"tools\": 7}", "no such tool"),
        (
            "{\"tools\": [7, null, {\"name\": \"note\"}], \"nextCursor\": [1]}",
            "no such tool",
        ),
    ] {
        std::fs::write(scene.place.join("list"), list).unwrap();
        let daemon = scene.serve();
        let volume = scene.home.open("job", "process");
        let mut client = Client::new(&daemon, &volume);
        let reply = client.note("k", "");
        let told = reply.body["error"]["message"].as_str().unwrap_or_default();
        assert!(told.contains(why), "{list}: {}", reply.body);
        assert!(client.tools().iter().any(|tool| tool["name"] == "write_file"));
        scene.home.json(&["volume", "end", &volume.generation]);
        daemon.kill();
    }
    assert_eq!(scene.effects(), 0);
}

/// A record is told though its server is gone for good.
#[test]
fn a_record_needs_no_server() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    assert_eq!(
        replayed(&Client::new(&daemon, &volume).note("k", "")),
        Some(false)
    );
    daemon.kill();
    std::fs::write(scene.home.path().join("fake.py"), "import sys; sys.exit(1)").unwrap();
    let daemon = scene.serve();
    let mut client = Client::new(&daemon, &volume);
    let again = client.note("k", "");
    assert_eq!(replayed(&again), Some(true), "{}", again.body);
    assert_eq!(
        refused(&client.call("fake__note", Some("k"), &json!({"text": "other"}))),
        "replay_conflict"
    );
    assert_eq!(refused(&client.note("new", "")), "io_failed");
}

/// One that ends at each call is started for each, but not in a circle.
#[test]
fn a_server_that_keeps_ending_is_started_for_calls_alone() {
    let scene = Scene::new();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut client = Client::new(&daemon, &volume);
    for n in 0..4 {
        assert_eq!(
            refused(&client.note(&format!("k-{n}"), "die_after")),
            "outcome_unknown"
        );
    }
    assert_eq!((scene.effects(), scene.starts()), (4, 4));
}

/// The pipe proves it: what lies unread in it when the server is gone was had by nobody, and goes to its next life.
#[test]
fn a_call_that_the_server_never_read_is_sent_to_its_next_life() {
    let scene = Scene::new();
    std::fs::write(scene.home.path().join("fake.py"), include_str!("unread.py")).unwrap();
    let daemon = scene.serve();
    let volume = scene.home.open("job", "process");
    let mut read = Client::new(&daemon, &volume);
    let call = params("fake__note", Some("read"), &json!({"text": "read"}));
    read.write("tools/call", &call, &[]).unwrap();
    scene.wait_for("first");
    let mut unread = Client::new(&daemon, &volume);
    assert_eq!(replayed(&unread.note("unread", "")), Some(false));
    assert_eq!(refused(&read.conn.receive("POST").unwrap()), "outcome_unknown");
    assert_eq!(replayed(&unread.note("unread", "")), Some(true));
    assert_eq!(
        (scene.lines("effects"), scene.starts()),
        (vec!["unread".to_owned()], 2)
    );
}

/// What a person writes wrong on the command line is told there, before anything is started or written.
#[test]
fn a_program_that_is_not_there_is_named_at_once() {
    let home = Home::new();
    for (upstream, wanted) in [
        ("fake=no-such-program --port 1", "not_found"),
        ("fake=/no/such/program", "not_found"),
        ("fake=bin/server", "bad_input"),
    ] {
        let out = home.run(&["serve", "--upstream", upstream]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(
            said.starts_with(&format!("error: {wanted}: ")),
            "{upstream}: {said}"
        );
        assert!(
            said.contains("fake") && !out.status.success(),
            "{upstream}: {said}"
        );
        assert!(!home.state().join("daemon.json").exists(), "{upstream}");
    }
}
