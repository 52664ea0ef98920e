//! The journal in one SQLite file: one thread writes, a few connections read.
//!
//! Nobody but SQLite opens `journal.db` or its write-ahead log. What a verb means stands in the table of
//! [`Journal`]; this module only says who carries it out.

mod approvals;
mod desk;
mod fold;
mod queue;
mod read;
mod recall;
mod retention;
mod row;
mod schema;
mod tables;
mod verbs;
mod verify;
mod writer;

use crate::error::{Damage, Error, Result};
use crate::journal::{Began, ChainReport, Consumed, Depth, Journal, JournalStatus, LogFilter, LogLine, Then};
use crate::owner::OwnerLock;
use crate::reserve::{self, Reserve};
use desk::Desk;
use queue::{Class, Hint, Shared, Writer};
use read::Pool;
pub use schema::FILE;
use semel_core::approval::{Approval, Question, Ruling, Subject};
use semel_core::call::{Aborting, CallState, Intent, Note, OpenCall, Receipt, Resolved, Scope, Settled};
use semel_core::checkpoint::Checkpoint;
use semel_core::ids::{
    ApprovalId, ExecutionId, FencingToken, Generation, IdempotencyKey, Incarnation, JobId, RunId, UnixMs,
    VolumeIdentity,
};
use semel_core::pin::PinId;
use semel_core::pipeline::{NewRun, Run, RunEnd, Stage};
use semel_core::prepared::{NewPreparation, Preparation};
use semel_core::record::{Consumption, Judgement, Restoration, Sealing, Sync};
use semel_core::retry::Retrial;
use semel_core::volume::{Durability, End, Lease, NewToken, NewVolume, Volume};
use semel_core::{Code, Refusal, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
pub use verify::audit_file;

/// How long a reader of the log waits for what was told to the writer before.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Holds what the journal records of the process that opens it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The version of the binary.
    pub version: String,
    /// The boot in which it runs.
    pub boot_id: String,
    /// The policy that calls are judged by; `None` where there is none.
    pub policy_sha256: Option<Sha256>,
    /// When it opens the journal.
    pub now: UnixMs,
    /// What is told of every commit.
    pub on_commit: Option<OnCommit>,
}

/// Is told by the writer's own thread that a commit passed, and holds the writer up while it listens: for a watchdog,
/// which nothing but the writer may feed.
#[derive(Clone)]
pub struct OnCommit(pub Arc<dyn Fn() + Send + std::marker::Sync>);

impl std::fmt::Debug for OnCommit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnCommit")
    }
}

/// Is the journal of one state directory.
pub struct SqliteJournal {
    // Dropped in this order: the writer ends, then the readers close, then the lock is given up.
    writer: Option<Writer>,
    pool: Pool,
    shared: Arc<Shared>,
    incarnation: Incarnation,
    _lock: Option<OwnerLock>,
}

impl std::fmt::Debug for SqliteJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteJournal")
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

/// Gives the place of the database below a state root; only SQLite opens it.
#[must_use]
pub fn place(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

impl SqliteJournal {
    /// Opens the journal of the lock's directory to write it, and records that this process began.
    ///
    /// # Errors
    /// `store_unavailable`, with the reason `network_filesystem`, `engine_too_old`, `newer_schema`,
    /// `migration_changed`, `foreign_database` or `chain_broken` (the newest entries do not follow one another);
    /// `io_failed` where the disk is full; `bad_config`, reason `policy_missing`, where the life before had a policy,
    /// this one has none, and volumes are open.
    ///
    /// # Durability
    /// When this returns, the schema and the new life of the writer are on the disk.
    pub fn open(lock: OwnerLock, options: &Options) -> Result<Self> {
        let conn = match schema::open_writer(&lock) {
            // The log and its index need room: SQLite names a full disk in more than one way.
            Err(Error::Database { .. }) if reserve::gave_back(lock.dir()) => schema::open_writer(&lock)?,
            opened => opened?,
        };
        let head = verify::tail(&conn)?;
        let reserve = Reserve::hold(lock.dir())
            .map_err(|e| Refusal::new(Code::IoFailed, format!("the reserve cannot be held ({e})")))?;
        let running = read::open_calls(&conn)?
            .into_iter()
            .map(|call| (call.intent.execution_id.clone(), call.intent.survives()))
            .collect();
        let desk = Desk::new(conn, head, running);
        let shared = Arc::new(Shared::default());
        let Options {
            version,
            boot_id,
            policy_sha256,
            now,
            on_commit,
        } = options.clone();
        let writer = Writer::start(desk, reserve, Arc::clone(&shared), on_commit)?;
        let incarnation = writer.ask(Class::Settles, Hint::Known(Sync::Now), move |desk| {
            desk.start(&boot_id, &version, policy_sha256, now)
        })?;
        Ok(Self {
            pool: Pool::open(lock.dir())?,
            writer: Some(writer),
            shared,
            incarnation,
            _lock: Some(lock),
        })
    }

    /// Says whether a directory has a journal at all.
    #[must_use]
    pub fn exists(dir: &Path) -> bool {
        dir.join(FILE).exists()
    }

    /// Opens the journal of a directory to read it alone, whether or not another process writes it.
    ///
    /// # Errors
    /// `store_unavailable` where there is none, or it is not of this build; every verb that writes then answers
    /// `store_unavailable`, reason `read_only`.
    pub fn open_read_only(dir: &Path) -> Result<Self> {
        schema::on_local_disk(dir)?;
        let pool = Pool::open(dir)?;
        let incarnation = pool.read(|conn| {
            schema::known(conn)?;
            Ok(read::status(conn)?.incarnation)
        })?;
        Ok(Self {
            writer: None,
            pool,
            shared: Arc::new(Shared::default()),
            incarnation,
            _lock: None,
        })
    }

    /// Gives the number of this life of the writer.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Says why the process must end, if it must: readiness drops with it.
    #[must_use]
    pub fn poisoned(&self) -> Option<String> {
        self.shared.poisoned()
    }

    /// Proves that the writer still commits: for a watchdog.
    ///
    /// # Errors
    /// `store_unavailable`, reason `writer_stuck`, where no commit passed in that time.
    pub fn heartbeat(&self, within: Duration) -> Result<()> {
        self.writer()?.beat(within)
    }

    fn writer(&self) -> Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| {
            Error::Refused(
                Refusal::new(Code::StoreUnavailable, "the journal is opened to read alone")
                    .reason("read_only"),
            )
        })
    }

    fn ask<T: Send + 'static>(
        &self,
        class: Class,
        hint: Hint,
        work: impl FnMut(&mut Desk) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer()?.ask(class, hint, work)
    }

    fn ask_then<T: Send + 'static>(
        &self,
        class: Class,
        hint: Hint,
        work: impl FnMut(&mut Desk) -> Result<T> + Send + 'static,
        then: Then<T>,
    ) {
        match self.writer() {
            Ok(writer) => writer.ask_then(class, hint, work, then),
            Err(refused) => then(Err(refused)),
        }
    }

    /// Records something that is always synced.
    fn settle<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Desk) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.ask(Class::Settles, Hint::Known(Sync::Now), work)
    }

    /// Waits, within a bound, until what was told to the writer before is recorded: whoever reads the log finds it there.
    fn catch_up(&self) {
        if let Some(writer) = &self.writer
            && self.shared.queued.load(Ordering::Relaxed) > 0
        {
            // A writer that is stuck or gone keeps nobody from reading what there is.
            drop(writer.beat(CATCH_UP));
        }
    }

    fn read<T>(&self, work: impl FnOnce(&rusqlite::Connection) -> Result<T>) -> Result<T> {
        self.shared.sound()?;
        self.pool.read(work)
    }
}

impl Journal for SqliteJournal {
    fn open_volume(&self, new: NewVolume) -> Result<Volume> {
        let volume = self.ask(Class::Begins, Hint::Known(Sync::Now), move |desk| {
            desk.open_volume(&new)
        })?;
        self.shared.recall.opened(&volume.generation);
        Ok(volume)
    }

    fn volume_ready(
        &self,
        generation: Generation,
        fencing_token: FencingToken,
        identity: VolumeIdentity,
        at: UnixMs,
    ) -> Result<Volume> {
        self.settle(move |desk| desk.volume_ready(&generation, fencing_token, &identity, at))
    }

    fn end_volume(
        &self,
        generation: Generation,
        fencing_token: FencingToken,
        end: End,
        at: UnixMs,
    ) -> Result<Volume> {
        self.settle(move |desk| desk.end_volume(&generation, fencing_token, &end, at))
    }

    fn volume_destroyed(&self, generation: Generation, at: UnixMs) -> Result<Volume> {
        self.settle(move |desk| desk.volume_destroyed(&generation, at))
    }

    fn evict_pre_images(
        &self,
        generation: Generation,
        executions: Vec<ExecutionId>,
        at: UnixMs,
    ) -> Result<Vec<ExecutionId>> {
        // It makes room: that there is little left is no reason to refuse it.
        self.ask(Class::Settles, Hint::Known(Sync::Later), move |desk| {
            desk.evict_pre_images(&generation, &executions, at)
        })
    }

    fn expire_receipts(&self, generation: Generation, at: UnixMs) -> Result<Volume> {
        self.settle(move |desk| desk.expire_receipts(&generation, at))
    }

    fn issue_token(&self, new: NewToken) -> Result<()> {
        self.ask(Class::Begins, Hint::Known(Sync::Now), move |desk| {
            desk.issue_token(&new)
        })
    }

    fn volume(&self, generation: Generation) -> Result<Option<Volume>> {
        self.read(|conn| read::volume(conn, &generation))
    }

    fn volumes(&self, job: Option<JobId>) -> Result<Vec<Volume>> {
        self.read(|conn| read::volumes(conn, job.as_ref()))
    }

    fn lease(&self, token_sha256: Sha256) -> Result<Option<Lease>> {
        // Without a writer nobody would say when it changes.
        if self.writer.is_none() {
            return self.read(|conn| read::lease(conn, &token_sha256));
        }
        self.shared.sound()?;
        let turn = match self.shared.recall.lease(&token_sha256) {
            Ok(lease) => return Ok(Some(lease)),
            Err(turn) => turn,
        };
        let found = self.pool.read(|conn| read::lease(conn, &token_sha256))?;
        if let Some(lease) = &found {
            self.shared.recall.keep_lease(turn, token_sha256, lease.clone());
        }
        Ok(found)
    }

    fn prior(&self, scope: Scope, key: IdempotencyKey) -> Result<Option<CallState>> {
        self.shared.sound()?;
        let of = (scope, key);
        let new = |generation| self.shared.recall.is_new(generation, &of);
        match self.shared.recall.call(&of) {
            Some(finished) => Ok(Some(finished)),
            None if of.0.generation.as_ref().is_some_and(new) => Ok(None),
            None => self.pool.read(|conn| read::prior(conn, &of.0, &of.1)),
        }
    }

    fn prior_of(
        &self,
        generation: &Generation,
        scope: Scope,
        key: IdempotencyKey,
    ) -> Result<Option<CallState>> {
        self.shared.sound()?;
        let of = (scope, key);
        if self.shared.recall.is_new(generation, &of) {
            return Ok(None);
        }
        let prior = self.prior(of.0, of.1)?;
        Ok(prior.filter(|state| state.intent().generation == *generation))
    }

    fn begin_then(&self, intent: Intent, then: Then<Began>) {
        self.shared.recall.uses(&intent.scope, &intent.key);
        let hint = begins(&intent);
        self.ask_then(Class::Begins, hint, move |desk| desk.begin(&intent), then);
    }

    fn finish_then(&self, execution_id: ExecutionId, receipt: Receipt, then: Then<()>) {
        let hint = Hint::Call(execution_id.clone());
        let work = move |desk: &mut Desk| desk.finish(&execution_id, &receipt);
        self.ask_then(Class::Settles, hint, work, then);
    }

    fn lease_at_once(&self, token_sha256: Sha256) -> Result<Option<Lease>> {
        self.shared.sound()?;
        Ok(self.shared.recall.lease(&token_sha256).ok())
    }

    fn prior_at_once(&self, scope: Scope, key: IdempotencyKey) -> Result<Option<CallState>> {
        self.shared.sound()?;
        if self.shared.is_behind() {
            return Ok(None);
        }
        Ok(self.shared.recall.call(&(scope, key)))
    }

    fn execution(&self, execution_id: ExecutionId) -> Result<Option<CallState>> {
        self.read(|conn| read::execution(conn, &execution_id))
    }

    fn begin(&self, intent: Intent) -> Result<Began> {
        self.shared.recall.uses(&intent.scope, &intent.key);
        self.ask(Class::Begins, begins(&intent), move |desk| desk.begin(&intent))
    }

    fn finish(&self, execution_id: ExecutionId, receipt: Receipt) -> Result<()> {
        self.ask(Class::Settles, Hint::Call(execution_id.clone()), move |desk| {
            desk.finish(&execution_id, &receipt)
        })
    }

    fn free(&self, execution_id: ExecutionId, why: String, at: UnixMs) -> Result<()> {
        self.ask(Class::Settles, Hint::Call(execution_id.clone()), move |desk| {
            desk.free(&execution_id, &why, at)
        })
    }

    fn abort(&self, execution_id: ExecutionId, aborting: Aborting, at: UnixMs) -> Result<()> {
        self.ask(Class::Settles, Hint::Call(execution_id.clone()), move |desk| {
            desk.abort(&execution_id, &aborting, at)
        })
    }

    fn resolve(
        &self,
        execution_id: ExecutionId,
        settled: Settled,
        resolved: Resolved,
        at: UnixMs,
    ) -> Result<Option<CallState>> {
        self.settle(move |desk| desk.resolve(&execution_id, settled, &resolved, at))
    }

    fn unknown(&self, execution_id: ExecutionId, why: String, at: UnixMs) -> Result<()> {
        self.ask(Class::Settles, Hint::Call(execution_id.clone()), move |desk| {
            desk.unknown(&execution_id, &why, at)
        })
    }

    fn note(&self, note: Note) -> Result<()> {
        let hint = Hint::Known(Sync::Whenever);
        self.writer()?
            .tell(Class::Begins, hint, move |desk| desk.note(&note))
    }

    fn open_calls(&self) -> Result<Vec<OpenCall>> {
        self.read(read::open_calls)
    }

    fn job_commits(&self, job: JobId, since: UnixMs) -> Result<u64> {
        self.read(|conn| read::job_commits(conn, &job, since))
    }

    fn ask_approval(&self, question: Question, most: u32) -> Result<Approval> {
        self.ask(Class::Begins, Hint::Known(Sync::Now), move |desk| {
            desk.ask_approval(&question, most)
        })
    }

    fn decide_approval(&self, approval_id: ApprovalId, ruling: Ruling) -> Result<Approval> {
        self.settle(move |desk| desk.decide_approval(&approval_id, &ruling))
    }

    fn approval(&self, approval_id: ApprovalId) -> Result<Option<Approval>> {
        self.read(|conn| approvals::by_id(conn, &approval_id).map(approvals::state))
    }

    fn approval_of(&self, scope: Scope, subject: Subject) -> Result<Option<Approval>> {
        self.read(|conn| approvals::newest(conn, &scope, &subject).map(approvals::state))
    }

    fn approvals(&self, now: UnixMs) -> Result<Vec<Approval>> {
        self.read(|conn| approvals::pending(conn, now))
    }

    fn start_run(&self, new: NewRun) -> Result<Run> {
        self.ask(Class::Begins, Hint::Known(Sync::Now), move |desk| {
            desk.start_run(&new)
        })
    }

    fn stage_run(&self, run: RunId, stage: Stage, at: UnixMs) -> Result<Run> {
        self.settle(move |desk| desk.stage_run(&run, &stage, at))
    }

    fn end_run(&self, run: RunId, end: RunEnd, at: UnixMs) -> Result<Run> {
        self.settle(move |desk| desk.end_run(&run, &end, at))
    }

    fn last_run(&self, job: JobId) -> Result<Option<Run>> {
        self.read(|conn| read::last_run(conn, &job))
    }

    fn runs(&self) -> Result<Vec<Run>> {
        self.read(read::runs)
    }

    fn judge(&self, judgement: Judgement) -> Result<()> {
        self.settle(move |desk| desk.judge(&judgement))
    }

    fn judgements(&self, proposal: Sha256) -> Result<Vec<Judgement>> {
        self.read(|conn| read::judgements(conn, &proposal))
    }

    fn judgement(&self, generation: Generation) -> Result<Option<Judgement>> {
        self.read(|conn| read::judgement(conn, &generation))
    }

    fn job_judgements(&self, job: JobId) -> Result<Vec<Judgement>> {
        self.read(|conn| read::job_judgements(conn, &job))
    }

    fn tree_judgements(&self, tree: String) -> Result<Vec<Judgement>> {
        self.read(|conn| read::tree_judgements(conn, &tree))
    }

    fn consume(&self, consumption: Consumption) -> Result<Consumed> {
        self.settle(move |desk| desk.consume(&consumption))
    }

    fn sealed(&self, sealing: Sealing) -> Result<()> {
        self.settle(move |desk| desk.sealed(&sealing))
    }

    fn restored(&self, restoration: Restoration) -> Result<()> {
        self.ask(Class::Settles, Hint::Known(Sync::Later), move |desk| {
            desk.restored(&restoration)
        })
    }

    fn retried(&self, retrial: Retrial) -> Result<()> {
        self.ask(Class::Settles, Hint::Known(Sync::Later), move |desk| {
            desk.retried(&retrial)
        })
    }

    fn prepare_tree(&self, new: NewPreparation) -> Result<Preparation> {
        self.settle(move |desk| desk.prepare_tree(&new))
    }

    fn prepared(&self, job: JobId) -> Result<Option<Preparation>> {
        self.read(|conn| read::prepared(conn, &job))
    }

    fn prepared_in(&self, pin: PinId) -> Result<Option<Preparation>> {
        self.read(|conn| read::prepared_in(conn, &pin))
    }

    fn heard(&self) -> Result<()> {
        self.catch_up();
        Ok(())
    }

    fn log(&self, filter: LogFilter) -> Result<Vec<LogLine>> {
        self.catch_up();
        self.read(|conn| read::log(conn, &filter))
    }

    fn verify(&self) -> Result<ChainReport> {
        self.shared.sound()?;
        self.catch_up();
        verify::verify(&self.pool.apart()?, &[], Depth::Chain)
    }

    fn check(&self) -> Result<ChainReport> {
        self.shared.sound()?;
        self.catch_up();
        verify::verify(&self.pool.apart()?, &[], Depth::Structures)
    }

    fn audit(&self, held: Vec<Checkpoint>, depth: Depth) -> Result<ChainReport> {
        self.shared.sound()?;
        self.catch_up();
        verify::verify(&self.pool.apart()?, &held, depth)
    }

    fn head(&self) -> Result<Checkpoint> {
        self.ask(Class::Beats, Hint::Known(Sync::Now), |desk| {
            desk.beat()?;
            desk.checkpoint()
        })
    }

    fn backup(&self, path: String) -> Result<()> {
        self.shared.sound()?;
        self.catch_up();
        verify::backup(&self.pool.apart()?, &self.pool.file(), Path::new(&path))
    }

    fn status(&self) -> Result<JournalStatus> {
        let status = self.read(read::status)?;
        Ok(JournalStatus {
            incarnation: self.incarnation,
            commits: self.shared.commits.load(Ordering::Relaxed),
            rows: self.shared.rows.load(Ordering::Relaxed),
            synced_commits: self.shared.synced.load(Ordering::Relaxed),
            queued: self.shared.queued.load(Ordering::Relaxed),
            unnoted: self.shared.lost.load(Ordering::Relaxed),
            busy_ms: u64::try_from(self.shared.busy().as_millis()).unwrap_or(u64::MAX),
            ..status
        })
    }
}

/// Says how a batch with an intent has to be begun.
fn begins(intent: &Intent) -> Hint {
    Hint::Known(match intent.survives() {
        Durability::Process => Sync::Later,
        Durability::Power | Durability::PowerBestEffort => Sync::Now,
    })
}

/// Names what was being done when the database failed.
fn fault(doing: &'static str) -> impl FnOnce(rusqlite::Error) -> Error {
    move |e| {
        use rusqlite::ErrorCode as C;
        let damage = match e.sqlite_error_code() {
            Some(C::DiskFull) => Damage::Full,
            Some(
                C::SystemIoFailure
                | C::DatabaseCorrupt
                | C::NotADatabase
                | C::ReadOnly
                | C::CannotOpen
                | C::FileLockingProtocolFailed
                | C::OutOfMemory,
            ) => Damage::Files,
            Some(_) | None => Damage::Verb,
        };
        Error::Database {
            doing,
            detail: e.to_string(),
            damage,
        }
    }
}

/// Fits a number into SQLite's.
fn int(number: u64) -> Result<i64> {
    i64::try_from(number).map_err(|_| {
        Refusal::new(
            Code::BadInput,
            format!("{number} is more than the journal can count"),
        )
        .into()
    })
}

#[cfg(test)]
mod tests;
