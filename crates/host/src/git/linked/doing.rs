//! What was begun with a worktree and is not ended: recorded before, taken up again after a kill.

use super::look::{Entries, NAMED, look};
use super::{Milestone, Tell, own_name};
use crate::error::{Error, Result};
use crate::git::Git;
use crate::git::pin::{self, Pins, open_real, spot_at};
use crate::git::worktree::{self, path_of};
use crate::plain;
use crate::process::Cancel;
use crate::volume::reaper::remove_tree;
use rustix::fs::{AtFlags, RenameFlags, renameat_with, unlinkat};
use rustix::io::Errno;
use semel_core::path::shown;
use semel_core::pin::{Origin, PathBytes, Pin, PinId, Spot};
use semel_core::{Code, Refusal};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Is what was begun and is not ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "doing", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Doing {
    Add {
        id: PinId,
        common: Box<Spot>,
        /// Where it will be.
        target: PathBytes,
        /// Where it is built.
        building: PathBytes,
        /// What was built there, once it is whole.
        built: Option<Spot>,
        /// What it is made of.
        origin: Box<Origin>,
    },
    Remove {
        pin: Box<Pin>,
        /// Where it lies until it is freed.
        aside: PathBytes,
    },
}

impl Doing {
    fn id(&self) -> &PinId {
        match self {
            Self::Add { id, .. } => id,
            Self::Remove { pin, .. } => &pin.id,
        }
    }

    fn common(&self) -> &Spot {
        match self {
            Self::Add { common, .. } => common,
            Self::Remove { pin, .. } => &pin.common,
        }
    }

    pub(super) fn place(&self, pins: &Pins) -> PathBuf {
        pins.dir.join(format!("doing-{}.json", self.id()))
    }

    pub(super) fn record(&self, pins: &Pins) -> Result<()> {
        let text = serde_json::to_vec(self)
            .map_err(|e| Refusal::new(Code::Internal, format!("what is begun has no JSON form: {e}")))?;
        pins.write(self.common(), &self.place(pins), &text)
    }
}

/// Names something that was begun with a worktree and is not ended: it is under way, or was cut off, or something of it
/// cannot be removed. The next command on the repository goes on with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// The pin's id.
    pub id: PinId,
    /// What was begun.
    pub begun: Begun,
    /// Where the worktree was or was to be.
    pub worktree: PathBytes,
    /// Where the rest of it lies.
    pub rest: PathBytes,
}

/// Says what was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// A worktree is made, or taken back.
    Add,
    /// One is removed.
    Remove,
}

/// What could not be ended, and why.
pub(in crate::git) struct Left(Vec<(PinId, Error)>);

impl Left {
    /// Takes out why the removal of a worktree could not be ended.
    pub(super) fn of(self, id: &PinId) -> Option<Error> {
        self.0
            .into_iter()
            .find_map(|(left, why)| (left == *id).then_some(why))
    }
}

/// Ends or takes back what former processes began in a repository; to be called under its lock.
///
/// What cannot be ended stays recorded for the next call, and is in nobody's way: every place that it lies at bears a name
/// of its own.
///
/// # Errors
/// `unknown_state` where a record cannot be read; `io_failed`.
pub(in crate::git) fn recover(git: &Git, pins: &Pins, common: &Path, cancel: &Cancel) -> Result<Left> {
    pins.sweep(common)?;
    let mut left = Vec::new();
    for doing in recorded(pins)? {
        if doing.common().path.as_bytes() != common.as_os_str().as_bytes() {
            continue;
        }
        let id = doing.id().clone();
        if let Err(why) = settle(git, pins, doing, cancel) {
            left.push((id, why));
        }
    }
    Ok(Left(left))
}

/// Lists what was begun and is not ended.
pub(in crate::git) fn unfinished(pins: &Pins) -> Result<Vec<Unfinished>> {
    let named = |doing| {
        Ok(match doing {
            Doing::Add {
                id,
                target,
                building,
                built,
                ..
            } => Unfinished {
                rest: match lies_at(&path_of(target.as_bytes()), built.as_ref())? {
                    true => target.clone(),
                    false => building,
                },
                id,
                begun: Begun::Add,
                worktree: target,
            },
            Doing::Remove { pin, aside } => Unfinished {
                id: pin.id,
                begun: Begun::Remove,
                worktree: pin.worktree.path,
                rest: aside,
            },
        })
    };
    recorded(pins)?.into_iter().map(named).collect()
}

/// Finds the repository of a worktree whose making was begun and is not ended.
pub(super) fn making(pins: &Pins, worktree: &Path) -> Result<Option<PathBuf>> {
    let found = recorded(pins)?.into_iter().find_map(|doing| match doing {
        Doing::Add { common, target, .. } if target.as_bytes() == worktree.as_os_str().as_bytes() => {
            Some(path_of(common.path.as_bytes()))
        }
        Doing::Add { .. } | Doing::Remove { .. } => None,
    });
    Ok(found)
}

fn recorded(pins: &Pins) -> Result<Vec<Doing>> {
    let mut all = Vec::new();
    for listed in plain::list_files(&pins.dir)? {
        if !(listed.name.starts_with("doing-") && listed.name.ends_with(".json")) {
            continue;
        }
        let place = pins.dir.join(&listed.name);
        let bytes = match plain::read_file(&place, 64 << 10) {
            // Ended meanwhile, in another repository.
            Err(gone) if gone.code() == Code::NotFound => continue,
            read => read?,
        };
        all.push(serde_json::from_slice(&bytes).map_err(|e| {
            Refusal::new(Code::UnknownState, format!("what was begun cannot be read: {e}"))
                .name(place.display().to_string())
        })?);
    }
    Ok(all)
}

/// Ends or takes back one of them.
fn settle(git: &Git, pins: &Pins, doing: Doing, cancel: &Cancel) -> Result<()> {
    let place = doing.place(pins);
    match doing {
        Doing::Add {
            id,
            common,
            target,
            building,
            built,
            origin,
        } => {
            let (target, building) = (path_of(target.as_bytes()), path_of(building.as_bytes()));
            let ours = |now: &Spot| built.as_ref().is_some_and(|built| same_directory(built, now));
            let pinned = |pin: Pin| pin.id == id || ours(&pin.worktree);
            if pins.read(&target)?.is_some_and(pinned) {
                // It is whole.
            } else if lies_at(&target, built.as_ref())? {
                // Once it has its name others may work in it: it is never taken back from then on.
                let pin = pin::take(git, &target, id, *origin, cancel)?;
                let place = path_of(common.path.as_bytes()).join("worktrees");
                let own = pin::bytes(&place.join(own_name(&pin.id)))?;
                if pin.gitdir.path != own || !same_directory(&pin.common, &common) || !ours(&pin.worktree) {
                    let why = "the worktree was exchanged before it could be pinned";
                    return Err(worktree::redirected(why, &target));
                }
                pins.keep(&pin)?;
            } else if built.is_none() || lies_at(&building, built.as_ref())? {
                free_gitdir(&common, &id)?;
                free(&building)?;
            }
            // Else other hands moved or removed what had its name: what is left of it is theirs.
        }
        Doing::Remove { pin, aside } => {
            let aside = path_of(aside.as_bytes());
            let worktree = path_of(pin.worktree.path.as_bytes());
            if lies_at(&aside, Some(&pin.worktree))? || !lies_at(&worktree, Some(&pin.worktree))? {
                finish_removal(pins, &pin, &aside, &|_| {})?;
            }
        }
    }
    plain::remove_file(&place)
}

/// Takes back what this process makes and nobody was told of yet.
pub(super) fn take_back(pins: &Pins, doing: &Doing) -> Result<()> {
    if let Doing::Add {
        id,
        common,
        target,
        building,
        built,
        ..
    } = doing
    {
        let (target, building) = (path_of(target.as_bytes()), path_of(building.as_bytes()));
        if pins.read(&target)?.is_some_and(|pin| pin.id == *id) {
            return Ok(());
        }
        if lies_at(&target, built.as_ref())? {
            rename(&target, &building)?;
        }
        free_gitdir(common, id)?;
        free(&building)?;
    }
    plain::remove_file(&doing.place(pins))
}

/// Says whether a directory lies at a path.
fn lies_at(path: &Path, directory: Option<&Spot>) -> Result<bool> {
    let Some(directory) = directory else {
        return Ok(false);
    };
    Ok(spot_at(path)?.is_some_and(|(_, now)| same_directory(directory, &now)))
}

pub(super) fn same_directory(one: &Spot, other: &Spot) -> bool {
    (one.device, one.inode, &one.file) == (other.device, other.inode, &other.file)
}

fn parent_and_name(path: &Path) -> Result<(OwnedFd, &OsStr)> {
    let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(|| {
        Refusal::new(Code::BadInput, "a worktree has a directory and a name").name(path.display().to_string())
    })?;
    let dir = open_real(parent)?.ok_or_else(|| {
        Refusal::new(Code::NotFound, "there is no directory for the worktree")
            .name(parent.display().to_string())
    })?;
    Ok((dir, name))
}

/// Renames within one directory, over nothing.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    let (dir, from_name) = parent_and_name(from)?;
    let to_name = to.file_name().unwrap_or_default();
    renameat_with(&dir, from_name, &dir, to_name, RenameFlags::NOREPLACE).map_err(|errno| match errno {
        Errno::EXIST => occupied(to),
        _ => Error::io("rename", from, errno),
    })?;
    rustix::fs::fsync(&dir).map_err(|e| Error::io("sync the directory of", to, e))
}

pub(super) fn occupied(path: &Path) -> Error {
    Refusal::new(Code::PreconditionFailed, "something is there already")
        .reason("exists")
        .name(shown(path.as_os_str().as_bytes()))
        .into()
}

/// Frees a directory of ours, if it is there.
fn free(path: &Path) -> Result<()> {
    let Some(parent) = path.parent().map(open_real).transpose()?.flatten() else {
        return Ok(());
    };
    free_in(&parent, path)
}

fn free_in(parent: &OwnedFd, path: &Path) -> Result<()> {
    let reaped = remove_tree(parent.as_fd(), path.file_name().unwrap_or_default().as_bytes())?;
    if reaped.kept.is_empty() {
        return Ok(());
    }
    // Whole paths: on its way the reaper moves directories up, and knows two names of each.
    let mut names = look(path, Entries::Passed)?.stuck;
    if names.is_empty() {
        let below = |kept: crate::volume::reaper::Kept| {
            format!(
                "{}/{}: {}",
                shown(path.as_os_str().as_bytes()),
                kept.path,
                kept.why
            )
        };
        names = reaped.kept.into_iter().take(NAMED).map(below).collect();
    }
    let why =
        "the rest of a worktree cannot be removed yet; the next command on the repository goes on with it";
    Err(Refusal::new(Code::PreconditionFailed, why)
        .reason("kept")
        .names(names)
        .into())
}

/// Frees the git directory that bears our own name.
fn free_gitdir(common: &Spot, id: &PinId) -> Result<()> {
    let path = path_of(common.path.as_bytes());
    let Some((dir, now)) = spot_at(&path)? else {
        return Ok(());
    };
    if !same_directory(common, &now) {
        return Err(worktree::redirected(
            "the repository was exchanged meanwhile",
            &path,
        ));
    }
    let place = path.join("worktrees");
    let Some(worktrees) = open_real(&place)? else {
        return Ok(());
    };
    free_in(&worktrees, &place.join(own_name(id)))?;
    // As git does: the directory goes with the last of them.
    unlinkat(&dir, "worktrees", AtFlags::REMOVEDIR).ok();
    Ok(())
}

/// Frees what a removal put aside, and forgets the pin.
pub(super) fn finish_removal(pins: &Pins, pin: &Pin, aside: &Path, tell: Tell<'_>) -> Result<()> {
    free_gitdir(&pin.common, &pin.id)?;
    tell(Milestone::GitDirGone);
    free(aside)?;
    tell(Milestone::FilesGone);
    pins.forget(pin)?;
    tell(Milestone::Forgotten);
    Ok(())
}
