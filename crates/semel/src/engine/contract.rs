//! `semel contract`: the volume contract on a disk that somebody else manages. It touches no store.

use semel_core::attempt::{self, Passed, Strictness};
use semel_core::lockset::Format;
use semel_core::{Code, Refusal, RelPath};
pub(crate) use semel_host::contract::Guard;
use semel_host::contract::{Disk, Mark, Ours, open_for_wipe};
use std::path::Path;

/// Is who asks, as they gave it.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// The generation.
    pub(crate) generation: Option<String>,
    /// The attempt.
    pub(crate) attempt: Option<String>,
}

pub(super) fn refusal(error: semel_host::Error) -> Refusal {
    error.into_refusal()
}

/// Checks the disk, and writes its state where the check passes.
///
/// # Errors
/// Those of [`attempt::check`]; a refusal leaves the state as it was.
pub(crate) fn check(
    workspace: &Path,
    identity: Identity,
    named: &[RelPath],
    strictness: Strictness,
) -> Result<Passed, Refusal> {
    let disk = open(workspace, &identity)?;
    let held = disk.hold().map_err(refusal)?;
    let passed = decide(&disk, identity, named, strictness)?;
    held.save(&passed.state).map_err(refusal)?;
    Ok(passed)
}

/// Is a disk that a command runs on; it is dirty.
#[derive(Debug)]
pub(crate) struct Working {
    disk: Disk,
    mark: Mark,
    /// What the check found.
    pub(crate) passed: Passed,
}

/// Checks the disk, and marks it dirty in the same breath: of two that begin at once, one is refused.
///
/// # Errors
/// As [`check`]; whatever `ready` refuses, with nothing marked.
pub(crate) fn begin(
    workspace: &Path,
    identity: Identity,
    named: &[RelPath],
    strictness: Strictness,
    ready: &dyn Fn() -> Result<(), Refusal>,
) -> Result<Working, Refusal> {
    let disk = open(workspace, &identity)?;
    let held = disk.hold().map_err(refusal)?;
    let passed = decide(&disk, identity, named, strictness)?;
    ready()?;
    held.save(&passed.state).map_err(refusal)?;
    let why = format!("attempt {} did not end cleanly", passed.state.attempt);
    let mark = disk.mark_dirty(&why).map_err(refusal)?;
    drop(held);
    Ok(Working { disk, mark, passed })
}

impl Working {
    /// Lifts the mark after a command that ended clean.
    ///
    /// # Errors
    /// `dirty_volume` where somebody else marked the disk meanwhile; `io_failed`. The disk then stays dirty.
    pub(crate) fn clean(&self) -> Result<(), Refusal> {
        self.disk.unmark_dirty(&self.mark).map_err(refusal)
    }
}

fn open(workspace: &Path, identity: &Identity) -> Result<Disk, Refusal> {
    // The identity comes first in the order of the contract: also where there is no workspace.
    attempt::identity("VOLUME_GENERATION", identity.generation.as_deref())?;
    attempt::identity("JOB_ATTEMPT", identity.attempt.as_deref())?;
    Disk::open(workspace).map_err(refusal)
}

fn decide(
    disk: &Disk,
    identity: Identity,
    named: &[RelPath],
    strictness: Strictness,
) -> Result<Passed, Refusal> {
    let recognised = |name: &[u8]| Format::recognise(name).is_some();
    let mut facts = disk
        .facts((identity.generation, identity.attempt), named, &recognised)
        .map_err(refusal)?;
    if strictness == Strictness::Strict {
        facts.leftover = disk.leftover().map_err(refusal)?;
    }
    attempt::check(&facts, strictness)
}

/// Marks the disk dirty.
///
/// # Errors
/// `bad_input` where there is no workspace; `io_failed`.
pub(crate) fn dirty(workspace: &Path, why: &str) -> Result<(), Refusal> {
    Disk::open(workspace)
        .and_then(|disk| disk.mark_dirty(why))
        .map(drop)
        .map_err(refusal)
}

/// Says what a wipe does with a disk that was never ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adopt {
    /// It takes it.
    Yes,
    /// It refuses.
    No,
}

/// Removes everything from the disk, and leaves the marks of its new generation.
///
/// A wipe that is cut short leaves the disk dirty.
///
/// # Errors
/// `missing_identity`, `path_escapes_root` and `bad_input` as in [`open_for_wipe`]; `path_escapes_root`, reason
/// `not_ours`, for a disk that carries neither a generation nor a state; `io_failed` for what cannot be removed.
pub(crate) fn wipe(
    workspace: Option<&Path>,
    generation: Option<&str>,
    guard: &Guard,
    adopt: Adopt,
) -> Result<String, Refusal> {
    let Some(workspace) = workspace else {
        let why = "a wipe needs WORKSPACE, absolute and of 8 characters or more";
        return Err(Refusal::new(Code::MissingIdentity, why)
            .reason("workspace")
            .name("WORKSPACE"));
    };
    let generation = attempt::identity("VOLUME_GENERATION", generation)?;
    let disk = open_for_wipe(workspace, guard).map_err(refusal)?;
    if adopt == Adopt::No && disk.is_ours().map_err(refusal)? == Ours::No {
        let why = "the disk carries neither a generation nor a contract state; --adopt takes it all the same";
        return Err(Refusal::new(Code::PathEscapesRoot, why)
            .reason("not_ours")
            .name(workspace.display().to_string()));
    }
    let held = disk.hold().map_err(refusal)?;
    disk.wipe(generation.trim()).map_err(refusal)?;
    drop(held);
    Ok(generation.trim().to_owned())
}
