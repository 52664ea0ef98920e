//! The part of a restoration that holds the lock: git on a private index, the proof of what came of it, and the
//! publication. It does not seek the lock and does not let it go.

use super::attributes::{self, Has, Source};
use super::index::{self, Flags};
use super::listing::Listing;
use super::lock::Lock;
use super::objects::Leaf;
use super::obstacles::{self, Residue};
use super::removal::{Ground, remove_all, remove_residue};
use super::repository::Repository;
use super::restore::{Leftovers, Outcome, RestoreOptions, Touched, Verify};
use super::settings::plain_bytes;
use super::survey::Beforehand;
use super::verify::{Cursor, Seen, seen};
use super::witness::{Point, Witness};
use super::worktree::{self, Checked};
use super::{Call, Said};
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, Mode as FileMode, OFlags, fsync, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use semel_core::git_tree::{Mode, ObjectId};
use semel_core::path::shown;
use semel_core::restore::Counts;
use semel_core::{Code, Refusal, RelPath};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// How many differing or leftover paths are named; the rest is counted.
const NAMED: usize = 100;
/// The largest index that is read here.
const INDEX_LARGEST: u64 = 1 << 30;
/// The name of the index in its directory.
const INDEX: &str = "index";

/// A restoration that holds the lock.
pub(super) struct Held<'a> {
    pub(super) repo: Repository,
    pub(super) at: &'a Checked,
    /// What is never removed.
    pub(super) ground: &'a Ground<'a>,
    /// What is removed before git runs.
    pub(super) beforehand: Beforehand,
    pub(super) lock: &'a Lock<'a>,
    pub(super) witness: &'a dyn Witness,
    /// The name of the private index.
    pub(super) private: String,
    /// The index as it was, kept open so that the number of its inode cannot be given to another file meanwhile.
    pub(super) before: Option<OwnedFd>,
    pub(super) tree: ObjectId,
    pub(super) listing: &'a Listing,
    /// Where git takes attributes from.
    pub(super) source: Source,
    pub(super) options: RestoreOptions,
}

impl Held<'_> {
    /// Gives the index a second, private name: a link keeps its times, which a copy would not.
    pub(super) fn link(&mut self) -> Result<()> {
        let dir = &self.at.dir;
        let place = self.at.gitdir.join(INDEX);
        rustix::fs::linkat(dir, INDEX, dir, &self.private, AtFlags::empty())
            .map_err(|e| Error::io("link", &place, e))?;
        // Opened after the link: on overlayfs the link copies up, and only then the inode stays the same.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let before =
            openat(dir, &self.private, flags, FileMode::empty()).map_err(|e| Error::io("open", &place, e))?;
        self.before = Some(before);
        Ok(())
    }

    /// Removes what is left of the private index; it is ours alone.
    pub(super) fn clear(&self) {
        for name in [self.private.clone(), format!("{}.lock", self.private)] {
            unlinkat(&self.at.dir, name, AtFlags::empty()).ok();
        }
    }

    /// Runs git on the private index, and proves what came of it.
    pub(super) fn work(&self, touched: &mut Touched) -> Result<Outcome> {
        let tree = self.tree.to_string();
        let strange = self.strange_attributes()?;
        *touched = Touched::Perhaps;
        self.remove_attributes(&strange)?;
        let Beforehand { repositories, deep } = &self.beforehand;
        remove_all(self.ground, repositories.iter().chain(deep))?;
        let said = self.git(["read-tree", "--reset", "-u", &tree])?.stderr;
        self.witness.reached(Point::Restored);
        let flags = self.prove_tree(&tree)?;
        let mut outcome = Outcome {
            tree: self.tree,
            counts: Counts::default(),
            identity: self.at.identity,
            verified: self.options.verify,
            hashed: 0,
            mended: Vec::new(),
            residue: Vec::new(),
            residue_count: 0,
            removed: Vec::new(),
            removed_count: 0,
            stderr: said,
        };
        let mut gone: Vec<RelPath> = strange.into_iter().chain(repositories.clone()).collect();
        outcome.removed_count = gone.len();
        if self.options.leftovers == Leftovers::Removed {
            let Residue { first, count } = remove_residue(self.ground, &self.listing.leaves, NAMED)?;
            outcome.removed_count += count;
            gone.extend(first);
        }
        gone.truncate(NAMED);
        gone.sort();
        outcome.removed = gone;
        // What an index hides from git, git has not restored. In a sparse worktree that is as it should be.
        let hidden = flags == Flags::Hidden && !self.repo.config().is_true("core.sparsecheckout");
        if self.options.verify != Verify::Tree || hidden {
            self.prove_bytes(&mut outcome)?;
        }
        if self.options.verify != Verify::Tree {
            let Residue { first, count } = obstacles::residue(&self.at.root, &self.listing.leaves, NAMED)?;
            (outcome.residue, outcome.residue_count) = (first, count);
        }
        self.refuse_residue(&outcome)?;
        self.witness.reached(Point::Verified);
        Ok(outcome)
    }

    /// Proves that the private index writes the tree: by its entries, where they can be read, else by git.
    fn prove_tree(&self, tree: &str) -> Result<Flags> {
        let place = self.at.gitdir.join(&self.private);
        let name = Path::new(&self.private);
        // What is larger than we read is left to git.
        let bytes = plain_bytes(&self.at.dir, name, &place, INDEX_LARGEST)?.unwrap_or_default();
        if let Some(flags) = index::holds(&bytes, &self.tree, &self.listing.leaves) {
            return Ok(flags);
        }
        let written = self.git(["write-tree"])?.stdout;
        if written.trim_ascii() == tree.as_bytes() {
            return Ok(Flags::Hidden);
        }
        let refusal = Refusal::new(Code::TreeMismatch, "the restored index writes another tree");
        Err(refusal.name(shown(written.trim_ascii())).into())
    }

    fn prove_bytes(&self, outcome: &mut Outcome) -> Result<()> {
        let all: Vec<&Leaf> = self.listing.leaves.iter().collect();
        outcome.hashed = all.iter().filter(|l| l.mode != Mode::Gitlink).count();
        let wrong = self.differing(all)?;
        if !wrong.is_empty() {
            self.mend(&wrong)?;
            outcome.mended = wrong.iter().map(|l| l.path.clone()).collect();
            let still = self.differing(wrong)?;
            if !still.is_empty() {
                let why = format!("{} entries do not have the bytes of the tree", still.len());
                let names = still.iter().take(NAMED).map(|l| l.path.to_string());
                return Err(Refusal::new(Code::TreeMismatch, why).names(names).into());
            }
        }
        Ok(())
    }

    /// Refuses a worktree in which more lies than the tree, where that was to be proved.
    fn refuse_residue(&self, outcome: &Outcome) -> Result<()> {
        if self.options.verify != Verify::Pristine || outcome.residue_count == 0 {
            return Ok(());
        }
        let why = format!(
            "{} entries of the worktree are not of the tree, untracked or ignored",
            outcome.residue_count
        );
        let names = outcome.residue.iter().map(ToString::to_string);
        Err(Refusal::new(Code::TreeMismatch, why)
            .reason("residue")
            .names(names)
            .into())
    }

    /// Lists the leaves whose bytes, type or executable bit are not those that git writes of the tree by its own attributes;
    /// the place of a submodule has to be a directory.
    fn differing<'l>(&self, leaves: Vec<&'l Leaf>) -> Result<Vec<&'l Leaf>> {
        let declared = attributes::declared(&self.repo, self.listing, self.source)?;
        let mut cursor = Cursor::new(self.at.root.as_fd());
        let mut wrong = Vec::new();
        for leaf in leaves {
            let right = match declared.get(&leaf.path) {
                Some(ends) => attributes::has_bytes(&self.repo, &mut cursor, leaf, *ends)? == Has::Right,
                None => {
                    let asked = match leaf.mode {
                        Mode::Gitlink => Seen::Directory,
                        mode => Seen::Leaf(mode, leaf.id),
                    };
                    seen(&mut cursor, &leaf.path, self.repo.format())? == asked
                }
            };
            if !right {
                wrong.push(leaf);
            }
        }
        Ok(wrong)
    }

    /// Writes files anew that git took for restored: index flags or forged times had hidden them.
    fn mend(&self, wrong: &[&Leaf]) -> Result<()> {
        for flag in ["--no-skip-worktree", "--no-assume-unchanged"] {
            let call = self.repo.call(["update-index", flag, "-z", "--stdin"]);
            self.repo.run(Call {
                keep: vec![self.lock.handle()],
                ..call.stdin(paths(wrong))
            })?;
        }
        let mut cursor = Cursor::new(self.at.root.as_fd());
        for leaf in wrong {
            let parent = cursor.parent(&leaf.path)?;
            if let (Some(parent), Some((_, name))) = (parent, leaf.path.split_last()) {
                match unlinkat(parent, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
                    Err(e) => return Err(Error::io("remove", shown(leaf.path.as_bytes()), e)),
                }
            }
        }
        let call = self
            .repo
            .call(["checkout-index", "-f", "-u", "-q", "-z", "--stdin"]);
        self.repo.run(Call {
            keep: vec![self.lock.handle()],
            ..call.stdin(paths(wrong))
        })?;
        Ok(())
    }

    /// Fences, then renames the private index over the index.
    pub(super) fn publish(&self) -> Result<()> {
        let dir = &self.at.dir;
        let place = self.at.gitdir.join(INDEX);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fresh = openat(dir, &self.private, flags, FileMode::empty())
            .and_then(|fresh| fsync(&fresh))
            .map_err(|e| Error::io("sync", self.at.gitdir.join(&self.private), e));
        fresh?;
        self.at.still_there()?;
        self.lock.fence()?;
        let now = match statat(dir, INDEX, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some((stat.st_dev, stat.st_ino)),
            Err(Errno::NOENT) => None,
            Err(e) => return Err(Error::io("look at", &place, e)),
        };
        let before = match &self.before {
            Some(fd) => worktree::stat(fd, &place).map(|stat| Some((stat.st_dev, stat.st_ino)))?,
            None => None,
        };
        if now != before {
            let why = "the index was exchanged under our lock; it was left as it is";
            return Err(Refusal::new(Code::LockLost, why).reason("index_changed").into());
        }
        renameat(dir, &self.private, dir, INDEX)
            .and_then(|()| fsync(dir))
            .map_err(|e| Error::io("publish", &place, e))
    }

    fn git<const N: usize>(&self, args: [&str; N]) -> Result<Said> {
        let call = self.repo.call(args);
        self.repo.said(Call {
            keep: vec![self.lock.handle()],
            ..call
        })
    }
}

fn paths(leaves: &[&Leaf]) -> Vec<u8> {
    let mut text = Vec::new();
    for leaf in leaves {
        text.extend_from_slice(leaf.path.as_bytes());
        text.push(0);
    }
    text
}
