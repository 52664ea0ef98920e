//! What a restoration removes, and what it never does: the repository itself, mounts, repositories of others.

use super::restore::{code, options};
use super::*;
use rustix::mount::{UnmountFlags, mount_bind, unmount};

/// A mount that a test made; `None` where the machine allows none.
struct Mounted(PathBuf);

impl Mounted {
    fn bind(from: &Path, at: &Path) -> Option<Self> {
        if mount_bind(from, at).is_err() {
            skipped("nothing can be mounted here");
            return None;
        }
        Some(Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

/// Makes a repository `r` of two commits, and gives the trees: the older has files `a`, `d/b`, `d/e/c`.
fn two(lab: &Lab) -> (String, String) {
    for (name, text) in [("r/a", "one\n"), ("r/d/b", "two\n"), ("r/d/e/c", "three\n")] {
        lab.write(name, text);
    }
    lab.commit("r", "one");
    let older = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
    lab.write("r/d/b", "TWO\n");
    lab.write("r/x/f", "new\n");
    lab.sh("r", &["rm", "-q", "d/e/c"]);
    lab.commit("r", "two");
    (older, lab.sh("r", &["rev-parse", "HEAD^{tree}"]))
}

const CLEAN: RestoreOptions = RestoreOptions {
    leftovers: Leftovers::Removed,
    ..KEPT
};
const KEPT: RestoreOptions = RestoreOptions {
    wait: Duration::from_secs(600),
    stale: semel_core::restore::Stale::Never,
    verify: Verify::Bytes,
    leftovers: Leftovers::Kept,
    nested: Nested::Refused,
    patience: semel_core::restore::Wait::PATIENCE,
};

fn run(
    lab: &Lab,
    at: &str,
    tree: &str,
    options: RestoreOptions,
) -> std::result::Result<Outcome, Box<Failed>> {
    restore(&lab.git, &lab.path(at), tree, options, &cancel())
}

/// Gives reason and names of a refusal before anything was touched.
#[track_caller]
fn refused(result: std::result::Result<Outcome, Box<Failed>>) -> (String, Vec<String>) {
    let failed = result.unwrap_err();
    assert_eq!(failed.touched, Touched::Nothing, "{failed}");
    let refusal = failed.error.into_refusal();
    assert_eq!(refusal.code, Code::PreconditionFailed, "{refusal}");
    (refusal.reason.unwrap_or_default(), refusal.names)
}

fn of(reason: &str, name: &str) -> (String, Vec<String>) {
    (reason.to_owned(), vec![name.to_owned()])
}

/// Turns `r` into a worktree `p` whose repository lies in it, at `p/NAME`.
fn inside(lab: &Lab, name: &str) {
    std::fs::create_dir(lab.path("p")).unwrap();
    let bare = lab.path(&format!("p/{name}"));
    std::fs::create_dir_all(bare.parent().unwrap()).unwrap();
    let bare = bare.to_str().unwrap();
    lab.sh(".", &["clone", "-q", "--bare", "r", bare]);
    lab.sh(bare, &["worktree", "add", "-q", "--detach", "../wt.tmp", "HEAD"]);
    let made = Path::new(bare).join("../wt.tmp");
    for entry in std::fs::read_dir(&made).unwrap() {
        let entry = entry.unwrap();
        std::fs::rename(entry.path(), lab.path("p").join(entry.file_name())).unwrap();
    }
    std::fs::remove_dir(&made).unwrap();
    let back = Path::new(bare).join("worktrees/wt.tmp/gitdir");
    std::fs::write(back, format!("{}\n", lab.path("p/.git").display())).unwrap();
}

#[test]
fn the_repository_of_the_worktree_is_never_residue() {
    for git in gits() {
        for (name, nested) in [(".bare", Nested::Refused), ("u/v/repo", Nested::Removed)] {
            let lab = Lab::new(&git);
            let (older, _) = two(&lab);
            inside(&lab, name);
            let before = lab.sh("p", &["rev-parse", "HEAD"]);
            let options = RestoreOptions { nested, ..CLEAN };
            assert_eq!(
                refused(run(&lab, "p", &older, options)),
                of("gitdir_inside", name)
            );
            assert_eq!(lab.sh("p", &["rev-parse", "HEAD"]), before);
            assert_eq!(lab.sh("p", &["fsck"]), "");
            assert_eq!(lab.read("p/d/b"), "TWO\n");
            // It stays where nothing is cleaned.
            run(&lab, "p", &older, KEPT).unwrap();
            assert_eq!(lab.read("p/d/b"), "two\n");
        }
    }
}

#[test]
fn what_comes_in_the_way_of_a_tree_that_is_known_is_seen() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (older, _) = two(&lab);
        // So often, and so long, that its directories are known.
        for _ in 0..3 {
            run(&lab, "r", &older, KEPT).unwrap();
            std::thread::sleep(Duration::from_millis(120));
        }
        for file in ["a", "d/b", "d/e/c"] {
            std::fs::remove_file(lab.path(&format!("r/{file}"))).unwrap();
            lab.sh(".", &["init", "-q", &format!("r/{file}")]);
            let named = format!("{file}/.git");
            assert_eq!(
                refused(run(&lab, "r", &older, KEPT)),
                of("nested_repository", &named)
            );
            let aside = lab.path(&format!("aside-{}", file.replace('/', "-")));
            std::fs::rename(lab.path(&format!("r/{file}")), aside).unwrap();
            run(&lab, "r", &older, KEPT).unwrap();
        }
        for dir in ["d", "d/e"] {
            run(&lab, "r", &older, KEPT).unwrap();
            let other = lab.path("other");
            std::fs::create_dir_all(&other).unwrap();
            let Some(mounted) = Mounted::bind(&other, &lab.path(&format!("r/{dir}"))) else {
                return;
            };
            assert_eq!(refused(run(&lab, "r", &older, KEPT)), of("mount", dir));
            drop(mounted);
        }
        // A directory in the way without a repository is looked into each time: here one comes into it between two refusals.
        std::fs::remove_file(lab.path("r/a")).unwrap();
        std::fs::create_dir(lab.path("r/a")).unwrap();
        lab.sh(".", &["init", "-q", "r/residue"]);
        std::thread::sleep(Duration::from_millis(120));
        assert_eq!(
            refused(run(&lab, "r", &older, CLEAN)),
            of("nested_repository", "residue/.git")
        );
        lab.sh(".", &["init", "-q", "r/a"]);
        assert_eq!(
            refused(run(&lab, "r", &older, CLEAN)),
            of("nested_repository", "a/.git")
        );
    }
}

#[test]
fn a_tree_does_not_write_into_the_repository_of_its_worktree() {
    for git in gits() {
        let lab = Lab::new(&git);
        two(&lab);
        lab.write("r/repo/HEAD", "not a ref\n");
        lab.commit("r", "into");
        let into = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
        lab.sh("r", &["rm", "-rq", "repo"]);
        lab.write("r/repo", "a file\n");
        lab.commit("r", "over");
        let over = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
        lab.sh("r", &["rm", "-q", "repo"]);
        lab.commit("r", "without");
        let without = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
        inside(&lab, "repo");
        for tree in [into.as_str(), &over] {
            let options = RestoreOptions {
                nested: Nested::Removed,
                ..KEPT
            };
            assert_eq!(
                refused(run(&lab, "p", tree, options)),
                of("gitdir_inside", "repo")
            );
        }
        // Files there that the index knows would be removed.
        let blob = lab.sh("p", &["hash-object", "-w", "d/b"]);
        lab.sh(
            "p",
            &[
                "update-index",
                "--add",
                "--cacheinfo",
                &format!("100644,{blob},repo/HEAD"),
            ],
        );
        assert_eq!(
            refused(run(&lab, "p", &without, KEPT)),
            of("gitdir_inside", "repo")
        );
        assert_eq!(lab.sh("p", &["fsck"]), "");
    }
}

#[test]
fn a_repository_without_a_worktree_is_one() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (older, _) = two(&lab);
        lab.sh("r", &["clone", "-q", "--bare", ".", "u/deep/mirror.git"]);
        let found = of("nested_repository", "u/deep/mirror.git");
        assert_eq!(refused(run(&lab, "r", &older, CLEAN)), found);
        std::fs::remove_file(lab.path("r/a")).unwrap();
        std::fs::rename(lab.path("r/u"), lab.path("r/a")).unwrap();
        let found = of("nested_repository", "a/deep/mirror.git");
        assert_eq!(refused(run(&lab, "r", &older, KEPT)), found);
        assert!(lab.path("r/a/deep/mirror.git/HEAD").exists());
        run(
            &lab,
            "r",
            &older,
            RestoreOptions {
                nested: Nested::Removed,
                ..CLEAN
            },
        )
        .unwrap();
        assert_eq!(lab.read("r/a"), "one\n");
    }
}

#[test]
fn nothing_beneath_a_mount_is_removed() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (older, newer) = two(&lab);
        lab.write("out/p/kept", "kept\n");
        lab.write("out/f", "kept\n");
        // In the way of a file; over a directory of the tree; over one that only the index knows; in what is cleaned, at
        // any depth, as a directory and as a file.
        std::fs::remove_file(lab.path("r/a")).unwrap();
        for (at, from, tree, options) in [
            ("a", "out", &older, KEPT),
            ("a/u/v", "out", &older, KEPT),
            ("d", "out", &older, KEPT),
            ("d", "out", &newer, CLEAN),
            ("x", "out", &older, KEPT),
            ("u", "out", &older, CLEAN),
            ("u/v/w", "out", &older, CLEAN),
            ("u/v/f", "out/f", &older, CLEAN),
        ] {
            let place = lab.path(&format!("r/{at}"));
            if lab.path(from).is_dir() {
                std::fs::create_dir_all(&place).unwrap();
            } else {
                lab.write(&format!("r/{at}"), "");
            }
            let Some(mounted) = Mounted::bind(&lab.path(from), &place) else {
                return;
            };
            let options = RestoreOptions {
                nested: Nested::Removed,
                ..options
            };
            assert_eq!(refused(run(&lab, "r", tree, options)), of("mount", at), "{at}");
            drop(mounted);
            assert_eq!(lab.read("out/p/kept"), "kept\n");
            for of_the_test in ["r/a", "r/u"] {
                if lab.path(of_the_test).exists() {
                    remove_all(&lab.path(of_the_test));
                }
            }
        }
        run(&lab, "r", &older, CLEAN).unwrap();
    }
}

/// What git does not touch may be mounted: an ignored cache, the place of a submodule.
#[test]
fn a_mount_that_is_not_in_the_way_stays() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (older, _) = two(&lab);
        lab.write("out/a", "one\n");
        for place in ["r/cache", "r/sub"] {
            std::fs::create_dir(lab.path(place)).unwrap();
        }
        let link = format!("160000,{},sub", lab.sh("r", &["rev-parse", "HEAD"]));
        lab.sh("r", &["update-index", "--add", "--cacheinfo", &link]);
        let with_sub = lab.sh("r", &["write-tree"]);
        let Some(_cache) = Mounted::bind(&lab.path("out"), &lab.path("r/cache")) else {
            return;
        };
        let sub = Mounted::bind(&lab.path("out"), &lab.path("r/sub"));
        run(&lab, "r", &with_sub, KEPT).unwrap();
        drop(sub);
        run(&lab, "r", &older, KEPT).unwrap();
        let _file = Mounted::bind(&lab.path("out/a"), &lab.path("r/a"));
        assert_eq!(refused(run(&lab, "r", &older, KEPT)), of("mount", "a"));
        assert_eq!(lab.read("out/a"), "one\n");
    }
}

#[test]
fn names_on_the_disk_are_not_judged_as_those_of_callers() {
    let deep = "k/".repeat(80);
    for git in gits() {
        let lab = Lab::new(&git);
        let (_, newer) = two(&lab);
        for name in ["~$doc.docx", "~", "~backup/x", &format!("u/{deep}f")] {
            lab.write(&format!("r/{name}"), "x\n");
        }
        let outcome = run(&lab, "r", &newer, KEPT).unwrap();
        let names: Vec<String> = outcome.residue.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["u", "~", "~$doc.docx", "~backup"]);
        lab.commit("r", "all of it");
        let all = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
        std::fs::remove_file(lab.path("r/~")).unwrap();
        lab.write("r/~/x", "in the way\n");
        lab.write(&format!("r/{deep}g"), "x\n");
        let outcome = run(&lab, "r", &all, CLEAN).unwrap();
        assert_eq!(outcome.removed_count, 1);
        assert_eq!(lab.read("r/~"), "x\n");
        assert_eq!(lab.read(&format!("r/u/{deep}f")), "x\n");
        let outcome = run(
            &lab,
            "r",
            &newer,
            RestoreOptions {
                verify: Verify::Pristine,
                ..CLEAN
            },
        )
        .unwrap();
        assert_eq!((outcome.residue_count, outcome.removed_count), (0, 0));
        assert!(!lab.path("r/u").exists());
    }
}

/// Makes a file immutable as soon as a point is reached; the machine may not allow it.
struct Sets<'a>(&'a Path, Point);

impl Witness for Sets<'_> {
    fn reached(&self, point: Point) {
        if point == self.1 {
            assert!(change("+i", self.0));
        }
    }
}

fn change(flag: &str, place: &Path) -> bool {
    let ran = std::process::Command::new("chattr").arg(flag).arg(place).output();
    ran.is_ok_and(|ran| ran.status.success())
}

/// What the system keeps is named by its whole path, and stands where it stood: before the first write, if it can be seen then.
#[test]
fn what_cannot_be_removed_is_named_by_its_whole_path() {
    let git = &gits()[0];
    let lab = Lab::new(git);
    let (older, newer) = two(&lab);
    lab.write("r/u/v/w/stays", "x\n");
    lab.write("r/u/v/goes", "x\n");
    let file = lab.path("r/u/v/w/stays");
    if !change("+i", &file) {
        return skipped("no file can be made immutable here");
    }
    let before = run(&lab, "r", &older, CLEAN);
    assert!(change("-i", &file));
    assert_eq!(refused(before), of("residue_kept", "u/v/w/stays"));
    assert_eq!(
        (lab.read("r/d/b").as_str(), lab.read("r/u/v/goes").as_str()),
        ("TWO\n", "x\n")
    );
    // The directory that holds it is one of the tree, from which nothing goes.
    lab.write("r/d/left", "x\n");
    assert!(change("+a", &lab.path("r/d")));
    let before = run(&lab, "r", &older, CLEAN);
    assert!(change("-a", &lab.path("r/d")));
    assert_eq!(refused(before), of("residue_kept", "d/left"));
    std::fs::remove_file(lab.path("r/d/left")).unwrap();

    let sets = Sets(&file, Point::Restored);
    let late = restore_watched(git, &lab.path("r"), &newer, CLEAN, &cancel(), &sets).unwrap_err();
    let there = lab.read("r/u/v/w/stays");
    assert!(change("-i", &file));
    assert_eq!((late.touched, there.as_str()), (Touched::Perhaps, "x\n"));
    let refusal = late.error.into_refusal();
    assert_eq!(refusal.reason.as_deref(), Some("residue_kept"));
    assert_eq!(refusal.names, ["u/v/w/stays"]);
    assert!(!lab.path("r/u/v/goes").exists());
    assert_eq!(run(&lab, "r", &newer, CLEAN).unwrap().removed_count, 1);
    assert_eq!(code(run(&lab, "r", "x", options(1))).1, Touched::Nothing);
}

/// Parts of the repository that are links lead into the worktree: they are the repository all the same.
#[test]
fn parts_of_the_repository_that_links_lead_to_are_never_removed() {
    use std::os::unix::fs::symlink;
    for git in gits() {
        for (part, at, file) in [
            ("objects/pack", "packs", false),
            ("objects/info", "u/v/info", false),
            ("refs", "myrefs", false),
            ("refs/heads", "u/heads", false),
            ("logs", "u/logs", false),
            ("hooks", "u/hooks", false),
            ("packed-refs", "u/refs", true),
            ("hooks/pre-commit", "u/hook", true),
        ] {
            let lab = Lab::new(&git);
            let (older, newer) = two(&lab);
            lab.sh("r", &["gc", "-q"]);
            let real = lab.path(&format!("r/.git/{part}"));
            if file {
                lab.write(
                    &format!("r/.git/{part}"),
                    std::fs::read(&real).unwrap_or_default(),
                );
            } else {
                std::fs::create_dir_all(&real).unwrap();
            }
            let there = lab.path(&format!("r/{at}"));
            std::fs::create_dir_all(there.parent().unwrap()).unwrap();
            std::fs::rename(&real, &there).unwrap();
            symlink(&there, &real).unwrap();
            // What is learnt of a directory is of no use to who comes next, where it led elsewhere meanwhile.
            for nested in [Nested::Refused, Nested::Removed] {
                let options = RestoreOptions { nested, ..CLEAN };
                assert_eq!(
                    refused(run(&lab, "r", &newer, options)),
                    of("gitdir_inside", at),
                    "{part}"
                );
            }
            assert!(there.exists());
            lab.sh("r", &["rev-parse", "HEAD"]);
            run(&lab, "r", &older, KEPT).unwrap();
        }
    }
}

/// So do directories of it that are mounted where the repository looks for them.
#[test]
fn parts_of_the_repository_that_are_mounted_are_never_removed() {
    for git in gits() {
        for part in ["objects/pack", "refs/heads", "logs"] {
            let lab = Lab::new(&git);
            let (older, newer) = two(&lab);
            lab.sh("r", &["gc", "-q"]);
            let (real, there) = (lab.path(&format!("r/.git/{part}")), lab.path("r/kept"));
            std::fs::rename(&real, &there).unwrap();
            std::fs::create_dir(&real).unwrap();
            let Some(mounted) = Mounted::bind(&there, &real) else {
                return;
            };
            assert_eq!(
                refused(run(&lab, "r", &newer, CLEAN)),
                of("gitdir_inside", "kept"),
                "{part}"
            );
            assert_eq!(lab.sh("r", &["rev-parse", "HEAD^{tree}"]), newer);
            run(&lab, "r", &older, KEPT).unwrap();
            drop(mounted);
        }
    }
}

/// A hook is often a link to a file of the tree, which is written like any other.
#[test]
fn a_hook_that_is_a_file_of_the_tree_is_restored() {
    use std::os::unix::fs::symlink;
    for git in gits() {
        let lab = Lab::new(&git);
        let (older, _) = two(&lab);
        std::fs::create_dir_all(lab.path("r/.git/hooks")).unwrap();
        symlink("../../d/b", lab.path("r/.git/hooks/pre-commit")).unwrap();
        run(&lab, "r", &older, CLEAN).unwrap();
        assert_eq!(lab.read("r/d/b"), "two\n");
        remove_all(&lab.path("r/.git/hooks"));
        symlink("../d", lab.path("r/.git/hooks")).unwrap();
        lab.write("r/d/b", "changed\n");
        run(&lab, "r", &older, CLEAN).unwrap();
        assert_eq!(lab.read("r/d/b"), "two\n");
        // Data is another matter, of the tree or not.
        lab.write("r/d/e/c", lab.sh("r", &["show-ref"]) + "\n");
        lab.sh("r", &["pack-refs", "--all"]);
        std::fs::rename(lab.path("r/.git/packed-refs"), lab.path("r/d/e/c")).unwrap();
        symlink("../d/e/c", lab.path("r/.git/packed-refs")).unwrap();
        assert_eq!(
            refused(run(&lab, "r", &older, CLEAN)),
            of("gitdir_inside", "d/e/c")
        );
    }
}

/// The state root is mounted elsewhere: its path tells nothing, and it is emptied by no other name.
#[test]
fn a_state_root_is_not_removed_by_another_name() {
    let git = &gits()[0];
    let lab = Lab::new(git);
    let (_, newer) = two(&lab);
    lab.write("r/u/state/worktrees/kept", "x\n");
    std::fs::create_dir(lab.path("state")).unwrap();
    let Some(_mounted) = Mounted::bind(&lab.path("r/u/state"), &lab.path("state")) else {
        return;
    };
    let pins = Pins::of(&lab.path("state"));
    for pinned in [false, true] {
        if pinned {
            pins.pin(
                git,
                &lab.path("r"),
                Repin::Refuse,
                Duration::from_secs(9),
                &cancel(),
            )
            .unwrap();
        }
        let target = pins.target(&lab.path("r"), Require::Nothing).unwrap();
        assert_eq!(matches!(target, Target::Kept { .. }), pinned);
        let failed = restore(git, target, &newer, CLEAN, &cancel()).unwrap_err();
        assert_eq!(failed.touched, Touched::Nothing, "{failed}");
        let refusal = failed.error.into_refusal();
        assert_eq!(
            (refusal.code, refusal.reason.as_deref()),
            (Code::BadConfig, Some("state_in_worktree"))
        );
        assert_eq!(refusal.names, ["u/state"]);
        assert_eq!(lab.read("r/u/state/worktrees/kept"), "x\n");
    }
}
