//! The index as git writes it, in every version: it is known, and every change of it is not.

use super::*;
use crate::git::index::holds;
use crate::git::repository::Repository;

fn parts(lab: &Lab) -> (Vec<u8>, ObjectId, Vec<Leaf>) {
    let repo = Repository::open(&lab.git, &lab.path("r"), &cancel()).unwrap();
    let tree = repo
        .parse_id(&lab.sh("r", &["rev-parse", "HEAD^{tree}"]))
        .unwrap();
    let leaves = repo.list_tree(&tree).unwrap();
    (std::fs::read(lab.path("r/.git/index")).unwrap(), tree, leaves)
}

fn shape(lab: &Lab) {
    for name in [
        "a",
        "dir/b",
        "dir/bb",
        "dir.c",
        "dir0",
        "z/deep/er/x",
        "z/deep/er/y",
        &"n".repeat(200),
    ] {
        lab.write(&format!("r/{name}"), name);
    }
    executable(&lab.path("r/run"), "#!/bin/sh\n");
    std::os::unix::fs::symlink("a", lab.path("r/link")).unwrap();
    lab.commit("r", "one");
}

#[test]
fn every_version_is_known_and_every_difference_is_not() {
    for git in gits() {
        for version in ["2", "3", "4", "sha256"] {
            let lab = Lab::new(&git);
            if version == "sha256" {
                std::fs::rename(lab.path("r/.git"), lab.path("gone")).unwrap();
                lab.sh("r", &["init", "-q", "--object-format=sha256"]);
            }
            shape(&lab);
            match version {
                "sha256" => {}
                "3" => drop(lab.sh("r", &["update-index", "--skip-worktree", "a"])),
                version => drop(lab.sh("r", &["update-index", "--index-version", version])),
            }
            let tree = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
            if version != "3" {
                lab.sh("r", &["read-tree", "--reset", "-u", &tree]);
            }
            let (index, tree, leaves) = parts(&lab);
            if version != "sha256" {
                assert_eq!(index[7].to_string(), version);
            }
            assert!(
                holds(&index, &tree, &leaves),
                "version {version} of {}",
                git.version()
            );
            // Other leaves, in one name, mode or id; one less, one more.
            assert!(!holds(&index, &tree, &leaves[1..]));
            let mut other = leaves.clone();
            other[0].mode = semel_core::git_tree::Mode::Executable;
            assert!(!holds(&index, &tree, &other));
            let mut other = leaves.clone();
            other[0].id = other[1].id;
            assert!(!holds(&index, &tree, &other));
            let mut other = leaves.clone();
            other[0].path = semel_core::RelPath::parse(b"aa").unwrap();
            assert!(!holds(&index, &tree, &other));
            // Another tree than the one that it remembers.
            if version != "3" {
                assert!(index.windows(4).any(|four| four == b"TREE"));
                assert!(!holds(&index, &leaves[0].id, &leaves));
            }
            // Cut anywhere, nothing panics; cut within the entries, it is not known.
            let entries = 12 + leaves.len() * (42 + tree.as_raw().len());
            for end in 0..index.len() {
                let cut = holds(&index[..end], &tree, &leaves);
                assert!(!cut || end >= entries, "{end} of {}", index.len());
            }
        }
    }
}

#[test]
fn what_has_to_be_understood_is_left_to_git() {
    for git in gits() {
        for what in ["--split-index", "--intent", "conflict"] {
            let lab = Lab::new(&git);
            shape(&lab);
            let (_, tree, leaves) = parts(&lab);
            match what {
                "--split-index" => drop(lab.sh("r", &["update-index", "--split-index"])),
                "--intent" => {
                    lab.write("r/new", "x");
                    lab.sh("r", &["add", "-N", "new"]);
                }
                _ => {
                    let id = lab.sh("r", &["rev-parse", "HEAD:a"]);
                    let entry = format!("100644 {id} 2\ta");
                    lab.sh("r", &["rm", "-q", "--cached", "a"]);
                    let mut add = lab.command("r", &["update-index", "--index-info"]);
                    let mut child = add.stdin(Stdio::piped()).spawn().unwrap();
                    child.stdin.take().unwrap().write_all(entry.as_bytes()).unwrap();
                    assert!(child.wait().unwrap().success());
                }
            }
            let index = std::fs::read(lab.path("r/.git/index")).unwrap();
            assert!(!holds(&index, &tree, &leaves), "{what}");
        }
    }
}
