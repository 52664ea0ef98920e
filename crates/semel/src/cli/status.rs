//! `semel status`: say what is open, running or unknown.

use super::Context;
use super::answer::Answer;
use semel_core::{Code, Refusal};

/// Say what is open, running or unknown.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, _context: &Context) -> Result<Answer, Refusal> {
    Err(Refusal::new(Code::Internal, "this command is not built yet"))
}
