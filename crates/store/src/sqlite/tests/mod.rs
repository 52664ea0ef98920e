//! What only a journal in a file can be asked.

mod approvals;
mod audit;
mod child;
mod crash;
mod disk;
mod files;
mod random;
mod tamper;
mod torn;
mod writer;

use super::*;
use crate::conformance::{Loop, suite};
use crate::journal::Remote;
use std::cell::RefCell;

fn options() -> Options {
    Options {
        version: "0.1.0".to_owned(),
        boot_id: "boot".to_owned(),
        policy_sha256: None,
        now: UnixMs(1),
        on_commit: None,
    }
}

fn open(dir: &Path) -> Result<SqliteJournal> {
    SqliteJournal::open(OwnerLock::take(dir)?, &options())
}

/// A journal with the directory that it lies in.
struct Fresh(SqliteJournal, tempfile::TempDir);

fn fresh() -> Fresh {
    let dir = tempfile::tempdir().unwrap();
    Fresh(open(dir.path()).unwrap(), dir)
}

#[test]
fn keeps_every_law() {
    let dirs = RefCell::new(Vec::new());
    let broken = suite(&|| {
        let Fresh(journal, dir) = fresh();
        dirs.borrow_mut().push(dir);
        Ok(Box::new(journal))
    });
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn keeps_every_law_through_the_wire() {
    let dirs = RefCell::new(Vec::new());
    let broken = suite(&|| {
        let Fresh(journal, dir) = fresh();
        dirs.borrow_mut().push(dir);
        Ok(Box::new(Remote(Loop(Arc::new(journal)))))
    });
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn each_life_of_the_writer_has_a_number() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let journal = open(dir.path()).unwrap();
    assert_eq!(journal.incarnation(), Incarnation(2));
    journal.heartbeat(Duration::from_secs(5)).unwrap();
    let report = journal.check().unwrap();
    assert_eq!((report.entries, report.faults), (2, vec![]));
    let second = OwnerLock::take(dir.path()).unwrap_err().into_refusal();
    assert_eq!(
        (second.code, second.reason.as_deref()),
        (Code::StoreUnavailable, Some("owned_elsewhere"))
    );
}
