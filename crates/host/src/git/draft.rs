//! A draft's private repository: the working files of a base commit, objects borrowed read-only, and nothing of
//! the source repository that could run a program or be written to.

use super::objects::Leaf;
use super::pin;
use super::repository::Repository;
use super::restore::{RestoreOptions, Verify, restore};
use super::select::tree_of;
use super::settings::plain_file;
use super::view::configuration;
use super::worktree::Target;
use super::{Call, Git, Place, worktree};
use crate::error::{Error, Result};
use crate::process::Cancel;
use semel_core::git_tree::{Mode, ObjectFormat, ObjectId};
use semel_core::path::shown;
use semel_core::pin::Origin;
use semel_core::restore::Counts;
use semel_core::{Code, Refusal, RelPath};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Describes a prepared draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The commit that it begins from.
    pub base: ObjectId,
    /// The tree of that commit; the working files hash to it.
    pub tree: ObjectId,
    /// The hash function.
    pub format: ObjectFormat,
    /// The leaves of that tree.
    pub leaves: Vec<Leaf>,
    /// The directories of objects that the sandbox has to show, read-only, at these very paths.
    pub alternates: Vec<PathBuf>,
    /// What its restoration met.
    pub counts: Counts,
}

/// Content reaches the disk as it is stored, whatever the tree's own attributes say: a seal reads bytes.
pub(super) const ATTRIBUTES: &str = "* -text -filter -ident !eol !working-tree-encoding\n";

/// Prepares a draft in an empty directory: a repository of its own on branch `draft` at the base commit, with the
/// working files of that commit, byte for byte.
///
/// Nothing is ever written to the source repository. An identity for the agent's own commits is set; remotes,
/// hooks and shared configuration there are none.
///
/// # Errors
/// `bad_input` where the base is not a full id of a commit or the tree holds a submodule (reason `submodule`);
/// `object_missing`; `precondition_failed` where the directory is not empty; `tree_mismatch` where the files on
/// disk do not hash to the tree; `git_failed`, `io_failed`.
///
/// # Durability
/// Nothing is synced: a draft that is lost is prepared again.
pub fn prepare_draft(
    git: &Git,
    repository: &Path,
    base: &str,
    into: &Path,
    cancel: &Cancel,
) -> Result<Draft> {
    let source = Repository::objects_of(git, repository, cancel)?;
    let base = source.parse_id(base)?;
    let commit = source.read_commit(&base)?;
    let leaves = source.list_whole_tree(&commit.tree)?;
    let modules: Vec<String> = leaves
        .iter()
        .filter(|leaf| leaf.mode == Mode::Gitlink)
        .map(|leaf| leaf.path.to_string())
        .collect();
    if !modules.is_empty() {
        let refusal = Refusal::new(Code::BadInput, "the base commit has submodules").reason("submodule");
        return Err(refusal.names(modules).into());
    }
    let into = std::fs::canonicalize(into).map_err(|e| Error::io("resolve", into, e))?;
    let mut inside = std::fs::read_dir(&into).map_err(|e| Error::io("list", &into, e))?;
    if inside.next().is_some() {
        let refusal = Refusal::new(
            Code::PreconditionFailed,
            "the directory of the draft is not empty",
        );
        return Err(refusal.name(shown(into.as_os_str().as_bytes())).into());
    }
    let alternates = source.object_dirs()?;
    let place = skeleton(&source, &into, &alternates)?;
    let counts = check_out(git, &place, &base, &commit.tree, cancel)?;
    let root = worktree::open_dir(&into)?;
    let paths: Vec<RelPath> = leaves.iter().map(|leaf| leaf.path.clone()).collect();
    if tree_of(root.as_fd(), source.format(), &paths)? != commit.tree {
        let refusal = Refusal::new(
            Code::TreeMismatch,
            "the working files do not hash to the tree of the base",
        );
        return Err(refusal.name(commit.tree.to_string()).into());
    }
    Ok(Draft {
        base,
        tree: commit.tree,
        format: source.format(),
        leaves,
        alternates,
        counts,
    })
}

/// Writes the repository without running anything: no template, no hook, no remote.
fn skeleton(source: &Repository, into: &Path, alternates: &[PathBuf]) -> Result<Place> {
    let gitdir = into.join(".git");
    for dir in [
        "",
        "objects/info",
        "objects/pack",
        "refs/heads",
        "refs/tags",
        "info",
    ] {
        let dir = gitdir.join(dir);
        std::fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
    }
    let config = format!(
        "{}[core]\n\tlogallrefupdates = true\n[user]\n\tname = Draft\n\temail = draft@localhost\n\
         [gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n",
        configuration(source.format())
    );
    let mut list = Vec::new();
    for dir in alternates {
        let bytes = dir.as_os_str().as_bytes();
        if bytes.contains(&b'\n') || bytes.starts_with(b"\"") || bytes.starts_with(b"#") {
            let refusal = Refusal::new(
                Code::BadInput,
                "objects cannot be borrowed from a path of this form",
            );
            return Err(refusal.name(shown(bytes)).into());
        }
        list.extend_from_slice(bytes);
        list.push(b'\n');
    }
    write_new(&gitdir.join("config"), config.as_bytes())?;
    write_new(&gitdir.join("objects/info/alternates"), &list)?;
    write_new(&gitdir.join("info/attributes"), ATTRIBUTES.as_bytes())?;
    write_new(&gitdir.join("HEAD"), b"ref: refs/heads/draft\n")?;
    // A shallow source lacks parents; without its list the draft's history would look broken.
    let shallow = source.common_dir().join("shallow");
    if let Some(bytes) = plain_file(&shallow)? {
        write_new(&gitdir.join("shallow"), &bytes)?;
    }
    Ok(Place {
        common: gitdir.clone(),
        index: Some(gitdir.join("index")),
        gitdir,
        worktree: Some(into.to_owned()),
        objects: None,
        config: Vec::new(),
        view: None,
        attributes: None,
    })
}

fn check_out(git: &Git, place: &Place, base: &ObjectId, tree: &ObjectId, cancel: &Cancel) -> Result<Counts> {
    let base = base.to_string();
    git.run(
        place,
        Call::new(["update-ref", "refs/heads/draft", &base], cancel),
    )?;
    // By the one way in which files are ever restored: its identity held from here on, under its own lock. What the
    // bytes are is proved by the caller, by another reading.
    let into = place.worktree.as_deref().unwrap_or(&place.gitdir);
    let pin = pin::take(git, into, pin::fresh_id()?, Origin::Found, cancel)?;
    let options = RestoreOptions {
        verify: Verify::Tree,
        ..RestoreOptions::default()
    };
    restore(
        git,
        Target::Pinned(Box::new(pin)),
        &tree.to_string(),
        options,
        cancel,
    )
    .map(|outcome| outcome.counts)
    .map_err(|failed| failed.error)
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o644);
    let written = options.open(path).and_then(|mut file| file.write_all(bytes));
    written.map_err(|e| Error::io("create", path, e))
}
