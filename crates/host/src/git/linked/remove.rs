//! Removing worktrees of ours: nothing that is nowhere else, unless told; nothing that is not ours, ever.

use super::doing::{Doing, finish_removal, recover, rename, same_directory};
use super::{Milestone, Tell, own_name};
use crate::error::{Error, Result};
use crate::git::Git;
use crate::git::lock::LOCK;
use crate::git::pin::{self, Pins, spot_at};
use crate::git::repository::Repository;
use crate::git::worktree::{self, Target, lstat, path_of};
use crate::plain;
use crate::process::Cancel;
use semel_core::git_tree::ObjectId;
use semel_core::path::shown;
use semel_core::pin::{Origin, Pin};
use semel_core::{Code, Refusal};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many paths are named that would be lost.
const NAMED: usize = 20;

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

/// Says what worktree is to be removed.
#[derive(Clone, Debug)]
pub struct Remove {
    /// The worktree.
    pub worktree: PathBuf,
    /// What is done with its work.
    pub discard: Discard,
    /// How long locks are waited for.
    pub wait: Duration,
}

/// Says what was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The worktree, and its pin.
    Worktree(Pin),
    /// The pin alone: the worktree was gone already, or was to stay.
    Pin(Pin),
}

/// Removes a worktree that was made by [`add`](super::add), or forgets its pin.
///
/// # Errors
/// `not_found` where it is not pinned; `worktree_redirected` where it is not what was pinned; `precondition_failed`
/// where it was there before us (reason `not_ours`), and where it holds work (reasons `dirty_worktree`,
/// `unreachable_commits`) that is not to be discarded; `other_lock` where a git works in it; `lock_timeout`, reason
/// `worktrees_busy`; `git_failed`, `io_failed`.
pub fn remove(git: &Git, pins: &Pins, asked: &Remove, tell: Tell<'_>, cancel: &Cancel) -> Result<Removed> {
    let known = || {
        pins.find(&asked.worktree)?.ok_or_else(|| {
            Error::from(
                Refusal::new(Code::NotFound, "the worktree is not pinned")
                    .name(shown(asked.worktree.as_os_str().as_bytes())),
            )
        })
    };
    let common = path_of(known()?.common.path.as_bytes());
    let _lock = pins.lock(&common, asked.wait, cancel)?;
    recover(pins, &common)?;
    let pin = known()?;
    let found = pin::observe(&pin)?;
    if asked.discard == Discard::PinOnly || pin.is_gone(&found) {
        pins.forget(&pin)?;
        return Ok(Removed::Pin(pin));
    }
    pin.hold_against(&found)?;
    let Origin::Made { commit, tree } = &pin.origin else {
        let why = "the worktree was there before it was pinned: it is not ours to remove";
        let refusal = Refusal::new(Code::PreconditionFailed, why).reason("not_ours");
        return Err(refusal.name(pin.worktree.path.to_string()).into());
    };
    let lock = path_of(pin.gitdir.path.as_bytes()).join(LOCK);
    if lstat(&lock)?.is_some() {
        let why = "a git works in the worktree, or left its lock";
        return Err(Refusal::new(Code::OtherLock, why)
            .name(shown(lock.as_os_str().as_bytes()))
            .into());
    }
    if asked.discard == Discard::Refuse {
        refuse_work(git, pins, &pin, commit, tree, cancel)?;
    }
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
    Ok(Removed::Worktree(pin))
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

/// Refuses to remove what is nowhere else: files that no tree of ours holds, commits that no ref reaches.
///
/// The files are compared through an index of our own, made anew: flags and times in the worktree's index hide nothing.
/// What the ignore rules name does not count, as with git.
fn refuse_work(
    git: &Git,
    pins: &Pins,
    pin: &Pin,
    commit: &ObjectId,
    tree: &ObjectId,
    cancel: &Cancel,
) -> Result<()> {
    let target = Target::Pinned(Box::new(pin.clone()));
    let found = target.find()?;
    let mut repo = Repository::at(git, found.clone(), cancel)?;
    let at = target.check(&found, &repo)?;
    let made = commit.to_string();
    let reach = [
        "rev-list",
        "-n",
        "1",
        "HEAD",
        "--not",
        &made,
        "--branches",
        "--tags",
        "--remotes",
    ];
    let beyond = repo.run(repo.call(reach))?;
    let beyond = beyond.trim_ascii();
    if !beyond.is_empty() {
        let why = "the worktree holds commits that no branch or tag reaches";
        let refusal = Refusal::new(Code::PreconditionFailed, why).reason("unreachable_commits");
        return Err(refusal.name(shown(beyond)).into());
    }
    repo.place.worktree = Some(at.worktree.clone());
    repo.place.index = Some(pins.of_repository(pin.common.path.as_bytes(), "index"));
    let changed = changed_against(&repo, "HEAD^{tree}").and_then(|changed| match changed.is_empty() {
        true => Ok(changed),
        false => changed_against(&repo, &tree.to_string()),
    });
    pins.sweep(&found.common)?;
    let changed = changed?;
    if changed.is_empty() {
        return Ok(());
    }
    let why = "the worktree holds work that would be lost";
    let refusal = Refusal::new(Code::PreconditionFailed, why).reason("dirty_worktree");
    Err(refusal.names(changed).into())
}

/// Lists files that differ from a tree, and files that git neither tracks nor ignores.
fn changed_against(repo: &Repository, tree: &str) -> Result<Vec<String>> {
    repo.run(repo.call(["read-tree", tree]))?;
    let differ = [
        "diff",
        "--name-only",
        "-z",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--ignore-submodules=all",
    ];
    let mut names = repo.run(repo.call(differ))?;
    let others = ["ls-files", "-z", "--others", "--exclude-standard", "--directory"];
    names.extend(repo.run(repo.call(others))?);
    let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
    Ok(names.take(NAMED).map(shown).collect())
}
