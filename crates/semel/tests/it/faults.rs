//! What the machine does to the daemon: another boot, and a disk that fails to sync.

use crate::harness::{Conn, Daemon, Home, Tracer, skipped};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// Another boot makes the generation dirty and retires its token; what was acknowledged can be looked up.
#[test]
fn another_boot_ends_the_generation_dirty() {
    for crash in [None, Some("installed"), Some("begun")] {
        let home = Home::new();
        let mut args = Vec::new();
        args.extend(crash.into_iter().flat_map(|point| ["--crash-at", point]));
        let mut daemon = home.serve(&args);
        let volume = home.open("job", "power-best-effort");
        let arguments = json!({"path": "a", "content": "1"});
        let first = daemon.conn().try_call(&volume, "write_file", "k", &arguments);
        assert_eq!(first.is_none(), crash.is_some());
        if crash.is_some() {
            daemon.ended(Duration::from_secs(20)).expect("it dies");
        }
        drop(daemon);
        let Some(daemon) = Daemon::in_boot(&home, 2, &[]) else {
            skipped("another boot cannot be simulated here (mount namespace)");
            return;
        };
        let late = daemon
            .conn()
            .call(&volume, "read_file", "", &json!({"path": "a"}));
        assert_eq!(
            (late.code(), late.reason()),
            ("replay_conflict", "stale_generation")
        );
        let receipt = daemon
            .conn()
            .call(&volume, "get_receipt", "", &json!({"key": "k"}));
        match crash {
            Some("begun") => assert_eq!(receipt.code(), "not_found", "{}", receipt.body),
            _ => assert_eq!(receipt.body["state"], "done", "{crash:?} {}", receipt.body),
        }
        let status = home.json(&["status"]);
        assert_eq!(status["quarantined"][0]["dirty"], "boot_changed", "{status}");
    }
}

/// Makes every sync of a file or directory fail; `None` where that cannot be done here.
fn failing_syncs(daemon: &Daemon, path: &Path) -> Option<Tracer> {
    let path = path.to_str().unwrap();
    let syncs = [
        "-e",
        "trace=fsync,fdatasync",
        "-e",
        "inject=fsync,fdatasync:error=EIO",
        "-P",
        path,
    ];
    let tracer = Tracer::attach(daemon.pid, Path::new("/dev/null"), &syncs);
    if tracer.is_none() {
        skipped("strace cannot inject faults here");
    }
    tracer
}

/// A failed sync poisons: readiness drops, the daemon ends, and the next one looks at what is on the disk.
#[test]
fn a_failed_sync_ends_the_daemon_and_the_call_is_still_once() {
    for (tool, place, happened) in [
        ("write_file", "staging", false),
        ("delete_file", "trash", true),
        ("write_file", "journal.db-wal", false),
    ] {
        let home = Home::new();
        let mut daemon = home.serve(&[]);
        let volume = home.open("job", "power-best-effort");
        let path = match place {
            "journal.db-wal" => home.state().join(place),
            _ => volume.tree.parent().unwrap().join(place),
        };
        let Some(tracer) = failing_syncs(&daemon, &path) else {
            return;
        };
        let mut arguments = json!({"path": "a"});
        if tool == "write_file" {
            arguments["content"] = json!("1");
        } else {
            std::fs::write(volume.tree.join("a"), "1").unwrap();
        }
        let url = daemon.url.clone();
        let first = Conn::tcp(&url).try_call(&volume, tool, "k", &arguments);
        if let Some(first) = first {
            assert_eq!(
                (first.status, first.code()),
                (503, "store_unavailable"),
                "{place}: {}",
                first.body
            );
        }
        let status = daemon
            .ended(Duration::from_secs(30))
            .expect("a poisoned daemon ends");
        assert_eq!(status.code(), Some(75), "{place}");
        drop(tracer);
        let daemon = home.serve(&[]);
        let again = daemon.conn().call(&volume, tool, "k", &arguments);
        let got = (again.status, &again.body["replayed"]);
        assert_eq!(got, (200, &json!(happened)), "{tool} {place}: {}", again.body);
        assert_eq!(volume.tree.join("a").exists(), tool == "write_file");
        assert_eq!(volume.staged(), 0, "{place}");
    }
}

/// A journal that fails in the background, while nobody asks for anything, ends the daemon all the same.
#[test]
fn a_sync_that_fails_behind_everybodys_back_ends_the_daemon() {
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let Some(tracer) = failing_syncs(&daemon, &home.state().join("journal.db-wal")) else {
        return;
    };
    let arguments = json!({"path": "a", "content": "1"});
    let first = daemon.conn().call(&volume, "write_file", "k", &arguments);
    assert_eq!(
        first.status, 200,
        "it survives a kill, and no more was asked: {}",
        first.body
    );
    let status = daemon
        .ended(Duration::from_secs(30))
        .expect("nobody has to ask for it to end");
    assert_eq!(status.code(), Some(75));
    drop(tracer);
    let again = home
        .serve(&[])
        .conn()
        .call(&volume, "write_file", "k", &arguments);
    assert_eq!(
        (again.status, &again.body["replayed"]),
        (200, &json!(true)),
        "{}",
        again.body
    );
}
