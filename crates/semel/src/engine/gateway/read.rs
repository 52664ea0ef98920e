//! Calls without an effect: reads of the volume, and what came of a key.

use super::Gateway;
use super::answer::{Answer, put_path, result};
use super::arguments::{Args, Look};
use super::call::{Asked, read_answer, scope_of};
use super::leaving::{Awaited, left};
use super::policy::resolved;
use super::shows::{self, Asks, Seen};
use crate::engine::{store, volume};
use crate::limits;
use semel_core::call::{CallState, Event, Intent, Outcome};
use semel_core::ids::IdempotencyKey;
use semel_core::volume::Volume;
use semel_core::{Code, Refusal};
use semel_host::root::LastLink;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Instant;

impl Gateway {
    /// Answers a call that reads.
    pub(super) async fn read(self: &Arc<Self>, asked: Arc<Asked>) -> Answer {
        let searching = match &asked.understood.args {
            Args::Look(look) if look.is_search() => Some(self.search_permit().await?),
            _ => None,
        };
        let permit = self.permit()?;
        let pass = self.pass(&asked.lease.generation).await;
        self.blocking(move |gateway| {
            if asked.trail.works() == Awaited::No {
                return Err(left().into());
            }
            let body = gateway.read_now(&asked);
            drop((permit, pass, searching));
            match body {
                Ok(body) => {
                    gateway.note_asked(&asked, Event::Read, None);
                    Ok(read_answer(body))
                }
                Err(refusal) => gateway.refuse(&asked, refusal, None),
            }
        })
        .await?
    }

    fn read_now(self: &Arc<Self>, asked: &Asked) -> Result<Map<String, Value>, Refusal> {
        if let Args::Receipt { key } = &asked.understood.args {
            return self.receipt(&asked.lease, key);
        }
        let Args::Look(look) = &asked.understood.args else {
            let why = "a call that does not read reached the reads";
            return Err(Refusal::new(Code::Internal, why));
        };
        let path = asked.understood.path.clone()?;
        let disk = self.disk(&asked.lease)?;
        let last = match &**look {
            Look::Info { .. } => LastLink::Keep,
            Look::File { .. } | Look::Directory { .. } | Look::Search { .. } | Look::Grep { .. } => {
                LastLink::Follow
            }
        };
        let named = resolved(disk.tree(), &path, last);
        self.may_read(asked, &named)?;
        let began = Instant::now();
        let asks = Asks {
            open: &|path| self.shows(asked, path),
            over: &|| asked.gone() || began.elapsed() >= limits::SEARCH,
        };
        let Seen { at, mut body } = shows::look(disk.tree(), &path, look, &asks)?;
        // A link may lead elsewhere by now: what was read is what has to be open to the caller.
        if at != named {
            self.may_read(asked, &at)?;
        }
        body.insert("generation".to_owned(), json!(asked.lease.generation));
        Ok(body)
    }

    /// Says what came of a key in the scope of a token, ended or not.
    ///
    /// # Errors
    /// `not_found` where the key was never used; `key_expired` where its receipt is past retention.
    pub(crate) fn receipt(
        &self,
        lease: &Volume,
        key: &IdempotencyKey,
    ) -> Result<Map<String, Value>, Refusal> {
        let in_generation = scope_of(lease, Some(lease.generation.clone()));
        let prior = |scope| self.engine.journal.prior(scope, key.clone()).map_err(store);
        let state = match prior(in_generation.clone())? {
            Some(state) => Some(state),
            None => prior(scope_of(lease, None))?,
        };
        if let Some(state) = state {
            self.keeps_receipt(lease, state.intent())?;
            return Ok(receipt_body(&state));
        }
        self.asked_body(&in_generation, key)?
            .ok_or_else(|| Refusal::new(Code::NotFound, "no call with this key began").name(key.as_str()))
    }

    /// Says whether the receipt of a call is kept, for whoever holds a token of a volume.
    ///
    /// # Errors
    /// `key_expired`; `store_unavailable`.
    pub(super) fn keeps_receipt(&self, lease: &Volume, intent: &Intent) -> Result<(), Refusal> {
        if intent.generation == lease.generation {
            return lease.keeps_receipt(&intent.execution_id);
        }
        volume::find(&self.engine, &intent.generation)?.keeps_receipt(&intent.execution_id)
    }
}

/// Says what came of a call.
pub(in crate::engine) fn receipt_body(state: &CallState) -> Map<String, Value> {
    let intent = state.intent();
    let mut body = Map::new();
    put_path(&mut body, &intent.path);
    body.insert("idempotency_key".to_owned(), json!(intent.key));
    body.insert("execution_id".to_owned(), json!(intent.execution_id));
    body.insert("generation".to_owned(), json!(intent.generation));
    body.insert("tool".to_owned(), json!(intent.tool));
    body.insert("began_at".to_owned(), json!(intent.at.to_string()));
    let (name, more) = match state {
        CallState::Running { aborting, .. } => (
            "running",
            json!({"taken_back": aborting.as_ref().map(|aborting| aborting.why.clone())}),
        ),
        CallState::Unknown { why, .. } => ("unknown", json!({"why": why})),
        CallState::Finished { receipt, .. } => {
            let mut more = json!({
                "ended_at": receipt.at.to_string(),
                "recovered": receipt.recovered.as_ref().map(|recovered| recovered.evidence.clone()),
                "resolved": receipt.resolved,
                "possible_duplicate_of": receipt.possible_duplicate_of,
            });
            match &receipt.outcome {
                Outcome::Done(done) => {
                    more["result"] = Value::Object(result(intent, done));
                    ("done", more)
                }
                Outcome::Refused { refusal } => {
                    more["refusal"] = json!(refusal);
                    ("refused", more)
                }
            }
        }
    };
    body.insert("state".to_owned(), json!(name));
    if let Value::Object(more) = more {
        body.extend(more);
    }
    body
}
