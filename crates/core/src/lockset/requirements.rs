//! requirements.txt: lines that pin and hash, with no end mark and no graph.
//!
//! Every prefix of such a file is valid, so a cut made before sealing cannot be seen: always named as weak.

use super::pep::{Requirement, normal_name, normal_version};
use super::uv_inputs::{self, Needs};
use super::{
    Algorithm, Artifact, Declared, Format, Lockfile, Package, Scope, Source, front, incomplete, resolve,
};
use crate::code::Refusal;
use crate::digest::from_hex;
use crate::path::RelPath;
use std::collections::{BTreeMap, BTreeSet};

/// Options that say where or how to look, and change nothing about which bytes are allowed.
const HARMLESS: &[&str] = &[
    "--index-url",
    "-i",
    "--extra-index-url",
    "--no-index",
    "--find-links",
    "-f",
    "--trusted-host",
    "--require-hashes",
    "--only-binary",
    "--no-binary",
    "--prefer-binary",
    "--pre",
];

/// How many files may include one another in a row.
const DEEPEST: usize = 32;

/// Parses pinned and hashed requirements into `lock`.
pub(super) fn parse(lock: &mut Lockfile, text: &str) -> Result<(), Refusal> {
    for (number, line) in logical_lines(lock, text)? {
        let at = |why: &str| incomplete(&lock.path, why).name(format!("line {number}: {}", head(&line)));
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or("");
        if first.starts_with('-') {
            let (option, value) = first
                .split_once('=')
                .map_or((first, words.next()), |(o, v)| (o, Some(v)));
            match option {
                "-r" | "--requirement" | "-c" | "--constraint" => {
                    let target = value.and_then(|v| resolve(&lock.directory(), v));
                    let target = target.ok_or_else(|| at("includes a file from outside of the tree"))?;
                    if matches!(option, "-c" | "--constraint") {
                        lock.constraints.push(target);
                    } else {
                        lock.includes.push(target);
                    }
                }
                _ if HARMLESS.contains(&option) => {}
                "-e" | "--editable" => return Err(at("names an editable install, which no hash binds")),
                _ => return Err(at("has an option that is not understood")),
            }
            continue;
        }
        let (requirement, hashes) = split_hashes(&line);
        // pip puts variables of its environment there, and in the fetch stage those are the operator's.
        if requirement.contains('$') {
            return Err(at("asks for a variable"));
        }
        let parsed =
            Requirement::parse(requirement).ok_or_else(|| at("has a line that is not understood"))?;
        if parsed.url.as_deref().is_some_and(|url| !is_wheel(url)) {
            return Err(at(
                "names an archive by its address, and none but a wheel is installed",
            ));
        }
        let version = match (&parsed.url, parsed.pinned()) {
            (None, Some(version)) => Some(version.to_owned()),
            (Some(_), _) => None,
            (None, None) => return Err(at("has a requirement that is not pinned by ==")),
        };
        let mut artifacts = Vec::new();
        for hash in hashes {
            artifacts.push(
                artifact(hash, parsed.url.as_deref()).ok_or_else(|| at("has a hash that is not whole"))?,
            );
        }
        if artifacts.is_empty() {
            return Err(at("has a requirement without a hash"));
        }
        lock.packages.push(Package {
            name: parsed.name,
            version,
            source: Source::Hashed,
            artifacts,
            dependencies: Vec::new(),
            place: None,
            scope: Scope::Always,
            condition: parsed.marker,
        });
    }
    if lock.packages.is_empty() && lock.includes.is_empty() {
        return Err(incomplete(&lock.path, "names no package"));
    }
    lock.say_weak();
    Ok(())
}

/// Says whether an address names a wheel: anything else pip would build, by what no lock binds.
fn is_wheel(url: &str) -> bool {
    let path = url.split(['#', '?']).next().unwrap_or(url);
    path.as_bytes().to_ascii_lowercase().ends_with(b".whl")
}

/// Gives what pip is to read of a requirements file: what is pinned, and by which digests. No option of the file is in
/// it: where to look is the operator's to say.
///
/// # Errors
/// `lock_incomplete`, as [`super::parse`].
pub fn pinned(path: &RelPath, bytes: &[u8]) -> Result<String, Refusal> {
    let lock = super::parse(path, bytes)?;
    let mut all = String::new();
    for (_, line) in logical_lines(&lock, front::text(path, bytes)?)? {
        let (requirement, hashes) = split_hashes(&line);
        if requirement.starts_with('-') {
            continue;
        }
        all.push_str(requirement);
        for hash in hashes {
            all.push_str(" --hash=");
            all.push_str(hash);
        }
        all.push('\n');
    }
    Ok(all)
}

/// Joins continued lines, drops comments, and numbers what is left by its first line.
fn logical_lines(lock: &Lockfile, text: &str) -> Result<Vec<(usize, String)>, Refusal> {
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (at, line) in text.lines().enumerate() {
        let (number, mut whole) = open.take().unwrap_or((at + 1, String::new()));
        let continued = line.trim_end().ends_with('\\') && !line.trim_start().starts_with('#');
        let body = if continued {
            line.trim_end().trim_end_matches('\\')
        } else {
            line
        };
        let body = match body.trim_start().starts_with('#') {
            true => "",
            false => body.split(" #").next().unwrap_or(body),
        };
        whole.push_str(body);
        if continued {
            whole.push(' ');
            open = Some((number, whole));
        } else if !whole.trim().is_empty() {
            lines.push((number, whole.trim().to_owned()));
        }
    }
    match open {
        Some((number, line)) => Err(
            incomplete(&lock.path, "is cut: its last line is continued by nothing")
                .name(format!("line {number}: {}", head(&line))),
        ),
        None => Ok(lines),
    }
}

fn head(line: &str) -> String {
    line.split_whitespace()
        .next()
        .unwrap_or("")
        .chars()
        .take(80)
        .collect()
}

fn split_hashes(line: &str) -> (&str, Vec<&str>) {
    let Some(cut) = line.find("--hash") else {
        return (line, Vec::new());
    };
    let (requirement, rest) = line.split_at(cut);
    let hashes = rest
        .split("--hash")
        .skip(1)
        .map(|h| h.trim().trim_start_matches('=').trim())
        .collect();
    (requirement.trim(), hashes)
}

fn artifact(hash: &str, url: Option<&str>) -> Option<Artifact> {
    let (algorithm, hex) = hash.split_once(':')?;
    let algorithm = Algorithm::parse(algorithm).filter(|a| *a != Algorithm::Sha1)?;
    let digest = from_hex(hex).filter(|d| d.len() == algorithm.bytes())?;
    Some(Artifact {
        name: url.unwrap_or("").to_owned(),
        algorithm,
        digest,
        size_bytes: None,
    })
}

/// Is what a requirements file was made from.
struct Inputs {
    /// Each requirement, with where it is declared.
    wanted: Vec<(String, Requirement)>,
    /// What they cannot show.
    weak: Vec<String>,
}

/// Compares with what is declared beside the file, and follows what is included.
pub(super) fn close_over(lock: &Lockfile, declared: &Declared) -> Result<Vec<String>, Refusal> {
    let included = included(lock, declared)?;
    let mut held: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // A constraint asks for nothing: what only a constraint names is not held.
    for package in std::iter::once(lock)
        .chain(&included)
        .flat_map(|file| &file.packages)
    {
        let version = package.version.as_deref().map(normal_version);
        held.entry(normal_name(&package.name))
            .or_default()
            .extend(version);
    }
    let Some(inputs) = inputs(lock, declared)? else {
        return Ok(vec![format!("{}: no declared inputs lie beside it", lock.path)]);
    };
    for (place, wanted) in &inputs.wanted {
        // A requirement with a marker may be left out for the platform that was locked for.
        match held.get(&wanted.name) {
            None if wanted.marker.is_some() => {}
            None => {
                return Err(incomplete(&lock.path, "lacks a declared dependency")
                    .names([wanted.plain(), place.clone()]));
            }
            Some(versions) => {
                if let Some(pinned) = wanted.pinned().filter(|p| !versions.contains(*p)) {
                    return Err(
                        incomplete(&lock.path, "holds another version than the one declared")
                            .names([format!("{}=={pinned}", wanted.name), place.clone()]),
                    );
                }
            }
        }
    }
    Ok(inputs.weak)
}

/// Finds what a requirements file was made from: the same name with `.in`; else, for `requirements.txt` alone, what
/// the project beside it always needs.
fn inputs(lock: &Lockfile, declared: &Declared) -> Result<Option<Inputs>, Refusal> {
    let input = source_of(&lock.path);
    if let Some((path, text)) = input.and_then(|path| Some((path.clone(), declared.texts.get(&path)?))) {
        return of_input(lock, &path, text).map(Some);
    }
    let usual = lock.path.split_last();
    if usual.is_none_or(|(_, name)| name != Format::Requirements.file_name().as_bytes()) {
        return Ok(None);
    }
    of_project(lock, declared)
}

fn of_input(lock: &Lockfile, input: &RelPath, text: &[u8]) -> Result<Inputs, Refusal> {
    let text = core::str::from_utf8(text)
        .map_err(|_| incomplete(&lock.path, "has a manifest that is not UTF-8").name(input.to_string()))?;
    let mut wanted = Vec::new();
    for (number, line) in logical_lines(lock, text)? {
        if line.starts_with('-') || line.contains("://") || line.starts_with('.') {
            continue;
        }
        let place = format!("{input} line {number}");
        let requirement = Requirement::parse(&line).ok_or_else(|| {
            incomplete(&lock.path, "has a manifest with a line that is not understood").name(&place)
        })?;
        wanted.push((place, requirement));
    }
    Ok(Inputs {
        wanted,
        weak: Vec::new(),
    })
}

fn of_project(lock: &Lockfile, declared: &Declared) -> Result<Option<Inputs>, Refusal> {
    let Some(needs) = uv_inputs::needs(lock, declared)? else {
        return Ok(None);
    };
    let mut inputs = Inputs {
        wanted: Vec::new(),
        weak: Vec::new(),
    };
    let Needs::Listed(texts) = needs else {
        inputs.weak.push(format!(
            "{}: the dependencies of the project beside it are computed, not declared",
            lock.path
        ));
        return Ok(Some(inputs));
    };
    for text in texts {
        let requirement = Requirement::parse(&text).ok_or_else(|| {
            incomplete(
                &lock.path,
                "has a manifest with a requirement that is not understood",
            )
            .name(&text)
        })?;
        inputs.wanted.push(("pyproject.toml".to_owned(), requirement));
    }
    Ok(Some(inputs))
}

/// Gives every file that a requirements file includes, each once, itself left out.
///
/// A file that includes itself, by whatever way, is refused: pip reads such a file for ever, or fails on it.
pub(super) fn included(lock: &Lockfile, declared: &Declared) -> Result<Vec<Lockfile>, Refusal> {
    let mut all: Vec<Lockfile> = Vec::new();
    let mut trail = vec![lock.path.clone()];
    follow(lock, declared, &mut trail, &mut all)?;
    Ok(all)
}

fn follow(
    file: &Lockfile,
    declared: &Declared,
    trail: &mut Vec<RelPath>,
    all: &mut Vec<Lockfile>,
) -> Result<(), Refusal> {
    for path in file.constraints.iter().chain(&file.includes) {
        if trail.contains(path) {
            return Err(incomplete(&file.path, "includes itself")
                .names(trail.iter().chain([path]).map(ToString::to_string)));
        }
    }
    for path in &file.constraints {
        bound(file, declared, path)?;
    }
    for path in &file.includes {
        if all.iter().any(|known| known.path == *path) {
            continue;
        }
        if trail.len() > DEEPEST {
            return Err(incomplete(&file.path, "includes files too deep").name(path.to_string()));
        }
        let next = bound(file, declared, path)?;
        trail.push(path.clone());
        follow(&next, declared, trail, all)?;
        trail.pop();
        all.push(next);
    }
    Ok(())
}

/// Reads a file that another one names.
fn bound(lock: &Lockfile, declared: &Declared, path: &RelPath) -> Result<Lockfile, Refusal> {
    let name = path.split_last().map_or(&b""[..], |(_, name)| name);
    let bytes = declared
        .texts
        .get(path)
        .filter(|_| Format::recognise(name) == Some(Format::Requirements))
        .ok_or_else(|| incomplete(&lock.path, "includes a file that is not bound").name(path.to_string()))?;
    super::parse(path, bytes)
}

/// Names the file that `requirements*.txt` is made from: the same name with `.in`.
fn source_of(path: &RelPath) -> Option<RelPath> {
    let stem = path.as_bytes().strip_suffix(b".txt")?;
    RelPath::parse(&[stem, b".in"].concat()).ok()
}
