//! An installed package of Node against its tarball: which member each file is, and what package managers change.

use super::{Fact, mismatch};
use crate::artifact::{Held, Packing};
use crate::code::Refusal;
use crate::digest::Sha256;
use crate::path::RelPath;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Holds a tarball, and which of its members were found.
pub(super) struct Packed<'a> {
    held: &'a Held,
    commands: BTreeSet<RelPath>,
    found: BTreeSet<RelPath>,
    /// Packages that it bundles, in whose place another one stands.
    replaced: BTreeSet<RelPath>,
}

#[derive(Deserialize)]
struct Manifest {
    name: Option<String>,
    #[serde(default)]
    bin: Option<serde_json::Value>,
    #[serde(default)]
    directories: Option<serde_json::Value>,
    #[serde(default)]
    scripts: Option<serde_json::Value>,
}

impl Manifest {
    fn read(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)).ok()
    }

    fn commands(&self) -> BTreeMap<String, String> {
        let own = self.name.as_deref().unwrap_or("");
        let own = own.rsplit('/').next().unwrap_or(own).to_owned();
        let mut found = BTreeMap::new();
        match &self.bin {
            Some(serde_json::Value::String(file)) => drop(found.insert(own, file.clone())),
            Some(serde_json::Value::Object(map)) => {
                let pairs = map.iter().filter_map(|(name, file)| Some((name, file.as_str()?)));
                found.extend(pairs.map(|(name, file)| (name.clone(), file.to_owned())));
            }
            _ => {}
        }
        found
    }
}

/// Gives the commands that a manifest declares by name.
pub(super) fn declared(manifest: &[u8]) -> BTreeMap<String, String> {
    Manifest::read(manifest).map_or_else(BTreeMap::new, |manifest| manifest.commands())
}

impl<'a> Packed<'a> {
    /// Opens a tarball; `bins` are the commands that a lock says it has, beside those of its own manifest.
    pub(super) fn open(held: &'a Held, bins: &[&str]) -> Result<Self, Refusal> {
        let mut packed = Self {
            held,
            commands: BTreeSet::new(),
            found: BTreeSet::new(),
            replaced: BTreeSet::new(),
        };
        let declared = packed.declared();
        for file in bins
            .iter()
            .map(|file| (*file).to_owned())
            .chain(declared.into_values())
        {
            if let Ok(path) = RelPath::parse(file.trim_start_matches('/').as_bytes()) {
                packed.commands.insert(path);
            }
        }
        Ok(packed)
    }

    /// Gives the commands that the manifest declares: their names and files.
    pub(super) fn declared(&self) -> BTreeMap<String, String> {
        let Some(manifest) = self.manifest() else {
            return BTreeMap::new();
        };
        let mut found = manifest.commands();
        let directory = manifest
            .directories
            .as_ref()
            .and_then(|map| map.get("bin"))
            .and_then(serde_json::Value::as_str)
            .and_then(|at| RelPath::parse(at.as_bytes()).ok());
        if let (Some(directory), true) = (directory, found.is_empty()) {
            let members = self.held.members.keys().filter_map(|path| path.split_last());
            for (_, name) in members.filter(|(parent, _)| *parent == directory) {
                let name = crate::path::shown(name);
                found.insert(name.clone(), format!("{directory}/{name}"));
            }
        }
        found
    }

    /// Says whether the package would run something after it is unpacked.
    pub(super) fn has_install_script(&self) -> bool {
        let scripts = self.manifest().and_then(|manifest| manifest.scripts);
        let named = |name: &str| {
            scripts
                .as_ref()
                .is_some_and(|scripts| scripts.get(name).is_some())
        };
        let gyp = RelPath::parse(b"binding.gyp").is_ok_and(|path| self.held.members.contains_key(&path));
        gyp || ["preinstall", "install", "postinstall"].into_iter().any(named)
    }

    /// Says whether a package below `node_modules` comes in this tarball.
    pub(super) fn bundles(&self, at: &RelPath) -> bool {
        let below = [at.as_bytes(), b"/"].concat();
        self.held
            .members
            .keys()
            .any(|path| path.as_bytes().starts_with(&below))
    }

    /// Gives the tarball itself.
    pub(super) fn held(&self) -> &'a Held {
        self.held
    }

    /// Demands nothing more of a package that it bundles: a locked one stands in its place.
    pub(super) fn replace(&mut self, at: &RelPath) {
        self.replaced.insert(at.clone());
    }

    fn manifest(&self) -> Option<Manifest> {
        let text = self.held.texts.get(&RelPath::parse(b"package.json").ok()?)?;
        Manifest::read(text)
    }

    /// Takes an installed entry as the member that it is.
    ///
    /// # Errors
    /// `record_mismatch` where it is none.
    pub(super) fn take(&mut self, path: &RelPath, at: &RelPath, fact: &Fact) -> Result<(), Refusal> {
        let Some(member) = self.member(at, fact) else {
            return Err(self.wrong("an installed file is not the one in the locked tarball", path));
        };
        if let Fact::File { mode, .. } = fact {
            let runs = match self.held.members.get(&member) {
                Some(Fact::File { mode, .. }) => mode & 0o111 != 0,
                _ => false,
            };
            if mode & 0o7002 != 0 || (mode & 0o111 != 0 && !runs && !self.commands.contains(at)) {
                let why = "an installed file has a mode that its artifact does not give it";
                return Err(self.wrong(why, path));
            }
        }
        self.found.insert(member);
        Ok(())
    }

    fn member(&self, at: &RelPath, fact: &Fact) -> Option<RelPath> {
        let members = &self.held.members;
        match (members.get(at), fact) {
            (Some(Fact::File { sha256: wanted, .. }), Fact::File { sha256, .. }) => {
                let same = wanted == sha256 || self.mended(at) == Some(*sha256);
                same.then(|| at.clone())
            }
            (Some(Fact::Symlink { target: wanted }), Fact::Symlink { target }) => {
                (wanted == target).then(|| at.clone())
            }
            // npm writes `.gitignore` as `.npmignore`, where there is none.
            (None, Fact::File { sha256, .. }) => {
                let (parent, name) = at.split_last()?;
                let other = (name == b".npmignore").then(|| parent.join(b".gitignore").ok())??;
                match members.get(&other) {
                    Some(Fact::File { sha256: wanted, .. }) if wanted == sha256 => Some(other),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Gives the digest of a command whose first line lost its carriage return: with it, no kernel would find the
    /// interpreter.
    fn mended(&self, at: &RelPath) -> Option<Sha256> {
        let text = self.held.texts.get(at)?;
        let end = text.iter().position(|b| *b == b'\n')?;
        let line = text[..end].strip_suffix(b"\r")?;
        Some(Sha256::of(&[line, &text[end..]].concat()))
    }

    /// Proves that every member was found.
    ///
    /// # Errors
    /// `record_mismatch` with the first that is missing.
    pub(super) fn complete(&self, package: &RelPath) -> Result<(), Refusal> {
        // Yarn 2 and later take what a package bundles from the lock like everything else, and leave the bundle out; what is
        // there of one is there whole.
        let there: BTreeSet<RelPath> = self.found.iter().filter_map(bundle_of).collect();
        let leaves_out = self.held.packing == Packing::YarnCache;
        let absent = |path: &RelPath| leaves_out && bundle_of(path).is_some_and(|at| !there.contains(&at));
        let left_out = |path: &RelPath, fact: &Fact| {
            // Package managers leave links out, and npm a `.gitignore` beside an `.npmignore`.
            let ignore = path.split_last().is_some_and(|(_, name)| name == b".gitignore");
            let replaced = self.replaced.iter().any(|at| path.is_below(at));
            ignore || replaced || absent(path) || !matches!(fact, Fact::File { .. })
        };
        let lost = self
            .held
            .members
            .iter()
            .find(|(path, fact)| !self.found.contains(*path) && !left_out(path, fact));
        match lost {
            Some((path, _)) => {
                let whole = [package.as_bytes(), b"/", path.as_bytes()].concat();
                let path = RelPath::parse(&whole)?;
                Err(self.wrong("a file of the locked tarball is not installed", &path))
            }
            None => Ok(()),
        }
    }

    fn wrong(&self, why: &str, path: &RelPath) -> Refusal {
        mismatch(why).names([self.held.file.clone(), path.to_string()])
    }
}

/// Gives the bundled package that a member lies in: `node_modules/name`, with its scope.
fn bundle_of(path: &RelPath) -> Option<RelPath> {
    let parts: Vec<&[u8]> = path.components().collect();
    let end = match parts.as_slice() {
        [b"node_modules", scope, _, ..] if scope.starts_with(b"@") => 3,
        [b"node_modules", _, ..] => 2,
        _ => return None,
    };
    RelPath::parse(&parts[..end].join(&b'/')).ok()
}
