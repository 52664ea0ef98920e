//! The daemon under a tracer that kills it at every system call of the write path, or makes that call fail.
//!
//! The tracer is attached to a daemon that is at rest and taken off when the call is over, so that it counts nothing
//! but the system calls between request and reply; it counts for each thread.

use super::lab::{Found, Lab};
use super::tools::{Case, named};
use crate::harness::{Conn, Daemon, SERVE, Share, Tracer, full, skipped};
use serde_json::json;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

/// What the write path may call that changes something, or opens what is changed.
const CALLS: &[&str] = &[
    "openat2",
    "openat",
    "renameat2",
    "renameat",
    "rename",
    "linkat",
    "unlinkat",
    "mkdirat",
    "fsync",
    "fdatasync",
    "sync_file_range",
    "pwrite64",
    "write",
    "writev",
    "ftruncate",
    "fallocate",
    "chmod",
    "fchmod",
    "fchmodat",
    "fchown",
    "fchownat",
    "fsetxattr",
    "sendto",
];

/// Calls that only open: to be killed at the next one is much the same, so that not each is tried every time.
const OPENS: &[&str] = &["openat", "openat2"];

/// What the gateway writes, renames and syncs; the reactor's own `write` wakes threads.
const FAILING: &[&str] = &[
    "renameat2",
    "renameat",
    "linkat",
    "unlinkat",
    "mkdirat",
    "fsync",
    "fdatasync",
    "pwrite64",
    "ftruncate",
    "chmod",
    "fchmod",
    "fchown",
    "fsetxattr",
];

/// By what a daemon that starts takes back and settles what it finds; its writes to the journal are the store's matter.
const RECOVERING: &[&str] = &[
    "renameat2",
    "renameat",
    "linkat",
    "unlinkat",
    "fsync",
    "fdatasync",
];

/// Counts how often one thread makes each of the calls, at most, while a call of this case is answered.
fn counted(lab: &mut Lab, case: &'static Case) -> Option<BTreeMap<String, usize>> {
    lab.points_of(case);
    lab.restart(&[]);
    let log = lab.home.path().join("strace");
    let pid = lab.daemon.as_ref().unwrap().child.id();
    let tracer = Tracer::attach(pid, &log, &["-e", &format!("trace={}", CALLS.join(","))])?;
    assert!(matches!(&lab.call(case, "traced").found, Found::Answered(reply) if reply.status == 200));
    drop(tracer);
    let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in std::fs::read_to_string(&log).unwrap().lines() {
        let (thread, rest) = line.split_once(' ').unwrap();
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

/// Makes one call whose daemon is traced; gives whether the daemon is still there.
fn traced(lab: &mut Lab, case: &'static Case, inject: &str) -> bool {
    let log = lab.home.path().join("strace");
    let calls = inject.split([':', '=']).nth(1).unwrap().to_owned();
    let args = ["-e", &format!("trace={calls}"), "-e", inject];
    if lab.daemon.is_none() {
        lab.restart(&[]);
    }
    let pid = lab.daemon.as_ref().unwrap().child.id();
    let tracer = Tracer::attach(pid, &log, &args).expect("a tracer was attached before");
    lab.call(case, inject);
    drop(tracer);
    // What it had to note of a call comes after the answer, and may have failed as well.
    if lab.daemon.as_ref().is_some_and(|daemon| !sound(lab, daemon)) {
        let mut daemon = lab.daemon.take().unwrap();
        let status = daemon.ended(Duration::from_secs(30)).expect("it ends");
        // It ended itself, or was killed by the tracer after the answer.
        let killed = inject.contains("SIGKILL") && status.signal() == Some(9);
        assert!(killed || status.code() == Some(75), "{inject}: {status:?}");
    }
    lab.daemon.is_some()
}

/// Says whether a daemon records what it is asked for now, and with that all that came before.
fn sound(lab: &Lab, daemon: &Daemon) -> bool {
    let place = daemon.url.strip_prefix("http://").unwrap();
    let Ok(stream) = std::net::TcpStream::connect(place) else {
        return false;
    };
    let key = format!("sound-{}", lab.trials);
    let made = Conn::over(stream).try_call(&lab.volume, "create_directory", &key, &json!({"path": "t1"}));
    match made {
        Some(made) if made.status == 200 => true,
        Some(made) => {
            assert_eq!(made.code(), "store_unavailable", "{}", made.body);
            false
        }
        None => false,
    }
}

fn lab_with_tracer(mut lab: Lab) -> Option<Lab> {
    if counted(&mut lab, named("write_file new")).is_none() {
        skipped("strace cannot be attached here");
        return None;
    }
    Some(lab)
}

/// Kills the daemon at every one of these system calls of these tools.
pub(super) fn kill_at_every_call(lab: Lab, cases: &[&str], calls: &[&str], label: &str) {
    let Some(mut lab) = lab_with_tracer(lab) else {
        return;
    };
    let (mut opens, mut others) = (Share::of(61), Share::of(11));
    let (mut all, mut missed) = (0, 0);
    for name in cases {
        let case = named(name);
        let (mut killed, mut spared) = (0, 0);
        for (call, most) in counted(&mut lab, case).expect("it was attached before") {
            if !calls.contains(&call.as_str()) {
                continue;
            }
            let share = if OPENS.contains(&call.as_str()) {
                &mut opens
            } else {
                &mut others
            };
            for n in (1..=most).filter(|_| share.takes()) {
                let inject = format!("inject={call}:signal=SIGKILL:when={n}");
                if traced(&mut lab, case, &inject) {
                    spared += 1;
                } else {
                    killed += 1;
                }
            }
        }
        lab.settle();
        eprintln!("{label} {name}: killed at {killed} system calls, 0 lost, 0 double ({spared} not met)");
        all += killed;
        missed += spared;
    }
    assert!(all > 0 && missed * 4 < all + 4, "the calls are met");
    lab.end();
}

/// Kills the daemon at a point of a call, and again at every system call by which the next one recovers and starts.
pub(super) fn kill_recovery_at_every_call(lab: Lab, case: &str, at: &str, label: &str) {
    let Some(mut lab) = lab_with_tracer(lab) else {
        return;
    };
    let case = named(case);
    let mut killed = 0;
    let mut share = Share::of(5);
    for call in RECOVERING {
        for n in (1..).filter(|n| *n == 1 || share.takes()) {
            lab.trial(case, at, None);
            let (trace, inject) = (
                format!("trace={call}"),
                format!("inject={call}:signal=SIGKILL:when={n}"),
            );
            let traced = ["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
            let mut command = lab.home.command_under("strace", &traced, SERVE);
            match Daemon::begun(command.stderr(Stdio::null())) {
                Ok(_) => break,
                Err(status) => assert_eq!(status.signal(), Some(9), "{inject}: {status:?}"),
            }
            killed += 1;
        }
    }
    lab.settle();
    eprintln!(
        "{label} {} at {at}: recovery killed at {killed} system calls, 0 lost, 0 double",
        case.name
    );
    assert!(killed > 3);
    lab.end();
}

/// Makes every write, rename and sync of these tools fail, once by the disk and from then on for want of space.
pub(super) fn fail_at_every_call(lab: Lab, cases: &[&str], calls: &[&str], label: &str) {
    let Some(mut lab) = lab_with_tracer(lab) else {
        return;
    };
    let (mut poisoned, mut share) = (0, Share::of(9));
    for name in cases {
        let case = named(name);
        let (mut trials, mut ended) = (0, 0);
        for (call, most) in counted(&mut lab, case).expect("it was attached before") {
            if !calls.contains(&call.as_str()) {
                continue;
            }
            for n in 1..=most {
                for error in [format!("EIO:when={n}"), format!("ENOSPC:when={n}+")] {
                    if !share.takes() {
                        continue;
                    }
                    let stays = traced(&mut lab, case, &format!("inject={call}:error={error}"));
                    trials += 1;
                    ended += usize::from(!stays);
                }
            }
        }
        lab.settle();
        eprintln!("{label} {name}: {trials} failures, {ended} ended the daemon, 0 false successes, 0 lost");
        poisoned += ended;
    }
    assert!(poisoned > 0, "some failure leaves it open what is on the disk");
    lab.end();
}

/// The tools that differ most.
const SWEPT: &[&str] = &["write_file replace", "move_file overwriting", "apply_patch"];

/// Gives every tool in the durability with more system calls, and some in the other one; for an ordinary run, only some.
fn swept() -> Vec<(&'static str, Vec<&'static str>)> {
    let (power, some) = ("power-best-effort", SWEPT.to_vec());
    if !full() {
        return vec![(power, some)];
    }
    let all = super::tools::all().map(|case| case.name).collect();
    vec![(power, all), ("process", some)]
}

#[test]
fn one_effect_when_killed_at_any_system_call() {
    for (durability, cases) in swept() {
        kill_at_every_call(Lab::new(durability), &cases, CALLS, durability);
    }
}

#[test]
fn one_effect_when_recovery_is_killed_at_any_system_call() {
    let at = [
        ("apply_patch", "acted:7"),
        ("apply_patch", "acted:3"),
        ("write_file replace", "installed:1"),
        ("move_file overwriting", "acted:1"),
        ("delete_directory recursive", "removed:1"),
    ];
    for (case, at) in at.into_iter().take(if full() { 5 } else { 1 }) {
        let lab = Lab::new("power-best-effort");
        kill_recovery_at_every_call(lab, case, at, "power-best-effort");
    }
}

#[test]
fn no_false_success_when_any_system_call_fails() {
    for (durability, cases) in swept() {
        fail_at_every_call(Lab::new(durability), &cases, FAILING, durability);
    }
}
