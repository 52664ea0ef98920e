//! The gate in GitHub Actions: summary, outputs and annotations, and the script of the composite action.

use crate::harness::{Site, executable, said, shut_down};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Certified {
    site: Site,
    envelope: String,
    record: String,
    commit: String,
    /// A base commit that holds the policy.
    base: String,
}

fn certified() -> Certified {
    let site = Site::new();
    let done = site.json(&["run", "job.toml"]);
    let text = |name: &str| done[name].as_str().unwrap().to_owned();
    let policy = site.run(&["key", "show", "--policy"]);
    let policy = String::from_utf8(policy.stdout).unwrap();
    std::fs::create_dir(site.repository().join(".semel")).unwrap();
    std::fs::write(site.repository().join(".semel/gate.toml"), &policy).unwrap();
    std::fs::write(site.at("policy.toml"), &policy).unwrap();
    Certified {
        envelope: text("envelope"),
        record: text("install_record"),
        commit: site.git(&["rev-parse", "semel/small"]),
        base: site.commit_all("a policy"),
        site,
    }
}

fn action() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/github-action")
}

impl Certified {
    fn files(&self) -> (PathBuf, PathBuf) {
        (self.site.at("summary.md"), self.site.at("outputs"))
    }

    fn script(&self, variables: &[(&str, &str)]) -> Output {
        let semel = self.site.at("semel-of-this-state");
        let own = self.site.home.state();
        let binary = env!("CARGO_BIN_EXE_semel");
        let wrapper = format!("#!/bin/sh\nexec '{binary}' --state '{}' \"$@\"\n", own.display());
        executable(&semel, &wrapper);
        let (summary, outputs) = self.files();
        Command::new("sh")
            .arg(action().join("gate.sh"))
            .current_dir(self.site.home.path())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("GITHUB_STEP_SUMMARY", summary)
            .env("GITHUB_OUTPUT", outputs)
            .env("GATE_SEMEL", semel)
            .env("GATE_REPOSITORY", "repo")
            .env("GATE_CERTIFICATE", &self.envelope)
            .envs(variables.iter().copied())
            .output()
            .unwrap()
    }
}

#[test]
fn the_action_passes_the_certified_commit_and_tells_the_step() {
    let it = certified();
    let (summary, outputs) = it.files();
    std::fs::write(&summary, "what a step before wrote\n").unwrap();
    let common = [
        ("GATE_COMMIT", it.commit.as_str()),
        ("GATE_BASE", &it.base),
        ("GATE_POLICY_PATH", ".semel/gate.toml"),
        ("GATE_RECORD", &it.record),
        ("GATE_POLICY", ""),
        ("GATE_TARGET", ""),
    ];
    let out = it.script(&common);
    assert!(out.status.success(), "{}", said(&out));
    let table = std::fs::read_to_string(&summary).unwrap();
    assert!(
        table.starts_with("what a step before wrote\n**semel gate: pass**"),
        "{table}"
    );
    let told = std::fs::read_to_string(&outputs).unwrap();
    assert!(
        told.starts_with("pass=true\n") && told.contains("consumption=not_checked\n"),
        "{told}"
    );
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(text.starts_with("::notice title=semel gate%3A pass::"), "{text}");

    // Another commit: every failed check is an annotation, and the step fails.
    std::fs::remove_file(&outputs).unwrap();
    it.site.git(&["checkout", "-q", "-b", "another", &it.site.base]);
    std::fs::write(it.site.repository().join("another.txt"), "another\n").unwrap();
    let another = it.site.commit_all("another change");
    let other = [&common[1..], &[("GATE_COMMIT", another.as_str())]].concat();
    let out = it.script(&other);
    assert_eq!(out.status.code(), Some(30), "{}", said(&out));
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(
        text.starts_with("::error title=semel gate%3A tree::expected "),
        "{text}"
    );
    assert!(text.contains("\nerror: gate_refused"), "{text}");
    assert!(
        std::fs::read_to_string(&outputs)
            .unwrap()
            .starts_with("pass=false\n")
    );
    // A policy of the runner, and no base.
    let policy = it.site.at("policy.toml");
    let runner = [
        ("GATE_COMMIT", it.commit.as_str()),
        ("GATE_POLICY", policy.to_str().unwrap()),
    ];
    assert!(it.script(&runner).status.success());
    // Neither is a usage error, and never a pass.
    assert_eq!(it.script(&runner[..1]).status.code(), Some(64));
    // What cannot be told is no pass.
    std::fs::remove_file(&summary).unwrap();
    std::fs::create_dir(&summary).unwrap();
    assert!(!it.script(&common).status.success());
}

/// All steps that name one state root share what was used; those of another one know nothing of it.
#[test]
fn a_certificate_is_used_once_by_all_steps_that_share_a_state() {
    let it = certified();
    let shared = it.site.at("shared");
    let used = |state: &Path, target: &str| {
        let variables = [
            ("GATE_COMMIT", it.commit.as_str()),
            ("GATE_BASE", it.base.as_str()),
            ("GATE_STATE", state.to_str().unwrap()),
            ("GATE_TARGET", target),
        ];
        it.script(&variables)
    };
    let first = used(&shared, "refs/heads/e1");
    assert!(first.status.success(), "{}", said(&first));
    assert!(
        used(&shared, "refs/heads/e1").status.success(),
        "the same use again"
    );
    let second = used(&shared, "refs/heads/e2");
    assert_eq!(second.status.code(), Some(30), "{}", said(&second));
    let other = it.site.at("other");
    assert!(
        used(&other, "refs/heads/e2").status.success(),
        "it knows of no use"
    );
    shut_down(&shared);
    shut_down(&other);
}

/// What the action hands over is what the script reads, and no input is text of a script.
#[test]
fn the_action_and_its_script_agree() {
    let text = std::fs::read_to_string(action().join("action.yml")).unwrap();
    let script = std::fs::read_to_string(action().join("gate.sh")).unwrap();
    let names = |text: &str, mark: &str| -> BTreeSet<String> {
        let parts = text.split(mark).skip(1);
        let word = |part: &str| {
            let end = part.find(|c: char| !c.is_ascii_uppercase() && c != '_');
            part[..end.unwrap_or(part.len())].to_owned()
        };
        parts.map(word).filter(|word| !word.is_empty()).collect()
    };
    assert_eq!(names(&text, "GATE_"), names(&script, "GATE_"));
    let (_, run) = text.split_once("      run: ").unwrap();
    assert_eq!(run.trim(), "sh \"$GITHUB_ACTION_PATH/gate.sh\"");
    let (inputs, rest) = text.split_once("outputs:\n").unwrap();
    let declared: BTreeSet<&str> = inputs
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .map(|line| line.trim().trim_end_matches(':'))
        .collect();
    let used: BTreeSet<&str> = rest
        .split("${{ inputs.")
        .skip(1)
        .map(|part| part.split(' ').next().unwrap())
        .collect();
    assert_eq!(declared, used);
    let given: BTreeSet<&str> = rest
        .split("steps.gate.outputs.")
        .skip(1)
        .map(|part| part.split(' ').next().unwrap())
        .collect();
    let source = include_str!("../../../core/src/gate/github.rs");
    for name in given {
        assert!(source.contains(&format!("{name}={{")), "{name}");
    }
}

#[test]
fn with_json_the_answer_stays_one_object() {
    let it = certified();
    let args = ["gate", "--certificate", &it.envelope, "--repository", "repo"];
    let args = [&args[..], &["--commit", &it.commit, "--policy", "policy.toml"]].concat();
    let out = it.site.run(&[&args[..], &["--github", "--json"]].concat());
    assert!(out.status.success(), "{}", said(&out));
    let answer: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(answer["verdict"]["pass"], true);
    assert!(out.stderr.starts_with(b"::notice "));
}
