//! What the references of a repository name, read by us: no git that is shown the repository has a hand in it.
//!
//! A git that reads references reads configuration each time, and waits for whatever a loose reference leads to. Here each
//! is a plain file of bounded size, opened without following a link; what is none names nothing, so that less is taken for
//! reachable, never more.

use super::reftable;
use super::work::{Tips, refused};
use crate::error::{Error, Result};
use crate::git::repository::Repository;
use crate::git::settings::plain_bytes;
use crate::git::verify::Cursor;
use crate::git::worktree::{self, Checked};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, openat};
use rustix::io::Errno;
use semel_core::git_tree::{ObjectFormat, ObjectId};
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

/// References that every worktree has for itself.
const OWN: [&[u8]; 3] = [b"refs/worktree/", b"refs/bisect/", b"refs/rewritten/"];
/// The largest file of one reference that is read, and the largest of packed ones.
const LOOSE: u64 = 8 << 10;
const PACKED: u64 = 1 << 30;
/// How many loose references are read.
const MOST: usize = 2_000_000;
/// How often a reference may lead to another one.
const DEEPEST: usize = 5;

/// What references name, as one worktree sees them.
#[derive(Default)]
pub(super) struct Refs {
    /// The objects that references name which all worktrees share.
    pub(super) shared: BTreeSet<ObjectId>,
    /// The objects that only this worktree names, by a reference or its log.
    pub(super) own: Tips,
    /// What HEAD names, where it names an object.
    pub(super) head: Option<ObjectId>,
}

/// What a reference says.
enum Said {
    Id(ObjectId),
    Points(Vec<u8>),
    /// It cannot be read, or says something else.
    Nothing,
}

type All = BTreeMap<Vec<u8>, Said>;

/// Reads the references that a worktree sees.
///
/// # Errors
/// `precondition_failed`, reason `dirty_worktree`, where one of the worktree's own cannot be read; `worktree_redirected`
/// where HEAD or the packed references are no plain file; `bad_input` where references are kept in a form of another
/// day; `git_failed`, `io_failed`.
pub(super) fn read(repo: &Repository, at: &Checked) -> Result<Refs> {
    match repo.config().get("extensions.refstorage") {
        None | Some(b"files") => of_files(repo, at),
        Some(b"reftable") => reftable::read(repo, at),
        Some(other) => Err(unknown_storage(other)),
    }
}

/// Refuses a repository whose references are kept in a form that we do not know.
pub(super) fn unknown_storage(form: &[u8]) -> Error {
    let refusal = Refusal::new(
        Code::BadInput,
        "the repository keeps its references in an unknown form",
    );
    refusal.name(shown(form)).into()
}

/// Says whether a reference is of one worktree alone.
pub(super) fn is_own(name: &[u8]) -> bool {
    OWN.iter().any(|dir| name.starts_with(dir))
}

fn of_files(repo: &Repository, at: &Checked) -> Result<Refs> {
    let format = repo.format();
    let common = repo.common_dir();
    // Links are followed here alone: some keep all references of several repositories in one place.
    let mut shared = match std::fs::canonicalize(common.join("refs")) {
        Ok(real) => loose(&worktree::open_dir(&real)?, format)?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => All::new(),
        Err(e) => return Err(Error::io("resolve", common.join("refs"), e)),
    };
    // In this order nothing is missed that is packed meanwhile; a loose one outranks a packed one even so.
    packed(common, format, &mut shared)?;
    shared.retain(|name, _| !is_own(name));
    let mut refs = Refs {
        shared: shared.values().filter_map(id).collect(),
        ..Refs::default()
    };
    let own = match openat(&at.dir, "refs", DIRECTORY, Mode::empty()) {
        Ok(dir) => loose(&dir, format)?,
        Err(Errno::NOENT) => All::new(),
        Err(e) => return Err(Error::io("open", at.gitdir.join("refs"), e)),
    };
    let mut unknown = Vec::new();
    for (name, said) in own.into_iter().filter(|(name, _)| is_own(name)) {
        if matches!(said, Said::Nothing) {
            unknown.push(shown(&name));
        }
        shared.insert(name, said);
    }
    if !unknown.is_empty() {
        let why = "references of the worktree alone cannot be read";
        return Err(refused(why, "dirty_worktree", unknown));
    }
    for name in shared.keys().filter(|name| is_own(name)) {
        if let Some(id) = resolved(&shared, name) {
            refs.own.insert(id.to_string(), shown(name));
        }
    }
    let named = at.gitdir.join("HEAD");
    let head = plain_bytes(&at.dir, Path::new("HEAD"), &named, LOOSE)?;
    refs.head = match head.map_or(Said::Nothing, |text| said(&text, format)) {
        Said::Id(id) => Some(id),
        Said::Points(name) => resolved(&shared, &name),
        Said::Nothing => None,
    };
    Ok(refs)
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn id(said: &Said) -> Option<ObjectId> {
    match said {
        Said::Id(id) => Some(*id),
        Said::Points(_) | Said::Nothing => None,
    }
}

fn resolved(all: &All, name: &[u8]) -> Option<ObjectId> {
    let mut name = name;
    for _ in 0..DEEPEST {
        match all.get(name)? {
            Said::Id(id) => return Some(*id),
            Said::Points(next) => name = next,
            Said::Nothing => return None,
        }
    }
    None
}

/// Reads the loose references below a directory that is `refs`.
fn loose(refs: &OwnedFd, format: ObjectFormat) -> Result<All> {
    let mut all = All::new();
    let mut cursor = Cursor::new(refs.as_fd());
    let mut todo = vec![RelPath::root()];
    while let Some(at) = todo.pop() {
        // Whatever its last part is, of a path only the directory is opened.
        let Some(dir) = cursor.parent(&at.observed(b"any")?)? else {
            continue;
        };
        let failed = |e: Errno| Error::io("list", shown(at.as_bytes()), e);
        for entry in Dir::read_from(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || all.len() >= MOST {
                continue;
            }
            let path = at.observed(name)?;
            let told = entry.file_type();
            if told == FileType::Directory
                || (told == FileType::Unknown && openat(dir, name, DIRECTORY, Mode::empty()).is_ok())
            {
                todo.push(path);
                continue;
            }
            let whole = [b"refs/", path.as_bytes()].concat();
            if is_name(&whole) {
                let text = plain_bytes(dir, &worktree::path_of(name), Path::new(&shown(&whole)), LOOSE);
                // What cannot be read names nothing; neither does what is packed under its name.
                let text = text.ok().flatten();
                all.insert(whole, text.map_or(Said::Nothing, |text| said(&text, format)));
            }
        }
    }
    Ok(all)
}

/// Adds the packed references whose names are not taken.
fn packed(common: &Path, format: ObjectFormat, all: &mut All) -> Result<()> {
    let place = common.join("packed-refs");
    let Some(text) = plain_bytes(CWD, &place, &place, PACKED)? else {
        return Ok(());
    };
    for line in text.split(|b| *b == b'\n') {
        let Some(space) = line.iter().position(|b| *b == b' ') else {
            continue;
        };
        let (said, name) = (said(&line[..space], format), &line[space + 1..]);
        if matches!(said, Said::Id(_)) && name.starts_with(b"refs/") && is_name(name) {
            all.entry(name.to_vec()).or_insert(said);
        }
    }
    Ok(())
}

/// Reads what a file of a reference says.
///
/// # Source
/// Git, `refs/files-backend.c`, `parse_loose_ref_contents`.
fn said(text: &[u8], format: ObjectFormat) -> Said {
    if let Some(name) = text.strip_prefix(b"ref:") {
        return Said::Points(name.trim_ascii().to_vec());
    }
    let digits = match format {
        ObjectFormat::Sha1 => 40,
        ObjectFormat::Sha256 => 64,
    };
    let ended = text.get(digits).is_none_or(u8::is_ascii_whitespace);
    let id = text.get(..digits).filter(|_| ended);
    let id = id.and_then(|id| core::str::from_utf8(id).ok());
    let id = id.and_then(|id| ObjectId::parse(&id.to_ascii_lowercase()).ok());
    id.filter(|id| id.format() == format)
        .map_or(Said::Nothing, Said::Id)
}

/// Says whether git takes this for the name of a reference: what is none keeps nothing from being collected.
///
/// # Source
/// Git, `refs.c`, `check_refname_format`.
fn is_name(name: &[u8]) -> bool {
    let odd = |b: &u8| *b <= b' ' || *b == 0x7f || b"~^:?*[\\".contains(b);
    let part = |part: &[u8]| !part.is_empty() && !part.starts_with(b".") && !part.ends_with(b".lock");
    let within = |two: &[u8]| name.windows(2).any(|pair| pair == two);
    name.split(|b| *b == b'/').all(part)
        && !name.iter().any(odd)
        && !within(b"..")
        && !within(b"@{")
        && !name.ends_with(b".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_git() {
        for name in [
            "refs/heads/a",
            "refs/a.b/c@d",
            "refs/heads/\u{e9}",
            "refs/heads/@",
        ] {
            assert!(is_name(name.as_bytes()), "{name}");
        }
        let odd = [
            "refs/heads/a.lock",
            "refs/.a/b",
            "refs/a//b",
            "refs/a..b",
            "refs/a b",
            "refs/a~1",
            "refs/a@{1}",
            "refs/a.",
            "refs/a\\b",
            "refs/a/",
        ];
        for name in odd {
            assert!(!is_name(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_reference_says_an_id_or_where_it_points_or_nothing() {
        let one = "1A".repeat(20);
        let read = |text: &str| match said(text.as_bytes(), ObjectFormat::Sha1) {
            Said::Id(id) => id.to_string(),
            Said::Points(name) => shown(&name),
            Said::Nothing => "-".to_owned(),
        };
        assert_eq!(read(&one), one.to_lowercase());
        assert_eq!(read(&format!("{one}\n")), one.to_lowercase());
        assert_eq!(read(&format!("{one} words")), one.to_lowercase());
        assert_eq!(read("ref:  refs/heads/a \n"), "refs/heads/a");
        for nothing in [&one[1..], &format!("{one}0"), "", "words"] {
            assert_eq!(read(nothing), "-", "{nothing}");
        }
    }
}
