//! The owner record in a lock of ours: who made it, and whether that owner is gone.
//!
//! The proof of life is the flock on the lock's inode: the owner and its git child hold it as long as either
//! lives, whatever PID namespace they are in. Pid, start time and boot id are the second, independent witness.

use super::lock::Shape;
use crate::clock;
use crate::error::Result;
use rustix::fs::FlockOperation;
use semel_core::restore::{Provenance, Ticket};
use semel_core::{Code, Refusal};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

/// The longest record that is read.
pub(super) const LONGEST: usize = 4096;

/// Says since when one of ours waits.
///
/// Two that came one after the other have different times, by a clock that nobody sets and that runs through sleep; it
/// counts from the boot in `boot_id`, and where a time namespace shifts it, for that namespace alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arrival {
    pub(super) boot_ns: u64,
    pub(super) time_ns: String,
}

impl Arrival {
    pub(super) fn now() -> Self {
        Self {
            boot_ns: clock::since_boot_ns(),
            time_ns: time_namespace(),
        }
    }
}

/// Says who made a lock.
///
/// # Shape
/// One line of JSON: `{"semel_lock":1,"nonce":"…","pid":71,"started":5120,"pid_ns":"pid:[…]","boot_id":"…","at_ms":…,
/// "arrived":{"boot_ns":…,"time_ns":"time:[…]"}}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnerRecord {
    /// The version of this shape.
    pub(super) semel_lock: u32,
    /// Names the private files that belong to this lock.
    pub(super) nonce: String,
    /// The process that made it.
    pub(super) pid: u32,
    /// When that process started, in clock ticks since boot.
    pub(super) started: u64,
    /// The PID namespace in which `pid` means something.
    pub(super) pid_ns: String,
    /// The boot of the machine.
    pub(super) boot_id: String,
    /// When it was made.
    pub(super) at_ms: u64,
    /// Its place in the line, while it waits; a record without one stands in no line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) arrived: Option<Arrival>,
    /// The stranger's lock that was adopted; the record then lies beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) adopted: Option<Shape>,
}

/// What stays the same as long as this process lives.
#[derive(Clone)]
struct Us {
    pid: u32,
    started: u64,
    pid_ns: String,
    boot_id: String,
}

static US: OnceLock<Us> = OnceLock::new();

impl Us {
    fn get() -> Result<Self> {
        // A fork is another process with the same memory.
        if let Some(us) = US.get().filter(|us| us.pid == std::process::id()) {
            return Ok(us.clone());
        }
        let pid = std::process::id();
        let us = Self {
            pid,
            started: started(pid).unwrap_or_default(),
            pid_ns: pid_namespace(),
            boot_id: clock::boot_id()?,
        };
        US.set(us.clone()).ok();
        Ok(us)
    }
}

impl OwnerRecord {
    /// Describes this very process.
    pub(super) fn ours(nonce: &str) -> Result<Self> {
        let us = Us::get()?;
        Ok(Self {
            semel_lock: 1,
            nonce: nonce.to_owned(),
            pid: us.pid,
            started: us.started,
            pid_ns: us.pid_ns,
            boot_id: us.boot_id,
            at_ms: clock::now().0,
            arrived: None,
            adopted: None,
        })
    }

    /// Parses the content of a lock; `None` for anything that is not a record of ours.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(bytes).ok()?;
        let plain = record.nonce.len() == 20 && record.nonce.bytes().all(|b| b.is_ascii_hexdigit());
        (record.semel_lock == 1 && plain).then_some(record)
    }

    /// Gives the bytes of the record.
    pub(super) fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)
            .map_err(|e| Refusal::new(Code::Internal, format!("an owner record cannot be written: {e}")))?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Gives its place in the line that this process stands in; `None` where it stands in none, or in one whose times are
    /// not ours.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        let arrived = self.arrived.as_ref().filter(|_| self.adopted.is_none())?;
        let ours =
            Us::get().is_ok_and(|us| us.boot_id == self.boot_id) && arrived.time_ns == time_namespace();
        ours.then(|| Ticket {
            arrived_ns: arrived.boot_ns,
            nonce: self.nonce.clone(),
        })
    }

    /// Says whether the owner lives, and is known here by its number.
    pub(super) fn lives_here(&self) -> bool {
        clock::boot_id().is_ok_and(|id| id == self.boot_id)
            && self.pid_ns == pid_namespace()
            && started(self.pid) == Some(self.started)
    }

    /// Judges whether the owner is gone, from an open handle on the lock that holds no flock yet.
    ///
    /// Where the flock is free, this handle holds it afterwards.
    pub(super) fn judge(&self, lock: &OwnedFd) -> Provenance {
        let busy = rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_err();
        let known = clock::boot_id().is_ok_and(|id| id == self.boot_id) && self.pid_ns == pid_namespace();
        let lives = started(self.pid) == Some(self.started);
        match (busy, known) {
            (true, true) if !lives => return Provenance::Ending,
            (true, _) => return Provenance::Alive,
            (false, true) if lives => return Provenance::Alive,
            (false, true) => return Provenance::Dead,
            (false, false) => {}
        }
        // From another namespace or boot only the flock speaks, and only where it is kept by this very kernel.
        if local(lock) {
            Provenance::Dead
        } else {
            Provenance::Unknown
        }
    }
}

/// Reads when a process started; `None` where it is gone, or a zombie that waits to be reaped.
fn started(pid: u32) -> Option<u64> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, a parenthesis included.
    let behind = text.iter().rposition(|b| *b == b')')?;
    let rest = core::str::from_utf8(text.get(behind + 2..)?).ok()?;
    let mut fields = rest.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Names the time namespace; nothing where the kernel has none.
fn time_namespace() -> String {
    static OURS: OnceLock<String> = OnceLock::new();
    // A process cannot change its own: only its children begin in another.
    let ours = OURS.get_or_init(|| {
        let link = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        link.into_os_string().into_string().unwrap_or_default()
    });
    ours.clone()
}

fn pid_namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.into_os_string().into_string().unwrap_or_default()
}

/// Says whether locks of this file are kept by this kernel alone.
pub(super) fn local(file: impl AsFd) -> bool {
    const LOCAL: &[u32] = &[
        0xef53,      // ext2, ext3, ext4
        0x0102_1994, // tmpfs
        0x5846_5342, // xfs
        0x9123_683e, // btrfs
        0x794c_7630, // overlayfs
        0xf2f5_2010, // f2fs
        0x2fc1_2fc1, // zfs
        0xca45_1a4e, // bcachefs
    ];
    rustix::fs::fstatfs(file).is_ok_and(|fs| u32::try_from(fs.f_type).is_ok_and(|t| LOCAL.contains(&t)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_and_nothing_else_passes_for_one() {
        let record = OwnerRecord::ours(&"ab".repeat(10)).unwrap();
        let bytes = serde_json::to_vec(&record).unwrap();
        assert_eq!(OwnerRecord::parse(&bytes), Some(record.clone()));
        assert_eq!(started(record.pid), Some(record.started));
        for other in [&b""[..], b"DIRC\0\0\0\x02", b"{}", b"pid 12\n", b"null"] {
            assert_eq!(OwnerRecord::parse(other), None);
        }
        let escaping = OwnerRecord {
            nonce: "../../../../../../x".to_owned(),
            ..record
        };
        assert_eq!(OwnerRecord::parse(&serde_json::to_vec(&escaping).unwrap()), None);
    }
}
