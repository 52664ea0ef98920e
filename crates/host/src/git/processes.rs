//! The processes of this machine that are tied to a worktree: where they work, what they have open, what their
//! environment names. It only looks, and says so where it could not.

use super::overlays::Overlays;
use super::place::{LOOK, Lies, Places, look_at};
use super::worktree::Checked;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat, stat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use semel_core::restore::{Began, Fact, Tie, Tied};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

/// A kernel thread, in the flags of `/proc/PID/stat`.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// How much later than the lock's time a process must have begun by the wall clock.
const MARGIN: Duration = Duration::from_secs(1);
/// How far the clocks may drift apart while a lock is looked at.
const STEP: Duration = Duration::from_millis(100);
/// The longest environment that is read.
const ENVIRON: usize = 4 << 20;

/// Is a moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Since boot.
    boot: Duration,
    /// By the wall clock.
    wall: Duration,
}

impl Moment {
    pub(super) fn now() -> Self {
        let read = |id| {
            let time = clock_gettime(id);
            let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
            Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
        };
        Self {
            boot: read(ClockId::Boottime),
            wall: read(ClockId::Realtime),
        }
    }

    /// Says how far the wall clock is ahead of the boot.
    fn ahead(self) -> Duration {
        self.wall.saturating_sub(self.boot)
    }
}

/// Says when a lock was changed last, and when we saw it first: a process that began later cannot have made it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age {
    /// Its change time.
    pub(super) changed: Duration,
    /// When it was seen first.
    pub(super) met: Moment,
}

impl Age {
    /// Says when a process began, beside the lock.
    ///
    /// That it began after our first sight is proven by one clock alone. Whether it began between the lock's change and
    /// our first sight is a matter of two clocks, of which one may have been set: a git is never excused by that.
    fn began(&self, process: &Stat, now: Moment) -> Began {
        if process.started > self.met.boot + Duration::from_millis(20) {
            return Began::After;
        }
        let steady = now.ahead().abs_diff(self.met.ahead()) < STEP;
        let changed = self.changed.saturating_sub(now.ahead());
        if steady && !process.name.starts_with("git") && process.started > changed + MARGIN {
            return Began::After;
        }
        Began::Before
    }
}

/// What `/proc/PID/stat` says.
struct Stat {
    name: String,
    ended: bool,
    kernel: bool,
    started: Duration,
}

fn stat_of(pid: u32) -> Option<Stat> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let open = text.iter().position(|b| *b == b'(')?;
    let close = text.iter().rposition(|b| *b == b')')?;
    let name = semel_core::path::shown(text.get(open + 1..close)?);
    let fields: Vec<&str> = core::str::from_utf8(text.get(close + 2..)?)
        .ok()?
        .split(' ')
        .collect();
    let ticks: u64 = fields.get(19)?.parse().ok()?;
    let hertz = rustix::param::clock_ticks_per_second().max(1);
    Some(Stat {
        name,
        ended: matches!(*fields.first()?, "Z" | "X"),
        kernel: fields.get(6)?.parse::<u64>().ok()? & KERNEL_THREAD != 0,
        started: Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / hertz)),
    })
}

/// What one pass over the processes found.
pub(super) struct Scan {
    pub(super) whole: Fact,
    pub(super) tied: Vec<Tied>,
}

/// Looks at every process but this one. `waiting` are restorations that wait as we do: what they have open is how they
/// look.
pub(super) fn scan(at: &Checked, age: &Age, waiting: &BTreeSet<u32>) -> Scan {
    let mut places = match Places::new(at) {
        Ok(places) => places,
        Err(e) => return Scan::cut(format!("the worktree cannot be placed: {e}")),
    };
    let pids = match numbers("/proc") {
        Ok(pids) => pids,
        Err(e) => return Scan::cut(format!("the processes cannot be listed: {e}")),
    };
    let now = Moment::now();
    let mut tied = Vec::new();
    let mut overlays = Overlays::new();
    let mut whole = shown_apart(&mut overlays, &mut places, "self");
    for pid in pids.into_iter().filter(|pid| *pid != std::process::id()) {
        let Some(stat) = stat_of(pid) else {
            if gone(pid) {
                continue;
            }
            return Scan::cut(format!("process {pid} does not say what it is"));
        };
        if stat.kernel {
            continue;
        }
        if whole == Fact::Holds {
            whole = shown_apart(&mut overlays, &mut places, &pid.to_string());
        }
        let began = age.began(&stat, now);
        let mut look = Look {
            pid,
            places: &mut places,
            excused: waiting.contains(&pid),
        };
        if let Some(by) = look.tie(&stat, began)
            && !gone(pid)
        {
            tied.push(Tied {
                pid,
                name: stat.name,
                began,
                by,
            });
        }
    }
    Scan { whole, tied }
}

/// Says whether no overlay that a process sees can show what is ours: whoever works there would be taken for somebody
/// elsewhere.
fn shown_apart(overlays: &mut Overlays, places: &mut Places, process: &str) -> Fact {
    match overlays.look(places, process) {
        Ok(None) => Fact::Holds,
        Ok(Some(point)) => {
            let point = semel_core::path::shown(point.as_os_str().as_bytes());
            Fact::Doubted(format!("the overlay at {point} may show the worktree to others"))
        }
        Err(e) => Fact::Doubted(format!("the mounts of process {process} cannot be read: {e}")),
    }
}

/// Names who holds a lock, as far as the processes that can be seen show it. For people; nothing is decided by it.
pub(super) fn likely_owner(at: &Checked, age: &Age, waiting: &BTreeSet<u32>) -> Option<String> {
    let mut tied = scan(at, age, waiting).tied;
    tied.retain(|tied| tied.by != Tie::Unreadable && tied.counts());
    // A git is a likelier owner than the shell that it was started from.
    tied.sort_by_key(|tied| {
        (
            !tied.name.starts_with("git"),
            tied.by != Tie::Environment,
            tied.pid,
        )
    });
    let first = tied.into_iter().next()?;
    Some(format!("{} (process {})", first.name, first.pid))
}

impl Scan {
    fn cut(why: String) -> Self {
        Self {
            whole: Fact::Doubted(why),
            tied: Vec::new(),
        }
    }
}

fn gone(pid: u32) -> bool {
    matches!(stat(format!("/proc/{pid}")), Err(Errno::NOENT | Errno::SRCH))
}

fn numbers(dir: &str) -> rustix::io::Result<Vec<u32>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = rustix::fs::open(dir, flags, Mode::empty())?;
    let mut found = Vec::new();
    for entry in Dir::read_from(&open)? {
        let entry = entry?;
        let name = core::str::from_utf8(entry.file_name().to_bytes());
        found.extend(name.ok().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(found)
}

/// One process that is looked at.
struct Look<'a> {
    pid: u32,
    places: &'a mut Places,
    excused: bool,
}

/// What came of looking at one thing of a process; a process that ends meanwhile is gone with all it had.
type Seen<T> = Result<T, Tie>;

fn readable<T>(result: rustix::io::Result<T>) -> Seen<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT | Errno::SRCH) => Ok(None),
        Err(_) => Err(Tie::Unreadable),
    }
}

impl Look<'_> {
    fn tie(&mut self, stat: &Stat, began: Began) -> Option<Tie> {
        let threads = match readable(numbers(&format!("/proc/{}/task", self.pid))) {
            Ok(threads) => threads.unwrap_or_default(),
            Err(tie) => return Some(tie),
        };
        // A process that has ended may still have threads that go on.
        if stat.ended && threads.len() <= 1 {
            return None;
        }
        let mut unread = None;
        for thread in &threads {
            match self.thread(*thread, began) {
                Ok(None) => {}
                Ok(Some(tie)) => return Some(tie),
                Err(tie) => unread = Some(tie),
            }
        }
        unread
    }

    /// Looks at one thread: threads can have a directory and descriptors of their own.
    fn thread(&mut self, thread: u32, began: Began) -> Seen<Option<Tie>> {
        let task = format!("/proc/{}/task/{thread}", self.pid);
        if self.environment(&task)? {
            return Ok(Some(Tie::Environment));
        }
        if began == Began::After {
            return Ok(None);
        }
        for (name, tie) in [("cwd", Tie::WorkingDirectory), ("root", Tie::Root)] {
            if let Some(dir) = readable(look_at(format!("{task}/{name}")))? {
                match self.lies(&dir) {
                    Lies::Inside => return Ok(Some(tie)),
                    Lies::Outside => {}
                    Lies::Unknown => return Err(Tie::Unreadable),
                }
            }
        }
        if self.excused {
            return Ok(None);
        }
        for number in readable(numbers(&format!("{task}/fd")))?.unwrap_or_default() {
            if self.descriptor(&task, number)? {
                return Ok(Some(Tie::Descriptor));
            }
        }
        Ok(None)
    }

    fn lies(&mut self, dir: impl std::os::fd::AsFd) -> Lies {
        self.places.of(dir, &self.pid.to_string())
    }

    fn descriptor(&mut self, task: &str, number: u32) -> Seen<bool> {
        let link = format!("{task}/fd/{number}");
        let Some(open) = readable(look_at(link.as_str()))? else {
            return Ok(false);
        };
        let Ok(seen) = rustix::fs::fstat(&open) else {
            return Err(Tie::Unreadable);
        };
        let lies = match FileType::from_raw_mode(seen.st_mode) {
            FileType::Directory => self.lies(&open),
            FileType::RegularFile if self.places.shares_device(seen.st_dev) => self.file(task, &link)?,
            _ => Lies::Outside,
        };
        match lies {
            Lies::Inside => Ok(true),
            Lies::Outside => Ok(false),
            Lies::Unknown => Err(Tie::Unreadable),
        }
    }

    /// Places an open file by the directory of its name, in the view of its process.
    fn file(&mut self, task: &str, link: &str) -> Seen<Lies> {
        let Some(name) = readable(readlinkat(rustix::fs::CWD, link, Vec::new()))? else {
            return Ok(Lies::Outside);
        };
        let name = OsString::from_vec(name.into_bytes());
        let Some(parent) = Path::new(&name).parent().filter(|parent| parent.is_absolute()) else {
            // Memory, or a file that never had a name.
            return Ok(Lies::Outside);
        };
        let Some(root) = readable(look_at(format!("{task}/root")))? else {
            return Ok(Lies::Outside);
        };
        match readable(in_root(&root, parent))? {
            Some(dir) => Ok(self.lies(&dir)),
            // The directory is gone, and with it whatever lay in it.
            None => Ok(Lies::Outside),
        }
    }

    /// Says whether the environment of a process names the index, its lock, or the git directory.
    fn environment(&mut self, task: &str) -> Seen<bool> {
        let Some(text) = readable(environ(task))? else {
            return Ok(false);
        };
        for entry in text.split(|b| *b == 0) {
            let named = match (
                entry.strip_prefix(b"GIT_INDEX_FILE="),
                entry.strip_prefix(b"GIT_DIR="),
            ) {
                (Some(file), _) => Path::new(OsStr::from_bytes(file)).parent(),
                (None, Some(dir)) => Some(Path::new(OsStr::from_bytes(dir))),
                (None, None) => None,
            };
            let Some(named) = named else { continue };
            let from = if named.is_absolute() { "root" } else { "cwd" };
            let Some(base) = readable(look_at(format!("{task}/{from}")))? else {
                continue;
            };
            let found = if named.is_absolute() {
                in_root(&base, named)
            } else {
                let named = if named.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    named
                };
                openat(&base, named, LOOK, Mode::empty())
            };
            match found {
                Ok(dir) if self.places.is_gitdir(&dir) => return Ok(true),
                Ok(_) => {}
                Err(Errno::NOENT | Errno::NOTDIR | Errno::SRCH) => {}
                Err(_) => return Err(Tie::Unreadable),
            }
        }
        Ok(false)
    }
}

fn in_root(root: &std::os::fd::OwnedFd, path: &Path) -> rustix::io::Result<std::os::fd::OwnedFd> {
    openat2(root, path, LOOK, Mode::empty(), ResolveFlags::IN_ROOT)
}

fn environ(task: &str) -> rustix::io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(format!("{task}/environ"), flags, Mode::empty())?;
    let mut text = Vec::new();
    let mut piece = vec![0_u8; 1 << 16];
    loop {
        match rustix::io::read(&file, &mut piece) {
            Ok(0) => return Ok(text),
            Ok(n) => text.extend_from_slice(&piece[..n]),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
        if text.len() > ENVIRON {
            return Err(Errno::TOOBIG);
        }
    }
}
