//! The journal's high-water mark: by it a journal that went back in time is known, such as a restored copy.
//!
//! The journal cannot tell by itself that it forgot a call. Volumes that outlived what it knows would have that call's
//! effect a second time, so none of them stays open. It does not look at what the entries say.

use crate::engine::{Engine, host, store};
use semel_core::{Code, Refusal};
use semel_host::daemon::{Keep, StateRoot};
use semel_host::plain;
use serde::{Deserialize, Serialize};

/// The file of the mark, below the state root.
const MARK_FILE: &str = "journal.mark";
const MARK_CAP: u64 = 4 << 10;

/// Is what was last seen of the journal.
///
/// # Shape
/// `{"entries":12,"file":"281-1764465518.123"}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    entries: u64,
    file: String,
}

/// Says how the journal stands to what was last seen of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// It holds at least what it held, in the same file.
    Grown,
    /// It holds less, lies in another file, or nothing is known of it.
    Unproven,
}

fn now(engine: &Engine) -> Result<Mark, Refusal> {
    let status = engine.journal.status().map_err(store)?;
    Ok(Mark {
        entries: status.entries,
        file: plain::birth(&semel_store::sqlite::place(&engine.config.state)).map_err(host)?,
    })
}

/// Compares the journal with its mark.
///
/// # Errors
/// `store_unavailable`, `io_failed`.
pub(crate) fn compare(engine: &Engine, root: &StateRoot) -> Result<Age, Refusal> {
    let bytes = root.read(MARK_FILE, MARK_CAP).map_err(host)?.unwrap_or_default();
    let Ok(mark) = serde_json::from_slice::<Mark>(&bytes) else {
        return Ok(Age::Unproven);
    };
    let now = now(engine)?;
    let grown = now.file == mark.file && now.entries >= mark.entries;
    Ok(if grown { Age::Grown } else { Age::Unproven })
}

/// Writes the mark.
///
/// # Errors
/// `store_unavailable`, `io_failed`.
pub(crate) fn write(engine: &Engine, root: &StateRoot) -> Result<(), Refusal> {
    let bytes = serde_json::to_vec(&now(engine)?).map_err(|e| Refusal::new(Code::Internal, e.to_string()))?;
    root.replace(MARK_FILE, &bytes, Keep::Unsynced).map_err(host)
}
