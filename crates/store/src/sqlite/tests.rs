use super::*;

#[test]
fn opens() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        version: "1".into(),
        boot_id: "b".into(),
        now: UnixMs(1),
    };
    let open = || SqliteJournal::open(OwnerLock::take(dir.path()).unwrap(), &options).unwrap();
    drop(open());
    let journal = open();
    assert_eq!(journal.incarnation(), Incarnation(2));
    journal.heartbeat(Duration::from_secs(5)).unwrap();
    let report = journal.check().unwrap();
    assert_eq!((report.entries, report.faults), (2, vec![]));
    assert!(OwnerLock::take(dir.path()).is_err());
}
