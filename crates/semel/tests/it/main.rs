//! Tests of the binary as people and machines meet it.

mod crash;
mod daemon;
mod harness;
mod http;
mod probe;
mod snapshots;
