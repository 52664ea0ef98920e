//! Repositories of others where the tree has a directory or a submodule: their files are not written over, and only they hide
//! what lies there.

use super::restore::options;
use super::*;
use std::os::unix::fs::symlink;

fn run(lab: &Lab, tree: &str, options: RestoreOptions) -> std::result::Result<Outcome, Box<Failed>> {
    restore(&lab.git, &lab.path("r"), tree, options, &cancel())
}

fn removing() -> RestoreOptions {
    RestoreOptions {
        nested: Nested::Removed,
        ..options(0)
    }
}

fn clean() -> RestoreOptions {
    RestoreOptions {
        leftovers: Leftovers::Removed,
        ..options(0)
    }
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

fn nested(name: &str) -> (String, Vec<String>) {
    ("nested_repository".to_owned(), vec![name.to_owned()])
}

/// Makes a repository `r` of files `a`, `lib/README`, `lib/in/f`, and gives its tree and that of `a` alone, which it has.
fn with_lib(lab: &Lab) -> (String, String) {
    for name in ["a", "lib/README", "lib/in/f"] {
        lab.write(&format!("r/{name}"), "tree\n");
    }
    lab.commit("r", "with");
    let with = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
    lab.sh("r", &["rm", "-rq", "lib"]);
    lab.commit("r", "without");
    (with, lab.sh("r", &["rev-parse", "HEAD^{tree}"]))
}

/// Makes a repository at a place, whose `README` has uncommitted work.
fn inhabit(lab: &Lab, at: &str) {
    lab.sh(".", &["init", "-q", at]);
    lab.write(&format!("{at}/README"), "theirs\n");
    lab.commit(at, "theirs");
    lab.write(&format!("{at}/README"), "uncommitted\n");
}

#[test]
fn a_repository_where_a_directory_of_the_tree_has_to_go_is_not_written_over() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (with, without) = with_lib(&lab);
        for (way, named) in [
            ("plain", "lib/.git"),
            ("deep", "lib/in/.git"),
            ("linked", "lib/.git"),
            ("link", "lib/.git"),
        ] {
            for _ in 0..2 {
                run(&lab, &without, clean()).unwrap();
                // So long that its directories are known when they come to be known.
                std::thread::sleep(Duration::from_millis(120));
            }
            let place = if way == "deep" { "r/lib/in" } else { "r/lib" };
            match way {
                "linked" => {
                    lab.sh("r", &["worktree", "add", "-q", "--detach", "lib"]);
                    lab.write("r/lib/README", "uncommitted\n");
                }
                "link" => {
                    inhabit(&lab, place);
                    std::fs::rename(lab.path("r/lib/.git"), lab.path("elsewhere")).unwrap();
                    symlink(lab.path("elsewhere"), lab.path("r/lib/.git")).unwrap();
                }
                _ => inhabit(&lab, place),
            }
            let work = format!("{place}/README");
            assert_eq!(refused(run(&lab, &with, options(0))), nested(named), "{way}");
            assert_eq!(refused(run(&lab, &with, clean())), nested(named), "{way}");
            assert_eq!(lab.read(&work), "uncommitted\n");
            // What was asked to go is a repository no more; what of it is not of the tree is told.
            lab.write(&format!("{place}/more"), "theirs\n");
            let outcome = run(&lab, &with, removing()).unwrap();
            let names =
                |paths: &[semel_core::RelPath]| paths.iter().map(ToString::to_string).collect::<Vec<_>>();
            assert_eq!(
                (names(&outcome.removed), outcome.removed_count),
                (vec![named.to_owned()], 1)
            );
            let mut left = vec![format!("{}/more", &place[2..])];
            if way == "deep" {
                left.insert(0, "lib/in/README".to_owned());
            }
            if way == "linked" {
                left.insert(0, "lib/a".to_owned());
            }
            left.sort();
            let mut found = names(&outcome.residue);
            found.retain(|name| name != "lib/a" || way == "linked");
            assert_eq!(found, left, "{way}");
            assert_eq!(lab.read("r/lib/README"), "tree\n");
            lab.sh("r", &["worktree", "prune"]);
        }
    }
}

/// A submodule becomes a directory: its worktree is the submodule's still.
#[test]
fn a_submodule_that_becomes_a_directory_is_not_written_over() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (with, _) = with_lib(&lab);
        inhabit(&lab, "sub");
        lab.sh("sub", &["commit", "-qam", "all"]);
        let url = lab.path("sub");
        let add = [
            "-c",
            "protocol.file.allow=always",
            "submodule",
            "--quiet",
            "add",
            url.to_str().unwrap(),
            "lib",
        ];
        lab.sh("r", &add);
        lab.commit("r", "three");
        lab.write("r/lib/README", "uncommitted\n");
        assert_eq!(refused(run(&lab, &with, options(0))), nested("lib/.git"));
        assert_eq!(lab.read("r/lib/README"), "uncommitted\n");
        run(&lab, &with, removing()).unwrap();
        assert_eq!(lab.read("r/lib/README"), "tree\n");
        assert!(lab.path("r/.git/modules/lib/HEAD").exists());
    }
}

/// What the index knows in a directory is restored, whatever is beside it: that directory is of this worktree.
#[test]
fn the_main_worktree_of_the_same_repository_is_not_written_over() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (with, without) = with_lib(&lab);
        lab.sh("r", &["worktree", "add", "-q", "--detach", "../wt", "HEAD"]);
        std::fs::rename(lab.path("r"), lab.path("wt/lib")).unwrap();
        let wt = lab.path("wt");
        lab.sh("wt/lib", &["worktree", "repair", wt.to_str().unwrap()]);
        lab.write("wt/lib/README", "uncommitted\n");
        for _ in 0..2 {
            let asked = restore(&lab.git, &wt, &with, options(0), &cancel());
            assert_eq!(
                refused(asked),
                ("gitdir_inside".to_owned(), vec!["lib/.git".to_owned()])
            );
            assert_eq!(lab.read("wt/lib/README"), "uncommitted\n");
            restore(&lab.git, &wt, &without, options(0), &cancel()).unwrap();
            std::thread::sleep(Duration::from_millis(120));
        }
    }
}

#[test]
fn a_directory_that_the_index_knows_is_of_this_worktree() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (with, _) = with_lib(&lab);
        run(&lab, &with, options(0)).unwrap();
        inhabit(&lab, "r/lib");
        run(&lab, &with, removing()).unwrap();
        assert_eq!(lab.read("r/lib/README"), "tree\n");
        assert!(lab.path("r/lib/.git/HEAD").exists());
        assert_eq!(refused(run(&lab, &with, clean())), nested("lib/.git"));
    }
}

/// What fills an empty `.git` changes nothing of the directory that holds it, which is known by then.
#[test]
fn a_repository_that_comes_to_be_in_a_known_directory_is_seen() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (with, _) = with_lib(&lab);
        std::fs::create_dir_all(lab.path("r/lib/.git")).unwrap();
        for _ in 0..3 {
            run(&lab, &with, options(0)).unwrap();
            std::thread::sleep(Duration::from_millis(120));
        }
        lab.sh("r", &["rm", "-rq", "--cached", "lib"]);
        lab.sh(".", &["init", "-q", "r/lib"]);
        lab.write("r/lib/README", "uncommitted\n");
        assert_eq!(refused(run(&lab, &with, options(0))), nested("lib/.git"));
        assert_eq!(lab.read("r/lib/README"), "uncommitted\n");
    }
}

/// A repository without a worktree is one by its `HEAD` and objects, unless it is of the tree itself.
#[test]
fn a_repository_without_a_worktree_is_not_written_into() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (with, without) = with_lib(&lab);
        run(&lab, &without, options(0)).unwrap();
        lab.sh("r", &["clone", "-q", "--bare", ".", "lib"]);
        assert_eq!(refused(run(&lab, &with, options(0))), nested("lib"));
        let outcome = run(&lab, &with, removing()).unwrap();
        assert_eq!(
            outcome.removed.first().map(ToString::to_string).as_deref(),
            Some("lib/HEAD")
        );
        assert!(lab.path("r/lib/objects").exists() && !lab.path("r/lib/HEAD").exists());
        run(&lab, &with, clean()).unwrap();

        lab.write("r/t/repo/HEAD", "ref: refs/heads/main\n");
        lab.write("r/t/repo/objects/README", "none\n");
        lab.commit("r", "a sample");
        let sample = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
        std::fs::remove_file(lab.path("r/.git/index")).unwrap();
        lab.write("r/t/repo/HEAD", "changed\n");
        run(&lab, &sample, options(0)).unwrap();
        assert_eq!(lab.read("r/t/repo/HEAD"), "ref: refs/heads/main\n");
    }
}

/// Only a repository hides what lies at the place of a submodule.
#[test]
fn what_only_has_the_name_of_a_repository_hides_nothing() {
    for git in gits() {
        let lab = Lab::new(&git);
        inhabit(&lab, "r/sm");
        let head = lab.sh("r/sm", &["rev-parse", "HEAD"]);
        lab.write("r/a", "a\n");
        lab.sh("r", &["add", "a"]);
        lab.sh(
            "r",
            &[
                "update-index",
                "--add",
                "--cacheinfo",
                &format!("160000,{head},sm"),
            ],
        );
        let tree = lab.sh("r", &["write-tree"]);
        let pristine = RestoreOptions {
            verify: Verify::Pristine,
            nested: Nested::Removed,
            ..clean()
        };
        // As git itself leaves it, and by a file or link that leads to it.
        let real = lab.path("r/sm/.git");
        run(&lab, &tree, pristine).unwrap();
        std::fs::rename(&real, lab.path("real")).unwrap();
        std::fs::write(&real, "gitdir: ../../real\n").unwrap();
        run(&lab, &tree, pristine).unwrap();
        std::fs::remove_file(&real).unwrap();
        symlink("../../real", &real).unwrap();
        run(&lab, &tree, pristine).unwrap();
        assert_eq!(lab.read("r/sm/README"), "uncommitted\n");
        for way in [
            "empty file",
            "empty directory",
            "link",
            "pointer",
            "text",
            "objects alone",
        ] {
            remove_all(&lab.path("r/sm"));
            lab.write("r/sm/node_modules/evil.js", "evil\n");
            match way {
                "empty file" => lab.write("r/sm/.git", ""),
                "empty directory" => std::fs::create_dir(&real).unwrap(),
                "link" => symlink("nowhere", &real).unwrap(),
                "pointer" => lab.write("r/sm/.git", "gitdir: nowhere\n"),
                "text" => lab.write("r/sm/.git", "hello\n"),
                _ => std::fs::create_dir_all(real.join("objects")).unwrap(),
            }
            let verify = RestoreOptions {
                leftovers: Leftovers::Kept,
                ..pristine
            };
            let refusal = run(&lab, &tree, verify).unwrap_err().error.into_refusal();
            assert_eq!(refusal.code, Code::TreeMismatch, "{way}");
            assert_eq!(refusal.names, ["sm/.git", "sm/node_modules"], "{way}");
            // It may be what is left of a repository: it does not go unasked, unless nothing is in it.
            if !way.starts_with("empty") {
                assert_eq!(refused(run(&lab, &tree, clean())), nested("sm/.git"), "{way}");
            }
            let asked = if way.starts_with("empty") {
                clean()
            } else {
                pristine
            };
            assert_eq!(run(&lab, &tree, asked).unwrap().removed_count, 2, "{way}");
            assert_eq!(std::fs::read_dir(lab.path("r/sm")).unwrap().count(), 0, "{way}");
        }
    }
}

/// Git cannot name what is deeper than the longest path.
#[test]
fn a_directory_in_the_way_may_be_deeper_than_a_path_can_be() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (with, _) = with_lib(&lab);
        for repository in [false, true] {
            let file = lab.path("r/a");
            std::fs::remove_file(&file).unwrap();
            std::fs::create_dir(&file).unwrap();
            let name = "k".repeat(200);
            let mut dir = worktree::open_dir(&file).unwrap();
            for _ in 0..40 {
                rustix::fs::mkdirat(&dir, name.as_str(), rustix::fs::Mode::RWXU).unwrap();
                let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
                dir = rustix::fs::openat(&dir, name.as_str(), flags, rustix::fs::Mode::empty()).unwrap();
            }
            if repository {
                rustix::fs::mkdirat(&dir, ".git", rustix::fs::Mode::RWXU).unwrap();
                let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CREATE;
                rustix::fs::openat(&dir, ".git/HEAD", flags, rustix::fs::Mode::RUSR).unwrap();
                assert_eq!(refused(run(&lab, &with, options(0))).0, "nested_repository");
            }
            let asked = if repository { removing() } else { options(0) };
            let outcome = run(&lab, &with, asked).unwrap();
            assert_eq!((lab.read("r/a").as_str(), outcome.removed_count), ("tree\n", 0));
        }
    }
}
