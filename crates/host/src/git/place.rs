//! Says whether a directory lies in the worktree or its git directory, whatever path and mount lead to it.
//!
//! Paths of other processes are theirs: this walks up by `..` and compares inodes, and asks the mounts where a walk
//! ends at one that shows only a part of the filesystem. It reads and changes nothing.

use super::worktree::Checked;
use crate::mount_table::unescaped;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fstat, openat, statx};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How deep a directory may lie.
const DEEPEST: usize = 4096;

/// Says where something lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lies {
    /// In the worktree or the git directory.
    Inside,
    /// Elsewhere.
    Outside,
    /// It cannot be told.
    Unknown,
}

type Inode = (u64, u64);

/// One of the directories that are watched over.
struct Ours {
    inode: Inode,
    /// The mount by which we see it.
    mount: Option<u64>,
    /// Its path within its filesystem, where it can be told.
    within: Option<Vec<u8>>,
    /// The directories above it, and itself.
    above: Vec<Inode>,
}

/// Knows the directories of one restoration.
pub(super) struct Places {
    ours: Vec<Ours>,
    known: HashMap<(Inode, u64), Lies>,
}

pub(super) const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const UP: OFlags = LOOK.union(OFlags::DIRECTORY);

impl Places {
    pub(super) fn new(at: &Checked) -> rustix::io::Result<Self> {
        let mut ours = Vec::new();
        for (dir, path) in [(&at.dir, &at.gitdir), (&at.root, &at.worktree)] {
            let mount = mount_id(dir);
            ours.push(Ours {
                inode: inode_of(dir)?,
                mount,
                within: within(mount, "self").map(|(root, point)| joined(&root, &point, path)),
                above: climb(dir.as_fd(), &[])?.passed,
            });
        }
        Ok(Self {
            ours,
            known: HashMap::new(),
        })
    }

    /// Says whether this is the git directory itself.
    pub(super) fn is_gitdir(&self, dir: impl AsFd) -> bool {
        let gitdir = self.ours.first().map(|ours| ours.inode);
        inode_of(dir).is_ok_and(|inode| Some(inode) == gitdir)
    }

    /// Says whether a file of this device may lie in ours at all.
    pub(super) fn shares_device(&self, dev: u64) -> bool {
        self.ours.iter().any(|ours| ours.inode.0 == dev)
    }

    /// Says where a directory of a process lies; `mounts` names that process below `/proc`.
    pub(super) fn of(&mut self, dir: impl AsFd, mounts: &str) -> Lies {
        let Ok(inode) = inode_of(&dir) else {
            return Lies::Unknown;
        };
        let key = (inode, mount_id(&dir).unwrap_or_default());
        if let Some(lies) = self.known.get(&key) {
            return *lies;
        }
        let lies = self.look(dir.as_fd(), mounts);
        self.known.insert(key, lies);
        lies
    }

    /// Says whether all of ours lies on one device.
    pub(super) fn all_on(&self, dev: u64) -> bool {
        self.ours.iter().all(|ours| ours.inode.0 == dev)
    }

    /// Says whether a directory lies in ours, or ours in it.
    pub(super) fn overlaps(&mut self, dir: impl AsFd, mounts: &str) -> Lies {
        match self.of(&dir, mounts) {
            Lies::Outside => {}
            lies => return lies,
        }
        let Ok(inode) = inode_of(&dir) else {
            return Lies::Unknown;
        };
        let mount = mount_id(&dir);
        for ours in &self.ours {
            if ours.above.contains(&inode) {
                return Lies::Inside;
            }
            if ours.inode.0 != inode.0 || (mount.is_some() && mount == ours.mount) {
                continue;
            }
            // By another mount of our filesystem: only its own table tells where that is.
            let name = format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd());
            let (Some(own), Some((root, point)), Ok(name)) =
                (&ours.within, within(mount, mounts), std::fs::read_link(name))
            else {
                return Lies::Unknown;
            };
            if !name.starts_with(&point) {
                return Lies::Unknown;
            }
            let there = joined(&root, &point, &name);
            if Path::new(OsStr::from_bytes(own)).starts_with(OsStr::from_bytes(&there)) {
                return Lies::Inside;
            }
        }
        Lies::Outside
    }

    fn look(&self, dir: BorrowedFd<'_>, mounts: &str) -> Lies {
        let sought: Vec<Inode> = self.ours.iter().map(|ours| ours.inode).collect();
        let Ok(up) = climb(dir, &sought) else {
            return Lies::Unknown;
        };
        if up.met {
            return Lies::Inside;
        }
        // What a walk passes by mounts that show a part of our filesystem may lie in ours all the same.
        for Passed { device, mount, top } in &up.mounts {
            // Where the directory that a mount shows is gone, nothing of ours lies in it, and nothing can be put there.
            if *top == Top::Gone {
                continue;
            }
            let same = self.ours.iter().filter(|ours| ours.inode.0 == *device);
            for ours in same.filter(|ours| ours.mount.is_none() || ours.mount != *mount) {
                let (Some(own), Some((root, _))) = (&ours.within, within(*mount, mounts)) else {
                    return Lies::Unknown;
                };
                let (own, root) = (OsStr::from_bytes(own), OsStr::from_bytes(&root));
                if Path::new(root).starts_with(own) {
                    return Lies::Inside;
                }
            }
        }
        Lies::Outside
    }
}

struct Climbed {
    met: bool,
    /// Every directory on the way, the first one included.
    passed: Vec<Inode>,
    /// The mounts that were passed.
    mounts: Vec<Passed>,
}

/// A mount that a walk passed.
struct Passed {
    device: u64,
    mount: Option<u64>,
    top: Top,
}

/// Says whether the directory that was passed last in a mount still has a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Top {
    Named,
    Gone,
}

/// Walks up from a directory until one of these is met, or the root.
fn climb(dir: BorrowedFd<'_>, sought: &[Inode]) -> rustix::io::Result<Climbed> {
    let mut at = openat(dir, ".", UP, Mode::empty())?;
    let mut stat = fstat(&at)?;
    let (mut mounts, mut passed): (Vec<Passed>, _) = (Vec::new(), Vec::new());
    for _ in 0..DEEPEST {
        let inode = (stat.st_dev, stat.st_ino);
        passed.push(inode);
        let (device, mount) = (inode.0, mount_id(&at));
        let top = if stat.st_nlink == 0 { Top::Gone } else { Top::Named };
        match mounts.last_mut() {
            Some(last) if last.device == device && last.mount == mount => last.top = top,
            _ => mounts.push(Passed { device, mount, top }),
        }
        let met = sought.contains(&inode);
        let above = openat(&at, "..", UP, Mode::empty())?;
        let next = fstat(&above)?;
        if met || (next.st_dev, next.st_ino) == inode {
            return Ok(Climbed { met, passed, mounts });
        }
        (at, stat) = (above, next);
    }
    Err(Errno::LOOP)
}

pub(super) fn inode_of(file: impl AsFd) -> rustix::io::Result<Inode> {
    fstat(file).map(|stat| (stat.st_dev, stat.st_ino))
}

fn mount_id(dir: impl AsFd) -> Option<u64> {
    let seen = statx(dir, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (seen.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(seen.stx_mnt_id)
}

/// Gives what a mount shows of its filesystem, and where it is mounted.
fn within(mount: Option<u64>, process: &str) -> Option<(Vec<u8>, PathBuf)> {
    let text = std::fs::read(format!("/proc/{process}/mountinfo")).ok()?;
    let id = mount?.to_string();
    text.split(|b| *b == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let [number, _, _, root, point, ..] = fields.as_slice() else {
            return None;
        };
        let plain = *number == id.as_bytes() && root.starts_with(b"/") && !root.ends_with(b"//deleted");
        let point = unescaped(point);
        plain.then(|| (unescaped(root), PathBuf::from(OsStr::from_bytes(&point))))
    })
}

fn joined(root: &[u8], point: &Path, path: &Path) -> Vec<u8> {
    let below = path.strip_prefix(point).unwrap_or(path);
    let root = Path::new(OsStr::from_bytes(root));
    root.join(below).into_os_string().into_encoded_bytes()
}

/// Opens a directory entry only to look at it.
pub(super) fn look_at(path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, LOOK, Mode::empty())
}
