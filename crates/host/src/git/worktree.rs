//! Where a worktree's git directory is, and whether anything leads astray on the way.
//!
//! The `.git` of a worktree and its git directory can be written by whoever works in it. A pinned worktree is what its
//! pin says, whatever `.git` says by now; an unpinned one is taken only if both point at each other. This module does
//! *not* keep pins.

use super::Place;
use super::pin::{self, Pins, Require};
use super::repository::Repository;
use super::restore::Identity;
use crate::error::{Error, Result};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, Stat, accessat, openat};
use semel_core::path::shown;
use semel_core::pin::Pin;
use semel_core::{Code, Refusal};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The longest pointer file that is read.
const LONGEST_POINTER: usize = 8192;

/// Says where the parts of a repository lie; all paths absolute, links resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) worktree: Option<PathBuf>,
    pub(crate) gitdir: PathBuf,
    pub(crate) common: PathBuf,
}

impl Found {
    /// Gives where a git that only reads works.
    pub(super) fn place(&self) -> Place {
        Place::of(self.gitdir.clone(), self.common.clone())
    }
}

/// Says which worktree is meant, and how it is known.
#[derive(Clone, Debug)]
pub enum Target {
    /// By its path alone: it is taken as it is, if nothing redirects.
    Unpinned {
        /// The worktree.
        path: PathBuf,
        /// Pins that it must not lay hands on; `None` where none are kept.
        pins: Option<Pins>,
    },
    /// By its pin.
    Pinned(Box<Pin>),
    /// By its pin, which is kept.
    Kept {
        /// The pin.
        pin: Box<Pin>,
        /// Where it is kept.
        pins: Pins,
    },
}

impl From<&Path> for Target {
    fn from(path: &Path) -> Self {
        Self::Unpinned {
            path: path.to_owned(),
            pins: None,
        }
    }
}

impl From<&PathBuf> for Target {
    fn from(path: &PathBuf) -> Self {
        Self::from(path.as_path())
    }
}

impl Target {
    /// Takes a worktree where no pins are kept.
    ///
    /// # Errors
    /// `worktree_redirected`, reason `not_pinned`, where a pin is required.
    pub fn unpinned(worktree: &Path, require: Require) -> Result<Self> {
        if require == Require::Pin {
            semel_core::pin::require(None, worktree.as_os_str().as_bytes())?;
        }
        Ok(Self::from(worktree))
    }

    /// Gives where pins are kept.
    pub(super) fn pins(&self) -> Option<&Pins> {
        match self {
            Self::Unpinned { pins, .. } => pins.as_ref(),
            Self::Pinned(_) => None,
            Self::Kept { pins, .. } => Some(pins),
        }
    }

    /// Finds the parts of the repository; for a pinned worktree nothing is read from its `.git` but to compare it.
    pub(super) fn find(&self) -> Result<Found> {
        match self {
            Self::Unpinned { path, pins } => {
                let found = find(path)?;
                if let Some(pins) = pins {
                    pins.refuse_claimed(&found)?;
                }
                Ok(found)
            }
            Self::Pinned(pin) | Self::Kept { pin, .. } => {
                pin.hold_against(&pin::observe(pin)?)?;
                let path = |spot: &semel_core::pin::Spot| path_of(spot.path.as_bytes());
                Ok(Found {
                    worktree: Some(path(&pin.worktree)),
                    gitdir: path(&pin.gitdir),
                    common: path(&pin.common),
                })
            }
        }
    }

    /// Checks that nothing redirects, and opens what the lock goes through.
    pub(super) fn check(&self, found: &Found, repo: &Repository) -> Result<Checked> {
        let mut checked = check(found, repo)?;
        if let Self::Pinned(pin) | Self::Kept { pin, .. } = self {
            // Once more, now that the directories are open: what was exchanged in between is not the pinned one.
            pin.hold_against(&pin::observe(pin)?)?;
            checked.still_there()?;
            if repo.format() != pin.format {
                let why = "the repository has another object format than when it was pinned";
                let refusal = Refusal::new(Code::WorktreeRedirected, why).reason("format_changed");
                return Err(refusal.name(pin.worktree.path.to_string()).into());
            }
            checked.identity = Identity::Pinned;
        }
        Ok(checked)
    }

    /// Checks once more, under the lock: whoever held it until now may have changed what was found before.
    ///
    /// # Errors
    /// `worktree_redirected`.
    pub(super) fn unchanged(&self, found: &Found, at: &Checked) -> Result<()> {
        at.still_there()?;
        let now = self.find()?;
        if now != *found {
            let why = "worktree and git directory were led elsewhere meanwhile";
            let refusal = Refusal::new(Code::WorktreeRedirected, why).reason("pointers_changed");
            return Err(refusal.name(shown(at.worktree.as_os_str().as_bytes())).into());
        }
        pointing(&now, &at.worktree)
    }
}

/// A worktree that is what it seems, or what its pin says.
#[derive(Debug)]
pub(crate) struct Checked {
    /// How it is known.
    pub(crate) identity: Identity,
    pub(crate) worktree: PathBuf,
    pub(crate) gitdir: PathBuf,
    /// The open git directory; every step of the lock goes through it.
    pub(crate) dir: OwnedFd,
    /// The open worktree.
    pub(crate) root: OwnedFd,
    /// The owner of the git directory.
    pub(crate) uid: u32,
}

/// Makes a path of bytes.
pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

pub(crate) fn redirected(why: impl Into<String>, path: &Path) -> Error {
    Refusal::new(Code::WorktreeRedirected, why)
        .name(shown(path.as_os_str().as_bytes()))
        .into()
}

/// Finds the repository of a path: of a worktree, or a bare one.
pub(crate) fn find(path: &Path) -> Result<Found> {
    let root = std::fs::canonicalize(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Refusal::new(Code::NotFound, "the repository does not exist")
            .name(shown(path.as_os_str().as_bytes()))
            .into(),
        _ => Error::io("resolve", path, e),
    })?;
    let dot_git = root.join(".git");
    let none = || {
        Refusal::new(Code::BadInput, "not a git repository or worktree")
            .name(shown(path.as_os_str().as_bytes()))
    };
    let gitdir = match lstat(&dot_git)? {
        Some(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => dot_git,
            FileType::RegularFile => {
                let text = pointer(&dot_git)?;
                let target = text
                    .strip_prefix(b"gitdir: ")
                    .ok_or_else(|| redirected("the .git file names no git directory", &dot_git))?;
                resolve(&root, target, &dot_git)?
            }
            _ => return Err(redirected(".git is neither a directory nor a file", &dot_git)),
        },
        None if lstat(&root.join("HEAD"))?.is_some() && lstat(&root.join("objects"))?.is_some() => {
            return Ok(Found {
                worktree: None,
                common: root.clone(),
                gitdir: root,
            });
        }
        None => return Err(none().into()),
    };
    let pointing = gitdir.join("commondir");
    let common = match lstat(&pointing)? {
        Some(_) => resolve(&gitdir, &pointer(&pointing)?, &pointing)?,
        None => gitdir.clone(),
    };
    if lstat(&common.join("objects"))?.is_none() || lstat(&gitdir.join("HEAD"))?.is_none() {
        return Err(none().into());
    }
    Ok(Found {
        worktree: Some(root),
        gitdir,
        common,
    })
}

/// Checks that worktree and git directory point at each other, and that nothing redirects.
pub(crate) fn check(found: &Found, repo: &Repository) -> Result<Checked> {
    let Some(worktree) = found.worktree.clone() else {
        let refusal = Refusal::new(Code::BadInput, "a bare repository has no worktree");
        return Err(refusal.name(shown(found.gitdir.as_os_str().as_bytes())).into());
    };
    pointing(found, &worktree)?;
    if repo.config().get("core.worktree").is_some() {
        return Err(redirected("core.worktree is set", &found.gitdir));
    }
    let dir = open_dir(&found.gitdir)?;
    let root = open_dir(&worktree)?;
    let uid = stat(&dir, &found.gitdir)?.st_uid;
    if stat(&root, &worktree)?.st_uid != uid {
        return Err(redirected(
            "worktree and git directory have different owners",
            &found.gitdir,
        ));
    }
    refuse_other_owner(&dir, uid, &found.gitdir)?;
    Ok(Checked {
        identity: Identity::Unpinned,
        worktree,
        gitdir: found.gitdir.clone(),
        dir,
        root,
        uid,
    })
}

/// Refuses a git directory that is not our user's: git calls that dubious ownership.
///
/// Root is no exception. What root writes belongs to root, so that the owner could use neither index nor files any more.
fn refuse_other_owner(dir: &OwnedFd, uid: u32, path: &Path) -> Result<()> {
    let us = rustix::process::geteuid().as_raw();
    if us == uid {
        return Ok(());
    }
    if us != 0 {
        // Where no lock can be made anyway, that is what stands in the way, and it is said as for any other.
        if let Err(errno) = accessat(dir, ".", Access::WRITE_OK, AtFlags::EACCESS) {
            let why = format!("index.lock cannot be created: {errno}");
            return Err(Refusal::new(Code::LockUnsafe, why).reason("denied").into());
        }
    }
    let why = format!("the git directory is another user's; run it as that user, whose number is {uid}");
    let refusal = Refusal::new(Code::WorktreeRedirected, why).reason("other_owner");
    Err(refusal.name(shown(path.as_os_str().as_bytes())).into())
}

/// Checks that worktree and git directory point at each other.
fn pointing(found: &Found, worktree: &Path) -> Result<()> {
    let dot_git = worktree.join(".git");
    if found.gitdir == dot_git {
        if found.common != found.gitdir {
            let why = "the git directory of a main worktree points at another one";
            return Err(redirected(why, &found.gitdir.join("commondir")));
        }
    } else {
        let back = found.gitdir.join("gitdir");
        if lstat(&back)?.is_none() {
            let why = "the git directory does not point back at the worktree";
            return Err(redirected(why, &found.gitdir));
        }
        let target = resolve(&found.gitdir, &pointer(&back)?, &back)?;
        let inside = found.gitdir.parent() == Some(found.common.join("worktrees").as_path());
        if target != dot_git || !inside {
            let why = "worktree and git directory do not point at each other";
            return Err(redirected(why, &back));
        }
    }
    Ok(())
}

impl Checked {
    /// Checks that the index is absent, or a plain file with one name, of ours; to be called under the lock.
    pub(crate) fn index(&self) -> Result<Option<Stat>> {
        let place = self.gitdir.join("index");
        let Some(stat) = lstat(&place)? else {
            return Ok(None);
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(redirected("the index is not a plain file", &place));
        }
        if stat.st_nlink != 1 {
            return Err(redirected("the index has other names", &place));
        }
        let us = rustix::process::geteuid().as_raw();
        if stat.st_uid != us && stat.st_uid != self.uid {
            return Err(redirected("the index is another user's file", &place));
        }
        Ok(Some(stat))
    }

    /// Checks that both paths still lead to the open directories.
    pub(crate) fn still_there(&self) -> Result<()> {
        for (path, fd) in [(&self.gitdir, &self.dir), (&self.worktree, &self.root)] {
            let now = lstat(path)?;
            let open = stat(fd, path)?;
            let Some(now) = now else {
                return Err(redirected("the directory was removed meanwhile", path));
            };
            if (now.st_dev, now.st_ino) != (open.st_dev, open.st_ino) {
                return Err(redirected("the directory was exchanged meanwhile", path));
            }
        }
        Ok(())
    }
}

pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Error::io("open", path, e))
}

pub(crate) fn stat(fd: &OwnedFd, path: &Path) -> Result<Stat> {
    rustix::fs::fstat(fd).map_err(|e| Error::io("look at", path, e))
}

pub(crate) fn lstat(path: &Path) -> Result<Option<Stat>> {
    match rustix::fs::lstat(path) {
        Ok(stat) => Ok(Some(stat)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
        Err(e) => Err(Error::io("look at", path, e)),
    }
}

/// Reads a file that names another place: one line, never through a link.
pub(super) fn pointer(path: &Path) -> Result<Vec<u8>> {
    pointer_at(CWD, path, path)
}

/// Reads a pointer file of an open directory.
pub(super) fn pointer_at(dir: impl AsFd, name: &Path, path: &Path) -> Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = openat(dir, name, flags, Mode::empty())
        .map_err(|_| redirected("a pointer file cannot be read, or is a link", path))?;
    let plain = FileType::from_raw_mode(stat(&fd, path)?.st_mode) == FileType::RegularFile;
    let mut text = vec![0; LONGEST_POINTER];
    let read = rustix::io::read(&fd, &mut text).map_err(|e| Error::io("read", path, e))?;
    if !plain || read == 0 || read == LONGEST_POINTER {
        return Err(redirected("not a pointer file", path));
    }
    text.truncate(read);
    while text.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
        text.pop();
    }
    Ok(text)
}

fn resolve(base: &Path, target: &[u8], named_by: &Path) -> Result<PathBuf> {
    std::fs::canonicalize(base.join(path_of(target)))
        .map_err(|_| redirected("a pointer file leads nowhere", named_by))
}
