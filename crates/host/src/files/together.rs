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
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Is a handle that a sync goes through, and what it is.
pub(crate) type Handle = (Arc<OwnedFd>, &'static str);

/// Holds the directories that somebody syncs or waits for.
#[derive(Debug, Default)]
pub(crate) struct Together {
    rounds: Mutex<HashMap<Place, Arc<Rounds>>>,
    helpers: Helpers,
}

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
    /// How many calls are at it.
    calls: usize,
    /// The first failure; there is no sync after it.
    failed: Option<Errno>,
}

/// Is what a call is to do for one directory.
#[derive(Clone)]
struct Part {
    place: Place,
    rounds: Arc<Rounds>,
    handle: Handle,
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
    pub(crate) fn sync<'a>(&self, handles: impl IntoIterator<Item = &'a Handle>) -> Result<()> {
        let mut parts: Vec<Part> = Vec::new();
        for handle in handles {
            match self.enlist(handle, &parts) {
                Ok(Some(part)) => parts.push(part),
                Ok(None) => {}
                Err(error) => {
                    // Whoever waits for what this call began is not left waiting.
                    for part in parts.iter().filter(|part| part.leads == Leads::Itself) {
                        part.clone().lead().ok();
                    }
                    self.forget(&parts);
                    return Err(error);
                }
            }
        }
        let mine = parts.iter().position(|part| part.leads == Leads::Itself);
        for (at, part) in parts.iter().enumerate() {
            if part.leads == Leads::Itself && Some(at) != mine {
                let part = part.clone();
                // Its outcome is heard by whoever waits for this sync, this call among them.
                self.helpers.run(Box::new(move || {
                    part.lead().ok();
                }));
            }
        }
        let led = mine.and_then(|at| parts.get(at)).cloned();
        let led = led.map_or(Ok(()), Part::lead);
        let others = parts.iter().enumerate().filter(|(at, _)| Some(*at) != mine);
        let answer = others.fold(led, |answer, (_, part)| answer.and(part.wait()));
        let shown = parts.first().map_or("a directory", |part| part.handle.1);
        self.forget(&parts);
        answer.map_err(|errno| Error::unproven("sync", shown, errno))
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Place, Arc<Rounds>>> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds which sync of a directory is enough: one that begins from now on. `None` where the call has it already.
    fn enlist(&self, handle: &Handle, already: &[Part]) -> Result<Option<Part>> {
        let stat = rustix::fs::fstat(&handle.0).map_err(|e| Error::unproven("examine", handle.1, e))?;
        let mut table = self.table();
        let place = (stat.st_dev, stat.st_ino);
        let rounds = table.entry(place).or_default().clone();
        if already.iter().any(|part| Arc::ptr_eq(&part.rounds, &rounds)) {
            return Ok(None);
        }
        let mut state = rounds.lock();
        state.calls += 1;
        drop(table);
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
            place,
            rounds,
            handle: handle.clone(),
            enough,
            leads,
        }))
    }

    /// Forgets directories that nobody waits for.
    fn forget(&self, parts: &[Part]) {
        let mut table = self.table();
        for part in parts {
            let mut state = part.rounds.lock();
            state.calls -= 1;
            if state.calls == 0 {
                table.remove(&part.place);
            }
        }
    }
}

impl Rounds {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    /// Does the sync that was begun, and tells whoever waits for it; by then it holds no handle any more.
    fn lead(self) -> std::result::Result<(), Errno> {
        let synced = rustix::fs::fsync(self.handle.0.as_fd());
        drop(self.handle);
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
                return self.clone().lead();
            }
            state = self
                .rounds
                .over
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Is what a helper is to do, and the way to it, which it gives back afterwards.
type Job = (Box<dyn FnOnce() + Send>, Sender<Work>);

/// Carries a job to a helper.
struct Work(Job);

/// Holds threads that sync beside the threads of calls, so that a call's own syncs do not wait for each other. They are
/// made as they are needed, and end with this.
#[derive(Debug, Default)]
struct Helpers(Arc<Mutex<Vec<Sender<Work>>>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Helpers {
    /// Has a job done beside this thread; where no thread is to be had, by this one.
    fn run(&self, job: Box<dyn FnOnce() + Send>) {
        let idle = lock(&self.0).pop();
        let way = idle.or_else(|| self.another());
        let Some(way) = way else {
            return job();
        };
        if let Err(SendError(Work((job, _)))) = way.send(Work((job, way.clone()))) {
            job();
        }
    }

    fn another(&self) -> Option<Sender<Work>> {
        let (way, work) = channel::<Work>();
        let idle = Arc::downgrade(&self.0);
        let thread = std::thread::Builder::new().name("semel-sync".to_owned());
        let helps = move || {
            while let Ok(Work((job, way))) = work.recv() {
                job();
                match idle.upgrade() {
                    Some(idle) => lock(&idle).push(way),
                    None => return,
                }
            }
        };
        thread.spawn(helps).ok().map(|_| way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn handle(dir: &std::path::Path) -> Handle {
        let open: OwnedFd = std::fs::File::open(dir).unwrap().into();
        (Arc::new(open), "a directory")
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
        leader.clone().lead().unwrap();
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
