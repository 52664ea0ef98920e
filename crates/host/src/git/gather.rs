//! Objects that are asked for all at once, by what they are expected to be needed for.
//!
//! A gate decides in milliseconds only if it starts one git, and not one an object. What git answers to a revision, such
//! as `ID:uv.lock`, is a hint: each object is kept under the id that its bytes hash to, and found by ids that were read
//! from verified objects. So nothing depends on which git answers, nor on what the repository configures: that git sees
//! the objects alone, by a view. What was not gathered is read singly, as anybody reads a repository.

use super::checkout;
use super::objects::Leaf;
use super::repository::{Repository, object_dirs};
use super::view::View;
use super::worktree::{self, Found};
use super::{Call, Git, Place, brief};
use crate::error::Result;
use crate::process::Cancel;
use semel_core::git_tree::{
    Commit, Kind, Mode, ObjectFormat, ObjectId, TreeEntry, TreeMode, object_id, parse_commit, parse_tree,
};
use semel_core::{Code, Refusal, RelPath};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Holds the objects that were gathered from a repository.
#[derive(Debug)]
pub struct Gathered<'a> {
    programs: &'a [PathBuf],
    path: &'a Path,
    cancel: &'a Cancel,
    found: Found,
    views: BTreeMap<ObjectFormat, Arc<View>>,
    objects: BTreeMap<ObjectId, (Kind, Vec<u8>)>,
    whole: OnceCell<Repository>,
}

/// Names what is to be gathered, one revision a line.
fn revisions<'a>(wanted: impl Iterator<Item = &'a (ObjectId, Vec<RelPath>)>) -> Vec<u8> {
    let mut text = Vec::new();
    for (commit, paths) in wanted {
        text.extend_from_slice(format!("{commit}\n{commit}^{{tree}}\n").as_bytes());
        for path in paths {
            // Each directory on the way, then the file.
            let parts: Vec<&[u8]> = path.components().collect();
            for end in 1..=parts.len() {
                let at = parts[..end].join(&b'/');
                if !at.contains(&b'\n') {
                    text.extend_from_slice(format!("{commit}:").as_bytes());
                    text.extend_from_slice(&at);
                    text.push(b'\n');
                }
            }
        }
    }
    text
}

/// Gives a repository as a view shows it.
fn seen(found: &Found, view: &Arc<View>) -> Place {
    Place {
        view: Some(Arc::clone(view)),
        ..found.place()
    }
}

/// Takes every whole answer of `cat-file --batch` whose bytes hash to what it says.
fn taken(format: ObjectFormat, mut said: &[u8]) -> BTreeMap<ObjectId, (Kind, Vec<u8>)> {
    let mut objects = BTreeMap::new();
    while let Some(end) = said.iter().position(|b| *b == b'\n') {
        let head = core::str::from_utf8(&said[..end]).unwrap_or_default();
        said = &said[end + 1..];
        let words: Vec<&str> = head.split(' ').collect();
        let [id, word, size] = words.as_slice() else {
            continue;
        };
        // `NAME missing` has two words, and more where the name has blanks.
        let (Ok(id), Ok(size)) = (ObjectId::parse(id), size.parse::<usize>()) else {
            continue;
        };
        let (Some(body), Some(rest)) = (said.get(..size), said.get(size + 1..)) else {
            break;
        };
        said = rest;
        let kind = match *word {
            "blob" => Kind::Blob,
            "tree" => Kind::Tree,
            "commit" => Kind::Commit,
            _ => continue,
        };
        if object_id(format, kind, body).is_ok_and(|hashed| hashed == id) {
            objects.insert(id, (kind, body.to_vec()));
        }
    }
    objects
}

impl<'a> Gathered<'a> {
    /// Gathers what some commits of a path's repository are likely to be read for: each commit, its root tree, and what
    /// lies at these paths of it. Git is the first of its name in these directories.
    ///
    /// Nothing that is missing or broken is an error yet.
    ///
    /// # Errors
    /// `not_found` where there is no git, or no such path; `bad_input` where it is no repository, or borrows in a way that
    /// is not followed; `worktree_redirected` where `.git` is a link; `io_failed`.
    pub fn of(
        programs: &'a [PathBuf],
        path: &'a Path,
        wanted: &[(ObjectId, Vec<RelPath>)],
        cancel: &'a Cancel,
    ) -> Result<Self> {
        let git = Git::unasked(Git::locate(programs)?);
        let found = worktree::find(path)?;
        object_dirs(&found.common)?;
        let (mut objects, mut views) = (BTreeMap::new(), BTreeMap::new());
        for format in [ObjectFormat::Sha1, ObjectFormat::Sha256] {
            let text = revisions(wanted.iter().filter(|(commit, _)| commit.format() == format));
            if text.is_empty() {
                continue;
            }
            // Where no view can be had, nothing is gathered.
            let Ok(view) = View::new(format).map(Arc::new) else {
                continue;
            };
            let place = seen(&found, &view);
            views.insert(format, view);
            let call = Call::new(["cat-file", "--batch"], cancel).stdin(text);
            let said = git.run(&place, brief(call)).unwrap_or_default();
            objects.append(&mut taken(format, &said));
        }
        Ok(Self {
            programs,
            path,
            cancel,
            found,
            views,
            objects,
            whole: OnceCell::new(),
        })
    }

    /// Gives the objects of the repository, and nothing else of it, to a git that is not asked which one it is.
    fn bare(&self, format: ObjectFormat) -> Result<(Git, Place)> {
        let git = Git::unasked(Git::locate(self.programs)?);
        let place = match self.views.get(&format) {
            Some(view) => seen(&self.found, view),
            None => seen(&self.found, &Arc::new(View::new(format)?)),
        };
        Ok((git, place))
    }

    /// Gives the repository itself, for what was not gathered.
    fn whole(&self) -> Result<&Repository> {
        if let Some(whole) = self.whole.get() {
            return Ok(whole);
        }
        let git = Git::find(self.programs)?;
        let opened = Repository::open(&git, self.path, self.cancel)?;
        Ok(self.whole.get_or_init(|| opened))
    }

    /// Gives the directory that all worktrees of the repository share.
    #[must_use]
    pub fn common_dir(&self) -> &Path {
        &self.found.common
    }

    /// Says why an open file may be one that a worktree of a candidate holds; `None` where it is none.
    ///
    /// It is one in any worktree of this repository, in one of another that has the commit or its tree, and where it has
    /// several names. A git directory is no part of what is checked out.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn checks_out(
        &self,
        file: &File,
        commit: &ObjectId,
        tree: &ObjectId,
    ) -> Result<Option<&'static str>> {
        let candidate = checkout::Candidate {
            found: &self.found,
            commit,
            tree,
        };
        checkout::holds(candidate, file, self.programs, self.cancel)
    }

    /// Says whether one commit is an ancestor of another, or the other itself.
    ///
    /// What is written beside the objects to answer that faster is not asked: whoever works in the repository can write it.
    ///
    /// # Errors
    /// `object_missing` where the history is not there as far as it is needed; `io_failed`.
    pub fn descends(&self, later: &ObjectId, earlier: &ObjectId) -> Result<bool> {
        if later == earlier || self.commit(later)?.parents.contains(earlier) {
            return Ok(true);
        }
        let (git, place) = self.bare(later.format())?;
        let place = Place {
            config: vec![("core.commitGraph".into(), "false".into())],
            ..place
        };
        // Of two, it prints those that the other one does not have among its ancestors.
        let (earlier, later) = (earlier.to_string(), later.to_string());
        let asked = ["merge-base", "--independent", earlier.as_str(), later.as_str()];
        let said = git.run(&place, Call::new(asked, self.cancel)).map_err(|_| {
            let why = if self.found.common.join("shallow").exists() {
                    "the clone is shallow, and its history ends before these commits meet; fetch the rest (git fetch --unshallow; \
                     fetch-depth: 0 in an action)"
                } else {
                    "the history between these commits is not there; fetch all of it"
                };
            Refusal::new(Code::ObjectMissing, why).names([earlier.clone(), later.clone()])
        })?;
        Ok(!said.split(|b| *b == b'\n').any(|line| line == earlier.as_bytes()))
    }

    /// Gives the paths of a tree at which a file with exactly these bytes lies.
    ///
    /// # Errors
    /// As [`Repository::list_tree`].
    pub fn paths_of(&self, tree: &ObjectId, bytes: &[u8]) -> Result<Vec<RelPath>> {
        let id = object_id(tree.format(), Kind::Blob, bytes)?;
        let same = self.leaves(tree)?.into_iter().filter(|leaf| leaf.id == id);
        Ok(same.map(|leaf| leaf.path).collect())
    }

    /// Lists a tree; a repository that cannot be read without its configuration is opened.
    fn leaves(&self, tree: &ObjectId) -> Result<Vec<Leaf>> {
        let (git, place) = self.bare(tree.format())?;
        let bare = Repository::unconfigured(git, place, tree.format(), self.cancel);
        bare.list_tree(tree).or_else(|_| self.whole()?.list_tree(tree))
    }

    fn body(&self, id: &ObjectId, kind: Kind) -> Option<&[u8]> {
        let (found, body) = self.objects.get(id)?;
        (*found == kind).then_some(body)
    }

    /// Reads a commit.
    ///
    /// # Errors
    /// As [`Repository::parse_id`] and [`Repository::read_commit`]; where it was not gathered, also those of [`Git::find`]
    /// and [`Repository::open`], and so for all that follow.
    pub fn commit(&self, id: &ObjectId) -> Result<Commit> {
        match self.body(id, Kind::Commit) {
            Some(body) => Ok(parse_commit(body)?),
            None => {
                let whole = self.whole()?;
                // An id of another object format is said to be one, and not missing.
                whole.read_commit(&whole.parse_id(&id.to_string())?)
            }
        }
    }

    /// Reads the entries of one tree object.
    ///
    /// # Errors
    /// As [`Repository::read_tree`].
    pub fn tree(&self, id: &ObjectId) -> Result<Vec<TreeEntry>> {
        match self.body(id, Kind::Tree) {
            Some(body) => Ok(parse_tree(id.format(), body)?),
            None => self.whole()?.read_tree(id),
        }
    }

    /// Reads a blob.
    ///
    /// # Errors
    /// As [`Repository::read_blobs`].
    pub fn blob(&self, id: &ObjectId) -> Result<Vec<u8>> {
        if let Some(body) = self.body(id, Kind::Blob) {
            return Ok(body.to_vec());
        }
        let read = self.whole()?.read_blobs(std::slice::from_ref(id))?;
        let body = read.into_iter().next();
        Ok(body.ok_or_else(|| Refusal::new(Code::Internal, "git answered nothing"))?)
    }

    /// Reads the blob that lies at a path of a tree.
    ///
    /// # Errors
    /// `not_found` where the tree has no file or link there; else as [`Repository::read_blob`].
    pub fn blob_at(&self, tree: &ObjectId, path: &RelPath) -> Result<(Mode, Vec<u8>)> {
        let absent = || Refusal::new(Code::NotFound, "the tree has no file there").name(path.to_string());
        let mut tree = *tree;
        let mut parts = path.components().peekable();
        while let Some(part) = parts.next() {
            let entries = self.tree(&tree)?;
            let entry = entries.into_iter().find(|e| e.name == part).ok_or_else(absent)?;
            match (entry.mode, parts.peek()) {
                (TreeMode::Directory, Some(_)) => tree = entry.id,
                (TreeMode::Leaf(Mode::Gitlink), _) | (_, Some(_)) | (TreeMode::Directory, None) => break,
                (TreeMode::Leaf(mode), None) => return Ok((mode, self.blob(&entry.id)?)),
            }
        }
        Err(absent().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_hashes_to_its_id_is_taken() {
        let format = ObjectFormat::Sha1;
        let id = object_id(format, Kind::Blob, b"one\n").unwrap();
        let whole = format!("{id} blob 4\none\n\n");
        assert_eq!(taken(format, whole.as_bytes()).len(), 1);
        let many = format!("x:a b missing\nx missing\n{whole}{id} tree 4\none\n\n{id} tag 0\n\n{whole}");
        assert_eq!(
            taken(format, many.as_bytes())[&id],
            (Kind::Blob, b"one\n".to_vec())
        );
        for other in [
            format!("{id} blob 4\nOne\n\n"),
            format!("{id} blob 4\non"),
            format!("{id} blob 400\none\n\n"),
            format!("{id} tree 4\none\n\n"),
            String::new(),
        ] {
            assert!(taken(format, other.as_bytes()).is_empty(), "{other}");
        }
    }
}
