//! What a restoration would remove: looked at before the first write, and removed entry by entry.
//!
//! Git removes whatever lies where a file of the tree has to go, and `--clean` what is not of the tree. None of it may be or
//! hold the repository itself, by whatever name, or a mount; a repository of somebody else is refused unless its removal was
//! asked for. Every level is looked at by its own handle: neither a name nor a device says what a mount is.

use super::listing::Listing;
use super::obstacles::{self, Residue};
use super::place::{self, inode_of};
use super::repository::Repository;
use super::restore::{Leftovers, Nested};
use super::verify::Cursor;
use super::worktree::{self, Checked};
use crate::error::{Error, Result};
use crate::root::mount_id;
use crate::volume::reaper;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode as FileMode, OFlags, StatxFlags, fstat, makedev, openat, statx, unlinkat,
};
use rustix::io::Errno;
use semel_core::git_tree::Mode;
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// How many entries that cannot be removed are named.
const NAMED: usize = 100;

/// Knows what may not be removed: whatever is mounted, and the directories of the repository.
pub(super) struct Ground<'a> {
    at: &'a Checked,
    /// The mount of the worktree.
    mount: u64,
    /// Git directory, common directory, and every directory of objects.
    own: Vec<((u64, u64), PathBuf)>,
}

/// What is met at a name.
struct Met {
    kind: FileType,
    inode: (u64, u64),
    mount: u64,
}

fn met(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Met> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let seen = statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    let mount = if seen.stx_mask & StatxFlags::MNT_ID.bits() != 0 {
        seen.stx_mnt_id
    } else {
        // Before Linux 5.8 only a handle tells.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        mount_id(openat(dir, name, flags, FileMode::empty())?.as_fd())?
    };
    Ok(Met {
        kind: FileType::from_raw_mode(seen.stx_mode.into()),
        inode: (makedev(seen.stx_dev_major, seen.stx_dev_minor), seen.stx_ino),
        mount,
    })
}

fn refused(reason: &str, why: &str, path: &RelPath) -> Error {
    Refusal::new(Code::PreconditionFailed, why)
        .reason(reason)
        .name(path.to_string())
        .into()
}

impl<'a> Ground<'a> {
    pub(super) fn of(at: &'a Checked, repo: &Repository) -> Result<Self> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |e: Errno| Error::io("look at", path, e)
        };
        let mut own = vec![(inode_of(&at.dir).map_err(failed(&at.gitdir))?, at.gitdir.clone())];
        for path in [repo.common_dir().to_owned()]
            .into_iter()
            .chain(repo.object_dirs()?)
        {
            let dir = worktree::open_dir(&path)?;
            own.push((inode_of(&dir).map_err(failed(&path))?, path));
        }
        Ok(Self {
            at,
            mount: mount_id(at.root.as_fd()).map_err(failed(&at.worktree))?,
            own,
        })
    }

    /// Looks at an entry, and refuses what may not be removed; `None` where nothing is there.
    fn look(&self, dir: BorrowedFd<'_>, name: &[u8], path: &RelPath) -> Result<Option<FileType>> {
        let met = match met(dir, name) {
            Ok(met) => met,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(Error::io("look at", shown(path.as_bytes()), e)),
        };
        if met.mount != self.mount {
            let why = "something is mounted where files would be written or removed";
            return Err(refused("mount", why, path));
        }
        if met.kind == FileType::Directory && self.own.iter().any(|(inode, _)| *inode == met.inode) {
            let why = "the worktree's own repository lies in what would be written or removed";
            return Err(refused("gitdir_inside", why, path));
        }
        Ok(Some(met.kind))
    }
}

/// Looks at all that a restoration would remove, before it writes anything.
pub(super) struct Survey<'a> {
    pub(super) ground: &'a Ground<'a>,
    pub(super) repo: &'a Repository,
    pub(super) listing: &'a Listing,
    pub(super) nested: Nested,
}

impl Survey<'_> {
    /// Refuses what may not be removed.
    ///
    /// # Errors
    /// `precondition_failed`, reasons `mount`, `gitdir_inside`, `nested_repository`; `io_failed` where something cannot be
    /// looked at.
    pub(super) fn refuse(&self, leftovers: Leftovers) -> Result<()> {
        self.refuse_in_the_way()?;
        self.refuse_tracked()?;
        if leftovers == Leftovers::Removed {
            self.refuse_residue()?;
        }
        Ok(())
    }

    /// Goes through the directories of the tree, and through each that a file or link of the tree would replace.
    ///
    /// It lists the directories of the tree rather than look at every file: there are fewer.
    fn refuse_in_the_way(&self) -> Result<()> {
        let root = &self.ground.at.root;
        let mut cursor = Cursor::new(root.as_fd());
        let mut todo = vec![RelPath::root()];
        while let Some(at) = todo.pop() {
            let Some(dir) = enter(&mut cursor, &at)? else {
                continue;
            };
            for name in names(&dir, &at, |kind| kind == FileType::Directory)? {
                let path = at.observed(&name)?;
                let leaf = self.listing.leaf(path.as_bytes());
                let in_the_way = leaf.is_some_and(|mode| mode != Mode::Gitlink);
                let of_the_tree = self.listing.dirs.contains(path.as_bytes());
                if !in_the_way && !of_the_tree {
                    continue;
                }
                if self.ground.look(dir.as_fd(), &name, &path)? != Some(FileType::Directory) {
                    continue;
                }
                if in_the_way {
                    self.go_through(
                        dir.as_fd(),
                        &name,
                        path,
                        "a repository lies where a file of the tree has to go",
                    )?;
                } else {
                    todo.push(path);
                }
            }
        }
        Ok(())
    }

    fn refuse_residue(&self) -> Result<()> {
        let root = &self.ground.at.root;
        let why = "a repository lies in what is to be removed";
        let mut cursor = Cursor::new(root.as_fd());
        for path in obstacles::foreign(root, &self.listing.leaves)? {
            let (Some(parent), Some((_, name))) = (cursor.parent(&path)?, path.split_last()) else {
                continue;
            };
            let kind = self.ground.look(parent, name, &path)?;
            if is_dot_git(name) {
                self.refuse_nested(&path, why)?;
            }
            if kind == Some(FileType::Directory) {
                self.go_through(parent, name, path.clone(), why)?;
            }
        }
        Ok(())
    }

    /// Goes through all that is below a directory; one handle a level.
    fn go_through(
        &self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        path: RelPath,
        why: &'static str,
    ) -> Result<()> {
        let mut levels = vec![self.level(parent, name, path, why)?];
        while let Some(Level {
            dir, path: at, left, ..
        }) = levels.last_mut()
        {
            let Some(name) = left.pop() else {
                levels.pop();
                continue;
            };
            let path = at.observed(&name)?;
            let kind = self.ground.look(dir.as_fd(), &name, &path)?;
            if is_dot_git(&name) {
                self.refuse_nested(&path, why)?;
            }
            if kind == Some(FileType::Directory) {
                let level = self.level(dir.as_fd(), &name, path, why)?;
                levels.push(level);
            }
        }
        Ok(())
    }

    fn level(&self, parent: BorrowedFd<'_>, name: &[u8], path: RelPath, why: &str) -> Result<Level> {
        let (dir, closed) =
            Closed::open(parent, name).map_err(|e| Error::io("open", shown(path.as_bytes()), e))?;
        let left = names(&dir, &path, |_| true)?;
        // As a repository without a worktree is known: see [`worktree::find`].
        if [&b"HEAD"[..], b"objects"]
            .iter()
            .all(|part| left.iter().any(|name| name == part))
        {
            self.refuse_nested(&path, why)?;
        }
        Ok(Level {
            dir,
            path,
            left,
            _closed: closed,
        })
    }

    fn refuse_nested(&self, path: &RelPath, why: &str) -> Result<()> {
        match self.nested {
            Nested::Refused => Err(refused("nested_repository", why, path)),
            Nested::Removed => Ok(()),
        }
    }

    /// Refuses mounts, and the repository itself, where files lie that the index knows: git would remove them there, be
    /// they of the tree or not.
    fn refuse_tracked(&self) -> Result<()> {
        let at = self.ground.at;
        let mounts = match place::mounted_below(&at.worktree) {
            Ok(mounts) => mounts,
            // The directories of the tree were looked at by their own handles.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(Error::io("read", "/proc/self/mountinfo", e)),
        };
        let own = self.ground.own.iter().map(|(_, path)| path.clone());
        for place in mounts.into_iter().chain(own) {
            let Some(path) = below(&at.worktree, &place)? else {
                continue;
            };
            if path.components().next() != Some(b".git") && self.is_changed(&path)? {
                self.refuse_place(&path)?;
            }
        }
        Ok(())
    }

    /// Says whether git might write or remove something at a path, or below it. A file that is mounted has another inode
    /// than the index knows, so git would write it anew, be it the same or not.
    fn is_changed(&self, path: &RelPath) -> Result<bool> {
        let leaf = self.listing.leaf(path.as_bytes());
        if leaf.is_some_and(|mode| mode != Mode::Gitlink) {
            return Ok(true);
        }
        let name = OsString::from_vec(path.as_bytes().to_vec());
        let mut call = self.repo.call(["ls-files", "--stage", "-z", "--"]);
        call.args.push(name);
        call.env.push(("GIT_LITERAL_PATHSPECS", "1".into()));
        // The one that stands, not one of the view that git sees.
        let index = self.ground.at.gitdir.join("index");
        call.env.push(("GIT_INDEX_FILE", index.into_os_string()));
        let said = self.repo.run(call)?;
        // Git does not go into the place of a submodule.
        let submodule = |line: &[u8]| {
            let place = line.splitn(2, |b| *b == b'\t').nth(1);
            line.starts_with(b"160000 ") && place == Some(path.as_bytes())
        };
        let mut lines = said.split(|b| *b == 0).filter(|line| !line.is_empty());
        Ok(lines.any(|line| !submodule(line)))
    }

    fn refuse_place(&self, path: &RelPath) -> Result<()> {
        let mut cursor = Cursor::new(self.ground.at.root.as_fd());
        let mut at = RelPath::root();
        for name in path.components() {
            let above = at;
            at = above.observed(name)?;
            if let Some(parent) = cursor.parent(&at)? {
                self.ground.look(parent, name, &at)?;
            }
        }
        Ok(())
    }
}

/// An open directory that is gone through.
struct Level {
    dir: OwnedFd,
    path: RelPath,
    /// The names in it that are still to be looked at.
    left: Vec<Vec<u8>>,
    _closed: Option<Closed>,
}

/// A directory of our user's that even its owner may not enter, opened for as long as it is looked at.
struct Closed {
    dir: OwnedFd,
    mode: FileMode,
}

impl Closed {
    /// Opens a directory; `None` beside it where nothing had to be done for that.
    fn open(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<(OwnedFd, Option<Self>)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = openat(parent, name, flags, FileMode::empty())?;
        let open = || openat(&handle, ".", DIRECTORY, FileMode::empty());
        let stat = fstat(&handle)?;
        let us = rustix::process::geteuid();
        if us.is_root() || us.as_raw() != stat.st_uid || stat.st_mode & 0o500 == 0o500 {
            return Ok((open()?, None));
        }
        reaper::open_up(parent, name)?;
        let mode = FileMode::from_raw_mode(stat.st_mode);
        let closed = Self { dir: open()?, mode };
        Ok((open()?, Some(closed)))
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        // What was only looked at is left as it was.
        rustix::fs::fchmod(&self.dir, self.mode).ok();
    }
}

fn is_dot_git(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b".git")
}

/// Gives a path within the worktree; `None` for one that is not below it.
fn below(worktree: &Path, place: &Path) -> Result<Option<RelPath>> {
    let Ok(rest) = place.strip_prefix(worktree) else {
        return Ok(None);
    };
    let mut path = RelPath::root();
    for part in rest.components() {
        path = path.observed(part.as_os_str().as_bytes())?;
    }
    Ok(Some(path).filter(|path| !path.is_root()))
}

fn enter(cursor: &mut Cursor<'_>, path: &RelPath) -> Result<Option<OwnedFd>> {
    let name = path.split_last().map_or(&b"."[..], |(_, name)| name);
    let Some(parent) = cursor.parent(path)? else {
        return Ok(None);
    };
    match openat(parent, name, DIRECTORY, FileMode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(e) => Err(Error::io("open", shown(path.as_bytes()), e)),
    }
}

/// Lists the names in a directory whose type is asked for, or is not told.
fn names(dir: &OwnedFd, at: &RelPath, asked: impl Fn(FileType) -> bool) -> Result<Vec<Vec<u8>>> {
    let failed = |e| Error::io("list", shown(at.as_bytes()), e);
    let mut all = Vec::new();
    for entry in Dir::read_from(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        let told = entry.file_type();
        if name != b"." && name != b".." && (told == FileType::Unknown || asked(told)) {
            all.push(name.to_vec());
        }
    }
    Ok(all)
}

/// Removes what lies in a worktree and is not of the tree; never what is mounted, and never the repository itself.
///
/// # Errors
/// `precondition_failed`, reason `residue_kept`, with the whole path of what stays; `io_failed`.
pub(super) fn remove_residue(
    ground: &Ground<'_>,
    leaves: &[super::objects::Leaf],
    most: usize,
) -> Result<Residue> {
    let mut found = obstacles::foreign(&ground.at.root, leaves)?;
    let mut cursor = Cursor::new(ground.at.root.as_fd());
    for path in &found {
        let (Some(parent), Some((_, name))) = (cursor.parent(path)?, path.split_last()) else {
            continue;
        };
        let kept = remove(ground, parent, name, path)?;
        if !kept.is_empty() {
            let why = "what is not of the tree cannot be removed: something is mounted there, or the system keeps it";
            return Err(Refusal::new(Code::PreconditionFailed, why)
                .reason("residue_kept")
                .names(kept)
                .into());
        }
    }
    let count = found.len();
    found.truncate(most);
    Ok(Residue { first: found, count })
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
    let kind = match ground.look(dir, name, &path) {
        Ok(None) => return Ok(Begun::Gone),
        Ok(Some(kind)) => kind,
        Err(error) if error.code() == Code::PreconditionFailed => {
            note(kept, &path);
            return Ok(Begun::Kept);
        }
        Err(error) => return Err(error),
    };
    if kind != FileType::Directory {
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
    let left = names(&opened, &path, |_| true)?;
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
