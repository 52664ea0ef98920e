//! `semel doctor`: say what this machine can keep of our promises.

use super::Context;
use super::answer::Answer;
use semel_core::{Code, Refusal};

/// Say what this machine can keep of our promises.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, _context: &Context) -> Result<Answer, Refusal> {
    Err(Refusal::new(Code::Internal, "this command is not built yet"))
}
