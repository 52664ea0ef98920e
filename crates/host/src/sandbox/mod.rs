//! The sandbox: what it shows, what it hides, what may be written, and how well it stands.
//!
//! It does not wait, capture or end anything: [`crate::process`] does.

use std::path::PathBuf;

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
}
