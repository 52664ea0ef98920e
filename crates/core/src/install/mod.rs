//! What was truly installed, byte for byte, bound to the lockfiles and the generation.
//!
//! The host observes (paths, digests, a few small texts) and this module decides: [`python`], [`node`] and [`rust`]
//! bind an observation to the locks, [`InstallRecord`] keeps it, [`compare`] finds any later change. It does *not*
//! read files, unpack artifacts or run anything; the interpreter and the toolchain have their own identity in the
//! certificate.

pub mod commanded;
mod commands;
pub mod kept;
pub mod leftover;
pub mod linked;
pub mod node;
pub mod python;
mod record_file;
pub mod rust;
mod shim;
mod survey;
mod tarball;
#[cfg(test)]
mod tests;
mod venv;
mod wheel;

use crate::artifact::Supply;
use crate::code::{Code, Refusal};
use crate::digest::Sha256;
use crate::ids::Generation;
use crate::installer::Installer;
use crate::lockset::Lockfile;
use crate::path::{RelPath, shown};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Names the kind of an installed root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A virtual environment.
    Python,
    /// A `node_modules` directory.
    Node,
    /// A private `CARGO_HOME`.
    Rust,
    /// What a command left that is of no known layout.
    Other,
}

/// Says what stands at a path, as lstat and reading it once have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A regular file.
    File {
        /// Permission bits.
        mode: u32,
        /// Its size.
        size: u64,
        /// The digest of its bytes.
        sha256: Sha256,
    },
    /// A symbolic link, not followed.
    Symlink {
        /// Where it points, verbatim.
        target: Vec<u8>,
    },
    /// A directory.
    Directory {
        /// Permission bits.
        mode: u32,
    },
    /// Anything else: a device, a socket, a FIFO.
    Other,
}

/// Holds what the host saw of one installed root, on a quiet filesystem.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Where the root lies in its generation, such as `tree/.venv`.
    pub root: RelPath,
    /// What it is.
    pub kind: Kind,
    /// Every entry below the root, by its path below the root.
    pub entries: BTreeMap<RelPath, Fact>,
    /// The content of the files that [`wants_text`] asks for, at most as much as it asks for.
    pub texts: BTreeMap<RelPath, Vec<u8>>,
}

/// Says where things lie on the host, as absolute paths without links in them.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The tree of this generation: links and editables may lead into it.
    pub tree: Vec<u8>,
    /// The installed root.
    pub root: Vec<u8>,
    /// The interpreter, by every path that may name it: as it was given and as it resolves.
    pub interpreters: Vec<Vec<u8>>,
}

/// Says what binding proved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// What is installed, as `name==version`.
    pub packages: BTreeSet<String>,
    /// What could not be proved, one clause each.
    pub weak: Vec<String>,
}

/// Says how many bytes of a file's content the host hands over; none for most files.
#[must_use]
pub fn wants_text(kind: Kind, path: &RelPath) -> Option<u64> {
    match kind {
        Kind::Python => python::wants_text(path),
        Kind::Node => node::wants_text(path),
        Kind::Rust => rust::wants_text(path),
        Kind::Other => None,
    }
}

/// Says who installed.
///
/// # Shape
/// The name of an installer, or `command`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum By {
    /// An installer.
    Installer(Installer),
    /// A command of the job.
    Command,
}

impl From<By> for String {
    fn from(by: By) -> String {
        match by {
            By::Installer(installer) => installer.name().to_owned(),
            By::Command => "command".to_owned(),
        }
    }
}

impl TryFrom<String> for By {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        let known = Installer::ALL.iter().find(|known| known.name() == text);
        match (known, text.as_str()) {
            (Some(known), _) => Ok(Self::Installer(*known)),
            (None, "command") => Ok(Self::Command),
            (None, _) => Err(Refusal::new(Code::BadInput, "neither an installer nor a command").name(text)),
        }
    }
}

/// Names the program that installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstalledBy {
    /// The words of the command; none for an installer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Which one it is.
    pub name: By,
    /// The digest of its executable.
    pub sha256: Sha256,
    /// Its version, as it says; a command is not asked.
    pub version: String,
}

/// Names one installed root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstalledRoot {
    /// What it is.
    pub kind: Kind,
    /// Where it lies in its generation, such as `tree/.venv`.
    pub place: RelPath,
}

/// Holds where a link points.
///
/// # Shape
/// The text itself where it is UTF-8 and does not begin with `b64:`, else `b64:` and its base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LinkTarget(pub Vec<u8>);

impl From<LinkTarget> for String {
    fn from(target: LinkTarget) -> String {
        match core::str::from_utf8(&target.0) {
            Ok(text) if !text.starts_with("b64:") => text.to_owned(),
            _ => format!("b64:{}", BASE64_STANDARD.encode(&target.0)),
        }
    }
}

impl TryFrom<String> for LinkTarget {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        match text.strip_prefix("b64:") {
            None => Ok(Self(text.into_bytes())),
            Some(coded) => BASE64_STANDARD
                .decode(coded)
                .map(Self)
                .map_err(|_| Refusal::new(Code::BadInput, "not base64 after b64:").name(&text)),
        }
    }
}

/// Holds one entry of an installed root.
///
/// # Shape
/// `{"file":{"mode":420,"sha256":"…","size":12}}`, `{"symlink":{"target":"…"}}`, `{"directory":{"mode":493}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Entry {
    /// A directory.
    Directory {
        /// Permission bits.
        mode: u32,
    },
    /// A regular file.
    File {
        /// Permission bits.
        mode: u32,
        /// The digest of its bytes.
        sha256: Sha256,
        /// Its size in bytes.
        size: u64,
    },
    /// A symbolic link.
    Symlink {
        /// Where it points, verbatim.
        target: LinkTarget,
    },
}

/// How lock, artifact and bytes are tied together.
const BINDING: &str = "lock -> artifact by the lock's digest of its bytes; artifact -> installed file by the SHA-256 of \
    the member that it is, or by a rule; bytes by SHA-256";

/// What ties what a command installed to anything.
const UNBOUND: &str = "lock -> names and versions, where the layout is known; no artifact; bytes by SHA-256";

/// Holds what was truly installed, byte for byte.
///
/// # Shape
/// One line of JSON, keys sorted, entries by path in the generation; [`InstallRecord::decode`] takes no other form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstallRecord {
    /// The SHA-256 of each artifact that the generation was given to install from, by its file name.
    pub artifacts: BTreeMap<String, Sha256>,
    /// How lock, artifact and bytes are tied together, in words.
    pub binding: String,
    /// Every entry of every root, by its path in the generation.
    pub entries: BTreeMap<RelPath, Entry>,
    /// The generation it was installed in.
    pub generation: Generation,
    /// What installed it.
    pub installer: InstalledBy,
    /// The digest of each lockfile, by its path in the tree.
    pub locks: BTreeMap<RelPath, Sha256>,
    /// What is installed, sorted, as `name==version`.
    pub packages: Vec<String>,
    /// The installed roots.
    pub roots: Vec<InstalledRoot>,
    /// The version of this shape.
    pub version: u16,
    /// What could not be proved, one clause each.
    pub weak: Vec<String>,
}

impl InstallRecord {
    /// The version of the shape that is written.
    pub const VERSION: u16 = 2;

    /// Makes the record of an install from what was observed and bound.
    ///
    /// # Errors
    /// `record_mismatch` for an entry that is no file, link or directory, and for two roots of which one lies in
    /// the other.
    pub fn make(
        generation: &Generation,
        installer: InstalledBy,
        locks: &[&Lockfile],
        supply: &Supply,
        parts: &[(&Observed, &Bound)],
    ) -> Result<Self, Refusal> {
        let named = supply.iter().map(|held| (held.file.clone(), held.sha256));
        let mut record = InstallRecord {
            artifacts: named.collect(),
            binding: match installer.name {
                By::Installer(_) => BINDING.to_owned(),
                By::Command => UNBOUND.to_owned(),
            },
            entries: BTreeMap::new(),
            generation: generation.clone(),
            installer,
            locks: locks
                .iter()
                .map(|lock| (lock.path.clone(), lock.digest))
                .collect(),
            packages: Vec::new(),
            roots: Vec::new(),
            version: Self::VERSION,
            weak: Vec::new(),
        };
        let mut packages = BTreeSet::new();
        let mut weak = BTreeSet::new();
        for (observed, bound) in parts {
            record.roots.push(InstalledRoot {
                kind: observed.kind,
                place: observed.root.clone(),
            });
            packages.extend(bound.packages.iter().cloned());
            weak.extend(bound.weak.iter().cloned());
            for (path, entry) in keep(observed)? {
                if record.entries.insert(path.clone(), entry).is_some() {
                    return Err(mismatch("two installed roots overlap").name(path.to_string()));
                }
            }
        }
        record.roots.sort();
        record.packages = packages.into_iter().collect();
        record.weak = weak.into_iter().collect();
        Ok(record)
    }

    /// Writes the one form of the record.
    ///
    /// # Errors
    /// `internal` if it cannot be written as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, Refusal> {
        serde_json::to_vec(self)
            .map_err(|e| Refusal::new(Code::Internal, format!("the record is no JSON: {e}")))
    }

    /// Reads the one form of the record.
    ///
    /// # Errors
    /// `unknown_state` for anything else, another version or another spelling included.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let wrong = |why: String| Refusal::new(Code::UnknownState, why);
        let record: InstallRecord = serde_json::from_slice(bytes)
            .map_err(|e| wrong(format!("the install record does not parse: {e}")))?;
        if record.version != Self::VERSION {
            return Err(wrong(format!(
                "the install record is of version {}",
                record.version
            )));
        }
        if record.encode()? != bytes {
            return Err(wrong("the install record is not in its one form".to_owned()));
        }
        Ok(record)
    }

    /// Gives the digest of the one form.
    ///
    /// # Errors
    /// As [`InstallRecord::encode`].
    pub fn digest(&self) -> Result<Sha256, Refusal> {
        Ok(Sha256::of(&self.encode()?))
    }
}

/// Compares a record with what stands there now.
///
/// # Errors
/// `evidence_foreign` in another generation, `lockfile_drift` if a lockfile changed, appeared or vanished,
/// `record_mismatch` for any entry that changed, vanished or appeared, modes included; the first is checked first.
///
/// # Limits
/// Names at most 20 entries.
pub fn compare(
    recorded: &InstallRecord,
    generation: &Generation,
    locks: &BTreeMap<RelPath, Sha256>,
    observed: &[&Observed],
) -> Result<(), Refusal> {
    if recorded.generation != *generation {
        return Err(Refusal::new(
            Code::EvidenceForeign,
            "the install record is of another generation",
        )
        .names([recorded.generation.as_str(), generation.as_str()]));
    }
    let moved: Vec<String> = differing(&recorded.locks, locks).collect();
    if !moved.is_empty() {
        return Err(
            Refusal::new(Code::LockfileDrift, "a lockfile differs from the recorded one").names(moved),
        );
    }
    let mut roots: Vec<InstalledRoot> = Vec::new();
    let mut entries = BTreeMap::new();
    for part in observed {
        roots.push(InstalledRoot {
            kind: part.kind,
            place: part.root.clone(),
        });
        entries.extend(keep(part)?);
    }
    roots.sort();
    if roots != recorded.roots {
        let places = roots.iter().chain(&recorded.roots).map(|r| r.place.to_string());
        return Err(mismatch("the installed roots differ from the recorded ones")
            .names(places.collect::<BTreeSet<_>>()));
    }
    let changed: Vec<String> = differing(&recorded.entries, &entries).collect();
    if changed.is_empty() {
        return Ok(());
    }
    let why = format!("{} installed entries differ from the record", changed.len());
    Err(mismatch(&why).names(changed.into_iter().take(MOST_NAMES)))
}

const MOST_NAMES: usize = 20;

/// Names every key whose value is not the same in both.
fn differing<'a, V: PartialEq>(
    before: &'a BTreeMap<RelPath, V>,
    now: &'a BTreeMap<RelPath, V>,
) -> impl Iterator<Item = String> + 'a {
    let old = before.iter().filter_map(|(path, value)| match now.get(path) {
        None => Some(format!("missing {path}")),
        Some(other) if other != value => Some(format!("changed {path}")),
        Some(_) => None,
    });
    let new = now
        .keys()
        .filter(|path| !before.contains_key(path))
        .map(|path| format!("new {path}"));
    old.chain(new)
}

/// Turns an observation into entries by their path in the generation.
fn keep(observed: &Observed) -> Result<BTreeMap<RelPath, Entry>, Refusal> {
    keep_but(observed, |path| {
        observed.kind == Kind::Rust && rust::is_volatile(path)
    })
}

fn keep_but(
    observed: &Observed,
    volatile: impl Fn(&RelPath) -> bool,
) -> Result<BTreeMap<RelPath, Entry>, Refusal> {
    let mut all = BTreeMap::new();
    for (path, fact) in &observed.entries {
        if volatile(path) {
            continue;
        }
        let entry = match fact {
            Fact::File { mode, size, sha256 } => Entry::File {
                mode: *mode,
                sha256: *sha256,
                size: *size,
            },
            Fact::Symlink { target } => Entry::Symlink {
                target: LinkTarget(target.clone()),
            },
            Fact::Directory { mode } => Entry::Directory { mode: *mode },
            Fact::Other => return Err(special(path)),
        };
        let whole = [observed.root.as_bytes(), b"/", path.as_bytes()].concat();
        all.insert(RelPath::parse(whole.strip_prefix(b"/").unwrap_or(&whole))?, entry);
    }
    Ok(all)
}

impl Observed {
    /// Gives the whole content of a file, proved against its digest.
    fn whole(&self, path: &RelPath) -> Result<&[u8], Refusal> {
        let text = self.texts.get(path).map(Vec::as_slice);
        match (self.entries.get(path), text) {
            (Some(Fact::File { sha256, .. }), Some(text)) if Sha256::of(text) == *sha256 => Ok(text),
            (None, _) => Err(mismatch("a file is missing").name(path.to_string())),
            _ => Err(mismatch("a file cannot be read whole").name(path.to_string())),
        }
    }

    /// Gives the whole content of a file as text.
    fn text(&self, path: &RelPath) -> Result<&str, Refusal> {
        core::str::from_utf8(self.whole(path)?)
            .map_err(|_| mismatch("a file is not UTF-8").name(path.to_string()))
    }
}

fn mismatch(why: &str) -> Refusal {
    Refusal::new(Code::RecordMismatch, why)
}

fn outside(why: &str) -> Refusal {
    Refusal::new(Code::RecordOutsideRoot, why)
}

fn special(path: &RelPath) -> Refusal {
    mismatch("an installed entry is no file, link or directory").name(path.to_string())
}

/// Resolves `.` and `..` of an absolute path; `None` for a relative one.
fn lexical(path: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.strip_prefix(b"/")?.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    Some([b"/", parts.join(&b'/').as_slice()].concat())
}

/// Says whether an absolute path, after resolving `..`, is a directory or lies in it.
fn lies_in(path: &[u8], directory: &[u8]) -> bool {
    let (Some(path), Some(directory)) = (lexical(path), lexical(directory)) else {
        return false;
    };
    // The root of the filesystem holds everything, so as a boundary it holds nothing.
    directory.len() > 1
        && path
            .strip_prefix(directory.as_slice())
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Gives the absolute path that a link below an installed root points to.
fn link_target(place: &Place, link: &RelPath, target: &[u8]) -> Option<Vec<u8>> {
    if target.starts_with(b"/") {
        return lexical(target);
    }
    let (parent, _) = link.split_last()?;
    lexical(&[&place.root, &b"/"[..], parent.as_bytes(), b"/", target].concat())
}

/// Finds the path below an installed root that an absolute path means.
fn below(place: &Place, path: &[u8]) -> Option<RelPath> {
    let root = lexical(&place.root)?;
    let rest = lexical(path)?.strip_prefix(root.as_slice())?.to_vec();
    RelPath::parse(rest.strip_prefix(b"/")?).ok()
}

/// Refuses a link that leads out of this generation.
fn stays(place: &Place, link: &RelPath, target: &[u8]) -> Result<Vec<u8>, Refusal> {
    let whole = link_target(place, link, target);
    whole
        .filter(|t| lies_in(t, &place.root) || lies_in(t, &place.tree))
        .ok_or_else(|| {
            outside("a symlink leads out of this generation").name(format!("{link} -> {}", shown(target)))
        })
}
