//! What stands in the way of a restoration, and what it leaves behind: attributes that need a program, entries that are
//! not of the tree. It changes nothing; what would be removed is the matter of [`super::removal`].

use super::draft::ATTRIBUTES;
use super::listing::Listing;
use super::objects::Leaf;
use super::repository::Repository;
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode as FileMode, OFlags, openat, statat};
use semel_core::git_tree::Mode;
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

/// Refuses a tree whose attributes change content on its way to the disk by more than `eol`.
///
/// No filter program is ever run, and without it the files would not be what the person knows; that is said
/// before anything is written, not after.
pub(super) fn refuse_programs(repo: &Repository, listing: &Listing) -> Result<()> {
    let own = repo.common_dir().join("info/attributes");
    let own_text = match std::fs::read(&own) {
        // These outrank the tree's own, and have everything written as it is stored.
        Ok(text) if text == ATTRIBUTES.as_bytes() => return Ok(()),
        Ok(text) => Some(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(Error::io("read", own, e)),
    };
    let mut found = of_the_tree(repo, listing)?;
    if let (None, Some(text)) = (&found, &own_text) {
        found = converting(text).map(|attribute| ["info/attributes".to_owned(), shown(attribute)]);
    }
    let Some(names) = found else { return Ok(()) };
    let why = "the tree has an attribute that needs a filter program or another encoding";
    Err(Refusal::new(Code::PreconditionFailed, why)
        .reason("content_attribute")
        .names(names)
        .into())
}

/// Finds an attribute that converts content, in the files of the tree: they are read once for all, since they are what
/// the tree's id says.
fn of_the_tree(repo: &Repository, listing: &Listing) -> Result<Option<[String; 2]>> {
    if let Some(known) = listing.converting.get() {
        return Ok(known.clone());
    }
    let files: Vec<&Leaf> = listing
        .leaves
        .iter()
        .filter(|leaf| matches!(leaf.path.split_last(), Some((_, b".gitattributes"))))
        .filter(|leaf| matches!(leaf.mode, Mode::File | Mode::Executable))
        .collect();
    let ids: Vec<_> = files.iter().map(|leaf| leaf.id).collect();
    let texts = repo.read_blobs(&ids)?;
    let mut all = files.iter().zip(&texts);
    let found = all.find_map(|(leaf, text)| Some([leaf.path.to_string(), shown(converting(text)?)]));
    Ok(listing.converting.get_or_init(|| found).clone())
}

/// Finds an attribute that converts content.
fn converting(text: &[u8]) -> Option<&[u8]> {
    let mut lines = text
        .split(|b| *b == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.starts_with(b"#"));
    lines.find_map(|line| {
        let mut fields = line
            .split(|b| b.is_ascii_whitespace())
            .filter(|field| !field.is_empty());
        fields.next();
        fields.find(|field| {
            *field == b"ident"
                || field.starts_with(b"filter=")
                || field.starts_with(b"working-tree-encoding=")
        })
    })
}

/// Gives the leaves of a tree by their paths, and the directories above them.
fn shape(leaves: &[Leaf]) -> (HashMap<&[u8], Mode>, HashSet<&[u8]>) {
    let mut known = HashMap::with_capacity(leaves.len());
    let mut dirs = HashSet::new();
    for leaf in leaves {
        let mut path = leaf.path.as_bytes();
        known.insert(path, leaf.mode);
        while let Some(slash) = path.iter().rposition(|b| *b == b'/') {
            path = &path[..slash];
            if !dirs.insert(path) {
                break;
            }
        }
    }
    (known, dirs)
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Entries of a worktree that are not of the tree.
pub(super) struct Residue {
    pub(super) first: Vec<RelPath>,
    pub(super) count: usize,
}

/// Lists what lies in a worktree and is not of the tree; a directory stands for all below it.
pub(super) fn residue(root: &OwnedFd, leaves: &[Leaf], most: usize) -> Result<Residue> {
    let mut found = foreign(root, leaves)?;
    let count = found.len();
    found.truncate(most);
    Ok(Residue { first: found, count })
}

/// Lists all that lies in a worktree and is not of the tree.
pub(super) fn foreign(root: &OwnedFd, leaves: &[Leaf]) -> Result<Vec<RelPath>> {
    let (known, dirs) = shape(leaves);
    let mut found = Vec::new();
    let mut todo = vec![(reopen(root)?, RelPath::root())];
    while let Some((dir, at)) = todo.pop() {
        for (path, file_type) in entries(&dir, &at)? {
            let own = path.as_bytes() == b".git" || known.contains_key(path.as_bytes());
            if own {
                continue;
            }
            let name = path.split_last().map(|(_, name)| name).unwrap_or_default();
            if file_type == FileType::Directory && dirs.contains(path.as_bytes()) {
                let inner = openat(&dir, name, DIRECTORY, FileMode::empty())
                    .map_err(|e| Error::io("open", shown(path.as_bytes()), e))?;
                todo.push((inner, path));
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn reopen(dir: &OwnedFd) -> Result<OwnedFd> {
    openat(dir, ".", DIRECTORY, FileMode::empty()).map_err(|e| Error::io("open", "the worktree", e))
}

fn entries(dir: &OwnedFd, at: &RelPath) -> Result<Vec<(RelPath, FileType)>> {
    let failed = |e| Error::io("list", shown(at.as_bytes()), e);
    let mut all = Vec::new();
    for entry in Dir::read_from(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let file_type = match entry.file_type() {
            FileType::Unknown => {
                let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
                FileType::from_raw_mode(stat.st_mode)
            }
            known => known,
        };
        all.push((at.observed(name)?, file_type));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_convert_are_found() {
        let found = |text: &str| converting(text.as_bytes()).map(shown);
        assert_eq!(
            found("*.bin filter=lfs diff=lfs -text\n").as_deref(),
            Some("filter=lfs")
        );
        assert_eq!(found("[attr]big filter=x\n").as_deref(), Some("filter=x"));
        assert_eq!(found("* text=auto ident").as_deref(), Some("ident"));
        let encoded = found("*.rc text working-tree-encoding=UTF-16\r\n");
        assert_eq!(encoded.as_deref(), Some("working-tree-encoding=UTF-16"));
        for harmless in [
            "",
            "# * filter=x",
            "filter=x",
            "* -filter !ident eol=crlf",
            "*.txt text",
        ] {
            assert_eq!(found(harmless), None, "{harmless}");
        }
    }
}
