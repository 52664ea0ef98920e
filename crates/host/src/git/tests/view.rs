//! That nothing which the repository says by itself reaches the git that restores, whenever it is said; and that what is
//! called restored has the bytes that git writes by the tree's own attributes.

use super::restore::{no_residue, options};
use super::*;
use crate::git::view;
use rustix::fs::{CWD, FileType, Mode as FileMode, mknodat};
use std::os::unix::fs::symlink;
use std::time::Instant;

fn run(lab: &Lab, tree: &str) -> std::result::Result<Outcome, Box<Failed>> {
    run_with(lab, tree, options(0))
}

fn run_with(lab: &Lab, tree: &str, options: RestoreOptions) -> std::result::Result<Outcome, Box<Failed>> {
    restore(&lab.git, &lab.path("wt"), tree, options, &cancel())
}

fn refusal(result: std::result::Result<Outcome, Box<Failed>>) -> (Code, Option<String>, Touched) {
    let failed = result.unwrap_err();
    let touched = failed.touched;
    let refusal = failed.error.into_refusal();
    (refusal.code, refusal.reason, touched)
}

fn clean() -> RestoreOptions {
    RestoreOptions {
        leftovers: Leftovers::Removed,
        verify: Verify::Pristine,
        ..options(0)
    }
}

fn from_tree(git: &Git) -> bool {
    git.numbers >= (2, 43)
}

/// Changes the repository as soon as a point is reached.
struct Plants<'a> {
    lab: &'a Lab,
    at: Point,
}

impl Witness for Plants<'_> {
    fn reached(&self, point: Point) {
        if point == self.at {
            plant(self.lab);
        }
    }
}

/// Configures a program for everything that git knows to run one for.
fn plant(lab: &Lab) {
    let program = format!("sh -c 'touch {}; cat'", lab.path("pwned").display());
    lab.write("r/.git/info/attributes", "* filter=evil diff=evil merge=evil\n");
    let config = format!(
        "\n[filter \"evil\"]\n\tsmudge = {program}\n\tclean = {program}\n[filter \"late\"]\n\tprocess = {program}\n\
         [core]\n\tfsmonitor = {program}\n\talternateRefsCommand = {program}\n\tsshCommand = {program}\n\
         [hook \"evil\"]\n\tevent = post-index-change\n\tevent = reference-transaction\n\tevent = post-checkout\n\
         \tcommand = {program}\n[extensions]\n\tpartialClone = evil\n[remote \"evil\"]\n\turl = ext::{program}\n\
         \tpromisor = true\n[protocol]\n\tallow = always\n[diff \"evil\"]\n\ttextconv = {program}\n"
    );
    let place = lab.path("r/.git/config");
    let before = std::fs::read_to_string(&place).unwrap();
    if !before.contains("evil") {
        std::fs::write(&place, before + &config).unwrap();
    }
}

#[test]
fn what_is_planted_at_any_moment_is_never_run() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/dir/g", "two\n");
        let (tree, lock) = lab.linked();
        let config = std::fs::read(lab.path("r/.git/config")).unwrap();
        for at in Point::ALL {
            std::fs::write(lab.path("r/.git/config"), &config).unwrap();
            std::fs::remove_file(lab.path("r/.git/info/attributes")).ok();
            lab.write("wt/f", "changed\n");
            std::fs::remove_file(lab.path("wt/dir/g")).unwrap();
            // Nothing of the agent's own in the worktree has a say either.
            lab.write("wt/dir/.gitattributes", "* filter=late ident eol=crlf\n");
            let plants = Plants { lab: &lab, at };
            let outcome = restore_watched(&git, &lab.path("wt"), &tree, options(0), &cancel(), &plants);
            let outcome = outcome.unwrap_or_else(|e| panic!("{at:?} with {}: {e}", git.version()));
            assert!(outcome.mended.is_empty(), "{at:?}");
            assert_eq!(
                (lab.read("wt/f"), lab.read("wt/dir/g")),
                ("one\n".into(), "two\n".into())
            );
            assert!(!lab.path("pwned").exists(), "{at:?} with {}", git.version());
        }
        no_residue(&lock);
    }
}

#[test]
fn a_missing_object_of_a_partial_clone_is_not_fetched() {
    for git in gits() {
        let lab = Lab::new(&git);
        let (tree, _) = lab.linked();
        plant(&lab);
        let blob = lab.sh("r", &["rev-parse", "main:f"]);
        std::fs::remove_file(lab.path(&format!("r/.git/objects/{}/{}", &blob[..2], &blob[2..]))).unwrap();
        let (code, _, touched) = refusal(run(&lab, &tree));
        assert_eq!((code, touched), (Code::ObjectMissing, Touched::Nothing));
        assert!(!lab.path("pwned").exists());
    }
}

/// What an agent puts in the place of a file that is read holds nothing up: it is refused, or has no say.
#[test]
fn what_is_no_plain_file_holds_nothing_up() {
    for git in gits() {
        for (place, wanted) in [
            ("r/.git/info/attributes", None),
            ("r/.git/info/exclude", None),
            ("r/.git/config", Some(Code::WorktreeRedirected)),
            ("r/.git/objects/info/alternates", Some(Code::WorktreeRedirected)),
            (
                "wt/.gitattributes",
                (!from_tree(&git)).then_some(Code::PreconditionFailed),
            ),
            ("wt/.gitignore", None),
        ] {
            for fifo in [true, false] {
                let lab = Lab::new(&git);
                let (tree, _) = lab.linked();
                std::fs::create_dir_all(lab.path(place).parent().unwrap()).unwrap();
                std::fs::remove_file(lab.path(place)).ok();
                if fifo {
                    mknodat(CWD, lab.path(place), FileType::Fifo, FileMode::RWXU, 0).unwrap();
                } else {
                    symlink("/dev/zero", lab.path(place)).unwrap();
                }
                lab.write("wt/f", "changed\n");
                let began = Instant::now();
                let result = run(&lab, &tree);
                assert!(began.elapsed() < BRIEF, "{place} held it up");
                match wanted {
                    None => drop(result.unwrap_or_else(|e| panic!("{place} with {}: {e}", git.version()))),
                    Some(code) => assert_eq!(refusal(result).0, code, "{place}"),
                }
            }
        }
        // What a configuration includes is not read.
        let lab = Lab::new(&git);
        let (tree, _) = lab.linked();
        mknodat(CWD, lab.path("fifo"), FileType::Fifo, FileMode::RWXU, 0).unwrap();
        lab.sh("r", &["config", "core.bare", "false"]);
        let config = lab.read("r/.git/config");
        lab.write(
            "r/.git/config",
            format!("{config}[include]\n\tpath = {}\n", lab.path("fifo").display()),
        );
        run(&lab, &tree).unwrap();
    }
}

#[test]
fn attributes_outside_of_the_tree_have_no_say() {
    for git in gits() {
        for text in [
            "* eol=crlf\n",
            "* ident\n",
            "* working-tree-encoding=UTF-16\n",
            "* text eol=crlf\n",
        ] {
            let lab = Lab::new(&git);
            lab.write("r/id", "$Id$\n");
            let (tree, _) = lab.linked();
            lab.write("r/.git/info/attributes", text);
            lab.write("wt/.gitattributes", text);
            for name in ["f", "id"] {
                std::fs::remove_file(lab.path(&format!("wt/{name}"))).unwrap();
            }
            let outcome = run(&lab, &tree).unwrap();
            assert!(outcome.mended.is_empty());
            assert_eq!(
                (lab.read("wt/f"), lab.read("wt/id")),
                ("one\n".into(), "$Id$\n".into()),
                "{text}"
            );
        }
    }
}

/// Beside attributes of the tree's own: git takes them from the tree where it can; where it cannot, what is in the way is
/// named, or removed.
#[test]
fn attributes_beside_those_of_the_tree_have_no_say() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.write("r/.gitattributes", "*.bat text eol=crlf\n");
        lab.write("r/x.bat", "a\nb\n");
        lab.write("r/dir/g", "two\n");
        let (tree, lock) = lab.linked();
        let lay = || {
            for name in ["dir/g", "x.bat"] {
                std::fs::remove_file(lab.path(&format!("wt/{name}"))).unwrap();
            }
            lab.write("wt/dir/.gitattributes", "* eol=crlf ident\n");
            // Where the tree has one, the index has it, too.
            lab.write("wt/.gitattributes", "* eol=crlf\n");
            lab.write("r/.git/info/attributes", "*.bat -text\n* eol=crlf\n");
        };
        lay();
        let right = || {
            assert_eq!(
                (lab.read("wt/dir/g"), lab.read("wt/x.bat")),
                ("two\n".into(), "a\r\nb\r\n".into())
            );
        };
        if from_tree(&git) {
            assert!(run(&lab, &tree).unwrap().mended.is_empty());
            right();
            lay();
        } else {
            let failed = run(&lab, &tree).unwrap_err();
            assert_eq!(failed.touched, Touched::Nothing);
            let refusal = failed.error.into_refusal();
            assert_eq!(
                (refusal.code, refusal.reason.as_deref(), refusal.names),
                (
                    Code::PreconditionFailed,
                    Some("untracked_attributes"),
                    vec!["dir/.gitattributes".to_owned()]
                )
            );
            std::fs::remove_file(lab.path("wt/dir/.gitattributes")).unwrap();
            mknodat(
                CWD,
                lab.path("wt/dir/.gitattributes"),
                FileType::Fifo,
                FileMode::RWXU,
                0,
            )
            .unwrap();
            assert_eq!(refused_for(&lab, &tree), "untracked_attributes");
        }
        let outcome = run_with(&lab, &tree, clean()).unwrap();
        assert_eq!(outcome.removed_count, 1);
        assert_eq!(outcome.removed[0].to_string(), "dir/.gitattributes");
        assert!(outcome.mended.is_empty());
        right();
        // One that the index knows goes by git itself, before anything is written.
        lab.write("wt/dir/.gitattributes", "* eol=crlf\n");
        lab.sh("wt", &["add", "dir/.gitattributes"]);
        std::fs::remove_file(lab.path("wt/dir/g")).unwrap();
        assert!(run(&lab, &tree).unwrap().mended.is_empty());
        right();
        no_residue(&lock);
    }
}

fn refused_for(lab: &Lab, tree: &str) -> String {
    refusal(run(lab, tree)).1.unwrap_or_default()
}

/// Git itself is asked what it writes, for every kind of content under every attribute: nothing may be called mended.
#[test]
fn line_ends_are_those_that_git_writes() {
    let attributes = [
        ("a", "eol=crlf"),
        ("b", "text eol=crlf"),
        ("c", "text=auto eol=crlf"),
        ("d", "-text eol=crlf"),
        ("e", "binary eol=crlf"),
        ("ff", "crlf eol=crlf"),
        ("g", "-crlf eol=crlf"),
        ("h", "text=input eol=crlf"),
        ("i", "crlf=auto eol=crlf"),
        ("j", "text=auto crlf eol=crlf"),
        ("k", "text=odd eol=crlf"),
        ("l", "text=auto"),
        ("m", "text eol=lf"),
        ("n", "dos"),
        ("o", "text eol=CRLF"),
        ("p", "crlf=input eol=crlf"),
    ];
    let mut odd = vec![b'x'; 300];
    odd.extend(b"\x01\x02\n");
    let mut tame = vec![b'x'; 300];
    tame.extend(b"\x01\n");
    let contents: [&[u8]; 14] = [
        b"",
        b"x\ny\n",
        b"x\r\ny\n",
        b"x\r\ny\r\n",
        b"x\ry\n",
        b"x\r\r\ny\n",
        b"\n\n",
        b"no end",
        b"nul\0\n",
        b"tail\r",
        b"eof\n\x1a",
        b"\x7f\n",
        &odd,
        &tame,
    ];
    for git in gits() {
        let lab = Lab::new(&git);
        let mut text = "[attr]dos text eol=crlf\n".to_owned();
        for (dir, said) in attributes {
            text.push_str(&format!("/{dir}/** {said}\n"));
        }
        for (dir, _) in attributes {
            for (at, content) in contents.iter().enumerate() {
                lab.write(&format!("r/{dir}/{at}"), content);
            }
        }
        lab.sh("r", &["-c", "core.safecrlf=false", "add", "-A"]);
        // Stored as they are: the attributes come later.
        lab.write("r/.gitattributes", text);
        lab.sh("r", &["add", ".gitattributes"]);
        let tree = lab.sh("r", &["write-tree"]);
        lab.linked();
        let outcome = run(&lab, &tree).unwrap();
        assert_eq!(outcome.mended, [], "{}", git.version());
        assert_eq!(std::fs::read(lab.path("wt/b/1")).unwrap(), b"x\r\ny\r\n");
        assert_eq!(std::fs::read(lab.path("wt/b/2")).unwrap(), b"x\r\ny\r\n");
        assert_eq!(std::fs::read(lab.path("wt/c/2")).unwrap(), b"x\r\ny\n");
        // And a file that was left with other ends than these is seen, whatever the index says.
        for (wrong, other) in [
            ("b/1", "x\ny\n"),
            ("b/1", "x\r\ny\n"),
            ("b/2", "x\r\ny\n"),
            ("c/1", "x\ny\n"),
        ] {
            let name = format!("wt/{wrong}");
            let right = std::fs::read(lab.path(&name)).unwrap();
            lab.write(&name, other);
            lab.sh("wt", &["update-index", "--skip-worktree", wrong]);
            let outcome = run(&lab, &tree).unwrap();
            let mended: Vec<String> = outcome.mended.iter().map(ToString::to_string).collect();
            assert_eq!(mended, [wrong]);
            assert_eq!(std::fs::read(lab.path(&name)).unwrap(), right, "{wrong}");
        }
    }
}

#[test]
fn the_place_of_a_submodule_is_a_directory_and_what_lies_in_it_is_residue() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.linked();
        lab.write("sub/s", "s\n");
        lab.sh("sub", &["init", "-q"]);
        let inner = lab.commit("sub", "one");
        lab.sh(
            "r",
            &[
                "update-index",
                "--add",
                "--cacheinfo",
                &format!("160000,{inner},sm"),
            ],
        );
        let tree = lab.sh("r", &["write-tree"]);
        run_with(&lab, &tree, clean()).unwrap();
        assert!(lab.path("wt/sm").is_dir());
        lab.write("out/precious", "x");
        let hidden = |what: &str| {
            lab.sh("wt", &["update-index", "--skip-worktree", "sm"]);
            if lab.path("wt/sm").is_symlink() || lab.path("wt/sm").is_file() {
                std::fs::remove_file(lab.path("wt/sm")).unwrap();
            } else {
                std::fs::remove_dir(lab.path("wt/sm")).unwrap();
            }
            match what {
                "link" => symlink("../out", lab.path("wt/sm")).unwrap(),
                "file" => lab.write("wt/sm", "x"),
                _ => {}
            }
            let outcome = run_with(
                &lab,
                &tree,
                RestoreOptions {
                    leftovers: Leftovers::Kept,
                    ..clean()
                },
            )
            .unwrap();
            assert_eq!(outcome.mended.len(), 1, "{what}");
            assert!(
                lab.path("wt/sm").is_dir() && !lab.path("wt/sm").is_symlink(),
                "{what}"
            );
        };
        for what in ["link", "file", "nothing"] {
            hidden(what);
        }
        assert_eq!(lab.read("out/precious"), "x");
        // Of nobody's repository.
        lab.write("wt/sm/x/junk", "x");
        let pristine = RestoreOptions {
            leftovers: Leftovers::Kept,
            ..clean()
        };
        assert_eq!(
            refusal(run_with(&lab, &tree, pristine)).1.as_deref(),
            Some("residue")
        );
        let outcome = run_with(&lab, &tree, clean()).unwrap();
        assert_eq!(outcome.removed[0].to_string(), "sm/x");
        // Of the submodule's.
        lab.sh(".", &["clone", "-q", "sub", "wt/sm"]);
        run_with(&lab, &tree, clean()).unwrap();
        assert_eq!(lab.read("wt/sm/s"), "s\n");
    }
}

#[test]
fn a_repository_that_git_does_not_know_is_refused_by_its_name() {
    for git in gits() {
        for (version, key, known) in [
            ("1", "extensions.frob", false),
            ("2", "extensions.noop", false),
            ("1", "extensions.noop", true),
            ("0", "extensions.preciousObjects", true),
            ("1", "extensions.sub.frob", false),
        ] {
            let lab = Lab::new(&git);
            let (tree, lock) = lab.linked();
            let file = lab.path("r/.git/config").display().to_string();
            for (key, value) in [("core.repositoryformatversion", version), (key, "false")] {
                lab.sh(".", &["config", "--file", &file, key, value]);
            }
            match run(&lab, &tree) {
                Ok(_) => assert!(known, "{key}"),
                Err(failed) => {
                    assert!(!known, "{key}: {failed}");
                    assert_eq!(
                        (failed.error.code(), failed.touched),
                        (Code::GitFailed, Touched::Nothing)
                    );
                }
            }
            no_residue(&lock);
        }
    }
}

/// A git that has to work in the repository itself has every hook switched off that is configured, by name.
#[test]
fn configured_hooks_are_switched_off_by_name() {
    for git in gits() {
        let lab = Lab::new(&git);
        lab.linked();
        plant(&lab);
        let repo = Repository::open(&git, &lab.path("r"), &cancel()).unwrap();
        let off = ("hook.evil.enabled".into(), "false".into());
        assert!(repo.place.config.contains(&off), "{:?}", repo.place.config);
    }
}

/// Gives the views that are there.
fn views() -> Vec<PathBuf> {
    view::sweep_all();
    let view = View::new(semel_core::git_tree::ObjectFormat::Sha1).unwrap();
    let listed = std::fs::read_dir(view.path().parent().unwrap()).unwrap();
    listed.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_view_goes_with_its_users_and_what_a_kill_left_goes_next() {
    use semel_core::git_tree::ObjectFormat;
    let one = View::new(ObjectFormat::Sha1).unwrap();
    let other = View::new(ObjectFormat::Sha256).unwrap();
    assert_eq!(
        (one.format(), other.format()),
        (ObjectFormat::Sha1, ObjectFormat::Sha256)
    );
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(one.path()), mode(one.path().parent().unwrap())),
        (0o700, 0o700)
    );
    let (first, child) = (one.path().to_owned(), one.handle());
    assert!(views().contains(&first));
    // As a kill leaves it: there, and locked by the git that lives on.
    let kept = first.with_file_name("view-left-by-a-kill");
    std::fs::rename(&first, &kept).unwrap();
    drop(one);
    assert!(views().contains(&kept), "a git still uses it");
    drop(child);
    assert!(!views().contains(&kept));
    assert!(other.path().exists(), "what is used stays");
}
