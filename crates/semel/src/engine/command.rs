//! A person's own command, run as it is: its own input and output, its own environment, its own exit status.

use super::contract::refusal;
use crate::{config, limits};
use semel_core::{Code, Refusal};
use semel_host::process::{self, Cancel, Command, Confinement, End, Output, TreeEnded};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Says how a person's command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passthrough {
    /// With exit 0, and nothing of it lives on.
    Clean,
    /// In any other way; with this exit status.
    Dirty(u8),
}

impl Passthrough {
    /// Gives the exit status to pass through: the command's own, or 128 + n for a signal.
    pub(crate) const fn status(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Dirty(status) => status,
        }
    }
}

/// Says whether there is such a program, before anything is marked for it.
///
/// # Errors
/// `not_found`.
pub(crate) fn findable(command: &[OsString], cwd: &Path) -> Result<(), Refusal> {
    let (program, cwd) = (command.first(), absolute(cwd)?);
    let program = program.ok_or_else(|| Refusal::new(Code::Usage, "no command"))?;
    let found = resolve(program, &cwd)?;
    if found.exists() {
        return Ok(());
    }
    Err(Refusal::new(Code::NotFound, "there is no such program").name(found.display().to_string()))
}

fn absolute(cwd: &Path) -> Result<PathBuf, Refusal> {
    std::path::absolute(cwd)
        .map_err(|e| Refusal::new(Code::BadInput, e.to_string()).name(cwd.display().to_string()))
}

/// Makes a person's command: its own environment, its own input and output, and a supervisor that ends its whole tree.
///
/// # Errors
/// `usage` where there is none; `not_found` where there is no such program; `bad_input` where the directory is none.
pub(crate) fn own(command: &[OsString], cwd: &Path) -> Result<Command, Refusal> {
    let (program, args) = command
        .split_first()
        .ok_or_else(|| Refusal::new(Code::Usage, "no command"))?;
    let cwd = absolute(cwd)?;
    let mut run = Command::new(resolve(program, &cwd)?, cwd).args(args.iter().cloned());
    run.env = config::environment();
    // Whatever stands there: a lock that is only taken to look would be a collision of our own making.
    let (name, value) = process::QUIET_GIT;
    run.env.insert(name.into(), value.into());
    run.output = Output::Inherit;
    run.grace = limits::GRACE;
    run.confinement = Confinement::Supervised;
    Ok(run)
}

/// Gives the exit status to pass through: the command's own, or 128 + n for a signal, its own or one to us.
pub(crate) fn status(received: Option<i32>, end: End) -> u8 {
    match (received, end) {
        (Some(signal), _) | (None, End::Signalled(signal)) => u8::try_from(128 + signal).unwrap_or(255),
        (None, End::Exited(status)) => u8::try_from(status).unwrap_or(255),
        (None, End::TimedOut | End::Cancelled) => 143,
        // Nothing bounds what runs without walls.
        (None, End::Bounded(_)) => 137,
    }
}

/// Runs a command in a directory, and waits until its whole process tree has ended.
///
/// SIGINT and SIGTERM end the tree; a second one kills it at once.
///
/// # Errors
/// `not_found` where there is no such program; `bad_input` where the directory is none; `io_failed`.
pub(crate) fn passthrough(command: &[OsString], cwd: &Path) -> Result<Passthrough, Refusal> {
    let run = own(command, cwd)?;
    let cancel = Cancel::new().map_err(refusal)?;
    let watch = semel_host::signals::watch(cancel.clone()).map_err(refusal)?;
    let ended = process::run(&run, &cancel).map_err(refusal)?;
    let status = status(watch.received(), ended.end);
    Ok(match (status, ended.tree_ended) {
        (0, TreeEnded::Proved) => Passthrough::Clean,
        // The command said 0, but something of it may still write: that is not a clean end.
        (0, TreeEnded::Unproved) => Passthrough::Dirty(Code::DirtyVolume.exit()),
        (other, _) => Passthrough::Dirty(other),
    })
}

fn resolve(program: &OsString, cwd: &Path) -> Result<PathBuf, Refusal> {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return Ok(cwd.join(path));
    }
    semel_host::sandbox::resolve_program(path.as_os_str(), &config::search_path()).map_err(refusal)
}
