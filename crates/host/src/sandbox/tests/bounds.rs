//! What bounds a tree ends it by name, and the machine goes on.

use super::{House, alive, go, skip, stands, text, until};
use crate::process::{Command, Confinement, End, Ended, TreeEnded};
use semel_core::Bounds;
use semel_core::bounds::Met;
use std::time::Duration;

const NARROW: Bounds = Bounds {
    processes: 60,
    open_files: 64,
    memory_bytes: 96 << 20,
    file_bytes: 1 << 20,
};

fn bounded(house: &House, script: &str) -> Command {
    let mut command = house.sh(script);
    if let Confinement::Sandbox(sandbox) = &mut command.confinement {
        sandbox.bounds = NARROW;
    }
    // So long that it only ever ends a test that is broken.
    command.deadline = Some(Duration::from_secs(120));
    command
}

fn run(script: &str) -> (House, Ended) {
    let house = House::new();
    let ended = go(&bounded(&house, script));
    (house, ended)
}

fn met(script: &str) -> Met {
    let (house, ended) = run(script);
    let End::Bounded(met) = ended.end else {
        panic!("{script}: {ended:?}");
    };
    assert_eq!(ended.tree_ended, TreeEnded::Proved, "{script}");
    assert_eq!(ended.level.bounds, Some(NARROW));
    let mark = house.root.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(until(|| alive(&mark).is_empty()), "{:?}", alive(&mark));
    met
}

fn python() -> bool {
    let found = std::path::Path::new("/usr/bin/python3").exists();
    if !found {
        skip("no python3 of the system");
    }
    found
}

#[test]
fn a_fork_bomb_ends_and_is_named() {
    if !stands() {
        return;
    }
    // Each begets two, for ever, and none ends by itself; the name of the house is in each of their lines.
    let bomb = "b() { sh -c 'sleep 1000' \"$H\" & b \"$1\" & b \"$1\"; }; b $H";
    assert_eq!(met(bomb), Met::Processes);
    // One that does not care for what it is denied.
    let loop_ = "while :; do (sleep 1000 &) 2>/dev/null; done; : $H";
    assert_eq!(met(loop_), Met::Processes);
}

#[test]
fn threads_count_as_processes_do() {
    if !stands() || !python() {
        return;
    }
    let threads = "exec /usr/bin/python3 -I -c '
import threading, time
while True:
    try: threading.Thread(target=time.sleep, args=(1000,)).start()
    except RuntimeError: time.sleep(0.01)
'";
    assert_eq!(met(threads), Met::Processes);
}

#[test]
fn a_memory_hog_ends_and_is_named() {
    if !stands() || !python() {
        return;
    }
    let one = "exec /usr/bin/python3 -I -c '
import time
held = []
while True:
    held.append(bytearray(b\"x\") * (1 << 20)); time.sleep(0.002)
'";
    assert_eq!(met(one), Met::Memory);
    // None of them is over the bound by itself.
    let many = "for i in 1 2 3 4 5 6; do /usr/bin/python3 -I -c '
import time
held = bytearray(b\"x\") * (25 << 20); time.sleep(1000)
' & done; wait";
    assert_eq!(met(many), Met::Memory);
    // Shared by none, and anonymous to nobody.
    let shared = "exec /usr/bin/python3 -I -c '
import mmap, time
held = []
while True:
    m = mmap.mmap(-1, 1 << 20); m.write(b\"x\" * (1 << 20)); held.append(m); time.sleep(0.002)
'";
    assert_eq!(met(shared), Met::Memory);
    // In a filesystem in memory, in files that are each small enough.
    let files = "i=0; while :; do i=$((i+1)); head -c 1000000 /dev/zero > /dev/shm/$i || exit 9; done";
    assert_eq!(met(files), Met::Memory);
}

/// What several processes share is there once.
#[test]
fn shared_memory_is_counted_once() {
    if !stands() || !python() {
        return;
    }
    let (_house, ended) = run("exec /usr/bin/python3 -I -c '
import mmap, os, time
m = mmap.mmap(-1, 16 << 20); m.write(b\"x\" * (16 << 20))
for i in range(8):
    if os.fork() == 0:
        sum(m[at] for at in range(0, 16 << 20, 4096)); time.sleep(0.5); os._exit(0)
for i in range(8): os.wait()
'");
    assert_eq!(ended.end, End::Exited(0), "{ended:?}");
}

#[test]
fn a_file_and_an_open_file_too_many_are_denied() {
    if !stands() {
        return;
    }
    let (house, ended) = run("head -c 2000000 /dev/zero > big; echo $?; ulimit -c; ulimit -n; true");
    assert_eq!(text(&ended.stdout), "153\n0\n64\n", "{ended:?}");
    assert_eq!(house.at("state/v/tree/big").metadata().unwrap().len(), 1 << 20);
    // Who fails for it is told why: the program itself, and one that hides it.
    assert_eq!(met("exec head -c 2000000 /dev/zero > big"), Met::FileSize);
    assert_eq!(
        met("mkdir d; head -c 2000000 /dev/zero > d/big 2>/dev/null || exit 1"),
        Met::FileSize
    );
    let (_house, ended) = run("head -c 1000000 /dev/zero > small; exit 1");
    assert_eq!(ended.end, End::Exited(1), "{ended:?}");
    if python() {
        let (_house, ended) = run("exec /usr/bin/python3 -I -c '
held = []
try:
    while True: held.append(open(\"/dev/null\"))
except OSError as e: print(e.errno, len(held) < 64)
'");
        assert_eq!(text(&ended.stdout), "24 True\n", "{ended:?}");
    }
}

/// Only what a program wrote itself is why it failed, and not what lay there, whatever it is called or dated now.
#[test]
fn a_file_of_the_largest_size_from_before_is_not_blamed() {
    if !stands() {
        return;
    }
    let house = House::new();
    let end = |script: &str| go(&bounded(&house, script)).end;
    let make = "head -c 1048576 /dev/zero > big";
    assert_eq!(end(make), End::Exited(0));
    for script in [
        "exit 1",
        "chmod 600 big; exit 1",
        "mkdir d; mv big d/big; ln d/big other; exit 1",
        "kill -9 $$",
    ] {
        assert_ne!(end(script), End::Bounded(Met::FileSize), "{script}");
    }
    assert_eq!(end("exit 7"), End::Exited(7));
    // One after the other, so that only the clock's ticks lie in between.
    for _ in 0..10 {
        assert_eq!(end(make), End::Exited(0));
        assert_eq!(end("exit 7"), End::Exited(7));
        let again = "rm big; head -c 2000000 /dev/zero > big 2>/dev/null || exit 1";
        assert_eq!(end(again), End::Bounded(Met::FileSize));
    }
}

/// A shell that is denied a process ends at once, and all the same it is told why.
#[test]
fn who_ends_because_it_may_not_fork_is_told_why() {
    if !stands() {
        return;
    }
    for _ in 0..5 {
        let script = "i=0; while [ $i -lt 1000 ]; do sleep 1000 & i=$((i+1)); done 2>/dev/null; wait; : $H";
        assert_eq!(met(script), Met::Processes);
    }
}

/// Bounds that are not met change nothing, also where many things begin and end.
#[test]
fn what_keeps_within_its_bounds_is_left_alone() {
    if !stands() {
        return;
    }
    let (_house, ended) =
        run("for i in $(seq 200); do sh -c :; done; for i in $(seq 40); do sleep 0.3 & done; wait");
    assert_eq!((ended.end, ended.tree_ended), (End::Exited(0), TreeEnded::Proved));
}
