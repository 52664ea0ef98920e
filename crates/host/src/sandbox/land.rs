//! The second wall: Landlock, which no program needs a privilege to put up, and none can take down.
//!
//! Inside a view it repeats what the view allows. Without one it is the only wall, and names the system's own
//! directories around whatever is hidden in them. It does not cover `stat`, `chmod` and sockets with a path.

use super::plan::{SCRATCH, SYSTEM, trail};
use super::spec::Walls;
use super::view::DEVICES;
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope,
};
use std::path::{Path, PathBuf};

/// The rights that are handled; older kernels handle fewer of them.
const FILES: ABI = ABI::V5;
/// The first version that keeps signals and abstract sockets inside.
const SCOPES: ABI = ABI::V6;

/// What stands around the second wall.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around {
    /// A view of our own.
    pub(super) view: bool,
    /// A process namespace of our own.
    pub(super) processes: bool,
    /// A network namespace of our own.
    pub(super) network: bool,
}

/// Asks which version of Landlock this kernel enforces; 0 for none.
#[must_use]
pub fn landlock_abi() -> u32 {
    super::sys::landlock_abi()
}

/// Restricts this process for ever; gives what of it could not be had.
pub(super) fn restrict(walls: &Walls, around: Around) -> Result<(), Vec<String>> {
    let abi = landlock_abi();
    if abi == 0 {
        return Err(vec!["landlock: this kernel does not enforce it".to_owned()]);
    }
    let mut missing = Vec::new();
    let mut lack = |what: &str, since: u32| {
        if abi < since {
            missing.push(format!(
                "landlock: {what} needs version {since}, this kernel has {abi}"
            ));
        }
    };
    if !around.view {
        lack("renaming across directories", 2);
        lack("truncating", 3);
        lack("devices", 5);
    }
    if !around.processes {
        lack("signals", 6);
    }
    if !around.network {
        lack("abstract sockets", 6);
    }
    if let Err(error) = enforce(walls, around) {
        missing.push(format!("landlock: {error}"));
    }
    if missing.is_empty() { Ok(()) } else { Err(missing) }
}

fn enforce(walls: &Walls, around: Around) -> Result<(), landlock::RulesetError> {
    let read = AccessFs::from_read(FILES);
    let all = AccessFs::from_all(FILES);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(SCOPES))?
        .create()?;
    if around.view {
        rules = allow(rules, Path::new("/"), read)?;
    } else {
        let hidden: Vec<PathBuf> = walls
            .hide
            .iter()
            .filter_map(|place| trail(place.path()).ok())
            .map(|(real, _)| real)
            .collect();
        for place in SYSTEM.into_iter().chain(["/proc", "/dev"]) {
            rules = allow_around(rules, Path::new(place), &hidden, read)?;
        }
        for place in walls.read_only() {
            rules = allow(rules, place, read)?;
        }
    }
    for place in DEVICES.into_iter().chain(["/dev/pts"]) {
        rules = allow(rules, Path::new(place), all)?;
    }
    if around.view {
        for place in SCRATCH {
            rules = allow(rules, Path::new(place), all)?;
        }
    }
    for place in walls.writable() {
        rules = allow(rules, place, all)?;
    }
    rules.restrict_self()?;
    Ok(())
}

/// Allows a place and all beneath it; a place that is not there needs no rule.
fn allow(
    rules: RulesetCreated,
    place: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, landlock::RulesetError> {
    let (Ok(fd), Ok(facts)) = (PathFd::new(place), place.metadata()) else {
        return Ok(rules);
    };
    let access = if facts.is_dir() {
        access
    } else {
        access & AccessFs::from_file(FILES)
    };
    rules.add_rule(PathBeneath::new(fd, access))
}

/// Allows a place but for what is hidden in it: rules only ever add, so each neighbour of the hidden is named.
fn allow_around(
    rules: RulesetCreated,
    place: &Path,
    hidden: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, landlock::RulesetError> {
    let Ok((real, _)) = trail(place) else {
        return Ok(rules);
    };
    if hidden.iter().any(|h| real.starts_with(h)) {
        return Ok(rules);
    }
    if !hidden.iter().any(|h| h.starts_with(&real)) {
        return allow(rules, &real, access);
    }
    let Ok(entries) = std::fs::read_dir(&real) else {
        return Ok(rules);
    };
    entries.flatten().try_fold(rules, |rules, entry| {
        // A symlink is no place; what it names has its own.
        let link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if link {
            Ok(rules)
        } else {
            allow_around(rules, &entry.path(), hidden, access)
        }
    })
}
