//! A handle by which another thread ends a running command. It does not know which command, or whether any runs.

use crate::error::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Cancels the commands that were started with it; clones are one handle.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    asked: AtomicU8,
    term: OwnedFd,
    kill: OwnedFd,
}

impl Cancel {
    /// Makes a handle.
    ///
    /// # Errors
    /// `io_failed` where no descriptor is to be had.
    pub fn new() -> Result<Self> {
        let make = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|e| Error::io("make", "an eventfd", e))
        };
        Ok(Self(Arc::new(Inner {
            asked: AtomicU8::new(0),
            term: make()?,
            kill: make()?,
        })))
    }

    /// Asks the command to end: SIGTERM, its grace, SIGKILL. The second call, and every later one, kills at once.
    pub fn cancel(&self) {
        match self.0.asked.fetch_add(1, Ordering::SeqCst) {
            0 => raise(&self.0.term),
            1 => raise(&self.0.kill),
            // Kept at two, so that it can never wrap round to "never asked".
            _ => self.0.asked.store(2, Ordering::SeqCst),
        }
    }

    /// Kills the command at once, without asking it first.
    pub fn kill(&self) {
        self.0.asked.store(2, Ordering::SeqCst);
        // In this order, so that whoever waits never sees the question alone: a program that is asked cleans up.
        raise(&self.0.kill);
        raise(&self.0.term);
    }

    /// Says whether the command was asked to end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.asked.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn term(&self) -> BorrowedFd<'_> {
        self.0.term.as_fd()
    }

    pub(super) fn kill_fd(&self) -> BorrowedFd<'_> {
        self.0.kill.as_fd()
    }
}

/// Makes an eventfd readable for ever; nobody reads it. A full counter is readable too, so an error means nothing.
fn raise(fd: &OwnedFd) {
    rustix::io::write(fd, &1_u64.to_ne_bytes()).ok();
}
