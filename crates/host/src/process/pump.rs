//! Moves bytes between a command and us: input in, output out, up to a cap. It never blocks, and never fails:
//! what a sink cannot take is counted as not kept.

use super::through::Through;
use super::{Cancel, Command, Output, Stdin, Truncated};
use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

/// How much is moved at once.
const PIECE: usize = 64 * 1024;

/// The most that a pipe holds, unless the machine's administrator raised it.
const FULL_PIPE: usize = 1 << 20;

/// The child's ends of the streams.
pub(super) struct Ends {
    pub(super) stdin: Stdio,
    pub(super) stdout: Stdio,
    pub(super) stderr: Stdio,
}

/// Our ends of the streams.
#[derive(Default)]
pub(super) struct Pump {
    input: Option<(OwnedFd, Vec<u8>, usize)>,
    output: Option<Stream>,
    error: Option<Stream>,
}

struct Stream {
    source: Option<OwnedFd>,
    sink: Sink,
    room: u64,
    taken: u64,
    dropped: u64,
}

enum Sink {
    Memory(Vec<u8>),
    File(File),
    Through(Through),
}

impl Pump {
    /// Opens what the command's streams need.
    pub(super) fn open(command: &Command) -> Result<(Self, Ends)> {
        let mut pump = Self::default();
        let stdin = match (&command.stdin, &command.output) {
            (Stdin::Null, output) if output.shares_terminal() => Stdio::inherit(),
            (Stdin::Null, _) => Stdio::null(),
            (Stdin::Bytes(bytes), _) => {
                let (read, write) = pipe()?;
                nonblocking(&write)?;
                pump.input = Some((write, bytes.clone(), 0));
                Stdio::from(read)
            }
        };
        let (stdout, stderr) = match &command.output {
            Output::Inherit => (Stdio::inherit(), Stdio::inherit()),
            Output::Through { keep_bytes } => {
                let (err, stderr) = Stream::open(Sink::Through(Through::new()), *keep_bytes)?;
                pump.error = Some(err);
                (Stdio::inherit(), stderr)
            }
            Output::Capture { cap_bytes } => {
                let (out, stdout) = Stream::open(Sink::Memory(Vec::new()), *cap_bytes)?;
                let (err, stderr) = Stream::open(Sink::Memory(Vec::new()), *cap_bytes)?;
                (pump.output, pump.error) = (Some(out), Some(err));
                (stdout, stderr)
            }
            Output::Files {
                stdout,
                stderr,
                cap_bytes,
            } => {
                let (out, stdout) = Stream::open(Sink::File(file(stdout)?), *cap_bytes)?;
                let (err, stderr) = Stream::open(Sink::File(file(stderr)?), *cap_bytes)?;
                (pump.output, pump.error) = (Some(out), Some(err));
                (stdout, stderr)
            }
        };
        Ok((
            pump,
            Ends {
                stdin,
                stdout,
                stderr,
            },
        ))
    }

    /// Lists what is worth waiting for.
    pub(super) fn wanted(&self) -> Vec<PollFd<'_>> {
        let mut wanted = Vec::new();
        if let Some((fd, ..)) = &self.input {
            wanted.push(PollFd::new(fd, PollFlags::OUT));
        }
        for stream in [&self.output, &self.error].into_iter().flatten() {
            wanted.extend(stream.wanted());
        }
        wanted
    }

    /// Moves what can be moved now, at most one piece a stream, so that a chatty child cannot hold up its deadline.
    pub(super) fn step(&mut self) {
        if let Some((fd, bytes, done)) = &mut self.input {
            let rest = bytes.get(*done..).unwrap_or_default();
            match rustix::io::write(&*fd, rest.get(..PIECE.min(rest.len())).unwrap_or_default()) {
                Ok(n) => *done += n,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                // The child closed its input: what is left is nobody's.
                Err(_) => *done = bytes.len(),
            }
            if *done >= bytes.len() {
                self.input = None;
            }
        }
        for stream in [&mut self.output, &mut self.error].into_iter().flatten() {
            stream.step();
        }
    }

    /// Reads what is left in the pipes, without waiting for descendants that may still hold them. What goes through is
    /// waited for until its reader took it, or a cancellation comes.
    pub(super) fn drain(&mut self, cancel: &Cancel) {
        self.input = None;
        for stream in [&mut self.output, &mut self.error].into_iter().flatten() {
            // As much as a pipe can hold: a descendant that lives on may write for ever.
            for _ in 0..FULL_PIPE.div_ceil(PIECE) {
                stream.deliver(cancel);
                if !stream.step() {
                    break;
                }
            }
            stream.deliver(cancel);
            stream.source = None;
        }
    }

    /// Gives what was kept of both streams.
    pub(super) fn finish(self) -> (Vec<u8>, Vec<u8>, Truncated) {
        let (stdout, stdout_bytes) = self.output.map(Stream::finish).unwrap_or_default();
        let (stderr, stderr_bytes) = self.error.map(Stream::finish).unwrap_or_default();
        let truncated = Truncated {
            stdout_bytes,
            stderr_bytes,
        };
        (stdout, stderr, truncated)
    }
}

impl Stream {
    fn open(sink: Sink, cap_bytes: u64) -> Result<(Self, Stdio)> {
        let (read, write) = pipe()?;
        nonblocking(&read)?;
        let stream = Self {
            source: Some(read),
            sink,
            room: cap_bytes,
            taken: 0,
            dropped: 0,
        };
        Ok((stream, Stdio::from(write)))
    }

    /// Gives what is worth waiting for: what was read goes on before more is read.
    fn wanted(&self) -> Option<PollFd<'_>> {
        if let (Sink::Through(through), Some(_)) = (&self.sink, &self.source)
            && through.waiting()
        {
            return Some(through.wanted());
        }
        self.source.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN))
    }

    /// Passes on what was read, however long its reader takes.
    fn deliver(&mut self, cancel: &Cancel) {
        if let Sink::Through(through) = &mut self.sink {
            self.dropped += through.deliver(cancel);
        }
    }

    /// Moves one piece; says whether there may be more at once.
    fn step(&mut self) -> bool {
        if let Sink::Through(through) = &mut self.sink {
            match through.pass_on() {
                Ok(()) if through.waiting() => return false,
                Ok(()) => {}
                Err(lost) => {
                    // Nobody reads it any more; without its pipe, the command hears that.
                    self.dropped += lost;
                    self.source = None;
                }
            }
        }
        let Some(fd) = &self.source else { return false };
        let mut piece = vec![0_u8; PIECE];
        match rustix::io::read(fd, &mut piece) {
            Ok(0) => self.source = None,
            Ok(n) => {
                self.keep(piece.get(..n).unwrap_or_default());
                return true;
            }
            Err(rustix::io::Errno::AGAIN) => {}
            Err(rustix::io::Errno::INTR) => return true,
            Err(_) => self.source = None,
        }
        false
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = usize::try_from(self.room).unwrap_or(usize::MAX);
        let kept = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        let taken = match &mut self.sink {
            Sink::Memory(all) => {
                all.extend_from_slice(kept);
                true
            }
            Sink::File(file) => file.write_all(kept).is_ok(),
            Sink::Through(through) => {
                through.take(kept, bytes);
                true
            }
        };
        let taken = if taken {
            kept.len() as u64
        } else {
            // After a failed write the file may hold a part of the piece: nothing more is added to it.
            self.room = 0;
            if let Sink::File(file) = &self.sink {
                // A device has no length; then there is nothing to be cut.
                file.set_len(self.taken).ok();
            }
            0
        };
        self.taken += taken;
        self.room = self.room.saturating_sub(taken);
        self.dropped += bytes.len() as u64 - taken;
    }

    fn finish(self) -> (Vec<u8>, u64) {
        match self.sink {
            Sink::Memory(bytes) => (bytes, self.dropped),
            Sink::File(_) => (Vec::new(), self.dropped),
            Sink::Through(through) => (through.kept(), self.dropped),
        }
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| Error::io("make", "a pipe", e))
}

fn nonblocking(fd: impl AsFd) -> Result<()> {
    rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK).map_err(|e| Error::io("set up", "a pipe", e))
}

fn file(path: &Path) -> Result<File> {
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(|e| Error::io("create", path, e))
}
