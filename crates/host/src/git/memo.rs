//! What this process learnt of a repository and need not ask a git again, as long as nothing of it can have changed.
//!
//! It is a saving and no source of truth: an entry is keyed by the full state that it was learnt from, and that state is
//! looked at again on every use. Each shelf is bounded, and nothing is written to a disk.
//!
//! # What a look proves
//! Device, inode, type, size and both times of a file or directory. On a filesystem of this very kernel every change of content
//! and of entries moves the time of change (`ctime`), which nobody can set. It moves by steps: what is changed twice within
//! one of them looks the same. So a look is kept only when its last change is older than any such step, at the moment before
//! it was taken: a later change has a later time then. A time in the future is never older.
//!
//! Elsewhere (network filesystems, FUSE) attributes may be those of a moment ago: nothing is kept there.

use super::record::local;
use crate::clock;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, Statx, makedev, openat, statat};
use rustix::io::Errno;
use rustix::path::Arg;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The longest step of a filesystem that keeps fractions of seconds: ten times a slow tick of the kernel.
const STEP_MS: i128 = 100;
/// The same where the fraction is nothing: it may keep whole seconds alone.
const WHOLE_STEP_MS: i128 = 2_000;

/// What a file or directory looked like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    dev: u64,
    ino: u64,
    mode: u32,
    size: i64,
    modified: (i64, u64),
    changed: (i64, u64),
}

/// Says when a look is old enough to be kept: taken before the look itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before(i128);

impl Before {
    pub(super) fn now() -> Self {
        Self(i128::from(clock::now().0))
    }
}

impl Look {
    fn of(stat: &Stat) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            mode: stat.st_mode,
            size: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Gives what a call of the newer kind, with its basic fields, says.
    pub(super) fn of_statx(seen: &Statx) -> Self {
        Self {
            dev: makedev(seen.stx_dev_major, seen.stx_dev_minor),
            ino: seen.stx_ino,
            mode: seen.stx_mode.into(),
            // As the other call gives it: no file is larger.
            size: i64::try_from(seen.stx_size).unwrap_or(i64::MAX),
            modified: (seen.stx_mtime.tv_sec, seen.stx_mtime.tv_nsec.into()),
            changed: (seen.stx_ctime.tv_sec, seen.stx_ctime.tv_nsec.into()),
        }
    }

    /// Gives device and number.
    pub(super) fn inode(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// Says whether it is a directory.
    pub(super) fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::Directory
    }

    /// Looks, through links; `None` where nothing is there.
    pub(super) fn at(dir: impl AsFd, name: impl Arg) -> rustix::io::Result<Option<Self>> {
        Self::with(dir, name, AtFlags::empty())
    }

    /// Looks at the entry itself, be it a link.
    pub(super) fn at_itself(dir: impl AsFd, name: impl Arg) -> rustix::io::Result<Option<Self>> {
        Self::with(dir, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn with(dir: impl AsFd, name: impl Arg, flags: AtFlags) -> rustix::io::Result<Option<Self>> {
        match statat(dir, name, flags) {
            Ok(stat) => Ok(Some(Self::of(&stat))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Looks at a path.
    pub(super) fn of_path(path: &Path) -> rustix::io::Result<Option<Self>> {
        Self::at(CWD, path)
    }

    /// Says whether a later change would surely look different.
    pub(super) fn settled(&self, before: Before) -> bool {
        let (seconds, nanos) = self.changed;
        let changed = i128::from(seconds) * 1000 + i128::from(nanos / 1_000_000);
        let step = if nanos == 0 { WHOLE_STEP_MS } else { STEP_MS };
        before.0 - changed > step
    }
}

/// Says whether a path lies where looks prove something.
pub(super) fn provable(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).is_ok_and(local)
}

/// A bounded number of things that were learnt; the one that was not used for longest goes first.
pub(super) struct Shelf<K, V> {
    most: usize,
    all: Mutex<Vec<(K, V, usize)>>,
}

impl<K: PartialEq, V: Clone> Shelf<K, V> {
    /// Makes one whose entries weigh so much at most, together.
    pub(super) const fn new(most: usize) -> Self {
        Self {
            most,
            all: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(known, ..)| known == key)?;
        let found = all.remove(at);
        let value = found.1.clone();
        all.push(found);
        Some(value)
    }

    pub(super) fn put(&self, key: K, value: V, weight: usize) {
        if weight > self.most {
            return;
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(known, ..)| *known != key);
        all.push((key, value, weight));
        let mut whole: usize = all.iter().map(|(.., weight)| weight).sum();
        while whole > self.most {
            whole -= all.remove(0).2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shelf_is_bounded_and_keeps_what_is_used() {
        let shelf = Shelf::new(3);
        for n in 0..3 {
            shelf.put(n, n * 10, 1);
        }
        assert_eq!(shelf.get(&0), Some(0));
        shelf.put(3, 30, 1);
        assert_eq!(
            [0, 1, 2, 3].map(|n| shelf.get(&n)),
            [Some(0), None, Some(20), Some(30)]
        );
        shelf.put(3, 31, 2);
        assert_eq!([0, 2, 3].map(|n| shelf.get(&n)), [None, Some(20), Some(31)]);
        shelf.put(4, 40, 4);
        assert_eq!(shelf.get(&4), None);
    }

    #[test]
    fn a_look_within_the_step_of_a_clock_is_not_kept() {
        let look = |changed| Look {
            dev: 1,
            ino: 1,
            mode: 0,
            size: 0,
            modified: (0, 0),
            changed,
        };
        let before = Before(10_000);
        for (changed, settled) in [
            ((9, 899_999_999), true),
            ((9, 900_000_000), false),
            ((10, 1), false),
            ((11, 0), false),
            ((8, 0), false),
            ((7, 0), true),
        ] {
            assert_eq!(look(changed).settled(before), settled, "{changed:?}");
        }
    }
}
