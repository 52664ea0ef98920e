//! The doors of Semel: one binary.

mod cli;
mod config;
mod engine;
mod limits;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    // A sandboxed child begins its life here, single-threaded, before anything else is set up.
    if let Some(status) = wire::sandbox_entry() {
        return ExitCode::from(status);
    }
    cli::main()
}
