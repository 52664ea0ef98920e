//! The renames that every effect is made of, and their undoing.
//!
//! `staging/` and `trash/` are ours alone: what goes in there replaces nothing. A name in the tree is taken only while
//! it is free, or by an exchange, so that nothing of an outside process is ever displaced unseen. Where the filesystem
//! lacks the flags of `renameat2`, `links` does the same, as far as it can.

use crate::error::{Error, Result};
use crate::files::{Expected, digest_within, file_id_at, links};
use crate::volume::Volume;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use semel_core::ids::FileId;
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Says what a move left that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Everything is where it was, as far as the system's answer goes.
    Nothing(Errno),
    /// It is open what is where.
    Open(Errno),
}

impl Left {
    pub(super) const fn errno(self) -> Errno {
        match self {
            Left::Nothing(errno) | Left::Open(errno) => errno,
        }
    }
}

/// Gives an entry of `staging/` or `trash/` a free name; `EXIST` where the name is taken.
///
/// On a filesystem without `RENAME_NOREPLACE` a file gets a second name, then loses the first. A directory is renamed,
/// which replaces at most an empty directory.
pub(super) fn take_free_name(
    from: BorrowedFd<'_>,
    name: &[u8],
    to: BorrowedFd<'_>,
    free: &[u8],
) -> std::result::Result<(), Left> {
    rename_free((from, name), (to, free), || {
        links::take_free_name((from, name), (to, free))
    })
}

/// Gives a name of ours, in a directory of ours, another that is free; `EXIST` where it is taken.
///
/// # Errors
/// As of `renameat2`; where the filesystem lacks `RENAME_NOREPLACE`, a file may be left with both names.
pub(crate) fn rename_ours(
    from: (BorrowedFd<'_>, &[u8]),
    to: (BorrowedFd<'_>, &[u8]),
) -> rustix::io::Result<()> {
    take_free_name(from.0, from.1, to.0, to.1).map_err(Left::errno)
}

/// Renames to a free name, a file by other means where the filesystem lacks `RENAME_NOREPLACE`.
fn rename_free(
    (from, name): (BorrowedFd<'_>, &[u8]),
    (to, free): (BorrowedFd<'_>, &[u8]),
    file_by_names: impl FnOnce() -> std::result::Result<(), Left>,
) -> std::result::Result<(), Left> {
    match rustix::fs::renameat_with(from, name, to, free, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(()),
        // The kernel looks at the name before it asks the filesystem whether it knows the flag.
        Err(errno) if lacks_flags(errno) || errno == Errno::EXIST => {
            if errno == Errno::EXIST && !links::same_file((from, name), (to, free)) {
                return Err(Left::Nothing(errno));
            }
        }
        Err(errno) => return Err(Left::Nothing(errno)),
    }
    match is_directory(from, name) {
        Ok(true) => rename_directory((from, name), (to, free)).map_err(Left::Nothing),
        Ok(false) => file_by_names(),
        Err(errno) => Err(Left::Nothing(errno)),
    }
}

/// Renames within the tree to a free name; `EXIST` where it is taken.
///
/// On a filesystem without `RENAME_NOREPLACE` a file is renamed by second names, a directory as in [`take_free_name`].
pub(super) fn rename_in_tree(
    volume: &Volume,
    slot: &str,
    (from, name): (BorrowedFd<'_>, &[u8]),
    (to, free): (BorrowedFd<'_>, &[u8]),
    what: &FileId,
) -> std::result::Result<(), Left> {
    rename_free((from, name), (to, free), || {
        links::rename_in_tree(volume, slot, (from, name), (to, free), what)
    })
}

fn rename_directory(
    (from, name): (BorrowedFd<'_>, &[u8]),
    (to, free): (BorrowedFd<'_>, &[u8]),
) -> rustix::io::Result<()> {
    match file_id_at(to, free) {
        Ok(None) => rustix::fs::renameat(from, name, to, free),
        Ok(Some(_)) | Err(_) => Err(Errno::EXIST),
    }
}

/// Moves an entry into `staging/` or `trash/`; `EXIST` where the slot is in use.
///
/// Nobody else writes there, and a slot is used once: where the filesystem lacks the flag, a plain rename does.
pub(super) fn into_ours(
    from: BorrowedFd<'_>,
    name: &[u8],
    ours: BorrowedFd<'_>,
    slot: &str,
) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(from, name, ours, slot, RenameFlags::NOREPLACE) {
        Err(errno) if lacks_flags(errno) => rustix::fs::renameat(from, name, ours, slot),
        answer => answer,
    }
}

pub(super) fn lacks_flags(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

fn is_directory(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<bool> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(super::FileKind::of(&stat) == super::FileKind::Directory)
}

/// Exchanges a staged file with the one in a place.
pub(super) fn exchange(volume: &Volume, slot: &str, parent: &OwnedFd, last: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(volume.staging(), slot, parent, last, RenameFlags::EXCHANGE)
}

/// Undoes an exchange, and verifies that our staged file came out.
///
/// # Errors
/// `outcome_unknown` where another process changed the place meanwhile; [`Error::Unproven`].
pub(super) fn undo_exchange(
    volume: &Volume,
    slot: &str,
    (parent, last): (&OwnedFd, &[u8]),
    path: &RelPath,
    staged: &FileId,
) -> Result<()> {
    let again = |volume: &Volume| match exchange(volume, slot, parent, last) {
        Ok(()) => Ok(Exchanged::Yes),
        Err(errno) if lacks_flags(errno) => Ok(Exchanged::Cannot),
        Err(errno) if out_of_reach(errno) => Err(changed_outside(volume, "staging", slot, path)),
        Err(errno) => Err(Error::unproven("undo the exchange of", path.to_string(), errno)),
    };
    if again(volume)? == Exchanged::Cannot {
        keep_pre_image(volume, slot)?;
        return links::give_place_back(volume, slot, (parent, last), path, staged);
    }
    let out = file_id_at(volume.staging(), slot.as_bytes())
        .map_err(|error| as_unproven("examine the exchange of", path, error))?;
    if out.as_ref() == Some(staged) {
        return Ok(());
    }
    // A third file was saved over ours meanwhile. The newest gets its place again; the older one stays staged.
    again(volume)?;
    Err(changed_outside(volume, "staging", slot, path))
}

/// Says whether the filesystem exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchanged {
    Yes,
    Cannot,
}

/// Moves a verified pre-image from `staging/` to `trash/`.
pub(super) fn keep_pre_image(volume: &Volume, slot: &str) -> Result<()> {
    rustix::fs::renameat(volume.staging(), slot, volume.trash(), slot)
        .map_err(|e| Error::unproven("keep the pre-image of", slot, e))
}

/// Moves an entry back to a name that it had, unless something new is there.
pub(super) fn give_back(
    volume: &Volume,
    (from, name): (BorrowedFd<'_>, &[u8]),
    (to, last): (BorrowedFd<'_>, &[u8]),
    path: &RelPath,
    kept_in: &str,
) -> Result<()> {
    match take_free_name(from, name, to, last) {
        Ok(()) => Ok(()),
        Err(Left::Nothing(errno)) if errno == Errno::EXIST || out_of_reach(errno) => {
            let shown = semel_core::path::shown(name);
            Err(changed_outside(volume, kept_in, &shown, path))
        }
        Err(left) => Err(Error::unproven("put back", path.to_string(), left.errno())),
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

/// Digests a file of `staging/` or `trash/`, if it is small enough for that. Where content is expected, what is larger
/// than all that is digested is other content: an expectation is held against no such file.
pub(super) fn kept_digest(dir: BorrowedFd<'_>, name: &str, expected: Expected) -> Result<Option<Sha256>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => std::fs::File::from(file),
        // A symbolic link, removed as such; or a file that its owner closed to us.
        Err(Errno::LOOP | Errno::ACCESS) => return Ok(None),
        Err(errno) => return Err(Error::io("open", name, errno)),
    };
    let stat = file.metadata().map_err(|e| Error::io("examine", name, e))?;
    let most = expected.digests();
    if !stat.is_file() || stat.len() > most {
        return Ok(None);
    }
    digest_within(&file, most, &|| false).map_err(|e| Error::io("read", name, e))
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

/// Says that another process was faster; nothing is changed.
pub(super) fn changed(why: &str, path: &RelPath) -> Error {
    Refusal::new(Code::PreconditionFailed, format!("{why} meanwhile"))
        .reason("changed_meanwhile")
        .name(path.to_string())
        .into()
}

/// Says that another process changed the same path, and where the other content is kept.
pub(super) fn changed_outside(volume: &Volume, kept_in: &str, name: &str, path: &RelPath) -> Error {
    let kept = volume.path().join("vol").join(kept_in).join(name);
    let why = "another process changed the same path during the call; both contents are kept";
    Refusal::new(Code::OutcomeUnknown, why)
        .reason("changed_outside")
        .names([path.to_string(), kept.display().to_string()])
        .into()
}

/// Looks once more, right before it is taken, whether a name holds what was looked at.
///
/// It decides nothing: what comes out is looked at, too. But what another process put there since is hardly ever taken
/// out, to be put back, and nobody reads for that moment what is not to stay.
///
/// # Errors
/// As of a change by another process, or `not_found`.
pub(super) fn still_there(at: (impl AsFd, &[u8]), id: &FileId, path: &RelPath) -> Result<()> {
    match file_id_at(at.0, at.1)? {
        Some(found) if found == *id => Ok(()),
        Some(_) => Err(changed("another process changed the file", path)),
        None => Err(crate::root::failed(Errno::NOENT, path)),
    }
}

/// Names the failure of a first move: nothing began if what was to move is still where it was.
pub(super) fn unmoved(
    operation: &'static str,
    (dir, name): (impl AsFd, &[u8]),
    id: &FileId,
    path: &RelPath,
    left: Left,
) -> Error {
    match (left, file_id_at(dir, name)) {
        (Left::Nothing(errno), Ok(Some(found))) if found == *id => {
            Error::io(operation, path.to_string(), errno)
        }
        _ => Error::unproven(operation, path.to_string(), left.errno()),
    }
}
