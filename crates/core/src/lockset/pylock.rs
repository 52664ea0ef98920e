//! pylock.toml: the files of PEP 751, with hashes, and no graph that anybody has to write.
//!
//! A file cut behind a whole package is a valid smaller one, so that is always named as weak.

use super::marker::Setting;
use super::pep::normal_name;
use super::python::{self, Root};
use super::uv_inputs::{self, Needs};
use super::{
    Algorithm, Artifact, Declared, Dependency, Facts as AnyFacts, Format, Lockfile, Package, Scope, Source,
    incomplete,
};
use crate::code::Refusal;
use crate::digest::from_hex;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Holds what the lock says about its own inputs.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    setting: Setting,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    lock_version: String,
    #[serde(rename = "created-by")]
    _created_by: String,
    requires_python: Option<String>,
    #[serde(default)]
    packages: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    version: Option<String>,
    marker: Option<String>,
    #[serde(default)]
    dependencies: Vec<Edge>,
    vcs: Option<toml::Value>,
    directory: Option<Directory>,
    archive: Option<FileEntry>,
    sdist: Option<FileEntry>,
    #[serde(default)]
    wheels: Vec<FileEntry>,
}

#[derive(Deserialize)]
struct Edge {
    name: String,
    version: Option<String>,
    marker: Option<String>,
}

#[derive(Deserialize)]
struct Directory {
    path: String,
}

#[derive(Deserialize)]
struct FileEntry {
    name: Option<String>,
    url: Option<String>,
    path: Option<String>,
    size: Option<u64>,
    #[serde(default)]
    hashes: BTreeMap<String, String>,
}

/// Parses pylock.toml into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    let file: File = python::toml(lock, text)?;
    if !file.lock_version.starts_with("1.") {
        return Err(incomplete(&lock.path, "is of a version that is not known").name(&file.lock_version));
    }
    if file.packages.is_empty() {
        return Err(incomplete(&lock.path, "names no package"));
    }
    for entry in &file.packages {
        let package = package(lock, entry)?;
        lock.packages.push(package);
    }
    let setting = file
        .requires_python
        .as_deref()
        .map(Setting::of_python)
        .unwrap_or_default();
    super::graph::Graph::new(lock).edges(|_, edge| python::lost(&setting, edge.marker.as_deref()))?;
    lock.facts = AnyFacts::Pylock(Box::new(Facts { setting }));
    lock.say_weak();
    Ok(())
}

fn package(lock: &Lockfile, entry: &Entry) -> Result<Package, Refusal> {
    let name = normal_name(&entry.name);
    let shown = format!(
        "{} {}",
        entry.name,
        entry.version.as_deref().unwrap_or("(no version)")
    );
    let wrong = |why: &str| incomplete(&lock.path, why).name(&shown);
    if entry.vcs.is_some() {
        return Err(wrong("takes a package from version control, which no hash binds"));
    }
    let mut artifacts: Vec<Artifact> = Vec::new();
    let mut seen = BTreeSet::new();
    let listed = entry.sdist.iter().chain(&entry.wheels).count();
    let source = match (&entry.directory, &entry.archive) {
        (Some(directory), None) if listed == 0 => {
            Source::Local(python::inside(lock, &directory.path, &shown)?)
        }
        (None, Some(archive)) if listed == 0 => {
            artifacts.push(artifact(lock, archive, &shown)?);
            Source::Hashed
        }
        (None, None) if listed > 0 => {
            for file in entry.sdist.iter().chain(&entry.wheels) {
                let artifact = artifact(lock, file, &shown)?;
                if let Some(version) = &entry.version {
                    let place = file.name.as_deref().unwrap_or(&artifact.name);
                    python::belongs(lock, &name, version, place)?;
                }
                if !seen.insert((artifact.name.clone(), artifact.digest.clone())) {
                    return Err(wrong("holds an artifact twice"));
                }
                artifacts.push(artifact);
            }
            Source::Hashed
        }
        (None, None) => return Err(wrong("has a package without any artifact")),
        _ => return Err(wrong("has a package of several sources")),
    };
    let edge = |edge: &Edge| Dependency {
        name: normal_name(&edge.name),
        version: edge.version.clone(),
        extras: Vec::new(),
        scope: Scope::Always,
        marker: edge.marker.clone(),
    };
    Ok(Package {
        name,
        version: entry.version.clone(),
        source,
        artifacts,
        dependencies: entry.dependencies.iter().map(edge).collect(),
        place: None,
        scope: Scope::Always,
        condition: entry.marker.clone(),
    })
}

fn artifact(lock: &Lockfile, file: &FileEntry, shown: &str) -> Result<Artifact, Refusal> {
    let name = file.url.as_ref().or(file.path.as_ref()).or(file.name.as_ref());
    let name = name.cloned().unwrap_or_default();
    let wrong = |why: &str| incomplete(&lock.path, why).names([shown, &name]);
    if let Some(path) = file.path.as_ref().filter(|_| file.url.is_none()) {
        python::inside(lock, path, shown)?;
    }
    let mut best: Option<(Algorithm, Vec<u8>)> = None;
    for (algorithm, hex) in &file.hashes {
        let Some(algorithm) = Algorithm::parse(algorithm).filter(|a| *a != Algorithm::Sha1) else {
            continue;
        };
        let digest = from_hex(hex).filter(|d| d.len() == algorithm.bytes());
        let digest = digest.ok_or_else(|| wrong("has an artifact without a whole hash").name(hex))?;
        // SHA-256 is what every index gives; a longer one counts where it stands alone.
        if best.as_ref().is_none_or(|(b, _)| algorithm < *b) {
            best = Some((algorithm, digest));
        }
    }
    let (algorithm, digest) = best.ok_or_else(|| wrong("has an artifact without a hash"))?;
    Ok(Artifact {
        name,
        algorithm,
        digest,
        size_bytes: file.size,
    })
}

/// Compares with what the project beside it always needs; the format itself names no input.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    let none = || Ok(vec![format!("{}: no declared inputs lie beside it", lock.path)]);
    let usual = lock
        .path
        .split_last()
        .is_some_and(|(_, name)| name == Format::Pylock.file_name().as_bytes());
    if !usual {
        return none();
    }
    let texts = match uv_inputs::needs(lock, declared)? {
        None => return none(),
        Some(Needs::Computed) => {
            return Ok(vec![format!(
                "{}: the dependencies of the project beside it are computed, not declared",
                lock.path
            )]);
        }
        Some(Needs::Listed(texts)) => texts,
    };
    for text in &texts {
        let root = Root::of(lock, text)?;
        let held = lock.packages.iter().any(|p| p.name == root.name);
        // A lock of pip is for one platform: what has a marker may have been left out.
        if !held
            && root
                .marker
                .as_deref()
                .is_none_or(|m| facts.setting.holds(m) == super::marker::Holds::Yes)
        {
            return Err(incomplete(&lock.path, "lacks a declared dependency")
                .names([text.as_str(), "pyproject.toml"]));
        }
    }
    Ok(Vec::new())
}
