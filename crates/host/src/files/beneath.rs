//! What goes with a directory that is removed or moved: looked through by the very handle that the effect acts on.
//!
//! It follows no link, enters no mount, and decides nothing. An outside process may put more in afterwards; the
//! gateway's own calls wait, since such an effect holds its volume alone.

use crate::error::{Error, Result};
use crate::files::file_id;
use crate::files::prepared::{Act, Prepared};
use crate::files::read::{FileKind, entries};
use crate::root::Root;
use crate::volume::Volume;
use rustix::fs::OFlags;
use semel_core::ids::FileId;
use semel_core::ignore::EntryKind;
use semel_core::policy::{Beneath, Entry};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// A path has so many names at most.
const DEEPEST: usize = 64;

impl Prepared {
    /// Lists what is in the directory that the effect removes or moves.
    ///
    /// # Errors
    /// `io_failed` where the directory itself cannot be examined.
    ///
    /// # Limits
    /// Beyond `most` entries or 64 levels, or where a part may not be read or lies on another mount, it is
    /// [`Beneath::Unseen`].
    pub fn beneath(&self, volume: &Volume, most: usize) -> Result<Beneath> {
        let (dir, name, id) = match &self.act {
            Act::Install(_) | Act::MakeDirectory(_) | Act::SetMode(_) => return Ok(Beneath::Nothing),
            // The kernel removes it only while nothing is in it.
            Act::RemoveEmpty(_) => return Ok(Beneath::Seen(Vec::new())),
            Act::Remove(removal) => removal.source(),
            Act::Move(relocation) => relocation.source(volume),
        };
        look_through(volume.tree(), (dir, name), id, most)
    }
}

fn look_through(
    root: &Root,
    (dir, name): (BorrowedFd<'_>, &[u8]),
    id: &FileId,
    most: usize,
) -> Result<Beneath> {
    let examined = |errno| Error::io("examine", semel_core::path::shown(name), errno);
    let found = root.step(dir, name, OFlags::PATH).map_err(examined)?;
    let stat = rustix::fs::fstat(&found).map_err(examined)?;
    if FileKind::of(&stat) != FileKind::Directory {
        return Ok(Beneath::Nothing);
    }
    if file_id(&found)? != *id {
        // Another process exchanged it: the effect will refuse. Until then nobody knows what is in it.
        return Ok(Beneath::Unseen);
    }
    let mut all = Vec::new();
    match collect(root, &found, &[], DEEPEST, most, &mut all) {
        Some(()) => {
            all.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(Beneath::Seen(all))
        }
        None => Ok(Beneath::Unseen),
    }
}

/// Collects what is in a directory; `None` where not all of it can be seen.
fn collect(
    root: &Root,
    dir: &OwnedFd,
    path: &[u8],
    levels: usize,
    most: usize,
    all: &mut Vec<Entry>,
) -> Option<()> {
    let levels = levels.checked_sub(1)?;
    for (name, kind) in entries(dir, most.checked_sub(all.len())?).ok()? {
        let mut below = path.to_vec();
        if !below.is_empty() {
            below.push(b'/');
        }
        below.extend_from_slice(&name);
        // Some filesystems do not tell the type along with the name: then it is looked at.
        let inner = match kind {
            FileKind::File | FileKind::Symlink => None,
            FileKind::Directory | FileKind::Special => {
                let found = root.step(dir.as_fd(), &name, OFlags::PATH).ok()?;
                let stat = rustix::fs::fstat(&found).ok()?;
                (FileKind::of(&stat) == FileKind::Directory).then_some(found)
            }
        };
        all.push(Entry {
            path: below.clone(),
            kind: if inner.is_some() {
                EntryKind::Directory
            } else {
                EntryKind::Other
            },
        });
        if let Some(inner) = inner {
            collect(root, &inner, &below, levels, most, all)?;
        }
    }
    Some(())
}
