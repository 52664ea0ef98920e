//! The files of bridges: one for each that lives, locked by it for as long as it does, and those of which nobody does any
//! more.
//!
//! It knows no line of what they hold. Liveness is the kernel's lock, never a pid or a clock.
//!
//! # Shape
//! `NAME.spool` in one private directory; `NAME.new` while it is made.

use crate::daemon::{Keep, StateRoot};
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use semel_core::ids::UnixMs;
use semel_core::{Code, Refusal};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

const ENDING: &str = ".spool";
const MAKING: &str = ".new";

/// Is a bridge's own file.
#[derive(Debug)]
pub struct Spool {
    root: Arc<StateRoot>,
    name: String,
    file: File,
    keep: Keep,
    /// Whether what is in it survives what it has to survive.
    synced: bool,
    length: u64,
    whole: bool,
}

/// Opens a file and locks it; `None` where somebody else has, or it lost its name meanwhile.
fn locked(root: &StateRoot, name: &str, flags: OFlags) -> Result<Option<File>> {
    let io = |errno| Error::io("open", name, errno);
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(root.handle(), name, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT | Errno::EXIST) => return Ok(None),
        Err(errno) => return Err(io(errno)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(Error::io("lock", name, errno)),
    }
    Ok(has_name(root, name, &file).map_err(io)?.then_some(file))
}

/// Says whether a name leads to a file still.
fn has_name(root: &StateRoot, name: &str, file: &File) -> core::result::Result<bool, Errno> {
    let ours = rustix::fs::fstat(file)?;
    match rustix::fs::statat(root.handle(), name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

impl Spool {
    /// Makes one.
    ///
    /// # Errors
    /// `io_failed`.
    ///
    /// # Durability
    /// What it begins with survives the end of the process; with [`Keep::Synced`] a power cut, too. So does all that is
    /// appended and settled later.
    pub fn make(root: Arc<StateRoot>, name: &str, first: &[u8], keep: Keep) -> Result<Self> {
        let name = format!("{name}{ENDING}");
        let file = begun(&root, &name, first, keep)?;
        Ok(Self {
            root,
            name,
            file,
            keep,
            synced: true,
            length: first.len() as u64,
            whole: true,
        })
    }

    /// Says how long it is.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Says whether all that was appended is in it, and nothing else; after a failure it has to be replaced.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.whole
    }

    /// Says whether it has its name still: what has none is gone with this process, whatever is appended.
    #[must_use]
    pub fn is_named(&self) -> bool {
        has_name(&self.root, &self.name, &self.file).unwrap_or(false)
    }

    /// Appends.
    ///
    /// # Errors
    /// `io_failed`; then it is whole no more.
    ///
    /// # Durability
    /// It survives the end of the process; a power cut not before [`Spool::settle`].
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        (self.whole, self.synced) = (false, false);
        self.file
            .write_all(bytes)
            .map_err(|e| Error::io("write", &self.name, e))?;
        self.length += bytes.len() as u64;
        self.whole = true;
        Ok(())
    }

    /// Makes what was appended as durable as it has to be.
    ///
    /// # Errors
    /// `io_failed`; then it is whole no more.
    ///
    /// # Durability
    /// See [`Spool::make`].
    pub fn settle(&mut self) -> Result<()> {
        if self.keep == Keep::Synced && !self.synced {
            self.whole = false;
            self.file
                .sync_data()
                .map_err(|e| Error::io("sync", &self.name, e))?;
            self.whole = true;
        }
        self.synced = true;
        Ok(())
    }

    /// Puts other content in its place, in one step.
    ///
    /// # Errors
    /// `io_failed`; then it is what it was.
    ///
    /// # Durability
    /// See [`Spool::make`].
    pub fn replace(&mut self, bytes: &[u8]) -> Result<()> {
        self.file = begun(&self.root, &self.name, bytes, self.keep)?;
        self.length = bytes.len() as u64;
        (self.whole, self.synced) = (true, true);
        Ok(())
    }

    /// Takes it away.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn remove(self) -> Result<()> {
        self.root.remove(&self.name)
    }
}

/// Makes a file whole, and locked, before it has its name.
fn begun(root: &StateRoot, name: &str, bytes: &[u8], keep: Keep) -> Result<File> {
    let new = format!("{name}{MAKING}");
    root.remove(&new)?;
    // Whoever tidies up may take it for abandoned before it is locked.
    let mut tries = 0;
    let mut file = loop {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::APPEND;
        match locked(root, &new, flags)? {
            Some(file) => break file,
            None if tries < 8 => tries += 1,
            None => return Err(Error::io("make", name, Errno::EXIST)),
        }
    };
    let made = file
        .write_all(bytes)
        .and_then(|()| {
            if keep == Keep::Synced {
                file.sync_all()
            } else {
                Ok(())
            }
        })
        .map_err(|e| Error::io("write", name, e))
        .and_then(|()| root.rename(&new, name))
        .and_then(|()| match keep {
            Keep::Synced => rustix::fs::fsync(root.handle()).map_err(|e| Error::io("sync", root.path(), e)),
            Keep::Unsynced => Ok(()),
        });
    match made {
        Ok(()) => Ok(file),
        Err(first) => {
            // The first error is the one to tell.
            drop(root.remove(&new));
            Err(first)
        }
    }
}

/// Is a file whose bridge lives no more; nobody else takes it while this one is held.
#[derive(Debug)]
pub struct Abandoned {
    root: Arc<StateRoot>,
    name: String,
    file: File,
    /// When it was last changed.
    pub changed: UnixMs,
}

impl Abandoned {
    /// Gives its name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads it.
    ///
    /// # Errors
    /// `unknown_state` where it is longer than `cap` bytes; `io_failed`.
    pub fn read(&mut self, cap: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut file = (&self.file).take(cap + 1);
        file.read_to_end(&mut bytes)
            .map_err(|e| Error::io("read", &self.name, e))?;
        if bytes.len() as u64 > cap {
            let why = "a spool is longer than any that was ever written";
            return Err(Refusal::new(Code::UnknownState, why).name(&self.name).into());
        }
        Ok(bytes)
    }

    /// Puts other content in its place, or takes it away where there is none.
    ///
    /// # Errors
    /// `io_failed`; then it is what it was.
    pub fn leave(self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            self.root.remove(&self.name)
        } else {
            begun(&self.root, &self.name, bytes, Keep::Synced).map(drop)
        }
    }
}

/// Is held while the files of others are looked at: what one has locked for it, another one would take for that of a bridge
/// that lives.
#[derive(Debug)]
pub struct Alone(#[expect(dead_code, reason = "its lock goes with it")] File);

impl Alone {
    /// Waits until nobody else looks at the files of others. It blocks, for as long as that takes: a few writes.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn wait(root: &StateRoot) -> Result<Self> {
        let io = |errno| Error::io("lock", root.path(), errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(root.handle(), ".", flags, Mode::empty()).map_err(io)?;
        loop {
            match rustix::fs::flock(&dir, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Self(File::from(dir))),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io(errno)),
            }
        }
    }
}

/// Finds the files whose bridges live no more, oldest first, and takes away what was never finished.
///
/// # Errors
/// `io_failed`.
pub fn abandoned(root: &Arc<StateRoot>, _: &Alone) -> Result<Vec<Abandoned>> {
    let mut found = Vec::new();
    for name in root.names()? {
        let (ours, making) = (
            name.ends_with(ENDING),
            name.ends_with(&format!("{ENDING}{MAKING}")),
        );
        if !ours && !making {
            continue;
        }
        let Some(file) = locked(root, &name, OFlags::RDONLY)? else {
            continue;
        };
        if making {
            root.remove(&name)?;
            continue;
        }
        let facts = file.metadata().map_err(|e| Error::io("examine", &name, e))?;
        let changed = facts
            .mtime()
            .saturating_mul(1000)
            .saturating_add(facts.mtime_nsec() / 1_000_000);
        found.push(Abandoned {
            root: root.clone(),
            name,
            file,
            changed: UnixMs(u64::try_from(changed).unwrap_or_default()),
        });
    }
    found.sort_by_key(|file| file.changed);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(dir: &tempfile::TempDir) -> Arc<StateRoot> {
        Arc::new(StateRoot::make(dir.path()).unwrap())
    }

    #[test]
    fn a_spool_is_nobodys_but_its_bridges_while_that_lives() {
        let dir = tempfile::tempdir().unwrap();
        let root = root(&dir);
        let mut spool = Spool::make(root.clone(), "a", b"1\n", Keep::Synced).unwrap();
        spool.append(b"2\n").unwrap();
        spool.settle().unwrap();
        assert_eq!(spool.length(), 4);
        let alone = Alone::wait(&root).unwrap();
        let abandoned = |root: &Arc<StateRoot>| abandoned(root, &alone);
        assert!(abandoned(&root).unwrap().is_empty());
        spool.replace(b"3\n").unwrap();
        spool.append(b"4\n").unwrap();
        assert!(spool.is_named());
        std::fs::rename(dir.path().join("a.spool"), dir.path().join("b.spool")).unwrap();
        assert!(!spool.is_named());
        std::fs::rename(dir.path().join("b.spool"), dir.path().join("a.spool")).unwrap();
        assert!(abandoned(&root).unwrap().is_empty(), "also after it was replaced");
        drop(spool);
        let mut found = abandoned(&root).unwrap();
        assert_eq!(found.len(), 1);
        assert!(abandoned(&root).unwrap().is_empty(), "one takes it at a time");
        assert_eq!(found[0].read(100).unwrap(), b"3\n4\n");
        drop(found);
        let mut found = abandoned(&root).unwrap();
        assert_eq!(found[0].read(2).unwrap_err().code(), Code::UnknownState);
        found.remove(0).leave(b"5\n").unwrap();
        let mut found = abandoned(&root).unwrap();
        assert_eq!(found[0].read(100).unwrap(), b"5\n");
        found.remove(0).leave(b"").unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_never_finished_is_taken_away_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = root(&dir);
        std::fs::write(dir.path().join("a.spool.new"), "half").unwrap();
        std::fs::write(dir.path().join("job.token"), "other").unwrap();
        let alone = Alone::wait(&root).unwrap();
        assert!(abandoned(&root, &alone).unwrap().is_empty());
        assert_eq!(root.names().unwrap(), ["job.token"]);
        std::os::unix::fs::symlink("job.token", dir.path().join("b.spool")).unwrap();
        assert_eq!(abandoned(&root, &alone).unwrap_err().code(), Code::IoFailed);
    }

    #[test]
    fn a_spool_that_is_full_is_told_and_can_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::make(root(&dir), "a", b"", Keep::Unsynced).unwrap();
        spool.file = File::open("/dev/null").unwrap();
        assert!(spool.append(b"1\n").is_err());
        assert!(!spool.is_whole());
        spool.replace(b"1\n").unwrap();
        assert!(spool.is_whole());
        assert_eq!(std::fs::read(dir.path().join("a.spool")).unwrap(), b"1\n");
        spool.remove().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
