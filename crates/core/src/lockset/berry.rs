//! yarn.lock of Yarn 2 and later: entries keyed by what is asked for, the projects among them, and `linkType` as the
//! end mark of each.
//!
//! A checksum is of the archive in Yarn's cache, not of the tarball of the registry. Yarn writes none for a package
//! with conditions; such a package is named as bound by nothing.

use super::berry_range::{self, Form, Patched, Side, split};
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
    /// Which entry is of which resolution, such as `ms@npm:2.1.3`.
    resolutions: BTreeMap<String, usize>,
    /// The patches that are files of the tree.
    pub(super) patches: BTreeSet<RelPath>,
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
            asked(lock, entry, &package, pattern, at, &mut facts)?;
        }
        let resolution = entry.value.get("resolution").and_then(Node::text).unwrap_or("");
        if facts.resolutions.insert(resolution.to_owned(), at).is_some() {
            return Err(incomplete(&lock.path, "holds an entry twice").name(resolution));
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
        lock.packages.push(package);
    }
    lock.say_unbound(super::weak::BERRY);
    if facts.projects.is_empty() {
        return Err(incomplete(&lock.path, "does not say what it was made from"));
    }
    lock.facts = AnyFacts::Berry(Box::new(facts));
    Ok(())
}

/// Reads what an entry answers, and enters it.
fn asked(
    lock: &Lockfile,
    entry: &Entry,
    package: &Package,
    pattern: &str,
    at: usize,
    facts: &mut Facts,
) -> Result<(), Refusal> {
    let wrong = |why: &str| {
        incomplete(&lock.path, why).names([format!("line {}: {}", entry.line, entry.key), pattern.to_owned()])
    };
    let (name, range) = split(pattern).ok_or_else(|| wrong("has a package whose name no registry has"))?;
    let form = berry_range::read(Side::Asked, name, range, &lock.directory()).map_err(wrong)?;
    let of = match &form {
        Form::Npm(range) => split(range).map_or(name, |(other, _)| other),
        _ => name,
    };
    if of != package.name {
        return Err(wrong("gives a package the artifact of another one"));
    }
    if let Form::Patched(Patched { files, builtin, .. }) = form {
        facts.patches.extend(files);
        if builtin > 0 {
            facts.builtin.push(at);
        }
    }
    match facts.patterns.insert(pattern.to_owned(), at) {
        None => Ok(()),
        Some(_) => Err(incomplete(&lock.path, "holds an entry twice").name(pattern)),
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
    let form = berry_range::read(Side::Taken, name, reference, &lock.directory())
        .map_err(|why| wrong(why).name(resolution))?;
    if matches!(&form, Form::Npm(taken) if taken != version) {
        return Err(wrong("gives a package the artifact of another one").name(resolution));
    }
    let condition = field("conditions").map(str::to_owned);
    let mut artifacts = Vec::new();
    let source = match (link, form) {
        ("soft", Form::Project(at)) => Source::Virtual(
            resolve(&lock.directory(), &at)
                .ok_or_else(|| wrong("takes a package from outside of the tree"))?,
        ),
        ("soft", Form::Linked(at)) => Source::Local(at),
        ("hard", Form::Npm(_) | Form::Patched(_) | Form::Packed(_) | Form::Tarball(_)) => {
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
    let asked = all_known(lock, facts, declared, &root)?;
    let graph = Graph::new(lock);
    let find = |edge: &Dependency| -> Vec<usize> {
        let range = edge.version.as_deref().unwrap_or("");
        let mut found: Vec<usize> = facts.answers(&edge.name, range).collect();
        // What a registry is asked for runs nothing, whichever version of it `resolutions` name.
        let data = berry_range::read(Side::Asked, &edge.name, range, &lock.directory());
        if found.is_empty() && by_hand.contains(&edge.name) && matches!(data, Ok(Form::Npm(_))) {
            found.extend(graph.named(&edge.name));
        }
        found
    };
    let mut edges = graph.edges_by(|_, edge| find(edge), |_, _| Lost::Refused)?;
    patches_stand(lock, facts, &mut edges)?;
    let roots = facts.projects.values().chain(&facts.builtin).copied();
    let roots = roots.chain(asked).collect();
    graph.no_orphan(&edges, roots)?;
    Ok(Vec::new())
}

impl Facts {
    /// Finds the entries that answer what is asked for; none that only look alike.
    fn answers(&self, name: &str, range: &str) -> impl Iterator<Item = usize> {
        let exact = [format!("{name}@{range}"), format!("{name}@npm:{range}")];
        let mut found: Vec<usize> = exact
            .iter()
            .filter_map(|key| self.patterns.get(key))
            .copied()
            .collect();
        if found.is_empty() {
            // Yarn adds to whom a path belongs, and from which version a patch is.
            let longer = format!("{}::", exact[0]);
            let alike = self.patterns.range(longer.clone()..);
            found.extend(
                alike
                    .take_while(|(k, _)| k.starts_with(&longer))
                    .map(|(_, at)| *at),
            );
        }
        found.into_iter()
    }
}

/// Proves that a patch stands on a package that the lock holds by an entry of its own, and of the same version.
fn patches_stand(lock: &Lockfile, facts: &Facts, edges: &mut [Vec<usize>]) -> Result<(), Refusal> {
    let home = lock.directory();
    let sides = [(Side::Asked, &facts.patterns), (Side::Taken, &facts.resolutions)];
    for (side, entries) in sides {
        for (text, at) in entries {
            let read = split(text).map(|(name, range)| berry_range::read(side, name, range, &home));
            let Some(Ok(Form::Patched(Patched { inner, .. }))) = read else {
                continue;
            };
            let below: Vec<usize> = match side {
                Side::Taken => facts.resolutions.get(&inner).copied().into_iter().collect(),
                Side::Asked => split(&inner)
                    .map(|(name, range)| facts.answers(name, range).collect())
                    .unwrap_or_default(),
            };
            let same = |below: &usize| lock.packages[*below].version == lock.packages[*at].version;
            if below.is_empty() || !below.iter().all(same) {
                return Err(
                    incomplete(&lock.path, "has a patch on a package that it does not hold")
                        .names([text.clone(), inner]),
                );
            }
            edges[*at].extend(below);
        }
    }
    Ok(())
}

/// Proves that everything that the projects ask Yarn for, by whichever section, is data of a registry, or an entry of
/// the lock: Yarn looks at some of it in another order than it is compared here. Gives what `resolutions` lead to.
fn all_known(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
    root: &Project,
) -> Result<Vec<usize>, Refusal> {
    let top = lock.directory();
    let known = |home: &RelPath, name: &str, range: &str| {
        let wrong = |why: &str| {
            incomplete(&lock.path, why).names([format!("{name}@{range}"), format!("{home}/package.json")])
        };
        let form = berry_range::read_of(home, name, range, &top).map_err(wrong)?;
        let mut found: Vec<usize> = facts.answers(name, range).collect();
        if matches!(form, Form::Npm(_) | Form::Project(_)) {
            return Ok(found);
        }
        // Yarn writes what is patched in one way, whichever way it was asked for.
        let start = format!("{name}@");
        let own = facts.patterns.range(start.clone()..);
        let own = own.take_while(|(key, _)| found.is_empty() && key.starts_with(&start));
        let alike = own.filter(|(key, _)| {
            berry_range::read(Side::Asked, name, &key[start.len()..], &top).as_ref() == Ok(&form)
        });
        let alike: Vec<usize> = alike.map(|(_, at)| *at).collect();
        found.extend(alike);
        match found.is_empty() {
            true => Err(wrong("lacks a declared dependency")),
            false => Ok(found),
        }
    };
    let mut by_hand = Vec::new();
    for (key, range) in &root.resolutions.0 {
        by_hand.extend(known(&top, &super::yarn::spoken_of(key), range)?);
    }
    for home in facts.projects.keys() {
        let file = Project::read(lock, declared, home)?;
        let sections = [
            &file.dependencies,
            &file.dev_dependencies,
            &file.optional_dependencies,
        ];
        for (name, range) in sections.iter().flat_map(|section| &section.0) {
            known(home, name, range)?;
        }
    }
    Ok(by_hand)
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
