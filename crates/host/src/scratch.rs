//! A directory of one's own for a while: made fresh below the temporary directory, and removed with all that is in it.
//!
//! Everything is named below it, and nothing else can be named. It is for trials whose places only their maker knows:
//! it does not confine an opponent, as [`crate::root`] does.

use crate::error::{Error, Result};
use crate::volume::reaper;
use crate::{clock, volume::reaper::Kept};
use rustix::fs::{Mode, OFlags};
use semel_core::digest::to_hex;
use semel_core::path::shown;
use semel_core::{Code, Refusal};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Says whether the directory outlives its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It is removed.
    No,
    /// It stays, for a person to look at.
    Yes,
}

/// Is the directory; it goes with this value unless it is to be kept.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep: Keep,
}

impl Scratch {
    /// Makes a directory that nobody else may enter, with a name that was never used.
    ///
    /// # Errors
    /// `io_failed` where the temporary directory takes none.
    pub fn create(prefix: &str, keep: Keep) -> Result<Self> {
        let above = std::env::temp_dir();
        let above = above
            .canonicalize()
            .map_err(|e| Error::io("resolve", &above, e))?;
        let path = above.join(format!("{prefix}-{}", to_hex(&clock::random::<6>()?)));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| Error::io("create", &path, e))?;
        Ok(Self { path, keep })
    }

    /// Takes a directory that is there already and somebody else's: it stays, whatever happens.
    ///
    /// # Errors
    /// `io_failed` where there is none.
    pub fn lent(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let path = path.canonicalize().map_err(|e| Error::io("resolve", path, e))?;
        Ok(Self {
            path,
            keep: Keep::Yes,
        })
    }

    /// Gives its absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the absolute path of a place below it.
    ///
    /// # Errors
    /// `path_escapes_root` for what does not lie below it by its name.
    pub fn place(&self, below: impl AsRef<Path>) -> Result<PathBuf> {
        let path = self.path.join(below.as_ref());
        let up = path.components().any(|part| part == Component::ParentDir);
        if up || !path.starts_with(&self.path) {
            let why = "a trial touches nothing outside its own directory";
            let named = shown(path.as_os_str().as_bytes());
            return Err(Refusal::new(Code::PathEscapesRoot, why).name(named).into());
        }
        Ok(path)
    }

    /// Makes a directory with its parents; one that is there is enough.
    ///
    /// # Errors
    /// `path_escapes_root`, `io_failed`.
    pub fn directory(&self, below: impl AsRef<Path>) -> Result<PathBuf> {
        let path = self.place(below)?;
        std::fs::create_dir_all(&path).map_err(|e| Error::io("create", &path, e))?;
        Ok(path)
    }

    /// Writes a file, with its parents; one that is there is overwritten.
    ///
    /// # Errors
    /// `path_escapes_root`, `io_failed`.
    pub fn write(&self, below: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.parented(below)?;
        std::fs::write(&path, bytes).map_err(|e| Error::io("write", &path, e))?;
        Ok(path)
    }

    /// Writes a program: a file that everybody may run.
    ///
    /// # Errors
    /// `path_escapes_root`, `io_failed`.
    pub fn program(&self, below: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.write(below, bytes)?;
        self.mode(&path, 0o755)?;
        Ok(path)
    }

    /// Makes a file that must not be there yet.
    ///
    /// # Errors
    /// `path_escapes_root`; `io_failed`, also where something is there.
    pub fn create_new(&self, below: impl AsRef<Path>, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.parented(below)?;
        let opened = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&path);
        let mut file = opened.map_err(|e| Error::io("create", &path, e))?;
        file.write_all(bytes).map_err(|e| Error::io("write", &path, e))?;
        Ok(path)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// `path_escapes_root` for the link's own place; `io_failed`.
    pub fn link(&self, target: impl AsRef<Path>, below: impl AsRef<Path>) -> Result<PathBuf> {
        let path = self.parented(below)?;
        std::os::unix::fs::symlink(target, &path).map_err(|e| Error::io("link", &path, e))?;
        Ok(path)
    }

    /// Sets the permissions of what is there.
    ///
    /// # Errors
    /// `path_escapes_root`, `io_failed`.
    pub fn mode(&self, below: impl AsRef<Path>, mode: u32) -> Result<()> {
        let path = self.place(below)?;
        let set = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        set.map_err(|e| Error::io("change the mode of", &path, e))
    }

    /// Reads a file; nothing is there, nothing is given.
    ///
    /// # Errors
    /// `path_escapes_root`, `io_failed`.
    pub fn read(&self, below: impl AsRef<Path>) -> Result<Option<Vec<u8>>> {
        let path = self.place(below)?;
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("read", &path, e)),
        }
    }

    /// Says whether anything is there, a link that leads nowhere included.
    ///
    /// # Errors
    /// `path_escapes_root`.
    pub fn exists(&self, below: impl AsRef<Path>) -> Result<bool> {
        Ok(self.place(below)?.symlink_metadata().is_ok())
    }

    /// Lists the names in a directory, sorted.
    ///
    /// # Errors
    /// `path_escapes_root`, `io_failed`.
    pub fn names(&self, below: impl AsRef<Path>) -> Result<Vec<std::ffi::OsString>> {
        let path = self.place(below)?;
        let io = |e| Error::io("list", &path, e);
        let entries = std::fs::read_dir(&path).map_err(io)?;
        let mut names: Vec<_> = entries
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<std::io::Result<_>>()
            .map_err(io)?;
        names.sort();
        Ok(names)
    }

    /// Gives something another name.
    ///
    /// # Errors
    /// `path_escapes_root`, `io_failed`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        std::fs::rename(&from, to).map_err(|e| Error::io("rename", &from, e))
    }

    /// Finds the directory in which something of a name lies, links not followed.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn find(&self, name: &str) -> Result<Option<PathBuf>> {
        let mut todo = vec![self.path.clone()];
        while let Some(directory) = todo.pop() {
            // What goes meanwhile does not hold it.
            let Ok(entries) = std::fs::read_dir(&directory) else {
                continue;
            };
            for entry in entries {
                let entry = entry.map_err(|e| Error::io("list", &directory, e))?;
                if entry.file_name() == name {
                    return Ok(Some(directory));
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    todo.push(entry.path());
                }
            }
        }
        Ok(None)
    }

    /// Says which file or directory has a name; `None` where there is none.
    ///
    /// # Errors
    /// `path_escapes_root`, `io_failed`.
    pub fn identity(&self, below: impl AsRef<Path>) -> Result<Option<(u64, u64)>> {
        let path = self.place(below)?;
        match path.symlink_metadata() {
            Ok(facts) => Ok(Some((facts.dev(), facts.ino()))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("look at", &path, e)),
        }
    }

    /// Has two things take each other's name, in one step.
    ///
    /// # Errors
    /// `path_escapes_root`, `io_failed`.
    pub fn exchange(&self, one: impl AsRef<Path>, other: impl AsRef<Path>) -> Result<()> {
        let (one, other) = (self.place(one)?, self.place(other)?);
        let exchange = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &other, exchange)
            .map_err(|e| Error::io("exchange", &one, e))
    }

    /// Removes one thing, whatever it is; nothing is there, nothing is removed.
    ///
    /// # Errors
    /// `path_escapes_root`; `io_failed` where anything of it stays.
    pub fn remove(&self, below: impl AsRef<Path>) -> Result<()> {
        let path = self.place(below)?;
        if path.symlink_metadata().is_ok_and(|facts| facts.is_dir()) {
            return remove_tree(&path);
        }
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", &path, e)),
            _ => Ok(()),
        }
    }

    /// Removes the directory with all that is in it, unless it is to be kept; gives its path if it is.
    ///
    /// # Errors
    /// `io_failed` where anything of it stays, with the first such thing.
    pub fn close(mut self) -> Result<Option<PathBuf>> {
        let keep = std::mem::replace(&mut self.keep, Keep::Yes);
        if keep == Keep::Yes {
            return Ok(Some(self.path.clone()));
        }
        remove_tree(&self.path)?;
        Ok(None)
    }

    fn parented(&self, below: impl AsRef<Path>) -> Result<PathBuf> {
        let path = self.place(below)?;
        if let Some(parent) = path.parent() {
            self.directory(parent)?;
        }
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.keep == Keep::No {
            // Whoever wants to hear of a failure closes it.
            remove_tree(&self.path).ok();
        }
    }
}

fn remove_tree(path: &Path) -> Result<()> {
    let none = || {
        Error::io(
            "remove",
            path,
            std::io::Error::from(std::io::ErrorKind::InvalidInput),
        )
    };
    let (parent, name) = (
        path.parent().ok_or_else(none)?,
        path.file_name().ok_or_else(none)?,
    );
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent, flags, Mode::empty()).map_err(|e| Error::io("open", parent, e))?;
    let reaped = reaper::remove_tree(std::os::fd::AsFd::as_fd(&parent), name.as_bytes())?;
    match reaped.kept.first() {
        None => Ok(()),
        Some(Kept { path, why }) => Err(Error::io("remove", path, std::io::Error::other(why.clone()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_all_that_is_in_it_and_touches_nothing_else() {
        let scratch = Scratch::create("semel-test", Keep::No).unwrap();
        let place = scratch.path().to_owned();
        assert_eq!(place.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        scratch.write("a/b/c", "one").unwrap();
        scratch.mode("a/b", 0o000).unwrap();
        scratch.link("/etc", "a/link").unwrap();
        assert!(scratch.exists("a/link").unwrap() && !scratch.exists("nothing").unwrap());
        assert_eq!(scratch.read("nothing").unwrap(), None);
        for outside in ["/etc/passwd", "../x", "a/../../x"] {
            assert_eq!(scratch.read(outside).unwrap_err().code(), Code::PathEscapesRoot);
        }
        assert!(scratch.create_new("a/link", b"").is_err());
        assert_eq!(scratch.close().unwrap(), None);
        assert!(!place.exists() && Path::new("/etc/passwd").exists());
    }

    #[test]
    fn it_stays_where_it_is_to_be_kept() {
        let scratch = Scratch::create("semel-test", Keep::Yes).unwrap();
        let kept = scratch.close().unwrap().unwrap();
        assert!(kept.is_dir());
        drop(Scratch::lent(&kept).unwrap());
        assert!(kept.is_dir() && Scratch::lent(kept.join("nothing")).is_err());
        remove_tree(&kept).unwrap();
    }
}
