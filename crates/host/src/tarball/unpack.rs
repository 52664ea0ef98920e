//! Unpacking: one strict pass that digests, creates, and refuses whatever is ambiguous, leaving nothing.

use crate::error::{Error, Result};
use crate::files::syncable;
use crate::root::Root;
use crate::tarball::digests::{Batch, Feed, Part, ROOM, beside};
use crate::tarball::header::{Extended, Header, Type, decode, extend, extended, extended_size};
use crate::tarball::{BLOCK, Limits, UNREAD, fill, nth_file, refused, tree_of_entries};
use crate::volume::reaper;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use semel_core::git_tree::ObjectFormat;
use semel_core::manifest::{Entry, FileMode, Manifest, check_entries, check_name};
use semel_core::{Code, Refusal, RelPath};
use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// The most zero bytes that may follow the end: the record size of other writers.
const MOST_PADDING: u64 = 10_240;

/// Unpacks an archive into an empty root, and lists what it held; its git tree, too, where a format is given.
///
/// # Errors
/// `proposal_refused` with a reason for whatever is hostile, ambiguous or past a limit; `tree_mismatch` for names and
/// contents that git does not hold; `precondition_failed` where the root is not empty; `io_failed`. On every error the
/// root is empty again.
///
/// # Limits
/// Those of [`Limits`] and of [`RelPath`]: 4,096 bytes, 255 a component, 64 components. Memory: that of the list of
/// entries, and a few MiB.
pub fn unpack(
    reader: &mut dyn Read,
    limits: Limits,
    into: &Root,
    tree: Option<ObjectFormat>,
) -> Result<Manifest> {
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
    let done = beside(
        tree,
        |feed| all(reader, feed, limits, &top),
        |unpacked, n| nth_file(&unpacked.entries, n),
    );
    let manifest = done.and_then(|(unpacked, digests)| {
        let Unpacked { mut entries, size } = unpacked;
        fill(&mut entries, digests.contents)?;
        let tree = tree.map(|format| tree_of_entries(format, &entries, digests.blobs));
        let tree = tree.transpose()?.map(|tree| tree.to_string());
        entries.sort_by(|a, b| a.path().cmp(b.path()));
        Ok(Manifest {
            version: Manifest::VERSION,
            archive_sha256: digests.archive,
            archive_size: size,
            tree,
            entries,
            left_out: Vec::new(),
        })
    });
    manifest.map_err(|error| emptied(&top).err().unwrap_or(error))
}

/// Empties a root into which was unpacked what is not to stay.
///
/// # Errors
/// `io_failed` where something stays.
pub fn clear(root: &Root) -> Result<()> {
    emptied(&syncable(root.handle())?)
}

fn emptied(top: &OwnedFd) -> Result<()> {
    if reaper::empty(top)?.kept.is_empty() {
        Ok(())
    } else {
        Err(Error::io("clear", "what was unpacked", Errno::NOTEMPTY))
    }
}

/// Is what an archive held, in its order; the digests of the files are still to come.
struct Unpacked {
    entries: Vec<Entry>,
    size: u64,
}

fn all(reader: &mut dyn Read, feed: &Feed, limits: Limits, top: &OwnedFd) -> Result<Unpacked> {
    let mut unpacking = Unpacking {
        input: Input {
            reader,
            feed,
            batch: feed.batch()?,
            at: 0,
            read: 0,
            limit: limits.archive_bytes,
        },
        limits,
        top,
        at: Vec::new(),
        entries: Vec::new(),
        directories: HashSet::new(),
    };
    unpacking.all()?;
    let Unpacking { input, entries, .. } = unpacking;
    feed.give(input.batch);
    Ok(Unpacked {
        entries,
        size: input.read,
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
    fn all(&mut self) -> Result<()> {
        while let Some(header) = self.next()? {
            self.entry(header)?;
            if self.entries.len() + self.directories.len() > self.limits.entries {
                let why = format!("there are more than {} entries", self.limits.entries);
                return Err(refused("entries", why).into());
            }
        }
        self.input.only_zeroes()?;
        self.no_empty_directory()?;
        check_entries(&self.entries)?;
        // Links last, and only after all of them were found to stay inside: nothing was created through one.
        self.links()
    }

    /// Reads the headers of the next entry; `None` at the end marker.
    fn next(&mut self) -> Result<Option<Header>> {
        let block = self.input.block()?;
        if block == [0; BLOCK] {
            if self.input.block()? != [0; BLOCK] {
                return Err(refused("end", "one zero block stands where two must").into());
            }
            return Ok(None);
        }
        let mut header = decode(&block)?;
        if header.kind != Type::Pax {
            return Ok(Some(header));
        }
        let size = extended_size(&header)?;
        let mut body = Vec::with_capacity(size.next_multiple_of(BLOCK));
        while body.len() < size {
            body.extend_from_slice(&self.input.block()?);
        }
        let (body, padding) = body.split_at(size);
        if padding.iter().any(|b| *b != 0) {
            return Err(refused("padding", "the padding of an extended header is not zero").into());
        }
        let words: Extended = extended(body)?;
        header = decode(&self.input.block()?)?;
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
        self.input.copy(header.size, &mut file.into(), &path)?;
        self.entries.push(Entry::File {
            path,
            mode,
            size: header.size,
            sha256: UNREAD,
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
            // Whatever the umask, or a default list of access rights, would have it be.
            rustix::fs::chmodat(dir, name, mode, AtFlags::empty())?;
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

/// Is the archive, batch by batch; all batches but the last are full, so that no block lies in two of them.
struct Input<'a> {
    reader: &'a mut dyn Read,
    feed: &'a Feed,
    batch: Batch,
    /// Where in the batch the next byte is.
    at: usize,
    /// How much was read, the whole batch included.
    read: u64,
    limit: u64,
}

impl Input<'_> {
    /// Reads on where the batch is used up; says how many bytes of it are left, none at the end of the archive.
    fn more(&mut self) -> Result<usize> {
        if self.at < self.batch.bytes.len() {
            return Ok(self.batch.bytes.len() - self.at);
        }
        let used = std::mem::replace(&mut self.batch, self.feed.batch()?);
        self.feed.give(used);
        self.at = 0;
        let (bytes, mut end) = (&mut self.batch.bytes, 0);
        bytes.resize(ROOM, 0);
        while end < ROOM {
            match self.reader.read(&mut bytes[end..]) {
                Ok(0) => break,
                Ok(n) => end += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("read", "a proposal", e)),
            }
        }
        bytes.truncate(end);
        self.read += end as u64;
        if self.read > self.limit {
            return Err(self.too_long());
        }
        Ok(end)
    }

    /// Takes the next block; an archive that ends before is refused.
    fn block(&mut self) -> Result<[u8; BLOCK]> {
        self.more()?;
        let block = self.batch.bytes[self.at..].first_chunk::<BLOCK>();
        let block = *block.ok_or_else(truncated)?;
        self.at += BLOCK;
        Ok(block)
    }

    fn too_long(&self) -> Error {
        refused(
            "archive_bytes",
            format!("the archive is longer than {} bytes", self.limit),
        )
        .into()
    }

    /// Copies the content of one file and checks its padding.
    fn copy(&mut self, size: u64, file: &mut std::fs::File, path: &RelPath) -> Result<()> {
        let here = self.read - (self.batch.bytes.len() - self.at) as u64;
        if size > self.limit.saturating_sub(here) {
            return Err(self.too_long());
        }
        let (mut begins, mut left) = (Some(size), size);
        loop {
            let there = if left == 0 { 0 } else { self.more()? };
            let n = usize::try_from(left).map_or(there, |left| left.min(there));
            if n == 0 && left > 0 {
                return Err(truncated().into());
            }
            let at = self.at..self.at + n;
            file.write_all(&self.batch.bytes[at.clone()])
                .map_err(|e| Error::io("write", path.to_string(), e))?;
            self.at = at.end;
            self.batch.parts.push(Part {
                begins: begins.take(),
                at,
            });
            left -= n as u64;
            if left == 0 {
                break;
            }
        }
        let padding = usize::try_from(size.next_multiple_of(BLOCK as u64) - size).unwrap_or_default();
        let padding = self.batch.bytes.get(self.at..self.at + padding);
        let padding = padding.ok_or_else(truncated)?;
        if padding.iter().any(|b| *b != 0) {
            let why = "the padding of a file is not zero";
            return Err(refused("padding", why).name(path.to_string()).into());
        }
        self.at += padding.len();
        Ok(())
    }

    /// Reads to the end of the input, where nothing but a bounded number of zero blocks may stand.
    fn only_zeroes(&mut self) -> Result<()> {
        let mut seen = 0;
        loop {
            let there = self.more()?;
            if there == 0 {
                break;
            }
            seen += there as u64;
            if seen > MOST_PADDING || self.batch.bytes[self.at..].iter().any(|b| *b != 0) {
                return Err(refused("trailing_data", "something follows the end of the archive").into());
            }
            self.at += there;
        }
        if self.read.is_multiple_of(BLOCK as u64) {
            Ok(())
        } else {
            Err(refused("trailing_data", "the archive ends within a block").into())
        }
    }
}

fn truncated() -> Refusal {
    refused("truncated", "the archive ends before its end marker")
}
