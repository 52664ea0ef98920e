//! Syncs that many calls share: whoever waits for a directory waits for one sync of it that began after its own rename,
//! not for one of its own.
//!
//! Many calls at once change the same few directories (`staging/`, `trash/`, the one they all write into). A sync of a
//! directory makes every rename durable that came before it, whoever renamed. So one call syncs, and those that came
//! meanwhile share the next sync. A failure is everybody's who shares it; it poisons the process anyway.

use crate::error::{Error, Result};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Holds the directories that somebody syncs or waits for.
#[derive(Debug, Default)]
pub(crate) struct Together(Mutex<HashMap<Place, Arc<Rounds>>>);

/// Knows a directory while a handle on it is open.
type Place = (u64, u64);

#[derive(Debug, Default)]
struct Rounds {
    state: Mutex<State>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many syncs began.
    begun: u64,
    /// How many of them are over.
    over: u64,
    /// The first failure; there is no sync after it.
    failed: Option<Errno>,
}

/// Is what a call is to do for one directory.
struct Part<'a> {
    rounds: Arc<Rounds>,
    handle: &'a (OwnedFd, &'static str),
    /// The sync that is enough.
    enough: u64,
    /// Whether this call does it.
    leads: Leads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leads {
    Itself,
    Another,
}

impl Together {
    /// Makes everything durable that was done in these directories before.
    ///
    /// # Errors
    /// [`Error::Unproven`] where a sync fails: the process has to end.
    pub(crate) fn sync<'a>(
        &self,
        handles: impl IntoIterator<Item = &'a (OwnedFd, &'static str)>,
    ) -> Result<()> {
        let mut parts: Vec<Part<'_>> = Vec::new();
        for handle in handles {
            match self.enlist(handle, &parts) {
                Ok(Some(part)) => parts.push(part),
                Ok(None) => {}
                Err(error) => {
                    // Whoever waits for what this call began is not left waiting.
                    for part in parts.iter().filter(|part| part.leads == Leads::Itself) {
                        part.lead().ok();
                    }
                    return Err(error);
                }
            }
        }
        let (mine, theirs): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.leads == Leads::Itself);
        let led = std::thread::scope(|scope| {
            let Some((first, others)) = mine.split_first() else {
                return Ok(());
            };
            let others: Vec<_> = others.iter().map(|part| scope.spawn(|| part.lead())).collect();
            let mut answer = first.lead();
            for other in others {
                let ended = other.join().unwrap_or(Err(Errno::IO));
                answer = answer.and(ended);
            }
            answer
        });
        let answer = theirs.iter().fold(led, |answer, part| answer.and(part.wait()));
        let shown = parts.first().map_or("a directory", |part| part.handle.1);
        self.forget(&parts);
        answer.map_err(|errno| Error::unproven("sync", shown, errno))
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Place, Arc<Rounds>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds which sync of a directory is enough: one that begins from now on. `None` where the call has it already.
    fn enlist<'a>(
        &self,
        handle: &'a (OwnedFd, &'static str),
        already: &[Part<'_>],
    ) -> Result<Option<Part<'a>>> {
        let stat = rustix::fs::fstat(&handle.0).map_err(|e| Error::unproven("examine", handle.1, e))?;
        let rounds = self
            .table()
            .entry((stat.st_dev, stat.st_ino))
            .or_default()
            .clone();
        if already.iter().any(|part| Arc::ptr_eq(&part.rounds, &rounds)) {
            return Ok(None);
        }
        let mut state = rounds.lock();
        let leads = if state.begun == state.over {
            state.begun += 1;
            Leads::Itself
        } else {
            Leads::Another
        };
        let enough = match leads {
            Leads::Itself => state.begun,
            Leads::Another => state.begun + 1,
        };
        drop(state);
        Ok(Some(Part {
            rounds,
            handle,
            enough,
            leads,
        }))
    }

    /// Forgets directories that nobody waits for.
    fn forget(&self, parts: &[Part<'_>]) {
        let mut table = self.table();
        // Beside the table and this call, nobody holds it.
        table.retain(|_, rounds| {
            let mine = parts
                .iter()
                .filter(|part| Arc::ptr_eq(&part.rounds, rounds))
                .count();
            Arc::strong_count(rounds) > mine + 1
        });
    }
}

impl Rounds {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part<'_> {
    /// Does the sync that was begun, and tells whoever waits for it.
    fn lead(&self) -> std::result::Result<(), Errno> {
        let synced = rustix::fs::fsync(self.handle.0.as_fd());
        let mut state = self.rounds.lock();
        state.over += 1;
        if let Err(errno) = synced {
            state.failed.get_or_insert(errno);
        }
        self.rounds.over.notify_all();
        match state.failed {
            Some(errno) => Err(errno),
            None => Ok(()),
        }
    }

    /// Waits until a sync is over that is enough; begins it where nobody else does.
    fn wait(&self) -> std::result::Result<(), Errno> {
        let mut state = self.rounds.lock();
        loop {
            if let Some(errno) = state.failed {
                return Err(errno);
            }
            if state.over >= self.enough {
                return Ok(());
            }
            if state.begun == state.over {
                state.begun += 1;
                drop(state);
                return self.lead();
            }
            state = self
                .rounds
                .over
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn handle(dir: &std::path::Path) -> (OwnedFd, &'static str) {
        (std::fs::File::open(dir).unwrap().into(), "a directory")
    }

    #[test]
    fn many_that_sync_one_directory_are_all_answered_and_nothing_is_left() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (together, gate) = (Together::default(), Barrier::new(32));
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    gate.wait();
                    for _ in 0..20 {
                        together.sync(&[handle(a.path()), handle(b.path())]).unwrap();
                    }
                });
            }
        });
        assert!(together.table().is_empty());
        together.sync(&[]).unwrap();
    }

    /// Whoever comes while a sync runs is not content with it: it began before.
    #[test]
    fn a_sync_that_runs_already_is_not_enough() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (handle(dir.path()), handle(dir.path()));
        let together = Together::default();
        let leader = together.enlist(&first, &[]).unwrap().unwrap();
        let late = together.enlist(&second, &[]).unwrap().unwrap();
        assert_eq!((leader.leads, late.leads), (Leads::Itself, Leads::Another));
        leader.lead().unwrap();
        assert!(late.rounds.lock().over < late.enough);
        late.wait().unwrap();
        assert_eq!(late.rounds.lock().over, 2);
    }

    #[test]
    fn a_failure_is_told_to_everybody_who_shares_it() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (handle(dir.path()), handle(dir.path()));
        let together = Together::default();
        let leader = together.enlist(&first, &[]).unwrap().unwrap();
        let late = together.enlist(&second, &[]).unwrap().unwrap();
        leader.rounds.lock().failed = Some(Errno::IO);
        assert_eq!(leader.lead(), Err(Errno::IO));
        assert_eq!(late.wait(), Err(Errno::IO));
    }
}
