//! The hands of Semel: the only crate that opens workspace files, spawns processes and reads clocks.
//!
//! It knows no journal and decides nothing: it carries out what it is told, and says what it saw. The same
//! volume, tarball and process pieces serve the gateway, the certification and the restoration.

pub mod above;
pub mod artifact;
pub mod clock;
pub mod contract;
pub mod copy;
pub mod daemon;
pub mod error;
pub mod exec;
pub mod files;
pub mod git;
pub mod hold;
pub mod installer;
pub mod key;
pub mod leftover;
pub mod lines;
mod lock;
mod mount_table;
pub mod patience;
pub mod peer;
pub mod plain;
pub mod process;
pub mod root;
pub mod sandbox;
pub mod scratch;
pub mod signals;
pub mod spool;
pub mod stream;
pub mod supervisor;
pub mod tarball;
pub mod volume;

pub use error::{Error, Result};

// The laws of archives are the fuzzer's, which knows this crate by its name.
#[cfg(test)]
extern crate self as semel_host;
