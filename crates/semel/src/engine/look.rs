//! What people look at: status, log, verification, backup. Nothing here has an effect on a volume.

use super::daemon::face;
use super::gateway::read::receipt_body;
use super::{Engine, host, store, volume};
use crate::config::Config;
use crate::limits;
use crate::wire::{self, Absent, Link};
use semel_core::approval::Approval;
use semel_core::bounds::{Asked, Bounds};
use semel_core::call::{CallState, Intent};
use semel_core::confinement::User;
use semel_core::ids::{ExecutionId, Generation, IdempotencyKey, JobId, UnixMs};
use semel_core::record::Record;
use semel_core::volume::{Volume, VolumeState};
use semel_core::{Code, Refusal};
use semel_host::patience::Patience;
use semel_host::{clock, plain, sandbox};
use semel_store::Journal;
pub(crate) use semel_store::journal::{Depth, JournalStatus, LogFilter, LogLine, OnlyConflicts, View};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Is what `semel status` shows.
#[derive(Debug)]
pub(crate) struct Seen {
    /// What the running daemon says of itself; `None` where none runs.
    pub(crate) daemon: Option<Value>,
    /// The journal; `None` where there is none yet.
    pub(crate) journal: Option<JournalStatus>,
    /// Volumes that are not ended.
    pub(crate) open: Vec<Volume>,
    /// Volumes that ended dirty and are still there.
    pub(crate) quarantined: Vec<Volume>,
    /// Calls that run.
    pub(crate) running: Vec<Intent>,
    /// Calls that wait for a person.
    pub(crate) approvals: Vec<Approval>,
    /// Calls whose outcome cannot be told, with the evidence.
    pub(crate) unknown: Vec<(Intent, String)>,
    /// What bounds each process tree, by the configuration of whoever looks; a job may narrow it.
    pub(crate) limits: Bounds,
    /// As whom programs of jobs run here; `None` where nothing runs in a sandbox.
    pub(crate) user: Option<User>,
    /// When it was seen, in milliseconds since the Unix epoch.
    pub(crate) now: u64,
}

/// Looks at daemon and journal, whether or not a daemon runs; starts none.
///
/// # Errors
/// `store_unavailable` where the journal cannot be read.
pub(crate) fn status(config: Config) -> Result<Seen, Refusal> {
    let shared = Arc::new(config.clone());
    let daemon = face::announced(&config.state).and_then(|_| {
        Link::new(shared, Absent::Refuse)
            .admin("GET", "/v1/admin/status", Vec::new())
            .ok()
    });
    let mut seen = Seen {
        daemon,
        journal: None,
        open: Vec::new(),
        quarantined: Vec::new(),
        running: Vec::new(),
        approvals: Vec::new(),
        unknown: Vec::new(),
        limits: config.bounds(Asked::default()),
        user: sandbox::probe().ok().and_then(|level| level.user),
        now: clock::now().0,
    };
    let Some(engine) = existing(config)? else {
        return Ok(seen);
    };
    let journal = &engine.journal;
    let status = journal.status().map_err(store)?;
    for volume in journal.volumes(None).map_err(store)? {
        match volume.state {
            VolumeState::Open | VolumeState::Opening => seen.open.push(volume),
            VolumeState::Quarantined => seen.quarantined.push(volume),
            VolumeState::Clean | VolumeState::Destroyed => {}
        }
    }
    seen.running = journal
        .open_calls()
        .map_err(store)?
        .into_iter()
        .map(|call| call.intent)
        .collect();
    seen.approvals = journal.approvals(UnixMs(seen.now)).map_err(store)?;
    if status.unknown > 0 {
        seen.unknown = unknown_calls(&engine)?;
    }
    seen.journal = Some(status);
    Ok(seen)
}

/// Lists the calls that wait for a person, and the time at which they were looked for.
///
/// # Errors
/// `store_unavailable`.
pub(crate) fn approvals(config: Config) -> Result<(Vec<Approval>, UnixMs), Refusal> {
    let now = clock::now();
    match existing(config)? {
        Some(engine) => Ok((engine.journal.approvals(now).map_err(store)?, now)),
        None => Ok((Vec::new(), now)),
    }
}

/// Finds the calls whose outcome is unknown. They are few, and the journal is asked for each by its execution.
fn unknown_calls(engine: &Engine) -> Result<Vec<(Intent, String)>, Refusal> {
    let mut found = Vec::new();
    for line in engine.journal.log(LogFilter::default()).map_err(store)? {
        if let Record::CallUnknown { execution_id, .. } = line.entry.record
            && let Some(CallState::Unknown { intent, why }) =
                engine.journal.execution(execution_id).map_err(store)?
        {
            found.push((*intent, why));
        }
    }
    Ok(found)
}

/// Lists volumes, oldest first.
///
/// # Errors
/// As [`log`].
pub(crate) fn volumes(config: Config, job: Option<JobId>) -> Result<Vec<Volume>, Refusal> {
    volume::list(&asking(config)?, job)
}

/// Finds a volume.
///
/// # Errors
/// `not_found`; as [`log`].
pub(crate) fn volume(config: Config, generation: &Generation) -> Result<Volume, Refusal> {
    volume::find(&asking(config)?, generation)
}

/// Asks the daemon, whose recovery has looked at what it tells; a state root that is not there is not made by asking.
fn asking(config: Config) -> Result<Engine, Refusal> {
    if !wire::has_journal(&config)? {
        return Err(nothing_yet(&config));
    }
    wire::command(config)
}

/// Opens the journal to read it; `None` where there is none yet.
fn existing(config: Config) -> Result<Option<Engine>, Refusal> {
    if wire::has_journal(&config)? {
        wire::reader(config).map(Some)
    } else {
        Ok(None)
    }
}

pub(super) fn reading(config: Config) -> Result<Engine, Refusal> {
    let missing = nothing_yet(&config);
    existing(config)?.ok_or(missing)
}

fn nothing_yet(config: &Config) -> Refusal {
    Refusal::new(Code::NotFound, "there is no journal yet")
        .reason("nothing_begun")
        .name(config.state.display().to_string())
}

/// Reads the log.
///
/// # Errors
/// `not_found` where there is no journal; `store_unavailable`.
pub(crate) fn log(config: Config, filter: LogFilter) -> Result<Vec<LogLine>, Refusal> {
    reading(config)?.journal.log(filter).map_err(store)
}

/// Says what came of an execution, or of every call under a key whose receipt is kept, oldest first.
///
/// # Errors
/// `not_found` where there is none; `key_expired` where no receipt is kept any more; as [`log`].
pub(crate) fn receipts(
    config: Config,
    execution: Option<ExecutionId>,
    key: Option<IdempotencyKey>,
) -> Result<Vec<Value>, Refusal> {
    let journal = reading(config)?.journal;
    let mut executions: Vec<ExecutionId> = execution.iter().cloned().collect();
    if key.is_some() {
        let filter = LogFilter {
            key: key.clone(),
            ..LogFilter::default()
        };
        for line in journal.log(filter).map_err(store)? {
            if let Record::CallIntended(intent) = line.entry.record {
                executions.push(intent.execution_id);
            }
        }
    }
    let (mut receipts, mut expired, mut free) = (Vec::new(), None, None);
    for execution in executions {
        let Some(state) = journal.execution(execution.clone()).map_err(store)? else {
            free = freed(&*journal, &execution)?.or(free);
            continue;
        };
        let intent = state.intent();
        let volume = journal.volume(intent.generation.clone()).map_err(store)?;
        match volume.map_or(Ok(()), |volume| volume.keeps_receipt(&intent.execution_id)) {
            Ok(()) => receipts.push(Value::Object(receipt_body(&state))),
            Err(refusal) => expired = Some(refusal),
        }
    }
    if let (true, Some(expired)) = (receipts.is_empty(), expired) {
        return Err(expired);
    }
    if receipts.is_empty() {
        let asked = execution
            .map(String::from)
            .or(key.map(String::from))
            .unwrap_or_default();
        let unknown = || Refusal::new(Code::NotFound, "no call is known by this name").name(asked);
        return Err(free.unwrap_or_else(unknown));
    }
    Ok(receipts)
}

/// Says of an execution that no call is known by any more as what it was freed; `None` where it never was.
///
/// # Errors
/// `store_unavailable`.
pub(super) fn freed(journal: &dyn Journal, execution: &ExecutionId) -> Result<Option<Refusal>, Refusal> {
    let filter = LogFilter {
        execution: Some(execution.clone()),
        ..LogFilter::default()
    };
    let lines = journal.log(filter).map_err(store)?;
    let freed = lines.into_iter().rev().find_map(|line| {
        if let Record::CallFreed { why, resolved, .. } = line.entry.record {
            Some((why, resolved))
        } else {
            None
        }
    });
    Ok(freed.map(|(why, resolved)| {
        let by = resolved.map_or(String::new(), |person| {
            format!(", {}: {}", person.by, person.note)
        });
        let why = format!("the call had no effect, and its key is free again ({why}{by})");
        Refusal::new(Code::NotFound, why)
            .reason("freed")
            .name(execution.as_str())
    }))
}

/// Follows the log: each look is a short read of what came since, so that none holds the writer up.
pub(crate) struct Follower {
    engine: Engine,
    filter: LogFilter,
    /// The place up to which it was read.
    read: u64,
    /// By which the journal's file is known again.
    file: String,
    patience: Patience,
}

/// Says why following ends, or goes on.
pub(crate) use semel_host::patience::Waited;

impl Follower {
    /// Begins behind the newest entry.
    ///
    /// # Errors
    /// As [`log`].
    pub(crate) fn new(config: Config, filter: LogFilter) -> Result<Self, Refusal> {
        // Before any thread is made: signals are heard of in one place.
        let patience = Patience::new().map_err(host)?;
        let engine = reading(config)?;
        let file = Self::file(&engine)?;
        let read = engine.journal.status().map_err(store)?.entries;
        Ok(Self {
            engine,
            filter,
            read,
            file,
            patience,
        })
    }

    fn file(engine: &Engine) -> Result<String, Refusal> {
        plain::birth(&semel_store::sqlite::place(&engine.config.state)).map_err(host)
    }

    /// Gives the newest lines up to where following begins.
    ///
    /// # Errors
    /// As [`log`].
    pub(crate) fn before(&self, limit: Option<u32>) -> Result<Vec<LogLine>, Refusal> {
        let filter = LogFilter {
            up_to_seq: Some(self.read),
            limit,
            ..self.filter.clone()
        };
        self.engine.journal.log(filter).map_err(store)
    }

    /// Gives what came since, in pieces; none is none.
    ///
    /// # Errors
    /// `store_unavailable`, reason `journal_replaced`, where another journal took the place of this one.
    ///
    /// # Limits
    /// So many entries at once as `FOLLOW_AT_ONCE` says.
    pub(crate) fn more(&mut self) -> Result<Vec<LogLine>, Refusal> {
        let entries = self.engine.journal.status().map_err(store)?.entries;
        if entries < self.read || Self::file(&self.engine)? != self.file {
            let why = "another journal took the place of the one that was followed";
            return Err(Refusal::new(Code::StoreUnavailable, why).reason("journal_replaced"));
        }
        while self.read < entries {
            let up_to = entries.min(self.read + limits::FOLLOW_AT_ONCE);
            let filter = LogFilter {
                after_seq: Some(self.read),
                up_to_seq: Some(up_to),
                ..self.filter.clone()
            };
            let lines = self.engine.journal.log(filter).map_err(store)?;
            self.read = up_to;
            if !lines.is_empty() {
                return Ok(lines);
            }
        }
        Ok(Vec::new())
    }

    /// Waits for the next look.
    ///
    /// # Errors
    /// `io_failed`.
    pub(crate) fn wait(&self) -> Result<Waited, Refusal> {
        self.patience
            .wait(limits::FOLLOW_EVERY, std::io::stdout())
            .map_err(host)
    }
}

/// Copies the journal to a new file.
///
/// # Errors
/// `precondition_failed` where the file exists; as [`log`].
pub(crate) fn backup(config: Config, to: &Path) -> Result<(), Refusal> {
    let to = std::path::absolute(to).map_err(|e| Refusal::new(Code::BadInput, e.to_string()))?;
    let text = to
        .to_str()
        .ok_or_else(|| Refusal::new(Code::BadInput, "the path is not UTF-8"))?;
    reading(config)?.journal.backup(text.to_owned()).map_err(store)
}

/// Reads a file, pipe or FIFO that a person named as input, to its end.
///
/// # Errors
/// `not_found`, `too_large`, `io_failed`.
pub(crate) fn read_input(path: &Path, cap: u64) -> Result<Vec<u8>, Refusal> {
    semel_host::daemon::read_to_end(path, cap).map_err(host)
}

/// Makes a key for a call of a person who named none.
///
/// # Errors
/// `io_failed` where the kernel gives no randomness.
pub(crate) fn mint_key() -> Result<String, Refusal> {
    Ok(format!("cli-{}", clock::seed().map_err(host)?.uuid_v7()))
}
