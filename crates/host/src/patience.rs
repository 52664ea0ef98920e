//! Waiting, for a command that shows what comes until it is told to stop or nobody reads it any more.

use crate::error::{Error, Result};
use crate::signals::signal_descriptor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Says why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The time is over.
    Over,
    /// SIGINT, SIGTERM or SIGHUP came.
    Interrupted,
    /// The other end of the output is closed.
    Closed,
}

/// Waits, and hears of signals and of the end of whoever reads.
#[derive(Debug)]
pub struct Patience {
    signals: OwnedFd,
}

impl Patience {
    /// Hears of SIGINT, SIGTERM and SIGHUP from now on; call it before any other thread is made.
    ///
    /// # Errors
    /// `io_failed` where the system gives no signal descriptor.
    pub fn new() -> Result<Self> {
        Ok(Self {
            signals: signal_descriptor()?,
        })
    }

    /// Waits at most for a while.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn wait(&self, at_most: Duration, output: impl AsFd) -> Result<Waited> {
        let until = Instant::now() + at_most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left =
                Timespec::try_from(left).map_err(|e| Error::io("wait", "poll", std::io::Error::other(e)))?;
            // Nothing is asked of the output: that its other end is gone is told unasked.
            let mut fds = [
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&output, PollFlags::empty()),
            ];
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return Ok(Waited::Over),
                Ok(_) if fds[0].revents().contains(PollFlags::IN) => return Ok(Waited::Interrupted),
                Ok(_) => return Ok(Waited::Closed),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::io("wait", "poll", errno)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_time_or_with_its_reader() {
        let patience = Patience::new().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let moment = Duration::from_millis(1);
        assert_eq!(patience.wait(moment, &writer).unwrap(), Waited::Over);
        drop(reader);
        let long = Duration::from_secs(600);
        assert_eq!(patience.wait(long, &writer).unwrap(), Waited::Closed);
        let file = tempfile::tempfile().unwrap();
        assert_eq!(patience.wait(moment, &file).unwrap(), Waited::Over);
    }
}
