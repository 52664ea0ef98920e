//! Setting permissions once: absolute, on the open file itself.

use crate::error::{Error, Result};
use crate::files::moves::changed;
use crate::files::prepared::{Act, Prepared, Syncs, Terms};
use crate::files::read::{FileKind, links};
use crate::files::remove::{as_not_found, look};
use crate::files::write::target_place;
use crate::files::{Durability, Expected, Step, Steps, file_id_at};
use crate::root::LastLink;
use crate::volume::Volume;
use rustix::fs::{Mode, OFlags};
use semel_core::effect::Effect;
use semel_core::ids::FileId;
use semel_core::{Code, Refusal, RelPath};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;

/// States a change of permissions.
#[derive(Clone, Copy, Debug)]
pub struct SetMode<'a> {
    /// Of what; a link in the last place is followed if it stays inside.
    pub path: &'a RelPath,
    /// The permissions, of `0o777`.
    pub mode: u32,
    /// What is expected there.
    pub expected: Expected,
}

/// Holds a change of permissions that nothing shows yet.
#[derive(Debug)]
pub(super) struct ModeSetting {
    /// The file itself, opened with `O_PATH`.
    file: OwnedFd,
    parent: OwnedFd,
    name: Vec<u8>,
    id: FileId,
    mode: u32,
}

/// Looks at what is to get other permissions; changes nothing.
///
/// # Errors
/// `not_found`; `precondition_failed` where `expected` does not hold, and for a file with other names, whose
/// permissions would change outside, too (reason `hard_link`); `path_escapes_root`, also for more than `0o777`.
pub fn prepare_set_mode(volume: &Volume, wanted: SetMode<'_>, terms: Terms<'_>) -> Result<Prepared> {
    let place = target_place(volume, wanted.path, LastLink::Follow, terms.git).map_err(as_not_found)?;
    let seen = look(volume, &place)?;
    if seen.kind == FileKind::Symlink {
        // It was followed a moment ago, or was none; a link has no permissions of its own.
        return Err(changed(
            "another process put a link in the place of the file",
            &place.resolved,
        ));
    }
    if wanted.mode & !0o777 != 0 {
        return Err(Refusal::new(
            Code::PathEscapesRoot,
            "setuid, setgid and sticky bits are not set",
        )
        .reason("special_mode")
        .name(place.resolved.to_string())
        .into());
    }
    if seen.kind == FileKind::File && links(&seen.stat) > 1 {
        let why = "the file has other names, whose permissions would change, too";
        return Err(seen.refuse("hard_link", why));
    }
    if wanted.expected != Expected::Any {
        seen.before(volume, &place, wanted.expected, terms.gone)?;
    }
    let mut syncs = Syncs::of(volume, terms.durability);
    if terms.durability != Durability::Process {
        syncs
            .after
            .push((Arc::new(openable(&seen.found, volume)?), "the file"));
    }
    Ok(Prepared {
        slot: terms.slot.clone(),
        syncs,
        effect: Effect::SetMode {
            at: place.resolved,
            id: seen.id.clone(),
            before: seen.stat.st_mode & 0o7777,
            after: wanted.mode,
        },
        act: Act::SetMode(ModeSetting {
            file: seen.found,
            parent: place.parent,
            name: place.name,
            id: seen.id,
            mode: wanted.mode,
        }),
    })
}

/// Opens what can be synced of a file: itself, or where it may not be read, a directory of its filesystem.
fn openable(file: &OwnedFd, volume: &Volume) -> Result<OwnedFd> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::open(
        own.as_str(),
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        Ok(open) => Ok(open),
        Err(_) => super::syncable(volume.staging()),
    }
}

/// Makes the permissions of a file durable; does nothing where there is none.
///
/// # Errors
/// [`Error::Unproven`] where the sync fails.
pub(super) fn sync_permissions(volume: &Volume, path: &RelPath) -> Result<()> {
    let Ok(place) = volume.tree().place(path, LastLink::Keep) else {
        return Ok(());
    };
    let found = volume
        .tree()
        .step(place.parent.as_fd(), &place.name, OFlags::PATH);
    let kind = |file: &OwnedFd| rustix::fs::fstat(file).map(|stat| FileKind::of(&stat));
    match found {
        // Never a device, which acts when it is opened.
        Ok(file) if matches!(kind(&file), Ok(FileKind::File | FileKind::Directory)) => {
            super::sync(openable(&file, volume)?, "the file")
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

impl ModeSetting {
    pub(super) fn carry_out(&self, prepared: &Prepared, steps: &dyn Steps) -> Result<()> {
        let path = prepared.effect.at();
        if file_id_at(&self.parent, &self.name)?.as_ref() != Some(&self.id) {
            return Err(changed("another process replaced the file", path));
        }
        steps.reached(Step::TargetSeen);
        set(&self.file, self.mode, path)?;
        steps.reached(Step::ModeSet);
        Ok(())
    }
}

/// Sets the permissions of an open file, also of one opened with `O_PATH`.
pub(super) fn set(file: &OwnedFd, mode: u32, path: &RelPath) -> Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::chmod(own.as_str(), Mode::from_raw_mode(mode))
        .map_err(|e| Error::io("set the permissions of", path.to_string(), e))
}
