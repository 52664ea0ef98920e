//! `semel restore` as people and machines meet it, with every git of the machine.
//!
//! The cases that a restoration has to stand, and where each is tried. `host` is `git::tests` of semel-host, where the
//! restoration itself is called; the rest is here and below, by the binary.
//!
//! | # | case | tests |
//! |---|---|---|
//! | 1 | held for a moment | host `restore::c01_a_held_lock_is_waited_for`; `cases::restoration::c01_…` |
//! | 2 | held for seconds | the same, 6 s; on a virtual clock, semel-core `restore::tests` |
//! | 3 | held beyond the bound | host `restore::c01_above_the_bound_nothing_is_changed` |
//! | 4 | released by rename | host `restore::c01_a_lock_released_by_rename_is_seen` |
//! | 5 | link, directory, FIFO, device, hard link | host `restore::c09_…`, `around::a05_…`; `cases::restoration::c09_…` |
//! | 6 | a killed git | host `stale::s06_…`; `cases::restoration::c02_…` |
//! | 7 | a stopped git | host `stale::s07_…` |
//! | 8, 9 | `commit -a` in its editor or hook | host `stale::s08_s09_…`; `cases::restoration::c03_…` |
//! | 10 | an owner in a sibling PID namespace | host `stale::s10_…` |
//! | 11 | what cannot be seen; who only polls | host `stale::s11_…` |
//! | 12 | contenders, preempted | host `contended::s12_…`; `contenders_wait_for_each_other` |
//! | 13 | the lock changes hands | host `stale::s13_…`; `cases::restoration::c07_…` |
//! | 14 | a pid file of a dead number | host `stale::s14_…` |
//! | 15 | ours is killed | `killed::…`; host `restore::a_killed_restoration_is_taken_over_at_once` |
//! | 16 | ours is stolen | host `restore::a_stolen_lock_leaves_the_index_untouched`; `killed::a_lock_that_is_taken_from_us_is_lost_and_the_thief_keeps_it` |
//! | 17 | ids | host `restore::only_a_full_id_of_a_tree_is_taken` |
//! | 18 | objects missing or broken, full and read-only disks, filters | host `restore::c06_…`, `around::a18_…` |
//! | 19 | a lock that may not be made | host `restore::c09_a_lock_that_may_not_be_made_is_unsafe_at_once` |
//! | 20 | filters, hooks, fsmonitor, traces | `tampered::…`; host `around::a20_…` |
//! | 21 | languages, odd paths, every git | `tampered::language_path_and_working_directory_decide_nothing`; host `around::a21_…` |
//! | 22 | redirections | host `restore::a_redirected_worktree_is_refused`; `tampered::…` |
//! | 23 | shapes of indexes and repositories | host `restore::shapes_of_repositories_keep_their_features`, `around::a23_…` |
//! | 24 | hidden edits and obstacles | host `restore::c10_…`, `around::a24_…` |
//! | 25 | other locks | host `around::a25_…` |

mod killed;
mod options;
mod tampered;

use crate::harness::{Home, git_by, said};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Finds every git of the machine.
pub(crate) fn gits() -> Vec<PathBuf> {
    let known = ["/usr/local/bin/git", "/usr/bin/git"].map(PathBuf::from);
    let found: Vec<PathBuf> = known.into_iter().filter(|git| git.is_file()).collect();
    if found.len() < 2 {
        crate::harness::skipped("two versions of git are wanted, and one is here");
    }
    assert!(!found.is_empty(), "no git on this machine");
    found
}

/// A repository with a linked worktree that somebody changed.
pub(crate) struct Lab {
    pub(crate) home: Home,
    pub(crate) git: PathBuf,
    pub(crate) worktree: PathBuf,
    pub(crate) tree: String,
    pub(crate) lock: PathBuf,
}

impl Lab {
    /// Makes one with so many files.
    pub(crate) fn new(git: &Path, files: usize) -> Self {
        Self::named(git, files, "worktree")
    }

    pub(crate) fn named(git: &Path, files: usize, name: impl AsRef<Path>) -> Self {
        let home = Home::new();
        let worktree = home.path().join(name);
        let repository = home.path().join("repository");
        std::fs::create_dir(&repository).unwrap();
        let mut lab = Self {
            home,
            git: git.to_owned(),
            worktree,
            tree: String::new(),
            lock: PathBuf::new(),
        };
        lab.git_in(&repository, &["init", "-q", "-b", "main"]);
        for n in 0..files {
            std::fs::write(repository.join(format!("f{n}")), format!("old {n}\n")).unwrap();
        }
        std::fs::write(repository.join(".gitignore"), ".venv/\n").unwrap();
        lab.git_in(&repository, &["add", "-A"]);
        lab.git_in(&repository, &["commit", "-q", "-m", "old"]);
        let mut add = lab.git_command(&repository, &["worktree", "add", "-q", "-b", "agent"]);
        assert!(add.arg(&lab.worktree).status().unwrap().success());
        let mut index = lab.git_command(
            &lab.worktree,
            &["rev-parse", "--path-format=absolute", "--git-path", "index"],
        );
        let place = index.output().unwrap().stdout;
        let place = place.strip_suffix(b"\n").unwrap();
        lab.lock = PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(
            place,
        ));
        lab.lock.as_mut_os_string().push(".lock");
        lab.tree = lab.git_in(&lab.worktree, &["rev-parse", "HEAD^{tree}"]);
        lab.spoil();
        lab
    }

    /// Changes every other file, as an agent would.
    pub(crate) fn spoil(&self) {
        for n in (0..).step_by(2).take_while(|n| self.file(*n).exists()) {
            std::fs::write(self.file(n), "changed\n").unwrap();
        }
    }

    pub(crate) fn file(&self, n: usize) -> PathBuf {
        self.worktree.join(format!("f{n}"))
    }

    pub(crate) fn git_command(&self, dir: &Path, args: &[&str]) -> Command {
        git_by(&self.git, dir, args)
    }

    pub(crate) fn git_in(&self, dir: &Path, args: &[&str]) -> String {
        let out = self.git_command(dir, args).output().unwrap();
        assert!(out.status.success(), "git {args:?}: {}", said(&out));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.command_by(&self.git, args)
    }

    /// As [`Lab::command`], with another git.
    pub(crate) fn command_by(&self, git: &Path, args: &[&str]) -> Command {
        let mut command = self.home.command(&["restore", "--json", "--tree", &self.tree]);
        command
            .arg("--worktree")
            .arg(&self.worktree)
            .arg("--git")
            .arg(git)
            .args(args);
        command
    }

    /// Restores, which has to succeed; gives the outcome.
    pub(crate) fn restored(&self, mut command: Command) -> Value {
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", said(&out));
        self.is_restored();
        answer(&out)["outcome"].clone()
    }

    /// Bytes and index are the tree's, and nothing of ours is left.
    pub(crate) fn is_restored(&self) {
        for n in (0..).take_while(|n| self.file(*n).exists()) {
            assert_eq!(
                std::fs::read_to_string(self.file(n)).unwrap(),
                format!("old {n}\n")
            );
        }
        assert_eq!(self.git_in(&self.worktree, &["write-tree"]), self.tree);
        assert_eq!(self.git_in(&self.worktree, &["diff-files"]), "");
        self.nothing_left();
    }

    pub(crate) fn nothing_left(&self) {
        assert!(!self.lock.exists(), "the lock is left");
        assert_eq!(self.private_files(), Vec::<String>::new());
    }

    /// Lists what is of ours in the git directory.
    pub(crate) fn private_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.lock.parent().unwrap()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains("semel")).collect()
    }

    pub(crate) fn refused(&self, mut command: Command, exit: i32, code: &str) -> Value {
        let out = command.output().unwrap();
        assert_eq!(out.status.code(), Some(exit), "{}", said(&out));
        let refusal = answer(&out);
        assert_eq!(refusal["code"], code);
        refusal
    }
}

pub(crate) fn answer(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", said(out)))
}

/// Says whether evidence can be complete on this machine; says so where it cannot.
pub(crate) fn evidence_is_possible() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let initial = std::fs::metadata("/proc/self/ns/pid").is_ok_and(|m| m.ino() == 0xEFFF_FFFC);
    if initial && crate::harness::is_root() {
        return true;
    }
    crate::harness::skipped("complete evidence needs root in the initial PID namespace");
    false
}

/// Several processes at once: each waits for the others, none fails.
#[test]
fn contenders_wait_for_each_other() {
    let lab = Lab::new(&gits()[0], 20);
    for _ in 0..3 {
        lab.spoil();
        let children: Vec<_> = (0..6)
            .map(|_| {
                lab.command(&[])
                    .stdout(std::process::Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for child in children {
            let out = child.wait_with_output().unwrap();
            assert!(out.status.success(), "{}", said(&out));
        }
        lab.is_restored();
    }
}
