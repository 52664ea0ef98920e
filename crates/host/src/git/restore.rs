//! `git read-tree --reset -u TREE`, under our own `index.lock`.
//!
//! Nothing is inferred from git's text: the lock is taken by us, git runs on a private link of the index in a
//! closed environment, content is verified and the lock fenced while it is held, and the index is published by
//! rename. Not here yet: filter drivers, sparse worktrees, submodule contents.

use super::attributes::{self, Source};
use super::held::Held;
use super::listing::{self, Listing, Objects};
use super::lock::private_index;
use super::removal::Ground;
use super::repository::{Repository, object_dirs};
use super::settings;
use super::survey::Survey;
use super::view::View;
use super::wait::acquire;
use super::witness::{Nobody, Point, Witness};
use super::worktree::{Checked, Found, Target};
use super::{Git, Place, beside};
use crate::error::{Error, Result};
use crate::process::Cancel;
use semel_core::git_tree::ObjectId;
use semel_core::restore::{Counts, Stale, Wait};
use semel_core::{Code, Refusal, RelPath};
use std::sync::Arc;
use std::time::Duration;

/// Says how much is proved before the restored index is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// The index writes exactly the tree.
    Tree,
    /// And every file, link and executable bit of the tree was read back and hashed.
    Bytes,
    /// And nothing but the tree lies in the worktree: neither untracked nor ignored entries.
    Pristine,
}

impl Verify {
    /// Gives its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Bytes => "bytes",
            Self::Pristine => "pristine",
        }
    }
}

/// Says what becomes of entries that are not of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// They stay.
    Kept,
    /// They are removed, ignored ones and repositories among them.
    Removed,
}

/// Says what becomes of a repository that lies where a file of the tree has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nested {
    /// It stays, and nothing is restored.
    Refused,
    /// It is removed.
    Removed,
}

/// Says how a restoration is to be done.
#[derive(Clone, Copy, Debug)]
pub struct RestoreOptions {
    /// How long `index.lock` is waited for.
    pub wait: Duration,
    /// How long a free lock is left to one of ours that waits since before, until it is passed over.
    pub patience: Duration,
    /// Whether a stranger's lock may be taken for stale.
    pub stale: Stale,
    /// How much is proved.
    pub verify: Verify,
    /// What becomes of entries that are not of the tree.
    pub leftovers: Leftovers,
    /// What becomes of a repository in the way.
    pub nested: Nested,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(60),
            patience: Wait::PATIENCE,
            stale: Stale::Evidence {
                grace: Duration::from_secs(10),
            },
            verify: Verify::Bytes,
            leftovers: Leftovers::Kept,
            nested: Nested::Refused,
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
    /// Entries that are not of the tree, the first 100 by name; a directory stands for all below it. Not looked
    /// for with [`Verify::Tree`].
    pub residue: Vec<RelPath>,
    /// How many such entries there are.
    pub residue_count: usize,
    /// Entries that were not of the tree and were removed, the first 100 by name.
    pub removed: Vec<RelPath>,
    /// How many such entries there were.
    pub removed_count: usize,
    /// What git wrote to standard error though it succeeded, byte for byte.
    pub stderr: Vec<u8>,
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
/// As [`restore_watched`].
///
/// # Durability
/// As [`restore_watched`].
pub fn restore(
    git: &Git,
    target: impl Into<Target>,
    tree: &str,
    options: RestoreOptions,
    cancel: &Cancel,
) -> core::result::Result<Outcome, Box<Failed>> {
    restore_watched(git, target, tree, options, cancel, &Nobody)
}

/// Restores a worktree to a tree, while somebody hears of it.
///
/// # Errors
/// With nothing changed: `bad_input` (no worktree; not a full id in lower case; not a tree), `not_found`,
/// `object_missing`, `worktree_redirected`, `lock_unsafe`, `lock_timeout`, `precondition_failed` (a repository
/// lies where a file has to go; the tree uses attributes that need a program; a sparse worktree).
/// `precondition_failed` also for what may not be removed: a mount, the repository itself.
/// After git began: `git_failed`, `tree_mismatch`, `lock_lost`, `restore_incomplete`, and `precondition_failed` where
/// something that was to be removed stays. [`Failed::touched`] tells which.
///
/// # Durability
/// When this returns, the index and its directory are synced; the files of the worktree are not.
pub fn restore_watched(
    git: &Git,
    target: impl Into<Target>,
    tree: &str,
    options: RestoreOptions,
    cancel: &Cancel,
    witness: &dyn Witness,
) -> core::result::Result<Outcome, Box<Failed>> {
    let before = |error| {
        Box::new(Failed {
            error,
            touched: Touched::Nothing,
            counts: Counts::default(),
        })
    };
    let id = ObjectId::parse(tree).map_err(|refusal| before(refusal.into()))?;
    let asked = Asked {
        git,
        target: target.into(),
        tree,
        options,
        cancel,
    };
    let view = Arc::new(View::new(id.format()).map_err(before)?);
    match asked.attempt(&view, witness) {
        Err(failed) if failed.touched == Touched::Nothing && asked.blames(&view, &failed) => {
            let view = Arc::new(view.elsewhere().map_err(before)?);
            let again = asked.attempt(&view, witness);
            again.map_err(|failed| asked.told(&view, failed))
        }
        first => first.map_err(|failed| asked.told(&view, failed)),
    }
}

/// What is asked for.
struct Asked<'a> {
    git: &'a Git,
    target: Target,
    tree: &'a str,
    options: RestoreOptions,
    cancel: &'a Cancel,
}

impl Asked<'_> {
    fn attempt(&self, view: &Arc<View>, witness: &dyn Witness) -> core::result::Result<Outcome, Box<Failed>> {
        let mut counts = Counts::default();
        let mut touched = Touched::Nothing;
        let job = Job::prepare(self, view);
        let result = job.and_then(|job| {
            witness.reached(Point::Checked);
            job.run(witness, &mut counts, &mut touched)
        });
        result.map_err(|error| {
            Box::new(Failed {
                error: broken_off(error, touched),
                touched,
                counts,
            })
        })
    }

    /// Says whether what failed is that git's private directory cannot be used.
    fn blames(&self, view: &View, failed: &Failed) -> bool {
        !self.cancel.is_cancelled() && view.failed(&failed.error)
    }

    /// Names what git, or whoever started it, could not know: nothing of the repository was missing.
    fn told(&self, view: &View, failed: Box<Failed>) -> Box<Failed> {
        let missed = matches!(
            failed.error.code(),
            Code::NotFound | Code::ObjectMissing | Code::GitFailed | Code::IoFailed | Code::RestoreIncomplete
        );
        if !missed || !self.blames(view, &failed) {
            return failed;
        }
        Box::new(Failed {
            error: broken_off(view.gone(), failed.touched),
            ..*failed
        })
    }
}

/// Names an error of the system by what it means here: once git began, nobody may say that nothing did.
fn broken_off(error: Error, touched: Touched) -> Error {
    match (touched, error) {
        (
            Touched::Perhaps,
            Error::Io {
                operation,
                path,
                source,
            },
        ) => Refusal::new(Code::RestoreIncomplete, format!("{operation}: {source}"))
            .name(path)
            .into(),
        (Touched::Nothing | Touched::Perhaps, error) => error,
    }
}

/// Everything that is known before the lock is sought.
struct Job {
    target: Target,
    found: Found,
    repo: Repository,
    at: Checked,
    tree: ObjectId,
    listing: Arc<Listing>,
    source: Source,
    options: RestoreOptions,
}

impl Job {
    fn prepare(asked: &Asked<'_>, view: &Arc<View>) -> Result<Self> {
        let (git, target, tree, options) = (asked.git, asked.target.clone(), asked.tree, asked.options);
        let cancel = asked.cancel;
        let id = ObjectId::parse(tree)?;
        let found = target.find()?;
        let opened = || Repository::viewed(git, found.clone(), Some(Arc::clone(view)), cancel);
        // A process that does not know the tree yet asks for its parts while it reads the configuration.
        let (repo, hint) = if listing::known(&id).is_some() {
            (opened(), None)
        } else {
            let place = Place {
                view: Some(Arc::clone(view)),
                ..found.place()
            };
            object_dirs(&found.common)?;
            let (repo, hint) = beside(opened, || Objects::hint(git, &place, &id, cancel));
            (repo, Some(hint))
        };
        let mut repo = repo?;
        let at = target.check(&found, &repo)?;
        let tree = repo.parse_id(tree)?;
        let listing = repo.whole_listing(&tree, hint)?;
        repo.place.worktree = Some(at.worktree.clone());
        if options.verify != Verify::Tree && repo.config().is_true("core.sparsecheckout") {
            let why = "a sparse worktree cannot be proved byte for byte";
            return Err(Refusal::new(Code::PreconditionFailed, why)
                .reason("sparse_checkout")
                .into());
        }
        if repo.config().is_true("core.sparsecheckout") {
            let patterns = at.gitdir.join("info/sparse-checkout");
            if let (Some(view), Some(text)) = (&repo.place.view, settings::plain_file(&patterns)?) {
                view.put("info/sparse-checkout", &text)?;
            }
        }
        let source = attributes::source(&repo, &listing)?;
        attributes::prepare(&mut repo, &listing, source)?;
        Ok(Self {
            target,
            found,
            repo,
            at,
            tree,
            listing,
            source,
            options,
        })
    }

    fn run(self, witness: &dyn Witness, counts: &mut Counts, touched: &mut Touched) -> Result<Outcome> {
        let at = &self.at;
        let lock = acquire(at, &self.options, self.repo.cancel(), witness, counts)?;
        lock.sweep()?;
        witness.reached(Point::Swept);
        let before = at.index()?;
        self.target.unchanged(&self.found, at)?;
        if let (Some(_), Some(view)) = (&before, &self.repo.place.view) {
            view.show_shared(&at.dir, &at.gitdir)?;
        }
        let ground = Ground::of(at, &self.repo, self.target.pins())?;
        let survey = Survey {
            ground: &ground,
            repo: &self.repo,
            listing: &self.listing,
            nested: self.options.nested,
        };
        let beforehand = survey.refuse(self.options.leftovers)?;
        let mut held = Held {
            repo: self.repo,
            at,
            ground: &ground,
            beforehand,
            lock: &lock,
            witness,
            private: private_index(&lock.nonce),
            before: None,
            tree: self.tree,
            listing: &self.listing,
            source: self.source,
            options: self.options,
        };
        if before.is_some() {
            held.link()?;
        }
        witness.reached(Point::Linked);
        held.repo.place.index = Some(at.gitdir.join(&held.private));
        let outcome = held.work(touched).and_then(|outcome| {
            held.publish()?;
            witness.reached(Point::Published);
            Ok(outcome)
        });
        held.clear();
        witness.reached(Point::Cleared);
        let mut outcome = outcome?;
        lock.release()?;
        witness.reached(Point::Released);
        outcome.counts = *counts;
        Ok(outcome)
    }
}
