//! Reading objects, each one hashed again by us, so that a corrupt or exchanged one is seen. It writes nothing.

use super::Call;
use super::listing::{Blobs, Objects};
use super::repository::Repository;
use crate::error::{Error, Result};
use semel_core::git_tree::{
    Commit, Kind, Mode, ObjectFormat, ObjectId, TreeEntry, TreeMode, object_id, parse_commit, parse_tree,
};
use semel_core::ignore::Ignore;
use semel_core::lfs::{self, Pointer};
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeMap;

/// How many missing objects are named; the rest is counted.
pub(super) const NAMED: usize = 20;

/// What attributes say of files that Git LFS keeps.
const FILTER: &[u8] = b"filter=lfs";

/// Names one leaf of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Where it lies.
    pub path: RelPath,
    /// What it is.
    pub mode: Mode,
    /// The object it names.
    pub id: ObjectId,
}

impl Repository {
    /// Reads a commit.
    ///
    /// # Errors
    /// `bad_input` where the id names something else, `object_missing` where nothing has it, `tree_mismatch`
    /// where its bytes do not hash to it.
    pub fn read_commit(&self, id: &ObjectId) -> Result<Commit> {
        let body = self.read_one(id, Kind::Commit)?;
        Ok(parse_commit(&body)?)
    }

    /// Reads the entries of one tree object.
    ///
    /// # Errors
    /// As [`Repository::read_commit`].
    pub fn read_tree(&self, id: &ObjectId) -> Result<Vec<TreeEntry>> {
        let body = self.read_one(id, Kind::Tree)?;
        Ok(parse_tree(self.format(), &body)?)
    }

    /// Reads the blob that lies at a path of a tree.
    ///
    /// # Errors
    /// `not_found` where the tree has no file or link there; else as [`Repository::read_commit`].
    pub fn read_blob(&self, tree: &ObjectId, path: &RelPath) -> Result<(Mode, Vec<u8>)> {
        let absent = || Refusal::new(Code::NotFound, "the tree has no file there").name(path.to_string());
        let mut tree = *tree;
        let mut parts = path.components().peekable();
        while let Some(part) = parts.next() {
            let entries = self.read_tree(&tree)?;
            let entry = entries.into_iter().find(|e| e.name == part).ok_or_else(absent)?;
            match (entry.mode, parts.peek()) {
                (TreeMode::Directory, Some(_)) => tree = entry.id,
                (TreeMode::Leaf(Mode::Gitlink), _) | (_, Some(_)) | (TreeMode::Directory, None) => break,
                (TreeMode::Leaf(mode), None) => return Ok((mode, self.read_one(&entry.id, Kind::Blob)?)),
            }
        }
        Err(absent().into())
    }

    /// Lists every leaf of a tree, in git's order of paths.
    ///
    /// # Errors
    /// As [`Repository::read_commit`], for any tree below it; `bad_input` for a malformed one; as [`RelPath::parse`] for
    /// paths that no record could hold.
    pub fn list_tree(&self, tree: &ObjectId) -> Result<Vec<Leaf>> {
        let hint = Objects::hint(self.git(), &self.place, tree, self.cancel());
        writable(self.read_listing(tree, hint, Blobs::Unasked)?.leaves)
    }

    /// Lists the leaves of a tree whose every object is there.
    ///
    /// # Errors
    /// `object_missing` with the missing ids; else as [`Repository::list_tree`].
    pub fn list_whole_tree(&self, tree: &ObjectId) -> Result<Vec<Leaf>> {
        let whole = self.whole_listing(tree, None)?;
        writable(whole.leaves.clone())
    }

    /// Reads blobs.
    ///
    /// # Errors
    /// As [`Repository::read_commit`].
    pub fn read_blobs(&self, ids: &[ObjectId]) -> Result<Vec<Vec<u8>>> {
        self.read_many(ids, Kind::Blob)
    }

    /// Reads the ignore rules of a tree.
    ///
    /// # Errors
    /// As [`Repository::read_commit`].
    pub fn ignore_rules(&self, leaves: &[Leaf]) -> Result<Ignore> {
        let mut places = Vec::new();
        let mut ids = Vec::new();
        for leaf in leaves {
            // Git follows no link to an ignore file.
            let file = matches!(leaf.mode, Mode::File | Mode::Executable);
            if let Some((directory, b".gitignore")) = leaf.path.split_last()
                && file
            {
                places.push(directory);
                ids.push(leaf.id);
            }
        }
        let mut ignore = Ignore::new();
        for (directory, text) in places.into_iter().zip(self.read_blobs(&ids)?) {
            ignore.add(directory, &text);
        }
        Ok(ignore)
    }

    /// Reads the pointers of Git LFS in a tree; none where no attributes of the tree name that filter.
    ///
    /// # Errors
    /// As [`Repository::read_commit`].
    pub fn lfs_pointers(&self, leaves: &[Leaf]) -> Result<BTreeMap<RelPath, Pointer>> {
        let files = || {
            leaves
                .iter()
                .filter(|leaf| matches!(leaf.mode, Mode::File | Mode::Executable))
        };
        let attributes = files().filter(|leaf| {
            leaf.path
                .split_last()
                .is_some_and(|(_, name)| name == b".gitattributes")
        });
        let attributes: Vec<ObjectId> = attributes.map(|leaf| leaf.id).collect();
        let named = |text: &Vec<u8>| text.windows(FILTER.len()).any(|at| at == FILTER);
        if !self.read_blobs(&attributes)?.iter().any(named) {
            return Ok(BTreeMap::new());
        }
        let call = self
            .call(["cat-file", "--batch-check=%(objectsize)", "--buffer"])
            .stdin(lines(files().map(|leaf| &leaf.id)));
        let sizes = self.batch(call)?;
        let small = files().zip(sizes.split(|b| *b == b'\n')).filter(|(_, size)| {
            let size = core::str::from_utf8(size).ok().and_then(|size| size.parse().ok());
            // One whose size git does not tell is read, and is missed then.
            size.is_none_or(|size: usize| size < lfs::LONGEST)
        });
        let small: Vec<&Leaf> = small.map(|(leaf, _)| leaf).collect();
        let ids: Vec<ObjectId> = small.iter().map(|leaf| leaf.id).collect();
        let pointers = small.into_iter().zip(self.read_blobs(&ids)?);
        let pointers = pointers.filter_map(|(leaf, text)| Some((leaf.path.clone(), Pointer::parse(&text)?)));
        Ok(pointers.collect())
    }

    fn read_one(&self, id: &ObjectId, kind: Kind) -> Result<Vec<u8>> {
        let mut all = self.read_many(core::slice::from_ref(id), kind)?;
        let body = all.pop();
        Ok(body.ok_or_else(|| Refusal::new(Code::Internal, "git answered nothing"))?)
    }

    /// Reads objects of one kind in one child, and hashes each.
    pub(super) fn read_many(&self, ids: &[ObjectId], kind: Kind) -> Result<Vec<Vec<u8>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let call = self
            .call(["cat-file", "--batch", "--buffer"])
            .stdin(lines(ids.iter()));
        let said = self.batch(call)?;
        let mut rest = said.as_slice();
        ids.iter()
            .map(|id| take_object(&mut rest, self.format(), id, kind))
            .collect()
    }

    /// Runs a git that reads many objects.
    pub(super) fn batch(&self, call: Call<'_>) -> Result<Vec<u8>> {
        match self.run(call) {
            // An object whose file is broken ends the whole batch; which one it is stands in git's words.
            Err(Error::Git(failure)) if failure.exit == Some(128) => {
                let why = format!("an object cannot be read: {failure}");
                let names = failure
                    .stderr
                    .split(|b| *b == b'\n')
                    .filter(|l| !l.is_empty())
                    .map(shown);
                Err(Refusal::new(Code::ObjectMissing, why)
                    .names(names.take(NAMED))
                    .into())
            }
            other => other,
        }
    }
}

/// Takes one answer of `cat-file --batch`.
pub(super) fn take_object(
    rest: &mut &[u8],
    format: ObjectFormat,
    id: &ObjectId,
    kind: Kind,
) -> Result<Vec<u8>> {
    let odd = || Refusal::new(Code::GitFailed, "git cat-file answered in an unknown form");
    let end = rest.iter().position(|b| *b == b'\n').ok_or_else(odd)?;
    let head = core::str::from_utf8(&rest[..end]).map_err(|_| odd())?;
    *rest = &rest[end + 1..];
    let words: Vec<&str> = head.split(' ').collect();
    let (word, size) = match words.as_slice() {
        [_, "missing"] => {
            let refusal = Refusal::new(Code::ObjectMissing, "the object is missing");
            return Err(refusal.name(id.to_string()).into());
        }
        [name, word, size] if *name == id.to_string() => (*word, size.parse::<usize>().map_err(|_| odd())?),
        _ => return Err(odd().into()),
    };
    let body = rest.get(..size).ok_or_else(odd)?;
    *rest = rest.get(size + 1..).ok_or_else(odd)?;
    let expected = match kind {
        Kind::Blob => "blob",
        Kind::Tree => "tree",
        Kind::Commit => "commit",
    };
    if word != expected {
        let why = format!("the id names a {word}, not a {expected}");
        return Err(Refusal::new(Code::BadInput, why).name(id.to_string()).into());
    }
    if object_id(format, kind, body)? != *id {
        let why = "the repository gives other bytes for this object than its id says";
        let refusal = Refusal::new(Code::TreeMismatch, why).reason("corrupt_object");
        return Err(refusal.name(id.to_string()).into());
    }
    Ok(body.to_vec())
}

pub(super) fn lines<'a>(ids: impl Iterator<Item = &'a ObjectId>) -> Vec<u8> {
    let mut text = Vec::new();
    for id in ids {
        text.extend(id.to_string().into_bytes());
        text.push(b'\n');
    }
    text
}

/// Gives leaves whose paths may be written down and read again: those that callers may name, too.
fn writable(leaves: Vec<Leaf>) -> Result<Vec<Leaf>> {
    for leaf in &leaves {
        RelPath::parse(leaf.path.as_bytes())?;
    }
    Ok(leaves)
}
