//! What a restoration leaves behind: entries that are not of the tree. It changes nothing; what would be removed is the
//! matter of [`super::removal`].

use super::nested;
use super::objects::Leaf;
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode as FileMode, OFlags, openat, statat};
use semel_core::RelPath;
use semel_core::git_tree::Mode;
use semel_core::path::shown;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

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

/// Lists all that lies in a worktree and is not of the tree.
pub(super) fn foreign(root: &OwnedFd, leaves: &[Leaf]) -> Result<Vec<RelPath>> {
    let (known, dirs) = shape(leaves);
    let mut found = Vec::new();
    let mut todo = vec![(reopen(root)?, RelPath::root())];
    while let Some((dir, at)) = todo.pop() {
        for (path, file_type) in entries(&dir, &at)? {
            let name = path.split_last().map(|(_, name)| name).unwrap_or_default();
            let mode = known.get(path.as_bytes());
            if mode == Some(&Mode::Gitlink) && file_type == FileType::Directory {
                // A repository there is the submodule's; anything else is of nobody, whatever name is in it.
                let inner = openat(&dir, name, DIRECTORY, FileMode::empty())
                    .map_err(|e| Error::io("open", shown(path.as_bytes()), e))?;
                if !nested::is_worktree(&inner, &path)? {
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
        all.push((at.observed(name)?, file_type));
    }
    Ok(all)
}
