//! What the attributes of a tree make of its content on the way to a disk: the tree's own, and no others.
//!
//! Attributes that need a program or another encoding are refused. What is left is `eol=crlf`, and what git writes
//! then is computed here, so that a worktree is compared with exactly those bytes. Attributes that the tree does not
//! hold, of an untracked file or of `info/attributes`, have no say: git takes them from the tree, where it knows how
//! to, or is shown none (see [`Source`]).

use super::draft::ATTRIBUTES;
use super::held::Held;
use super::listing::Listing;
use super::objects::Leaf;
use super::repository::Repository;
use super::restore::Leftovers;
use super::settings::plain_file;
use super::verify::{Cursor, whole};
use super::{Git, brief};
use crate::error::{Error, Result};
use rustix::fs::{AtFlags, FileType, statat, unlinkat};
use rustix::io::Errno;
use semel_core::git_tree::{Kind, Mode, object_id};
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The first git that takes attributes from a tree alone (`GIT_ATTR_SOURCE`).
const FROM_TREE: (u32, u32) = (2, 43);
const NAME: &[u8] = b".gitattributes";

/// Says where git takes attributes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// From nowhere: content is written as it is stored. So it is where the tree holds none, and in a draft of ours.
    None,
    /// From the tree, and nothing else.
    Tree,
    /// From the index, which holds those of the tree, and from the worktree where it has none: what is untracked there
    /// stands in the way.
    Index,
}

/// What the attribute files of a tree say, as far as it concerns us.
#[derive(Debug)]
pub(super) struct Said {
    /// Whether the tree holds such files at all.
    files: usize,
    /// The attribute that needs a program, and the file that has it.
    converting: Option<[String; 2]>,
    /// Whether one of them speaks of `eol=crlf`.
    crlf: Crlf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crlf {
    Never,
    Perhaps,
}

/// Says which line ends a file gets on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// Every LF alone becomes CR LF.
    Crlf,
    /// So it is in what looks like text and has no CR at all.
    CrlfIfText,
}

/// The files of a tree that are not written as they are stored.
pub(super) type Declared = BTreeMap<RelPath, Ends>;

/// Refuses a tree whose attributes change content on its way to the disk by more than `eol`, and says where git takes
/// the others from.
///
/// No filter program is ever run, and without it the files would not be what the person knows; that is said
/// before anything is written, not after.
pub(super) fn source(repo: &Repository, listing: &Listing) -> Result<Source> {
    // Exactly our own line, and nothing else that stands there: a draft has everything as it is stored.
    let draft = plain_file(&repo.common_dir().join("info/attributes"));
    if draft.is_ok_and(|text| text.as_deref() == Some(ATTRIBUTES.as_bytes())) {
        return Ok(Source::None);
    }
    let said = said(repo, listing)?;
    if let Some(names) = &said.converting {
        let why = "the tree has an attribute that needs a filter program or another encoding";
        return Err(Refusal::new(Code::PreconditionFailed, why)
            .reason("content_attribute")
            .names(names.clone())
            .into());
    }
    Ok(match said.files {
        0 => Source::None,
        _ if knows_trees(repo.git()) => Source::Tree,
        _ => Source::Index,
    })
}

fn knows_trees(git: &Git) -> bool {
    git.numbers >= FROM_TREE
}

/// Prepares what git is shown.
pub(super) fn prepare(repo: &mut Repository, listing: &Listing, source: Source) -> Result<()> {
    let Some(view) = repo.place.view.clone() else {
        return Err(Refusal::new(Code::Internal, "git would see the repository itself").into());
    };
    if source == Source::None {
        // These outrank all others.
        view.put("info/attributes", ATTRIBUTES.as_bytes())?;
    }
    // Where there are none to take, it still looks for none elsewhere.
    repo.place.attributes = knows_trees(repo.git()).then_some(listing.tree);
    Ok(())
}

/// Reads the attribute files of the tree: once for all, since they are what its id says.
fn said<'l>(repo: &Repository, listing: &'l Listing) -> Result<&'l Said> {
    if let Some(said) = listing.attributes.get() {
        return Ok(said);
    }
    let files: Vec<&Leaf> = listing
        .leaves
        .iter()
        .filter(|leaf| matches!(leaf.path.split_last(), Some((_, NAME))))
        // Of a link some gits read the target as if it were the text.
        .filter(|leaf| leaf.mode != Mode::Gitlink)
        .collect();
    let ids: Vec<_> = files.iter().map(|leaf| leaf.id).collect();
    let texts = repo.read_blobs(&ids)?;
    let mut all = files.iter().zip(&texts);
    let converting = all.find_map(|(leaf, text)| Some([leaf.path.to_string(), shown(converting(text)?)]));
    let speaks = |text: &Vec<u8>| text.windows(8).any(|part| part == b"eol=crlf");
    Ok(listing.attributes.get_or_init(|| Said {
        files: files.len(),
        converting,
        crlf: if texts.iter().any(speaks) {
            Crlf::Perhaps
        } else {
            Crlf::Never
        },
    }))
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

/// Lists the files of the tree that git writes with other line ends than they are stored with.
pub(super) fn declared<'l>(repo: &Repository, listing: &'l Listing, source: Source) -> Result<&'l Declared> {
    static NONE: Declared = BTreeMap::new();
    if source == Source::None || said(repo, listing)?.crlf == Crlf::Never {
        return Ok(&NONE);
    }
    if let Some(known) = listing.declared.get() {
        return Ok(known);
    }
    let mut asked = Vec::new();
    for leaf in listing.leaves.iter().filter(|leaf| is_file(leaf)) {
        asked.extend_from_slice(leaf.path.as_bytes());
        asked.push(0);
    }
    let said = asked_of_the_tree(repo, listing, asked)?;
    let mut values = said.split(|b| *b == 0);
    let mut declared = Declared::new();
    for leaf in listing.leaves.iter().filter(|leaf| is_file(leaf)) {
        let mut value = |name: &[u8]| {
            let answer = [values.next(), values.next()];
            let own = answer == [Some(leaf.path.as_bytes()), Some(name)];
            values.next().filter(|_| own)
        };
        let all = (value(b"text"), value(b"crlf"), value(b"eol"));
        let (Some(text), Some(crlf), Some(eol)) = all else {
            return Err(Refusal::new(Code::GitFailed, "git check-attr answered in an unknown form").into());
        };
        if let Some(ends) = ends(text, crlf, eol) {
            declared.insert(leaf.path.clone(), ends);
        }
    }
    Ok(listing.declared.get_or_init(|| declared))
}

/// Asks for the attributes that bear on line ends. They come from the tree itself, or from an index of ours that is nothing
/// but the tree: the worktree's own can be written meanwhile.
fn asked_of_the_tree(repo: &Repository, listing: &Listing, paths: Vec<u8>) -> Result<Vec<u8>> {
    let mut own = repo.clone();
    let tree = listing.tree.to_string();
    let index = own
        .place
        .view
        .as_ref()
        .map(|view| view.path().join("attributes.index"));
    own.place.index = index;
    let mut args = vec!["check-attr"];
    if own.place.attributes.is_none() {
        own.run(own.call(["read-tree", &tree]))?;
        args.push("--cached");
    }
    args.extend(["-z", "--stdin", "text", "crlf", "eol"]);
    own.run(brief(own.call(args).stdin(paths)))
}

fn is_file(leaf: &Leaf) -> bool {
    matches!(leaf.mode, Mode::File | Mode::Executable)
}

/// Says what git makes of these attributes, where the native line end is LF and nothing is converted unasked.
///
/// # Source
/// Git, `convert.c`, `convert_attrs`.
fn ends(text: &[u8], crlf: &[u8], eol: &[u8]) -> Option<Ends> {
    let known = |value: &[u8]| matches!(value, b"set" | b"unset" | b"input" | b"auto");
    let text = if known(text) { text } else { crlf };
    match (text, eol) {
        (b"unset", _) => None,
        (b"auto", b"crlf") => Some(Ends::CrlfIfText),
        (_, b"crlf") => Some(Ends::Crlf),
        _ => None,
    }
}

/// Says which of these files git would store with CR LF where they have it; their text is given without. It asks the
/// attributes of the tree.
pub(super) fn stored_with_lf(
    repo: &Repository,
    listing: &Listing,
    files: Vec<(RelPath, Vec<u8>)>,
) -> Result<Vec<RelPath>> {
    let mut own = repo.clone();
    own.place.attributes = knows_trees(repo.git()).then_some(listing.tree);
    let asked = files
        .iter()
        .flat_map(|(path, _)| [path.as_bytes(), &[0]].concat());
    let said = asked_of_the_tree(&own, listing, asked.collect())?;
    let mut values = said.split(|b| *b == 0).skip(2).step_by(3);
    let mut kept = Vec::new();
    for (path, text) in files {
        let (Some(as_text), Some(crlf), Some(eol)) = (values.next(), values.next(), values.next()) else {
            return Err(Refusal::new(Code::GitFailed, "git check-attr answered in an unknown form").into());
        };
        if !is_stored_with_lf(as_text, crlf, eol, &text) {
            kept.push(path);
        }
    }
    Ok(kept)
}

/// Says whether git takes CR from CR LF when it stores this.
///
/// # Source
/// Git, `convert.c`, `convert_attrs` and `crlf_to_git`.
fn is_stored_with_lf(text: &[u8], crlf: &[u8], eol: &[u8], content: &[u8]) -> bool {
    let known = |value: &[u8]| matches!(value, b"set" | b"unset" | b"input" | b"auto");
    let text = if known(text) { text } else { crlf };
    match (text, eol) {
        (b"unset", _) => false,
        (b"auto", _) => !content.contains(&b'\r') && !looks_binary(content),
        (b"set" | b"input", _) | (_, b"lf" | b"crlf") => true,
        _ => false,
    }
}

/// Gives what git writes of a blob.
///
/// # Source
/// Git, `convert.c`, `crlf_to_worktree`.
pub(super) fn written(blob: &[u8], ends: Ends) -> Vec<u8> {
    if ends == Ends::CrlfIfText && (blob.contains(&b'\r') || looks_binary(blob)) {
        return blob.to_vec();
    }
    let mut all = Vec::with_capacity(blob.len() + blob.len() / 16);
    let mut last = 0;
    for byte in blob {
        if *byte == b'\n' && last != b'\r' {
            all.push(b'\r');
        }
        all.push(*byte);
        last = *byte;
    }
    all
}

/// Says whether git takes content without any CR for binary.
fn looks_binary(blob: &[u8]) -> bool {
    let (mut printable, mut odd) = (0_usize, 0_usize);
    for byte in blob {
        match byte {
            0 => return true,
            b'\n' => {}
            0x08 | b'\t' | 0x1b | 0x0c => printable += 1,
            ..0x20 | 0x7f => odd += 1,
            _ => printable += 1,
        }
    }
    // An end-of-file mark of old does not count.
    if blob.last() == Some(&0x1a) {
        odd = odd.saturating_sub(1);
    }
    printable >> 7 < odd
}

/// Gives the blobs that a file may be written of, as far as its bytes show them: with and without a CR before each LF.
fn guesses(bytes: &[u8]) -> [Vec<u8>; 2] {
    let before_lf = |at: usize| bytes[at] == b'\r' && bytes.get(at + 1) == Some(&b'\n');
    let without = (0..bytes.len()).filter(|at| !before_lf(*at)).map(|at| bytes[at]);
    [without.collect(), bytes.to_vec()]
}

/// Says whether a file has the bytes that git writes of a leaf with these line ends.
pub(super) fn has_bytes(repo: &Repository, cursor: &mut Cursor<'_>, leaf: &Leaf, ends: Ends) -> Result<Has> {
    let Some((mode, bytes)) = whole(cursor, &leaf.path)? else {
        return Ok(Has::Wrong);
    };
    if mode != leaf.mode {
        return Ok(Has::Wrong);
    }
    for blob in guesses(&bytes) {
        if object_id(repo.format(), Kind::Blob, &blob)? == leaf.id {
            return Ok(if written(&blob, ends) == bytes {
                Has::Right
            } else {
                Has::Wrong
            });
        }
    }
    // Stored with ends of both kinds: the blob itself has to be read.
    let blobs = repo.read_blobs(core::slice::from_ref(&leaf.id))?;
    let right = blobs.iter().any(|blob| written(blob, ends) == bytes);
    Ok(if right { Has::Right } else { Has::Wrong })
}

/// Says whether a file is as it has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    Right,
    Wrong,
}

impl Held<'_> {
    /// Sees to attribute files of the worktree that would have a say though the tree does not hold them: refuses them, or
    /// removes them where leftovers are to be removed. Gives what has to be removed.
    pub(super) fn strange_attributes(&self) -> Result<Vec<RelPath>> {
        if knows_trees(self.repo.git()) {
            return Ok(Vec::new());
        }
        let there = strangers(&self.at.root, self.listing, self.source)?;
        if there.is_empty() {
            return Ok(there);
        }
        // What the index knows git removes itself, before it writes.
        let tracked = self.tracked(&there)?;
        let strange: Vec<RelPath> = there.into_iter().filter(|path| !tracked.contains(path)).collect();
        if strange.is_empty() || self.options.leftovers == Leftovers::Removed {
            return Ok(strange);
        }
        let why = "an attribute file that the tree does not hold would have a say in what this git writes; restore \
                   with --clean, which removes it, or with git 2.43 or later, which does not ask it";
        Err(Refusal::new(Code::PreconditionFailed, why)
            .reason("untracked_attributes")
            .names(strange.iter().map(ToString::to_string))
            .into())
    }

    fn tracked(&self, paths: &[RelPath]) -> Result<BTreeSet<RelPath>> {
        if self.before.is_none() {
            return Ok(BTreeSet::new());
        }
        let mut call = self
            .repo
            .call(["--literal-pathspecs", "ls-files", "-z", "--cached", "--"]);
        let names = paths.iter().map(|path| path.as_bytes());
        call.args
            .extend(names.map(|name| super::worktree::path_of(name).into_os_string()));
        let listed = self.repo.run(brief(call))?;
        let names: BTreeSet<&[u8]> = listed.split(|b| *b == 0).collect();
        let tracked = paths.iter().filter(|path| names.contains(path.as_bytes()));
        Ok(tracked.cloned().collect())
    }

    /// Removes such files.
    pub(super) fn remove_attributes(&self, strange: &[RelPath]) -> Result<()> {
        let mut cursor = Cursor::new(self.at.root.as_fd());
        for path in strange {
            let Some(parent) = cursor.parent(path)? else {
                continue;
            };
            match unlinkat(parent, NAME, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(Error::io("remove", shown(path.as_bytes()), e)),
            }
        }
        Ok(())
    }
}

/// Lists what stands as an attribute file in a directory of the tree that holds none there. Where attributes come from
/// nowhere a plain file has no say, and only what git would wait for to read it is listed.
fn strangers(root: &OwnedFd, listing: &Listing, source: Source) -> Result<Vec<RelPath>> {
    let mut dirs: Vec<RelPath> = vec![RelPath::root()];
    for leaf in &listing.leaves {
        let mut at = leaf.path.split_last().map(|(parent, _)| parent);
        while let Some(dir) = at.filter(|dir| dirs.last() != Some(dir) && !dir.is_root()) {
            at = dir.split_last().map(|(parent, _)| parent);
            dirs.push(dir);
        }
    }
    dirs.sort();
    dirs.dedup();
    let mut found = Vec::new();
    let mut cursor = Cursor::new(root.as_fd());
    for dir in dirs {
        let path = dir.observed(NAME.as_ref())?;
        if listing.leaf(path.as_bytes()).is_some() {
            continue;
        }
        let Some(parent) = cursor.parent(&path)? else {
            continue;
        };
        match statat(parent, NAME, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                // A directory is read by no git.
                FileType::Directory => {}
                FileType::RegularFile if source == Source::None => {}
                _ => found.push(path),
            },
            Err(Errno::NOENT) => {}
            Err(e) => return Err(Error::io("look at", Path::new(&shown(path.as_bytes())), e)),
        }
    }
    Ok(found)
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
