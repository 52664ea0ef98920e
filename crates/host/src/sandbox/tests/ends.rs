//! Nothing outlives its command.

use super::{House, alive, go, in_due_time, stands, text, until};
use crate::process::{Cancel, End, TreeEnded, run};
use semel_core::Level;
use std::ffi::OsStr;
use std::time::Duration;

/// A script that leaves forty daemons, each of a session of its own and twice orphaned, and says when they stand.
const DAEMONS: &str = "for i in $(seq 40); do \
    (setsid sh -c 'trap : TERM HUP INT; (touch up-$1; while :; do sleep 0.1; done) & ' sh $i $MARK \
      </dev/null >/dev/null 2>&1 &); done; \
    while [ $(ls | grep -c up-) -lt 40 ]; do sleep 0.01; done; ";

#[test]
fn a_program_runs_and_its_end_is_told() {
    if !stands() {
        return;
    }
    let house = House::new();
    let ended = go(&house.sh("echo out; echo err >&2; cat file; exit 7"));
    assert_eq!(text(&ended.stdout), "out\nin the tree", "{ended:?}");
    assert_eq!(text(&ended.stderr), "err\n");
    assert_eq!(ended.end, End::Exited(7));
    assert_eq!(
        Level::lacking(ended.level.missing.clone()),
        Level::lacking(Vec::new())
    );
    assert_eq!(ended.tree_ended, TreeEnded::Proved);
    let ended = go(&house.sh("kill -KILL $$"));
    assert_eq!(ended.end, End::Signalled(9));
    assert_eq!(ended.tree_ended, TreeEnded::Proved);
}

#[test]
fn daemons_end_with_the_program() {
    if !stands() {
        return;
    }
    let house = House::new();
    let mark = format!("mark{}", house.root.file_name().unwrap().display());
    let ended = go(&house.sh(&DAEMONS.replace("$MARK", &mark)));
    assert!(ended.end.success(), "{ended:?}");
    assert_eq!(ended.tree_ended, TreeEnded::Proved);
    assert_eq!(alive(&mark), Vec::new());
}

#[test]
fn everything_dies_with_a_killed_parent() {
    for how in ["walled", "supervised"] {
        if how == "walled" && !stands() {
            continue;
        }
        let house = House::new();
        let mark = format!("mark{}", house.root.file_name().unwrap().display());
        let script = DAEMONS.replace("$MARK", &mark) + "touch ready; while :; do sleep 1; done";
        let mut parent = std::process::Command::new(std::env::current_exe().unwrap())
            .arg("__run")
            .args([house.root.as_os_str(), OsStr::new(&script), OsStr::new(how)])
            .spawn()
            .unwrap();
        assert!(until(|| house.at("state/v/tree/ready").exists()), "{how}");
        assert!(alive(&mark).len() > 40, "{how}: {:?}", alive(&mark));
        parent.kill().unwrap();
        parent.wait().unwrap();
        assert!(until(|| alive(&mark).is_empty()), "{how}: {:?}", alive(&mark));
    }
}

#[test]
fn a_deadline_ends_who_will_not_end() {
    if !stands() {
        return;
    }
    let house = House::new();
    in_due_time(|pace| {
        let mut command = house.sh("trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done");
        command.deadline = Some(Duration::from_millis(300) * pace);
        command.grace = Duration::from_millis(300) * pace;
        let ended = go(&command);
        assert_eq!((ended.end, ended.tree_ended), (End::TimedOut, TreeEnded::Proved));
        let heard = text(&ended.stdout) == "ready\nasked\n";
        assert!(!heard || ended.took >= Duration::from_millis(600) * pace);
        heard.then_some(())
    });
    // Who ends when asked is not made to wait for the grace.
    in_due_time(|pace| {
        let script = "trap 'echo cleaned; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
        let mut command = house.sh(script);
        command.deadline = Some(Duration::from_millis(300) * pace);
        command.grace = Duration::from_secs(3600);
        let ended = go(&command);
        assert_eq!((ended.end, ended.tree_ended), (End::TimedOut, TreeEnded::Proved));
        (text(&ended.stdout) == "ready\ncleaned\n").then_some(())
    });
}

#[test]
fn a_second_cancellation_kills_at_once() {
    if !stands() {
        return;
    }
    let house = House::new();
    let mut command = house.sh("trap 'touch asked' TERM; touch ready; while :; do sleep 0.05; done");
    command.grace = Duration::from_secs(3600);
    let cancel = Cancel::new().unwrap();
    let ended = std::thread::scope(|scope| {
        let running = scope.spawn(|| run(&command, &cancel).unwrap());
        assert!(until(|| house.at("state/v/tree/ready").exists()));
        cancel.cancel();
        assert!(until(|| house.at("state/v/tree/asked").exists()));
        cancel.cancel();
        running.join().unwrap()
    });
    assert_eq!((ended.end, ended.tree_ended), (End::Cancelled, TreeEnded::Proved));
}

/// Reads the parent of a process.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[test]
fn a_killed_keeper_takes_everything_along_and_proves_nothing() {
    if !stands() {
        return;
    }
    let house = House::new();
    let mark = format!("mark{}", house.root.file_name().unwrap().display());
    let script = format!("sh -c 'touch ready; while :; do sleep 0.1; done' {mark}");
    let ended = std::thread::scope(|scope| {
        let running = scope.spawn(|| go(&house.sh(&script)));
        assert!(until(|| house.at("state/v/tree/ready").exists()));
        let marked = alive(&mark);
        let mut pid = marked.first().unwrap().0;
        // Up to the child of this process: the outer one.
        while parent_of(pid).unwrap() != std::process::id() {
            pid = parent_of(pid).unwrap();
        }
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        running.join().unwrap()
    });
    assert_eq!(
        (ended.end, ended.tree_ended),
        (End::Signalled(9), TreeEnded::Unproved)
    );
    assert!(until(|| alive(&mark).is_empty()), "{:?}", alive(&mark));
}
