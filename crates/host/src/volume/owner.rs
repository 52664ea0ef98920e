//! Who owns a volume: whoever holds the lock on `meta/owner.lock`. Never a pid, never a clock.

use crate::error::{Error, Result};
use crate::volume::Volume;
use rustix::fs::{Mode, OFlags};
use semel_core::ids::Generation;
use semel_core::{Code, Refusal};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

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
pub fn claim_owner(volume: &Volume) -> Result<OwnerLock> {
    let file = open(volume.meta())?;
    match lock(&file, libc::F_OFD_SETLK) {
        Ok(_) => Ok(OwnerLock { file }),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Err(busy(volume.generation()).into())
        }
        Err(e) => Err(Error::io("lock", volume.path().join("meta").join(NAME), e)),
    }
}

/// Says whether any process holds the ownership of a volume.
///
/// # Errors
/// `io_failed`.
pub fn owner_alive(volume: &Volume) -> Result<bool> {
    alive_at(volume.meta())
}

/// Says whether any process holds the lock in an open `meta/`.
pub(super) fn alive_at(meta: BorrowedFd<'_>) -> Result<bool> {
    let file = open(meta)?;
    let found = lock(&file, libc::F_OFD_GETLK).map_err(|e| Error::io("examine the lock", NAME, e))?;
    Ok(i32::from(found) != libc::F_UNLCK)
}

pub(super) fn busy(generation: &Generation) -> Refusal {
    Refusal::new(Code::VolumeBusy, "the volume has a living owner").name(generation.to_string())
}

fn open(meta: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(meta, NAME, flags, Mode::RUSR | Mode::WUSR).map_err(|e| Error::io("open", NAME, e))
}

/// Asks for, or about, a write lock on the whole file; gives the type of the lock that was found.
fn lock(file: &OwnedFd, command: i32) -> std::io::Result<libc::c_short> {
    let kind = |value: i32| libc::c_short::try_from(value).unwrap_or_default();
    #[expect(unsafe_code, reason = "rustix has no open-file-description locks")]
    // SAFETY: `flock` is plain data for which all zeroes is a value; fcntl reads and writes only that struct.
    let (answer, found) = unsafe {
        let mut wanted: libc::flock = std::mem::zeroed();
        wanted.l_type = kind(libc::F_WRLCK);
        wanted.l_whence = kind(libc::SEEK_SET);
        let answer = libc::fcntl(file.as_raw_fd(), command, &raw mut wanted);
        (answer, wanted.l_type)
    };
    if answer == -1 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(found)
}
