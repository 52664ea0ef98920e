//! The system calls that std and rustix do not offer safely. Each is one small function; none decides anything.

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::Pid;
use rustix::thread::UnshareFlags;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Who returns from a fork.
pub(super) enum Fork {
    Parent(Pid),
    Child,
}

/// Forks a process that has one thread, or whose child does nothing but system calls.
#[expect(unsafe_code, reason = "fork has no safe form")]
pub(super) fn fork() -> io::Result<Fork> {
    // SAFETY: the callers run in a process that has executed `entered` as its first act and started no thread,
    // so the child inherits no lock that another thread holds; or their child neither allocates nor locks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Pid::from_raw(pid)
            .map(Fork::Parent)
            .ok_or_else(|| Errno::SRCH.into()),
    }
}

/// Ends this process at once, with nothing flushed and nothing unwound: it is a copy of another one.
#[expect(
    unsafe_code,
    reason = "std ends no process without running what is registered for its end"
)]
pub(super) fn leave() -> ! {
    // SAFETY: it takes a number, and does not return.
    unsafe { libc::_exit(0) }
}

/// Leaves namespaces.
#[expect(unsafe_code, reason = "rustix marks it unsafe for CLONE_FILES alone")]
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the callers never pass CLONE_FILES.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Gives the calling thread mounts of its own: the same ones, and none that comes later is seen outside.
pub(crate) fn leave_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    let apart = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(mount_change("/", apart)?)
}

/// Takes an inherited descriptor by its number.
#[expect(unsafe_code, reason = "a number from the command line becomes a descriptor")]
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: fcntl takes numbers alone.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, as fcntl just proved, and the process that started this one passed it for this call;
    // nothing else here owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes every descriptor but those listed. Whoever owns another one forgets it, or owns it no more.
pub(crate) fn close_all_but(kept: &[RawFd]) {
    // Before Linux 5.9: one by one.
    sweep(kept, 0, |fd| {
        #[expect(unsafe_code, reason = "a descriptor is closed by its number")]
        // SAFETY: by the rule of this function nobody uses it any more.
        unsafe {
            libc::close(fd)
        };
    });
}

/// Has every descriptor but those listed closed where a program is begun.
pub(super) fn close_on_exec_all_but(kept: &[RawFd]) {
    // Before Linux 5.11: one by one.
    sweep(kept, libc::CLOSE_RANGE_CLOEXEC, |fd| {
        #[expect(unsafe_code, reason = "a descriptor is marked by its number")]
        // SAFETY: fcntl takes numbers alone.
        unsafe {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC)
        };
    });
}

/// Has every descriptor from a number on closed where a program is begun, if the kernel knows how. It neither
/// allocates nor locks, so this may also run between fork and exec.
#[expect(unsafe_code, reason = "rustix has no close_range")]
pub(crate) fn close_on_exec_from(first: libc::c_uint) {
    // SAFETY: it takes numbers alone, and closes nothing now.
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
}

/// Treats every range of descriptors between those listed, by the kernel or else one by one.
#[expect(unsafe_code, reason = "rustix has no close_range")]
fn sweep(kept: &[RawFd], flags: libc::c_uint, one: impl Fn(RawFd)) {
    let mut kept: Vec<u32> = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    kept.sort_unstable();
    kept.dedup();
    let mut from = Some(0_u32);
    for fd in kept.into_iter().map(Some).chain([None]) {
        let to = fd.map_or(Some(u32::MAX), |fd| fd.checked_sub(1));
        if let (Some(from), Some(to)) = (from, to)
            && from <= to
        {
            // SAFETY: it takes numbers alone; who owns what it closes is the rule of the callers.
            let done = unsafe { libc::syscall(libc::SYS_close_range, from, to, flags) };
            if done < 0 {
                // As far as descriptors usually go.
                (from..=to.min(65_535))
                    .filter_map(|fd| RawFd::try_from(fd).ok())
                    .for_each(&one);
            }
        }
        from = fd.and_then(|fd| fd.checked_add(1));
    }
}

/// Unblocks every signal, as a program expects.
#[expect(unsafe_code, reason = "rustix has no signal masks")]
pub(crate) fn hear_all_signals() -> io::Result<()> {
    // SAFETY: an all-zero sigset_t is a valid value, and both functions are given a live one. Neither allocates
    // nor locks, so this may also run between fork and exec.
    let done = unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut())
    };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Blocks every signal, and makes a descriptor that becomes readable when a child changes state.
#[expect(unsafe_code, reason = "rustix has no signal masks and no signalfd")]
pub(super) fn deaf_but_for_children() -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sigset_t is a valid value, and the functions are given pointers to live ones.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut child: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigemptyset(&mut child);
        libc::sigaddset(&mut child, libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &child, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// The kernel's `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// How far attributes of a mount are changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// This mount alone.
    One,
    /// This mount and all beneath.
    All,
}

pub(super) const RDONLY: u64 = 1;
pub(super) const NOSUID: u64 = 2;
pub(super) const NODEV: u64 = 4;

/// Sets attributes of the mount that a descriptor names.
pub(super) fn mount_setattr(mount: BorrowedFd<'_>, reach: Reach, set: u64) -> io::Result<()> {
    let attr = MountAttr {
        set,
        clear: 0,
        propagation: 0,
        userns: 0,
    };
    set_attributes(mount, reach, &attr)
}

/// Has the owners of what a mount shows be those of a user namespace: who has a number on the disk is whom that maps it
/// to. The mount stands nowhere yet.
pub(crate) fn map_owners(mount: BorrowedFd<'_>, reach: Reach, owners: BorrowedFd<'_>) -> io::Result<()> {
    const IDMAP: u64 = 0x0010_0000;
    let attr = MountAttr {
        set: IDMAP,
        clear: 0,
        propagation: 0,
        userns: u64::try_from(owners.as_raw_fd()).unwrap_or(u64::MAX),
    };
    set_attributes(mount, reach, &attr)
}

#[expect(unsafe_code, reason = "rustix has no mount_setattr")]
fn set_attributes(mount: BorrowedFd<'_>, reach: Reach, attr: &MountAttr) -> io::Result<()> {
    let reach = if reach == Reach::All {
        libc::AT_RECURSIVE
    } else {
        0
    };
    // SAFETY: the path is a NUL-terminated literal, and the attribute lives over the call with its true size.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | reach,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Brings the loopback device of this network namespace up.
#[expect(unsafe_code, reason = "an interface is brought up by ioctl")]
pub(super) fn loopback_up() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: an all-zero ifreq is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = (*from).cast_signed();
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short | libc::IFF_RUNNING as libc::c_short;
    // SAFETY: the request lives over the call, and SIOCSIFFLAGS reads an ifreq.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Leaves the session keyring for a new, empty one. Where there are no keyrings there is nothing to leave.
#[expect(unsafe_code, reason = "rustix has no keyctl")]
pub(super) fn leave_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for an anonymous keyring; no memory is touched.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<u8>()) };
}

/// Asks which version of Landlock this kernel enforces; 0 for none.
#[expect(unsafe_code, reason = "the version is asked for by a raw system call")]
pub(super) fn landlock_abi() -> u32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel asks for a null attribute of no size, and answers with a number.
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            VERSION,
        )
    };
    u32::try_from(abi).unwrap_or(0)
}
