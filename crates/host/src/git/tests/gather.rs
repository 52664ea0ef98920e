//! What is gathered: by one git, whatever the repository says of itself; and what was not, as anybody reads it.

use super::{Lab, cancel, executable, gits};
use crate::git::{Gathered, Git};
use semel_core::git_tree::{Mode, ObjectId};
use semel_core::{Code, RelPath};
use std::path::PathBuf;

/// A directory with a `git` that counts how often it is started.
struct Counting {
    dir: tempfile::TempDir,
}

impl Counting {
    fn new(git: &Git) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "#!/bin/sh\necho \"$1\" >> '{}'\nexec '{}' \"$@\"\n",
            dir.path().join("started").display(),
            git.program().display()
        );
        executable(&dir.path().join("git"), &script);
        Self { dir }
    }

    fn dirs(&self) -> Vec<PathBuf> {
        vec![self.dir.path().to_owned()]
    }

    /// Gives what was started since the last time.
    fn started(&self) -> Vec<String> {
        let place = self.dir.path().join("started");
        let text = std::fs::read_to_string(&place).unwrap_or_default();
        std::fs::remove_file(&place).ok();
        text.lines().map(str::to_owned).collect()
    }
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn id(text: &str) -> ObjectId {
    ObjectId::parse(text).unwrap()
}

#[test]
fn one_git_gives_all_that_is_likely_to_be_read() {
    for git in gits() {
        let (lab, count) = (Lab::new(&git), Counting::new(&git));
        lab.write("r/uv.lock", "locked\n");
        lab.write("r/.semel/gate.toml", "[gate]\n");
        let base = lab.commit("r", "base");
        lab.write("r/other", "more\n");
        let commit = lab.commit("r", "more");
        // Neither a configuration that no git can read nor what it would run is met.
        lab.write("r/.git/config", "[core\n\tfsmonitor = touch /tmp/met\n");
        let (dirs, at, cancel) = (count.dirs(), lab.path("r"), cancel());
        let wanted = [
            (id(&commit), vec![path("uv.lock"), path("poetry.lock")]),
            (id(&base), vec![path(".semel/gate.toml")]),
        ];
        let all = Gathered::of(&dirs, &at, &wanted, &cancel).unwrap();
        let tree = all.commit(&id(&commit)).unwrap().tree;
        let names: Vec<Vec<u8>> = all.tree(&tree).unwrap().into_iter().map(|e| e.name).collect();
        assert_eq!(
            names,
            [b".semel".to_vec(), b"other".to_vec(), b"uv.lock".to_vec()]
        );
        assert_eq!(
            all.blob_at(&tree, &path("uv.lock")).unwrap(),
            (Mode::File, b"locked\n".to_vec())
        );
        let policy = all.commit(&id(&base)).unwrap().tree;
        assert_eq!(
            all.blob_at(&policy, &path(".semel/gate.toml")).unwrap().1,
            b"[gate]\n"
        );
        assert_eq!(
            all.blob_at(&tree, &path("poetry.lock")).unwrap_err().code(),
            Code::NotFound
        );
        assert_eq!(count.started(), ["cat-file"]);
        // What was not gathered is read with the repository's own configuration.
        assert_eq!(
            all.blob_at(&tree, &path("other")).unwrap_err().code(),
            Code::GitFailed
        );
        assert_eq!(all.common_dir(), lab.path("r/.git"));
    }
}

#[test]
fn what_was_not_gathered_is_read_all_the_same() {
    for git in gits() {
        let (lab, count) = (Lab::new(&git), Counting::new(&git));
        lab.write("r/a", "one\n");
        lab.write("r/dir/b", "two\n");
        let commit = lab.commit("r", "one");
        let (dirs, at, cancel) = (count.dirs(), lab.path("r"), cancel());
        let none = Gathered::of(&dirs, &at, &[], &cancel).unwrap();
        assert!(count.started().is_empty());
        let tree = none.commit(&id(&commit)).unwrap().tree;
        assert_eq!(none.blob_at(&tree, &path("dir/b")).unwrap().1, b"two\n");
        assert!(count.started().len() > 1);
        let wanted = [(id(&commit), Vec::new())];
        let some = Gathered::of(&dirs, &at, &wanted, &cancel).unwrap();
        let tree = some.commit(&id(&commit)).unwrap().tree;
        assert_eq!(count.started(), ["cat-file"]);
        assert_eq!(some.blob_at(&tree, &path("a")).unwrap().1, b"one\n");
        // A commit that is missing, one of another object format, and what is no commit.
        for (commit, code) in [
            (id(&"1".repeat(40)), Code::ObjectMissing),
            (id(&"1".repeat(64)), Code::BadInput),
            (tree, Code::BadInput),
        ] {
            let wanted = [(commit, vec![path("a")])];
            let all = Gathered::of(&dirs, &at, &wanted, &cancel).unwrap();
            assert_eq!(all.commit(&commit).unwrap_err().code(), code, "{commit}");
        }
    }
}

#[test]
fn an_exchanged_object_is_not_gathered() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (commit, _) = lab.exchange();
        let dirs = [git.program().parent().unwrap().to_owned()];
        let (at, cancel) = (lab.path("r"), cancel());
        let wanted = [(id(&commit), vec![path("a"), path("b")])];
        let all = Gathered::of(&dirs, &at, &wanted, &cancel).unwrap();
        let tree = all.commit(&id(&commit)).unwrap().tree;
        assert!(all.blob_at(&tree, &path("b")).is_ok());
        let refused = all.blob_at(&tree, &path("a")).unwrap_err();
        assert_eq!(refused.code(), Code::TreeMismatch);
    }
}

#[test]
fn where_there_is_nothing_to_gather_from_is_told() {
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    let dirs = [git.program().parent().unwrap().to_owned()];
    let cancel = cancel();
    lab.write("plain/file", "");
    let refused = |dirs: &[PathBuf], at: &str| {
        let at = lab.path(at);
        Gathered::of(dirs, &at, &[], &cancel)
            .map(drop)
            .unwrap_err()
            .code()
    };
    assert_eq!(refused(&dirs, "nowhere"), Code::NotFound);
    assert_eq!(refused(&dirs, "plain"), Code::BadInput);
    assert_eq!(refused(&[], "r"), Code::NotFound);
    std::fs::create_dir(lab.path("linked")).unwrap();
    std::os::unix::fs::symlink(lab.path("r/.git"), lab.path("linked/.git")).unwrap();
    assert_eq!(refused(&dirs, "linked"), Code::WorktreeRedirected);
}

/// What is looked at is the file that was opened, whatever its name is given to meanwhile.
#[test]
fn a_file_is_judged_by_its_handle() {
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    lab.write("r/policy", "of the tree\n");
    let commit = id(&lab.commit("r", "policy"));
    let (dirs, cancel) = ([git.program().parent().unwrap().to_owned()], cancel());
    let at = lab.path("r");
    let all = Gathered::of(&dirs, &at, &[], &cancel).unwrap();
    let tree = all.commit(&commit).unwrap().tree;
    let held = |file: &std::fs::File| all.checks_out(file, &commit, &tree).unwrap();
    let open = |name: &str| std::fs::File::open(lab.path(name)).unwrap();
    lab.write("host/policy", "of the host\n");
    let host = open("host/policy");
    assert_eq!(held(&host), None);
    // By a link to what lies in the worktree, which leads elsewhere by the time that it is looked at.
    std::os::unix::fs::symlink(lab.path("r/policy"), lab.path("link")).unwrap();
    let linked = open("link");
    std::fs::remove_file(lab.path("link")).unwrap();
    std::os::unix::fs::symlink(lab.path("host/policy"), lab.path("link")).unwrap();
    assert!(held(&linked).unwrap().contains("worktree"));
    // One whose name is another file's by now, or nobody's, may have lain anywhere.
    lab.write("other", "");
    std::fs::rename(lab.path("other"), lab.path("host/policy")).unwrap();
    assert!(held(&host).unwrap().contains("no name"));
    std::fs::hard_link(lab.path("host/policy"), lab.path("r/second")).unwrap();
    assert!(held(&open("host/policy")).unwrap().contains("hard link"));
}
