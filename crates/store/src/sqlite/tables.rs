//! The tables, held against the state that follows from the entries.
//!
//! Every column of every row is compared; nothing is mended.

use super::fault;
use super::fold::{Call, Fold, Place};
use super::row::{self, select_calls};
use super::verify::Faults;
use crate::error::Result;
use rusqlite::Connection;
use semel_core::Sha256;
use semel_core::digest::to_hex;
use semel_core::ids::{ApprovalId, Generation, JobId, RunId};
use semel_core::pipeline::Run;
use semel_core::prepared::Preparation;
use semel_core::record::{Consumption, Judgement};
use semel_core::volume::{NewToken, Volume};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

impl Fold {
    /// Holds the folded state against every table.
    pub(super) fn compare(self, conn: &Connection, faults: &mut Faults) -> Result<()> {
        let sql = "SELECT incarnation, boot_id, version, at_ms, policy_sha256 FROM incarnations";
        let stored = list(conn, sql, |row| {
            let life = (row.get(1)?, row.get(2)?, number(row, 3)?, row.get(4)?);
            Ok((number(row, 0)?, life))
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
        let stored = list(conn, "SELECT token_sha256, generation, json FROM tokens", |row| {
            let told: (String, String) = (row.get(1)?, row.get(2)?);
            Ok((row.get::<_, [u8; 32]>(0)?, told))
        })?;
        let stored = stored.into_iter().filter_map(|(sha256, (generation, json))| {
            let token: NewToken = told(&json, faults)?;
            let must = Some(token.generation.as_str());
            let columns = [("generation", Some(generation.as_str()), must)];
            agree("token", &generation, &columns, faults);
            Some((Sha256::from_bytes(sha256), token))
        });
        let stored = stored.collect();
        differ("issued token", &self.issued, &stored, faults);
        differ("volume", &self.volumes, &volumes(conn, faults)?, faults);
        differ("run", &self.runs, &runs(conn, faults)?, faults);
        differ("verdict", &self.judgements, &judgements(conn, faults)?, faults);
        let stored = list(conn, "SELECT generation, json FROM consumptions", |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        })?;
        let stored = stored.into_iter().filter_map(|(generation, json)| {
            let consumption: Consumption = told(&json, faults)?;
            let must = Some(consumption.generation.as_str());
            let columns = [("generation", Some(generation.as_str()), must)];
            agree("consumption", &generation, &columns, faults);
            Some((consumption.generation.clone(), consumption))
        });
        let stored = stored.collect();
        differ("consumption", &self.consumptions, &stored, faults);
        differ("prepared tree", &self.prepared, &prepared(conn, faults)?, faults);
        differ("call", &self.calls, &calls(conn, faults)?, faults);
        let stored = super::approvals::rows(conn, faults)?;
        differ("approval", &self.approvals, &stored, faults);
        Ok(())
    }
}

/// Reads the trees that jobs prepared.
fn prepared(conn: &Connection, faults: &mut Faults) -> Result<BTreeMap<JobId, Preparation>> {
    let stored = list(conn, "SELECT job, pin, json FROM preparations", |row| {
        let told: (String, String) = (row.get(1)?, row.get(2)?);
        Ok((row.get::<_, String>(0)?, told))
    })?;
    let stored = stored.into_iter().filter_map(|(job, (pin, json))| {
        let preparation: Preparation = told(&json, faults)?;
        let columns = [
            ("job", Some(job.as_str()), Some(preparation.job.as_str())),
            ("pin", Some(pin.as_str()), Some(preparation.pin.as_str())),
        ];
        agree("prepared tree", &job, &columns, faults);
        Some((preparation.job.clone(), preparation))
    });
    Ok(stored.collect())
}

pub(super) fn number(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(at).map(i64::unsigned_abs)
}

pub(super) fn list<K: Ord, V>(
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
        .map_err(|e| faults.state(format!("a row: {e}")))
        .ok()
}

/// Is one column of a row: its name, what it says, and what it must say.
pub(super) type Column<'a> = (&'static str, Option<&'a str>, Option<&'a str>);

/// Holds the columns of a row against what it tells.
pub(super) fn agree(what: &str, of: &str, columns: &[Column<'_>], faults: &mut Faults) {
    let shown = |value: Option<&str>| value.map_or("nothing".to_owned(), plain);
    let wrong: Vec<String> = columns
        .iter()
        .filter(|(_, is, must)| is != must)
        .map(|(name, is, must)| format!("its {name} is {} and must be {}", shown(*is), shown(*must)))
        .collect();
    if !wrong.is_empty() {
        faults.state(format!("the row of {what} {}: {}", plain(of), wrong.join(", ")));
    }
}

/// Puts beside each column what it must say.
fn beside<'a, const N: usize>(is: &'a [String; N], must: &[(&'static str, &'a str); N]) -> [Column<'a>; N] {
    std::array::from_fn(|n| (must[n].0, Some(is[n].as_str()), Some(must[n].1)))
}

/// Shows a text that anybody may have written into a row: nothing of it moves the cursor.
fn plain(text: &str) -> String {
    text.chars().flat_map(char::escape_debug).collect()
}

/// Says in plain words which row is meant.
trait Named {
    fn named(&self) -> String;
}

impl Named for u64 {
    fn named(&self) -> String {
        self.to_string()
    }
}

impl Named for String {
    fn named(&self) -> String {
        plain(self)
    }
}

impl Named for [u8; 32] {
    fn named(&self) -> String {
        to_hex(self)
    }
}

impl Named for Sha256 {
    fn named(&self) -> String {
        self.to_string()
    }
}

impl Named for JobId {
    fn named(&self) -> String {
        self.to_string()
    }
}

impl Named for Generation {
    fn named(&self) -> String {
        self.to_string()
    }
}

impl Named for RunId {
    fn named(&self) -> String {
        self.to_string()
    }
}

impl Named for ApprovalId {
    fn named(&self) -> String {
        self.to_string()
    }
}

impl Named for Place {
    fn named(&self) -> String {
        format!("{} of {}", plain(&self.1), plain(&self.0))
    }
}

fn volumes(conn: &Connection, faults: &mut Faults) -> Result<BTreeMap<Generation, Volume>> {
    let sql = "SELECT generation, job, attempt, fencing_token, role, state, json FROM volumes";
    let rows = list(conn, sql, |row| {
        let columns: [String; 6] = [
            row.get(0)?,
            row.get(1)?,
            number(row, 2)?.to_string(),
            number(row, 3)?.to_string(),
            row.get(4)?,
            row.get(5)?,
        ];
        Ok((columns, row.get::<_, String>(6)?))
    })?;
    let mut volumes = BTreeMap::new();
    for (columns, json) in rows {
        let Some(volume) = told::<Volume>(&json, faults) else {
            continue;
        };
        let (attempt, fence) = (volume.attempt.0.to_string(), volume.fencing_token.0.to_string());
        let must = [
            ("generation", volume.generation.as_str()),
            ("job", volume.job.as_str()),
            ("attempt", &attempt),
            ("fencing_token", &fence),
            ("role", row::role_of(volume.role)),
            ("state", row::state_of(&volume)),
        ];
        agree("volume", &columns[0], &beside(&columns, &must), faults);
        volumes.insert(volume.generation.clone(), volume);
    }
    Ok(volumes)
}

fn runs(conn: &Connection, faults: &mut Faults) -> Result<BTreeMap<RunId, (u64, Run)>> {
    let rows = list(conn, "SELECT run, seq, job, over, json FROM runs", |row| {
        let over = row.get::<_, i64>(3)?.to_string();
        let columns: [String; 3] = [row.get(0)?, row.get(2)?, over];
        Ok((columns, (number(row, 1)?, row.get::<_, String>(4)?)))
    })?;
    let mut runs = BTreeMap::new();
    for (columns, (seq, json)) in rows {
        let Some(run) = told::<Run>(&json, faults) else {
            continue;
        };
        let must = [
            ("run", run.new.run.as_str()),
            ("job", run.new.job.as_str()),
            ("over", if run.end.is_some() { "1" } else { "0" }),
        ];
        agree("run", &columns[0], &beside(&columns, &must), faults);
        runs.insert(run.new.run.clone(), (seq, run));
    }
    Ok(runs)
}

fn judgements(conn: &Connection, faults: &mut Faults) -> Result<BTreeMap<Generation, (u64, Judgement)>> {
    let sql = "SELECT generation, seq, job, proposal, json FROM judgements";
    let rows = list(conn, sql, |row| {
        let proposal = to_hex(&row.get::<_, [u8; 32]>(3)?);
        let columns: [String; 3] = [row.get(0)?, row.get(2)?, proposal];
        Ok((columns, (number(row, 1)?, row.get::<_, String>(4)?)))
    })?;
    let mut judgements = BTreeMap::new();
    for (columns, (seq, json)) in rows {
        let Some(judgement) = told::<Judgement>(&json, faults) else {
            continue;
        };
        let proposal = judgement.proposal.to_string();
        let must = [
            ("generation", judgement.generation.as_str()),
            ("job", judgement.job.as_str()),
            ("proposal", &proposal),
        ];
        agree("verdict", &columns[0], &beside(&columns, &must), faults);
        judgements.insert(judgement.generation.clone(), (seq, judgement));
    }
    Ok(judgements)
}

fn calls(conn: &Connection, faults: &mut Faults) -> Result<BTreeMap<Place, Call>> {
    let sql =
        "SELECT intent_seq, outcome_seq, at_ms, scope, key, state, execution_id, generation, job_scoped,
                      aborting_seq FROM calls";
    let rows = list(conn, sql, |row| {
        let place =
            |at: usize| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.map(i64::unsigned_abs));
        let later = (place(9)?, place(1)?);
        let columns: [Option<String>; 6] = [
            row.get(3)?,
            row.get(4)?,
            row.get(5)?,
            row.get(6)?,
            row.get(7)?,
            row.get(8)?,
        ];
        Ok((row.get::<_, i64>(0)?, (later, number(row, 2)?, columns)))
    })?;
    let mut records = conn
        .prepare(select_calls!("WHERE c.intent_seq = ?1"))
        .map_err(fault("verify the calls"))?;
    let mut calls = BTreeMap::new();
    for (intent_seq, ((aborting_seq, outcome_seq), at_ms, columns)) in rows {
        let raw = records.query_row([intent_seq], row::raw_call);
        let state = match raw.map_err(fault("verify the calls")).and_then(row::fold_call) {
            Ok(call) => call.state,
            Err(e) => {
                faults.state(format!("the call of entry {intent_seq}: {e}"));
                continue;
            }
        };
        let intent = state.intent();
        let place = (row::scope(&intent.scope), intent.key.as_str().to_owned());
        let [scope, key, stands, execution, generation, job_scoped] = &columns;
        let columns = [
            ("scope", scope.as_deref(), Some(place.0.as_str())),
            ("key", key.as_deref(), Some(place.1.as_str())),
            ("state", stands.as_deref(), Some(row::state_of_call(&state))),
            (
                "execution",
                execution.as_deref(),
                Some(intent.execution_id.as_str()),
            ),
            (
                "generation",
                generation.as_deref(),
                Some(intent.generation.as_str()),
            ),
            ("job_scoped", job_scoped.as_deref(), row::job_scoped(intent)),
        ];
        agree("call", intent.execution_id.as_str(), &columns, faults);
        let row = Call {
            state,
            intent_seq: intent_seq.unsigned_abs(),
            aborting_seq,
            outcome_seq,
            at_ms,
        };
        calls.insert(place, row);
    }
    Ok(calls)
}

fn differ<K: Ord + Named, V: PartialEq>(
    what: &str,
    folded: &BTreeMap<K, V>,
    stored: &BTreeMap<K, V>,
    faults: &mut Faults,
) {
    for (key, value) in folded {
        if stored.get(key) != Some(value) {
            let key = key.named();
            faults.state(format!(
                "the stored {what} {key} does not follow from the entries"
            ));
        }
    }
    for key in stored.keys().filter(|key| !folded.contains_key(*key)) {
        let key = key.named();
        faults.state(format!("the stored {what} {key} has no entry"));
    }
}
