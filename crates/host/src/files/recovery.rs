//! What recovery asks of a volume: what is staged, kept and in place, and the few moves that settle a call.
//!
//! It observes and carries out; which move is right is decided by `core`. Every move checks that what it touches
//! is what the intent names, and each may be repeated.

use crate::error::{Error, Result};
use crate::files::directory::{discard_directory, staged_directories_alone};
use crate::files::moves::{
    changed_outside, give_back, into_ours, keep_pre_image, kept_digest, take_free_name, undo_exchange,
};
use crate::files::prepared::Syncs;
use crate::files::read::FileKind;
use crate::files::relocate::{move_taken_back, restoration_taken_back};
use crate::files::remove::unreadable;
use crate::files::{Durability, Expected, file_id_at, links, mode};
use crate::root::{LastLink, Place};
use crate::volume::Volume;
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use semel_core::effect::{Content, Effect, Slot};
use semel_core::ids::{ExecutionId, FileId};
use semel_core::recovery::{Observation, Tidy};
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

/// Says what a sweep of `staging/` came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The names that were discarded.
    pub discarded: Vec<String>,
    /// The names that are nobody's, but hold what we did not put there: left for a person to look at.
    pub left: Vec<String>,
}

/// Looks where the things of one effect are; changes nothing.
///
/// # Errors
/// `io_failed` where a directory cannot be examined.
pub fn observe(volume: &Volume, slot: &Slot, effect: &Effect) -> Result<Observation> {
    let name = slot.as_str().as_bytes();
    let kept = match effect {
        Effect::Restore { kept, .. } => kept.as_str().as_bytes(),
        Effect::Install { .. }
        | Effect::Remove { .. }
        | Effect::RemoveEmpty { .. }
        | Effect::Move { .. }
        | Effect::SetMode { .. }
        | Effect::Run { .. }
        | Effect::Forward { .. } => name,
    };
    let target = place_of(volume, effect.at())?;
    let destination = match effect {
        Effect::Move { to, .. } => place_of(volume, to)?,
        Effect::Install { .. }
        | Effect::Remove { .. }
        | Effect::RemoveEmpty { .. }
        | Effect::Restore { .. }
        | Effect::SetMode { .. }
        | Effect::Run { .. }
        | Effect::Forward { .. } => None,
    };
    let there = |place: &Option<Place>| match place {
        Some(place) => seen(file_id_at(&place.parent, &place.name)),
        None => Ok(None),
    };
    let (staged, trashed) = (
        file_id_at(volume.staging(), name)?,
        file_id_at(volume.trash(), kept)?,
    );
    Ok(Observation {
        kept: stated_content(volume, slot, effect, (&staged, &trashed))?,
        staged,
        trashed,
        target: there(&target)?,
        destination: there(&destination)?,
        mode: target.as_ref().and_then(mode_at),
        // It is looked for where commands are: `exec`.
        run: None,
    })
}

/// Digests the pre-image where it lies, if its content was stated.
fn stated_content(
    volume: &Volume,
    slot: &Slot,
    effect: &Effect,
    (staged, trashed): (&Option<FileId>, &Option<FileId>),
) -> Result<Option<Sha256>> {
    let before = match effect {
        Effect::Install { before, .. } => before.as_ref(),
        Effect::Remove { before, .. } => Some(before),
        Effect::RemoveEmpty { .. }
        | Effect::Move { .. }
        | Effect::Restore { .. }
        | Effect::SetMode { .. }
        | Effect::Run { .. }
        | Effect::Forward { .. } => None,
    };
    let Some((before, stated)) = before.and_then(|before| Some((before, before.stated?))) else {
        return Ok(None);
    };
    let is_old = |id: &Option<FileId>| id.as_ref() == Some(&before.id);
    let dir = match (is_old(staged), is_old(trashed)) {
        (true, _) => volume.staging(),
        (false, true) => volume.trash(),
        (false, false) => return Ok(None),
    };
    kept_digest(dir, slot.as_str(), Expected::Sha256(stated))
}

/// Finds a place; `None` where the way is gone, closed or leads elsewhere: then the thing is not in its place.
fn place_of(volume: &Volume, path: &RelPath) -> Result<Option<Place>> {
    match volume.tree().place(path, LastLink::Keep) {
        Ok(place) => Ok(Some(place)),
        Err(Error::Refused(_)) => Ok(None),
        Err(error) => seen(Err(error)),
    }
}

/// Takes what may not be looked at for something that is not there: an agent closes its directories as it likes, and
/// must not keep the daemon from starting by that.
fn seen<T>(found: Result<Option<T>>) -> Result<Option<T>> {
    match found {
        Err(Error::Io { source, .. }) if unreadable(&source) => Ok(None),
        answer => answer,
    }
}

fn mode_at(place: &Place) -> Option<u32> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statat(&place.parent, place.name.as_slice(), flags).ok()?;
    Some(stat.st_mode & 0o7777)
}

/// Discards what was staged for an effect that did not happen, or was taken back.
///
/// # Errors
/// `unknown_state` where `staging/` holds another thing under this name, such as a pre-image; `outcome_unknown` where
/// another process put something into a staged directory: nothing is lost.
pub fn discard_staged(volume: &Volume, slot: &Slot, effect: &Effect) -> Result<()> {
    let Effect::Install { staged, content, .. } = effect else {
        return Ok(());
    };
    let name = slot.as_str();
    match file_id_at(volume.staging(), name.as_bytes())? {
        None => Ok(()),
        Some(found) if found == *staged => match content {
            Content::Directory { .. } => discard_directory(volume, name),
            Content::File { .. } => rustix::fs::unlinkat(volume.staging(), name, AtFlags::empty())
                .map_err(|e| Error::io("discard", name, e)),
        },
        Some(_) => Err(other_evidence(name)),
    }
}

/// Tidies up after one effect that happened, and gives the digest of its pre-image.
///
/// # Errors
/// `unknown_state` where neither `staging/` nor `trash/` holds the named pre-image; [`Error::Unproven`].
pub fn tidy(volume: &Volume, slot: &Slot, effect: &Effect, tidy: Tidy) -> Result<Option<Sha256>> {
    let name = slot.as_str();
    match tidy {
        Tidy::Nothing => {}
        Tidy::DropStaged => discard_staged(volume, slot, effect)?,
        Tidy::DropBoth => {
            discard_staged(volume, slot, effect)?;
            drop_link(volume, slot, effect)?;
        }
        Tidy::DropNames => drop_names(volume, slot, effect)?,
        Tidy::KeepPreImage => {
            let Some(pre_image) = pre_image(effect) else {
                return Err(other_evidence(name));
            };
            if file_id_at(volume.staging(), name.as_bytes())?.as_ref() == Some(pre_image) {
                keep_pre_image(volume, name)?;
            } else if file_id_at(volume.trash(), name.as_bytes())?.as_ref() != Some(pre_image) {
                return Err(other_evidence(name));
            }
        }
    }
    match effect {
        Effect::Install { before: Some(_), .. } | Effect::Remove { .. } => {
            match kept_digest(volume.trash(), name, Expected::Any) {
                Ok(digest) => Ok(digest),
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        }
        Effect::Install { before: None, .. }
        | Effect::RemoveEmpty { .. }
        | Effect::Move { .. }
        | Effect::Restore { .. }
        | Effect::SetMode { .. }
        | Effect::Run { .. }
        | Effect::Forward { .. } => Ok(None),
    }
}

fn pre_image(effect: &Effect) -> Option<&FileId> {
    match effect {
        Effect::Install { before, .. } => before.as_ref().map(|b| &b.id),
        Effect::Remove { .. }
        | Effect::RemoveEmpty { .. }
        | Effect::Move { .. }
        | Effect::Restore { .. }
        | Effect::SetMode { .. }
        | Effect::Run { .. }
        | Effect::Forward { .. } => None,
    }
}

/// Drops the second names in `staging/` and `trash/` of what keeps its name in the tree: done before a call that never
/// happened is settled, since nothing would name them afterwards.
///
/// # Errors
/// `io_failed`.
pub fn drop_second_names(volume: &Volume, slot: &Slot, effect: &Effect, tidy: Tidy) -> Result<()> {
    match tidy {
        Tidy::DropBoth => drop_link(volume, slot, effect),
        Tidy::DropNames => drop_names(volume, slot, effect),
        Tidy::Nothing | Tidy::DropStaged | Tidy::KeepPreImage => Ok(()),
    }
}

/// Drops the second name in `trash/` of a file that was not replaced in the end.
fn drop_link(volume: &Volume, slot: &Slot, effect: &Effect) -> Result<()> {
    let name = slot.as_str();
    let found = file_id_at(volume.trash(), name.as_bytes())?;
    let place = place_of(volume, effect.at())?;
    let named = match &place {
        Some(place) => file_id_at(&place.parent, &place.name)?,
        None => None,
    };
    // Only a second name is dropped, never the last one.
    if found.is_some() && found == named {
        rustix::fs::unlinkat(volume.trash(), name, AtFlags::empty())
            .map_err(|e| Error::io("discard", name, e))?;
    }
    Ok(())
}

/// Drops the names outside of the tree of what was moved, where the filesystem renames by second names.
fn drop_names(volume: &Volume, slot: &Slot, effect: &Effect) -> Result<()> {
    let (ours, what, paths) = match effect {
        Effect::Move { from, to, what } => (slot, what, vec![from, to]),
        Effect::Restore { at, kept, what } => (kept, what, vec![at]),
        Effect::Install { .. }
        | Effect::Remove { .. }
        | Effect::RemoveEmpty { .. }
        | Effect::SetMode { .. }
        | Effect::Run { .. }
        | Effect::Forward { .. } => return Ok(()),
    };
    for path in paths {
        if let Some(place) = place_of(volume, path)? {
            let named = (place.parent.as_fd(), place.name.as_slice());
            for dir in [volume.staging(), volume.trash()] {
                links::drop_name(dir, ours.as_str(), &what.id, named)?;
            }
        }
    }
    Ok(())
}

/// Takes one effect back that happened, or happened by half; what did not happen, or was taken back before, is left as it is.
///
/// # Errors
/// `outcome_unknown` where something outside changed the same path, with everything kept; [`Error::Unproven`].
pub fn roll_back(volume: &Volume, slot: &Slot, effect: &Effect) -> Result<()> {
    // Where the way is gone, another process changed it.
    let at = |path: &RelPath| {
        place_of(volume, path)?.ok_or_else(|| changed_outside(volume, "tree", &path.to_string(), path))
    };
    match effect {
        Effect::Install {
            at: path,
            staged,
            content,
            before,
        } => match before {
            Some(before) => put_pre_image_back(volume, slot, &at(path)?, (staged, &before.id)),
            None => take_out(volume, slot, &at(path)?, staged, content),
        },
        Effect::Remove { at: path, .. } => {
            let name = slot.as_str().as_bytes();
            // Whatever is kept there was taken from this name, the right thing or not.
            if file_id_at(volume.trash(), name)?.is_none() {
                return Ok(());
            }
            let place = at(path)?;
            let to = (place.parent.as_fd(), place.name.as_slice());
            give_back(volume, (volume.trash(), name), to, path, "trash")
        }
        Effect::Move { from, to, what } => move_taken_back(volume, slot, (&at(from)?, &at(to)?), &what.id),
        Effect::Restore { at: path, kept, what } => {
            let place = at(path)?;
            if file_id_at(volume.trash(), kept.as_str().as_bytes())?.as_ref() == Some(&what.id) {
                // Where the filesystem renames by second names, it may have the new one, too.
                let named = (place.parent.as_fd(), place.name.as_slice());
                let by = (volume.staging(), slot.as_str().as_bytes());
                return links::take_new_name(volume, (named, by), &what.id, path);
            }
            restoration_taken_back(volume, &place, &what.id, kept)
        }
        Effect::SetMode {
            at: path, id, before, ..
        } => {
            let place = at(path)?;
            let file = volume
                .tree()
                .step(place.parent.as_fd(), &place.name, OFlags::PATH)
                .map_err(|errno| match errno {
                    Errno::NOENT => changed_outside(volume, "tree", &path.to_string(), path),
                    errno => crate::root::failed(errno, path),
                })?;
            if super::file_id(&file)? == *id {
                mode::set(&file, *before, path)
            } else {
                Err(changed_outside(volume, "tree", &path.to_string(), path))
            }
        }
        Effect::Run { cwd } => {
            let why = "what a command did cannot be taken back";
            Err(Refusal::new(Code::OutcomeUnknown, why)
                .name(cwd.to_string())
                .into())
        }
        Effect::Forward { to, tool } => {
            let why = "what another server did cannot be taken back";
            Err(Refusal::new(Code::OutcomeUnknown, why)
                .name(format!("{to}: {tool}"))
                .into())
        }
        // It is gone for good: no call does anything after it.
        Effect::RemoveEmpty { at: path, .. } => {
            let why = "an empty directory that was removed is not made again";
            Err(Refusal::new(Code::OutcomeUnknown, why)
                .name(path.to_string())
                .into())
        }
    }
}

fn put_pre_image_back(
    volume: &Volume,
    slot: &Slot,
    place: &Place,
    (staged, pre_image): (&FileId, &FileId),
) -> Result<()> {
    let name = slot.as_str();
    let to = (&place.parent, place.name.as_slice());
    let (in_staging, in_trash) = (
        file_id_at(volume.staging(), name.as_bytes())?,
        file_id_at(volume.trash(), name.as_bytes())?,
    );
    if in_staging.as_ref() == Some(staged) {
        // It was taken back before, unless the filesystem renames by second names, and it was by half.
        let half = in_trash.is_some() && file_id_at(&place.parent, &place.name)?.as_ref() == Some(staged);
        return if half {
            links::give_place_back(volume, name, to, &place.resolved, staged)
        } else {
            Ok(())
        };
    }
    match (&in_staging, &in_trash) {
        (None, Some(kept)) if kept == pre_image => {
            rustix::fs::renameat(volume.trash(), name, volume.staging(), name)
                .map_err(|e| Error::unproven("put back the pre-image of", name, e))?;
        }
        // What an exchange took out of the place, the pre-image or not.
        (Some(_), None) => {}
        (None, _) | (Some(_), Some(_)) => return Err(other_evidence(name)),
    }
    match undo_exchange(volume, name, to, &place.resolved, staged) {
        Ok(()) => Ok(()),
        Err(error) if error.code() == Code::OutcomeUnknown && !error.poisons() => {
            // Kept where a sweep does not look.
            if file_id_at(volume.trash(), name.as_bytes())?.is_none() {
                keep_pre_image(volume, name)?;
            }
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// Takes what was installed under a free name back into `staging/`.
fn take_out(volume: &Volume, slot: &Slot, place: &Place, staged: &FileId, content: &Content) -> Result<()> {
    let name = slot.as_str();
    let path = &place.resolved;
    let to = (place.parent.as_fd(), place.name.as_slice());
    let has_name = file_id_at(to.0, to.1)?.as_ref() == Some(staged);
    if file_id_at(volume.staging(), name.as_bytes())?.as_ref() == Some(staged) {
        // Where the filesystem renames by second names, it may have the new one, too.
        let by = (volume.trash(), name.as_bytes());
        return links::take_new_name(volume, (to, by), staged, path);
    }
    if !has_name {
        return Err(changed_outside(volume, "tree", &path.to_string(), path));
    }
    match into_ours(to.0, to.1, volume.staging(), name) {
        Ok(()) => {}
        Err(errno) if super::moves::out_of_reach(errno) => {
            return Err(changed_outside(volume, "tree", &path.to_string(), path));
        }
        Err(errno) => return Err(Error::unproven("take back", path.to_string(), errno)),
    }
    let ours = file_id_at(volume.staging(), name.as_bytes())?.as_ref() == Some(staged);
    let alone = match content {
        Content::File { .. } => true,
        Content::Directory { .. } => staged_directories_alone(volume, name)?,
    };
    if ours && alone {
        return Ok(());
    }
    take_free_name(volume.staging(), name.as_bytes(), to.0, to.1)
        .map_err(|left| Error::unproven("put back", path.to_string(), left.errno()))?;
    Err(changed_outside(volume, "tree", &path.to_string(), path))
}

/// Makes effects durable that recovery found or took back, where that was promised.
///
/// # Errors
/// [`Error::Unproven`] where a sync fails.
pub fn sync_settled(volume: &Volume, effects: &[Effect], durability: Durability) -> Result<()> {
    if durability == Durability::Process {
        return Ok(());
    }
    let mut places = Vec::new();
    for effect in effects {
        places.extend(place_of(volume, effect.at())?);
        match effect {
            Effect::Move { to, .. } => places.extend(place_of(volume, to)?),
            // Permissions are the file's own.
            Effect::SetMode { at, .. } => mode::sync_permissions(volume, at)?,
            Effect::Install { .. }
            | Effect::Remove { .. }
            | Effect::RemoveEmpty { .. }
            | Effect::Restore { .. }
            | Effect::Run { .. }
            | Effect::Forward { .. } => {}
        }
    }
    let places: Vec<&Place> = places.iter().collect();
    Syncs::open(volume, &places, durability)?.sync_after()
}

/// Discards what was staged by executions that no intent names: nothing outside of `staging/` ever showed it.
///
/// `keep` names every execution whose intent is open or whose outcome is unknown.
///
/// # Errors
/// `io_failed` where `staging/` cannot be read.
pub fn sweep_staging(volume: &Volume, keep: &BTreeSet<ExecutionId>) -> Result<Swept> {
    let staging = super::syncable(volume.staging())?;
    let root = RelPath::root();
    let names = super::read::entries(&staging, usize::MAX).map_err(|e| e.named(&root))?;
    let mut swept = Swept::default();
    for (name, _) in names {
        let shown = semel_core::path::shown(&name);
        let slot = Slot::parse(&shown);
        if slot.as_ref().is_ok_and(|slot| keep.contains(slot.execution())) {
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let kind = rustix::fs::openat(&staging, name.as_slice(), flags, rustix::fs::Mode::empty())
            .and_then(|found| rustix::fs::fstat(&found))
            .map(|stat| FileKind::of(&stat));
        match (kind, slot) {
            (Ok(FileKind::File), _) => {
                rustix::fs::unlinkat(&staging, name.as_slice(), AtFlags::empty())
                    .map_err(|e| Error::io("discard", &shown, e))?;
                swept.discarded.push(shown);
            }
            (Ok(FileKind::Directory), Ok(slot)) => match discard_directory(volume, slot.as_str()) {
                Ok(()) => swept.discarded.push(shown),
                Err(error) if error.code() == Code::OutcomeUnknown => swept.left.push(shown),
                Err(error) => return Err(error),
            },
            (Ok(_), _) => swept.left.push(shown),
            (Err(Errno::NOENT), _) => {}
            (Err(errno), _) => return Err(Error::io("examine", &shown, errno)),
        }
    }
    swept.discarded.sort();
    swept.left.sort();
    Ok(swept)
}

fn other_evidence(name: &str) -> Error {
    let why = "staging or trash does not hold what the intent names";
    Refusal::new(Code::UnknownState, why)
        .reason("other_evidence")
        .name(name)
        .into()
}
