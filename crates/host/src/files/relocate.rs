//! Giving something another name once: within the tree, or out of `trash/`, back to where it came from.
//!
//! What is moved is looked at again under its new name, and moved back where it is another thing. The new name is
//! always a free one: what stands there goes to `trash/` by an effect of its own, before.

use crate::error::{Error, Result};
use crate::files::moves::{
    Left, as_unproven, changed, changed_outside, give_back, out_of_reach, rename_in_tree, still_there,
    take_free_name, unmoved,
};
use crate::files::prepared::{Act, Prepared, Syncs, Terms};
use crate::files::read::FileKind;
use crate::files::remove::{as_not_found, cross_layer, look};
use crate::files::write::target_place;
use crate::files::{Expected, Step, Steps, file_id_at, links};
use crate::root::{GitInternals, LastLink, Place, failed};
use crate::volume::Volume;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use semel_core::effect::{Before, Effect, Slot};
use semel_core::ids::FileId;
use semel_core::{Code, Refusal, RelPath};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// States a move.
#[derive(Debug)]
pub struct Move<'a> {
    /// From where; a link in the last place is itself moved.
    pub from: &'a RelPath,
    /// To where.
    pub to: &'a RelPath,
    /// What is expected at the source.
    pub expected: Expected,
    /// The new place, where it is known already: in a directory that is itself only staged.
    pub place: Option<Place>,
}

/// Holds a change of a name that nothing shows yet.
#[derive(Debug)]
pub(super) struct Relocation {
    from: From,
    to: OwnedFd,
    free: Vec<u8>,
    what: FileId,
    kind: FileKind,
    path: RelPath,
}

#[derive(Debug)]
enum From {
    Tree(OwnedFd, Vec<u8>),
    Trash(Slot),
}

/// Looks at what is to be moved; changes nothing. Whether the new name is free is decided by the move itself.
///
/// # Errors
/// `not_found` where the source is missing; `precondition_failed` where `expected` does not hold, the parent of the
/// destination is missing, or the destination lies in the source (reason `into_itself`); `path_escapes_root`.
pub fn prepare_move(volume: &Volume, wanted: Move<'_>, terms: Terms<'_>) -> Result<Prepared> {
    let source = target_place(volume, wanted.from, LastLink::Keep, terms.git).map_err(as_not_found)?;
    let seen = look(volume, &source)?;
    let place = match wanted.place {
        Some(place) => place,
        None => target_place(volume, wanted.to, LastLink::Keep, terms.git)?,
    };
    if place.resolved == source.resolved {
        return Err(seen.refuse("same_path", "it is to be moved to where it is"));
    }
    if seen.kind == FileKind::Directory && place.resolved.is_below(&source.resolved) {
        return Err(seen.refuse("into_itself", "a directory cannot be moved into itself"));
    }
    let what = seen.before(volume, &source, wanted.expected, terms.gone)?;
    Ok(Prepared {
        slot: terms.slot.clone(),
        syncs: Syncs::open(volume, &[&source, &place], terms.durability)?,
        act: Act::Move(Relocation {
            from: From::Tree(source.parent, source.name),
            to: place.parent,
            free: place.name,
            what: what.id.clone(),
            kind: seen.kind,
            path: place.resolved.clone(),
        }),
        effect: Effect::Move {
            from: source.resolved,
            to: place.resolved,
            what,
        },
    })
}

/// Says what stands at a path, a link itself; `None` where nothing does.
///
/// # Errors
/// As of a place.
pub fn kind_at(volume: &Volume, path: &RelPath, git: GitInternals) -> Result<Option<FileKind>> {
    let place = target_place(volume, path, LastLink::Keep, git)?;
    match look(volume, &place) {
        Ok(seen) => Ok(Some(seen.kind)),
        Err(Error::Refused(refusal)) if refusal.code == Code::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Looks at what an earlier execution kept in `trash/`, to give it a name in the tree again; changes nothing.
///
/// # Errors
/// `undo_expired` where it is not kept any more; `precondition_failed` where the parent is missing;
/// `path_escapes_root`.
pub fn prepare_restore(
    volume: &Volume,
    kept: &Slot,
    what: &Before,
    to: &RelPath,
    terms: Terms<'_>,
) -> Result<Prepared> {
    let place = target_place(volume, to, LastLink::Keep, terms.git)?;
    if file_id_at(volume.trash(), kept.as_str().as_bytes())?.as_ref() != Some(&what.id) {
        return Err(
            Refusal::new(Code::UndoExpired, "what was there before is not kept any more")
                .name(to.to_string())
                .into(),
        );
    }
    let stat = rustix::fs::statat(volume.trash(), kept.as_str(), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|e| Error::io("examine", kept.as_str(), e))?;
    Ok(Prepared {
        slot: terms.slot.clone(),
        syncs: Syncs::open(volume, &[&place], terms.durability)?,
        act: Act::Move(Relocation {
            from: From::Trash(kept.clone()),
            to: place.parent,
            free: place.name,
            what: what.id.clone(),
            kind: FileKind::of(&stat),
            path: place.resolved.clone(),
        }),
        effect: Effect::Restore {
            at: place.resolved,
            kept: kept.clone(),
            what: what.clone(),
        },
    })
}

impl Relocation {
    /// Gives the directory and the name that are given up, and what is to be moved.
    pub(super) fn source<'a>(&'a self, volume: &'a Volume) -> (BorrowedFd<'a>, &'a [u8], &'a FileId) {
        match &self.from {
            From::Tree(dir, name) => (dir.as_fd(), name, &self.what),
            From::Trash(kept) => (volume.trash(), kept.as_str().as_bytes(), &self.what),
        }
    }

    pub(super) fn carry_out(&self, volume: &Volume, prepared: &Prepared, steps: &dyn Steps) -> Result<()> {
        let (from, name, what) = self.source(volume);
        let seen = still_there((from, name), what, prepared.effect.at());
        seen.map_err(|error| match error.code() {
            Code::PreconditionFailed => replaced(prepared.effect.at()),
            _ => error,
        })?;
        steps.reached(Step::TargetSeen);
        let moved = match &self.from {
            From::Tree(..) => rename_in_tree(
                volume,
                prepared.slot.as_str(),
                (from, name),
                (self.to.as_fd(), &self.free),
                &self.what,
            ),
            From::Trash(_) => take_free_name(from, name, self.to.as_fd(), &self.free),
        };
        match moved {
            Ok(()) => steps.reached(Step::Moved),
            Err(left) => return Err(self.not_moved((from, name), prepared.effect.at(), left)),
        }
        let out = file_id_at(&self.to, &self.free)
            .map_err(|error| as_unproven("examine what was moved to", &self.path, error))?;
        if out.as_ref() == Some(&self.what) {
            return Ok(());
        }
        let Some(other) = out else {
            return Err(changed_outside(
                volume,
                "tree",
                &self.path.to_string(),
                &self.path,
            ));
        };
        move_back(
            volume,
            &prepared.slot,
            (self.to.as_fd(), &self.free),
            (from, name),
            (&other, &self.path),
        )?;
        steps.reached(Step::PutBack);
        Err(replaced(prepared.effect.at()))
    }

    fn not_moved(&self, from: (BorrowedFd<'_>, &[u8]), path: &RelPath, left: Left) -> Error {
        match left {
            Left::Nothing(Errno::NOENT) => failed(Errno::NOENT, path),
            Left::Nothing(Errno::STALE) => replaced(path),
            Left::Nothing(Errno::EXIST | Errno::NOTEMPTY) => {
                Refusal::new(Code::PreconditionFailed, "there is something at the destination")
                    .reason("exists")
                    .name(self.path.to_string())
                    .into()
            }
            Left::Nothing(Errno::XDEV) if self.kind == FileKind::Directory => cross_layer(&self.path),
            left => unmoved("move", from, &self.what, path, left),
        }
    }
}

fn replaced(path: &RelPath) -> Error {
    changed("another process replaced what was to be moved", path)
}

fn move_back(
    volume: &Volume,
    slot: &Slot,
    from: (BorrowedFd<'_>, &[u8]),
    to: (BorrowedFd<'_>, &[u8]),
    (what, path): (&FileId, &RelPath),
) -> Result<()> {
    match rename_in_tree(volume, slot.as_str(), from, to, what) {
        Ok(()) => Ok(()),
        Err(Left::Nothing(errno))
            if errno == Errno::EXIST || errno == Errno::STALE || out_of_reach(errno) =>
        {
            Err(changed_outside(volume, "tree", &path.to_string(), path))
        }
        Err(left) => Err(Error::unproven("move back", path.to_string(), left.errno())),
    }
}

/// Takes a move back that happened, or happened by half; what was taken back before is left as it is.
///
/// # Errors
/// `outcome_unknown` where another process changed either name; [`Error::Unproven`].
pub(super) fn move_taken_back(
    volume: &Volume,
    slot: &Slot,
    (source, destination): (&Place, &Place),
    what: &FileId,
) -> Result<()> {
    let name = slot.as_str();
    let path = &destination.resolved;
    let from = (source.parent.as_fd(), source.name.as_slice());
    let to = (destination.parent.as_fd(), destination.name.as_slice());
    let staging = (volume.staging(), name.as_bytes());
    let displaced = matches!(file_id_at(staging.0, staging.1)?, Some(other) if other != *what);
    if displaced {
        // Another process saved it at the source, from where it was taken by second names; what was to be moved is
        // an older version by that.
        give_back(volume, staging, from, &source.resolved, "staging")?;
    }
    let here = file_id_at(from.0, from.1)?.as_ref() == Some(what);
    let there = file_id_at(to.0, to.1)?.as_ref() == Some(what);
    let second = file_id_at(volume.trash(), name.as_bytes())?.as_ref() == Some(what);
    // A rename between two names of one file does nothing: the one in staging/ has to be free first.
    if here {
        links::drop_name(volume.staging(), name, what, from)?;
    } else if there {
        links::drop_name(volume.staging(), name, what, to)?;
    }
    match (here, there) {
        (true, true) if second => links::take_new_name(volume, (to, staging), what, path)?,
        (false, true) if second && displaced => links::take_new_name(volume, (to, staging), what, path)?,
        (true, false) => {}
        (false, true) => move_back(volume, slot, to, from, (what, path))?,
        (false, false) if displaced => {}
        (true, true) | (false, false) => {
            return Err(changed_outside(volume, "tree", &path.to_string(), path));
        }
    }
    links::drop_name(volume.trash(), name, what, from)
}

/// Takes a restoration back, to its slot in `trash/`.
///
/// # Errors
/// As of a move.
pub(super) fn restoration_taken_back(volume: &Volume, now: &Place, what: &FileId, kept: &Slot) -> Result<()> {
    let path = &now.resolved;
    if file_id_at(&now.parent, &now.name)?.as_ref() != Some(what) {
        return Err(changed_outside(volume, "tree", &path.to_string(), path));
    }
    let trash = (volume.trash(), kept.as_str().as_bytes());
    give_back(volume, (now.parent.as_fd(), &now.name), trash, path, "tree")
}
