//! The inputs of a uv.lock, compared with each `pyproject.toml`; and what one says to a `requirements.txt` beside it.
//!
//! Names, extras and specifiers are compared; markers are not, since uv rewrites them.

use super::pep::{self, Requirement, normal_name, normal_version};
use super::uv::{Facts, Metadata, Wanted};
use super::{Declared, Lockfile, Package, Source, incomplete, manifest, same_set};
use crate::code::Refusal;
use crate::path::RelPath;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Pyproject {
    project: Option<Project>,
    #[serde(default)]
    dependency_groups: BTreeMap<String, Vec<toml::Value>>,
    #[serde(default)]
    tool: Tools,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Project {
    name: String,
    version: Option<String>,
    requires_python: Option<String>,
    #[serde(default)]
    dependencies: Vec<String>,
    #[serde(default)]
    optional_dependencies: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    dynamic: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Tools {
    #[serde(default)]
    uv: UvTool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct UvTool {
    #[serde(default)]
    sources: BTreeMap<String, toml::Value>,
    #[serde(default)]
    dev_dependencies: Vec<String>,
    default_groups: Option<toml::Value>,
}

/// Compares the inputs that uv.lock carries with each `pyproject.toml`.
pub(super) fn close_over(
    lock: &Lockfile,
    facts: &Facts,
    declared: &Declared,
) -> Result<Vec<String>, Refusal> {
    let mut weak = Vec::new();
    let root = pyproject(lock, declared, &lock.directory())?;
    let pinned_sources: BTreeSet<String> = root.tool.uv.sources.keys().map(|n| normal_name(n)).collect();
    for home in &facts.members {
        let file = pyproject(lock, declared, home)?;
        let mut sources = pinned_sources.clone();
        sources.extend(file.tool.uv.sources.keys().map(|n| normal_name(n)));
        let metadata = &facts.metadata[home];
        compare_groups(lock, &file, &metadata.requires_dev, &sources)?;
        let Some(project) = &file.project else {
            return Err(
                incomplete(&lock.path, "has a project whose manifest declares none").name(home.to_string()),
            );
        };
        let named = |p: &&Package| matches!(&p.source, Source::Local(at) | Source::Virtual(at) if at == home);
        same_name(lock, project, lock.packages.iter().find(named))?;
        compare_project(lock, project, metadata, &sources, &mut weak)?;
        if facts.members.len() == 1 {
            compare_python(lock, facts, project)?;
        }
    }
    if root.project.is_none() {
        compare_groups(lock, &root, &facts.manifest.dependency_groups, &pinned_sources)?;
    } else if !facts.members.contains(&lock.directory()) {
        let name = root.project.map(|p| p.name).unwrap_or_default();
        return Err(incomplete(&lock.path, "does not hold the project it lies beside").name(name));
    }
    Ok(weak)
}

/// Compares the name, and the version where it is declared and not computed.
fn same_name(lock: &Lockfile, project: &Project, package: Option<&Package>) -> Result<(), Refusal> {
    let name = package.map_or("", |p| p.name.as_str());
    if normal_name(&project.name) != name {
        return Err(
            incomplete(&lock.path, "differs from the manifest in the name of the project")
                .names([format!("declared {}", project.name), format!("locked {name}")]),
        );
    }
    let locked = package.and_then(|p| p.version.as_deref());
    match &project.version {
        Some(version) if locked.map(normal_version).as_ref() != Some(&normal_version(version)) => {
            Err(incomplete(
                &lock.path,
                "differs from the manifest in the version of the project",
            )
            .names([
                format!("declared {version}"),
                format!("locked {}", locked.unwrap_or("none")),
            ]))
        }
        _ => Ok(()),
    }
}

/// Names the groups that uv installs unasked: `dev` unless the manifest says so; `None` for all of them.
pub(super) fn default_groups(lock: &Lockfile, declared: &Declared) -> Option<BTreeSet<String>> {
    let named = pyproject(lock, declared, &lock.directory())
        .ok()
        .and_then(|file| file.tool.uv.default_groups);
    match named {
        Some(toml::Value::Array(list)) => Some(
            list.iter()
                .filter_map(toml::Value::as_str)
                .map(normal_name)
                .collect(),
        ),
        Some(_) => None,
        None => Some(BTreeSet::from(["dev".to_owned()])),
    }
}

/// Is what a project always needs.
pub(super) enum Needs {
    /// These requirements, as they are declared.
    Listed(Vec<String>),
    /// What its build computes.
    Computed,
}

/// Gives what the project beside a lockfile always needs; `None` where no manifest declares a project.
pub(super) fn needs(lock: &Lockfile, declared: &Declared) -> Result<Option<Needs>, Refusal> {
    let home = lock.directory();
    if !declared.texts.contains_key(&home.join(b"pyproject.toml")?) {
        return Ok(None);
    }
    let project = pyproject(lock, declared, &home)?.project;
    Ok(project.map(|project| {
        if project.dynamic.iter().any(|field| field == "dependencies") {
            Needs::Computed
        } else {
            Needs::Listed(project.dependencies)
        }
    }))
}

fn pyproject(lock: &Lockfile, declared: &Declared, home: &RelPath) -> Result<Pyproject, Refusal> {
    let text = manifest(lock, declared, home, "pyproject.toml")?;
    toml::from_str(text).map_err(|e| {
        incomplete(&lock.path, "has a manifest that does not parse")
            .names([format!("{home}/pyproject.toml"), e.message().replace('\n', " ")])
    })
}

fn compare_project(
    lock: &Lockfile,
    project: &Project,
    metadata: &Metadata,
    sources: &BTreeSet<String>,
    weak: &mut Vec<String>,
) -> Result<(), Refusal> {
    let is_dynamic = |field: &str| project.dynamic.iter().any(|d| d == field);
    let (some, all) = (is_dynamic("dependencies"), is_dynamic("optional-dependencies"));
    if some || all {
        weak.push(format!(
            "{}: the dependencies of {} are computed, not declared",
            lock.path, project.name
        ));
    }
    let mut wanted = BTreeSet::new();
    if !some {
        for text in &project.dependencies {
            wanted.insert(declared_form(lock, text, None, sources)?);
        }
    }
    if !all {
        for (extra, texts) in &project.optional_dependencies {
            for text in texts {
                wanted.insert(declared_form(lock, text, Some(&normal_name(extra)), sources)?);
            }
        }
    }
    let mut locked = BTreeSet::new();
    for entry in &metadata.requires_dist {
        let extra = entry.marker.as_deref().and_then(pep::extra_of);
        if extra.is_some() && !all || extra.is_none() && !some {
            locked.insert(locked_form(lock, entry, extra.as_deref(), sources)?);
        }
    }
    same_set(lock, "its dependencies", &locked, &wanted)
}

fn compare_groups(
    lock: &Lockfile,
    file: &Pyproject,
    locked: &BTreeMap<String, Vec<Wanted>>,
    sources: &BTreeSet<String>,
) -> Result<(), Refusal> {
    let groups: BTreeMap<String, &Vec<toml::Value>> = file
        .dependency_groups
        .iter()
        .map(|(name, list)| (normal_name(name), list))
        .collect();
    let mut wanted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in groups.keys() {
        let mut flat = BTreeSet::new();
        flatten(lock, &groups, name, sources, &mut Vec::new(), &mut flat)?;
        wanted.insert(name.clone(), flat);
    }
    for text in &file.tool.uv.dev_dependencies {
        wanted
            .entry("dev".to_owned())
            .or_default()
            .insert(declared_form(lock, text, None, sources)?);
    }
    let mut have: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, list) in locked {
        let group = have.entry(normal_name(name)).or_default();
        for entry in list {
            group.insert(locked_form(lock, entry, None, sources)?);
        }
    }
    // uv writes an empty group or leaves it out, by revision: both say the same.
    wanted.retain(|_, list| !list.is_empty());
    have.retain(|_, list| !list.is_empty());
    let names = |of: &BTreeMap<String, BTreeSet<String>>| of.keys().cloned().collect::<BTreeSet<_>>();
    same_set(lock, "its dependency groups", &names(&have), &names(&wanted))?;
    for (name, list) in &wanted {
        same_set(lock, &format!("its dependency group {name}"), &have[name], list)?;
    }
    Ok(())
}

/// Collects a group with all groups that it includes.
fn flatten(
    lock: &Lockfile,
    groups: &BTreeMap<String, &Vec<toml::Value>>,
    name: &str,
    sources: &BTreeSet<String>,
    above: &mut Vec<String>,
    into: &mut BTreeSet<String>,
) -> Result<(), Refusal> {
    let wrong = |what: &str| {
        incomplete(
            &lock.path,
            &format!("has a manifest with a dependency group that {what}"),
        )
        .name(name)
    };
    if above.iter().any(|n| n == name) {
        return Err(wrong("includes itself"));
    }
    let list = groups.get(name).ok_or_else(|| wrong("is not there"))?;
    above.push(name.to_owned());
    for item in *list {
        match item {
            toml::Value::String(text) => {
                into.insert(declared_form(lock, text, None, sources)?);
            }
            toml::Value::Table(table) => {
                let inner = table.get("include-group").and_then(toml::Value::as_str);
                let inner = normal_name(inner.ok_or_else(|| wrong("is not understood"))?);
                flatten(lock, groups, &inner, sources, above, into)?;
            }
            _ => return Err(wrong("is not understood")),
        }
    }
    above.pop();
    Ok(())
}

fn declared_form(
    lock: &Lockfile,
    text: &str,
    extra: Option<&str>,
    sources: &BTreeSet<String>,
) -> Result<String, Refusal> {
    let parsed = Requirement::parse(text).ok_or_else(|| {
        incomplete(
            &lock.path,
            "has a manifest with a requirement that is not understood",
        )
        .name(text)
    })?;
    let specifier = if sources.contains(&parsed.name) {
        BTreeSet::new()
    } else {
        parsed.specifier
    };
    Ok(form(&parsed.name, &parsed.extras, &specifier, extra))
}

fn locked_form(
    lock: &Lockfile,
    entry: &Wanted,
    extra: Option<&str>,
    sources: &BTreeSet<String>,
) -> Result<String, Refusal> {
    let name = normal_name(&entry.name);
    let specifier = pep::specifier(entry.specifier.as_deref().unwrap_or("")).ok_or_else(|| {
        incomplete(&lock.path, "has a requirement that is not understood").name(&entry.name)
    })?;
    let specifier = if sources.contains(&name) {
        BTreeSet::new()
    } else {
        specifier
    };
    let extras = entry.extras.iter().map(|e| normal_name(e)).collect();
    Ok(form(&name, &extras, &specifier, extra))
}

fn form(name: &str, extras: &BTreeSet<String>, specifier: &BTreeSet<String>, extra: Option<&str>) -> String {
    let plain = pep::plain(name, extras, specifier);
    match extra {
        Some(extra) => format!("{plain} (extra {extra})"),
        None => plain,
    }
}

fn compare_python(lock: &Lockfile, facts: &Facts, project: &Project) -> Result<(), Refusal> {
    // uv rewrites other operators into ranges; only plain bounds stay as they were declared.
    let bounds = |text: &str| -> Option<BTreeSet<String>> {
        let plain = |part: &str| {
            let at = part.find(|c: char| !"<>=!~".contains(c))?;
            let (operator, version) = part.split_at(at);
            let mut version = normal_version(version);
            while let Some(shorter) = version.strip_suffix(".0") {
                version = shorter.to_owned();
            }
            [">=", "<=", "<", ">"]
                .contains(&operator)
                .then(|| format!("{operator}{version}"))
        };
        pep::specifier(text)?.iter().map(|part| plain(part)).collect()
    };
    let (Some(declared), Some(locked)) = (&project.requires_python, &facts.requires_python) else {
        return Ok(());
    };
    match (bounds(declared), bounds(locked)) {
        (Some(declared), Some(locked)) => same_set(lock, "requires-python", &locked, &declared),
        _ => Ok(()),
    }
}
