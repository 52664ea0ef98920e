//! `semel gc`: free what is past retention.

use super::Context;
use super::answer::{Answer, count};
use crate::engine::gc::{self, Act, Ages};
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
    /// Free volumes and proposals that ended, and what calls of open volumes keep to be undone, longer ago than this
    /// many hours [default: 336, 14 days]
    #[arg(long, value_name = "HOURS")]
    older_than_hours: Option<u32>,
    /// Let receipts of freed volumes expire that ended longer ago than this many hours [default: 2160, 90 days]
    #[arg(long, value_name = "HOURS")]
    receipts_older_than_hours: Option<u32>,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let engine = wire::command(context.config()?)?;
    let hours = |hours: u32| Duration::from_secs(u64::from(hours) * 3600);
    let ages = Ages {
        files: args.older_than_hours.map_or(limits::QUARANTINE_AGE, hours),
        receipts: args.receipts_older_than_hours.map_or(limits::RECEIPTS_AGE, hours),
    };
    let act = if args.dry_run { Act::DryRun } else { Act::Free };
    let freed = gc::gc(&engine, ages, act)?;
    let verb = if args.dry_run { "would free" } else { "freed" };
    let mut text = format!(
        "{verb} {}, {}, what {} kept, and the receipts of {}",
        count(freed.volumes.len(), "volume"),
        count(freed.proposals.len(), "proposal"),
        count(freed.pre_images.len(), "call"),
        count(freed.receipts.len(), "generation"),
    );
    for kept in &freed.kept {
        text.push_str(&format!("\ncannot remove {kept}"));
    }
    let json = json!({
        "schema": "semel.gc/v1",
        "dry_run": args.dry_run,
        "volumes": freed.volumes,
        "proposals": freed.proposals,
        "pre_images": freed.pre_images,
        "receipts": freed.receipts,
        "sealed_trees": freed.lowers,
        "kept": freed.kept,
    });
    Ok(Answer::new(text, json))
}
