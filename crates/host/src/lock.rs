//! The kernel's locks on whole files, by which others are known to live. It names no file and waits for nobody.
//!
//! A lock of an open file belongs to every process that inherited the file, and goes with the last of them. A lock
//! of a process belongs to that one alone: no child has it, and the kernel tells whose it is. A process loses its
//! own when it closes any descriptor of the file.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Says to whom a lock belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// The open file.
    OpenFile,
    /// This process.
    Process,
}

/// Says whether a lock was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is ours.
    Yes,
    /// Another one has it.
    Busy,
}

/// Says who has a lock that we would want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Nobody.
    Nobody,
    /// An open file, or a process that this one cannot name.
    Somebody,
    /// The process of this id, at the time of the question.
    Process(i32),
}

/// Takes a lock, if nobody else has one.
pub(crate) fn take(file: impl AsFd, of: Of) -> io::Result<Taken> {
    let command = match of {
        Of::OpenFile => libc::F_OFD_SETLK,
        Of::Process => libc::F_SETLK,
    };
    match ask(file, command) {
        Ok(_) => Ok(Taken::Yes),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(Taken::Busy),
        Err(e) => Err(e),
    }
}

/// Asks who has a lock, without taking one.
pub(crate) fn holder(file: impl AsFd) -> io::Result<Holder> {
    let found = ask(file, libc::F_OFD_GETLK)?;
    Ok(match (i32::from(found.l_type), found.l_pid) {
        (libc::F_UNLCK, _) => Holder::Nobody,
        (_, pid) if pid > 0 => Holder::Process(pid),
        _ => Holder::Somebody,
    })
}

/// Asks for, or about, a write lock on the whole file.
fn ask(file: impl AsFd, command: i32) -> io::Result<libc::flock> {
    let kind = |value: i32| libc::c_short::try_from(value).unwrap_or_default();
    #[expect(
        unsafe_code,
        reason = "rustix has no locks of open files, and does not tell who holds one"
    )]
    // SAFETY: `flock` is plain data for which all zeroes is a value; fcntl reads and writes only that struct.
    let (answer, found) = unsafe {
        let mut wanted: libc::flock = std::mem::zeroed();
        wanted.l_type = kind(libc::F_WRLCK);
        wanted.l_whence = kind(libc::SEEK_SET);
        let answer = libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut wanted);
        (answer, wanted)
    };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(found)
}
