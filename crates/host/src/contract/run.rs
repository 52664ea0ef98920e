//! A command's run on a disk: the marks that it goes under, and what it left of them.
//!
//! A command may empty its workspace, as a checkout in CI does: mark and state are files there, and go with the rest. So
//! the workspace itself carries a mark, too, an attribute, which no removal of its entries takes away. It names the
//! generation, so that a disk that was emptied for a new one is not refused for ever.

use super::{Disk, Held, Mark};
use crate::error::{Error, Result};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use semel_core::attempt::{ContractState, DIRTY_MARK, Found, RUN_MARK, STATE_FILE, run_mark};
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Is a run that began: the disk is marked dirty.
#[derive(Debug)]
pub struct Begun {
    mark: Mark,
    why: String,
    state: ContractState,
    /// Where the next check looks.
    place: PathBuf,
    /// Whether the workspace itself is marked.
    pub lasting: Lasting,
}

/// Says whether a run is known even where its command removes every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// It is.
    Yes,
    /// The filesystem keeps no attributes of ours.
    No,
}

/// Is what a run's command left of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// All of it.
    Whole,
    /// The state is gone, or another.
    State,
    /// The workspace is another directory.
    Workspace,
    /// The mark is gone, or another stands in its place.
    Mark,
    /// Somebody else marked the disk, too.
    Marked,
}

impl Disk {
    /// Reads the mark of a run that the workspace itself carries.
    pub(super) fn run_mark(&self) -> Result<Found> {
        match crate::files::attribute(self.dir.as_fd(), RUN_MARK.as_bytes()) {
            Ok(bytes) => Ok(Found::Bytes(bytes)),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Found::Absent),
            Err(e) => Err(Error::io("read an attribute of", &self.path, e)),
        }
    }

    fn set_run_mark(&self, generation: &str) -> Result<Lasting> {
        let value = run_mark(generation);
        match rustix::fs::fsetxattr(&self.dir, RUN_MARK, value.as_bytes(), XattrFlags::empty()) {
            Ok(()) => Ok(Lasting::Yes),
            // A directory that we may write to, and not mark, is marked by a file alone.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::ACCESS) => Ok(Lasting::No),
            Err(e) => Err(Error::io("set an attribute of", &self.path, e)),
        }
    }

    pub(super) fn lift_run_mark(&self) -> Result<()> {
        match rustix::fs::fremovexattr(&self.dir, RUN_MARK) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(e) => Err(Error::io("remove an attribute of", &self.path, e)),
        }
    }

    /// Looks at what a command left of the contract, and lifts the marks where it ended clean and left all of it.
    ///
    /// Wherever it does not lift them, it sees to it that they are there, also in another directory that stands at the place
    /// of the workspace by now.
    ///
    /// # Durability
    /// The marks are on the disk, or gone from it, when this returns.
    ///
    /// # Errors
    /// `io_failed`; marks that are there stay.
    pub fn end(&self, begun: &Begun, ended: Ended) -> Result<Left> {
        let held = self.hold()?;
        let left = self.left(begun)?;
        if let Some(other) = left.1 {
            // Nobody knows what that one holds; whoever looks next looks there.
            let lock = other.hold()?;
            other.mark_again(begun)?;
            drop(lock);
        } else if left.0 == Left::Whole && ended == Ended::Clean {
            self.remove_mark()?;
            self.lift_run_mark()?;
            self.sync()?;
        } else if left.0 != Left::Workspace {
            self.mark_again(begun)?;
        }
        drop(held);
        Ok(left.0)
    }

    fn mark_again(&self, begun: &Begun) -> Result<()> {
        self.set_run_mark(&begun.state.generation)?;
        match self.kind(DIRTY_MARK)? {
            None => self.mark_dirty(&begun.why).map(drop),
            Some(_) => self.sync(),
        }
    }

    fn left(&self, begun: &Begun) -> Result<(Left, Option<Self>)> {
        let Ok(now) = Self::open(&begun.place) else {
            return Ok((Left::Workspace, None));
        };
        let id = |disk: &Self| match rustix::fs::fstat(&disk.dir) {
            Ok(stat) => Ok((stat.st_dev, stat.st_ino)),
            Err(e) => Err(Error::io("look at", &disk.path, e)),
        };
        if id(&now)? != id(self)? {
            return Ok((Left::Workspace, Some(now)));
        }
        if self.small_file(STATE_FILE)? != Found::Bytes(begun.state.to_bytes()) {
            return Ok((Left::State, None));
        }
        Ok((
            match self.small_file(DIRTY_MARK)? {
                Found::Bytes(bytes) if bytes == begun.mark.0 => Left::Whole,
                Found::Bytes(bytes) if bytes.starts_with(&begun.mark.0) => Left::Marked,
                _ => Left::Mark,
            },
            None,
        ))
    }
}

/// Says how a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With exit 0, and nothing of it lives on.
    Clean,
    /// Otherwise.
    Dirty,
}

impl Held<'_> {
    /// Writes the state of a passed check, and marks the disk, while the workspace is held.
    ///
    /// # Durability
    /// State and marks are on the disk when this returns.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn begin(&self, state: &ContractState, why: &str) -> Result<Begun> {
        let disk = self.0;
        let place = std::path::absolute(&disk.path).map_err(|e| Error::io("resolve", &disk.path, e))?;
        self.save(state)?;
        let lasting = disk.set_run_mark(&state.generation)?;
        let mark = match disk.mark_dirty(why) {
            Ok(mark) => mark,
            Err(error) => {
                // Nothing ran: a disk that was full by then is not dirty. Where this fails, it is refused in vain.
                drop(disk.lift_run_mark());
                return Err(error);
            }
        };
        Ok(Begun {
            mark,
            why: why.to_owned(),
            state: state.clone(),
            place,
            lasting,
        })
    }
}
