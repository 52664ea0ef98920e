//! Looks at executions: what became of one, and what it wrote. It asks a lock who lives, never a pid or a clock.

use super::place::{self, Claim, Place};
use super::{Status, Stream};
use crate::error::{Error, Result};
use crate::volume::Volume;
use semel_core::ids::ExecutionId;
use std::os::unix::fs::FileExt as _;

/// Says what became of an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// Its command has not begun. A shim that is on its way may still begin it, until somebody claims that none will:
    /// [`claim_never_begun`].
    NotBegun,
    /// Its command never began, and never will.
    NeverBegan,
    /// Its command runs, or is being ended.
    Running,
    /// Its command and all its descendants have ended.
    Ended(Box<Status>),
    /// Its shim is gone, with those it started, and left no status: whether the command had an effect is not known.
    /// What was left of its tree dies with them by the kernel's hand, but nobody has proved that it did.
    Lost,
}

/// Says what became of an execution.
///
/// # Errors
/// `unknown_state` where its directory cannot be understood; `io_failed`.
pub fn observe(volume: &Volume, execution: &ExecutionId) -> Result<Observation> {
    match Place::open(volume, execution)? {
        Some(place) => observed(&place),
        None => Ok(Observation::NotBegun),
    }
}

/// Says what became of the execution of an open directory.
pub(super) fn observed(place: &Place) -> Result<Observation> {
    match place.claimed()? {
        None => return Ok(Observation::NotBegun),
        Some(Claim::Never) => return Ok(Observation::NeverBegan),
        Some(Claim::Begun) => {}
    }
    // In this order: the locks are taken before the claim, and kept until after the status.
    let alive = place.alive()?;
    Ok(match (place.status()?, alive) {
        (Some(status), _) => Observation::Ended(Box::new(status)),
        (None, true) => Observation::Running,
        (None, false) => Observation::Lost,
    })
}

/// Claims that the command of an execution never began, and never will; gives what became of it.
///
/// The answer is [`Observation::NeverBegan`] exactly where the claim holds. A shim that comes later finds it, and
/// begins nothing; one that came before has claimed the execution for itself.
///
/// # Errors
/// As [`observe`].
///
/// # Durability
/// It holds for this boot of the machine, and no shim outlives that.
pub fn claim_never_begun(volume: &Volume, execution: &ExecutionId) -> Result<Observation> {
    let place = Place::open_or_make(volume, execution)?;
    place.claim(Claim::Never)?;
    observed(&place)
}

/// Lists the executions of a volume, from the first to the last, with what became of each.
///
/// # Errors
/// As [`observe`].
pub fn executions(volume: &Volume) -> Result<Vec<(ExecutionId, Observation)>> {
    let ids = place::ids(volume.meta())?.into_iter();
    ids.map(|id| observe(volume, &id).map(|seen| (id, seen)))
        .collect()
}

/// Lists the executions of a volume whose command runs.
///
/// # Errors
/// As [`observe`].
pub fn running(volume: &Volume) -> Result<Vec<ExecutionId>> {
    let all = executions(volume)?.into_iter();
    Ok(all
        .filter_map(|(id, seen)| (seen == Observation::Running).then_some(id))
        .collect())
}

/// Reads a piece of what a command wrote, also while it runs; empty where there is no more, or not yet.
///
/// # Errors
/// `unknown_state` where the stream is no plain file; `io_failed`.
///
/// # Limits
/// At most `max` bytes, and never more than the cap of the execution.
pub fn read_output(
    volume: &Volume,
    execution: &ExecutionId,
    stream: Stream,
    offset: u64,
    max: usize,
) -> Result<Vec<u8>> {
    let place = Place::open(volume, execution)?;
    let file = match &place {
        Some(place) => place.readable(stream.name())?,
        None => None,
    };
    let Some(file) = file else {
        return Ok(Vec::new());
    };
    let failed = |e| Error::io("read", stream.name(), e);
    let there = file.metadata().map_err(failed)?.len().saturating_sub(offset);
    let mut bytes = vec![0_u8; max.min(usize::try_from(there).unwrap_or(max))];
    let mut read = 0;
    while read < bytes.len() {
        let rest = bytes.get_mut(read..).unwrap_or_default();
        match file.read_at(rest, offset + read as u64) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e)),
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}
