//! Cargo.lock: a closed graph with a checksum for everything from a registry.
//!
//! It does not carry the requirements it was made from, so names and versions are checked against each manifest.

use super::{
    Algorithm, Artifact, Declared, Dependency, Facts, Lockfile, Package, Scope, Source, incomplete, label,
    manifest, resolve, same_set, semver,
};
use crate::code::Refusal;
use crate::digest::from_hex;
use crate::path::RelPath;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Deserialize)]
struct File {
    version: Option<u32>,
    #[serde(default, rename = "package")]
    packages: Vec<Entry>,
    /// Where version 1 keeps the checksums.
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    version: String,
    source: Option<String>,
    checksum: Option<String>,
    #[serde(default)]
    dependencies: Vec<String>,
    replace: Option<String>,
}

/// Parses Cargo.lock into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    if !text.ends_with('\n') {
        return Err(incomplete(&lock.path, "is cut: its last line has no end"));
    }
    let file: File = toml::from_str(text)
        .map_err(|e| incomplete(&lock.path, "does not parse").name(e.message().replace('\n', " ")))?;
    if let Some(version) = file.version.filter(|v| !(1..=4).contains(v)) {
        return Err(incomplete(&lock.path, "is of a version that is not known").name(version.to_string()));
    }
    if file.packages.is_empty() {
        return Err(incomplete(&lock.path, "names no package"));
    }
    for entry in &file.packages {
        let package = package(lock, &file, entry)?;
        lock.packages.push(package);
    }
    if let Some(last) = lock
        .packages
        .last()
        .filter(|p| p.dependencies.is_empty() && p.source == Source::Hashed)
    {
        lock.open_end = Some(label(last));
    }
    lock.facts = Facts::Cargo;
    close(lock)
}

fn package(lock: &Lockfile, file: &File, entry: &Entry) -> Result<Package, Refusal> {
    let shown = format!("{} {}", entry.name, entry.version);
    if entry.replace.is_some() {
        return Err(incomplete(&lock.path, "replaces a package, which is not supported").name(shown));
    }
    let mut artifacts = Vec::new();
    let source = match &entry.source {
        None => Source::Local(RelPath::root()),
        Some(source) if source.starts_with("registry+") || source.starts_with("sparse+") => {
            let old = format!("checksum {} {} ({source})", entry.name, entry.version);
            let checksum = entry.checksum.as_ref().or_else(|| file.metadata.get(&old));
            let checksum = checksum
                .ok_or_else(|| incomplete(&lock.path, "has a package without a checksum").name(&shown))?;
            let digest = from_hex(checksum)
                .filter(|d| d.len() == 32)
                .ok_or_else(|| incomplete(&lock.path, "has a checksum that is not whole").name(&shown))?;
            artifacts.push(Artifact {
                name: format!("{}-{}.crate", entry.name, entry.version),
                algorithm: Algorithm::Sha256,
                digest,
                size_bytes: None,
            });
            Source::Hashed
        }
        Some(_) => {
            return Err(
                incomplete(&lock.path, "takes a package from where no checksum binds it").name(shown),
            );
        }
    };
    let mut dependencies = Vec::new();
    for text in &entry.dependencies {
        let mut words = text.split(' ');
        dependencies.push(Dependency {
            name: words.next().unwrap_or("").to_owned(),
            version: words.next().map(str::to_owned),
            extras: Vec::new(),
            scope: Scope::Always,
            marker: None,
        });
    }
    Ok(Package {
        name: entry.name.clone(),
        version: Some(entry.version.clone()),
        source,
        artifacts,
        dependencies,
        place: entry.source.clone(),
        scope: Scope::Always,
        condition: None,
    })
}

/// Proves that every name leads somewhere and that nothing stands there for no reason.
fn close(lock: &Lockfile) -> Result<(), Refusal> {
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, package) in lock.packages.iter().enumerate() {
        by_name.entry(&package.name).or_default().push(at);
    }
    let find = |edge: &Dependency| -> Vec<usize> {
        let all = by_name.get(edge.name.as_str()).map_or(&[][..], Vec::as_slice);
        let fits = |at: &&usize| edge.version.is_none() || lock.packages[**at].version == edge.version;
        all.iter().filter(fits).copied().collect()
    };
    let mut queue = Vec::new();
    for (at, package) in lock.packages.iter().enumerate() {
        if matches!(package.source, Source::Local(_)) {
            queue.push(at);
        }
        for edge in &package.dependencies {
            if find(edge).is_empty() {
                return Err(incomplete(&lock.path, "names a dependency that it does not hold")
                    .name(format!("{} of {}", edge.name, label(package))));
            }
        }
    }
    if queue.is_empty() {
        return Err(incomplete(&lock.path, "holds no package of its own: it is cut"));
    }
    let mut reached = vec![false; lock.packages.len()];
    while let Some(at) = queue.pop() {
        if !core::mem::replace(&mut reached[at], true) {
            queue.extend(lock.packages[at].dependencies.iter().flat_map(&find));
        }
    }
    match lock.packages.iter().zip(&reached).find(|(_, reached)| !**reached) {
        Some((orphan, _)) => {
            Err(incomplete(&lock.path, "holds a package that nothing asks for").name(label(orphan)))
        }
        None => Ok(()),
    }
}

/// Holds what one manifest says, with what it inherits from the workspace filled in.
struct Crate {
    name: String,
    wants: Vec<Want>,
    paths: Vec<RelPath>,
}

struct Want {
    name: String,
    requirement: Option<String>,
    optional: Need,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Always,
    Feature,
    Dev,
}

/// Compares the local packages and their edges with each `Cargo.toml`.
pub(super) fn close_over(lock: &Lockfile, declared: &Declared) -> Result<Vec<String>, Refusal> {
    let home = lock.directory();
    let root = table(lock, declared, &home)?;
    let workspace = root.get("workspace").and_then(toml::Value::as_table);
    let mut members = BTreeSet::new();
    if root.contains_key("package") {
        members.insert(home.clone());
    }
    for member in strings(workspace.and_then(|w| w.get("members"))) {
        members.extend(matching(&home, member, declared, b"Cargo.toml"));
    }
    let excluded: Vec<RelPath> = strings(workspace.and_then(|w| w.get("exclude")))
        .filter_map(|p| resolve(&home, p))
        .collect();
    members.retain(|m| !excluded.iter().any(|e| within(m, e)));
    let mut crates: BTreeMap<RelPath, Crate> = BTreeMap::new();
    let mut queue: Vec<RelPath> = members.iter().cloned().collect();
    queue.extend(patched(lock, &root, &home)?);
    while let Some(at) = queue.pop() {
        if crates.contains_key(&at) {
            continue;
        }
        let found = read(lock, declared, &at, &home, workspace)?;
        // A path dependency beneath the root of a workspace is its member.
        if workspace.is_some() {
            let inside = |p: &&RelPath| within(p, &home) && !excluded.iter().any(|e| within(p, e));
            members.extend(found.paths.iter().filter(inside).cloned());
        }
        queue.extend(found.paths.iter().cloned());
        crates.insert(at, found);
    }
    let local = |p: &&Package| matches!(p.source, Source::Local(_));
    let locked: BTreeSet<String> = lock
        .packages
        .iter()
        .filter(local)
        .map(|p| p.name.clone())
        .collect();
    let wanted: BTreeSet<String> = crates.values().map(|c| c.name.clone()).collect();
    same_set(lock, "its own packages", &locked, &wanted)?;
    for (at, found) in &crates {
        compare(lock, found, members.contains(at))?;
    }
    Ok(Vec::new())
}

fn compare(lock: &Lockfile, found: &Crate, full: bool) -> Result<(), Refusal> {
    let own = |p: &&Package| matches!(p.source, Source::Local(_)) && p.name == found.name;
    let Some(package) = lock.packages.iter().find(own) else {
        return Ok(());
    };
    let locked: BTreeSet<String> = package.dependencies.iter().map(|d| d.name.clone()).collect();
    let all: BTreeSet<String> = found.wants.iter().map(|w| w.name.clone()).collect();
    let what = format!("the dependencies of {}", found.name);
    if full {
        same_set(lock, &what, &locked, &all)?;
    } else {
        // Optional and development dependencies of a package that is no member are not resolved.
        let least = found
            .wants
            .iter()
            .filter(|w| w.optional == Need::Always)
            .map(|w| w.name.clone());
        let least: BTreeSet<String> = least.collect();
        let between: BTreeSet<String> = locked.intersection(&all).cloned().chain(least).collect();
        same_set(lock, &what, &locked, &between)?;
    }
    for want in &found.wants {
        let Some(requirement) = &want.requirement else {
            continue;
        };
        let edges = package.dependencies.iter().filter(|d| d.name == want.name);
        let versions: Vec<&str> = edges
            .flat_map(|edge| {
                let fits = |p: &&Package| {
                    p.name == edge.name && (edge.version.is_none() || p.version == edge.version)
                };
                lock.packages
                    .iter()
                    .filter(fits)
                    .filter_map(|p| p.version.as_deref())
            })
            .collect();
        let holds = |v: &&str| semver::satisfies(requirement, v) != Some(false);
        if !versions.is_empty() && !versions.iter().any(holds) {
            return Err(
                incomplete(&lock.path, "holds a version that the manifest does not allow").names([
                    format!("declared {} {requirement}", want.name),
                    format!("locked {}", versions.join(", ")),
                ]),
            );
        }
    }
    Ok(())
}

fn table(lock: &Lockfile, declared: &Declared, at: &RelPath) -> Result<toml::Table, Refusal> {
    let text = manifest(lock, declared, at, "Cargo.toml")?;
    text.parse().map_err(|e: toml::de::Error| {
        incomplete(&lock.path, "has a manifest that does not parse")
            .names([format!("{at}/Cargo.toml"), e.message().replace('\n', " ")])
    })
}

fn read(
    lock: &Lockfile,
    declared: &Declared,
    at: &RelPath,
    home: &RelPath,
    workspace: Option<&toml::Table>,
) -> Result<Crate, Refusal> {
    let file = table(lock, declared, at)?;
    let name = file
        .get("package")
        .and_then(|p| p.get("name"))
        .and_then(toml::Value::as_str);
    let name =
        name.ok_or_else(|| incomplete(&lock.path, "has a manifest without a package").name(at.to_string()))?;
    let mut found = Crate {
        name: name.to_owned(),
        wants: Vec::new(),
        paths: Vec::new(),
    };
    let shared = workspace
        .and_then(|w| w.get("dependencies"))
        .and_then(toml::Value::as_table);
    let targets = file.get("target").and_then(toml::Value::as_table);
    let mut tables = vec![&file];
    tables.extend(targets.into_iter().flatten().filter_map(|(_, t)| t.as_table()));
    for table in tables {
        for (section, dev) in [
            ("dependencies", Need::Always),
            ("build-dependencies", Need::Always),
            ("build_dependencies", Need::Always),
            ("dev-dependencies", Need::Dev),
            ("dev_dependencies", Need::Dev),
        ] {
            let section = table.get(section).and_then(toml::Value::as_table);
            for (key, value) in section.into_iter().flatten() {
                want(lock, &mut found, at, home, (key, value, dev), shared)?;
            }
        }
    }
    Ok(found)
}

fn want(
    lock: &Lockfile,
    found: &mut Crate,
    at: &RelPath,
    home: &RelPath,
    (key, value, dev): (&str, &toml::Value, Need),
    shared: Option<&toml::Table>,
) -> Result<(), Refusal> {
    let inherits = value.get("workspace").and_then(toml::Value::as_bool) == Some(true);
    let (source, base) = if inherits {
        let entry = shared.and_then(|s| s.get(key));
        let missing = || incomplete(&lock.path, "has a manifest that inherits what is not there").name(key);
        (entry.ok_or_else(missing)?, home)
    } else {
        (value, at)
    };
    let text = |field: &str| source.get(field).and_then(toml::Value::as_str);
    let optional = value.get("optional").and_then(toml::Value::as_bool) == Some(true);
    if let Some(path) = text("path") {
        let outside = || incomplete(&lock.path, "takes a package from outside of the tree").name(key);
        found.paths.push(resolve(base, path).ok_or_else(outside)?);
    }
    let name = text("package").unwrap_or(key).to_owned();
    if name == found.name && text("path").is_some() {
        return Ok(());
    }
    found.wants.push(Want {
        name,
        requirement: source.as_str().or_else(|| text("version")).map(str::to_owned),
        optional: if dev == Need::Always && optional {
            Need::Feature
        } else {
            dev
        },
    });
    Ok(())
}

/// Names the directories that `[patch]` puts in the place of registry packages.
fn patched(lock: &Lockfile, root: &toml::Table, home: &RelPath) -> Result<Vec<RelPath>, Refusal> {
    let mut all = Vec::new();
    let patches = root.get("patch").and_then(toml::Value::as_table);
    for (_, registry) in patches.into_iter().flatten() {
        for (key, entry) in registry.as_table().into_iter().flatten() {
            let Some(path) = entry.get("path").and_then(toml::Value::as_str) else {
                continue;
            };
            let outside = || incomplete(&lock.path, "takes a package from outside of the tree").name(key);
            let name = entry.get("package").and_then(toml::Value::as_str).unwrap_or(key);
            // An unused patch stands in the lock's `[[patch.unused]]`, not among its packages.
            if lock
                .packages
                .iter()
                .any(|p| p.name == name && matches!(p.source, Source::Local(_)))
            {
                all.push(resolve(home, path).ok_or_else(outside)?);
            }
        }
    }
    Ok(all)
}

fn strings(value: Option<&toml::Value>) -> impl Iterator<Item = &str> {
    value
        .and_then(toml::Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(toml::Value::as_str)
}

/// Finds the directories with a manifest that a pattern of `members` means.
pub(super) fn matching(home: &RelPath, pattern: &str, declared: &Declared, manifest: &[u8]) -> Vec<RelPath> {
    let Some(pattern) = resolve(home, pattern) else {
        return Vec::new();
    };
    if !pattern.as_bytes().iter().any(|b| b"*?[".contains(b)) {
        return vec![pattern];
    }
    let wanted: Vec<&[u8]> = pattern.components().collect();
    let fits = |at: &RelPath| {
        let parts: Vec<&[u8]> = at.components().collect();
        covers(&wanted, &parts)
    };
    let manifests = declared.texts.keys().filter_map(RelPath::split_last);
    manifests
        .filter(|(at, name)| *name == manifest && fits(at))
        .map(|(at, _)| at)
        .collect()
}

/// Matches components against a glob, `**` included.
fn covers(pattern: &[&[u8]], parts: &[&[u8]]) -> bool {
    match (pattern.split_first(), parts.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if *first == b"**" => {
            covers(rest, parts)
                || parts
                    .split_first()
                    .is_some_and(|(_, after)| covers(pattern, after))
        }
        (Some((first, rest)), Some((part, after))) => glob(first, part) && covers(rest, after),
        _ => false,
    }
}

/// Matches one component against `*` and `?`.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            glob(rest, name) || name.split_first().is_some_and(|(_, after)| glob(pattern, after))
        }
        (Some((b'?', rest)), Some((_, after))) => glob(rest, after),
        (Some((a, rest)), Some((b, after))) => a == b && glob(rest, after),
        _ => false,
    }
}

fn within(path: &RelPath, directory: &RelPath) -> bool {
    let mut inner = path.components();
    directory.components().all(|part| inner.next() == Some(part))
}
