//! The sandbox: what it shows, what it hides, what may be written, and how well it stands.
//!
//! It does not wait, capture or end anything: [`crate::process`] does.

mod bounds;
mod enter;
mod keeper;
mod land;
mod mounts;
pub(crate) mod own;
mod plan;
mod privilege;
pub(crate) mod spec;
pub(crate) mod sys;
#[cfg(test)]
pub(crate) mod tests;
mod toolchain;
mod view;

pub use bounds::default_bounds;
pub(crate) use bounds::outgrown;
pub(crate) use keeper::REPORT;
pub use land::landlock_abi;
pub(crate) use toolchain::is_executable;
pub use toolchain::{resolve_program, toolchain_roots};

use crate::error::{Error, Result};
use semel_core::Bounds;
use semel_core::confinement::Level;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What a sandboxed program may do with its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeAccess {
    /// Read and write.
    Writable,
    /// Read alone.
    ReadOnly,
}

/// What a sandboxed program reaches of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The host's network.
    Host,
    /// Its own loopback device, and nothing else.
    Loopback,
}

/// What is done where a part of the sandbox cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Require {
    /// Nothing is run: `sandbox_unavailable`.
    Full,
    /// The program runs with what can be had; [`semel_core::confinement::Level`] says what is missing.
    BestEffort,
}

/// What stands around a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// The tree of one generation.
    pub tree: PathBuf,
    /// Whether the tree may be written.
    pub tree_access: TreeAccess,
    /// Its private home; writable.
    pub home: PathBuf,
    /// Its private directory for temporary files; writable.
    pub tmp: PathBuf,
    /// Directories whose content it never sees, such as the state root and the homes.
    pub hide: Vec<PathBuf>,
    /// Further things that it reads at their own paths, also below hidden ones, such as toolchains.
    pub read_only: Vec<PathBuf>,
    /// Further directories that it writes at their own paths, such as caches.
    pub writable: Vec<PathBuf>,
    /// What it reaches of the network.
    pub network: Network,
    /// What is done where a part of the sandbox cannot be had.
    pub require: Require,
    /// What bounds the program and all that it starts.
    pub bounds: Bounds,
}

/// The first argument of a process that is to enter.
pub(crate) const ENTER: &str = "__sandbox";

static LAUNCHER: OnceLock<PathBuf> = OnceLock::new();

/// Names the program that is started to enter the sandbox, for a process whose own program does not call
/// [`entered`]. The first one named stays.
pub fn launch_with(program: PathBuf) {
    LAUNCHER.get_or_init(|| program);
}

/// Whom programs run as where Semel runs as root, unless the operator says otherwise: no distribution gives this number
/// to anybody, and it is small enough for every archive format.
pub const OWN_USER: u32 = 65_530;

static OWN: OnceLock<u32> = OnceLock::new();

/// Names the user as whom programs run where this process is root. The first one named stays.
pub fn run_as(uid: u32) {
    OWN.get_or_init(|| uid);
}

/// Gives the user as whom programs run where this process is root.
pub(crate) fn own_user() -> u32 {
    OWN.get().copied().unwrap_or(OWN_USER)
}

/// Says whether programs are to run as a user of their own: whether this process is root.
#[must_use]
pub fn has_own_user() -> bool {
    own::is_root()
}

/// Gives the program that is started to enter the sandbox: this very one, even after it was replaced on disk.
pub(crate) fn launcher() -> &'static Path {
    LAUNCHER
        .get()
        .map_or(Path::new("/proc/self/exe"), PathBuf::as_path)
}

/// Enters the sandbox, if this process was started to; gives the status with which it must then exit at once.
///
/// It has to be the first act of `main`: while there is one thread, and before anything is opened.
#[must_use]
pub fn entered() -> Option<i32> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != ENTER {
        return None;
    }
    let mut number = || args.next()?.to_str()?.parse().ok();
    let (Some(order), Some(control)) = (number(), number()) else {
        return Some(127);
    };
    let read = |order| -> std::io::Result<spec::Order> {
        let mut bytes = Vec::new();
        std::fs::File::from(sys::inherited(order)?).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    };
    match (read(order), sys::inherited(control)) {
        (Ok(order), Ok(control)) => Some(enter::outer(&order, control)),
        _ => Some(127),
    }
}

/// Tries the sandbox once, with both networks, and says how well it stands here.
///
/// # Errors
/// `io_failed` where no directory for the trial is to be had, or the trial could not be started.
pub fn probe() -> Result<Level> {
    probe_in(&std::env::temp_dir())
}

/// Tries the sandbox as [`probe`] does, on the filesystem of a directory.
///
/// # Errors
/// As [`probe`].
pub fn probe_in(beside: &Path) -> Result<Level> {
    let name: [u8; 8] = crate::clock::random()?;
    let name: String = name.iter().map(|b| format!("{b:02x}")).collect();
    let place = beside.join(format!("semel-probe-{name}"));
    std::fs::create_dir(&place).map_err(|e| Error::io("create", &place, e))?;
    let level = crate::process::probe(&place);
    std::fs::remove_dir(&place).map_err(|e| Error::io("remove", &place, e))?;
    level
}
