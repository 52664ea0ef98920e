//! The cases of git's index lock, by `semel restore`.

use crate::harness::{Home, git, git_command, said, wait_until};
use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::Duration;

/// A repository with a linked worktree that somebody changed.
struct Scene {
    home: Home,
    worktree: PathBuf,
    tree: String,
    lock: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let home = Home::new();
        let repository = home.path().join("repository");
        std::fs::create_dir(&repository).unwrap();
        git(&repository, &["init", "-q", "-b", "main"]);
        for name in ["a", "b", "c"] {
            std::fs::write(repository.join(name), format!("old {name}\n")).unwrap();
        }
        std::fs::write(repository.join(".gitignore"), ".venv/\n").unwrap();
        git(&repository, &["add", "-A"]);
        git(&repository, &["commit", "-q", "-m", "old"]);
        let worktree = home.path().join("worktree");
        let place = worktree.to_str().unwrap();
        git(&repository, &["worktree", "add", "-q", place, "-b", "agent"]);
        let index = ["rev-parse", "--path-format=absolute", "--git-path", "index"];
        let lock = PathBuf::from(format!("{}.lock", git(&worktree, &index)));
        let tree = git(&worktree, &["rev-parse", "HEAD^{tree}"]);
        std::fs::write(worktree.join("a"), "changed\n").unwrap();
        Self {
            home,
            worktree,
            tree,
            lock,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let place = self.worktree.to_str().unwrap();
        let fixed = ["restore", "--json", "--worktree", place, "--tree", &self.tree];
        self.home.command(&[&fixed, args].concat())
    }

    fn restored(&self, mut command: Command) -> Value {
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", said(&out));
        for name in ["a", "b", "c"] {
            assert_eq!(self.content(name), format!("old {name}\n"));
        }
        assert!(!self.lock.exists());
        answer(&out)["outcome"].clone()
    }

    fn refused(&self, args: &[&str], exit: i32, code: &str) -> Value {
        let out = self.command(args).output().unwrap();
        assert_eq!(out.status.code(), Some(exit), "{}", said(&out));
        let refusal = answer(&out);
        assert_eq!(refusal["code"], code);
        refusal
    }

    fn content(&self, name: &str) -> String {
        std::fs::read_to_string(self.worktree.join(name)).unwrap()
    }

    /// Holds the lock for a while, as a short-lived git does.
    fn held(&self, time: Duration) -> std::thread::JoinHandle<()> {
        std::fs::write(&self.lock, "").unwrap();
        let lock = self.lock.clone();
        std::thread::spawn(move || {
            std::thread::sleep(time);
            std::fs::remove_file(lock).unwrap();
        })
    }

    /// Starts a `git commit -a` that waits in its editor until `go` is there.
    fn committing(&self) -> Child {
        let editor = self.home.path().join("editor");
        let go = self.home.path().join("go");
        let wait = format!(
            "#!/bin/sh\nfor i in $(seq 600); do [ -e '{}' ] && break; sleep 0.1; done\necho message > \"$1\"\n",
            go.display()
        );
        crate::harness::executable(&editor, &wait);
        let mut commit = git_command(&self.worktree, &["commit", "-q", "-a"]);
        let child = commit.env("GIT_EDITOR", &editor).spawn().unwrap();
        assert!(wait_until(Duration::from_secs(10), || self.lock.exists()));
        child
    }
}

fn answer(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn c01_a_held_lock_is_waited_for_and_above_the_bound_nothing_is_changed() {
    let scene = Scene::new();
    let holder = scene.held(Duration::from_millis(250));
    let outcome = scene.restored(scene.command(&[]));
    holder.join().unwrap();
    let waited = outcome["counts"]["waited_ms"].as_u64().unwrap();
    assert!(waited > 0 && outcome["counts"]["collisions"] != 0, "{outcome}");
    std::fs::write(scene.worktree.join("a"), "changed\n").unwrap();
    std::fs::write(&scene.lock, "mine").unwrap();
    scene.refused(&["--wait", "1s"], 40, "lock_timeout");
    assert_eq!(scene.content("a"), "changed\n");
    assert_eq!(std::fs::read(&scene.lock).unwrap(), b"mine");
}

#[test]
fn c02_the_lock_of_a_killed_git_is_adopted_in_place() {
    let scene = Scene::new();
    git(&scene.worktree, &["config", "filter.slow.clean", "sleep 3"]);
    std::fs::write(scene.worktree.join(".gitattributes"), "big filter=slow\n").unwrap();
    std::fs::write(scene.worktree.join("big"), "x").unwrap();
    let mut adding = git_command(&scene.worktree, &["add", "big"]).spawn().unwrap();
    assert!(wait_until(Duration::from_secs(10), || scene.lock.exists()));
    adding.kill().unwrap();
    adding.wait().unwrap();
    let left = std::fs::metadata(&scene.lock).unwrap();
    for args in [
        &["--wait", "1s"][..],
        &["--wait", "3s", "--stale", "never", "--stale-grace", "1s"],
    ] {
        scene.refused(args, 40, "lock_timeout");
        let after = std::fs::metadata(&scene.lock).unwrap();
        assert_eq!((after.ino(), after.ctime_nsec()), (left.ino(), left.ctime_nsec()));
        assert_eq!(scene.content("a"), "changed\n");
    }
    if !crate::restoring::evidence_is_possible() {
        return;
    }
    let daemon = scene.home.serve_unix(&[]);
    let outcome = scene.restored(scene.command(&["--stale-grace", "1s"]));
    assert_eq!(
        (&outcome["counts"]["adopted"], &outcome["counts"]["recovered"]),
        (&json!(1), &json!(1)),
        "{outcome}"
    );
    let told = scene.home.lines(&["log"]);
    let told: Vec<&Value> = told
        .iter()
        .filter(|line| line["event"] == "worktree_restored")
        .collect();
    assert_eq!(told.len(), 1);
    assert!(
        told[0]["detail"].to_string().contains("1 adoptions"),
        "{}",
        told[0]
    );
    drop(daemon);
}

#[test]
fn c03_a_commit_in_its_editor_keeps_its_lock_and_succeeds() {
    let scene = Scene::new();
    let mut commit = scene.committing();
    scene.refused(&["--wait", "1s"], 40, "lock_timeout");
    assert!(scene.lock.exists(), "the lock of a living commit");
    assert!(commit.try_wait().unwrap().is_none());
    std::fs::write(scene.home.path().join("go"), "").unwrap();
    assert!(commit.wait().unwrap().success());
    assert_eq!(git(&scene.worktree, &["show", "HEAD:a"]), "changed");
    scene.restored(scene.command(&[]));
}

#[test]
fn c04_the_callers_language_decides_nothing() {
    let scene = Scene::new();
    for language in ["de", "fr", "tr"] {
        std::fs::write(scene.worktree.join("a"), "changed\n").unwrap();
        let holder = scene.held(Duration::from_millis(200));
        let mut command = scene.command(&[]);
        command.env("LC_ALL", "C.UTF-8").env("LANGUAGE", language);
        let outcome = scene.restored(command);
        holder.join().unwrap();
        assert_ne!(outcome["counts"]["collisions"], 0, "{language}: {outcome}");
    }
}

#[test]
fn c06_a_tree_that_cannot_be_read_in_full_changes_nothing() {
    let mut scene = Scene::new();
    let repository = scene.home.path().join("repository");
    for name in ["a", "b", "c"] {
        std::fs::write(repository.join(name), format!("new {name}\n")).unwrap();
    }
    git(&repository, &["commit", "-q", "-a", "-m", "new"]);
    scene.tree = git(&repository, &["rev-parse", "HEAD^{tree}"]);
    let missing = git(&repository, &["rev-parse", "HEAD:b"]);
    let (head, rest) = missing.split_at(2);
    std::fs::remove_file(repository.join(".git/objects").join(head).join(rest)).unwrap();
    let refusal = scene.refused(&[], 44, "object_missing");
    assert!(refusal["names"].to_string().contains(&missing), "{refusal}");
    assert_eq!(scene.content("a"), "changed\n");
    assert_eq!(scene.content("b"), "old b\n");
    assert!(!scene.lock.exists());
}

#[test]
fn c07_a_lock_that_changed_hands_is_not_taken() {
    let scene = Scene::new();
    std::fs::write(&scene.lock, "").unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    std::fs::File::options()
        .write(true)
        .open(&scene.lock)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
    let live = scene.lock.with_extension("live");
    std::fs::write(&live, "of a living git").unwrap();
    let ino = std::fs::metadata(&live).unwrap().ino();
    let lock = scene.lock.clone();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        std::fs::rename(live, lock).unwrap();
    });
    scene.refused(&["--wait", "1s"], 40, "lock_timeout");
    other.join().unwrap();
    assert_eq!(std::fs::metadata(&scene.lock).unwrap().ino(), ino);
    assert_eq!(std::fs::read(&scene.lock).unwrap(), b"of a living git");
    assert_eq!(scene.content("a"), "changed\n");
    // Its owner ends; what it leaves is a dead foreign lock, adopted as it stands.
    if !crate::restoring::evidence_is_possible() {
        return;
    }
    let outcome = scene.restored(scene.command(&["--stale-grace", "2s"]));
    assert_eq!(outcome["counts"]["recovered"], 1);
    assert!(
        outcome["counts"]["waited_ms"].as_u64().unwrap() >= 2_000,
        "{outcome}"
    );
}

#[test]
fn c09_what_is_no_plain_lock_is_refused_at_once_and_left_alone() {
    let scene = Scene::new();
    let victim = scene.home.path().join("victim");
    std::fs::write(&victim, "keep").unwrap();
    std::fs::create_dir(&scene.lock).unwrap();
    assert_eq!(scene.refused(&[], 41, "lock_unsafe")["reason"], "directory");
    std::fs::remove_dir(&scene.lock).unwrap();
    symlink(&victim, &scene.lock).unwrap();
    assert_eq!(scene.refused(&[], 41, "lock_unsafe")["reason"], "symlink");
    assert_eq!(std::fs::read_link(&scene.lock).unwrap(), victim);
    std::fs::remove_file(&scene.lock).unwrap();
    let made = Command::new("mkfifo").arg(&scene.lock).status().unwrap();
    assert!(made.success());
    assert_eq!(scene.refused(&[], 41, "lock_unsafe")["reason"], "special");
    assert!(scene.lock.exists());
    assert_eq!(std::fs::read(&victim).unwrap(), b"keep");
    assert_eq!(scene.content("a"), "changed\n");
}

#[test]
fn c09_a_lock_that_somebody_else_may_not_make_is_unsafe_whosever_it_is() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    let reachable = std::env::temp_dir().ancestors().all(|dir| {
        let mode = std::fs::metadata(dir).map(|m| m.mode()).unwrap_or_default();
        dir.as_os_str().is_empty() || mode & 0o1 != 0
    });
    if !crate::harness::is_root() || !reachable {
        crate::harness::skipped(
            "another user needs root, and a temporary directory that everybody can reach",
        );
        return;
    }
    let scene = Scene::new();
    let open = Command::new("chmod")
        .args(["-R", "a+rwX"])
        .arg(scene.home.path())
        .status()
        .unwrap();
    assert!(open.success());
    let gitdir = scene.lock.parent().unwrap();
    std::fs::set_permissions(gitdir, std::fs::Permissions::from_mode(0o555)).unwrap();
    let exe = scene.home.path().join("semel");
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_semel"))
        .arg(&exe)
        .status()
        .unwrap();
    assert!(copied.success());
    let mut command = Command::new(&exe);
    let by_owner = scene.command(&[]);
    command.args(by_owner.get_args()).env_clear().current_dir("/");
    command
        .envs(by_owner.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .uid(65_534)
        .gid(65_534);
    let out = command.output().unwrap();
    assert_eq!(out.status.code(), Some(41), "{}", said(&out));
    let refusal = answer(&out);
    assert_eq!(
        (&refusal["code"], &refusal["reason"]),
        (&json!("lock_unsafe"), &json!("denied"))
    );
    assert!(
        refusal["why"].to_string().contains("Permission denied"),
        "{refusal}"
    );
    assert!(!scene.lock.exists());
}

#[test]
fn c10_files_that_the_index_hides_are_restored_and_residue_is_named() {
    let scene = Scene::new();
    let (hook, ran) = (scene.home.path().join("hook"), scene.home.path().join("ran"));
    let text = format!("#!/bin/sh\ntouch '{}'\nprintf 't\\0'\n", ran.display());
    crate::harness::executable(&hook, &text);
    for args in [
        ["config", "core.fsmonitor", hook.to_str().unwrap()],
        ["config", "core.fsmonitorHookVersion", "2"],
        ["update-index", "--fsmonitor", "--refresh"],
        ["update-index", "--skip-worktree", "b"],
    ] {
        drop(git_command(&scene.worktree, &args).output().unwrap());
    }
    std::fs::remove_file(&ran).expect("the hook works");
    std::fs::write(scene.worktree.join("b"), "hidden\n").unwrap();
    std::fs::write(scene.worktree.join("c"), "hidden\n").unwrap();
    std::fs::create_dir(scene.worktree.join(".venv")).unwrap();
    std::fs::write(scene.worktree.join(".venv/x"), "x").unwrap();
    let outcome = scene.restored(scene.command(&[]));
    assert_eq!(outcome["residue"], json!([".venv"]));
    // Where nothing else may be there, it is refused by name, or removed.
    let left = scene.refused(&["--verify", "pristine"], 28, "tree_mismatch");
    assert_eq!(
        (&left["reason"], &left["names"]),
        (&json!("residue"), &json!([".venv"]))
    );
    let outcome = scene.restored(scene.command(&["--verify", "pristine", "--clean"]));
    assert_eq!(
        (&outcome["removed"], &outcome["residue"]),
        (&json!([".venv"]), &json!([]))
    );
    assert_eq!(outcome["verified"], "pristine");
    assert!(!scene.worktree.join(".venv").exists());
    assert!(!ran.exists(), "no command of the repository was run");
}
