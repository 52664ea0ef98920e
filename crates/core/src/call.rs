//! The call machine: does this request execute, replay, wait, or is it refused?
//!
//! `admit` decides from what is recorded; `apply` folds records into that state. It does *not* resolve paths,
//! check policies or touch files.

use crate::code::{Code, Refusal};
use crate::digest::{Fingerprint, Sha256};
use crate::ids::{
    AttemptId, ExecutionId, FencingToken, FileId, Generation, IdempotencyKey, JobId, Principal, UnixMs,
};
use crate::path::RelPath;
use crate::record::{IllegalRecord, Record};
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

/// Is the evidence by which recovery tells whether an effect happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case", deny_unknown_fields)]
pub enum Effect {
    /// A staged file takes a name.
    Install {
        /// The staged file.
        staged: FileId,
        /// The digest of its content.
        sha256: Sha256,
        /// The length of its content.
        size_bytes: u64,
        /// What held the name before; `None` where the name was free.
        before: Option<Before>,
    },
    /// A name is taken away; what it named goes to `trash/`.
    Remove {
        /// What the name names.
        before: Before,
    },
}

/// Is what a name named before the effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Before {
    /// Which file.
    pub id: FileId,
    /// The digest of its content; `None` for what has none (a symbolic link), or above the bound for digests.
    pub sha256: Option<Sha256>,
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
    /// The tool.
    pub tool: String,
    /// The path, as the caller means it.
    pub path: RelPath,
    /// The path that is acted on, after links inside the root were followed.
    pub resolved: RelPath,
    /// The attempt.
    pub attempt: AttemptId,
    /// The generation whose files are touched.
    pub generation: Generation,
    /// The fence of the caller's lease; compared in the writer.
    pub fencing_token: FencingToken,
    /// What the volume's calls survive; see [`Intent::survives`].
    pub durability: Durability,
    /// The evidence to look for.
    pub effect: Effect,
    /// Facts that the receipt of a recovered call is made from.
    pub result: ResultFacts,
    /// Where it came from.
    pub source: Source,
    /// When.
    pub at: UnixMs,
}

/// Holds what an answer says beyond the effect itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultFacts {
    /// Says that the pre-image had other names, which keep the old content.
    pub hard_link_broken: Option<u64>,
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

/// Is the answer to a call whose effect happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// The path acted on.
    pub path: RelPath,
    /// The digest before; `None` where there was nothing.
    pub sha256_before: Option<Sha256>,
    /// The digest after; `None` where there is nothing.
    pub sha256_after: Option<Sha256>,
    /// The length after.
    pub size_bytes: Option<u64>,
    /// See [`ResultFacts::hard_link_broken`].
    pub hard_link_broken: Option<u64>,
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

    /// Makes the answer of this call, given that its effect happened.
    #[must_use]
    pub fn done(&self) -> Done {
        let (sha256_before, sha256_after, size_bytes) = match &self.effect {
            Effect::Install {
                sha256,
                size_bytes,
                before,
                ..
            } => (
                before.as_ref().and_then(|b| b.sha256),
                Some(*sha256),
                Some(*size_bytes),
            ),
            Effect::Remove { before } => (before.sha256, None, None),
        };
        Done {
            path: self.resolved.clone(),
            sha256_before,
            sha256_after,
            size_bytes,
            hard_link_broken: self.result.hard_link_broken,
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

/// Is what the journal knows of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case", deny_unknown_fields)]
pub enum CallState {
    /// Its effect is under way.
    Running {
        /// What is to be done.
        intent: Box<Intent>,
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
            Self::Running { intent } | Self::Finished { intent, .. } | Self::Unknown { intent, .. } => intent,
        }
    }
}

/// Is what a caller asks for, once it is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the call says.
    pub fingerprint: Fingerprint,
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
        /// The execution that ran.
        execution_id: ExecutionId,
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
    if let Some(reason) = difference(intent, request) {
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
            execution_id: intent.execution_id.clone(),
            receipt: receipt.clone(),
        },
        CallState::Unknown { why, .. } => Decision::Refuse(
            Refusal::new(Code::OutcomeUnknown, why.clone()).name(intent.execution_id.as_str()),
        ),
    }
}

fn difference(intent: &Intent, request: &Request) -> Option<&'static str> {
    if intent.tool != request.tool {
        Some("tool_mismatch")
    } else if intent.path != request.path {
        Some("path_mismatch")
    } else if intent.fingerprint != request.fingerprint {
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
    let illegal = |what: &str| IllegalRecord(what.to_owned());
    let same = |intent: &Intent, id: &ExecutionId| intent.execution_id == *id;
    match record {
        Record::CallIntended(intent) => match prior {
            None => Ok(Some(CallState::Running {
                intent: intent.clone(),
            })),
            Some(_) => Err(illegal("an intent for a key that is known")),
        },
        Record::CallReceipted {
            execution_id,
            receipt,
        } => match prior {
            Some(CallState::Running { intent }) if same(&intent, execution_id) => {
                Ok(Some(CallState::Finished {
                    intent,
                    receipt: receipt.clone(),
                }))
            }
            _ => Err(illegal("a receipt for a call that is not running")),
        },
        Record::CallFreed { execution_id, .. } => match prior {
            Some(CallState::Running { intent }) if same(&intent, execution_id) => Ok(None),
            _ => Err(illegal("a call is freed that is not running")),
        },
        Record::CallUnknown {
            execution_id, why, ..
        } => match prior {
            Some(CallState::Running { intent }) if same(&intent, execution_id) => {
                Ok(Some(CallState::Unknown {
                    intent,
                    why: why.clone(),
                }))
            }
            _ => Err(illegal("the outcome of a call is unknown that is not running")),
        },
        Record::DaemonStarted { .. }
        | Record::VolumeOpened { .. }
        | Record::VolumeReady { .. }
        | Record::VolumeEnded { .. }
        | Record::VolumeDestroyed { .. }
        | Record::CallNoted(_)
        | Record::RunStarted(_)
        | Record::RunStaged { .. }
        | Record::RunEnded { .. }
        | Record::AttemptJudged(_)
        | Record::CertificateConsumed(_)
        | Record::DraftSealed(_)
        | Record::WorktreeRestored(_) => Ok(prior),
    }
}

#[cfg(test)]
mod tests;
