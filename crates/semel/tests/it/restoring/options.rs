//! The options of `semel restore`, what it says to people, machines and the daemon, and what it passes through.

use super::{Lab, answer, gits};
use crate::harness::{said, signal, wait_until};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(300);

#[test]
fn the_git_that_is_named_is_used_and_told() {
    for git in gits() {
        let lab = Lab::new(&git, 2);
        let outcome = lab.restored(lab.command(&[]));
        let real = std::fs::canonicalize(&git).unwrap();
        assert_eq!(outcome["git"]["path"], real.to_str().unwrap());
        let digest = semel_core::Sha256::of(&std::fs::read(&real).unwrap()).to_string();
        assert_eq!(outcome["git"]["sha256"], digest);
        let version = lab.git_in(Path::new("/"), &["version"]);
        assert!(
            version.ends_with(outcome["git"]["version"].as_str().unwrap()),
            "{version}"
        );
        lab.refused(lab.command_by(Path::new("/nowhere/git"), &[]), 17, "not_found");
        lab.refused(lab.command_by(Path::new("/bin/true"), &[]), 78, "bad_config");
    }
}

/// One child alone writes: the others read.
#[test]
fn one_git_writes() {
    for git in gits() {
        let lab = Lab::new(&git, 4);
        let (wrapper, log) = (lab.home.path().join("git"), lab.home.path().join("log"));
        let text = format!(
            "#!/bin/sh\necho \"$1\" >> '{}'\nexec '{}' \"$@\"\n",
            log.display(),
            git.display()
        );
        crate::harness::executable(&wrapper, &text);
        for verify in ["tree", "bytes", "pristine"] {
            lab.spoil();
            std::fs::remove_file(&log).ok();
            lab.restored(lab.command_by(&wrapper, &["--verify", verify]));
            let ran = std::fs::read_to_string(&log).unwrap();
            let writes = ["read-tree", "checkout-index", "update-index", "reset", "checkout"];
            let wrote: Vec<&str> = ran.lines().filter(|line| writes.contains(line)).collect();
            assert_eq!(wrote, ["read-tree"], "{ran}");
        }
    }
}

/// A git that fails as the caller's own would: its bytes and its status.
#[test]
fn passthrough_is_gits_own_end() {
    let lab = Lab::new(&gits()[0], 2);
    let wrapper = lab.home.path().join("git");
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = read-tree ]; then printf 'fatal: own words\\nand \\377 more' >&2; exit 133; fi\nexec '{}' \"$@\"\n",
        lab.git.display()
    );
    crate::harness::executable(&wrapper, &text);
    let out = lab.command_by(&wrapper, &["--passthrough"]).output().unwrap();
    assert_eq!(
        (out.status.code(), &out.stderr[..]),
        (Some(133), &b"fatal: own words\nand \xff more"[..])
    );
    assert_eq!(answer(&out)["git_exit"], 133);
    let out = lab.command_by(&wrapper, &[]).output().unwrap();
    assert_eq!(out.status.code(), Some(46));
    assert!(
        out.stderr.starts_with(b"fatal: own words\nand \xff more"),
        "{}",
        said(&out)
    );
    assert!(out.stderr.len() > 30, "and our three lines");
    lab.nothing_left();
    // What git did not do is ours, and is said by us.
    std::fs::write(&lab.lock, "").unwrap();
    let out = lab.command(&["--passthrough", "--wait", "1s"]).output().unwrap();
    assert_eq!(out.status.code(), Some(40));
    assert!(out.stderr.starts_with(b"error: lock_timeout"), "{}", said(&out));
    std::fs::remove_file(&lab.lock).unwrap();
    // Where it succeeds it says nothing, as git does.
    let place = lab.worktree.to_str().unwrap();
    let args = [
        "restore",
        "--passthrough",
        "--worktree",
        place,
        "--tree",
        &lab.tree,
    ];
    let out = lab.home.command(&args).output().unwrap();
    assert_eq!(
        (out.status.code(), &out.stdout[..], &out.stderr[..]),
        (Some(0), &b""[..], &b""[..])
    );
}

/// What git says though it succeeds is passed on, too.
#[test]
fn words_of_a_git_that_succeeds_are_passed_on() {
    let lab = Lab::new(&gits()[0], 2);
    let wrapper = lab.home.path().join("git");
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = read-tree ] && echo 'warning: by the way' >&2\nexec '{}' \"$@\"\n",
        lab.git.display()
    );
    crate::harness::executable(&wrapper, &text);
    let out = lab.command_by(&wrapper, &[]).output().unwrap();
    assert!(out.status.success());
    assert_eq!(out.stderr, b"warning: by the way\n");
}

#[test]
fn a_repository_in_the_way_goes_only_if_that_is_said() {
    for git in gits() {
        let lab = Lab::new(&git, 2);
        std::fs::remove_file(lab.file(0)).unwrap();
        std::fs::create_dir_all(lab.file(0).join("inner")).unwrap();
        std::fs::write(lab.file(0).join("inner/work"), "precious").unwrap();
        lab.git_in(&lab.file(0).join("inner"), &["init", "-q"]);
        let refusal = lab.refused(lab.command(&[]), 15, "precondition_failed");
        assert_eq!(refusal["reason"], "nested_repository");
        assert_eq!(refusal["touched"], "nothing");
        assert_eq!(
            std::fs::read(lab.file(0).join("inner/work")).unwrap(),
            b"precious"
        );
        lab.restored(lab.command(&["--remove-nested"]));
    }
}

/// While somebody waits, the daemon says so, with what is known of the owner; afterwards it is told what was counted.
#[test]
fn status_and_metrics_show_who_waits() {
    let lab = Lab::new(&gits()[0], 2);
    let daemon = lab.home.serve_unix(&[]);
    std::fs::write(&lab.lock, "").unwrap();
    let open = std::fs::File::open(&lab.lock).unwrap();
    let child = lab
        .command(&["--wait", "10m"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let waits = || lab.home.json(&["status"])["daemon"]["lock_waits"].clone();
    assert!(
        wait_until(LONG, || waits()[0]["pid"] == child.id()),
        "{}",
        waits()
    );
    let first = waits()[0].clone();
    assert_eq!(first["worktree"], lab.worktree.to_str().unwrap());
    assert_eq!(first["bound_ms"], 600_000);
    let owner = std::process::id().to_string();
    assert!(
        !super::evidence_is_possible()
            || wait_until(LONG, || waits()[0]["owner"].to_string().contains(&owner)),
        "{}",
        waits()
    );
    let text = lab.home.run(&["status"]);
    let line = format!("waits    process {} for index.lock of ", child.id());
    assert!(said(&text).contains(&line), "{}", said(&text));
    let beat = lab.home.state().join("run/heartbeat.json");
    let shown = || std::fs::read_to_string(&beat).unwrap_or_default();
    assert!(
        wait_until(LONG, || shown().contains("\"lock_waits\":1,")),
        "{}",
        shown()
    );
    drop(open);
    std::fs::remove_file(&lab.lock).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    // In a pipe it says nothing while it waits.
    assert_eq!(out.stderr, b"");
    assert!(wait_until(LONG, || waits() == json!([])), "{}", waits());
    let told = lab.home.lines(&["log"]);
    let told = told
        .iter()
        .find(|line| line["event"] == "worktree_restored")
        .unwrap();
    assert!(
        !told.to_string().contains(lab.worktree.to_str().unwrap()),
        "no path is journaled: {told}"
    );
    drop(daemon);
}

#[test]
fn a_wait_that_is_told_in_another_form_is_refused() {
    let lab = Lab::new(&gits()[0], 1);
    let daemon = lab.home.serve_unix(&[]);
    for body in [
        json!({}),
        json!({"pid": -1, "worktree": "", "waited_ms": 0, "bound_ms": 0, "age_ms": 0}),
        json!([]),
    ] {
        let reply = lab.home.admin("POST", "/v1/admin/lock-waits", &body);
        assert_eq!((reply.status, reply.code()), (400, "bad_input"), "{body}");
    }
    drop(daemon);
}

#[test]
fn what_a_test_alone_may_ask_for_is_refused_by_name() {
    let lab = Lab::new(&gits()[0], 1);
    lab.refused(lab.command(&["--crash-at", "nowhere"]), 64, "usage");
    lab.refused(lab.command(&["--hold-at", "linked"]), 64, "usage");
}

/// Inside a job nothing is known of a state root: the worktree is taken as it is, and nobody is told.
#[test]
fn inside_a_job_it_works_without_a_state_root() {
    let lab = Lab::new(&gits()[0], 2);
    let inside = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command
            .args(["restore", "--json", "--tree", &lab.tree, "--worktree"])
            .arg(&lab.worktree)
            .args(args)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("SEMEL_JOB", "job")
            .env("HOME", lab.home.path());
        command
    };
    let outcome = lab.restored(inside(&[]));
    assert_eq!(outcome["identity"], "unpinned");
    assert!(!lab.home.path().join(".local").exists());
    lab.refused(inside(&["--require-pin"]), 45, "worktree_redirected");
    lab.refused(inside(&["--job", "job"]), 78, "bad_config");
    lab.spoil();
    let mut nowhere = inside(&[]);
    nowhere.env_remove("SEMEL_JOB").env_remove("HOME");
    lab.restored(nowhere);
}

/// A daemon that does not answer is not waited for: a finished restoration ends.
#[test]
fn a_stopped_daemon_holds_no_restoration_up() {
    let lab = Lab::new(&gits()[0], 2);
    let daemon = lab.home.serve_unix(&[]);
    signal(daemon.pid, libc::SIGSTOP);
    let mut child = lab.command(&[]).stdout(Stdio::piped()).spawn().unwrap();
    let ended = wait_until(LONG, || child.try_wait().unwrap().is_some());
    signal(daemon.pid, libc::SIGCONT);
    assert!(ended, "it waits for the daemon");
    assert!(child.wait().unwrap().success());
    lab.is_restored();
}

/// What needs the journal waits for a daemon that does not answer, and ends when it is told to.
#[test]
fn a_signal_ends_the_wait_for_a_daemon_that_does_not_answer() {
    let lab = Lab::new(&gits()[0], 2);
    let daemon = lab.home.serve_unix(&[]);
    lab.home
        .json(&["worktree", "pin", lab.worktree.to_str().unwrap()]);
    signal(daemon.pid, libc::SIGSTOP);
    for args in [&["--job", "app"][..], &["--job", "app", "--record"]] {
        let mut child = lab
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let fds = PathBuf::from(format!("/proc/{}/fd", child.id()));
        let asks = || {
            let links = std::fs::read_dir(&fds).into_iter().flatten().flatten();
            let mut links = links.filter_map(|fd| std::fs::read_link(fd.path()).ok());
            links.any(|link| link.to_string_lossy().starts_with("socket:"))
        };
        assert!(wait_until(LONG, asks));
        signal(child.id(), libc::SIGTERM);
        let ended = wait_until(LONG, || child.try_wait().unwrap().is_some());
        if !ended {
            child.kill().unwrap();
        }
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(143), "{}", said(&out));
        let told = answer(&out);
        assert_eq!(
            [&told["status"], &told["code"], &told["exit"], &told["touched"]],
            [
                &json!("cancelled"),
                &json!("daemon_unreachable"),
                &json!(143),
                &json!("nothing")
            ]
        );
    }
    signal(daemon.pid, libc::SIGCONT);
}

/// Told to end while it waits, it says so and leaves everything as it was.
#[test]
fn a_signal_ends_the_wait() {
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        ends_the_wait(number);
    }
}

/// Starts a restoration that waits for its lock through another program, once it waits.
fn waiting_by(lab: &Lab, program: &[&str]) -> Child {
    std::fs::write(&lab.lock, "").unwrap();
    let restore = lab.command(&["--stale", "never"]);
    let mut command = Command::new(program[0]);
    command.args(&program[1..]);
    command.arg(restore.get_program()).args(restore.get_args());
    for (name, value) in restore.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap();
    assert!(wait_until(LONG, || waits(lab)));
    child
}

/// Says whether a restoration waits: its private file stands ready beside the lock.
fn waits(lab: &Lab) -> bool {
    let gitdir = std::fs::read_dir(lab.lock.parent().unwrap()).unwrap();
    let mut names = gitdir.map(|entry| entry.unwrap().file_name());
    names.any(|name| name.to_string_lossy().starts_with("index.lock.semel-"))
}

fn ended(mut child: Child) -> Output {
    assert!(wait_until(LONG, || child.try_wait().unwrap().is_some()));
    child.wait_with_output().unwrap()
}

fn ends_the_wait(number: i32) {
    let lab = Lab::new(&gits()[0], 2);
    // Whoever runs this may ignore the closing of its terminal.
    let child = waiting_by(&lab, &["env", "--default-signal"]);
    signal(child.id(), number);
    let out = ended(child);
    assert_eq!(out.status.code(), Some(128 + number), "{}", said(&out));
    let told = answer(&out);
    assert_eq!(
        (&told["status"], &told["touched"]),
        (&json!("cancelled"), &json!("nothing"))
    );
    assert!(lab.lock.exists() && !waits(&lab));
}

/// Who had it ignore that a terminal is closed does not end it by that.
#[test]
fn nohup_is_heard() {
    let lab = Lab::new(&gits()[0], 2);
    let child = waiting_by(&lab, &["nohup"]);
    signal(child.id(), libc::SIGHUP);
    std::fs::remove_file(&lab.lock).unwrap();
    let out = ended(child);
    assert!(out.status.success(), "{}", said(&out));
    lab.is_restored();
}

/// What is given for a tree may be anything: it is journaled only where it is an id.
#[test]
fn what_is_no_id_is_not_journaled() {
    let lab = Lab::new(&gits()[0], 1);
    let daemon = lab.home.serve_unix(&[]);
    let secret = "SECRET-/home/me/private";
    let place = lab.worktree.to_str().unwrap();
    let out = lab.home.run(&["restore", "--worktree", place, "--tree", secret]);
    assert_eq!(out.status.code(), Some(65), "{}", said(&out));
    let out = lab
        .home
        .run(&["restore", "--worktree", place, "--tree", &lab.tree]);
    assert!(out.status.success(), "{}", said(&out));
    let told = lab.home.lines(&["log"]);
    let told: Vec<_> = told
        .iter()
        .filter(|line| line["event"] == "worktree_restored")
        .map(ToString::to_string)
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains(&lab.tree) && !told[0].contains("SECRET"),
        "{told:?}"
    );
    drop(daemon);
}

#[test]
fn a_state_root_in_the_worktree_is_refused_and_stays() {
    let lab = Lab::new(&gits()[0], 1);
    let (place, state) = (lab.worktree.to_str().unwrap(), lab.worktree.join("st"));
    std::fs::create_dir_all(state.join("worktrees")).unwrap();
    let tree = lab.tree.as_str();
    for args in [
        &["restore", "--worktree", place, "--tree", tree, "--clean"][..],
        &[
            "restore",
            "--worktree",
            place,
            "--compat",
            "--exit",
            "128",
            "--stderr",
            "-",
        ],
        &[
            "retry",
            "--worktree",
            place,
            "--tree",
            tree,
            "--stream",
            "/dev/null",
            "--",
            "true",
        ],
        &["worktree", "pin", place],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.arg("--json").arg("--state").arg(&state).args(args);
        let out = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(out.status.code(), Some(78), "{args:?} {}", said(&out));
        assert!(said(&out).contains("state_in_worktree"), "{}", said(&out));
    }
    assert!(state.join("worktrees").is_dir());
}
