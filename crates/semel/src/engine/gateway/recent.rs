//! What was asked for lately: so that the very same call under another key is known for what it may be.
//!
//! It is a word of advice, no more: such a call runs, and its answer names the other one. It decides nothing.

use crate::limits;
use semel_core::call::{FingerprintVersion, Intent, Scope};
use semel_core::digest::Fingerprint;
use semel_core::ids::{ExecutionId, IdempotencyKey, UnixMs};
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Holds what ran lately.
#[derive(Default)]
pub(crate) struct Recent(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_call: HashMap<Said, Ran>,
    in_order: VecDeque<(UnixMs, Said)>,
}

type Said = (Scope, FingerprintVersion, Fingerprint);

struct Ran {
    execution: ExecutionId,
    key: IdempotencyKey,
    at: UnixMs,
}

impl Recent {
    /// Remembers a call that ran, and gives the one under another key that asked for the very same before.
    pub(crate) fn ran(&self, intent: &Intent) -> Option<ExecutionId> {
        let said = (
            intent.scope.clone(),
            intent.fingerprint_version,
            intent.fingerprint,
        );
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let window = u64::try_from(limits::DUPLICATE_ADVISORY.as_millis()).unwrap_or(u64::MAX);
        let since = UnixMs(intent.at.0.saturating_sub(window));
        known.forget(since);
        let ran = Ran {
            execution: intent.execution_id.clone(),
            key: intent.key.clone(),
            at: intent.at,
        };
        known.in_order.push_back((intent.at, said.clone()));
        let other = known.by_call.insert(said, ran)?;
        (other.key != intent.key && other.at >= since).then_some(other.execution)
    }
}

impl Known {
    fn forget(&mut self, since: UnixMs) {
        while let Some((at, _)) = self.in_order.front()
            && (*at < since || self.in_order.len() >= limits::DUPLICATES_KNOWN)
        {
            if let Some((at, said)) = self.in_order.pop_front()
                && self.by_call.get(&said).is_some_and(|ran| ran.at <= at)
            {
                self.by_call.remove(&said);
            }
        }
    }
}
