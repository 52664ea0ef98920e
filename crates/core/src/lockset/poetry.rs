//! poetry.lock: a graph with a hash for each file, and the digest of the manifest at its end.

use super::graph::{Graph, Lost};
use super::json::{Value, Writer, write};
use super::marker::Setting;
use super::pep::{extra_of, normal_name};
use super::python::{self, FileEntry, Root};
use super::{Declared, Dependency, Facts as AnyFacts, Lockfile, Package, Scope, Source, incomplete};
use crate::code::Refusal;
use crate::digest::Sha256;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Holds what the lock says about its own inputs.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    content_hash: String,
    setting: Setting,
    /// Before 2.3 the digest left dependency groups out.
    without_groups: Groups,
    edges: Vec<Vec<usize>>,
}

/// Says whether the digest may leave dependency groups out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Groups {
    Counted,
    MayBeLeftOut,
}

#[derive(Deserialize)]
struct File {
    #[serde(default, rename = "package")]
    packages: Vec<Entry>,
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Metadata {
    lock_version: String,
    python_versions: String,
    content_hash: String,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    version: String,
    optional: bool,
    #[serde(default)]
    groups: Vec<String>,
    markers: Option<toml::Value>,
    files: Vec<FileEntry>,
    #[serde(default)]
    dependencies: BTreeMap<String, toml::Value>,
    source: Option<Origin>,
}

#[derive(Deserialize)]
struct Origin {
    r#type: String,
    url: String,
}

/// Parses poetry.lock into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    let file: File = python::toml(lock, text)?;
    let version = &file.metadata.lock_version;
    if !version.starts_with("2.") {
        return Err(incomplete(&lock.path, "is of a version that is not supported").name(version));
    }
    let hash = &file.metadata.content_hash;
    if hash.len() != 64 || crate::digest::from_hex(hash).is_none() {
        return Err(incomplete(&lock.path, "has a content-hash that is not whole").name(hash));
    }
    for entry in &file.packages {
        let package = package(lock, entry)?;
        lock.packages.push(package);
    }
    let setting = Setting::of_python(&file.metadata.python_versions);
    let edges = Graph::new(lock).edges(|_, edge| match edge.scope {
        // An extra of a package that nobody asks for is listed, and not locked.
        Scope::Optional(_) => Lost::Allowed,
        Scope::Always | Scope::Dev(_) => python::lost(&setting, edge.marker.as_deref()),
    })?;
    extras_are_there(lock, &setting)?;
    lock.facts = AnyFacts::Poetry(Box::new(Facts {
        content_hash: file.metadata.content_hash,
        setting,
        without_groups: writer(text),
        edges,
    }));
    Ok(())
}

/// Reads which Poetry wrote the file, from its first line.
fn writer(text: &str) -> Groups {
    let first = text.lines().next().unwrap_or("");
    let version = first
        .split_once("Poetry ")
        .and_then(|(_, rest)| rest.split(' ').next());
    let mut parts = version.unwrap_or("").split('.').map(|p| p.parse::<u64>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) < (2, 3) => Groups::MayBeLeftOut,
        _ => Groups::Counted,
    }
}

fn package(lock: &Lockfile, entry: &Entry) -> Result<Package, Refusal> {
    let name = normal_name(&entry.name);
    let shown = format!("{} {}", entry.name, entry.version);
    let mut artifacts = Vec::new();
    let kind = entry.source.as_ref().map_or("legacy", |s| s.r#type.as_str());
    let url = entry.source.as_ref().map_or("", |s| s.url.as_str());
    let source = match kind {
        "legacy" => {
            artifacts = python::files(lock, &name, &entry.version, &entry.files)?;
            Source::Hashed
        }
        "url" | "file" => {
            if kind == "file" {
                python::inside(lock, url, &shown)?;
            }
            artifacts = python::files(lock, &name, &entry.version, &entry.files)?;
            Source::Hashed
        }
        "directory" => Source::Local(python::inside(lock, url, &shown)?),
        _ => {
            return Err(
                incomplete(&lock.path, "takes a package from where no hash binds it")
                    .names([shown, kind.to_owned()]),
            );
        }
    };
    let mut dependencies = Vec::new();
    for (name, value) in &entry.dependencies {
        match value {
            toml::Value::Array(all) => {
                for one in all {
                    dependencies.push(edge(lock, &shown, name, one)?);
                }
            }
            one => dependencies.push(edge(lock, &shown, name, one)?),
        }
    }
    let markers = match &entry.markers {
        None => None,
        Some(toml::Value::String(text)) => Some(text.clone()),
        Some(toml::Value::Table(groups)) => {
            let all: Vec<&str> = groups.values().filter_map(toml::Value::as_str).collect();
            Some(all.join(" or "))
        }
        Some(_) => return Err(incomplete(&lock.path, "has markers that are not understood").name(shown)),
    };
    let main = entry.groups.is_empty() || entry.groups.iter().any(|g| g == "main");
    Ok(Package {
        name,
        version: Some(entry.version.clone()),
        source,
        artifacts,
        dependencies,
        place: None,
        scope: match entry.groups.first() {
            _ if entry.optional => Scope::Optional(markers.as_deref().and_then(extra_of).unwrap_or_default()),
            Some(group) if !main => Scope::Dev(normal_name(group)),
            _ => Scope::Always,
        },
        condition: markers,
    })
}

fn edge(lock: &Lockfile, owner: &str, name: &str, value: &toml::Value) -> Result<Dependency, Refusal> {
    let table = match value {
        toml::Value::String(_) => None,
        toml::Value::Table(table) => Some(table),
        _ => {
            return Err(incomplete(&lock.path, "has a dependency that is not understood")
                .name(format!("{name} of {owner}")));
        }
    };
    let get = |key: &str| table.and_then(|t| t.get(key));
    let marker = get("markers").and_then(toml::Value::as_str);
    let optional = get("optional").and_then(toml::Value::as_bool) == Some(true);
    Ok(Dependency {
        name: normal_name(name),
        version: None,
        extras: python::strings(get("extras"))
            .into_iter()
            .map(normal_name)
            .collect(),
        scope: if optional {
            Scope::Optional(marker.and_then(extra_of).unwrap_or_default())
        } else {
            Scope::Always
        },
        marker: marker.map(str::to_owned),
    })
}

/// Proves that what an extra needs is there, where another package asks for that extra.
fn extras_are_there(lock: &Lockfile, setting: &Setting) -> Result<(), Refusal> {
    let graph = Graph::new(lock);
    for edge in lock.packages.iter().flat_map(|p| &p.dependencies) {
        extra_is_there(lock, &graph, setting, &edge.name, &edge.extras)?;
    }
    Ok(())
}

fn extra_is_there(
    lock: &Lockfile,
    graph: &Graph<'_>,
    setting: &Setting,
    name: &str,
    extras: &[String],
) -> Result<(), Refusal> {
    for at in graph.named(name) {
        for needed in &lock.packages[*at].dependencies {
            let asked = matches!(&needed.scope, Scope::Optional(extra) if extras.contains(extra));
            if asked
                && graph.find(needed).is_empty()
                && python::lost(setting, needed.marker.as_deref()) == Lost::Refused
            {
                return Err(incomplete(&lock.path, "names a dependency that it does not hold")
                    .name(format!("{} of {name}[{}]", needed.name, extras.join(","))));
            }
        }
    }
    Ok(())
}

/// Compares the digest of the manifest, and what it asks for.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    let file = python::table(lock, declared, "pyproject.toml")?;
    let mut made = vec![digest(&file, Groups::Counted)];
    if facts.without_groups == Groups::MayBeLeftOut {
        made.push(digest(&file, Groups::MayBeLeftOut));
    }
    let made: Vec<String> = made.into_iter().flatten().collect();
    python::same_digest(lock, "pyproject.toml", &facts.content_hash, &made)?;
    let roots = roots(lock, &file)?;
    let graph = Graph::new(lock);
    for root in &roots {
        extra_is_there(lock, &graph, &facts.setting, &root.name, &root.extras)?;
    }
    python::close(lock, &facts.setting, &roots, &facts.edges)?;
    Ok(Vec::new())
}

/// Computes Poetry's digest of a manifest.
fn digest(file: &toml::Table, groups: Groups) -> Option<String> {
    const OLD: [&str; 4] = ["dependencies", "source", "extras", "dev-dependencies"];
    let mut project = Vec::new();
    for key in ["requires-python", "dependencies", "optional-dependencies"] {
        if let Some(value) = python::at(file, &["project", key]) {
            project.push((key.to_owned(), Value::of_toml(value)?));
        }
    }
    let groups = match groups {
        Groups::Counted => python::value_or(file.get("dependency-groups"), Value::Map(Vec::new()))?,
        Groups::MayBeLeftOut => Value::Map(Vec::new()),
    };
    let modern = !project.is_empty() || !groups.entries().is_empty();
    let mut poetry = Vec::new();
    for key in OLD.into_iter().chain(["group"]) {
        match python::at(file, &["tool", "poetry", key]) {
            Some(value) => poetry.push((key.to_owned(), Value::of_toml(value)?)),
            None if !modern && OLD.contains(&key) => poetry.push((key.to_owned(), Value::Null)),
            None => {}
        }
    }
    let mut whole = Vec::new();
    if !project.is_empty() {
        whole.push(("project".to_owned(), Value::Map(project)));
    }
    if !groups.entries().is_empty() {
        whole.push(("dependency-groups".to_owned(), groups));
    }
    let whole = if modern {
        let tool = vec![("poetry".to_owned(), Value::Map(poetry))];
        whole.push(("tool".to_owned(), Value::Map(tool)));
        Value::Map(whole)
    } else {
        Value::Map(poetry)
    };
    Some(Sha256::of(write(&whole, Writer::Python)?.as_bytes()).to_string())
}

/// Lists what the manifest asks for, in all the places where it may stand.
fn roots(lock: &Lockfile, file: &toml::Table) -> Result<Vec<Root>, Refusal> {
    let mut all = Vec::new();
    let names = [
        python::at(file, &["project", "name"]),
        python::at(file, &["tool", "poetry", "name"]),
    ];
    let own: Vec<String> = names
        .into_iter()
        .flatten()
        .filter_map(toml::Value::as_str)
        .map(normal_name)
        .collect();
    let mut texts = python::strings(python::at(file, &["project", "dependencies"]));
    for list in [
        python::at(file, &["project", "optional-dependencies"]),
        file.get("dependency-groups"),
    ] {
        for (_, group) in list.and_then(toml::Value::as_table).into_iter().flatten() {
            texts.extend(python::strings(Some(group)));
        }
    }
    for text in texts {
        all.push(Root::of(lock, text)?);
    }
    let listed: BTreeSet<String> = all.iter().map(|r: &Root| r.name.clone()).collect();
    let mut tables = Vec::new();
    tables.extend(python::at(file, &["tool", "poetry", "dependencies"]));
    tables.extend(python::at(file, &["tool", "poetry", "dev-dependencies"]));
    let groups = python::at(file, &["tool", "poetry", "group"]).and_then(toml::Value::as_table);
    tables.extend(
        groups
            .into_iter()
            .flatten()
            .filter_map(|(_, group)| group.get("dependencies")),
    );
    for (name, value) in tables.into_iter().filter_map(toml::Value::as_table).flatten() {
        // One that stands in [project], too, only says here where it comes from.
        if normal_name(name) == "python" || listed.contains(&normal_name(name)) {
            continue;
        }
        let several = [value.clone()];
        for one in value.as_array().map_or(&several[..], Vec::as_slice) {
            let edge = edge(lock, "the project", name, one)?;
            all.push(Root {
                name: edge.name,
                extras: edge.extras,
                marker: edge.marker,
            });
        }
    }
    all.retain(|root| !own.contains(&root.name));
    Ok(all)
}
