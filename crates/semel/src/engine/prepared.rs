//! Restorations for a job: a prepared tree is recorded with it, and a later retry restores from the record.
//!
//! The record is of one pinned worktree and of one job. It is made once the tree is restored and proved; from the
//! first look to the record the worktree is locked, so that the newest record is of the newest restoration.

use super::restore::{self, Asked, Refused, Require, Restored, Witness};
use super::{Engine, host, store};
use crate::config::Config;
use crate::wire;
use semel_core::git_tree::ObjectId;
use semel_core::ids::JobId;
use semel_core::pin::{self, Pin};
use semel_core::prepared::{self, NewPreparation, Preparation};
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::git::Pins;
use semel_host::hold::Hold;
use semel_host::process::Cancel;
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Says what is done with the record of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recording {
    /// The tree is recorded once it is restored.
    Record,
    /// The recorded tree is restored.
    Recall,
}

/// Is the record after a restoration.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    record: Preparation,
    superseded: Option<ObjectId>,
}

impl Recorded {
    /// Gives the record for machines.
    pub(crate) fn facts(&self) -> Value {
        json!({
            "job": self.record.job,
            "number": self.record.number,
            "pin": self.record.pin,
            "tree": self.record.tree,
            "superseded": self.superseded,
        })
    }
}

/// Restores a worktree for a job.
///
/// # Errors
/// With nothing changed: `worktree_redirected`, reason `not_pinned`; `not_found`, reason `nothing_recorded`;
/// `tree_mismatch` where the evidence does not match (reasons `other_worktree`, `other_tree`) or another job recorded a
/// tree there (`foreign_record`); `lock_timeout`, reason `worktrees_busy`; `daemon_unreachable`, `store_unavailable`.
/// Those of [`restore::restore`]. A tree that was restored and could not be recorded is refused, too.
///
/// # Durability
/// When this returns, the record is on the disk.
pub(crate) fn restore_for(
    config: Config,
    asked: Asked,
    tree: Option<&str>,
    job: &JobId,
    recording: Recording,
    cancel: &Cancel,
    caller: &dyn Witness,
) -> Result<(Restored, Recorded), Box<Refused>> {
    let before = |refusal| Box::new(Refused::untouched(refusal));
    let opened = Opened::open(&config, &asked, cancel).map_err(before)?;
    let own = opened
        .engine
        .journal
        .prepared(job.clone())
        .map_err(store)
        .map_err(before)?;
    let wanted = match recording {
        Recording::Recall => prepared::recorded(own.as_ref(), job, &opened.pin.id, tree),
        Recording::Record => opened.recordable(job, own.as_ref(), tree),
    };
    let wanted = wanted.map_err(before)?;
    let asked = Asked {
        tree: wanted.to_string(),
        require: Require::Pin,
        job: Some(job.clone()),
        ..asked
    };
    let restored = restore::restore(&config.into(), &asked, cancel, caller)?;
    let record = match (recording, &own) {
        (Recording::Recall, Some(own)) => Ok(own.clone()),
        (Recording::Record, _) | (Recording::Recall, None) => opened.record(job, wanted),
    };
    let record = record.map_err(|refusal| Box::new(restored.but(refusal)))?;
    let superseded = own.filter(|own| own.number < record.number).map(|own| own.tree);
    Ok((restored, Recorded { record, superseded }))
}

/// Is a pinned worktree that is locked, and the journal.
struct Opened {
    engine: Engine,
    pin: Pin,
    _lock: Hold,
}

impl Opened {
    fn open(config: &Config, asked: &Asked, cancel: &Cancel) -> Result<Self, Refusal> {
        let pins = Pins::of(&config.state);
        pins.apart_from(&asked.worktree).map_err(host)?;
        let found = || -> Result<Pin, Refusal> {
            let pin = pins.find(&asked.worktree).map_err(host)?;
            pin::require(pin.as_ref(), asked.worktree.as_os_str().as_bytes())?;
            pin.ok_or_else(|| Refusal::new(Code::Internal, "a required pin is not there"))
        };
        let worktree = found()?.worktree.path;
        let worktree = Path::new(std::ffi::OsStr::from_bytes(worktree.as_bytes())).to_owned();
        let engine = wire::command(config.clone())?;
        // Of this worktree alone: restorations of others go on meanwhile. Where the pin is changed in between, what is
        // recorded is of the former one, and no evidence any more.
        let lock = pins.lock(&worktree, asked.wait, cancel).map_err(host)?;
        let pin = found()?;
        Ok(Self {
            engine,
            pin,
            _lock: lock,
        })
    }

    fn asked(&self, job: &JobId, tree: ObjectId) -> NewPreparation {
        NewPreparation {
            job: job.clone(),
            pin: self.pin.id.clone(),
            tree,
            at: clock::now(),
        }
    }

    /// Says which tree would be recorded, before anything is restored: a hint, the journal decides.
    fn recordable(
        &self,
        job: &JobId,
        own: Option<&Preparation>,
        tree: Option<&str>,
    ) -> Result<ObjectId, Refusal> {
        let none =
            || Refusal::new(Code::Usage, "a tree that is to be recorded has to be named").name("--tree");
        let tree = ObjectId::parse(tree.ok_or_else(none)?)?;
        let there = self
            .engine
            .journal
            .prepared_in(self.pin.id.clone())
            .map_err(store)?;
        prepared::admit(own, there.as_ref(), &self.asked(job, tree))?;
        Ok(tree)
    }

    fn record(&self, job: &JobId, tree: ObjectId) -> Result<Preparation, Refusal> {
        self.engine
            .journal
            .prepare_tree(self.asked(job, tree))
            .map_err(store)
    }
}
