//! `node_modules` of pnpm and Yarn: every file a member of its tarball, every dependency found where the lock leads.
//!
//! These locks do not say where a package is put. So every package directory that is there has to be a locked package,
//! byte for byte, and from each of them Node has to find, on its way up, exactly what the lock answers. It does *not*
//! know how a tool arranges packages, and needs not.

use super::shim;
use super::tarball::Packed;
use super::{
    Bound, Fact, MOST_NAMES, Observed, Place, below, lies_in, link_target, mismatch, outside, special, stays,
};
use crate::artifact::{Held, Supply};
use crate::code::Refusal;
use crate::digest::Sha256;
use crate::lockset::{Dependency, Holds, Links, Lockfile, Scope, Selection, Setting, Source};
use crate::path::{RelPath, shown};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Files in which a tool notes what it did, directly in `node_modules`.
const STATE: &[&[u8]] = &[
    b".modules.yaml",
    b".package-map.json",
    b".pnpm-workspace-state.json",
    b".pnpm-workspace-state-v1.json",
    b".yarn-integrity",
    b".yarn-state.yml",
];

/// Says how many bytes of a file are needed to bind it, beside those that npm's layout needs.
pub(super) fn wants_text(path: &RelPath) -> Option<u64> {
    let (parent, name) = path.split_last()?;
    let mut parts: Vec<&[u8]> = parent.components().collect();
    if parts.last() == Some(&&b".bin"[..]) {
        return Some(64 << 10);
    }
    // The manifest of a package, wherever a tool puts one.
    let package = parts.pop()?;
    let scoped = parts.last().is_some_and(|part| part.starts_with(b"@"));
    if scoped {
        parts.pop();
    }
    let frame = parts.last().is_none_or(|part| *part == b"node_modules");
    (name == b"package.json" && frame && !package.starts_with(b".")).then_some(4 << 20)
}

#[derive(Deserialize)]
struct Manifest {
    name: Option<String>,
    version: Option<String>,
}

/// A package directory, and which packages of the lock it may be.
struct Module<'a> {
    packages: Vec<usize>,
    packed: Packed<'a>,
}

struct Walk<'a> {
    observed: &'a Observed,
    place: &'a Place,
    links: &'a Links<'a>,
    supply: &'a Supply,
    children: BTreeMap<RelPath, Vec<RelPath>>,
    modules: BTreeMap<RelPath, Module<'a>>,
    symlinks: Vec<RelPath>,
    commands: Vec<RelPath>,
    stray: Vec<String>,
}

/// Binds what pnpm, or Yarn with `node_modules`, installed.
///
/// `manifest` is the `package.json` of the project.
///
/// # Errors
/// `record_mismatch` for a package that is not in the lock, a file that is not in its tarball or is missing, a dependency
/// that Node finds elsewhere or not at all, and for anything that no package owns; `record_outside_root` for a link that
/// leads out of this generation.
pub fn bind(
    observed: &Observed,
    lock: &Lockfile,
    manifest: &str,
    selection: &Selection,
    setting: &Setting,
    place: &Place,
    supply: &Supply,
) -> Result<Bound, Refusal> {
    let links = Links::of(lock).ok_or_else(|| mismatch("a lock of pnpm or Yarn binds this layout alone"))?;
    let mut walk = Walk {
        observed,
        place,
        links: &links,
        supply,
        children: BTreeMap::new(),
        modules: BTreeMap::new(),
        symlinks: Vec::new(),
        commands: Vec::new(),
        stray: Vec::new(),
    };
    for (path, fact) in &observed.entries {
        if matches!(fact, Fact::Other) {
            return Err(special(path));
        }
        if let Some((parent, _)) = path.split_last() {
            walk.children.entry(parent).or_default().push(path.clone());
        }
    }
    walk.frame(&RelPath::root())?;
    if !walk.stray.is_empty() {
        let why = format!(
            "no locked package owns {} entries of node_modules",
            walk.stray.len()
        );
        return Err(mismatch(&why).names(walk.stray.into_iter().take(MOST_NAMES)));
    }
    for (at, module) in &walk.modules {
        module.packed.complete(at)?;
    }
    walk.links_lead_to_packages(lock)?;
    walk.commands_are_declared()?;
    walk.everything_is_found(manifest, selection, setting)?;
    Ok(walk.bound())
}

impl<'a> Walk<'a> {
    fn children(&self, path: &RelPath) -> Vec<RelPath> {
        self.children.get(path).cloned().unwrap_or_default()
    }

    fn is_directory(&self, path: &RelPath) -> bool {
        matches!(self.observed.entries.get(path), Some(Fact::Directory { .. }))
    }

    /// Walks a `node_modules`.
    fn frame(&mut self, at: &RelPath) -> Result<(), Refusal> {
        for child in self.children(at) {
            let name = child.split_last().map_or(&b""[..], |(_, name)| name).to_vec();
            let directory = self.is_directory(&child);
            match name.as_slice() {
                b".bin" if directory => self.commands.extend(self.children(&child)),
                b".pnpm" if directory && at.is_root() => self.virtual_store(&child)?,
                name if at.is_root() && !directory && STATE.contains(&name) => {}
                name if name.starts_with(b"@") && directory => {
                    for inner in self.children(&child) {
                        self.node(inner)?;
                    }
                }
                name if name.starts_with(b".") => self.stray.push(child.to_string()),
                _ => self.node(child)?,
            }
        }
        Ok(())
    }

    /// Walks the directory in which pnpm keeps each package with what it needs beside it.
    fn virtual_store(&mut self, at: &RelPath) -> Result<(), Refusal> {
        for child in self.children(at) {
            let (_, name) = child.split_last().unwrap_or((RelPath::root(), b""));
            match (name, self.is_directory(&child)) {
                (b"lock.yaml", false) => {}
                (b"node_modules", true) => self.frame(&child)?,
                (_, true) => {
                    for inner in self.children(&child) {
                        let (_, name) = inner.split_last().unwrap_or((RelPath::root(), b""));
                        match name == b"node_modules" && self.is_directory(&inner) {
                            true => self.frame(&inner)?,
                            false => self.stray.push(inner.to_string()),
                        }
                    }
                }
                (_, false) => self.stray.push(child.to_string()),
            }
        }
        Ok(())
    }

    fn node(&mut self, at: RelPath) -> Result<(), Refusal> {
        match self.observed.entries.get(&at) {
            Some(Fact::Symlink { target }) => {
                stays(self.place, &at, target)?;
                self.symlinks.push(at);
            }
            Some(Fact::Directory { .. }) => self.module(&at)?,
            _ => self.stray.push(at.to_string()),
        }
        Ok(())
    }

    fn module(&mut self, at: &RelPath) -> Result<(), Refusal> {
        let text = self.observed.whole(&at.join(b"package.json")?)?;
        let manifest: Manifest = serde_json::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text))
            .map_err(|e| {
            mismatch("a package.json does not parse").names([at.to_string(), e.to_string()])
        })?;
        let name = manifest.name.unwrap_or_default();
        let plain = |v: &str| v.trim().trim_start_matches(['v', '=']).trim().to_owned();
        let version = plain(manifest.version.as_deref().unwrap_or(""));
        // Under another name, where the project asks for it so.
        let alias = alias_of(at);
        let named = self
            .links
            .named(&name)
            .iter()
            .chain(self.links.named(&alias))
            .copied();
        let fits = |at: &usize| {
            let package = self.links.package(*at);
            package.source == Source::Hashed
                && package.version.as_deref().map(plain).as_deref() == Some(&version)
        };
        let mut packages: Vec<usize> = named.filter(fits).collect();
        packages.sort_unstable();
        packages.dedup();
        let supply = self.supply;
        let of = |at: &usize| supply.of(&self.links.package(*at).artifacts);
        // One version may be locked twice, as published and patched.
        let given: Vec<&Held> = packages.iter().filter_map(of).collect();
        let whole = given.iter().find(|held| self.stands_at(at, held));
        let Some(held) = whole.or(given.first()).copied() else {
            let why = "a package is installed that no artifact of the lock was given for";
            return Err(mismatch(why).names([at.to_string(), format!("{name}@{version}")]));
        };
        packages.retain(|at| of(at).is_some_and(|other| other.locked == held.locked));
        let mut module = Module {
            packages,
            packed: Packed::open(held, &[])?,
        };
        let base = at.as_bytes().len() + 1;
        self.content(at, base, &mut module)?;
        self.modules.insert(at.clone(), module);
        Ok(())
    }

    /// Walks what is in a package: its own files, and the frame of packages that only it uses.
    fn content(&mut self, at: &RelPath, base: usize, module: &mut Module<'a>) -> Result<(), Refusal> {
        for child in self.children(at) {
            let rest = RelPath::parse(&child.as_bytes()[base..])?;
            let Some(fact) = self.observed.entries.get(&child) else {
                continue;
            };
            match fact {
                Fact::Directory { .. } if rest.as_bytes() == b"node_modules" => {
                    self.own_frame(&child, base, module)?;
                }
                Fact::Directory { .. } => self.content(&child, base, module)?,
                fact => module.packed.take(&child, &rest, fact)?,
            }
        }
        Ok(())
    }

    fn own_frame(&mut self, at: &RelPath, base: usize, module: &mut Module<'a>) -> Result<(), Refusal> {
        for child in self.children(at) {
            let name = child.split_last().map_or(&b""[..], |(_, name)| name).to_vec();
            let inner = match name.starts_with(b"@") && self.is_directory(&child) {
                true => self.children(&child),
                false => vec![child],
            };
            for node in inner {
                let rest = RelPath::parse(&node.as_bytes()[base..])?;
                if name == b".bin" {
                    self.commands.extend(self.children(&node));
                    continue;
                }
                if module.packed.bundles(&rest) {
                    if self.replaces(&node, &rest, module) {
                        module.packed.replace(&rest);
                    } else {
                        match self.observed.entries.get(&node) {
                            Some(Fact::Directory { .. }) => self.content(&node, base, module)?,
                            Some(fact) => module.packed.take(&node, &rest, fact)?,
                            None => {}
                        }
                        continue;
                    }
                }
                self.node(node)?;
            }
        }
        Ok(())
    }

    /// Says whether a locked package stands where a tarball brought one of its own: Yarn puts what others need there, too.
    ///
    /// Where both have the same manifest, the locked one has to be whole: tarballs leave out some of what they bring.
    fn replaces(&self, node: &RelPath, rest: &RelPath, module: &Module<'a>) -> bool {
        let name = b"package.json";
        let (Ok(own), Ok(top), Ok(brought)) = (node.join(name), RelPath::root().join(name), rest.join(name))
        else {
            return false;
        };
        let is = |held: &Held, at: &RelPath| match held.members.get(at) {
            Some(Fact::File { sha256, .. }) => self.digest(&own) == Some(sha256),
            _ => false,
        };
        let ambiguous = is(module.packed.held(), &brought);
        let mut locked = self.links.named(&alias_of(node)).iter();
        locked.any(|at| {
            let held = self.supply.of(&self.links.package(*at).artifacts);
            held.is_some_and(|held| is(held, &top) && (!ambiguous || self.stands_at(node, held)))
        })
    }

    fn digest(&self, at: &RelPath) -> Option<&Sha256> {
        match self.observed.entries.get(at)? {
            Fact::File { sha256, .. } => Some(sha256),
            Fact::Symlink { .. } | Fact::Directory { .. } | Fact::Other => None,
        }
    }

    /// Says whether every file of an artifact lies here as it is in there.
    fn stands_at(&self, at: &RelPath, held: &Held) -> bool {
        held.members.iter().all(|(path, fact)| {
            let place = RelPath::parse(&[at.as_bytes(), b"/", path.as_bytes()].concat()).ok();
            match (place.and_then(|place| self.digest(&place)), fact) {
                (Some(sha256), Fact::File { sha256: wanted, .. }) => sha256 == wanted,
                // Package managers leave these out.
                (_, fact) => path.as_bytes().ends_with(b".gitignore") || !matches!(fact, Fact::File { .. }),
            }
        })
    }

    /// Gives the package directory that an entry is, or that a link leads to; `Err` with the place for another one.
    fn real(&self, at: &RelPath) -> Option<Result<RelPath, Vec<u8>>> {
        match self.observed.entries.get(at)? {
            Fact::Symlink { target } => {
                let whole = link_target(self.place, at, target)?;
                match below(self.place, &whole).filter(|to| self.modules.contains_key(to)) {
                    Some(to) => Some(Ok(to)),
                    None => Some(Err(whole)),
                }
            }
            Fact::Directory { .. } => Some(Ok(at.clone())),
            Fact::File { .. } | Fact::Other => None,
        }
    }

    /// Proves that every link leads to a package here, or to one that the lock takes from the tree.
    fn links_lead_to_packages(&self, lock: &Lockfile) -> Result<(), Refusal> {
        let local = |whole: &[u8]| {
            lock.packages.iter().any(|package| match &package.source {
                Source::Local(home) | Source::Virtual(home) => {
                    let wanted = [&self.place.tree, &b"/"[..], home.as_bytes()].concat();
                    lies_in(whole, &wanted) && lies_in(&wanted, whole)
                }
                Source::Hashed | Source::Bundled => false,
            })
        };
        for at in &self.symlinks {
            match self.real(at) {
                Some(Ok(_)) => {}
                Some(Err(whole)) if local(&whole) || self.is_project(&whole) => {}
                Some(Err(whole)) => {
                    return Err(mismatch("a link leads to no locked package")
                        .name(format!("{at} -> {}", shown(&whole))));
                }
                None => return Err(mismatch("a link leads to nothing").name(at.to_string())),
            }
        }
        Ok(())
    }

    /// Says whether a path is a directory of the tree, beside what is installed: a workspace.
    fn is_project(&self, whole: &[u8]) -> bool {
        lies_in(whole, &self.place.tree) && !lies_in(whole, &self.place.root)
    }

    /// Proves that every command is one that its package declares.
    fn commands_are_declared(&self) -> Result<(), Refusal> {
        for at in &self.commands {
            let Some((parent, name)) = at.split_last() else {
                continue;
            };
            let whole = match self.observed.entries.get(at) {
                Some(Fact::Symlink { target }) => stays(self.place, at, target)?,
                Some(Fact::File { .. }) => {
                    let bin = [&self.place.root, &b"/"[..], parent.as_bytes()].concat();
                    let inside = |path: &[u8]| lies_in(path, &self.place.root);
                    shim::target(self.observed.text(at)?, &bin, inside).ok_or_else(|| {
                        mismatch("a command is not as package managers write it").name(at.to_string())
                    })?
                }
                _ => return Err(mismatch("a command is no file").name(at.to_string())),
            };
            if !lies_in(&whole, &self.place.root) {
                if self.is_project(&whole) {
                    continue;
                }
                return Err(outside("a command leads out of this generation").name(at.to_string()));
            }
            let file = below(self.place, &whole);
            let declared = file.as_ref().is_some_and(|file| self.declares(file, name));
            if !declared {
                return Err(mismatch("no locked package declares a command")
                    .name(format!("{at} -> {}", shown(&whole))));
            }
        }
        Ok(())
    }

    /// Says whether the package in which a file lies declares it as a command. pnpm also names it by the link that it
    /// keeps to each package, and makes commands of what a package bundles, whose manifest its tarball binds.
    fn declares(&self, file: &RelPath, name: &[u8]) -> bool {
        let mut at = file.clone();
        while let Some((parent, _)) = at.split_last() {
            let home = self.real(&parent).and_then(Result::ok);
            let module = home.as_ref().and_then(|home| self.modules.get(home));
            let declared = match (&home, module) {
                (_, Some(module)) => Some(module.packed.declared()),
                (Some(home), None) => self.bundled_commands(home),
                (None, None) => None,
            };
            if let (Some(home), Some(declared)) = (home, declared) {
                let rest = &file.as_bytes()[parent.as_bytes().len() + 1..];
                let named = declared.iter().any(|(own, path)| {
                    let own = own.rsplit('/').next().unwrap_or(own);
                    let path = RelPath::parse(path.trim_start_matches('/').as_bytes());
                    own.as_bytes() == name && path.is_ok_and(|path| path.as_bytes() == rest)
                });
                let real = RelPath::parse(&[home.as_bytes(), b"/", rest].concat());
                return named && real.is_ok_and(|real| self.observed.entries.contains_key(&real));
            }
            at = parent;
        }
        false
    }

    /// Gives what the manifest of a bundled package declares; every file that is not a locked package's own is one that
    /// the tarball around it brought.
    fn bundled_commands(&self, at: &RelPath) -> Option<BTreeMap<String, String>> {
        let (frame, _) = at.split_last()?;
        let frame = match frame.split_last() {
            Some((above, scope)) if scope.starts_with(b"@") => above,
            _ => frame,
        };
        let (_, last) = frame.split_last()?;
        let text = self.observed.whole(&at.join(b"package.json").ok()?).ok()?;
        (last == b"node_modules").then(|| super::tarball::declared(text))
    }

    /// Finds what Node finds: in the nearest `node_modules` on the way up.
    fn resolve(&self, from: &RelPath, alias: &str) -> Option<Result<RelPath, Vec<u8>>> {
        let parts: Vec<&[u8]> = from.components().collect();
        for level in (0..=parts.len()).rev() {
            let base = &parts[..level];
            if base.last() == Some(&&b"node_modules"[..]) {
                continue;
            }
            let mut whole = base.join(&b'/');
            if level > 0 {
                whole.extend_from_slice(b"/node_modules/");
            }
            whole.extend_from_slice(alias.as_bytes());
            let found = RelPath::parse(&whole).ok().and_then(|path| self.real(&path));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn everything_is_found(
        &self,
        manifest: &str,
        selection: &Selection,
        setting: &Setting,
    ) -> Result<(), Refusal> {
        let roots = self.links.roots(manifest)?;
        for edge in &roots {
            let chosen = match &edge.scope {
                Scope::Dev(group) => selection.groups.contains(group),
                Scope::Always | Scope::Optional(_) => true,
            };
            if chosen {
                self.is_found(&RelPath::root(), edge, setting)
                    .map_err(|why| mismatch(&why).names([format!("{} of the project", edge.name)]))?;
            }
        }
        for (at, module) in &self.modules {
            let mut last = None;
            let whole = module.packages.iter().any(|package| {
                let edges = &self.links.package(*package).dependencies;
                edges.iter().all(|edge| match self.is_found(at, edge, setting) {
                    Ok(()) => true,
                    Err(why) => {
                        last = Some((why, edge.name.clone()));
                        false
                    }
                })
            });
            if let (false, Some((why, name))) = (whole, last) {
                return Err(mismatch(&why).names([at.to_string(), name]));
            }
        }
        Ok(())
    }

    fn is_found(&self, from: &RelPath, edge: &Dependency, setting: &Setting) -> Result<(), String> {
        let answers = self.links.answers(edge);
        let optional = matches!(edge.scope, Scope::Optional(_));
        let local = answers.is_empty()
            || answers
                .iter()
                .any(|at| !matches!(self.links.package(*at).source, Source::Hashed));
        let elsewhere = answers
            .iter()
            .all(|at| setting.takes(self.links.package(*at)) != Holds::Yes);
        match self.resolve(from, &edge.name) {
            Some(Ok(to)) => {
                let own = self.modules.get(&to).map_or(&[][..], |module| &module.packages);
                let right = own.iter().any(|at| answers.contains(at));
                match right || local || elsewhere {
                    true => Ok(()),
                    false => Err("a dependency is found in another version than the lock says".to_owned()),
                }
            }
            Some(Err(_)) if local => Ok(()),
            Some(Err(_)) => Err("a dependency leads into the tree, but is locked otherwise".to_owned()),
            None if local || optional || elsewhere => Ok(()),
            None => Err("a locked package is not installed".to_owned()),
        }
    }

    fn bound(&self) -> Bound {
        let mut bound = Bound::default();
        let mut scripts = Vec::new();
        for module in self.modules.values() {
            let Some(package) = module.packages.first().map(|at| self.links.package(*at)) else {
                continue;
            };
            let named = format!("{}=={}", package.name, package.version.as_deref().unwrap_or(""));
            if module.packed.has_install_script() {
                scripts.push(named.clone());
            }
            bound.packages.insert(named);
        }
        if !scripts.is_empty() {
            bound.weak.push(format!(
                "{} packages have an install script, which was not run: {}",
                scripts.len(),
                scripts[..scripts.len().min(MOST_NAMES)].join(", ")
            ));
        }
        bound
    }
}

/// Gives the name under which a package directory is found.
fn alias_of(at: &RelPath) -> String {
    let parts: Vec<&[u8]> = at.components().collect();
    let scoped = parts.len() > 1 && parts[parts.len() - 2].starts_with(b"@");
    let from = parts.len() - if scoped { 2 } else { 1 };
    shown(&parts[from..].join(&b'/'))
}
