//! The life of the daemon: started on demand, drained, adopted, never two.

use crate::harness::{Daemon, Home, LONG, said, wait_until};
use serde_json::json;
use std::time::Duration;

#[test]
fn a_command_starts_a_transient_daemon_and_a_person_can_call_through_it() {
    let home = Home::new();
    let opened = home.json(&["volume", "open", "job"]);
    let (token, generation) = (
        opened["token"].as_str().unwrap(),
        opened["generation"].as_str().unwrap(),
    );
    assert!(opened["url"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    std::fs::write(home.path().join("token"), token).unwrap();
    let file = home.path().join("token");
    let file = file.to_str().unwrap();
    let call = |args: &[&str]| home.run(&[&["call", "--token-file", file], args].concat());
    let written = call(&["write_file", r#"{"path":"a","content":"1"}"#, "--key", "k"]);
    assert!(
        written.status.success(),
        "{}",
        String::from_utf8_lossy(&written.stderr)
    );
    let minted = call(&["write_file", r#"{"path":"b","content":"1"}"#]);
    assert!(String::from_utf8_lossy(&minted.stderr).starts_with("key: cli-"));
    let conflict = call(&["write_file", r#"{"path":"a","content":"2"}"#, "--key", "k"]);
    assert_eq!(conflict.status.code(), Some(12));
    let text = String::from_utf8_lossy(&conflict.stderr).into_owned();
    assert!(
        text.starts_with("error: replay_conflict (body_mismatch)"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 3);
    let status = home.json(&["status"]);
    assert_eq!(status["daemon"]["daemon"]["transient"], true);
    let pid = status["daemon"]["daemon"]["pid"].as_u64().unwrap();
    let mask = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(
        mask.contains("SigBlk:\t0000000000000000"),
        "it hears SIGTERM, whoever started it: {mask}"
    );
    assert_eq!(status["open"][0]["generation"], generation);
    let ended = home.json(&["volume", "end", generation]);
    assert_eq!(ended["volume"]["state"], "clean");
    let late = call(&["read_file", r#"{"path":"a"}"#]);
    assert_eq!(late.status.code(), Some(12));
    let listed = home.json(&["volume", "list"]);
    assert_eq!(listed["volumes"].as_array().unwrap().len(), 1);
    let destroyed = home.json(&["volume", "destroy", generation]);
    assert_eq!(destroyed["volume"]["state"], "destroyed");
    let again = home.json(&["volume", "destroy", generation]);
    assert_eq!(again["volume"]["state"], "destroyed");
    let backup = home.path().join("copy.db");
    home.json(&["backup", backup.to_str().unwrap()]);
    assert!(backup.exists());
    let twice = home.run(&["backup", backup.to_str().unwrap()]);
    assert_eq!(twice.status.code(), Some(15));
    home.admin("POST", "/v1/admin/shutdown", &json!(null));
    let since = std::time::Instant::now();
    while home.state().join("daemon.json").exists() {
        assert!(since.elapsed() < Duration::from_secs(30), "the daemon ends");
        std::thread::sleep(Duration::from_millis(20));
    }
    let verified = home.json(&["log", "verify"]);
    assert_eq!(verified["report"]["faults"], json!([]));
    let conflicts = home.lines(&["log", "--conflicts"]);
    assert_eq!(conflicts.len(), 2, "{conflicts:?}");
}

/// A child that a killed daemon was just starting has a copy of its lock for a moment: whoever then starts a daemon starts
/// another when that one is gone.
#[test]
fn a_daemon_is_started_again_when_the_last_of_a_dead_one_is_gone() {
    let home = Home::new();
    home.serve(&[]).kill();
    let left = std::fs::File::options()
        .write(true)
        .open(home.state().join("owner.lock"));
    let left = left.unwrap();
    left.lock().unwrap();
    let mut opens = home.command(&["volume", "open", "job"]);
    let opens = opens.stdout(std::process::Stdio::null()).spawn();
    let mut opens = opens.unwrap();
    let refused = || {
        let said = std::fs::read_to_string(home.state().join("run/start.log")).unwrap_or_default();
        said.contains("owned_elsewhere")
    };
    assert!(wait_until(LONG, refused));
    assert!(opens.try_wait().unwrap().is_none(), "it does not give up");
    left.unlock().unwrap();
    assert!(opens.wait().unwrap().success());
    assert_eq!(
        home.json(&["volume", "list"])["volumes"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

/// Whoever comes too late to start a daemon goes on to the one that was started.
#[test]
fn many_commands_at_once_on_a_new_state_root_all_find_the_daemon() {
    for round in 0..6 {
        let home = Home::new();
        let mut children = Vec::new();
        for nth in 0..8 {
            let job = format!("job-{nth}");
            let mut command = home.command(&["volume", "open", &job]);
            let piped = std::process::Stdio::piped;
            children.push(command.stdout(piped()).stderr(piped()).spawn().unwrap());
        }
        for child in children {
            let out = child.wait_with_output().unwrap();
            assert!(out.status.success(), "{round}: {}", said(&out));
        }
        let opened = home.json(&["volume", "list"])["volumes"]
            .as_array()
            .unwrap()
            .len();
        assert_eq!(opened, 8, "{round}");
        home.admin("POST", "/v1/admin/shutdown", &json!(null));
    }
}

/// A peer in a PID namespace of its own, as a sandbox makes one, is not the operator, whatever token it found.
#[test]
fn a_peer_inside_of_a_sandbox_is_refused() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    assert!(home.run(&["volume", "list"]).status.success());
    let mut command = std::process::Command::new("unshare");
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", home.path());
    let semel = env!("CARGO_BIN_EXE_semel");
    command
        .args(["--fork", "--pid", semel, "volume", "list", "--state"])
        .arg(home.state());
    match command.output() {
        Ok(out) if String::from_utf8_lossy(&out.stderr).starts_with("unshare:") => {
            eprintln!("SKIPPED: no PID namespace can be made here");
        }
        Err(e) => eprintln!("SKIPPED: unshare cannot be run: {e}"),
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            assert_eq!(out.status.code(), Some(77), "{text}");
            assert!(text.contains("inside a job's process tree"), "{text}");
        }
    }
}

#[test]
fn a_killed_daemon_is_found_again_at_its_place() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let url = daemon.url.clone();
    daemon.kill();
    assert_eq!(home.serve(&[]).url, url);
}

#[test]
fn one_process_writes() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let second = home.run(&["serve"]);
    assert_eq!(second.status.code(), Some(75));
    assert!(String::from_utf8_lossy(&second.stderr).contains("owned_elsewhere"));
    drop(daemon);
    drop(home.serve(&[]));
}

/// Nobody can reach a daemon whose state root is gone, and it would write for nobody.
#[test]
fn a_daemon_whose_state_root_is_gone_ends() {
    for away in ["removed", "moved"] {
        let home = Home::new();
        let mut daemon = home.serve(&[]);
        home.open("job", "process");
        if away == "moved" {
            std::fs::rename(home.state(), home.path().join("elsewhere")).unwrap();
        } else {
            std::fs::remove_dir_all(home.state()).unwrap();
        }
        let ended = daemon.ended(LONG).expect("it ends");
        assert_eq!(ended.code(), Some(75), "{away}");
    }
}

/// A daemon that lasts takes the place of one that a command started, and its open volumes.
#[test]
fn a_transient_daemon_gives_way_to_one_that_lasts() {
    let home = Home::new();
    let opened = home.json(&["volume", "open", "job"]);
    let about = || std::fs::read_to_string(home.state().join("daemon.json")).unwrap();
    assert!(about().contains("\"transient\":true"), "{}", about());
    let daemon = home.serve(&[]);
    assert!(about().contains("\"transient\":false"), "{}", about());
    let shown = home.json(&["volume", "show", opened["generation"].as_str().unwrap()]);
    assert_eq!(shown["volume"]["state"], "open", "{shown}");
    // It is not pushed out by another that lasts.
    let second = home.run(&["serve"]);
    assert_eq!(second.status.code(), Some(75), "{}", said(&second));
    drop(daemon);
}

#[test]
fn sigterm_lets_calls_finish_and_the_next_life_adopts_the_volume() {
    let home = Home::new();
    let held = home.path().join("held");
    let mut daemon = home.serve(&["--hold-at", &format!("begun={}", held.display())]);
    let volume = home.open("job", "process");
    let url = daemon.url.clone();
    let arguments = json!({"path": "a", "content": "1"});
    let first = std::thread::scope(|scope| {
        let call =
            scope.spawn(|| crate::harness::Conn::tcp(&url).call(&volume, "write_file", "k", &arguments));
        assert!(wait_until(LONG, || held.exists()));
        daemon.terminate();
        std::fs::remove_file(&held).unwrap();
        call.join().unwrap()
    });
    assert_eq!((first.status, &first.body["replayed"]), (200, &json!(false)));
    let status = daemon.ended(Duration::from_secs(20)).expect("it ends");
    assert_eq!(status.code(), Some(0));
    assert!(!home.state().join("semel.sock").exists() && !home.state().join("daemon.json").exists());
    let next = home.serve(&[]);
    let again = next.conn().call(&volume, "write_file", "k", &arguments);
    assert_eq!(
        (again.status, &again.body["replayed"]),
        (200, &json!(true)),
        "{}",
        again.body
    );
    let more = next
        .conn()
        .call(&volume, "write_file", "k2", &json!({"path": "b", "content": "1"}));
    assert_eq!(more.body["generation"], json!(volume.generation));
}

#[test]
fn a_half_sent_request_holds_nobody_up() {
    use std::io::Write as _;
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    let mut slow = std::net::TcpStream::connect(daemon.url.strip_prefix("http://").unwrap()).unwrap();
    slow.write_all(b"POST /v1/tools/write_file HTTP/1.1\r\nhost:")
        .unwrap();
    std::thread::sleep(Duration::from_millis(100));
    daemon.terminate();
    assert!(
        daemon.ended(Duration::from_secs(15)).is_some(),
        "a half-sent head is timed out"
    );
}

#[test]
fn a_state_root_that_others_may_write_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    std::fs::create_dir(home.state()).unwrap();
    std::fs::set_permissions(home.state(), std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(Daemon::start(&home, &[]).is_none());
    let refused = home.run(&["serve"]);
    assert_eq!(refused.status.code(), Some(78));
}

/// A path of more than 108 bytes is no obstacle to the socket.
#[test]
fn a_long_state_root_works() {
    let home = Home::new();
    let long = home.path().join("a".repeat(100)).join("b".repeat(100));
    let mut command = crate::harness::bare(&["volume", "open", "job", "--json", "--state"]);
    let out = command.arg(&long).env("HOME", home.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let opened: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let generation = opened["generation"].as_str().unwrap();
    let mut command = crate::harness::bare(&["volume", "end", generation, "--dirty", "--state"]);
    assert!(
        command
            .arg(&long)
            .env("HOME", home.path())
            .output()
            .unwrap()
            .status
            .success()
    );
}

/// A link or a `..` on the way is no obstacle to commands, whose sandbox knows real paths alone.
#[test]
fn a_state_root_behind_a_link_is_taken_by_its_real_path() {
    let home = Home::new();
    std::fs::create_dir_all(home.path().join("real/sub")).unwrap();
    std::os::unix::fs::symlink("real", home.path().join("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", home.path().join("lost")).unwrap();
    let semel = |state: &str, args: &[&str]| {
        let mut command = crate::harness::bare(args);
        command.arg("--state").arg(home.path().join(state));
        command.env("HOME", home.path()).output().unwrap()
    };
    for state in ["link/sub/../state", "real/state", "link/state"] {
        let out = semel(state, &["--json", "volume", "open", "job"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let opened: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let tree = opened["tree"].as_str().unwrap();
        let root = home.path().canonicalize().unwrap().join("real/state");
        assert!(tree.starts_with(root.to_str().unwrap()), "{tree}");
        let generation = opened["generation"].as_str().unwrap();
        assert!(semel(state, &["volume", "end", generation]).status.success());
    }
    for state in ["lost", "lost/state", "real/absent/../state"] {
        let out = semel(state, &["volume", "open", "job"]);
        assert_eq!(out.status.code(), Some(78), "{state}");
    }
}

#[test]
fn a_daemon_that_cannot_start_says_why_at_once() {
    let home = Home::new();
    std::fs::create_dir(home.state()).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(home.state(), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(
        home.state().join("journal.db"),
        "this is no database, but long enough to be read as one",
    )
    .unwrap();
    let since = std::time::Instant::now();
    let out = home.run(&["volume", "open", "job"]);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(69), "{text}");
    assert!(text.contains("file is not a database"), "{text}");
    assert!(since.elapsed() < Duration::from_secs(15), "{text}");
}
