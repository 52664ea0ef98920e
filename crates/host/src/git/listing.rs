//! The listing of a whole tree: its leaves, each tree object read and hashed by us, and every blob looked for.
//!
//! A listing is content addressed: once made it is that of its id for ever, and a bounded number is remembered. That the objects
//! are *there* is another matter, which [`super::presence`] remembers; where it cannot vouch for them, every tree is read
//! and hashed again, and every blob is looked for. It reads no blob.

use super::attributes::{Declared, Said};
use super::objects::{Leaf, NAMED, lines, take_object};
use super::presence;
use super::repository::Repository;
use super::{Call, Git, Place, beside, memo::Shelf};
use crate::error::Result;
use crate::process::Cancel;
use semel_core::git_tree::{Kind, Mode, ObjectId, TreeEntry, TreeMode, parse_tree};
use semel_core::{Code, Refusal, RelPath};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, OnceLock};

/// The first git that takes `cat-file --batch-command`: contents and presence from one child.
const BATCH_COMMAND: (u32, u32) = (2, 36);

/// Listings by tree; what they weigh in bytes.
static LISTINGS: Shelf<ObjectId, Arc<Listing>> = Shelf::new(64 << 20);

/// A tree, listed.
#[derive(Debug)]
pub(super) struct Listing {
    /// The tree.
    pub(super) tree: ObjectId,
    /// Its leaves, by path.
    pub(super) leaves: Vec<Leaf>,
    /// The directories above them.
    pub(super) dirs: HashSet<Vec<u8>>,
    /// The objects that it is made of, each once, in order.
    pub(super) objects: Objects,
    /// What its attribute files say, once somebody read them.
    pub(super) attributes: OnceLock<Said>,
    /// The files that are written with other line ends than they are stored with, once somebody asked.
    pub(super) declared: OnceLock<Declared>,
}

/// The trees and blobs of a listing, or what git says that they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    pub(super) trees: Vec<ObjectId>,
    pub(super) blobs: Vec<ObjectId>,
}

/// Says whether the blobs are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Blobs {
    Sought,
    Unasked,
}

/// Gives a listing that is remembered.
pub(super) fn known(tree: &ObjectId) -> Option<Arc<Listing>> {
    LISTINGS.get(tree)
}

impl Objects {
    /// Asks git what lies below a tree, so that it can be fetched at once. Its answer is only a hint: what it leaves out
    /// is fetched level by level, and where it fails the missing tree is found by name.
    pub(super) fn hint(git: &Git, place: &Place, tree: &ObjectId, cancel: &Cancel) -> Self {
        let tree = tree.to_string();
        let call = Call::new(["ls-tree", "-r", "-t", "-z", "--full-tree", &tree], cancel);
        let listed = git.run(place, call).unwrap_or_default();
        let mut objects = Self::default();
        for line in listed.split(|b| *b == 0) {
            let mut words = line.splitn(3, |b| *b == b' ');
            let (Some(_), Some(kind), Some(rest)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let id = core::str::from_utf8(rest.get(..tree.len()).unwrap_or_default());
            match (kind, id.ok().and_then(|id| ObjectId::parse(id).ok())) {
                (b"tree", Some(id)) => objects.trees.push(id),
                (b"blob", Some(id)) => objects.blobs.push(id),
                _ => {}
            }
        }
        sorted(&mut objects.trees);
        sorted(&mut objects.blobs);
        objects
    }
}

fn sorted(ids: &mut Vec<ObjectId>) {
    ids.sort_unstable();
    ids.dedup();
}

impl Repository {
    /// Gives the listing of a tree whose every object is there.
    ///
    /// # Errors
    /// As [`Repository::list_whole_tree`].
    pub(super) fn whole_listing(&self, tree: &ObjectId, hint: Option<Objects>) -> Result<Arc<Listing>> {
        let Some(listing) = known(tree) else {
            let hint = hint.unwrap_or_else(|| Objects::hint(self.git(), &self.place, tree, self.cancel()));
            let listing = Arc::new(self.read_listing(tree, hint, Blobs::Sought)?);
            LISTINGS.put(*tree, Arc::clone(&listing), listing.weight());
            return Ok(listing);
        };
        // Only for a tree that is restored again: what a single restoration would learn is of no use to it.
        let learning = match presence::look(self, tree, &listing.objects) {
            presence::Seen::Whole => return Ok(listing),
            presence::Seen::Unknown(learning) => learning,
        };
        self.read_listing(tree, listing.objects.clone(), Blobs::Sought)?;
        if let Some(learning) = learning {
            learning.keep(self, &listing.objects);
        }
        Ok(listing)
    }

    /// Reads the listing of a tree; what the hint names is fetched at once.
    pub(super) fn read_listing(&self, tree: &ObjectId, hint: Objects, blobs: Blobs) -> Result<Listing> {
        let mut wanted: BTreeSet<ObjectId> = hint.trees.into_iter().collect();
        wanted.insert(*tree);
        let sought = match blobs {
            Blobs::Sought => hint.blobs,
            Blobs::Unasked => Vec::new(),
        };
        let ids: Vec<ObjectId> = wanted.iter().copied().collect();
        let (mut bodies, there) = self.trees_and_blobs(&ids, &sought)?;
        let mut trees: BTreeMap<ObjectId, Vec<TreeEntry>> = BTreeMap::new();
        while !wanted.is_empty() {
            let mut below = BTreeSet::new();
            for (id, body) in wanted.iter().zip(&bodies) {
                let entries = parse_tree(self.format(), body)?;
                let inner = entries.iter().filter(|e| e.mode == TreeMode::Directory);
                below.extend(inner.map(|e| e.id));
                trees.insert(*id, entries);
            }
            wanted = below.into_iter().filter(|id| !trees.contains_key(id)).collect();
            let ids: Vec<ObjectId> = wanted.iter().copied().collect();
            bodies = self.read_many(&ids, Kind::Tree)?;
        }
        let listing = Listing::of(&trees, tree)?;
        if blobs == Blobs::Sought {
            let known = |id: &&ObjectId| there.binary_search(id).is_err();
            let rest = listing.objects.blobs.iter().filter(known).copied().collect();
            self.refuse_absent(&rest)?;
        }
        Ok(listing)
    }

    /// Reads trees, and says which of these blobs are there: with one child where git can, else with two side by side.
    fn trees_and_blobs(
        &self,
        trees: &[ObjectId],
        blobs: &[ObjectId],
    ) -> Result<(Vec<Vec<u8>>, Vec<ObjectId>)> {
        if blobs.is_empty() {
            return Ok((self.read_many(trees, Kind::Tree)?, Vec::new()));
        }
        if self.git().numbers < BATCH_COMMAND {
            let all: BTreeSet<ObjectId> = blobs.iter().copied().collect();
            let (bodies, absent) = beside(|| self.read_many(trees, Kind::Tree), || self.absent(&all));
            let (bodies, absent) = (bodies?, absent?);
            let there = all.into_iter().filter(|id| !absent.contains(id)).collect();
            return Ok((bodies, there));
        }
        let mut asked = Vec::new();
        for (verb, ids) in [("contents ", trees), ("info ", blobs)] {
            for id in ids {
                asked.extend_from_slice(format!("{verb}{id}\n").as_bytes());
            }
        }
        let call = self
            .call(["cat-file", "--batch-command", "--buffer"])
            .stdin(asked);
        let said = self.batch(call)?;
        let mut rest = said.as_slice();
        let bodies = trees
            .iter()
            .map(|id| take_object(&mut rest, self.format(), id, Kind::Tree))
            .collect::<Result<_>>()?;
        let answers = rest.split(|b| *b == b'\n');
        let there = blobs.iter().zip(answers).filter(|(id, line)| {
            let rest = line.strip_prefix(id.to_string().as_bytes());
            rest.is_some_and(|rest| rest.starts_with(b" blob "))
        });
        Ok((bodies, there.map(|(id, _)| *id).collect()))
    }

    fn refuse_absent(&self, blobs: &BTreeSet<ObjectId>) -> Result<()> {
        let absent = self.absent(blobs)?;
        if absent.is_empty() {
            return Ok(());
        }
        let named = absent.iter().take(NAMED).map(ToString::to_string);
        let why = format!("{} objects of the tree are missing or unreadable", absent.len());
        Err(Refusal::new(Code::ObjectMissing, why).names(named).into())
    }

    /// Says which of these blobs the repository lacks (by header; a broken body shows when it is read).
    pub(crate) fn absent(&self, ids: &BTreeSet<ObjectId>) -> Result<Vec<ObjectId>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let format = "--batch-check=%(objectname) %(objecttype)";
        let call = self
            .call(["cat-file", format, "--buffer"])
            .stdin(lines(ids.iter()));
        let said = self.run(call)?;
        let mut answers = said.split(|b| *b == b'\n');
        let there = |id: &&ObjectId| answers.next() == Some(format!("{id} blob").as_bytes());
        let mut there = there;
        Ok(ids.iter().filter(|id| !there(id)).copied().collect())
    }
}

impl Listing {
    fn of(trees: &BTreeMap<ObjectId, Vec<TreeEntry>>, tree: &ObjectId) -> Result<Self> {
        let mut leaves = Vec::new();
        flatten(trees, tree, &RelPath::root(), &mut leaves)?;
        leaves.sort_by(|a, b| a.path.cmp(&b.path));
        let mut dirs = HashSet::new();
        for leaf in &leaves {
            let mut path = leaf.path.as_bytes();
            while let Some(slash) = path.iter().rposition(|b| *b == b'/') {
                path = &path[..slash];
                if !dirs.insert(path.to_vec()) {
                    break;
                }
            }
        }
        let own = leaves.iter().filter(|leaf| leaf.mode != Mode::Gitlink);
        let mut blobs = own.map(|leaf| leaf.id).collect();
        sorted(&mut blobs);
        Ok(Self {
            tree: *tree,
            leaves,
            dirs,
            objects: Objects {
                trees: trees.keys().copied().collect(),
                blobs,
            },
            attributes: OnceLock::new(),
            declared: OnceLock::new(),
        })
    }

    /// Gives the mode of the leaf at a path.
    pub(super) fn leaf(&self, path: &[u8]) -> Option<Mode> {
        let at = self
            .leaves
            .binary_search_by(|leaf| leaf.path.as_bytes().cmp(path));
        at.ok().and_then(|at| self.leaves.get(at)).map(|leaf| leaf.mode)
    }

    /// Says about how many bytes it takes.
    fn weight(&self) -> usize {
        let leaf = size_of::<Leaf>() + 2 * size_of::<ObjectId>();
        let paths: usize = self.leaves.iter().map(|leaf| leaf.path.as_bytes().len()).sum();
        let dirs: usize = self.dirs.iter().map(|dir| dir.len() + 64).sum();
        self.leaves.len() * leaf + paths + dirs + self.objects.trees.len() * size_of::<ObjectId>() + 256
    }
}

fn flatten(
    trees: &BTreeMap<ObjectId, Vec<TreeEntry>>,
    tree: &ObjectId,
    at: &RelPath,
    leaves: &mut Vec<Leaf>,
) -> Result<()> {
    for entry in trees.get(tree).into_iter().flatten() {
        let path = at.observed(&entry.name)?;
        match entry.mode {
            TreeMode::Directory => flatten(trees, &entry.id, &path, leaves)?,
            TreeMode::Leaf(mode) => leaves.push(Leaf {
                path,
                mode,
                id: entry.id,
            }),
        }
    }
    Ok(())
}
