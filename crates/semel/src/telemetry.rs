//! What the daemon counts, for `/metrics` and `status`. It counts, and nothing else; the journal is the record.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident: $help:literal;)*) => {
        /// Counts since the daemon began.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(#[doc = $help] pub(crate) $name: Counter,)*
        }

        /// Is what was counted at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct Counted {
            $(#[doc = $help] pub(crate) $name: u64,)*
        }

        impl Counters {
            /// Reads all counters.
            pub(crate) fn read(&self) -> Counted {
                Counted { $($name: self.$name.get(),)* }
            }
        }

        impl Counted {
            /// Writes all counters in the Prometheus text format.
            pub(crate) fn prometheus(&self) -> String {
                let mut text = String::new();
                $(
                    text.push_str(concat!("# HELP semel_", stringify!($name), "_total ", $help, "\n"));
                    text.push_str(concat!("# TYPE semel_", stringify!($name), "_total counter\n"));
                    text.push_str(&format!(concat!("semel_", stringify!($name), "_total {}\n"), self.$name));
                )*
                text
            }
        }
    };
}

counters! {
    executed: "Calls whose effect happened.";
    replayed: "Calls that were answered from a receipt.";
    reads: "Calls that read.";
    conflicts: "Calls refused as replay_conflict.";
    in_flight_refused: "Duplicates refused as call_in_flight.";
    refused: "Calls refused otherwise.";
    throttled: "Calls refused as too_many.";
    empty: "Requests without arguments, such as probes send; refused, not journaled.";
    unauthorized: "Requests without a valid token; refused, not journaled.";
    unknown: "Calls whose outcome became unknown.";
    accept_errors: "Times that a connection could not be accepted, such as for want of descriptors.";
    unnoted: "Events that could not be noted in the journal.";
}

/// Counts one thing.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Counts one more.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Is what the probe process learns of the daemon: one way, once a second.
///
/// # Shape
/// JSON in `<state>/run/heartbeat.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Heartbeat {
    /// When it was written, in milliseconds since the Unix epoch.
    pub(crate) at: u64,
    /// Which life of the daemon wrote it.
    pub(crate) incarnation: u64,
    /// What the daemon is doing.
    pub(crate) phase: Phase,
    /// Calls under way.
    pub(crate) in_flight: u64,
    /// What was counted.
    pub(crate) counted: Counted,
}

/// Says what the daemon is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// It recovers; no listener is open.
    Starting,
    /// It serves.
    Ready,
    /// It finishes what is under way.
    Draining,
    /// A failure left it open what is on the disk; it ends, and recovers when it is started again.
    Poisoned,
}
