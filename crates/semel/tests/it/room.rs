//! A filesystem of the volumes that fills up: nothing new begins, what happened is still told, and nothing is lost.

use crate::harness::{Daemon, Home, bare, skipped, wait_until};
use serde_json::json;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Starts the daemon with a small filesystem for its volumes; `None` where none can be mounted.
fn small(home: &Home, options: &str) -> Option<Daemon> {
    std::fs::create_dir_all(home.state().join("volumes")).unwrap();
    for dir in [home.state(), home.state().join("volumes")] {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    let script = "mount -t tmpfs -o \"$2\" none \"$1/volumes\" && shift 2 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", home.path())
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(home.state())
        .args([options, env!("CARGO_BIN_EXE_semel"), "--state"])
        .arg(home.state())
        .args(["serve", "--json", "--quiet", "--listen", "127.0.0.1:0"]);
    let daemon = Daemon::started(command.stderr(Stdio::null()));
    if daemon.is_none() {
        skipped("no filesystem can be mounted here");
    }
    daemon
}

#[test]
fn a_full_disk_of_the_volumes_refuses_what_is_new() {
    for (options, fills) in [
        ("size=48m,mode=700", "bytes"),
        ("size=256m,mode=700,nr_inodes=120", "files"),
    ] {
        let home = Home::new();
        let Some(daemon) = small(&home, options) else {
            return;
        };
        let volume = home.open("job", "process");
        let inside = format!(
            "/proc/{}/root{}",
            daemon.child.id(),
            home.state().join("volumes").display()
        );
        let inside = std::path::Path::new(&inside);
        let call = |tool: &str, key: &str, arguments| daemon.conn().call(&volume, tool, key, &arguments);
        let write = |key: &str| call("write_file", key, json!({"path": key, "content": "1"}));
        assert_eq!(write("a").status, 200);
        fill(&inside.join("filler"), fills);
        // What was seen a moment ago may still be taken for true: those calls are new ones.
        let mut n = 0;
        assert!(
            wait_until(Duration::from_secs(10), || {
                n += 1;
                write(&format!("early{n}")).reason() == "disk_full"
            }),
            "{fills}"
        );
        let full = write("b");
        assert_eq!(
            (full.status, full.code(), full.reason()),
            (500, "io_failed", "disk_full"),
            "{}",
            full.body
        );
        let delete = call("delete_file", "d", json!({"path": "a"}));
        assert_eq!(
            delete.reason(),
            "disk_full",
            "it needs a name in trash: {}",
            delete.body
        );
        // What happened is told, what is there is read, and the daemon is as well as before.
        assert_eq!(write("a").body["replayed"], true);
        assert_eq!(call("read_file", "", json!({"path": "a"})).status, 200);
        assert_eq!(call("get_receipt", "", json!({"key": "a"})).body["state"], "done");
        assert_eq!(volume_has(inside, "b"), 0);
        std::fs::remove_dir_all(inside.join("filler")).unwrap();
        // The very same call, with the same key, once there is room.
        let mut last = write("b");
        assert!(wait_until(Duration::from_secs(10), || {
            last = write("b");
            last.status == 200
        }));
        assert_eq!(volume_has(inside, "b"), 1, "{}", last.body);
        assert_eq!(call("delete_file", "d", json!({"path": "a"})).status, 200);
        drop(daemon);
        let verify = bare(&["log", "verify", "--json", "--state"])
            .arg(home.state())
            .env("HOME", home.path())
            .output();
        assert!(verify.unwrap().status.success());
    }
}

/// Makes a directory of 24 MiB in one file, or of 60 empty ones.
fn fill(place: &std::path::Path, with: &str) {
    std::fs::create_dir(place).unwrap();
    if with == "bytes" {
        std::fs::write(place.join("0"), vec![0; 24 << 20]).unwrap();
        return;
    }
    for n in 0..60 {
        std::fs::write(place.join(n.to_string()), "").unwrap();
    }
}

/// Counts the files of a name in all trees.
fn volume_has(volumes: &std::path::Path, name: &str) -> usize {
    let mut found = 0;
    for job in std::fs::read_dir(volumes).unwrap().flatten() {
        for generation in std::fs::read_dir(job.path()).into_iter().flatten().flatten() {
            found += usize::from(generation.path().join("vol/tree").join(name).exists());
        }
    }
    found
}
