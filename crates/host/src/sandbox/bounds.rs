//! What bounds a program and all that it starts, and the look at whether it met a bound.
//!
//! The kernel's own limits are of one process, or of one user; what a whole tree holds is looked at by its keeper, some
//! twenty times a second. Who is over a bound is ended whole. The kernel's own limit of processes stands so much wider
//! behind that look that it is the look that says what happened. Memory has none: the kernel's is of what a process
//! asked for, threads' stacks and all, and not of what it uses.

use super::spec::Walls;
use super::{Sandbox, TreeAccess};
use crate::clock;
use crate::volume::is_of_a_volume;
use rustix::fs::{Mode, OFlags, open, statfs};
use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};
use semel_core::Bounds;
use semel_core::bounds::Met;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How many processes and threads there are at once, unless somebody says otherwise.
const PROCESSES: u64 = 4096;
/// How many files a process has open.
const OPEN_FILES: u64 = 65_536;
/// How large a file becomes.
const FILE_BYTES: u64 = 16 << 30;
/// The memory of a machine that does not say how much it has.
const MEMORY: u64 = 4 << 30;

/// How many processes above its bound the kernel lets a tree have at least: more than a program begets between two looks
/// also where the machine is busy. One that is denied a process often ends, and takes along what would have been counted.
const PROCESSES_ABOVE: u64 = 256;

/// Between two looks, unless a look takes long.
const LOOK: Duration = Duration::from_millis(50);
/// The same where many processes are.
const LOOK_AT_MANY: Duration = Duration::from_millis(5);
/// The share of the time that looks take at most.
const SHARE: u32 = 20;
/// What of the machine's memory is left free, in hundredths, and at most.
const MEMORY_LEFT: (u64, u64) = (2, 512 << 20);
/// What of a disk, or of a filesystem in memory that is no volume's own, is left free: a little more than what Semel itself
/// refuses to begin with; of a small one, a twentieth.
const DISK_LEFT: u64 = 48 << 20;
/// How many files it can still hold: as many as a program makes between two looks; of a small one, a twentieth.
const FILES_LEFT: u64 = 4096;

/// Gives what holds where nobody says otherwise: of the machine's memory, four fifths.
#[must_use]
pub fn default_bounds() -> Bounds {
    let memory = memory_of("MemTotal:").map_or(MEMORY, |total| total / 5 * 4);
    Bounds {
        processes: PROCESSES,
        open_files: OPEN_FILES,
        memory_bytes: memory,
        file_bytes: FILE_BYTES,
    }
}

/// Reads one line of the machine's memory.
fn memory_of(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    number_of(&text, name)?.checked_mul(1024)
}

/// Reads a number behind a name at the beginning of a line.
fn number_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bounds this process, and all that it will start, by what the kernel knows.
pub(super) fn restrict(bounds: Bounds) -> io::Result<()> {
    lower(Resource::Nofile, bounds.open_files)?;
    lower(Resource::Fsize, bounds.file_bytes)?;
    if counts_by_namespace() {
        let above = PROCESSES_ABOVE.max(bounds.processes / 8);
        lower(Resource::Nproc, bounds.processes.saturating_add(above))?;
    }
    Ok(())
}

/// Lowers a limit; one that is lower stays.
fn lower(resource: Resource, to: u64) -> io::Result<()> {
    let now = getrlimit(resource);
    let least = |now: Option<u64>| Some(now.map_or(to, |now| now.min(to)));
    let limit = Rlimit {
        current: least(now.current),
        maximum: least(now.maximum),
    };
    Ok(setrlimit(resource, limit)?)
}

/// Says whether the processes of a user are counted in each user namespace by itself, as since Linux 5.14; before, those
/// outside would be counted against those inside.
fn counts_by_namespace() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= (5, 14),
        _ => false,
    }
}

/// How fast a disk is written at most, in bytes a second: whoever ran for less time than that fills no file.
const FASTEST: u64 = 16 << 30;
/// How many entries are looked at for a file that met its bound.
const MOST_ENTRIES: usize = 200_000;

/// Waits until what is written now is stamped later than a moment: the clock of the stamps stands still between two ticks.
pub(super) fn past(since: i64) {
    // Some ticks, and no longer: of a clock that was set back nobody is made to wait for it.
    for _ in 0..20 {
        if clock::stamp_ns() > since {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Says whether a tree that began after a moment, and has ended after so long, brought a file to the largest size that it
/// may have: to the byte, since there the kernel stops whoever writes it.
///
/// # Limits
/// A file that was that large before, and was touched in every respect, cannot be told from one that it wrote.
pub(crate) fn outgrown(sandbox: &Sandbox, since: i64, took: Duration) -> bool {
    let most = sandbox.bounds.file_bytes;
    if u128::from(most) > took.as_millis() * u128::from(FASTEST / 1000) {
        return false;
    }
    let tree = (sandbox.tree_access == TreeAccess::Writable).then_some(&sandbox.tree);
    let places = [&sandbox.home, &sandbox.tmp].into_iter().chain(tree);
    let mut open: Vec<PathBuf> = places.chain(&sandbox.writable).cloned().collect();
    let mut left = MOST_ENTRIES;
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            left = match left.checked_sub(1) {
                Some(left) => left,
                None => return false,
            };
            match entry.metadata() {
                Ok(facts) if facts.is_dir() => open.push(entry.path()),
                Ok(facts) if facts.is_file() && facts.len() == most && written_since(&facts, since) => {
                    return true;
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
    false
}

/// Says whether a file was written after a moment: not only moved, linked, or given another mode, and not only dated so.
fn written_since(facts: &Metadata, since: i64) -> bool {
    clock::stamp(facts.mtime(), facts.mtime_nsec()) > since
        && clock::stamp(facts.ctime(), facts.ctime_nsec()) > since
}

/// Looks, now and then, at what a tree holds.
pub(super) struct Watch {
    bounds: Bounds,
    whose: Whose,
    disks: Vec<PathBuf>,
    memory: Vec<PathBuf>,
    floor: u64,
    next: Instant,
    /// When the processes may be counted again because one of them ended.
    next_count: Instant,
}

/// Which processes are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// All that this process sees: it is the first of its namespace.
    All,
    /// Its descendants.
    Descendants,
}

impl Watch {
    /// Begins to look.
    pub(super) fn of(walls: &Walls, whose: Whose, scratch: &[&str]) -> Self {
        let own = |place: &&Path| !in_own_memory(place);
        let disks: BTreeSet<PathBuf> = walls.writable().filter(own).map(Path::to_owned).collect();
        let floor =
            memory_of("MemTotal:").map_or(0, |total| (total / 100 * MEMORY_LEFT.0).min(MEMORY_LEFT.1));
        Self {
            bounds: walls.bounds,
            whose,
            disks: disks.into_iter().collect(),
            memory: scratch.iter().map(PathBuf::from).collect(),
            floor,
            next: Instant::now(),
            next_count: Instant::now(),
        }
    }

    /// Says for how long nothing needs to be looked at.
    pub(super) fn rest(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks, if it is time to; says what was met.
    pub(super) fn look(&mut self) -> Option<Met> {
        let began = Instant::now();
        if began < self.next {
            return None;
        }
        let (met, crowd) = self.met();
        // Where many are, they may soon be too many.
        let least = if crowd > self.bounds.processes / 4 {
            LOOK_AT_MANY
        } else {
            LOOK
        };
        self.next = Instant::now() + least.max(began.elapsed() * SHARE);
        met
    }

    /// Counts the processes when one of them has ended that nobody has reaped, unless that was done a moment ago.
    pub(super) fn count(&mut self) -> Option<Met> {
        let began = Instant::now();
        if self.whose != Whose::All || began < self.next_count {
            return None;
        }
        let many = pids().len() as u64 > self.bounds.processes;
        self.next_count = Instant::now() + began.elapsed() * SHARE;
        many.then_some(Met::Processes)
    }

    /// Looks once more when the program has failed: who is denied a process, or room, often ends at once, between two looks.
    pub(super) fn last_look(&self) -> Option<Met> {
        let full = || self.disks.iter().any(|place| is_full(place));
        self.own().err().or_else(|| full().then_some(Met::DiskFull))
    }

    /// Reads what the kernel says of each process of the tree; fails where there are too many.
    fn own(&self) -> Result<Vec<(u32, Process)>, Met> {
        let pids = pids();
        // Before each is looked at: of a bomb there are many, and each takes its time.
        if self.whose == Whose::All && pids.len() as u64 > self.bounds.processes {
            return Err(Met::Processes);
        }
        let all: BTreeMap<u32, Process> = pids
            .iter()
            .filter_map(|pid| Some((*pid, Process::of(*pid)?)))
            .collect();
        let of = |pid: &u32| self.whose == Whose::All || descends(*pid, &all);
        let own: BTreeSet<u32> = all.keys().copied().filter(of).collect();
        let own: Vec<(u32, Process)> = all.into_iter().filter(|(pid, _)| own.contains(pid)).collect();
        match own.iter().map(|(_, process)| process.threads).sum::<u64>() > self.bounds.processes {
            true => Err(Met::Processes),
            false => Ok(own),
        }
    }

    /// Looks at all; says what was met, and how many processes and threads there are.
    fn met(&self) -> (Option<Met>, u64) {
        match self.own() {
            Ok(own) => (
                self.used_up(&own),
                own.iter().map(|(_, process)| process.threads).sum(),
            ),
            Err(met) => (Some(met), self.bounds.processes),
        }
    }

    fn used_up(&self, own: &[(u32, Process)]) -> Option<Met> {
        let scratch: u64 = self.memory.iter().filter_map(|place| used(place)).sum();
        let most = self.bounds.memory_bytes.saturating_sub(scratch);
        let anon: u64 = own.iter().map(|(_, process)| process.anon).sum();
        let shared: u64 = own.iter().map(|(_, process)| process.shared).sum();
        // What several share is counted once, but only where that matters: it takes its time to find out.
        if anon.saturating_add(shared) > most {
            let parts = own.iter();
            let parts = parts.map(|(pid, process)| own_part(*pid).unwrap_or(process.anon + process.shared));
            if parts.sum::<u64>() > most {
                return Some(Met::Memory);
            }
        }
        if memory_of("MemAvailable:").is_some_and(|left| left < self.floor) {
            return Some(Met::MachineMemory);
        }
        self.disks
            .iter()
            .any(|place| is_full(place))
            .then_some(Met::DiskFull)
    }
}

/// Says whether a place lies in the memory of its own volume: that has its own size, which is met where it is written.
fn in_own_memory(place: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    statfs(place).is_ok_and(|disk| disk.f_type == TMPFS)
        && open(place, flags, Mode::empty())
            .is_ok_and(|at| is_of_a_volume(at.as_fd()).is_ok_and(|of_a_volume| of_a_volume))
}

/// Says whether there is hardly any room, or hardly a file left, where a place lies.
fn is_full(place: &Path) -> bool {
    statfs(place).is_ok_and(|disk| {
        let bytes = |blocks: u64| blocks.saturating_mul(u64::try_from(disk.f_bsize).unwrap_or(0));
        // Who counts no files gives none.
        bytes(disk.f_bavail) < DISK_LEFT.min(bytes(disk.f_blocks) / 20)
            || disk.f_ffree < FILES_LEFT.min(disk.f_files / 20)
    })
}

/// Says how much lies in a filesystem in memory.
fn used(place: &Path) -> Option<u64> {
    let disk = statfs(place).ok()?;
    let block = u64::try_from(disk.f_bsize).ok()?;
    Some(disk.f_blocks.saturating_sub(disk.f_bfree).saturating_mul(block))
}

fn pids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = getpid().as_raw_nonzero().get().unsigned_abs();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != own).collect()
}

/// Says whether a process descends from this one.
fn descends(pid: u32, all: &BTreeMap<u32, Process>) -> bool {
    let own = getpid().as_raw_nonzero().get().unsigned_abs();
    let mut at = pid;
    // A chain of parents is never longer than there are processes, even where one of them ended meanwhile.
    for _ in 0..=all.len() {
        match all.get(&at) {
            Some(process) if process.parent == own => return true,
            Some(process) => at = process.parent,
            None => return false,
        }
    }
    false
}

struct Process {
    parent: u32,
    threads: u64,
    anon: u64,
    shared: u64,
}

impl Process {
    /// Reads what the kernel says of a process; `None` where it is gone.
    fn of(pid: u32) -> Option<Self> {
        Self::read(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        // One that has ended, and is not reaped, holds no memory.
        let bytes = |name| number_of(text, name).unwrap_or(0).saturating_mul(1024);
        Some(Self {
            parent: u32::try_from(number_of(text, "PPid:")?).ok()?,
            threads: number_of(text, "Threads:")?,
            anon: bytes("RssAnon:").saturating_add(bytes("VmSwap:")),
            shared: bytes("RssShmem:"),
        })
    }
}

/// Gives a process's part of the memory that it holds alone or shares with others, if it may be looked at.
fn own_part(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let parts = ["Pss_Anon:", "Pss_Shmem:", "SwapPss:"].map(|name| number_of(&text, name));
    let [anon, shared, swapped] = parts;
    (anon? + shared? + swapped.unwrap_or(0)).checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_process_is_read() {
        let text = "Name:\tThreads: 9\nUmask:\t0022\nPPid:\t41\nRssAnon:\t    2 kB\nRssShmem:\t3 kB\nVmSwap:\t1 kB\nThreads:\t7\n";
        let process = Process::read(text).unwrap();
        assert_eq!(
            (process.parent, process.threads, process.anon, process.shared),
            (41, 7, 3072, 3072)
        );
        assert!(Process::read("Name:\tx\nPPid:\t1\n").is_none());
        let ended = Process::read("PPid:\t1\nThreads:\t1\n").unwrap();
        assert_eq!((ended.anon, ended.shared), (0, 0));
    }

    #[test]
    fn descendants_are_found_through_their_parents() {
        let own = getpid().as_raw_nonzero().get().unsigned_abs();
        let of = |parent| Process {
            parent,
            threads: 1,
            anon: 0,
            shared: 0,
        };
        let all = BTreeMap::from([
            (900_001, of(own)),
            (900_002, of(900_001)),
            (900_003, of(1)),
            (900_004, of(900_005)),
            (900_005, of(900_004)),
        ]);
        let found: Vec<u32> = all.keys().copied().filter(|pid| descends(*pid, &all)).collect();
        assert_eq!(found, [900_001, 900_002]);
    }

    #[test]
    fn the_defaults_are_of_this_machine() {
        let bounds = default_bounds();
        let total = memory_of("MemTotal:").unwrap();
        assert!(bounds.memory_bytes < total && bounds.memory_bytes > total / 2);
    }
}
