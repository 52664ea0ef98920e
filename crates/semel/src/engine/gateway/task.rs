//! A command by its execution, for whoever began it: whether it runs, what came of it, and its end on request.
//!
//! There is nothing to make for it: its intent was recorded before it began, and its receipt is what came of it.

use super::Gateway;
use super::answer::{Answer, Failure, Replayed};
use super::output::{How, runs};
use crate::engine::store;
use semel_core::call::{CallState, Intent, Outcome};
use semel_core::command::Ended;
use semel_core::ids::{ExecutionId, UnixMs};
use semel_core::volume::Volume;
use semel_core::{Code, Refusal};

/// Is a command by its execution.
pub(crate) struct Task {
    /// When it began.
    pub(crate) began: UnixMs,
    /// When something last became of it.
    pub(crate) changed: UnixMs,
    /// How it is.
    pub(crate) state: State,
}

/// Says how a command is.
pub(crate) enum State {
    /// It runs.
    Runs,
    /// It was ended on request.
    Stopped,
    /// Its call has its answer.
    Answered(Box<Answer>),
}

impl Gateway {
    /// Finds a command that the holder of a lease began. It blocks.
    ///
    /// # Errors
    /// `not_found` for an execution that is no command of its own; `store_unavailable`.
    pub(crate) fn task(&self, lease: &Volume, execution: &ExecutionId) -> Result<Task, Refusal> {
        let found = self.engine.journal.execution(execution.clone()).map_err(store)?;
        let found = found.filter(|state| begun_by(state.intent(), lease)).ok_or_else(|| {
            let why = "no command of this caller has this id; where one had, it never began: send its call again";
            Refusal::new(Code::NotFound, why).name(execution.as_str())
        })?;
        let failed = |refusal: Refusal| {
            State::Answered(Box::new(Err(Failure {
                refusal,
                execution_id: Some(execution.clone()),
                replayed: Replayed::No,
            })))
        };
        let began = found.intent().at;
        let (changed, state) = match found {
            CallState::Running { .. } => (began, State::Runs),
            CallState::Unknown { why, .. } => (began, failed(Refusal::new(Code::OutcomeUnknown, why))),
            CallState::Finished { intent, receipt } => {
                let state = match (self.keeps_receipt(lease, &intent), &receipt.outcome) {
                    (Err(refusal), _) => failed(refusal),
                    (Ok(()), Outcome::Refused { refusal }) => failed(refusal.clone()),
                    (Ok(()), Outcome::Done(done)) => match done.command.as_ref().map(|ran| &ran.ended) {
                        Some(Ended::Asked { .. }) => State::Stopped,
                        _ => {
                            State::Answered(Box::new(Ok(self.success(&intent, &receipt, done, Replayed::No))))
                        }
                    },
                };
                (receipt.at, state)
            }
        };
        Ok(Task {
            began,
            changed,
            state,
        })
    }

    /// Asks that a command be ended by whoever began it; one that has ended is left as it is. It blocks.
    ///
    /// # Errors
    /// As [`Gateway::task`]; `unknown_state`, `io_failed`.
    pub(crate) fn stop_task(&self, lease: &Volume, execution: &ExecutionId) -> Result<(), Refusal> {
        match self.task(lease, execution)?.state {
            State::Stopped | State::Answered(_) => Ok(()),
            State::Runs => match self.end_command(execution, How::Ask) {
                // It ended between the two looks.
                Err(refusal) if refusal.code == Code::PreconditionFailed => Ok(()),
                ended => ended.map(drop),
            },
        }
    }
}

fn begun_by(intent: &Intent, lease: &Volume) -> bool {
    let scope = &intent.scope;
    let within = match &scope.generation {
        Some(generation) => *generation == lease.generation,
        None => true,
    };
    runs(intent) && within && scope.principal == lease.principal && scope.job == lease.job
}
