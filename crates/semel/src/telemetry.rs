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
    asked: "Calls answered with approval_required: a person has to decide first.";
    refused: "Calls refused otherwise.";
    throttled: "Calls refused as too_many.";
    empty: "Requests without arguments, such as probes send; refused, not journaled.";
    unauthorized: "Requests without a valid token; refused, a few of them journaled in each minute.";
    unknown: "Calls whose outcome became unknown.";
    accept_errors: "Times that a connection could not be accepted, such as for want of descriptors.";
    unnoted: "Events that could not be noted in the journal.";
    evicted: "Calls that cannot be undone any more: what they removed or replaced was freed before their volume was.";
    over_quota: "Volumes that were ended for being over their quota.";
    unsigned: "Checkpoints of the log that were due and could not be made.";
}

/// Counts one thing.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Counts one more.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts many more.
    pub(crate) fn add_many(&self, many: u64) {
        self.0.fetch_add(many, Ordering::Relaxed);
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
    /// The version of the daemon.
    pub(crate) version: String,
    /// Which life of the daemon wrote it.
    pub(crate) incarnation: u64,
    /// What the daemon is doing.
    pub(crate) phase: Phase,
    /// Executions under way.
    pub(crate) in_flight: u64,
    /// Calls that wait for a person.
    pub(crate) approvals_pending: u64,
    /// Calls that are being answered or wait.
    pub(crate) answering: u64,
    /// Restorations that wait for a lock.
    pub(crate) lock_waits: u64,
    /// For how long the one that waits longest does, in milliseconds.
    pub(crate) lock_waits_oldest_ms: u64,
    /// How the journal is; `None` where it cannot say, such as when it is poisoned.
    pub(crate) journal: Option<JournalBeat>,
    /// Bytes free where the volumes lie; `None` where the system does not say.
    pub(crate) free_bytes: Option<u64>,
    /// What was counted.
    pub(crate) counted: Counted,
}

/// Is what a heartbeat says of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JournalBeat {
    /// Entries in the chain.
    pub(crate) entries: u64,
    /// Commits since the daemon began.
    pub(crate) commits: u64,
    /// Entries in them.
    pub(crate) rows: u64,
    /// Of the commits, those that were synced.
    pub(crate) synced: u64,
    /// Verbs that wait for the writer.
    pub(crate) queued: u64,
    /// For how long the writer has not come to an end, in milliseconds.
    pub(crate) busy_ms: u64,
    /// Calls that began and have no receipt.
    pub(crate) running: u64,
    /// Calls whose outcome cannot be told.
    pub(crate) unknown: u64,
}

impl Heartbeat {
    /// Writes the whole in the Prometheus text format.
    ///
    /// # Source
    /// Prometheus, exposition formats, text format 0.0.4; its naming practices.
    pub(crate) fn prometheus(&self) -> String {
        let mut text = Text::default();
        let version = self.version.replace(['\\', '"', '\n'], "");
        text.family("build_info", "gauge", "The version of the daemon.");
        text.sample(&format!("build_info{{version=\"{version}\"}}"), 1);
        let is = |phase: Phase| u64::from(self.phase == phase);
        text.one("ready", "gauge", "Whether calls are taken.", is(Phase::Ready));
        text.one(
            "draining",
            "gauge",
            "Whether the daemon finishes what is under way.",
            is(Phase::Draining),
        );
        text.one(
            "poisoned",
            "gauge",
            "Whether a failure left it open what is on the disk.",
            is(Phase::Poisoned),
        );
        text.one(
            "incarnation",
            "gauge",
            "Which life of the daemon this is.",
            self.incarnation,
        );
        text.seconds(
            "heartbeat_timestamp_seconds",
            "When the daemon last said how it is.",
            self.at,
        );
        text.one(
            "inflight_executions",
            "gauge",
            "Calls that hold a place of the gateway.",
            self.in_flight,
        );
        text.one(
            "inflight_requests",
            "gauge",
            "Calls that are being answered or wait.",
            self.answering,
        );
        text.one(
            "approvals_pending",
            "gauge",
            "Calls that wait for a person.",
            self.approvals_pending,
        );
        text.one(
            "lock_waits",
            "gauge",
            "Restorations that wait for a lock.",
            self.lock_waits,
        );
        text.seconds(
            "lock_wait_oldest_seconds",
            "For how long the restoration waits that waits longest for a lock.",
            self.lock_waits_oldest_ms,
        );
        if let Some(free) = self.free_bytes {
            text.one(
                "volumes_free_bytes",
                "gauge",
                "Bytes free where the volumes lie.",
                free,
            );
        }
        if let Some(journal) = &self.journal {
            journal.write(&mut text);
        }
        text.0 + &self.counted.prometheus()
    }
}

impl JournalBeat {
    fn write(&self, text: &mut Text) {
        text.one(
            "running_calls",
            "gauge",
            "Calls that began and have no receipt.",
            self.running,
        );
        text.one(
            "unknown_outcomes",
            "gauge",
            "Calls whose outcome cannot be told: somebody has to look.",
            self.unknown,
        );
        text.one(
            "journal_entries",
            "gauge",
            "Entries in the journal's chain.",
            self.entries,
        );
        text.one(
            "journal_queue_length",
            "gauge",
            "Verbs that wait for the journal's writer.",
            self.queued,
        );
        text.seconds(
            "journal_writer_busy_seconds",
            "For how long the journal's writer has not come to an end.",
            self.busy_ms,
        );
        text.family(
            "journal_batch_size",
            "summary",
            "Entries that shared a commit of the journal.",
        );
        text.sample("journal_batch_size_sum", self.rows);
        text.sample("journal_batch_size_count", self.commits);
        text.one(
            "journal_synced_commits_total",
            "counter",
            "Commits that waited for the disk.",
            self.synced,
        );
    }
}

/// Is a page of metrics under way.
#[derive(Debug, Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.0.push_str(&format!(
            "# HELP semel_{name} {help}\n# TYPE semel_{name} {kind}\n"
        ));
    }

    fn sample(&mut self, name: &str, value: u64) {
        self.0.push_str(&format!("semel_{name} {value}\n"));
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.family(name, kind, help);
        self.sample(name, value);
    }

    fn seconds(&mut self, name: &str, help: &str, millis: u64) {
        self.family(name, "gauge", help);
        self.0
            .push_str(&format!("semel_{name} {}.{:03}\n", millis / 1000, millis % 1000));
    }
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
