//! `semel restore`: a worktree becomes a tree, under our own lock.
//!
//! Outside of a job nothing is journaled but counts, and those only if a daemon runs: no path, stderr or content.

use crate::config::Config;
use crate::wire::{self, Absent};
use semel_core::ids::JobId;
use semel_core::record::Restoration;
use semel_core::restore::Counts;
use semel_core::{Code, Refusal};
use semel_host::clock;
pub(crate) use semel_host::git::Require;
pub(crate) use semel_host::git::Verify;
use semel_host::git::{self, Failed, Git, Identity, Outcome, Pins, RestoreOptions, Touched};
use semel_host::process::Cancel;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Says what is to be restored.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The worktree.
    pub(crate) worktree: PathBuf,
    /// The tree, as the caller gave it.
    pub(crate) tree: String,
    /// How long the lock is waited for.
    pub(crate) wait: Duration,
    /// How much is proved.
    pub(crate) verify: Verify,
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
}

/// Is a worktree that was restored.
#[derive(Debug)]
pub(crate) struct Restored(Outcome);

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
            counts: self.0.counts,
            ..untouched(refusal)
        }
    }

    /// Gives one line for a person.
    pub(crate) fn residue_line(&self) -> String {
        let Self(outcome) = self;
        let mut line = format!("restored {}", outcome.tree);
        if outcome.counts.collisions > 0 {
            line.push_str(&format!(
                ", after waiting {} ms for index.lock",
                outcome.counts.waited_ms
            ));
        }
        if outcome.residue_count > 0 {
            line.push_str(&format!(
                "; {} entries are not of the tree",
                outcome.residue_count
            ));
        }
        line
    }

    /// Gives the outcome for machines.
    pub(crate) fn facts(&self) -> Value {
        let Self(outcome) = self;
        json!({
            "tree": outcome.tree,
            "identity": match outcome.identity { Identity::Pinned => "pinned", Identity::Unpinned => "unpinned" },
            "verified": match outcome.verified { Verify::Tree => "tree", Verify::Bytes => "bytes" },
            "hashed": outcome.hashed,
            "mended": outcome.mended,
            "residue": outcome.residue,
            "residue_count": outcome.residue_count,
            "counts": outcome.counts,
        })
    }
}

/// Restores a worktree.
///
/// # Errors
/// The refusals of [`git::restore`], each with what git itself said.
pub(crate) fn restore(config: Config, asked: &Asked, cancel: &Cancel) -> Result<Restored, Box<Refused>> {
    let options = RestoreOptions {
        wait: asked.wait,
        verify: asked.verify,
    };
    let result = Git::find(&config.path)
        .map_err(|error| Box::new(untouched(error.into_refusal())))
        .and_then(|git| {
            let target = Pins::of(&config.state).target(&asked.worktree, asked.require);
            let target = target.map_err(|error| Box::new(untouched(error.into_refusal())))?;
            git::restore(&git, target, &asked.tree, options, cancel)
                .map_err(|failed| Box::new(refused(*failed)))
        });
    let (code, counts) = match &result {
        Ok(outcome) => (None, outcome.counts),
        Err(refused) => (Some(refused.refusal.code), refused.counts),
    };
    report(config, asked, code, counts);
    result.map(Restored)
}

fn untouched(refusal: Refusal) -> Refused {
    Refused {
        refusal,
        stderr: Vec::new(),
        git_exit: None,
        touched: "nothing",
        counts: Counts::default(),
    }
}

fn refused(failed: Failed) -> Refused {
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
    }
}

/// Tells the daemon what was counted, if one runs. A restoration does not depend on it.
fn report(config: Config, asked: &Asked, code: Option<Code>, counts: Counts) {
    let record = Restoration {
        job: asked.job.clone(),
        tree: asked.tree.clone(),
        code,
        collisions: counts.collisions,
        adoptions: counts.adopted,
        waited_ms: counts.waited_ms,
        at: clock::now(),
    };
    if let Ok(engine) = wire::connected(config, Absent::Refuse) {
        drop(engine.journal.restored(record));
    }
}
