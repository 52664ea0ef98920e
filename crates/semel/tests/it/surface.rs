//! The test surface: what changed that can change what the tests say, and how many tests there were before.

use crate::harness::{Site, said, statement};
use serde_json::{Value, json};
use std::path::Path;

/// Certifies a commit against a base; gives the answer and the predicate.
fn certified(site: &Site, commit: &str, base: &str) -> (Value, Value) {
    certified_with(site, commit, &["--base", base])
}

fn certified_with(site: &Site, commit: &str, more: &[&str]) -> (Value, Value) {
    let args = ["certify", "--from", "job.toml", "--repository", "repo"];
    let done = site.json(&[&args[..], &["--git", commit], more].concat());
    let envelope = done["envelope"].as_str().unwrap().to_owned();
    let predicate = statement(Path::new(&envelope))["predicate"].clone();
    (done, predicate)
}

fn source(site: &Site, tests: &[&str]) -> String {
    let lines: String = tests
        .iter()
        .map(|name| format!("//test {name} holds\n"))
        .collect();
    let text = format!("#[test]\nfn holds() {{}}\n{lines}");
    std::fs::write(site.repository().join("src/lib.rs"), text).unwrap();
    site.commit_all("tests")
}

/// Gives the exit status of the gate, and its check `test_surface`.
fn gated(site: &Site, done: &Value, commit: &str, more: &[&str]) -> (Option<i32>, Value) {
    let args = ["gate", "--repository", "repo", "--json", "--commit", commit];
    let envelope = done["envelope"].as_str().unwrap();
    let out = site.run(&[&args[..], &["--certificate", envelope], more].concat());
    let answer: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", said(&out)));
    let checks = answer["verdict"]["checks"].as_array().unwrap().clone();
    let check = checks.into_iter().find(|check| check["name"] == "test_surface");
    (out.status.code(), check.unwrap())
}

/// A certificate that was made without a base, or against another one, says nothing of the base of a merge.
#[test]
fn a_base_that_a_certificate_does_not_name_was_not_compared() {
    let site = Site::new();
    site.json(&["key", "new"]);
    let key = site.json(&["key", "show"]);
    let policy = format!(
        "[gate]\nkeys = [\"{}\"]\nrecipe = \"any\"\nmax_attempts = 9\n",
        key["ssh"].as_str().unwrap()
    );
    std::fs::create_dir_all(site.repository().join(".semel")).unwrap();
    let strict = format!("{policy}test_drop = \"refused\"\n");
    std::fs::write(site.repository().join(".semel/gate.toml"), &strict).unwrap();
    std::fs::write(site.at("strict.toml"), &strict).unwrap();
    std::fs::write(site.at("shown.toml"), &policy).unwrap();
    let poor = source(&site, &["first", "other"]);
    let base = source(&site, &["first", "second", "third"]);
    let next = source(&site, &["first"]);
    certified(&site, &base, &base);
    certified(&site, &poor, &poor);

    // Certified first for itself, so that there are counts of this very tree.
    let (bare, predicate) = certified_with(&site, &next, &[]);
    assert_eq!((predicate.get("base"), predicate.get("base_tests")), (None, None));
    let (other, predicate) = certified(&site, &next, &poor);
    assert_eq!(predicate["base"]["commit"], poor.as_str());
    let (itself, _) = certified(&site, &next, &next);
    for (done, word) in [
        (&bare, "without a base"),
        (&other, "another base"),
        (&itself, "another base"),
    ] {
        for more in [
            &["--base", &base][..],
            &["--base", &base, "--policy", "strict.toml"],
        ] {
            let (code, check) = gated(&site, done, &next, more);
            assert_eq!((code, &check["ok"]), (Some(30), &json!(false)), "{check}");
            let why = check["why"].as_str().unwrap();
            assert!(why.starts_with("not compared: ") && why.contains(word), "{why}");
        }
        let (code, check) = gated(&site, done, &next, &["--base", &base, "--policy", "shown.toml"]);
        assert_eq!(code, Some(0), "{check}");
        assert!(check["why"].as_str().unwrap().contains(word), "{check}");
    }
    // Of the true base it is told that there are fewer; without a base, that nothing is known.
    let (true_one, predicate) = certified(&site, &next, &base);
    let tree = site.git(&["rev-parse", &format!("{base}^{{tree}}")]);
    assert_eq!(predicate["base"], json!({"commit": base, "tree": tree}));
    let (code, check) = gated(&site, &true_one, &next, &["--base", &base]);
    assert_eq!(code, Some(30));
    assert_eq!(check["why"], "2 fewer tests passed than for the base");
    let (code, check) = gated(&site, &true_one, &next, &["--policy", "strict.toml"]);
    assert_eq!(code, Some(30));
    assert_eq!(check["why"], "not compared: the gate was given no base");
}

#[test]
fn fewer_tests_than_the_base_had_are_named_in_certificate_and_gate() {
    let site = Site::new();
    let base = source(&site, &["first", "second", "third"]);
    let next = source(&site, &["first"]);
    // Nothing is known of the base yet.
    let (_, before) = certified(&site, &next, &base);
    assert_eq!(before.get("base_tests"), None);
    let (of_base, predicate) = certified(&site, &base, &base);
    assert_eq!(predicate["report"]["counts"]["passed"], 3);
    let (done, predicate) = certified(&site, &next, &base);
    let counts = json!({"passed": 3, "failed": 0, "skipped": 0, "deselected": null});
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
        gated(&site, &done, &next, &["--base", &base, "--policy", "policy.toml"])
    };
    let (code, shown) = gate("");
    assert_eq!((code, &shown["ok"]), (Some(0), &json!(true)), "{shown}");
    assert_eq!(shown["why"], "2 fewer tests passed than for the base");
    let (code, refused) = gate("test_drop = \"refused\"\n");
    assert_eq!((code, &refused["ok"]), (Some(30), &json!(false)), "{refused}");

    // A certificate that was altered since says nothing of its base.
    let place = of_base["envelope"].as_str().unwrap();
    let mut bytes = std::fs::read(place).unwrap();
    bytes.push(b' ');
    std::fs::write(place, bytes).unwrap();
    let (_, after) = certified(&site, &next, &base);
    assert_eq!(after.get("base_tests"), None);
}
