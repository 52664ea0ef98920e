//! That an attempt is shut off from whatever a draft, a person or an earlier attempt keeps: by path, mount, link, ancestor
//! directory and environment.
//!
//! Paths, mounts and links are the sandbox's, which shows nothing but the tree, private places and toolchains. What is
//! left is looked for here: variables that the job sets, and, where no mount namespace is to be had, the directories above.

use super::Ask;
use crate::engine::{Engine, host};
use semel_core::confinement::Level;
use semel_core::job::Confine;
use semel_core::surround::{changes_the_tests, leads_to_a_cache};
use semel_core::{Code, Refusal};
use semel_host::installer::Reach;
use semel_host::volume::Volume as Disk;
use semel_host::{above, sandbox};
use std::os::unix::ffi::OsStrExt as _;

const NAMED: usize = 20;

/// Refuses what would let something warm in.
///
/// # Errors
/// `evidence_foreign`, reason `environment`, naming the variables; reasons `ancestor` and `ancestor_home`, naming the file
/// or the home; `io_failed` where the sandbox cannot be tried.
pub(super) fn shut_off(engine: &Engine, ask: &Ask, disk: &Disk) -> Result<(), Refusal> {
    let state = engine.config.state.as_os_str().as_bytes();
    let warm = ask.certify.env.iter();
    let warm: Vec<&str> = warm
        .filter(|(name, value)| leads_to_a_cache(name, value, state))
        .map(|(name, _)| name.as_str())
        .collect();
    if !warm.is_empty() {
        let why = "a variable of the job leads to a cache that is not this generation's";
        return Err(Refusal::new(Code::EvidenceForeign, why)
            .reason("environment")
            .names(warm));
    }
    let told = ask.certify.env.iter();
    let told: Vec<&str> = told
        .filter(|(name, value)| changes_the_tests(name, value))
        .map(|(name, _)| name.as_str())
        .collect();
    if !told.is_empty() {
        let why = "a variable of the job loads code from outside of the tree, or chooses among the tests";
        return Err(Refusal::new(Code::EvidenceForeign, why)
            .reason("environment")
            .names(told));
    }
    match ask.confine {
        // Nothing runs then where a part is missing.
        Confine::Require => Ok(()),
        Confine::BestEffort => {
            let level = sandbox::probe().map_err(host)?;
            if hides_ancestors(&level) {
                return Ok(());
            }
            nothing_above(engine, disk)
        }
    }
}

/// Gives what a job could write from its sandbox: where volumes lie, and, where no wall stands at all, whatever this very
/// user may write. No toolchain is taken from there.
///
/// # Errors
/// `io_failed` where the sandbox cannot be tried.
pub(super) fn within_reach(engine: &Engine, ask: &Ask) -> Result<Reach, Refusal> {
    let walls = match ask.confine {
        Confine::Require => true,
        Confine::BestEffort => sandbox::probe().map_err(host)?.confinement != semel_core::Confinement::None,
    };
    let beneath = vec![engine.config.state.clone()];
    Ok(if walls {
        Reach::Beneath(beneath)
    } else {
        Reach::Everything(beneath)
    })
}

/// Says whether the sandbox stands on a root of its own, where the directories above are empty.
fn hides_ancestors(level: &Level) -> bool {
    let lost = |what: &String| what.starts_with("view:") || what.starts_with("mount namespace");
    !level.missing.iter().any(lost) && level.confinement != semel_core::Confinement::None
}

fn nothing_above(engine: &Engine, disk: &Disk) -> Result<(), Refusal> {
    let tree = disk.tree_path();
    let refusal = |reason: &str, why: &str| Refusal::new(Code::EvidenceForeign, why).reason(reason);
    let found = above::found(&tree);
    if !found.is_empty() {
        let why =
            "no mount namespace hides the directories above the tree, and a tool would read what lies there";
        let names = found.iter().take(NAMED).map(|place| place.display().to_string());
        return Err(refusal("ancestor", why).names(names));
    }
    match engine.config.homes.iter().find(|home| tree.starts_with(home)) {
        None => Ok(()),
        Some(home) => {
            let why =
                "no mount namespace hides the home that the state root lies in; name another with --state";
            Err(refusal("ancestor_home", why).name(home.display().to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_says_whether_ancestors_are_hidden() {
        let lacking =
            |missing: &[&str]| Level::lacking(missing.iter().map(|what| (*what).to_owned()).collect());
        assert!(hides_ancestors(&lacking(&[])));
        assert!(hides_ancestors(&lacking(&[
            "landlock: ABI 3",
            "network namespace: EPERM"
        ])));
        assert!(!hides_ancestors(&lacking(&["mount namespace: EPERM"])));
        assert!(!hides_ancestors(&lacking(&["view: mount /proc: EPERM"])));
        assert!(!hides_ancestors(&Level::none("nothing stands")));
    }
}
