//! Starts the shim of an execution. What can be refused is refused before anything is on disk.

use super::place::{Claim, Place};
use super::shim::Word;
use super::{Attached, SHIM, Spec};
use crate::error::{Error, Result};
use crate::sandbox::{launcher, sys};
use crate::volume::Volume;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use semel_core::ids::ExecutionId;
use semel_core::{Code, Refusal};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How long a shim may take to say that it begins; then it never will.
const BEGINNING: Duration = Duration::from_secs(30);
/// The longest word of a shim.
const WORD: usize = 64 << 10;
/// How much stack waiting for a child takes.
const STACK: usize = 64 << 10;

/// Names what has just been done to start an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// Its directory is made and durable.
    Made,
    /// Its shim is started; nothing was heard of it yet.
    Spawned,
    /// Its shim says that the command begins.
    Begun,
}

impl Point {
    /// Lists every point, in the order in which they come.
    pub const ALL: &'static [Self] = &[Self::Made, Self::Spawned, Self::Begun];

    /// Gives the name by which a crash test asks for the point.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Spawned => "spawned",
            Self::Begun => "begun",
        }
    }
}

/// Is told of every point right after it was reached.
pub trait Points: Send + Sync {
    /// Hears that a point was reached.
    fn reached(&self, point: Point);
}

/// Listens to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPoints;

impl Points for NoPoints {
    fn reached(&self, _point: Point) {}
}

impl<F: Fn(Point) + Send + Sync> Points for F {
    fn reached(&self, point: Point) {
        self(point);
    }
}

/// Starts a command in a volume, once: a second start of the same execution is refused, whatever became of the first.
///
/// It returns when the shim has begun, not when the command has ended. From then on the command needs nobody.
///
/// # Errors
/// Nothing began, and nothing will: `bad_input`, or as [`crate::root::Root::directory`] for the working directory;
/// `precondition_failed`, reason `execution_known`; `io_failed`. A command that the sandbox or the system refuses
/// later has a status, with [`super::Outcome::NotBegun`]. Only [`Error::Unproven`] says nothing of the kind: then
/// [`super::observe`] has to be asked.
///
/// # Durability
/// That the command begins is on the disk before it does.
///
/// # Limits
/// A shim that says nothing for 30 s is refused its claim.
pub fn start(volume: &Volume, execution: &ExecutionId, spec: &Spec, points: &dyn Points) -> Result<Attached> {
    let order = spec.order(volume)?;
    let reaper = reaper()?;
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| Error::io("make", "a socket pair", e))?;
    let place = Place::create(volume, execution)?;
    points.reached(Point::Made);
    let child = match spawn(&place, order, theirs) {
        Ok(child) => child,
        Err(error) => {
            place.claim(Claim::Never)?;
            return Err(error);
        }
    };
    points.reached(Point::Spawned);
    // It waits for it as long as this process lives; a later one has no such child.
    drop(reaper.send(child));
    match heard(&ours) {
        Some(Word::Begun) => {}
        other => {
            // Whatever it says or does not say, the claim decides.
            let claimed = place.claim(Claim::Never);
            let unproven = |e: Error| Error::unproven("claim", execution.as_str(), std::io::Error::other(e));
            if claimed.map_err(unproven)? == Claim::Never {
                return Err(match other {
                    Some(Word::Failed(refusal)) => refusal.into(),
                    _ => Refusal::new(Code::IoFailed, "the shim ended, or hung, before it began")
                        .name(execution.as_str())
                        .into(),
                });
            }
        }
    }
    points.reached(Point::Begun);
    Ok(Attached::begun(place))
}

/// Starts the thread that will wait for a shim, before there is one: so none is ever left unreaped.
fn reaper() -> Result<SyncSender<Child>> {
    let (send, receive) = sync_channel::<Child>(1);
    let wait = move || {
        if let Ok(mut child) = receive.recv() {
            // How it ended is told by what it left behind.
            child.wait().ok();
        }
    };
    std::thread::Builder::new()
        .name("reaper".to_owned())
        .stack_size(STACK)
        .spawn(wait)
        .map(|_| send)
        .map_err(|e| Error::io("start a thread", "reaper", e))
}

/// Starts the process of a shim: a session of its own, no streams, no environment, three descriptors.
fn spawn(place: &Place, order: OwnedFd, word: OwnedFd) -> Result<Child> {
    let dir = place.as_fd().try_clone_to_owned();
    let kept = [order, dir.map_err(|e| place.io("hold", ".", e))?, word];
    let mut process = std::process::Command::new(launcher());
    process.arg0("semel").arg(SHIM).env_clear().current_dir("/");
    process.args(kept.each_ref().map(|fd| fd.as_raw_fd().to_string()));
    process
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let before = move || {
        rustix::process::setsid()?;
        // Where the kernel does not know how, the shim closes them itself as its first act.
        sys::close_on_exec_from(3);
        for fd in &kept {
            rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
        }
        sys::hear_all_signals()
    };
    #[expect(
        unsafe_code,
        reason = "std asks for it wherever code runs between fork and exec"
    )]
    // SAFETY: the closure makes system calls alone; it neither allocates nor locks, so it may run after fork.
    unsafe {
        process.pre_exec(before)
    };
    process.spawn().map_err(|e| Error::io("start", launcher(), e))
}

/// Waits for the one word of a shim; `None` where it ended, or said nothing in due time.
fn heard(from: &OwnedFd) -> Option<Word> {
    let until = Instant::now().checked_add(BEGINNING)?;
    let mut bytes = vec![0_u8; WORD];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).ok()?,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&left)) {
            Ok(0) => return None,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        match recv(from, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return None,
            Ok((n, _)) => return serde_json::from_slice(bytes.get(..n)?).ok(),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
