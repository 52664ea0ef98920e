//! What a removal refuses to lose, held against git's own, and what stands in its way.

use super::linked::{add_to, killed_at, nothing_left, quiet, refused, remove_from, remove_with, repository};
use super::pin::pins;
use super::*;

fn gitdir(lab: &Lab) -> PathBuf {
    PathBuf::from(lab.sh("wt", &["rev-parse", "--absolute-git-dir"]))
}

/// Runs a person's git without identity or success being asked of it.
fn tried(lab: &Lab, args: &[&str]) {
    lab.try_sh("wt", args);
}

type Play = fn(&Lab, &str);

/// What is done in a worktree, the reason that a removal is refused for (`None`: it is not), and whether git refuses it.
struct Case {
    name: &'static str,
    reason: Option<&'static str>,
    git_refuses: bool,
    play: Play,
}

const fn case(name: &'static str, reason: Option<&'static str>, git_refuses: bool, play: Play) -> Case {
    Case {
        name,
        reason,
        git_refuses,
        play,
    }
}

const UNREACHABLE: Option<&str> = Some("unreachable_commits");
const DIRTY: Option<&str> = Some("dirty_worktree");
const OPERATION: Option<&str> = Some("operation_in_progress");
const NESTED: Option<&str> = Some("nested_repository");
const SUBMODULES: Option<&str> = Some("submodules");

/// Makes two commits that clash, on branches, so that an operation that meets them stops.
fn clash(lab: &Lab) {
    for (branch, text) in [("left", "left\n"), ("right", "right\n")] {
        lab.sh("wt", &["checkout", "-q", "-B", branch, "main"]);
        lab.write("wt/f", text);
        lab.commit("wt", branch);
    }
}

/// Adds a submodule to the repository and a worktree that has it; the worktree is `wt`.
fn with_submodule(lab: &Lab, commit: &str) {
    lab.sh("r", &["clone", "-q", "--bare", ".", "../s"]);
    let place = lab.path("s");
    let file = ["-c", "protocol.file.allow=always"];
    let add = ["submodule", "--quiet", "add", place.to_str().unwrap(), "sm"];
    lab.sh("r", &[&file[..], &add].concat());
    let with = lab.commit("r", "with a submodule");
    lab.sh("wt", &["checkout", "-q", "--detach", &with]);
    assert_ne!(with, commit);
}

const CASES: &[Case] = &[
    case("nothing", None, false, |_, _| {}),
    case("ignored files", None, false, |lab, _| {
        lab.write("r/.git/info/exclude", "*.o\n");
        lab.write("wt/x.o", "x");
        lab.write("wt/deep/y.o", "y");
    }),
    case("a branch that stays", None, false, |lab, _| {
        lab.sh("wt", &["checkout", "-q", "-b", "kept"]);
        lab.commit("wt", "kept");
    }),
    case("a tag, a stash and a note keep it", None, false, |lab, _| {
        lab.commit("wt", "tagged");
        lab.sh("wt", &["tag", "-m", "t", "t"]);
        lab.write("wt/f", "stashed\n");
        lab.sh("wt", &["stash", "-q"]);
    }),
    case("an untracked file", DIRTY, true, |lab, _| {
        lab.write("wt/new", "x")
    }),
    case("an untracked file in a directory", DIRTY, true, |lab, _| {
        lab.write("wt/a/b/c", "x");
    }),
    case("an untracked repository", NESTED, true, |lab, _| {
        lab.write("wt/inner/f", "x");
        lab.sh("wt/inner", &["init", "-q"]);
        lab.commit("wt/inner", "inner");
    }),
    case("an untracked repository without files", NESTED, true, |lab, _| {
        std::fs::create_dir(lab.path("wt/inner")).unwrap();
        lab.sh("wt/inner", &["init", "-q"]);
    }),
    case("a changed file", DIRTY, true, |lab, _| {
        lab.write("wt/f", "mine\n")
    }),
    case("a removed file", DIRTY, true, |lab, _| {
        std::fs::remove_file(lab.path("wt/f")).unwrap();
    }),
    case("a mode", DIRTY, true, |lab, _| {
        executable(&lab.path("wt/f"), "one\n")
    }),
    case("a type", DIRTY, true, |lab, _| {
        std::fs::remove_file(lab.path("wt/f")).unwrap();
        std::os::unix::fs::symlink("sub/g", lab.path("wt/f")).unwrap();
    }),
    case("staged, the file as it was", DIRTY, true, |lab, _| {
        lab.write("wt/f", "staged\n");
        lab.sh("wt", &["add", "f"]);
        lab.write("wt/f", "one\n");
    }),
    case("staged for removal, the file there", DIRTY, true, |lab, _| {
        lab.sh("wt", &["rm", "-q", "--cached", "f"]);
    }),
    case("an ignored file that is staged", DIRTY, true, |lab, _| {
        lab.write("r/.git/info/exclude", "*.o\n");
        lab.write("wt/x.o", "x");
        lab.sh("wt", &["add", "-f", "x.o"]);
    }),
    case(
        "an ignored file that is meant to be added",
        DIRTY,
        true,
        |lab, _| {
            lab.write("r/.git/info/exclude", "*.o\n");
            lab.write("wt/x.o", "x");
            lab.sh("wt", &["add", "-f", "-N", "x.o"]);
        },
    ),
    case("an index that is gone", DIRTY, true, |lab, _| {
        std::fs::remove_file(gitdir(lab).join("index")).unwrap();
    }),
    case("hidden by skip-worktree", DIRTY, false, |lab, _| {
        lab.sh("wt", &["update-index", "--skip-worktree", "f"]);
        lab.write("wt/f", "hidden\n");
    }),
    case("hidden by assume-unchanged", DIRTY, false, |lab, _| {
        lab.sh("wt", &["update-index", "--assume-unchanged", "f"]);
        lab.write("wt/f", "hidden\n");
    }),
    case("hidden by an attribute", DIRTY, false, |lab, _| {
        lab.write("r/.git/info/attributes", "* ident\n");
        lab.write("wt/id", "$Id$\n");
        lab.commit("wt", "id");
        lab.sh("wt", &["branch", "kept"]);
        lab.write("wt/id", "$Id: all of my work $\n");
        lab.sh("wt", &["add", "id"]);
    }),
    case("a commit", UNREACHABLE, false, |lab, _| {
        lab.commit("wt", "mine");
    }),
    case("a commit that was amended", UNREACHABLE, false, |lab, _| {
        lab.commit("wt", "mine");
        lab.sh(
            "wt",
            &["commit", "-q", "--amend", "--allow-empty", "-m", "amended"],
        );
        lab.sh("wt", &["branch", "kept"]);
    }),
    case(
        "a commit of ORIG_HEAD alone",
        UNREACHABLE,
        false,
        |lab, commit| {
            lab.commit("wt", "mine");
            lab.sh("wt", &["reset", "-q", "--hard", commit]);
            std::fs::remove_file(gitdir(lab).join("logs/HEAD")).unwrap();
        },
    ),
    case("a commit of the log alone", UNREACHABLE, false, |lab, commit| {
        lab.commit("wt", "mine");
        lab.sh("wt", &["checkout", "-q", "--detach", commit]);
        std::fs::remove_file(gitdir(lab).join("ORIG_HEAD")).ok();
    }),
    case("a commit that was fetched", UNREACHABLE, false, |lab, _| {
        lab.sh("r", &["clone", "-q", ".", "../other"]);
        let other = lab.commit("other", "theirs");
        let file = ["-c", "protocol.file.allow=always", "fetch", "-q", "../other"];
        lab.sh("wt", &file);
        assert_eq!(lab.sh("wt", &["rev-parse", "FETCH_HEAD"]), other);
    }),
    case("refs/worktree", UNREACHABLE, false, |lab, commit| {
        lab.commit("wt", "mine");
        lab.sh("wt", &["update-ref", "refs/worktree/keep", "HEAD"]);
        lab.sh("wt", &["checkout", "-q", "--detach", commit]);
        std::fs::remove_file(gitdir(lab).join("logs/HEAD")).unwrap();
    }),
    case("refs/rewritten", UNREACHABLE, false, |lab, commit| {
        lab.commit("wt", "mine");
        lab.sh("wt", &["update-ref", "refs/rewritten/keep", "HEAD"]);
        lab.sh("wt", &["checkout", "-q", "--detach", commit]);
        std::fs::remove_file(gitdir(lab).join("logs/HEAD")).unwrap();
    }),
    case("a blob of refs/worktree", UNREACHABLE, false, |lab, _| {
        lab.write("note", "mine");
        let blob = lab.sh("wt", &["hash-object", "-w", "../note"]);
        lab.sh("wt", &["update-ref", "refs/worktree/note", &blob]);
    }),
    case("a rebase that stopped", OPERATION, false, |lab, _| {
        clash(lab);
        tried(lab, &["rebase", "left"]);
        lab.sh("wt", &["reset", "-q", "--hard"]);
    }),
    case(
        "a rebase before its first step",
        OPERATION,
        false,
        |lab, commit| {
            lab.commit("wt", "mine");
            tried(
                lab,
                &[
                    "-c",
                    "sequence.editor=sh -c 'echo break >\"$0\"'",
                    "rebase",
                    "-i",
                    commit,
                ],
            );
        },
    ),
    case("mails that are applied", OPERATION, false, |lab, _| {
        clash(lab);
        lab.sh("wt", &["format-patch", "-q", "-1", "-o", "../mails", "left"]);
        let mail = std::fs::read_dir(lab.path("mails"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap();
        tried(lab, &["am", "-q", mail.path().to_str().unwrap()]);
    }),
    case("a merge", OPERATION, true, |lab, _| {
        clash(lab);
        tried(lab, &["merge", "-q", "left"]);
    }),
    case(
        "a merge that is to be committed",
        OPERATION,
        false,
        |lab, commit| {
            lab.commit("wt", "mine");
            lab.sh("wt", &["branch", "kept"]);
            lab.sh("wt", &["checkout", "-q", "--detach", commit]);
            lab.sh("wt", &["merge", "-q", "--no-ff", "--no-commit", "kept"]);
        },
    ),
    case("a cherry-pick", OPERATION, false, |lab, _| {
        clash(lab);
        tried(lab, &["cherry-pick", "left"]);
        lab.sh("wt", &["checkout", "-q", "-f", "HEAD", "--", "."]);
    }),
    case("a revert", OPERATION, false, |lab, _| {
        clash(lab);
        tried(lab, &["revert", "left"]);
        lab.sh("wt", &["checkout", "-q", "-f", "HEAD", "--", "."]);
    }),
    case("a bisection", OPERATION, false, |lab, _| {
        clash(lab);
        lab.sh("wt", &["bisect", "start"]);
    }),
    case(
        "a submodule that is checked out",
        SUBMODULES,
        true,
        |lab, commit| {
            with_submodule(lab, commit);
            let file = ["-c", "protocol.file.allow=always"];
            lab.sh(
                "wt",
                &[&file[..], &["submodule", "--quiet", "update", "--init"]].concat(),
            );
            lab.commit("wt/sm", "nowhere else");
            lab.sh("wt", &["config", "submodule.sm.ignore", "all"]);
        },
    ),
    case(
        "a submodule with a git directory of its own",
        NESTED,
        true,
        |lab, commit| {
            with_submodule(lab, commit);
            lab.sh("wt", &["clone", "-q", "../s", "sm"]);
            lab.sh("wt/sm", &["reset", "-q", "--hard"]);
        },
    ),
    case(
        "files where a submodule belongs",
        SUBMODULES,
        false,
        |lab, commit| {
            with_submodule(lab, commit);
            lab.write("wt/sm/mine", "x");
        },
    ),
    case(
        "a submodule that is not checked out",
        None,
        false,
        |lab, commit| {
            with_submodule(lab, commit);
        },
    ),
    case(
        "something of a stranger in the git directory",
        DIRTY,
        false,
        |lab, _| {
            std::fs::write(gitdir(lab).join("notes.txt"), "mine").unwrap();
        },
    ),
    case("a locked worktree", Some("locked"), true, |lab, _| {
        lab.sh("r", &["worktree", "lock", "../wt"]);
    }),
];

/// Whatever `git worktree remove` refuses to remove is refused, and more.
#[test]
fn what_git_refuses_to_remove_and_what_it_loses() {
    for git in gits() {
        for case in CASES {
            let name = format!("{} ({})", case.name, git.version());
            let (lab, commit) = repository(&git);
            add_to(&lab, "wt", &commit, None, &quiet).unwrap();
            (case.play)(&lab, &commit);
            let asked = remove_from(&lab, "wt", Discard::Refuse, &quiet);
            let Some(reason) = case.reason else {
                assert!(matches!(asked, Ok(Removed::Worktree { .. })), "{name}: {asked:?}");
                continue;
            };
            let refusal = asked
                .err()
                .unwrap_or_else(|| panic!("{name}: removed"))
                .into_refusal();
            assert_eq!(refusal.reason.as_deref(), Some(reason), "{name}: {refusal:?}");
            assert!(!refusal.names.is_empty(), "{name}: {refusal:?}");
            assert!(lab.path("wt/.git").exists(), "{name}");
            let theirs = lab.try_sh("r", &["worktree", "remove", "../wt"]);
            assert_eq!(!theirs.status.success(), case.git_refuses, "{name}: {theirs:?}");
            if case.git_refuses && reason != "locked" {
                let told = remove_with(&lab, "wt", Discard::Work, Nested::Removed);
                assert!(
                    matches!(told, Ok(Removed::Worktree { ignored: None, .. })),
                    "{name}: {told:?}"
                );
            }
        }
    }
}

#[test]
fn ignored_files_are_counted() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        lab.write("r/.git/info/exclude", "*.o\nout/\n");
        for name in ["x.o", "deep/y.o", "out/a", "out/b/c"] {
            lab.write(&format!("wt/{name}"), "x");
        }
        // An empty directory is no work.
        std::fs::create_dir_all(lab.path("wt/empty/er")).unwrap();
        let removed = remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        assert!(
            matches!(removed, Removed::Worktree { ignored: Some(4), .. }),
            "{removed:?}"
        );
        nothing_left(&lab);
    }
}

#[test]
fn a_locked_worktree_is_removed_by_a_word_of_its_own() {
    let git = gits().remove(0);
    let (lab, commit) = repository(&git);
    add_to(&lab, "wt", &commit, None, &quiet).unwrap();
    lab.sh(
        "r",
        &["worktree", "lock", "../wt", "--reason", "on a disk that is away"],
    );
    lab.write("wt/new", "x");
    let with = |discard, locked| {
        let asked = Remove {
            worktree: lab.path("wt"),
            discard,
            locked,
            nested: Nested::Refused,
            wait: Duration::from_secs(60),
        };
        remove(&lab.git, &pins(&lab), &asked, &quiet, &cancel())
    };
    refused(with(Discard::Work, Locked::Refuse), "locked");
    refused(with(Discard::Refuse, Locked::Remove), "dirty_worktree");
    with(Discard::Work, Locked::Remove).unwrap();
    nothing_left(&lab);
}

/// Keeps a file from being removed, as far as this machine can; says whether it does.
fn immutable(path: &Path, flag: &str) -> bool {
    let ran = std::process::Command::new("chattr").arg(flag).arg(path).output();
    ran.is_ok_and(|ran| ran.status.success())
}

#[test]
fn what_cannot_be_removed_is_seen_before_anything_is() {
    for git in gits() {
        for (name, of_git) in [("wt/ign/deep/kept.o", false), ("HEAD", true)] {
            let (lab, commit) = repository(&git);
            add_to(&lab, "wt", &commit, None, &quiet).unwrap();
            lab.write("r/.git/info/exclude", "*.o\n");
            lab.write("wt/ign/deep/kept.o", "x");
            let place = if of_git {
                gitdir(&lab).join(name)
            } else {
                lab.path(name)
            };
            if !immutable(&place, "+i") {
                skipped("no file can be made immutable here");
                return;
            }
            for discard in [Discard::Refuse, Discard::Work] {
                let refusal = refused(remove_from(&lab, "wt", discard, &quiet), "kept");
                assert_eq!(refusal.names, [format!("{}: immutable", place.display())]);
            }
            assert_eq!(lab.read("wt/f"), "one\n");
            assert!(pins(&lab).unfinished().unwrap().is_empty());
            add_to(&lab, "next", &commit, None, &quiet).unwrap();
            remove_from(&lab, "next", Discard::Refuse, &quiet).unwrap();
            assert!(immutable(&place, "-i"));
            remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
            nothing_left(&lab);
        }
    }
}

/// What comes in the way of a removal that has begun is in nobody else's way, and is taken up again.
#[test]
fn an_unfinished_removal_blocks_no_other_worktree() {
    let git = gits().remove(0);
    let (lab, commit) = repository(&git);
    let pin = add_to(&lab, "wt", &commit, None, &quiet).unwrap();
    let other = add_to(&lab, "other", &commit, None, &quiet).unwrap();
    let aside = lab.path(&format!("semel-{}", pin.id));
    lab.write("wt/sub/late", "x");
    let late = |at: Milestone| {
        if at == Milestone::Aside {
            immutable(&aside.join("sub/late"), "+i");
        }
    };
    if !immutable(&lab.path("wt/f"), "+i") || !immutable(&lab.path("wt/f"), "-i") {
        skipped("no file can be made immutable here");
        return;
    }
    let kept = refused(remove_from(&lab, "wt", Discard::Work, &late), "kept");
    let name = format!("{}/sub/late: immutable", aside.display());
    assert_eq!(kept.names, [name.as_str()]);
    let unfinished = pins(&lab).unfinished().unwrap();
    assert_eq!(unfinished.len(), 1);
    assert_eq!((&unfinished[0].id, unfinished[0].begun), (&pin.id, Begun::Remove));
    assert_eq!(unfinished[0].rest.to_string(), aside.display().to_string());
    // Others go on: one that is there, a fresh one, and one in the same place.
    pins(&lab)
        .pin(
            &git,
            &lab.path("r"),
            Repin::Refuse,
            Duration::from_secs(60),
            &cancel(),
        )
        .unwrap();
    assert_eq!(
        remove_from(&lab, "other", Discard::Refuse, &quiet).unwrap(),
        Removed::Worktree {
            pin: other,
            ignored: Some(0)
        }
    );
    let again = refused(remove_from(&lab, "wt", Discard::Refuse, &quiet), "kept");
    assert_eq!(again.names, [name]);
    let anew = add_to(&lab, "wt", &commit, None, &quiet).unwrap();
    assert_ne!(anew.id, pin.id);
    assert_eq!(lab.read("wt/f"), "one\n");
    assert_eq!(pins(&lab).unfinished().unwrap().len(), 1);
    assert!(immutable(&aside.join("sub/late"), "-i"));
    // And it is ended when it can be, whoever comes next; the new worktree in its place stays.
    add_to(&lab, "next", &commit, None, &quiet).unwrap();
    assert!(!aside.exists());
    assert!(pins(&lab).unfinished().unwrap().is_empty());
    assert_eq!(lab.read("wt/f"), "one\n");
    for name in ["wt", "next"] {
        remove_from(&lab, name, Discard::Refuse, &quiet).unwrap();
    }
    remove_from(&lab, "r", Discard::PinOnly, &quiet).unwrap();
    nothing_left(&lab);
}

/// Nothing that the repository configures runs, in a making or in a removal.
#[test]
fn no_program_of_the_repository_runs() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        let ran = lab.path("ran");
        let touch = format!("touch {}", ran.display());
        let events = [
            "post-checkout",
            "reference-transaction",
            "post-index-change",
            "pre-commit",
            "update",
        ];
        for event in events {
            executable(
                &lab.path(&format!("r/.git/hooks/{event}")),
                &format!("#!/bin/sh\n{touch}\n"),
            );
            let name = format!("hook.a.{event}.b");
            lab.sh("r", &["config", &format!("{name}.event"), event]);
            lab.sh("r", &["config", &format!("{name}.command"), &touch]);
        }
        let hooks = lab.path("r/.git/hooks");
        for (key, value) in [
            ("core.hooksPath", hooks.to_str().unwrap()),
            ("core.fsmonitor", &touch),
            ("core.pager", &touch),
            ("core.editor", &touch),
            ("diff.external", &touch),
            ("filter.evil.smudge", &touch),
            ("filter.evil.clean", &touch),
            ("diff.evil.textconv", &touch),
            ("checkout.guess", "true"),
            ("checkout.defaultRemote", "x"),
            ("extensions.worktreeConfig", "true"),
        ] {
            lab.sh("r", &["config", key, value]);
        }
        std::fs::remove_file(&ran).ok();
        lab.write(
            "r/.git/config.worktree",
            format!("[core]\n\tfsmonitor = {touch}\n"),
        );
        add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        assert!(
            !ran.exists(),
            "{}: a program ran while it was made",
            git.version()
        );
        lab.write("r/.git/info/attributes", "* diff=evil filter=evil\n");
        remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        assert!(
            !ran.exists(),
            "{}: a program ran while it was removed",
            git.version()
        );
    }
}

/// What was made and has its name is never taken back: somebody may have worked in it.
#[test]
fn work_in_a_worktree_whose_making_was_cut_off_stays() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        killed_at(&lab, "add", Milestone::Placed, &commit);
        let unfinished = pins(&lab).unfinished().unwrap();
        assert_eq!(unfinished.len(), 1);
        assert_eq!(
            unfinished[0].rest.to_string(),
            lab.path("wt").display().to_string()
        );
        let mine = lab.commit("wt", "mine");
        lab.write("wt/new", "x");
        add_to(&lab, "next", &commit, None, &quiet).unwrap();
        assert_eq!(lab.read("wt/new"), "x");
        assert_eq!(lab.sh("wt", &["rev-parse", "HEAD"]), mine);
        let listed = pins(&lab).list().unwrap();
        assert_eq!(listed.len(), 2);
        assert!(
            listed.iter().all(|kept| kept.state == PinState::Intact),
            "{listed:?}"
        );
        refused(
            remove_from(&lab, "wt", Discard::Refuse, &quiet),
            "unreachable_commits",
        );
        remove_from(&lab, "wt", Discard::Work, &quiet).unwrap();
        remove_from(&lab, "next", Discard::Refuse, &quiet).unwrap();
        nothing_left(&lab);
        // The removal itself ends it, and so does a pin.
        killed_at(&lab, "add", Milestone::Placed, &commit);
        remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        nothing_left(&lab);
        killed_at(&lab, "add", Milestone::Placed, &commit);
        let wait = Duration::from_secs(60);
        let pin = pins(&lab).pin(&git, &lab.path("wt"), Repin::Refuse, wait, &cancel());
        assert!(matches!(
            pin.unwrap().origin,
            semel_core::pin::Origin::Made { .. }
        ));
        remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        nothing_left(&lab);
        // One that was cut off before it had its name is taken back, and then there is none to remove.
        killed_at(&lab, "add", Milestone::Pointed, &commit);
        let gone = remove_from(&lab, "wt", Discard::Work, &quiet).unwrap_err();
        assert_eq!(gone.code(), Code::NotFound);
        nothing_left(&lab);
    }
}

#[test]
fn a_worktree_that_others_moved_or_exchanged_before_it_was_pinned_stays() {
    let git = gits().remove(0);
    let (lab, commit) = repository(&git);
    killed_at(&lab, "add", Milestone::Placed, &commit);
    std::fs::rename(lab.path("wt"), lab.path("moved")).unwrap();
    let mine = lab.commit("moved", "mine");
    add_to(&lab, "next", &commit, None, &quiet).unwrap();
    assert_eq!(lab.sh("moved", &["rev-parse", "HEAD"]), mine);
    assert!(pins(&lab).unfinished().unwrap().is_empty());
    // Led astray: it is neither pinned nor removed, and in nobody's way.
    killed_at(&lab, "add", Milestone::Placed, &commit);
    let own = lab.read("wt/.git");
    lab.write("wt/.git", lab.read("next/.git"));
    add_to(&lab, "third", &commit, None, &quiet).unwrap();
    assert_eq!(lab.read("wt/f"), "one\n");
    assert_eq!(pins(&lab).unfinished().unwrap().len(), 1);
    lab.write("wt/.git", own);
    remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
    assert!(pins(&lab).unfinished().unwrap().is_empty());
}

/// Another filesystem, or another directory or file, at a place; until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn on(place: &Path, of: Option<&Path>) -> Option<Self> {
        use rustix::mount::{MountFlags, mount, mount_bind};
        let done = match of {
            Some(of) => mount_bind(of, place),
            None => mount("none", place, "tmpfs", MountFlags::empty(), None),
        };
        done.ok().map(|()| Self(place.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_mount_at_any_level_is_seen_before_anything_is_removed() {
    let git = gits().remove(0);
    let (lab, commit) = repository(&git);
    lab.write("r/.git/info/exclude", "ign\n");
    lab.write("precious", "x");
    lab.write("of/precious", "x");
    add_to(&lab, "wt", &commit, None, &quiet).unwrap();
    let git_of = gitdir(&lab);
    lab.write("wt/ign/deep/er/f", "x");
    std::fs::create_dir_all(git_of.join("logs")).unwrap();
    let (precious, of) = (lab.path("precious"), lab.path("of"));
    let places = [
        (lab.path("wt/ign/deep/er"), None),
        (lab.path("wt/ign/deep/er"), Some(of.as_path())),
        (lab.path("wt/ign/deep/er/f"), Some(precious.as_path())),
        (git_of.join("logs"), Some(of.as_path())),
        (git_of.join("HEAD"), Some(precious.as_path())),
    ];
    for (place, of) in &places {
        let Some(mounted) = Mounted::on(place, *of) else {
            skipped("nothing can be mounted here");
            return;
        };
        for discard in [Discard::Refuse, Discard::Work] {
            let refusal = refused(remove_from(&lab, "wt", discard, &quiet), "kept");
            assert_eq!(refusal.names, [format!("{}: mount", place.display())]);
        }
        add_to(&lab, "next", &commit, None, &quiet).unwrap();
        remove_from(&lab, "next", Discard::Refuse, &quiet).unwrap();
        drop(mounted);
        assert_eq!(lab.read("wt/f"), "one\n");
    }
    assert_eq!(
        [lab.read("precious"), lab.read("of/precious")],
        ["x".to_owned(), "x".to_owned()]
    );
    remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
    std::fs::remove_file(precious).unwrap();
    remove_all(&of);
    nothing_left(&lab);
}
