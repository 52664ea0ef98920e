//! The threads on which calls change files: those that answer requests are not kept waiting by a disk.
//!
//! Few where nobody waits for the disk: a call that only works on files needs a processor, and no thread of its own.

use crate::limits;
use semel_core::volume::Durability;
use semel_core::{Code, Refusal};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};

/// Holds the threads, as long as the daemon lives.
pub(crate) struct Hands {
    syncing: Runtime,
    quick: Runtime,
}

/// Is the way to them.
pub(crate) struct ToHands {
    syncing: Handle,
    quick: Handle,
}

/// Says what a call does to its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// It works on files.
    Quick,
    /// It waits for the disk, or starts a command.
    Slow,
}

impl Work {
    /// Says what calls in a volume do that only work on files.
    pub(super) const fn of(durability: Durability) -> Self {
        match durability {
            Durability::Process => Self::Quick,
            Durability::Power | Durability::PowerBestEffort => Self::Slow,
        }
    }
}

impl Hands {
    /// Starts the threads.
    ///
    /// # Errors
    /// `io_failed`.
    pub(crate) fn start() -> Result<Self, Refusal> {
        let threads = |count, name: &str| {
            Builder::new_multi_thread()
                .worker_threads(count)
                .thread_name(name)
                .enable_all()
                .build()
                .map_err(|e| Refusal::new(Code::IoFailed, format!("cannot start threads: {e}")))
        };
        Ok(Self {
            syncing: threads(limits::HANDS, "semel-hand")?,
            quick: threads(limits::QUICK_HANDS, "semel-quick")?,
        })
    }

    /// Gives the way to them.
    pub(crate) fn way(&self) -> ToHands {
        ToHands {
            syncing: self.syncing.handle().clone(),
            quick: self.quick.handle().clone(),
        }
    }

    /// Ends them; what still works is waited for as long.
    pub(crate) fn end(self, within: Duration) {
        self.quick.shutdown_timeout(within);
        self.syncing.shutdown_timeout(within);
    }
}

impl ToHands {
    pub(super) fn of(&self, work: Work) -> &Handle {
        match work {
            Work::Quick => &self.quick,
            Work::Slow => &self.syncing,
        }
    }
}
