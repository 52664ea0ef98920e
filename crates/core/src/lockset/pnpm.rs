//! pnpm-lock.yaml: the projects with what they ask for, each package with its integrity, each use of it with its peers.
//!
//! Version 9, which pnpm 9 and 10 write, and version 6 of pnpm 8, where packages and their uses are one section.

use super::fetchable;
use super::graph::{Graph, Lost, reach};
use super::npm::{self, Project};
use super::yaml::{self, Entry, Node};
use super::{
    Declared, Dependency, Facts as AnyFacts, Lockfile, Package, Scope, Source, front, incomplete, resolve,
};
use crate::code::Refusal;
use crate::path::RelPath;
use std::collections::{BTreeMap, BTreeSet};

/// Holds what the lock says about its own inputs.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Each project with what it asks for: section, name, range.
    importers: BTreeMap<RelPath, BTreeSet<(String, String, String)>>,
    /// Where the dependencies of the project beside the lock lead.
    pub(super) roots: Vec<Dependency>,
    /// Names whose ranges were written by an override.
    overridden: BTreeSet<String>,
    /// Names that are left out by order.
    ignored: BTreeSet<String>,
    /// Whether the peers of a project stand among its dependencies.
    peers: Peers,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Peers {
    #[default]
    LeftOut,
    Installed,
}

const SECTIONS: [&str; 3] = ["dependencies", "devDependencies", "optionalDependencies"];

/// Parses pnpm-lock.yaml into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    front::plain_lines(&lock.path, text)?;
    let file = yaml::parse(text)
        .map_err(|w| incomplete(&lock.path, "does not parse").name(format!("line {} {}", w.line, w.why)))?;
    let version = file.get("lockfileVersion").and_then(Node::text).unwrap_or("none");
    let shape = match version {
        "9.0" => Shape::Nine,
        "6.0" | "6.1" => Shape::Six,
        _ => return Err(incomplete(&lock.path, "is of a version that is not supported").name(version)),
    };
    let reader = Reader {
        lock,
        file: &file,
        shape,
    };
    reader.patches()?;
    let mut facts = reader.settings();
    let packages = reader.packages()?;
    let mut used = BTreeSet::new();
    let mut all = Vec::new();
    for entry in reader.section(shape.uses())? {
        all.push(reader.snapshot(entry, &packages, &mut used)?);
    }
    if let Some(lost) = packages.keys().find(|key| !used.contains(**key)) {
        return Err(incomplete(&lock.path, "holds a package that is used nowhere: it is cut").name(*lost));
    }
    let importers: Vec<(RelPath, Vec<Wanted>)> = reader.importers()?;
    for (home, wanted) in &importers {
        let asked = wanted
            .iter()
            .map(|w| (w.section.to_owned(), w.edge.name.clone(), w.range.clone()));
        facts.importers.insert(home.clone(), asked.collect());
        if *home == reader.lock.directory() {
            facts.roots = wanted.iter().map(|w| w.edge.clone()).collect();
        }
    }
    let last = reader
        .section(shape.uses())?
        .last()
        .filter(|last| shape.may_be_cut(last))
        .map(|last| last.key.clone());
    lock.packages = all;
    close(lock, &importers)?;
    if let Some(last) = last {
        let weak = format!("{}: {}: {last}", lock.path, super::weak::PNPM);
        lock.weak.push(weak);
    }
    lock.facts = AnyFacts::Pnpm(Box::new(facts));
    Ok(())
}

/// Says how a version of the format is laid out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Six,
    Nine,
}

impl Shape {
    /// Names the section of the uses, which is the last one.
    const fn uses(self) -> &'static str {
        match self {
            Shape::Six => "packages",
            Shape::Nine => "snapshots",
        }
    }

    /// Says whether the last entry may be the beginning of a longer one.
    fn may_be_cut(self, last: &Entry) -> bool {
        match self {
            // What follows is at most that it is optional, which its owner says as well.
            Shape::Six => last.value.get("dev").is_none(),
            Shape::Nine => !last.value.entries().is_empty(),
        }
    }

    /// Gives the key of a package, which version 6 begins with a slash.
    fn key(self, key: &str) -> &str {
        match self {
            Shape::Six => key.strip_prefix('/').unwrap_or(key),
            Shape::Nine => key,
        }
    }

    /// Gives the key of the package that a use is of.
    fn package(self, key: &str) -> &str {
        match self {
            Shape::Six => self.key(key),
            Shape::Nine => key.split('(').next().unwrap_or(""),
        }
    }
}

/// Holds one thing that a project asks for.
struct Wanted {
    section: &'static str,
    /// The name in the project, the package and version it leads to.
    edge: Dependency,
    key: Option<String>,
    range: String,
}

struct Reader<'a> {
    lock: &'a Lockfile,
    file: &'a Node,
    shape: Shape,
}

impl Reader<'_> {
    fn wrong(&self, entry: &Entry, why: &str) -> Refusal {
        incomplete(&self.lock.path, why).name(format!("line {}: {}", entry.line, entry.key))
    }

    fn section(&self, name: &str) -> Result<&[Entry], Refusal> {
        match self.file.get(name) {
            None => Ok(&[]),
            Some(Node::Map(all)) => Ok(all),
            Some(_) => Err(incomplete(&self.lock.path, "is cut: a section of it is empty").name(name)),
        }
    }

    /// Refuses a patch that is no file of the tree, or of a package that is not named.
    fn patches(&self) -> Result<(), Refusal> {
        for entry in self.section("patchedDependencies")? {
            let path = entry.value.get("path").and_then(Node::text).unwrap_or("");
            let inside = resolve(&self.lock.directory(), path).filter(|path| !path.is_root());
            let name = split(&entry.key).map_or(entry.key.as_str(), |(name, _)| name);
            if path.is_empty() || inside.is_none() || !fetchable::is_name(name) {
                return Err(self.wrong(entry, "has a patch that is not understood").name(path));
            }
        }
        Ok(())
    }

    fn settings(&self) -> Facts {
        let on = |key: &str| {
            self.file
                .get("settings")
                .and_then(|s| s.get(key))
                .and_then(Node::text)
                == Some("true")
        };
        let overrides = self.file.get("overrides").map_or(&[][..], Node::entries);
        let last = |key: &str| {
            let key = key.rsplit('>').next().unwrap_or(key);
            key[usize::from(key.starts_with('@'))..]
                .find('@')
                .map_or(key, |at| &key[..at + usize::from(key.starts_with('@'))])
                .to_owned()
        };
        let ignored = self
            .file
            .get("ignoredOptionalDependencies")
            .map(Node::texts)
            .unwrap_or_default();
        Facts {
            importers: BTreeMap::new(),
            roots: Vec::new(),
            overridden: overrides.iter().map(|e| last(&e.key)).collect(),
            ignored: ignored.into_iter().map(str::to_owned).collect(),
            peers: if on("autoInstallPeers") {
                Peers::Installed
            } else {
                Peers::LeftOut
            },
        }
    }

    /// Reads each package with its artifact, by `name@version`.
    fn packages(&self) -> Result<BTreeMap<&str, Package>, Refusal> {
        let mut all = BTreeMap::new();
        for entry in self.section("packages")? {
            let wrong = |why: &str| self.wrong(entry, why);
            let key = self.shape.key(&entry.key);
            let plain = key.split('(').next().unwrap_or(key);
            let (name, version) = split(plain).ok_or_else(|| wrong("has a package without a version"))?;
            let how = entry.value.get("resolution");
            let get = |key: &str| how.and_then(|r| r.get(key)).and_then(Node::text);
            let mut artifacts = Vec::new();
            let source = match (get("integrity"), get("type"), get("directory")) {
                (_, Some("directory") | None, Some(directory)) => {
                    let inside = resolve(&self.lock.directory(), directory);
                    Source::Local(inside.ok_or_else(|| wrong("takes a package from outside of the tree"))?)
                }
                (Some(integrity), None, None) => {
                    let from = get("tarball").unwrap_or("");
                    let own = entry.value.get("version").and_then(Node::text);
                    fetchable::check(name, own.unwrap_or(version), from)
                        .map_err(|why| wrong(why).name(from))?;
                    artifacts = npm::digests(integrity, from)
                        .ok_or_else(|| wrong("has an integrity that is not whole"))?;
                    if !npm::belongs(
                        from,
                        entry.value.get("version").and_then(Node::text).unwrap_or(version),
                    ) {
                        return Err(wrong("gives a package the artifact of another one").name(from));
                    }
                    Source::Hashed
                }
                (None, None, None) => return Err(wrong("has a package without an integrity")),
                _ => return Err(wrong("takes a package from where no integrity binds it")),
            };
            let package = Package {
                name: name.to_owned(),
                version: Some(
                    entry
                        .value
                        .get("version")
                        .and_then(Node::text)
                        .unwrap_or(version)
                        .to_owned(),
                ),
                source,
                artifacts,
                dependencies: Vec::new(),
                place: None,
                scope: Scope::Always,
                condition: condition(&entry.value),
            };
            all.insert(key, package);
        }
        Ok(all)
    }

    /// Reads one use of a package, with its peers.
    fn snapshot<'a>(
        &self,
        entry: &Entry,
        packages: &BTreeMap<&'a str, Package>,
        used: &mut BTreeSet<&'a str>,
    ) -> Result<Package, Refusal> {
        let wrong = |why: &str| self.wrong(entry, why);
        let base = self.shape.package(&entry.key);
        let (key, package) = packages
            .get_key_value(base)
            .ok_or_else(|| wrong("uses a package that it does not hold"))?;
        used.insert(key);
        let mut package = package.clone();
        if !matches!(entry.value, Node::Map(_)) {
            return Err(wrong("is cut: an entry of it is empty"));
        }
        for (section, scope) in [
            ("dependencies", Scope::Always),
            ("optionalDependencies", Scope::Optional(String::new())),
        ] {
            let Some(list) = entry.value.get(section) else {
                continue;
            };
            if list.entries().is_empty() {
                return Err(wrong("is cut: an entry of it is empty"));
            }
            for one in list.entries() {
                let version = one
                    .value
                    .text()
                    .ok_or_else(|| self.wrong(one, "has a dependency without a version"))?;
                package
                    .dependencies
                    .push(self.edge(&RelPath::root(), one, version, scope.clone())?);
            }
        }
        if entry.value.get("optional").and_then(Node::text) == Some("true") {
            package.scope = Scope::Optional(String::new());
        }
        package.place = Some(self.shape.key(&entry.key).to_owned());
        Ok(package)
    }

    /// Reads where a dependency leads; `version` of the edge is the key of the entry, none for a project.
    fn edge(
        &self,
        home: &RelPath,
        entry: &Entry,
        version: &str,
        scope: Scope,
    ) -> Result<Dependency, Refusal> {
        let key = match version.strip_prefix("link:") {
            Some(path) => {
                let from = if home.is_root() {
                    self.lock.directory()
                } else {
                    home.clone()
                };
                resolve(&from, path)
                    .ok_or_else(|| self.wrong(entry, "takes a package from outside of the tree"))?;
                None
            }
            None => Some(key(&entry.key, self.shape.key(version))),
        };
        Ok(Dependency {
            name: entry.key.clone(),
            version: key,
            extras: Vec::new(),
            scope,
            marker: None,
        })
    }

    fn importers(&self) -> Result<Vec<(RelPath, Vec<Wanted>)>, Refusal> {
        let mut all = Vec::new();
        // Version 6 writes a project that is alone at the top.
        let alone = [Entry {
            key: ".".to_owned(),
            line: 1,
            value: self.file.clone(),
        }];
        let importers = match self.section("importers")? {
            [] if self.shape == Shape::Six && SECTIONS.iter().any(|s| self.file.get(s).is_some()) => {
                &alone[..]
            }
            [] => return Err(incomplete(&self.lock.path, "does not say what it was made from")),
            several => several,
        };
        for importer in importers {
            let outside = || self.wrong(importer, "takes a package from outside of the tree");
            let home = resolve(&self.lock.directory(), &importer.key).ok_or_else(outside)?;
            if !matches!(importer.value, Node::Map(_)) {
                return Err(self.wrong(importer, "is cut: an entry of it is empty"));
            }
            let mut wanted = Vec::new();
            for section in SECTIONS {
                let scope = match section {
                    "dependencies" => Scope::Always,
                    "devDependencies" => Scope::Dev("dev".to_owned()),
                    _ => Scope::Optional(String::new()),
                };
                for entry in importer.value.get(section).map_or(&[][..], Node::entries) {
                    let get = |key: &str| entry.value.get(key).and_then(Node::text);
                    let (Some(range), Some(version)) = (get("specifier"), get("version")) else {
                        return Err(self.wrong(entry, "has a dependency without a version"));
                    };
                    let edge = self.edge(&home, entry, version, scope.clone())?;
                    wanted.push(Wanted {
                        section,
                        key: edge.version.clone(),
                        edge,
                        range: range.to_owned(),
                    });
                }
            }
            all.push((home, wanted));
        }
        Ok(all)
    }
}

/// Splits `name@version` or `@scope/name@version`.
fn split(key: &str) -> Option<(&str, &str)> {
    let from = usize::from(key.starts_with('@'));
    let at = key[from..].find('@')? + from;
    let (name, version) = (&key[..at], &key[at + 1..]);
    (!name.is_empty() && !version.is_empty()).then_some((name, version))
}

/// Names the entry that a version of a dependency means; `ms@2.0.0` is another package under this name.
fn key(name: &str, version: &str) -> String {
    let head = version.split('(').next().unwrap_or(version);
    let address = head.contains("://") || head.starts_with("file:");
    match split(head) {
        Some(_) if !address => version.to_owned(),
        _ => format!("{name}@{version}"),
    }
}

/// Writes `os`, `cpu` and `libc` as one condition.
fn condition(value: &Node) -> Option<String> {
    let part = |key: &str| {
        let list = value.get(key)?;
        let all = match list.text() {
            Some(one) => vec![one],
            None => list.texts(),
        };
        (!all.is_empty()).then(|| format!("{key}={}", all.join("|")))
    };
    let parts: Vec<String> = ["os", "cpu", "libc"].into_iter().filter_map(part).collect();
    (!parts.is_empty()).then(|| parts.join(" & "))
}

/// Proves that every use leads to an entry, and that nothing stands there for no reason; marks what is for
/// development alone.
fn close(lock: &mut Lockfile, importers: &[(RelPath, Vec<Wanted>)]) -> Result<(), Refusal> {
    let places: BTreeMap<&str, usize> = lock
        .packages
        .iter()
        .enumerate()
        .filter_map(|(at, p)| Some((p.place.as_deref()?, at)))
        .collect();
    let find = |edge: &Dependency| -> Vec<usize> {
        let key = edge.version.as_deref().unwrap_or("");
        places.get(key).copied().into_iter().collect()
    };
    let graph = Graph::new(lock);
    let edges = graph.edges_by(
        |_, edge| find(edge),
        |_, edge| {
            if edge.version.is_none() {
                Lost::Allowed
            } else {
                Lost::Refused
            }
        },
    )?;
    let (mut kept, mut dev) = (Vec::new(), Vec::new());
    for (home, wanted) in importers {
        for one in wanted {
            let found = find(&one.edge);
            if let Some(key) = one.key.as_ref().filter(|_| found.is_empty()) {
                return Err(
                    incomplete(&lock.path, "names a dependency that it does not hold").name(format!(
                        "{key} of {}",
                        if home.is_root() {
                            "the project".to_owned()
                        } else {
                            home.to_string()
                        }
                    )),
                );
            }
            if one.section == "devDependencies" {
                dev.extend(found)
            } else {
                kept.extend(found)
            }
        }
    }
    let always = reach(&edges, kept.clone());
    graph.no_orphan(&edges, kept.into_iter().chain(dev).collect())?;
    for (package, always) in lock.packages.iter_mut().zip(always) {
        if !always && package.scope == Scope::Always {
            package.scope = Scope::Dev("dev".to_owned());
        }
    }
    Ok(())
}

/// Compares each project in the lock with its `package.json`.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    for (home, locked) in &facts.importers {
        let file = Project::read(lock, declared, home)?;
        let mut wanted: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
        // What stands in several sections is kept in the last one of these.
        for (section, map) in [
            (SECTIONS[1], &file.dev_dependencies),
            (SECTIONS[0], &file.dependencies),
            (SECTIONS[2], &file.optional_dependencies),
        ] {
            wanted.extend(
                map.0
                    .iter()
                    .map(|(name, range)| (name.as_str(), (section, range.as_str()))),
            );
        }
        wanted.retain(|name, _| !facts.ignored.contains(*name));
        let have: BTreeSet<String> = locked
            .iter()
            .filter(|(section, name, _)| {
                let peer = section == SECTIONS[0]
                    && facts.peers == Peers::Installed
                    && file.peer_dependencies.0.contains_key(name);
                !peer || wanted.contains_key(name.as_str())
            })
            .map(|(section, name, range)| spelled(facts, section, name, range))
            .collect();
        let want = wanted
            .iter()
            .map(|(name, (section, range))| spelled(facts, section, name, range))
            .collect();
        let what = if *home == lock.directory() {
            "its dependencies".to_owned()
        } else {
            format!("the dependencies of {home}")
        };
        super::same_set(lock, &what, &have, &want)?;
    }
    Ok(Vec::new())
}

fn spelled(facts: &Facts, section: &str, name: &str, range: &str) -> String {
    let word = match section {
        "devDependencies" => "dev ",
        "optionalDependencies" => "optional ",
        _ => "",
    };
    match facts.overridden.contains(name) {
        true => format!("{word}{name} (overridden)"),
        false => format!("{word}{name}@{range}"),
    }
}
