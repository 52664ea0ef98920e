//! What would be lost with a worktree: commits that nothing else reaches, an operation under way, what is staged, files
//! that no tree of ours holds. It changes nothing.
//!
//! Whoever works in the worktree can write its repository, also meanwhile. So no git is shown that repository, its
//! configuration or the worktree: git reads objects, and an index that was opened by us, in a private directory of ours.
//! What references name is read by us, and files are hashed by us, so that neither flags in the worktree's index nor
//! attributes that are written into it hide a change.

use super::files::refuse_files;
use super::look::{Looked, NAMED};
use super::reach::refuse_unreachable;
use super::refs;
use super::remove::works_in;
use crate::error::{Error, Result};
use crate::git::brief;
use crate::git::index;
use crate::git::listing::{Blobs, Listing, Objects};
use crate::git::objects::Leaf;
use crate::git::repository::Repository;
use crate::git::settings::{plain_at, plain_bytes, plain_file};
use crate::git::worktree::{Checked, Target};
use rustix::fs::FileType;
use semel_core::git_tree::{Mode, ObjectId};
use semel_core::path::shown;
use semel_core::pin::Pin;
use semel_core::pin::gitdir::{self, Entry};
use semel_core::{Code, Refusal};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

/// The largest log of references that is read, and the largest index.
const LARGEST: u64 = 64 << 20;
const LARGEST_INDEX: u64 = 1 << 30;

/// A worktree that is to be removed.
pub(super) struct Held<'a> {
    pub(super) pin: &'a Pin,
    /// The commit that it was made at.
    pub(super) commit: &'a ObjectId,
    /// The tree that it was made with.
    pub(super) tree: &'a ObjectId,
    /// What was seen in the worktree.
    pub(super) files: Looked,
    /// What was seen in its git directory.
    pub(super) state: Looked,
}

/// What names objects, by the name of the object.
pub(super) type Tips = BTreeMap<String, String>;

/// Refuses to lose what is nowhere else; counts the files that git ignores. The repository is one that git sees by a view.
///
/// # Errors
/// `precondition_failed`, reason `operation_in_progress`, `submodules`, `unreachable_commits` or `dirty_worktree`;
/// `other_lock`; `worktree_redirected`, `git_failed`, `io_failed`.
pub(super) fn refuse_work(mut repo: Repository, held: &Held<'_>) -> Result<u64> {
    let target = Target::Pinned(Box::new(held.pin.clone()));
    let found = target.find()?;
    let at = target.check(&found, &repo)?;
    at.index()?;
    if !held.files.closed.is_empty() {
        let why = "some directories of the worktree cannot be looked into";
        return Err(refused(why, "dirty_worktree", held.files.closed.clone()));
    }
    let tips = of_the_state(&at.gitdir, &held.state)?;
    let refs = refs::read(&repo, &at)?;
    // What is remembered of commits beside them might say anything.
    repo.place
        .config
        .push(("core.commitGraph".into(), "false".into()));
    if let (Some(view), Some(text)) = (&repo.place.view, plain_file(&found.common.join("shallow"))?) {
        view.put("shallow", &text)?;
    }
    let head = refuse_unreachable(&repo, held.commit, &refs, tips)?;
    // What is told is what HEAD makes of it; the tree that it was made with is the caller's, and no work either.
    let head = head.map(|id| repo.read_commit(&id)).transpose()?;
    let mut trees: Vec<ObjectId> = head
        .into_iter()
        .map(|head| head.tree)
        .chain([*held.tree])
        .collect();
    trees.dedup();
    let mut listed = Vec::with_capacity(trees.len());
    for tree in trees {
        let hint = Objects::hint(repo.git(), &repo.place, &tree, repo.cancel());
        listed.push(repo.read_listing(&tree, hint, Blobs::Unasked)?);
    }
    refuse_staged(&repo, &at, &held.state, &listed)?;
    refuse_files(&repo, &at, &listed)
}

pub(super) fn refused(why: &str, reason: &str, names: Vec<String>) -> Error {
    Refusal::new(Code::PreconditionFailed, why)
        .reason(reason)
        .names(names.into_iter().take(NAMED))
        .into()
}

/// Judges what lies in the git directory; gives the objects that it names.
fn of_the_state(dir: &Path, state: &Looked) -> Result<Tips> {
    let mut tips = Tips::new();
    let (mut operations, mut unknown, mut logs) = (BTreeSet::new(), state.closed.clone(), Vec::new());
    for (path, kind) in &state.entries {
        let name = path.as_os_str().as_bytes();
        let whole = dir.join(path);
        let entry = gitdir::judge(name);
        match entry {
            // Nothing of it is a link, by which git would find what is not seen here, or waits for whoever reads it.
            Entry::Plain
                if matches!(
                    kind,
                    FileType::Directory | FileType::RegularFile | FileType::Socket
                ) => {}
            Entry::Operation => {
                let top = name.split(|b| *b == b'/').next().unwrap_or_default();
                operations.insert(shown(top));
            }
            Entry::Submodules => {
                let why = "the worktree has repositories of submodules in its git directory";
                return Err(refused(
                    why,
                    "submodules",
                    vec![shown(whole.as_os_str().as_bytes())],
                ));
            }
            Entry::Lock => return Err(works_in(&whole)),
            Entry::Log if *kind == FileType::Directory => {}
            Entry::Log | Entry::Tips if *kind == FileType::RegularFile => {
                logs.push((entry, whole, shown(name)))
            }
            Entry::Plain | Entry::Log | Entry::Tips | Entry::Unknown => {
                unknown.push(shown(whole.as_os_str().as_bytes()));
            }
        }
    }
    if !operations.is_empty() {
        let why = "an operation of git is under way in the worktree";
        return Err(refused(
            why,
            "operation_in_progress",
            operations.into_iter().collect(),
        ));
    }
    for (entry, place, name) in logs {
        let text = read(&place)?;
        match gitdir::ids(entry, &text) {
            Some(ids) => tips.extend(ids.into_iter().map(|id| (id.to_owned(), name.clone()))),
            None => unknown.push(shown(place.as_os_str().as_bytes())),
        }
    }
    if unknown.is_empty() {
        return Ok(tips);
    }
    let why = "the git directory holds something that git does not put there, or that cannot be read";
    Err(refused(why, "dirty_worktree", unknown))
}

/// Reads a plain file whole; what is none waits for nobody.
fn read(place: &Path) -> Result<Vec<u8>> {
    let read = plain_bytes(rustix::fs::CWD, place, place, LARGEST);
    match read {
        Err(error) if error.code() == Code::WorktreeRedirected => {
            let why = "not a plain file, or too large a one";
            let name = shown(place.as_os_str().as_bytes());
            Err(refused(why, "dirty_worktree", vec![name]))
        }
        read => read.map(Option::unwrap_or_default),
    }
}

/// Entries by path: mode and id, and the stage.
type Staged = BTreeMap<Vec<u8>, Vec<u8>>;

/// Reads what an index holds, whatever flags are set there.
fn staged(repo: &Repository, at: &Checked, state: &Looked) -> Result<Staged> {
    let mut own = repo.clone();
    let mut keep = Vec::new();
    let mut opened = |name: &Path| -> Result<Option<String>> {
        let file = plain_at(&at.dir, name, &at.gitdir.join(name))?;
        Ok(file.map(|file| {
            let place = format!("/proc/self/fd/{}", file.as_raw_fd());
            keep.push(Arc::new(file));
            place
        }))
    };
    let Some(place) = opened(Path::new("index"))? else {
        return Ok(Staged::new());
    };
    own.place.index = Some(place.into());
    // What a split index is based on.
    for (name, _) in &state.entries {
        if let (true, Some(view)) = (
            name.as_os_str().as_bytes().starts_with(b"sharedindex."),
            &own.place.view,
        ) && let Some(place) = opened(name)?
        {
            let link = view.path().join(name);
            std::os::unix::fs::symlink(place, &link).map_err(|e| Error::io("link", link, e))?;
        }
    }
    let mut call = brief(own.call(["ls-files", "--stage", "-z"]));
    call.keep = keep;
    let said = own.run(call)?;
    let mut staged = Staged::new();
    for entry in said.split(|b| *b == 0) {
        if let Some(tab) = entry.iter().position(|b| *b == b'\t') {
            // A conflict has several entries of one path.
            let all: &mut Vec<u8> = staged.entry(entry[tab + 1..].to_vec()).or_default();
            all.extend_from_slice(&entry[..tab]);
        }
    }
    Ok(staged)
}

/// Refuses what is staged and is neither of HEAD nor of the tree that it was made with.
fn refuse_staged(repo: &Repository, at: &Checked, state: &Looked, listed: &[Listing]) -> Result<()> {
    let place = at.gitdir.join("index");
    let text = plain_bytes(&at.dir, Path::new("index"), &place, LARGEST_INDEX)?.unwrap_or_default();
    let mut all = listed.iter();
    if all.any(|tree| index::holds(&text, &tree.tree, &tree.leaves).is_some()) {
        return Ok(());
    }
    drop(text);
    let staged = staged(repo, at, state)?;
    let mut all = listed.iter().map(|tree| unlike(&staged, &tree.leaves));
    let changed = all.next().unwrap_or_default();
    if changed.is_empty() || all.any(|changed| changed.is_empty()) {
        return Ok(());
    }
    let why = "what is staged is neither of HEAD nor of the tree that it was made with";
    Err(refused(why, "dirty_worktree", changed))
}

/// Lists the paths at which an index holds something else than a tree.
fn unlike(staged: &Staged, leaves: &[Leaf]) -> Vec<String> {
    let of_tree = |leaf: &Leaf| {
        let mode = match leaf.mode {
            Mode::File => "100644",
            Mode::Executable => "100755",
            Mode::Symlink => "120000",
            Mode::Gitlink => "160000",
        };
        (
            leaf.path.as_bytes().to_vec(),
            format!("{mode} {} 0", leaf.id).into_bytes(),
        )
    };
    let tree: Staged = leaves.iter().map(of_tree).collect();
    let differ = |path: &&Vec<u8>| staged.get(*path) != tree.get(*path);
    let all: BTreeSet<&Vec<u8>> = staged.keys().chain(tree.keys()).filter(differ).collect();
    all.into_iter().take(NAMED).map(|path| shown(path)).collect()
}
