//! Sealing: a tree becomes one archive whose bytes depend on its content alone.

use crate::error::{Error, Result};
use crate::files::digest_within;
use crate::files::read::{FileKind, ListFailure, entries};
use crate::root::{Root, failed};
use crate::tarball::digests::{Batch, Feed, Part, ROOM, beside};
use crate::tarball::header::{Header, Type, encode};
use crate::tarball::store::{Store, Written, archive_path};
use crate::tarball::{BLOCK, Limits, UNREAD, fill, nth_file, refused, tree_of_entries};
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use semel_core::git_tree::{ObjectFormat, ObjectId};
use semel_core::lfs::{self, Pointer};
use semel_core::manifest::{Entry, FileMode, LeftOut, Manifest, WhyLeftOut, check_entries};
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// How many names one directory may hold; most may be ignored ones.
const MOST_NAMES: usize = 2_000_000;

/// More than the headers of one entry take, with the longest path and the longest target.
const MOST_HEADERS: usize = 16 << 10;

/// Says what becomes of an entry of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It is sealed; of a directory, what is in it is asked for one by one.
    Take,
    /// It is a file that Git LFS keeps: its pointer is sealed, wherever the content lies in its place, as git would
    /// hold it. Content that is not this pointer's is refused: nothing says that anyone has it.
    TakePointer(Pointer),
    /// It is left out and listed; a directory with everything in it.
    LeaveOut(WhyLeftOut),
}

/// Holds a sealed proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Every entry, what was left out, and the archive's digest.
    pub manifest: Manifest,
    /// Its git tree, computed from the bytes that were packed.
    pub tree: ObjectId,
    /// Where the archive is.
    pub path: PathBuf,
}

/// Seals a tree into `<proposals>/sha256/<digest>.tar`, and computes its git tree from the same bytes.
///
/// `choose` is asked for every entry but what belongs to git, which is always left out, in the order of the
/// paths within a directory; its refusal ends the sealing. Empty directories are left out and listed. The tree
/// must be quiet: its processes have ended. Nothing but names, contents, executable bits and targets has a say: no time,
/// owner, umask, locale, order of a directory or filesystem.
///
/// # Shape
/// Plain tar: ustar headers, extended ones with `path`, `linkpath`, `size` where needed; entries sorted by the bytes
/// of their paths; modes 0644 and 0755; time, owner and group 0; two zero blocks. No directories.
///
/// # Errors
/// `proposal_refused` for more than the limits, and for devices, FIFOs, sockets, mounts, links that leave, and ambiguous
/// names; `tree_mismatch` where a file changed while it was read, for names and contents that git does not hold, and for
/// content in place of a pointer that does not name it;
/// `io_failed`. Nothing is left on a refusal.
///
/// # Durability
/// The archive and its name survive a power cut.
///
/// # Limits
/// Memory: that of the list of entries, and a few MiB.
pub fn pack(
    root: &Root,
    choose: &mut dyn FnMut(&RelPath, FileKind) -> std::result::Result<Choice, Refusal>,
    limits: Limits,
    format: ObjectFormat,
    proposals: &Path,
) -> Result<Sealed> {
    let mut found = Found {
        root,
        choose,
        limits,
        left_bytes: limits.archive_bytes.saturating_sub(2 * BLOCK as u64),
        take: Vec::new(),
        pointers: Pointers::new(),
        left_out: Vec::new(),
    };
    let top = root
        .step(root.handle(), b".", OFlags::PATH | OFlags::DIRECTORY)
        .map_err(|errno| sealing(failed(errno, &RelPath::root())))?;
    found.directory(&RelPath::root(), &top)?;
    let Found {
        mut take,
        pointers,
        left_out,
        ..
    } = found;
    take.sort_by(|a, b| a.path().cmp(b.path()));
    check_entries(&take)?;
    let store = Store::open(proposals)?;
    let part = store.part()?;
    let name = |(entries, _): &(Vec<Entry>, u64), n: usize| nth_file(entries, n);
    let written = beside(
        Some(format),
        |feed| write(root, take, &pointers, &part, feed),
        name,
    );
    let sealed = written.and_then(|((mut entries, archive_size), digests)| {
        fill(&mut entries, digests.contents)?;
        let tree = tree_of_entries(format, &entries, digests.blobs)?;
        store.publish(&part, &format!("{}.tar", digests.archive))?;
        Ok(Sealed {
            path: archive_path(proposals, &digests.archive),
            tree,
            manifest: Manifest {
                version: Manifest::VERSION,
                archive_sha256: digests.archive,
                archive_size,
                tree: Some(tree.to_string()),
                entries,
                left_out,
            },
        })
    });
    if sealed.is_err() {
        store.discard(&part);
    }
    sealed
}

struct Found<'a> {
    root: &'a Root,
    choose: &'a mut dyn FnMut(&RelPath, FileKind) -> std::result::Result<Choice, Refusal>,
    limits: Limits,
    left_bytes: u64,
    /// Digests and executable bits come when the files are read.
    take: Vec<Entry>,
    pointers: Pointers,
    left_out: Vec<LeftOut>,
}

/// The texts of pointers that are sealed in place of the contents that lie there.
type Pointers = BTreeMap<RelPath, Vec<u8>>;

impl Found<'_> {
    /// Counts before anything is written: a sparse file costs its maker nothing, and would fill the disk here.
    fn spend(&mut self, at: &RelPath, header: &Header) -> Result<()> {
        let padded = header.size.checked_next_multiple_of(BLOCK as u64);
        let bytes = padded.and_then(|size| size.checked_add(encode(header).len() as u64));
        match bytes.and_then(|bytes| self.left_bytes.checked_sub(bytes)) {
            Some(left) => {
                self.left_bytes = left;
                Ok(())
            }
            None => Err(refused(
                "archive_size",
                "the archive would be larger than a proposal may be",
            )
            .name(at.to_string())
            .into()),
        }
    }

    fn directory(&mut self, path: &RelPath, dir: &OwnedFd) -> Result<()> {
        let mut names = entries(dir, MOST_NAMES).map_err(|e| match e {
            ListFailure::TooMany(most) => {
                let why = format!("a directory holds more than {most} names");
                refused("entries", why).name(path.to_string()).into()
            }
            ListFailure::System(_) => e.named(path),
        })?;
        names.sort_by(|a, b| a.0.cmp(&b.0));
        if names.is_empty() && !path.is_root() {
            self.leave(path, WhyLeftOut::EmptyDirectory);
        }
        for (name, _) in names {
            let at = path.join(&name).map_err(|refusal| {
                let seen = path
                    .observed(&name)
                    .map_or_else(|_| path.to_string(), |at| at.to_string());
                refused("path", refusal.why).name(seen)
            })?;
            let stat = rustix::fs::statat(dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| sealing(failed(errno, &at)))?;
            let kind = FileKind::of(&stat);
            if at.in_git_dir() {
                self.leave(&at, WhyLeftOut::GitInternals);
                continue;
            }
            match ((self.choose)(&at, kind)?, kind) {
                (Choice::LeaveOut(why), _) => self.leave(&at, why),
                (Choice::Take | Choice::TakePointer(_), FileKind::Directory) => {
                    let flags = OFlags::PATH | OFlags::DIRECTORY;
                    let inner = self.root.step(dir.as_fd(), &name, flags);
                    let inner = inner.map_err(|errno| sealing(failed(errno, &at)))?;
                    self.directory(&at, &inner)?;
                }
                (Choice::Take | Choice::TakePointer(_), FileKind::Special) => {
                    let why = "a device, FIFO or socket cannot be sealed";
                    return Err(refused("special_file", why).name(at.to_string()).into());
                }
                (Choice::TakePointer(pointer), FileKind::File) => {
                    self.leaf(at.clone(), dir, &name, &stat)?;
                    if let Some(Entry::File { size, .. }) = self.take.last_mut()
                        && let Some(text) = in_place_of(self.root, dir, (&name, &at), pointer)?
                    {
                        *size = text.len() as u64;
                        self.pointers.insert(at, text);
                    }
                }
                (Choice::Take | Choice::TakePointer(_), FileKind::File | FileKind::Symlink) => {
                    self.leaf(at, dir, &name, &stat)?;
                }
            }
            if self.take.len() > self.limits.entries {
                let why = format!("there are more than {} entries", self.limits.entries);
                return Err(refused("entries", why).into());
            }
        }
        Ok(())
    }

    fn leaf(&mut self, path: RelPath, dir: &OwnedFd, name: &[u8], stat: &rustix::fs::Stat) -> Result<()> {
        let entry = if FileKind::of(stat) == FileKind::Symlink {
            let text = rustix::fs::readlinkat(dir, name, Vec::new()).map_err(|_| moved(&path))?;
            let target = String::from_utf8(text.into_bytes()).map_err(|_| {
                refused("name_encoding", "a link's target is not UTF-8").name(path.to_string())
            })?;
            Entry::Symlink { path, target }
        } else {
            Entry::File {
                path,
                mode: FileMode::of(stat.st_mode),
                size: u64::try_from(stat.st_size).unwrap_or(u64::MAX),
                sha256: UNREAD,
            }
        };
        self.spend(entry.path(), &header_of(&entry))?;
        self.take.push(entry);
        Ok(())
    }

    fn leave(&mut self, path: &RelPath, why: WhyLeftOut) {
        self.left_out.push(LeftOut {
            path: path.clone(),
            why,
        });
    }
}

/// Gives a pointer's text where its content lies in its place; `None` where a pointer lies there, this one or another.
///
/// # Errors
/// `tree_mismatch` for any other content.
fn in_place_of(
    root: &Root,
    dir: &OwnedFd,
    (name, at): (&[u8], &RelPath),
    pointer: Pointer,
) -> Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = root.step(dir.as_fd(), name, flags);
    let file = std::fs::File::from(file.map_err(|errno| sealing(failed(errno, at)))?);
    let unread = |e: std::io::Error| Error::io("read", at.to_string(), e);
    let mut begin = Vec::new();
    let most = lfs::LONGEST as u64;
    (&file).take(most).read_to_end(&mut begin).map_err(unread)?;
    if Pointer::parse(&begin).is_some() {
        return Ok(None);
    }
    let found = digest_within(&file, pointer.size, &|| false).map_err(unread)?;
    if found == Some(pointer.content) {
        return Ok(Some(pointer.text));
    }
    let why = "Git LFS keeps this file, and its content is not the one that its pointer names";
    Err(Refusal::new(Code::TreeMismatch, why)
        .reason("lfs_content")
        .name(at.to_string())
        .into())
}

fn header_of(entry: &Entry) -> Header {
    let name = entry.path().as_bytes().to_vec();
    match entry {
        Entry::File { mode, size, .. } => Header {
            kind: Type::File,
            name,
            link: Vec::new(),
            mode: mode.bits(),
            size: *size,
        },
        Entry::Symlink { target, .. } => Header {
            kind: Type::Symlink,
            name,
            link: target.clone().into_bytes(),
            mode: 0o777,
            size: 0,
        },
    }
}

/// Writes every entry; what the files' digests are is found out beside it.
fn write(
    root: &Root,
    mut entries: Vec<Entry>,
    pointers: &Pointers,
    part: &Written,
    feed: &Feed,
) -> Result<(Vec<Entry>, u64)> {
    let mut out = Output {
        part,
        feed,
        batch: feed.batch()?,
        size: 0,
    };
    let mut above = Above::new(root);
    for entry in &mut entries {
        out.room_for_headers()?;
        match (&*entry, pointers.get(entry.path())) {
            (Entry::Symlink { .. }, _) => out.batch.bytes.extend_from_slice(&encode(&header_of(entry))),
            (Entry::File { .. }, Some(text)) => out.whole(&header_of(entry), text),
            (Entry::File { .. }, None) => {
                let (dir, name) = above.of(entry.path())?;
                let file = root.step(dir, name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
                let file = file.map_err(|errno| sealing(failed(errno, entry.path())))?;
                write_file(entry, &file, &mut out)?;
            }
        }
    }
    out.batch.bytes.extend_from_slice(&[0; 2 * BLOCK]);
    let size = out.end()?;
    Ok((entries, size))
}

fn write_file(entry: &mut Entry, file: &OwnedFd, out: &mut Output<'_>) -> Result<()> {
    let header = header_of(entry);
    let Entry::File { path, mode, size, .. } = entry else {
        return Err(Refusal::new(Code::Internal, "a link has no content").into());
    };
    let examine = || rustix::fs::fstat(file).map_err(|e| Error::io("examine", path.to_string(), e));
    let stat = examine()?;
    if FileKind::of(&stat) != FileKind::File || u64::try_from(stat.st_size) != Ok(*size) {
        return Err(moved(path));
    }
    *mode = FileMode::of(stat.st_mode);
    out.batch.bytes.extend_from_slice(&encode(&Header {
        mode: mode.bits(),
        ..header
    }));
    let (mut begins, mut left) = (Some(*size), *size);
    loop {
        let bytes = &mut out.batch.bytes;
        let from = bytes.len();
        let room = ROOM.saturating_sub(from);
        let room = usize::try_from(left).map_or(room, |left| left.min(room));
        bytes.resize(from + room, 0);
        let mut at = from;
        while at < from + room {
            match rustix::io::read(file, &mut bytes[at..from + room]) {
                Ok(0) => return Err(moved(path)),
                Ok(n) => at += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::io("read", path.to_string(), e)),
            }
        }
        left -= room as u64;
        out.batch.parts.push(Part {
            begins: begins.take(),
            at: from..at,
        });
        if left == 0 {
            break;
        }
        out.turn()?;
    }
    let end = examine()?;
    let seen = |s: &rustix::fs::Stat| {
        (
            s.st_size,
            s.st_mtime,
            s.st_mtime_nsec,
            s.st_ctime,
            s.st_ctime_nsec,
        )
    };
    if seen(&end) != seen(&stat) {
        return Err(moved(path));
    }
    let padding = size.next_multiple_of(BLOCK as u64) - *size;
    let padding = usize::try_from(padding).unwrap_or_default();
    out.batch.bytes.extend_from_slice(&[0; BLOCK][..padding]);
    Ok(())
}

/// Opens the directories of entries; neighbours share them. No link is followed, no mount entered.
pub(super) struct Above<'a> {
    root: &'a Root,
    open: Vec<(Vec<u8>, OwnedFd)>,
}

impl<'a> Above<'a> {
    pub(super) fn new(root: &'a Root) -> Self {
        let open = Vec::new();
        Self { root, open }
    }

    /// Gives the open directory of an entry, and the entry's name in it.
    ///
    /// # Errors
    /// `proposal_refused`, or `tree_mismatch` where a directory is gone.
    pub(super) fn of<'p>(&mut self, path: &'p RelPath) -> Result<(BorrowedFd<'_>, &'p [u8])> {
        let bytes = path.as_bytes();
        let (parent, name) = match bytes.iter().rposition(|b| *b == b'/') {
            Some(at) => (&bytes[..at], &bytes[at + 1..]),
            None => (&bytes[..0], bytes),
        };
        let parts = || parent.split(|b| *b == b'/').filter(|part| !part.is_empty());
        let same = self.open.iter().zip(parts());
        let same = same.take_while(|((open, _), part)| open == part).count();
        self.open.truncate(same);
        for part in parts().skip(same) {
            let dir = self
                .open
                .last()
                .map_or(self.root.handle(), |(_, dir)| dir.as_fd());
            let next = self.root.step(dir, part, OFlags::PATH | OFlags::DIRECTORY);
            let next = next.map_err(|errno| sealing(failed(errno, path)))?;
            self.open.push((part.to_vec(), next));
        }
        Ok((
            self.open
                .last()
                .map_or(self.root.handle(), |(_, dir)| dir.as_fd()),
            name,
        ))
    }
}

/// Takes the bytes of an archive, batch by batch.
struct Output<'a> {
    part: &'a Written,
    feed: &'a Feed,
    batch: Batch,
    size: u64,
}

impl Output<'_> {
    fn room_for_headers(&mut self) -> Result<()> {
        if self.batch.bytes.len() + MOST_HEADERS > ROOM {
            self.turn()?;
        }
        Ok(())
    }

    /// Adds a file that is in memory; it is small.
    fn whole(&mut self, header: &Header, content: &[u8]) {
        let bytes = &mut self.batch.bytes;
        bytes.extend_from_slice(&encode(header));
        let from = bytes.len();
        bytes.extend_from_slice(content);
        let at = from..bytes.len();
        bytes.resize(from + content.len().next_multiple_of(BLOCK), 0);
        self.batch.parts.push(Part {
            begins: Some(content.len() as u64),
            at,
        });
    }

    fn turn(&mut self) -> Result<()> {
        self.write()?;
        let full = std::mem::replace(&mut self.batch, self.feed.batch()?);
        self.feed.give(full);
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        self.size += self.batch.bytes.len() as u64;
        self.part.write(&self.batch.bytes)
    }

    fn end(mut self) -> Result<u64> {
        self.write()?;
        self.feed.give(self.batch);
        Ok(self.size)
    }
}

/// What the root handle refuses while a tree is sealed, the proposal is refused for.
fn sealing(error: Error) -> Error {
    match error {
        Error::Refused(mut refusal) => {
            refusal.code = match refusal.code {
                Code::NotFound => Code::TreeMismatch,
                _ => Code::ProposalRefused,
            };
            Error::Refused(refusal)
        }
        other => other,
    }
}

fn moved(path: &RelPath) -> Error {
    Refusal::new(Code::TreeMismatch, "the tree changed while it was sealed")
        .reason("changed_meanwhile")
        .name(path.to_string())
        .into()
}
