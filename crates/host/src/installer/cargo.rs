//! cargo: `Cargo.lock` into a directory of vendored crates.
//!
//! cargo installs nothing into the tree: what is installed are crates that the host unpacks from the store into a
//! `CARGO_HOME` of this generation, where cargo takes every registry to be this directory. Its own cache of unpacked
//! crates, which it never looks into again, holds nothing. The offline stage proves that the lock is in step and that
//! nothing is missing. Neither stage reads the tree's own `.cargo/config.toml`; an alternative registry is configured by
//! the operator. A project that keeps its crates in its tree is tested from there, and these are bound too.

use super::plan::{LARGEST_TEXT, Plan, Step, selections};
use super::supply::{self, Need};
use super::toolchain::Tools;
use crate::artifact::{in_parallel, unpack_crate};
use crate::error::{Error, Result};
use crate::files::read_file;
use crate::plain::private_directory;
use crate::root::Root;
use crate::sandbox::Network;
use semel_core::artifact::{Held, Packing, Supply};
use semel_core::install::rust::{CHECKSUMS, VENDOR, checksums, settings};
use semel_core::installer::ProjectInstall;
use semel_core::lockset::{Lockfile, Source};
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

fn needs(locks: &[&Lockfile]) -> Vec<Need> {
    let hashed = locks
        .iter()
        .flat_map(|lock| &lock.packages)
        .filter(|package| package.source == Source::Hashed);
    hashed
        .flat_map(|package| {
            let artifacts = package.artifacts.iter();
            artifacts.map(move |artifact| Need::of(package, artifact, Packing::Crate))
        })
        .collect()
}

/// Says which arguments of a job are taken.
pub(super) fn chosen(args: &[String]) -> Result<Vec<OsString>> {
    selections(args, &[], &["--target"])
}

pub(super) fn fetch(plan: &Plan, locks: &[&Lockfile]) -> Result<Vec<Step>> {
    chosen(&plan.args)?;
    private_directory(&plan.place())?;
    let step = base(plan, Network::Host)?
        .args(["fetch", "--locked", "--manifest-path"])
        .args([manifest(plan)])
        .var("CARGO_HOME", arrived_home(plan));
    match supply::missing(plan, &needs(locks)).is_empty() {
        true => Ok(Vec::new()),
        false => Ok(vec![step]),
    }
}

fn arrived_home(plan: &Plan) -> PathBuf {
    plan.place().join("arrived-home")
}

/// Lets enter what cargo downloaded.
pub(super) fn arrived(plan: &Plan, locks: &[&Lockfile]) -> Result<()> {
    let cache = arrived_home(plan).join("registry/cache");
    let mut found: BTreeMap<OsString, Vec<PathBuf>> = BTreeMap::new();
    let indexes = std::fs::read_dir(&cache).into_iter().flatten().flatten();
    for index in indexes {
        for file in std::fs::read_dir(index.path()).into_iter().flatten().flatten() {
            found.entry(file.file_name()).or_default().push(file.path());
        }
    }
    let needs = needs(locks);
    for need in supply::missing(plan, &needs) {
        let files = found.get(OsStr::new(&need.wanted.file));
        let entered = files
            .into_iter()
            .flatten()
            .map(|file| plan.artifacts.enter(file, &need.wanted))
            .find_map(std::result::Result::ok);
        if entered.is_none() {
            let why = "what was fetched is not what the lock names";
            return Err(Refusal::new(Code::InstallFailed, why)
                .reason("artifact_digest")
                .names([need.wanted.file.clone(), need.wanted.locked.to_string()])
                .into());
        }
    }
    Ok(())
}

pub(super) fn install(plan: &Plan, locks: &[&Lockfile]) -> Result<(Supply, Vec<Step>)> {
    let supply = supply::link(plan, &needs(locks))?;
    let vendor = home(plan).join(VENDOR);
    private_directory(&vendor)?;
    let held: Vec<&Held> = supply.iter().collect();
    in_parallel(&held, |held| {
        let stem = held.file.strip_suffix(".crate").unwrap_or(&held.file);
        let to = vendor.join(stem);
        unpack_crate(&plan.linked().join(&held.file), &to)?;
        write(&to.join(CHECKSUMS), &checksums(held)?)
    })?;
    for lock in locks {
        let text = settings(lock, vendor.as_os_str().as_bytes());
        write(&home(plan).join("config.toml"), text.as_bytes())?;
    }
    let step = base(plan, Network::Loopback)?.var("CARGO_NET_OFFLINE", "true");
    let step = step
        .args([
            "metadata",
            "--locked",
            "--offline",
            "--format-version",
            "1",
            "--manifest-path",
        ])
        .args([manifest(plan)]);
    Ok((supply, vec![step]))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|e| Error::io("write", path, e))
}

/// Finds the directories of vendored crates that settings of Cargo anywhere in the tree name: a test can run Cargo in any
/// directory, and reads those of every directory above.
///
/// # Errors
/// `record_outside_root` for one outside of the tree; `lock_incomplete` for settings that do not parse, or (reason
/// `included_settings`) include others.
pub(super) fn vendored(plan: &Plan) -> Result<Vec<RelPath>> {
    let root = Root::open(&plan.tree)?;
    let mut found = Vec::new();
    for place in with_settings(plan)? {
        for name in ["config.toml", "config"] {
            let path = place.join(b".cargo")?.join(name.as_bytes())?;
            let Ok(content) = read_file(&root, &path, LARGEST_TEXT) else {
                continue;
            };
            directories((&place, &plan.directory), &path, content.bytes, &mut found)?;
        }
    }
    Ok(found)
}

/// Lists the directories of the tree in which something is called `.cargo`.
fn with_settings(plan: &Plan) -> Result<Vec<RelPath>> {
    let (mut found, mut open) = (Vec::new(), vec![RelPath::root()]);
    while let Some(at) = open.pop() {
        let place = plan.tree.join(OsStr::from_bytes(at.as_bytes()));
        let unread = |e| Error::io("read", &place, e);
        for entry in std::fs::read_dir(&place).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            if entry.file_name() == ".cargo" {
                found.push(at.clone());
            } else if entry.file_type().map_err(unread)?.is_dir() {
                open.push(at.join(entry.file_name().as_bytes())?);
            }
        }
    }
    Ok(found)
}

/// Adds the directories that a file of settings takes crates from.
fn directories(
    (place, above): (&RelPath, &RelPath),
    path: &RelPath,
    bytes: Vec<u8>,
    found: &mut Vec<RelPath>,
) -> Result<()> {
    let unread =
        || Refusal::new(Code::LockIncomplete, "the settings of Cargo do not parse").name(path.to_string());
    let text = String::from_utf8(bytes).map_err(|_| unread())?;
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        // Where Cargo does not run by itself, a fixture may be broken on purpose; Cargo takes nothing from it.
        Err(_) if above != place && !above.is_below(place) => return Ok(()),
        Err(_) => return Err(unread().into()),
    };
    if table.contains_key("include") {
        let why = "the settings of Cargo include others, which nobody looks at here";
        let refusal = Refusal::new(Code::LockIncomplete, why).reason("included_settings");
        return Err(refusal.name(path.to_string()).into());
    }
    let sources = table.get("source").and_then(toml::Value::as_table);
    for (_, source) in sources.into_iter().flatten() {
        let Some(directory) = source.get("directory").and_then(toml::Value::as_str) else {
            continue;
        };
        let whole = [place.as_bytes(), b"/", directory.as_bytes()].concat();
        let inside = match directory.starts_with('/') {
            true => None,
            false => RelPath::parse(whole.strip_prefix(b"/").unwrap_or(&whole)).ok(),
        };
        found.push(inside.ok_or_else(|| {
            let why = "the settings of Cargo take crates from outside of the tree";
            Refusal::new(Code::RecordOutsideRoot, why).names([path.to_string(), directory.to_owned()])
        })?);
    }
    Ok(())
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
