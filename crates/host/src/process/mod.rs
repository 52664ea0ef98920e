//! The one place that spawns: a program, its exact environment, its deadline, and the end of its whole tree.
//!
//! It does not decide what may run, and keeps no record. A program that is to be confined is handed to
//! [`crate::sandbox`]. Nothing is ever looked up: the program is absolute, the environment is what was given, and
//! [`QUIET_GIT`].

mod cancel;
mod direct;
mod guarded;
mod pump;
mod spawner;
pub mod talk;
#[cfg(test)]
mod tests;
mod through;
mod watch;

pub use cancel::Cancel;
pub(crate) use guarded::letter;
pub use semel_core::command::TreeEnded;
pub use semel_core::confinement::Level;

use crate::error::{Error, Result};
use crate::sandbox::Sandbox;
use semel_core::bounds::Met;
use semel_core::{Code, Refusal};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The one variable that everything launched here is given: a git that only looks takes no lock, so that no status of
/// an agent or tool stands in the way of a restoration.
pub const QUIET_GIT: (&str, &str) = ("GIT_OPTIONAL_LOCKS", "0");

/// Where the standard input of a command comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stdin {
    /// `/dev/null`.
    Null,
    /// These bytes, then the end.
    Bytes(Vec<u8>),
}

/// Where the output of a command goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Into memory, each stream up to the cap; the rest is read and dropped.
    Capture {
        /// The most bytes kept of each stream.
        cap_bytes: u64,
    },
    /// Into two files, each up to the cap; the rest is read and dropped.
    Files {
        /// Where standard output goes; an existing file is emptied, a symlink refused.
        stdout: PathBuf,
        /// Where standard error goes; an existing file is emptied, a symlink refused.
        stderr: PathBuf,
        /// The most bytes kept of each stream.
        cap_bytes: u64,
    },
    /// To the terminal or pipe of this very process; with [`Stdin::Null`] its standard input goes too.
    Inherit,
    /// As [`Output::Inherit`], but standard error comes by way of this process, at once and whole, and its first bytes
    /// are kept. Where nobody reads it any more, the command is told so as it would be without us.
    Through {
        /// The most bytes kept of standard error.
        keep_bytes: u64,
    },
}

impl Output {
    /// Says whether the command shares the terminal, and with it the process group, of this very process.
    pub(crate) fn shares_terminal(&self) -> bool {
        match self {
            Self::Inherit | Self::Through { .. } => true,
            Self::Capture { .. } | Self::Files { .. } => false,
        }
    }
}

/// What stands around a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// Nothing: it runs as this process does, and only its process group is ended.
    None,
    /// Nothing confines it, but a supervisor adopts and ends every descendant.
    Supervised,
    /// The sandbox.
    Sandbox(Sandbox),
}

/// A program to be run once.
#[derive(Clone, Debug)]
pub struct Command {
    /// The program; absolute, never looked up in a path.
    pub program: PathBuf,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
    /// Its environment; nothing is inherited, and nothing is added but [`QUIET_GIT`], where it does not say otherwise.
    pub env: BTreeMap<OsString, OsString>,
    /// Its working directory; absolute.
    pub cwd: PathBuf,
    /// Device and inode that its working directory must have when it begins, where that matters; with nothing
    /// around it, it is not looked at.
    pub cwd_is: Option<(u64, u64)>,
    /// Its standard input.
    pub stdin: Stdin,
    /// After how long it is asked to end (SIGTERM).
    pub deadline: Option<Duration>,
    /// How long after being asked it is killed.
    pub grace: Duration,
    /// Where its output goes.
    pub output: Output,
    /// What happens to it where this process dies and nothing is around it.
    pub orphan: Orphan,
    /// What stands around it.
    pub confinement: Confinement,
    /// Descriptors that it inherits under the same numbers; every other one is closed.
    pub keep: Vec<Arc<OwnedFd>>,
    /// Descriptors that those around the program hold until its whole tree has ended; the program has them not.
    pub hold: Vec<Arc<OwnedFd>>,
}

/// Says what happens to a direct child whose parent dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orphan {
    /// It is killed (SIGKILL).
    Killed,
    /// It is asked to end (SIGTERM): a program that is trusted to, and that would leave something behind otherwise.
    Asked,
}

impl Command {
    /// Makes a command with no arguments, an empty environment, no input, no deadline, ten seconds of grace,
    /// one MiB kept of each stream, and nothing around it.
    pub fn new(program: impl Into<PathBuf>, cwd: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: cwd.into(),
            cwd_is: None,
            stdin: Stdin::Null,
            deadline: None,
            grace: Duration::from_secs(10),
            output: Output::Capture { cap_bytes: 1 << 20 },
            orphan: Orphan::Killed,
            confinement: Confinement::None,
            keep: Vec::new(),
            hold: Vec::new(),
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: Into<OsString>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Gives the environment that the program begins with.
    pub(crate) fn environment(&self) -> BTreeMap<OsString, OsString> {
        let mut env = self.env.clone();
        env.entry(QUIET_GIT.0.into())
            .or_insert_with(|| QUIET_GIT.1.into());
        env
    }

    /// Gives one variable of the environment.
    #[must_use]
    pub fn var(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }
}

/// How the program itself ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this status.
    Exited(i32),
    /// This signal ended it, unasked by us.
    Signalled(i32),
    /// Its deadline passed, and it was ended.
    TimedOut,
    /// It was cancelled, and ended.
    Cancelled,
    /// It met one of its bounds, and was ended for it.
    Bounded(Met),
}

impl End {
    /// Says whether the program exited with status 0.
    #[must_use]
    pub fn success(self) -> bool {
        self == Self::Exited(0)
    }
}

/// How many bytes of each stream were not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Truncated {
    /// Bytes of standard output beyond the cap, or that its file could not take.
    pub stdout_bytes: u64,
    /// Bytes of standard error beyond the cap, or that its file or reader could not take.
    pub stderr_bytes: u64,
}

impl Truncated {
    /// Says whether anything was not kept.
    #[must_use]
    pub fn any(self) -> bool {
        self.stdout_bytes != 0 || self.stderr_bytes != 0
    }
}

/// What came of a command that began.
#[derive(Clone, Debug)]
pub struct Ended {
    /// How the program itself ended.
    pub end: End,
    /// What it wrote to standard output, where captured.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error, where captured.
    pub stderr: Vec<u8>,
    /// What of both was not kept.
    pub truncated: Truncated,
    /// How well it was confined.
    pub level: Level,
    /// Whether every descendant is known to have ended.
    pub tree_ended: TreeEnded,
    /// How long it ran.
    pub took: Duration,
}

/// Runs a command to its end, and ends its process tree.
///
/// # Errors
/// Only where the program did not begin, but for [`Error::Unproven`]. `not_found` where program or working directory
/// are not there, `bad_input` where one is not absolute or an argument holds a NUL, `sandbox_unavailable` where the
/// sandbox is required in full and cannot be had, `io_failed` where the system refuses.
pub fn run(command: &Command, cancel: &Cancel) -> Result<Ended> {
    check(command)?;
    match &command.confinement {
        Confinement::None => direct::run(command, cancel),
        Confinement::Supervised | Confinement::Sandbox(_) => guarded::run(command, cancel),
    }
}

/// Tries the sandbox without a program; `place` is an empty directory for the trial.
pub(crate) fn probe(place: &Path) -> Result<Level> {
    guarded::probe(place)
}

/// Refuses a command that cannot begin, by name.
fn check(command: &Command) -> Result<()> {
    absolute(&command.program, "the program")?;
    absolute(&command.cwd, "the working directory")?;
    if !there(&command.program, "the program")?.is_file() {
        return Err(refusal(
            Code::BadInput,
            "the program is not a file",
            &command.program,
        ));
    }
    if !there(&command.cwd, "the working directory")?.is_dir() {
        let why = "the working directory is not a directory";
        return Err(refusal(Code::BadInput, why, &command.cwd));
    }
    if let Confinement::Sandbox(sandbox) = &command.confinement {
        let fixed = [&sandbox.tree, &sandbox.home, &sandbox.tmp].into_iter();
        for path in fixed.chain(&sandbox.read_only).chain(&sandbox.writable) {
            absolute(path, "a place to be shown in the sandbox")?;
            there(path, "a place to be shown in the sandbox")?;
        }
        for path in &sandbox.hide {
            absolute(path, "a place to be hidden from the sandbox")?;
        }
    }
    let texts = command.env.keys().chain(command.env.values());
    for text in texts.chain(&command.args) {
        if text.as_bytes().contains(&0) {
            return Err(refusal(
                Code::BadInput,
                "an argument or variable holds a NUL",
                text,
            ));
        }
    }
    for name in command.env.keys() {
        if name.is_empty() || name.as_bytes().contains(&b'=') {
            return Err(refusal(
                Code::BadInput,
                "a variable has no name, or one with '='",
                name,
            ));
        }
    }
    Ok(())
}

fn absolute(path: &Path, what: &str) -> Result<()> {
    if path.is_absolute() && !path.as_os_str().as_bytes().contains(&0) {
        return Ok(());
    }
    Err(refusal(
        Code::BadInput,
        format!("{what} is not an absolute path"),
        path,
    ))
}

fn there(path: &Path, what: &str) -> Result<std::fs::Metadata> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    std::fs::metadata(path).map_err(|e| match e.kind() {
        NotFound | NotADirectory => refusal(Code::NotFound, format!("{what} is not there"), path),
        _ => Error::io("look at", path, e),
    })
}

/// Makes a refusal about a path or text.
fn refusal(code: Code, why: impl Into<String>, about: impl AsRef<std::ffi::OsStr>) -> Error {
    let shown = semel_core::path::shown(about.as_ref().as_bytes());
    Refusal::new(code, why).name(shown).into()
}
