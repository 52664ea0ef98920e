//! What the package managers of Node share: tarballs that npm downloads, and a registry of one generation on loopback.
//!
//! npm is the one that knows how registries, tokens and proxies are configured, so it downloads for the others too. It
//! keeps a tarball under the digest of its bytes, which is where the store takes it from.

use super::npm::path_with;
use super::plan::{Plan, Step};
use super::supply::Need;
use super::toolchain::{Runs, Tool};
use crate::error::{Error, Result};
use crate::plain::private_directory;
use crate::sandbox::Network;
use semel_core::artifact::{Locked, Packing};
use semel_core::lockset::{Holds, Lockfile, Package, Setting, Source};
use semel_core::path::shown;
use semel_core::{Code, Refusal};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How many tarballs one command is told to download.
const AT_ONCE: usize = 250;

/// What of a lock may be installed on this machine.
pub(super) fn needs(
    plan: &Plan,
    locks: &[&Lockfile],
    chosen: impl Fn(&Package) -> bool,
) -> Result<Vec<Need>> {
    let setting = machine(plan)?;
    let mut found: BTreeMap<Locked, Need> = BTreeMap::new();
    for package in locks.iter().flat_map(|lock| &lock.packages) {
        if package.source != Source::Hashed || !chosen(package) || setting.takes(package) == Holds::No {
            continue;
        }
        let Some(artifact) = package.artifacts.first() else {
            continue;
        };
        let mut need = Need::of(package, artifact, Packing::Npm);
        need.version = package.version.clone();
        need.place = match artifact.name.strip_prefix("file:") {
            Some(local) => Some(local.to_owned()),
            None => Some(artifact.name.clone()).filter(|name| name.contains("://")),
        };
        let version = package.version.as_deref().unwrap_or("");
        need.wanted.file = format!("{}-{version}.tgz", package.name.replace('/', "+"));
        // Another place of the same bytes may be the one that says where they lie.
        let held = found
            .entry(need.wanted.locked.clone())
            .or_insert_with(|| need.clone());
        if held.place.is_none() {
            held.place = need.place;
        }
    }
    Ok(found.into_values().collect())
}

/// Says what conditions of a lock are answered with.
pub(super) fn machine(plan: &Plan) -> Result<Setting> {
    let node = plan.tools.node();
    match node.map(|node| &node.runs) {
        Some(Runs::Node { cpu, libc }) => Ok(Setting::node(cpu, libc)),
        _ => Err(Refusal::new(Code::Internal, "packages of Node were planned without Node").into()),
    }
}

/// Makes a step of npm.
pub(super) fn npm_step(plan: &Plan, node: &Tool, npm: &Tool, network: Network) -> Step {
    let place = plan.place();
    plan.step(&node.path, network)
        .args([&npm.path])
        .var("PATH", path_with(&node.path))
        .var("npm_config_cache", place.join("cache"))
        .var("npm_config_globalconfig", place.join("no-global-npmrc"))
        .var("npm_config_userconfig", place.join("no-user-npmrc"))
        .var("npm_config_update_notifier", "false")
        .var("npm_config_logs_max", "0")
}

/// Makes the steps that download tarballs, into a cache that nothing installs from.
pub(super) fn download(plan: &Plan, needs: &[&Need]) -> Result<Vec<Step>> {
    let (Some(node), Some(npm)) = (plan.tools.node(), plan.tools.npm()) else {
        return Err(Refusal::new(Code::Internal, "tarballs were planned without npm").into());
    };
    let specs: Vec<String> = needs.iter().map(|need| spec(plan, need)).collect::<Result<_>>()?;
    private_directory(&plan.place())?;
    let steps = specs.chunks(AT_ONCE).map(|specs| {
        npm_step(plan, node, npm, Network::Host)
            // The settings of the tree could name another registry, and send it the operator's tokens.
            .cwd(plan.place())
            .args(["cache", "add", "--ignore-scripts", "--no-audit", "--no-progress"])
            .args(["--"])
            .args(specs)
            .var("npm_config_cache", arrived(plan))
    });
    Ok(steps.collect())
}

/// Says how npm is asked for a tarball: by its address, or by name where the operator has a registry instead.
fn spec(plan: &Plan, need: &Need) -> Result<String> {
    let version = need.version.as_deref().unwrap_or("");
    let by_name = format!("{}@{version}", need.name);
    let own = plan.network_env.get(OsStr::new("npm_config_registry"));
    // What a registry would have, whichever it was, is asked of the operator's; its bytes are bound all the same.
    let spec = match &need.place {
        Some(url) if own.is_none() || !url.contains("/-/") => url.clone(),
        Some(_) | None => by_name,
    };
    let plain = !spec.starts_with('-') && !spec.contains(char::is_whitespace);
    plain.then_some(spec).ok_or_else(|| {
        let why = "a package has a name or an address that no registry has";
        Refusal::new(Code::LockIncomplete, why).name(&need.name).into()
    })
}

fn arrived(plan: &Plan) -> PathBuf {
    plan.place().join("arrived")
}

/// Lets enter what npm downloaded.
pub(super) fn enter(plan: &Plan, needs: &[&Need]) -> Result<()> {
    for need in needs {
        let from = content(&arrived(plan), &need.wanted.locked);
        if !super::there(&from) {
            let why = "what was fetched is not what the lock names";
            return Err(Refusal::new(Code::InstallFailed, why)
                .reason("artifact_digest")
                .names([need.wanted.file.clone(), need.wanted.locked.to_string()])
                .into());
        }
        plan.artifacts.enter(&from, &need.wanted)?;
    }
    Ok(())
}

/// Gives the place of a tarball in a cache of npm.
///
/// # Source
/// cacache 20, `lib/content/path.js`: `content-v2/<algorithm>/<2>/<2>/<rest>`.
pub(super) fn content(cache: &Path, locked: &Locked) -> PathBuf {
    let hex = locked.hex();
    let (first, rest) = hex.split_at(2);
    let (second, rest) = rest.split_at(2);
    cache
        .join("_cacache/content-v2")
        .join(locked.algorithm.name())
        .join(first)
        .join(second)
        .join(rest)
}

/// Says where the tarballs of a shelf lie.
#[derive(Clone, Copy)]
pub(super) enum Shelf<'a> {
    /// In a cache of npm.
    At(&'a Path),
    /// Among the linked artifacts.
    Linked,
}

#[derive(Serialize)]
struct Book {
    algorithm: &'static str,
    hex: String,
    file: String,
}

/// Lets a step run beside a registry of its own, whose address replaces `{registry}`.
pub(super) fn shelved(plan: &Plan, needs: &[Need], shelf: Shelf<'_>, step: Step) -> Result<Step> {
    const SERVE: &str = include_str!("shelf.cjs");
    let node = plan
        .tools
        .node()
        .ok_or_else(|| Refusal::new(Code::Internal, "a registry was planned without Node"))?;
    let mut catalog: BTreeMap<&str, BTreeMap<&str, Book>> = BTreeMap::new();
    for need in needs {
        let locked = &need.wanted.locked;
        let file = match shelf {
            Shelf::At(cache) => content(cache, locked),
            Shelf::Linked => plan.linked().join(&need.wanted.file),
        };
        let book = Book {
            algorithm: locked.algorithm.name(),
            hex: locked.hex(),
            file: shown(file.as_os_str().as_bytes()),
        };
        let version = need.version.as_deref().unwrap_or("");
        catalog.entry(&need.name).or_default().insert(version, book);
    }
    let listed = plan.place().join("shelf.json");
    private_directory(&plan.place())?;
    let bytes = serde_json::to_vec(&catalog)
        .map_err(|e| Refusal::new(Code::Internal, format!("a list of artifacts is no JSON: {e}")))?;
    std::fs::write(&listed, bytes).map_err(|e| Error::io("write", &listed, e))?;
    Ok(step.through(&node.path, ["-e", SERVE, "--"], &listed))
}
