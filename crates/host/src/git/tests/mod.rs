//! Tests with real git, every one found on this machine.

mod around;
mod contended;
mod deliver;
mod draft;
mod gather;
mod index;
mod line;
mod linked;
mod memo;
mod nested;
mod others;
mod pin;
mod removal;
mod removed;
mod restore;
mod select;
mod stale;
mod tidied;
mod view;

use super::*;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Output as Ran, Stdio};

/// Finds every git that the tests are run with.
pub(super) fn gits() -> Vec<Git> {
    let mut found: Vec<Git> = Vec::new();
    for dir in ["/usr/local/bin", "/usr/bin"] {
        if let Ok(git) = Git::find(&[PathBuf::from(dir)])
            && !found.iter().any(|g| g.program() == git.program())
        {
            found.push(git);
        }
    }
    // A further one, such as a git that was built from its source.
    if let Some(path) = std::env::var_os("SEMEL_TEST_GIT") {
        found.push(Git::at(Path::new(&path)).unwrap());
    }
    if found.len() < 2 {
        skipped("two versions of git are wanted, and one is here");
    }
    assert!(!found.is_empty(), "no git on this machine");
    found
}

/// Says that something could not be tested here, so that it is counted.
pub(super) fn skipped(why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {why}").unwrap();
}

/// Removes a directory and all that is in it.
pub(super) fn remove_all(path: &Path) {
    use std::os::fd::AsFd;
    use std::os::unix::ffi::OsStrExt;
    let parent = worktree::open_dir(path.parent().unwrap()).unwrap();
    let name = path.file_name().unwrap().as_bytes();
    let reaped = crate::volume::reaper::remove_tree(parent.as_fd(), name).unwrap();
    assert!(reaped.kept.is_empty(), "{reaped:?}");
}

pub(super) fn cancel() -> Cancel {
    Cancel::new().unwrap()
}

/// A directory that vanishes, with a repository `r` in it.
pub(super) struct Lab {
    pub(super) dir: tempfile::TempDir,
    pub(super) git: Git,
}

impl Lab {
    pub(super) fn new(git: &Git) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lab = Self {
            dir,
            git: git.clone(),
        };
        std::fs::create_dir(lab.path("r")).unwrap();
        lab.sh("r", &["init", "-q"]);
        lab
    }

    /// Commits two files, and gives the object of `a` the bytes of `b`'s: the commit, and where that object lies.
    pub(super) fn exchange(&self) -> (String, PathBuf) {
        use std::os::unix::fs::PermissionsExt as _;
        self.write("r/a", "one\n");
        self.write("r/b", "two\n");
        let commit = self.commit("r", "one");
        let loose = |name: &str| {
            let id = self.sh("r", &["rev-parse", &format!("HEAD:{name}")]);
            self.path(&format!("r/.git/objects/{}/{}", &id[..2], &id[2..]))
        };
        let (a, b) = (loose("a"), loose("b"));
        std::fs::set_permissions(&a, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::write(&a, std::fs::read(&b).unwrap()).unwrap();
        (commit, a)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        std::fs::canonicalize(self.dir.path()).unwrap().join(name)
    }

    pub(super) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(super) fn read(&self, name: &str) -> String {
        String::from_utf8(std::fs::read(self.path(name)).unwrap()).unwrap()
    }

    /// Makes a command of a person's git: identity set, no configuration of this machine.
    pub(super) fn command(&self, at: &str, args: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(self.git.program());
        command
            .current_dir(self.path(at))
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", "/nonexistent")
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .args([
                "-c",
                "user.name=t",
                "-c",
                "user.email=t@example.invalid",
                "-c",
                "init.defaultBranch=main",
            ])
            .args([
                "-c",
                "gc.auto=0",
                "-c",
                "safe.directory=*",
                "-c",
                "advice.detachedHead=false",
            ])
            .args(args)
            .stdin(Stdio::null());
        command
    }

    pub(super) fn try_sh(&self, at: &str, args: &[&str]) -> Ran {
        self.command(at, args).output().unwrap()
    }

    /// Runs a person's git, which has to succeed; gives its trimmed output.
    pub(super) fn sh(&self, at: &str, args: &[&str]) -> String {
        let ran = self.try_sh(at, args);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "git {args:?}: {said}");
        String::from_utf8_lossy(&ran.stdout).trim().to_owned()
    }

    pub(super) fn commit(&self, at: &str, message: &str) -> String {
        self.sh(at, &["add", "-A"]);
        self.sh(at, &["commit", "-q", "--allow-empty", "-m", message]);
        self.sh(at, &["rev-parse", "HEAD"])
    }

    /// Makes a linked worktree `wt` of a one-file repository; gives its tree and the place of its lock.
    pub(super) fn linked(&self) -> (String, PathBuf) {
        self.write("r/f", "one\n");
        self.commit("r", "one");
        self.sh("r", &["worktree", "add", "-q", "../wt", "-b", "w"]);
        self.place()
    }

    pub(super) fn place(&self) -> (String, PathBuf) {
        let index = self.sh(
            "wt",
            &["rev-parse", "--path-format=absolute", "--git-path", "index"],
        );
        let tree = self.sh("wt", &["rev-parse", "HEAD^{tree}"]);
        (tree, PathBuf::from(index + ".lock"))
    }
}

/// Ends a child that a test started.
pub(super) struct Ends(pub(super) Child);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

pub(super) fn executable(path: &Path, script: &str) {
    use std::io::Write;
    // Written by another process: a child that another test forks meanwhile would keep it open, and it could not run.
    let mut writer = std::process::Command::new("/bin/sh")
        .args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writer.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
}

/// Waits for something that another process does, so long that only what never happens is given up.
pub(super) fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..30_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("did not happen: {what}");
}

#[test]
fn git_is_found_once_and_named() {
    for git in gits() {
        assert!(git.program().is_absolute());
        assert!(git.version().starts_with("2."), "{}", git.version());
        assert_eq!(git.sha256(), Sha256::of(&std::fs::read(git.program()).unwrap()));
    }
    let none = tempfile::tempdir().unwrap();
    let error = Git::find(&[none.path().to_owned()]).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    executable(&none.path().join("git"), "#!/bin/sh\necho git version 1.8.3\n");
    let error = Git::find(&[none.path().to_owned()]).unwrap_err();
    assert_eq!(error.code(), Code::BadConfig);
}

#[test]
fn the_environment_is_closed_and_words_are_kept() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/f", "one\n");
        let commit = lab.commit("r", "one");
        lab.sh("r", &["config", "core.hooksPath", "/tmp/evil"]);
        let repo = Repository::open(&git, &lab.path("r"), &cancel()).unwrap();
        let said = repo
            .run(repo.call(["config", "--get-all", "core.hooksPath"]))
            .unwrap();
        assert_eq!(said, b"/tmp/evil\n/dev/null\n");
        assert_eq!(repo.config().get("core.hookspath"), Some(&b"/tmp/evil"[..]));
        let error = repo
            .run(repo.call(["rev-parse", "--verify", "nothing"]))
            .unwrap_err();
        let Error::Git(failure) = &error else {
            panic!("{error}")
        };
        assert_eq!(failure.exit, Some(128));
        assert_eq!(failure.stderr, b"fatal: Needed a single revision\n");
        assert_eq!(error.code(), Code::GitFailed);
        let id = repo.parse_id(&commit).unwrap();
        let read = repo.read_commit(&id).unwrap();
        assert_eq!(read.tree.to_string(), lab.sh("r", &["rev-parse", "HEAD^{tree}"]));
        let (mode, bytes) = repo
            .read_blob(&read.tree, &semel_core::RelPath::parse(b"f").unwrap())
            .unwrap();
        assert_eq!(
            (mode, bytes.as_slice()),
            (semel_core::git_tree::Mode::File, &b"one\n"[..])
        );
        let absent = repo.read_blob(&read.tree, &semel_core::RelPath::parse(b"f/g").unwrap());
        assert_eq!(absent.unwrap_err().code(), Code::NotFound);
        assert_eq!(repo.read_commit(&read.tree).unwrap_err().code(), Code::BadInput);
        let unknown = repo.parse_id(&"1".repeat(40)).unwrap();
        assert_eq!(
            repo.read_commit(&unknown).unwrap_err().code(),
            Code::ObjectMissing
        );
    }
}

#[test]
fn an_exchanged_object_is_seen() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (commit, a) = lab.exchange();
        let repo = Repository::open(&git, &lab.path("r"), &cancel()).unwrap();
        let tree = repo.read_commit(&repo.parse_id(&commit).unwrap()).unwrap().tree;
        let read = |name: &[u8]| repo.read_blob(&tree, &semel_core::RelPath::parse(name).unwrap());
        assert!(read(b"b").is_ok());
        assert_eq!(read(b"a").unwrap_err().code(), Code::TreeMismatch);
        std::fs::write(&a, b"x").unwrap();
        assert_eq!(read(b"a").unwrap_err().code(), Code::ObjectMissing);
    }
}

/// Every git child has a closed environment, in which it takes no lock only to look.
#[test]
fn a_git_child_takes_no_lock_only_to_look() {
    let dir = tempfile::tempdir().unwrap();
    let seen = dir.path().join("seen");
    let script = format!("env > '{}'; echo git version 2.47.0", seen.display());
    let fake = dir.path().join("git");
    // Written by another process: a child that another test forks meanwhile would keep it open, and it could not run.
    let written = std::process::Command::new("/bin/sh")
        .args([
            "-c",
            "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"",
            "sh",
        ])
        .arg(&fake)
        .arg(script)
        .status();
    assert!(written.unwrap().success());
    Git::find(&[dir.path().to_owned()]).unwrap();
    let env = std::fs::read_to_string(seen).unwrap();
    assert!(env.lines().any(|line| line == "GIT_OPTIONAL_LOCKS=0"), "{env}");
    assert!(env.lines().any(|line| line == "LC_ALL=C"), "{env}");
}
