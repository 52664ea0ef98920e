//! A program that is spoken to while it runs: lines go to its standard input, lines come from its standard output.
//!
//! It confines nothing, and knows no message. The program is in a process group of its own, which is killed with the
//! handle, and the program itself with this process.

use super::pump::Ends;
use super::{Orphan, direct};
use crate::error::{Error, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io::{PipeReader, PipeWriter, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Is a program that is to be spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Talker {
    /// The program; absolute, never looked up in a path.
    pub program: PathBuf,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
    /// Its whole environment, but for `GIT_OPTIONAL_LOCKS=0`, which it may set otherwise.
    pub env: BTreeMap<OsString, OsString>,
    /// Where it runs; absolute.
    pub cwd: PathBuf,
}

/// How much of what it wrote last to its standard error is kept.
const LAST_WORDS: usize = 4 << 10;

/// Is a program that runs. Dropped, it is killed with its process group.
#[derive(Debug)]
pub struct Talk {
    /// Until it is waited for: so long its number, and that of its group, is nobody else's.
    child: Mutex<Option<Child>>,
    pid: Pid,
    /// Where it is written to.
    pub input: PipeWriter,
    said: Arc<Mutex<VecDeque<u8>>>,
}

/// Starts a program; gives where it is read from beside it.
///
/// # Errors
/// `not_found` where program or working directory are not there, `bad_input`, `io_failed`.
pub fn talk(with: &Talker) -> Result<(Talk, PipeReader)> {
    let command = super::Command {
        args: with.args.clone(),
        env: with.env.clone(),
        ..super::Command::new(&with.program, &with.cwd)
    };
    super::check(&command)?;
    let fail = |e| Error::io("make", "a pipe", e);
    let (stdin, input) = std::io::pipe().map_err(fail)?;
    let (output, stdout) = std::io::pipe().map_err(fail)?;
    let (error, stderr) = std::io::pipe().map_err(fail)?;
    let mut process = std::process::Command::new(&with.program);
    process
        .args(&with.args)
        .env_clear()
        .envs(command.environment())
        .current_dir(&with.cwd)
        .process_group(0);
    let ends = Ends {
        stdin: Stdio::from(stdin),
        stdout: Stdio::from(stdout),
        stderr: Stdio::from(stderr),
    };
    let child = direct::start(process, ends, Vec::new(), &with.program, Orphan::Killed)?;
    let said = Arc::new(Mutex::new(VecDeque::new()));
    let talk = Talk {
        pid: Pid::from_child(&child),
        child: Mutex::new(Some(child)),
        input,
        said: said.clone(),
    };
    let reading = std::thread::Builder::new().name("last words".to_owned());
    reading
        .spawn(move || hear(error, &said))
        .map_err(|e| Error::io("start", "a thread", e))?;
    Ok((talk, output))
}

/// Reads standard error to its end, so that nobody who writes there waits; its last bytes are kept.
fn hear(mut error: PipeReader, said: &Mutex<VecDeque<u8>>) {
    let mut piece = [0; 4096];
    loop {
        match error.read(&mut piece) {
            Ok(0) => return,
            Ok(read) => {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                said.extend(piece.get(..read).unwrap_or_default());
                let beyond = said.len().saturating_sub(LAST_WORDS);
                said.drain(..beyond);
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

impl Talk {
    /// Stops the process group where it is: it does nothing more before it is killed.
    pub fn freeze(&self) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if child.is_some() {
            kill_process_group(self.pid, Signal::STOP).ok();
        }
    }

    /// Kills the process group, and waits for the program itself.
    pub fn end(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut child) = child.take() {
            // Also where the program itself has ended: what it started may go on.
            kill_process_group(self.pid, Signal::KILL).ok();
            child.wait().ok();
        }
    }

    /// Closes its input, and waits for it to end by itself, so long; then it is killed.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn hang_up(&mut self, patience: Duration) -> Result<()> {
        let nothing = std::fs::OpenOptions::new().write(true).open("/dev/null");
        let nothing = nothing.map_err(|e| Error::io("open", "/dev/null", e))?;
        self.input = PipeWriter::from(OwnedFd::from(nothing));
        let since = Instant::now();
        while since.elapsed() < patience && !self.has_ended() {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.end();
        Ok(())
    }

    /// Says whether the program has ended; it stays unreaped, so that nobody else gets its number.
    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    /// Gives what it wrote last to its standard error.
    #[must_use]
    pub fn last_words(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = said.iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    /// Gives its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::{Line, Lines, reader_is_gone, unread, write_line};

    fn shell(script: &str) -> Talker {
        Talker {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: BTreeMap::from([("SAID".into(), "there".into())]),
            cwd: "/".into(),
        }
    }

    #[test]
    fn what_is_said_is_answered_and_the_environment_is_what_was_given() {
        let (talk, output) = talk(&shell(
            "read a; echo $a $SAID $HOME $GIT_OPTIONAL_LOCKS; echo last >&2; read b",
        ))
        .unwrap();
        write_line(&talk.input, b"hello").unwrap();
        let mut lines = Lines::new(output, 100);
        assert_eq!(
            lines.take().unwrap(),
            Some(Line::Whole(b"hello there 0".to_vec()))
        );
        write_line(&talk.input, b"bye").unwrap();
        assert_eq!(lines.take().unwrap(), None);
        talk.end();
        while talk.last_words() != "last" {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_a_dead_one_never_read_is_known() {
        let (talk, output) = talk(&shell("read a; kill -9 $$")).unwrap();
        write_line(&talk.input, b"first").unwrap();
        let mut lines = Lines::new(output, 100);
        // The shell reads byte by byte: what follows its line stays in the pipe.
        let second = write_line(&talk.input, b"second");
        assert_eq!(lines.take().unwrap(), None);
        talk.end();
        assert!(reader_is_gone(&talk.input));
        if second.is_ok() {
            assert_eq!(unread(&talk.input), Some(7));
        }
    }

    #[test]
    fn one_that_is_hung_up_ends_by_itself() {
        let (mut talk, output) = talk(&shell("while read a; do :; done; echo over")).unwrap();
        talk.hang_up(Duration::from_secs(60)).unwrap();
        let mut lines = Lines::new(output, 100);
        assert_eq!(lines.take().unwrap(), Some(Line::Whole(b"over".to_vec())));
        assert_eq!(lines.take().unwrap(), None);
    }

    #[test]
    fn its_group_goes_with_it() {
        let (talk, output) = talk(&shell("sleep 1000 & echo $!; wait")).unwrap();
        let mut lines = Lines::new(output, 100);
        let Some(Line::Whole(pid)) = lines.take().unwrap() else {
            panic!("it said no pid")
        };
        let pid: i32 = String::from_utf8(pid).unwrap().parse().unwrap();
        drop(talk);
        // The pipe closes once the last of the group is gone.
        assert_eq!(lines.take().unwrap(), None);
        let pid = Pid::from_raw(pid).unwrap();
        let gone = || {
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
                .map_or(true, |stat| stat.contains(") Z "))
        };
        while !gone() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let wrong = Talker {
            program: "/nowhere/at/all".into(),
            ..shell("true")
        };
        assert_eq!(
            talk(&wrong).map(drop).unwrap_err().code(),
            semel_core::Code::NotFound
        );
    }
}
