//! The test surface: what changed that can change what the tests say, and how many tests there were before.

use crate::harness::{Site, said, statement};
use serde_json::{Value, json};
use std::path::Path;

/// Certifies a commit against a base; gives the answer and the predicate.
fn certified(site: &Site, commit: &str, base: &str) -> (Value, Value) {
    let args = ["certify", "--from", "job.toml", "--repository", "repo"];
    let args = [&args[..], &["--git", commit, "--base", base]].concat();
    let done = site.json(&args);
    let envelope = done["envelope"].as_str().unwrap().to_owned();
    let predicate = statement(Path::new(&envelope))["predicate"].clone();
    (done, predicate)
}

#[test]
fn fewer_tests_than_the_base_had_are_named_in_certificate_and_gate() {
    let site = Site::new();
    let source = |tests: &[&str]| {
        let lines: String = tests
            .iter()
            .map(|name| format!("//test {name} holds\n"))
            .collect();
        let text = format!("#[test]\nfn holds() {{}}\n{lines}");
        std::fs::write(site.repository().join("src/lib.rs"), text).unwrap();
        site.commit_all("tests")
    };
    let base = source(&["first", "second", "third"]);
    let next = source(&["first"]);
    // Nothing is known of the base yet.
    let (_, before) = certified(&site, &next, &base);
    assert_eq!(before.get("base_tests"), None);
    let (of_base, predicate) = certified(&site, &base, &base);
    assert_eq!(predicate["report"]["counts"]["passed"], 3);
    let (done, predicate) = certified(&site, &next, &base);
    let counts = json!({"passed": 3, "failed": 0, "skipped": 0, "deselected": 0});
    assert_eq!(predicate["base_tests"]["counts"], counts);
    assert_eq!(predicate["base_tests"]["generation"], of_base["generation"]);
    assert_eq!(predicate["report"]["counts"]["passed"], 1);

    let key = site.json(&["key", "show"]);
    let gate = |rule: &str| {
        let policy = format!(
            "[gate]\nkeys = [\"{}\"]\nrecipe = \"any\"\nmax_attempts = 9\n{rule}",
            key["ssh"].as_str().unwrap()
        );
        std::fs::write(site.at("policy.toml"), policy).unwrap();
        let envelope = done["envelope"].as_str().unwrap();
        let args = [
            "gate",
            "--certificate",
            envelope,
            "--repository",
            "repo",
            "--json",
        ];
        site.run(&[&args[..], &["--commit", &next, "--policy", "policy.toml"]].concat())
    };
    let surface = |out: &std::process::Output| -> Value {
        let answer: Value = serde_json::from_slice(&out.stdout).unwrap();
        let checks = answer["verdict"]["checks"].as_array().unwrap().clone();
        checks
            .into_iter()
            .find(|check| check["name"] == "test_surface")
            .unwrap()
    };
    let shown = gate("");
    assert!(shown.status.success(), "{}", said(&shown));
    assert_eq!(surface(&shown)["ok"], true);
    assert_eq!(surface(&shown)["why"], "2 fewer tests passed than for the base");
    let refused = gate("test_drop = \"refused\"\n");
    assert_eq!(refused.status.code(), Some(30), "{}", said(&refused));
    assert_eq!(surface(&refused)["ok"], false);

    // A certificate that was altered since says nothing of its base.
    let place = of_base["envelope"].as_str().unwrap();
    let mut bytes = std::fs::read(place).unwrap();
    bytes.push(b' ');
    std::fs::write(place, bytes).unwrap();
    let (_, after) = certified(&site, &next, &base);
    assert_eq!(after.get("base_tests"), None);
}
