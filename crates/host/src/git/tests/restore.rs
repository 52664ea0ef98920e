//! Restorations against real git: holders, crashes, tampering.

use super::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FileType, Mode as FileMode, inotify, mknodat};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

pub(super) fn options(wait_ms: u64) -> RestoreOptions {
    RestoreOptions {
        wait: Duration::from_millis(wait_ms),
        ..RestoreOptions::default()
    }
}

fn run(lab: &Lab, tree: &str, wait_ms: u64) -> std::result::Result<Outcome, Box<Failed>> {
    restore(&lab.git, &lab.path("wt"), tree, options(wait_ms), &cancel())
}

pub(super) fn code(result: std::result::Result<Outcome, Box<Failed>>) -> (Code, Touched) {
    let failed = result.unwrap_err();
    (failed.error.code(), failed.touched)
}

/// No private file of ours is left beside the lock.
pub(super) fn no_residue(lock: &Path) {
    for entry in std::fs::read_dir(lock.parent().unwrap()).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(!name.to_string_lossy().contains("semel"), "{name:?}");
    }
}

/// Tells when somebody looks at a lock that is held.
struct Watched(OwnedFd);

impl Watched {
    fn new(lock: &Path) -> Self {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, lock, inotify::WatchFlags::OPEN).unwrap();
        Self(watch)
    }

    /// Waits until somebody opened it.
    fn met(&self) {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let long = rustix::event::Timespec {
            tv_sec: 300,
            tv_nsec: 0,
        };
        assert!(
            poll(&mut fds, Some(&long)).unwrap() > 0,
            "nobody looked at the lock"
        );
    }
}

/// Holds a lock as a stranger does, in another thread, for a while after somebody met it; tells beforehand that it
/// lets go.
fn hold(lock: &Path, ms: u64) -> (std::thread::JoinHandle<()>, Arc<AtomicBool>) {
    std::fs::write(lock, b"").unwrap();
    let (lock, watched) = (lock.to_owned(), Watched::new(lock));
    let released = Arc::new(AtomicBool::new(false));
    let tell = released.clone();
    let holder = std::thread::spawn(move || {
        watched.met();
        std::thread::sleep(Duration::from_millis(ms));
        tell.store(true, Ordering::SeqCst);
        std::fs::remove_file(lock).unwrap();
    });
    (holder, released)
}

#[test]
fn c01_a_held_lock_is_waited_for() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        for ms in [250, 6000] {
            // Six seconds are held for once; the wait itself is tested on a virtual clock.
            if ms == 6000 && git.version().starts_with("2.39") {
                continue;
            }
            lab.write("wt/f", "changed\n");
            let (holder, released) = hold(&lock, ms);
            let began = Instant::now();
            let outcome = run(&lab, &tree, 600_000).unwrap();
            let took = u64::try_from(began.elapsed().as_millis()).unwrap();
            // How long it truly waits is the machine's matter; that it waited, and says no more than that, is ours.
            assert!(
                released.load(Ordering::SeqCst),
                "the lock was taken while it was held"
            );
            holder.join().unwrap();
            assert_eq!(lab.read("wt/f"), "one\n");
            assert!(
                (1..=took).contains(&outcome.counts.waited_ms),
                "{:?} of {took}",
                outcome.counts
            );
            assert!(outcome.counts.collisions > 0);
            assert_eq!(outcome.identity, Identity::Unpinned);
        }
        assert!(!lock.exists());
        no_residue(&lock);
        assert_eq!(lab.sh("wt", &["status", "--porcelain"]), "");
    }
}

#[test]
fn c01_above_the_bound_nothing_is_changed() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        lab.write("wt/f", "changed\n");
        std::fs::write(&lock, b"").unwrap();
        let index = std::fs::read(lock.with_extension("")).unwrap();
        let (before, began) = (std::fs::metadata(&lock).unwrap(), Instant::now());
        assert_eq!(code(run(&lab, &tree, 300)), (Code::LockTimeout, Touched::Nothing));
        assert!(began.elapsed() >= Duration::from_millis(300));
        let after = std::fs::metadata(&lock).unwrap();
        assert_eq!(
            (before.ino(), before.ctime_nsec()),
            (after.ino(), after.ctime_nsec())
        );
        assert_eq!(std::fs::read(lock.with_extension("")).unwrap(), index);
        assert_eq!(lab.read("wt/f"), "changed\n");
        no_residue(&lock);
    }
}

/// Starts a git that holds the lock while `stay` is there, or until the lab is gone.
fn slow_add(lab: &Lab, lock: &Path) -> Ends {
    lab.write("stay", "");
    let stay = lab.path("stay");
    let clean = format!("while [ -e '{}' ]; do sleep 0.05; done; cat", stay.display());
    lab.sh("r", &["config", "filter.slow.clean", &clean]);
    lab.write("wt/.gitattributes", "big filter=slow\n");
    lab.write("wt/big", "x\n");
    let adding = Ends(lab.command("wt", &["add", "big"]).spawn().unwrap());
    until("git add holds the lock", || lock.exists());
    adding
}

#[test]
fn c01_a_lock_released_by_rename_is_seen() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        let mut adding = slow_add(&lab, &lock);
        let watched = Watched::new(&lock);
        let stay = lab.path("stay");
        let release = std::thread::spawn(move || {
            watched.met();
            std::thread::sleep(Duration::from_millis(200));
            std::fs::remove_file(stay).unwrap();
        });
        let outcome = run(&lab, &tree, 600_000).unwrap();
        release.join().unwrap();
        assert!(adding.0.wait().unwrap().success());
        assert!(outcome.counts.waited_ms > 100, "{:?}", outcome.counts);
        assert_eq!(lab.sh("wt", &["write-tree"]), tree);
    }
}

/// A lock that a killed git left: this version has no evidence to take it on, so it waits and says so.
#[test]
fn c02_a_strangers_stale_lock_is_left_alone() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        drop(slow_add(&lab, &lock));
        assert_eq!(code(run(&lab, &tree, 200)), (Code::LockTimeout, Touched::Nothing));
        assert!(lock.exists());
    }
}

/// Leaves what a restoration leaves that is killed with -9 while its git runs.
fn crash(lock: &Path, nonce: &str, edit: impl FnOnce(&mut record::OwnerRecord)) {
    let mut owner = record::OwnerRecord::ours(nonce).unwrap();
    // A process that is gone: it is reaped before its number is written down.
    let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
    owner.pid = child.id();
    child.wait().unwrap();
    edit(&mut owner);
    std::fs::write(lock, serde_json::to_vec(&owner).unwrap()).unwrap();
    // Another one died before its lock was taken.
    let waiter = lock.with_file_name(format!("index.lock.semel-{nonce}"));
    std::fs::write(waiter, serde_json::to_vec(&owner).unwrap()).unwrap();
    let private = lock.with_file_name(format!("index.semel-{nonce}"));
    std::fs::hard_link(lock.with_extension(""), &private).unwrap();
    std::fs::write(lock.with_file_name(format!("index.semel-{nonce}.lock")), b"half").unwrap();
}

#[test]
fn c02_our_own_stale_lock_is_adopted_in_place() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        for boot in ["this", "another"] {
            lab.write("wt/f", "changed\n");
            crash(&lock, &"ab".repeat(10), |owner| {
                if boot == "another" {
                    owner.boot_id = "another".to_owned();
                }
            });
            let began = Instant::now();
            let outcome = run(&lab, &tree, 600_000).unwrap();
            assert!(began.elapsed() < Duration::from_secs(300), "no age is waited for");
            assert_eq!(outcome.counts.adopted, 1);
            assert_eq!(lab.read("wt/f"), "one\n");
            assert!(!lock.exists());
            no_residue(&lock);
        }
    }
}

#[test]
fn c02_a_living_owner_of_our_own_is_not_adopted() {
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    let (tree, lock) = lab.linked();
    // Its process lives.
    crash(&lock, &"cd".repeat(10), |owner| {
        *owner = record::OwnerRecord::ours(&owner.nonce).unwrap();
    });
    assert_eq!(code(run(&lab, &tree, 200)).0, Code::LockTimeout);
    // Its process is gone, but something still holds the flock: an orphaned git, in whatever namespace.
    std::fs::remove_file(lock.with_file_name(format!("index.semel-{}", "cd".repeat(10)))).unwrap();
    std::fs::remove_file(lock.with_file_name(format!("index.semel-{}.lock", "cd".repeat(10)))).unwrap();
    crash(&lock, &"ef".repeat(10), |_| {});
    let orphan = std::fs::File::open(&lock).unwrap();
    rustix::fs::flock(&orphan, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(code(run(&lab, &tree, 200)).0, Code::LockTimeout);
    drop(orphan);
    assert_eq!(run(&lab, &tree, 200).unwrap().counts.adopted, 1);
}

#[test]
fn c03_a_commit_in_its_editor_is_alive() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        lab.write("wt/f", "two\n");
        let (editor, go) = (lab.path("ed"), lab.path("go"));
        let script = format!(
            "#!/bin/sh\nwhile [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done\necho msg > \"$1\"\n",
            lab.path("wt").display(),
            go.display()
        );
        executable(&editor, &script);
        let mut commit = lab.command("wt", &["commit", "-qa"]);
        commit.env("GIT_EDITOR", &editor);
        let mut commit = Ends(commit.spawn().unwrap());
        until("commit -a holds the lock", || lock.exists());
        assert_eq!(code(run(&lab, &tree, 500)), (Code::LockTimeout, Touched::Nothing));
        assert!(lock.exists());
        std::fs::write(go, b"").unwrap();
        assert!(commit.0.wait().unwrap().success());
        assert_eq!(lab.sh("wt", &["show", "HEAD:f"]), "two");
    }
}

#[test]
fn c06_a_missing_object_is_found_before_the_first_write() {
    for git in gits() {
        let lab = Lab::new(&git);
        for name in ["a", "m", "sub/z"] {
            lab.write(&format!("r/{name}"), format!("old-{name}"));
        }
        lab.commit("r", "old");
        for name in ["a", "m", "sub/z"] {
            lab.write(&format!("r/{name}"), format!("new-{name}"));
        }
        lab.commit("r", "new");
        let tree = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
        lab.sh("r", &["worktree", "add", "-q", "../wt", "-b", "w", "HEAD~1"]);
        let (_, lock) = lab.place();
        let index = std::fs::read(lock.with_extension("")).unwrap();
        for spec in ["HEAD:m", "HEAD:sub"] {
            let id = lab.sh("r", &["rev-parse", spec]);
            let loose = lab.path(&format!("r/.git/objects/{}/{}", &id[..2], &id[2..]));
            let bytes = std::fs::read(&loose).unwrap();
            std::fs::remove_file(&loose).unwrap();
            let failed = run(&lab, &tree, 1000).unwrap_err();
            let (touched, refusal) = (failed.touched, failed.error.into_refusal());
            assert_eq!((refusal.code, touched), (Code::ObjectMissing, Touched::Nothing));
            assert_eq!(refusal.names, [id]);
            for name in ["a", "m", "sub/z"] {
                assert_eq!(lab.read(&format!("wt/{name}")), format!("old-{name}"));
            }
            assert_eq!(std::fs::read(lock.with_extension("")).unwrap(), index);
            assert!(!lock.exists());
            std::fs::write(&loose, bytes).unwrap();
        }
        run(&lab, &tree, 1000).unwrap();
        assert_eq!(lab.read("wt/sub/z"), "new-sub/z");
    }
}

/// What cannot be seen beforehand is terminal, with git's words, the index as it was and no lock left.
#[test]
fn c06_a_corrupt_object_is_terminal_and_leaves_the_index() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (_, lock) = lab.linked();
        // Long, and of many different bytes, so that the header of the object is whole and its body is not.
        let text: Vec<u8> = (0..40_000_u32)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
            .collect();
        lab.write("r/f", text);
        lab.commit("r", "two");
        let tree = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
        let id = lab.sh("r", &["rev-parse", "HEAD:f"]);
        let loose = lab.path(&format!("r/.git/objects/{}/{}", &id[..2], &id[2..]));
        let mut bytes = std::fs::read(&loose).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        std::fs::remove_file(&loose).unwrap();
        std::fs::write(&loose, bytes).unwrap();
        let index = std::fs::read(lock.with_extension("")).unwrap();
        let failed = run(&lab, &tree, 1000).unwrap_err();
        assert_eq!(
            (failed.error.code(), failed.touched),
            (Code::GitFailed, Touched::Perhaps)
        );
        let Error::Git(failure) = failed.error else {
            panic!()
        };
        assert!(!failure.stderr.is_empty() && failure.command == "read-tree");
        assert_eq!(std::fs::read(lock.with_extension("")).unwrap(), index);
        assert!(!lock.exists());
        no_residue(&lock);
    }
}

#[test]
fn c09_what_is_no_plain_lock_is_unsafe_at_once() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        lab.write("victim", "keep");
        let reason = || {
            let began = Instant::now();
            let failed = run(&lab, &tree, 600_000).unwrap_err();
            assert!(began.elapsed() < Duration::from_secs(300));
            assert_eq!(failed.touched, Touched::Nothing);
            let refusal = failed.error.into_refusal();
            assert_eq!(refusal.code, Code::LockUnsafe);
            refusal.reason.unwrap()
        };
        std::fs::create_dir(&lock).unwrap();
        assert_eq!(reason(), "directory");
        std::fs::remove_dir(&lock).unwrap();
        for target in ["victim", "nowhere"] {
            std::os::unix::fs::symlink(lab.path(target), &lock).unwrap();
            assert_eq!(reason(), "symlink");
            std::fs::remove_file(&lock).unwrap();
        }
        mknodat(CWD, &lock, FileType::Fifo, FileMode::RWXU, 0).unwrap();
        assert_eq!(reason(), "special");
        std::fs::remove_file(&lock).unwrap();
        std::fs::hard_link(lab.path("victim"), &lock).unwrap();
        assert_eq!(reason(), "hard_link");
        std::fs::remove_file(&lock).unwrap();
        assert_eq!(lab.read("victim"), "keep");
        if rustix::process::geteuid().is_root() {
            std::fs::write(&lock, b"").unwrap();
            std::os::unix::fs::chown(&lock, Some(65_534), None).unwrap();
            assert_eq!(reason(), "foreign");
            std::fs::remove_file(&lock).unwrap();
        } else {
            skipped("a foreign-owned lock needs root");
        }
        no_residue(&lock);
        run(&lab, &tree, 0).unwrap();
    }
}

#[test]
fn c10_hidden_files_are_seen_and_mended_and_residue_is_named() {
    for git in gits() {
        let lab = Lab::new(&git);
        for name in ["a", "b", "c", "d"] {
            lab.write(&format!("r/{name}"), "old\n");
        }
        lab.write("r/.gitignore", ".venv/\n");
        lab.commit("r", "one");
        lab.sh("r", &["worktree", "add", "-q", "../wt", "-b", "w"]);
        let (tree, _) = lab.place();
        executable(&lab.path("fsm"), "#!/bin/sh\ntouch \"$0.ran\"\nprintf 't\\0'\n");
        let fsm = lab.path("fsm").display().to_string();
        lab.sh("wt", &["config", "core.fsmonitor", &fsm]);
        lab.sh("wt", &["config", "core.fsmonitorHookVersion", "2"]);
        lab.sh("wt", &["update-index", "--fsmonitor"]);
        lab.sh("wt", &["status", "--porcelain"]);
        lab.sh("wt", &["update-index", "--skip-worktree", "a"]);
        lab.sh("wt", &["update-index", "--assume-unchanged", "d"]);
        for name in ["a", "b", "d"] {
            lab.write(&format!("wt/{name}"), "agent\n");
        }
        // Same size, same time, and a person's configuration that looks at nothing else.
        lab.sh("wt", &["config", "core.trustctime", "false"]);
        let when = std::fs::metadata(lab.path("wt/c")).unwrap().modified().unwrap();
        lab.write("wt/c", "new\n");
        let forged = std::fs::File::options()
            .write(true)
            .open(lab.path("wt/c"))
            .unwrap();
        forged.set_modified(when).unwrap();
        lab.write("wt/.venv/x", "x");
        lab.write("wt/extra", "x");
        std::fs::remove_file(lab.path("fsm.ran")).ok();
        let outcome = run(&lab, &tree, 1000).unwrap();
        for name in ["a", "b", "c", "d"] {
            assert_eq!(
                lab.read(&format!("wt/{name}")),
                "old\n",
                "{name} by {}",
                git.version()
            );
        }
        assert!(!lab.path("fsm.ran").exists(), "the hook was run");
        let mended: Vec<String> = outcome.mended.iter().map(ToString::to_string).collect();
        assert!(mended.contains(&"a".to_owned()), "{mended:?}");
        let residue: Vec<String> = outcome.residue.iter().map(ToString::to_string).collect();
        assert_eq!(residue, [".venv", "extra"]);
        assert_eq!(outcome.hashed, 5);
    }
}

#[test]
fn only_a_full_id_of_a_tree_is_taken() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        let commit = lab.sh("wt", &["rev-parse", "HEAD"]);
        let blob = lab.sh("wt", &["rev-parse", "HEAD:f"]);
        lab.sh("r", &["branch", &"a".repeat(40)]);
        lab.write("wt/f", "changed\n");
        for id in [
            "HEAD",
            &tree[..39],
            &format!("{tree}0"),
            &tree.to_uppercase(),
            &"b".repeat(64),
            &commit,
            &blob,
        ] {
            assert_eq!(code(run(&lab, id, 0)), (Code::BadInput, Touched::Nothing), "{id}");
        }
        for id in ["a", "1"] {
            assert_eq!(code(run(&lab, &id.repeat(40), 0)).0, Code::ObjectMissing);
        }
        assert_eq!(lab.read("wt/f"), "changed\n");
        assert!(!lock.exists());
        let nowhere = restore(&git, &lab.path("nowhere"), &tree, options(0), &cancel());
        assert_eq!(code(nowhere).0, Code::NotFound);
        let plain = restore(&git, lab.dir.path(), &tree, options(0), &cancel());
        assert_eq!(code(plain).0, Code::BadInput);
    }
}

#[test]
fn a_redirected_worktree_is_refused() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        lab.sh("r", &["worktree", "add", "-q", "../wt2", "-b", "w2"]);
        let pointer = lab.read("wt/.git");
        let victim = std::fs::read(lab.path("r/.git/worktrees/wt2/index")).unwrap();
        let refused = || {
            assert_eq!(
                code(run(&lab, &tree, 0)),
                (Code::WorktreeRedirected, Touched::Nothing)
            )
        };
        // Pointed at another worktree's directory.
        lab.write("wt/.git", lab.read("wt2/.git"));
        refused();
        // A link.
        std::fs::remove_file(lab.path("wt/.git")).unwrap();
        std::os::unix::fs::symlink(lab.path("wt2/.git"), lab.path("wt/.git")).unwrap();
        refused();
        std::fs::remove_file(lab.path("wt/.git")).unwrap();
        // A git directory of the agent's own.
        lab.sh(".", &["init", "-q", "fake"]);
        lab.write(
            "wt/.git",
            format!("gitdir: {}\n", lab.path("fake/.git").display()),
        );
        refused();
        lab.write("wt/.git", &pointer);
        // core.worktree.
        lab.sh("r", &["config", "extensions.worktreeConfig", "true"]);
        let outside = lab.path("wt2").display().to_string();
        std::fs::write(
            lock.with_file_name("config.worktree"),
            format!("[core]\n\tworktree = {outside}\n"),
        )
        .unwrap();
        refused();
        std::fs::remove_file(lock.with_file_name("config.worktree")).unwrap();
        // The index: a link, and a file with another name.
        let (index, kept) = (lock.with_extension(""), lab.path("kept"));
        std::fs::rename(&index, &kept).unwrap();
        std::os::unix::fs::symlink(lab.path("r/.git/worktrees/wt2/index"), &index).unwrap();
        refused();
        std::fs::remove_file(&index).unwrap();
        std::fs::hard_link(&kept, &index).unwrap();
        refused();
        std::fs::remove_file(&kept).unwrap();
        assert_eq!(
            std::fs::read(lab.path("r/.git/worktrees/wt2/index")).unwrap(),
            victim
        );
        no_residue(&lock);
        assert!(!lock.exists());
        run(&lab, &tree, 0).unwrap();
        // Through a linked parent, and in the main worktree.
        std::os::unix::fs::symlink(lab.dir.path(), lab.path("alias")).unwrap();
        restore(&git, &lab.path("alias/wt"), &tree, options(0), &cancel()).unwrap();
        lab.write("r/f", "changed\n");
        restore(&git, &lab.path("r"), &tree, options(0), &cancel()).unwrap();
        assert_eq!(lab.read("r/f"), "one\n");
    }
}

#[test]
fn shapes_of_repositories_keep_their_features() {
    for git in gits() {
        for shape in [
            "plain",
            "split",
            "sha256",
            "absent",
            "unmerged",
            "newline",
            "untracked-cache",
        ] {
            let lab = Lab::new(&git);
            if shape == "sha256" {
                std::fs::rename(lab.path("r"), lab.path("gone")).unwrap();
                std::fs::create_dir(lab.path("r")).unwrap();
                lab.sh("r", &["init", "-q", "--object-format=sha256"]);
            }
            lab.write("r/dir/g", "g\n");
            executable(&lab.path("r/run"), "#!/bin/sh\n");
            std::os::unix::fs::symlink("run", lab.path("r/link")).unwrap();
            if shape == "newline" {
                lab.write("r/odd\nname é", "x");
            }
            let (tree, lock) = lab.linked();
            match shape {
                "split" => drop(lab.sh("wt", &["update-index", "--split-index"])),
                "untracked-cache" => drop(lab.sh("wt", &["update-index", "--force-untracked-cache"])),
                "absent" => std::fs::remove_file(lock.with_extension("")).unwrap(),
                "unmerged" => {
                    lab.write("wt/f", "ours\n");
                    lab.commit("wt", "ours");
                    lab.write("r/f", "theirs\n");
                    lab.commit("r", "theirs");
                    assert!(!lab.try_sh("wt", &["merge", "main"]).status.success());
                }
                _ => {}
            }
            lab.write("wt/f", "changed\n");
            lab.write("wt/staged", "x\n");
            if shape != "unmerged" {
                lab.sh("wt", &["add", "staged"]);
            }
            std::fs::remove_file(lab.path("wt/link")).unwrap();
            std::fs::create_dir(lab.path("wt/link")).unwrap();
            std::fs::set_permissions(lab.path("wt/run"), std::fs::Permissions::from_mode(0o644)).unwrap();
            let outcome = run(&lab, &tree, 0);
            let outcome = outcome.unwrap_or_else(|e| panic!("{shape} with {}: {e}", git.version()));
            assert_eq!(outcome.tree.to_string(), tree);
            assert_eq!(lab.read("wt/f"), "one\n", "{shape}");
            assert_eq!(lab.sh("wt", &["write-tree"]), tree, "{shape}");
            assert_eq!(lab.sh("wt", &["diff-files"]), "", "{shape}");
            if shape == "split" {
                let shared = lab.sh("wt", &["rev-parse", "--shared-index-path"]);
                assert!(!shared.is_empty(), "the index stays split");
            }
            lab.sh("wt", &["fsck"]);
            no_residue(&lock);
        }
    }
}

#[test]
fn content_that_the_tree_declares_is_taken_and_a_program_is_never_run() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/.gitattributes", "*.bat text eol=crlf\n");
        lab.write("r/x.bat", "a\nb\n");
        let (tree, _) = lab.linked();
        let outcome = run(&lab, &tree, 0).unwrap();
        assert_eq!(lab.read("wt/x.bat"), "a\r\nb\r\n");
        assert!(outcome.mended.is_empty());
        // The agent's own attributes, and a driver that somebody configured.
        lab.sh("r", &["config", "filter.evil.smudge", "echo evil"]);
        lab.sh("r", &["config", "filter.evil.required", "true"]);
        lab.write("wt/.gitattributes", "* filter=evil\n");
        lab.write("wt/f", "changed\n");
        run(&lab, &tree, 0).unwrap();
        assert_eq!(lab.read("wt/f"), "one\n");
        lab.sh("r", &["config", "filter.evil.required", "false"]);
        lab.write("r/.gitattributes", "* filter=evil\n");
        lab.commit("r", "filtered");
        let tree = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
        let failed = run(&lab, &tree, 0).unwrap_err();
        assert_eq!(failed.touched, Touched::Nothing);
        assert_eq!(
            failed.error.into_refusal().reason.as_deref(),
            Some("content_attribute")
        );
    }
}

#[test]
fn a_nested_repository_in_the_way_is_kept() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, _) = lab.linked();
        std::fs::remove_file(lab.path("wt/f")).unwrap();
        lab.write("wt/f/inner/work", "precious");
        lab.sh("wt/f/inner", &["init", "-q"]);
        let failed = run(&lab, &tree, 0).unwrap_err();
        assert_eq!(failed.touched, Touched::Nothing);
        assert_eq!(failed.error.into_refusal().names, ["f/inner/.git"]);
        assert_eq!(lab.read("wt/f/inner/work"), "precious");
    }
}

/// Several restorations of one worktree at once: each waits for the others, none fails.
#[test]
fn contenders_wait_for_each_other() {
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    let (tree, lock) = lab.linked();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..3 {
                    run(&lab, &tree, 600_000).unwrap();
                }
            });
        }
    });
    assert!(!lock.exists());
    no_residue(&lock);
    assert_eq!(lab.sh("wt", &["status", "--porcelain"]), "");
}

/// The other half of the next tests: it restores, as another user or to be killed meanwhile.
#[test]
fn child_of_another_test() {
    let (Some(dir), Some(worktree), Some(tree)) = (
        std::env::var_os("SEMEL_TEST_GIT"),
        std::env::var_os("SEMEL_TEST_WORKTREE"),
        std::env::var("SEMEL_TEST_TREE").ok(),
    ) else {
        return;
    };
    let git = Git::find(&[PathBuf::from(dir)]).unwrap();
    let mut options = options(60_000);
    if std::env::var_os("SEMEL_TEST_CLEAN").is_some() {
        options.leftovers = Leftovers::Removed;
    }
    let done = restore(&git, Path::new(&worktree), &tree, options, &cancel());
    match std::env::var("SEMEL_TEST_REASON") {
        Err(_) => drop(done.unwrap()),
        Ok(reason) => {
            let failed = done.unwrap_err();
            assert_eq!(failed.touched, Touched::Nothing);
            let refusal = failed.error.into_refusal();
            assert_eq!((refusal.code, refusal.reason), (Code::LockUnsafe, Some(reason)));
            assert!(refusal.why.contains("Permission denied"), "{}", refusal.why);
        }
    }
}

fn child(git: &Git, lab: &Lab, tree: &str) -> std::process::Command {
    child_from(&std::env::current_exe().unwrap(), git, lab, tree)
}

fn child_from(exe: &Path, git: &Git, lab: &Lab, tree: &str) -> std::process::Command {
    let mut child = std::process::Command::new(exe);
    child
        .args(["--exact", "git::tests::restore::child_of_another_test"])
        .env("SEMEL_TEST_GIT", git.program().parent().unwrap())
        .env("SEMEL_TEST_WORKTREE", lab.path("wt"))
        .env("SEMEL_TEST_TREE", tree)
        .stdout(Stdio::null());
    child
}

/// A worktree of another user, who starts a copy of this test's binary in it.
fn another_users(git: &Git) -> (Lab, String, PathBuf, std::process::Command) {
    use std::os::unix::process::CommandExt;
    let lab = Lab::new(git);
    let (tree, lock) = lab.linked();
    for (dir, mode) in [
        ("wt/u/closed", 0),
        ("wt/u/no-entry", 0o600),
        ("wt/u/no-writing", 0o555),
    ] {
        lab.write(&format!("{dir}/below/f"), "x\n");
        std::fs::set_permissions(lab.path(dir), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut chown = std::process::Command::new("/bin/chown");
    chown
        .args(["-R", "65534:65534"])
        .args([lab.path("r"), lab.path("wt")]);
    assert!(chown.status().unwrap().success());
    std::fs::set_permissions(lab.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // The binary of this test may lie in a home: another user starts a copy of it.
    let exe = lab.path("test-binary");
    // Copied by another process: a child that another test forks meanwhile would keep it open for writing.
    let mut copy = std::process::Command::new("/bin/cp");
    copy.arg(std::env::current_exe().unwrap()).arg(&exe);
    assert!(copy.status().unwrap().success());
    std::fs::set_permissions(&exe, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut child = child_from(&exe, git, &lab, &tree);
    child.uid(65_534).gid(65_534);
    (lab, tree, lock, child)
}

fn another_user_can_be() -> bool {
    let reachable = std::env::temp_dir().ancestors().all(|dir| {
        let mode = std::fs::metadata(dir).map(|m| m.mode()).unwrap_or_default();
        dir.as_os_str().is_empty() || mode & 0o1 != 0
    });
    let can = rustix::process::geteuid().is_root() && reachable;
    if !can {
        skipped("another user needs root, and a temporary directory that everybody can reach");
    }
    can
}

#[test]
fn c09_a_lock_that_may_not_be_made_is_unsafe_at_once() {
    if !another_user_can_be() {
        return;
    }
    for git in gits() {
        let (_lab, _, lock, mut child) = another_users(&git);
        let mode = std::fs::Permissions::from_mode(0o555);
        std::fs::set_permissions(lock.parent().unwrap(), mode).unwrap();
        child.env("SEMEL_TEST_REASON", "denied");
        assert!(child.status().unwrap().success());
        no_residue(&lock);
    }
}

/// Directories that even their owner may not enter, or write in, are looked through, and removed.
#[test]
fn what_is_closed_to_its_owner_is_cleaned() {
    if !another_user_can_be() {
        return;
    }
    for git in gits() {
        let (lab, _, lock, mut child) = another_users(&git);
        lab.sh("wt/u/closed/below", &["init", "-q"]);
        let mut chown = std::process::Command::new("/bin/chown");
        chown.args(["-R", "65534:65534"]).arg(lab.path("wt/u/closed"));
        assert!(chown.status().unwrap().success());
        child.env("SEMEL_TEST_CLEAN", "1");
        let refused = child.stderr(Stdio::null()).status().unwrap();
        assert!(!refused.success(), "a repository lies in it");
        // What was only looked at is as it was.
        let mode = std::fs::metadata(lab.path("wt/u/closed")).unwrap().mode();
        assert_eq!(mode & 0o777, 0);
        remove_all(&lab.path("wt/u/closed/below/.git"));
        assert!(child.status().unwrap().success());
        assert!(!lab.path("wt/u").exists());
        no_residue(&lock);
    }
}

/// `kill -9` at many moments of a restoration: the index is whole at every one, and the next restoration takes the
/// lock over without waiting for its age.
#[test]
fn a_killed_restoration_is_taken_over_at_once() {
    let mut adopted = 0;
    for git in gits() {
        let lab = Lab::new(&git);
        for n in 0..600 {
            lab.write(&format!("r/many/{n}"), format!("{n}\n"));
        }
        let (tree, lock) = lab.linked();
        for moment in 0..12_u64 {
            for n in (0..600).step_by(2) {
                lab.write(&format!("wt/many/{n}"), "changed by the agent\n");
            }
            let mut child = child(&git, &lab, &tree);
            let mut child = Ends(child.spawn().unwrap());
            until("the child holds the lock, or is done", || {
                lock.exists() || child.0.try_wait().unwrap().is_some()
            });
            std::thread::sleep(Duration::from_millis(moment * 3));
            drop(child);
            assert!(lab.try_sh("wt", &["ls-files", "-s"]).status.success());
            let began = Instant::now();
            let outcome = run(&lab, &tree, 600_000).unwrap();
            assert!(began.elapsed() < Duration::from_secs(300));
            adopted += outcome.counts.adopted;
            assert_eq!(lab.read("wt/many/0"), "0\n");
            assert_eq!(lab.sh("wt", &["status", "--porcelain"]), "");
            assert!(!lock.exists());
            no_residue(&lock);
        }
    }
    assert!(adopted > 0, "no kill met the lock");
}

/// A lock that is taken from us while git runs: the index stays, the thief keeps its lock.
#[test]
fn a_stolen_lock_leaves_the_index_untouched() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (_, lock) = lab.linked();
        for n in 0..400 {
            lab.write(&format!("r/many/{n}"), format!("{n}\n"));
        }
        lab.commit("r", "many");
        let tree = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
        let index = std::fs::read(lock.with_extension("")).unwrap();
        let thief = {
            let lock = lock.clone();
            std::thread::spawn(move || {
                while !lock.exists() {
                    std::thread::yield_now();
                }
                std::fs::remove_file(&lock).unwrap();
                std::fs::write(&lock, b"thief").unwrap();
            })
        };
        assert_eq!(code(run(&lab, &tree, 0)).0, Code::LockLost);
        thief.join().unwrap();
        assert_eq!(std::fs::read(&lock).unwrap(), b"thief");
        assert_eq!(std::fs::read(lock.with_extension("")).unwrap(), index);
        no_residue(&lock);
    }
}

#[test]
fn another_users_worktree_is_refused_for_root_too() {
    if !rustix::process::geteuid().is_root() {
        skipped("another user's repository needs root");
        return;
    }
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        lab.write("wt/f", "changed\n");
        let mut chown = std::process::Command::new("/bin/chown");
        chown
            .args(["-R", "65534:65534"])
            .args([lab.path("r"), lab.path("wt")]);
        assert!(chown.status().unwrap().success());
        let index = std::fs::read(lock.with_extension("")).unwrap();
        let failed = run(&lab, &tree, 0).unwrap_err();
        assert_eq!(failed.touched, Touched::Nothing);
        let refusal = failed.error.into_refusal();
        assert_eq!(refusal.code, Code::WorktreeRedirected);
        assert_eq!(refusal.reason.as_deref(), Some("other_owner"));
        assert!(refusal.why.contains("65534"), "{refusal}");
        // Nothing of it belongs to root now.
        let owner = std::fs::metadata(lock.with_extension("")).unwrap().uid();
        assert_eq!((lab.read("wt/f").as_str(), owner), ("changed\n", 65534));
        assert_eq!(std::fs::read(lock.with_extension("")).unwrap(), index);
    }
}
