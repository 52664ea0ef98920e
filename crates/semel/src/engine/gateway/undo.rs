//! Undoing an execution: a new one, whose effects put back what that one removed or replaced.
//!
//! It is refused where a path changed since: nothing of what came later is undone with it. What is undone can be undone
//! in turn.

use super::Gateway;
use super::answer::Answer;
use super::arguments::Understood;
use super::call::Asked;
use super::prepare::Bench;
use super::tool::Tool;
use crate::engine::{look, store};
use semel_core::call::{CallState, Intent, Outcome, Source};
use semel_core::effect::{Content, Effect, Slot};
use semel_core::ids::{ExecutionId, FileId, IdempotencyKey};
use semel_core::volume::VolumeState;
use semel_core::{Code, Refusal, RelPath};
use semel_host::Error;
use semel_host::files::{self, Expected, Move, Prepared, Removable, SetMode};
use std::sync::Arc;

impl Gateway {
    /// Undoes an execution of a living generation, for a person. Asked a second time, it answers from its receipt.
    ///
    /// # Errors
    /// `not_found` for an execution that is not known; `precondition_failed`, reason `not_done`, for one that did
    /// nothing, and `changed_since` where a path is not as it left it; `undo_expired`; those of a call.
    pub(crate) async fn undo(self: &Arc<Self>, execution: ExecutionId) -> Answer {
        let looking = self.clone();
        let found = self.blocking(move |_| looking.undoable(&execution)).await??;
        let (intent, lease) = found;
        let source = Source {
            door: "admin".to_owned(),
            ..Source::default()
        };
        let key = IdempotencyKey::parse(format!("undo-{}", intent.execution_id))?;
        let understood = Understood::of_undo(intent);
        let asked = Asked::by_the_operator(Tool::Undo, lease, key, understood, source)?;
        self.mutate(Arc::new(asked)).await
    }

    fn undoable(
        &self,
        execution: &ExecutionId,
    ) -> Result<(Box<Intent>, semel_core::volume::Volume), Refusal> {
        let journal = &self.engine.journal;
        let Some(state) = journal.execution(execution.clone()).map_err(store)? else {
            let unknown =
                || Refusal::new(Code::NotFound, "there is no such execution").name(execution.as_str());
            return Err(look::freed(&**journal, execution)?.unwrap_or_else(unknown));
        };
        let not_done = |why: &str| {
            Refusal::new(Code::PreconditionFailed, why)
                .reason("not_done")
                .name(execution.as_str())
        };
        let intent = match state {
            CallState::Finished { intent, receipt } => match receipt.outcome {
                Outcome::Done(_) => intent,
                Outcome::Refused { .. } => {
                    return Err(not_done("the call was refused: there is nothing to undo"));
                }
            },
            CallState::Running { .. } => return Err(not_done("the call is still running")),
            CallState::Unknown { .. } => {
                return Err(not_done(
                    "its outcome is unknown; settle it first, with semel resolve",
                ));
            }
        };
        let lease = crate::engine::volume::find(&self.engine, &intent.generation)?;
        if lease.state == VolumeState::Destroyed {
            let why = "the volume was freed, and what was there before with it";
            return Err(Refusal::new(Code::UndoExpired, why).name(execution.as_str()));
        }
        lease.live()?;
        Ok((intent, lease))
    }
}

impl Bench<'_> {
    /// Prepares the effects that undo those of another execution, the last first.
    ///
    /// # Errors
    /// `precondition_failed`, reason `changed_since`; `undo_expired`; those of the effects.
    pub(super) fn undo(&mut self, undone: &Intent) -> Result<(), Error> {
        for (n, effect) in undone.effects.iter().enumerate().rev() {
            self.undo_one(&Slot::of(&undone.execution_id, n), effect, undone.effects.len())?;
        }
        Ok(())
    }

    fn undo_one(&mut self, slot: &Slot, effect: &Effect, of: usize) -> Result<(), Error> {
        match effect {
            Effect::Install {
                at,
                staged,
                content: Content::File { sha256, .. },
                before,
            } => {
                self.take_away(at, staged, Expected::Sha256(*sha256), Removable::Leaf)?;
                match before {
                    Some(before) => {
                        self.add(|disk, terms, _| files::prepare_restore(disk, slot, before, at, terms))
                    }
                    None => Ok(()),
                }
            }
            // What a patch made around its new files may hold others by now: it stays.
            Effect::Install { .. } if of > 1 => Ok(()),
            Effect::Install { at, staged, .. } => {
                let tree = self.mutation.disk.tree();
                if !files::holds_directories_alone(tree, at)? {
                    return Err(changed_since(at, "there are files in the directory"));
                }
                self.take_away(at, staged, Expected::Any, Removable::Directory)
            }
            Effect::Remove { at, before } => {
                self.add(|disk, terms, _| files::prepare_restore(disk, slot, before, at, terms))
            }
            Effect::RemoveEmpty { at, .. } => self.directories(std::slice::from_ref(at)),
            Effect::Restore { at, what, .. } => {
                let expected = what.sha256.map_or(Expected::Any, Expected::Sha256);
                let takes = match files::kind_at(&self.mutation.disk, at, self.mutation.git)? {
                    Some(files::FileKind::Directory) => Removable::Directory,
                    _ => Removable::Leaf,
                };
                self.take_away(at, &what.id, expected, takes)
            }
            Effect::Move { from, to, what } => {
                let wanted = Move {
                    from: to,
                    to: from,
                    expected: what.sha256.map_or(Expected::Any, Expected::Sha256),
                    place: None,
                };
                self.add(|disk, terms, _| files::prepare_move(disk, wanted, terms))
                    .map_err(|error| since(to, error))?;
                self.is_still(to, &what.id)
            }
            Effect::Run { .. } | Effect::Forward { .. } => Err(not_undoable(effect.at())),
            Effect::SetMode {
                at,
                id,
                before,
                after,
            } => {
                let wanted = SetMode {
                    path: at,
                    mode: *before & 0o777,
                    expected: Expected::Any,
                };
                self.add(|disk, terms, _| files::prepare_set_mode(disk, wanted, terms))
                    .map_err(|error| since(at, error))?;
                match self.ready.effects.last().map(|last| &last.effect) {
                    Some(Effect::SetMode {
                        id: now,
                        before: mode,
                        ..
                    }) if now == id && mode == after => Ok(()),
                    _ => Err(changed_since(at, "its permissions, or the file, changed since")),
                }
            }
        }
    }

    fn take_away(
        &mut self,
        at: &RelPath,
        id: &FileId,
        expected: Expected,
        takes: Removable,
    ) -> Result<(), Error> {
        self.remove(at, expected, takes)
            .map_err(|error| since(at, error))?;
        self.is_still(at, id)
    }

    /// Refuses where what the last effect is about is not what the undone one left.
    fn is_still(&self, at: &RelPath, id: &FileId) -> Result<(), Error> {
        let about = self.ready.effects.last().map(Prepared::about);
        if about == Some(Some(id)) {
            Ok(())
        } else {
            Err(changed_since(at, "something else is there since"))
        }
    }
}

/// Says of a precondition that does not hold what undoing says: the path changed since.
fn since(at: &RelPath, error: Error) -> Error {
    match error {
        Error::Refused(refusal) if matches!(refusal.code, Code::PreconditionFailed | Code::NotFound) => {
            changed_since(at, &refusal.why)
        }
        other => other,
    }
}

fn not_undoable(cwd: &RelPath) -> Error {
    let why = "what a command did is not known to Semel, and cannot be put back";
    Refusal::new(Code::PreconditionFailed, why)
        .reason("not_undoable")
        .name(cwd.to_string())
        .into()
}

fn changed_since(at: &RelPath, why: &str) -> Error {
    Refusal::new(Code::PreconditionFailed, format!("the path changed since: {why}"))
        .reason("changed_since")
        .name(at.to_string())
        .into()
}
