//! What a restoration would remove, looked at before it writes anything. It changes nothing.
//!
//! Git removes whatever lies where a file of the tree has to go, and `--clean` what is not of the tree. None of it may be or
//! hold the repository itself, by whatever name, or a mount; a repository of somebody else is refused unless its removal was
//! asked for.

use super::brief;
use super::clear::Clear;
use super::listing::Listing;
use super::memo::Look;
use super::nested;
use super::obstacles::{self, DIRECTORY};
use super::own::Whose;
use super::removal::{Ground, KEPT, names, refused};
use super::repository::Repository;
use super::restore::{Leftovers, Nested};
use super::verify::Cursor;
use super::worktree::{path_of, pointer_at};
use crate::error::{Error, Result};
use crate::mount_table;
use crate::volume::reaper;
use rustix::fs::{Access, AtFlags, FileType, Mode as FileMode, OFlags, accessat, fstat, openat};
use rustix::io::Errno;
use semel_core::RelPath;
use semel_core::git_tree::Mode;
use semel_core::path::shown;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::Arc;

/// Looks at all that a restoration would remove, before it writes anything.
pub(super) struct Survey<'a> {
    pub(super) ground: &'a Ground<'a>,
    pub(super) repo: &'a Repository,
    pub(super) listing: &'a Listing,
    pub(super) nested: Nested,
}

impl Survey<'_> {
    /// Refuses what may not be removed; gives what is to be removed before git runs.
    ///
    /// # Errors
    /// `precondition_failed`, reasons `mount`, `gitdir_inside`, `nested_repository`, `residue_kept`; `bad_config`, reason
    /// `state_in_worktree`; `io_failed` where something cannot be looked at.
    pub(super) fn refuse(&self, leftovers: Leftovers) -> Result<Beforehand> {
        let mut beforehand = Beforehand::default();
        self.refuse_in_the_way(&mut beforehand)?;
        self.refuse_tracked()?;
        if leftovers == Leftovers::Removed {
            self.refuse_residue()?;
        }
        Ok(beforehand)
    }

    /// Goes through the directories of the tree, and through each that a file or link of the tree would replace.
    ///
    /// It lists the directories of the tree rather than look at every file: there are fewer. One that looks as it did when
    /// nothing in it was in the way has the same entries still, and is not listed again. Each is looked at in any case:
    /// what is mounted on it changes nothing in it.
    fn refuse_in_the_way(&self, beforehand: &mut Beforehand) -> Result<()> {
        let at = self.ground.at;
        let mut clear = Clear::of(at, &self.listing.tree);
        let mut cursor = Cursor::new(at.root.as_fd());
        let mut todo = vec![RelPath::root()];
        while let Some(path) = todo.pop() {
            let Some(dir) = enter(&mut cursor, &path)? else {
                continue;
            };
            // Before it is listed: what changes meanwhile looks different afterwards.
            let look = Look::at(&dir, ".").ok().flatten();
            let known = look.and_then(|look| clear.below(&path, &look));
            let below = match known {
                Some(below) => below,
                None => {
                    let (below, in_the_way) = self.list(&dir, &path, beforehand)?;
                    if let (Some(look), InTheWay::Nothing) = (look, in_the_way) {
                        clear.learn(&path, look, &below);
                    }
                    below
                }
            };
            for path in below.iter() {
                let name = path.split_last().map(|(_, name)| name).unwrap_or_default();
                let Some(look) = self.ground.look_through(dir.as_fd(), name, path)? else {
                    continue;
                };
                // The most are known and hold no directory of the tree: these are not even opened.
                let leaf = clear.below(path, &look).is_some_and(|below| below.is_empty());
                if look.is_dir() && !leaf {
                    todo.push(path.clone());
                }
            }
        }
        clear.keep();
        Ok(())
    }

    /// Lists a directory of the tree: gives those of the tree in it, after it went through each in which a file has to go.
    fn list(
        &self,
        dir: &OwnedFd,
        at: &RelPath,
        beforehand: &mut Beforehand,
    ) -> Result<(Arc<[RelPath]>, InTheWay)> {
        let mut below = Vec::new();
        let mut in_the_way = InTheWay::Nothing;
        let mut signs = Signs::default();
        let asked = |name: &[u8], kind| kind == FileType::Directory || Signs::tells(name);
        for name in names(dir, at, asked)? {
            let path = at.observed(&name)?;
            let leaf = self.listing.leaf(path.as_bytes());
            let of_the_tree = leaf.is_some() || self.listing.dirs.contains(path.as_bytes());
            if !at.is_root() {
                signs.see(dir, &name, &path, of_the_tree)?;
                if nested::is_dot_git(&name) {
                    // What is put into it later changes nothing of the directory that holds it.
                    in_the_way = InTheWay::Something;
                }
            }
            if leaf.is_some_and(|mode| mode != Mode::Gitlink) {
                let look = self.ground.look(dir.as_fd(), &name, &path)?;
                if look.is_some_and(|look| look.is_dir()) {
                    // Likewise.
                    in_the_way = InTheWay::Something;
                    let why = "a repository lies where a file of the tree has to go";
                    self.ground.look_removed(dir.as_fd(), &name, &path)?;
                    if self.walk().go_through(dir.as_fd(), &name, path.clone(), why)? > DEEP {
                        beforehand.deep.push(path);
                    }
                }
            } else if self.listing.dirs.contains(path.as_bytes()) {
                below.push(path);
            }
        }
        if let Some(sign) = signs.repository(at)? {
            // Whether it is in the way is a matter of the index, too, which the next time may be another one.
            in_the_way = InTheWay::Something;
            self.refuse_inhabited(dir, at, sign, beforehand)?;
        }
        Ok((below.into(), in_the_way))
    }

    /// Sees to a repository whose worktree is a directory of the tree. What the index knows below it is of ours, and so is the
    /// directory: git has written there already. Else the files there are of the other repository.
    fn refuse_inhabited(
        &self,
        dir: &OwnedFd,
        at: &RelPath,
        sign: RelPath,
        beforehand: &mut Beforehand,
    ) -> Result<()> {
        let name = sign.split_last().map(|(_, name)| name).unwrap_or_default();
        let look = Look::at_itself(dir, name).map_err(|e| Error::io("look at", shown(sign.as_bytes()), e))?;
        let Some(look) = look else {
            return Ok(());
        };
        if self.ground.is_own(&look) {
            // The worktree's own is at its top, which is not looked at for this.
            let why = "a worktree of the same repository lies where a directory of the tree has to go";
            return Err(refused("gitdir_inside", why, &sign));
        }
        let below = [at.as_bytes(), b"/"].concat();
        if self
            .indexed(at)?
            .iter()
            .any(|(_, place)| place.starts_with(&below))
        {
            return Ok(());
        }
        let why =
            "a repository lies where a directory of the tree has to go: its files would be written over";
        self.walk()
            .refuse_nested(if nested::is_dot_git(name) { &sign } else { at }, why)?;
        self.ground.look_removed(dir.as_fd(), name, &sign)?;
        if look.is_dir() {
            self.walk().go_through(dir.as_fd(), name, sign.clone(), why)?;
        }
        beforehand.repositories.push(sign);
        Ok(())
    }

    fn refuse_residue(&self) -> Result<()> {
        let root = &self.ground.at.root;
        let why = "a repository lies in what is to be removed";
        let mut cursor = Cursor::new(root.as_fd());
        for path in obstacles::foreign(root, &self.listing.leaves)? {
            let (Some(parent), Some((_, name))) = (cursor.parent(&path)?, path.split_last()) else {
                continue;
            };
            self.refuse_kept_in(parent, &path)?;
            self.walk().entry(parent, name, &path, why)?;
        }
        Ok(())
    }

    /// Refuses what lies in a directory from which the system lets nothing go.
    fn refuse_kept_in(&self, parent: BorrowedFd<'_>, path: &RelPath) -> Result<()> {
        self.ground.look_removed(parent, b".", path).map(|_| ())
    }

    fn walk(&self) -> Walk<'_> {
        Walk {
            ground: self.ground,
            nested: self.nested,
            modules: None,
            tree: None,
        }
    }
}

/// Looks at all that is removed with a whole worktree, or with its git directory.
pub(super) struct Whole<'a> {
    pub(super) ground: &'a Ground<'a>,
    pub(super) nested: Nested,
    /// Where the repositories of the worktree's own submodules lie: they are its work, not somebody else's.
    pub(super) modules: &'a Path,
    /// The entry that is the worktree's own: what points at its git directory, or the repositories of its submodules.
    pub(super) own: &'a [u8],
    /// A tree that some have repositories in, as files.
    pub(super) tree: Option<&'a Listing>,
}

impl Whole<'_> {
    /// Refuses what may not be removed.
    ///
    /// # Errors
    /// As [`Survey::refuse`].
    pub(super) fn refuse(&self) -> Result<()> {
        let root = &self.ground.at.root;
        let why = "a repository lies in what is to be removed";
        for name in names(root, &RelPath::root(), |_, _| true)? {
            let nested = if name == self.own {
                Nested::Removed
            } else {
                self.nested
            };
            let walk = Walk {
                ground: self.ground,
                nested,
                modules: Some(self.modules),
                tree: self.tree,
            };
            walk.entry(root.as_fd(), &name, &RelPath::root().observed(&name)?, why)?;
        }
        Ok(())
    }
}

/// Goes through what is to be removed.
struct Walk<'a> {
    ground: &'a Ground<'a>,
    nested: Nested,
    /// Where repositories lie that are nobody else's, if any.
    modules: Option<&'a Path>,
    /// A tree that some have repositories in, as files.
    tree: Option<&'a Listing>,
}

impl Walk<'_> {
    /// Looks at an entry, and at all that is below it.
    fn entry(&self, parent: BorrowedFd<'_>, name: &[u8], path: &RelPath, why: &'static str) -> Result<()> {
        let look = self.looked(parent, name, path, why)?;
        if look.is_some_and(|look| look.is_dir()) {
            self.go_through(parent, name, path.clone(), why)?;
        }
        Ok(())
    }

    fn looked(&self, dir: BorrowedFd<'_>, name: &[u8], path: &RelPath, why: &str) -> Result<Option<Look>> {
        let look = self.ground.look_removed(dir, name, path)?;
        if nested::marks(dir, name, path)? && !self.is_submodule(dir, name, path) {
            self.refuse_nested(path, why)?;
        }
        Ok(look)
    }

    /// Says whether a `.git` is a file that names the repository of a submodule of the worktree's own.
    fn is_submodule(&self, dir: BorrowedFd<'_>, name: &[u8], path: &RelPath) -> bool {
        let place = self.ground.at.worktree.join(path_of(path.as_bytes()));
        let text = pointer_at(dir, &path_of(name), &place).ok();
        let target = text.as_deref().and_then(|text| text.strip_prefix(b"gitdir: "));
        let real = place.parent().zip(target);
        let real = real.and_then(|(base, target)| std::fs::canonicalize(base.join(path_of(target))).ok());
        let modules = self.modules.zip(real);
        modules.is_some_and(|(modules, real)| real != modules && real.starts_with(modules))
    }

    /// Says whether what looks like a repository without a worktree is files of a tree.
    fn is_of_the_tree(&self, path: &RelPath) -> bool {
        let head = path.observed(b"HEAD").ok().zip(self.tree);
        head.is_some_and(|(head, tree)| tree.leaf(head.as_bytes()).is_some())
    }

    /// Goes through all that is below a directory; one handle a level. Gives the length of the longest path.
    fn go_through(
        &self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        path: RelPath,
        why: &'static str,
    ) -> Result<usize> {
        let mut longest = path.as_bytes().len();
        let mut levels = vec![self.level(parent, name, path, why)?];
        while let Some(Level {
            dir, path: at, left, ..
        }) = levels.last_mut()
        {
            let Some(name) = left.pop() else {
                levels.pop();
                continue;
            };
            let path = at.observed(&name)?;
            longest = longest.max(path.as_bytes().len());
            let look = self.looked(dir.as_fd(), &name, &path, why)?;
            if look.is_some_and(|look| look.is_dir()) {
                let level = self.level(dir.as_fd(), &name, path, why)?;
                levels.push(level);
            }
        }
        Ok(longest)
    }

    fn level(&self, parent: BorrowedFd<'_>, name: &[u8], path: RelPath, why: &str) -> Result<Level> {
        let (dir, closed) =
            Closed::open(parent, name).map_err(|e| Error::io("open", shown(path.as_bytes()), e))?;
        let left = names(&dir, &path, |_, _| true)?;
        if !left.is_empty() && is_closed_to_us(&dir, &path)? {
            return Err(refused("residue_kept", KEPT, &path));
        }
        // As a repository without a worktree is known: see [`worktree::find`].
        if nested::BARE
            .iter()
            .all(|part| left.iter().any(|name| name == part))
            && !self.is_of_the_tree(&path)
        {
            self.refuse_nested(&path, why)?;
        }
        Ok(Level {
            dir,
            path,
            left,
            _closed: closed,
        })
    }

    fn refuse_nested(&self, path: &RelPath, why: &str) -> Result<()> {
        match self.nested {
            Nested::Refused => Err(refused("nested_repository", why, path)),
            Nested::Removed => Ok(()),
        }
    }
}

impl Survey<'_> {
    /// Refuses mounts, and the repository itself, where files lie that the index knows: git would remove them there, be
    /// they of the tree or not.
    fn refuse_tracked(&self) -> Result<()> {
        let at = self.ground.at;
        let mounts = match mount_table::mounted_below(&at.worktree) {
            Ok(mounts) => mounts,
            // The directories of the tree were looked at by their own handles.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(Error::io("read", "/proc/self/mountinfo", e)),
        };
        // A hook that is a link to a file of the tree is written like any other file.
        let own = self.ground.own.iter().filter(|own| own.whose != Whose::Settings);
        let own = own.map(|own| own.path.clone());
        for place in mounts.into_iter().chain(own) {
            let Some(path) = below(&at.worktree, &place)? else {
                continue;
            };
            if path.components().next() != Some(b".git") && self.is_changed(&path)? {
                self.refuse_place(&path)?;
            }
        }
        Ok(())
    }

    /// Says whether git might write or remove something at a path, or below it. A file that is mounted has another inode
    /// than the index knows, so git would write it anew, be it the same or not.
    fn is_changed(&self, path: &RelPath) -> Result<bool> {
        let leaf = self.listing.leaf(path.as_bytes());
        if leaf.is_some_and(|mode| mode != Mode::Gitlink) {
            return Ok(true);
        }
        // Git does not go into the place of a submodule.
        let mut listed = self.indexed(path)?.into_iter();
        Ok(listed.any(|(mode, place)| !(mode == b"160000" && place == path.as_bytes())))
    }

    /// Lists what the index has at a path and below it: modes and places.
    fn indexed(&self, path: &RelPath) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let name = OsString::from_vec(path.as_bytes().to_vec());
        let mut call = self.repo.call(["ls-files", "--stage", "-z", "--"]);
        call.args.push(name);
        call.env.push(("GIT_LITERAL_PATHSPECS", "1".into()));
        // The one that stands, not one of the view that git sees.
        let index = self.ground.at.gitdir.join("index");
        call.env.push(("GIT_INDEX_FILE", index.into_os_string()));
        let said = self.repo.run(brief(call))?;
        let entry = |line: &[u8]| {
            let mut parts = line.splitn(2, |b| *b == b'\t');
            let mode = parts.next()?.split(|b| *b == b' ').next()?.to_vec();
            Some((mode, parts.next()?.to_vec()))
        };
        Ok(said.split(|b| *b == 0).filter_map(entry).collect())
    }

    fn refuse_place(&self, path: &RelPath) -> Result<()> {
        let mut cursor = Cursor::new(self.ground.at.root.as_fd());
        let mut at = RelPath::root();
        for name in path.components() {
            let above = at;
            at = above.observed(name)?;
            if let Some(parent) = cursor.parent(&at)? {
                self.ground.look_through(parent, name, &at)?;
            }
        }
        Ok(())
    }
}

/// What is to be removed before git runs.
#[derive(Default)]
pub(super) struct Beforehand {
    /// What makes a directory of the tree another repository's: its `.git`, or its `HEAD`.
    pub(super) repositories: Vec<RelPath>,
    /// Where a file of the tree has to go: directories that are deeper than git can remove.
    pub(super) deep: Vec<RelPath>,
}

/// Says whether something lies in a directory of the tree that has to be looked at each time.
#[derive(Clone, Copy)]
enum InTheWay {
    Nothing,
    Something,
}

/// What was seen in a directory of the tree that tells of a repository.
#[derive(Default)]
struct Signs {
    dot_git: Option<RelPath>,
    /// How much of a repository without a worktree, and how much of that is of the tree.
    bare: usize,
    of_the_tree: usize,
}

impl Signs {
    fn tells(name: &[u8]) -> bool {
        nested::is_dot_git(name) || nested::BARE.contains(&name)
    }

    fn see(&mut self, dir: &OwnedFd, name: &[u8], path: &RelPath, of_the_tree: bool) -> Result<()> {
        if nested::BARE.contains(&name) {
            self.bare += 1;
            self.of_the_tree += usize::from(of_the_tree);
        } else if !of_the_tree && nested::marks(dir.as_fd(), name, path)? {
            self.dot_git = Some(path.clone());
        }
        Ok(())
    }

    /// Gives what makes the directory a repository. One that is of the tree in whole is none.
    fn repository(self, at: &RelPath) -> Result<Option<RelPath>> {
        let all = nested::BARE.len();
        if self.dot_git.is_some() || self.bare < all || self.of_the_tree == all {
            return Ok(self.dot_git);
        }
        Ok(Some(at.observed(nested::BARE[0])?))
    }
}

/// Paths that are longer are not left to git, which cannot name what is past `PATH_MAX`.
const DEEP: usize = 2048;

/// An open directory that is gone through.
struct Level {
    dir: OwnedFd,
    path: RelPath,
    /// The names in it that are still to be looked at.
    left: Vec<Vec<u8>>,
    _closed: Option<Closed>,
}

/// A directory of our user's that even its owner may not enter, opened for as long as it is looked at.
struct Closed {
    dir: OwnedFd,
    mode: FileMode,
}

impl Closed {
    /// Opens a directory; `None` beside it where nothing had to be done for that.
    fn open(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<(OwnedFd, Option<Self>)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = openat(parent, name, flags, FileMode::empty())?;
        let open = || openat(&handle, ".", DIRECTORY, FileMode::empty());
        let stat = fstat(&handle)?;
        let us = rustix::process::geteuid();
        if us.is_root() || us.as_raw() != stat.st_uid || stat.st_mode & 0o500 == 0o500 {
            return Ok((open()?, None));
        }
        reaper::open_up(parent, name)?;
        let mode = FileMode::from_raw_mode(stat.st_mode);
        let closed = Self { dir: open()?, mode };
        Ok((open()?, Some(closed)))
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        // What was only looked at is left as it was.
        rustix::fs::fchmod(&self.dir, self.mode).ok();
    }
}

/// Says whether a directory is somebody else's, in which we may remove nothing.
fn is_closed_to_us(dir: &OwnedFd, path: &RelPath) -> Result<bool> {
    let us = rustix::process::geteuid();
    let stat = fstat(dir).map_err(|e| Error::io("look at", shown(path.as_bytes()), e))?;
    if us.is_root() || us.as_raw() == stat.st_uid {
        return Ok(false);
    }
    let rights = Access::WRITE_OK | Access::EXEC_OK;
    Ok(accessat(dir, ".", rights, AtFlags::EACCESS).is_err())
}

/// Gives a path within the worktree; `None` for one that is not below it.
fn below(worktree: &Path, place: &Path) -> Result<Option<RelPath>> {
    let Ok(rest) = place.strip_prefix(worktree) else {
        return Ok(None);
    };
    let mut path = RelPath::root();
    for part in rest.components() {
        path = path.observed(part.as_os_str().as_bytes())?;
    }
    Ok(Some(path).filter(|path| !path.is_root()))
}

fn enter(cursor: &mut Cursor<'_>, path: &RelPath) -> Result<Option<OwnedFd>> {
    let name = path.split_last().map_or(&b"."[..], |(_, name)| name);
    let Some(parent) = cursor.parent(path)? else {
        return Ok(None);
    };
    match openat(parent, name, DIRECTORY, FileMode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(e) => Err(Error::io("open", shown(path.as_bytes()), e)),
    }
}
