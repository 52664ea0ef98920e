//! The numbered vectors of `docs/vectors.md`: each is really done, against the real binary with real tools, and what it
//! answers is printed and compared with its row.
//!
//! `scripts/vectors.sh` prints the whole table. An installed tree is damaged by an installer that lies: the real one, which
//! changes what it installed before it ends. Writes after the install come from a process outside of every sandbox.

mod around;
mod cuts;
mod kills;
pub(crate) mod lab;
mod late;
mod locks;
pub(crate) mod node;
mod python;
mod rust;
mod table;

pub(crate) use table::{Seen, show};
