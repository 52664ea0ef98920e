//! pdm.lock: a graph with a hash for each file, and the digest of the manifest at its beginning.
//!
//! PDM writes a package with extras as an entry of its own; here its dependencies belong to the package itself.

use super::graph::Graph;
use super::json::{Value, Writer, write};
use super::marker::Setting;
use super::pep::normal_name;
use super::python::{self, FileEntry, Root};
use super::{Declared, Facts as AnyFacts, Lockfile, Package, Scope, Source, incomplete};
use crate::code::Refusal;
use crate::digest::Sha256;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Holds what the lock says about its own inputs.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    content_hash: String,
    groups: BTreeSet<String>,
    setting: Setting,
    /// Which extras of which packages have an entry.
    extras: BTreeSet<(String, BTreeSet<String>)>,
    edges: Vec<Vec<usize>>,
}

#[derive(Deserialize)]
struct File {
    metadata: Metadata,
    #[serde(default, rename = "package")]
    packages: Vec<Entry>,
}

#[derive(Deserialize)]
struct Metadata {
    groups: Vec<String>,
    lock_version: String,
    content_hash: String,
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    requires_python: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    version: String,
    #[serde(default)]
    extras: BTreeSet<String>,
    #[serde(default)]
    groups: Vec<String>,
    marker: Option<String>,
    #[serde(default)]
    dependencies: Vec<String>,
    #[serde(default)]
    files: Vec<FileEntry>,
    path: Option<String>,
    git: Option<String>,
    hg: Option<String>,
    url: Option<String>,
}

/// Parses pdm.lock into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    let file: File = python::toml(lock, text)?;
    let version = &file.metadata.lock_version;
    if !version.starts_with("4.") {
        return Err(incomplete(&lock.path, "is of a version that is not supported").name(version));
    }
    let hash = file.metadata.content_hash.strip_prefix("sha256:").unwrap_or("");
    if hash.len() != 64 || crate::digest::from_hex(hash).is_none() {
        let hash = &file.metadata.content_hash;
        return Err(incomplete(&lock.path, "has a content_hash that is not whole").name(hash));
    }
    let targets = &file.metadata.targets;
    let setting = match targets.as_slice() {
        [one] => one
            .requires_python
            .as_deref()
            .map(Setting::of_python)
            .unwrap_or_default(),
        _ => Setting::default(),
    };
    let (plain, with): (Vec<&Entry>, Vec<&Entry>) = file.packages.iter().partition(|e| e.extras.is_empty());
    for entry in plain {
        let package = package(lock, entry)?;
        lock.packages.push(package);
    }
    let place = |(at, p): (usize, &Package)| ((p.name.clone(), p.version.clone().unwrap_or_default()), at);
    let places: BTreeMap<(String, String), usize> = lock.packages.iter().enumerate().map(place).collect();
    let mut extras = BTreeSet::new();
    for entry in with {
        merge(lock, &places, entry)?;
        let names: BTreeSet<String> = entry.extras.iter().map(|e| normal_name(e)).collect();
        if !extras.insert((normal_name(&entry.name), names)) {
            return Err(incomplete(&lock.path, "holds an entry twice").name(shown(entry)));
        }
    }
    let edges = Graph::new(lock).edges(|_, edge| python::lost(&setting, edge.marker.as_deref()))?;
    for edge in lock.packages.iter().flat_map(|p| &p.dependencies) {
        asked(
            lock,
            &extras,
            &setting,
            &edge.name,
            &edge.extras,
            edge.marker.as_deref(),
        )?;
    }
    lock.facts = AnyFacts::Pdm(Box::new(Facts {
        content_hash: hash.to_owned(),
        groups: file.metadata.groups.iter().map(|g| normal_name(g)).collect(),
        setting,
        extras,
        edges,
    }));
    Ok(())
}

fn shown(entry: &Entry) -> String {
    let extras: Vec<&str> = entry.extras.iter().map(String::as_str).collect();
    match extras.as_slice() {
        [] => format!("{} {}", entry.name, entry.version),
        all => format!("{}[{}] {}", entry.name, all.join(","), entry.version),
    }
}

fn package(lock: &Lockfile, entry: &Entry) -> Result<Package, Refusal> {
    let name = normal_name(&entry.name);
    let mut artifacts = Vec::new();
    let source = match (&entry.git, &entry.hg, &entry.path) {
        (None, None, Some(path)) if entry.files.is_empty() => {
            Source::Local(python::inside(lock, path, &shown(entry))?)
        }
        (None, None, path) => {
            if let Some(path) = path {
                python::inside(lock, path, &shown(entry))?;
            }
            let by_url = entry.url.is_some() && entry.files.iter().all(|f| f.hash.is_none());
            if by_url {
                return Err(incomplete(&lock.path, "has an artifact without a hash").name(shown(entry)));
            }
            artifacts = python::files(lock, &name, &entry.version, &entry.files)?;
            Source::Hashed
        }
        _ => {
            return Err(
                incomplete(&lock.path, "takes a package from git, which no hash binds").name(shown(entry)),
            );
        }
    };
    let default = entry.groups.is_empty() || entry.groups.iter().any(|g| g == "default");
    Ok(Package {
        name,
        version: Some(entry.version.clone()),
        source,
        artifacts,
        dependencies: python::edges(lock, &entry.dependencies, &Scope::Always)?,
        place: None,
        scope: match entry.groups.first() {
            Some(group) if !default => Scope::Dev(normal_name(group)),
            _ => Scope::Always,
        },
        condition: entry.marker.clone(),
    })
}

/// Gives the dependencies of an entry with extras to the package without them.
fn merge(
    lock: &mut Lockfile,
    places: &BTreeMap<(String, String), usize>,
    entry: &Entry,
) -> Result<(), Refusal> {
    let name = normal_name(&entry.name);
    let Some(at) = places.get(&(name.clone(), entry.version.clone())).copied() else {
        return Err(incomplete(&lock.path, "names a dependency that it does not hold")
            .name(format!("{name} of {}", shown(entry))));
    };
    if lock.packages[at].source == Source::Hashed {
        let files = python::files(lock, &name, &entry.version, &entry.files)?;
        if files != lock.packages[at].artifacts {
            return Err(incomplete(&lock.path, "gives one package two sets of artifacts").name(shown(entry)));
        }
    }
    let names: Vec<String> = entry.extras.iter().map(|e| normal_name(e)).collect();
    let edges = python::edges(lock, &entry.dependencies, &Scope::Optional(names.join(",")))?;
    let own = |name: &str| edges.iter().any(|e| e.name == name);
    if !own(&name) {
        return Err(incomplete(
            &lock.path,
            "has an entry with extras that does not name its own package",
        )
        .name(shown(entry)));
    }
    let others = edges.into_iter().filter(|e| e.name != name);
    lock.packages[at].dependencies.extend(others);
    Ok(())
}

/// Proves that extras that are asked for have an entry.
fn asked(
    lock: &Lockfile,
    extras: &BTreeSet<(String, BTreeSet<String>)>,
    setting: &Setting,
    name: &str,
    wanted: &[String],
    marker: Option<&str>,
) -> Result<(), Refusal> {
    let set: BTreeSet<String> = wanted.iter().cloned().collect();
    let needless = set.is_empty() || python::lost(setting, marker) == super::graph::Lost::Allowed;
    if needless || extras.contains(&(name.to_owned(), set)) {
        return Ok(());
    }
    Err(incomplete(&lock.path, "names a dependency that it does not hold")
        .name(format!("{name}[{}]", wanted.join(","))))
}

/// Compares the digest of the manifest, and what it asks for in the groups that are locked.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    let file = python::table(lock, declared, "pyproject.toml")?;
    let made: Vec<String> = ["resolution", "overrides"]
        .iter()
        .filter_map(|key| digest(&file, key))
        .collect();
    python::same_digest(lock, "pyproject.toml", &facts.content_hash, &made)?;
    let own = python::at(&file, &["project", "name"])
        .and_then(toml::Value::as_str)
        .map(normal_name);
    let (mut roots, unlocked) = wanted(lock, facts, &groups(&file), own.as_ref())?;
    let weak = unlocked
        .iter()
        .map(|group| format!("{}: {}: {group}", lock.path, super::weak::PDM))
        .collect();
    roots.retain(|root| Some(&root.name) != own.as_ref());
    for root in &roots {
        asked(
            lock,
            &facts.extras,
            &facts.setting,
            &root.name,
            &root.extras,
            root.marker.as_deref(),
        )?;
    }
    python::close(lock, &facts.setting, &roots, &facts.edges)?;
    Ok(weak)
}

/// Lists what the locked groups ask for, and the groups that are declared and not locked.
fn wanted(
    lock: &Lockfile,
    facts: &Facts,
    groups: &BTreeMap<String, Vec<Item>>,
    own: Option<&String>,
) -> Result<(Vec<Root>, Vec<String>), Refusal> {
    let mut roots = Vec::new();
    let graph = Graph::new(lock);
    let mut seen = BTreeSet::new();
    let mut queue: Vec<String> = facts.groups.iter().cloned().collect();
    let mut by_extra = Vec::new();
    while let Some(group) = queue.pop() {
        let Some(items) = groups.get(&group).filter(|_| seen.insert(group.clone())) else {
            continue;
        };
        for item in items {
            match item {
                Item::Group(name) => queue.push(name.clone()),
                Item::Text(text) => {
                    let root = root(lock, text)?;
                    if let Some(root) = root.as_ref().filter(|root| Some(&root.name) == own) {
                        by_extra.extend(root.extras.iter().cloned());
                    }
                    roots.extend(root);
                }
            }
        }
    }
    // A project may ask for extras of its own. PDM locks what they need, but not through two of them.
    while let Some(group) = by_extra.pop() {
        let Some(items) = groups.get(&group).filter(|_| seen.insert(group.clone())) else {
            continue;
        };
        let mut some = Vec::new();
        for item in items {
            if let Item::Text(text) = item {
                some.extend(root(lock, text)?);
            }
        }
        let held = |root: &Root| Some(&root.name) == own || !graph.named(&root.name).is_empty();
        if some.iter().all(held) {
            let more = some.iter().filter(|root| Some(&root.name) == own);
            by_extra.extend(more.flat_map(|root| root.extras.iter().cloned()));
            roots.extend(some);
        } else {
            seen.remove(&group);
        }
    }
    let unlocked = groups
        .keys()
        .filter(|group| !seen.contains(*group))
        .cloned()
        .collect();
    Ok((roots, unlocked))
}

/// Reads a requirement, or `-e PATH#egg=NAME`.
fn root(lock: &Lockfile, text: &str) -> Result<Option<Root>, Refusal> {
    match text.strip_prefix("-e ") {
        Some(path) => Ok(path.split_once("#egg=").map(|(_, name)| Root {
            name: normal_name(name.split('[').next().unwrap_or(name)),
            extras: Vec::new(),
            marker: None,
        })),
        None => Root::of(lock, text).map(Some),
    }
}

/// Is what a group may list.
enum Item {
    Text(String),
    Group(String),
}

/// Lists what every group that the manifest declares asks for.
fn groups(file: &toml::Table) -> BTreeMap<String, Vec<Item>> {
    let mut all: BTreeMap<String, Vec<Item>> = BTreeMap::new();
    let items = |list: Option<&toml::Value>| -> Vec<Item> {
        let item = |value: &toml::Value| match value {
            toml::Value::String(text) => Some(Item::Text(text.clone())),
            other => other
                .get("include-group")
                .and_then(toml::Value::as_str)
                .map(|name| Item::Group(normal_name(name))),
        };
        list.and_then(toml::Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(item)
            .collect()
    };
    all.insert(
        "default".to_owned(),
        items(python::at(file, &["project", "dependencies"])),
    );
    for place in [
        &["project", "optional-dependencies"][..],
        &["dependency-groups"],
        &["tool", "pdm", "dev-dependencies"],
    ] {
        let table = python::at(file, place).and_then(toml::Value::as_table);
        for (name, list) in table.into_iter().flatten() {
            all.entry(normal_name(name))
                .or_default()
                .extend(items(Some(list)));
        }
    }
    all
}

/// Computes PDM's digest of a manifest; older ones took `overrides` alone out of `resolution`.
fn digest(file: &toml::Table, last: &str) -> Option<String> {
    let mut dev: Vec<(String, Value)> = Vec::new();
    for place in [&["dependency-groups"][..], &["tool", "pdm", "dev-dependencies"]] {
        let table = python::at(file, place).and_then(toml::Value::as_table);
        for (name, list) in table.into_iter().flatten() {
            let name = normal_name(name);
            let items = Value::of_toml(list)?.items().to_vec();
            match dev.iter_mut().find(|(n, _)| *n == name) {
                Some((_, Value::List(all))) => all.extend(items),
                _ => dev.push((name, Value::List(items))),
            }
        }
    }
    let none = || Value::Map(Vec::new());
    let pick = |path: &[&str], empty: Value| python::value_or(python::at(file, path), empty);
    let resolution = match last {
        "overrides" => pick(&["tool", "pdm", "resolution", "overrides"], none())?,
        _ => pick(&["tool", "pdm", "resolution"], none())?,
    };
    let whole = Value::Map(vec![
        (
            "sources".to_owned(),
            pick(&["tool", "pdm", "source"], Value::List(Vec::new()))?,
        ),
        (
            "dependencies".to_owned(),
            pick(&["project", "dependencies"], Value::List(Vec::new()))?,
        ),
        ("dev-dependencies".to_owned(), Value::Map(dev)),
        (
            "optional-dependencies".to_owned(),
            pick(&["project", "optional-dependencies"], none())?,
        ),
        (
            "requires-python".to_owned(),
            pick(&["project", "requires-python"], Value::Text(String::new()))?,
        ),
        (last.to_owned(), resolution),
    ]);
    Some(Sha256::of(write(&whole, Writer::Python)?.as_bytes()).to_string())
}
