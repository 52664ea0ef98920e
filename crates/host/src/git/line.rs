//! The line of those of ours that wait for one lock: their private files beside it, each with its owner record under the
//! flock of a process that lives. Whose turn it is is decided elsewhere ([`semel_core::restore::Line`]). It writes nothing.
//!
//! A file without a flock is of a process that is gone: it stands in no line, and the next owner of the lock sweeps it.
//! What is no record, or one from before there was a line, is nobody. Whoever can write in the git directory can pretend to
//! wait; it could as well hold the lock.

use super::lock::{open_entry, read_record, waiter};
use super::worktree::Checked;
use rustix::fs::{Dir, FlockOperation, flock};
use semel_core::restore::Ticket;
use std::ffi::CStr;

/// Lists those that wait and live, but for one.
pub(super) fn others(at: &Checked, own: &str) -> Vec<Ticket> {
    let Ok(dir) = Dir::read_from(&at.dir) else {
        return Vec::new();
    };
    dir.filter_map(rustix::io::Result::ok)
        .filter_map(|entry| waiting(at, entry.file_name(), own))
        .collect()
}

fn waiting(at: &Checked, name: &CStr, own: &str) -> Option<Ticket> {
    let nonce = waiter(name.to_bytes()).filter(|nonce| *nonce != own.as_bytes())?;
    let file = open_entry(at, name)?;
    let record = read_record(&file).filter(|record| record.nonce.as_bytes() == nonce)?;
    let ticket = record.ticket()?;
    // Its owner took the flock before it wrote the record. Shared: two that look at once do not see each other.
    flock(&file, FlockOperation::NonBlockingLockShared)
        .is_err()
        .then_some(ticket)
}
