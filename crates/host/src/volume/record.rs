//! Records in `meta/`: replaced as a whole, atomically and durably, or not at all.
//!
//! They are there also where the volume itself is not, such as one whose mount ended with the boot.

use super::{DIRTY, Volume};
use crate::error::{Error, Result};
use crate::files::{file_id_at, read_capped, sync};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use semel_core::ids::{Generation, JobId};
use semel_core::{Code, Refusal};
use std::io::Write as _;
use std::ops::Deref;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Holds the handle on `meta/` of a generation.
#[derive(Debug)]
pub struct Records {
    pub(super) job: JobId,
    pub(super) generation: Generation,
    pub(super) path: PathBuf,
    pub(super) meta: OwnedFd,
}

impl Deref for Volume {
    type Target = Records;

    fn deref(&self) -> &Records {
        &self.records
    }
}

impl Records {
    /// Gives the job.
    #[must_use]
    pub const fn job(&self) -> &JobId {
        &self.job
    }

    /// Gives the generation.
    #[must_use]
    pub const fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Gives the directory of the generation, for messages and for those who mount it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the handle on `meta/`.
    #[must_use]
    pub fn meta(&self) -> BorrowedFd<'_> {
        self.meta.as_fd()
    }

    /// Says whether the volume bears a dirty mark, of whatever type.
    ///
    /// # Errors
    /// `io_failed` where `meta/` cannot be examined.
    pub fn is_dirty(&self) -> Result<bool> {
        Ok(file_id_at(&self.meta, DIRTY.as_bytes())?.is_some())
    }

    /// Marks the volume dirty again; the text says why.
    ///
    /// # Errors
    /// As [`write_record`].
    pub fn mark_dirty(&self, why: &str) -> Result<()> {
        write_record(self, DIRTY, why.as_bytes())
    }

    /// Removes the dirty mark: only a clean end of the attempt does.
    ///
    /// # Errors
    /// `io_failed` where the mark stays; [`Error::Unproven`] where its removal cannot be made durable.
    pub fn mark_clean(&self) -> Result<()> {
        match rustix::fs::unlinkat(&self.meta, DIRTY, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => sync(&self.meta, "meta"),
            Err(errno) => Err(Error::io("remove the mark of", &self.path, errno)),
        }
    }

    /// Records that the volume is set aside for a person to look at; it stays readable, and dirty.
    ///
    /// # Errors
    /// As [`write_record`].
    pub fn quarantine(&self, why: &str) -> Result<()> {
        self.mark_dirty(why)?;
        write_record(self, "quarantined", why.as_bytes())
    }
}

/// Writes a record of a volume, in place of an earlier one of the same name.
///
/// # Errors
/// `bad_input` for a name that is not `[a-z0-9._-]+`; `io_failed` where the old one stands; [`Error::Unproven`]
/// where the new one cannot be made durable.
///
/// # Durability
/// The record survives a power cut.
pub fn write_record(of: &Records, name: &str, bytes: &[u8]) -> Result<()> {
    write_at(of.meta(), name, bytes)
}

/// Reads a record of a volume; `None` where there is none.
///
/// # Errors
/// `unknown_state` where it is no plain file; `too_large` past the bound; `io_failed`.
pub fn read_record(of: &Records, name: &str, cap: u64) -> Result<Option<Vec<u8>>> {
    read_at(of.meta(), name, cap)
}

pub(super) fn read_at(meta: BorrowedFd<'_>, name: &str, cap: u64) -> Result<Option<Vec<u8>>> {
    check_name(name)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let odd = || Refusal::new(Code::UnknownState, "a record is no plain file").name(name);
    let file = match rustix::fs::openat(meta, name, flags, Mode::empty()) {
        Ok(file) => std::fs::File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP | Errno::NXIO) => return Err(odd().into()),
        Err(errno) => return Err(Error::io("open", name, errno)),
    };
    let stat = file.metadata().map_err(|e| Error::io("examine", name, e))?;
    if !stat.is_file() {
        return Err(odd().into());
    }
    read_capped(file, cap, name).map(Some)
}

pub(super) fn write_at(meta: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> Result<()> {
    check_name(name)?;
    let staged = format!(".{name}.new");
    // What an earlier process left half-written is nobody's.
    match rustix::fs::unlinkat(meta, staged.as_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(Error::io("discard", &staged, errno)),
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(meta, staged.as_str(), flags, Mode::RUSR | Mode::WUSR)
        .map_err(|e| Error::io("create", &staged, e))?;
    let mut file = std::fs::File::from(file);
    file.write_all(bytes)
        .map_err(|e| Error::io("write", &staged, e))?;
    rustix::fs::fdatasync(&file).map_err(|e| Error::unproven("sync", &staged, e))?;
    rustix::fs::renameat(meta, staged.as_str(), meta, name).map_err(|e| Error::io("install", name, e))?;
    sync(meta, "meta")
}

fn check_name(name: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    if name.is_empty() || name.starts_with('.') || name.len() > 200 || !name.bytes().all(plain) {
        return Err(Refusal::new(Code::BadInput, "not the name of a record")
            .name(name)
            .into());
    }
    Ok(())
}
