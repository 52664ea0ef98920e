//! Volumes on disk: made, reopened by identity, marked, owned, put aside and freed.
//!
//! It carries out and observes. Which attempt may open which volume, and what becomes of it, is decided by
//! `core` and recorded by the store.

mod freed;
mod ground;
mod lower;
mod mounts;
mod owner;
pub mod reaper;
mod record;
mod salvage;
#[cfg(test)]
mod tests;

pub use ground::{On, Quiet};
pub use lower::Lower;
pub use mounts::MemorySize;
pub(crate) use mounts::is_of_a_volume;
pub use owner::{OwnerLock, claim_owner, owner_alive};
pub use reaper::{Kept, Reaped};
pub use record::{Records, read_record, write_record};
pub use salvage::{Salvaged, salvage};

use crate::error::{Error, Result};
use crate::files::together::Together;
use crate::files::{file_id, file_id_at, rename_ours};
use crate::root::Root;
use crate::{clock, exec, files};
use mounts::Unmounted;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use semel_core::backend::Backend;
use semel_core::digest::{from_hex, to_hex};
use semel_core::ids::{Generation, JobId, VolumeIdentity};
use semel_core::{Code, Refusal};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NONCE: &str = "user.semel.nonce";
const IDENTITY: &str = "identity.json";
const DIRTY: &str = "dirty";
const MISSING: &str = "volume_missing";
const ASIDE: &str = ".aside-";
const RECORD_CAP: u64 = 64 << 10;

/// Holds the directory under which all volumes of a state root lie.
#[derive(Debug)]
pub struct Volumes {
    dir: OwnedFd,
    path: PathBuf,
    /// The same path with its links followed, as a process in a volume is told it.
    real: PathBuf,
}

/// Says what is left where the volumes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this process may still take.
    pub bytes: u64,
    /// Files that it may still make; `None` where the filesystem counts none.
    pub files: Option<u64>,
}

/// Holds the open handles of one volume.
///
/// # Shape
/// `volumes/<job>/<generation>/{vol/{tree,staging,trash},meta}`; of an overlay also `layer/`, which `vol/` shows over its
/// sealed tree
#[derive(Debug)]
pub struct Volume {
    records: Records,
    backend: Backend,
    tree: Root,
    vol: OwnedFd,
    staging: Arc<OwnedFd>,
    trash: Arc<OwnedFd>,
    /// The syncs of its directories, shared by the calls in it.
    together: Arc<Together>,
}

/// Names a volume that was put aside and is not yet freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aside {
    /// The job whose volume it was.
    pub job: JobId,
    /// The generation that it was.
    pub generation: Generation,
}

impl Volume {
    /// Gives the path of the agent's root, for those who mount it.
    #[must_use]
    pub fn tree_path(&self) -> PathBuf {
        self.path().join("vol/tree")
    }

    /// Frees a directory of the volume's private work, with whatever a program left in it; one that is not there is freed.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn free_work(&self, name: &str) -> Result<Reaped> {
        let work = self.path().join("work");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let work =
            rustix::fs::openat(CWD, &work, flags, Mode::empty()).map_err(|e| Error::io("open", &work, e))?;
        reaper::remove_tree(work.as_fd(), name.as_bytes())
    }

    /// Gives the root of the agent's files.
    #[must_use]
    pub const fn tree(&self) -> &Root {
        &self.tree
    }

    /// Gives the handle on `vol/staging/`.
    #[must_use]
    pub fn staging(&self) -> BorrowedFd<'_> {
        self.staging.as_fd()
    }

    /// Gives the handle on `vol/trash/`.
    #[must_use]
    pub fn trash(&self) -> BorrowedFd<'_> {
        self.trash.as_fd()
    }

    /// Gives the handle on `vol/staging/`, to be synced by.
    pub(crate) fn staging_to_sync(&self) -> Arc<OwnedFd> {
        self.staging.clone()
    }

    /// Gives the handle on `vol/trash/`, to be synced by.
    pub(crate) fn trash_to_sync(&self) -> Arc<OwnedFd> {
        self.trash.clone()
    }

    /// Gives where the syncs of its directories are shared.
    pub(crate) fn together(&self) -> Arc<Together> {
        self.together.clone()
    }

    /// Looks at the volume's identity as it is on disk now.
    ///
    /// # Errors
    /// `unknown_state` where the nonce is missing or malformed; `io_failed`.
    pub fn identity(&self) -> Result<VolumeIdentity> {
        let recorded = self.recorded_identity()?;
        let nonce = match files_attribute(&self.vol) {
            Ok(bytes) => nonce_of(&bytes)?,
            // Where the filesystem keeps no attributes, the record alone names it.
            Err(Errno::OPNOTSUPP) => recorded.nonce.clone(),
            Err(Errno::NODATA) => return Err(no_identity("the volume bears no nonce")),
            Err(errno) => return Err(Error::io("read the nonce of", self.path(), errno)),
        };
        if nonce != recorded.nonce {
            return Err(no_identity("the volume's nonce and its record disagree"));
        }
        Ok(VolumeIdentity {
            nonce,
            handle: file_id(self.tree.handle())?,
            fsid: fsid(self.tree.handle())?,
            boot_id: clock::boot_id()?,
        })
    }

    fn recorded_identity(&self) -> Result<VolumeIdentity> {
        let bytes = read_record(self, IDENTITY, RECORD_CAP)?;
        let bytes = bytes.ok_or_else(|| no_identity("the volume has no identity record"))?;
        serde_json::from_slice(&bytes).map_err(|_| no_identity("the volume's identity record is malformed"))
    }

    fn of(records: Records, backend: Backend, dir: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let vol = subdirectory(dir, "vol")?;
        let tree = subdirectory(vol.as_fd(), "tree")?;
        Ok(Self {
            records,
            backend,
            tree: Root::from_handle(tree).map_err(|_| Errno::IO)?,
            staging: Arc::new(subdirectory(vol.as_fd(), "staging")?),
            trash: Arc::new(subdirectory(vol.as_fd(), "trash")?),
            together: Arc::default(),
            vol,
        })
    }
}

impl Volumes {
    /// Looks how much space is left where the volumes lie.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn space(&self) -> Result<Space> {
        let disk = rustix::fs::fstatvfs(&self.dir).map_err(|e| Error::io("examine", &self.path, e))?;
        Ok(Space {
            bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
            files: (disk.f_files > 0).then_some(disk.f_favail),
        })
    }

    /// Gives what an absolute path is beneath the tree of a volume; `None` for one that does not begin with it.
    ///
    /// It compares names and looks at nothing; what is given may lead out of the tree again.
    #[must_use]
    pub fn in_tree(&self, job: &JobId, generation: &Generation, absolute: &[u8]) -> Option<Vec<u8>> {
        [&self.path, &self.real].into_iter().find_map(|volumes| {
            let tree = volumes
                .join(job.as_str())
                .join(generation.as_str())
                .join("vol/tree");
            let rest = absolute.strip_prefix(tree.as_os_str().as_bytes())?;
            match rest {
                [] => Some(b".".to_vec()),
                [b'/', rest @ ..] => Some([b"./", rest].concat()),
                _ => None,
            }
        })
    }

    /// Refuses where the filesystem of the volumes, which may be another than that of the state root, cannot keep what
    /// durability `power` promises.
    ///
    /// # Errors
    /// As [`files::power_supported`].
    pub fn power_supported(&self) -> Result<()> {
        files::power_supported_at(&self.dir)
    }

    /// Opens, or makes, the place of the volumes under a state root.
    ///
    /// # Errors
    /// `io_failed` where it cannot be opened or made.
    pub fn open(state_root: &Path) -> Result<Self> {
        let path = state_root.join("volumes");
        let fail = |e| Error::io("open", &path, e);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let state = rustix::fs::openat(CWD, state_root, flags, Mode::empty())
            .map_err(|e| Error::io("open", state_root, e))?;
        make(state.as_fd(), "volumes", &path)?;
        let dir = subdirectory(state.as_fd(), "volumes").map_err(fail)?;
        rustix::fs::fsync(&state).map_err(fail)?;
        let real = std::fs::canonicalize(&path).map_err(|e| Error::io("resolve", &path, e))?;
        Ok(Self { dir, path, real })
    }

    /// Makes the volume of a new generation on a plain directory, dirty from its first moment.
    ///
    /// # Errors
    /// `generation_reused` where the generation has a directory already; `io_failed`.
    ///
    /// # Durability
    /// As [`Self::create_on`].
    pub fn create(
        &self,
        job: &JobId,
        generation: &Generation,
        nonce: [u8; 16],
    ) -> Result<(Volume, VolumeIdentity)> {
        self.create_on(job, generation, nonce, &On::Dir)
    }

    /// Makes the volume of a new generation, dirty from its first moment.
    ///
    /// # Errors
    /// `generation_reused` where the generation has a directory already; `io_failed`.
    ///
    /// # Durability
    /// The dirty mark is on disk before `tree/` exists; when this returns, so are the identity and every name, but for
    /// those of a volume in memory.
    pub fn create_on(
        &self,
        job: &JobId,
        generation: &Generation,
        nonce: [u8; 16],
        on: &On,
    ) -> Result<(Volume, VolumeIdentity)> {
        let path = self.path.join(job.as_str()).join(generation.as_str());
        let nonce = to_hex(&nonce);
        let fail = |e: Errno| Error::io("make", &path, e);
        let (dir, records) = self.begin(job, generation)?;
        let backend = self.lay(dir.as_fd(), &records, on)?;
        let vol = subdirectory(dir.as_fd(), "vol").map_err(fail)?;
        ground::furnish(vol.as_fd(), &path)?;
        match rustix::fs::fsetxattr(&vol, NONCE, nonce.as_bytes(), XattrFlags::CREATE) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(Error::io("mark", &path, errno)),
        }
        let volume = Volume::of(records, backend, dir.as_fd()).map_err(fail)?;
        let identity = VolumeIdentity {
            nonce,
            handle: file_id(volume.tree.handle())?,
            fsid: fsid(volume.tree.handle())?,
            boot_id: clock::boot_id()?,
        };
        let json = serde_json::to_vec(&identity).map_err(|e| Error::io("record", &path, e))?;
        write_record(&volume, IDENTITY, &json)?;
        rustix::fs::fsync(&volume.vol).map_err(fail)?;
        rustix::fs::fsync(&dir).map_err(fail)?;
        Ok((volume, identity))
    }

    /// Makes the directory of a new generation, with its mark, and nothing that could hold a file yet.
    fn begin(&self, job: &JobId, generation: &Generation) -> Result<(OwnedFd, Records)> {
        let path = self.path.join(job.as_str()).join(generation.as_str());
        let fail = |e: Errno| Error::io("make", &path, e);
        make(self.dir.as_fd(), job.as_str(), &path)?;
        let of_job = subdirectory(self.dir.as_fd(), job.as_str()).map_err(fail)?;
        let aside = format!("{ASIDE}{generation}");
        let reused = file_id_at(&of_job, aside.as_bytes())?.is_some();
        let made = rustix::fs::mkdirat(&of_job, generation.as_str(), Mode::RWXU);
        if reused || made == Err(Errno::EXIST) {
            let why = "the generation was used before";
            let refusal = Refusal::new(Code::GenerationReused, why).name(generation.to_string());
            return Err(refusal.into());
        }
        made.map_err(fail)?;
        let dir = subdirectory(of_job.as_fd(), generation.as_str()).map_err(fail)?;
        make(dir.as_fd(), "meta", &path)?;
        let meta = subdirectory(dir.as_fd(), "meta").map_err(fail)?;
        record::write_at(meta.as_fd(), DIRTY, b"opened")?;
        for synced in [dir.as_fd(), of_job.as_fd(), self.dir.as_fd()] {
            rustix::fs::fsync(synced).map_err(fail)?;
        }
        let records = Records {
            job: job.clone(),
            generation: generation.clone(),
            path,
            meta,
        };
        Ok((dir, records))
    }

    /// Opens the volume of a living generation again, if it is the very one.
    ///
    /// # Errors
    /// `dirty_volume` with reason `other_boot` where the machine was started anew since; `unknown_state` where it
    /// is missing (reason `volume_missing`) or another one (reason `volume_identity`, naming what differs).
    pub fn reopen(&self, job: &JobId, generation: &Generation, known: &VolumeIdentity) -> Result<Volume> {
        let volume = match self.look(job, generation) {
            // What lay in memory ended with the boot.
            Err(Error::Refused(refusal))
                if refusal.reason.as_deref() == Some(MISSING) && clock::boot_id()? != known.boot_id =>
            {
                return Err(other_boot(generation));
            }
            looked => looked?,
        };
        let now = volume.identity()?;
        let differs: Vec<&str> = [
            ("nonce", now.nonce != known.nonce),
            ("handle", now.handle != known.handle),
            ("fsid", now.fsid != known.fsid),
        ]
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect();
        if !differs.is_empty() {
            let why = "the directory is not the volume that was opened";
            return Err(Refusal::new(Code::UnknownState, why)
                .reason("volume_identity")
                .names(differs)
                .into());
        }
        if now.boot_id != known.boot_id {
            return Err(other_boot(generation));
        }
        Ok(volume)
    }

    /// Opens the volume of a generation to look at it, whatever its identity: for salvage. An overlay whose mount ended
    /// with the boot is mounted again.
    ///
    /// # Errors
    /// `unknown_state` with reason `volume_missing` where a part of it is missing; `io_failed`.
    pub fn look(&self, job: &JobId, generation: &Generation) -> Result<Volume> {
        // The mount of one that ended may be taken away between the two steps.
        let mut looked = self.look_once(job, generation);
        for _ in 0..3 {
            match &looked {
                Err(Error::Refused(refusal)) if refusal.reason.as_deref() == Some(MISSING) => {
                    looked = self.look_once(job, generation);
                }
                _ => break,
            }
        }
        looked
    }

    fn look_once(&self, job: &JobId, generation: &Generation) -> Result<Volume> {
        let (dir, records) = self.known(job, generation)?;
        let backend = match self.stand(dir.as_fd(), &records) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(missing(job, generation));
            }
            stands => stands?,
        };
        Volume::of(records, backend, dir.as_fd()).map_err(|errno| self.absent(errno, job, generation))
    }

    /// Opens what is recorded of a generation beside its volume, which need not be there any more.
    ///
    /// # Errors
    /// `unknown_state` with reason `volume_missing` where the generation has no directory; `io_failed`.
    pub fn records(&self, job: &JobId, generation: &Generation) -> Result<Records> {
        self.known(job, generation).map(|(_, records)| records)
    }

    fn known(&self, job: &JobId, generation: &Generation) -> Result<(OwnedFd, Records)> {
        let fail = |errno| self.absent(errno, job, generation);
        let of_job = subdirectory(self.dir.as_fd(), job.as_str()).map_err(fail)?;
        let dir = subdirectory(of_job.as_fd(), generation.as_str()).map_err(fail)?;
        let records = Records {
            job: job.clone(),
            generation: generation.clone(),
            path: self.path.join(job.as_str()).join(generation.as_str()),
            meta: subdirectory(dir.as_fd(), "meta").map_err(fail)?,
        };
        Ok((dir, records))
    }

    fn absent(&self, errno: Errno, job: &JobId, generation: &Generation) -> Error {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => missing(job, generation),
            errno => Error::io("open", &self.path, errno),
        }
    }

    /// Puts a volume aside under a sibling name, in one rename; what is left is to [`reap`](Self::reap) it.
    ///
    /// # Errors
    /// `volume_busy` where its owner lives, or (reason `execution_running`) a command runs in it; `not_found` where it
    /// is gone; `io_failed`.
    pub fn put_aside(&self, job: &JobId, generation: &Generation) -> Result<Aside> {
        let gone = || Refusal::new(Code::NotFound, "there is no such volume").name(generation.to_string());
        let of_job = match subdirectory(self.dir.as_fd(), job.as_str()) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Err(gone().into()),
            Err(errno) => return Err(Error::io("open", job.as_str(), errno)),
        };
        let meta = subdirectory(of_job.as_fd(), generation.as_str())
            .and_then(|dir| subdirectory(dir.as_fd(), "meta"));
        match meta {
            Ok(meta) if owner::alive_at(meta.as_fd())? => return Err(owner::busy(generation).into()),
            Ok(meta) if exec::any_alive(meta.as_fd())? => {
                let why = "a command runs in the volume";
                let refusal = Refusal::new(Code::VolumeBusy, why).reason("execution_running");
                return Err(refusal.name(generation.to_string()).into());
            }
            // A half-made volume has no owner yet.
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(Error::io("open", generation.as_str(), errno)),
        }
        let aside = format!("{ASIDE}{generation}");
        let from = (of_job.as_fd(), generation.as_str().as_bytes());
        match rename_ours(from, (of_job.as_fd(), aside.as_bytes())) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(gone().into()),
            Err(errno) => return Err(Error::io("put aside", generation.as_str(), errno)),
        }
        Ok(Aside {
            job: job.clone(),
            generation: generation.clone(),
        })
    }

    /// Frees a volume that was put aside; may be cut off and called again.
    ///
    /// # Errors
    /// `io_failed` where a directory cannot be examined. What cannot be removed is named in the answer.
    pub fn reap(&self, aside: &Aside) -> Result<Reaped> {
        let name = format!("{ASIDE}{}", aside.generation);
        let of_job = match subdirectory(self.dir.as_fd(), aside.job.as_str()) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(Reaped::default()),
            Err(errno) => return Err(Error::io("open", aside.job.as_str(), errno)),
        };
        let dir = match subdirectory(of_job.as_fd(), &name) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(Reaped::default()),
            Err(errno) => return Err(Error::io("open", &name, errno)),
        };
        // One frees it at a time; whoever comes second finds nothing.
        rustix::fs::flock(&dir, FlockOperation::LockExclusive).map_err(|e| Error::io("hold", &name, e))?;
        if Self::fell(dir.as_fd(), &aside.generation)? == Unmounted::Busy {
            let kept = Kept {
                path: format!("{}/vol", aside.generation),
                why: "a process uses it, or something is mounted in it".to_owned(),
            };
            return Ok(Reaped {
                removed: 0,
                kept: vec![kept],
            });
        }
        reaper::remove_tree(of_job.as_fd(), name.as_bytes())
    }

    /// Puts a volume aside and frees it at once.
    ///
    /// # Errors
    /// As [`put_aside`](Self::put_aside) and [`reap`](Self::reap).
    pub fn destroy(&self, job: &JobId, generation: &Generation) -> Result<Reaped> {
        let aside = self.put_aside(job, generation)?;
        self.reap(&aside)
    }

    /// Goes through the directory of every generation, those that were put aside included.
    fn each_generation(
        &self,
        each: &mut dyn FnMut(BorrowedFd<'_>, &JobId, &str) -> Result<()>,
    ) -> Result<()> {
        let fail = |e: std::io::Error| Error::io("list", &self.path, e);
        for of_job in std::fs::read_dir(&self.path).map_err(fail)? {
            let of_job = of_job.map_err(fail)?;
            let Some(job) = of_job.file_name().to_str().and_then(|n| JobId::parse(n).ok()) else {
                continue;
            };
            let jobs = match subdirectory(self.dir.as_fd(), job.as_str()) {
                Ok(jobs) => jobs,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(Error::io("open", &self.path, errno)),
            };
            for entry in std::fs::read_dir(of_job.path()).map_err(fail)? {
                let name = entry.map_err(fail)?.file_name();
                let Some(name) = name.to_str() else { continue };
                match subdirectory(jobs.as_fd(), name) {
                    Ok(dir) => each(dir.as_fd(), &job, name)?,
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(errno) => return Err(Error::io("open", name, errno)),
                }
            }
        }
        Ok(())
    }

    /// Lists what was put aside and is not freed yet, also by an earlier process.
    ///
    /// # Errors
    /// `io_failed` where the directory cannot be read.
    pub fn aside(&self) -> Result<Vec<Aside>> {
        let mut all = Vec::new();
        self.each_generation(&mut |_, job, name| {
            let generation = name.strip_prefix(ASIDE);
            if let Some(generation) = generation.and_then(|g| Generation::parse(g).ok()) {
                let job = job.clone();
                all.push(Aside { job, generation });
            }
            Ok(())
        })?;
        all.sort_by(|a, b| (&a.job, &a.generation).cmp(&(&b.job, &b.generation)));
        Ok(all)
    }
}

fn missing(job: &JobId, generation: &Generation) -> Error {
    let why = "the directory of the volume, or a part of it, is missing";
    Refusal::new(Code::UnknownState, why)
        .reason(MISSING)
        .names([job.to_string(), generation.to_string()])
        .into()
}

fn other_boot(generation: &Generation) -> Error {
    let why = "the machine was started anew since the volume was opened";
    Refusal::new(Code::DirtyVolume, why)
        .reason("other_boot")
        .name(generation.to_string())
        .into()
}

fn subdirectory(dir: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

fn make(dir: BorrowedFd<'_>, name: &str, shown: &Path) -> Result<()> {
    match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(Error::io("make", shown, errno)),
    }
}

fn files_attribute(vol: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    files::attribute(vol.as_fd(), NONCE.as_bytes())
}

fn nonce_of(bytes: &[u8]) -> Result<String> {
    let text = core::str::from_utf8(bytes).unwrap_or_default();
    match from_hex(text) {
        Some(bits) if bits.len() == 16 => Ok(text.to_owned()),
        _ => Err(no_identity("the volume's nonce is malformed")),
    }
}

fn fsid(dir: BorrowedFd<'_>) -> Result<String> {
    let seen = rustix::fs::fstatvfs(dir).map_err(|e| Error::io("examine", "a filesystem", e))?;
    Ok(to_hex(&seen.f_fsid.to_be_bytes()))
}

fn no_identity(why: &str) -> Error {
    Refusal::new(Code::UnknownState, why)
        .reason("volume_identity")
        .into()
}
