//! Reading: a file, a directory, what is known of an entry. Nothing here blocks on a FIFO or opens a device.

use crate::error::{Error, Result};
use crate::files::range::{Bounds, Range, read_place};
use crate::files::read_capped;
use crate::root::{LastLink, Place, Root, failed};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Names the type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, FIFO or socket: it is never opened.
    Special,
}

impl FileKind {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self::of_type(FileType::from_raw_mode(stat.st_mode))
    }

    pub(crate) fn of_type(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            _ => Self::Special,
        }
    }

    /// Gives the name of the type on every wire.
    #[must_use]
    pub const fn wire(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Special => "special",
        }
    }
}

/// Holds what was read of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The digest of exactly these bytes.
    pub sha256: Sha256,
    /// How many they are.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    /// The path with every link followed.
    pub resolved: RelPath,
}

/// Describes one entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name's bytes.
    pub name: Vec<u8>,
    /// The type.
    pub kind: FileKind,
    /// The size in bytes.
    pub size: u64,
}

/// Holds what is known of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// The type.
    pub kind: FileKind,
    /// The size in bytes.
    pub size: u64,
    /// The permission bits.
    pub mode: u32,
    /// How many names the file has.
    pub links: u64,
    /// When the content last changed, in milliseconds since the epoch.
    pub modified_ms: i64,
    /// The digest of a regular file's content; `None` where it has none.
    pub sha256: Option<Sha256>,
    /// Why a regular file has no digest here.
    pub undigested: Option<Undigested>,
    /// What a symbolic link points at.
    pub target: Option<Vec<u8>>,
    /// The path with every link but a last one followed.
    pub resolved: RelPath,
}

/// Says why a regular file was described without its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undigested {
    /// It is larger than what is digested unasked.
    TooLarge,
    /// It may not be read.
    Unreadable,
}

impl Undigested {
    /// Gives its name on every wire.
    #[must_use]
    pub const fn wire(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Counts the names of a file.
#[allow(clippy::useless_conversion, reason = "the count has 32 bits on some machines")]
pub(super) fn links(stat: &Stat) -> u64 {
    u64::from(stat.st_nlink)
}

/// Reads a regular file beneath a root; links that stay inside are followed.
///
/// # Errors
/// `not_found`; `path_escapes_root`, also for devices, FIFOs and sockets; `bad_input` for a directory;
/// `too_large` past the bound.
pub fn read_file(root: &Root, path: &RelPath, cap: u64) -> Result<Content> {
    let place = root.place(path, LastLink::Follow)?;
    let (file, stat) = open_regular(root, &place)?;
    let bytes = read_capped(file, cap, &path.to_string())?;
    Ok(Content {
        sha256: Sha256::of(&bytes),
        size: bytes.len() as u64,
        mode: stat.st_mode & 0o7777,
        resolved: place.resolved,
        bytes,
    })
}

/// Lists a directory beneath a root, sorted by the bytes of the names.
///
/// # Errors
/// `not_found`, `path_escapes_root`; `too_large` past the bound.
pub fn list_directory(root: &Root, path: &RelPath, cap: usize) -> Result<Vec<Listed>> {
    let (dir, _) = root.directory(path)?;
    let mut all = Vec::new();
    for (name, kind) in entries(&dir, cap).map_err(|e| e.named(path))? {
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW | rustix::fs::AtFlags::NO_AUTOMOUNT;
        match rustix::fs::statat(&dir, name.as_slice(), flags) {
            Ok(stat) => all.push(Listed {
                kind: FileKind::of(&stat),
                size: u64::try_from(stat.st_size).unwrap_or_default(),
                name,
            }),
            // It went away meanwhile.
            Err(Errno::NOENT) => {}
            Err(_) => all.push(Listed { name, kind, size: 0 }),
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Tells what is known of an entry beneath a root; a link in the last place is itself what is meant. A file is
/// digested up to a size.
///
/// # Errors
/// `not_found`, `path_escapes_root`, `io_failed`.
pub fn file_info(root: &Root, path: &RelPath, digest: u64) -> Result<FileInfo> {
    let (found, parent, resolved) = if path.is_root() {
        (root.directory(path)?.0, None, RelPath::root())
    } else {
        let place = root.place(path, LastLink::Keep)?;
        let found = root.step(place.parent.as_fd(), &place.name, OFlags::PATH);
        let found = found.map_err(|e| failed(e, path))?;
        let resolved = place.resolved.clone();
        (found, Some(place), resolved)
    };
    let stat = rustix::fs::fstat(&found).map_err(|e| failed(e, path))?;
    let mut info = FileInfo::of(&stat, resolved);
    match (info.kind, parent) {
        (FileKind::Symlink, _) => {
            let text = rustix::fs::readlinkat(&found, "", Vec::new()).map_err(|e| failed(e, path))?;
            info.target = Some(text.into_bytes());
        }
        (FileKind::File, Some(_)) if info.size > digest => info.undigested = Some(Undigested::TooLarge),
        (FileKind::File, Some(place)) => {
            let bounds = Bounds {
                given: 0,
                digest,
                scan: u64::MAX,
            };
            match read_place(root, place, Range::Bytes { first: 0, most: 0 }, bounds) {
                // The digest is of this size.
                Ok(part) => {
                    info.size = part.size;
                    info.undigested = part.sha256.is_none().then_some(Undigested::TooLarge);
                    info.sha256 = part.sha256;
                }
                // What may not be read is described without its digest.
                Err(Error::Io { source, .. }) if super::remove::unreadable(&source) => {
                    info.undigested = Some(Undigested::Unreadable);
                }
                Err(error) => return Err(error),
            }
        }
        _ => {}
    }
    Ok(info)
}

impl FileInfo {
    fn of(stat: &Stat, resolved: RelPath) -> Self {
        Self {
            kind: FileKind::of(stat),
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            mode: stat.st_mode & 0o7777,
            links: links(stat),
            modified_ms: stat.st_mtime.saturating_mul(1000)
                + i64::try_from(stat.st_mtime_nsec / 1_000_000).unwrap_or(0),
            sha256: None,
            undigested: None,
            target: None,
            resolved,
        }
    }
}

/// Opens a regular file for reading without waiting for anything; anything else is refused.
///
/// The type is looked at through a handle before the file itself is opened, since opening a device can act.
pub(crate) fn open_regular(root: &Root, place: &Place) -> Result<(std::fs::File, Stat)> {
    open_regular_at(root, place.parent.as_fd(), &place.name, &place.resolved)
}

/// Does the same for a name in an open directory.
pub(super) fn open_regular_at(
    root: &Root,
    dir: BorrowedFd<'_>,
    name: &[u8],
    path: &RelPath,
) -> Result<(std::fs::File, Stat)> {
    let step = |flags| root.step(dir, name, flags);
    let seen = step(OFlags::PATH).map_err(|e| failed(e, path))?;
    refuse_other(&rustix::fs::fstat(&seen).map_err(|e| failed(e, path))?, path)?;
    let file: OwnedFd =
        step(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(|e| failed(e, path))?;
    let stat = rustix::fs::fstat(&file).map_err(|e| failed(e, path))?;
    refuse_other(&stat, path)?;
    Ok((std::fs::File::from(file), stat))
}

fn refuse_other(stat: &Stat, path: &RelPath) -> Result<()> {
    let refusal = match FileKind::of(stat) {
        FileKind::File => return Ok(()),
        FileKind::Directory => Refusal::new(Code::BadInput, "it is a directory").reason("is_directory"),
        FileKind::Symlink => {
            Refusal::new(Code::PathEscapesRoot, "a link stands where none may").reason("link_circle")
        }
        FileKind::Special => {
            let why = "it is a device, a FIFO or a socket";
            Refusal::new(Code::PathEscapesRoot, why).reason("special_file")
        }
    };
    Err(refusal.name(path.to_string()).into())
}

/// Names what went wrong while a directory was listed.
#[derive(Debug)]
pub(crate) enum ListFailure {
    /// The system refused.
    System(Errno),
    /// There are more entries than the bound.
    TooMany(usize),
}

impl ListFailure {
    /// Makes the error of a named directory.
    pub(crate) fn named(self, path: &RelPath) -> Error {
        match self {
            Self::System(errno) => failed(errno, path),
            Self::TooMany(cap) => Refusal::new(Code::TooLarge, format!("it holds more than {cap} entries"))
                .name(path.to_string())
                .into(),
        }
    }
}

/// Reads the names of a directory without `.` and `..`, in no order.
pub(crate) fn entries(
    dir: &OwnedFd,
    cap: usize,
) -> std::result::Result<Vec<(Vec<u8>, FileKind)>, ListFailure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened =
        rustix::fs::openat(dir, ".", flags, rustix::fs::Mode::empty()).map_err(ListFailure::System)?;
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut stream = rustix::fs::RawDir::new(opened, buffer.spare_capacity_mut());
    let mut all = Vec::new();
    while let Some(entry) = stream.next() {
        let entry = entry.map_err(ListFailure::System)?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if all.len() >= cap {
            return Err(ListFailure::TooMany(cap));
        }
        all.push((name.to_vec(), FileKind::of_type(entry.file_type())));
    }
    Ok(all)
}
