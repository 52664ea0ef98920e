//! The record of what is installed on a disk that somebody else manages, for people with their own runner.
//!
//! It binds every installed byte to the lockfiles and to one generation. It does *not* read files or recognise what
//! nobody showed it; whether the packages are those of the locks is compared by name and version alone, where
//! [`InstallRecord`](super::InstallRecord) binds the artifacts.

use super::survey::{self, Surveyed};
use super::{Entry, MOST_NAMES, Observed, Place, differing, keep_but, mismatch};
use crate::attempt::{Found, FoundLock, GENERATION_FILE, identity};
use crate::canonical;
use crate::code::{Code, Refusal};
use crate::digest::Sha256;
use crate::lockset::Lockfile;
use crate::path::RelPath;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The record at the root of the disk.
pub const RECORD_FILE: &str = ".install_record.json";
/// The longest record that is read, in bytes.
pub const LONGEST_RECORD: u64 = 256 << 20;

/// Names the kind of an installed tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tree {
    /// A virtual environment of Python.
    Venv,
    /// A `node_modules` directory of npm, pnpm or Yarn.
    NodeModules,
    /// A `CARGO_HOME`.
    CargoHome,
    /// The directory that `cargo vendor` fills.
    CargoVendor,
}

/// Says what a directory holds that tells its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// A file `pyvenv.cfg`.
    pub pyvenv: Sign,
    /// A file `.package-lock.json`, `.modules.yaml` or `.yarn-integrity`.
    pub node_state: Sign,
    /// A directory `registry`.
    pub registry: Sign,
    /// A directory with a file `.cargo-checksum.json`.
    pub checksums: Sign,
}

/// Says whether something is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sign {
    /// It is.
    There,
    /// It is not.
    #[default]
    Absent,
}

impl Tree {
    /// Recognises an installed tree by its name and by what it holds; `None` for any other directory.
    ///
    /// A `CARGO_HOME` is taken only where it was `named`: what else holds a directory `registry` is nobody's guess.
    #[must_use]
    pub fn recognise(name: &[u8], signs: Signs, named: Named) -> Option<Tree> {
        let there = |sign: Sign| sign == Sign::There;
        if there(signs.pyvenv) {
            Some(Tree::Venv)
        } else if name == b"node_modules" || there(signs.node_state) {
            Some(Tree::NodeModules)
        } else if there(signs.checksums) {
            Some(Tree::CargoVendor)
        } else {
            (there(signs.registry) && named == Named::Yes).then_some(Tree::CargoHome)
        }
    }

    /// Says how many bytes of a file's content the host hands over; none for most files.
    #[must_use]
    pub fn wants_text(self, path: &RelPath) -> Option<u64> {
        survey::wants_text(self, path)
    }
}

/// Says whether a person named a tree, or it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// A person named it.
    Yes,
    /// It was found.
    No,
}

/// Holds what is installed on a disk, byte for byte.
///
/// # Shape
/// `.install_record.json`, one line: `{"entries":{".venv/bin/pip":{"file":{…}},…},"files":"<sha256 of entries>",
/// "generation":"…","installed":["idna==3.10"],"lock":{"uv.lock":"<sha256>"},"roots":{".venv":"venv"},"version":1}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Every entry of every tree, by its path on the disk.
    pub entries: BTreeMap<RelPath, Entry>,
    /// The digest of the canonical form of `entries`.
    pub files: Sha256,
    /// The generation.
    pub generation: String,
    /// What is installed, sorted, as `name==version`.
    pub installed: Vec<String>,
    /// The digest of each lockfile.
    pub lock: BTreeMap<RelPath, Sha256>,
    /// The installed trees.
    pub roots: BTreeMap<RelPath, Tree>,
    /// The version of this shape.
    pub version: u16,
}

/// Holds one tree as it was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What it is.
    pub tree: Tree,
    /// Every entry of it; its root is its path on the disk.
    pub observed: Observed,
    /// Where it lies on the host.
    pub place: Place,
}

/// Holds what a disk was found to be.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The generation that the caller gave.
    pub generation: Option<String>,
    /// What lies at the generation file.
    pub disk_generation: Found,
    /// What lies at the record.
    pub record: Found,
    /// The lockfiles that were looked at.
    pub locks: BTreeMap<RelPath, FoundLock>,
}

impl Kept {
    const VERSION: u16 = 1;

    /// Makes the record of a disk; also gives what a person should know, in words.
    ///
    /// `texts` are the lockfiles that could be read; those of a format that is not parsed, or not whole, are compared
    /// by digest alone.
    ///
    /// # Errors
    /// `missing_identity`, `generation_reused` where the disk was wiped for another generation, `no_lockfile`,
    /// `unknown_state` for a lockfile that is missing or no file and where nothing is installed, `record_mismatch` and
    /// `record_outside_root` for an installation that is not whole or leads away.
    pub fn make(facts: &Facts, locks: &[Lockfile], seen: &[Seen]) -> Result<(Self, Vec<String>), Refusal> {
        let generation = facts.generation()?;
        let lock = facts.locks()?;
        if seen.is_empty() {
            let why = "no installed tree is recognised here; name one with --root";
            return Err(Refusal::new(Code::UnknownState, why).reason("nothing_installed"));
        }
        leads_out(seen)?;
        let (mut installed, mut warnings) = (BTreeSet::new(), Vec::new());
        for one in seen {
            let Surveyed {
                installed: found,
                warnings: told,
                unlocked: _,
            } = survey::survey(one.tree, &one.observed, &one.place, locks)?;
            installed.extend(found);
            warnings.extend(
                told.into_iter()
                    .map(|why| format!("{}: {why}", one.observed.root)),
            );
        }
        let (roots, entries) = together(seen)?;
        let record = Self {
            files: digest(&entries)?,
            entries,
            generation: generation.to_owned(),
            installed: installed.into_iter().collect(),
            lock,
            roots,
            version: Self::VERSION,
        };
        Ok((record, warnings))
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
    /// `unknown_state` for anything else: another version, another spelling, entries that are not as their digest says.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let wrong = |why: String| Refusal::new(Code::UnknownState, why).name(RECORD_FILE);
        let record: Self = serde_json::from_slice(bytes)
            .map_err(|e| wrong(format!("the install record does not parse: {e}")))?;
        if record.version != Self::VERSION {
            return Err(wrong(format!(
                "the install record is of version {}",
                record.version
            )));
        }
        if record.encode()? != bytes || digest(&record.entries)? != record.files {
            return Err(wrong("the install record is not in its one form".to_owned()));
        }
        if identity("generation", Some(&record.generation)).is_err()
            || record.lock.is_empty()
            || record.roots.is_empty()
        {
            return Err(wrong(
                "an install record names a generation, a lockfile and a tree".to_owned(),
            ));
        }
        Ok(record)
    }

    /// Reads the record of a disk and says whether this generation may trust it at all; `still` compares what it holds.
    ///
    /// # Errors
    /// In this order: `missing_identity`; `unknown_state` for a record that is missing or unreadable;
    /// `evidence_foreign` for one of another generation; `generation_reused` where the disk was wiped for another one.
    pub fn of_this_generation(facts: &Facts) -> Result<Self, Refusal> {
        identity("VOLUME_GENERATION", facts.generation.as_deref())?;
        let unknown = |why: &str| Refusal::new(Code::UnknownState, why).name(RECORD_FILE);
        let record = match &facts.record {
            Found::Absent => return Err(unknown("there is no install record")),
            Found::Odd(why) => return Err(unknown(why)),
            Found::Bytes(bytes) => Self::decode(bytes)?,
        };
        if Some(&record.generation) != facts.generation.as_ref() {
            let why = "the install record is of another generation";
            return Err(Refusal::new(Code::EvidenceForeign, why)
                .reason("other_generation")
                .name(&record.generation));
        }
        facts.generation()?;
        Ok(record)
    }

    /// Compares the lockfiles with the recorded ones.
    ///
    /// # Errors
    /// `lockfile_drift` if one changed, appeared or vanished; `unknown_state` for one that is no file any more.
    pub fn locks_stand(&self, facts: &Facts) -> Result<(), Refusal> {
        let moved: Vec<String> = differing(&self.lock, &facts.locks_there()?).collect();
        if moved.is_empty() {
            return Ok(());
        }
        let why = "a lockfile differs from the recorded one";
        Err(Refusal::new(Code::LockfileDrift, why).names(moved))
    }

    /// Compares what is there now with the record.
    ///
    /// # Errors
    /// Those of [`Kept::locks_stand`]; then `record_outside_root` where what changed leads out of the workspace, and
    /// `record_mismatch` for any tree or entry that changed, vanished or appeared, modes included.
    pub fn still(&self, facts: &Facts, seen: &[Seen]) -> Result<(), Refusal> {
        self.locks_stand(facts)?;
        let (roots, entries) = together(seen)?;
        let changed: Vec<String> = differing(&self.entries, &entries).collect();
        let moved: Vec<String> = differing(&self.roots, &roots).collect();
        if changed.is_empty() && moved.is_empty() {
            return self.says_what_is_there(seen);
        }
        // What leads away is told of as such, whatever else changed.
        if let Err(refusal) = leads_out(seen) {
            return Err(refusal.names(changed.into_iter().take(MOST_NAMES)));
        }
        if !moved.is_empty() {
            return Err(mismatch("the installed trees differ from the recorded ones").names(moved));
        }
        let why = format!("{} installed entries differ from the record", changed.len());
        let compiled = |name: &String| name.starts_with("new ") && name.contains("/__pycache__");
        let why = if changed.iter().all(compiled) {
            format!("{why}: Python compiled what it imported; run it with PYTHONDONTWRITEBYTECODE=1")
        } else {
            why
        };
        Err(mismatch(&why).names(changed.into_iter().take(MOST_NAMES)))
    }
}

/// Refuses where anything leads out of the workspace, before anything else that is wrong with a tree.
fn leads_out(seen: &[Seen]) -> Result<(), Refusal> {
    seen.iter()
        .try_for_each(|one| survey::leads_out(one.tree, &one.observed, &one.place))
}

impl Kept {
    /// Checks what a record says in words against the entries that it stands on.
    fn says_what_is_there(&self, seen: &[Seen]) -> Result<(), Refusal> {
        let mut installed = BTreeSet::new();
        for one in seen {
            installed.extend(survey::survey(one.tree, &one.observed, &one.place, &[])?.installed);
        }
        if installed.iter().eq(&self.installed) {
            return Ok(());
        }
        let recorded: BTreeSet<String> = self.installed.iter().cloned().collect();
        let names = recorded.symmetric_difference(&installed).cloned();
        Err(mismatch("the record lists other packages than are installed").names(names.take(MOST_NAMES)))
    }
}

impl Facts {
    fn generation(&self) -> Result<&str, Refusal> {
        let generation = identity("VOLUME_GENERATION", self.generation.as_deref())?;
        let unknown = |why: &str| Refusal::new(Code::UnknownState, why).name(GENERATION_FILE);
        match &self.disk_generation {
            Found::Absent => Ok(generation),
            Found::Odd(why) => Err(unknown(why)),
            Found::Bytes(bytes) => match core::str::from_utf8(bytes).map(str::trim) {
                Ok(text) if text == generation.trim() => Ok(generation),
                Ok(text) if !text.is_empty() => {
                    let why = format!("the disk was wiped for generation {text}");
                    Err(Refusal::new(Code::GenerationReused, why).name(generation))
                }
                _ => Err(unknown("it names no generation")),
            },
        }
    }

    /// Gives the lockfiles that are there; one that is missing is none.
    fn locks_there(&self) -> Result<BTreeMap<RelPath, Sha256>, Refusal> {
        let mut there = BTreeMap::new();
        for (path, found) in &self.locks {
            match found {
                FoundLock::Digest(digest) => drop(there.insert(path.clone(), *digest)),
                FoundLock::Missing => {}
                FoundLock::Odd(why) => {
                    return Err(Refusal::new(Code::UnknownState, why.clone()).name(path.to_string()));
                }
            }
        }
        Ok(there)
    }

    /// Gives the lockfiles, all of which must be there.
    fn locks(&self) -> Result<BTreeMap<RelPath, Sha256>, Refusal> {
        let there = self.locks_there()?;
        if there.is_empty() {
            let names = self.locks.keys().map(ToString::to_string);
            return Err(Refusal::new(Code::NoLockfile, "no lockfile binds this tree").names(names));
        }
        match self.locks.keys().find(|path| !there.contains_key(*path)) {
            None => Ok(there),
            Some(missing) => {
                Err(Refusal::new(Code::UnknownState, "the named lockfile is missing")
                    .name(missing.to_string()))
            }
        }
    }
}

type Trees = (BTreeMap<RelPath, Tree>, BTreeMap<RelPath, Entry>);

fn together(seen: &[Seen]) -> Result<Trees, Refusal> {
    let (mut roots, mut entries) = (BTreeMap::new(), BTreeMap::new());
    for one in seen {
        roots.insert(one.observed.root.clone(), one.tree);
        for (path, entry) in keep_but(&one.observed, |path| survey::is_volatile(one.tree, path))? {
            if entries.insert(path.clone(), entry).is_some() {
                return Err(mismatch("two installed trees overlap").name(path.to_string()));
            }
        }
    }
    Ok((roots, entries))
}

fn digest(entries: &BTreeMap<RelPath, Entry>) -> Result<Sha256, Refusal> {
    canonical::canonical_of(entries).map(|bytes| Sha256::of(&bytes))
}

#[cfg(test)]
mod tests;
