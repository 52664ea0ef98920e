//! The moves that installs, removals and recovery share: exchanges and their undoing, and the syncs after them.

use crate::error::{Error, Result};
use crate::files::{DIGEST_CAP, Durability, Expected, digest_of, file_id_at, sync, syncable};
use crate::root::Place;
use crate::volume::Volume;
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use semel_core::ids::FileId;
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Handles opened before the rename, through which the directories are synced after it.
#[derive(Debug)]
pub(super) struct Syncs {
    parent: OwnedFd,
    pub(super) staging: OwnedFd,
    trash: OwnedFd,
}

impl Syncs {
    pub(super) fn open(volume: &Volume, place: &Place, durability: Durability) -> Result<Option<Self>> {
        if durability == Durability::Process {
            return Ok(None);
        }
        Ok(Some(Self {
            parent: syncable(place.parent.as_fd())?,
            staging: syncable(volume.staging())?,
            trash: syncable(volume.trash())?,
        }))
    }

    pub(super) fn all(&self) -> Result<()> {
        sync(&self.parent, "the parent directory")?;
        sync(&self.staging, "staging")?;
        sync(&self.trash, "trash")
    }
}

/// Digests a file of `staging/` or `trash/`, if it is small enough or its content is expected.
pub(super) fn kept_digest(dir: BorrowedFd<'_>, name: &str, expected: Expected) -> Result<Option<Sha256>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => std::fs::File::from(file),
        // A symbolic link, removed as such; or a file that its owner closed to us.
        Err(Errno::LOOP | Errno::ACCESS) => return Ok(None),
        Err(errno) => return Err(Error::io("open", name, errno)),
    };
    let stat = file.metadata().map_err(|e| Error::io("examine", name, e))?;
    if !stat.is_file() || (stat.len() > DIGEST_CAP && !matches!(expected, Expected::Sha256(_))) {
        return Ok(None);
    }
    digest_of(&file).map(Some).map_err(|e| Error::io("read", name, e))
}

/// Undoes an exchange, and verifies that our staged file came out.
pub(super) fn undo_exchange(
    volume: &Volume,
    name: &str,
    (parent, last): (&OwnedFd, &[u8]),
    path: &RelPath,
    staged: &FileId,
) -> Result<()> {
    match exchange(volume, name, parent, last) {
        Ok(()) => {}
        Err(errno) if out_of_reach(errno) => return Err(unknown(volume, name, path)),
        Err(errno) => return Err(Error::unproven("undo the exchange of", path.to_string(), errno)),
    }
    let out = file_id_at(volume.staging(), name.as_bytes())
        .map_err(|error| as_unproven("examine the exchange of", path, error))?;
    if out.as_ref() == Some(staged) {
        return Ok(());
    }
    // A third file was saved over ours meanwhile. The newest gets its place again; the older one stays staged.
    match exchange(volume, name, parent, last) {
        Ok(()) => Err(unknown(volume, name, path)),
        Err(errno) if out_of_reach(errno) => Err(unknown(volume, name, path)),
        Err(errno) => Err(Error::unproven("undo the exchange of", path.to_string(), errno)),
    }
}

/// Knows the answers by which another process, not the disk, stands in the way: both contents are where they were.
pub(super) fn out_of_reach(errno: Errno) -> bool {
    use Errno as E;
    matches!(
        errno,
        E::NOENT | E::NOTDIR | E::ACCESS | E::PERM | E::XDEV | E::BUSY | E::ROFS
    )
}

/// Moves a verified pre-image from `staging/` to `trash/`.
pub(super) fn keep_pre_image(volume: &Volume, name: &str) -> Result<()> {
    let (staging, trash) = (volume.staging(), volume.trash());
    rustix::fs::renameat_with(staging, name, trash, name, RenameFlags::NOREPLACE)
        .map_err(|e| Error::unproven("keep the pre-image of", name, e))
}

pub(super) fn exchange(volume: &Volume, name: &str, parent: &OwnedFd, last: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(volume.staging(), name, parent, last, RenameFlags::EXCHANGE)
}

/// Turns an error after the effect into one that makes the process end and recover.
pub(super) fn as_unproven(operation: &'static str, path: &RelPath, error: Error) -> Error {
    match error {
        Error::Io { source, .. } => Error::unproven(operation, path.to_string(), source),
        Error::Refused(refusal) => {
            Error::unproven(operation, path.to_string(), std::io::Error::other(refusal))
        }
        Error::Git(failure) => Error::unproven(operation, path.to_string(), std::io::Error::other(failure)),
        unproven @ Error::Unproven { .. } => unproven,
    }
}

pub(super) fn changed(why: &str, path: &RelPath) -> Error {
    Refusal::new(Code::PreconditionFailed, format!("{why} meanwhile"))
        .reason("changed_meanwhile")
        .name(path.to_string())
        .into()
}

fn unknown(volume: &Volume, name: &str, path: &RelPath) -> Error {
    let kept = volume.path().join("vol/staging").join(name);
    let why = "another process changed the same path during the call; both contents are kept";
    Refusal::new(Code::OutcomeUnknown, why)
        .reason("changed_outside")
        .names([path.to_string(), kept.display().to_string()])
        .into()
}
