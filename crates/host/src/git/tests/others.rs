//! What a removal must not run, wait for or take with it: programs of the repository, FIFOs, repositories of others, its own
//! repository, the state root.

use super::linked::{add_to, nothing_left, quiet, refused, remove_from, remove_with, repository, to_remove};
use super::pin::pins;
use super::*;

const BOTH: [Discard; 2] = [Discard::Refuse, Discard::Work];

fn fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

/// Gives a git that writes into a repository whenever it is run, before it does what it is asked, and notes what it is shown.
fn spied(lab: &Lab, repository: &str, config: &str) -> Git {
    lab.write("spy/config", config);
    lab.write("spy/attributes", "* filter=evil diff=evil\n");
    let script = format!(
        "#!/bin/sh\n\
         echo \"$1 dir=$GIT_DIR common=$GIT_COMMON_DIR\" >> '{spy}/seen'\n\
         case $1 in version) ;; *)\n\
         cp '{spy}/config' '{repository}/config'; cp '{spy}/attributes' '{repository}/info/attributes';; esac\n\
         exec '{git}' \"$@\"\n",
        spy = lab.path("spy").display(),
        repository = lab.path(repository).display(),
        git = lab.git.program().display(),
    );
    executable(&lab.path("spy/git"), &script);
    Git::at(&lab.path("spy/git")).unwrap()
}

/// Lists the gits that were shown the repository itself.
fn shown_the_repository(lab: &Lab) -> Vec<String> {
    let repository = lab.path("r").display().to_string();
    let seen = lab.read("spy/seen");
    assert!(seen.lines().count() > 3, "{seen}");
    let inside = |line: &&str| line.contains(&repository);
    seen.lines().filter(inside).map(str::to_owned).collect()
}

/// No git of a making or a removal is shown the repository, so that it does not matter when what is configured.
#[test]
fn programs_that_are_configured_meanwhile_do_not_run() {
    for git in gits() {
        for storage in ["files", "reftable"] {
            if storage == "reftable" && git.numbers < (2, 45) {
                continue;
            }
            let (lab, commit) = repository_in(&git, storage);
            let touch = lab.path("ran").display().to_string();
            let own = lab.read("r/.git/config");
            let config = format!(
                "{own}[core]\n\tfsmonitor = touch {touch}\n\tpager = touch {touch}\n\
                 [filter \"evil\"]\n\tclean = touch {touch}\n\tsmudge = touch {touch}\n\trequired = true\n\
                 [diff]\n\texternal = touch {touch}\n[diff \"evil\"]\n\ttextconv = touch {touch}\n\
                 [hook \"late\"]\n\tcommand = touch {touch}\n\tevent = post-checkout\n\tevent = reference-transaction\n"
            );
            let spied = spied(&lab, "r/.git", &config);
            let asked = Add {
                repository: lab.path("r"),
                worktree: lab.path("wt"),
                commit,
                tree: None,
                wait: Duration::from_secs(60),
            };
            add(&spied, &pins(&lab), &asked, &quiet, &cancel()).unwrap();
            // So that its index is read and its line ends are asked for, too; by a person's git that is to run nothing.
            lab.write("r/.git/config", own);
            std::fs::remove_file(lab.path("r/.git/info/attributes")).unwrap();
            lab.sh("wt", &["update-index", "--split-index"]);
            assert!(!lab.path("ran").exists(), "{storage} {}", git.version());
            let asked = to_remove(&lab, "wt", Discard::Refuse);
            remove(&spied, &pins(&lab), &asked, &quiet, &cancel()).unwrap();
            let name = format!("{storage} {}", git.version());
            assert_eq!(shown_the_repository(&lab), Vec::<String>::new(), "{name}");
            assert!(!lab.path("ran").exists(), "{name}");
        }
    }
}

/// A repository whose references are kept in files or tables.
fn repository_in(git: &Git, storage: &str) -> (Lab, String) {
    if storage == "files" {
        return repository(git);
    }
    let lab = Lab::new(git);
    remove_all(&lab.path("r"));
    std::fs::create_dir(lab.path("r")).unwrap();
    lab.sh("r", &["init", "-q", "--ref-format=reftable"]);
    lab.write("r/f", "one\n");
    lab.write("r/sub/g", "two\n");
    let commit = lab.commit("r", "one");
    (lab, commit)
}

#[test]
fn references_in_tables_are_as_good() {
    // Older ones keep no references in tables.
    let able: Vec<Git> = gits().into_iter().filter(|git| git.numbers >= (2, 45)).collect();
    if able.is_empty() {
        skipped("no git here keeps references in tables");
    }
    for git in able {
        let (lab, commit) = repository_in(&git, "reftable");
        for n in 0..40 {
            lab.sh("r", &["branch", &format!("b{n}")]);
        }
        let fresh = || add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        let again = |reason: &str, names: &[&str]| {
            let refusal = refused(remove_from(&lab, "wt", Discard::Refuse, &quiet), reason);
            assert_eq!(refusal.names, names);
            remove_from(&lab, "wt", Discard::Work, &quiet).unwrap();
            fresh();
        };
        fresh();
        assert_eq!(lab.sh("wt", &["rev-parse", "HEAD"]), commit);
        assert_eq!(
            lab.sh("wt", &["status", "--porcelain", "--branch"]),
            "## HEAD (no branch)"
        );
        let mine = lab.commit("wt", "mine");
        again("unreachable_commits", &[&mine]);
        // Of a reference of the worktree, and of the log, alone.
        let mine = lab.commit("wt", "of a reference");
        lab.sh("wt", &["update-ref", "refs/worktree/keep", "HEAD"]);
        lab.sh("wt", &["checkout", "-q", "--detach", &commit]);
        again("unreachable_commits", &[&mine]);
        let mine = lab.commit("wt", "of the log");
        lab.sh("wt", &["checkout", "-q", "--detach", &commit]);
        again("unreachable_commits", &[&mine]);
        lab.sh("wt", &["checkout", "-q", "-b", "kept"]);
        lab.commit("wt", "kept");
        remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        assert_eq!(lab.sh("r", &["log", "-1", "--format=%s", "kept"]), "kept");
        // Without any log.
        lab.sh("r", &["config", "core.logAllRefUpdates", "false"]);
        fresh();
        remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        lab.sh("r", &["fsck"]);
    }
}

#[test]
fn references_are_read_as_git_reads_them() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        let fresh = || add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        let unreachable = |mine: &str| {
            let refusal = refused(
                remove_from(&lab, "wt", Discard::Refuse, &quiet),
                "unreachable_commits",
            );
            assert_eq!(refusal.names, [mine]);
        };
        fresh();
        let mine = lab.commit("wt", "mine");
        unreachable(&mine);
        // Packed, and by a tag of a tag.
        lab.sh("r", &["branch", "kept", &mine]);
        lab.sh("r", &["pack-refs", "--all"]);
        assert!(!lab.path("r/.git/refs/heads/kept").exists());
        remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        lab.sh("r", &["tag", "-m", "t", "t", &mine]);
        lab.sh("r", &["tag", "-m", "tt", "tt", "t"]);
        lab.sh("r", &["tag", "-d", "t"]);
        lab.sh("r", &["update-ref", "refs/heads/kept", &commit]);
        fresh();
        lab.sh("wt", &["checkout", "-q", "--detach", &mine]);
        remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        lab.sh("r", &["tag", "-d", "tt"]);
        // A loose reference outranks the packed one of its name, and what is no reference keeps nothing.
        fresh();
        lab.sh("wt", &["checkout", "-q", "--detach", &mine]);
        assert!(lab.read("r/.git/packed-refs").contains(&mine));
        lab.write("r/.git/refs/heads/x.lock", format!("{mine}\n"));
        lab.write("r/.git/refs/heads/.x", format!("{mine}\n"));
        std::os::unix::fs::symlink(lab.path("elsewhere"), lab.path("r/.git/refs/heads/y")).unwrap();
        lab.write("elsewhere", format!("{mine}\n"));
        unreachable(&mine);
        // Of another worktree alone.
        lab.write("r/.git/refs/worktree/theirs", format!("{mine}\n"));
        unreachable(&mine);
        // HEAD by a reference that leads to another one.
        lab.sh("wt", &["checkout", "-q", "-b", "real"]);
        lab.sh("wt", &["symbolic-ref", "refs/heads/by", "refs/heads/real"]);
        lab.sh("wt", &["symbolic-ref", "HEAD", "refs/heads/by"]);
        let last = lab.commit("wt", "by");
        assert_eq!(lab.sh("r", &["rev-parse", "real"]), last);
        remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
    }
}

#[test]
fn a_shallow_repository_is_as_good() {
    let git = gits().remove(0);
    let (lab, _) = repository(&git);
    lab.write("r/f", "newer\n");
    lab.commit("r", "newer");
    let whole = format!("file://{}", lab.path("r").display());
    let file = ["-c", "protocol.file.allow=always", "clone", "-q", "--depth=1"];
    lab.sh("", &[&file[..], &[&whole, "shallow"]].concat());
    remove_all(&lab.path("r"));
    std::fs::rename(lab.path("shallow"), lab.path("r")).unwrap();
    assert!(lab.path("r/.git/shallow").exists());
    let commit = lab.sh("r", &["rev-parse", "HEAD"]);
    add_to(&lab, "wt", &commit, None, &quiet).unwrap();
    let mine = lab.commit("wt", "mine");
    let refusal = refused(
        remove_from(&lab, "wt", Discard::Refuse, &quiet),
        "unreachable_commits",
    );
    assert_eq!(refusal.names, [mine]);
    lab.sh("r", &["branch", "kept", &refusal.names[0]]);
    remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
}

/// What whoever writes a repository puts there neither holds a removal nor breaks it.
#[test]
fn nothing_in_the_repository_holds_a_removal() {
    for git in gits() {
        let (lab, commit) = repository(&git);
        lab.write("r/.gitignore", "ign\n");
        let ignoring = lab.commit("r", "ignoring");
        add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        add_to(&lab, "other", &ignoring, None, &quiet).unwrap();
        let own = gitdir_of(&lab, "wt");
        let mut config = lab.read("r/.git/config");
        config.push_str(&format!("[include]\n\tpath = {}\n", lab.path("fifo").display()));
        for n in 0..30_000 {
            config.push_str(&format!("[filter \"n{n}\"]\n\tclean = false\n"));
        }
        fifo(&lab.path("fifo"));
        fifo(&lab.path("r/.git/refs/heads/zf"));
        lab.write("r/.git/refs/heads/zz", "ref: refs/heads/zf\n");
        std::fs::remove_file(lab.path("r/.git/info/exclude")).ok();
        fifo(&lab.path("r/.git/info/exclude"));
        fifo(&lab.path("r/.git/info/attributes"));
        lab.write("r/.git/config", config);
        fifo(&lab.path("wt/.gitignore"));
        fifo(&lab.path("wt/sub/.gitattributes"));
        remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        assert!(!own.exists());
        // In the place of a file of the tree it is a change, and of a reference of its own, too.
        std::fs::remove_file(lab.path("other/.gitignore")).unwrap();
        fifo(&lab.path("other/.gitignore"));
        let changed = refused(
            remove_from(&lab, "other", Discard::Refuse, &quiet),
            "dirty_worktree",
        );
        assert_eq!(changed.names, [".gitignore"]);
        let own = lab.path("r/.git/worktrees").join(own_name(&lab, "other"));
        std::fs::create_dir_all(own.join("refs/worktree")).unwrap();
        for name in ["refs/worktree/f", "ORIG_HEAD", "logs"] {
            fifo(&own.join(name));
            let refusal = refused(
                remove_from(&lab, "other", Discard::Refuse, &quiet),
                "dirty_worktree",
            );
            assert!(refusal.names[0].ends_with(name), "{refusal:?}");
            std::fs::remove_file(own.join(name)).unwrap();
        }
        remove_from(&lab, "other", Discard::Work, &quiet).unwrap();
    }
}

fn gitdir_of(lab: &Lab, name: &str) -> PathBuf {
    PathBuf::from(lab.sh(name, &["rev-parse", "--absolute-git-dir"]))
}

fn own_name(lab: &Lab, name: &str) -> String {
    let text = lab.read(&format!("{name}/.git"));
    text.trim().rsplit('/').next().unwrap().to_owned()
}

/// Repositories of others stay, wherever they lie and whatever else is to be discarded.
#[test]
fn repositories_of_others_are_not_removed_unless_told() {
    type Play = fn(&Lab, &str);
    let plays: [(&str, &str, Play); 6] = [
        ("another worktree of ours", "ign/x/.git", |lab, commit| {
            std::fs::create_dir(lab.path("wt/ign")).unwrap();
            add_to(lab, "wt/ign/x", commit, None, &quiet).unwrap();
            lab.write("wt/ign/x/f", "days of work\n");
        }),
        ("a linked worktree", "ign/x/.git", |lab, commit| {
            std::fs::create_dir(lab.path("wt/ign")).unwrap();
            lab.sh("r", &["worktree", "add", "-q", "--detach", "../wt/ign/x", commit]);
        }),
        ("beside files of the tree", "sub/.git", |lab, _| {
            lab.sh("wt/sub", &["init", "-q"]);
            lab.commit("wt/sub", "inner");
        }),
        ("what is ignored", "ign/deep/r/.git", |lab, _| {
            lab.write("wt/ign/deep/r/f", "x");
            lab.sh("wt/ign/deep/r", &["init", "-q"]);
        }),
        ("one without a worktree", "ign/bare", |lab, _| {
            std::fs::create_dir_all(lab.path("wt/ign/bare")).unwrap();
            lab.sh("wt/ign/bare", &["init", "-q", "--bare"]);
        }),
        ("a submodule of somebody else", "ign/sm/.git", |lab, _| {
            lab.write("wt/ign/sm/.git", "gitdir: ../../../r/.git/modules/sm\n");
        }),
    ];
    for git in gits() {
        for (name, named, play) in plays {
            let (lab, commit) = repository(&git);
            lab.write("r/.git/info/exclude", "ign\n");
            add_to(&lab, "wt", &commit, None, &quiet).unwrap();
            play(&lab, &commit);
            for discard in BOTH {
                let refusal = refused(remove_from(&lab, "wt", discard, &quiet), "nested_repository");
                let path = lab.path("wt").join(named).display().to_string();
                assert_eq!(refusal.names, [path], "{name}");
                assert!(lab.path("wt").join(named).exists(), "{name}");
            }
            remove_with(&lab, "wt", Discard::Refuse, Nested::Removed).unwrap();
            assert!(!lab.path("wt").exists(), "{name}");
        }
    }
}

#[test]
fn files_of_the_tree_that_look_like_a_repository_are_none() {
    let git = gits().remove(0);
    let (lab, _) = repository(&git);
    lab.write("r/cases/one.git/HEAD", "ref: refs/heads/main\n");
    lab.write("r/cases/one.git/objects/x", "x");
    let commit = lab.commit("r", "with a case");
    for discard in BOTH {
        add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        remove_from(&lab, "wt", discard, &quiet).unwrap();
    }
    add_to(&lab, "wt", &commit, None, &quiet).unwrap();
    lab.write("wt/mine/HEAD", "ref: refs/heads/main\n");
    lab.write("wt/mine/objects/x", "x");
    let refusal = refused(
        remove_from(&lab, "wt", Discard::Work, &quiet),
        "nested_repository",
    );
    assert_eq!(refusal.names, [lab.path("wt/mine").display().to_string()]);
}

/// The worktree's own repository and the state root stay, by whatever way they lie in what goes.
#[test]
fn what_the_repository_is_made_of_is_not_removed() {
    for git in gits() {
        for place in ["wt/ign/objs", "gitdir"] {
            let (lab, commit) = repository(&git);
            lab.write("r/.git/info/exclude", "ign\n");
            add_to(&lab, "wt", &commit, None, &quiet).unwrap();
            let (objects, there) = (
                lab.path("r/.git/objects"),
                match place {
                    "gitdir" => gitdir_of(&lab, "wt").join("objs"),
                    place => lab.path(place),
                },
            );
            std::fs::create_dir_all(there.parent().unwrap()).unwrap();
            std::fs::rename(&objects, &there).unwrap();
            let inside = |name: &str| {
                for discard in BOTH {
                    let asked = remove_with(&lab, "wt", discard, Nested::Removed);
                    let refusal = refused(asked, "gitdir_inside");
                    assert_eq!(refusal.names, [there.display().to_string()], "{name}");
                }
            };
            std::os::unix::fs::symlink(&there, &objects).unwrap();
            inside("by a link");
            std::fs::remove_file(&objects).unwrap();
            std::fs::create_dir(&objects).unwrap();
            lab.write("r/.git/objects/info/alternates", format!("{}\n", there.display()));
            inside("borrowed from");
            lab.sh("r", &["fsck"]);
            remove_all(&objects);
            std::fs::rename(&there, &objects).unwrap();
            remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
            nothing_left(&lab);
        }
    }
}

/// Whatever part of it is reached by a link.
#[test]
fn parts_of_the_repository_behind_links_are_not_removed() {
    let git = gits().remove(0);
    for part in ["refs", "objects/pack", "logs", "packed-refs"] {
        let (lab, commit) = repository(&git);
        lab.write("r/.git/info/exclude", "ign\n");
        lab.sh("r", &["gc", "-q"]);
        add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        std::fs::create_dir(lab.path("wt/ign")).unwrap();
        let (part, there) = (lab.path("r/.git").join(part), lab.path("wt/ign/part"));
        std::fs::rename(&part, &there).unwrap();
        std::os::unix::fs::symlink(&there, &part).unwrap();
        let refusal = refused(
            remove_with(&lab, "wt", Discard::Work, Nested::Removed),
            "gitdir_inside",
        );
        assert_eq!(refusal.names, [there.display().to_string()]);
        std::fs::remove_file(&part).unwrap();
        std::fs::rename(&there, &part).unwrap();
        remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        nothing_left(&lab);
    }
}

#[test]
fn a_state_root_in_the_worktree_is_not_removed() {
    let git = gits().remove(0);
    let (lab, commit) = repository(&git);
    lab.write("r/.git/info/exclude", "ign\n");
    add_to(&lab, "wt", &commit, None, &quiet).unwrap();
    std::fs::create_dir(lab.path("wt/ign")).unwrap();
    std::fs::rename(lab.path("state"), lab.path("wt/ign/state")).unwrap();
    let inside = Pins::of(&lab.path("wt/ign/state"));
    for discard in BOTH {
        let asked = to_remove(&lab, "wt", discard);
        let refusal = remove(&git, &inside, &asked, &quiet, &cancel())
            .unwrap_err()
            .into_refusal();
        assert_eq!(refusal.code, Code::BadConfig);
        assert_eq!(refusal.reason.as_deref(), Some("state_in_worktree"));
    }
    assert_eq!(inside.list().unwrap().len(), 1);
    std::fs::rename(lab.path("wt/ign/state"), lab.path("state")).unwrap();
    remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
    nothing_left(&lab);
}

/// Which end of line is no work, as git says by the attributes of the tree.
#[test]
fn another_end_of_line_is_no_work_where_git_stores_none() {
    for git in gits() {
        let (lab, _) = repository(&git);
        let names = ["text", "auto", "eol", "plain", "binary", "odd"];
        let attributes = "text text\nauto text=auto\neol eol=crlf\nbinary -text\nodd text=auto\n";
        lab.write("r/.gitattributes", attributes);
        for name in names {
            lab.write(&format!("r/{name}"), "a\nb\n");
        }
        lab.write("r/odd", "a\0\nb\n");
        let commit = lab.commit("r", "ends");
        add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        assert_eq!(lab.read("wt/eol"), "a\r\nb\r\n");
        // What is written beside the tree has no say.
        lab.write("r/.git/info/attributes", "* text\n");
        for name in names {
            lab.write(&format!("wt/{name}"), "a\r\nb\r\n");
        }
        lab.write("wt/odd", "a\0\r\nb\r\n");
        let refusal = refused(remove_from(&lab, "wt", Discard::Refuse, &quiet), "dirty_worktree");
        assert_eq!(refusal.names, ["binary", "odd", "plain"]);
        for name in ["plain", "binary"] {
            lab.write(&format!("wt/{name}"), "a\nb\n");
        }
        lab.write("wt/odd", "a\0\nb\n");
        remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
    }
}

/// What is untracked and what is ignored is told as git tells it.
#[test]
fn strays_are_those_of_git() {
    for git in gits() {
        let (lab, _) = repository(&git);
        lab.write("r/.gitignore", "*.o\n!keep.o\n/top\nout/\n");
        lab.write("r/sub/.gitignore", "!b.o\nx*\n");
        let commit = lab.commit("r", "rules");
        lab.write("r/.git/info/exclude", "keep.o\n*.tmp\n!a.o\n");
        add_to(&lab, "wt", &commit, None, &quiet).unwrap();
        for name in [
            "a.o",
            "keep.o",
            "top",
            "n/top",
            "out/keep.o",
            "sub/b.o",
            "sub/xy",
            "sub/n/a.o",
            "c.tmp",
            "n/m/d",
        ] {
            lab.write(&format!("wt/{name}"), "x");
        }
        std::os::unix::fs::symlink("nowhere", lab.path("wt/sub/xl")).unwrap();
        let listed = |more: &[&str]| {
            let fixed = ["ls-files", "--others", "--exclude-standard"];
            let said = lab.sh("wt", &[&fixed[..], more].concat());
            said.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let strays = listed(&["--directory", "--no-empty-directory"]);
        let refusal = refused(remove_from(&lab, "wt", Discard::Refuse, &quiet), "dirty_worktree");
        assert_eq!(refusal.names, strays);
        let ignored = listed(&["--ignored"]).len() as u64;
        for name in listed(&[]) {
            std::fs::remove_file(lab.path("wt").join(name)).unwrap();
        }
        let removed = remove_from(&lab, "wt", Discard::Refuse, &quiet).unwrap();
        assert!(
            matches!(removed, Removed::Worktree { ignored: Some(count), .. } if count == ignored),
            "{removed:?} {ignored}"
        );
    }
}
