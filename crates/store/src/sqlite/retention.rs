//! The verbs by which things are past retention: pre-images that are freed, and receipts that expire.
//!
//! Entries of the log are never freed. What goes lies beside the journal; here it is decided, and recorded, that it may.

use super::desk::Desk;
use super::fault;
use super::row::{self, select_calls};
use crate::error::Result;
use semel_core::call::CallState;
use semel_core::effect::Effect;
use semel_core::ids::{ExecutionId, Generation, UnixMs};
use semel_core::record::Record;
use semel_core::volume::{Volume, VolumeState};
use semel_core::{Code, Refusal};
use std::collections::BTreeSet;

/// How many calls one entry may name.
const MOST_EVICTED: usize = 1000;

impl Desk {
    /// See [`Journal::evict_pre_images`](crate::Journal::evict_pre_images).
    pub(super) fn evict_pre_images(
        &mut self,
        generation: &Generation,
        executions: &[ExecutionId],
        at: UnixMs,
    ) -> Result<Vec<ExecutionId>> {
        self.must_find(generation)?.live()?;
        if executions.len() > MOST_EVICTED {
            let why = format!("at most {MOST_EVICTED} calls are named at once");
            return Err(Refusal::new(Code::BadInput, why).into());
        }
        let needed = self.needed(generation)?;
        let mut may = Vec::with_capacity(executions.len());
        for execution in executions.iter().collect::<BTreeSet<_>>() {
            let known = row::call_by_execution(&self.conn, execution.as_str())?;
            let finished = known.is_some_and(|row| {
                matches!(&row.state, CallState::Finished { intent, .. } if intent.generation == *generation)
            });
            if finished && !needed.contains(execution) {
                may.push(execution.clone());
            }
        }
        if !may.is_empty() {
            self.record(&Record::PreImagesEvicted {
                generation: generation.clone(),
                executions: may.clone(),
                at,
            })?;
        }
        Ok(may)
    }

    /// Lists the calls whose pre-images a call without an outcome puts back.
    fn needed(&self, generation: &Generation) -> Result<BTreeSet<ExecutionId>> {
        let raw = self
            .conn
            .prepare_cached(select_calls!(
                "WHERE c.generation = ?1 AND c.state IN ('running', 'unknown')"
            ))
            .and_then(|mut s| {
                s.query_map([generation.as_str()], row::raw_call)?
                    .collect::<rusqlite::Result<Vec<_>>>()
            })
            .map_err(fault("look for open calls"))?;
        let mut needed = BTreeSet::new();
        for raw in raw {
            for effect in &row::fold_call(raw)?.state.intent().effects {
                if let Effect::Restore { kept, .. } = effect {
                    needed.insert(kept.execution().clone());
                }
            }
        }
        Ok(needed)
    }

    /// See [`Journal::expire_receipts`](crate::Journal::expire_receipts).
    pub(super) fn expire_receipts(&mut self, generation: &Generation, at: UnixMs) -> Result<Volume> {
        let volume = self.must_find(generation)?;
        if volume.receipts_expired_at.is_some() {
            return Ok(volume);
        }
        if volume.state != VolumeState::Destroyed {
            let why = "the receipts of a volume do not expire before it is destroyed";
            return Err(Refusal::new(Code::VolumeBusy, why)
                .name(generation.as_str())
                .into());
        }
        self.settled(generation, "its receipts do not expire")?;
        self.record(&Record::ReceiptsExpired {
            generation: generation.clone(),
            at,
        })?;
        self.must_find(generation)
    }
}
