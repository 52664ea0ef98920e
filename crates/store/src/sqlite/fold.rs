//! The state that follows from the entries, folded without a database, and held against every table.
//!
//! It uses the `apply` of the core, as the desk does. It only finds; it mends nothing.

use super::fault;
use super::row::{self, Found, Subject, select_calls};
use super::verify::Faults;
use crate::error::Result;
use rusqlite::Connection;
use semel_core::Sha256;
use semel_core::call::{self, CallState, Outcome};
use semel_core::ids::{ExecutionId, Generation, JobId, RunId};
use semel_core::pipeline::{self, Run};
use semel_core::record::{Consumption, IllegalRecord, Judgement, Record};
use semel_core::volume::{self, Volume};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

type Folded = std::result::Result<(), IllegalRecord>;

/// Is where a call lies: its scope and key.
type Place = (String, String);

/// Is a call as its row must be.
#[derive(Clone, Debug, PartialEq)]
struct Call {
    state: CallState,
    intent_seq: u64,
    outcome_seq: Option<u64>,
    at_ms: u64,
}

/// Is the state that follows from the entries.
#[derive(Default)]
pub(super) struct Fold {
    incarnations: BTreeMap<u64, (String, String, u64)>,
    fence: u64,
    attempts: BTreeMap<JobId, u32>,
    tokens: BTreeMap<Sha256, Generation>,
    volumes: BTreeMap<Generation, Volume>,
    calls: BTreeMap<Place, Call>,
    intents: BTreeMap<ExecutionId, Place>,
    /// The newest intent of an execution that was freed, so that its last entry is found too.
    freed: Option<CallState>,
    done: BTreeSet<Place>,
    runs: BTreeMap<RunId, (u64, Run)>,
    judgements: BTreeMap<Generation, (u64, Judgement)>,
    consumptions: BTreeMap<Generation, Consumption>,
}

fn illegal(what: impl Into<String>) -> Folded {
    Err(IllegalRecord(what.into()))
}

impl Fold {
    /// Folds one more entry.
    pub(super) fn apply(&mut self, seq: u64, record: &Record) -> Folded {
        match record {
            Record::DaemonStarted {
                incarnation,
                boot_id,
                version,
                at,
            } => {
                let last = self.incarnations.last_key_value().map_or(0, |(last, _)| *last);
                let row = (boot_id.clone(), version.clone(), at.0);
                self.incarnations.insert(incarnation.0, row);
                if incarnation.0 == last + 1 {
                    Ok(())
                } else {
                    illegal("the incarnations do not count up")
                }
            }
            Record::VolumeOpened { new, .. } => self.opened(record).and(self.volume(record, &new.generation)),
            Record::VolumeReady { generation, .. }
            | Record::VolumeEnded { generation, .. }
            | Record::VolumeDestroyed { generation, .. } => self.volume(record, generation),
            Record::CallIntended(intent) => {
                let place = (row::scope(&intent.scope), intent.key.as_str().to_owned());
                let used = self.intents.insert(intent.execution_id.clone(), place.clone());
                if used.is_some() {
                    return illegal("an execution id is used twice");
                }
                self.call(seq, record, place)
            }
            Record::CallReceipted { execution_id, .. }
            | Record::CallFreed { execution_id, .. }
            | Record::CallUnknown { execution_id, .. } => match self.intents.get(execution_id).cloned() {
                None => illegal("the end of a call that is not known"),
                Some(place) => self.call(seq, record, place),
            },
            Record::RunStarted(new) => self.run(seq, record, &new.run),
            Record::RunStaged { run, .. } | Record::RunEnded { run, .. } => self.run(seq, record, run),
            Record::AttemptJudged(judgement) => {
                let row = (seq, (**judgement).clone());
                match self.judgements.insert(judgement.generation.clone(), row) {
                    None => Ok(()),
                    Some(_) => illegal("a generation is judged twice"),
                }
            }
            Record::CertificateConsumed(consumption) => {
                let row = consumption.clone();
                match self.consumptions.insert(consumption.generation.clone(), row) {
                    None => Ok(()),
                    Some(_) => illegal("a certificate is consumed twice"),
                }
            }
            Record::CallNoted(_) | Record::WorktreeRestored(_) => Ok(()),
        }
    }

    fn opened(&mut self, record: &Record) -> Folded {
        let Record::VolumeOpened {
            new,
            attempt,
            fencing_token,
        } = record
        else {
            return Ok(());
        };
        let last = self.attempts.insert(new.job.clone(), attempt.0).unwrap_or(0);
        let fence = std::mem::replace(&mut self.fence, fencing_token.0);
        let token = self.tokens.insert(new.token_sha256, new.generation.clone());
        if attempt.0 != last + 1 || fencing_token.0 != fence + 1 {
            illegal("the attempts or fencing tokens do not count up")
        } else if token.is_some() {
            illegal("a bearer token is given out twice")
        } else {
            Ok(())
        }
    }

    fn volume(&mut self, record: &Record, generation: &Generation) -> Folded {
        let prior = self.volumes.get(generation).cloned();
        if let Some(next) = volume::apply(prior, record)? {
            self.volumes.insert(generation.clone(), next);
        }
        Ok(())
    }

    fn call(&mut self, seq: u64, record: &Record, place: Place) -> Folded {
        let prior = self.calls.get(&place);
        let intent_seq = prior.map_or(seq, |known| known.intent_seq);
        let known = prior.map(|known| known.state.clone());
        let Some(state) = call::apply(known.clone(), record)? else {
            self.calls.remove(&place);
            self.freed = known;
            return Ok(());
        };
        let row = Call {
            state,
            intent_seq,
            outcome_seq: (seq != intent_seq).then_some(seq),
            at_ms: record.at().0,
        };
        self.calls.insert(place.clone(), row);
        match record {
            Record::CallReceipted { receipt, .. }
                if matches!(receipt.outcome, Outcome::Done(_)) && !self.done.insert(place.clone()) =>
            {
                illegal(format!("the key {} has two effects", place.1))
            }
            _ => Ok(()),
        }
    }

    fn run(&mut self, seq: u64, record: &Record, run: &RunId) -> Folded {
        let (seq, prior) = match self.runs.get(run).cloned() {
            Some((began, prior)) => (began, Some(prior)),
            None => (seq, None),
        };
        if let Some(next) = pipeline::apply(prior, record)? {
            self.runs.insert(run.clone(), (seq, next));
        }
        Ok(())
    }

    /// Says by what a folded entry must be found.
    pub(super) fn found<'a>(&'a self, record: &'a Record) -> Found<'a> {
        let volume = |generation| match self.volumes.get(generation) {
            Some(volume) => Subject::Job(&volume.job),
            None => Subject::Own,
        };
        let run = |run| match self.runs.get(run) {
            Some((_, run)) => Subject::Job(&run.new.job),
            None => Subject::Own,
        };
        let call = |execution| {
            let known = self
                .intents
                .get(execution)
                .and_then(|place| self.calls.get(place));
            match known.map(|call| &call.state).or(self.freed.as_ref()) {
                Some(state) => Subject::Call(state.intent()),
                None => Subject::Own,
            }
        };
        let subject = match record {
            Record::VolumeOpened { new, .. } => Subject::Job(&new.job),
            Record::VolumeReady { generation, .. }
            | Record::VolumeEnded { generation, .. }
            | Record::VolumeDestroyed { generation, .. } => volume(generation),
            Record::CallIntended(intent) => Subject::Call(intent),
            Record::CallReceipted { execution_id, .. }
            | Record::CallFreed { execution_id, .. }
            | Record::CallUnknown { execution_id, .. } => call(execution_id),
            Record::RunStarted(new) => Subject::Job(&new.job),
            Record::RunStaged { run: of, .. } | Record::RunEnded { run: of, .. } => run(of),
            Record::DaemonStarted { .. }
            | Record::CallNoted(_)
            | Record::AttemptJudged(_)
            | Record::CertificateConsumed(_)
            | Record::WorktreeRestored(_) => Subject::Own,
        };
        Found::of(record, subject)
    }

    /// Holds the folded state against every table.
    pub(super) fn compare(self, conn: &Connection, faults: &mut Faults) -> Result<()> {
        let sql = "SELECT incarnation, boot_id, version, at_ms FROM incarnations";
        let stored = list(conn, sql, |row| {
            Ok((number(row, 0)?, (row.get(1)?, row.get(2)?, number(row, 3)?)))
        })?;
        differ("incarnation", &self.incarnations, &stored, faults);
        let stored = list(conn, "SELECT token_sha256, generation FROM volumes", |row| {
            let generation: String = row.get(1)?;
            Ok((row.get::<_, [u8; 32]>(0)?, generation))
        })?;
        let tokens = self.tokens.into_iter();
        let tokens = tokens
            .map(|(t, g)| (*t.as_bytes(), g.as_str().to_owned()))
            .collect();
        differ("bearer token", &tokens, &stored, faults);
        differ("volume", &self.volumes, &volumes(conn, faults)?, faults);
        differ("run", &self.runs, &runs(conn, faults)?, faults);
        differ("verdict", &self.judgements, &judgements(conn, faults)?, faults);
        let stored = list(conn, "SELECT generation, json FROM consumptions", |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        })?;
        let stored = stored.into_iter().filter_map(|(generation, json)| {
            let consumption: Consumption = told(&json, faults)?;
            agree(
                "consumption",
                &generation,
                &consumption.generation.as_str(),
                &generation.as_str(),
                faults,
            );
            Some((consumption.generation.clone(), consumption))
        });
        let stored = stored.collect();
        differ("consumption", &self.consumptions, &stored, faults);
        differ("call", &self.calls, &calls(conn, faults)?, faults);
        Ok(())
    }
}

fn number(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(at).map(i64::unsigned_abs)
}

fn list<K: Ord, V>(
    conn: &Connection,
    sql: &str,
    read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<(K, V)>,
) -> Result<BTreeMap<K, V>> {
    conn.prepare(sql)
        .and_then(|mut s| {
            s.query_map([], read)?
                .collect::<rusqlite::Result<BTreeMap<_, _>>>()
        })
        .map_err(fault("verify the tables"))
}

/// Reads what a row tells, or says that it cannot be read.
fn told<T: DeserializeOwned>(json: &str, faults: &mut Faults) -> Option<T> {
    row::decode(json)
        .map_err(|e| faults.add(format!("a row: {e}")))
        .ok()
}

/// Holds the columns of a row against what it tells.
fn agree<T: PartialEq + Debug>(what: &str, of: &str, must: &T, is: &T, faults: &mut Faults) {
    if must != is {
        faults.add(format!(
            "the row of {what} {of} says {is:?}, and must say {must:?}"
        ));
    }
}

fn volumes(conn: &Connection, faults: &mut Faults) -> Result<BTreeMap<Generation, Volume>> {
    let sql = "SELECT generation, job, attempt, fencing_token, role, state, json FROM volumes";
    let rows = list(conn, sql, |row| {
        let columns: (String, String, u64, u64, String, String) = (
            row.get(0)?,
            row.get(1)?,
            number(row, 2)?,
            number(row, 3)?,
            row.get(4)?,
            row.get(5)?,
        );
        Ok((columns, row.get::<_, String>(6)?))
    })?;
    let mut volumes = BTreeMap::new();
    for (columns, json) in rows {
        let Some(volume) = told::<Volume>(&json, faults) else {
            continue;
        };
        let must = (
            volume.generation.as_str().to_owned(),
            volume.job.as_str().to_owned(),
            u64::from(volume.attempt.0),
            volume.fencing_token.0,
            row::role_of(volume.role).to_owned(),
            row::state_of(&volume).to_owned(),
        );
        agree("volume", &columns.0, &must, &columns, faults);
        volumes.insert(volume.generation.clone(), volume);
    }
    Ok(volumes)
}

fn runs(conn: &Connection, faults: &mut Faults) -> Result<BTreeMap<RunId, (u64, Run)>> {
    let rows = list(conn, "SELECT run, seq, job, over, json FROM runs", |row| {
        let columns: (String, String, i64) = (row.get(0)?, row.get(2)?, row.get(3)?);
        Ok((columns, (number(row, 1)?, row.get::<_, String>(4)?)))
    })?;
    let mut runs = BTreeMap::new();
    for (columns, (seq, json)) in rows {
        let Some(run) = told::<Run>(&json, faults) else {
            continue;
        };
        let must = (
            run.new.run.as_str().to_owned(),
            run.new.job.as_str().to_owned(),
            i64::from(run.end.is_some()),
        );
        agree("run", &columns.0, &must, &columns, faults);
        runs.insert(run.new.run.clone(), (seq, run));
    }
    Ok(runs)
}

fn judgements(conn: &Connection, faults: &mut Faults) -> Result<BTreeMap<Generation, (u64, Judgement)>> {
    let sql = "SELECT generation, seq, job, proposal, json FROM judgements";
    let rows = list(conn, sql, |row| {
        let columns: (String, String, [u8; 32]) = (row.get(0)?, row.get(2)?, row.get(3)?);
        Ok((columns, (number(row, 1)?, row.get::<_, String>(4)?)))
    })?;
    let mut judgements = BTreeMap::new();
    for (columns, (seq, json)) in rows {
        let Some(judgement) = told::<Judgement>(&json, faults) else {
            continue;
        };
        let must = (
            judgement.generation.as_str().to_owned(),
            judgement.job.as_str().to_owned(),
            *judgement.proposal.as_bytes(),
        );
        agree("verdict", &columns.0, &must, &columns, faults);
        judgements.insert(judgement.generation.clone(), (seq, judgement));
    }
    Ok(judgements)
}

fn calls(conn: &Connection, faults: &mut Faults) -> Result<BTreeMap<Place, Call>> {
    let sql = "SELECT intent_seq, outcome_seq, at_ms, scope, key, state, execution_id, generation, job_scoped FROM calls";
    let rows = list(conn, sql, |row| {
        let outcome_seq = row.get::<_, Option<i64>>(1)?.map(i64::unsigned_abs);
        let columns: [Option<String>; 6] = [
            row.get(3)?,
            row.get(4)?,
            row.get(5)?,
            row.get(6)?,
            row.get(7)?,
            row.get(8)?,
        ];
        Ok((row.get::<_, i64>(0)?, (outcome_seq, number(row, 2)?, columns)))
    })?;
    let mut records = conn
        .prepare(select_calls!("WHERE c.intent_seq = ?1"))
        .map_err(fault("verify the calls"))?;
    let mut calls = BTreeMap::new();
    for (intent_seq, (outcome_seq, at_ms, columns)) in rows {
        let raw = records.query_row([intent_seq], row::raw_call);
        let state = match raw.map_err(fault("verify the calls")).and_then(row::fold_call) {
            Ok(call) => call.state,
            Err(e) => {
                faults.add(format!("the call of entry {intent_seq}: {e}"));
                continue;
            }
        };
        let intent = state.intent();
        let place = (row::scope(&intent.scope), intent.key.as_str().to_owned());
        let must = [
            Some(place.0.clone()),
            Some(place.1.clone()),
            Some(row::state_of_call(&state).to_owned()),
            Some(intent.execution_id.as_str().to_owned()),
            Some(intent.generation.as_str().to_owned()),
            row::job_scoped(intent).map(str::to_owned),
        ];
        agree("call", intent.execution_id.as_str(), &must, &columns, faults);
        let row = Call {
            state,
            intent_seq: intent_seq.unsigned_abs(),
            outcome_seq,
            at_ms,
        };
        calls.insert(place, row);
    }
    Ok(calls)
}

fn differ<K: Ord + Debug, V: PartialEq>(
    what: &str,
    folded: &BTreeMap<K, V>,
    stored: &BTreeMap<K, V>,
    faults: &mut Faults,
) {
    for (key, value) in folded {
        if stored.get(key) != Some(value) {
            faults.add(format!(
                "the stored {what} {key:?} does not follow from the entries"
            ));
        }
    }
    for key in stored.keys().filter(|key| !folded.contains_key(*key)) {
        faults.add(format!("the stored {what} {key:?} has no entry"));
    }
}
