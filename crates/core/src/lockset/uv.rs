//! uv.lock: a closed graph whose root carries the requirements it was made from.
//!
//! Unknown keys are let pass, since uv adds some with every revision; the version of the format is not.

use super::pep::normal_name;
use super::python;
use super::{
    Algorithm, Artifact, Dependency, Facts as AnyFacts, Lockfile, Package, Scope, Source, incomplete, label,
    resolve,
};
use crate::code::Refusal;
use crate::digest::from_hex;
use crate::path::RelPath;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Holds what the lock says about its own inputs.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) requires_python: Option<String>,
    pub(super) members: Vec<RelPath>,
    pub(super) manifest: Manifest,
    pub(super) metadata: BTreeMap<RelPath, Metadata>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    version: u32,
    requires_python: Option<String>,
    #[serde(default)]
    manifest: Manifest,
    #[serde(default, rename = "package")]
    packages: Vec<Entry>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Manifest {
    #[serde(default)]
    requirements: Vec<Wanted>,
    #[serde(default)]
    pub(super) dependency_groups: BTreeMap<String, Vec<Wanted>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    name: String,
    version: Option<String>,
    source: Origin,
    #[serde(default)]
    dependencies: Vec<Edge>,
    #[serde(default)]
    optional_dependencies: BTreeMap<String, Vec<Edge>>,
    #[serde(default)]
    dev_dependencies: BTreeMap<String, Vec<Edge>>,
    #[serde(default)]
    resolution_markers: Vec<String>,
    sdist: Option<FileEntry>,
    #[serde(default)]
    wheels: Vec<FileEntry>,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Origin {
    registry: Option<String>,
    url: Option<String>,
    git: Option<String>,
    path: Option<String>,
    directory: Option<String>,
    editable: Option<String>,
    r#virtual: Option<String>,
}

#[derive(Deserialize)]
struct Edge {
    name: String,
    version: Option<String>,
    #[serde(default)]
    extra: Vec<String>,
    marker: Option<String>,
}

#[derive(Deserialize)]
struct FileEntry {
    url: Option<String>,
    path: Option<String>,
    filename: Option<String>,
    hash: Option<String>,
    size: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Metadata {
    #[serde(default)]
    pub(super) requires_dist: Vec<Wanted>,
    #[serde(default)]
    pub(super) requires_dev: BTreeMap<String, Vec<Wanted>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Wanted {
    pub(super) name: String,
    #[serde(default)]
    pub(super) extras: Vec<String>,
    pub(super) specifier: Option<String>,
    pub(super) marker: Option<String>,
}

/// Parses uv.lock into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    if !text.ends_with('\n') {
        return Err(incomplete(&lock.path, "is cut: its last line has no end"));
    }
    let file: File = toml::from_str(text)
        .map_err(|e| incomplete(&lock.path, "does not parse").name(e.message().replace('\n', " ")))?;
    if file.version != 1 {
        let version = file.version.to_string();
        return Err(incomplete(&lock.path, "is of a version that is not known").name(version));
    }
    if file.packages.is_empty() {
        return Err(incomplete(&lock.path, "names no package"));
    }
    let mut facts = Facts {
        requires_python: file.requires_python,
        members: Vec::new(),
        manifest: file.manifest,
        metadata: BTreeMap::new(),
    };
    let last = file.packages.len() - 1;
    for (at, entry) in file.packages.into_iter().enumerate() {
        let metadata = entry.metadata.clone();
        let built = at == last && entry.wheels.is_empty() && entry.sdist.is_some();
        let package = package(lock, entry)?;
        if built {
            let end = label(&package);
            lock.weak
                .push(format!("{}: {}: {end}", lock.path, super::weak::UV));
        }
        if let Source::Local(home) | Source::Virtual(home) = &package.source {
            facts.members.push(home.clone());
            facts.metadata.insert(home.clone(), metadata.unwrap_or_default());
        }
        lock.packages.push(package);
    }
    close(lock, &facts)?;
    lock.facts = AnyFacts::Uv(Box::new(facts));
    Ok(())
}

fn package(lock: &Lockfile, entry: Entry) -> Result<Package, Refusal> {
    let shown = format!(
        "{} {}",
        entry.name,
        entry.version.as_deref().unwrap_or("(no version)")
    );
    let source = source(lock, &entry.source, &shown)?;
    let mut artifacts = Vec::new();
    let hashed = source == Source::Hashed;
    for file in entry.sdist.iter().chain(&entry.wheels) {
        if hashed {
            let artifact = artifact(lock, file, &shown)?;
            if let Some(version) = &entry.version {
                python::belongs(lock, &normal_name(&entry.name), version, &artifact.name)?;
            }
            artifacts.push(artifact);
        }
    }
    if hashed && artifacts.is_empty() {
        return Err(incomplete(&lock.path, "has a package without any artifact").name(shown));
    }
    if hashed && entry.version.is_none() {
        return Err(incomplete(&lock.path, "has a package without a version").name(shown));
    }
    let mut dependencies = Vec::new();
    let mut add = |edges: Vec<Edge>, scope: &Scope| {
        dependencies.extend(edges.into_iter().map(|edge| Dependency {
            name: normal_name(&edge.name),
            version: edge.version,
            extras: edge.extra.iter().map(|e| normal_name(e)).collect(),
            scope: scope.clone(),
            marker: edge.marker,
        }));
    };
    add(entry.dependencies, &Scope::Always);
    for (extra, edges) in entry.optional_dependencies {
        add(edges, &Scope::Optional(normal_name(&extra)));
    }
    for (group, edges) in entry.dev_dependencies {
        add(edges, &Scope::Dev(normal_name(&group)));
    }
    let markers = entry.resolution_markers;
    Ok(Package {
        name: normal_name(&entry.name),
        version: entry.version,
        source,
        artifacts,
        dependencies,
        place: None,
        scope: Scope::Always,
        condition: (!markers.is_empty()).then(|| markers.join(" or ")),
    })
}

fn source(lock: &Lockfile, origin: &Origin, shown: &str) -> Result<Source, Refusal> {
    let inside = |path: &str| {
        resolve(&lock.directory(), path)
            .ok_or_else(|| incomplete(&lock.path, "takes a package from outside of the tree").name(shown))
    };
    if let Some(path) = origin.editable.as_ref().or(origin.directory.as_ref()) {
        return Ok(Source::Local(inside(path)?));
    }
    if let Some(path) = &origin.r#virtual {
        return Ok(Source::Virtual(inside(path)?));
    }
    if origin.git.is_some() {
        return Err(incomplete(&lock.path, "takes a package from git, which no hash binds").name(shown));
    }
    if let Some(path) = &origin.path {
        inside(path)?;
        return Ok(Source::Hashed);
    }
    if origin.registry.is_some() || origin.url.is_some() {
        return Ok(Source::Hashed);
    }
    Err(incomplete(&lock.path, "has a package of an unknown source").name(shown))
}

fn artifact(lock: &Lockfile, file: &FileEntry, shown: &str) -> Result<Artifact, Refusal> {
    let name = file
        .url
        .as_ref()
        .or(file.path.as_ref())
        .or(file.filename.as_ref())
        .cloned()
        .unwrap_or_default();
    let hash = file
        .hash
        .as_deref()
        .ok_or_else(|| incomplete(&lock.path, "has an artifact without a hash").names([shown, &name]))?;
    let parsed = hash.split_once(':').and_then(|(algorithm, hex)| {
        let algorithm = Algorithm::parse(algorithm).filter(|a| *a != Algorithm::Sha1)?;
        let digest = from_hex(hex).filter(|d| d.len() == algorithm.bytes())?;
        Some((algorithm, digest))
    });
    let (algorithm, digest) = parsed.ok_or_else(|| {
        incomplete(&lock.path, "has an artifact without a whole hash").names([shown, &name, hash])
    })?;
    Ok(Artifact {
        name,
        algorithm,
        digest,
        size_bytes: file.size,
    })
}

/// Proves that every name leads somewhere and that nothing stands there for no reason.
fn close(lock: &Lockfile, facts: &Facts) -> Result<(), Refusal> {
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, package) in lock.packages.iter().enumerate() {
        by_name.entry(&package.name).or_default().push(at);
    }
    let find = |name: &str, version: Option<&str>| -> Vec<usize> {
        let all = by_name.get(name).map_or(&[][..], Vec::as_slice);
        let fits = |at: &&usize| version.is_none() || lock.packages[**at].version.as_deref() == version;
        all.iter().filter(fits).copied().collect()
    };
    let last = lock.packages.len() - 1;
    let mut queue: Vec<usize> = Vec::new();
    for (at, package) in lock.packages.iter().enumerate() {
        if !matches!(package.source, Source::Hashed | Source::Bundled) {
            queue.push(at);
        }
        for edge in &package.dependencies {
            let targets = find(&edge.name, edge.version.as_deref());
            if targets.is_empty() {
                return Err(incomplete(&lock.path, "names a dependency that it does not hold")
                    .name(format!("{} of {}", edge.name, label(package))));
            }
            let lacks = |extra: &&String| {
                let has = |d: &Dependency| matches!(&d.scope, Scope::Optional(name) if name == *extra);
                targets == [last] && !lock.packages[last].dependencies.iter().any(has)
            };
            // An extra may be empty; only behind the last package is its absence the sign of a cut.
            if let Some(extra) = edge.extras.iter().find(lacks) {
                return Err(incomplete(
                    &lock.path,
                    "is cut: its last package lacks an extra that is asked of it",
                )
                .name(format!("{}[{extra}]", edge.name)));
            }
        }
    }
    let loose = &facts.manifest;
    for wanted in loose
        .requirements
        .iter()
        .chain(loose.dependency_groups.values().flatten())
    {
        let targets = find(&normal_name(&wanted.name), None);
        if targets.is_empty() {
            return Err(incomplete(&lock.path, "names a dependency that it does not hold").name(&wanted.name));
        }
        queue.extend(targets);
    }
    if queue.is_empty() {
        return Err(incomplete(
            &lock.path,
            "holds no project of its own: it is cut, or of another tool",
        ));
    }
    let mut reached = vec![false; lock.packages.len()];
    while let Some(at) = queue.pop() {
        if core::mem::replace(&mut reached[at], true) {
            continue;
        }
        for edge in &lock.packages[at].dependencies {
            queue.extend(find(&edge.name, edge.version.as_deref()));
        }
    }
    match lock.packages.iter().zip(&reached).find(|(_, reached)| !**reached) {
        Some((orphan, _)) => {
            Err(incomplete(&lock.path, "holds a package that nothing asks for").name(label(orphan)))
        }
        None => Ok(()),
    }
}
