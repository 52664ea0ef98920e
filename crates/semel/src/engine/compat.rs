//! `semel restore --compat`: whether a Git that somebody else ran failed of the collision on a worktree's lock.
//!
//! It restores nothing, waits for nothing and stores nothing.

use super::host;
use super::restore::target;
use crate::config::{self, Reach};
use semel_core::Refusal;
use semel_core::collision::{self, Form};
use semel_core::restore::unsafe_lock;
use semel_core::retry::LockSeen;
use semel_host::git::{Git, Require, Worktree};
use semel_host::process::Cancel;
use std::path::Path;

/// Is how a foreign Git ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    /// Its exit status.
    pub(crate) exit: i32,
    /// The whole of its standard error; `None` where it is longer than any text of Git.
    pub(crate) stderr: Option<Vec<u8>>,
}

/// Says what a foreign Git met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// Exactly the lock of the worktree, in these words; and what stands at its place now.
    Collision(Form, Now),
    /// Something else.
    Other,
}

/// Says what stands at the place of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Now {
    /// Nothing.
    Gone,
    /// A lock that may be waited for.
    Held,
}

/// Classifies how a foreign Git ended.
///
/// # Errors
/// `worktree_redirected`, `bad_input`, `not_found` for a worktree that is not what it seems; `lock_unsafe` for a
/// collision with what is no lock: Git says the same of it, and no wait ends it.
pub(crate) fn classify(reach: &Reach, worktree: &Path, ended: &Ended) -> Result<Met, Refusal> {
    let cancel = Cancel::new().map_err(host)?;
    let git = Git::find(&reach.path).map_err(host)?;
    let target = target(reach, worktree, Require::Nothing);
    let target =
        Worktree::find(&git, &config::spellings(worktree), target.map_err(host)?, &cancel).map_err(host)?;
    let locks = target.locks().map_err(host)?;
    let Some(stderr) = &ended.stderr else {
        return Ok(Met::Other);
    };
    let form = locks
        .iter()
        .find_map(|lock| collision::classify(ended.exit, stderr, lock));
    let Some(form) = form else {
        return Ok(Met::Other);
    };
    match target.look().map_err(host)? {
        LockSeen::Gone => Ok(Met::Collision(form, Now::Gone)),
        LockSeen::There(kind, names, owner) => match unsafe_lock(kind, names, owner) {
            Some(refusal) => Err(refusal),
            None => Ok(Met::Collision(form, Now::Held)),
        },
    }
}
