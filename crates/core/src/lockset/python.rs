//! What the locks of Poetry, PDM, Pipenv and PEP 751 have in common: files with hashes, markers, and a
//! `pyproject.toml` whose digest or whose needs they have to match.

use super::graph::{Graph, Lost};
use super::json::Value;
use super::marker::{Holds, Setting};
use super::pep::{Requirement, normal_name, normal_version};
use super::{Algorithm, Artifact, Declared, Dependency, Lockfile, Scope, incomplete, manifest};
use crate::code::Refusal;
use crate::digest::from_hex;
use crate::path::RelPath;
use serde::Deserialize;
use std::collections::BTreeSet;

/// Holds one file that a lock allows for a package.
#[derive(Deserialize)]
pub(super) struct FileEntry {
    pub(super) file: Option<String>,
    pub(super) url: Option<String>,
    pub(super) hash: Option<String>,
}

/// Parses TOML, with the line named where it does not parse.
pub(super) fn toml<T: for<'de> Deserialize<'de>>(lock: &Lockfile, text: &str) -> Result<T, Refusal> {
    if !text.ends_with('\n') {
        return Err(incomplete(&lock.path, "is cut: its last line has no end"));
    }
    toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start).min(text.len());
        let line = text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
        let why = format!("line {line}: {}", e.message().replace('\n', " "));
        incomplete(&lock.path, "does not parse").name(why)
    })
}

/// Reads a hash such as `sha256:…`.
pub(super) fn hash(
    lock: &Lockfile,
    shown: &str,
    name: &str,
    hash: Option<&str>,
) -> Result<Artifact, Refusal> {
    let text =
        hash.ok_or_else(|| incomplete(&lock.path, "has an artifact without a hash").names([shown, name]))?;
    let whole = text.split_once(':').and_then(|(algorithm, hex)| {
        let algorithm = Algorithm::parse(algorithm).filter(|a| *a != Algorithm::Sha1)?;
        let digest = from_hex(hex).filter(|d| d.len() == algorithm.bytes())?;
        Some((algorithm, digest))
    });
    let (algorithm, digest) = whole.ok_or_else(|| {
        incomplete(&lock.path, "has an artifact without a whole hash").names([shown, name, text])
    })?;
    Ok(Artifact {
        name: name.to_owned(),
        algorithm,
        digest,
        size_bytes: None,
    })
}

/// Reads the files of a package, each of which has to belong to it.
pub(super) fn files(
    lock: &Lockfile,
    name: &str,
    version: &str,
    files: &[FileEntry],
) -> Result<Vec<Artifact>, Refusal> {
    let shown = format!("{name} {version}");
    if files.is_empty() {
        return Err(incomplete(&lock.path, "has a package without any artifact").name(shown));
    }
    let mut all = Vec::new();
    let mut seen = BTreeSet::new();
    for file in files {
        let place = file.file.as_deref().or(file.url.as_deref()).unwrap_or("");
        belongs(lock, name, version, place)?;
        let artifact = hash(lock, &shown, place, file.hash.as_deref())?;
        // Two indexes may hold different files of one name: either is bound by its own hash.
        if !seen.insert((place, file.hash.as_deref())) {
            return Err(incomplete(&lock.path, "holds an artifact twice").names([&shown, place]));
        }
        all.push(artifact);
    }
    Ok(all)
}

/// Refuses a wheel or an archive that is named after another package or another version.
pub(super) fn belongs(lock: &Lockfile, name: &str, version: &str, place: &str) -> Result<(), Refusal> {
    let file = place.split(['#', '?']).next().unwrap_or(place);
    let file = file
        .rsplit('/')
        .next()
        .unwrap_or(file)
        .replace("%2B", "+")
        .replace("%2b", "+")
        .replace("%21", "!");
    let parts = if let Some(stem) = file.strip_suffix(".whl") {
        let mut parts = stem.split('-');
        parts
            .next()
            .zip(parts.next())
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
    } else {
        let ends = [".tar.gz", ".zip", ".tar.bz2", ".tar.xz"];
        let stem = ends.iter().find_map(|end| file.strip_suffix(end));
        // Old archives are named freely: only one that begins with the name is taken by its word.
        stem.and_then(|stem| stem.rsplit_once('-'))
            .filter(|(n, _)| normal_name(n) == name)
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
    };
    let short = |version: &str| {
        let mut normal = normal_version(version);
        while let Some(shorter) = normal.strip_suffix(".0") {
            normal = shorter.to_owned();
        }
        normal
    };
    match parts {
        Some((n, v)) if normal_name(&n) != name || short(&v) != short(version) => Err(incomplete(
            &lock.path,
            "gives a package the artifact of another one",
        )
        .names([format!("{name} {version}"), file])),
        _ => Ok(()),
    }
}

/// Holds one thing that a manifest asks for.
pub(super) struct Root {
    pub(super) name: String,
    pub(super) extras: Vec<String>,
    pub(super) marker: Option<String>,
}

impl Root {
    /// Reads a requirement of PEP 508.
    pub(super) fn of(lock: &Lockfile, text: &str) -> Result<Root, Refusal> {
        let parsed = Requirement::parse(text).ok_or_else(|| {
            incomplete(
                &lock.path,
                "has a manifest with a requirement that is not understood",
            )
            .name(text)
        })?;
        Ok(Root {
            name: parsed.name,
            extras: parsed.extras.into_iter().collect(),
            marker: parsed.marker,
        })
    }
}

/// Says whether an edge may lead nowhere: only where its marker holds for no Python that the lock is for.
pub(super) fn lost(setting: &Setting, marker: Option<&str>) -> Lost {
    match marker.map(|m| setting.holds(m)) {
        Some(Holds::No) => Lost::Allowed,
        Some(Holds::Yes | Holds::Maybe) | None => Lost::Refused,
    }
}

/// Proves that a lock holds what the manifest asks for, and nothing besides.
pub(super) fn close(
    lock: &Lockfile,
    setting: &Setting,
    roots: &[Root],
    edges: &[Vec<usize>],
) -> Result<(), Refusal> {
    let graph = Graph::new(lock);
    let mut queue = Vec::new();
    for root in roots {
        let found = graph.named(&root.name);
        if found.is_empty() && lost(setting, root.marker.as_deref()) == Lost::Refused {
            return Err(incomplete(&lock.path, "lacks a declared dependency").name(&root.name));
        }
        queue.extend(found);
    }
    graph.no_orphan(edges, queue)
}

/// Makes the edges of a package out of requirements of PEP 508.
pub(super) fn edges(lock: &Lockfile, texts: &[String], scope: &Scope) -> Result<Vec<Dependency>, Refusal> {
    let edge = |text: &String| {
        let parsed = Requirement::parse(text)
            .ok_or_else(|| incomplete(&lock.path, "has a dependency that is not understood").name(text))?;
        Ok(Dependency {
            name: parsed.name,
            version: None,
            extras: parsed.extras.into_iter().collect(),
            scope: scope.clone(),
            marker: parsed.marker,
        })
    };
    texts.iter().map(edge).collect()
}

/// Reads a TOML manifest beside the lockfile.
pub(super) fn table(lock: &Lockfile, declared: &Declared, name: &str) -> Result<toml::Table, Refusal> {
    let text = manifest(lock, declared, &lock.directory(), name)?;
    text.parse().map_err(|e: toml::de::Error| {
        incomplete(&lock.path, "has a manifest that does not parse")
            .names([name.to_owned(), e.message().replace('\n', " ")])
    })
}

/// Finds a value of nested tables.
pub(super) fn at<'a>(table: &'a toml::Table, path: &[&str]) -> Option<&'a toml::Value> {
    let (last, above) = path.split_last()?;
    let mut table = table;
    for key in above {
        table = table.get(*key)?.as_table()?;
    }
    table.get(*last)
}

/// Gives the strings of a list; other items are left out.
pub(super) fn strings(value: Option<&toml::Value>) -> Vec<&str> {
    let list = value.and_then(toml::Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(toml::Value::as_str)
        .collect()
}

/// Takes a TOML value over for a digest; an empty mapping where there is none.
pub(super) fn value_or(value: Option<&toml::Value>, empty: Value) -> Option<Value> {
    value.map_or(Some(empty), Value::of_toml)
}

/// Refuses a lock whose digest of the manifest is another one.
pub(super) fn same_digest(lock: &Lockfile, file: &str, locked: &str, made: &[String]) -> Result<(), Refusal> {
    if made.iter().any(|one| one == locked) {
        return Ok(());
    }
    let now = made.first().map_or("that cannot be computed", String::as_str);
    Err(incomplete(&lock.path, "was made from another manifest")
        .names([format!("{file} gives {now}"), format!("locked {locked}")]))
}

/// Reads a path of this tree that a package comes from.
pub(super) fn inside(lock: &Lockfile, path: &str, shown: &str) -> Result<RelPath, Refusal> {
    super::resolve(&lock.directory(), path)
        .ok_or_else(|| incomplete(&lock.path, "takes a package from outside of the tree").name(shown))
}
