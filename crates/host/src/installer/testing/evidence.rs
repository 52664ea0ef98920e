//! Reads the report that a run left, and makes sure that it is of this run.
//!
//! A file is opened beneath a directory that is known, never through a link: another generation's report, linked
//! into place, is no evidence.

use super::TestPlan;
use crate::error::{Error, Result};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use semel_core::ids::UnixMs;
use semel_core::{Code, Refusal, RelPath, report};
use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(super) fn too_long() -> Refusal {
    Refusal::new(Code::EvidenceForeign, "the report is longer than 64 MiB").reason("report_too_long")
}

/// A report that is there before the tests proves nothing about them.
pub(super) fn refuse_present(plan: &TestPlan<'_>, path: &RelPath) -> Result<()> {
    if open_beneath(&plan.tree, path)?.is_none() {
        return Ok(());
    }
    let why = "the report is there before the tests ran";
    Err(Refusal::new(Code::EvidenceForeign, why)
        .reason("not_fresh")
        .name(path.to_string())
        .into())
}

/// Opens a file beneath a directory without following any link; `None` where it is not there.
fn open_beneath(root: &Path, path: &RelPath) -> Result<Option<OwnedFd>> {
    let root_fd = rustix::fs::openat(
        CWD,
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|e| Error::io("open", root, e))?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let name = OsStr::from_bytes(path.as_bytes());
    match rustix::fs::openat2(root_fd.as_fd(), name, flags, Mode::empty(), resolve) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(Errno::LOOP | Errno::XDEV) => {
            let why = "the report lies behind a link";
            Err(Refusal::new(Code::EvidenceForeign, why)
                .name(path.to_string())
                .into())
        }
        Err(e) => Err(Error::io("open", root.join(name), e)),
    }
}

/// How far the times that a filesystem gives may lie behind the clock.
const COARSE_MS: u64 = 2000;

/// Reads the report that a run left; it must be a plain file with one name, written since the run began.
pub(super) fn read_report(root: &Path, path: &RelPath, began: UnixMs) -> Result<Option<Vec<u8>>> {
    let Some(fd) = open_beneath(root, path)? else {
        return Ok(None);
    };
    let file = std::fs::File::from(fd);
    let place = root.join(OsStr::from_bytes(path.as_bytes()));
    let facts = file.metadata().map_err(|e| Error::io("look at", &place, e))?;
    if !facts.is_file() || facts.nlink() != 1 {
        let why = "the report is not a plain file with one name";
        return Err(Refusal::new(Code::EvidenceForeign, why)
            .name(path.to_string())
            .into());
    }
    let written = facts
        .modified()
        .ok()
        .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let written = written.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    if written.saturating_add(COARSE_MS) < began.0 {
        let why = "the report was written before the tests began";
        return Err(Refusal::new(Code::EvidenceForeign, why)
            .reason("not_fresh")
            .name(path.to_string())
            .into());
    }
    let mut bytes = Vec::new();
    let mut bounded = file.take(report::LONGEST_REPORT + 1);
    bounded
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io("read", &place, e))?;
    if bytes.len() as u64 > report::LONGEST_REPORT {
        return Err(too_long().name(path.to_string()).into());
    }
    Ok(Some(bytes))
}
