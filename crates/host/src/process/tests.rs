//! Everything here runs real programs, with nothing around them or a supervisor.

use super::{Cancel, Command, Confinement, End, Ended, Orphan, Output, Stdin, TreeEnded, run};
use crate::sandbox::tests::{in_due_time, until};
use semel_core::Code;
use semel_core::confinement::Confinement as Reached;
use std::time::Duration;

fn sh(script: &str) -> Command {
    Command::new("/bin/sh", "/")
        .args(["-c", script])
        .var("PATH", "/usr/bin:/bin")
}

fn supervised(mut command: Command) -> Command {
    command.confinement = Confinement::Supervised;
    command
}

fn go(command: &Command) -> Ended {
    run(command, &Cancel::new().unwrap()).unwrap()
}

fn refused(command: &Command) -> semel_core::Refusal {
    run(command, &Cancel::new().unwrap()).unwrap_err().into_refusal()
}

/// Lists the processes whose command line holds a word.
fn alive(word: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| line.windows(word.len()).any(|part| part == word.as_bytes()))
        .count()
}

#[test]
fn status_signal_and_streams_are_told() {
    for wrap in [|c| c, supervised] {
        let ended = go(&wrap(sh("echo out; echo err >&2; exit 3")));
        assert_eq!(ended.end, End::Exited(3));
        assert_eq!(
            (&ended.stdout[..], &ended.stderr[..]),
            (&b"out\n"[..], &b"err\n"[..])
        );
        assert_eq!(ended.level.confinement, Reached::None);
        assert!(!ended.truncated.any());
        assert_eq!(go(&wrap(sh("kill -SEGV $$"))).end, End::Signalled(libc::SIGSEGV));
        assert!(go(&wrap(sh("true"))).end.success());
    }
    assert_eq!(go(&sh("true")).tree_ended, TreeEnded::Unproved);
    assert_eq!(go(&supervised(sh("true"))).tree_ended, TreeEnded::Proved);
}

#[test]
fn both_pipes_fill_and_the_rest_is_counted() {
    let mut command = sh("head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2; echo end");
    command.output = Output::Capture { cap_bytes: 100_000 };
    let ended = go(&command);
    assert_eq!((ended.stdout.len(), ended.stderr.len()), (100_000, 100_000));
    assert_eq!(ended.truncated.stdout_bytes, 3_000_004 - 100_000);
    assert_eq!(ended.truncated.stderr_bytes, 2_000_000 - 100_000);
    assert!(ended.end.success());
}

#[test]
fn input_is_given_whole_or_left_where_nobody_reads() {
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let mut command = sh("cat");
    command.stdin = Stdin::Bytes(bytes.clone());
    command.output = Output::Capture { cap_bytes: 1 << 30 };
    assert!(go(&command).stdout == bytes);
    let mut command = sh("exec <&-; sleep 0.1; echo done");
    command.stdin = Stdin::Bytes(bytes);
    assert_eq!(go(&command).stdout, b"done\n");
    assert_eq!(go(&sh("cat; echo end")).stdout, b"end\n");
}

#[test]
fn output_goes_to_files_up_to_the_cap() {
    let dir = tempfile::tempdir().unwrap();
    let (stdout, stderr) = (dir.path().join("out"), dir.path().join("err"));
    std::fs::write(&stdout, "what was there before").unwrap();
    let mut command = sh("echo 1234567890; echo err >&2");
    command.output = Output::Files {
        stdout: stdout.clone(),
        stderr: stderr.clone(),
        cap_bytes: 6,
    };
    let ended = go(&command);
    assert_eq!(std::fs::read(&stdout).unwrap(), b"123456");
    assert_eq!(std::fs::read(&stderr).unwrap(), b"err\n");
    assert_eq!(
        (ended.truncated.stdout_bytes, ended.truncated.stderr_bytes),
        (5, 0)
    );
    assert!(ended.stdout.is_empty());
    // Nothing is written through a symlink.
    std::fs::remove_file(&stderr).unwrap();
    std::os::unix::fs::symlink("elsewhere", &stderr).unwrap();
    assert_eq!(refused(&command).code, Code::IoFailed);
    assert!(!dir.path().join("elsewhere").exists());
}

#[test]
fn a_full_disk_loses_output_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = sh("echo 1234567890");
    command.output = Output::Files {
        stdout: "/dev/full".into(),
        stderr: dir.path().join("err"),
        cap_bytes: 100,
    };
    let ended = go(&command);
    assert_eq!((ended.end, ended.truncated.stdout_bytes), (End::Exited(0), 11));
}

#[test]
fn what_cannot_begin_is_refused_by_name() {
    let cases = [
        (
            Command::new("/no/such/program", "/"),
            Code::NotFound,
            "/no/such/program",
        ),
        (
            Command::new("/bin/sh", "/no/such/dir"),
            Code::NotFound,
            "/no/such/dir",
        ),
        (Command::new("sh", "/"), Code::BadInput, "sh"),
        (Command::new("/bin/sh", "."), Code::BadInput, "."),
        (Command::new("/", "/"), Code::BadInput, "/"),
        (Command::new("/bin/sh", "/bin/sh"), Code::BadInput, "/bin/sh"),
        (sh("").arg("a\0b"), Code::BadInput, "a\\u{0}b"),
        (sh("").var("A=B", ""), Code::BadInput, "A=B"),
        (sh("").var("", "x"), Code::BadInput, ""),
        (Command::new("/etc/passwd", "/"), Code::IoFailed, "/etc/passwd"),
        (
            supervised(Command::new("/etc/passwd", "/")),
            Code::IoFailed,
            "/etc/passwd",
        ),
    ];
    for (command, code, name) in cases {
        let refusal = refused(&command);
        assert_eq!(
            (refusal.code, &refusal.names[..]),
            (code, &[name.to_owned()][..]),
            "{refusal}"
        );
    }
}

#[test]
fn the_environment_is_what_was_given_and_a_git_that_only_looks_takes_no_lock() {
    for wrap in [|c| c, supervised] {
        let env = || Command::new("/usr/bin/env", "/");
        assert_eq!(
            go(&wrap(env().var("A", "1"))).stdout,
            b"A=1\nGIT_OPTIONAL_LOCKS=0\n"
        );
        assert_eq!(go(&wrap(env())).stdout, b"GIT_OPTIONAL_LOCKS=0\n");
        assert_eq!(
            go(&wrap(env().var("GIT_OPTIONAL_LOCKS", "1"))).stdout,
            b"GIT_OPTIONAL_LOCKS=1\n",
            "whoever says otherwise means it"
        );
    }
}

#[test]
fn a_deadline_ends_the_group() {
    for wrap in [|c| c, supervised] {
        let mark = format!(
            "{}.{}",
            100_000 + std::process::id(),
            u8::from(wrap(sh("")).confinement == Confinement::None)
        );
        let mut command = wrap(sh(&format!(
            "trap '' TERM; echo deaf; sleep {mark} & while :; do sleep {mark}; done"
        )));
        let ended = in_due_time(|pace| {
            command.deadline = Some(Duration::from_millis(200) * pace);
            command.grace = Duration::from_millis(200) * pace;
            let ended = go(&command);
            assert_eq!(ended.end, End::TimedOut);
            let deaf = !ended.stdout.is_empty();
            assert!(!deaf || ended.took >= Duration::from_millis(400) * pace);
            deaf.then_some(ended)
        });
        // Only a supervisor waits for all of them; the others were killed, and are on their way.
        let proved = ended.tree_ended == TreeEnded::Proved;
        assert_eq!(proved, command.confinement == Confinement::Supervised);
        assert!(alive(&mark) == 0 || !proved && until(|| alive(&mark) == 0));
    }
}

#[test]
fn a_supervisor_ends_what_left_the_group() {
    let mark = format!("{}", 300_000 + std::process::id());
    let script = format!(
        "for i in 1 2 3; do (setsid sh -c 'trap : TERM; (sleep {mark}; sleep {mark}) &' &) ; done; sleep 0.3"
    );
    let ended = go(&supervised(sh(&script)));
    assert_eq!((ended.end, ended.tree_ended), (End::Exited(0), TreeEnded::Proved));
    assert_eq!(alive(&mark), 0);
}

#[test]
fn a_cancelled_command_ends() {
    for wrap in [|c| c, supervised] {
        let cancel = Cancel::new().unwrap();
        cancel.cancel();
        assert!(cancel.is_cancelled());
        let ended = run(&wrap(sh("sleep 1000")), &cancel).unwrap();
        assert_eq!(ended.end, End::Cancelled);
        let mut command = wrap(sh("trap '' TERM; while :; do sleep 0.05; done"));
        command.grace = Duration::from_secs(3600);
        cancel.kill();
        assert_eq!(run(&command, &cancel).unwrap().end, End::Cancelled);
    }
}

#[test]
fn many_run_at_once_and_none_ends_another() {
    std::thread::scope(|scope| {
        for n in 0..16 {
            scope.spawn(move || {
                let wrap: fn(Command) -> Command = if n % 2 == 0 { |c| c } else { supervised };
                let ended = go(&wrap(sh(&format!(
                    "(sleep 1000 &); sleep 0.1; echo {n}; exit {n}"
                ))));
                assert_eq!(ended.end, End::Exited(n));
                assert_eq!(ended.stdout, format!("{n}\n").as_bytes());
            });
        }
    });
}

/// A parent of its own, which the test below kills.
#[test]
fn parent_of_another_test() {
    let Some(place) = std::env::var_os("SEMEL_TEST_ORPHAN") else {
        return;
    };
    let mut command = sh("trap 'rm lock; exit' TERM; touch lock; while :; do sleep 0.02; done");
    command.cwd = place.into();
    command.orphan = Orphan::Asked;
    go(&command);
}

#[test]
fn an_orphan_that_is_asked_takes_its_lock_away() {
    let place = tempfile::tempdir().unwrap();
    let lock = place.path().join("lock");
    let mut parent = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process::tests::parent_of_another_test"])
        .env("SEMEL_TEST_ORPHAN", place.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    assert!(until(|| lock.exists()));
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(until(|| !lock.exists()), "it was killed with its lock");
}
