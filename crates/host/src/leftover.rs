//! Looks for a leftover environment in a tree; what one is known by is decided in `semel_core::install::leftover`.

use crate::error::{Error, Result};
use crate::files::FileKind;
use rustix::fs::{AtFlags, Mode, OFlags};
use semel_core::RelPath;
use semel_core::install::leftover::{self, What};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Finds the first entry of a leftover environment, with what it belongs to.
///
/// `skip` names what is not looked at: an entry, or a directory with everything in it. What belongs to git never is.
/// No link is followed.
///
/// # Errors
/// `io_failed`.
pub fn find(
    top: BorrowedFd<'_>,
    skip: &dyn Fn(&RelPath, FileKind) -> bool,
) -> Result<Option<(RelPath, &'static str)>> {
    let mut open = vec![(
        RelPath::root(),
        enter(top, b".").map_err(|e| Error::io("open", "the tree", e))?,
    )];
    while let Some((at, dir)) = open.pop() {
        let io = |e| Error::io("list", at.to_string(), e);
        for entry in rustix::fs::Dir::read_from(&dir).map_err(io)? {
            let name = entry.map_err(io)?.file_name().to_bytes().to_vec();
            // A name past the limits of a path is refused where it is sealed; it is no environment's.
            let Ok(path) = at.join(&name) else { continue };
            if path.in_git_dir() {
                continue;
            }
            let stat = rustix::fs::statat(&dir, &name[..], AtFlags::SYMLINK_NOFOLLOW).map_err(io)?;
            let kind = FileKind::of(&stat);
            if skip(&path, kind) {
                continue;
            }
            if let Some(of) = recognise(dir.as_fd(), &name, &path, kind) {
                return Ok(Some((path, of)));
            }
            if kind == FileKind::Directory
                && let Ok(below) = enter(dir.as_fd(), &name)
            {
                open.push((path, below));
            }
        }
    }
    Ok(None)
}

fn enter(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

fn recognise(dir: BorrowedFd<'_>, name: &[u8], path: &RelPath, kind: FileKind) -> Option<&'static str> {
    let text = leftover::wants_text(path).and_then(|most| {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(dir, name, flags, Mode::empty()).ok()?);
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    });
    let what = match kind {
        FileKind::Directory => What::Directory,
        FileKind::Symlink => What::Symlink,
        FileKind::File => What::File(text.as_deref()),
        FileKind::Special => return None,
    };
    leftover::recognise(path, what)
}
