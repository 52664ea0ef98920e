//! `semel serve`: serve the tool gateway: the app listener, and a separate probe process.

use super::Context;
use super::answer::Answer;
use semel_core::{Code, Refusal};

/// Serve the tool gateway: the app listener, and a separate probe process.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, _context: &Context) -> Result<Answer, Refusal> {
    Err(Refusal::new(Code::Internal, "this command is not built yet"))
}
