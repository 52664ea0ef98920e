//! The locks that order calls on one path, from check to receipt. Who waits for one holds no thread.

use semel_core::ids::FileId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Names what a leaf operation changes: the directory itself, not its path, and the name in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathKey {
    /// The directory.
    pub(crate) parent: FileId,
    /// The name.
    pub(crate) name: Vec<u8>,
}

/// Holds the lock on one path until it is dropped.
pub(crate) struct PathLock {
    /// What is locked.
    pub(crate) key: PathKey,
    _guard: tokio::sync::OwnedMutexGuard<()>,
}

/// Holds the locks that anyone has or waits for.
#[derive(Default)]
pub(crate) struct PathLocks(Mutex<HashMap<PathKey, Weak<tokio::sync::Mutex<()>>>>);

/// How many dead entries may lie around before they are swept.
const SWEEP_AT: usize = 1024;

impl PathLocks {
    fn entry(&self, key: &PathKey) -> Arc<tokio::sync::Mutex<()>> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = table.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        if table.len() >= SWEEP_AT {
            table.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        table.insert(key.clone(), Arc::downgrade(&lock));
        lock
    }

    /// Takes the lock if nobody has it.
    pub(crate) fn try_take(&self, key: &PathKey) -> Option<PathLock> {
        let guard = self.entry(key).try_lock_owned().ok()?;
        Some(PathLock {
            key: key.clone(),
            _guard: guard,
        })
    }

    /// Waits for the lock, in the order of asking.
    pub(crate) async fn take(&self, key: PathKey) -> PathLock {
        let guard = self.entry(&key).lock_owned().await;
        PathLock { key, _guard: guard }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_a_name() {
        let locks = PathLocks::default();
        let key = |name: &str| PathKey {
            parent: FileId::parse("h:1:aa").unwrap(),
            name: name.as_bytes().to_vec(),
        };
        let held = locks.try_take(&key("a")).unwrap();
        assert!(locks.try_take(&key("a")).is_none());
        assert!(locks.try_take(&key("b")).is_some());
        drop(held);
        assert!(locks.try_take(&key("a")).is_some());
    }
}
