//! The identity of a file: its kernel handle.

use crate::error::{Error, Result};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use semel_core::digest::to_hex;
use semel_core::ids::FileId;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

const LARGEST_HANDLE: usize = 128;
const AT_HANDLE_FID: i32 = 0x200;

#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    body: [u8; LARGEST_HANDLE],
}

/// Gives the identity of an open file or directory; a handle opened with `O_PATH` will do.
///
/// # Shape
/// `h:<type>:<handle>` where the filesystem has handles; `f:<type>:<handle>` where it has them for comparison
/// only; else `i:<device>:<inode>:<time of birth>`.
///
/// # Errors
/// `io_failed` where it cannot be examined.
pub fn file_id(fd: impl AsFd) -> Result<FileId> {
    let fd = fd.as_fd();
    for (mark, flags) in [
        ("h", libc::AT_EMPTY_PATH),
        ("f", libc::AT_EMPTY_PATH | AT_HANDLE_FID),
    ] {
        if let Some((kind, body)) = handle(fd, flags) {
            return Ok(FileId::parse(format!("{mark}:{:x}:{}", kind, to_hex(&body)))?);
        }
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    let seen = rustix::fs::statx(fd, "", flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
        .map_err(|e| Error::io("examine", "a file", e))?;
    let text = format!(
        "i:{:x}.{:x}:{}:{}.{:09}",
        seen.stx_dev_major, seen.stx_dev_minor, seen.stx_ino, seen.stx_btime.tv_sec, seen.stx_btime.tv_nsec
    );
    Ok(FileId::parse(text)?)
}

/// Gives the identity of what a directory holds under a name; `None` where it holds nothing. Follows no link.
///
/// # Errors
/// `io_failed` where it cannot be examined.
pub fn file_id_at(dir: impl AsFd, name: &[u8]) -> Result<Option<FileId>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(found) => file_id(found).map(Some),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Error::io("examine", semel_core::path::shown(name), errno)),
    }
}

fn handle(fd: BorrowedFd<'_>, flags: i32) -> Option<(i32, Vec<u8>)> {
    let mut handle = Handle {
        bytes: LARGEST_HANDLE as u32,
        kind: 0,
        body: [0; LARGEST_HANDLE],
    };
    let mut mount = 0_i32;
    #[expect(unsafe_code, reason = "rustix has no name_to_handle_at")]
    // SAFETY: `handle` has the layout of `struct file_handle` followed by the room that `bytes` states, `mount`
    // is an int, and the path is a NUL-terminated empty string; all outlive the call.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_raw_fd(),
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount,
            flags,
        )
    };
    let body = handle.body.get(..handle.bytes as usize)?;
    (answer == 0).then(|| (handle.kind, body.to_vec()))
}
