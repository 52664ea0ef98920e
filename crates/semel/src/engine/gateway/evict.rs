//! Pre-images that go before their volume does, the oldest first: for room on the disk, for a quota, or past retention.
//!
//! What goes is recorded before anything is touched; then it loses its name, in one rename, and then it is freed. Whoever
//! frees holds the volume against `undo`. A life that ends in between leaves a pre-image where it was, or aside: the next
//! one frees what lies aside.

use super::crash::CrashPoint;
use super::locks::{Held, Hold, Needs};
use super::{Gateway, Pass, lock};
use crate::engine::{host, store};
use crate::limits;
use semel_core::ids::{ExecutionId, Generation, UnixMs};
use semel_core::volume::{Volume, VolumeState};
use semel_core::{Code, Refusal};
use semel_host::files::{self, Weight};
use semel_host::volume::Volume as Disk;
use semel_host::{Error, clock};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many calls one entry of the journal names.
const AT_ONCE: usize = 1000;
/// For how long it is taken for true that there is nothing more to be freed.
const IN_VAIN_FOR: Duration = Duration::from_secs(1);
/// Where the disk is nearly full, so much is freed before the first look at it; twice as much before each other one.
const PORTION: Weight = Weight {
    bytes: limits::VOLUMES_FREE / 8,
    entries: limits::VOLUMES_FREE_FILES,
};

/// Asks that the pre-images of calls of open volumes be freed that began before a moment.
///
/// # Shape
/// `{"before":1790000000000,"act":"free"}` or `{"before":1790000000000,"act":"dry_run"}`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Older {
    before: UnixMs,
    act: Act,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Act {
    Free,
    DryRun,
}

/// Is a volume that nothing is put back in while this is held, and that does not end.
pub(super) struct Still {
    disk: Arc<Disk>,
    _pass: Pass,
    _held: Held,
}

impl Still {
    /// Gives the handles of the volume.
    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }
}

fn beside_calls(generation: &Generation) -> Needs {
    Needs {
        volume: generation.clone(),
        hold: Hold::Shared,
        names: BTreeSet::new(),
    }
}

impl Gateway {
    /// Frees the pre-images of calls, as far as nothing needs them; gives those that are freed. The caller holds the
    /// volume.
    ///
    /// # Errors
    /// `replay_conflict`, reason `stale_generation`, where the volume ended; `store_unavailable`; `io_failed`.
    fn evict(&self, disk: &Disk, calls: &[ExecutionId]) -> Result<BTreeSet<ExecutionId>, Refusal> {
        let _one = lock(&self.evicting);
        let mut freed = BTreeSet::new();
        for some in calls.chunks(AT_ONCE) {
            let may = self
                .engine
                .journal
                .evict_pre_images(disk.generation().clone(), some.to_vec(), clock::now())
                .map_err(store)?;
            if may.is_empty() {
                continue;
            }
            self.hooks.reached(CrashPoint::EvictionRecorded);
            let may: BTreeSet<ExecutionId> = may.into_iter().collect();
            let mut slots = files::pre_images(disk).map_err(host)?;
            slots.retain(|slot| may.contains(slot.execution()));
            files::put_aside(disk, &slots).map_err(|error| self.gone_wrong(error))?;
            self.hooks.reached(CrashPoint::EvictionAside);
            self.counters.evicted.add_many(may.len() as u64);
            freed.extend(may);
            // What cannot be removed lies aside, weighs on, and is tried again.
            files::free_aside(disk).map_err(host)?;
        }
        Ok(freed)
    }

    fn gone_wrong(&self, error: Error) -> Refusal {
        if error.poisons() {
            let refusal = host(error);
            self.poison(&refusal);
            return refusal;
        }
        host(error)
    }

    /// Frees the oldest pre-images of a volume until so much is freed, or there are none; gives how much it was. The
    /// caller holds the volume.
    ///
    /// # Errors
    /// As of freeing.
    pub(super) fn evict_oldest(&self, disk: &Disk, wanted: Weight) -> Result<Weight, Refusal> {
        let mut freed = Weight::default();
        let mut some = BTreeMap::new();
        let mut left = calls_kept(disk)?.into_iter().peekable();
        while let Some(call) = left.next() {
            let weight = weighed(disk, &call)?;
            some.insert(call.0, weight);
            let weight = sum(some.values());
            if some.len() < AT_ONCE && left.peek().is_some() && !wanted.fits(freed.plus(weight)) {
                continue;
            }
            let calls: Vec<ExecutionId> = some.keys().cloned().collect();
            let gone = self.evict(disk, &calls)?;
            freed = freed.plus(sum(some
                .iter()
                .filter(|(call, _)| gone.contains(*call))
                .map(|(_, w)| w)));
            some.clear();
            if wanted.fits(freed) {
                break;
            }
        }
        Ok(freed)
    }

    /// Frees the oldest pre-images of all open volumes until the disk has room again.
    ///
    /// # Errors
    /// The refusal that it was given, where there is nothing more to be freed.
    pub(super) fn make_room(&self, full: Refusal) -> Result<(), Refusal> {
        let mut vain = lock(&self.room.making);
        // Whoever came before may have made it.
        if self.room.is_enough_now() {
            return Ok(());
        }
        if vain.is_some_and(|then| then.elapsed() < IN_VAIN_FOR) {
            return Err(full);
        }
        let volumes = self.open_volumes()?;
        let mut oldest: Vec<(Kept, usize)> = Vec::new();
        for (at, volume) in volumes.iter().enumerate() {
            // One that is gone, or another one, is for others to find.
            let kept = self.disk_for_now(volume).and_then(|disk| calls_kept(&disk));
            oldest.extend(kept.into_iter().flatten().map(|call| (call, at)));
        }
        oldest.sort();
        let mut left = oldest.into_iter().peekable();
        let mut wanted = PORTION;
        while left.peek().is_some() {
            let mut portion: BTreeMap<usize, Vec<ExecutionId>> = BTreeMap::new();
            let mut weight = Weight::default();
            while weight.bytes < wanted.bytes
                && weight.entries < wanted.entries
                && let Some((call, at)) = left.next()
            {
                // What went meanwhile, or cannot be looked at, is passed by.
                let looked = self.disk_for_now(&volumes[at]);
                let Ok(more) = looked.and_then(|disk| weighed(&disk, &call)) else {
                    continue;
                };
                weight = weight.plus(more);
                portion.entry(at).or_default().push(call.0);
            }
            for (at, calls) in portion {
                // One that is held alone, ends, or fails is passed by, but for a journal that takes nothing.
                if let Some(still) = self.still_now(&volumes[at])
                    && let Err(refusal) = self.evict(&still.disk, &calls)
                    && refusal.code == Code::StoreUnavailable
                {
                    return Err(refusal);
                }
            }
            if self.room.is_enough_now() {
                *vain = None;
                return Ok(());
            }
            wanted = wanted.plus(wanted);
        }
        *vain = Some(Instant::now());
        Err(full)
    }

    /// Lists the volumes that calls may work in.
    pub(super) fn open_volumes(&self) -> Result<Vec<Volume>, Refusal> {
        let mut volumes = self.engine.journal.volumes(None).map_err(store)?;
        volumes.retain(|volume| volume.state == VolumeState::Open && volume.identity.is_some());
        Ok(volumes)
    }

    /// Holds a volume against `undo` and its end, if nobody has it alone.
    pub(super) fn still_now(&self, volume: &Volume) -> Option<Still> {
        Some(Still {
            _pass: self.gate(&volume.generation).try_read_owned().ok()?,
            _held: self.locks.try_take(&beside_calls(&volume.generation))?,
            disk: self.disk_for_now(volume).ok()?,
        })
    }

    /// Frees what an earlier life put aside and did not come to free.
    pub(crate) fn free_what_is_left(&self) {
        let _one = lock(&self.evicting);
        for volume in self.open_volumes().unwrap_or_default() {
            // What cannot be removed stays, and weighs on; nothing else depends on it.
            drop(self.disk_for_now(&volume).map(|disk| files::free_aside(&disk)));
        }
    }

    /// Frees the pre-images of open volumes that are older than what a person says, or names them.
    ///
    /// # Shape
    /// `calls`: the executions whose pre-images are freed; `busy`: volumes that were held alone all the time.
    ///
    /// # Errors
    /// `bad_input`; `store_unavailable`; `io_failed`.
    pub(crate) async fn evict_older(self: &Arc<Self>, body: &[u8]) -> Result<Value, Refusal> {
        let asked: Older = crate::engine::daemon::admin::read(body)?;
        let volumes = self.blocking(|gateway| gateway.open_volumes()).await??;
        let (mut calls, mut busy) = (Vec::new(), Vec::new());
        for volume in volumes {
            let pass = self.pass(&volume.generation).await;
            let taken = self.locks.take(beside_calls(&volume.generation));
            let Ok(held) = tokio::time::timeout(limits::IN_FLIGHT_WAIT, taken).await else {
                busy.push(volume.generation);
                continue;
            };
            let freed = self
                .blocking(move |gateway| {
                    let still = Still {
                        disk: gateway.disk_for_now(&volume)?,
                        _pass: pass,
                        _held: held,
                    };
                    gateway.evict_before(&still.disk, asked)
                })
                .await?;
            match freed {
                // It ended meanwhile, or is another one: its pre-images go with it.
                Err(refusal) if matches!(refusal.code, Code::ReplayConflict | Code::UnknownState) => {}
                freed => calls.extend(freed?),
            }
        }
        Ok(json!({"schema": "semel.evicted/v1", "calls": calls, "busy": busy}))
    }

    fn evict_before(&self, disk: &Disk, asked: Older) -> Result<Vec<ExecutionId>, Refusal> {
        let mut old = Vec::new();
        for (call, _) in calls_kept(disk)? {
            let known = self.engine.journal.execution(call.clone()).map_err(store)?;
            if known.is_some_and(|state| state.intent().at < asked.before) {
                old.push(call);
            }
        }
        match asked.act {
            Act::DryRun => Ok(old),
            Act::Free => Ok(self.evict(disk, &old)?.into_iter().collect()),
        }
    }
}

/// Is a call of which something is kept, and where.
type Kept = (ExecutionId, Vec<semel_core::effect::Slot>);

/// Lists the calls of which something is kept, the oldest first.
fn calls_kept(disk: &Disk) -> Result<Vec<Kept>, Refusal> {
    let mut calls: BTreeMap<ExecutionId, Vec<_>> = BTreeMap::new();
    for slot in files::pre_images(disk).map_err(host)? {
        calls.entry(slot.execution().clone()).or_default().push(slot);
    }
    Ok(calls.into_iter().collect())
}

fn weighed(disk: &Disk, call: &Kept) -> Result<Weight, Refusal> {
    let mut weight = Weight::default();
    for slot in &call.1 {
        weight = weight.plus(files::weigh_pre_image(disk, slot).map_err(host)?);
    }
    Ok(weight)
}

fn sum<'a>(weights: impl IntoIterator<Item = &'a Weight>) -> Weight {
    weights
        .into_iter()
        .fold(Weight::default(), |sum, weight| sum.plus(*weight))
}
