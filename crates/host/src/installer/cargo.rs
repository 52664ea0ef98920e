//! cargo: `Cargo.lock` into a private registry.
//!
//! cargo installs nothing into the tree: what is installed are the unpacked crates of a `CARGO_HOME` that belongs
//! to this generation. The offline stage proves that the lock is in step and that nothing is missing. Neither stage
//! reads the tree's own `.cargo/config.toml`; an alternative registry is configured by the operator.

use super::plan::{Plan, Step, selections};
use super::toolchain::Tools;
use crate::error::Result;
use crate::plain::private_directory;
use crate::sandbox::Network;
use semel_core::installer::ProjectInstall;
use semel_core::{Code, Refusal};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub(super) fn fetch(plan: &Plan) -> Result<Vec<Step>> {
    let chosen = selections(&plan.args, &[], &["--target"])?;
    // A lock of local packages alone leaves nothing there; an empty installation is one, too.
    private_directory(&home(plan))?;
    Ok(vec![
        base(plan, Network::Host)?
            .args(["fetch", "--locked", "--manifest-path"])
            .args([manifest(plan)])
            .args(chosen),
    ])
}

pub(super) fn install(plan: &Plan) -> Result<Vec<Step>> {
    let step = base(plan, Network::Loopback)?.var("CARGO_NET_OFFLINE", "true");
    Ok(vec![
        step.args([
            "metadata",
            "--locked",
            "--offline",
            "--format-version",
            "1",
            "--manifest-path",
        ])
        .args([manifest(plan)]),
    ])
}

fn manifest(plan: &Plan) -> PathBuf {
    plan.project_dir().join("Cargo.toml")
}

fn base(plan: &Plan, network: Network) -> Result<Step> {
    let Tools::Cargo { cargo, rustc } = &plan.tools else {
        return Err(Refusal::new(Code::Internal, "cargo was planned with another toolchain").into());
    };
    if plan.project != ProjectInstall::Skip {
        let why = "cargo builds the project in its tests; there is no backend to leave unbound";
        return Err(Refusal::new(Code::BadConfig, why).name("build_backend").into());
    }
    // Cargo takes settings from where it runs. Those of the tree are the proposal's: they name programs to run, proxies
    // and trust stores, and the fetch stage has credentials.
    Ok(plan
        .step(&cargo.path, network)
        .cwd(plan.place())
        .var("PATH", path_with(&cargo.path))
        .var("RUSTC", rustc.path.as_os_str())
        .var("CARGO_HOME", home(plan))
        .var("CARGO_TERM_COLOR", "never"))
}

/// Gives the `CARGO_HOME` of this generation.
pub(super) fn home(plan: &Plan) -> PathBuf {
    plan.place().join("registry-home")
}

fn path_with(cargo: &Path) -> OsString {
    let mut path = cargo.parent().map(Path::as_os_str).unwrap_or_default().to_owned();
    path.push(":");
    path.push(super::plan::SYSTEM_PATH);
    path
}
