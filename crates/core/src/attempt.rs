//! The contract of a volume: may this attempt trust the disk that it was given?
//!
//! The order of the checks is part of the contract, and frozen: identity, dirt, lockfile, shape of the state,
//! reuse, drift. This module decides from facts; it reads no disk.

use crate::canonical;
use crate::code::{Code, Refusal};
use crate::digest::Sha256;
use crate::path::RelPath;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Is what the contract keeps on the disk.
///
/// # Shape
/// `.workspace_contract.json`: `{"generation":"…","attempt":"…","locks":{"uv.lock":"<sha256>"}}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContractState {
    /// The generation that was certified to be clean.
    pub generation: String,
    /// The attempt that owns it.
    pub attempt: String,
    /// The lockfiles and their digests.
    pub locks: BTreeMap<RelPath, Sha256>,
}

impl ContractState {
    /// Reads a state.
    ///
    /// # Errors
    /// `unknown_state` for anything that a passed check does not write: not JSON, another shape, an empty identity,
    /// no lockfile.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let unknown = |why: String| Refusal::new(Code::UnknownState, why).name(STATE_FILE);
        // Two readers must not read it differently: a key that comes twice is refused, not guessed.
        let value = canonical::parse_strict(bytes, canonical::Limits::DEFAULT)
            .map_err(|refusal| unknown(format!("not a contract state: {refusal}")))?;
        let stated = value["locks"].as_object().map_or(0, serde_json::Map::len);
        let state: Self =
            serde_json::from_value(value).map_err(|e| unknown(format!("not a contract state: {e}")))?;
        if state.locks.len() != stated {
            return Err(unknown("a contract state names each lockfile once".to_owned()));
        }
        if is_missing(&state.generation) || is_missing(&state.attempt) || state.locks.is_empty() {
            return Err(unknown(
                "a contract state names a generation, an attempt and a lockfile".to_owned(),
            ));
        }
        Ok(state)
    }

    /// Writes a state; every shorter part of it is no state.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let locks: serde_json::Map<String, serde_json::Value> = self
            .locks
            .iter()
            .map(|(path, digest)| (path.to_wire(), digest.to_string().into()))
            .collect();
        let value = serde_json::json!({
            "generation": self.generation, "attempt": self.attempt, "locks": locks,
        });
        value.to_string().into_bytes()
    }
}

/// The contract's own entries at the root of the disk.
pub const STATE_FILE: &str = ".workspace_contract.json";
/// Marks a disk whose attempt did not end cleanly; any entry of that name counts, of whatever type.
pub const DIRTY_MARK: &str = ".volume_dirty";
/// Names the generation that the disk was wiped for.
pub const GENERATION_FILE: &str = ".generation";
/// Says that a wipe went through.
pub const CLEAN_FILE: &str = ".volume_clean";

/// The attribute of the workspace itself that marks a run which did not end cleanly. A command that empties the workspace
/// takes every file of the contract along, but not this.
pub const RUN_MARK: &str = "user.semel.dirty";

/// Gives what the attribute holds for a run in a generation.
#[must_use]
pub fn run_mark(generation: &str) -> String {
    Sha256::of(generation.as_bytes()).to_string()
}

/// Is what was found where a small file is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Absent,
    /// A regular file with this content.
    Bytes(Vec<u8>),
    /// Something that cannot be taken: another type, unreadable, too large; in words.
    Odd(String),
}

/// Is what was found where a lockfile is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundLock {
    /// A regular file with this digest.
    Digest(Sha256),
    /// Named by the caller, and not there.
    Missing,
    /// Something that cannot be taken, in words.
    Odd(String),
}

/// Is all that a check is decided from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The generation that the caller gave.
    pub generation: Option<String>,
    /// The attempt that the caller gave.
    pub attempt: Option<String>,
    /// What lies at the dirty mark, in words; `None` where there is nothing.
    pub dirty: Option<String>,
    /// What the attribute of the workspace holds that marks a run.
    pub run_mark: Found,
    /// The lockfiles that were looked at.
    pub locks: BTreeMap<RelPath, FoundLock>,
    /// What lies at the state file.
    pub state: Found,
    /// What lies at the generation file.
    pub disk_generation: Found,
    /// A leftover environment, where one was looked for.
    pub leftover: Option<RelPath>,
}

/// Says how an old state is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// The state of an older generation passes with a warning.
    Lenient,
    /// It is `generation_reused`, and a leftover environment is `tree_not_empty`.
    Strict,
}

/// Is what a passed check leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// What is to be on the disk from now on.
    pub state: ContractState,
    /// What a person should know, in words.
    pub warnings: Vec<String>,
}

fn is_missing(text: &str) -> bool {
    text.trim().is_empty()
}

/// Takes an identity as the caller gave it.
///
/// # Errors
/// `missing_identity` where it is absent, empty or white space.
pub fn identity<'a>(name: &str, given: Option<&'a str>) -> Result<&'a str, Refusal> {
    match given {
        Some(text) if !is_missing(text) => Ok(text),
        Some(_) => Err(Refusal::new(Code::MissingIdentity, "an empty identity counts as none").name(name)),
        None => Err(Refusal::new(Code::MissingIdentity, "no identity was given").name(name)),
    }
}

/// Decides whether an attempt may trust the disk.
///
/// # Errors
/// In this order: `missing_identity`, `dirty_volume`, `no_lockfile`, `unknown_state`, `generation_reused`,
/// `lockfile_drift`; in strict mode then `tree_not_empty`.
pub fn check(facts: &Facts, strictness: Strictness) -> Result<Passed, Refusal> {
    let generation = identity("VOLUME_GENERATION", facts.generation.as_deref())?;
    let attempt = identity("JOB_ATTEMPT", facts.attempt.as_deref())?;
    if let Some(what) = &facts.dirty {
        return Err(Refusal::new(Code::DirtyVolume, what.clone())
            .reason("marked")
            .name(DIRTY_MARK));
    }
    let unended = unended(facts, generation)?;
    if facts.locks.values().all(|found| *found == FoundLock::Missing) {
        return Err(Refusal::new(Code::NoLockfile, "no lockfile binds this tree")
            .names(facts.locks.keys().map(ToString::to_string)));
    }
    let prior = known_state(facts)?;
    let locks = known_locks(facts, prior.as_ref())?;
    let mut warnings = reuse(facts, prior.as_ref(), generation, attempt, strictness)?;
    if unended == Unended::Another && warnings.is_empty() {
        let why = "a run of another generation did not end cleanly on this disk";
        if strictness == Strictness::Strict {
            return Err(Refusal::new(Code::GenerationReused, why).name(RUN_MARK));
        }
        warnings.push(format!("{why}; it may not have been wiped ({RUN_MARK})"));
    }
    if let Some(prior) = prior.as_ref().filter(|prior| prior.generation == generation) {
        drift(&prior.locks, &locks)?;
    }
    if let (Strictness::Strict, Some(leftover)) = (strictness, &facts.leftover) {
        return Err(
            Refusal::new(Code::TreeNotEmpty, "an environment was left over").name(leftover.to_string())
        );
    }
    let state = ContractState {
        generation: generation.to_owned(),
        attempt: attempt.to_owned(),
        locks,
    };
    Ok(Passed { state, warnings })
}

/// Says of which generation a run did not end cleanly, where one did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unended {
    No,
    Another,
}

/// Refuses a disk on which a run of this generation did not end cleanly, though its files may be gone.
fn unended(facts: &Facts, generation: &str) -> Result<Unended, Refusal> {
    let why = match &facts.run_mark {
        Found::Absent => return Ok(Unended::No),
        Found::Bytes(bytes) if *bytes == run_mark(generation).into_bytes() => {
            "a run of this generation did not end cleanly; its mark on the disk was removed"
        }
        Found::Bytes(bytes) if core::str::from_utf8(bytes).is_ok_and(|text| Sha256::parse(text).is_ok()) => {
            return Ok(Unended::Another);
        }
        Found::Bytes(_) | Found::Odd(_) => "the workspace carries a mark of a run that cannot be read",
    };
    Err(Refusal::new(Code::DirtyVolume, why)
        .reason("mark_removed")
        .name(RUN_MARK))
}

fn known_state(facts: &Facts) -> Result<Option<ContractState>, Refusal> {
    match &facts.state {
        Found::Absent => Ok(None),
        Found::Bytes(bytes) => ContractState::parse(bytes).map(Some),
        Found::Odd(why) => Err(Refusal::new(Code::UnknownState, why.clone()).name(STATE_FILE)),
    }
}

/// Takes the digests; a lockfile that is missing where the state knows it is drift, and left to that check.
fn known_locks(facts: &Facts, prior: Option<&ContractState>) -> Result<BTreeMap<RelPath, Sha256>, Refusal> {
    let mut locks = BTreeMap::new();
    for (path, found) in &facts.locks {
        let unknown = |why: &str| Refusal::new(Code::UnknownState, why).name(path.to_string());
        match found {
            FoundLock::Digest(digest) => {
                locks.insert(path.clone(), *digest);
            }
            FoundLock::Missing if prior.is_some_and(|p| p.locks.contains_key(path)) => {}
            FoundLock::Missing => return Err(unknown("the named lockfile is missing")),
            FoundLock::Odd(why) => return Err(unknown(why)),
        }
    }
    Ok(locks)
}

fn reuse(
    facts: &Facts,
    prior: Option<&ContractState>,
    generation: &str,
    attempt: &str,
    strictness: Strictness,
) -> Result<Vec<String>, Refusal> {
    let reused = |why: String| Err(Refusal::new(Code::GenerationReused, why).name(generation));
    let on_disk = match &facts.disk_generation {
        Found::Absent => None,
        Found::Bytes(bytes) => match core::str::from_utf8(bytes).map(str::trim) {
            Ok(text) if !text.is_empty() => Some(text),
            _ => {
                let why = "it names no generation";
                return Err(Refusal::new(Code::UnknownState, why).name(GENERATION_FILE));
            }
        },
        Found::Odd(why) => return Err(Refusal::new(Code::UnknownState, why.clone()).name(GENERATION_FILE)),
    };
    if let Some(prior) = prior.filter(|p| p.generation == generation && p.attempt != attempt) {
        return reused(format!("it belongs to attempt {}", prior.attempt));
    }
    if let Some(other) = on_disk.filter(|other| *other != generation.trim()) {
        return reused(format!("the disk was wiped for generation {other}"));
    }
    match prior.filter(|p| p.generation != generation) {
        Some(prior) if strictness == Strictness::Strict => reused(format!(
            "the disk still holds the state of generation {}",
            prior.generation
        )),
        Some(prior) => Ok(vec![format!(
            "the disk holds the state of generation {}; it may not have been wiped",
            prior.generation
        )]),
        None => Ok(Vec::new()),
    }
}

fn drift(before: &BTreeMap<RelPath, Sha256>, now: &BTreeMap<RelPath, Sha256>) -> Result<(), Refusal> {
    let changed = before
        .iter()
        .filter(|(path, digest)| now.get(*path).is_some_and(|n| n != *digest));
    let vanished = before.keys().filter(|path| !now.contains_key(*path));
    let appeared = now.keys().filter(|path| !before.contains_key(*path));
    let names: Vec<String> = changed
        .map(|(path, _)| format!("{path} changed"))
        .chain(vanished.map(|path| format!("{path} vanished")))
        .chain(appeared.map(|path| format!("{path} appeared")))
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(Refusal::new(Code::LockfileDrift, "the lockfiles moved inside one generation").names(names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn facts() -> Facts {
        Facts {
            generation: Some("g-1".to_owned()),
            attempt: Some("1".to_owned()),
            dirty: None,
            run_mark: Found::Absent,
            locks: [(path("uv.lock"), FoundLock::Digest(Sha256::of(b"lock")))].into(),
            state: Found::Absent,
            disk_generation: Found::Absent,
            leftover: None,
        }
    }

    fn after(facts: &Facts) -> Found {
        Found::Bytes(check(facts, Strictness::Lenient).unwrap().state.to_bytes())
    }

    fn code(facts: &Facts) -> Option<Code> {
        check(facts, Strictness::Lenient)
            .err()
            .map(|refusal| refusal.code)
    }

    /// With everything wrong at once, each refusal shows in its order as the one before it is mended.
    #[test]
    fn the_order_is_part_of_the_contract() {
        let good = facts();
        let mut bad = Facts {
            generation: None,
            attempt: Some(" ".to_owned()),
            dirty: Some("a file".to_owned()),
            run_mark: Found::Odd("too large".to_owned()),
            locks: BTreeMap::new(),
            state: Found::Odd("a directory".to_owned()),
            disk_generation: Found::Bytes(b"g-0\n".to_vec()),
            leftover: Some(path(".venv")),
        };
        assert_eq!(code(&bad), Some(Code::MissingIdentity));
        bad.generation = good.generation.clone();
        assert_eq!(code(&bad), Some(Code::MissingIdentity));
        bad.attempt = Some("2".to_owned());
        assert_eq!(code(&bad), Some(Code::DirtyVolume));
        bad.dirty = None;
        assert_eq!(code(&bad), Some(Code::DirtyVolume), "a mark that cannot be read");
        bad.run_mark = Found::Bytes(run_mark("g-1").into_bytes());
        assert_eq!(code(&bad), Some(Code::DirtyVolume));
        bad.run_mark = Found::Absent;
        assert_eq!(code(&bad), Some(Code::NoLockfile));
        bad.locks = [(path("uv.lock"), FoundLock::Digest(Sha256::of(b"other")))].into();
        assert_eq!(code(&bad), Some(Code::UnknownState));
        bad.state = after(&good);
        assert_eq!(code(&bad), Some(Code::GenerationReused));
        bad.attempt = Some("1".to_owned());
        assert_eq!(
            code(&bad),
            Some(Code::GenerationReused),
            "the disk names another generation"
        );
        bad.disk_generation = Found::Bytes(b"g-1\n".to_vec());
        assert_eq!(code(&bad), Some(Code::LockfileDrift));
        bad.locks = good.locks;
        assert_eq!(code(&bad), None, "lenient: a leftover is not looked for");
        assert_eq!(
            check(&bad, Strictness::Strict).unwrap_err().code,
            Code::TreeNotEmpty
        );
    }

    #[test]
    fn an_older_generation_alone_passes_with_a_warning_unless_strict() {
        let mut next = facts();
        next.state = after(&facts());
        next.generation = Some("g-2".to_owned());
        assert_eq!(check(&next, Strictness::Lenient).unwrap().warnings.len(), 1);
        assert_eq!(
            check(&next, Strictness::Strict).unwrap_err().code,
            Code::GenerationReused
        );
    }

    #[test]
    fn a_run_that_did_not_end_is_known_without_its_files() {
        let mut now = facts();
        for (mark, of_another) in [
            (run_mark("g-1"), false),
            (run_mark("g-0"), true),
            (String::new(), false),
            ("g-1".to_owned(), false),
            (format!("{} ", run_mark("g-0")), false),
        ] {
            now.run_mark = Found::Bytes(mark.clone().into_bytes());
            if of_another {
                assert_eq!(check(&now, Strictness::Lenient).unwrap().warnings.len(), 1);
                let strict = check(&now, Strictness::Strict).unwrap_err();
                assert_eq!(strict.code, Code::GenerationReused);
            } else {
                assert_eq!(code(&now), Some(Code::DirtyVolume), "{mark}");
            }
        }
    }

    #[test]
    fn a_lockfile_that_changes_appears_or_vanishes_is_drift() {
        let first = facts();
        let mut now = first.clone();
        now.state = after(&first);
        now.locks
            .insert(path("poetry.lock"), FoundLock::Digest(Sha256::of(b"")));
        assert_eq!(code(&now), Some(Code::LockfileDrift), "appeared");
        now.locks = [
            (path("uv.lock"), FoundLock::Missing),
            (path("poetry.lock"), FoundLock::Digest(Sha256::of(b""))),
        ]
        .into();
        assert_eq!(code(&now), Some(Code::LockfileDrift), "vanished");
        now.locks = [(path("uv.lock"), FoundLock::Odd("a symbolic link".to_owned()))].into();
        assert_eq!(code(&now), Some(Code::UnknownState));
    }

    #[test]
    fn an_ambiguous_state_is_unknown() {
        let digest = Sha256::of(b"lock");
        for locks in [
            format!(r#"{{"uv.lock":"{digest}","uv.lock":"{digest}"}}"#),
            format!(r#"{{"uv.lock":"{digest}","./uv.lock":"{digest}"}}"#),
            "{}".to_owned(),
            "[]".to_owned(),
        ] {
            let mut now = facts();
            let text = format!(r#"{{"generation":"g-1","attempt":"1","locks":{locks}}}"#);
            now.state = Found::Bytes(text.into_bytes());
            assert_eq!(code(&now), Some(Code::UnknownState), "{locks}");
        }
    }

    proptest! {
        /// Only the very bytes that a passed check wrote, or an equal state, are a state.
        #[test]
        fn a_cut_or_bent_state_never_passes(cut in 0_usize..100, flip in 0_usize..100, bit in 0_u8..8) {
            let Found::Bytes(whole) = after(&facts()) else { unreachable!() };
            let mut now = facts();
            now.state = Found::Bytes(whole[..cut.min(whole.len() - 1)].to_vec());
            prop_assert_eq!(code(&now), Some(Code::UnknownState));
            let mut bent = whole.clone();
            let at = flip % whole.len();
            bent[at] ^= 1 << bit;
            now.state = Found::Bytes(bent.clone());
            let same = ContractState::parse(&bent).ok() == ContractState::parse(&whole).ok();
            // A flipped bit may turn the state into that of another generation, which passes with a warning.
            let passed = check(&now, Strictness::Strict);
            prop_assert!(passed.is_err() || same);
        }
    }
}
