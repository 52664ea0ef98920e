//! `semel key`: make and show the signing key.

use super::Context;
use super::answer::Answer;
use semel_core::{Code, Refusal};

/// Make and show the signing key.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, _context: &Context) -> Result<Answer, Refusal> {
    Err(Refusal::new(Code::Internal, "this command is not built yet"))
}
