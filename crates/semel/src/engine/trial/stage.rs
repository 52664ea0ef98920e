//! The stage of a trial: its directory, the tools it was given, and how it runs and ends what it starts.
//!
//! Whatever is started has a closed environment and dies with the trial. It knows no incident and no case.

use super::{Told, hands, reason};
use semel_host::process::{self, Cancel, Command, End, Ended};
use semel_host::sandbox::resolve_program;
use semel_host::scratch::Scratch;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Nothing of a trial takes longer; what does is broken, and is ended.
const MOST: Duration = Duration::from_secs(120);

/// Is the stage.
pub(in crate::engine) struct Stage {
    /// Where everything lies.
    pub(in crate::engine) scratch: Scratch,
    /// Where programs are looked for.
    pub(in crate::engine) path: Vec<PathBuf>,
    /// Ends everything at once, when a person says so.
    pub(in crate::engine) cancel: Cancel,
    /// Numbers names.
    pub(in crate::engine) numbers: AtomicU32,
}

/// Is what a program said before it ended.
#[derive(Debug)]
pub(in crate::engine) struct Said {
    /// How it ended.
    pub(in crate::engine) end: End,
    /// Its standard output.
    pub(in crate::engine) stdout: Vec<u8>,
    /// Its standard error.
    pub(in crate::engine) stderr: Vec<u8>,
    /// How long it ran.
    pub(in crate::engine) took: Duration,
}

impl Said {
    /// Gives the exit status as a shell has it.
    pub(in crate::engine) fn exit(&self) -> i32 {
        match self.end {
            End::Exited(status) => status,
            End::Signalled(signal) => 128 + signal,
            End::TimedOut | End::Cancelled => 143,
            End::Bounded(_) => 137,
        }
    }

    /// Gives the standard output as text, trimmed.
    pub(in crate::engine) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }

    /// Gives the last line of the standard error that says anything.
    pub(in crate::engine) fn last_error(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        text.lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    /// Gives the first line of the standard error that says anything.
    pub(in crate::engine) fn first_error(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        text.lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    /// Gives the JSON object of the standard output, if it is one.
    pub(in crate::engine) fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.stdout).ok()
    }

    /// Gives exit status and name of a command of ours, such as `0 clean` or `5 generation_reused`.
    pub(in crate::engine) fn named(&self) -> String {
        let json = self.json().unwrap_or_default();
        let text = |name: &str| json.get(name).and_then(Value::as_str);
        let name = text("code")
            .or_else(|| text("status"))
            .unwrap_or("no status line");
        format!("{} {name}", self.exit())
    }

    /// Gives what it said if it exited with 0, else a reason.
    pub(in crate::engine) fn ok(self, what: &str) -> Told<Self> {
        if self.end == End::Exited(0) {
            return Ok(self);
        }
        let last = match self.last_error() {
            error if error.is_empty() => self.out(),
            error => error,
        };
        Err(format!("{what}: exit {}: {last}", self.exit()))
    }
}

impl From<Ended> for Said {
    fn from(ended: Ended) -> Self {
        Self {
            end: ended.end,
            stdout: ended.stdout,
            stderr: ended.stderr,
            took: ended.took,
        }
    }
}

impl Stage {
    /// Gives a number that was not given before.
    pub(in crate::engine) fn unique(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Finds a program by its name.
    pub(in crate::engine) fn tool(&self, name: &str) -> Told<PathBuf> {
        let missing = |_| format!("no {name} on PATH");
        resolve_program(OsStr::new(name), &self.path).map_err(missing)
    }

    /// Gives this very program: by the process that runs the trial, so that scripts may name it too.
    pub(in crate::engine) fn semel_path() -> PathBuf {
        PathBuf::from(format!("/proc/{}/exe", std::process::id()))
    }

    /// Makes a command in the closed environment of the trial.
    pub(in crate::engine) fn command(&self, program: impl Into<PathBuf>, cwd: &Path) -> Told<Command> {
        let path = std::env::join_paths(&self.path).map_err(|e| e.to_string())?;
        let mut command = Command::new(program, cwd)
            .var("PATH", path)
            .var("HOME", self.scratch.directory("home").map_err(hands)?)
            .var("TMPDIR", self.scratch.directory("tmp").map_err(hands)?)
            .var("LC_ALL", "C.UTF-8")
            .var("LANGUAGE", "C")
            .var("GIT_CONFIG_GLOBAL", "/dev/null")
            .var("GIT_CONFIG_NOSYSTEM", "1")
            .var("GIT_TERMINAL_PROMPT", "0")
            .var("PYTHONDONTWRITEBYTECODE", "1");
        command.deadline = Some(MOST);
        command.grace = Duration::from_secs(2);
        Ok(command)
    }

    /// Makes a command of this very program, with the trial's own state root and its JSON face.
    pub(in crate::engine) fn semel<S: Into<OsString>>(
        &self,
        cwd: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Told<Command> {
        let state = self.scratch.directory("state").map_err(hands)?;
        let config = self.scratch.write("semel.toml", "").map_err(hands)?;
        let command = self.command("/proc/self/exe", cwd)?;
        let command = command
            .arg("--json")
            .arg("--state")
            .arg(state)
            .arg("--config")
            .arg(config);
        Ok(command.args(args))
    }

    /// Runs a command to its end.
    pub(in crate::engine) fn run(&self, command: &Command) -> Told<Said> {
        let ended = process::run(command, &self.cancel).map_err(hands)?;
        if self.cancel.is_cancelled() {
            return Err("interrupted".to_owned());
        }
        Ok(ended.into())
    }

    /// Starts a command that runs on beside the trial.
    pub(in crate::engine) fn start(&self, command: Command) -> Told<Background> {
        let cancel = Cancel::new().map_err(hands)?;
        let handle = cancel.clone();
        let thread = std::thread::Builder::new()
            .name("trial".to_owned())
            .spawn(move || process::run(&command, &handle))
            .map_err(|e| format!("no thread: {e}"))?;
        Ok(Background {
            cancel,
            thread: Some(thread),
        })
    }

    /// Waits until something is there; says how long it took.
    pub(in crate::engine) fn until<T>(
        &self,
        what: &str,
        mut look: impl FnMut() -> Told<Option<T>>,
    ) -> Told<T> {
        const WITHIN: Duration = Duration::from_secs(30);
        let began = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if self.cancel.is_cancelled() {
                return Err("interrupted".to_owned());
            }
            if began.elapsed() > WITHIN {
                return Err(format!("waited {} s in vain: {what}", WITHIN.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Is a command that runs beside the trial; it is killed with this value.
pub(in crate::engine) struct Background {
    cancel: Cancel,
    thread: Option<JoinHandle<semel_host::Result<Ended>>>,
}

impl Background {
    /// Says whether it has ended.
    pub(in crate::engine) fn ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Kills it at once, as `kill -9` of its process group does; when this returns it is gone.
    pub(in crate::engine) fn kill(mut self) -> Told<Said> {
        self.cancel.kill();
        self.join()
    }

    /// Asks it to end, and waits.
    pub(in crate::engine) fn end(mut self) -> Told<Said> {
        self.cancel.cancel();
        self.join()
    }

    /// Waits for its own end.
    pub(in crate::engine) fn wait(mut self) -> Told<Said> {
        self.join()
    }

    fn join(&mut self) -> Told<Said> {
        let thread = self.thread.take().ok_or("it was waited for before")?;
        let ended = thread.join().map_err(|_| "its thread broke".to_owned())?;
        ended.map(Said::from).map_err(|e| reason(e.into_refusal()))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.cancel.kill();
            // Nobody asks any more what it said.
            drop(self.join());
        }
    }
}
