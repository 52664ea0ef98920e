//! Locks of strangers: which are adopted in place, and which never are. The machine shared by all tests is not still,
//! so a grace here is short, and what decides is the evidence.

use super::restore::{code, no_residue, options};
use super::*;
use semel_core::restore::Stale;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Options with a grace of a tenth of a second.
pub(super) fn eager(wait_ms: u64) -> RestoreOptions {
    RestoreOptions {
        stale: Stale::Evidence {
            grace: Duration::from_millis(100),
        },
        ..options(wait_ms)
    }
}

pub(super) fn run(lab: &Lab, tree: &str, wait_ms: u64) -> std::result::Result<Outcome, Box<Failed>> {
    restore(&lab.git, &lab.path("wt"), tree, eager(wait_ms), &cancel())
}

/// Says whether this machine lets evidence be complete at all; says so where it does not.
pub(super) fn evidence_is_possible() -> bool {
    let initial = std::fs::metadata("/proc/self/ns/pid").is_ok_and(|m| m.ino() == 0xEFFF_FFFC);
    if initial && rustix::process::geteuid().is_root() {
        return true;
    }
    skipped("complete evidence needs root in the initial PID namespace");
    false
}

/// Makes a worktree of many files, all changed, so that git is at it for a while.
fn many(lab: &Lab) -> (String, PathBuf) {
    for n in 0..600 {
        lab.write(&format!("r/many/{n}"), format!("{n}\n"));
    }
    let found = lab.linked();
    for n in 0..600 {
        lab.write(&format!("wt/many/{n}"), "changed by the agent\n");
    }
    found
}

/// Starts a read-tree of a stranger, and gives it once it holds the lock.
fn reading(lab: &Lab, tree: &str, lock: &Path) -> Ends {
    let mut child = lab.command("wt", &["read-tree", "--reset", "-u", tree]);
    let child = Ends(child.spawn().unwrap());
    while !lock.exists() {
        std::thread::yield_now();
    }
    child
}

fn signal(child: &Ends, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(&child.0), signal).unwrap();
}

/// A git that was killed with -9 in the middle of a checkout.
#[test]
fn s06_the_lock_of_a_killed_git_is_adopted_in_place() {
    if !evidence_is_possible() {
        return;
    }
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = many(&lab);
        drop(reading(&lab, &tree, &lock));
        assert!(lock.exists(), "a killed git leaves its lock");
        let outcome = run(&lab, &tree, 60_000).unwrap();
        assert_eq!((outcome.counts.adopted, outcome.counts.recovered), (1, 1));
        assert!(outcome.counts.waited_ms >= 100, "{:?}", outcome.counts);
        assert_eq!(lab.read("wt/many/599"), "599\n");
        assert_eq!(lab.sh("wt", &["status", "--porcelain"]), "");
        assert!(!lock.exists());
        no_residue(&lock);
    }
}

/// With `never`, the same lock is waited for; nothing is changed.
#[test]
fn s06_never_means_never() {
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    let (tree, lock) = lab.linked();
    std::fs::write(&lock, b"").unwrap();
    let never = RestoreOptions {
        stale: Stale::Never,
        ..options(700)
    };
    let refused = restore(&git, &lab.path("wt"), &tree, never, &cancel());
    assert_eq!(code(refused), (Code::LockTimeout, Touched::Nothing));
    assert!(lock.exists());
}

/// Refuses, keeps the lock, and says whom it saw.
fn kept(lab: &Lab, tree: &str, lock: &Path, word: &str) {
    let before = std::fs::metadata(lock).unwrap();
    let failed = run(lab, tree, 1_500).unwrap_err();
    assert_eq!(failed.touched, Touched::Nothing);
    let refusal = failed.error.into_refusal();
    assert_eq!(refusal.code, Code::LockTimeout);
    assert!(refusal.why.contains(word), "{}", refusal.why);
    let after = std::fs::metadata(lock).unwrap();
    assert_eq!(
        (after.ino(), after.ctime(), after.ctime_nsec()),
        (before.ino(), before.ctime(), before.ctime_nsec())
    );
    no_residue(lock);
}

#[test]
fn s07_a_stopped_git_is_alive() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = many(&lab);
        let mut child = reading(&lab, &tree, &lock);
        signal(&child, rustix::process::Signal::STOP);
        if !lock.exists() {
            skipped("git was done before it could be stopped");
            continue;
        }
        let word = if evidence_is_possible() {
            "has it open"
        } else {
            "cannot be seen"
        };
        kept(&lab, &tree, &lock, word);
        signal(&child, rustix::process::Signal::CONT);
        assert!(child.0.wait().unwrap().success());
        assert!(!lock.exists());
    }
}

/// Starts a `commit -a` whose editor or hook waits for the file `go`; its lock is whole and open nowhere.
fn committing(lab: &Lab, lock: &Path, hook: Option<&Path>) -> Ends {
    let go = lab.path("go");
    let wait = format!(
        "#!/bin/sh\nwhile [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done\n",
        lab.path("wt").display(),
        go.display()
    );
    let mut commit = match hook {
        Some(hook) => {
            executable(hook, &wait);
            lab.command("wt", &["commit", "-qam", "two"])
        }
        None => {
            let editor = lab.path("ed");
            executable(&editor, &(wait + "echo msg > \"$1\"\n"));
            let mut commit = lab.command("wt", &["commit", "-qa"]);
            commit.env("GIT_EDITOR", &editor);
            commit
        }
    };
    let commit = Ends(commit.spawn().unwrap());
    until("commit -a holds the lock", || {
        std::fs::metadata(lock).is_ok_and(|m| m.len() > 0)
    });
    commit
}

#[test]
fn s08_s09_a_commit_in_its_editor_or_hook_is_alive_and_succeeds() {
    for git in gits() {
        for way in ["editor", "hook"] {
            let lab = Lab::new(&git);
            let (tree, lock) = lab.linked();
            lab.write("wt/f", "two\n");
            let hook = lab.path("r/.git/hooks/pre-commit");
            std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
            let mut commit = committing(&lab, &lock, (way == "hook").then_some(hook.as_path()));
            kept(&lab, &tree, &lock, "process");
            std::fs::write(lab.path("go"), b"").unwrap();
            assert!(commit.0.wait().unwrap().success(), "{way}");
            assert_eq!(lab.sh("wt", &["show", "HEAD:f"]), "two");
        }
    }
}

/// The editor is killed: the commit is still at it, for whoever looks from outside.
#[test]
fn s10_an_owner_in_a_sibling_pid_namespace_is_alive() {
    if !evidence_is_possible() {
        return;
    }
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        lab.write("wt/f", "two\n");
        let (editor, go) = (lab.path("ed"), lab.path("go"));
        let wait = format!(
            "#!/bin/sh\nwhile [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done\necho msg > \"$1\"\n",
            lab.path("wt").display(),
            go.display()
        );
        executable(&editor, &wait);
        let inner = lab.command("wt", &["commit", "-qa"]);
        let mut outer = std::process::Command::new("unshare");
        outer
            .args(["--pid", "--fork", "--mount-proc"])
            .arg(inner.get_program());
        outer
            .args(inner.get_args())
            .current_dir(lab.path("wt"))
            .env_clear();
        outer.envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))));
        outer.env("GIT_EDITOR", &editor).stdin(Stdio::null());
        let mut commit = Ends(outer.spawn().unwrap());
        until("commit -a holds the lock", || {
            std::fs::metadata(&lock).is_ok_and(|m| m.len() > 0)
        });
        kept(&lab, &tree, &lock, "process");
        std::fs::write(go, b"").unwrap();
        assert!(commit.0.wait().unwrap().success());
        assert_eq!(lab.sh("wt", &["show", "HEAD:f"]), "two");
    }
}

/// From inside of a PID namespace nobody knows who else is there: nothing is ever recovered from it.
#[test]
fn s11_what_cannot_be_seen_is_never_recovered() {
    if !evidence_is_possible() {
        return;
    }
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    let (tree, lock) = lab.linked();
    std::fs::write(&lock, b"").unwrap();
    let mut inner = std::process::Command::new("unshare");
    inner
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(std::env::current_exe().unwrap());
    inner.args([
        "--exact",
        "git::tests::stale::looker_in_another_namespace",
        "--nocapture",
    ]);
    inner
        .env("SEMEL_TEST_STALE", lab.path("wt"))
        .env("SEMEL_TEST_TREE", &tree);
    inner.env("SEMEL_TEST_GIT", git.program().parent().unwrap());
    let ran = inner.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(lock.exists());
    // With the processes of another namespace below /proc, numbers lie: that is seen, too.
    let mut bound = std::process::Command::new("unshare");
    bound.args([
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /proc && exec \"$@\"",
        "sh",
    ]);
    bound
        .args(inner.get_args().skip(3))
        .envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))));
    let ran = bound.output().unwrap();
    assert!(!ran.status.success() || lock.exists());
    assert!(lock.exists());
}

#[test]
fn looker_in_another_namespace() {
    let (Some(wt), Some(tree), Some(git)) = (
        std::env::var_os("SEMEL_TEST_STALE"),
        std::env::var("SEMEL_TEST_TREE").ok(),
        std::env::var_os("SEMEL_TEST_GIT"),
    ) else {
        return;
    };
    let git = Git::find(&[PathBuf::from(git)]).unwrap();
    let failed = restore(&git, Path::new(&wt), &tree, eager(1_000), &cancel()).unwrap_err();
    let refusal = failed.error.into_refusal();
    assert_eq!(refusal.code, Code::LockTimeout);
    assert!(
        refusal
            .why
            .contains("not every process of the machine can be seen"),
        "{}",
        refusal.why
    );
}

/// What is left over in a directory that is gone, mounted by itself, can work on nothing of ours.
#[test]
fn s11_who_is_left_in_a_directory_that_is_gone_does_not_count() {
    if !evidence_is_possible() {
        return;
    }
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    let (tree, lock) = lab.linked();
    let (gone, ready) = (lab.path("gone"), lab.path("ready"));
    std::fs::create_dir(&gone).unwrap();
    let mut left = std::process::Command::new("unshare");
    let script = "mount --bind \"$1\" \"$1\" && cd \"$1\" && touch \"$2\" && exec sleep 600";
    left.args(["--mount", "sh", "-c", script, "sh"])
        .args([&gone, &ready]);
    let _left = Ends(left.spawn().unwrap());
    for _ in 0..1_000 {
        if ready.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(ready.exists());
    std::fs::remove_dir(&gone).unwrap();
    std::fs::write(&lock, b"").unwrap();
    let restored = run(&lab, &tree, 60_000).unwrap();
    assert_eq!(restored.counts.recovered, 1);
}

/// Who polls a worktree does not keep its stale lock for ever, though it is there all the time; one that was there
/// before the lock does.
#[test]
fn s11_a_younger_poller_does_not_count_and_an_older_process_does() {
    if !evidence_is_possible() {
        return;
    }
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    let (tree, lock) = lab.linked();
    let sleeper = |at: &str| {
        let mut sleep = std::process::Command::new("sleep");
        Ends(sleep.arg("600").current_dir(lab.path(at)).spawn().unwrap())
    };
    let older = sleeper("wt");
    std::fs::write(&lock, b"").unwrap();
    kept(&lab, &tree, &lock, "has its working directory there");
    drop(older);
    // Its change lies so far back that whoever begins now is surely younger.
    std::thread::sleep(Duration::from_millis(1_200));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _younger = sleeper("wt");
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                lab.try_sh("wt", &["--no-optional-locks", "status"]);
            }
        });
        let outcome = run(&lab, &tree, 120_000);
        stop.store(true, Ordering::SeqCst);
        assert_eq!(outcome.unwrap().counts.recovered, 1);
    });
}

/// What git hands down by the environment makes a holder of a process that is younger than the lock.
#[test]
fn s11_a_younger_process_with_the_index_in_its_environment_counts() {
    if !evidence_is_possible() {
        return;
    }
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    let (tree, lock) = lab.linked();
    std::fs::write(&lock, b"").unwrap();
    std::thread::sleep(Duration::from_millis(1_200));
    for (name, value) in [
        ("GIT_INDEX_FILE", lock.clone()),
        ("GIT_INDEX_FILE", lock.with_file_name("next-index-7.lock")),
        ("GIT_DIR", lock.parent().unwrap().to_owned()),
    ] {
        let mut sleep = std::process::Command::new("sleep");
        let holder = Ends(
            sleep
                .arg("600")
                .env(name, value)
                .current_dir("/")
                .spawn()
                .unwrap(),
        );
        kept(&lab, &tree, &lock, "environment");
        drop(holder);
    }
    assert_eq!(run(&lab, &tree, 60_000).unwrap().counts.recovered, 1);
}

/// A directory of the worktree that another process sees through a mount of its own.
#[test]
fn s11_a_holder_behind_a_mount_of_its_own_is_seen() {
    if !evidence_is_possible() {
        return;
    }
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    lab.write("r/dir/g", "g\n");
    let (tree, lock) = lab.linked();
    std::fs::create_dir(lab.path("elsewhere")).unwrap();
    let script = format!(
        "mount --bind '{}' '{}' && cd '{}' && touch '{}' && exec sleep 600",
        lab.path("wt/dir").display(),
        lab.path("elsewhere").display(),
        lab.path("elsewhere").display(),
        lab.path("ready").display()
    );
    let mut inner = std::process::Command::new("unshare");
    inner.args(["--mount", "sh", "-c", &script]).current_dir("/");
    let holder = Ends(inner.spawn().unwrap());
    until("the mount is there", || lab.path("ready").exists());
    std::fs::write(&lock, b"").unwrap();
    kept(&lab, &tree, &lock, "has its working directory there");
    drop(holder);
    assert_eq!(run(&lab, &tree, 60_000).unwrap().counts.recovered, 1);
}

#[test]
fn s13_a_lock_that_changes_hands_is_kept() {
    if !evidence_is_possible() {
        return;
    }
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    let (tree, lock) = lab.linked();
    std::fs::write(&lock, b"").unwrap();
    let other = lab.path("other");
    std::fs::write(&other, b"of a living program").unwrap();
    let ino = std::fs::metadata(&other).unwrap().ino();
    let (swap, gitdir) = (AtomicU32::new(0), lock.clone());
    struct Swaps<'a>(&'a AtomicU32, &'a Path, &'a Path);
    impl Witness for Swaps<'_> {
        fn reached(&self, point: Point) {
            // Between the last look and the act.
            if point == Point::Adopting && self.0.fetch_add(1, Ordering::SeqCst) == 0 {
                std::fs::rename(self.1, self.2).unwrap();
            }
        }
    }
    // A holder that nobody can miss.
    let holder = std::fs::File::open(&other).unwrap();
    let swaps = Swaps(&swap, &other, &gitdir);
    let refused = restore_watched(&git, &lab.path("wt"), &tree, eager(1_500), &cancel(), &swaps);
    assert_eq!(code(refused), (Code::LockTimeout, Touched::Nothing));
    assert_eq!(swap.load(Ordering::SeqCst), 1, "it came to the act once");
    assert_eq!(std::fs::metadata(&lock).unwrap().ino(), ino);
    assert_eq!(std::fs::read(&lock).unwrap(), b"of a living program");
    drop(holder);
    no_residue(&lock);
}

/// Git's own file of the owner's number decides nothing: it may be another's, or of a number that was given again.
#[test]
fn s14_a_dead_number_in_a_pid_file_proves_nothing() {
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    let (tree, lock) = lab.linked();
    std::fs::write(&lock, b"").unwrap();
    let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
    let dead = child.id();
    child.wait().unwrap();
    let named = lock.with_file_name("index~pid.lock");
    std::fs::write(&named, format!("pid {dead}\n")).unwrap();
    let holder = std::fs::File::open(&lock).unwrap();
    kept(
        &lab,
        &tree,
        &lock,
        if evidence_is_possible() {
            "has it open"
        } else {
            "seen"
        },
    );
    drop(holder);
    assert!(named.exists());
}

/// An overlay that a test mounted.
struct Overlaid(PathBuf);

impl Overlaid {
    fn new(lab: &Lab, lower: &str, upper: &str) -> Option<Self> {
        let at = lab.path("merged");
        for name in ["merged", "work", "low", "up"] {
            std::fs::create_dir_all(lab.path(name)).unwrap();
        }
        let path = |name: &str| lab.path(name).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            path(lower),
            path(upper),
            path("work")
        );
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&at);
        let mounted = mount.stderr(Stdio::null()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            skipped("no overlay can be mounted here");
            return None;
        }
        Some(Self(at))
    }
}

impl Drop for Overlaid {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

/// Whoever works on our files through an overlay is seen by no inode: where one shows them, evidence is incomplete.
#[test]
fn a_worktree_that_an_overlay_shows_is_not_adopted() {
    if !evidence_is_possible() {
        return;
    }
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    lab.write("r/sub/f", "x\n");
    let (tree, lock) = lab.linked();
    std::fs::write(&lock, b"").unwrap();
    for (lower, upper) in [
        ("low", "wt"),
        ("wt", "up"),
        ("low", "wt/sub"),
        ("r", "up"),
        ("r/.git", "up"),
    ] {
        let Some(_overlaid) = Overlaid::new(&lab, lower, upper) else {
            return;
        };
        kept(&lab, &tree, &lock, "overlay");
    }
    let Some(_elsewhere) = Overlaid::new(&lab, "low", "up") else {
        return;
    };
    assert_eq!(run(&lab, &tree, 600_000).unwrap().counts.recovered, 1);
}
