//! `semel unseal`: unpack a proposal into a new directory.

use super::Context;
use super::answer::Answer;
use crate::engine::proposal;
use crate::wire;
use clap::Args as ClapArgs;
use semel_core::{Refusal, Sha256};
use serde_json::json;
use std::path::PathBuf;

/// Unpack a proposal into a new directory.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The proposal, by its SHA-256
    #[arg(value_name = "SHA256")]
    proposal: Sha256,
    /// The new directory
    #[arg(value_name = "DIR")]
    into: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let engine = wire::command(context.config()?)?;
    let manifest = proposal::unseal(&engine, &args.proposal, &args.into)?;
    let json = json!({
        "schema": "semel.unseal/v1",
        "proposal": args.proposal,
        "entries": manifest.entries.len(),
        "size_bytes": manifest.archive_size,
        "directory": args.into,
    });
    Ok(Answer::new(
        format!("{} entries in {}", manifest.entries.len(), args.into.display()),
        json,
    ))
}
