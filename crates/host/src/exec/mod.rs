//! A command that is run at most once, and outlives whoever started it: the hands of `run_command`.
//!
//! Each execution has a directory `meta/exec/<execution_id>/` in its volume, and a process of its own, the shim, that
//! runs the command in the sandbox, keeps its deadline, spools its output and writes its status. The shim needs nobody:
//! whoever started it may die, and another one finds everything here. No command is ever begun twice, since one entry
//! of the directory can be made once, either by the shim (`begun`) or by who comes to see what became of it (`never`).
//!
//! It knows no journal, and does not decide whether a command may run or what its end means.
//!
//! # Shape
//! Written by one version, these may be read by a later one:
//!
//! ```text
//! claim          a symlink to `begun` or `never`; the first one made stays
//! shim           locked by the shim, as a process: the kernel names it
//! alive          locked by the shim and those between it and the command: one of them lives
//! stdout stderr  what the command wrote, each up to the cap; they grow while it runs
//! end.term       asks the shim to end the command; end.kill asks it to do so at once
//! bell           a FIFO on which the shim hears that it was asked
//! status.json    how it ended, once its whole process tree has ended
//! ```

mod end;
mod look;
mod place;
mod shim;
mod spec;
mod start;
mod status;
#[cfg(test)]
pub(crate) mod tests;

pub use end::{Attached, Urgency, attach, end, end_all};
pub use look::{Observation, claim_never_begun, executions, observe, read_output, running};
pub(crate) use place::any_alive;
pub use shim::entered;
pub use spec::{Around, Places, Spec, Stream, What, private_places};
pub use start::{NoPoints, Point, Points, start};
pub use status::{Asker, Kept, Outcome, Status};

/// The first argument of a process that is to be a shim.
const SHIM: &str = "__exec";
