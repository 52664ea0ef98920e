//! Recovery: before any listener opens, every call that was running gets its receipt, its freedom, or its question.
//!
//! The plan is computed by `core` from what is seen; this is the dull loop that carries it out. It has no new effect
//! on any file that an agent can name.

use super::act::{evidence, found, roll_back};
use super::command::{Came, came_of};
use super::crash::{CrashPoint, Hooks};
use super::running::end_all;
use crate::engine::daemon::mark::Age;
use crate::engine::volume::end_of_dead;
use crate::engine::volume::mark;
use crate::engine::{Engine, host, opening, store};
use semel_core::call::{Aborting, Intent, OpenCall, Outcome, Receipt, Recovered};
use semel_core::effect::{Effect, Slot};
use semel_core::ids::{ExecutionId, Generation};
use semel_core::recovery::{Boot, Observation, Resolution, RunSeen, Tidy, resolve};
use semel_core::volume::{End, Owner, Volume, VolumeState};
use semel_core::{Code, Refusal, RelPath};
use semel_host::root::Root;
use semel_host::volume::{Volume as Disk, owner_alive};
use semel_host::{clock, exec, files};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

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
    /// Calls whose command still runs.
    pub(crate) running: Vec<Intent>,
}

/// Settles what an earlier life of the daemon left open.
///
/// # Errors
/// `store_unavailable`, `io_failed`: the daemon does not start.
pub(crate) fn recover(engine: &Engine, hooks: &Hooks, age: Age) -> Result<Recovery, Refusal> {
    let mut done = Recovery::default();
    let volumes = engine.journal.volumes(None).map_err(store)?;
    let mut by_generation: BTreeMap<Generation, Vec<OpenCall>> = BTreeMap::new();
    for call in engine.journal.open_calls().map_err(store)? {
        by_generation
            .entry(call.intent.generation.clone())
            .or_default()
            .push(call);
    }
    for (generation, calls) in &by_generation {
        let volume = volumes.iter().find(|volume| volume.generation == *generation);
        settle_all(engine, hooks, volume, calls, &mut done)?;
    }
    for volume in &volumes {
        match volume.state {
            VolumeState::Opening => end(engine, volume, "owner_died", &mut done)?,
            VolumeState::Open => look_after(engine, volume, age, &mut done)?,
            VolumeState::Clean | VolumeState::Quarantined | VolumeState::Destroyed => {}
        }
    }
    // Commands that ended with their volumes get their receipts.
    let ended: BTreeSet<Generation> = done.ended.iter().map(|(of, _)| of.clone()).collect();
    let (left, kept) = take(&mut done.running)
        .into_iter()
        .partition(|intent| ended.contains(&intent.generation));
    done.running = kept;
    let left: Vec<Intent> = left;
    for intent in left {
        let volume = volumes
            .iter()
            .find(|volume| volume.generation == intent.generation);
        let call = OpenCall {
            intent,
            aborting: None,
        };
        settle_all(engine, hooks, volume, &[call], &mut done)?;
    }
    Ok(done)
}

/// Lists the open volumes whose owner died since; asked for whenever somebody looks.
///
/// # Errors
/// `store_unavailable`, `io_failed`.
pub(crate) fn orphans(engine: &Engine) -> Result<Vec<Volume>, Refusal> {
    let mut orphans = Vec::new();
    for volume in engine.journal.volumes(None).map_err(store)? {
        if volume.state == VolumeState::Opening && !opening::is_held(engine, &volume.generation)? {
            // It may have become ready between the two looks.
            let now = engine.journal.volume(volume.generation.clone()).map_err(store)?;
            if now.is_some_and(|now| now.state == VolumeState::Opening) {
                opening::forget(engine, &volume.generation);
                orphans.push(volume);
            }
            continue;
        }
        if volume.state == VolumeState::Open && volume.owner == Owner::Process {
            let disk = engine
                .volumes
                .records(&volume.job, &volume.generation)
                .map_err(host)?;
            if !owner_alive(&disk).map_err(host)? {
                orphans.push(volume);
            }
        }
    }
    Ok(orphans)
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
    // A life that ended while it ended the volume may have kept it from being written.
    disk.loosen().map_err(host)?;
    sweep(engine, &disk, done)?;
    if volume.owner == Owner::Process && !owner_alive(&disk).map_err(host)? {
        let ended = end_of_dead(engine, volume)?;
        end_as(engine, volume, ended, done)?;
    }
    Ok(())
}

fn end(engine: &Engine, volume: &Volume, reason: &str, done: &mut Recovery) -> Result<(), Refusal> {
    let end = End::Dirty {
        reason: reason.to_owned(),
    };
    end_as(engine, volume, end, done)
}

fn end_as(engine: &Engine, volume: &Volume, end: End, done: &mut Recovery) -> Result<(), Refusal> {
    end_all(engine, volume);
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
    let reason = match end {
        End::Dirty { reason } => reason,
        End::Clean => "clean".to_owned(),
    };
    done.ended.push((volume.generation.clone(), reason));
    Ok(())
}

fn settle_all(
    engine: &Engine,
    hooks: &Hooks,
    volume: Option<&Volume>,
    calls: &[OpenCall],
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
    for call in calls {
        match &opened {
            Some(Ok((disk, boot))) => Settling {
                engine,
                hooks,
                disk,
                boot: *boot,
                intent: &call.intent,
            }
            .settle(call.aborting.clone(), done)?,
            Some(Err(error)) if error.code() != Code::UnknownState => {
                return Err(Refusal::new(error.code(), error.to_string()));
            }
            Some(Err(_)) | None => {
                let why = "the volume that the call worked in is not there any more".to_owned();
                unknown(engine, &call.intent.execution_id, why, done)?;
            }
        }
    }
    Ok(())
}

/// Is one call that was running, with what it takes to settle it.
struct Settling<'a> {
    engine: &'a Engine,
    hooks: &'a Hooks,
    disk: &'a Disk,
    boot: Boot,
    intent: &'a Intent,
}

impl Settling<'_> {
    fn settle(&self, mut aborting: Option<Aborting>, done: &mut Recovery) -> Result<(), Refusal> {
        let seen = self.look()?;
        self.hooks.reached(CrashPoint::RecoveryObserved);
        match resolve(self.intent, aborting.as_ref(), &seen, self.boot) {
            Resolution::Happened { evidence, tidy } => self.happened(evidence, &tidy, done),
            Resolution::NeverHappened { evidence, tidy } => {
                self.never_happened(aborting, evidence, &tidy, done)
            }
            Resolution::StillRuns => {
                done.running.push(self.intent.clone());
                Ok(())
            }
            Resolution::Unknown { evidence } => {
                unknown(self.engine, &self.intent.execution_id, evidence, done)
            }
            Resolution::RollBack { evidence, begun } => {
                if aborting.is_none() {
                    aborting = Some(self.abort(&evidence, begun)?);
                }
                let effects = self.intent.effects.get(..begun).unwrap_or_default();
                let told = || self.hooks.reached(CrashPoint::RolledBack);
                match roll_back(self.disk, self.intent, effects, told) {
                    Ok(()) => {}
                    // No refusal keeps the daemon from starting: it would, for ever.
                    Err(semel_host::Error::Refused(refusal)) => return self.unknown(refusal, done),
                    Err(error) => return Err(host(error)),
                }
                // What was taken back lies where it lay before: looked at once more, it never happened.
                match resolve(self.intent, aborting.as_ref(), &self.look()?, self.boot) {
                    Resolution::NeverHappened { tidy, .. } => {
                        self.never_happened(aborting, evidence, &tidy, done)
                    }
                    Resolution::Happened { .. }
                    | Resolution::StillRuns
                    | Resolution::RollBack { .. }
                    | Resolution::Unknown { .. } => {
                        let why = "what was taken back is not where it was before".to_owned();
                        unknown(self.engine, &self.intent.execution_id, why, done)
                    }
                }
            }
        }
    }

    fn slots(&self) -> impl Iterator<Item = (Slot, &Effect)> {
        let named = |(n, effect)| (Slot::of(&self.intent.execution_id, n), effect);
        self.intent.effects.iter().enumerate().map(named)
    }

    fn look(&self) -> Result<Vec<Observation>, Refusal> {
        self.slots()
            .map(|(slot, effect)| match effect {
                Effect::Run { .. } => self.look_at_run(),
                _ => files::observe(self.disk, &slot, effect).map_err(host),
            })
            .collect()
    }

    /// Looks at a command, after it is claimed that it never begins: a shim that comes late begins nothing.
    fn look_at_run(&self) -> Result<Observation, Refusal> {
        let run = match exec::claim_never_begun(self.disk, &self.intent.execution_id) {
            Ok(exec::Observation::NeverBegan | exec::Observation::NotBegun) => Some(RunSeen::NeverBegan),
            Ok(exec::Observation::Running) => Some(RunSeen::Running),
            Ok(exec::Observation::Ended(_)) => Some(RunSeen::Ended),
            Ok(exec::Observation::Lost) => Some(RunSeen::Lost),
            Err(error) if error.code() == Code::UnknownState => None,
            Err(error) => return Err(host(error)),
        };
        Ok(Observation {
            run,
            ..Observation::default()
        })
    }

    /// Gives what came of a command that left its status; `None` for any other call.
    fn came(&self) -> Result<Option<Came>, Refusal> {
        if !self
            .intent
            .effects
            .iter()
            .any(|e| matches!(e, Effect::Run { .. }))
        {
            return Ok(None);
        }
        match exec::observe(self.disk, &self.intent.execution_id).map_err(host)? {
            exec::Observation::Ended(status) => Ok(Some(came_of(self.intent, *status))),
            _ => Err(Refusal::new(Code::Internal, "the status of a command vanished")),
        }
    }

    /// Records that a half-done call is taken back. It frees its key: nobody was told anything.
    fn abort(&self, evidence: &str, begun: usize) -> Result<Aborting, Refusal> {
        let aborting = Aborting {
            refusal: None,
            why: evidence.to_owned(),
            begun,
        };
        let execution = self.intent.execution_id.clone();
        self.engine
            .journal
            .abort(execution, aborting.clone(), clock::now())
            .map_err(store)?;
        self.hooks.reached(CrashPoint::Aborting);
        Ok(aborting)
    }

    /// Frees the key of a call that never happened, or records the refusal that it was taken back with.
    fn never_happened(
        &self,
        aborting: Option<Aborting>,
        evidence: String,
        tidy: &[Tidy],
        done: &mut Recovery,
    ) -> Result<(), Refusal> {
        for ((slot, effect), tidy) in self.slots().zip(tidy) {
            files::drop_second_names(self.disk, &slot, effect, *tidy).map_err(host)?;
        }
        // The key first: as long as the intent is open, the staged content is the evidence.
        match aborting.and_then(|aborting| aborting.refusal) {
            None => {
                let execution = self.intent.execution_id.clone();
                let freed = self.engine.journal.free(execution, evidence, clock::now());
                freed.map_err(store)?;
                done.freed += 1;
            }
            Some(refusal) => {
                self.finish(Outcome::Refused { refusal }, evidence)?;
                done.finished += 1;
            }
        }
        self.hooks.reached(CrashPoint::RecoverySettled);
        for ((slot, effect), tidy) in self.slots().zip(tidy) {
            match files::tidy(self.disk, &slot, effect, *tidy) {
                Ok(_) => {}
                // What lies there is not, or not only, what was staged: it is kept for a person, and keeps no daemon from
                // starting.
                Err(semel_host::Error::Refused(_)) => {}
                Err(error) => return Err(host(error)),
            }
        }
        self.hooks.reached(CrashPoint::RecoveryTidied);
        Ok(())
    }

    /// Gives a call that happened its receipt. Pre-images are kept first: once the receipt stands, nothing would name
    /// them any more, and the sweep would take them.
    fn happened(&self, evidence: String, tidy: &[Tidy], done: &mut Recovery) -> Result<(), Refusal> {
        let mut before = Vec::with_capacity(tidy.len());
        for ((slot, effect), tidy) in self.slots().zip(tidy) {
            match files::tidy(self.disk, &slot, effect, *tidy) {
                Ok(digest) => before.push(digest),
                Err(semel_host::Error::Refused(refusal)) => return self.unknown(refusal, done),
                Err(error) => return Err(host(error)),
            }
        }
        files::sync_settled(self.disk, &self.intent.effects, self.intent.durability).map_err(host)?;
        self.hooks.reached(CrashPoint::RecoveryTidied);
        match self.came()? {
            None => self.finish(Outcome::Done(found(self.intent, &before)), evidence)?,
            Some(Came::Answer(outcome)) => self.finish(outcome, evidence)?,
            Some(Came::Nothing(why)) => return self.never_happened(None, why, &[], done),
        }
        self.hooks.reached(CrashPoint::RecoverySettled);
        done.finished += 1;
        Ok(())
    }

    fn unknown(&self, refusal: Refusal, done: &mut Recovery) -> Result<(), Refusal> {
        let why = evidence(&refusal, &self.intent.execution_id);
        unknown(self.engine, &self.intent.execution_id, why, done)
    }

    fn finish(&self, outcome: Outcome, evidence: String) -> Result<(), Refusal> {
        let receipt = Receipt {
            at: clock::now(),
            outcome,
            recovered: Some(Recovered { evidence }),
            resolved: None,
            possible_duplicate_of: None,
            took_us: None,
            waited_us: None,
        };
        let execution = self.intent.execution_id.clone();
        self.engine.journal.finish(execution, receipt).map_err(store)
    }
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
        let Ok(slot) = Slot::parse(&name) else {
            continue;
        };
        let execution = slot.execution().clone();
        let known = engine.journal.execution(execution.clone()).map_err(store)?;
        if known.is_some_and(|state| !matches!(state, semel_core::call::CallState::Finished { .. })) {
            keep.insert(execution);
        }
    }
    let swept = files::sweep_staging(disk, &keep).map_err(host)?;
    done.swept += swept.discarded.len() as u64;
    Ok(())
}
