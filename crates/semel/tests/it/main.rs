//! Tests of the binary as people and machines meet it.

mod contract;
mod crash;
mod daemon;
mod faults;
mod harness;
mod http;
mod probe;
mod snapshots;
