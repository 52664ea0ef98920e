//! The locks that order calls from check to receipt. Who waits for one holds no thread.
//!
//! Two kinds: the volume, shared by calls on leaves and exclusive for calls that move or remove a directory; and each
//! name that a call changes, in the directory itself, not by its path. A call takes the volume first, then its names in
//! their order, so that no two calls wait for each other.

use semel_core::ids::{FileId, Generation};
use semel_core::path::folded;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

/// Names what a leaf operation changes: the directory itself, not its path, and the name in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PathKey {
    parent: FileId,
    name: Vec<u8>,
}

impl PathKey {
    /// Makes the key of a name in a directory.
    ///
    /// Names that some filesystem takes for one share a key, whether or not this one does: two calls that wait for each
    /// other without need are no harm, two that change one file side by side are.
    pub(crate) fn new(parent: FileId, name: &[u8]) -> Self {
        let name = folded(name);
        Self { parent, name }
    }
}

/// Says how a call holds its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Beside other calls on leaves.
    Shared,
    /// Alone: it moves or removes a directory.
    Exclusive,
}

/// Is what a call has to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Which volume.
    pub(crate) volume: Generation,
    /// How it is held.
    pub(crate) hold: Hold,
    /// The names; none where the volume is held alone.
    pub(crate) names: BTreeSet<PathKey>,
}

/// Holds what a call needs until it is dropped.
pub(crate) struct Held {
    /// What is held.
    pub(crate) needs: Needs,
    _volume: VolumeGuard,
    _names: Vec<OwnedMutexGuard<()>>,
}

#[expect(dead_code, reason = "guards are held, not looked at")]
enum VolumeGuard {
    Shared(OwnedRwLockReadGuard<()>),
    Exclusive(OwnedRwLockWriteGuard<()>),
}

/// Holds the locks that anyone has or waits for.
#[derive(Default)]
pub(crate) struct Locks {
    volumes: Table<Generation, tokio::sync::RwLock<()>>,
    names: Table<PathKey, tokio::sync::Mutex<()>>,
}

struct Table<K, L>(Mutex<HashMap<K, Weak<L>>>);

impl<K, L> Default for Table<K, L> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// How many dead entries may lie around before they are swept.
const SWEEP_AT: usize = 1024;

impl<K: Clone + Eq + Hash, L: Default> Table<K, L> {
    fn entry(&self, key: &K) -> Arc<L> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = table.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        if table.len() >= SWEEP_AT {
            table.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::new(L::default());
        table.insert(key.clone(), Arc::downgrade(&lock));
        lock
    }
}

impl Locks {
    /// Takes everything that is needed, if nobody has any of it.
    pub(crate) fn try_take(&self, needs: &Needs) -> Option<Held> {
        let volume = self.volumes.entry(&needs.volume);
        let volume = match needs.hold {
            Hold::Shared => VolumeGuard::Shared(volume.try_read_owned().ok()?),
            Hold::Exclusive => VolumeGuard::Exclusive(volume.try_write_owned().ok()?),
        };
        let names = needs
            .names
            .iter()
            .map(|key| self.names.entry(key).try_lock_owned());
        Some(Held {
            needs: needs.clone(),
            _volume: volume,
            _names: names.collect::<Result<_, _>>().ok()?,
        })
    }

    /// Waits for everything that is needed, in the order of asking.
    pub(crate) async fn take(&self, needs: Needs) -> Held {
        let volume = self.volumes.entry(&needs.volume);
        let volume = match needs.hold {
            Hold::Shared => VolumeGuard::Shared(volume.read_owned().await),
            Hold::Exclusive => VolumeGuard::Exclusive(volume.write_owned().await),
        };
        let mut names = Vec::with_capacity(needs.names.len());
        for key in &needs.names {
            names.push(self.names.entry(key).lock_owned().await);
        }
        Held {
            needs,
            _volume: volume,
            _names: names,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::ids::Seed;

    fn key(name: &str) -> PathKey {
        PathKey::new(FileId::parse("h:1:aa").unwrap(), name.as_bytes())
    }

    fn needs(hold: Hold, names: &[&str]) -> Needs {
        let seed = Seed {
            unix_ms: 1,
            random: [1; 10],
        };
        Needs {
            volume: Generation::mint(seed),
            hold,
            names: names.iter().map(|name| key(name)).collect(),
        }
    }

    #[test]
    fn one_holder_a_name_and_a_directory_for_itself() {
        let locks = Locks::default();
        let held = locks.try_take(&needs(Hold::Shared, &["a", "c"])).unwrap();
        assert!(locks.try_take(&needs(Hold::Shared, &["a"])).is_none());
        assert!(locks.try_take(&needs(Hold::Shared, &["b", "c"])).is_none());
        assert!(locks.try_take(&needs(Hold::Shared, &["b"])).is_some());
        assert!(locks.try_take(&needs(Hold::Exclusive, &[])).is_none());
        drop(held);
        let alone = locks.try_take(&needs(Hold::Exclusive, &[])).unwrap();
        assert!(locks.try_take(&needs(Hold::Shared, &["b"])).is_none());
        drop(alone);
        assert!(locks.try_take(&needs(Hold::Shared, &["a"])).is_some());
    }
}
