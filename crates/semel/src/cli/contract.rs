//! `semel contract`: keep the volume contract on a disk that you manage yourself.

use super::answer::{Answer, err};
use super::{Context, Progress};
use crate::config;
use crate::engine::command;
use crate::engine::contract::{self, Adopt, Guard, Identity};
use clap::{Args as ClapArgs, Subcommand};
use semel_core::attempt::{self, Passed, Strictness};
use semel_core::{Code, Refusal, RelPath};
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Keep the volume contract on a disk that you manage yourself.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Say whether this attempt may trust the disk: exit 0, or 2 identity, 3 dirty, 4 no lockfile, 5 reused, 6 drift,
    /// 7 unknown
    Check(Check),
    /// Check, mark the disk dirty, run a command, and unmark only if it exits 0
    Run(Run),
    /// Mark the disk dirty
    Dirty(Dirty),
    /// Remove everything from the disk, for a new generation
    Wipe(Wipe),
}

#[derive(ClapArgs, Debug)]
struct Who {
    /// The disk [env: WORKSPACE] [default: .]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// The generation of the disk [env: VOLUME_GENERATION]
    #[arg(long, value_name = "ID")]
    generation: Option<String>,
    /// The attempt of the job [env: JOB_ATTEMPT]
    #[arg(long, value_name = "ID")]
    attempt: Option<String>,
}

#[derive(ClapArgs, Debug)]
struct Check {
    #[command(flatten)]
    who: Who,
    /// A further lockfile, relative to the workspace; may be given again
    #[arg(long, value_name = "PATH")]
    lock: Vec<OsString>,
    /// Refuse the state of an older generation (5), and a leftover environment (21)
    #[arg(long)]
    strict: bool,
}

#[derive(ClapArgs, Debug)]
struct Run {
    #[command(flatten)]
    check: Check,
    /// The command and its arguments; it is started in the workspace
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(ClapArgs, Debug)]
struct Dirty {
    /// The disk [env: WORKSPACE] [default: .]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
}

#[derive(ClapArgs, Debug)]
struct Wipe {
    /// The disk, absolute and of 8 characters or more [env: WORKSPACE]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// The generation that the disk is wiped for [env: VOLUME_GENERATION]
    #[arg(long, value_name = "ID")]
    generation: Option<String>,
    /// Also wipe a disk that carries no generation and no contract state
    #[arg(long)]
    adopt: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    match args.command {
        Command::Check(check) => {
            let passed = checked(&check, context)?;
            Ok(Answer::new(clean_line(&passed).to_string(), clean_line(&passed)))
        }
        Command::Run(run) => guarded(&run, context),
        Command::Dirty(dirty) => {
            let workspace = workspace(dirty.workspace.as_deref());
            contract::dirty(&workspace, "marked by semel contract dirty")?;
            Ok(Answer::new(
                "",
                json!({"schema": "semel.contract/v1", "status": "dirty"}),
            ))
        }
        Command::Wipe(wipe) => wiped(&wipe, context),
    }
}

/// Takes a variable of the contract; an empty one is none.
fn variable(name: &'static str) -> Option<OsString> {
    config::contract(name).filter(|value| !value.is_empty())
}

pub(super) fn workspace(given: Option<&Path>) -> PathBuf {
    given
        .map(Path::to_owned)
        .or_else(|| variable("WORKSPACE").map(PathBuf::from))
        .unwrap_or_else(|| ".".into())
}

/// Takes an identity: opaque, but text, since two others must never look the same in the state.
pub(super) fn text(given: Option<&String>, name: &'static str) -> Result<Option<String>, Refusal> {
    match (given, variable(name)) {
        (Some(text), _) => Ok(Some(text.clone())),
        (None, None) => Ok(None),
        (None, Some(value)) => value.into_string().map(Some).map_err(|_| {
            Refusal::new(
                Code::MissingIdentity,
                "an identity that is not UTF-8 counts as none",
            )
            .name(name)
        }),
    }
}

/// Takes paths that are relative to the workspace.
pub(super) fn paths(given: &[OsString]) -> Result<Vec<RelPath>, Refusal> {
    use std::os::unix::ffi::OsStrExt;
    given.iter().map(|path| RelPath::parse(path.as_bytes())).collect()
}

fn identity(who: &Who) -> Result<Identity, Refusal> {
    Ok(Identity {
        generation: text(who.generation.as_ref(), "VOLUME_GENERATION")?,
        attempt: text(who.attempt.as_ref(), "JOB_ATTEMPT")?,
    })
}

fn strictness(check: &Check) -> Strictness {
    if check.strict {
        Strictness::Strict
    } else {
        Strictness::Lenient
    }
}

fn checked(check: &Check, context: &Context) -> Result<Passed, Refusal> {
    let place = workspace(check.who.workspace.as_deref());
    let passed = contract::check(
        &place,
        identity(&check.who)?,
        &paths(&check.lock)?,
        strictness(check),
    )?;
    warn(&passed.warnings, context);
    Ok(passed)
}

pub(super) fn warn(warnings: &[String], context: &Context) {
    if context.progress == Progress::Lines {
        for warning in warnings {
            err(&format!("warning: {warning}"));
        }
    }
}

fn clean_line(passed: &Passed) -> serde_json::Value {
    json!({
        "status": "clean",
        "generation": passed.state.generation,
        "attempt": passed.state.attempt,
        "locks": passed.state.locks.iter().map(|(path, digest)| (path.to_wire(), digest.to_string()))
            .collect::<std::collections::BTreeMap<_, _>>(),
        "warnings": passed.warnings,
    })
}

/// Runs a command on a disk that is dirty for as long as it runs.
fn guarded(run: &Run, context: &Context) -> Result<Answer, Refusal> {
    let check = &run.check;
    let place = workspace(check.who.workspace.as_deref());
    let findable = || command::findable(&run.command, &place);
    let working = contract::begin(
        &place,
        identity(&check.who)?,
        &paths(&check.lock)?,
        strictness(check),
        &findable,
    )?;
    warn(&working.passed.warnings, context);
    let ran = command::passthrough(&run.command, &place);
    // Whatever came of the command: what it left of the contract counts first.
    if let Some(why) = working.end(ran.as_ref().ok().copied())? {
        warn(&[why.to_owned()], context);
    }
    let ended = ran?;
    let status = ended.status();
    let state = &working.passed.state;
    let verdict = if status == 0 { "clean" } else { "dirty" };
    let json = json!({
        "schema": "semel.contract/v1", "status": verdict, "child_exit": status,
        "generation": state.generation, "attempt": state.attempt,
    });
    Ok(Answer {
        exit: status,
        ..Answer::new("", json)
    })
}

fn wiped(wipe: &Wipe, context: &Context) -> Result<Answer, Refusal> {
    let given = wipe
        .workspace
        .clone()
        .or_else(|| variable("WORKSPACE").map(PathBuf::from));
    let generation = text(wipe.generation.as_ref(), "VOLUME_GENERATION")?;
    attempt::identity("VOLUME_GENERATION", generation.as_deref())?;
    let config = context.config()?;
    let guard = Guard {
        homes: config.homes,
        state: Some(config.state),
    };
    let adopt = if wipe.adopt { Adopt::Yes } else { Adopt::No };
    let generation = contract::wipe(given.as_deref(), generation.as_deref(), &guard, adopt)?;
    let json = json!({"schema": "semel.contract/v1", "status": "wiped", "generation": generation});
    Ok(Answer::new(format!("wiped for generation {generation}"), json))
}
