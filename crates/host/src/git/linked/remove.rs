//! Removing worktrees of ours: nothing that is nowhere else, unless told; nothing that is not ours, ever.

use super::doing::{Doing, finish_removal, making, recover, rename, same_directory};
use super::look::{Entries, Looked, look};
use super::work::{Held, refuse_work};
use super::{Milestone, Tell, own_name, real_target};
use crate::error::{Error, Result};
use crate::git::listing::{Blobs, Listing, Objects};
use crate::git::lock::LOCK;
use crate::git::pin::{self, Pins, spot_at};
use crate::git::removal::Ground;
use crate::git::repository::Repository;
use crate::git::survey::Whole;
use crate::git::worktree::{self, Checked, Found, lstat, path_of};
use crate::git::{Git, Identity, Nested};
use crate::plain;
use crate::process::Cancel;
use semel_core::git_tree::ObjectId;
use semel_core::path::shown;
use semel_core::pin::{Origin, Pin};
use semel_core::{Code, Refusal};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Says what is done with a worktree that holds work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// It is not removed.
    #[default]
    Refuse,
    /// It is removed with all that it holds.
    Work,
    /// Only the pin is forgotten; the worktree stays as it is.
    PinOnly,
}

/// Says what is done with a worktree that is locked (`git worktree lock`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locked {
    /// It is not removed.
    #[default]
    Refuse,
    /// It is removed as if it were not.
    Remove,
}

/// Says what worktree is to be removed.
#[derive(Clone, Debug)]
pub struct Remove {
    /// The worktree.
    pub worktree: PathBuf,
    /// What is done with its work.
    pub discard: Discard,
    /// What is done where it is locked.
    pub locked: Locked,
    /// What is done with repositories of others that lie in it.
    pub nested: Nested,
    /// How long locks are waited for.
    pub wait: Duration,
}

/// Says what was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The worktree, and its pin.
    Worktree {
        /// The pin.
        pin: Pin,
        /// How many files went with it that git ignores; not counted where all was to be discarded.
        ignored: Option<u64>,
    },
    /// The pin alone: the worktree was gone already, or was to stay.
    Pin(Pin),
}

/// Removes a worktree that was made by [`add`](super::add), or forgets its pin.
///
/// # Errors
/// With nothing changed: `not_found` where it is not pinned; `worktree_redirected` where it is not what was pinned;
/// `precondition_failed` where it was there before us (reason `not_ours`), where it is locked (`locked`), where something
/// of it cannot be removed (`kept`), and where it holds work (`dirty_worktree`, `unreachable_commits`,
/// `operation_in_progress`, `submodules`) that is not to be discarded; where a repository of somebody else lies in it
/// (`nested_repository`) that is not to be removed, or a part of its own (`gitdir_inside`); `bad_config`, reason
/// `state_in_worktree`; `other_lock` where a git works in it; `lock_timeout`, reason `worktrees_busy`; `git_failed`,
/// `io_failed`. After it was begun: `kept` where something is in the
/// way meanwhile; the next command on the repository goes on.
pub fn remove(git: &Git, pins: &Pins, asked: &Remove, tell: Tell<'_>, cancel: &Cancel) -> Result<Removed> {
    let unknown = || {
        Error::from(
            Refusal::new(Code::NotFound, "the worktree is not pinned")
                .name(shown(asked.worktree.as_os_str().as_bytes())),
        )
    };
    let common = match pins.find(&asked.worktree)? {
        Some(pin) => path_of(pin.common.path.as_bytes()),
        // Its making may have been cut off before it was pinned.
        None => match real_target(&asked.worktree) {
            Ok(target) => making(pins, &target)?.ok_or_else(unknown)?,
            Err(_) => return Err(unknown()),
        },
    };
    let _lock = pins.lock(&common, asked.wait, cancel)?;
    let left = recover(git, pins, &common, cancel)?;
    let pin = pins.find(&asked.worktree)?.ok_or_else(unknown)?;
    if asked.discard == Discard::PinOnly {
        pins.forget(&pin)?;
        return Ok(Removed::Pin(pin));
    }
    if let Some(why) = left.of(&pin.id) {
        return Err(why);
    }
    let found = pin::observe(&pin)?;
    if pin.is_gone(&found) {
        pins.forget(&pin)?;
        return Ok(Removed::Pin(pin));
    }
    pin.hold_against(&found)?;
    let ignored = refuse(git, pins, asked, &pin, cancel)?;
    let worktree = path_of(pin.worktree.path.as_bytes());
    let aside = worktree.with_file_name(own_name(&pin.id));
    let doing = Doing::Remove {
        pin: Box::new(pin.clone()),
        aside: pin::bytes(&aside)?,
    };
    doing.record(pins)?;
    tell(Milestone::Intended);
    if let Err(error) = put_aside(&pin, &worktree, &aside) {
        plain::remove_file(&doing.place(pins))?;
        return Err(error);
    }
    tell(Milestone::Aside);
    finish_removal(pins, &pin, &aside, tell)?;
    plain::remove_file(&doing.place(pins))?;
    tell(Milestone::Done);
    Ok(Removed::Worktree { pin, ignored })
}

/// Refuses whatever speaks against a removal, while nothing is changed yet; counts what git ignores.
fn refuse(git: &Git, pins: &Pins, asked: &Remove, pin: &Pin, cancel: &Cancel) -> Result<Option<u64>> {
    let Origin::Made { commit, tree } = &pin.origin else {
        let why = "the worktree was there before it was pinned: it is not ours to remove";
        let refusal = Refusal::new(Code::PreconditionFailed, why).reason("not_ours");
        return Err(refusal.name(pin.worktree.path.to_string()).into());
    };
    let worktree = path_of(pin.worktree.path.as_bytes());
    let gitdir = path_of(pin.gitdir.path.as_bytes());
    let lock = gitdir.join(LOCK);
    if lstat(&lock)?.is_some() {
        return Err(works_in(&lock));
    }
    if asked.locked == Locked::Refuse {
        refuse_locked(&gitdir)?;
    }
    pins.apart_from(&worktree)?;
    let (files, state) = refuse_stuck(&worktree, &gitdir)?;
    let found = Found {
        worktree: Some(worktree),
        gitdir,
        common: path_of(pin.common.path.as_bytes()),
    };
    let repo = Repository::viewed(git, found.clone(), None, cancel)?;
    refuse_others(&repo, &found, pins, asked.nested, tree)?;
    match asked.discard {
        Discard::Work | Discard::PinOnly => Ok(None),
        Discard::Refuse => {
            let held = Held {
                pin,
                commit,
                tree,
                files,
                state,
            };
            refuse_work(repo, &held).map(Some)
        }
    }
}

/// Refuses to remove what is not of this worktree, whatever is to be discarded: repositories of others, and what its own
/// repository is made of.
fn refuse_others(
    repo: &Repository,
    found: &Found,
    pins: &Pins,
    nested: Nested,
    tree: &ObjectId,
) -> Result<()> {
    let worktree = found.worktree.clone().unwrap_or_default();
    match refuse_others_but(repo, found, pins, &worktree, ".git", nested, None) {
        Err(error) if error.code() == Code::PreconditionFailed => {
            // What looks like a repository may be files of the tree.
            let hint = Objects::hint(repo.git(), &repo.place, tree, repo.cancel());
            let listing = repo.read_listing(tree, hint, Blobs::Unasked).map_err(|_| error)?;
            refuse_others_but(repo, found, pins, &worktree, ".git", nested, Some(&listing))?;
        }
        seen => seen?,
    }
    refuse_others_but(repo, found, pins, &found.gitdir, "modules", nested, None)
}

/// Refuses it below one directory, of which all goes.
fn refuse_others_but(
    repo: &Repository,
    found: &Found,
    pins: &Pins,
    top: &Path,
    own: &str,
    nested: Nested,
    tree: Option<&Listing>,
) -> Result<()> {
    let dir = worktree::open_dir(&found.gitdir)?;
    let at = Checked {
        identity: Identity::Pinned,
        uid: worktree::stat(&dir, &found.gitdir)?.st_uid,
        worktree: top.to_owned(),
        gitdir: found.gitdir.clone(),
        root: worktree::open_dir(top)?,
        dir,
    };
    let whole = Whole {
        ground: &Ground::of(&at, repo, Some(pins))?,
        nested,
        modules: &found.gitdir.join("modules"),
        own: own.as_bytes(),
        tree,
    };
    whole.refuse().map_err(|error| named_below(error, top))
}

/// Names whole paths in place of those below a directory.
fn named_below(error: Error, top: &Path) -> Error {
    if error.code() != Code::PreconditionFailed {
        return error;
    }
    let mut refusal = error.into_refusal();
    let top = shown(top.as_os_str().as_bytes());
    if refusal.reason.as_deref() == Some("residue_kept") {
        refusal.reason = Some("kept".into());
    }
    for name in &mut refusal.names {
        *name = format!("{top}/{name}");
    }
    refusal.into()
}

/// Refuses a worktree that a git works in.
pub(super) fn works_in(lock: &Path) -> Error {
    Refusal::new(Code::OtherLock, "a git works in the worktree, or left its lock")
        .name(shown(lock.as_os_str().as_bytes()))
        .into()
}

/// Takes the worktree's name away; what turns out to be another directory gets it back.
fn put_aside(pin: &Pin, worktree: &Path, aside: &Path) -> Result<()> {
    rename(worktree, aside)?;
    if spot_at(aside)?.is_some_and(|(_, now)| same_directory(&pin.worktree, &now)) {
        return Ok(());
    }
    rename(aside, worktree)?;
    Err(worktree::redirected(
        "the worktree was exchanged meanwhile",
        worktree,
    ))
}

/// Refuses, while nothing is lost yet, what could not be removed as a whole; gives what lies in the git directory.
fn refuse_stuck(worktree: &Path, gitdir: &Path) -> Result<(Looked, Looked)> {
    let seen = (look(worktree, Entries::Passed)?, look(gitdir, Entries::Listed)?);
    let stuck: Vec<String> = seen.0.stuck.iter().chain(&seen.1.stuck).cloned().collect();
    if stuck.is_empty() {
        return Ok(seen);
    }
    let why = "something in the worktree or in its git directory cannot be removed";
    Err(Refusal::new(Code::PreconditionFailed, why)
        .reason("kept")
        .names(stuck)
        .into())
}

/// Refuses a worktree that a person locked, as git does.
fn refuse_locked(gitdir: &Path) -> Result<()> {
    let place = gitdir.join("locked");
    if lstat(&place)?.is_none() {
        return Ok(());
    }
    let why = "the worktree is locked (git worktree lock)";
    let refusal = Refusal::new(Code::PreconditionFailed, why).reason("locked");
    Err(refusal.name(shown(place.as_os_str().as_bytes())).into())
}
