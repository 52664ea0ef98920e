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

mod crash;
mod daemon;
mod faults;
mod harness;
mod http;
mod probe;
mod schemas;
mod snapshots;
mod tidy;
mod walks;
