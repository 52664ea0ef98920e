//! yarn.lock of Yarn 1: entries keyed by what is asked for, with an integrity each, and neither roots nor an end.
//!
//! What Yarn 2 and later write under the same name is YAML: see `berry`.

use super::fetchable;
use super::graph::{Graph, Lost};
use super::npm::{self, Project};
use super::{
    Algorithm, Artifact, Declared, Dependency, Facts as AnyFacts, Lockfile, Package, Scope, Source, cargo,
    front, incomplete, resolve,
};
use crate::code::Refusal;
use crate::digest::from_hex;
use crate::path::RelPath;
use std::collections::{BTreeMap, BTreeSet};

/// Holds which entry answers what is asked for, such as `ms@^2.1.3`.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) patterns: BTreeMap<String, usize>,
}

/// Says whether a yarn.lock is of Yarn 2 or later.
pub(super) fn is_berry(text: &str) -> bool {
    text.lines().any(|line| line == "__metadata:")
}

/// Says whether an entry is the last one of a lock that has integrities.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Last,
    Other,
}

struct Entry {
    line: usize,
    patterns: Vec<String>,
    fields: BTreeMap<String, String>,
    edges: Vec<(String, String, Scope)>,
}

/// Parses yarn.lock into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    front::plain_lines(&lock.path, text)?;
    if !text.lines().take(2).any(|line| line == "# yarn lockfile v1") {
        return Err(incomplete(&lock.path, "does not say of which version it is"));
    }
    let entries = entries(lock, text)?;
    let mut facts = Facts::default();
    let modern = entries.iter().any(|e| e.fields.contains_key("integrity"));
    for (at, entry) in entries.iter().enumerate() {
        let end = if modern && at + 1 == entries.len() {
            End::Last
        } else {
            End::Other
        };
        let package = package(lock, entry, end)?;
        for pattern in &entry.patterns {
            if facts
                .patterns
                .insert(pattern.clone(), lock.packages.len())
                .is_some()
            {
                return Err(incomplete(&lock.path, "holds an entry twice").name(pattern));
            }
        }
        if package.artifacts.iter().any(|a| a.algorithm == Algorithm::Sha1) {
            let weak = format!(
                "{}: {} is bound by SHA-1 alone",
                lock.path,
                super::label(&package)
            );
            lock.weak.push(weak);
        }
        lock.packages.push(package);
    }
    if let Some(last) = entries.last() {
        let weak = format!(
            "{}: {}: {}",
            lock.path,
            super::weak::YARN,
            last.patterns.join(", ")
        );
        lock.weak.push(weak);
    }
    lock.facts = AnyFacts::Yarn(Box::new(facts));
    Ok(())
}

/// Reads the entries, line by line.
fn entries(lock: &Lockfile, text: &str) -> Result<Vec<Entry>, Refusal> {
    let mut all: Vec<Entry> = Vec::new();
    let mut block: Option<Scope> = None;
    let mut peers = false;
    let mut edges_seen = BTreeSet::new();
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        let wrong = |why: &str| incomplete(&lock.path, why).name(format!("line {number}: {}", head(line)));
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let body = line.trim_start_matches(' ');
        let depth = line.len() - body.len();
        match depth {
            0 => {
                let keys = body
                    .strip_suffix(':')
                    .ok_or_else(|| wrong("has a line that is not understood"))?;
                let patterns = words(keys)
                    .into_iter()
                    .map(unquoted)
                    .collect::<Option<Vec<String>>>();
                let patterns = patterns.filter(|p| p.iter().all(|p| split(p).is_some()));
                let patterns = patterns.ok_or_else(|| wrong("has a line that is not understood"))?;
                all.push(Entry {
                    line: number,
                    patterns,
                    fields: BTreeMap::new(),
                    edges: Vec::new(),
                });
                (block, peers) = (None, false);
            }
            2 => {
                let entry = all
                    .last_mut()
                    .ok_or_else(|| wrong("has a line that is not understood"))?;
                peers = body == "peerDependencies:" || body == "peerDependenciesMeta:";
                block = match body {
                    "dependencies:" => Some(Scope::Always),
                    "optionalDependencies:" => Some(Scope::Optional(String::new())),
                    _ => None,
                };
                if block.is_none() && !peers {
                    let (key, value) =
                        pair(body).ok_or_else(|| wrong("has a line that is not understood"))?;
                    if entry.fields.insert(key, value).is_some() {
                        return Err(wrong("holds a key that stands twice"));
                    }
                }
            }
            4 if peers => {}
            4 => {
                let entry = all
                    .last_mut()
                    .ok_or_else(|| wrong("has a line that is not understood"))?;
                let scope = block
                    .clone()
                    .ok_or_else(|| wrong("has a line that is not understood"))?;
                let (name, range) = pair(body).ok_or_else(|| wrong("has a line that is not understood"))?;
                let again = (entry.line, name.clone(), matches!(scope, Scope::Always));
                if !edges_seen.insert(again) {
                    return Err(wrong("holds a key that stands twice"));
                }
                entry.edges.push((name, range, scope));
            }
            _ => return Err(wrong("has a line that is not understood")),
        }
    }
    Ok(all)
}

/// Splits keys at the commas that stand outside of quotes.
fn words(keys: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = keys;
    loop {
        let end = match rest.strip_prefix('"') {
            Some(inner) => inner.find("\", ").map(|end| end + 2),
            None => rest.find(", "),
        };
        let Some(end) = end else {
            all.push(rest);
            return all;
        };
        all.push(&rest[..end]);
        rest = &rest[end + 2..];
    }
}

fn head(line: &str) -> String {
    line.trim().chars().take(80).collect()
}

/// Takes the quotes of a word away; they hold no escapes but of a quote and a backslash.
fn unquoted(word: &str) -> Option<String> {
    match word.strip_prefix('"') {
        Some(inner) => serde_json::from_str(&format!("\"{inner}")).ok(),
        None => (!word.is_empty() && !word.contains(['"', ' ', ':'])).then(|| word.to_owned()),
    }
}

/// Splits a line into a word and its value.
fn pair(body: &str) -> Option<(String, String)> {
    let end = match body.strip_prefix('"') {
        Some(inner) => inner.find('"')? + 2,
        None => body.find(' ')?,
    };
    let value = body[end..].strip_prefix(' ')?;
    let plain = |word: &str| match word.starts_with('"') {
        true => unquoted(word),
        false => (!word.is_empty() && !word.contains(['"', ' '])).then(|| word.to_owned()),
    };
    Some((plain(&body[..end])?, plain(value)?))
}

/// Splits `name@range`.
fn split(pattern: &str) -> Option<(&str, &str)> {
    let from = usize::from(pattern.starts_with('@'));
    let at = pattern[from..].find('@')? + from;
    (at > 0).then(|| (&pattern[..at], &pattern[at + 1..]))
}

fn package(lock: &Lockfile, entry: &Entry, end: End) -> Result<Package, Refusal> {
    let key = entry.patterns.join(", ");
    let wrong = |why: &'static str| incomplete(&lock.path, why).name(format!("line {}: {key}", entry.line));
    let names: BTreeSet<&str> = entry
        .patterns
        .iter()
        .filter_map(|p| split(p))
        .map(|(name, _)| name)
        .collect();
    let name = names.iter().next().copied().unwrap_or("").to_owned();
    if names.len() != 1 {
        return Err(wrong("has one entry for several packages"));
    }
    let field = |name: &str| entry.fields.get(name).map(String::as_str);
    let version = field("version").ok_or_else(|| wrong("has a package without a version"))?;
    let (source, artifacts) = bytes(lock, entry, &name, end).map_err(wrong)?;
    let edge = |(name, range, scope): &(String, String, Scope)| Dependency {
        name: name.clone(),
        version: Some(range.clone()),
        extras: Vec::new(),
        scope: scope.clone(),
        marker: None,
    };
    Ok(Package {
        name,
        version: Some(version.to_owned()),
        source,
        artifacts,
        dependencies: entry.edges.iter().map(edge).collect(),
        place: Some(key),
        scope: Scope::Always,
        condition: None,
    })
}

/// Reads where the bytes of an entry come from, and what binds them.
fn bytes(
    lock: &Lockfile,
    entry: &Entry,
    name: &str,
    end: End,
) -> Result<(Source, Vec<Artifact>), &'static str> {
    const OUTSIDE: &str = "takes a package from outside of the tree";
    let field = |name: &str| entry.fields.get(name).map(String::as_str);
    let resolved = field("resolved").unwrap_or("");
    let (address, fragment) = resolved.split_once('#').unwrap_or((resolved, ""));
    if !npm::belongs(address, field("version").unwrap_or("")) {
        return Err("gives a package the artifact of another one");
    }
    let range = entry
        .patterns
        .first()
        .and_then(|p| split(p))
        .map_or("", |(_, range)| range);
    if let Some(path) = range
        .strip_prefix("file:")
        .or_else(|| address.strip_prefix("file:"))
    {
        resolve(&lock.directory(), path).ok_or(OUTSIDE)?;
    }
    if !address.is_empty() || field("integrity").is_some() {
        fetchable::check(name, field("version").unwrap_or(""), address)?;
    }
    if let Some(integrity) = field("integrity") {
        let all = npm::digests(integrity, address).ok_or("has an integrity that is not whole")?;
        return Ok((Source::Hashed, all));
    }
    if end == End::Last {
        return Err("is cut: its last package has no integrity, and others have");
    }
    if let Some(digest) = from_hex(fragment).filter(|d| d.len() == 20) {
        let name = address.to_owned();
        let artifact = Artifact {
            name,
            algorithm: Algorithm::Sha1,
            digest,
            size_bytes: None,
        };
        return Ok((Source::Hashed, vec![artifact]));
    }
    match range
        .strip_prefix("file:")
        .or_else(|| range.strip_prefix("link:"))
    {
        Some(path) if resolved.is_empty() => Ok((
            Source::Local(resolve(&lock.directory(), path).ok_or(OUTSIDE)?),
            Vec::new(),
        )),
        _ => Err("has a package without an integrity"),
    }
}

/// Finds every project of a tree: the one beside the lockfile, and its workspaces.
pub(super) fn projects(lock: &Lockfile, declared: &Declared) -> Result<Vec<(RelPath, Project)>, Refusal> {
    let home = lock.directory();
    let root = Project::read(lock, declared, &home)?;
    let mut homes = BTreeSet::new();
    for pattern in root.patterns() {
        let found = cargo::matching(&home, pattern.trim_end_matches('/'), declared, b"package.json");
        homes.extend(found.into_iter().filter(|at| *at != home));
    }
    let mut all = vec![(home, root)];
    for at in homes {
        // A pattern without a star may name a directory that is no project.
        if declared.texts.contains_key(&at.join(b"package.json")?) {
            let project = Project::read(lock, declared, &at)?;
            all.push((at, project));
        }
    }
    Ok(all)
}

/// Names the packages that `resolutions` speak of: their ranges are not those that packages ask for.
pub(super) fn resolved_by_hand(root: &Project) -> BTreeSet<String> {
    root.resolutions.0.keys().map(|key| spoken_of(key)).collect()
}

/// Names the package that one of `resolutions` speaks of.
pub(super) fn spoken_of(key: &str) -> String {
    let parts: Vec<&str> = key.split('/').collect();
    let scoped = parts.len() > 1 && parts[parts.len() - 2].starts_with('@');
    let name = if scoped {
        parts[parts.len() - 2..].join("/")
    } else {
        parts[parts.len() - 1].to_owned()
    };
    split(&name).map(|(name, _)| name.to_owned()).unwrap_or(name)
}

/// Proves that the lock answers everything that the projects and the packages ask for, and nothing besides.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    let projects = projects(lock, declared)?;
    let by_hand = projects
        .first()
        .map(|(_, root)| resolved_by_hand(root))
        .unwrap_or_default();
    let own: BTreeSet<&str> = projects.iter().filter_map(|(_, p)| p.name.as_deref()).collect();
    let graph = Graph::new(lock);
    let answers = |name: &str, range: &str| -> Vec<usize> {
        match facts.patterns.get(&format!("{name}@{range}")) {
            Some(at) => vec![*at],
            None if by_hand.contains(name) => graph.named(name).to_vec(),
            None => Vec::new(),
        }
    };
    let edges = graph.edges_by(
        |_, edge| answers(&edge.name, edge.version.as_deref().unwrap_or("")),
        |_, edge| {
            if own.contains(edge.name.as_str()) {
                Lost::Allowed
            } else {
                Lost::Refused
            }
        },
    )?;
    let mut roots = Vec::new();
    for (home, project) in &projects {
        let sections = [
            &project.dependencies,
            &project.dev_dependencies,
            &project.optional_dependencies,
        ];
        for (name, range) in sections.iter().flat_map(|map| &map.0) {
            let found = answers(name, range);
            let local = own.contains(name.as_str()) || range.starts_with("link:");
            if found.is_empty() && !local {
                return Err(incomplete(&lock.path, "lacks a declared dependency").names([
                    format!("{name}@{range}"),
                    format!("{}", home.join(b"package.json")?),
                ]));
            }
            roots.extend(found);
        }
    }
    graph.no_orphan(&edges, roots)?;
    Ok(Vec::new())
}
