//! References that are kept in tables: read, and the table of a new worktree made, by a git that sees a directory of ours.
//!
//! Tables are never changed once they are written, so it is enough to show git which ones there are: each is opened by us,
//! a plain file, and a link in the private directory leads to the open file.

use super::refs::{Refs, is_own};
use crate::error::{Error, Result};
use crate::git::repository::Repository;
use crate::git::settings::{plain_at, plain_bytes, plain_file};
use crate::git::view::{View, configuration};
use crate::git::worktree::{Checked, path_of, redirected};
use crate::git::{Call, Place, brief};
use rustix::fs::CWD;
use semel_core::git_tree::{ObjectFormat, ObjectId};
use semel_core::path::shown;
use semel_core::{Code, Refusal};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

const LIST: &str = "tables.list";
/// The largest list of tables, and how many tables; git keeps them few.
const LONGEST: u64 = 64 << 10;
const MOST: usize = 256;
/// How often tables are looked for anew where they were replaced meanwhile.
const TRIES: usize = 16;
/// The git directory of the worktree in the private one.
const WORKTREE: &str = "worktree";
/// What stands in the place of HEAD.
pub(super) const STUB: &[u8] = b"ref: refs/heads/.invalid\n";

/// A private git directory of ours that has the references of a repository.
struct Mirror<'a> {
    repo: &'a Repository,
    view: View,
    tables: Vec<Arc<OwnedFd>>,
}

/// Reads the references that a worktree sees, and what the log of its HEAD names.
pub(super) fn read(repo: &Repository, at: &Checked) -> Result<Refs> {
    let mut mirror = Mirror::empty(repo, "")?;
    mirror.directory(WORKTREE)?;
    mirror.view.put(&format!("{WORKTREE}/HEAD"), STUB)?;
    mirror.view.put(&format!("{WORKTREE}/commondir"), b"..\n")?;
    mirror.show(&repo.common_dir().join("reftable"), "")?;
    mirror.show(&at.gitdir.join("reftable"), &format!("{WORKTREE}/"))?;
    let mut refs = Refs::default();
    let format = "--format=%(objectname) %(refname)";
    let listed = mirror.run(WORKTREE, &["for-each-ref", "--include-root-refs", format])?;
    for line in listed.split(|b| *b == b'\n') {
        let Some(space) = line.iter().position(|b| *b == b' ') else {
            continue;
        };
        let (id, name) = (&line[..space], &line[space + 1..]);
        let id = repo.parse_id(&String::from_utf8_lossy(id))?;
        if name == b"HEAD" {
            refs.head = Some(id);
        } else if name.starts_with(b"refs/") && !is_own(name) {
            refs.shared.insert(id);
        } else {
            refs.own.insert(id.to_string(), shown(name));
        }
    }
    let log = mirror.run(WORKTREE, &["rev-list", "--walk-reflogs", "HEAD"])?;
    for id in log.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        refs.own
            .insert(String::from_utf8_lossy(id).into_owned(), "logs/HEAD".to_owned());
    }
    Ok(refs)
}

/// Makes the tables of a worktree whose HEAD is detached at a commit: the names of the files, and what is in each.
pub(super) fn head_alone(repo: &Repository, commit: &ObjectId) -> Result<Vec<(String, Vec<u8>)>> {
    let mirror = Mirror::empty(repo, "[core]\n\tlogAllRefUpdates = false\n")?;
    mirror.run("", &["update-ref", "--no-deref", "HEAD", &commit.to_string()])?;
    let dir = mirror.view.path().join("reftable");
    let read = |name: &str| {
        plain_file(&dir.join(name))?.ok_or_else(|| {
            Error::from(Refusal::new(Code::GitFailed, "git made no table of references").name(name))
        })
    };
    let list = read(LIST)?;
    let mut files = Vec::new();
    for name in String::from_utf8_lossy(&list).lines() {
        files.push((name.to_owned(), read(name)?));
    }
    // Last, so that no table is named that is not there yet.
    files.push((LIST.to_owned(), list));
    Ok(files)
}

impl<'a> Mirror<'a> {
    fn empty(repo: &'a Repository, further: &str) -> Result<Self> {
        let view = View::new(repo.format())?;
        let mut text = configuration(repo.format());
        if repo.format() == ObjectFormat::Sha1 {
            text.push_str("[core]\n\trepositoryformatversion = 1\n");
        }
        text.push_str("[extensions]\n\trefStorage = reftable\n");
        text.push_str(further);
        view.put("config", text.as_bytes())?;
        let mirror = Self {
            repo,
            view,
            tables: Vec::new(),
        };
        mirror.directory("reftable")?;
        Ok(mirror)
    }

    fn directory(&self, name: &str) -> Result<()> {
        let place = self.view.path().join(name);
        std::fs::create_dir(&place).map_err(|e| Error::io("create", place, e))
    }

    /// Shows git the tables that lie in a directory; `below` says where in the private one.
    fn show(&mut self, dir: &Path, below: &str) -> Result<()> {
        if !below.is_empty() {
            self.directory(&format!("{below}reftable"))?;
        }
        let place = dir.join(LIST);
        for _ in 0..TRIES {
            let Some(list) = plain_bytes(CWD, &place, &place, LONGEST)? else {
                return Ok(());
            };
            let names: Vec<&[u8]> = list.split(|b| *b == b'\n').filter(|n| !n.is_empty()).collect();
            let odd = |name: &&[u8]| name.contains(&b'/') || name.contains(&0) || name.starts_with(b".");
            if names.len() > MOST || names.iter().any(odd) {
                return Err(redirected("not a list of tables of references", &place));
            }
            let opened: Result<Option<Vec<OwnedFd>>> = names
                .iter()
                .map(|name| plain_at(CWD, &dir.join(path_of(name)), &dir.join(path_of(name))))
                .collect();
            // One that is gone was replaced: the list says by what.
            let Some(opened) = opened? else { continue };
            for (name, table) in names.iter().zip(opened) {
                let link = self
                    .view
                    .path()
                    .join(format!("{below}reftable"))
                    .join(path_of(name));
                std::os::unix::fs::symlink(format!("/proc/self/fd/{}", table.as_raw_fd()), &link)
                    .map_err(|e| Error::io("link", link, e))?;
                self.tables.push(Arc::new(table));
            }
            return self.view.put(&format!("{below}reftable/{LIST}"), &list);
        }
        let why = "the tables of references are replaced again and again";
        let refusal = Refusal::new(Code::LockTimeout, why).reason("worktrees_busy");
        Err(refusal.name(shown(place.as_os_str().as_encoded_bytes())).into())
    }

    /// Runs git in the private directory, or in that of the worktree in it.
    fn run(&self, below: &str, args: &[&str]) -> Result<Vec<u8>> {
        let common = self.view.path().to_owned();
        let place = Place {
            gitdir: common.join(below),
            common,
            ..Place::nowhere()
        };
        let mut call = Call::new(args.iter().copied(), self.repo.cancel());
        let objects = self.repo.common_dir().join("objects");
        call.env.push(("GIT_OBJECT_DIRECTORY", objects.into_os_string()));
        call.keep = self.tables.clone();
        call.keep.push(self.view.handle());
        self.repo.git().run(&place, brief(call))
    }
}
