//! What a certificate says of the other attempts at its proposal.

use crate::harness::{Site, statement, text};
use serde_json::{Value, json};
use std::time::Duration;

fn certify<'a>(job: &'a str, proposal: &'a str, test: &'a str) -> Vec<&'a str> {
    let args = [
        "certify",
        "--from",
        "job.toml",
        "--proposal",
        proposal,
        "--job",
        job,
    ];
    [&args[..], &["--test", test]].concat()
}

const GOOD: &str = "python3 check.py {report}";
const SLOW: &str = "tail -f /dev/null {report}";

/// Certifies once; gives the proposal.
fn first(site: &Site) -> String {
    let args = ["certify", "--from", "job.toml", "--repository", "repo"];
    let base = site.base.clone();
    let done = site.json(&[&args[..], &["--git", &base, "--job", "first"]].concat());
    text(&done["proposal"]).to_owned()
}

/// Certifies, and gives the verdicts of the attempts before.
fn earlier(site: &Site, job: &str, proposal: &str) -> Vec<Value> {
    let done = site.json(&certify(job, proposal, GOOD));
    let predicate = statement(text(&done["envelope"]).as_ref())["predicate"].clone();
    let earlier = predicate["earlier"].as_array().unwrap();
    earlier.iter().map(|one| one["verdict"].clone()).collect()
}

#[test]
fn an_attempt_at_work_has_not_died_and_one_that_was_killed_has() {
    let site = Site::new();
    let proposal = first(&site);
    let mut slow = site.spawn(&certify("slow", &proposal, SLOW));
    assert!(slow.hears("record   "));
    assert_eq!(earlier(&site, "second", &proposal), ["pass"]);
    // And it is not passed over: who tries many times at once has tried many times.
    let of_slow = site.volumes().into_iter().find(|volume| volume["job"] == "slow");
    let done = site.json(&certify("beside", &proposal, GOOD));
    let predicate = statement(text(&done["envelope"]).as_ref())["predicate"].clone();
    let open = json!([{"attempt": 1, "generation": of_slow.unwrap()["generation"]}]);
    assert_eq!(predicate["open"], open, "{predicate}");
    let policy = site.run(&["key", "show", "--policy"]).stdout;
    let policy = format!("{}max_attempts = 1\n", String::from_utf8(policy).unwrap());
    std::fs::write(site.at("policy.toml"), policy).unwrap();
    let gate = [
        "gate",
        "--certificate",
        text(&done["envelope"]),
        "--repository",
        "repo",
        "--commit",
        &site.base,
        "--policy",
        "policy.toml",
    ];
    let refused = site.refused(&gate, 30)["verdict"]["checks"].clone();
    let attempts = refused
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "attempts");
    assert_eq!(
        attempts.unwrap()["actual"],
        "2, 1 of them still open when this one was signed",
        "{refused}"
    );
    assert!(
        slow.child.try_wait().unwrap().is_none(),
        "it was at work all the time"
    );
    slow.signal(libc::SIGKILL);
    assert!(slow.ends(Duration::from_secs(10)).is_some());
    assert_eq!(
        earlier(&site, "third", &proposal),
        ["pass", "dirty_volume", "pass", "pass"]
    );
}

/// Which proposal an attempt was at is kept in the journal: it outlives the files.
#[test]
fn a_killed_attempt_counts_when_its_volume_is_destroyed() {
    let site = Site::new();
    let proposal = first(&site);
    let mut slow = site.spawn(&certify("slow", &proposal, SLOW));
    assert!(slow.hears("record   "));
    slow.signal(libc::SIGKILL);
    assert!(slow.ends(Duration::from_secs(10)).is_some());
    let before = earlier(&site, "second", &proposal);
    assert_eq!(before, ["pass", "dirty_volume"]);
    let of_slow = |site: &Site| {
        let listed = site.json(&["volume", "list", "--all"]);
        let volumes = listed["volumes"].as_array().unwrap().clone();
        let mut of = volumes
            .into_iter()
            .filter(|volume| volume["job"] == "slow" && volume["role"] == "cert");
        of.next().unwrap()
    };
    let killed = of_slow(&site);
    assert_eq!(killed["proposal"], proposal.as_str());
    site.run(&["volume", "end", text(&killed["generation"])]);
    let out = site.run(&["volume", "destroy", text(&killed["generation"])]);
    assert!(out.status.success(), "{}", crate::harness::said(&out));
    assert_eq!(of_slow(&site)["state"], "destroyed");
    assert_eq!(
        earlier(&site, "third", &proposal),
        ["pass", "dirty_volume", "pass"]
    );
}
