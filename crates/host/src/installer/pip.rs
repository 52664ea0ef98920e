//! pip: requirements files with hashes into `.venv`.
//!
//! Wheels alone, each named with its hash; nothing is built, and nothing that the file does not name is taken: pip
//! follows what the wheels say they need, and refuses a file that leaves any of it out. The environment holds no pip of
//! its own: the toolchain's pip installs into it from outside.

use super::plan::{Plan, Step, run_step, selections};
use super::toolchain::Tools;
use crate::error::{Error, Result};
use crate::plain::digest_file;
use crate::process::Cancel;
use crate::sandbox::Network;
use semel_core::digest::from_hex;
use semel_core::install::python::Wheel;
use semel_core::installer::ProjectInstall;
use semel_core::{Code, Refusal};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

pub(super) fn fetch(plan: &Plan) -> Result<Vec<Step>> {
    let download = base(plan, Network::Host)?
        .args(["-I", "-m", "pip", "download", "--require-hashes"])
        .args(["--only-binary", ":all:", "--cache-dir"])
        .args([plan.place().join("cache")])
        .args(["--dest"])
        .args([wheels(plan)])
        .args(requirements(plan));
    Ok(vec![download])
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
            Refusal::new(Code::LockIncomplete, why)
                .names(refusal.names)
                .into()
        }
        other => other,
    }
}

pub(super) fn install(plan: &Plan) -> Result<Vec<Step>> {
    let environment = plan.project_dir().join(".venv");
    let create = base(plan, Network::Loopback)?
        .args(["-I", "-m", "venv", "--without-pip"])
        .args([&environment])
        .writes_tree();
    let fill = base(plan, Network::Loopback)?
        .args(["-I", "-m", "pip", "--python"])
        .args([environment.join("bin/python")])
        .args(["install", "--require-hashes", "--only-binary", ":all:"])
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
        .flat_map(|file| {
            [
                OsString::from("-r"),
                plan.project_dir().join(file).into_os_string(),
            ]
        })
        .collect()
}

const READ_RECORDS: &str = r#"
import json, os, sys, zipfile
found = []
for name in sorted(os.listdir(sys.argv[1])):
    with zipfile.ZipFile(os.path.join(sys.argv[1], name)) as wheel:
        records = [at for at in wheel.namelist() if at.count("/") == 1 and at.endswith(".dist-info/RECORD")]
        if len(records) != 1:
            sys.exit(f"{name}: {len(records)} RECORD files")
        found.append([name, wheel.read(records[0]).hex()])
print(json.dumps(found))
"#;

/// Gives the wheels that were fetched, each with the `RECORD` inside of it; the reading is done in the sandbox.
pub(super) fn wheels_kept(plan: &Plan, cancel: &Cancel) -> Result<Vec<Wheel>> {
    let step = base(plan, Network::Loopback)?
        .args(["-I", "-c", READ_RECORDS])
        .args([wheels(plan)]);
    let ended = run_step(plan, step, plan.deadline, cancel)?;
    let unread = || Refusal::new(Code::RecordMismatch, "the fetched wheels cannot be read back");
    let found: Vec<(String, String)> = serde_json::from_slice(&ended.stdout).map_err(|_| unread())?;
    let mut kept = Vec::new();
    for (name, record) in found {
        let path = wheels(plan).join(&name);
        kept.push(Wheel {
            sha256: digest_file(&path)?,
            record: from_hex(&record).ok_or_else(unread)?,
        });
    }
    Ok(kept)
}
