//! Policies over the lives of the writer, and journals from before there were any.

use super::*;
use crate::conformance::sample;
use semel_core::volume::End;

fn with(dir: &Path, policy: Option<&[u8]>) -> Result<SqliteJournal> {
    let options = Options {
        policy_sha256: policy.map(Sha256::of),
        ..options()
    };
    SqliteJournal::open(OwnerLock::take(dir)?, &options)
}

#[test]
fn a_policy_does_not_vanish_while_volumes_are_open() {
    let dir = tempfile::tempdir().unwrap();
    let journal = with(dir.path(), Some(b"strict")).unwrap();
    let volume = sample::draft(&journal, "job-a").unwrap();
    drop(journal);
    for _ in 0..2 {
        let refusal = with(dir.path(), None).unwrap_err().into_refusal();
        assert_eq!(
            (refusal.code, refusal.reason.as_deref()),
            (Code::BadConfig, Some("policy_missing"))
        );
    }
    let journal = with(dir.path(), Some(b"another")).unwrap();
    assert_eq!(
        journal.incarnation(),
        Incarnation(2),
        "a life that was refused is none"
    );
    journal
        .end_volume(volume.generation, volume.fencing_token, End::Clean, sample::NOW)
        .unwrap();
    assert_eq!(journal.check().unwrap().faults, vec![]);
    drop(journal);
    drop(with(dir.path(), None).unwrap());
}

#[test]
fn a_journal_of_the_first_schema_is_taken_on() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path()).unwrap();
    sample::draft(&journal, "job-a").unwrap();
    drop(journal);
    let conn = rusqlite::Connection::open(dir.path().join(FILE)).unwrap();
    conn.execute_batch(
        "DROP TABLE approvals; DROP TABLE preparations; ALTER TABLE incarnations DROP COLUMN policy_sha256;
         DELETE FROM schema_migrations WHERE number >= 2;",
    )
    .unwrap();
    drop(conn);
    let journal = open(dir.path()).unwrap();
    assert_eq!(journal.volumes(None).unwrap().len(), 1);
    assert_eq!(journal.check().unwrap().faults, vec![]);
}
