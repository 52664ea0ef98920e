//! Artifacts on disk: a store that is addressed by content, and a reader of what is in them.
//!
//! A lock names an artifact by a digest. It is verified when it enters the store, and again each time a generation
//! gets its own copy of it; what a generation does to its copy never reaches the store. It downloads nothing: the
//! installers' fetch stage does, in the sandbox.

mod contents;
mod inflate;
mod store;
mod tar;
#[cfg(test)]
mod tests;
mod zip;

pub use contents::Contents;
pub(crate) use contents::in_parallel;
pub(crate) use store::digest_as;
pub use store::{Store, Wanted};

use crate::error::{Error, Result};
use semel_core::artifact::{Packing, wants_member};
use semel_core::path::shown;
use semel_core::{Code, Refusal};
use std::fs::File;
use std::path::Path;

/// The most members that an artifact may have.
const MOST_MEMBERS: usize = 500_000;
/// The most bytes that the members of one artifact may have.
const MOST_BYTES: u64 = 32 << 30;
const CHUNK: usize = 64 << 10;

/// Digests every member of an artifact.
///
/// # Errors
/// `record_mismatch` for what is not packed as it should be, or has a member that no file can be made from;
/// `too_large` past half a million members or 32 GiB; `io_failed`.
pub fn contents(path: &Path, packing: Packing) -> Result<Contents> {
    let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    let mut contents = Contents::new(packing);
    let read = match packing {
        Packing::Wheel | Packing::YarnCache => zip::read(&file, &mut contents),
        Packing::Npm | Packing::Crate => tar::read(&file, &mut contents),
        Packing::Opaque => Ok(()),
    };
    read.map_err(|fault| fault.at(path))?;
    Ok(contents)
}

/// Unpacks a crate beneath a directory that does not exist yet, and digests its members on the way.
///
/// Files are made anew, so that their times are those of now. Links are refused: a crate has none.
///
/// # Errors
/// As [`contents`].
pub fn unpack_crate(path: &Path, to: &Path) -> Result<Contents> {
    let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    std::fs::create_dir(to).map_err(|e| Error::io("create", to, e))?;
    let mut contents = Contents::unpacking(Packing::Crate, to);
    tar::read(&file, &mut contents).map_err(|fault| fault.at(path))?;
    Ok(contents)
}

/// Why an artifact cannot be read.
#[derive(Debug)]
enum Fault {
    /// It is not packed as it should be.
    Odd(&'static str),
    /// It is beyond a bound.
    Large(&'static str),
    /// A member is refused.
    Member(Refusal),
    /// The system failed.
    Io(std::io::Error),
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Self::Odd("it ends too early"),
            std::io::ErrorKind::InvalidData => Self::Odd("its compressed data is damaged"),
            _ => Self::Io(error),
        }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Member(refusal)
    }
}

impl Fault {
    fn at(self, path: &Path) -> Error {
        use std::os::unix::ffi::OsStrExt;
        let name = path
            .file_name()
            .map(|name| shown(name.as_bytes()))
            .unwrap_or_default();
        match self {
            Self::Odd(why) => {
                let why = format!("an artifact cannot be read: {why}");
                Refusal::new(Code::RecordMismatch, why)
                    .reason("artifact")
                    .name(name)
                    .into()
            }
            Self::Large(why) => Refusal::new(Code::TooLarge, why).name(name).into(),
            Self::Member(mut refusal) => {
                refusal.names.insert(0, name);
                refusal.into()
            }
            Self::Io(e) => Error::io("read", path, e),
        }
    }
}
