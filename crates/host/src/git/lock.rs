//! Our own `index.lock`: proven by an open handle, released without ever unlinking a path that may be somebody
//! else's. How it is come by is the matter of [`super::seek`].
//!
//! The owner record is written to a private file under flock, which is then renamed to `index.lock` without
//! replacing anything. A stranger's lock that is adopted keeps its content; our record lies beside it. Git inherits
//! the handle, so the flock stays busy while an orphaned child lives.

use super::record::{LONGEST, OwnerRecord};
use super::stale::lease;
use super::witness::{Point, Witness};
use super::worktree::Checked;
use crate::error::{Error, Result};
use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, RenameFlags, Stat, fstat, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use semel_core::restore::{Fact, Provenance};
use semel_core::{Code, Refusal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

/// Shorter than any record.
const RECORD_AT_LEAST: i64 = 32;

pub(super) const LOCK: &str = "index.lock";

/// A lock that is ours.
pub(super) struct Lock<'a> {
    pub(super) at: &'a Checked,
    /// Names our private files.
    pub(super) nonce: String,
    pub(super) file: Arc<OwnedFd>,
    /// The record beside a stranger's lock that was adopted, under its own flock.
    pub(super) beside: Option<OwnedFd>,
    pub(super) points: &'a dyn Witness,
    pub(super) released: Released,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Released {
    NotYet,
    Done,
}

/// Names the private file of the owner record.
pub(super) fn private_lock(nonce: &str) -> String {
    format!("{PRIVATE_LOCK}{nonce}")
}

/// Names the record beside a stranger's lock that was adopted.
pub(super) fn adopted_record(nonce: &str) -> String {
    format!("{PRIVATE_LOCK}{nonce}{ADOPTED}")
}

/// Names a lock that is being let go. Not as it was called before it was taken: it waits no more.
fn aside_lock(nonce: &str) -> String {
    format!("{PRIVATE_LOCK}{nonce}{ASIDE}")
}

/// Gives the nonce in the name of a private file that waits for the lock.
pub(super) fn waiter(name: &[u8]) -> Option<&[u8]> {
    let nonce = name.strip_prefix(PRIVATE_LOCK.as_bytes())?;
    (nonce.len() == 20 && nonce.iter().all(u8::is_ascii_hexdigit)).then_some(nonce)
}

const PRIVATE_LOCK: &str = "index.lock.semel-";
const ADOPTED: &str = ".adopted";
const ASIDE: &str = ".aside";

/// What a lock looked like: as long as it looks like that, nobody changed or exchanged it. Meaningful while a handle
/// keeps the number of the inode from being given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shape {
    dev: u64,
    ino: u64,
    size: i64,
    changed_s: i64,
    changed_ns: u64,
}

impl Shape {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            size: stat.st_size,
            changed_s: stat.st_ctime,
            changed_ns: stat.st_ctime_nsec,
        }
    }

    pub(super) fn of_open(file: &OwnedFd) -> Option<Self> {
        fstat(file).ok().map(|stat| Self::of(&stat))
    }

    /// Gives its last change, since the Unix epoch.
    pub(super) fn changed(&self) -> Duration {
        let nanos = u32::try_from(self.changed_ns).unwrap_or_default();
        Duration::new(u64::try_from(self.changed_s).unwrap_or_default(), nanos)
    }
}

/// Names the private index of a lock.
pub(super) fn private_index(nonce: &str) -> String {
    format!("index.semel-{nonce}")
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
        let remove = |name: &[u8]| unlinkat(&self.at.dir, name, AtFlags::empty()).ok();
        for entry in dir {
            let entry = entry.map_err(|e| Error::io("list", place, e))?;
            let name = entry.file_name().to_bytes();
            if name.starts_with(b"index.semel-") && !name.starts_with(own.as_bytes()) {
                remove(name);
            }
            let Some(nonce) = name.strip_prefix(PRIVATE_LOCK.as_bytes()) else {
                continue;
            };
            if nonce.starts_with(self.nonce.as_bytes()) || !orphaned(self.at, entry.file_name()) {
                continue;
            }
            // What it had adopted, and put aside to let it go, goes before the record that tells of it.
            if let Some(lock) = name.strip_suffix(ADOPTED.as_bytes()) {
                remove(&[lock, ASIDE.as_bytes()].concat());
            }
            remove(name);
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
        let put = self.put_away();
        if self.beside.take().is_some() {
            unlinkat(&self.at.dir, adopted_record(&self.nonce), AtFlags::empty()).ok();
        }
        put
    }

    fn put_away(&self) -> Result<()> {
        // What is visibly another's is not moved at all; the look behind the rename is for what happens in between.
        self.fence()?;
        let aside = aside_lock(&self.nonce);
        let dir = &self.at.dir;
        match renameat_with(dir, LOCK, dir, &aside, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(lost("index.lock was removed")),
            Err(e) => return Err(Error::io("release", self.at.gitdir.join(LOCK), e)),
        }
        self.points.reached(Point::Aside);
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
pub(super) fn is_at(at: &Checked, name: &str, file: &OwnedFd) -> bool {
    let (Ok(named), Ok(open)) = (statat(&at.dir, name, AtFlags::SYMLINK_NOFOLLOW), fstat(file)) else {
        return false;
    };
    (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino) && open.st_nlink == 1
}

/// Reads the owner record in an open file; `None` where it holds anything else.
pub(super) fn read_record(file: &OwnedFd) -> Option<OwnerRecord> {
    let mut bytes = vec![0; LONGEST];
    let read = rustix::io::pread(file, &mut bytes, 0).ok()?;
    OwnerRecord::parse(bytes.get(..read)?)
}

pub(super) fn open_entry(at: &Checked, name: &CStr) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat(&at.dir, name, flags, Mode::empty()).ok()
}

/// Says whether a private file of ours has lost its owner.
fn orphaned(at: &Checked, name: &CStr) -> bool {
    let Some(file) = open_entry(at, name) else {
        return false;
    };
    match read_record(&file) {
        Some(record) => record.judge(&file) == Provenance::Dead,
        // Its owner died before the record was written: whoever still makes one has it open.
        None => {
            let empty = fstat(&file).is_ok_and(|stat| stat.st_size < RECORD_AT_LEAST && stat.st_nlink == 1);
            empty && lease(&file, 1) == Fact::Holds
        }
    }
}

/// Lists the private files of ours in a git directory, each opened, with its record.
pub(super) fn records(at: &Checked) -> Vec<(OwnedFd, OwnerRecord)> {
    let Ok(dir) = Dir::read_from(&at.dir) else {
        return Vec::new();
    };
    dir.filter_map(rustix::io::Result::ok)
        .filter(|entry| entry.file_name().to_bytes().starts_with(PRIVATE_LOCK.as_bytes()))
        .filter_map(|entry| open_entry(at, entry.file_name()))
        .filter_map(|file| read_record(&file).map(|record| (file, record)))
        .collect()
}

/// Lists the processes that wait for this lock as we do.
pub(super) fn waiting(at: &Checked) -> BTreeSet<u32> {
    records(at)
        .into_iter()
        .filter(|(_, record)| record.adopted.is_none() && record.lives_here())
        .map(|(_, record)| record.pid)
        .collect()
}

pub(super) fn write_all(file: impl AsFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
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
