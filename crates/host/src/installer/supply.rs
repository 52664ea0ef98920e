//! What an installation needs, brought into the store, and out of it for one generation.
//!
//! Bytes come from the network by a program in the sandbox, and are believed only once they have the digest that the
//! lock gives. What an installer then installs are this generation's own copies, which it cannot write to.

use super::plan::{LARGEST_TEXT, Plan, Step};
use super::toolchain::Runs;
use crate::artifact::{Wanted, digest_as};
use crate::error::{Error, Result};
use crate::files::read_file;
use crate::plain::private_directory;
use crate::root::Root;
use semel_core::artifact::{Held, Locked, Packing, Supply, Tags, file_name};
use semel_core::lockset::{Artifact, Holds, Lockfile, Package, Setting};
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One artifact that is needed, and where it may come from.
#[derive(Clone, Debug)]
pub(super) struct Need {
    pub(super) wanted: Wanted,
    /// The normalised name of its package.
    pub(super) name: String,
    /// Where the lock says it lies: an address, or a file of the tree.
    pub(super) place: Option<String>,
    /// The index that the lock names for it.
    pub(super) index: Option<String>,
    /// Its version, where it is asked for by name.
    pub(super) version: Option<String>,
}

impl Need {
    /// Makes the need of one artifact of a lock.
    pub(super) fn of(package: &Package, artifact: &Artifact, packing: Packing) -> Self {
        let place = artifact.name.contains('/').then(|| artifact.name.clone());
        Self {
            wanted: Wanted {
                locked: Locked::of(artifact),
                file: file_name(&artifact.name),
                packing,
            },
            name: package.name.clone(),
            place,
            index: None,
            version: None,
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    url: Option<&'a str>,
    indexes: Vec<String>,
    name: &'a str,
    file: &'a str,
    to: PathBuf,
}

/// What of these the store does not hold.
pub(super) fn missing<'a>(plan: &Plan, needs: &'a [Need]) -> Vec<&'a Need> {
    needs
        .iter()
        .filter(|need| !plan.artifacts.holds(&need.wanted.locked))
        .collect()
}

/// Makes the step that downloads artifacts beneath [`fetched`], each named by its digest.
pub(super) fn download(plan: &Plan, needs: &[&Need], step: Step) -> Result<Step> {
    const AT_ONCE: &str = "8";
    let to = fetched(plan);
    private_directory(&to)?;
    let lines: Vec<Line<'_>> = needs
        .iter()
        .map(|need| Line {
            url: need.place.as_deref().filter(|place| place.contains("://")),
            indexes: need.index.iter().cloned().chain(indexes(plan)).collect(),
            name: &need.name,
            file: &need.wanted.file,
            to: to.join(need.wanted.locked.hex()),
        })
        .collect();
    let listed = plan.place().join("wanted.json");
    let bytes = serde_json::to_vec(&lines)
        .map_err(|e| Refusal::new(Code::Internal, format!("a list of artifacts is no JSON: {e}")))?;
    std::fs::write(&listed, bytes).map_err(|e| Error::io("write", &listed, e))?;
    Ok(step.args([listed.as_os_str()]).args([AT_ONCE]))
}

/// Gives the operator's own indexes of Python.
fn indexes(plan: &Plan) -> Vec<String> {
    const NAMES: [&str; 4] = ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "UV_INDEX"];
    let given = NAMES
        .iter()
        .filter_map(|name| plan.network_env.get(std::ffi::OsStr::new(name)));
    given
        .flat_map(|value| {
            let value = shown(value.as_bytes());
            let words: Vec<String> = value.split_whitespace().map(str::to_owned).collect();
            words
        })
        // Of uv, an index may have a name.
        .map(|word| match word.split_once('=') {
            Some((name, url)) if !name.contains(':') => url.to_owned(),
            _ => word,
        })
        .collect()
}

/// Gives the directory that downloads arrive in.
pub(super) fn fetched(plan: &Plan) -> PathBuf {
    plan.place().join("arrived")
}

/// Lets what arrived enter the store; a file of the tree comes from there.
pub(super) fn enter(plan: &Plan, needs: &[&Need]) -> Result<()> {
    for need in needs {
        let from = fetched(plan).join(need.wanted.locked.hex());
        plan.artifacts.enter(&from, &need.wanted)?;
    }
    Ok(())
}

/// Lets every file of a directory enter, each as the artifact that a lock names by one of its digests.
///
/// # Errors
/// `install_failed`, reason `artifact_digest`, for a file that no lock names.
pub(super) fn enter_all(plan: &Plan, locks: &[&Lockfile], place: &Path, packing: Packing) -> Result<()> {
    let listing = match std::fs::read_dir(place) {
        Ok(listing) => listing,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("list", place, e)),
    };
    let all = locks.iter().flat_map(|lock| &lock.packages);
    let locked: BTreeSet<Locked> = all.flat_map(|p| &p.artifacts).map(Locked::of).collect();
    for entry in listing {
        let entry = entry.map_err(|e| Error::io("list", place, e))?;
        let Some(file) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        if file.starts_with('.') || entry.path().is_dir() {
            continue;
        }
        let locked = named(&entry.path(), &locked)?.ok_or_else(|| {
            Refusal::new(Code::InstallFailed, "what was fetched is not what the lock names")
                .reason("artifact_digest")
                .name(&file)
        })?;
        let wanted = Wanted {
            locked,
            file,
            packing,
        };
        plan.artifacts.enter(&entry.path(), &wanted)?;
    }
    Ok(())
}

/// Finds by which digest a lock names a file.
fn named(path: &Path, locked: &BTreeSet<Locked>) -> Result<Option<Locked>> {
    let algorithms: BTreeSet<_> = locked.iter().map(|locked| locked.algorithm).collect();
    for algorithm in algorithms {
        let digest = digest_as(path, algorithm)?;
        let found = digest.map(|digest| Locked { algorithm, digest });
        if let Some(found) = found.filter(|found| locked.contains(found)) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Lets the artifacts enter that lie in the tree itself.
pub(super) fn enter_local(plan: &Plan, needs: &[Need]) -> Result<()> {
    for need in missing(plan, needs) {
        let Some(place) = need.place.as_deref().filter(|place| !place.contains("://")) else {
            continue;
        };
        let whole = [plan.directory.as_bytes(), b"/", place.as_bytes()].concat();
        let path = RelPath::parse(whole.strip_prefix(b"/").unwrap_or(&whole))?;
        // Links are never followed out of the tree; a tracked archive is a plain file.
        let content = read_file(&Root::open(&plan.tree)?, &path, LARGEST_TEXT);
        let Some(content) = content.ok().filter(|content| content.resolved == path) else {
            let why = "the lock names a local package that is not a plain file of the tree";
            return Err(Refusal::new(Code::LockIncomplete, why)
                .name(path.to_string())
                .into());
        };
        private_directory(&fetched(plan))?;
        let from = fetched(plan).join(need.wanted.locked.hex());
        std::fs::write(&from, content.bytes).map_err(|e| Error::io("write", &from, e))?;
        plan.artifacts.enter(&from, &need.wanted)?;
    }
    Ok(())
}

/// Gives this generation its own copies.
///
/// # Errors
/// As [`Store::link_all`](crate::artifact::Store::link_all); `bad_config` for two artifacts of one file name.
pub(super) fn link(plan: &Plan, needs: &[Need]) -> Result<Supply> {
    let mut by_file: BTreeMap<&str, &Wanted> = BTreeMap::new();
    for need in needs {
        let wanted = &need.wanted;
        if !plain_name(&wanted.file) {
            let why = "an artifact has a name that no file can have";
            return Err(Refusal::new(Code::LockIncomplete, why).name(&wanted.file).into());
        }
        if let Some(other) = by_file.insert(&wanted.file, wanted)
            && other.locked != wanted.locked
        {
            let why = "two different artifacts have one name";
            return Err(Refusal::new(Code::LockIncomplete, why).name(&wanted.file).into());
        }
    }
    link_at(plan, needs, |need| plan.linked().join(&need.wanted.file))
}

/// Gives this generation its own copies, each at its place.
pub(super) fn link_at(plan: &Plan, needs: &[Need], place: impl Fn(&Need) -> PathBuf) -> Result<Supply> {
    let mut all: BTreeMap<&Locked, (Wanted, PathBuf)> = BTreeMap::new();
    for need in needs {
        all.entry(&need.wanted.locked)
            .or_insert_with(|| (need.wanted.clone(), place(need)));
    }
    let all: Vec<(Wanted, PathBuf)> = all.into_values().collect();
    let held: Vec<Held> = plan.artifacts.link_all(&all)?;
    let mut supply = Supply::default();
    held.into_iter().for_each(|held| supply.add(held));
    Ok(supply)
}

fn plain_name(file: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+!@-".contains(c);
    !file.is_empty() && !file.starts_with('.') && file.len() <= 250 && file.chars().all(plain)
}

/// Chooses a wheel for each of these packages; the packages that have none for this machine, and certainly need one.
pub(super) fn wheels<'a>(
    plan: &Plan,
    packages: impl Iterator<Item = (&'a Package, Vec<Artifact>)>,
) -> Result<(Vec<Need>, Vec<String>)> {
    let (tags, setting) = machine(plan)?;
    let (mut needs, mut without) = (Vec::new(), Vec::new());
    for (package, artifacts) in packages {
        let holds = setting.takes(package);
        if holds == Holds::No {
            continue;
        }
        match tags.choose(&artifacts) {
            Some(artifact) => needs.push(Need::of(package, artifact, Packing::Wheel)),
            None if holds == Holds::Yes => {
                let version = package.version.as_deref().unwrap_or("");
                without.push(format!("{}=={version}", package.name));
            }
            None => {}
        }
    }
    Ok((needs, without))
}

/// Says what the interpreter can run, and what markers are answered with.
pub(super) fn machine(plan: &Plan) -> Result<(&Tags, Setting)> {
    let python = plan.tools.python();
    let (Some(python), Some(Runs::Python(tags))) = (python, python.map(|tool| &tool.runs)) else {
        let why = "wheels are chosen for CPython on Linux with a known C library alone";
        return Err(Refusal::new(Code::BadConfig, why).name("python").into());
    };
    let mut numbers = python.identity.version.split('.').map(|part| {
        part.trim_end_matches(|c: char| !c.is_ascii_digit())
            .parse()
            .unwrap_or(0)
    });
    let mut next = || numbers.next().unwrap_or(0);
    let version = [next(), next(), next()];
    Ok((tags, Setting::linux(&tags.machine, version)))
}

/// Refuses packages that only a source distribution would bring.
pub(super) fn refuse_sources(without: Vec<String>) -> Result<()> {
    if without.is_empty() {
        return Ok(());
    }
    let why = "locked packages have no wheel for this machine, and building one runs what no lock binds";
    Err(Refusal::new(Code::InstallFailed, why)
        .reason("no_wheel")
        .names(without)
        .into())
}

/// Writes a file beside the linked artifacts, for an installer to read.
pub(super) fn write_linked(plan: &Plan, name: &str, text: &str) -> Result<PathBuf> {
    private_directory(&plan.linked())?;
    let path: PathBuf = plan.linked().join(name);
    write(&path, text)?;
    Ok(path)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|e| Error::io("write", path, e))
}
