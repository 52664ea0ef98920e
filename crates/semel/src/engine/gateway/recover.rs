//! Recovery: before any listener opens, every call that was running gets its receipt, its freedom, or its question.
//!
//! The plan is computed by `core` from what is seen; this is the dull loop that carries it out. It has no new effect
//! on any file that an agent can name.

use super::crash::{CrashPoint, Hooks};
use super::mutation::survives;
use crate::engine::daemon::mark::Age;
use crate::engine::volume::mark;
use crate::engine::{Engine, host, store};
use semel_core::call::{Done, Effect, Intent, Outcome, Receipt, Recovered};
use semel_core::ids::{ExecutionId, Generation};
use semel_core::recovery::{Observation, Resolution, Tidy, resolve, resolve_across_boots};
use semel_core::volume::{End, Owner, Volume, VolumeState};
use semel_core::{Code, Refusal, RelPath};
use semel_host::root::Root;
use semel_host::volume::{Volume as Disk, owner_alive};
use semel_host::{clock, files};
use std::collections::{BTreeMap, BTreeSet};

/// Is what recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// Calls whose effect had happened; they have their receipt.
    pub(crate) finished: u64,
    /// Calls whose effect had not happened; their keys are free.
    pub(crate) freed: u64,
    /// Calls whose outcome cannot be told.
    pub(crate) unknown: u64,
    /// Staged content that no call names; discarded.
    pub(crate) swept: u64,
    /// Volumes that ended dirty, each with its reason.
    pub(crate) ended: Vec<(Generation, String)>,
}

/// Says in which boot a volume was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Boot {
    Same,
    Other,
}

/// Settles what an earlier life of the daemon left open.
///
/// # Errors
/// `store_unavailable`, `io_failed`: the daemon does not start.
pub(crate) fn recover(engine: &Engine, hooks: &Hooks, age: Age) -> Result<Recovery, Refusal> {
    let mut done = Recovery::default();
    let volumes = engine.journal.volumes(None).map_err(store)?;
    let mut by_generation: BTreeMap<Generation, Vec<Intent>> = BTreeMap::new();
    for intent in engine.journal.open_intents().map_err(store)? {
        by_generation
            .entry(intent.generation.clone())
            .or_default()
            .push(intent);
    }
    for (generation, intents) in by_generation {
        let volume = volumes.iter().find(|volume| volume.generation == generation);
        settle_all(engine, hooks, volume, &intents, &mut done)?;
    }
    for volume in &volumes {
        match volume.state {
            VolumeState::Opening => end(engine, volume, "owner_died", &mut done)?,
            VolumeState::Open => look_after(engine, volume, age, &mut done)?,
            VolumeState::Clean | VolumeState::Quarantined | VolumeState::Destroyed => {}
        }
    }
    Ok(done)
}

/// Ends the volumes whose owner died since; asked for whenever somebody looks.
///
/// # Errors
/// `store_unavailable`, `io_failed`.
pub(crate) fn end_orphans(engine: &Engine) -> Result<Vec<(Generation, String)>, Refusal> {
    let mut done = Recovery::default();
    for volume in engine.journal.volumes(None).map_err(store)? {
        if volume.state == VolumeState::Open && volume.owner == Owner::Process {
            let disk = engine
                .volumes
                .look(&volume.job, &volume.generation)
                .map_err(host)?;
            if !owner_alive(&disk).map_err(host)? {
                end(engine, &volume, "owner_died", &mut done)?;
            }
        }
    }
    Ok(done.ended)
}

fn look_after(engine: &Engine, volume: &Volume, age: Age, done: &mut Recovery) -> Result<(), Refusal> {
    let Some(identity) = &volume.identity else {
        return end(engine, volume, "identity_changed", done);
    };
    let disk = match engine.volumes.reopen(&volume.job, &volume.generation, identity) {
        Ok(disk) => disk,
        Err(error) => {
            let reason = match error.code() {
                Code::DirtyVolume => "boot_changed",
                Code::UnknownState => "identity_changed",
                _ => return Err(host(error)),
            };
            return end(engine, volume, reason, done);
        }
    };
    if age == Age::Unproven {
        // It may have had effects that the journal forgot; a call sent again would have them twice.
        return end(engine, volume, "journal_rolled_back", done);
    }
    sweep(engine, &disk, done)?;
    if volume.owner == Owner::Process && !owner_alive(&disk).map_err(host)? {
        end(engine, volume, "owner_died", done)?;
    }
    Ok(())
}

fn end(engine: &Engine, volume: &Volume, reason: &str, done: &mut Recovery) -> Result<(), Refusal> {
    let end = End::Dirty {
        reason: reason.to_owned(),
    };
    let ended = engine
        .journal
        .end_volume(
            volume.generation.clone(),
            volume.fencing_token,
            end.clone(),
            clock::now(),
        )
        .map_err(store)?;
    // The journal decides; a disk that cannot be marked, such as one that is gone, changes nothing.
    drop(mark(engine, &ended, &end));
    done.ended.push((volume.generation.clone(), reason.to_owned()));
    Ok(())
}

fn settle_all(
    engine: &Engine,
    hooks: &Hooks,
    volume: Option<&Volume>,
    intents: &[Intent],
    done: &mut Recovery,
) -> Result<(), Refusal> {
    let opened = volume.and_then(|volume| Some((volume, volume.identity.as_ref()?)));
    let opened = opened.map(|(volume, identity)| {
        match engine.volumes.reopen(&volume.job, &volume.generation, identity) {
            Err(error) if error.code() == Code::DirtyVolume => engine
                .volumes
                .look(&volume.job, &volume.generation)
                .map(|disk| (disk, Boot::Other)),
            answer => answer.map(|disk| (disk, Boot::Same)),
        }
    });
    for intent in intents {
        match &opened {
            Some(Ok((disk, boot))) => settle(engine, hooks, disk, *boot, intent, done)?,
            Some(Err(error)) if error.code() != Code::UnknownState => {
                return Err(Refusal::new(error.code(), error.to_string()));
            }
            Some(Err(_)) | None => {
                let why = "the volume that the call worked in is not there any more".to_owned();
                unknown(engine, &intent.execution_id, why, done)?;
            }
        }
    }
    Ok(())
}

fn settle(
    engine: &Engine,
    hooks: &Hooks,
    disk: &Disk,
    boot: Boot,
    intent: &Intent,
    done: &mut Recovery,
) -> Result<(), Refusal> {
    let seen = files::observe(disk, &intent.execution_id, &intent.resolved).map_err(host)?;
    let seen = Observation {
        staged: seen.staged,
        trashed: seen.trashed,
        target: seen.target,
    };
    hooks.reached(CrashPoint::RecoveryObserved);
    let resolution = match boot {
        Boot::Same => resolve(intent, &seen),
        Boot::Other => resolve_across_boots(intent, &seen),
    };
    match resolution {
        Resolution::Happened { evidence, tidy } => {
            happened(engine, hooks, disk, intent, evidence, tidy, done)
        }
        Resolution::NeverHappened { evidence, tidy } => {
            // The key first: as long as the intent is open, the staged content is the evidence.
            engine
                .journal
                .free(intent.execution_id.clone(), evidence, clock::now())
                .map_err(store)?;
            hooks.reached(CrashPoint::RecoverySettled);
            if let (Tidy::DropStaged, Effect::Install { staged, .. }) = (tidy, &intent.effect) {
                files::discard_staged(disk, &intent.execution_id, staged).map_err(host)?;
            }
            hooks.reached(CrashPoint::RecoveryTidied);
            done.freed += 1;
            Ok(())
        }
        Resolution::Unknown { evidence } => unknown(engine, &intent.execution_id, evidence, done),
    }
}

/// Gives a call that happened its receipt. The pre-image is kept first: once the receipt stands, nothing would name
/// it any more, and the sweep would take it.
fn happened(
    engine: &Engine,
    hooks: &Hooks,
    disk: &Disk,
    intent: &Intent,
    evidence: String,
    tidy: Tidy,
    done: &mut Recovery,
) -> Result<(), Refusal> {
    let durability = survives(intent.durability);
    let mut outcome = intent.done();
    match (tidy, &intent.effect) {
        (
            Tidy::KeepPreImage,
            Effect::Install {
                before: Some(before), ..
            },
        ) => {
            let seen = files::finish_exchange(
                disk,
                &intent.execution_id,
                &before.id,
                &intent.resolved,
                durability,
            )
            .map_err(host)?;
            outcome = Done {
                sha256_before: seen.or(outcome.sha256_before),
                ..outcome
            };
        }
        (Tidy::KeepPreImage | Tidy::Nothing | Tidy::DropStaged, _) => {
            files::sync_effect(disk, &intent.resolved, durability).map_err(host)?;
        }
    }
    hooks.reached(CrashPoint::RecoveryTidied);
    let receipt = Receipt {
        at: clock::now(),
        outcome: Outcome::Done(outcome),
        recovered: Some(Recovered { evidence }),
        took_us: None,
        waited_us: None,
    };
    engine
        .journal
        .finish(intent.execution_id.clone(), receipt)
        .map_err(store)?;
    hooks.reached(CrashPoint::RecoverySettled);
    done.finished += 1;
    Ok(())
}

fn unknown(
    engine: &Engine,
    execution: &ExecutionId,
    why: String,
    done: &mut Recovery,
) -> Result<(), Refusal> {
    engine
        .journal
        .unknown(execution.clone(), why, clock::now())
        .map_err(store)?;
    done.unknown += 1;
    Ok(())
}

/// Discards staged content that no open or unknown call names.
fn sweep(engine: &Engine, disk: &Disk, done: &mut Recovery) -> Result<(), Refusal> {
    let staging = disk
        .staging()
        .try_clone_to_owned()
        .map_err(|e| host(semel_host::Error::io("hold", "staging", e)))?;
    let root = Root::from_handle(staging).map_err(host)?;
    let listed = files::list_directory(&root, &RelPath::root(), usize::MAX).map_err(host)?;
    let mut keep = BTreeSet::new();
    for entry in listed {
        let name = String::from_utf8(entry.name).unwrap_or_default();
        let Ok(execution) = ExecutionId::parse(name) else {
            continue;
        };
        let known = engine.journal.execution(execution.clone()).map_err(store)?;
        if known.is_some_and(|state| !matches!(state, semel_core::call::CallState::Finished { .. })) {
            keep.insert(execution);
        }
    }
    let swept = files::sweep_staging(disk, &keep).map_err(host)?;
    done.swept += swept.discarded.len() as u64;
    Ok(())
}
