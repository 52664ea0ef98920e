//! Confined operations on the files of a volume: the hands of the gateway's tools.
//!
//! An effect is cut into steps (prepare, carry out, sync; observe, roll back) so that its caller can journal between
//! them; the filesystem itself carries the evidence of what happened. Nothing here knows the journal,
//! a key or a policy.

mod attributes;
mod beneath;
mod directory;
mod grep;
mod identity;
mod kept;
mod links;
mod mode;
mod moves;
mod power;
mod prepared;
pub mod range;
pub(crate) mod read;
mod recovery;
mod relocate;
mod remove;
mod search;
mod stamp;
mod steps;
#[cfg(test)]
mod tests;
pub(crate) mod together;
pub mod walk;
mod write;

pub(crate) use attributes::attribute;
pub use directory::{
    Missing, holds_directories_alone, missing_directories, prepare_directory, prepare_remove_empty,
};
pub use grep::{Grepped, Hit, Pattern, Shown, Syntax, Tell, WantedLines, grep};
pub use identity::{file_id, file_id_at};
pub use kept::{Weight, free_aside, pre_images, put_aside, weigh, weigh_kept, weigh_pre_image};
pub use mode::{SetMode, prepare_set_mode};
pub(crate) use moves::rename_ours;
pub use power::{power_supported, power_supported_at};
pub use prepared::{Prepared, Terms, sync_effects, sync_staged};
pub use range::read_part;
pub use read::{Content, FileInfo, FileKind, Listed, Undigested, file_info, list_directory, read_file};
pub use recovery::{
    Swept, discard_staged, drop_second_names, observe, roll_back, sweep_staging, sync_settled, tidy,
};
pub use relocate::{Move, kind_at, prepare_move, prepare_restore};
pub use remove::{Removable, Remove, prepare_remove};
pub use search::{Found, FoundEntry, Wanted, search};
pub use semel_core::volume::Durability;
pub use stamp::{DirectoryStamp, Stamp, directory_stamps, stamps};
pub use steps::{NoSteps, Step, Steps};
pub use write::{Write, prepare_write};

use crate::error::{Error, Result};
use rustix::fs::{Mode, OFlags};
use semel_core::{Code, Refusal, Sha256, digest::Hasher};
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Largest content that is digested without being asked for, in bytes.
pub const DIGEST_CAP: u64 = 64 << 20;

/// Largest content that is digested at all, in bytes.
pub const DIGEST_MOST: u64 = 4 << 30;

/// States what a caller expects at the target before it changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing was stated.
    Any,
    /// Nothing is there.
    Absent,
    /// A file with this content is there.
    Sha256(Sha256),
}

impl Expected {
    /// Says up to which size what is there is digested: what is asked for has a bound, too.
    const fn digests(self) -> u64 {
        match self {
            Self::Sha256(_) => DIGEST_MOST,
            Self::Any | Self::Absent => DIGEST_CAP,
        }
    }

    /// Gives the content that has to be there, where one has.
    #[must_use]
    pub const fn stated(self) -> Option<Sha256> {
        match self {
            Self::Sha256(digest) => Some(digest),
            Self::Any | Self::Absent => None,
        }
    }
}

/// Digests an open file from its beginning, in pieces.
pub(crate) fn digest_of(file: &std::fs::File) -> std::io::Result<Sha256> {
    let whole = digest_within(file, u64::MAX, &|| false)?;
    whole.ok_or_else(|| std::io::Error::other("the file has no end"))
}

/// Digests an open file from its beginning, in pieces; `None` where it is longer than that, or nobody wants the digest
/// any more. A file that grows ends it, too, and one whose length is made up.
pub(crate) fn digest_within(
    file: &std::fs::File,
    most: u64,
    unwanted: &dyn Fn() -> bool,
) -> std::io::Result<Option<Sha256>> {
    use std::os::unix::fs::FileExt as _;
    // Most files are small: they are read into a small buffer, and only what is longer needs a large one.
    let mut small = [0_u8; 4 << 10];
    let (mut hasher, mut at) = (Hasher::new(), 0);
    let mut large = Vec::new();
    while at <= most && !unwanted() {
        let buffer = if at < small.len() as u64 {
            &mut small[..]
        } else {
            large.resize(128 << 10, 0);
            &mut large[..]
        };
        match file.read_at(buffer, at)? {
            0 => return Ok(Some(hasher.finish())),
            n => {
                hasher.update(&buffer[..n]);
                at += n as u64;
            }
        }
    }
    Ok(None)
}

/// Reads an open file up to a bound.
pub(crate) fn read_capped(file: std::fs::File, cap: u64, shown: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(cap.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io("read", shown, e))?;
    if bytes.len() as u64 > cap {
        let why = format!("it is longer than {cap} bytes");
        return Err(Refusal::new(Code::TooLarge, why).name(shown).into());
    }
    Ok(bytes)
}

/// Opens a second handle on a directory, one that can be synced.
pub(crate) fn syncable(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, ".", flags, Mode::empty()).map_err(|e| Error::io("open", "a directory", e))
}

/// Makes a file or directory durable; its failure poisons.
pub(crate) fn sync(fd: impl AsFd, shown: &str) -> Result<()> {
    rustix::fs::fsync(fd).map_err(|e| Error::unproven("sync", shown, e))
}
