//! The life of the daemon around the gateway: heartbeat, high-water mark, announcement, and what the operator asks.

pub(crate) mod admin;
pub(crate) mod approvals;
pub(crate) mod face;
pub(crate) mod health;
pub(crate) mod keeper;
pub(crate) mod mark;
pub(crate) mod serve;
pub(crate) mod supervise;
