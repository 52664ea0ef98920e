//! A tracer that kills a process at its system calls, or makes them fail.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A tracer; taken off when dropped.
pub(crate) struct Tracer(Child);

impl Tracer {
    /// Attaches to a process; `None` where that cannot be done here.
    pub(crate) fn attach(pid: u32, log: &Path, args: &[&str]) -> Option<Self> {
        let mut command = Command::new("strace");
        command.args(["-f", "-o"]).arg(log).args(args);
        let mut child = command
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut said = BufReader::new(child.stderr.take()?);
        let mut line = String::new();
        said.read_line(&mut line).ok()?;
        if !line.contains("attached") {
            drop(child.wait());
            return None;
        }
        // It tells of every new thread; nobody may make it wait.
        std::thread::spawn(move || drop(said.read_to_end(&mut Vec::new())));
        Some(Self(child))
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        super::signal(self.0.id(), libc::SIGTERM);
        drop(self.0.wait());
    }
}
