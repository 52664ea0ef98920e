//! uv: `uv.lock` into `.venv`.
//!
//! uv says which packages of the lock belong here (`uv export`), and installs them from wheels that this generation
//! was given by the store (`uv pip sync`); its own cache, which it hard-links from and never looks into again, holds
//! nothing. `--locked` makes uv itself refuse a lock that is not in step with `pyproject.toml`. The project's own build
//! comes last, with a cache of its own.

use super::plan::{Plan, Step, ask, selections, values_of};
use super::supply::{self, Need, refuse_sources, wheels, write_linked};
use super::toolchain::Tools;
use crate::error::Result;
use crate::process::Cancel;
use crate::sandbox::Network;
use semel_core::artifact::{Locked, Supply};
use semel_core::installer::ProjectInstall;
use semel_core::lockset::{self, Artifact, Lockfile, Package, Scope, Selection, normal_name};
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

const ALONE: &[&str] = &[
    "--all-extras",
    "--all-groups",
    "--all-packages",
    "--dev",
    "--no-default-groups",
    "--no-dev",
    "--no-editable",
];
const WITH_VALUE: &[&str] = &["--extra", "--group", "--no-extra", "--no-group"];
/// Settings of the index that the lock may have been made with; each only names a cache.
const INDEX_NAMES: &[&str] = &[
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "UV_INDEX",
    "UV_EXTRA_INDEX_URL",
];

/// What the lock needs here, for what the arguments select: uv says which packages, and the lock their artifacts.
fn needs(plan: &Plan, locks: &[&Lockfile], lock: Check, cancel: &Cancel) -> Result<(Vec<Need>, Vec<String>)> {
    let export = base(plan, Network::Loopback)?
        .args(["export", lock.argument(), "--offline", "--quiet"])
        .args(["--no-emit-workspace", "--no-header", "--no-annotate"])
        .args(chosen(&plan.args)?);
    let said = ask(plan, export, cancel)?;
    if said.trim_ascii().is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let exported = lockset::parse(&RelPath::parse(b"requirements.txt")?, &said)?;
    let packages = exported.packages.iter().map(|package| {
        let allowed = |artifact: &&Artifact| {
            let same = |other: &Artifact| Locked::of(other) == Locked::of(artifact);
            package.artifacts.iter().any(same)
        };
        let locked = locks.iter().flat_map(|lock| &lock.packages);
        let own = locked
            .filter(|p| p.name == package.name)
            .flat_map(|p| &p.artifacts);
        (package, own.filter(allowed).cloned().collect())
    });
    let (needs, without) = wheels(plan, packages)?;
    let mut lines = Vec::new();
    for need in &needs {
        let packages = exported.packages.iter().filter(|p| p.name == need.name);
        let of = |p: &&Package| p.artifacts.iter().any(|a| Locked::of(a) == need.wanted.locked);
        let Some(package) = packages.into_iter().find(of) else {
            continue;
        };
        let at = match &package.version {
            Some(version) => format!("{}=={version}", package.name),
            None => format!(
                "{} @ file://{}",
                package.name,
                plan.linked().join(&need.wanted.file).display()
            ),
        };
        let marker = package.condition.as_deref().unwrap_or("");
        let marker = if marker.is_empty() {
            String::new()
        } else {
            format!(" ; {marker}")
        };
        lines.push(format!("{at}{marker} --hash={}\n", need.wanted.locked));
    }
    write_linked(plan, REQUIREMENTS, &lines.concat())?;
    refuse_sources(without)?;
    Ok((needs, lines))
}

const REQUIREMENTS: &str = "requirements.txt";

#[derive(Clone, Copy)]
enum Check {
    /// The lock is taken as it is.
    Frozen,
    /// It has to be in step with its manifest.
    Locked,
}

impl Check {
    fn argument(self) -> &'static str {
        match self {
            Self::Frozen => "--frozen",
            Self::Locked => "--locked",
        }
    }
}

/// Says which arguments of a job are taken.
pub(super) fn chosen(args: &[String]) -> Result<Vec<OsString>> {
    selections(args, ALONE, WITH_VALUE)
}

pub(super) fn fetch(plan: &Plan, locks: &[&Lockfile], cancel: &Cancel) -> Result<Vec<Step>> {
    let (needs, _) = needs(plan, locks, Check::Frozen, cancel)?;
    supply::enter_local(plan, &needs)?;
    let lacking = supply::missing(plan, &needs);
    let mut steps = Vec::new();
    if !lacking.is_empty() {
        let Tools::Uv { python, .. } = &plan.tools else {
            return Err(Refusal::new(Code::Internal, "uv was planned with another toolchain").into());
        };
        let step = super::python_step(plan, &python.path, Network::Host);
        steps.push(supply::download(plan, &lacking, step)?);
    }
    if plan.project == ProjectInstall::UnboundBackend {
        let scratch = plan.home.join("build").join("fetched");
        steps.push(
            build(base(plan, Network::Host)?, plan)
                .args(["venv", "--clear"])
                .args([&scratch]),
        );
        let mut warm = build(base(plan, Network::Host)?, plan)
            .args(["pip", "install", "--no-deps", "--python"])
            .args([scratch.join("bin/python")]);
        if !plan.args.iter().any(|arg| arg == "--no-editable") {
            warm = warm.args(["--editable"]);
        }
        steps.push(warm.args([plan.project_dir()]));
    }
    Ok(steps)
}

/// Lets enter what the steps of [`fetch`] brought.
pub(super) fn arrived(plan: &Plan, locks: &[&Lockfile], cancel: &Cancel) -> Result<()> {
    let (needs, _) = needs(plan, locks, Check::Frozen, cancel)?;
    supply::enter(plan, &supply::missing(plan, &needs))
}

/// Links what is needed, and installs it from there.
pub(super) fn install(plan: &Plan, locks: &[&Lockfile], cancel: &Cancel) -> Result<(Supply, Vec<Step>)> {
    let (needs, lines) = needs(plan, locks, Check::Locked, cancel)?;
    let supply = supply::link(plan, &needs)?;
    let environment = plan.project_dir().join(".venv");
    let create = base(plan, Network::Loopback)?
        .args(["venv", "--offline"])
        .args([&environment])
        .writes_tree();
    if lines.is_empty() {
        return Ok((supply, vec![create]));
    }
    let fill = base(plan, Network::Loopback)?
        .args(["pip", "sync", "--require-hashes", "--no-index", "--find-links"])
        .args([plan.linked()])
        .args([
            "--offline",
            "--no-build",
            "--link-mode",
            "copy",
            "--no-compile-bytecode",
        ])
        .args(["--python"])
        .args([environment.join("bin/python")])
        .args([plan.linked().join(REQUIREMENTS)])
        // Of the tree's settings, those for `uv pip` concern other environments.
        .var("UV_NO_CONFIG", "1")
        .writes_tree();
    Ok((supply, vec![create, fill]))
}

/// The project's own package, after everything else is in place.
pub(super) fn install_project(plan: &Plan) -> Result<Vec<Step>> {
    let step = sync(base(plan, Network::Loopback)?, plan)?;
    Ok(vec![build(step, plan).args(["--inexact"])])
}

fn sync(step: Step, plan: &Plan) -> Result<Step> {
    Ok(step
        .args([
            "sync",
            "--locked",
            "--offline",
            "--link-mode",
            "copy",
            "--no-compile-bytecode",
        ])
        .args(chosen(&plan.args)?)
        .writes_tree())
}

/// Turns a step into one of the project's own build: other home, other cache, a tree that backends write into.
fn build(step: Step, plan: &Plan) -> Step {
    let home = plan.home.join("build");
    // Compiled modules that it left in the tree would be run in place of the sources.
    step.var("PYTHONDONTWRITEBYTECODE", "1")
        .var("UV_CACHE_DIR", home.join("cache"))
        .home(home)
        .writes_tree()
}

fn base(plan: &Plan, network: Network) -> Result<Step> {
    let Tools::Uv { uv, python } = &plan.tools else {
        return Err(Refusal::new(Code::Internal, "uv was planned with another toolchain").into());
    };
    let mut step = plan
        .step(&uv.path, network)
        .args(["--no-progress", "--color", "never"])
        .var("UV_CACHE_DIR", plan.place().join("cache"))
        .var("UV_PYTHON", python.path.as_os_str())
        .var("UV_PYTHON_DOWNLOADS", "never")
        .var("UV_NO_ENV_FILE", "1")
        .var("UV_PROJECT_ENVIRONMENT", plan.project_dir().join(".venv"));
    if !configures_uv(plan)? {
        // Else uv would look for settings in the directories above the tree.
        step = step.var("UV_NO_CONFIG", "1");
    }
    if network == Network::Loopback {
        for (name, value) in kept_index(plan)? {
            step = step.var(name, value);
        }
    }
    Ok(step)
}

/// Whether the sealed tree itself holds settings of uv; these belong to the proposal.
fn configures_uv(plan: &Plan) -> Result<bool> {
    Ok(plan.text("uv.toml")?.is_some() || settings(plan)?.is_some())
}

/// The `[tool.uv]` of a manifest.
fn settings(plan: &Plan) -> Result<Option<toml::Value>> {
    let manifest = plan.text("pyproject.toml")?.unwrap_or_default();
    let parsed: toml::Table = toml::from_str(&manifest).unwrap_or_default();
    Ok(parsed.get("tool").and_then(|tool| tool.get("uv")).cloned())
}

/// `--locked` compares the index of the lock with the one that is set, so an index that the lock itself names
/// stays set; one with credentials never does.
fn kept_index(plan: &Plan) -> Result<Vec<(&'static str, OsString)>> {
    let lock = plan.text("uv.lock")?.unwrap_or_default();
    let kept = INDEX_NAMES.iter().filter_map(|name| {
        let value = plan.network_env.get(std::ffi::OsStr::new(name))?;
        let url = std::str::from_utf8(value.as_bytes()).ok()?;
        let named = !url.is_empty() && lock.contains(&format!("\"{}", url.trim_end_matches('/')));
        (named && !url.contains('@')).then(|| (*name, value.clone()))
    });
    Ok(kept.collect())
}

/// Says what the arguments, and the groups that uv takes by default, select of a lock.
pub(super) fn selected(plan: &Plan, locks: &[&Lockfile]) -> Result<Selection> {
    let given = |name: &str| plan.args.iter().any(|arg| arg == name);
    let edges = || {
        locks
            .iter()
            .flat_map(|lock| &lock.packages)
            .flat_map(|package| &package.dependencies)
    };
    let groups = edges().filter_map(|edge| match &edge.scope {
        Scope::Dev(group) => Some(group.clone()),
        Scope::Always | Scope::Optional(_) => None,
    });
    let extras = edges().filter_map(|edge| match &edge.scope {
        Scope::Optional(extra) => Some(extra.clone()),
        Scope::Always | Scope::Dev(_) => None,
    });
    let (groups, extras): (BTreeSet<String>, BTreeSet<String>) = (groups.collect(), extras.collect());
    let mut selection = Selection::default();
    if given("--all-groups") {
        selection.groups.clone_from(&groups);
    } else if !given("--no-default-groups") {
        selection.groups = default_groups(plan, &groups)?;
    }
    if given("--all-extras") {
        selection.extras = extras;
    }
    if given("--dev") {
        selection.groups.insert("dev".to_owned());
    }
    selection.groups.extend(values(plan, "--group"));
    selection.extras.extend(values(plan, "--extra"));
    for group in values(plan, "--no-group") {
        selection.groups.remove(&group);
    }
    for extra in values(plan, "--no-extra") {
        selection.extras.remove(&extra);
    }
    if given("--no-dev") {
        selection.groups.remove("dev");
    }
    Ok(selection)
}

fn default_groups(plan: &Plan, all: &BTreeSet<String>) -> Result<BTreeSet<String>> {
    let settings = settings(plan)?;
    let named = settings.as_ref().and_then(|uv| uv.get("default-groups"));
    Ok(match named {
        None => BTreeSet::from(["dev".to_owned()]),
        Some(toml::Value::Array(groups)) => groups
            .iter()
            .filter_map(toml::Value::as_str)
            .map(normal_name)
            .collect(),
        Some(_) => all.clone(),
    })
}

fn values(plan: &Plan, name: &str) -> Vec<String> {
    values_of(&plan.args, name)
        .into_iter()
        .map(|value| normal_name(&value))
        .collect()
}
