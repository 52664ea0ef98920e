//! The file itself: its mode, its schema, its copies, and readers that do not write.

use super::{Fresh, fresh, open};
use crate::conformance::sample;
use crate::journal::LogFilter;
use crate::{Journal, SqliteJournal};
use rusqlite::Connection;
use semel_core::Code;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

fn refusal(dir: &Path) -> (Code, Option<String>) {
    let refusal = open(dir).unwrap_err().into_refusal();
    (refusal.code, refusal.reason)
}

fn edited(sql: &str) -> tempfile::TempDir {
    let Fresh(journal, dir) = fresh();
    drop(journal);
    let conn = Connection::open(dir.path().join("journal.db")).unwrap();
    conn.execute_batch(sql).unwrap();
    dir
}

#[test]
fn every_file_is_the_owners_alone() {
    let Fresh(journal, dir) = fresh();
    let copy = dir.path().join("copy.db");
    journal.backup(copy.to_str().unwrap().to_owned()).unwrap();
    for name in [
        "journal.db",
        "journal.db-wal",
        "journal.db-shm",
        "owner.lock",
        "reserve",
        "copy.db",
    ] {
        assert_eq!(mode(&dir.path().join(name)), 0o600, "{name}");
    }
}

#[test]
fn a_path_of_any_bytes_will_do() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = tempfile::tempdir().unwrap();
    let odd = dir
        .path()
        .join(std::ffi::OsStr::from_bytes(b"a b?mode=ro%20#\xc3\xa4&\xff"));
    std::fs::create_dir(&odd).unwrap();
    let journal = open(&odd).unwrap();
    sample::draft(&journal, "job-a").unwrap();
    assert!(odd.join("journal.db").exists());
    assert_eq!(journal.log(LogFilter::default()).unwrap().len(), 3);
}

#[test]
fn foreign_and_newer_journals_are_refused() {
    let unavailable = |reason: &str| (Code::StoreUnavailable, Some(reason.to_owned()));
    let newer = "INSERT INTO schema_migrations VALUES (99, 'later', 'ab')";
    assert_eq!(refusal(edited(newer).path()), unavailable("newer_schema"));
    let changed = "UPDATE schema_migrations SET sha256 = 'ab'";
    assert_eq!(refusal(edited(changed).path()), unavailable("migration_changed"));
    let foreign = "PRAGMA application_id = 7";
    assert_eq!(refusal(edited(foreign).path()), unavailable("foreign_database"));
    let read = SqliteJournal::open_read_only(edited(newer).path()).unwrap_err();
    assert_eq!(read.into_refusal().reason.as_deref(), Some("newer_schema"));
}

#[test]
fn a_broken_end_of_the_chain_is_refused() {
    let dir = edited("DROP TRIGGER records_are_never_changed; UPDATE records SET hash = zeroblob(32)");
    assert_eq!(
        refusal(dir.path()),
        (Code::StoreUnavailable, Some("chain_broken".to_owned()))
    );
    let dir = edited("DROP TRIGGER records_are_never_changed; UPDATE records SET version = 3");
    assert_eq!(refusal(dir.path()).0, Code::StoreUnavailable);
}

#[test]
fn a_backup_is_the_whole_journal() {
    let Fresh(journal, dir) = fresh();
    sample::draft(&journal, "job-a").unwrap();
    let other = tempfile::tempdir().unwrap();
    let copy = other.path().join("journal.db").to_str().unwrap().to_owned();
    journal.backup(copy.clone()).unwrap();
    let again = journal.backup(copy).unwrap_err();
    assert_eq!(again.code(), Code::PreconditionFailed);
    // What is missing is the backup's directory, never the journal.
    for (place, code) in [("none/copy", Code::NotFound), ("journal.db/copy", Code::BadInput)] {
        let place = other.path().join(place);
        let refused = journal.backup(place.to_str().unwrap().to_owned()).unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        let named = refused.into_refusal().names;
        assert_eq!(named, [place.parent().unwrap().display().to_string()]);
    }
    let log = journal.log(LogFilter::default()).unwrap();
    drop((journal, dir));
    let copied = open(other.path()).unwrap();
    assert_eq!(copied.log(LogFilter::default()).unwrap()[..log.len()], log[..]);
    assert_eq!(copied.check().unwrap().faults, vec![]);
}

#[test]
fn a_reader_reads_beside_the_writer_and_after_it() {
    let Fresh(journal, dir) = fresh();
    let volume = sample::draft(&journal, "job-a").unwrap();
    let reader = SqliteJournal::open_read_only(dir.path()).unwrap();
    assert_eq!(reader.volumes(None).unwrap(), vec![volume.clone()]);
    let intent = sample::intent(&volume, "k", "a").unwrap();
    journal.begin(intent.clone()).unwrap();
    assert!(reader.execution(intent.execution_id.clone()).unwrap().is_some());
    let refused = reader.begin(intent.clone()).unwrap_err().into_refusal();
    assert_eq!(
        (refused.code, refused.reason.as_deref()),
        (Code::StoreUnavailable, Some("read_only"))
    );
    drop(reader);
    drop(journal);
    // Ended soundly, the whole journal lies in its one file.
    assert_eq!(dir.path().join("journal.db-wal").metadata().unwrap().len(), 0);
    let reader = SqliteJournal::open_read_only(dir.path()).unwrap();
    assert!(reader.execution(intent.execution_id).unwrap().is_some());
    assert_eq!(reader.verify().unwrap().faults, vec![]);
    let nothing = tempfile::tempdir().unwrap();
    let none = SqliteJournal::open_read_only(nothing.path()).unwrap_err();
    assert_eq!(none.code(), Code::StoreUnavailable);
}
