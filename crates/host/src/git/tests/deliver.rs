//! Delivering a certified tree, checked by real git.

use super::*;
use semel_core::RelPath;
use semel_core::git_tree::ObjectId;
use semel_core::ids::UnixMs;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

static NONE: BTreeMap<RelPath, Vec<u8>> = BTreeMap::new();

struct Case {
    lab: Lab,
    base: ObjectId,
    dir: OwnedFd,
    chosen: Vec<RelPath>,
    certified: ObjectId,
    repo: Repository,
}

fn case(git: &Git) -> Case {
    let lab = Lab::new(git);
    lab.write("r/keep", "same\n");
    lab.write("r/gone", "x\n");
    lab.write("r/bin", b"\0\x01\x02");
    lab.write("r/.gitattributes", "* text eol=crlf\n*.x filter=evil\n");
    lab.sh("r", &["config", "filter.evil.clean", "echo evil"]);
    lab.sh("r", &["config", "diff.noprefix", "true"]);
    let base = lab.commit("r", "base");
    lab.write("tree/keep", "same\n");
    lab.write("tree/bin", b"\0\x01\x03\xff");
    lab.write("tree/.gitattributes", "* text eol=crlf\n*.x filter=evil\n");
    lab.write("tree/deep/new\nline", "odd name\r\n");
    lab.write("tree/deep/f.x", "not evil\n");
    executable(&lab.path("tree/run"), "#!/bin/sh\n");
    std::os::unix::fs::symlink("keep", lab.path("tree/link")).unwrap();
    let dir = worktree::open_dir(&lab.path("tree")).unwrap();
    let repo = Repository::open(git, &lab.path("r"), &cancel()).unwrap();
    let none = std::collections::BTreeSet::new();
    let rules = semel_core::ignore::Ignore::new();
    let chosen = select(dir.as_fd(), &none, &rules).unwrap().chosen;
    let certified = tree_of(dir.as_fd(), repo.format(), &chosen).unwrap();
    Case {
        base: repo.parse_id(&base).unwrap(),
        lab,
        dir,
        chosen,
        certified,
        repo,
    }
}

impl Case {
    fn sealed(&self) -> Sealed<'_> {
        Sealed {
            dir: self.dir.as_fd(),
            chosen: &self.chosen,
            pointers: &NONE,
            certified: self.certified,
        }
    }

    fn import(&self, branch: &str) -> Import {
        Import {
            base: self.base,
            branch: branch.to_owned(),
            message: "Certified\n\nby Semel\n".to_owned(),
            at: UnixMs(1_795_996_351_007),
        }
    }
}

#[test]
fn a_branch_holds_exactly_the_certified_tree_and_is_made_once() {
    for git in gits() {
        let case = case(&git);
        let (lab, import) = (&case.lab, case.import("semel/job-1"));
        let head = lab.sh("r", &["rev-parse", "HEAD"]);
        let Delivery::Created(commit) = deliver_branch(&case.repo, &case.sealed(), &import).unwrap() else {
            panic!("made")
        };
        assert_eq!(lab.sh("r", &["rev-parse", "semel/job-1"]), commit.to_string());
        assert_eq!(
            lab.sh("r", &["rev-parse", "semel/job-1^{tree}"]),
            case.certified.to_string()
        );
        assert_eq!(lab.sh("r", &["rev-parse", "semel/job-1^"]), case.base.to_string());
        let log = lab.sh(
            "r",
            &["log", "-1", "--format=%an <%ae> %cn %ct %s", "semel/job-1"],
        );
        assert_eq!(log, "Semel <semel@localhost> Semel 1795996351 Certified");
        lab.sh("r", &["fsck", "--strict"]);
        assert_eq!(lab.sh("r", &["rev-parse", "HEAD"]), head);
        assert_eq!(lab.sh("r", &["status", "--porcelain"]), "");
        let again = deliver_branch(&case.repo, &case.sealed(), &import).unwrap();
        assert_eq!(again, Delivery::AlreadyThere(commit));

        let mut other = import.clone();
        other.at = UnixMs(0);
        let refusal = deliver_branch(&case.repo, &case.sealed(), &other)
            .unwrap_err()
            .into_refusal();
        assert_eq!(refusal.reason.as_deref(), Some("branch_exists"));
        for name in ["", "a..b", "-x", "HEAD", "a b", "a.lock", "/a"] {
            let error = deliver_branch(&case.repo, &case.sealed(), &case.import(name)).unwrap_err();
            assert_eq!(error.code(), Code::BadInput, "{name:?}");
        }
        lab.write("r/.git/refs/heads/held.lock", "");
        let error = deliver_branch(&case.repo, &case.sealed(), &case.import("held")).unwrap_err();
        assert_eq!(error.code(), Code::OtherLock);
        assert!(lab.path("r/.git/refs/heads/held.lock").exists());
    }
}

#[test]
fn another_tree_than_the_certified_one_is_never_delivered() {
    for git in gits() {
        let case = case(&git);
        case.lab.write("tree/keep", "changed after\n");
        let error = deliver_branch(&case.repo, &case.sealed(), &case.import("b")).unwrap_err();
        assert_eq!(error.code(), Code::TreeMismatch);
        assert!(
            !case
                .lab
                .try_sh("r", &["rev-parse", "-q", "--verify", "b"])
                .status
                .success()
        );
        case.lab.write("tree/keep", "same\n");
        let fewer = Sealed {
            chosen: &case.chosen[1..],
            ..case.sealed()
        };
        let error = deliver_branch(&case.repo, &fewer, &case.import("b")).unwrap_err();
        assert_eq!(error.code(), Code::TreeMismatch);
    }
}

#[test]
fn a_patch_applies_to_the_base_and_gives_the_certified_tree() {
    for git in gits() {
        let case = case(&git);
        let lab = &case.lab;
        let objects = lab.sh("r", &["count-objects", "-v"]);
        let (scratch, out) = (lab.path("scratch"), lab.path("out.patch"));
        let patch = make_patch(&case.repo, &case.sealed(), &case.base, &scratch, &out).unwrap();
        let bytes = std::fs::read(&out).unwrap();
        assert_eq!(patch.size_bytes, bytes.len() as u64);
        assert_eq!(patch.sha256, Sha256::of(&bytes));
        assert_eq!(
            lab.sh("r", &["count-objects", "-v"]),
            objects,
            "nothing was written to the source"
        );
        lab.sh("r", &["apply", "--cached", &out.display().to_string()]);
        assert_eq!(lab.sh("r", &["write-tree"]), case.certified.to_string());
        let twice = make_patch(&case.repo, &case.sealed(), &case.base, &scratch, &out).unwrap();
        assert_eq!(twice, patch);
    }
}
