//! `semel log`: read and verify the journal's log.

use super::Context;
use super::answer::Answer;
use crate::engine::look::{self, ChainReport, LogFilter, LogLine, OnlyConflicts};
use clap::Subcommand;
use semel_core::ids::{ExecutionId, IdempotencyKey, JobId};
use semel_core::{Code, Refusal};
use serde_json::{Value, json};

/// Read and verify the journal's log.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Only entries of this job
    #[arg(long)]
    job: Option<JobId>,
    /// Only entries of this execution, with its replays and conflicts
    #[arg(long, value_name = "ID")]
    execution: Option<ExecutionId>,
    /// Only entries of this key
    #[arg(long)]
    key: Option<IdempotencyKey>,
    /// Only conflicts
    #[arg(long)]
    conflicts: bool,
    /// Only entries after this place
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// The newest so many
    #[arg(long, value_name = "N", default_value_t = 200)]
    limit: u32,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Verify the chain of all entries, the state of every key, and that no key has two effects
    Verify,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    if let Some(Command::Verify) = args.command {
        return report(&look::verify(config)?);
    }
    let lines = look::log(
        config,
        LogFilter {
            after_seq: args.after,
            job: args.job,
            execution: args.execution,
            key: args.key,
            conflicts: args.conflicts.then_some(OnlyConflicts::Only),
            limit: Some(args.limit),
        },
    )?;
    let text: Vec<String> = lines.iter().map(line).collect();
    Ok(Answer::new(
        text.join("\n"),
        json!({"schema": "semel.log/v1", "lines": lines}),
    ))
}

/// Gives the answer of a verification.
pub(super) fn report(report: &ChainReport) -> Result<Answer, Refusal> {
    if !report.faults.is_empty() {
        let why = format!("{} faults in {} entries", report.faults.len(), report.entries);
        return Err(Refusal::new(Code::UnknownState, why)
            .reason("journal_faulty")
            .names(report.faults.iter().take(50).cloned()));
    }
    Ok(Answer::new(
        format!("{} entries, no fault; head {}", report.entries, report.head),
        json!({"schema": "semel.log.verify/v1", "report": report}),
    ))
}

/// What a line shows of an entry, in this order.
const SHOWN: &[&str] = &[
    "event",
    "tool",
    "path",
    "job",
    "role",
    "attempt",
    "code",
    "reason",
    "approval_id",
    "decision",
    "by",
    "key",
    "execution_id",
    "generation",
    "end",
    "outcome",
    "why",
    "tree",
];

fn line(line: &LogLine) -> String {
    let record = serde_json::to_value(&line.entry.record).unwrap_or_default();
    let mut text = format!(
        "{} {:>6} {}",
        line.at,
        line.entry.seq,
        record.get("kind").and_then(Value::as_str).unwrap_or_default()
    );
    for name in SHOWN {
        if let Some(value) = find(&record, name) {
            text.push_str(&format!(" {name}={value}"));
        }
    }
    text
}

/// Finds a member that is text or a number, at the top or at most two levels below.
fn find(record: &Value, name: &str) -> Option<String> {
    fn within(value: &Value, name: &str, levels: u8) -> Option<String> {
        let object = value.as_object()?;
        match object.get(name) {
            Some(Value::String(text)) => Some(text.chars().flat_map(char::escape_debug).collect()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ if levels == 0 => None,
            _ => object.values().find_map(|below| within(below, name, levels - 1)),
        }
    }
    within(record, name, 2)
}
