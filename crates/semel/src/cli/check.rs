//! `semel check`: verify the journal and its database.

use super::Context;
use super::answer::Answer;
use crate::engine::look;
use semel_core::Refusal;

/// Verify the journal and its database.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, context: &Context) -> Result<Answer, Refusal> {
    super::log::report(&look::check(context.config()?)?)
}
