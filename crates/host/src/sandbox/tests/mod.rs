//! Everything here runs real programs in the real sandbox.

mod bounds;
mod ends;
mod own;
mod places;
mod walls;

use super::{Network, Require, Sandbox, TreeAccess};
use crate::process::{Cancel, Command, Confinement, Ended, Output, run};
use semel_core::confinement::Confinement as Reached;
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A test binary is started to enter the sandbox as the product is: this runs before its `main`, and so before
/// any thread of the test harness.
#[used]
#[expect(unsafe_code, reason = "the linker's table of what runs before main")]
// SAFETY: the C library calls each entry once, with one thread, after the entry of std that keeps the arguments
// (which sorts before it by its number); the function has the form that it calls.
#[unsafe(link_section = ".init_array")]
static ENTER: extern "C" fn() = enter;

extern "C" fn enter() {
    let shim = || crate::exec::entered().or_else(crate::exec::tests::helper);
    if let Some(status) = super::entered().or_else(shim).or_else(helper) {
        leave(status);
    }
}

/// What this binary does where a test starts it as another program: by its first argument.
fn helper() -> Option<i32> {
    let args: Vec<_> = std::env::args().collect();
    let rest = args.get(2).map(String::as_str).unwrap_or_default();
    match args.get(1).map(String::as_str)? {
        "__dial" => Some(i32::from(TcpStream::connect(rest).is_err())),
        "__loopback" => {
            let listener = TcpListener::bind("127.0.0.1:0").ok()?;
            let address = listener.local_addr().ok()?;
            Some(i32::from(TcpStream::connect(address).is_err()))
        }
        "__abstract" => {
            let address = SocketAddr::from_abstract_name(rest).ok()?;
            Some(i32::from(UnixStream::connect_addr(&address).is_err()))
        }
        "__run" => {
            // A parent to be killed: it runs what it is told, in the house that it is told.
            let house = House::of(PathBuf::from(rest));
            let mut command = house.sh(args.get(3)?);
            if args.get(4).is_some_and(|how| how == "supervised") {
                command.confinement = Confinement::Supervised;
            }
            command.output = Output::Inherit;
            Some(i32::from(run(&command, &Cancel::new().ok()?).is_err()))
        }
        "__level" => Some(say_level(&House::of(PathBuf::from(rest)))),
        _ => None,
    }
}

/// Runs a script with the best that can be had here, tries the same with all required, and says what came of both.
fn say_level(house: &House) -> i32 {
    let script = "cat file; cat $H/state/journal.db; touch $H/state/new $H/new; touch new && echo wrote; \
        (setsid sleep 1000 </dev/null >/dev/null 2>&1 &); exit 3";
    let mut command = house.sh(script);
    let required = run(&command, &Cancel::new().unwrap()).map_err(|e| e.code().wire());
    if let Confinement::Sandbox(sandbox) = &mut command.confinement {
        sandbox.require = Require::BestEffort;
        sandbox.network = Network::Host;
    }
    let ended = run(&command, &Cancel::new().unwrap()).unwrap();
    say(&format!(
        "{}\n{:?}\n{:?}\n{:?}\n{:?}\n",
        text(&ended.stdout).trim_end(),
        required.err(),
        ended.level,
        ended.end,
        ended.tree_ended
    ));
    0
}

#[expect(
    clippy::print_stdout,
    reason = "a helper's answer to its test, and a measure for who reads"
)]
pub(crate) fn say(text: &str) {
    print!("{text}");
    std::io::Write::flush(&mut std::io::stdout()).unwrap();
}

#[expect(unsafe_code, reason = "before main there is nothing to unwind or to flush")]
fn leave(status: i32) -> ! {
    // SAFETY: it takes a number, and does not return.
    unsafe { libc::_exit(status) }
}

/// A state root with a volume in it, and secrets around.
struct House {
    root: PathBuf,
    _kept: Option<tempfile::TempDir>,
}

impl House {
    fn new() -> Self {
        Self::within(tempfile::tempdir().unwrap())
    }

    fn within(root: tempfile::TempDir) -> Self {
        for dir in ["state/v/tree", "state/v/home", "state/v/tmp", "state/keys"] {
            std::fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        std::fs::write(root.path().join("state/journal.db"), "secret").unwrap();
        std::fs::write(root.path().join("state/keys/signing.pem"), "secret").unwrap();
        std::fs::write(root.path().join("outside"), "secret").unwrap();
        std::fs::write(root.path().join("state/v/tree/file"), "in the tree").unwrap();
        Self {
            root: root.path().to_owned(),
            _kept: Some(root),
        }
    }

    fn of(root: PathBuf) -> Self {
        Self { root, _kept: None }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
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
            bounds: crate::sandbox::default_bounds(),
        }
    }

    /// A shell script in the sandbox, with the house as `$H`.
    fn sh(&self, script: &str) -> Command {
        let mut command = Command::new("/bin/sh", self.at("state/v/tree"))
            .args(["-c", script])
            .var("PATH", "/usr/bin:/bin")
            .var("H", &self.root);
        command.confinement = Confinement::Sandbox(self.sandbox());
        command.grace = Duration::from_secs(5);
        command
    }
}

fn go(command: &Command) -> Ended {
    run(command, &Cancel::new().unwrap()).unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Says whether the sandbox stands in full on this machine; the tests of a full one need it.
pub(crate) fn stands() -> bool {
    let level = super::probe().unwrap();
    if level.confinement == Reached::Full {
        return true;
    }
    skip(&level.missing.join(", "));
    false
}

#[expect(clippy::print_stderr, reason = "a test that cannot run here says so")]
pub(crate) fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// Lists the processes of this machine whose command line holds a word.
pub(crate) fn alive(word: &str) -> Vec<(u32, String)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let found = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    found.filter(|(_, line)| line.contains(word)).collect()
}

/// Waits, within reason, until something holds; a machine may be slow.
pub(crate) fn until(mut holds: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !holds() {
        // So long that it only ever ends a test that is broken.
        if began.elapsed() > Duration::from_secs(300) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Gives what comes of something that has to happen within a short time, which is that many times as long where the
/// machine was too slow for it before; `None` says that it was.
pub(crate) fn in_due_time<T>(tried: impl FnMut(u32) -> Option<T>) -> T {
    let found = [1, 6, 36, 216].into_iter().find_map(tried);
    found.expect("it happens when there is time enough for it")
}

/// Unmounts what a test mounted. A child that another test forks keeps its files open until it executes: it is busy for a
/// moment.
#[track_caller]
pub(crate) fn unmounted(at: &std::path::Path) {
    let flags = rustix::mount::UnmountFlags::empty();
    let mut last = Ok(());
    let gone = until(|| {
        last = rustix::mount::unmount(at, flags);
        last != Err(rustix::io::Errno::BUSY)
    });
    assert!(gone, "{}: {last:?}", at.display());
    last.unwrap();
}
