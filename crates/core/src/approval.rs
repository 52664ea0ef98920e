//! The approval of a call by a person: what is asked, what is decided, and what follows for the call.
//!
//! An approval is bound to key, fingerprint, principal and generation, and to the very places and contents that the
//! person was shown: approving one thing never runs another. It does *not* say which calls need one; `policy` does.

use crate::call::{Request, Scope, Source, difference};
use crate::code::{Code, Refusal};
use crate::digest::{Fingerprint, Sha256};
use crate::effect::Changed;
use crate::ids::{ApprovalId, AttemptId, FencingToken, Generation, IdempotencyKey, UnixMs};
use crate::path::RelPath;
use crate::policy::Tree;
use crate::record::{IllegalRecord, Record};
use crate::volume::Role;
use serde::{Deserialize, Serialize};

/// Is a question to a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Its id.
    pub approval_id: ApprovalId,
    /// Within what the key means one effect.
    pub scope: Scope,
    /// The caller's name for the effect; `None` for a call that reads, which has no effect.
    pub key: Option<IdempotencyKey>,
    /// What the call says.
    pub fingerprint: Fingerprint,
    /// By which rules `fingerprint` was made.
    pub fingerprint_version: crate::call::FingerprintVersion,
    /// The tool.
    pub tool: String,
    /// The path, as the caller means it; the root for a call on many paths.
    pub path: RelPath,
    /// The attempt.
    pub attempt: AttemptId,
    /// The generation whose files are meant.
    pub generation: Generation,
    /// The fence of the caller's lease; compared in the writer.
    pub fencing_token: FencingToken,
    /// The role of the volume.
    pub role: Role,
    /// What the call would do.
    pub plan: Plan,
    /// Which rule asks, from 1.
    pub rule: u32,
    /// The rule's own reason.
    pub reason: Option<String>,
    /// The policy that the rule stands in.
    pub policy_sha256: Sha256,
    /// Where the call came from.
    pub source: Source,
    /// When it was asked.
    pub at: UnixMs,
    /// Until when it can be decided.
    pub expires_at: UnixMs,
    /// How long a decision is good for, in milliseconds.
    pub lasts_ms: u64,
}

/// Names the call that a question is about, within its scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Subject {
    /// A call that has an effect, by its key.
    Key(IdempotencyKey),
    /// A call that reads, by what it says.
    Read(Fingerprint),
}

impl Question {
    /// Names the call that it is about.
    #[must_use]
    pub fn subject(&self) -> Subject {
        match &self.key {
            Some(key) => Subject::Key(key.clone()),
            None => Subject::Read(self.fingerprint),
        }
    }
}

/// Is what a call would do: digests and sizes, never the contents of files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The paths that it would read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<RelPath>,
    /// What would become of which path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<Changed>,
    /// The directories that would go with all that is in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trees: Vec<Tree>,
    /// The command that it would run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Commanded>,
    /// As things stand it would be refused, with this; whoever calls is not told before a person was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Code>,
}

/// Shows a command to the person who decides about it: nobody could by a digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commanded {
    /// The line for the shell, or the program and its arguments as a JSON list; the first 4,096 characters.
    pub says: String,
    /// The digest of all of it.
    pub sha256: Sha256,
    /// The names of the variables that it is given; their values are the caller's secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
}

impl Commanded {
    /// The most characters that are shown.
    const SHOWN: usize = 4096;

    /// Shows a command.
    #[must_use]
    pub fn new(says: &str, env: Vec<String>) -> Self {
        Self {
            says: says.chars().take(Self::SHOWN).collect(),
            sha256: Sha256::of(says.as_bytes()),
            env,
        }
    }
}

/// Names a person's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The call may run, once.
    Approve,
    /// It may not.
    Deny,
}

/// Is what a person decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ruling {
    /// The answer.
    pub decision: Decision,
    /// Who, by their own word.
    pub by: String,
    /// Why, in words; may be empty.
    pub note: String,
    /// When.
    pub at: UnixMs,
}

/// Is a question with its answer, if it has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// What was asked.
    pub question: Question,
    /// What was decided; the first decision stands.
    pub ruling: Option<Ruling>,
}

/// Says where an approval stands at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has decided.
    Pending,
    /// It may run.
    Approved,
    /// It may not.
    Denied,
    /// Nobody decided in time, or the approval was not used in time.
    Expired,
}

impl Standing {
    /// Gives the word that travels on every wire.
    #[must_use]
    pub const fn wire(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
        }
    }
}

/// Says what a decision does to an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruled {
    /// It is recorded.
    First,
    /// The same was decided before: it is answered again.
    Same,
}

impl Approval {
    /// Says where it stands.
    #[must_use]
    pub fn standing(&self, now: UnixMs) -> Standing {
        match &self.ruling {
            None if now >= self.question.expires_at => Standing::Expired,
            None => Standing::Pending,
            Some(ruling) => match ruling.decision {
                Decision::Deny => Standing::Denied,
                Decision::Approve if now >= self.ends_at() => Standing::Expired,
                Decision::Approve => Standing::Approved,
            },
        }
    }

    /// Says until when the question, or its answer, is good.
    #[must_use]
    pub fn ends_at(&self) -> UnixMs {
        match &self.ruling {
            None => self.question.expires_at,
            Some(ruling) => UnixMs(ruling.at.0.saturating_add(self.question.lasts_ms)),
        }
    }

    /// Says whether the same call is asked about anew: a call that reads has no key, whose one answer would stand.
    #[must_use]
    pub fn lapsed(&self, now: UnixMs) -> bool {
        self.question.key.is_none() && now >= self.ends_at()
    }

    /// Decides whether a person's answer stands.
    ///
    /// # Errors
    /// `precondition_failed`, reason `already_decided`, where another answer was given first; `approval_expired` where
    /// it comes too late.
    pub fn rule(&self, ruling: &Ruling) -> Result<Ruled, Refusal> {
        let id = self.question.approval_id.as_str();
        match &self.ruling {
            Some(first) if first.decision == ruling.decision => Ok(Ruled::Same),
            Some(first) => {
                let word = match first.decision {
                    Decision::Approve => "approved",
                    Decision::Deny => "denied",
                };
                let why = format!(
                    "it was {word} by {} at {}, and the first decision stands",
                    first.by, first.at
                );
                Err(Refusal::new(Code::PreconditionFailed, why)
                    .reason("already_decided")
                    .name(id))
            }
            None if self.standing(ruling.at) == Standing::Expired => {
                Err(Refusal::new(Code::ApprovalExpired, "nobody decided in time")
                    .reason("not_decided")
                    .name(id))
            }
            None => Ok(Ruled::First),
        }
    }

    /// Refuses a call that comes under a key which another call was asked about.
    ///
    /// # Errors
    /// `replay_conflict`.
    pub fn is_of(&self, request: &Request) -> Result<(), Refusal> {
        let question = &self.question;
        let made = (question.fingerprint_version, question.fingerprint);
        match difference((&question.tool, &question.path, made), request) {
            None => Ok(()),
            Some(reason) => Err(Refusal::new(
                Code::ReplayConflict,
                "the key belongs to another call, which a person was asked about",
            )
            .reason(reason)
            .name(question.approval_id.as_str())),
        }
    }

    /// Decides whether a call runs now.
    ///
    /// # Errors
    /// `replay_conflict` for another call; `approval_required` while nobody decided; `denied`, reason `by_person`;
    /// `approval_expired`; `precondition_failed`, reason `changed_since_approval`, where the call would by now do
    /// something else than the person was shown.
    pub fn admit(&self, request: &Request, plan: &Plan, now: UnixMs) -> Result<(), Refusal> {
        self.is_of(request)?;
        let question = &self.question;
        let refuse = |code, why: String| Refusal::new(code, why).name(question.approval_id.as_str());
        match (self.standing(now), &self.ruling) {
            (Standing::Pending, _) => {
                let because = question
                    .reason
                    .as_deref()
                    .map(|r| format!(" ({r})"))
                    .unwrap_or_default();
                let why = format!(
                    "rule {} of the policy asks a person{because}; nothing was done, and it can be decided until {}",
                    question.rule, question.expires_at
                );
                Err(refuse(Code::ApprovalRequired, why))
            }
            (Standing::Denied, ruling) => {
                let by = ruling.as_ref().map_or("a person", |ruling| ruling.by.as_str());
                let note = ruling
                    .as_ref()
                    .map(|r| r.note.as_str())
                    .filter(|note| !note.is_empty());
                let because = note.map(|note| format!(": {note}")).unwrap_or_default();
                Err(refuse(Code::Denied, format!("{by} denied it{because}")).reason("by_person"))
            }
            (Standing::Expired, None) => {
                Err(refuse(Code::ApprovalExpired, "nobody decided in time".to_owned()).reason("not_decided"))
            }
            (Standing::Expired, Some(_)) => {
                let why = format!("it was approved, and was good until {}", self.ends_at());
                Err(refuse(Code::ApprovalExpired, why).reason("not_used"))
            }
            (Standing::Approved, _) if *plan == question.plan => Ok(()),
            (Standing::Approved, _) => {
                let why = "the call would by now do something else than was approved".to_owned();
                Err(refuse(Code::PreconditionFailed, why).reason("changed_since_approval"))
            }
        }
    }
}

/// Folds one record into the state of its approval.
///
/// # Errors
/// [`IllegalRecord`] where the record cannot follow the state.
pub fn apply(prior: Option<Approval>, record: &Record) -> Result<Option<Approval>, IllegalRecord> {
    let illegal = |what: &str| Err(IllegalRecord(what.to_owned()));
    match record {
        Record::ApprovalAsked(question) => match prior {
            None => Ok(Some(Approval {
                question: (**question).clone(),
                ruling: None,
            })),
            Some(_) => illegal("an approval is asked for twice"),
        },
        Record::ApprovalDecided { approval_id, ruling } => match prior {
            Some(approval)
                if approval.question.approval_id == *approval_id
                    && approval.rule(ruling) == Ok(Ruled::First) =>
            {
                Ok(Some(Approval {
                    ruling: Some(ruling.clone()),
                    ..approval
                }))
            }
            _ => illegal("an approval is decided that does not wait for it"),
        },
        Record::DaemonStarted { .. }
        | Record::VolumeOpened { .. }
        | Record::VolumeReady { .. }
        | Record::VolumeEnded { .. }
        | Record::VolumeDestroyed { .. }
        | Record::PreImagesEvicted { .. }
        | Record::ReceiptsExpired { .. }
        | Record::CallIntended(_)
        | Record::CallReceipted { .. }
        | Record::CallAborting { .. }
        | Record::CallFreed { .. }
        | Record::CallUnknown { .. }
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
        | Record::TokenIssued(_)
        | Record::VolumeLifted { .. } => Ok(prior),
    }
}

#[cfg(test)]
mod tests;
