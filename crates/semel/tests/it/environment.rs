//! `GIT_OPTIONAL_LOCKS=0` in the environment of what is launched: a `git status` of an agent or a tool takes no lock, and
//! so stands in nobody's way.
//!
//! Commands of `run_command` are looked at in semel-host, `exec::tests::runs`; installers and tests of a
//! certification in `installer::tests`; what is confined and what is not in `process::tests` and `sandbox::tests`; git
//! itself in `git::tests`.

use crate::harness::{RUN, Site, said, text};

#[test]
fn an_agent_has_it_whatever_its_job_says() {
    let site = Site::new();
    site.agent("import os, sys\nsys.exit(40 + int(os.environ.get('GIT_OPTIONAL_LOCKS', '9')))\n");
    let refusal = site.refused(RUN, 3);
    assert_eq!(text(&refusal["reason"]), "agent_failed");
    assert!(text(&refusal["why"]).contains("40"), "{refusal}");
}

/// A person's own command has it even where the person's environment says otherwise.
#[test]
fn a_persons_own_command_has_it() {
    let scene = crate::retry::Scene::new();
    let out = scene
        .retry(&["--quiet"], "echo locks=$GIT_OPTIONAL_LOCKS")
        .env("GIT_OPTIONAL_LOCKS", "1")
        .output()
        .unwrap();
    assert!(out.stdout.starts_with(b"locks=0\n"), "{}", said(&out));
    let disk = scene.home.path().join("a-disk-of-mine");
    std::fs::create_dir(&disk).unwrap();
    std::fs::write(disk.join("requirements.txt"), "six==1.17.0\n").unwrap();
    let mut command = scene
        .home
        .command(&["contract", "run", "--generation", "g-1", "--attempt", "1"]);
    command.arg("--workspace").arg(&disk);
    let out = command
        .args(["--", "sh", "-c", "echo locks=$GIT_OPTIONAL_LOCKS"])
        .env("GIT_OPTIONAL_LOCKS", "1")
        .output()
        .unwrap();
    assert_eq!(
        (out.status.code(), out.stdout.as_slice()),
        (Some(0), &b"locks=0\n"[..]),
        "{}",
        said(&out)
    );
}

/// What it is for: with it, a status that would refresh the index does not take the lock.
#[test]
fn a_status_under_it_leaves_the_index_alone() {
    let scene = crate::retry::Scene::new();
    let status = format!(
        "'{}' -C '{}' status --porcelain",
        scene.git.display(),
        scene.worktree.display()
    );
    let index = scene.lock.with_extension("");
    let before = std::fs::read(&index).unwrap();
    // The same content with other times: a status refreshes the index for it, if it may.
    let again = || {
        std::fs::write(scene.worktree.join("f"), "asked\n").unwrap();
        let file = std::fs::File::options()
            .write(true)
            .open(scene.worktree.join("f"))
            .unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000))
            .unwrap();
    };
    again();
    let out = scene.retry(&[], &status).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    assert_eq!(std::fs::read(&index).unwrap(), before);
    again();
    scene.run_git(&scene.worktree, &["status", "--porcelain"]);
    assert_ne!(
        std::fs::read(&index).unwrap(),
        before,
        "a status that may take the lock does"
    );
}
