//! `node_modules` bound to package-lock.json: the set of packages, their versions, every file, nothing unowned.
//!
//! Each file comes from the tarball of the package that it lies in, or of the one that bundles this package. Beside the
//! directory of the project there is one for each of its workspaces that needs another version than the rest.

use super::tarball::Packed;
use super::{Bound, Fact, Observed, Place, below, lies_in, link_target, mismatch, outside, special, stays};
use crate::artifact::Supply;
use crate::code::Refusal;
use crate::lockset::npm::{self, Entry};
use crate::lockset::{Lockfile, Package, Selection};
use crate::path::{RelPath, shown};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Says how many bytes of a file are needed to bind it.
pub(super) fn wants_text(path: &RelPath) -> Option<u64> {
    let (parent, name) = path.split_last()?;
    match name {
        b".package-lock.json" if parent.is_root() => Some(64 << 20),
        b"package.json" if package_of(path).is_some_and(|(_, rest)| rest == b"package.json") => Some(4 << 20),
        _ => super::linked::wants_text(path),
    }
}

#[derive(Deserialize)]
struct Manifest {
    name: Option<String>,
    version: Option<String>,
}

/// Is one `node_modules` directory, as it was seen.
#[derive(Clone, Copy, Debug)]
pub struct Modules<'a> {
    /// The directory of the project that it belongs to, as the lock writes it: empty for the root of all.
    pub home: &'a str,
    /// Every entry of it.
    pub observed: &'a Observed,
    /// Where it lies on the host.
    pub place: &'a Place,
}

impl Modules<'_> {
    /// Gives the path below it of a place in the lock.
    fn inner(&self, at: &str) -> Option<RelPath> {
        let at = match self.home {
            "" => at,
            home => at.strip_prefix(home)?.strip_prefix('/')?,
        };
        RelPath::parse(at.strip_prefix("node_modules/")?.as_bytes()).ok()
    }

    fn is_main(&self) -> bool {
        self.home.is_empty()
    }

    /// Writes a path of it for people.
    fn shown(&self, path: &RelPath) -> String {
        match self.home {
            "" => path.to_string(),
            home => format!("{home}/node_modules/{path}"),
        }
    }
}

/// Gives where something that a lock names lies on the host.
fn on_host(lock: &Lockfile, place: &Place, at: &str) -> Option<Vec<u8>> {
    let directory = lock.directory();
    super::lexical(&[&place.tree, &b"/"[..], directory.as_bytes(), b"/", at.as_bytes()].concat())
}

/// Binds `node_modules` to the lock that it was installed from: that of the project first, then those of its workspaces.
///
/// # Errors
/// `record_mismatch` where npm's own copy of the lock, a package's `package.json` or the set of packages differs
/// from the lock, and for anything that no package owns; `record_outside_root` for a link that leads out of this
/// generation.
pub fn bind(
    all: &[Modules<'_>],
    lock: &Lockfile,
    selection: &Selection,
    supply: &Supply,
) -> Result<Bound, Refusal> {
    let locked = lock
        .npm_places()
        .ok_or_else(|| mismatch("node_modules is bound by a lock of npm alone"))?;
    let hidden = RelPath::parse(b".package-lock.json")?;
    let main = all.iter().find(|modules| modules.is_main());
    let installed = match main.filter(|main| !main.observed.entries.is_empty()) {
        None => BTreeMap::new(),
        Some(main) => npm::places(main.observed.text(&hidden)?)
            .map_err(|why| mismatch("npm's record of what it installed does not parse").name(why))?,
    };
    let mut bound = Bound::default();
    let mut scripts = Vec::new();
    for (at, entry) in installed
        .iter()
        .filter(|(at, _)| at.split('/').any(|p| p == "node_modules"))
    {
        same_entry(at, entry, locked.get(at))?;
        let found = all.iter().find_map(|modules| Some((modules, modules.inner(at)?)));
        let (modules, path) =
            found.ok_or_else(|| mismatch("a package lies in no project of the lock").name(at))?;
        bound.packages.insert(package(modules, lock, (at, &path), entry)?);
        // What a script would have made is not there, whatever the tests say.
        if locked.get(at).is_some_and(|entry| entry.has_install_script) {
            scripts.push(at.as_str());
        }
    }
    if !scripts.is_empty() {
        bound.weak.push(format!(
            "{} npm packages have an install script, which was not run: {}",
            scripts.len(),
            scripts[..scripts.len().min(20)].join(", ")
        ));
    }
    complete(lock, selection, &installed)?;
    let declared = declared(lock, locked, all);
    for modules in all {
        unowned(modules, &installed)?;
        commands(modules, all, &declared)?;
        tarballs(modules, lock, &installed, supply)?;
    }
    Ok(bound)
}

/// Proves that every file of a package is a member of its tarball, and that every member is there.
fn tarballs(
    modules: &Modules<'_>,
    lock: &Lockfile,
    installed: &BTreeMap<String, Entry>,
    supply: &Supply,
) -> Result<(), Refusal> {
    let artifacts: BTreeMap<&str, &Package> = lock
        .packages
        .iter()
        .filter_map(|package| Some((package.place.as_deref()?, package)))
        .collect();
    let mut packed: BTreeMap<RelPath, Packed<'_>> = BTreeMap::new();
    for (at, entry) in installed
        .iter()
        .filter(|(at, entry)| !entry.link && !entry.comes_bundled(at))
    {
        let Some(path) = modules.inner(at) else { continue };
        let package = artifacts.get(at.as_str());
        let held = package.and_then(|package| supply.of(&package.artifacts));
        let held = held.ok_or_else(|| {
            mismatch("a package is installed of which the generation was given no artifact").name(at)
        })?;
        let bins: Vec<&str> = entry.bin.values().map(String::as_str).collect();
        packed.insert(path, Packed::open(held, &bins)?);
    }
    for (path, fact) in &modules.observed.entries {
        if matches!(fact, Fact::Directory { .. }) {
            continue;
        }
        // A bundled package lies in the tarball of the one that bundles it.
        let own = package_of(path).map(|(owner, _)| owner);
        let mut owner = own.clone();
        while let Some(at) = owner.as_ref().filter(|at| !packed.contains_key(*at)) {
            owner = bundler(at);
        }
        let Some(tarball) = owner.as_ref().and_then(|at| packed.get_mut(at)) else {
            // What stands between packages, and a project that is linked, are of no tarball.
            match own.filter(|own| !is_link(modules.observed, own)) {
                None => continue,
                Some(_) => {
                    let why = "a file of a package is of no tarball that the lock gives a digest of";
                    return Err(mismatch(why).name(modules.shown(path)));
                }
            }
        };
        let base = owner.as_ref().map_or(0, |at| at.as_bytes().len() + 1);
        tarball.take(path, &RelPath::parse(&path.as_bytes()[base..])?, fact)?;
    }
    packed.iter().try_for_each(|(at, tarball)| tarball.complete(at))
}

/// Gives the package in whose own `node_modules` a package lies.
fn bundler(at: &RelPath) -> Option<RelPath> {
    let text = at.as_bytes();
    let cut = text.windows(14).rposition(|w| w == b"/node_modules/")?;
    RelPath::parse(&text[..cut]).ok()
}

fn same_entry(at: &str, entry: &Entry, locked: Option<&Entry>) -> Result<(), Refusal> {
    let locked = locked.ok_or_else(|| mismatch("a package is not in the lock").name(at))?;
    let facts = |e: &Entry| {
        (
            e.name.clone(),
            e.version.clone(),
            e.integrity.clone(),
            e.link,
            e.in_bundle,
        )
    };
    if entry.extraneous || facts(entry) != facts(locked) || entry.link && entry.resolved != locked.resolved {
        let version = |e: &Entry| e.version.clone().unwrap_or_default();
        return Err(mismatch("a package is not as the lock says").names([
            at.to_owned(),
            format!("installed {}", version(entry)),
            format!("locked {}", version(locked)),
        ]));
    }
    Ok(())
}

/// Checks what stands at the place of a package; gives its `name==version`.
fn package(
    modules: &Modules<'_>,
    lock: &Lockfile,
    (at, path): (&str, &RelPath),
    entry: &Entry,
) -> Result<String, Refusal> {
    let (observed, place) = (modules.observed, modules.place);
    let base = at.rsplit_once("node_modules/").map_or(at, |(_, name)| name);
    let name = entry.name.as_deref().unwrap_or(base);
    match (entry.link, observed.entries.get(path)) {
        (true, Some(Fact::Symlink { target })) => {
            let whole = stays(place, path, target)?;
            let wanted = on_host(lock, place, entry.resolved.as_deref().unwrap_or("")).unwrap_or_default();
            if !lies_in(&whole, &wanted) || !lies_in(&wanted, &whole) {
                return Err(mismatch("a linked package leads elsewhere than the lock says")
                    .name(format!("{at} -> {}", shown(target))));
            }
            Ok(format!("{name}==(linked)"))
        }
        (false, Some(Fact::Directory { .. })) => {
            let text = observed.whole(&path.join(b"package.json")?)?;
            let manifest: Manifest =
                serde_json::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)).map_err(|e| {
                    mismatch("a package.json does not parse").names([at.to_owned(), e.to_string()])
                })?;
            let plain = |v: &str| v.trim().trim_start_matches(['v', '=']).trim().to_owned();
            let version = entry.version.as_deref().unwrap_or("");
            if manifest.version.as_deref().map(plain) != Some(plain(version)) {
                let says = manifest.version.unwrap_or_default();
                return Err(
                    mismatch("a package is of another version than the locked one").names([
                        at.to_owned(),
                        format!("installed {says}"),
                        format!("locked {version}"),
                    ]),
                );
            }
            if manifest.name.as_deref() != Some(name) {
                let says = manifest.name.unwrap_or_default();
                return Err(mismatch("a package has another name than the locked one").names([
                    at.to_owned(),
                    format!("installed {says}"),
                    format!("locked {name}"),
                ]));
            }
            Ok(format!("{name}=={version}"))
        }
        (_, None) => Err(mismatch("an installed package is missing").name(at)),
        (_, Some(Fact::Symlink { target })) => {
            stays(place, path, target)?;
            Err(mismatch("a package is a link, but locked otherwise").name(at))
        }
        (_, Some(_)) => Err(mismatch("a package is no directory").name(at)),
    }
}

fn complete(
    lock: &Lockfile,
    selection: &Selection,
    installed: &BTreeMap<String, Entry>,
) -> Result<(), Refusal> {
    let wanted = lock.npm_certain(selection);
    let missing: Vec<&str> = wanted
        .into_iter()
        .filter(|at| !installed.contains_key(*at))
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => {
            Err(mismatch("a locked package is not installed")
                .names(missing.into_iter().take(super::MOST_NAMES)))
        }
    }
}

/// Refuses every entry that does not lie in a package of the lock.
fn unowned(modules: &Modules<'_>, installed: &BTreeMap<String, Entry>) -> Result<(), Refusal> {
    let (observed, place) = (modules.observed, modules.place);
    let places: BTreeSet<RelPath> = installed.keys().filter_map(|at| modules.inner(at)).collect();
    let mut stray = Vec::new();
    for (path, fact) in &observed.entries {
        let link = match fact {
            Fact::Other => return Err(special(path)),
            Fact::Symlink { target } => Some(stays(place, path, target)?),
            Fact::File { .. } | Fact::Directory { .. } => None,
        };
        let owned = match package_of(path) {
            Some((owner, rest)) => {
                // A link inside of a package is content; a linked package is checked by its place.
                places.contains(&owner) && (rest.is_empty() || !is_link(observed, &owner))
            }
            None => is_frame(modules, path, fact, link.is_some()),
        };
        if !owned {
            stray.push(modules.shown(path));
        }
    }
    match stray.len() {
        0 => Ok(()),
        n => Err(
            mismatch(&format!("no locked package owns {n} entries of node_modules"))
                .names(stray.into_iter().take(super::MOST_NAMES)),
        ),
    }
}

fn is_link(observed: &Observed, path: &RelPath) -> bool {
    matches!(observed.entries.get(path), Some(Fact::Symlink { .. }))
}

/// Says whether an entry belongs to the frame between packages: scopes, `node_modules`, `.bin` and its links.
fn is_frame(modules: &Modules<'_>, path: &RelPath, fact: &Fact, link: bool) -> bool {
    let parts: Vec<&[u8]> = path.components().collect();
    let at = parts
        .iter()
        .rposition(|p| *p == b"node_modules")
        .map_or(0, |at| at + 1);
    match (&parts[at..], fact) {
        ([], Fact::Directory { .. }) => true,
        ([b".package-lock.json"], Fact::File { .. }) => at == 0 && modules.is_main(),
        ([b".bin"], Fact::Directory { .. }) => true,
        ([b".bin", _], Fact::Symlink { .. }) => link,
        ([scope], Fact::Directory { .. }) => scope.starts_with(b"@"),
        _ => false,
    }
}

/// Are the commands that packages of a lock declare, each with the file that it leads to.
type Commands = BTreeSet<(Vec<u8>, Vec<u8>)>;

fn declared(lock: &Lockfile, locked: &BTreeMap<String, Entry>, all: &[Modules<'_>]) -> Commands {
    let mut declared = Commands::new();
    let Some(place) = all.first().map(|modules| modules.place) else {
        return declared;
    };
    let mut links: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (link, entry) in locked.iter().filter(|(_, entry)| entry.link) {
        links
            .entry(entry.resolved.as_deref().unwrap_or(""))
            .or_default()
            .push(link);
    }
    for (at, entry) in locked {
        // By the link of a workspace, too.
        let by_links = links.get(at.as_str()).into_iter().flatten().copied();
        for home in core::iter::once(at.as_str()).chain(by_links) {
            for (name, file) in &entry.bin {
                let whole = on_host(lock, place, &format!("{home}/{file}"));
                declared.extend(whole.map(|whole| (name.clone().into_bytes(), whole)));
            }
        }
    }
    declared
}

/// Proves that every command in a `.bin` is one that its package declares.
fn commands(modules: &Modules<'_>, all: &[Modules<'_>], declared: &Commands) -> Result<(), Refusal> {
    let place = modules.place;
    for (path, fact) in &modules.observed.entries {
        let Some((parent, name)) = path.split_last() else {
            continue;
        };
        let bin = package_of(path).is_none() && parent.components().last() == Some(b".bin");
        let (true, Fact::Symlink { target }) = (bin, fact) else {
            continue;
        };
        let shows = modules.shown(path);
        let whole = link_target(place, path, target).unwrap_or_default();
        if !declared.contains(&(name.to_vec(), whole.clone())) {
            return Err(mismatch("no locked package declares a command")
                .name(format!("{shows} -> {}", shown(target))));
        }
        let inside = all
            .iter()
            .find_map(|other| Some((other.observed, below(other.place, &whole)?)));
        if inside.is_some_and(|(observed, to)| {
            package_of(&to).is_some_and(|(o, _)| !is_link(observed, &o))
                && !observed.entries.contains_key(&to)
        }) {
            return Err(mismatch("a command leads to nothing").name(shows));
        }
        if !lies_in(&whole, &place.tree) {
            return Err(outside("a command leads out of this generation").name(shows));
        }
    }
    Ok(())
}

/// Splits a path below `node_modules` into the package that it lies in and the rest.
fn package_of(path: &RelPath) -> Option<(RelPath, Vec<u8>)> {
    let parts: Vec<&[u8]> = path.components().collect();
    let mut at = 0;
    loop {
        let name = parts.get(at)?;
        if name.starts_with(b".") {
            return None;
        }
        let end = if name.starts_with(b"@") { at + 2 } else { at + 1 };
        if parts.len() < end {
            return None;
        }
        // A further `node_modules` right here is a frame of its own; one deeper down is content.
        match parts.get(end) {
            Some(&b"node_modules") if parts.len() == end + 1 => return None,
            Some(&b"node_modules") => at = end + 1,
            _ => {
                let owner = RelPath::parse(&parts[..end].join(&b'/')).ok()?;
                return Some((owner, parts[end..].join(&b'/')));
            }
        }
    }
}
