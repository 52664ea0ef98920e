//! `semel check`: verify the journal and its database.

use super::Context;
use super::answer::Answer;
use crate::engine::audit::{self, Ask};
use crate::engine::look::Depth;
use semel_core::Refusal;

/// Verify the journal and its database.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, context: &Context) -> Result<Answer, Refusal> {
    let audited = audit::journal(context.config()?, Depth::Structures, &Ask::default())?;
    Ok(super::log::report(&audited))
}
