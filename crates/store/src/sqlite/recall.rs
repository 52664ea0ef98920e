//! What reads are answered from without a look at the file: what tokens stand for, calls that have their receipt, and
//! which keys are new.
//!
//! The writer alone says what is true: it forgets every token right after the commit that changed any volume or token,
//! and before anyone is told of that commit. A call that has its receipt never changes again. A key is known to be new
//! only in a volume that was opened in this life of the writer: whatever was begun there was marked before.

use semel_core::Sha256;
use semel_core::call::{CallState, Scope};
use semel_core::ids::{Generation, IdempotencyKey};
use semel_core::volume::Lease;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::BuildHasher as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many tokens are known by heart.
const LEASES: usize = 1024;

/// How many calls are, the latest, and how many bytes of names each may hold: about 8 MiB in all at most.
const CALLS: usize = 2048;
const NAMES: usize = 2048;

/// How many keys are marked as used; beyond, every key is looked up.
const KEYS: usize = 1 << 20;

/// Holds what is known by heart.
#[derive(Debug, Default)]
pub(super) struct Recall {
    leases: Mutex<Leases>,
    calls: Mutex<Calls>,
    keys: Mutex<Keys>,
    /// Nobody outside can tell which keys share a mark.
    marks: RandomState,
}

#[derive(Debug, Default)]
struct Keys {
    /// Volumes all of whose keys are marked.
    volumes: HashSet<Generation>,
    used: HashSet<u64>,
}

#[derive(Debug, Default)]
struct Leases {
    /// How often all were forgotten.
    turn: Turn,
    known: HashMap<Sha256, Lease>,
}

/// Marks the time between two changes of volumes or tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn(u64);

type Key = (Scope, IdempotencyKey);

#[derive(Debug, Default)]
struct Calls {
    known: HashMap<Key, CallState>,
    in_order: VecDeque<Key>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recall {
    /// Gives what a token stands for; where that is not known by heart, the turn in which it is looked up.
    pub(super) fn lease(&self, token: &Sha256) -> Result<Lease, Turn> {
        let leases = lock(&self.leases);
        leases.known.get(token).cloned().ok_or(leases.turn)
    }

    /// Keeps what a token stands for, unless anything changed since it was looked up.
    pub(super) fn keep_lease(&self, turn: Turn, token: Sha256, lease: Lease) {
        let mut leases = lock(&self.leases);
        if leases.turn != turn {
            return;
        }
        if leases.known.len() >= LEASES {
            leases.known.clear();
        }
        leases.known.insert(token, lease);
    }

    /// Forgets what every token stands for.
    pub(super) fn forget_leases(&self) {
        let mut leases = lock(&self.leases);
        leases.turn.0 += 1;
        leases.known.clear();
    }

    /// Hears that a volume was opened, before anything was begun in it.
    pub(super) fn opened(&self, generation: &Generation) {
        lock(&self.keys).volumes.insert(generation.clone());
    }

    /// Hears that a key is about to be used.
    pub(super) fn uses(&self, scope: &Scope, key: &IdempotencyKey) {
        let mark = self.marks.hash_one((scope, key));
        let mut keys = lock(&self.keys);
        if keys.used.len() >= KEYS {
            *keys = Keys::default();
        }
        keys.used.insert(mark);
    }

    /// Says that a generation never used a key; one that it only may have used is not said to be new.
    pub(super) fn is_new(&self, generation: &Generation, of: &Key) -> bool {
        let (scope, key) = of;
        let mark = self.marks.hash_one((scope, key));
        let keys = lock(&self.keys);
        keys.volumes.contains(generation) && !keys.used.contains(&mark)
    }

    /// Gives a call that has its receipt, if it is known by heart.
    pub(super) fn call(&self, key: &Key) -> Option<CallState> {
        lock(&self.calls).known.get(key).cloned()
    }

    /// Keeps calls that have their receipt.
    pub(super) fn keep_calls(&self, finished: impl Iterator<Item = CallState>) {
        let mut calls = lock(&self.calls);
        for state in finished.filter(is_small) {
            let intent = state.intent();
            let key = (intent.scope.clone(), intent.key.clone());
            if calls.in_order.len() >= CALLS
                && let Some(oldest) = calls.in_order.pop_front()
            {
                calls.known.remove(&oldest);
            }
            if calls.known.insert(key.clone(), state).is_none() {
                calls.in_order.push_back(key);
            }
        }
    }
}

fn is_small(state: &CallState) -> bool {
    let intent = state.intent();
    let paths = intent.effects.iter().map(|effect| effect.at().as_bytes().len());
    let facts = intent.facts.notes.iter().map(String::len);
    intent.effects.len() <= 8 && paths.chain(facts).sum::<usize>() + intent.path.as_bytes().len() <= NAMES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::sample;
    use semel_core::volume::{Durability, Role};

    fn scope_of(generation: Option<Generation>) -> Scope {
        let new = sample::new_volume("job-a", Role::Draft, Durability::Process).unwrap();
        Scope {
            principal: new.principal,
            job: new.job,
            generation,
        }
    }

    #[test]
    fn a_key_is_new_only_where_every_one_is_marked() {
        let new = sample::new_volume("job-a", Role::Draft, Durability::Process).unwrap();
        let key = |text: &str| IdempotencyKey::parse(text).unwrap();
        let (recall, scope) = (Recall::default(), scope_of(Some(new.generation.clone())));
        let is_new = |of: &Key| recall.is_new(&new.generation, of);
        let k = (scope.clone(), key("k"));
        let of_job = (scope_of(None), key("k"));
        assert!(!is_new(&k), "the volume is of another life");
        recall.opened(&new.generation);
        assert!(is_new(&k) && is_new(&of_job));
        recall.uses(&k.0, &k.1);
        assert!(!is_new(&k) && is_new(&of_job));
        recall.uses(&of_job.0, &of_job.1);
        assert!(!is_new(&of_job));
        assert!(is_new(&(scope.clone(), key("l"))));
        for n in 0..KEYS {
            recall.uses(&scope, &key(&format!("k{n}")));
        }
        assert!(!is_new(&(scope, key("l"))), "too many to mark");
    }

    #[test]
    fn what_was_looked_up_before_a_change_is_not_kept() {
        let (recall, token) = (Recall::default(), Sha256::of(b"token"));
        let Err(before) = recall.lease(&token) else {
            panic!()
        };
        recall.forget_leases();
        let Err(after) = recall.lease(&token) else {
            panic!()
        };
        assert_ne!(before, after);
    }
}
