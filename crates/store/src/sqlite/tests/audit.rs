//! Whoever has the file, but no key: what they can do to it is found, by a checkpoint held elsewhere if by nothing else.

#![expect(clippy::disallowed_methods, reason = "a test damages files on purpose")]

use super::tamper::{edit, faults, filled};
use super::{Fresh, fresh, open};
use crate::conformance::sample;
use crate::journal::{Depth, LogFilter};
use crate::sqlite::audit_file;
use crate::{Began, Journal};
use rusqlite::Connection;
use semel_core::Sha256;
use semel_core::audit::{Fault, FaultKind};
use semel_core::call::Intent;
use semel_core::checkpoint::Checkpoint;
use semel_core::ids::ExecutionId;
use semel_core::record::{RECORD_VERSION, Record, chain};
use std::path::Path;

/// Chains every entry anew, as somebody would who can compute digests but sign nothing.
fn rechain(dir: &Path) {
    let conn = Connection::open(dir.join("journal.db")).unwrap();
    let rows: Vec<(i64, u16, String)> = conn
        .prepare("SELECT seq, version, body FROM records ORDER BY seq")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    drop(conn);
    let mut prev = Sha256::from_bytes([0; 32]);
    let mut sql = String::new();
    for (seq, version, body) in rows {
        let hash = chain(&prev, seq.unsigned_abs(), version, body.as_bytes());
        sql.push_str(&format!(
            "UPDATE records SET prev = x'{prev}', hash = x'{hash}' WHERE seq = {seq};"
        ));
        prev = hash;
    }
    edit(dir, &sql);
}

/// Adds entries behind the last one, as the writer would, were it allowed to.
fn forge(dir: &Path, records: &[(Record, &Intent)]) -> u64 {
    let conn = Connection::open(dir.join("journal.db")).unwrap();
    let (mut seq, mut prev): (i64, [u8; 32]) = conn
        .query_row(
            "SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    for (record, of) in records {
        seq += 1;
        let body = serde_json::to_string(record).unwrap();
        let hash = chain(
            &Sha256::from_bytes(prev),
            seq.unsigned_abs(),
            RECORD_VERSION,
            body.as_bytes(),
        );
        conn.execute(
            "INSERT INTO records (seq, at_ms, version, body, prev, hash, job, execution_id, key, conflict)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0)",
            (
                seq,
                i64::try_from(record.at().0).unwrap(),
                RECORD_VERSION,
                body,
                prev,
                *hash.as_bytes(),
                of.scope.job.as_str(),
                of.execution_id.as_str(),
                of.key.as_str(),
            ),
        )
        .unwrap();
        prev = *hash.as_bytes();
    }
    seq.unsigned_abs()
}

fn noted(journal: &dyn Journal, many: u64) {
    let volume = sample::draft(journal, "job-n").unwrap();
    let intent = sample::intent(&volume, "k", "a").unwrap();
    for _ in 0..many {
        journal.note(sample::conflict(&intent)).unwrap();
    }
}

fn named(found: &[Fault]) -> Vec<(FaultKind, Option<u64>)> {
    found.iter().map(|fault| (fault.kind, fault.seq)).collect()
}

#[test]
fn a_head_is_what_a_verification_finds() {
    let Fresh(journal, dir) = fresh();
    noted(&journal, 5);
    let head = journal.head().unwrap();
    let report = journal.audit(vec![head.clone()], Depth::Structures).unwrap();
    assert_eq!(
        (report.entries, report.head, report.faults),
        (head.size, head.head, vec![])
    );
    let first = &journal.log(LogFilter::default()).unwrap()[0].entry;
    assert_eq!(first.hash, head.first);
    drop(journal);
    assert_eq!(faults(dir.path(), &[head]), vec![]);
}

/// An edit that no rule of the records forbids, with every digest computed anew: the file alone does not tell.
#[test]
fn a_rewritten_chain_is_found_by_any_held_checkpoint() {
    let Fresh(journal, dir) = fresh();
    noted(&journal, 8);
    let early = journal.head().unwrap();
    noted_again(&journal);
    let late = journal.head().unwrap();
    drop(journal);
    let notes = "kind\":\"call_noted";
    let sql = format!(
        "UPDATE records SET body = replace(body, 'body_mismatch', 'path_mismatch') WHERE seq = 5 AND body LIKE '%{notes}%'"
    );
    edit(dir.path(), &sql);
    assert_eq!(named(&faults(dir.path(), &[])), [(FaultKind::Changed, Some(5))]);
    rechain(dir.path());
    assert_eq!(
        faults(dir.path(), &[]),
        vec![],
        "without a checkpoint it cannot be told"
    );
    for held in [&early, &late] {
        let found = faults(dir.path(), std::slice::from_ref(held));
        assert_eq!(named(&found), [(FaultKind::Rewritten, Some(held.size))]);
    }
    // What was rewritten later than a checkpoint, that checkpoint does not see.
    let before = Checkpoint {
        size: 4,
        head: hash_at(dir.path(), 4),
        ..early
    };
    assert_eq!(faults(dir.path(), &[before]), vec![]);
}

fn noted_again(journal: &dyn Journal) {
    let volume = sample::draft(journal, "job-m").unwrap();
    let intent = sample::intent(&volume, "k", "a").unwrap();
    journal.note(sample::conflict(&intent)).unwrap();
}

fn hash_at(dir: &Path, seq: u64) -> Sha256 {
    let conn = Connection::open(dir.join("journal.db")).unwrap();
    let sql = format!("SELECT hash FROM records WHERE seq = {seq}");
    Sha256::from_bytes(conn.query_row(&sql, [], |row| row.get(0)).unwrap())
}

#[test]
fn a_log_rewritten_from_its_first_entry_is_another() {
    let Fresh(journal, dir) = fresh();
    noted(&journal, 3);
    let held = journal.head().unwrap();
    drop(journal);
    edit(
        dir.path(),
        "UPDATE records SET body = replace(body, '\"0.1.0\"', '\"0.1.1\"') WHERE seq = 1;
         UPDATE incarnations SET version = '0.1.1'",
    );
    rechain(dir.path());
    assert_eq!(faults(dir.path(), &[]), vec![]);
    assert_eq!(
        named(&faults(dir.path(), &[held])),
        [(FaultKind::OtherLog, Some(1))]
    );
}

/// An older backup put in place of the journal, and lived on from: both are whole, and neither is what was signed.
#[test]
fn a_cut_log_and_another_life_are_found_by_a_held_checkpoint() {
    let Fresh(journal, dir) = fresh();
    noted(&journal, 3);
    let other = tempfile::tempdir().unwrap();
    let copy = other.path().join("journal.db");
    journal.backup(copy.to_str().unwrap().to_owned()).unwrap();
    let at_backup = journal.head().unwrap();
    noted_again(&journal);
    let held = journal.head().unwrap();
    assert!(held.size > at_backup.size);
    drop((journal, dir));
    let both = [at_backup.clone(), held.clone()];
    assert_eq!(faults(other.path(), &[]), vec![]);
    let cut = faults(other.path(), &both);
    assert_eq!(named(&cut), [(FaultKind::Truncated, Some(at_backup.size + 1))]);
    // Nothing is made beside a copy that is only looked at.
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 1);
    let lived = open(other.path()).unwrap();
    noted_again(&lived);
    noted_again_as(&lived, "job-o");
    drop(lived);
    assert_eq!(
        named(&faults(other.path(), &both)),
        [(FaultKind::Rewritten, Some(held.size))]
    );
}

fn noted_again_as(journal: &dyn Journal, job: &str) {
    sample::draft(journal, job).unwrap();
}

/// Drops the last entries, and whatever the tables say of them.
#[test]
fn a_tail_that_is_cut_with_its_rows_is_found_by_a_held_checkpoint() {
    let Fresh(journal, dir) = fresh();
    noted(&journal, 4);
    let held = journal.head().unwrap();
    drop(journal);
    let sql = format!("DELETE FROM records WHERE seq > {}", held.size - 2);
    edit(dir.path(), &sql);
    assert_eq!(
        faults(dir.path(), &[]),
        vec![],
        "notes leave no row that would miss them"
    );
    assert_eq!(
        named(&faults(dir.path(), std::slice::from_ref(&held))),
        [(FaultKind::Truncated, Some(held.size - 1))]
    );
}

#[test]
fn two_effects_of_one_key_are_found_by_name() {
    let Fresh(journal, dir) = fresh();
    let volume = sample::draft(&journal, "job-a").unwrap();
    let first = sample::intent(&volume, "pay", "a").unwrap();
    assert_eq!(journal.begin(first.clone()).unwrap(), Began::Began);
    journal
        .finish(first.execution_id.clone(), sample::receipt(&first))
        .unwrap();
    // Freed, and begun again: one effect.
    let freed = sample::intent(&volume, "freed", "a").unwrap();
    journal.begin(freed.clone()).unwrap();
    journal
        .free(freed.execution_id, "never".to_owned(), sample::NOW)
        .unwrap();
    let again = sample::intent(&volume, "freed", "a").unwrap();
    journal.begin(again.clone()).unwrap();
    journal
        .finish(again.execution_id.clone(), sample::receipt(&again))
        .unwrap();
    let held = journal.head().unwrap();
    drop(journal);
    assert_eq!(faults(dir.path(), &[]), vec![]);
    let second = Intent {
        execution_id: ExecutionId::mint(sample::seed()),
        ..first.clone()
    };
    let receipt = Record::CallReceipted {
        execution_id: second.execution_id.clone(),
        receipt: sample::receipt(&second),
    };
    let last = forge(
        dir.path(),
        &[
            (Record::CallIntended(Box::new(second.clone())), &second),
            (receipt, &second),
        ],
    );
    let found = faults(dir.path(), &[held]);
    assert_eq!(
        named(&found),
        [
            (FaultKind::Illegal, Some(last - 1)),
            (FaultKind::SecondEffect, Some(last))
        ]
    );
    let ids = [first.execution_id.as_str(), second.execution_id.as_str(), "pay"];
    assert!(ids.iter().all(|id| found[1].why.contains(id)), "{}", found[1]);
    // The row may say the second one as well.
    edit(
        dir.path(),
        &format!(
            "UPDATE calls SET intent_seq = {}, outcome_seq = {last}, execution_id = '{}' WHERE key = 'pay'",
            last - 1,
            second.execution_id
        ),
    );
    assert!(named(&faults(dir.path(), &[])).contains(&(FaultKind::SecondEffect, Some(last))));
}

/// Every byte of an entry, as it lies in the file: none can be changed unseen.
#[test]
fn every_byte_of_an_entry_counts() {
    let dir = filled();
    let path = dir.path().join("journal.db");
    let db = std::fs::read(&path).unwrap();
    let conn = Connection::open(&path).unwrap();
    let (body, hash): (String, [u8; 32]) = conn
        .query_row(
            "SELECT body, hash FROM records WHERE key = 'freed' ORDER BY seq DESC LIMIT 1",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    drop(conn);
    let place = |from: usize, what: &[u8]| {
        let after = db[from..].windows(what.len());
        from + after.into_iter().position(|window| window == what).unwrap()
    };
    let from = place(0, body.as_bytes());
    // The digest stands in the next entry, too: the one of this cell comes first behind its body.
    let to = place(from, &hash) + 32;
    assert!(to - from < 1024, "{from} {to}");
    // From the cell's head before the body to the columns behind the digest.
    let other = tempfile::tempdir().unwrap();
    let copy = other.path().join("journal.db");
    for at in from - 16..(to + 60).min(db.len()) {
        let mut bent = db.clone();
        bent[at] ^= 0x01;
        std::fs::write(&copy, &bent).unwrap();
        let found = audit_file(&copy, &[]);
        assert!(
            found.as_ref().map_or(true, |report| !report.faults.is_empty()),
            "byte {} of the entry's cell",
            at - from
        );
    }
}

/// Any byte of the file: what is not seen changes nothing that anybody reads.
#[test]
fn a_byte_that_is_not_seen_changes_nothing() {
    let dir = filled();
    let db = std::fs::read(dir.path().join("journal.db")).unwrap();
    let other = tempfile::tempdir().unwrap();
    let copy = other.path().join("journal.db");
    std::fs::write(&copy, &db).unwrap();
    let whole = everything(&copy);
    let (mut seen, mut silent) = (0, 0);
    for at in (0..db.len()).step_by(db.len() / 500) {
        let mut bent = db.clone();
        bent[at] ^= 0x10;
        std::fs::write(&copy, &bent).unwrap();
        match audit_file(&copy, &[]) {
            Ok(report) if report.faults.is_empty() => {
                assert_eq!(everything(&copy), whole, "byte {at}");
                silent += 1;
            }
            Ok(_) | Err(_) => seen += 1,
        }
    }
    assert!(
        seen > 50,
        "{seen} bytes were seen, {silent} lie in room that no row uses"
    );
}

/// Every value of every row of every table.
fn everything(path: &Path) -> Vec<Vec<rusqlite::types::Value>> {
    let conn = Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let tables = [
        "records",
        "incarnations",
        "volumes",
        "calls",
        "runs",
        "judgements",
        "consumptions",
        "preparations",
    ];
    let mut all = Vec::new();
    for table in tables {
        let mut rows = conn
            .prepare(&format!("SELECT * FROM {table} ORDER BY rowid"))
            .unwrap();
        let width = rows.column_count();
        let rows = rows
            .query_map([], |row| (0..width).map(|at| row.get(at)).collect())
            .unwrap();
        all.extend(rows.map(|row| row.unwrap_or_default()));
    }
    all
}

/// A copy with the write-ahead log that lay beside it: what stands in the log alone is read, too.
#[test]
fn a_copy_with_its_write_ahead_log_is_read_whole() {
    let Fresh(journal, dir) = fresh();
    noted(&journal, 5);
    let held = journal.head().unwrap();
    let other = tempfile::tempdir().unwrap();
    for name in ["journal.db", "journal.db-wal"] {
        std::fs::copy(dir.path().join(name), other.path().join(name)).unwrap();
    }
    let report = audit_file(&other.path().join("journal.db"), std::slice::from_ref(&held)).unwrap();
    assert_eq!((report.entries, report.faults), (held.size, vec![]));
    // Without the log, what stood in it is missing, and the checkpoint says so.
    std::fs::remove_file(other.path().join("journal.db-wal")).unwrap();
    match audit_file(&other.path().join("journal.db"), &[held]) {
        Ok(report) => assert_eq!(report.faults[0].kind, FaultKind::Truncated),
        Err(e) => assert_eq!(e.code(), semel_core::Code::StoreUnavailable),
    }
}

#[test]
fn a_file_that_is_no_journal_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    let code = |path: &Path| audit_file(path, &[]).unwrap_err().code();
    assert_eq!(code(&path), semel_core::Code::NotFound);
    std::fs::write(&path, "no database at all, but long enough to look at").unwrap();
    assert_eq!(code(&path), semel_core::Code::StoreUnavailable);
    std::fs::write(&path, "").unwrap();
    assert_eq!(code(&path), semel_core::Code::StoreUnavailable);
    Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE x (y)")
        .unwrap();
    assert_eq!(code(&path), semel_core::Code::StoreUnavailable);
}
