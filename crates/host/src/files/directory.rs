//! Making directories and removing empty ones, once.
//!
//! New directories are built in `staging/`, with all those that are missing below, and appear by one rename. An empty
//! directory is removed for good, so that whoever holds a handle on it and puts something in at the last moment either
//! refuses the removal or is told by the kernel.

use crate::error::{Error, Result};
use crate::files::attributes;
use crate::files::moves::{Left, changed, take_free_name, unmoved};
use crate::files::prepared::{Act, Prepared, Syncs, Terms};
use crate::files::read::FileKind;
use crate::files::remove::{as_not_found, look};
use crate::files::write::{not_staged, target_place};
use crate::files::{Step, Steps, file_id, file_id_at};
use crate::root::{GitInternals, LastLink, Place, Root, check_target, failed};
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
    /// Each new directory, with a handle that stays good when it takes its name.
    made: Vec<(RelPath, OwnedFd)>,
    /// What each path that was asked for leads to.
    asked: Vec<(RelPath, RelPath)>,
}

/// Is a directory that is missing, with those below it that were asked for, too.
#[derive(Debug)]
pub struct Missing {
    top: Place,
    /// What each path that was asked for leads to.
    asked: Vec<(RelPath, RelPath)>,
}

impl Missing {
    /// Gives the directory itself and the name that is free in it.
    #[must_use]
    pub const fn top(&self) -> &Place {
        &self.top
    }
}

/// Finds which directories are missing, the topmost ones, each once.
///
/// # Errors
/// `precondition_failed` where a file is in the place or on the way (reasons `exists`, `parent_not_directory`);
/// `path_escapes_root`; `io_failed`.
pub fn missing_directories<'a>(
    volume: &Volume,
    wanted: impl IntoIterator<Item = &'a RelPath>,
    git: GitInternals,
) -> Result<Vec<Missing>> {
    let mut all: Vec<(FileId, Missing)> = Vec::new();
    for path in wanted {
        let Some((top, below)) = first_missing(volume, path, git)? else {
            continue;
        };
        let parent = file_id(&top.parent)?;
        let resolved = below
            .iter()
            .try_fold(top.resolved.clone(), |at, name| at.join(name))?;
        let same = all
            .iter_mut()
            .find(|(id, known)| *id == parent && known.top.name == top.name);
        match same {
            Some((_, known)) => known.asked.push((path.clone(), resolved)),
            None => all.push((
                parent,
                Missing {
                    top,
                    asked: vec![(path.clone(), resolved)],
                },
            )),
        }
    }
    Ok(all.into_iter().map(|(_, missing)| missing).collect())
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

/// Finds the place of the topmost missing directory of a path, and the names below it.
fn first_missing(
    volume: &Volume,
    path: &RelPath,
    git: GitInternals,
) -> Result<Option<(Place, Vec<Vec<u8>>)>> {
    check_target(path, git)?;
    for below in 0..path.components().count() {
        let (top, names) = ancestors(path, below);
        let place = match target_place(volume, &top, LastLink::Follow, git) {
            Ok(place) => place,
            Err(Error::Refused(refusal)) if refusal.reason.as_deref() == Some("parent_missing") => continue,
            // A link leads to the root, which is there.
            Err(Error::Refused(refusal)) if below == 0 && refusal.reason.as_deref() == Some("root") => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let found = volume
            .tree()
            .step(place.parent.as_fd(), &place.name, OFlags::PATH);
        let stat = match found.and_then(|found| rustix::fs::fstat(&found)) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(Some((place, names))),
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
            return Ok(None);
        }
        // It appeared between two looks: the one below it is the first that was missing.
        let (top, names) = ancestors(path, below - 1);
        return Ok(Some((target_place(volume, &top, LastLink::Follow, git)?, names)));
    }
    Ok(None)
}

/// Stages a directory that is missing, and those below it.
///
/// # Errors
/// `unknown_state` where the slot was used before; `io_failed`.
pub fn prepare_directory(
    volume: &Volume,
    missing: Missing,
    terms: Terms<'_>,
    steps: &dyn Steps,
) -> Result<Prepared> {
    let Missing { top, asked } = missing;
    let mut syncs = Syncs::open(volume, &[&top], terms.durability)?;
    let made = match build(volume, terms.slot, &top.resolved, &asked) {
        Ok(made) => made,
        Err(error) => {
            // The first error is what the caller must hear; what stays behind is swept as an orphan.
            drop(discard_directory(volume, terms.slot.as_str()));
            return Err(error);
        }
    };
    for (_, handle) in &made {
        syncs.staged(volume, handle.as_fd())?;
    }
    let staged = match made.first() {
        Some((_, handle)) => file_id(handle)?,
        None => return Err(Refusal::new(Code::Internal, "no directory was staged").into()),
    };
    steps.reached(Step::Staged);
    Ok(Prepared {
        slot: terms.slot.clone(),
        effect: Effect::Install {
            at: top.resolved,
            staged: staged.clone(),
            content: Content::Directory {
                made: made.iter().map(|(path, _)| path.clone()).collect(),
            },
            before: None,
        },
        act: Act::MakeDirectory(StagedDirectory {
            parent: top.parent,
            name: top.name,
            staged,
            made,
            asked,
        }),
        syncs,
    })
}

/// Makes the directories, each once, those above before those below.
fn build(
    volume: &Volume,
    slot: &Slot,
    top: &RelPath,
    asked: &[(RelPath, RelPath)],
) -> Result<Vec<(RelPath, OwnedFd)>> {
    let fail = |errno| Error::io("stage", slot.as_str(), errno);
    let open = |dir: BorrowedFd<'_>, name: &[u8]| {
        rustix::fs::openat(dir, name, DIRECTORY, Mode::empty()).map_err(fail)
    };
    rustix::fs::mkdirat(volume.staging(), slot.as_str(), Mode::RWXU).map_err(|e| not_staged(slot, e))?;
    let mut made = vec![(top.clone(), open(volume.staging(), slot.as_str().as_bytes())?)];
    for (_, resolved) in asked {
        let below = resolved.components().skip(top.components().count());
        let mut at = top.clone();
        for name in below {
            let next = at.join(name)?;
            if !made.iter().any(|(known, _)| *known == next) {
                let parent = made.iter().find(|(known, _)| *known == at).map(|(_, dir)| dir);
                let Some(parent) = parent else { break };
                rustix::fs::mkdirat(parent, name, Mode::RWXU).map_err(fail)?;
                let handle = open(parent.as_fd(), name)?;
                made.push((next.clone(), handle));
            }
            at = next;
        }
    }
    for (path, handle) in &made {
        let shown = path.to_string();
        attributes::as_the_volume(volume, handle.as_fd(), &shown)?;
        attributes::chmod(handle.as_fd(), 0o755, &shown)?;
    }
    Ok(made)
}

impl StagedDirectory {
    pub(super) fn install(&self, volume: &Volume, prepared: &Prepared, steps: &dyn Steps) -> Result<()> {
        let (from, path) = (prepared.slot.as_str().as_bytes(), prepared.effect.at());
        match take_free_name(volume.staging(), from, self.parent.as_fd(), &self.name) {
            Ok(()) => {
                steps.reached(Step::Installed);
                Ok(())
            }
            Err(Left::Nothing(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR)) => {
                Err(changed("something appeared in the place", path))
            }
            Err(left) => Err(unmoved(
                "install",
                (volume.staging(), from),
                &self.staged,
                path,
                left,
            )),
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
        let Some((_, resolved)) = staged.asked.iter().find(|(asked, _)| *asked == parent) else {
            return Ok(None);
        };
        let Some((_, handle)) = staged.made.iter().find(|(made, _)| made == resolved) else {
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

/// Says whether a directory beneath a root holds nothing but directories, all the way down.
///
/// # Errors
/// As of a directory; `io_failed`.
pub fn holds_directories_alone(root: &Root, path: &RelPath) -> Result<bool> {
    let (dir, _) = root.directory(path)?;
    directories_alone(super::syncable(dir.as_fd())?, &path.to_string())
}

/// Says whether a staged directory holds nothing but directories.
///
/// # Errors
/// `io_failed`.
pub(super) fn staged_directories_alone(volume: &Volume, slot: &str) -> Result<bool> {
    directories_alone(open_staged(volume.staging(), slot.as_bytes(), slot)?, slot)
}

fn directories_alone(dir: OwnedFd, shown: &str) -> Result<bool> {
    let mut todo = vec![dir];
    while let Some(dir) = todo.pop() {
        let root = RelPath::root();
        for (name, kind) in super::read::entries(&dir, usize::MAX).map_err(|e| e.named(&root))? {
            if kind != FileKind::Directory {
                return Ok(false);
            }
            todo.push(open_staged(dir.as_fd(), &name, shown)?);
        }
    }
    Ok(true)
}

fn open_staged(dir: BorrowedFd<'_>, name: &[u8], slot: &str) -> Result<OwnedFd> {
    rustix::fs::openat(dir, name, DIRECTORY, Mode::empty()).map_err(|e| Error::io("open", slot, e))
}

/// Removes directories that are staged, and nothing else that is in them.
///
/// # Errors
/// `outcome_unknown` where anything else is in them: it is another process's, and is kept; `io_failed`.
pub(super) fn discard_directory(volume: &Volume, slot: &str) -> Result<()> {
    if file_id_at(volume.staging(), slot.as_bytes())?.is_none() {
        return Ok(());
    }
    if !staged_directories_alone(volume, slot)? {
        return Err(not_ours(volume, slot));
    }
    remove_below(volume, volume.staging(), slot.as_bytes(), slot)
}

fn remove_below(volume: &Volume, dir: BorrowedFd<'_>, name: &[u8], slot: &str) -> Result<()> {
    let inner = open_staged(dir, name, slot)?;
    for (below, _) in super::read::entries(&inner, usize::MAX).map_err(|_| not_ours(volume, slot))? {
        remove_below(volume, inner.as_fd(), &below, slot)?;
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Err(not_ours(volume, slot)),
        Err(errno) => Err(Error::io("discard", slot, errno)),
    }
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
        && matches!(
            super::read::entries(&dir, 0),
            Err(super::read::ListFailure::TooMany(_))
        )
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
        steps.reached(Step::TargetSeen);
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
                Err(unmoved("remove", at, &self.target, path, Left::Nothing(errno)))
            }
        }
    }
}
