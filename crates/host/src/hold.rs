//! A hold: one process has the right to something, for as long as it lives.
//!
//! Liveness is the kernel's lock, never a pid or a clock. The pid in the file only says whom to tell, and whether it is
//! worth while to wait.
//!
//! # Shape
//! `PID NUMBER`: who has the hold, or had it last, and the how manieth it is. The number only grows.

use crate::clock;
use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often it is looked whether the last of a dead process is gone.
const EVERY: Duration = Duration::from_millis(2);
/// The most that a hold's file says.
const LONGEST: u64 = 64;

/// Is a hold that is kept until it is dropped, or its process dies.
#[derive(Debug)]
pub struct Hold {
    /// What the kernel's lock is on, for as long as it is open.
    _file: File,
    number: u64,
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
        let before = Said::of(&mut file).map_or(0, |said| said.number);
        // Of a file that was lost, too: the clock is ahead of the numbers that were given out by then.
        let number = before.saturating_add(1).max(clock::now().0);
        file.set_len(0).map_err(io)?;
        file.rewind().map_err(io)?;
        file.write_all(format!("{} {number}", std::process::id()).as_bytes())
            .map_err(io)?;
        Ok(Some(Self { _file: file, number }))
    }

    /// Takes the hold as [`Hold::take`] does; where the process that had it has died, it waits, within a bound, for the
    /// last of it: a child that it was just starting has a copy of the lock until it executes, or is ended, too.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn take_over(path: &Path, within: Duration) -> Result<Option<Self>> {
        let until = Instant::now() + within;
        loop {
            if let Some(held) = Self::take(path)? {
                return Ok(Some(held));
            }
            let dead = Said::of(&mut open(path)?).is_some_and(|said| has_ended(said.pid));
            if !dead || Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(EVERY);
        }
    }

    /// Gives the number of this hold: larger than that of any that was taken at the same place before.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
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
        let Some(Said { pid, .. }) = Said::of(&mut open(path)?) else {
            return Ok(Told::Nobody);
        };
        // A child between fork and exec still has our lock for a moment after we let it go: nobody tells itself. Nor is
        // the dead told, of whom such a child may be left.
        if pid == rustix::process::getpid() || has_ended(pid) {
            return Ok(Told::Nobody);
        }
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

/// What the file of a hold says.
struct Said {
    pid: Pid,
    number: u64,
}

impl Said {
    /// Reads it; `None` where it says nothing that we would have written.
    fn of(file: &mut File) -> Option<Self> {
        let mut text = String::new();
        file.rewind().ok()?;
        file.take(LONGEST).read_to_string(&mut text).ok()?;
        let (pid, number) = text.trim().split_once(' ')?;
        Some(Self {
            pid: pid.parse().ok().and_then(Pid::from_raw)?,
            number: number.parse().ok()?,
        })
    }
}

/// Says whether a process is known to have ended, reaped or not.
fn has_ended(pid: Pid) -> bool {
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => {
            let mut looked = [PollFd::new(&pidfd, PollFlags::IN)];
            matches!(poll(&mut looked, Some(&Timespec::default())), Ok(1))
        }
        Err(e) => e == rustix::io::Errno::SRCH,
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
        let began = Instant::now();
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
        let script = "echo $$ 1 > \"$1\"; echo held; exec sleep 60";
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

    /// A process takes the lock, starts a child that has it too, and is killed: what is left of it.
    fn killed(place: &Path, left: &str) -> std::process::Child {
        let script = format!(
            "import fcntl, os, signal, sys, time\n\
             f = open(sys.argv[1], 'r+')\n\
             fcntl.flock(f, fcntl.LOCK_EX)\n\
             f.write(f'{{os.getpid()}} 7'); f.flush()\n\
             if os.fork() == 0:\n    \
                 print('left', flush=True)\n    \
                 {left}\n    \
                 os._exit(0)\n\
             signal.pause()\n"
        );
        std::fs::write(place, "").unwrap();
        let mut holder = std::process::Command::new("python3")
            .args(["-c", &script])
            .arg(place)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        holder.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
        holder.kill().unwrap();
        holder
    }

    #[test]
    fn what_is_left_of_a_killed_process_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("job.lock");
        // It goes when its standard input is closed.
        let mut holder = killed(&place, "sys.stdin.read()");
        assert!(Hold::take(&place).unwrap().is_none());
        assert!(Hold::take_over(&place, Duration::ZERO).unwrap().is_none());
        // Killed and not reaped yet, it is dead all the same; and so it is afterwards.
        let zombie = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let pid = rustix::process::WaitId::Pid(Pid::from_child(&holder));
        rustix::process::waitid(pid, zombie).unwrap();
        assert_eq!(Hold::tell(&place).unwrap(), Told::Nobody);
        let left = holder.stdin.take();
        holder.wait().unwrap();
        assert_eq!(Hold::tell(&place).unwrap(), Told::Nobody);
        let gone = std::thread::spawn(|| drop(left));
        let held = Hold::take_over(&place, Duration::from_secs(300))
            .unwrap()
            .unwrap();
        gone.join().unwrap();
        assert!(held.number() > 7);
        // One who lives is not waited for.
        assert!(
            Hold::take_over(&place, Duration::from_secs(300))
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn the_number_of_a_hold_only_grows() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("job.lock");
        let take = || soon(|| Hold::take(&place).unwrap()).number();
        let first = take();
        let second = take();
        assert!(second > first);
        let far = u64::MAX / 2;
        std::fs::write(&place, format!("1 {far}")).unwrap();
        assert_eq!(take(), far + 1);
        for odd in ["", "x", "1 x", "0 1 2"] {
            std::fs::write(&place, odd).unwrap();
            // Two holds within one tick of the clock are ahead of it by one; what is lost is lost later.
            soon(|| (clock::now().0 > second).then_some(()));
            assert!(take() > second, "{odd:?}");
        }
    }
}
