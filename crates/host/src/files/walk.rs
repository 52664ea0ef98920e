//! Walking a tree beneath a root: in one order, within bounds, through no link and into no mount.
//!
//! It opens directories alone, and tells what it met; what a file holds is not its concern.

use crate::error::Result;
use crate::files::read::{FileKind, ListFailure, entries};
use crate::root::Root;
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use semel_core::RelPath;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Says how far a walk goes.
pub struct Bounds<'a> {
    /// How many entries are looked at.
    pub entries: usize,
    /// How many entries one directory may hold.
    pub directory: usize,
    /// How many levels are entered; 1 is the directory itself alone.
    pub depth: usize,
    /// What is done about a `.git`.
    pub git: GitEntries,
    /// Says which entries may be shown; the others are passed by with all that is in them, and counted.
    pub open: &'a dyn Fn(&RelPath) -> bool,
    /// Says, whenever it is asked, whether it is time to end.
    pub over: &'a dyn Fn() -> bool,
}

/// Says what a walk does about a `.git`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GitEntries {
    /// It passes by, and counts.
    Skip,
    /// It tells them, and enters none.
    Tell,
    /// It enters them like any other.
    Enter,
}

/// Is an entry that a walk met.
pub struct Met<'a> {
    /// The handle on its directory.
    pub dir: BorrowedFd<'a>,
    /// Its name.
    pub name: &'a [u8],
    /// Its path below where the walk began.
    pub below: &'a [u8],
    /// Its path beneath the root.
    pub path: &'a RelPath,
    /// Its type.
    pub kind: FileKind,
    /// Whether an earlier walk told it.
    pub known: Known,
}

/// Says whether an entry was told before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It was not.
    New,
    /// It was: it is met once more only to be entered.
    Told,
}

/// Says how a walk goes on behind an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// On, into it where it is a directory.
    On,
    /// Past it.
    Past,
    /// No further: the entry was not taken.
    Stop(Ended),
}

/// Says why a walk ended before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As many entries were looked at as the bound allows.
    Entries,
    /// As much was found as the bound allows.
    Results,
    /// It was time.
    Time,
}

/// Counts what a walk passed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// What belongs to git.
    pub git: u64,
    /// What is not open to whoever asks.
    pub withheld: u64,
    /// Mounts.
    pub mounts: u64,
    /// Directories that may not be read.
    pub unreadable: u64,
    /// Directories that hold more than the bound.
    pub too_many: u64,
    /// Entries whose path is past the limits of a path.
    pub too_deep: u64,
}

/// Says how a walk went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Where it began, with every link followed; `None` where it was a file.
    pub at: Option<RelPath>,
    /// How many entries were looked at.
    pub entries: usize,
    /// What was passed by.
    pub skipped: Skipped,
    /// Why it ended before its end.
    pub ended: Option<Ended>,
    /// The last entry that it was done with, by its path below where it began.
    pub last: Option<RelPath>,
}

struct Level {
    dir: OwnedFd,
    path: RelPath,
    names: std::vec::IntoIter<(Vec<u8>, FileKind)>,
    /// What is left of where to go on behind.
    after: Vec<Vec<u8>>,
}

/// Walks the entries of a directory and of those below, each directory before what is in it, names in the order of
/// their bytes. `after` is the path, below the directory, of the last entry that an earlier walk told.
///
/// # Errors
/// Those of the directory itself: `not_found`, `path_escapes_root`, `too_large`. What cannot be read below is counted.
pub fn walk(
    root: &Root,
    at: &RelPath,
    after: Option<&RelPath>,
    bounds: &Bounds<'_>,
    meet: &mut dyn FnMut(&Met<'_>) -> Go,
) -> Result<Walked> {
    let (dir, resolved) = root.directory(at)?;
    let after: Vec<Vec<u8>> =
        after.map_or_else(Vec::new, |path| path.components().map(<[u8]>::to_vec).collect());
    let prefix = resolved.as_bytes().len() + usize::from(!resolved.is_root());
    let first = Level::open(dir, resolved, after, bounds).map_err(|(failure, path)| failure.named(&path))?;
    let mut walked = Walked {
        at: Some(first.path.clone()),
        ..Walked::default()
    };
    let mut levels = vec![first];
    while let Some(level) = levels.last_mut() {
        let Some((name, kind)) = level.names.next() else {
            levels.pop();
            continue;
        };
        if (bounds.over)() {
            walked.ended = Some(Ended::Time);
            break;
        }
        if walked.entries >= bounds.entries {
            walked.ended = Some(Ended::Entries);
            break;
        }
        walked.entries += 1;
        let Ok(path) = level.path.join(&name) else {
            walked.skipped.too_deep += 1;
            continue;
        };
        let on_the_way = level.after.first() == Some(&name);
        let after: Vec<Vec<u8>> = if on_the_way {
            level.after.split_off(1)
        } else {
            Vec::new()
        };
        let Some(kind) = surely(level.dir.as_fd(), &name, kind) else {
            continue;
        };
        let met = Met {
            dir: level.dir.as_fd(),
            name: &name,
            below: &path.as_bytes()[prefix..],
            path: &path,
            kind,
            known: if on_the_way { Known::Told } else { Known::New },
        };
        if let Some(counted) = walked.skipped.passing(&name, &path, bounds) {
            *counted += 1;
            continue;
        }
        let go = meet(&met);
        if let Go::Stop(ended) = go {
            walked.ended = Some(ended);
            break;
        }
        walked.last = RelPath::parse(met.below).ok();
        if go == Go::Past || kind != FileKind::Directory {
            continue;
        }
        enter(
            root,
            &mut levels,
            (&name, path),
            after,
            bounds,
            &mut walked.skipped,
        );
    }
    Ok(walked)
}

impl Skipped {
    /// Gives the count of an entry that is not even met; `None` for every other.
    fn passing(&mut self, name: &[u8], path: &RelPath, bounds: &Bounds<'_>) -> Option<&mut u64> {
        if bounds.git == GitEntries::Skip && is_git(name) {
            Some(&mut self.git)
        } else if !(bounds.open)(path) {
            Some(&mut self.withheld)
        } else {
            None
        }
    }
}

fn is_git(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b".git")
}

fn enter(
    root: &Root,
    levels: &mut Vec<Level>,
    (name, path): (&[u8], RelPath),
    after: Vec<Vec<u8>>,
    bounds: &Bounds<'_>,
    skipped: &mut Skipped,
) {
    let Some(level) = levels.last().filter(|_| levels.len() < bounds.depth) else {
        return;
    };
    if bounds.git != GitEntries::Enter && is_git(name) {
        skipped.git += 1;
        return;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let opened = match root.step(level.dir.as_fd(), name, flags) {
        Ok(dir) => Level::open(dir, path, after, bounds),
        Err(errno) => Err((ListFailure::System(errno), path)),
    };
    match opened {
        Ok(level) => levels.push(level),
        Err((ListFailure::TooMany(_), _)) => skipped.too_many += 1,
        Err((ListFailure::System(Errno::XDEV), _)) => skipped.mounts += 1,
        // It went away, or something else took its name, meanwhile.
        Err((ListFailure::System(Errno::NOENT | Errno::NOTDIR | Errno::LOOP), _)) => {}
        Err((ListFailure::System(_), _)) => skipped.unreadable += 1,
    }
}

impl Level {
    fn open(
        dir: OwnedFd,
        path: RelPath,
        after: Vec<Vec<u8>>,
        bounds: &Bounds<'_>,
    ) -> std::result::Result<Self, (ListFailure, RelPath)> {
        let mut names = match entries(&dir, bounds.directory) {
            Ok(names) => names,
            Err(failure) => return Err((failure, path)),
        };
        if let Some(from) = after.first() {
            // The one on the way stays: what is in it comes behind it.
            names.retain(|(name, _)| name >= from);
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(Self {
            dir,
            path,
            names: names.into_iter(),
            after,
        })
    }
}

/// Asks for the type where the directory does not tell it; `None` where the entry went away.
fn surely(dir: BorrowedFd<'_>, name: &[u8], kind: FileKind) -> Option<FileKind> {
    if kind != FileKind::Special {
        return Some(kind);
    }
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statat(dir, name, flags) {
        Ok(stat) => Some(FileKind::of(&stat)),
        Err(Errno::NOENT) => None,
        Err(_) => Some(FileKind::Special),
    }
}
