//! Starts a command with nothing around it, in a process group of its own. It can end the group, and no more:
//! a descendant that left the group lives on, so it never proves that the tree ended.

use super::pump::{Ends, Pump};
use super::spawner;
use super::watch::{Tree, watch};
use super::{Cancel, Command, End, Ended, Level, Orphan, TreeEnded};
use crate::error::{Error, Result};
use rustix::io::FdFlags;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, kill_process, kill_process_group, pidfd_open,
    set_parent_process_death_signal,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Instant;

/// Runs the command as a direct child.
pub(super) fn run(command: &Command, cancel: &Cancel) -> Result<Ended> {
    let began = Instant::now();
    let (mut pump, ends) = Pump::open(command)?;
    let mut process = std::process::Command::new(&command.program);
    process
        .args(&command.args)
        .env_clear()
        .envs(command.environment());
    process.current_dir(&command.cwd);
    let grouped = !command.output.shares_terminal();
    if grouped {
        process.process_group(0);
    }
    let mut child = start(
        process,
        ends,
        command.keep.clone(),
        &command.program,
        command.orphan,
    )?;
    let mut group = match Group::of(&child, grouped) {
        Ok(group) => group,
        Err(error) => {
            child.kill().ok();
            child.wait().ok();
            return Err(error);
        }
    };
    let why = watch(&mut group, &mut pump, command, cancel);
    // The child is not reaped yet, so its pid, and with it the group's number, cannot be anyone else's.
    group.kill();
    let status = child.wait();
    pump.drain(cancel);
    let (stdout, stderr, truncated) = pump.finish();
    let own = status.map_or(End::Signalled(libc::SIGKILL), |s| match (s.code(), s.signal()) {
        (Some(code), _) => End::Exited(code),
        (None, signal) => End::Signalled(signal.unwrap_or(libc::SIGKILL)),
    });
    Ok(Ended {
        end: why.unwrap_or(own),
        stdout,
        stderr,
        truncated,
        level: Level::none("no sandbox was asked for"),
        tree_ended: TreeEnded::Unproved,
        took: began.elapsed(),
    })
}

/// Spawns a process with the given streams and kept descriptors, which ends with this process.
pub(super) fn start(
    mut process: std::process::Command,
    ends: Ends,
    kept: Vec<Arc<OwnedFd>>,
    program: &Path,
    orphan: Orphan,
) -> Result<Child> {
    process.stdin(ends.stdin).stdout(ends.stdout).stderr(ends.stderr);
    inherit(&mut process, kept, orphan);
    spawner::spawn(process).map_err(|e| Error::io("start", program, e))
}

/// Lets a process inherit descriptors, and end with the thread that spawns it, which is the spawner's.
#[expect(
    unsafe_code,
    reason = "std asks for it wherever code runs between fork and exec"
)]
fn inherit(process: &mut std::process::Command, kept: Vec<Arc<OwnedFd>>, orphan: Orphan) {
    let parent = getpid();
    let signal = match orphan {
        Orphan::Killed => Signal::KILL,
        Orphan::Asked => Signal::TERM,
    };
    let before = move || {
        for fd in &kept {
            rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
        }
        set_parent_process_death_signal(Some(signal))?;
        if getppid() != Some(parent) {
            // It died before it could be followed.
            return Err(rustix::io::Errno::SRCH.into());
        }
        crate::sandbox::sys::hear_all_signals()
    };
    // SAFETY: the closure makes system calls alone; it neither allocates nor locks, so it may run after fork.
    unsafe { process.pre_exec(before) };
}

struct Group {
    pid: Pid,
    pidfd: OwnedFd,
    grouped: bool,
}

impl Group {
    fn of(child: &Child, grouped: bool) -> Result<Self> {
        let pid = Pid::from_child(child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| Error::io("watch", "the child", e))?;
        Ok(Self { pid, pidfd, grouped })
    }

    fn send(&self, signal: Signal) {
        // Who is gone already needs no signal.
        if self.grouped {
            kill_process_group(self.pid, signal).ok();
        } else {
            kill_process(self.pid, signal).ok();
        }
    }
}

impl Tree for Group {
    fn ended(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    fn ask(&mut self) {
        self.send(Signal::TERM);
    }

    fn kill(&mut self) {
        self.send(Signal::KILL);
    }
}
