//! What would be lost with a worktree: commits that nothing else reaches, an operation under way, what is staged, files
//! that no tree of ours holds. It changes nothing.
//!
//! Git is asked twice and never trusted alone: files are compared through an index of our own, made anew, and hashed by
//! us, so that neither flags in the worktree's index nor attributes that are written into it hide a change.

use super::look::{Looked, NAMED};
use super::remove::works_in;
use crate::error::{Error, Result};
use crate::git::Git;

use crate::git::objects::Leaf;
use crate::git::pin::Pins;
use crate::git::repository::Repository;
use crate::git::verify::{Cursor, Seen, seen, whole};
use crate::git::worktree::{Checked, Target, path_of};
use crate::process::Cancel;
use rustix::fs::{CWD, Dir, FileType, Mode as FileMode, OFlags, openat};
use rustix::io::Errno;
use semel_core::git_tree::{Kind, Mode, ObjectId, object_id};
use semel_core::path::shown;
use semel_core::pin::Pin;
use semel_core::pin::gitdir::{self, Entry};
use semel_core::{Code, Refusal};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The largest log of references that is read.
const LARGEST: u64 = 64 << 20;
/// References that every worktree has for itself.
const OWN_REFS: [&str; 3] = ["refs/worktree", "refs/bisect", "refs/rewritten"];

/// A worktree that is to be removed.
pub(super) struct Held<'a> {
    pub(super) pin: &'a Pin,
    /// The commit that it was made at.
    pub(super) commit: &'a ObjectId,
    /// The tree that it was made with.
    pub(super) tree: &'a ObjectId,
    /// What was seen in the worktree.
    pub(super) files: Looked,
    /// What was seen in its git directory.
    pub(super) state: Looked,
}

/// What names objects, by the name of the object.
type Tips = BTreeMap<String, String>;

/// Refuses to lose what is nowhere else; counts the files that git ignores.
///
/// # Errors
/// `precondition_failed`, reason `operation_in_progress`, `submodules`, `unreachable_commits` or `dirty_worktree`;
/// `other_lock`; `worktree_redirected`, `git_failed`, `io_failed`.
pub(super) fn refuse_work(git: &Git, pins: &Pins, held: &Held<'_>, cancel: &Cancel) -> Result<u64> {
    let target = Target::Pinned(Box::new(held.pin.clone()));
    let found = target.find()?;
    let mut repo = Repository::at(git, found.clone(), cancel)?;
    let at = target.check(&found, &repo)?;
    at.index()?;
    if !held.files.closed.is_empty() {
        let why = "some directories of the worktree cannot be looked into";
        return Err(refused(why, "dirty_worktree", held.files.closed.clone()));
    }
    let mut tips = of_the_state(&at.gitdir, &held.state)?;
    refuse_unreachable(&repo, held.commit, &mut tips)?;
    let head = resolve(&repo, &["HEAD^{tree}".to_owned()])?.pop().flatten();
    // What is told is what HEAD makes of it; the tree that it was made with is the caller's, and no work either.
    let head = head.map(|(id, _)| repo.parse_id(&id)).transpose()?;
    let mut trees: Vec<ObjectId> = head.into_iter().chain([*held.tree]).collect();
    trees.dedup();
    let mut listed = Vec::with_capacity(trees.len());
    for tree in trees {
        listed.push((tree, repo.list_tree(&tree)?));
    }
    refuse_staged(&repo, &listed)?;
    repo.place.worktree = Some(at.worktree.clone());
    repo.place.index = Some(pins.of_repository(held.pin.common.path.as_bytes(), "index"));
    let files = refuse_files(&repo, &at, &listed);
    pins.sweep(&found.common)?;
    files
}

fn refused(why: &str, reason: &str, names: Vec<String>) -> Error {
    Refusal::new(Code::PreconditionFailed, why)
        .reason(reason)
        .names(names.into_iter().take(NAMED))
        .into()
}

/// Judges what lies in the git directory; gives the objects that it names.
fn of_the_state(dir: &Path, state: &Looked) -> Result<Tips> {
    let mut tips = Tips::new();
    let (mut operations, mut unknown, mut logs) = (BTreeSet::new(), state.closed.clone(), Vec::new());
    for (path, kind) in &state.entries {
        let name = path.as_os_str().as_bytes();
        let whole = dir.join(path);
        let entry = gitdir::judge(name);
        match entry {
            Entry::Plain => {}
            Entry::Operation => {
                let top = name.split(|b| *b == b'/').next().unwrap_or_default();
                operations.insert(shown(top));
            }
            Entry::Submodules => {
                let why = "the worktree has repositories of submodules in its git directory";
                return Err(refused(
                    why,
                    "submodules",
                    vec![shown(whole.as_os_str().as_bytes())],
                ));
            }
            Entry::Lock => return Err(works_in(&whole)),
            Entry::Log if *kind == FileType::Directory => {}
            Entry::Log | Entry::Tips if *kind == FileType::RegularFile => {
                logs.push((entry, whole, shown(name)))
            }
            Entry::Log | Entry::Tips | Entry::Unknown => unknown.push(shown(whole.as_os_str().as_bytes())),
        }
    }
    if !operations.is_empty() {
        let why = "an operation of git is under way in the worktree";
        return Err(refused(
            why,
            "operation_in_progress",
            operations.into_iter().collect(),
        ));
    }
    for (entry, place, name) in logs {
        let text = read(&place)?;
        match gitdir::ids(entry, &text) {
            Some(ids) => tips.extend(ids.into_iter().map(|id| (id.to_owned(), name.clone()))),
            None => unknown.push(shown(place.as_os_str().as_bytes())),
        }
    }
    if unknown.is_empty() {
        return Ok(tips);
    }
    let why = "the git directory holds something that git does not put there, or that cannot be read";
    Err(refused(why, "dirty_worktree", unknown))
}

/// Reads a plain file whole; what is none waits for nobody.
fn read(place: &Path) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| Error::io("read", place, e);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(CWD, place, flags, FileMode::empty()).map_err(|e| Error::io("open", place, e))?;
    let file = std::fs::File::from(file);
    let mut bytes = Vec::new();
    let plain = file.metadata().map_err(failed)?.is_file();
    if plain {
        file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    }
    if plain && bytes.len() as u64 <= LARGEST {
        return Ok(bytes);
    }
    let why = "not a plain file, or too large a one";
    Err(refused(
        why,
        "dirty_worktree",
        vec![shown(place.as_os_str().as_bytes())],
    ))
}

/// Refuses commits and other objects that only this worktree names.
fn refuse_unreachable(repo: &Repository, made: &ObjectId, tips: &mut Tips) -> Result<()> {
    let format = "--format=%(objectname) %(refname)";
    let mut own = vec!["for-each-ref", format];
    own.extend(OWN_REFS);
    for line in repo.run(repo.call(own))?.split(|b| *b == b'\n') {
        if let Some((id, name)) = shown(line).split_once(' ') {
            tips.insert(id.to_owned(), name.to_owned());
        }
    }
    // Where references are no files, neither are their logs.
    if repo
        .config()
        .get("extensions.refstorage")
        .is_some_and(|kind| kind != b"files")
    {
        let log = ["rev-list", "--walk-reflogs", "HEAD"];
        let ids = repo.run(repo.call(log))?;
        tips.extend(lines(&ids).map(|id| (id, "logs/HEAD".to_owned())));
    }
    let mut asked: Vec<String> = tips.keys().cloned().collect();
    let roots = [
        "HEAD",
        "ORIG_HEAD",
        "CHERRY_PICK_HEAD",
        "REVERT_HEAD",
        "BISECT_HEAD",
        "REBASE_HEAD",
    ];
    asked.extend(roots.map(str::to_owned));
    let (mut commits, mut others) = (Tips::new(), Tips::new());
    for (name, answer) in asked.iter().zip(resolve(repo, &asked)?) {
        // What is not there cannot be lost.
        let Some((id, kind)) = answer else { continue };
        let by = tips.get(name).unwrap_or(name).clone();
        let kept = if kind == "commit" {
            &mut commits
        } else {
            &mut others
        };
        kept.insert(id, by);
    }
    let exclude = OWN_REFS.map(|dir| format!("--exclude={dir}/*"));
    let mut args = vec![
        "rev-list".to_owned(),
        format!("--max-count={NAMED}"),
        "--stdin".to_owned(),
    ];
    args.extend(["--not".to_owned(), made.to_string()]);
    args.extend(exclude);
    args.push("--glob=refs/*".to_owned());
    let mut call = repo.call(args).stdin(joined(commits.keys()));
    // A graft in the repository must not make anything reachable.
    call.env.push(("GIT_GRAFT_FILE", "/dev/null".into()));
    let beyond = match commits.is_empty() {
        true => Vec::new(),
        false => lines(&repo.run(call)?).collect(),
    };
    if !beyond.is_empty() {
        let by: BTreeSet<&String> = commits
            .iter()
            .filter(|(id, _)| beyond.contains(id))
            .map(|(_, by)| by)
            .collect();
        let by = by.into_iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        let why = format!("the worktree holds commits that no branch or tag reaches: of {by}");
        return Err(refused(&why, "unreachable_commits", beyond));
    }
    refuse_nowhere_else(repo, others)
}

/// Refuses objects that are no commits, unless a shared reference names the same.
fn refuse_nowhere_else(repo: &Repository, mut others: Tips) -> Result<()> {
    if others.is_empty() {
        return Ok(());
    }
    let all = repo.run(repo.call(["for-each-ref", "--format=%(objectname) %(refname)"]))?;
    for line in lines(&all) {
        if let Some((id, name)) = line.split_once(' ')
            && !OWN_REFS.iter().any(|dir| name.starts_with(&format!("{dir}/")))
        {
            others.remove(id);
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    let names = others
        .into_iter()
        .map(|(id, by)| format!("{id} ({by})"))
        .collect();
    let why = "the worktree names objects that no branch or tag names";
    Err(refused(why, "unreachable_commits", names))
}

/// Asks what each name is: its id and type, where it is there.
fn resolve(repo: &Repository, names: &[String]) -> Result<Vec<Option<(String, String)>>> {
    let call = repo.call(["cat-file", "--batch-check"]).stdin(joined(names));
    let said = repo.batch(call)?;
    let answers: Vec<_> = lines(&said)
        .map(|line| {
            let mut words = line.split(' ');
            let (id, kind) = (words.next()?.to_owned(), words.next()?.to_owned());
            let there = words.next().is_some() && matches!(id.len(), 40 | 64);
            there.then_some((id, kind))
        })
        .collect();
    if answers.len() == names.len() {
        return Ok(answers);
    }
    Err(Refusal::new(
        Code::GitFailed,
        "git answered another number of lines than were asked",
    )
    .into())
}

fn joined<'a>(all: impl IntoIterator<Item = &'a String>) -> Vec<u8> {
    all.into_iter()
        .flat_map(|line| [line.as_bytes(), b"\n"].concat())
        .collect()
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = String> {
    let whole = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    whole.map(|line| String::from_utf8_lossy(line).into_owned())
}

/// Entries by path: mode and id, and the stage.
type Staged = BTreeMap<Vec<u8>, Vec<u8>>;

/// Reads what the worktree's own index holds, whatever flags are set there.
fn staged(repo: &Repository) -> Result<Staged> {
    let said = repo.run(repo.call(["ls-files", "--stage", "-z"]))?;
    let mut staged = Staged::new();
    for entry in said.split(|b| *b == 0) {
        if let Some(tab) = entry.iter().position(|b| *b == b'\t') {
            // A conflict has several entries of one path.
            let all: &mut Vec<u8> = staged.entry(entry[tab + 1..].to_vec()).or_default();
            all.extend_from_slice(&entry[..tab]);
        }
    }
    Ok(staged)
}

/// Refuses what is staged and is neither of HEAD nor of the tree that it was made with.
fn refuse_staged(repo: &Repository, listed: &[(ObjectId, Vec<Leaf>)]) -> Result<()> {
    let staged = staged(repo)?;
    let mut all = listed.iter().map(|(_, leaves)| unlike(&staged, leaves));
    let changed = all.next().unwrap_or_default();
    if changed.is_empty() || all.any(|changed| changed.is_empty()) {
        return Ok(());
    }
    let why = "what is staged is neither of HEAD nor of the tree that it was made with";
    Err(refused(why, "dirty_worktree", changed))
}

/// Lists the paths at which an index holds something else than a tree.
fn unlike(staged: &Staged, leaves: &[Leaf]) -> Vec<String> {
    let of_tree = |leaf: &Leaf| {
        let mode = match leaf.mode {
            Mode::File => "100644",
            Mode::Executable => "100755",
            Mode::Symlink => "120000",
            Mode::Gitlink => "160000",
        };
        (
            leaf.path.as_bytes().to_vec(),
            format!("{mode} {} 0", leaf.id).into_bytes(),
        )
    };
    let tree: Staged = leaves.iter().map(of_tree).collect();
    let differ = |path: &&Vec<u8>| staged.get(*path) != tree.get(*path);
    let all: BTreeSet<&Vec<u8>> = staged.keys().chain(tree.keys()).filter(differ).collect();
    all.into_iter().take(NAMED).map(|path| shown(path)).collect()
}

/// Refuses files that no tree holds; counts those that git ignores.
fn refuse_files(repo: &Repository, at: &Checked, listed: &[(ObjectId, Vec<Leaf>)]) -> Result<u64> {
    let mut first = None;
    for (tree, leaves) in listed {
        match lost_against(repo, at, tree, leaves)? {
            None => {
                first = None;
                break;
            }
            lost => first = first.or(lost),
        }
    }
    if let Some(lost) = first {
        return Err(lost);
    }
    let ignored = ["ls-files", "-z", "--others", "--ignored", "--exclude-standard"];
    let ignored = repo.run(repo.call(ignored))?;
    Ok(ignored.iter().filter(|b| **b == 0).count() as u64)
}

/// Says what would be lost if this tree alone were kept: files that differ from it, and files that git neither tracks
/// nor ignores.
fn lost_against(repo: &Repository, at: &Checked, tree: &ObjectId, leaves: &[Leaf]) -> Result<Option<Error>> {
    let full = submodules(at, leaves)?;
    if !full.is_empty() {
        return Ok(Some(refused("the worktree holds submodules", "submodules", full)));
    }
    repo.run(repo.call(["read-tree", &tree.to_string()]))?;
    let differ = [
        "diff",
        "--name-only",
        "-z",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--ignore-submodules=dirty",
    ];
    let mut names = repo.run(repo.call(differ))?;
    let others = [
        "ls-files",
        "-z",
        "--others",
        "--exclude-standard",
        "--directory",
        "--no-empty-directory",
    ];
    names.extend(repo.run(repo.call(others))?);
    let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
    let mut names: Vec<String> = names.take(NAMED).map(shown).collect();
    if names.is_empty() {
        names = hidden(repo, at, leaves)?;
    }
    let why = "the worktree holds work that would be lost";
    Ok((!names.is_empty()).then(|| refused(why, "dirty_worktree", names)))
}

/// Lists files whose bytes differ though git says that they do not: attributes convert them on their way to the
/// comparison. Another end of line alone is no work.
fn hidden(repo: &Repository, at: &Checked, leaves: &[Leaf]) -> Result<Vec<String>> {
    let mut cursor = Cursor::new(at.root.as_fd());
    let mut names = Vec::new();
    for leaf in leaves.iter().filter(|leaf| leaf.mode != Mode::Gitlink) {
        if seen(&mut cursor, &leaf.path, repo.format())? == Seen::Leaf(leaf.mode, leaf.id) {
            continue;
        }
        let same = whole(&mut cursor, &leaf.path)?.is_some_and(|(mode, bytes)| {
            let text = lf_alone(&bytes);
            mode == leaf.mode && object_id(repo.format(), Kind::Blob, &text).is_ok_and(|id| id == leaf.id)
        });
        if same {
            continue;
        }
        names.push(leaf.path.to_string());
        if names.len() == NAMED {
            break;
        }
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

/// Lists submodules that are checked out, which git does not remove either, and whatever else lies where one belongs.
fn submodules(at: &Checked, leaves: &[Leaf]) -> Result<Vec<String>> {
    let mut full = Vec::new();
    for leaf in leaves.iter().filter(|leaf| leaf.mode == Mode::Gitlink) {
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
