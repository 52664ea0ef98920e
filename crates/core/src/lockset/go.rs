//! go.sum: a hash of each module and of each `go.mod`, with neither a graph nor an end.
//!
//! Every prefix of such a file is a valid one, so a cut made before sealing can be seen only where `go.mod` asks for
//! what is gone: always named as weak.

use super::{
    Algorithm, Artifact, Declared, Facts, Lockfile, Package, Scope, Source, front, incomplete, manifest,
};
use crate::code::Refusal;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use std::collections::{BTreeMap, BTreeSet};

/// Parses go.sum into `lock`.
///
/// # Source
/// The Go Modules Reference, "go.sum files". `h1` is SHA-256 over a list of the files and their SHA-256.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    if !text.is_empty() {
        front::plain_lines(&lock.path, text)?;
    }
    let mut modules: BTreeMap<(&str, &str), Vec<Artifact>> = BTreeMap::new();
    for (at, line) in text.lines().enumerate() {
        let wrong = |why: &str| incomplete(&lock.path, why).name(format!("line {}: {}", at + 1, head(line)));
        let words: Vec<&str> = line.split(' ').collect();
        let [module, version, hash] = words.as_slice() else {
            return Err(wrong("has a line that is not understood"));
        };
        let (version, file) = match version.strip_suffix("/go.mod") {
            Some(version) => (version, "go.mod"),
            None => (*version, "zip"),
        };
        if module.is_empty() || !version.starts_with('v') || version.contains('/') {
            return Err(wrong("has a line that is not understood"));
        }
        let coded = hash
            .strip_prefix("h1:")
            .and_then(|h| BASE64_STANDARD.decode(h).ok());
        let digest = coded
            .filter(|d| d.len() == 32)
            .ok_or_else(|| wrong("has a hash that is not whole"))?;
        let held = modules.entry((module, version)).or_default();
        if held.iter().any(|a| a.name == file) {
            return Err(wrong("holds an entry twice"));
        }
        held.push(Artifact {
            name: file.to_owned(),
            algorithm: Algorithm::Sha256,
            digest,
            size_bytes: None,
        });
    }
    for ((module, version), artifacts) in modules {
        lock.packages.push(Package {
            name: module.to_owned(),
            version: Some(version.to_owned()),
            source: Source::Hashed,
            artifacts,
            dependencies: Vec::new(),
            place: None,
            scope: Scope::Always,
            condition: None,
        });
    }
    lock.facts = Facts::Go;
    lock.say_weak();
    Ok(())
}

fn head(line: &str) -> String {
    line.split(' ').next().unwrap_or("").chars().take(80).collect()
}

/// Holds what a `go.mod` says about modules.
#[derive(Default)]
struct Manifest {
    /// Module, version, and whether another module asks for it.
    wanted: Vec<(String, String, Use)>,
    /// What is taken in the place of a module; a path has no version.
    replaced: Vec<(String, Option<String>, String, Option<String>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Direct,
    Indirect,
}

/// Proves that everything that `go.mod` asks for has its hashes.
pub(super) fn close_over(lock: &Lockfile, declared: &Declared) -> Result<Vec<String>, Refusal> {
    let text = manifest(lock, declared, &lock.directory(), "go.mod")?;
    let file = read(lock, text)?;
    let held: BTreeSet<(&str, &str, &str)> = lock
        .packages
        .iter()
        .flat_map(|p| {
            p.artifacts.iter().map(|a| {
                (
                    p.name.as_str(),
                    p.version.as_deref().unwrap_or(""),
                    a.name.as_str(),
                )
            })
        })
        .collect();
    for (module, version, used) in &file.wanted {
        let instead = file
            .replaced
            .iter()
            .find(|(from, at, _, _)| from == module && at.as_ref().is_none_or(|at| at == version));
        let (module, version) = match instead {
            None => (module, version),
            Some((_, _, to, Some(version))) => (to, version),
            // A directory is bound by the tree, if it is in there.
            Some((_, _, to, None)) => {
                super::resolve(&lock.directory(), to).ok_or_else(|| {
                    incomplete(&lock.path, "takes a package from outside of the tree").name(module)
                })?;
                continue;
            }
        };
        let needed: &[&str] = match used {
            Use::Direct => &["go.mod", "zip"],
            Use::Indirect => &["go.mod"],
        };
        for file in needed {
            if !held.contains(&(module, version, file)) {
                return Err(incomplete(&lock.path, "lacks a declared dependency")
                    .names([format!("{module} {version} ({file})"), "go.mod".to_owned()]));
            }
        }
    }
    Ok(Vec::new())
}

fn read(lock: &Lockfile, text: &str) -> Result<Manifest, Refusal> {
    let mut file = Manifest::default();
    let mut block: Option<String> = None;
    for (at, line) in text.lines().enumerate() {
        let (body, comment) = line.split_once("//").unwrap_or((line, ""));
        let wrong = || {
            incomplete(&lock.path, "has a manifest with a line that is not understood")
                .name(format!("go.mod line {}", at + 1))
        };
        let mut words: Vec<&str> = body
            .split_whitespace()
            .map(|w| w.trim_matches(['"', '`']))
            .collect();
        match words.as_slice() {
            [] => continue,
            [")"] => {
                block = None;
                continue;
            }
            [verb, "("] => {
                block = Some((*verb).to_owned());
                continue;
            }
            _ => {}
        }
        let verb = match &block {
            Some(verb) => verb.clone(),
            None => words.remove(0).to_owned(),
        };
        match (verb.as_str(), words.as_slice()) {
            ("require", [module, version]) => {
                let indirect = comment.trim() == "indirect" || comment.trim().starts_with("indirect;");
                let used = if indirect { Use::Indirect } else { Use::Direct };
                file.wanted
                    .push(((*module).to_owned(), (*version).to_owned(), used));
            }
            ("replace", [from, rest @ ..]) => {
                let cut = rest.iter().position(|w| *w == "=>").ok_or_else(wrong)?;
                let version = rest[..cut].first().map(|v| (*v).to_owned());
                let [to, new @ ..] = &rest[cut + 1..] else {
                    return Err(wrong());
                };
                let new = new.first().map(|v| (*v).to_owned());
                file.replaced
                    .push(((*from).to_owned(), version, (*to).to_owned(), new));
            }
            ("require" | "replace", _) => return Err(wrong()),
            _ => {}
        }
    }
    Ok(file)
}
