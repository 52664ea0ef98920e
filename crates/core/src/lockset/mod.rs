//! Which lockfiles bind a tree, and whether each of them is whole.
//!
//! A lockfile is foreign text: it is recognised by name, parsed, and compared with the manifest beside it, so that
//! a cut one is refused even where its prefix parses. What a format cannot show is named as weak. This module does
//! *not* evaluate environment markers and does *not* resolve versions: the ecosystem's own installer does, in its
//! strictest mode.

mod berry;
mod berry_range;
mod cargo;
mod composer;
mod fetchable;
#[cfg(test)]
pub(crate) mod fixtures;
mod front;
mod gemfile;
mod go;
mod graph;
mod json;
mod links;
mod marker;
mod md5;
pub(crate) mod npm;
mod pdm;
mod pep;
mod pipfile;
mod pnpm;
mod poetry;
mod pylock;
mod python;
mod requirements;
mod selection;
mod semver;
#[cfg(test)]
mod tests;
mod uv;
mod uv_inputs;
mod weak;
mod yaml;
mod yarn;

use crate::code::{Code, Refusal};
use crate::digest::Sha256;
use crate::path::{RelPath, shown};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) use links::Links;
pub use marker::{Holds, Setting};
pub use pep::normal_name;
pub(crate) use pep::normal_version;
pub use requirements::pinned;
pub use selection::{Own, Selection};
pub use weak::Weakness;

macro_rules! formats {
    ($($variant:ident = $name:literal, $installer:literal, $doc:literal;)*) => {
        /// Names a format of lockfile that binds a tree.
        ///
        /// # Shape
        /// On the wire the usual file name, such as `uv.lock`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Format {
            $(
                #[doc = $doc]
                #[serde(rename = $name)]
                $variant,
            )*
        }

        impl Format {
            /// Lists every format.
            pub const ALL: &'static [Format] = &[$(Format::$variant),*];

            /// Gives the usual file name.
            #[must_use]
            pub const fn file_name(self) -> &'static str {
                match self { $(Format::$variant => $name,)* }
            }

            /// Names the installer that reads it in a job.
            #[must_use]
            pub const fn installer(self) -> &'static str {
                match self { $(Format::$variant => $installer,)* }
            }
        }
    };
}

formats! {
    Uv = "uv.lock", "uv", "The lock of uv.";
    Poetry = "poetry.lock", "poetry", "The lock of Poetry.";
    Pdm = "pdm.lock", "pdm", "The lock of PDM.";
    Pylock = "pylock.toml", "pip", "The lock of PEP 751, also as `pylock.NAME.toml`.";
    Pipfile = "Pipfile.lock", "pipenv", "The lock of Pipenv.";
    Requirements = "requirements.txt", "pip", "Pinned requirements of pip, also as `requirements*.txt`.";
    PackageLock = "package-lock.json", "npm", "The lock of npm.";
    Shrinkwrap = "npm-shrinkwrap.json", "npm", "The published lock of npm.";
    Pnpm = "pnpm-lock.yaml", "pnpm", "The lock of pnpm.";
    Yarn = "yarn.lock", "yarn", "The lock of Yarn.";
    Cargo = "Cargo.lock", "cargo", "The lock of Cargo.";
    GoSum = "go.sum", "go", "The checksums of Go modules.";
    Gemfile = "Gemfile.lock", "bundler", "The lock of Bundler.";
    Composer = "composer.lock", "composer", "The lock of Composer.";
}

impl Format {
    /// Recognises a lockfile by the last component of its path.
    #[must_use]
    pub fn recognise(name: &[u8]) -> Option<Format> {
        if let Some(format) = Format::ALL.iter().find(|f| f.file_name().as_bytes() == name) {
            return Some(*format);
        }
        if name.starts_with(b"requirements") && name.ends_with(b".txt") {
            return Some(Format::Requirements);
        }
        let inner = name.strip_prefix(b"pylock.")?.strip_suffix(b".toml")?;
        (!inner.is_empty() && !inner.contains(&b'.')).then_some(Format::Pylock)
    }
}

/// Lists the usual file name of every format, for messages.
#[must_use]
pub fn binding_names() -> Vec<&'static str> {
    Format::ALL.iter().map(|f| f.file_name()).collect()
}

/// Says whether a file declares what a lockfile has to close over, so that its bytes belong into [`Declared`].
#[must_use]
pub fn wants_manifest(path: &RelPath) -> bool {
    let Some((_, name)) = path.split_last() else {
        return false;
    };
    matches!(
        name,
        b"pyproject.toml"
            | b"package.json"
            | b"Cargo.toml"
            | b"Pipfile"
            | b"go.mod"
            | b"Gemfile"
            | b"composer.json"
    ) || (name.starts_with(b"requirements") && (name.ends_with(b".in") || name.ends_with(b".txt")))
}

/// Holds the manifests of a tree: every file that [`wants_manifest`] names, by its path in the tree.
#[derive(Clone, Debug, Default)]
pub struct Declared {
    /// The bytes of each manifest.
    pub texts: BTreeMap<RelPath, Vec<u8>>,
}

/// Names a way to digest an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// SHA-1, of old npm locks alone; named as weak.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    /// Finds the algorithm of a lower-case name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Algorithm> {
        Some(match name {
            "sha1" => Algorithm::Sha1,
            "sha256" => Algorithm::Sha256,
            "sha384" => Algorithm::Sha384,
            "sha512" => Algorithm::Sha512,
            _ => return None,
        })
    }

    /// Gives the lower-case name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Sha1 => "sha1",
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha384 => "sha384",
            Algorithm::Sha512 => "sha512",
        }
    }

    /// Gives the number of bytes of a digest.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 => 32,
            Algorithm::Sha384 => 48,
            Algorithm::Sha512 => 64,
        }
    }
}

/// Holds one file that a lockfile allows for a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Its file name or URL; empty where the lockfile gives none.
    pub name: String,
    /// How it is digested.
    pub algorithm: Algorithm,
    /// The digest that its bytes must have.
    pub digest: Vec<u8>,
    /// Its size, where the lockfile gives one.
    pub size_bytes: Option<u64>,
}

/// Says where a package comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A registry or an archive by URL: bound by the digests of its artifacts.
    Hashed,
    /// A directory of this tree: bound by the tree itself.
    Local(RelPath),
    /// A project of this tree that is not installed itself, only its dependencies.
    Virtual(RelPath),
    /// Part of another package's artifact.
    Bundled,
}

/// Says on what an edge or a package depends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Always.
    Always,
    /// Only with this extra, or as an optional dependency (empty name).
    Optional(String),
    /// Only with this development group (`dev` for npm and Cargo).
    Dev(String),
}

/// Holds one edge of the locked graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The normalised name of the package it leads to.
    pub name: String,
    /// The version, where the lockfile has to tell several apart; the key of the entry for pnpm, the range for Yarn.
    pub version: Option<String>,
    /// The extras that are asked of it.
    pub extras: Vec<String>,
    /// When the edge counts.
    pub scope: Scope,
    /// The environment marker, verbatim and not evaluated.
    pub marker: Option<String>,
}

/// Holds one locked package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its normalised name.
    pub name: String,
    /// Its version; none for a project whose version is computed.
    pub version: Option<String>,
    /// Where it comes from.
    pub source: Source,
    /// What may be installed for it.
    pub artifacts: Vec<Artifact>,
    /// What it depends on.
    pub dependencies: Vec<Dependency>,
    /// Where npm installs it, such as `node_modules/ms`; the key of its entry for pnpm and Yarn, its registry for Cargo,
    /// its category for Pipenv; none elsewhere.
    pub place: Option<String>,
    /// When it is installed at all, as far as the lockfile says so.
    pub scope: Scope,
    /// Whether a marker or a platform list decides if it is installed, verbatim and not evaluated.
    pub condition: Option<String>,
}

/// Holds a lockfile that parsed, is not cut as far as the format shows it, and has a hash for everything foreign.
#[derive(Clone, Debug)]
pub struct Lockfile {
    /// Its path in the tree.
    pub path: RelPath,
    /// Its format.
    pub format: Format,
    /// The digest of its bytes.
    pub digest: Sha256,
    /// Every package in it.
    pub packages: Vec<Package>,
    /// Other files that it includes, as paths in the tree.
    pub includes: Vec<RelPath>,
    /// Other files that only limit versions, and ask for nothing, as paths in the tree.
    pub constraints: Vec<RelPath>,
    /// What the format cannot show, one clause each.
    pub weak: Vec<String>,
    /// The packages from elsewhere whose bytes no hash in the lockfile binds; each format that allows that says so.
    pub unbound: Vec<String>,
    /// The last package where a cut behind it cannot be seen in the lockfile alone; the install can close it.
    pub open_end: Option<String>,
    facts: Facts,
}

/// Holds what one format alone knows and its manifest has to agree with.
#[derive(Clone, Debug)]
enum Facts {
    Uv(Box<uv::Facts>),
    Poetry(Box<poetry::Facts>),
    Pdm(Box<pdm::Facts>),
    Pylock(Box<pylock::Facts>),
    Pipfile(Box<pipfile::Facts>),
    Requirements,
    Npm(Box<npm::Facts>),
    Pnpm(Box<pnpm::Facts>),
    Yarn(Box<yarn::Facts>),
    Berry(Box<berry::Facts>),
    Cargo,
    Go,
    Gemfile(Box<gemfile::Facts>),
    Composer(Box<composer::Facts>),
}

/// Parses a lockfile.
///
/// # Errors
/// `lock_incomplete`, with the package or line named, for a file that does not parse, is cut, has a package
/// without a hash, names a dependency that it does not hold, holds an entry twice, or takes a package from where
/// nothing binds its bytes.
///
/// # Limits
/// What a format cannot show is named in `weak`, and what it binds by no hash in `unbound`: see [`require_hashes`].
pub fn parse(path: &RelPath, bytes: &[u8]) -> Result<Lockfile, Refusal> {
    let name = path.split_last().map_or(&b""[..], |(_, name)| name);
    let format =
        Format::recognise(name).ok_or_else(|| incomplete(path, "is not a lockfile of a supported format"))?;
    let text = front::text(path, bytes)?;
    let mut lock = Lockfile {
        path: path.clone(),
        format,
        digest: Sha256::of(bytes),
        packages: Vec::new(),
        includes: Vec::new(),
        constraints: Vec::new(),
        weak: Vec::new(),
        unbound: Vec::new(),
        open_end: None,
        facts: Facts::Requirements,
    };
    match format {
        Format::Uv => uv::parse(&mut lock, text)?,
        Format::Poetry => poetry::parse(&mut lock, text)?,
        Format::Pdm => pdm::parse(&mut lock, text)?,
        Format::Pylock => pylock::parse(&mut lock, text)?,
        Format::Pipfile => pipfile::parse(&mut lock, text)?,
        Format::Requirements => requirements::parse(&mut lock, text)?,
        Format::PackageLock | Format::Shrinkwrap => npm::parse(&mut lock, text)?,
        Format::Pnpm => pnpm::parse(&mut lock, text)?,
        Format::Yarn if yarn::is_berry(text) => berry::parse(&mut lock, text)?,
        Format::Yarn => yarn::parse(&mut lock, text)?,
        Format::Cargo => cargo::parse(&mut lock, text)?,
        Format::GoSum => go::parse(&mut lock, text)?,
        Format::Gemfile => gemfile::parse(&mut lock, text)?,
        Format::Composer => composer::parse(&mut lock, text)?,
    }
    lock.refuse_twins()?;
    lock.refuse_blanks()?;
    Ok(lock)
}

/// Names the kind of Yarn that wrote a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yarn {
    /// Yarn 1.
    Classic,
    /// Yarn 2 and later.
    Modern,
}

/// Refuses a lockfile that binds not every byte that comes from elsewhere, for an installer that the job names.
///
/// # Errors
/// `lock_incomplete`, with every package without a hash named.
pub fn require_hashes(lock: &Lockfile) -> Result<(), Refusal> {
    if lock.unbound.is_empty() {
        return Ok(());
    }
    Err(incomplete(&lock.path, "has packages without a hash").names(lock.unbound.iter().cloned()))
}

/// Compares a lockfile with the manifests that it closes over; gives what they cannot show, one clause each.
///
/// # Errors
/// `lock_incomplete`, with the dependency named, where they disagree or a manifest is missing.
///
/// # Limits
/// Markers are not compared: the formats rewrite them. The installer's own strict mode does.
pub fn close_over(lock: &Lockfile, declared: &Declared) -> Result<Vec<String>, Refusal> {
    match &lock.facts {
        Facts::Uv(facts) => uv_inputs::close_over(lock, facts, declared),
        Facts::Poetry(facts) => poetry::close_over(lock, facts, declared),
        Facts::Pdm(facts) => pdm::close_over(lock, facts, declared),
        Facts::Pylock(facts) => pylock::close_over(lock, facts, declared),
        Facts::Pipfile(facts) => pipfile::close_over(lock, facts, declared),
        Facts::Requirements => requirements::close_over(lock, declared),
        Facts::Npm(facts) => npm::close_over(lock, facts, declared),
        Facts::Pnpm(facts) => pnpm::close_over(lock, facts, declared),
        Facts::Yarn(facts) => yarn::close_over(lock, facts, declared),
        Facts::Berry(facts) => berry::close_over(lock, facts, declared),
        Facts::Cargo => cargo::close_over(lock, declared),
        Facts::Go => go::close_over(lock, declared),
        Facts::Gemfile(facts) => gemfile::close_over(lock, facts, declared),
        Facts::Composer(facts) => composer::close_over(lock, facts, declared),
    }
}

/// Gives every file that a lockfile includes, each once; the installer installs what they pin, too.
///
/// # Errors
/// `lock_incomplete`, with the file named, where one is no lockfile of this tree, or is not whole.
pub fn included(lock: &Lockfile, declared: &Declared) -> Result<Vec<Lockfile>, Refusal> {
    match lock.format {
        Format::Requirements => requirements::included(lock, declared),
        _ => Ok(Vec::new()),
    }
}

impl Lockfile {
    /// Gives the directory that the lockfile lies in.
    #[must_use]
    pub fn directory(&self) -> RelPath {
        self.path
            .split_last()
            .map_or_else(RelPath::root, |(parent, _)| parent)
    }

    /// Says which kind of Yarn wrote it; `None` for a lock of another tool.
    #[must_use]
    pub fn yarn(&self) -> Option<Yarn> {
        match &self.facts {
            Facts::Yarn(_) => Some(Yarn::Classic),
            Facts::Berry(_) => Some(Yarn::Modern),
            _ => None,
        }
    }

    /// Names the patches of a lock of Yarn 2 or later that are files of the tree.
    #[must_use]
    pub fn patches(&self) -> BTreeSet<RelPath> {
        match &self.facts {
            Facts::Berry(facts) => facts.patches.clone(),
            _ => BTreeSet::new(),
        }
    }

    /// Gives every version that the lockfile allows, by name; an empty set where a version is computed.
    #[must_use]
    pub fn versions(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut all: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for package in &self.packages {
            all.entry(&package.name)
                .or_default()
                .extend(package.version.as_deref());
        }
        all
    }

    /// Names the places of an npm lock that an install fills on every platform.
    pub(crate) fn npm_certain(&self, selection: &Selection) -> BTreeSet<&str> {
        self.npm()
            .map(|facts| npm::certain(facts, selection))
            .unwrap_or_default()
    }

    /// Gives every place of an npm lock; none for another format.
    pub(crate) fn npm_places(&self) -> Option<&BTreeMap<String, npm::Entry>> {
        self.npm().map(|facts| &facts.entries)
    }

    /// Gives the projects of an npm lock beside that of the lock itself: as the lock writes their directories, and where they
    /// lie in the tree.
    #[must_use]
    pub fn npm_workspaces(&self) -> Vec<(&str, RelPath)> {
        let places = self.npm_places().into_iter().flat_map(|places| places.keys());
        let homes = places.filter(|at| !at.is_empty() && !at.split('/').any(|part| part == "node_modules"));
        homes
            .filter_map(|at| Some((at.as_str(), resolve(&self.directory(), at)?)))
            .collect()
    }

    fn npm(&self) -> Option<&npm::Facts> {
        match &self.facts {
            Facts::Npm(facts) => Some(facts),
            _ => None,
        }
    }

    /// Refuses a digest of nothing but zeros: it has the shape of one, and binds no bytes that anybody has.
    fn refuse_blanks(&self) -> Result<(), Refusal> {
        let blank = |package: &&Package| {
            let mut artifacts = package.artifacts.iter();
            artifacts.any(|artifact| artifact.digest.iter().all(|byte| *byte == 0))
        };
        match self.packages.iter().find(blank) {
            None => Ok(()),
            Some(package) => {
                Err(incomplete(&self.path, "has a hash of nothing but zeros").name(label(package)))
            }
        }
    }

    fn refuse_twins(&self) -> Result<(), Refusal> {
        let mut seen = BTreeSet::new();
        for p in &self.packages {
            let origin = match &p.source {
                Source::Local(at) | Source::Virtual(at) => at.to_wire(),
                Source::Hashed | Source::Bundled => String::new(),
            };
            if !seen.insert((&p.name, &p.version, origin, &p.place, &p.condition)) {
                return Err(incomplete(&self.path, "holds an entry twice").name(label(p)));
            }
        }
        Ok(())
    }
}

/// Names a package as `name==version`.
fn label(package: &Package) -> String {
    match &package.version {
        Some(version) => format!("{}=={version}", package.name),
        None => package.name.clone(),
    }
}

/// Refuses a lockfile; the path is the first name.
fn incomplete(path: &RelPath, why: &str) -> Refusal {
    Refusal::new(Code::LockIncomplete, format!("the lockfile {why}")).name(path.to_string())
}

/// Resolves a path that a file in `directory` names; only paths inside the tree resolve.
fn resolve(directory: &RelPath, path: &str) -> Option<RelPath> {
    if path.starts_with('/') || path.starts_with('~') {
        return None;
    }
    let mut whole = directory.as_bytes().to_vec();
    whole.push(b'/');
    whole.extend_from_slice(path.as_bytes());
    let whole = whole.strip_prefix(b"/").unwrap_or(&whole);
    RelPath::parse(whole).ok()
}

/// Finds a manifest as text.
fn manifest<'a>(
    lock: &Lockfile,
    declared: &'a Declared,
    at: &RelPath,
    name: &str,
) -> Result<&'a str, Refusal> {
    let path = at.join(name.as_bytes())?;
    let bytes = declared
        .texts
        .get(&path)
        .ok_or_else(|| incomplete(&lock.path, "has no manifest to close over").name(path.to_string()))?;
    core::str::from_utf8(bytes)
        .map_err(|_| incomplete(&lock.path, "has a manifest that is not UTF-8").name(shown(path.as_bytes())))
}

/// Refuses the first thing that only one of lockfile and manifest has.
fn same_set(
    lock: &Lockfile,
    what: &str,
    locked: &BTreeSet<String>,
    declared: &BTreeSet<String>,
) -> Result<(), Refusal> {
    let stale: Vec<&String> = locked.difference(declared).collect();
    let missing: Vec<&String> = declared.difference(locked).collect();
    if stale.is_empty() && missing.is_empty() {
        return Ok(());
    }
    let why = format!("differs from the manifest in {what}");
    Err(incomplete(&lock.path, &why)
        .names(missing.into_iter().map(|d| format!("declared {d}")))
        .names(stale.into_iter().map(|d| format!("locked {d}"))))
}
