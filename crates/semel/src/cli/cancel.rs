//! `semel cancel`: end a running job, or one command of a call.

use super::Context;
use super::answer::Answer;
use crate::engine::job::cancel::{self, Cancelled};
use crate::wire::{self, Absent, Link};
use clap::{ArgGroup, Args as ClapArgs};
use semel_core::ids::{ExecutionId, JobId};
use semel_core::{Code, Refusal};
use serde_json::json;
use std::sync::Arc;

/// End a running job, or one command that a call runs.
///
/// A command gets SIGTERM and, a while later, SIGKILL. Its call gets its receipt, which says that it was asked to end.
#[derive(ClapArgs, Debug)]
#[command(group(ArgGroup::new("which").required(true).args(["job", "execution"])))]
pub(crate) struct Args {
    /// The job
    #[arg(value_name = "JOB")]
    job: Option<JobId>,
    /// Instead: the execution of a run_command
    #[arg(long, value_name = "ID")]
    execution: Option<ExecutionId>,
    /// Send the command SIGKILL at once
    #[arg(long, requires = "execution", conflicts_with = "job")]
    kill: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    match (args.job, args.execution) {
        (Some(job), None) => of_job(&job, context),
        (None, Some(execution)) => {
            let urgency = if args.kill { "kill" } else { "ask" };
            of_execution(&execution, urgency, context)
        }
        (Some(_), Some(_)) | (None, None) => {
            let why = "give a job, or --execution";
            Err(Refusal::new(Code::Usage, why))
        }
    }
}

fn of_job(job: &JobId, context: &Context) -> Result<Answer, Refusal> {
    let engine = wire::command(context.config()?)?;
    let (status, text) = match cancel::cancel(&engine, job)? {
        Cancelled::Told => ("told", "the process that runs the job was told to end"),
        Cancelled::Buried => (
            "ended",
            "nobody ran the job any more; what it had left open is ended, dirty",
        ),
    };
    Ok(Answer::new(
        text,
        json!({"schema": "semel.cancel/v1", "job": job, "status": status}),
    ))
}

fn of_execution(execution: &ExecutionId, urgency: &str, context: &Context) -> Result<Answer, Refusal> {
    let link = Link::new(Arc::new(context.config()?), Absent::Start);
    let path = format!("/v1/admin/executions/{execution}/end");
    let answer = link.admin(
        "POST",
        &path,
        json!({"urgency": urgency}).to_string().into_bytes(),
    )?;
    let text = match answer["state"].as_str() {
        Some("asked") => "the command was asked to end",
        Some("ended") => "the command has just ended by itself",
        Some("never_began") => "the command never began, and never will",
        _ => "whoever ran the command is gone; its outcome is unknown",
    };
    Ok(Answer::new(text, answer))
}
