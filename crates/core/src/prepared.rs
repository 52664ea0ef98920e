//! The prepared tree of a job: what a retry restores without naming it again.
//!
//! A job has one at most. Its own newer one supersedes the older; what another job recorded in the same worktree is
//! foreign, and stays. This module decides; it does *not* look at worktrees or keep records.

use crate::code::{Code, Refusal};
use crate::git_tree::ObjectId;
use crate::ids::{JobId, UnixMs};
use crate::pin::PinId;
use crate::record::IllegalRecord;
use serde::{Deserialize, Serialize};

/// Is a tree that a job prepared in a pinned worktree; holds no path.
///
/// # Shape
/// `{"job":"app","number":2,"pin":"…","tree":"…","at":…}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preparation {
    /// The job.
    pub job: JobId,
    /// How many trees the job has prepared so far, this one included.
    pub number: u32,
    /// The pin of the worktree that it was prepared in.
    pub pin: PinId,
    /// The tree.
    pub tree: ObjectId,
    /// When it was recorded.
    pub at: UnixMs,
}

/// Is a tree that a job asks to be recorded: it was restored and proved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPreparation {
    /// The job.
    pub job: JobId,
    /// The pin of the worktree.
    pub pin: PinId,
    /// The tree.
    pub tree: ObjectId,
    /// When.
    pub at: UnixMs,
}

/// Decides over a tree that is to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is recorded already.
    Known(Preparation),
    /// It is recorded now, in place of an older one of the job, where there is one.
    Record(Preparation),
}

/// Decides whether a tree is recorded: `own` is what the job recorded last, `there` what is recorded in that worktree.
///
/// # Errors
/// `tree_mismatch`, reason `foreign_record`, where another job recorded a tree in the worktree.
pub fn admit(
    own: Option<&Preparation>,
    there: Option<&Preparation>,
    new: &NewPreparation,
) -> Result<Decision, Refusal> {
    if let Some(foreign) = there.filter(|there| there.job != new.job) {
        let why = "another job recorded a tree in this worktree";
        return Err(Refusal::new(Code::TreeMismatch, why)
            .reason("foreign_record")
            .names([foreign.job.as_str(), &foreign.tree.to_string()].map(str::to_owned)));
    }
    let number = match own {
        Some(own) if own.pin == new.pin && own.tree == new.tree => return Ok(Decision::Known(own.clone())),
        Some(own) => own.number.saturating_add(1),
        None => 1,
    };
    Ok(Decision::Record(Preparation {
        job: new.job.clone(),
        number,
        pin: new.pin.clone(),
        tree: new.tree,
        at: new.at,
    }))
}

/// Folds a recorded tree over what was recorded before.
///
/// # Errors
/// Where it could not have been recorded.
pub fn apply(
    own: Option<&Preparation>,
    there: Option<&Preparation>,
    recorded: &Preparation,
) -> Result<(), IllegalRecord> {
    let new = NewPreparation {
        job: recorded.job.clone(),
        pin: recorded.pin.clone(),
        tree: recorded.tree,
        at: recorded.at,
    };
    match admit(own, there, &new) {
        Ok(Decision::Record(expected)) if expected == *recorded => Ok(()),
        Ok(_) => Err(IllegalRecord("a prepared tree out of its order".to_owned())),
        Err(refusal) => Err(IllegalRecord(refusal.to_string())),
    }
}

/// Says what a restoration for a job restores: the recorded tree, which has to be of this very worktree.
///
/// # Errors
/// `not_found`, reason `nothing_recorded`; `tree_mismatch`, reason `other_worktree` where it was recorded in another
/// one, `other_tree` where the caller names another tree.
pub fn recorded(
    own: Option<&Preparation>,
    job: &JobId,
    pin: &PinId,
    asked: Option<&str>,
) -> Result<ObjectId, Refusal> {
    let Some(own) = own else {
        let why = "the job has recorded no prepared tree";
        return Err(Refusal::new(Code::NotFound, why)
            .reason("nothing_recorded")
            .name(job.as_str()));
    };
    let foreign = |why: &str, reason: &str| Refusal::new(Code::TreeMismatch, why).reason(reason);
    if own.pin != *pin {
        let why = "the job's tree was recorded in another worktree, or under another pin of it";
        return Err(foreign(why, "other_worktree").names([own.pin.to_string(), pin.to_string()]));
    }
    let tree = own.tree.to_string();
    if asked.is_some_and(|asked| asked != tree) {
        let why = "the job recorded another tree than is asked for";
        return Err(foreign(why, "other_tree").name(tree));
    }
    Ok(own.tree)
}

#[cfg(test)]
mod tests;
