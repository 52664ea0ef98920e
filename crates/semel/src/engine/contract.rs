//! `semel contract`: the volume contract on a disk that somebody else manages. It touches no store.

use super::command::Passthrough;
use semel_core::attempt::{self, Passed, Strictness};
use semel_core::lockset::Format;
use semel_core::{Code, Refusal, RelPath};
pub(crate) use semel_host::contract::Guard;
use semel_host::contract::{Begun, Disk, Ended, Lasting, Left, Ours, open_for_wipe};
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
    begun: Begun,
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
    let mut passed = decide(&disk, identity, named, strictness)?;
    ready()?;
    let why = format!("attempt {} did not end cleanly", passed.state.attempt);
    let begun = held.begin(&passed.state, &why).map_err(refusal)?;
    if begun.lasting == Lasting::No {
        let why = "this filesystem keeps no attributes: keep .volume_dirty and .workspace_contract.json from being removed";
        passed.warnings.push(why.to_owned());
    }
    drop(held);
    Ok(Working { disk, begun, passed })
}

impl Working {
    /// Looks at what a command left of the contract, before its exit status counts, and lifts the marks after a clean end.
    /// Gives what a person should know, in words.
    ///
    /// # Errors
    /// `unknown_state`, reason `state_removed`, where the state or the workspace is gone or another, whatever the exit;
    /// `dirty_volume` after a clean end: reason `mark_removed` where the mark is gone or another, `marked_meanwhile` where
    /// somebody else marked the disk, too; `io_failed`. The disk then stays dirty, or is made so again.
    pub(crate) fn end(&self, command: Option<Passthrough>) -> Result<Option<&'static str>, Refusal> {
        let ended = match command {
            Some(Passthrough::Clean) => Ended::Clean,
            Some(Passthrough::Dirty(_)) | None => Ended::Dirty,
        };
        let left = self.disk.end(&self.begun, ended).map_err(refusal)?;
        let status = command.map_or_else(
            || "did not run to its end".to_owned(),
            |command| format!("ended with {}", command.status()),
        );
        let unknown = |what: &str, name: &str| {
            let why = format!("{what} while the command ran, which {status}");
            Err(Refusal::new(Code::UnknownState, why)
                .reason("state_removed")
                .name(name))
        };
        let dirty = |reason: &str, why: &str| {
            let refusal = Refusal::new(Code::DirtyVolume, why);
            Err(refusal.reason(reason).name(attempt::DIRTY_MARK))
        };
        match (left, ended) {
            (Left::Whole, _) | (Left::Marked, Ended::Dirty) => Ok(None),
            (Left::Workspace, _) => unknown("the workspace was removed or replaced", "WORKSPACE"),
            (Left::State, _) => unknown(
                "the contract's state was removed or replaced",
                attempt::STATE_FILE,
            ),
            (Left::Mark, Ended::Dirty) => Ok(Some(
                "the dirty mark was removed or replaced while the command ran; the disk is dirty all the same",
            )),
            (Left::Mark, Ended::Clean) => dirty(
                "mark_removed",
                "the dirty mark was removed or replaced while the command ran, so another attempt may have begun; \
                 the disk is marked dirty",
            ),
            (Left::Marked, Ended::Clean) => dirty(
                "marked_meanwhile",
                "somebody else marked the disk dirty meanwhile",
            ),
        }
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
/// `not_ours`, for a disk that carries neither a generation nor a state nor the mark of a run; `precondition_failed`, reason `mount`, where
/// something is mounted in it; `io_failed` for what cannot be removed.
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
