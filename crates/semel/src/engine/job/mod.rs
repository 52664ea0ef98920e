//! A whole job, from its file to a branch: the draft, the agent in it, and the delivery of what was certified.

pub(crate) mod agent;
pub(crate) mod cancel;
pub(crate) mod deliver;
pub(crate) mod draft;
pub(crate) mod interrupt;
pub(crate) mod restorations;
pub(crate) mod run;
pub(crate) mod say;
