//! Sealed trees that overlays lie over: made once, whole or not at all, and only read from then on.
//!
//! A tree is sealed by its name: it is filled beside, made durable, and renamed. No job may write where it lies. What it
//! holds is not believed for that: whoever certifies it reads it again, through the overlay.

use super::reaper::{self, Reaped};
use super::{ASIDE, Volume, Volumes, ground, make, subdirectory};
use crate::error::{Error, Result};
use crate::files::{read_capped, rename_ours};
use crate::root::Root;
use crate::{clock, files};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use semel_core::digest::to_hex;
use semel_core::{Code, Refusal};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

pub(super) const PLACE: &str = ".lower";
const FILLING: &str = ".new-";
const SEAL: &str = "seal";
/// Marks a tree that is not what was unpacked.
const DAMAGED: &str = "damaged";
/// How often a tree is filled anew beside damaged ones that volumes still lie over.
const MOST_DAMAGED: u32 = 100;
const SEAL_CAP: u64 = 1 << 20;

/// Is a sealed tree; while it is held, none is freed.
#[derive(Debug)]
pub struct Lower {
    pub(super) name: String,
    seal: Vec<u8>,
    _held: OwnedFd,
}

impl Lower {
    /// Gives what was said of the tree when it was sealed.
    #[must_use]
    pub fn seal(&self) -> &[u8] {
        &self.seal
    }
}

/// Says whether a name may be that of a sealed tree.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !name.is_empty() && name.len() <= 100 && !name.starts_with('-') && name.bytes().all(plain)
}

impl Volumes {
    /// Gives the sealed tree of a name; where there is none, or where it was found [`damaged`](Self::damaged_lower), it is
    /// filled first, and what `fill` says of it is kept with it.
    ///
    /// # Errors
    /// `bad_input` for a name that is not `[a-z0-9-]+`; those of `fill`, of which nothing is left; `io_failed`.
    ///
    /// # Durability
    /// The tree is on disk before it has its name.
    pub fn lower(&self, name: &str, fill: &mut dyn FnMut(&Root) -> Result<Vec<u8>>) -> Result<Lower> {
        if !is_name(name) {
            return Err(Refusal::new(Code::BadInput, "not the name of a sealed tree")
                .name(name)
                .into());
        }
        let place = self.path.join(PLACE);
        let fail = |e: Errno| Error::io("seal", &place, e);
        let lowers = self.lowers()?;
        let held = subdirectory(lowers.as_fd(), ".").map_err(fail)?;
        rustix::fs::flock(&held, FlockOperation::LockShared).map_err(fail)?;
        for nth in 0..MOST_DAMAGED {
            // What lies over a damaged one knows it by its name, which therefore stays.
            let name = match nth {
                0 => name.to_owned(),
                nth => format!("{name}-{nth}"),
            };
            match sealed(lowers.as_fd(), &name)? {
                Found::Damaged => {}
                Found::Sealed(seal) => return Ok(held_as(&name, seal, held)),
                Found::Nothing => {
                    let seal = fill_new(lowers.as_fd(), &name, fill)?;
                    return Ok(held_as(&name, seal, held));
                }
            }
        }
        Err(
            Refusal::new(Code::UnknownState, "a sealed tree was damaged again and again")
                .name(name)
                .into(),
        )
    }

    /// Marks the sealed tree that a volume lies over as damaged: it is taken for no other volume, and freed as soon as none
    /// lies over it.
    ///
    /// # Errors
    /// `io_failed`.
    ///
    /// # Durability
    /// The mark is on disk when this returns; without it the tree is found to be damaged again.
    pub fn damaged_lower(&self, volume: &Volume) -> Result<()> {
        let Some(name) = ground::read_at(volume.meta())?.and_then(|ground| ground.lower) else {
            return Ok(());
        };
        let fail = |e: Errno| Error::io("mark", &name, e);
        let lowers = self.lowers()?;
        let dir = subdirectory(lowers.as_fd(), &name).map_err(fail)?;
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&dir, DAMAGED, flags, Mode::RUSR).map_err(fail)?;
        files::sync(dir.as_fd(), DAMAGED)
    }

    fn lowers(&self) -> Result<OwnedFd> {
        let place = self.path.join(PLACE);
        make(self.dir.as_fd(), PLACE, &place)?;
        subdirectory(self.dir.as_fd(), PLACE).map_err(|e| Error::io("open", &place, e))
    }

    /// Frees the sealed trees that no volume lies over and that were sealed longer ago than an age, and what was left of
    /// filling ones; gives their names. While anybody holds one, none is freed.
    ///
    /// # Errors
    /// `io_failed` where the volumes cannot be looked through: then nobody knows what is needed.
    pub fn free_lowers(&self, age: Duration) -> Result<(Vec<String>, Reaped)> {
        let mut freed = (Vec::new(), Reaped::default());
        let Some((lowers, names)) = self.idle_lowers(age)? else {
            return Ok(freed);
        };
        for name in names {
            let aside = format!("{ASIDE}{name}");
            let gone = if name.starts_with('.') {
                name.clone()
            } else {
                match rename_ours(
                    (lowers.as_fd(), name.as_bytes()),
                    (lowers.as_fd(), aside.as_bytes()),
                ) {
                    Ok(()) => aside,
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(Error::io("put aside", &name, errno)),
                }
            };
            let reaped = reaper::remove_tree(lowers.as_fd(), gone.as_bytes())?;
            freed.1.removed += reaped.removed;
            freed.1.kept.extend(reaped.kept);
            if !name.starts_with('.') {
                freed.0.push(name);
            }
        }
        Ok(freed)
    }

    /// Lists the sealed trees that [`Self::free_lowers`] would free.
    ///
    /// # Errors
    /// As [`Self::free_lowers`].
    pub fn lowers_to_free(&self, age: Duration) -> Result<Vec<String>> {
        let found = self.idle_lowers(age)?;
        let names = found.map(|(_, names)| names).unwrap_or_default();
        Ok(names.into_iter().filter(|name| !name.starts_with('.')).collect())
    }

    /// Holds every sealed tree alone and lists the idle ones; `None` while somebody holds one.
    fn idle_lowers(&self, age: Duration) -> Result<Option<(OwnedFd, Vec<String>)>> {
        let place = self.path.join(PLACE);
        let fail = |e: Errno| Error::io("examine", &place, e);
        let lowers = match subdirectory(self.dir.as_fd(), PLACE) {
            Ok(lowers) => lowers,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        };
        match rustix::fs::flock(&lowers, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(fail(errno)),
        }
        let needed = self.needed_lowers()?;
        let listed = std::fs::read_dir(&place).map_err(|e| Error::io("list", &place, e))?;
        let mut idle = Vec::new();
        for entry in listed {
            let entry = entry.map_err(|e| Error::io("list", &place, e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let old = entry
                .metadata()
                .and_then(|facts| facts.modified())
                .is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|past| past >= age));
            let left = name.starts_with(FILLING) || name.starts_with(ASIDE);
            let over = || Ok::<bool, Error>(old || matches!(sealed(lowers.as_fd(), &name)?, Found::Damaged));
            if left || (is_name(&name) && !needed.contains(&name) && over()?) {
                idle.push(name);
            }
        }
        idle.sort();
        Ok(Some((lowers, idle)))
    }

    /// Collects the sealed trees that a volume lies over, also one that was put aside.
    fn needed_lowers(&self) -> Result<BTreeSet<String>> {
        let mut needed = BTreeSet::new();
        self.each_generation(&mut |dir, _, _| {
            let meta = match subdirectory(dir, "meta") {
                Ok(meta) => meta,
                Err(Errno::NOENT) => return Ok(()),
                Err(errno) => return Err(Error::io("open", "meta", errno)),
            };
            needed.extend(ground::read_at(meta.as_fd())?.and_then(|ground| ground.lower));
            Ok(())
        })?;
        Ok(needed)
    }
}

fn held_as(name: &str, seal: Vec<u8>, held: OwnedFd) -> Lower {
    Lower {
        name: name.to_owned(),
        seal,
        _held: held,
    }
}

/// Is what is found under the name of a sealed tree.
enum Found {
    Nothing,
    /// Somebody found that it is not what was unpacked, or took its seal away.
    Damaged,
    Sealed(Vec<u8>),
}

/// Reads the seal of a tree.
fn sealed(lowers: BorrowedFd<'_>, name: &str) -> Result<Found> {
    let dir = match subdirectory(lowers, name) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(Found::Nothing),
        Err(errno) => return Err(Error::io("open", name, errno)),
    };
    match rustix::fs::statat(&dir, DAMAGED, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => return Ok(Found::Damaged),
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(Error::io("examine", DAMAGED, errno)),
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&dir, SEAL, flags, Mode::empty()) {
        Ok(seal) => read_capped(seal.into(), SEAL_CAP, SEAL).map(Found::Sealed),
        Err(Errno::NOENT) => Ok(Found::Damaged),
        Err(errno) => Err(Error::io("open", SEAL, errno)),
    }
}

fn fill_new(
    lowers: BorrowedFd<'_>,
    name: &str,
    fill: &mut dyn FnMut(&Root) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let filling = format!("{FILLING}{}", to_hex(&clock::random::<8>()?));
    let fail = |e: Errno| Error::io("seal", name, e);
    rustix::fs::mkdirat(lowers, filling.as_str(), Mode::RWXU).map_err(fail)?;
    let filled = filled(lowers, &filling, fill).and_then(|seal| {
        match rename_ours((lowers, filling.as_bytes()), (lowers, name.as_bytes())) {
            Ok(()) => {
                files::sync(lowers, name)?;
                Ok(seal)
            }
            // Somebody else was first.
            Err(Errno::EXIST) => match sealed(lowers, name)? {
                Found::Sealed(seal) => Ok(seal),
                Found::Nothing | Found::Damaged => Err(fail(Errno::BUSY)),
            },
            Err(errno) => Err(fail(errno)),
        }
    });
    // What lies there still is nobody's: whatever stays of it is freed with the idle ones.
    if rustix::fs::accessat(
        lowers,
        filling.as_str(),
        rustix::fs::Access::EXISTS,
        AtFlags::empty(),
    )
    .is_ok()
    {
        drop(reaper::remove_tree(lowers, filling.as_bytes()));
    }
    filled
}

fn filled(
    lowers: BorrowedFd<'_>,
    filling: &str,
    fill: &mut dyn FnMut(&Root) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    let fail = |e: Errno| Error::io("seal", filling, e);
    let dir = subdirectory(lowers, filling).map_err(fail)?;
    rustix::fs::mkdirat(&dir, "tree", Mode::RWXU).map_err(fail)?;
    let tree = Root::from_handle(subdirectory(dir.as_fd(), "tree").map_err(fail)?)?;
    let seal = fill(&tree)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&dir, SEAL, flags, Mode::RUSR).map_err(fail)?;
    std::fs::File::from(file)
        .write_all(&seal)
        .map_err(|e| Error::io("write", SEAL, e))?;
    // Everything that was filled in, in one go.
    rustix::fs::syncfs(&dir).map_err(fail)?;
    Ok(seal)
}
