//! Torn and rotten files: the journal is refused, or says so, or is a prefix of what was written.

#![expect(clippy::disallowed_methods, reason = "a test damages files on purpose")]

use super::{crash, open};
use crate::Journal;
use crate::journal::{LogFilter, LogLine};
use std::path::{Path, PathBuf};

/// The files that a killed writer left, as bytes.
struct Left {
    db: Vec<u8>,
    wal: Vec<u8>,
    log: Vec<LogLine>,
}

fn left(answers: usize) -> Left {
    let dir = tempfile::tempdir().unwrap();
    crash::killed_after(answers, "write", dir.path());
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    let (db, wal) = (read("journal.db"), read("journal.db-wal"));
    let log = open(dir.path()).unwrap().log(LogFilter::default()).unwrap();
    Left { db, wal, log }
}

/// Says how a damaged copy was met.
#[derive(Debug, PartialEq, Eq)]
enum Met {
    /// It does not open.
    Refused,
    /// It opens, and tells what is wrong with it.
    Told,
    /// It opens with so many of the entries.
    Prefix(usize),
}

fn meet(left: &Left, db: &[u8], wal: &[u8], what: &str) -> Met {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("journal.db"), db).unwrap();
    std::fs::write(dir.path().join("journal.db-wal"), wal).unwrap();
    let Ok(journal) = open(dir.path()) else {
        return Met::Refused;
    };
    match journal.check() {
        Err(_) => return Met::Told,
        Ok(report) if !report.faults.is_empty() => return Met::Told,
        Ok(_) => {}
    }
    let mut log = journal.log(LogFilter::default()).unwrap();
    // The newest entry is of this very opening, the one before the last of the first.
    log.pop();
    assert!(log.len() < left.log.len(), "{what}: {} entries", log.len());
    assert_eq!(log[..], left.log[..log.len()], "{what}: another story");
    Met::Prefix(log.len())
}

fn points(len: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |n| n * len / count)
}

#[test]
fn a_cut_log_is_a_prefix() {
    let left = left(150);
    let mut seen = Vec::new();
    for at in points(left.wal.len(), 60).chain([left.wal.len()]) {
        match meet(&left, &left.db, &left.wal[..at], &format!("cut at {at}")) {
            Met::Prefix(entries) => seen.push(entries),
            other => panic!("cut at {at}: {other:?}"),
        }
    }
    assert!(seen.is_sorted(), "a longer log has fewer entries: {seen:?}");
    assert_eq!(
        seen.last(),
        Some(&(left.log.len() - 1)),
        "the whole log has every entry"
    );
}

#[test]
fn a_rotten_log_is_a_prefix() {
    let left = left(150);
    for at in points(left.wal.len(), 60) {
        let mut wal = left.wal.clone();
        wal[at] ^= 0x40;
        let met = meet(&left, &left.db, &wal, &format!("byte {at}"));
        assert!(matches!(met, Met::Prefix(_)), "byte {at}: {met:?}");
    }
}

#[test]
fn a_cut_database_is_refused_or_told() {
    let left = left(150);
    // A database that holds everything, without a log.
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("journal.db");
    std::fs::write(&path, &left.db).unwrap();
    std::fs::write(dir.path().join("journal.db-wal"), &left.wal).unwrap();
    checkpointed(dir.path());
    let db = std::fs::read(&path).unwrap();
    for at in points(db.len(), 40).skip(1) {
        let met = meet(&left, &db[..at], &[], &format!("cut at {at}"));
        assert!(matches!(met, Met::Refused | Met::Told), "cut at {at}: {met:?}");
    }
    let mut seen = 0;
    for at in points(db.len(), 120) {
        let mut db = db.clone();
        db[at] ^= 0x40;
        // What is not seen lies in room that no row uses: `meet` holds every entry against the true one.
        seen += usize::from(!matches!(
            meet(&left, &db, &[], &format!("byte {at}")),
            Met::Prefix(_)
        ));
    }
    assert!(seen > 30, "only {seen} of 120 flipped bytes were seen");
}

fn checkpointed(dir: &Path) {
    let conn = rusqlite::Connection::open(dir.join("journal.db")).unwrap();
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
}
