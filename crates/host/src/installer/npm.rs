//! npm: `package-lock.json` into `node_modules`.
//!
//! `npm ci` alone, and no script of any package runs. npm finds tarballs in its cache by the integrity that the lock
//! gives, and compares it when it reads them; so its cache is filled from the store before it runs.

use super::plan::{Plan, Step, selections, values_of};
use super::registry::{self, Shelf};
use super::supply::{self, Need};
use super::toolchain::Tools;
use crate::error::Result;
use crate::sandbox::Network;
use semel_core::artifact::Supply;
use semel_core::installer::ProjectInstall;
use semel_core::lockset::{Lockfile, Scope, Selection};
use semel_core::{Code, Refusal};
use std::ffi::OsString;
use std::path::Path;

const STRICT: [&str; 4] = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-progress"];

fn needs(plan: &Plan, locks: &[&Lockfile]) -> Result<Vec<Need>> {
    let selection = selected(plan);
    registry::needs(plan, locks, |package| match &package.scope {
        Scope::Dev(group) => selection.groups.contains(group),
        Scope::Always | Scope::Optional(_) => true,
    })
}

pub(super) fn fetch(plan: &Plan, locks: &[&Lockfile]) -> Result<Vec<Step>> {
    base(plan, Network::Loopback)?;
    chosen(&plan.args)?;
    let needs = needs(plan, locks)?;
    supply::enter_local(plan, &needs)?;
    registry::download(plan, &supply::missing(plan, &needs))
}

pub(super) fn arrived(plan: &Plan, locks: &[&Lockfile]) -> Result<()> {
    registry::enter(plan, &supply::missing(plan, &needs(plan, locks)?))
}

pub(super) fn install(plan: &Plan, locks: &[&Lockfile]) -> Result<(Supply, Vec<Step>)> {
    let needs = needs(plan, locks)?;
    let cache = plan.place().join("cache");
    let supply = supply::link_at(plan, &needs, |need| {
        registry::content(&cache, &need.wanted.locked)
    })?;
    let step = base(plan, Network::Loopback)?;
    // A lock may leave out where its tarballs lie; then npm asks the registry, which gives the same answer as the lock.
    let known = |need: &Need| need.place.is_some();
    let step = match needs.iter().all(known) {
        true => step.args(["ci", "--offline"]),
        false => registry::shelved(plan, &needs, Shelf::At(&cache), step)?.args([
            "ci",
            "--prefer-offline",
            "--registry",
            "{registry}",
        ]),
    };
    let step = step.args(STRICT).args(chosen(&plan.args)?);
    Ok((supply, vec![step.writes_tree()]))
}

/// Says which arguments of a job are taken.
pub(super) fn chosen(args: &[String]) -> Result<Vec<OsString>> {
    selections(args, &[], &["--omit", "--include"])
}

fn base(plan: &Plan, network: Network) -> Result<Step> {
    let Tools::Npm { node, npm } = &plan.tools else {
        return Err(Refusal::new(Code::Internal, "npm was planned with another toolchain").into());
    };
    if plan.project != ProjectInstall::Skip {
        let why = "npm runs no build scripts here, so there is no backend to leave unbound";
        return Err(Refusal::new(Code::BadConfig, why).name("build_backend").into());
    }
    Ok(registry::npm_step(plan, node, npm, network))
}

/// Gives what a program of Node finds others by.
pub(super) fn path_with(node: &Path) -> OsString {
    let mut path = node.parent().map(Path::as_os_str).unwrap_or_default().to_owned();
    path.push(":");
    path.push(super::plan::SYSTEM_PATH);
    path
}

/// Says what the arguments select of a lock.
pub(super) fn selected(plan: &Plan) -> Selection {
    let omitted = values_of(&plan.args, "--omit").iter().any(|what| what == "dev");
    let included = values_of(&plan.args, "--include")
        .iter()
        .any(|what| what == "dev");
    let mut selection = Selection::default();
    if included || !omitted {
        selection.groups.insert("dev".to_owned());
    }
    selection
}
