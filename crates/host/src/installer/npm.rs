//! npm: `package-lock.json` into `node_modules`.
//!
//! `npm ci` alone, and no script of any package runs. Artifacts are fetched for a copy of the manifests, so that
//! the tree stays empty until the offline stage.

use super::plan::{LARGEST_TEXT, Plan, Step, selections, values_of};
use super::toolchain::Tools;
use crate::error::{Error, Result};
use crate::files::read_file;
use crate::plain::private_directory;
use crate::root::Root;
use crate::sandbox::Network;
use semel_core::installer::ProjectInstall;
use semel_core::lockset::Selection;
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const LOCKS: [&str; 2] = ["npm-shrinkwrap.json", "package-lock.json"];
const STRICT: [&str; 4] = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-progress"];
/// Names the registry a lock without URLs is read against; it is the key of cached answers.
const REGISTRY: &str = "npm_config_registry";

pub(super) fn fetch(plan: &Plan) -> Result<Vec<Step>> {
    let copy = plan.place().join("fetched");
    copy_manifests(&plan.project_dir(), &copy)?;
    let step = base(plan, Network::Host)?.args(["ci"]).args(STRICT);
    Ok(vec![
        step.args(chosen(plan)?).cwd(copy.clone()),
        plan.sweep(&copy),
    ])
}

pub(super) fn install(plan: &Plan) -> Result<Vec<Step>> {
    let mut step = base(plan, Network::Loopback)?;
    let registry = plan.network_env.get(OsStr::new(REGISTRY));
    if let Some(url) = registry.filter(|url| !url.as_bytes().contains(&b'@')) {
        step = step.var(REGISTRY, url);
    }
    let step = step.args(["ci", "--offline"]).args(STRICT).args(chosen(plan)?);
    Ok(vec![step.writes_tree()])
}

fn chosen(plan: &Plan) -> Result<Vec<std::ffi::OsString>> {
    selections(&plan.args, &[], &["--omit", "--include"])
}

fn base(plan: &Plan, network: Network) -> Result<Step> {
    let Tools::Npm { node, npm } = &plan.tools else {
        return Err(Refusal::new(Code::Internal, "npm was planned with another toolchain").into());
    };
    if plan.project != ProjectInstall::Skip {
        let why = "npm runs no build scripts here, so there is no backend to leave unbound";
        return Err(Refusal::new(Code::BadConfig, why).name("build_backend").into());
    }
    let place = plan.place();
    let mut path = node
        .path
        .parent()
        .map(Path::as_os_str)
        .unwrap_or_default()
        .to_owned();
    path.push(":");
    path.push(super::plan::SYSTEM_PATH);
    Ok(plan
        .step(&node.path, network)
        .args([&npm.path])
        .var("PATH", path)
        .var("npm_config_cache", place.join("cache"))
        .var("npm_config_globalconfig", place.join("no-global-npmrc"))
        .var("npm_config_userconfig", place.join("no-user-npmrc"))
        .var("npm_config_update_notifier", "false")
        .var("npm_config_logs_max", "0"))
}

/// Copies the lock, and every manifest and local archive that it names, out of the tree.
fn copy_manifests(tree: &Path, copy: &Path) -> Result<()> {
    private_directory(copy)?;
    let lock = LOCKS
        .iter()
        .map(|name| tree.join(name))
        .find(|path| path.exists());
    let lock = lock.ok_or_else(|| Refusal::new(Code::NoLockfile, "npm ci needs one").names(LOCKS))?;
    let text = std::fs::read(&lock).map_err(|e| Error::io("read", &lock, e))?;
    let mut files = named_by(&text, &lock)?;
    files.extend(lock.file_name().map(PathBuf::from));
    files.insert("package.json".into());
    let root = Root::open(tree)?;
    for file in files {
        let to = copy.join(&file);
        // Links are never followed out of the tree; a tracked manifest is a plain file.
        let path = RelPath::parse(file.as_os_str().as_bytes())?;
        let content = read_file(&root, &path, LARGEST_TEXT);
        let Some(content) = content.ok().filter(|content| content.resolved == path) else {
            let name = semel_core::path::shown(file.as_os_str().as_bytes());
            let why = "the lock names a local package that is not a plain file of the tree";
            return Err(Refusal::new(Code::LockIncomplete, why).name(name).into());
        };
        private_directory(to.parent().unwrap_or(copy))?;
        std::fs::write(&to, content.bytes).map_err(|e| Error::io("write", &to, e))?;
    }
    Ok(())
}

/// Finds the workspaces and `file:` archives of a lock.
fn named_by(text: &[u8], lock: &Path) -> Result<BTreeSet<PathBuf>> {
    let incomplete = |why: String| {
        let name = semel_core::path::shown(lock.as_os_str().as_bytes());
        Refusal::new(Code::LockIncomplete, why).name(name)
    };
    let parsed: serde_json::Value =
        serde_json::from_slice(text).map_err(|e| incomplete(format!("the lock is not whole JSON: {e}")))?;
    let packages = parsed.get("packages").and_then(serde_json::Value::as_object);
    let packages = packages.ok_or_else(|| incomplete("the lock names no packages".to_owned()))?;
    let mut files = BTreeSet::new();
    for (place, package) in packages {
        let local = !place.is_empty() && !format!("/{place}").contains("/node_modules/");
        if local {
            files.insert(inside(&format!("{place}/package.json"))?);
        }
        let resolved = package.get("resolved").and_then(serde_json::Value::as_str);
        if let Some(archive) = resolved.and_then(|url| url.strip_prefix("file:")) {
            files.insert(inside(archive)?);
        }
    }
    Ok(files)
}

fn inside(text: &str) -> Result<PathBuf> {
    let path = RelPath::parse(text.as_bytes())?;
    Ok(PathBuf::from(OsStr::from_bytes(path.as_bytes())))
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
