//! `semel contract check` and `run` on disks that somebody else manages: the ten steps, every refusal, and what a kill
//! leaves.

use crate::harness::{Disk, Nobody, STATE, listed, mode, processes_with, said, signal, skipped, wait_until};
use serde_json::Value;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Incident 1, step by step; a wipe by hand and by ours.
#[test]
fn the_ten_steps_of_the_first_incident() {
    for ours in [false, true] {
        let disk = Disk::new();
        assert_eq!(disk.check("g-test-1", "1"), 0);
        assert_eq!(disk.check("g-test-1", "2"), 5);
        disk.write(".volume_dirty", "");
        assert_eq!(disk.check("g-test-1", "2"), 3);
        std::fs::remove_file(disk.at(".volume_dirty")).unwrap();
        std::fs::remove_file(disk.at("requirements.txt")).unwrap();
        assert_eq!(disk.check("g-test-1", "2"), 4);
        assert_eq!(disk.check("-", "2"), 2);
        if ours {
            let out = disk.run(&["wipe"], "g-test-2", "-");
            assert!(out.status.success(), "{}", said(&out));
        } else {
            std::fs::remove_dir_all(disk.path()).unwrap();
            std::fs::create_dir(disk.path()).unwrap();
        }
        disk.write("requirements.txt", "idna==3.10\n");
        assert_eq!(disk.check("g-test-2", "2"), 0);
        // The same attempt may look again; that writes nothing.
        let before = disk.picture();
        assert_eq!(disk.check("g-test-2", "2"), 0);
        assert_eq!(disk.picture(), before);
    }
}

#[test]
fn a_state_that_was_not_written_by_a_passed_check_is_never_a_pass() {
    let disk = Disk::new();
    assert_eq!(disk.check("g-1", "1"), 0);
    let whole = std::fs::read(disk.at(STATE)).unwrap();
    for cut in 0..whole.len() {
        disk.write(STATE, &whole[..cut]);
        disk.refused(&["check"], "g-1", "1", 7);
    }
    let text = String::from_utf8(whole.clone()).unwrap();
    let other_shapes = [
        "not JSON".to_owned(),
        "\0\0\0\0".to_owned(),
        "{}".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        format!("[{text}]"),
        format!("{text}{text}"),
        text.replace("{\"attempt\"", "{\"more\":1,\"attempt\""),
        text.replace("\"attempt\":\"1\"", "\"attempt\":1"),
        text.replace("\"attempt\":\"1\"", "\"attempt\":\"\""),
        text.replace("\"attempt\":\"1\"", "\"attempt\":\"2\",\"attempt\":\"1\""),
        text.replace("\"generation\":\"g-1\"", "\"generation\":null"),
        text.replace("\"generation\":\"g-1\",", ""),
        text.replace(
            "\"requirements.txt\":",
            "\"requirements.txt\":\"x\",\"requirements.txt\":",
        ),
        text.replace("\"requirements.txt\":", "\"/etc/passwd\":"),
        text.replace("\"requirements.txt\":", "\"../up\":"),
        text.split("\"locks\":").next().unwrap().to_owned() + "\"locks\":{}}",
        text.split("\"locks\":").next().unwrap().to_owned() + "\"locks\":{\"requirements.txt\":\"abc\"}}",
        text.split("\"locks\":").next().unwrap().to_owned() + "\"locks\":[]}",
    ];
    for shape in other_shapes {
        // Whatever the order of the keys is, each of these is another text.
        assert_ne!(shape.as_bytes(), whole, "{shape}");
        disk.write(STATE, &shape);
        disk.refused(&["check"], "g-1", "1", 7);
        disk.refused(&["check"], "g-2", "1", 7);
        disk.refused(&["run", "--", "true"], "g-1", "1", 7);
    }
    std::fs::remove_file(disk.at(STATE)).unwrap();
    std::fs::create_dir(disk.at(STATE)).unwrap();
    disk.refused(&["check"], "g-1", "1", 7);
    std::fs::remove_dir(disk.at(STATE)).unwrap();
    std::fs::write(disk.dir.path().join("elsewhere"), &whole).unwrap();
    symlink(disk.dir.path().join("elsewhere"), disk.at(STATE)).unwrap();
    disk.refused(&["check"], "g-1", "1", 7);
    std::fs::remove_file(disk.at(STATE)).unwrap();
    symlink("nowhere", disk.at(STATE)).unwrap();
    disk.refused(&["check"], "g-1", "1", 7);
    std::fs::remove_file(disk.at(STATE)).unwrap();
    let out = Command::new("mkfifo").arg(disk.at(STATE)).status().unwrap();
    assert!(out.success());
    let out = disk.run(&["check"], "g-1", "1");
    assert_eq!(out.status.code(), Some(7), "{}", said(&out));
}

#[test]
fn what_cannot_be_read_is_unknown() {
    let disk = Disk::new();
    let Some(nobody) = Nobody::new(&disk) else { return };
    mode(&disk.at("requirements.txt"), 0o600);
    assert_eq!(nobody.code(&disk, &["check"]), 7, "an unreadable lockfile");
    mode(&disk.at("requirements.txt"), 0o644);
    assert_eq!(nobody.code(&disk, &["check"]), 0);
    std::os::unix::fs::chown(disk.at(STATE), Some(0), Some(0)).unwrap();
    mode(&disk.at(STATE), 0o600);
    let before = disk.picture();
    assert_eq!(nobody.code(&disk, &["check"]), 7, "an unreadable state");
    assert_eq!(disk.picture(), before);
    mode(&disk.at(STATE), 0o644);
    disk.write(".generation", "g-1\n");
    mode(&disk.at(".generation"), 0o600);
    assert_eq!(nobody.code(&disk, &["check"]), 7, "an unreadable generation");
    mode(&disk.at(".generation"), 0o644);
    assert_eq!(nobody.code(&disk, &["check"]), 0);
    mode(&disk.path(), 0o311);
    assert_ne!(nobody.code(&disk, &["check"]), 0, "a disk that cannot be listed");
}

#[test]
fn of_two_concurrent_first_checks_one_passes() {
    for round in 0..50 {
        let disk = Disk::new();
        let children: Vec<_> = ["1", "2"]
            .iter()
            .map(|attempt| {
                let mut command = disk.command(&["check"], "g-1", attempt);
                command.stdout(Stdio::null()).stderr(Stdio::null());
                command.spawn().unwrap()
            })
            .collect();
        let mut codes: Vec<i32> = children
            .into_iter()
            .map(|mut child| child.wait().unwrap().code().unwrap())
            .collect();
        codes.sort_unstable();
        assert_eq!(codes, [0, 5], "round {round}");
    }
}

/// Of two runs of one attempt that begin at once, one finds the disk dirty: else the first to end would clean it
/// under the other.
#[test]
fn of_two_concurrent_runs_one_goes() {
    for round in 0..10 {
        let disk = Disk::new();
        let children: Vec<_> = (0..2)
            .map(|_| {
                let mut command = disk.command(&["run", "--", "sleep", "0.5"], "g-1", "1");
                command.stderr(Stdio::null()).spawn().unwrap()
            })
            .collect();
        let mut codes: Vec<i32> = children
            .into_iter()
            .map(|mut child| child.wait().unwrap().code().unwrap())
            .collect();
        codes.sort_unstable();
        assert_eq!(codes, [0, 3], "round {round}");
        assert!(!disk.dirty());
    }
}

#[test]
fn the_disk_and_the_generation_string_must_agree() {
    let disk = Disk::new();
    assert!(disk.run(&["wipe", "--adopt"], "g-1", "-").status.success());
    disk.write("requirements.txt", "idna==3.10\n");
    disk.refused(&["check"], "g-2", "1", 5);
    assert_eq!(disk.check("g-1", "1"), 0);
    // A new string over the same, unwiped disk.
    disk.refused(&["check"], "g-2", "2", 5);
    for odd in ["", "\n", "\u{0}"] {
        disk.write(".generation", odd);
        let out = disk.run(&["check"], "g-1", "1");
        assert!(matches!(out.status.code(), Some(5 | 7)), "{odd:?} {}", said(&out));
    }
    // Without a generation on the disk, the state of an older one passes with a warning, unless strict.
    std::fs::remove_file(disk.at(".generation")).unwrap();
    disk.refused(&["check", "--strict"], "g-2", "2", 5);
    let out = disk.run(&["check"], "g-2", "2");
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        out.status.success() && text.starts_with("warning: "),
        "{}",
        said(&out)
    );
    let state: Value = serde_json::from_slice(&std::fs::read(disk.at(STATE)).unwrap()).unwrap();
    assert_eq!(
        (state["generation"].as_str(), state["attempt"].as_str()),
        (Some("g-2"), Some("2"))
    );
}

#[test]
fn strict_refuses_a_leftover_environment() {
    let disk = Disk::new();
    let venv = Command::new("/usr/bin/python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(disk.at(".venv"))
        .status();
    if !venv.is_ok_and(|status| status.success()) {
        disk.write(".venv/pyvenv.cfg", "home = /usr/bin\n");
    }
    let out = disk.run(&["check", "--strict"], "g-1", "1");
    assert_eq!(out.status.code(), Some(21), "{}", said(&out));
    assert!(
        String::from_utf8_lossy(&out.stderr).contains(".venv"),
        "{}",
        said(&out)
    );
    assert!(!disk.at(STATE).exists());
    assert_eq!(
        disk.check("g-1", "1"),
        0,
        "lenient: as the incident's table has it"
    );
}

/// With everything wrong at once, each refusal shows in its order as the one before it is mended.
#[test]
fn the_order_of_the_checks() {
    let disk = Disk::new();
    assert_eq!(disk.check("g-1", "1"), 0);
    let good = std::fs::read(disk.at(STATE)).unwrap();
    disk.write(STATE, "{");
    disk.write(".volume_dirty", "");
    disk.write(".generation", "g-0\n");
    std::fs::remove_file(disk.at("requirements.txt")).unwrap();
    disk.refused(&["check"], "-", "-", 2);
    disk.refused(&["check"], "", "2", 2);
    disk.refused(&["check"], "g-1", "-", 2);
    disk.refused(&["check"], "g-1", " ", 2);
    disk.refused(&["check"], "g-1", "2", 3);
    std::fs::remove_file(disk.at(".volume_dirty")).unwrap();
    disk.refused(&["check"], "g-1", "2", 4);
    disk.write("requirements.txt", "idna==3.9\n");
    disk.refused(&["check"], "g-1", "2", 7);
    disk.write(STATE, &good);
    disk.refused(&["check"], "g-1", "2", 5);
    disk.refused(&["check"], "g-1", "1", 5);
    disk.write(".generation", "g-1\n");
    let out = disk.refused(&["check"], "g-1", "1", 6);
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("requirements.txt changed"),
        "{}",
        said(&out)
    );
    disk.write("requirements.txt", "idna==3.10\n");
    disk.write("uv.lock", "version = 1\n");
    disk.refused(&["check"], "g-1", "1", 6);
    std::fs::remove_file(disk.at("uv.lock")).unwrap();
    assert_eq!(disk.check("g-1", "1"), 0);
    // Without a workspace the identity still comes first.
    std::fs::remove_dir_all(disk.path()).unwrap();
    assert_eq!(disk.run(&["check"], "-", "1").status.code(), Some(2));
    assert_eq!(disk.run(&["check"], "g-1", "1").status.code(), Some(65));
}

#[test]
fn a_dirty_mark_counts_whatever_it_is() {
    let disk = Disk::new();
    let mark = disk.at(".volume_dirty");
    std::fs::create_dir(&mark).unwrap();
    disk.refused(&["check"], "g-1", "1", 3);
    std::fs::remove_dir(&mark).unwrap();
    symlink("nowhere", &mark).unwrap();
    disk.refused(&["check"], "g-1", "1", 3);
    assert!(
        disk.run(&["dirty"], "-", "-").status.success(),
        "marking a marked disk is no failure"
    );
    std::fs::remove_file(&mark).unwrap();
    assert!(disk.run(&["dirty"], "-", "-").status.success());
    disk.refused(&["run", "--", "true"], "g-1", "1", 3);
    // A wipe takes away a mark of any type, and what stands at the place of its own.
    for odd in ["file", "directory", "link"] {
        drop(std::fs::remove_file(&mark));
        match odd {
            "directory" => {
                disk.write(".volume_dirty/full", "");
                disk.write(".volume_trash", "");
            }
            "link" => {
                symlink("nowhere", &mark).unwrap();
                symlink("/", disk.at(".volume_trash")).unwrap();
            }
            _ => disk.write(".volume_dirty", ""),
        }
        let out = disk.run(&["wipe", "--adopt"], "g-1", "-");
        assert!(out.status.success(), "{odd} {}", said(&out));
        assert_eq!(listed(&disk.path()), [".generation", ".volume_clean"], "{odd}");
    }
}

#[test]
fn lockfiles_are_plain_files_at_the_root_or_where_they_are_named() {
    let disk = Disk::new();
    std::fs::rename(disk.at("requirements.txt"), disk.at("real.txt")).unwrap();
    symlink("real.txt", disk.at("requirements.txt")).unwrap();
    disk.refused(&["check"], "g-1", "1", 7);
    std::fs::remove_file(disk.at("requirements.txt")).unwrap();
    std::fs::create_dir(disk.at("requirements.txt")).unwrap();
    disk.refused(&["check"], "g-1", "1", 7);
    std::fs::remove_dir(disk.at("requirements.txt")).unwrap();
    disk.write("sub/uv.lock", "version = 1\n");
    disk.refused(&["check"], "g-1", "1", 4);
    disk.refused(&["check", "--lock", "../real.txt"], "g-1", "1", 14);
    let named = ["check", "--lock", "sub/uv.lock"];
    assert!(disk.run(&named, "g-1", "1").status.success());
    disk.refused(
        &["check", "--lock", "sub/uv.lock", "--lock", "other.lock"],
        "g-1",
        "1",
        7,
    );
    // Not naming it any more is a lockfile that vanished.
    disk.refused(&["check"], "g-1", "1", 4);
    disk.write("sub/uv.lock", "version = 2\n");
    disk.refused(&named, "g-1", "1", 6);
    std::fs::rename(disk.at("sub"), disk.at("other")).unwrap();
    symlink("other", disk.at("sub")).unwrap();
    disk.refused(&named, "g-1", "1", 7);
    for name in [
        "uv.lock",
        "poetry.lock",
        "package-lock.json",
        "Cargo.lock",
        "go.sum",
    ] {
        let disk = Disk::new();
        std::fs::remove_file(disk.at("requirements.txt")).unwrap();
        disk.write(name, "anything: no hashes are asked for\n");
        assert_eq!(disk.check("g-1", "1"), 0, "{name}");
    }
}

#[test]
fn flags_win_over_variables_and_an_empty_one_is_none() {
    let disk = Disk::new();
    let flags = ["check", "--json", "--generation", "g-flag", "--attempt", "7"];
    let out = disk.run(&flags, "g-env", "1");
    let said_by: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&said_by["generation"], &said_by["attempt"]),
        (&"g-flag".into(), &"7".into())
    );
    disk.refused(&["check", "--generation", ""], "g-env", "1", 2);
    let mut here = disk.command(&["check"], "g-flag", "7");
    here.env("WORKSPACE", "").current_dir(disk.path());
    let out = here.output().unwrap();
    assert!(
        out.status.success(),
        "an empty WORKSPACE is the current directory: {}",
        said(&out)
    );
    let mut elsewhere = disk.command(&["check", "--workspace"], "g-flag", "7");
    elsewhere.arg(disk.path()).env("WORKSPACE", "/nowhere");
    assert!(elsewhere.output().unwrap().status.success());
    // Two identities that are no text must not look the same.
    let mut bytes = disk.command(&["check"], "g-flag", "-");
    bytes.env("JOB_ATTEMPT", OsString::from_vec(vec![0xff]));
    assert_eq!(bytes.output().unwrap().status.code(), Some(2));
    let out = disk.run(&["check", "--json"], "g-flag", "8");
    let refusal: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&refusal["code"], &refusal["exit"]),
        (&"generation_reused".into(), &5.into())
    );
    assert_eq!(
        disk.run(&["check", "--surprise"], "g-flag", "7").status.code(),
        Some(64)
    );
}

#[test]
fn run_passes_the_exit_status_through_and_cleans_only_after_zero() {
    for (script, code) in [
        ("test -e .volume_dirty && test \"$WORKSPACE\" = \"$(pwd)\"", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        let disk = Disk::new();
        let out = disk.run(&["run", "--", "sh", "-c", script], "g-1", "1");
        assert_eq!(out.status.code(), Some(code), "{script}: {}", said(&out));
        assert_eq!(disk.dirty(), code != 0, "{script}");
        assert_eq!(disk.check("g-1", "1"), if code == 0 { 0 } else { 3 }, "{script}");
    }
    let disk = Disk::new();
    let out = disk.run(&["run", "--json", "--", "sh", "-c", "exit 9"], "g-1", "1");
    let verdict: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&verdict["status"], &verdict["child_exit"]),
        (&"dirty".into(), &9.into())
    );
    // What cannot be started dirties nothing.
    let disk = Disk::new();
    let out = disk.run(&["run", "--", "no-such-program"], "g-1", "1");
    assert_eq!(out.status.code(), Some(17), "{}", said(&out));
    assert!(!disk.dirty() && !disk.at(STATE).exists());
    // Standard input and output are the command's own.
    let mut command = disk.command(&["run", "--", "cat"], "g-1", "1");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through").unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success() && out.stdout == b"through", "{}", said(&out));
}

/// A mark that somebody else set while the command ran is not lifted with the run's own.
#[test]
fn a_mark_that_came_meanwhile_stays() {
    let disk = Disk::new();
    let semel = env!("CARGO_BIN_EXE_semel");
    let script = format!("'{semel}' contract dirty");
    let out = disk.run(&["run", "--json", "--", "sh", "-c", &script], "g-1", "1");
    assert_eq!(out.status.code(), Some(3), "{}", said(&out));
    assert_eq!(reason(&out), "marked_meanwhile", "{}", said(&out));
    assert_eq!(disk.check("g-1", "1"), 3);
}

/// A workspace that is a git repository, with what its command may do: `EMPTY` is what a checkout in CI does first.
fn cloned() -> Disk {
    let disk = Disk::new();
    let init = Command::new("git")
        .arg("init")
        .arg("-q")
        .arg(disk.path())
        .status();
    assert!(init.unwrap().success());
    disk
}

const EMPTY: &str = "git clean -ffdxq";

/// Says whether the workspace keeps attributes, without which a kill beside a removed mark leaves no trace.
fn lasting(disk: &Disk) -> bool {
    let probe = disk.run(&["run", "--", "true"], "g-probe", "1");
    assert!(probe.status.success(), "{}", said(&probe));
    for name in [STATE, ".generation"] {
        drop(std::fs::remove_file(disk.at(name)));
    }
    let kept = probe.stderr.is_empty();
    if !kept {
        skipped("the filesystem of temporary files keeps no attributes");
    }
    kept
}

fn reason(out: &std::process::Output) -> String {
    let refusal: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
    refusal["reason"].as_str().unwrap_or_default().to_owned()
}

/// What a command takes away of the contract while it runs: the exit, and a disk that no later attempt is told is clean.
#[test]
fn a_command_that_removes_mark_or_state_leaves_a_dirty_disk() {
    let other = r#"{"attempt":"1","generation":"g-1","locks":{}}"#;
    for (script, code, why) in [
        (
            format!("{EMPTY}; echo 'idna==3.10' > requirements.txt; exit 1"),
            7,
            "state_removed",
        ),
        (
            format!("{EMPTY}; echo 'idna==3.10' > requirements.txt"),
            7,
            "state_removed",
        ),
        ("rm -f .volume_dirty; exit 1".to_owned(), 1, ""),
        ("rm -f .volume_dirty".to_owned(), 3, "mark_removed"),
        ("echo other > .volume_dirty".to_owned(), 3, "mark_removed"),
        (
            "rm -f .volume_dirty; mkdir .volume_dirty".to_owned(),
            3,
            "mark_removed",
        ),
        ("echo more >> .volume_dirty".to_owned(), 3, "marked_meanwhile"),
        ("rm -f .workspace_contract.json".to_owned(), 7, "state_removed"),
        (
            format!("echo '{other}' > .workspace_contract.json; exit 4"),
            7,
            "state_removed",
        ),
        // Another directory in its place, with all that a lockfile needs.
        (
            "cp -r . ../new; mv ../disk ../old; mv ../new ../disk".to_owned(),
            7,
            "state_removed",
        ),
        (
            "mkdir ../new; cp requirements.txt ../new; cd ..; rm -rf disk; mv new disk; exit 1".to_owned(),
            7,
            "state_removed",
        ),
    ] {
        let disk = cloned();
        let out = disk.run(&["run", "--json", "--", "sh", "-c", &script], "g-1", "1");
        assert_eq!(out.status.code(), Some(code), "{script}: {}", said(&out));
        assert_eq!(reason(&out), why, "{script}: {}", said(&out));
        assert!(disk.dirty(), "{script}");
        for attempt in ["1", "2"] {
            disk.refused(&["check"], "g-1", attempt, 3);
        }
        disk.refused(&["run", "--", "true"], "g-1", "2", 3);
        // A later one, too, may begin by emptying the workspace.
        if lasting(&cloned()) {
            let clean = Command::new("sh")
                .arg("-c")
                .arg(EMPTY)
                .stderr(Stdio::null())
                .current_dir(disk.path())
                .status();
            clean.unwrap();
            disk.write("requirements.txt", "idna==3.10\n");
            drop(std::fs::remove_file(disk.at(".volume_dirty")));
            disk.refused(&["check"], "g-1", "2", 3);
            disk.refused(&["check", "--strict"], "g-2", "2", 5);
            assert_eq!(
                disk.run(&["check"], "g-2", "2").status.code(),
                Some(0),
                "{script}"
            );
        }
    }
    // The workspace itself taken away: nothing is left to mark.
    let disk = Disk::new();
    let out = disk.run(&["run", "--", "sh", "-c", "rm -rf ../disk"], "g-1", "1");
    assert_eq!(out.status.code(), Some(7), "{}", said(&out));
    assert!(!disk.path().exists());
}

/// The mark of a run on the workspace itself goes with a clean end, and with a wipe, which takes the disk for ours by it.
#[test]
fn the_mark_of_a_run_goes_with_a_clean_end_and_with_a_wipe() {
    let disk = Disk::new();
    if !lasting(&disk) {
        return;
    }
    assert!(disk.run(&["run", "--", "true"], "g-1", "1").status.success());
    assert_eq!(disk.check("g-1", "1"), 0);
    let out = disk.run(
        &[
            "run",
            "--",
            "sh",
            "-c",
            "rm -rf .volume_dirty .workspace_contract.json; exit 1",
        ],
        "g-1",
        "1",
    );
    assert_eq!(out.status.code(), Some(7), "{}", said(&out));
    drop(std::fs::remove_file(disk.at(".volume_dirty")));
    disk.refused(&["check"], "g-1", "1", 3);
    let out = disk.run(&["wipe"], "g-1", "-");
    assert!(out.status.success(), "{}", said(&out));
    disk.write("requirements.txt", "idna==3.10\n");
    let out = disk.run(&["check", "--strict"], "g-1", "2");
    assert!(out.status.success() && out.stderr.is_empty(), "{}", said(&out));
}

/// A kill while the mark is gone: what the command removed is in nobody's way, but the run is known.
#[test]
fn a_run_that_is_killed_while_its_mark_is_gone_is_known() {
    for removal in [
        EMPTY,
        "rm -f .volume_dirty",
        "rm -rf .volume_dirty .workspace_contract.json",
    ] {
        let disk = cloned();
        if !lasting(&disk) {
            return;
        }
        let script = format!("{removal}; echo 'idna==3.10' > requirements.txt;");
        let mut run = running(&disk, &script);
        assert!(!disk.dirty(), "{removal}");
        // Another attempt that looks while it runs is refused as well.
        disk.refused(&["check"], "g-1", "2", 3);
        signal(run.child.id(), libc::SIGKILL);
        assert_eq!(run.child.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(run.all_gone(), "{:?}", processes_with(&run.marker));
        for attempt in ["1", "2"] {
            disk.refused(&["check"], "g-1", attempt, 3);
            disk.refused(&["run", "--", "true"], "g-1", attempt, 3);
        }
        // A signal that we can act upon leaves a file, too.
        let disk = cloned();
        let mut run = running(&disk, &script);
        signal(run.child.id(), libc::SIGTERM);
        assert!(
            matches!(run.child.wait().unwrap().code(), Some(7 | 143)),
            "{removal}"
        );
        assert!(disk.dirty(), "{removal}");
    }
}

struct Running {
    child: std::process::Child,
    marker: String,
}

/// A run whose command starts a grandchild in a session of its own.
fn running(disk: &Disk, trap: &str) -> Running {
    let marker = format!(
        "semel-contract-{}-{}",
        std::process::id(),
        disk.dir.path().display()
    );
    let script = format!("{trap} setsid sleep 300 & touch started; sleep 300 & wait; sleep 300");
    let mut command = disk.command(&["run", "--", "sh", "-c", &script], "g-1", "1");
    command.env("MARKER", &marker).process_group(0);
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(wait_until(Duration::from_secs(20), || disk
        .at("started")
        .exists()));
    assert!(wait_until(Duration::from_secs(20), || processes_with(&marker)
        .len()
        >= 4));
    Running { child, marker }
}

impl Running {
    fn all_gone(&self) -> bool {
        wait_until(Duration::from_secs(10), || {
            processes_with(&self.marker).is_empty()
        })
    }
}

#[test]
fn a_killed_run_leaves_the_disk_dirty() {
    let disk = Disk::new();
    let mut run = running(&disk, "");
    signal(run.child.id(), libc::SIGKILL);
    assert_eq!(run.child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(run.all_gone(), "{:?}", processes_with(&run.marker));
    assert_eq!(disk.check("g-1", "1"), 3);
}

#[test]
fn a_signal_ends_the_whole_tree() {
    for (name, code) in [(libc::SIGTERM, 143), (libc::SIGINT, 130)] {
        let disk = Disk::new();
        let mut run = running(&disk, "");
        signal(run.child.id(), name);
        assert_eq!(run.child.wait().unwrap().code(), Some(code));
        assert!(
            processes_with(&run.marker).is_empty(),
            "nothing is left when it returns"
        );
        assert_eq!(disk.check("g-1", "1"), 3);
    }
}

#[test]
fn a_second_signal_kills_at_once() {
    let disk = Disk::new();
    let mut run = running(&disk, "trap '' TERM;");
    let since = Instant::now();
    signal(run.child.id(), libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(300));
    assert!(run.child.try_wait().unwrap().is_none(), "it gets its grace");
    signal(run.child.id(), libc::SIGTERM);
    assert_eq!(run.child.wait().unwrap().code(), Some(143));
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
    assert!(run.all_gone());
}
