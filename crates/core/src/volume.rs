//! The life of a volume: who holds it, and how it ended.
//!
//! A volume is dirty from the moment it is opened; only a clean end lifts the mark. This module folds records
//! into that state; it does *not* look at disks.

use crate::backend::Backend;
use crate::code::{Code, Refusal};
use crate::confinement::Confinement;
use crate::digest::Sha256;
use crate::ids::{
    AttemptId, ExecutionId, FencingToken, Generation, JobId, Principal, UnixMs, VolumeIdentity,
};
use crate::record::{IllegalRecord, Record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Says what a volume is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The agent works here; it may keep a warm cache.
    Draft,
    /// A certification runs here; nothing warm, ever.
    Cert,
}

/// Says who keeps a volume open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// A process that holds `meta/owner.lock`: when the lock is free, the owner is dead.
    Process,
    /// A person, until `semel volume end`.
    Operator,
}

/// Says what an acknowledged call survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// `kill -9` of the gateway. Another boot makes the generation dirty.
    Process,
    /// A power cut: what was acknowledged can be salvaged.
    Power,
    /// As `Power`, on a filesystem that cannot promise it; said in every answer that matters.
    PowerBestEffort,
}

/// Says how an attempt on a volume ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case", deny_unknown_fields)]
pub enum End {
    /// The attempt ended by itself, and its process tree is gone.
    Clean,
    /// It did not; the volume is kept for salvage.
    Dirty {
        /// Why, as a stable name: `agent_failed`, `timed_out`, `cancelled`, `owner_died`, `boot_changed`,
        /// `outcome_unknown`, `process_tree_unproved`, `identity_changed`, `journal_rolled_back`, `ended_dirty`,
        /// `certification_refused`, `recycled`, `quota_exceeded`.
        reason: String,
    },
}

/// Is the reason for which a volume is dirty where all else ended clean, but the outcome of a call is unknown.
pub const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// Says where a volume is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// Recorded; its directory is being made.
    Opening,
    /// Held under a lease.
    Open,
    /// Ended clean.
    Clean,
    /// Ended dirty; kept for salvage.
    Quarantined,
    /// Gone from the disk; the record stays.
    Destroyed,
}

/// Holds everything that is known of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// The job whose files it holds.
    pub job: JobId,
    /// The attempt that opened it.
    pub attempt: AttemptId,
    /// What it is for.
    pub role: Role,
    /// Who keeps it open.
    pub owner: Owner,
    /// Its id; never used again.
    pub generation: Generation,
    /// What its lease was fenced with.
    pub fencing_token: FencingToken,
    /// Who its token speaks for.
    pub principal: Principal,
    /// What its calls survive.
    pub durability: Durability,
    /// Where it is in its life.
    pub state: VolumeState,
    /// Why it is dirty; `None` while it is open or after a clean end.
    pub dirty: Option<String>,
    /// What the disk must say when it is opened again; `None` until its directory is made.
    pub identity: Option<VolumeIdentity>,
    /// How well whoever got its token is confined; `None` where that is not ours to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<Confinement>,
    /// What it lies on; `None` in records of an earlier version, whose volumes are plain directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// The proposal that a certification is an attempt at; `None` in drafts, and in records of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal: Option<Sha256>,
    /// When it was opened.
    pub opened_at: UnixMs,
    /// When it ended.
    pub ended_at: Option<UnixMs>,
    /// When its receipts were past retention; `None` while they are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipts_expired_at: Option<UnixMs>,
}

/// Holds what a new volume is asked for; the store gives it attempt and fencing token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// The job whose files it will hold.
    pub job: JobId,
    /// What it is for.
    pub role: Role,
    /// Who keeps it open.
    pub owner: Owner,
    /// A newly minted id.
    pub generation: Generation,
    /// Who its token will speak for.
    pub principal: Principal,
    /// The digest of its bearer token; the token itself is never stored.
    pub token_sha256: Sha256,
    /// What its calls survive.
    pub durability: Durability,
    /// How well whoever gets its token is confined, proven before it begins; `None` where that is not ours to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<Confinement>,
    /// What it will lie on; `None` in records of an earlier version, whose volumes are plain directories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// The proposal that a certification is an attempt at; `None` in drafts, and in records of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal: Option<Sha256>,
    /// When.
    pub at: UnixMs,
}

/// Says which tools a token may be used for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Tools {
    /// All.
    All,
    /// These alone.
    Only(BTreeSet<String>),
}

impl Tools {
    /// Says whether a tool is among them.
    #[must_use]
    pub fn allow(&self, tool: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(tool),
        }
    }

    /// Says whether others are no more than these.
    #[must_use]
    pub fn cover(&self, others: &Tools) -> bool {
        match (self, others) {
            (Self::All, _) => true,
            (Self::Only(_), Self::All) => false,
            (Self::Only(mine), Self::Only(theirs)) => theirs.is_subset(mine),
        }
    }
}

/// Is a token that another one gives out: never for more than that one may do, and no longer than its generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// The generation that it is of.
    pub generation: Generation,
    /// The digest of the token that gives it out.
    pub parent_sha256: Sha256,
    /// Its own digest; the token itself is never stored.
    pub token_sha256: Sha256,
    /// Who it speaks for: whom the parent speaks for, or a part of that, after a `/`.
    pub principal: Principal,
    /// What it may be used for.
    pub tools: Tools,
    /// When.
    pub at: UnixMs,
}

/// Is what a bearer token stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// The volume that it is of, living or ended.
    pub volume: Volume,
    /// Who it speaks for.
    pub principal: Principal,
    /// What it may be used for.
    pub tools: Tools,
}

impl Lease {
    /// Says whether another token may be given out by this one.
    ///
    /// # Errors
    /// `replay_conflict`, reason `stale_generation`, where its generation ended; `denied`, reasons `wider_tools` and
    /// `other_principal`, where it would be for more.
    pub fn may_give(&self, new: &NewToken) -> Result<(), Refusal> {
        self.volume.live()?;
        let denied = |reason: &str, why: &str| Err(Refusal::new(Code::Denied, why).reason(reason));
        if !self.tools.cover(&new.tools) {
            return denied("wider_tools", "a token gives out no tool that it lacks itself");
        }
        if !new.principal.is_part_of(&self.principal) {
            return denied("other_principal", "a token speaks for nobody else");
        }
        Ok(())
    }

    /// Gives the volume as a call with this token sees it.
    ///
    /// # Errors
    /// `denied`, reason `tool_not_granted`.
    pub fn for_tool(self, tool: &str) -> Result<Volume, Refusal> {
        if !self.tools.allow(tool) {
            return Err(Refusal::new(Code::Denied, "the token is not for this tool")
                .reason("tool_not_granted")
                .name(tool));
        }
        Ok(Volume {
            principal: self.principal,
            ..self.volume
        })
    }
}

impl Volume {
    /// Says whether calls may still be made in it.
    ///
    /// # Errors
    /// `replay_conflict`, reason `stale_generation`, when it ended, whatever the call; `volume_busy` before it is
    /// ready.
    pub fn live(&self) -> Result<(), Refusal> {
        match self.state {
            VolumeState::Open => Ok(()),
            VolumeState::Opening => Err(Refusal::new(Code::VolumeBusy, "the volume is still being opened")
                .reason("being_opened")
                .name(self.generation.as_str())),
            VolumeState::Clean | VolumeState::Quarantined | VolumeState::Destroyed => Err(Refusal::new(
                Code::ReplayConflict,
                "the generation of this token has ended",
            )
            .reason("stale_generation")
            .name(self.generation.as_str())),
        }
    }

    /// Says whether the receipts of its calls are kept.
    ///
    /// # Errors
    /// `key_expired`, naming the execution: it is known that the key was used, and it is never run afresh.
    pub fn keeps_receipt(&self, execution: &ExecutionId) -> Result<(), Refusal> {
        match self.receipts_expired_at {
            None => Ok(()),
            Some(_) => {
                let why = "the key was used, and what the call answered is past retention";
                Err(Refusal::new(Code::KeyExpired, why).names([execution.as_str(), self.generation.as_str()]))
            }
        }
    }

    /// Says whether its content may be sealed.
    ///
    /// # Errors
    /// `dirty_volume` unless it is a draft that ended clean; `volume_busy` while it is open.
    pub fn sealable(&self) -> Result<(), Refusal> {
        match (self.role, self.state) {
            (Role::Draft, VolumeState::Clean) => Ok(()),
            (Role::Draft, VolumeState::Open | VolumeState::Opening) => {
                let refusal =
                    Refusal::new(Code::VolumeBusy, "the volume is still open").name(self.generation.as_str());
                Err(match self.owner {
                    Owner::Process => refusal.reason("living_owner"),
                    Owner::Operator => refusal,
                })
            }
            (Role::Cert, _) => Err(Refusal::new(
                Code::BadInput,
                "only a draft volume is sealed; this one belongs to a certification",
            )
            .name(self.generation.as_str())),
            (Role::Draft, VolumeState::Quarantined | VolumeState::Destroyed) => {
                let why = self.dirty.as_deref().unwrap_or("its files are gone");
                Err(Refusal::new(
                    Code::DirtyVolume,
                    format!("the draft did not end cleanly ({why})"),
                )
                .name(self.generation.as_str()))
            }
        }
    }
}

/// Folds one record into the state of its volume.
///
/// # Errors
/// [`IllegalRecord`] where the record cannot follow the state.
pub fn apply(prior: Option<Volume>, record: &Record) -> Result<Option<Volume>, IllegalRecord> {
    let illegal = |what: &str| IllegalRecord(what.to_owned());
    match record {
        Record::VolumeOpened {
            new,
            attempt,
            fencing_token,
        } => match prior {
            None => Ok(Some(opened(new, *attempt, *fencing_token))),
            Some(_) => Err(illegal("a generation is opened twice")),
        },
        Record::VolumeReady { identity, .. } => match prior {
            Some(volume) if volume.state == VolumeState::Opening => Ok(Some(Volume {
                state: VolumeState::Open,
                identity: Some(identity.clone()),
                ..volume
            })),
            _ => Err(illegal("a volume is ready that was not being opened")),
        },
        Record::VolumeEnded { end, at, .. } => match prior {
            Some(volume) => ended(volume, end, *at).map(Some),
            None => Err(illegal("a volume ends that is not known")),
        },
        Record::VolumeLifted { .. } => lifted(prior).map(Some),
        Record::VolumeDestroyed { .. } => match prior {
            Some(volume) if matches!(volume.state, VolumeState::Clean | VolumeState::Quarantined) => {
                Ok(Some(Volume {
                    state: VolumeState::Destroyed,
                    ..volume
                }))
            }
            _ => Err(illegal("a volume is destroyed that has not ended")),
        },
        Record::ReceiptsExpired { at, .. } => expired(prior, *at).map(Some),
        Record::PreImagesEvicted { .. }
        | Record::TokenIssued(_)
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
        | Record::ApprovalAsked(_)
        | Record::ApprovalDecided { .. }
        | Record::DaemonStarted { .. } => Ok(prior),
    }
}

fn opened(new: &NewVolume, attempt: AttemptId, fencing_token: FencingToken) -> Volume {
    Volume {
        job: new.job.clone(),
        attempt,
        role: new.role,
        owner: new.owner,
        generation: new.generation.clone(),
        fencing_token,
        principal: new.principal.clone(),
        durability: new.durability,
        state: VolumeState::Opening,
        dirty: None,
        identity: None,
        confinement: new.confinement,
        backend: new.backend,
        proposal: new.proposal,
        opened_at: new.at,
        ended_at: None,
        receipts_expired_at: None,
    }
}

fn lifted(prior: Option<Volume>) -> Result<Volume, IllegalRecord> {
    match prior {
        Some(volume)
            if volume.state == VolumeState::Quarantined
                && volume.dirty.as_deref() == Some(OUTCOME_UNKNOWN) =>
        {
            Ok(Volume {
                state: VolumeState::Clean,
                dirty: None,
                ..volume
            })
        }
        _ => Err(IllegalRecord(
            "a mark is lifted that an unknown outcome alone did not set".to_owned(),
        )),
    }
}

fn expired(prior: Option<Volume>, at: UnixMs) -> Result<Volume, IllegalRecord> {
    match prior {
        Some(volume) if volume.state == VolumeState::Destroyed && volume.receipts_expired_at.is_none() => {
            Ok(Volume {
                receipts_expired_at: Some(at),
                ..volume
            })
        }
        _ => Err(IllegalRecord(
            "receipts expire whose volume is not destroyed, or that did before".to_owned(),
        )),
    }
}

fn ended(volume: Volume, end: &End, at: UnixMs) -> Result<Volume, IllegalRecord> {
    let (state, dirty) = match (volume.state, end) {
        (VolumeState::Open, End::Clean) => (VolumeState::Clean, None),
        (VolumeState::Open | VolumeState::Opening, End::Dirty { reason }) => {
            (VolumeState::Quarantined, Some(reason.clone()))
        }
        (VolumeState::Opening, End::Clean) => {
            return Err(IllegalRecord(
                "a volume ends clean before it was ready".to_owned(),
            ));
        }
        (VolumeState::Clean | VolumeState::Quarantined | VolumeState::Destroyed, _) => {
            return Err(IllegalRecord("a volume ends that is not open".to_owned()));
        }
    };
    Ok(Volume {
        state,
        dirty,
        ended_at: Some(at),
        ..volume
    })
}

#[cfg(test)]
mod tests;
