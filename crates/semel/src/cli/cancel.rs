//! `semel cancel`: end a running job.

use super::Context;
use super::answer::Answer;
use crate::engine::job::cancel::{self, Cancelled};
use crate::wire;
use clap::Args as ClapArgs;
use semel_core::Refusal;
use semel_core::ids::JobId;
use serde_json::json;

/// End a running job.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The job
    #[arg(value_name = "JOB")]
    job: JobId,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let engine = wire::command(context.config()?)?;
    let (status, text) = match cancel::cancel(&engine, &args.job)? {
        Cancelled::Told => ("told", "the process that runs the job was told to end"),
        Cancelled::Buried => (
            "ended",
            "nobody ran the job any more; what it had left open is ended, dirty",
        ),
    };
    Ok(Answer::new(
        text,
        json!({"schema": "semel.cancel/v1", "job": args.job, "status": status}),
    ))
}
