//! What recovery asks of a volume: what is staged, kept and in place, and the few moves that settle a call.
//!
//! It observes and carries out; which move is right is decided by `core`. Every move checks that what it touches
//! is what the intent names, and each may be repeated.

use crate::error::{Error, Result};
use crate::files::exchange::{keep_pre_image, kept_digest, undo_exchange};
use crate::files::read::FileKind;
use crate::files::remove::give_back;
use crate::files::{Durability, Expected, file_id_at, sync, syncable};
use crate::root::{LastLink, Place};
use crate::volume::Volume;
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use semel_core::ids::{ExecutionId, FileId};
use semel_core::recovery::Observation;
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

/// Says what a sweep of `staging/` came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The names that were discarded.
    pub discarded: Vec<String>,
    /// The names that are nobody's, but are no plain files: left for a person to look at.
    pub left: Vec<String>,
}

/// Looks where the things of one execution are; changes nothing.
///
/// # Errors
/// `io_failed` where a directory cannot be examined.
pub fn observe(volume: &Volume, execution: &ExecutionId, resolved: &RelPath) -> Result<Observation> {
    let name = execution.as_str().as_bytes();
    let target = match volume.tree().place(resolved, LastLink::Keep) {
        Ok(place) => file_id_at(&place.parent, &place.name)?,
        // Where the way is gone or leads elsewhere, the thing is not in its place.
        Err(Error::Refused(_)) => None,
        Err(error) => return Err(error),
    };
    Ok(Observation {
        staged: file_id_at(volume.staging(), name)?,
        trashed: file_id_at(volume.trash(), name)?,
        target,
    })
}

/// Discards the staged content of an execution that did not happen.
///
/// # Errors
/// `unknown_state` where `staging/` holds another file under this name, such as a pre-image: nothing is lost.
pub fn discard_staged(volume: &Volume, execution: &ExecutionId, staged: &FileId) -> Result<()> {
    let name = execution.as_str();
    match file_id_at(volume.staging(), name.as_bytes())? {
        None => Ok(()),
        Some(found) if found == *staged => rustix::fs::unlinkat(volume.staging(), name, AtFlags::empty())
            .map_err(|e| Error::io("discard", name, e)),
        Some(_) => Err(other_staged(name)),
    }
}

/// Finishes a replacement that happened: moves its pre-image from `staging/` to `trash/`, gives its digest, and
/// makes the whole effect durable.
///
/// # Errors
/// `unknown_state` where neither holds the named pre-image; [`Error::Unproven`] where it cannot be moved.
pub fn finish_exchange(
    volume: &Volume,
    execution: &ExecutionId,
    pre_image: &FileId,
    resolved: &RelPath,
    durability: Durability,
) -> Result<Option<Sha256>> {
    let name = execution.as_str();
    let staged = file_id_at(volume.staging(), name.as_bytes())?;
    if staged.as_ref() == Some(pre_image) {
        keep_pre_image(volume, name)?;
    } else if file_id_at(volume.trash(), name.as_bytes())?.as_ref() != Some(pre_image) {
        return Err(other_staged(name));
    }
    sync_effect(volume, resolved, durability)?;
    kept_digest(volume.trash(), name, Expected::Any)
}

/// Undoes a replacement whose pre-image is not the expected one.
///
/// # Errors
/// `outcome_unknown` where our file did not come out, with both sides kept; [`Error::Unproven`].
pub fn exchange_back(
    volume: &Volume,
    execution: &ExecutionId,
    resolved: &RelPath,
    staged: &FileId,
) -> Result<()> {
    let place = volume.tree().place(resolved, LastLink::Keep)?;
    undo_exchange(
        volume,
        execution.as_str(),
        (&place.parent, &place.name),
        resolved,
        staged,
    )
}

/// Puts back what a removal took by mistake.
///
/// # Errors
/// `outcome_unknown` where something new is in the place; [`Error::Unproven`].
pub fn put_back(volume: &Volume, execution: &ExecutionId, resolved: &RelPath) -> Result<()> {
    let Place { parent, name, .. } = volume.tree().place(resolved, LastLink::Keep)?;
    give_back(volume, execution.as_str(), &parent, &name, resolved)
}

/// Makes an effect that recovery found durable, where that was promised.
///
/// # Errors
/// [`Error::Unproven`] where a sync fails.
pub fn sync_effect(volume: &Volume, resolved: &RelPath, durability: Durability) -> Result<()> {
    if durability == Durability::Process {
        return Ok(());
    }
    match volume.tree().place(resolved, LastLink::Keep) {
        Ok(place) => sync(syncable(place.parent.as_fd())?, "the parent directory")?,
        Err(Error::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    sync(syncable(volume.staging())?, "staging")?;
    sync(syncable(volume.trash())?, "trash")
}

/// Discards what was staged by executions that no intent names: nothing outside of `staging/` ever showed it.
///
/// `keep` names every execution whose intent is open or whose outcome is unknown.
///
/// # Errors
/// `io_failed` where `staging/` cannot be read.
pub fn sweep_staging(volume: &Volume, keep: &BTreeSet<ExecutionId>) -> Result<Swept> {
    let staging = syncable(volume.staging())?;
    let root = RelPath::root();
    let names = super::read::entries(&staging, usize::MAX).map_err(|e| e.named(&root))?;
    let mut swept = Swept::default();
    for (name, _) in names {
        let shown = semel_core::path::shown(&name);
        if ExecutionId::parse(shown.as_str()).is_ok_and(|id| keep.contains(&id)) {
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let kind = rustix::fs::openat(&staging, name.as_slice(), flags, rustix::fs::Mode::empty())
            .and_then(|found| rustix::fs::fstat(&found))
            .map(|stat| FileKind::of(&stat));
        match kind {
            Ok(FileKind::File) => {
                rustix::fs::unlinkat(&staging, name.as_slice(), AtFlags::empty())
                    .map_err(|e| Error::io("discard", &shown, e))?;
                swept.discarded.push(shown);
            }
            Ok(_) => swept.left.push(shown),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(Error::io("examine", &shown, errno)),
        }
    }
    swept.discarded.sort();
    swept.left.sort();
    Ok(swept)
}

fn other_staged(name: &str) -> Error {
    let why = "staging or trash does not hold what the intent names";
    Refusal::new(Code::UnknownState, why)
        .reason("other_evidence")
        .name(name)
        .into()
}
