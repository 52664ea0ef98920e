//! Installers: from a lock into an empty environment, by the ecosystem's own tool in its strictest mode.
//!
//! Each installation has two stages in the sandbox. *Fetch* has the host's network and what the operator
//! configured for it, and brings artifacts into the store, where each has to have the digest that the lock gives.
//! *Install* has no network but its own loopback and none of that configuration: it installs from copies that the
//! store gives to this generation. What came of it is observed byte by byte and never believed. It decides
//! nothing: whether what was installed is what the lock says is core's business.

mod cargo;
mod command;
mod npm;
mod observe;
mod pip;
mod plan;
mod pnpm;
mod poetry;
mod record;
mod registry;
mod supply;
mod testing;
mod toolchain;
mod trust;
mod uv;
mod yarn;

pub use command::{
    CommandPlan, CommandRun, Sealed, filled_by, places_of, programs_of, record_command, run_command,
    stamps_of_command, verify_command,
};
pub use observe::observe;
pub(crate) use observe::observe_with_links;
pub use plan::{Isolation, Plan, StageOutcome};
pub use record::{observe_environment, record, stamps_of, verify_again};
pub use testing::{Commanded, ReportFrom, TestPlan, TestRun, check_report, run_tests};
pub use toolchain::{
    CommandTools, Hints, Program, Reach, Runs, Tool, Tools, check_installer, check_program, resolve,
    resolve_command,
};
pub use trust::trust_machine;

use crate::error::{Error, Result};
use crate::process::Cancel;
use plan::run_steps;
use semel_core::artifact::Supply;
use semel_core::installer::{Installer, ProjectInstall};
use semel_core::lockset::Lockfile;
use semel_core::path::shown;
use semel_core::{Code, Refusal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Brings into the store what the locks need and it does not hold yet; the tree stays as it is.
///
/// # Errors
/// `tree_not_empty` where an environment or build residue came with the tree, `no_lockfile` without one, `lock_incomplete` where a lock that pip reads
/// does not close over what its packages need, `install_failed` with the last lines of the installer, or where what
/// came is not what the lock names; `timed_out` past the deadline, `bad_config` for an argument that is no selection,
/// `sandbox_unavailable` where the sandbox is required and cannot be had.
pub fn fetch(plan: &Plan, locks: &[&Lockfile], cancel: &Cancel) -> Result<StageOutcome> {
    check_empty(plan)?;
    locked(locks)?;
    let steps = match plan.tools.installer() {
        Installer::Uv => uv::fetch(plan, locks, cancel)?,
        Installer::Pip => pip::fetch(plan, locks)?,
        Installer::Poetry => poetry::fetch(plan, locks)?,
        Installer::Npm => npm::fetch(plan, locks)?,
        Installer::Pnpm => pnpm::fetch(plan, locks)?,
        Installer::Yarn => yarn::fetch(plan, locks)?,
        Installer::Cargo => cargo::fetch(plan, locks)?,
    };
    let outcome = run_steps(plan, steps, cancel).map_err(|error| explained(plan, error))?;
    match plan.tools.installer() {
        Installer::Uv => uv::arrived(plan, locks, cancel)?,
        Installer::Pip => pip::arrived(plan, locks)?,
        Installer::Poetry => poetry::arrived(plan, locks)?,
        Installer::Npm => npm::arrived(plan, locks)?,
        Installer::Pnpm => pnpm::arrived(plan, locks)?,
        Installer::Yarn => yarn::arrived(plan, locks)?,
        Installer::Cargo => cargo::arrived(plan, locks)?,
    }
    Ok(outcome)
}

fn explained(plan: &Plan, error: Error) -> Error {
    match plan.tools.installer() {
        Installer::Pip => pip::closes(error),
        _ => error,
    }
}

/// Installs without a network, from copies that the store gives to this generation; says from which.
///
/// # Errors
/// As [`fetch`]; `record_mismatch`, reason `poisoned_artifact`, for an entry of the store that is not what it was;
/// also `record_mismatch` where the project's own build changed what was installed before it.
pub fn install(plan: &Plan, locks: &[&Lockfile], cancel: &Cancel) -> Result<(StageOutcome, Supply)> {
    check_empty(plan)?;
    locked(locks)?;
    let (supply, steps) = match plan.tools.installer() {
        Installer::Uv => uv::install(plan, locks, cancel)?,
        Installer::Pip => pip::install(plan, locks)?,
        Installer::Poetry => poetry::install(plan, locks)?,
        Installer::Npm => npm::install(plan, locks)?,
        Installer::Pnpm => pnpm::install(plan, locks)?,
        Installer::Yarn => yarn::install(plan, locks)?,
        Installer::Cargo => cargo::install(plan, locks)?,
    };
    let outcome = run_steps(plan, steps, cancel).map_err(|error| explained(plan, error))?;
    if plan.project == ProjectInstall::Skip {
        return Ok((outcome, supply));
    }
    let before = observe_environment(plan)?;
    let built = run_steps(plan, uv::install_project(plan)?, cancel)?;
    observe::only_added(&before, &observe_environment(plan)?)?;
    Ok((outcome.and(built), supply))
}

/// Checks, before anything is installed, that a job's arguments of an installer are selections.
///
/// # Errors
/// `bad_config`, naming the argument.
pub fn check_arguments(installer: Installer, args: &[String]) -> Result<()> {
    let taken = match installer {
        Installer::Uv => uv::chosen(args),
        Installer::Pip => pip::chosen(args),
        Installer::Poetry => poetry::chosen(args),
        Installer::Npm => npm::chosen(args),
        Installer::Pnpm => pnpm::chosen(args),
        Installer::Yarn => yarn::chosen(args),
        Installer::Cargo => cargo::chosen(args),
    };
    taken.map(drop)
}

/// Refuses an installation from nothing.
fn locked(locks: &[&Lockfile]) -> Result<()> {
    match locks.is_empty() {
        true => Err(Refusal::new(Code::NoLockfile, "an installer installs from a lockfile alone").into()),
        false => Ok(()),
    }
}

/// Makes a step of an interpreter of Python that downloads.
fn python_step(plan: &Plan, python: &Path, network: crate::sandbox::Network) -> plan::Step {
    const DOWNLOAD: &str = include_str!("fetch.py");
    plan.step(python, network).args(["-I", "-c", DOWNLOAD])
}

/// Gives the root of what the installer installs.
#[must_use]
pub fn environment(plan: &Plan) -> PathBuf {
    match plan.tools.installer() {
        Installer::Uv | Installer::Pip | Installer::Poetry => plan.project_dir().join(".venv"),
        Installer::Npm | Installer::Pnpm | Installer::Yarn => plan.project_dir().join("node_modules"),
        Installer::Cargo => cargo::home(plan),
    }
}

/// Refuses an environment, or build residue, that is there before the installer made it.
fn check_empty(plan: &Plan) -> Result<()> {
    check_places(plan)?;
    let place = match plan.tools.installer() {
        Installer::Uv | Installer::Pip | Installer::Poetry => ".venv",
        Installer::Npm | Installer::Pnpm | Installer::Yarn => "node_modules",
        Installer::Cargo => {
            let target = plan.project_dir().join("target");
            let residue = ["CACHEDIR.TAG", ".rustc_info.json"];
            return match residue.iter().find(|name| there(&target.join(name))) {
                Some(_) => Err(not_empty(&target)),
                None => Ok(()),
            };
        }
    };
    let path = plan.project_dir().join(place);
    if there(&path) {
        return Err(not_empty(&path));
    }
    Ok(())
}

/// What installers write into scripts and links are the paths they were given, so these must be the real ones.
fn check_places(plan: &Plan) -> Result<()> {
    let wrong =
        |why: &str, path: &Path| Refusal::new(Code::BadConfig, why).name(shown(path.as_os_str().as_bytes()));
    for path in [&plan.tree, &plan.home] {
        let real = std::fs::canonicalize(path).map_err(|e| Error::io("resolve", path, e))?;
        if real != *path {
            return Err(wrong(
                "tree and home of a generation are given by their real paths",
                path,
            )
            .into());
        }
    }
    if plan.home.starts_with(&plan.tree) || plan.tree.starts_with(&plan.home) {
        return Err(wrong("tree and home of a generation lie beside each other", &plan.home).into());
    }
    Ok(())
}

/// Anything counts, a dangling link and what cannot be looked at too.
fn there(path: &Path) -> bool {
    match std::fs::symlink_metadata(path) {
        Ok(_) => true,
        Err(e) => !matches!(
            e.kind(),
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
        ),
    }
}

fn not_empty(path: &Path) -> Error {
    let why = "an environment or build residue is there before anything was installed";
    Refusal::new(Code::TreeNotEmpty, why)
        .name(shown(path.as_os_str().as_bytes()))
        .into()
}

#[cfg(test)]
pub(crate) mod tests;
