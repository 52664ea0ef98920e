//! Yarn: `yarn.lock` into `node_modules`, by the kind of Yarn that wrote it.
//!
//! Yarn 1 finds tarballs in a directory of its own mirror format. Later ones keep archives that they make of tarballs,
//! and the lock has the digest of those: they are what the store holds, and what installed files are compared with.
//! A package with conditions has no checksum in such a lock; where it is for this machine, the lock is refused.

use super::plan::{LARGEST_TEXT, Plan, Step, selections};
use super::registry;
use super::supply::{self, Need, write_linked};
use super::toolchain::Tools;
use crate::error::{Error, Result};
use crate::files::read_file;
use crate::plain::private_directory;
use crate::root::Root;
use crate::sandbox::Network;
use semel_core::artifact::{Packing, Supply};
use semel_core::installer::ProjectInstall;
use semel_core::lockset::{Holds, Lockfile, Selection, Source, Yarn};
use semel_core::{Code, Refusal, RelPath};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Says which kind of Yarn a lock is of, and that the toolchain is of it.
fn kind(plan: &Plan, locks: &[&Lockfile]) -> Result<Yarn> {
    let kind = locks.iter().find_map(|lock| lock.yarn());
    let kind = kind.ok_or_else(|| Refusal::new(Code::NoLockfile, "Yarn installs from a yarn.lock alone"))?;
    let version = &plan.tools.program().identity.version;
    let own = if version.starts_with("1.") {
        Yarn::Classic
    } else {
        Yarn::Modern
    };
    match own == kind {
        true => Ok(kind),
        false => {
            let why = "the lock is of another kind of Yarn than the one that is installed";
            Err(Refusal::new(Code::BadConfig, why)
                .name(format!("yarn {version}"))
                .into())
        }
    }
}

fn needs(plan: &Plan, locks: &[&Lockfile], kind: Yarn) -> Result<Vec<Need>> {
    let mut needs = registry::needs(plan, locks, |_| true)?;
    match kind {
        Yarn::Classic => {
            for need in &mut needs {
                need.wanted.file = need.place.as_deref().map(mirrored).unwrap_or_default();
            }
            Ok(needs)
        }
        Yarn::Modern => {
            refuse_unbound(plan, locks)?;
            for need in &mut needs {
                need.wanted.packing = Packing::YarnCache;
                need.place = None;
                need.wanted.file = plan.artifacts.name_of(&need.wanted.locked).unwrap_or_default();
            }
            Ok(needs)
        }
    }
}

/// Names a tarball as Yarn's mirror does: by the end of its address, and the scope before it.
///
/// # Source
/// Yarn 1.22, `src/fetchers/tarball-fetcher.js`, `getTarballMirrorPath`.
fn mirrored(url: &str) -> String {
    let path = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = path.split(['?', '#']).next().unwrap_or(path);
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let file = parts.last().copied().unwrap_or("");
    match parts
        .first()
        .filter(|first| first.starts_with('@') && parts.len() > 1)
    {
        Some(scope) => format!("{scope}-{file}"),
        None => file.to_owned(),
    }
}

fn refuse_unbound(plan: &Plan, locks: &[&Lockfile]) -> Result<()> {
    let setting = registry::machine(plan)?;
    let all = locks.iter().flat_map(|lock| &lock.packages);
    let unbound = all.filter(|package| {
        package.source == Source::Hashed
            && package.artifacts.is_empty()
            && setting.takes(package) != Holds::No
    });
    let names: Vec<String> = unbound
        .map(|package| format!("{}@{}", package.name, package.version.as_deref().unwrap_or("")))
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let why = "the lock has no checksum for packages with conditions that hold on this machine";
    Err(Refusal::new(Code::LockIncomplete, why)
        .reason("conditions")
        .names(names)
        .into())
}

/// Says which arguments of a job are taken.
pub(super) fn chosen(args: &[String]) -> Result<Vec<OsString>> {
    selections(args, &["--production"], &[])
}

pub(super) fn fetch(plan: &Plan, locks: &[&Lockfile]) -> Result<Vec<Step>> {
    base(plan)?;
    let kind = kind(plan, locks)?;
    if kind == Yarn::Modern {
        refuse_other_linkers(plan)?;
        refuse_old(&plan.tools.program().identity.version)?;
    }
    let needs = needs(plan, locks, kind)?;
    let lacking = supply::missing(plan, &needs);
    match kind {
        Yarn::Classic => registry::download(plan, &lacking),
        Yarn::Modern if lacking.is_empty() => Ok(Vec::new()),
        Yarn::Modern => Ok(vec![archives(plan, locks)?]),
    }
}

/// The step in which a later Yarn makes its archives, of a copy of the manifests: no setting of the tree is read where
/// the operator's credentials are.
fn archives(plan: &Plan, locks: &[&Lockfile]) -> Result<Step> {
    let copy = plan.place().join("manifests");
    let root = Root::open(&plan.tree)?;
    let mut files: Vec<RelPath> = vec![plan.directory.join(b"yarn.lock")?];
    for package in locks.iter().flat_map(|lock| &lock.packages) {
        if let Source::Virtual(home) = &package.source {
            files.push(home.join(b"package.json")?);
        }
    }
    // Of what lies in the tree, no file but those that the lock names as patches.
    files.extend(locks.iter().flat_map(|lock| lock.patches()));
    for path in files {
        let content = read_file(&root, &path, LARGEST_TEXT)?;
        let to = copy.join(OsStr::from_bytes(path.as_bytes()));
        private_directory(to.parent().unwrap_or(&copy))?;
        std::fs::write(&to, content.bytes).map_err(|e| Error::io("write", &to, e))?;
    }
    let mut step = modern(plan, Network::Host)?
        .args(["install", "--immutable", "--mode=skip-build"])
        .cwd(copy.join(OsStr::from_bytes(plan.directory.as_bytes())))
        .var("YARN_CACHE_FOLDER", arrived_cache(plan))
        // Links nothing: the archives alone are wanted.
        .var("YARN_NODE_LINKER", "pnp");
    if let Some(url) = plan.network_env.get(OsStr::new("npm_config_registry")) {
        step = step.var("YARN_NPM_REGISTRY_SERVER", url);
    }
    Ok(step)
}

fn arrived_cache(plan: &Plan) -> PathBuf {
    plan.place().join("archives")
}

pub(super) fn arrived(plan: &Plan, locks: &[&Lockfile]) -> Result<()> {
    let kind = kind(plan, locks)?;
    match kind {
        Yarn::Classic => registry::enter(plan, &supply::missing(plan, &needs(plan, locks, kind)?)),
        Yarn::Modern => supply::enter_all(plan, locks, &arrived_cache(plan), Packing::YarnCache),
    }
}

pub(super) fn install(plan: &Plan, locks: &[&Lockfile]) -> Result<(Supply, Vec<Step>)> {
    let kind = kind(plan, locks)?;
    let mut needs = needs(plan, locks, kind)?;
    let step = match kind {
        Yarn::Classic => {
            let linked = plan.linked();
            let rc = write_linked(
                plan,
                "yarnrc",
                &format!("yarn-offline-mirror \"{}\"\n", linked.display()),
            )?;
            base(plan)?
                .args(["install", "--frozen-lockfile", "--offline", "--ignore-scripts"])
                .args([
                    "--non-interactive",
                    "--no-progress",
                    "--no-default-rc",
                    "--use-yarnrc",
                ])
                .args([rc])
                .args(["--cache-folder"])
                .args([plan.place().join("cache")])
                .args(chosen(&plan.args)?)
        }
        Yarn::Modern => {
            // What the store does not hold, Yarn did not ask for; should it do so now, there is no network.
            needs.retain(|need| plan.artifacts.holds(&need.wanted.locked));
            modern(plan, Network::Loopback)?
                .args(["install", "--immutable", "--immutable-cache", "--mode=skip-build"])
                .var("YARN_CACHE_FOLDER", plan.place().join("cache"))
                .var("YARN_ENABLE_NETWORK", "0")
        }
    };
    let supply = match kind {
        Yarn::Classic => supply::link(plan, &needs)?,
        Yarn::Modern => {
            let cache = plan.place().join("cache");
            supply::link_at(plan, &needs, |need| cache.join(&need.wanted.file))?
        }
    };
    Ok((supply, vec![step.writes_tree()]))
}

/// The oldest Yarn that runs nothing for `exec:` and of git, where it is told so.
const OLDEST: (u32, u32) = (4, 14);

/// An older one runs code of a package while it only looks what that package needs, where credentials are.
fn refuse_old(version: &str) -> std::result::Result<(), Refusal> {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found >= OLDEST {
        return Ok(());
    }
    let why = "a Yarn before 4.14 runs code of packages from git while it fetches, whatever it is told";
    Err(Refusal::new(Code::BadConfig, why)
        .reason("old_yarn")
        .name(format!("yarn {version}")))
}

/// `.pnp.cjs` would bring packages in without any file of them being there to be looked at.
fn refuse_other_linkers(plan: &Plan) -> Result<()> {
    let text = plan.text(".yarnrc.yml")?.unwrap_or_default();
    let linker = text.lines().find_map(|line| line.strip_prefix("nodeLinker:"));
    let linker = linker.unwrap_or("pnp").trim().trim_matches(['"', '\'']);
    match linker {
        "node-modules" => Ok(()),
        other => {
            let why = "of Yarn's ways to link packages, node-modules is the one whose files can be bound";
            Err(Refusal::new(Code::BadConfig, why)
                .reason("node_linker")
                .name(format!("nodeLinker: {other}"))
                .into())
        }
    }
}

fn base(plan: &Plan) -> Result<Step> {
    let Tools::Yarn { node, yarn, .. } = &plan.tools else {
        return Err(Refusal::new(Code::Internal, "Yarn was planned with another toolchain").into());
    };
    if plan.project != ProjectInstall::Skip {
        let why = "Yarn runs no build scripts here, so there is no backend to leave unbound";
        return Err(Refusal::new(Code::BadConfig, why).name("build_backend").into());
    }
    chosen(&plan.args)?;
    let step = registry::npm_step(plan, node, yarn, Network::Loopback);
    // Else Yarn hands over to a script that the tree names.
    Ok(step.var("YARN_IGNORE_PATH", "1"))
}

fn modern(plan: &Plan, network: Network) -> Result<Step> {
    let Tools::Yarn { node, yarn, .. } = &plan.tools else {
        return Err(Refusal::new(Code::Internal, "Yarn was planned with another toolchain").into());
    };
    if !plan.args.is_empty() {
        let why = "this kind of Yarn installs everything that its lock holds for a project";
        return Err(Refusal::new(Code::BadConfig, why)
            .names(plan.args.iter().cloned())
            .into());
    }
    Ok(registry::npm_step(plan, node, yarn, network)
        .var("YARN_IGNORE_PATH", "1")
        // A pattern that no address fits: for older locks Yarn would let all be cloned and built.
        .var("YARN_APPROVED_GIT_REPOSITORIES", "none")
        .var("YARN_CHECKSUM_BEHAVIOR", "throw")
        .var("YARN_ENABLE_GLOBAL_CACHE", "0")
        .var("YARN_ENABLE_HARDENED_MODE", "0")
        .var("YARN_ENABLE_MIRROR", "0")
        .var("YARN_ENABLE_SCRIPTS", "0")
        .var("YARN_ENABLE_TELEMETRY", "0")
        .var("YARN_GLOBAL_FOLDER", plan.place().join("global"))
        .var("YARN_NM_MODE", "classic"))
}

/// Says what the arguments select of a lock.
pub(super) fn selected(plan: &Plan) -> Selection {
    let mut selection = Selection::default();
    if !plan.args.iter().any(|arg| arg == "--production") {
        selection.groups.insert("dev".to_owned());
    }
    selection
}

#[cfg(test)]
mod tests {
    use super::{mirrored, refuse_old};
    use semel_core::Code;

    #[test]
    fn a_yarn_that_runs_what_it_fetches_is_refused() {
        for version in ["4.14.0", "4.18.1", "5.0.0-rc.1", "10.1.0"] {
            assert!(refuse_old(version).is_ok(), "{version}");
        }
        for version in ["2.4.3", "3.8.7", "4.9.1", "4.13.0", "4", "x"] {
            let refusal = refuse_old(version).unwrap_err();
            assert_eq!(
                (refusal.code, refusal.reason.as_deref()),
                (Code::BadConfig, Some("old_yarn"))
            );
        }
    }

    #[test]
    fn tarballs_are_named_as_yarns_mirror_names_them() {
        for (url, name) in [
            ("https://registry.yarnpkg.com/ms/-/ms-2.1.3.tgz", "ms-2.1.3.tgz"),
            (
                "https://registry.yarnpkg.com/@babel/core/-/core-7.0.0.tgz#abc",
                "@babel-core-7.0.0.tgz",
            ),
            ("https://host/npm/@babel/core/-/core-7.0.0.tgz", "core-7.0.0.tgz"),
        ] {
            assert_eq!(mirrored(url), name);
        }
    }
}
