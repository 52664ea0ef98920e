//! The installed trees of a workspace that somebody else manages, and the record of them.
//!
//! It finds, observes and keeps; what an installation must look like is decided in `semel_core::install::kept`.

use super::{Disk, Held};
use crate::error::{Error, Result};
use crate::installer::observe_with_links;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use semel_core::attempt::{FoundLock, GENERATION_FILE};
use semel_core::install::kept::{Facts, Kept, LONGEST_RECORD, Named, RECORD_FILE, Seen, Sign, Signs, Tree};
use semel_core::install::{Kind, Place};
use semel_core::lockset::{Lockfile, parse};
use semel_core::{Code, Refusal, RelPath};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A lockfile is never larger.
const LARGEST_LOCK: u64 = 256 << 20;
/// How many links lead from an environment to its interpreter at most.
const MOST_LINKS: usize = 16;
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Holds the installed trees of a workspace.
#[derive(Debug)]
pub struct Trees {
    /// Each of them.
    pub seen: Vec<Seen>,
    /// What a person should know, in words.
    pub warnings: Vec<String>,
}

impl Disk {
    /// Gathers what a record is written or checked by: lockfiles as [`Disk::facts`] finds them, the record, the
    /// generation.
    ///
    /// # Errors
    /// `unknown_state` where the root cannot be listed.
    pub fn record_facts(
        &self,
        generation: Option<String>,
        named: &[RelPath],
        recognised: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Facts> {
        let unknown = |e: Error| Refusal::new(Code::UnknownState, e.to_string());
        Ok(Facts {
            generation,
            disk_generation: self.small_file(GENERATION_FILE)?,
            record: self.file_of(RECORD_FILE, LONGEST_RECORD)?,
            locks: self.lockfiles(named, recognised).map_err(unknown)?,
        })
    }

    /// Reads the lockfiles whose format is parsed and that are whole; the others are digested only.
    #[must_use]
    pub fn parsed(&self, facts: &Facts) -> Vec<Lockfile> {
        let read = |path: &RelPath| -> Option<Vec<u8>> {
            let (dir, name) = self.beneath(path).ok()?;
            let mut bytes = Vec::new();
            let file = super::open_file(dir.as_fd(), &name[..]).ok()?;
            file.take(LARGEST_LOCK).read_to_end(&mut bytes).ok()?;
            Some(bytes)
        };
        let parsed = facts.locks.iter().filter_map(|(path, found)| {
            let lock = parse(path, &read(path)?).ok()?;
            (FoundLock::Digest(lock.digest) == *found).then_some(lock)
        });
        parsed.collect()
    }

    /// Opens the directory of a path, following no link.
    fn beneath(&self, path: &RelPath) -> std::result::Result<(OwnedFd, Vec<u8>), rustix::io::Errno> {
        let (parent, name) = path.split_last().ok_or(rustix::io::Errno::INVAL)?;
        let mut dir = rustix::fs::openat(&self.dir, ".", DIRECTORY, Mode::empty())?;
        for part in parent.components() {
            dir = rustix::fs::openat(&dir, part, DIRECTORY, Mode::empty())?;
        }
        Ok((dir, name.to_vec()))
    }

    /// Observes every installed tree at the top of the workspace, and those that were named.
    ///
    /// # Errors
    /// `record_outside_root` for a tree that is a link or lies behind one, and for a mount below a tree; `bad_input` for
    /// a named one that is no installed tree; `record_mismatch` where it changes while it is read; `io_failed`.
    pub fn trees(&self, named: &[RelPath]) -> Result<Trees> {
        let mut kinds: BTreeMap<RelPath, Tree> = BTreeMap::new();
        for name in self.names()? {
            let Ok(path) = RelPath::parse(&name) else {
                continue;
            };
            if let Some(tree) = self.tree_at(&path, Named::No)? {
                kinds.insert(path, tree);
            }
        }
        for path in named {
            let tree = self.tree_at(path, Named::Yes)?.ok_or_else(|| {
                let why = "this is no virtual environment, node_modules, CARGO_HOME or vendor directory";
                Refusal::new(Code::BadInput, why).name(path.to_string())
            })?;
            kinds.insert(path.clone(), tree);
        }
        self.observed(kinds)
    }

    /// Observes again what was recorded, and every tree that appeared at the top since; one that is gone is left out.
    ///
    /// # Errors
    /// As [`Disk::trees`].
    pub fn trees_again(&self, recorded: &BTreeMap<RelPath, Tree>) -> Result<Trees> {
        let mut kinds = BTreeMap::new();
        for path in recorded.keys() {
            if let Some(tree) = self.tree_at(path, Named::Yes)? {
                kinds.insert(path.clone(), tree);
            }
        }
        for name in self.names()? {
            let Ok(path) = RelPath::parse(&name) else {
                continue;
            };
            if let (false, Some(tree)) = (kinds.contains_key(&path), self.tree_at(&path, Named::No)?) {
                kinds.insert(path, tree);
            }
        }
        self.observed(kinds)
    }

    fn observed(&self, kinds: BTreeMap<RelPath, Tree>) -> Result<Trees> {
        let (mut seen, mut warnings) = (Vec::new(), Vec::new());
        for (path, tree) in kinds {
            let (one, told) = self.observe(&path, tree)?;
            seen.push(one);
            warnings.extend(told);
        }
        Ok(Trees { seen, warnings })
    }

    fn tree_at(&self, path: &RelPath, named: Named) -> Result<Option<Tree>> {
        let outside =
            |why: &str| Error::from(Refusal::new(Code::RecordOutsideRoot, why).name(path.to_string()));
        let io = |e| Error::io("open", self.place(OsStr::from_bytes(path.as_bytes())), e);
        let (dir, name) = match self.beneath(path) {
            Ok(place) => place,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                return Err(outside("an installed tree lies behind a link"));
            }
            Err(e) => return Err(io(e)),
        };
        let kind = match rustix::fs::statat(&dir, &name[..], AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(e) => return Err(io(e)),
        };
        let usual = matches!(&name[..], b".venv" | b"venv" | b"node_modules");
        match kind {
            FileType::Directory => {}
            FileType::Symlink if named == Named::Yes || usual => {
                return Err(outside("an installed tree is a link"));
            }
            _ => return Ok(None),
        }
        let tree = match rustix::fs::openat(&dir, &name[..], DIRECTORY, Mode::empty()) {
            Ok(tree) => tree,
            // Something of another user beside the project, such as lost+found.
            Err(rustix::io::Errno::ACCESS) if named == Named::No && !usual => return Ok(None),
            Err(e) => return Err(io(e)),
        };
        Ok(Tree::recognise(&name, signs(tree.as_fd()).map_err(io)?, named))
    }

    fn observe(&self, path: &RelPath, tree: Tree) -> Result<(Seen, Option<String>)> {
        let root = self.place(OsStr::from_bytes(path.as_bytes()));
        let kind = match tree {
            Tree::Venv => Kind::Python,
            Tree::NodeModules => Kind::Node,
            Tree::CargoHome | Tree::CargoVendor => Kind::Rust,
        };
        let wanted = |path: &RelPath| tree.wants_text(path);
        let (observed, linked) = observe_with_links(&root, kind, path, &wanted)?;
        let real = |path: &Path| std::fs::canonicalize(path).map_err(|e| Error::io("resolve", path, e));
        let (top, root) = (real(&self.path)?, real(&root)?);
        let interpreters = match tree {
            Tree::Venv => interpreters(&root),
            Tree::NodeModules | Tree::CargoHome | Tree::CargoVendor => Vec::new(),
        };
        let bytes = |path: PathBuf| path.into_os_string().into_encoded_bytes();
        let told = (!linked.is_empty()).then(|| {
            format!(
                "{path}: files that have a second name, such as in a cache, through which they could be changed: {}",
                linked.len()
            )
        });
        let seen = Seen {
            tree,
            observed,
            place: Place {
                tree: bytes(top),
                root: bytes(root),
                interpreters: interpreters.into_iter().map(bytes).collect(),
            },
        };
        Ok((seen, told))
    }
}

impl Held<'_> {
    /// Writes the record, while the workspace is held.
    ///
    /// # Durability
    /// Atomic, and on the disk when this returns.
    ///
    /// # Errors
    /// `unknown_state` where something that is no file lies at its place; `io_failed`. What was there stays.
    pub fn keep_record(&self, record: &Kept) -> Result<()> {
        let bytes = record.encode()?;
        if !matches!(self.0.kind(RECORD_FILE)?, None | Some(FileType::RegularFile)) {
            let why = "something that is no file lies where the record goes";
            return Err(Refusal::new(Code::UnknownState, why).name(RECORD_FILE).into());
        }
        self.0.write_durably(RECORD_FILE, &bytes)
    }
}

/// Says what a directory holds that tells its kind.
pub(crate) fn signs(dir: BorrowedFd<'_>) -> std::result::Result<Signs, rustix::io::Errno> {
    let is = |name: &[u8], kind: FileType| {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind)
    };
    let sign = |there| if there { Sign::There } else { Sign::Absent };
    let node: [&[u8]; 3] = [b".package-lock.json", b".modules.yaml", b".yarn-integrity"];
    let mut checksums = Sign::Absent;
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        let inner = [&name[..], b"/.cargo-checksum.json"].concat();
        if name != b".." && name != b"." && is(&inner, FileType::RegularFile) {
            checksums = Sign::There;
            break;
        }
    }
    Ok(Signs {
        pyvenv: sign(is(b"pyvenv.cfg", FileType::RegularFile)),
        node_state: sign(node.iter().any(|name| is(name, FileType::RegularFile))),
        registry: sign(is(b"registry", FileType::Directory)),
        checksums,
    })
}

/// Gives every path by which an environment names its interpreter: link by link, and as it resolves.
fn interpreters(root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut at = root.join("bin/python");
    for _ in 0..MOST_LINKS {
        let Ok(target) = std::fs::read_link(&at) else {
            break;
        };
        at = at
            .parent()
            .map_or_else(|| target.clone(), |parent| parent.join(&target));
        if !at.starts_with(root) {
            all.push(at.clone());
        }
    }
    all.extend(std::fs::canonicalize(root.join("bin/python")));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_found_at_the_top_and_where_they_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let make = |path: &str, text: &str| {
            let place = dir.path().join(path);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(place, text).unwrap();
        };
        make("env/pyvenv.cfg", "");
        make("node_modules/.package-lock.json", "{}");
        make("third/a/.cargo-checksum.json", "{}");
        make("home/registry/cache/x", "");
        make("src/lib.rs", "");
        make("deep/.venv/pyvenv.cfg", "");
        let disk = Disk::open(dir.path()).unwrap();
        let found = |named: &[&str]| {
            let named: Vec<RelPath> = named
                .iter()
                .map(|path| RelPath::parse(path.as_bytes()).unwrap())
                .collect();
            let trees = disk.trees(&named).map_err(|e| e.code())?;
            let kind = |seen: &Seen| (seen.observed.root.to_string(), seen.tree);
            Ok::<_, Code>(trees.seen.iter().map(kind).collect::<Vec<_>>())
        };
        let all = found(&["home", "deep/.venv"]).unwrap();
        let wanted = [
            ("deep/.venv", Tree::Venv),
            ("env", Tree::Venv),
            ("home", Tree::CargoHome),
            ("node_modules", Tree::NodeModules),
            ("third", Tree::CargoVendor),
        ];
        assert_eq!(all, wanted.map(|(path, tree)| (path.to_owned(), tree)));
        assert_eq!(found(&[]).unwrap().len(), 3);
        assert_eq!(found(&["src"]), Err(Code::BadInput));
        // Looking again finds what was named, and what appeared at the top.
        let recorded = [(RelPath::parse(b"home").unwrap(), Tree::CargoHome)].into();
        assert_eq!(disk.trees_again(&recorded).unwrap().seen.len(), 4);
        std::os::unix::fs::symlink("deep", dir.path().join("link")).unwrap();
        assert_eq!(found(&["link/.venv"]), Err(Code::RecordOutsideRoot));
        std::os::unix::fs::symlink("env", dir.path().join(".venv")).unwrap();
        assert_eq!(found(&[]), Err(Code::RecordOutsideRoot));
    }

    #[test]
    fn a_second_name_is_told_and_not_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("node_modules")).unwrap();
        std::fs::write(dir.path().join("node_modules/a"), "a").unwrap();
        std::fs::hard_link(dir.path().join("node_modules/a"), dir.path().join("cache")).unwrap();
        let trees = Disk::open(dir.path()).unwrap().trees(&[]).unwrap();
        assert!(trees.warnings[0].ends_with("changed: 1"), "{:?}", trees.warnings);
    }

    #[test]
    fn what_lies_in_the_way_of_a_record_stays() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(RECORD_FILE)).unwrap();
        let disk = Disk::open(dir.path()).unwrap();
        let facts = disk.record_facts(None, &[], &|_| false).unwrap();
        assert!(matches!(facts.record, semel_core::attempt::Found::Odd(_)));
        let path = RelPath::parse(b"x").unwrap();
        let record = Kept {
            entries: BTreeMap::new(),
            files: semel_core::Sha256::of(b""),
            generation: "g".to_owned(),
            installed: Vec::new(),
            lock: [(path.clone(), semel_core::Sha256::of(b""))].into(),
            roots: [(path, Tree::Venv)].into(),
            version: 1,
        };
        let refusal = disk.hold().unwrap().keep_record(&record).unwrap_err();
        assert_eq!(refusal.code(), Code::UnknownState);
        assert!(dir.path().join(RECORD_FILE).is_dir());
        std::fs::remove_dir(dir.path().join(RECORD_FILE)).unwrap();
        // What a writer that was killed left is in nobody's way.
        std::fs::write(dir.path().join(".install_record.json.new"), "half").unwrap();
        disk.hold().unwrap().keep_record(&record).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(
            std::fs::read(dir.path().join(RECORD_FILE)).unwrap(),
            record.encode().unwrap()
        );
    }
}
