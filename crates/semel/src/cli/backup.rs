//! `semel backup`: copy the journal, whole and consistent, while it is in use.

use super::Context;
use super::answer::Answer;
use crate::engine::look;
use semel_core::Refusal;
use serde_json::json;
use std::path::PathBuf;

/// Copy the journal to a new file, whole and consistent, while it is in use.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The new file
    file: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    look::backup(context.config()?, &args.file)?;
    let shown = args.file.display().to_string();
    Ok(Answer::new(
        format!("the journal was copied to {shown}"),
        json!({"schema": "semel.backup/v1", "file": shown}),
    ))
}
