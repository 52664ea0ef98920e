//! Linked worktrees that are made and removed by us: under the lock of their repository, and taken up again wherever
//! a former process was killed.
//!
//! What is to be done is recorded before it is begun. A worktree is built under a name that nobody else uses and gets
//! its own only when it is whole; removed, it loses its name first. So whatever lies under such a name is ours, and
//! nothing else is ever touched.

use super::pin::{self, Pins, open_real, spot_at};
use super::repository::Repository;
use super::restore::{RestoreOptions, restore};
use super::worktree::{self, Target, lstat, path_of};
use super::{Call, Git};
use crate::error::{Error, Result};
use crate::plain;
use crate::process::Cancel;
use crate::volume::reaper::remove_tree;
use rustix::fs::{AtFlags, RenameFlags, renameat, renameat_with, unlinkat};
use rustix::io::Errno;
use semel_core::git_tree::ObjectId;
use semel_core::path::shown;
use semel_core::pin::{Origin, PathBytes, Pin, PinId, Spot};
use semel_core::{Code, Refusal};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How many paths are named that would be lost.
const NAMED: usize = 20;

/// Names what has just been done; a crash test ends the process there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// What is to be done is recorded.
    Intended,
    /// Git made the worktree, without files, under its first name.
    Built,
    /// Its files are those of the tree.
    Restored,
    /// What was built is recorded by its identity.
    Identified,
    /// Its git directory points at the name that it will have.
    Pointed,
    /// It has its name.
    Placed,
    /// Its pin is kept.
    Pinned,
    /// A worktree that is removed lost its name.
    Aside,
    /// Its git directory is gone.
    GitDirGone,
    /// Its files are gone.
    FilesGone,
    /// Its pin is forgotten.
    Forgotten,
    /// The record of what was to be done is gone.
    Done,
}

/// Hears of each point.
pub type Tell<'a> = &'a dyn Fn(Point);

/// Says what worktree is to be made.
#[derive(Clone, Debug)]
pub struct Add {
    /// The repository, by any of its worktrees or as a bare one.
    pub repository: PathBuf,
    /// Where the worktree will be; nothing may be there.
    pub worktree: PathBuf,
    /// The commit that HEAD is detached at, by its full id.
    pub commit: String,
    /// The tree that its files are, by its full id; `None`: the commit's own.
    pub tree: Option<String>,
    /// How long locks are waited for.
    pub wait: Duration,
}

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

/// Is what was begun and is not ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "doing", rename_all = "snake_case", deny_unknown_fields)]
enum Doing {
    Add {
        id: PinId,
        common: Spot,
        /// Where it will be.
        target: PathBytes,
        /// Where it is built.
        building: PathBytes,
        /// What was built there, once it is whole.
        built: Option<Spot>,
    },
    Remove {
        pin: Box<Pin>,
        /// Where it lies until it is freed.
        aside: PathBytes,
    },
}

impl Doing {
    fn id(&self) -> &PinId {
        match self {
            Self::Add { id, .. } => id,
            Self::Remove { pin, .. } => &pin.id,
        }
    }

    fn common(&self) -> &Spot {
        match self {
            Self::Add { common, .. } => common,
            Self::Remove { pin, .. } => &pin.common,
        }
    }

    fn place(&self, pins: &Pins) -> PathBuf {
        pins.dir.join(format!("doing-{}.json", self.id()))
    }

    fn record(&self, pins: &Pins) -> Result<()> {
        let text = serde_json::to_vec(self)
            .map_err(|e| Refusal::new(Code::Internal, format!("what is begun has no JSON form: {e}")))?;
        plain::write_file(&self.place(pins), &text)
    }
}

/// The name that nobody else uses: of the worktree while it is no whole one, and of its git directory.
fn own_name(id: &PinId) -> String {
    format!("semel-{id}")
}

/// Ends or takes back what former processes began in a repository; to be called under its lock.
///
/// # Errors
/// `unknown_state` where a record cannot be read; `precondition_failed`, reason `kept`, where something of ours cannot
/// be removed; `io_failed`.
pub(super) fn recover(pins: &Pins, common: &Path) -> Result<()> {
    for listed in plain::list_files(&pins.dir)? {
        if !(listed.name.starts_with("doing-") && listed.name.ends_with(".json")) {
            continue;
        }
        let place = pins.dir.join(&listed.name);
        let bytes = plain::read_file(&place, 64 << 10)?;
        let doing: Doing = serde_json::from_slice(&bytes).map_err(|e| {
            Refusal::new(Code::UnknownState, format!("what was begun cannot be read: {e}"))
                .name(place.display().to_string())
        })?;
        if doing.common().path.as_bytes() == common.as_os_str().as_bytes() {
            settle(pins, doing)?;
        }
    }
    Ok(())
}

/// Ends or takes back one of them.
fn settle(pins: &Pins, doing: Doing) -> Result<()> {
    let place = doing.place(pins);
    match doing {
        Doing::Add {
            id,
            common,
            target,
            building,
            built,
        } => {
            let target = path_of(target.as_bytes());
            let pinned = pins.read(&target)?.is_some_and(|pin| pin.id == id);
            if !pinned {
                let building = path_of(building.as_bytes());
                if let (Some(built), Some((_, now))) = (&built, spot_at(&target)?)
                    && same_directory(built, &now)
                {
                    rename(&target, &building)?;
                }
                free(&building)?;
                free_gitdir(&common, &id)?;
            }
        }
        Doing::Remove { pin, aside } => {
            let aside = path_of(aside.as_bytes());
            let put_aside = spot_at(&aside)?.is_some_and(|(_, now)| same_directory(&pin.worktree, &now));
            let still_there = spot_at(&path_of(pin.worktree.path.as_bytes()))?
                .is_some_and(|(_, now)| same_directory(&pin.worktree, &now));
            if put_aside || !still_there {
                finish_removal(pins, &pin, &aside, &|_| {})?;
            }
        }
    }
    plain::remove_file(&place)
}

fn same_directory(one: &Spot, other: &Spot) -> bool {
    (one.device, one.inode, &one.file) == (other.device, other.inode, &other.file)
}

fn parent_and_name(path: &Path) -> Result<(OwnedFd, &OsStr)> {
    let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(|| {
        Refusal::new(Code::BadInput, "a worktree has a directory and a name").name(path.display().to_string())
    })?;
    let dir = open_real(parent)?.ok_or_else(|| {
        Refusal::new(Code::NotFound, "there is no directory for the worktree")
            .name(parent.display().to_string())
    })?;
    Ok((dir, name))
}

/// Renames within one directory, over nothing.
fn rename(from: &Path, to: &Path) -> Result<()> {
    let (dir, from_name) = parent_and_name(from)?;
    let to_name = to.file_name().unwrap_or_default();
    renameat_with(&dir, from_name, &dir, to_name, RenameFlags::NOREPLACE).map_err(|errno| match errno {
        Errno::EXIST => occupied(to),
        _ => Error::io("rename", from, errno),
    })?;
    rustix::fs::fsync(&dir).map_err(|e| Error::io("sync the directory of", to, e))
}

fn occupied(path: &Path) -> Error {
    Refusal::new(Code::PreconditionFailed, "something is there already")
        .reason("exists")
        .name(shown(path.as_os_str().as_bytes()))
        .into()
}

/// Frees a directory of ours, if it is there.
fn free(path: &Path) -> Result<()> {
    let Some(parent) = path.parent().map(open_real).transpose()?.flatten() else {
        return Ok(());
    };
    free_in(&parent, path.file_name().unwrap_or_default().as_bytes())
}

fn free_in(parent: &OwnedFd, name: &[u8]) -> Result<()> {
    let reaped = remove_tree(parent.as_fd(), name)?;
    if reaped.kept.is_empty() {
        return Ok(());
    }
    let names = reaped
        .kept
        .into_iter()
        .map(|kept| format!("{}: {}", kept.path, kept.why));
    Err(
        Refusal::new(Code::PreconditionFailed, "some entries cannot be removed")
            .reason("kept")
            .names(names.take(NAMED).collect::<Vec<_>>())
            .into(),
    )
}

/// Frees the git directory that bears our own name.
fn free_gitdir(common: &Spot, id: &PinId) -> Result<()> {
    let path = path_of(common.path.as_bytes());
    let Some((dir, now)) = spot_at(&path)? else {
        return Ok(());
    };
    if !same_directory(common, &now) {
        return Err(worktree::redirected(
            "the repository was exchanged meanwhile",
            &path,
        ));
    }
    let Some(worktrees) = open_real(&path.join("worktrees"))? else {
        return Ok(());
    };
    free_in(&worktrees, own_name(id).as_bytes())?;
    // As git does: the directory goes with the last of them.
    unlinkat(&dir, "worktrees", AtFlags::REMOVEDIR).ok();
    Ok(())
}

/// Makes a linked worktree, its files those of a tree, byte for byte, and pins it.
///
/// # Errors
/// With nothing left behind: `precondition_failed`, reason `exists`, where something is there; `bad_input`,
/// `not_found`, `object_missing`; `lock_timeout`, reason `worktrees_busy`; those of [`restore`]; `git_failed`,
/// `io_failed`. What cannot be taken back at once is taken back by the next command on the repository.
///
/// # Durability
/// When this returns, the pin is on the disk; the files of the worktree are not synced.
pub fn add(git: &Git, pins: &Pins, asked: &Add, tell: Tell<'_>, cancel: &Cancel) -> Result<Pin> {
    let repo = Repository::open(git, &asked.repository, cancel)?;
    let common = repo.common_dir().to_owned();
    let target = real_target(&asked.worktree)?;
    let commit = repo.parse_id(&asked.commit)?;
    let own_tree = repo.read_commit(&commit)?.tree;
    let tree = asked
        .tree
        .as_deref()
        .map(|tree| repo.parse_id(tree))
        .transpose()?;
    let tree = tree.unwrap_or(own_tree);
    let lock = pins.lock(&common, asked.wait, cancel)?;
    recover(pins, &common)?;
    if lstat(&target)?.is_some() {
        return Err(occupied(&target));
    }
    let (_, common_spot) =
        spot_at(&common)?.ok_or_else(|| worktree::redirected("the repository is not there", &common))?;
    let id = pin::fresh_id()?;
    let building = target.with_file_name(own_name(&id));
    let mut doing = Doing::Add {
        id: id.clone(),
        common: common_spot,
        target: pin::bytes(&target)?,
        building: pin::bytes(&building)?,
        built: None,
    };
    doing.record(pins)?;
    tell(Point::Intended);
    let making = Making {
        git,
        pins,
        repo: &repo,
        target: &target,
        building: &building,
        origin: Origin::Made { commit, tree },
        wait: asked.wait,
        lock: Arc::new(lock.handle()?),
        tell,
        cancel,
    };
    match making.run(id, &mut doing) {
        Ok(pin) => {
            plain::remove_file(&doing.place(pins))?;
            tell(Point::Done);
            Ok(pin)
        }
        Err(error) => {
            // The first error is the one to tell; what stays is taken back by the next command.
            drop(settle(pins, doing));
            Err(error)
        }
    }
}

/// Gives the real path of a worktree that is to be made.
fn real_target(path: &Path) -> Result<PathBuf> {
    let given = std::path::absolute(path).map_err(|e| Error::io("resolve", path, e))?;
    let (parent, name) = given.parent().zip(given.file_name()).ok_or_else(|| {
        Refusal::new(Code::BadInput, "a worktree has a directory and a name")
            .name(given.display().to_string())
    })?;
    let parent = std::fs::canonicalize(parent).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            Refusal::new(Code::NotFound, "there is no directory for the worktree")
                .name(parent.display().to_string())
                .into()
        }
        _ => Error::io("resolve", parent, e),
    })?;
    Ok(parent.join(name))
}

struct Making<'a> {
    git: &'a Git,
    pins: &'a Pins,
    repo: &'a Repository,
    target: &'a Path,
    building: &'a Path,
    origin: Origin,
    wait: Duration,
    /// The lock of the repository: git has it, too, so that it stays taken while an orphan lives.
    lock: Arc<OwnedFd>,
    tell: Tell<'a>,
    cancel: &'a Cancel,
}

impl Making<'_> {
    fn run(self, id: PinId, doing: &mut Doing) -> Result<Pin> {
        let Origin::Made { commit, tree } = &self.origin else {
            return Err(Refusal::new(Code::Internal, "what is made was not found").into());
        };
        self.build(commit)?;
        (self.tell)(Point::Built);
        let options = RestoreOptions {
            wait: self.wait,
            ..RestoreOptions::default()
        };
        restore(self.git, self.building, &tree.to_string(), options, self.cancel)
            .map_err(|failed| failed.error)?;
        (self.tell)(Point::Restored);
        if let Doing::Add { built, .. } = doing {
            *built = spot_at(self.building)?.map(|(_, spot)| spot);
        }
        doing.record(self.pins)?;
        (self.tell)(Point::Identified);
        self.point(&id)?;
        (self.tell)(Point::Pointed);
        rename(self.building, self.target)?;
        (self.tell)(Point::Placed);
        let pin = pin::take(self.git, self.target, id, self.origin, self.cancel)?;
        self.pins.keep(&pin)?;
        (self.tell)(Point::Pinned);
        Ok(pin)
    }

    /// Has git make a worktree without files, under a name that nobody else uses.
    fn build(&self, commit: &ObjectId) -> Result<()> {
        let mut place = self.repo.place.clone();
        place.gitdir.clone_from(&place.common);
        // Absolute pointers: every git can read them.
        place
            .config
            .push(("worktree.useRelativePaths".into(), "false".into()));
        let call = Call::new(
            ["worktree", "add", "--quiet", "--detach", "--no-checkout"],
            self.cancel,
        );
        let call = Call {
            args: call
                .args
                .into_iter()
                .chain([self.building.as_os_str().to_owned(), commit.to_string().into()])
                .collect(),
            keep: vec![Arc::clone(&self.lock)],
            ..call
        };
        self.git.run(&place, call).map(drop)
    }

    /// Has the git directory point at the place where the worktree is going to be.
    fn point(&self, id: &PinId) -> Result<()> {
        let gitdir = self.repo.common_dir().join("worktrees").join(own_name(id));
        let found = worktree::find(self.building)?;
        if found.gitdir != gitdir {
            return Err(worktree::redirected(
                "git made another git directory than it was asked for",
                &found.gitdir,
            ));
        }
        let dir = worktree::open_dir(&gitdir)?;
        let mut text = self.target.join(".git").into_os_string();
        text.push("\n");
        let fresh = gitdir.join("gitdir.semel");
        plain::write_file(&fresh, text.as_bytes())?;
        renameat(&dir, "gitdir.semel", &dir, "gitdir")
            .map_err(|e| Error::io("replace", gitdir.join("gitdir"), e))
    }
}

/// Removes a worktree that was made by [`add`], or forgets its pin.
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
    let lock = path_of(pin.gitdir.path.as_bytes()).join(super::lock::LOCK);
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
    tell(Point::Intended);
    if let Err(error) = put_aside(&pin, &worktree, &aside) {
        plain::remove_file(&doing.place(pins))?;
        return Err(error);
    }
    tell(Point::Aside);
    finish_removal(pins, &pin, &aside, tell)?;
    plain::remove_file(&doing.place(pins))?;
    tell(Point::Done);
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

/// Frees what a removal put aside, and forgets the pin.
fn finish_removal(pins: &Pins, pin: &Pin, aside: &Path, tell: Tell<'_>) -> Result<()> {
    free_gitdir(&pin.common, &pin.id)?;
    tell(Point::GitDirGone);
    free(aside)?;
    tell(Point::FilesGone);
    pins.forget(pin)?;
    tell(Point::Forgotten);
    Ok(())
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
    let index = pins.dir.join(format!("index-{}", pin.id));
    repo.place.index = Some(index.clone());
    let changed = changed_against(&repo, "HEAD^{tree}").and_then(|changed| match changed.is_empty() {
        true => Ok(changed),
        false => changed_against(&repo, &tree.to_string()),
    });
    for suffix in ["", ".lock"] {
        let mut place = index.clone().into_os_string();
        place.push(suffix);
        plain::remove_file(Path::new(&place))?;
    }
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
