//! The reaper: frees what was put aside, by handles, with a constant number of them, whatever the depth.
//!
//! Directories found on the way are renamed up to the top and emptied there, so that the work may be cut off at
//! any moment and resumed. It follows no link and enters no mount; what it cannot remove it names and leaves.

use crate::clock;
use crate::error::{Error, Result};
use crate::root::mount_id;
use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use semel_core::digest::to_hex;
use semel_core::path::shown;
use std::collections::HashSet;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

/// How many things that cannot be removed are named before the work is given up.
const MOST_KEPT: usize = 1000;

/// Names something that could not be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The last two names of its path.
    pub path: String,
    /// Why it stays, such as `mount` or the system's answer.
    pub why: String,
}

/// Says what the reaper did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// How many entries were removed.
    pub removed: u64,
    /// What stays, for a person to look at; empty if all is gone.
    pub kept: Vec<Kept>,
}

struct Reaper<'a> {
    top: &'a OwnedFd,
    mount: u64,
    prefix: String,
    moved: u64,
    stuck: HashSet<Vec<u8>>,
    done: Reaped,
}

/// Removes a directory and all that is in it.
///
/// # Errors
/// `io_failed` where the directory itself cannot be opened or read.
pub(crate) fn remove_tree(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Reaped> {
    let top = match open_directory(parent, name) {
        Ok((top, _)) => top,
        Err(Errno::NOENT) => return Ok(Reaped::default()),
        Err(errno) => return Err(Error::io("open", shown(name), errno)),
    };
    let mut reaped = empty(&top)?;
    if reaped.kept.is_empty() {
        rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
            .map_err(|e| Error::io("remove", shown(name), e))?;
        reaped.removed += 1;
    }
    Ok(reaped)
}

/// Removes all that is in an open directory, and leaves the directory.
///
/// # Errors
/// `io_failed` where the directory cannot be examined or read.
pub(crate) fn empty(top: &OwnedFd) -> Result<Reaped> {
    let fail = |e: Errno| Error::io("examine", "what was put aside", e);
    let mut reaper = Reaper {
        top,
        mount: mount_id(top.as_fd()).map_err(fail)?,
        prefix: format!(".r{}-", to_hex(&clock::random::<8>()?)),
        moved: 0,
        stuck: HashSet::new(),
        done: Reaped::default(),
    };
    while reaper.pass().map_err(fail)? && reaper.done.kept.len() < MOST_KEPT {}
    Ok(reaper.done)
}

impl Reaper<'_> {
    /// Goes once through the top directory; says whether anything was removed or moved up.
    fn pass(&mut self) -> rustix::io::Result<bool> {
        let before = self.done.removed + self.moved;
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        rustix::fs::seek(self.top, SeekFrom::Start(0))?;
        let mut entries = rustix::fs::RawDir::new(self.top, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if is_dots(name) || self.stuck.contains(name.to_bytes()) {
                continue;
            }
            if !self.remove_file(self.top.as_fd(), name, b"")? {
                self.remove_directory(name)?;
            }
            if self.done.kept.len() >= MOST_KEPT {
                break;
            }
        }
        Ok(self.done.removed + self.moved > before)
    }

    /// Removes an entry unless it is a directory; says whether that settled it.
    fn remove_file(&mut self, dir: BorrowedFd<'_>, name: &CStr, above: &[u8]) -> rustix::io::Result<bool> {
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) => self.done.removed += 1,
            Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => return Ok(false),
            Err(errno) => {
                // Some filesystems answer EPERM for a directory.
                let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
                let stat = rustix::fs::statat(dir, name, flags)?;
                if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
                    return Ok(false);
                }
                self.keep(above, name, errno);
            }
        }
        Ok(true)
    }

    /// Empties a directory of the top, moving directories in it up to the top, then removes it.
    fn remove_directory(&mut self, name: &CStr) -> rustix::io::Result<()> {
        let (dir, mount) = match open_directory(self.top.as_fd(), name.to_bytes()) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => {
                self.keep(b"", name, errno);
                return Ok(());
            }
        };
        if mount != self.mount {
            self.keep(b"", name, Errno::XDEV);
            return Ok(());
        }
        let mut left = self.lift_all(&dir, name)?;
        if !left {
            match rustix::fs::unlinkat(self.top, name, AtFlags::REMOVEDIR) {
                Ok(()) => self.done.removed += 1,
                Err(Errno::NOENT) => {}
                // Someone still writes in it; the next pass looks again.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(errno) => {
                    self.keep(b"", name, errno);
                    left = true;
                }
            }
        }
        if left {
            self.stuck.insert(name.to_bytes().to_vec());
        }
        Ok(())
    }

    /// Removes the files of a directory and moves its directories up; says whether something stays in it.
    fn lift_all(&mut self, dir: &OwnedFd, above: &CStr) -> rustix::io::Result<bool> {
        let before = self.done.kept.len();
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut entries = rustix::fs::RawDir::new(dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if is_dots(name) || self.remove_file(dir.as_fd(), name, above.to_bytes())? {
                continue;
            }
            if let Err(errno) = self.lift(dir, name) {
                self.keep(above.to_bytes(), name, errno);
            }
            if self.done.kept.len() >= MOST_KEPT {
                break;
            }
        }
        Ok(self.done.kept.len() > before)
    }

    fn lift(&mut self, dir: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
        // An empty directory needs no way up.
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) => {
                self.done.removed += 1;
                return Ok(());
            }
            Err(Errno::NOENT) => return Ok(()),
            Err(_) => {}
        }
        let (_, mount) = open_directory(dir.as_fd(), name.to_bytes())?;
        if mount != self.mount {
            return Err(Errno::XDEV);
        }
        loop {
            self.moved += 1;
            let up = format!("{}{}", self.prefix, self.moved);
            let from = (dir.as_fd(), name.to_bytes());
            match crate::files::rename_ours(from, (self.top.as_fd(), up.as_bytes())) {
                Err(Errno::EXIST) => {}
                answer => return answer,
            }
        }
    }

    fn keep(&mut self, above: &[u8], name: &CStr, errno: Errno) {
        if above.is_empty() {
            self.stuck.insert(name.to_bytes().to_vec());
        }
        let path = [above, name.to_bytes()]
            .into_iter()
            .filter(|part| !part.is_empty());
        let why = match errno {
            Errno::XDEV | Errno::BUSY => "mount".to_owned(),
            Errno::PERM => "immutable or foreign".to_owned(),
            _ => std::io::Error::from(errno).to_string(),
        };
        self.done.kept.push(Kept {
            path: shown(&path.collect::<Vec<_>>().join(&b'/')),
            why,
        });
    }
}

/// Gives itself every permission on a directory of its own.
pub(crate) fn open_up(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    open_directory(parent, name).map(drop)
}

/// Opens a directory and tells its mount; gives itself the permission where the directory is its own.
fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<(OwnedFd, u64)> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(parent, name, flags | OFlags::PATH, Mode::empty())?;
    let mount = mount_id(handle.as_fd())?;
    let read = || rustix::fs::openat(&handle, ".", flags | OFlags::RDONLY, Mode::empty());
    let stat = rustix::fs::fstat(&handle)?;
    if stat.st_mode & 0o700 != 0o700 && stat.st_uid == rustix::process::geteuid().as_raw() {
        // By the handle, not by the name: nothing else can be meant.
        let itself = format!("/proc/self/fd/{}", handle.as_raw_fd());
        rustix::fs::chmod(itself, Mode::RWXU)?;
    }
    Ok((read()?, mount))
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}
