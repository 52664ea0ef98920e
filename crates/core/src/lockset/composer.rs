//! composer.lock: packages with what they need, and the digest of the manifest at the beginning.
//!
//! Most entries name a commit and no hash of the archive, so their bytes are bound by nothing: named as weak.

use super::graph::{Graph, Lost};
use super::json::{Value, Writer, write};
use super::{
    Algorithm, Artifact, Declared, Dependency, Facts as AnyFacts, Lockfile, Package, Scope, Source,
    incomplete, label, manifest, md5, resolve,
};
use crate::code::Refusal;
use crate::digest::from_hex;
use std::collections::{BTreeMap, BTreeSet};

/// Holds what the lock says about its own inputs.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    content_hash: String,
    /// Which packages stand in for a name that is none of theirs.
    stand_in: BTreeMap<String, Vec<usize>>,
}

/// Parses composer.lock into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    let file: Value = serde_json::from_str(text)
        .map_err(|e| incomplete(&lock.path, "does not parse").name(e.to_string()))?;
    let hash = file
        .get("content-hash")
        .and_then(Value::text)
        .filter(|h| h.len() == 32);
    let content_hash = hash
        .ok_or_else(|| incomplete(&lock.path, "does not say what it was made from"))?
        .to_owned();
    let mut stand_in: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (section, scope) in [
        ("packages", Scope::Always),
        ("packages-dev", Scope::Dev("dev".to_owned())),
    ] {
        let Some(Value::List(list)) = file.get(section) else {
            return Err(incomplete(&lock.path, "lacks a section").name(section));
        };
        for entry in list {
            let package = package(lock, entry, &scope)?;
            if !seen.insert(package.name.clone()) {
                return Err(incomplete(&lock.path, "holds an entry twice").name(package.name));
            }
            for key in ["provide", "replace"] {
                for (name, _) in entry.get(key).map_or(&[][..], Value::entries) {
                    stand_in
                        .entry(name.to_lowercase())
                        .or_default()
                        .push(lock.packages.len());
                }
            }
            let hashed = package.source == Source::Hashed;
            match package.artifacts.first() {
                Some(_) => {
                    let weak = format!("{}: {} is bound by SHA-1 alone", lock.path, label(&package));
                    lock.weak.push(weak);
                }
                None if hashed => lock.unbound.push(label(&package)),
                None => {}
            }
            lock.packages.push(package);
        }
    }
    lock.say_unbound(super::weak::COMPOSER);
    lock.facts = AnyFacts::Composer(Box::new(Facts {
        content_hash,
        stand_in,
    }));
    Ok(())
}

/// Says whether a name means PHP or a part of it, and no package.
fn is_platform(name: &str) -> bool {
    !name.contains('/')
}

fn package(lock: &Lockfile, entry: &Value, scope: &Scope) -> Result<Package, Refusal> {
    let text = |key: &str| entry.get(key).and_then(Value::text);
    let name = text("name").ok_or_else(|| incomplete(&lock.path, "has a package without a name"))?;
    let wrong = |why: &str| incomplete(&lock.path, why).name(name);
    let version = text("version").ok_or_else(|| wrong("has a package without a version"))?;
    let part = |of: &str, key: &str| entry.get(of).and_then(|d| d.get(key)).and_then(Value::text);
    let mut artifacts = Vec::new();
    let source = match (part("dist", "type"), part("dist", "url")) {
        (Some("path"), Some(path)) => {
            let inside = resolve(&lock.directory(), path);
            Source::Local(inside.ok_or_else(|| wrong("takes a package from outside of the tree"))?)
        }
        (Some(_), Some(url)) => {
            let sum = part("dist", "shasum").filter(|s| !s.is_empty());
            if let Some(sum) = sum {
                let digest = from_hex(sum).filter(|d| d.len() == 20);
                let digest = digest.ok_or_else(|| wrong("has a hash that is not whole"))?;
                artifacts.push(Artifact {
                    name: url.to_owned(),
                    algorithm: Algorithm::Sha1,
                    digest,
                    size_bytes: None,
                });
            }
            Source::Hashed
        }
        _ if text("type") == Some("metapackage") => Source::Bundled,
        _ if part("source", "reference").is_some() => Source::Hashed,
        _ => return Err(wrong("has a package without any artifact")),
    };
    let mut dependencies = Vec::new();
    for (name, _) in entry.get("require").map_or(&[][..], Value::entries) {
        if !is_platform(name) {
            dependencies.push(Dependency {
                name: name.to_lowercase(),
                version: None,
                extras: Vec::new(),
                scope: Scope::Always,
                marker: None,
            });
        }
    }
    Ok(Package {
        name: name.to_lowercase(),
        version: Some(version.to_owned()),
        source,
        artifacts,
        dependencies,
        place: None,
        scope: scope.clone(),
        condition: None,
    })
}

/// Compares the digest of the manifest, and what it asks for.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    let text = manifest(lock, declared, &lock.directory(), "composer.json")?;
    let file: Value = serde_json::from_str(text).map_err(|e| {
        incomplete(&lock.path, "has a manifest that does not parse")
            .names(["composer.json".to_owned(), e.to_string()])
    })?;
    let made: Vec<String> = digest(&file).into_iter().collect();
    super::python::same_digest(lock, "composer.json", &facts.content_hash, &made)?;
    // The project itself may stand in for a package, which is then not installed.
    let own: BTreeSet<String> = ["provide", "replace"]
        .iter()
        .flat_map(|key| file.get(key).map_or(&[][..], Value::entries))
        .map(|(name, _)| name.to_lowercase())
        .collect();
    let graph = Graph::new(lock);
    let find = |name: &str| -> Vec<usize> {
        let others = facts.stand_in.get(name).map_or(&[][..], Vec::as_slice);
        graph.named(name).iter().chain(others).copied().collect()
    };
    let edges = graph.edges_by(
        |_, edge| find(&edge.name),
        |_, edge| {
            if own.contains(&edge.name) {
                Lost::Allowed
            } else {
                Lost::Refused
            }
        },
    )?;
    let mut roots = Vec::new();
    for section in ["require", "require-dev"] {
        for (name, _) in file.get(section).map_or(&[][..], Value::entries) {
            let name = name.to_lowercase();
            let found = find(&name);
            if found.is_empty() && !is_platform(&name) && !own.contains(&name) {
                return Err(incomplete(&lock.path, "lacks a declared dependency")
                    .names([name.as_str(), "composer.json"]));
            }
            roots.extend(found);
        }
    }
    graph.no_orphan(&edges, roots)?;
    Ok(Vec::new())
}

/// Computes Composer's digest of a manifest.
fn digest(file: &Value) -> Option<String> {
    const COUNTED: [&str; 11] = [
        "name",
        "version",
        "require",
        "require-dev",
        "conflict",
        "replace",
        "provide",
        "minimum-stability",
        "prefer-stable",
        "repositories",
        "extra",
    ];
    let counted = |(key, value): &&(String, Value)| COUNTED.contains(&key.as_str()) && *value != Value::Null;
    let mut kept: Vec<(String, Value)> = file.entries().iter().filter(counted).cloned().collect();
    let platform = file
        .get("config")
        .and_then(|c| c.get("platform"))
        .filter(|p| **p != Value::Null);
    if let Some(platform) = platform {
        kept.push((
            "config".to_owned(),
            Value::Map(vec![("platform".to_owned(), platform.clone())]),
        ));
    }
    kept.sort_by(|a, b| a.0.cmp(&b.0));
    Some(md5::hex(write(&Value::Map(kept), Writer::Php)?.as_bytes()))
}
