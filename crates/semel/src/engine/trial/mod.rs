//! What trials share: a stage of their own, a plain HTTP client, and the words in which they tell what they saw.
//!
//! A trial plays something against a program, on a disk of its own, and looks at what happened. It knows neither the
//! incidents of the drill nor the cases of conformance.

pub(in crate::engine) mod http;
pub(in crate::engine) mod stage;
pub(in crate::engine) mod text;

use semel_core::Refusal;

/// Is what a trial tells, or the reason why it could not be played.
pub(in crate::engine) type Told<T> = Result<T, String>;

/// Turns a refusal of our own hands into a reason.
pub(in crate::engine) fn reason(refusal: impl Into<Refusal>) -> String {
    let refusal = refusal.into();
    format!("{} ({refusal})", refusal.code)
}

/// Turns a host error into a reason.
pub(in crate::engine) fn hands(error: semel_host::Error) -> String {
    reason(error.into_refusal())
}
