//! SIGINT, SIGTERM and SIGHUP, turned into a cancellation.
//!
//! The first one asks the process tree to end; a second one kills it at once. What an ended stage means is decided
//! elsewhere. Who ignores SIGHUP (`nohup`) goes on when a terminal is closed.

use crate::error::{Error, Result};
use crate::process::Cancel;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Tells which signal came first.
#[derive(Clone, Debug)]
pub struct Watch(Arc<AtomicI32>);

impl Watch {
    /// Gives the first signal that came.
    #[must_use]
    pub fn received(&self) -> Option<i32> {
        match self.0.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(signal),
        }
    }
}

/// Watches for these signals from now on; call it before any other thread is made, since those inherit the
/// mask.
///
/// # Errors
/// `io_failed` where the system gives no signal descriptor.
pub fn watch(cancel: Cancel) -> Result<Watch> {
    let fd = signal_descriptor()?;
    let first = Arc::new(AtomicI32::new(0));
    let watch = Watch(Arc::clone(&first));
    let run = move || {
        while let Some(signal) = next(&fd) {
            if first
                .compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
            {
                cancel.cancel();
            } else {
                cancel.kill();
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(run)
        .map_err(|e| Error::io("start a thread", "signals", e))?;
    Ok(watch)
}

#[expect(unsafe_code, reason = "signal masks and signalfd have no safe wrapper here")]
pub(crate) fn signal_descriptor() -> Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    let fail = |doing| Error::io(doing, "SIGINT, SIGTERM, SIGHUP", std::io::Error::last_os_error());
    // SAFETY: the set is initialised by sigemptyset before it is read, and lives to the end of the block.
    let fd = unsafe {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        // A signal that is blocked comes by the descriptor even where it is ignored.
        if !is_ignored(libc::SIGHUP) {
            libc::sigaddset(set.as_mut_ptr(), libc::SIGHUP);
        }
        if libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(fail("block"));
        }
        libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC)
    };
    if fd < 0 {
        return Err(fail("watch for"));
    }
    // SAFETY: signalfd just made this descriptor, and nobody else owns it.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) })
}

#[expect(unsafe_code, reason = "how a signal is taken has no safe wrapper here")]
fn is_ignored(signal: i32) -> bool {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: nothing is set; what is there is written to `now`, which is read only where the call succeeded.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) == 0
            && now.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Waits for the next signal; `None` where none can come any more.
fn next(fd: &std::os::fd::OwnedFd) -> Option<i32> {
    let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
    loop {
        match rustix::io::read(fd, &mut info) {
            Ok(n) if n == info.len() => {
                // `ssi_signo` is the first field, a native-endian u32.
                let number: [u8; 4] = info[..4].try_into().ok()?;
                return i32::try_from(u32::from_ne_bytes(number)).ok();
            }
            Err(rustix::io::Errno::INTR) => {}
            _ => return None,
        }
    }
}
