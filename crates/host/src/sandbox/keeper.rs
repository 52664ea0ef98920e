//! Keeps one program: reaps its descendants, hears its caller, and ends everything when the program has ended.
//!
//! As the first process of a process namespace its own end is the end of all. As a supervisor without one it is
//! the reaper of orphans, and ends its children until none is left: an orphan of theirs becomes its child.

use super::bounds::Watch;
use super::spec::{Report, ask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process, kill_process_group, wait,
    waitid,
};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// The longest report.
pub(crate) const REPORT: usize = 128 * 1024;

/// How long the supervisor goes on ending children that beget others.
const ENDING: Duration = Duration::from_secs(10);

/// Sends a report, and says whether it was sent. A caller that is gone needs none.
pub(super) fn tell(control: impl AsFd, report: &Report) -> bool {
    let Ok(bytes) = serde_json::to_vec(report) else {
        return false;
    };
    let bytes = bytes.get(..REPORT.min(bytes.len())).unwrap_or_default();
    send(control, bytes, SendFlags::NOSIGNAL).is_ok()
}

/// Whether the program leads a process group of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leads {
    Group,
    Nothing,
}

/// Waits until the program ends, or the caller wants everything ended, or the caller is gone, or a bound is met.
pub(super) fn keep(
    main: Pid,
    leads: Leads,
    children: &OwnedFd,
    control: &OwnedFd,
    above: Option<&OwnedFd>,
    mut watch: Option<Watch>,
) {
    loop {
        if let Some(met) = watch.as_mut().and_then(Watch::look) {
            tell(control, &Report::Met { met });
            return;
        }
        let rest = watch.as_ref().map(Watch::rest).map(|rest| Timespec {
            tv_sec: i64::try_from(rest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: rest.subsec_nanos().into(),
        });
        let mut fds = vec![
            PollFd::new(children, PollFlags::IN),
            PollFd::new(control, PollFlags::IN),
        ];
        fds.extend(above.map(|fd| PollFd::new(fd, PollFlags::IN)));
        match poll(&mut fds, rest.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Nothing can be heard any more, so nothing is kept.
            Err(_) => return,
        }
        let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        if ready(2) {
            return;
        }
        if ready(0) {
            let mut drained = [0_u8; 4096];
            while rustix::io::read(children, &mut drained).is_ok_and(|n| n > 0) {}
            // Before anything is reaped: whoever is denied a process often ends at once, and takes others along.
            let met = watch.as_mut().and_then(|watch| match main_failed(main) {
                Some(Failed::Yes) => watch.last_look(),
                Some(Failed::No) => None,
                None => watch.count(),
            });
            let status = reap(Some(main));
            let report = met.map(|met| Report::Met { met }).or(status.map(ended));
            if let Some(report) = report {
                tell(control, &report);
                return;
            }
        }
        if ready(1) {
            let mut asked = [0_u8; 1];
            match recv(control, &mut asked, RecvFlags::DONTWAIT) {
                Ok((1, _)) if asked == [ask::TERM] => terminate(main, leads),
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Everything is to be ended, or the caller is gone.
                _ => return,
            }
        }
    }
}

fn terminate(main: Pid, leads: Leads) {
    // Before the program leads its group there is only the program.
    if leads == Leads::Nothing || kill_process_group(main, Signal::TERM).is_err() {
        kill_process(main, Signal::TERM).ok();
    }
}

/// Says whether a program failed.
enum Failed {
    Yes,
    No,
}

/// Says whether the program has failed, and leaves it to be reaped; `None` while it runs.
fn main_failed(main: Pid) -> Option<Failed> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(main), options).ok()??;
    match status.exit_status() {
        Some(0) => Some(Failed::No),
        _ => Some(Failed::Yes),
    }
}

/// Reaps every child that has ended; gives the status of the one that is asked for.
fn reap(main: Option<Pid>) -> Option<WaitStatus> {
    let mut found = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if Some(pid) == main {
            found = Some(status);
        }
    }
    found
}

fn ended(status: WaitStatus) -> Report {
    Report::Main {
        exited: status.exit_status(),
        signal: status.terminating_signal().unwrap_or_default(),
    }
}

/// Ends and reaps every descendant of this process, which is the reaper of orphans; says whether none is left.
pub(super) fn end_all(main: Option<Pid>, control: &OwnedFd) -> bool {
    let began = Instant::now();
    loop {
        for child in children() {
            // A child that is not reaped keeps its pid, so this is the right one.
            kill_process(child, Signal::KILL).ok();
        }
        match wait(WaitOptions::NOHANG) {
            Err(Errno::CHILD) => return true,
            Ok(Some((pid, status))) => {
                if Some(pid) == main {
                    tell(control, &ended(status));
                }
            }
            _ if began.elapsed() > ENDING => return false,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Lists the children of this process.
fn children() -> Vec<Pid> {
    let own = rustix::process::getpid();
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name in parentheses may hold anything, also parentheses.
        let (_, rest) = stat.rsplit_once(") ")?;
        let parent = rest.split(' ').nth(1)?.parse::<i32>().ok()?;
        (parent == own.as_raw_nonzero().get()).then_some(pid)
    });
    pids.filter_map(Pid::from_raw).collect()
}
