//! Salvage: a copy of what a volume holds, for a person, in a directory of theirs. The volume stays as it is.
//!
//! It follows no link, enters no mount and opens no device; what it cannot read, or an ordinary directory cannot hold, it
//! names and leaves out. It gives itself no permission: that would change the volume.

use super::{Kept, Volume};
use crate::clock;
use crate::error::{Error, Result};
use crate::files::{FileKind, list_directory, rename_ours, sync};
use crate::root::{LastLink, Root};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use semel_core::digest::to_hex;
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

/// How many entries that are left out are named.
const MOST_NAMED: usize = 1000;
/// How many entries of one directory are read.
const DIRECTORY: usize = 1_000_000;

/// Counts what was salvaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// Regular files.
    pub files: u64,
    /// Symbolic links, as they are written, wherever they lead.
    pub links: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// What was left out, and why.
    pub left_out: Vec<Kept>,
    /// How much more was left out than is named.
    pub more_left_out: u64,
}

impl Salvaged {
    /// Says whether everything was salvaged.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.left_out.is_empty()
    }

    fn leave(&mut self, path: &RelPath, name: &[u8], why: impl Into<String>) {
        if self.left_out.len() >= MOST_NAMED {
            self.more_left_out += 1;
            return;
        }
        let mut full = path.as_bytes().to_vec();
        if !path.is_root() {
            full.push(b'/');
        } else {
            full.clear();
        }
        full.extend_from_slice(name);
        self.left_out.push(Kept {
            path: shown(&full),
            why: why.into(),
        });
    }
}

/// Copies the tree of a volume into a new directory.
///
/// # Errors
/// `precondition_failed`, reason `exists`, where there is something of that name; `bad_input` for a path without a name or
/// a place; `io_failed` where the copy cannot be written.
///
/// # Durability
/// The directory has its name when all of it is on the disk. One that was cut off is left beside, as
/// `.NAME.partial-…`, and stands in nobody's way.
pub fn salvage(volume: &Volume, to: &Path) -> Result<Salvaged> {
    let fail = |e: Errno| Error::io("make", to, e);
    let bad =
        || Refusal::new(Code::BadInput, "not the path of a new directory").name(to.display().to_string());
    let (parent, name) = (to.parent().ok_or_else(bad)?, to.file_name().ok_or_else(bad)?);
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let beside = rustix::fs::openat(CWD, parent, flags, Mode::empty()).map_err(fail)?;
    let exists = || {
        Refusal::new(Code::PreconditionFailed, "there is something of that name")
            .reason("exists")
            .name(to.display().to_string())
    };
    match rustix::fs::statat(&beside, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => return Err(exists().into()),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(fail(errno)),
    }
    let mut partial = b".".to_vec();
    partial.extend_from_slice(name.as_encoded_bytes());
    partial.extend_from_slice(format!(".partial-{}", to_hex(&clock::random::<6>()?)).as_bytes());
    rustix::fs::mkdirat(&beside, partial.as_slice(), Mode::RWXU).map_err(fail)?;
    let into = rustix::fs::openat(
        &beside,
        partial.as_slice(),
        flags | OFlags::NOFOLLOW,
        Mode::empty(),
    )
    .map_err(fail)?;
    let salvaged = copy(
        volume.tree(),
        &Root::from_handle(into.try_clone().map_err(|e| Error::io("hold", to, e))?)?,
    )?;
    rustix::fs::syncfs(&into).map_err(fail)?;
    match rename_ours(
        (beside.as_fd(), &partial),
        (beside.as_fd(), name.as_encoded_bytes()),
    ) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(exists().into()),
        Err(errno) => return Err(fail(errno)),
    }
    sync(&beside, &parent.display().to_string())?;
    Ok(salvaged)
}

/// Copies directory after directory; each is opened from the top, so that no depth needs many descriptors.
fn copy(from: &Root, into: &Root) -> Result<Salvaged> {
    let mut done = Salvaged::default();
    let mut open = vec![RelPath::root()];
    while let Some(at) = open.pop() {
        let listed = match list_directory(from, &at, DIRECTORY) {
            Ok(listed) => listed,
            Err(error) => {
                done.leave(&at, b"", why(&error));
                continue;
            }
        };
        let (target, _) = into.directory(&at)?;
        for entry in listed {
            let path = match at.join(&entry.name) {
                Ok(path) => path,
                Err(refusal) => {
                    done.leave(&at, &entry.name, refusal.why);
                    continue;
                }
            };
            match entry.kind {
                FileKind::Directory => {
                    rustix::fs::mkdirat(&target, entry.name.as_slice(), Mode::RWXU)
                        .map_err(|e| Error::io("make", path.to_string(), e))?;
                    done.directories += 1;
                    open.push(path);
                }
                FileKind::File => match file(from, &path, &target, &entry.name)? {
                    Ok(bytes) => {
                        done.files += 1;
                        done.bytes += bytes;
                    }
                    Err(why) => done.leave(&at, &entry.name, why),
                },
                FileKind::Symlink => match link(from, &path, &target, &entry.name)? {
                    Ok(()) => done.links += 1,
                    Err(why) => done.leave(&at, &entry.name, why),
                },
                FileKind::Special => done.leave(&at, &entry.name, "a device, FIFO or socket"),
            }
        }
    }
    Ok(done)
}

fn why(error: &Error) -> String {
    match error {
        Error::Refused(refusal) => refusal.why.clone(),
        Error::Io { source, .. } | Error::Unproven { source, .. } => source.to_string(),
        Error::Git(_) => error.to_string(),
    }
}

/// Copies one file; what cannot be read is the inner error, what cannot be written the outer.
fn file(
    from: &Root,
    path: &RelPath,
    target: &OwnedFd,
    name: &[u8],
) -> Result<std::result::Result<u64, String>> {
    let place = match from.place(path, LastLink::Keep) {
        Ok(place) => place,
        Err(error) => return Ok(Err(why(&error))),
    };
    let reading = OFlags::RDONLY | OFlags::NONBLOCK;
    let source = match from.step(place.parent.as_fd(), &place.name, reading) {
        Ok(source) => File::from(source),
        Err(errno) => return Ok(Err(std::io::Error::from(errno).to_string())),
    };
    let facts = source
        .metadata()
        .map_err(|e| Error::io("examine", path.to_string(), e))?;
    if !facts.is_file() {
        return Ok(Err("it is no file any more".to_owned()));
    }
    let mode = Mode::from_raw_mode(std::os::unix::fs::MetadataExt::mode(&facts) & 0o777);
    let fail = |e: std::io::Error| Error::io("write", path.to_string(), e);
    let writing = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let copy =
        rustix::fs::openat(target, name, writing, Mode::RUSR | Mode::WUSR).map_err(|e| fail(e.into()))?;
    let mut copy = File::from(copy);
    let bytes = std::io::copy(&mut &source, &mut copy).map_err(fail)?;
    rustix::fs::fchmod(&copy, mode | Mode::RUSR | Mode::WUSR).map_err(|e| fail(e.into()))?;
    Ok(Ok(bytes))
}

fn link(
    from: &Root,
    path: &RelPath,
    target: &OwnedFd,
    name: &[u8],
) -> Result<std::result::Result<(), String>> {
    let text = from
        .place(path, LastLink::Keep)
        .map_err(|error| why(&error))
        .and_then(|place| {
            rustix::fs::readlinkat(&place.parent, place.name.as_slice(), Vec::new())
                .map_err(|errno| std::io::Error::from(errno).to_string())
        });
    match text {
        Ok(text) => rustix::fs::symlinkat(&text, target, name)
            .map(Ok)
            .map_err(|e| Error::io("link", path.to_string(), e)),
        Err(why) => Ok(Err(why)),
    }
}
