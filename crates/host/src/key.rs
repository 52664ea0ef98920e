//! Secrets on disk: the signing key and the operator token. Bytes in, bytes out; encoding is `core`'s.

use crate::clock;
use crate::error::{Error, Result};
use crate::files::{read_capped, rename_ours};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use semel_core::digest::to_hex;
use semel_core::{Code, Refusal};
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const SECRET_CAP: u64 = 64 << 10;

/// How the name begins under which a secret is written.
const STAGED: &str = ".new-";

/// Writes a new secret that only its owner can read; never over an existing file.
///
/// # Errors
/// `precondition_failed` where something has the name already; `bad_config` where the path has no file name;
/// `io_failed`; [`Error::Unproven`] where its name cannot be made durable.
///
/// # Durability
/// The whole secret is on disk when this returns; after a crash it is there in full or not at all.
pub fn create_secret(path: &Path, bytes: &[u8]) -> Result<()> {
    let fail = |e| Error::io("write", path, e);
    let (dir, name) = directory_of(path)?;
    let staged = format!("{STAGED}{}", to_hex(&clock::random::<8>()?));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&dir, staged.as_str(), flags, Mode::RUSR | Mode::WUSR).map_err(fail)?;
    let mut file = std::fs::File::from(file);
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(|e| Error::io("write", path, e))
        .and_then(|()| {
            let named = (dir.as_fd(), staged.as_bytes());
            rename_ours(named, (dir.as_fd(), name.as_bytes())).map_err(|errno| match errno {
                Errno::EXIST => Refusal::new(Code::PreconditionFailed, "there is a secret of this name")
                    .reason("exists")
                    .name(path.display().to_string())
                    .into(),
                _ => fail(errno),
            })
        });
    if let Err(error) = written {
        // The first error is what the caller must hear.
        rustix::fs::unlinkat(&dir, staged.as_str(), AtFlags::empty()).ok();
        return Err(error);
    }
    rustix::fs::fsync(&dir).map_err(|e| Error::unproven("sync", path, e))
}

/// Reads a secret, if nobody but its owner can.
///
/// # Errors
/// `not_found`; `bad_config` with reason `secret_exposed` where it is readable or writable by group or others, owned
/// by another user, has a second name, is a link or no plain file; `too_large`; `io_failed`.
pub fn read_secret(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display().to_string();
    let exposed = |why: &str| -> Result<Vec<u8>> {
        Err(Refusal::new(Code::BadConfig, why)
            .reason("secret_exposed")
            .name(&shown)
            .into())
    };
    let (dir, name) = directory_of(path)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
        Ok(file) => std::fs::File::from(file),
        Err(Errno::NOENT) => {
            let why = "there is no secret of this name";
            return Err(Refusal::new(Code::NotFound, why).name(&shown).into());
        }
        Err(Errno::LOOP) => return exposed("a secret must not be a link"),
        Err(Errno::NXIO) => return exposed("a secret must be a plain file"),
        Err(errno) => return Err(Error::io("open", path, errno)),
    };
    let stat = file.metadata().map_err(|e| Error::io("examine", path, e))?;
    if !stat.is_file() {
        return exposed("a secret must be a plain file");
    }
    if stat.mode() & 0o077 != 0 {
        let why = "the secret is open to group or others; its mode must be 0600 or stricter";
        return exposed(why);
    }
    if stat.uid() != rustix::process::geteuid().as_raw() {
        return exposed("the secret belongs to another user");
    }
    // Whoever wrote it where renames take no flags may have been killed between its two names.
    if stat.nlink() == 2 && drop_staged(dir.as_fd(), &stat).is_ok() {
        return read_capped(file, SECRET_CAP, &shown);
    }
    if stat.nlink() != 1 {
        return exposed("the secret has a second name");
    }
    read_capped(file, SECRET_CAP, &shown)
}

/// Drops the name under which a secret was written; `NOENT` where it has none such.
fn drop_staged(dir: BorrowedFd<'_>, secret: &std::fs::Metadata) -> rustix::io::Result<()> {
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if !name.to_bytes().starts_with(STAGED.as_bytes()) {
            continue;
        }
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (stat.st_dev, stat.st_ino) == (secret.dev(), secret.ino()) {
            return rustix::fs::unlinkat(dir, name, AtFlags::empty());
        }
    }
    Err(Errno::NOENT)
}

fn directory_of(path: &Path) -> Result<(OwnedFd, &OsStr)> {
    let Some(name) = path.file_name() else {
        let why = "the path of a secret ends with a file name";
        return Err(Refusal::new(Code::BadConfig, why)
            .name(path.display().to_string())
            .into());
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = match rustix::fs::openat(CWD, parent, flags, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => {
            let why = "the directory of the secret is missing";
            return Err(Refusal::new(Code::NotFound, why)
                .name(parent.display().to_string())
                .into());
        }
        Err(errno) => return Err(Error::io("open", parent, errno)),
    };
    Ok((dir, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn a_secret_whose_writer_was_killed_between_two_names_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        create_secret(&path, b"secret").unwrap();
        std::fs::write(dir.path().join(".new-other"), "other").unwrap();
        std::fs::hard_link(&path, dir.path().join("copy")).unwrap();
        assert_eq!(read_secret(&path).unwrap_err().code(), Code::BadConfig);
        std::fs::rename(dir.path().join("copy"), dir.path().join(".new-0123")).unwrap();
        assert_eq!(read_secret(&path).unwrap(), b"secret");
        assert_eq!(std::fs::metadata(&path).unwrap().nlink(), 1);
        assert_eq!(std::fs::read(dir.path().join(".new-other")).unwrap(), b"other");
    }

    #[test]
    fn a_secret_is_written_once_and_read_only_if_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        assert_eq!(read_secret(&path).unwrap_err().code(), Code::NotFound);
        create_secret(&path, b"secret").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(read_secret(&path).unwrap(), b"secret");
        assert_eq!(
            create_secret(&path, b"other").unwrap_err().code(),
            Code::PreconditionFailed
        );
        assert_eq!(read_secret(&path).unwrap(), b"secret");
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing is left over"
        );

        for mode in [0o640, 0o604, 0o620, 0o601] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                read_secret(&path).unwrap_err().code(),
                Code::BadConfig,
                "{mode:o}"
            );
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(read_secret(&path).unwrap(), b"secret");

        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(read_secret(&link).unwrap_err().code(), Code::BadConfig);
        std::fs::hard_link(&path, dir.path().join("second")).unwrap();
        assert_eq!(read_secret(&path).unwrap_err().code(), Code::BadConfig);
        assert_eq!(read_secret(dir.path()).unwrap_err().code(), Code::BadConfig);
    }
}
