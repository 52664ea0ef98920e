//! A repository of one commit around a tree that came without one: for tools that ask git what they are part of.
//!
//! The repository lies elsewhere; in the tree is the one line that leads there. It says nothing of any history, and the
//! same tree has the same commit everywhere.

use super::{Call, Git, Place};
use crate::error::{Error, Result};
use crate::plain::hand_over;
use crate::process::Cancel;
use std::ffi::OsString;
use std::path::Path;

/// Whatever the tree's own attributes say, its bytes are what is committed.
const ATTRIBUTES: &str = "* -text -eol -ident -filter -working-tree-encoding\n";

const CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tautocrlf = false\n[gc]\n\tauto = 0\n\
    [maintenance]\n\tauto = false\n";

/// The first second of a year in which there was no git: nobody takes it for a true one.
const WHEN: &str = "946684800 +0000";

/// Gives the content of the one file in the tree.
#[must_use]
pub fn leads_to(gitdir: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt as _;
    [b"gitdir: ", gitdir.as_os_str().as_bytes(), b"\n"].concat()
}

/// Makes a repository whose one commit holds everything in a tree, ignored files too, and lets the tree lead to it.
///
/// # Errors
/// `io_failed` where something of it is there already or cannot be made; those of git.
pub fn one_commit(git: &Git, tree: &Path, gitdir: &Path, cancel: &Cancel) -> Result<()> {
    std::fs::create_dir(gitdir).map_err(|e| Error::io("create", gitdir, e))?;
    for name in ["objects/info", "objects/pack", "refs/heads", "refs/tags", "info"] {
        let dir = gitdir.join(name);
        std::fs::create_dir_all(&dir).map_err(|e| Error::io("create", &dir, e))?;
    }
    for (name, text) in [
        ("config", CONFIG),
        ("info/attributes", ATTRIBUTES),
        ("HEAD", "ref: refs/heads/main\n"),
    ] {
        let file = gitdir.join(name);
        std::fs::write(&file, text).map_err(|e| Error::io("write", &file, e))?;
    }
    let place = Place {
        worktree: Some(tree.to_owned()),
        index: Some(gitdir.join("index")),
        ..Place::of(gitdir.to_owned(), gitdir.to_owned())
    };
    git.run(&place, Call::new(["add", "--all", "--force", "."], cancel))?;
    let said = git.run(&place, Call::new(["write-tree"], cancel))?;
    let mut commit = Call::new(["commit-tree", "-m", "the tree that is certified"], cancel);
    commit.args.push(id(&said));
    for name in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"] {
        commit.env.push((name, "Semel".into()));
    }
    for name in ["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"] {
        commit.env.push((name, "semel@localhost".into()));
    }
    for name in ["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"] {
        commit.env.push((name, WHEN.into()));
    }
    let said = git.run(&place, commit)?;
    let mut branch = Call::new(["update-ref", "refs/heads/main"], cancel);
    branch.args.push(id(&said));
    git.run(&place, branch)?;
    let leads = tree.join(".git");
    let flags = std::fs::File::create_new(&leads);
    let mut file = flags.map_err(|e| Error::io("create", &leads, e))?;
    std::io::Write::write_all(&mut file, &leads_to(gitdir)).map_err(|e| Error::io("write", &leads, e))?;
    hand_over(&leads)
}

fn id(said: &[u8]) -> OsString {
    String::from_utf8_lossy(said.trim_ascii_end()).into_owned().into()
}
