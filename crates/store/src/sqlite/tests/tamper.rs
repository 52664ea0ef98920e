//! Edits by hand: the chain and the fold find them.

use super::{Fresh, fresh, open};
use crate::conformance::{LAWS, sample};
use crate::{Began, Journal};
use rusqlite::Connection;
use semel_core::volume::{Durability, Role};
use std::path::Path;

/// Fills a journal with something of everything.
fn filled() -> tempfile::TempDir {
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
    assert_eq!(journal.check().unwrap().faults, Vec::<String>::new());
    dir
}

fn edit(dir: &Path, sql: &str) -> rusqlite::Result<()> {
    let conn = Connection::open(dir.join("journal.db"))?;
    conn.execute_batch("PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON;")?;
    conn.execute_batch(sql)
}

#[test]
fn records_are_append_only() {
    let dir = filled();
    for sql in [
        "UPDATE records SET at_ms = 0 WHERE seq = 2",
        "DELETE FROM records WHERE seq = 2",
    ] {
        let refused = edit(dir.path(), sql).unwrap_err().to_string();
        assert!(refused.contains("a record is never"), "{refused}");
    }
}

#[test]
fn every_edit_is_found() {
    let unlock = "DROP TRIGGER records_are_never_changed; DROP TRIGGER records_are_never_deleted;";
    let edits = [
        "UPDATE records SET body = replace(body, 'job-a', 'job-x') WHERE seq = 2",
        "UPDATE records SET body = body || ' ' WHERE seq = 3",
        "UPDATE records SET at_ms = at_ms + 1 WHERE seq = 4",
        "UPDATE records SET version = 3 WHERE seq = 4",
        "UPDATE records SET prev = zeroblob(32) WHERE seq = 5",
        "UPDATE records SET hash = zeroblob(32) WHERE seq = 5",
        "DELETE FROM records WHERE seq = 6",
        "DELETE FROM records WHERE seq = 1",
        "UPDATE records SET seq = 1000 WHERE seq = 7",
        "UPDATE incarnations SET incarnation = 7",
        "UPDATE volumes SET json = replace(json, 'open', 'clean') WHERE state = 'open'",
        "UPDATE volumes SET state = 'clean' WHERE state = 'open'",
        "UPDATE volumes SET attempt = attempt + 7 WHERE job = 'job-c'",
        "UPDATE volumes SET fencing_token = fencing_token + 70",
        "UPDATE volumes SET role = 'cert' WHERE job = 'job-c'",
        "UPDATE volumes SET token_sha256 = randomblob(32) WHERE job = 'job-c'",
        "UPDATE volumes SET job = 'job-x' WHERE job = 'job-c'",
        "DELETE FROM volumes WHERE job = 'job-d'",
        "UPDATE calls SET state = 'refused' WHERE key = 'finished'",
        "UPDATE calls SET key = 'else' WHERE key = 'finished'",
        "UPDATE calls SET scope = 'else' WHERE key = 'finished'",
        "UPDATE calls SET at_ms = at_ms + 1 WHERE key = 'finished'",
        "UPDATE calls SET job_scoped = NULL WHERE key = 'outside'",
        "UPDATE calls SET outcome_seq = NULL, state = 'running' WHERE key = 'finished'",
        "DELETE FROM calls WHERE key = 'running'",
        "DELETE FROM calls WHERE key = 'finished'",
        "UPDATE runs SET over = 0",
        "UPDATE runs SET job = 'job-x'",
        "UPDATE runs SET json = replace(json, 'certified', 'cancelled')",
        "DELETE FROM runs",
        "UPDATE judgements SET proposal = zeroblob(32)",
        "UPDATE judgements SET job = 'job-x'",
        "DELETE FROM judgements",
        "UPDATE consumptions SET json = replace(json, 'main', 'prod')",
        "DELETE FROM consumptions",
        "UPDATE records SET job = 'job-x' WHERE job = 'job-c'",
        "UPDATE records SET key = NULL WHERE key = 'finished'",
        "UPDATE records SET execution_id = NULL WHERE key = 'finished'",
        "UPDATE records SET conflict = 1 WHERE seq = 3",
    ];
    for sql in edits {
        let dir = filled();
        edit(dir.path(), &format!("{unlock} {sql}")).unwrap();
        let found = match open(dir.path()) {
            Err(e) => vec![e.to_string()],
            Ok(journal) => match journal.verify() {
                Err(e) => vec![e.to_string()],
                Ok(report) => report.faults,
            },
        };
        assert!(!found.is_empty(), "not found: {sql}");
    }
}
