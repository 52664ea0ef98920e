//! What can be known of the owner of a stranger's lock, gathered once the lock was seen unchanged for the grace.
//!
//! It decides nothing ([`semel_core::restore::Evidence`] does) and takes nothing away. The handle on the lock that it
//! opens keeps the flock: at most one restoration looks, and adopts, at a time.

use super::lock::{LOCK, Shape, waiting};
use super::processes::{Age, Moment, scan};
use super::record::local;
use super::worktree::Checked;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use semel_core::restore::{Evidence, Fact};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// The inode of the initial PID namespace: fixed by the kernel (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// The kernel's number for the signal of a lease (`F_SETSIG`); libc does not name it for every target.
const SET_SIGNAL: i32 = 10;

/// How often a lease is asked for where an answer matters: a few milliseconds long.
pub(super) const PATIENT: u64 = 5;

/// Gathers the evidence; with it the handle on the lock that has the flock, where nobody else has.
pub(super) fn examine(at: &Checked, met: &Shape, since: Moment) -> (Evidence, Option<OwnedFd>) {
    let handle = open(at, met);
    let mut evidence = Evidence {
        namespace: namespace(),
        filesystem: Fact::Doubted("the lock cannot be opened to be looked at".to_owned()),
        alone: Fact::Holds,
        lease: Fact::Holds,
        scan: Fact::Holds,
        tied: Vec::new(),
    };
    let Some(handle) = handle else {
        return (evidence, None);
    };
    evidence.filesystem = if local(&handle) {
        Fact::Holds
    } else {
        doubted("it lies on a filesystem whose locks other machines may hold")
    };
    if flock(&handle, FlockOperation::NonBlockingLockExclusive).is_err() {
        evidence.alone = doubted("another program has locked it");
        return (evidence, None);
    }
    evidence.lease = lease(&handle, PATIENT);
    if evidence.doubt().is_none() {
        let age = Age {
            changed: met.changed(),
            met: since,
        };
        // Twice: a process that was begun during the first pass by one that ended meanwhile is met by the second.
        for _ in 0..2 {
            let found = scan(at, &age, &waiting(at));
            (evidence.scan, evidence.tied) = (found.whole, found.tied);
            if evidence.doubt().is_some() {
                return (evidence, None);
            }
        }
        evidence.lease = lease(&handle, PATIENT);
    }
    (evidence, Some(handle))
}

fn doubted(why: &str) -> Fact {
    Fact::Doubted(why.to_owned())
}

/// Opens the lock that was met, and no other.
pub(super) fn open(at: &Checked, met: &Shape) -> Option<OwnedFd> {
    // For reading: one that is open for writing would wake every other waiter when it is closed.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(&at.dir, LOCK, flags, Mode::empty()).ok()?;
    (Shape::of_open(&file).as_ref() == Some(met)).then_some(file)
}

/// Says whether every process of the machine can be seen from here at all.
fn namespace() -> Fact {
    let own = rustix::fs::stat("/proc/self/ns/pid").is_ok_and(|s| s.st_ino == INITIAL_PID_NAMESPACE);
    let shown = std::fs::read_link("/proc/self")
        .is_ok_and(|link| link.to_str() == Some(std::process::id().to_string().as_str()));
    let first = std::fs::read("/proc/1/stat").is_ok();
    if own && shown && first {
        Fact::Holds
    } else {
        doubted("not every process of the machine can be seen from here")
    }
}

/// Says whether nobody else has the file open: the kernel gives a write lease on it then alone.
///
/// The lease is given back at once. Whoever opens the file in between makes the kernel send us a signal: one is asked
/// for that does nothing.
#[expect(unsafe_code, reason = "rustix has no leases")]
pub(super) fn lease(file: &OwnedFd, attempts: u64) -> Fact {
    let fd = file.as_raw_fd();
    let mut last = std::io::Error::from_raw_os_error(libc::EAGAIN);
    // A handle that another restoration, or a child before its exec, has for a moment is no owner.
    for attempt in 0..attempts {
        // SAFETY: the descriptor is open and ours; these commands take numbers and touch no memory of ours.
        let taken = unsafe {
            libc::fcntl(fd, SET_SIGNAL, libc::SIGURG) == 0
                && libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        if taken {
            // SAFETY: as above.
            unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
            return Fact::Holds;
        }
        last = std::io::Error::last_os_error();
        if last.raw_os_error() != Some(libc::EAGAIN) {
            break;
        }
        std::thread::sleep(Duration::from_millis(attempt));
    }
    if last.raw_os_error() == Some(libc::EAGAIN) {
        doubted("a process has it open")
    } else {
        Fact::Doubted(format!(
            "the kernel does not say whether a process has it open: {last}"
        ))
    }
}
