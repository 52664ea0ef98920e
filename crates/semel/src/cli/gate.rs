//! `semel gate`: check that a certificate covers exactly the tree to be merged.

use super::Context;
use super::answer::Answer;
use semel_core::{Code, Refusal};

/// Check that a certificate covers exactly the tree to be merged.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, _context: &Context) -> Result<Answer, Refusal> {
    Err(Refusal::new(Code::Internal, "this command is not built yet"))
}
