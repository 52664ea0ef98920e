//! A virtual environment bound to its locks: every file owned, every byte as its `RECORD` says, nothing outside.
//!
//! `RECORD` is written by the installer and so proves no origin; each file that it names is compared with the member
//! that it comes from, of the wheel whose digest the lock names. Environment markers are *not* evaluated.

use super::kept::Tree;
use super::record_file::{self, Row};
use super::survey;
use super::venv::{Venv, is_finder};
use super::wheel::Wheel;
use super::{Bound, Fact, Observed, Place, below, lies_in, mismatch, outside};
use crate::artifact::Supply;
use crate::code::Refusal;
use crate::lockset::{Format, Lockfile, Package, Selection, Source, normal_name};
use crate::path::RelPath;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Says how many bytes of a file are needed to bind it.
pub(super) fn wants_text(path: &RelPath) -> Option<u64> {
    let (parent, name) = path.split_last()?;
    let parts: Vec<&[u8]> = path.components().collect();
    let site = parts.len() >= 4 && parts[2] == b"site-packages";
    match name {
        b"pyvenv.cfg" if parts.len() == 1 => Some(64 << 10),
        b"RECORD" | b"METADATA" | b"direct_url.json" if site && parts[3].ends_with(b".dist-info") => {
            Some(16 << 20)
        }
        _ if site && parts.len() == 4 && name.ends_with(b".pth") => Some(1 << 20),
        _ if site && parts.len() == 4 && is_finder(name) => Some(4 << 20),
        // Whole, where it is a script; of a program the beginning.
        _ if parent.as_bytes() == b"bin" => Some(1 << 20),
        _ => None,
    }
}

/// Binds a virtual environment to the locks that it was installed from.
///
/// # Errors
/// `record_mismatch` for bytes, sizes, sets or scaffold that differ, for what nothing owns, for a distribution that
/// is twice there or not in the lock, and for one that is missing; `record_outside_root` for an editable install,
/// `.pth`, shebang, symlink or `RECORD` row that leads out of this generation.
pub fn bind(
    observed: &Observed,
    locks: &[&Lockfile],
    selection: &Selection,
    place: &Place,
    supply: &Supply,
) -> Result<Bound, Refusal> {
    // What leads away is told of as such, whatever else is wrong: it comes again with each attempt.
    survey::leads_out(Tree::Venv, observed, place)?;
    let mut venv = Venv::open(observed, place)?;
    venv.scaffold()?;
    let names = venv.distributions()?;
    let mut bound = Bound::default();
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let (mut from, mut bytecode) = (Vec::new(), 0_usize);
    for info in names {
        let dist = venv.read(&info)?;
        if let Some(other) = found.insert(dist.name.clone(), dist.version.clone()) {
            return Err(mismatch("a distribution is installed twice").names([
                format!("{}=={other}", dist.name),
                format!("{}=={}", dist.name, dist.version),
            ]));
        }
        let origin = dist.origin(locks, place)?;
        let owned = venv.own(&dist)?;
        match origin {
            Origin::Tree => {
                bytecode += owned.compiled;
                bound.weak.push(format!(
                    "{} was built from the tree by an unlocked backend",
                    dist.name
                ));
            }
            Origin::Lock(packages) => {
                let held = packages.iter().find_map(|package| supply.of(&package.artifacts));
                let held = held.ok_or_else(|| {
                    mismatch("a distribution is installed of which the generation was given no artifact")
                        .name(format!("{}=={}", dist.name, dist.version))
                })?;
                from.push((held, owned.files, dist.info.clone()));
            }
        }
        bound.packages.insert(format!("{}=={}", dist.name, dist.version));
    }
    venv.nothing_unowned()?;
    venv.paths_stay()?;
    venv.scripts_stay()?;
    // Last, since a file that leads out of this generation is told of as such.
    for (held, files, info) in &from {
        Wheel::open(held, &venv)?.covers(files, info)?;
    }
    for lock in locks {
        let missing: Vec<&str> = lock
            .must_be_installed(selection)
            .into_iter()
            .filter(|n| !found.contains_key(*n))
            .collect();
        if !missing.is_empty() {
            return Err(mismatch("a locked package is not installed")
                .names(missing.into_iter().take(super::MOST_NAMES)));
        }
    }
    if bytecode > 0 {
        bound.weak.push(format!(
            "{bytecode} compiled files stand in a RECORD without a hash"
        ));
    }
    Ok(bound)
}

/// Says where a distribution comes from.
pub(super) enum Origin<'a> {
    /// It was built from the tree.
    Tree,
    /// A lock names it; these are its entries.
    Lock(Vec<&'a Package>),
}

pub(super) struct Dist {
    pub(super) name: String,
    pub(super) version: String,
    info: RelPath,
    rows: Vec<Row>,
    direct: Option<DirectUrl>,
}

#[derive(Deserialize)]
struct DirectUrl {
    url: String,
    dir_info: Option<serde::de::IgnoredAny>,
    archive_info: Option<serde::de::IgnoredAny>,
}

impl DirectUrl {
    fn leads_into(&self, place: &Place) -> bool {
        let target = self.url.strip_prefix("file://");
        let target = target.map(|path| decode_percent(path.as_bytes()));
        target.is_some_and(|target| lies_in(&target, &place.tree))
    }
}

/// Says whether a distribution was built from a directory of the tree.
pub(super) fn built_from(dist: &Dist, place: &Place) -> bool {
    let direct = dist.direct.as_ref();
    direct.is_some_and(|direct| direct.dir_info.is_some() && direct.leads_into(place))
}

/// Holds what a distribution lists.
#[derive(Default)]
pub(super) struct Owned {
    files: BTreeSet<RelPath>,
    /// How many compiled files stand there without a hash.
    compiled: usize,
}

impl Venv<'_> {
    pub(super) fn distributions(&self) -> Result<Vec<RelPath>, Refusal> {
        let mut all = Vec::new();
        for (path, fact) in &self.observed.entries {
            let Some((parent, name)) = path.split_last() else {
                continue;
            };
            if parent == self.site && name.ends_with(b".dist-info") {
                match fact {
                    Fact::Directory { .. } => all.push(path.clone()),
                    _ => return Err(mismatch("a dist-info is no directory").name(path.to_string())),
                }
            }
        }
        Ok(all)
    }

    pub(super) fn read(&self, info: &RelPath) -> Result<Dist, Refusal> {
        let record = info.join(b"RECORD")?;
        if !self.observed.entries.contains_key(&record) {
            return Err(mismatch("a distribution has no RECORD").name(info.to_string()));
        }
        let rows = record_file::parse(self.observed.text(&record)?)
            .map_err(|why| mismatch("a RECORD is not understood").names([info.to_string(), why]))?;
        let metadata = self.observed.text(&info.join(b"METADATA")?)?;
        let field = |key: &str| -> Option<&str> {
            let head = metadata.lines().take_while(|line| !line.trim().is_empty());
            head.filter_map(|line| line.split_once(':'))
                .find(|(k, _)| k.eq_ignore_ascii_case(key))
                .map(|(_, v)| v.trim())
        };
        let unread = || mismatch("a METADATA has no name or no version").name(info.to_string());
        let (name, version) = (
            field("Name").ok_or_else(unread)?,
            field("Version").ok_or_else(unread)?,
        );
        let stem = info
            .split_last()
            .and_then(|(_, n)| n.strip_suffix(b".dist-info").map(<[u8]>::to_vec));
        let stem = stem.and_then(|s| String::from_utf8(s).ok()).unwrap_or_default();
        let named = stem
            .split_once('-')
            .map(|(n, v)| (normal_name(n), v.replace('_', "-")));
        if named.as_ref().map(|(n, _)| n.as_str()) != Some(&normal_name(name)) {
            return Err(
                mismatch("a dist-info is named after another distribution").names([stem.as_str(), name])
            );
        }
        if named.is_some_and(|(_, v)| !same_version(&v, version)) {
            return Err(
                mismatch("a dist-info is named after another version").names([stem.as_str(), version])
            );
        }
        let direct = info.join(b"direct_url.json")?;
        let direct = match self.observed.entries.contains_key(&direct) {
            false => None,
            true => Some(
                serde_json::from_slice(self.observed.whole(&direct)?)
                    .map_err(|_| mismatch("a direct_url.json is not understood").name(info.to_string()))?,
            ),
        };
        Ok(Dist {
            name: normal_name(name),
            version: version.to_owned(),
            info: info.clone(),
            rows,
            direct,
        })
    }

    /// Checks every row of a distribution and owns its files.
    pub(super) fn own(&mut self, dist: &Dist) -> Result<Owned, Refusal> {
        let record = dist.info.join(b"RECORD")?;
        let mut owned = Owned::default();
        let mut lists_itself = false;
        for row in &dist.rows {
            let whole = [
                &self.place.root,
                &b"/"[..],
                self.site.as_bytes(),
                b"/",
                row.path.as_bytes(),
            ]
            .concat();
            let path = match row.path.starts_with('/') {
                true => below(self.place, row.path.as_bytes()),
                false => below(self.place, &whole),
            };
            let path = path.ok_or_else(|| {
                outside("a RECORD names a file outside of the environment")
                    .names([dist.name.as_str(), &row.path])
            })?;
            lists_itself |= path == record;
            let compiled = path.as_bytes().ends_with(b".pyc");
            let fact = self.observed.entries.get(&path);
            match (row.sha256, fact) {
                (None, None) if compiled => continue,
                (_, None) => return Err(mismatch("a file of a RECORD is missing").name(path.to_string())),
                (Some(wanted), Some(Fact::File { sha256, size, .. })) => {
                    if wanted != *sha256.as_bytes() || row.size.is_some_and(|s| s != *size) {
                        return Err(
                            mismatch("an installed file is not as its RECORD says").name(path.to_string())
                        );
                    }
                }
                (None, Some(Fact::File { .. })) if compiled => {
                    self.has_source(&path)?;
                    owned.compiled += 1;
                }
                (None, Some(Fact::File { .. })) if signs_or_is_record(&path, &dist.info) => {}
                (None, Some(Fact::File { .. })) => {
                    return Err(mismatch("a RECORD has a file without a hash").name(path.to_string()));
                }
                (_, Some(_)) => return Err(mismatch("a file of a RECORD is no file").name(path.to_string())),
            }
            owned.files.insert(path.clone());
            self.owners.insert(path, dist.name.clone());
        }
        match lists_itself {
            true => Ok(owned),
            false => Err(mismatch("a RECORD does not list itself: it is cut").name(dist.info.to_string())),
        }
    }

    /// Refuses a compiled file whose source is not there: Python would run it on its own.
    pub(super) fn has_source(&self, compiled: &RelPath) -> Result<(), Refusal> {
        let source = || -> Option<RelPath> {
            let (cache, name) = compiled.split_last()?;
            let (parent, folder) = cache.split_last()?;
            let stem = name.split(|b| *b == b'.').next()?;
            (folder == b"__pycache__").then(|| parent.join(&[stem, b".py"].concat()).ok())?
        };
        match source().filter(|s| self.observed.entries.contains_key(s)) {
            Some(_) => Ok(()),
            None => Err(mismatch("a compiled file has no source beside it").name(compiled.to_string())),
        }
    }
}

impl Dist {
    /// Finds what the locks say about this distribution.
    pub(super) fn origin<'a>(&self, locks: &[&'a Lockfile], place: &Place) -> Result<Origin<'a>, Refusal> {
        let shown = format!("{}=={}", self.name, self.version);
        let all = locks.iter().flat_map(|lock| &lock.packages);
        let named: Vec<&Package> = all.filter(|p| p.name == self.name).collect();
        let local = named.iter().any(|p| matches!(p.source, Source::Local(_)));
        if let Some(direct) = &self.direct {
            let inside = direct.leads_into(place);
            if direct.dir_info.is_some() {
                // requirements.txt does not name the project; a uv.lock does.
                let project = named.is_empty() && locks.iter().all(|l| l.format == Format::Requirements);
                return match (inside, local || project) {
                    (true, true) => Ok(Origin::Tree),
                    (true, false) => Err(mismatch(
                        "a distribution is built from the tree, but locked otherwise",
                    )
                    .name(shown)),
                    (false, _) => Err(outside("a distribution leads out of this generation")
                        .names([shown, direct.url.clone()])),
                };
            }
            if direct.archive_info.is_none() {
                return Err(outside("a distribution comes from where no lock binds it")
                    .names([shown, direct.url.clone()]));
            }
        } else if local {
            return Err(mismatch("the project itself is installed from elsewhere").name(shown));
        }
        if named.is_empty() {
            return Err(mismatch("a distribution is not in the lock").name(shown));
        }
        let fits = |p: &&Package| p.version.as_ref().is_none_or(|v| same_version(v, &self.version));
        let fitting: Vec<&Package> = named.iter().copied().filter(fits).collect();
        if fitting.is_empty() {
            let locked = named.iter().filter_map(|p| p.version.as_deref());
            let locked = locked.map(|v| format!("locked {v}"));
            return Err(
                mismatch("a distribution is of another version than the locked one")
                    .name(shown)
                    .names(locked),
            );
        }
        Ok(Origin::Lock(fitting))
    }
}

fn signs_or_is_record(path: &RelPath, info: &RelPath) -> bool {
    path.split_last().is_some_and(|(parent, name)| {
        parent == *info && matches!(name, b"RECORD" | b"RECORD.jws" | b"RECORD.p7s")
    })
}

pub(super) fn same_version(a: &str, b: &str) -> bool {
    let normal = |text: &str| {
        let mut normal = crate::lockset::normal_version(text);
        while let Some(shorter) = normal.strip_suffix(".0") {
            normal = shorter.to_owned();
        }
        normal
    };
    normal(a) == normal(b)
}

pub(super) fn decode_percent(text: &[u8]) -> Vec<u8> {
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let coded = (text[at] == b'%' && at + 2 < text.len())
            .then(|| Some(digit(text[at + 1])? << 4 | digit(text[at + 2])?))
            .flatten();
        bytes.push(coded.unwrap_or(text[at]));
        at += if coded.is_some() { 3 } else { 1 };
    }
    bytes
}
