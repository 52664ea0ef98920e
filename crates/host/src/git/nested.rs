//! Repositories of others within a worktree: what is one, and what only has its name.

use super::worktree::{path_of, pointer_at};
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode as FileMode, OFlags, openat, statat};
use rustix::io::Errno;
use semel_core::RelPath;
use semel_core::path::shown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// What a repository without a worktree has at the least.
pub(super) const BARE: [&[u8]; 2] = [b"HEAD", b"objects"];

/// Says whether a name is that of a worktree's repository, on any filesystem.
pub(super) fn is_dot_git(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b".git")
}

/// Says whether an entry may be somebody's repository, or lead to it: whatever has the name, and holds anything. One that leads
/// nowhere may lead somewhere another day.
pub(super) fn marks(dir: BorrowedFd<'_>, name: &[u8], path: &RelPath) -> Result<bool> {
    if !is_dot_git(name) {
        return Ok(false);
    }
    let failed = |e| Error::io("look at", shown(path.as_bytes()), e);
    let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(false),
        Err(e) => return Err(failed(e)),
    };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => stat.st_size > 0,
        FileType::Directory => !is_empty(dir, name),
        _ => true,
    })
}

/// Says so of a directory that can be listed.
fn is_empty(dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    let listed = opened(dir, name).and_then(Dir::new);
    listed.is_ok_and(|mut all| {
        all.all(|entry| entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")))
    })
}

/// Says whether a directory is a repository's worktree: its `.git` is a git directory, or leads to one.
///
/// # Errors
/// `io_failed` where it cannot be told.
pub(super) fn is_worktree(dir: &OwnedFd, path: &RelPath) -> Result<bool> {
    let failed = |e| Error::io("look into", shown(path.as_bytes()), e);
    match opened(dir.as_fd(), b".git") {
        Ok(gitdir) => is_gitdir(&gitdir).map_err(failed),
        Err(Errno::NOENT | Errno::LOOP) => Ok(false),
        Err(Errno::NOTDIR) => {
            let name = Path::new(".git");
            let Ok(text) = pointer_at(dir, name, name) else {
                return Ok(false);
            };
            let Some(target) = text.strip_prefix(b"gitdir: ") else {
                return Ok(false);
            };
            match opened(dir.as_fd(), path_of(target).as_os_str().as_encoded_bytes()) {
                Ok(gitdir) => is_gitdir(&gitdir).map_err(failed),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(false),
                Err(e) => Err(failed(e)),
            }
        }
        Err(e) => Err(failed(e)),
    }
}

/// Says whether a directory is a git directory: it has a `HEAD`, and objects or the way to them.
fn is_gitdir(dir: &OwnedFd) -> rustix::io::Result<bool> {
    let has = |name: &str, kinds: &[FileType], flags| match statat(dir, name, flags) {
        Ok(stat) => Ok(kinds.contains(&FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        Err(e) => Err(e),
    };
    let through = AtFlags::empty();
    let head = has(
        "HEAD",
        &[FileType::RegularFile, FileType::Symlink],
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    Ok(head
        && (has("objects", &[FileType::Directory], through)?
            || has("commondir", &[FileType::RegularFile], through)?))
}

fn opened(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(dir, name, flags, FileMode::empty())
}
