//! What follows an intent: the effects in order, and what came of them. All of them, or none: where one fails, those
//! before it are taken back, after the journal was told so.

use super::Gateway;
use super::answer::{Answer, Failure, Replayed, of_done};
use super::arguments::Args;
use super::call::{Asked, micros};
use super::crash::CrashPoint;
use super::mutate::{Displaced, stopped, told};
use super::mutation::Mutation;
use super::prepare::Ready;
use crate::engine::{host, store};
use semel_core::call::{Aborting, Done, Intent, Outcome, Receipt};
use semel_core::effect::{Effect, Slot};
use semel_core::ids::ExecutionId;
use semel_core::{Code, Refusal, Sha256};
use semel_host::volume::Volume as Disk;
use semel_host::{Error, clock, files};

/// Says where the effects stand when one of them failed.
enum Stands {
    /// None happened, or all were taken back.
    Undone,
    /// Some may have happened.
    Open,
}

impl Gateway {
    /// Acts, and records what came of it; `None` where an edit is to be made anew.
    pub(super) async fn act(
        &self,
        mutation: &Mutation<'_>,
        intent: &Intent,
        ready: &Ready,
        displaced: Displaced,
    ) -> Option<Answer> {
        self.hooks.reached(CrashPoint::Begun);
        let mut before = Vec::with_capacity(ready.effects.len());
        for effect in &ready.effects {
            match effect.carry_out(&mutation.disk, &self.hooks) {
                Ok(digest) => before.push(digest),
                Err(error) if error.poisons() => return Some(self.left_open(error)),
                Err(error) => {
                    let done = before.len();
                    return self
                        .fell_short(mutation, intent, done, host(error), displaced)
                        .await;
                }
            }
            self.hooks.reached(CrashPoint::Acted);
        }
        if let Err(error) = files::sync_effects(&ready.effects, &self.hooks) {
            return Some(self.left_open(error));
        }
        Some(self.acted(mutation.asked, intent, &before).await)
    }

    /// Stops the daemon: what is on the disk has to be looked at anew.
    fn left_open(&self, error: Error) -> Answer {
        self.poison(&host(error));
        Err(stopped().into())
    }

    async fn acted(&self, asked: &Asked, intent: &Intent, before: &[Option<Sha256>]) -> Answer {
        let done = found(intent, before);
        let receipt = Receipt {
            possible_duplicate_of: self.recent.ran(intent),
            ..receipt_of(asked, Outcome::Done(done.clone()))
        };
        self.finish(intent, receipt.clone()).await?;
        self.counters.executed.add();
        Ok(of_done(intent, &receipt, &done, Replayed::No))
    }

    /// Settles a call of which one effect failed, after `done` others happened.
    pub(super) async fn fell_short(
        &self,
        mutation: &Mutation<'_>,
        intent: &Intent,
        done: usize,
        refusal: Refusal,
        displaced: Displaced,
    ) -> Option<Answer> {
        let answer = |refusal: Refusal| {
            Some(Err(Failure {
                refusal,
                execution_id: Some(intent.execution_id.clone()),
                replayed: Replayed::No,
            }))
        };
        if refusal.code == Code::OutcomeUnknown {
            self.unknown(intent, &refusal);
            return answer(refusal);
        }
        match self.taken_back(&mutation.disk, intent, done, &refusal) {
            Ok(Stands::Undone) => {}
            Ok(Stands::Open) => return answer(stopped()),
            Err(unknown) => {
                self.unknown(intent, &unknown);
                return answer(unknown);
            }
        }
        let again = displaced == Displaced::Again
            && refusal.reason.as_deref() == Some("changed_meanwhile")
            && matches!(mutation.asked.understood.args, Args::Edit { .. });
        if again || refusal.code == Code::IoFailed {
            // It is proven not to have begun: the key is free, and the same call may be sent again.
            let freed =
                self.engine
                    .journal
                    .free(intent.execution_id.clone(), refusal.to_string(), clock::now());
            if let Err(error) = freed {
                self.poison(&store(error));
                return answer(stopped());
            }
        } else {
            // The receipt first: staged content without a receipt is evidence that nothing happened.
            let refused = Outcome::Refused {
                refusal: refusal.clone(),
            };
            if let Err(failure) = self.finish(intent, receipt_of(mutation.asked, refused)).await {
                return Some(Err(failure));
            }
            self.counters.refused.add();
        }
        mutation.discard(&intent.execution_id, &intent.effects);
        if again { None } else { answer(refusal) }
    }

    /// Takes back the effects that happened, the last first; the journal is told before.
    ///
    /// # Errors
    /// What became unknown, because another process changed the same paths.
    fn taken_back(
        &self,
        disk: &Disk,
        intent: &Intent,
        done: usize,
        why: &Refusal,
    ) -> Result<Stands, Refusal> {
        if done == 0 {
            return Ok(Stands::Undone);
        }
        let aborting = Aborting {
            refusal: (why.code != Code::IoFailed).then(|| why.clone()),
            why: why.to_string(),
            begun: done,
        };
        let told = self
            .engine
            .journal
            .abort(intent.execution_id.clone(), aborting, clock::now());
        if let Err(error) = told {
            self.poison(&store(error));
            return Ok(Stands::Open);
        }
        self.hooks.reached(CrashPoint::Aborting);
        let happened = intent.effects.get(..done).unwrap_or_default();
        match roll_back(disk, intent, happened, || {
            self.hooks.reached(CrashPoint::RolledBack)
        }) {
            Ok(()) => Ok(Stands::Undone),
            Err(Error::Refused(refusal)) if refusal.code == Code::OutcomeUnknown => Err(refusal),
            Err(error) => {
                self.poison(&host(error));
                Ok(Stands::Open)
            }
        }
    }

    pub(super) fn unknown(&self, intent: &Intent, refusal: &Refusal) {
        self.counters.unknown.add();
        let execution = intent.execution_id.clone();
        let why = evidence(refusal, &execution);
        if let Err(error) = self.engine.journal.unknown(execution, why, clock::now()) {
            self.poison(&store(error));
        }
    }

    pub(super) async fn finish(&self, intent: &Intent, receipt: Receipt) -> Result<(), Failure> {
        let execution = intent.execution_id.clone();
        let journal = &self.engine.journal;
        let finished = told(|then| journal.finish_then(execution, receipt, then)).await;
        self.finished(intent, finished)
    }

    /// Records a receipt, and waits for it with the thread that asks.
    pub(super) fn finish_here(&self, intent: &Intent, receipt: Receipt) -> Result<(), Failure> {
        let finished = self.engine.journal.finish(intent.execution_id.clone(), receipt);
        self.finished(intent, finished)
    }

    fn finished(&self, intent: &Intent, finished: Result<(), semel_store::Error>) -> Result<(), Failure> {
        if let Err(error) = finished {
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

fn receipt_of(asked: &Asked, outcome: Outcome) -> Receipt {
    Receipt {
        at: clock::now(),
        outcome,
        recovered: None,
        resolved: None,
        possible_duplicate_of: None,
        took_us: Some(micros(asked.since.elapsed())),
        waited_us: Some(asked.waited_us()),
    }
}

/// Takes effects back, the last first, and makes that durable where it was promised.
///
/// # Errors
/// Those of taking one back: `outcome_unknown`; [`Error::Unproven`]; `io_failed` where it did not begin.
pub(super) fn roll_back(
    disk: &Disk,
    intent: &Intent,
    happened: &[Effect],
    reached: impl Fn(),
) -> Result<(), Error> {
    for (n, effect) in happened.iter().enumerate().rev() {
        files::roll_back(disk, &Slot::of(&intent.execution_id, n), effect)?;
        reached();
    }
    files::sync_settled(disk, happened, intent.durability)
}

/// Makes the answer of effects that happened, with the digests of what truly came out.
pub(super) fn found(intent: &Intent, before: &[Option<Sha256>]) -> Done {
    let mut done = intent.done();
    for (changed, seen) in done.changed.iter_mut().zip(before) {
        changed.sha256_before = seen.or(changed.sha256_before);
    }
    done
}

/// Puts down why an outcome is unknown; whoever tells it names the execution beside it.
pub(super) fn evidence(refusal: &Refusal, execution: &ExecutionId) -> String {
    let names = refusal.names.iter().filter(|name| *name != execution.as_str());
    Refusal {
        names: names.cloned().collect(),
        ..refusal.clone()
    }
    .to_string()
}
