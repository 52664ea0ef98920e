//! That every object of a tree is there: learnt from git, and vouched for as long as nothing that bears them changed.
//!
//! An object is there by a file of its own, or by a pack. Of the tree's own loose files each is looked at again on every use,
//! and so is every `pack/` with each file in it, of the repository and of everything that it borrows from. What is
//! removed, replaced or written over is seen by that; a file that is broken without any change in its directory or times
//! (a failing disk) is seen when git reads it, as it was before.
//!
//! It is learnt only where nothing in any directory of objects changed since well before git was asked until after it
//! answered. See [`super::memo`] for what a look proves.

use super::listing::Objects;
use super::memo::{Before, Look, Shelf, provable};
use super::repository::Repository;
use rustix::fs::{Dir, Mode, OFlags, openat};
use semel_core::digest::Sha256;
use semel_core::git_tree::ObjectId;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most files in directories of packs, and the most loose objects of one tree, that are looked at.
const MOST: usize = 4096;

type Key = (ObjectId, PathBuf, Sha256);

/// What bore the trees that were learnt, by what the looks weigh.
static WHOLE: Shelf<Key, Arc<Vec<Store>>> = Shelf::new(8 << 20);

/// What is known of a tree.
pub(super) enum Seen {
    /// Every object of it is there.
    Whole,
    /// It is not known; it may be learnt, if it can be.
    Unknown(Option<Learning>),
}

/// One directory of objects.
#[derive(PartialEq, Eq)]
struct Store {
    place: PathBuf,
    packs: Option<Look>,
    /// Each file beside the packs, by name.
    files: Vec<(Vec<u8>, Look)>,
    /// Each loose file of the tree.
    loose: Vec<(ObjectId, Look)>,
    /// How the directories of loose files looked, while it was learnt.
    fans: Vec<(Vec<u8>, Look)>,
}

/// What was looked at before git is asked.
pub(super) struct Learning {
    key: Key,
    before: Before,
    stores: Vec<Store>,
}

/// Says whether every object of a tree is known to be there.
pub(super) fn look(repo: &Repository, tree: &ObjectId, objects: &Objects) -> Seen {
    let key = (*tree, repo.common_dir().to_owned(), repo.git().sha256());
    let Ok(places) = repo.object_dirs() else {
        return Seen::Unknown(None);
    };
    if let Some(stores) = WHOLE.get(&key) {
        let same = stores.len() == places.len();
        let mut pairs = stores.iter().zip(&places);
        if same && pairs.all(|(store, place)| store.place == *place && store.same().is_some()) {
            return Seen::Whole;
        }
    }
    let before = Before::now();
    let stores: Option<Vec<Store>> = places.into_iter().map(|at| Store::look(at, objects)).collect();
    Seen::Unknown(stores.map(|stores| Learning { key, before, stores }))
}

impl Learning {
    /// Keeps it, after git found every object, if nothing changed meanwhile.
    pub(super) fn keep(mut self, repo: &Repository, objects: &Objects) {
        let settled = self.stores.iter().all(|store| store.settled(self.before));
        let loose: usize = self.stores.iter().map(|store| store.loose.len()).sum();
        let files: usize = self.stores.iter().map(|store| store.files.len()).sum();
        if !settled || loose + files > MOST {
            return;
        }
        let Ok(places) = repo.object_dirs() else {
            return;
        };
        let again: Option<Vec<Store>> = places.into_iter().map(|at| Store::look(at, objects)).collect();
        if again.as_ref() != Some(&self.stores) || !self.stores.iter().all(|store| provable(&store.place)) {
            return;
        }
        for store in &mut self.stores {
            store.fans = Vec::new();
        }
        let weight = (loose + files) * (size_of::<(ObjectId, Look)>() + 32) + 1024;
        WHOLE.put(self.key, Arc::new(self.stores), weight);
    }
}

impl Store {
    /// Looks at all of one directory of objects that bears a tree; `None` where it cannot, or at too much.
    fn look(place: PathBuf, objects: &Objects) -> Option<Self> {
        let dir = open(&place)?;
        let packs = Look::at(&dir, "pack").ok()?;
        let mut files = Vec::new();
        if packs.is_some() {
            files = entries(&open(&place.join("pack"))?)?
                .into_iter()
                .map(|name| Some((name.clone(), Look::at(&dir, pack(&name)).ok()??)))
                .collect::<Option<_>>()?;
        }
        let names = entries(&dir)?.into_iter();
        let fans: Vec<(Vec<u8>, Look)> = names
            .filter(|name| name.len() == 2 && name.iter().all(u8::is_ascii_hexdigit))
            .map(|name| Some((name.clone(), Look::at(&dir, name.as_slice()).ok()??)))
            .collect::<Option<_>>()?;
        let mut loose = Vec::new();
        for id in objects.trees.iter().chain(&objects.blobs) {
            let name = id.to_string();
            let fan = name.as_bytes().get(..2)?;
            if fans.iter().any(|(known, _)| known == fan)
                && let Some(look) = Look::at(&dir, loose_name(&name)).ok()?
            {
                loose.push((*id, look));
            }
        }
        Some(Self {
            place,
            packs,
            files,
            loose,
            fans,
        })
    }

    /// Says whether what bears the tree looks as it did.
    fn same(&self) -> Option<()> {
        let dir = open(&self.place)?;
        let unchanged = |name: &[u8], look: &Look| Look::at(&dir, name).ok().flatten().as_ref() == Some(look);
        let packs = Look::at(&dir, "pack").ok()? == self.packs;
        let files = self.files.iter().all(|(name, look)| unchanged(&pack(name), look));
        let mut loose = self.loose.iter();
        let loose = loose.all(|(id, look)| unchanged(loose_name(&id.to_string()).as_bytes(), look));
        (packs && files && loose).then_some(())
    }

    fn settled(&self, before: Before) -> bool {
        let files = self.files.iter().chain(&self.fans).map(|(_, look)| look);
        let loose = self.loose.iter().map(|(_, look)| look);
        let mut all = files.chain(loose).chain(&self.packs);
        all.all(|look| look.settled(before))
    }
}

fn open(place: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(rustix::fs::CWD, place, flags, Mode::empty()).ok()
}

/// Lists a directory, in order; `None` where it cannot be listed, or is too long.
fn entries(dir: &OwnedFd) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir).ok()? {
        let entry = entry.ok()?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
        if names.len() > MOST {
            return None;
        }
    }
    names.sort_unstable();
    Some(names)
}

fn pack(name: &[u8]) -> Vec<u8> {
    [b"pack/", name].concat()
}

fn loose_name(id: &str) -> String {
    let (fan, rest) = id.split_at_checked(2).unwrap_or((id, ""));
    format!("{fan}/{rest}")
}
