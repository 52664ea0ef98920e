//! How many calls of one token are answered at once, so that no job keeps the others out.
//!
//! Whoever waits, for a path or for the first call with its key, holds no place of the gateway, but memory, and a
//! connection: here it counts, too.

use super::{Gateway, lock};
use crate::limits;
use semel_core::ids::Generation;
use semel_core::volume::Volume;
use semel_core::{Code, Refusal};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Counts the calls of each generation. Tokens that were derived from one another share its count: otherwise whoever
/// made more of them would have more.
#[derive(Default)]
pub(crate) struct Shares(Mutex<HashMap<Generation, usize>>);

/// Holds one place of a token until it is dropped.
pub(crate) struct Share {
    gateway: Arc<Gateway>,
    generation: Generation,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = lock(&self.gateway.shares.0);
        if let Some(taken) = shares.get_mut(&self.generation) {
            *taken -= 1;
            if *taken == 0 {
                shares.remove(&self.generation);
            }
        }
    }
}

impl Gateway {
    /// Takes one of the places of a token, from before its body is read until it is answered.
    ///
    /// # Errors
    /// `too_many`, reason `token_share`, where all are taken: the others' places are not given away.
    pub(crate) fn share(self: &Arc<Self>, lease: &Volume) -> Result<Share, Refusal> {
        let mut shares = lock(&self.shares.0);
        let taken = shares.entry(lease.generation.clone()).or_default();
        if *taken >= limits::IN_FLIGHT_PER_TOKEN {
            self.counters.throttled.add();
            let why = format!(
                "{} calls of this token are under way",
                limits::IN_FLIGHT_PER_TOKEN
            );
            return Err(Refusal::new(Code::TooMany, why).reason("token_share"));
        }
        *taken += 1;
        drop(shares);
        Ok(Share {
            gateway: self.clone(),
            generation: lease.generation.clone(),
        })
    }

    /// Counts the calls that are being answered or wait, of all tokens.
    pub(crate) fn answering(&self) -> usize {
        lock(&self.shares.0).values().sum()
    }
}
