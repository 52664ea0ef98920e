//! Poetry: `poetry.lock` into `.venv`.
//!
//! `poetry install` in the tree itself, so that Poetry compares the lock with its manifest as it always does. Where it
//! looks for files is decided by a plugin of a few lines: every index that the manifest names, and the public one, is
//! the index of this generation, which holds the wheels that the store gave and nothing else.

use super::pip;
use super::plan::{Plan, Step, selections, values_of};
use super::supply::{self, Need, refuse_sources, wheels, write_linked};
use super::toolchain::Tools;
use crate::error::Result;
use crate::plain::private_directory;
use crate::sandbox::Network;
use semel_core::artifact::Supply;
use semel_core::installer::ProjectInstall;
use semel_core::lockset::{Lockfile, Package, Scope, Selection, normal_name};
use semel_core::{Code, Refusal};
use std::collections::BTreeSet;
use std::ffi::OsString;

const ALONE: &[&str] = &["--all-extras", "--all-groups", "--only-root"];
const WITH_VALUE: &[&str] = &["--with", "--without", "--only", "--extras", "-E"];

/// # Source
/// Poetry, "Plugins": an application plugin's entry point, and `Poetry.set_pool`.
const PLUGIN: &str = r#"import os
from poetry.plugins.plugin import Plugin
from poetry.repositories.legacy_repository import LegacyRepository
from poetry.repositories.repository_pool import RepositoryPool


class Offline(Plugin):
    def activate(self, poetry, io):
        names = [repository.name for repository in poetry.pool.all_repositories] or ["PyPI"]
        pool = RepositoryPool()
        for name in names:
            pool.add_repository(LegacyRepository(name, os.environ["SEMEL_INDEX"], config=poetry.config, disable_cache=True))
        poetry.set_pool(pool)
"#;

fn needs(plan: &Plan, locks: &[&Lockfile]) -> Result<Vec<Need>> {
    let selection = selected(plan, locks);
    let all: Vec<&Package> = locks.iter().flat_map(|lock| &lock.packages).collect();
    let chosen = all.into_iter().filter(|package| match &package.scope {
        Scope::Always => true,
        Scope::Dev(group) => selection.groups.contains(group),
        // Which extra brings it is for Poetry to say.
        Scope::Optional(_) => !selection.extras.is_empty(),
    });
    let hashed = chosen.filter(|package| !package.artifacts.is_empty());
    let certain: BTreeSet<String> = hashed
        .clone()
        .filter(|package| package.scope == Scope::Always)
        .map(|package| format!("{}=={}", package.name, package.version.as_deref().unwrap_or("")))
        .collect();
    let (needs, mut without) = wheels(plan, hashed.map(|package| (package, package.artifacts.clone())))?;
    without.retain(|package| certain.contains(package));
    refuse_sources(without)?;
    Ok(needs)
}

/// Says which arguments of a job are taken.
pub(super) fn chosen(args: &[String]) -> Result<Vec<OsString>> {
    selections(args, ALONE, WITH_VALUE)
}

pub(super) fn fetch(plan: &Plan, locks: &[&Lockfile]) -> Result<Vec<Step>> {
    base(plan)?;
    let needs = needs(plan, locks)?;
    supply::enter_local(plan, &needs)?;
    let lacking = supply::missing(plan, &needs);
    if lacking.is_empty() {
        return Ok(Vec::new());
    }
    // In Poetry's own interpreter, which knows the public index.
    let own = plan.tools.program().path.with_file_name("python");
    let step = super::python_step(plan, &own, Network::Host);
    Ok(vec![supply::download(plan, &lacking, step)?])
}

pub(super) fn arrived(plan: &Plan, locks: &[&Lockfile]) -> Result<()> {
    supply::enter(plan, &supply::missing(plan, &needs(plan, locks)?))
}

pub(super) fn install(plan: &Plan, locks: &[&Lockfile]) -> Result<(Supply, Vec<Step>)> {
    const SERVE: &str = include_str!("index.py");
    let supply = supply::link(plan, &needs(plan, locks)?)?;
    let python = base(plan)?;
    let plugin = plan.linked().join("plugin");
    private_directory(&plugin.join("semel_offline-0.dist-info"))?;
    for (name, text) in [
        ("plugin/semel_offline.py", PLUGIN),
        (
            "plugin/semel_offline-0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: semel-offline\nVersion: 0\n",
        ),
        (
            "plugin/semel_offline-0.dist-info/entry_points.txt",
            "[poetry.plugin]\noffline = semel_offline:Offline\n",
        ),
    ] {
        write_linked(plan, name, text)?;
    }
    let place = plan.place();
    let create = pip::create(plan, python);
    let fill = plan
        .step(&plan.tools.program().path, Network::Loopback)
        .args(["install", "--no-root", "--no-interaction", "--no-ansi"])
        .args(chosen(&plan.args)?)
        .through(&python.path, ["-I", "-c", SERVE], &plan.linked())
        .var("PYTHONPATH", plugin)
        .var("PYTHONDONTWRITEBYTECODE", "1")
        .var("POETRY_CACHE_DIR", place.join("cache"))
        .var("POETRY_CONFIG_DIR", place.join("config"))
        .var("POETRY_DATA_DIR", place.join("data"))
        .var("POETRY_INSTALLER_ONLY_BINARY", ":all:")
        .var("POETRY_KEYRING_ENABLED", "false")
        .var("POETRY_VIRTUALENVS_IN_PROJECT", "true")
        .var("POETRY_VIRTUALENVS_OPTIONS_SYSTEM_SITE_PACKAGES", "false")
        .writes_tree();
    Ok((supply, vec![create, fill]))
}

fn base(plan: &Plan) -> Result<&super::Tool> {
    let Tools::Poetry { python, .. } = &plan.tools else {
        return Err(Refusal::new(Code::Internal, "Poetry was planned with another toolchain").into());
    };
    if plan.project != ProjectInstall::Skip {
        let why =
            "Poetry installs what is locked and never builds the project; use uv for an unbound backend";
        return Err(Refusal::new(Code::BadConfig, why).name("build_backend").into());
    }
    chosen(&plan.args)?;
    Ok(python)
}

/// Says what the arguments select of a lock; of groups and extras, more than Poetry may install.
pub(super) fn selected(plan: &Plan, locks: &[&Lockfile]) -> Selection {
    let names = |option: &str| -> BTreeSet<String> {
        let values = values_of(&plan.args, option);
        let names = values.iter().flat_map(|value| value.split([',', ' ']));
        names.filter(|name| !name.is_empty()).map(normal_name).collect()
    };
    let mut selection = Selection::default();
    let packages = locks.iter().flat_map(|lock| &lock.packages);
    for package in packages {
        match &package.scope {
            Scope::Dev(group) => drop(selection.groups.insert(group.clone())),
            Scope::Optional(extra) if plan.args.iter().any(|arg| arg == "--all-extras") => {
                selection.extras.insert(extra.clone());
            }
            Scope::Optional(_) | Scope::Always => {}
        }
    }
    selection.extras.extend(names("--extras"));
    selection.extras.extend(names("-E"));
    let without = names("--without");
    selection.groups.retain(|group| !without.contains(group));
    let only = names("--only");
    if !only.is_empty() {
        selection.groups.retain(|group| only.contains(group));
    }
    selection
}

/// Says what is certainly there after an install: nothing of what a group or an extra brings, since a manifest may leave
/// groups out by itself, and nothing at all where only some are asked for.
pub(super) fn certain(plan: &Plan) -> Selection {
    let mut certain = Selection::default();
    if !values_of(&plan.args, "--only").is_empty() || plan.args.iter().any(|arg| arg == "--only-root") {
        certain.own = semel_core::lockset::Own::LeftOut;
    }
    certain
}
