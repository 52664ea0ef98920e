//! `semel seal`: seal a draft volume that ended clean into a proposal.

use super::Context;
use super::answer::Answer;
use crate::engine::job::interrupt;
use crate::engine::proposal;
use crate::wire;
use clap::Args as ClapArgs;
use semel_core::Refusal;
use semel_core::ids::Generation;
use serde_json::json;

/// Seal a draft volume that ended clean into a proposal.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    /// The draft
    #[arg(value_name = "GENERATION")]
    generation: Generation,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let interrupt = interrupt::watch()?;
    let engine = wire::command(context.config()?)?;
    let sealed = proposal::seal(&engine, &args.generation, interrupt.cancel())?;
    let manifest = &sealed.manifest;
    let json = json!({
        "schema": "semel.seal/v1",
        "generation": args.generation,
        "proposal": sealed.digest(),
        "tree": sealed.tree,
        "entries": manifest.entries.len(),
        "size_bytes": manifest.archive_size,
        "left_out": manifest.left_out,
        "archive": sealed.archive,
    });
    let mut text = format!(
        "proposal  {}\ntree      {}\nentries   {}, {} bytes\narchive   {}",
        sealed.digest(),
        sealed.tree,
        manifest.entries.len(),
        manifest.archive_size,
        sealed.archive.display()
    );
    for left in &manifest.left_out {
        text.push_str(&format!(
            "\nleft out  {} ({})",
            left.path,
            serde_json::to_value(left.why).map_or_else(
                |_| String::new(),
                |why| why.as_str().unwrap_or_default().replace('_', " "),
            )
        ));
    }
    Ok(Answer::new(text, json))
}
