//! Pins: identities of worktrees, taken once and kept as private files of the state root.
//!
//! A pin is found by the path of its worktree. What a pinned worktree's own `.git` says is only ever compared with the
//! pin, never followed. This module decides nothing about an identity; [`semel_core::pin`] does.
//!
//! # Shape
//! `<state>/worktrees/w-<sha256 of the worktree's path>.json` holds a pin, `g-<sha256 of the git directory's path>` the
//! name of the pin that claims it, `c-<sha256 of the common directory's path>.lock` is the lock of a repository (beside it
//! `.new`, used under that lock), and `doing-<id>.json` says what was begun and is not ended.

use super::repository::Repository;
use super::worktree::{self, Found as Places, Target, path_of, pointer_at};
use super::{Git, linked};
use crate::clock;
use crate::error::{Error, Result};
use crate::files::file_id;
use crate::hold::Hold;
use crate::plain;
use crate::process::Cancel;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fsync, openat, renameat, statat};
use rustix::io::Errno;
use semel_core::digest::to_hex;
use semel_core::path::shown;
use semel_core::pin::{self, Found, Layout, Origin, PathBytes, Pin, PinId, Spot};
use semel_core::{Code, Refusal, Sha256};
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

/// The largest file that is read here.
const CAP: u64 = 64 << 10;
/// How often a taken lock is tried again.
const EVERY: Duration = Duration::from_millis(20);

/// Holds the place of the pins of a state root.
#[derive(Clone, Debug)]
pub struct Pins {
    pub(super) dir: PathBuf,
}

/// Says whether a worktree has to be pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Require {
    /// An unpinned worktree is taken as it is, if nothing redirects.
    #[default]
    Nothing,
    /// It is refused.
    Pin,
}

/// Says what is done with a pin that stands already and does not hold any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repin {
    /// It is refused.
    #[default]
    Refuse,
    /// The identity is taken anew.
    Anew,
}

/// Says whether a pinned worktree is what was pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinState {
    /// In every part.
    Intact,
    /// Neither files nor git directory are there.
    Gone,
    /// Something differs.
    Changed(Refusal),
}

/// Is a pin that is kept, and what has become of its worktree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPin {
    /// The pin.
    pub pin: Pin,
    /// What is found where it leads.
    pub state: PinState,
}

fn hex_of(path: &[u8]) -> String {
    Sha256::of(path).to_string()
}

/// Gives the bytes of a path.
pub(super) fn bytes(path: &Path) -> Result<PathBytes> {
    Ok(PathBytes::new(path.as_os_str().as_bytes())?)
}

impl Pins {
    /// Names the pins of a state root; nothing is made or looked at.
    #[must_use]
    pub fn of(state: &Path) -> Self {
        Self {
            dir: state.join("worktrees"),
        }
    }

    /// Gives the state root.
    pub(super) fn state(&self) -> Option<&Path> {
        self.dir.parent()
    }

    fn place(&self, worktree: &Path) -> PathBuf {
        let name = hex_of(worktree.as_os_str().as_bytes());
        self.dir.join(format!("w-{name}.json"))
    }

    fn claim(&self, gitdir: &[u8]) -> PathBuf {
        self.dir.join(format!("g-{}", hex_of(gitdir)))
    }

    pub(super) fn read(&self, worktree: &Path) -> Result<Option<Pin>> {
        read_pin(&self.place(worktree))
    }

    /// Finds the pin of a worktree: by the path as it is given, and by where that leads.
    ///
    /// The path as given comes first: a worktree whose directory was exchanged for a link to another one is still
    /// the one that was pinned, and will be found to be redirected.
    ///
    /// # Errors
    /// `unknown_state` where a pin cannot be read; `io_failed`.
    pub fn find(&self, worktree: &Path) -> Result<Option<Pin>> {
        let given = std::path::absolute(worktree).map_err(|e| Error::io("resolve", worktree, e))?;
        let given: PathBuf = given.components().collect();
        let plain = !given.components().any(|part| part == Component::ParentDir);
        let beside = given
            .parent()
            .and_then(|parent| std::fs::canonicalize(parent).ok())
            .zip(given.file_name())
            .map(|(parent, name)| parent.join(name));
        let real = std::fs::canonicalize(&given).ok();
        for path in [Some(given).filter(|_| plain), beside, real]
            .into_iter()
            .flatten()
        {
            if let Some(pin) = self.read(&path)? {
                return Ok(Some(pin));
            }
        }
        Ok(None)
    }

    /// Refuses a state root that lies in the worktree, and a worktree that lies in the state root: whoever works there
    /// could write its pin, and what is not of the tree may be removed there.
    ///
    /// # Errors
    /// `bad_config`, reason `state_in_worktree`.
    pub fn apart_from(&self, worktree: &Path) -> Result<()> {
        let Some(state) = self.state() else {
            return Ok(());
        };
        let (state, worktree) = (real(state), real(worktree));
        let why = if state.starts_with(&worktree) {
            "the state root lies in the worktree: whoever works there could write its pin"
        } else if worktree.starts_with(&state) {
            "the worktree lies in the state root, where nothing but our own is kept"
        } else {
            return Ok(());
        };
        Err(Refusal::new(Code::BadConfig, why)
            .reason("state_in_worktree")
            .name(shown(state.as_os_str().as_bytes()))
            .into())
    }

    /// Says how a worktree is to be restored: by its pin where it has one.
    ///
    /// # Errors
    /// `worktree_redirected`, reason `not_pinned`, where a pin is required and there is none; as [`Pins::find`] and
    /// [`Pins::apart_from`].
    pub fn target(&self, worktree: &Path, require: Require) -> Result<Target> {
        self.apart_from(worktree)?;
        let pin = self.find(worktree)?;
        if require == Require::Pin {
            pin::require(pin.as_ref(), worktree.as_os_str().as_bytes())?;
        }
        Ok(match pin {
            Some(pin) => Target::Kept {
                pin: Box::new(pin),
                pins: self.clone(),
            },
            None => Target::Unpinned {
                path: worktree.to_owned(),
                pins: Some(self.clone()),
            },
        })
    }

    /// Refuses an unpinned worktree that uses the git directory of a pinned one.
    pub(super) fn refuse_claimed(&self, found: &Places) -> Result<()> {
        let Some(pin) = self.claimant(&found.gitdir)? else {
            return Ok(());
        };
        let why = "its git directory is that of another worktree, which is pinned";
        Err(Refusal::new(Code::WorktreeRedirected, why)
            .reason("gitdir_claimed")
            .name(pin.worktree.path.to_string())
            .into())
    }

    /// Finds the pin that claims a git directory; a claim whose pin is gone is none.
    fn claimant(&self, gitdir: &Path) -> Result<Option<Pin>> {
        let gitdir = gitdir.as_os_str().as_bytes();
        let Some(name) = read_small(&self.claim(gitdir))? else {
            return Ok(None);
        };
        let name = String::from_utf8_lossy(&name).trim().to_owned();
        if name.len() != 64 || !name.bytes().all(|b| b.is_ascii_hexdigit()) {
            let refusal = Refusal::new(Code::UnknownState, "a claim names no pin");
            return Err(refusal.name(self.claim(gitdir).display().to_string()).into());
        }
        let pin = read_pin(&self.dir.join(format!("w-{name}.json")))?;
        Ok(pin.filter(|pin| pin.gitdir.path.as_bytes() == gitdir))
    }

    /// Lists all pins, by the path of their worktree, with what has become of each.
    ///
    /// # Errors
    /// `unknown_state` where one cannot be read; `io_failed`.
    pub fn list(&self) -> Result<Vec<KeptPin>> {
        let mut kept = Vec::new();
        for listed in plain::list_files(&self.dir)? {
            if !(listed.name.starts_with("w-") && listed.name.ends_with(".json")) {
                continue;
            }
            if let Some(pin) = read_pin(&self.dir.join(&listed.name))? {
                let state = state(&pin)?;
                kept.push(KeptPin { pin, state });
            }
        }
        kept.sort_by(|a, b| a.pin.worktree.path.cmp(&b.pin.worktree.path));
        Ok(kept)
    }

    /// Lists what was begun with worktrees and is not ended.
    ///
    /// # Errors
    /// `unknown_state` where a record cannot be read; `io_failed`.
    pub fn unfinished(&self) -> Result<Vec<linked::Unfinished>> {
        linked::unfinished(self)
    }

    /// Takes the identity of a worktree that is there, and keeps it.
    ///
    /// # Errors
    /// `worktree_redirected` where it is not what it seems, where its pin does not hold any more (unless it is taken
    /// anew), and where another pinned worktree has its git directory (reason `gitdir_claimed`); `lock_timeout`,
    /// reason `worktrees_busy`; `not_found`, `bad_input`, `git_failed`, `io_failed`.
    ///
    /// # Durability
    /// When this returns, the pin is on the disk.
    pub fn pin(
        &self,
        git: &Git,
        worktree: &Path,
        repin: Repin,
        wait: Duration,
        cancel: &Cancel,
    ) -> Result<Pin> {
        if let Some(pin) = self.find(worktree)?
            && repin == Repin::Refuse
        {
            pin.hold_against(&observe(&pin)?)?;
            return Ok(pin);
        }
        let found = worktree::find(worktree)?;
        let _lock = self.lock(&found.common, wait, cancel)?;
        linked::recover(git, self, &found.common, cancel)?;
        if let Some(pin) = self.find(worktree)?
            && repin == Repin::Refuse
        {
            // It was made by us, and what was cut off is ended now.
            pin.hold_against(&observe(&pin)?)?;
            return Ok(pin);
        }
        let mut pin = take(git, worktree, fresh_id()?, Origin::Found, cancel)?;
        pin.origin = self.former_origin(&pin)?;
        self.keep(&pin)?;
        Ok(pin)
    }

    /// Says where a worktree that is pinned anew came from: moved, or mounted anew, it is still the one that we made. Device
    /// numbers change with a mount.
    fn former_origin(&self, pin: &Pin) -> Result<Origin> {
        let former = self.claimant(&path_of(pin.gitdir.path.as_bytes()))?;
        let same = |former: &Pin| {
            former.gitdir.inode == pin.gitdir.inode
                && former.common.path == pin.common.path
                && former.common.inode == pin.common.inode
        };
        Ok(former.filter(same).map_or(Origin::Found, |former| former.origin))
    }

    /// Keeps a pin, in place of an earlier one of the same worktree.
    pub(super) fn keep(&self, pin: &Pin) -> Result<()> {
        let gitdir = path_of(pin.gitdir.path.as_bytes());
        if let Some(other) = self.claimant(&gitdir)?
            && other.worktree.path != pin.worktree.path
        {
            // A worktree that moved leaves a pin behind whose own place is empty.
            if observe(&other)?.worktree.is_some() {
                let why = "its git directory is that of another worktree, which is pinned";
                let refusal = Refusal::new(Code::WorktreeRedirected, why).reason("gitdir_claimed");
                return Err(refusal.name(other.worktree.path.to_string()).into());
            }
            self.forget(&other)?;
        }
        let place = self.place(&path_of(pin.worktree.path.as_bytes()));
        // The claim first: without its pin it says nothing.
        let name = hex_of(pin.worktree.path.as_bytes());
        self.write(
            &pin.common,
            &self.claim(pin.gitdir.path.as_bytes()),
            name.as_bytes(),
        )?;
        self.write(&pin.common, &place, &pin.to_json()?)
    }

    /// Gives the place of a file that belongs to a repository, and is used under its lock alone.
    pub(super) fn of_repository(&self, common: &[u8], suffix: &str) -> PathBuf {
        self.dir.join(format!("c-{}.{suffix}", hex_of(common)))
    }

    /// Writes a whole file, over any earlier one; to be called under the lock of the repository. What a killed process
    /// leaves of it bears one name, which the next one uses.
    ///
    /// # Durability
    /// Atomic, and on the disk when this returns.
    pub(super) fn write(&self, common: &Spot, place: &Path, bytes: &[u8]) -> Result<()> {
        let fresh = self.of_repository(common.path.as_bytes(), "new");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(CWD, &fresh, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| Error::io("create", &fresh, e))?;
        let mut file = std::fs::File::from(file);
        file.write_all(bytes)
            .and_then(|()| file.sync_all())
            .map_err(|e| Error::io("write", &fresh, e))?;
        renameat(CWD, &fresh, CWD, place).map_err(|e| Error::io("rename", place, e))?;
        let dir = worktree::open_dir(&self.dir)?;
        fsync(&dir).map_err(|e| Error::io("sync", &self.dir, e))
    }

    /// Removes what a killed process left unused; to be called under the lock of the repository.
    pub(super) fn sweep(&self, common: &Path) -> Result<()> {
        plain::remove_file(&self.of_repository(common.as_os_str().as_bytes(), "new"))
    }

    /// Forgets a pin.
    pub(super) fn forget(&self, pin: &Pin) -> Result<()> {
        let worktree = path_of(pin.worktree.path.as_bytes());
        if self.read(&worktree)?.is_some_and(|now| now.id == pin.id) {
            plain::remove_file(&self.place(&worktree))?;
        }
        let claim = self.claim(pin.gitdir.path.as_bytes());
        let ours = hex_of(pin.worktree.path.as_bytes());
        // Another worktree in its place has another git directory, and so another claim.
        let claims = |now: Pin| now.gitdir.path == pin.gitdir.path;
        if read_small(&claim)?.is_some_and(|name| name == ours.as_bytes())
            && !self.read(&worktree)?.is_some_and(claims)
        {
            plain::remove_file(&claim)?;
        }
        Ok(())
    }

    /// Takes the lock of a repository, by its common directory, under which its worktrees are made, pinned and removed; or
    /// of one worktree. Waits for it within a bound.
    ///
    /// # Errors
    /// `lock_timeout`, reason `worktrees_busy`; `io_failed`.
    pub fn lock(&self, of: &Path, wait: Duration, cancel: &Cancel) -> Result<Hold> {
        plain::private_directory(&self.dir)?;
        let place = self.of_repository(of.as_os_str().as_bytes(), "lock");
        let until = Instant::now() + wait;
        loop {
            if let Some(hold) = Hold::take(&place)? {
                return Ok(hold);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || cancel.is_cancelled() {
                let why = "another process of ours works on this repository's worktrees, or on this one";
                return Err(Refusal::new(Code::LockTimeout, why)
                    .reason("worktrees_busy")
                    .name(shown(of.as_os_str().as_bytes()))
                    .into());
            }
            std::thread::sleep(left.min(EVERY));
        }
    }
}

/// Gives the real path of a place that need not be there yet.
fn real(place: &Path) -> PathBuf {
    let place = std::path::absolute(place).unwrap_or_else(|_| place.to_owned());
    let real = place.ancestors().find_map(|there| {
        let real = std::fs::canonicalize(there).ok()?;
        Some(real.join(place.strip_prefix(there).ok()?))
    });
    // Of a path that ends where it was found, joining nothing leaves a slash behind.
    real.map_or(place, |real| real.components().collect())
}

fn read_small(place: &Path) -> Result<Option<Vec<u8>>> {
    match plain::read_file(place, CAP) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.code() == Code::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_pin(place: &Path) -> Result<Option<Pin>> {
    let named = |refusal: Refusal| refusal.name(place.display().to_string());
    let pin = read_small(place)?.map(|bytes| Pin::parse(&bytes));
    Ok(pin.transpose().map_err(named)?)
}

/// Mints the id of a pin.
pub(super) fn fresh_id() -> Result<PinId> {
    Ok(PinId::parse(to_hex(&clock::random::<10>()?))?)
}

/// Takes the identity of a worktree that is what it seems.
pub(super) fn take(git: &Git, path: &Path, id: PinId, origin: Origin, cancel: &Cancel) -> Result<Pin> {
    let found = worktree::find(path)?;
    let repo = Repository::viewed(git, found.clone(), None, cancel)?;
    let checked = worktree::check(&found, &repo)?;
    let spot = |path: &Path| {
        spot_at(path)?.map(|(_, spot)| spot).ok_or_else(|| {
            worktree::redirected("the directory is not there, or is reached through a link", path)
        })
    };
    let pin = Pin {
        semel_pin: Pin::VERSION,
        id,
        worktree: spot(&checked.worktree)?,
        gitdir: spot(&checked.gitdir)?,
        common: spot(&found.common)?,
        layout: layout(&checked.root, &checked.dir, &checked.worktree, &checked.gitdir)?
            .ok_or_else(|| worktree::redirected("the pointer files cannot be read", &checked.gitdir))?,
        format: repo.format(),
        origin,
        at: clock::now(),
    };
    checked.still_there()?;
    pin.hold_against(&observe(&pin)?)?;
    Ok(pin)
}

/// Looks at what is where a pin leads.
pub(super) fn observe(pin: &Pin) -> Result<Found> {
    let at = |spot: &Spot| spot_at(&path_of(spot.path.as_bytes()));
    let (worktree, gitdir, common) = (at(&pin.worktree)?, at(&pin.gitdir)?, at(&pin.common)?);
    let layout = match (&worktree, &gitdir) {
        (Some((root, _)), Some((dir, _))) => layout(
            root,
            dir,
            &path_of(pin.worktree.path.as_bytes()),
            &path_of(pin.gitdir.path.as_bytes()),
        )?,
        _ => None,
    };
    Ok(Found {
        worktree: worktree.map(|(_, spot)| spot),
        gitdir: gitdir.map(|(_, spot)| spot),
        common: common.map(|(_, spot)| spot),
        layout,
    })
}

fn state(pin: &Pin) -> Result<PinState> {
    let found = observe(pin)?;
    if pin.is_gone(&found) {
        return Ok(PinState::Gone);
    }
    Ok(match pin.hold_against(&found) {
        Ok(()) => PinState::Intact,
        Err(refusal) => PinState::Changed(refusal),
    })
}

/// Opens a directory by its real path, no part of which may be a link; `None` where there is no such directory.
pub(super) fn open_real(path: &Path) -> Result<Option<OwnedFd>> {
    let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut parts = path.components().peekable();
    let mut dir: Option<OwnedFd> = None;
    while let Some(part) = parts.next() {
        let last = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = if parts.peek().is_some() { through } else { last };
        let at = dir.as_ref().map_or(CWD, AsFd::as_fd);
        match openat(at, part.as_os_str(), flags, Mode::empty()) {
            Ok(next) => dir = Some(next),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(e) => return Err(Error::io("open", path, e)),
        }
    }
    Ok(dir)
}

/// Opens and identifies a directory by its real path; `None` where there is no such directory.
pub(super) fn spot_at(path: &Path) -> Result<Option<(OwnedFd, Spot)>> {
    let Some(dir) = open_real(path)? else {
        return Ok(None);
    };
    let stat = worktree::stat(&dir, path)?;
    let spot = Spot {
        path: bytes(path)?,
        device: stat.st_dev,
        inode: stat.st_ino,
        file: file_id(&dir)?,
    };
    Ok(Some((dir, spot)))
}

/// Reads how an open worktree and an open git directory hang together; `None` where they do not.
fn layout(root: &OwnedFd, gitdir: &OwnedFd, worktree: &Path, named: &Path) -> Result<Option<Layout>> {
    let dot_git = worktree.join(".git");
    let look = |dir: &OwnedFd, name: &str| match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(Error::io("look at", worktree.join(name), e)),
    };
    let Some(kind) = look(root, ".git")? else {
        return Ok(None);
    };
    match kind {
        FileType::Directory => {
            let plain = named == dot_git && look(gitdir, "commondir")?.is_none();
            Ok(plain.then_some(Layout::Main))
        }
        FileType::RegularFile => {
            // What cannot be read points nowhere.
            let read = |dir: &OwnedFd, name: &str| pointer_at(dir, Path::new(name), Path::new(name)).ok();
            let all = (
                read(root, ".git"),
                read(gitdir, "gitdir"),
                read(gitdir, "commondir"),
            );
            let (Some(dot_git), Some(back), Some(commondir)) = all else {
                return Ok(None);
            };
            Ok(Some(Layout::Linked {
                dot_git: PathBytes::new(dot_git)?,
                gitdir: PathBytes::new(back)?,
                commondir: PathBytes::new(commondir)?,
            }))
        }
        _ => Ok(None),
    }
}
