//! What a repository configures, as far as we have to know it.
//!
//! Whoever works in a worktree can write these files. Where a restoration decides by them they are read by us, each a plain
//! file of bounded size, and git only parses the bytes, in no repository and following no include. What was parsed is remembered
//! by its bytes.
//!
//! Not here: what of it a git is given; that is [`handed_over`] and nothing else.

use super::memo::Shelf;
use super::repository::Config;
use super::view::{View, configuration};
use super::worktree::{Found, redirected};
use super::{Call, Git, Place, brief};
use crate::error::{Error, Result};
use crate::process::Cancel;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use semel_core::digest::Sha256;
use semel_core::git_tree::ObjectFormat;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

type Key = (Sha256, Sha256);

static KNOWN: Shelf<Key, Config> = Shelf::new(4 << 20);

/// The largest file of an agent's that is read whole: a configuration, attributes, a list.
const LARGEST: u64 = 16 << 20;
/// The largest configuration that is remembered.
const REMEMBERED: usize = 64 << 10;

/// Extensions that every git knows which we run, and that change nothing for us.
const HARMLESS: &[&str] = &["noop", "partialclone", "preciousobjects", "worktreeconfig"];

/// What git is given of the repository's own configuration: what says how a worktree looks and an index is kept, and
/// cannot run, write or name anything else.
const HANDED_OVER: &[&str] = &[
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "core.protecthfs",
    "core.protectntfs",
    "index.sparse",
];

/// Opens a file that somebody else may have a hand in, and waits for nobody; `None` where nothing is there.
///
/// # Errors
/// `worktree_redirected` where it is a link or no plain file; `io_failed`.
pub(super) fn plain_at(dir: impl AsFd, name: &Path, shown: &Path) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(dir, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::LOOP | Errno::NXIO) => return Err(redirected("not a plain file", shown)),
        Err(e) => return Err(Error::io("open", shown, e)),
    };
    let stat = fstat(&file).map_err(|e| Error::io("look at", shown, e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(redirected("not a plain file", shown));
    }
    Ok(Some(file))
}

/// Reads a whole file as [`plain_at`] opens it.
///
/// # Errors
/// As [`plain_at`]; `worktree_redirected` where it is larger than anybody needs.
pub(super) fn plain_bytes(
    dir: impl AsFd,
    name: &Path,
    shown: &Path,
    largest: u64,
) -> Result<Option<Vec<u8>>> {
    let Some(file) = plain_at(dir, name, shown)? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    let read = std::fs::File::from(file)
        .take(largest + 1)
        .read_to_end(&mut bytes);
    read.map_err(|e| Error::io("read", shown, e))?;
    if bytes.len() as u64 > largest {
        return Err(redirected("the file is larger than anybody needs", shown));
    }
    Ok(Some(bytes))
}

/// Reads a file as [`plain_bytes`] does, by its path.
pub(super) fn plain_file(path: &Path) -> Result<Option<Vec<u8>>> {
    plain_bytes(CWD, path, path, LARGEST)
}

/// Reads what the files of a repository configure, without what they include.
///
/// # Errors
/// `worktree_redirected` where one of them is no plain file; `git_failed` where git cannot read it.
pub(super) fn read(git: &Git, found: &Found, cancel: &Cancel) -> Result<Config> {
    let mut config = Config::default();
    if let Some(bytes) = plain_file(&found.common.join("config"))? {
        config = parsed(git, bytes, cancel)?;
    }
    if config.is_true("extensions.worktreeconfig")
        && let Some(bytes) = plain_file(&found.gitdir.join("config.worktree"))?
    {
        config = config.and(parsed(git, bytes, cancel)?);
    }
    Ok(config)
}

fn parsed(git: &Git, bytes: Vec<u8>, cancel: &Cancel) -> Result<Config> {
    let key = (git.sha256, Sha256::of(&bytes));
    if let Some(known) = KNOWN.get(&key) {
        return Ok(known);
    }
    let size = bytes.len();
    let call = Call::new(["config", "--file", "-", "--no-includes", "--list", "-z"], cancel);
    let config = Config::parse(&git.run(&Place::nowhere(), brief(call.stdin(bytes)))?);
    if size <= REMEMBERED {
        KNOWN.put(key, config.clone(), 2 * size + 1024);
    }
    Ok(config)
}

/// Asks a git whether it works in repositories of this form, unless every git does.
///
/// # Errors
/// `git_failed`, with git's own words.
pub(super) fn refuse_unknown_form(
    git: &Git,
    config: &Config,
    format: ObjectFormat,
    cancel: &Cancel,
) -> Result<()> {
    let version = config.get("core.repositoryformatversion").unwrap_or(b"0");
    let extensions: Vec<(&str, &[u8])> = config.extensions().collect();
    let harmless = |name: &str| HARMLESS.contains(&name) || (version == b"1" && name == "objectformat");
    if matches!(version, b"0" | b"1") && extensions.iter().all(|(name, _)| harmless(name)) {
        return Ok(());
    }
    let mut text = configuration(ObjectFormat::Sha1).into_bytes();
    text.extend_from_slice(b"[core]\n");
    line(&mut text, "repositoryformatversion", version);
    for (name, value) in extensions {
        match name.rsplit_once('.') {
            Some((section, name)) => {
                text.extend_from_slice(b"[extensions ");
                text.extend(quoted(section.as_bytes()));
                text.extend_from_slice(b"]\n");
                line(&mut text, name, value);
            }
            None => {
                text.extend_from_slice(b"[extensions]\n");
                line(&mut text, name, value);
            }
        }
    }
    let view = View::new(format)?;
    view.put("config", &text)?;
    let place = Place {
        gitdir: view.path().to_owned(),
        common: view.path().to_owned(),
        ..Place::nowhere()
    };
    // A git directory without objects of its own is none.
    let objects = view.path().join("objects");
    std::fs::create_dir(&objects).map_err(|e| Error::io("create", objects, e))?;
    git.run(&place, brief(Call::new(["rev-parse", "--git-dir"], cancel)))
        .map(drop)
}

fn line(text: &mut Vec<u8>, name: &str, value: &[u8]) {
    text.extend_from_slice(format!("\t{name} = ").as_bytes());
    text.extend(quoted(value));
    text.push(b'\n');
}

/// Writes a value as git's configuration has it.
fn quoted(value: &[u8]) -> Vec<u8> {
    let mut text = vec![b'"'];
    for byte in value {
        match byte {
            b'\n' => text.extend_from_slice(b"\\n"),
            b'"' | b'\\' => text.extend([b'\\', *byte]),
            _ => text.push(*byte),
        }
    }
    text.push(b'"');
    text
}

/// Gives what a git is told of the repository's own configuration.
pub(super) fn handed_over(config: &Config) -> Vec<(OsString, OsString)> {
    let mut all: Vec<(OsString, OsString)> = Vec::new();
    for key in HANDED_OVER {
        if config.get(key).is_some() {
            let value = if config.is_true(key) { "true" } else { "false" };
            all.push((key.into(), value.into()));
        }
    }
    if let Some(value) = config.get("core.sharedrepository")
        && !value.is_empty()
        && value.iter().all(u8::is_ascii_alphanumeric)
    {
        all.push(("core.sharedrepository".into(), OsString::from_vec(value.to_vec())));
    }
    // What a split index is based on stays where it is.
    all.push(("splitIndex.maxPercentChange".into(), "100".into()));
    all
}
