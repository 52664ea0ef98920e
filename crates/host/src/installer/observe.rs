//! Observes an installed tree: every entry, its mode and content, and nothing behind a link.
//!
//! It walks by handles alone, so that no link and no rename can lead it elsewhere; a mount below the root is
//! refused. One thread walks, and the others read and digest what it comes across, each file once. It judges nothing
//! but that: what belongs and what does not is core's business.

use crate::error::{Error, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use semel_core::digest::Hasher;
use semel_core::install::{Fact, Kind, Observed, wants_text};
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

const MOST_ENTRIES: usize = 2_000_000;
const CHUNK: usize = 256 << 10;
/// How many files of a directory are handed over at once, and how many batches may wait.
const BATCH: usize = 32;
const WAITING: usize = 64;
const MOST_THREADS: usize = 8;

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
    wanted: &(dyn Fn(&RelPath) -> Option<u64> + Sync),
) -> Result<(Observed, Vec<String>)> {
    observe_part(root, kind, place, wanted, &|_| Regard::Keep)
}

/// Says what becomes of an entry that the walker comes across.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Regard {
    /// It is observed.
    Keep,
    /// It is a directory that is none of the observation itself, though something in it may be.
    Through,
    /// It is not looked at.
    Skip,
}

/// Observes as [`observe_with_links`] does, the entries that are regarded so.
///
/// # Errors
/// As [`observe_with_links`].
pub(super) fn observe_part(
    root: &Path,
    kind: Kind,
    place: &RelPath,
    wanted: &(dyn Fn(&RelPath) -> Option<u64> + Sync),
    regard: &(dyn Fn(&RelPath) -> Regard + Sync),
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
    let look = Look { root, wanted, regard };
    let mount = mount_of(fd.as_fd(), c"", AtFlags::EMPTY_PATH)
        .map_err(|e| look.io("look at", &RelPath::root(), e))?
        .mount;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (queue, batches) = sync_channel::<Batch>(WAITING);
    let batches = Mutex::new(batches);
    let mut walk = Walk {
        look: &look,
        mount,
        queue,
        count: 0,
        entries: BTreeMap::new(),
        linked: Vec::new(),
    };
    let (walked, read) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads.clamp(1, MOST_THREADS))
            .map(|_| scope.spawn(|| look.read(&batches)))
            .collect();
        let walked = walk.directory(&Arc::new(fd), &RelPath::root());
        let (entries, linked) = (walk.entries, walk.linked);
        // The readers end with the last batch.
        drop(walk.queue);
        let read: Vec<Result<Vec<Read>>> = readers
            .into_iter()
            .map(|reader| reader.join().unwrap_or_else(|_| Err(broken())))
            .collect();
        (walked.map(|()| (entries, linked)), read)
    });
    let (mut observed, linked) = walked.map(|(entries, linked)| {
        let observed = Observed {
            root: place.clone(),
            kind,
            entries,
            texts: BTreeMap::new(),
        };
        (observed, linked)
    })?;
    for read in read {
        for Read { path, fact, text } in read? {
            if let Some(text) = text {
                observed.texts.insert(path.clone(), text);
            }
            observed.entries.insert(path, fact);
        }
    }
    Ok((observed, linked))
}

fn broken() -> Error {
    Refusal::new(
        Code::Internal,
        "a thread that digests what is installed ended early",
    )
    .into()
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

/// Files of one directory, to be read.
struct Batch {
    directory: Arc<OwnedFd>,
    files: Vec<(CString, RelPath, Seen)>,
}

/// A file that was read.
struct Read {
    path: RelPath,
    fact: Fact,
    text: Option<Vec<u8>>,
}

/// What walker and readers share.
struct Look<'a> {
    root: &'a Path,
    wanted: &'a (dyn Fn(&RelPath) -> Option<u64> + Sync),
    regard: &'a (dyn Fn(&RelPath) -> Regard + Sync),
}

struct Walk<'a> {
    look: &'a Look<'a>,
    mount: u64,
    queue: SyncSender<Batch>,
    count: usize,
    entries: BTreeMap<RelPath, Fact>,
    linked: Vec<String>,
}

impl Walk<'_> {
    /// Depth is bounded by the components of a path, so the stack is too.
    fn directory(&mut self, fd: &Arc<OwnedFd>, path: &RelPath) -> Result<()> {
        let look = self.look;
        let listing = Dir::read_from(fd).map_err(|e| look.io("list", path, e))?;
        let mut files = Vec::new();
        for entry in listing {
            let entry = entry.map_err(|e| look.io("list", path, e))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let at = path.join(name.to_bytes())?;
            self.count += 1;
            if self.count > MOST_ENTRIES {
                return Err(
                    Refusal::new(Code::TooLarge, "more than two million entries are installed").into(),
                );
            }
            let regard = (look.regard)(&at);
            if regard == Regard::Skip {
                continue;
            }
            match self.entry(fd, name, &at)? {
                _ if regard == Regard::Through => {}
                Met::Fact(fact) => drop(self.entries.insert(at, fact)),
                Met::File(seen) => files.push((name.to_owned(), at, seen)),
            }
            if files.len() >= BATCH {
                self.send(fd, std::mem::take(&mut files))?;
            }
        }
        self.send(fd, files)
    }

    /// Hands files over to the readers; where all of them ended, one of them says why.
    fn send(&self, directory: &Arc<OwnedFd>, files: Vec<(CString, RelPath, Seen)>) -> Result<()> {
        if !files.is_empty() {
            let directory = directory.clone();
            self.queue.send(Batch { directory, files }).ok();
        }
        Ok(())
    }

    fn entry(&mut self, dir: &Arc<OwnedFd>, name: &CStr, path: &RelPath) -> Result<Met> {
        let look = self.look;
        let seen = mount_of(dir.as_fd(), name, AtFlags::empty()).map_err(|e| look.io("look at", path, e))?;
        if seen.mount != self.mount {
            let why = "a mount lies beneath the installed root";
            return Err(Refusal::new(Code::RecordOutsideRoot, why)
                .reason("mount")
                .name(path.to_string())
                .into());
        }
        Ok(match seen.kind() {
            FileType::Symlink => {
                let target =
                    rustix::fs::readlinkat(dir, name, Vec::new()).map_err(|e| look.io("read", path, e))?;
                Met::Fact(Fact::Symlink {
                    target: target.into_bytes(),
                })
            }
            FileType::Directory => {
                let fd = look.open(dir.as_fd(), name, path, &seen, OFlags::DIRECTORY)?;
                self.directory(&Arc::new(fd), path)?;
                Met::Fact(Fact::Directory {
                    mode: seen.permissions(),
                })
            }
            FileType::RegularFile => {
                if seen.links != 1 {
                    self.linked.push(path.to_string());
                }
                Met::File(seen)
            }
            _ => Met::Fact(Fact::Other),
        })
    }
}

/// What the walker came across.
enum Met {
    Fact(Fact),
    File(Seen),
}

impl Look<'_> {
    /// Reads batches until there are no more.
    fn read(&self, batches: &Mutex<Receiver<Batch>>) -> Result<Vec<Read>> {
        let mut buffer = vec![0; CHUNK];
        let mut read = Vec::new();
        let mut failed = None;
        loop {
            let next = batches.lock().map_err(|_| broken())?.recv();
            let Ok(batch) = next else { break };
            // After a failure the rest is taken and left, so that the walker never waits for room.
            if failed.is_some() {
                continue;
            }
            for (name, path, seen) in batch.files {
                let file = self
                    .open(batch.directory.as_fd(), &name, &path, &seen, OFlags::NONBLOCK)
                    .and_then(|fd| self.file(&fd, path, &seen, &mut buffer));
                match file {
                    Ok(file) => read.push(file),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
        }
        failed.map_or(Ok(read), Err)
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

    fn file(&self, fd: &OwnedFd, path: RelPath, seen: &Seen, buffer: &mut [u8]) -> Result<Read> {
        let wanted = (self.wanted)(&path);
        let keep = usize::try_from(wanted.unwrap_or(0)).unwrap_or(usize::MAX);
        let mut hasher = Hasher::new();
        let mut size = 0_u64;
        let mut text = Vec::new();
        loop {
            let count = match rustix::io::read(fd, &mut buffer[..]) {
                Ok(0) => break,
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(e) => return Err(self.io("read", &path, e)),
            };
            hasher.update(&buffer[..count]);
            size += count as u64;
            if size > seen.size {
                return Err(moving(&path));
            }
            let room = keep.saturating_sub(text.len()).min(count);
            text.extend_from_slice(&buffer[..room]);
        }
        if size != seen.size {
            return Err(moving(&path));
        }
        let fact = Fact::File {
            mode: seen.permissions(),
            size,
            sha256: hasher.finish(),
        };
        Ok(Read {
            path,
            fact,
            text: wanted.map(|_| text),
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
