//! Checkpoints of the log: made of what is on the disk, signed, kept beside the journal.
//!
//! They are files of their own, one a checkpoint: a checkpoint in the journal would go back in time with it. That one
//! is missing is no fault; that one is wrong is. It does *not* decide when one is due; that is the daemon's.

use super::{host, signing, store};
use crate::config::Config;
use crate::limits;
use semel_core::checkpoint::{Checkpoint, LogKey, verifier_key};
use semel_core::{Code, Refusal, Sha256};
use semel_host::daemon::{Keep, StateRoot, read_small};
use semel_store::Journal;
use semel_store::journal::LogFilter;
use std::path::Path;

/// The directory of the kept ones, below the state root.
const DIRECTORY: &str = "checkpoints";
/// What the name of each ends with.
const ENDING: &str = ".note";
/// How long one may be.
const CAP: u64 = 64 << 10;

/// Is a checkpoint that was made.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    /// What it says.
    pub(crate) checkpoint: Checkpoint,
    /// The whole note.
    pub(crate) note: String,
    /// The key that verifies it, as verifiers of signed notes take it.
    pub(crate) verifier_key: String,
}

/// Is a kept checkpoint as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// The name of its file.
    pub(crate) name: String,
    /// What it says; or why it says nothing.
    pub(crate) opened: Result<Checkpoint, Refusal>,
}

/// Makes a checkpoint of the log as it is, and keeps it.
///
/// # Errors
/// `unknown_state`, reason `checkpoint_mismatch`, where the newest kept one does not hold: what was signed is never
/// contradicted; `store_unavailable`, `bad_config`, `io_failed`.
///
/// # Durability
/// When this returns, the entries and the checkpoint are on the disk, in this order. After a crash in between there is
/// no checkpoint, or a whole one.
pub(crate) fn make(journal: &dyn Journal, config: &Config) -> Result<Made, Refusal> {
    let key = signing::log_key_or_new(config)?;
    let checkpoint = journal.head().map_err(store)?;
    let opener = LogKey::of(checkpoint.origin(), key.public());
    let dir = directory(config)?;
    if let Some(newest) = names(&dir)?.last() {
        let kept = open(&dir, newest, &opener).map_err(mismatch)?;
        uncontradicted(journal, newest, &kept, &checkpoint)?;
    }
    let note = checkpoint.sign(&key);
    keep(&dir, &checkpoint, &note)?;
    Ok(Made {
        verifier_key: verifier_key(&checkpoint.origin(), &key.public()),
        checkpoint,
        note,
    })
}

/// Removes what a crash left half-written.
///
/// # Errors
/// `io_failed`, `bad_config`.
pub(crate) fn sweep(config: &Config) -> Result<(), Refusal> {
    let dir = directory(config)?;
    for name in dir.names().map_err(host)? {
        if name.ends_with(".tmp") {
            dir.remove(&name).map_err(host)?;
        }
    }
    Ok(())
}

/// Reads every kept checkpoint; starts and makes nothing.
///
/// # Errors
/// `io_failed`, `bad_config`.
pub(crate) fn kept(config: &Config, key: Option<&LogKey>) -> Result<Vec<Kept>, Refusal> {
    let dir = match StateRoot::open(&config.state.join(DIRECTORY)) {
        Ok(dir) => dir,
        Err(error) if error.code() == Code::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(host(error)),
    };
    let read = |name: String| Kept {
        opened: match key {
            Some(key) => open(&dir, &name, key),
            None => Err(Refusal::new(Code::BadConfig, "the log's key is gone").name(&name)),
        },
        name,
    };
    Ok(names(&dir)?.into_iter().map(read).collect())
}

/// Reads a checkpoint that a person holds.
///
/// # Errors
/// `not_found`, `io_failed`; those of [`Checkpoint::open`].
pub(crate) fn held(file: &Path, key: &LogKey) -> Result<Checkpoint, Refusal> {
    let bytes = read_small(file, CAP).map_err(host)?;
    Checkpoint::open(&bytes, key).map_err(|refusal| refusal.name(file.display().to_string()))
}

/// Gives the verifier key of the log; `None` where there is no key yet.
///
/// # Errors
/// `bad_config`, `store_unavailable`.
pub(crate) fn public(journal: &dyn Journal, config: &Config) -> Result<Option<String>, Refusal> {
    let Some(key) = signing::log_key(config)? else {
        return Ok(None);
    };
    let first =
        digest_at(journal, 1)?.ok_or_else(|| Refusal::new(Code::NotFound, "the log has no entry yet"))?;
    let origin = Checkpoint {
        first,
        size: 1,
        head: first,
    }
    .origin();
    Ok(Some(verifier_key(&origin, &key.public())))
}

/// Says how many entries the newest kept checkpoint covers; 0 where there is none that holds.
pub(crate) fn covered(config: &Config) -> u64 {
    let newest = || {
        let key = LogKey::any(signing::log_key(config).ok()??.public());
        let dir = StateRoot::open(&config.state.join(DIRECTORY)).ok()?;
        open(&dir, names(&dir).ok()?.last()?, &key).ok()
    };
    newest().map_or(0, |newest| newest.size)
}

/// Says that a kept checkpoint is wrong, whatever is wrong with it.
fn mismatch(refusal: Refusal) -> Refusal {
    Refusal::new(Code::UnknownState, refusal.why)
        .reason("checkpoint_mismatch")
        .names(refusal.names)
}

fn directory(config: &Config) -> Result<StateRoot, Refusal> {
    StateRoot::make(&config.state.join(DIRECTORY)).map_err(host)
}

/// Lists the names of the kept ones, the smallest log first; what a crash left half-written is none of them.
fn names(dir: &StateRoot) -> Result<Vec<String>, Refusal> {
    let mut names = dir.names().map_err(host)?;
    names.retain(|name| name.ends_with(ENDING));
    Ok(names)
}

fn open(dir: &StateRoot, name: &str, key: &LogKey) -> Result<Checkpoint, Refusal> {
    let bytes = dir.read(name, CAP).map_err(host)?.unwrap_or_default();
    let checkpoint = Checkpoint::open(&bytes, key).map_err(|refusal| refusal.name(name))?;
    if name_of(&checkpoint) == name {
        Ok(checkpoint)
    } else {
        let why = "the checkpoint lies under the name of another";
        Err(Refusal::new(Code::BadInput, why)
            .reason("checkpoint_malformed")
            .name(name))
    }
}

/// Names the file of a checkpoint. Two of the same size with another head have two names: neither takes the other's
/// place.
fn name_of(checkpoint: &Checkpoint) -> String {
    let head: String = checkpoint.head.to_string().chars().take(16).collect();
    format!("{:020}-{head}{ENDING}", checkpoint.size)
}

/// Holds the log that is to be signed against a checkpoint that was signed before.
fn uncontradicted(
    journal: &dyn Journal,
    name: &str,
    kept: &Checkpoint,
    now: &Checkpoint,
) -> Result<(), Refusal> {
    let at = if kept.size <= now.size {
        digest_at(journal, kept.size)?
    } else {
        None
    };
    match kept.against(Some(&now.first), at.as_ref(), now.size) {
        None => Ok(()),
        Some(fault) => Err(mismatch(
            Refusal::new(Code::UnknownState, fault.to_string()).name(name),
        )),
    }
}

fn digest_at(journal: &dyn Journal, seq: u64) -> Result<Option<Sha256>, Refusal> {
    let filter = LogFilter {
        after_seq: Some(seq - 1),
        up_to_seq: Some(seq),
        ..LogFilter::default()
    };
    let lines = journal.log(filter).map_err(store)?;
    Ok(lines.first().map(|line| line.entry.hash))
}

/// Keeps a checkpoint, and of all only the newest.
fn keep(dir: &StateRoot, checkpoint: &Checkpoint, note: &str) -> Result<(), Refusal> {
    dir.replace(&name_of(checkpoint), note.as_bytes(), Keep::Synced)
        .map_err(host)?;
    let names = names(dir)?;
    let surplus = names.len().saturating_sub(limits::CHECKPOINTS_KEPT);
    for old in names.iter().take(surplus) {
        dir.remove(old).map_err(host)?;
    }
    Ok(())
}
