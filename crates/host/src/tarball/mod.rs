//! Proposals as archives: a deterministic writer, and a strict reader of the subset that it writes.
//!
//! Other tools read some archives differently from each other; this reader refuses every one of those. Which
//! entries of a tree belong into a proposal is the caller's choice, and git's tree id is computed elsewhere.

mod header;
mod pack;
#[cfg(test)]
mod tests;
mod unpack;

pub use pack::{Choice, Sealed, archive_path, pack};
pub use unpack::{Limits, unpack};

use semel_core::{Code, Refusal};

/// The unit in which an archive is written, in bytes.
const BLOCK: usize = 512;

fn refused(reason: &str, why: impl Into<String>) -> Refusal {
    Refusal::new(Code::ProposalRefused, why).reason(reason)
}
