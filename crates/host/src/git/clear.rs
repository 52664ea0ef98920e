//! The directories of a worktree in which nothing is in the way of a tree, as long as they look as they did (see
//! [`super::memo`]).

use super::memo::{Before, Look, Shelf, provable};
use super::worktree::Checked;
use semel_core::RelPath;
use semel_core::git_tree::ObjectId;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

type Key = ((u64, u64), ObjectId);
/// By directory: what it looked like, and the directories of the tree in it.
type Known = HashMap<RelPath, (Look, Arc<[RelPath]>)>;

/// What is remembered, by worktree and tree.
static KNOWN: Shelf<Key, Arc<Known>> = Shelf::new(16 << 20);

/// What is known of one worktree, and what was learnt since.
pub(super) struct Clear<'a> {
    before: Before,
    worktree: &'a Path,
    /// `None` where the worktree itself cannot be looked at: nothing is known, nor learnt.
    key: Option<Key>,
    known: Arc<Known>,
    learnt: Known,
}

impl<'a> Clear<'a> {
    /// Recalls what is known; to be called before any directory is looked at.
    pub(super) fn of(at: &'a Checked, tree: &ObjectId) -> Self {
        let before = Before::now();
        let root = Look::at(&at.root, ".").ok().flatten();
        let key = root.map(|look| (look.inode(), *tree));
        Self {
            before,
            worktree: &at.worktree,
            key,
            known: key.and_then(|key| KNOWN.get(&key)).unwrap_or_default(),
            learnt: Known::new(),
        }
    }

    /// Gives the directories of the tree in one in which nothing is in the way; `None` where it is not known to be so.
    pub(super) fn below(&self, path: &RelPath, look: &Look) -> Option<Arc<[RelPath]>> {
        let (old, below) = self.known.get(path)?;
        (old == look).then(|| Arc::clone(below))
    }

    /// Notes that nothing in a directory is in the way.
    pub(super) fn learn(&mut self, path: &RelPath, look: Look, below: &Arc<[RelPath]>) {
        // Another filesystem may be one where looks prove nothing.
        if look.settled(self.before) && self.key.is_some_and(|((dev, _), _)| dev == look.inode().0) {
            self.learnt.insert(path.clone(), (look, Arc::clone(below)));
        }
    }

    /// Remembers what was learnt.
    pub(super) fn keep(self) {
        let Some(key) = self
            .key
            .filter(|_| !self.learnt.is_empty() && provable(self.worktree))
        else {
            return;
        };
        let mut all = Arc::unwrap_or_clone(self.known);
        all.extend(self.learnt);
        let weigh = |(path, (_, below)): (&RelPath, &(Look, Arc<[RelPath]>))| {
            let below: usize = below.iter().map(|path| path.as_bytes().len() + 32).sum();
            path.as_bytes().len() + below + size_of::<(RelPath, Look)>() + 64
        };
        let weight = all.iter().map(weigh).sum();
        KNOWN.put(key, Arc::new(all), weight);
    }
}
