//! Takes a git worktree to a tree, as `git read-tree --reset -u` does, under an `index.lock` of its own, and proves it.
//!
//! It is what `semel restore` does, by the same code. Collisions on `index.lock` are waited for inside: a loop around
//! it is not needed. Nothing of the environment is read, `PATH` included, and nothing is kept; git is run by its
//! absolute path in a closed environment. The calling thread waits; git ends with it.
//!
//! ```
//! # fn git(dir: &std::path::Path, args: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
//! #     let mut git = std::process::Command::new("git");
//! #     git.args(["-c", "user.name=A", "-c", "user.email=a@example.org"]).args(args).current_dir(dir);
//! #     let out = git.env("GIT_CONFIG_GLOBAL", "/dev/null").output()?;
//! #     assert!(out.status.success(), "{out:?}");
//! #     Ok(String::from_utf8(out.stdout)?.trim().to_owned())
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let worktree = dir.path();
//! # git(worktree, &["init", "-q"])?;
//! # std::fs::write(worktree.join("a"), "one\n")?;
//! # git(worktree, &["add", "-A"])?;
//! # git(worktree, &["commit", "-q", "-m", "one"])?;
//! # let tree = git(worktree, &["rev-parse", "HEAD^{tree}"])?;
//! # std::fs::write(worktree.join("a"), "changed\n")?;
//! use semel::restore::{Identity, Restore, Touched, Verify};
//! use std::time::Duration;
//!
//! let restore = Restore::new(worktree, &tree)
//!     .wait(Duration::from_secs(10))
//!     .verify(Verify::Bytes);
//! let restored = restore.run()?;
//! assert_eq!(restored.tree, tree);
//! assert_eq!(restored.identity, Identity::Unpinned);
//! # assert_eq!(std::fs::read(worktree.join("a"))?, b"one\n");
//!
//! let refused = Restore::new(worktree, "HEAD").run().unwrap_err();
//! assert_eq!((refused.code, refused.touched), ("bad_input", Touched::Nothing));
//! # Ok(())
//! # }
//! ```

use semel_core::Refusal;
use semel_host::git::{self, Git, Pins, Require};
use semel_host::process;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Is a restoration that is to be done: a worktree, a tree, and how.
#[derive(Clone, Debug)]
#[must_use = "nothing is restored until it is run"]
pub struct Restore {
    worktree: PathBuf,
    tree: String,
    wait: Duration,
    stale: Stale,
    verify: Verify,
    leftovers: Leftovers,
    nested: Nested,
    git: Option<PathBuf>,
    git_in: Vec<PathBuf>,
    state_root: Option<PathBuf>,
    pinning: Pinning,
    cancel: Option<Cancel>,
}

/// Says how much is proved before the restored index is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verify {
    /// The index writes exactly the tree.
    Tree,
    /// And every file, link and executable bit of the tree was read back and hashed.
    #[default]
    Bytes,
    /// And nothing but the tree lies in the worktree: neither untracked nor ignored entries.
    Pristine,
}

/// Says whether a lock that another program left may be adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stale {
    /// Never: it is waited for.
    Never,
    /// On complete evidence that its owner is gone, after it was seen unchanged for so long.
    Evidence {
        /// How long, of our own observation.
        grace: Duration,
    },
}

/// Says what becomes of entries that are not of the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leftovers {
    /// They stay.
    #[default]
    Kept,
    /// They are removed, ignored ones among them.
    Removed,
}

/// Says what becomes of a repository that lies where a file of the tree has to go, or among leftovers that are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Nested {
    /// It stays, and nothing is restored.
    #[default]
    Refused,
    /// It is removed.
    Removed,
}

/// Says whether a worktree has to be pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pinning {
    /// One that is not pinned is taken as it is, if nothing redirects.
    #[default]
    Optional,
    /// It is refused: `worktree_redirected`, reason `not_pinned`.
    Required,
}

/// Says how the identity of a worktree was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Identity {
    /// It is the one that was pinned by `semel worktree`, in every part.
    Pinned,
    /// Worktree and git directory pointed at each other, and nothing redirected.
    Unpinned,
}

/// Says whether a refused restoration may have changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Touched {
    /// Worktree and index are as they were.
    Nothing,
    /// Files may have been written. Restore again before the worktree is used.
    Perhaps,
}

/// Counts what a restoration met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// How often the lock was looked at.
    pub looks: u32,
    /// How often something was in the way.
    pub collisions: u32,
    /// How often a lock whose owner is gone was taken over in place, of ours or another program's.
    pub adopted: u32,
    /// How many of those were another program's, on complete evidence.
    pub recovered: u32,
    /// How long the lock was waited for.
    pub waited: Duration,
}

/// Is a worktree that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The tree, by its full object id.
    pub tree: String,
    /// How the worktree was known.
    pub identity: Identity,
    /// How much was proved.
    pub verified: Verify,
    /// How many entries were read back and hashed.
    pub hashed: usize,
    /// Files that git had called restored though their bytes were not; they were written anew.
    pub mended: Vec<PathBuf>,
    /// Entries that are not of the tree, the first 100 by name; not looked for with [`Verify::Tree`].
    pub residue: Vec<PathBuf>,
    /// How many such entries there are.
    pub residue_count: usize,
    /// Entries that were not of the tree and were removed, the first 100 by name.
    pub removed: Vec<PathBuf>,
    /// How many such entries there were.
    pub removed_count: usize,
    /// What was met.
    pub counts: Counts,
}

/// Is a restoration that was refused, or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// The name of the refusal, such as `lock_timeout`; all of them are in `docs/errors/`.
    pub code: &'static str,
    /// A finer, stable name inside it.
    pub reason: Option<String>,
    /// What is the case, in one clause.
    pub why: String,
    /// The paths and ids that it is about, fit to be shown.
    pub names: Vec<String>,
    /// What to do next, in one clause.
    pub next: &'static str,
    /// The exit status that `semel restore` has for it.
    pub exit: u8,
    /// Whether anything may have changed.
    pub touched: Touched,
    /// What git wrote to standard error, byte for byte; empty where git was not the cause.
    pub stderr: Vec<u8>,
    /// Git's exit status, where git was the cause and ended by itself.
    pub git_exit: Option<i32>,
    /// What was met until then.
    pub counts: Counts,
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.code, self.why)?;
        match self.names.as_slice() {
            [] => Ok(()),
            names => write!(f, ": {}", names.join(", ")),
        }
    }
}

impl core::error::Error for Refused {}

/// Ends a restoration from another thread; clones are one handle.
#[derive(Clone, Debug)]
pub struct Cancel {
    inner: process::Cancel,
}

impl Cancel {
    /// Makes a handle.
    ///
    /// # Errors
    /// `io_failed` where no descriptor is to be had.
    pub fn new() -> Result<Self, Box<Refused>> {
        process::Cancel::new()
            .map(|inner| Self { inner })
            .map_err(|error| Refused::before(error.into_refusal()))
    }

    /// Ends the wait at once, and a git that runs by SIGTERM, so that it takes its files away; a second time kills it.
    pub fn cancel(&self) {
        self.inner.cancel();
    }
}

impl Restore {
    /// How long `index.lock` is waited for, unless [`Restore::wait`] says otherwise.
    pub const WAIT: Duration = Duration::from_secs(60);
    /// How long another program's lock has to be seen unchanged before it may be adopted, unless [`Restore::stale`] says
    /// otherwise.
    pub const STALE_GRACE: Duration = Duration::from_secs(10);
    /// Where git is looked for, in this order, unless [`Restore::git_in`] says otherwise. `PATH` is never asked.
    pub const GIT_IN: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

    /// Begins with a worktree, by its top directory, and a tree, by its full object id.
    pub fn new(worktree: impl AsRef<Path>, tree: impl AsRef<str>) -> Self {
        Self {
            worktree: worktree.as_ref().to_owned(),
            tree: tree.as_ref().to_owned(),
            wait: Self::WAIT,
            stale: Stale::Evidence {
                grace: Self::STALE_GRACE,
            },
            verify: Verify::default(),
            leftovers: Leftovers::default(),
            nested: Nested::default(),
            git: None,
            git_in: Self::GIT_IN.map(PathBuf::from).to_vec(),
            state_root: None,
            pinning: Pinning::default(),
            cancel: None,
        }
    }

    /// Says how long `index.lock` is waited for.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Says whether a lock that another program left may be adopted.
    pub fn stale(mut self, stale: Stale) -> Self {
        self.stale = stale;
        self
    }

    /// Says what becomes of entries that are not of the tree.
    pub fn leftovers(mut self, leftovers: Leftovers) -> Self {
        self.leftovers = leftovers;
        self
    }

    /// Says what becomes of a repository in the way.
    pub fn nested(mut self, nested: Nested) -> Self {
        self.nested = nested;
        self
    }

    /// Says which git is run, by its path.
    pub fn git(mut self, program: impl AsRef<Path>) -> Self {
        self.git = Some(program.as_ref().to_owned());
        self
    }

    /// Says how much is proved.
    pub fn verify(mut self, verify: Verify) -> Self {
        self.verify = verify;
        self
    }

    /// Says in which directories git is looked for.
    pub fn git_in(mut self, dirs: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.git_in = dirs.into_iter().map(Into::into).collect();
        self
    }

    /// Says where pins are kept: the state root that `semel worktree pin` was given. Without one no worktree is pinned.
    pub fn state_root(mut self, dir: impl AsRef<Path>) -> Self {
        self.state_root = Some(dir.as_ref().to_owned());
        self
    }

    /// Says whether the worktree has to be pinned.
    pub fn pinning(mut self, pinning: Pinning) -> Self {
        self.pinning = pinning;
        self
    }

    /// Has another thread end it.
    pub fn cancelled_by(mut self, cancel: &Cancel) -> Self {
        self.cancel = Some(cancel.clone());
        self
    }

    /// Restores the worktree. It may be run again.
    ///
    /// # Errors
    /// See [`Refused`]; with [`Touched::Nothing`] worktree and index are as they were.
    ///
    /// # Durability
    /// When this returns, the index and its directory are synced; the files of the worktree are not.
    pub fn run(&self) -> Result<Restored, Box<Refused>> {
        let before = |error: semel_host::Error| Refused::before(error.into_refusal());
        let cancel = match &self.cancel {
            Some(cancel) => cancel.inner.clone(),
            None => process::Cancel::new().map_err(before)?,
        };
        let git = match &self.git {
            Some(program) => Git::at(program),
            None => Git::find(&self.git_in),
        };
        let git = git.map_err(before)?;
        let target = self.target().map_err(before)?;
        let options = git::RestoreOptions {
            wait: self.wait,
            stale: match self.stale {
                Stale::Never => semel_core::restore::Stale::Never,
                Stale::Evidence { grace } => semel_core::restore::Stale::Evidence { grace },
            },
            verify: match self.verify {
                Verify::Tree => git::Verify::Tree,
                Verify::Bytes => git::Verify::Bytes,
                Verify::Pristine => git::Verify::Pristine,
            },
            leftovers: match self.leftovers {
                Leftovers::Kept => git::Leftovers::Kept,
                Leftovers::Removed => git::Leftovers::Removed,
            },
            nested: match self.nested {
                Nested::Refused => git::Nested::Refused,
                Nested::Removed => git::Nested::Removed,
            },
            ..git::RestoreOptions::default()
        };
        git::restore(&git, target, &self.tree, options, &cancel)
            .map(Restored::of)
            .map_err(|failed| Refused::of(*failed))
    }

    fn target(&self) -> semel_host::Result<git::Target> {
        let require = match self.pinning {
            Pinning::Optional => Require::Nothing,
            Pinning::Required => Require::Pin,
        };
        match &self.state_root {
            Some(state) => Pins::of(state).target(&self.worktree, require),
            None => git::Target::unpinned(&self.worktree, require),
        }
    }
}

fn counts(met: semel_core::restore::Counts) -> Counts {
    Counts {
        looks: met.looks,
        collisions: met.collisions,
        adopted: met.adopted,
        recovered: met.recovered,
        waited: Duration::from_millis(met.waited_ms),
    }
}

fn paths(paths: &[semel_core::RelPath]) -> Vec<PathBuf> {
    let path = |path: &semel_core::RelPath| PathBuf::from(OsStr::from_bytes(path.as_bytes()));
    paths.iter().map(path).collect()
}

impl Restored {
    fn of(outcome: git::Outcome) -> Self {
        Self {
            tree: outcome.tree.to_string(),
            identity: match outcome.identity {
                git::Identity::Pinned => Identity::Pinned,
                git::Identity::Unpinned => Identity::Unpinned,
            },
            verified: match outcome.verified {
                git::Verify::Tree => Verify::Tree,
                git::Verify::Bytes => Verify::Bytes,
                git::Verify::Pristine => Verify::Pristine,
            },
            hashed: outcome.hashed,
            mended: paths(&outcome.mended),
            residue: paths(&outcome.residue),
            residue_count: outcome.residue_count,
            removed: paths(&outcome.removed),
            removed_count: outcome.removed_count,
            counts: counts(outcome.counts),
        }
    }
}

impl Refused {
    fn before(refusal: Refusal) -> Box<Self> {
        Box::new(Self {
            code: refusal.code.wire(),
            next: refusal.code.next(),
            exit: refusal.code.exit(),
            reason: refusal.reason,
            why: refusal.why,
            names: refusal.names,
            touched: Touched::Nothing,
            stderr: Vec::new(),
            git_exit: None,
            counts: Counts::default(),
        })
    }

    fn of(failed: git::Failed) -> Box<Self> {
        let (stderr, git_exit) = match &failed.error {
            semel_host::Error::Git(failure) => (failure.stderr.clone(), failure.exit),
            semel_host::Error::Refused(_)
            | semel_host::Error::Io { .. }
            | semel_host::Error::Unproven { .. } => (Vec::new(), None),
        };
        Box::new(Self {
            touched: match failed.touched {
                git::Touched::Nothing => Touched::Nothing,
                git::Touched::Perhaps => Touched::Perhaps,
            },
            stderr,
            git_exit,
            counts: counts(failed.counts),
            ..*Self::before(failed.error.into_refusal())
        })
    }
}
