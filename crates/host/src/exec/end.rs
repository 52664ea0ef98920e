//! Waits for executions, and ends them. Whoever started them may be long gone: the shim is asked in its directory.

use super::look::{Observation, executions, observed};
use super::place::{Claim, Place};
use crate::error::{Error, Result};
use crate::process::Cancel;
use crate::volume::Volume;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use semel_core::ids::ExecutionId;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often is looked where the kernel names no process to wait for.
const LOOK: Duration = Duration::from_millis(20);
/// How long a shim that was asked to kill may take, and how long what is killed may take to vanish.
const VANISH: Duration = Duration::from_secs(15);

/// Says how urgently a command is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// SIGTERM, its grace, SIGKILL.
    Ask,
    /// SIGKILL at once.
    Kill,
}

/// Is the hold on an execution that one waits for; dropping it changes nothing for the command.
#[derive(Debug)]
pub struct Attached {
    place: Place,
    shim: Option<OwnedFd>,
}

/// Attaches to an execution; `None` where it has no directory.
///
/// # Errors
/// `io_failed`.
pub fn attach(volume: &Volume, execution: &ExecutionId) -> Result<Option<Attached>> {
    Place::open(volume, execution)?.map(Attached::of).transpose()
}

impl Attached {
    fn of(place: Place) -> Result<Self> {
        // What was given up before it was made whole has no locks, and nobody to wait for.
        let shim = if place.claimed()? == Some(Claim::Begun) {
            shim_of(&place)?
        } else {
            None
        };
        Ok(Self { place, shim })
    }

    /// Attaches to an execution that has begun, come what may: without hold of the shim it has to be looked for.
    pub(super) fn begun(place: Place) -> Self {
        let shim = shim_of(&place).unwrap_or(None);
        Self { place, shim }
    }

    /// Says what became of the execution.
    ///
    /// # Errors
    /// As [`super::observe`].
    pub fn observe(&self) -> Result<Observation> {
        observed(&self.place)
    }

    /// Gives a descriptor that becomes readable when the shim has ended, for those who wait for many; `None` where it
    /// is gone already, or cannot be held: then it has to be looked for. After it there may be a moment before [`Attached::observe`] stops saying that the command runs.
    #[must_use]
    pub fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.shim.as_ref().map(|fd| fd.as_fd())
    }

    /// Waits until the command no longer runs, and says what became of it; a cancelled wait says
    /// [`Observation::Running`], and leaves the command alone.
    ///
    /// # Errors
    /// As [`super::observe`].
    pub fn wait(&self, cancel: &Cancel) -> Result<Observation> {
        self.wait_until(Some(cancel), None)
    }

    fn wait_until(&self, cancel: Option<&Cancel>, until: Option<Instant>) -> Result<Observation> {
        let mut shim = self.shim.as_ref();
        loop {
            let seen = self.observe()?;
            let late = until.is_some_and(|until| until <= Instant::now());
            if seen != Observation::Running || late || cancel.is_some_and(Cancel::is_cancelled) {
                return Ok(seen);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = match shim {
                Some(_) => left,
                None => Some(left.map_or(LOOK, |left| left.min(LOOK))),
            };
            let mut fds: Vec<PollFd<'_>> = shim.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
            fds.extend(cancel.map(|cancel| PollFd::from_borrowed_fd(cancel.term(), PollFlags::IN)));
            wait(&mut fds, left);
            if shim.is_some() && fds.first().is_some_and(|fd| !fd.revents().is_empty()) {
                // Those that it started may take a moment longer.
                shim = None;
            }
        }
    }

    /// Asks that the command be ended, if it runs; does not wait for it.
    ///
    /// # Errors
    /// As [`super::observe`].
    pub fn end(&self, urgency: Urgency) -> Result<()> {
        if self.observe()? == Observation::Running {
            self.place.ask(urgency)?;
        }
        Ok(())
    }
}

/// Asks that an execution be ended, in whatever state it is, and says what became of it so far.
///
/// What has not begun never will. What runs is asked, and goes on until its tree has ended: [`Attached::wait`].
///
/// # Errors
/// As [`super::observe`].
pub fn end(volume: &Volume, execution: &ExecutionId, urgency: Urgency) -> Result<Observation> {
    let place = Place::open_or_make(volume, execution)?;
    place.claim(Claim::Never)?;
    let seen = observed(&place)?;
    if seen == Observation::Running {
        place.ask(urgency)?;
    }
    Ok(seen)
}

/// Ends every execution of a volume, before the volume ends; gives those that had not ended yet, with what became of
/// each. None can begin later but by a new [`super::start`].
///
/// A caller that finds [`Observation::Running`] or [`Observation::Lost`] in the answer has no proof that nothing
/// happens in the volume any more.
///
/// # Errors
/// As [`super::observe`].
///
/// # Limits
/// They are asked all at once, killed after `patience`, and given up 30 s later.
pub fn end_all(volume: &Volume, patience: Duration) -> Result<Vec<(ExecutionId, Observation)>> {
    let mut open = Vec::new();
    for (id, seen) in executions(volume)? {
        if matches!(seen, Observation::NotBegun | Observation::Running) {
            end(volume, &id, Urgency::Ask)?;
            open.extend(attach(volume, &id)?.map(|attached| (id, attached)));
        }
    }
    wait_for_all(&open, patience)?;
    for (_, attached) in &open {
        attached.end(Urgency::Kill)?;
    }
    wait_for_all(&open, VANISH)?;
    for (_, attached) in &open {
        if attached.observe()? == Observation::Running {
            attached.kill_shim()?;
        }
    }
    wait_for_all(&open, VANISH)?;
    open.into_iter()
        .map(|(id, attached)| attached.observe().map(|seen| (id, seen)))
        .collect()
}

fn wait_for_all(open: &[(ExecutionId, Attached)], patience: Duration) -> Result<()> {
    let until = Instant::now().checked_add(patience);
    for (_, attached) in open {
        attached.wait_until(None, until)?;
    }
    Ok(())
}

impl Attached {
    /// Kills a shim that does not do what it was asked; whatever it started dies with it, and no status is left.
    pub(super) fn kill_shim(&self) -> Result<()> {
        match &self.shim {
            Some(shim) => match pidfd_send_signal(shim, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => Ok(()),
                Err(errno) => Err(self.place.io("kill", "shim", errno)),
            },
            None => Ok(()),
        }
    }
}

/// Takes hold of the process of a shim.
///
/// The kernel names the process that has the lock. If it still does once that process is held, it is the very one: it
/// lived all the while, since nobody takes this lock a second time.
fn shim_of(place: &Place) -> Result<Option<OwnedFd>> {
    let Some(named) = place.shim()? else {
        return Ok(None);
    };
    let Some(pid) = Pid::from_raw(named) else {
        return Ok(None);
    };
    let held = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(held) => held,
        Err(Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(Error::io("hold", "the shim", errno)),
    };
    Ok((place.shim()? == Some(named)).then_some(held))
}

/// Sleeps until one of the descriptors is readable. A poll that fails is a short sleep: nothing is lost by it.
fn wait(fds: &mut [PollFd<'_>], left: Option<Duration>) {
    let left = left.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    match poll(fds, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(_) => std::thread::sleep(LOOK),
    }
}
