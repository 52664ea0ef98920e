//! Is the log what it says, and what it was? On the journal of this state root, or offline on a copy.

use super::{checkpoint, look, signing, store};
use crate::config::Config;
use semel_core::audit::{Fault, FaultKind};
use semel_core::checkpoint::{Checkpoint, LogKey};
use semel_core::{Code, Refusal};
use semel_store::journal::{ChainReport, Depth};
use std::path::{Path, PathBuf};

/// Is what is to be verified, and by what.
#[derive(Debug, Default)]
pub(crate) struct Ask {
    /// Checkpoints that the verifier holds.
    pub(crate) since: Vec<PathBuf>,
    /// The key that they must be signed with; else the log's own.
    pub(crate) key: Option<LogKey>,
}

/// Is what came of it.
#[derive(Debug)]
pub(crate) struct Audited {
    /// What was found.
    pub(crate) report: ChainReport,
    /// By which checkpoints: the file of each, and the size that it is of.
    pub(crate) held: Vec<(String, u64)>,
}

impl Audited {
    /// Gives the refusal of a log that has a fault.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        let faults = &self.report.faults;
        if faults.is_empty() {
            return None;
        }
        let signed = |fault: &Fault| {
            matches!(
                fault.kind,
                FaultKind::Truncated | FaultKind::Rewritten | FaultKind::OtherLog | FaultKind::BadCheckpoint
            )
        };
        let many = faults.len() as u64 + self.report.more;
        let s = if many == 1 { "" } else { "s" };
        let why = format!("{many} fault{s} in {} entries", self.report.entries);
        let reason = if faults.iter().any(signed) {
            "checkpoint_mismatch"
        } else {
            "journal_faulty"
        };
        Some(
            Refusal::new(Code::UnknownState, why)
                .reason(reason)
                .names(faults.iter().take(50).map(ToString::to_string)),
        )
    }
}

/// Verifies the journal of the state root by every kept checkpoint, and by those that the caller holds.
///
/// # Errors
/// `not_found` where there is no journal; `bad_input` where a held checkpoint is none of the log's; `store_unavailable`.
pub(crate) fn journal(config: Config, depth: Depth, ask: &Ask) -> Result<Audited, Refusal> {
    let own = signing::log_key(&config)?.map(|key| LogKey::any(key.public()));
    let key = ask.key.clone().or(own);
    let mut checkpoints = held(ask, key.as_ref())?;
    let mut wrong = Vec::new();
    for kept in checkpoint::kept(&config, key.as_ref())? {
        match kept.opened {
            Ok(checkpoint) => checkpoints.push((kept.name, checkpoint)),
            Err(refusal) => wrong.push(Fault::of(FaultKind::BadCheckpoint, refusal.to_string())),
        }
    }
    let reader = look::reading(config)?;
    let only = checkpoints
        .iter()
        .map(|(_, checkpoint)| checkpoint.clone())
        .collect();
    let mut report = reader.journal.audit(only, depth).map_err(store)?;
    wrong.append(&mut report.faults);
    report.faults = wrong;
    Ok(audited(report, checkpoints))
}

/// Verifies a copy of a journal: no daemon, no state root, nothing written.
///
/// # Errors
/// `usage` where checkpoints are given without their key; as [`journal`].
pub(crate) fn copy(file: &Path, ask: &Ask) -> Result<Audited, Refusal> {
    let checkpoints = held(ask, ask.key.as_ref())?;
    let only: Vec<Checkpoint> = checkpoints
        .iter()
        .map(|(_, checkpoint)| checkpoint.clone())
        .collect();
    let report = semel_store::sqlite::audit_file(file, &only).map_err(store)?;
    Ok(audited(report, checkpoints))
}

/// Gives the verifier key of the log; `None` where there is none yet.
///
/// # Errors
/// `not_found` where there is no journal; `bad_config`.
pub(crate) fn public(config: Config) -> Result<Option<String>, Refusal> {
    let engine = look::reading(config)?;
    checkpoint::public(engine.journal.as_ref(), &engine.config)
}

fn held(ask: &Ask, key: Option<&LogKey>) -> Result<Vec<(String, Checkpoint)>, Refusal> {
    if ask.since.is_empty() {
        return Ok(Vec::new());
    }
    let key =
        key.ok_or_else(|| Refusal::new(Code::Usage, "--since needs --key: the log's own key is not here"))?;
    ask.since
        .iter()
        .map(|file| Ok((file.display().to_string(), checkpoint::held(file, key)?)))
        .collect()
}

fn audited(report: ChainReport, checkpoints: Vec<(String, Checkpoint)>) -> Audited {
    Audited {
        report,
        held: checkpoints
            .into_iter()
            .map(|(file, checkpoint)| (file, checkpoint.size))
            .collect(),
    }
}
