//! The disk of `semel contract`: a workspace that somebody else manages.
//!
//! It gathers facts and keeps the small files of the contract; what they mean is decided in `semel_core::attempt`.
//! It opens no volume of ours.

mod record;
mod run;

pub use record::Trees;
pub(crate) use record::signs;
pub use run::{Begun, Ended, Lasting, Left};

use crate::error::{Error, Result};
use crate::files::digest_of;
use crate::mount_table;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use semel_core::attempt::{
    CLEAN_FILE, ContractState, DIRTY_MARK, Facts, Found, FoundLock, GENERATION_FILE, STATE_FILE,
};
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Is an open workspace.
#[derive(Debug)]
pub struct Disk {
    dir: OwnedFd,
    path: PathBuf,
}

/// Holds the workspace against another check, from the read of its state to the write.
#[derive(Debug)]
pub struct Held<'a>(&'a Disk);

/// Holds what a wipe has put aside and not removed yet.
const TRASH: &str = ".volume_trash";
const LARGEST_STATE: u64 = 1 << 20;

impl Disk {
    /// Opens a workspace.
    ///
    /// # Errors
    /// `bad_input` where it is not a directory; `io_failed`.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => Ok(Self {
                dir,
                path: path.to_owned(),
            }),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
                Err(no_directory(&path.display().to_string()))
            }
            Err(e) => Err(Error::io("open", path, e)),
        }
    }

    /// Waits until no other check holds the workspace. A dead holder holds nothing: the lock is the kernel's.
    ///
    /// # Errors
    /// `io_failed` where the filesystem has no locks.
    pub fn hold(&self) -> Result<Held<'_>> {
        rustix::fs::flock(&self.dir, FlockOperation::LockExclusive)
            .map_err(|e| Error::io("lock", &self.path, e))?;
        Ok(Held(self))
    }

    fn place(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    fn kind(&self, name: &str) -> Result<Option<FileType>> {
        match rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(Error::io("look at", self.place(name), e)),
        }
    }

    fn small_file(&self, name: &str) -> Result<Found> {
        self.file_of(name, LARGEST_STATE)
    }

    fn file_of(&self, name: &str, most: u64) -> Result<Found> {
        match self.kind(name) {
            Ok(None) => Ok(Found::Absent),
            Ok(Some(FileType::RegularFile)) => Ok(self.read_small(name, most)),
            Ok(Some(other)) => Ok(Found::Odd(type_in_words(other).to_owned())),
            Err(e) => Ok(Found::Odd(e.to_string())),
        }
    }

    fn read_small(&self, name: &str, most: u64) -> Found {
        let open = || -> std::io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            open_file(self.dir.as_fd(), name)?
                .take(most + 1)
                .read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match open() {
            Ok(bytes) if bytes.len() as u64 <= most => Found::Bytes(bytes),
            Ok(_) => Found::Odd("larger than a file of the contract can be".to_owned()),
            Err(e) => Found::Odd(format!("cannot be read: {e}")),
        }
    }

    fn lockfile(&self, path: &RelPath) -> FoundLock {
        match self.digest(path) {
            Ok(Some(digest)) => FoundLock::Digest(digest),
            Ok(None) => FoundLock::Missing,
            Err(why) => FoundLock::Odd(why),
        }
    }

    /// Digests a lockfile; no component of its path may be a link.
    fn digest(&self, path: &RelPath) -> std::result::Result<Option<Sha256>, String> {
        let Some((parent, name)) = path.split_last() else {
            return Err("the workspace itself".to_owned());
        };
        let mut dir = self.dir.try_clone().map_err(|e| e.to_string())?;
        for part in parent.components() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            dir = match rustix::fs::openat(&dir, part, flags, Mode::empty()) {
                Ok(next) => next,
                Err(rustix::io::Errno::NOENT) => return Ok(None),
                Err(e) => return Err(format!("its directory cannot be opened: {e}")),
            };
        }
        let kind = match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(e) => return Err(format!("cannot be looked at: {e}")),
        };
        if kind != FileType::RegularFile {
            return Err(type_in_words(kind).to_owned());
        }
        let unreadable = |e: std::io::Error| format!("cannot be read: {e}");
        let file = open_file(dir.as_fd(), name).map_err(unreadable)?;
        digest_of(&file).map(Some).map_err(unreadable)
    }

    /// Gathers what a check is decided from.
    ///
    /// Lockfiles are looked for at the root of the workspace by `recognised`, and at the `named` places.
    ///
    /// # Errors
    /// `unknown_state` where the root cannot be listed or a mark cannot be looked at.
    pub fn facts(
        &self,
        identity: (Option<String>, Option<String>),
        named: &[RelPath],
        recognised: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Facts> {
        let unknown = |e: Error| Refusal::new(Code::UnknownState, e.to_string());
        let dirty = self.kind(DIRTY_MARK).map_err(unknown)?.map(|kind| {
            format!(
                "an earlier attempt on this disk did not end cleanly (the mark is {})",
                type_in_words(kind)
            )
        });
        Ok(Facts {
            generation: identity.0,
            attempt: identity.1,
            dirty,
            run_mark: self.run_mark().map_err(unknown)?,
            locks: self.lockfiles(named, recognised).map_err(unknown)?,
            state: self.small_file(STATE_FILE)?,
            disk_generation: self.small_file(GENERATION_FILE)?,
            leftover: None,
        })
    }

    /// Looks at the lockfiles at the root that are recognised, and at the named ones.
    fn lockfiles(
        &self,
        named: &[RelPath],
        recognised: &dyn Fn(&[u8]) -> bool,
    ) -> Result<BTreeMap<RelPath, FoundLock>> {
        let mut locks: BTreeMap<RelPath, FoundLock> = BTreeMap::new();
        for name in self.names()? {
            if recognised(&name)
                && let Ok(path) = RelPath::parse(&name)
            {
                locks.insert(path.clone(), self.lockfile(&path));
            }
        }
        for path in named {
            locks.insert(path.clone(), self.lockfile(path));
        }
        Ok(locks)
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let io = |e| Error::io("list", &self.path, e);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.dir).map_err(io)? {
            let name = entry.map_err(io)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Says whether the disk was ever ours: it carries a generation, a contract state or the mark of a run.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn is_ours(&self) -> Result<Ours> {
        let regular = |name| Ok::<_, Error>(self.kind(name)? == Some(FileType::RegularFile));
        let ran = self.run_mark()? != Found::Absent;
        Ok(if ran || regular(GENERATION_FILE)? || regular(STATE_FILE)? {
            Ours::Yes
        } else {
            Ours::No
        })
    }

    fn write_durably(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let temporary = format!(".{}.new", name.trim_start_matches('.'));
        let io = |doing| move |e: std::io::Error| Error::io(doing, self.place(name), e);
        // A file of a writer that died is in nobody's way: it was never renamed, so it means nothing.
        if self.kind(&temporary)?.is_some() {
            rustix::fs::unlinkat(&self.dir, &temporary, AtFlags::empty())
                .map_err(|e| io("remove")(e.into()))?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.dir, &temporary, flags, Mode::from_raw_mode(0o644))
            .map_err(|e| io("create")(e.into()))?;
        let mut file = File::from(fd);
        file.write_all(bytes).map_err(io("write"))?;
        file.sync_all().map_err(io("sync"))?;
        rustix::fs::renameat(&self.dir, &temporary, &self.dir, name).map_err(|e| io("rename")(e.into()))?;
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.dir).map_err(|e| Error::io("sync", &self.path, e))
    }

    /// Marks the disk dirty. An existing mark is one, of whatever type; a file gets a further line, so that whoever made
    /// it does not take it for theirs alone.
    ///
    /// # Durability
    /// The mark is on the disk when this returns.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn mark_dirty(&self, why: &str) -> Result<Mark> {
        let line = format!(
            "{why} [{}]\n",
            semel_core::digest::to_hex(&crate::clock::random::<8>()?)
        )
        .into_bytes();
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let create = flags | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(0o644);
        let opened = match rustix::fs::openat(&self.dir, DIRTY_MARK, create, mode) {
            Err(rustix::io::Errno::EXIST) => {
                // One that cannot be written to is a mark all the same.
                rustix::fs::openat(&self.dir, DIRTY_MARK, flags | OFlags::APPEND, mode).ok()
            }
            Ok(fd) => Some(fd),
            Err(e) => return Err(Error::io("create", self.place(DIRTY_MARK), e)),
        };
        if let Some(mut file) = opened.map(File::from)
            && file.metadata().is_ok_and(|facts| facts.is_file())
        {
            let io = |e| Error::io("write", self.place(DIRTY_MARK), e);
            file.write_all(&line).map_err(io)?;
            file.sync_all().map_err(io)?;
        }
        self.sync()?;
        Ok(Mark(line))
    }

    fn remove_mark(&self) -> Result<()> {
        rustix::fs::unlinkat(&self.dir, DIRTY_MARK, AtFlags::empty())
            .map_err(|e| Error::io("remove", self.place(DIRTY_MARK), e))?;
        self.sync()
    }

    /// Removes everything from the disk and leaves the marks of its new generation, never crossing into another mount.
    ///
    /// What is removed is put aside first, so that the disk looks empty at once; a wipe that was cut short leaves a
    /// disk that is dirty and still known as ours, and the next one goes on.
    ///
    /// # Errors
    /// `precondition_failed`, reason `mount`, where something is mounted below: nothing was touched then. `io_failed` naming what
    /// cannot be removed; the disk then stays dirty.
    pub fn wipe(&self, generation: &str) -> Result<()> {
        self.refuse_mounts()?;
        self.mark_dirty("a wipe began")?;
        let trash = self.trash()?;
        if self.kind(DIRTY_MARK)? != Some(FileType::RegularFile) {
            self.exchange_mark(&trash)?;
        }
        let ours = |name: &[u8]| [GENERATION_FILE, STATE_FILE].iter().any(|f| f.as_bytes() == name);
        for name in self.names()? {
            let text = String::from_utf8_lossy(&name);
            let stays = ours(&name) && self.kind(&text)? == Some(FileType::RegularFile);
            if !stays && name != DIRTY_MARK.as_bytes() && name != TRASH.as_bytes() {
                self.put_aside(&name, &trash)?;
            }
        }
        // From here on the disk is known by its new generation.
        self.write_durably(GENERATION_FILE, format!("{generation}\n").as_bytes())?;
        if self.kind(STATE_FILE)?.is_some() {
            self.put_aside(STATE_FILE.as_bytes(), &trash)?;
        }
        let reaped = crate::volume::reaper::remove_tree(self.dir.as_fd(), TRASH.as_bytes())?;
        if let Some(kept) = reaped.kept.first() {
            let why = std::io::Error::other(kept.why.clone());
            return Err(Error::io("remove", self.place(&kept.path), why));
        }
        self.write_durably(CLEAN_FILE, b"")?;
        // The mark goes last.
        self.lift_run_mark()?;
        self.remove_mark()
    }

    /// Refuses what is mounted below: a mount would be carried along by what is put aside, and cannot be removed.
    fn refuse_mounts(&self) -> Result<()> {
        let io = |e| Error::io("look at", &self.path, e);
        let real = std::fs::read_link(format!("/proc/self/fd/{}", self.dir.as_raw_fd())).map_err(io)?;
        let mounts = match mount_table::mounted_below(&real) {
            // Without the table, a mount is found where it cannot be removed.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            mounts => mounts.map_err(|e| Error::io("read", "/proc/self/mountinfo", e))?,
        };
        if mounts.is_empty() {
            return Ok(());
        }
        let why =
            "something is mounted in the workspace, and a wipe crosses into no mount; nothing was touched";
        let names = mounts.iter().map(|place| shown(place.as_os_str().as_bytes()));
        Err(Refusal::new(Code::PreconditionFailed, why)
            .reason("mount")
            .names(names.take(20))
            .into())
    }

    /// Opens the place of what is put aside; anything else of that name goes.
    fn trash(&self) -> Result<OwnedFd> {
        let io = |doing| move |e: rustix::io::Errno| Error::io(doing, self.place(TRASH), e);
        if !matches!(self.kind(TRASH)?, None | Some(FileType::Directory)) {
            rustix::fs::unlinkat(&self.dir, TRASH, AtFlags::empty()).map_err(io("remove"))?;
        }
        match rustix::fs::mkdirat(&self.dir, TRASH, Mode::RWXU) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => {
                crate::volume::reaper::open_up(self.dir.as_fd(), TRASH.as_bytes()).map_err(io("open"))?;
            }
            Err(e) => return Err(io("make")(e)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, TRASH, flags, Mode::empty()).map_err(io("open"))
    }

    fn put_aside(&self, name: &[u8], trash: &OwnedFd) -> Result<()> {
        // A random name: an earlier wipe that was cut short may have left others.
        let aside = semel_core::digest::to_hex(&crate::clock::random::<16>()?);
        let to_trash = || rustix::fs::renameat(&self.dir, name, trash, &aside);
        let moved = match to_trash() {
            // A directory moves only where it may be written to.
            Err(rustix::io::Errno::ACCESS) => {
                crate::volume::reaper::open_up(self.dir.as_fd(), name).and_then(|()| to_trash())
            }
            other => other,
        };
        moved.map_err(|e| Error::io("put aside", self.place(std::ffi::OsStr::from_bytes(name)), e))
    }

    /// Puts a plain file where another kind of entry marks the disk; it is marked at every moment.
    fn exchange_mark(&self, trash: &OwnedFd) -> Result<()> {
        let io = |e: rustix::io::Errno| Error::io("exchange", self.place(DIRTY_MARK), e);
        let aside = semel_core::digest::to_hex(&crate::clock::random::<16>()?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(trash, &aside, flags, Mode::from_raw_mode(0o644)).map_err(io)?;
        crate::volume::reaper::open_up(self.dir.as_fd(), DIRTY_MARK.as_bytes()).ok();
        let exchange = rustix::fs::RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(trash, &aside, &self.dir, DIRTY_MARK, exchange).map_err(io)?;
        self.sync()
    }

    /// Looks for a leftover environment below the workspace.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn leftover(&self) -> Result<Option<RelPath>> {
        Ok(crate::leftover::find(self.dir.as_fd(), &|_, _| false)?.map(|(path, _)| path))
    }

    /// Gives the open directory.
    #[must_use]
    pub fn handle(&self) -> std::os::fd::BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Is a mark that was set.
#[derive(Debug)]
pub struct Mark(Vec<u8>);

/// Says whether a disk was ever ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    /// It carries a generation, a contract state or the mark of a run.
    Yes,
    /// It carries none of them.
    No,
}

impl Held<'_> {
    /// Writes the state of a passed check, while the workspace is held.
    ///
    /// # Durability
    /// Atomic, and on the disk when this returns.
    ///
    /// # Errors
    /// `io_failed`; the state is then as it was.
    pub fn save(&self, state: &ContractState) -> Result<()> {
        let bytes = state.to_bytes();
        if self.0.small_file(STATE_FILE)? == Found::Bytes(bytes.clone()) {
            return Ok(());
        }
        self.0.write_durably(STATE_FILE, &bytes)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // A failure changes nothing: the lock goes with the descriptor anyway.
        if rustix::fs::flock(&self.0.dir, FlockOperation::Unlock).is_err() {}
    }
}

fn open_file(dir: std::os::fd::BorrowedFd<'_>, name: impl rustix::path::Arg) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(dir, name, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(std::io::Error::other("not a regular file any more"))
    }
}

const fn type_in_words(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "of an unknown type",
    }
}

/// Is what a wipe never touches.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The homes of this machine.
    pub homes: Vec<PathBuf>,
    /// The state root, where one is known.
    pub state: Option<PathBuf>,
}

fn no_directory(shown: &str) -> Error {
    Refusal::new(Code::BadInput, "the workspace is not a directory")
        .name(shown)
        .into()
}

/// Checks that a workspace may be wiped, and opens it.
///
/// # Errors
/// `missing_identity` where the path is not absolute or shorter than 8 characters; `path_escapes_root` for a
/// protected place: `/`, a home, the state root or what contains or lies in it, the main worktree of a git
/// repository, a symbolic link; `bad_input` where it is no directory.
pub fn open_for_wipe(path: &Path, guard: &Guard) -> Result<Disk> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    let shown = path.display().to_string();
    let bytes = path.as_os_str().as_bytes();
    let trimmed = bytes.len() - bytes.iter().rev().take_while(|b| **b == b'/').count();
    let short = |path: &[u8]| path.len() < 8;
    if !path.is_absolute() || short(&bytes[..trimmed]) {
        let why = "a wipe needs WORKSPACE, absolute and of 8 characters or more";
        return Err(Refusal::new(Code::MissingIdentity, why)
            .reason("workspace")
            .name(shown)
            .into());
    }
    let guarded = |why: &str| Error::from(Refusal::new(Code::PathEscapesRoot, why).name(&shown));
    if path
        .components()
        .any(|part| part == std::path::Component::ParentDir)
    {
        return Err(guarded("the path of a wipe names its place without `..`"));
    }
    // The path without trailing slashes and dots: with them, the system would follow a link.
    let bare: PathBuf = path.components().collect();
    let bare = bare.as_path();
    match std::fs::symlink_metadata(bare) {
        Ok(meta) if meta.file_type().is_symlink() => {
            return Err(guarded("a symbolic link is never wiped through"));
        }
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(no_directory(&shown)),
        Err(e) if matches!(e.kind(), NotFound | NotADirectory) => return Err(no_directory(&shown)),
        Err(e) => return Err(Error::io("look at", bare, e)),
    }
    let real = std::fs::canonicalize(bare).map_err(|e| Error::io("resolve", bare, e))?;
    if real.parent().is_none() || short(real.as_os_str().as_bytes()) {
        return Err(guarded(
            "a wipe never touches the root of the system, nor a place of so short a name",
        ));
    }
    let resolved = |place: &PathBuf| std::fs::canonicalize(place).unwrap_or_else(|_| place.clone());
    if guard.homes.iter().any(|home| resolved(home).starts_with(&real)) {
        return Err(guarded("a home, or what contains one, is never wiped"));
    }
    let state = guard.state.as_ref().map(resolved);
    if state.is_some_and(|state| state.starts_with(&real) || real.starts_with(&state)) {
        return Err(guarded(
            "the state root, what contains it and what lies in it is never wiped",
        ));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(&real, flags, Mode::empty()).map_err(|e| Error::io("open", &real, e))?;
    let disk = Disk { dir, path: real };
    // Git takes a link to a directory for one; in a linked worktree it is a plain file.
    if !matches!(disk.kind(".git")?, None | Some(FileType::RegularFile)) {
        return Err(guarded("the main worktree of a git repository is never wiped"));
    }
    Ok(disk)
}
