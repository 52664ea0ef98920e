//! `semel receipt`: what came of a call.

use super::Context;
use super::answer::Answer;
use crate::engine::look;
use clap::{ArgGroup, Args as ClapArgs};
use semel_core::Refusal;
use semel_core::ids::{ExecutionId, IdempotencyKey};
use serde_json::{Value, json};

/// Say what came of a call; it never runs anything.
#[derive(ClapArgs, Debug)]
#[command(group(ArgGroup::new("which").required(true).args(["execution", "key"])))]
pub(crate) struct Args {
    /// The execution, as its answer or semel log names it
    #[arg(value_name = "EXECUTION")]
    execution: Option<ExecutionId>,
    /// Instead: every call under this key, of whatever job and generation
    #[arg(long)]
    key: Option<IdempotencyKey>,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let receipts = look::receipts(context.config()?, args.execution, args.key)?;
    let text: Vec<String> = receipts.iter().map(line).collect();
    Ok(Answer::new(
        text.join("\n"),
        json!({"schema": "semel.receipt/v1", "receipts": receipts}),
    ))
}

fn line(receipt: &Value) -> String {
    let word = |name: &str| receipt[name].as_str().unwrap_or("-").to_owned();
    let mut text = format!(
        "{} {} {} {} key={} generation={}",
        word("state"),
        word("execution_id"),
        word("tool"),
        word("path"),
        word("idempotency_key"),
        word("generation"),
    );
    for (name, value) in [
        ("why", &receipt["why"]),
        ("refused", &receipt["refusal"]["code"]),
        ("recovered", &receipt["recovered"]),
        ("taken_back", &receipt["taken_back"]),
    ] {
        if let Some(value) = value.as_str() {
            text.push_str(&format!(" {name}={value:?}"));
        }
    }
    text
}
