//! Where proposals lie: `sha256/` holds whole ones, `tmp/` those that are being written.
//!
//! It knows names and how they come to be; what an archive holds is no business of its own.

use crate::error::{Error, Result};
use crate::tarball::claim::{Claim, Of, claim, sweep};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use semel_core::Sha256;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

const PART: &str = "part-";

/// Gives the place of an archive under the directory of the proposals.
#[must_use]
pub fn archive_path(proposals: &Path, digest: &Sha256) -> PathBuf {
    proposals.join("sha256").join(format!("{digest}.tar"))
}

/// Gives the place of an archive's manifest.
#[must_use]
pub fn manifest_path(proposals: &Path, digest: &Sha256) -> PathBuf {
    proposals.join("sha256").join(format!("{digest}.json"))
}

/// Keeps the manifest of an archive, over an earlier one.
///
/// # Errors
/// `io_failed`; an earlier one is then as it was.
///
/// # Durability
/// Atomic, and on the disk when this returns.
pub fn keep_manifest(proposals: &Path, digest: &Sha256, text: &[u8]) -> Result<()> {
    let store = Store::open(proposals)?;
    let part = store.part()?;
    let kept = part
        .write(text)
        .and_then(|()| store.publish(&part, &format!("{digest}.json")));
    if kept.is_err() {
        store.discard(&part);
    }
    kept
}

pub(super) struct Store {
    tmp: OwnedFd,
    whole: OwnedFd,
    shown: PathBuf,
}

/// Is a file that is being written; its name is held.
pub(super) struct Written {
    claim: Claim,
    file: File,
}

impl Store {
    pub(super) fn open(proposals: &Path) -> Result<Self> {
        let fail = |e: Errno| Error::io("open", proposals, e);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let under = |name: &str| {
            let path = proposals.join(name);
            std::fs::create_dir_all(&path).map_err(|e| Error::io("make", &path, e))?;
            rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(fail)
        };
        let (tmp, whole) = (under("tmp")?, under("sha256")?);
        rustix::fs::fsync(under(".")?).map_err(fail)?;
        sweep(tmp.as_fd(), PART, Of::File);
        Ok(Self {
            tmp,
            whole,
            shown: proposals.to_owned(),
        })
    }

    /// Begins a file.
    pub(super) fn part(&self) -> Result<Written> {
        let claim = claim(self.tmp.as_fd(), PART, Of::File)?;
        let file = claim.held.try_clone();
        let file = file.map_err(|e| Error::io("open", &self.shown, e))?.into();
        Ok(Written { claim, file })
    }

    pub(super) fn discard(&self, part: &Written) {
        // The error that led here is what the caller must hear.
        part.claim.drop_it(self.tmp.as_fd(), Of::File).ok();
    }

    /// Gives a file its name, over an earlier one: that is the same file, or was damaged.
    ///
    /// # Durability
    /// File and name survive a power cut.
    pub(super) fn publish(&self, part: &Written, name: &str) -> Result<()> {
        let fail = |e: Errno| Error::io("publish", &self.shown, e);
        rustix::fs::fsync(&part.file).map_err(fail)?;
        rustix::fs::renameat(&self.tmp, &part.claim.name, &self.whole, name).map_err(fail)?;
        crate::files::sync(&self.whole, &self.shown.display().to_string())
    }
}

impl Written {
    pub(super) fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut file = &self.file;
        file.write_all(bytes)
            .map_err(|e| Error::io("write", "a proposal", e))
    }
}
