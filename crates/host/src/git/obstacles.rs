//! What stands in the way of a restoration, and what it leaves behind: attributes that need a program, nested
//! repositories where a file has to go, entries that are not of the tree. It changes nothing.

use super::draft::ATTRIBUTES;
use super::objects::Leaf;
use super::repository::Repository;
use super::verify::Cursor;
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode as FileMode, OFlags, openat, statat};
use rustix::io::Errno;
use semel_core::git_tree::Mode;
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

/// Refuses a tree whose attributes change content on its way to the disk by more than `eol`.
///
/// No filter program is ever run, and without it the files would not be what the person knows; that is said
/// before anything is written, not after.
pub(super) fn refuse_programs(repo: &Repository, leaves: &[Leaf]) -> Result<()> {
    let own = repo.common_dir().join("info/attributes");
    let own_text = match std::fs::read(&own) {
        // These outrank the tree's own, and have everything written as it is stored.
        Ok(text) if text == ATTRIBUTES.as_bytes() => return Ok(()),
        Ok(text) => Some(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(Error::io("read", own, e)),
    };
    let files: Vec<&Leaf> = leaves
        .iter()
        .filter(|leaf| matches!(leaf.path.split_last(), Some((_, b".gitattributes"))))
        .filter(|leaf| matches!(leaf.mode, Mode::File | Mode::Executable))
        .collect();
    let ids: Vec<_> = files.iter().map(|leaf| leaf.id).collect();
    let named = files.iter().map(|leaf| leaf.path.to_string());
    let mut texts: Vec<(String, Vec<u8>)> = named.zip(repo.read_blobs(&ids)?).collect();
    texts.extend(own_text.map(|text| ("info/attributes".to_owned(), text)));
    for (name, text) in texts {
        if let Some(attribute) = converting(&text) {
            let why = "the tree has an attribute that needs a filter program or another encoding";
            return Err(Refusal::new(Code::PreconditionFailed, why)
                .reason("content_attribute")
                .names([name, shown(attribute)])
                .into());
        }
    }
    Ok(())
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

/// Refuses where a repository lies in a directory that a file or link of the tree would replace.
pub(super) fn refuse_nested(root: &OwnedFd, leaves: &[Leaf]) -> Result<()> {
    let mut cursor = Cursor::new(root.as_fd());
    for leaf in leaves.iter().filter(|leaf| leaf.mode != Mode::Gitlink) {
        let failed = |e: Errno| Error::io("look at", shown(leaf.path.as_bytes()), e);
        let (Some(parent), Some((_, name))) = (cursor.parent(&leaf.path)?, leaf.path.split_last()) else {
            continue;
        };
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(e) => return Err(failed(e)),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            continue;
        }
        let inner = openat(parent, name, DIRECTORY, FileMode::empty()).map_err(failed)?;
        if let Some(found) = repository_below(&inner, &leaf.path)? {
            let why = "a repository lies where a file of the tree has to go";
            return Err(Refusal::new(Code::PreconditionFailed, why)
                .reason("nested_repository")
                .name(found.to_string())
                .into());
        }
    }
    Ok(())
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn repository_below(dir: &OwnedFd, at: &RelPath) -> Result<Option<RelPath>> {
    for (path, file_type) in entries(dir, at)? {
        let Some((_, name)) = path.split_last() else {
            continue;
        };
        if name == b".git" {
            return Ok(Some(path));
        }
        if file_type == FileType::Directory {
            let inner = openat(dir, name, DIRECTORY, FileMode::empty())
                .map_err(|e| Error::io("open", shown(path.as_bytes()), e))?;
            if let Some(found) = repository_below(&inner, &path)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// Entries of a worktree that are not of the tree.
pub(super) struct Residue {
    pub(super) first: Vec<RelPath>,
    pub(super) count: usize,
}

/// Lists what lies in a worktree and is not of the tree; a directory stands for all below it.
pub(super) fn residue(root: &OwnedFd, leaves: &[Leaf], most: usize) -> Result<Residue> {
    let mut known: BTreeSet<&[u8]> = BTreeSet::new();
    let mut dirs: BTreeSet<RelPath> = BTreeSet::new();
    for leaf in leaves {
        known.insert(leaf.path.as_bytes());
        let mut at = leaf.path.split_last().map(|(parent, _)| parent);
        while let Some(dir) = at.filter(|dir| !dir.is_root()) {
            at = dir.split_last().map(|(parent, _)| parent);
            if !dirs.insert(dir) {
                break;
            }
        }
    }
    let mut found = Vec::new();
    let mut todo = vec![(reopen(root)?, RelPath::root())];
    while let Some((dir, at)) = todo.pop() {
        for (path, file_type) in entries(&dir, &at)? {
            let own = path.as_bytes() == b".git" || known.contains(path.as_bytes());
            if own {
                continue;
            }
            let name = path.split_last().map(|(_, name)| name).unwrap_or_default();
            if file_type == FileType::Directory && dirs.contains(&path) {
                let inner = openat(&dir, name, DIRECTORY, FileMode::empty())
                    .map_err(|e| Error::io("open", shown(path.as_bytes()), e))?;
                todo.push((inner, path));
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    let count = found.len();
    found.truncate(most);
    Ok(Residue { first: found, count })
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
        all.push((at.join(name)?, file_type));
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
