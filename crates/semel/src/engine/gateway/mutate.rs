//! A mutating call, once: look up → lock the path → stage → intent → act → receipt → answer.
//!
//! Each step between two waits runs on one blocking thread; whoever waits, for a path or for the same call that
//! runs already, holds none. The lookup is a hint; `begin` decides.

use super::answer::{Answer, Failure, Replayed, of_done};
use super::call::{Asked, micros};
use super::crash::CrashPoint;
use super::locks::{PathKey, PathLock};
use super::mutation::{Mutation, Ready};
use super::tool::Tool;
use super::{Flight, Gateway};
use crate::engine::{host, store};
use crate::limits;
use semel_core::call::{CallState, Decision, Done, Event, Intent, Outcome, Receipt, Scope, admit};
use semel_core::ids::{ExecutionId, IdempotencyKey};
use semel_core::volume::Durability;
use semel_core::{Code, Refusal, Sha256};
use semel_host::{clock, files};
use semel_store::Began;
use std::sync::Arc;
use std::time::Duration;

/// How often the resolved path may change between lookup and lock.
const MOVES: usize = 8;

/// Is where a blocking step ends.
enum Step {
    /// With the answer.
    Answer(Answer),
    /// The same call runs: wait for its end.
    Wait(ExecutionId),
    /// Another call holds the path: wait for it.
    Locked(PathKey),
}

impl Gateway {
    /// Answers a mutating call.
    pub(super) async fn mutate(self: &Arc<Self>, asked: Arc<Asked>) -> Answer {
        let mut held: Option<PathLock> = None;
        loop {
            let permit = match self.permit() {
                Ok(permit) => permit,
                Err(refusal) => return Err(refusal.into()),
            };
            let pass = asked.waiting(self.pass(&asked.lease.generation)).await;
            let (mine, lock) = (asked.clone(), held.take());
            let step = self
                .blocking(move |gateway| {
                    let step = gateway.step(&mine, lock);
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
                Ok(Step::Locked(key)) => {
                    let taken = tokio::time::timeout(limits::IN_FLIGHT_WAIT_MOST, self.locks.take(key));
                    match asked.waiting(taken).await {
                        Ok(lock) => held = Some(lock),
                        Err(_) => return Err(in_flight("another call holds the path").into()),
                    }
                }
            }
        }
    }

    /// Waits until the same call has ended, as long as the caller wants to.
    async fn wait_for(self: &Arc<Self>, asked: &Arc<Asked>, execution: ExecutionId) -> Result<(), Failure> {
        let left = asked.wait.saturating_sub(asked.since.elapsed());
        let ended = match self.flight(&execution) {
            Some(mut flight) => tokio::time::timeout(left, async move {
                // The sender is dropped when the execution ends, which is as good as being told.
                drop(flight.wait_for(|now| *now == Flight::Ended).await);
            })
            .await
            .is_ok(),
            // Between the receipt and this look it ended; or another life of the daemon left it running.
            None => {
                tokio::time::sleep(Duration::from_millis(2).min(left)).await;
                !left.is_zero()
            }
        };
        if ended {
            return Ok(());
        }
        let refusal = in_flight("the first call with this key is still running").name(execution.as_str());
        let noted = (asked.clone(), refusal.clone(), execution.clone());
        drop(
            self.blocking(move |gateway| gateway.refuse(&noted.0, noted.1, Some(noted.2)))
                .await,
        );
        Err(Failure {
            refusal,
            execution_id: Some(execution),
            replayed: Replayed::No,
        })
    }

    /// Goes as far as it can without waiting.
    fn step(self: &Arc<Self>, asked: &Asked, mut held: Option<PathLock>) -> Step {
        let mutation = match self.looked_up(asked) {
            Ok(mutation) => mutation,
            Err(step) => return *step,
        };
        self.hooks.reached(CrashPoint::Checked);
        for _ in 0..MOVES {
            let key = match mutation.path_key() {
                Ok(key) => key,
                Err(refusal) => return self.precluded(&mutation, refusal),
            };
            match held.take().filter(|lock| lock.key == key) {
                Some(_lock) => return self.execute(&mutation),
                None => match self.locks.try_take(&key) {
                    Some(lock) => held = Some(lock),
                    None => return Step::Locked(key),
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
        let scope = Scope {
            principal: asked.lease.principal.clone(),
            job: asked.lease.job.clone(),
            generation: Some(asked.lease.generation.clone()),
        };
        let prior = self
            .engine
            .journal
            .prior(scope.clone(), key.clone())
            .map_err(|e| fail(store(e)))?;
        let request = match asked.understood.request(asked.tool) {
            Ok(request) => request,
            // No call under a path that leads nowhere was ever recorded: a known key belongs to another call.
            Err(escapes) => {
                let execution = prior.as_ref().map(|state| state.intent().execution_id.clone());
                let refusal = prior.map_or(escapes, |state| other_call(&state, asked.tool));
                return Err(Box::new(Step::Answer(self.refuse(asked, refusal, execution))));
            }
        };
        if let Some(step) = self.settled(asked, &key, admit(prior.as_ref(), &request)) {
            return Err(Box::new(step));
        }
        self.open_for_effects().map_err(fail)?;
        let disk = self.disk(&asked.lease).map_err(fail)?;
        Ok(Mutation {
            asked,
            key,
            request,
            scope,
            disk,
        })
    }

    /// Gives the step that a decision leads to; `None` where the call is to execute.
    fn settled(self: &Arc<Self>, asked: &Asked, key: &IdempotencyKey, decision: Decision) -> Option<Step> {
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
            Decision::Replay {
                execution_id,
                receipt,
            } => {
                self.note_asked(asked, Event::Replayed, Some(execution_id.clone()));
                Some(Step::Answer(match receipt.outcome {
                    Outcome::Done(done) => Ok(of_done(
                        &done,
                        &execution_id,
                        key,
                        &asked.lease.generation,
                        Replayed::Yes,
                    )),
                    Outcome::Refused { refusal } => Err(Failure {
                        refusal,
                        execution_id: Some(execution_id),
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
        let prior = match self
            .engine
            .journal
            .prior(mutation.scope.clone(), mutation.key.clone())
        {
            Ok(prior) => prior,
            Err(error) => return Step::Answer(self.refuse(asked, store(error), None)),
        };
        self.settled(asked, &mutation.key, admit(prior.as_ref(), &mutation.request))
            .unwrap_or_else(|| Step::Answer(self.refuse(asked, refusal, None)))
    }

    /// Executes the call under the lock on its path.
    fn execute(self: &Arc<Self>, mutation: &Mutation<'_>) -> Step {
        let asked = mutation.asked;
        if asked.gone() {
            return Step::Answer(Err(Refusal::new(Code::Draining, "the caller went away").into()));
        }
        let seed = match clock::seed() {
            Ok(seed) => seed,
            Err(error) => return Step::Answer(self.refuse(asked, host(error), None)),
        };
        let execution = ExecutionId::mint(seed);
        let (mut ready, effect, facts, resolved) = match mutation.prepare(self, &execution) {
            Ok(prepared) => prepared,
            Err(error) => {
                if error.poisons() {
                    self.poison(&host(error));
                    return Step::Answer(Err(stopped().into()));
                }
                return self.precluded(mutation, host(error));
            }
        };
        let intent = mutation.intent(&execution, effect, facts, resolved);
        let flight = self.takes_off(&execution);
        let began = self.begin(intent.clone(), &mut ready);
        let step = match began {
            Ok(Began::Began) => Step::Answer(self.act(mutation, &intent, ready)),
            Ok(Began::Prior(state)) => {
                mutation.discard(&intent);
                let decision = admit(Some(&state), &mutation.request);
                self.settled(asked, &mutation.key, decision)
                    .unwrap_or_else(|| Step::Answer(Err(stopped().into())))
            }
            Err(Unbegun::Refused(refusal)) => {
                mutation.discard(&intent);
                Step::Answer(self.refuse(asked, refusal, None))
            }
            // The intent may be recorded: the staged content is the evidence that nothing happened, and stays.
            Err(Unbegun::Open(refusal)) => {
                self.poison(&refusal);
                Step::Answer(Err(stopped().into()))
            }
        };
        drop(flight);
        step
    }

    /// Records the intent; in durability `power` the staged content becomes durable meanwhile.
    fn begin(&self, intent: Intent, ready: &mut Ready) -> Result<Began, Unbegun> {
        let durable = intent.durability != Durability::Process;
        let journal = &self.engine.journal;
        match ready {
            Ready::Write(prepared) if durable => {
                let (began, synced) = std::thread::scope(|scope| {
                    let sync = scope.spawn(|| prepared.sync_staged(&self.hooks));
                    (journal.begin(intent), sync.join())
                });
                match synced {
                    Ok(Ok(())) => began.map_err(unbegun),
                    Ok(Err(error)) => Err(Unbegun::Open(host(error))),
                    Err(_) => Err(Unbegun::Open(Refusal::new(Code::Internal, "a sync panicked"))),
                }
            }
            Ready::Write(_) | Ready::Remove(_) => journal.begin(intent).map_err(unbegun),
        }
    }

    /// Acts, and records what came of it.
    fn act(&self, mutation: &Mutation<'_>, intent: &Intent, ready: Ready) -> Answer {
        self.hooks.reached(CrashPoint::Begun);
        let acted = match ready {
            Ready::Write(prepared) => {
                files::install(&mutation.disk, prepared, &self.hooks).map(|installed| installed.before)
            }
            Ready::Remove(prepared) => {
                files::remove(&mutation.disk, &prepared, &self.hooks).map(|removed| removed.before)
            }
        };
        self.hooks.reached(CrashPoint::Acted);
        match acted {
            Ok(before) => self.acted(mutation, intent, before),
            Err(error) if error.poisons() => {
                self.poison(&host(error));
                Err(stopped().into())
            }
            Err(error) => self.not_acted(mutation, intent, host(error)),
        }
    }

    fn acted(&self, mutation: &Mutation<'_>, intent: &Intent, before: Option<Sha256>) -> Answer {
        let done = Done {
            sha256_before: before.or(intent.done().sha256_before),
            ..intent.done()
        };
        self.finish(mutation.asked, intent, Outcome::Done(done.clone()))?;
        self.counters.executed.add();
        let generation = &mutation.asked.lease.generation;
        Ok(of_done(
            &done,
            &intent.execution_id,
            &mutation.key,
            generation,
            Replayed::No,
        ))
    }

    /// Settles a call whose intent is recorded and whose effect did not happen, or may have.
    fn not_acted(&self, mutation: &Mutation<'_>, intent: &Intent, refusal: Refusal) -> Answer {
        let execution = intent.execution_id.clone();
        let journal = &self.engine.journal;
        match refusal.code {
            Code::OutcomeUnknown => {
                self.counters.unknown.add();
                if let Err(error) = journal.unknown(execution.clone(), refusal.to_string(), clock::now()) {
                    self.poison(&store(error));
                }
            }
            // It is proven not to have begun: the key is free, and the same call may be sent again.
            Code::IoFailed => match journal.free(execution.clone(), refusal.to_string(), clock::now()) {
                Ok(()) => mutation.discard(intent),
                Err(error) => self.poison(&store(error)),
            },
            _ => {
                // The receipt first: staged content without a receipt is evidence that nothing happened.
                self.finish(
                    mutation.asked,
                    intent,
                    Outcome::Refused {
                        refusal: refusal.clone(),
                    },
                )?;
                self.counters.refused.add();
                mutation.discard(intent);
            }
        }
        Err(Failure {
            refusal,
            execution_id: Some(execution),
            replayed: Replayed::No,
        })
    }

    fn finish(&self, asked: &Asked, intent: &Intent, outcome: Outcome) -> Result<(), Failure> {
        let receipt = Receipt {
            at: clock::now(),
            outcome,
            recovered: None,
            took_us: Some(micros(asked.since.elapsed())),
            waited_us: Some(asked.waited_us()),
        };
        if let Err(error) = self.engine.journal.finish(intent.execution_id.clone(), receipt) {
            self.poison(&store(error));
            return Err(Failure {
                refusal: stopped(),
                execution_id: Some(intent.execution_id.clone()),
                replayed: Replayed::No,
            });
        }
        self.hooks.reached(CrashPoint::Receipted);
        Ok(())
    }
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

fn in_flight(why: &str) -> Refusal {
    Refusal::new(Code::CallInFlight, why)
}

fn stopped() -> Refusal {
    Refusal::new(
        Code::StoreUnavailable,
        "a failure left it open what is on the disk; the daemon ends and recovers",
    )
}
