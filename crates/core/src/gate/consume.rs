//! Whether a certificate may be used up for a merge: once, or again for the very same one.

use crate::code::{Code, Refusal};
use crate::record::Consumption;
use serde::{Deserialize, Serialize};

/// Says how a certificate may be consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consumed {
    /// For the first time.
    First,
    /// Again, for the same tuple.
    AlreadySame,
}

/// Decides whether a certificate may be consumed, given what its generation was consumed for.
///
/// Everything but the time counts.
///
/// # Errors
/// `gate_refused` with reason `already_consumed`, naming each field that differs.
pub fn consume(prior: Option<&Consumption>, new: &Consumption) -> Result<Consumed, Refusal> {
    let Some(prior) = prior else {
        return Ok(Consumed::First);
    };
    let differs: Vec<&str> = [
        ("generation", prior.generation != new.generation),
        ("certificate", prior.certificate != new.certificate),
        ("repository", prior.repository != new.repository),
        ("target", prior.target != new.target),
        ("tree", prior.tree != new.tree),
    ]
    .into_iter()
    .filter_map(|(field, other)| other.then_some(field))
    .collect();
    if differs.is_empty() {
        return Ok(Consumed::AlreadySame);
    }
    Err(Refusal::new(
        Code::GateRefused,
        "the certificate has been consumed with another value of",
    )
    .reason("already_consumed")
    .names(differs))
}
