//! Gemfile.lock: gems by source with what they need, what the Gemfile asks for, checksums, and `BUNDLED WITH` as the
//! end mark.
//!
//! A Gemfile is a program, which is not run: only what it names plainly is compared.

use super::graph::{Graph, Lost};
use super::{
    Algorithm, Artifact, Declared, Dependency, Facts as AnyFacts, Lockfile, Package, Scope, Source, front,
    incomplete, label, manifest, resolve,
};
use crate::code::Refusal;
use crate::digest::from_hex;
use std::collections::{BTreeMap, BTreeSet};

/// Holds what the Gemfile asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    wanted: BTreeSet<String>,
}

/// Holds one line of a section.
struct Line<'a> {
    number: usize,
    depth: usize,
    body: &'a str,
}

/// Parses Gemfile.lock into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    front::plain_lines(&lock.path, text)?;
    let sections = sections(lock, text)?;
    let mut facts = Facts::default();
    let mut sums: Option<BTreeMap<String, Option<Artifact>>> = None;
    for (name, lines) in &sections {
        match *name {
            "GEM" | "PATH" => gems(lock, name, lines)?,
            "DEPENDENCIES" => {
                for line in lines {
                    let word = line.body.split([' ', '!']).next().unwrap_or("");
                    if !facts.wanted.insert(word.to_owned()) {
                        return Err(wrong(lock, line, "holds an entry twice"));
                    }
                }
            }
            "CHECKSUMS" => sums = Some(checksums(lock, lines)?),
            "PLATFORMS" | "RUBY VERSION" | "BUNDLED WITH" => {}
            other => {
                return Err(
                    incomplete(&lock.path, "takes a gem from where no checksum binds it").name(other),
                );
            }
        }
    }
    let ends = sections
        .last()
        .is_some_and(|(name, lines)| *name == "BUNDLED WITH" && lines.len() == 1);
    if !ends {
        return Err(incomplete(
            &lock.path,
            "is cut: it does not end with BUNDLED WITH and a version",
        ));
    }
    for must in ["PLATFORMS", "DEPENDENCIES"] {
        if !sections
            .iter()
            .any(|(name, lines)| *name == must && (!lines.is_empty() || must == "DEPENDENCIES"))
        {
            return Err(incomplete(&lock.path, "lacks a section").name(must));
        }
    }
    bind(lock, sums)?;
    close(lock, &facts)?;
    lock.facts = AnyFacts::Gemfile(Box::new(facts));
    Ok(())
}

fn wrong(lock: &Lockfile, line: &Line<'_>, why: &str) -> Refusal {
    let head: String = line.body.chars().take(80).collect();
    incomplete(&lock.path, why).name(format!("line {}: {head}", line.number))
}

/// Splits the file into its sections, each with its lines.
fn sections<'a>(lock: &Lockfile, text: &'a str) -> Result<Vec<(&'a str, Vec<Line<'a>>)>, Refusal> {
    let mut all: Vec<(&str, Vec<Line<'_>>)> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let body = line.trim_start_matches(' ');
        let line = Line {
            number: at + 1,
            depth: line.len() - body.len(),
            body,
        };
        if body.is_empty() {
            continue;
        }
        if line.depth == 0 {
            let known = body.chars().all(|c| c.is_ascii_uppercase() || c == ' ');
            let several = matches!(body, "GEM" | "PATH");
            if !known || (!several && all.iter().any(|(name, _)| *name == body)) {
                return Err(wrong(lock, &line, "has a line that is not understood"));
            }
            all.push((body, Vec::new()));
        } else {
            match all.last_mut() {
                Some((_, lines)) => lines.push(line),
                None => return Err(wrong(lock, &line, "has a line that is not understood")),
            }
        }
    }
    Ok(all)
}

/// Reads the gems of one source.
fn gems(lock: &mut Lockfile, section: &str, lines: &[Line<'_>]) -> Result<(), Refusal> {
    let mut source = Source::Hashed;
    let mut specs = false;
    let mut seen = BTreeSet::new();
    for line in lines {
        match (line.depth, line.body) {
            (2, "specs:") => specs = true,
            (2, field) if !specs => {
                if let Some(path) = field.strip_prefix("remote: ").filter(|_| section == "PATH") {
                    let inside = resolve(&lock.directory(), path);
                    source = Source::Local(
                        inside
                            .ok_or_else(|| wrong(lock, line, "takes a package from outside of the tree"))?,
                    );
                }
            }
            (4, body) if specs => {
                let (name, version) =
                    named(body).ok_or_else(|| wrong(lock, line, "has a line that is not understood"))?;
                let version = version.ok_or_else(|| wrong(lock, line, "has a package without a version"))?;
                if !seen.insert(body) {
                    return Err(wrong(lock, line, "holds an entry twice"));
                }
                lock.packages.push(Package {
                    name: name.to_owned(),
                    version: Some(version.to_owned()),
                    source: source.clone(),
                    artifacts: Vec::new(),
                    dependencies: Vec::new(),
                    place: None,
                    scope: Scope::Always,
                    condition: platform(version).map(|p| format!("platform={p}")),
                });
            }
            (6, body) if specs => {
                let (name, _) = named(body.trim_end_matches('!'))
                    .ok_or_else(|| wrong(lock, line, "has a line that is not understood"))?;
                let misplaced = wrong(lock, line, "has a line that is not understood");
                let owner = lock.packages.last_mut().ok_or(misplaced)?;
                owner.dependencies.push(Dependency {
                    name: name.to_owned(),
                    version: None,
                    extras: Vec::new(),
                    scope: Scope::Always,
                    marker: None,
                });
            }
            _ => return Err(wrong(lock, line, "has a line that is not understood")),
        }
    }
    if specs {
        Ok(())
    } else {
        Err(incomplete(&lock.path, "is cut: a source has no specs").name(section))
    }
}

/// Splits `name (version)`.
fn named(body: &str) -> Option<(&str, Option<&str>)> {
    let (name, version) = match body.split_once(" (") {
        Some((name, rest)) => (name, Some(rest.strip_suffix(')')?)),
        None => (body, None),
    };
    let odd = |c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c));
    (!name.is_empty() && !name.contains(odd) && version != Some("")).then_some((name, version))
}

/// Gives the platform that a version such as `1.7.3-x86_64-linux` is for.
fn platform(version: &str) -> Option<&str> {
    version.split_once('-').map(|(_, platform)| platform)
}

fn checksums(lock: &Lockfile, lines: &[Line<'_>]) -> Result<BTreeMap<String, Option<Artifact>>, Refusal> {
    let mut all = BTreeMap::new();
    for line in lines {
        let (spec, sum) = match line.body.find(") ") {
            Some(end) => (&line.body[..=end], Some(&line.body[end + 2..])),
            None => (line.body, None),
        };
        named(spec)
            .filter(|(_, v)| v.is_some())
            .ok_or_else(|| wrong(lock, line, "has a line that is not understood"))?;
        let artifact = match sum {
            None => None,
            Some(sum) => {
                let hex = sum.split(',').find_map(|s| s.strip_prefix("sha256="));
                let digest = hex.and_then(from_hex).filter(|d| d.len() == 32);
                let digest = digest.ok_or_else(|| wrong(lock, line, "has a checksum that is not whole"))?;
                Some(Artifact {
                    name: spec.to_owned(),
                    algorithm: Algorithm::Sha256,
                    digest,
                    size_bytes: None,
                })
            }
        };
        if all.insert(spec.to_owned(), artifact).is_some() {
            return Err(wrong(lock, line, "holds an entry twice"));
        }
    }
    Ok(all)
}

/// Gives each gem its checksum; without the section, all of them are named as bound by nothing.
fn bind(lock: &mut Lockfile, sums: Option<BTreeMap<String, Option<Artifact>>>) -> Result<(), Refusal> {
    let Some(mut sums) = sums else {
        lock.unbound = lock
            .packages
            .iter()
            .filter(|p| p.source == Source::Hashed)
            .map(label)
            .collect();
        lock.say_unbound(super::weak::GEMFILE);
        return Ok(());
    };
    for package in &mut lock.packages {
        let spec = format!("{} ({})", package.name, package.version.as_deref().unwrap_or(""));
        match (sums.remove(&spec), &package.source) {
            (Some(Some(artifact)), Source::Hashed) => package.artifacts.push(artifact),
            (_, Source::Hashed) => {
                return Err(incomplete(&lock.path, "has a package without a checksum").name(spec));
            }
            _ => {}
        }
    }
    // Bundler itself may stand there, and is none of the gems.
    match sums.keys().find(|spec| !spec.starts_with("bundler (")) {
        Some(stale) => {
            Err(incomplete(&lock.path, "has a checksum of a package that it does not hold").name(stale))
        }
        None => Ok(()),
    }
}

fn close(lock: &Lockfile, facts: &Facts) -> Result<(), Refusal> {
    let graph = Graph::new(lock);
    let edges = graph.edges(|_, edge| {
        if edge.name == "bundler" {
            Lost::Allowed
        } else {
            Lost::Refused
        }
    })?;
    let mut roots = Vec::new();
    for name in &facts.wanted {
        let found = graph.named(name);
        if found.is_empty() && name != "bundler" {
            return Err(incomplete(&lock.path, "names a dependency that it does not hold")
                .name(format!("{name} of DEPENDENCIES")));
        }
        roots.extend(found);
    }
    graph.no_orphan(&edges, roots)
}

/// Compares with the gems that the Gemfile names plainly.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    let text = manifest(lock, declared, &lock.directory(), "Gemfile")?;
    let words = [
        "if ",
        "unless ",
        "case ",
        "eval",
        "gemspec",
        "instance_eval",
        "load ",
        "require_relative ",
    ];
    let computed = text.lines().map(str::trim).any(|line| {
        words.iter().any(|word| line.starts_with(word)) || line.contains(" if ") || line.contains(" unless ")
    });
    let named: BTreeSet<&str> = text.lines().filter_map(|line| plainly(line.trim())).collect();
    if computed {
        return Ok(vec![format!(
            "{}: its Gemfile is computed, and is not compared",
            lock.path
        )]);
    }
    match named.iter().find(|name| !facts.wanted.contains(**name)) {
        Some(lost) => Err(incomplete(&lock.path, "lacks a declared dependency").names([*lost, "Gemfile"])),
        None => match facts.wanted.iter().find(|name| !named.contains(name.as_str())) {
            Some(stale) => Err(
                incomplete(&lock.path, "differs from the manifest in its dependencies")
                    .names([format!("locked {stale}"), "Gemfile".to_owned()]),
            ),
            None => Ok(Vec::new()),
        },
    }
}

/// Reads `gem "name"`.
fn plainly(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("gem")
        .map(|rest| rest.trim_start_matches(['(', ' ']))?;
    let quote = rest.chars().next().filter(|c| *c == '"' || *c == '\'')?;
    rest[1..].split_once(quote).map(|(name, _)| name)
}
