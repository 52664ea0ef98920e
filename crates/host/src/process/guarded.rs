//! Starts a command by way of the process that enters the sandbox, or that only supervises; hears its reports.
//!
//! The tree counts as ended only where that process says so: every descendant was reaped before its last word.

use super::direct::start;
use super::pump::Pump;
use super::watch::{Tree, watch};
use super::{Cancel, Command, Confinement, End, Ended, Level, Orphan, TreeEnded};
use crate::clock;
use crate::error::{Error, Result};
use crate::sandbox::spec::{Act, Order, Report, Session, Text, Walls, ask};
use crate::sandbox::{
    ENTER, Network, REPORT, Require, Sandbox, TreeAccess, default_bounds, launcher, outgrown,
};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use semel_core::bounds::Met;
use semel_core::{Code, Refusal};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs the command behind its walls.
pub(super) fn run(command: &Command, cancel: &Cancel) -> Result<Ended> {
    let facts = command
        .program
        .metadata()
        .map_err(|e| Error::io("look at", &command.program, e))?;
    let act = Act::Exec {
        program: Text::of(&command.program),
        dev: facts.dev(),
        ino: facts.ino(),
        args: command.args.iter().map(Text::of).collect(),
        env: command
            .environment()
            .iter()
            .map(|(name, value)| (Text::of(name), Text::of(value)))
            .collect(),
        cwd: Text::of(&command.cwd),
        cwd_is: command.cwd_is,
    };
    carry_out(command, act, cancel)
}

/// Says how well the sandbox stands, with a place for its trial.
pub(super) fn probe(place: &Path) -> Result<Level> {
    let sandbox = Sandbox {
        tree: place.to_owned(),
        tree_access: TreeAccess::Writable,
        home: place.to_owned(),
        tmp: place.to_owned(),
        hide: Vec::new(),
        read_only: Vec::new(),
        writable: Vec::new(),
        network: Network::Loopback,
        require: Require::BestEffort,
        bounds: default_bounds(),
    };
    let mut level = None;
    for network in [Network::Loopback, Network::Host] {
        let sandbox = Sandbox {
            network,
            ..sandbox.clone()
        };
        let mut command = Command::new(launcher(), place);
        command.deadline = Some(Duration::from_secs(30));
        command.grace = Duration::ZERO;
        command.confinement = Confinement::Sandbox(sandbox);
        let found = carry_out(&command, Act::Probe, &Cancel::new()?)?.level;
        level = Some(level.map_or(found.clone(), |level: Level| level.and(found)));
    }
    Ok(level.unwrap_or_else(|| Level::none("nothing was tried")))
}

fn carry_out(command: &Command, act: Act, cancel: &Cancel) -> Result<Ended> {
    let (began, since) = (Instant::now(), clock::wall_ns());
    let (mut pump, ends) = Pump::open(command)?;
    let walls = match &command.confinement {
        Confinement::Sandbox(sandbox) => Some(Walls::of(sandbox)),
        Confinement::None | Confinement::Supervised => None,
    };
    let session = match (&walls, command.output.shares_terminal()) {
        (None, true) => Session::Caller,
        (None, false) | (Some(_), _) => Session::Own,
    };
    let order = Order {
        act,
        session,
        walls,
        since,
        keep: command.keep.iter().map(|fd| fd.as_raw_fd()).collect(),
        hold: command.hold.iter().map(|fd| fd.as_raw_fd()).collect(),
    };
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| Error::io("make", "a socket pair", e))?;
    let (letter, theirs) = (Arc::new(letter(&order)?), Arc::new(theirs));
    let mut process = std::process::Command::new(launcher());
    process.arg0("semel").arg(ENTER).env_clear().current_dir("/");
    process.args([letter.as_raw_fd().to_string(), theirs.as_raw_fd().to_string()]);
    if session == Session::Own {
        // Signals of a terminal are for this process, which then asks.
        process.process_group(0);
    }
    let mut kept = command.keep.clone();
    kept.extend(command.hold.iter().cloned());
    kept.extend([letter, theirs]);
    let child = start(process, ends, kept, launcher(), Orphan::Killed)?;
    let mut guard = Guard::of(child, ours)?;
    let why = watch(&mut guard, &mut pump, command, cancel);
    let orderly = guard.child.wait().is_ok_and(|status| status.success());
    guard.report();
    pump.drain(cancel);
    let mut ended = guard.answer(pump, why, orderly, began.elapsed())?;
    // Many a program hides how it was denied more.
    if let (Confinement::Sandbox(sandbox), End::Exited(1..) | End::Signalled(_)) =
        (&command.confinement, ended.end)
        && outgrown(sandbox, since, ended.took)
    {
        ended.end = End::Bounded(Met::FileSize);
    }
    Ok(ended)
}

/// Writes an order where the process that it is for can read it by its descriptor.
pub(crate) fn letter(order: &impl serde::Serialize) -> Result<OwnedFd> {
    let failed = |e: std::io::Error| Error::io("write", "an order", e);
    let fd = rustix::fs::memfd_create("order", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let mut file = File::from(fd);
    let bytes = serde_json::to_vec(order).map_err(|e| failed(e.into()))?;
    file.write_all(&bytes).map_err(failed)?;
    file.rewind().map_err(failed)?;
    Ok(file.into())
}

struct Guard {
    child: Child,
    pidfd: OwnedFd,
    control: OwnedFd,
    closed: bool,
    level: Option<Level>,
    main: Option<End>,
    gone: bool,
    refused: Option<Error>,
}

impl Guard {
    fn of(mut child: Child, control: OwnedFd) -> Result<Self> {
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self {
                child,
                pidfd,
                control,
                closed: false,
                level: None,
                main: None,
                gone: false,
                refused: None,
            }),
            Err(e) => {
                // It may have come as far as the program.
                child.kill().ok();
                child.wait().ok();
                Err(Error::unproven("watch", "the sandbox", e))
            }
        }
    }

    fn take(&mut self, report: Report) {
        match report {
            Report::Level { level } => self.level = Some(level),
            Report::Main { exited, signal } => {
                let end = match (exited, signal) {
                    (Some(status), _) => End::Exited(status),
                    // What the kernel sends for a file that became too large.
                    (None, libc::SIGXFSZ) => End::Bounded(Met::FileSize),
                    (None, signal) => End::Signalled(signal),
                };
                self.main.get_or_insert(end);
            }
            Report::Met { met } => {
                self.main.get_or_insert(End::Bounded(met));
            }
            Report::Gone => self.gone = true,
            Report::Unavailable { missing } => {
                let why = "the sandbox cannot be had in full";
                self.refused = Some(Refusal::new(Code::SandboxUnavailable, why).names(missing).into());
            }
            Report::NotBegun {
                operation,
                path,
                errno,
            } => {
                let source = std::io::Error::from_raw_os_error(errno);
                let why = format!("{operation}: {source}");
                let shown = semel_core::path::shown(path.os().as_encoded_bytes());
                self.refused = Some(Refusal::new(Code::IoFailed, why).name(shown).into());
            }
        }
    }

    fn answer(self, pump: Pump, why: Option<End>, orderly: bool, took: Duration) -> Result<Ended> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        let level = match (self.level, why) {
            (Some(level), _) => level,
            (None, Some(_)) => Level::none("it was ended before it began"),
            (None, None) => {
                let why = "the process that enters the sandbox ended before the program began";
                return Err(Refusal::new(Code::SandboxUnavailable, why).into());
            }
        };
        let (stdout, stderr, truncated) = pump.finish();
        let tree_ended = if orderly && self.gone {
            TreeEnded::Proved
        } else {
            TreeEnded::Unproved
        };
        Ok(Ended {
            // A keeper that was killed could not say how the program ended; it was killed with it.
            end: why.or(self.main).unwrap_or(End::Signalled(libc::SIGKILL)),
            stdout,
            stderr,
            truncated,
            level,
            tree_ended,
            took,
        })
    }

    fn send(&self, what: u8) {
        // Who is gone already needs no word.
        send(&self.control, &[what], SendFlags::NOSIGNAL | SendFlags::DONTWAIT).ok();
    }
}

impl Tree for Guard {
    fn ended(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    fn reports(&self) -> Option<BorrowedFd<'_>> {
        (!self.closed).then(|| self.control.as_fd())
    }

    fn report(&mut self) {
        let mut bytes = vec![0_u8; REPORT];
        loop {
            match recv(&self.control, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.closed = true,
                Ok((n, _)) => {
                    if let Ok(report) = serde_json::from_slice(bytes.get(..n).unwrap_or_default()) {
                        self.take(report);
                    }
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                Err(_) => self.closed = true,
            }
            return;
        }
    }

    fn ask(&mut self) {
        self.send(ask::TERM);
    }

    fn kill(&mut self) {
        self.send(ask::KILL);
    }

    fn kill_hard(&mut self) {
        // What it kept dies with it, but nobody can say so.
        self.child.kill().ok();
    }
}
