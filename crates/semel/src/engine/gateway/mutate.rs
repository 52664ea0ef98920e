//! A mutating call, once: look up → lock → prepare → intent → act → receipt → answer.
//!
//! It runs on the threads that may block, the hands; whoever waits, for a path, for the journal, or for the same call that
//! runs already, holds none. The lookup is a hint; `begin` decides.

use super::Gateway;
use super::answer::{Answer, Failure, Replayed};
use super::call::{Asked, scope_of};
use super::command::Flown;
use super::crash::CrashPoint;
use super::leaving::{Awaited, left};
use super::locks::{Held, Needs};
use super::mutation::Mutation;
use super::prepare::Ready;
use super::quota::full;
use super::tool::Tool;
use crate::engine::{host, store};
use crate::limits;
use semel_core::call::{CallState, Decision, Event, Intent, Outcome, Scope, admit};
use semel_core::ids::{ExecutionId, IdempotencyKey};
use semel_core::volume::Durability;
use semel_core::{Code, Refusal};
use semel_host::{clock, files};
use semel_store::{Began, Then};
use std::sync::Arc;
use tokio::sync::oneshot;

/// How often the resolved path may change between lookup and lock.
const MOVES: usize = 8;

/// Is where a step ends.
pub(super) enum Step {
    /// With the answer.
    Answer(Answer),
    /// The same call runs: wait for its end.
    Wait(ExecutionId),
    /// The command of this very call runs: wait for its end.
    Attend(ExecutionId),
    /// Another call holds what this one needs: wait for it.
    Locked(Box<Needs>),
}

impl Gateway {
    /// Answers a mutating call.
    pub(super) async fn mutate(self: &Arc<Self>, asked: Arc<Asked>) -> Answer {
        if let Some(answer) = self.replayed_at_once(&asked) {
            return answer;
        }
        let mut held: Option<Held> = None;
        loop {
            let permit = match self.permit() {
                Ok(permit) => permit,
                Err(refusal) => return Err(refusal.into()),
            };
            let pass = asked.waiting(self.pass(&asked.lease.generation)).await;
            let (mine, lock) = (asked.clone(), held.take());
            let gateway = self.clone();
            let step = self
                .by_hand(asked.work(), async move {
                    let step = match mine.trail.works() {
                        Awaited::Yes => gateway.step(&mine, lock).await,
                        Awaited::No => Step::Answer(Err(left().into())),
                    };
                    gateway.stepped(&mine, &step);
                    drop((permit, pass));
                    step
                })
                .await;
            match step {
                Err(refusal) => {
                    // A panic may have left an intent without its receipt: recovery looks at it.
                    self.poison(&refusal);
                    return Err(refusal.into());
                }
                Ok(Step::Answer(answer)) => return answer,
                Ok(Step::Wait(execution)) => {
                    asked.waiting(self.wait_for(&asked, execution)).await?;
                }
                Ok(Step::Attend(execution)) => return self.attend(&asked, execution).await,
                Ok(Step::Locked(needs)) => {
                    let taken = tokio::time::timeout(limits::IN_FLIGHT_WAIT_MOST, self.locks.take(*needs));
                    match asked.waiting(taken).await {
                        Ok(taken) => held = Some(taken),
                        Err(_) => {
                            let refusal = in_flight("another call holds the path");
                            return Err(self.given_up(&asked, refusal, None).await);
                        }
                    }
                }
            }
        }
    }

    /// Answers a call whose receipt is at hand, without a thread that may block; `None` leaves it to the long way.
    fn replayed_at_once(self: &Arc<Self>, asked: &Asked) -> Option<Answer> {
        let (scope, key) = (asked.scope(), asked.key.clone()?);
        let prior = self.engine.journal.prior_at_once(scope, key).ok()??;
        let request = asked.understood.request(asked.tool).ok()?;
        match self.settled(asked, admit(Some(&prior), &request))? {
            Step::Answer(answer) => Some(answer),
            Step::Wait(_) | Step::Attend(_) | Step::Locked(_) => None,
        }
    }

    /// Waits until the same call has ended, as long as the caller wants to.
    async fn wait_for(self: &Arc<Self>, asked: &Arc<Asked>, execution: ExecutionId) -> Result<(), Failure> {
        if self.flown(asked, &execution).await == Flown::Ended {
            return Ok(());
        }
        let refusal = in_flight("the first call with this key is still running").name(execution.as_str());
        Err(self.given_up(asked, refusal, Some(execution)).await)
    }

    /// Goes as far as it can without waiting.
    async fn step(self: &Arc<Self>, asked: &Asked, mut held: Option<Held>) -> Step {
        let mutation = match self.looked_up(asked) {
            Ok(mutation) => mutation,
            Err(step) => return *step,
        };
        self.hooks.reached(CrashPoint::Checked);
        if let Err(refusal) = self.forbidden(&mutation) {
            return self.precluded(&mutation, refusal);
        }
        for _ in 0..MOVES {
            // Looked for again under the lock: a path may lead elsewhere than before.
            let needs = match mutation.needs() {
                Ok(needs) => needs,
                Err(refusal) => return self.precluded(&mutation, self.veiled(&mutation, refusal)),
            };
            match held.take().filter(|held| held.needs == needs) {
                Some(_held) => return self.execute(&mutation).await,
                None => match self.locks.try_take(&needs) {
                    Some(taken) => held = Some(taken),
                    None => return Step::Locked(Box::new(needs)),
                },
            }
        }
        let refusal = Refusal::new(Code::IoFailed, "the path kept changing under the call");
        Step::Answer(self.refuse(asked, refusal, None))
    }

    /// Looks up the key, and opens the root where the call may execute.
    fn looked_up<'a>(self: &Arc<Self>, asked: &'a Asked) -> Result<Mutation<'a>, Box<Step>> {
        let fail = |refusal: Refusal| Box::new(Step::Answer(self.refuse(asked, refusal, None)));
        let Some(key) = asked.key.clone() else {
            return Err(fail(Refusal::new(
                Code::Internal,
                "a mutation reached its execution without a key",
            )));
        };
        let scope = asked.scope();
        let prior = self.known(asked, &scope, &key).map_err(|e| fail(store(e)))?;
        let request = match asked.understood.request(asked.tool) {
            Ok(request) => request,
            // No call under a path that leads nowhere was ever recorded: a known key belongs to another call.
            Err(escapes) => {
                let execution = prior.as_ref().map(|state| state.intent().execution_id.clone());
                let refusal = match prior {
                    Some(state) => other_call(&state, asked.tool),
                    None => self.asked_otherwise(&scope, &key, asked.tool).unwrap_or(escapes),
                };
                return Err(Box::new(Step::Answer(self.refuse(asked, refusal, execution))));
            }
        };
        if let Some(step) = self.settled(asked, admit(prior.as_ref(), &request)) {
            return Err(Box::new(step));
        }
        self.asked_before(&scope, &key, &request).map_err(fail)?;
        self.open_for_effects().map_err(fail)?;
        let disk = self.disk(&asked.lease).map_err(fail)?;
        Ok(Mutation {
            asked,
            key,
            request,
            scope,
            disk,
            git: self.git_internals(asked),
        })
    }

    /// Finds what is known of a key: in its scope, else in the other one. To the journal these are two keys; but who
    /// forgets the scope in a retry means no other effect. A tool that takes a scope finds a key of the job whichever
    /// generation used it; any other one what this generation used.
    pub(super) fn known(
        &self,
        asked: &Asked,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<CallState>, semel_store::Error> {
        let generation = &asked.lease.generation;
        let journal = &self.engine.journal;
        if let Some(state) = journal.prior(scope.clone(), key.clone())? {
            return Ok(Some(state));
        }
        let of_job = scope_of(&asked.lease, None);
        match scope.generation {
            None => {
                let own = scope_of(&asked.lease, Some(generation.clone()));
                journal.prior_of(generation, own, key.clone())
            }
            Some(_) if asked.runs_a_command() => journal.prior(of_job, key.clone()),
            Some(_) => journal.prior_of(generation, of_job, key.clone()),
        }
    }

    /// Gives the step that a decision leads to; `None` where the call is to execute.
    fn settled(self: &Arc<Self>, asked: &Asked, decision: Decision) -> Option<Step> {
        match decision {
            Decision::Execute => None,
            Decision::Wait { execution_id } => Some(Step::Wait(execution_id)),
            Decision::Refuse(refusal) => {
                let execution = refusal
                    .names
                    .first()
                    .and_then(|name| ExecutionId::parse(name).ok());
                Some(Step::Answer(self.refuse(asked, refusal, execution)))
            }
            Decision::Replay { intent, receipt } => {
                if let Err(refusal) = self.keeps_receipt(&asked.lease, &intent) {
                    let execution = intent.execution_id.clone();
                    return Some(Step::Answer(self.refuse(asked, refusal, Some(execution))));
                }
                self.note_asked(asked, Event::Replayed, Some(intent.execution_id.clone()));
                Some(Step::Answer(match &receipt.outcome {
                    Outcome::Done(done) => Ok(self.success(&intent, &receipt, done, Replayed::Yes)),
                    Outcome::Refused { refusal } => Err(Failure {
                        refusal: refusal.clone(),
                        execution_id: Some(intent.execution_id.clone()),
                        replayed: Replayed::Yes,
                    }),
                }))
            }
        }
    }

    /// Refuses a call whose preconditions do not hold, unless it is only late: the same call may have run since the
    /// key was looked up, and be the very reason.
    fn precluded(self: &Arc<Self>, mutation: &Mutation<'_>, refusal: Refusal) -> Step {
        let asked = mutation.asked;
        let prior = match self.known(asked, &mutation.scope, &mutation.key) {
            Ok(prior) => prior,
            Err(error) => return Step::Answer(self.refuse(asked, store(error), None)),
        };
        self.settled(asked, admit(prior.as_ref(), &mutation.request))
            .unwrap_or_else(|| Step::Answer(self.refuse(asked, refusal, None)))
    }

    /// Executes the call under its locks; an edit is made anew, a bounded number of times, where an outside process
    /// saved the file meanwhile.
    async fn execute(self: &Arc<Self>, mutation: &Mutation<'_>) -> Step {
        for _ in 1..limits::REEDITS {
            match self.once(mutation, Displaced::Again).await {
                Once::Over(step) => return step,
                Once::Again => {}
            }
        }
        match self.once(mutation, Displaced::Refuse).await {
            Once::Over(step) => step,
            Once::Again => Step::Answer(Err(stopped().into())),
        }
    }

    /// Prepares, records the intent, and acts, under one execution.
    async fn once(self: &Arc<Self>, mutation: &Mutation<'_>, displaced: Displaced) -> Once {
        let asked = mutation.asked;
        let over = |answer: Answer| Once::Over(Step::Answer(answer));
        if asked.gone() {
            return over(self.refuse(asked, left(), None));
        }
        let seed = match clock::seed() {
            Ok(seed) => seed,
            Err(error) => return over(self.refuse(asked, host(error), None)),
        };
        let execution = ExecutionId::mint(seed);
        let mut ready = match mutation.prepare(self, &execution) {
            Ok(ready) => ready,
            Err(error) if error.poisons() => {
                self.poison(&host(error));
                return over(Err(stopped().into()));
            }
            Err(error) => {
                let refusal = self.veiled(mutation, full(&mutation.disk, error));
                return Once::Over(self.precluded(mutation, refusal));
            }
        };
        let intent = mutation.intent(&execution, &ready);
        let may = self.permitted(mutation, &ready, &intent);
        if let Err(refusal) = may.and_then(|()| self.fits(mutation, &ready)) {
            mutation.discard(&execution, &intent.effects);
            return Once::Over(self.precluded(mutation, refusal));
        }
        let flight = self.takes_off(&execution);
        match self.begin(intent.clone(), &ready).await {
            Ok(Began::Began) => match ready.command.take() {
                Some(command) => Once::Over(self.launch(mutation, intent, command, flight).await),
                None => match self.act(mutation, &intent, &ready, displaced).await {
                    Some(answer) => over(answer),
                    None => Once::Again,
                },
            },
            Ok(Began::Prior(state)) => {
                mutation.discard(&execution, &intent.effects);
                let decision = admit(Some(&state), &mutation.request);
                let step = self.settled(asked, decision);
                Once::Over(step.unwrap_or_else(|| Step::Answer(Err(stopped().into()))))
            }
            Err(Unbegun::Refused(refusal)) => {
                mutation.discard(&execution, &intent.effects);
                over(self.refuse(asked, refusal, None))
            }
            // The intent may be recorded: the staged content is the evidence that nothing happened, and stays.
            Err(Unbegun::Open(refusal)) => {
                self.poison(&refusal);
                over(Err(stopped().into()))
            }
        }
    }

    /// Records the intent; in durability `power` what is staged becomes durable meanwhile.
    async fn begin(&self, intent: Intent, ready: &Ready) -> Result<Began, Unbegun> {
        let power = intent.durability != Durability::Process;
        let began = told(|then| self.engine.journal.begin_then(intent, then));
        let synced = if power {
            files::sync_staged(&ready.effects, &self.hooks)
        } else {
            Ok(())
        };
        let began = began.await;
        match synced {
            Ok(()) => began.map_err(unbegun),
            Err(error) => Err(Unbegun::Open(host(error))),
        }
    }
}

/// Has something asked of the journal at once; the answer is waited for without a thread.
pub(super) fn told<T: Send + 'static>(
    ask: impl FnOnce(Then<T>),
) -> impl Future<Output = Result<T, semel_store::Error>> {
    let (tell, answer) = oneshot::channel();
    // Whoever went away needs no answer; what is recorded stays.
    ask(Box::new(move |told| drop(tell.send(told))));
    async move {
        answer.await.unwrap_or_else(|_| {
            Err(semel_store::Error::Poisoned {
                why: "the writer of the journal has ended".to_owned(),
            })
        })
    }
}

/// Says what becomes of an edit whose file was saved by another process meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Displaced {
    /// It is made anew.
    Again,
    /// It is refused.
    Refuse,
}

/// Is where one execution of a call ends.
enum Once {
    Over(Step),
    Again,
}

/// Says why an intent was not recorded.
enum Unbegun {
    /// A rule did not hold; it is proven that nothing was recorded.
    Refused(Refusal),
    /// A failure left it open whether it was.
    Open(Refusal),
}

fn unbegun(error: semel_store::Error) -> Unbegun {
    match error {
        semel_store::Error::Refused(refusal) => Unbegun::Refused(refusal),
        other => Unbegun::Open(store(other)),
    }
}

/// Refuses a call under a path that leads nowhere, whose key is known: no such call was ever recorded.
fn other_call(state: &CallState, tool: Tool) -> Refusal {
    let same_tool = state.intent().tool == tool.name();
    Refusal::new(Code::ReplayConflict, "the key belongs to another call")
        .reason(if same_tool {
            "path_mismatch"
        } else {
            "tool_mismatch"
        })
        .name(state.intent().execution_id.as_str())
}

pub(super) fn in_flight(why: &str) -> Refusal {
    Refusal::new(Code::CallInFlight, why)
}

pub(super) fn stopped() -> Refusal {
    Refusal::new(
        Code::StoreUnavailable,
        "a failure left it open what is on the disk; the daemon ends and recovers",
    )
}
