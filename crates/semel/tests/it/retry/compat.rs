//! `semel restore --compat`, with what the gits of this machine print, and with the recorded texts of later ones.

use super::{Scene, gits};
use crate::harness::said;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

impl Scene {
    /// Asks what a git met that ended so.
    fn classified(&self, worktree: &Path, exit: i32, stderr: &[u8]) -> (i32, Value) {
        let mut command = self
            .home
            .command(&["restore", "--compat", "--json", "--stderr", "-"]);
        command
            .arg("--exit")
            .arg(exit.to_string())
            .arg("--worktree")
            .arg(worktree);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Whoever has read enough reads no more.
        drop(child.stdin.take().unwrap().write_all(stderr));
        let out = child.wait_with_output().unwrap();
        let json = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&out)));
        (out.status.code().unwrap(), json)
    }

    fn collides(&self, worktree: &Path, ran: &Output) -> Value {
        let (exit, json) = self.classified(worktree, ran.status.code().unwrap(), &ran.stderr);
        assert_eq!(
            (exit, &json["status"]),
            (0, &"collision".into()),
            "{json}\n{}",
            said(ran)
        );
        json
    }

    fn read_tree_in(&self, worktree: &Path, tree: &str) -> Command {
        let mut command = Command::new(&self.git);
        command
            .arg("-C")
            .arg(worktree)
            .args(["read-tree", "--reset", "-u", tree]);
        command.env("LC_ALL", "C").env("GIT_CONFIG_GLOBAL", "/dev/null");
        command
    }
}

/// Git's words for every shape of path: printed raw but for control bytes, and cut where its buffer ends.
#[test]
fn what_the_gits_of_this_machine_print_is_known_for_every_path() {
    let names: [&[u8]; 7] = [
        b"plain",
        b"with space and 'quotes'",
        b"new\nline",
        b"escape\x1b[31m",
        b"bytes\xff\xfe",
        b"tab\tand\x7f",
        "\u{e4}\u{f6}\u{fc}".as_bytes(),
    ];
    for git in gits() {
        let scene = Scene::of(&git, "main");
        for name in names {
            let worktree = scene.home.path().join(OsStr::from_bytes(name));
            std::fs::create_dir(&worktree).unwrap();
            made(&scene, &worktree);
            std::fs::write(worktree.join(".git/index.lock"), "").unwrap();
            let ran = scene.read_tree_in(&worktree, "HEAD^{tree}").output().unwrap();
            let json = scene.collides(&worktree, &ran);
            assert_eq!(
                (&json["form"], &json["lock"]),
                (&"classic".into(), &"held".into())
            );
            std::fs::remove_file(worktree.join(".git/index.lock")).unwrap();
            assert_eq!(scene.collides(&worktree, &ran)["lock"], "gone");
            // Another worktree's lock, another status, and one byte more are none.
            for (place, exit, more) in [
                (&scene.worktree, 128, ""),
                (&worktree, 1, ""),
                (&worktree, 128, "\n"),
            ] {
                let stderr = [ran.stderr.as_slice(), more.as_bytes()].concat();
                let (status, json) = scene.classified(place, exit, &stderr);
                assert_eq!((status, &json["status"]), (1, &"other".into()), "{json}");
            }
        }
    }
}

fn made(scene: &Scene, worktree: &Path) {
    scene.run_git(worktree, &["init", "-q"]);
    std::fs::write(worktree.join("f"), "one\n").unwrap();
    scene.run_git(worktree, &["add", "f"]);
    scene.run_git(worktree, &["commit", "-q", "-m", "one"]);
}

/// Git writes 4,096 bytes of a message; its text loses its end where the path is so long.
#[test]
fn a_text_that_git_cut_is_known_as_git_cuts_it() {
    for git in gits() {
        let scene = Scene::of(&git, "main");
        // No single path may be so long; the last steps are made from where they begin.
        let mut place = std::fs::canonicalize(scene.home.path()).unwrap();
        while place.as_os_str().len() < 3850 {
            let left = 3860 - place.as_os_str().len();
            place.push("d".repeat(left.min(200)));
        }
        std::fs::create_dir_all(&place).unwrap();
        made(&scene, &place);
        std::fs::write(place.join(".git/index.lock"), "").unwrap();
        let ran = scene.read_tree_in(&place, "HEAD^{tree}").output().unwrap();
        assert_eq!(ran.stderr.len(), 4096, "{}", said(&ran));
        assert!(!ran.stderr.ends_with(b"to continue.\n"));
        scene.collides(&place, &ran);
        let whole = [&ran.stderr[..4095], b"manually to continue.\n"].concat();
        assert_eq!(scene.classified(&place, 128, &whole).0, 1);
    }
}

/// The texts of 2.54 and later, with and without the id of an owner.
#[test]
fn the_recorded_texts_of_later_gits_are_known() {
    let scene = Scene::new();
    let lock = scene.lock.to_str().unwrap();
    let head = format!("fatal: Unable to create '{lock}': File exists.\n\n");
    let nobody = format!(
        "{head}Another git process seems to be running in this repository, or the lock file may be stale\n"
    );
    let pid_file = lock.replace("index.lock", "index~pid.lock");
    for (form, text) in [
        ("nobody", nobody.clone()),
        (
            "malformed",
            format!("warning: malformed lock pid file '{pid_file}'\n{nobody}"),
        ),
        (
            "live_owner",
            format!(
                "{head}Lock may be held by process 17; if no git process is running, the lock file may be stale (PIDs \
                 can be reused)\n"
            ),
        ),
        (
            "dead_owner",
            format!(
                "{head}Lock was held by process 17, which is no longer running; the lock file appears to be stale\n"
            ),
        ),
    ] {
        let (exit, json) = scene.classified(&scene.worktree, 128, text.as_bytes());
        assert_eq!((exit, &json["form"]), (0, &form.into()), "{json}");
        let twice = format!("{text}{text}");
        assert_eq!(scene.classified(&scene.worktree, 128, twice.as_bytes()).0, 1);
    }
    // However much there is, it is answered.
    assert_eq!(scene.classified(&scene.worktree, 128, &vec![b'x'; 1 << 20]).0, 1);
}

/// A translated text is not known: whoever asks runs Git under `LC_ALL=C`.
#[test]
fn a_translated_text_is_not_a_collision() {
    let mut met = 0;
    for git in gits() {
        let scene = Scene::of(&git, "main");
        std::fs::write(&scene.lock, "").unwrap();
        for language in ["de", "fr", "zh_CN"] {
            let mut command = scene.read_tree_in(&scene.worktree, &scene.tree);
            let ran = command
                .env("LC_ALL", "C.UTF-8")
                .env("LANGUAGE", language)
                .output()
                .unwrap();
            let english = ran.stderr.starts_with(b"fatal: Unable to create");
            met += usize::from(!english);
            let (exit, _) = scene.classified(&scene.worktree, 128, &ran.stderr);
            assert_eq!(exit, i32::from(!english), "{}", said(&ran));
        }
    }
    if met == 0 {
        eprintln!("SKIPPED: every git here speaks English only");
    }
}

/// Git says the same of whatever stands at the place of the lock: what it is comes from a look.
#[test]
fn a_collision_with_what_is_no_lock_is_refused() {
    let scene = Scene::new();
    std::fs::create_dir(&scene.lock).unwrap();
    let ran = scene.read_tree_in(&scene.worktree, &scene.tree).output().unwrap();
    let (exit, json) = scene.classified(&scene.worktree, 128, &ran.stderr);
    assert_eq!(
        (exit, &json["code"], &json["reason"]),
        (41, &"lock_unsafe".into(), &"directory".into())
    );
    let (exit, _) = scene.classified(&scene.worktree, 128, b"fatal: something else\n");
    assert_eq!(exit, 1);
    // A worktree that is none has no lock.
    std::fs::write(scene.worktree.join(".git"), "gitdir: /nonexistent\n").unwrap();
    assert_eq!(scene.classified(&scene.worktree, 128, &ran.stderr).0, 45);
}

#[test]
fn the_faces_of_the_classifier() {
    let scene = Scene::new();
    std::fs::write(&scene.lock, "").unwrap();
    let ran = scene.read_tree_in(&scene.worktree, &scene.tree).output().unwrap();
    let file = scene.home.path().join("stderr");
    std::fs::write(&file, &ran.stderr).unwrap();
    let place = scene.worktree.to_str().unwrap();
    let asked = |args: &[&str]| {
        scene
            .home
            .command(&[&["restore", "--worktree", place], args].concat())
            .output()
            .unwrap()
    };
    let file = file.to_str().unwrap();
    let out = asked(&["--compat", "--exit", "128", "--stderr", file]);
    assert_eq!(
        (out.status.code(), out.stdout.as_slice()),
        (Some(0), &b"collision; the lock is held\n"[..])
    );
    let out = asked(&["--compat", "--exit", "-1", "--stderr", file]);
    assert_eq!(
        (out.status.code(), out.stdout.as_slice()),
        (Some(1), &b"not a collision\n"[..])
    );
    for wrong in [
        &["--compat"][..],
        &["--compat", "--exit", "128"],
        &["--exit", "128", "--stderr", file],
        &[
            "--compat",
            "--exit",
            "128",
            "--stderr",
            file,
            "--tree",
            &scene.tree,
        ],
        &[],
    ] {
        assert_eq!(asked(wrong).status.code(), Some(64), "{wrong:?}");
    }
    assert_eq!(
        asked(&["--compat", "--exit", "128", "--stderr", "/nonexistent"])
            .status
            .code(),
        Some(17)
    );
    assert!(scene.lock.exists());
    assert_eq!(scene.content(), "changed\n");
}

/// A pipe that is not full yet, a FIFO that nobody writes to yet: whoever writes is waited for.
#[test]
fn standard_error_may_come_through_a_pipe() {
    let scene = Scene::new();
    std::fs::write(&scene.lock, "").unwrap();
    let ran = scene.read_tree_in(&scene.worktree, &scene.tree).output().unwrap();
    let fifo = scene.home.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let place = scene.worktree.to_str().unwrap();
    for from in [fifo.as_path(), Path::new("/dev/stdin"), Path::new("-")] {
        let args = ["restore", "--worktree", place, "--compat", "--exit", "128"];
        let mut child = scene
            .home
            .command(&args)
            .arg("--stderr")
            .arg(from)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        // Opened for writing it stands until somebody reads.
        let mut writer: Box<dyn std::io::Write> = match stdin {
            Some(stdin) if from != fifo => Box::new(stdin),
            _ => Box::new(std::fs::OpenOptions::new().write(true).open(from).unwrap()),
        };
        let (first, second) = ran.stderr.split_at(20);
        for part in [first, second] {
            writer.write_all(part).unwrap();
            writer.flush().unwrap();
        }
        drop(writer);
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{from:?} {}", said(&out));
    }
}

/// Git goes by `PWD` where it is the directory in which it was started, and so do we.
#[test]
fn a_worktree_that_one_stands_in_by_a_link_is_spelled_as_the_shell_does() {
    for git in gits() {
        let scene = Scene::of(&git, "main");
        let (main, link) = (scene.home.path().join("main"), scene.home.path().join("link"));
        std::os::unix::fs::symlink(&main, &link).unwrap();
        std::fs::write(main.join(".git/index.lock"), "").unwrap();
        let mut read_tree = Command::new(&scene.git);
        read_tree
            .args(["read-tree", "--reset", "-u", &scene.tree])
            .envs([("LC_ALL", "C"), ("GIT_CONFIG_GLOBAL", "/dev/null")])
            .current_dir(&link)
            .env("PWD", &link);
        let ran = read_tree.output().unwrap();
        let shown = link.join(".git/index.lock").display().to_string();
        assert!(
            String::from_utf8_lossy(&ran.stderr).contains(&shown),
            "{}",
            said(&ran)
        );
        let file = scene.home.path().join("stderr");
        std::fs::write(&file, &ran.stderr).unwrap();
        let asked = |worktree: &str, pwd: &Path| {
            let args = ["restore", "--compat", "--worktree", worktree, "--exit", "128"];
            let mut command = scene.home.command(&args);
            command
                .arg("--stderr")
                .arg(&file)
                .current_dir(&link)
                .env("PWD", pwd);
            command.output().unwrap().status.code()
        };
        let whole = main.display().to_string();
        for worktree in [".", "../link", "../main", whole.as_str()] {
            assert_eq!(asked(worktree, &link), Some(0), "{worktree}");
        }
        // A variable that says something else is not believed.
        for pwd in [scene.home.path(), Path::new("/nonexistent"), Path::new("link")] {
            assert_eq!(asked(".", pwd), Some(1), "{pwd:?}");
        }
    }
}
