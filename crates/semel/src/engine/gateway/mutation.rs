//! One mutating call at hand: what it changes, what is staged for it, and what its intent says.

use super::Gateway;
use super::arguments::{Args, Expected};
use super::call::Asked;
use super::locks::PathKey;
use crate::engine::host;
use semel_core::call::{Effect, Intent, Request, ResultFacts, Scope};
use semel_core::ids::{ExecutionId, IdempotencyKey};
use semel_core::volume::Durability;
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::files::{self, Durability as Survives, Prepared, PreparedRemove};
use semel_host::root::{GitInternals, LastLink, check_target};
use semel_host::volume::Volume as Disk;
use std::sync::Arc;

/// Is what was staged, or looked at, before the intent.
pub(super) enum Ready {
    Write(Prepared),
    Remove(PreparedRemove),
}

/// Is a mutating call with everything that it needs at hand.
pub(super) struct Mutation<'a> {
    pub(super) asked: &'a Asked,
    pub(super) key: IdempotencyKey,
    pub(super) request: Request,
    pub(super) scope: Scope,
    pub(super) disk: Arc<Disk>,
}

impl Mutation<'_> {
    /// Finds what the call changes: the directory itself, and the name in it.
    pub(super) fn path_key(&self) -> Result<PathKey, Refusal> {
        let last = match self.asked.understood.args {
            Args::Write { .. } => LastLink::Follow,
            Args::Path | Args::Delete { .. } | Args::Receipt { .. } => LastLink::Keep,
        };
        check_target(&self.request.path, GitInternals::Refuse).map_err(host)?;
        let place = self
            .disk
            .tree()
            .place(&self.request.path, last)
            .map_err(|error| self.parent_missing(host(error)))?;
        let parent = files::file_id(&place.parent).map_err(host)?;
        Ok(PathKey {
            parent,
            name: place.name,
        })
    }

    /// Says of a write whose parent is missing what a write says: a precondition does not hold.
    fn parent_missing(&self, refusal: Refusal) -> Refusal {
        let writes = matches!(self.asked.understood.args, Args::Write { .. });
        match refusal.reason.as_deref() {
            Some("parent_missing" | "parent_not_directory") if writes => Refusal {
                code: Code::PreconditionFailed,
                ..refusal
            },
            _ => refusal,
        }
    }

    /// Stages the content, or looks at what is to be removed; nothing that an agent can name changes.
    pub(super) fn prepare(
        &self,
        gateway: &Gateway,
        execution: &ExecutionId,
    ) -> Result<(Ready, Effect, ResultFacts, semel_core::RelPath), semel_host::Error> {
        let durability = survives(self.asked.lease.durability);
        let mut facts = ResultFacts::default();
        match &self.asked.understood.args {
            Args::Write {
                content,
                sha256,
                expected,
            } => {
                let write = files::Write {
                    path: &self.request.path,
                    bytes: content,
                    expected: expectation(*expected),
                    execution,
                    durability,
                    git: GitInternals::Refuse,
                };
                let prepared = files::prepare_write(&self.disk, &write, &gateway.hooks)?;
                let evidence = &prepared.evidence;
                facts.hard_link_broken = evidence.hard_link_broken;
                let effect = Effect::Install {
                    staged: evidence.staged.clone(),
                    sha256: *sha256,
                    size_bytes: content.len() as u64,
                    before: evidence.before.clone(),
                };
                let resolved = evidence.resolved.clone();
                Ok((Ready::Write(prepared), effect, facts, resolved))
            }
            Args::Delete { expected } => {
                let remove = files::Remove {
                    path: &self.request.path,
                    expected: expectation(*expected),
                    execution,
                    durability,
                    git: GitInternals::Refuse,
                };
                let prepared = files::prepare_remove(&self.disk, &remove)?;
                let evidence = &prepared.evidence;
                let before = evidence.before.clone();
                let resolved = evidence.resolved.clone();
                Ok((
                    Ready::Remove(prepared),
                    Effect::Remove { before },
                    facts,
                    resolved,
                ))
            }
            Args::Path | Args::Receipt { .. } => {
                Err(Refusal::new(Code::Internal, "a call without an effect reached its execution").into())
            }
        }
    }

    pub(super) fn intent(
        &self,
        execution: &ExecutionId,
        effect: Effect,
        result: ResultFacts,
        resolved: semel_core::RelPath,
    ) -> Intent {
        let lease = &self.asked.lease;
        Intent {
            execution_id: execution.clone(),
            scope: self.scope.clone(),
            key: self.key.clone(),
            fingerprint: self.request.fingerprint,
            tool: self.request.tool.clone(),
            path: self.request.path.clone(),
            resolved,
            attempt: lease.attempt,
            generation: lease.generation.clone(),
            fencing_token: lease.fencing_token,
            durability: lease.durability,
            effect,
            result,
            source: self.asked.source.clone(),
            at: clock::now(),
        }
    }

    /// Discards what was staged. If that fails, the sweep of the next start finds it: no intent names it as open.
    pub(super) fn discard(&self, intent: &Intent) {
        if let Effect::Install { staged, .. } = &intent.effect {
            drop(files::discard_staged(&self.disk, &intent.execution_id, staged));
        }
    }
}

/// Gives what the host promises for a durability.
pub(super) fn survives(durability: Durability) -> Survives {
    match durability {
        Durability::Process => Survives::Process,
        Durability::Power | Durability::PowerBestEffort => Survives::Power,
    }
}

fn expectation(expected: Expected) -> files::Expected {
    match expected {
        Expected::Anything => files::Expected::Any,
        Expected::Absent => files::Expected::Absent,
        Expected::Sha256(digest) => files::Expected::Sha256(digest),
    }
}
