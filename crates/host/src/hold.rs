//! A hold: one process has the right to something, for as long as it lives.
//!
//! Liveness is the kernel's lock, never a pid or a clock. The pid in the file only says whom to tell.

use crate::error::{Error, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;

/// Is a hold that is kept until it is dropped, or its process dies.
#[derive(Debug)]
pub struct Hold {
    /// What the kernel's lock is on, for as long as it is open.
    _file: File,
}

/// Says whether a holder was told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was.
    Yes,
    /// Nobody holds it.
    Nobody,
}

fn open(path: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::open(path, flags, mode)
        .map(File::from)
        .map_err(|e| Error::io("open", path, e))
}

impl Hold {
    /// Takes the hold; `None` where another process has it.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn take(path: &Path) -> Result<Option<Self>> {
        let mut file = open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(e) => return Err(Error::io("lock", path, e)),
        }
        let io = |e| Error::io("write", path, e);
        file.set_len(0).map_err(io)?;
        file.rewind().map_err(io)?;
        file.write_all(std::process::id().to_string().as_bytes())
            .map_err(io)?;
        Ok(Some(Self { _file: file }))
    }

    /// Says whether a process has the hold.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn is_taken(path: &Path) -> Result<Taken> {
        if !path.exists() {
            return Ok(Taken::No);
        }
        match rustix::fs::flock(open(path)?, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Taken::No),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(Taken::Yes),
            Err(e) => Err(Error::io("lock", path, e)),
        }
    }

    /// Tells the holder to end, by SIGTERM.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn tell(path: &Path) -> Result<Told> {
        if Self::is_taken(path)? == Taken::No {
            return Ok(Told::Nobody);
        }
        let mut text = String::new();
        open(path)?
            .read_to_string(&mut text)
            .map_err(|e| Error::io("read", path, e))?;
        // A child between fork and exec still has our lock for a moment after we let it go: nobody tells itself.
        if text.trim() == std::process::id().to_string() {
            return Ok(Told::Nobody);
        }
        let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else {
            return Ok(Told::Nobody);
        };
        let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(Told::Nobody),
            Err(e) => return Err(Error::io("find the holder of", path, e)),
        };
        // The pid was the holder's if somebody still holds it now: the descriptor names one process for good.
        if Self::is_taken(path)? == Taken::No {
            return Ok(Told::Nobody);
        }
        match rustix::process::pidfd_send_signal(&pidfd, Signal::TERM) {
            Ok(()) => Ok(Told::Yes),
            Err(rustix::io::Errno::SRCH) => Ok(Told::Nobody),
            Err(e) => Err(Error::io("tell the holder of", path, e)),
        }
    }
}

/// Says whether a hold is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A living process has it.
    Yes,
    /// Nobody has it.
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another test may be between fork and exec, and its child has what was let go for that moment.
    fn soon<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let began = std::time::Instant::now();
        loop {
            match look() {
                Some(found) => return found,
                None => assert!(began.elapsed().as_secs() < 300, "it never came"),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_hold_is_one_process_at_a_time_and_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("job.lock");
        assert_eq!(Hold::is_taken(&place).unwrap(), Taken::No);
        let held = Hold::take(&place).unwrap().unwrap();
        assert!(Hold::take(&place).unwrap().is_none());
        assert_eq!(Hold::is_taken(&place).unwrap(), Taken::Yes);
        assert_eq!(Hold::tell(&place).unwrap(), Told::Nobody, "nobody tells itself");
        drop(held);
        soon(|| (Hold::is_taken(&place).unwrap() == Taken::No).then_some(()));
        soon(|| Hold::take(&place).unwrap());
    }

    #[test]
    fn another_process_that_holds_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("job.lock");
        std::fs::write(&place, "").unwrap();
        let script = "echo $$ > \"$1\"; echo held; exec sleep 60";
        let mut holder = std::process::Command::new("flock")
            .arg("--no-fork")
            .arg(&place)
            .args(["sh", "-c", script, "sh"])
            .arg(&place)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 5];
        holder.stdout.take().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(Hold::tell(&place).unwrap(), Told::Yes);
        let status = holder.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
    }
}
