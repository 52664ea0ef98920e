//! What was begun with a worktree and is not ended: recorded before, taken up again after a kill.

use super::{Milestone, Tell, own_name};
use crate::error::{Error, Result};
use crate::git::pin::{Pins, open_real, spot_at};
use crate::git::worktree::{self, path_of};
use crate::plain;
use crate::volume::reaper::remove_tree;
use rustix::fs::{AtFlags, RenameFlags, renameat_with, unlinkat};
use rustix::io::Errno;
use semel_core::path::shown;
use semel_core::pin::{PathBytes, Pin, PinId, Spot};
use semel_core::{Code, Refusal};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// How many entries are named that cannot be removed.
const NAMED: usize = 20;

/// Is what was begun and is not ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "doing", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Doing {
    Add {
        id: PinId,
        common: Spot,
        /// Where it will be.
        target: PathBytes,
        /// Where it is built.
        building: PathBytes,
        /// What was built there, once it is whole.
        built: Option<Spot>,
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

/// Ends or takes back what former processes began in a repository; to be called under its lock.
///
/// # Errors
/// `unknown_state` where a record cannot be read; `precondition_failed`, reason `kept`, where something of ours cannot
/// be removed; `io_failed`.
pub(in crate::git) fn recover(pins: &Pins, common: &Path) -> Result<()> {
    pins.sweep(common)?;
    for listed in plain::list_files(&pins.dir)? {
        if !(listed.name.starts_with("doing-") && listed.name.ends_with(".json")) {
            continue;
        }
        let place = pins.dir.join(&listed.name);
        let bytes = plain::read_file(&place, 64 << 10)?;
        let doing: Doing = serde_json::from_slice(&bytes).map_err(|e| {
            Refusal::new(Code::UnknownState, format!("what was begun cannot be read: {e}"))
                .name(place.display().to_string())
        })?;
        if doing.common().path.as_bytes() == common.as_os_str().as_bytes() {
            settle(pins, doing)?;
        }
    }
    Ok(())
}

/// Ends or takes back one of them.
pub(super) fn settle(pins: &Pins, doing: Doing) -> Result<()> {
    let place = doing.place(pins);
    match doing {
        Doing::Add {
            id,
            common,
            target,
            building,
            built,
        } => {
            let target = path_of(target.as_bytes());
            let pinned = pins.read(&target)?.is_some_and(|pin| pin.id == id);
            if !pinned {
                let building = path_of(building.as_bytes());
                if let (Some(built), Some((_, now))) = (&built, spot_at(&target)?)
                    && same_directory(built, &now)
                {
                    rename(&target, &building)?;
                }
                free(&building)?;
                free_gitdir(&common, &id)?;
            }
        }
        Doing::Remove { pin, aside } => {
            let aside = path_of(aside.as_bytes());
            let put_aside = spot_at(&aside)?.is_some_and(|(_, now)| same_directory(&pin.worktree, &now));
            let still_there = spot_at(&path_of(pin.worktree.path.as_bytes()))?
                .is_some_and(|(_, now)| same_directory(&pin.worktree, &now));
            if put_aside || !still_there {
                finish_removal(pins, &pin, &aside, &|_| {})?;
            }
        }
    }
    plain::remove_file(&place)
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
    free_in(&parent, path.file_name().unwrap_or_default().as_bytes())
}

fn free_in(parent: &OwnedFd, name: &[u8]) -> Result<()> {
    let reaped = remove_tree(parent.as_fd(), name)?;
    if reaped.kept.is_empty() {
        return Ok(());
    }
    let names = reaped
        .kept
        .into_iter()
        .map(|kept| format!("{}: {}", kept.path, kept.why));
    Err(
        Refusal::new(Code::PreconditionFailed, "some entries cannot be removed")
            .reason("kept")
            .names(names.take(NAMED).collect::<Vec<_>>())
            .into(),
    )
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
    let Some(worktrees) = open_real(&path.join("worktrees"))? else {
        return Ok(());
    };
    free_in(&worktrees, own_name(id).as_bytes())?;
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
