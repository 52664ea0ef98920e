//! The corridor: one use case a file, each in the same shape.
//!
//! parse → load what is known → decide (core) → intent (store) → act (host) → observe (host) → receipt (store) →
//! answer. Doors call this; it calls no door.

pub(crate) mod command;
pub(crate) mod contract;
