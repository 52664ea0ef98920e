//! Git object ids, computed by us: blobs, trees, and the two objects one reads on the way to a tree.
//!
//! No filter, no ignore rule and no configuration has a say: the bytes and modes alone. It does *not* read
//! repositories and does *not* write objects.

use crate::code::{Code, Refusal};
use crate::digest::{from_hex, to_hex};
use crate::path::{RelPath, shown};
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use std::collections::BTreeMap;

mod names;

/// Names the hash function of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectFormat {
    /// 40 hexadecimal digits.
    Sha1,
    /// 64 hexadecimal digits.
    Sha256,
}

impl ObjectFormat {
    /// Gives the length of a raw id in bytes.
    #[must_use]
    pub const fn raw_len(self) -> usize {
        match self {
            ObjectFormat::Sha1 => 20,
            ObjectFormat::Sha256 => 32,
        }
    }
}

/// Names a git object by its full id.
///
/// # Shape
/// 40 (SHA-1) or 64 (SHA-256) lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectId {
    format: ObjectFormat,
    bytes: [u8; 32],
}

impl ObjectId {
    /// Parses a full object id.
    ///
    /// # Errors
    /// `bad_input` for a name, an abbreviation, upper case or any other text.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let wrong = || {
            Refusal::new(
                Code::BadInput,
                "a full object id is 40 or 64 lower-case hexadecimal digits",
            )
            .name(shown(text.as_bytes()).chars().take(80).collect::<String>())
        };
        Self::from_raw(&from_hex(text).ok_or_else(wrong)?).ok_or_else(wrong)
    }

    /// Takes a raw id of 20 or 32 bytes; `None` for any other length.
    #[must_use]
    pub fn from_raw(raw: &[u8]) -> Option<Self> {
        let format = match raw.len() {
            20 => ObjectFormat::Sha1,
            32 => ObjectFormat::Sha256,
            _ => return None,
        };
        let mut bytes = [0; 32];
        bytes[..raw.len()].copy_from_slice(raw);
        Some(Self { format, bytes })
    }

    /// Gives the hash function that made it.
    #[must_use]
    pub const fn format(&self) -> ObjectFormat {
        self.format
    }

    /// Gives the raw id.
    #[must_use]
    pub fn as_raw(&self) -> &[u8] {
        &self.bytes[..self.format.raw_len()]
    }
}

impl TryFrom<String> for ObjectId {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse(&text)
    }
}

impl core::str::FromStr for ObjectId {
    type Err = Refusal;
    fn from_str(text: &str) -> Result<Self, Refusal> {
        Self::parse(text)
    }
}

impl From<ObjectId> for String {
    fn from(id: ObjectId) -> String {
        to_hex(id.as_raw())
    }
}

impl core::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&to_hex(self.as_raw()))
    }
}

impl core::fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&to_hex(self.as_raw()))
    }
}

/// Names the kind of an object whose id is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file's content or a link's target.
    Blob,
    /// A directory.
    Tree,
    /// A commit.
    Commit,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Kind::Blob => "blob",
            Kind::Tree => "tree",
            Kind::Commit => "commit",
        }
    }
}

// The state of the SHA-1 with collision detection is large, hence the box.
enum Digester {
    Sha1(Box<sha1_checked::Sha1>),
    Sha256(sha2::Sha256),
}

impl Digester {
    fn new(format: ObjectFormat) -> Self {
        match format {
            ObjectFormat::Sha1 => Self::Sha1(Box::default()),
            ObjectFormat::Sha256 => Self::Sha256(sha2::Sha256::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(sha1) => sha1_checked::Digest::update(sha1.as_mut(), bytes),
            Self::Sha256(sha256) => sha256.update(bytes),
        }
    }

    fn finish(self) -> Result<ObjectId, Refusal> {
        let raw = match self {
            Self::Sha1(sha1) => {
                let result = sha1.try_finalize();
                if result.has_collision() {
                    let why = "the bytes are part of a SHA-1 collision attack";
                    return Err(Refusal::new(Code::TreeMismatch, why).reason("sha1_collision"));
                }
                result.hash().to_vec()
            }
            Self::Sha256(sha256) => sha256.finalize().to_vec(),
        };
        ObjectId::from_raw(&raw).ok_or_else(|| Refusal::new(Code::Internal, "a digest of an unknown length"))
    }
}

/// Computes the id of a blob whose length is known beforehand, piece by piece.
pub struct BlobHasher {
    digester: Digester,
    announced: u64,
    seen: u64,
}

impl BlobHasher {
    /// Starts a blob of `len` bytes.
    #[must_use]
    pub fn new(format: ObjectFormat, len: u64) -> Self {
        let mut digester = Digester::new(format);
        digester.update(format!("blob {len}\0").as_bytes());
        Self {
            digester,
            announced: len,
            seen: 0,
        }
    }

    /// Adds a piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        self.digester.update(bytes);
    }

    /// Gives the id.
    ///
    /// # Errors
    /// `tree_mismatch` with reason `length_changed` where fewer or more bytes came than were announced, and with
    /// `sha1_collision` where the bytes are part of a known attack on SHA-1.
    pub fn finish(self) -> Result<ObjectId, Refusal> {
        if self.seen != self.announced {
            let why = format!("{} bytes were announced, {} came", self.announced, self.seen);
            return Err(Refusal::new(Code::TreeMismatch, why).reason("length_changed"));
        }
        self.digester.finish()
    }
}

/// Computes the id of an object held in memory.
///
/// # Errors
/// `tree_mismatch` with reason `sha1_collision` where the bytes are part of a known attack on SHA-1.
pub fn object_id(format: ObjectFormat, kind: Kind, body: &[u8]) -> Result<ObjectId, Refusal> {
    let mut digester = Digester::new(format);
    digester.update(format!("{} {}\0", kind.word(), body.len()).as_bytes());
    digester.update(body);
    digester.finish()
}

/// Names what a tree entry of a proposal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A plain file (100644).
    File,
    /// An executable file (100755).
    Executable,
    /// A symbolic link (120000); its blob holds the target.
    Symlink,
    /// A submodule (160000); its id is the commit's.
    Gitlink,
}

impl Mode {
    const fn octal(self) -> &'static str {
        match self {
            Mode::File => "100644",
            Mode::Executable => "100755",
            Mode::Symlink => "120000",
            Mode::Gitlink => "160000",
        }
    }
}

enum Node {
    Leaf(Mode, ObjectId),
    Dir(Children),
}

type Children = BTreeMap<Vec<u8>, Node>;

/// Computes the id of the tree that holds exactly these entries, in any order.
///
/// # Errors
/// `tree_mismatch` with reason `unholdable_entry` for a name that git refuses (`.git` in any disguise, a linked
/// `.gitmodules`), `entry_conflict` for an entry that stands twice or is both a file and a directory,
/// `sha1_collision`; `bad_input` for an id of another object format.
pub fn tree_id(
    format: ObjectFormat,
    entries: impl IntoIterator<Item = (RelPath, Mode, ObjectId)>,
) -> Result<ObjectId, Refusal> {
    tree_objects(format, entries, |_, _| {})
}

/// Does what [`tree_id`] does, and shows each tree object (id and body), children before parents.
///
/// # Errors
/// Those of [`tree_id`].
pub fn tree_objects(
    format: ObjectFormat,
    entries: impl IntoIterator<Item = (RelPath, Mode, ObjectId)>,
    mut each: impl FnMut(ObjectId, &[u8]),
) -> Result<ObjectId, Refusal> {
    let mut root = Children::new();
    for (path, mode, id) in entries {
        if id.format() != format {
            return Err(Refusal::new(Code::BadInput, "an id of another object format").name(path.to_string()));
        }
        insert(&mut root, &path, mode, id)?;
    }
    write_tree(format, &root, &mut each)
}

fn insert(root: &mut Children, path: &RelPath, mode: Mode, id: ObjectId) -> Result<(), Refusal> {
    let conflict = || {
        Refusal::new(
            Code::TreeMismatch,
            "an entry stands twice, or is both a file and a directory",
        )
        .reason("entry_conflict")
        .name(path.to_string())
    };
    let unholdable = || {
        Refusal::new(Code::TreeMismatch, "git holds no entry of this name")
            .reason("unholdable_entry")
            .name(path.to_string())
    };
    let (parent, last) = path.split_last().ok_or_else(unholdable)?;
    if path.components().any(|name| !names::holdable(name))
        || (mode == Mode::Symlink && names::is_gitmodules(last))
    {
        return Err(unholdable());
    }
    let mut dir = root;
    for name in parent.components() {
        let node = dir
            .entry(name.to_vec())
            .or_insert_with(|| Node::Dir(Children::new()));
        match node {
            Node::Dir(children) => dir = children,
            Node::Leaf(..) => return Err(conflict()),
        }
    }
    match dir.insert(last.to_vec(), Node::Leaf(mode, id)) {
        None => Ok(()),
        Some(_) => Err(conflict()),
    }
}

fn write_tree(
    format: ObjectFormat,
    children: &Children,
    each: &mut impl FnMut(ObjectId, &[u8]),
) -> Result<ObjectId, Refusal> {
    let mut entries: Vec<(Vec<u8>, &[u8], &str, ObjectId)> = Vec::with_capacity(children.len());
    for (name, node) in children {
        match node {
            Node::Leaf(mode, id) => entries.push((name.clone(), name, mode.octal(), *id)),
            Node::Dir(inner) => {
                let id = write_tree(format, inner, each)?;
                entries.push((sort_key(name, TreeMode::Directory), name, "40000", id));
            }
        }
    }
    entries.sort();
    let mut body = Vec::new();
    for (_, name, octal, id) in entries {
        body.extend_from_slice(octal.as_bytes());
        body.push(b' ');
        body.extend_from_slice(name);
        body.push(0);
        body.extend_from_slice(id.as_raw());
    }
    let id = object_id(format, Kind::Tree, &body)?;
    each(id, &body);
    Ok(id)
}

/// Git sorts a directory as if its name ended with a slash.
fn sort_key(name: &[u8], mode: TreeMode) -> Vec<u8> {
    let mut key = name.to_vec();
    if mode == TreeMode::Directory {
        key.push(b'/');
    }
    key
}

/// Names what an entry of a stored tree object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TreeMode {
    /// Another tree (40000).
    Directory,
    /// A leaf.
    Leaf(Mode),
}

/// Holds one entry of a stored tree object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// What it is.
    pub mode: TreeMode,
    /// Its name: one component, any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// The object it names.
    pub id: ObjectId,
}

/// Reads the body of a tree object.
///
/// # Errors
/// `bad_input` where it is cut, out of git's order, holds a name twice, or a name or mode that git does not write.
pub fn parse_tree(format: ObjectFormat, mut body: &[u8]) -> Result<Vec<TreeEntry>, Refusal> {
    let wrong = |why: &str| Refusal::new(Code::BadInput, why).reason("malformed_tree");
    let mut entries: Vec<TreeEntry> = Vec::new();
    let mut last_key: Vec<u8> = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    while !body.is_empty() {
        let space = body.iter().position(|b| *b == b' ');
        let nul = body.iter().position(|b| *b == 0);
        let (Some(space), Some(nul)) = (space, nul) else {
            return Err(wrong("the tree object is cut"));
        };
        let id_end = nul + 1 + format.raw_len();
        let (Some(name), Some(raw)) = (body.get(space + 1..nul), body.get(nul + 1..id_end)) else {
            return Err(wrong("the tree object is cut"));
        };
        let mode = match &body[..space] {
            b"40000" => TreeMode::Directory,
            b"100644" => TreeMode::Leaf(Mode::File),
            b"100755" => TreeMode::Leaf(Mode::Executable),
            b"120000" => TreeMode::Leaf(Mode::Symlink),
            b"160000" => TreeMode::Leaf(Mode::Gitlink),
            _ => return Err(wrong("the tree object holds a mode that git does not write").name(shown(name))),
        };
        let key = sort_key(name, mode);
        if !names::holdable(name) || !names.insert(name.to_vec()) || key <= last_key {
            let why = "the tree object holds a name that git refuses, twice, or out of order";
            return Err(wrong(why).name(shown(name)));
        }
        let id = ObjectId::from_raw(raw).ok_or_else(|| wrong("the tree object is cut"))?;
        entries.push(TreeEntry {
            mode,
            name: name.to_vec(),
            id,
        });
        last_key = key;
        body = &body[id_end..];
    }
    Ok(entries)
}

/// Holds what a commit says about content and history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The tree it names.
    pub tree: ObjectId,
    /// Its parents, in order.
    pub parents: Vec<ObjectId>,
}

/// Reads the body of a commit object, as far as its author.
///
/// # Errors
/// `bad_input` where it does not begin with a tree, its parents and an author, or mixes object formats.
pub fn parse_commit(body: &[u8]) -> Result<Commit, Refusal> {
    let wrong = |why: &str| Refusal::new(Code::BadInput, why).reason("malformed_commit");
    let id_of = |raw: &[u8]| {
        let text = core::str::from_utf8(raw).ok();
        text.and_then(|text| ObjectId::parse(text).ok())
            .ok_or_else(|| wrong("the commit names something by what is not an object id"))
    };
    let mut lines = body.split(|b| *b == b'\n');
    let first = lines.next().and_then(|line| line.strip_prefix(b"tree "));
    let tree = id_of(first.ok_or_else(|| wrong("the commit does not begin with its tree"))?)?;
    let mut parents = Vec::new();
    for line in lines {
        if let Some(raw) = line.strip_prefix(b"parent ") {
            let parent = id_of(raw)?;
            if parent.format() != tree.format() {
                return Err(wrong("the commit mixes object formats"));
            }
            parents.push(parent);
        } else if line.starts_with(b"author ") {
            return Ok(Commit { tree, parents });
        } else {
            break;
        }
    }
    Err(wrong("the commit has no author after its parents"))
}

#[cfg(test)]
mod tests;
