//! Drafts, against repositories that real git made.

use super::*;
use std::os::fd::AsFd;

fn listing(root: &Path) -> Vec<(PathBuf, u64, std::time::SystemTime)> {
    let mut todo = vec![root.to_owned()];
    let mut all = Vec::new();
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let facts = std::fs::symlink_metadata(&path).unwrap();
            if facts.is_dir() {
                todo.push(path.clone());
            }
            all.push((path, facts.len(), facts.modified().unwrap()));
        }
    }
    all.sort();
    all
}

fn source(lab: &Lab) -> String {
    lab.write("r/src/main.py", "print(1)\n");
    lab.write("r/dos.txt", "a\r\nb\r\n");
    lab.write("r/unix.bat", "a\nb\n");
    lab.write("r/.gitattributes", "*.bat text eol=crlf\n*.py filter=evil\n");
    executable(&lab.path("r/run"), "#!/bin/sh\n");
    std::os::unix::fs::symlink("src/main.py", lab.path("r/link")).unwrap();
    lab.sh(
        "r",
        &["config", "filter.evil.smudge", "touch /tmp/semel-evil; cat"],
    );
    lab.sh("r", &["remote", "add", "origin", "https://example.invalid/x"]);
    executable(
        &lab.path("r/.git/hooks/post-checkout"),
        "#!/bin/sh\ntouch /tmp/semel-evil\n",
    );
    lab.commit("r", "base")
}

#[test]
fn a_draft_is_the_base_byte_for_byte_and_the_source_is_untouched() {
    for git in gits() {
        for format in ["sha1", "sha256"] {
            let lab = Lab::new(&git);
            std::fs::rename(lab.path("r"), lab.path("gone")).unwrap();
            std::fs::create_dir(lab.path("r")).unwrap();
            lab.sh("r", &["init", "-q", &format!("--object-format={format}")]);
            let base = source(&lab);
            std::fs::create_dir(lab.path("tree")).unwrap();
            let before = listing(&lab.path("r"));
            let draft = prepare_draft(&git, &lab.path("r"), &base, &lab.path("tree"), &cancel()).unwrap();
            assert!(listing(&lab.path("r")) == before, "the source was written to");
            assert_eq!(draft.base.to_string(), base);
            assert_eq!(draft.alternates, [lab.path("r/.git/objects")]);
            assert_eq!(lab.read("tree/unix.bat"), "a\nb\n");
            assert_eq!(lab.read("tree/dos.txt"), "a\r\nb\r\n");
            assert!(!lab.path("evil").exists());

            // The draft's own git finds all as it should be.
            assert_eq!(lab.sh("tree", &["status", "--porcelain"]), "");
            assert_eq!(lab.sh("tree", &["symbolic-ref", "HEAD"]), "refs/heads/draft");
            assert_eq!(lab.sh("tree", &["rev-parse", "HEAD"]), base);
            assert_eq!(lab.sh("tree", &["remote"]), "");
            lab.sh("tree", &["fsck", "--strict"]);
            lab.write("tree/new", "x");
            assert_eq!(lab.sh("tree", &["status", "--porcelain"]), "?? new");
            let commit = lab.commit("tree", "by the agent");
            assert!(!lab.try_sh("r", &["cat-file", "-e", &commit]).status.success());
            // An agent's git renews the times of borrowed objects where it may; the sandbox shows them read-only.
            let names = |all: &[(PathBuf, u64, std::time::SystemTime)]| -> Vec<(PathBuf, u64)> {
                all.iter().map(|(path, len, _)| (path.clone(), *len)).collect()
            };
            assert_eq!(names(&listing(&lab.path("r"))), names(&before));

            // And a seal of the changed draft is what git would stage.
            let dir = worktree::open_dir(&lab.path("tree")).unwrap();
            let repo = Repository::open(&git, &lab.path("r"), &cancel()).unwrap();
            let tracked = draft.leaves.iter().map(|l| l.path.clone()).collect();
            let ignore = repo.ignore_rules(&draft.leaves).unwrap();
            let chosen = select(dir.as_fd(), &tracked, &ignore).unwrap().chosen;
            let id = tree_of(dir.as_fd(), draft.format, &chosen).unwrap();
            assert_eq!(id.to_string(), lab.sh("tree", &["rev-parse", "HEAD^{tree}"]));
        }
    }
}

#[test]
fn borrowed_objects_are_followed_to_their_end() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/f", "one\n");
        let base = lab.commit("r", "one");
        lab.sh(".", &["clone", "-q", "--shared", "--bare", "r", "bare.git"]);
        lab.sh(".", &["clone", "-q", "--shared", "bare.git", "second"]);
        std::fs::create_dir(lab.path("tree")).unwrap();
        let draft = prepare_draft(&git, &lab.path("second"), &base, &lab.path("tree"), &cancel()).unwrap();
        let dirs = ["second/.git/objects", "bare.git/objects", "r/.git/objects"];
        assert_eq!(draft.alternates, dirs.map(|d| lab.path(d)));
        lab.sh("tree", &["fsck"]);
        std::fs::create_dir(lab.path("tree2")).unwrap();
        prepare_draft(&git, &lab.path("bare.git"), &base, &lab.path("tree2"), &cancel()).unwrap();
        assert_eq!(lab.read("tree2/f"), "one\n");
        let url = format!("file://{}", lab.path("r").display());
        lab.write("r/f", "two\n");
        let newer = lab.commit("r", "two");
        lab.sh(
            ".",
            &[
                "-c",
                "protocol.file.allow=always",
                "clone",
                "-q",
                "--depth=1",
                &url,
                "thin",
            ],
        );
        std::fs::create_dir(lab.path("tree3")).unwrap();
        prepare_draft(&git, &lab.path("thin"), &newer, &lab.path("tree3"), &cancel()).unwrap();
        assert_eq!(lab.sh("tree3", &["rev-list", "--count", "HEAD"]), "1");
    }
}

#[test]
fn what_is_no_whole_base_is_refused_by_name() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/f", "one\n");
        lab.write("r/g", "two\n");
        let base = lab.commit("r", "one");
        std::fs::create_dir(lab.path("tree")).unwrap();
        let prepare = |base: &str| {
            prepare_draft(&git, &lab.path("r"), base, &lab.path("tree"), &cancel())
                .unwrap_err()
                .into_refusal()
        };
        let tree = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
        let upper = base.to_uppercase();
        let long = "a".repeat(64);
        for id in ["HEAD", "main", &base[..39], &upper, &tree, &long] {
            assert_eq!(prepare(id).code, Code::BadInput, "{id}");
        }
        assert_eq!(prepare(&"1".repeat(40)).code, Code::ObjectMissing);
        let blob = lab.sh("r", &["rev-parse", "HEAD:g"]);
        let loose = lab.path(&format!("r/.git/objects/{}/{}", &blob[..2], &blob[2..]));
        let bytes = std::fs::read(&loose).unwrap();
        std::fs::remove_file(&loose).unwrap();
        let refusal = prepare(&base);
        assert_eq!((refusal.code, &refusal.names), (Code::ObjectMissing, &vec![blob]));
        std::fs::write(&loose, bytes).unwrap();
        lab.sh(
            "r",
            &[
                "update-index",
                "--add",
                "--cacheinfo",
                &format!("160000,{base},sub"),
            ],
        );
        lab.sh("r", &["commit", "-q", "-m", "sub"]);
        let refusal = prepare(&lab.sh("r", &["rev-parse", "HEAD"]));
        assert_eq!(refusal.reason.as_deref(), Some("submodule"));
        assert_eq!(refusal.names, ["sub"]);
        assert_eq!(std::fs::read_dir(lab.path("tree")).unwrap().count(), 0);
        lab.write("tree/left", "x");
        assert_eq!(prepare(&base).code, Code::PreconditionFailed);
    }
}
