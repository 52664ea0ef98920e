//! An opened repository: where its parts are, what it configures, where its objects come from. It reads no
//! object and writes nothing.

use super::settings;
use super::view::View;
use super::worktree::{self, Found};
use super::{Call, Git, Place, Said, brief};
use crate::error::{Error, Result};
use crate::process::Cancel;
use semel_core::git_tree::{ObjectFormat, ObjectId};
use semel_core::path::shown;
use semel_core::{Code, Refusal};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Holds what the repository itself configures (local and worktree scope), keys in git's canonical form.
#[derive(Clone, Debug, Default)]
pub struct Config(Vec<(Vec<u8>, Vec<u8>)>);

impl Config {
    /// Gives the last value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        let found = self.0.iter().rev().find(|(k, _)| k == key.as_bytes());
        found.map(|(_, value)| value.as_slice())
    }

    /// Says whether a key is set to a true value.
    #[must_use]
    pub fn is_true(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| {
            let value = value.to_ascii_lowercase();
            matches!(value.as_slice(), b"true" | b"yes" | b"on" | b"1" | b"")
        })
    }

    /// Lists the filter drivers that some key configures; their names are bytes.
    #[must_use]
    pub fn filters(&self) -> BTreeSet<Vec<u8>> {
        self.named(b"filter.")
    }

    /// Lists the hooks that some key configures; their names are bytes.
    fn hooks(&self) -> BTreeSet<Vec<u8>> {
        self.named(b"hook.")
    }

    fn named(&self, section: &[u8]) -> BTreeSet<Vec<u8>> {
        let name = |key: &[u8]| {
            let rest = key.strip_prefix(section)?;
            let dot = rest.iter().rposition(|b| *b == b'.')?;
            Some(rest[..dot].to_vec())
        };
        self.0.iter().filter_map(|(key, _)| name(key)).collect()
    }

    /// Lists the extensions of the repository's form, and their values.
    pub(super) fn extensions(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(b"extensions.")?;
            Some((core::str::from_utf8(name).ok()?, value.as_slice()))
        })
    }

    /// Adds what another file says, which outranks this.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Parses `git config --list -z`.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let entries = bytes.split(|b| *b == 0).filter(|entry| !entry.is_empty());
        Self(entries.map(entry).collect())
    }

    /// Parses `git config --list --show-scope -z`, as far as the repository says it.
    fn parse_scoped(bytes: &[u8]) -> Self {
        let mut all = Vec::new();
        let mut fields = bytes.split(|b| *b == 0);
        while let (Some(scope), Some(said)) = (fields.next(), fields.next()) {
            if scope == b"local" || scope == b"worktree" {
                all.push(entry(said));
            }
        }
        Self(all)
    }
}

/// Parses one entry: a key without a value has no newline; git takes it as true, and so does `is_true`.
fn entry(entry: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut parts = entry.splitn(2, |b| *b == b'\n');
    let key = parts.next().unwrap_or_default().to_vec();
    (key, parts.next().unwrap_or_default().to_vec())
}

/// Holds an opened repository: explicit places, so that git discovers nothing.
#[derive(Clone, Debug)]
pub struct Repository {
    git: Git,
    pub(crate) place: Place,
    format: ObjectFormat,
    config: Config,
    cancel: Cancel,
}

impl Repository {
    /// Opens the repository of a worktree, or a bare one.
    ///
    /// # Errors
    /// `not_found` where the path does not exist, `bad_input` where it is no repository, `worktree_redirected`
    /// where `.git` is a link, `git_failed` where git cannot read its configuration.
    pub fn open(git: &Git, path: &Path, cancel: &Cancel) -> Result<Self> {
        Self::at(git, worktree::find(path)?, cancel)
    }

    /// Takes a repository as it is, with its refs; the programs that it configures by now are switched off.
    pub(crate) fn at(git: &Git, found: Found, cancel: &Cancel) -> Result<Self> {
        let mut place = found.place();
        let list = Call::new(["config", "--list", "--show-scope", "-z"], cancel);
        let config = Config::parse_scoped(&git.run(&place, brief(list))?);
        let format = format_of(&config)?;
        // No filter program is ever run; an empty command is none.
        for filter in config.filters() {
            for (key, value) in [
                ("clean", ""),
                ("smudge", ""),
                ("process", ""),
                ("required", "false"),
            ] {
                let name = [b"filter.", filter.as_slice(), b".", key.as_bytes()].concat();
                place.config.push((OsString::from_vec(name), value.into()));
            }
        }
        for hook in config.hooks() {
            let name = [b"hook.", hook.as_slice(), b".enabled"].concat();
            place.config.push((OsString::from_vec(name), "false".into()));
        }
        Ok(Self {
            git: git.clone(),
            place,
            format,
            config,
            cancel: cancel.clone(),
        })
    }

    /// Opens the objects of a repository as [`Repository::open`] does, and sees nothing else of it.
    ///
    /// # Errors
    /// As [`Repository::viewed`], and those of finding it.
    pub(crate) fn objects_of(git: &Git, path: &Path, cancel: &Cancel) -> Result<Self> {
        Self::viewed(git, worktree::find(path)?, None, cancel)
    }

    /// Takes the objects of a repository, by a view: nothing that it configures reaches git, now or later.
    ///
    /// # Errors
    /// `worktree_redirected` where its configuration is no plain file; `git_failed` where git cannot read it or works in
    /// no repository of its form; `bad_input` for an unknown object format; `io_failed`.
    pub(crate) fn viewed(git: &Git, found: Found, view: Option<Arc<View>>, cancel: &Cancel) -> Result<Self> {
        object_dirs(&found.common)?;
        let config = settings::read(git, &found, cancel)?;
        let format = format_of(&config)?;
        settings::refuse_unknown_form(git, &config, format, cancel)?;
        let view = match view.filter(|view| view.format() == format) {
            Some(view) => view,
            None => Arc::new(View::new(format)?),
        };
        Ok(Self {
            git: git.clone(),
            place: Place {
                view: Some(view),
                config: settings::handed_over(&config),
                ..found.place()
            },
            format,
            config,
            cancel: cancel.clone(),
        })
    }

    /// Takes the objects that a place shows, without a look at the repository's configuration: enough to read objects that
    /// are hashed again. Where git has to be told of the form of a repository, none is found.
    pub(super) fn unconfigured(git: Git, place: Place, format: ObjectFormat, cancel: &Cancel) -> Self {
        Self {
            git,
            place,
            format,
            config: Config::default(),
            cancel: cancel.clone(),
        }
    }

    /// Gives the hash function of the repository.
    #[must_use]
    pub fn format(&self) -> ObjectFormat {
        self.format
    }

    /// Gives what the repository configures.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Gives the executable that reads it.
    #[must_use]
    pub fn git(&self) -> &Git {
        &self.git
    }

    /// Gives the directory that all its worktrees share.
    #[must_use]
    pub fn common_dir(&self) -> &Path {
        &self.place.common
    }

    pub(crate) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Runs git in this repository.
    pub(crate) fn run(&self, call: Call<'_>) -> Result<Vec<u8>> {
        self.git.run(&self.place, call)
    }

    /// Runs git in this repository, and gives both its streams.
    pub(crate) fn said(&self, call: Call<'_>) -> Result<Said> {
        self.git.said(&self.place, call)
    }

    pub(crate) fn call<S: Into<OsString>>(&self, args: impl IntoIterator<Item = S>) -> Call<'_> {
        Call::new(args, &self.cancel)
    }

    /// Parses an id that a caller gave.
    ///
    /// # Errors
    /// `bad_input` unless it is a full id, in lower case, of this repository's object format.
    pub fn parse_id(&self, text: &str) -> Result<ObjectId> {
        let id = ObjectId::parse(text)?;
        if id.format() == self.format {
            return Ok(id);
        }
        let refusal = Refusal::new(
            Code::BadInput,
            "the id is of another object format than the repository",
        );
        Err(refusal.name(text).into())
    }

    /// Lists the directories of objects that must be readable for this repository to be whole: its own and all
    /// that it borrows from.
    ///
    /// # Errors
    /// `io_failed` where one of them cannot be read; `bad_input` past 32 of them.
    pub fn object_dirs(&self) -> Result<Vec<PathBuf>> {
        object_dirs(&self.place.common)
    }
}

/// Lists the directories of objects of a common directory, as [`Repository::object_dirs`] does. What git would read of them
/// to find the next one is a plain file, then.
pub(super) fn object_dirs(common: &Path) -> Result<Vec<PathBuf>> {
    let mut dirs = vec![canonical(&common.join("objects"))?];
    let mut at = 0;
    while at < dirs.len() {
        let dir = dirs[at].clone();
        at += 1;
        let list = dir.join("info/alternates");
        let Some(text) = settings::plain_file(&list)? else {
            continue;
        };
        for line in text.split(|b| *b == b'\n') {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            if line.starts_with(b"\"") {
                let refusal = Refusal::new(Code::BadInput, "an alternate is quoted; name it plainly");
                return Err(refusal.name(shown(line)).into());
            }
            let next = canonical(&dir.join(worktree::path_of(line)))?;
            if !dirs.contains(&next) {
                dirs.push(next);
            }
        }
        if dirs.len() > 32 {
            let refusal = Refusal::new(Code::BadInput, "the repository borrows from more than 32 others");
            return Err(refusal.into());
        }
    }
    Ok(dirs)
}

fn format_of(config: &Config) -> Result<ObjectFormat> {
    match config.get("extensions.objectformat") {
        None | Some(b"sha1") => Ok(ObjectFormat::Sha1),
        Some(b"sha256") => Ok(ObjectFormat::Sha256),
        Some(other) => {
            let refusal = Refusal::new(Code::BadInput, "the repository has an unknown object format");
            Err(refusal.name(shown(other)).into())
        }
    }
}

fn canonical(path: &Path) -> Result<PathBuf> {
    std::fs::canonicalize(path).map_err(|e| Error::io("resolve", path, e))
}
