//! What a volume holds, weighed; and pre-images, which calls removed or replaced: listed, put aside, freed.
//!
//! Which pre-images may go is not decided here: whoever frees one keeps every call out that could put it back.

use crate::error::{Error, Result};
use crate::files::prepared::Prepared;
use crate::files::{FileKind, read, sync, syncable};
use crate::volume::{Records, Volume, reaper};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use semel_core::effect::{Content, Effect, Slot};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Stands before the name of a pre-image that is to be freed: no slot is named so, and nothing puts it back any more.
const EVICTED: &str = ".evicted-";

/// Says how much is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Bytes on the disk, holes not counted.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
}

impl Weight {
    /// Adds both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            entries: self.entries.saturating_add(other.entries),
        }
    }

    /// Takes both away, as far as there is anything.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            entries: self.entries.saturating_sub(other.entries),
        }
    }

    /// Says whether both fit.
    #[must_use]
    pub const fn fits(self, within: Self) -> bool {
        self.bytes <= within.bytes && self.entries <= within.entries
    }

    fn of(stat: &Stat) -> Self {
        let whole = |number: i64| u64::try_from(number).unwrap_or_default();
        let bytes = match FileKind::of(stat) {
            FileKind::File => whole(stat.st_size).min(whole(stat.st_blocks).saturating_mul(512)),
            FileKind::Directory | FileKind::Symlink | FileKind::Special => 0,
        };
        Self { bytes, entries: 1 }
    }
}

/// Weighs all that a volume holds: its tree, what is staged, what calls removed or replaced, what commands wrote, and the
/// private places of its agent. A file weighs under each of its names.
///
/// # Errors
/// `io_failed` where it cannot be read. A directory that nobody may read weighs as one entry, and so does a mount.
pub fn weigh(volume: &Volume) -> Result<Weight> {
    let mut all = below(volume.tree().handle())?;
    for dir in [volume.staging(), volume.trash()] {
        all = all.plus(below(dir)?);
    }
    for place in ["exec", "../work"] {
        match rustix::fs::openat(volume.meta(), place, directory(), Mode::empty()) {
            Ok(dir) => all = all.plus(below(dir.as_fd())?),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(Error::io("open", place, errno)),
        }
    }
    Ok(all)
}

/// Weighs all that is kept of a generation, also of one that cannot be opened any more. What is mounted counts as one
/// entry: the layers of an overlay weigh, and not what it shows.
///
/// # Errors
/// `io_failed` where it cannot be read.
pub fn weigh_kept(records: &Records) -> Result<Weight> {
    let of = rustix::fs::openat(records.meta(), "..", directory(), Mode::empty());
    below(of.map_err(|e| Error::io("open", records.path(), e))?.as_fd())
}

impl Prepared {
    /// Weighs what the effect stages: by so much the volume grows. What it takes out of the tree stays, in `trash/`.
    #[must_use]
    pub fn stages(&self) -> Weight {
        match &self.effect {
            Effect::Install { content, .. } => match content {
                Content::File { size_bytes, .. } => Weight {
                    bytes: *size_bytes,
                    entries: 1,
                },
                Content::Directory { made } => Weight {
                    bytes: 0,
                    entries: made.len() as u64,
                },
            },
            Effect::Remove { .. }
            | Effect::RemoveEmpty { .. }
            | Effect::Move { .. }
            | Effect::Restore { .. }
            | Effect::SetMode { .. }
            | Effect::Run { .. }
            | Effect::Forward { .. } => Weight::default(),
        }
    }
}

/// Lists the pre-images that are kept, the oldest first.
///
/// # Errors
/// `io_failed` where `trash/` cannot be read.
pub fn pre_images(volume: &Volume) -> Result<Vec<Slot>> {
    let mut slots: Vec<Slot> = names(volume)?
        .into_iter()
        .filter_map(|name| Slot::parse(std::str::from_utf8(&name).ok()?).ok())
        .collect();
    // Ids of executions sort by time.
    slots.sort();
    Ok(slots)
}

/// Weighs one pre-image; nothing where it is gone.
///
/// # Errors
/// `io_failed` where it cannot be read.
pub fn weigh_pre_image(volume: &Volume, slot: &Slot) -> Result<Weight> {
    weigh_at(volume.trash(), slot.as_str().as_bytes())
}

/// Puts pre-images aside under names that no effect has: each in one rename, whole or not at all. What is left is to
/// free them.
///
/// # Errors
/// `io_failed`; [`Error::Unproven`] where `trash/` cannot be synced.
///
/// # Durability
/// When this returns, the old names do not come back: what is freed afterwards is never found in part.
pub fn put_aside(volume: &Volume, slots: &[Slot]) -> Result<()> {
    for slot in slots {
        let aside = format!("{EVICTED}{}", slot.as_str());
        let flags = RenameFlags::empty();
        match rustix::fs::renameat_with(volume.trash(), slot.as_str(), volume.trash(), &aside, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(Error::io("put aside", slot.as_str(), errno)),
        }
    }
    sync(syncable(volume.trash())?, "trash")
}

/// Frees what was put aside, also by an earlier process; may be cut off and called again. Gives what cannot be removed.
///
/// # Errors
/// `io_failed` where `trash/` cannot be read.
pub fn free_aside(volume: &Volume) -> Result<Vec<reaper::Kept>> {
    let mut kept = Vec::new();
    for name in names(volume)? {
        if !name.starts_with(EVICTED.as_bytes()) {
            continue;
        }
        match rustix::fs::unlinkat(volume.trash(), name.as_slice(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            // Some filesystems answer EPERM for a directory.
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => {
                kept.push(stays(&name, &errno));
                continue;
            }
        }
        match reaper::remove_tree(volume.trash(), &name) {
            Ok(reaped) => kept.extend(reaped.kept),
            // The others go all the same.
            Err(error) => kept.push(stays(&name, &error)),
        }
    }
    Ok(kept)
}

fn stays(name: &[u8], why: &dyn std::fmt::Display) -> reaper::Kept {
    reaper::Kept {
        path: semel_core::path::shown(name),
        why: why.to_string(),
    }
}

fn names(volume: &Volume) -> Result<Vec<Vec<u8>>> {
    let trash = syncable(volume.trash())?;
    let root = semel_core::RelPath::root();
    let entries = read::entries(&trash, usize::MAX).map_err(|e| e.named(&root))?;
    Ok(entries.into_iter().map(|(name, _)| name).collect())
}

const fn directory() -> OFlags {
    OFlags::RDONLY
        .union(OFlags::DIRECTORY)
        .union(OFlags::NOFOLLOW)
        .union(OFlags::CLOEXEC)
}

fn weigh_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Weight> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let fail = |errno| Error::io("weigh", semel_core::path::shown(name), errno);
    let stat = match rustix::fs::statat(dir, name, flags) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Weight::default()),
        Err(errno) => return Err(fail(errno)),
    };
    let mut weight = Weight::of(&stat);
    if FileKind::of(&stat) == FileKind::Directory {
        match rustix::fs::openat(dir, name, directory(), Mode::empty()) {
            Ok(opened) => weight = weight.plus(below(opened.as_fd())?),
            // It went away meanwhile, or nobody may read it: it counts as one.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {}
            Err(errno) => return Err(fail(errno)),
        }
    }
    Ok(weight)
}

/// Is a directory on the way down.
struct Level {
    names: std::vec::IntoIter<Vec<u8>>,
    /// By which it is known again on the way up.
    id: (u64, u64),
}

/// Weighs what lies below a directory, at any depth, with one handle: the way up is `..`, and is held against where it
/// came from. It follows no link and enters no other device.
fn below(dir: BorrowedFd<'_>) -> Result<Weight> {
    let fail = |errno| Error::io("weigh", "a directory", errno);
    let mut here = rustix::fs::openat(dir, ".", directory(), Mode::empty()).map_err(fail)?;
    let stat = rustix::fs::fstat(&here).map_err(fail)?;
    let device = stat.st_dev;
    let mut levels = vec![Level::of(&here, &stat).map_err(fail)?];
    let mut weight = Weight::default();
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.next() else {
            levels.pop();
            let Some(above) = levels.last() else { break };
            let Some(up) = above_of(&here, above.id) else {
                // Another process moved it away, or closed it: what else is above is found the next time.
                break;
            };
            here = up;
            continue;
        };
        let Ok(stat) = rustix::fs::statat(&here, name.as_slice(), flags) else {
            continue;
        };
        weight = weight.plus(Weight::of(&stat));
        if FileKind::of(&stat) != FileKind::Directory || stat.st_dev != device {
            continue;
        }
        // One that nobody may read counts as one.
        let Ok(inner) = rustix::fs::openat(&here, name.as_slice(), directory(), Mode::empty()) else {
            continue;
        };
        // And so does one that there would be no way back from.
        if level_above(&levels).is_none_or(|id| above_of(&inner, id).is_none()) {
            continue;
        }
        let Ok(level) = rustix::fs::fstat(&inner).and_then(|stat| Level::of(&inner, &stat)) else {
            continue;
        };
        levels.push(level);
        here = inner;
    }
    Ok(weight)
}

fn level_above(levels: &[Level]) -> Option<(u64, u64)> {
    levels.last().map(|level| level.id)
}

/// Goes up, where that leads to the directory that is expected there.
fn above_of(dir: &OwnedFd, expected: (u64, u64)) -> Option<OwnedFd> {
    let up = rustix::fs::openat(dir, "..", directory(), Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&up).ok()?;
    ((stat.st_dev, stat.st_ino) == expected).then_some(up)
}

impl Level {
    fn of(dir: &OwnedFd, stat: &Stat) -> rustix::io::Result<Self> {
        let mut names = Vec::new();
        let mut buffer = [std::mem::MaybeUninit::uninit(); 16 << 10];
        let mut entries = rustix::fs::RawDir::new(dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        Ok(Self {
            names: names.into_iter(),
            id: (stat.st_dev, stat.st_ino),
        })
    }
}
