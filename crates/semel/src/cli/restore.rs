//! `semel restore`: restore a git worktree to a tree, under our own lock.

use super::Context;
use super::answer::Answer;
use semel_core::{Code, Refusal};

/// Restore a git worktree to a tree, under our own lock.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, _context: &Context) -> Result<Answer, Refusal> {
    Err(Refusal::new(Code::Internal, "this command is not built yet"))
}
