//! `git read-tree --reset -u TREE`, under our own `index.lock`.
//!
//! Nothing is inferred from git's text: the lock is taken by us, git runs on a private link of the index in a
//! closed environment, content is verified and the lock fenced while it is held, and the index is published by
//! rename. Not here yet: recovery of a stranger's stale lock on complete evidence, a queue
//! among our own processes, filter drivers, sparse worktrees, submodule contents.

use super::Git;
use super::held::Held;
use super::lock::{Lock, Seeker, private_index};
use super::objects::Leaf;
use super::obstacles;
use super::repository::Repository;
use super::watch::Watch;
use super::worktree::{Checked, Target};
use crate::error::{Error, Result};
use crate::process::Cancel;
use semel_core::git_tree::ObjectId;
use semel_core::restore::{Counts, Observation, Step, Wait};
use semel_core::{Code, Refusal, RelPath};
use std::time::{Duration, Instant};

/// Says how much is proved before the restored index is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// The index writes exactly the tree.
    Tree,
    /// And every file, link and executable bit of the tree was read back and hashed.
    Bytes,
}

/// Says how a restoration is to be done.
#[derive(Clone, Copy, Debug)]
pub struct RestoreOptions {
    /// How long `index.lock` is waited for.
    pub wait: Duration,
    /// How much is proved.
    pub verify: Verify,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(60),
            verify: Verify::Bytes,
        }
    }
}

/// Says how the identity of the worktree was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// It is the one that was pinned, in every part.
    Pinned,
    /// Worktree and git directory pointed at each other, and nothing redirected.
    Unpinned,
}

/// Says what came of a restoration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The tree that is restored.
    pub tree: ObjectId,
    /// Looks, collisions, adoptions and waiting.
    pub counts: Counts,
    /// How the worktree was identified.
    pub identity: Identity,
    /// How much was proved.
    pub verified: Verify,
    /// How many entries were read back and hashed.
    pub hashed: usize,
    /// How many files git had called restored though their bytes were not; they were written anew.
    pub mended: Vec<RelPath>,
    /// Entries that are not of the tree, the first 100 by name; a directory stands for all below it. Looked for
    /// with [`Verify::Bytes`].
    pub residue: Vec<RelPath>,
    /// How many such entries there are.
    pub residue_count: usize,
}

/// Says whether a refused restoration may have changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Worktree and index are as they were.
    Nothing,
    /// Git had begun: files of the worktree may be new ones. The index is as it was, unless the refusal came
    /// after it was published.
    Perhaps,
}

/// Carries a refused restoration.
#[derive(Debug)]
pub struct Failed {
    /// Why; with git's own words in [`Error::Git`].
    pub error: Error,
    /// Whether anything may have changed: where it did, the generation is dirty.
    pub touched: Touched,
    /// What was counted until then.
    pub counts: Counts,
}

impl core::fmt::Display for Failed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.error.fmt(f)
    }
}

impl core::error::Error for Failed {}

/// Restores a worktree to a tree.
///
/// # Errors
/// With nothing changed: `bad_input` (no worktree; not a full id in lower case; not a tree), `not_found`,
/// `object_missing`, `worktree_redirected`, `lock_unsafe`, `lock_timeout`, `precondition_failed` (a repository
/// lies where a file has to go; the tree uses attributes that need a program; a sparse worktree).
/// After git began: `git_failed`, `tree_mismatch`, `lock_lost`. [`Failed::touched`] tells which.
///
/// # Durability
/// When this returns, the index and its directory are synced; the files of the worktree are not.
pub fn restore(
    git: &Git,
    target: impl Into<Target>,
    tree: &str,
    options: RestoreOptions,
    cancel: &Cancel,
) -> core::result::Result<Outcome, Box<Failed>> {
    let before = |error| {
        Box::new(Failed {
            error,
            touched: Touched::Nothing,
            counts: Counts::default(),
        })
    };
    let job = Job::prepare(git, &target.into(), tree, options, cancel).map_err(before)?;
    let mut counts = Counts::default();
    let mut touched = Touched::Nothing;
    job.run(&mut counts, &mut touched).map_err(|error| {
        Box::new(Failed {
            error,
            touched,
            counts,
        })
    })
}

/// Everything that is known before the lock is sought.
struct Job {
    repo: Repository,
    at: Checked,
    tree: ObjectId,
    leaves: Vec<Leaf>,
    options: RestoreOptions,
}

impl Job {
    fn prepare(
        git: &Git,
        target: &Target,
        tree: &str,
        options: RestoreOptions,
        cancel: &Cancel,
    ) -> Result<Self> {
        ObjectId::parse(tree)?;
        let found = target.find()?;
        let mut repo = Repository::at(git, found.clone(), cancel)?;
        let at = target.check(&found, &repo)?;
        let tree = repo.parse_id(tree)?;
        let leaves = repo.list_whole_tree(&tree)?;
        repo.place.worktree = Some(at.worktree.clone());
        if options.verify == Verify::Bytes && repo.config().is_true("core.sparsecheckout") {
            let why = "a sparse worktree cannot be proved byte for byte";
            return Err(Refusal::new(Code::PreconditionFailed, why)
                .reason("sparse_checkout")
                .into());
        }
        obstacles::refuse_programs(&repo, &leaves)?;
        Ok(Self {
            repo,
            at,
            tree,
            leaves,
            options,
        })
    }

    fn run(self, counts: &mut Counts, touched: &mut Touched) -> Result<Outcome> {
        let at = &self.at;
        let lock = acquire(at, self.options.wait, self.repo.cancel(), counts)?;
        lock.sweep()?;
        let before = at.index()?;
        at.still_there()?;
        obstacles::refuse_nested(&at.root, &self.leaves)?;
        let mut held = Held {
            repo: self.repo,
            at,
            lock: &lock,
            private: private_index(&lock.nonce),
            before: None,
            tree: self.tree,
            leaves: &self.leaves,
            verify: self.options.verify,
        };
        if before.is_some() {
            held.link()?;
        }
        held.repo.place.index = Some(at.gitdir.join(&held.private));
        let outcome = held.work(touched).and_then(|outcome| {
            held.publish()?;
            Ok(outcome)
        });
        held.clear();
        let mut outcome = outcome?;
        lock.release()?;
        outcome.counts = *counts;
        Ok(outcome)
    }
}

/// Waits for the lock, as the machine says.
fn acquire<'a>(at: &'a Checked, bound: Duration, cancel: &Cancel, counts: &mut Counts) -> Result<Lock<'a>> {
    let began = Instant::now();
    let mut seeker = Seeker::new(at)?;
    let mut watch: Option<Watch> = None;
    let mut machine = Wait::new(bound, Duration::from_millis(50));
    let mut observation = seeker.look()?;
    loop {
        let step = machine.next(began.elapsed(), &observation);
        *counts = machine.counts();
        match step {
            Step::Done => return seeker.acquired(),
            Step::Refuse(refusal) => return Err(refusal.into()),
            Step::Adopt => match seeker.adopt()? {
                Ok(lock) => {
                    machine.next(began.elapsed(), &Observation::Adopted);
                    *counts = machine.counts();
                    return Ok(lock);
                }
                Err(back) => seeker = back,
            },
            Step::Wait(until) => {
                if cancel.is_cancelled() {
                    let why = "cancelled while waiting for index.lock";
                    return Err(Refusal::new(Code::LockTimeout, why).reason("cancelled").into());
                }
                match &watch {
                    Some(watch) => watch.wait(began + until, cancel),
                    // Armed only now, and looked at again before the first sleep: nothing is missed in between.
                    None => {
                        let armed = Watch::new(&at.gitdir);
                        machine.set_poll(armed.net());
                        watch = Some(armed);
                    }
                }
            }
        }
        observation = seeker.look()?;
    }
}
