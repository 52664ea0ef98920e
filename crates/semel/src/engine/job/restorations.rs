//! What the restorations of a run met, counted from the journal. A run that failed and has none did not restore through
//! us: somebody went around the primitive.

use crate::engine::{Engine, store};
use semel_core::Refusal;
use semel_core::pipeline::Run;
use semel_core::record::{Record, Restoration};
use semel_store::journal::LogFilter;
use serde::Serialize;

/// How many entries are read at once.
const PAGE: u32 = 1_000;

/// Counts the restorations of one run.
///
/// # Shape
/// `{"calls":1,"refused":0,"collisions":0,"adoptions":0,"waits":0,"waited_ms":0,"bypassed":false}`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Restorations {
    /// How many there were.
    pub(crate) calls: u64,
    /// How many of them were refused.
    pub(crate) refused: u64,
    /// How often a lock was in the way.
    pub(crate) collisions: u64,
    /// How many stale locks were adopted.
    pub(crate) adoptions: u64,
    /// How many had to wait.
    pub(crate) waits: u64,
    /// For how long, together.
    pub(crate) waited_ms: u64,
    /// Whether there was none.
    pub(crate) bypassed: bool,
}

impl Restorations {
    fn add(&mut self, met: &Restoration) {
        self.calls += 1;
        self.refused += u64::from(met.code.is_some());
        self.collisions += u64::from(met.collisions);
        self.adoptions += u64::from(met.adoptions);
        self.waits += u64::from(met.waited_ms > 0);
        self.waited_ms += met.waited_ms;
    }

    /// Says it in one line, where there is anything to say: nothing of restorations that nobody was in the way of.
    pub(crate) fn line(&self) -> Option<String> {
        if self.bypassed {
            return Some("restore  bypassed: no restoration is recorded for this run".to_owned());
        }
        if (self.refused, self.collisions, self.adoptions, self.waits) == (0, 0, 0, 0) {
            return None;
        }
        Some(format!(
            "restore  {} ({} refused), {} collisions, {} adoptions, {} waits of {} ms together",
            self.calls, self.refused, self.collisions, self.adoptions, self.waits, self.waited_ms
        ))
    }
}

/// Counts what a run met so far: the newest entries of its job first, back to its start.
///
/// # Errors
/// `store_unavailable`, `daemon_unreachable`.
pub(crate) fn of_run(engine: &Engine, run: &Run) -> Result<Restorations, Refusal> {
    let mut met = Restorations::default();
    let mut up_to_seq = None;
    loop {
        let filter = LogFilter {
            job: Some(run.new.job.clone()),
            limit: Some(PAGE),
            up_to_seq,
            ..LogFilter::default()
        };
        let lines = engine.journal.log(filter).map_err(store)?;
        let mut began = lines.len() < PAGE as usize;
        for line in lines.iter().rev() {
            let record = &line.entry.record;
            if matches!(record, Record::RunStarted(new) if new.run == run.new.run) {
                began = true;
                break;
            }
            if let Record::WorktreeRestored(restoration) = record {
                met.add(restoration);
            }
        }
        up_to_seq = lines.first().map(|line| line.entry.seq.saturating_sub(1));
        if began || up_to_seq == Some(0) {
            met.bypassed = met.calls == 0;
            return Ok(met);
        }
    }
}
