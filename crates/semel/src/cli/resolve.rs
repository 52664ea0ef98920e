//! `semel resolve`: settle a call whose outcome cannot be told.

use super::Context;
use super::answer::Answer;
use crate::wire::{Absent, Link};
use clap::{ArgGroup, Args as ClapArgs};
use semel_core::Refusal;
use semel_core::ids::ExecutionId;
use serde_json::json;
use std::sync::Arc;

/// Settle a call whose outcome is unknown, after a look at its volume.
///
/// semel status lists such calls with the evidence. Nothing is done to any file. Where the last unknown outcome of a
/// volume is settled, and nothing else made it dirty, its mark is lifted.
#[derive(ClapArgs, Debug)]
#[command(group(ArgGroup::new("settled").required(true).args(["happened", "never_happened"])))]
pub(crate) struct Args {
    /// The execution, as semel status names it
    #[arg(value_name = "EXECUTION")]
    execution: ExecutionId,
    /// All of it happened: the key gets its receipt
    #[arg(long)]
    happened: bool,
    /// None of it happened, or it was taken back by hand: the key is free again
    #[arg(long)]
    never_happened: bool,
    /// Why, for whoever reads the log
    #[arg(long, value_name = "TEXT")]
    note: String,
    /// Who says so
    #[arg(long, value_name = "NAME", default_value = "operator")]
    by: String,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let settled = if args.happened {
        "happened"
    } else {
        "never_happened"
    };
    let path = format!("/v1/admin/executions/{}/resolve", args.execution);
    let body = json!({"settled": settled, "by": args.by, "note": args.note}).to_string();
    let link = Link::new(Arc::new(context.config()?), Absent::Start);
    let answer = link.admin("POST", &path, body.into_bytes())?;
    let key = if args.happened {
        "has its receipt"
    } else {
        "is free again"
    };
    let mut text = format!("execution {} is settled: the key {key}", args.execution);
    if answer["volume_state"] == "clean" {
        text.push_str("; its volume is clean");
    }
    Ok(Answer::new(text, answer))
}
