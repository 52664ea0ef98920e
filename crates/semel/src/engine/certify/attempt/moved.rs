//! Whether the sealed directories stood where they stand while a command ran: one that was moved away and back holds the
//! files that it held, and none of them tells.
//!
//! A command may leave new things beside what was sealed, and that changes the times of directories, too. So a directory is
//! held to as much as what was left in it allows. It does *not* judge what was left.

use super::super::super::host;
use super::beside::place_in_tree;
use semel_core::install::Fact;
use semel_core::install::commanded::Filled;
use semel_core::manifest::{Entry, Manifest};
use semel_core::{Code, Refusal, RelPath};
use semel_host::files::{DirectoryStamp, directory_stamps};
use semel_host::root::Root;
use std::collections::{BTreeMap, BTreeSet};

/// How many directories are named at most.
const NAMED: usize = 20;

/// Is what the sealed directories look like, but for the root of the tree.
pub(super) struct Standing(BTreeMap<RelPath, DirectoryStamp>);

impl Standing {
    /// Looks at every directory that holds a sealed entry.
    pub(super) fn now(manifest: &Manifest, root: &Root) -> Result<Self, Refusal> {
        let mut directories = BTreeSet::new();
        for entry in &manifest.entries {
            directories.extend(above(Entry::path(entry)));
        }
        Self::of(directories, root)
    }

    fn of(directories: BTreeSet<RelPath>, root: &Root) -> Result<Self, Refusal> {
        let stamps = directory_stamps(root, &directories).map_err(host)?;
        Ok(Self(directories.into_iter().zip(stamps).collect()))
    }

    /// Checks that no directory was touched since, but for what was left in it.
    ///
    /// One in which nothing was left bears the same stamp. One in which something was left further down holds the same names
    /// at the same time; that an overlay copied it for that is no change. Of one that holds what was left itself, nothing can be told.
    ///
    /// # Errors
    /// `tree_mismatch`, reason `touched`, naming the directories.
    pub(super) fn still(&self, root: &Root, filled: &[Filled]) -> Result<(), Refusal> {
        let now = Self::of(self.0.keys().cloned().collect(), root)?;
        let left = Left::of(&self.0, filled)?;
        let touched = self.0.iter().zip(now.0.values()).filter(|((path, before), now)| {
            let stands = left.directly.contains(*path)
                || left.below.contains(*path) && before.names_as(now)
                || before == now;
            !stands
        });
        let touched: Vec<String> = touched
            .map(|((path, _), _)| path.to_string())
            .take(NAMED)
            .collect();
        if touched.is_empty() {
            return Ok(());
        }
        let why = "directories of the source tree were changed by the install command, though they may be what they were";
        Err(Refusal::new(Code::TreeMismatch, why)
            .reason("touched")
            .names(touched))
    }
}

/// Says in which sealed directories a command left something. A directory without a file in it is nothing.
#[derive(Default)]
struct Left {
    directly: BTreeSet<RelPath>,
    below: BTreeSet<RelPath>,
}

impl Left {
    fn of(sealed: &BTreeMap<RelPath, DirectoryStamp>, filled: &[Filled]) -> Result<Self, Refusal> {
        let mut left = Self::default();
        for one in filled {
            let root = place_in_tree(&one.observed.root)?;
            for (path, fact) in &one.observed.entries {
                if matches!(fact, Fact::Directory { .. }) {
                    continue;
                }
                let path = path
                    .components()
                    .try_fold(root.clone(), |at, part| at.join(part))?;
                let mut holding = above(&path).filter(|directory| sealed.contains_key(directory));
                left.directly.extend(holding.next());
                left.below.extend(holding);
            }
        }
        Ok(left)
    }
}

/// Gives the directories above a path, the nearest first, without the root.
fn above(path: &RelPath) -> impl Iterator<Item = RelPath> {
    let parent = |path: &RelPath| {
        let (parent, _) = path.split_last()?;
        (!parent.is_root()).then_some(parent)
    };
    std::iter::successors(parent(path), parent)
}
