//! `kill -9` of a restoration, at every point of its way and while its git runs: the index is whole at every moment,
//! the next restoration goes on without waiting for any age, bytes and index are the tree's, and nothing is left.

use super::{Lab, answer, evidence_is_possible, gits};
use crate::harness::{full, said, wait_until};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const POINTS: [&str; 11] = [
    "checked",
    "recorded",
    "taken",
    "swept",
    "linked",
    "restored",
    "verified",
    "published",
    "cleared",
    "aside",
    "released",
];
const LONG: Duration = Duration::from_secs(300);

/// How often each point is tried.
fn times() -> usize {
    if full() { 20 } else { 2 }
}

/// What is true whenever somebody looks.
fn index_is_whole(lab: &Lab) {
    let listed = lab.git_in(&lab.worktree, &["ls-files", "-s"]);
    assert!(listed.lines().count() > 1, "{listed}");
}

/// Restores after a kill; gives how long that took, and how long it waited for the lock.
fn recovered(lab: &Lab, what: &str) -> (Duration, u64) {
    let began = Instant::now();
    let outcome = lab.restored(lab.command(&["--stale", "never"]));
    let waited = outcome["counts"]["waited_ms"].as_u64().unwrap();
    assert_eq!(outcome["counts"]["recovered"], 0, "{what}: {outcome}");
    (began.elapsed(), waited)
}

struct Tally {
    what: String,
    waited: Vec<u64>,
    took: Vec<Duration>,
}

impl Tally {
    fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            waited: Vec::new(),
            took: Vec::new(),
        }
    }

    fn add(&mut self, (took, waited): (Duration, u64)) {
        self.took.push(took);
        self.waited.push(waited);
    }

    fn tell(mut self) {
        self.waited.sort_unstable();
        self.took.sort_unstable();
        let last = self.waited.len() - 1;
        eprintln!(
            "killed at {}: {} times; waited for the lock at most {} ms, half of them {} ms; whole command at most {} ms",
            self.what,
            self.waited.len(),
            self.waited[last],
            self.waited[last / 2],
            self.took[last].as_millis()
        );
        // No age is waited for: that would be ten seconds.
        assert!(self.waited[last] < 9_000, "{:?}", self.waited);
    }
}

#[test]
fn at_every_point_the_next_one_goes_on_at_once() {
    for git in gits() {
        let lab = Lab::new(&git, 40);
        for point in POINTS {
            let mut tally = Tally::new(point);
            for _ in 0..times() {
                lab.spoil();
                let out = lab.command(&["--crash-at", point]).output().unwrap();
                assert_eq!(out.status.code(), None, "{point}: {}", said(&out));
                index_is_whole(&lab);
                tally.add(recovered(&lab, point));
            }
            tally.tell();
        }
    }
}

/// A git that says when its read-tree runs, and stays until it is let go; the real one is its child.
fn slow_git(lab: &Lab, when: &str) -> PathBuf {
    let place = lab.home.path().join(format!("git-{when}"));
    let real = lab.git.display();
    let (running, go) = (lab.home.path().join("running"), lab.home.path().join("go"));
    let stay = format!(
        ": > '{}'; for i in $(seq 3000); do [ -e '{}' ] && break; sleep 0.02; done",
        running.display(),
        go.display()
    );
    let run = match when {
        "before" => format!("{stay}; exec '{real}' \"$@\""),
        "asked" => format!("'{real}' \"$@\"; s=$?; {stay}; exit $s"),
        "deaf" => format!("trap '' TERM; '{real}' \"$@\"; s=$?; {stay}; exit $s"),
        other => panic!("{other}"),
    };
    let script = format!("#!/bin/sh\ncase \"$1\" in read-tree) {run};; esac\nexec '{real}' \"$@\"\n");
    crate::harness::executable(&place, &script);
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).unwrap();
    place
}

/// While git runs: it is asked to end with its parent. One that does not hear is waited for, never overtaken.
#[test]
fn while_git_runs_the_orphan_is_ended_or_awaited() {
    for git in gits() {
        for when in ["before", "asked", "deaf"] {
            let lab = Lab::new(&git, 40);
            let slow = slow_git(&lab, when);
            let (running, go) = (lab.home.path().join("running"), lab.home.path().join("go"));
            let mut tally = Tally::new(format!("a running git, {when}"));
            for _ in 0..times() {
                lab.spoil();
                let mut command = lab.command_by(&slow, &[]);
                let mut child = command
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap();
                assert!(wait_until(LONG, || running.exists()));
                child.kill().unwrap();
                child.wait().unwrap();
                index_is_whole(&lab);
                if when == "deaf" {
                    // It still holds the lock: it is waited for.
                    let held = lab.refused(lab.command(&["--wait", "1s"]), 40, "lock_timeout");
                    assert!(
                        held["why"]
                            .to_string()
                            .contains("the git of a restoration that is gone"),
                        "{held}"
                    );
                    std::fs::write(&go, "").unwrap();
                }
                tally.add(recovered(&lab, when));
                std::fs::write(&go, "").unwrap();
                std::fs::remove_file(&running).unwrap();
                std::fs::remove_file(&go).unwrap();
            }
            tally.tell();
        }
    }
}

/// A stranger's lock that we had adopted when we were killed: it is known by the record beside it.
#[test]
fn an_adopted_lock_is_taken_over_at_once() {
    if !evidence_is_possible() {
        return;
    }
    for git in gits() {
        let lab = Lab::new(&git, 40);
        for point in [
            "adopted",
            "swept",
            "linked",
            "restored",
            "published",
            "cleared",
            "aside",
            "released",
        ] {
            let mut tally = Tally::new(format!("{point}, of an adopted lock"));
            for _ in 0..if full() { 20 } else { 1 } {
                lab.spoil();
                std::fs::write(&lab.lock, "of a dead program").unwrap();
                let args = ["--stale-grace", "1s", "--crash-at", point];
                let out = lab.command(&args).output().unwrap();
                assert_eq!(out.status.code(), None, "{point}: {}", said(&out));
                index_is_whole(&lab);
                tally.add(recovered(&lab, point));
            }
            tally.tell();
        }
        // Killed before it was ours: it is the stranger's still, and is examined anew.
        lab.spoil();
        std::fs::write(&lab.lock, "of a dead program").unwrap();
        let out = lab
            .command(&["--stale-grace", "1s", "--crash-at", "adopting"])
            .output()
            .unwrap();
        assert_eq!(out.status.code(), None, "{}", said(&out));
        assert_eq!(std::fs::read(&lab.lock).unwrap(), b"of a dead program");
        let outcome = lab.restored(lab.command(&["--stale-grace", "1s"]));
        assert_eq!(outcome["counts"]["adopted"], 1);
    }
}

#[test]
fn a_lock_that_is_taken_from_us_is_lost_and_the_thief_keeps_it() {
    for git in gits() {
        for point in ["linked", "restored", "verified", "cleared"] {
            let lab = Lab::new(&git, 4);
            let index = std::fs::read(lab.lock.with_extension("")).unwrap();
            let held = lab.home.path().join("held");
            let hold = format!("{point}={}", held.display());
            let child = lab
                .command(&["--hold-at", &hold])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn();
            let child = child.unwrap();
            assert!(wait_until(LONG, || held.exists()));
            std::fs::remove_file(&lab.lock).unwrap();
            std::fs::write(&lab.lock, "of a thief").unwrap();
            std::fs::remove_file(&held).unwrap();
            let out = child.wait_with_output().unwrap();
            assert_eq!(out.status.code(), Some(42), "{}", said(&out));
            let lost = answer(&out);
            assert_eq!(
                (&lost["code"], &lost["touched"]),
                (&"lock_lost".into(), &"perhaps".into())
            );
            assert_eq!(std::fs::read(&lab.lock).unwrap(), b"of a thief");
            if point != "cleared" {
                assert_eq!(
                    std::fs::read(lab.lock.with_extension("")).unwrap(),
                    index,
                    "{point}"
                );
            }
            assert_eq!(lab.private_files(), Vec::<String>::new());
        }
    }
}

/// An index that is exchanged under our lock is not overwritten.
#[test]
fn an_index_that_is_exchanged_is_left() {
    for git in gits() {
        let lab = Lab::new(&git, 4);
        let (index, held) = (lab.lock.with_extension(""), lab.home.path().join("held"));
        let hold = format!("verified={}", held.display());
        let child = lab
            .command(&["--hold-at", &hold])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.unwrap();
        assert!(wait_until(LONG, || held.exists()));
        let other: &Path = &lab.home.path().join("other");
        std::fs::copy(&index, other).unwrap();
        std::fs::rename(other, &index).unwrap();
        let before = std::fs::read(&index).unwrap();
        std::fs::remove_file(&held).unwrap();
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(42), "{}", said(&out));
        assert_eq!(answer(&out)["reason"], "index_changed");
        assert_eq!(std::fs::read(&index).unwrap(), before);
        lab.nothing_left();
    }
}
