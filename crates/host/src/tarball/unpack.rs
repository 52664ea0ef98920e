//! Unpacking: one strict pass that digests, creates, and refuses whatever is ambiguous, leaving nothing.

use crate::error::{Error, Result};
use crate::files::syncable;
use crate::root::Root;
use crate::tarball::header::{Extended, Header, Type, decode, extend, extended, extended_size};
use crate::tarball::{BLOCK, refused};
use crate::volume::reaper;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use semel_core::digest::Hasher;
use semel_core::manifest::{Entry, FileMode, Manifest, check_entries, check_name};
use semel_core::{Code, Refusal, RelPath};
use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// The most zero bytes that may follow the end: the record size of other writers.
const MOST_PADDING: u64 = 10_240;

/// Bounds what is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Files, links and directories.
    pub entries: usize,
    /// The length of the archive, in bytes.
    pub archive_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 200_000,
            archive_bytes: 4 << 30,
        }
    }
}

/// Unpacks an archive into an empty root, and lists what it held.
///
/// # Errors
/// `proposal_refused` with a reason for whatever is hostile, ambiguous or past a limit; `precondition_failed` where
/// the root is not empty; `io_failed`. On every error the root is empty again.
///
/// # Limits
/// Those of [`Limits`] and of [`RelPath`]: 4,096 bytes, 255 a component, 64 components.
pub fn unpack(reader: &mut dyn Read, limits: Limits, into: &Root) -> Result<Manifest> {
    let top = syncable(into.handle())?;
    let held = crate::files::read::entries(&top, 1).map_or(1, |names| names.len());
    if held != 0 {
        return Err(Refusal::new(
            Code::PreconditionFailed,
            "the directory to unpack into is not empty",
        )
        .reason("not_empty")
        .into());
    }
    let mut unpacking = Unpacking {
        input: Input {
            reader,
            hasher: Hasher::new(),
            read: 0,
            limit: limits.archive_bytes,
        },
        limits,
        top: &top,
        at: Vec::new(),
        entries: Vec::new(),
        directories: HashSet::new(),
    };
    unpacking.all().map_err(|error| match reaper::empty(&top) {
        Ok(reaped) if reaped.kept.is_empty() => error,
        Ok(_) => Error::io("clear", "what was unpacked", Errno::NOTEMPTY),
        Err(worse) => worse,
    })
}

struct Unpacking<'a> {
    input: Input<'a>,
    limits: Limits,
    top: &'a OwnedFd,
    /// The directory of the last entry, open with all directories above it.
    at: Vec<(Vec<u8>, OwnedFd)>,
    entries: Vec<Entry>,
    directories: HashSet<RelPath>,
}

impl Unpacking<'_> {
    fn all(&mut self) -> Result<Manifest> {
        while let Some(header) = self.next()? {
            self.entry(header)?;
            if self.entries.len() + self.directories.len() > self.limits.entries {
                let why = format!("there are more than {} entries", self.limits.entries);
                return Err(refused("entries", why).into());
            }
        }
        self.input.only_zeroes()?;
        self.no_empty_directory()?;
        self.entries.sort_by(|a, b| a.path().cmp(b.path()));
        check_entries(&self.entries)?;
        // Links last, and only after all of them were found to stay inside: nothing was created through one.
        self.links()?;
        Ok(Manifest {
            version: Manifest::VERSION,
            archive_sha256: std::mem::take(&mut self.input.hasher).finish(),
            archive_size: self.input.read,
            tree: None,
            entries: std::mem::take(&mut self.entries),
            left_out: Vec::new(),
        })
    }

    /// Reads the headers of the next entry; `None` at the end marker.
    fn next(&mut self) -> Result<Option<Header>> {
        let mut block = [0; BLOCK];
        self.input.fill(&mut block)?;
        if block == [0; BLOCK] {
            self.input.fill(&mut block)?;
            if block != [0; BLOCK] {
                return Err(refused("end", "one zero block stands where two must").into());
            }
            return Ok(None);
        }
        let mut header = decode(&block)?;
        if header.kind != Type::Pax {
            return Ok(Some(header));
        }
        let size = extended_size(&header)?;
        let mut body = vec![0; size.next_multiple_of(BLOCK)];
        self.input.fill(&mut body)?;
        let (body, padding) = body.split_at(size);
        if padding.iter().any(|b| *b != 0) {
            return Err(refused("padding", "the padding of an extended header is not zero").into());
        }
        let words: Extended = extended(body)?;
        self.input.fill(&mut block)?;
        header = decode(&block)?;
        if header.kind == Type::Pax {
            return Err(refused("extended_twice", "an entry has two extended headers").into());
        }
        extend(&mut header, words)?;
        Ok(Some(header))
    }

    fn entry(&mut self, header: Header) -> Result<()> {
        let path = path_of(&header)?;
        match header.kind {
            Type::Directory => {
                self.open_directory(&path)?;
                if !self.directories.insert(path.clone()) {
                    return Err(refused("duplicate", "a name comes twice")
                        .name(path.to_string())
                        .into());
                }
            }
            Type::Symlink => {
                let target = String::from_utf8(header.link).map_err(|_| {
                    refused("name_encoding", "a link's target is not UTF-8").name(path.to_string())
                })?;
                self.entries.push(Entry::Symlink { path, target });
            }
            Type::File => self.file(path, &header)?,
            // Headers of this type were consumed with the entry that they extend.
            Type::Pax => return Err(refused("extended_twice", "an extended header stands alone").into()),
        }
        Ok(())
    }

    fn file(&mut self, path: RelPath, header: &Header) -> Result<()> {
        let mode = FileMode::of(header.mode);
        let Some((parent, name)) = path.split_last() else {
            return Err(refused("root", "an entry names the root itself").into());
        };
        self.open_directory(&parent)?;
        let dir = self.at.last().map_or(self.top, |(_, dir)| dir);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let bits = Mode::from_raw_mode(mode.bits());
        let file = rustix::fs::openat(dir, name, flags, bits).map_err(|errno| match errno {
            Errno::EXIST => refused("duplicate", "a name comes twice")
                .name(path.to_string())
                .into(),
            _ => Error::io("create", path.to_string(), errno),
        })?;
        rustix::fs::fchmod(&file, bits).map_err(|e| Error::io("set the mode of", path.to_string(), e))?;
        let sha256 = self.input.copy(header.size, &mut file.into(), &path)?;
        self.entries.push(Entry::File {
            path,
            mode,
            size: header.size,
            sha256,
        });
        Ok(())
    }

    /// Makes a directory the current one, creating what is missing on the way; follows nothing.
    fn open_directory(&mut self, path: &RelPath) -> Result<()> {
        let parts: Vec<&[u8]> = path.components().collect();
        let same = self
            .at
            .iter()
            .zip(&parts)
            .take_while(|((a, _), b)| a == *b)
            .count();
        self.at.truncate(same);
        for part in parts.into_iter().skip(same) {
            let dir = self.at.last().map_or(self.top.as_fd(), |(_, dir)| dir.as_fd());
            let next = enter(dir, part).map_err(|errno| match errno {
                Errno::NOTDIR | Errno::LOOP => {
                    let why = "an entry lies beneath something that is not a directory";
                    refused("parent_not_directory", why).name(path.to_string()).into()
                }
                _ => Error::io("make", path.to_string(), errno),
            })?;
            self.at.push((part.to_vec(), next));
        }
        Ok(())
    }

    fn no_empty_directory(&self) -> Result<()> {
        let mut needed: HashSet<RelPath> = HashSet::new();
        for entry in &self.entries {
            let mut path = entry.path().clone();
            while let Some((parent, _)) = path.split_last() {
                path = parent.clone();
                if !needed.insert(parent) {
                    break;
                }
            }
        }
        match self
            .directories
            .iter()
            .filter(|path| !needed.contains(*path))
            .min()
        {
            None => Ok(()),
            Some(path) => {
                let why = "a directory without entries cannot be held by a tree";
                Err(refused("empty_directory", why).name(path.to_string()).into())
            }
        }
    }

    fn links(&mut self) -> Result<()> {
        let links: Vec<(RelPath, String)> = self
            .entries
            .iter()
            .filter_map(|entry| match entry {
                Entry::Symlink { path, target } => Some((path.clone(), target.clone())),
                Entry::File { .. } => None,
            })
            .collect();
        for (path, target) in links {
            let Some((parent, name)) = path.split_last() else {
                continue;
            };
            self.open_directory(&parent)?;
            let dir = self.at.last().map_or(self.top, |(_, dir)| dir);
            rustix::fs::symlinkat(target.as_str(), dir, name).map_err(|errno| match errno {
                Errno::EXIST => refused("duplicate", "a name comes twice")
                    .name(path.to_string())
                    .into(),
                _ => Error::io("link", path.to_string(), errno),
            })?;
        }
        Ok(())
    }
}

fn enter(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            let mode = Mode::from_raw_mode(0o755);
            rustix::fs::mkdirat(dir, name, mode)?;
            rustix::fs::openat(dir, name, flags, Mode::empty())
        }
        found => found,
    }
}

/// Takes the path of an entry as it is written; whatever would have to be normalised is refused.
fn path_of(header: &Header) -> Result<RelPath> {
    let name = match header.kind {
        Type::Directory => header.name.strip_suffix(b"/").unwrap_or(&header.name),
        Type::File | Type::Symlink | Type::Pax => &header.name,
    };
    let path = RelPath::parse(name).map_err(|refusal| {
        let reason = match refusal.code {
            Code::PathEscapesRoot => "path_escapes",
            _ => "path",
        };
        refused(reason, refusal.why).names(refusal.names)
    })?;
    if path.as_bytes() != name || path.is_root() {
        return Err(refused("path", "a path is not written in its normal form")
            .name(path.to_string())
            .into());
    }
    check_name(&path)?;
    Ok(path)
}

struct Input<'a> {
    reader: &'a mut dyn Read,
    hasher: Hasher,
    read: u64,
    limit: u64,
}

impl Input<'_> {
    /// Reads exactly a buffer; an archive that ends before is refused.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.read += buffer.len() as u64;
        if self.read > self.limit {
            return Err(self.too_long());
        }
        self.reader.read_exact(buffer).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => refused("truncated", "the archive ends before its end marker").into(),
            _ => Error::io("read", "a proposal", e),
        })?;
        self.hasher.update(buffer);
        Ok(())
    }

    fn too_long(&self) -> Error {
        refused(
            "archive_bytes",
            format!("the archive is longer than {} bytes", self.limit),
        )
        .into()
    }

    /// Copies the content of one file and checks its padding.
    fn copy(&mut self, size: u64, file: &mut std::fs::File, path: &RelPath) -> Result<semel_core::Sha256> {
        if size > self.limit.saturating_sub(self.read) {
            return Err(self.too_long());
        }
        let (mut hasher, mut left) = (Hasher::new(), size);
        let room = usize::try_from(size.clamp(BLOCK as u64, 128 << 10)).unwrap_or(BLOCK);
        let mut buffer = vec![0; room];
        while left > 0 {
            let n = usize::try_from(left).map_or(room, |left| left.min(room));
            self.fill(&mut buffer[..n])?;
            hasher.update(&buffer[..n]);
            file.write_all(&buffer[..n])
                .map_err(|e| Error::io("write", path.to_string(), e))?;
            left -= n as u64;
        }
        let padding = usize::try_from(size.next_multiple_of(BLOCK as u64) - size).unwrap_or_default();
        let mut rest = [0; BLOCK];
        self.fill(&mut rest[..padding])?;
        if rest[..padding].iter().any(|b| *b != 0) {
            let why = "the padding of a file is not zero";
            return Err(refused("padding", why).name(path.to_string()).into());
        }
        Ok(hasher.finish())
    }

    /// Reads to the end of the input, where nothing but a bounded number of zero bytes may stand.
    fn only_zeroes(&mut self) -> Result<()> {
        let (mut buffer, mut seen) = ([0; 4096], 0_u64);
        loop {
            let n = match self.reader.read(&mut buffer) {
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(Error::io("read", "a proposal", e)),
            };
            if n == 0 {
                return Ok(());
            }
            seen += n as u64;
            if seen > MOST_PADDING || buffer[..n].iter().any(|b| *b != 0) {
                return Err(refused("trailing_data", "something follows the end of the archive").into());
            }
            self.read += n as u64;
            self.hasher.update(&buffer[..n]);
        }
    }
}
