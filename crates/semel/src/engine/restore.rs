//! `semel restore`: a worktree becomes a tree, under our own lock.
//!
//! Outside of a job nothing is journaled but counts and the git that was used, and those only if a daemon runs: no
//! path of the worktree, stderr or content.

use crate::config::Reach;
use crate::engine::waits::Reporter;
use crate::wire;
use semel_core::git_tree::ObjectId;
use semel_core::ids::JobId;
use semel_core::record::{Executable, Restoration};
use semel_core::restore::Counts;
pub(crate) use semel_core::restore::Stale;
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::git::{self, Failed, Git, Identity, Outcome, Pins, RestoreOptions, Target, Touched};
pub(crate) use semel_host::git::{Leftovers, Nested, Point, Require, Verify, Waiting, Witness};
use semel_host::process::Cancel;
use semel_store::Journal as _;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Says what is to be restored.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The worktree.
    pub(crate) worktree: PathBuf,
    /// The tree, as the caller gave it.
    pub(crate) tree: String,
    /// The git that is used; else the first one of the configured directories.
    pub(crate) git: Option<PathBuf>,
    /// How long the lock is waited for.
    pub(crate) wait: Duration,
    /// Whether a stranger's lock may be taken for stale.
    pub(crate) stale: Stale,
    /// How much is proved.
    pub(crate) verify: Verify,
    /// What becomes of entries that are not of the tree.
    pub(crate) leftovers: Leftovers,
    /// What becomes of a repository in the way.
    pub(crate) nested: Nested,
    /// Whether the worktree has to be pinned.
    pub(crate) require: Require,
    /// The job it is for, where there is one.
    pub(crate) job: Option<JobId>,
}

/// Is a restoration that was refused.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Why.
    pub(crate) refusal: Refusal,
    /// What git wrote to standard error, byte for byte; empty where git was not the cause.
    pub(crate) stderr: Vec<u8>,
    /// Git's exit status, where git was the cause.
    pub(crate) git_exit: Option<i32>,
    /// Whether a file may have been written: `nothing` or `perhaps`.
    pub(crate) touched: &'static str,
    /// What was counted until then.
    pub(crate) counts: Counts,
    /// The git that was used, where one was found.
    pub(crate) git: Option<Executable>,
}

/// Is a worktree that was restored.
#[derive(Debug)]
pub(crate) struct Restored {
    outcome: Outcome,
    git: Executable,
    version: String,
}

impl Refused {
    /// Is refused before anything was touched.
    pub(crate) fn untouched(refusal: Refusal) -> Self {
        untouched(refusal)
    }
}

impl Restored {
    /// Refuses what came after a worktree was restored.
    pub(crate) fn but(&self, refusal: Refusal) -> Refused {
        Refused {
            touched: "perhaps",
            counts: self.outcome.counts,
            ..untouched(refusal)
        }
    }

    /// Gives one line for a person.
    pub(crate) fn residue_line(&self) -> String {
        let outcome = &self.outcome;
        let mut line = format!("restored {}", outcome.tree);
        if outcome.counts.collisions > 0 {
            line.push_str(&format!(
                ", after waiting {} ms for index.lock",
                outcome.counts.waited_ms
            ));
        }
        if outcome.counts.recovered > 0 {
            line.push_str("; the stale lock of another program was adopted");
        } else if outcome.counts.adopted > 0 {
            line.push_str("; the lock of a restoration that had died was adopted");
        }
        if outcome.removed_count > 0 {
            line.push_str(&format!("; {} entries were removed", outcome.removed_count));
        }
        if outcome.residue_count > 0 {
            line.push_str(&format!(
                "; {} entries are not of the tree",
                outcome.residue_count
            ));
        }
        line
    }

    /// Gives what git wrote to standard error though it succeeded.
    pub(crate) fn stderr(&self) -> &[u8] {
        &self.outcome.stderr
    }

    /// Gives the outcome for machines.
    pub(crate) fn facts(&self) -> Value {
        let outcome = &self.outcome;
        json!({
            "tree": outcome.tree,
            "identity": match outcome.identity { Identity::Pinned => "pinned", Identity::Unpinned => "unpinned" },
            "verified": outcome.verified.name(),
            "hashed": outcome.hashed,
            "mended": outcome.mended,
            "residue": outcome.residue,
            "residue_count": outcome.residue_count,
            "removed": outcome.removed,
            "removed_count": outcome.removed_count,
            "counts": outcome.counts,
            "git": {"path": self.git.path, "sha256": self.git.sha256, "version": self.version},
        })
    }
}

/// Hears of a restoration: the caller's lines, and the daemon's list of waits.
struct Heard<'a> {
    caller: &'a dyn Witness,
    reporter: Option<Reporter>,
}

impl Witness for Heard<'_> {
    fn reached(&self, point: Point) {
        self.caller.reached(point);
    }

    fn waiting(&self, waiting: &Waiting) {
        self.caller.waiting(waiting);
        if let Some(reporter) = &self.reporter {
            reporter.waiting(waiting);
        }
    }
}

/// Restores a worktree.
///
/// # Errors
/// The refusals of [`git::restore`], each with what git itself said.
pub(crate) fn restore(
    reach: &Reach,
    asked: &Asked,
    cancel: &Cancel,
    caller: &dyn Witness,
) -> Result<Restored, Box<Refused>> {
    let options = RestoreOptions {
        wait: asked.wait,
        stale: asked.stale,
        verify: asked.verify,
        leftovers: asked.leftovers,
        nested: asked.nested,
        ..RestoreOptions::default()
    };
    let found = match &asked.git {
        Some(path) => Git::at(path),
        None => Git::find(&reach.path),
    };
    let git = found.map_err(|error| Box::new(untouched(error.into_refusal())))?;
    let used = executable(&git);
    let target = target(reach, &asked.worktree, asked.require);
    let target = target.map_err(|error| Box::new(untouched(error.into_refusal())))?;
    let reporter = reach.config.clone().map(Arc::new);
    let heard = Heard {
        caller,
        reporter: reporter.map(|config| Reporter::begin(config, &asked.worktree)),
    };
    let result = git::restore_watched(&git, target, &asked.tree, options, cancel, &heard);
    drop(heard);
    let (code, counts) = match &result {
        Ok(outcome) => (None, outcome.counts),
        Err(failed) => (Some(failed.error.code()), failed.counts),
    };
    report(reach, asked, code, counts, used.clone());
    match result {
        Ok(outcome) => Ok(Restored {
            outcome,
            git: used,
            version: git.version().to_owned(),
        }),
        Err(failed) => Err(Box::new(refused(*failed, used))),
    }
}

/// Names the git that is used.
pub(super) fn executable(git: &Git) -> Executable {
    Executable {
        path: semel_core::path::shown(git.program().as_os_str().as_encoded_bytes()),
        sha256: git.sha256(),
    }
}

/// Says how a worktree is known: by its pin where it has one.
///
/// # Errors
/// As [`Pins::target`].
pub(super) fn target(reach: &Reach, worktree: &Path, require: Require) -> semel_host::Result<Target> {
    match &reach.config {
        Some(config) => Pins::of(&config.state).target(worktree, require),
        None => Target::unpinned(worktree, require),
    }
}

fn untouched(refusal: Refusal) -> Refused {
    Refused {
        refusal,
        stderr: Vec::new(),
        git_exit: None,
        touched: "nothing",
        counts: Counts::default(),
        git: None,
    }
}

fn refused(failed: Failed, git: Executable) -> Refused {
    let touched = match failed.touched {
        Touched::Nothing => "nothing",
        Touched::Perhaps => "perhaps",
    };
    let (stderr, git_exit) = match &failed.error {
        semel_host::Error::Git(failure) => (failure.stderr.clone(), failure.exit),
        semel_host::Error::Refused(_) | semel_host::Error::Io { .. } | semel_host::Error::Unproven { .. } => {
            (Vec::new(), None)
        }
    };
    Refused {
        refusal: failed.error.into_refusal(),
        stderr,
        git_exit,
        touched,
        counts: failed.counts,
        git: Some(git),
    }
}

/// Tells the daemon what was counted, if one runs. A restoration does not depend on it.
///
/// What is no id is not told: it may be anything that stood on a command line.
fn report(reach: &Reach, asked: &Asked, code: Option<Code>, counts: Counts, git: Executable) {
    let Some(config) = &reach.config else { return };
    let Ok(tree) = ObjectId::parse(&asked.tree) else {
        return;
    };
    let record = Restoration {
        job: asked.job.clone(),
        tree: tree.to_string(),
        code,
        collisions: counts.collisions,
        adoptions: counts.adopted,
        waited_ms: counts.waited_ms,
        git: Some(git),
        at: clock::now(),
    };
    drop(wire::telling(config.clone()).restored(record));
}

/// Kills or holds the process at a point, for a test.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    /// Where it is killed.
    pub(crate) crash: Option<Point>,
    /// Where it waits until a file is taken away.
    pub(crate) hold: Option<(Point, PathBuf)>,
}

impl Stops {
    /// Reads where a test wants it to stop: `POINT`, and `POINT=PATH`.
    ///
    /// # Errors
    /// `usage`.
    pub(crate) fn parse(crash: Option<&str>, hold: Option<&str>) -> Result<Self, Refusal> {
        let hold = hold.map(|text| {
            let (point, file) = text
                .split_once('=')
                .ok_or_else(|| Refusal::new(Code::Usage, "a restoration is held at POINT=PATH").name(text))?;
            Ok((point_of(point)?, PathBuf::from(file)))
        });
        Ok(Self {
            crash: crash.map(point_of).transpose()?,
            hold: hold.transpose()?,
        })
    }

    /// Stops there, if it was asked for.
    pub(crate) fn reached(&self, point: Point) {
        if let Some((_, file)) = self.hold.as_ref().filter(|(at, _)| *at == point) {
            // Where it cannot be put down, the test that waits for it fails.
            drop(semel_host::daemon::hold(file));
        }
        if self.crash == Some(point) {
            semel_host::daemon::crash();
        }
    }
}

fn point_of(name: &str) -> Result<Point, Refusal> {
    let mut all = Point::ALL.into_iter();
    all.find(|point| point.name() == name).ok_or_else(|| {
        let known: Vec<&str> = Point::ALL.iter().map(|point| point.name()).collect();
        Refusal::new(Code::Usage, format!("a point is one of {}", known.join(", "))).name(name)
    })
}
