//! Removing a file, a link or a whole directory once: one rename into `trash/` that leaves evidence, and can be undone.

use crate::error::{Error, Result};
use crate::files::moves::{as_unproven, changed, give_back, into_ours, kept_digest, still_there};
use crate::files::prepared::{Act, Prepared, Syncs, Terms};
use crate::files::read::{FileKind, links, open_regular};
use crate::files::write::{expected_content, target_place};
use crate::files::{Expected, Step, Steps, file_id, file_id_at};
use crate::root::{LastLink, Place, failed};
use crate::volume::Volume;
use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;
use semel_core::effect::{Before, Effect};
use semel_core::ids::FileId;
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Says what a removal may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removable {
    /// A file or a link.
    Leaf,
    /// A directory with all that is in it.
    Directory,
}

/// States a removal.
#[derive(Clone, Copy, Debug)]
pub struct Remove<'a> {
    /// What; a link in the last place is itself removed.
    pub path: &'a RelPath,
    /// What is expected there.
    pub expected: Expected,
    /// What it may be.
    pub takes: Removable,
}

/// Holds a removal that nothing shows yet.
#[derive(Debug)]
pub(super) struct Removal {
    expected: Expected,
    parent: OwnedFd,
    name: Vec<u8>,
    target: FileId,
}

/// Looks at what is to be removed; changes nothing.
///
/// # Errors
/// `not_found` where there is nothing, or no parent; `precondition_failed` where `expected` does not hold, for a
/// directory where a leaf is meant (reason `is_directory`) and the other way round (`not_directory`);
/// `path_escapes_root` for protected targets, devices, FIFOs and sockets.
pub fn prepare_remove(volume: &Volume, wanted: Remove<'_>, terms: Terms<'_>) -> Result<Prepared> {
    let place = target_place(volume, wanted.path, LastLink::Keep, terms.git).map_err(as_not_found)?;
    let seen = look(volume, &place)?;
    match (seen.kind, wanted.takes) {
        (FileKind::Directory, Removable::Leaf) => {
            return Err(seen.refuse("is_directory", "it is a directory"));
        }
        (FileKind::File | FileKind::Symlink, Removable::Directory) => {
            return Err(seen.refuse("not_directory", "it is not a directory"));
        }
        (FileKind::Directory, Removable::Directory)
        | (FileKind::File | FileKind::Symlink | FileKind::Special, _) => {}
    }
    let before = seen.before(volume, &place, wanted.expected, terms.gone)?;
    Ok(Prepared {
        slot: terms.slot.clone(),
        syncs: Syncs::open(volume, &[&place], terms.durability)?,
        act: Act::Remove(Removal {
            expected: wanted.expected,
            parent: place.parent,
            name: place.name,
            target: before.id.clone(),
        }),
        effect: Effect::Remove {
            at: place.resolved,
            before,
        },
    })
}

/// Is what was seen at a place that is to lose its entry.
pub(super) struct Seen {
    pub(super) kind: FileKind,
    pub(super) id: FileId,
    pub(super) stat: Stat,
    pub(super) found: OwnedFd,
    path: RelPath,
}

/// Looks at what a place holds; follows no link.
///
/// # Errors
/// `not_found`; `path_escapes_root` for devices, FIFOs, sockets and mounts.
pub(super) fn look(volume: &Volume, place: &Place) -> Result<Seen> {
    let path = place.resolved.clone();
    let found = volume
        .tree()
        .step(place.parent.as_fd(), &place.name, OFlags::PATH)
        .map_err(|errno| failed(errno, &path))?;
    let stat = rustix::fs::fstat(&found).map_err(|errno| failed(errno, &path))?;
    let kind = FileKind::of(&stat);
    if kind == FileKind::Special {
        let why = "it is a device, a FIFO or a socket";
        return Err(Refusal::new(Code::PathEscapesRoot, why)
            .reason("special_file")
            .name(path.to_string())
            .into());
    }
    Ok(Seen {
        kind,
        id: file_id(&found)?,
        stat,
        found,
        path,
    })
}

impl Seen {
    /// Makes the refusal of a precondition that does not hold.
    pub(super) fn refuse(&self, reason: &str, why: &str) -> Error {
        Refusal::new(Code::PreconditionFailed, why)
            .reason(reason)
            .name(self.path.to_string())
            .into()
    }

    /// Gives what is recorded of it, once it is what is expected.
    ///
    /// # Errors
    /// `precondition_failed`; `too_large`; `draining` where the caller is gone; `io_failed`.
    pub(super) fn before(
        &self,
        volume: &Volume,
        place: &Place,
        expected: Expected,
        gone: &dyn Fn() -> bool,
    ) -> Result<Before> {
        let sha256 = match (self.kind, expected) {
            (_, Expected::Absent) => {
                return Err(self.refuse("exists", "there is something, but nothing was expected"));
            }
            (FileKind::Directory, Expected::Sha256(_)) => {
                return Err(self.refuse("is_directory", "it is a directory, but a content was expected"));
            }
            (FileKind::Symlink | FileKind::Special, Expected::Sha256(_)) => {
                return Err(self.refuse("is_symlink", "it is a link, but a content was expected"));
            }
            (FileKind::Directory | FileKind::Symlink | FileKind::Special, Expected::Any) => None,
            (FileKind::File, Expected::Any | Expected::Sha256(_)) => {
                self.digest(volume, place, expected, gone)?
            }
        };
        let others = links(&self.stat).saturating_sub(1);
        let counts = self.kind == FileKind::File && others > 0;
        Ok(Before {
            id: self.id.clone(),
            sha256,
            stated: expected.stated(),
            other_names: counts.then_some(others),
        })
    }

    fn digest(
        &self,
        volume: &Volume,
        place: &Place,
        expected: Expected,
        gone: &dyn Fn() -> bool,
    ) -> Result<Option<Sha256>> {
        match open_regular(volume.tree(), place) {
            Ok((file, _)) if file_id(&file)? != self.id => {
                Err(changed("another process replaced the file", &self.path))
            }
            Ok((file, stat)) => expected_content(&file, &stat, expected, &self.path, gone),
            // A file that may not be read may be removed all the same, unless its content matters.
            Err(Error::Io { source, .. }) if unreadable(&source) && expected == Expected::Any => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Removal {
    /// Gives the directory and the name that are acted on, and what is to be removed.
    pub(super) fn source(&self) -> (BorrowedFd<'_>, &[u8], &FileId) {
        (self.parent.as_fd(), &self.name, &self.target)
    }

    /// Removes by one rename into `trash/<slot>`, then verifies that the right thing went there.
    pub(super) fn carry_out(
        &self,
        volume: &Volume,
        prepared: &Prepared,
        steps: &dyn Steps,
    ) -> Result<Option<Sha256>> {
        let (slot, path) = (prepared.slot.as_str(), prepared.effect.at());
        still_there((&self.parent, &self.name), &self.target, path)?;
        steps.reached(Step::TargetSeen);
        match into_ours(self.parent.as_fd(), &self.name, volume.trash(), slot) {
            Ok(()) => steps.reached(Step::Removed),
            Err(Errno::NOENT) => return Err(failed(Errno::NOENT, path)),
            Err(errno) => return Err(self.unremoved(volume, slot, path, errno)),
        }
        let examined = |error| as_unproven("examine what was removed at", path, error);
        let out = file_id_at(volume.trash(), slot.as_bytes()).map_err(examined)?;
        let same = out.as_ref() == Some(&self.target);
        let digest = if same {
            kept_digest(volume.trash(), slot, self.expected).map_err(examined)?
        } else {
            None
        };
        let holds = match self.expected {
            Expected::Sha256(wanted) => digest == Some(wanted),
            Expected::Any | Expected::Absent => true,
        };
        if !same || !holds {
            let from = (volume.trash(), slot.as_bytes());
            give_back(volume, from, (self.parent.as_fd(), &self.name), path, "trash")?;
            steps.reached(Step::PutBack);
            return Err(changed("another process changed the file", path));
        }
        Ok(digest)
    }

    fn unremoved(&self, volume: &Volume, slot: &str, path: &RelPath, errno: Errno) -> Error {
        match (errno, file_id_at(volume.trash(), slot.as_bytes())) {
            // overlayfs moves no directory of a lower layer where redirect_dir is not to be had.
            (Errno::XDEV, Ok(None)) => cross_layer(path),
            (_, Ok(None)) => Error::io("remove", path.to_string(), errno),
            _ => Error::unproven("remove", path.to_string(), errno),
        }
    }
}

/// Says that a directory of a lower layer cannot be renamed.
pub(super) fn cross_layer(path: &RelPath) -> Error {
    let why = "the filesystem does not rename a directory of its lower layer";
    Refusal::new(Code::PreconditionFailed, why)
        .reason("cross_layer")
        .name(path.to_string())
        .into()
}

pub(super) fn unreadable(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::PermissionDenied
}

/// Where the parent is gone, so is the file.
pub(super) fn as_not_found(error: Error) -> Error {
    match error {
        Error::Refused(mut refusal) if refusal.code == Code::PreconditionFailed => {
            refusal.code = Code::NotFound;
            Error::Refused(refusal)
        }
        other => other,
    }
}
