//! pnpm: `pnpm-lock.yaml` into `node_modules`.
//!
//! pnpm keeps no tarballs, so npm downloads them, and pnpm gets them from a registry of this generation on loopback. Its
//! store is one of this generation, and files are copied out of it: a hard link could be written back through.

use super::plan::{Plan, Step, selections};
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

const ALONE: &[&str] = &["--prod", "--no-optional"];

fn needs(plan: &Plan, locks: &[&Lockfile]) -> Result<Vec<Need>> {
    let selection = selected(plan);
    registry::needs(plan, locks, |package| match &package.scope {
        Scope::Dev(group) => selection.groups.contains(group),
        Scope::Always | Scope::Optional(_) => true,
    })
}

/// Says which arguments of a job are taken.
pub(super) fn chosen(args: &[String]) -> Result<Vec<OsString>> {
    selections(args, ALONE, &[])
}

pub(super) fn fetch(plan: &Plan, locks: &[&Lockfile]) -> Result<Vec<Step>> {
    base(plan)?;
    let needs = needs(plan, locks)?;
    // A tarball that lies elsewhere than in a registry is asked for there, whatever registry there is.
    let elsewhere = needs.iter().filter(|need| need.place.is_some());
    let elsewhere: Vec<&String> = elsewhere.map(|need| &need.wanted.file).collect();
    if !elsewhere.is_empty() {
        let why = "pnpm asks for tarballs by the addresses in the lock, and there is no network to ask";
        return Err(Refusal::new(Code::InstallFailed, why)
            .reason("tarball_address")
            .names(elsewhere)
            .into());
    }
    registry::download(plan, &supply::missing(plan, &needs))
}

pub(super) fn arrived(plan: &Plan, locks: &[&Lockfile]) -> Result<()> {
    registry::enter(plan, &supply::missing(plan, &needs(plan, locks)?))
}

pub(super) fn install(plan: &Plan, locks: &[&Lockfile]) -> Result<(Supply, Vec<Step>)> {
    let needs = needs(plan, locks)?;
    let supply = supply::link(plan, &needs)?;
    let step = registry::shelved(plan, &needs, Shelf::Linked, base(plan)?)?
        .args([
            "install",
            "--frozen-lockfile",
            "--ignore-scripts",
            "--registry",
            "{registry}",
        ])
        .args(["--package-import-method", "copy", "--store-dir"])
        .args([plan.place().join("store")])
        .args(chosen(&plan.args)?);
    Ok((supply, vec![step.writes_tree()]))
}

fn base(plan: &Plan) -> Result<Step> {
    let Tools::Pnpm { node, pnpm, .. } = &plan.tools else {
        return Err(Refusal::new(Code::Internal, "pnpm was planned with another toolchain").into());
    };
    if plan.project != ProjectInstall::Skip {
        let why = "pnpm runs no build scripts here, so there is no backend to leave unbound";
        return Err(Refusal::new(Code::BadConfig, why).name("build_backend").into());
    }
    chosen(&plan.args)?;
    Ok(registry::npm_step(plan, node, pnpm, Network::Loopback)
        // Else it downloads the version of itself that a manifest names.
        .var("npm_config_manage_package_manager_versions", "false")
        .var("npm_config_package_manager_strict", "false")
        .var("CI", "true"))
}

/// Says what the arguments select of a lock.
pub(super) fn selected(plan: &Plan) -> Selection {
    let mut selection = Selection::default();
    if !plan.args.iter().any(|arg| arg == "--prod") {
        selection.groups.insert("dev".to_owned());
    }
    selection
}
