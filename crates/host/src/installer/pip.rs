//! pip: requirements files with hashes into `.venv`.
//!
//! Wheels alone, each named with its hash; nothing is resolved and nothing is built. The environment holds no pip
//! of its own: the toolchain's pip installs into it from outside.

use super::plan::{Plan, Step, selections};
use super::toolchain::Tools;
use crate::error::Result;
use crate::sandbox::Network;
use semel_core::installer::ProjectInstall;
use semel_core::{Code, Refusal};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

pub(super) fn fetch(plan: &Plan) -> Result<Vec<Step>> {
    let download = base(plan, Network::Host)?
        .args(["-I", "-m", "pip", "download", "--require-hashes", "--no-deps"])
        .args(["--only-binary", ":all:", "--cache-dir"])
        .args([plan.place().join("cache")])
        .args(["--dest"])
        .args([wheels(plan)])
        .args(requirements(plan));
    Ok(vec![download])
}

pub(super) fn install(plan: &Plan) -> Result<Vec<Step>> {
    let environment = plan.tree.join(".venv");
    let create = base(plan, Network::Loopback)?
        .args(["-I", "-m", "venv", "--without-pip"])
        .args([&environment])
        .writes_tree();
    let fill = base(plan, Network::Loopback)?
        .args(["-I", "-m", "pip", "--python"])
        .args([environment.join("bin/python")])
        .args([
            "install",
            "--require-hashes",
            "--no-deps",
            "--only-binary",
            ":all:",
        ])
        .args(["--no-index", "--no-cache-dir", "--no-compile", "--find-links"])
        .args([wheels(plan)])
        .args(requirements(plan))
        .writes_tree();
    Ok(vec![create, fill])
}

fn base(plan: &Plan, network: Network) -> Result<Step> {
    let Tools::Pip { python, .. } = &plan.tools else {
        return Err(Refusal::new(Code::Internal, "pip was planned with another toolchain").into());
    };
    if plan.project != ProjectInstall::Skip {
        let why = "pip installs what is locked and never builds the project; use uv for an unbound backend";
        return Err(Refusal::new(Code::BadConfig, why).name("build_backend").into());
    }
    selections(&plan.args, &[], &[])?;
    Ok(plan
        .step(&python.path, network)
        .var("PIP_CONFIG_FILE", "/dev/null")
        .var("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        .var("PIP_NO_INPUT", "1")
        .var("PIP_PROGRESS_BAR", "off")
        .var("PYTHONDONTWRITEBYTECODE", "1"))
}

fn wheels(plan: &Plan) -> PathBuf {
    plan.place().join("wheels")
}

fn requirements(plan: &Plan) -> Vec<OsString> {
    let named = plan
        .requirements
        .iter()
        .map(|path| OsStr::from_bytes(path.as_bytes()).to_owned());
    let mut files: Vec<OsString> = named.collect();
    if files.is_empty() {
        files.push("requirements.txt".into());
    }
    files
        .into_iter()
        .flat_map(|file| [OsString::from("-r"), plan.tree.join(file).into_os_string()])
        .collect()
}
