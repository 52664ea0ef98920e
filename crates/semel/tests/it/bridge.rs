//! `semel mcp`: agents that send no keys, over standard input and output, whoever is killed meanwhile.

mod kills;
mod law;
mod lines;
mod own;
mod strace;

use crate::harness::{Daemon, Home, Volume, signal};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// A bridge with an agent that says what it is told to; killed when dropped.
pub(crate) struct Agent {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// Makes the command of a bridge for a volume, with its spool in the state root.
fn bridge(home: &Home, volume: &Volume, args: &[&str]) -> Command {
    let mut command = home.command(&[]);
    aimed(&mut command, home, volume, args);
    command
}

/// Aims a command at the socket of the gateway, which stays where it is.
fn aimed(command: &mut Command, home: &Home, volume: &Volume, args: &[&str]) {
    command
        .args(["mcp", "--quiet", "--socket"])
        .arg(home.state().join("run/app/app.sock"))
        .args(args)
        .env("SEMEL_TOKEN", &volume.token);
}

impl Agent {
    pub(crate) fn start(home: &Home, volume: &Volume, args: &[&str]) -> Self {
        Self::of(&mut bridge(home, volume, args))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// Writes bytes; nothing where nobody reads them any more.
    fn raw(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        drop(input.write_all(bytes).and_then(|()| input.flush()));
    }

    fn say(&mut self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes());
    }

    /// Hears one message; `None` where no more come.
    fn try_hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            // A bridge that is killed may leave half of one.
            Ok(_) => line.ends_with('\n').then(|| serde_json::from_str(&line).unwrap()),
        }
    }

    pub(crate) fn hear(&mut self) -> Value {
        self.try_hear().expect("a message")
    }

    pub(crate) fn ask(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let answer = self.hear();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    /// Calls a tool without a key.
    pub(crate) fn call(&mut self, id: u64, tool: &str, arguments: &Value) -> Value {
        self.ask(id, "tools/call", &json!({"name": tool, "arguments": arguments}))
    }

    /// Sends a call, and waits for nothing.
    pub(crate) fn send(&mut self, id: u64, tool: &str, arguments: &Value) {
        let params = json!({"name": tool, "arguments": arguments});
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}));
    }

    /// Closes its input, and gives what it says until its end, with that.
    fn ends(mut self) -> (Vec<Value>, ExitStatus) {
        drop(self.input.take());
        let rest = std::iter::from_fn(|| self.try_hear()).collect();
        (rest, self.child.wait().unwrap())
    }

    fn kill(&mut self) {
        signal(self.child.id(), libc::SIGKILL);
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts a daemon with a volume that has something in it.
fn scene() -> (Home, Daemon, Volume) {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    lay(&volume);
    (home, daemon, volume)
}

/// A file of which each effect of one and the same call makes one more line.
fn lay(volume: &Volume) {
    std::fs::write(volume.tree.join("log"), "END\n").unwrap();
}

/// The call that does.
fn mark() -> Value {
    json!({"path": "log", "old_string": "END", "new_string": "x\nEND"})
}

/// Says how often it had its effect.
fn marks(volume: &Volume) -> usize {
    let text = std::fs::read_to_string(volume.tree.join("log")).unwrap();
    text.lines().filter(|line| *line == "x").count()
}

/// Says whether an answer is one that did what it was asked, and comes from the record.
fn replayed(answer: &Value) -> bool {
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    answer["result"]["structuredContent"]["replayed"]
        .as_bool()
        .unwrap()
}

/// Gives the spools that are there.
fn spools(home: &Home) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(home.state().join("bridge")) else {
        return Vec::new();
    };
    let places = entries.map(|entry| entry.unwrap().path());
    places
        .filter(|place| place.extension().is_some_and(|end| end == "spool"))
        .collect()
}

/// A gateway that holds a call at a point while a file is there.
fn held(point: &str) -> (Home, Daemon, Volume, PathBuf) {
    let home = Home::new();
    let file = home.path().join("held");
    let daemon = home.serve(&["--hold-at", &format!("{point}={}", file.display())]);
    let volume = home.open("job", "process");
    lay(&volume);
    (home, daemon, volume, file)
}

fn wait_for(file: &Path) {
    until("a call is held", || file.exists());
}

/// Waits for something that has to come.
fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(
        crate::harness::wait_until(std::time::Duration::from_secs(60), holds),
        "{what}"
    );
}
