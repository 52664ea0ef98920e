//! A bridge that is killed at every system call by which it remembers, forwards and answers; and one for which each fails.

use super::{Agent, aimed, lay, mark, marks, replayed};
use crate::harness::{Home, Share, Volume, skipped};
use serde_json::json;
use std::collections::BTreeMap;
use std::process::Command;

/// What it calls that changes something, or tells somebody.
const CALLS: &[&str] = &[
    "mkdir",
    "mkdirat",
    "openat",
    "flock",
    "write",
    "writev",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "renameat2",
    "unlinkat",
    "connect",
    "sendto",
    "recvfrom",
    "read",
    "poll",
    "epoll_wait",
];

/// What of it can fail, and is then told.
const FAILING: &[&str] = &[
    "flock",
    "fsync",
    "fdatasync",
    "renameat",
    "renameat2",
    "unlinkat",
    "mkdir",
];

fn traced(home: &Home, volume: &Volume, trace: &[&str]) -> Command {
    let log = home.path().join("strace");
    let before = [&["-f", "-qq", "-o", log.to_str().unwrap()], trace].concat();
    let mut command = home.command_under("strace", &before, &[]);
    aimed(&mut command, home, volume, &[]);
    command
}

/// Counts how often one thread makes each of the calls, at most, from beginning to end; `None` where nothing can be traced.
fn counted(home: &Home, volume: &Volume) -> Option<BTreeMap<String, usize>> {
    let trace = format!("trace={}", CALLS.join(","));
    let mut command = traced(home, volume, &["-e", &trace]);
    command.stderr(std::process::Stdio::null());
    let mut agent = Agent::of(&mut command);
    agent.send(1, "edit_file", &mark());
    let answer = agent.try_hear()?;
    assert!(!replayed(&answer));
    agent.ends();
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in std::fs::read_to_string(home.path().join("strace"))
        .unwrap()
        .lines()
    {
        let Some((thread, rest)) = line.split_once(' ') else {
            continue;
        };
        if let Some((name, _)) = rest.trim_start().split_once('(')
            && CALLS.contains(&name)
        {
            *seen.entry((thread.to_owned(), name.to_owned())).or_default() += 1;
        }
    }
    let mut most = BTreeMap::new();
    for ((_, name), count) in seen {
        let known = most.entry(name).or_insert(0);
        *known = count.max(*known);
    }
    Some(most)
}

fn scene() -> (Home, crate::harness::Daemon, Volume) {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "power-best-effort");
    lay(&volume);
    (home, daemon, volume)
}

#[test]
fn killed_at_any_system_call_the_same_call_has_one_effect() {
    let (home, _daemon, volume) = scene();
    let Some(most) = counted(&home, &volume) else {
        return skipped("strace cannot run a program here");
    };
    for call in ["write", "fdatasync", "flock"] {
        assert!(most.contains_key(call), "{call}: {most:?}");
    }
    let mut share = Share::of(4);
    let (mut trials, mut killed) = (0, 0);
    for (call, count) in &most {
        for when in 1..=*count {
            // To be killed at the next look at nothing is much the same.
            if !share.takes() {
                continue;
            }
            lay(&volume);
            let inject = format!("inject={call}:signal=SIGKILL:when={when}");
            let mut agent = Agent::of(&mut traced(
                &home,
                &volume,
                &["-e", &format!("trace={call}"), "-e", &inject],
            ));
            agent.send(1, "edit_file", &mark());
            let first = agent.try_hear();
            // Where it was answered and read, the kill comes behind the call: then the client has what it wanted.
            match first {
                Some(answer) => assert_eq!(answer["result"]["isError"], false, "{inject}: {answer}"),
                None => {
                    killed += 1;
                    drop(agent);
                    let mut agent = Agent::start(&home, &volume, &[]);
                    let answer = agent.call(1, "edit_file", &mark());
                    assert_eq!(answer["result"]["isError"], false, "{inject}: {answer}");
                    agent.ends();
                }
            }
            assert_eq!(marks(&volume), 1, "{inject}");
            trials += 1;
            // What a killed one left is not the next one's.
            for spool in super::spools(&home) {
                std::fs::remove_file(spool).unwrap();
            }
        }
    }
    eprintln!("a bridge killed at {killed} system calls of {trials} trials: each call had one effect");
    assert!(killed > 0);
}

/// What cannot be kept is not sent; what is sent is kept.
#[test]
fn a_spool_that_fails_is_told_and_nothing_is_sent_that_is_not_kept() {
    let (home, _daemon, volume) = scene();
    let Some(most) = counted(&home, &volume) else {
        return skipped("strace cannot run a program here");
    };
    let mut refused = 0;
    for call in FAILING {
        for when in 1..=most.get(*call).copied().unwrap_or_default() {
            lay(&volume);
            let inject = format!("inject={call}:error=ENOSPC:when={when}");
            let mut agent = Agent::of(&mut traced(
                &home,
                &volume,
                &["-e", &format!("trace={call}"), "-e", &inject],
            ));
            let answer = agent.call(1, "edit_file", &mark());
            if answer.get("error").is_some() {
                assert_eq!(answer["error"]["data"]["type"], "io_failed", "{inject}: {answer}");
                assert_eq!(marks(&volume), 0, "{inject}");
                refused += 1;
                // It mends itself.
                let answer = agent.call(2, "edit_file", &mark());
                assert_eq!(answer["result"]["isError"], json!(false), "{inject}: {answer}");
            }
            assert_eq!(marks(&volume), 1, "{inject}");
            agent.ends();
        }
    }
    assert!(refused > 0);
}
