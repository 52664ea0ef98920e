//! What a command that is tried again is held against: the worktree, and its lock.
//!
//! It looks and waits, and never takes, adopts or removes a lock; [`semel_core::retry`] says how long it waits.

use super::Git;
use super::lock::LOCK;
use super::repository::Repository;
use super::watch::Watch;
use super::worktree::{Checked, Target};
use crate::error::{Error, Result};
use crate::process::Cancel;
use rustix::fs::{AtFlags, FileType, statat};
use rustix::io::Errno;
use semel_core::collision::LockPath;
use semel_core::git_tree::ObjectId;
use semel_core::path::shown;
use semel_core::restore::{LockKind, LockOwner, Names};
use semel_core::retry::{LockSeen, Step, wait};
use semel_core::{Code, Refusal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often the lock is looked at where the system tells of no move.
const POLL: Duration = Duration::from_millis(50);

/// Is a worktree that is what it seems.
#[derive(Debug)]
pub struct Worktree {
    repo: Repository,
    /// How the caller may spell its path.
    spellings: Vec<PathBuf>,
    target: Target,
    at: Checked,
}

/// Says how a wait ended, and how long it took.
#[derive(Debug)]
pub enum Waited {
    /// The lock is gone.
    Gone(Duration),
    /// It is not, or it is none that may be waited for.
    Refused(Refusal, Duration),
    /// Nobody wants it any more.
    Cancelled(Duration),
}

impl Worktree {
    /// Finds the worktree, by its pin or as it is, and checks that nothing redirects; `spellings` are how the caller may
    /// spell its path. One that leads elsewhere is passed over.
    ///
    /// # Errors
    /// `bad_input`, `not_found`, `worktree_redirected`, as for a restoration.
    pub fn find(git: &Git, spellings: &[PathBuf], target: Target, cancel: &Cancel) -> Result<Self> {
        let (repo, at) = check(git, &target, cancel)?;
        Ok(Self {
            repo,
            spellings: spellings.to_vec(),
            target,
            at,
        })
    }

    /// Checks that an id names a tree of the repository; what is below it is not looked at.
    ///
    /// # Errors
    /// `bad_input` unless it is a full id of this repository's object format, and of a tree; `object_missing`.
    pub fn tree(&self, id: &str) -> Result<ObjectId> {
        let tree = self.repo.parse_id(id)?;
        let said = match self.repo.run(self.repo.call(["cat-file", "-t", id])) {
            Ok(said) => said,
            Err(Error::Git(_)) => {
                let refusal = Refusal::new(Code::ObjectMissing, "the tree is not in the repository");
                return Err(refusal.name(id).into());
            }
            Err(error) => return Err(error),
        };
        if said.trim_ascii() == b"tree" {
            return Ok(tree);
        }
        Err(Refusal::new(Code::BadInput, "the id names no tree")
            .name(id)
            .into())
    }

    /// Gives the worktree, links resolved.
    #[must_use]
    pub fn worktree(&self) -> &Path {
        &self.at.worktree
    }

    /// Gives the owner of the git directory.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.at.uid
    }

    /// Gives the path of the lock in the spellings in which git may print it: without links, and, for a main worktree,
    /// as the caller spelled the worktree.
    ///
    /// # Errors
    /// `bad_input` where a path cannot be one of a lock.
    pub fn locks(&self) -> Result<Vec<LockPath>> {
        let path = |dir: &Path| LockPath::parse(dir.join(LOCK).as_os_str().as_bytes());
        let mut locks = vec![path(&self.at.gitdir)?];
        if self.at.gitdir == self.at.worktree.join(".git") {
            for spelled in &self.spellings {
                let absolute = std::path::absolute(spelled).map_err(|e| Error::io("resolve", spelled, e))?;
                if std::fs::canonicalize(&absolute).ok().as_deref() != Some(self.at.worktree.as_path()) {
                    continue;
                }
                let also = path(&absolute.join(".git"))?;
                if !locks.contains(&also) {
                    locks.push(also);
                }
            }
        }
        Ok(locks)
    }

    /// Checks that the path still leads to this very worktree and git directory, and that nothing redirects.
    ///
    /// # Errors
    /// `worktree_redirected`.
    pub fn still_there(&self) -> Result<()> {
        self.at.still_there()?;
        let (_, now) = check(self.repo.git(), &self.target, self.repo.cancel())?;
        if (&now.worktree, &now.gitdir) == (&self.at.worktree, &self.at.gitdir) {
            return Ok(());
        }
        let refusal = Refusal::new(
            Code::WorktreeRedirected,
            "the path leads to another worktree than before",
        );
        Err(refusal
            .name(shown(self.at.worktree.as_os_str().as_bytes()))
            .into())
    }

    /// Waits until the lock is gone, whoever holds it.
    ///
    /// # Errors
    /// `io_failed` where the git directory cannot be looked at.
    pub fn wait_for_lock(&self, bound: Duration, cancel: &Cancel) -> Result<Waited> {
        let began = Instant::now();
        let mut watch: Option<Watch> = None;
        loop {
            let seen = self.look()?;
            let waited = began.elapsed();
            let poll = watch.as_ref().map_or(POLL, Watch::net);
            match wait(waited, bound, poll, seen) {
                Step::Gone => return Ok(Waited::Gone(waited)),
                Step::Refuse(refusal) => return Ok(Waited::Refused(refusal, waited)),
                Step::Wait(_) if cancel.is_cancelled() => return Ok(Waited::Cancelled(waited)),
                Step::Wait(until) => match &watch {
                    Some(watch) => watch.wait(began + until, cancel),
                    // Armed only now, and looked at again before the first sleep: nothing is missed in between.
                    None => watch = Some(Watch::new(&self.at.gitdir)),
                },
            }
        }
    }

    /// Looks what stands at the place of the lock.
    ///
    /// # Errors
    /// `io_failed` where the git directory cannot be looked at.
    pub fn look(&self) -> Result<LockSeen> {
        let stat = match statat(&self.at.dir, LOCK, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(LockSeen::Gone),
            Err(e) => return Err(Error::io("look at", self.at.gitdir.join(LOCK), e)),
        };
        // Removed between the moment it was found and the one it was described: it has no name any more.
        if stat.st_nlink == 0 {
            return Ok(LockSeen::Gone);
        }
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => LockKind::Regular,
            FileType::Symlink => LockKind::Symlink,
            FileType::Directory => LockKind::Directory,
            _ => LockKind::Special,
        };
        let names = if stat.st_nlink == 1 {
            Names::One
        } else {
            Names::Several
        };
        let us = rustix::process::geteuid().as_raw();
        let owner = if stat.st_uid == us || stat.st_uid == self.at.uid {
            LockOwner::Ours
        } else {
            LockOwner::Foreign
        };
        Ok(LockSeen::There(kind, names, owner))
    }
}

fn check(git: &Git, target: &Target, cancel: &Cancel) -> Result<(Repository, Checked)> {
    let found = target.find()?;
    let repo = Repository::viewed(git, found.clone(), None, cancel)?;
    let at = target.check(&found, &repo)?;
    Ok((repo, at))
}
