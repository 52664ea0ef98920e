//! Whether a file may be of what is checked out: of any worktree whose repository knows a candidate.
//!
//! Whoever works in a worktree writes its files, and may write its `.git`, too. So the repository is asked for its
//! worktrees, and the directories above the file for theirs; in doubt a file is of one.

use super::Git;
use super::repository::Repository;
use super::worktree::{self, Found, pointer};
use crate::error::{Error, Result};
use crate::process::Cancel;
use semel_core::Code;
use semel_core::git_tree::ObjectId;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Is what a file must not be checked out with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    /// Where the repository of the candidate lies.
    pub(super) found: &'a Found,
    /// The commit.
    pub(super) commit: &'a ObjectId,
    /// Its tree.
    pub(super) tree: &'a ObjectId,
}

/// Says why an open file may be one that a worktree of the candidate holds; `None` where it is none.
///
/// It is the handle that is looked at, and not a name, which may be another file's by now. A git directory is no part of what
/// is checked out. A worktree of another repository counts only where that one has the candidate, or cannot be read.
///
/// # Errors
/// `io_failed` where the file cannot be examined.
pub(super) fn holds(
    candidate: Candidate<'_>,
    file: &File,
    programs: &[PathBuf],
    cancel: &Cancel,
) -> Result<Option<&'static str>> {
    let fail = |e: std::io::Error| Error::io("examine", "an open file", e);
    let facts = file.metadata().map_err(fail)?;
    if facts.nlink() > 1 {
        return Ok(Some(
            "it has another name, a hard link, and that may lie in a worktree under test",
        ));
    }
    let real = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(fail)?;
    let same = |there: Metadata| (there.dev(), there.ino()) == (facts.dev(), facts.ino());
    if !std::fs::symlink_metadata(&real).is_ok_and(same) {
        return Ok(Some(
            "it has no name any more, or another one since it was opened",
        ));
    }
    let found = candidate.found;
    let inside = |dir: &Path| real.starts_with(dir);
    let linked = linked(found);
    let mains = found.worktree.iter().chain(&linked).cloned();
    let named = configured(found, programs, cancel)?;
    for worktree in mains.chain(main(&found.common)).chain(named) {
        if inside(&worktree) && !inside(&found.gitdir) && !inside(&found.common) {
            return Ok(Some("it lies in a worktree of the candidate's repository"));
        }
    }
    for above in real.ancestors().skip(1) {
        let dot_git = above.join(".git");
        let is_one = std::fs::symlink_metadata(&dot_git).is_ok();
        if is_one && !inside(&dot_git) && knows(candidate, above, programs, cancel) {
            return Ok(Some("it lies in a worktree whose repository has the candidate"));
        }
    }
    Ok(None)
}

/// Gives the worktree that a git directory is the `.git` of.
fn main(common: &Path) -> Option<PathBuf> {
    let is_dot_git = common.file_name() == Some(OsStr::new(".git"));
    is_dot_git.then(|| common.parent().map(Path::to_owned)).flatten()
}

/// Lists the worktrees that the configuration of a repository names, `core.worktree` of it and of each linked worktree.
///
/// # Errors
/// `git_failed` where it cannot be read.
fn configured(found: &Found, programs: &[PathBuf], cancel: &Cancel) -> Result<Vec<PathBuf>> {
    let mut gitdirs = vec![found.common.clone(), found.gitdir.clone()];
    if let Ok(entries) = std::fs::read_dir(found.common.join("worktrees")) {
        gitdirs.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    gitdirs.dedup();
    let shared = may_name(&found.common.join("config"));
    let mut worktrees = Vec::new();
    for gitdir in gitdirs {
        if !shared && !may_name(&gitdir.join("config.worktree")) {
            continue;
        }
        let at = Found {
            worktree: None,
            gitdir: gitdir.clone(),
            common: found.common.clone(),
        };
        // Git itself reads it: the key may come from a file that is included.
        let repository = Repository::at(&Git::find(programs)?, at, cancel)?;
        if let Some(named) = repository.config().get("core.worktree")
            && let Ok(real) = std::fs::canonicalize(gitdir.join(OsStr::from_bytes(named)))
        {
            worktrees.push(real);
        }
    }
    Ok(worktrees)
}

/// Says whether a configuration may name a worktree, or another file that does; so that git is seldom asked.
fn may_name(config: &Path) -> bool {
    let words: [&[u8]; 2] = [b"worktree", b"include"];
    match std::fs::read(config) {
        Ok(text) => words.iter().any(|word| {
            let mut windows = text.windows(word.len());
            windows.any(|window| window.eq_ignore_ascii_case(word))
        }),
        Err(e) => e.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Lists the linked worktrees that a repository knows; what leads nowhere is none.
fn linked(found: &Found) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(found.common.join("worktrees")) else {
        return Vec::new();
    };
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let dir = entry.ok()?.path();
        let dot_git = dir.join(OsStr::from_bytes(&pointer(&dir.join("gitdir")).ok()?));
        std::fs::canonicalize(dot_git.parent()?).ok()
    };
    entries.filter_map(of).collect()
}

/// Says whether the repository of a worktree has the candidate, or its tree; also where that cannot be told.
fn knows(candidate: Candidate<'_>, worktree: &Path, programs: &[PathBuf], cancel: &Cancel) -> bool {
    let Ok(found) = worktree::find(worktree) else {
        return true;
    };
    if found.common == candidate.found.common {
        return true;
    }
    let opened = Git::find(programs).and_then(|git| Repository::open(&git, worktree, cancel));
    let Ok(repository) = opened else { return true };
    // One of another object format cannot have it.
    if repository.format() != candidate.commit.format() {
        return false;
    }
    let lacks = |code: Option<Code>| code == Some(Code::ObjectMissing);
    let commit = repository.read_commit(candidate.commit).err();
    let tree = repository.read_tree(candidate.tree).err();
    !(lacks(commit.map(|e| e.code())) && lacks(tree.map(|e| e.code())))
}
