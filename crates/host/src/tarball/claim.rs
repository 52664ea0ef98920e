//! Names that exist only while somebody works under them: whoever dies leaves a name that the next one removes.
//!
//! A name of ours is held by a lock on what it names, never by a pid or a clock. A filesystem without such locks keeps
//! what was left.

use crate::clock;
use crate::error::{Error, Result};
use crate::root::Root;
use crate::volume::reaper;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;
use semel_core::digest::to_hex;
use semel_core::{Code, Refusal};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// How often a name is lost to somebody who takes it for a left one, before that is given up.
const TRIES: usize = 16;
const UNSEALED: &str = ".semel-unseal-";

/// Is a name that is ours while this lives.
pub(super) struct Claim {
    pub(super) name: String,
    /// What it names; open and locked.
    pub(super) held: OwnedFd,
}

/// Says what a name of ours names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    File,
    Directory,
}

impl Of {
    fn open(self, dir: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let flags = flags
            | match self {
                Self::File => OFlags::RDONLY,
                Self::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
            };
        openat(dir, name, flags, Mode::empty())
    }

    fn make(self, dir: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
        match self {
            Self::File => {
                let flags =
                    OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                openat(dir, name, flags, Mode::RUSR | Mode::RGRP | Mode::ROTH)
            }
            Self::Directory => {
                rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o777))?;
                self.open(dir, name)
            }
        }
    }
}

/// Makes a new name, and holds it.
pub(super) fn claim(dir: BorrowedFd<'_>, prefix: &str, of: Of) -> Result<Claim> {
    for _ in 0..TRIES {
        let name = format!("{prefix}{}", to_hex(&clock::random::<16>()?));
        let made = match of.make(dir, &name) {
            // Somebody took the directory for a left one between its making and its opening.
            Err(Errno::NOENT) => continue,
            made => made.map_err(|e| Error::io("make", &name, e))?,
        };
        // Of a filesystem without locks nobody removes it but us.
        let locked = rustix::fs::flock(&made, FlockOperation::NonBlockingLockExclusive);
        if locked == Err(Errno::WOULDBLOCK) {
            continue;
        }
        let (ours, named) = (fstat(&made), statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW));
        if let (Ok(ours), Ok(named)) = (ours, named)
            && (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)
        {
            return Ok(Claim { name, held: made });
        }
    }
    Err(Error::io("make", prefix, Errno::AGAIN))
}

/// Removes the names of those who died. What cannot be removed stays: it is in nobody's way.
pub(super) fn sweep(dir: BorrowedFd<'_>, prefix: &str, of: Of) {
    let Ok(list) = openat(
        dir,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .and_then(rustix::fs::Dir::new) else {
        return;
    };
    for entry in list.flatten() {
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        let ours = name.strip_prefix(prefix);
        if ours.is_none_or(|rest| rest.len() != 32 || !rest.bytes().all(|b| b.is_ascii_hexdigit())) {
            continue;
        }
        let Ok(left) = of.open(dir, name) else { continue };
        let plain = fstat(&left).is_ok_and(|stat| {
            let kind = FileType::from_raw_mode(stat.st_mode);
            matches!(
                (of, kind),
                (Of::File, FileType::RegularFile) | (Of::Directory, FileType::Directory)
            )
        });
        if plain && rustix::fs::flock(&left, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // The lock is held until the name is gone.
            remove(dir, name, &left, of).ok();
        }
    }
}

fn remove(dir: BorrowedFd<'_>, name: &str, held: &OwnedFd, of: Of) -> Result<()> {
    let flags = match of {
        Of::File => AtFlags::empty(),
        Of::Directory => {
            reaper::empty(held)?;
            AtFlags::REMOVEDIR
        }
    };
    rustix::fs::unlinkat(dir, name, flags).map_err(|e| Error::io("remove", name, e))
}

impl Claim {
    /// Gives the name up, and removes what it names.
    pub(super) fn drop_it(&self, dir: BorrowedFd<'_>, of: Of) -> Result<()> {
        remove(dir, &self.name, &self.held, of)
    }
}

/// Makes a directory appear under a new name, filled, or not at all.
///
/// It is filled beside its place, under a hidden name. What a process that was killed left of such a directory in the
/// same place is removed first.
///
/// # Errors
/// Those of `fill`, with nothing left; `precondition_failed` where something has the name; `bad_input` for a path without
/// a last name; `io_failed`.
///
/// # Durability
/// Nothing is synced.
pub fn appear<T>(into: &Path, fill: impl FnOnce(&Root) -> std::result::Result<T, Refusal>) -> Result<T> {
    let shown = || into.display().to_string();
    let name = into
        .file_name()
        .ok_or_else(|| Refusal::new(Code::BadInput, "a new directory has a name").name(shown()))?;
    let taken = || {
        Refusal::new(Code::PreconditionFailed, "something has this name already")
            .reason("exists")
            .name(shown())
    };
    let parent = into.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(parent, flags, Mode::empty()).map_err(|e| Error::io("open", parent, e))?;
    match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => return Err(taken().into()),
        Err(Errno::NOENT) => {}
        Err(e) => return Err(Error::io("look at", into, e)),
    }
    sweep(dir.as_fd(), UNSEALED, Of::Directory);
    let claim = claim(dir.as_fd(), UNSEALED, Of::Directory)?;
    let filled = openat(
        &claim.held,
        ".",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|e| Error::io("open", into, e))
    .and_then(Root::from_handle)
    .and_then(|root| Ok(fill(&root)?));
    let placed = filled.and_then(|filled| {
        let from = (dir.as_fd(), claim.name.as_bytes());
        match crate::files::rename_ours(from, (dir.as_fd(), name.as_bytes())) {
            Ok(()) => Ok(filled),
            Err(Errno::EXIST | Errno::NOTEMPTY) => Err(taken().into()),
            Err(e) => Err(Error::io("name", into, e)),
        }
    });
    if placed.is_err() {
        claim.drop_it(dir.as_fd(), Of::Directory)?;
    }
    placed
}
