//! Sealing: a tree becomes one archive whose bytes depend on its content alone.

use crate::clock;
use crate::error::{Error, Result};
use crate::files::read::{FileKind, entries, open_regular};
use crate::root::{LastLink, Place, Root, failed};
use crate::tarball::header::{Header, Type, encode};
use crate::tarball::{BLOCK, refused};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use semel_core::digest::{Hasher, to_hex};
use semel_core::manifest::{Entry, FileMode, LeftOut, Manifest, WhyLeftOut, check_entries};
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::io::{Read as _, Write};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

/// How many entries one directory, and one proposal, may have.
const MOST_ENTRIES: usize = 200_000;

/// Says what becomes of an entry of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It is sealed; of a directory, what is in it is asked for one by one.
    Take,
    /// It is left out and listed; a directory with everything in it.
    LeaveOut(WhyLeftOut),
}

/// Holds a sealed proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Every entry, what was left out, and the archive's digest.
    pub manifest: Manifest,
    /// Where the archive is.
    pub path: PathBuf,
}

/// Gives the place of an archive under the directory of the proposals.
#[must_use]
pub fn archive_path(proposals: &Path, digest: &Sha256) -> PathBuf {
    proposals.join("sha256").join(format!("{digest}.tar"))
}

/// Seals a tree into `<proposals>/sha256/<digest>.tar`.
///
/// `choose` is asked for every entry but what belongs to git, which is always left out, in the order of the
/// paths within a directory; its refusal ends the sealing. Empty directories are left out and listed. The tree
/// must be quiet: its processes have ended.
///
/// # Shape
/// Plain tar: ustar headers, extended ones with `path`, `linkpath`, `size` where needed; entries sorted by the bytes
/// of their paths; modes 0644 and 0755; time, owner and group 0; two zero blocks. No directories.
///
/// # Errors
/// `proposal_refused` for more than `most_bytes` of content, and for devices, FIFOs, sockets, mounts, links that leave, and ambiguous names; `tree_mismatch`
/// where a file changed while it was read; `io_failed`. Nothing is left on a refusal.
///
/// # Durability
/// The archive and its name survive a power cut.
pub fn pack(
    root: &Root,
    choose: &mut dyn FnMut(&RelPath, FileKind) -> std::result::Result<Choice, Refusal>,
    most_bytes: u64,
    proposals: &Path,
) -> Result<Sealed> {
    let mut found = Found {
        root,
        choose,
        left_bytes: most_bytes,
        take: Vec::new(),
        left_out: Vec::new(),
    };
    found.directory(&RelPath::root())?;
    let Found {
        mut take, left_out, ..
    } = found;
    take.sort_by(|a, b| a.0.cmp(&b.0));
    let store = Store::open(proposals)?;
    let written = write(root, &take, &store);
    let (entries, archive_sha256, archive_size) = match written {
        Ok(written) => written,
        Err(error) => {
            store.discard();
            return Err(error);
        }
    };
    store.publish(&archive_sha256)?;
    Ok(Sealed {
        path: archive_path(proposals, &archive_sha256),
        manifest: Manifest {
            version: Manifest::VERSION,
            archive_sha256,
            archive_size,
            tree: None,
            entries,
            left_out,
        },
    })
}

struct Found<'a> {
    root: &'a Root,
    choose: &'a mut dyn FnMut(&RelPath, FileKind) -> std::result::Result<Choice, Refusal>,
    left_bytes: u64,
    take: Vec<(RelPath, FileKind)>,
    left_out: Vec<LeftOut>,
}

impl Found<'_> {
    /// Counts before anything is written: a sparse file costs its maker nothing, and would fill the disk here.
    fn spend(&mut self, at: &RelPath, bytes: u64) -> Result<()> {
        match self.left_bytes.checked_sub(bytes) {
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

    fn directory(&mut self, path: &RelPath) -> Result<()> {
        let (dir, _) = self.root.directory(path).map_err(sealing)?;
        let mut names = entries(&dir, MOST_ENTRIES).map_err(|e| e.named(path))?;
        names.sort_by(|a, b| a.0.cmp(&b.0));
        if names.is_empty() && !path.is_root() {
            self.leave(path, WhyLeftOut::EmptyDirectory);
        }
        for (name, _) in names {
            let at = path.join(&name)?;
            let seen = self.root.step(dir.as_fd(), &name, OFlags::PATH);
            let stat = seen
                .and_then(|seen| rustix::fs::fstat(&seen))
                .map_err(|errno| sealing(failed(errno, &at)))?;
            let kind = FileKind::of(&stat);
            if at.in_git_dir() {
                self.leave(&at, WhyLeftOut::GitInternals);
                continue;
            }
            match ((self.choose)(&at, kind)?, kind) {
                (Choice::LeaveOut(why), _) => self.leave(&at, why),
                (Choice::Take, FileKind::Directory) => self.directory(&at)?,
                (Choice::Take, FileKind::Special) => {
                    let why = "a device, FIFO or socket cannot be sealed";
                    return Err(refused("special_file", why).name(at.to_string()).into());
                }
                (Choice::Take, FileKind::File | FileKind::Symlink) => {
                    self.spend(&at, u64::try_from(stat.st_size).unwrap_or(u64::MAX))?;
                    self.take.push((at, kind));
                }
            }
            if self.take.len() > MOST_ENTRIES {
                return Err(refused("entries", format!("there are more than {MOST_ENTRIES} entries")).into());
            }
        }
        Ok(())
    }

    fn leave(&mut self, path: &RelPath, why: WhyLeftOut) {
        self.left_out.push(LeftOut {
            path: path.clone(),
            why,
        });
    }
}

fn write(root: &Root, take: &[(RelPath, FileKind)], store: &Store) -> Result<(Vec<Entry>, Sha256, u64)> {
    let mut out = Digesting {
        file: std::io::BufWriter::with_capacity(128 << 10, &store.file),
        hasher: Hasher::new(),
        size: 0,
    };
    let mut entries = Vec::with_capacity(take.len());
    for (path, kind) in take {
        let place = root.place(path, LastLink::Keep).map_err(sealing)?;
        entries.push(match kind {
            FileKind::Symlink => write_link(path, &place, &mut out)?,
            _ => write_file(root, path, &place, &mut out)?,
        });
    }
    check_entries(&entries)?;
    out.put(&[0; 2 * BLOCK])?;
    out.file
        .flush()
        .map_err(|e| Error::io("write", &store.shown, e))?;
    Ok((entries, out.hasher.finish(), out.size))
}

fn write_link(path: &RelPath, place: &Place, out: &mut Digesting<'_>) -> Result<Entry> {
    let text = rustix::fs::readlinkat(&place.parent, place.name.as_slice(), Vec::new());
    let link = text.map_err(|_| moved(path))?.into_bytes();
    let target = String::from_utf8(link.clone())
        .map_err(|_| refused("name_encoding", "a link's target is not UTF-8").name(path.to_string()))?;
    out.put(&encode(&Header {
        kind: Type::Symlink,
        name: path.as_bytes().to_vec(),
        link,
        mode: 0o777,
        size: 0,
    }))?;
    let path = path.clone();
    Ok(Entry::Symlink { path, target })
}

fn write_file(root: &Root, path: &RelPath, place: &Place, out: &mut Digesting<'_>) -> Result<Entry> {
    let (mut file, stat) = open_regular(root, place).map_err(|error| match error {
        Error::Refused(_) => moved(path),
        other => other,
    })?;
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    let mode = FileMode::of(stat.st_mode);
    out.put(&encode(&Header {
        kind: Type::File,
        name: path.as_bytes().to_vec(),
        link: Vec::new(),
        mode: mode.bits(),
        size,
    }))?;
    let (mut hasher, mut buffer, mut read) = (Hasher::new(), vec![0_u8; 128 << 10], 0_u64);
    loop {
        let n = file
            .read(&mut buffer)
            .map_err(|e| Error::io("read", path.to_string(), e))?;
        read += n as u64;
        if read > size || (n == 0 && read < size) {
            return Err(moved(path));
        }
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        out.put(&buffer[..n])?;
    }
    let end = rustix::fs::fstat(&file).map_err(|e| Error::io("examine", path.to_string(), e))?;
    let times = |s: &rustix::fs::Stat| (s.st_mtime, s.st_mtime_nsec, s.st_ctime, s.st_ctime_nsec);
    if times(&end) != times(&stat) {
        return Err(moved(path));
    }
    let padding = size.next_multiple_of(BLOCK as u64) - size;
    out.put(&[0; BLOCK][..usize::try_from(padding).unwrap_or_default()])?;
    Ok(Entry::File {
        path: path.clone(),
        mode,
        size,
        sha256: hasher.finish(),
    })
}

struct Digesting<'a> {
    file: std::io::BufWriter<&'a std::fs::File>,
    hasher: Hasher,
    size: u64,
}

impl Digesting<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
        self.file
            .write_all(bytes)
            .map_err(|e| Error::io("write", "a proposal", e))
    }
}

/// Holds an archive that is being written.
struct Store {
    dir: std::os::fd::OwnedFd,
    target: std::os::fd::OwnedFd,
    name: String,
    file: std::fs::File,
    shown: PathBuf,
}

impl Store {
    fn open(proposals: &Path) -> Result<Self> {
        let fail = |e: Errno| Error::io("open", proposals, e);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let under = |name: &str| {
            let path = proposals.join(name);
            std::fs::create_dir_all(&path).map_err(|e| Error::io("make", &path, e))?;
            rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(fail)
        };
        let (dir, target) = (under("tmp")?, under("sha256")?);
        rustix::fs::fsync(under(".")?).map_err(fail)?;
        let name = format!("{}.part", to_hex(&clock::random::<16>()?));
        let create = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        let file = rustix::fs::openat(&dir, name.as_str(), create, mode)
            .map_err(fail)?
            .into();
        let shown = proposals.join("tmp").join(&name);
        Ok(Self {
            dir,
            target,
            name,
            file,
            shown,
        })
    }

    fn discard(&self) {
        // The error that led here is what the caller must hear.
        rustix::fs::unlinkat(&self.dir, self.name.as_str(), rustix::fs::AtFlags::empty()).ok();
    }

    /// Gives the archive its name; an archive of this name is the same archive.
    fn publish(&self, digest: &Sha256) -> Result<()> {
        let fail = |e: Errno| Error::io("publish", &self.shown, e);
        let name = format!("{digest}.tar");
        let renamed = rustix::fs::fsync(&self.file).and_then(|()| {
            let from = (self.dir.as_fd(), self.name.as_bytes());
            crate::files::rename_ours(from, (self.target.as_fd(), name.as_bytes()))
        });
        match renamed {
            Ok(()) => {}
            Err(Errno::EXIST) => self.discard(),
            Err(errno) => {
                self.discard();
                return Err(fail(errno));
            }
        }
        crate::files::sync(&self.target, &self.shown.display().to_string())
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
