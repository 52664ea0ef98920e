//! `semel restore`: a worktree becomes a tree, under our own lock.

use super::{Engine, host, store};
use semel_core::record::Restoration;
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::git::{self, Failed, Git, Outcome, RestoreOptions};
use semel_host::process::Cancel;
use std::path::Path;

/// Is a restoration that was refused.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Why.
    pub(crate) refusal: Refusal,
    /// What git wrote to standard error, byte for byte; empty where git was not the cause.
    pub(crate) stderr: Vec<u8>,
    /// Git's exit status, where git was the cause.
    pub(crate) git_exit: Option<i32>,
    /// Whether a file may have been written before it failed.
    pub(crate) touched: bool,
}

/// Restores a worktree.
///
/// # Errors
/// Those of [`git::restore`].
pub(crate) fn restore(
    git: &Git,
    worktree: &Path,
    tree: &str,
    options: RestoreOptions,
    cancel: &Cancel,
) -> Result<Outcome, Box<Failed>> {
    git::restore(git, worktree, tree, options, cancel)
}

/// Reports what a restoration met to the daemon, if one runs; no path, stderr or content.
pub(crate) fn report(engine: &Engine, record: Restoration) -> Result<(), Refusal> {
    engine.journal.restored(record).map_err(store)
}
