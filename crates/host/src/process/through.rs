//! A command's standard error on its way to that of this process: whole and at once, with its first bytes kept.
//!
//! It holds one piece at a time. It does not read, and does not judge what it keeps.

use super::Cancel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::Stderr;

/// What is written at once: a pipe that can be written to takes so much without waiting.
const PIECE: usize = 4096;
/// How long a reader that is late is waited for once the command was cancelled.
const LAST: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// Holds what was read and not passed on yet, and the first bytes of all.
pub(super) struct Through {
    to: Stderr,
    kept: Vec<u8>,
    waiting: Vec<u8>,
    done: usize,
}

impl Through {
    /// Holds nothing yet.
    pub(super) fn new() -> Self {
        Self {
            to: std::io::stderr(),
            kept: Vec::new(),
            waiting: Vec::new(),
            done: 0,
        }
    }

    /// Takes what was read: all of it is to be passed on, and a part of it kept.
    pub(super) fn take(&mut self, kept: &[u8], read: &[u8]) {
        self.kept.extend_from_slice(kept);
        self.waiting.extend_from_slice(read);
    }

    /// Says whether something was read that is not passed on.
    pub(super) fn waiting(&self) -> bool {
        self.done < self.waiting.len()
    }

    /// Gives what to wait for before more can be passed on.
    pub(super) fn wanted(&self) -> PollFd<'_> {
        PollFd::new(&self.to, PollFlags::OUT)
    }

    /// Passes on what can be passed on without waiting.
    ///
    /// # Errors
    /// How many bytes are lost, where nobody reads them any more.
    pub(super) fn pass_on(&mut self) -> Result<(), u64> {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        while self.waiting() {
            match poll(&mut [self.wanted()], Some(&now)) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return Err(self.lose()),
            }
            let rest = self.waiting.get(self.done..).unwrap_or_default();
            let piece = rest.get(..PIECE.min(rest.len())).unwrap_or_default();
            match rustix::io::write(&self.to, piece) {
                Ok(n) => self.done += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(self.lose()),
            }
        }
        self.waiting.clear();
        self.done = 0;
        Ok(())
    }

    /// Passes on everything, however long its reader takes, but for a cancelled command; says how many bytes are lost.
    pub(super) fn deliver(&mut self, cancel: &Cancel) -> u64 {
        loop {
            match self.pass_on() {
                Err(lost) => return lost,
                Ok(()) if !self.waiting() => return 0,
                Ok(()) => {}
            }
            let end = PollFd::from_borrowed_fd(cancel.term(), PollFlags::IN);
            let ready = if cancel.is_cancelled() {
                poll(&mut [self.wanted()], Some(&LAST))
            } else {
                poll(&mut [self.wanted(), end], None)
            };
            if ready == Ok(0) {
                return self.lose();
            }
        }
    }

    fn lose(&mut self) -> u64 {
        let lost = self.waiting.len() - self.done;
        self.waiting.clear();
        self.done = 0;
        lost as u64
    }

    /// Gives the first bytes.
    pub(super) fn kept(self) -> Vec<u8> {
        self.kept
    }
}
