//! What stands around a restoration: disks, hooks, shapes, obstacles, other locks. The numbers are those of the table in
//! `crates/semel/tests/it/restoring.rs`.

use super::restore::{code, no_residue, options};
use super::*;
use rustix::fs::{CWD, FileType, Mode as FileMode, makedev, mknodat};

fn run(lab: &Lab, tree: &str) -> std::result::Result<Outcome, Box<Failed>> {
    run_with(lab, tree, options(0))
}

fn run_with(lab: &Lab, tree: &str, options: RestoreOptions) -> std::result::Result<Outcome, Box<Failed>> {
    restore(&lab.git, &lab.path("wt"), tree, options, &cancel())
}

fn reason(result: std::result::Result<Outcome, Box<Failed>>) -> (Code, Option<String>) {
    let refusal = result.unwrap_err().error.into_refusal();
    (refusal.code, refusal.reason)
}

/// Something that is mounted as long as a test runs.
struct Mounted(PathBuf);

impl Mounted {
    fn new(args: &[&str], place: &Path) -> Option<Self> {
        std::fs::create_dir_all(place).unwrap();
        let mut mount = std::process::Command::new("mount");
        let done = mount.args(args).arg(place).stderr(Stdio::null()).status();
        let mounted = done.is_ok_and(|status| status.success());
        if !mounted {
            skipped("a disk of a test's own needs the right to mount");
        }
        mounted.then(|| Self(place.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mut umount = std::process::Command::new("umount");
        umount.arg("-l").arg(&self.0).status().ok();
    }
}

#[test]
fn a05_a_device_and_a_link_to_the_index_are_unsafe() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        let index = lock.with_extension("");
        let before = std::fs::read(&index).unwrap();
        std::os::unix::fs::symlink(&index, &lock).unwrap();
        assert_eq!(
            reason(run(&lab, &tree)),
            (Code::LockUnsafe, Some("symlink".to_owned()))
        );
        std::fs::remove_file(&lock).unwrap();
        if mknodat(
            CWD,
            &lock,
            FileType::CharacterDevice,
            FileMode::RWXU,
            makedev(1, 3),
        )
        .is_ok()
        {
            assert_eq!(
                reason(run(&lab, &tree)),
                (Code::LockUnsafe, Some("special".to_owned()))
            );
            std::fs::remove_file(&lock).unwrap();
        } else {
            skipped("a device needs root");
        }
        assert_eq!(std::fs::read(&index).unwrap(), before);
        no_residue(&lock);
    }
}

/// A disk that fills up while git writes: terminal, with git's words, the index as it was, no lock left.
#[test]
fn a18_a_full_disk_ends_it_and_leaves_the_index() {
    for git in gits() {
        let lab = Lab::new(&git);
        let Some(_disk) = Mounted::new(&["-t", "tmpfs", "-o", "size=4m", "tmpfs"], &lab.path("disk")) else {
            return;
        };
        std::fs::create_dir(lab.path("disk/r")).unwrap();
        lab.sh("disk/r", &["init", "-q"]);
        lab.write("disk/r/small", "small\n");
        lab.commit("disk/r", "one");
        lab.sh("disk/r", &["worktree", "add", "-q", "../wt", "-b", "w"]);
        // Highly packed in the repository, large on the disk.
        lab.write("disk/r/large", vec![b'x'; 2 << 20]);
        lab.commit("disk/r", "two");
        let tree = lab.sh("disk/r", &["rev-parse", "HEAD^{tree}"]);
        let lock = lab.path("disk/r/.git/worktrees/wt/index.lock");
        let index = std::fs::read(lock.with_extension("")).unwrap();
        lab.write("disk/filler", vec![0; 1 << 20]);
        let result = restore(&git, &lab.path("disk/wt"), &tree, options(0), &cancel());
        let failed = result.unwrap_err();
        assert_eq!(
            (failed.error.code(), failed.touched),
            (Code::GitFailed, Touched::Perhaps)
        );
        assert_eq!(std::fs::read(lock.with_extension("")).unwrap(), index);
        assert!(!lock.exists());
        no_residue(&lock);
        // With no room for the lock's record, it cannot be made at all: nothing was begun. The kernel may find a page that
        // it had put by; then git meets the full disk once more.
        let mut count = 0;
        until("no page is left", || {
            let mut rest = 1 << 20;
            while rest > 0 {
                count += 1;
                if std::fs::write(lab.path(&format!("disk/rest{count}")), vec![0; rest]).is_err() {
                    rest /= 2;
                }
            }
            let failed = restore(&git, &lab.path("disk/wt"), &tree, options(0), &cancel()).unwrap_err();
            let touched = failed.touched;
            let refusal = failed.error.into_refusal();
            if touched == Touched::Nothing {
                assert_eq!(
                    (refusal.code, refusal.reason.as_deref()),
                    (Code::IoFailed, Some("disk_full"))
                );
                assert!(refusal.why.contains("No space left"), "{}", refusal.why);
            }
            touched == Touched::Nothing
        });
        assert_eq!(std::fs::read(lock.with_extension("")).unwrap(), index);
        no_residue(&lock);
    }
}

#[test]
fn a18_a_read_only_disk_and_a_read_only_directory() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/dir/g", "g\n");
        let (tree, lock) = lab.linked();
        lab.write("wt/dir/g", "changed\n");
        // A disk of its own for the files, not for the repository; mounted further down, it would be refused at once.
        let whole = lab.path("wt").display().to_string();
        let Some(directory) = Mounted::new(&["--bind", &whole], &lab.path("wt")) else {
            return;
        };
        let mut remount = std::process::Command::new("mount");
        remount.args(["-o", "remount,ro,bind"]).arg(lab.path("wt"));
        assert!(remount.status().unwrap().success());
        let index = std::fs::read(lock.with_extension("")).unwrap();
        let failed = run(&lab, &tree).unwrap_err();
        assert_eq!(
            (failed.error.code(), failed.touched),
            (Code::GitFailed, Touched::Perhaps)
        );
        assert_eq!(std::fs::read(lock.with_extension("")).unwrap(), index);
        assert!(!lock.exists());
        no_residue(&lock);
        drop(directory);
        let gitdir = lock.parent().unwrap().display().to_string();
        let Some(_read_only) = Mounted::new(&["--bind", &gitdir], lock.parent().unwrap()) else {
            return;
        };
        let mut remount = std::process::Command::new("mount");
        remount
            .args(["-o", "remount,ro,bind"])
            .arg(lock.parent().unwrap());
        assert!(remount.status().unwrap().success());
        let failed = run(&lab, &tree).unwrap_err();
        assert_eq!(failed.touched, Touched::Nothing);
        let refusal = failed.error.into_refusal();
        assert_eq!(
            (refusal.code, refusal.reason.as_deref()),
            (Code::LockUnsafe, Some("denied"))
        );
        assert!(refusal.why.contains("Read-only"), "{}", refusal.why);
    }
}

/// No hook and no monitor of the repository runs, wherever it is configured.
#[test]
fn a20_hooks_and_monitors_never_run() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        let ran = lab.path("ran");
        let hook = format!(
            "#!/bin/sh\ntouch '{}'\nprintf 'fatal: Unable to create\\n' >&2\nexit 1\n",
            ran.display()
        );
        std::fs::create_dir_all(lab.path("hooks")).unwrap();
        std::fs::create_dir_all(lab.path("r/.git/hooks")).unwrap();
        for name in [
            "post-index-change",
            "post-checkout",
            "reference-transaction",
            "fsmonitor-watchman",
        ] {
            executable(&lab.path(&format!("r/.git/hooks/{name}")), &hook);
            executable(&lab.path(&format!("hooks/{name}")), &hook);
        }
        for hooks in ["", "../hooks"] {
            if !hooks.is_empty() {
                let place = lab.path("hooks").display().to_string();
                lab.sh("r", &["config", "core.hooksPath", &place]);
                let monitor = lab.path("hooks/fsmonitor-watchman").display().to_string();
                lab.sh("r", &["config", "core.fsmonitor", &monitor]);
            }
            lab.write("wt/f", "changed\n");
            run(&lab, &tree).unwrap();
            assert_eq!(lab.read("wt/f"), "one\n");
            assert!(!ran.exists(), "a hook was run by {}", git.version());
        }
        no_residue(&lock);
    }
}

#[test]
fn a21_odd_paths_decide_nothing() {
    use std::os::unix::ffi::OsStrExt;
    for git in gits() {
        let deep = "d".repeat(200);
        for name in [
            &b"new\nline"[..],
            b"esc\x1b[31m",
            b"raw\xff\xfe",
            b"quo\"te's \\ back",
            deep.as_bytes(),
        ] {
            let lab = Lab::new(&git);
            lab.write("r/f", "one\n");
            lab.commit("r", "one");
            let mut worktree = lab.path(".").join(std::ffi::OsStr::from_bytes(name));
            if name == deep.as_bytes() {
                // The path of the lock is longer than what git writes of it in one message.
                while worktree.as_os_str().len() < 3_600 {
                    worktree.push(&deep);
                }
            }
            std::fs::create_dir_all(worktree.parent().unwrap()).unwrap();
            let mut add = lab.command("r", &["worktree", "add", "-q", "-b", "w"]);
            let ran = add.arg(&worktree).output().unwrap();
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
            let tree = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
            std::fs::write(worktree.join("f"), "changed\n").unwrap();
            let result = restore(&git, &worktree, &tree, options(0), &cancel());
            result.unwrap_or_else(|e| panic!("{:?} by {}: {e}", name, git.version()));
            assert_eq!(std::fs::read(worktree.join("f")).unwrap(), b"one\n");
        }
    }
}

#[test]
fn a23_a_sparse_index_and_a_submodules_worktree() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/in/a", "a\n");
        lab.write("r/out/b", "b\n");
        let (tree, lock) = lab.linked();
        lab.sh("wt", &["sparse-checkout", "init", "--cone", "--sparse-index"]);
        lab.sh("wt", &["sparse-checkout", "set", "in"]);
        assert!(!lab.path("wt/out").exists());
        lab.write("wt/in/a", "changed\n");
        // Byte for byte it cannot be proved: it says so before anything is touched.
        let (refused, why) = reason(run(&lab, &tree));
        assert_eq!(
            (refused, why.as_deref()),
            (Code::PreconditionFailed, Some("sparse_checkout"))
        );
        let by_tree = RestoreOptions {
            verify: Verify::Tree,
            ..options(0)
        };
        run_with(&lab, &tree, by_tree).unwrap();
        assert_eq!(lab.read("wt/in/a"), "a\n");
        assert!(!lab.path("wt/out").exists(), "it stays sparse");
        assert_eq!(lab.sh("wt", &["write-tree"]), tree);
        no_residue(&lock);

        // A submodule: its git directory lies in its superproject's, and has its own lock.
        lab.sh(".", &["init", "-q", "super"]);
        lab.write("super/s", "s\n");
        lab.commit("super", "one");
        let from = lab.path("r").display().to_string();
        lab.sh(
            "super",
            &[
                "-c",
                "protocol.file.allow=always",
                "submodule",
                "add",
                "-q",
                &from,
                "sub",
            ],
        );
        let whole = lab.commit("super", "two");
        let own = lab.sh("super", &["rev-parse", &format!("{whole}^{{tree}}")]);
        lab.write("super/s", "changed\n");
        // Recursion is off, so the submodule's lock is nobody's matter.
        lab.sh("super", &["config", "submodule.recurse", "true"]);
        lab.write("super/.git/modules/sub/index.lock", "held");
        restore(&git, &lab.path("super"), &own, options(0), &cancel()).unwrap();
        assert_eq!(lab.read("super/s"), "s\n");
        assert_eq!(lab.read("super/.git/modules/sub/index.lock"), "held");
    }
}

#[test]
fn a24_what_lies_in_the_way_is_replaced_and_nothing_outside_is_touched() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/dir/g", "g\n");
        let (tree, lock) = lab.linked();
        lab.write("outside/g", "precious\n");
        std::fs::rename(lab.path("wt/dir"), lab.path("moved")).unwrap();
        std::os::unix::fs::symlink(lab.path("outside"), lab.path("wt/dir")).unwrap();
        std::fs::remove_file(lab.path("wt/f")).unwrap();
        lab.write("wt/f/untracked/deep", "x");
        run(&lab, &tree).unwrap();
        assert_eq!(lab.read("outside/g"), "precious\n");
        assert_eq!(
            (lab.read("wt/dir/g"), lab.read("wt/f")),
            ("g\n".to_owned(), "one\n".to_owned())
        );
        assert!(!lab.path("wt/dir").is_symlink());

        // A repository in the way goes only if that is said; one beside it never counts as in the way.
        std::fs::remove_file(lab.path("wt/f")).unwrap();
        lab.write("wt/f/inner/work", "precious");
        lab.sh("wt/f/inner", &["init", "-q"]);
        lab.write("wt/beside/work", "precious");
        lab.sh("wt/beside", &["init", "-q"]);
        let (refused, why) = reason(run(&lab, &tree));
        assert_eq!(
            (refused, why.as_deref()),
            (Code::PreconditionFailed, Some("nested_repository"))
        );
        let remove = RestoreOptions {
            nested: Nested::Removed,
            ..options(0)
        };
        run_with(&lab, &tree, remove).unwrap();
        assert_eq!(lab.read("wt/f"), "one\n");
        assert_eq!(lab.read("wt/beside/work"), "precious");
        no_residue(&lock);
    }
}

#[test]
fn a24_pristine_names_what_is_left_and_clean_removes_it() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/.gitignore", ".venv/\n");
        let (tree, lock) = lab.linked();
        lab.write("wt/.venv/bin/python", "x");
        lab.write("wt/extra", "x");
        std::fs::create_dir(lab.path("wt/empty")).unwrap();
        lab.write("outside", "precious");
        std::os::unix::fs::symlink(lab.path("outside"), lab.path("wt/link")).unwrap();
        lab.write("wt/f", "changed\n");
        let pristine = RestoreOptions {
            verify: Verify::Pristine,
            ..options(0)
        };
        let failed = run_with(&lab, &tree, pristine).unwrap_err();
        assert_eq!(failed.touched, Touched::Perhaps);
        let refusal = failed.error.into_refusal();
        assert_eq!(
            (refusal.code, refusal.reason.as_deref()),
            (Code::TreeMismatch, Some("residue"))
        );
        assert_eq!(refusal.names, [".venv", "empty", "extra", "link"]);
        let clean = RestoreOptions {
            leftovers: Leftovers::Removed,
            ..pristine
        };
        // A repository in it is somebody's work.
        lab.write("wt/clone/work", "precious");
        lab.sh("wt/clone", &["init", "-q"]);
        let (refused, why) = reason(run_with(&lab, &tree, clean));
        assert_eq!(
            (refused, why.as_deref()),
            (Code::PreconditionFailed, Some("nested_repository"))
        );
        assert_eq!(lab.read("wt/clone/work"), "precious");
        let clean = RestoreOptions {
            nested: Nested::Removed,
            ..clean
        };
        let outcome = run_with(&lab, &tree, clean).unwrap();
        assert_eq!((outcome.residue_count, outcome.removed_count), (0, 5));
        assert_eq!(outcome.verified, Verify::Pristine);
        let mut left: Vec<String> = std::fs::read_dir(lab.path("wt"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, [".git", ".gitignore", "f"]);
        assert_eq!(lab.read("outside"), "precious");
        assert_eq!(lab.sh("wt", &["status", "--porcelain", "--ignored"]), "");
        no_residue(&lock);
    }
}

#[test]
fn a25_other_locks_are_in_nobodys_way_and_stay() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, lock) = lab.linked();
        let others = [
            "config.lock",
            "packed-refs.lock",
            "shallow.lock",
            "refs/heads/w.lock",
        ];
        let mut held: Vec<PathBuf> = others
            .iter()
            .map(|name| lab.path(&format!("r/.git/{name}")))
            .collect();
        held.push(lock.with_file_name("HEAD.lock"));
        for place in &held {
            std::fs::write(place, "held").unwrap();
        }
        lab.write("wt/f", "changed\n");
        run(&lab, &tree).unwrap();
        assert_eq!(lab.read("wt/f"), "one\n");
        for place in &held {
            assert_eq!(std::fs::read(place).unwrap(), b"held", "{}", place.display());
        }
        no_residue(&lock);
    }
}

/// Git's own executable can be named by its path, and what is there is what is used.
#[test]
fn git_by_its_path() {
    let lab = Lab::new(&gits()[0]);
    assert_eq!(
        Git::at(Path::new("/nowhere/git")).unwrap_err().code(),
        Code::NotFound
    );
    assert_eq!(
        Git::at(Path::new("/bin/true")).unwrap_err().code(),
        Code::BadConfig
    );
    let link = lab.path("linked-git");
    std::os::unix::fs::symlink(lab.git.program(), &link).unwrap();
    let found = Git::at(&link).unwrap();
    assert_eq!(
        (found.program(), found.sha256()),
        (lab.git.program(), lab.git.sha256())
    );
    assert_eq!(code(run(&lab, "x")).0, Code::BadInput);
}
