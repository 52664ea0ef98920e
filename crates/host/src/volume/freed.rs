//! The room of an attempt that used up the disk: what is in its files is nobody's evidence, and in everybody's way.

use super::mounts::{self, Access, Unmounted};
use super::reaper::{self, Kept, Reaped};
use super::{Volumes, ground, subdirectory};
use crate::error::{Error, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use semel_core::backend::Backend;
use semel_core::ids::{Generation, JobId};
use std::os::fd::{AsFd, BorrowedFd};

impl Volumes {
    /// Frees the files of an attempt that ended dirty: its private work, and its tree; of an overlay what lies over the
    /// sealed tree, which others use. The volume itself, and what is recorded of it, stay.
    ///
    /// # Errors
    /// `io_failed`; `unknown_state` where its records are gone. What cannot be removed is named in the answer.
    pub fn free_files(&self, job: &JobId, generation: &Generation) -> Result<Reaped> {
        let (dir, records) = self.known(job, generation)?;
        let fail = |e: Errno| Error::io("free", records.path(), e);
        let backend = ground::read_at(records.meta())?.map_or(Backend::Dir, |ground| ground.backend);
        let mut freed = emptied(dir.as_fd(), "work")?;
        let of_tree = match backend {
            Backend::Overlay => {
                // Below a mount nothing is changed.
                if Self::fell(dir.as_fd(), generation)? == Unmounted::Busy {
                    freed.kept.push(Kept {
                        path: "vol".to_owned(),
                        why: "a process uses it".to_owned(),
                    });
                    return Ok(freed);
                }
                let layer = subdirectory(dir.as_fd(), "layer").map_err(fail)?;
                subdirectory(layer.as_fd(), "upper").map_err(fail)?
            }
            Backend::Dir | Backend::Tmpfs => {
                let vol = subdirectory(dir.as_fd(), "vol").map_err(fail)?;
                if backend == Backend::Tmpfs {
                    mounts::set_access(vol.as_fd(), Access::Write).map_err(fail)?;
                }
                vol
            }
        };
        let tree = emptied(of_tree.as_fd(), "tree")?;
        freed.removed += tree.removed;
        freed.kept.extend(tree.kept);
        Ok(freed)
    }
}

/// Empties a directory, whatever its mode is; one that is not there is empty.
fn emptied(parent: BorrowedFd<'_>, name: &str) -> Result<Reaped> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(parent, name, flags, Mode::empty());
    let top = match open() {
        Err(Errno::ACCESS) => reaper::open_up(parent, name.as_bytes()).and_then(|()| open()),
        other => other,
    };
    match top {
        Ok(top) => reaper::empty(&top),
        Err(Errno::NOENT) => Ok(Reaped::default()),
        Err(errno) => Err(Error::io("free", name, errno)),
    }
}
