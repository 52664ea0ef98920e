//! The shim: one process for one command, which outlives whoever started it.
//!
//! It is the parent of the process that enters the sandbox, whose keeper is the first of the command's process
//! namespace. It dies with nobody, and whatever it started dies with it.

use super::place::{Claim, Place};
use super::spec::Order;
use super::status::{Asker, Kept, Status};
#[cfg(test)]
use super::tests::at;
use super::{SHIM, Stream, Urgency};
use crate::error::{Error, Result};
use crate::files::digest_of;
use crate::process::{self, Cancel, Command, Confinement, Ended, Output};
use crate::sandbox::{run_as, sys};
use crate::signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendFlags, send};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use semel_core::{Refusal, Sha256};
use serde::{Deserialize, Serialize};
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

/// What the shim tells whoever started it, once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// The command begins, and this is on the disk.
    Begun,
    /// Nothing begins.
    Failed(Refusal),
}

/// Names a moment in the life of a shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// It has read its order.
    Ordered,
    /// It has its locks.
    Locked,
    /// It has claimed the execution.
    Claimed,
    /// Its claim is on the disk.
    Synced,
    /// The command and all its descendants have ended.
    Ended,
    /// The status is in its place.
    Concluded,
}

/// Is the shim, if this process was started to be one; gives the status with which it must then exit at once.
///
/// It has to stand where [`crate::sandbox::entered`] stands: before there is a second thread.
#[must_use]
pub fn entered() -> Option<i32> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != SHIM {
        return None;
    }
    let mut number = || args.next()?.to_str()?.parse().ok();
    let (Some(order), Some(dir), Some(word)) = (number(), number(), number()) else {
        return Some(127);
    };
    // Whatever else was open where it came from is not for this process.
    sys::close_all_but(&[0, 1, 2, order, dir, word]);
    let (Ok(order), Ok(dir), Ok(word)) = (sys::inherited(order), sys::inherited(dir), sys::inherited(word))
    else {
        return Some(127);
    };
    // Where the command has no process namespace of its own, it has the same owner.
    if set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
        return Some(127);
    }
    let place = Place::of(dir, "of this shim".to_owned());
    if let Err(error) = live(order, &place, &word) {
        tell(&word, &Word::Failed(error.into_refusal()));
        return Some(127);
    }
    Some(0)
}

/// Lives the life of a shim: from its order to the status.
fn live(order: OwnedFd, place: &Place, word: &OwnedFd) -> Result<()> {
    let order = read(order)?;
    // This process read no configuration: whom the command runs as is in its order.
    run_as(order.walls.user);
    at(Moment::Ordered, place);
    let (Some(_own), Some(alive)) = (place.lock_shim()?, place.lock_alive()?) else {
        // Another shim is here: this one begins nothing.
        return Ok(());
    };
    // Held here, too, until the status is in its place: who finds neither takes the execution for lost.
    let alive = Arc::new(alive);
    let draft = place.reserve_status()?;
    let (cancel, bell) = (Cancel::new()?, place.bell()?);
    let signalled = signals::watch(cancel.clone())?;
    at(Moment::Locked, place);
    if place.claim(Claim::Begun)? != Claim::Begun {
        return Ok(());
    }
    at(Moment::Claimed, place);
    let run = place.sync().and_then(|()| {
        at(Moment::Synced, place);
        tell(word, &Word::Begun);
        listen(bell, place, cancel.clone())?;
        process::run(&command(&order, place, Arc::clone(&alive)), &cancel)
    });
    at(Moment::Ended, place);
    let run = match run {
        // Nobody can say whether it began: so nothing is said.
        Err(error @ Error::Unproven { .. }) => return Err(error),
        other => other,
    };
    let asker = match (signalled.received(), place.asked()) {
        (Some(_), None) => Asker::Signal,
        _ => Asker::Request,
    };
    let (stdout, stderr) = (
        kept(place, Stream::Stdout, &run)?,
        kept(place, Stream::Stderr, &run)?,
    );
    place.conclude(draft, &Status::of(run, asker, stdout, stderr))?;
    at(Moment::Concluded, place);
    drop(alive);
    Ok(())
}

/// Reads an order.
pub(super) fn read(order: OwnedFd) -> Result<Order> {
    let failed = |e: std::io::Error| Error::io("read", "an order", e);
    let mut bytes = Vec::new();
    std::fs::File::from(order)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|e| failed(e.into()))
}

fn tell(to: &OwnedFd, word: &Word) {
    if let Ok(bytes) = serde_json::to_vec(word) {
        // Whoever started it may be gone: then nobody needs the word.
        send(to, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).ok();
    }
}

/// Makes the command of an order.
pub(super) fn command(order: &Order, place: &Place, alive: Arc<OwnedFd>) -> Command {
    let mut command =
        Command::new(order.program.path(), order.cwd.path()).args(order.args.iter().map(|arg| arg.os()));
    command.env = order
        .env
        .iter()
        .map(|(name, value)| (name.os(), value.os()))
        .collect();
    command.cwd_is = Some(order.cwd_is);
    command.deadline = Some(order.timeout);
    command.grace = order.grace;
    command.output = Output::Files {
        stdout: place.stream_path(Stream::Stdout),
        stderr: place.stream_path(Stream::Stderr),
        cap_bytes: order.cap_bytes,
    };
    command.confinement = Confinement::Sandbox(order.walls.sandbox());
    command.hold = vec![alive];
    command
}

/// Hears, from now on, that the command is to be ended.
fn listen(bell: OwnedFd, place: &Place, cancel: Cancel) -> Result<()> {
    let dir = place.as_fd().try_clone_to_owned();
    let place = Place::of(dir.map_err(|e| place.io("hold", ".", e))?, String::new());
    let hear = move || {
        let mut asked = None;
        loop {
            // First looked for, then waited for: who asks leaves word before it rings.
            let now = place.asked();
            if now != asked {
                match now {
                    Some(Urgency::Ask) => cancel.cancel(),
                    Some(Urgency::Kill) => cancel.kill(),
                    None => {}
                }
                asked = now;
            }
            if asked == Some(Urgency::Kill) || !rung(&bell) {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("bell".to_owned())
        .spawn(hear)
        .map(drop)
        .map_err(|e| Error::io("start a thread", "bell", e))
}

/// Waits until somebody rings; says whether anybody can.
fn rung(bell: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(bell, PollFlags::IN)];
    match poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(_) => return false,
    }
    let mut rings = [0_u8; 256];
    !matches!(
        rustix::io::read(bell, &mut rings),
        Err(errno) if errno != rustix::io::Errno::AGAIN && errno != rustix::io::Errno::INTR
    )
}

/// Says what is left of a stream, and makes it survive a power cut.
fn kept(place: &Place, stream: Stream, run: &Result<Ended>) -> Result<Kept> {
    let Some(file) = place.readable(stream.name())? else {
        return Ok(Kept {
            total_bytes: 0,
            kept_bytes: 0,
            sha256: Sha256::of(b""),
        });
    };
    let failed = |e: std::io::Error| place.io("keep", stream.name(), e);
    file.sync_all().map_err(failed)?;
    let kept_bytes = file.metadata().map_err(failed)?.len();
    let dropped = run.as_ref().map_or(0, |ended| match stream {
        Stream::Stdout => ended.truncated.stdout_bytes,
        Stream::Stderr => ended.truncated.stderr_bytes,
    });
    Ok(Kept {
        total_bytes: kept_bytes + dropped,
        kept_bytes,
        sha256: digest_of(&file).map_err(failed)?,
    })
}

/// Is reached at each moment of a shim's life; in the tests another function stands here, which ends it there.
#[cfg(not(test))]
const fn at(_: Moment, _: &Place) {}
