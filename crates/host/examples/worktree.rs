//! Restores one worktree again and again, as we do and as others do, and prints how long each took, in microseconds.
//!
//! `worktree GIT SEMEL WORKTREE TREE ROUNDS DIRTY` prints lines of JSON, `{"who":…,"what":…,"us":…}`; interleaved by round, so
//! that a busy machine is busy for all. `what` is `free`, where nobody holds the lock, or `released`: from the moment that a
//! holder lets the lock go until the worktree is restored. The peers: git once; git again every 50 ms; git as soon as
//! inotify tells that the lock moved.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a bench is no product"
)]

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use semel_host::git::{Git, RestoreOptions, Verify, restore};
use semel_host::process::Cancel;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Is a worktree that is restored.
struct Bench {
    git: Git,
    semel: PathBuf,
    worktree: PathBuf,
    tree: String,
    lock: PathBuf,
    dirty: usize,
    cancel: Cancel,
}

impl Bench {
    fn plain(&self) -> bool {
        let mut git = Command::new(self.git.program());
        git.arg("-C")
            .arg(&self.worktree)
            .args(["read-tree", "--reset", "-u", &self.tree]);
        git.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::null());
        git.status().unwrap().success()
    }

    fn ours(&self, verify: Verify) {
        let options = RestoreOptions {
            verify,
            ..RestoreOptions::default()
        };
        restore(&self.git, &self.worktree, &self.tree, options, &self.cancel).unwrap();
    }

    fn command(&self, verify: &str) {
        let mut semel = Command::new(&self.semel);
        semel.args([
            "restore",
            "--quiet",
            "--tree",
            &self.tree,
            "--verify",
            verify,
            "--worktree",
        ]);
        semel.arg(&self.worktree).arg("--git").arg(self.git.program());
        semel.stdout(Stdio::null());
        assert!(semel.status().unwrap().success());
    }

    /// The policy that is common: again every 50 ms.
    fn every_50_ms(&self) {
        while !self.plain() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn by_inotify(&self) {
        let watch = inotify::init(CreateFlags::CLOEXEC).unwrap();
        let moves = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
        inotify::add_watch(&watch, self.lock.parent().unwrap(), moves).unwrap();
        while !self.plain() {
            let mut bytes = [0_u8; 4096];
            rustix::io::read(&watch, &mut bytes).unwrap();
        }
        // Closing it waits for a grace period of the kernel: not counted against it.
        std::mem::forget(watch);
    }

    fn spoil(&self) {
        for n in 0..self.dirty {
            std::fs::write(self.worktree.join(format!("d{}/f{n}", n % 16)), "changed\n").unwrap();
        }
    }

    fn free(&self, who: &str, work: impl FnOnce()) {
        self.spoil();
        let began = Instant::now();
        work();
        tell(who, "free", began.elapsed());
    }

    /// Measures from the release of the lock.
    fn released(&self, who: &str, hold: Duration, work: impl FnOnce()) {
        self.spoil();
        let file = std::fs::File::options()
            .write(true)
            .create_new(true)
            .open(&self.lock);
        let file = file.unwrap();
        let (tell_time, time) = channel();
        let lock = self.lock.clone();
        let holder = std::thread::spawn(move || {
            std::thread::sleep(hold);
            drop(file);
            std::fs::remove_file(lock).unwrap();
            tell_time.send(Instant::now()).unwrap();
        });
        work();
        let done = Instant::now();
        holder.join().unwrap();
        tell(
            who,
            "released",
            done.saturating_duration_since(time.recv().unwrap()),
        );
    }
}

fn tell(who: &str, what: &str, took: Duration) {
    println!(
        "{{\"who\":\"{who}\",\"what\":\"{what}\",\"us\":{}}}",
        took.as_micros()
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [git, semel, worktree, tree, rounds, dirty] = args.as_slice() else {
        panic!("worktree GIT SEMEL WORKTREE TREE ROUNDS DIRTY");
    };
    let index = Command::new(git)
        .args([
            "-C",
            worktree,
            "rev-parse",
            "--path-format=absolute",
            "--git-path",
            "index.lock",
        ])
        .output()
        .unwrap();
    let bench = Bench {
        git: Git::at(Path::new(git)).unwrap(),
        semel: PathBuf::from(semel),
        worktree: PathBuf::from(worktree),
        tree: tree.clone(),
        lock: PathBuf::from(String::from_utf8(index.stdout).unwrap().trim()),
        dirty: dirty.parse().unwrap(),
        cancel: Cancel::new().unwrap(),
    };
    bench.ours(Verify::Bytes);
    for round in 0..rounds.parse::<u64>().unwrap() {
        bench.free("git", || assert!(bench.plain()));
        bench.free("ours tree", || bench.ours(Verify::Tree));
        bench.free("ours bytes", || bench.ours(Verify::Bytes));
        bench.free("command tree", || bench.command("tree"));
        bench.free("command bytes", || bench.command("bytes"));
        bench.free("command start", || {
            let mut semel = Command::new(&bench.semel);
            assert!(
                semel
                    .arg("--version")
                    .stdout(Stdio::null())
                    .status()
                    .unwrap()
                    .success()
            );
        });
        // Not in step with anybody's period.
        let hold = Duration::from_millis(120 + (round * 37) % 61);
        bench.released("git every 50 ms", hold, || bench.every_50_ms());
        bench.released("git by inotify", hold, || bench.by_inotify());
        bench.released("ours tree", hold, || bench.ours(Verify::Tree));
        bench.released("ours bytes", hold, || bench.ours(Verify::Bytes));
        bench.released("command tree", hold, || bench.command("tree"));
    }
}
