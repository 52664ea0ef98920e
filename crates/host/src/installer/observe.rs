//! Observes an installed tree: every entry, its mode and content, and nothing behind a link.
//!
//! It walks by handles alone, so that no link and no rename can lead it elsewhere; a mount below the root is
//! refused. It judges nothing but that: what belongs and what does not is core's business.

use crate::error::{Error, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use semel_core::digest::Hasher;
use semel_core::install::{Fact, Kind, Observed, wants_text};
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const MOST_ENTRIES: usize = 2_000_000;
const CHUNK: usize = 256 << 10;

/// Observes everything beneath an installed root; `place` is where it lies in the volume.
///
/// # Errors
/// `unknown_state` where the root is missing or is not a directory, `record_outside_root` for a mount or a file
/// with a second name, `record_mismatch` where an entry changes while it is read, `too_large` past two million
/// entries, `io_failed` where something cannot be read.
pub fn observe(root: &Path, kind: Kind, place: &RelPath) -> Result<Observed> {
    let wanted = |path: &RelPath| wants_text(kind, path);
    let (observed, mut linked) = observe_with_links(root, kind, place, &wanted)?;
    if linked.is_empty() {
        return Ok(observed);
    }
    let why = "an installed file has a second name, through which it could be changed";
    linked.truncate(20);
    Err(Refusal::new(Code::RecordOutsideRoot, why)
        .reason("hard_link")
        .names(linked)
        .into())
}

/// Observes as [`observe`] does, also files with a second name, which it names; `wanted` says of which files the content
/// is kept, and how much of it.
///
/// # Errors
/// As [`observe`], but for files with a second name.
pub(crate) fn observe_with_links(
    root: &Path,
    kind: Kind,
    place: &RelPath,
    wanted: &dyn Fn(&RelPath) -> Option<u64>,
) -> Result<(Observed, Vec<String>)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(CWD, root, flags, Mode::empty()).map_err(|e| match e {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => {
            Refusal::new(Code::UnknownState, "nothing is installed here")
                .name(shown(root.as_os_str().as_bytes()))
                .into()
        }
        _ => Error::io("open", root, e),
    })?;
    let mut walk = Walk {
        root,
        wanted,
        mount: 0,
        buffer: vec![0; CHUNK],
        entries: BTreeMap::new(),
        texts: BTreeMap::new(),
        linked: Vec::new(),
    };
    walk.mount = mount_of(fd.as_fd(), c"", AtFlags::EMPTY_PATH)
        .map_err(|e| walk.io("look at", &RelPath::root(), e))?
        .mount;
    walk.directory(fd, &RelPath::root())?;
    let observed = Observed {
        root: place.clone(),
        kind,
        entries: walk.entries,
        texts: walk.texts,
    };
    Ok((observed, walk.linked))
}

/// Refuses a second observation in which anything of the first is gone or changed.
///
/// # Errors
/// `record_mismatch`, naming up to twenty entries.
pub(super) fn only_added(before: &Observed, after: &Observed) -> Result<()> {
    let changed = before
        .entries
        .iter()
        .filter(|(path, fact)| match after.entries.get(*path) {
            Some(now) => now != *fact,
            None => true,
        });
    let names: Vec<String> = changed.map(|(path, _)| path.to_string()).take(20).collect();
    if names.is_empty() {
        return Ok(());
    }
    let why = "the project's own build changed what was installed before it";
    Err(Refusal::new(Code::RecordMismatch, why)
        .reason("build_wrote")
        .names(names)
        .into())
}

struct Seen {
    mount: u64,
    inode: u64,
    mode: u32,
    links: u32,
    size: u64,
}

impl Seen {
    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}

fn mount_of(dir: BorrowedFd<'_>, name: &CStr, flags: AtFlags) -> std::result::Result<Seen, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let facts = rustix::fs::statx(dir, name, flags | AtFlags::SYMLINK_NOFOLLOW, wanted)?;
    Ok(Seen {
        mount: facts.stx_mnt_id,
        inode: facts.stx_ino,
        mode: u32::from(facts.stx_mode),
        links: facts.stx_nlink,
        size: facts.stx_size,
    })
}

struct Walk<'a> {
    root: &'a Path,
    wanted: &'a dyn Fn(&RelPath) -> Option<u64>,
    mount: u64,
    buffer: Vec<u8>,
    entries: BTreeMap<RelPath, Fact>,
    texts: BTreeMap<RelPath, Vec<u8>>,
    linked: Vec<String>,
}

impl Walk<'_> {
    /// Depth is bounded by the components of a path, so the stack is too.
    fn directory(&mut self, fd: OwnedFd, path: &RelPath) -> Result<()> {
        let listing = Dir::read_from(&fd).map_err(|e| self.io("list", path, e))?;
        for entry in listing {
            let entry = entry.map_err(|e| self.io("list", path, e))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let at = path.join(name.to_bytes())?;
            if self.entries.len() >= MOST_ENTRIES {
                return Err(
                    Refusal::new(Code::TooLarge, "more than two million entries are installed").into(),
                );
            }
            let fact = self.entry(fd.as_fd(), name, &at)?;
            self.entries.insert(at, fact);
        }
        Ok(())
    }

    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, path: &RelPath) -> Result<Fact> {
        let seen = mount_of(dir, name, AtFlags::empty()).map_err(|e| self.io("look at", path, e))?;
        if seen.mount != self.mount {
            let why = "a mount lies beneath the installed root";
            return Err(Refusal::new(Code::RecordOutsideRoot, why)
                .reason("mount")
                .name(path.to_string())
                .into());
        }
        match seen.kind() {
            FileType::Symlink => {
                let target =
                    rustix::fs::readlinkat(dir, name, Vec::new()).map_err(|e| self.io("read", path, e))?;
                Ok(Fact::Symlink {
                    target: target.into_bytes(),
                })
            }
            FileType::Directory => {
                let fd = self.open(dir, name, path, &seen, OFlags::DIRECTORY)?;
                self.directory(fd, path)?;
                Ok(Fact::Directory {
                    mode: seen.permissions(),
                })
            }
            FileType::RegularFile => {
                if seen.links != 1 {
                    self.linked.push(path.to_string());
                }
                let fd = self.open(dir, name, path, &seen, OFlags::NONBLOCK)?;
                self.file(&fd, path, &seen)
            }
            _ => Ok(Fact::Other),
        }
    }

    fn open(
        &self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        path: &RelPath,
        seen: &Seen,
        kind: OFlags,
    ) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY | kind;
        let fd = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(|e| self.io("open", path, e))?;
        let opened =
            mount_of(fd.as_fd(), c"", AtFlags::EMPTY_PATH).map_err(|e| self.io("look at", path, e))?;
        if (opened.mount, opened.inode, opened.mode) != (seen.mount, seen.inode, seen.mode) {
            return Err(moving(path));
        }
        Ok(fd)
    }

    fn file(&mut self, fd: &OwnedFd, path: &RelPath, seen: &Seen) -> Result<Fact> {
        let wanted = (self.wanted)(path);
        let keep = usize::try_from(wanted.unwrap_or(0)).unwrap_or(usize::MAX);
        let mut hasher = Hasher::new();
        let mut size = 0_u64;
        let mut text = Vec::new();
        loop {
            let count = match rustix::io::read(fd, &mut self.buffer[..]) {
                Ok(0) => break,
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(self.io("read", path, e)),
            };
            hasher.update(&self.buffer[..count]);
            size += count as u64;
            if size > seen.size {
                return Err(moving(path));
            }
            let room = keep.saturating_sub(text.len()).min(count);
            text.extend_from_slice(&self.buffer[..room]);
        }
        if size != seen.size {
            return Err(moving(path));
        }
        if wanted.is_some() {
            self.texts.insert(path.clone(), text);
        }
        Ok(Fact::File {
            mode: seen.permissions(),
            size,
            sha256: hasher.finish(),
        })
    }

    fn io(&self, operation: &'static str, path: &RelPath, errno: Errno) -> Error {
        let whole: PathBuf = self.root.join(OsStr::from_bytes(path.as_bytes()));
        Error::io(operation, whole, errno)
    }
}

fn moving(path: &RelPath) -> Error {
    let why = "an installed entry changed while it was read";
    Refusal::new(Code::RecordMismatch, why)
        .reason("moving")
        .name(path.to_string())
        .into()
}
