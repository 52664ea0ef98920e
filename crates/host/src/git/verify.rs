//! Hashes what truly lies in a directory, entry by entry, through open handles and never through a link.
//!
//! No filter, no attribute and no index has a say here. What the bytes should be is the caller's knowledge.

use crate::error::{Error, Result};
use rustix::fs::{AtFlags, FileType, Mode as FileMode, OFlags, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use semel_core::git_tree::{BlobHasher, Kind, Mode, ObjectFormat, ObjectId, object_id};
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Opens the parents of paths beneath a root; neighbours share their open directories.
pub(super) struct Cursor<'a> {
    root: BorrowedFd<'a>,
    open: Vec<(Vec<u8>, OwnedFd)>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(root: BorrowedFd<'a>) -> Self {
        Self {
            root,
            open: Vec::new(),
        }
    }

    /// Opens the directory of a path; `None` where a part of it is absent or is no directory (a link included).
    pub(super) fn parent(&mut self, path: &RelPath) -> Result<Option<BorrowedFd<'_>>> {
        let Some((parent, _)) = path.split_last() else {
            return Ok(Some(self.root));
        };
        let parts: Vec<&[u8]> = parent.components().collect();
        let shared = self
            .open
            .iter()
            .zip(&parts)
            .take_while(|((name, _), part)| name == *part)
            .count();
        self.open.truncate(shared);
        for part in &parts[shared..] {
            let at = self.open.last().map_or(self.root, |(_, fd)| fd.as_fd());
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(at, *part, flags, FileMode::empty()) {
                Ok(fd) => self.open.push((part.to_vec(), fd)),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(e) => return Err(Error::io("open", shown(parent.as_bytes()), e)),
            }
        }
        Ok(Some(self.open.last().map_or(self.root, |(_, fd)| fd.as_fd())))
    }
}

/// Says what lies at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing.
    Absent,
    /// A directory.
    Directory,
    /// A FIFO, socket or device.
    Special,
    /// A file or link, and its id.
    Leaf(Mode, ObjectId),
}

/// Hashes what lies at a path.
pub(super) fn seen(cursor: &mut Cursor<'_>, path: &RelPath, format: ObjectFormat) -> Result<Seen> {
    let failed = |e: Errno| Error::io("read", shown(path.as_bytes()), e);
    let Some((_, name)) = path.split_last() else {
        return Ok(Seen::Directory);
    };
    let Some(parent) = cursor.parent(path)? else {
        return Ok(Seen::Absent);
    };
    let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Seen::Absent),
        Err(e) => return Err(failed(e)),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(Seen::Directory),
        FileType::Symlink => {
            let target = readlinkat(parent, name, Vec::new()).map_err(failed)?;
            Ok(Seen::Leaf(
                Mode::Symlink,
                object_id(format, Kind::Blob, target.as_bytes())?,
            ))
        }
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = openat(parent, name, flags, FileMode::empty()).map_err(failed)?;
            hash_file(&file, path, format)
        }
        _ => Ok(Seen::Special),
    }
}

fn hash_file(file: &OwnedFd, path: &RelPath, format: ObjectFormat) -> Result<Seen> {
    let failed = |e: Errno| Error::io("read", shown(path.as_bytes()), e);
    let stat = fstat(file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(Seen::Special);
    }
    let mode = mode_of(stat.st_mode);
    let len = u64::try_from(stat.st_size).unwrap_or_default();
    let mut hasher = BlobHasher::new(format, len);
    let mut piece = vec![0_u8; 1 << 16];
    loop {
        match rustix::io::read(file, &mut piece) {
            Ok(0) => break,
            Ok(n) => hasher.update(&piece[..n]),
            Err(Errno::INTR) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    let id = hasher
        .finish()
        .map_err(|refusal| refusal.name(path.to_string()))?;
    Ok(Seen::Leaf(mode, id))
}

fn mode_of(raw: u32) -> Mode {
    if raw & 0o100 == 0 {
        Mode::File
    } else {
        Mode::Executable
    }
}

/// Reads a whole file; `None` where no plain file lies at the path.
pub(super) fn whole(cursor: &mut Cursor<'_>, path: &RelPath) -> Result<Option<(Mode, Vec<u8>)>> {
    let failed = |e: Errno| Error::io("read", shown(path.as_bytes()), e);
    let (Some(parent), Some((_, name))) = (cursor.parent(path)?, path.split_last()) else {
        return Ok(None);
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(parent, name, flags, FileMode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let stat = fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    Ok(Some((mode_of(stat.st_mode), read_to_end(&file).map_err(failed)?)))
}

fn read_to_end(file: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    let mut piece = vec![0_u8; 1 << 16];
    loop {
        match rustix::io::read(file, &mut piece) {
            Ok(0) => return Ok(whole),
            Ok(n) => whole.extend_from_slice(&piece[..n]),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Reads the content that a sealed entry has now: of a file its bytes, of a link its target.
pub(super) fn content(cursor: &mut Cursor<'_>, path: &RelPath, mode: Mode) -> Result<Vec<u8>> {
    let failed = |e: Errno| Error::io("read", shown(path.as_bytes()), e);
    let gone = || Refusal::new(Code::TreeMismatch, "the entry is gone").name(path.to_string());
    let (_, name) = path.split_last().ok_or_else(gone)?;
    let parent = cursor.parent(path)?.ok_or_else(gone)?;
    if mode == Mode::Symlink {
        return Ok(readlinkat(parent, name, Vec::new()).map_err(failed)?.into_bytes());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(parent, name, flags, FileMode::empty()).map_err(failed)?;
    read_to_end(&file).map_err(failed)
}
