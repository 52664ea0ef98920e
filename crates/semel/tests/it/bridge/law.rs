//! The gateway is killed at any time while the official client calls through the bridge: no call is lost, none has two
//! effects, and each is answered.

use super::{bridge, lay};
use crate::crash::lab::Chance;
use crate::harness::{Daemon, Home, full, said, skipped};
use crate::mcp::clients::{installed, root};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Between effect and reply.
const BETWEEN: &[&str] = &["acted", "receipted"];

#[test]
fn gateways_killed_at_any_time_lose_and_double_nothing() {
    let Some(python) = installed("python-1/bin/python") else {
        return skipped("scripts/setup.sh has not installed the Python clients");
    };
    let rounds = if full() { 500 } else { 8 };
    let mut chance = Chance::new();
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    lay(&volume);
    let stop = home.path().join("stop");
    let through = bridge(&home, &volume, &[]);
    let mut client = Command::new(python)
        .arg(root().join("scripts/mcp/steady.py"))
        .arg(&stop)
        .arg(through.get_program())
        .args(through.get_args())
        .env("SEMEL_TOKEN", &volume.token)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut between = 0;
    for _ in 0..rounds {
        if chance.below(2) == 0 {
            std::thread::sleep(Duration::from_millis(chance.below(120) as u64));
            daemon.kill();
            // As often as not, the next one kills itself right between an effect and its reply.
            let point = format!("{}:{}", BETWEEN[chance.below(2)], chance.below(6) + 1);
            daemon = home.serve(&["--crash-at", &point]);
        } else {
            let ended = daemon.ended(Duration::from_millis(chance.below(400) as u64));
            between += usize::from(ended.is_some());
            daemon.kill();
            daemon = home.serve(&[]);
        }
        assert!(
            client.try_wait().unwrap().is_none(),
            "the client goes on, seed {}",
            chance.seed
        );
    }
    // The last one may be about to kill itself; nobody would start another for what the client is at.
    daemon.kill();
    let daemon = home.serve(&[]);
    std::fs::write(&stop, "").unwrap();
    let out = client.wait_with_output().unwrap();
    assert!(out.status.success(), "seed {}: {}", chance.seed, said(&out));
    let seen: Value = serde_json::from_slice(&out.stdout).unwrap();
    let calls = seen["calls"].as_u64().unwrap();
    assert_eq!(seen["errors"], Value::Array(Vec::new()), "seed {}", chance.seed);
    let text = std::fs::read_to_string(volume.tree.join("log")).unwrap();
    let mut effects: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines().filter(|line| *line != "END") {
        *effects.entry(line).or_default() += 1;
    }
    let double: Vec<_> = effects.iter().filter(|(_, count)| **count > 1).collect();
    assert!(double.is_empty(), "seed {}: {double:?}", chance.seed);
    assert_eq!(effects.len() as u64, calls, "none is lost, seed {}", chance.seed);
    let faults = &home.json(&["check"])["report"]["faults"];
    assert_eq!(*faults, Value::Array(Vec::new()));
    drop::<Daemon>(daemon);
    eprintln!(
        "{rounds} kills of the gateway under {calls} calls of the official client through the bridge, {between} of them \
         between effect and reply, {} answers from the record: 0 lost, 0 double (seed {})",
        seen["replayed"], chance.seed
    );
}
