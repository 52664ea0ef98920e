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

/// All that is launched begins at one place, which gives it: the others start this very binary.
#[test]
fn nothing_is_launched_elsewhere() {
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for part in ["core", "store", "host", "semel"] {
        sources(&crates.join(part).join("src"), &mut found);
    }
    assert!(found.len() > 200, "the sources were found");
    let spawns = |file: &std::path::PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let imported = product
            .lines()
            .any(|line| line.starts_with("use std::process::") && line.contains("Command"));
        let code = product
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        imported
            || code
                .clone()
                .any(|line| line.contains("std::process::Command::new"))
    };
    let mut places: Vec<String> = found
        .iter()
        .filter(|file| spawns(file))
        .map(|file| file.strip_prefix(crates).unwrap().display().to_string())
        .collect();
    places.sort();
    let known = [
        // The daemon, and the probe beside it.
        "host/src/daemon.rs",
        // The shim, and what enters the sandbox; both then begin what they were ordered to, with its environment.
        "host/src/exec/start.rs",
        "host/src/process/direct.rs",
        "host/src/process/guarded.rs",
        // The one thread that starts what these two prepared.
        "host/src/process/spawner.rs",
        // A server that is spoken to while it runs.
        "host/src/process/talk.rs",
        "host/src/sandbox/enter.rs",
    ];
    assert_eq!(places, known);
}

fn sources(dir: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}
