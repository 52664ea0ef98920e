//! `semel worktree`: make, pin, list and remove git worktrees.

use super::Context;
use super::answer::Answer;
use crate::engine::job::interrupt;
use crate::engine::worktree::{self, Add, Discard, Locked, Nested, Remove, Removed, Repin};
use crate::limits;
use clap::{Args as ClapArgs, Subcommand};
use semel_core::Refusal;
use semel_core::job::Span;
use serde_json::json;
use std::path::PathBuf;

/// Make, pin, list and remove git worktrees.
#[derive(ClapArgs, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make a linked worktree, HEAD detached at a commit, and pin it
    Add(Make),
    /// Take the identity of a worktree that is there, so that no restoration is led astray
    Pin(Take),
    /// List pinned worktrees, and what has become of each
    List,
    /// Remove a worktree that `semel worktree add` made, and its pin
    Remove(Free),
}

#[derive(ClapArgs, Debug)]
struct Make {
    /// Where it will be; nothing may be there
    #[arg(value_name = "DIR")]
    worktree: PathBuf,
    /// The repository
    #[arg(long, value_name = "DIR")]
    repository: PathBuf,
    /// The commit that HEAD is detached at, by its full object id
    #[arg(long, value_name = "ID")]
    commit: String,
    /// The tree that its files are, by its full object id; else the commit's own
    #[arg(long, value_name = "ID")]
    tree: Option<String>,
    #[command(flatten)]
    wait: Wait,
}

#[derive(ClapArgs, Debug)]
struct Take {
    /// The worktree, linked or main
    #[arg(value_name = "DIR")]
    worktree: PathBuf,
    /// Take the identity anew where an earlier pin does not hold any more
    #[arg(long)]
    anew: bool,
    #[command(flatten)]
    wait: Wait,
}

#[derive(ClapArgs, Debug)]
struct Free {
    /// The worktree
    #[arg(value_name = "DIR")]
    worktree: PathBuf,
    /// Remove it with work that is nowhere else
    #[arg(long)]
    discard: bool,
    /// Remove it though it is locked (git worktree lock)
    #[arg(long)]
    locked: bool,
    /// Remove repositories of others, too, that lie in it
    #[arg(long)]
    remove_nested: bool,
    /// Forget the pin alone; the worktree stays as it is
    #[arg(long, conflicts_with_all = ["discard", "locked", "remove_nested"])]
    pin_only: bool,
    #[command(flatten)]
    wait: Wait,
}

#[derive(ClapArgs, Debug)]
struct Wait {
    #[arg(
        long = "wait",
        value_name = "TIME",
        help = "How long another command on the repository is waited for [default: 60s]"
    )]
    span: Option<Span>,
}

impl Wait {
    fn get(self) -> std::time::Duration {
        self.span.map_or(limits::LOCK_WAIT, Span::get)
    }
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    match args.command {
        Command::Add(args) => make(args, context),
        Command::Pin(args) => take(args, context),
        Command::List => list(context),
        Command::Remove(args) => free(args, context),
    }
}

fn make(args: Make, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    let interrupt = interrupt::watch()?;
    let asked = Add {
        repository: args.repository,
        worktree: args.worktree,
        commit: args.commit,
        tree: args.tree,
        wait: args.wait.get(),
    };
    let pin = worktree::add(&config, &asked, interrupt.cancel())?;
    let text = format!("made and pinned {}, pin {}", pin.worktree.path, pin.id);
    Ok(Answer::new(
        text,
        json!({"schema": "semel.worktree/v1", "status": "added", "worktree": worktree::facts(&pin)}),
    ))
}

fn take(args: Take, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    let interrupt = interrupt::watch()?;
    let repin = if args.anew { Repin::Anew } else { Repin::Refuse };
    let pin = worktree::pin(
        &config,
        &args.worktree,
        repin,
        args.wait.get(),
        interrupt.cancel(),
    )?;
    let text = format!("pinned {}, pin {}", pin.worktree.path, pin.id);
    Ok(Answer::new(
        text,
        json!({"schema": "semel.worktree/v1", "status": "pinned", "worktree": worktree::facts(&pin)}),
    ))
}

fn list(context: &Context) -> Result<Answer, Refusal> {
    let (all, unfinished) = worktree::list(&context.config()?)?;
    let mut lines: Vec<String> = all
        .iter()
        .map(|kept| {
            let (word, refusal) = worktree::state(kept);
            let why = refusal
                .map(|refusal| format!(": {}", refusal.why))
                .unwrap_or_default();
            format!("{} {} {word}{why}", kept.pin.id, kept.pin.worktree.path)
        })
        .collect();
    lines.extend(unfinished.iter().map(|left| {
        let begun = worktree::begun(left);
        format!(
            "{} {} {begun} is not ended; the rest lies at {}",
            left.id, left.worktree, left.rest
        )
    }));
    let facts: Vec<_> = all.iter().map(worktree::kept_facts).collect();
    let unfinished: Vec<_> = unfinished.iter().map(worktree::unfinished_facts).collect();
    Ok(Answer::new(
        lines.join("\n"),
        json!({"schema": "semel.worktrees/v1", "worktrees": facts, "unfinished": unfinished}),
    ))
}

fn free(args: Free, context: &Context) -> Result<Answer, Refusal> {
    let config = context.config()?;
    let interrupt = interrupt::watch()?;
    let discard = match (args.discard, args.pin_only) {
        (true, _) => Discard::Work,
        (false, true) => Discard::PinOnly,
        (false, false) => Discard::Refuse,
    };
    let asked = Remove {
        worktree: args.worktree,
        discard,
        locked: if args.locked {
            Locked::Remove
        } else {
            Locked::Refuse
        },
        nested: if args.remove_nested {
            Nested::Removed
        } else {
            Nested::Refused
        },
        wait: args.wait.get(),
    };
    let (status, text, pin, ignored) = match worktree::remove(&config, &asked, interrupt.cancel())? {
        Removed::Worktree { pin, ignored } => {
            let with = match ignored {
                None | Some(0) => String::new(),
                Some(count) => format!(", and with it {count} that git ignores"),
            };
            (
                "removed",
                format!("removed {}{with}", pin.worktree.path),
                pin,
                ignored,
            )
        }
        Removed::Pin(pin) => {
            let text = format!("forgot the pin of {}", pin.worktree.path);
            ("unpinned", text, pin, None)
        }
    };
    let mut facts =
        json!({"schema": "semel.worktree/v1", "status": status, "worktree": worktree::facts(&pin)});
    if status == "removed" {
        facts["ignored"] = json!(ignored);
    }
    Ok(Answer::new(text, facts))
}
