//! `semel log`: read, follow and verify the journal's log; sign checkpoints of it.

use super::Context;
use super::answer::{Answer, Format, Reader, line};
use crate::engine::audit::{self, Ask, Audited};
use crate::engine::line::{Line, Story};
use crate::engine::look::{self, Follower, LogFilter, LogLine, OnlyConflicts, View, Waited};
use crate::engine::{checkpoint, look::Depth};
use crate::wire;
use clap::{Args as ClapArgs, Subcommand};
use semel_core::checkpoint::LogKey;
use semel_core::ids::{ExecutionId, IdempotencyKey, JobId};
use semel_core::{Code, Refusal};
use serde_json::json;
use std::path::PathBuf;

/// Read, follow and verify the log, and sign checkpoints of it
#[derive(ClapArgs, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Each call is one line, with what came of it. With --json, one JSON object a line."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Only entries of this job
    #[arg(long)]
    job: Option<JobId>,
    /// Only this execution, then its replays and conflicts, and how many parents asked for it
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
    /// The newest so many [default: 200; all of an execution]
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Go on with what comes, until interrupted or nobody reads
    #[arg(long)]
    follow: bool,
    /// Print the entries as they are kept, intents and receipts apart, with their digests; always JSON
    #[arg(long)]
    raw: bool,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Find any edit or gap, two effects of one key, and what a held checkpoint contradicts
    Verify(Box<Verify>),
    /// Sign a checkpoint of the log as it is, keep it, and print it
    Checkpoint,
    /// Print the key that checkpoints are verified with
    Key,
}

#[derive(ClapArgs, Debug)]
struct Verify {
    /// A checkpoint that you hold: the log must still be what it says; may be given again
    #[arg(long, value_name = "FILE")]
    since: Vec<PathBuf>,
    /// The public key of the log, as semel log key prints it [default: the key of this state root]
    #[arg(long)]
    key: Option<LogKey>,
    /// Verify this copy of a journal, such as a backup, instead: no daemon, no state root
    #[arg(long, value_name = "FILE")]
    offline: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    match args.command {
        Some(Command::Verify(verify)) => {
            let ask = Ask {
                since: verify.since,
                key: verify.key,
            };
            let audited = match verify.offline {
                Some(file) => audit::copy(&file, &ask)?,
                None => audit::journal(context.config()?, Depth::Chain, &ask)?,
            };
            Ok(report(&audited))
        }
        Some(Command::Checkpoint) => sign(context),
        Some(Command::Key) => key(context),
        None => read(args, context),
    }
}

/// How many lines are shown where nothing else is asked for.
const NEWEST: u32 = 200;

fn read(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let shape = match (args.raw, context.format) {
        (true, _) => Shape::Raw,
        (false, Format::Json) => Shape::Json,
        (false, Format::Human) => Shape::Text,
    };
    let filter = LogFilter {
        after_seq: args.after,
        job: args.job,
        execution: args.execution.clone(),
        key: args.key,
        conflicts: args.conflicts.then_some(OnlyConflicts::Only),
        view: (!args.raw).then_some(View::Calls),
        ..LogFilter::default()
    };
    let newest = args.limit.or(args.execution.is_none().then_some(NEWEST));
    if args.follow {
        return follow(&mut Follower::new(context.config()?, filter)?, newest, shape);
    }
    let filter = LogFilter {
        limit: newest,
        ..filter
    };
    let lines = look::log(context.config()?, filter)?;
    match (&args.execution, shape) {
        (Some(execution), Shape::Text | Shape::Json) => story(execution, &lines, shape)?,
        (None, _) | (Some(_), Shape::Raw) => {
            print(&lines, shape)?;
        }
    }
    Ok(Answer::printed())
}

/// Says how lines are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Text,
    Json,
    Raw,
}

fn print(lines: &[LogLine], shape: Shape) -> Result<Reader, Refusal> {
    for one in lines {
        let text = match shape {
            Shape::Text => Line::of(one).text(),
            Shape::Json => json!(Line::of(one)).to_string(),
            Shape::Raw => json!(one.entry).to_string(),
        };
        if line(&text)? == Reader::Gone {
            return Ok(Reader::Gone);
        }
    }
    Ok(Reader::Reads)
}

fn story(execution: &ExecutionId, lines: &[LogLine], shape: Shape) -> Result<(), Refusal> {
    let mut lines: Vec<Line> = lines.iter().map(Line::of).collect();
    let story = Story::of(execution, &mut lines);
    let mut texts: Vec<String> = match shape {
        Shape::Text => lines.iter().map(Line::text).collect(),
        Shape::Json | Shape::Raw => lines.iter().map(|line| json!(line).to_string()).collect(),
    };
    texts.push(match shape {
        Shape::Text => story.text(),
        Shape::Json | Shape::Raw => json!(story).to_string(),
    });
    line(&texts.join("\n")).map(drop)
}

/// Prints what comes, until somebody interrupts or nobody reads: both are a good end.
fn follow(follower: &mut Follower, limit: Option<u32>, shape: Shape) -> Result<Answer, Refusal> {
    let mut lines = follower.before(limit)?;
    loop {
        if print(&lines, shape)? == Reader::Gone {
            return Ok(Answer::printed());
        }
        let caught_up = lines.is_empty();
        if caught_up {
            match follower.wait()? {
                Waited::Over => {}
                Waited::Interrupted | Waited::Closed => return Ok(Answer::printed()),
            }
        }
        lines = follower.more()?;
    }
}

/// Gives the answer of a verification.
pub(super) fn report(audited: &Audited) -> Answer {
    let Audited { report, held } = audited;
    let checkpoints: Vec<_> = held
        .iter()
        .map(|(file, size)| json!({"file": file, "size": size}))
        .collect();
    let json = json!({"schema": "semel.log.verify/v1", "report": report, "checkpoints": checkpoints});
    let by = match held.iter().map(|(_, size)| size).max() {
        None => "by no checkpoint".to_owned(),
        Some(newest) => format!("by {} checkpoints, the newest of {newest} entries", held.len()),
    };
    match audited.refusal() {
        None => Answer::new(
            format!("{} entries, no fault; head {}; {by}", report.entries, report.head),
            json,
        ),
        Some(refusal) => {
            let mut lines: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
            if report.more > 0 {
                lines.push(format!("and {} more", report.more));
            }
            Answer::new(lines.join("\n"), json).refused(refusal)
        }
    }
}

fn sign(context: &Context) -> Result<Answer, Refusal> {
    let engine = wire::command(context.config()?)?;
    let made = checkpoint::make(engine.journal.as_ref(), &engine.config)?;
    Ok(Answer::new(
        made.note.trim_end(),
        json!({
            "schema": "semel.log.checkpoint/v1",
            "origin": made.checkpoint.origin(),
            "size": made.checkpoint.size,
            "head": made.checkpoint.head,
            "note": made.note,
            "key": made.verifier_key,
        }),
    ))
}

fn key(context: &Context) -> Result<Answer, Refusal> {
    let key = audit::public(context.config()?)?
        .ok_or_else(|| Refusal::new(Code::NotFound, "the log has no key yet; semel serve makes it"))?;
    Ok(Answer::new(
        key.clone(),
        json!({"schema": "semel.log.key/v1", "key": key}),
    ))
}
