//! pip: requirements files with hashes into `.venv`.
//!
//! Wheels alone, each named with its hash; nothing is built, and nothing that the file does not name is taken: pip
//! follows what the wheels say they need, and refuses a file that leaves any of it out. The environment holds no pip of
//! its own: the toolchain's pip installs into it from outside.

use super::plan::{LARGEST_TEXT, Plan, Step, selections};
use super::supply::{self, Need, fetched, refuse_sources, wheels};
use super::toolchain::{Tool, Tools};
use crate::error::{Error, Result};
use crate::files::read::read_file;
use crate::plain::private_directory;
use crate::root::Root;
use crate::sandbox::Network;
use semel_core::artifact::{Locked, Packing, Supply};
use semel_core::installer::ProjectInstall;
use semel_core::lockset::{self, Lockfile};
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeSet;
use std::ffi::OsString;

/// What the requirements need here, as far as the store holds it; and the packages of which it holds nothing.
fn needs(plan: &Plan, locks: &[&Lockfile]) -> Result<(Vec<Need>, Vec<String>)> {
    let all = locks.iter().flat_map(|lock| &lock.packages);
    let packages = all.map(|package| {
        // A requirements file has digests alone; the store knows by which name an artifact came.
        let known = package.artifacts.iter().filter_map(|artifact| {
            let name = plan.artifacts.name_of(&Locked::of(artifact))?;
            let held = plan.artifacts.holds(&Locked::of(artifact));
            let mut artifact = artifact.clone();
            artifact.name = name;
            held.then_some(artifact)
        });
        (package, known.collect())
    });
    wheels(plan, packages)
}

/// Says which arguments of a job are taken.
pub(super) fn chosen(args: &[String]) -> Result<Vec<OsString>> {
    selections(args, &[], &[])
}

pub(super) fn fetch(plan: &Plan, locks: &[&Lockfile]) -> Result<Vec<Step>> {
    let base = base(plan, Network::Host)?;
    let (_, lacking) = needs(plan, locks)?;
    if lacking.is_empty() {
        return Ok(Vec::new());
    }
    let download = base
        .args(["-I", "-m", "pip", "download", "--require-hashes"])
        .args(["--only-binary", ":all:", "--cache-dir"])
        .args([plan.place().join("cache")])
        .args(["--dest"])
        .args([fetched(plan)])
        .args(requirements(plan, locks)?);
    Ok(vec![download])
}

/// Lets enter what pip downloaded, each file as the one that a lock names.
pub(super) fn arrived(plan: &Plan, locks: &[&Lockfile]) -> Result<()> {
    supply::enter_all(plan, locks, &fetched(plan), Packing::Wheel)
}

/// Names the refusal of a requirements file that does not close over what its wheels need: the file's fault, whatever the
/// generation.
///
/// # Source
/// `HashUnpinned` of pip's `exceptions.py`: with `--require-hashes`, a distribution that no line of the file pins.
pub(super) fn closes(error: Error) -> Error {
    const UNPINNED: &str = "all requirements must have their versions pinned";
    match error {
        Error::Refused(refusal)
            if refusal.code == Code::InstallFailed
                && refusal.names.iter().any(|line| line.contains(UNPINNED)) =>
        {
            let why = "the requirements leave out what their packages need, or a version of it";
            // What pip says of them stands behind the words; what it collected before is no part of it.
            let lines = refusal.names.iter().skip_while(|line| !line.contains(UNPINNED));
            let what = lines
                .filter(|line| !line.contains(UNPINNED))
                .map(|line| line.trim().to_owned());
            Refusal::new(Code::LockIncomplete, why).names(what).into()
        }
        other => other,
    }
}

/// Links what is needed, and installs it from there.
pub(super) fn install(plan: &Plan, locks: &[&Lockfile]) -> Result<(Supply, Vec<Step>)> {
    let (needs, without) = needs(plan, locks)?;
    refuse_sources(without)?;
    let supply = supply::link(plan, &needs)?;
    let Tools::Pip { python, .. } = &plan.tools else {
        return Err(Refusal::new(Code::Internal, "pip was planned with another toolchain").into());
    };
    let environment = plan.project_dir().join(".venv");
    let create = create(plan, python);
    let fill = base(plan, Network::Loopback)?
        .args(["-I", "-m", "pip", "--python"])
        .args([environment.join("bin/python")])
        .args(["install", "--require-hashes", "--only-binary", ":all:"])
        .args(["--no-index", "--no-cache-dir", "--no-compile", "--find-links"])
        .args([plan.linked()])
        .args(requirements(plan, locks)?)
        .writes_tree();
    Ok((supply, vec![create, fill]))
}

/// Makes an environment that holds nothing, by the interpreter's own module.
pub(super) fn create(plan: &Plan, python: &Tool) -> Step {
    plan.step(&python.path, Network::Loopback)
        .args(["-I", "-m", "venv", "--without-pip"])
        .args([plan.project_dir().join(".venv")])
        .var("PYTHONDONTWRITEBYTECODE", "1")
        .writes_tree()
}

fn base(plan: &Plan, network: Network) -> Result<Step> {
    let Tools::Pip { python, .. } = &plan.tools else {
        return Err(Refusal::new(Code::Internal, "pip was planned with another toolchain").into());
    };
    if plan.project != ProjectInstall::Skip {
        let why = "pip installs what is locked and never builds the project; use uv for an unbound backend";
        return Err(Refusal::new(Code::BadConfig, why).name("build_backend").into());
    }
    chosen(&plan.args)?;
    Ok(plan
        .step(&python.path, network)
        .var("PIP_CONFIG_FILE", "/dev/null")
        .var("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        .var("PIP_NO_INPUT", "1")
        .var("PIP_PROGRESS_BAR", "off")
        .var("PYTHONDONTWRITEBYTECODE", "1"))
}

/// Writes what pip is to read, and names it: the pinned lines of the first requirements file that is bound, and of those
/// that it includes. A file of the tree could send pip, and what the operator gave it to fetch with, anywhere.
fn requirements(plan: &Plan, locks: &[&Lockfile]) -> Result<[OsString; 2]> {
    let root = Root::open(&plan.tree)?;
    let mut open: Vec<RelPath> = locks.first().map(|lock| lock.path.clone()).into_iter().collect();
    let (mut seen, mut text) = (BTreeSet::new(), String::new());
    while let Some(path) = open.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let lock = locks.iter().find(|lock| lock.path == path).ok_or_else(|| {
            Refusal::new(Code::LockIncomplete, "a requirements file is not bound").name(path.to_string())
        })?;
        let content = read_file(&root, &path, LARGEST_TEXT)?;
        if content.sha256 != lock.digest {
            let why = "a requirements file changed after it was bound";
            return Err(Refusal::new(Code::LockfileDrift, why)
                .name(path.to_string())
                .into());
        }
        text.push_str(&lockset::pinned(&path, &content.bytes)?);
        open.extend(lock.includes.iter().cloned());
    }
    private_directory(&plan.place())?;
    let written = plan.place().join("requirements.txt");
    std::fs::write(&written, text).map_err(|e| Error::io("write", &written, e))?;
    Ok(["-r".into(), written.into_os_string()])
}
