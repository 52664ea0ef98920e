//! The Model Context Protocol: the tools of the gateway for whoever speaks it.
//!
//! A transport (`http/mcp.rs`; a line at standard input) reads a message and says who sent it; this room answers, by the
//! revision that the message itself speaks. It keeps nothing between two messages: no session, no memory of a handshake.
//! It does *not* know sockets, files, or what a call does: that is the engine's, entered by the same function as from
//! `/v1/tools/`.

pub(crate) mod bridge;
mod call;
mod faces;
mod fixture;
mod forwarded;
mod headers;
mod list;
mod origin;
mod serve;
mod tasks;

pub(crate) use call::{METHOD as CALL, streams};
pub(crate) use faces::{malformed, of_refusal};
pub(crate) use fixture::Fixture;
pub(crate) use headers::check_headers;
pub(crate) use list::document as tools;
pub(crate) use origin::permitted;
pub(crate) use serve::{Caller, Done, Server, Told};
