//! package-lock.json and npm-shrinkwrap.json: a tree of places, each with the integrity of its tarball.
//!
//! Versions 2 and 3; ranges are compared as text, only with what the lock itself says it was made from.

use super::fetchable;
use super::json::Once;
use super::{
    Algorithm, Artifact, Declared, Dependency, Facts as AnyFacts, Lockfile, Package, Scope, Selection,
    Source, incomplete, manifest, resolve, same_set,
};
use crate::code::Refusal;
use crate::path::RelPath;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Holds the projects that the lock was made for, by directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    projects: BTreeMap<RelPath, Entry>,
    /// Everything in the lock, by place.
    pub(super) entries: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    lockfile_version: u32,
    packages: Option<Once<Entry>>,
}

/// Holds one entry of `packages`, in the lock or in the copy that npm keeps inside `node_modules`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Entry {
    pub(crate) name: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) resolved: Option<String>,
    pub(crate) integrity: Option<String>,
    pub(crate) link: bool,
    pub(crate) in_bundle: bool,
    pub(crate) extraneous: bool,
    pub(crate) has_install_script: bool,
    dev: bool,
    optional: bool,
    dev_optional: bool,
    peer: bool,
    os: Option<serde_json::Value>,
    cpu: Option<serde_json::Value>,
    libc: Option<serde_json::Value>,
    pub(crate) bin: BTreeMap<String, String>,
    dependencies: Once<String>,
    dev_dependencies: Once<String>,
    optional_dependencies: Once<String>,
    peer_dependencies: Once<String>,
    workspaces: Option<serde_json::Value>,
}

impl Entry {
    /// Says whether a package at a place comes in the tarball of the one in whose `node_modules` it lies. What the project
    /// itself bundles is installed like anything else.
    pub(crate) fn comes_bundled(&self, place: &str) -> bool {
        let above = place.rsplit_once("node_modules/").map_or("", |(above, _)| above);
        self.in_bundle && above.split('/').any(|part| part == "node_modules")
    }
}

/// Holds what a `package.json` declares; its other keys are free.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Project {
    pub(super) name: Option<String>,
    pub(super) dependencies: Once<String>,
    pub(super) dev_dependencies: Once<String>,
    pub(super) optional_dependencies: Once<String>,
    pub(super) peer_dependencies: Once<String>,
    /// What Yarn takes in the place of what packages ask for.
    pub(super) resolutions: Once<String>,
    pub(super) workspaces: Option<serde_json::Value>,
}

impl Project {
    /// Reads the `package.json` of a directory.
    pub(super) fn read(lock: &Lockfile, declared: &Declared, home: &RelPath) -> Result<Project, Refusal> {
        let text = manifest(lock, declared, home, "package.json")?;
        // npm, pnpm and Yarn all take a byte order mark away.
        serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(|e| {
            incomplete(&lock.path, "has a manifest that does not parse")
                .names([format!("{home}/package.json"), e.to_string()])
        })
    }

    /// Names the patterns of its workspaces.
    pub(super) fn patterns(&self) -> Vec<&str> {
        let list = match &self.workspaces {
            Some(serde_json::Value::Object(map)) => map.get("packages").and_then(serde_json::Value::as_array),
            Some(other) => other.as_array(),
            None => None,
        };
        list.into_iter()
            .flatten()
            .filter_map(serde_json::Value::as_str)
            .collect()
    }
}

/// Reads the places of a package-lock.json, or of the copy that npm keeps inside `node_modules`.
pub(crate) fn places(text: &str) -> Result<BTreeMap<String, Entry>, String> {
    let file: File = serde_json::from_str(text).map_err(|e| e.to_string())?;
    Ok(file.packages.ok_or("no packages")?.0)
}

/// Parses package-lock.json into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    let file: File = serde_json::from_str(text)
        .map_err(|e| incomplete(&lock.path, "does not parse").name(e.to_string()))?;
    if !(2..=3).contains(&file.lockfile_version) {
        let version = file.lockfile_version.to_string();
        return Err(incomplete(&lock.path, "is of a version that is not supported").name(version));
    }
    let packages = file
        .packages
        .ok_or_else(|| incomplete(&lock.path, "names no package"))?
        .0;
    if !packages.contains_key("") {
        return Err(incomplete(&lock.path, "does not say what it was made from"));
    }
    let mut facts = Facts::default();
    for (place, entry) in &packages {
        if !place.split('/').any(|part| part == "node_modules") {
            let home = resolve(&lock.directory(), place).ok_or_else(|| {
                incomplete(&lock.path, "takes a package from outside of the tree").name(place)
            })?;
            facts.projects.insert(home, entry.clone());
            continue;
        }
        let package = package(lock, &packages, place, entry)?;
        if package.artifacts.iter().any(|a| a.algorithm == Algorithm::Sha1) {
            lock.weak
                .push(format!("{}: {place} is bound by SHA-1 alone", lock.path));
        }
        lock.packages.push(package);
    }
    close(lock, &packages)?;
    facts.entries = packages;
    lock.facts = AnyFacts::Npm(Box::new(facts));
    Ok(())
}

fn package(
    lock: &Lockfile,
    all: &BTreeMap<String, Entry>,
    place: &str,
    entry: &Entry,
) -> Result<Package, Refusal> {
    let wrong = |why: &str| incomplete(&lock.path, why).name(place);
    if entry.extraneous {
        return Err(wrong("holds a package that nothing asks for"));
    }
    let base = place.rsplit_once("node_modules/").map_or(place, |(_, name)| name);
    let mut artifacts = Vec::new();
    let source = if entry.link {
        let target = entry.resolved.as_deref().unwrap_or("");
        if !all.contains_key(target) {
            return Err(wrong("links a package that it does not hold"));
        }
        let inside = resolve(&lock.directory(), target);
        Source::Local(inside.ok_or_else(|| wrong("takes a package from outside of the tree"))?)
    } else if entry.comes_bundled(place) {
        Source::Bundled
    } else {
        let from = entry.resolved.as_deref().unwrap_or("");
        let name = entry.name.as_deref().unwrap_or(base);
        fetchable::check(name, entry.version.as_deref().unwrap_or(""), from)
            .map_err(|why| wrong(why).name(from))?;
        if let Some(path) = from.strip_prefix("file:") {
            resolve(&lock.directory(), path)
                .ok_or_else(|| wrong("takes a package from outside of the tree"))?;
        }
        let integrity = entry
            .integrity
            .as_deref()
            .ok_or_else(|| wrong("has a package without an integrity"))?;
        artifacts = digests(integrity, from).ok_or_else(|| wrong("has an integrity that is not whole"))?;
        if !belongs(from, entry.version.as_deref().unwrap_or("")) {
            return Err(wrong("gives a package the artifact of another one").name(from));
        }
        Source::Hashed
    };
    if !entry.link && entry.version.is_none() {
        return Err(wrong("has a package without a version"));
    }
    let mut dependencies = edges(&entry.dependencies, &Scope::Always);
    dependencies.extend(edges(
        &entry.optional_dependencies,
        &Scope::Optional(String::new()),
    ));
    Ok(Package {
        name: entry.name.clone().unwrap_or_else(|| base.to_owned()),
        version: entry.version.clone(),
        source,
        artifacts,
        dependencies,
        place: Some(place.to_owned()),
        scope: if entry.optional || entry.dev_optional || entry.peer {
            Scope::Optional(String::new())
        } else if entry.dev {
            Scope::Dev("dev".to_owned())
        } else {
            Scope::Always
        },
        condition: condition(entry),
    })
}

/// Makes edges out of names; npm finds them by place.
fn edges(map: &Once<String>, scope: &Scope) -> Vec<Dependency> {
    let edge = |name: &String| Dependency {
        name: name.clone(),
        version: None,
        extras: Vec::new(),
        scope: scope.clone(),
        marker: None,
    };
    map.0.keys().map(edge).collect()
}

/// Writes `os`, `cpu` and `libc` as one condition.
fn condition(entry: &Entry) -> Option<String> {
    let part = |(key, value): (&str, &Option<serde_json::Value>)| -> Option<String> {
        let value = value.as_ref()?;
        let list = value
            .as_array()
            .map_or(core::slice::from_ref(value), Vec::as_slice);
        let names: Vec<&str> = list.iter().filter_map(serde_json::Value::as_str).collect();
        Some(format!("{key}={}", names.join("|")))
    };
    let all = [("os", &entry.os), ("cpu", &entry.cpu), ("libc", &entry.libc)];
    let parts: Vec<String> = all.into_iter().filter_map(part).collect();
    (!parts.is_empty()).then(|| parts.join(" & "))
}

/// Reads a subresource integrity: the strongest algorithm alone counts, as npm has it.
pub(super) fn digests(integrity: &str, name: &str) -> Option<Vec<Artifact>> {
    let mut all = Vec::new();
    for part in integrity.split_whitespace() {
        let (algorithm, coded) = part.split('?').next()?.split_once('-')?;
        let algorithm = Algorithm::parse(algorithm)?;
        let digest = BASE64_STANDARD
            .decode(coded)
            .ok()
            .filter(|d| d.len() == algorithm.bytes())?;
        all.push(Artifact {
            name: name.to_owned(),
            algorithm,
            digest,
            size_bytes: None,
        });
    }
    let best = all.iter().map(|a| a.algorithm).max()?;
    all.retain(|a| a.algorithm == best);
    Some(all)
}

/// Says whether a tarball of a registry is named after this version; other addresses say nothing.
pub(super) fn belongs(resolved: &str, version: &str) -> bool {
    let path = resolved.split(['#', '?']).next().unwrap_or(resolved);
    let Some((_, file)) = path.split_once("/-/") else {
        return true;
    };
    let plain = version.split('+').next().unwrap_or(version);
    file.strip_suffix(".tgz")
        .is_none_or(|stem| stem.ends_with(&format!("-{plain}")) || stem.ends_with(&format!("-{version}")))
}

/// Proves that every dependency is found by walking up, as Node does.
fn close(lock: &Lockfile, all: &BTreeMap<String, Entry>) -> Result<(), Refusal> {
    for (place, entry) in all {
        if entry.link {
            continue;
        }
        let project = !place.split('/').any(|part| part == "node_modules");
        let dev = project.then_some(&entry.dev_dependencies);
        for name in core::iter::once(&entry.dependencies)
            .chain(dev)
            .flat_map(|map| map.0.keys())
        {
            // npm leaves out what is optional for its owner, and what is bundled without being listed.
            let lenient = entry.optional_dependencies.0.contains_key(name) || entry.in_bundle;
            if !lenient && !found(all, place, name) {
                let owner = if place.is_empty() { "the project" } else { place };
                return Err(incomplete(&lock.path, "names a dependency that it does not hold")
                    .name(format!("{name} of {owner}")));
            }
        }
    }
    Ok(())
}

fn found(all: &BTreeMap<String, Entry>, place: &str, name: &str) -> bool {
    lookup(all, place, name).is_some()
}

/// Finds where Node finds a dependency: in the nearest `node_modules` on the way up.
fn lookup<'a>(all: &'a BTreeMap<String, Entry>, place: &str, name: &str) -> Option<(&'a String, &'a Entry)> {
    let mut at = place;
    loop {
        let slash = if at.is_empty() { "" } else { "/" };
        let hit = all.get_key_value(&format!("{at}{slash}node_modules/{name}"));
        if hit.is_some() || at.is_empty() {
            return hit;
        }
        at = at.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
}

/// Names the places that an install fills on every platform.
///
/// npm's own `dev` and `optional` marks are not used: it leaves them out for what only a bundle has a use for.
pub(super) fn certain<'a>(facts: &'a Facts, selection: &Selection) -> BTreeSet<&'a str> {
    let all = &facts.entries;
    let mut places = BTreeSet::new();
    let mut queue: Vec<&str> = vec![""];
    queue.extend(all.iter().filter(|(_, e)| e.link).map(|(at, _)| at.as_str()));
    let mut seen = BTreeSet::new();
    while let Some(at) = queue.pop() {
        let Some(entry) = all.get(at).filter(|_| seen.insert(at)) else {
            continue;
        };
        if at.split('/').any(|part| part == "node_modules") {
            if entry.in_bundle || entry.os.is_some() || entry.cpu.is_some() || entry.libc.is_some() {
                continue;
            }
            places.insert(at);
        }
        if entry.link {
            queue.extend(entry.resolved.as_deref());
            continue;
        }
        let project = !at.split('/').any(|part| part == "node_modules");
        let dev = (project && selection.groups.contains("dev")).then_some(&entry.dev_dependencies);
        let names = core::iter::once(&entry.dependencies)
            .chain(dev)
            .flat_map(|map| map.0.keys());
        let needed = names.filter(|name| !entry.optional_dependencies.0.contains_key(*name));
        queue.extend(
            needed
                .filter_map(|name| lookup(all, at, name))
                .map(|(to, _)| to.as_str()),
        );
    }
    places
}

/// Compares each project in the lock with its `package.json`.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    for (home, locked) in &facts.projects {
        let file = Project::read(lock, declared, home)?;
        let root = *home == lock.directory();
        let wanted = wishes([
            &file.dependencies,
            &file.optional_dependencies,
            &file.dev_dependencies,
            &file.peer_dependencies,
        ]);
        let have = wishes([
            &locked.dependencies,
            &locked.optional_dependencies,
            &locked.dev_dependencies,
            &locked.peer_dependencies,
        ]);
        let what = if root {
            "its dependencies".to_owned()
        } else {
            format!("the dependencies of {home}")
        };
        same_set(lock, &what, &have, &wanted)?;
        if root && locked.workspaces != file.workspaces {
            return Err(incomplete(
                &lock.path,
                "differs from the manifest in its workspaces",
            ));
        }
    }
    Ok(Vec::new())
}

/// Lists what is wished for; npm moves what stands in two sections into one: optional wins over plain.
fn wishes([plain, optional, dev, peer]: [&Once<String>; 4]) -> BTreeSet<String> {
    let alone = plain.0.iter().filter(|(name, _)| !optional.0.contains_key(*name));
    let mut all: BTreeSet<String> = alone.map(|(name, range)| format!("{name}@{range}")).collect();
    for (word, map) in [("optional", optional), ("dev", dev), ("peer", peer)] {
        all.extend(map.0.iter().map(|(name, range)| format!("{word} {name}@{range}")));
    }
    all
}
