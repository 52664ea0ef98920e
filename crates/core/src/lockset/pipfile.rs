//! Pipfile.lock: pinned packages with hashes by category, the digest of the Pipfile, and no graph.
//!
//! A cut does not parse. A package that was taken out whole can be seen only where the Pipfile asks for it.

use super::json::{Once, Value, Writer, write};
use super::pep::normal_name;
use super::python;
use super::{Declared, Facts as AnyFacts, Lockfile, Package, Scope, Source, incomplete};
use crate::code::Refusal;
use crate::digest::Sha256;
use serde::Deserialize;
use std::collections::BTreeSet;

/// Holds what the lock says about its own inputs.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    hash: String,
    /// Each category with the names it holds.
    held: BTreeSet<(String, String)>,
}

#[derive(Deserialize)]
struct Entry {
    version: Option<String>,
    #[serde(default)]
    hashes: Vec<String>,
    markers: Option<String>,
    file: Option<String>,
    path: Option<String>,
    git: Option<String>,
}

/// Parses Pipfile.lock into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    let broken = |e: serde_json::Error| incomplete(&lock.path, "does not parse").name(e.to_string());
    let file: Once<serde_json::Value> = serde_json::from_str(text).map_err(broken)?;
    // Read a second time, since only this way a name that stands twice is seen.
    let whole: Value = serde_json::from_str(text).map_err(broken)?;
    let meta = whole
        .get("_meta")
        .and_then(|m| m.get("hash"))
        .and_then(|h| h.get("sha256"));
    let hash = meta
        .and_then(Value::text)
        .filter(|h| h.len() == 64)
        .map(str::to_owned);
    let hash = hash.ok_or_else(|| incomplete(&lock.path, "does not say what it was made from"))?;
    let mut held = BTreeSet::new();
    for must in ["default", "develop"] {
        if !file.0.contains_key(must) {
            return Err(incomplete(&lock.path, "lacks a section").name(must));
        }
    }
    for (category, section) in file.0.iter().filter(|(name, _)| *name != "_meta") {
        let section = section.as_object().cloned().unwrap_or_default();
        for (name, entry) in section {
            let shown = format!("{name} of {category}");
            let entry: Entry = serde_json::from_value(entry).map_err(|e| {
                incomplete(&lock.path, "does not parse").names([shown.clone(), e.to_string()])
            })?;
            let package = package(lock, category, &name, &entry, &shown)?;
            held.insert((category.clone(), package.name.clone()));
            lock.packages.push(package);
        }
    }
    lock.facts = AnyFacts::Pipfile(Box::new(Facts { hash, held }));
    lock.say_weak();
    Ok(())
}

fn package(
    lock: &Lockfile,
    category: &str,
    name: &str,
    entry: &Entry,
    shown: &str,
) -> Result<Package, Refusal> {
    let wrong = |why: &str| incomplete(&lock.path, why).name(shown);
    if entry.git.is_some() {
        return Err(wrong("takes a package from git, which no hash binds"));
    }
    let pinned = entry
        .version
        .as_deref()
        .and_then(|v| v.strip_prefix("=="))
        .map(|v| v.trim_start_matches('='));
    let mut artifacts = Vec::new();
    let source = match &entry.path {
        Some(path) if entry.hashes.is_empty() => Source::Local(python::inside(lock, path, shown)?),
        _ => {
            if entry.version.is_some() && pinned.is_none() || entry.version.is_none() && entry.file.is_none()
            {
                return Err(wrong("has a package that is not pinned by =="));
            }
            if entry.hashes.is_empty() {
                return Err(wrong("has a package without a hash"));
            }
            for hash in &entry.hashes {
                artifacts.push(python::hash(
                    lock,
                    shown,
                    entry.file.as_deref().unwrap_or(""),
                    Some(hash),
                )?);
            }
            Source::Hashed
        }
    };
    Ok(Package {
        name: normal_name(name),
        version: pinned.map(str::to_owned),
        source,
        artifacts,
        dependencies: Vec::new(),
        // One package may stand in several categories.
        place: Some(category.to_owned()),
        scope: match category {
            "default" => Scope::Always,
            other => Scope::Dev(other.to_owned()),
        },
        condition: entry.markers.clone(),
    })
}

/// Compares the digest of the Pipfile, and what it asks for.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    let file = python::table(lock, declared, "Pipfile")?;
    let made: Vec<String> = digest(&file).into_iter().collect();
    python::same_digest(lock, "Pipfile", &facts.hash, &made)?;
    for (section, value) in &file {
        let category = match section.as_str() {
            "packages" => "default",
            "dev-packages" => "develop",
            "source" | "requires" | "scripts" | "pipfile" | "pipenv" => continue,
            other => other,
        };
        for (name, _) in value.as_table().into_iter().flatten() {
            if !facts.held.contains(&(category.to_owned(), normal_name(name))) {
                return Err(
                    incomplete(&lock.path, "lacks a declared dependency").names([name.as_str(), "Pipfile"])
                );
            }
        }
    }
    Ok(Vec::new())
}

/// Computes Pipenv's digest of a Pipfile.
fn digest(file: &toml::Table) -> Option<String> {
    let none = || Value::Map(Vec::new());
    let pick = |key: &str| python::value_or(file.get(key), none());
    let meta = vec![
        ("sources".to_owned(), pick("source")?),
        ("requires".to_owned(), pick("requires")?),
    ];
    let mut whole = vec![
        ("_meta".to_owned(), Value::Map(meta)),
        ("default".to_owned(), pick("packages")?),
        ("develop".to_owned(), pick("dev-packages")?),
    ];
    const OTHERS: [&str; 9] = [
        "source",
        "packages",
        "dev-packages",
        "requires",
        "scripts",
        "pipfile",
        "pipenv",
        "default",
        "develop",
    ];
    for (category, _) in file.iter().filter(|(name, _)| !OTHERS.contains(&name.as_str())) {
        whole.push((category.clone(), pick(category)?));
    }
    Some(Sha256::of(write(&Value::Map(whole), Writer::PythonTight)?.as_bytes()).to_string())
}
