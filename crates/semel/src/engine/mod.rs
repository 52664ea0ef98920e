//! The corridor: one use case a file, each in the same shape.
//!
//! parse → load what is known → decide (core) → intent (store) → act (host) → observe (host) → receipt (store) →
//! answer. Doors call this; it calls no door.

pub(crate) mod admin;
pub(crate) mod answer;
pub(crate) mod call;
pub(crate) mod contract;
pub(crate) mod crash;
pub(crate) mod gateway;
pub(crate) mod health;
pub(crate) mod key;
mod locks;
mod mutate;
mod read;
pub(crate) mod recover;
pub(crate) mod serve;
pub(crate) mod tool;
pub(crate) mod volume;

use crate::config::Config;
use semel_core::Refusal;
use semel_host::volume::Volumes;
use semel_store::Journal;
use std::sync::Arc;

/// Is what every use case works with: in the daemon with its own journal, in a command with the daemon's.
#[derive(Clone)]
pub(crate) struct Engine {
    /// The one durable record.
    pub(crate) journal: Arc<dyn Journal>,
    /// The directories of all volumes.
    pub(crate) volumes: Arc<Volumes>,
    /// The configuration of this process.
    pub(crate) config: Arc<Config>,
}

/// Turns an error of the store into what a caller is told.
pub(crate) fn store(error: semel_store::Error) -> Refusal {
    error.into_refusal()
}

/// Turns an error of the host into what a caller is told.
pub(crate) fn host(error: semel_host::Error) -> Refusal {
    error.into_refusal()
}
