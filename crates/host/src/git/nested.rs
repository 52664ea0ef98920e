//! Repositories that lie where a file of the tree has to go: in directories that git would remove for it.
//!
//! It lists the directories of the tree rather than look at every file: there are fewer. A directory that looks as it did
//! when nothing stood in the way in it has the same entries still, and is not listed again (see [`super::memo`]). It changes
//! nothing.

use super::listing::Listing;
use super::memo::{Before, Look, Shelf, provable};
use super::obstacles::{DIRECTORY, entries_of, reopen, repository_below};
use super::worktree::Checked;
use crate::error::{Error, Result};
use rustix::fs::{FileType, Mode as FileMode, openat};
use semel_core::RelPath;
use semel_core::git_tree::{Mode, ObjectId};
use semel_core::path::shown;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

type Key = ((u64, u64), ObjectId);
type Clear = HashMap<RelPath, (Look, Vec<RelPath>)>;

/// The directories in which nothing stands in the way of a tree, and those of the tree in them; by worktree and tree.
static CLEAR: Shelf<Key, Arc<Clear>> = Shelf::new(16 << 20);

/// Finds such a repository.
pub(super) fn nested(at: &Checked, tree: &ObjectId, listing: &Listing) -> Result<Option<RelPath>> {
    let before = Before::now();
    let Some(root) = Look::at(&at.root, ".").ok().flatten() else {
        return walk(&at.root, listing, None, &mut |_, _, _| {});
    };
    let key = (root.inode(), *tree);
    let known = CLEAR.get(&key);
    let mut clear = Clear::new();
    let mut news = false;
    let mut learn = |path: &RelPath, look: Look, below: &[RelPath]| {
        // Another filesystem may be one where looks prove nothing.
        if look.settled(before) && look.inode().0 == root.inode().0 {
            news |= known
                .as_ref()
                .is_none_or(|known| known.get(path).is_none_or(|(old, _)| *old != look));
            clear.insert(path.clone(), (look, below.to_vec()));
        }
    };
    let found = walk(&at.root, listing, known.as_deref(), &mut learn)?;
    if news && found.is_none() && provable(&at.worktree) {
        let weight = |(path, (_, below)): (&RelPath, &(Look, Vec<RelPath>))| {
            let below: usize = below.iter().map(|path| path.as_bytes().len() + 32).sum();
            path.as_bytes().len() + below + size_of::<(RelPath, Look)>() + 64
        };
        let weight = clear.iter().map(weight).sum();
        CLEAR.put(key, Arc::new(clear), weight);
    }
    Ok(found)
}

fn walk(
    root: &OwnedFd,
    listing: &Listing,
    known: Option<&Clear>,
    learn: &mut dyn FnMut(&RelPath, Look, &[RelPath]),
) -> Result<Option<RelPath>> {
    let mut todo = vec![(reopen(root)?, RelPath::root())];
    while let Some((dir, at)) = todo.pop() {
        // Before it is listed: what changes meanwhile looks different afterwards.
        let look = Look::at(&dir, ".").ok().flatten();
        let seen = known
            .and_then(|known| known.get(&at))
            .filter(|(old, _)| Some(*old) == look);
        let (below, clear) = match seen {
            Some((_, below)) => (below.clone(), true),
            None => match list(&dir, &at, listing)? {
                Listed::Found(repository) => return Ok(Some(repository)),
                Listed::Clear(below) => (below, true),
                Listed::InTheWay(below) => (below, false),
            },
        };
        if let Some(look) = look.filter(|_| clear) {
            learn(&at, look, &below);
        }
        for path in below {
            // The most are known and have none below them: these are not even opened.
            let leaf = known
                .and_then(|known| known.get(&path))
                .filter(|(_, below)| below.is_empty());
            if let Some((old, _)) = leaf
                && Look::at_no_link(&dir, name_of(&path)).ok().flatten() == Some(*old)
            {
                learn(&path, *old, &[]);
            } else {
                todo.push((open(&dir, &path)?, path));
            }
        }
    }
    Ok(None)
}

/// What a directory holds: with it the directories of the tree in it.
enum Listed {
    /// Nothing in the way.
    Clear(Vec<RelPath>),
    /// A directory in the way, without a repository by now: what is put into it changes nothing of this directory.
    InTheWay(Vec<RelPath>),
    /// A repository in the way.
    Found(RelPath),
}

fn list(dir: &OwnedFd, at: &RelPath, listing: &Listing) -> Result<Listed> {
    let mut below = Vec::new();
    let mut clear = true;
    for (path, _) in entries_of(dir, at, |file_type| file_type == FileType::Directory)? {
        let leaf = listing.leaf(path.as_bytes());
        if leaf.is_some_and(|mode| mode != Mode::Gitlink) {
            clear = false;
            if let Some(found) = repository_below(&open(dir, &path)?, &path)? {
                return Ok(Listed::Found(found));
            }
        } else if listing.dirs.contains(path.as_bytes()) {
            below.push(path);
        }
    }
    Ok(if clear {
        Listed::Clear(below)
    } else {
        Listed::InTheWay(below)
    })
}

fn name_of(path: &RelPath) -> &[u8] {
    path.split_last().map(|(_, name)| name).unwrap_or_default()
}

fn open(dir: &OwnedFd, path: &RelPath) -> Result<OwnedFd> {
    openat(dir, name_of(path), DIRECTORY, FileMode::empty())
        .map_err(|e| Error::io("open", shown(path.as_bytes()), e))
}
