//! The `Journal`: the verbs of the domain, each declared once.
//!
//! From the one table below come the trait, the wire form of each verb, the server that carries a wire verb out,
//! and the client that sends it. There is never an `execute(sql)`.

use crate::error::{Damage, Error, Result};
use semel_core::approval::{Approval, Question, Ruling, Subject};
use semel_core::audit::Fault;
use semel_core::call::{Aborting, CallState, Intent, Note, OpenCall, Receipt, Resolved, Scope, Settled};
use semel_core::checkpoint::Checkpoint;
use semel_core::digest::Sha256;
pub use semel_core::gate::Consumed;
use semel_core::ids::{
    ApprovalId, ExecutionId, FencingToken, Generation, IdempotencyKey, Incarnation, JobId, RunId, UnixMs,
    VolumeIdentity,
};
use semel_core::pin::PinId;
use semel_core::pipeline::{NewRun, Run, RunEnd, Stage};
use semel_core::prepared::{NewPreparation, Preparation};
use semel_core::record::{Consumption, Entry, Judgement, Restoration, Sealing};
use semel_core::retry::Retrial;
use semel_core::volume::{End, Lease, NewToken, NewVolume, Volume};
use serde::{Deserialize, Serialize};

/// Is the answer to `begin`: decided inside the one writer, so that two duplicates never both begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Began {
    /// The intent is recorded; act now.
    Began,
    /// The key is known; nothing was recorded.
    Prior(Box<CallState>),
}

/// Selects entries of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogFilter {
    /// Only entries after this place.
    pub after_seq: Option<u64>,
    /// Only of this job.
    pub job: Option<JobId>,
    /// Only of this execution, its replays and conflicts included.
    pub execution: Option<ExecutionId>,
    /// Only of this key.
    pub key: Option<IdempotencyKey>,
    /// Only conflicts.
    pub conflicts: Option<OnlyConflicts>,
    /// At most so many, the newest; given in the order of the journal.
    pub limit: Option<u32>,
    /// Only entries up to this place.
    pub up_to_seq: Option<u64>,
    /// How calls are shown.
    pub view: Option<View>,
}

/// Says how the log shows calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// Each call once: by its outcome, with its intent beside; by its intent alone while it has none.
    Calls,
}

/// Marks a filter that keeps conflicts alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnlyConflicts {
    /// Keep conflicts alone.
    Only,
}

/// Is an entry with the time at which it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLine {
    /// When it was written.
    pub at: UnixMs,
    /// The entry.
    pub entry: Entry,
    /// The intent that the entry is the outcome of, where [`View::Calls`] is asked for.
    pub intent: Option<Box<Intent>>,
}

/// Says how deep a verification goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// The chain, and the state that follows from it.
    Chain,
    /// The database's own structures too.
    Structures,
}

/// Is what `verify` and `check` found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainReport {
    /// How many entries were read.
    pub entries: u64,
    /// The digest of the last one; a later verification can be held against it.
    pub head: Sha256,
    /// Every edit, gap, illegal record, second effect of one key, or disagreement with a checkpoint that was found;
    /// what checkpoints say comes first.
    pub faults: Vec<Fault>,
    /// How many faults were found beyond those that are told.
    pub more: u64,
}

/// Is what the journal says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalStatus {
    /// The life of the writer.
    pub incarnation: Incarnation,
    /// How many entries there are.
    pub entries: u64,
    /// Commits since the writer began.
    pub commits: u64,
    /// Rows in them.
    pub rows: u64,
    /// How many of these commits were synced to the disk.
    pub synced_commits: u64,
    /// Verbs that were asked for and are not answered.
    pub queued: u64,
    /// For how long the writer has been at work without having come to an end, in milliseconds.
    pub busy_ms: u64,
    /// Notes that could not be recorded since the writer began.
    pub unnoted: u64,
    /// Calls that are running.
    pub running: u64,
    /// Calls whose outcome is unknown: the alert.
    pub unknown: u64,
    /// SQLite's or PostgreSQL's own version.
    pub engine: String,
}

/// Hears an answer, without keeping whoever tells it.
pub type Then<T> = Box<dyn FnOnce(Result<T>) + Send>;

macro_rules! journal {
    ($(
        $(#[$doc:meta])*
        $variant:ident = $verb:ident($($arg:ident: $ty:ty),*) -> $ret:ty;
    )*) => {
        /// The one durable record, by the verbs of the domain.
        ///
        /// # Errors
        /// Every verb: `store_unavailable` where the database fails or the process is poisoned.
        pub trait Journal: Send + Sync {
            $(
                $(#[$doc])*
                fn $verb(&self, $($arg: $ty),*) -> Result<$ret>;
            )*

            /// Does what `begin` does, and tells the answer to whoever is given, on any thread and as early as that may
            /// be. Where it is never told, the process is poisoned.
            fn begin_then(&self, intent: Intent, then: Then<Began>) {
                then(self.begin(intent));
            }

            /// Does what `finish` does, and tells the answer as `begin_then` does.
            fn finish_then(&self, execution_id: ExecutionId, receipt: Receipt, then: Then<()>) {
                then(self.finish(execution_id, receipt));
            }

            /// Finds a call by its key, as `prior` does, unless another generation made it.
            fn prior_of(
                &self,
                generation: &Generation,
                scope: Scope,
                key: IdempotencyKey,
            ) -> Result<Option<CallState>> {
                let prior = self.prior(scope, key)?;
                Ok(prior.filter(|state| state.intent().generation == *generation))
            }

            /// Finds what a bearer token stands for, as `lease` does, where that takes no waiting; `None` says nothing.
            fn lease_at_once(&self, token_sha256: Sha256) -> Result<Option<Lease>> {
                let _ = token_sha256;
                Ok(None)
            }

            /// Finds a call that has its receipt, as `prior` does, where neither that nor a note of it takes any
            /// waiting; `None` says nothing.
            fn prior_at_once(&self, scope: Scope, key: IdempotencyKey) -> Result<Option<CallState>> {
                let _ = (scope, key);
                Ok(None)
            }
        }

        /// Is a verb on the wire between a command and the daemon.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
        pub enum Verb {
            $(
                $(#[$doc])*
                $variant { $(
                    /// See the verb.
                    $arg: $ty
                ),* },
            )*
        }

        impl Verb {
            /// Carries the verb out, and gives its answer as JSON.
            ///
            /// # Errors
            /// Those of the verb.
            pub fn serve(self, journal: &dyn Journal) -> Result<serde_json::Value> {
                match self {
                    $( Verb::$variant { $($arg),* } => encode(journal.$verb($($arg),*)?), )*
                }
            }
        }

        impl<T: Transport> Journal for Remote<T> {
            $(
                fn $verb(&self, $($arg: $ty),*) -> Result<$ret> {
                    decode(self.0.ask(&Verb::$variant { $($arg),* })?)
                }
            )*
        }
    };
}

journal! {
    /// Gives a new volume to an attempt: numbers the attempt, fences the lease. Recorded dirty.
    ///
    /// # Errors
    /// `generation_reused` where the generation was ever used; `volume_busy` where the job has an open volume of
    /// the same role.
    OpenVolume = open_volume(new: NewVolume) -> Volume;
    /// Records that the directory stands, with the identity by which it is known again.
    ///
    /// # Errors
    /// `replay_conflict`, reason `stale_generation`, for an older fencing token or an ended volume.
    VolumeReady = volume_ready(generation: Generation, fencing_token: FencingToken, identity: VolumeIdentity, at: UnixMs) -> Volume;
    /// Ends an attempt: its token becomes a tombstone, the keys of its generation are retired whole.
    ///
    /// # Errors
    /// `replay_conflict`, reason `stale_generation`, for an older fencing token or a volume that ended otherwise; a
    /// volume that ended the same way is answered again. `outcome_unknown` for a clean end while a call of the
    /// generation runs or is unknown.
    EndVolume = end_volume(generation: Generation, fencing_token: FencingToken, end: End, at: UnixMs) -> Volume;
    /// Records that the files of an ended volume were freed; a second time it is answered again.
    ///
    /// # Errors
    /// `volume_busy` while it is open; `not_found` for a generation that never was.
    VolumeDestroyed = volume_destroyed(generation: Generation, at: UnixMs) -> Volume;
    /// Records that what calls of an open volume removed or replaced is freed, before it is; gives those of them whose
    /// pre-images may go. The others run, are unknown or not known, or are named by a call that is.
    ///
    /// # Errors
    /// `not_found` for a generation that never was; `replay_conflict`, reason `stale_generation`, where it ended;
    /// `bad_input` for more than 1,000 of them.
    EvictPreImages = evict_pre_images(generation: Generation, executions: Vec<ExecutionId>, at: UnixMs) -> Vec<ExecutionId>;
    /// Records that the receipts of a destroyed volume are past retention; a second time it is answered again. Its keys
    /// stay known.
    ///
    /// # Errors
    /// `not_found` for a generation that never was; `volume_busy` where it is not destroyed; `outcome_unknown` while the
    /// outcome of a call is unknown.
    ExpireReceipts = expire_receipts(generation: Generation, at: UnixMs) -> Volume;
    /// Finds a volume.
    Volume = volume(generation: Generation) -> Option<Volume>;
    /// Lists volumes, oldest first.
    Volumes = volumes(job: Option<JobId>) -> Vec<Volume>;
    /// Finds what a bearer token stands for; one of an ended volume is found too: it is a tombstone.
    Lease = lease(token_sha256: Sha256) -> Option<Lease>;
    /// Records a token that another one gives out.
    ///
    /// # Errors
    /// `unauthorized` for an unknown parent; `replay_conflict`, reason `stale_generation`; `denied` where it would be
    /// for more than its parent; `too_many` past the bound of a generation.
    IssueToken = issue_token(new: NewToken) -> ();

    /// Finds what is known of a key: a hint; `begin` decides.
    Prior = prior(scope: Scope, key: IdempotencyKey) -> Option<CallState>;
    /// Finds a call by its execution.
    Execution = execution(execution_id: ExecutionId) -> Option<CallState>;
    /// Records an intent, or answers what the key already has.
    ///
    /// # Errors
    /// `replay_conflict`, reason `stale_generation`, where the volume ended or the fencing token is older;
    /// `io_failed`, reason `disk_full`, below the free-space watermark.
    ///
    /// # Durability
    /// When this returns, the intent is recorded as its volume's durability demands.
    Begin = begin(intent: Intent) -> Began;
    /// Records what came of a call; the very same receipt is answered again.
    ///
    /// # Errors
    /// `not_found` for an execution that is not known.
    Finish = finish(execution_id: ExecutionId, receipt: Receipt) -> ();
    /// Records that what was done of a call is taken back; its outcome follows. The very same is answered again.
    Abort = abort(execution_id: ExecutionId, aborting: Aborting, at: UnixMs) -> ();
    /// Settles a call whose outcome is unknown, by a person's word; what was settled so before is answered again. The
    /// last one of a volume that only unknown outcomes made dirty lifts its mark.
    ///
    /// # Errors
    /// `not_found` for an execution that is not known; `precondition_failed`, reason `not_unknown`, for any other call.
    ///
    /// # Durability
    /// When this returns, it is on the disk.
    Resolve = resolve(execution_id: ExecutionId, settled: Settled, resolved: Resolved, at: UnixMs) -> Option<CallState>;
    /// Frees the key of a call that is proven to have had no effect.
    Free = free(execution_id: ExecutionId, why: String, at: UnixMs) -> ();
    /// Records that the outcome of a call cannot be told.
    Unknown = unknown(execution_id: ExecutionId, why: String, at: UnixMs) -> ();
    /// Records something without an effect of its own. Nobody waits for it: it is recorded with what comes next, and a
    /// read of the log that begins after this returned shows it.
    ///
    /// # Durability
    /// None: a power cut may take it, and so does the end of the process within moments. Below the free-space watermark
    /// it is not recorded, but counted: what is left is for receipts.
    Note = note(note: Note) -> ();
    /// Lists the calls that are running, in the order of the journal.
    OpenCalls = open_calls() -> Vec<OpenCall>;
    /// Counts calls of a job, with effects outside of any generation, that may have had their effect since a time:
    /// those that are done, run, or are unknown.
    JobCommits = job_commits(job: JobId, since: UnixMs) -> u64;

    /// Records a question to a person, or answers what is known of its call already; a call that reads is asked about
    /// anew once its answer has lapsed.
    ///
    /// # Errors
    /// `replay_conflict`, reason `stale_generation`, where the volume ended or the fencing token is older;
    /// `too_many` where `most` questions of the generation wait already; `io_failed`, reason `disk_full`.
    ///
    /// # Durability
    /// When this returns, it is on the disk.
    AskApproval = ask_approval(question: Question, most: u32) -> Approval;
    /// Records what a person decided; the same decision is answered again.
    ///
    /// # Errors
    /// `not_found`; `replay_conflict`, reason `stale_generation`, where the generation ended; `precondition_failed`,
    /// reason `already_decided`, where it was decided otherwise; `approval_expired`.
    ///
    /// # Durability
    /// When this returns, it is on the disk.
    DecideApproval = decide_approval(approval_id: ApprovalId, ruling: Ruling) -> Approval;
    /// Finds a question with its answer.
    Approval = approval(approval_id: ApprovalId) -> Option<Approval>;
    /// Finds the newest question about a call.
    ApprovalOf = approval_of(scope: Scope, subject: Subject) -> Option<Approval>;
    /// Lists the questions that wait for a person in volumes that are not ended, oldest first.
    Approvals = approvals(now: UnixMs) -> Vec<Approval>;

    /// Begins a run of a job.
    ///
    /// # Errors
    /// `volume_busy` where another run of the job has not ended.
    StartRun = start_run(new: NewRun) -> Run;
    /// Records a proven stage.
    StageRun = stage_run(run: RunId, stage: Stage, at: UnixMs) -> Run;
    /// Ends a run.
    EndRun = end_run(run: RunId, end: RunEnd, at: UnixMs) -> Run;
    /// Finds the newest run of a job.
    LastRun = last_run(job: JobId) -> Option<Run>;
    /// Lists runs, oldest first.
    Runs = runs() -> Vec<Run>;

    /// Records the verdict on an attempt; at most one a generation.
    ///
    /// # Errors
    /// `generation_reused` where the generation has another verdict; the very same one is answered again.
    Judge = judge(judgement: Judgement) -> ();
    /// Lists the verdicts on a proposal, oldest first.
    Judgements = judgements(proposal: Sha256) -> Vec<Judgement>;
    /// Finds the verdict of a generation.
    Judgement = judgement(generation: Generation) -> Option<Judgement>;
    /// Lists the verdicts of a job, oldest first.
    JobJudgements = job_judgements(job: JobId) -> Vec<Judgement>;
    /// Lists the verdicts on a git tree, given as hexadecimal digits, of whatever proposal and job, oldest first.
    TreeJudgements = tree_judgements(tree: String) -> Vec<Judgement>;
    /// Records for what a certificate is used.
    ///
    /// # Errors
    /// `gate_refused`, reason `already_consumed`, where it was used for anything else.
    Consume = consume(consumption: Consumption) -> Consumed;
    /// Records what a draft was sealed into.
    Sealed = sealed(sealing: Sealing) -> ();
    /// Records what a restoration met.
    Restored = restored(restoration: Restoration) -> ();
    /// Records what the tries of a command met.
    Retried = retried(retrial: Retrial) -> ();
    /// Records the tree that a job prepared, in place of an older one of the job; the very same is answered again.
    ///
    /// # Errors
    /// `tree_mismatch`, reason `foreign_record`, where another job recorded a tree in the same worktree.
    ///
    /// # Durability
    /// When this returns, it is on the disk.
    PrepareTree = prepare_tree(new: NewPreparation) -> Preparation;
    /// Finds the tree that a job prepared.
    Prepared = prepared(job: JobId) -> Option<Preparation>;
    /// Finds the tree that was prepared in a worktree, by its pin.
    PreparedIn = prepared_in(pin: PinId) -> Option<Preparation>;

    /// Waits, within a bound, until what it was told of before is recorded: whoever looks into the file then finds it there.
    Heard = heard() -> ();
    /// Reads the log.
    Log = log(filter: LogFilter) -> Vec<LogLine>;
    /// Verifies the chain, the state of every key, and that no key has two effects.
    Verify = verify() -> ChainReport;
    /// Verifies as `verify` does, and the database's own structures too.
    Check = check() -> ChainReport;
    /// Verifies as deep as asked, and holds the log against checkpoints that the caller vouches for.
    Audit = audit(held: Vec<Checkpoint>, depth: Depth) -> ChainReport;
    /// Says what the log is now, for a checkpoint to be signed.
    ///
    /// # Durability
    /// When this returns, every entry that the answer counts is on the disk: a power cut takes none of them back.
    Head = head() -> Checkpoint;
    /// Copies the journal to a new file, whole and consistent.
    ///
    /// # Errors
    /// `precondition_failed` where the file exists.
    Backup = backup(path: String) -> ();
    /// Says how the journal is.
    Status = status() -> JournalStatus;
}

fn encode<T: Serialize>(value: T) -> Result<serde_json::Value> {
    serde_json::to_value(value).map_err(|e| Error::Database {
        doing: "encode an answer",
        detail: e.to_string(),
        damage: Damage::Verb,
    })
}

fn decode<T: for<'de> Deserialize<'de>>(value: serde_json::Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| Error::Database {
        doing: "decode an answer",
        detail: e.to_string(),
        damage: Damage::Verb,
    })
}

/// Carries a verb to the process that writes.
pub trait Transport: Send + Sync {
    /// Sends the verb and waits for its answer.
    ///
    /// # Errors
    /// Those of the verb; `daemon_unreachable` where no answer comes.
    fn ask(&self, verb: &Verb) -> Result<serde_json::Value>;
}

/// Is a journal that another process writes.
#[derive(Debug)]
pub struct Remote<T>(pub T);
