//! One mutating call at hand: what it has to hold, what its intent says, and what is discarded with it.

use super::arguments::{Args, Flag};
use super::call::Asked;
use super::locks::{Hold, Needs, PathKey};
use super::prepare::Ready;
use crate::engine::host;
use semel_core::call::{Intent, Request, Scope};
use semel_core::effect::{Effect, Slot};
use semel_core::ids::{ExecutionId, IdempotencyKey};
use semel_core::patch::Operation;
use semel_core::{Code, Refusal, RelPath};
use semel_host::clock;
use semel_host::files::{self, FileKind, Removable};
use semel_host::root::{GitInternals, LastLink, check_target};
use semel_host::volume::Volume as Disk;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Is a mutating call with everything that it needs at hand.
pub(super) struct Mutation<'a> {
    pub(super) asked: &'a Asked,
    pub(super) key: IdempotencyKey,
    pub(super) request: Request,
    pub(super) scope: Scope,
    pub(super) disk: Arc<Disk>,
    /// Whether a rule of the policy may open what belongs to git; each path is judged before the intent.
    pub(super) git: GitInternals,
}

impl Mutation<'_> {
    /// Finds what the call has to hold: names in the directories themselves, or the volume alone.
    ///
    /// # Errors
    /// Those of the places.
    pub(super) fn needs(&self) -> Result<Needs, Refusal> {
        let path = &self.request.path;
        let mut names = BTreeSet::new();
        match &self.asked.understood.args {
            Args::Write { .. } | Args::Edit { .. } => {
                names.insert(
                    self.name_of(path, LastLink::Follow)
                        .map_err(|e| self.parent_missing(e))?,
                );
            }
            Args::SetMode { .. } => {
                names.insert(self.name_of(path, LastLink::Follow)?);
            }
            Args::Delete { .. } => {
                names.insert(self.name_of(path, LastLink::Keep)?);
            }
            Args::CreateDirectory => {
                names.extend(self.name_of_new(path)?);
            }
            Args::DeleteDirectory { .. } | Args::Undo { .. } => return Ok(self.alone()),
            Args::Move { destination, .. } => {
                let destination = destination.as_ref().map_err(Refusal::clone)?;
                // Looked up first: what is moved has to be there.
                let source = self.name_of(path, LastLink::Keep)?;
                if self.kind_at(path)? == Some(FileKind::Directory) {
                    return Ok(self.alone());
                }
                names.insert(source);
                names.insert(
                    self.name_of(destination, LastLink::Keep)
                        .map_err(|e| self.parent_missing(e))?,
                );
            }
            Args::Patch { patch, .. } => {
                for operation in patch.operations() {
                    self.names_of(operation, &mut names)?;
                }
            }
            // The key itself: so the same call sent twice at once is seen before the second one asks for a place.
            Args::Run(_) => {
                let root = files::file_id(self.disk.tree().handle()).map_err(host)?;
                names.insert(PathKey::new(root, format!("\0{}", self.key).as_bytes()));
            }
            Args::Look(_) | Args::Receipt { .. } => {}
        }
        Ok(Needs {
            volume: self.asked.lease.generation.clone(),
            hold: Hold::Shared,
            names,
        })
    }

    fn alone(&self) -> Needs {
        Needs {
            volume: self.asked.lease.generation.clone(),
            hold: Hold::Exclusive,
            names: BTreeSet::new(),
        }
    }

    fn names_of(&self, operation: &Operation, names: &mut BTreeSet<PathKey>) -> Result<(), Refusal> {
        let twice = |path: &RelPath| {
            Refusal::new(Code::BadInput, "two operations of the patch lead to one file")
                .reason("file_twice")
                .name(path.to_string())
        };
        let mut add = |path: &RelPath, key: PathKey| {
            if names.insert(key) {
                Ok(())
            } else {
                Err(twice(path))
            }
        };
        match operation {
            Operation::Add { path, .. } => match self.name_of(path, LastLink::Follow) {
                Ok(key) => add(path, key),
                // A directory that is missing is made; many files may go into it.
                Err(refusal) if is_missing(&refusal) => self.hold_parent(path, names),
                Err(refusal) => Err(self.parent_missing(refusal)),
            },
            Operation::Delete { path, .. } => add(path, self.name_of(path, LastLink::Keep)?),
            Operation::Update { path, move_to, .. } => {
                let last = if move_to.is_some() {
                    LastLink::Keep
                } else {
                    LastLink::Follow
                };
                add(path, self.name_of(path, last)?)?;
                match move_to {
                    None => Ok(()),
                    Some(to) => match self.name_of(to, LastLink::Keep) {
                        Ok(key) => add(to, key),
                        Err(refusal) if is_missing(&refusal) => self.hold_parent(to, names),
                        Err(refusal) => Err(self.parent_missing(refusal)),
                    },
                }
            }
        }
    }

    fn hold_parent(&self, path: &RelPath, names: &mut BTreeSet<PathKey>) -> Result<(), Refusal> {
        if let Some((parent, _)) = path.split_last() {
            names.extend(self.name_of_new(&parent)?);
        }
        Ok(())
    }

    /// Finds the directory and the name of a path.
    fn name_of(&self, path: &RelPath, last: LastLink) -> Result<PathKey, Refusal> {
        check_target(path, self.git).map_err(host)?;
        let place = self.disk.tree().place(path, last).map_err(host)?;
        let parent = files::file_id(&place.parent).map_err(host)?;
        Ok(PathKey::new(parent, &place.name))
    }

    /// Finds the topmost name that a new directory takes; `None` where it exists.
    fn name_of_new(&self, path: &RelPath) -> Result<Option<PathKey>, Refusal> {
        let missing = files::missing_directories(&self.disk, [path], self.git).map_err(host)?;
        let Some(top) = missing.first().map(files::Missing::top) else {
            return Ok(None);
        };
        let parent = files::file_id(&top.parent).map_err(host)?;
        Ok(Some(PathKey::new(parent, &top.name)))
    }

    fn kind_at(&self, path: &RelPath) -> Result<Option<FileKind>, Refusal> {
        files::kind_at(&self.disk, path, self.git).map_err(host)
    }

    /// Says of a write whose parent is missing what a write says: a precondition does not hold.
    fn parent_missing(&self, refusal: Refusal) -> Refusal {
        match refusal.reason.as_deref() {
            Some("parent_missing" | "parent_not_directory") => Refusal {
                code: Code::PreconditionFailed,
                ..refusal
            },
            _ => refusal,
        }
    }

    pub(super) fn intent(&self, execution: &ExecutionId, ready: &Ready) -> Intent {
        let lease = &self.asked.lease;
        let (fingerprint_version, fingerprint) = self.asked.understood.newest();
        Intent {
            execution_id: execution.clone(),
            scope: self.scope.clone(),
            key: self.key.clone(),
            fingerprint,
            fingerprint_version,
            tool: self.request.tool.clone(),
            path: self.request.path.clone(),
            attempt: lease.attempt,
            generation: lease.generation.clone(),
            fencing_token: lease.fencing_token,
            durability: lease.durability,
            effects: ready.recorded(),
            facts: ready.facts.clone(),
            source: self.asked.source.clone(),
            at: clock::now(),
        }
    }

    /// Discards what was staged. If that fails, the sweep of the next start finds it: no intent names it as open.
    pub(super) fn discard(&self, execution: &ExecutionId, effects: &[Effect]) {
        for (n, effect) in effects.iter().enumerate() {
            drop(files::discard_staged(&self.disk, &Slot::of(execution, n), effect));
        }
    }

    /// Says what a call on a directory may remove.
    pub(super) fn removable(recursive: Flag) -> Option<Removable> {
        match recursive {
            Flag::Set => Some(Removable::Directory),
            Flag::Unset => None,
        }
    }
}

/// Knows the refusal of a path whose directory is missing.
fn is_missing(refusal: &Refusal) -> bool {
    refusal.reason.as_deref() == Some("parent_missing")
}
