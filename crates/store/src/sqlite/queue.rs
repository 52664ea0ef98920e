//! The queue to the one writer: each verb with what the writer has to know of it, and the way back for its answer.
//!
//! It does *not* commit; that is the writer's.

use super::OnCommit;
use super::desk::Desk;
use super::writer::Thread;
use crate::error::{Damage, Error, Result};
use crate::reserve::Reserve;
use semel_core::ids::ExecutionId;
use semel_core::record::Sync;
use semel_core::{Code, Refusal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Is what the writer tells everyone else.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) commits: AtomicU64,
    pub(super) rows: AtomicU64,
    pub(super) synced: AtomicU64,
    pub(super) poison: OnceLock<String>,
    /// How many verbs were asked for and are not answered.
    pub(super) queued: AtomicU64,
    /// Since when the writer works at what it has, in milliseconds after `began`, and one more; 0 while it waits.
    busy_since: AtomicU64,
    began: Instant,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            commits: AtomicU64::default(),
            rows: AtomicU64::default(),
            synced: AtomicU64::default(),
            poison: OnceLock::default(),
            queued: AtomicU64::default(),
            busy_since: AtomicU64::default(),
            began: Instant::now(),
        }
    }
}

impl Shared {
    /// Hears that the writer begins to work.
    pub(super) fn works(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.busy_since.store(since.saturating_add(1), Ordering::Relaxed);
    }

    /// Hears that the writer waits for work.
    pub(super) fn waits(&self) {
        self.busy_since.store(0, Ordering::Relaxed);
    }

    /// Says for how long the writer has been working without having come to an end.
    pub(super) fn busy(&self) -> Duration {
        match self.busy_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => self
                .began
                .elapsed()
                .saturating_sub(Duration::from_millis(since - 1)),
        }
    }

    /// Refuses once the process is poisoned.
    pub(super) fn sound(&self) -> Result<()> {
        match self.poison.get() {
            None => Ok(()),
            Some(why) => Err(Error::Poisoned { why: why.clone() }),
        }
    }

    pub(super) fn poisoned(&self) -> Option<String> {
        self.poison.get().cloned()
    }
}

/// Says what kind of verb it is, to a writer that may have to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Begins something new: refused on a full disk.
    Begins,
    /// Records what is done or decided: the reserve is for it.
    Settles,
    /// Only asks whether commits still pass.
    Beats,
}

/// Says how a batch with this verb has to be begun.
#[derive(Clone, Debug)]
pub(super) enum Hint {
    /// So.
    Known(Sync),
    /// As the running call was begun.
    Call(ExecutionId),
}

/// Is one verb in the queue.
pub(super) trait Work: Send {
    fn class(&self) -> Class;
    fn hint(&self) -> &Hint;
    /// Carries the verb out, and keeps its answer; gives back what it did to the files.
    fn run(&mut self, desk: &mut Desk) -> Ran;
    /// Keeps a refusal as the answer.
    fn refuse(&mut self, refusal: Refusal);
    /// Sends the answer.
    fn answer(self: Box<Self>, end: &std::result::Result<(), String>);
}

/// Says what became of the rows of one verb.
pub(super) enum Ran {
    Kept,
    Refused,
    Lost(Damage, String),
}

struct Job<T, F> {
    class: Class,
    hint: Hint,
    work: F,
    kept: Option<Result<T>>,
    reply: SyncSender<Result<T>>,
}

impl<T: Send, F: FnMut(&mut Desk) -> Result<T> + Send> Work for Job<T, F> {
    fn class(&self) -> Class {
        self.class
    }

    fn hint(&self) -> &Hint {
        &self.hint
    }

    fn run(&mut self, desk: &mut Desk) -> Ran {
        let result = (self.work)(desk);
        let ran = match &result {
            Ok(_) => Ran::Kept,
            Err(Error::Database {
                damage: damage @ (Damage::Full | Damage::Files),
                ..
            }) => Ran::Lost(
                *damage,
                result.as_ref().err().map(ToString::to_string).unwrap_or_default(),
            ),
            Err(_) => Ran::Refused,
        };
        self.kept = Some(result);
        ran
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.kept = Some(Err(Error::Refused(refusal)));
    }

    fn answer(self: Box<Self>, end: &std::result::Result<(), String>) {
        let answer = match (end, self.kept) {
            (Ok(()), Some(kept)) => kept,
            (Ok(()), None) => Err(Error::Poisoned {
                why: "the verb was not carried out".to_owned(),
            }),
            (Err(why), _) => Err(Error::Poisoned { why: why.clone() }),
        };
        match self.reply.try_send(answer) {
            // Whoever asked is gone; what is recorded stays.
            Ok(()) | Err(TrySendError::Disconnected(_) | TrySendError::Full(_)) => {}
        }
    }
}

/// Holds the queue to the writer thread; ends it when dropped.
pub(super) struct Writer {
    queue: Option<Sender<Box<dyn Work>>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(
        desk: Desk,
        reserve: Reserve,
        shared: Arc<Shared>,
        on_commit: Option<OnCommit>,
    ) -> Result<Self> {
        let (queue, jobs) = channel();
        let state = Thread::new(desk, reserve, Arc::clone(&shared), on_commit);
        let thread = std::thread::Builder::new()
            .name("semel-journal".to_owned())
            .spawn(move || state.serve(&jobs))
            .map_err(|e| {
                Refusal::new(
                    Code::StoreUnavailable,
                    format!("the writer cannot be started ({e})"),
                )
            })?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            shared,
        })
    }

    /// Has a verb carried out, and waits for its answer, which comes after its commit.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        class: Class,
        hint: Hint,
        work: impl FnMut(&mut Desk) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.send(class, hint, work)?
            .recv()
            .unwrap_or_else(|_| Err(self.gone()))
    }

    /// Proves that the writer still commits.
    pub(super) fn beat(&self, within: Duration) -> Result<()> {
        let answer = self.send(Class::Beats, Hint::Known(Sync::Later), |desk| desk.beat())?;
        match answer.recv_timeout(within) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(Refusal::new(
                Code::StoreUnavailable,
                format!("the writer did not commit within {} ms", within.as_millis()),
            )
            .reason("writer_stuck")
            .into()),
            Err(RecvTimeoutError::Disconnected) => Err(self.gone()),
        }
    }

    fn send<T: Send + 'static>(
        &self,
        class: Class,
        hint: Hint,
        work: impl FnMut(&mut Desk) -> Result<T> + Send + 'static,
    ) -> Result<Receiver<Result<T>>> {
        self.shared.sound()?;
        let (reply, answer) = sync_channel(1);
        let job = Box::new(Job {
            class,
            hint,
            work,
            kept: None,
            reply,
        });
        let queue = self.queue.as_ref().ok_or_else(|| self.gone())?;
        self.shared.queued.fetch_add(1, Ordering::Relaxed);
        queue.send(job).map_err(|_| self.gone())?;
        Ok(answer)
    }

    fn gone(&self) -> Error {
        Error::Poisoned {
            why: self
                .shared
                .poisoned()
                .unwrap_or_else(|| "the writer has ended".to_owned()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the writer has been seen by everyone who waited for it.
            drop(thread.join());
        }
    }
}
