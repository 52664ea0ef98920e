//! A call of several effects of which a later one cannot be had, because another program was faster: what was done is
//! taken back, whoever dies meanwhile.

use super::lab::Lab;
use super::tree::{Picture, picture, put};
use crate::harness::{Conn, Reply, Share, wait_until};
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What another program does between the intent and the effects.
struct Outside {
    name: &'static str,
    patch: &'static str,
    does: fn(&Path),
    /// The last moment before the effect that cannot be had; where it is not the first one, what the other program did by
    /// then is seen in time.
    late: &'static str,
    /// With what the call is refused.
    refused: (&'static str, &'static str),
    /// What becomes of the call where the daemon dies before it records that the call is taken back.
    early: Early,
}

/// What becomes of a call whose daemon died early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Early {
    /// What happened of it is taken back, and its key is free.
    Freed,
    /// A move is told by its two names alone; by now both are other than before.
    Unknown,
}

fn before(dir: &Path) {
    put(&dir.join("u"), "one\n", 0o640);
    put(&dir.join("v"), "two\n", 0o644);
    put(&dir.join("m"), "three\n", 0o600);
}

fn save(place: &Path) {
    let new = place.with_extension("new");
    put(&new, "from outside\n", 0o644);
    std::fs::rename(new, place).unwrap();
}

const CHANGED: (&str, &str) = ("precondition_failed", "changed_meanwhile");

const OUTSIDE: &[Outside] = &[
    Outside {
        name: "saves the second file of two that are updated",
        patch: "*** Update File: DIR/u\n@@\n-one\n+1\n*** Update File: DIR/v\n@@\n-two\n+2\n",
        does: |dir| save(&dir.join("v")),
        late: "target_seen:2",
        refused: CHANGED,
        early: Early::Freed,
    },
    Outside {
        name: "writes into the file that is updated after two were made in a new directory",
        patch: "*** Add File: DIR/new/a\n+a\n*** Add File: DIR/new/deep/b\n+b\n\
                *** Update File: DIR/v\n@@\n-two\n+2\n",
        does: |dir| put(&dir.join("v"), "from outside\n", 0o644),
        late: "target_seen:1",
        refused: CHANGED,
        early: Early::Freed,
    },
    Outside {
        name: "saves the file that is removed after another was",
        patch: "*** Delete File: DIR/u\n*** Delete File: DIR/v\n",
        does: |dir| save(&dir.join("v")),
        late: "target_seen:2",
        refused: CHANGED,
        early: Early::Freed,
    },
    Outside {
        name: "removes the file that is removed after another was moved",
        patch: "*** Update File: DIR/m\n*** Move to: DIR/m2\n*** Delete File: DIR/v\n",
        does: |dir| std::fs::remove_file(dir.join("v")).unwrap(),
        late: "target_seen:2",
        refused: ("not_found", ""),
        early: Early::Freed,
    },
    Outside {
        name: "takes the name of a new file",
        patch: "*** Update File: DIR/u\n@@\n-one\n+1\n*** Add File: DIR/w\n+w\n",
        does: |dir| put(&dir.join("w"), "from outside\n", 0o644),
        late: "installed:1",
        refused: CHANGED,
        early: Early::Freed,
    },
    Outside {
        name: "takes the name that a file is moved to",
        patch: "*** Update File: DIR/u\n@@\n-one\n+1\n*** Update File: DIR/m\n*** Move to: DIR/m2\n",
        does: |dir| put(&dir.join("m2"), "from outside\n", 0o644),
        late: "target_seen:2",
        refused: ("precondition_failed", "exists"),
        early: Early::Freed,
    },
    Outside {
        name: "saves the file that is moved",
        patch: "*** Update File: DIR/u\n@@\n-one\n+1\n*** Update File: DIR/m\n*** Move to: DIR/m2\n",
        does: |dir| save(&dir.join("m")),
        late: "target_seen:2",
        refused: CHANGED,
        early: Early::Unknown,
    },
    Outside {
        name: "removes the file that is moved",
        patch: "*** Delete File: DIR/u\n*** Update File: DIR/m\n*** Move to: DIR/m2\n",
        does: |dir| std::fs::remove_file(dir.join("m")).unwrap(),
        late: "target_seen:2",
        refused: ("not_found", ""),
        early: Early::Unknown,
    },
];

struct Trial {
    place: PathBuf,
    key: String,
    arguments: Value,
    /// What stands there after the other program, and nobody else.
    left: Picture,
}

/// Gives what stands there after the other program, and nobody else.
fn left_by(outside: &Outside) -> Picture {
    let scratch = tempfile::tempdir().unwrap();
    super::tree::chmod(scratch.path(), 0o755);
    before(scratch.path());
    (outside.does)(scratch.path());
    picture(scratch.path())
}

/// Makes the call, holds it for the other program to go first, and gives the answer; `None` where the daemon died.
fn call(lab: &mut Lab, outside: &Outside, moment: &str, args: &[&str]) -> (Trial, Option<Reply>) {
    let held = lab.home.path().join("held");
    let hold = format!("{moment}={}", held.display());
    lab.restart(&[&["--hold-at", &hold], args].concat());
    let dir = lab.fresh(before);
    let place = lab.volume.tree.join(&dir);
    let patch = format!("*** Begin Patch\n{}*** End Patch\n", outside.patch).replace("DIR", &dir);
    let arguments = json!({ "patch": patch });
    let key = format!("k-{dir}");
    let daemon = lab.daemon.as_mut().unwrap();
    let (url, volume) = (daemon.url.clone(), &lab.volume);
    let reply = std::thread::scope(|scope| {
        let call = scope.spawn(|| Conn::tcp(&url).try_call(volume, "apply_patch", &key, &arguments));
        assert!(wait_until(Duration::from_secs(30), || held.exists()));
        (outside.does)(&place);
        std::fs::remove_file(&held).unwrap();
        call.join().unwrap()
    });
    if reply.is_none() {
        let status = daemon.ended(Duration::from_secs(60)).expect("it dies");
        assert_eq!(status.signal(), Some(9));
        lab.daemon = None;
    }
    let trial = Trial {
        place,
        key,
        arguments,
        left: left_by(outside),
    };
    (trial, reply)
}

fn again(lab: &Lab, trial: &Trial) -> Reply {
    let daemon = lab.daemon.as_ref().unwrap();
    daemon
        .conn()
        .call(&lab.volume, "apply_patch", &trial.key, &trial.arguments)
}

/// Holds what a call that was refused has to leave: nothing of its own, and the same refusal when it is sent again.
fn refused(lab: &Lab, outside: &Outside, trial: &Trial, label: &str) {
    assert_eq!(picture(&trial.place), trial.left, "{label}");
    let again = again(lab, trial);
    assert_eq!(
        (again.code(), again.reason()),
        outside.refused,
        "{label}: {}",
        again.body
    );
    assert_eq!(again.body["replayed"], json!(true), "{label}");
    assert_eq!(picture(&trial.place), trial.left, "{label}");
    assert_eq!(staged(lab), 0, "{label}");
}

/// Counts what is left in `staging/` of executions that are not unknown.
fn staged(lab: &Lab) -> usize {
    if lab.volume.staged() == 0 {
        return 0;
    }
    let unknown: Vec<String> = lab.unknown();
    let staging = lab.volume.tree.parent().unwrap().join("staging");
    let names = std::fs::read_dir(staging).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| !unknown.iter().any(|id| name.starts_with(id.as_str())))
        .count()
}

/// Says how often the daemon dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kills {
    /// Once.
    One,
    /// Once, and again while it recovers.
    Two,
}

/// Lets another program be faster at one moment, and the daemon die at every point after that, or at a share of them.
fn taken_back_from(
    lab: &mut Lab,
    outside: &Outside,
    moment: &str,
    (kills, share): (Kills, &mut Share),
) -> usize {
    let mut trials = 0;
    let (trial, reply) = call(lab, outside, moment, &[]);
    let reply = reply.expect("an answer");
    assert_eq!(
        (reply.code(), reply.reason(), &reply.body["replayed"]),
        (outside.refused.0, outside.refused.1, &json!(false)),
        "{} at {moment}: {}",
        outside.name,
        reply.body
    );
    let points = lab.told();
    refused(lab, outside, &trial, outside.name);
    let nth = |name: &str| points.iter().position(|point| point == name).unwrap();
    let (held, aborting) = (nth(moment), nth("aborting:1"));
    for (n, at) in points.iter().enumerate().skip(held + 1) {
        if !share.takes() {
            continue;
        }
        let (trial, _) = call(lab, outside, moment, &["--crash-at", at]);
        let recovery = lab.restart(&[]);
        after(lab, outside, &trial, (n, aborting), at);
        trials += 1;
        let again = kills == Kills::Two && !at.starts_with("receipted");
        for second in recovery.iter().filter(|_| again && share.takes()) {
            let label = format!("{at}, then {second}");
            let (trial, _) = call(lab, outside, moment, &["--crash-at", at]);
            let status = lab.dies(&["--crash-at", second]);
            assert_eq!(status.signal(), Some(9), "{}: {label}", outside.name);
            lab.restart(&[]);
            after(lab, outside, &trial, (n, aborting), &label);
            trials += 1;
        }
    }
    trials
}

pub(super) fn taken_back(lab: Lab, kills: Kills, label: &str) {
    let mut lab = lab;
    let (mut trials, mut share) = (0, Share::of(7));
    for outside in OUTSIDE {
        for moment in ["begun:1", outside.late] {
            trials += taken_back_from(&mut lab, outside, moment, (kills, &mut share));
        }
    }
    eprintln!("{label}, taken back: {trials} trials, 0 lost, 0 double");
}

fn after(lab: &Lab, outside: &Outside, trial: &Trial, (n, aborting): (usize, usize), label: &str) {
    let label = format!("{}: {label}", outside.name);
    if n >= aborting {
        return refused(lab, outside, trial, &label);
    }
    if outside.early == Early::Unknown {
        let again = again(lab, trial);
        assert_eq!((again.status, again.code()), (409, "outcome_unknown"), "{label}");
        // What the other program put there, or nothing, is at one of the two names.
        let there = picture(&trial.place);
        let lies = |all: &Picture| {
            ["m", "m2"]
                .iter()
                .find_map(|name| all.get(Path::new(name)).cloned())
        };
        assert_eq!(lies(&there), lies(&trial.left), "{label}");
        return;
    }
    assert_eq!(picture(&trial.place), trial.left, "{label}");
    assert_eq!(staged(lab), 0, "{label}");
    // Nobody was told anything: the key is free, and the call meets what the other program left.
    let again = again(lab, trial);
    assert_ne!(again.body["replayed"], json!(true), "{label}: {}", again.body);
    assert!([200, 404, 412].contains(&again.status), "{label}: {}", again.body);
    if again.status != 200 {
        assert_eq!(picture(&trial.place), trial.left, "{label}");
    }
}

#[test]
fn what_was_done_is_taken_back_in_durability_process() {
    taken_back(Lab::new("process"), Kills::Two, "process");
}

#[test]
fn what_was_done_is_taken_back_in_durability_power() {
    taken_back(Lab::new("power-best-effort"), Kills::One, "power-best-effort");
}
