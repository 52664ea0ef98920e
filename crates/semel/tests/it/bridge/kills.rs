//! Gateways and bridges that are killed at a point, and the same call again: one effect.

use super::{Agent, held, mark, marks, replayed, scene, spools, until, wait_for};
use serde_json::json;
use std::os::fd::AsRawFd as _;

/// Points before and after the intent, and after the effect.
const POINTS: &[&str] = &["checked", "begun", "acted", "receipted"];

#[test]
fn a_gateway_that_is_killed_at_a_point_costs_its_client_nothing() {
    for point in POINTS {
        let (home, daemon, volume, file) = held(point);
        let mut agent = Agent::start(&home, &volume, &[]);
        agent.send(1, "edit_file", &mark());
        wait_for(&file);
        daemon.kill();
        std::fs::remove_file(&file).unwrap();
        let _daemon = home.serve(&[]);
        let answer = agent.hear();
        assert_eq!(answer["result"]["isError"], false, "{point}: {answer}");
        assert_eq!(marks(&volume), 1, "{point}");
    }
}

#[test]
fn a_bridge_that_is_killed_after_it_forwarded_finds_its_call_again() {
    for point in POINTS {
        let (home, _daemon, volume, file) = held(point);
        let mut agent = Agent::start(&home, &volume, &[]);
        agent.send(1, "edit_file", &mark());
        wait_for(&file);
        agent.kill();
        let mut agent = Agent::start(&home, &volume, &[]);
        agent.send(1, "edit_file", &mark());
        std::fs::remove_file(&file).unwrap();
        let answer = agent.hear();
        assert_eq!(answer["result"]["isError"], false, "{point}: {answer}");
        assert_eq!(marks(&volume), 1, "{point}");
        // It was delivered: the same call is another one now.
        assert!(!replayed(&agent.call(2, "edit_file", &mark())));
        assert_eq!(marks(&volume), 2, "{point}");
    }
}

/// Says how many bytes lie in a pipe.
fn unread(agent: &Agent) -> i32 {
    let mut count: libc::c_int = 0;
    // SAFETY: the descriptor is open, and the kernel writes one int to `count`.
    #[expect(unsafe_code, reason = "std has no way to ask how much lies in a pipe")]
    let asked = unsafe { libc::ioctl(agent.output.get_ref().as_raw_fd(), libc::FIONREAD, &raw mut count) };
    assert_eq!(asked, 0);
    count
}

#[test]
fn a_bridge_that_is_killed_after_it_answered_whom_nobody_heard_answers_again() {
    let (home, _daemon, volume) = scene();
    let mut agent = Agent::start(&home, &volume, &[]);
    agent.send(1, "edit_file", &mark());
    until("an answer is written", || unread(&agent) > 0);
    agent.kill();
    let mut agent = Agent::start(&home, &volume, &[]);
    assert!(replayed(&agent.call(1, "edit_file", &mark())));
    assert_eq!(marks(&volume), 1);
}

/// Agents send the next call before they read the last answer.
#[test]
fn what_was_sent_meanwhile_does_not_prove_that_an_answer_was_read() {
    let (home, _daemon, volume) = scene();
    let mut agent = Agent::start(&home, &volume, &[]);
    agent.send(1, "edit_file", &mark());
    until("an answer is written", || unread(&agent) > 0);
    let first = unread(&agent);
    agent.send(2, "write_file", &json!({"path": "other", "content": "1"}));
    until("another answer is written", || unread(&agent) > first);
    agent.kill();
    let mut agent = Agent::start(&home, &volume, &[]);
    assert!(replayed(&agent.call(1, "edit_file", &mark())));
    assert_eq!(marks(&volume), 1);
}

#[test]
fn what_was_read_is_not_answered_from_the_record_by_the_next_bridge() {
    let (home, _daemon, volume) = scene();
    let mut agent = Agent::start(&home, &volume, &[]);
    assert!(!replayed(&agent.call(1, "edit_file", &mark())));
    // Nothing more comes, and yet it is seen that the answer was read.
    let spool = spools(&home).remove(0);
    until("it is seen", || {
        std::fs::read_to_string(&spool).unwrap().contains("settled")
    });
    agent.kill();
    let mut agent = Agent::start(&home, &volume, &[]);
    assert!(!replayed(&agent.call(1, "edit_file", &mark())));
    assert_eq!(marks(&volume), 2);
}

#[test]
fn a_repeat_after_a_kill_is_asked_about_or_run_again_as_is_wished() {
    for (reissue, effects) in [("ask", 1), ("execute", 2)] {
        let (home, _daemon, volume, file) = held("receipted");
        let mut agent = Agent::start(&home, &volume, &[]);
        agent.send(1, "edit_file", &mark());
        wait_for(&file);
        agent.kill();
        std::fs::remove_file(&file).unwrap();
        let mut agent = Agent::start(&home, &volume, &["--reissue", reissue]);
        let answer = agent.call(1, "edit_file", &mark());
        if reissue == "execute" {
            assert!(!replayed(&answer));
        } else {
            // The model is told: it can look, and decide.
            let error = &answer["result"]["structuredContent"]["error"];
            assert_eq!(
                (&error["type"], &error["reason"]),
                (&json!("replay_conflict"), &json!("possible_duplicate")),
                "{answer}"
            );
            assert_eq!(
                error["names"].as_array().unwrap().len(),
                1,
                "the execution: {error}"
            );
            let other = json!({"path": "a", "content": "1"});
            assert!(
                !replayed(&agent.call(2, "write_file", &other)),
                "another call is another one"
            );
        }
        assert_eq!(marks(&volume), effects, "{reissue}");
    }
}

#[test]
fn two_bridges_at_once_do_not_take_each_others_calls() {
    let (home, _daemon, volume, file) = held("begun");
    let mut one = Agent::start(&home, &volume, &[]);
    one.send(1, "edit_file", &mark());
    wait_for(&file);
    let mut other = Agent::start(&home, &volume, &[]);
    other.send(1, "edit_file", &mark());
    std::fs::remove_file(&file).unwrap();
    assert!(!replayed(&one.hear()));
    assert!(!replayed(&other.hear()), "another agent means another effect");
    assert_eq!(marks(&volume), 2);
}

/// Which of two agents begins first says nothing of whose an earlier call was.
#[test]
fn two_bridges_that_were_killed_find_each_its_own_call() {
    let (home, _daemon, volume, file) = held("receipted");
    let mut one = Agent::start(&home, &volume, &[]);
    one.send(1, "edit_file", &mark());
    wait_for(&file);
    let mut other = Agent::start(&home, &volume, &[]);
    let second = json!({"path": "second", "content": "1"});
    other.send(1, "write_file", &second);
    until("both are spooled", || {
        let spooled = |spool: &std::path::PathBuf| {
            std::fs::read_to_string(spool).is_ok_and(|text| text.contains("spooled"))
        };
        spools(&home).iter().filter(|spool| spooled(spool)).count() == 2
    });
    one.kill();
    other.kill();
    std::fs::remove_file(&file).unwrap();
    for order in ["as before", "again"] {
        let mut one = Agent::start(&home, &volume, &[]);
        let mut other = Agent::start(&home, &volume, &[]);
        let read = json!({"path": "log"});
        assert_eq!(one.call(1, "read_file", &read)["result"]["isError"], false);
        if order == "as before" {
            // Both have looked at what is left before either comes to it.
            one.call(2, "write_file", &json!({"path": "a", "content": "1"}));
            other.call(2, "write_file", &json!({"path": "b", "content": "1"}));
            assert!(replayed(&one.call(3, "edit_file", &mark())));
            assert!(replayed(&other.call(3, "write_file", &second)));
            assert_eq!(marks(&volume), 1);
        } else {
            assert!(
                !replayed(&other.call(3, "edit_file", &mark())),
                "each has one owner"
            );
            assert_eq!(marks(&volume), 2);
        }
        assert!(one.ends().1.success());
        assert!(other.ends().1.success());
    }
}

/// Whoever tidies up may take the file away under a bridge that lives.
#[test]
fn a_spool_that_is_taken_away_is_made_again() {
    let (home, _daemon, volume) = scene();
    let mut agent = Agent::start(&home, &volume, &[]);
    agent.call(1, "write_file", &json!({"path": "first", "content": "1"}));
    for spool in spools(&home) {
        std::fs::remove_file(spool).unwrap();
    }
    agent.send(2, "edit_file", &mark());
    until("an answer is written", || unread(&agent) > 0);
    agent.kill();
    let mut agent = Agent::start(&home, &volume, &[]);
    assert!(replayed(&agent.call(1, "edit_file", &mark())));
    assert_eq!(marks(&volume), 1);
}

#[test]
fn a_damaged_spool_is_refused_by_name_and_reads_go_on() {
    let (home, _daemon, volume, file) = held("begun");
    let mut agent = Agent::start(&home, &volume, &[]);
    agent.send(1, "edit_file", &mark());
    wait_for(&file);
    std::fs::remove_file(&file).unwrap();
    agent.hear();
    agent.send(2, "write_file", &json!({"path": "a", "content": "1"}));
    agent.hear();
    agent.kill();
    let spool = spools(&home).remove(0);
    let mut bytes = std::fs::read(&spool).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&spool, bytes).unwrap();
    let mut agent = Agent::start(&home, &volume, &[]);
    let answer = agent.call(1, "edit_file", &mark());
    let data = &answer["error"]["data"];
    assert_eq!(
        (&data["type"], &data["reason"]),
        (&json!("unknown_state"), &json!("spool_damaged")),
        "{answer}"
    );
    let read = agent.call(2, "read_file", &json!({"path": "log"}));
    assert_eq!(read["result"]["isError"], false, "{read}");
    std::fs::remove_file(&spool).unwrap();
    assert!(
        !replayed(&agent.call(3, "edit_file", &mark())),
        "and so does all else, once it is gone"
    );
}
