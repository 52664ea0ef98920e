//! Making directories and removing empty ones, once.
//!
//! New directories are built in `staging/`, with all those that are missing below, and appear by one rename. An empty
//! directory is removed for good, so that whoever holds a handle on it and puts something in at the last moment either
//! refuses the removal or is told by the kernel.

use crate::error::{Error, Result};
use crate::files::attributes;
use crate::files::moves::{changed, take_free_name, unmoved};
use crate::files::prepared::{Act, Prepared, Syncs, Terms};
use crate::files::read::FileKind;
use crate::files::remove::{as_not_found, look};
use crate::files::write::{not_staged, target_place};
use crate::files::{Step, Steps, file_id, file_id_at};
use crate::root::{LastLink, Place, check_target, failed};
use crate::volume::Volume;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use semel_core::effect::{Content, Effect, Slot};
use semel_core::ids::FileId;
use semel_core::{Code, Refusal, RelPath};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Holds directories in `staging/` that nothing else shows yet.
#[derive(Debug)]
pub(super) struct StagedDirectory {
    parent: OwnedFd,
    name: Vec<u8>,
    staged: FileId,
    /// Each new directory by the path that was asked for, with a handle that stays good when it takes its name.
    made: Vec<(RelPath, RelPath, OwnedFd)>,
}

/// Says what there is to do for a directory that is to exist.
#[derive(Debug)]
pub enum Directory {
    /// It exists already.
    Exists(RelPath),
    /// It is staged.
    Staged(Prepared),
}

/// Stages a directory and those above it that are missing.
///
/// # Errors
/// `precondition_failed` where a file is in the place or on the way (reason `exists`, `parent_not_directory`);
/// `path_escapes_root`; `unknown_state` where the slot was used before; `io_failed`.
pub fn prepare_directory(
    volume: &Volume,
    path: &RelPath,
    terms: Terms<'_>,
    steps: &dyn Steps,
) -> Result<Directory> {
    check_target(path, terms.git)?;
    let (first, missing) = match first_missing(volume, path, terms)? {
        Missing::Nothing(resolved) => return Ok(Directory::Exists(resolved)),
        Missing::From(place, names) => (place, names),
    };
    let mut syncs = Syncs::open(volume, &[&first], terms.durability)?;
    let (asked, _) = ancestors(path, missing.len());
    let built = build(volume, terms.slot, &first, asked, &missing);
    let (made, staged) = match built {
        Ok(built) => built,
        Err(error) => {
            // The first error is what the caller must hear; what stays behind is swept as an orphan.
            drop(discard_directory(volume, terms.slot.as_str()));
            return Err(error);
        }
    };
    for (_, _, handle) in &made {
        syncs.staged(volume, handle.as_fd())?;
    }
    steps.reached(Step::Staged);
    let deepest = made.last().map_or(&first.resolved, |(_, resolved, _)| resolved).clone();
    Ok(Directory::Staged(Prepared {
        slot: terms.slot.clone(),
        effect: Effect::Install {
            at: first.resolved,
            staged: staged.clone(),
            content: Content::Directory { deepest },
            before: None,
        },
        act: Act::MakeDirectory(StagedDirectory {
            parent: first.parent,
            name: first.name,
            staged,
            made,
        }),
        syncs,
    }))
}

enum Missing {
    Nothing(RelPath),
    /// The place of the topmost missing directory, and the names below it.
    From(Place, Vec<Vec<u8>>),
}

/// Splits a path into the one that has `below` components less, and these.
fn ancestors(path: &RelPath, below: usize) -> (RelPath, Vec<Vec<u8>>) {
    let mut top = path.clone();
    let mut names = Vec::new();
    for _ in 0..below {
        let Some((parent, name)) = top.split_last().map(|(parent, name)| (parent, name.to_vec())) else {
            break;
        };
        names.insert(0, name);
        top = parent;
    }
    (top, names)
}

fn first_missing(volume: &Volume, path: &RelPath, terms: Terms<'_>) -> Result<Missing> {
    let depth = path.components().count();
    for below in 0..depth {
        let (top, names) = ancestors(path, below);
        let place = match target_place(volume, &top, LastLink::Follow, terms.git) {
            Ok(place) => place,
            Err(Error::Refused(refusal)) if refusal.reason.as_deref() == Some("parent_missing") => continue,
            Err(error) => return Err(error),
        };
        let found = volume.tree().step(place.parent.as_fd(), &place.name, OFlags::PATH);
        let stat = match found.and_then(|found| rustix::fs::fstat(&found)) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(Missing::From(place, names)),
            Err(errno) => return Err(failed(errno, &place.resolved)),
        };
        if FileKind::of(&stat) != FileKind::Directory {
            let (reason, why) = if below == 0 {
                ("exists", "there is something else in the place")
            } else {
                ("parent_not_directory", "a part of the path is not a directory")
            };
            return Err(Refusal::new(Code::PreconditionFailed, why)
                .reason(reason)
                .name(place.resolved.to_string())
                .into());
        }
        if below == 0 {
            return Ok(Missing::Nothing(place.resolved));
        }
        // It appeared between two looks: the one below it is the first that was missing.
        let (top, names) = ancestors(path, below - 1);
        return Ok(Missing::From(
            target_place(volume, &top, LastLink::Follow, terms.git)?,
            names,
        ));
    }
    Ok(Missing::Nothing(RelPath::root()))
}

type Made = Vec<(RelPath, RelPath, OwnedFd)>;

fn build(
    volume: &Volume,
    slot: &Slot,
    first: &Place,
    asked: RelPath,
    below: &[Vec<u8>],
) -> Result<(Made, FileId)> {
    rustix::fs::mkdirat(volume.staging(), slot.as_str(), Mode::RWXU).map_err(|e| not_staged(slot, e))?;
    let mut made: Made = Vec::new();
    let open = |dir: BorrowedFd<'_>, name: &[u8]| {
        rustix::fs::openat(dir, name, DIRECTORY, Mode::empty()).map_err(|e| Error::io("stage", slot.as_str(), e))
    };
    let top = open(volume.staging(), slot.as_str().as_bytes())?;
    let staged = file_id(&top)?;
    made.push((asked, first.resolved.clone(), top));
    for name in below {
        let Some((asked, resolved, parent)) = made.last() else { break };
        rustix::fs::mkdirat(parent, name.as_slice(), Mode::RWXU)
            .map_err(|e| Error::io("stage", slot.as_str(), e))?;
        let next = (asked.join(name)?, resolved.join(name)?, open(parent.as_fd(), name)?);
        made.push(next);
    }
    for (_, resolved, handle) in &made {
        let shown = resolved.to_string();
        attributes::as_the_volume(volume, handle.as_fd(), &shown)?;
        attributes::chmod(handle.as_fd(), 0o755, &shown)?;
    }
    Ok((made, staged))
}

impl StagedDirectory {
    pub(super) fn install(&self, volume: &Volume, prepared: &Prepared, steps: &dyn Steps) -> Result<()> {
        let (from, path) = (prepared.slot.as_str().as_bytes(), prepared.effect.at());
        match take_free_name(volume.staging(), from, self.parent.as_fd(), &self.name) {
            Ok(()) => {
                steps.reached(Step::Installed);
                Ok(())
            }
            Err(Errno::EXIST) => Err(changed("something appeared in the place", path)),
            Err(errno) => Err(unmoved("install", (volume.staging(), from), &self.staged, path, errno)),
        }
    }
}

impl Prepared {
    /// Gives the place of a path in a directory that this effect stages; `None` for any other.
    ///
    /// # Errors
    /// `io_failed` where no handle is left.
    pub fn place_in(&self, path: &RelPath) -> Result<Option<Place>> {
        let (Act::MakeDirectory(staged), Some((parent, name))) = (&self.act, path.split_last()) else {
            return Ok(None);
        };
        let Some((_, resolved, handle)) = staged.made.iter().find(|(asked, _, _)| *asked == parent) else {
            return Ok(None);
        };
        let parent = handle
            .try_clone()
            .map_err(|e| Error::io("hold", "a directory", e))?;
        Ok(Some(Place {
            parent,
            name: name.to_vec(),
            resolved: resolved.join(name)?,
        }))
    }
}

/// Removes directories that are staged: one in the other, and nothing else in them.
///
/// # Errors
/// `outcome_unknown` where anything else is in them: it is another process's, and is kept; `io_failed`.
pub(super) fn discard_directory(volume: &Volume, slot: &str) -> Result<()> {
    let mut way: Vec<(OwnedFd, Vec<u8>)> = Vec::new();
    let mut name = slot.as_bytes().to_vec();
    loop {
        let parent = way.last().map_or(volume.staging(), |(dir, _)| dir.as_fd());
        let dir = match rustix::fs::openat(parent, name.as_slice(), DIRECTORY, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT) if way.is_empty() => return Ok(()),
            Err(errno) => return Err(Error::io("discard", slot, errno)),
        };
        let inside = super::read::entries(&dir, 2).map_err(|_| not_ours(volume, slot))?;
        way.push((dir, name));
        match &inside[..] {
            [] => break,
            [(one, _)] => name = one.clone(),
            _ => return Err(not_ours(volume, slot)),
        }
    }
    while let Some((_, name)) = way.pop() {
        let parent = way.last().map_or(volume.staging(), |(dir, _)| dir.as_fd());
        match rustix::fs::unlinkat(parent, name.as_slice(), AtFlags::REMOVEDIR) {
            Ok(()) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) => return Err(not_ours(volume, slot)),
            Err(errno) => return Err(Error::io("discard", slot, errno)),
        }
    }
    Ok(())
}

fn not_ours(volume: &Volume, slot: &str) -> Error {
    let kept = volume.path().join("vol/staging").join(slot);
    let why = "another process put something into a directory that is taken back; it is kept";
    Refusal::new(Code::OutcomeUnknown, why)
        .reason("changed_outside")
        .name(kept.display().to_string())
        .into()
}

/// Holds the removal of an empty directory.
#[derive(Debug)]
pub(super) struct EmptyRemoval {
    parent: OwnedFd,
    name: Vec<u8>,
    target: FileId,
}

/// Looks at an empty directory that is to be removed; changes nothing.
///
/// # Errors
/// `not_found`; `precondition_failed`, reasons `not_directory` and `not_empty`; `path_escapes_root`.
pub fn prepare_remove_empty(volume: &Volume, path: &RelPath, terms: Terms<'_>) -> Result<Prepared> {
    let place = target_place(volume, path, LastLink::Keep, terms.git).map_err(as_not_found)?;
    let seen = look(volume, &place)?;
    if seen.kind != FileKind::Directory {
        return Err(seen.refuse("not_directory", "it is not a directory"));
    }
    // A directory that may not be read is left to the kernel to judge.
    if let Ok(dir) = rustix::fs::openat(&seen.found, ".", DIRECTORY, Mode::empty())
        && matches!(super::read::entries(&dir, 0), Err(super::read::ListFailure::TooMany(_)))
    {
        return Err(not_empty(&place.resolved));
    }
    Ok(Prepared {
        slot: terms.slot.clone(),
        syncs: Syncs::open(volume, &[&place], terms.durability)?,
        act: Act::RemoveEmpty(EmptyRemoval {
            parent: place.parent,
            name: place.name,
            target: seen.id.clone(),
        }),
        effect: Effect::RemoveEmpty {
            at: place.resolved,
            id: seen.id,
        },
    })
}

fn not_empty(path: &RelPath) -> Error {
    Refusal::new(Code::PreconditionFailed, "the directory is not empty")
        .reason("not_empty")
        .name(path.to_string())
        .into()
}

impl EmptyRemoval {
    pub(super) fn carry_out(&self, prepared: &Prepared, steps: &dyn Steps) -> Result<()> {
        let path = prepared.effect.at();
        if file_id_at(&self.parent, &self.name)?.as_ref() != Some(&self.target) {
            return Err(changed("another process replaced the directory", path));
        }
        match rustix::fs::unlinkat(&self.parent, self.name.as_slice(), AtFlags::REMOVEDIR) {
            Ok(()) => {
                steps.reached(Step::Removed);
                Ok(())
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(not_empty(path)),
            Err(Errno::NOENT) => Err(failed(Errno::NOENT, path)),
            Err(Errno::NOTDIR) => Err(changed("another process replaced the directory", path)),
            Err(errno) => {
                let at = (&self.parent, self.name.as_slice());
                Err(unmoved("remove", at, &self.target, path, errno))
            }
        }
    }
}
