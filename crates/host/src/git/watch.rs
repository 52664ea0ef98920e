//! Waits until `index.lock` moves, or a moment comes: inotify where it is to be had, else short sleeps.

use super::lock::{is_lock_name, waiter};
use crate::process::Cancel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one sleep lasts at most, so that a cancellation is heard.
const SLICE: Duration = Duration::from_millis(100);

/// Watches the directory of a lock.
pub(super) struct Watch(Option<OwnedFd>);

impl Watch {
    /// Starts to watch; where the system gives no watch, the net of short sleeps remains.
    pub(super) fn new(gitdir: &Path) -> Self {
        let flags = WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let armed = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .and_then(|fd| add_watch(&fd, gitdir, flags).map(|_| fd));
        Self(armed.ok())
    }

    /// Gives the longest sleep that loses nothing: long where the kernel wakes us.
    pub(super) fn net(&self) -> Duration {
        Duration::from_millis(if self.0.is_some() { 250 } else { 50 })
    }

    /// Sleeps until the lock moves, a cancellation comes, or the moment is there.
    pub(super) fn wait(&self, until: Instant, cancel: &Cancel) {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || cancel.is_cancelled() {
                return;
            }
            let slice = left.min(SLICE);
            let Some(fd) = &self.0 else {
                std::thread::sleep(slice.min(Duration::from_millis(50)));
                continue;
            };
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: slice.subsec_nanos().into(),
            };
            let mut fds = [PollFd::new(fd, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => {}
                Ok(_) if !moved(fd) => {}
                Ok(_) => return,
                // A poll that cannot be made is a short sleep: the net still looks in time.
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Closing a watch waits for a grace period of the kernel (milliseconds): not on the way to the answer.
        if let Some(fd) = self.0.take() {
            std::thread::spawn(move || drop(fd));
        }
    }
}

/// Reads all waiting events; says whether one is about the lock, or may be. Who leaves the line without it may have been
/// the one that others leave it to.
fn moved(fd: &OwnedFd) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(fd, &mut buffer);
    let mut seen = false;
    while let Ok(event) = reader.next() {
        let about = event
            .file_name()
            .is_none_or(|name| is_lock_name(name.to_bytes()) || waiter(name.to_bytes()).is_some());
        seen |= about || event.events().contains(ReadFlags::QUEUE_OVERFLOW);
    }
    seen
}
