//! How what the core knows lies in rows.

use super::fault;
use crate::error::{Damage, Error, Result};
use rusqlite::{Connection, OptionalExtension as _, Row};
use semel_core::Code;
use semel_core::approval::Question;
use semel_core::call::{self, CallState, Event, Intent, Outcome, Scope};
use semel_core::ids::{IdempotencyKey, JobId};
use semel_core::record::{RECORD_VERSION, Record};
use semel_core::volume::{Role, Volume, VolumeState};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Is a call with the place of its intent.
pub(super) struct CallRow {
    pub(super) intent_seq: i64,
    pub(super) state: CallState,
}

/// Writes a value as it is stored.
pub(super) fn encode(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| unreadable("write an entry", &e))
}

/// Reads a value as it is stored.
pub(super) fn decode<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| unreadable("read an entry", &e))
}

/// Reads a record; a newer format is refused.
pub(super) fn decode_record(version: u16, body: &str) -> Result<Record> {
    if version == RECORD_VERSION {
        decode(body)
    } else {
        Err(unreadable(
            "read an entry",
            &format!("its format {version} is not known to this build"),
        ))
    }
}

fn unreadable(doing: &'static str, detail: &impl ToString) -> Error {
    Error::Database {
        doing,
        detail: detail.to_string(),
        damage: Damage::Verb,
    }
}

/// Writes a scope as text; none of its parts can hold a space.
pub(super) fn scope(scope: &Scope) -> String {
    let generation = scope.generation.as_ref().map_or("-", |g| g.as_str());
    format!("{} {} {generation}", scope.principal, scope.job)
}

/// Gives the job of a call whose effect lies outside of any generation.
pub(super) fn job_scoped(intent: &Intent) -> Option<&str> {
    match intent.scope.generation {
        Some(_) => None,
        None => Some(intent.scope.job.as_str()),
    }
}

/// Is what a record is about, where it does not say so itself.
#[derive(Clone, Copy)]
pub(super) enum Subject<'a> {
    /// It says so itself, or is about nothing.
    Own,
    /// Something of a job.
    Job(&'a JobId),
    /// A call.
    Call(&'a Intent),
    /// A question to a person.
    Question(&'a Question),
}

/// Is what an entry is found by.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) job: Option<&'a str>,
    pub(super) execution: Option<&'a str>,
    pub(super) key: Option<&'a str>,
    pub(super) conflict: i64,
}

impl<'a> Found<'a> {
    pub(super) fn of(record: &'a Record, subject: Subject<'a>) -> Self {
        let job = |job: Option<&'a JobId>| Found {
            job: job.map(JobId::as_str),
            execution: None,
            key: None,
            conflict: 0,
        };
        match (subject, record) {
            (Subject::Job(of), _) => job(Some(of)),
            (Subject::Call(intent), _) => Found {
                execution: Some(intent.execution_id.as_str()),
                key: Some(intent.key.as_str()),
                ..job(Some(&intent.scope.job))
            },
            (Subject::Question(question), _) => Found {
                key: question.key.as_ref().map(IdempotencyKey::as_str),
                ..job(Some(&question.scope.job))
            },
            (Subject::Own, Record::CallNoted(note)) => Found {
                execution: note.execution_id.as_ref().map(|id| id.as_str()),
                key: note.key.as_ref().map(|key| key.as_str()),
                conflict: match &note.event {
                    Event::Refused { code, .. } => i64::from(*code == Code::ReplayConflict),
                    Event::Replayed | Event::Read | Event::Suppressed { .. } => 0,
                },
                ..job(note.job.as_ref())
            },
            (Subject::Own, Record::AttemptJudged(judgement)) => job(Some(&judgement.job)),
            (Subject::Own, Record::DraftSealed(sealing)) => job(Some(&sealing.job)),
            (Subject::Own, Record::WorktreeRestored(restoration)) => job(restoration.job.as_ref()),
            (
                Subject::Own,
                Record::DaemonStarted { .. }
                | Record::VolumeOpened { .. }
                | Record::VolumeReady { .. }
                | Record::VolumeEnded { .. }
                | Record::VolumeLifted { .. }
                | Record::TokenIssued(_)
                | Record::VolumeDestroyed { .. }
                | Record::PreImagesEvicted { .. }
                | Record::ReceiptsExpired { .. }
                | Record::CallIntended(_)
                | Record::CallReceipted { .. }
                | Record::CallAborting { .. }
                | Record::CallFreed { .. }
                | Record::CallUnknown { .. }
                | Record::RunStarted(_)
                | Record::RunStaged { .. }
                | Record::RunEnded { .. }
                | Record::CertificateConsumed(_)
                | Record::CommandRetried(_)
                | Record::TreePrepared(_)
                | Record::ApprovalAsked(_)
                | Record::ApprovalDecided { .. },
            ) => job(None),
        }
    }
}

/// Says in a word where a volume is.
pub(super) fn state_of(volume: &Volume) -> &'static str {
    match volume.state {
        VolumeState::Opening => "opening",
        VolumeState::Open => "open",
        VolumeState::Clean => "clean",
        VolumeState::Quarantined => "quarantined",
        VolumeState::Destroyed => "destroyed",
    }
}

/// Says in a word what a volume is for.
pub(super) fn role_of(role: Role) -> &'static str {
    match role {
        Role::Draft => "draft",
        Role::Cert => "cert",
    }
}

/// Says in a word what is recorded of a call.
pub(super) fn state_of_call(state: &CallState) -> &'static str {
    match state {
        CallState::Running { .. } => "running",
        CallState::Finished { receipt, .. } => match receipt.outcome {
            Outcome::Done(_) => "done",
            Outcome::Refused { .. } => "refused",
        },
        CallState::Unknown { .. } => "unknown",
    }
}

macro_rules! select_calls {
    ($rest:literal) => {
        concat!(
            "SELECT c.intent_seq, i.version, i.body, a.version, a.body, o.version, o.body FROM calls c
             JOIN records i ON i.seq = c.intent_seq LEFT JOIN records a ON a.seq = c.aborting_seq
             LEFT JOIN records o ON o.seq = c.outcome_seq ",
            $rest
        )
    };
}
pub(super) use select_calls;

/// Is a call as it is read: the records that it is folded from.
pub(super) struct RawCall {
    intent_seq: i64,
    intent: Stored,
    later: [Option<Stored>; 2],
}

pub(super) type Stored = (u16, String);

pub(super) fn raw_call(row: &Row<'_>) -> rusqlite::Result<RawCall> {
    let maybe = |at: usize| -> rusqlite::Result<Option<Stored>> {
        let (version, body): (Option<u16>, Option<String>) = (row.get(at)?, row.get(at + 1)?);
        Ok(version.zip(body))
    };
    Ok(RawCall {
        intent_seq: row.get(0)?,
        intent: (row.get(1)?, row.get(2)?),
        later: [maybe(3)?, maybe(5)?],
    })
}

/// Folds a call from its records.
pub(super) fn fold_call(raw: RawCall) -> Result<CallRow> {
    let mut state = call::apply(None, &decode_record(raw.intent.0, &raw.intent.1)?)?;
    for (version, body) in raw.later.into_iter().flatten() {
        state = call::apply(state, &decode_record(version, &body)?)?;
    }
    match state {
        Some(state) => Ok(CallRow {
            intent_seq: raw.intent_seq,
            state,
        }),
        None => Err(unreadable("read a call", &"its records leave nothing of it")),
    }
}

/// Finds what is known of a key.
pub(super) fn call_by_key(conn: &Connection, scope: &str, key: &str) -> Result<Option<CallRow>> {
    let raw = conn
        .prepare_cached(select_calls!("WHERE c.scope = ?1 AND c.key = ?2"))
        .and_then(|mut s| s.query_row([scope, key], raw_call).optional())
        .map_err(fault("find a key"))?;
    raw.map(fold_call).transpose()
}

/// Finds a call by its execution.
pub(super) fn call_by_execution(conn: &Connection, execution: &str) -> Result<Option<CallRow>> {
    let raw = conn
        .prepare_cached(select_calls!("WHERE c.execution_id = ?1"))
        .and_then(|mut s| s.query_row([execution], raw_call).optional())
        .map_err(fault("find a call"))?;
    raw.map(fold_call).transpose()
}

/// Finds one value that lies as JSON in the first column.
pub(super) fn json<T: DeserializeOwned>(
    conn: &Connection,
    sql: &str,
    args: impl rusqlite::Params,
) -> Result<Option<T>> {
    let text: Option<String> = conn
        .prepare_cached(sql)
        .and_then(|mut s| s.query_row(args, |row| row.get(0)).optional())
        .map_err(fault("read the journal"))?;
    text.as_deref().map(decode).transpose()
}

/// Lists values that lie as JSON in the first column.
pub(super) fn jsons<T: DeserializeOwned>(
    conn: &Connection,
    sql: &str,
    args: impl rusqlite::Params,
) -> Result<Vec<T>> {
    let texts = conn
        .prepare_cached(sql)
        .and_then(|mut s| {
            s.query_map(args, |row| row.get::<_, String>(0))?
                .collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(fault("read the journal"))?;
    texts.iter().map(|text| decode(text)).collect()
}
