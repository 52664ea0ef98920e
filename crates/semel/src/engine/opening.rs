//! Who still makes a volume: a hold that is taken before the journal hears of it, and let go when it is ready.
//!
//! A volume that is being opened, and that nobody holds, was left by a process that died.

use super::{Engine, host};
use crate::wire::{Absent, Link};
use semel_core::Refusal;
use semel_core::ids::Generation;
use semel_core::volume::{NewVolume, VolumeState};
use semel_host::hold::{Hold, Taken};
use semel_host::plain;
use std::path::PathBuf;

/// Is held while a volume is made.
#[derive(Debug)]
pub(super) struct Opening {
    place: PathBuf,
    _hold: Option<Hold>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        // One that stays is taken away with the volume, or by whoever comes upon it.
        drop(plain::remove_file(&self.place));
    }
}

fn place(engine: &Engine, generation: &Generation) -> PathBuf {
    engine.config.state.join("run/opening").join(generation.as_str())
}

/// Takes the hold of a generation that nobody else knows yet.
///
/// # Errors
/// `io_failed`.
pub(super) fn take(engine: &Engine, generation: &Generation) -> Result<Opening, Refusal> {
    let place = place(engine, generation);
    if let Some(directory) = place.parent() {
        plain::private_directory(directory).map_err(host)?;
    }
    let hold = Hold::take(&place).map_err(host)?;
    Ok(Opening { place, _hold: hold })
}

/// Says whether somebody still makes a volume that is being opened.
///
/// # Errors
/// `io_failed`.
pub(super) fn is_held(engine: &Engine, generation: &Generation) -> Result<bool, Refusal> {
    Hold::is_taken(&place(engine, generation))
        .map(|taken| taken == Taken::Yes)
        .map_err(host)
}

/// Forgets a hold that a process left that died.
pub(super) fn forget(engine: &Engine, generation: &Generation) {
    drop(plain::remove_file(&place(engine, generation)));
}

/// Has what was left of a job by a process that died ended; says whether anything was.
///
/// # Errors
/// `daemon_unreachable`; those of ending.
pub(super) fn left(engine: &Engine, new: &NewVolume) -> Result<bool, Refusal> {
    let of = |engine: &Engine| -> Result<usize, Refusal> {
        let volumes = engine
            .journal
            .volumes(Some(new.job.clone()))
            .map_err(super::store)?;
        let open = volumes.iter().filter(|volume| {
            volume.role == new.role && matches!(volume.state, VolumeState::Open | VolumeState::Opening)
        });
        Ok(open.count())
    };
    let before = of(engine)?;
    // Whoever looks at the daemon has it end what lost its owner.
    Link::new(engine.config.clone(), Absent::Start).admin("GET", "/v1/admin/status", Vec::new())?;
    Ok(of(engine)? < before)
}
