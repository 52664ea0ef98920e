//! `semel undo`: put back what an execution removed or replaced.

use super::Context;
use super::answer::Answer;
use crate::wire::{Absent, Link};
use clap::Args as ClapArgs;
use semel_core::Refusal;
use semel_core::ids::ExecutionId;
use serde_json::Value;
use std::sync::Arc;

/// Put back what an execution removed or replaced, in a volume that is still open.
///
/// It is a new execution, and can be undone in turn. It is refused where a path changed since: nothing of what came
/// later is undone with it.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The execution, as its answer or semel log names it
    #[arg(value_name = "EXECUTION")]
    execution: ExecutionId,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let path = format!("/v1/admin/executions/{}/undo", args.execution);
    let link = Link::new(Arc::new(context.config()?), Absent::Start);
    let mut answer = link.admin("POST", &path, Vec::new())?;
    let by = answer["execution_id"].as_str().unwrap_or_default();
    let again = if answer["replayed"] == true { " before" } else { "" };
    let text = format!("execution {} was undone{again} by execution {by}", args.execution);
    answer["schema"] = Value::from("semel.undo/v1");
    answer["undone"] = Value::from(args.execution.as_str());
    Ok(Answer::new(text, answer))
}
