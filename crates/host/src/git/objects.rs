//! Reading objects, each one hashed again by us, so that a corrupt or exchanged one is seen. It writes nothing.

use super::repository::Repository;
use crate::error::{Error, Result};
use semel_core::git_tree::{
    Commit, Kind, Mode, ObjectFormat, ObjectId, TreeEntry, TreeMode, object_id, parse_commit, parse_tree,
};
use semel_core::ignore::Ignore;
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath};
use std::collections::{BTreeMap, BTreeSet};

/// How many missing objects are named; the rest is counted.
const NAMED: usize = 20;

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
    /// As [`Repository::read_commit`], for any tree below it; `bad_input` for a malformed one.
    pub fn list_tree(&self, tree: &ObjectId) -> Result<Vec<Leaf>> {
        let mut trees: BTreeMap<ObjectId, Vec<TreeEntry>> = BTreeMap::new();
        let mut wanted = self.tree_ids(tree);
        wanted.insert(*tree);
        while !wanted.is_empty() {
            let ids: Vec<ObjectId> = wanted.iter().copied().collect();
            let mut below = BTreeSet::new();
            for (id, body) in ids.iter().zip(self.read_many(&ids, Kind::Tree)?) {
                let entries = parse_tree(self.format(), &body)?;
                let inner = entries.iter().filter(|e| e.mode == TreeMode::Directory);
                below.extend(inner.map(|e| e.id));
                trees.insert(*id, entries);
            }
            wanted = below.into_iter().filter(|id| !trees.contains_key(id)).collect();
        }
        let mut leaves = Vec::new();
        flatten(&trees, tree, &RelPath::root(), &mut leaves)?;
        leaves.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(leaves)
    }

    /// Asks git which trees lie below one, so that they can be fetched at once. Its answer is only a hint: what
    /// it leaves out is fetched level by level, and where it fails the missing tree is found by name.
    fn tree_ids(&self, tree: &ObjectId) -> BTreeSet<ObjectId> {
        let call = self.call(["ls-tree", "-r", "-d", "-z", "--full-tree", &tree.to_string()]);
        let listed = self.run(call).unwrap_or_default();
        let id = |line: &[u8]| {
            let text = core::str::from_utf8(line.get(12..12 + 2 * self.format().raw_len())?).ok()?;
            line.starts_with(b"040000 tree ")
                .then(|| ObjectId::parse(text).ok())?
        };
        listed.split(|b| *b == 0).filter_map(id).collect()
    }

    /// Lists the leaves of a tree whose every object is there.
    ///
    /// # Errors
    /// `object_missing` with the missing ids; else as [`Repository::list_tree`].
    pub fn list_whole_tree(&self, tree: &ObjectId) -> Result<Vec<Leaf>> {
        let leaves = self.list_tree(tree)?;
        let blobs: BTreeSet<ObjectId> = leaves
            .iter()
            .filter(|l| l.mode != Mode::Gitlink)
            .map(|l| l.id)
            .collect();
        let absent = self.absent(&blobs)?;
        if absent.is_empty() {
            return Ok(leaves);
        }
        let named = absent.iter().take(NAMED).map(ToString::to_string);
        let why = format!("{} objects of the tree are missing or unreadable", absent.len());
        Err(Refusal::new(Code::ObjectMissing, why).names(named).into())
    }

    /// Says which of these blobs the repository lacks (by header; a broken body shows when it is read).
    pub(crate) fn absent(&self, ids: &BTreeSet<ObjectId>) -> Result<Vec<ObjectId>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let format = "--batch-check=%(objectname) %(objecttype)";
        let call = self.call(["cat-file", format]).stdin(lines(ids.iter()));
        let said = self.run(call)?;
        let mut answers = said.split(|b| *b == b'\n');
        let there = |id: &&ObjectId| answers.next() == Some(format!("{id} blob").as_bytes());
        let mut there = there;
        Ok(ids.iter().filter(|id| !there(id)).copied().collect())
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

    fn read_one(&self, id: &ObjectId, kind: Kind) -> Result<Vec<u8>> {
        let mut all = self.read_many(core::slice::from_ref(id), kind)?;
        let body = all.pop();
        Ok(body.ok_or_else(|| Refusal::new(Code::Internal, "git answered nothing"))?)
    }

    /// Reads objects of one kind in one child, and hashes each.
    fn read_many(&self, ids: &[ObjectId], kind: Kind) -> Result<Vec<Vec<u8>>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let call = self.call(["cat-file", "--batch"]).stdin(lines(ids.iter()));
        let said = match self.run(call) {
            Ok(said) => said,
            // An object whose file is broken ends the whole batch; which one it is stands in git's words.
            Err(Error::Git(failure)) if failure.exit == Some(128) => {
                let why = format!("an object cannot be read: {failure}");
                let names = failure
                    .stderr
                    .split(|b| *b == b'\n')
                    .filter(|l| !l.is_empty())
                    .map(shown);
                return Err(Refusal::new(Code::ObjectMissing, why)
                    .names(names.take(NAMED))
                    .into());
            }
            Err(error) => return Err(error),
        };
        let mut rest = said.as_slice();
        ids.iter()
            .map(|id| take_object(&mut rest, self.format(), id, kind))
            .collect()
    }
}

/// Takes one answer of `cat-file --batch`.
fn take_object(rest: &mut &[u8], format: ObjectFormat, id: &ObjectId, kind: Kind) -> Result<Vec<u8>> {
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

fn flatten(
    trees: &BTreeMap<ObjectId, Vec<TreeEntry>>,
    tree: &ObjectId,
    at: &RelPath,
    leaves: &mut Vec<Leaf>,
) -> Result<()> {
    for entry in trees.get(tree).into_iter().flatten() {
        let path = at.join(&entry.name)?;
        match entry.mode {
            TreeMode::Directory => flatten(trees, &entry.id, &path, leaves)?,
            TreeMode::Leaf(mode) => leaves.push(Leaf {
                path,
                mode,
                id: entry.id,
            }),
        }
    }
    Ok(())
}

fn lines<'a>(ids: impl Iterator<Item = &'a ObjectId>) -> Vec<u8> {
    let mut text = Vec::new();
    for id in ids {
        text.extend(id.to_string().into_bytes());
        text.push(b'\n');
    }
    text
}
