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
mod approval;
mod attempts;
mod benches;
mod bridge;
mod broken;
mod cases;
mod commanded;
mod commands;
mod conformance;
mod contract;
mod crash;
mod crowds;
mod daemon;
mod doors;
mod drill;
mod ends;
mod environment;
mod faults;
mod full;
mod gate;
mod github;
mod harness;
mod hostile;
mod http;
mod interop;
mod kills;
mod laws;
mod library;
mod log;
mod log_audit;
mod mcp;
mod metrics;
mod npm;
mod openapi;
mod patches;
mod paths;
mod policy;
mod power;
mod probe;
mod quota;
mod reads;
mod record;
mod restoring;
mod retention;
mod retry;
mod room;
mod run;
mod schemas;
mod seals;
mod snapshots;
mod supervised;
mod surface;
mod tidy;
mod tokens;
mod undo;
mod upstream;
mod vectors;
mod volume_kills;
mod volumes;
mod walks;
mod wipe;
mod wire;
mod words;
mod worktrees;
