//! When a checkpoint of the log is due; and the last words of the daemon to its log.
//!
//! It decides when, and says what came of it. What a checkpoint is, and where it is kept, is in `engine/checkpoint`.

use crate::engine::checkpoint;
use crate::engine::gateway::Gateway;
use crate::limits;
use crate::telemetry::Phase;
use semel_core::ids::UnixMs;
use semel_core::{Code, Refusal};
use semel_host::clock;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// Is what the daemon knows of its own checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Keeper(Mutex<State>);

#[derive(Clone, Debug, Default)]
struct State {
    /// How many entries the newest one covers.
    covered: u64,
    /// Since when there is an entry that none covers.
    uncovered: Option<UnixMs>,
    /// Why the last one that was due was not made.
    why_not: Option<String>,
}

impl State {
    /// Says whether another one is due, given how many entries there are.
    fn due(&mut self, entries: u64, now: UnixMs) -> Due {
        if entries <= self.covered {
            self.uncovered = None;
            return Due::NotYet;
        }
        let since = *self.uncovered.get_or_insert(now);
        let waited = u128::from(now.0.saturating_sub(since.0));
        let many = entries - self.covered >= limits::CHECKPOINT_ENTRIES;
        if many || waited >= limits::CHECKPOINT_EVERY.as_millis() {
            Due::Now
        } else {
            Due::NotYet
        }
    }

    /// Learns what came of it; one that failed is tried again after the same while.
    fn made(&mut self, made: Result<u64, Refusal>, now: UnixMs) {
        match made {
            Ok(covered) => {
                *self = Self {
                    covered,
                    ..Self::default()
                };
            }
            Err(refusal) => {
                self.why_not = Some(refusal.to_string());
                self.uncovered = Some(now);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    NotYet,
}

impl Keeper {
    /// Begins with what is kept.
    pub(crate) fn new(covered: u64) -> Self {
        Self(Mutex::new(State {
            covered,
            ..State::default()
        }))
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says how the checkpoints are, for the status.
    pub(crate) fn json(&self) -> Value {
        self.with(|state| json!({"covered": state.covered, "why_not": state.why_not}))
    }
}

/// Makes a checkpoint now.
///
/// # Errors
/// Those of [`checkpoint::make`].
fn sign(gateway: &Gateway) -> Result<(), Refusal> {
    let engine = &gateway.engine;
    let made = checkpoint::make(engine.journal.as_ref(), &engine.config);
    if made.is_err() {
        gateway.counters.unsigned.add();
    }
    let told = made
        .as_ref()
        .map(|made| made.checkpoint.size)
        .map_err(Clone::clone);
    gateway.keeper.with(|state| state.made(told, clock::now()));
    made.map(drop)
}

/// Looks whether a checkpoint is due, or noise is to be told of; does what is.
fn look(gateway: &Gateway) {
    let now = clock::now();
    gateway.tell_of_noise(|sampler| sampler.tick(now));
    let Ok(status) = gateway.engine.journal.status() else {
        return;
    };
    if gateway.keeper.with(|state| state.due(status.entries, now)) == Due::Now {
        // What failed is in the status and in the counters; the next one is tried later.
        drop(sign(gateway));
    }
}

/// Keeps looking until the daemon drains.
pub(crate) async fn keep(gateway: Arc<Gateway>) {
    let mut phase = gateway.phase();
    let over = |phase: &Phase| matches!(phase, Phase::Draining | Phase::Poisoned);
    loop {
        let looking = gateway.clone();
        drop(tokio::task::spawn_blocking(move || look(&looking)).await);
        let ended = tokio::time::timeout(limits::HEARTBEAT, phase.wait_for(over)).await;
        if ended.is_ok() {
            return;
        }
    }
}

/// Tells of the noise that was not told yet, and signs what no checkpoint covers: the last that a daemon does.
///
/// # Errors
/// Those of [`checkpoint::make`]; nothing is signed by a poisoned daemon.
pub(crate) fn last_words(gateway: &Gateway) -> Result<(), Refusal> {
    if let Some(why) = gateway.poisoned() {
        return Err(Refusal::new(Code::StoreUnavailable, why));
    }
    gateway.tell_of_noise(semel_core::noise::Sampler::end);
    let entries = gateway
        .engine
        .journal
        .status()
        .map_err(crate::engine::store)?
        .entries;
    if gateway.keeper.with(|state| entries <= state.covered) {
        return Ok(());
    }
    sign(gateway)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_due_after_many_entries_or_a_while() {
        let every = u64::try_from(limits::CHECKPOINT_EVERY.as_millis()).unwrap();
        let at = |ms: u64| UnixMs(1_790_000_000_000 + ms);
        let mut state = State::default();
        assert_eq!(state.due(0, at(0)), Due::NotYet);
        assert_eq!(state.due(1, at(0)), Due::NotYet);
        assert_eq!(state.due(9_999, at(every - 1)), Due::NotYet);
        assert_eq!(state.due(9_999, at(every)), Due::Now);
        state.made(Ok(9_999), at(every));
        assert_eq!(
            state.due(9_999, at(every * 9)),
            Due::NotYet,
            "nothing is uncovered"
        );
        assert_eq!(state.due(10_000, at(every * 9)), Due::NotYet, "not for long");
        assert_eq!(state.due(19_999, at(every * 9)), Due::Now);
        state.made(Err(Refusal::new(Code::IoFailed, "full")), at(every * 9));
        assert!(state.why_not.is_some());
        assert_eq!(
            state.due(10_001, at(every * 10 - 1)),
            Due::NotYet,
            "not at once again"
        );
        assert_eq!(state.due(10_001, at(every * 10)), Due::Now);
        state.made(Ok(10_001), at(every * 10));
        assert_eq!((state.covered, state.why_not), (10_001, None));
    }
}
