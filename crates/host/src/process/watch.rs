//! Waits for the end of a running command while its bytes are moved, its deadline kept and its cancellation heard.
//!
//! It does not know how the command was started; a [`Tree`] does.

use super::pump::Pump;
use super::{Cancel, Command, End};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// A started process tree.
pub(super) trait Tree {
    /// Gives the descriptor that becomes readable when the tree's first process has ended.
    fn ended(&self) -> BorrowedFd<'_>;
    /// Gives a descriptor over which the tree reports, if it does.
    fn reports(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Takes what was reported.
    fn report(&mut self) {}
    /// Asks the tree to end.
    fn ask(&mut self);
    /// Ends the tree, whatever it does.
    fn kill(&mut self);
    /// Ends the tree by the last means, where [`Tree::kill`] brought no end in due time.
    fn kill_hard(&mut self) {
        self.kill();
    }
}

/// How long a killed tree may take to vanish before the last means is used.
const VANISH: Duration = Duration::from_secs(15);

/// Waits until the tree's first process has ended; says why it was ended, if by us.
pub(super) fn watch(tree: &mut dyn Tree, pump: &mut Pump, command: &Command, cancel: &Cancel) -> Option<End> {
    let began = Instant::now();
    let mut why = None;
    let mut killed = false;
    let mut next = command.deadline.and_then(|d| began.checked_add(d));
    loop {
        let seen = wait(tree, pump, cancel, (why != Some(End::Cancelled), !killed), next);
        if seen.report {
            tree.report();
        }
        pump.step();
        if seen.ended {
            return why;
        }
        if seen.kill && !killed {
            why = Some(why.unwrap_or(End::Cancelled));
            killed = true;
            next = Instant::now().checked_add(VANISH);
            tree.kill();
        } else if seen.term && why.is_none() {
            why = Some(End::Cancelled);
            next = Instant::now().checked_add(command.grace);
            tree.ask();
        } else if next.is_some_and(|at| at <= Instant::now()) {
            match (why, killed) {
                (None, _) => {
                    why = Some(End::TimedOut);
                    next = Instant::now().checked_add(command.grace);
                    tree.ask();
                }
                (Some(_), false) => {
                    killed = true;
                    next = Instant::now().checked_add(VANISH);
                    tree.kill();
                }
                (Some(_), true) => {
                    next = Instant::now().checked_add(VANISH);
                    tree.kill_hard();
                }
            }
        }
    }
}

#[derive(Default)]
struct Seen {
    ended: bool,
    report: bool,
    term: bool,
    kill: bool,
}

/// Sleeps until something happens. A poll that fails (no memory) is a short sleep: nothing is lost by it.
fn wait(
    tree: &dyn Tree,
    pump: &Pump,
    cancel: &Cancel,
    (hear_term, hear_kill): (bool, bool),
    next: Option<Instant>,
) -> Seen {
    let mut fds = vec![PollFd::from_borrowed_fd(tree.ended(), PollFlags::IN)];
    let mut term = None;
    let mut kill = None;
    let mut report = None;
    if hear_term {
        term = Some(fds.len());
        fds.push(PollFd::from_borrowed_fd(cancel.term(), PollFlags::IN));
    }
    if hear_kill {
        kill = Some(fds.len());
        fds.push(PollFd::from_borrowed_fd(cancel.kill_fd(), PollFlags::IN));
    }
    if let Some(fd) = tree.reports() {
        report = Some(fds.len());
        fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
    }
    fds.extend(pump.wanted());
    let timeout = next.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        }
    });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Seen::default(),
        Err(_) => {
            std::thread::sleep(Duration::from_millis(10));
            return Seen::default();
        }
    }
    let ready = |at: Option<usize>| {
        at.and_then(|i| fds.get(i))
            .is_some_and(|fd| !fd.revents().is_empty())
    };
    Seen {
        ended: ready(Some(0)),
        report: ready(report),
        term: ready(term),
        kill: ready(kill),
    }
}
