//! Pinned identities against everything that an agent can do to its `.git`.

use super::*;
use std::os::unix::fs::symlink;

pub(super) fn pins(lab: &Lab) -> Pins {
    Pins::of(&lab.path("state"))
}

/// A child of another test has what was let go for the moment between fork and exec.
const LONG: Duration = Duration::from_secs(60);

fn pin(lab: &Lab, name: &str) -> semel_core::pin::Pin {
    pins(lab)
        .pin(&lab.git, &lab.path(name), Repin::Refuse, LONG, &cancel())
        .unwrap()
}

fn options() -> RestoreOptions {
    RestoreOptions {
        wait: Duration::ZERO,
        ..RestoreOptions::default()
    }
}

/// Restores as a caller does: by the pin where there is one.
fn run(lab: &Lab, name: &str, tree: &str, require: Require) -> std::result::Result<Identity, Refusal> {
    let target = pins(lab)
        .target(&lab.path(name), require)
        .map_err(Error::into_refusal)?;
    match restore(&lab.git, target, tree, options(), &cancel()) {
        Ok(outcome) => Ok(outcome.identity),
        Err(failed) => {
            assert_eq!(failed.touched, Touched::Nothing, "{}", failed.error);
            Err(failed.error.into_refusal())
        }
    }
}

fn redirected(lab: &Lab, tree: &str, reason: &str) {
    let refusal = run(lab, "wt", tree, Require::Nothing).unwrap_err();
    assert_eq!(refusal.code, Code::WorktreeRedirected, "{refusal:?}");
    assert_eq!(refusal.reason.as_deref(), Some(reason), "{refusal:?}");
}

/// Two linked worktrees, `wt` pinned, `other` with work of its own.
fn two(git: &Git) -> (Lab, String) {
    let lab = Lab::new(git);
    let (tree, _) = lab.linked();
    lab.sh("r", &["worktree", "add", "-q", "../other", "-b", "o"]);
    lab.write("other/f", "work of another\n");
    lab.write("wt/f", "changed\n");
    (lab, tree)
}

#[test]
fn a_pinned_worktree_is_restored_as_such_and_a_missing_pin_can_be_refused() {
    for git in gits() {
        let (lab, tree) = two(&git);
        assert_eq!(run(&lab, "wt", &tree, Require::Nothing), Ok(Identity::Unpinned));
        let refusal = run(&lab, "wt", &tree, Require::Pin).unwrap_err();
        assert_eq!(refusal.reason.as_deref(), Some("not_pinned"));
        let first = pin(&lab, "wt");
        assert_eq!(pin(&lab, "wt"), first, "again: the same pin");
        lab.write("wt/f", "changed\n");
        assert_eq!(run(&lab, "wt", &tree, Require::Pin), Ok(Identity::Pinned));
        assert_eq!(lab.read("wt/f"), "one\n");
        // A main worktree, and one that is reached through a link.
        pin(&lab, "r");
        symlink(lab.path("r"), lab.path("link")).unwrap();
        assert_eq!(run(&lab, "r", &tree, Require::Pin), Ok(Identity::Pinned));
        assert_eq!(run(&lab, "link", &tree, Require::Pin), Ok(Identity::Pinned));
        let kept = pins(&lab).list().unwrap();
        assert_eq!(kept.len(), 2);
        assert!(kept.iter().all(|kept| kept.state == PinState::Intact), "{kept:?}");
    }
}

#[test]
fn a_git_file_that_points_elsewhere_is_refused_and_its_victim_untouched() {
    for git in gits() {
        let (lab, tree) = two(&git);
        pin(&lab, "wt");
        let index = lab.path("r/.git/worktrees/other/index");
        let before = std::fs::read(&index).unwrap();
        // The simple repointing; the one that makes the victim's git directory point back; a link; a directory.
        std::fs::copy(lab.path("other/.git"), lab.path("wt/.git")).unwrap();
        redirected(&lab, &tree, "pointers_changed");
        let back = lab.path("r/.git/worktrees/other/gitdir");
        std::fs::write(&back, format!("{}\n", lab.path("wt/.git").display())).unwrap();
        redirected(&lab, &tree, "pointers_changed");
        std::fs::remove_file(lab.path("wt/.git")).unwrap();
        redirected(&lab, &tree, "pointers_changed");
        symlink(lab.path("other/.git"), lab.path("wt/.git")).unwrap();
        redirected(&lab, &tree, "pointers_changed");
        std::fs::remove_file(lab.path("wt/.git")).unwrap();
        lab.sh("wt", &["init", "-q"]);
        redirected(&lab, &tree, "pointers_changed");
        assert_eq!(std::fs::read(&index).unwrap(), before);
        assert_eq!(lab.read("other/f"), "work of another\n");
        assert_eq!(lab.read("wt/f"), "changed\n");
    }
}

#[test]
fn directories_that_are_exchanged_are_not_the_pinned_ones() {
    for git in gits() {
        let (lab, tree) = two(&git);
        pin(&lab, "wt");
        let swap = |from: &str, to: &str| std::fs::rename(lab.path(from), lab.path(to)).unwrap();
        // Another worktree under the name, as itself, and reached through a link.
        swap("wt", "mine");
        swap("other", "wt");
        redirected(&lab, &tree, "worktree_changed");
        swap("wt", "other");
        symlink(lab.path("other"), lab.path("wt")).unwrap();
        redirected(&lab, &tree, "worktree_changed");
        for spelt in ["./wt/", "r/../wt", "r/../r/../wt/."] {
            let refusal = run(&lab, spelt, &tree, Require::Nothing).unwrap_err();
            assert_eq!(refusal.reason.as_deref(), Some("worktree_changed"), "{spelt}");
        }
        std::fs::remove_file(lab.path("wt")).unwrap();
        redirected(&lab, &tree, "worktree_changed");
        swap("mine", "wt");
        // A copy of the git directory in its place, and a link to it.
        let gitdir = "r/.git/worktrees/wt";
        swap(gitdir, "gitdir");
        let copied = std::process::Command::new("cp")
            .arg("-a")
            .args([lab.path("gitdir"), lab.path(gitdir)])
            .status();
        assert!(copied.unwrap().success());
        redirected(&lab, &tree, "gitdir_changed");
        remove_all(&lab.path(gitdir));
        symlink(lab.path("gitdir"), lab.path(gitdir)).unwrap();
        redirected(&lab, &tree, "gitdir_changed");
        std::fs::remove_file(lab.path(gitdir)).unwrap();
        swap("gitdir", gitdir);
        // The repository itself.
        swap("r/.git", "git");
        symlink(lab.path("git"), lab.path("r/.git")).unwrap();
        redirected(&lab, &tree, "gitdir_changed");
        std::fs::remove_file(lab.path("r/.git")).unwrap();
        swap("git", "r/.git");
        assert_eq!(lab.read("other/f"), "work of another\n");
        assert_eq!(lab.read("wt/f"), "changed\n");
        assert_eq!(run(&lab, "wt", &tree, Require::Pin), Ok(Identity::Pinned));
    }
}

#[test]
fn a_settings_file_redirects_no_pinned_worktree() {
    for git in gits() {
        let (lab, tree) = two(&git);
        pin(&lab, "wt");
        lab.write("victim/f", "victim\n");
        let config = lab.read("r/.git/config");
        let set = |text: &str| lab.write("r/.git/config", format!("{config}{text}"));
        set(&format!(
            "[core]\n\tworktree = {}\n",
            lab.path("victim").display()
        ));
        let refusal = run(&lab, "wt", &tree, Require::Nothing).unwrap_err();
        assert_eq!(refusal.code, Code::WorktreeRedirected);
        set("[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = sha256\n");
        redirected(&lab, &tree, "format_changed");
        set("[core]\n\tfsmonitor = touch ran\n\thooksPath = hooks\n");
        assert_eq!(run(&lab, "wt", &tree, Require::Nothing), Ok(Identity::Pinned));
        assert_eq!(lab.read("victim/f"), "victim\n");
        assert!(!lab.path("wt/ran").exists() && !lab.path("ran").exists());
    }
}

#[test]
fn an_unpinned_worktree_cannot_use_the_git_directory_of_a_pinned_one() {
    for git in gits() {
        let (lab, tree) = two(&git);
        pin(&lab, "other");
        std::fs::copy(lab.path("other/.git"), lab.path("wt/.git")).unwrap();
        let back = lab.path("r/.git/worktrees/other/gitdir");
        std::fs::write(&back, format!("{}\n", lab.path("wt/.git").display())).unwrap();
        redirected(&lab, &tree, "gitdir_claimed");
        let again = pins(&lab).pin(&git, &lab.path("wt"), Repin::Refuse, LONG, &cancel());
        let refusal = again.unwrap_err().into_refusal();
        assert_eq!(refusal.reason.as_deref(), Some("gitdir_claimed"));
        assert_eq!(lab.read("other/f"), "work of another\n");
    }
}

#[test]
fn a_pin_that_does_not_hold_is_taken_anew_only_when_told() {
    for git in gits() {
        let (lab, tree) = two(&git);
        let first = pin(&lab, "wt");
        lab.sh("r", &["worktree", "move", "../wt", "../moved"]);
        let kept = pins(&lab).list().unwrap();
        assert!(matches!(&kept[0].state, PinState::Changed(refusal)
            if refusal.reason.as_deref() == Some("worktree_changed")));
        let moved = pin(&lab, "moved");
        assert_ne!(moved.id, first.id);
        assert_eq!(
            pins(&lab).list().unwrap().len(),
            1,
            "the empty place is forgotten"
        );
        lab.sh("r", &["worktree", "move", "../moved", "../wt"]);
        std::fs::rename(lab.path("wt"), lab.path("moved")).unwrap();
        let put = |repin| pins(&lab).pin(&git, &lab.path("moved"), repin, LONG, &cancel());
        let refusal = put(Repin::Refuse).unwrap_err().into_refusal();
        assert_eq!(refusal.code, Code::WorktreeRedirected);
        lab.sh("moved", &["worktree", "repair"]);
        assert!(put(Repin::Refuse).is_ok(), "the very same directories again");
        std::fs::write(lab.path("r/.git/worktrees/wt/commondir"), "../../\n").unwrap();
        assert!(put(Repin::Refuse).is_err());
        let anew = put(Repin::Anew).unwrap();
        assert_ne!(anew.id, moved.id);
        assert_eq!(run(&lab, "moved", &tree, Require::Pin), Ok(Identity::Pinned));
    }
}

#[test]
fn a_pin_that_cannot_be_read_is_no_pin_that_is_missing() {
    let git = gits().remove(0);
    let (lab, tree) = two(&git);
    pin(&lab, "wt");
    let place = std::fs::read_dir(lab.path("state/worktrees"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_string_lossy().starts_with("w-"))
        .unwrap();
    assert_eq!(std::fs::metadata(&place).unwrap().permissions().mode() & 0o077, 0);
    std::fs::write(&place, "{}").unwrap();
    let refusal = run(&lab, "wt", &tree, Require::Nothing).unwrap_err();
    assert_eq!(refusal.code, Code::UnknownState);
    assert_eq!(lab.read("wt/f"), "changed\n");
}

/// Does something to a worktree at the moment when its lock was taken.
struct Meanwhile<'a>(&'a (dyn Fn() + Sync));

impl Witness for Meanwhile<'_> {
    fn reached(&self, point: Point) {
        if point == Point::Taken {
            (self.0)();
        }
    }
}

/// The lock may have been waited for: what was led elsewhere meanwhile is seen under it, pinned or not.
#[test]
fn what_is_led_elsewhere_while_the_lock_is_sought_is_refused() {
    for git in gits() {
        for pinned in ["pinned", "unpinned"] {
            for changed in [
                "wt/.git",
                "r/.git/worktrees/wt/gitdir",
                "r/.git/worktrees/wt/commondir",
            ] {
                let (lab, tree) = two(&git);
                lab.sh(".", &["clone", "-q", "--bare", "r", "elsewhere"]);
                if pinned == "pinned" {
                    pin(&lab, "wt");
                }
                let other = match changed {
                    "wt/.git" => lab.read("other/.git"),
                    "r/.git/worktrees/wt/gitdir" => lab.read("r/.git/worktrees/other/gitdir"),
                    _ => format!("{}\n", lab.path("elsewhere").display()),
                };
                let target = pins(&lab).target(&lab.path("wt"), Require::Nothing).unwrap();
                let change = || lab.write(changed, &other);
                let meanwhile = Meanwhile(&change);
                let result = restore_watched(&lab.git, target, &tree, options(), &cancel(), &meanwhile);
                let failed = result.unwrap_err();
                assert_eq!(
                    failed.error.code(),
                    Code::WorktreeRedirected,
                    "{changed} {pinned}"
                );
                assert_eq!(failed.touched, Touched::Nothing);
                assert_eq!(lab.read("wt/f"), "changed\n");
                assert_eq!(lab.read("other/f"), "work of another\n");
            }
        }
    }
}

#[test]
fn state_root_and_worktree_lie_apart() {
    let lab = Lab::new(&gits()[0]);
    lab.linked();
    symlink(lab.path("wt"), lab.path("link")).unwrap();
    let reason = |state: &str, worktree: &str| {
        let target = Pins::of(&lab.path(state)).target(&lab.path(worktree), Require::Nothing);
        target.err().map(|error| {
            let refusal = error.into_refusal();
            (refusal.code, refusal.reason.unwrap_or_default())
        })
    };
    let within = Some((Code::BadConfig, "state_in_worktree".to_owned()));
    for (state, worktree) in [
        ("wt/st", "wt"),
        ("wt", "wt"),
        ("wt/not/there/yet", "link"),
        ("link/st", "wt"),
        (".", "wt"),
    ] {
        assert_eq!(reason(state, worktree), within, "{state} {worktree}");
    }
    for (state, worktree) in [("state", "wt"), ("wt-st", "wt"), ("st", "link")] {
        assert_eq!(reason(state, worktree), None, "{state} {worktree}");
    }
}
