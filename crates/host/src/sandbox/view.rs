//! Puts up the view of a [`Plan`]: a root of its own, in which nothing stands that the plan does not name.
//!
//! Everything is taken from outside by descriptor before anything is hidden, so a place can be shown at its own
//! path though all around it is hidden. It does not leave the old root before the new one is whole.

use super::own::Own;
use super::plan::{Plan, SYSTEM, What};
use super::sys::{self, NODEV, NOSUID, RDONLY, Reach};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
    unmount,
};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The devices that a program may open.
pub(super) const DEVICES: [&str; 6] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
];

/// Where the new root stands until it becomes the root.
const BASE: &str = "/";

/// Whose processes `/proc` may show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Proc {
    /// Those of a process namespace of our own.
    Own,
    /// There is no such namespace.
    Host,
}

/// Cuts this mount namespace off from every other: what is mounted there later is not mounted here.
pub(super) fn cut_off() -> io::Result<()> {
    mount_change(BASE, MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|e| named("make mounts private", Path::new(BASE), e))
}

/// Puts up the view and makes it the root; gives what of it could not be had.
///
/// A user of its own, for whom a place that may be written cannot be mapped, is taken away.
///
/// The namespace has to be cut off. On an error the old root stands as it was.
pub(super) fn enter(plan: &Plan, proc: Proc, own: &mut Option<Own>) -> io::Result<Vec<String>> {
    let mut lacking = Vec::new();
    let sources = match own.as_ref().map(|own| sources(plan, Some(own))) {
        Some(Ok(sources)) => sources,
        Some(Err(error)) => {
            *own = None;
            lacking.push(format!("own user: {error}"));
            sources(plan, None)?
        }
        None => sources(plan, None)?,
    };
    let mut devices = Vec::new();
    for device in DEVICES.map(Path::new) {
        match clone_of(device, NOSUID) {
            Ok(tree) => devices.push((device, tree)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    let (proc, missing) = proc_of(proc)?;

    let root = scratch("0755", "16m")?;
    move_mount(&root, "", CWD, BASE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|e| named("stand the new root on", Path::new(BASE), e))?;
    let built = furnish(root.as_fd(), plan, sources, devices, &proc)
        .and_then(|()| {
            own.as_ref()
                .map_or(Ok(()), |own| name_user(root.as_fd(), own.uid()))
        })
        .and_then(|()| close(root.as_fd()))
        .and_then(|()| become_root(&root));
    if let Err(error) = built {
        // The half-made root lies on top of the old one; without it the old one is the root again.
        unmount_top(&root);
        return Err(error);
    }
    lacking.extend(missing);
    Ok(lacking)
}

/// Takes what stands at each place.
fn sources<'a>(plan: &'a Plan, own: Option<&Own>) -> io::Result<Vec<(&'a Path, What, OwnedFd)>> {
    let places = plan.places.iter();
    places
        .map(|(place, what)| Ok((place.as_path(), *what, source(place, *what, own)?)))
        .collect()
}

/// Mounts everything beneath the new root.
fn furnish(
    root: BorrowedFd<'_>,
    plan: &Plan,
    sources: Vec<(&Path, What, OwnedFd)>,
    devices: Vec<(&Path, OwnedFd)>,
    proc: &OwnedFd,
) -> io::Result<()> {
    for (device, tree) in devices {
        attach(&tree, &make(root, device, Kind::File)?, device)?;
    }
    for (link, text) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
        ("/dev/ptmx", "pts/ptmx"),
        ("/var/run", "/run"),
    ] {
        link_at(root, Path::new(link), Path::new(text))?;
    }
    let pts = Path::new("/dev/pts");
    attach(&devpts()?, &make(root, pts, Kind::Directory)?, pts)?;
    let at = Path::new("/proc");
    attach(proc, &make(root, at, Kind::Directory)?, at)?;
    make(root, Path::new("/run"), Kind::Directory)?;

    let mut closing = Vec::new();
    for (place, what, tree) in sources {
        let kind = Kind::of(tree.as_fd())?;
        let target = make(root, place, kind)?;
        attach(&tree, &target, place)?;
        if what == What::Nothing {
            closing.push(tree);
        }
    }
    for (link, text) in &plan.links {
        link_at(root, link, text)?;
    }
    // Only now: mount points beneath hidden places were made in them.
    for tree in closing {
        close(tree.as_fd())?;
    }
    Ok(())
}

fn close(tree: BorrowedFd<'_>) -> io::Result<()> {
    sys::mount_setattr(tree, Reach::One, RDONLY | NOSUID | NODEV)
}

/// Adds the user to the system's lists of users and groups: many a program wants to know its own name.
fn name_user(root: BorrowedFd<'_>, uid: u32) -> io::Result<()> {
    for (name, line) in [
        (
            "passwd",
            format!("semel:x:{uid}:{uid}:Semel:/nonexistent:/bin/sh\n"),
        ),
        ("group", format!("semel:x:{uid}:\n")),
    ] {
        let place = Path::new("/etc").join(name);
        let Ok(mut text) = std::fs::read(&place) else {
            continue;
        };
        if text.last().is_some_and(|last| *last != b'\n') {
            text.push(b'\n');
        }
        text.extend_from_slice(line.as_bytes());
        let beside = Path::new("/run").join(name);
        drop(make(root, &beside, Kind::File)?);
        let at = beside.strip_prefix("/").unwrap_or(&beside);
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(root, at, flags, Mode::empty()).map_err(|e| named("open", &beside, e))?;
        std::fs::File::from(file).write_all(&text)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(root, at, flags).map_err(|e| named("take", &beside, e))?;
        close(tree.as_fd())?;
        attach(&tree, &make(root, &place, Kind::File)?, &place)?;
    }
    Ok(())
}

/// Leaves the old root for the new one.
fn become_root(root: &OwnedFd) -> io::Result<()> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(".", ".").map_err(|e| named("make a root of", Path::new("."), e))?;
    // Both roots now stand at the same place, the old one on top.
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    Ok(())
}

fn unmount_top(root: &OwnedFd) {
    if rustix::process::fchdir(root).is_ok() {
        // Detached it shows nothing; the process goes on with what the old root shows.
        unmount(".", UnmountFlags::DETACH).ok();
    }
    rustix::process::chdir("/").ok();
}

/// Takes what is to stand at a place. What the caller shows is shown as this user's, where it is root's: all of what
/// may be written, and what is read as far as can be. What of the system's own is for root alone is not shown as theirs.
fn source(place: &Path, what: What, own: Option<&Own>) -> io::Result<OwnedFd> {
    let systems = SYSTEM.iter().any(|system| Path::new(system) == place);
    match what {
        What::Read => {
            let tree = clone_of(place, RDONLY | NOSUID | NODEV)?;
            if let Some(own) = own.filter(|_| !systems) {
                // Where owners cannot be mapped, it is read as by anybody.
                sys::map_owners(tree.as_fd(), Reach::All, own.owners()).ok();
            }
            Ok(tree)
        }
        What::Write => {
            let tree = clone_of(place, NOSUID | NODEV)?;
            if let Some(own) = own
                && rustix::fs::statat(&tree, "", AtFlags::EMPTY_PATH)?.st_uid != own.uid()
            {
                sys::map_owners(tree.as_fd(), Reach::All, own.owners())
                    .map_err(|e| named("map the owners of", place, e))?;
            }
            Ok(tree)
        }
        What::Scratch => scratch("1777", "25%"),
        What::Nothing => scratch("0755", "16m"),
        What::Blank => clone_of(Path::new("/dev/null"), RDONLY | NOSUID),
    }
}

/// Clones what stands at a place, with all mounts beneath.
fn clone_of(place: &Path, attributes: u64) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = open_tree(CWD, place, flags).map_err(|e| named("take", place, e))?;
    sys::mount_setattr(tree.as_fd(), Reach::All, attributes).map_err(|e| named("restrict", place, e))?;
    Ok(tree)
}

/// Makes an empty filesystem in memory.
fn scratch(mode: &str, size: &str) -> io::Result<OwnedFd> {
    let fs =
        fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(|e| named("make", Path::new("tmpfs"), e))?;
    fsconfig_set_string(&fs, "mode", mode)?;
    fsconfig_set_string(&fs, "size", size)?;
    mounted(
        &fs,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )
}

fn devpts() -> io::Result<OwnedFd> {
    let fs =
        fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC).map_err(|e| named("make", Path::new("devpts"), e))?;
    fsconfig_set_string(&fs, "mode", "600")?;
    fsconfig_set_string(&fs, "ptmxmode", "0666")?;
    mounted(
        &fs,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )
}

/// Makes `/proc`: of our own processes, else (said as missing) what the host shows.
///
/// It is read-only: without capabilities the owner of the system could still write `/proc/sys`.
fn proc_of(proc: Proc) -> io::Result<(OwnedFd, Vec<String>)> {
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let why = match proc {
        Proc::Own => {
            let made = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)
                .map_err(io::Error::from)
                .and_then(|fs| mounted(&fs, attributes));
            match made {
                Ok(own) => return Ok((own, Vec::new())),
                Err(e) => e.to_string(),
            }
        }
        Proc::Host => "no process namespace".to_owned(),
    };
    let host = clone_of(Path::new("/proc"), RDONLY | NOSUID | NODEV)?;
    Ok((host, vec![format!("own /proc: {why}")]))
}

fn mounted(fs: &OwnedFd, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    fsconfig_create(fs)?;
    Ok(fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

impl Kind {
    fn of(tree: BorrowedFd<'_>) -> io::Result<Self> {
        let facts = rustix::fs::statat(tree, "", AtFlags::EMPTY_PATH)?;
        let directory = rustix::fs::FileType::from_raw_mode(facts.st_mode).is_dir();
        Ok(if directory { Self::Directory } else { Self::File })
    }
}

/// Opens a mount point beneath the new root, through no symlink; makes what is missing of it.
fn make(root: BorrowedFd<'_>, place: &Path, kind: Kind) -> io::Result<OwnedFd> {
    let mut at = root.try_clone_to_owned()?;
    let mut names = place.iter().skip(1).peekable();
    while let Some(name) = names.next() {
        let last = names.peek().is_none();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = match rustix::fs::openat(&at, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                if last && kind == Kind::File {
                    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                    rustix::fs::openat(&at, name, flags, Mode::from_raw_mode(0o444))
                        .map_err(|e| named("make", place, e))?;
                } else {
                    rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755))
                        .map_err(|e| named("make", place, e))?;
                }
                rustix::fs::openat(&at, name, flags, Mode::empty())
            }
            other => other,
        };
        at = next.map_err(|e| named("open", place, e))?;
    }
    Ok(at)
}

fn attach(tree: &OwnedFd, target: &OwnedFd, place: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags).map_err(|e| named("mount", place, e))
}

/// Makes a symlink beneath the new root, unless something stands there.
fn link_at(root: BorrowedFd<'_>, link: &Path, text: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (link.parent(), link.file_name()) else {
        return Ok(());
    };
    let parent = make(root, parent, Kind::Directory)?;
    match rustix::fs::symlinkat(text, &parent, name) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        // Where the parent shows what stands outside, the link stands there too, or was never there.
        Err(Errno::ROFS) => Ok(()),
        Err(e) => Err(named("link", link, e)),
    }
}

fn named(operation: &str, place: &Path, error: impl Into<io::Error>) -> io::Error {
    use std::os::unix::ffi::OsStrExt;
    let error = error.into();
    let place = semel_core::path::shown(place.as_os_str().as_bytes());
    io::Error::new(error.kind(), format!("{operation} {place}: {error}"))
}
