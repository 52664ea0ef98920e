//! Commands that run: how many at once, and how they end with their volume.

use super::{Flight, Gateway, lock};
use crate::engine::{Engine, host, volume};
use crate::limits;
use crate::telemetry::Phase;
use semel_core::command::TreeEnded;
use semel_core::ids::{ExecutionId, Generation};
use semel_core::volume::{End, Volume, VolumeState};
use semel_core::{Code, Refusal};
use semel_host::exec::{self, Observation};
use semel_host::volume::{Quiet, Volume as Disk};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Holds the commands that run, or are about to.
#[derive(Default)]
pub(crate) struct Commands(Mutex<HashMap<ExecutionId, Generation>>);

/// Holds the place of one command, until it is dropped.
pub(crate) struct Place {
    commands: Arc<Commands>,
    execution: ExecutionId,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.commands.0).remove(&self.execution);
    }
}

impl Commands {
    /// Takes a place for a command that is about to run.
    ///
    /// # Errors
    /// `too_many`, reason `commands_of_volume` or `commands`.
    pub(super) fn take(
        self: &Arc<Self>,
        execution: &ExecutionId,
        generation: &Generation,
    ) -> Result<Place, Refusal> {
        let mut running = lock(&self.0);
        let too_many = |most: usize, where_: &str, reason: &str| {
            let why = format!("{most} commands run {where_}");
            Err(Refusal::new(Code::TooMany, why).reason(reason))
        };
        let here = running.values().filter(|other| *other == generation).count();
        if here >= limits::COMMANDS_PER_VOLUME {
            return too_many(limits::COMMANDS_PER_VOLUME, "in the volume", "commands_of_volume");
        }
        if running.len() >= limits::COMMANDS {
            return too_many(limits::COMMANDS, "in all volumes together", "commands");
        }
        running.insert(execution.clone(), generation.clone());
        drop(running);
        Ok(self.place(execution))
    }

    /// Keeps a place for a command that runs already, however many there are.
    pub(super) fn keep(self: &Arc<Self>, execution: &ExecutionId, generation: &Generation) -> Place {
        lock(&self.0).insert(execution.clone(), generation.clone());
        self.place(execution)
    }

    fn place(self: &Arc<Self>, execution: &ExecutionId) -> Place {
        Place {
            commands: self.clone(),
            execution: execution.clone(),
        }
    }

    fn of(&self, generation: &Generation) -> Vec<ExecutionId> {
        let running = lock(&self.0);
        let here = running.iter().filter(|(_, other)| *other == generation);
        here.map(|(execution, _)| execution.clone()).collect()
    }

    fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Gateway {
    /// Ends the commands of a volume that is about to end, and waits for their receipts. The caller keeps new calls out
    /// meanwhile.
    ///
    /// # Errors
    /// For a clean end: `dirty_volume`, reason `process_tree_unproved`, where a command, or something that it started,
    /// may live on; `unknown_state`, `io_failed`. A dirty end needs no proof.
    pub(crate) async fn end_commands(
        self: &Arc<Self>,
        generation: &Generation,
        end: &End,
    ) -> Result<(), Refusal> {
        let of = generation.clone();
        let ended = self.blocking(move |gateway| gateway.ask_to_end(&of)).await?;
        // The receipts: of those that ended only, since nobody knows when the others will.
        let settled = tokio::time::timeout(RECEIPTS, self.receipts(generation));
        drop(settled.await);
        match (ended, end) {
            (Err(refusal), End::Clean) => Err(refusal),
            (_, End::Dirty { .. }) | (Ok(None), _) => Ok(()),
            (Ok(Some(disk)), End::Clean) => self.blocking(move |_| proved(&disk)).await?,
        }
    }

    /// Lets a volume be written again whose end was refused.
    pub(crate) fn goes_on(&self, generation: &Generation) {
        let known = volume::find(&self.engine, generation);
        // Where it cannot be, calls say so: they fail, and change nothing.
        if let Ok(Some(disk)) = known.and_then(|known| open(&self.engine, &known)) {
            drop(disk.loosen());
        }
    }

    fn ask_to_end(&self, generation: &Generation) -> Result<Option<Disk>, Refusal> {
        let known = volume::find(&self.engine, generation)?;
        let Some(disk) = open(&self.engine, &known)? else {
            return Ok(None);
        };
        exec::end_all(&disk, limits::GRACE).map_err(host)?;
        Ok(Some(disk))
    }

    async fn receipts(&self, generation: &Generation) {
        loop {
            let running = self.commands.of(generation);
            let Some(execution) = running.first() else { return };
            match self.flight(execution) {
                Some(mut flight) => drop(flight.wait_for(|now| *now == Flight::Ended).await),
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
            if *self.phase().borrow() == Phase::Poisoned {
                return;
            }
        }
    }

    /// Counts the commands that run.
    pub(crate) fn commands_running(&self) -> usize {
        self.commands.count()
    }
}

/// How long receipts of commands that have ended may take.
const RECEIPTS: Duration = Duration::from_secs(10);

fn open(engine: &Engine, known: &Volume) -> Result<Option<Disk>, Refusal> {
    if known.state != VolumeState::Open {
        return Ok(None);
    }
    match engine.volumes.look(&known.job, &known.generation) {
        Ok(disk) => Ok(Some(disk)),
        // A directory that is gone has no commands left that could be asked; its calls are unknown.
        Err(error) if matches!(error.code(), Code::UnknownState | Code::NotFound) => Ok(None),
        Err(error) => Err(host(error)),
    }
}

/// Ends the commands of a volume that ends dirty, where nobody else starts any.
pub(super) fn end_all(engine: &Engine, known: &Volume) {
    // A dirty end needs no proof.
    if let Ok(Some(disk)) = open(engine, known) {
        drop(exec::end_all(&disk, limits::GRACE));
    }
}

/// Proves that no command of a volume, and nothing that one started, lives.
fn proved(disk: &Disk) -> Result<(), Refusal> {
    let gone = |seen: &Observation| match seen {
        Observation::NeverBegan => true,
        Observation::Ended(status) => status.tree_ended == TreeEnded::Proved,
        Observation::NotBegun | Observation::Running | Observation::Lost => false,
    };
    let all = exec::executions(disk).map_err(host)?.into_iter();
    let left: Vec<ExecutionId> = all
        .filter(|(_, seen)| !gone(seen))
        .map(|(execution, _)| execution)
        .collect();
    if left.is_empty() {
        return quiet(disk);
    }
    let why = "a command, or something that it started, may live on: the volume cannot end clean";
    Err(Refusal::new(Code::DirtyVolume, why)
        .reason("process_tree_unproved")
        .names(left.iter().take(20).map(ExecutionId::as_str)))
}

/// Keeps everybody from writing to a volume that ends clean, where that can be: it stays as it is from here on.
fn quiet(disk: &Disk) -> Result<(), Refusal> {
    match disk.quiet() {
        Ok(Quiet::Proved | Quiet::Unproved) => Ok(()),
        Err(error) if error.code() == Code::VolumeBusy => {
            let why = format!("{}: it cannot end clean", host(error).why);
            Err(Refusal::new(Code::DirtyVolume, why)
                .reason("process_tree_unproved")
                .name(disk.generation().as_str()))
        }
        Err(error) => Err(host(error)),
    }
}
