//! `semel retry`, with the real binary and real git: what is tried again, and all that is not.

mod compat;
mod streams;

use crate::harness::{Home, executable, said, signal, wait_until};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
/// What the stream holds before anything is tried.
const EVENTS: &str =
    "{\"event\":\"RunStarted\",\"run\":\"inner\"}\n{\"event\":\"RunFailed\",\"run\":\"inner\"}\n";

/// A linked worktree that somebody changed, and the event stream of the run that is to restore it.
pub(crate) struct Scene {
    pub(crate) home: Home,
    pub(crate) git: PathBuf,
    pub(crate) worktree: PathBuf,
    pub(crate) tree: String,
    pub(crate) lock: PathBuf,
    pub(crate) stream: PathBuf,
    /// Gets a line for each try.
    pub(crate) tries: PathBuf,
}

/// Every git of this machine.
fn gits() -> Vec<PathBuf> {
    let found = ["/usr/local/bin/git", "/usr/bin/git"].map(PathBuf::from);
    let here: Vec<PathBuf> = found.into_iter().filter(|git| git.exists()).collect();
    if here.len() < 2 {
        eprintln!(
            "SKIPPED: two versions of git are wanted, and {} is here",
            here.len()
        );
    }
    assert!(!here.is_empty());
    here
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::of(&gits()[0], "main")
    }

    fn of(git: &Path, name: &str) -> Self {
        let home = Home::new();
        let root = std::fs::canonicalize(home.path()).unwrap();
        let repository = root.join(name);
        std::fs::create_dir(&repository).unwrap();
        let worktree = root.join("worktree");
        let mut scene = Self {
            git: git.to_owned(),
            tree: String::new(),
            lock: PathBuf::new(),
            stream: worktree.join(".smithers/executions/inner/logs/stream.ndjson"),
            tries: root.join("tries"),
            worktree,
            home,
        };
        scene.run_git(&repository, &["init", "-q", "-b", "main"]);
        std::fs::write(repository.join("f"), "asked\n").unwrap();
        scene.run_git(&repository, &["add", "-A"]);
        scene.run_git(&repository, &["commit", "-q", "-m", "one"]);
        let place = scene.worktree.to_str().unwrap();
        scene.run_git(&repository, &["worktree", "add", "-q", place, "-b", "agent"]);
        let index = ["rev-parse", "--path-format=absolute", "--git-path", "index"];
        scene.lock = format!("{}.lock", scene.run_git(&scene.worktree, &index)).into();
        scene.tree = scene.run_git(&scene.worktree, &["rev-parse", "HEAD^{tree}"]);
        std::fs::write(scene.worktree.join("f"), "changed\n").unwrap();
        std::fs::create_dir_all(scene.stream.parent().unwrap()).unwrap();
        std::fs::write(&scene.stream, EVENTS).unwrap();
        scene
    }

    /// The same place and paths, to be told otherwise in a part.
    fn clone_of(scene: &Self) -> Self {
        Self {
            home: Home::new(),
            git: scene.git.clone(),
            worktree: scene.worktree.clone(),
            tree: scene.tree.clone(),
            lock: scene.lock.clone(),
            stream: scene.stream.clone(),
            tries: scene.tries.clone(),
        }
    }

    pub(crate) fn run_git(&self, dir: &Path, args: &[&str]) -> String {
        let mut command = Command::new(&self.git);
        command
            .args(["-c", "user.name=A", "-c", "user.email=a@example.org"])
            .args(args)
            .current_dir(dir)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null");
        let out = command.output().unwrap();
        assert!(out.status.success(), "git {args:?}: {}", said(&out));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    /// The restoration as the helper does it: once, by git. It notes its try when git has answered.
    pub(crate) fn read_tree(&self) -> String {
        format!(
            "'{}' -C '{}' read-tree --reset -u {}; s=$?; echo try >> '{}'; exit $s",
            self.git.display(),
            self.worktree.display(),
            self.tree,
            self.tries.display()
        )
    }

    /// `semel retry` around a script, with the stream by its template.
    pub(crate) fn retry(&self, args: &[&str], script: &str) -> Command {
        let stream = [
            "--stream-template",
            ".smithers/executions/{run}/logs/stream.ndjson",
            "--run",
            "inner",
        ];
        self.retry_with(&[&stream, args].concat(), script)
    }

    pub(crate) fn retry_with(&self, args: &[&str], script: &str) -> Command {
        let place = self.worktree.to_str().unwrap();
        let fixed = ["retry", "--json", "--worktree", place, "--tree", &self.tree];
        let mut command = self.home.command(&[]);
        command
            .args(fixed)
            .args(args)
            .args(["--", "sh", "-c", script])
            .current_dir(self.home.path())
            .env("LC_ALL", "C");
        command
    }

    pub(crate) fn tried(&self) -> usize {
        std::fs::read_to_string(&self.tries)
            .unwrap_or_default()
            .lines()
            .count()
    }

    /// Lets the lock go as soon as so many tries have met it.
    pub(crate) fn released_after(&self, tries: usize) -> std::thread::JoinHandle<()> {
        std::fs::write(&self.lock, "").unwrap();
        let (lock, notes) = (self.lock.clone(), self.tries.clone());
        std::thread::spawn(move || {
            let met = || {
                std::fs::read_to_string(&notes)
                    .unwrap_or_default()
                    .lines()
                    .count()
                    >= tries
            };
            assert!(wait_until(SOON, met));
            std::fs::remove_file(lock).unwrap();
        })
    }

    pub(crate) fn content(&self) -> String {
        std::fs::read_to_string(self.worktree.join("f")).unwrap()
    }

    /// What git itself says of the lock that is held.
    fn text(&self) -> Vec<u8> {
        let mut command = Command::new(&self.git);
        command.arg("-C").arg(&self.worktree);
        command
            .args(["read-tree", "--reset", "-u", &self.tree])
            .env("LC_ALL", "C");
        command.output().unwrap().stderr
    }
}

/// The outcome: the last line of standard output.
pub(crate) fn outcome(out: &Output) -> Value {
    let text = String::from_utf8_lossy(&out.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("{}", said(out)));
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {}", said(out)))
}

pub(crate) fn count(outcome: &Value, name: &str) -> u64 {
    outcome["counts"][name].as_u64().unwrap()
}

#[test]
fn an_exact_collision_whose_lock_goes_succeeds_on_its_second_try() {
    for git in gits() {
        let scene = Scene::of(&git, "main");
        std::fs::write(&scene.lock, "").unwrap();
        let text = scene.text();
        let holder = scene.released_after(1);
        let script = format!("echo out; {}", scene.read_tree());
        let out = scene.retry(&[], &script).output().unwrap();
        holder.join().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", said(&out));
        assert_eq!((scene.tried(), scene.content().as_str()), (2, "asked\n"));
        assert_eq!(out.stderr, text, "what the first try said, and nothing of ours");
        assert!(out.stdout.starts_with(b"out\nout\n{"), "{}", said(&out));
        let outcome = outcome(&out);
        assert_eq!(
            (&outcome["end"], &outcome["status"]),
            (&"succeeded".into(), &"succeeded".into())
        );
        for (name, n) in [
            ("tries", 2),
            ("failed", 1),
            ("exact_command", 1),
            ("exact_lock", 1),
        ] {
            assert_eq!(count(&outcome, name), n, "{name}");
        }
        for (name, n) in [
            ("stream_identical", 1),
            ("no_owner_text", 1),
            ("aggregate", 1),
            ("waits", 1),
        ] {
            assert_eq!(count(&outcome, name), n, "{name}");
        }
        assert!(!scene.lock.exists());
        assert_eq!(std::fs::read_to_string(&scene.stream).unwrap(), EVENTS);
    }
}

#[test]
fn an_unrelated_failure_has_one_try_and_keeps_every_byte() {
    let scene = Scene::new();
    let script = format!(
        "echo try >> '{}'; printf 'fatal: \\377\\000 no\\n\\n' >&2; printf partial; exit 7",
        scene.tries.display()
    );
    let out = scene.retry(&[], &script).output().unwrap();
    assert_eq!(out.status.code(), Some(7), "{}", said(&out));
    assert_eq!(out.stderr, b"fatal: \xff\x00 no\n\n");
    assert!(out.stdout.starts_with(b"partial{"));
    assert_eq!(scene.tried(), 1);
    let json: Value = serde_json::from_slice(&out.stdout["partial".len()..]).unwrap();
    assert_eq!(
        (&json["end"], &json["child_exit"]),
        (&"unrelated_failure".into(), &7.into())
    );

    // The very collision with anything more, less, or another status is unrelated as well; and so is another lock's.
    std::fs::write(&scene.lock, "").unwrap();
    let text = String::from_utf8(scene.text()).unwrap();
    let other = text
        .replace("agent", "other")
        .replace("worktrees/worktree", "worktrees/other");
    assert_ne!(other, text);
    for (script, exit) in [
        ("printf '%s\\n' \"$TEXT\" >&2; exit 1", 1),
        ("printf '%s\\n\\n' \"$TEXT\" >&2; exit 128", 128),
        ("printf 'error\\n%s\\n' \"$TEXT\" >&2; exit 128", 128),
        ("printf '%s' \"$TEXT\" >&2; exit 128", 128),
        ("printf '%s\\n' \"$OTHER\" >&2; exit 128", 128),
        ("printf '%s\\n' \"$TEXT\" >&2; kill -9 $$", 137),
        // More than is kept to be compared with.
        (
            "printf '%s\\n' \"$TEXT\" >&2; head -c 20000 /dev/zero >&2; exit 128",
            128,
        ),
    ] {
        let out = scene
            .retry(&[], script)
            .env("TEXT", text.trim_end())
            .env("OTHER", other.trim_end())
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(exit), "{script}: {}", said(&out));
        let outcome = outcome(&out);
        assert_eq!(outcome["end"], "unrelated_failure", "{script}");
        assert_eq!(
            (count(&outcome, "tries"), count(&outcome, "aggregate")),
            (1, 0),
            "{script}"
        );
    }
}

/// A program that runs git itself and prints what its runtime says: the named command has to be the restoration.
#[test]
fn a_collision_may_be_told_with_the_command_that_met_it() {
    let scene = Scene::new();
    std::fs::write(&scene.lock, "").unwrap();
    let text = String::from_utf8(scene.text()).unwrap();
    for (tree, end) in [(scene.tree.as_str(), "exhausted"), ("HEAD", "unrelated_failure")] {
        let script = format!(
            "printf 'Command failed: git read-tree --reset -u {tree}\\n%s\\n' \"$TEXT\" >&2; exit 128"
        );
        let mut command = scene.retry(&["--tries", "1"], &script);
        let out = command.env("TEXT", text.trim_end()).output().unwrap();
        assert_eq!(outcome(&out)["end"], end, "{}", said(&out));
    }
}

/// A filter that prints the collision text after files were written, and a git that then fails of it.
#[test]
fn a_forged_collision_after_files_were_written_is_not_tried_again() {
    let scene = Scene::new();
    std::fs::write(&scene.lock, "").unwrap();
    let forged = scene.home.path().join("forged");
    std::fs::write(&forged, scene.text()).unwrap();
    std::fs::remove_file(&scene.lock).unwrap();
    let filter = scene.home.path().join("filter");
    executable(
        &filter,
        &format!("#!/bin/sh\ncat '{}' >&2\nexit 1\n", forged.display()),
    );
    let main = scene.home.path().join("main");
    std::fs::write(main.join(".gitattributes"), "z filter=forge\n").unwrap();
    std::fs::write(main.join("z"), "z\n").unwrap();
    scene.run_git(&main, &["add", "-A"]);
    let tree = scene.run_git(&main, &["write-tree"]);
    scene.run_git(
        &main,
        &["config", "filter.forge.smudge", filter.to_str().unwrap()],
    );
    scene.run_git(&main, &["config", "filter.forge.required", "true"]);
    let scene = Scene { tree, ..scene };
    let out = scene.retry(&[], &scene.read_tree()).output().unwrap();
    assert_eq!(out.status.code(), Some(128), "{}", said(&out));
    assert!(
        out.stderr.starts_with(&std::fs::read(&forged).unwrap()),
        "{}",
        said(&out)
    );
    let outcome = outcome(&out);
    assert_eq!((&outcome["end"], scene.tried()), (&"unrelated_failure".into(), 1));
    assert_eq!(
        (count(&outcome, "exact_lock"), count(&outcome, "exact_command")),
        (1, 0)
    );
}

#[test]
fn what_is_counted_is_counted_by_itself_and_changes_no_verdict() {
    // The word of an owner in the path of the lock, and so in the text: reported, never decisive.
    let scene = Scene::of(&gits()[0], "RunStarted");
    let holder = scene.released_after(1);
    let out = scene.retry(&[], &scene.read_tree()).output().unwrap();
    holder.join().unwrap();
    let met = outcome(&out);
    assert_eq!((out.status.code(), scene.tried()), (Some(0), 2), "{}", said(&out));
    assert_eq!((count(&met, "aggregate"), count(&met, "no_owner_text")), (1, 0));
    // Its absence does not help, either.
    let out = scene.retry(&[], "echo no >&2; exit 128").output().unwrap();
    let unmet = outcome(&out);
    assert_eq!(
        (count(&unmet, "no_owner_text"), count(&unmet, "aggregate")),
        (1, 0)
    );
    assert_eq!(count(&unmet, "tries"), 1);
    // Nothing of what is told holds a path, a text of the command or a piece of the stream.
    for outcome in [met, unmet] {
        let told = outcome.to_string();
        let paths = [scene.home.path(), scene.worktree.as_path()].map(|p| p.to_str().unwrap().to_owned());
        assert!(!paths.iter().any(|path| told.contains(path)), "{told}");
        assert!(!told.contains("RunStarted") && !told.contains("fatal"), "{told}");
    }
}

/// A daemon that runs is told the counts, and nothing else; without one, nothing is stored at all.
#[test]
fn a_daemon_that_runs_is_told_the_counts_alone() {
    let scene = Scene::new();
    let alone = scene
        .retry(&[], "echo secret-text >&2; exit 128")
        .output()
        .unwrap();
    assert_eq!(alone.status.code(), Some(128));
    assert!(!scene.home.state().exists(), "no state is made for it");
    let daemon = scene.home.serve_unix(&[]);
    let holder = scene.released_after(1);
    assert!(
        scene
            .retry(&[], &scene.read_tree())
            .output()
            .unwrap()
            .status
            .success()
    );
    holder.join().unwrap();
    drop(
        scene
            .retry(&[], "echo secret-text >&2; exit 128")
            .output()
            .unwrap(),
    );
    let outer = ["--stream", "secret-place"];
    drop(scene.retry_with(&outer, "true").output().unwrap());
    let lines = scene.home.lines(&["log"]);
    let told: Vec<&Value> = lines
        .iter()
        .filter(|line| line["event"] == "command_retried")
        .collect();
    let details: Vec<&str> = told.iter().map(|line| line["detail"].as_str().unwrap()).collect();
    assert_eq!(details.len(), 3, "{details:?}");
    let expected = "succeeded: 2 tries, 1 failed, 1 exact_command, 1 exact_lock, 1 stream_identical, 1 aggregate, 1 \
                    no_owner_text, 1 waits";
    assert_eq!(details[0], expected);
    assert!(
        details[1].starts_with("unrelated_failure: 1 tries, 1 failed, 0 exact_command"),
        "{details:?}"
    );
    assert!(details[2].starts_with("stream_unsafe: 0 tries"), "{details:?}");
    assert_eq!(told[2]["code"], "stream_unsafe");
    drop(daemon);
    // Not in the log's lines, and nowhere in the journal.
    for entry in walk(&scene.home.state()) {
        let bytes = std::fs::read(&entry).unwrap_or_default();
        for word in ["secret-text", "secret-place", "index.lock", "RunFailed"] {
            let found = bytes.windows(word.len()).any(|window| window == word.as_bytes());
            assert!(!found, "{word} in {}", entry.display());
        }
    }
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files.extend(walk(&entry.path())),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}

/// What the incident showed last: the helper itself takes the lock in every run.
#[test]
fn around_a_helper_that_fails_once_inside_nothing_helps_and_inside_it_one_call_does() {
    let scene = Scene::new();
    let helper = |restore: &str| {
        format!(
            "echo try >> '{}'; : > '{lock}'; (sleep 0.3; rm '{lock}') & {restore}; s=$?; wait; exit $s",
            scene.tries.display(),
            lock = scene.lock.display()
        )
    };
    let git = format!(
        "'{}' -C '{}' read-tree --reset -u {}",
        scene.git.display(),
        scene.worktree.display(),
        scene.tree
    );
    let out = scene.retry(&["--tries", "4"], &helper(&git)).output().unwrap();
    let fails = outcome(&out);
    assert_eq!(
        (out.status.code(), scene.tried()),
        (Some(128), 4),
        "{}",
        said(&out)
    );
    assert_eq!(
        (&fails["end"], count(&fails, "aggregate")),
        (&"exhausted".into(), 4)
    );
    assert_eq!(scene.content(), "changed\n");

    std::fs::remove_file(&scene.tries).unwrap();
    let restore = format!(
        "'{}' --state '{}' restore --worktree '{}' --tree {}",
        env!("CARGO_BIN_EXE_semel"),
        scene.home.state().display(),
        scene.worktree.display(),
        scene.tree
    );
    let out = scene
        .retry(&["--tries", "4"], &helper(&restore))
        .output()
        .unwrap();
    assert_eq!((out.status.code(), scene.tried()), (Some(0), 1), "{}", said(&out));
    assert_eq!(scene.content(), "asked\n");
    assert_eq!(count(&outcome(&out), "failed"), 0);
}

#[test]
fn a_lock_that_stays_ends_it_and_is_not_touched() {
    let scene = Scene::new();
    std::fs::write(&scene.lock, "another's").unwrap();
    let out = scene
        .retry(&["--wait", "1s"], &scene.read_tree())
        .output()
        .unwrap();
    let told = outcome(&out);
    assert_eq!(
        (out.status.code(), scene.tried()),
        (Some(128), 1),
        "{}",
        said(&out)
    );
    assert_eq!(told["end"], "lock_timeout");
    assert!(
        count(&told, "waits") == 1 && count(&told, "waited_ms") >= 1000,
        "{told}"
    );
    assert_eq!(std::fs::read(&scene.lock).unwrap(), b"another's");
    assert_eq!(scene.content(), "changed\n");

    // Git says the same of a link; it is never waited for.
    std::fs::remove_file(&scene.lock).unwrap();
    std::os::unix::fs::symlink("/nonexistent", &scene.lock).unwrap();
    let out = scene.retry(&[], &scene.read_tree()).output().unwrap();
    let told = outcome(&out);
    assert_eq!(
        (out.status.code(), &told["end"], &told["reason"]),
        (Some(128), &"lock_unsafe".into(), &"symlink".into())
    );
    assert!(scene.lock.is_symlink());
}

/// Whoever works in the worktree can write its `.git`: what was validated is validated again before another try.
#[test]
fn a_worktree_that_leads_elsewhere_is_not_tried_again() {
    let scene = Scene::new();
    std::fs::write(&scene.lock, "").unwrap();
    let main = scene.home.path().join("main/.git");
    let script = format!(
        "'{}' -C '{wt}' read-tree --reset -u {}; s=$?; echo try >> '{}'; echo 'gitdir: {}' > '{wt}/.git'; rm '{}'; exit $s",
        scene.git.display(),
        scene.tree,
        scene.tries.display(),
        main.display(),
        scene.lock.display(),
        wt = scene.worktree.display()
    );
    let out = scene.retry(&[], &script).output().unwrap();
    let told = outcome(&out);
    assert_eq!(
        (scene.tried(), &told["end"]),
        (1, &"worktree_redirected".into()),
        "{}",
        said(&out)
    );
    assert_eq!((out.status.code(), count(&told, "aggregate")), (Some(128), 1));
    // And from the beginning, it is refused.
    let out = scene.retry(&[], &script).output().unwrap();
    assert_eq!(
        (out.status.code(), scene.tried()),
        (Some(45), 1),
        "{}",
        said(&out)
    );
    assert_eq!(outcome(&out)["code"], "worktree_redirected");
}

/// Git prints a main worktree as its directory was named to it, links and all.
#[test]
fn a_main_worktree_is_known_as_it_was_given_as_well() {
    let scene = Scene::new();
    let link = scene.home.path().join("link");
    std::os::unix::fs::symlink("main", &link).unwrap();
    let lock = scene.home.path().join("main/.git/index.lock");
    for (worktree, from) in [
        (link.clone(), link.clone()),
        (link, scene.home.path().join("main")),
    ] {
        std::fs::write(&lock, "").unwrap();
        let script = format!(
            "cd '{}' && '{}' read-tree --reset -u {}",
            from.display(),
            scene.git.display(),
            scene.tree
        );
        let scene = Scene {
            worktree,
            ..Scene::clone_of(&scene)
        };
        let stream = scene.stream.to_str().unwrap();
        let out = scene
            .retry_with(&["--stream", stream, "--tries", "1"], &script)
            .output()
            .unwrap();
        assert_eq!(outcome(&out)["end"], "exhausted", "{}", said(&out));
    }
}

#[test]
fn a_tree_that_is_none_is_refused_before_the_first_try() {
    let scene = Scene::new();
    let commit = scene.run_git(&scene.worktree, &["rev-parse", "HEAD"]);
    let absent = "0".repeat(40);
    for (tree, exit, code) in [
        (commit.as_str(), 65, "bad_input"),
        ("HEAD", 65, "bad_input"),
        (&"a".repeat(64), 65, "bad_input"),
        (&absent, 44, "object_missing"),
    ] {
        let scene = Scene {
            tree: tree.to_owned(),
            ..Scene::clone_of(&scene)
        };
        let out = scene.retry(&[], &scene.read_tree()).output().unwrap();
        assert_eq!(
            (out.status.code(), &outcome(&out)["code"]),
            (Some(exit), &code.into()),
            "{}",
            said(&out)
        );
        assert_eq!(scene.tried(), 0);
    }
    let out = scene.retry(&["--tries", "0"], "true").output().unwrap();
    assert_eq!(out.status.code(), Some(64));
}

#[test]
fn output_comes_while_the_command_runs_and_input_goes_to_it() {
    let scene = Scene::new();
    let script = "echo first >&2; read line; echo \"got $line\"; echo second >&2";
    let mut command = scene.retry(&[], script);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n", "the command still runs, and waits for its input");
    child.stdin.take().unwrap().write_all(b"word\n").unwrap();
    line.clear();
    errors.read_line(&mut line).unwrap();
    assert_eq!(line, "second\n");
    let out = child.wait_with_output().unwrap();
    assert!(
        out.status.success() && out.stdout.starts_with(b"got word\n"),
        "{}",
        said(&out)
    );
}

/// More than a pipe holds, to a reader that is late: nothing is lost.
#[test]
fn a_late_reader_loses_nothing() {
    let scene = Scene::new();
    let script = format!(
        "echo begun > '{}'; head -c 700000 /dev/zero >&2; exit 3",
        scene.tries.display()
    );
    let mut command = scene.retry(&[], &script);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(wait_until(SOON, || scene.tries.exists()));
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), out.stderr.len()), (Some(3), 700_000));
}

/// A reader that reads nothing holds the command up, as it would without us; it does not hold up its end.
#[test]
fn a_reader_that_reads_nothing_does_not_hold_up_the_end() {
    let scene = Scene::new();
    let script = format!(
        "echo try > '{}'; head -c 10000000 /dev/zero >&2; sleep 600",
        scene.tries.display()
    );
    let mut command = scene.retry(&[], &script);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(wait_until(SOON, || scene.tries.exists()));
    signal(child.id(), libc::SIGTERM);
    let mut status = None;
    let ended = wait_until(SOON, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    if !ended {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(status.and_then(|status| status.code()), Some(143));
}

/// Where nobody reads any more, the command hears that.
#[test]
fn a_reader_that_is_gone_ends_what_writes_to_it() {
    let scene = Scene::new();
    let mut command = scene.retry(&[], "yes >&2");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    drop(errors);
    let mut status = None;
    let ended = wait_until(SOON, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    if !ended {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(status.is_some_and(|status| !status.success()), "{status:?}");
}

/// Whether a process lives whose command line holds this path.
pub(crate) fn lives(mark: &Path) -> bool {
    let mark = mark.to_str().unwrap().as_bytes();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let mut lines = lines.map(|line| line.windows(mark.len()).any(|part| part == mark));
    lines.any(|found| found)
}

#[test]
fn signals_end_the_whole_tree_and_give_the_status() {
    for (number, exit) in [(libc::SIGTERM, 143), (libc::SIGINT, 130)] {
        let scene = Scene::new();
        let mark = scene.home.path().join("sleeper");
        executable(&mark, "#!/bin/sh\nwhile :; do sleep 1; done\n");
        let script = format!(
            "setsid '{m}' & '{m}' & echo try > '{}'; wait",
            scene.tries.display(),
            m = mark.display()
        );
        let mut command = scene.retry(&[], &script);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert!(wait_until(SOON, || scene.tries.exists() && lives(&mark)));
        signal(child.id(), number);
        let out = child.wait_with_output().unwrap();
        assert_eq!(
            (out.status.code(), &outcome(&out)["end"]),
            (Some(exit), &"interrupted".into()),
            "{}",
            said(&out)
        );
        assert!(!lives(&mark));
    }
}

#[test]
fn a_signal_while_the_lock_is_waited_for_ends_it() {
    let scene = Scene::new();
    std::fs::write(&scene.lock, "").unwrap();
    let mut command = scene.retry(&[], &scene.read_tree());
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(wait_until(SOON, || scene.tried() == 1));
    signal(child.id(), libc::SIGTERM);
    let out = child.wait_with_output().unwrap();
    assert_eq!(
        (out.status.code(), &outcome(&out)["end"]),
        (Some(143), &"interrupted".into()),
        "{}",
        said(&out)
    );
    assert_eq!(scene.tried(), 1);
    assert!(scene.lock.exists());
}

#[test]
fn killed_it_leaves_nothing_that_runs_and_nothing_that_is_changed() {
    let scene = Scene::new();
    let mark = scene.home.path().join("sleeper");
    executable(&mark, "#!/bin/sh\nwhile :; do sleep 1; done\n");
    let before = names(scene.lock.parent().unwrap());
    for round in 0..5 {
        let script = format!(
            "setsid '{m}' & echo try > '{}'; wait",
            scene.tries.display(),
            m = mark.display()
        );
        let mut child = scene
            .retry(&[], &script)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        assert!(
            wait_until(SOON, || scene.tries.exists() && lives(&mark)),
            "round {round}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(wait_until(SOON, || !lives(&mark)), "round {round}: it lives on");
        std::fs::remove_file(&scene.tries).unwrap();
    }
    // While it waits for the lock, too.
    std::fs::write(&scene.lock, "").unwrap();
    let mut child = scene
        .retry(&[], &scene.read_tree())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(wait_until(SOON, || scene.tried() == 1));
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(&scene.lock).unwrap();
    assert_eq!(names(scene.lock.parent().unwrap()), before);
    assert_eq!(std::fs::read_to_string(&scene.stream).unwrap(), EVENTS);
    let out = scene.retry(&[], &scene.read_tree()).output().unwrap();
    assert_eq!(
        (out.status.code(), scene.content().as_str()),
        (Some(0), "asked\n")
    );
}

fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    names
}
