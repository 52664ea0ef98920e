//! What a restoration may remove, and how: entry by entry, every level looked at by its own handle, since neither a name
//! nor a device says what a mount is. What it would have to remove is looked at before by [`super::survey`].

use super::memo::Look;
use super::objects::Leaf;
use super::obstacles::{self, DIRECTORY, Residue};
use super::own::{self, Own, Whose};
use super::pin::Pins;
use super::repository::Repository;
use super::verify::Cursor;
use super::worktree::Checked;
use crate::error::{Error, Result};
use crate::root::mount_id;
use crate::volume::reaper;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode as FileMode, OFlags, StatxAttributes, StatxFlags, openat, statx, unlinkat,
};
use rustix::io::Errno;
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Why what is to be removed stays.
pub(super) const KEPT: &str = "what is to be removed cannot be: the system keeps it, or it is another user's";
/// How many entries that cannot be removed are named.
const NAMED: usize = 100;

/// Knows what may not be removed: whatever is mounted, the repository in all its parts, and the state root.
pub(super) struct Ground<'a> {
    pub(super) at: &'a Checked,
    /// The mount of the worktree.
    mount: u64,
    /// What is ours or the repository's, wherever it lies.
    pub(super) own: Vec<Own>,
}

/// Says whether the system keeps an entry, or what is in it: it is immutable, or can only grow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum System {
    Keeps,
    LetsGo,
}

/// Looks at what is at a name, and at the mount that it is on.
fn met(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<(Look, u64, System)> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let seen = statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    let mount = if seen.stx_mask & StatxFlags::MNT_ID.bits() != 0 {
        seen.stx_mnt_id
    } else {
        // Before Linux 5.8 only a handle tells.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        mount_id(openat(dir, name, flags, FileMode::empty())?.as_fd())?
    };
    let kept = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    let system = if seen.stx_attributes.intersects(kept) {
        System::Keeps
    } else {
        System::LetsGo
    };
    Ok((Look::of_statx(&seen), mount, system))
}

pub(super) fn refused(reason: &str, why: &str, path: &RelPath) -> Error {
    Refusal::new(Code::PreconditionFailed, why)
        .reason(reason)
        .name(path.to_string())
        .into()
}

impl<'a> Ground<'a> {
    /// Knows it of a worktree, and of the state root that keeps these pins.
    ///
    /// # Errors
    /// `io_failed` where a directory of the repository cannot be looked at.
    pub(super) fn of(at: &'a Checked, repo: &Repository, pins: Option<&Pins>) -> Result<Self> {
        let mount = mount_id(at.root.as_fd()).map_err(|e| Error::io("look at", &at.worktree, e))?;
        let own = own::own(at, repo, pins)?;
        Ok(Self { at, mount, own })
    }

    /// Looks at a directory of the tree, in which what is of the tree may be written.
    pub(super) fn look_through(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        path: &RelPath,
    ) -> Result<Option<Look>> {
        let looked = self.look_except(dir, name, path, |own| own.whose == Whose::Settings)?;
        Ok(looked.map(|(look, _)| look))
    }

    /// Looks at an entry, and refuses what may not be removed; `None` where nothing is there.
    pub(super) fn look(&self, dir: BorrowedFd<'_>, name: &[u8], path: &RelPath) -> Result<Option<Look>> {
        let looked = self.look_except(dir, name, path, |_| false)?;
        Ok(looked.map(|(look, _)| look))
    }

    /// Looks at an entry that is to be removed, and refuses it also where the system would keep it.
    pub(super) fn look_removed(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        path: &RelPath,
    ) -> Result<Option<Look>> {
        match self.look_except(dir, name, path, |_| false)? {
            Some((_, System::Keeps)) => Err(refused("residue_kept", KEPT, path)),
            Some((look, System::LetsGo)) => Ok(Some(look)),
            None => Ok(None),
        }
    }

    fn look_except(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        path: &RelPath,
        passed: impl Fn(&Own) -> bool,
    ) -> Result<Option<(Look, System)>> {
        let (look, mount, system) = match met(dir, name) {
            Ok(met) => met,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(Error::io("look at", shown(path.as_bytes()), e)),
        };
        if mount != self.mount {
            let why = "something is mounted where files would be written or removed";
            return Err(refused("mount", why, path));
        }
        let mut own = self.own.iter().filter(|own| own.inode == look.inode());
        if let Some(own) = own.find(|own| !passed(own)) {
            return Err(own.refusal(path));
        }
        Ok(Some((look, system)))
    }

    /// Says whether an entry is the repository itself.
    pub(super) fn is_own(&self, look: &Look) -> bool {
        self.own.iter().any(|own| own.inode == look.inode())
    }
}

/// Lists the names in a directory that are asked for by name and type, or whose type is not told.
pub(super) fn names(
    dir: &OwnedFd,
    at: &RelPath,
    asked: impl Fn(&[u8], FileType) -> bool,
) -> Result<Vec<Vec<u8>>> {
    let failed = |e| Error::io("list", shown(at.as_bytes()), e);
    let mut all = Vec::new();
    for entry in Dir::read_from(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        let told = entry.file_type();
        if name != b"." && name != b".." && (told == FileType::Unknown || asked(name, told)) {
            all.push(name.to_vec());
        }
    }
    Ok(all)
}

/// Removes what lies in a worktree and is not of the tree; never what is mounted, and never the repository itself.
///
/// # Errors
/// `precondition_failed`, reason `residue_kept`, with the whole path of what stays; `io_failed`.
pub(super) fn remove_residue(ground: &Ground<'_>, leaves: &[Leaf], most: usize) -> Result<Residue> {
    let mut found = obstacles::foreign(&ground.at.root, leaves)?;
    let mut cursor = Cursor::new(ground.at.root.as_fd());
    for path in &found {
        let (Some(parent), Some((_, name))) = (cursor.parent(path)?, path.split_last()) else {
            continue;
        };
        remove_whole(ground, parent, name, path)?;
    }
    let count = found.len();
    found.truncate(most);
    Ok(Residue { first: found, count })
}

/// Removes entries and all below them; one that is gone meanwhile is no matter.
///
/// # Errors
/// As [`remove_residue`].
pub(super) fn remove_all<'p>(
    ground: &Ground<'_>,
    paths: impl IntoIterator<Item = &'p RelPath>,
) -> Result<()> {
    let mut cursor = Cursor::new(ground.at.root.as_fd());
    for path in paths {
        if let (Some(parent), Some((_, name))) = (cursor.parent(path)?, path.split_last()) {
            remove_whole(ground, parent, name, path)?;
        }
    }
    Ok(())
}

fn remove_whole(ground: &Ground<'_>, parent: BorrowedFd<'_>, name: &[u8], path: &RelPath) -> Result<()> {
    let kept = remove(ground, parent, name, path)?;
    if kept.is_empty() {
        return Ok(());
    }
    let why = "what is not of the tree cannot be removed: something is mounted there, or the system keeps it";
    Err(Refusal::new(Code::PreconditionFailed, why)
        .reason("residue_kept")
        .names(kept)
        .into())
}

/// A directory that is being emptied.
struct Emptied {
    dir: OwnedFd,
    path: RelPath,
    left: Vec<Vec<u8>>,
    /// Whether something stays in it.
    keeps: Keeps,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Nothing,
    Something,
}

/// Removes an entry and all below it, in place, one handle a level; gives the paths of what stays.
fn remove(ground: &Ground<'_>, parent: BorrowedFd<'_>, name: &[u8], path: &RelPath) -> Result<Vec<String>> {
    let mut kept = Vec::new();
    let mut levels: Vec<Emptied> = Vec::new();
    let mut next = Some((name.to_vec(), path.clone()));
    loop {
        if let Some((name, path)) = next.take() {
            let within = levels.last().map_or(parent, |level| level.dir.as_fd());
            match begin(ground, within, &name, path, &mut kept)? {
                Begun::Gone => {}
                Begun::Kept => keep(&mut levels),
                Begun::Directory(level) => levels.push(level),
            }
        }
        let Some(level) = levels.last_mut() else {
            return Ok(kept);
        };
        if let Some(name) = level.left.pop() {
            let path = level.path.observed(&name)?;
            next = Some((name, path));
            continue;
        }
        let Some(done) = levels.pop() else { continue };
        let within = levels.last().map_or(parent, |level| level.dir.as_fd());
        let own = done.path.split_last().map(|(_, name)| name).unwrap_or_default();
        let stays = done.keeps == Keeps::Something || {
            let gone = unlinkat(within, own, AtFlags::REMOVEDIR);
            stays(gone, &done.path, &mut kept)
        };
        if stays {
            keep(&mut levels);
        }
    }
}

fn keep(levels: &mut [Emptied]) {
    if let Some(level) = levels.last_mut() {
        level.keeps = Keeps::Something;
    }
}

enum Begun {
    Gone,
    Kept,
    Directory(Emptied),
}

/// Removes an entry, or opens it where it is a directory.
fn begin(
    ground: &Ground<'_>,
    dir: BorrowedFd<'_>,
    name: &[u8],
    path: RelPath,
    kept: &mut Vec<String>,
) -> Result<Begun> {
    let look = match ground.look(dir, name, &path) {
        Ok(None) => return Ok(Begun::Gone),
        Ok(Some(look)) => look,
        Err(error) if matches!(error.code(), Code::PreconditionFailed | Code::BadConfig) => {
            note(kept, &path);
            return Ok(Begun::Kept);
        }
        Err(error) => return Err(error),
    };
    if !look.is_dir() {
        let gone = unlinkat(dir, name, AtFlags::empty());
        return Ok(if stays(gone, &path, kept) {
            Begun::Kept
        } else {
            Begun::Gone
        });
    }
    let failed = |e: Errno| Error::io("open", shown(path.as_bytes()), e);
    // It is about to go: whatever mode it has, its owner may do that.
    let opened = reaper::open_up(dir, name).and_then(|()| openat(dir, name, DIRECTORY, FileMode::empty()));
    let opened = opened.map_err(failed)?;
    // What was exchanged since it was looked at is not gone through.
    if mount_id(opened.as_fd()).map_err(failed)? != ground.mount {
        note(kept, &path);
        return Ok(Begun::Kept);
    }
    let left = names(&opened, &path, |_, _| true)?;
    Ok(Begun::Directory(Emptied {
        dir: opened,
        path,
        left,
        keeps: Keeps::Nothing,
    }))
}

/// Says whether an entry stays, and notes it.
fn stays(gone: rustix::io::Result<()>, path: &RelPath, kept: &mut Vec<String>) -> bool {
    match gone {
        Ok(()) | Err(Errno::NOENT) => false,
        Err(_) => {
            note(kept, path);
            true
        }
    }
}

fn note(kept: &mut Vec<String>, path: &RelPath) {
    if kept.len() < NAMED {
        kept.push(path.to_string());
    }
}
