//! The user of its own, as whom a program runs where Semel runs as root: one who owns nothing outside.
//!
//! What it is to write stays root's on the disk: each such place is mounted with its owners mapped, so that root's files
//! are this user's inside, and what this user makes is root's outside. Nothing changes hands, and whoever looks after
//! the files of a volume afterwards sees no stranger's. Needs Linux 5.12, and a filesystem that can map owners.

use super::sys::{self, Fork};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Pid, Uid, WaitOptions, waitpid};
use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use std::io::{self, stderr, stdin, stdout};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Who a program runs as.
pub(super) struct Own {
    uid: u32,
    /// In which root's number on the disk is this user.
    owners: OwnedFd,
    /// In which this user is, and nobody else.
    home: OwnedFd,
}

impl Own {
    /// Makes what is needed to become a user. The caller is root, with one thread.
    pub(super) fn make(uid: u32) -> io::Result<Self> {
        Ok(Self {
            uid,
            owners: owners(uid)?,
            home: user_namespace(&format!("{uid} {uid} 1"))?,
        })
    }

    /// Gives the number.
    pub(super) const fn uid(&self) -> u32 {
        self.uid
    }

    /// Gives the namespace by which owners are mapped.
    pub(super) fn owners(&self) -> BorrowedFd<'_> {
        self.owners.as_fd()
    }

    /// Becomes the user, with every capability over its own namespace and none over any other.
    ///
    /// What the kernel sends when a parent dies has to be asked for again.
    pub(super) fn become_it(&self) -> io::Result<()> {
        self.own_pipes()?;
        move_into_link_name_space(self.home.as_fd(), Some(LinkNameSpaceType::User))?;
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.uid));
        // Of root's groups nothing is left.
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    }

    /// Gives the user the pipes that are its input and output: many a program opens `/dev/stderr` anew.
    fn own_pipes(&self) -> io::Result<()> {
        for stream in [stdin().as_fd(), stdout().as_fd(), stderr().as_fd()] {
            let facts = rustix::fs::fstat(stream)?;
            if FileType::from_raw_mode(facts.st_mode) == FileType::Fifo {
                rustix::fs::fchown(
                    stream,
                    Some(Uid::from_raw(self.uid)),
                    Some(Gid::from_raw(self.uid)),
                )?;
            }
        }
        Ok(())
    }
}

/// Makes a namespace in which root's number on a disk is a user. What root makes through such a mount is that user's
/// number on the disk: without a number it could make nothing there.
pub(crate) fn owners(uid: u32) -> io::Result<OwnedFd> {
    user_namespace(&format!("0 {uid} 1\n{uid} 0 1"))
}

/// Says whether this process is root of a system, or of a container, that has other users, too.
///
/// Root of a user namespace with one user is whoever made it.
pub(crate) fn is_root() -> bool {
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let counts = users.split_whitespace().skip(2).step_by(3);
    counts.filter_map(|count| count.parse::<u64>().ok()).sum::<u64>() != 1
}

/// Makes a user namespace with this map of users and groups, by a process that enters it and ends.
///
/// This process may have threads: the other one does nothing but system calls.
fn user_namespace(map: &str) -> io::Result<OwnedFd> {
    let (hear, say) = pipe_with(PipeFlags::CLOEXEC)?;
    let (wait, done) = pipe_with(PipeFlags::CLOEXEC)?;
    match sys::fork()? {
        Fork::Child => {
            drop((hear, done));
            if sys::unshare(UnshareFlags::NEWUSER).is_ok() {
                rustix::io::write(&say, b"x").ok();
                // Until the other one has what it needs, or is gone.
                rustix::io::read(&wait, &mut [0_u8; 1]).ok();
            }
            sys::leave()
        }
        Fork::Parent(child) => {
            drop((say, wait));
            let made = match rustix::io::read(&hear, &mut [0_u8; 1]) {
                Ok(1) => mapped(child, map),
                Ok(_) => Err(io::Error::other("no user namespace can be made")),
                Err(error) => Err(error.into()),
            };
            drop(done);
            while matches!(waitpid(Some(child), WaitOptions::empty()), Err(Errno::INTR)) {}
            made
        }
    }
}

fn mapped(child: Pid, map: &str) -> io::Result<OwnedFd> {
    let of = format!("/proc/{}", child.as_raw_nonzero());
    for name in ["uid_map", "gid_map"] {
        std::fs::write(format!("{of}/{name}"), map)
            .map_err(|e| io::Error::new(e.kind(), format!("{name}: {e}")))?;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("{of}/ns/user"), flags, Mode::empty())?)
}
