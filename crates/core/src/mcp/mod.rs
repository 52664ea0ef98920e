//! The Model Context Protocol as bytes and values: messages, revisions, and headers that mirror a body.
//!
//! Whoever speaks it is built on this: the server, the bridge, and the client of other servers. It does *not* know
//! tools, tokens, connections or what any method does.

pub mod era;
pub mod mirror;
pub mod rpc;
pub mod spool;

pub use era::{Declared, Era};
pub use rpc::{Error, Id, Message, Request};
