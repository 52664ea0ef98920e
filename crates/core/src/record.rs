//! The vocabulary of the journal: every entry it can hold, closed and versioned.
//!
//! The live path and the recovery fold the *same* records through the same `apply` of `call`, `volume` and
//! `pipeline`. This module does *not* say how records are kept; that is the store's.

use crate::approval::{Question, Ruling};
use crate::call::{Aborting, Intent, Note, Receipt, Resolved};
use crate::code::Refusal;
use crate::digest::{Hasher, Sha256};
use crate::ids::{
    ApprovalId, AttemptId, ExecutionId, FencingToken, Generation, Incarnation, JobId, RunId, UnixMs,
    VolumeIdentity,
};
use crate::pipeline::{NewRun, RunEnd, Stage};
use crate::prepared::Preparation;
use crate::retry::Retrial;
use crate::volume::{Durability, End, NewToken, NewVolume};
use serde::{Deserialize, Serialize};

/// Is one entry of the journal.
///
/// # Shape
/// JSON with the entry's `kind` first: `{"kind":"volume_ended","generation":"g-…",…}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// A writing process began its life.
    DaemonStarted {
        /// Its number.
        incarnation: Incarnation,
        /// The boot in which it runs.
        boot_id: String,
        /// The version of the binary.
        version: String,
        /// The policy that every call of this life is judged by; `None` where there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy_sha256: Option<Sha256>,
        /// When.
        at: UnixMs,
    },
    /// A volume was given to an attempt; dirty from here on.
    VolumeOpened {
        /// What was asked for.
        new: NewVolume,
        /// The attempt's number.
        attempt: AttemptId,
        /// What fences its lease.
        fencing_token: FencingToken,
    },
    /// The directory of a volume stands on the disk, marked dirty.
    VolumeReady {
        /// Which volume.
        generation: Generation,
        /// What the disk must say when it is opened again.
        identity: VolumeIdentity,
        /// When.
        at: UnixMs,
    },
    /// The attempt on a volume ended; its token and its keys are retired.
    VolumeEnded {
        /// Which volume.
        generation: Generation,
        /// How.
        end: End,
        /// When.
        at: UnixMs,
    },
    /// A token gave out another one.
    TokenIssued(Box<NewToken>),
    /// The mark of a volume that was dirty for an unknown outcome alone is lifted: a person settled all of them.
    VolumeLifted {
        /// Which volume.
        generation: Generation,
        /// When.
        at: UnixMs,
    },
    /// The files of an ended volume were freed.
    VolumeDestroyed {
        /// Which volume.
        generation: Generation,
        /// When.
        at: UnixMs,
    },
    /// What calls removed or replaced is freed, though their volume lives: they cannot be undone any more.
    PreImagesEvicted {
        /// Whose volume.
        generation: Generation,
        /// Which calls.
        executions: Vec<ExecutionId>,
        /// When.
        at: UnixMs,
    },
    /// The receipts of a generation are past retention. Its keys stay known.
    ReceiptsExpired {
        /// Which generation.
        generation: Generation,
        /// When.
        at: UnixMs,
    },
    /// A call is about to have its effect.
    CallIntended(Box<Intent>),
    /// What came of a call.
    CallReceipted {
        /// Which execution.
        execution_id: ExecutionId,
        /// What came of it.
        receipt: Receipt,
    },
    /// What was done of a call is taken back; its outcome follows.
    CallAborting {
        /// Which execution.
        execution_id: ExecutionId,
        /// Why, and what it is refused with.
        aborting: Aborting,
        /// When.
        at: UnixMs,
    },
    /// It is proven that a call had no effect; its key is free again.
    CallFreed {
        /// Which execution.
        execution_id: ExecutionId,
        /// The evidence, in words.
        why: String,
        /// Says that a person settled it.
        resolved: Option<Resolved>,
        /// When.
        at: UnixMs,
    },
    /// An effect may or may not have happened; only a person settles it.
    CallUnknown {
        /// Which execution.
        execution_id: ExecutionId,
        /// The evidence, in words.
        why: String,
        /// When.
        at: UnixMs,
    },
    /// Something without an effect of its own: a replay, a conflict, a read, a refusal.
    CallNoted(Box<Note>),
    /// A run of a whole job began.
    RunStarted(Box<NewRun>),
    /// A stage of a run is proven.
    RunStaged {
        /// Which run.
        run: RunId,
        /// What is proven.
        stage: Stage,
        /// When.
        at: UnixMs,
    },
    /// A run ended.
    RunEnded {
        /// Which run.
        run: RunId,
        /// How.
        end: RunEnd,
        /// When.
        at: UnixMs,
    },
    /// A certification attempt got its verdict; at most one a generation.
    AttemptJudged(Box<Judgement>),
    /// A draft that ended clean was sealed.
    DraftSealed(Box<Sealing>),
    /// A certificate was used for a merge; at most one target a certificate.
    CertificateConsumed(Consumption),
    /// A worktree was restored, or the restoration was refused.
    WorktreeRestored(Restoration),
    /// A command was tried again, or was not.
    CommandRetried(Retrial),
    /// A job prepared a tree in a pinned worktree; it takes the place of an older one of the job.
    TreePrepared(Preparation),
    /// A person is asked about a call; nothing of it was done.
    ApprovalAsked(Box<Question>),
    /// A person decided.
    ApprovalDecided {
        /// Which question.
        approval_id: ApprovalId,
        /// What was decided, by whom and when.
        ruling: Ruling,
    },
}

/// Is the verdict on one certification attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judgement {
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The generation it ran in.
    pub generation: Generation,
    /// The sealed input.
    pub proposal: Sha256,
    /// The git tree of the input, as hexadecimal digits.
    pub tree: String,
    /// Why it was refused; `None` is a pass.
    pub refusal: Option<Refusal>,
    /// The digest of the signed envelope.
    pub certificate: Sha256,
    /// When.
    pub at: UnixMs,
}

/// Says what a draft was sealed into; sealing it again is its own event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sealing {
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The draft.
    pub generation: Generation,
    /// The proposal.
    pub proposal: Sha256,
    /// Its git tree, as hexadecimal digits.
    pub tree: String,
    /// How many entries it holds.
    pub entries: u64,
    /// When.
    pub at: UnixMs,
}

/// Says for what a certificate was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Consumption {
    /// The generation that the certificate is of.
    pub generation: Generation,
    /// The digest of the signed envelope.
    pub certificate: Sha256,
    /// The repository merged into.
    pub repository: String,
    /// The ref merged into.
    pub target: String,
    /// The tree merged, as hexadecimal digits.
    pub tree: String,
    /// When it was first used.
    pub at: UnixMs,
}

/// Counts what one restoration of a worktree met; holds no stderr, path or content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restoration {
    /// The job it was for, where there is one.
    pub job: Option<JobId>,
    /// The tree asked for, as hexadecimal digits.
    pub tree: String,
    /// Why it was refused; `None` is a success. Carries no path.
    pub code: Option<crate::code::Code>,
    /// How often the lock was found held.
    pub collisions: u32,
    /// How many stale locks were adopted in place.
    pub adoptions: u32,
    /// How long it waited for the lock.
    pub waited_ms: u64,
    /// The git that did it, where one was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<Executable>,
    /// When.
    pub at: UnixMs,
}

/// Names an executable that was resolved once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Executable {
    /// Its absolute path, links resolved, fit to be shown.
    pub path: String,
    /// The digest of its bytes.
    pub sha256: Sha256,
}

/// Says when a record has to be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sync {
    /// Whenever the store syncs for another reason: it asks for no sync of its own. A power cut may lose it.
    Whenever,
    /// Soon, without anyone waiting; a power cut may lose it.
    Later,
    /// Before anyone is told.
    Now,
}

impl Record {
    /// Says when it happened.
    #[must_use]
    pub fn at(&self) -> UnixMs {
        match self {
            Record::DaemonStarted { at, .. }
            | Record::VolumeReady { at, .. }
            | Record::VolumeEnded { at, .. }
            | Record::VolumeLifted { at, .. }
            | Record::VolumeDestroyed { at, .. }
            | Record::PreImagesEvicted { at, .. }
            | Record::ReceiptsExpired { at, .. }
            | Record::CallAborting { at, .. }
            | Record::CallFreed { at, .. }
            | Record::CallUnknown { at, .. }
            | Record::RunStaged { at, .. }
            | Record::RunEnded { at, .. } => *at,
            Record::VolumeOpened { new, .. } => new.at,
            Record::TokenIssued(new) => new.at,
            Record::CallIntended(intent) => intent.at,
            Record::CallReceipted { receipt, .. } => receipt.at,
            Record::CallNoted(note) => note.at,
            Record::RunStarted(new) => new.at,
            Record::AttemptJudged(judgement) => judgement.at,
            Record::DraftSealed(sealing) => sealing.at,
            Record::CertificateConsumed(consumption) => consumption.at,
            Record::WorktreeRestored(restoration) => restoration.at,
            Record::CommandRetried(retrial) => retrial.at,
            Record::TreePrepared(preparation) => preparation.at,
            Record::ApprovalAsked(question) => question.at,
            Record::ApprovalDecided { ruling, .. } => ruling.at,
        }
    }

    /// Says when this record has to be on the disk, given what its call survives ([`Intent::survives`]).
    ///
    /// # Durability
    /// Records of calls in a volume of durability `process` survive the death of the process without a sync,
    /// since another boot makes the generation dirty and retires its keys. Notes have no effect to protect: replays,
    /// reads and refusals cost no sync at all, not even later.
    #[must_use]
    pub fn sync(&self, call: Durability) -> Sync {
        match self {
            Record::CallIntended(_)
            | Record::CallReceipted { .. }
            | Record::CallAborting { .. }
            | Record::CallFreed { .. }
            | Record::CallUnknown { .. } => match call {
                Durability::Process => Sync::Later,
                Durability::Power | Durability::PowerBestEffort => Sync::Now,
            },
            Record::CallNoted(_) => Sync::Whenever,
            // Whether a pre-image is still there, the disk itself says.
            Record::WorktreeRestored(_) | Record::CommandRetried(_) | Record::PreImagesEvicted { .. } => {
                Sync::Later
            }
            Record::DaemonStarted { .. }
            | Record::VolumeOpened { .. }
            | Record::VolumeReady { .. }
            | Record::VolumeEnded { .. }
            | Record::VolumeLifted { .. }
            | Record::TokenIssued(_)
            | Record::VolumeDestroyed { .. }
            | Record::ReceiptsExpired { .. }
            | Record::RunStarted(_)
            | Record::RunStaged { .. }
            | Record::RunEnded { .. }
            | Record::AttemptJudged(_)
            | Record::DraftSealed(_)
            | Record::CertificateConsumed(_)
            | Record::TreePrepared(_)
            | Record::ApprovalAsked(_)
            | Record::ApprovalDecided { .. } => Sync::Now,
        }
    }
}

/// Is a record with its place in the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its place, from 1, without gaps.
    pub seq: u64,
    /// The format of `record`; a newer one is refused.
    pub version: u16,
    /// What happened.
    pub record: Record,
    /// The digest of the entry before; all zeros for the first.
    pub prev: Sha256,
    /// The digest of this one.
    pub hash: Sha256,
}

/// The format of the records that this build writes.
pub const RECORD_VERSION: u16 = 1;

/// Chains one entry to the one before.
///
/// # Shape
/// SHA-256 over `semel.chain.v1`, a zero byte, `prev`, `seq` (8 bytes, big endian), `version` (2 bytes), and the
/// bytes of the record as they are stored.
#[must_use]
pub fn chain(prev: &Sha256, seq: u64, version: u16, stored: &[u8]) -> Sha256 {
    let mut hasher = Hasher::new();
    hasher.update(b"semel.chain.v1\0");
    hasher.update(prev.as_bytes());
    hasher.update(&seq.to_be_bytes());
    hasher.update(&version.to_be_bytes());
    hasher.update(stored);
    hasher.finish()
}

/// Says that a record cannot follow the state before it: the journal is not one that we wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("illegal record: {0}")]
pub struct IllegalRecord(pub String);

#[cfg(test)]
mod tests;
