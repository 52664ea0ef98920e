//! The corridor: one use case a file, each in the same shape.
//!
//! parse → load what is known → decide (core) → intent (store) → act (host) → observe (host) → receipt (store) →
//! answer. Doors call this; it calls no door.

pub(crate) mod audit;
mod binding;
pub(crate) mod bridge;
pub(crate) mod certify;
pub(crate) mod checkpoint;
pub(crate) mod command;
pub(crate) mod compat;
pub(crate) mod conformance;
pub(crate) mod contract;
pub(crate) mod daemon;
pub(crate) mod doctor;
pub(crate) mod drill;
mod full;
pub(crate) mod gate;
pub(crate) mod gateway;
pub(crate) mod gc;
mod ground;
pub(crate) mod job;
pub(crate) mod line;
pub(crate) mod look;
mod opening;
pub(crate) mod prepared;
pub(crate) mod proposal;
pub(crate) mod record;
pub(crate) mod restore;
pub(crate) mod retry;
pub(crate) mod signing;
mod surroundings;
mod trial;
pub(crate) mod upstream;
pub(crate) mod volume;
pub(crate) mod waits;
pub(crate) mod worktree;

use self::gateway::standing::Standing;
use crate::config::Config;
use crate::wire::{Absent, Link, Reached};
use semel_core::Refusal;
use semel_host::volume::Volumes;
use semel_store::Journal;
use std::sync::{Arc, OnceLock};

/// Is what every use case works with: in the daemon with its own journal, in a command with the daemon's.
#[derive(Clone)]
pub(crate) struct Engine {
    /// The one durable record.
    pub(crate) journal: Arc<dyn Journal>,
    /// The directories of all volumes.
    pub(crate) volumes: Arc<Volumes>,
    /// The configuration of this process.
    pub(crate) config: Arc<Config>,
    /// By which hold of a job a command asks the daemon; nothing in the daemon itself.
    pub(crate) standing: Arc<OnceLock<Standing>>,
}

impl Engine {
    /// Gives where agents reach the daemon; it opens a way in for plain HTTP clients where it had none.
    ///
    /// # Errors
    /// `daemon_unreachable`; `io_failed` where no port can be opened.
    pub(crate) fn gateway(&self) -> Result<Reached, Refusal> {
        Link::new(self.config.clone(), Absent::Start).reached()
    }
}

/// Turns an error of the store into what a caller is told.
pub(crate) fn store(error: semel_store::Error) -> Refusal {
    error.into_refusal()
}

/// Turns an error of the host into what a caller is told.
pub(crate) fn host(error: semel_host::Error) -> Refusal {
    error.into_refusal()
}
