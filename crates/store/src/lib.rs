//! The memory of Semel: the journal, the one durable record of intents, receipts, volumes, runs and certificates.
//!
//! It is the only crate that knows SQL. It decides nothing by itself: each verb folds records through the `apply`
//! of `semel_core`, inside the one writer. It does *not* know files of a workspace, and never sees the host.

pub mod conformance;
pub mod error;
pub mod journal;
pub mod owner;
mod reserve;
pub mod sqlite;

pub use error::{Error, Result};
pub use journal::{Began, Journal, Remote, Then, Transport, Verb};
pub use owner::OwnerLock;
pub use sqlite::SqliteJournal;
