//! Plain files by path: the operator's own, and those of the state root that no sandbox can reach.
//!
//! Nothing here is confined: a path that an agent may have a hand in goes through `root` and `files`.

use crate::error::{Error, Result};
use crate::files::digest_of;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use semel_core::ids::UnixMs;
use semel_core::{Code, Refusal, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Opens a regular file for reading.
///
/// # Errors
/// `not_found`; `bad_input` for anything but a regular file; `io_failed`.
pub fn open_file(path: &Path) -> Result<File> {
    let shown = || path.display().to_string();
    // Without waiting: a FIFO would hold the command for ever.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT | Errno::NOTDIR) => {
            return Err(Refusal::new(Code::NotFound, "there is no such file")
                .name(shown())
                .into());
        }
        Err(e) => return Err(Error::io("open", path, e)),
    };
    let meta = file.metadata().map_err(|e| Error::io("examine", path, e))?;
    if meta.is_file() {
        return Ok(file);
    }
    Err(Refusal::new(Code::BadInput, "not a regular file")
        .name(shown())
        .into())
}

/// Reads a whole file.
///
/// # Errors
/// As [`open_file`]; `too_large` past the cap.
pub fn read_file(path: &Path, cap_bytes: u64) -> Result<Vec<u8>> {
    read_open(open_file(path)?, path, cap_bytes)
}

/// Reads a whole file that was opened, and looked at, before.
///
/// # Errors
/// `io_failed`; `too_large` past the cap.
pub fn read_open(file: File, path: &Path, cap_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = cap_bytes.saturating_add(1);
    file.take(most)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io("read", path, e))?;
    if bytes.len() as u64 > cap_bytes {
        let why = format!("the file is larger than {cap_bytes} bytes");
        return Err(Refusal::new(Code::TooLarge, why)
            .name(path.display().to_string())
            .into());
    }
    Ok(bytes)
}

/// Reads a whole file that a rule depends on.
///
/// # Errors
/// As [`read_file`]; `bad_config` where anybody may write it.
pub fn read_trusted(path: &Path, cap_bytes: u64) -> Result<Vec<u8>> {
    let file = open_file(path)?;
    let stat = rustix::fs::fstat(&file).map_err(|e| Error::io("examine", path, e))?;
    if stat.st_mode & 0o002 != 0 {
        return Err(Refusal::new(Code::BadConfig, "anybody may write it")
            .name(path.display().to_string())
            .into());
    }
    read_open(file, path, cap_bytes)
}

/// Names the very file that stands at a path, without opening it: inode and time of birth, where it has one. A copy
/// in its place is another one.
///
/// # Errors
/// `io_failed`.
pub fn birth(path: &Path) -> Result<String> {
    use rustix::fs::{CWD, StatxFlags};
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let facts = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted)
        .map_err(|e| Error::io("examine", path, e))?;
    let born = (facts.stx_mask & StatxFlags::BTIME.bits() != 0).then_some(facts.stx_btime);
    let born = born.map_or_else(String::new, |at| format!("{}.{:09}", at.tv_sec, at.tv_nsec));
    Ok(format!("{}-{born}", facts.stx_ino))
}

/// Digests a whole file.
///
/// # Errors
/// As [`open_file`].
pub fn digest_file(path: &Path) -> Result<Sha256> {
    digest_of(&open_file(path)?).map_err(|e| Error::io("read", path, e))
}

/// Writes a whole file, private to its owner, over any earlier one.
///
/// # Durability
/// Atomic, and on the disk when this returns.
///
/// # Errors
/// `io_failed`; an earlier file is then as it was.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let wrong = || {
        Error::io(
            "write",
            path,
            std::io::Error::other("a file has a directory and a name"),
        )
    };
    let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(wrong)?;
    let fail = |doing: &'static str| move |e: Errno| Error::io(doing, path, e);
    let dir = rustix::fs::open(
        parent,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(fail("open the directory of"))?;
    let (temporary, mut file) = unfinished(&dir).map_err(fail("create"))?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let result = written.map_err(|e| Error::io("write", path, e)).and_then(|()| {
        rustix::fs::renameat(&dir, &temporary, &dir, name).map_err(fail("rename"))?;
        rustix::fs::fsync(&dir).map_err(fail("sync the directory of"))
    });
    if result.is_err() {
        // The first error is the one to tell; the temporary file means nothing.
        rustix::fs::unlinkat(&dir, &temporary, AtFlags::empty()).ok();
    }
    result
}

/// Stands before the name of a file that is not whole yet.
const UNFINISHED: &str = ".new-";

/// Makes a file that is to get its name when it is whole, and holds it: whoever clears up leaves it alone.
fn unfinished(dir: &OwnedFd) -> rustix::io::Result<(String, File)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let random = crate::clock::random::<8>().map_err(|_| Errno::IO)?;
        let name = format!("{UNFINISHED}{}", semel_core::digest::to_hex(&random));
        let file = rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR)?;
        // In between, somebody may have taken it for one that a killed process left.
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        if rustix::fs::fstat(&file)?.st_nlink > 0 {
            return Ok((name, file.into()));
        }
    }
}

/// Removes what killed processes left of files that [`write_file`] had not finished; one that is still written is held, and
/// stays.
///
/// # Errors
/// `io_failed`; a directory that is not there holds nothing.
pub fn clear_unfinished(place: &Path) -> Result<()> {
    let fail = |doing: &'static str| move |e: Errno| Error::io(doing, place, e);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(place, flags, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(fail("open")(errno)),
    };
    for entry in rustix::fs::Dir::read_from(&dir).map_err(fail("list"))? {
        let entry = entry.map_err(fail("list"))?;
        let name = entry.file_name();
        if !name.to_bytes().starts_with(UNFINISHED.as_bytes()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&dir, name, flags, Mode::empty()) else {
            continue;
        };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            // It got its name meanwhile.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(fail("clear")(errno)),
        }
    }
    Ok(())
}

/// Appends to a file that another program reads, and makes it where it is not there.
///
/// # Errors
/// `bad_input` for anything but a regular file; `io_failed`.
pub fn append_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd =
        rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)).map_err(|e| Error::io("open", path, e))?;
    let mut file = File::from(fd);
    if !file
        .metadata()
        .map_err(|e| Error::io("examine", path, e))?
        .is_file()
    {
        return Err(Refusal::new(Code::BadInput, "not a regular file")
            .name(path.display().to_string())
            .into());
    }
    file.write_all(bytes).map_err(|e| Error::io("write", path, e))
}

/// Makes a directory, and those above it, private to their owner; one that is there already stays as it is.
///
/// # Errors
/// `io_failed`.
pub fn private_directory(path: &Path) -> Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| Error::io("make", path, e))
}

/// Gives a new file or directory to whose the directory above it is: in some volumes, the user as whom programs run.
///
/// # Errors
/// `io_failed`.
pub fn hand_over(new: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let fail = |e| Error::io("give away", new, e);
    let above = new.parent().unwrap_or(new).metadata().map_err(fail)?;
    if above.uid() == new.symlink_metadata().map_err(fail)?.uid() {
        return Ok(());
    }
    std::os::unix::fs::lchown(new, Some(above.uid()), Some(above.gid())).map_err(fail)
}

/// Copies a regular file and its executable bit to a new name, making the directories above it.
///
/// # Errors
/// `not_found`, `bad_input`; `precondition_failed` where something has the name; `io_failed`.
pub fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let mut source = open_file(from)?;
    let meta = source.metadata().map_err(|e| Error::io("examine", from, e))?;
    if let Some(parent) = to.parent() {
        private_directory(parent)?;
    }
    let executable = std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o100 != 0;
    let mode = Mode::from_raw_mode(if executable { 0o755 } else { 0o644 });
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut target = match rustix::fs::open(to, flags, mode) {
        Ok(fd) => File::from(fd),
        Err(Errno::EXIST) => {
            let why = "something has this name already";
            return Err(Refusal::new(Code::PreconditionFailed, why)
                .name(to.display().to_string())
                .into());
        }
        Err(e) => return Err(Error::io("create", to, e)),
    };
    std::io::copy(&mut source, &mut target)
        .map(drop)
        .map_err(|e| Error::io("copy", to, e))
}

/// Is a file of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name; files whose name is not UTF-8 are not ours, and not listed.
    pub name: String,
    /// When its content last changed.
    pub changed: UnixMs,
}

/// Lists the regular files of a directory; none where there is no directory.
///
/// # Errors
/// `io_failed`.
pub fn list_files(path: &Path) -> Result<Vec<Listed>> {
    let io = |e| Error::io("list", path, e);
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io(e)),
    };
    let mut listed = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io)?;
        let meta = entry.metadata().map_err(io)?;
        let (true, Ok(name)) = (meta.is_file(), entry.file_name().into_string()) else {
            continue;
        };
        let since = meta
            .modified()
            .map_err(io)?
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        listed.push(Listed {
            name,
            changed: UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        });
    }
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(listed)
}

/// Removes a file; one that is gone already is as good.
///
/// # Errors
/// `io_failed`.
pub fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::io("remove", path, e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finished_is_cleared_and_what_is_written_stays() {
        let home = tempfile::tempdir().unwrap();
        clear_unfinished(&home.path().join("none")).unwrap();
        std::fs::write(home.path().join(".new-0123456789abcdef"), "left").unwrap();
        std::fs::write(home.path().join("other"), "whole").unwrap();
        let dir = OwnedFd::from(File::open(home.path()).unwrap());
        let (held, file) = unfinished(&dir).unwrap();
        clear_unfinished(home.path()).unwrap();
        let names = || {
            let mut names: Vec<String> = std::fs::read_dir(home.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(), [held.as_str(), "other"]);
        drop(file);
        clear_unfinished(home.path()).unwrap();
        assert_eq!(names(), ["other"]);
        // Whoever clears up while others write takes nothing from them.
        let place = home.path().join("written");
        std::thread::scope(|scope| {
            let clears = scope.spawn(|| (0..200).for_each(|_| clear_unfinished(home.path()).unwrap()));
            while !clears.is_finished() {
                write_file(&place, b"all of it").unwrap();
            }
        });
        assert_eq!(std::fs::read(&place).unwrap(), b"all of it");
        assert_eq!(names(), ["other", "written"]);
    }

    #[test]
    fn files_are_whole_and_kinds_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a");
        write_file(&place, b"one").unwrap();
        write_file(&place, b"two").unwrap();
        assert_eq!(read_file(&place, 3).unwrap(), b"two");
        assert_eq!(read_file(&place, 2).unwrap_err().code(), Code::TooLarge);
        assert_eq!(
            read_file(&dir.path().join("b"), 9).unwrap_err().code(),
            Code::NotFound
        );
        assert_eq!(read_file(dir.path(), 9).unwrap_err().code(), Code::BadInput);
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(read_file(&fifo, 9).unwrap_err().code(), Code::BadInput);
        append_file(&dir.path().join("log"), b"a").unwrap();
        append_file(&dir.path().join("log"), b"b").unwrap();
        assert_eq!(read_file(&dir.path().join("log"), 9).unwrap(), b"ab");
        assert!(append_file(&fifo, b"x").is_err());
        remove_file(&dir.path().join("log")).unwrap();
        copy_file(&place, &dir.path().join("x/y/c")).unwrap();
        assert_eq!(
            copy_file(&place, &dir.path().join("x/y/c")).unwrap_err().code(),
            Code::PreconditionFailed
        );
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            3,
            "no temporary file is left"
        );
    }
}
