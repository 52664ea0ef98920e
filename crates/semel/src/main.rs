//! The doors of Semel: one binary.

mod cli;
mod client;
mod config;
mod engine;
mod http;
mod limits;
mod mcp;
mod probe;
mod telemetry;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    // A sandboxed child begins its life here, single-threaded, before anything else is set up.
    if let Some(status) = wire::sandbox_entry() {
        return ExitCode::from(status);
    }
    cli::main()
}
