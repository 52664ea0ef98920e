//! Questions to a person and their answers: recorded, found, and held against their entries.
//!
//! An approval is its records: nothing of it is stored twice.

use super::desk::{Desk, lost};
use super::fold::Asked;
use super::row::{self, Stored, Subject};
use super::tables::{Column, agree, list, number};
use super::verbs::{fenced, foreign, stale};
use super::verify::Faults;
use super::{fault, int};
use crate::error::{Error, Result};
use rusqlite::{Connection, OptionalExtension as _, Row};
use semel_core::approval::{self, Approval, Decision, Question, Ruled, Ruling, Subject as Of};
use semel_core::call::Scope;
use semel_core::digest::Fingerprint;
use semel_core::ids::{ApprovalId, IdempotencyKey, UnixMs};
use semel_core::record::{IllegalRecord, Record};
use semel_core::volume::Volume;
use semel_core::{Code, Refusal};
use std::collections::BTreeMap;

/// Is an approval with the place of its question.
pub(super) struct ApprovalRow {
    asked_seq: i64,
    approval: Approval,
}

/// Gives what is known of an approval, without its place.
pub(super) fn state(row: Option<ApprovalRow>) -> Option<Approval> {
    row.map(|row| row.approval)
}

fn said(fingerprint: &Fingerprint) -> String {
    fingerprint.digest.to_string()
}

fn word(approval: &Approval) -> &'static str {
    match approval.ruling.as_ref().map(|ruling| ruling.decision) {
        None => "pending",
        Some(Decision::Approve) => "approved",
        Some(Decision::Deny) => "denied",
    }
}

impl Desk {
    /// See [`Journal::ask_approval`](crate::Journal::ask_approval).
    pub(super) fn ask_approval(&mut self, question: &Question, most: u32) -> Result<Approval> {
        let volume = self.must_find(&question.generation)?;
        fenced(&volume, question.fencing_token)?;
        volume.live()?;
        belongs(question, &volume)?;
        let known = newest(&self.conn, &question.scope, &question.subject())?;
        if let Some(known) = known.filter(|known| !known.approval.lapsed(question.at)) {
            return Ok(known.approval);
        }
        let waiting = self.number(
            "SELECT count(*) FROM approvals WHERE generation = ?1 AND state = 'pending' AND expires_ms > ?2",
            (question.generation.as_str(), int(question.at.0)?),
        )?;
        if waiting >= u64::from(most) {
            let why = format!("{waiting} calls of the generation wait for a person already");
            return Err(Refusal::new(Code::TooMany, why)
                .reason("approvals_pending")
                .into());
        }
        self.record(&Record::ApprovalAsked(Box::new(question.clone())))?;
        self.must_find_approval(&question.approval_id)
            .map(|row| row.approval)
    }

    /// See [`Journal::decide_approval`](crate::Journal::decide_approval).
    pub(super) fn decide_approval(&mut self, id: &ApprovalId, ruling: &Ruling) -> Result<Approval> {
        let known = self.must_find_approval(id)?.approval;
        let volume = self.must_find(&known.question.generation)?;
        if volume.live().is_err() {
            return Err(stale(&volume, "the generation of this call has ended"));
        }
        match known.rule(ruling)? {
            Ruled::Same => Ok(known),
            Ruled::First => {
                self.record(&Record::ApprovalDecided {
                    approval_id: id.clone(),
                    ruling: ruling.clone(),
                })?;
                self.must_find_approval(id).map(|row| row.approval)
            }
        }
    }

    /// Records a question.
    pub(super) fn asked(&mut self, record: &Record, question: &Question) -> Result<()> {
        let prior = by_id(&self.conn, &question.approval_id)?;
        approval::apply(state(prior), record)?;
        let seq = self.append(record, Subject::Question(question))?;
        self.execute(
            "INSERT INTO approvals (asked_seq, approval_id, scope, key, fingerprint, generation, state, expires_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'pending', ?7)",
            (
                seq,
                question.approval_id.as_str(),
                row::scope(&question.scope),
                question.key.as_ref().map(|key| key.as_str()),
                said(&question.fingerprint),
                question.generation.as_str(),
                int(question.expires_at.0)?,
            ),
        )
    }

    /// Records an answer.
    pub(super) fn decided(&mut self, record: &Record, id: &ApprovalId) -> Result<()> {
        let known = by_id(&self.conn, id)?
            .ok_or_else(|| IllegalRecord("an approval is decided that is not known".to_owned()))?;
        let question = known.approval.question.clone();
        let next = approval::apply(Some(known.approval), record)?.ok_or_else(|| lost("an approval"))?;
        let seq = self.append(record, Subject::Question(&question))?;
        self.execute(
            "UPDATE approvals SET state = ?2, decided_seq = ?3 WHERE asked_seq = ?1",
            (known.asked_seq, word(&next), seq),
        )
    }

    fn must_find_approval(&self, id: &ApprovalId) -> Result<ApprovalRow> {
        by_id(&self.conn, id)?.ok_or_else(|| {
            Refusal::new(Code::NotFound, "no call waits for this approval")
                .name(id.as_str())
                .into()
        })
    }
}

/// Refuses a question that says of its volume what the volume does not say of itself.
fn belongs(question: &Question, volume: &Volume) -> Result<()> {
    let role = (question.role != volume.role).then_some("role");
    match foreign(&question.scope, &question.attempt, volume).or(role) {
        None => Ok(()),
        Some(foreign) => Err(IllegalRecord(format!("a question whose {foreign} is not its volume's")).into()),
    }
}

macro_rules! select_approvals {
    ($rest:literal) => {
        concat!(
            "SELECT a.asked_seq, q.version, q.body, d.version, d.body FROM approvals a
             JOIN records q ON q.seq = a.asked_seq LEFT JOIN records d ON d.seq = a.decided_seq ",
            $rest
        )
    };
}

struct Raw {
    asked_seq: i64,
    question: Stored,
    ruling: Option<Stored>,
}

fn raw(row: &Row<'_>) -> rusqlite::Result<Raw> {
    let (version, body): (Option<u16>, Option<String>) = (row.get(3)?, row.get(4)?);
    Ok(Raw {
        asked_seq: row.get(0)?,
        question: (row.get(1)?, row.get(2)?),
        ruling: version.zip(body),
    })
}

fn fold(raw: Raw) -> Result<ApprovalRow> {
    let mut folded = approval::apply(None, &row::decode_record(raw.question.0, &raw.question.1)?)?;
    if let Some((version, body)) = raw.ruling {
        folded = approval::apply(folded, &row::decode_record(version, &body)?)?;
    }
    match folded {
        Some(approval) => Ok(ApprovalRow {
            asked_seq: raw.asked_seq,
            approval,
        }),
        None => Err(lost("an approval").into()),
    }
}

fn one(conn: &Connection, sql: &str, args: impl rusqlite::Params) -> Result<Option<ApprovalRow>> {
    conn.prepare_cached(sql)
        .and_then(|mut s| s.query_row(args, raw).optional())
        .map_err(fault("find an approval"))?
        .map(fold)
        .transpose()
}

/// Finds an approval by its id.
pub(super) fn by_id(conn: &Connection, id: &ApprovalId) -> Result<Option<ApprovalRow>> {
    one(conn, select_approvals!("WHERE a.approval_id = ?1"), [id.as_str()])
}

/// Finds the newest question about a call.
pub(super) fn newest(conn: &Connection, scope: &Scope, subject: &Of) -> Result<Option<ApprovalRow>> {
    let scope = row::scope(scope);
    match subject {
        Of::Key(key) => one(
            conn,
            select_approvals!("WHERE a.scope = ?1 AND a.key = ?2"),
            [scope.as_str(), key.as_str()],
        ),
        Of::Read(fingerprint) => one(
            conn,
            select_approvals!(
                "WHERE a.scope = ?1 AND a.fingerprint = ?2 AND a.key IS NULL ORDER BY a.asked_seq DESC LIMIT 1"
            ),
            [scope, said(fingerprint)],
        ),
    }
}

/// Lists the questions that wait, in volumes that are not ended.
pub(super) fn pending(conn: &Connection, now: UnixMs) -> Result<Vec<Approval>> {
    let found = conn
        .prepare_cached(select_approvals!(
            "JOIN volumes v ON v.generation = a.generation
             WHERE a.state = 'pending' AND a.expires_ms > ?1 AND v.state IN ('opening', 'open')
             ORDER BY a.asked_seq"
        ))
        .and_then(|mut s| {
            s.query_map([int_or_all(now)], raw)?
                .collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(fault("list the approvals"))?;
    found
        .into_iter()
        .map(|raw| fold(raw).map(|row| row.approval))
        .collect()
}

/// A time beyond what the journal can hold is after every question.
fn int_or_all(now: UnixMs) -> i64 {
    i64::try_from(now.0).unwrap_or(i64::MAX)
}

/// Reads every row with what its records say, for the verification.
pub(super) fn rows(conn: &Connection, faults: &mut Faults) -> Result<BTreeMap<ApprovalId, Asked>> {
    let sql =
        "SELECT asked_seq, decided_seq, approval_id, scope, key, fingerprint, generation, state, expires_ms
               FROM approvals";
    let rows = list(conn, sql, |row| {
        let decided: Option<i64> = row.get(1)?;
        let columns: [Option<String>; 7] = [
            row.get(2)?,
            row.get(3)?,
            row.get(4)?,
            row.get(5)?,
            row.get(6)?,
            row.get(7)?,
            Some(number(row, 8)?.to_string()),
        ];
        Ok((row.get::<_, i64>(0)?, (decided, columns)))
    })?;
    let mut approvals = BTreeMap::new();
    for (asked_seq, (decided_seq, columns)) in rows {
        let found = one(conn, select_approvals!("WHERE a.asked_seq = ?1"), [asked_seq]);
        let approval = match found {
            Ok(Some(row)) => row.approval,
            Ok(None) => {
                let why = format!("the approval of entry {asked_seq}: its entry is missing");
                faults.state(why);
                continue;
            }
            Err(Error::Poisoned { why }) => return Err(Error::Poisoned { why }),
            Err(e) => {
                let why = format!("the approval of entry {asked_seq}: {e}");
                faults.state(why);
                continue;
            }
        };
        let question = &approval.question;
        let (scope, print) = (row::scope(&question.scope), said(&question.fingerprint));
        let expires = question.expires_at.0.to_string();
        let must = [
            ("id", Some(question.approval_id.as_str())),
            ("scope", Some(scope.as_str())),
            ("key", question.key.as_ref().map(IdempotencyKey::as_str)),
            ("fingerprint", Some(print.as_str())),
            ("generation", Some(question.generation.as_str())),
            ("state", Some(word(&approval))),
            ("expiry", Some(expires.as_str())),
        ];
        let columns: [Column<'_>; 7] = std::array::from_fn(|n| (must[n].0, columns[n].as_deref(), must[n].1));
        agree("approval", question.approval_id.as_str(), &columns, faults);
        let id = question.approval_id.clone();
        let row = Asked {
            approval,
            asked_seq: asked_seq.unsigned_abs(),
            decided_seq: decided_seq.map(i64::unsigned_abs),
        };
        approvals.insert(id, row);
    }
    Ok(approvals)
}
