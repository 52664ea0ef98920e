//! The call machine: does this request execute, replay, wait, or is it refused?
//!
//! `admit` decides from what is recorded; `apply` folds records into that state. It does *not* resolve paths,
//! check policies or touch files.

use crate::code::{Code, Refusal};
use crate::command::Ran;
use crate::digest::Fingerprint;
use crate::effect::{Changed, Effect};
use crate::ids::{
    AttemptId, ExecutionId, FencingToken, Generation, IdempotencyKey, JobId, Principal, UnixMs,
};
use crate::path::RelPath;
use crate::record::{IllegalRecord, Record};
use crate::upstream::Heard;
use crate::volume::Durability;
use serde::{Deserialize, Serialize};

/// Says within what a key means one effect.
///
/// # Shape
/// `{"principal":"…","job":"…","generation":"g-…"}`: `generation` is null for effects outside of the files, whose
/// domain is the whole job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Who calls; stable when its token is issued again.
    pub principal: Principal,
    /// The job.
    pub job: JobId,
    /// The generation; `None` where the effect is the job's.
    pub generation: Option<Generation>,
}

/// Says where a call came from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The door: `http`, `mcp`, `cli`.
    pub door: String,
    /// The caller's own name for itself, cut to 200 bytes.
    pub user_agent: Option<String>,
    /// The caller's W3C trace context.
    pub traceparent: Option<String>,
    /// Who was at the other end: `tcp:ADDRESS:PORT`, or `unix:pid=PID,uid=UID`.
    pub peer: Option<String>,
    /// The revision of the MCP specification that it spoke.
    pub mcp_era: Option<String>,
}

/// Is what is to be done, recorded before it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// The execution that will do it.
    pub execution_id: ExecutionId,
    /// Within what the key means one effect.
    pub scope: Scope,
    /// The caller's name for the effect.
    pub key: IdempotencyKey,
    /// What the call says, so that another call under the key is seen.
    pub fingerprint: Fingerprint,
    /// By which rules `fingerprint` was made; a retry is compared by them.
    pub fingerprint_version: FingerprintVersion,
    /// The tool.
    pub tool: String,
    /// The path, as the caller means it; the root for a call on many paths.
    pub path: RelPath,
    /// The attempt.
    pub attempt: AttemptId,
    /// The generation whose files are touched.
    pub generation: Generation,
    /// The fence of the caller's lease; compared in the writer.
    pub fencing_token: FencingToken,
    /// What the volume's calls survive; see [`Intent::survives`].
    pub durability: Durability,
    /// What is done, in this order: all of it, or nothing. Each leaves evidence under its own slot.
    pub effects: Vec<Effect>,
    /// What the answer says beyond the effects.
    pub facts: Facts,
    /// Where it came from.
    pub source: Source,
    /// When.
    pub at: UnixMs,
}

/// Names the rules by which a fingerprint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FingerprintVersion(pub u16);

/// Holds what an answer says beyond the effects themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// How many places an edit replaced.
    pub replacements: Option<u64>,
    /// Says where a patch was not applied exactly as it says.
    pub notes: Vec<String>,
}

/// Is what came of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// When.
    pub at: UnixMs,
    /// The answer.
    pub outcome: Outcome,
    /// Says that recovery wrote it from the evidence.
    pub recovered: Option<Recovered>,
    /// Says that a person settled it.
    pub resolved: Option<Resolved>,
    /// Names a call under another key that asked for the very same, not long before.
    pub possible_duplicate_of: Option<ExecutionId>,
    /// How long it took, from the call's arrival; not known of a call that recovery settled.
    pub took_us: Option<u64>,
    /// How much of it was waiting: for a path, or for the same call that ran already.
    pub waited_us: Option<u64>,
}

/// Is the answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// The effect happened.
    Done(Done),
    /// It was refused after its intent was recorded; replays too.
    Refused {
        /// With this.
        refusal: Refusal,
    },
}

/// Is the answer to a call whose effects happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// What became of each path, in the order of the effects; empty where there was nothing to do.
    pub changed: Vec<Changed>,
    /// What came of the command, of a call that ran one; `None` where that was not seen, but settled by a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Box<Ran>>,
    /// What another server answered, of a call that it got; `None` where that was not seen, but settled by a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarded: Option<Box<Heard>>,
}

/// Says that a person settled an outcome that could not be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resolved {
    /// Who, by their own word.
    pub by: String,
    /// Why, in words.
    pub note: String,
}

/// Says that what was done of a call is taken back, recorded before it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aborting {
    /// With what the call is refused once it is taken back; `None` frees its key.
    pub refusal: Option<Refusal>,
    /// Why, in words.
    pub why: String,
    /// How many effects may have happened, the first ones; the others are known not to have.
    pub begun: usize,
}

/// Marks a receipt that recovery wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recovered {
    /// The evidence, in words.
    pub evidence: String,
}

impl Intent {
    /// Says what the records of this call survive.
    ///
    /// # Durability
    /// The key of a call whose domain is the job is not retired by another boot: its records are always synced,
    /// whatever its volume is asked to survive.
    #[must_use]
    pub fn survives(&self) -> Durability {
        match self.scope.generation {
            Some(_) => self.durability,
            None => Durability::Power,
        }
    }

    /// Makes the answer of this call, given that its effects happened.
    #[must_use]
    pub fn done(&self) -> Done {
        Done {
            changed: self.effects.iter().map(Effect::changed).collect(),
            command: None,
            forwarded: None,
        }
    }
}

/// Is something that happened to a call without an effect of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// What happened.
    pub event: Event,
    /// The tool asked for.
    pub tool: String,
    /// The path asked for, where there is one.
    pub path: Option<RelPath>,
    /// The job, where the token names one.
    pub job: Option<JobId>,
    /// The attempt, where the token names one.
    pub attempt: Option<AttemptId>,
    /// The generation, where the token names one.
    pub generation: Option<Generation>,
    /// The key, where one was sent.
    pub key: Option<IdempotencyKey>,
    /// What the call said, where it could be read.
    pub fingerprint: Option<Fingerprint>,
    /// The execution that it is linked to: a replay is its own event.
    pub execution_id: Option<ExecutionId>,
    /// Where it came from.
    pub source: Source,
    /// How long it took.
    pub took_us: u64,
    /// How much of it was waiting: for a path, or for the same call that ran already.
    pub waited_us: Option<u64>,
    /// When.
    pub at: UnixMs,
}

/// Names what a [`Note`] is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// Answered from a receipt.
    Replayed,
    /// Answered from the disk, with no effect.
    Read,
    /// Refused before any intent.
    Refused {
        /// With this code.
        code: Code,
        /// And this finer reason.
        reason: Option<String>,
    },
    /// So many refusals left no note of their own since the last such note: noise is counted, sampled, bounded.
    Suppressed {
        /// With this code.
        code: Code,
        /// How many.
        count: u64,
    },
}

/// Is a call whose outcome is not recorded yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenCall {
    /// What is to be done.
    pub intent: Intent,
    /// Says that what was done is taken back.
    pub aborting: Option<Aborting>,
}

/// Is how a person settles an outcome that could not be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settled {
    /// The effects happened: the key gets its receipt.
    Happened,
    /// They did not, or were taken back by hand: the key is free.
    NeverHappened,
}

/// Is what the journal knows of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case", deny_unknown_fields)]
pub enum CallState {
    /// Its effects are under way.
    Running {
        /// What is to be done.
        intent: Box<Intent>,
        /// Says that what was done is taken back.
        aborting: Option<Aborting>,
    },
    /// It has its receipt.
    Finished {
        /// What was to be done.
        intent: Box<Intent>,
        /// What came of it.
        receipt: Receipt,
    },
    /// Its effect may or may not have happened.
    Unknown {
        /// What was to be done.
        intent: Box<Intent>,
        /// The evidence, in words.
        why: String,
    },
}

impl CallState {
    /// Gives what was to be done.
    #[must_use]
    pub fn intent(&self) -> &Intent {
        match self {
            Self::Running { intent, .. } | Self::Finished { intent, .. } | Self::Unknown { intent, .. } => {
                intent
            }
        }
    }
}

/// Is what a caller asks for, once it is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the call says, by the rules of each version that is still known, newest first.
    pub fingerprints: Vec<(FingerprintVersion, Fingerprint)>,
    /// The tool.
    pub tool: String,
    /// The path, as the caller means it.
    pub path: RelPath,
}

/// Is what becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing is known of the key: run it.
    Execute,
    /// It ran: answer from the receipt.
    Replay {
        /// What was to be done, and by which execution.
        intent: Box<Intent>,
        /// What came of it.
        receipt: Receipt,
    },
    /// The same call is running: wait for its receipt, or answer `call_in_flight`.
    Wait {
        /// The execution that runs.
        execution_id: ExecutionId,
    },
    /// It is refused.
    Refuse(Refusal),
}

/// Decides what becomes of a request whose key may be known.
///
/// The conflict is looked for before anything else: a key that is running with another body is a conflict, not
/// a reason to wait.
#[must_use]
pub fn admit(prior: Option<&CallState>, request: &Request) -> Decision {
    let Some(state) = prior else {
        return Decision::Execute;
    };
    let intent = state.intent();
    let made = (intent.fingerprint_version, intent.fingerprint);
    if let Some(reason) = difference((&intent.tool, &intent.path, made), request) {
        return Decision::Refuse(
            Refusal::new(Code::ReplayConflict, "the key belongs to another call")
                .reason(reason)
                .name(intent.execution_id.as_str()),
        );
    }
    match state {
        CallState::Running { .. } => Decision::Wait {
            execution_id: intent.execution_id.clone(),
        },
        CallState::Finished { receipt, .. } => Decision::Replay {
            intent: Box::new(intent.clone()),
            receipt: receipt.clone(),
        },
        CallState::Unknown { why, .. } => Decision::Refuse(
            Refusal::new(Code::OutcomeUnknown, why.clone()).name(intent.execution_id.as_str()),
        ),
    }
}

/// Says in what a request differs from the call that is known under its key.
pub(crate) fn difference(
    (tool, path, made): (&str, &RelPath, (FingerprintVersion, Fingerprint)),
    request: &Request,
) -> Option<&'static str> {
    if tool != request.tool {
        Some("tool_mismatch")
    } else if *path != request.path {
        Some("path_mismatch")
    } else if !request.fingerprints.contains(&made) {
        Some("body_mismatch")
    } else {
        None
    }
}

/// Folds one record into the state of its key.
///
/// # Errors
/// [`IllegalRecord`] where the record cannot follow the state.
pub fn apply(prior: Option<CallState>, record: &Record) -> Result<Option<CallState>, IllegalRecord> {
    match record {
        Record::CallIntended(intent) => match prior {
            None => Ok(Some(CallState::Running {
                intent: intent.clone(),
                aborting: None,
            })),
            Some(_) => Err(IllegalRecord("an intent for a key that is known".to_owned())),
        },
        Record::CallAborting {
            execution_id,
            aborting,
            ..
        } => match prior {
            Some(CallState::Running {
                intent,
                aborting: None,
            }) if intent.execution_id == *execution_id => Ok(Some(CallState::Running {
                intent,
                aborting: Some(aborting.clone()),
            })),
            _ => Err(IllegalRecord(
                "a call is taken back that is not running".to_owned(),
            )),
        },
        Record::CallReceipted {
            execution_id,
            receipt,
        } => {
            let intent = unsettled(prior, execution_id, receipt.resolved.as_ref())?;
            Ok(Some(CallState::Finished {
                intent,
                receipt: receipt.clone(),
            }))
        }
        Record::CallFreed {
            execution_id,
            resolved,
            ..
        } => unsettled(prior, execution_id, resolved.as_ref()).map(|_| None),
        Record::CallUnknown {
            execution_id, why, ..
        } => {
            let intent = unsettled(prior, execution_id, None)?;
            Ok(Some(CallState::Unknown {
                intent,
                why: why.clone(),
            }))
        }
        Record::DaemonStarted { .. }
        | Record::VolumeOpened { .. }
        | Record::VolumeReady { .. }
        | Record::VolumeEnded { .. }
        | Record::VolumeLifted { .. }
        | Record::TokenIssued(_)
        | Record::VolumeDestroyed { .. }
        | Record::PreImagesEvicted { .. }
        | Record::ReceiptsExpired { .. }
        | Record::CallNoted(_)
        | Record::RunStarted(_)
        | Record::RunStaged { .. }
        | Record::RunEnded { .. }
        | Record::AttemptJudged(_)
        | Record::CertificateConsumed(_)
        | Record::DraftSealed(_)
        | Record::WorktreeRestored(_)
        | Record::CommandRetried(_)
        | Record::TreePrepared(_)
        | Record::ApprovalAsked(_)
        | Record::ApprovalDecided { .. } => Ok(prior),
    }
}

/// Gives the intent of a call that can still be settled: one that runs, or, by a person alone, one whose outcome is
/// unknown.
fn unsettled(
    prior: Option<CallState>,
    execution_id: &ExecutionId,
    resolved: Option<&Resolved>,
) -> Result<Box<Intent>, IllegalRecord> {
    match (prior, resolved) {
        (Some(CallState::Running { intent, .. }), _) | (Some(CallState::Unknown { intent, .. }), Some(_))
            if intent.execution_id == *execution_id =>
        {
            Ok(intent)
        }
        _ => Err(IllegalRecord(
            "the end of a call that cannot be settled so".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests;
