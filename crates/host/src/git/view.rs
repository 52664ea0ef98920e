//! A private git directory of ours, by which git sees a repository's objects and nothing else of it.
//!
//! Whoever works in a worktree can write its repository: configuration, `info/attributes`, hooks, at any moment. A git
//! that is to write or to decide is therefore never shown that repository: its `GIT_DIR` is a fresh directory that holds
//! what we put there, its objects come from the real directory of objects, its index by an explicit path. What has to be
//! known of the real configuration is read apart ([`super::settings`]) and handed over key by key.
//!
//! # Shape
//! `<base>/semel-<uid>/view-<nonce>/` with `HEAD`, `config`, `refs/`, `info/`; base is the first of `/run/user/<uid>`,
//! `/dev/shm`, `/tmp`, `/var/tmp` in which such a private directory can be had and written: one that is full, or that only can
//! be read, is passed over. Where another user took the name, it is `semel-<uid>-1` and so on. It is not in the repository, so
//! that whoever can write that repository alone cannot reach it.
//!
//! # Durability
//! None: it goes with the last one who uses it. Its owner and every git that uses it share a lock of the kernel on it; what a
//! killed process left, the next process removes.

use super::worktree::path_of;
use crate::clock;
use crate::error::{Error, Result};
use crate::volume::reaper;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, mkdirat, openat, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use semel_core::digest::to_hex;
use semel_core::git_tree::ObjectFormat;
use semel_core::{Code, Refusal};
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

const NAME: &str = "view-";
/// How often another name is tried where a sweeper was quicker.
const TRIES: usize = 8;
/// How many names of the private directory are tried.
const NAMES: usize = 8;
/// The prefix of the files that a split index is based on.
const SHARED: &[u8] = b"sharedindex.";

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A private git directory; it is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct View {
    path: PathBuf,
    name: String,
    parent: Arc<OwnedFd>,
    dir: Arc<OwnedFd>,
    format: ObjectFormat,
    /// The place of its base among all.
    rank: usize,
}

impl View {
    /// Makes one for objects of this format.
    ///
    /// # Errors
    /// `io_failed` where no private directory can be had.
    pub(crate) fn new(format: ObjectFormat) -> Result<Self> {
        Self::made(Base::known()?, format)
    }

    /// Makes another one, at a later place where there is one.
    ///
    /// # Errors
    /// As [`View::new`].
    pub(crate) fn elsewhere(&self) -> Result<Self> {
        let base = Base::from(self.rank + 1).or_else(|_| Base::from(0))?;
        Self::made(base, self.format)
    }

    fn made(mut base: Base, format: ObjectFormat) -> Result<Self> {
        loop {
            let (rank, made) = (base.rank, Self::within(base, format));
            match made {
                Err(error) if refuses(&error) => match Base::from(rank + 1) {
                    Ok(next) => base = next,
                    Err(_) => return Err(error),
                },
                made => return made,
            }
        }
    }

    fn within(base: Base, format: ObjectFormat) -> Result<Self> {
        let view = Self::empty(base, format)?;
        let made =
            mkdirat(&view.dir, "refs", Mode::RWXU).and_then(|()| mkdirat(&view.dir, "info", Mode::RWXU));
        made.map_err(|e| Error::io("create", &view.path, e))?;
        view.put("HEAD", b"ref: refs/heads/none\n")?;
        view.put("config", configuration(format).as_bytes())?;
        Ok(view)
    }

    /// Makes an empty one under a name of its own, and takes the lock that says that it is used.
    fn empty(mut base: Base, format: ObjectFormat) -> Result<Self> {
        for _ in 0..TRIES {
            let name = format!("{NAME}{}", to_hex(&clock::random::<10>()?));
            let path = base.path.join(&name);
            let failed = |e| Error::io("create", &path, e);
            match mkdirat(&base.dir, &name, Mode::RWXU) {
                Ok(()) => {}
                // Somebody tidied up temporary files.
                Err(Errno::NOENT) => {
                    base = Base::from(base.rank)?;
                    continue;
                }
                Err(e) => return Err(failed(e)),
            }
            let dir = match openat(&base.dir, &name, DIRECTORY, Mode::empty()) {
                Ok(dir) => dir,
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(failed(e)),
            };
            // A sweeper that came between holds the lock, or has removed it already.
            let ours = flock(&dir, FlockOperation::NonBlockingLockShared).is_ok()
                && fstat(&dir).is_ok_and(|stat| stat.st_nlink > 0);
            if ours {
                return Ok(Self {
                    path,
                    name,
                    parent: base.dir,
                    dir: Arc::new(dir),
                    format,
                    rank: base.rank,
                });
            }
        }
        Err(Refusal::new(Code::Internal, "no private directory stays for git").into())
    }

    /// Says whether a failure is the view's: somebody tidied it away, or nothing can be written there.
    pub(crate) fn failed(&self, error: &Error) -> bool {
        let named = semel_core::path::shown(self.path.as_os_str().as_encoded_bytes());
        !self.is_whole()
            || (refuses(error) && matches!(error, Error::Io { path, .. } if path.starts_with(&named)))
    }

    fn is_whole(&self) -> bool {
        let there = |name| statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        let (Ok(named), Ok(open)) = (rustix::fs::lstat(&self.path), fstat(&self.dir)) else {
            return false;
        };
        (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino)
            && ["HEAD", "config", "refs", "info"].into_iter().all(there)
    }

    /// Tells that it is gone.
    pub(crate) fn gone(&self) -> Error {
        let why = "git's private directory was taken away while it was used; does something tidy up temporary files?";
        Error::io(
            "use",
            &self.path,
            std::io::Error::new(std::io::ErrorKind::NotFound, why),
        )
    }

    /// Gives what is both `GIT_DIR` and `GIT_COMMON_DIR`.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the hash function that it is for.
    pub(crate) fn format(&self) -> ObjectFormat {
        self.format
    }

    /// Gives the handle whose lock a git child shares.
    pub(crate) fn handle(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.dir)
    }

    /// Writes a file in it, over any earlier one.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |e: std::io::Error| Error::io("write", self.path.join(name), e);
        let file = openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR).map_err(|e| failed(e.into()))?;
        std::fs::File::from(file).write_all(bytes).map_err(failed)
    }

    /// Lets git find the files that a split index of this git directory is based on, where they lie. It is told to write
    /// no new ones.
    pub(crate) fn show_shared(&self, gitdir: &OwnedFd, named: &Path) -> Result<()> {
        for name in shared(gitdir, named)? {
            let target = named.join(path_of(&name));
            match symlinkat(&target, &self.dir, name.as_slice()) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(Error::io("link", target, e)),
            }
        }
        Ok(())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        for name in ["HEAD", "config", "info/attributes"] {
            unlinkat(&self.dir, name, AtFlags::empty()).ok();
        }
        let mut dirs = ["refs", "info"].into_iter();
        let emptied = dirs.all(|name| unlinkat(&self.dir, name, AtFlags::REMOVEDIR).is_ok());
        if emptied && unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR).is_ok() {
            return;
        }
        // It holds more. What stays even so is swept by the next process.
        drop(reaper::remove_tree(self.parent.as_fd(), self.name.as_bytes()));
    }
}

/// Says what a repository of ours is configured to be.
pub(super) fn configuration(format: ObjectFormat) -> String {
    let (version, extension) = match format {
        ObjectFormat::Sha1 => (0, ""),
        ObjectFormat::Sha256 => (1, "[extensions]\n\tobjectFormat = sha256\n"),
    };
    format!("[core]\n\trepositoryformatversion = {version}\n\tfilemode = true\n\tbare = false\n{extension}")
}

/// Lists the files that split indexes are based on.
fn shared(dir: &OwnedFd, named: &Path) -> Result<Vec<Vec<u8>>> {
    let failed = |e| Error::io("list", named, e);
    let mut names = Vec::new();
    for entry in Dir::read_from(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        // While git writes one it has another ending.
        if name
            .strip_prefix(SHARED)
            .is_some_and(|rest| rest.iter().all(u8::is_ascii_hexdigit))
        {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// The private directory in which views lie: of this user alone.
#[derive(Clone)]
struct Base {
    path: PathBuf,
    dir: Arc<OwnedFd>,
    rank: usize,
}

impl Base {
    /// Gives the one that this process uses.
    fn known() -> Result<Self> {
        static KNOWN: OnceLock<Base> = OnceLock::new();
        #[cfg(test)]
        if elsewhere::bases().is_some() {
            return Self::from(0);
        }
        match KNOWN.get() {
            Some(base) => Ok(base.clone()),
            None => Self::from(0).map(|base| KNOWN.get_or_init(|| base).clone()),
        }
    }

    /// Finds or makes the first one from a place on, and removes in it what killed processes left.
    fn from(first: usize) -> Result<Self> {
        let us = rustix::process::geteuid().as_raw();
        let mut last = Errno::NOENT;
        for (rank, path) in candidates(us).into_iter().enumerate().skip(first) {
            match private(&path, us) {
                Ok(dir) => {
                    sweep(&dir);
                    let dir = Arc::new(dir);
                    return Ok(Self { path, dir, rank });
                }
                Err(e) => last = e,
            }
        }
        Err(Error::io("create", "a private directory for git", last))
    }
}

/// Lists where it may be, the best first: every place by its first name, before any by another.
fn candidates(us: u32) -> Vec<PathBuf> {
    let bases = [
        format!("/run/user/{us}").into(),
        "/dev/shm".into(),
        "/tmp".into(),
        "/var/tmp".into(),
    ];
    let bases: Vec<PathBuf> = bases.into();
    #[cfg(test)]
    let bases = elsewhere::bases().unwrap_or(bases);
    let names = core::iter::once(format!("semel-{us}")).chain((1..NAMES).map(|n| format!("semel-{us}-{n}")));
    names
        .flat_map(|name| bases.iter().map(move |base| base.join(&name)))
        .collect()
}

/// Says whether a place refuses to be written: it is full, can only be read, or is not ours.
fn refuses(error: &Error) -> bool {
    let Error::Io { source, .. } = error else {
        return false;
    };
    let refusals = [
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::ROFS,
        Errno::PERM,
        Errno::ACCESS,
    ];
    source
        .raw_os_error()
        .is_some_and(|raw| refusals.contains(&Errno::from_raw_os_error(raw)))
}

/// Removes what killed processes left.
#[cfg(test)]
pub(super) fn sweep_all() {
    Base::from(0).unwrap();
}

fn private(path: &Path, us: u32) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e),
    }
    let dir = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
    let stat = fstat(&dir)?;
    if stat.st_uid != us || FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Errno::PERM);
    }
    if stat.st_mode & 0o777 != 0o700 {
        fchmod(&dir, Mode::RWXU)?;
    }
    rustix::fs::accessat(&dir, ".", rustix::fs::Access::WRITE_OK, AtFlags::EACCESS)?;
    Ok(dir)
}

/// Removes the views that nobody uses any more.
fn sweep(parent: &OwnedFd) {
    let Ok(all) = Dir::read_from(parent) else { return };
    for entry in all.filter_map(rustix::io::Result::ok) {
        let name = entry.file_name().to_bytes();
        if name.starts_with(NAME.as_bytes()) {
            sweep_one(parent.as_fd(), name);
        }
    }
}

fn sweep_one(parent: BorrowedFd<'_>, name: &[u8]) {
    let Ok(dir) = openat(parent, name, DIRECTORY, Mode::empty()) else {
        return;
    };
    if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() {
        drop(reaper::remove_tree(parent, name));
    }
}

/// Lets a test say where private directories are, for its own thread.
#[cfg(test)]
pub(super) mod elsewhere {
    use std::cell::RefCell;
    use std::path::PathBuf;

    thread_local! {
        static BASES: RefCell<Option<Vec<PathBuf>>> = const { RefCell::new(None) };
    }

    pub(super) fn bases() -> Option<Vec<PathBuf>> {
        BASES.with_borrow(Clone::clone)
    }

    pub(in crate::git) fn set(bases: Option<Vec<PathBuf>>) {
        BASES.set(bases);
    }
}
