//! What the daemon needs of the system: its private files, its sockets, its children, and who its peers are.
//!
//! It does not know what is served. The state root is reached through one open handle, so that a long path is no
//! obstacle to a socket.

use crate::clock;
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use semel_core::digest::to_hex;
use semel_core::{Code, Refusal};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Holds the handle on a state root.
#[derive(Debug)]
pub struct StateRoot {
    dir: OwnedFd,
    path: PathBuf,
}

impl StateRoot {
    /// Opens the state root, and makes it (mode 0700) where it is missing.
    ///
    /// # Errors
    /// `bad_config` where it is a link, is another user's, or others may write it; `io_failed` otherwise.
    pub fn make(path: &Path) -> Result<Self> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|e| Error::io("make", path, e))?;
        let root = Self::open(path)?;
        let stat = rustix::fs::fstat(&root.dir).map_err(|e| Error::io("examine", path, e))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(wrong("the state root belongs to another user", path));
        }
        if stat.st_mode & 0o022 != 0 {
            return Err(wrong("others may write the state root", path));
        }
        Ok(root)
    }

    /// Opens a state root that exists.
    ///
    /// # Errors
    /// `not_found` where there is none; `bad_config` where it is a link; `io_failed` otherwise.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => Refusal::new(Code::NotFound, "there is no state root")
                .name(path.display().to_string())
                .into(),
            Errno::LOOP | Errno::NOTDIR => wrong("the state root is not a directory", path),
            _ => Error::io("open", path, errno),
        })?;
        Ok(Self {
            dir,
            path: path.to_owned(),
        })
    }

    /// Gives its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says whether it still is where it was made: removed or moved, nobody finds it any more. Where that cannot be told, it is.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let there = match rustix::fs::stat(&self.path) {
            Ok(there) => there,
            Err(errno) => return !matches!(errno, Errno::NOENT | Errno::NOTDIR),
        };
        let ours = rustix::fs::fstat(&self.dir);
        ours.map_or(true, |ours| {
            (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
        })
    }

    pub(crate) fn handle(&self) -> std::os::fd::BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Gives a short path to one of its entries, valid while this handle lives, in this process alone.
    #[must_use]
    pub fn short(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd()))
    }

    /// Makes a directory (mode 0700) in it, unless it is there.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn make_dir(&self, name: &str) -> Result<()> {
        match rustix::fs::mkdirat(&self.dir, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(Error::io("make", name, errno)),
        }
    }

    /// Reads a small file; `None` where there is none.
    ///
    /// # Errors
    /// `unknown_state` where it is no plain file, or is longer than `cap` bytes; `io_failed`.
    pub fn read(&self, name: &str, cap: u64) -> Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(Error::io("open", name, errno)),
        };
        let file = std::fs::File::from(fd);
        let facts = file.metadata().map_err(|e| Error::io("examine", name, e))?;
        if !facts.is_file() || facts.len() > cap {
            return Err(Refusal::new(Code::UnknownState, "not a small plain file")
                .name(name)
                .into());
        }
        let mut bytes = Vec::new();
        file.take(cap)
            .read_to_end(&mut bytes)
            .map_err(|e| Error::io("read", name, e))?;
        Ok(Some(bytes))
    }

    /// Puts a small file (mode 0600) in place in one step; readers see the old or the new one.
    ///
    /// # Errors
    /// `io_failed`.
    ///
    /// # Durability
    /// Survives the end of the process; with [`Keep::Synced`] a power cut, too.
    pub fn replace(&self, name: &str, bytes: &[u8], keep: Keep) -> Result<()> {
        let temporary = format!("{name}.{}.tmp", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.dir, &temporary, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| Error::io("make", &temporary, e))?;
        if let Err(failed) = self.put(name, &temporary, fd.into(), bytes, keep) {
            // Whatever of it was written takes room on a disk that may be full.
            let _first_is_told = rustix::fs::unlinkat(&self.dir, &temporary, AtFlags::empty());
            return Err(failed);
        }
        if keep == Keep::Synced {
            rustix::fs::fsync(&self.dir).map_err(|e| Error::io("sync", &self.path, e))?;
        }
        Ok(())
    }

    fn put(
        &self,
        name: &str,
        temporary: &str,
        mut file: std::fs::File,
        bytes: &[u8],
        keep: Keep,
    ) -> Result<()> {
        file.write_all(bytes).map_err(|e| Error::io("write", name, e))?;
        if keep == Keep::Synced {
            file.sync_all().map_err(|e| Error::io("sync", name, e))?;
        }
        rustix::fs::renameat(&self.dir, temporary, &self.dir, name).map_err(|e| Error::io("rename", name, e))
    }

    /// Lists the names of its entries, in order; a name that is not UTF-8 is none of ours, and left out.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn names(&self) -> Result<Vec<String>> {
        let fail = |e| Error::io("list", &self.path, e);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.dir).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Opens a new, empty file (mode 0600) to write and read, in place of an older one: of several who do so at the same
    /// time each has its own, and the name is the last one's.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn fresh(&self, name: &str) -> Result<OwnedFd> {
        let temporary = format!("{name}.{}.tmp", to_hex(&clock::random::<8>()?));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, &temporary, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| Error::io("make", name, e))?;
        self.rename(&temporary, name)?;
        Ok(file)
    }

    /// Gives a socket that was bound under a temporary name its own name, in place of an older one.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::renameat(&self.dir, from, &self.dir, to).map_err(|e| Error::io("rename", to, e))
    }

    /// Restricts an entry to its owner (mode 0600).
    ///
    /// # Errors
    /// `io_failed`.
    pub fn private(&self, name: &str) -> Result<()> {
        rustix::fs::chmodat(&self.dir, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())
            .map_err(|e| Error::io("restrict", name, e))
    }

    /// Removes an entry that is no directory, where it is there.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn remove(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::io("remove", name, errno)),
        }
    }
}

/// Says what a replaced file survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The end of the process.
    Unsynced,
    /// A power cut.
    Synced,
}

/// Reads a small file anywhere, such as a heartbeat; the file is open only meanwhile.
///
/// # Errors
/// `not_found`; `too_large` where it is longer than `cap` bytes; `io_failed`.
pub fn read_small(path: &Path, cap: u64) -> Result<Vec<u8>> {
    read_by(path, cap, OFlags::NONBLOCK)
}

/// Reads what a person names on a command line, to its end: of a pipe or FIFO, whoever writes it is waited for, without a
/// bound.
///
/// # Errors
/// As [`read_small`]; of what is too long no more than `cap` bytes are read.
pub fn read_to_end(path: &Path, cap: u64) -> Result<Vec<u8>> {
    read_by(path, cap, OFlags::empty())
}

fn read_by(path: &Path, cap: u64, further: OFlags) -> Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | further;
    let fd = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => Refusal::new(Code::NotFound, "there is no such file")
            .name(path.display().to_string())
            .into(),
        _ => Error::io("open", path, errno),
    })?;
    let mut bytes = Vec::new();
    std::fs::File::from(fd)
        .take(cap + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io("read", path, e))?;
    if bytes.len() as u64 > cap {
        let why = format!("it is longer than {cap} bytes");
        return Err(Refusal::new(Code::TooLarge, why)
            .name(path.display().to_string())
            .into());
    }
    Ok(bytes)
}

/// Gives the path of this very binary.
///
/// # Errors
/// `io_failed` where `/proc` is not mounted.
pub fn this_binary() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| Error::io("find", "/proc/self/exe", e))
}

/// Is a process that outlives this one.
#[derive(Debug)]
pub struct Detached {
    child: std::process::Child,
    log: std::fs::File,
}

impl Detached {
    /// Gives the exit status, if it ended already; a signal counts as -1.
    pub fn ended(&mut self) -> Option<i32> {
        let status = self.child.try_wait().ok()??;
        Some(status.code().unwrap_or(-1))
    }

    /// Gives what it has said of its failures so far, at most so many bytes.
    #[must_use]
    pub fn said(&self, cap: usize) -> Vec<u8> {
        let mut bytes = vec![0; cap];
        // By its own handle: the name may be another one's by now.
        let read = self.log.read_at(&mut bytes, 0).unwrap_or_default();
        bytes.truncate(read);
        bytes
    }
}

/// Starts a process that outlives this one: its own session, no input, `/` as its directory; what it says of its
/// failures goes to `log`.
///
/// # Errors
/// `io_failed` where it cannot be started.
pub fn spawn_detached(program: &Path, args: &[std::ffi::OsString], log: OwnedFd) -> Result<Detached> {
    let log = std::fs::File::from(log);
    let theirs = log
        .try_clone()
        .map_err(|e| Error::io("share", "the log of a start", e))?;
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(theirs));
    for name in crate::supervisor::VARIABLES {
        command.env_remove(name);
    }
    #[expect(unsafe_code, reason = "a new session can only be had between fork and exec")]
    // SAFETY: setsid and sigprocmask are async-signal-safe, and the closure allocates nothing.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            // A command blocks SIGINT and SIGTERM to hear them by a descriptor; its daemon must not be deaf to them.
            crate::sandbox::sys::hear_all_signals()
        });
    }
    let child = command.spawn().map_err(|e| Error::io("start", program, e))?;
    Ok(Detached { child, log })
}

/// Is a child that dies with the thread that started it.
#[derive(Debug)]
pub struct Companion {
    child: std::process::Child,
}

impl Companion {
    /// Starts a companion whose standard input is the given descriptor, and which has no other one but standard
    /// error. Its environment is empty.
    ///
    /// # Errors
    /// `io_failed` where it cannot be started.
    pub fn spawn(program: &Path, args: &[std::ffi::OsString], stdin: OwnedFd) -> Result<Self> {
        let parent = rustix::process::getpid();
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(stdin))
            .stdout(Stdio::null());
        #[expect(
            unsafe_code,
            reason = "the signal on the parent's death is set between fork and exec"
        )]
        // SAFETY: prctl, getppid and close_range are async-signal-safe, and the closure allocates nothing.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
                if rustix::process::getppid() != Some(parent) {
                    return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
                }
                libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int);
                Ok(())
            });
        }
        let child = command.spawn().map_err(|e| Error::io("start", program, e))?;
        Ok(Self { child })
    }

    /// Gives its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Says whether it still runs.
    #[must_use]
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Says whether a peer lives in the very PID namespace of this process: what a sandbox holds does not.
#[must_use]
pub fn in_our_pid_namespace(pid: u32) -> bool {
    let of = |who: &str| rustix::fs::readlink(format!("/proc/{who}/ns/pid"), Vec::new()).ok();
    match (of(&pid.to_string()), of("self")) {
        (Some(theirs), Some(ours)) => theirs == ours,
        _ => false,
    }
}

/// Ends this process at once, as a crash would: for the crash tests.
pub fn crash() {
    if rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).is_err() {
        std::process::abort();
    }
}

/// Puts a file down and waits until somebody takes it away: by it a test holds a call at a point.
///
/// # Errors
/// `io_failed` where the file cannot be put down; nothing waits then.
pub fn hold(path: &Path) -> Result<()> {
    std::fs::write(path, b"").map_err(|e| Error::io("put down", path, e))?;
    while path.exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(())
}

/// Adds a line to a file: by it a test hears what a call comes to.
///
/// # Errors
/// `io_failed`.
pub fn tell(path: &Path, line: &str) -> Result<()> {
    use std::io::Write as _;
    let mut options = std::fs::OpenOptions::new();
    let told = options.append(true).create(true).open(path);
    told.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
        .map_err(|e| Error::io("write", path, e))
}

fn wrong(why: &str, path: &Path) -> Error {
    Refusal::new(Code::BadConfig, why)
        .name(path.display().to_string())
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_root_is_private_and_its_files_are_replaced_whole() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b");
        let root = StateRoot::make(&path).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
        assert_eq!(root.read("f", 10).unwrap(), None);
        root.replace("f", b"one", Keep::Synced).unwrap();
        root.replace("f", b"two", Keep::Unsynced).unwrap();
        assert_eq!(root.read("f", 10).unwrap().as_deref(), Some(b"two".as_slice()));
        assert_eq!(root.read("f", 2).unwrap_err().code(), Code::UnknownState);
        assert_eq!(root.names().unwrap(), ["f"]);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert_eq!(StateRoot::make(&path).unwrap_err().code(), Code::BadConfig);
    }

    #[test]
    fn a_companion_has_its_descriptor_alone() {
        let (ours, theirs) = std::io::pipe().unwrap();
        // It stops itself once it has read its script: while it is being loaded, it has its libraries open, too.
        let args = ["-c".into(), "kill -STOP $$".into()];
        let mut companion = Companion::spawn(Path::new("/bin/sh"), &args, ours.into()).unwrap();
        drop(theirs);
        let stat = format!("/proc/{}/stat", companion.pid());
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            assert!(companion.runs());
            std::thread::yield_now();
        }
        let fds = std::fs::read_dir(format!("/proc/{}/fd", companion.pid())).unwrap();
        assert_eq!(fds.count(), 3);
        assert!(in_our_pid_namespace(companion.pid()));
        assert!(!in_our_pid_namespace(u32::MAX));
    }
}
