//! `semel approvals`: what waits for a person.

use super::Context;
use super::answer::Answer;
use super::status::age;
use crate::engine::daemon::approvals::approvals_json;
use crate::engine::look;
use semel_core::approval::Approval;
use semel_core::effect::{Action, Changed};
use semel_core::ids::UnixMs;
use semel_core::path::shown;
use semel_core::{Refusal, Sha256};

/// List the calls that wait for a person: what each would do, by digests and sizes, never contents.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, context: &Context) -> Result<Answer, Refusal> {
    let (waiting, now) = look::approvals(context.config()?)?;
    let text: Vec<String> = waiting.iter().map(|one| lines(one, now)).collect();
    let text = if text.is_empty() {
        "nothing waits for a person".to_owned()
    } else {
        text.join("\n")
    };
    Ok(Answer::new(text, approvals_json(&waiting, now)))
}

fn lines(approval: &Approval, now: UnixMs) -> String {
    let question = &approval.question;
    let mut text = format!(
        "{}\n  {} of job {} attempt {} ({}), asked {} ago, until {}",
        question.approval_id,
        question.tool,
        question.scope.job,
        question.attempt,
        question.generation,
        age(question.at, now.0),
        approval.ends_at(),
    );
    let reason = question.reason.as_deref().unwrap_or("no reason given");
    text.push_str(&format!(
        "\n  rule {}: {}",
        question.rule,
        shown(reason.as_bytes())
    ));
    if let Some(command) = &question.plan.command {
        text.push_str(&format!("\n  would run {}", shown(command.says.as_bytes())));
        if Sha256::of(command.says.as_bytes()) != command.sha256 {
            text.push_str(&format!(
                "\n      and more; SHA-256 of all of it {}",
                command.sha256
            ));
        }
        if !command.env.is_empty() {
            let names: Vec<String> = command.env.iter().map(|name| shown(name.as_bytes())).collect();
            text.push_str(&format!("\n      with the variables {}", names.join(", ")));
        }
    }
    for path in &question.plan.reads {
        text.push_str(&format!("\n  would read {path}"));
    }
    // What would be refused changes nothing; the path is what the rule is about.
    if question.plan.refused.is_some() && !question.path.is_root() {
        text.push_str(&format!("\n  on {}", question.path));
    }
    for changed in &question.plan.changed {
        match changed.action {
            Action::Ran if changed.path.is_root() => {}
            // The call itself is shown above.
            Action::Forwarded => {}
            Action::Ran => text.push_str(&format!("\n      in {}", changed.path)),
            _ => text.push_str(&format!("\n  would {}", would(changed))),
        }
    }
    if let Some(code) = question.plan.refused {
        text.push_str(&format!("\n  would be refused as things stand: {code}"));
    }
    for tree in &question.plan.trees {
        let holds = tree.holds.as_ref().map_or_else(
            || "more than could be looked through".to_owned(),
            |holds| format!("{} entries", holds.entries),
        );
        text.push_str(&format!("\n  with all in {}: {holds}", tree.path));
    }
    text
}

fn would(changed: &Changed) -> String {
    let verb = match changed.action {
        Action::Created => "create",
        Action::Replaced => "replace",
        Action::Removed => "remove",
        Action::Moved => "move",
        Action::Restored => "put back",
        Action::ModeSet => "set the permissions of",
        Action::Ran => "run a command in",
        Action::Forwarded => "ask another server",
    };
    let mut text = format!("{verb} {}", changed.path);
    if let Some(to) = &changed.destination {
        text.push_str(&format!(" to {to}"));
    }
    if let Some(mode) = &changed.mode {
        text.push_str(&format!(", {:04o} to {:04o}", mode.before, mode.after));
    }
    if let Some(before) = &changed.sha256_before {
        text.push_str(&format!("\n        before {before}"));
    }
    if let Some(after) = changed.sha256_after.filter(|_| changed.destination.is_none()) {
        let size = changed
            .size_bytes
            .map(|size| format!(", {size} bytes"))
            .unwrap_or_default();
        text.push_str(&format!("\n        after  {after}{size}"));
    }
    text
}
