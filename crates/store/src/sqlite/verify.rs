//! Is the journal what it says: does each entry follow the one before, and does the state follow from the entries?
//!
//! It only reads, in one snapshot; it repairs nothing.

use super::desk::Head;
use super::read::{self, RawEntry, raw_entry};
use super::row::{self, select_calls};
use super::{fault, schema};
use crate::error::{Error, Result};
use crate::journal::ChainReport;
use rusqlite::Connection;
use semel_core::call::{self, CallState, Outcome};
use semel_core::ids::{ExecutionId, Generation, RunId};
use semel_core::pipeline::{self, Run};
use semel_core::record::{Consumption, IllegalRecord, Judgement, Record, chain};
use semel_core::volume::{self, Volume};
use semel_core::{Code, Refusal, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// How many of the newest entries are looked at whenever the journal is opened.
const TAIL: i64 = 1024;

/// How many faults are told; a broken journal has as many as entries.
const FAULTS: usize = 100;

/// Says how deep a verification goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// The chain, and the state that follows from it.
    Chain,
    /// The database's own structures too.
    Structures,
}

/// Finds the end of the chain, and holds the newest entries against each other.
pub(super) fn tail(conn: &Connection) -> Result<Head> {
    let sql = "SELECT seq, at_ms, version, body, prev, hash FROM records
               WHERE seq > (SELECT coalesce(max(seq), 0) FROM records) - ?1 ORDER BY seq";
    let entries = conn
        .prepare(sql)
        .and_then(|mut s| {
            s.query_map([TAIL], raw_entry)?
                .collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(fault("read the newest entries"))?;
    let mut head = match entries.first() {
        None => return Ok(Head::START),
        Some(first) if first.seq == 1 => Head::START,
        Some(first) => Head {
            seq: first.seq.unsigned_abs() - 1,
            hash: Sha256::from_bytes(first.prev),
        },
    };
    for entry in &entries {
        let (next, fault) = link(head, entry);
        if let Some(fault) = fault {
            return Err(broken(fault));
        }
        row::decode_record(entry.version, &entry.body)?;
        head = next;
    }
    Ok(head)
}

fn broken(why: String) -> Error {
    Refusal::new(Code::StoreUnavailable, why)
        .reason("chain_broken")
        .into()
}

/// Holds an entry against the one before.
fn link(head: Head, entry: &RawEntry) -> (Head, Option<String>) {
    let seq = entry.seq.unsigned_abs();
    let hash = chain(
        &Sha256::from_bytes(entry.prev),
        seq,
        entry.version,
        entry.body.as_bytes(),
    );
    let fault = if seq != head.seq + 1 {
        Some(format!("entry {seq} follows entry {}: there is a gap", head.seq))
    } else if entry.prev != *head.hash.as_bytes() {
        Some(format!("entry {seq} does not name the one before it"))
    } else if entry.hash != *hash.as_bytes() {
        Some(format!("entry {seq} was changed: its digest is another"))
    } else {
        None
    };
    let head = Head {
        seq,
        hash: Sha256::from_bytes(entry.hash),
    };
    (head, fault)
}

/// Reads the whole journal in one snapshot.
pub(super) fn verify(conn: &Connection, depth: Depth) -> Result<ChainReport> {
    let doing = "verify the journal";
    let snapshot = conn.unchecked_transaction().map_err(fault(doing))?;
    let mut faults = Faults::default();
    if depth == Depth::Structures {
        let mut statement = snapshot
            .prepare("PRAGMA integrity_check(20)")
            .map_err(fault(doing))?;
        let words = statement
            .query_map([], |row| row.get::<_, String>(0))
            .and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>)
            .map_err(fault(doing))?;
        for word in words.into_iter().filter(|word| word != "ok") {
            faults.add(format!("the database's structures: {word}"));
        }
    }
    let mut fold = Fold::default();
    let mut head = Head::START;
    let mut entries = 0;
    let mut statement = snapshot
        .prepare("SELECT seq, at_ms, version, body, prev, hash FROM records ORDER BY seq")
        .map_err(fault(doing))?;
    for entry in statement.query_map([], raw_entry).map_err(fault(doing))? {
        let entry = entry.map_err(fault(doing))?;
        let (next, broken) = link(head, &entry);
        if let Some(broken) = broken {
            faults.add(broken);
        }
        match row::decode_record(entry.version, &entry.body) {
            Err(e) => faults.add(format!("entry {}: {e}", entry.seq)),
            Ok(record) => {
                if record.at().0 != entry.at_ms.unsigned_abs() {
                    faults.add(format!("entry {}: its time is not its record's", entry.seq));
                }
                if let Err(e) = fold.apply(&record) {
                    faults.add(format!("entry {}: {e}", entry.seq));
                }
            }
        }
        head = next;
        entries += 1;
    }
    fold.compare(&snapshot, &mut faults)?;
    Ok(ChainReport {
        entries,
        head: head.hash,
        faults: faults.told(),
    })
}

#[derive(Default)]
struct Faults {
    told: Vec<String>,
    more: u64,
}

impl Faults {
    fn add(&mut self, fault: String) {
        if self.told.len() < FAULTS {
            self.told.push(fault);
        } else {
            self.more += 1;
        }
    }

    fn told(mut self) -> Vec<String> {
        if self.more > 0 {
            self.told.push(format!("and {} more", self.more));
        }
        self.told
    }
}

/// Is the state that follows from the entries.
#[derive(Default)]
struct Fold {
    incarnation: u64,
    fence: u64,
    attempts: BTreeMap<String, u32>,
    tokens: BTreeMap<Sha256, Generation>,
    volumes: BTreeMap<Generation, Volume>,
    calls: BTreeMap<(String, String), CallState>,
    keys: BTreeMap<ExecutionId, (String, String)>,
    done: BTreeSet<(String, String)>,
    runs: BTreeMap<RunId, Run>,
    judgements: BTreeMap<Generation, Judgement>,
    consumptions: BTreeMap<Generation, Consumption>,
}

impl Fold {
    fn apply(&mut self, record: &Record) -> std::result::Result<(), IllegalRecord> {
        let illegal = |what: &str| Err(IllegalRecord(what.to_owned()));
        match record {
            Record::DaemonStarted { incarnation, .. } => {
                if incarnation.0 != self.incarnation + 1 {
                    return illegal("the incarnations do not count up");
                }
                self.incarnation = incarnation.0;
                Ok(())
            }
            Record::VolumeOpened {
                new,
                attempt,
                fencing_token,
            } => {
                let last = self.attempts.entry(new.job.as_str().to_owned()).or_default();
                if attempt.0 != *last + 1 || fencing_token.0 != self.fence + 1 {
                    return illegal("the attempts or fencing tokens do not count up");
                }
                *last = attempt.0;
                self.fence = fencing_token.0;
                if self
                    .tokens
                    .insert(new.token_sha256, new.generation.clone())
                    .is_some()
                {
                    return illegal("a bearer token is given out twice");
                }
                self.volume(record, &new.generation)
            }
            Record::VolumeReady { generation, .. }
            | Record::VolumeEnded { generation, .. }
            | Record::VolumeDestroyed { generation, .. } => self.volume(record, generation),
            Record::CallIntended(intent) => {
                let place = (row::scope(&intent.scope), intent.key.as_str().to_owned());
                let used = self.keys.insert(intent.execution_id.clone(), place.clone());
                if used.is_some() {
                    return illegal("an execution id is used twice");
                }
                self.call(record, place)
            }
            Record::CallReceipted { execution_id, .. }
            | Record::CallFreed { execution_id, .. }
            | Record::CallUnknown { execution_id, .. } => match self.keys.get(execution_id) {
                None => illegal("the end of a call that is not known"),
                Some(place) => self.call(record, place.clone()),
            },
            Record::RunStarted(new) => self.run(record, &new.run),
            Record::RunStaged { run, .. } | Record::RunEnded { run, .. } => self.run(record, run),
            Record::AttemptJudged(judgement) => {
                let known = self
                    .judgements
                    .insert(judgement.generation.clone(), (**judgement).clone());
                if known.is_some() {
                    illegal("a generation is judged twice")
                } else {
                    Ok(())
                }
            }
            Record::CertificateConsumed(consumption) => {
                let known = self
                    .consumptions
                    .insert(consumption.generation.clone(), consumption.clone());
                if known.is_some() {
                    illegal("a certificate is consumed twice")
                } else {
                    Ok(())
                }
            }
            Record::CallNoted(_) | Record::WorktreeRestored(_) => Ok(()),
        }
    }

    fn volume(&mut self, record: &Record, generation: &Generation) -> std::result::Result<(), IllegalRecord> {
        let prior = self.volumes.get(generation).cloned();
        if let Some(next) = volume::apply(prior, record)? {
            self.volumes.insert(generation.clone(), next);
        }
        Ok(())
    }

    fn call(&mut self, record: &Record, place: (String, String)) -> std::result::Result<(), IllegalRecord> {
        let next = call::apply(self.calls.get(&place).cloned(), record)?;
        if let Record::CallReceipted { receipt, .. } = record
            && matches!(receipt.outcome, Outcome::Done(_))
            && !self.done.insert(place.clone())
        {
            return Err(IllegalRecord(format!("the key {} has two effects", place.1)));
        }
        match next {
            Some(next) => self.calls.insert(place, next),
            None => self.calls.remove(&place),
        };
        Ok(())
    }

    fn run(&mut self, record: &Record, run: &RunId) -> std::result::Result<(), IllegalRecord> {
        if let Some(next) = pipeline::apply(self.runs.get(run).cloned(), record)? {
            self.runs.insert(run.clone(), next);
        }
        Ok(())
    }

    /// Holds the folded state against every table.
    fn compare(self, conn: &Connection, faults: &mut Faults) -> Result<()> {
        if read::status(conn)?.incarnation.0 != self.incarnation {
            faults.add("the table of incarnations does not follow from the entries".to_owned());
        }
        let mut leases = BTreeMap::new();
        let mut volumes = BTreeMap::new();
        for (token, volume) in rows::<Volume>(conn, "SELECT lower(hex(token_sha256)), json FROM volumes")? {
            leases.insert(token, volume.generation.clone());
            volumes.insert(volume.generation.clone(), volume);
        }
        let tokens = self.tokens.into_iter().map(|(token, of)| (token.to_string(), of));
        differ("token", &tokens.collect(), &leases, faults);
        differ("volume", &self.volumes, &volumes, faults);
        let runs = rows::<Run>(conn, "SELECT run, json FROM runs")?;
        let runs = runs
            .into_iter()
            .map(|(_, run)| (run.new.run.clone(), run))
            .collect();
        differ("run", &self.runs, &runs, faults);
        let judged = rows::<Judgement>(conn, "SELECT generation, json FROM judgements")?;
        let judged = judged
            .into_iter()
            .map(|(_, j)| (j.generation.clone(), j))
            .collect();
        differ("judgement", &self.judgements, &judged, faults);
        let consumed = rows::<Consumption>(conn, "SELECT generation, json FROM consumptions")?;
        let consumed = consumed
            .into_iter()
            .map(|(_, c)| (c.generation.clone(), c))
            .collect();
        differ("consumption", &self.consumptions, &consumed, faults);
        let calls = calls(conn, faults)?;
        differ("call", &self.calls, &calls, faults);
        Ok(())
    }
}

fn rows<T: serde::de::DeserializeOwned>(conn: &Connection, sql: &str) -> Result<Vec<(String, T)>> {
    let texts = conn
        .prepare(sql)
        .and_then(|mut s| {
            s.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?
                .collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(fault("verify the journal"))?;
    texts
        .into_iter()
        .map(|(key, json)| Ok((key, row::decode(&json)?)))
        .collect()
}

fn calls(conn: &Connection, faults: &mut Faults) -> Result<BTreeMap<(String, String), CallState>> {
    let doing = "verify the calls";
    let mut calls = BTreeMap::new();
    let mut statement = conn
        .prepare(select_calls!("ORDER BY c.intent_seq"))
        .map_err(fault(doing))?;
    let mut words = conn
        .prepare(
            "SELECT scope, key, state, execution_id, generation, job_scoped FROM calls WHERE intent_seq = ?1",
        )
        .map_err(fault(doing))?;
    for raw in statement.query_map([], row::raw_call).map_err(fault(doing))? {
        let call = match row::fold_call(raw.map_err(fault(doing))?) {
            Ok(call) => call,
            Err(e) => {
                faults.add(format!("a call: {e}"));
                continue;
            }
        };
        let said: [Option<String>; 6] = words
            .query_row([call.intent_seq], |row| {
                Ok([
                    row.get(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get(3)?,
                    row.get(4)?,
                    row.get(5)?,
                ])
            })
            .map_err(fault(doing))?;
        let intent = call.state.intent();
        let place = (row::scope(&intent.scope), intent.key.as_str().to_owned());
        let follows = [
            Some(place.0.clone()),
            Some(place.1.clone()),
            Some(row::state_of_call(&call.state).to_owned()),
            Some(intent.execution_id.as_str().to_owned()),
            Some(intent.generation.as_str().to_owned()),
            intent
                .scope
                .generation
                .is_none()
                .then(|| intent.scope.job.as_str().to_owned()),
        ];
        if said != follows {
            faults.add(format!(
                "the row of call {} does not follow from its records",
                intent.execution_id
            ));
        }
        calls.insert(place, call.state);
    }
    Ok(calls)
}

fn differ<K: Ord + std::fmt::Debug, V: PartialEq>(
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

/// Copies the journal to a new file of the same mode, and syncs it.
pub(super) fn backup(conn: &Connection, source: &Path, path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(
            Refusal::new(Code::PreconditionFailed, "the file of the backup exists already")
                .name(path.display().to_string())
                .into(),
        );
    }
    let target = format!("{}?modeof={}", schema::uri(path), schema::escaped(source));
    conn.execute("VACUUM INTO ?1", [target])
        .map_err(fault("copy the journal"))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    std::fs::File::open(dir.unwrap_or(Path::new(".")))
        .and_then(|dir| dir.sync_all())
        .map_err(|e| {
            Refusal::new(
                Code::IoFailed,
                format!("the backup's directory cannot be synced ({e})"),
            )
            .into()
        })
}
