//! The mounts that volumes are: made, known again by their source, made read-only, taken away.
//!
//! It mounts where the caller may; it makes no user namespace: a volume has to be seen by the daemon and by every command,
//! and a mount in a namespace of one of them is not.

use crate::mount_table::source_of;
use crate::sandbox;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_remount, move_mount, open_tree,
    unmount,
};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const CLONED: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE
    .union(OpenTreeFlags::OPEN_TREE_CLOEXEC)
    .union(OpenTreeFlags::AT_SYMLINK_NOFOLLOW);

/// Stands before the source of every mount of ours.
const OURS: &str = "semel-";

/// Says how much of an overlay is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Overlay {
    /// Directories of the lower layer can be renamed, and a file keeps its identity when it is copied up.
    Full,
    /// Directories of the lower layer cannot be renamed: `cross_layer`.
    Plain,
}

impl Overlay {
    /// Lists the kinds, the better one first.
    pub(super) const ALL: [Self; 2] = [Self::Full, Self::Plain];

    const fn options(self) -> &'static str {
        match self {
            Self::Full => "redirect_dir=on,index=on,nfs_export=on,xino=auto",
            Self::Plain => "redirect_dir=off,xino=auto",
        }
    }
}

/// Names the layers of an overlay.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    pub(super) lower: PathBuf,
    pub(super) upper: PathBuf,
    pub(super) work: PathBuf,
}

/// Gives the source by which the mount of a volume is known again.
pub(super) fn source(of: &str) -> String {
    format!("{OURS}{of}")
}

/// Says why an overlay cannot lie at a path: its options are one text, in which these bytes mean something.
pub(super) fn unfit(path: &Path) -> Option<String> {
    let odd = path
        .as_os_str()
        .as_bytes()
        .iter()
        .find(|byte| b",:\\\"".contains(byte) || byte.is_ascii_control())?;
    Some(format!("the state root's path has the byte {odd:#04x} in it"))
}

/// Mounts an overlay on an open directory.
pub(super) fn overlay(at: BorrowedFd<'_>, layers: &Layers, kind: Overlay, source: &str) -> io::Result<()> {
    let mut data = Vec::new();
    for (name, path) in [
        ("lowerdir=", &layers.lower),
        (",upperdir=", &layers.upper),
        (",workdir=", &layers.work),
    ] {
        if let Some(why) = unfit(path) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(path.as_os_str().as_bytes());
    }
    data.push(b',');
    data.extend_from_slice(kind.options().as_bytes());
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    Ok(mount(source, itself(at), "overlay", FLAGS, &*data)?)
}

/// Mounts an overlay, in which what is root's is shown as a user's, on an open directory. Of the layer's directory,
/// `upper` and `work` stand in one mount, as an overlay needs it.
///
/// The mounts by which owners are mapped stand in a mount namespace of their own, over the directories that they map: so
/// the overlay's options name its layers by paths that anyone can look at, and no mount stands where others would see it.
pub(super) fn owned(
    at: BorrowedFd<'_>,
    layers: &Layers,
    uid: u32,
    kind: Overlay,
    source: &str,
) -> io::Result<()> {
    let owners = sandbox::own::owners(uid)?;
    let layer = layers.upper.parent().ok_or(Errno::INVAL)?;
    let make = || -> io::Result<std::os::fd::OwnedFd> {
        sandbox::sys::leave_mounts()?;
        for place in [&layers.lower, layer] {
            let mapped = open_tree(CWD, place, CLONED)?;
            sandbox::sys::map_owners(mapped.as_fd(), sandbox::sys::Reach::One, owners.as_fd())?;
            move_mount(mapped, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        }
        let over = open(&layers.lower)?;
        overlay(over.as_fd(), layers, kind, source)?;
        Ok(open_tree(CWD, &layers.lower, CLONED)?)
    };
    // The namespace is that of one thread, and ends with it.
    let made = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("semel-mounts".to_owned());
        let thread = thread.spawn_scoped(scope, make)?;
        let gone = |_| io::Error::other("the thread that mounts ended");
        thread.join().map_err(gone)?
    })?;
    let onto = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(made, "", at, "", onto)?)
}

/// Says how much a filesystem in memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemorySize {
    /// Bytes.
    pub bytes: u64,
    /// Files, directories and links.
    pub files: u64,
}

/// Mounts a filesystem in memory on an open directory.
pub(super) fn tmpfs(at: BorrowedFd<'_>, size: MemorySize, source: &str) -> io::Result<()> {
    let options = |more: &str| {
        let text = format!("size={},nr_inodes={},mode=0700{more}", size.bytes, size.files);
        CString::new(text).map_err(|_| Errno::INVAL)
    };
    // Numbers of files that do not fit 32 bits would come again.
    match mount(source, itself(at), "tmpfs", FLAGS, &*options(",inode64")?) {
        Err(Errno::INVAL) => Ok(mount(source, itself(at), "tmpfs", FLAGS, &*options("")?)?),
        answer => Ok(answer?),
    }
}

/// Says whether an open directory is the root of a mount with this source.
pub(super) fn is_mounted(at: BorrowedFd<'_>, source: &str) -> io::Result<bool> {
    Ok(source_of(at)?.is_some_and(|found| found == source.as_bytes()))
}

/// Says whether an open directory lies in a filesystem that was mounted for a volume.
pub(crate) fn is_of_a_volume(at: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(source_of(at)?.is_some_and(|found| found.starts_with(OURS.as_bytes())))
}

/// Lists of whom mounts stand beneath a directory, by the source that each was given.
pub(super) fn beneath(place: &Path) -> io::Result<Vec<String>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let of = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let at = fields.nth(4)?;
        // What has odd bytes is written with escapes, and is no overlay of ours: `unfit`.
        if !Path::new(std::ffi::OsStr::from_bytes(at)).starts_with(place) {
            return None;
        }
        let source = fields.skip_while(|field| *field != b"-").nth(2)?;
        let name = std::str::from_utf8(source.strip_prefix(OURS.as_bytes())?).ok()?;
        Some(name.to_owned())
    };
    Ok(table.split(|byte| *byte == b'\n').filter_map(of).collect())
}

/// Says what came of taking a mount away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmounted {
    /// It is gone, or never was.
    Yes,
    /// Something uses it, or is mounted in it.
    Busy,
}

/// How often a mount is tried to be taken away before it counts as in use.
const TRIES: u32 = 8;

/// Takes away what is mounted on a directory's entry, if it is the mount with this source.
pub(super) fn take_away(dir: BorrowedFd<'_>, name: &str, source: &str) -> io::Result<Unmounted> {
    // Mounted twice by two who came at the same time, it is taken away twice. A child that is just being started has a copy of
    // every descriptor for a moment, also of one that lies in it.
    for _ in 0..TRIES {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
        let at = match rustix::fs::openat(dir, name, flags, rustix::fs::Mode::empty()) {
            Ok(at) => at,
            Err(Errno::NOENT) => return Ok(Unmounted::Yes),
            Err(errno) => return Err(errno.into()),
        };
        if !is_mounted(at.as_fd(), source)? {
            return Ok(Unmounted::Yes);
        }
        drop(at);
        match unmount(itself(dir).join(name), UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::BUSY) => std::thread::sleep(Duration::from_millis(2)),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(Unmounted::Busy)
}

/// Says whether the content of a mount may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// By whoever may write it.
    Write,
    /// By nobody.
    Read,
}

/// Changes whether the content of a mount may change, for all who have it mounted. That nobody may is refused, with
/// `BUSY`, while any process could still write to a file that it opened or mapped.
pub(super) fn set_access(at: BorrowedFd<'_>, access: Access) -> rustix::io::Result<()> {
    let flags = match access {
        Access::Write => FLAGS,
        Access::Read => FLAGS.union(MountFlags::RDONLY),
    };
    mount_remount(itself(at), flags, c"")
}

/// Names an open directory by its descriptor: no rename in between makes it another one.
fn itself(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Tries, in a directory that is empty, which overlay is to be had; gives what is lacking of the best.
///
/// It is mounted where nobody looks, written through, and taken away.
pub(super) fn try_overlay(place: &Path) -> io::Result<(Overlay, Option<String>)> {
    if let Some(why) = unfit(place) {
        return Err(io::Error::other(why));
    }
    let mut lacking = None;
    for kind in Overlay::ALL {
        match try_kind(place, kind) {
            Ok(()) => return Ok((kind, lacking)),
            Err(error) => lacking = Some(error.to_string()),
        }
    }
    Err(io::Error::other(lacking.unwrap_or_default()))
}

fn try_kind(place: &Path, kind: Overlay) -> io::Result<()> {
    let base = place.join(match kind {
        Overlay::Full => "full",
        Overlay::Plain => "plain",
    });
    let layers = Layers {
        lower: base.join("lower"),
        upper: base.join("upper"),
        work: base.join("work"),
    };
    for dir in [
        &layers.lower.join("d"),
        &layers.upper,
        &layers.work,
        &base.join("vol"),
    ] {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(layers.lower.join("d/f"), "lower")?;
    let name = source("probe");
    let base = open(&base)?;
    overlay(open(&layers.lower.join("../vol"))?.as_fd(), &layers, kind, &name)?;
    let tried = (|| {
        let vol = place.join(match kind {
            Overlay::Full => "full/vol",
            Overlay::Plain => "plain/vol",
        });
        std::fs::write(vol.join("d/f"), "upper")?;
        if kind == Overlay::Full {
            std::fs::rename(vol.join("d"), vol.join("e"))?;
        }
        match std::fs::read(layers.lower.join("d/f"))?.as_slice() {
            b"lower" => Ok(()),
            _ => Err(io::Error::other("the lower layer is written")),
        }
    })();
    match take_away(base.as_fd(), "vol", &name)? {
        Unmounted::Yes => tried,
        Unmounted::Busy => Err(io::Error::other("what was mounted for a trial is busy")),
    }
}

/// Tries, in a directory, whether a filesystem in memory is to be had.
pub(super) fn try_tmpfs(place: &Path) -> io::Result<()> {
    let vol = place.join("memory");
    std::fs::create_dir_all(&vol)?;
    let name = source("probe");
    let size = MemorySize {
        bytes: 64 << 10,
        files: 8,
    };
    tmpfs(open(&vol)?.as_fd(), size, &name)?;
    let tried = std::fs::write(vol.join("f"), "memory");
    match take_away(open(place)?.as_fd(), "memory", &name)? {
        Unmounted::Yes => tried,
        Unmounted::Busy => Err(io::Error::other("what was mounted for a trial is busy")),
    }
}

fn open(path: &Path) -> io::Result<std::os::fd::OwnedFd> {
    let flags = rustix::fs::OFlags::RDONLY
        | rustix::fs::OFlags::DIRECTORY
        | rustix::fs::OFlags::NOFOLLOW
        | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, rustix::fs::Mode::empty())?)
}
