//! The rules of Semel: everything that decides, and nothing that acts.
//!
//! This crate knows no file, clock, socket, thread, process, environment, SQL or HTTP; its `clippy.toml` bans
//! them. Time, randomness and observations come in as arguments; decisions go out as values.

pub mod approval;
pub mod artifact;
pub mod attempt;
pub mod audit;
pub mod backend;
pub mod bounds;
pub mod call;
pub mod canonical;
pub mod certificate;
pub mod checkpoint;
pub mod code;
pub mod collision;
pub mod command;
pub mod confinement;
pub mod digest;
pub mod effect;
pub mod gate;
pub mod git_tree;
pub mod glob;
pub mod ids;
pub mod ignore;
pub mod install;
pub mod installer;
pub mod job;
pub mod key_header;
pub mod lfs;
pub mod lockset;
pub mod manifest;
pub mod mcp;
pub mod noise;
pub mod patch;
pub mod path;
pub mod pin;
pub mod pipeline;
pub mod policy;
pub mod prepared;
pub mod record;
pub mod recovery;
pub mod report;
pub mod restore;
pub mod retry;
pub mod surround;
pub mod upstream;
pub mod volume;
pub mod words;

#[cfg(test)]
mod sample;

pub use bounds::Bounds;
pub use code::{Code, Refusal, Retry};
pub use confinement::{Confinement, Level};
pub use digest::{Fingerprint, Sha256};
pub use path::RelPath;
