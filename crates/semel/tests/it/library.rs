//! The library face: what is public, and that it restores as the command does.

use crate::harness::{Home, executable, git};
use semel::restore::{Cancel, Identity, Pinning, Restore, Touched, Verify};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn source(name: &str) -> String {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(place).unwrap()
}

/// Lists what a source file makes public, in order.
fn public(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| line.starts_with("pub ") || line.starts_with("#[macro_export]"));
    lines
        .map(|line| line.trim_end_matches([';', '{', ',', ' ']).to_owned())
        .collect()
}

#[test]
fn nothing_but_the_restoration_is_public() {
    assert_eq!(public(&source("src/lib.rs")), ["pub mod restore"]);
    let face = public(&source("src/restore.rs"));
    let agreed = source("tests/it/snapshots/library.txt");
    let agreed: Vec<&str> = agreed.lines().collect();
    assert_eq!(
        face, agreed,
        "the public face changed; is that a new major version?"
    );
    // No type of another crate of ours is in a public signature.
    for line in &face {
        assert!(
            !["git::", "semel_", "process::", "clap", "serde"]
                .iter()
                .any(|word| line.contains(word)),
            "{line}"
        );
    }
}

struct Scene {
    home: Home,
    worktree: PathBuf,
    tree: String,
}

impl Scene {
    fn new() -> Self {
        let home = Home::new();
        let worktree = home.path().join("w");
        std::fs::create_dir(&worktree).unwrap();
        git(&worktree, &["init", "-q"]);
        std::fs::write(worktree.join("a"), "one\n").unwrap();
        git(&worktree, &["add", "-A"]);
        git(&worktree, &["commit", "-q", "-m", "one"]);
        let tree = git(&worktree, &["rev-parse", "HEAD^{tree}"]);
        std::fs::write(worktree.join("a"), "changed\n").unwrap();
        Self { home, worktree, tree }
    }

    fn content(&self) -> String {
        std::fs::read_to_string(self.worktree.join("a")).unwrap()
    }
}

#[test]
fn a_worktree_is_restored_and_its_outcome_is_typed() {
    let scene = Scene::new();
    std::fs::write(scene.worktree.join("left"), "x").unwrap();
    let restored = Restore::new(&scene.worktree, &scene.tree).run().unwrap();
    assert_eq!(scene.content(), "one\n");
    assert_eq!(
        (restored.identity, restored.verified),
        (Identity::Unpinned, Verify::Bytes)
    );
    assert_eq!(
        (restored.hashed, restored.residue),
        (1, vec![PathBuf::from("left")])
    );
    let quick = Restore::new(&scene.worktree, &scene.tree).verify(Verify::Tree);
    assert_eq!(quick.run().unwrap().hashed, 0);
    assert_eq!(quick.run().unwrap().verified, Verify::Tree, "it may be run again");
}

#[test]
fn pins_of_the_command_are_pins_of_the_library() {
    let scene = Scene::new();
    let state = scene.home.state();
    let place = scene.worktree.to_str().unwrap();
    let required = Restore::new(&scene.worktree, &scene.tree).pinning(Pinning::Required);
    for restore in [required.clone(), required.clone().state_root(&state)] {
        let refused = restore.run().unwrap_err();
        assert_eq!((refused.code, refused.exit), ("worktree_redirected", 45));
        assert_eq!(refused.reason.as_deref(), Some("not_pinned"));
    }
    scene.home.json(&["worktree", "pin", place]);
    let restored = required.clone().state_root(&state).run().unwrap();
    assert_eq!(restored.identity, Identity::Pinned);
    std::fs::write(scene.worktree.join("a"), "changed\n").unwrap();
    std::fs::rename(scene.worktree.join(".git"), scene.worktree.join("git")).unwrap();
    let out = Command::new("cp")
        .arg("-a")
        .args(["git", ".git"])
        .current_dir(&scene.worktree)
        .status();
    assert!(out.unwrap().success());
    let refused = required.state_root(&state).run().unwrap_err();
    assert_eq!(refused.reason.as_deref(), Some("gitdir_changed"));
    assert_eq!(
        (refused.touched, scene.content().as_str()),
        (Touched::Nothing, "changed\n")
    );
}

#[test]
fn a_refusal_says_what_it_is_and_changes_nothing() {
    let scene = Scene::new();
    std::fs::write(scene.worktree.join(".git/index.lock"), "").unwrap();
    let held = Restore::new(&scene.worktree, &scene.tree)
        .wait(Duration::ZERO)
        .run()
        .unwrap_err();
    assert_eq!((held.code, held.touched), ("lock_timeout", Touched::Nothing));
    assert!(
        held.counts.collisions > 0 && held.to_string().starts_with("lock_timeout: "),
        "{held}"
    );
    let cancel = Cancel::new().unwrap();
    cancel.cancel();
    let ended = Restore::new(&scene.worktree, &scene.tree)
        .cancelled_by(&cancel)
        .run()
        .unwrap_err();
    assert_eq!(ended.touched, Touched::Nothing, "{ended}");
    assert_eq!(scene.content(), "changed\n");
}

/// A `git` that stands first on PATH is never run: PATH is not asked, the directories that are named are.
#[test]
fn git_is_taken_from_where_it_is_said_to_be() {
    let scene = Scene::new();
    let empty = scene.home.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let none = Restore::new(&scene.worktree, &scene.tree)
        .git_in([&empty])
        .run()
        .unwrap_err();
    assert_eq!(none.code, "not_found");
    executable(&empty.join("git"), "#!/bin/sh\necho git version 1.9.0\n");
    let old = Restore::new(&scene.worktree, &scene.tree)
        .git_in([&empty])
        .run()
        .unwrap_err();
    assert_eq!(old.code, "bad_config");
    assert_eq!(scene.content(), "changed\n");
}
