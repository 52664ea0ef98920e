//! The directory of one execution: its entries, its claim and its locks. It starts, ends and waits for nothing.

use super::status::Status;
use super::{Stream, Urgency};
use crate::error::{Error, Result};
use crate::files::read_capped;
use crate::lock::{self, Holder, Of, Taken};
use crate::volume::Volume;
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use semel_core::ids::ExecutionId;
use semel_core::{Code, Refusal};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;

const EXEC: &str = "exec";
const CLAIM: &str = "claim";
const SHIM: &str = "shim";
const ALIVE: &str = "alive";
const BELL: &str = "bell";
const STATUS: &str = "status.json";
const STATUS_DRAFT: &str = "status.json.new";

/// How much room is taken for a status before a command begins.
const STATUS_ROOM: u64 = 64 << 10;
/// The longest status that is read.
const STATUS_CAP: u64 = 1 << 20;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Says what an execution was claimed for; for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// A shim begins the command.
    Begun,
    /// No shim ever will.
    Never,
}

impl Claim {
    const fn text(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Never => "never",
        }
    }
}

/// Holds the open directory of one execution.
#[derive(Debug)]
pub(super) struct Place {
    dir: OwnedFd,
    shown: String,
}

impl Place {
    /// Makes the directory of a new execution, with everything that a shim needs in it.
    ///
    /// # Errors
    /// `precondition_failed`, reason `execution_known`, where it is there; `io_failed`.
    ///
    /// # Durability
    /// Its name survives a power cut: where there is none after one, nothing began.
    pub(super) fn create(volume: &Volume, id: &ExecutionId) -> Result<Self> {
        let exec = exec_of(volume)?;
        match rustix::fs::mkdirat(&exec, id.as_str(), Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let why = "the execution was started, or given up, before";
                let refusal = Refusal::new(Code::PreconditionFailed, why).reason("execution_known");
                return Err(refusal.name(id.as_str()).into());
            }
            Err(errno) => return Err(Error::io("make", id.as_str(), errno)),
        }
        let place = Self::within(exec.as_fd(), id)?.ok_or_else(|| gone(id))?;
        for name in [SHIM, ALIVE] {
            place.create_new(name)?;
        }
        rustix::fs::mknodat(&place.dir, BELL, FileType::Fifo, PRIVATE, 0)
            .map_err(|e| place.io("make", BELL, e))?;
        for dir in [place.dir.as_fd(), exec.as_fd(), volume.meta()] {
            rustix::fs::fsync(dir).map_err(|e| Error::io("sync", id.as_str(), e))?;
        }
        Ok(place)
    }

    /// Opens the directory of an execution; `None` where there is none.
    pub(super) fn open(volume: &Volume, id: &ExecutionId) -> Result<Option<Self>> {
        match rustix::fs::openat(volume.meta(), EXEC, DIRECTORY, Mode::empty()) {
            Ok(exec) => Self::within(exec.as_fd(), id),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::io("open", EXEC, errno)),
        }
    }

    /// Opens the directory of an execution, and makes it where it is missing; then nobody else can any more.
    pub(super) fn open_or_make(volume: &Volume, id: &ExecutionId) -> Result<Self> {
        let exec = exec_of(volume)?;
        match rustix::fs::mkdirat(&exec, id.as_str(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Error::io("make", id.as_str(), errno)),
        }
        Self::within(exec.as_fd(), id)?.ok_or_else(|| gone(id))
    }

    fn within(exec: BorrowedFd<'_>, id: &ExecutionId) -> Result<Option<Self>> {
        match rustix::fs::openat(exec, id.as_str(), DIRECTORY, Mode::empty()) {
            Ok(dir) => Ok(Some(Self::of(dir, id.to_string()))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::io("open", id.as_str(), errno)),
        }
    }

    /// Takes an open directory.
    pub(super) const fn of(dir: OwnedFd, shown: String) -> Self {
        Self { dir, shown }
    }

    /// Claims the execution; gives what it was claimed for, now or before.
    pub(super) fn claim(&self, wanted: Claim) -> Result<Claim> {
        // A symlink comes into being with its text, so that no one ever sees half a claim.
        match rustix::fs::symlinkat(wanted.text(), &self.dir, CLAIM) {
            Ok(()) => Ok(wanted),
            Err(Errno::EXIST) => self.claimed()?.ok_or_else(|| self.odd("its claim vanished")),
            Err(errno) => Err(self.io("make", CLAIM, errno)),
        }
    }

    /// Says what the execution was claimed for.
    pub(super) fn claimed(&self) -> Result<Option<Claim>> {
        match rustix::fs::readlinkat(&self.dir, CLAIM, Vec::new()) {
            Ok(text) if text.to_bytes() == Claim::Begun.text().as_bytes() => Ok(Some(Claim::Begun)),
            Ok(text) if text.to_bytes() == Claim::Never.text().as_bytes() => Ok(Some(Claim::Never)),
            Ok(_) | Err(Errno::INVAL) => Err(self.odd("its claim is none of ours")),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.io("read", CLAIM, errno)),
        }
    }

    /// Takes the lock that only the shim has, as its process; `None` where another has it.
    pub(super) fn lock_shim(&self) -> Result<Option<OwnedFd>> {
        self.locked(SHIM, Of::Process)
    }

    /// Takes the lock that the shim shares with those it starts; `None` where another has it.
    pub(super) fn lock_alive(&self) -> Result<Option<OwnedFd>> {
        self.locked(ALIVE, Of::OpenFile)
    }

    fn locked(&self, name: &str, of: Of) -> Result<Option<OwnedFd>> {
        let file = self.entry(name, OFlags::RDWR)?;
        match lock::take(&file, of) {
            Ok(Taken::Yes) => Ok(Some(file)),
            Ok(Taken::Busy) => Ok(None),
            Err(e) => Err(self.io("lock", name, e)),
        }
    }

    /// Says whether the shim, or one of those between it and the command, lives.
    pub(super) fn alive(&self) -> Result<bool> {
        let file = self.entry(ALIVE, OFlags::RDWR)?;
        let holder = lock::holder(&file).map_err(|e| self.io("examine", ALIVE, e))?;
        Ok(holder != Holder::Nobody)
    }

    /// Says which process is the shim; `None` where it is gone, or not to be seen from here.
    pub(super) fn shim(&self) -> Result<Option<i32>> {
        let file = self.entry(SHIM, OFlags::RDWR)?;
        match lock::holder(&file).map_err(|e| self.io("examine", SHIM, e))? {
            Holder::Process(pid) => Ok(Some(pid)),
            Holder::Nobody | Holder::Somebody => Ok(None),
        }
    }

    /// Takes room for the status, so that a full disk cannot swallow it later.
    pub(super) fn reserve_status(&self) -> Result<File> {
        let file = self.create_new(STATUS_DRAFT)?;
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, STATUS_ROOM) {
            // Not every filesystem knows how.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(file),
            Err(errno) => Err(self.io("reserve", STATUS_DRAFT, errno)),
        }
    }

    /// Puts the status in its place.
    ///
    /// # Durability
    /// When this returns it survives a power cut, as does everything it names.
    pub(super) fn conclude(&self, draft: File, status: &Status) -> Result<()> {
        let bytes = serde_json::to_vec(status).map_err(|e| self.io("write", STATUS, e))?;
        let mut file = draft;
        file.write_all(&bytes)
            .and_then(|()| file.set_len(bytes.len() as u64))
            .and_then(|()| file.sync_all())
            .map_err(|e| self.io("write", STATUS, e))?;
        rustix::fs::renameat(&self.dir, STATUS_DRAFT, &self.dir, STATUS)
            .map_err(|e| self.io("install", STATUS, e))?;
        self.sync()
    }

    /// Reads the status; `None` where there is none yet.
    ///
    /// # Errors
    /// `unknown_state` where it cannot be understood; `io_failed`.
    pub(super) fn status(&self) -> Result<Option<Status>> {
        let Some(file) = self.readable(STATUS)? else {
            return Ok(None);
        };
        let bytes = read_capped(file, STATUS_CAP, STATUS)?;
        Ok(Some(Status::parse(&bytes).map_err(|r| r.name(&self.shown))?))
    }

    /// Opens a plain file for reading; `None` where it is missing.
    pub(super) fn readable(&self, name: &str) -> Result<Option<File>> {
        let file = match rustix::fs::openat(&self.dir, name, FILE | OFlags::RDONLY, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NXIO) => return Err(self.odd("an entry of it is no plain file")),
            Err(errno) => return Err(self.io("open", name, errno)),
        };
        let facts = file.metadata().map_err(|e| self.io("examine", name, e))?;
        if facts.is_file() {
            Ok(Some(file))
        } else {
            Err(self.odd("an entry of it is no plain file"))
        }
    }

    /// Leaves word that the command is to be ended, and rings.
    pub(super) fn ask(&self, urgency: Urgency) -> Result<()> {
        match self.create_new(asked(urgency)) {
            Ok(_) => {}
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(other) => return Err(other),
        }
        // Nobody listens: the shim is gone, or has yet to look.
        rustix::io::write(self.bell()?, b"!").map_or_else(
            |errno| match errno {
                // It rings already.
                Errno::AGAIN => Ok(()),
                _ => Err(self.io("ring", BELL, errno)),
            },
            |_| Ok(()),
        )
    }

    /// Says how urgently the command is to be ended, if it is.
    pub(super) fn asked(&self) -> Option<Urgency> {
        [Urgency::Kill, Urgency::Ask]
            .into_iter()
            .find(|urgency| rustix::fs::statat(&self.dir, asked(*urgency), AtFlags::SYMLINK_NOFOLLOW).is_ok())
    }

    /// Opens the bell, as one who may ring and hear: so it never fails because there is no other.
    pub(super) fn bell(&self) -> Result<OwnedFd> {
        self.entry(BELL, OFlags::RDWR)
    }

    /// Makes what was made in the directory survive a power cut.
    pub(super) fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.dir).map_err(|e| self.io("sync", ".", e))
    }

    /// Gives the path of an output stream, good in this process while this handle lives.
    pub(super) fn stream_path(&self, stream: Stream) -> PathBuf {
        PathBuf::from(format!(
            "/proc/self/fd/{}/{}",
            self.dir.as_raw_fd(),
            stream.name()
        ))
    }

    /// Makes an error about an entry.
    pub(super) fn io(&self, operation: &'static str, name: &str, e: impl Into<std::io::Error>) -> Error {
        Error::io(operation, format!("{EXEC}/{}/{name}", self.shown), e)
    }

    fn odd(&self, why: &str) -> Error {
        let why = format!("the directory of an execution cannot be understood: {why}");
        Refusal::new(Code::UnknownState, why).name(&self.shown).into()
    }

    fn entry(&self, name: &str, how: OFlags) -> Result<OwnedFd> {
        rustix::fs::openat(&self.dir, name, FILE | how, Mode::empty()).map_err(|e| self.io("open", name, e))
    }

    pub(super) fn create_new(&self, name: &str) -> Result<File> {
        let flags = FILE | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        rustix::fs::openat(&self.dir, name, flags, PRIVATE)
            .map(File::from)
            .map_err(|e| self.io("make", name, e))
    }
}

impl AsFd for Place {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl Stream {
    /// Gives the name of the file that the stream goes to.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Lists the executions of a volume, in the order of their ids, which is that of their making.
pub(super) fn ids(meta: BorrowedFd<'_>) -> Result<Vec<ExecutionId>> {
    let io = |e| Error::io("list", EXEC, e);
    let exec = match rustix::fs::openat(meta, EXEC, DIRECTORY, Mode::empty()) {
        Ok(exec) => exec,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(errno) => return Err(io(errno)),
    };
    let mut ids = Vec::new();
    for entry in rustix::fs::Dir::read_from(&exec).map_err(io)? {
        let entry = entry.map_err(io)?;
        if let Some(id) = entry
            .file_name()
            .to_str()
            .ok()
            .and_then(|n| ExecutionId::parse(n).ok())
        {
            ids.push(id);
        }
    }
    ids.sort();
    Ok(ids)
}

/// Says whether a shim, or one of those it started, lives in an open `meta/`.
pub(crate) fn any_alive(meta: BorrowedFd<'_>) -> Result<bool> {
    for id in ids(meta)? {
        let exec = rustix::fs::openat(meta, EXEC, DIRECTORY, Mode::empty());
        let exec = exec.map_err(|e| Error::io("open", EXEC, e))?;
        let Some(place) = Place::within(exec.as_fd(), &id)? else {
            continue;
        };
        // What was given up before it was made whole has no locks.
        let whole = rustix::fs::statat(&place.dir, ALIVE, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if whole && place.alive()? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn exec_of(volume: &Volume) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(volume.meta(), EXEC, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(Error::io("make", EXEC, errno)),
    }
    rustix::fs::openat(volume.meta(), EXEC, DIRECTORY, Mode::empty()).map_err(|e| Error::io("open", EXEC, e))
}

const fn asked(urgency: Urgency) -> &'static str {
    match urgency {
        Urgency::Ask => "end.term",
        Urgency::Kill => "end.kill",
    }
}

fn gone(id: &ExecutionId) -> Error {
    Error::io("open", id.as_str(), Errno::NOENT)
}
