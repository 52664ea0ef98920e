//! What can go wrong with the journal.

use semel_core::record::IllegalRecord;
use semel_core::{Code, Refusal};

/// A failed verb of the journal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A named refusal: a rule of the journal did not hold.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The journal holds, or was given, a record that cannot follow the state before it.
    #[error(transparent)]
    Illegal(#[from] IllegalRecord),
    /// The database failed; nothing of the verb is recorded.
    #[error("{doing}: {detail}")]
    Database {
        /// What was being done.
        doing: &'static str,
        /// The database's own words.
        detail: String,
        /// What it means for the process.
        damage: Damage,
    },
    /// An earlier failure left it open what is on the disk: this process writes no more.
    #[error("the journal is poisoned: {why}")]
    Poisoned {
        /// The first failure.
        why: String,
    },
}

/// Says what a failure of the database means for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// This verb alone failed.
    Verb,
    /// The disk is full.
    Full,
    /// The files cannot be read or written as they have to be: the process must end.
    Files,
}

/// The result of a verb.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Names the refusal.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Refused(refusal) => refusal.code,
            Self::Illegal(_) => Code::Internal,
            Self::Database {
                damage: Damage::Full, ..
            } => Code::IoFailed,
            Self::Database { .. } | Self::Poisoned { .. } => Code::StoreUnavailable,
        }
    }

    /// Says whether it failed for want of room on the disk.
    pub(crate) fn is_full(&self) -> bool {
        matches!(
            self,
            Self::Database {
                damage: Damage::Full,
                ..
            }
        )
    }

    /// Turns the error into what a caller is told.
    #[must_use]
    pub fn into_refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            full @ Self::Database {
                damage: Damage::Full, ..
            } => Refusal::new(full.code(), full.to_string()).reason("disk_full"),
            other => Refusal::new(other.code(), other.to_string()),
        }
    }
}
