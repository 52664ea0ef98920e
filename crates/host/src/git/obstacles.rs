//! What stands in the way of a restoration, and what it leaves behind: entries that are not of the tree. Repositories
//! where a file has to go are the matter of [`super::nested`]. It changes nothing but what it is asked to remove.

use super::objects::Leaf;
use super::verify::Cursor;
use crate::error::{Error, Result};
use crate::root::mount_id;
use crate::volume::reaper;
use rustix::fs::{AtFlags, Dir, FileType, Mode as FileMode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;
use semel_core::git_tree::Mode;
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Gives the leaves of a tree by their paths, and the directories above them.
fn shape(leaves: &[Leaf]) -> (HashMap<&[u8], Mode>, HashSet<&[u8]>) {
    let mut known = HashMap::with_capacity(leaves.len());
    let mut dirs = HashSet::new();
    for leaf in leaves {
        let mut path = leaf.path.as_bytes();
        known.insert(path, leaf.mode);
        while let Some(slash) = path.iter().rposition(|b| *b == b'/') {
            path = &path[..slash];
            if !dirs.insert(path) {
                break;
            }
        }
    }
    (known, dirs)
}

pub(super) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

pub(super) fn repository_below(dir: &OwnedFd, at: &RelPath) -> Result<Option<RelPath>> {
    for (path, file_type) in entries(dir, at)? {
        let Some((_, name)) = path.split_last() else {
            continue;
        };
        if name == b".git" {
            return Ok(Some(path));
        }
        if file_type == FileType::Directory {
            let inner = openat(dir, name, DIRECTORY, FileMode::empty())
                .map_err(|e| Error::io("open", shown(path.as_bytes()), e))?;
            if let Some(found) = repository_below(&inner, &path)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// Entries of a worktree that are not of the tree.
pub(super) struct Residue {
    pub(super) first: Vec<RelPath>,
    pub(super) count: usize,
}

/// Lists what lies in a worktree and is not of the tree; a directory stands for all below it.
pub(super) fn residue(root: &OwnedFd, leaves: &[Leaf], most: usize) -> Result<Residue> {
    let mut found = foreign(root, leaves)?;
    let count = found.len();
    found.truncate(most);
    Ok(Residue { first: found, count })
}

/// Removes what lies in a worktree and is not of the tree.
pub(super) fn remove_residue(root: &OwnedFd, leaves: &[Leaf], most: usize) -> Result<Residue> {
    let mut found = foreign(root, leaves)?;
    let mut cursor = Cursor::new(root.as_fd());
    for path in &found {
        let failed = |e: Errno| Error::io("remove", shown(path.as_bytes()), e);
        let (Some(parent), Some((_, name))) = (cursor.parent(path)?, path.split_last()) else {
            continue;
        };
        match unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => remove_directory(root, parent, name, path)?,
            Err(e) => return Err(failed(e)),
        }
    }
    let count = found.len();
    found.truncate(most);
    Ok(Residue { first: found, count })
}

fn remove_directory(root: &OwnedFd, parent: BorrowedFd<'_>, name: &[u8], path: &RelPath) -> Result<()> {
    let failed = |e: Errno| Error::io("remove", shown(path.as_bytes()), e);
    let dir = openat(parent, name, DIRECTORY, FileMode::empty()).map_err(failed)?;
    let mounts = [mount_id(dir.as_fd()), mount_id(root.as_fd())];
    let same = matches!(mounts, [Ok(inner), Ok(outer)] if inner == outer);
    let kept = if same {
        reaper::remove_tree(parent, name)?.kept
    } else {
        Vec::new()
    };
    if same && kept.is_empty() {
        return Ok(());
    }
    let why = "what is not of the tree cannot be removed: something is mounted there, or the system keeps it";
    Err(Refusal::new(Code::PreconditionFailed, why)
        .reason("residue_kept")
        .name(path.to_string())
        .names(kept.into_iter().map(|kept| kept.path))
        .into())
}

/// Finds a repository in what lies in a worktree and is not of the tree.
pub(super) fn foreign_repository(root: &OwnedFd, leaves: &[Leaf]) -> Result<Option<RelPath>> {
    let mut cursor = Cursor::new(root.as_fd());
    for path in foreign(root, leaves)? {
        let (Some(parent), Some((_, name))) = (cursor.parent(&path)?, path.split_last()) else {
            continue;
        };
        if name == b".git" {
            return Ok(Some(path));
        }
        let inner = match openat(parent, name, DIRECTORY, FileMode::empty()) {
            Ok(inner) => inner,
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => continue,
            Err(e) => return Err(Error::io("open", shown(path.as_bytes()), e)),
        };
        if let Some(found) = repository_below(&inner, &path)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn foreign(root: &OwnedFd, leaves: &[Leaf]) -> Result<Vec<RelPath>> {
    let (known, dirs) = shape(leaves);
    let mut found = Vec::new();
    let mut todo = vec![(reopen(root)?, RelPath::root())];
    while let Some((dir, at)) = todo.pop() {
        for (path, file_type) in entries(&dir, &at)? {
            let name = path.split_last().map(|(_, name)| name).unwrap_or_default();
            let mode = known.get(path.as_bytes());
            if mode == Some(&Mode::Gitlink) && file_type == FileType::Directory {
                // A repository there is the submodule's; anything else is of nobody.
                let inner = openat(&dir, name, DIRECTORY, FileMode::empty())
                    .map_err(|e| Error::io("open", shown(path.as_bytes()), e))?;
                if matches!(
                    statat(&inner, ".git", AtFlags::SYMLINK_NOFOLLOW),
                    Err(Errno::NOENT)
                ) {
                    todo.push((inner, path));
                }
                continue;
            }
            if path.as_bytes() == b".git" || mode.is_some() {
                continue;
            }
            if file_type == FileType::Directory && dirs.contains(path.as_bytes()) {
                let inner = openat(&dir, name, DIRECTORY, FileMode::empty())
                    .map_err(|e| Error::io("open", shown(path.as_bytes()), e))?;
                todo.push((inner, path));
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

pub(super) fn reopen(dir: &OwnedFd) -> Result<OwnedFd> {
    openat(dir, ".", DIRECTORY, FileMode::empty()).map_err(|e| Error::io("open", "the worktree", e))
}

fn entries(dir: &OwnedFd, at: &RelPath) -> Result<Vec<(RelPath, FileType)>> {
    entries_of(dir, at, |_| true)
}

/// Lists those entries of a directory whose type is asked for.
pub(super) fn entries_of(
    dir: &OwnedFd,
    at: &RelPath,
    asked: impl Fn(FileType) -> bool,
) -> Result<Vec<(RelPath, FileType)>> {
    let failed = |e| Error::io("list", shown(at.as_bytes()), e);
    let mut all = Vec::new();
    for entry in Dir::read_from(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let file_type = match entry.file_type() {
            FileType::Unknown => {
                let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
                FileType::from_raw_mode(stat.st_mode)
            }
            known => known,
        };
        if asked(file_type) {
            all.push((at.join(name)?, file_type));
        }
    }
    Ok(all)
}
