//! Is the journal what it says: does each entry follow the one before, and does the state follow from the entries?
//!
//! It only reads, in one snapshot; it repairs nothing.

use super::desk::Head;
use super::fold::Fold;
use super::read::{RawEntry, raw_entry};
use super::row::{self, Found};
use super::{fault, schema};
use crate::error::{Error, Result};
use crate::journal::ChainReport;
use rusqlite::Connection;
use semel_core::record::chain;
use semel_core::{Code, Refusal, Sha256};
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
    let mut found = FoundBy::of(&snapshot)?;
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
                if let Err(e) = fold.apply(next.seq, &record) {
                    faults.add(format!("entry {}: {e}", entry.seq));
                }
                if !found.matches(entry.seq, &fold.found(&record))? {
                    faults.add(format!(
                        "entry {}: it is not found by what it is about",
                        entry.seq
                    ));
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

/// Reads by what an entry is found.
struct FoundBy<'c>(rusqlite::Statement<'c>);

impl<'c> FoundBy<'c> {
    fn of(conn: &'c Connection) -> Result<Self> {
        conn.prepare("SELECT job, execution_id, key, conflict FROM records WHERE seq = ?1")
            .map(Self)
            .map_err(fault("verify the journal"))
    }

    fn matches(&mut self, seq: i64, must: &Found<'_>) -> Result<bool> {
        self.0
            .query_row([seq], |row| {
                let (job, execution, key): (Option<String>, Option<String>, Option<String>) =
                    (row.get(0)?, row.get(1)?, row.get(2)?);
                let is = Found {
                    job: job.as_deref(),
                    execution: execution.as_deref(),
                    key: key.as_deref(),
                    conflict: row.get(3)?,
                };
                Ok(is == *must)
            })
            .map_err(fault("verify the journal"))
    }
}

/// Collects what is wrong.
#[derive(Default)]
pub(super) struct Faults {
    told: Vec<String>,
    more: u64,
}

impl Faults {
    pub(super) fn add(&mut self, fault: String) {
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
