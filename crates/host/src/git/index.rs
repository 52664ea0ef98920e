//! Reads git's index far enough to say that it holds exactly the leaves of a tree, and so writes that tree.
//!
//! It says yes or nothing: what it does not know (a split or sparse index, an extension that must be understood, any
//! difference) is left to `git write-tree`, which decides. It writes nothing.

use super::objects::Leaf;
use semel_core::git_tree::{Mode, ObjectId};

/// Of an entry: what lies before its object id.
const FIXED: usize = 40;
const MODE_AT: usize = 24;
/// Of the flags: a further word follows; the stage of a conflict; the length of the name.
const EXTENDED: u16 = 0x4000;
const STAGE: u16 = 0x3000;
const LENGTH: u16 = 0x0fff;
/// Of the further word: the entry is promised, and written into no tree.
const PROMISED: u16 = 0x2000;

/// Says whether an index is known to write the tree that has these leaves, in git's order.
///
/// # Source
/// Git, `Documentation/gitformat-index.txt`, versions 2 to 4.
pub(super) fn holds(index: &[u8], tree: &ObjectId, leaves: &[Leaf]) -> bool {
    known(index, tree, leaves).is_some()
}

fn known(index: &[u8], tree: &ObjectId, leaves: &[Leaf]) -> Option<()> {
    let raw = tree.as_raw().len();
    let body = index.get(..index.len().checked_sub(raw)?)?;
    let version = match (body.get(..4)?, number(body, 4)?) {
        (b"DIRC", version @ 2..=4) => version,
        _ => return None,
    };
    if usize::try_from(number(body, 8)?).ok()? != leaves.len() {
        return None;
    }
    let mut at = 12;
    let mut name = Vec::new();
    for leaf in leaves {
        let entry = body.get(at..)?;
        let mode = match leaf.mode {
            Mode::File => 0o100_644,
            Mode::Executable => 0o100_755,
            Mode::Symlink => 0o120_000,
            Mode::Gitlink => 0o160_000,
        };
        let flags = word(entry, FIXED + raw)?;
        let mut head = FIXED + raw + 2;
        if flags & EXTENDED != 0 {
            if version < 3 || word(entry, head)? & PROMISED != 0 {
                return None;
            }
            head += 2;
        }
        let own = number(entry, MODE_AT)? == mode && entry.get(FIXED..FIXED + raw)? == leaf.id.as_raw();
        if !own || flags & STAGE != 0 {
            return None;
        }
        let named: &[u8];
        if version == 4 {
            let (kept, behind) = strip(entry, head)?;
            name.truncate(name.len().checked_sub(kept)?);
            let end = behind + entry.get(behind..)?.iter().position(|b| *b == 0)?;
            name.extend_from_slice(entry.get(behind..end)?);
            at += end + 1;
            named = &name;
        } else {
            // The length is known: what has to be there is compared, not looked for.
            let end = head + leaf.path.as_bytes().len();
            if entry.get(end)? != &0 {
                return None;
            }
            named = entry.get(head..end)?;
            at += (end + 8) & !7;
        }
        let length = usize::from(flags & LENGTH);
        if named != leaf.path.as_bytes() || length != named.len().min(usize::from(LENGTH)) {
            return None;
        }
    }
    extensions(body.get(at..)?, tree)
}

/// Passes the extensions: one that has to be understood is not, and what is remembered of trees must be this one.
fn extensions(mut rest: &[u8], tree: &ObjectId) -> Option<()> {
    while !rest.is_empty() {
        let size = usize::try_from(number(rest, 4)?).ok()?;
        let content = rest.get(8..8_usize.checked_add(size)?)?;
        match rest.get(..4)? {
            b"TREE" => remembered(content, tree)?,
            [first, ..] if first.is_ascii_uppercase() => {}
            _ => return None,
        }
        rest = rest.get(8 + size..)?;
    }
    Some(())
}

/// Reads the root of the trees that the index remembers: an empty name, how many entries, how many trees, its id.
fn remembered(content: &[u8], tree: &ObjectId) -> Option<()> {
    let line = content.strip_prefix(&[0])?;
    let end = line.iter().position(|b| *b == b'\n')?;
    let count = core::str::from_utf8(line.get(..end)?).ok()?.split(' ').next()?;
    // A negative count says that nothing is remembered.
    let forgotten = count.parse::<i64>().ok()? < 0;
    (forgotten || line.get(end + 1..)?.starts_with(tree.as_raw())).then_some(())
}

/// Reads how many bytes of the name before are dropped: git's offset encoding.
fn strip(entry: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut byte = *entry.get(at)?;
    let mut value = usize::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        at += 1;
        byte = *entry.get(at)?;
        value = value.checked_add(1)?.checked_mul(128)? | usize::from(byte & 0x7f);
    }
    Some((value, at + 1))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_be_bytes(four))
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let two: [u8; 2] = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_be_bytes(two))
}
