//! What follows an intent: the call is sent, and what came of it is recorded. And calls that read, of which nothing is.

use super::{Answered, Asks, Passed, answer_of};
use crate::engine::gateway::Gateway;
use crate::engine::gateway::answer::Replayed;
use crate::engine::gateway::call::micros;
use crate::engine::gateway::crash::CrashPoint;
use crate::engine::gateway::hands::Work;
use crate::engine::gateway::mutate::stopped;
use crate::engine::store;
use crate::engine::upstream::{Came, Link};
use crate::limits;
use semel_core::call::{Done, Event, Intent, Outcome, Receipt};
use semel_core::policy::Group;
use semel_core::upstream::{Heard, Said, Tool};
use semel_core::{Code, Refusal};
use semel_host::clock;
use serde_json::{Value, json};
use std::sync::Arc;

/// How often a call is sent that never reached its server.
const TRIES: usize = 3;

impl Gateway {
    /// Sends a call whose intent is recorded, and records what came of it.
    pub(super) async fn sent(
        self: &Arc<Self>,
        asks: &Asks,
        tool: &Tool,
        intent: &Intent,
        mut link: Arc<Link>,
    ) -> Answered {
        self.hooks.reached(CrashPoint::Begun);
        let (mut tries, mut disowned) = (0, false);
        loop {
            tries += 1;
            let never = match link.request(asks.wanted(tool)).await {
                Came::Answer(Said::Result, answer) if asks_for_more(&answer) => {
                    let why = "the other server wants to ask something first, and nobody here answers it; by the protocol \
                               it has done nothing";
                    let refusal = Refusal::new(Code::BadInput, why).reason("input_required");
                    return self.not_forwarded(asks, intent, refusal);
                }
                Came::Answer(Said::Result, answer) if is_a_task(&answer) => {
                    let why = "it answered with a task of its own, which nobody here asked for or can follow";
                    return self.may_have_had(asks, intent, why);
                }
                Came::Answer(said, answer) => {
                    self.hooks.reached(CrashPoint::Acted);
                    return self
                        .heard(asks, intent, Heard::keep(said, &answer, limits::UPSTREAM_RESULT))
                        .await;
                }
                Came::Refused(why) => {
                    return self.not_forwarded(asks, intent, asks.upstream.unavailable(&why));
                }
                Came::Perhaps(why) => return self.may_have_had(asks, intent, &why),
                Came::Disowned(why) if disowned => return self.may_have_had(asks, intent, &why),
                Came::Disowned(why) => {
                    disowned = true;
                    why
                }
                Came::Never(why) => why,
            };
            let again = match tries < TRIES {
                true => asks.upstream.link().await,
                false => Err(asks.upstream.unavailable(&never)),
            };
            match again {
                Ok(another) => link = another,
                Err(refusal) => return self.not_forwarded(asks, intent, refusal),
            }
        }
    }

    async fn heard(&self, asks: &Asks, intent: &Intent, heard: Heard) -> Answered {
        let outcome = Outcome::Done(Done {
            forwarded: Some(Box::new(heard)),
            ..intent.done()
        });
        let receipt = Receipt {
            at: clock::now(),
            outcome: outcome.clone(),
            recovered: None,
            resolved: None,
            possible_duplicate_of: self.recent.ran(intent),
            took_us: Some(micros(asks.since.elapsed())),
            waited_us: None,
        };
        self.finish(intent, receipt).await?;
        self.counters.executed.add();
        answer_of(&asks.upstream.name, intent, &outcome, Replayed::No)
    }

    /// Frees the key of a call that its server never had.
    fn not_forwarded(&self, asks: &Asks, intent: &Intent, refusal: Refusal) -> Answered {
        let execution = intent.execution_id.clone();
        let freed = self
            .engine
            .journal
            .free(execution.clone(), refusal.to_string(), clock::now());
        if let Err(error) = freed {
            self.poison(&store(error));
            return Err(Asks::failure(stopped(), Some(execution)));
        }
        Err(self.refuse_forwarded(asks, refusal, Some(execution)))
    }

    /// Records that nobody can tell what came of a call.
    fn may_have_had(&self, asks: &Asks, intent: &Intent, why: &str) -> Answered {
        let why = format!("the server {} may have done it: {why}", asks.upstream.name);
        let refusal = Refusal::new(Code::OutcomeUnknown, why).name(intent.execution_id.as_str());
        self.unknown(intent, &refusal);
        Err(Asks::failure(refusal, Some(intent.execution_id.clone())))
    }

    /// Answers a call that reads, by the word of its server: it is not recorded. Nor is it sent again where the server may have
    /// had it: that it only reads is the word of a server that has just ended.
    pub(super) async fn passed_on(self: &Arc<Self>, asks: &Arc<Asks>, tool: &Tool) -> Answered {
        let permit = self.permit()?;
        let pass = self.pass(&asks.lease.generation).await;
        let (gateway, mine) = (self.clone(), asks.clone());
        let may = self.by_hand(Work::Slow, async move { gateway.may_forward(&mine, Group::Read) });
        if let Err(refusal) = may.await? {
            return Err(self.later(asks, refusal, None).await);
        }
        let mut last = asks.upstream.unavailable("it was never reached");
        let mut disowned = false;
        for _ in 0..TRIES {
            let link = match asks.upstream.link().await {
                Ok(link) => link,
                Err(refusal) => return Err(self.later(asks, refusal, None).await),
            };
            match link.request(asks.wanted(tool)).await {
                Came::Answer(said, answer) => {
                    drop((permit, pass));
                    let heard = Heard::keep(said, &answer, limits::UPSTREAM_RESULT);
                    if let Some(bytes) = heard.left_out_bytes {
                        let why = format!("the answer has {bytes} bytes; ask for it in parts");
                        let refusal = Refusal::new(Code::TooLarge, why).reason("result_too_large");
                        return Err(self.later(asks, refusal, None).await);
                    }
                    let mine = asks.clone();
                    let noted =
                        self.blocking(move |gateway| gateway.note_forwarded(&mine, Event::Read, None));
                    drop(noted.await);
                    return Ok(Passed {
                        heard: Some(heard),
                        by: asks.upstream.name.clone(),
                        recorded: None,
                        replayed: Replayed::No,
                    });
                }
                Came::Refused(why) => {
                    last = asks.upstream.unavailable(&why);
                    break;
                }
                Came::Never(why) => last = asks.upstream.unavailable(&why),
                Came::Disowned(why) if !disowned => {
                    disowned = true;
                    last = asks.upstream.unavailable(&why);
                }
                Came::Disowned(why) | Came::Perhaps(why) => {
                    last = asks.upstream.gave_no_answer(&why);
                    break;
                }
            }
        }
        Err(self.later(asks, last, None).await)
    }
}

/// Knows the answer of a server that goes on with the call by itself.
fn is_a_task(answer: &Value) -> bool {
    answer.get("resultType") == Some(&json!("task"))
}

/// Knows the answer of a server that wants to ask its client something first; none of that was offered.
fn asks_for_more(answer: &Value) -> bool {
    answer.get("resultType") == Some(&json!("input_required"))
}
