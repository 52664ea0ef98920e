//! What shows that an entry was touched, though it is as it was: who changes a file cannot set its time of change.
//!
//! It reads no content; whether two stamps that are equal say enough is for others to know, who look at the bytes, too.

use super::read;
use crate::error::Result;
use crate::root::{LastLink, Root, failed};
use rustix::fs::AtFlags;
use semel_core::RelPath;
use std::os::fd::AsFd as _;

/// Is what an entry looks like without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    links: u64,
    size: i64,
    /// Seconds and nanoseconds of the last change of content, mode, owner, names or attributes.
    changed: (i64, u64),
}

/// Looks at entries beneath a root, each itself: no last link is followed.
///
/// # Errors
/// `not_found`, `path_escapes_root`, `io_failed`.
pub fn stamps<'a>(root: &Root, paths: impl IntoIterator<Item = &'a RelPath>) -> Result<Vec<Stamp>> {
    let stamp = |path: &RelPath| {
        let stat = look(root, path)?;
        Ok(Stamp {
            inode: stat.st_ino,
            links: read::links(&stat),
            size: stat.st_size,
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        })
    };
    paths.into_iter().map(stamp).collect()
}

fn look(root: &Root, path: &RelPath) -> Result<rustix::fs::Stat> {
    let place = root.place(path, LastLink::Keep)?;
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statat(place.parent.as_fd(), place.name.as_slice(), flags).map_err(|e| failed(e, path))
}

/// Is what a directory looks like without what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryStamp {
    /// Seconds and nanoseconds of the last change of its names.
    modified: (i64, u64),
    /// Of the last change of the directory itself: its names, mode, owner, attributes or its own name.
    changed: (i64, u64),
}

impl DirectoryStamp {
    /// Says whether the same names are said to lie in it; who wishes can set that time.
    #[must_use]
    pub fn names_as(&self, other: &Self) -> bool {
        self.modified == other.modified
    }
}

/// Looks at directories beneath a root, each itself. The number of its inode is left out: a stack of filesystems may give
/// one another.
///
/// # Errors
/// `not_found`, `path_escapes_root`, `io_failed`.
pub fn directory_stamps<'a>(
    root: &Root,
    paths: impl IntoIterator<Item = &'a RelPath>,
) -> Result<Vec<DirectoryStamp>> {
    let stamp = |path: &RelPath| {
        let stat = look(root, path)?;
        Ok(DirectoryStamp {
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        })
    };
    paths.into_iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_put_back_bears_another_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("f"), dir.path().join("g"));
        std::fs::write(&file, "one").unwrap();
        std::fs::write(&other, "one").unwrap();
        let before = std::fs::metadata(&file).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let paths = ["f", "g"].map(|path| RelPath::parse(path.as_bytes()).unwrap());
        let first = stamps(&root, &paths).unwrap();
        assert_eq!(stamps(&root, &paths).unwrap(), first, "reading leaves no trace");
        // The clock that stamps a change moves by steps: again, until it has moved.
        let touched = || {
            std::fs::write(&file, "two").unwrap();
            std::fs::write(&file, "one").unwrap();
            let times = std::fs::FileTimes::new().set_modified(before.modified().unwrap());
            std::fs::File::options()
                .write(true)
                .open(&file)
                .unwrap()
                .set_times(times)
                .unwrap();
            stamps(&root, &paths).unwrap()
        };
        let after = (0..1_000_000).map(|_| touched()).find(|after| *after != first);
        let after = after.expect("the time of change moves");
        assert_eq!(
            std::fs::metadata(&file).unwrap().modified().unwrap(),
            before.modified().unwrap()
        );
        assert_ne!(after[0], first[0]);
        assert_eq!(after[1], first[1]);
        std::fs::remove_file(&other).unwrap();
        assert!(stamps(&root, &paths).is_err());
    }
}
