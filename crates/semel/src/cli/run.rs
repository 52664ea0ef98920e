//! `semel run`: carry a job from a repository to a certificate.

use super::Context;
use super::answer::Answer;
use semel_core::{Code, Refusal};

/// Carry a job from a repository to a certificate.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, _context: &Context) -> Result<Answer, Refusal> {
    Err(Refusal::new(Code::Internal, "this command is not built yet"))
}
