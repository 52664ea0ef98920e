//! A private `CARGO_HOME` bound to Cargo.lock: every `.crate` by its checksum, every unpacked crate by a `.crate`.
//!
//! That the unpacked bytes are those of the `.crate` is *not* proved here and is named as weak; they are recorded.

use super::{Bound, Fact, Observed, Place, mismatch, special, stays};
use crate::code::Refusal;
use crate::lockset::{Lockfile, Package, Source};
use crate::path::RelPath;
use std::collections::{BTreeMap, BTreeSet};

/// Says how many bytes of a file are needed to bind it.
pub(super) fn wants_text(path: &RelPath) -> Option<u64> {
    let parts: Vec<&[u8]> = path.components().collect();
    match parts.as_slice() {
        [b"registry", b"src", _, _, b"Cargo.toml"] => Some(4 << 20),
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

/// Binds a `CARGO_HOME` to the lock that it was fetched for.
///
/// # Errors
/// `record_mismatch` for a `.crate` that is not the locked one, for an unpacked crate without its `.crate`, for a
/// crate that is not in the lock or depends on what the lock does not say, and for anything else that stands
/// there; `record_outside_root` for a link that leads out of this generation.
pub fn bind(observed: &Observed, lock: &Lockfile, place: &Place) -> Result<Bound, Refusal> {
    let hashed = lock.packages.iter().filter(|p| p.source == Source::Hashed);
    let by_stem: BTreeMap<String, &Package> = hashed
        .map(|p| (format!("{}-{}", p.name, p.version.as_deref().unwrap_or("")), p))
        .collect();
    let mut bound = Bound::default();
    let mut crates: BTreeSet<(Vec<u8>, String)> = BTreeSet::new();
    let mut unpacked: BTreeMap<(Vec<u8>, String), RelPath> = BTreeMap::new();
    for (path, fact) in &observed.entries {
        match fact {
            Fact::Other => return Err(special(path)),
            Fact::Symlink { target } => drop(stays(place, path, target)?),
            Fact::File { .. } | Fact::Directory { .. } => {}
        }
        let parts: Vec<&[u8]> = path.components().collect();
        match (parts.as_slice(), fact) {
            ([b"registry", b"cache", index, file], Fact::File { sha256, .. }) => {
                let stem = file
                    .strip_suffix(b".crate")
                    .and_then(|s| core::str::from_utf8(s).ok());
                let stem = stem.ok_or_else(|| stray(path))?;
                let package = by_stem
                    .get(stem)
                    .ok_or_else(|| mismatch("a crate is not in the lock").name(stem))?;
                if !package.artifacts.iter().any(|a| a.digest == sha256.as_bytes()) {
                    return Err(mismatch("a crate differs from its checksum in the lock").name(stem));
                }
                crates.insert((index.to_vec(), stem.to_owned()));
                bound.packages.insert(format!(
                    "{}=={}",
                    package.name,
                    package.version.as_deref().unwrap_or("")
                ));
            }
            ([b"registry", b"src", index, stem], Fact::Directory { .. }) => {
                let name = core::str::from_utf8(stem).map_err(|_| stray(path))?;
                unpacked.insert((index.to_vec(), name.to_owned()), path.clone());
            }
            ([b"registry", b"src", _, _, _, ..], _) => {}
            _ if is_frame(&parts, fact) || is_volatile(path) => {}
            _ => return Err(stray(path)),
        }
    }
    for (key, path) in &unpacked {
        if !crates.contains(key) {
            return Err(mismatch("an unpacked crate has no locked .crate beside it").name(&key.1));
        }
        closed(observed, path, by_stem[&key.1])?;
    }
    let open = lock.open_end.as_ref().filter(|end| !closed_by(&unpacked, end));
    bound
        .weak
        .extend(open.map(|end| format!("{}: a cut behind {end} cannot be seen", lock.path)));
    if !unpacked.is_empty() {
        let count = unpacked.len();
        bound.weak.push(format!(
            "{count} crates: the unpacked files are recorded, not compared with their .crate"
        ));
    }
    Ok(bound)
}

fn closed_by(unpacked: &BTreeMap<(Vec<u8>, String), RelPath>, end: &str) -> bool {
    let stem = end.replace("==", "-");
    unpacked.keys().any(|(_, name)| *name == stem)
}

fn stray(path: &RelPath) -> Refusal {
    mismatch("nothing owns an entry of CARGO_HOME").name(path.to_string())
}

fn is_frame(parts: &[&[u8]], fact: &Fact) -> bool {
    let directory = matches!(fact, Fact::Directory { .. });
    match parts {
        // The host writes it, and it is recorded.
        [b"config.toml"] | [b"registry", b"CACHEDIR.TAG"] => !directory,
        [b"registry"] | [b"registry", b"cache" | b"src" | b"index"] => directory,
        [b"registry", b"cache" | b"src", _] => directory,
        _ => false,
    }
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
