//! The verbs that read, and the connections that they read by.
//!
//! A read begins after the caller's own earlier answers, which came after their commits: it sees them.

use super::row::{self, select_calls};
use super::{fault, int, schema};
use crate::error::Result;
use crate::journal::{JournalStatus, LogFilter, LogLine, View};
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use semel_core::call::{CallState, OpenCall, Scope};
use semel_core::ids::{ExecutionId, Generation, IdempotencyKey, Incarnation, JobId, UnixMs};
use semel_core::pin::PinId;
use semel_core::pipeline::Run;
use semel_core::prepared::Preparation;
use semel_core::record::{Entry, Judgement, Record};
use semel_core::volume::{Lease, NewToken, Tools, Volume};
use semel_core::{Code, Refusal, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

/// How many reads go on at once.
const READERS: usize = 4;

/// Lends connections that read.
pub(super) struct Pool {
    dir: PathBuf,
    idle: Mutex<Vec<Connection>>,
    returned: Condvar,
}

impl Pool {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let idle = (0..READERS)
            .map(|_| schema::open_reader(dir))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            dir: dir.to_path_buf(),
            idle: Mutex::new(idle),
            returned: Condvar::new(),
        })
    }

    /// Reads by a lent connection.
    pub(super) fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let conn = loop {
            match idle.pop() {
                Some(conn) => break conn,
                None => idle = self.returned.wait(idle).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(idle);
        let lent = Lent {
            pool: self,
            conn: Some(conn),
        };
        match &lent.conn {
            Some(conn) => work(conn),
            None => work(&schema::open_reader(&self.dir)?),
        }
    }

    /// Gives the path of the database.
    pub(super) fn file(&self) -> PathBuf {
        self.dir.join(schema::FILE)
    }

    /// Opens a connection of its own, for a read that takes long.
    ///
    /// # Errors
    /// `too_many`, reason `descriptors`, where the process may open no more files: later, it may.
    pub(super) fn apart(&self) -> Result<Connection> {
        schema::open_reader(&self.dir).map_err(|error| match descriptors() {
            Descriptors::Left => error,
            Descriptors::Spent => Refusal::new(Code::TooMany, "the process may open no more files now")
                .reason("descriptors")
                .into(),
        })
    }
}

/// Says whether the process may open another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Descriptors {
    Left,
    Spent,
}

fn descriptors() -> Descriptors {
    match rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::MFILE | Errno::NFILE) => Descriptors::Spent,
        Ok(_) | Err(_) => Descriptors::Left,
    }
}

/// Gives the connection back, whatever happens while it is lent.
struct Lent<'a> {
    pool: &'a Pool,
    conn: Option<Connection>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push(conn);
            drop(idle);
            self.pool.returned.notify_one();
        }
    }
}

pub(super) fn volume(conn: &Connection, generation: &Generation) -> Result<Option<Volume>> {
    row::json(
        conn,
        "SELECT json FROM volumes WHERE generation = ?1",
        [generation.as_str()],
    )
}

pub(super) fn volumes(conn: &Connection, job: Option<&JobId>) -> Result<Vec<Volume>> {
    match job {
        None => row::jsons(conn, "SELECT json FROM volumes ORDER BY fencing_token", []),
        Some(job) => row::jsons(
            conn,
            "SELECT json FROM volumes WHERE job = ?1 ORDER BY attempt",
            [job.as_str()],
        ),
    }
}

pub(super) fn lease(conn: &Connection, token: &Sha256) -> Result<Option<Lease>> {
    let root: Option<Volume> = row::json(
        conn,
        "SELECT json FROM volumes WHERE token_sha256 = ?1",
        [token.as_bytes()],
    )?;
    if let Some(volume) = root {
        return Ok(Some(Lease {
            principal: volume.principal.clone(),
            tools: Tools::All,
            volume,
        }));
    }
    let issued: Option<NewToken> = row::json(
        conn,
        "SELECT json FROM tokens WHERE token_sha256 = ?1",
        [token.as_bytes()],
    )?;
    let Some(issued) = issued else {
        return Ok(None);
    };
    Ok(volume(conn, &issued.generation)?.map(|volume| Lease {
        volume,
        principal: issued.principal,
        tools: issued.tools,
    }))
}

pub(super) fn prior(conn: &Connection, scope: &Scope, key: &IdempotencyKey) -> Result<Option<CallState>> {
    Ok(row::call_by_key(conn, &row::scope(scope), key.as_str())?.map(|row| row.state))
}

pub(super) fn execution(conn: &Connection, execution: &ExecutionId) -> Result<Option<CallState>> {
    Ok(row::call_by_execution(conn, execution.as_str())?.map(|row| row.state))
}

pub(super) fn open_calls(conn: &Connection) -> Result<Vec<OpenCall>> {
    // By the partial index: a journal has few running calls among many.
    let raw = conn
        .prepare_cached(select_calls!(
            "WHERE c.intent_seq IN (SELECT intent_seq FROM calls INDEXED BY calls_open
                                    WHERE state = 'running' AND state IN ('running', 'unknown'))
             ORDER BY c.intent_seq"
        ))
        .and_then(|mut s| {
            s.query_map([], row::raw_call)?
                .collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(fault("list the running calls"))?;
    raw.into_iter()
        .filter_map(|raw| match row::fold_call(raw).map(|row| row.state) {
            Ok(CallState::Running { intent, aborting }) => Some(Ok(OpenCall {
                intent: *intent,
                aborting,
            })),
            // The state of a row and its records are compared by `verify`.
            Ok(CallState::Finished { .. } | CallState::Unknown { .. }) => None,
            Err(error) => Some(Err(error)),
        })
        .collect()
}

pub(super) fn job_commits(conn: &Connection, job: &JobId, since: UnixMs) -> Result<u64> {
    count(
        conn,
        "SELECT count(*) FROM calls
         WHERE job_scoped = ?1 AND at_ms >= ?2 AND state IN ('running', 'done', 'unknown')",
        (job.as_str(), int(since.0)?),
    )
}

fn count(conn: &Connection, sql: &str, args: impl rusqlite::Params) -> Result<u64> {
    conn.prepare_cached(sql)
        .and_then(|mut s| s.query_row(args, |row| row.get::<_, i64>(0)))
        .map(i64::unsigned_abs)
        .map_err(fault("count in the journal"))
}

pub(super) fn last_run(conn: &Connection, job: &JobId) -> Result<Option<Run>> {
    row::json(
        conn,
        "SELECT json FROM runs WHERE job = ?1 ORDER BY seq DESC LIMIT 1",
        [job.as_str()],
    )
}

pub(super) fn runs(conn: &Connection) -> Result<Vec<Run>> {
    row::jsons(conn, "SELECT json FROM runs ORDER BY seq", [])
}

pub(super) fn judgements(conn: &Connection, proposal: &Sha256) -> Result<Vec<Judgement>> {
    row::jsons(
        conn,
        "SELECT json FROM judgements WHERE proposal = ?1 ORDER BY seq",
        [proposal.as_bytes()],
    )
}

pub(super) fn judgement(conn: &Connection, generation: &Generation) -> Result<Option<Judgement>> {
    row::json(
        conn,
        "SELECT json FROM judgements WHERE generation = ?1",
        [generation.as_str()],
    )
}

pub(super) fn prepared(conn: &Connection, job: &JobId) -> Result<Option<Preparation>> {
    row::json(
        conn,
        "SELECT json FROM preparations WHERE job = ?1",
        [job.as_str()],
    )
}

pub(super) fn prepared_in(conn: &Connection, pin: &PinId) -> Result<Option<Preparation>> {
    row::json(
        conn,
        "SELECT json FROM preparations WHERE pin = ?1",
        [pin.as_str()],
    )
}

pub(super) fn job_judgements(conn: &Connection, job: &JobId) -> Result<Vec<Judgement>> {
    row::jsons(
        conn,
        "SELECT json FROM judgements WHERE job = ?1 ORDER BY seq",
        [job.as_str()],
    )
}

/// Goes through all of them: a certification asks once, and they are few.
pub(super) fn tree_judgements(conn: &Connection, tree: &str) -> Result<Vec<Judgement>> {
    let mut all: Vec<Judgement> = row::jsons(conn, "SELECT json FROM judgements ORDER BY seq", [])?;
    all.retain(|judgement| judgement.tree == tree);
    Ok(all)
}

/// Reads the newest entries that pass the filter, and gives them in the order of the journal.
pub(super) fn log(conn: &Connection, filter: &LogFilter) -> Result<Vec<LogLine>> {
    let mut sql = match filter.view {
        None => ENTRIES,
        Some(View::Calls) => CALLS,
    }
    .to_owned();
    let mut args: Vec<Value> = Vec::new();
    for (clause, seq) in [
        (" AND r.seq > ?", filter.after_seq),
        (" AND r.seq <= ?", filter.up_to_seq),
    ] {
        if let Some(seq) = seq {
            sql.push_str(clause);
            args.push(Value::Integer(i64::try_from(seq).unwrap_or(i64::MAX)));
        }
    }
    let texts = [
        (" AND r.job = ?", filter.job.as_ref().map(JobId::as_str)),
        (
            " AND r.execution_id = ?",
            filter.execution.as_ref().map(ExecutionId::as_str),
        ),
        (" AND r.key = ?", filter.key.as_ref().map(IdempotencyKey::as_str)),
    ];
    for (clause, text) in texts {
        if let Some(text) = text {
            sql.push_str(clause);
            args.push(Value::Text(text.to_owned()));
        }
    }
    if filter.conflicts.is_some() {
        sql.push_str(" AND r.conflict = 1");
    }
    sql.push_str(" ORDER BY r.seq DESC");
    if let Some(limit) = filter.limit {
        sql.push_str(" LIMIT ?");
        args.push(Value::Integer(i64::from(limit)));
    }
    let rows = conn
        .prepare_cached(&sql)
        .and_then(|mut s| {
            s.query_map(params_from_iter(args), |row| {
                let intent = (row.get::<_, Option<u16>>(6)?, row.get::<_, Option<String>>(7)?);
                Ok((raw_entry(row)?, intent))
            })?
            .collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(fault("read the log"))?;
    rows.into_iter().rev().map(line).collect()
}

/// Selects entries, without the intents that they belong to.
const ENTRIES: &str =
    "SELECT r.seq, r.at_ms, r.version, r.body, r.prev, r.hash, NULL, NULL FROM records r WHERE 1";

/// Selects each call once. The first entry of an execution is its intent, by the law that an execution id is used
/// once; an intent without a row, or whose row has an outcome, is told by the entry of its end.
const CALLS: &str = r#"SELECT r.seq, r.at_ms, r.version, r.body, r.prev, r.hash, i.version, i.body FROM records r
     LEFT JOIN records i ON i.seq = (SELECT min(f.seq) FROM records f WHERE f.execution_id = r.execution_id)
     WHERE (substr(r.body, 1, 23) <> '{"kind":"call_intended"'
            OR EXISTS (SELECT 1 FROM calls c WHERE c.intent_seq = r.seq AND c.outcome_seq IS NULL))"#;

/// Is an entry as it is stored.
pub(super) struct RawEntry {
    pub(super) seq: i64,
    pub(super) at_ms: i64,
    pub(super) version: u16,
    pub(super) body: String,
    pub(super) prev: [u8; 32],
    pub(super) hash: [u8; 32],
}

pub(super) fn raw_entry(row: &rusqlite::Row<'_>) -> rusqlite::Result<RawEntry> {
    Ok(RawEntry {
        seq: row.get(0)?,
        at_ms: row.get(1)?,
        version: row.get(2)?,
        body: row.get(3)?,
        prev: row.get(4)?,
        hash: row.get(5)?,
    })
}

fn line((raw, intent): (RawEntry, (Option<u16>, Option<String>))) -> Result<LogLine> {
    let record = row::decode_record(raw.version, &raw.body)?;
    let outcome = matches!(
        record,
        Record::CallReceipted { .. } | Record::CallFreed { .. } | Record::CallUnknown { .. }
    );
    let intent = match intent {
        (Some(version), Some(body)) if outcome => match row::decode_record(version, &body)? {
            Record::CallIntended(intent) => Some(intent),
            _ => None,
        },
        _ => None,
    };
    Ok(LogLine {
        at: UnixMs(raw.at_ms.unsigned_abs()),
        intent,
        entry: Entry {
            seq: raw.seq.unsigned_abs(),
            version: raw.version,
            record,
            prev: Sha256::from_bytes(raw.prev),
            hash: Sha256::from_bytes(raw.hash),
        },
    })
}

/// Reads what the journal's tables say of it; the writer's counts are filled in by whoever knows them.
pub(super) fn status(conn: &Connection) -> Result<JournalStatus> {
    let open = "SELECT count(*) FROM calls WHERE state = ?1 AND state IN ('running', 'unknown')";
    Ok(JournalStatus {
        incarnation: Incarnation(count(
            conn,
            "SELECT coalesce(max(incarnation), 0) FROM incarnations",
            [],
        )?),
        entries: count(conn, "SELECT coalesce(max(seq), 0) FROM records", [])?,
        commits: 0,
        rows: 0,
        synced_commits: 0,
        queued: 0,
        busy_ms: 0,
        unnoted: 0,
        running: count(conn, open, ["running"])?,
        unknown: count(conn, open, ["unknown"])?,
        engine: format!("SQLite {}", rusqlite::version()),
    })
}
