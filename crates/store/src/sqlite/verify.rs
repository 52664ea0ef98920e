//! Is the journal what it says: does each entry follow the one before, and does the state follow from the entries?
//!
//! It only reads, in one snapshot; it repairs nothing. It does *not* verify signatures: whoever asks vouches for the
//! checkpoints.

use super::desk::Head;
use super::fold::{Fold, Wrong};
use super::read::{RawEntry, raw_entry};
use super::row::{self, Found};
use super::{fault, schema};
use crate::error::{Error, Result};
use crate::journal::{ChainReport, Depth};
use rusqlite::Connection;
use rustix::fs::{Access, AtFlags, CWD};
use semel_core::audit::{Fault, FaultKind};
use semel_core::checkpoint::Checkpoint;
use semel_core::record::chain;
use semel_core::{Code, Refusal, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// How many of the newest entries are looked at whenever the journal is opened.
const TAIL: i64 = 1024;

/// How many faults are told; a broken journal has as many as entries.
const FAULTS: usize = 100;

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
            return Err(broken(&fault));
        }
        row::decode_record(entry.version, &entry.body)?;
        head = next;
    }
    Ok(head)
}

fn broken(fault: &Fault) -> Error {
    Refusal::new(Code::StoreUnavailable, fault.to_string())
        .reason("chain_broken")
        .into()
}

/// Holds an entry against the one before.
fn link(head: Head, entry: &RawEntry) -> (Head, Option<Fault>) {
    let seq = entry.seq.unsigned_abs();
    let hash = chain(
        &Sha256::from_bytes(entry.prev),
        seq,
        entry.version,
        entry.body.as_bytes(),
    );
    let fault = if seq != head.seq + 1 {
        let why = format!("it follows entry {}", head.seq);
        Some(Fault::at(seq, FaultKind::Gap, why))
    } else if entry.prev != *head.hash.as_bytes() {
        let why = "it does not name the digest of the one before";
        Some(Fault::at(seq, FaultKind::Unlinked, why))
    } else if entry.hash != *hash.as_bytes() {
        let why = "its digest is not that of its content";
        Some(Fault::at(seq, FaultKind::Changed, why))
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
pub(super) fn verify(conn: &Connection, held: &[Checkpoint], depth: Depth) -> Result<ChainReport> {
    let snapshot = conn.unchecked_transaction().map_err(fault(DOING))?;
    let mut faults = Faults::default();
    if depth == Depth::Structures {
        structures(&snapshot, &mut faults)?;
    }
    for other in schema::differences(&snapshot)? {
        faults.add(Fault::of(FaultKind::Schema, other));
    }
    let sizes = held.iter().map(|checkpoint| checkpoint.size).collect();
    let Walked {
        fold,
        head,
        entries,
        digests,
    } = walk(&snapshot, &sizes, &mut faults)?;
    fold.compare(&snapshot, &mut faults)?;
    let against = held
        .iter()
        .filter_map(|held| held.against(digests.get(&1), digests.get(&held.size), head.seq));
    let (told, more) = faults.told();
    Ok(ChainReport {
        entries,
        head: head.hash,
        faults: against.chain(told).collect(),
        more,
    })
}

/// Verifies a copy of a journal, such as a backup, that no daemon writes; nothing is written beside it where it has
/// no write-ahead log of its own.
///
/// # Errors
/// `not_found`; `store_unavailable` where it is not a journal, or of another build.
pub fn audit_file(path: &Path, held: &[Checkpoint]) -> Result<ChainReport> {
    let conn = schema::open_copy(path)?;
    schema::known(&conn)?;
    verify(&conn, held, Depth::Structures)
}

const DOING: &str = "verify the journal";

fn structures(conn: &Connection, faults: &mut Faults) -> Result<()> {
    let mut statement = conn.prepare("PRAGMA integrity_check(20)").map_err(fault(DOING))?;
    let words = statement
        .query_map([], |row| row.get::<_, String>(0))
        .and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>)
        .map_err(fault(DOING))?;
    for word in words.into_iter().filter(|word| word != "ok") {
        faults.add(Fault::of(FaultKind::Structure, word));
    }
    Ok(())
}

/// Is what a walk over all entries leaves.
struct Walked {
    fold: Fold,
    head: Head,
    entries: u64,
    /// The digests at the places that checkpoints are of, and that of the first entry.
    digests: BTreeMap<u64, Sha256>,
}

fn walk(conn: &Connection, sizes: &BTreeSet<u64>, faults: &mut Faults) -> Result<Walked> {
    let mut walked = Walked {
        fold: Fold::default(),
        head: Head::START,
        entries: 0,
        digests: BTreeMap::new(),
    };
    let mut found = FoundBy::of(conn)?;
    let mut statement = conn
        .prepare("SELECT seq, at_ms, version, body, prev, hash FROM records ORDER BY seq")
        .map_err(fault(DOING))?;
    for entry in statement.query_map([], raw_entry).map_err(fault(DOING))? {
        let entry = entry.map_err(fault(DOING))?;
        let (next, broken) = link(walked.head, &entry);
        if let Some(broken) = broken {
            faults.add(broken);
        }
        let seq = next.seq;
        match row::decode_record(entry.version, &entry.body) {
            Err(e) => faults.add(Fault::at(seq, FaultKind::Unreadable, e.to_string())),
            Ok(record) => {
                if record.at().0 != entry.at_ms.unsigned_abs() {
                    faults.add(Fault::at(
                        seq,
                        FaultKind::Misdated,
                        "its time is not its record's",
                    ));
                }
                match walked.fold.apply(seq, &record) {
                    Ok(()) if found.matches(entry.seq, &walked.fold.found(&record))? => {}
                    Ok(()) => {
                        let why = "it is not found by what it is about";
                        faults.add(Fault::at(seq, FaultKind::Misfiled, why));
                    }
                    Err(Wrong::Illegal(why)) => faults.add(Fault::at(seq, FaultKind::Illegal, why)),
                    Err(Wrong::SecondEffect(why)) => {
                        faults.add(Fault::at(seq, FaultKind::SecondEffect, why));
                    }
                }
            }
        }
        if seq == 1 || sizes.contains(&seq) {
            walked.digests.insert(seq, next.hash);
        }
        walked.head = next;
        walked.entries += 1;
    }
    Ok(walked)
}

/// Reads by what an entry is found.
struct FoundBy<'c>(rusqlite::Statement<'c>);

impl<'c> FoundBy<'c> {
    fn of(conn: &'c Connection) -> Result<Self> {
        conn.prepare("SELECT job, execution_id, key, conflict FROM records WHERE seq = ?1")
            .map(Self)
            .map_err(fault(DOING))
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
            .map_err(fault(DOING))
    }
}

/// Collects what is wrong.
#[derive(Default)]
pub(super) struct Faults {
    told: Vec<Fault>,
    more: u64,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        if self.told.len() < FAULTS {
            self.told.push(fault);
        } else {
            self.more += 1;
        }
    }

    /// Adds what the tables say wrongly.
    pub(super) fn state(&mut self, why: String) {
        self.add(Fault::of(FaultKind::State, why));
    }

    fn told(self) -> (Vec<Fault>, u64) {
        (self.told, self.more)
    }
}

/// Copies the journal to a new file of the same mode, and syncs it.
pub(super) fn backup(conn: &Connection, source: &Path, path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(
            Refusal::new(Code::PreconditionFailed, "the file of the backup exists already")
                .reason("exists")
                .name(path.display().to_string())
                .into(),
        );
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    can_hold(dir)?;
    let target = format!("{}?modeof={}", schema::uri(path), schema::escaped(source));
    conn.execute("VACUUM INTO ?1", [target])
        .map_err(fault("copy the journal"))?;
    std::fs::File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|e| {
            Refusal::new(
                Code::IoFailed,
                format!("the backup's directory cannot be synced ({e})"),
            )
            .into()
        })
}

/// Refuses a directory that takes no new file: SQLite would only say that it cannot open one.
fn can_hold(dir: &Path) -> Result<()> {
    let (code, why) = match std::fs::metadata(dir) {
        Ok(facts) if facts.is_dir() => {
            let ways = Access::WRITE_OK | Access::EXEC_OK;
            match rustix::fs::accessat(CWD, dir, ways, AtFlags::EACCESS) {
                Ok(()) => return Ok(()),
                Err(e) => (
                    Code::IoFailed,
                    format!("the backup's directory takes no file ({e})"),
                ),
            }
        }
        Ok(_) => (Code::BadInput, "the backup's directory is none".to_owned()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => (
            Code::NotFound,
            "the directory of the backup does not exist".to_owned(),
        ),
        Err(e) => (
            Code::IoFailed,
            format!("the backup's directory cannot be looked at ({e})"),
        ),
    };
    Err(Refusal::new(code, why).name(dir.display().to_string()).into())
}
