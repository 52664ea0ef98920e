//! What can be wrong with the log: each fault by its name, and by the place where it was found.
//!
//! It names faults. It does *not* look for them; that is the store's `verify`.

use serde::{Deserialize, Serialize};

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $wire:literal;)*) => {
        /// Names a fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum FaultKind {
            $($(#[$doc])* #[serde(rename = $wire)] $variant,)*
        }

        impl FaultKind {
            /// Lists every kind.
            pub const ALL: &'static [FaultKind] = &[$(Self::$variant),*];

            /// Gives the name as it is written.
            #[must_use]
            pub const fn wire(self) -> &'static str {
                match self { $(Self::$variant => $wire),* }
            }
        }
    };
}

kinds! {
    /// An entry does not have the place after the one before: entries were dropped or moved.
    Gap = "gap";
    /// An entry does not name the digest of the one before.
    Unlinked = "unlinked";
    /// The digest of an entry is not that of its content.
    Changed = "changed";
    /// An entry does not parse, or is of a format that this build does not know.
    Unreadable = "unreadable";
    /// An entry stands under another time than its own.
    Misdated = "misdated";
    /// An entry is not found by what it is about.
    Misfiled = "misfiled";
    /// An entry cannot follow the state before it.
    Illegal = "illegal";
    /// A key has two effects.
    SecondEffect = "second_effect";
    /// What the tables say does not follow from the entries.
    State = "state";
    /// The tables are not those that this build made, such as where the guard against changes was dropped.
    Schema = "schema";
    /// The database's own structures are broken.
    Structure = "structure";
    /// The log is shorter than a checkpoint says.
    Truncated = "truncated";
    /// An entry has another digest than a checkpoint says: it, or one before it, was rewritten.
    Rewritten = "rewritten";
    /// A checkpoint is of another log, or the log was rewritten from its first entry.
    OtherLog = "other_log";
    /// A kept checkpoint is malformed, or is not signed by the log's key.
    BadCheckpoint = "bad_checkpoint";
}

/// Is one fault of the log.
///
/// # Shape
/// `{"kind":"changed","seq":7,"why":"…"}`: `seq` is null where the fault is of no entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Its name.
    pub kind: FaultKind,
    /// The place of the entry that it was found at.
    pub seq: Option<u64>,
    /// In words.
    pub why: String,
}

impl Fault {
    /// Makes a fault of an entry.
    #[must_use]
    pub fn at(seq: u64, kind: FaultKind, why: impl Into<String>) -> Self {
        Self {
            kind,
            seq: Some(seq),
            why: why.into(),
        }
    }

    /// Makes a fault of no entry.
    #[must_use]
    pub fn of(kind: FaultKind, why: impl Into<String>) -> Self {
        Self {
            kind,
            seq: None,
            why: why.into(),
        }
    }
}

impl core::fmt::Display for Fault {
    /// Prints `changed at entry 7: …`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.kind.wire())?;
        if let Some(seq) = self.seq {
            write!(f, " at entry {seq}")?;
        }
        write!(f, ": {}", self.why)
    }
}
