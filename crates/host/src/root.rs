//! `Root`: the open handle on a generation's `tree/`, and the only way to a path beneath it.
//!
//! Every path is resolved from the handle, never from a string: what it finds is a parent handle and a last
//! name, on which the `*at` calls act. It decides nothing about what may be read or written; the one rule it
//! keeps is that a path stays inside, and [`check_target`] names what no call may change.

use crate::error::{Error, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use semel_core::{Code, Refusal, RelPath, path::shown};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

const LINKS_FOLLOWED: usize = 40;
const TRIES: usize = 64;
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Says how the kernel is asked to stay beneath the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolver {
    /// `openat2` with `RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV`.
    Openat2,
    /// One component after the other with `O_NOFOLLOW`, comparing mount ids: for kernels without `openat2`.
    Walk,
}

/// Says what becomes of a symbolic link in the last place of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLink {
    /// It is followed, as long as it stays inside: reads and writes.
    Follow,
    /// It is itself what is meant: deletions and moves.
    Keep,
}

/// Says whether a call may change what belongs to git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GitInternals {
    /// Refused, unless a policy rule allows it.
    Refuse,
    /// A policy rule allows it.
    Allow,
}

/// Holds the handle on the directory that calls are confined to.
#[derive(Debug)]
pub struct Root {
    dir: OwnedFd,
    resolver: Resolver,
    mount: u64,
}

/// Names a place beneath a root by the handle on its directory and its last name.
#[derive(Debug)]
pub struct Place {
    /// The handle (`O_PATH`) on the directory that holds the entry.
    pub parent: OwnedFd,
    /// The last name.
    pub name: Vec<u8>,
    /// The path with every link followed.
    pub resolved: RelPath,
}

impl Root {
    /// Opens a directory as a root.
    ///
    /// # Errors
    /// `not_found` where there is no directory; `io_failed` where it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let dir =
            rustix::fs::openat(CWD, path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).map_err(|errno| {
                match errno {
                    Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Error::Refused(
                        Refusal::new(Code::NotFound, "there is no directory")
                            .name(path.display().to_string()),
                    ),
                    _ => Error::io("open", path, errno),
                }
            })?;
        Self::from_handle(dir)
    }

    /// Takes an open directory as a root.
    ///
    /// # Errors
    /// `io_failed` where it cannot be examined.
    pub fn from_handle(dir: OwnedFd) -> Result<Self> {
        let mount = mount_id(dir.as_fd()).map_err(|e| Error::io("examine", "the root", e))?;
        let probe = rustix::fs::openat2(&dir, ".", DIRECTORY, Mode::empty(), beneath());
        let resolver = match probe {
            Err(Errno::NOSYS | Errno::PERM) => Resolver::Walk,
            _ => Resolver::Openat2,
        };
        Ok(Self { dir, resolver, mount })
    }

    /// Chooses how paths are resolved.
    #[must_use]
    pub fn with_resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = resolver;
        self
    }

    /// Says how paths are resolved.
    #[must_use]
    pub const fn resolver(&self) -> Resolver {
        self.resolver
    }

    /// Gives the handle (`O_PATH`) on the root.
    #[must_use]
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Finds the directory and the last name of a path.
    ///
    /// # Errors
    /// `path_escapes_root` for the root itself, for links that leave, circle or are absolute, and for mounts;
    /// `not_found` with reason `parent_missing` or `parent_not_directory`; `io_failed` otherwise.
    pub fn place(&self, path: &RelPath, last: LastLink) -> Result<Place> {
        let Some((parent, name)) = path.split_last() else {
            let why = "the root itself is not the target of a call";
            return Err(escape("root", why, path).into());
        };
        // Without links the path is already the resolved one, and one system call finds its parent.
        if let Some(dir) = self.straight(&parent)? {
            let link = match last {
                LastLink::Keep => None,
                LastLink::Follow => self.link_at(dir.as_fd(), name, path)?,
            };
            if link.is_none() {
                return Ok(Place {
                    parent: dir,
                    name: name.to_vec(),
                    resolved: path.clone(),
                });
            }
        }
        let place = self.walk(path, last)?;
        place.ok_or_else(|| escape("root", "the path leads to the root itself", path).into())
    }

    /// Opens a directory beneath the root, or the root itself, following links that stay inside.
    ///
    /// # Errors
    /// As [`Root::place`]; `not_found` where there is no directory.
    pub fn directory(&self, path: &RelPath) -> Result<(OwnedFd, RelPath)> {
        if path.is_root() {
            let dir = self.step(self.handle(), b".", DIRECTORY);
            return Ok((dir.map_err(|e| failed(e, path))?, RelPath::root()));
        }
        let place = match self.place(path, LastLink::Follow) {
            Ok(place) => place,
            Err(Error::Refused(refusal)) if refusal.reason.as_deref() == Some("root") => {
                return self.directory(&RelPath::root());
            }
            Err(error) => return Err(error),
        };
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        let dir = self.step(place.parent.as_fd(), &place.name, flags);
        Ok((dir.map_err(|e| failed(e, path))?, place.resolved))
    }

    /// Opens one entry of a directory beneath the root: no link is followed, no mount entered.
    ///
    /// # Errors
    /// The system's answer; `EXDEV` for a mount.
    pub fn step(&self, dir: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match self.resolver {
            Resolver::Openat2 => retried(|| {
                let how = beneath();
                rustix::fs::openat2(dir, name, flags, Mode::empty(), how)
            }),
            Resolver::Walk => {
                let found = rustix::fs::openat(dir, name, flags, Mode::empty())?;
                if mount_id(found.as_fd())? == self.mount {
                    Ok(found)
                } else {
                    Err(Errno::XDEV)
                }
            }
        }
    }

    /// Opens a directory whose path holds no link; `None` where it holds one.
    fn straight(&self, path: &RelPath) -> Result<Option<OwnedFd>> {
        let bytes = if path.is_root() { b"." } else { path.as_bytes() };
        let found = match self.resolver {
            Resolver::Openat2 => retried(|| {
                let how = beneath() | ResolveFlags::NO_SYMLINKS;
                rustix::fs::openat2(&self.dir, bytes, DIRECTORY, Mode::empty(), how)
            }),
            Resolver::Walk if path.is_root() => self.step(self.handle(), b".", DIRECTORY),
            Resolver::Walk => return Ok(None),
        };
        match found {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::LOOP) => Ok(None),
            Err(errno) => Err(parent_failed(errno, path)),
        }
    }

    /// Reads the link at a name; `None` where there is no link.
    fn link_at(&self, dir: BorrowedFd<'_>, name: &[u8], path: &RelPath) -> Result<Option<Vec<u8>>> {
        match rustix::fs::readlinkat(dir, name, Vec::new()) {
            Ok(text) => Ok(Some(text.into_bytes())),
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(failed(errno, path)),
        }
    }

    /// Walks a path component by component, following links by their text and `..` by the handles passed; `None` where
    /// it leads to the root itself.
    ///
    /// The kernel is never asked to follow anything, so that no race can lead it outside.
    fn walk(&self, path: &RelPath, last: LastLink) -> Result<Option<Place>> {
        let mut todo: Vec<Vec<u8>> = path.components().map(<[u8]>::to_vec).collect();
        todo.reverse();
        let mut at: Vec<(Vec<u8>, OwnedFd)> = Vec::new();
        let mut followed = 0;
        while let Some(name) = todo.pop() {
            if name.is_empty() || name == b"." {
                continue;
            }
            if name == b".." {
                at.pop()
                    .ok_or_else(|| escape("link_outside", "a link leads out of the root", path))?;
                continue;
            }
            let here = at.last().map_or(self.handle(), |(_, dir)| dir.as_fd());
            let is_last = todo.iter().all(|rest| rest.is_empty() || rest == b".");
            let link = match (is_last, last) {
                (true, LastLink::Keep) => None,
                _ => self.link_at(here, &name, path)?,
            };
            if let Some(text) = link {
                followed += 1;
                if followed > LINKS_FOLLOWED {
                    return Err(escape("link_circle", "links lead in a circle", path).into());
                }
                if text.first() == Some(&b'/') {
                    return Err(
                        escape("link_outside", "an absolute link leads out of the root", path).into(),
                    );
                }
                todo.extend(text.rsplit(|b| *b == b'/').map(<[u8]>::to_vec));
                continue;
            }
            if is_last {
                return self.found(here, name, &at).map(Some);
            }
            let next = self.step(here, &name, DIRECTORY | OFlags::NOFOLLOW);
            let next = next.map_err(|errno| parent_failed(errno, &walked(&at, &name)))?;
            at.push((name, next));
        }
        // A link that ends in `..` or `.` leads to a directory that was passed, or to the root.
        let Some((name, _)) = at.pop() else {
            return Ok(None);
        };
        let here = at.last().map_or(self.handle(), |(_, dir)| dir.as_fd());
        self.found(here, name, &at).map(Some)
    }

    fn found(&self, here: BorrowedFd<'_>, name: Vec<u8>, at: &[(Vec<u8>, OwnedFd)]) -> Result<Place> {
        let mut bytes = at.iter().fold(Vec::new(), |mut bytes, (part, _)| {
            bytes.extend_from_slice(part);
            bytes.push(b'/');
            bytes
        });
        bytes.extend_from_slice(&name);
        let resolved = RelPath::parse(&bytes)?;
        let parent = here
            .try_clone_to_owned()
            .map_err(|e| Error::io("hold", "a directory", e))?;
        Ok(Place {
            parent,
            name,
            resolved,
        })
    }
}

/// Refuses what no call may change: the root itself and, unless allowed, what belongs to git.
///
/// # Errors
/// `path_escapes_root` with reason `root` or `git_internals`.
pub fn check_target(resolved: &RelPath, git: GitInternals) -> Result<()> {
    if resolved.is_root() {
        return Err(escape("root", "the root itself is not the target of a call", resolved).into());
    }
    if git == GitInternals::Refuse && resolved.may_lead_to_git() {
        return Err(escape("git_internals", "the path belongs to git", resolved).into());
    }
    Ok(())
}

/// Gives the id of the mount that a handle lies on.
pub(crate) fn mount_id(fd: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let seen = rustix::fs::statx(fd, "", flags, StatxFlags::MNT_ID)?;
    if seen.stx_mask & StatxFlags::MNT_ID.bits() != 0 {
        return Ok(seen.stx_mnt_id);
    }
    // Before Linux 5.8 only procfs tells.
    let info = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let text = std::fs::read_to_string(info).map_err(|_| Errno::OPNOTSUPP)?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.and_then(|id| id.trim().parse().ok()).ok_or(Errno::OPNOTSUPP)
}

/// Names the refusal of a failed step on a path.
pub(crate) fn failed(errno: Errno, path: &RelPath) -> Error {
    match errno {
        Errno::NOENT => Refusal::new(Code::NotFound, "there is no such file or directory")
            .name(path.to_string())
            .into(),
        Errno::NOTDIR => Refusal::new(Code::NotFound, "it is not a directory")
            .reason("not_directory")
            .name(path.to_string())
            .into(),
        Errno::XDEV => escape("mount", "the path crosses into another mount", path).into(),
        Errno::LOOP => escape("link_circle", "a link stands where none may", path).into(),
        Errno::NXIO | Errno::NODEV => escape("special_file", "it is a socket or a device", path).into(),
        _ => Error::io("open", shown(path.as_bytes()), errno),
    }
}

fn parent_failed(errno: Errno, parent: &RelPath) -> Error {
    match errno {
        Errno::NOENT => Refusal::new(Code::NotFound, "the directory is missing")
            .reason("parent_missing")
            .name(parent.to_string())
            .into(),
        Errno::NOTDIR => Refusal::new(Code::NotFound, "a part of the path is not a directory")
            .reason("parent_not_directory")
            .name(parent.to_string())
            .into(),
        _ => failed(errno, parent),
    }
}

fn escape(reason: &str, why: &str, path: &RelPath) -> Refusal {
    Refusal::new(Code::PathEscapesRoot, why)
        .reason(reason)
        .name(path.to_string())
}

fn walked(at: &[(Vec<u8>, OwnedFd)], name: &[u8]) -> RelPath {
    let parts: Vec<&[u8]> = at.iter().map(|(part, _)| part.as_slice()).chain([name]).collect();
    RelPath::parse(&parts.join(&b'/')).unwrap_or_else(|_| RelPath::root())
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV
}

/// Asks again, a bounded number of times, where the kernel could not be sure because something moved meanwhile.
fn retried<T>(mut ask: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    for _ in 1..TRIES {
        match ask() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            answer => return answer,
        }
    }
    ask()
}

#[cfg(test)]
pub(crate) mod tests;
