//! `semel status`: what is stuck, what runs, what is open.

use super::Context;
use super::answer::{Answer, count};
use crate::engine::daemon::approvals::approval_json;
use crate::engine::doctor::in_words;
use crate::engine::look::{self, Seen};
use semel_core::Refusal;
use semel_core::bounds::Bounds;
use semel_core::call::Intent;
use semel_core::confinement::User;
use semel_core::ids::UnixMs;
use serde_json::{Value, json};

/// Show what is stuck, what runs, and what is open.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, context: &Context) -> Result<Answer, Refusal> {
    let seen = look::status(context.config()?)?;
    let json = json!({
        "schema": "semel.status/v1",
        "daemon": seen.daemon,
        "journal": seen.journal,
        "unknown": seen.unknown.iter().map(|(intent, why)| {
            let mut one = call(intent, seen.now);
            one["why"] = json!(why);
            one
        }).collect::<Vec<_>>(),
        "running": seen.running.iter().map(|intent| call(intent, seen.now)).collect::<Vec<_>>(),
        "approvals": seen.approvals.iter().map(|one| approval_json(one, UnixMs(seen.now))).collect::<Vec<_>>(),
        "open": seen.open,
        "quarantined": seen.quarantined,
        "limits": seen.limits,
        "user": seen.user,
    });
    Ok(Answer::new(text(&seen), json))
}

fn call(intent: &Intent, now: u64) -> Value {
    json!({
        "execution_id": intent.execution_id,
        "idempotency_key": intent.key,
        "tool": intent.tool,
        "path": intent.path,
        "job": intent.scope.job,
        "generation": intent.generation,
        "age_ms": now.saturating_sub(intent.at.0),
    })
}

pub(super) fn age(since: UnixMs, now: u64) -> String {
    let seconds = now.saturating_sub(since.0) / 1000;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn text(seen: &Seen) -> String {
    let mut lines = Vec::new();
    for (intent, why) in &seen.unknown {
        lines.push(format!(
            "UNKNOWN  {} {} {} for {}: {why}",
            intent.execution_id,
            intent.tool,
            intent.path,
            age(intent.at, seen.now)
        ));
    }
    for intent in &seen.running {
        lines.push(format!(
            "running  {} {} {} for {}",
            intent.execution_id,
            intent.tool,
            intent.path,
            age(intent.at, seen.now)
        ));
    }
    for approval in &seen.approvals {
        let question = &approval.question;
        lines.push(format!(
            "waits    {} {} {} for a person for {} (semel approve)",
            question.approval_id,
            question.tool,
            question.path,
            age(question.at, seen.now)
        ));
    }
    for volume in &seen.open {
        lines.push(format!(
            "open     {} {} attempt {} on {} for {}",
            volume.generation,
            volume.job,
            volume.attempt,
            volume.backend.unwrap_or(semel_core::backend::Backend::Dir),
            age(volume.opened_at, seen.now)
        ));
    }
    if !seen.quarantined.is_empty() {
        lines.push(format!(
            "{} quarantined (semel volume list)",
            count(seen.quarantined.len(), "volume")
        ));
    }
    let waits = seen
        .daemon
        .as_ref()
        .and_then(|status| status["lock_waits"].as_array());
    lines.extend(waits.into_iter().flatten().map(lock_wait));
    let aside = seen.daemon.as_ref().and_then(|status| status["aside"].as_array());
    lines.extend(aside.into_iter().flatten().map(kept));
    lines.push(daemon(seen.daemon.as_ref()));
    match &seen.journal {
        Some(journal) => lines.push(format!(
            "journal  {} entries, {} running, {} unknown",
            journal.entries,
            count(journal.running, "call"),
            journal.unknown
        )),
        None => lines.push("journal  none yet".to_owned()),
    }
    lines.extend(limits(seen));
    lines.join("\n")
}

/// Says what bounds each process tree, and as whom programs of jobs run; what the daemon has otherwise is told by itself.
fn limits(seen: &Seen) -> Vec<String> {
    let user = match seen.user {
        Some(User::Own) => "programs run as a user of their own",
        Some(User::Caller) => "programs run as you",
        Some(User::Root) => "programs run as root, without any capability",
        None => "nothing runs in a sandbox here (semel doctor)",
    };
    let ours = format!("limits   {}; {user}", in_words(seen.limits));
    let theirs =
        daemons(seen).map(|limits| format!("limits   {}; of the daemon, for run_command", in_words(limits)));
    std::iter::once(ours).chain(theirs).collect()
}

/// Gives the limits of the daemon, where it was started with others than ours.
fn daemons(seen: &Seen) -> Option<Bounds> {
    let said = seen.daemon.as_ref()?.get("limits")?.clone();
    let limits: Bounds = serde_json::from_value(said).ok()?;
    (limits != seen.limits).then_some(limits)
}

fn kept(one: &Value) -> String {
    let names = one["kept"].as_array().into_iter().flatten();
    let names: Vec<&str> = names.filter_map(Value::as_str).take(3).collect();
    format!(
        "KEPT     {} cannot be freed: {}",
        one["generation"].as_str().unwrap_or_default(),
        names.join(", ")
    )
}

fn lock_wait(wait: &Value) -> String {
    let seconds = |name: &str| wait[name].as_u64().unwrap_or_default() / 1000;
    format!(
        "waits    process {} for index.lock of {} for {} of {} s; held by {}, changed {} s ago",
        wait["pid"],
        wait["worktree"].as_str().unwrap_or_default(),
        seconds("waited_ms"),
        seconds("bound_ms"),
        wait["owner"].as_str().unwrap_or("nobody that can be seen"),
        seconds("age_ms"),
    )
}

fn daemon(status: Option<&Value>) -> String {
    let Some(status) = status else {
        return "daemon   not running".to_owned();
    };
    let word = |pointer: &str| {
        status
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let places = [word("/daemon/socket"), word("/daemon/url")];
    format!(
        "daemon   {} at {}, probe at {}",
        word("/phase"),
        places.map(|place| place.trim().to_owned()).join(" ").trim(),
        word("/daemon/probe_url")
    )
}
