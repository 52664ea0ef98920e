//! The renames of `moves` where the filesystem lacks the flags of `renameat2`: by second names.
//!
//! A hard link takes a name only while it is free, and a file that has two names is lost by neither. So each effect
//! gives a second name first and takes one away last; between the two the names themselves say how far it came, and
//! recovery reads them. What a name holds by the time it is taken away goes to `staging/` or `trash/`, and is looked at
//! there before it is dropped, since it may be another process's by then.
//!
//! Not as good as an exchange in one respect: where a file is replaced, a save by another process between the second
//! name and the rename is replaced unseen.

use crate::error::{Error, Result};
use crate::files::moves::{Left, changed_outside, kept_digest, out_of_reach};
use crate::files::{Expected, file_id_at};
use crate::volume::Volume;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use semel_core::ids::FileId;
use semel_core::{RelPath, Sha256};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

type At<'a> = (BorrowedFd<'a>, &'a [u8]);

fn link(from: At<'_>, to: At<'_>) -> rustix::io::Result<()> {
    rustix::fs::linkat(from.0, from.1, to.0, to.1, AtFlags::empty())
}

fn unlink(at: At<'_>) -> rustix::io::Result<()> {
    rustix::fs::unlinkat(at.0, at.1, AtFlags::empty())
}

fn holds(at: At<'_>, id: &FileId) -> bool {
    matches!(file_id_at(at.0, at.1), Ok(Some(found)) if found == *id)
}

/// Says whether two names are of one file.
pub(super) fn same_file(a: At<'_>, b: At<'_>) -> bool {
    matches!((file_id_at(a.0, a.1), file_id_at(b.0, b.1)), (Ok(Some(a)), Ok(Some(b))) if a == b)
}

/// Drops a second name again; if that fails, it is open what is there.
fn undo_link<T>(at: At<'_>, answer: Left) -> std::result::Result<T, Left> {
    match unlink(at) {
        Ok(()) | Err(Errno::NOENT) => Err(answer),
        Err(errno) => Err(Left::Open(errno)),
    }
}

/// Gives a file a free name and takes its old one, which is ours alone.
pub(super) fn take_free_name(from: At<'_>, to: At<'_>) -> std::result::Result<(), Left> {
    match link(from, to) {
        Ok(()) => {}
        // A life that ended right here gave it.
        Err(Errno::EXIST) if same_file(from, to) => {}
        Err(errno) => return Err(Left::Nothing(errno)),
    }
    unlink(from).map_err(Left::Open)
}

/// Renames a file within the tree to a free name.
///
/// `trash/<slot>` holds it meanwhile, as evidence; `staging/<slot>` what the old name held when it was taken away.
///
/// # Errors
/// [`Left::Nothing`] with `STALE` where the old name held another file, which has it again.
pub(super) fn rename_in_tree(
    volume: &Volume,
    slot: &str,
    from: At<'_>,
    to: At<'_>,
    what: &FileId,
) -> std::result::Result<(), Left> {
    let (trash, staging): (At<'_>, At<'_>) = (
        (volume.trash(), slot.as_bytes()),
        (volume.staging(), slot.as_bytes()),
    );
    match link(from, trash) {
        Ok(()) => {}
        Err(Errno::EXIST) if holds(trash, what) => {}
        Err(errno) => return Err(Left::Nothing(errno)),
    }
    if !holds(trash, what) {
        return undo_link(trash, Left::Nothing(Errno::STALE));
    }
    if let Err(errno) = link(trash, to) {
        return undo_link(trash, Left::Nothing(errno));
    }
    match rustix::fs::renameat(from.0, from.1, staging.0, staging.1) {
        Ok(()) if holds(staging, what) => unlink(staging).map_err(Left::Open)?,
        Ok(()) => {
            take_free_name(staging, from).map_err(|left| Left::Open(left.errno()))?;
            return take_away(to, staging, what).and_then(|()| undo_link(trash, Left::Nothing(Errno::STALE)));
        }
        // Another process removed the old name: it has the new one.
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(Left::Open(errno)),
    }
    unlink(trash).map_err(Left::Open)
}

/// Takes a second name in the tree away from a file, by a free one of ours.
fn take_away(at: At<'_>, by: At<'_>, what: &FileId) -> std::result::Result<(), Left> {
    match rustix::fs::renameat(at.0, at.1, by.0, by.1) {
        Ok(()) if holds(by, what) => unlink(by).map_err(Left::Open),
        Ok(()) => match take_free_name(by, at) {
            Ok(()) => Err(Left::Open(Errno::STALE)),
            Err(left) => Err(Left::Open(left.errno())),
        },
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Left::Open(errno)),
    }
}

/// Takes a new name away from a file that still has an older one, by a free one of ours; does nothing where it has no
/// such name.
///
/// # Errors
/// `outcome_unknown` where another process took the new name meanwhile; [`Error::Unproven`].
pub(super) fn take_new_name(
    volume: &Volume,
    (at, by): (At<'_>, At<'_>),
    what: &FileId,
    path: &RelPath,
) -> Result<()> {
    if !holds(at, what) {
        return Ok(());
    }
    match take_away(at, by, what) {
        Ok(()) => Ok(()),
        Err(Left::Open(errno)) if errno == Errno::STALE || out_of_reach(errno) => {
            Err(changed_outside(volume, "tree", &path.to_string(), path))
        }
        Err(left) => Err(Error::unproven("take back", path.to_string(), left.errno())),
    }
}

/// Drops the name in `staging/` or `trash/` of a file that has one in the tree; the last name is never dropped.
///
/// # Errors
/// `io_failed`.
pub(super) fn drop_name(ours: BorrowedFd<'_>, slot: &str, what: &FileId, named: At<'_>) -> Result<()> {
    let at = (ours, slot.as_bytes());
    if holds(at, what) && holds(named, what) {
        unlink(at).map_err(|e| Error::io("discard", slot, e))?;
    }
    Ok(())
}

/// Puts a staged file in the place of another, which keeps a name in `trash/`; gives its digest.
///
/// # Errors
/// [`Left::Nothing`] with `STALE` where the file in the place is not the one that is expected.
pub(super) fn take_place(
    volume: &Volume,
    slot: &str,
    (parent, last): (&OwnedFd, &[u8]),
    (target, expected): (&FileId, Expected),
) -> std::result::Result<Option<Sha256>, Left> {
    let (place, trash): (At<'_>, At<'_>) = ((parent.as_fd(), last), (volume.trash(), slot.as_bytes()));
    link(place, trash).map_err(Left::Nothing)?;
    let stale = Left::Nothing(Errno::STALE);
    if !holds(trash, target) {
        return undo_link(trash, stale);
    }
    let digest = match kept_digest(volume.trash(), slot, expected) {
        Ok(digest) => digest,
        Err(_) => return undo_link(trash, Left::Nothing(Errno::IO)),
    };
    if matches!(expected, Expected::Sha256(wanted) if digest != Some(wanted)) {
        return undo_link(trash, stale);
    }
    match rustix::fs::renameat(volume.staging(), slot, parent, last) {
        Ok(()) => Ok(digest),
        Err(errno) => undo_link(trash, Left::Nothing(errno)),
    }
}

/// Gives a pre-image in `trash/` its place again, and what was put there its name in `staging/`.
///
/// # Errors
/// `outcome_unknown` where another process changed the place meanwhile, with everything kept; [`Error::Unproven`].
pub(super) fn give_place_back(
    volume: &Volume,
    slot: &str,
    (parent, last): (&OwnedFd, &[u8]),
    path: &RelPath,
    staged: &FileId,
) -> Result<()> {
    let (place, staging): (At<'_>, At<'_>) = ((parent.as_fd(), last), (volume.staging(), slot.as_bytes()));
    let outside = || changed_outside(volume, "trash", slot, path);
    let open = |errno| Error::unproven("put back", path.to_string(), errno);
    match link(place, staging) {
        Ok(()) => {}
        Err(Errno::EXIST) if holds(staging, staged) => {}
        Err(errno) if out_of_reach(errno) => return Err(outside()),
        Err(errno) => return Err(open(errno)),
    }
    if !holds(staging, staged) {
        // Another process's file, which has its own name; if it lost it meanwhile, this one is kept.
        if same_file(staging, place) {
            unlink(staging).map_err(open)?;
        }
        return Err(outside());
    }
    match rustix::fs::renameat(volume.trash(), slot, parent, last) {
        Ok(()) => Ok(()),
        Err(errno) if out_of_reach(errno) => Err(outside()),
        Err(errno) => Err(open(errno)),
    }
}
