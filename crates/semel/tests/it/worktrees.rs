//! `semel worktree`, and restorations by pins and by the record of a job.

use crate::harness::{Home, git, said};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Output;

/// A repository of two commits, beside a state root.
struct Scene {
    home: Home,
    repository: PathBuf,
    commit: String,
    trees: [String; 2],
}

impl Scene {
    fn new() -> Self {
        let home = Home::new();
        let repository = home.path().join("repository");
        std::fs::create_dir(&repository).unwrap();
        git(&repository, &["init", "-q", "-b", "main"]);
        let commit = |text: &str| {
            std::fs::write(repository.join("a"), text).unwrap();
            git(&repository, &["add", "-A"]);
            git(&repository, &["commit", "-q", "-m", text]);
            git(&repository, &["rev-parse", "HEAD"])
        };
        let commits = ["one\n", "two\n"].map(commit);
        let tree = |commit: &String| git(&repository, &["rev-parse", &format!("{commit}^{{tree}}")]);
        let trees = [tree(&commits[0]), tree(&commits[1])];
        let [commit, _] = commits;
        Self {
            home,
            repository,
            commit,
            trees,
        }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn add(&self, name: &str) -> Value {
        let (place, repository) = (self.place(name), self.repository.to_str().unwrap());
        let place = place.to_str().unwrap();
        self.home.json(&[
            "worktree",
            "add",
            place,
            "--repository",
            repository,
            "--commit",
            &self.commit,
        ])
    }

    fn worktree(&self, what: &str, name: &str, args: &[&str]) -> Output {
        let place = self.place(name);
        self.home
            .run(&[&["worktree", what, place.to_str().unwrap(), "--json"], args].concat())
    }

    fn restore(&self, name: &str, args: &[&str]) -> Output {
        let place = self.place(name);
        let fixed = ["restore", "--json", "--worktree", place.to_str().unwrap()];
        self.home.run(&[&fixed, args].concat())
    }

    fn content(&self, name: &str) -> String {
        std::fs::read_to_string(self.place(name).join("a")).unwrap()
    }

    fn change(&self, name: &str) {
        std::fs::write(self.place(name).join("a"), "changed\n").unwrap();
    }
}

fn answer(out: &Output) -> Value {
    assert!(out.status.success(), "{}", said(out));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn refused(out: &Output, code: &str, reason: &str) -> Value {
    assert!(!out.status.success(), "{}", said(out));
    let refusal: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&refusal["code"], &refusal["reason"]),
        (&json!(code), &json!(reason)),
        "{refusal}"
    );
    refusal
}

#[test]
fn a_worktree_is_added_listed_restored_by_its_pin_and_removed() {
    let scene = Scene::new();
    let added = scene.add("w");
    assert_eq!(added["schema"], "semel.worktree/v1");
    assert_eq!(added["worktree"]["tree"], json!(scene.trees[0]));
    assert_eq!(added["worktree"]["origin"], "made");
    let listed = scene.home.json(&["worktree", "list"]);
    assert_eq!(listed["worktrees"][0]["id"], added["worktree"]["id"]);
    assert_eq!(listed["worktrees"][0]["state"], "intact");
    scene.change("w");
    refused(
        &scene.worktree("remove", "w", &[]),
        "precondition_failed",
        "dirty_worktree",
    );
    let restored = answer(&scene.restore("w", &["--tree", &scene.trees[0], "--require-pin"]));
    assert_eq!(restored["outcome"]["identity"], "pinned");
    assert_eq!(restored["record"], Value::Null);
    assert_eq!(scene.content("w"), "one\n");
    let removed = answer(&scene.worktree("remove", "w", &[]));
    assert_eq!(removed["status"], "removed");
    assert!(!scene.place("w").exists());
    assert_eq!(scene.home.json(&["worktree", "list"])["worktrees"], json!([]));
    assert_eq!(git(&scene.repository, &["worktree", "prune", "-v", "-n"]), "");
    let gone = scene.worktree("remove", "w", &[]);
    assert_eq!(gone.status.code(), Some(17), "{}", said(&gone));
}

#[test]
fn a_found_worktree_is_pinned_and_one_that_was_led_astray_is_refused() {
    let scene = Scene::new();
    for name in ["w", "victim"] {
        let place = scene.place(name);
        git(
            &scene.repository,
            &[
                "worktree",
                "add",
                "-q",
                "--detach",
                place.to_str().unwrap(),
                &scene.commit,
            ],
        );
    }
    let tree = &scene.trees[0];
    let unpinned = answer(&scene.restore("w", &["--tree", tree]));
    assert_eq!(unpinned["outcome"]["identity"], "unpinned");
    let refusal = refused(
        &scene.restore("w", &["--tree", tree, "--require-pin"]),
        "worktree_redirected",
        "not_pinned",
    );
    assert_eq!(
        (&refusal["exit"], &refusal["touched"]),
        (&json!(45), &json!("nothing"))
    );
    let pinned = answer(&scene.worktree("pin", "w", &[]));
    assert_eq!(pinned["worktree"]["origin"], "found");
    std::fs::copy(scene.place("victim/.git"), scene.place("w/.git")).unwrap();
    scene.change("victim");
    refused(
        &scene.restore("w", &["--tree", tree]),
        "worktree_redirected",
        "pointers_changed",
    );
    assert_eq!(scene.content("victim"), "changed\n");
    let listed = scene.home.json(&["worktree", "list"]);
    assert_eq!(listed["worktrees"][0]["state"], "changed");
    refused(
        &scene.worktree("remove", "w", &["--discard"]),
        "worktree_redirected",
        "pointers_changed",
    );
    let forgotten = answer(&scene.worktree("remove", "w", &["--pin-only"]));
    assert_eq!(forgotten["status"], "unpinned");
    assert!(scene.place("w").exists());
}

#[test]
fn a_locked_worktree_is_removed_by_its_own_word_and_ignored_files_are_counted() {
    let scene = Scene::new();
    scene.add("w");
    let place = scene.place("w");
    std::fs::write(scene.repository.join(".git/info/exclude"), "*.o\n").unwrap();
    std::fs::write(place.join("x.o"), "x").unwrap();
    git(&scene.repository, &["worktree", "lock", place.to_str().unwrap()]);
    for args in [&[][..], &["--discard"]] {
        let refusal = refused(
            &scene.worktree("remove", "w", args),
            "precondition_failed",
            "locked",
        );
        assert_eq!(refusal["exit"], 15);
    }
    let usage = scene.worktree("remove", "w", &["--locked", "--pin-only"]);
    assert_eq!(usage.status.code(), Some(64), "{}", said(&usage));
    let removed = answer(&scene.worktree("remove", "w", &["--locked"]));
    assert_eq!(
        (&removed["status"], &removed["ignored"]),
        (&json!("removed"), &json!(1))
    );
    assert!(!place.exists());
    scene.add("w");
    let discarded = answer(&scene.worktree("remove", "w", &["--discard"]));
    assert_eq!(discarded["ignored"], Value::Null);
}

/// A repository of somebody else is removed by a word of its own.
#[test]
fn a_removal_takes_no_repository_of_others_with_it_unless_told() {
    let scene = Scene::new();
    scene.add("w");
    let place = scene.place("w");
    std::fs::write(scene.repository.join(".git/info/exclude"), "ign\n").unwrap();
    std::fs::create_dir_all(place.join("ign/r")).unwrap();
    git(&place.join("ign/r"), &["init", "-q"]);
    for args in [&[][..], &["--discard"]] {
        let refusal = refused(
            &scene.worktree("remove", "w", args),
            "precondition_failed",
            "nested_repository",
        );
        let named = place.join("ign/r/.git").display().to_string();
        assert_eq!(refusal["names"], json!([named]));
    }
    let usage = scene.worktree("remove", "w", &["--remove-nested", "--pin-only"]);
    assert_eq!(usage.status.code(), Some(64), "{}", said(&usage));
    let removed = answer(&scene.worktree("remove", "w", &["--remove-nested"]));
    assert_eq!(removed["status"], "removed");
    assert!(!place.exists());
}

/// What a killed removal left is shown, whoever asks, and is ended by the next command.
#[test]
fn what_is_not_ended_is_listed() {
    let scene = Scene::new();
    let added = scene.add("w");
    let id = added["worktree"]["id"].as_str().unwrap();
    let pins = scene.home.state().join("worktrees");
    let pin = std::fs::read_dir(&pins)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|is| is == "json"))
        .unwrap();
    let pin: Value = serde_json::from_slice(&std::fs::read(pin).unwrap()).unwrap();
    let aside = scene.place("w").with_file_name(format!("semel-{id}"));
    let doing = json!({"doing": "remove", "pin": pin, "aside": aside});
    std::fs::rename(scene.place("w"), &aside).unwrap();
    std::fs::write(pins.join(format!("doing-{id}.json")), doing.to_string()).unwrap();
    let listed = scene.home.json(&["worktree", "list"]);
    let expected = json!([{"id": id, "begun": "remove", "worktree": scene.place("w"), "rest": aside}]);
    assert_eq!(listed["unfinished"], expected);
    let text = scene.home.run(&["worktree", "list"]);
    assert!(said(&text).contains("remove is not ended"), "{}", said(&text));
    scene.add("v");
    assert!(!aside.exists());
    let listed = scene.home.json(&["worktree", "list"]);
    assert_eq!(
        (
            &listed["unfinished"],
            listed["worktrees"].as_array().unwrap().len()
        ),
        (&json!([]), 1)
    );
}

#[test]
fn a_state_root_in_the_worktree_pins_nothing() {
    let scene = Scene::new();
    let state = scene.repository.join("state");
    let place = scene.repository.to_str().unwrap();
    let mut command = crate::harness::bare(&["worktree", "pin", place, "--json", "--state"]);
    let out = command
        .arg(&state)
        .env("HOME", scene.home.path())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(78), "{}", said(&out));
    assert!(!state.exists());
}

#[test]
fn a_prepared_tree_is_recorded_and_retries_restore_from_the_record() {
    let scene = Scene::new();
    let [first, second] = [&scene.trees[0], &scene.trees[1]];
    scene.add("w");
    refused(
        &scene.restore("w", &["--job", "app"]),
        "not_found",
        "nothing_recorded",
    );
    let recorded = answer(&scene.restore("w", &["--tree", first, "--record", "--job", "app"]));
    let pin = recorded["record"]["pin"].clone();
    assert_eq!(
        recorded["record"],
        json!({"job": "app", "number": 1, "pin": pin, "tree": first, "superseded": null})
    );
    // A retry names no tree.
    scene.change("w");
    let again = answer(&scene.restore("w", &["--job", "app"]));
    assert_eq!(again["outcome"]["tree"], json!(first));
    assert_eq!(
        (scene.content("w").as_str(), &again["record"]["number"]),
        ("one\n", &json!(1))
    );
    // One that names another tree is foreign; the job's own newer one supersedes it.
    scene.change("w");
    let foreign = refused(
        &scene.restore("w", &["--tree", second, "--job", "app"]),
        "tree_mismatch",
        "other_tree",
    );
    assert_eq!(foreign["touched"], "nothing");
    assert_eq!(scene.content("w"), "changed\n");
    let newer = answer(&scene.restore("w", &["--tree", second, "--record", "--job", "app"]));
    assert_eq!(newer["record"]["number"], 2);
    assert_eq!(newer["record"]["superseded"], json!(first));
    let again = answer(&scene.restore("w", &["--job", "app"]));
    assert_eq!(
        (again["outcome"]["tree"].as_str(), scene.content("w").as_str()),
        (Some(second.as_str()), "two\n")
    );
    let log = scene.home.lines(&["log", "--job", "app"]);
    let told = |event: &str| log.iter().filter(|line| line["event"] == json!(event)).count();
    assert_eq!(
        (told("tree_prepared"), told("worktree_restored")),
        (2, 4),
        "{log:?}"
    );
    let text = log.iter().map(Value::to_string).collect::<String>();
    assert!(
        !text.contains(scene.home.path().to_str().unwrap()),
        "a path is in the log"
    );
}

#[test]
fn what_was_recorded_elsewhere_or_by_another_job_is_no_evidence() {
    let scene = Scene::new();
    let [first, second] = [&scene.trees[0], &scene.trees[1]];
    scene.add("w");
    scene.add("v");
    answer(&scene.restore("w", &["--tree", second, "--record", "--job", "app"]));
    scene.change("w");
    scene.change("v");
    refused(
        &scene.restore("v", &["--job", "app"]),
        "tree_mismatch",
        "other_worktree",
    );
    let taken = scene.restore("w", &["--tree", first, "--record", "--job", "other"]);
    refused(&taken, "tree_mismatch", "foreign_record");
    assert_eq!(
        [scene.content("w"), scene.content("v")],
        ["changed\n", "changed\n"]
    );
    // A worktree that was made anew has another pin: what was recorded in the former one is no evidence.
    answer(&scene.worktree("remove", "w", &["--discard"]));
    scene.add("w");
    refused(
        &scene.restore("w", &["--job", "app"]),
        "tree_mismatch",
        "other_worktree",
    );
    let anew = answer(&scene.restore("w", &["--tree", second, "--record", "--job", "app"]));
    assert_eq!(anew["record"]["number"], 2);
    let report = scene.home.json(&["check"]);
    assert_eq!(report["report"]["faults"], json!([]));
}

#[test]
fn a_tree_that_is_not_restored_is_not_recorded() {
    let scene = Scene::new();
    scene.add("w");
    let first = &scene.trees[0];
    answer(&scene.restore("w", &["--tree", first, "--record", "--job", "app"]));
    let absent = "0".repeat(40);
    let out = scene.restore("w", &["--tree", &absent, "--record", "--job", "app"]);
    assert_eq!(out.status.code(), Some(44), "{}", said(&out));
    let again = answer(&scene.restore("w", &["--job", "app"]));
    assert_eq!(again["outcome"]["tree"], json!(first));
    for args in [
        &["--record", "--job", "app"][..],
        &["--tree", first, "--record"],
        &[],
    ] {
        assert_eq!(scene.restore("w", args).status.code(), Some(64), "{args:?}");
    }
    let unpinned = scene.place("plain");
    git(
        &scene.repository,
        &["worktree", "add", "-q", "--detach", unpinned.to_str().unwrap()],
    );
    refused(
        &scene.restore("plain", &["--tree", first, "--record", "--job", "app"]),
        "worktree_redirected",
        "not_pinned",
    );
}

/// Whoever comes last in the worktree comes last in the record.
#[test]
fn many_that_record_at_once_leave_the_record_of_what_lies_there() {
    let scene = Scene::new();
    scene.add("w");
    let place = scene.place("w");
    for _ in 0..3 {
        let started: Vec<_> = (0..6)
            .map(|n| {
                let tree = scene.trees[n % 2].as_str();
                let args = [
                    "restore",
                    "--json",
                    "--worktree",
                    place.to_str().unwrap(),
                    "--tree",
                    tree,
                ];
                let mut command = scene
                    .home
                    .command(&[&args[..], &["--record", "--job", "app"]].concat());
                command.stdout(std::process::Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for child in started {
            let out = child.wait_with_output().unwrap();
            assert!(out.status.success(), "{}", said(&out));
        }
        let there = git(&place, &["write-tree"]);
        let recalled = answer(&scene.restore("w", &["--job", "app", "--tree", &there]));
        assert_eq!(recalled["record"]["tree"], json!(there));
    }
}
