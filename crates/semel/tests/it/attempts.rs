//! What a certificate says of the other attempts at its proposal.

use crate::harness::{Site, certifies, said, statement, text};
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt as _;
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
    let base = site.base.clone();
    let done = site.json(&[&certifies(&base)[..], &["--job", "first"]].concat());
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
    let ended = site.json(&["volume", "end", text(&killed["generation"])]);
    assert_eq!(ended["volume"]["dirty"], "owner_died");
    let out = site.run(&["volume", "destroy", text(&killed["generation"])]);
    assert!(out.status.success(), "{}", said(&out));
    assert_eq!(of_slow(&site)["state"], "destroyed");
    assert_eq!(
        earlier(&site, "third", &proposal),
        ["pass", "dirty_volume", "pass"]
    );
}

/// Whoever killed a process can end or free its volume at once: that its owner is dead is proved by its lock.
#[test]
fn the_volume_of_a_killed_process_is_ended_and_freed_by_hand() {
    let site = Site::new();
    let proposal = first(&site);
    let killed = |job: &str, signal: i32| {
        let mut slow = site.spawn(&certify(job, &proposal, SLOW));
        assert!(slow.hears("record   "));
        let listed = site.json(&["volume", "list", "--job", job]);
        let generation = text(&listed["volumes"][0]["generation"]).to_owned();
        for command in ["end", "destroy"] {
            let out = site.run(&["volume", command, &generation]);
            assert_eq!(out.status.code(), Some(32), "{command}: {}", said(&out));
            let words = said(&out);
            assert!(words.contains("volume_busy (living_owner)"), "{words}");
            assert!(words.contains(&format!("semel cancel {job}")), "{words}");
            assert!(
                !words.contains("semel volume end"),
                "it was refused just now: {words}"
            );
        }
        assert!(slow.child.try_wait().unwrap().is_none(), "its owner lives");
        slow.signal(signal);
        assert!(slow.ends(Duration::from_secs(10)).is_some());
        generation
    };
    let one = killed("one", libc::SIGKILL);
    for how in [&["volume", "end", &one][..], &["volume", "end", "--dirty", &one]] {
        let ended = site.json(how);
        let volume = &ended["volume"];
        assert_eq!(
            (text(&volume["state"]), text(&volume["dirty"])),
            ("quarantined", "owner_died")
        );
    }
    assert_eq!(
        site.json(&["volume", "destroy", &one])["volume"]["state"],
        "destroyed"
    );
    let two = killed("two", libc::SIGKILL);
    let freed = site.json(&["volume", "destroy", &two]);
    assert_eq!(
        (&freed["volume"]["state"], &freed["volume"]["dirty"]),
        (&json!("destroyed"), &json!("owner_died"))
    );
    assert!(!site.home.state().join("volumes/two").join(&two).exists());
    // One that a signal ended by itself has its own reason, and keeps it.
    let three = killed("three", libc::SIGTERM);
    let ended = site.json(&["volume", "end", &three]);
    assert_eq!(ended["volume"]["dirty"], "cancelled");
}

/// One that was killed with its pass recorded has a certificate: it is written before the files go that it is made from.
#[test]
fn a_recorded_pass_is_published_before_its_volume_is_freed() {
    let site = Site::new();
    let proposal = first(&site);
    let args = [&certify("late", &proposal, GOOD)[..], &["--crash-at", "judged"]].concat();
    assert_eq!(site.run(&args).status.signal(), Some(libc::SIGKILL));
    let listed = site.json(&["volume", "list", "--job", "late"]);
    let generation = text(&listed["volumes"][0]["generation"]);
    let envelope = site
        .home
        .state()
        .join(format!("certificates/{generation}.dsse.json"));
    assert!(!envelope.exists());
    let freed = site.json(&["volume", "destroy", generation]);
    assert_eq!(
        (&freed["volume"]["state"], &freed["volume"]["dirty"]),
        (&json!("destroyed"), &Value::Null)
    );
    assert_eq!(statement(&envelope)["predicate"]["verdict"], "pass");
}
