//! A disk that is full: whether anything new may begin, and which volumes hold the room.

use super::Engine;
use super::gateway::room;
use super::job::say::Say;
use semel_core::ids::{Generation, JobId};
use semel_core::volume::VolumeState;
use semel_core::{Code, Refusal};
use semel_host::files::{Weight, weigh_kept};

/// How many volumes are named.
const NAMED: usize = 3;
/// One that holds less than this is not worth to be named.
const LEAST: Weight = Weight {
    bytes: 1 << 20,
    entries: 1000,
};

/// Says whether a new volume may be made.
///
/// # Errors
/// `io_failed`, reason `disk_full`.
pub(super) fn enough(engine: &Engine) -> Result<(), Refusal> {
    match engine.volumes.space() {
        Ok(space) if room::scarce(space) => {
            let why = "the disk of the volumes is nearly full; nothing was begun";
            Err(Refusal::new(Code::IoFailed, why).reason(FULL))
        }
        // A disk that cannot be asked is left to tell by itself.
        Ok(_) | Err(_) => Ok(()),
    }
}

const FULL: &str = "disk_full";
/// What a person says to free a volume.
const FREES: &str = "semel volume destroy";

/// Says whether a refusal is for want of room.
pub(super) fn is_full(refusal: &Refusal) -> bool {
    refusal.reason.as_deref() == Some(FULL)
}

/// Names, where a refusal is for want of room, the ended volumes that hold the most.
pub(super) fn named(engine: &Engine, refusal: Refusal) -> Refusal {
    // Once is enough, whichever door it goes through.
    if !is_full(&refusal) || refusal.names.iter().any(|name| name.starts_with(FREES)) {
        return refusal;
    }
    // Whoever cannot be asked names nobody: the refusal is to be told all the same.
    let known = engine.journal.volumes(None).unwrap_or_default();
    let mut kept: Vec<(Weight, String)> = known
        .into_iter()
        .filter(|volume| matches!(volume.state, VolumeState::Clean | VolumeState::Quarantined))
        .filter_map(|volume| {
            let records = engine.volumes.records(&volume.job, &volume.generation).ok()?;
            let weight = weigh_kept(&records).ok()?;
            Some((weight, volume.generation.to_string()))
        })
        .filter(|(weight, _)| !weight.fits(LEAST))
        .collect();
    kept.sort_by_key(|(weight, _)| std::cmp::Reverse((weight.bytes, weight.entries)));
    let names = kept.into_iter().take(NAMED).map(|(weight, generation)| {
        format!(
            "{FREES} {generation} ({} MiB, {} files)",
            weight.bytes >> 20,
            weight.entries
        )
    });
    refusal.names(names)
}

/// Makes what an attempt is refused for of a disk that became full in it: much of it had been done.
pub(super) fn in_attempt(engine: &Engine, refusal: Refusal) -> Refusal {
    if !is_full(&refusal) {
        return refusal;
    }
    let refusal = match refusal.code {
        Code::IoFailed => {
            let why = format!("the disk became full during the attempt: {}", refusal.why);
            let names = refusal.names;
            Refusal::new(Code::QuotaExceeded, why).reason(FULL).names(names)
        }
        _ => refusal,
    };
    named(engine, refusal)
}

/// Frees the files of an attempt that ended for want of room: they are nobody's evidence, and would take the room of the next
/// attempt. Gives how to free them by hand where they stay.
pub(super) fn freed(engine: &Engine, job: &JobId, generation: &Generation, say: Say<'_>) -> Option<String> {
    match engine.volumes.free_files(job, generation) {
        Ok(freed) if freed.kept.is_empty() => {
            say.line(&format!(
                "free     {} entries of {generation}, which used up the room",
                freed.removed
            ));
            None
        }
        Ok(_) | Err(_) => {
            say.line(&format!(
                "free     the files of {generation} could not all be freed"
            ));
            Some(format!("{FREES} {generation}"))
        }
    }
}
