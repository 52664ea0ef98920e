//! What is never removed or written over, wherever it lies and by whatever name: the repository of a worktree, with all
//! parts of it that are elsewhere by links, and the state root. It changes nothing.

use super::memo::{Before, Look, Shelf, provable};
use super::pin::Pins;
use super::place::inode_of;
use super::repository::Repository;
use super::worktree::{self, Checked, path_of};
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode as FileMode, OFlags, openat, statat};
use rustix::io::Errno;
use semel_core::{Code, Refusal, RelPath};
use std::cell::OnceCell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directories in a directory that may hold links to parts of it, as it may itself.
struct Parts {
    /// What holds data.
    held: &'static [&'static str],
    /// What is set for a repository, often by links to files that are checked out.
    set: &'static [&'static str],
}

const OF_GITDIR: Parts = Parts {
    held: &[
        "refs",
        "refs/heads",
        "refs/remotes",
        "refs/tags",
        "reftable",
        "logs",
        "logs/refs",
        "logs/refs/heads",
        "modules",
        "worktrees",
    ],
    set: &["info", "hooks"],
};
const OF_OBJECTS: Parts = Parts {
    held: &["pack", "info"],
    set: &[],
};
const OF_STATE: Parts = Parts { held: &[], set: &[] };

/// Says whose something is that is never removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The repository's.
    Repository,
    /// The repository's, and not its data: hooks and what is in `info`. The tree's own may be written there.
    Settings,
    /// Ours.
    State,
}

/// Something that is never removed.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// What it is, by device and number.
    pub(super) inode: (u64, u64),
    /// Where it lies, links resolved.
    pub(super) path: PathBuf,
    /// Whose it is.
    pub(super) whose: Whose,
}

impl Own {
    /// Refuses what would remove it or write over it, at a path of the worktree.
    pub(super) fn refusal(&self, path: &RelPath) -> Error {
        let refusal = match self.whose {
            Whose::Repository | Whose::Settings => {
                let why = "the worktree's own repository lies in what would be written or removed";
                Refusal::new(Code::PreconditionFailed, why).reason("gitdir_inside")
            }
            Whose::State => {
                let why = "the state root lies in what would be written or removed";
                Refusal::new(Code::BadConfig, why).reason("state_in_worktree")
            }
        };
        refusal.name(path.to_string()).into()
    }
}

/// Lists what is never removed: git directory, common directory and every directory of objects, what the links in them and in
/// their parts lead to, and the state root that keeps the pins.
///
/// # Errors
/// `io_failed` where a directory of the repository cannot be looked at.
///
/// # Limits
/// Links deeper than the directories that git itself makes are not followed.
pub(super) fn own(at: &Checked, repo: &Repository, pins: Option<&Pins>) -> Result<Vec<Own>> {
    let inode = inode_of(&at.dir).map_err(|e| Error::io("look at", &at.gitdir, e))?;
    let mut found = Finding {
        own: Vec::new(),
        device: inode.0,
        gitdir: &at.gitdir,
        provable: OnceCell::new(),
    };
    found.add(inode, at.gitdir.clone(), Whose::Repository);
    // Those of a linked worktree's git directory go with it.
    let main = repo.common_dir() == at.gitdir;
    let of_gitdir = if main {
        Directories::Kept
    } else {
        Directories::Passed
    };
    found.parts(
        at.dir.as_fd(),
        &at.gitdir,
        &OF_GITDIR,
        (Whose::Repository, of_gitdir),
    )?;
    for (path, parts) in core::iter::once((repo.common_dir().to_owned(), &OF_GITDIR))
        .chain(repo.object_dirs()?.into_iter().map(|path| (path, &OF_OBJECTS)))
    {
        if path == at.gitdir {
            continue;
        }
        let dir = worktree::open_dir(&path)?;
        found.whole(&path, &dir, Whose::Repository)?;
        found.parts(dir.as_fd(), &path, parts, (Whose::Repository, Directories::Kept))?;
    }
    // One that is not there holds nothing yet.
    if let Some(state) = pins.and_then(Pins::state)
        && let Some(dir) = opened(CWD, state).map_err(|e| Error::io("open", state, e))?
    {
        let path = std::fs::canonicalize(state).unwrap_or_else(|_| state.to_owned());
        found.whole(&path, &dir, Whose::State)?;
        found.parts(dir.as_fd(), &path, &OF_STATE, (Whose::State, Directories::Kept))?;
    }
    Ok(found.own)
}

/// Says whether the directories that are looked at are kept themselves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Directories {
    Kept,
    Passed,
}

struct Finding<'a> {
    own: Vec<Own>,
    /// The filesystem of the git directory: what is elsewhere is listed every time.
    device: u64,
    gitdir: &'a Path,
    /// Whether looks prove anything there.
    provable: OnceCell<bool>,
}

impl Finding<'_> {
    fn whole(&mut self, path: &Path, dir: &OwnedFd, whose: Whose) -> Result<()> {
        let inode = inode_of(dir).map_err(|e| Error::io("look at", path, e))?;
        self.add(inode, path.to_owned(), whose);
        Ok(())
    }

    fn add(&mut self, inode: (u64, u64), path: PathBuf, whose: Whose) {
        if !self
            .own
            .iter()
            .any(|own| own.inode == inode && own.whose == whose)
        {
            self.own.push(Own { inode, path, whose });
        }
    }

    /// Adds what the links in a directory, and in some of those in it, lead to; and these.
    fn parts(
        &mut self,
        dir: impl AsFd,
        path: &Path,
        parts: &Parts,
        (whose, directories): (Whose, Directories),
    ) -> Result<()> {
        self.links(dir.as_fd(), path, |name| {
            let set = parts.set.iter().any(|part| part.as_bytes() == name);
            if set { Whose::Settings } else { whose }
        })?;
        let held = parts.held.iter().map(|part| (part, whose));
        let set = parts.set.iter().map(|part| (part, Whose::Settings));
        for (part, whose) in held.chain(set) {
            let path = path.join(part);
            // The part itself, too: what is mounted on it lies elsewhere, under the same number.
            match Look::at(dir.as_fd(), *part) {
                Ok(None) => continue,
                Ok(Some(look)) => {
                    if directories == Directories::Kept {
                        self.add(look.inode(), path.clone(), whose);
                    }
                    if LINKS
                        .get(&(path.clone(), look))
                        .is_some_and(|names| names.is_empty())
                    {
                        continue;
                    }
                }
                // Hooks that nobody may look at are of no use either.
                Err(Errno::ACCESS) if whose == Whose::Settings => continue,
                Err(e) => return Err(Error::io("look at", path, e)),
            }
            let inner = match opened(dir.as_fd(), Path::new(part)) {
                Ok(inner) => inner,
                Err(Errno::ACCESS) if whose == Whose::Settings => None,
                Err(e) => return Err(Error::io("open", path, e)),
            };
            if let Some(inner) = inner {
                self.links(inner, &path, |_| whose)?;
            }
        }
        Ok(())
    }

    fn links(&mut self, dir: impl AsFd, path: &Path, whose: impl Fn(&[u8]) -> Whose) -> Result<()> {
        for name in self.links_in(dir.as_fd(), path)?.iter() {
            // What it leads to may be gone, or closed to us: then we cannot remove it either.
            let Ok(stat) = statat(dir.as_fd(), name.as_slice(), AtFlags::empty()) else {
                continue;
            };
            let place = path.join(path_of(name));
            let place = std::fs::canonicalize(&place).unwrap_or(place);
            self.add((stat.st_dev, stat.st_ino), place, whose(name));
        }
        Ok(())
    }

    /// Gives the names of the links in a directory.
    fn links_in(&self, dir: impl AsFd, path: &Path) -> Result<Arc<[Vec<u8>]>> {
        let before = Before::now();
        let look = Look::at(dir.as_fd(), ".").ok().flatten();
        let key = look.map(|look| (path.to_owned(), look));
        if let Some(known) = key.as_ref().and_then(|key| LINKS.get(key)) {
            return Ok(known);
        }
        let listed = list_links(dir).map_err(|e| Error::io("list", path, e))?;
        let found: Arc<[Vec<u8>]> = listed.into();
        let keeps = |look: &Look| {
            look.settled(before)
                && look.inode().0 == self.device
                && *self.provable.get_or_init(|| provable(self.gitdir))
        };
        if let Some(key) = key.filter(|(_, look)| keeps(look)) {
            let names: usize = found.iter().map(|name| name.len() + 32).sum();
            let weight = key.0.as_os_str().len() + names + 128;
            LINKS.put(key, Arc::clone(&found), weight);
        }
        Ok(found)
    }
}

fn opened(dir: impl AsFd, name: &Path) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(dir, name, flags, FileMode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The names of the links in a directory, as long as it looks as it did (see [`super::memo`]).
static LINKS: Shelf<(PathBuf, Look), Arc<[Vec<u8>]>> = Shelf::new(1 << 20);

fn list_links(dir: impl AsFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for entry in Dir::read_from(dir.as_fd())? {
        let entry = entry?;
        let name = entry.file_name();
        let link = match entry.file_type() {
            FileType::Symlink => true,
            FileType::Unknown => match statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::Symlink,
                Err(Errno::NOENT) => false,
                Err(e) => return Err(e),
            },
            _ => false,
        };
        if link {
            all.push(name.to_bytes().to_vec());
        }
    }
    Ok(all)
}
