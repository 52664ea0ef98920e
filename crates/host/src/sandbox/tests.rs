//! Everything here runs real programs in the real sandbox.

/// A test binary is started to enter the sandbox as the product is: this runs before its `main`, and so before
/// any thread of the test harness.
#[used]
#[expect(unsafe_code, reason = "the linker's table of what runs before main")]
// SAFETY: the C library calls each entry once, with one thread, after the entry of std that keeps the arguments
// (which sorts before it by its number); the function has the form that it calls.
#[unsafe(link_section = ".init_array")]
static ENTER: extern "C" fn() = enter;

extern "C" fn enter() {
    if let Some(status) = super::entered() {
        leave(status);
    }
}

#[expect(unsafe_code, reason = "before main there is nothing to unwind or to flush")]
fn leave(status: i32) -> ! {
    // SAFETY: it takes a number, and does not return.
    unsafe { libc::_exit(status) }
}

use super::{Network, Require, Sandbox, TreeAccess};
use crate::process::{Cancel, Command, Confinement, End, Ended, Output, Stdin, TreeEnded, run};
use semel_core::confinement::Confinement as Reached;
use semel_core::{Code, Level};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A state root with a volume in it, and secrets around.
struct House {
    root: tempfile::TempDir,
}

impl House {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for dir in ["state/v/tree", "state/v/home", "state/v/tmp", "state/keys"] {
            std::fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        std::fs::write(root.path().join("state/journal.db"), "secret").unwrap();
        std::fs::write(root.path().join("state/keys/signing.pem"), "secret").unwrap();
        std::fs::write(root.path().join("outside"), "outside").unwrap();
        std::fs::write(root.path().join("state/v/tree/file"), "in the tree").unwrap();
        Self { root }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn sandbox(&self) -> Sandbox {
        Sandbox {
            tree: self.at("state/v/tree"),
            tree_access: TreeAccess::Writable,
            home: self.at("state/v/home"),
            tmp: self.at("state/v/tmp"),
            hide: vec![self.at("state"), PathBuf::from("/root"), PathBuf::from("/home")],
            read_only: Vec::new(),
            writable: Vec::new(),
            network: Network::Loopback,
            require: Require::Full,
        }
    }

    /// A shell script in the sandbox, with the house as `$H`.
    fn sh(&self, script: &str) -> Command {
        let mut command = Command::new("/bin/sh", self.at("state/v/tree"))
            .args(["-c", script])
            .var("PATH", "/usr/bin:/bin")
            .var("H", self.root.path());
        command.confinement = Confinement::Sandbox(self.sandbox());
        command.grace = Duration::from_secs(5);
        command
    }
}

fn go(command: &Command) -> Ended {
    run(command, &Cancel::new().unwrap()).unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn it_stands_in_full_here() {
    let level = super::probe().unwrap();
    eprintln!("{level:?}, landlock {}", super::landlock_abi());
    assert_eq!(level, Level::lacking(Vec::new()));
}

#[test]
fn a_program_runs_and_its_end_is_told() {
    let house = House::new();
    let ended = go(&house.sh("echo out; echo err >&2; cat file; exit 7"));
    assert_eq!(text(&ended.stdout), "out\nin the tree", "{ended:?}");
    assert_eq!(text(&ended.stderr), "err\n");
    assert_eq!(ended.end, End::Exited(7));
    assert_eq!(ended.level.confinement, Reached::Full);
    assert_eq!(ended.tree_ended, TreeEnded::Proved);
    let ended = go(&house.sh("kill -KILL $$"));
    assert_eq!(ended.end, End::Signalled(9));
    assert_eq!(ended.tree_ended, TreeEnded::Proved);
}
