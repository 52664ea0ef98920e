//! What a replacement keeps of the file that it replaces: mode, owner, ACL, user attributes.

use crate::error::{Error, Result};
use crate::volume::Volume;
use rustix::fs::{Mode, Stat, XattrFlags};
use rustix::io::Errno;
use semel_core::{Code, Refusal};
use std::os::fd::{AsFd, BorrowedFd};

const ACL: &[u8] = b"system.posix_acl_access";

/// Gives a new file the attributes of the one that it will replace.
///
/// # Errors
/// `precondition_failed` with reason `owner` or `attributes` where they cannot be kept; `io_failed` otherwise.
pub(super) fn keep(from: BorrowedFd<'_>, seen: &Stat, to: BorrowedFd<'_>, shown: &str) -> Result<()> {
    own(to, seen.st_uid, seen.st_gid, shown)?;
    for name in kept_names(from).map_err(|e| Error::io("read the attributes of", shown, e))? {
        let value = attribute(from, &name).map_err(|e| Error::io("read an attribute of", shown, e))?;
        match rustix::fs::fsetxattr(to, name.as_slice(), &value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => {
                let why = "an attribute of the file cannot be kept";
                return Err(Refusal::new(Code::PreconditionFailed, why)
                    .reason("attributes")
                    .names([shown.to_owned(), semel_core::path::shown(&name)])
                    .into());
            }
            Err(errno) => return Err(Error::io("set an attribute of", shown, errno)),
        }
    }
    chmod(to, seen.st_mode & 0o777, shown)
}

/// Gives a new file an owner.
pub(super) fn own(to: BorrowedFd<'_>, uid: u32, gid: u32, shown: &str) -> Result<()> {
    let now = rustix::fs::fstat(to).map_err(|e| Error::io("examine", shown, e))?;
    if (now.st_uid, now.st_gid) == (uid, gid) {
        return Ok(());
    }
    let (owner, group) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    match rustix::fs::fchown(to, Some(owner), Some(group)) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => Err(Refusal::new(
            Code::PreconditionFailed,
            "the owner of the file cannot be kept",
        )
        .reason("owner")
        .name(shown)
        .into()),
        Err(errno) => Err(Error::io("give an owner to", shown, errno)),
    }
}

/// Gives something new the owner of the volume's root.
pub(super) fn as_the_volume(volume: &Volume, to: BorrowedFd<'_>, shown: &str) -> Result<()> {
    let root = rustix::fs::fstat(volume.tree().handle()).map_err(|e| Error::io("examine", "the root", e))?;
    own(to, root.st_uid, root.st_gid, shown)
}

/// Sets the permission bits of an open file.
pub(super) fn chmod(to: BorrowedFd<'_>, bits: u32, shown: &str) -> Result<()> {
    rustix::fs::fchmod(to, Mode::from_raw_mode(bits)).map_err(|e| Error::io("set the mode of", shown, e))
}

fn kept_names(from: BorrowedFd<'_>) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut list = match rustix::fs::flistxattr_query(from) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(length) => vec![0_u8; length],
        Err(errno) => return Err(errno),
    };
    let length = rustix::fs::flistxattr(from.as_fd(), &mut list[..])?;
    let names = list[..length].split(|b| *b == 0);
    Ok(names
        .filter(|name| name.starts_with(b"user.") || *name == ACL)
        .map(<[u8]>::to_vec)
        .collect())
}

/// Reads one extended attribute of an open file.
pub(crate) fn attribute(from: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<Vec<u8>> {
    let length = rustix::fs::fgetxattr_query(from, name)?;
    let mut value = vec![0_u8; length];
    let length = rustix::fs::fgetxattr(from, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}
