//! Crates as a vendored source: every unpacked file is a member of the `.crate` whose checksum `Cargo.lock` gives.
//!
//! Cargo compiles from directories and never looks at a `.crate` again, so what it looks at is bound: the directories of
//! a private `CARGO_HOME`, which the host fills, and those that a project keeps in its own tree.

use super::{Bound, Fact, MOST_NAMES, Observed, Place, mismatch, special, stays};
use crate::artifact::{Held, Supply};
use crate::code::Refusal;
use crate::lockset::{Lockfile, Package, Source};
use crate::path::{RelPath, shown};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The directory of vendored crates in a private `CARGO_HOME`.
pub const VENDOR: &str = "vendor";
/// The file by which Cargo knows a directory as a crate.
pub const CHECKSUMS: &str = ".cargo-checksum.json";

/// Says how many bytes of a file are needed to bind it.
pub(super) fn wants_text(path: &RelPath) -> Option<u64> {
    let parts: Vec<&[u8]> = path.components().collect();
    match parts.as_slice() {
        [b"config.toml"] => Some(1 << 20),
        [b"vendor", _, b"Cargo.toml"] | [_, b".cargo-checksum.json"] => Some(16 << 20),
        _ => None,
    }
}

/// Says whether Cargo itself writes here while it only reads: locks, its database of last uses, its index.
pub(super) fn is_volatile(path: &RelPath) -> bool {
    let parts: Vec<&[u8]> = path.components().collect();
    match parts.as_slice() {
        [name] => matches!(
            *name,
            b".package-cache" | b".package-cache-mutate" | b".global-cache" | b".global-cache-journal"
        ),
        [b"registry", b"index", ..] => true,
        _ => false,
    }
}

/// Holds what stands in a `.cargo-checksum.json`.
#[derive(Serialize, Deserialize)]
struct Checksums {
    files: BTreeMap<String, String>,
    package: Option<String>,
}

/// Writes the `.cargo-checksum.json` of an unpacked crate, by which Cargo compares each file once more.
///
/// # Errors
/// `record_mismatch` for a member that Cargo cannot name.
pub fn checksums(held: &Held) -> Result<Vec<u8>, Refusal> {
    let mut files = BTreeMap::new();
    for (path, fact) in &held.members {
        let name = core::str::from_utf8(path.as_bytes());
        let (Ok(name), Fact::File { sha256, .. }) = (name, fact) else {
            let why = "a crate has a member that Cargo cannot name";
            return Err(mismatch(why).names([held.file.clone(), path.to_string()]));
        };
        files.insert(name.to_owned(), sha256.to_string());
    }
    let package = Some(held.sha256.to_string());
    serde_json::to_vec(&Checksums { files, package }).map_err(|e| mismatch(&e.to_string()))
}

/// Writes the settings of a private `CARGO_HOME`: every registry of the lock is the directory of vendored crates.
#[must_use]
pub fn settings(lock: &Lockfile, vendor: &[u8]) -> String {
    let sources: BTreeSet<&str> = lock
        .packages
        .iter()
        .filter(|package| package.source == Source::Hashed)
        .filter_map(|package| package.place.as_deref())
        .collect();
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut text = String::from("[source.crates-io]\nreplace-with = \"semel\"\n");
    for source in sources.iter().filter(|source| !is_crates_io(source)) {
        let url = source.strip_prefix("registry+").unwrap_or(source);
        text.push_str(&format!(
            "[source.{0}]\nregistry = {0}\nreplace-with = \"semel\"\n",
            quoted(url)
        ));
    }
    text.push_str(&format!(
        "[source.semel]\ndirectory = {}\n",
        quoted(&shown(vendor))
    ));
    text
}

/// Cargo writes the public registry by the address of its first index, whatever it is asked by.
fn is_crates_io(source: &str) -> bool {
    source == "registry+https://github.com/rust-lang/crates.io-index"
}

/// Binds a `CARGO_HOME` to the lock that it was filled for.
///
/// # Errors
/// `record_mismatch` for a file that is not a member of its locked crate, a member that is not there, a crate that is
/// missing, not in the lock or depends on what the lock does not say, and for anything else that stands there;
/// `record_outside_root` for a link that leads out of this generation.
pub fn bind(observed: &Observed, lock: &Lockfile, place: &Place, supply: &Supply) -> Result<Bound, Refusal> {
    let mut bound = Bound::default();
    let mut crates: BTreeMap<String, Unpacked<'_>> = BTreeMap::new();
    for package in lock.packages.iter().filter(|p| p.source == Source::Hashed) {
        let version = package.version.as_deref().unwrap_or("");
        let stem = format!("{}-{version}", package.name);
        let held = supply
            .of(&package.artifacts)
            .ok_or_else(|| mismatch("the generation was given no artifact of a locked crate").name(&stem))?;
        bound.packages.insert(format!("{}=={version}", package.name));
        crates.insert(stem, Unpacked::of(package, held));
    }
    let settings = settings(lock, &[&place.root, &b"/"[..], VENDOR.as_bytes()].concat());
    for (path, fact) in &observed.entries {
        match fact {
            Fact::Other => return Err(special(path)),
            Fact::Symlink { target } => drop(stays(place, path, target)?),
            Fact::File { .. } | Fact::Directory { .. } => {}
        }
        let parts: Vec<&[u8]> = path.components().collect();
        match parts.as_slice() {
            [b"config.toml"] if observed.text(path)? == settings => {}
            [b"config.toml"] => {
                return Err(mismatch("the settings of Cargo were changed").name("config.toml"));
            }
            [b"vendor"] if matches!(fact, Fact::Directory { .. }) => {}
            [b"vendor", stem, rest @ ..] => {
                let name = core::str::from_utf8(stem).map_err(|_| stray(path))?;
                let own = crates.get_mut(name).ok_or_else(|| stray(path))?;
                own.take(path, &rest.join(&b'/'), fact)?;
            }
            _ if is_volatile(path)
                || matches!(parts.as_slice(), [b"registry"] | [b"registry", b"CACHEDIR.TAG"]) => {}
            _ => return Err(stray(path)),
        }
    }
    for (stem, unpacked) in &crates {
        unpacked.complete(stem, Left::Nothing)?;
        let at = RelPath::parse(format!("{VENDOR}/{stem}").as_bytes())?;
        closed(observed, &at, unpacked.package)?;
    }
    let open = lock
        .open_end
        .as_ref()
        .filter(|end| !crates.contains_key(&end.replace("==", "-")));
    bound
        .weak
        .extend(open.map(|end| format!("{}: a cut behind {end} cannot be seen", lock.path)));
    Ok(bound)
}

/// Binds the directory of vendored crates that a project keeps in its tree.
///
/// # Errors
/// As [`bind`]; a crate that is in the lock and not there is Cargo's to miss.
pub fn bind_vendored(observed: &Observed, lock: &Lockfile, supply: &Supply) -> Result<(), Refusal> {
    let hashed = || lock.packages.iter().filter(|p| p.source == Source::Hashed);
    let mut crates: BTreeMap<RelPath, Unpacked<'_>> = BTreeMap::new();
    for path in observed.entries.keys() {
        let Some((directory, name)) = path.split_last() else {
            continue;
        };
        if directory.components().count() != 1 || name != CHECKSUMS.as_bytes() {
            continue;
        }
        let sums: Checksums = serde_json::from_slice(observed.whole(path)?).map_err(|e| {
            mismatch("the checksums of a vendored crate do not parse")
                .names([path.to_string(), e.to_string()])
        })?;
        let named = sums.package.unwrap_or_default();
        let of = hashed().find_map(|package| {
            let held = supply.of(&package.artifacts)?;
            (held.sha256.to_string() == named).then_some((package, held))
        });
        let (package, held) = of.ok_or_else(|| {
            mismatch("a vendored crate is not one that the lock names").name(directory.to_string())
        })?;
        crates.insert(directory, Unpacked::of(package, held));
    }
    for (path, fact) in &observed.entries {
        let parts: Vec<&[u8]> = path.components().collect();
        let owner = RelPath::parse(parts[0])?;
        match (crates.get_mut(&owner), fact) {
            (Some(own), _) => own.take(path, &parts[1..].join(&b'/'), fact)?,
            _ => {
                return Err(
                    mismatch("nothing owns an entry beside the vendored crates").name(path.to_string())
                );
            }
        }
    }
    for (directory, unpacked) in &crates {
        unpacked.complete(&directory.to_string(), Left::ByVendoring)?;
    }
    Ok(())
}

/// Says what may be missing of a crate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Nothing.
    Nothing,
    /// What `cargo vendor` leaves out, so that a repository does not take it for its own.
    ByVendoring,
}

/// A crate that was unpacked, and which of its members were found.
struct Unpacked<'a> {
    package: &'a Package,
    held: &'a Held,
    found: BTreeSet<RelPath>,
}

impl<'a> Unpacked<'a> {
    fn of(package: &'a Package, held: &'a Held) -> Self {
        Self {
            package,
            held,
            found: BTreeSet::new(),
        }
    }

    fn take(&mut self, path: &RelPath, rest: &[u8], fact: &Fact) -> Result<(), Refusal> {
        let Fact::File { mode, sha256, .. } = fact else {
            return match fact {
                Fact::Directory { .. } => Ok(()),
                _ => Err(self.wrong("a crate has an entry that is no file", path)),
            };
        };
        if mode & 0o7002 != 0 {
            return Err(self.wrong("a file of a crate has a mode that lets others write", path));
        }
        // What it says is compared with the crate itself, here and now.
        if rest == CHECKSUMS.as_bytes() {
            return Ok(());
        }
        let at = RelPath::parse(rest)?;
        match self.held.members.get(&at) {
            Some(Fact::File { sha256: wanted, .. }) if wanted == sha256 => {
                self.found.insert(at);
                Ok(())
            }
            Some(_) => Err(self.wrong("a file is not the one in the locked crate", path)),
            None => Err(self.wrong("a file is not in the locked crate", path)),
        }
    }

    fn complete(&self, at: &str, left: Left) -> Result<(), Refusal> {
        let may_lack = |path: &RelPath| {
            let git = path
                .components()
                .any(|part| matches!(part, b".gitattributes" | b".gitignore" | b".git"));
            left == Left::ByVendoring && (git || path.as_bytes() == b".cargo-ok")
        };
        let lost = self
            .held
            .members
            .keys()
            .filter(|path| !self.found.contains(*path) && !may_lack(path));
        let lost: Vec<String> = lost.take(MOST_NAMES).map(|path| format!("{at}/{path}")).collect();
        match lost.is_empty() {
            true => Ok(()),
            false => Err(mismatch("a file of the locked crate is not there")
                .name(&self.held.file)
                .names(lost)),
        }
    }

    fn wrong(&self, why: &str, path: &RelPath) -> Refusal {
        mismatch(why).names([self.held.file.clone(), path.to_string()])
    }
}

fn stray(path: &RelPath) -> Refusal {
    mismatch("nothing owns an entry of CARGO_HOME").name(path.to_string())
}

/// Proves that the lock names everything that an unpacked crate cannot do without.
fn closed(observed: &Observed, at: &RelPath, package: &Package) -> Result<(), Refusal> {
    let text = observed.text(&at.join(b"Cargo.toml")?)?;
    let file: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        mismatch("the manifest of a crate does not parse")
            .names([at.to_string(), e.message().replace('\n', " ")])
    })?;
    let targets = file.get("target").and_then(toml::Value::as_table);
    let tables =
        core::iter::once(&file).chain(targets.into_iter().flatten().filter_map(|(_, t)| t.as_table()));
    for table in tables {
        for section in ["dependencies", "build-dependencies"] {
            let section = table.get(section).and_then(toml::Value::as_table);
            for (key, value) in section.into_iter().flatten() {
                let optional = value.get("optional").and_then(toml::Value::as_bool) == Some(true);
                let name = value.get("package").and_then(toml::Value::as_str).unwrap_or(key);
                if !optional && !package.dependencies.iter().any(|d| d.name == name) {
                    return Err(
                        mismatch("a crate needs what the lock does not name: the lock is cut")
                            .names([package.name.as_str(), name]),
                    );
                }
            }
        }
    }
    Ok(())
}
