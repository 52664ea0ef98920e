//! The main job as stages: what is proven of a run, and what comes next?
//!
//! A run that was killed continues after its last proven stage. A killed *agent* is never continued: its draft is
//! quarantined, and a new attempt begins. This module does *not* do the stages.

use crate::code::{Code, Refusal};
use crate::digest::Sha256;
use crate::ids::{Generation, JobId, RunId, UnixMs};
use crate::record::{IllegalRecord, Record};
use serde::{Deserialize, Serialize};

/// Is what a run begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewRun {
    /// Its id.
    pub run: RunId,
    /// The job.
    pub job: JobId,
    /// The digest of the job file: a changed job is another run.
    pub job_sha256: Sha256,
    /// The base commit, as hexadecimal digits.
    pub base: String,
    /// When.
    pub at: UnixMs,
}

/// Is a stage that is proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case", deny_unknown_fields)]
pub enum Stage {
    /// A draft volume holds the base; the agent may start.
    Drafted {
        /// The draft.
        generation: Generation,
    },
    /// The agent ended by itself, and its process tree is gone.
    AgentEnded {
        /// The draft.
        generation: Generation,
    },
    /// The draft's output is sealed.
    Sealed {
        /// The proposal.
        proposal: Sha256,
        /// Its git tree, as hexadecimal digits.
        tree: String,
    },
    /// The proposal was certified.
    Certified {
        /// The generation it was certified in.
        generation: Generation,
        /// The digest of the signed envelope.
        certificate: Sha256,
    },
    /// The branch or patch stands.
    Delivered {
        /// `branch NAME COMMIT` or `patch PATH SHA256`, or `nothing`.
        output: String,
    },
}

/// Says how a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case", deny_unknown_fields)]
pub enum RunEnd {
    /// With a certificate.
    Certified,
    /// With a refusal.
    Refused {
        /// Which.
        refusal: Refusal,
    },
    /// A person ended it.
    Cancelled,
}

/// Is what is known of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// What it began with.
    pub new: NewRun,
    /// What is proven, in order.
    pub stages: Vec<Stage>,
    /// How it ended.
    pub end: Option<RunEnd>,
}

/// Is what comes next in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Open a draft and put the base into it.
    Draft,
    /// Start the agent in the draft.
    Agent {
        /// The draft.
        generation: Generation,
    },
    /// Seal the draft.
    Seal {
        /// The draft.
        generation: Generation,
    },
    /// Certify the proposal.
    Certify {
        /// The proposal.
        proposal: Sha256,
    },
    /// Write the branch or patch.
    Deliver {
        /// The generation it was certified in.
        generation: Generation,
        /// The proposal.
        proposal: Sha256,
    },
    /// Nothing: the run is over.
    Finished,
}

/// Decides what comes next.
#[must_use]
pub fn next(run: &Run) -> Step {
    if run.end.is_some() {
        return Step::Finished;
    }
    match run.stages.last() {
        None => Step::Draft,
        Some(Stage::Drafted { generation }) => Step::Agent {
            generation: generation.clone(),
        },
        Some(Stage::AgentEnded { generation }) => Step::Seal {
            generation: generation.clone(),
        },
        Some(Stage::Sealed { proposal, .. }) => Step::Certify { proposal: *proposal },
        Some(Stage::Certified { generation, .. }) => match run.proposal() {
            Some((proposal, _)) => Step::Deliver {
                generation: generation.clone(),
                proposal,
            },
            None => Step::Draft,
        },
        Some(Stage::Delivered { .. }) => Step::Finished,
    }
}

/// Decides whether a run whose agent was killed may begin a new attempt.
///
/// # Errors
/// `ownership_taken` where a call whose effect lies outside of the draft committed: it would be repeated.
pub fn may_restart_agent(job_scoped_commits: u64) -> Result<(), Refusal> {
    if job_scoped_commits == 0 {
        Ok(())
    } else {
        Err(Refusal::new(
            Code::OwnershipTaken,
            format!(
                "the killed agent committed {job_scoped_commits} calls with effects outside of its draft"
            ),
        ))
    }
}

impl Run {
    /// Gives the sealed proposal and its git tree.
    #[must_use]
    pub fn proposal(&self) -> Option<(Sha256, &str)> {
        self.stages.iter().rev().find_map(|stage| match stage {
            Stage::Sealed { proposal, tree } => Some((*proposal, tree.as_str())),
            Stage::Drafted { .. }
            | Stage::AgentEnded { .. }
            | Stage::Certified { .. }
            | Stage::Delivered { .. } => None,
        })
    }

    /// Gives the certificate.
    #[must_use]
    pub fn certificate(&self) -> Option<(&Generation, Sha256)> {
        self.stages.iter().rev().find_map(|stage| match stage {
            Stage::Certified {
                generation,
                certificate,
            } => Some((generation, *certificate)),
            Stage::Drafted { .. }
            | Stage::AgentEnded { .. }
            | Stage::Sealed { .. }
            | Stage::Delivered { .. } => None,
        })
    }
}

/// Folds one record into the state of a run.
///
/// A stage may follow only the one before it; `Drafted` alone may come again, after a killed agent.
///
/// # Errors
/// [`IllegalRecord`] where the record cannot follow the state.
pub fn apply(prior: Option<Run>, record: &Record) -> Result<Option<Run>, IllegalRecord> {
    let illegal = |what: &str| IllegalRecord(what.to_owned());
    match record {
        Record::RunStarted(new) => match prior {
            None => Ok(Some(Run {
                new: (**new).clone(),
                stages: Vec::new(),
                end: None,
            })),
            Some(_) => Err(illegal("a run is started twice")),
        },
        Record::RunStaged { stage, .. } => match prior {
            Some(mut run) if run.end.is_none() && follows(run.stages.last(), stage) => {
                run.stages.push(stage.clone());
                Ok(Some(run))
            }
            _ => Err(illegal("a stage does not follow the one before it")),
        },
        Record::RunEnded { end, .. } => match prior {
            Some(run) if run.end.is_none() => Ok(Some(Run {
                end: Some(end.clone()),
                ..run
            })),
            _ => Err(illegal("a run ends that is over")),
        },
        Record::DaemonStarted { .. }
        | Record::VolumeOpened { .. }
        | Record::VolumeReady { .. }
        | Record::VolumeEnded { .. }
        | Record::VolumeLifted { .. }
        | Record::TokenIssued(_)
        | Record::VolumeDestroyed { .. }
        | Record::PreImagesEvicted { .. }
        | Record::ReceiptsExpired { .. }
        | Record::CallIntended(_)
        | Record::CallReceipted { .. }
        | Record::CallAborting { .. }
        | Record::CallFreed { .. }
        | Record::CallUnknown { .. }
        | Record::CallNoted(_)
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

fn follows(last: Option<&Stage>, stage: &Stage) -> bool {
    match (last, stage) {
        (None | Some(Stage::Drafted { .. }), Stage::Drafted { .. })
        | (Some(Stage::AgentEnded { .. }), Stage::Sealed { .. })
        | (Some(Stage::Sealed { .. }), Stage::Certified { .. })
        | (Some(Stage::Certified { .. }), Stage::Delivered { .. }) => true,
        (Some(Stage::Drafted { generation: drafted }), Stage::AgentEnded { generation: ended }) => {
            drafted == ended
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
