//! The rules of Semel: everything that decides, and nothing that acts.
//!
//! This crate knows no file, clock, socket, thread, process, environment, SQL or HTTP; its `clippy.toml` bans
//! them. Time, randomness and observations come in as arguments; decisions go out as values.

pub mod call;
pub mod code;
pub mod digest;
pub mod ids;
pub mod path;
pub mod pipeline;
pub mod record;
pub mod recovery;
pub mod volume;

#[cfg(test)]
mod sample;

pub use code::{Code, Refusal, Retry};
pub use digest::{Fingerprint, Sha256};
pub use path::RelPath;
