//! The store: `<state>/artifacts/sha256/…`, and an index for locks that name artifacts by another digest.
//!
//! The index is only a hint. Whatever it leads to is digested in the lock's own way each time it is taken.

use super::{CHUNK, Contents, contents, in_parallel};
use crate::error::{Error, Result};
use crate::plain::private_directory;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use semel_core::artifact::{Digester, Held, Locked, Packing};
use semel_core::digest::{Hasher, to_hex};
use semel_core::lockset::Algorithm;
use semel_core::path::shown;
use semel_core::{Code, Refusal, Sha256};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The largest artifact that is taken.
const LARGEST: u64 = 16 << 30;

/// Names an artifact that a generation needs.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The digest by which the lock names it.
    pub locked: Locked,
    /// Its file name.
    pub file: String,
    /// How it is packed.
    pub packing: Packing,
}

/// Holds artifacts by content.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Opens the store at a place, and makes it where it is missing.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn open(root: &Path) -> Result<Self> {
        private_directory(root)?;
        Ok(Self {
            root: root.to_path_buf(),
        })
    }

    /// Says whether an artifact is there; what its bytes are is looked at when it is taken.
    #[must_use]
    pub fn holds(&self, locked: &Locked) -> bool {
        self.place_of(locked)
            .is_some_and(|place| std::fs::symlink_metadata(place).is_ok_and(|facts| facts.is_file()))
    }

    /// Gives the file name under which an artifact entered: a hint, like the index.
    #[must_use]
    pub fn name_of(&self, locked: &Locked) -> Option<String> {
        let sha256 = self.sha256_of(locked)?;
        short_file(&self.index("name", &sha256.to_string()))
    }

    /// Lets a file enter, if it is what the lock names.
    ///
    /// # Errors
    /// `install_failed`, reason `artifact_digest`, where its bytes are others; `too_large`; `io_failed`.
    ///
    /// # Durability
    /// Its bytes are on disk before it is there under its name.
    pub fn enter(&self, from: &Path, wanted: &Wanted) -> Result<Sha256> {
        let source = open_plain(from)?;
        let fresh = self
            .root
            .join(format!("new-{}", to_hex(&crate::clock::random::<12>()?)));
        let copied = Copy::take(&source, &fresh, &wanted.locked).and_then(|copied| {
            if !copied.is(&wanted.locked) {
                let why = "what was fetched is not what the lock names";
                return Err(Refusal::new(Code::InstallFailed, why)
                    .reason("artifact_digest")
                    .names([wanted.file.clone(), wanted.locked.to_string()])
                    .into());
            }
            copied.file.sync_all().map_err(|e| Error::io("sync", &fresh, e))?;
            self.settle(&fresh, copied.sha256, wanted)?;
            Ok(copied.sha256)
        });
        // Renamed where it entered; else it is of no use.
        std::fs::remove_file(&fresh).ok();
        copied
    }

    fn settle(&self, fresh: &Path, sha256: Sha256, wanted: &Wanted) -> Result<()> {
        let place = self.index("sha256", &sha256.to_string());
        let parent = place.parent().unwrap_or(&self.root);
        private_directory(parent)?;
        match rustix::fs::renameat_with(CWD, fresh, CWD, &place, RenameFlags::NOREPLACE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(Error::io("rename", &place, e)),
        }
        let dir = File::open(parent).map_err(|e| Error::io("open", parent, e))?;
        dir.sync_all().map_err(|e| Error::io("sync", parent, e))?;
        let hex = sha256.to_string();
        let mut hints = vec![(self.index("name", &hex), wanted.file.clone())];
        if wanted.locked.sha256().is_none() {
            let index = self.index(wanted.locked.algorithm.name(), &wanted.locked.hex());
            hints.push((index, hex));
        }
        for (hint, text) in hints {
            private_directory(hint.parent().unwrap_or(&self.root))?;
            let fresh = self
                .root
                .join(format!("new-{}", to_hex(&crate::clock::random::<12>()?)));
            std::fs::write(&fresh, text).map_err(|e| Error::io("write", &fresh, e))?;
            std::fs::rename(&fresh, &hint).map_err(|e| Error::io("rename", &hint, e))?;
        }
        Ok(())
    }

    /// Gives a generation its own copies, each verified while it was made, with a digest of every member.
    ///
    /// # Errors
    /// `record_mismatch`, reason `poisoned_artifact`, for an entry that is not what its name says, which is set aside so
    /// that another attempt fetches it anew; `not_found` where one is missing; as [`contents`].
    pub fn link_all(&self, wanted: &[(Wanted, PathBuf)]) -> Result<Vec<Held>> {
        in_parallel(wanted, |(wanted, place)| {
            private_directory(place.parent().unwrap_or(place))?;
            let sha256 = self.link(wanted, place)?;
            let Contents { members, texts, .. } = contents(place, wanted.packing)?;
            Ok(Held {
                locked: wanted.locked.clone(),
                sha256,
                file: wanted.file.clone(),
                packing: wanted.packing,
                members,
                texts,
            })
        })
    }

    /// Makes a copy of an artifact at a place that is free; gives its SHA-256.
    ///
    /// # Errors
    /// As [`Store::link_all`].
    pub fn link(&self, wanted: &Wanted, to: &Path) -> Result<Sha256> {
        let missing = || {
            Refusal::new(Code::NotFound, "the store does not hold an artifact")
                .names([wanted.file.clone(), wanted.locked.to_string()])
        };
        let place = self.place_of(&wanted.locked).ok_or_else(missing)?;
        let odd = match open_plain(&place) {
            Ok(source) => {
                let copied = Copy::take(&source, to, &wanted.locked)?;
                let named = place.file_name().map(|name| name.as_bytes().to_vec());
                let named = named.unwrap_or_default() == copied.sha256.to_string().into_bytes();
                if named && copied.is(&wanted.locked) && unshared(&source)? {
                    return Ok(copied.sha256);
                }
                std::fs::remove_file(to).map_err(|e| Error::io("remove", to, e))?;
                "its bytes are others, or somebody else can change them"
            }
            Err(error) if error.code() == Code::NotFound => return Err(missing().into()),
            Err(_) => "it is no plain file",
        };
        self.set_aside(&place)?;
        let why = format!("an artifact of the store is not what it was when it entered: {odd}");
        Err(Refusal::new(Code::RecordMismatch, why)
            .reason("poisoned_artifact")
            .names([
                wanted.file.clone(),
                wanted.locked.to_string(),
                shown(place.as_os_str().as_bytes()),
            ])
            .into())
    }

    /// Takes an entry out of the way, for a person to look at.
    fn set_aside(&self, place: &Path) -> Result<()> {
        let aside = self.root.join("refused");
        private_directory(&aside)?;
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let to = aside.join(format!("{name}-{}", to_hex(&crate::clock::random::<6>()?)));
        std::fs::rename(place, &to).map_err(|e| Error::io("set aside", place, e))
    }

    fn sha256_of(&self, locked: &Locked) -> Option<Sha256> {
        locked.sha256().or_else(|| {
            let index = self.index(locked.algorithm.name(), &locked.hex());
            Sha256::parse(short_file(&index)?.trim()).ok()
        })
    }

    fn place_of(&self, locked: &Locked) -> Option<PathBuf> {
        Some(self.index("sha256", &self.sha256_of(locked)?.to_string()))
    }

    fn index(&self, kind: &str, hex: &str) -> PathBuf {
        self.root.join(kind).join(&hex[..2]).join(hex)
    }
}

/// Reads a hint; nothing for what is none.
fn short_file(path: &Path) -> Option<String> {
    const LONGEST: u64 = 1024;
    let mut text = String::new();
    open_plain(path)
        .ok()?
        .take(LONGEST)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

/// Opens a plain file that is no link.
fn open_plain(path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
        Errno::NOENT | Errno::NOTDIR => {
            let name = shown(path.as_os_str().as_bytes());
            Refusal::new(Code::NotFound, "there is no such artifact")
                .name(name)
                .into()
        }
        _ => Error::io("open", path, e),
    })?;
    let file = File::from(fd);
    let facts = file.metadata().map_err(|e| Error::io("examine", path, e))?;
    match facts.is_file() {
        true => Ok(file),
        false => Err(Error::io("open", path, ErrorKind::InvalidInput)),
    }
}

/// Says whether nobody else has a way to write to an entry: no second name, no other owner, no mode that lets them.
fn unshared(file: &File) -> Result<bool> {
    let facts = file
        .metadata()
        .map_err(|e| Error::io("examine", "an artifact", e))?;
    let own = facts.uid() == rustix::process::geteuid().as_raw();
    Ok(own && facts.nlink() == 1 && facts.mode() & 0o222 == 0)
}

/// A copy that was digested while it was made.
struct Copy {
    file: File,
    sha256: Sha256,
    other: Option<Vec<u8>>,
}

impl Copy {
    /// Copies a file to a place that is free; read-only from its first moment.
    fn take(source: &File, to: &Path, locked: &Locked) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        let fd = rustix::fs::open(to, flags, mode).map_err(|e| Error::io("create", to, e))?;
        // Whatever the umask is: an installer may run as another user.
        rustix::fs::fchmod(&fd, mode).map_err(|e| Error::io("set the mode of", to, e))?;
        let file = File::from(fd);
        // A clone shares blocks, never an inode: what is written to either is not seen in the other.
        let cloned = rustix::fs::ioctl_ficlone(&file, source).is_ok();
        let copied = match cloned {
            true => digest(&file, None, locked),
            false => digest(source, Some(&file), locked),
        };
        match copied {
            Ok((sha256, other)) => Ok(Self { file, sha256, other }),
            Err(error) => {
                std::fs::remove_file(to).ok();
                Err(error)
            }
        }
    }

    fn is(&self, locked: &Locked) -> bool {
        match (locked.sha256(), &self.other) {
            (Some(wanted), _) => wanted == self.sha256,
            (None, Some(other)) => *other == locked.digest,
            (None, None) => false,
        }
    }
}

/// Digests a file in the way of a lock; `None` for one that was made to collide.
///
/// # Errors
/// `not_found`, `io_failed`.
pub(crate) fn digest_as(path: &Path, algorithm: Algorithm) -> Result<Option<Vec<u8>>> {
    let any = Locked {
        algorithm,
        digest: Vec::new(),
    };
    let (sha256, other) = digest(&open_plain(path)?, None, &any)?;
    Ok(match algorithm {
        Algorithm::Sha256 => Some(sha256.as_bytes().to_vec()),
        Algorithm::Sha1 | Algorithm::Sha384 | Algorithm::Sha512 => other,
    })
}

/// Reads a file once: digests it, and writes what it read where that is asked for.
fn digest(from: &File, to: Option<&File>, locked: &Locked) -> Result<(Sha256, Option<Vec<u8>>)> {
    let failed = |e: std::io::Error| Error::io("copy", "an artifact", e);
    let mut sha256 = Hasher::new();
    let mut other = locked.sha256().is_none().then(|| Digester::new(locked.algorithm));
    let mut buffer = vec![0; 4 * CHUNK];
    let (mut from, mut size) = (from, 0_u64);
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(failed(e)),
        };
        size += count as u64;
        if size > LARGEST {
            return Err(Refusal::new(Code::TooLarge, "an artifact is larger than 16 GiB").into());
        }
        let piece = &buffer[..count];
        sha256.update(piece);
        if let Some(other) = &mut other {
            other.update(piece);
        }
        if let Some(mut to) = to {
            to.write_all(piece).map_err(failed)?;
        }
    }
    Ok((sha256.finish(), other.and_then(Digester::finish)))
}
