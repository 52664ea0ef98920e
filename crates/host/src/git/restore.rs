//! `git read-tree --reset -u TREE`, under our own `index.lock`.
//!
//! Nothing is inferred from git's text: the lock is taken by us, git runs on a private link of the index in a
//! closed environment, content is verified and the lock fenced while it is held, and the index is published by
//! rename. Not here yet: pinned identities, recovery of a stranger's stale lock on complete evidence, a queue
//! among our own processes, filter drivers, sparse worktrees, submodule contents.

use super::lock::{Lock, Seeker, private_index};
use super::obstacles::{self, Residue};
use super::repository::{Leaf, Repository};
use super::verify::{Cursor, Reading, Seen, seen};
use super::watch::Watch;
use super::worktree::{self, Checked};
use super::{Call, Git};
use crate::error::{Error, Result};
use crate::process::Cancel;
use rustix::fs::{AtFlags, FileType, Mode as FileMode, OFlags, fsync, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use semel_core::git_tree::{Mode, ObjectId};
use semel_core::path::shown;
use semel_core::restore::{Counts, Observation, Step, Wait};
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How many differing or leftover paths are named; the rest is counted.
const NAMED: usize = 100;
/// The name of the index in its directory.
const INDEX: &str = "index";

/// Says how much is proved before the restored index is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// The index writes exactly the tree.
    Tree,
    /// And every file, link and executable bit of the tree was read back and hashed.
    Bytes,
}

/// Says how a restoration is to be done.
#[derive(Clone, Copy, Debug)]
pub struct RestoreOptions {
    /// How long `index.lock` is waited for.
    pub wait: Duration,
    /// How much is proved.
    pub verify: Verify,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(60),
            verify: Verify::Bytes,
        }
    }
}

/// Says how the identity of the worktree was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Worktree and git directory pointed at each other, and nothing redirected.
    Unpinned,
}

/// Says what came of a restoration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The tree that is restored.
    pub tree: ObjectId,
    /// Looks, collisions, adoptions and waiting.
    pub counts: Counts,
    /// How the worktree was identified.
    pub identity: Identity,
    /// How much was proved.
    pub verified: Verify,
    /// How many entries were read back and hashed.
    pub hashed: usize,
    /// How many files git had called restored though their bytes were not; they were written anew.
    pub mended: Vec<RelPath>,
    /// Entries that are not of the tree, the first 100 by name; a directory stands for all below it. Looked for
    /// with [`Verify::Bytes`].
    pub residue: Vec<RelPath>,
    /// How many such entries there are.
    pub residue_count: usize,
}

/// Says whether a refused restoration may have changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Worktree and index are as they were.
    Nothing,
    /// Git had begun: files of the worktree may be new ones. The index is as it was, unless the refusal came
    /// after it was published.
    Perhaps,
}

/// Carries a refused restoration.
#[derive(Debug)]
pub struct Failed {
    /// Why; with git's own words in [`Error::Git`].
    pub error: Error,
    /// Whether anything may have changed: where it did, the generation is dirty.
    pub touched: Touched,
    /// What was counted until then.
    pub counts: Counts,
}

impl core::fmt::Display for Failed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.error.fmt(f)
    }
}

impl core::error::Error for Failed {}

/// Restores a worktree to a tree.
///
/// # Errors
/// With nothing changed: `bad_input` (no worktree; not a full id in lower case; not a tree), `not_found`,
/// `object_missing`, `worktree_redirected`, `lock_unsafe`, `lock_timeout`, `precondition_failed` (a repository
/// lies where a file has to go; the tree uses attributes that need a program; a sparse worktree).
/// After git began: `git_failed`, `tree_mismatch`, `lock_lost`. [`Failed::touched`] tells which.
///
/// # Durability
/// When this returns, the index and its directory are synced; the files of the worktree are not.
pub fn restore(
    git: &Git,
    worktree: &Path,
    tree: &str,
    options: RestoreOptions,
    cancel: &Cancel,
) -> core::result::Result<Outcome, Box<Failed>> {
    let before = |error| {
        Box::new(Failed {
            error,
            touched: Touched::Nothing,
            counts: Counts::default(),
        })
    };
    let job = Job::prepare(git, worktree, tree, options, cancel).map_err(before)?;
    let mut counts = Counts::default();
    let mut touched = Touched::Nothing;
    job.run(&mut counts, &mut touched).map_err(|error| {
        Box::new(Failed {
            error,
            touched,
            counts,
        })
    })
}

/// Everything that is known before the lock is sought.
struct Job {
    repo: Repository,
    at: Checked,
    tree: ObjectId,
    leaves: Vec<Leaf>,
    options: RestoreOptions,
}

impl Job {
    fn prepare(
        git: &Git,
        worktree: &Path,
        tree: &str,
        options: RestoreOptions,
        cancel: &Cancel,
    ) -> Result<Self> {
        ObjectId::parse(tree)?;
        let found = worktree::find(worktree)?;
        let mut repo = Repository::at(git, found.clone(), cancel)?;
        let at = worktree::check(&found, repo.config())?;
        let tree = repo.parse_id(tree)?;
        let leaves = repo.list_whole_tree(&tree)?;
        repo.place.worktree = Some(at.worktree.clone());
        if options.verify == Verify::Bytes && repo.config().is_true("core.sparsecheckout") {
            let why = "a sparse worktree cannot be proved byte for byte";
            return Err(Refusal::new(Code::PreconditionFailed, why)
                .reason("sparse_checkout")
                .into());
        }
        obstacles::refuse_programs(&repo, &leaves)?;
        Ok(Self {
            repo,
            at,
            tree,
            leaves,
            options,
        })
    }

    fn run(self, counts: &mut Counts, touched: &mut Touched) -> Result<Outcome> {
        let at = &self.at;
        let lock = acquire(at, self.options.wait, self.repo.cancel(), counts)?;
        lock.sweep()?;
        let before = at.index()?;
        at.still_there()?;
        obstacles::refuse_nested(&at.root, &self.leaves)?;
        let mut held = Held {
            repo: self.repo,
            at,
            lock: &lock,
            private: private_index(&lock.nonce),
            before: None,
            tree: self.tree,
            leaves: &self.leaves,
            verify: self.options.verify,
        };
        if before.is_some() {
            held.link()?;
        }
        held.repo.place.index = Some(at.gitdir.join(&held.private));
        let outcome = held.work(touched).and_then(|outcome| {
            held.publish()?;
            Ok(outcome)
        });
        held.clear();
        let mut outcome = outcome?;
        lock.release()?;
        outcome.counts = *counts;
        Ok(outcome)
    }
}

/// A restoration that holds the lock.
struct Held<'a> {
    repo: Repository,
    at: &'a Checked,
    lock: &'a Lock<'a>,
    /// The name of the private index.
    private: String,
    /// The index as it was, kept open so that the number of its inode cannot be given to another file meanwhile.
    before: Option<OwnedFd>,
    tree: ObjectId,
    leaves: &'a [Leaf],
    verify: Verify,
}

impl Held<'_> {
    /// Gives the index a second, private name: a link keeps its times, which a copy would not.
    fn link(&mut self) -> Result<()> {
        self.before = Some(open_index(self.at)?);
        let dir = &self.at.dir;
        rustix::fs::linkat(dir, INDEX, dir, &self.private, AtFlags::empty())
            .map_err(|e| Error::io("link", self.at.gitdir.join(INDEX), e))
    }

    /// Removes what is left of the private index; it is ours alone.
    fn clear(&self) {
        for name in [self.private.clone(), format!("{}.lock", self.private)] {
            unlinkat(&self.at.dir, name, AtFlags::empty()).ok();
        }
    }

    /// Runs git on the private index, and proves what came of it.
    fn work(&self, touched: &mut Touched) -> Result<Outcome> {
        let tree = self.tree.to_string();
        *touched = Touched::Perhaps;
        self.git(["read-tree", "--reset", "-u", &tree])?;
        let written = self.git(["write-tree"])?;
        if written.trim_ascii() != tree.as_bytes() {
            let refusal = Refusal::new(Code::TreeMismatch, "the restored index writes another tree");
            return Err(refusal.name(shown(written.trim_ascii())).into());
        }
        let mut outcome = Outcome {
            tree: self.tree,
            counts: Counts::default(),
            identity: Identity::Unpinned,
            verified: self.verify,
            hashed: 0,
            mended: Vec::new(),
            residue: Vec::new(),
            residue_count: 0,
        };
        if self.verify == Verify::Bytes {
            self.prove_bytes(&mut outcome)?;
        }
        Ok(outcome)
    }

    fn prove_bytes(&self, outcome: &mut Outcome) -> Result<()> {
        let all: Vec<&Leaf> = self.leaves.iter().filter(|l| l.mode != Mode::Gitlink).collect();
        outcome.hashed = all.len();
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
        let Residue { first, count } = obstacles::residue(&self.at.root, self.leaves, NAMED)?;
        (outcome.residue, outcome.residue_count) = (first, count);
        Ok(())
    }

    /// Lists the leaves whose bytes, type or executable bit are not those of the tree.
    fn differing<'l>(&self, leaves: Vec<&'l Leaf>) -> Result<Vec<&'l Leaf>> {
        let mut cursor = Cursor::new(self.at.root.as_fd());
        let mut wrong = Vec::new();
        for leaf in leaves {
            let found = seen(&mut cursor, &leaf.path, self.repo.format(), Reading::Exact)?;
            if found != Seen::Leaf(leaf.mode, leaf.id) {
                wrong.push(leaf);
            }
        }
        if wrong.is_empty() {
            return Ok(wrong);
        }
        let crlf = self.declared_crlf(&wrong)?;
        let mut still = Vec::new();
        for leaf in wrong {
            let excused = crlf.contains(&leaf.path)
                && seen(&mut cursor, &leaf.path, self.repo.format(), Reading::CrlfAsLf)?
                    == Seen::Leaf(leaf.mode, leaf.id);
            if !excused {
                still.push(leaf);
            }
        }
        Ok(still)
    }

    /// Asks which of these paths the restored tree itself declares `eol=crlf`; attributes in the worktree that the
    /// tree does not hold have no say.
    fn declared_crlf(&self, leaves: &[&Leaf]) -> Result<BTreeSet<RelPath>> {
        let call = self.repo.call(["check-attr", "--cached", "-z", "--stdin", "eol"]);
        let said = self.repo.run(call.stdin(paths(leaves)))?;
        let fields: Vec<&[u8]> = said.split(|b| *b == 0).collect();
        let mut declared = BTreeSet::new();
        for answer in fields.chunks_exact(3) {
            if answer[2] == b"crlf" {
                declared.insert(RelPath::parse(answer[0])?);
            }
        }
        Ok(declared)
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
    fn publish(&self) -> Result<()> {
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

    fn git<const N: usize>(&self, args: [&str; N]) -> Result<Vec<u8>> {
        let call = self.repo.call(args);
        self.repo.run(Call {
            keep: vec![self.lock.handle()],
            ..call
        })
    }
}

/// Waits for the lock, as the machine says.
fn acquire<'a>(at: &'a Checked, bound: Duration, cancel: &Cancel, counts: &mut Counts) -> Result<Lock<'a>> {
    let began = Instant::now();
    let mut seeker = Seeker::new(at)?;
    let mut watch: Option<Watch> = None;
    let mut machine = Wait::new(bound, Duration::from_millis(50));
    let mut observation = seeker.look()?;
    loop {
        let step = machine.next(began.elapsed(), &observation);
        *counts = machine.counts();
        match step {
            Step::Done => return seeker.acquired(),
            Step::Refuse(refusal) => return Err(refusal.into()),
            Step::Adopt => match seeker.adopt()? {
                Ok(lock) => {
                    machine.next(began.elapsed(), &Observation::Adopted);
                    *counts = machine.counts();
                    return Ok(lock);
                }
                Err(back) => seeker = back,
            },
            Step::Wait(until) => {
                if cancel.is_cancelled() {
                    let why = "cancelled while waiting for index.lock";
                    return Err(Refusal::new(Code::LockTimeout, why).reason("cancelled").into());
                }
                match &watch {
                    Some(watch) => watch.wait(began + until, cancel),
                    // Armed only now, and looked at again before the first sleep: nothing is missed in between.
                    None => {
                        let armed = Watch::new(&at.gitdir);
                        machine.set_poll(armed.net());
                        watch = Some(armed);
                    }
                }
            }
        }
        observation = seeker.look()?;
    }
}

fn open_index(at: &Checked) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let place = at.gitdir.join(INDEX);
    let fd = openat(&at.dir, INDEX, flags, FileMode::empty()).map_err(|e| Error::io("open", &place, e))?;
    let stat = worktree::stat(&fd, &place)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
        return Ok(fd);
    }
    Err(worktree::redirected("the index is not a plain file", &place))
}

fn paths(leaves: &[&Leaf]) -> Vec<u8> {
    let mut text = Vec::new();
    for leaf in leaves {
        text.extend_from_slice(leaf.path.as_bytes());
        text.push(0);
    }
    text
}
