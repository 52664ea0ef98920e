//! The repositories of the drill: a linked worktree that is to be restored, and the gits that hold its lock.
//!
//! It makes situations and looks at them; it judges no guard.

use crate::engine::trial::stage::{Background, Said, Stage};
use crate::engine::trial::{Told, hands};
use semel_host::process::Command;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

const ASKED: &str = "one\n";
/// What the file holds that is to be restored.
pub(super) const CHANGED: &str = "changed by the attempt before\n";
const BIG: &str = "big";
/// How long before us the owner has the lock.
const BEFORE: Duration = Duration::from_millis(50);

/// Is what repositories are made with.
pub(super) struct Worktrees<'a> {
    /// Where they lie.
    pub(super) stage: &'a Stage,
    /// The git.
    pub(super) git: PathBuf,
    /// The shell.
    pub(super) sh: PathBuf,
}

/// Is a repository with a linked worktree that is to be restored.
pub(super) struct Repo {
    /// The worktree.
    pub(super) worktree: PathBuf,
    /// Its git directory.
    pub(super) gitdir: PathBuf,
    /// Where its lock is.
    pub(super) lock: PathBuf,
    /// The tree that it is to be restored to.
    pub(super) tree: String,
}

impl Worktrees<'_> {
    /// Makes a command of git that reads no configuration of a person.
    pub(super) fn git<S: Into<OsString>>(
        &self,
        cwd: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Told<Command> {
        let command = self.stage.command(&self.git, cwd)?;
        let fixed = [
            "user.name=drill",
            "user.email=drill@example.invalid",
            "gc.auto=0",
            "commit.gpgsign=false",
        ];
        let command = fixed
            .iter()
            .fold(command, |command, setting| command.arg("-c").arg(setting));
        Ok(command.args(args))
    }

    /// Runs a git that must succeed, and gives what it said.
    pub(super) fn git_ok(&self, cwd: &Path, args: &[&str]) -> Told<String> {
        let said = self.stage.run(&self.git(cwd, args.iter().copied())?)?;
        Ok(said.ok(&format!("git {}", args.join(" ")))?.out())
    }

    /// Makes a repository with a linked worktree in which one file differs from the tree that is to be restored.
    pub(super) fn repo(&self, side: &str) -> Told<Repo> {
        let scratch = &self.stage.scratch;
        let place = scratch
            .directory(format!("transient-lock/{side}-{}", self.stage.unique()))
            .map_err(hands)?;
        let main = scratch.directory(place.join("main")).map_err(hands)?;
        self.git_ok(&main, &["init", "-q"])?;
        scratch.write(main.join("f"), ASKED).map_err(hands)?;
        scratch.write(main.join("sub/g"), "two\n").map_err(hands)?;
        self.git_ok(&main, &["add", "."])?;
        self.git_ok(&main, &["commit", "-qm", "one"])?;
        let worktree = place.join("wt");
        self.git_ok(
            &main,
            &[
                "worktree",
                "add",
                "-q",
                &worktree.display().to_string(),
                "-b",
                "w",
            ],
        )?;
        let gitdir = PathBuf::from(self.git_ok(&worktree, &["rev-parse", "--absolute-git-dir"])?);
        let tree = self.git_ok(&worktree, &["rev-parse", "HEAD^{tree}"])?;
        scratch.write(worktree.join("f"), CHANGED).map_err(hands)?;
        Ok(Repo {
            lock: gitdir.join("index.lock"),
            worktree,
            gitdir,
            tree,
        })
    }

    /// Says whether the lock is there.
    pub(super) fn locked(&self, repo: &Repo) -> Told<bool> {
        self.stage.scratch.exists(&repo.lock).map_err(hands)
    }

    /// Starts a git that takes the lock and stops in a filter for so long; it comes back 50 ms after the lock was seen.
    pub(super) fn holder(&self, repo: &Repo, seconds: &str) -> Told<Background> {
        let attributes = repo.worktree.with_file_name("attributes");
        self.stage
            .scratch
            .write(&attributes, format!("{BIG} filter=slow\n"))
            .map_err(hands)?;
        self.stage
            .scratch
            .write(repo.worktree.join(BIG), "big\n")
            .map_err(hands)?;
        let command = self
            .git(&repo.worktree, [OsStr::new("-c")])?
            .arg(format!("core.attributesFile={}", attributes.display()))
            .arg("-c")
            .arg(format!("filter.slow.clean=sleep {seconds}; cat"))
            .args(["add", BIG]);
        let holder = self.stage.start(command)?;
        self.stage.until("a git takes index.lock", || {
            match (self.locked(repo)?, holder.ended()) {
                (true, _) => Ok(Some(())),
                (false, true) => Err("the git that was to hold the lock ended before it was seen".to_owned()),
                (false, false) => Ok(None),
            }
        })?;
        std::thread::sleep(BEFORE);
        Ok(holder)
    }

    /// Restores as it was done then: once, and without waiting.
    pub(super) fn read_tree(&self, repo: &Repo) -> Told<Said> {
        self.stage
            .run(&self.git(&repo.worktree, ["read-tree", "--reset", "-u", &repo.tree])?)
    }

    /// Restores by `semel restore`.
    pub(super) fn restore(&self, repo: &Repo, wait: &str) -> Told<Said> {
        let command = self.stage.semel(&repo.worktree, ["restore", "--worktree"])?;
        self.stage.run(
            &command
                .arg(&repo.worktree)
                .args(["--tree", &repo.tree, "--wait", wait]),
        )
    }

    /// Looks whether the worktree and the index are the tree that was asked for.
    pub(super) fn state(&self, repo: &Repo) -> Told<&'static str> {
        let f = self.stage.scratch.read(repo.worktree.join("f")).map_err(hands)?;
        Ok(match f.as_deref() {
            Some(bytes) if bytes == ASKED.as_bytes() => "restored",
            Some(bytes) if bytes == CHANGED.as_bytes() => "unchanged",
            _ => "in another state",
        })
    }

    /// Names the outcome of a restoration: by its code, or by what the worktree and the index truly are.
    pub(super) fn outcome(&self, repo: &Repo, said: &Said) -> Told<String> {
        if said.exit() != 0 {
            return Ok(said.named());
        }
        let index = self.git_ok(&repo.worktree, &["write-tree"])?;
        let state = if index == repo.tree {
            self.state(repo)?
        } else {
            "with another tree in the index"
        };
        Ok(format!("0 {state}"))
    }

    /// Makes an orphan: the lock of a git that was killed by `kill -9`.
    pub(super) fn orphan_of(&self, repo: &Repo) -> Told<()> {
        self.holder(repo, "60")?.kill()?;
        match self.locked(repo)? {
            true => Ok(()),
            false => Err("the killed git left no lock".to_owned()),
        }
    }

    /// Lists what is in the worktree's git directory and was not before.
    pub(super) fn new_names(&self, repo: &Repo, before: &[OsString]) -> Told<String> {
        let after = self.stage.scratch.names(&repo.gitdir).map_err(hands)?;
        let new = after.iter().filter(|name| !before.contains(name));
        let new: Vec<String> = new.map(|name| name.display().to_string()).collect();
        Ok(if new.is_empty() {
            "nothing".to_owned()
        } else {
            new.join(" ")
        })
    }

    /// Starts `git commit -a`, which waits in its editor with the lock taken and no descriptor on it.
    pub(super) fn editing(&self, repo: &Repo) -> Told<(Background, PathBuf)> {
        let go = repo.worktree.with_file_name("go");
        let text = format!(
            "#!/bin/sh\nn=0\nwhile [ ! -e '{}' ] && [ $n -lt 600 ]; do n=$((n+1)); sleep 0.05; done\necho two > \"$1\"\n",
            go.display()
        );
        let editor = self
            .stage
            .scratch
            .program(repo.worktree.with_file_name("editor"), text)
            .map_err(hands)?;
        let commit = self
            .git(&repo.worktree, ["commit", "-q", "-a"])?
            .var("GIT_EDITOR", editor);
        let commit = self.stage.start(commit)?;
        let message = repo.gitdir.join("COMMIT_EDITMSG");
        self.stage.until("git commit waits in its editor", || {
            if commit.ended() {
                return Err("git commit ended before its editor".to_owned());
            }
            let waits = self.locked(repo)? && self.stage.scratch.exists(&message).map_err(hands)?;
            Ok(waits.then_some(()))
        })?;
        Ok((commit, go))
    }
}
