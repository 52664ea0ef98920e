//! uv.lock: a closed graph whose root carries the requirements it was made from.
//!
//! Unknown keys are let pass, since uv adds some with every revision; the version of the format is not.

use super::pep::{self, Requirement, normal_name, normal_version};
use super::{
    Algorithm, Artifact, Declared, Dependency, Facts as AnyFacts, Lockfile, Package, Scope, Source,
    incomplete, label, manifest, resolve, same_set,
};
use crate::code::Refusal;
use crate::digest::from_hex;
use crate::path::RelPath;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Holds what the lock says about its own inputs.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    requires_python: Option<String>,
    members: Vec<RelPath>,
    manifest: Manifest,
    metadata: BTreeMap<RelPath, Metadata>,
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
struct Manifest {
    #[serde(default)]
    requirements: Vec<Wanted>,
    #[serde(default)]
    dependency_groups: BTreeMap<String, Vec<Wanted>>,
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
struct Metadata {
    #[serde(default)]
    requires_dist: Vec<Wanted>,
    #[serde(default)]
    requires_dev: BTreeMap<String, Vec<Wanted>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Wanted {
    name: String,
    #[serde(default)]
    extras: Vec<String>,
    specifier: Option<String>,
    marker: Option<String>,
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
            lock.weak.push(format!(
                "{}: a cut behind {end}, which has no wheels, cannot be seen",
                lock.path
            ));
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
            artifacts.push(artifact(lock, file, &shown)?);
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

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Pyproject {
    project: Option<Project>,
    #[serde(default)]
    dependency_groups: BTreeMap<String, Vec<toml::Value>>,
    #[serde(default)]
    tool: Tools,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Project {
    name: String,
    requires_python: Option<String>,
    #[serde(default)]
    dependencies: Vec<String>,
    #[serde(default)]
    optional_dependencies: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    dynamic: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Tools {
    #[serde(default)]
    uv: UvTool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct UvTool {
    #[serde(default)]
    sources: BTreeMap<String, toml::Value>,
    #[serde(default)]
    dev_dependencies: Vec<String>,
}

/// Compares the inputs that uv.lock carries with each `pyproject.toml`.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    let mut weak = Vec::new();
    let root = pyproject(lock, declared, &lock.directory())?;
    let pinned_sources: BTreeSet<String> = root.tool.uv.sources.keys().map(|n| normal_name(n)).collect();
    for home in &facts.members {
        let file = pyproject(lock, declared, home)?;
        let mut sources = pinned_sources.clone();
        sources.extend(file.tool.uv.sources.keys().map(|n| normal_name(n)));
        let metadata = &facts.metadata[home];
        compare_groups(lock, &file, &metadata.requires_dev, &sources)?;
        let Some(project) = &file.project else {
            return Err(
                incomplete(&lock.path, "has a project whose manifest declares none").name(home.to_string()),
            );
        };
        let named = |p: &&Package| matches!(&p.source, Source::Local(at) | Source::Virtual(at) if at == home);
        let name = lock.packages.iter().find(named).map_or("", |p| p.name.as_str());
        if normal_name(&project.name) != name {
            return Err(
                incomplete(&lock.path, "differs from the manifest in the name of the project")
                    .names([format!("declared {}", project.name), format!("locked {name}")]),
            );
        }
        compare_project(lock, project, metadata, &sources, &mut weak)?;
        if facts.members.len() == 1 {
            compare_python(lock, facts, project)?;
        }
    }
    if root.project.is_none() {
        compare_groups(lock, &root, &facts.manifest.dependency_groups, &pinned_sources)?;
    } else if !facts.members.contains(&lock.directory()) {
        let name = root.project.map(|p| p.name).unwrap_or_default();
        return Err(incomplete(&lock.path, "does not hold the project it lies beside").name(name));
    }
    Ok(weak)
}

fn pyproject(lock: &Lockfile, declared: &Declared, home: &RelPath) -> Result<Pyproject, Refusal> {
    let text = manifest(lock, declared, home, "pyproject.toml")?;
    toml::from_str(text).map_err(|e| {
        incomplete(&lock.path, "has a manifest that does not parse")
            .names([format!("{home}/pyproject.toml"), e.message().replace('\n', " ")])
    })
}

fn compare_project(
    lock: &Lockfile,
    project: &Project,
    metadata: &Metadata,
    sources: &BTreeSet<String>,
    weak: &mut Vec<String>,
) -> Result<(), Refusal> {
    let is_dynamic = |field: &str| project.dynamic.iter().any(|d| d == field);
    let (some, all) = (is_dynamic("dependencies"), is_dynamic("optional-dependencies"));
    if some || all {
        weak.push(format!(
            "{}: the dependencies of {} are computed, not declared",
            lock.path, project.name
        ));
    }
    let mut wanted = BTreeSet::new();
    if !some {
        for text in &project.dependencies {
            wanted.insert(declared_form(lock, text, None, sources)?);
        }
    }
    if !all {
        for (extra, texts) in &project.optional_dependencies {
            for text in texts {
                wanted.insert(declared_form(lock, text, Some(&normal_name(extra)), sources)?);
            }
        }
    }
    let mut locked = BTreeSet::new();
    for entry in &metadata.requires_dist {
        let extra = entry.marker.as_deref().and_then(pep::extra_of);
        if extra.is_some() && !all || extra.is_none() && !some {
            locked.insert(locked_form(lock, entry, extra.as_deref(), sources)?);
        }
    }
    same_set(lock, "its dependencies", &locked, &wanted)
}

fn compare_groups(
    lock: &Lockfile,
    file: &Pyproject,
    locked: &BTreeMap<String, Vec<Wanted>>,
    sources: &BTreeSet<String>,
) -> Result<(), Refusal> {
    let groups: BTreeMap<String, &Vec<toml::Value>> = file
        .dependency_groups
        .iter()
        .map(|(name, list)| (normal_name(name), list))
        .collect();
    let mut wanted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in groups.keys() {
        let mut flat = BTreeSet::new();
        flatten(lock, &groups, name, sources, &mut Vec::new(), &mut flat)?;
        wanted.insert(name.clone(), flat);
    }
    for text in &file.tool.uv.dev_dependencies {
        wanted
            .entry("dev".to_owned())
            .or_default()
            .insert(declared_form(lock, text, None, sources)?);
    }
    let mut have: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, list) in locked {
        let group = have.entry(normal_name(name)).or_default();
        for entry in list {
            group.insert(locked_form(lock, entry, None, sources)?);
        }
    }
    // uv writes an empty group or leaves it out, by revision: both say the same.
    wanted.retain(|_, list| !list.is_empty());
    have.retain(|_, list| !list.is_empty());
    let names = |of: &BTreeMap<String, BTreeSet<String>>| of.keys().cloned().collect::<BTreeSet<_>>();
    same_set(lock, "its dependency groups", &names(&have), &names(&wanted))?;
    for (name, list) in &wanted {
        same_set(lock, &format!("its dependency group {name}"), &have[name], list)?;
    }
    Ok(())
}

/// Collects a group with all groups that it includes.
fn flatten(
    lock: &Lockfile,
    groups: &BTreeMap<String, &Vec<toml::Value>>,
    name: &str,
    sources: &BTreeSet<String>,
    above: &mut Vec<String>,
    into: &mut BTreeSet<String>,
) -> Result<(), Refusal> {
    let wrong = |what: &str| {
        incomplete(
            &lock.path,
            &format!("has a manifest with a dependency group that {what}"),
        )
        .name(name)
    };
    if above.iter().any(|n| n == name) {
        return Err(wrong("includes itself"));
    }
    let list = groups.get(name).ok_or_else(|| wrong("is not there"))?;
    above.push(name.to_owned());
    for item in *list {
        match item {
            toml::Value::String(text) => {
                into.insert(declared_form(lock, text, None, sources)?);
            }
            toml::Value::Table(table) => {
                let inner = table.get("include-group").and_then(toml::Value::as_str);
                let inner = normal_name(inner.ok_or_else(|| wrong("is not understood"))?);
                flatten(lock, groups, &inner, sources, above, into)?;
            }
            _ => return Err(wrong("is not understood")),
        }
    }
    above.pop();
    Ok(())
}

fn declared_form(
    lock: &Lockfile,
    text: &str,
    extra: Option<&str>,
    sources: &BTreeSet<String>,
) -> Result<String, Refusal> {
    let parsed = Requirement::parse(text).ok_or_else(|| {
        incomplete(
            &lock.path,
            "has a manifest with a requirement that is not understood",
        )
        .name(text)
    })?;
    let specifier = if sources.contains(&parsed.name) {
        BTreeSet::new()
    } else {
        parsed.specifier
    };
    Ok(form(&parsed.name, &parsed.extras, &specifier, extra))
}

fn locked_form(
    lock: &Lockfile,
    entry: &Wanted,
    extra: Option<&str>,
    sources: &BTreeSet<String>,
) -> Result<String, Refusal> {
    let name = normal_name(&entry.name);
    let specifier = pep::specifier(entry.specifier.as_deref().unwrap_or("")).ok_or_else(|| {
        incomplete(&lock.path, "has a requirement that is not understood").name(&entry.name)
    })?;
    let specifier = if sources.contains(&name) {
        BTreeSet::new()
    } else {
        specifier
    };
    let extras = entry.extras.iter().map(|e| normal_name(e)).collect();
    Ok(form(&name, &extras, &specifier, extra))
}

fn form(name: &str, extras: &BTreeSet<String>, specifier: &BTreeSet<String>, extra: Option<&str>) -> String {
    let plain = pep::plain(name, extras, specifier);
    match extra {
        Some(extra) => format!("{plain} (extra {extra})"),
        None => plain,
    }
}

fn compare_python(lock: &Lockfile, facts: &Facts, project: &Project) -> Result<(), Refusal> {
    // uv rewrites other operators into ranges; only plain bounds stay as they were declared.
    let bounds = |text: &str| -> Option<BTreeSet<String>> {
        let plain = |part: &str| {
            let at = part.find(|c: char| !"<>=!~".contains(c))?;
            let (operator, version) = part.split_at(at);
            let mut version = normal_version(version);
            while let Some(shorter) = version.strip_suffix(".0") {
                version = shorter.to_owned();
            }
            [">=", "<=", "<", ">"]
                .contains(&operator)
                .then(|| format!("{operator}{version}"))
        };
        pep::specifier(text)?.iter().map(|part| plain(part)).collect()
    };
    let (Some(declared), Some(locked)) = (&project.requires_python, &facts.requires_python) else {
        return Ok(());
    };
    match (bounds(declared), bounds(locked)) {
        (Some(declared), Some(locked)) => same_set(lock, "requires-python", &locked, &declared),
        _ => Ok(()),
    }
}
