//! Which entries of a draft a seal packs: what `git add -A` would, under the ignore rules of the base commit.
//!
//! It walks the directory itself and runs no git, so that neither the draft's configuration nor its own
//! `.gitignore` edits have a say. It does not pack anything.

use super::verify::{Cursor, Seen, seen};
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode as FileMode, OFlags, openat, statat};
use semel_core::git_tree::{Mode, ObjectFormat, ObjectId, tree_id};
use semel_core::ignore::{EntryKind, Ignore};
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The most entries that one walk looks at.
const MOST: usize = 2_000_000;

/// Says why an entry is not packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The base commit's ignore rules name it, and the base does not track it.
    Ignored,
    /// A directory that holds nothing; git has no such entry.
    EmptyDirectory,
    /// The draft's own repository.
    GitDir,
}

/// Names an entry that is not packed; of an ignored directory only the directory itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// Where it lies.
    pub path: RelPath,
    /// Why it stays.
    pub why: Why,
}

/// Holds the outcome of a walk; both lists sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The files and links that are packed.
    pub chosen: Vec<RelPath>,
    /// Everything else that lies there.
    pub left_out: Vec<LeftOut>,
}

/// Walks a draft and says what a seal packs.
///
/// `tracked` holds the paths of the base commit's leaves: a tracked path is packed even where a rule names it.
///
/// # Errors
/// `proposal_refused` for a FIFO, socket or device, for a repository inside the tree, for a path past the limits
/// of [`RelPath`], and for more than 2,000,000 entries; `io_failed` where an entry cannot be read.
pub fn select(tree: BorrowedFd<'_>, tracked: &BTreeSet<RelPath>, ignore: &Ignore) -> Result<Selection> {
    let mut walk = Walk {
        tracked,
        ignore,
        looked: 0,
        found: Selection::default(),
    };
    let root = dup(tree)?;
    walk.directory(&root, &RelPath::root(), Under::Open)?;
    walk.found.chosen.sort();
    walk.found.left_out.sort();
    Ok(walk.found)
}

/// Says whether a directory above is ignored already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Under {
    Open,
    Ignored,
}

struct Walk<'a> {
    tracked: &'a BTreeSet<RelPath>,
    ignore: &'a Ignore,
    looked: usize,
    found: Selection,
}

impl Walk<'_> {
    fn directory(&mut self, dir: &OwnedFd, at: &RelPath, under: Under) -> Result<()> {
        let failed = |e| Error::io("list", shown(at.as_bytes()), e);
        for entry in Dir::read_from(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            self.looked += 1;
            if self.looked > MOST {
                return Err(refused("the tree holds more than 2,000,000 entries", at));
            }
            if at.is_root() && name == b".git" {
                self.leave(at.join(name)?, Why::GitDir);
                continue;
            }
            let path = at.join(name).map_err(|e| refused(&e.why, at))?;
            let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|e| Error::io("look at", shown(path.as_bytes()), e))?;
            let file_type = FileType::from_raw_mode(stat.st_mode);
            let kind = if file_type == FileType::Directory {
                EntryKind::Directory
            } else {
                EntryKind::Other
            };
            let under = match under {
                Under::Open if self.ignore.matches(&path, kind) => Under::Ignored,
                same => same,
            };
            self.entry(dir, path, file_type, under)?;
        }
        Ok(())
    }

    fn entry(&mut self, dir: &OwnedFd, path: RelPath, file_type: FileType, under: Under) -> Result<()> {
        let holds_tracked = || {
            let inside = self
                .tracked
                .range(path.clone()..)
                .take_while(|p| p.as_bytes().starts_with(path.as_bytes()));
            inside
                .into_iter()
                .any(|p| p.as_bytes().get(path.as_bytes().len()) == Some(&b'/'))
        };
        let tracked = self.tracked.contains(&path);
        let packed = match file_type {
            FileType::Directory => under == Under::Open || holds_tracked(),
            _ => under == Under::Open || tracked,
        };
        if !packed {
            self.leave(path, Why::Ignored);
            return Ok(());
        }
        let (_, name) = path.split_last().unwrap_or((RelPath::root(), b""));
        if name.eq_ignore_ascii_case(b".git") {
            return Err(refused("a repository lies inside the tree", &path));
        }
        match file_type {
            FileType::RegularFile | FileType::Symlink => self.found.chosen.push(path),
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let inner = openat(dir, name, flags, FileMode::empty())
                    .map_err(|e| Error::io("open", shown(path.as_bytes()), e))?;
                let before = self.looked;
                self.directory(&inner, &path, under)?;
                if self.looked == before {
                    self.leave(path, Why::EmptyDirectory);
                }
            }
            _ => return Err(refused("a FIFO, socket or device cannot be sealed", &path)),
        }
        Ok(())
    }

    fn leave(&mut self, path: RelPath, why: Why) {
        self.found.left_out.push(LeftOut { path, why });
    }
}

fn refused(why: &str, path: &RelPath) -> Error {
    Refusal::new(Code::ProposalRefused, why)
        .name(path.to_string())
        .into()
}

fn dup(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    // A fresh description of the same directory: a duplicate would share its reading position.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(fd, ".", flags, FileMode::empty()).map_err(|e| Error::io("open", "the tree", e))
}

/// Computes the git tree of chosen entries as they lie there: no filters, the executable bit from the owner's.
///
/// # Errors
/// `tree_mismatch` where an entry is gone, is no file or link, changes while it is read, or has a name that git
/// does not hold; `io_failed` where one cannot be read.
pub fn tree_of(tree: BorrowedFd<'_>, format: ObjectFormat, chosen: &[RelPath]) -> Result<ObjectId> {
    Ok(tree_id(format, entries_of(tree, format, chosen)?)?)
}

/// Hashes chosen entries as they lie there.
pub(super) fn entries_of(
    tree: BorrowedFd<'_>,
    format: ObjectFormat,
    chosen: &[RelPath],
) -> Result<Vec<(RelPath, Mode, ObjectId)>> {
    let mut cursor = Cursor::new(tree.as_fd());
    let mut entries = Vec::with_capacity(chosen.len());
    for path in chosen {
        match seen(&mut cursor, path, format)? {
            Seen::Leaf(mode, id) => entries.push((path.clone(), mode, id)),
            Seen::Absent | Seen::Directory | Seen::Special => {
                let refusal = Refusal::new(Code::TreeMismatch, "the entry is no file or link any more");
                return Err(refusal.name(path.to_string()).into());
            }
        }
    }
    Ok(entries)
}
