//! `semel cancel`: ends a running job; its process ends its tree, marks what it held dirty, and records it.

use super::run::{self, hold_place};
use crate::engine::{Engine, host, store, volume};
use semel_core::ids::JobId;
use semel_core::pipeline::RunEnd;
use semel_core::volume::{End, Owner, VolumeState};
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::hold::{Hold, Told};

/// Says what a cancellation found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// A process that runs the job was told to end.
    Told,
    /// Nobody ran it any more; what it had left open is ended.
    Buried,
}

/// Ends a running job.
///
/// # Errors
/// `not_found` where the job has no unfinished run; `volume_busy` where another process took it up just now.
pub(crate) fn cancel(engine: &Engine, job: &JobId) -> Result<Cancelled, Refusal> {
    let place = hold_place(&engine.config.state, job);
    if Hold::tell(&place).map_err(host)? == Told::Yes {
        return Ok(Cancelled::Told);
    }
    // From here on nobody begins to work on it.
    let _held = run::take(engine, job)?;
    let last = engine
        .journal
        .last_run(job.clone())
        .map_err(store)?
        .filter(|run| run.end.is_none());
    let run =
        last.ok_or_else(|| Refusal::new(Code::NotFound, "the job has no unfinished run").name(job.as_str()))?;
    for left in engine.journal.volumes(Some(job.clone())).map_err(store)? {
        let open = matches!(left.state, VolumeState::Open | VolumeState::Opening);
        if open && left.owner == Owner::Process {
            volume::end(
                engine,
                &left.generation,
                End::Dirty {
                    reason: "cancelled".to_owned(),
                },
            )?;
        }
    }
    engine
        .journal
        .end_run(run.new.run, RunEnd::Cancelled, clock::now())
        .map_err(store)?;
    Ok(Cancelled::Buried)
}
