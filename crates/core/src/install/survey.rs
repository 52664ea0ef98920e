//! What an installed tree says of itself, where nobody but its own installer vouches for it.
//!
//! It finds what a stopped or tampered installation leaves: files that a package lists and are not there, bytes that
//! are not as listed, entries that no package owns, links and import paths that lead away. That the packages are
//! those of a lock is compared by name and version alone; [`super::python`], [`super::node`] and [`super::rust`] bind
//! them to it.

use super::kept::Tree;
use super::python::same_version;
use super::venv::Venv;
use super::{Fact, MOST_NAMES, Observed, Place, mismatch, rust, stays};
use crate::code::{Code, Refusal};
use crate::digest::Sha256;
use crate::lockset::{Lockfile, Package, npm};
use crate::path::RelPath;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Holds what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Surveyed {
    /// What is installed, as `name==version`.
    pub(super) installed: BTreeSet<String>,
    /// What could not be proved, one clause each.
    pub(super) warnings: Vec<String>,
    /// What no lock names, as `name==version`.
    pub(super) unlocked: Vec<String>,
}

/// How the warning begins that names what no lock holds.
pub(super) const IN_NO_LOCK: &str = "no lockfile that is read holds";

/// Says how many bytes of a file's content are needed to survey it.
pub(super) fn wants_text(tree: Tree, path: &RelPath) -> Option<u64> {
    let parts: Vec<&[u8]> = path.components().collect();
    match (tree, parts.as_slice()) {
        (Tree::Venv, _) => super::python::wants_text(path),
        (Tree::NodeModules, [b".package-lock.json"]) => Some(64 << 20),
        (Tree::NodeModules, parts) if super::commands::is_command(parts) => Some(64 << 10),
        (Tree::NodeModules, parts) => node_package(parts).map(|_| 4 << 20),
        (Tree::CargoVendor, [_, b".cargo-checksum.json"]) => Some(16 << 20),
        (Tree::CargoVendor, [_, b"Cargo.toml"]) => Some(4 << 20),
        (Tree::CargoVendor | Tree::CargoHome, _) => None,
    }
}

/// Surveys one installed tree.
///
/// # Errors
/// `record_mismatch`, `record_outside_root`.
pub(super) fn survey(
    tree: Tree,
    observed: &Observed,
    place: &Place,
    locks: &[Lockfile],
) -> Result<Surveyed, Refusal> {
    let of = |installers: &[&str]| -> Vec<&Package> {
        let own = locks
            .iter()
            .filter(|lock| installers.contains(&lock.format.installer()));
        own.flat_map(|lock| &lock.packages).collect()
    };
    match tree {
        Tree::Venv => venv(observed, place, &of(&["uv", "pip", "poetry", "pdm", "pipenv"])),
        Tree::NodeModules => node_modules(observed, place, &of(&["npm", "pnpm", "yarn"])),
        Tree::CargoHome => cargo_home(observed, place, &of(&["cargo"])),
        Tree::CargoVendor => cargo_vendor(observed, place, &of(&["cargo"])),
    }
}

/// Refuses a tree of which anything leads out of the workspace, whatever else is wrong with it: what cannot be read leads
/// nowhere, and is told of by [`survey`].
///
/// # Errors
/// `record_outside_root`.
pub(super) fn leads_out(tree: Tree, observed: &Observed, place: &Place) -> Result<(), Refusal> {
    let found = match tree {
        Tree::Venv => match Venv::open(observed, place) {
            Ok(venv) => vec![
                venv.links_stay(),
                venv.home_stays(),
                venv.editables_stay(),
                venv.paths_stay(),
                venv.scripts_stay(),
            ],
            // Which links may lead to the interpreter, nobody can say then.
            Err(_) => Vec::new(),
        },
        Tree::NodeModules | Tree::CargoHome | Tree::CargoVendor => vec![links_stay(observed, place)],
    };
    let away = |refusal: &Refusal| refusal.code == Code::RecordOutsideRoot;
    match found.into_iter().filter_map(Result::err).find(away) {
        Some(refusal) => Err(refusal),
        None => Ok(()),
    }
}

/// Compares names and versions with what the locks hold; a name that no lock knows is told.
fn against(found: &BTreeSet<(String, String)>, locked: &[&Package]) -> Result<Surveyed, Refusal> {
    let mut versions: BTreeMap<&str, Vec<Option<&str>>> = BTreeMap::new();
    for package in locked {
        let known = versions.entry(package.name.as_str()).or_default();
        known.push(package.version.as_deref());
    }
    let (mut wrong, mut unknown) = (Vec::new(), Vec::new());
    for (name, version) in found {
        match versions.get(name.as_str()) {
            None => unknown.push(format!("{name}=={version}")),
            Some(known) => {
                let fits = |locked: &Option<&str>| locked.is_none_or(|locked| same_version(locked, version));
                if !known.iter().any(fits) {
                    let locked: Vec<&str> = known.iter().copied().flatten().collect();
                    wrong.push(format!("{name}=={version}, locked {}", locked.join(", ")));
                }
            }
        }
    }
    if !wrong.is_empty() {
        let why = "a package is of another version than the locked one";
        return Err(mismatch(why).names(wrong.into_iter().take(MOST_NAMES)));
    }
    let mut warnings = Vec::new();
    if !locked.is_empty() && !unknown.is_empty() {
        warnings.push(few(IN_NO_LOCK, &unknown));
    }
    let installed = found.iter().map(|(name, version)| format!("{name}=={version}"));
    Ok(Surveyed {
        installed: installed.collect(),
        warnings,
        unlocked: unknown,
    })
}

fn few(what: &str, names: &[String]) -> String {
    let shown = names[..names.len().min(MOST_NAMES)].join(", ");
    match names.len() - names.len().min(MOST_NAMES) {
        0 => format!("{what} {shown}"),
        more => format!("{what} {shown} and {more} more"),
    }
}

fn venv(observed: &Observed, place: &Place, locked: &[&Package]) -> Result<Surveyed, Refusal> {
    let mut venv = Venv::open(observed, place)?;
    venv.scaffold()?;
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for info in venv.distributions()? {
        let dist = venv.read(&info)?;
        venv.own(&dist)?;
        let named = format!("{}=={}", dist.name, dist.version);
        if let Some(other) = found.insert(dist.name.clone(), dist.version) {
            return Err(mismatch("a distribution is installed twice")
                .names([format!("{}=={other}", dist.name), named]));
        }
    }
    // What virtualenv puts in, and what Python compiled when it first imported a module.
    let mut compiled = 0_usize;
    for (path, fact) in &observed.entries {
        let (Some((parent, name)), Fact::File { .. }) = (path.split_last(), fact) else {
            continue;
        };
        let seed = parent == venv.site
            && (matches!(name, b"_virtualenv.py" | b"_virtualenv.pth") || name.ends_with(b".virtualenv"));
        let bytecode =
            name.ends_with(b".pyc") && !venv.owners.contains_key(path) && venv.has_source(path).is_ok();
        compiled += usize::from(bytecode);
        if seed || bytecode {
            venv.owners.insert(path.clone(), "scaffold".to_owned());
        }
    }
    venv.nothing_unowned()?;
    venv.paths_stay()?;
    venv.scripts_stay()?;
    let mut surveyed = against(&found.into_iter().collect(), locked)?;
    if compiled > 0 {
        surveyed.warnings.push(format!(
            "{compiled} compiled files stand in no RECORD; what they hold is not proved"
        ));
    }
    Ok(surveyed)
}

/// Gives where the path of a package ends, for the path of its `package.json`.
pub(super) fn node_package(parts: &[&[u8]]) -> Option<usize> {
    let mut at = 0;
    loop {
        let name = parts.get(at)?;
        if *name == b".pnpm" {
            // pnpm keeps each package at `.pnpm/NAME@VERSION/node_modules/NAME`.
            let frame = (at + 1..=at + 2).find(|i| parts.get(*i) == Some(&&b"node_modules"[..]))?;
            at = frame + 1;
            continue;
        }
        if name.starts_with(b".") {
            return None;
        }
        let end = at + if name.starts_with(b"@") { 2 } else { 1 };
        match parts.get(end) {
            Some(&b"node_modules") => at = end + 1,
            Some(&b"package.json") if parts.len() == end + 1 => return Some(end),
            _ => return None,
        }
    }
}

#[derive(Deserialize)]
struct Manifest {
    name: Option<String>,
    version: Option<String>,
}

fn node_modules(observed: &Observed, place: &Place, locked: &[&Package]) -> Result<Surveyed, Refusal> {
    let mut found = BTreeSet::new();
    let mut by_place: BTreeMap<RelPath, String> = BTreeMap::new();
    for (path, fact) in &observed.entries {
        if let Fact::Symlink { target } = fact {
            stays(place, path, target)?;
        }
        let parts: Vec<&[u8]> = path.components().collect();
        let (Some(end), Fact::File { .. }) = (node_package(&parts), fact) else {
            continue;
        };
        let text = observed.whole(path)?;
        let manifest: Manifest = serde_json::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text))
            .map_err(|e| {
            mismatch("a package.json does not parse").names([path.to_string(), e.to_string()])
        })?;
        let version = manifest.version.unwrap_or_else(|| "(none)".to_owned());
        by_place.insert(RelPath::parse(&parts[..end].join(&b'/'))?, version.clone());
        let name = manifest.name.unwrap_or_else(|| {
            let name = parts[..end].split(|p| *p == b"node_modules").next_back();
            crate::path::shown(&name.unwrap_or_default().join(&b'/'))
        });
        found.insert((name, version));
    }
    let hidden = RelPath::parse(b".package-lock.json")?;
    if observed.entries.contains_key(&hidden) {
        as_npm_says(observed, observed.text(&hidden)?, &by_place)?;
    }
    let mut surveyed = against(&found, locked)?;
    if !found.is_empty() {
        surveyed
            .warnings
            .push("a file that is missing in an npm package from the start cannot be seen".to_owned());
    }
    Ok(surveyed)
}

/// Checks that every package that npm says it installed is there, and of that version.
fn as_npm_says(
    observed: &Observed,
    hidden: &str,
    by_place: &BTreeMap<RelPath, String>,
) -> Result<(), Refusal> {
    let places = npm::places(hidden)
        .map_err(|why| mismatch("npm's record of what it installed does not parse").name(why))?;
    for (at, entry) in places {
        let Some(rest) = at.strip_prefix("node_modules/") else {
            continue;
        };
        let path = RelPath::parse(rest.as_bytes())?;
        let wanted = entry.version.unwrap_or_default();
        match (entry.link, observed.entries.get(&path), by_place.get(&path)) {
            (true, Some(Fact::Symlink { .. }), _) => {}
            (false, Some(Fact::Directory { .. }), Some(version)) if same_version(version, &wanted) => {}
            (_, None, _) | (false, Some(Fact::Directory { .. }), None) => {
                return Err(mismatch("an installed package is missing").name(at));
            }
            (_, Some(_), version) => {
                let installed = version.cloned().unwrap_or_else(|| "something else".to_owned());
                let names = [at, format!("installed {installed}"), format!("npm says {wanted}")];
                return Err(mismatch("a package is not as npm says it installed it").names(names));
            }
        }
    }
    Ok(())
}

fn links_stay(observed: &Observed, place: &Place) -> Result<(), Refusal> {
    for (path, fact) in &observed.entries {
        if let Fact::Symlink { target } = fact {
            stays(place, path, target)?;
        }
    }
    Ok(())
}

/// Refuses a crate whose checksum is not that of the lock.
fn same_checksum(locked: &[&Package], name: &str, version: &str, digest: &[u8]) -> Result<(), Refusal> {
    let mut fitting = locked
        .iter()
        .filter(|p| p.name == name && p.version.as_deref() == Some(version) && !p.artifacts.is_empty())
        .peekable();
    if fitting.peek().is_none() || fitting.any(|p| p.artifacts.iter().any(|a| a.digest == digest)) {
        return Ok(());
    }
    Err(mismatch("a crate differs from its checksum in the lock").name(format!("{name}=={version}")))
}

#[derive(Deserialize)]
struct Checksums {
    files: BTreeMap<String, String>,
    package: Option<String>,
}

fn cargo_vendor(observed: &Observed, place: &Place, locked: &[&Package]) -> Result<Surveyed, Refusal> {
    links_stay(observed, place)?;
    let mut found = BTreeSet::new();
    for (path, fact) in &observed.entries {
        if path.components().count() != 1 || !matches!(fact, Fact::Directory { .. }) {
            continue;
        }
        let sums = path.join(b".cargo-checksum.json")?;
        let sums: Checksums = serde_json::from_str(observed.text(&sums)?).map_err(|e| {
            mismatch("a .cargo-checksum.json does not parse").names([path.to_string(), e.to_string()])
        })?;
        whole_crate(observed, path, &sums)?;
        let text = observed.text(&path.join(b"Cargo.toml")?)?;
        let manifest: toml::Table = text
            .parse()
            .map_err(|_| mismatch("the manifest of a crate does not parse").name(path.to_string()))?;
        let field = |name: &str| {
            let value = manifest.get("package").and_then(|p| p.get(name));
            value.and_then(toml::Value::as_str).unwrap_or("(none)").to_owned()
        };
        let (name, version) = (field("name"), field("version"));
        if let Some(package) = &sums.package {
            let digest = Sha256::parse(package).map_err(|_| {
                mismatch("a .cargo-checksum.json holds no checksum of its crate").name(path.to_string())
            })?;
            same_checksum(locked, &name, &version, digest.as_bytes())?;
        }
        found.insert((name, version));
    }
    against(&found, locked)
}

/// Compares the files of a vendored crate with its list of them, both ways.
fn whole_crate(observed: &Observed, at: &RelPath, sums: &Checksums) -> Result<(), Refusal> {
    let mut listed: BTreeMap<RelPath, &str> = BTreeMap::new();
    for (name, digest) in &sums.files {
        let whole = [at.as_bytes(), b"/", name.as_bytes()].concat();
        listed.insert(RelPath::parse(&whole)?, digest);
    }
    for (path, digest) in &listed {
        match observed.entries.get(path) {
            Some(Fact::File { sha256, .. }) if sha256.to_string() == **digest => {}
            Some(_) => {
                return Err(mismatch("a file of a crate is not as listed").name(path.to_string()));
            }
            None => return Err(mismatch("a file of a crate is missing").name(path.to_string())),
        }
    }
    let own = at.join(b".cargo-checksum.json")?;
    // The least name that an entry can have: everything below the crate follows at once.
    let below = observed.entries.range(at.join(b"\x01")?..);
    let stray = below
        .take_while(|(path, _)| path.is_below(at))
        .filter(|(path, fact)| {
            !matches!(fact, Fact::Directory { .. }) && **path != own && !listed.contains_key(*path)
        });
    let stray: Vec<String> = stray.map(|(path, _)| path.to_string()).collect();
    match stray.len() {
        0 => Ok(()),
        n => Err(mismatch(&format!("no crate lists {n} entries of its directory"))
            .names(stray.into_iter().take(MOST_NAMES))),
    }
}

fn cargo_home(observed: &Observed, place: &Place, locked: &[&Package]) -> Result<Surveyed, Refusal> {
    links_stay(observed, place)?;
    let mut found = BTreeSet::new();
    let (mut archives, mut unpacked) = (BTreeSet::new(), Vec::new());
    for (path, fact) in &observed.entries {
        let parts: Vec<&[u8]> = path.components().collect();
        match (parts.as_slice(), fact) {
            ([b"registry", b"cache", index, file], Fact::File { sha256, .. }) => {
                let Some(stem) = file
                    .strip_suffix(b".crate")
                    .and_then(|s| core::str::from_utf8(s).ok())
                else {
                    continue;
                };
                archives.insert((index.to_vec(), stem.as_bytes().to_vec()));
                let (name, version) = named(stem);
                same_checksum(locked, name, version, sha256.as_bytes())?;
                found.insert((name.to_owned(), version.to_owned()));
            }
            ([b"registry", b"src", index, stem], Fact::Directory { .. }) => {
                unpacked.push((index.to_vec(), stem.to_vec()));
            }
            _ => {}
        }
    }
    if let Some((_, stem)) = unpacked.iter().find(|key| !archives.contains(*key)) {
        return Err(mismatch("an unpacked crate has no .crate beside it").name(crate::path::shown(stem)));
    }
    // A registry cache is shared by projects: what another one needs is no fault.
    let mut surveyed = against(&found, &[])?;
    if !unpacked.is_empty() {
        surveyed.warnings.push(format!(
            "{} crates: the unpacked files are recorded, not compared with their .crate",
            unpacked.len()
        ));
    }
    Ok(surveyed)
}

/// Splits `name-1.2.3-rc.1+x` where the version begins.
fn named(stem: &str) -> (&str, &str) {
    let version = |at: &usize| {
        let core = stem[at + 1..].split(['-', '+']).next().unwrap_or_default();
        core.split('.').count() == 3 && core.split('.').all(|part| part.parse::<u64>().is_ok())
    };
    let at = stem.match_indices('-').map(|(at, _)| at).find(version);
    at.map_or((stem, "(none)"), |at| (&stem[..at], &stem[at + 1..]))
}

/// Says whether Cargo itself writes here while it only reads.
pub(super) fn is_volatile(tree: Tree, path: &RelPath) -> bool {
    tree == Tree::CargoHome && rust::is_volatile(path)
}
