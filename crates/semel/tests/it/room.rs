//! A filesystem of the volumes that fills up: nothing new begins, what happened is still told, and nothing is lost.

use crate::harness::{Daemon, Home, Volume, bare, skipped, wait_until};
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

/// What calls keep is freed before a call is refused: the oldest of all volumes first, as much as it takes.
#[test]
fn what_calls_keep_makes_room() {
    let home = Home::new();
    let Some(daemon) = small(&home, "size=56m,mode=700") else {
        return;
    };
    let (one, two) = (home.open("one", "process"), home.open("two", "process"));
    let inside = format!("/proc/{}/root", daemon.child.id());
    let real = |place: &std::path::Path| std::path::PathBuf::from(format!("{inside}{}", place.display()));
    let volumes = real(&home.state().join("volumes"));
    let call = |volume, tool: &str, key: &str, arguments| daemon.conn().call(volume, tool, key, &arguments);
    let trashed = |volume: &Volume| {
        let trash = volume.tree.parent().unwrap().join("trash");
        std::fs::read_dir(real(&trash)).unwrap().count()
    };
    let mut removed = Vec::new();
    for volume in [&one, &two] {
        std::fs::write(real(&volume.tree).join("f"), vec![0; 9 << 20]).unwrap();
        let reply = call(volume, "delete_file", "d", json!({"path": "f"}));
        assert_eq!(reply.status, 200, "{}", reply.body);
        removed.push(reply.body["execution_id"].as_str().unwrap().to_owned());
        // Ids of executions tell times apart that are a millisecond apart.
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!((trashed(&one), trashed(&two)), (1, 1));
    std::fs::write(volumes.join("filler"), vec![0; 10 << 20]).unwrap();
    assert!(wait_until(Duration::from_secs(20), || {
        let reply = call(&two, "write_file", "w", json!({"path": "w", "content": "1"}));
        assert_eq!(reply.status, 200, "{}", reply.body);
        trashed(&one) == 0
    }));
    assert_eq!(trashed(&two), 1, "no more than it takes");
    let undo = |execution: &str| {
        let path = format!("/v1/admin/executions/{execution}/undo");
        home.admin("POST", &path, &serde_json::Value::Null)
    };
    let expired = undo(&removed[0]);
    assert_eq!((expired.status, expired.code()), (410, "undo_expired"));
    assert_eq!(undo(&removed[1]).status, 200);
    // Where nothing more can go, calls are refused, and nothing was begun.
    std::fs::write(volumes.join("filler2"), vec![0; 9 << 20]).unwrap();
    let mut n = 0;
    assert!(wait_until(Duration::from_secs(20), || {
        n += 1;
        let full = json!({"path": "x", "content": "1"});
        call(&two, "write_file", &format!("x{n}"), full).reason() == "disk_full"
    }));
    assert_eq!(
        call(&two, "write_file", "w", json!({"path": "w", "content": "1"})).body["replayed"],
        true
    );
    drop(daemon);
    let verify = bare(&["log", "verify", "--json", "--state"])
        .arg(home.state())
        .env("HOME", home.path())
        .output();
    assert!(verify.unwrap().status.success());
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
