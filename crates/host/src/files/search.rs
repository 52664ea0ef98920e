//! Finding entries by their names and paths.
//!
//! It looks at names and types alone; what files hold is `grep`'s.

use crate::error::Result;
use crate::files::read::FileKind;
use crate::files::walk::{Bounds, Ended, Go, Known, Met, Walked, walk};
use crate::root::Root;
use rustix::fs::AtFlags;
use semel_core::RelPath;
use semel_core::glob::{Entry, Glob};

/// Says what is looked for.
pub struct Wanted<'a> {
    /// What an entry has to match, one of them; `None` takes every entry.
    pub pattern: Option<&'a [Glob]>,
    /// What is passed by, with all that is in it.
    pub exclude: &'a [Glob],
    /// Behind which entry of an earlier answer it goes on.
    pub after: Option<&'a RelPath>,
    /// How many entries at most.
    pub most: usize,
    /// How many bytes their paths have at most, all together.
    pub bytes: usize,
}

/// Is one entry that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundEntry {
    /// Its path below where the search began.
    pub below: Vec<u8>,
    /// Its path beneath the root.
    pub path: RelPath,
    /// Its type.
    pub kind: FileKind,
    /// The size of a regular file.
    pub size: Option<u64>,
}

/// Is what a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The entries: each directory before what is in it, names in the order of their bytes.
    pub entries: Vec<FoundEntry>,
    /// How the walk went.
    pub walked: Walked,
}

/// Finds the entries below a directory that match.
///
/// # Errors
/// Those of the directory itself: `not_found`, `path_escapes_root`, `too_large`. What cannot be read below is counted.
pub fn search(root: &Root, at: &RelPath, wanted: &Wanted<'_>, bounds: &Bounds<'_>) -> Result<Found> {
    let mut entries = Vec::new();
    let mut bytes = 0;
    let walked = walk(root, at, wanted.after, bounds, &mut |met| {
        let entry = entry_of(met.kind);
        if excluded(wanted.exclude, met) {
            return Go::Past;
        }
        let fits = |globs: &[Glob]| globs.iter().any(|glob| glob.matches(met.below, entry));
        if met.known == Known::Told || !wanted.pattern.is_none_or(fits) {
            return Go::On;
        }
        bytes += met.path.as_bytes().len();
        if entries.len() >= wanted.most || bytes > wanted.bytes {
            return Go::Stop(Ended::Results);
        }
        entries.push(FoundEntry {
            below: met.below.to_vec(),
            path: met.path.clone(),
            kind: met.kind,
            size: size(met),
        });
        Go::On
    })?;
    Ok(Found { entries, walked })
}

/// Says whether an entry is passed by.
pub(super) fn excluded(exclude: &[Glob], met: &Met<'_>) -> bool {
    exclude
        .iter()
        .any(|glob| glob.matches(met.below, entry_of(met.kind)))
}

fn entry_of(kind: FileKind) -> Entry {
    match kind {
        FileKind::Directory => Entry::Directory,
        FileKind::File | FileKind::Symlink | FileKind::Special => Entry::Other,
    }
}

fn size(met: &Met<'_>) -> Option<u64> {
    if met.kind != FileKind::File {
        return None;
    }
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statat(met.dir, met.name, flags).ok()?;
    u64::try_from(stat.st_size).ok()
}
