//! Space that is held back, so that receipts of done effects fit on a full disk.
//!
//! It does *not* watch the disk by itself: the writer asks once a batch.

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// How much is held back: some hundred receipts with the pages that they touch.
const RESERVE_BYTES: u64 = 1 << 20;

/// Below so much free space nothing new is begun: a full group of intents, its receipts, and the growth of the
/// write-ahead log until its next checkpoint fit into this.
pub(crate) const WATERMARK_BYTES: u64 = 32 << 20;

/// Holds space in `<state>/reserve`.
#[derive(Debug)]
pub(crate) struct Reserve {
    file: OwnedFd,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
    Freed,
}

impl Reserve {
    /// Takes the space, where there is enough.
    pub(crate) fn hold(dir: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(dir.join("reserve"), flags, Mode::RUSR | Mode::WUSR)?;
        let mut reserve = Self {
            file,
            state: State::Freed,
        };
        let there = rustix::fs::fstat(&reserve.file)?.st_size;
        if u64::try_from(there).is_ok_and(|there| there >= RESERVE_BYTES) {
            reserve.state = State::Held;
        } else if reserve.free_bytes()? > RESERVE_BYTES {
            match reserve.allocate() {
                // Whoever filled the disk meanwhile: the writer tries again once there is plenty.
                Ok(()) | Err(Errno::NOSPC) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(reserve)
    }

    fn allocate(&mut self) -> Result<(), Errno> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.fill()?,
            Err(e) => {
                // What was given in part counts for nothing.
                rustix::fs::ftruncate(&self.file, 0)?;
                return Err(e);
            }
        }
        self.state = State::Held;
        Ok(())
    }

    /// Writes the space out where it cannot be promised otherwise.
    fn fill(&self) -> Result<(), Errno> {
        let zeros = [0_u8; 1 << 16];
        let mut at = 0;
        while at < RESERVE_BYTES {
            at += rustix::io::pwrite(&self.file, &zeros, at)? as u64;
        }
        Ok(())
    }

    /// Gives the space back to the disk; says whether there was any.
    pub(crate) fn free(&mut self) -> Result<Freed, Errno> {
        match self.state {
            State::Freed => Ok(Freed::Nothing),
            State::Held => {
                rustix::fs::ftruncate(&self.file, 0)?;
                self.state = State::Freed;
                Ok(Freed::Space)
            }
        }
    }

    /// Looks how much is free, and takes the space again once there is plenty.
    pub(crate) fn look(&mut self) -> Result<u64, Errno> {
        let free = self.free_bytes()?;
        if self.state == State::Freed && free > WATERMARK_BYTES + RESERVE_BYTES {
            self.allocate()?;
        }
        Ok(free)
    }

    fn free_bytes(&self) -> Result<u64, Errno> {
        let disk = rustix::fs::fstatvfs(&self.file)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

/// Gives the space back where a journal that does not open yet may want for it; says whether there was any.
pub(crate) fn gave_back(dir: &Path) -> bool {
    let Ok(mut reserve) = Reserve::hold(dir) else {
        return false;
    };
    reserve.free_bytes().is_ok_and(|free| free < RESERVE_BYTES)
        && reserve.free().is_ok_and(|freed| freed == Freed::Space)
}

/// Says whether freeing gave anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The disk has the space again.
    Space,
    /// It had been given before.
    Nothing,
}
