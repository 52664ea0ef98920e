//! What somebody who can write in the worktree, the git directory or the environment may try: it is refused or has no
//! effect, the victims keep their bytes, and no foreign command is run.

use super::{Lab, answer, gits};
use crate::harness::{said, wait_until};
use serde_json::json;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A lab with a second worktree, whose bytes and index nobody may change.
struct Victim {
    lab: Lab,
    other: PathBuf,
    bytes: Vec<u8>,
    index: Vec<u8>,
    ran: PathBuf,
}

impl Victim {
    fn new(git: &Path) -> Self {
        let lab = Lab::new(git, 3);
        let other = lab.home.path().join("other");
        let repository = lab.home.path().join("repository");
        lab.git_in(
            &repository,
            &["worktree", "add", "-q", other.to_str().unwrap(), "-b", "other"],
        );
        std::fs::write(other.join("f0"), "of the victim\n").unwrap();
        lab.git_in(&other, &["add", "f0"]);
        let index = std::fs::read(repository.join(".git/worktrees/other/index")).unwrap();
        let ran = lab.home.path().join("ran");
        Self {
            lab,
            other,
            bytes: b"of the victim\n".to_vec(),
            index,
            ran,
        }
    }

    fn evil(&self) -> PathBuf {
        let place = self.lab.home.path().join("evil");
        let text = format!("#!/bin/sh\ntouch '{}'\ncat\n", self.ran.display());
        crate::harness::executable(&place, &text);
        place
    }

    fn unhurt(&self) {
        let index = self.lab.home.path().join("repository/.git/worktrees/other/index");
        assert_eq!(std::fs::read(index).unwrap(), self.index);
        assert_eq!(std::fs::read(self.other.join("f0")).unwrap(), self.bytes);
        assert!(!self.ran.exists(), "a foreign command was run");
    }
}

#[test]
fn what_leads_elsewhere_is_refused() {
    for git in gits() {
        let victim = Victim::new(&git);
        let lab = &victim.lab;
        let (pointer, index) = (lab.worktree.join(".git"), lab.lock.with_extension(""));
        let own = std::fs::read(&pointer).unwrap();
        let refused = |what: &str| {
            let refusal = lab.refused(lab.command(&[]), 45, "worktree_redirected");
            assert_eq!(refusal["touched"], "nothing", "{what}");
            assert_eq!(
                std::fs::read_to_string(lab.file(0)).unwrap(),
                "changed\n",
                "{what}"
            );
            victim.unhurt();
            assert!(!lab.lock.exists(), "{what}");
        };
        std::fs::copy(victim.other.join(".git"), &pointer).unwrap();
        refused("pointed at another worktree");
        std::fs::remove_file(&pointer).unwrap();
        symlink(victim.other.join(".git"), &pointer).unwrap();
        refused("a link");
        std::fs::remove_file(&pointer).unwrap();
        // A git directory of one's own, with a command that git would run.
        let fake = lab.home.path().join("fake");
        std::fs::create_dir(&fake).unwrap();
        lab.git_in(&fake, &["init", "-q"]);
        lab.git_in(
            &fake,
            &["config", "core.fsmonitor", victim.evil().to_str().unwrap()],
        );
        std::fs::write(&pointer, format!("gitdir: {}\n", fake.join(".git").display())).unwrap();
        refused("a git directory of one's own");
        std::fs::write(&pointer, &own).unwrap();
        // Another directory as the worktree.
        let repository = lab.home.path().join("repository");
        lab.git_in(&repository, &["config", "extensions.worktreeConfig", "true"]);
        let configured = lab.lock.with_file_name("config.worktree");
        std::fs::write(
            &configured,
            format!("[core]\n\tworktree = {}\n", victim.other.display()),
        )
        .unwrap();
        refused("core.worktree");
        std::fs::remove_file(configured).unwrap();
        // The index of somebody else.
        let kept = lab.home.path().join("kept");
        std::fs::rename(&index, &kept).unwrap();
        symlink(repository.join(".git/worktrees/other/index"), &index).unwrap();
        refused("a linked index");
        std::fs::remove_file(&index).unwrap();
        std::fs::rename(&kept, &index).unwrap();
        lab.restored(lab.command(&[]));
        victim.unhurt();
    }
}

#[test]
fn commands_of_the_repository_never_run() {
    for git in gits() {
        let victim = Victim::new(&git);
        let lab = &victim.lab;
        let evil = victim.evil();
        let evil = evil.to_str().unwrap();
        let repository = lab.home.path().join("repository");
        let hooks = lab.home.path().join("hooks");
        std::fs::create_dir(&hooks).unwrap();
        for hook in ["post-index-change", "post-checkout", "pre-commit"] {
            std::fs::copy(evil, hooks.join(hook)).unwrap();
        }
        for (key, value) in [
            ("core.hooksPath", hooks.to_str().unwrap()),
            ("core.fsmonitor", evil),
            ("core.fsmonitorHookVersion", "2"),
            ("filter.evil.smudge", evil),
            ("filter.evil.clean", evil),
            ("filter.evil.required", "true"),
            ("core.sshCommand", evil),
            ("core.pager", evil),
            ("core.editor", evil),
            ("core.askPass", evil),
            ("trace2.normalTarget", "/dev/stderr"),
            ("core.trustctime", "false"),
            ("core.checkStat", "minimal"),
        ] {
            lab.git_in(&repository, &["config", key, value]);
        }
        std::fs::write(lab.worktree.join(".gitattributes"), "* filter=evil\n").unwrap();
        lab.git_in(&lab.worktree, &["update-index", "--skip-worktree", "f2"]);
        std::fs::write(lab.file(2), "hidden\n").unwrap();
        std::fs::remove_file(&victim.ran).ok();
        let out = lab.command(&[]).output().unwrap();
        assert!(out.status.success(), "{}", said(&out));
        // Before the test's own git, which does as it is configured.
        victim.unhurt();
        let outcome = &answer(&out)["outcome"];
        assert_eq!(outcome["residue"], json!([".gitattributes"]));
        assert!(outcome["mended"].to_string().contains("f2"), "{outcome}");
        for n in 0..3 {
            assert_eq!(
                std::fs::read_to_string(lab.file(n)).unwrap(),
                format!("old {n}\n")
            );
        }
        lab.nothing_left();
    }
}

#[test]
fn the_environment_of_the_caller_decides_nothing() {
    for git in gits() {
        let victim = Victim::new(&git);
        let lab = &victim.lab;
        let evil = victim.evil();
        let evil = evil.to_str().unwrap();
        let other = lab.home.path().join("repository/.git/worktrees/other");
        let theirs = |name: &str| other.join(name).to_str().unwrap().to_owned();
        let mut command = lab.command(&[]);
        for (name, value) in [
            ("GIT_DIR", theirs("")),
            ("GIT_WORK_TREE", victim.other.to_str().unwrap().to_owned()),
            ("GIT_COMMON_DIR", theirs("")),
            ("GIT_INDEX_FILE", theirs("index")),
            ("GIT_OBJECT_DIRECTORY", "/nowhere".to_owned()),
            ("GIT_CONFIG_COUNT", "2".to_owned()),
            ("GIT_CONFIG_KEY_0", "core.fsmonitor".to_owned()),
            ("GIT_CONFIG_VALUE_0", evil.to_owned()),
            ("GIT_CONFIG_KEY_1", "core.worktree".to_owned()),
            ("GIT_CONFIG_VALUE_1", victim.other.to_str().unwrap().to_owned()),
            ("GIT_CONFIG_PARAMETERS", format!("'core.fsmonitor'='{evil}'")),
            ("GIT_TRACE", "1".to_owned()),
            ("GIT_TRACE2", "1".to_owned()),
            ("GIT_EXEC_PATH", "/nowhere".to_owned()),
            ("GIT_EXTERNAL_DIFF", evil.to_owned()),
            ("GIT_NAMESPACE", "evil".to_owned()),
            ("GIT_CEILING_DIRECTORIES", "/".to_owned()),
            ("LD_BIND_NOW", "1".to_owned()),
        ] {
            command.env(name, value);
        }
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", said(&out));
        // Traces that were asked for by the environment are not there, either.
        assert_eq!(out.stderr, b"");
        lab.is_restored();
        victim.unhurt();
    }
}

/// Called from a hook of another repository, whose environment names that one's index.
#[test]
fn from_a_hook_of_another_repository() {
    for git in gits() {
        let victim = Victim::new(&git);
        let lab = &victim.lab;
        let hook = lab.home.path().join("repository/.git/hooks/pre-commit");
        std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
        let said_to = lab.home.path().join("said");
        let mut line = format!("'{}'", env!("CARGO_BIN_EXE_semel"));
        for arg in lab.command(&[]).get_args() {
            line.push_str(&format!(" '{}'", arg.to_str().unwrap()));
        }
        let text = format!("#!/bin/sh\n{line} > '{}' 2>&1 || exit 1\n", said_to.display());
        crate::harness::executable(&hook, &text);
        let commit = lab
            .git_command(&victim.other, &["commit", "-q", "-m", "theirs"])
            .output()
            .unwrap();
        let heard = std::fs::read_to_string(&said_to).unwrap_or_default();
        assert!(commit.status.success(), "{}{heard}", said(&commit));
        lab.is_restored();
        assert_eq!(lab.git_in(&victim.other, &["show", "HEAD:f0"]), "of the victim");
    }
}

#[test]
fn language_path_and_working_directory_decide_nothing() {
    for git in gits() {
        for name in ["plain", "new\nline", "esc\u{1b}[31m", "ümläut 空"] {
            let lab = Lab::named(&git, 2, name);
            let alias = lab.home.path().join("alias");
            symlink(lab.home.path(), &alias).unwrap();
            for (language, charset) in [
                ("de", "C.UTF-8"),
                ("fr_FR", "fr_FR.UTF-8"),
                ("zh_CN", "zh_CN.UTF-8"),
            ] {
                lab.spoil();
                std::fs::write(&lab.lock, "").unwrap();
                let mut command = lab.command(&[]);
                command
                    .env("LANGUAGE", language)
                    .env("LC_ALL", charset)
                    .env("LANG", charset);
                // As a shell does that went there through a link.
                command.current_dir(alias.join(name)).env("PWD", alias.join(name));
                let child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
                let waits = || lab.private_files().len() == 1;
                assert!(wait_until(Duration::from_secs(300), waits), "it waits");
                std::fs::remove_file(&lab.lock).unwrap();
                let out = child.wait_with_output().unwrap();
                assert!(out.status.success(), "{}", said(&out));
                lab.is_restored();
            }
        }
    }
}
