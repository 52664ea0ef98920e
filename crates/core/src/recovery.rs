//! Recovery: what became of the calls that were running when the gateway died?
//!
//! The filesystem itself is the evidence. This module decides from what was seen; it does *not* look, and what
//! it plans has no new effect on any file that an agent can name.

use crate::call::{Effect, Intent};
use crate::ids::{ExecutionId, FileId};
use serde::{Deserialize, Serialize};

/// Is what was seen of one open intent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// What lies at `staging/<execution_id>`.
    pub staged: Option<FileId>,
    /// What lies at `trash/<execution_id>`.
    pub trashed: Option<FileId>,
    /// What the target's name names now.
    pub target: Option<FileId>,
}

/// Says what is to be tidied once the outcome is recorded; none of it can be named by an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tidy {
    /// Nothing.
    Nothing,
    /// The staged file is dropped.
    DropStaged,
    /// The pre-image, exchanged out into `staging/`, goes to `trash/`.
    KeepPreImage,
}

/// Is what became of one open intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The effect happened: it gets its receipt.
    Happened {
        /// The evidence, in words.
        evidence: String,
        /// What is tidied afterwards.
        tidy: Tidy,
    },
    /// It did not: the key is freed.
    NeverHappened {
        /// The evidence, in words.
        evidence: String,
        /// What is tidied afterwards.
        tidy: Tidy,
    },
    /// It cannot be told; nothing is touched.
    Unknown {
        /// The evidence, in words.
        evidence: String,
    },
}

/// Decides what became of one open intent, within one boot.
///
/// `staging/` and `trash/` alone decide: no agent can write there, and each holds at most what the execution
/// put there. The target decides nothing: whatever it names now, an outside process may have put there.
#[must_use]
pub fn resolve(intent: &Intent, seen: &Observation) -> Resolution {
    match &intent.effect {
        Effect::Install { staged, before, .. } => install(staged, before.as_ref().map(|b| &b.id), seen),
        Effect::Remove { before } => remove(&before.id, seen),
    }
}

fn install(staged: &FileId, before: Option<&FileId>, seen: &Observation) -> Resolution {
    match (&seen.staged, &seen.trashed) {
        (Some(there), None) if there == staged => Resolution::NeverHappened {
            evidence: "the staged file still lies in staging".to_owned(),
            tidy: Tidy::DropStaged,
        },
        (Some(there), None) if Some(there) == before => Resolution::Happened {
            evidence: "the pre-image lies in staging".to_owned(),
            tidy: Tidy::KeepPreImage,
        },
        (None, Some(there)) if Some(there) == before => Resolution::Happened {
            evidence: "the pre-image lies in trash".to_owned(),
            tidy: Tidy::Nothing,
        },
        (None, None) if before.is_none() => Resolution::Happened {
            evidence: "the staged file left staging for a name that was free".to_owned(),
            tidy: Tidy::Nothing,
        },
        _ => Resolution::Unknown {
            evidence: "staging and trash hold neither the staged file nor the pre-image".to_owned(),
        },
    }
}

fn remove(target: &FileId, seen: &Observation) -> Resolution {
    match (&seen.trashed, &seen.target) {
        (Some(there), _) if there == target => Resolution::Happened {
            evidence: "the removed file lies in trash".to_owned(),
            tidy: Tidy::Nothing,
        },
        (None, _) => Resolution::NeverHappened {
            evidence: "trash holds nothing of this execution".to_owned(),
            tidy: Tidy::Nothing,
        },
        (Some(_), _) => Resolution::Unknown {
            evidence: "trash holds another file than the one that was to be removed".to_owned(),
        },
    }
}

/// Decides what became of one open intent, across boots: what staging and trash say must be what the target says.
///
/// A power cut may have kept one side of a rename and lost the other.
#[must_use]
pub fn resolve_across_boots(intent: &Intent, seen: &Observation) -> Resolution {
    let (before, after) = match &intent.effect {
        Effect::Install { staged, before, .. } => (before.as_ref().map(|b| &b.id), Some(staged)),
        Effect::Remove { before } => (Some(&before.id), None),
    };
    let agreed = |resolution: Resolution, target: Option<&FileId>| {
        if seen.target.as_ref() == target {
            resolution
        } else {
            Resolution::Unknown {
                evidence: "after another boot, the target disagrees with staging and trash".to_owned(),
            }
        }
    };
    match resolve(intent, seen) {
        happened @ Resolution::Happened { .. } => agreed(happened, after),
        never @ Resolution::NeverHappened { .. } => agreed(never, before),
        unknown @ Resolution::Unknown { .. } => unknown,
    }
}

/// Decides for all open intents, in the order of the journal.
#[must_use]
pub fn plan<'a>(open: impl IntoIterator<Item = (&'a Intent, Observation)>) -> Vec<(ExecutionId, Resolution)> {
    open.into_iter()
        .map(|(intent, seen)| (intent.execution_id.clone(), resolve(intent, &seen)))
        .collect()
}

#[cfg(test)]
mod tests;
