//! Files of a worktree that no tree of ours holds. They are hashed and listed by us; no git looks at the worktree, so that
//! nothing that lies there, and nothing that is configured, has a program run or anybody wait.

use super::look::NAMED;
use super::work::refused;
use crate::error::{Error, Result};
use crate::git::attributes::stored_with_lf;
use crate::git::listing::Listing;
use crate::git::repository::Repository;
use crate::git::settings::{plain_bytes, plain_file};
use crate::git::verify::{Cursor, Seen, seen, whole};
use crate::git::worktree::{Checked, path_of};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode as FileMode, OFlags, openat, statat};
use rustix::io::Errno;
use semel_core::RelPath;
use semel_core::git_tree::{Kind, Mode, object_id};
use semel_core::ignore::{EntryKind, Ignore};
use semel_core::path::shown;
use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

const IGNORES: &str = ".gitignore";
/// The largest list of patterns that is read.
const LARGEST: u64 = 16 << 20;

/// Refuses files that no tree holds; counts those that git ignores.
///
/// # Errors
/// `precondition_failed`, reason `dirty_worktree` or `submodules`: what the first of the trees makes of it; `git_failed`,
/// `io_failed`.
pub(super) fn refuse_files(repo: &Repository, at: &Checked, trees: &[Listing]) -> Result<u64> {
    let mut first = None;
    for tree in trees {
        match held_against(repo, at, tree)? {
            Held::Whole { ignored } => return Ok(ignored),
            Held::Lost(lost) => first = first.or(Some(lost)),
        }
    }
    first.map_or(Ok(0), Err)
}

enum Held {
    /// Nothing would be lost.
    Whole {
        ignored: u64,
    },
    Lost(Error),
}

/// Says what would be lost if this tree alone were kept: files that differ from it, and files that git neither tracks
/// nor ignores.
fn held_against(repo: &Repository, at: &Checked, tree: &Listing) -> Result<Held> {
    let full = submodules(at, tree)?;
    if !full.is_empty() {
        let lost = refused("the worktree holds submodules", "submodules", full);
        return Ok(Held::Lost(lost));
    }
    let mut names = differing(repo, at, tree)?;
    let strays = strays(repo, at, tree)?;
    names.extend(strays.names);
    if names.is_empty() {
        return Ok(Held::Whole {
            ignored: strays.ignored,
        });
    }
    let why = "the worktree holds work that would be lost";
    Ok(Held::Lost(refused(why, "dirty_worktree", names)))
}

/// Lists files that are not those of the tree. Another end of line alone is no work, where git stores none.
fn differing(repo: &Repository, at: &Checked, tree: &Listing) -> Result<Vec<String>> {
    let mut cursor = Cursor::new(at.root.as_fd());
    let (mut names, mut ends) = (Vec::new(), Vec::new());
    for leaf in &tree.leaves {
        if names.len() >= NAMED {
            break;
        }
        let found = seen(&mut cursor, &leaf.path, repo.format())?;
        if leaf.mode == Mode::Gitlink {
            // What else may be there is told by its own reason.
            if found == Seen::Absent {
                names.push(leaf.path.to_string());
            }
            continue;
        }
        if found == Seen::Leaf(leaf.mode, leaf.id) {
            continue;
        }
        let text = whole(&mut cursor, &leaf.path)?.filter(|(mode, _)| *mode == leaf.mode);
        let text = text.map(|(_, bytes)| lf_alone(&bytes));
        let same = |text: &Vec<u8>| object_id(repo.format(), Kind::Blob, text).is_ok_and(|id| id == leaf.id);
        match text.filter(same) {
            Some(text) => ends.push((leaf.path.clone(), text)),
            None => names.push(leaf.path.to_string()),
        }
    }
    if !ends.is_empty() && names.len() < NAMED {
        let differ = stored_with_lf(repo, tree, ends)?;
        names.extend(differ.iter().map(ToString::to_string));
    }
    Ok(names)
}

/// Takes the CR from every CR LF.
fn lf_alone(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    for byte in bytes {
        if *byte == b'\n' && text.last() == Some(&b'\r') {
            text.pop();
        }
        text.push(*byte);
    }
    text
}

/// What lies there and is not of the tree.
#[derive(Default)]
struct Strays {
    /// What git would not ignore, the highest directory for all below it.
    names: BTreeSet<String>,
    /// How many files and links git ignores.
    ignored: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Under {
    Open,
    Ignored,
}

/// Goes through the worktree. Empty directories, and what is neither file, link nor directory, are no work, as for git.
fn strays(repo: &Repository, at: &Checked, tree: &Listing) -> Result<Strays> {
    let mut found = Strays::default();
    let mut rules = Ignore::new();
    let mut cursor = Cursor::new(at.root.as_fd());
    let mut todo = vec![(RelPath::root(), Under::Open)];
    while let Some((dir_path, under)) = todo.pop() {
        let ignores = dir_path.observed(IGNORES.as_bytes())?;
        let Some(dir) = cursor.parent(&ignores)? else {
            continue;
        };
        if under == Under::Open {
            // What is no plain file has no say.
            let named = Path::new(IGNORES);
            let mut text = plain_bytes(dir, named, named, LARGEST).ok().flatten();
            if dir_path.is_root() {
                let own = text.unwrap_or_default();
                let own = own.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&own);
                text = Some([&excludes(repo), own].concat());
            }
            if let Some(text) = text {
                rules.add(dir_path.clone(), &text);
            }
        }
        let failed = |e: Errno| Error::io("list", shown(dir_path.as_bytes()), e);
        for entry in Dir::read_from(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            // A repository is told by another reason, and git looks at none of that name.
            if matches!(name, b"." | b".." | b".git") {
                continue;
            }
            let path = dir_path.observed(name)?;
            if tree.leaf(path.as_bytes()).is_some() {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(e) => return Err(failed(e)),
                },
                told => told,
            };
            let judged = match kind {
                FileType::Directory => EntryKind::Directory,
                _ => EntryKind::Other,
            };
            let under = match under {
                Under::Open if rules.matches(&path, judged) => Under::Ignored,
                same => same,
            };
            match (kind, under) {
                (FileType::Directory, _) => todo.push((path, under)),
                (FileType::RegularFile | FileType::Symlink, Under::Ignored) => found.ignored += 1,
                (FileType::RegularFile | FileType::Symlink, Under::Open) => {
                    found.names.insert(highest(tree, &path));
                    if found.names.len() >= NAMED {
                        return Ok(found);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Names a file by the highest directory above it that the tree has not.
fn highest(tree: &Listing, path: &RelPath) -> String {
    let bytes = path.as_bytes();
    let mut ends = (0..bytes.len()).filter(|at| bytes[*at] == b'/');
    match ends.find(|end| !tree.dirs.contains(&bytes[..*end])) {
        Some(end) => shown(&bytes[..=end]),
        None => path.to_string(),
    }
}

/// Reads the patterns that hold for a whole repository, as the first of those of the root.
fn excludes(repo: &Repository) -> Vec<u8> {
    let text = plain_file(&repo.common_dir().join("info/exclude"));
    let mut text = text.ok().flatten().unwrap_or_default();
    text.push(b'\n');
    text
}

/// Lists submodules that are checked out, which git does not remove either, and whatever else lies where one belongs.
fn submodules(at: &Checked, tree: &Listing) -> Result<Vec<String>> {
    let mut full = Vec::new();
    for leaf in tree.leaves.iter().filter(|leaf| leaf.mode == Mode::Gitlink) {
        let place: PathBuf = at.worktree.join(path_of(leaf.path.as_bytes()));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |e: Errno| Error::io("look into", &place, e);
        let dir = match openat(CWD, &place, flags, FileMode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => continue,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                full.push(leaf.path.to_string());
                continue;
            }
            Err(e) => return Err(failed(e)),
        };
        for entry in Dir::read_from(&dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                full.push(leaf.path.to_string());
                break;
            }
        }
    }
    Ok(full)
}
