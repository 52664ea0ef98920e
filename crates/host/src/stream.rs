//! The event stream of a run, held open from the first look on: what it is and what it holds, by its handle and by its
//! path.
//!
//! It looks, and writes nothing; [`semel_core::retry`] says what a change means.

use crate::error::{Error, Result};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, fstatfs, lstat, open};
use rustix::io::Errno;
use semel_core::digest::Hasher;
use semel_core::retry::{Hazard, Sight, StreamSeen, missing};
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How much is read at once.
const PIECE: usize = 128 << 10;
/// The number by which an overlay tells its kind.
const OVERLAY: u64 = 0x794c_7630;

/// Holds a stream open.
#[derive(Debug)]
pub struct Stream {
    file: OwnedFd,
    /// Where it was asked for; absolute.
    asked: PathBuf,
    /// Where that leads, links resolved.
    path: PathBuf,
    /// Whose file it may be, beside ours.
    owner: u32,
    /// How long it was at the first look.
    length: u64,
}

/// Is what a file held, and whether it held still while it was read.
struct Content {
    length: u64,
    sha256: Sha256,
    begins: Sha256,
    moved: bool,
}

impl Stream {
    /// Opens a stream at a path of the caller's own; `owner` is whose file it may be, beside ours.
    ///
    /// # Errors
    /// `stream_unsafe` where it is missing, no plain file with one name, another user's, or cannot be read;
    /// `ownership_taken`, reason `moving`, where somebody writes it right now.
    pub fn open(path: &Path, owner: u32) -> Result<(Self, Sight)> {
        let asked = std::path::absolute(path).map_err(|e| Error::io("resolve", path, e))?;
        Self::begin(asked, None, owner).map_err(|refusal| named(refusal, path))
    }

    /// Opens a stream at a place in a worktree, on the way to which no link may lie; `root` is without links.
    ///
    /// # Errors
    /// As [`Stream::open`].
    pub fn open_within(root: &Path, place: &RelPath, owner: u32) -> Result<(Self, Sight)> {
        let path = root.join(std::ffi::OsStr::from_bytes(place.as_bytes()));
        Self::begin(path.clone(), Some(&path), owner).map_err(|refusal| named(refusal, &path))
    }

    fn begin(
        asked: PathBuf,
        leads_to: Option<&Path>,
        owner: u32,
    ) -> core::result::Result<(Self, Sight), Refusal> {
        plain(&asked, owner).map_err(|seen| refused(&seen))?;
        let path = std::fs::canonicalize(&asked).map_err(|_| Hazard::Unreadable.refusal())?;
        if leads_to.is_some_and(|to| to != path) {
            return Err(Hazard::Symlink.refusal());
        }
        // What counts is seen once it is open: on an overlay, opening it may make another file of it.
        let mut stream = Self {
            file: hold(&asked).map_err(|_| Hazard::Unreadable.refusal())?,
            asked,
            path,
            owner,
            length: u64::MAX,
        };
        let (sight, moved) = stream.see().map_err(|seen| refused(&seen))?;
        if moved {
            let why = "the event stream is being written right now";
            return Err(Refusal::new(Code::OwnershipTaken, why).reason("moving"));
        }
        stream.length = sight.length;
        Ok((stream, sight))
    }

    /// Looks at the stream again: at its path, and at the file that is held open.
    #[must_use]
    pub fn look(&self) -> StreamSeen {
        match self.see() {
            Ok((sight, _)) => StreamSeen::There(sight),
            Err(seen) => seen,
        }
    }

    fn see(&self) -> core::result::Result<(Sight, bool), StreamSeen> {
        let before = plain(&self.asked, self.owner)?;
        let path = std::fs::canonicalize(&self.asked).map_err(|_| StreamSeen::Missing)?;
        let unreadable = |_| StreamSeen::Unsafe(Hazard::Unreadable);
        let replaced = StreamSeen::Unsafe(Hazard::Replaced);
        // Read through a handle of its own: one from before a copy-up of an overlay would show the old content.
        let fresh = File::from(read_only(&self.asked).map_err(unreadable)?);
        let content = self
            .content(&fresh)
            .map_err(|_| StreamSeen::Unsafe(Hazard::Unreadable))?;
        let fresh = fstat(&fresh).map_err(unreadable)?;
        let held = fstat(&self.file).map_err(unreadable)?;
        let after = plain(&self.asked, self.owner)?;
        let handle = identity(&before);
        if [&fresh, &held, &after]
            .iter()
            .any(|stat| identity(stat) != handle)
            || path != self.path
        {
            return Err(replaced);
        }
        // The same file by its number, and another one by its bytes: a layer was put over it.
        if held.st_size != fresh.st_size && fresh.st_size == after.st_size {
            return Err(replaced);
        }
        #[allow(clippy::useless_conversion, reason = "it is narrower on other machines")]
        let links = u64::from(after.st_nlink);
        let sight = Sight {
            handle,
            links,
            length: content.length,
            sha256: content.sha256,
            begins: content.begins,
            path: path.as_os_str().as_bytes().to_vec(),
        };
        Ok((sight, content.moved))
    }

    /// Reads as much as there was when it began; a file that grows meanwhile has moved, and its length says so.
    fn content(&self, file: &File) -> std::io::Result<Content> {
        let size = file.metadata()?.len();
        let (mut all, mut begins) = (Hasher::new(), Hasher::new());
        let mut piece = vec![0_u8; PIECE];
        let mut at = 0_u64;
        while at < size {
            let most = usize::try_from(size - at).unwrap_or(PIECE).min(PIECE);
            let read = file.read_at(&mut piece[..most], at)?;
            if read == 0 {
                break;
            }
            let bytes = &piece[..read];
            all.update(bytes);
            let first = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX);
            begins.update(&bytes[..first.min(read)]);
            at += read as u64;
        }
        let now = file.metadata()?.len();
        Ok(Content {
            length: now,
            sha256: all.finish(),
            begins: begins.finish(),
            moved: now != size || at != size,
        })
    }
}

/// Looks whether a stream stands at a path: a plain file with one name, of ours.
fn plain(path: &Path, owner: u32) -> core::result::Result<Stat, StreamSeen> {
    let stat = lstat(path).map_err(|e| match e {
        Errno::NOENT | Errno::NOTDIR => StreamSeen::Missing,
        _ => StreamSeen::Unsafe(Hazard::Unreadable),
    })?;
    let hazard = match FileType::from_raw_mode(stat.st_mode) {
        // It says something else whenever it is read.
        FileType::RegularFile if is_of_the_kernel(path) => Hazard::Special,
        FileType::RegularFile if stat.st_nlink != 1 => Hazard::HardLink,
        FileType::RegularFile => {
            let us = rustix::process::geteuid().as_raw();
            if stat.st_uid == us || stat.st_uid == owner {
                return Ok(stat);
            }
            Hazard::Foreign
        }
        FileType::Symlink => Hazard::Symlink,
        FileType::Directory => Hazard::Directory,
        _ => Hazard::Special,
    };
    Err(StreamSeen::Unsafe(hazard))
}

/// Says whether a file is one in which the kernel shows something of itself.
fn is_of_the_kernel(path: &Path) -> bool {
    const SHOWN: &[u32] = &[
        0x0000_9fa0, // proc
        0x6265_6572, // sysfs
        0x6462_6720, // debugfs
        0x7472_6163, // tracefs
        0x6367_7270, // cgroup2
        0x0027_e0eb, // cgroup
        0x7363_6673, // securityfs
    ];
    rustix::fs::statfs(path).is_ok_and(|fs| u32::try_from(fs.f_type).is_ok_and(|kind| SHOWN.contains(&kind)))
}

fn refused(seen: &StreamSeen) -> Refusal {
    match seen {
        StreamSeen::Unsafe(hazard) => hazard.refusal(),
        StreamSeen::Missing | StreamSeen::There(_) => missing(),
    }
}

fn named(refusal: Refusal, path: &Path) -> Error {
    refusal
        .name(semel_core::path::shown(path.as_os_str().as_bytes()))
        .into()
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn read_only(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

/// Opens the handle that is held. On an overlay it is one that could write, though it never does: only that makes the
/// copy in the upper layer now, so that the first write of another process makes no other file of it.
fn hold(path: &Path) -> rustix::io::Result<OwnedFd> {
    let file = read_only(path)?;
    let kind = u64::try_from(fstatfs(&file)?.f_type).unwrap_or_default();
    if kind != OVERLAY {
        return Ok(file);
    }
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Where that is not to be had, a copy-up looks like a replacement: it ends the tries, which is the safe side.
    Ok(open(path, flags, Mode::empty()).unwrap_or(file))
}

#[cfg(test)]
mod tests;
