//! Whether a filesystem can keep what durability `power` promises. What is not known to, cannot.

use crate::error::{Error, Result};
use rustix::fs::{CWD, Mode, OFlags};
use semel_core::{Code, Refusal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

const EXT: u64 = 0xef53;
const OVERLAY: u64 = 0x794c_7630;
const KNOWN: &[(u64, &str)] = &[
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
];
const REFUSED: &[(u64, &str)] = &[
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "fuse"),
    (0x00c3_6400, "ceph"),
    (0x5346_414f, "afs"),
];

/// Refuses a directory whose filesystem cannot keep what durability `power` promises.
///
/// # Errors
/// `durability_unavailable` naming the filesystem and the reason: `volatile`, `network`, `no_journal`,
/// `no_barrier` or `unknown_filesystem`; `io_failed` where it cannot be examined.
pub fn power_supported(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|e| Error::io("open", path, e))?;
    power_supported_at(&dir)
}

/// Refuses an open directory whose filesystem cannot keep what durability `power` promises.
///
/// # Errors
/// As [`power_supported`].
pub fn power_supported_at(dir: &OwnedFd) -> Result<()> {
    let seen = rustix::fs::fstatfs(dir).map_err(|e| Error::io("examine", "a filesystem", e))?;
    // Some systems give the magic number as a signed 32-bit word.
    let magic = (seen.f_type as u64) & 0xffff_ffff;
    let options = mount_options(dir.as_fd())?;
    if options.iter().any(|o| o == "nobarrier" || o == "barrier=0") {
        return refuse("no_barrier", "the filesystem is mounted without write barriers");
    }
    if let Some((_, name)) = REFUSED.iter().find(|(known, _)| *known == magic) {
        let reason = if name.ends_with("mpfs") || *name == "ramfs" {
            "volatile"
        } else {
            "network"
        };
        return refuse(
            reason,
            &format!("{name} does not keep what it acknowledged through a power cut"),
        );
    }
    if KNOWN.iter().any(|(known, _)| *known == magic) {
        return Ok(());
    }
    match magic {
        EXT => journaled(dir.as_fd()),
        OVERLAY => overlay(&options),
        _ => refuse(
            "unknown_filesystem",
            &format!("filesystem type {magic:#x} is not known to"),
        ),
    }
}

/// An ext filesystem with a journal shows in `/proc/fs/jbd2/<device>-<inode of the journal>`.
fn journaled(dir: BorrowedFd<'_>) -> Result<()> {
    let stat = rustix::fs::fstat(dir).map_err(|e| Error::io("examine", "a filesystem", e))?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}"));
    let Some(device) = link
        .ok()
        .and_then(|path| path.file_name().map(std::ffi::OsStr::to_owned))
    else {
        return refuse(
            "no_journal",
            "the device of the filesystem is not to be seen, nor its journal",
        );
    };
    let wanted = format!("{}-", device.display());
    let found = std::fs::read_dir("/proc/fs/jbd2")
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| entry.file_name().display().to_string().starts_with(&wanted));
    if found {
        Ok(())
    } else {
        refuse(
            "no_journal",
            &format!("ext4 on {} has no journal", device.display()),
        )
    }
}

/// An overlay is as good as its upper layer, unless it is mounted `volatile`.
fn overlay(options: &[String]) -> Result<()> {
    if options.iter().any(|o| o == "volatile" || o == "fsync=volatile") {
        return refuse("volatile", "the overlay is mounted volatile");
    }
    match options.iter().find_map(|o| o.strip_prefix("upperdir=")) {
        Some(upper) => power_supported(Path::new(upper)),
        None => refuse(
            "unknown_filesystem",
            "the overlay has no upper layer that is to be seen",
        ),
    }
}

/// Gives the options of the filesystem that a handle lies on, from `/proc/self/mountinfo`.
fn mount_options(dir: BorrowedFd<'_>) -> Result<Vec<String>> {
    const PLACE: &str = "/proc/self/mountinfo";
    let id = crate::root::mount_id(dir).map_err(|e| Error::io("examine", "a mount", e))?;
    let table = std::fs::read(PLACE).map_err(|e| Error::io("read", PLACE, e))?;
    let table = String::from_utf8_lossy(&table).into_owned();
    let line = table
        .lines()
        .find(|line| line.split(' ').next() == Some(id.to_string().as_str()));
    let Some((mount, filesystem)) = line.and_then(|line| line.split_once(" - ")) else {
        return refuse(
            "unknown_filesystem",
            "the mount is not to be seen in /proc/self/mountinfo",
        );
    };
    let of_mount = mount.split(' ').nth(5).unwrap_or_default();
    let of_filesystem = filesystem.split(' ').nth(2).unwrap_or_default();
    let all = of_mount.split(',').chain(of_filesystem.split(','));
    Ok(all.map(str::to_owned).collect())
}

fn refuse<T>(reason: &str, why: &str) -> Result<T> {
    Err(Refusal::new(Code::DurabilityUnavailable, why)
        .reason(reason)
        .into())
}
