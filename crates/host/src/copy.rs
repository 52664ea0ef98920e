//! Copies a person's directory into a new volume, before anybody may call in it.
//!
//! What belongs to git is left out. It follows no link and copies no device, FIFO or socket; it is not a backup:
//! owners, times and extended attributes are those of a new file.

use crate::error::{Error, Result};
use crate::files::FileKind;
use crate::leftover;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use semel_core::{Code, Refusal, RelPath};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

/// Counts what was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub links: u64,
    /// Directories.
    pub directories: u64,
}

/// Copies the entries of a directory into another one.
///
/// # Errors
/// `not_found` where there is no such directory; `path_escapes_root` for a link that leads out of the copy, or
/// `tree_not_empty` where it is part of a virtual environment; `bad_input` for a device, FIFO or socket, and for a name past the limits of a path; `io_failed`. What was copied
/// before the refusal stays: the volume is not ready yet.
///
/// # Limits
/// Those of [`RelPath`]: 64 levels.
pub fn copy_tree(from: &Path, into: BorrowedFd<'_>) -> Result<Copied> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let from_dir = rustix::fs::open(from, flags, Mode::empty()).map_err(|errno| match errno {
        rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => {
            Refusal::new(Code::NotFound, "there is no such directory")
                .name(from.display().to_string())
                .into()
        }
        _ => Error::io("open", from, errno),
    })?;
    let mut copied = Copied::default();
    let target =
        rustix::fs::openat(into, ".", flags, Mode::empty()).map_err(|e| Error::io("open", "tree", e))?;
    directory(&from_dir, &target, &RelPath::root(), &mut copied)?;
    Ok(copied)
}

/// Makes everything on the filesystem of a directory durable, a copy of many files included.
///
/// # Errors
/// `io_failed`.
pub fn sync(dir: BorrowedFd<'_>) -> Result<()> {
    rustix::fs::syncfs(dir).map_err(|e| Error::io("sync", "the copy", e))
}

fn directory(from: &OwnedFd, into: &OwnedFd, at: &RelPath, copied: &mut Copied) -> Result<()> {
    entries(from, into, at, copied).map_err(|error| of_environment(from, at, error))
}

/// Names the environment that a link which leads out belongs to: a person looks for that, not for the link.
fn of_environment(from: &OwnedFd, at: &RelPath, error: Error) -> Error {
    if error.code() != Code::PathEscapesRoot {
        return error;
    }
    let found = leftover::find(from.as_fd(), &|_, kind| kind != FileKind::File);
    match found {
        Ok(Some((mark, of))) => match at.join(mark.as_bytes()) {
            Ok(path) => Refusal::new(Code::TreeNotEmpty, format!("{of} lies in the directory"))
                .name(path.to_string())
                .into(),
            Err(_) => error,
        },
        _ => error,
    }
}

fn entries(from: &OwnedFd, into: &OwnedFd, at: &RelPath, copied: &mut Copied) -> Result<()> {
    let fail = |doing: &'static str, path: &RelPath, errno| Error::io(doing, path.to_string(), errno);
    let listing = Dir::read_from(from).map_err(|e| fail("list", at, e))?;
    for entry in listing {
        let entry = entry.map_err(|e| fail("list", at, e))?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." || name.eq_ignore_ascii_case(b".git") {
            continue;
        }
        let path = at.join(name)?;
        let stat = rustix::fs::statat(from, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| fail("examine", &path, e))?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let below = rustix::fs::openat(from, name, flags, Mode::empty())
                    .map_err(|e| fail("open", &path, e))?;
                rustix::fs::mkdirat(into, name, Mode::RWXU).map_err(|e| fail("make", &path, e))?;
                let made = rustix::fs::openat(into, name, flags, Mode::empty())
                    .map_err(|e| fail("open", &path, e))?;
                directory(&below, &made, &path, copied)?;
                rustix::fs::fchmod(&made, mode | Mode::RWXU).map_err(|e| fail("restrict", &path, e))?;
                copied.directories += 1;
            }
            FileType::RegularFile => {
                file(from, into, name, &path, mode)?;
                copied.files += 1;
            }
            FileType::Symlink => {
                link(from, into, name, &path)?;
                copied.links += 1;
            }
            _ => {
                let why = "only files, directories and symbolic links are copied into a volume";
                return Err(Refusal::new(Code::BadInput, why).name(path.to_string()).into());
            }
        }
    }
    Ok(())
}

fn file(from: &OwnedFd, into: &OwnedFd, name: &[u8], path: &RelPath, mode: Mode) -> Result<()> {
    let fail = |doing: &'static str, e: std::io::Error| Error::io(doing, path.to_string(), e);
    let reading = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source =
        rustix::fs::openat(from, name, reading, Mode::empty()).map_err(|e| fail("open", e.into()))?;
    let writing = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = rustix::fs::openat(into, name, writing, mode).map_err(|e| fail("make", e.into()))?;
    let (mut source, mut target) = (std::fs::File::from(source), std::fs::File::from(target));
    std::io::copy(&mut source, &mut target).map_err(|e| fail("copy", e))?;
    rustix::fs::fchmod(&target, mode).map_err(|e| fail("restrict", e.into()))
}

fn link(from: &OwnedFd, into: &OwnedFd, name: &[u8], path: &RelPath) -> Result<()> {
    let fail = |e| Error::io("copy the link", path.to_string(), e);
    let text = rustix::fs::readlinkat(from.as_fd(), name, Vec::new()).map_err(fail)?;
    let (parent, _) = path.split_last().unwrap_or((RelPath::root(), b""));
    let mut led = parent.as_bytes().to_vec();
    led.push(b'/');
    led.extend_from_slice(text.as_bytes());
    let led = led.strip_prefix(b"/").unwrap_or(&led);
    if text.as_bytes().first() == Some(&b'/') || RelPath::parse(led).is_err() {
        let why = "a symbolic link leads out of the directory";
        return Err(Refusal::new(Code::PathEscapesRoot, why)
            .name(path.to_string())
            .into());
    }
    rustix::fs::symlinkat(&text, into, name).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_copied_without_git_and_links_that_leave_are_refused() {
        let (from, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(from.path().join("a/b")).unwrap();
        std::fs::create_dir_all(from.path().join(".git")).unwrap();
        std::fs::write(from.path().join("a/b/f"), "x").unwrap();
        std::os::unix::fs::symlink("b/f", from.path().join("a/l")).unwrap();
        let handle = std::fs::File::open(into.path()).unwrap();
        let copied = copy_tree(from.path(), handle.as_fd()).unwrap();
        assert_eq!((copied.files, copied.links, copied.directories), (1, 1, 2));
        assert_eq!(std::fs::read(into.path().join("a/l")).unwrap(), b"x");
        assert!(!into.path().join(".git").exists());
        for away in ["/etc/passwd", "../../x"] {
            let (from, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            std::os::unix::fs::symlink(away, from.path().join("l")).unwrap();
            let handle = std::fs::File::open(into.path()).unwrap();
            let refused = copy_tree(from.path(), handle.as_fd()).unwrap_err();
            assert_eq!(refused.code(), Code::PathEscapesRoot, "{away}");
        }
    }

    #[test]
    fn a_virtual_environment_is_refused_by_its_own_name() {
        let (from, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let venv = from.path().join("app/.venv");
        std::fs::create_dir_all(venv.join("bin")).unwrap();
        std::fs::write(venv.join("pyvenv.cfg"), "home = /usr/bin\n").unwrap();
        std::os::unix::fs::symlink("/usr/bin/python3", venv.join("bin/python")).unwrap();
        let handle = std::fs::File::open(into.path()).unwrap();
        let Error::Refused(refusal) = copy_tree(from.path(), handle.as_fd()).unwrap_err() else {
            panic!("a refusal");
        };
        assert_eq!(refusal.code, Code::TreeNotEmpty);
        assert_eq!(refusal.names, ["app/.venv/pyvenv.cfg"]);
        // One that is no part of it keeps its own name.
        std::fs::remove_file(venv.join("bin/python")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", from.path().join("leak")).unwrap();
        let into = tempfile::tempdir().unwrap();
        let handle = std::fs::File::open(into.path()).unwrap();
        let refused = copy_tree(from.path(), handle.as_fd()).unwrap_err();
        assert_eq!(refused.code(), Code::PathEscapesRoot);
    }
}
