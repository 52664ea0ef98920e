//! Our own `index.lock`: taken by rename, proven by an open handle, released without ever unlinking a path that
//! may be somebody else's. It does not decide how long to wait; [`semel_core::restore`] does.
//!
//! The owner record is written to a private file under flock, which is then renamed to `index.lock` without
//! replacing anything. Git inherits the handle, so the flock stays busy while an orphaned child lives.

use super::record::{LONGEST, OwnerRecord};
use super::worktree::Checked;
use crate::clock;
use crate::error::{Error, Result};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, fdatasync, flock, fstat, openat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use semel_core::digest::to_hex;
use semel_core::restore::{LockKind, LockOwner, Names, Observation, Provenance, Sight};
use semel_core::{Code, Refusal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

pub(super) const LOCK: &str = "index.lock";

/// A lock that is being sought: the record stands ready in a private file.
pub(super) struct Seeker<'a> {
    at: &'a Checked,
    nonce: String,
    file: Option<OwnedFd>,
}

/// A lock that is ours.
pub(super) struct Lock<'a> {
    at: &'a Checked,
    /// Names our private files.
    pub(super) nonce: String,
    file: Arc<OwnedFd>,
    released: Released,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Released {
    NotYet,
    Done,
}

fn private_lock(nonce: &str) -> String {
    format!("{LOCK}.semel-{nonce}")
}

/// Names the private index of a lock.
pub(super) fn private_index(nonce: &str) -> String {
    format!("index.semel-{nonce}")
}

impl<'a> Seeker<'a> {
    /// Writes the owner record to a private file; where that cannot be done, every look says so.
    pub(super) fn new(at: &'a Checked) -> Result<Self> {
        Ok(Self {
            at,
            nonce: to_hex(&clock::random::<10>()?),
            file: None,
        })
    }

    /// Tries to take the lock; says what is there if it cannot.
    pub(super) fn look(&mut self) -> Result<Observation> {
        let name = private_lock(&self.nonce);
        if self.file.is_none() {
            match self.prepare(&name)? {
                Ok(file) => self.file = Some(file),
                Err(errno) => return Ok(Observation::Denied(errno.to_string())),
            }
        }
        // A lock that vanishes between the two looks is tried again, a bounded number of times.
        for _ in 0..16 {
            match renameat_with(&self.at.dir, &name, &self.at.dir, LOCK, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(Observation::Acquired),
                Err(Errno::EXIST) => {}
                Err(errno) => return Ok(Observation::Denied(errno.to_string())),
            }
            if let Some(sight) = self.sight()? {
                return Ok(Observation::Held(sight));
            }
        }
        Ok(Observation::Held(Sight {
            kind: LockKind::Regular,
            names: Names::One,
            owner: LockOwner::Ours,
            provenance: Provenance::Alive,
        }))
    }

    fn prepare(&self, name: &str) -> Result<core::result::Result<OwnedFd, Errno>> {
        let record = OwnerRecord::ours(&self.nonce)?;
        let mut bytes = serde_json::to_vec(&record)
            .map_err(|e| Refusal::new(Code::Internal, format!("an owner record cannot be written: {e}")))?;
        bytes.push(b'\n');
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&self.at.dir, name, flags, Mode::from_raw_mode(0o644)) {
            Ok(file) => file,
            Err(errno) => return Ok(Err(errno)),
        };
        let written = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .and_then(|()| write_all(&file, &bytes))
            .and_then(|()| fdatasync(&file));
        if let Err(errno) = written {
            unlinkat(&self.at.dir, name, AtFlags::empty()).ok();
            return Ok(Err(errno));
        }
        Ok(Ok(file))
    }

    /// Describes what is at the place of the lock; `None` where nothing is.
    fn sight(&self) -> Result<Option<Sight>> {
        let stat = match statat(&self.at.dir, LOCK, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(Error::io("look at", self.at.gitdir.join(LOCK), e)),
        };
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => LockKind::Regular,
            FileType::Symlink => LockKind::Symlink,
            FileType::Directory => LockKind::Directory,
            _ => LockKind::Special,
        };
        let us = rustix::process::geteuid().as_raw();
        let ours = stat.st_uid == us || stat.st_uid == self.at.uid;
        let provenance = if kind == LockKind::Regular {
            open_lock(self.at, &stat, OFlags::RDONLY)
                .map_or(Provenance::Stranger, |(fd, record)| record.judge(&fd))
        } else {
            Provenance::Stranger
        };
        Ok(Some(Sight {
            kind,
            names: if stat.st_nlink == 1 {
                Names::One
            } else {
                Names::Several
            },
            owner: if ours { LockOwner::Ours } else { LockOwner::Foreign },
            provenance,
        }))
    }

    /// Takes over a lock of ours whose owner is gone: the same inode, in place. `None` where it is not so any more.
    pub(super) fn adopt(mut self) -> Result<core::result::Result<Lock<'a>, Self>> {
        let Ok(stat) = statat(&self.at.dir, LOCK, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(Err(self));
        };
        let Some((file, record)) = open_lock(self.at, &stat, OFlags::RDWR) else {
            return Ok(Err(self));
        };
        // A dead judgement leaves the flock with this handle: from here on nobody else can adopt.
        if record.judge(&file) != Provenance::Dead || !is_at(self.at, LOCK, &file) {
            return Ok(Err(self));
        }
        if self.file.take().is_some() {
            unlinkat(&self.at.dir, private_lock(&self.nonce), AtFlags::empty()).ok();
        }
        for name in [
            private_index(&record.nonce),
            private_index(&record.nonce) + ".lock",
        ] {
            unlinkat(&self.at.dir, name, AtFlags::empty()).ok();
        }
        Ok(Ok(Lock {
            at: self.at,
            nonce: core::mem::take(&mut self.nonce),
            file: Arc::new(file),
            released: Released::NotYet,
        }))
    }

    /// Turns an acquired lock into one that can be released.
    pub(super) fn acquired(mut self) -> Result<Lock<'a>> {
        let file = self.file.take();
        let file = file.ok_or_else(|| Refusal::new(Code::Internal, "a lock without its file"))?;
        Ok(Lock {
            at: self.at,
            nonce: core::mem::take(&mut self.nonce),
            file: Arc::new(file),
            released: Released::NotYet,
        })
    }
}

impl Drop for Seeker<'_> {
    fn drop(&mut self) {
        if self.file.is_some() {
            unlinkat(&self.at.dir, private_lock(&self.nonce), AtFlags::empty()).ok();
        }
    }
}

impl Lock<'_> {
    /// Gives the handle that a git child inherits.
    pub(super) fn handle(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.file)
    }

    /// Says whether `index.lock` is still ours.
    ///
    /// # Errors
    /// `lock_lost` where it is not.
    pub(super) fn fence(&self) -> Result<()> {
        if is_at(self.at, LOCK, &self.file) {
            return Ok(());
        }
        Err(lost("index.lock is not ours any more"))
    }

    /// Removes what restorations that are gone left behind; to be called while the lock is ours, when no private
    /// index but our own can be alive.
    pub(super) fn sweep(&self) -> Result<()> {
        let place = &self.at.gitdir;
        let dir = Dir::read_from(&self.at.dir).map_err(|e| Error::io("list", place, e))?;
        let own = private_index(&self.nonce);
        for entry in dir {
            let entry = entry.map_err(|e| Error::io("list", place, e))?;
            let name = entry.file_name().to_bytes();
            if name.starts_with(b"index.semel-") && !name.starts_with(own.as_bytes()) {
                unlinkat(&self.at.dir, entry.file_name(), AtFlags::empty()).ok();
            }
            if name.starts_with(b"index.lock.semel-") && orphaned(&self.at.dir, entry.file_name()) {
                unlinkat(&self.at.dir, entry.file_name(), AtFlags::empty()).ok();
            }
        }
        Ok(())
    }

    /// Lets the lock go: renamed aside, looked at, and only then unlinked.
    ///
    /// # Errors
    /// `lock_lost` where what stood there was not ours; it is put back.
    pub(super) fn release(mut self) -> Result<()> {
        self.let_go()
    }

    fn let_go(&mut self) -> Result<()> {
        if self.released == Released::Done {
            return Ok(());
        }
        self.released = Released::Done;
        // What is visibly another's is not moved at all; the look behind the rename is for what happens in between.
        self.fence()?;
        let aside = private_lock(&self.nonce);
        let dir = &self.at.dir;
        match renameat_with(dir, LOCK, dir, &aside, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(lost("index.lock was removed")),
            Err(e) => return Err(Error::io("release", self.at.gitdir.join(LOCK), e)),
        }
        if is_at(self.at, &aside, &self.file) {
            return unlinkat(dir, &aside, AtFlags::empty())
                .map_err(|e| Error::io("remove", self.at.gitdir.join(&aside), e));
        }
        match renameat_with(dir, &aside, dir, LOCK, RenameFlags::NOREPLACE) {
            Ok(()) => Err(lost("index.lock was another's; it was left to it")),
            Err(e) => Err(lost(&format!(
                "index.lock was another's; it lies at {aside}: {e}"
            ))),
        }
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // Whoever wants to know whether the lock was lost calls `release`; here is only the last resort.
        self.let_go().ok();
    }
}

fn lost(why: &str) -> Error {
    Refusal::new(Code::LockLost, why).into()
}

/// Says whether the file at a name is the one behind the handle, with no other name.
fn is_at(at: &Checked, name: &str, file: &OwnedFd) -> bool {
    let (Ok(named), Ok(open)) = (statat(&at.dir, name, AtFlags::SYMLINK_NOFOLLOW), fstat(file)) else {
        return false;
    };
    (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino) && open.st_nlink == 1
}

/// Opens the lock that was seen, if it holds a record of ours.
fn open_lock(at: &Checked, seen: &Stat, access: OFlags) -> Option<(OwnedFd, OwnerRecord)> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(&at.dir, LOCK, flags, Mode::empty()).ok()?;
    let open = fstat(&file).ok()?;
    if (open.st_dev, open.st_ino) != (seen.st_dev, seen.st_ino) {
        return None;
    }
    let record = read_record(&file)?;
    Some((file, record))
}

fn read_record(file: &OwnedFd) -> Option<OwnerRecord> {
    let mut bytes = vec![0; LONGEST];
    let read = rustix::io::pread(file, &mut bytes, 0).ok()?;
    OwnerRecord::parse(bytes.get(..read)?)
}

/// Says whether a private file of ours has lost its owner.
fn orphaned(dir: &OwnedFd, name: &core::ffi::CStr) -> bool {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(dir, name, flags, Mode::empty()) else {
        return false;
    };
    read_record(&file).is_some_and(|record| record.judge(&file) == Provenance::Dead)
}

fn write_all(file: impl AsFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&file, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Says whether a name of a directory entry is the lock's.
pub(super) fn is_lock_name(name: &[u8]) -> bool {
    name == std::ffi::OsStr::new(LOCK).as_bytes()
}
