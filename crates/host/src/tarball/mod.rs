//! Proposals as archives: a deterministic writer, and a strict reader of the subset that it writes.
//!
//! Other tools read some archives differently from each other; this reader refuses every one of those. Which
//! entries of a tree belong into a proposal is the caller's choice.

mod claim;
mod digests;
mod header;
mod pack;
mod store;
#[cfg(test)]
mod tests;
mod unpack;
mod verify;

pub use claim::appear;
pub use pack::{Choice, Sealed, pack};
pub use store::{archive_path, keep_manifest, manifest_path};
pub use unpack::{clear, unpack};
pub use verify::verify;

use crate::error::Result;
use semel_core::git_tree::{Kind, Mode, ObjectFormat, ObjectId, object_id, tree_id};
use semel_core::manifest::{Entry, FileMode};
use semel_core::{Code, Refusal, Sha256};

/// The unit in which an archive is written, in bytes.
const BLOCK: usize = 512;

fn refused(reason: &str, why: impl Into<String>) -> Refusal {
    Refusal::new(Code::ProposalRefused, why).reason(reason)
}

/// Stands for the digest of a file until it was read.
const UNREAD: Sha256 = Sha256::from_bytes([0; 32]);

/// Bounds what is packed, and what is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Files, links and directories.
    pub entries: usize,
    /// The length of the archive, in bytes.
    pub archive_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 200_000,
            archive_bytes: 4 << 30,
        }
    }
}

/// Puts the digests of the files in their places.
fn fill(entries: &mut [Entry], contents: Vec<Sha256>) -> Result<()> {
    let mut contents = contents.into_iter();
    for entry in entries {
        if let Entry::File { sha256, .. } = entry {
            *sha256 = contents.next().ok_or_else(lost_digest)?;
        }
    }
    Ok(())
}

/// Computes the git tree of entries from the blobs of the files among them.
fn tree_of_entries(format: ObjectFormat, entries: &[Entry], blobs: Vec<ObjectId>) -> Result<ObjectId> {
    let mut blobs = blobs.into_iter();
    let mut all = Vec::with_capacity(entries.len());
    for entry in entries {
        let (mode, id) = match entry {
            Entry::File { mode, .. } => {
                let mode = match mode {
                    FileMode::Plain => Mode::File,
                    FileMode::Executable => Mode::Executable,
                };
                (mode, blobs.next().ok_or_else(lost_digest)?)
            }
            Entry::Symlink { target, .. } => {
                (Mode::Symlink, object_id(format, Kind::Blob, target.as_bytes())?)
            }
        };
        all.push((entry.path().clone(), mode, id));
    }
    Ok(tree_id(format, all)?)
}

fn lost_digest() -> Refusal {
    Refusal::new(Code::Internal, "a file was packed without its digest")
}

/// Names the file that began as the nth.
fn nth_file(entries: &[Entry], n: usize) -> String {
    let mut files = entries.iter().filter(|entry| matches!(entry, Entry::File { .. }));
    files
        .nth(n)
        .map_or_else(String::new, |entry| entry.path().to_string())
}
