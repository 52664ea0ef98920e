//! Who owns a volume: whoever holds the lock on `meta/owner.lock`. Never a pid, never a clock.

use crate::error::{Error, Result};
use crate::lock::{self, Holder, Of, Taken};
use crate::volume::Records;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use semel_core::ids::Generation;
use semel_core::{Code, Refusal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const NAME: &str = "owner.lock";

/// Holds the ownership of a volume. It belongs to the open file, so a process that inherits the handle keeps it.
#[derive(Debug)]
pub struct OwnerLock {
    file: OwnedFd,
}

impl AsFd for OwnerLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Takes the ownership of a volume.
///
/// # Errors
/// `volume_busy` where another owner lives; `io_failed`.
pub fn claim_owner(volume: &Records) -> Result<OwnerLock> {
    let file = open(volume.meta(), OFlags::CREATE).map_err(|e| Error::io("open", NAME, e))?;
    match lock::take(&file, Of::OpenFile) {
        Ok(Taken::Yes) => Ok(OwnerLock { file }),
        Ok(Taken::Busy) => Err(busy(volume.generation()).into()),
        Err(e) => Err(Error::io("lock", volume.path().join("meta").join(NAME), e)),
    }
}

/// Says whether any process holds the ownership of a volume.
///
/// # Errors
/// `io_failed`.
pub fn owner_alive(volume: &Records) -> Result<bool> {
    alive_at(volume.meta())
}

/// Says whether any process holds the lock in an open `meta/`.
pub(super) fn alive_at(meta: BorrowedFd<'_>) -> Result<bool> {
    // Nothing is made for a look: on a disk whose last file is used up, it would be in the way of freeing one.
    let file = match open(meta, OFlags::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(false),
        Err(e) => return Err(Error::io("open", NAME, e)),
    };
    let holder = lock::holder(&file).map_err(|e| Error::io("examine the lock", NAME, e))?;
    Ok(holder != Holder::Nobody)
}

pub(super) fn busy(generation: &Generation) -> Refusal {
    Refusal::new(Code::VolumeBusy, "the volume has a living owner").name(generation.to_string())
}

fn open(meta: BorrowedFd<'_>, more: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(meta, NAME, flags | more, Mode::RUSR | Mode::WUSR)
}
