//! `semel gc`: free what is past retention.

use super::Context;
use super::answer::Answer;
use crate::engine::gc::{self, Act};
use crate::{limits, wire};
use clap::Args as ClapArgs;
use semel_core::Refusal;
use serde_json::json;
use std::time::Duration;

/// Free what is past retention.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// Only name what would be freed
    #[arg(long)]
    dry_run: bool,
    /// Free what ended longer ago than this many hours [default: 336, 14 days]
    #[arg(long, value_name = "HOURS")]
    older_than_hours: Option<u32>,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let engine = wire::command(context.config()?)?;
    let older = args.older_than_hours.map_or(limits::QUARANTINE_AGE, |hours| {
        Duration::from_secs(u64::from(hours) * 3600)
    });
    let act = if args.dry_run { Act::DryRun } else { Act::Free };
    let freed = gc::gc(&engine, older, act)?;
    let verb = if args.dry_run { "would free" } else { "freed" };
    let mut text = format!(
        "{verb} {} volumes and {} proposals",
        freed.volumes.len(),
        freed.proposals.len()
    );
    for kept in &freed.kept {
        text.push_str(&format!("\ncannot remove {kept}"));
    }
    let json = json!({
        "schema": "semel.gc/v1",
        "dry_run": args.dry_run,
        "volumes": freed.volumes,
        "proposals": freed.proposals,
        "kept": freed.kept,
    });
    Ok(Answer::new(text, json))
}
