//! Hands a certified tree back to the source repository: as a commit on a new branch, or as a patch.
//!
//! What is delivered is hashed again on the way; nothing else than exactly the certified tree leaves here. It
//! never moves an existing branch and touches no worktree.

use super::repository::Repository;
use super::select::entries_of;
use super::verify::{Cursor, content};
use crate::error::{Error, Result};
use semel_core::digest::Sha256;
use semel_core::git_tree::{Kind, Mode, ObjectId, TreeMode, object_id, parse_tree, tree_objects};
use semel_core::ids::UnixMs;
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How many bytes of content go into one git child at most, a larger single file excepted.
const BATCH_BYTES: usize = 64 << 20;

/// The content that is delivered: the certified tree, and where its entries lie.
#[derive(Clone, Copy, Debug)]
pub struct Sealed<'a> {
    /// The open directory that holds the entries.
    pub dir: BorrowedFd<'a>,
    /// The entries.
    pub chosen: &'a [RelPath],
    /// The pointers of Git LFS that are delivered in place of what lies there.
    pub pointers: &'a BTreeMap<RelPath, Vec<u8>>,
    /// The tree that the certificate names.
    pub certified: ObjectId,
}

/// Says where a certified tree goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The parent of the new commit.
    pub base: ObjectId,
    /// The name of the new branch, without `refs/heads/`.
    pub branch: String,
    /// The message of the commit.
    pub message: String,
    /// The date of the commit; the same date gives the same commit.
    pub at: UnixMs,
}

/// Says what came of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The branch was made.
    Created(ObjectId),
    /// The branch was at this commit already.
    AlreadyThere(ObjectId),
}

/// Describes a written patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Its length.
    pub size_bytes: u64,
    /// Its digest.
    pub sha256: Sha256,
}

/// Writes a certified tree as a new commit on a new branch, author and committer `Semel <semel@localhost>`.
///
/// Called twice with the same import it finds its own work.
///
/// # Errors
/// `tree_mismatch` where the entries do not hash to the certified tree, or git made something else of them;
/// `bad_input` for a name that git takes for no branch; `precondition_failed` (reason `branch_exists`) where the
/// branch is at another commit; `other_lock` where a lock of the ref is in the way; `object_missing` where the base
/// is; `git_failed`.
///
/// # Durability
/// As git writes objects and refs in this repository.
pub fn deliver_branch(repo: &Repository, sealed: &Sealed<'_>, import: &Import) -> Result<Delivery> {
    let name = format!("refs/heads/{}", import.branch);
    if import.branch.starts_with('-') || import.branch == "HEAD" || !is_ref(repo, &name)? {
        let refusal = Refusal::new(Code::BadInput, "not the name of a branch");
        return Err(refusal.name(shown(import.branch.as_bytes())).into());
    }
    repo.read_commit(&import.base)?;
    write_objects(repo, sealed)?;
    let commit = write_commit(repo, sealed, import)?;
    let made = repo.read_commit(&commit)?;
    if made.tree != sealed.certified || made.parents != [import.base] {
        let refusal = Refusal::new(
            Code::TreeMismatch,
            "git made another commit than the certified one",
        );
        return Err(refusal.name(commit.to_string()).into());
    }
    if let Some(there) = value_of(repo, &name)? {
        return settle(there, commit, &import.branch);
    }
    let none = "0".repeat(2 * repo.format().raw_len());
    let id = commit.to_string();
    let call = repo.call(["update-ref", "--no-deref", &name, &id, &none]);
    match repo.run(call) {
        Ok(_) => Ok(Delivery::Created(commit)),
        Err(error) => match value_of(repo, &name)? {
            Some(there) => settle(there, commit, &import.branch),
            None => Err(ref_lock(repo, &name).unwrap_or(error)),
        },
    }
}

/// Writes the difference between a base commit and a certified tree to a file, as `git apply` takes it.
///
/// Nothing is written to the repository: new objects go to `scratch`, a directory of the caller's.
///
/// # Errors
/// `tree_mismatch` where the entries do not hash to the certified tree; `object_missing`, `git_failed`,
/// `io_failed`.
///
/// # Durability
/// When this returns, the file is synced and stands under its name; an earlier one is replaced.
pub fn make_patch(
    repo: &Repository,
    sealed: &Sealed<'_>,
    base: &ObjectId,
    scratch: &Path,
    out: &Path,
) -> Result<Patch> {
    let from = repo.read_commit(base)?.tree;
    for dir in ["pack", "info"] {
        let dir = scratch.join(dir);
        std::fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
    }
    let mut repo = repo.clone();
    repo.place.objects = Some((scratch.to_owned(), repo.common_dir().join("objects")));
    write_objects(&repo, sealed)?;
    let (from, to) = (from.to_string(), sealed.certified.to_string());
    let call = repo.call([
        "diff-tree",
        "-r",
        "-p",
        "--binary",
        "--full-index",
        "--no-ext-diff",
        "--no-textconv",
        "--no-renames",
        "--no-color",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        &from,
        &to,
    ]);
    let bytes = repo.run(call)?;
    write_file(out, &bytes)?;
    Ok(Patch {
        size_bytes: bytes.len() as u64,
        sha256: Sha256::of(&bytes),
    })
}

/// Writes the blobs that the repository lacks, and the trees, each checked against its id.
fn write_objects(repo: &Repository, sealed: &Sealed<'_>) -> Result<()> {
    let mut entries = entries_of(sealed.dir, repo.format(), sealed.chosen)?;
    for (path, _, id) in &mut entries {
        if let Some(text) = sealed.pointers.get(path) {
            *id = object_id(repo.format(), Kind::Blob, text)?;
        }
    }
    let mut trees: Vec<(ObjectId, Vec<u8>)> = Vec::new();
    let keep = |id, body: &[u8]| trees.push((id, body.to_vec()));
    let tree = tree_objects(repo.format(), entries.iter().cloned(), keep)?;
    if tree != sealed.certified {
        let refusal = Refusal::new(
            Code::TreeMismatch,
            "the entries do not hash to the certified tree",
        );
        return Err(refusal
            .names([tree.to_string(), sealed.certified.to_string()])
            .into());
    }
    let all: BTreeSet<ObjectId> = entries.iter().map(|(_, _, id)| *id).collect();
    let absent: BTreeSet<ObjectId> = repo.absent(&all)?.into_iter().collect();
    write_blobs(repo, sealed, &entries, &absent)?;
    if let Some(id) = repo.absent(&absent)?.first() {
        let refusal = Refusal::new(Code::TreeMismatch, "git did not keep a blob under its id");
        return Err(refusal.name(id.to_string()).into());
    }
    write_trees(repo, &trees)
}

fn write_blobs(
    repo: &Repository,
    sealed: &Sealed<'_>,
    entries: &[(RelPath, Mode, ObjectId)],
    absent: &BTreeSet<ObjectId>,
) -> Result<()> {
    let mut places: BTreeMap<&ObjectId, (&RelPath, Mode)> = BTreeMap::new();
    for (path, mode, id) in entries.iter().filter(|(_, _, id)| absent.contains(id)) {
        places.entry(id).or_insert((path, *mode));
    }
    let mut cursor = Cursor::new(sealed.dir);
    let mut batch = Vec::new();
    let flush = |batch: &mut Vec<u8>| -> Result<()> {
        if !batch.is_empty() {
            let call = repo.call(["fast-import", "--quiet"]);
            repo.run(call.stdin(core::mem::take(batch)))?;
        }
        Ok(())
    };
    for (id, (path, mode)) in places {
        let bytes = match sealed.pointers.get(path) {
            Some(text) => text.clone(),
            None => content(&mut cursor, path, mode)?,
        };
        if object_id(repo.format(), Kind::Blob, &bytes)? != *id {
            let refusal = Refusal::new(Code::TreeMismatch, "the entry changed while it was delivered");
            return Err(refusal.name(path.to_string()).into());
        }
        batch.extend_from_slice(format!("blob\ndata {}\n", bytes.len()).as_bytes());
        batch.extend_from_slice(&bytes);
        batch.push(b'\n');
        if batch.len() > BATCH_BYTES {
            flush(&mut batch)?;
        }
    }
    flush(&mut batch)
}

fn write_trees(repo: &Repository, trees: &[(ObjectId, Vec<u8>)]) -> Result<()> {
    let mut text = Vec::new();
    for (_, body) in trees {
        for entry in parse_tree(repo.format(), body)? {
            let head = match entry.mode {
                TreeMode::Directory => "040000 tree",
                TreeMode::Leaf(Mode::File) => "100644 blob",
                TreeMode::Leaf(Mode::Executable) => "100755 blob",
                TreeMode::Leaf(Mode::Symlink) => "120000 blob",
                TreeMode::Leaf(Mode::Gitlink) => "160000 commit",
            };
            text.extend_from_slice(format!("{head} {}\t", entry.id).as_bytes());
            text.extend_from_slice(&entry.name);
            text.push(0);
        }
        // An empty record ends one tree.
        text.push(0);
    }
    let call = repo.call(["mktree", "--batch", "--missing", "-z"]);
    let said = repo.run(call.stdin(text))?;
    let made: Vec<&[u8]> = said.split(|b| *b == b'\n').filter(|l| !l.is_empty()).collect();
    let wanted: Vec<String> = trees.iter().map(|(id, _)| id.to_string()).collect();
    if made.len() == wanted.len() && made.iter().zip(&wanted).all(|(a, b)| *a == b.as_bytes()) {
        return Ok(());
    }
    Err(Refusal::new(
        Code::TreeMismatch,
        "git made another tree of the certified entries",
    )
    .into())
}

fn write_commit(repo: &Repository, sealed: &Sealed<'_>, import: &Import) -> Result<ObjectId> {
    let (tree, base) = (sealed.certified.to_string(), import.base.to_string());
    let call = repo.call(["commit-tree", &tree, "-p", &base, "-F", "-"]);
    let mut call = call.stdin(import.message.clone().into_bytes());
    let date = OsString::from(format!("@{} +0000", import.at.0 / 1000));
    for (name, value) in [
        ("GIT_AUTHOR_NAME", OsString::from("Semel")),
        ("GIT_AUTHOR_EMAIL", OsString::from("semel@localhost")),
        ("GIT_AUTHOR_DATE", date.clone()),
        ("GIT_COMMITTER_NAME", OsString::from("Semel")),
        ("GIT_COMMITTER_EMAIL", OsString::from("semel@localhost")),
        ("GIT_COMMITTER_DATE", date),
    ] {
        call.env.push((name, value));
    }
    let said = repo.run(call)?;
    let text = core::str::from_utf8(said.trim_ascii()).unwrap_or_default();
    Ok(ObjectId::parse(text)?)
}

fn settle(there: ObjectId, commit: ObjectId, branch: &str) -> Result<Delivery> {
    if there == commit {
        return Ok(Delivery::AlreadyThere(commit));
    }
    let refusal = Refusal::new(Code::PreconditionFailed, "the branch exists, at another commit");
    Err(refusal
        .reason("branch_exists")
        .names([branch.to_owned(), there.to_string()])
        .into())
}

fn is_ref(repo: &Repository, name: &str) -> Result<bool> {
    match repo.run(repo.call(["check-ref-format", name])) {
        Ok(_) => Ok(true),
        Err(Error::Git(failure)) if failure.exit == Some(1) => Ok(false),
        Err(error) => Err(error),
    }
}

fn value_of(repo: &Repository, name: &str) -> Result<Option<ObjectId>> {
    let format = "--format=%(objectname) %(refname)";
    let said = repo.run(repo.call(["for-each-ref", format, name]))?;
    for line in said.split(|b| *b == b'\n') {
        let line = core::str::from_utf8(line).unwrap_or_default();
        if let Some((id, found)) = line.split_once(' ')
            && found == name
        {
            return Ok(Some(ObjectId::parse(id)?));
        }
    }
    Ok(None)
}

/// Names a lock of the ref that is in the way; it is never removed.
fn ref_lock(repo: &Repository, name: &str) -> Option<Error> {
    let common = repo.common_dir();
    let locks = [
        common.join(format!("{name}.lock")),
        common.join("packed-refs.lock"),
    ];
    let found = locks
        .into_iter()
        .find(|lock| std::fs::symlink_metadata(lock).is_ok())?;
    let refusal = Refusal::new(Code::OtherLock, "a lock of the branch is in the way");
    Some(refusal.name(shown(found.as_os_str().as_bytes())).into())
}

fn write_file(out: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(format!(
        ".{}",
        semel_core::digest::to_hex(&crate::clock::random::<8>()?)
    ));
    let private = out.with_file_name(name);
    let written = std::fs::File::create_new(&private)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&private, out));
    if let Err(error) = written {
        std::fs::remove_file(&private).ok();
        return Err(Error::io("write", out, error));
    }
    let parent = out
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let synced = std::fs::File::open(parent).and_then(|dir| dir.sync_all());
    synced.map_err(|e| Error::io("sync", parent, e))
}
