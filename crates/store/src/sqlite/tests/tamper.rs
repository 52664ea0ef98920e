//! Edits by hand: the chain and the fold find them.

#![expect(clippy::disallowed_methods, reason = "a test damages files on purpose")]

use super::{Fresh, fresh, open};
use crate::conformance::{LAWS, sample};
use crate::sqlite::audit_file;
use crate::{Began, Journal};
use rusqlite::Connection;
use semel_core::audit::{Fault, FaultKind};
use semel_core::checkpoint::Checkpoint;
use semel_core::volume::{Durability, Role};
use std::path::Path;

/// Fills a journal with something of everything.
pub(super) fn filled() -> tempfile::TempDir {
    let Fresh(journal, dir) = fresh();
    let law = |name: &str| LAWS.iter().find(|law| law.name == name).unwrap().hold;
    law("every_record_can_be_read_again")(&journal).unwrap();
    let volume = sample::draft(&journal, "job-c").unwrap();
    for key in ["finished", "freed", "unknown", "running"] {
        let intent = sample::intent(&volume, key, "a").unwrap();
        assert_eq!(journal.begin(intent.clone()).unwrap(), Began::Began);
        let (id, receipt) = (intent.execution_id.clone(), sample::receipt(&intent));
        match key {
            "finished" => journal.finish(id, receipt).unwrap(),
            "freed" => journal.free(id, "never".to_owned(), sample::NOW).unwrap(),
            "unknown" => journal.unknown(id, "gone".to_owned(), sample::NOW).unwrap(),
            _ => {}
        }
    }
    let mut outside = sample::intent(&volume, "outside", "a").unwrap();
    outside.scope.generation = None;
    journal.begin(outside).unwrap();
    let cert = sample::new_volume("job-d", Role::Cert, Durability::Power).unwrap();
    journal.open_volume(cert).unwrap();
    assert_eq!(journal.check().unwrap().faults, vec![]);
    dir
}

/// Edits the journal's file as somebody would who may write it; the guards stand again afterwards.
pub(super) fn edit(dir: &Path, sql: &str) {
    let conn = Connection::open(dir.join("journal.db")).unwrap();
    conn.execute_batch("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON;")
        .unwrap();
    conn.execute_batch(UNLOCK).unwrap();
    conn.execute_batch(sql).unwrap();
    conn.execute_batch(guards()).unwrap();
}

const UNLOCK: &str = "DROP TRIGGER records_are_never_changed; DROP TRIGGER records_are_never_deleted;";

fn guards() -> &'static str {
    let schema = include_str!("../../../migrations/0001_journal.sql");
    let from = schema.find("CREATE TRIGGER").unwrap();
    &schema[from..schema.find("-- The lives").unwrap()]
}

/// Gives every fault of a journal that nobody has open.
pub(super) fn faults(dir: &Path, held: &[Checkpoint]) -> Vec<Fault> {
    audit_file(&dir.join("journal.db"), held).unwrap().faults
}

#[test]
fn records_are_append_only() {
    let dir = filled();
    for sql in [
        "UPDATE records SET at_ms = 0 WHERE seq = 2",
        "DELETE FROM records WHERE seq = 2",
    ] {
        let conn = Connection::open(dir.path().join("journal.db")).unwrap();
        let refused = conn.execute_batch(sql).unwrap_err().to_string();
        assert!(refused.contains("a record is never"), "{refused}");
    }
}

/// Edits, with the fault that each must be named by, and where.
const EDITS: &[(&str, FaultKind, Option<u64>)] = &[
    (
        "UPDATE records SET body = replace(body, 'job-a', 'job-x') WHERE seq = 2",
        FaultKind::Changed,
        Some(2),
    ),
    (
        "UPDATE records SET body = body || ' ' WHERE seq = 3",
        FaultKind::Changed,
        Some(3),
    ),
    (
        "UPDATE records SET body = 'x' WHERE seq = 3",
        FaultKind::Unreadable,
        Some(3),
    ),
    (
        "UPDATE records SET at_ms = at_ms + 1 WHERE seq = 4",
        FaultKind::Misdated,
        Some(4),
    ),
    (
        "UPDATE records SET version = 3 WHERE seq = 4",
        FaultKind::Unreadable,
        Some(4),
    ),
    (
        "UPDATE records SET prev = zeroblob(32) WHERE seq = 5",
        FaultKind::Unlinked,
        Some(5),
    ),
    (
        "UPDATE records SET hash = zeroblob(32) WHERE seq = 5",
        FaultKind::Changed,
        Some(5),
    ),
    ("DELETE FROM records WHERE seq = 6", FaultKind::Gap, Some(7)),
    ("DELETE FROM records WHERE seq = 1", FaultKind::Gap, Some(2)),
    (
        "UPDATE records SET seq = 1000 WHERE seq = 7",
        FaultKind::Gap,
        Some(8),
    ),
    (
        "UPDATE records SET seq = -4 WHERE seq = 4; UPDATE records SET seq = 4 WHERE seq = 5;
         UPDATE records SET seq = 5 WHERE seq = -4",
        FaultKind::Unlinked,
        Some(4),
    ),
    (
        "UPDATE records SET body = (SELECT body FROM records WHERE seq = 4) WHERE seq = 5",
        FaultKind::Changed,
        Some(5),
    ),
    (
        "DELETE FROM records WHERE seq = (SELECT max(seq) FROM records)",
        FaultKind::State,
        None,
    ),
    ("UPDATE incarnations SET incarnation = 7", FaultKind::State, None),
    (
        "UPDATE volumes SET json = replace(json, 'open', 'clean') WHERE state = 'open'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE volumes SET state = 'clean' WHERE state = 'open'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE volumes SET attempt = attempt + 7 WHERE job = 'job-c'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE volumes SET fencing_token = fencing_token + 70",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE volumes SET role = 'cert' WHERE job = 'job-c'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE volumes SET token_sha256 = randomblob(32) WHERE job = 'job-c'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE volumes SET job = 'job-x' WHERE job = 'job-c'",
        FaultKind::State,
        None,
    ),
    ("DELETE FROM volumes WHERE job = 'job-d'", FaultKind::State, None),
    (
        "UPDATE calls SET state = 'refused' WHERE key = 'finished'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE calls SET key = 'else' WHERE key = 'finished'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE calls SET scope = 'else' WHERE key = 'finished'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE calls SET at_ms = at_ms + 1 WHERE key = 'finished'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE calls SET job_scoped = NULL WHERE key = 'outside'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE calls SET outcome_seq = NULL, state = 'running' WHERE key = 'finished'",
        FaultKind::State,
        None,
    ),
    ("DELETE FROM calls WHERE key = 'running'", FaultKind::State, None),
    ("DELETE FROM calls WHERE key = 'finished'", FaultKind::State, None),
    ("UPDATE runs SET over = 0", FaultKind::State, None),
    ("UPDATE runs SET job = 'job-x'", FaultKind::State, None),
    (
        "UPDATE runs SET json = replace(json, 'certified', 'cancelled')",
        FaultKind::State,
        None,
    ),
    ("DELETE FROM runs", FaultKind::State, None),
    (
        "UPDATE judgements SET proposal = zeroblob(32)",
        FaultKind::State,
        None,
    ),
    ("UPDATE judgements SET job = 'job-x'", FaultKind::State, None),
    ("DELETE FROM judgements", FaultKind::State, None),
    (
        "UPDATE consumptions SET json = replace(json, 'main', 'prod')",
        FaultKind::State,
        None,
    ),
    ("DELETE FROM consumptions", FaultKind::State, None),
    ("DELETE FROM preparations", FaultKind::State, None),
    (
        "UPDATE preparations SET pin = 'else' WHERE job = 'job-p'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE preparations SET json = replace(json, '\"number\":2', '\"number\":3')",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE incarnations SET policy_sha256 = zeroblob(32)",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE approvals SET state = 'approved', decided_seq = 3 WHERE state = 'pending'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE approvals SET state = 'approved' WHERE state = 'denied'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE approvals SET state = 'pending', decided_seq = NULL WHERE state = 'denied'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE approvals SET key = 'else' WHERE key = 'asked'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE approvals SET scope = 'else' WHERE key = 'asked'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE approvals SET expires_ms = expires_ms + 1 WHERE key = 'waits'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE approvals SET fingerprint = 'else' WHERE key IS NULL",
        FaultKind::State,
        None,
    ),
    (
        "DELETE FROM approvals WHERE key = 'waits'",
        FaultKind::State,
        None,
    ),
    (
        "UPDATE records SET job = 'job-x' WHERE job = 'job-c'",
        FaultKind::Misfiled,
        None,
    ),
    (
        "UPDATE records SET key = NULL WHERE key = 'finished'",
        FaultKind::Misfiled,
        None,
    ),
    (
        "UPDATE records SET execution_id = NULL WHERE key = 'finished'",
        FaultKind::Misfiled,
        None,
    ),
    (
        "UPDATE records SET conflict = 1 WHERE seq = 3",
        FaultKind::Misfiled,
        Some(3),
    ),
    ("DROP INDEX records_key", FaultKind::Schema, None),
    ("CREATE TABLE more (x)", FaultKind::Schema, None),
    (
        "CREATE TRIGGER later AFTER INSERT ON records BEGIN DELETE FROM calls; END",
        FaultKind::Schema,
        None,
    ),
];

#[test]
fn every_edit_is_found_by_its_name() {
    let whole = filled();
    let db = std::fs::read(whole.path().join("journal.db")).unwrap();
    let made = || {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("journal.db"), &db).unwrap();
        dir
    };
    let untouched = made();
    edit(untouched.path(), "");
    assert_eq!(faults(untouched.path(), &[]), vec![]);
    for (sql, kind, seq) in EDITS {
        let dir = made();
        edit(dir.path(), sql);
        let found = faults(dir.path(), &[]);
        let named = |fault: &Fault| fault.kind == *kind && (seq.is_none() || fault.seq == *seq);
        assert!(found.iter().any(named), "not found: {sql}: {found:#?}");
        for Fault { why, .. } in found.iter().filter(|fault| fault.kind == FaultKind::State) {
            let code = ["Some(", "None", "[", "(\""];
            assert!(
                !code.iter().any(|code| why.contains(code)),
                "not for people: {why}"
            );
        }
    }
    let unguarded = made();
    let conn = Connection::open(unguarded.path().join("journal.db")).unwrap();
    conn.execute_batch(UNLOCK).unwrap();
    drop(conn);
    let kinds: Vec<_> = faults(unguarded.path(), &[])
        .into_iter()
        .map(|fault| fault.kind)
        .collect();
    assert_eq!(kinds, [FaultKind::Schema, FaultKind::Schema]);
}

#[test]
fn a_fault_of_the_tables_is_told_in_words() {
    let dir = filled();
    edit(
        dir.path(),
        "UPDATE calls SET state = 'refused' WHERE key = 'finished'; DELETE FROM approvals WHERE key = 'waits'",
    );
    let why: Vec<String> = faults(dir.path(), &[])
        .into_iter()
        .map(|fault| fault.why)
        .collect();
    assert!(
        why.iter()
            .any(|why| why.ends_with("its state is refused and must be done")),
        "{why:?}"
    );
    assert!(
        why.iter().any(|why| why.starts_with("the stored approval ")
            && why.ends_with("does not follow from the entries")),
        "{why:?}"
    );
}

/// A daemon does not begin to write behind a broken end.
#[test]
fn a_writer_refuses_a_broken_end() {
    let dir = filled();
    edit(dir.path(), "UPDATE records SET body = body || ' ' WHERE seq = 3");
    let refused = open(dir.path()).unwrap_err().into_refusal();
    assert_eq!(refused.reason.as_deref(), Some("chain_broken"));
    assert!(refused.why.starts_with("changed at entry 3"), "{refused}");
}
