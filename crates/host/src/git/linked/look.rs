//! A look through a directory of ours before anything of it is freed: what could not be removed is found while nothing is
//! lost yet. It opens no file, follows no link and changes nothing.

use crate::error::{Error, Result};
use crate::git::pin::open_real;
use crate::root::mount_id;
use rustix::fs::{
    Access, AtFlags, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags, accessat, openat,
};
use rustix::io::Errno;
use semel_core::path::shown;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// How many paths are named.
pub(super) const NAMED: usize = 20;

/// What was found.
#[derive(Default)]
pub(super) struct Looked {
    /// Whole paths of what cannot be removed, and why.
    pub(super) stuck: Vec<String>,
    /// Whole paths of directories that cannot be looked into.
    pub(super) closed: Vec<String>,
    /// The entries, by their paths in the directory, where they were asked for.
    pub(super) entries: Vec<(PathBuf, FileType)>,
}

/// Says whether entries are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Entries {
    Listed,
    Passed,
}

struct Looking<'a> {
    top: &'a Path,
    root: OwnedFd,
    mount: u64,
    device: (u32, u32),
    found: Looked,
}

/// Looks through a directory; one that is not there holds nothing.
///
/// # Errors
/// `io_failed` where something cannot be looked at.
pub(super) fn look(top: &Path, entries: Entries) -> Result<Looked> {
    let Some(root) = open_real(top)? else {
        return Ok(Looked::default());
    };
    let failed = |e: Errno| Error::io("look at", top, e);
    let mount = mount_id(root.as_fd()).map_err(failed)?;
    let own = statx(&root, b"").map_err(failed)?;
    let mut looking = Looking {
        top,
        root,
        mount,
        device: (own.stx_dev_major, own.stx_dev_minor),
        found: Looked::default(),
    };
    let here = own.stx_attributes_mask & own.stx_attributes;
    if here.contains(StatxAttributes::MOUNT_ROOT) {
        looking
            .found
            .stuck
            .push(format!("{}: mount", shown(top.as_os_str().as_bytes())));
    } else if let Some(why) = kept(&own) {
        looking
            .found
            .stuck
            .push(format!("{}: {why}", shown(top.as_os_str().as_bytes())));
    }
    let mut todo = vec![PathBuf::new()];
    while let Some(at) = todo.pop() {
        looking.directory(&at, entries, &mut todo)?;
        if looking.found.stuck.len() >= NAMED {
            break;
        }
    }
    Ok(looking.found)
}

impl Looking<'_> {
    fn directory(&mut self, at: &Path, entries: Entries, todo: &mut Vec<PathBuf>) -> Result<()> {
        let named = self.top.join(at);
        let failed = |e: Errno| Error::io("look into", &named, e);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = if at.as_os_str().is_empty() {
            Path::new(".")
        } else {
            at
        };
        let dir = match openat(&self.root, name, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            // Past the longest path git does not look either, and says so to nobody.
            Err(Errno::ACCESS | Errno::NAMETOOLONG) => {
                self.found.closed.push(shown(named.as_os_str().as_bytes()));
                return Ok(());
            }
            Err(e) => return Err(failed(e)),
        };
        let mut holds = false;
        for entry in Dir::read_from(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            holds = true;
            let seen = match statx(&dir, name) {
                Ok(seen) => seen,
                Err(Errno::NOENT) => continue,
                // It can be listed and not looked at: no `x` on the directory.
                Err(Errno::ACCESS) => {
                    self.found.closed.push(shown(named.as_os_str().as_bytes()));
                    return Ok(());
                }
                Err(e) => return Err(failed(e)),
            };
            self.entry(at.join(OsStr::from_bytes(name)), &seen, entries, todo);
            if self.found.stuck.len() >= NAMED {
                return Ok(());
            }
        }
        self.refuse_foreign(&dir, &named, holds)
    }

    fn entry(&mut self, path: PathBuf, seen: &rustix::fs::Statx, entries: Entries, todo: &mut Vec<PathBuf>) {
        let mounted = if seen.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            (seen.stx_dev_major, seen.stx_dev_minor) != self.device
        } else {
            seen.stx_mnt_id != self.mount
        };
        let why = if mounted { Some("mount") } else { kept(seen) };
        let kind = FileType::from_raw_mode(u32::from(seen.stx_mode));
        if let Some(why) = why {
            let whole = self.top.join(&path);
            let name = shown(whole.as_os_str().as_bytes());
            self.found.stuck.push(format!("{name}: {why}"));
        } else if kind == FileType::Directory {
            todo.push(path.clone());
        }
        if entries == Entries::Listed {
            self.found.entries.push((path, kind));
        }
    }

    /// Names a directory of somebody else that holds something and that we may not write.
    fn refuse_foreign(&mut self, dir: &OwnedFd, named: &Path, holds: bool) -> Result<()> {
        let owner = rustix::fs::fstat(dir)
            .map_err(|e| Error::io("look at", named, e))?
            .st_uid;
        let us = rustix::process::geteuid().as_raw();
        if us == 0 || owner == us || !holds {
            return Ok(());
        }
        if accessat(dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_err() {
            let name = shown(named.as_os_str().as_bytes());
            self.found.stuck.push(format!("{name}: another user's"));
        }
        Ok(())
    }
}

fn kept(seen: &rustix::fs::Statx) -> Option<&'static str> {
    let kept = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    seen.stx_attributes.intersects(kept).then_some("immutable")
}

fn statx(dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<rustix::fs::Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let flags = if name.is_empty() {
        flags | AtFlags::EMPTY_PATH
    } else {
        flags
    };
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}
