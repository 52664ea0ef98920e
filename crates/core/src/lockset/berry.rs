//! yarn.lock of Yarn 2 and later: entries keyed by what is asked for, the projects among them, and `linkType` as the
//! end mark of each.
//!
//! A checksum is of the archive in Yarn's cache, not of the tarball of the registry. Yarn writes none for a package
//! with conditions; such a package is named as bound by nothing.

use super::fetchable;
use super::graph::{Graph, Lost};
use super::npm::Project;
use super::yaml::{self, Entry, Node};
use super::yarn::resolved_by_hand;
use super::{
    Algorithm, Artifact, Declared, Dependency, Facts as AnyFacts, Lockfile, Package, Scope, Source, front,
    incomplete, label, resolve, same_set,
};
use crate::code::Refusal;
use crate::digest::from_hex;
use crate::path::RelPath;
use std::collections::{BTreeMap, BTreeSet};

/// Holds what the lock says about its own inputs.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Which entry answers what is asked for, such as `ms@npm:^2.1.3`.
    pub(super) patterns: BTreeMap<String, usize>,
    /// The projects, by directory.
    projects: BTreeMap<RelPath, usize>,
    /// What each project asks of those who use it.
    peers: BTreeMap<RelPath, BTreeSet<String>>,
    /// What each project can do without.
    optional: BTreeMap<RelPath, BTreeSet<String>>,
    /// Patches that Yarn itself puts on packages, and that nobody asks for.
    builtin: Vec<usize>,
}

/// Parses yarn.lock into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    front::plain_lines(&lock.path, text)?;
    let file = yaml::parse(text)
        .map_err(|w| incomplete(&lock.path, "does not parse").name(format!("line {} {}", w.line, w.why)))?;
    let about = file.get("__metadata");
    let version = about
        .and_then(|m| m.get("version"))
        .and_then(Node::text)
        .unwrap_or("none");
    if !version.parse::<u32>().is_ok_and(|v| (4..=10).contains(&v)) {
        return Err(incomplete(&lock.path, "is of a version that is not supported").name(version));
    }
    let mut facts = Facts::default();
    for entry in file.entries().iter().filter(|e| e.key != "__metadata") {
        let at = lock.packages.len();
        let package = package(lock, entry)?;
        for pattern in entry.key.split(", ") {
            if pattern.is_empty() || facts.patterns.insert(pattern.to_owned(), at).is_some() {
                return Err(incomplete(&lock.path, "holds an entry twice").name(pattern));
            }
        }
        if let Source::Virtual(home) = &package.source {
            let keys = |section: &str| entry.value.get(section).map_or(&[][..], Node::entries).iter();
            let peers = keys("peerDependencies")
                .filter_map(|e| Some(format!("{}@{}", e.key, plain(e.value.text()?))));
            facts.peers.insert(home.clone(), peers.collect());
            facts
                .optional
                .insert(home.clone(), optional(entry).map(str::to_owned).collect());
            if facts.projects.insert(home.clone(), at).is_some() {
                return Err(incomplete(&lock.path, "holds an entry twice").name(&entry.key));
            }
        } else if package.source == Source::Hashed && package.artifacts.is_empty() {
            lock.unbound.push(label(&package));
        }
        if entry.key.contains("@patch:") && entry.key.contains("builtin<") {
            facts.builtin.push(at);
        }
        lock.packages.push(package);
    }
    lock.say_unbound(super::weak::BERRY);
    if facts.projects.is_empty() {
        return Err(incomplete(&lock.path, "does not say what it was made from"));
    }
    lock.facts = AnyFacts::Berry(Box::new(facts));
    Ok(())
}

/// Refuses what Yarn would clone, since it would build it; what it asks of a registry goes by name and version.
fn sound(name: &str, version: &str, kind: &str, reference: &str) -> Result<(), &'static str> {
    match kind {
        "npm" => fetchable::check(name, version, ""),
        "https" | "http" if fetchable::is_repository(reference) => {
            Err("takes a package from git, which no hash binds")
        }
        _ => Ok(()),
    }
}

fn package(lock: &Lockfile, entry: &Entry) -> Result<Package, Refusal> {
    let wrong = |why: &str| incomplete(&lock.path, why).name(format!("line {}: {}", entry.line, entry.key));
    let field = |key: &str| entry.value.get(key).and_then(Node::text);
    let (Some(version), Some(resolution)) = (field("version"), field("resolution")) else {
        return Err(wrong("has a package without a version"));
    };
    let link = field("linkType").filter(|_| field("languageName").is_some());
    let link = link.ok_or_else(|| wrong("is cut: an entry of it has no end"))?;
    let (name, reference) =
        split(resolution).ok_or_else(|| wrong("has a resolution that is not understood"))?;
    let (kind, rest) = reference.split_once(':').unwrap_or(("", reference));
    let inside = |path: &str| {
        let path = path.split("::").next().unwrap_or(path);
        resolve(&lock.directory(), path).ok_or_else(|| wrong("takes a package from outside of the tree"))
    };
    if kind == "npm" && rest.split("::").next() != Some(version) {
        return Err(wrong("gives a package the artifact of another one").name(resolution));
    }
    sound(name, version, kind, reference).map_err(|why| wrong(why).name(resolution))?;
    let condition = field("conditions").map(str::to_owned);
    let mut artifacts = Vec::new();
    let source = match (link, kind) {
        ("soft", "workspace") => Source::Virtual(inside(rest)?),
        ("soft", "link" | "portal") => Source::Local(inside(rest)?),
        ("hard", "npm" | "patch" | "file" | "https" | "http") if !reference.contains(".git#") => {
            match field("checksum") {
                Some(checksum) => artifacts.push(
                    artifact(checksum, resolution)
                        .ok_or_else(|| wrong("has a checksum that is not whole"))?,
                ),
                None if condition.is_some() => {}
                None => return Err(wrong("has a package without a checksum")),
            }
            Source::Hashed
        }
        ("soft" | "hard", _) => return Err(wrong("takes a package from where no checksum binds it")),
        _ => return Err(wrong("is cut: an entry of it has no end")),
    };
    let mut dependencies = Vec::new();
    let optional: BTreeSet<&str> = optional(entry).collect();
    for one in entry.value.get("dependencies").map_or(&[][..], Node::entries) {
        let range = one
            .value
            .text()
            .ok_or_else(|| wrong("has a dependency without a range").name(&one.key))?;
        dependencies.push(Dependency {
            name: one.key.clone(),
            version: Some(range.to_owned()),
            extras: Vec::new(),
            scope: if optional.contains(one.key.as_str()) {
                Scope::Optional(String::new())
            } else {
                Scope::Always
            },
            marker: None,
        });
    }
    Ok(Package {
        name: name.to_owned(),
        version: Some(version.to_owned()),
        source,
        artifacts,
        dependencies,
        place: Some(entry.key.clone()),
        scope: Scope::Always,
        condition,
    })
}

/// Names what an entry can do without.
fn optional(entry: &Entry) -> impl Iterator<Item = &str> {
    let all = entry
        .value
        .get("dependenciesMeta")
        .map_or(&[][..], Node::entries)
        .iter();
    all.filter(|e| e.value.get("optional").and_then(Node::text) == Some("true"))
        .map(|e| e.key.as_str())
}

/// Reads a checksum, with or without the key of the cache that it is for.
fn artifact(checksum: &str, resolution: &str) -> Option<Artifact> {
    let hex = checksum.rsplit_once('/').map_or(checksum, |(_, hex)| hex);
    let digest = from_hex(hex).filter(|d| d.len() == Algorithm::Sha512.bytes())?;
    Some(Artifact {
        name: resolution.to_owned(),
        algorithm: Algorithm::Sha512,
        digest,
        size_bytes: None,
    })
}

fn split(resolution: &str) -> Option<(&str, &str)> {
    let from = usize::from(resolution.starts_with('@'));
    let at = resolution[from..].find('@')? + from;
    (at > 0).then(|| (&resolution[..at], &resolution[at + 1..]))
}

/// Takes `npm:` away, which newer versions write before a plain range.
fn plain(range: &str) -> &str {
    match range.strip_prefix("npm:") {
        Some(rest) if !rest[usize::from(rest.starts_with('@')).min(rest.len())..].contains('@') => rest,
        _ => range,
    }
}

/// Compares each project in the lock with its `package.json`, and closes the graph over them.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    let root = Project::read(lock, declared, &lock.directory())?;
    if !facts.projects.contains_key(&lock.directory()) {
        return Err(incomplete(&lock.path, "does not hold the project it lies beside").names(root.name));
    }
    for (home, _) in super::yarn::projects(lock, declared)? {
        if !facts.projects.contains_key(&home) {
            return Err(incomplete(&lock.path, "lacks a workspace").name(home.to_string()));
        }
    }
    for (home, at) in &facts.projects {
        compare(lock, facts, declared, home, &lock.packages[*at])?;
    }
    let by_hand = resolved_by_hand(&root);
    let graph = Graph::new(lock);
    let find = |edge: &Dependency| -> Vec<usize> {
        let range = edge.version.as_deref().unwrap_or("");
        let exact = [
            format!("{}@{range}", edge.name),
            format!("{}@npm:{range}", edge.name),
        ];
        let mut found: Vec<usize> = exact
            .iter()
            .filter_map(|key| facts.patterns.get(key))
            .copied()
            .collect();
        if found.is_empty() {
            // Yarn adds to whom a path belongs, and from which version a patch is.
            let longer = format!("{}::", exact[0]);
            found.extend(
                facts
                    .patterns
                    .range(longer.clone()..)
                    .take_while(|(k, _)| k.starts_with(&longer))
                    .map(|(_, at)| *at),
            );
        }
        if found.is_empty() && by_hand.contains(&edge.name) {
            found.extend(graph.named(&edge.name));
        }
        found
    };
    let mut edges = graph.edges_by(|_, edge| find(edge), |_, _| Lost::Refused)?;
    // A patch stands on the package that it changes.
    for (pattern, at) in &facts.patterns {
        if let Some((name, inner)) =
            split(pattern).and_then(|(name, range)| Some((name, range.strip_prefix("patch:")?)))
        {
            let inner = inner.split('#').next().unwrap_or(inner).replace("%3A", ":");
            let below = facts.patterns.get(&inner).copied();
            let below = below.or_else(|| graph.named(name).iter().find(|b| *b != at).copied());
            edges[*at].extend(below);
        }
    }
    let roots = facts.projects.values().chain(&facts.builtin).copied().collect();
    graph.no_orphan(&edges, roots)?;
    Ok(Vec::new())
}

fn compare(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
    home: &RelPath,
    package: &Package,
) -> Result<(), Refusal> {
    let file = Project::read(lock, declared, home)?;
    let named = |name: &str, range: &str, optional: &BTreeSet<String>| {
        let word = if optional.contains(name) { "optional " } else { "" };
        format!("{word}{name}@{}", plain(range))
    };
    let none = BTreeSet::new();
    let optional = facts.optional.get(home).unwrap_or(&none);
    let have: BTreeSet<String> = package
        .dependencies
        .iter()
        .map(|d| named(&d.name, d.version.as_deref().unwrap_or(""), optional))
        .collect();
    let mut wanted: BTreeMap<&String, &String> = BTreeMap::new();
    for map in [
        &file.dev_dependencies,
        &file.dependencies,
        &file.optional_dependencies,
    ] {
        wanted.extend(&map.0);
    }
    let mut may_lack: BTreeSet<String> = file.optional_dependencies.0.keys().cloned().collect();
    // `dependenciesMeta` says the same as `optionalDependencies` does.
    may_lack.extend(
        optional
            .iter()
            .filter(|name| file.dependencies.0.contains_key(*name))
            .cloned(),
    );
    let want = wanted
        .iter()
        .map(|(name, range)| named(name, range, &may_lack))
        .collect();
    let what = if *home == lock.directory() {
        "its dependencies".to_owned()
    } else {
        format!("the dependencies of {home}")
    };
    same_set(lock, &what, &have, &want)?;
    let peers = file
        .peer_dependencies
        .0
        .iter()
        .map(|(name, range)| format!("{name}@{}", plain(range)))
        .collect();
    same_set(
        lock,
        &format!("{what} on peers"),
        facts.peers.get(home).unwrap_or(&none),
        &peers,
    )
}
