//! `semel restore`: restore a git worktree to a tree, under our own lock.

use super::Context;
use super::answer::Answer;
use crate::engine::job::interrupt;
use crate::engine::prepared::{self, Recording};
use crate::engine::restore;
use crate::limits;
use clap::{Args as ClapArgs, ValueEnum};
use semel_core::Refusal;
use semel_core::ids::JobId;
use semel_core::job::Span;
use serde_json::json;
use std::path::PathBuf;

/// Restore a git worktree to a tree, under our own lock.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The worktree
    #[arg(long, value_name = "DIR")]
    worktree: PathBuf,
    /// The tree, by its full object id; with --job the one that was recorded, where none is named
    #[arg(long, value_name = "ID", required_unless_present = "job")]
    tree: Option<String>,
    /// The job it is for: its recorded tree is restored, and no other
    #[arg(long, value_name = "JOB")]
    job: Option<JobId>,
    /// Record the tree with the job once it is restored; needs a pinned worktree
    #[arg(long, requires_all = ["job", "tree"])]
    record: bool,
    /// How long index.lock is waited for
    #[arg(
        long,
        value_name = "TIME",
        help = "How long index.lock is waited for [default: 60s]"
    )]
    wait: Option<Span>,
    /// How much is proved before the index is published
    #[arg(long, value_enum, default_value_t = Verify::Bytes)]
    verify: Verify,
    /// Refuse a worktree that is not pinned
    #[arg(long)]
    require_pin: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Verify {
    /// The index writes exactly the tree
    Tree,
    /// And every file was read back and hashed
    Bytes,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    let interrupt = interrupt::watch()?;
    let proof = match args.verify {
        Verify::Tree => restore::Verify::Tree,
        Verify::Bytes => restore::Verify::Bytes,
    };
    let asked = restore::Asked {
        worktree: args.worktree,
        tree: args.tree.clone().unwrap_or_default(),
        wait: args.wait.map_or(limits::LOCK_WAIT, Span::get),
        verify: proof,
        require: if args.require_pin {
            restore::Require::Pin
        } else {
            restore::Require::Nothing
        },
        job: None,
    };
    let recording = if args.record {
        Recording::Record
    } else {
        Recording::Recall
    };
    let result = match &args.job {
        Some(job) => prepared::restore_for(
            config,
            asked,
            args.tree.as_deref(),
            job,
            recording,
            interrupt.cancel(),
        )
        .map(|(restored, recorded)| (restored, Some(recorded))),
        None => restore::restore(config, &asked, interrupt.cancel()).map(|restored| (restored, None)),
    };
    match result {
        Ok((restored, recorded)) => {
            let text = restored.residue_line();
            let record = recorded.map(|recorded| recorded.facts());
            let json = json!({"schema": "semel.restore/v1", "status": "restored",
                "outcome": restored.facts(), "record": record});
            Ok(Answer::new(text, json))
        }
        Err(refused) => {
            // Git's own bytes come first, unchanged.
            super::answer::raw_err(&refused.stderr);
            let mut json = super::answer::refusal_json(&refused.refusal);
            json["schema"] = "semel.restore/v1".into();
            json["status"] = "refused".into();
            json["git_exit"] = refused.git_exit.into();
            json["touched"] = refused.touched.into();
            json["counts"] = json!(refused.counts);
            Ok(Answer::new("", json).refused(refused.refusal))
        }
    }
}
