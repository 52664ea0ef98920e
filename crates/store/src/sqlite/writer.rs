//! The one writer: a thread that commits whatever is queued in one transaction; a verb that is refused takes nobody with
//! it.
//!
//! An answer never leaves before its COMMIT. It does *not* know what a verb means; that is the desk's.

use super::desk::{Desk, Leases};
use super::queue::{Class, Hint, Message, Ran, Shared, Work};
use super::{OnCommit, fault};
use crate::error::{Damage, Error, Result};
use crate::reserve::{Freed, Reserve, WATERMARK_BYTES};
use rusqlite::Connection;
use semel_core::record::Sync;
use semel_core::volume::Durability;
use semel_core::{Code, Refusal};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How many verbs share one commit at most; bounds what one of them waits for.
const GROUP: usize = 256;

/// How many verbs are too few to be committed without a look at who else is about to ask.
const CROWD: usize = 16;

/// How long verbs that nobody waits for may wait for each other, so that they share a commit.
const UNHEARD_WITHIN: Duration = Duration::from_millis(5);

/// How long a commit that is to be synced soon may stay unsynced.
pub(super) const SYNC_WITHIN: Duration = Duration::from_millis(500);

/// How many pages the write-ahead log holds before it is checkpointed (16 MiB).
const CHECKPOINT_PAGES: u64 = 4096;

/// How many it may hold before a commit of notes alone checkpoints it (64 MiB): a checkpoint is synced, and what has no
/// effect of its own is to cost no sync as long as that can be put off until something else is recorded.
const CHECKPOINT_PAGES_OF_NOTES: u64 = 4 * CHECKPOINT_PAGES;

/// How often the length of the log is asked for, in rows.
const CHECKPOINT_ROWS: u64 = 512;

/// Says whether a commit waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Normal,
    Full,
}

pub(super) struct Thread {
    desk: Desk,
    reserve: Reserve,
    shared: Arc<Shared>,
    on_commit: Option<OnCommit>,
    level: Level,
    /// Since when there is a commit that is to be synced soon and was not yet.
    unsynced: Option<Instant>,
    rows_since_checkpoint: u64,
}

/// Poisons the process where the writer ends by a panic: nobody may take its silence for an idle journal.
struct Watch(Arc<Shared>);

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0
                .poison
                .get_or_init(|| "the writer ended by a bug".to_owned());
        }
    }
}

/// Is why a batch is lost whole.
struct Failed {
    damage: Damage,
    why: String,
}

impl From<Error> for Failed {
    fn from(e: Error) -> Self {
        let damage = match &e {
            Error::Database { damage, .. } => *damage,
            Error::Refused(_) | Error::Illegal(_) | Error::Poisoned { .. } => Damage::Files,
        };
        Self {
            damage,
            why: e.to_string(),
        }
    }
}

impl Thread {
    pub(super) fn new(
        desk: Desk,
        reserve: Reserve,
        shared: Arc<Shared>,
        on_commit: Option<OnCommit>,
    ) -> Self {
        Self {
            desk,
            reserve,
            shared,
            on_commit,
            level: Level::Full,
            unsynced: None,
            rows_since_checkpoint: 0,
        }
    }

    /// Commits what comes until nobody is left who could ask.
    pub(super) fn serve(mut self, jobs: &Receiver<Message>) {
        let mut batch: Vec<Box<dyn Work>> = Vec::with_capacity(GROUP);
        // Dropped before the batch: the poison is there before anyone who waits learns that the writer is gone.
        let _watch = Watch(Arc::clone(&self.shared));
        loop {
            let first = match self.unsynced {
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(since) => jobs.recv_timeout(SYNC_WITHIN.saturating_sub(since.elapsed())),
            };
            self.shared.works();
            match first {
                Ok(message) => {
                    self.gather(&mut batch, message, jobs);
                    if batch.is_empty() {
                        // What it was told of went along with the batch before.
                        self.shared.waits();
                        continue;
                    }
                    let end = self.group(&mut batch);
                    self.shared
                        .queued
                        .fetch_sub(batch.len() as u64, Ordering::Relaxed);
                    for job in batch.drain(..) {
                        job.answer(&end);
                    }
                    if let (Ok(()), Some(OnCommit(told))) = (&end, &self.on_commit) {
                        told();
                    }
                    self.tidy();
                }
                Err(RecvTimeoutError::Timeout) => self.sync_now(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.shared.waits();
        }
        self.end();
    }

    /// Puts a batch together: what waits by now, and what is worth waiting for. What nobody waits for comes along with
    /// whatever comes next, and in front of it: it was told before.
    fn gather(&self, batch: &mut Vec<Box<dyn Work>>, first: Message, jobs: &Receiver<Message>) {
        let first = match first {
            Message::Verb(job) => Some(job),
            Message::Unheard => match jobs.recv_timeout(UNHEARD_WITHIN) {
                Ok(Message::Verb(job)) => Some(job),
                Ok(Message::Unheard) | Err(_) => None,
            },
        };
        let mut heard: Vec<Box<dyn Work>> = first.into_iter().collect();
        let verbs = |most: usize| {
            jobs.try_iter().take(most).filter_map(|message| match message {
                Message::Verb(job) => Some(job),
                Message::Unheard => None,
            })
        };
        heard.extend(verbs(GROUP - 1));
        if !heard.is_empty() && heard.len() < CROWD {
            // Where the processors are all at work, whoever is about to ask is let go first: a commit costs
            // much the same for one as for many. Where one is idle, this takes no time.
            std::thread::yield_now();
            heard.extend(verbs(GROUP - CROWD));
        }
        // After every message that tells of them was taken: none is left behind without one.
        batch.extend(self.shared.unheard());
        batch.append(&mut heard);
    }

    /// Commits a batch; once more with the reserve given back where the disk is full.
    fn group(&mut self, batch: &mut [Box<dyn Work>]) -> std::result::Result<(), String> {
        if let Some(why) = self.shared.poisoned() {
            return Err(why);
        }
        let mut failed = match self.attempt(batch, Room::AsFound) {
            Ok(()) => return Ok(()),
            Err(failed) => failed,
        };
        if failed.damage == Damage::Full && self.gave_back() {
            match self.attempt(batch, Room::Reserved) {
                Ok(()) => return Ok(()),
                Err(again) => failed = again,
            }
        }
        Err(self.poison(failed.why))
    }

    /// Gives the reserve back to the disk; says whether there was any to give.
    fn gave_back(&mut self) -> bool {
        self.reserve.free().is_ok_and(|freed| freed == Freed::Space)
    }

    fn poison(&self, why: String) -> String {
        self.shared.poison.get_or_init(|| why).clone()
    }

    /// Carries out and commits a batch, once.
    fn attempt(&mut self, batch: &mut [Box<dyn Work>], room: Room) -> std::result::Result<(), Failed> {
        let asked = batch
            .iter()
            .map(|job| self.expected(job.hint()))
            .max()
            .unwrap_or(Sync::Whenever);
        let overdue = self.unsynced.is_some_and(|since| since.elapsed() >= SYNC_WITHIN);
        self.level(match asked {
            Sync::Whenever | Sync::Later if !overdue => Level::Normal,
            Sync::Whenever | Sync::Later | Sync::Now => Level::Full,
        })?;
        let start = self.desk.head;
        if self.transaction(batch, room, Apart::None)? == Went::Mixed {
            self.transaction(batch, room, Apart::Each)?;
        }
        if self.desk.leases == Leases::Changed {
            self.shared.recall.forget_leases();
            self.desk.leases = Leases::Same;
        }
        let rows = self.desk.head.seq - start.seq;
        if rows > 0 {
            // What is committed is never carried out anew: the barrier has tried with the reserve by itself.
            self.committed(rows).map_err(|e| Failed {
                damage: Damage::Files,
                why: e.to_string(),
            })?;
        } else {
            // A beat leaves no row, but a page in the log.
            self.rows_since_checkpoint += 1;
        }
        let finished = self.desk.memory.finished.drain(..);
        self.shared.recall.keep_calls(finished);
        Ok(())
    }

    /// Carries out and commits a batch in one transaction; whatever does not come to its commit is rolled back.
    fn transaction(
        &mut self,
        batch: &mut [Box<dyn Work>],
        room: Room,
        apart: Apart,
    ) -> std::result::Result<Went, Failed> {
        let start = self.desk.head;
        self.desk.need = Sync::Whenever;
        let went = self
            .statement("BEGIN IMMEDIATE")
            .map_err(Failed::from)
            .and_then(|()| self.rows(batch, room, apart))
            .and_then(|went| match went {
                Went::Through => self.statement("COMMIT").map(|()| went).map_err(Failed::from),
                Went::Mixed => Ok(went),
            });
        if !matches!(went, Ok(Went::Through)) {
            self.desk.back_to(start);
            if !self.desk.conn.is_autocommit() {
                self.statement("ROLLBACK")?;
            }
        }
        went
    }

    /// Runs every verb. One that is refused takes nobody with it: before it wrote, there is nothing to take back; after
    /// that its savepoint goes, or, where there is none, the batch is to be carried out anew with savepoints.
    fn rows(
        &mut self,
        batch: &mut [Box<dyn Work>],
        room: Room,
        apart: Apart,
    ) -> std::result::Result<Went, Failed> {
        let full = self.is_full(batch, room);
        for job in batch {
            if full && job.class() == Class::Begins {
                job.refuse(
                    Refusal::new(Code::IoFailed, "the disk of the journal is nearly full")
                        .reason("disk_full"),
                );
                continue;
            }
            let (head, need) = (self.desk.head, self.desk.need);
            self.desk.wrote.set(false);
            if apart == Apart::Each {
                self.statement("SAVEPOINT verb")?;
            }
            match (job.run(&mut self.desk), apart) {
                (Ran::Lost(damage, why), _) => return Err(Failed { damage, why }),
                (Ran::Refused, _) if self.desk.conn.is_autocommit() => {
                    return Err(Failed {
                        damage: Damage::Files,
                        why: "the database gave the transaction up".to_owned(),
                    });
                }
                (Ran::Kept, Apart::None) => {}
                (Ran::Refused, Apart::None) if self.desk.wrote.get() => return Ok(Went::Mixed),
                (Ran::Refused, Apart::None) => {}
                (Ran::Kept, Apart::Each) => self.statement("RELEASE verb")?,
                (Ran::Refused, Apart::Each) => {
                    self.statement("ROLLBACK TO verb")?;
                    self.statement("RELEASE verb")?;
                    self.desk.back_to(head);
                    self.desk.need = need;
                }
            }
        }
        Ok(Went::Through)
    }

    /// Says whether the disk is too full for anything new.
    fn is_full(&mut self, batch: &[Box<dyn Work>], room: Room) -> bool {
        match room {
            Room::Reserved => true,
            Room::AsFound => {
                batch.iter().any(|job| job.class() == Class::Begins) && {
                    let free = self.reserve.look();
                    // A disk that cannot be asked is left to tell by itself.
                    free.is_ok_and(|free| free < WATERMARK_BYTES)
                }
            }
        }
    }

    /// Counts a commit; syncs it where its records turned out to need more than was expected.
    fn committed(&mut self, rows: u64) -> Result<()> {
        self.shared.commits.fetch_add(1, Ordering::Relaxed);
        self.shared.rows.fetch_add(rows, Ordering::Relaxed);
        self.rows_since_checkpoint += rows;
        match (self.level, self.desk.need) {
            (Level::Full, _) => self.synced(),
            (Level::Normal, Sync::Whenever) => {}
            (Level::Normal, Sync::Later) => {
                self.unsynced.get_or_insert_with(Instant::now);
            }
            (Level::Normal, Sync::Now) => self.barrier()?,
        }
        Ok(())
    }

    fn synced(&mut self) {
        self.shared.synced.fetch_add(1, Ordering::Relaxed);
        self.unsynced = None;
    }

    /// Brings every commit so far to the disk: one that is synced carries all before it in the same log. It needs a page
    /// of the log for that, for which a full disk gets the reserve back.
    fn barrier(&mut self) -> Result<()> {
        self.level(Level::Full)?;
        match self.desk.beat() {
            Err(e) if e.is_full() && self.gave_back() => self.desk.beat()?,
            done => done?,
        }
        self.synced();
        Ok(())
    }

    fn sync_now(&mut self) {
        if let Err(e) = self.barrier() {
            self.poison(e.to_string());
            self.unsynced = None;
        }
    }

    /// Leaves the whole journal in its one file.
    fn end(&mut self) {
        if self.unsynced.is_some() {
            self.sync_now();
        }
        if self.shared.poisoned().is_none() {
            // Where a reader holds it up, the log stays and is read at the next start.
            let done = checkpoint(&self.desk.conn, "PRAGMA wal_checkpoint(TRUNCATE)");
            self.checkpointed(done);
        }
    }

    /// Keeps the write-ahead log short; nobody waits for an answer meanwhile.
    fn tidy(&mut self) {
        if self.rows_since_checkpoint < CHECKPOINT_ROWS || self.shared.poisoned().is_some() {
            return;
        }
        self.rows_since_checkpoint = 0;
        let most = match self.desk.need {
            Sync::Whenever => CHECKPOINT_PAGES_OF_NOTES,
            Sync::Later | Sync::Now => CHECKPOINT_PAGES,
        };
        let done = checkpoint(&self.desk.conn, "PRAGMA wal_checkpoint(NOOP)").and_then(|pages| {
            if pages >= most {
                checkpoint(&self.desk.conn, "PRAGMA wal_checkpoint(PASSIVE)")
            } else {
                Ok(pages)
            }
        });
        self.checkpointed(done);
    }

    /// Ends the process where a checkpoint failed, save for want of room: then the log holds everything as before, the
    /// next checkpoint is tried in its turn, and the reserve is left to receipts.
    fn checkpointed(&self, done: Result<u64>) {
        if let Err(e) = done
            && !e.is_full()
        {
            self.poison(e.to_string());
        }
    }

    fn expected(&self, hint: &Hint) -> Sync {
        match hint {
            Hint::Known(sync) => *sync,
            Hint::Call(execution) => match self.desk.running.get(execution) {
                None | Some(Durability::Process) => Sync::Later,
                Some(Durability::Power | Durability::PowerBestEffort) => Sync::Now,
            },
        }
    }

    /// Sets whether commits wait for the disk; SQLite allows it only between transactions.
    fn level(&mut self, level: Level) -> Result<()> {
        if self.level != level {
            let sql = match level {
                Level::Normal => "PRAGMA synchronous = NORMAL",
                Level::Full => "PRAGMA synchronous = FULL",
            };
            self.desk
                .conn
                .execute_batch(sql)
                .map_err(fault("set how commits wait"))?;
            self.level = level;
        }
        Ok(())
    }

    fn statement(&self, sql: &'static str) -> Result<()> {
        self.desk
            .conn
            .prepare_cached(sql)
            .and_then(|mut s| s.execute([]))
            .map(drop)
            .map_err(fault(sql))
    }
}

/// Checkpoints, or does nothing, as asked; gives how many pages the write-ahead log holds.
fn checkpoint(conn: &Connection, sql: &str) -> Result<u64> {
    conn.query_row(sql, [], |row| row.get::<_, i64>(1))
        .map(i64::unsigned_abs)
        .map_err(fault("checkpoint the write-ahead log"))
}

/// Says on which room a batch may count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// What the disk has.
    AsFound,
    /// The reserve alone: nothing new is begun.
    Reserved,
}

/// Says whether each verb of a batch has a savepoint. They cost a good part of a commit, and only one that is refused
/// after it wrote, which a rule seldom does, needs any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Apart {
    None,
    Each,
}

/// Says how far a batch came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Went {
    /// To its end.
    Through,
    /// To a verb that was refused after it wrote, without a savepoint.
    Mixed,
}

impl Desk {
    /// Writes something that means nothing.
    pub(super) fn beat(&self) -> Result<()> {
        self.execute("UPDATE pulse SET beats = beats + 1 WHERE id = 1", [])
    }
}
