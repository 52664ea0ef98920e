//! What a repository configures, asked of git once and not again while every file that it was read from looks the same.
//!
//! With nothing from outside, git reads it from `config` of the common directory and `config.worktree` of the git directory,
//! and from whatever these include: what includes anything is asked for every time.

use super::memo::{Before, Look, Shelf, provable};
use super::repository::Config;
use super::{Call, Git, Place};
use crate::error::Result;
use crate::process::Cancel;
use semel_core::digest::Sha256;
use std::path::{Path, PathBuf};

type Key = (PathBuf, Sha256, PathBuf, PathBuf);

static KNOWN: Shelf<Key, (State, Config)> = Shelf::new(4 << 20);

/// The largest configuration that is kept.
const LARGEST: usize = 64 << 10;

/// The files that git read it from, and those by which it knew a repository.
#[derive(Clone, PartialEq, Eq)]
struct State {
    files: [Option<Look>; 5],
    dirs: [Option<(u64, u64)>; 2],
}

impl State {
    /// Looks; `None` where something is not of the usual shape.
    fn look(gitdir: &Path, common: &Path) -> Option<Self> {
        let file = |path: PathBuf| match Look::of_path(&path).ok()? {
            Some(look) if !look.is_file() => None,
            look => Some(look),
        };
        let dir = |path: PathBuf| Some(Look::of_path(&path).ok()?.map(|look| look.inode()));
        Some(Self {
            files: [
                file(common.join("config"))?,
                file(common.join("config.worktree"))?,
                file(gitdir.join("config.worktree"))?,
                file(gitdir.join("HEAD"))?,
                file(gitdir.join("commondir"))?,
            ],
            dirs: [dir(common.join("refs"))?, dir(common.join("objects"))?],
        })
    }
}

/// Reads what the repository of a place configures.
///
/// # Errors
/// `git_failed` where git cannot read it.
pub(super) fn read(git: &Git, place: &Place, cancel: &Cancel) -> Result<Config> {
    let (gitdir, common) = (&place.gitdir, &place.common);
    let before = Before::now();
    let state = State::look(gitdir, common);
    let key = (git.program.clone(), git.sha256, gitdir.clone(), common.clone());
    if let (Some(state), Some((known, config))) = (&state, KNOWN.get(&key))
        && *state == known
    {
        return Ok(config);
    }
    let list = Call::new(["config", "--list", "--show-scope", "-z"], cancel);
    let said = git.run(place, list)?;
    let config = Config::parse(&said);
    let Some(state) = state else {
        return Ok(config);
    };
    let settled = state.files.iter().flatten().all(|look| look.settled(before));
    let kept = settled
        && said.len() <= LARGEST
        && !config.includes()
        && provable(gitdir)
        && provable(&common.join("config"))
        && State::look(gitdir, common).as_ref() == Some(&state);
    if kept {
        KNOWN.put(key, (state, config.clone()), said.len() + 1024);
    }
    Ok(config)
}
