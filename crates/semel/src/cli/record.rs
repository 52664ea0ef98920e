//! `semel record`: record what is installed on a disk that you manage yourself, and check it later.

use super::Context;
use super::answer::{Answer, count};
use super::contract::{paths, text, warn, workspace};
use crate::engine::record::{self, Stands};
use clap::{Args as ClapArgs, Subcommand};
use semel_core::Refusal;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// Record what is installed on a disk that you manage yourself, and check it later.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Record every installed byte, bound to the lockfiles and the generation, in .install_record.json
    Write(Write),
    /// Say whether everything is as recorded: exit 0, or 2 identity, 6 a lock moved, 7 unknown, 25 set or bytes moved,
    /// 27 another generation
    Check(Check),
}

#[derive(ClapArgs, Debug)]
struct Who {
    /// The disk [env: WORKSPACE] [default: .]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// The generation of the disk [env: VOLUME_GENERATION]
    #[arg(long, value_name = "ID")]
    generation: Option<String>,
    /// A further lockfile, relative to the workspace; may be given again
    #[arg(long, value_name = "PATH")]
    lock: Vec<OsString>,
}

#[derive(ClapArgs, Debug)]
struct Write {
    #[command(flatten)]
    who: Who,
    /// A further installed tree, relative to the workspace, such as a CARGO_HOME; may be given again
    #[arg(long, value_name = "PATH")]
    root: Vec<OsString>,
}

#[derive(ClapArgs, Debug)]
struct Check {
    #[command(flatten)]
    who: Who,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let (stands, status) = match &args.command {
        Command::Write(Write { who, root }) => {
            let generation = text(who.generation.as_ref(), "VOLUME_GENERATION")?;
            let place = workspace(who.workspace.as_deref());
            let locks = paths(&who.lock)?;
            let stands = record::write(&place, generation.as_deref(), &locks, &paths(root)?)?;
            (stands, "written")
        }
        Command::Check(Check { who }) => {
            let generation = text(who.generation.as_ref(), "VOLUME_GENERATION")?;
            let place = workspace(who.workspace.as_deref());
            let stands = record::check(&place, generation.as_deref(), &paths(&who.lock)?)?;
            (stands, "matches")
        }
    };
    warn(&stands.warnings, context);
    Ok(answer(&stands, status))
}

fn answer(stands: &Stands, status: &str) -> Answer {
    let record = &stands.record;
    let roots: Vec<String> = record.roots.keys().map(ToString::to_string).collect();
    let text = format!(
        "{status}: {}, {} entries in {}, generation {}",
        count(record.installed.len(), "package"),
        record.entries.len(),
        roots.join(", "),
        record.generation
    );
    let locks: BTreeMap<String, String> = record
        .lock
        .iter()
        .map(|(path, digest)| (path.to_wire(), digest.to_string()))
        .collect();
    let roots: BTreeMap<String, _> = record
        .roots
        .iter()
        .map(|(path, tree)| (path.to_wire(), tree))
        .collect();
    let json = json!({
        "schema": "semel.record/v1",
        "status": status,
        "generation": record.generation,
        "lock": locks,
        "installed": record.installed,
        "files": record.files,
        "roots": roots,
        "entries": record.entries.len(),
        "warnings": stands.warnings,
    });
    Answer::new(text, json)
}
