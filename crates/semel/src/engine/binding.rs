//! Which lockfiles of a tree bind it: one rule for the certification and for the gate.

use semel_core::RelPath;
use semel_core::lockset::Format;

/// Says whether an entry of a tree is a lockfile that binds it: of a known name, at the root of the tree.
pub(crate) fn binds(path: &RelPath) -> Option<Format> {
    let (parent, name) = path.split_last()?;
    if parent.is_root() {
        Format::recognise(name)
    } else {
        None
    }
}
