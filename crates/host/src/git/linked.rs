//! Linked worktrees that are made and removed by us: under the lock of their repository, and taken up again wherever
//! a former process was killed.
//!
//! What is to be done is recorded before it is begun. A worktree is built under a name that nobody else uses and gets
//! its own only when it is whole; removed, it loses its name first. So whatever lies under such a name is ours, and
//! nothing else is ever touched.

mod doing;
mod files;
mod look;
mod reach;
mod refs;
mod reftable;
mod remove;
mod work;

pub use doing::{Begun, Unfinished};
pub(super) use doing::{recover, unfinished};
pub use remove::{Discard, Locked, Remove, Removed, remove};

use super::Git;
use super::pin::{self, Pins, spot_at};
use super::repository::Repository;
use super::restore::{RestoreOptions, restore};
use super::worktree::{self, lstat};
use crate::error::{Error, Result};
use crate::plain;
use crate::process::Cancel;
use doing::{Doing, occupied, rename, take_back};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;
use semel_core::git_tree::ObjectId;
use semel_core::pin::{Origin, Pin, PinId};
use semel_core::{Code, Refusal};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Names what has just been done; a crash test ends the process there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// What is to be done is recorded.
    Intended,
    /// The worktree is made, without files, under its first name.
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
pub type Tell<'a> = &'a dyn Fn(Milestone);

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

/// The name that nobody else uses: of the worktree while it is no whole one, and of its git directory.
fn own_name(id: &PinId) -> String {
    format!("semel-{id}")
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
    let repo = Repository::objects_of(git, &asked.repository, cancel)?;
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
    let _lock = pins.lock(&common, asked.wait, cancel)?;
    recover(git, pins, &common, cancel)?;
    if lstat(&target)?.is_some() {
        return Err(occupied(&target));
    }
    let (_, common_spot) =
        spot_at(&common)?.ok_or_else(|| worktree::redirected("the repository is not there", &common))?;
    let id = pin::fresh_id()?;
    let building = target.with_file_name(own_name(&id));
    let mut doing = Doing::Add {
        id: id.clone(),
        common: Box::new(common_spot),
        target: pin::bytes(&target)?,
        building: pin::bytes(&building)?,
        built: None,
        origin: Box::new(Origin::Made { commit, tree }),
    };
    doing.record(pins)?;
    tell(Milestone::Intended);
    let making = Making {
        git,
        pins,
        repo: &repo,
        target: &target,
        building: &building,
        origin: Origin::Made { commit, tree },
        wait: asked.wait,
        tell,
        cancel,
    };
    match making.run(id, &mut doing) {
        Ok(pin) => {
            plain::remove_file(&doing.place(pins))?;
            tell(Milestone::Done);
            Ok(pin)
        }
        Err(error) => {
            // The first error is the one to tell; what stays is taken back by the next command.
            drop(take_back(pins, &doing));
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
    tell: Tell<'a>,
    cancel: &'a Cancel,
}

impl Making<'_> {
    fn run(self, id: PinId, doing: &mut Doing) -> Result<Pin> {
        let Origin::Made { commit, tree } = &self.origin else {
            return Err(Refusal::new(Code::Internal, "what is made was not found").into());
        };
        self.build(commit)?;
        (self.tell)(Milestone::Built);
        let options = RestoreOptions {
            wait: self.wait,
            ..RestoreOptions::default()
        };
        restore(self.git, self.building, &tree.to_string(), options, self.cancel)
            .map_err(|failed| failed.error)?;
        (self.tell)(Milestone::Restored);
        if let Doing::Add { built, .. } = doing {
            *built = spot_at(self.building)?.map(|(_, spot)| spot);
        }
        doing.record(self.pins)?;
        (self.tell)(Milestone::Identified);
        self.point(&id)?;
        (self.tell)(Milestone::Pointed);
        rename(self.building, self.target)?;
        (self.tell)(Milestone::Placed);
        let pin = pin::take(self.git, self.target, id, self.origin, self.cancel)?;
        self.pins.keep(&pin)?;
        (self.tell)(Milestone::Pinned);
        Ok(pin)
    }

    /// Makes a worktree without files, under a name that nobody else uses.
    ///
    /// Nothing but a few files of ours is needed, and no git runs in the repository, which would ask its hooks. Where refs
    /// are kept in tables, a git in a directory of ours makes the one that HEAD takes.
    fn build(&self, commit: &ObjectId) -> Result<()> {
        match self.repo.config().get("extensions.refstorage") {
            None | Some(b"files") => self.build_files(format!("{commit}\n").as_bytes(), &[]),
            Some(b"reftable") => {
                let tables = reftable::head_alone(self.repo, commit)?;
                self.build_files(reftable::STUB, &tables)
            }
            Some(other) => Err(refs::unknown_storage(other)),
        }
    }

    fn build_files(&self, head: &[u8], tables: &[(String, Vec<u8>)]) -> Result<()> {
        let worktrees = self.repo.common_dir().join("worktrees");
        let name = self.building.file_name().unwrap_or_default();
        let gitdir = worktrees.join(name);
        let made =
            |place: &Path, done: rustix::io::Result<()>| done.map_err(|e| Error::io("create", place, e));
        match rustix::fs::mkdir(&worktrees, Mode::from_raw_mode(0o777)) {
            Err(Errno::EXIST) => {}
            done => made(&worktrees, done)?,
        }
        let dir = pin::open_real(&worktrees)?
            .ok_or_else(|| worktree::redirected("not a directory of the repository", &worktrees))?;
        made(&gitdir, mkdirat(&dir, name, Mode::from_raw_mode(0o777)))?;
        let dir = openat(&dir, name, DIRECTORY, Mode::empty()).map_err(|e| Error::io("open", &gitdir, e))?;
        // As long as it says so, no git takes it for one whose files are gone.
        write_new(&dir, "locked", &gitdir, b"initializing\n")?;
        write_new(&dir, "HEAD", &gitdir, head)?;
        if !tables.is_empty() {
            for name in ["refs", "reftable"] {
                made(&gitdir, mkdirat(&dir, name, Mode::from_raw_mode(0o777)))?;
            }
            write_new(
                &dir,
                "refs/heads",
                &gitdir,
                b"this repository uses the reftable format\n",
            )?;
        }
        for (name, text) in tables {
            write_new(&dir, &format!("reftable/{name}"), &gitdir, text)?;
        }
        write_new(&dir, "commondir", &gitdir, b"../..\n")?;
        let back = self.building.join(".git");
        write_new(
            &dir,
            "gitdir",
            &gitdir,
            &[back.as_os_str().as_bytes(), b"\n"].concat(),
        )?;
        made(
            self.building,
            rustix::fs::mkdir(self.building, Mode::from_raw_mode(0o777)),
        )?;
        let root = worktree::open_dir(self.building)?;
        let pointer = [b"gitdir: ", gitdir.as_os_str().as_bytes(), b"\n"].concat();
        write_new(&root, ".git", self.building, &pointer)?;
        unlinkat(&dir, "locked", AtFlags::empty()).map_err(|e| Error::io("remove", gitdir.join("locked"), e))
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

/// Writes a file that is not there yet.
fn write_new(dir: &OwnedFd, name: &str, shown: &Path, bytes: &[u8]) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let failed = |e: std::io::Error| Error::io("create", shown.join(name), e);
    let file = openat(dir, name, flags, Mode::from_raw_mode(0o666)).map_err(|e| failed(e.into()))?;
    std::fs::File::from(file).write_all(bytes).map_err(failed)
}
