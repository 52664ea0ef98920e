//! `semel record`: what is installed on a disk that somebody else manages, bound to its locks and its generation. It
//! touches no store.

use super::contract::refusal;
use semel_core::install::kept::{Facts, Kept, RECORD_FILE};
use semel_core::lockset::Format;
use semel_core::{Code, Refusal, RelPath};
use semel_host::contract::Disk;
use std::path::Path;

/// Is a record that stands, with what a person should know, in words.
#[derive(Clone, Debug)]
pub(crate) struct Stands {
    /// The record.
    pub(crate) record: Kept,
    /// The warnings.
    pub(crate) warnings: Vec<String>,
}

fn facts(disk: &Disk, generation: Option<&str>, named: &[RelPath]) -> Result<Facts, Refusal> {
    let recognised = |name: &[u8]| Format::recognise(name).is_some();
    disk.record_facts(generation.map(ToOwned::to_owned), named, &recognised)
        .map_err(refusal)
}

fn open(workspace: &Path, generation: Option<&str>) -> Result<Disk, Refusal> {
    // The identity comes first, as in the contract: also where there is no workspace.
    semel_core::attempt::identity("VOLUME_GENERATION", generation)?;
    Disk::open(workspace).map_err(refusal)
}

/// Records what is installed.
///
/// # Errors
/// Those of [`Kept::make`]; `lockfile_drift` for a lockfile that moved meanwhile. A refusal leaves the record as it was.
///
/// # Durability
/// The record is whole and on the disk when this returns.
pub(crate) fn write(
    workspace: &Path,
    generation: Option<&str>,
    locks: &[RelPath],
    trees: &[RelPath],
) -> Result<Stands, Refusal> {
    let disk = open(workspace, generation)?;
    let held = disk.hold().map_err(refusal)?;
    let before = facts(&disk, generation, locks)?;
    let parsed = disk.parsed(&before);
    let seen = disk.trees(trees).map_err(refusal)?;
    let (record, mut warnings) = Kept::make(&before, &parsed, &seen.seen)?;
    if facts(&disk, generation, locks)?.locks != before.locks {
        let why = "a lockfile moved while the record was made";
        return Err(Refusal::new(Code::LockfileDrift, why).name(RECORD_FILE));
    }
    warnings.extend(seen.warnings);
    held.keep_record(&record).map_err(refusal)?;
    Ok(Stands { record, warnings })
}

/// Checks that what is installed is what was recorded.
///
/// # Errors
/// Those of [`Kept::of_this_generation`] and [`Kept::still`], in this order.
pub(crate) fn check(
    workspace: &Path,
    generation: Option<&str>,
    locks: &[RelPath],
) -> Result<Stands, Refusal> {
    let disk = open(workspace, generation)?;
    let held = disk.hold().map_err(refusal)?;
    let record = Kept::of_this_generation(&facts(&disk, generation, &[])?)?;
    let named: Vec<RelPath> = record.lock.keys().chain(locks).cloned().collect();
    let now = facts(&disk, generation, &named)?;
    // What is cheap to see is seen before everything is read.
    record.locks_stand(&now)?;
    let seen = disk.trees_again(&record.roots).map_err(refusal)?;
    record.still(&now, &seen.seen)?;
    drop(held);
    Ok(Stands {
        record,
        warnings: seen.warnings,
    })
}
