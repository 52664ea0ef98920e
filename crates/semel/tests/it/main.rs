//! Tests of the binary as people and machines meet it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test prepares, looks at and spawns what the product may not"
)]

mod agents;
mod broken;
mod cases;
mod contract;
mod crash;
mod daemon;
mod drill;
mod faults;
mod gate;
mod harness;
mod http;
mod interop;
mod kills;
mod laws;
mod probe;
mod run;
mod schemas;
mod snapshots;
mod tidy;
mod walks;
mod wipe;
