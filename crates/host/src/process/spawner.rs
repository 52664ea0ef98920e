//! The thread that starts every child. The kernel tells a child that its parent died when the *thread* ends that
//! started it; this one lives as long as the process.

use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{SendError, Sender, SyncSender, channel, sync_channel};

struct Start {
    process: Command,
    reply: SyncSender<io::Result<Child>>,
}

static SPAWNER: OnceLock<Option<Sender<Start>>> = OnceLock::new();

/// Starts a process from the lasting thread; where there can be none, from the caller's.
pub(super) fn spawn(mut process: Command) -> io::Result<Child> {
    let Some(spawner) = SPAWNER.get_or_init(begin) else {
        return process.spawn();
    };
    let (reply, started) = sync_channel(1);
    match spawner.send(Start { process, reply }) {
        Ok(()) => started
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that starts children is gone"))),
        Err(SendError(mut start)) => start.process.spawn(),
    }
}

fn begin() -> Option<Sender<Start>> {
    let (starts, todo) = channel::<Start>();
    let thread = std::thread::Builder::new().name("spawner".to_owned());
    let lasting = move || {
        for mut start in todo {
            start.reply.send(start.process.spawn()).ok();
        }
    };
    thread.spawn(lasting).ok().map(|_| starts)
}

#[cfg(test)]
mod tests {
    use crate::process::{Cancel, Command, End, run};

    /// A child that was started for a thread which ends outlives that thread.
    #[test]
    fn the_end_of_a_callers_thread_is_not_the_end_of_its_child() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("go");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        let place = fifo.clone();
        let mut process = std::process::Command::new("/bin/sh");
        process.arg("-c").arg("read line < \"$1\"").arg("sh").arg(&place);
        let child = std::thread::spawn(move || {
            let ends = super::super::pump::Ends {
                stdin: std::process::Stdio::null(),
                stdout: std::process::Stdio::null(),
                stderr: std::process::Stdio::null(),
            };
            let program = std::path::Path::new("/bin/sh");
            super::super::direct::start(process, ends, Vec::new(), program, crate::process::Orphan::Killed)
        });
        let mut child = child.join().unwrap().unwrap();
        // Its starter's caller is gone; it reads what comes all the same.
        std::fs::write(&fifo, "go\n").unwrap();
        assert!(child.wait().unwrap().success());
        let command = Command::new("/bin/true", "/");
        assert_eq!(
            run(&command, &Cancel::new().unwrap()).unwrap().end,
            End::Exited(0)
        );
    }
}
