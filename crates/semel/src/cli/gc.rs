//! `semel gc`: free what is past retention.

use super::Context;
use super::answer::Answer;
use semel_core::{Code, Refusal};

/// Free what is past retention.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, _context: &Context) -> Result<Answer, Refusal> {
    Err(Refusal::new(Code::Internal, "this command is not built yet"))
}
