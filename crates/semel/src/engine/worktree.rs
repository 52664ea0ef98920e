//! `semel worktree`: git worktrees whose identity is taken once and kept in the state root.
//!
//! Pins lie beside the journal, not in it: a restoration needs them where no daemon runs, and no other record follows
//! from them.

use super::host;
use crate::config::Config;
use semel_core::Refusal;
use semel_core::pin::{Layout, Origin, Pin};
use semel_host::daemon::StateRoot;
use semel_host::git::{self, Begun, Git, KeptPin, PinState, Pins, Unfinished};
pub(crate) use semel_host::git::{Add, Discard, Locked, Nested, Remove, Removed, Repin};
use semel_host::process::Cancel;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Makes a linked worktree, and pins it.
///
/// # Errors
/// `bad_config` where the state root would lie in it; those of [`git::add`].
pub(crate) fn add(config: &Config, asked: &Add, cancel: &Cancel) -> Result<Pin, Refusal> {
    let (git, pins) = hands(config, &asked.worktree)?;
    git::add(&git, &pins, asked, &|_| {}, cancel).map_err(host)
}

/// Takes the identity of a worktree that is there.
///
/// # Errors
/// `bad_config` where the state root lies in it; those of [`Pins::pin`].
pub(crate) fn pin(
    config: &Config,
    worktree: &Path,
    repin: Repin,
    wait: Duration,
    cancel: &Cancel,
) -> Result<Pin, Refusal> {
    let (git, pins) = hands(config, worktree)?;
    pins.pin(&git, worktree, repin, wait, cancel).map_err(host)
}

/// Lists what is pinned, and what was begun with worktrees and is not ended.
///
/// # Errors
/// `unknown_state` where a pin or a record cannot be read; `io_failed`.
pub(crate) fn list(config: &Config) -> Result<(Vec<KeptPin>, Vec<Unfinished>), Refusal> {
    let pins = Pins::of(&config.state);
    Ok((pins.list().map_err(host)?, pins.unfinished().map_err(host)?))
}

/// Removes a worktree of ours, or forgets its pin.
///
/// # Errors
/// Those of [`git::remove`].
pub(crate) fn remove(config: &Config, asked: &Remove, cancel: &Cancel) -> Result<Removed, Refusal> {
    let git = Git::find(&config.path).map_err(host)?;
    git::remove(&git, &Pins::of(&config.state), asked, &|_| {}, cancel).map_err(host)
}

fn hands(config: &Config, worktree: &Path) -> Result<(Git, Pins), Refusal> {
    let pins = Pins::of(&config.state);
    pins.apart_from(worktree).map_err(host)?;
    StateRoot::make(&config.state).map_err(host)?;
    let git = Git::find(&config.path).map_err(host)?;
    Ok((git, pins))
}

/// Gives what a pin says, for machines.
pub(crate) fn facts(pin: &Pin) -> Value {
    let (origin, commit, tree) = match &pin.origin {
        Origin::Made { commit, tree } => ("made", Some(commit), Some(tree)),
        Origin::Found => ("found", None, None),
    };
    json!({
        "id": pin.id,
        "worktree": pin.worktree.path,
        "gitdir": pin.gitdir.path,
        "common": pin.common.path,
        "layout": match &pin.layout { Layout::Main => "main", Layout::Linked { .. } => "linked" },
        "format": pin.format,
        "origin": origin,
        "commit": commit,
        "tree": tree,
        "pinned_at": pin.at.to_string(),
    })
}

/// Gives what a pin says and what has become of its worktree, for machines.
pub(crate) fn kept_facts(kept: &KeptPin) -> Value {
    let mut facts = facts(&kept.pin);
    let (word, refusal) = state(kept);
    facts["state"] = word.into();
    facts["why"] = json!(refusal.map(|refusal| &refusal.why));
    facts
}

/// Names what has become of a pinned worktree.
pub(crate) fn state(kept: &KeptPin) -> (&'static str, Option<&Refusal>) {
    match &kept.state {
        PinState::Intact => ("intact", None),
        PinState::Gone => ("gone", None),
        PinState::Changed(refusal) => ("changed", Some(refusal)),
    }
}

/// Gives what was begun with a worktree and is not ended, for machines.
pub(crate) fn unfinished_facts(unfinished: &Unfinished) -> Value {
    json!({
        "id": unfinished.id,
        "begun": begun(unfinished),
        "worktree": unfinished.worktree,
        "rest": unfinished.rest,
    })
}

/// Names what was begun.
pub(crate) fn begun(unfinished: &Unfinished) -> &'static str {
    match unfinished.begun {
        Begun::Add => "add",
        Begun::Remove => "remove",
    }
}
