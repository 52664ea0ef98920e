//! What a volume lies on: a directory, an overlay or a filesystem in memory; told in `meta/` before it is mounted.
//!
//! It does not choose; [`semel_core::backend`] does.

use super::lower::{self, Lower};
use super::mounts::{self, Access, Layers, MemorySize, Overlay};
use super::reaper;
use super::{Records, Volume, Volumes, make, record, subdirectory};
use crate::clock;
use crate::error::{Error, Result};
use crate::files::{FileKind, list_directory};
use crate::root::{Root, mount_id};
use crate::sandbox;
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use semel_core::backend::{Backend, Offer};
use semel_core::digest::to_hex;
use semel_core::ids::{Generation, JobId};
use semel_core::{Code, Refusal, RelPath};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

pub(super) const RECORD: &str = "backend.json";
const RECORD_CAP: u64 = 4096;
const PROBE: &str = ".probe-";
const EMPTY: &str = "empty";

/// Says what a new volume is to lie on.
#[derive(Debug)]
pub enum On {
    /// A plain directory.
    Dir,
    /// A layer of its own over a sealed tree.
    Overlay(Lower),
    /// The same, but what is root's in it is shown as the user's as whom programs run, where that can be had. Whoever
    /// makes something in it as root makes it for root: it is for what programs alone write.
    Owned(Lower),
    /// A filesystem in memory.
    Tmpfs(MemorySize),
}

/// Is what `meta/` says of what a volume lies on; a volume without it lies on a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ground {
    pub(super) backend: Backend,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lower: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overlay: Option<Overlay>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<MemorySize>,
    /// Whose what is root's is shown as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<u32>,
}

/// Reads what an open `meta/` says; `None` for a directory.
pub(super) fn read_at(meta: BorrowedFd<'_>) -> Result<Option<Ground>> {
    let odd = |why: String| Refusal::new(Code::UnknownState, why).name(RECORD);
    match record::read_at(meta, RECORD, RECORD_CAP)? {
        None => Ok(None),
        Some(bytes) => {
            let ground: Ground = serde_json::from_slice(&bytes).map_err(|e| odd(e.to_string()))?;
            match &ground.lower {
                Some(name) if !lower::is_name(name) => Err(odd("it names no sealed tree".to_owned()).into()),
                _ => Ok(Some(ground)),
            }
        }
    }
}

/// Says whether the content of a volume can still change while it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiet {
    /// Its mount is read-only for everybody: no process can write to it, nor has a file of it open for that.
    Proved,
    /// It is no mount that this process may change: only the end of every process proves it.
    Unproved,
}

impl Volumes {
    /// Tries what this machine has for volumes.
    ///
    /// # Errors
    /// `io_failed` where nothing can be made beside the volumes.
    pub fn offers(&self) -> Result<Vec<Offer>> {
        let (name, _held) = self.trial()?;
        let place = self.path.join(&name);
        let overlay = mounts::try_overlay(&place);
        let memory = mounts::try_tmpfs(&place);
        let left = reaper::remove_tree(self.dir.as_fd(), name.as_bytes())?;
        if let Some(kept) = left.kept.first() {
            let why = std::io::Error::other(kept.why.clone());
            return Err(Error::io("clear away", place.join(&kept.path), why));
        }
        let offer = |backend, missing: Option<std::io::Error>| Offer {
            backend,
            missing: missing.map(|error| error.to_string()),
            weaker: Vec::new(),
        };
        let mut all = vec![offer(Backend::Dir, None)];
        all.push(match overlay {
            Ok((Overlay::Full, _)) => offer(Backend::Overlay, None),
            Ok((Overlay::Plain, lacking)) => Offer {
                weaker: vec![format!(
                    "directories of the sealed tree cannot be renamed ({})",
                    lacking.unwrap_or_default()
                )],
                ..offer(Backend::Overlay, None)
            },
            Err(error) => offer(Backend::Overlay, Some(error)),
        });
        all.push(offer(Backend::Tmpfs, memory.err()));
        Ok(all)
    }

    /// Makes a directory for a trial, and holds it.
    pub(super) fn trial(&self) -> Result<(String, OwnedFd)> {
        loop {
            let name = format!("{PROBE}{}", to_hex(&clock::random::<8>()?));
            let place = self.path.join(&name);
            let fail = |doing: &'static str, errno| Error::io(doing, &place, errno);
            make(self.dir.as_fd(), &name, &place)?;
            let held = match subdirectory(self.dir.as_fd(), &name) {
                Ok(held) => held,
                // A daemon that starts took it for one that a killed process left: nobody held it yet.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(fail("open", errno)),
            };
            rustix::fs::flock(&held, FlockOperation::LockExclusive).map_err(|e| fail("hold", e))?;
            if rustix::fs::fstat(&held).map_err(|e| fail("examine", e))?.st_nlink > 0 {
                return Ok((name, held));
            }
        }
    }

    /// Takes away what a killed trial left.
    ///
    /// # Errors
    /// `io_failed` where the volumes cannot be listed.
    pub fn clear_trials(&self) -> Result<()> {
        let fail = |e: std::io::Error| Error::io("list", &self.path, e);
        for entry in std::fs::read_dir(&self.path).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            let Some(name) = name.to_str().filter(|name| name.starts_with(PROBE)) else {
                continue;
            };
            let Ok(dir) = subdirectory(self.dir.as_fd(), name) else {
                continue;
            };
            // Whoever still tries holds it.
            if rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let source = mounts::source("probe");
            for (below, at) in [("full", "vol"), ("plain", "vol"), (".", "memory")] {
                if let Ok(below) = subdirectory(dir.as_fd(), below) {
                    drop(mounts::take_away(below.as_fd(), at, &source));
                }
            }
            drop(reaper::remove_tree(self.dir.as_fd(), name.as_bytes()));
        }
        Ok(())
    }

    /// Gives the sealed tree that holds nothing.
    ///
    /// # Errors
    /// As [`Volumes::lower`].
    pub fn empty_lower(&self) -> Result<Lower> {
        self.lower(EMPTY, &mut |_| Ok(Vec::new()))
    }

    /// Lays the ground of a new generation: `vol/`, empty, with what is told of it in `meta/` first.
    pub(super) fn lay(&self, dir: BorrowedFd<'_>, records: &Records, on: &On) -> Result<Backend> {
        let path = records.path();
        make(dir, "vol", path)?;
        let ground = match on {
            On::Dir => return Ok(Backend::Dir),
            On::Overlay(lower) | On::Owned(lower) => Ground {
                backend: Backend::Overlay,
                lower: Some(lower.name.clone()),
                overlay: None,
                size: None,
                owner: None,
            },
            On::Tmpfs(size) => Ground {
                backend: Backend::Tmpfs,
                lower: None,
                overlay: None,
                size: Some(*size),
                owner: None,
            },
        };
        let owned = Some(sandbox::own_user()).filter(|_| sandbox::has_own_user());
        let kinds: Vec<(Option<Overlay>, Option<u32>)> = match on {
            On::Overlay(_) => Overlay::ALL.map(|kind| (Some(kind), None)).to_vec(),
            On::Owned(_) => {
                let mapped = Overlay::ALL.map(|kind| (Some(kind), owned));
                let plain = Overlay::ALL.map(|kind| (Some(kind), None));
                mapped.into_iter().chain(plain).collect()
            }
            On::Dir | On::Tmpfs(_) => vec![(None, None)],
        };
        let mut failed = None;
        for (overlay, owner) in kinds {
            let ground = Ground {
                overlay,
                owner,
                ..ground.clone()
            };
            let json = serde_json::to_vec(&ground).map_err(|e| Error::io("record", path, e))?;
            // Before it is mounted: whoever frees a half-made volume takes away the mount that this names.
            record::write_at(records.meta(), RECORD, &json)?;
            match self.mount(dir, records, &ground) {
                Ok(()) => return Ok(ground.backend),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| Error::io("mount", path, Errno::NOSYS)))
    }

    /// Mounts what a volume lies on, by what `meta/` says of it.
    fn mount(&self, dir: BorrowedFd<'_>, records: &Records, ground: &Ground) -> Result<()> {
        let path = records.path();
        let fail = |e: std::io::Error| Error::io("mount", path.join("vol"), e);
        let at = subdirectory(dir, "vol").map_err(|e| fail(e.into()))?;
        let source = mounts::source(records.generation().as_str());
        match (ground.backend, &ground.lower, ground.size) {
            (Backend::Dir, _, _) => Ok(()),
            (Backend::Tmpfs, _, Some(size)) => mounts::tmpfs(at.as_fd(), size, &source).map_err(fail),
            (Backend::Overlay, Some(lower), _) => {
                make(dir, "layer", path)?;
                let layer = subdirectory(dir, "layer").map_err(|e| fail(e.into()))?;
                for name in ["upper", "work"] {
                    make(layer.as_fd(), name, path)?;
                }
                let layers = Layers {
                    lower: self.real.join(lower::PLACE).join(lower),
                    upper: self.real_path(path, "layer/upper"),
                    work: self.real_path(path, "layer/work"),
                };
                let kind = ground.overlay.unwrap_or(Overlay::Plain);
                match ground.owner {
                    None => mounts::overlay(at.as_fd(), &layers, kind, &source).map_err(fail),
                    Some(uid) => mounts::owned(at.as_fd(), &layers, uid, kind, &source).map_err(fail),
                }
            }
            (Backend::Tmpfs | Backend::Overlay, _, _) => {
                let why = "what is told of the volume's ground is not whole";
                Err(Refusal::new(Code::UnknownState, why).name(RECORD).into())
            }
        }
    }

    fn real_path(&self, path: &Path, below: &str) -> std::path::PathBuf {
        let rest = path.strip_prefix(&self.path).unwrap_or(path);
        self.real.join(rest).join(below)
    }

    /// Makes sure that what a volume lies on is there; a layer whose mount ended with the boot is mounted again.
    ///
    /// # Errors
    /// `unknown_state`, reason `volume_missing`, where it was in memory and is gone; `io_failed`.
    pub(super) fn stand(&self, dir: BorrowedFd<'_>, records: &Records) -> Result<Backend> {
        let Some(ground) = read_at(records.meta())? else {
            return Ok(Backend::Dir);
        };
        let fail = |e: std::io::Error| Error::io("examine", records.path(), e);
        let source = mounts::source(records.generation().as_str());
        let at = subdirectory(dir, "vol").map_err(|e| fail(e.into()))?;
        if mounts::is_mounted(at.as_fd(), &source).map_err(fail)? {
            return Ok(ground.backend);
        }
        let here = |fd| mount_id(fd).map_err(|e| fail(e.into()));
        if here(at.as_fd())? != here(dir)? {
            let why = "something else is mounted where the volume lay";
            return Err(Refusal::new(Code::UnknownState, why)
                .reason("volume_identity")
                .name(records.generation().as_str())
                .into());
        }
        drop(at);
        match ground.backend {
            Backend::Dir => Ok(Backend::Dir),
            Backend::Overlay => match self.mount(dir, records, &ground) {
                Ok(()) => Ok(Backend::Overlay),
                Err(error) => {
                    let why = format!("the layers of the volume cannot be mounted again: {error}");
                    Err(missing(why, records.generation()))
                }
            },
            Backend::Tmpfs => {
                let why = "the volume lay in memory, and its mount is gone".to_owned();
                Err(missing(why, records.generation()))
            }
        }
    }

    /// Lists the generations of which something is mounted.
    ///
    /// # Errors
    /// `io_failed` where the table of mounts cannot be read.
    pub fn mounted(&self) -> Result<Vec<Generation>> {
        let names =
            mounts::beneath(&self.real).map_err(|e| Error::io("list the mounts of", &self.path, e))?;
        Ok(names
            .iter()
            .filter_map(|name| Generation::parse(name).ok())
            .collect())
    }

    /// Takes away the mount of an overlay that nobody uses now; it is mounted again when somebody looks. What lies in
    /// memory stays.
    ///
    /// # Errors
    /// `io_failed`; `unknown_state` where its records are gone.
    pub fn rest(&self, job: &JobId, generation: &Generation) -> Result<()> {
        let (dir, records) = self.known(job, generation)?;
        if read_at(records.meta())?.is_some_and(|ground| ground.backend == Backend::Overlay) {
            Self::fell(dir.as_fd(), generation)?;
        }
        Ok(())
    }

    /// Takes away what is mounted of a volume that was put aside; says whether it is gone.
    pub(super) fn fell(dir: BorrowedFd<'_>, generation: &Generation) -> Result<mounts::Unmounted> {
        let source = mounts::source(generation.as_str());
        mounts::take_away(dir, "vol", &source).map_err(|e| Error::io("unmount", generation.as_str(), e))
    }
}

fn missing(why: String, generation: &Generation) -> Error {
    Refusal::new(Code::UnknownState, why)
        .reason(super::MISSING)
        .name(generation.as_str())
        .into()
}

impl Volume {
    /// Gives what the volume lies on.
    #[must_use]
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// Keeps everybody from changing the content of the volume, where it is a mount of its own; it stays so until
    /// [`Self::loosen`], or for good.
    ///
    /// # Errors
    /// `volume_busy`, reason `still_written`, where a process has a file of it open or mapped for writing.
    pub fn quiet(&self) -> Result<Quiet> {
        if !self.backend.is_mounted() {
            return Ok(Quiet::Unproved);
        }
        match mounts::set_access(self.vol.as_fd(), Access::Read) {
            Ok(()) => Ok(Quiet::Proved),
            Err(Errno::BUSY) => Err(Refusal::new(
                Code::VolumeBusy,
                "a process has a file of the volume open for writing",
            )
            .reason("still_written")
            .name(self.generation().as_str())
            .into()),
            Err(Errno::PERM | Errno::ACCESS | Errno::INVAL) => Ok(Quiet::Unproved),
            Err(errno) => Err(Error::io("restrict", self.path(), errno)),
        }
    }

    /// Lets the content of the volume change again.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn loosen(&self) -> Result<()> {
        if !self.backend.is_mounted() {
            return Ok(());
        }
        mounts::set_access(self.vol.as_fd(), Access::Write)
            .map_err(|e| Error::io("open for writing", self.path(), e))
    }

    /// Lists what was changed over the sealed tree, as paths in it: what is new, was copied up, and what is whited out;
    /// `None` where the volume lies over none. Directories alone are not listed.
    ///
    /// # Errors
    /// `too_large` past so many entries; `io_failed`.
    pub fn changed(&self, most: usize) -> Result<Option<Vec<RelPath>>> {
        if self.backend != Backend::Overlay {
            return Ok(None);
        }
        let fail = |e: Errno| Error::io("examine", self.path(), e);
        let dir = subdirectory(self.meta(), "..").map_err(fail)?;
        let layer = subdirectory(dir.as_fd(), "layer").map_err(fail)?;
        let upper = subdirectory(layer.as_fd(), "upper").map_err(fail)?;
        let root = match subdirectory(upper.as_fd(), "tree") {
            Ok(tree) => Root::from_handle(tree)?,
            Err(Errno::NOENT) => return Ok(Some(Vec::new())),
            Err(errno) => return Err(fail(errno)),
        };
        let mut found = Vec::new();
        let mut open = vec![RelPath::root()];
        let mut left = most;
        while let Some(directory) = open.pop() {
            let listed = list_directory(&root, &directory, left)?;
            left = left.saturating_sub(listed.len());
            for entry in listed {
                let path = directory.join(&entry.name)?;
                match entry.kind {
                    FileKind::Directory => open.push(path),
                    FileKind::File | FileKind::Symlink | FileKind::Special => found.push(path),
                }
            }
        }
        found.sort();
        Ok(Some(found))
    }
}

/// Makes the agent's root and what stands beside it; what a sealed tree brought stands already, and becomes the layer's
/// own, so that it keeps its identity from the first moment.
pub(super) fn furnish(vol: BorrowedFd<'_>, shown: &Path) -> Result<()> {
    for name in ["tree", "staging", "trash"] {
        make(vol, name, shown)?;
    }
    rustix::fs::chmodat(vol, "tree", Mode::RWXU, rustix::fs::AtFlags::empty())
        .map_err(|e| Error::io("restrict", shown, e))
}
