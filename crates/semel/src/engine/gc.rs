//! `semel gc`: frees what is past retention, and nothing that a living generation or a certificate needs.
//!
//! Records are never freed: what was done stays known when its files are gone. What calls of open volumes keep for
//! `undo` is freed by the daemon, which alone can hold `undo` off meanwhile.

use super::{Engine, certify, host, proposal, store, volume};
use crate::wire::{Absent, Link};
use semel_core::ids::{ExecutionId, Generation, UnixMs};
use semel_core::volume::VolumeState;
use semel_core::{Code, Refusal, Sha256};
use semel_host::clock;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

/// Says whether things are freed or only named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// They are freed.
    Free,
    /// They are only named.
    DryRun,
}

/// Says what is past retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ages {
    /// How long ago volumes ended, proposals were sealed, and calls of open volumes began.
    pub(crate) files: Duration,
    /// How long ago destroyed volumes ended whose receipts expire.
    pub(crate) receipts: Duration,
}

/// Is what was freed, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Freed {
    /// Volumes, by generation.
    pub(crate) volumes: Vec<Generation>,
    /// Proposals, by digest.
    pub(crate) proposals: Vec<Sha256>,
    /// Calls of open volumes that cannot be undone any more.
    pub(crate) pre_images: Vec<ExecutionId>,
    /// Generations whose receipts expired.
    pub(crate) receipts: Vec<Generation>,
    /// Sealed trees that no volume lies over, by name.
    pub(crate) lowers: Vec<String>,
    /// What could not be removed.
    pub(crate) kept: Vec<String>,
}

fn ago(age: Duration) -> UnixMs {
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    UnixMs(clock::now().0.saturating_sub(age))
}

/// Frees ended volumes, proposals that nothing refers to, and what calls of open volumes keep for `undo`, older than an
/// age; lets the receipts of destroyed volumes expire.
///
/// # Errors
/// `store_unavailable`, `daemon_unreachable`, `io_failed`.
pub(crate) fn gc(engine: &Engine, ages: Ages, act: Act) -> Result<Freed, Refusal> {
    let before = ago(ages.files);
    let mut freed = Freed::default();
    let unfinished = unfinished(engine)?;
    evict(engine, before, act, &mut freed)?;
    for known in engine.journal.volumes(None).map_err(store)? {
        let ended = matches!(known.state, VolumeState::Clean | VolumeState::Quarantined);
        let old = known.ended_at.is_some_and(|at| at < before);
        if !ended || !old || unfinished.generations.contains(&known.generation) {
            continue;
        }
        // A certificate whose envelope was recorded but not written is made from the volume's statement.
        if known.role == semel_core::volume::Role::Cert
            && engine
                .journal
                .judgement(known.generation.clone())
                .map_err(store)?
                .is_some()
            && act == Act::Free
        {
            certify::heal(engine, &known.generation)?;
        }
        if act == Act::Free {
            let (_, kept) = volume::destroy(engine, &known.generation)?;
            freed.kept.extend(kept);
        }
        freed.volumes.push(known.generation);
    }
    for (digest, at) in proposal::list(engine)? {
        let judged = engine.journal.judgements(digest).map_err(store)?;
        let needed = judged.iter().any(|judgement| judgement.refusal.is_none());
        if at >= before || needed || unfinished.proposals.contains(&digest) {
            continue;
        }
        if act == Act::Free {
            proposal::remove(engine, &digest)?;
        }
        freed.proposals.push(digest);
    }
    match act {
        Act::DryRun => freed.lowers = engine.volumes.lowers_to_free(ages.files).map_err(host)?,
        Act::Free => {
            certify::clear(&engine.config.state)?;
            let (names, reaped) = engine.volumes.free_lowers(ages.files).map_err(host)?;
            freed.lowers = names;
            freed.kept.extend(reaped.kept.into_iter().map(|kept| kept.path));
        }
    }
    expire(engine, ago(ages.receipts), &unfinished, act, &mut freed)?;
    Ok(freed)
}

/// Is what the daemon says of the pre-images that it freed.
#[derive(Debug, Deserialize)]
struct Evicted {
    calls: Vec<ExecutionId>,
    busy: Vec<Generation>,
}

/// Asks the daemon to free what calls of open volumes keep.
fn evict(engine: &Engine, before: UnixMs, act: Act, freed: &mut Freed) -> Result<(), Refusal> {
    let act = match act {
        Act::Free => "free",
        Act::DryRun => "dry_run",
    };
    let body = json!({"before": before, "act": act}).to_string();
    let link = Link::new(engine.config.clone(), Absent::Start);
    let answer = link.admin("POST", "/v1/admin/evict", body.into_bytes())?;
    let answer: Evicted = serde_json::from_value(answer)
        .map_err(|e| Refusal::new(Code::Internal, format!("the daemon answers otherwise: {e}")))?;
    freed.pre_images = answer.calls;
    let busy = |of: &Generation| format!("{of} (a call holds the volume)");
    freed.kept.extend(answer.busy.iter().map(busy));
    Ok(())
}

/// Lets the receipts of destroyed volumes expire that ended before a moment. A call whose outcome is unknown keeps those
/// of its volume.
fn expire(
    engine: &Engine,
    before: UnixMs,
    unfinished: &Unfinished,
    act: Act,
    freed: &mut Freed,
) -> Result<(), Refusal> {
    for known in engine.journal.volumes(None).map_err(store)? {
        // With the very same call a volume may have been freed that would only have been named.
        let gone = known.state == VolumeState::Destroyed || freed.volumes.contains(&known.generation);
        let old = known.ended_at.is_some_and(|at| at < before);
        let needed = unfinished.generations.contains(&known.generation);
        if !gone || !old || needed || known.receipts_expired_at.is_some() {
            continue;
        }
        if act == Act::Free {
            match engine
                .journal
                .expire_receipts(known.generation.clone(), clock::now())
            {
                Ok(_) => {}
                Err(error) => {
                    let refusal = store(error);
                    // What could not be removed of it keeps it from being destroyed, too.
                    if !matches!(refusal.code, Code::OutcomeUnknown | Code::VolumeBusy) {
                        return Err(refusal);
                    }
                    freed
                        .kept
                        .push(format!("receipts of {} ({})", known.generation, refusal.why));
                    continue;
                }
            }
        }
        freed.receipts.push(known.generation);
    }
    Ok(())
}

#[derive(Default)]
struct Unfinished {
    generations: BTreeSet<Generation>,
    proposals: BTreeSet<Sha256>,
}

/// Gives what runs that have not ended may still go back to.
fn unfinished(engine: &Engine) -> Result<Unfinished, Refusal> {
    use semel_core::pipeline::Stage;
    let mut needed = Unfinished::default();
    for run in engine
        .journal
        .runs()
        .map_err(store)?
        .into_iter()
        .filter(|run| run.end.is_none())
    {
        for stage in run.stages {
            match stage {
                Stage::Drafted { generation } | Stage::AgentEnded { generation } => {
                    needed.generations.insert(generation);
                }
                Stage::Sealed { proposal, .. } => {
                    needed.proposals.insert(proposal);
                }
                Stage::Certified { generation, .. } => {
                    needed.generations.insert(generation);
                }
                Stage::Delivered { .. } => {}
            }
        }
    }
    Ok(needed)
}
