//! `semel retry`: run a whole command again, only while nothing has taken ownership of the work.

use super::Context;
use super::answer::{Answer, refusal_json};
use crate::engine::job::interrupt;
use crate::engine::retry::{self, Asked, Outcome, Place};
use crate::limits;
use clap::{ArgGroup, Args as ClapArgs};
use semel_core::command::TreeEnded;
use semel_core::job::Span;
use semel_core::retry::{Counts, End};
use semel_core::{Code, Refusal};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;

const SCHEMA: &str = "semel.retry/v1";

/// Run a whole command again, only while nothing has taken ownership of the work.
///
/// It is run again if it failed of exactly the collision on the worktree's index.lock and the event stream is the same
/// to the byte. Exit status, stdout and stderr are the command's own; what refuses it before its first try is ours.
#[derive(ClapArgs, Debug)]
#[command(group(ArgGroup::new("where").required(true).args(["stream", "stream_template"])))]
pub(crate) struct Args {
    /// The worktree that the command restores
    #[arg(long, value_name = "DIR")]
    worktree: PathBuf,
    /// The tree that it restores it to, by its full object id
    #[arg(long, value_name = "ID")]
    tree: String,
    /// The event stream of the run: an NDJSON file
    #[arg(long, value_name = "FILE")]
    stream: Option<PathBuf>,
    /// The event stream in the worktree, such as .smithers/executions/{run}/logs/stream.ndjson
    #[arg(long, value_name = "TEMPLATE", requires = "run")]
    stream_template: Option<OsString>,
    /// The id of the run that writes it: the inner one
    #[arg(long, value_name = "ID", requires = "stream_template")]
    run: Option<OsString>,
    /// How often the command is run at most
    #[arg(
        long,
        value_name = "N",
        default_value_t = limits::RETRY_TRIES,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::RETRY_TRIES_MOST))
    )]
    tries: u32,
    /// How long index.lock is waited for before another try
    #[arg(
        long,
        value_name = "TIME",
        help = "How long index.lock is waited for before another try [default: 60s]"
    )]
    wait: Option<Span>,
    /// The command and its arguments; it is started where you are
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let reach = context.reach()?;
    let interrupt = interrupt::watch()?;
    let asked = asked(args)?;
    match retry::retry(&reach, &asked, &interrupt) {
        Ok(outcome) => Ok(Answer {
            exit: outcome.status,
            ..Answer::new("", facts(&outcome))
        }),
        Err(refusal) => {
            let mut json = refusal_json(&refusal);
            json["schema"] = SCHEMA.into();
            json["status"] = "refused".into();
            json["counts"] = json!(Counts::default());
            let answer = Answer::new("", json).refused(refusal);
            // Whatever was under way when a signal came: that it came is why.
            let exit = interrupt.status().unwrap_or(answer.exit);
            Ok(Answer { exit, ..answer })
        }
    }
}

fn asked(args: Args) -> Result<Asked, Refusal> {
    let stream = match (args.stream, args.stream_template, args.run) {
        (Some(file), None, None) => Place::File(file),
        (None, Some(template), Some(run)) => Place::Template { template, run },
        _ => {
            let why = "give --stream, or --stream-template with --run";
            return Err(Refusal::new(Code::Usage, why));
        }
    };
    Ok(Asked {
        worktree: args.worktree,
        tree: args.tree,
        stream,
        tries: args.tries,
        wait: args.wait.map_or(limits::RETRY_WAIT, Span::get),
        command: args.command,
    })
}

/// Gives the outcome for machines. It names no path and holds nothing that the command wrote.
fn facts(outcome: &Outcome) -> Value {
    let status = match outcome.end {
        End::Succeeded => "succeeded",
        End::Unrelated | End::Living | End::Exhausted | End::Interrupted | End::Refused(_) => "failed",
    };
    let (reason, why) = match &outcome.end {
        End::Refused(refusal) => (refusal.reason.as_deref(), Some(refusal.why.as_str())),
        End::Succeeded | End::Unrelated | End::Living | End::Exhausted | End::Interrupted => (None, None),
    };
    json!({
        "schema": SCHEMA,
        "status": status,
        "end": outcome.end.name(),
        "reason": reason,
        "why": why,
        "child_exit": outcome.status,
        "tree_ended": match outcome.tree_ended { TreeEnded::Proved => "proved", TreeEnded::Unproved => "unproved" },
        "counts": outcome.counts,
    })
}
