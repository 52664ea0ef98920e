//! What the daemon holds while it serves calls: open roots, path locks, running executions, and its own health.

mod act;
pub(crate) mod answer;
mod approval;
mod arguments;
pub(crate) mod call;
mod command;
pub(crate) mod crash;
pub(crate) mod evict;
pub(crate) mod forward;
pub(crate) mod hands;
pub(crate) mod key;
mod leaving;
mod locks;
mod mutate;
mod mutation;
mod noise;
pub(crate) mod output;
pub(crate) mod policy;
mod prepare;
pub(crate) mod quota;
pub(super) mod read;
pub(crate) mod reaping;
mod recent;
pub(crate) mod recover;
pub(super) mod room;
mod running;
mod share;
mod shows;
pub(crate) mod standing;
pub(crate) mod task;
pub(crate) mod token;
pub(crate) mod tool;
mod undo;

use super::daemon::keeper::Keeper;
use super::surroundings::Surroundings;
use super::upstream::Upstreams;
use super::{Engine, checkpoint, host, store};
use crate::engine::waits::LockWaits;
use crate::limits;
use crate::telemetry::{Counters, Phase};
use crash::Hooks;
use locks::Locks;
use recent::Recent;
use semel_core::digest::Sha256;
use semel_core::ids::{ExecutionId, Generation};
use semel_core::noise::Sampler;
use semel_core::volume::{Lease, Volume};
use semel_core::{Code, Refusal};
use semel_host::volume::Volume as Disk;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, OwnedSemaphorePermit, Semaphore, watch};

/// Is the running gateway.
pub(crate) struct Gateway {
    /// Journal, volumes and configuration.
    pub(crate) engine: Engine,
    /// Crash points and pauses of the tests.
    pub(crate) hooks: Hooks,
    /// What calls are judged by; `None` where there is no policy.
    pub(super) policy: Option<policy::InForce>,
    /// What was counted.
    pub(crate) counters: Counters,
    /// What it knows of the log's checkpoints.
    pub(crate) keeper: Keeper,
    /// Which requests of nobody are noted.
    noise: Mutex<Sampler>,
    /// The locks that order calls.
    pub(super) locks: Locks,
    /// What was asked for lately, under which key.
    pub(super) recent: Recent,
    /// Executions that run in this process; whoever waits for one hears when it ends.
    flights: Mutex<HashMap<ExecutionId, watch::Sender<Flight>>>,
    roots: RwLock<HashMap<Generation, Arc<Disk>>>,
    gates: Mutex<HashMap<Generation, Arc<tokio::sync::RwLock<()>>>>,
    permits: Arc<Semaphore>,
    shares: share::Shares,
    /// Commands that run.
    commands: Arc<running::Commands>,
    /// What commands find around them where their volume says nothing.
    around: OnceLock<Surroundings>,
    /// The space where the volumes lie.
    pub(crate) room: room::Room,
    /// How large the volumes are.
    ledger: quota::Ledger,
    /// What lies aside and could not be freed.
    pub(crate) reaping: reaping::Reaping,
    /// Held by whoever frees pre-images.
    evicting: Mutex<()>,
    searches: Arc<Semaphore>,
    /// The threads on which calls change files; those that answer requests are not kept waiting by a disk.
    pub(crate) hands: OnceLock<hands::ToHands>,
    /// Who waits for a lock, as restorations tell.
    pub(crate) lock_waits: LockWaits,
    /// Other servers of tools.
    pub(crate) upstreams: Upstreams,
    /// Who worked on each job last.
    pub(crate) holds: standing::Holds,
    poisoned: OnceLock<String>,
    phase: watch::Sender<Phase>,
}

/// Says whether an execution is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flight {
    /// It is.
    Running,
    /// It ended, one way or another: the journal says which.
    Ended,
}

/// Marks an execution as running until it is dropped.
pub(crate) struct InFlight {
    gateway: Arc<Gateway>,
    execution_id: ExecutionId,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let ended = lock(&self.gateway.flights).remove(&self.execution_id);
        if let Some(ended) = ended {
            ended.send_replace(Flight::Ended);
        }
    }
}

/// Keeps the end of a generation out while a call works in it.
pub(crate) type Pass = OwnedRwLockReadGuard<()>;

impl Gateway {
    /// Makes a gateway that is still starting.
    pub(crate) fn new(engine: Engine, hooks: Hooks, policy: Option<policy::InForce>) -> Arc<Self> {
        let keeper = Keeper::new(checkpoint::covered(&engine.config));
        Arc::new(Self {
            room: room::Room::new(&engine.volumes),
            upstreams: Upstreams::of(&engine.config),
            engine,
            hooks,
            policy,
            counters: Counters::default(),
            keeper,
            noise: Mutex::new(Sampler::new(limits::UNAUTHORIZED_NOTES)),
            locks: Locks::default(),
            recent: Recent::default(),
            flights: Mutex::default(),
            roots: RwLock::default(),
            gates: Mutex::default(),
            permits: Arc::new(Semaphore::new(limits::IN_FLIGHT)),
            shares: share::Shares::default(),
            searches: Arc::new(Semaphore::new(limits::SEARCHES)),
            hands: OnceLock::new(),
            commands: Arc::default(),
            ledger: quota::Ledger::default(),
            reaping: reaping::Reaping::default(),
            evicting: Mutex::default(),
            around: OnceLock::new(),
            lock_waits: LockWaits::default(),
            holds: standing::Holds::default(),
            poisoned: OnceLock::new(),
            phase: watch::Sender::new(Phase::Starting),
        })
    }

    /// Gives what the gateway is doing, and hears of changes.
    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Begins to take calls, or to finish them.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let may = *now != Phase::Poisoned && *now != phase;
            if may {
                *now = phase;
            }
            may
        });
    }

    /// Takes no more mutations: what is on disk has to be looked at anew by another life of the daemon.
    pub(crate) fn poison(&self, why: &Refusal) {
        drop(self.poisoned.set(why.to_string()));
        self.phase.send_replace(Phase::Poisoned);
    }

    /// Gives the first failure, if the gateway is poisoned.
    pub(crate) fn poisoned(&self) -> Option<&str> {
        self.poisoned.get().map(String::as_str)
    }

    /// Says whether new effects may begin; where the disk is nearly full, pre-images are freed first. It blocks.
    ///
    /// # Errors
    /// `store_unavailable` when poisoned; `draining` at shutdown; `io_failed`, reason `disk_full`.
    pub(crate) fn open_for_effects(&self) -> Result<(), Refusal> {
        match *self.phase.borrow() {
            Phase::Ready => {}
            Phase::Starting | Phase::Draining => {
                return Err(Refusal::new(Code::Draining, "the daemon is shutting down"));
            }
            Phase::Poisoned => {
                return Err(Refusal::new(
                    Code::StoreUnavailable,
                    "a failure left it open what is on the disk; the daemon ends and recovers",
                ));
            }
        }
        self.room.enough().or_else(|full| self.make_room(full))
    }

    /// Takes one of the places for calls under way.
    ///
    /// # Errors
    /// `too_many` when all are taken.
    pub(crate) fn permit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.permits.clone().try_acquire_owned().map_err(|_| {
            self.counters.throttled.add();
            let why = format!("{} calls are under way", limits::IN_FLIGHT);
            Refusal::new(Code::TooMany, why)
        })
    }

    /// Waits for one of the places for searches; who waits takes none of the places for calls.
    pub(super) async fn search_permit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let permit = self.searches.clone().acquire_owned().await;
        permit.map_err(|_| Refusal::new(Code::Internal, "the places for searches are closed"))
    }

    /// Counts the calls under way.
    pub(crate) fn in_flight(&self) -> usize {
        limits::IN_FLIGHT.saturating_sub(self.permits.available_permits())
    }

    /// Finds what a bearer token stands for, in a living generation or an ended one.
    ///
    /// # Errors
    /// `unauthorized` for no token, a malformed or an unknown one; `store_unavailable`.
    pub(crate) fn lease(&self, token: Option<&str>) -> Result<Lease, Refusal> {
        self.engine
            .journal
            .lease(token_digest(token)?)
            .map_err(store)?
            .ok_or_else(|| Refusal::new(Code::Unauthorized, "the bearer token is not known"))
    }

    /// Finds what a bearer token stands for, where that takes no waiting.
    ///
    /// # Errors
    /// As [`Gateway::lease`], but that a token is unknown is left to it.
    pub(crate) fn lease_at_once(&self, token: Option<&str>) -> Result<Option<Lease>, Refusal> {
        let digest = token_digest(token)?;
        self.engine.journal.lease_at_once(digest).map_err(store)
    }

    /// Gives the open volume of a lease; it is opened, and its identity compared, the first time.
    ///
    /// # Errors
    /// Those of reopening: `dirty_volume`, `unknown_state`.
    pub(crate) fn disk(&self, volume: &Volume) -> Result<Arc<Disk>, Refusal> {
        let disk = self.disk_for_now(volume)?;
        let mut known = self.roots.write().unwrap_or_else(PoisonError::into_inner);
        Ok(known.entry(volume.generation.clone()).or_insert(disk).clone())
    }

    /// Gives the open volume of a lease without keeping it open: whoever looks at all volumes would run out of
    /// descriptors.
    ///
    /// # Errors
    /// Those of reopening: `dirty_volume`, `unknown_state`.
    pub(super) fn disk_for_now(&self, volume: &Volume) -> Result<Arc<Disk>, Refusal> {
        let known = self.roots.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(disk) = known.get(&volume.generation) {
            return Ok(disk.clone());
        }
        drop(known);
        let identity = volume.identity.as_ref().ok_or_else(|| {
            Refusal::new(Code::UnknownState, "the volume has no directory yet")
                .name(volume.generation.as_str())
        })?;
        let disk = self
            .engine
            .volumes
            .reopen(&volume.job, &volume.generation, identity)
            .map_err(host)?;
        Ok(Arc::new(disk))
    }

    fn gate(&self, generation: &Generation) -> Arc<tokio::sync::RwLock<()>> {
        lock(&self.gates).entry(generation.clone()).or_default().clone()
    }

    /// Enters a generation: while the pass is held, the generation does not end.
    pub(crate) async fn pass(&self, generation: &Generation) -> Pass {
        self.gate(generation).read_owned().await
    }

    /// Waits until no call works in a generation, and keeps new ones out while the answer is held.
    pub(crate) async fn close(&self, generation: &Generation) -> OwnedRwLockWriteGuard<()> {
        self.gate(generation).write_owned().await
    }

    /// Forgets the open handles of a generation that ended.
    pub(crate) fn forget(&self, generation: &Generation) {
        self.roots
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(generation);
        lock(&self.gates).remove(generation);
        self.ledger.forget(generation);
    }

    /// Marks an execution as running.
    pub(super) fn takes_off(self: &Arc<Self>, execution_id: &ExecutionId) -> InFlight {
        lock(&self.flights).insert(execution_id.clone(), watch::Sender::new(Flight::Running));
        InFlight {
            gateway: self.clone(),
            execution_id: execution_id.clone(),
        }
    }

    /// Gives what tells when an execution ends; `None` where it does not run here.
    pub(super) fn flight(&self, execution_id: &ExecutionId) -> Option<watch::Receiver<Flight>> {
        lock(&self.flights)
            .get(execution_id)
            .map(watch::Sender::subscribe)
    }
}

/// Digests a bearer token, as the journal knows it.
fn token_digest(token: Option<&str>) -> Result<Sha256, Refusal> {
    let unknown = |why: &str| Refusal::new(Code::Unauthorized, why);
    let token = token.ok_or_else(|| unknown("no bearer token was sent"))?;
    if !super::volume::token_shape(token) {
        return Err(unknown("the bearer token is not one of ours"));
    }
    Ok(Sha256::of(token.as_bytes()))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
