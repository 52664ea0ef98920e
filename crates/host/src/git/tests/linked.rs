//! Worktrees that are made and removed, and what is left when that is killed at any point.

use super::pin::pins;
use super::*;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Barrier;

const PLAYS: &str = "SEMEL_TEST_LINKED";

pub(super) fn add_to(
    lab: &Lab,
    name: &str,
    commit: &str,
    tree: Option<&str>,
    tell: Tell<'_>,
) -> Result<semel_core::pin::Pin> {
    let asked = Add {
        repository: lab.path("r"),
        worktree: lab.path(name),
        commit: commit.to_owned(),
        tree: tree.map(str::to_owned),
        wait: Duration::from_secs(60),
    };
    add(&lab.git, &pins(lab), &asked, tell, &cancel())
}

pub(super) fn remove_from(lab: &Lab, name: &str, discard: Discard, tell: Tell<'_>) -> Result<Removed> {
    remove(
        &lab.git,
        &pins(lab),
        &to_remove(lab, name, discard),
        tell,
        &cancel(),
    )
}

pub(super) fn to_remove(lab: &Lab, name: &str, discard: Discard) -> Remove {
    Remove {
        worktree: lab.path(name),
        discard,
        locked: Locked::Refuse,
        nested: Nested::Refused,
        wait: Duration::from_secs(60),
    }
}

pub(super) fn remove_with(lab: &Lab, name: &str, discard: Discard, nested: Nested) -> Result<Removed> {
    let asked = Remove {
        nested,
        ..to_remove(lab, name, discard)
    };
    remove(&lab.git, &pins(lab), &asked, &quiet, &cancel())
}

pub(super) fn quiet(_: Milestone) {}

pub(super) fn repository(git: &Git) -> (Lab, String) {
    let lab = Lab::new(git);
    lab.write("r/f", "one\n");
    lab.write("r/sub/g", "two\n");
    executable(
        &lab.path("r/.git/hooks/post-checkout"),
        "#!/bin/sh\ntouch \"$0.ran\"\n",
    );
    let commit = lab.commit("r", "one");
    (lab, commit)
}

/// Nothing is left: no worktree, no git directory, no pin, no record.
pub(super) fn nothing_left(lab: &Lab) {
    let mut left: Vec<String> = Vec::new();
    for dir in ["", "state/worktrees", "r/.git/worktrees"] {
        let Ok(entries) = std::fs::read_dir(lab.path(dir)) else {
            continue;
        };
        left.extend(entries.map(|entry| format!("{dir}/{}", entry.unwrap().file_name().to_string_lossy())));
    }
    left.retain(|name| !["/r", "/state"].contains(&name.as_str()) && !name.ends_with(".lock"));
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(
        lab.sh("r", &["worktree", "list", "--porcelain"])
            .matches("worktree ")
            .count(),
        1
    );
    assert!(!lab.path("r/.git/hooks/post-checkout.ran").exists());
    lab.sh("r", &["fsck", "--strict"]);
}

pub(super) fn refused(result: Result<Removed>, reason: &str) -> Refusal {
    let refusal = result.unwrap_err().into_refusal();
    assert_eq!(refusal.reason.as_deref(), Some(reason), "{refusal:?}");
    refusal
}

#[test]
fn a_worktree_is_made_pinned_listed_and_removed() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        lab.write("r/f", "newer\n");
        let newer = lab.commit("r", "newer");
        let tree = lab.sh("r", &["rev-parse", &format!("{newer}^{{tree}}")]);
        let pin = add_to(&lab, "wt", &commit, Some(&tree), &quiet).unwrap();
        assert_eq!(lab.read("wt/f"), "newer\n");
        assert_eq!(lab.sh("wt", &["rev-parse", "HEAD"]), commit);
        assert_eq!(lab.sh("wt", &["write-tree"]), tree);
        assert_eq!(lab.sh("wt", &["diff", "--name-only"]), "");
        assert_eq!(lab.sh("wt", &["status", "--porcelain"]), "M  f");
        lab.sh("wt", &["symbolic-ref", "-q", "HEAD", "refs/heads/agent"]);
        lab.sh("wt", &["update-ref", "HEAD", &commit]);
        assert_eq!(
            pins(&lab).list().unwrap(),
            [KeptPin {
                pin: pin.clone(),
                state: PinState::Intact
            }]
        );
        let occupied = add_to(&lab, "wt", &commit, None, &quiet)
            .unwrap_err()
            .into_refusal();
        assert_eq!(occupied.reason.as_deref(), Some("exists"));
        assert_eq!(
            remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap(),
            Removed::Worktree {
                pin,
                ignored: Some(0)
            }
        );
        nothing_left(&lab);
        assert_eq!(
            remove_from(&lab, "wt", Discard::Work, &quiet).unwrap_err().code(),
            Code::NotFound
        );
    }
}

#[test]
fn work_is_not_removed_unless_told() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        let try_it = |reason| refused(remove_from(&lab, "wt", Discard::Refuse, &quiet), reason);
        lab.write("wt/new", "x");
        assert_eq!(try_it("dirty_worktree").names, ["new"]);
        std::fs::remove_file(lab.path("wt/new")).unwrap();
        // Hidden from git's own index.
        lab.sh("wt", &["update-index", "--skip-worktree", "f"]);
        lab.write("wt/f", "hidden\n");
        assert_eq!(try_it("dirty_worktree").names, ["f"]);
        lab.sh("wt", &["update-index", "--no-skip-worktree", "f"]);
        let beyond = lab.commit("wt", "nowhere else");
        assert_eq!(try_it("unreachable_commits").names, [beyond.as_str()]);
        lab.sh("wt", &["branch", "kept"]);
        lab.write("r/.git/worktrees/other/x", "a stranger's");
        std::fs::write(lab.path("wt").join(".git.lock"), "").unwrap();
        assert!(try_it("dirty_worktree").names.contains(&".git.lock".to_owned()));
        let lock = lab.sh(
            "wt",
            &["rev-parse", "--path-format=absolute", "--git-path", "index.lock"],
        );
        std::fs::write(&lock, "").unwrap();
        let held = remove_from(&lab, "wt", Discard::Work, &quiet).unwrap_err();
        assert_eq!(held.code(), Code::OtherLock);
        std::fs::remove_file(lock).unwrap();
        remove_from(&lab, "wt", Discard::Work, &quiet).unwrap();
        assert_eq!(lab.read("r/.git/worktrees/other/x"), "a stranger's");
        remove_all(&lab.path("r/.git/worktrees"));
        nothing_left(&lab);
    }
}

#[test]
fn what_was_made_by_us_is_ours_wherever_it_was_moved() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        lab.sh("r", &["worktree", "move", "../wt", "../moved"]);
        let long = Duration::from_secs(60);
        let gitdir = lab.sh("moved", &["rev-parse", "--absolute-git-dir"]);
        let anew = || {
            let pinned = pins(&lab).pin(&git, &lab.path("moved"), Repin::Anew, long, &cancel());
            pinned.unwrap()
        };
        // A copy in the place of its git directory is none that we made; it itself is.
        let aside = lab.path("aside");
        std::fs::rename(&gitdir, &aside).unwrap();
        let copied = std::process::Command::new("cp")
            .arg("-r")
            .args([aside, gitdir.into()])
            .status();
        assert!(copied.unwrap().success());
        anew();
        refused(remove_from(&lab, "moved", Discard::Work, &quiet), "not_ours");
        assert_eq!(lab.read("moved/f"), "one\n");
    }
    for git in gits() {
        let (lab, commit) = repository(&git);
        add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        lab.sh("r", &["worktree", "move", "../wt", "../moved"]);
        for repin in [Repin::Refuse, Repin::Anew] {
            let long = Duration::from_secs(60);
            pins(&lab)
                .pin(&git, &lab.path("moved"), repin, long, &cancel())
                .unwrap();
        }
        remove_from(&lab, "moved", Discard::Refuse, &quiet).unwrap();
        nothing_left(&lab);
    }
}

#[test]
fn what_is_not_ours_is_not_removed() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        lab.sh("r", &["worktree", "add", "-q", "../found", "-b", "f"]);
        pins(&lab)
            .pin(
                &git,
                &lab.path("found"),
                Repin::Refuse,
                Duration::from_secs(60),
                &cancel(),
            )
            .unwrap();
        refused(remove_from(&lab, "found", Discard::Work, &quiet), "not_ours");
        assert!(matches!(
            remove_from(&lab, "found", Discard::PinOnly, &quiet),
            Ok(Removed::Pin(_))
        ));
        assert_eq!(lab.read("found/f"), "one\n");
        // Ours, exchanged for another directory.
        add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        std::fs::rename(lab.path("wt"), lab.path("mine")).unwrap();
        std::fs::rename(lab.path("found"), lab.path("wt")).unwrap();
        refused(remove_from(&lab, "wt", Discard::Work, &quiet), "worktree_changed");
        assert_eq!(lab.read("wt/f"), "one\n");
        std::fs::rename(lab.path("wt"), lab.path("found")).unwrap();
        // Ours, gone by other hands.
        remove_all(&lab.path("mine"));
        lab.sh("r", &["worktree", "prune"]);
        assert!(matches!(
            remove_from(&lab, "wt", Discard::Refuse, &quiet),
            Ok(Removed::Pin(_))
        ));
        assert!(pins(&lab).list().unwrap().is_empty());
    }
}

#[test]
fn odd_repositories_and_odd_places_are_as_good() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        lab.sh("r", &["clone", "-q", "--bare", ".", "../bare"]);
        lab.sh("r", &["worktree", "add", "-q", "../linked", "-b", "l"]);
        std::fs::create_dir(lab.path("new")).unwrap();
        lab.sh("new", &["init", "-q", "--object-format=sha256"]);
        lab.write("new/f", "one\n");
        let long = lab.commit("new", "one");
        let odd = std::ffi::OsStr::from_bytes(b"a b\n\xff\"");
        for (at, commit) in [("bare", &commit), ("linked", &commit), ("new", &long)] {
            let asked = Add {
                repository: lab.path(at),
                worktree: lab.path("").join(odd),
                commit: commit.clone(),
                tree: None,
                wait: Duration::from_secs(60),
            };
            let pin = add(&lab.git, &pins(&lab), &asked, &quiet, &cancel()).unwrap();
            let place = asked.worktree.clone();
            assert_eq!(std::fs::read(place.join("f")).unwrap(), b"one\n");
            let target = pins(&lab).target(&place, Require::Pin).unwrap();
            let options = RestoreOptions::default();
            let tree = match &pin.origin {
                semel_core::pin::Origin::Made { tree, .. } => tree.to_string(),
                semel_core::pin::Origin::Found => unreachable!(),
            };
            std::fs::write(place.join("f"), "changed\n").unwrap();
            let outcome = restore(&git, target, &tree, options, &cancel()).unwrap();
            assert_eq!(outcome.identity, Identity::Pinned);
            let asked = Remove {
                worktree: place.clone(),
                discard: Discard::Refuse,
                locked: Locked::Refuse,
                nested: Nested::Refused,
                wait: Duration::from_secs(60),
            };
            remove(&lab.git, &pins(&lab), &asked, &quiet, &cancel()).unwrap();
            assert!(!place.exists());
        }
    }
}

/// Killed wherever it happens to be, git at work among it: what is left is taken back, or it is whole.
#[test]
fn makings_that_are_killed_at_any_time_leave_nothing_behind() {
    let git = gits().remove(0);
    let (lab, commit) = repository(&git);
    for n in 0..200 {
        lab.write(&format!("r/many/{n}"), format!("{n}\n"));
    }
    let many = lab.commit("r", "many");
    let mut died = 0;
    for n in 0..20_u64 {
        let mut child = playing(&lab, "add", "Never", &many).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(n * 6));
        child.kill().unwrap();
        died += u32::from(child.wait().unwrap().signal() == Some(9));
        let next = add_to(&lab, "next", &commit, None, &quiet).unwrap();
        let pinned = pins(&lab).list().unwrap();
        assert!(
            pinned.iter().all(|kept| kept.state == PinState::Intact),
            "{n}: {pinned:?}"
        );
        assert_eq!(lab.path("wt").exists(), pinned.len() == 2, "{n}");
        if pinned.len() == 2 {
            assert_eq!(lab.sh("wt", &["status", "--porcelain"]), "");
            remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        }
        remove_from(&lab, "next", Discard::Refuse, &quiet).unwrap();
        assert_eq!(
            next.worktree.path.as_bytes(),
            lab.path("next").as_os_str().as_bytes()
        );
        nothing_left(&lab);
    }
    assert!(died > 0, "none was killed in time");
}

#[test]
fn what_cannot_be_made_leaves_nothing_behind() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        let tree = lab.sh("r", &["rev-parse", "HEAD^{tree}"]);
        let blob = lab.sh("r", &["rev-parse", "HEAD:f"]);
        let code = |commit: &str, tree: Option<&str>| {
            let code = add_to(&lab, "wt", commit, tree, &quiet).unwrap_err().code();
            nothing_left(&lab);
            code
        };
        assert_eq!(code(&tree, None), Code::BadInput);
        assert_eq!(code("HEAD", None), Code::BadInput);
        assert_eq!(code(&commit, Some(&blob)), Code::BadInput);
        assert_eq!(code(&commit, Some(&"0".repeat(40))), Code::ObjectMissing);
        lab.write("r/.gitattributes", "*.bin filter=lfs\n");
        let filtered = lab.commit("r", "filtered");
        assert_eq!(code(&filtered, None), Code::PreconditionFailed);
        let nowhere = add_to(&lab, "no/where", &commit, None, &quiet).unwrap_err();
        assert_eq!(nowhere.code(), Code::NotFound);
        nothing_left(&lab);
    }
}

#[test]
fn many_at_once_are_in_order() {
    let git = gits().remove(0);
    let (lab, commit) = repository(&git);
    let gate = Barrier::new(6);
    std::thread::scope(|scope| {
        for n in 0..6 {
            let (lab, commit, gate) = (&lab, &commit, &gate);
            scope.spawn(move || {
                gate.wait();
                add_to(lab, &format!("wt{n}"), commit, None, &quiet).unwrap();
                remove_from(lab, &format!("wt{n}"), Discard::Refuse, &quiet).unwrap();
            });
        }
    });
    nothing_left(&lab);
    let held = pins(&lab)
        .lock(&lab.path("r/.git"), Duration::ZERO, &cancel())
        .unwrap();
    let asked = Add {
        repository: lab.path("r"),
        worktree: lab.path("wt"),
        commit,
        tree: None,
        wait: Duration::ZERO,
    };
    let busy = add(&git, &pins(&lab), &asked, &quiet, &cancel())
        .unwrap_err()
        .into_refusal();
    assert_eq!(
        (busy.code, busy.reason.as_deref()),
        (Code::LockTimeout, Some("worktrees_busy"))
    );
    drop(held);
    nothing_left(&lab);
}

const ADDS: &[Milestone] = &[
    Milestone::Intended,
    Milestone::Built,
    Milestone::Restored,
    Milestone::Identified,
    Milestone::Pointed,
    Milestone::Placed,
    Milestone::Pinned,
    Milestone::Done,
];
const REMOVES: &[Milestone] = &[
    Milestone::Intended,
    Milestone::Aside,
    Milestone::GitDirGone,
    Milestone::FilesGone,
    Milestone::Forgotten,
    Milestone::Done,
];

/// Plays the part that the environment names, and kills itself at a point; alone it has none.
#[test]
fn part() {
    let Some(plays) = std::env::var_os(PLAYS) else {
        return;
    };
    let plays = plays.into_string().unwrap();
    let [what, point, root, git, commit] = plays.split('|').collect::<Vec<_>>().try_into().unwrap();
    let git = Git::find(&[PathBuf::from(git)]).unwrap();
    let killed = |at: Milestone| {
        if format!("{at:?}") == point {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
    };
    let (pins, wait) = (Pins::of(&Path::new(root).join("state")), Duration::from_secs(60));
    let worktree = Path::new(root).join("wt");
    if what == "add" {
        let repository = Path::new(root).join("r");
        let asked = Add {
            repository,
            worktree,
            commit: commit.to_owned(),
            tree: None,
            wait,
        };
        add(&git, &pins, &asked, &killed, &cancel()).unwrap();
    } else {
        let asked = Remove {
            worktree,
            discard: Discard::Refuse,
            locked: Locked::Refuse,
            nested: Nested::Refused,
            wait,
        };
        remove(&git, &pins, &asked, &killed, &cancel()).unwrap();
    }
}

fn playing(lab: &Lab, what: &str, point: &str, commit: &str) -> std::process::Command {
    let root = lab.path("");
    let git = lab.git.program().parent().unwrap();
    let plays = format!("{what}|{point}|{}|{}|{commit}", root.display(), git.display());
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "git::tests::linked::part", "--nocapture"])
        .env(PLAYS, plays)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Runs a part in a process of its own, which has to be killed at that point.
pub(super) fn killed_at(lab: &Lab, what: &str, point: Milestone, commit: &str) {
    let ran = playing(lab, what, &format!("{point:?}"), commit)
        .status()
        .unwrap();
    assert_eq!(ran.signal(), Some(9), "{what} at {point:?}: {ran:?}");
}

#[test]
fn a_making_that_is_killed_at_any_point_is_taken_back_or_is_whole() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        for point in ADDS {
            killed_at(&lab, "add", *point, &commit);
            // From its name on others may work in it: it is ended, not taken back.
            let whole = [Milestone::Placed, Milestone::Pinned, Milestone::Done].contains(point);
            // The next command on the repository settles it, whatever it is.
            let next = add_to(&lab, "next", &commit, None, &quiet).unwrap();
            let pinned = pins(&lab).list().unwrap();
            assert!(
                pinned.iter().all(|kept| kept.state == PinState::Intact),
                "{point:?}: {pinned:?}"
            );
            assert_eq!(pinned.len(), if whole { 2 } else { 1 }, "{point:?}");
            assert_eq!(lab.path("wt").exists(), whole, "{point:?}");
            if whole {
                assert_eq!(lab.read("wt/sub/g"), "two\n");
                remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
            }
            assert_eq!(
                remove_from(&lab, "next", Discard::Refuse, &quiet).unwrap(),
                Removed::Worktree {
                    pin: next,
                    ignored: Some(0)
                }
            );
            nothing_left(&lab);
        }
    }
}

#[test]
fn a_removal_that_is_killed_at_any_point_has_not_begun_or_is_ended() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        for point in REMOVES {
            add_to(&lab, "wt", &commit, None, &quiet).unwrap();
            killed_at(&lab, "remove", *point, &commit);
            add_to(&lab, "next", &commit, None, &quiet).unwrap();
            let kept = *point == Milestone::Intended;
            assert_eq!(lab.path("wt").exists(), kept, "{point:?}");
            let pinned = pins(&lab).list().unwrap();
            assert!(
                pinned.iter().all(|kept| kept.state == PinState::Intact),
                "{point:?}: {pinned:?}"
            );
            assert_eq!(pinned.len(), if kept { 2 } else { 1 }, "{point:?}");
            if kept {
                assert_eq!(lab.read("wt/f"), "one\n");
                remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
            }
            remove_from(&lab, "next", Discard::Refuse, &quiet).unwrap();
            nothing_left(&lab);
        }
    }
}

#[test]
fn a_directory_of_a_stranger_in_the_place_of_a_killed_making_stays() {
    let git = gits().remove(0);
    let (lab, commit) = repository(&git);
    killed_at(&lab, "add", Milestone::Pointed, &commit);
    lab.write("wt/f", "a stranger's");
    let occupied = add_to(&lab, "wt", &commit, None, &quiet)
        .unwrap_err()
        .into_refusal();
    assert_eq!(occupied.reason.as_deref(), Some("exists"));
    assert_eq!(lab.read("wt/f"), "a stranger's");
    remove_all(&lab.path("wt"));
    nothing_left(&lab);
}
