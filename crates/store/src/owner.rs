//! The lock of the one process that writes.
//!
//! It is taken before the database opens and held until the process ends. It does *not* name its holder: a held
//! lock is the only sign of life, never a pid or a clock.

use crate::error::{Error, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use semel_core::{Code, Refusal};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Is the right to write the journal of one state directory; given up when it is dropped.
#[derive(Debug)]
pub struct OwnerLock {
    dir: PathBuf,
    file: PathBuf,
    held: OwnedFd,
    /// The directory, locked too: `owner.lock` can be removed, and a new one be locked by another process.
    held_dir: OwnedFd,
}

impl OwnerLock {
    /// Takes the lock, without waiting.
    ///
    /// The lock belongs to the open file description (`flock`), not to the process: closing another descriptor of
    /// the same file, here or in a library, does not drop it; the kernel drops it when the process dies.
    ///
    /// # Errors
    /// `store_unavailable`, reason `owned_elsewhere`, while another process holds it; `io_failed` where the file
    /// cannot be made.
    pub fn take(dir: &Path) -> Result<Self> {
        let file = dir.join("owner.lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let held = rustix::fs::open(&file, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| Refusal::new(Code::IoFailed, format!("owner.lock cannot be opened ({e})")))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let held_dir = rustix::fs::open(dir, flags, Mode::empty())
            .map_err(|e| Refusal::new(Code::IoFailed, format!("the state root cannot be opened ({e})")))?;
        let lock = |fd: &OwnedFd| rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive);
        match lock(&held).and_then(|()| lock(&held_dir)) {
            Ok(()) => rustix::fs::fchmod(&held, Mode::RUSR | Mode::WUSR)
                .map_err(|e| {
                    Refusal::new(Code::IoFailed, format!("owner.lock is not of this user ({e})")).into()
                })
                .map(|()| Self {
                    dir: dir.to_path_buf(),
                    file,
                    held,
                    held_dir,
                }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Refused(
                Refusal::new(Code::StoreUnavailable, "another process writes this journal")
                    .reason("owned_elsewhere"),
            )),
            Err(e) => Err(Error::Refused(Refusal::new(
                Code::IoFailed,
                format!("owner.lock cannot be locked ({e})"),
            ))),
        }
    }

    /// Gives the state directory that it is of.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Gives the lock's own file, whose mode the database takes over.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        // Said aloud: a child that is being spawned just now holds a copy of the descriptor until it executes.
        // Where it fails, closing the descriptor gives the lock up all the same.
        for held in [&self.held_dir, &self.held] {
            let _closing_does_it_too = rustix::fs::flock(held, FlockOperation::Unlock);
        }
    }
}
