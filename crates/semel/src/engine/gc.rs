//! `semel gc`: frees what is past retention, and nothing that a living generation or a certificate needs.
//!
//! Records are never freed: what was done stays known when its files are gone.

use super::{Engine, certify, proposal, store, volume};
use semel_core::ids::{Generation, UnixMs};
use semel_core::volume::VolumeState;
use semel_core::{Refusal, Sha256};
use semel_host::clock;
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

/// Is what was freed, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Freed {
    /// Volumes, by generation.
    pub(crate) volumes: Vec<Generation>,
    /// Proposals, by digest.
    pub(crate) proposals: Vec<Sha256>,
    /// What could not be removed.
    pub(crate) kept: Vec<String>,
}

/// Frees ended volumes, and proposals that nothing refers to, older than an age.
///
/// # Errors
/// `store_unavailable`, `io_failed`.
pub(crate) fn gc(engine: &Engine, older: Duration, act: Act) -> Result<Freed, Refusal> {
    let before = UnixMs(
        clock::now()
            .0
            .saturating_sub(u64::try_from(older.as_millis()).unwrap_or(u64::MAX)),
    );
    let mut freed = Freed::default();
    let unfinished = unfinished(engine)?;
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
    Ok(freed)
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
