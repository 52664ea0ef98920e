//! `semel gate`: it passes the certified tree and what is equal to it, and refuses everything else by name.

use crate::harness::{Site, said};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Output;

struct Certified {
    site: Site,
    envelope: PathBuf,
    record: PathBuf,
    recipe: String,
    /// The delivered commit.
    commit: String,
}

fn certified() -> Certified {
    let site = Site::new();
    let done = site.json(&["run", "job.toml"]);
    let text = |name: &str| done[name].as_str().unwrap().to_owned();
    let certified = Certified {
        envelope: text("envelope").into(),
        record: text("install_record").into(),
        recipe: text("recipe"),
        commit: site.git(&["rev-parse", "semel/small"]),
        site,
    };
    certified.policy(&format!("recipe = \"{}\"\n", certified.recipe));
    certified
}

impl Certified {
    /// Writes the policy: the key of this state root, and further lines.
    fn policy(&self, lines: &str) {
        std::fs::write(self.site.at("policy.toml"), self.policy_text(lines)).unwrap();
    }

    fn policy_text(&self, lines: &str) -> String {
        let key = self.site.json(&["key", "show"]);
        format!(
            "[gate]\nkeys = [\"{}\"]\n{lines}",
            key["ssh"].as_str().unwrap().trim()
        )
    }

    fn judge(&self, commit: &str, more: &[&str]) -> Output {
        let mut args = vec!["gate", "--certificate", self.envelope.to_str().unwrap()];
        if !more.contains(&"--repository") {
            args.extend(["--repository", "repo"]);
        }
        args.extend(["--commit", commit]);
        if !more.contains(&"--base") {
            args.extend(["--policy", "policy.toml"]);
        }
        args.extend(more);
        self.site.run(&args)
    }

    fn verdict(&self, commit: &str, more: &[&str]) -> (Option<i32>, Value) {
        let out = self.judge(commit, &[more, &["--json"]].concat());
        let answer: Value =
            serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&out)));
        assert_eq!(
            out.status.success(),
            answer["verdict"]["pass"] == json!(true),
            "{}",
            said(&out)
        );
        (out.status.code(), answer)
    }

    fn passes(&self, commit: &str, more: &[&str]) -> Value {
        let (code, answer) = self.verdict(commit, more);
        assert_eq!(code, Some(0), "{answer}");
        answer["verdict"].clone()
    }

    /// The checks that failed, by name and what they are about.
    fn failed(&self, commit: &str, more: &[&str]) -> Vec<String> {
        let (code, answer) = self.verdict(commit, more);
        assert_eq!(code, Some(30), "{answer}");
        let checks = answer["verdict"]["checks"].as_array().unwrap();
        let failed = checks.iter().filter(|check| check["ok"] == json!(false));
        let label = |check: &Value| match check["about"].as_str() {
            Some(about) => format!("{}:{about}", check["name"].as_str().unwrap()),
            None => check["name"].as_str().unwrap().to_owned(),
        };
        let failed: Vec<String> = failed.map(label).collect();
        // The three lines name them, too.
        let out = self.judge(commit, more);
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(text.starts_with("error: gate_refused"), "{text}");
        assert!(
            failed.iter().all(|name| text.contains(name.as_str())),
            "{failed:?}\n{text}"
        );
        failed
    }

    /// A refusal that is no verdict.
    fn refused(&self, commit: &str, more: &[&str], code: i32) -> Value {
        let out = self.judge(commit, &[more, &["--json"]].concat());
        assert_eq!(out.status.code(), Some(code), "{}", said(&out));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// Makes a commit on the certified one with a change, and gives its id.
    fn changed(&self, change: impl Fn(&std::path::Path)) -> String {
        self.site.git(&["checkout", "-q", "--detach", &self.commit]);
        change(&self.site.repository());
        let commit = self.site.commit_all("changed");
        self.site.git(&["checkout", "-q", "main"]);
        commit
    }
}

#[test]
fn the_certified_tree_passes_and_so_does_a_squash_of_it_every_time() {
    let it = certified();
    let tree = it.site.git(&["rev-parse", &format!("{}^{{tree}}", it.commit)]);
    let squash = it
        .site
        .git(&["commit-tree", &tree, "-m", "a squash, without parents"]);
    assert_ne!(squash, it.commit);
    let record = it.record.to_str().unwrap();
    for commit in [&it.commit, &squash, &it.commit, &squash] {
        let verdict = it.passes(commit, &["--record", record]);
        assert_eq!(verdict["consumption"], "not_checked");
        assert_eq!(verdict["tree"], json!(tree));
    }
    // Without any daemon, and without a word to the journal.
    let before = it.site.volumes();
    it.passes(&it.commit, &[]);
    assert_eq!(it.site.volumes(), before);
    let (_, answer) = it.verdict(&it.commit, &[]);
    let names: Vec<&str> = answer["verdict"]["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    for name in [
        "signature",
        "key_trusted",
        "key_revoked",
        "predicate",
        "verdict_pass",
        "tree",
        "locks",
        "lock",
        "record_verdict",
        "tests",
        "recipe",
        "confinement",
        "weak",
        "attempts",
        "age",
        "consumption",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    let out = it.judge(&it.commit, &[]);
    assert!(
        String::from_utf8_lossy(&out.stdout).starts_with("pass: the certificate covers tree"),
        "{}",
        said(&out)
    );
    let out = it.judge(&it.commit, &["--markdown"]);
    let table = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        table.contains("|") && table.contains("signature") && table.contains(&tree),
        "{table}"
    );
    // Only a full id says what is merged.
    for name in ["semel/small", "HEAD", &it.commit[..12]] {
        it.refused(name, &[], 65);
    }
}

#[test]
fn every_other_tree_is_refused() {
    let it = certified();
    let byte = it.changed(|dir| {
        let text = std::fs::read_to_string(dir.join("src/lib.rs")).unwrap();
        std::fs::write(dir.join("src/lib.rs"), text.replacen("first", "First", 1)).unwrap();
    });
    assert_eq!(it.failed(&byte, &[]), ["tree"]);
    let extra = it.changed(|dir| std::fs::write(dir.join("untracked.txt"), "merged all the same").unwrap());
    assert_eq!(it.failed(&extra, &[]), ["tree"]);
    let mode = it.changed(|dir| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(dir.join("check.py"), std::fs::Permissions::from_mode(0o755)).unwrap();
    });
    assert_eq!(it.failed(&mode, &[]), ["tree"]);
    let lock = it.changed(|dir| {
        let text = std::fs::read_to_string(dir.join("Cargo.lock")).unwrap();
        std::fs::write(dir.join("Cargo.lock"), format!("{text}# moved\n")).unwrap();
    });
    assert_eq!(it.failed(&lock, &[]), ["tree", "lock:Cargo.lock"]);
    let more = it.changed(|dir| std::fs::write(dir.join("uv.lock"), "version = 1\n").unwrap());
    assert_eq!(it.failed(&more, &[]), ["tree", "lock:uv.lock"]);
    assert_eq!(it.failed(&it.site.base, &[]), ["tree"]);
}

#[test]
fn one_flipped_bit_of_the_certificate_is_refused() {
    let it = certified();
    let whole = std::fs::read(&it.envelope).unwrap();
    let mut refused = 0;
    // Positions all over the envelope: payload, signatures, key ids, punctuation.
    for at in (0..whole.len())
        .step_by(whole.len() / 40 + 1)
        .chain([0, whole.len() - 1])
    {
        let mut bent = whole.clone();
        bent[at] ^= 1;
        std::fs::write(&it.envelope, &bent).unwrap();
        let out = it.judge(&it.commit, &["--json"]);
        assert_eq!(
            out.status.code(),
            Some(30),
            "bit of byte {at} ({}): {}",
            whole[at] as char,
            said(&out)
        );
        refused += 1;
    }
    assert!(refused > 20);
    for (what, bytes) in [
        ("cut", &whole[..whole.len() / 2]),
        ("empty", &whole[..0]),
        ("{}", b"{}"),
    ] {
        std::fs::write(&it.envelope, bytes).unwrap();
        assert!(
            it.failed(&it.commit, &[]).contains(&"signature".to_owned()),
            "{what}"
        );
    }
    std::fs::write(&it.envelope, &whole).unwrap();
    it.passes(&it.commit, &[]);
    // A record that is not the one that was certified.
    let record = it.site.at("record.json");
    let mut bytes = std::fs::read(&it.record).unwrap();
    bytes.push(b' ');
    std::fs::write(&record, bytes).unwrap();
    assert_eq!(
        it.failed(&it.commit, &["--record", record.to_str().unwrap()]),
        ["record_verdict"]
    );
}

#[test]
fn keys_recipe_and_demands_are_the_policys() {
    let it = certified();
    let stranger = Site::new();
    assert!(stranger.run(&["key", "new"]).status.success());
    let other = stranger.json(&["key", "show"]);
    let policy = format!(
        "[gate]\nkeys = [\"{}\"]\nrecipe = \"any\"\n",
        other["ssh"].as_str().unwrap().trim()
    );
    std::fs::write(it.site.at("policy.toml"), policy).unwrap();
    let failed = it.failed(&it.commit, &[]);
    assert!(
        failed.contains(&"signature".to_owned()) && failed.contains(&"key_trusted".to_owned()),
        "{failed:?}"
    );

    it.policy(&format!("recipe = \"{}\"\n", "0".repeat(64)));
    assert_eq!(it.failed(&it.commit, &[]), ["recipe"]);
    it.policy("recipe = \"any\"\nmin_tests = 3\n");
    assert_eq!(it.failed(&it.commit, &[]), ["tests"]);
    it.policy("recipe = \"any\"\nlocks = [\"uv.lock\"]\n");
    assert_eq!(it.failed(&it.commit, &[]), ["lock:uv.lock"]);
    it.policy(&format!(
        "recipe = \"any\"\ntoolchain = {{ cargo = \"{}\" }}\n",
        "0".repeat(64)
    ));
    assert_eq!(it.failed(&it.commit, &[]), ["toolchain:cargo"]);
    for bad in ["recipe = \"any\"\nsurprise = 1\n", "", "recipe = \"some\"\n"] {
        it.policy(bad);
        assert_eq!(it.refused(&it.commit, &[], 78)["code"], "bad_config", "{bad}");
    }
    std::fs::write(it.site.at("policy.toml"), "[gate]\nkeys = []\nrecipe = \"any\"\n").unwrap();
    assert_eq!(it.refused(&it.commit, &[], 78)["reason"], "no_trusted_keys");
    // A revoked key is refused even where a policy still trusts it.
    it.policy("recipe = \"any\"\n");
    let key = it.site.json(&["key", "show"]);
    for id in ["key_id", "ssh_fingerprint"] {
        let text = format!("revoked_keys = [\"{}\"]\n", key[id].as_str().unwrap());
        std::fs::write(it.site.at("config.toml"), text).unwrap();
        let failed = it.failed(&it.commit, &["--config", "config.toml"]);
        assert_eq!(failed, ["key_revoked"], "{id}");
    }
}

/// A test command that always says yes leaves no report, and is another recipe.
#[test]
fn another_test_command_is_never_a_pass() {
    let it = certified();
    let proposal = it.site.json(&["run", "job.toml"])["proposal"]
        .as_str()
        .unwrap()
        .to_owned();
    let certify = |test: &str| {
        let args = [
            "certify",
            "--from",
            "job.toml",
            "--proposal",
            &proposal,
            "--test",
            test,
            "--json",
        ];
        let out = it.site.run(&args);
        (
            out.status.code(),
            serde_json::from_slice::<Value>(&out.stdout).unwrap(),
        )
    };
    for test in ["true", "sh -c true {report}", "python3 -c pass {report}"] {
        let (code, refusal) = certify(test);
        assert!(matches!(code, Some(27 | 78)), "{test}: {refusal}");
    }
    let newest = |site: &Site| {
        let mut all: Vec<PathBuf> = std::fs::read_dir(site.home.state().join("certificates"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|place| place.to_str().unwrap().ends_with(".dsse.json"))
            .collect();
        all.sort();
        all.pop().unwrap()
    };
    // The refused attempt is signed as such, and its certificate is refused.
    let mut it = it;
    it.envelope = newest(&it.site);
    it.policy("recipe = \"any\"\nmax_attempts = 9\n");
    let failed = it.failed(&it.commit, &[]);
    for name in ["verdict_pass", "tests"] {
        assert!(failed.contains(&name.to_owned()), "{failed:?}");
    }
    // One that writes a report of its own certifies, by another recipe than the pinned one.
    let script = r#"<testsuite><testcase classname="x" name="y"/></testsuite>"#;
    let more = std::fs::read_to_string(it.site.at("job.toml")).unwrap();
    let lie = format!(
        "test = [\"python3\", \"-c\", \"import sys; open(sys.argv[1], 'w').write('''{}''')\", \"{{report}}\"]",
        script.replace('"', "\\\"")
    );
    let honest = "test = [\"python3\", \"check.py\", \"{report}\"]";
    assert!(more.contains(honest));
    std::fs::write(it.site.at("job.toml"), more.replace(honest, &lie)).unwrap();
    let out = it
        .site
        .run(&["certify", "--from", "job.toml", "--proposal", &proposal, "--json"]);
    let done: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(done["status"], "certified", "{done}");
    it.envelope = done["envelope"].as_str().unwrap().into();
    it.policy(&format!("recipe = \"{}\"\nmax_attempts = 9\n", it.recipe));
    assert_eq!(it.failed(&it.commit, &[]), ["recipe"]);
    it.policy("recipe = \"any\"\nmax_attempts = 1\n");
    assert_eq!(
        it.failed(&it.commit, &[]),
        ["attempts"],
        "the refused attempts before it count"
    );
    it.site.at_rest();
}

#[test]
fn the_policy_comes_from_a_base_commit_by_its_full_id() {
    let it = certified();
    std::fs::create_dir_all(it.site.repository().join(".semel")).unwrap();
    let policy = it.policy_text(&format!("recipe = \"{}\"\n", it.recipe));
    std::fs::write(it.site.repository().join(".semel/gate.toml"), &policy).unwrap();
    let base = it.site.commit_all("policy");
    it.passes(&it.commit, &["--base", &base]);
    for name in ["main", "HEAD", "refs/heads/main", &base[..20], "semel/small"] {
        let refusal = it.refused(&it.commit, &["--base", name], 65);
        assert_eq!(refusal["reason"], "policy_base_not_an_object_id", "{name}");
    }
    // The tree under test brings no policy: neither by its own id nor by a squash of it.
    let own = it.changed(|dir| {
        std::fs::create_dir_all(dir.join(".semel")).unwrap();
        std::fs::write(dir.join(".semel/gate.toml"), it.policy_text("recipe = \"any\"\n")).unwrap();
    });
    let tree = it.site.git(&["rev-parse", &format!("{own}^{{tree}}")]);
    let squash = it.site.git(&["commit-tree", &tree, "-m", "squash"]);
    for id in [&own, &squash] {
        let refusal = it.refused(&own, &["--base", id], 65);
        assert_eq!(refusal["reason"], "policy_base_is_candidate");
    }
    let missing = it.refused(&it.commit, &["--base", &it.site.base], 17);
    assert_eq!(missing["code"], "not_found", "{missing}");
    let absent = it.refused(&it.commit, &["--base", &"1".repeat(40)], 44);
    assert_eq!(absent["code"], "object_missing");
    assert_eq!(
        it.site
            .run(&["gate", "--certificate", "x", "--commit", &it.commit])
            .status
            .code(),
        Some(64)
    );
}

/// A base that holds the candidate already brings the candidate's own policy: a merge of it, what came after one, a child.
#[test]
fn a_base_that_holds_the_candidate_brings_no_policy() {
    let it = certified();
    let lines = format!("recipe = \"{}\"\n", it.recipe);
    let with_policy = |dir: &std::path::Path| {
        std::fs::create_dir_all(dir.join(".semel")).unwrap();
        std::fs::write(dir.join(".semel/gate.toml"), it.policy_text(&lines)).unwrap();
    };
    let own = it.changed(with_policy);
    let tree = it.site.git(&["rev-parse", &format!("{own}^{{tree}}")]);
    std::fs::write(it.site.repository().join("moved.txt"), "on\n").unwrap();
    let moved = it.site.commit_all("moved on");
    let onto = it.site.git(&["rev-parse", &format!("{moved}^{{tree}}")]);
    let commit = |tree: &str, parents: &[&str]| {
        let parents = parents.iter().flat_map(|parent| ["-p", parent]);
        let args: Vec<&str> = ["commit-tree", tree, "-m", "one"]
            .into_iter()
            .chain(parents)
            .collect();
        it.site.git(&args)
    };
    with_policy(&it.site.repository());
    let other = it.site.commit_all("a base with a policy of its own");
    let with = it.site.git(&["rev-parse", &format!("{other}^{{tree}}")]);
    let merge = commit(&with, &[&moved, &own]);
    let child = commit(&with, &[&own]);
    let later = commit(&with, &[&commit(&onto, &[&merge])]);
    for base in [&merge, &child, &later] {
        let refusal = it.refused(&own, &["--base", base], 65);
        assert_eq!(refusal["reason"], "policy_base_has_candidate", "{refusal}");
    }
    // One that went another way is a base.
    it.passes(&it.commit, &["--base", &other]);
    it.passes(&it.commit, &["--base", &commit(&with, &[])]);
    assert_ne!(tree, with);
    // Where the history ends before that can be told, it is not told.
    it.site.git(&["branch", "-f", "base", &commit(&with, &[&later])]);
    it.site.git(&["branch", "-f", "candidate", &own]);
    for branch in ["base", "candidate"] {
        let place = format!("file://{}", it.site.repository().display());
        let into = it.site.at("shallow");
        if branch == "base" {
            it.site.git(&[
                "clone",
                "-q",
                "--bare",
                "--depth=1",
                "-b",
                branch,
                &place,
                into.to_str().unwrap(),
            ]);
        } else {
            it.site.git_in(&into, &["fetch", "-q", "--depth=1", &place, &own]);
        }
    }
    let base = it.site.git(&["rev-parse", "base"]);
    let refusal = it.refused(&own, &["--repository", "shallow", "--base", &base], 44);
    assert_eq!(refusal["code"], "object_missing", "{refusal}");
}

/// A copy of the candidate's tree that no `.git` tells of: the bytes of the policy do.
#[test]
fn a_policy_with_the_bytes_of_the_candidate_is_told_or_refused() {
    let it = certified();
    let lines = format!("recipe = \"{}\"\n", it.recipe);
    let tree = it.site.git(&["rev-parse", &format!("{}^{{tree}}", it.commit)]);
    it.policy(&lines);
    assert!(
        !it.passes(&it.commit, &[])["checks"]
            .to_string()
            .contains("policy.toml")
    );
    // The tree is certified as it is: so a file of it is what is given as a policy, and here it is no policy at all.
    let file = it.site.git(&["ls-tree", "-r", "--name-only", &tree]);
    let name = file.lines().next().unwrap();
    it.site.git(&["checkout", "-q", &it.commit]);
    let bytes = std::fs::read(it.site.repository().join(name)).unwrap();
    it.site.git(&["checkout", "-q", "main"]);
    std::fs::write(it.site.at("copied"), bytes).unwrap();
    let refusal = it.refused(&it.commit, &["--base", &it.site.base, "--policy", "copied"], 78);
    assert_eq!(
        refusal["code"], "bad_config",
        "the base has it at the same place: {refusal}"
    );
    // A real policy, in the candidate alone, and then in both.
    let own = it.changed(|dir| std::fs::write(dir.join("gate.toml"), it.policy_text(&lines)).unwrap());
    let given = ["--policy", "policy.toml"];
    let refusal = it.refused(
        &own,
        &[&["--base", it.site.base.as_str()][..], &given].concat(),
        65,
    );
    assert_eq!(refusal["reason"], "policy_of_candidate", "{refusal}");
    let shown = |more: &[&str]| {
        let (_, answer) = it.verdict(&own, more);
        let checks = answer["verdict"]["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|check| check["name"] == "policy")
    };
    let check = shown(&[]).unwrap();
    assert_eq!(check["ok"], json!(true), "{check}");
    assert!(check["actual"].to_string().contains("gate.toml"), "{check}");
    assert!(check["why"].is_string(), "{check}");
    it.site.git(&["checkout", "-q", "main"]);
    std::fs::write(it.site.repository().join("gate.toml"), it.policy_text(&lines)).unwrap();
    let base = it.site.commit_all("the host's policy, shown to all");
    assert_eq!(shown(&[&["--base", base.as_str()][..], &given].concat()), None);
    // Elsewhere in the base, it is still new where the candidate has it.
    it.site.git(&["mv", "gate.toml", "elsewhere.toml"]);
    let base = it.site.commit_all("moved");
    let refusal = it.refused(&own, &[&["--base", base.as_str()][..], &given].concat(), 65);
    assert_eq!(refusal["reason"], "policy_of_candidate", "{refusal}");
}

#[test]
fn a_certificate_is_consumed_for_one_merge() {
    let it = certified();
    it.policy(&format!(
        "recipe = \"{}\"\nconsumption = \"required\"\n",
        it.recipe
    ));
    assert_eq!(it.failed(&it.commit, &[]), ["consumption"]);
    it.policy(&format!("recipe = \"{}\"\n", it.recipe));
    assert_eq!(it.passes(&it.commit, &[])["consumption"], "not_checked");
    // What the gate refuses is not consumed.
    assert_eq!(
        it.failed(&it.site.base, &["--consume", "--target", "refs/heads/other"]),
        ["tree"]
    );
    // Nor for a merge into nothing, such as of a variable that is not set.
    for target in ["", " ", "main", "refs/heads/main\n"] {
        let refusal = it.refused(&it.commit, &["--consume", "--target", target], 65);
        assert_eq!(refusal["reason"], "target_not_a_ref", "{target:?}");
    }
    let main = ["--consume", "--target", "refs/heads/main"];
    it.policy(&format!(
        "recipe = \"{}\"\nconsumption = \"required\"\n",
        it.recipe
    ));
    assert_eq!(it.passes(&it.commit, &main)["consumption"], "first");
    let again = it.passes(&it.commit, &main);
    assert_eq!(again["consumption"], "same");
    assert!(again.to_string().contains("already_consumed: same"), "{again}");
    // A squash is the same tree.
    let tree = it.site.git(&["rev-parse", &format!("{}^{{tree}}", it.commit)]);
    let squash = it.site.git(&["commit-tree", &tree, "-m", "squash"]);
    assert_eq!(it.passes(&squash, &main)["consumption"], "same");
    let other = it.failed(&it.commit, &["--consume", "--target", "refs/heads/release"]);
    assert_eq!(other, ["consumption"]);
    // Another clone is another repository.
    let clone = it.site.at("clone");
    it.site.git_in(
        it.site.home.path(),
        &["clone", "-q", "repo", clone.to_str().unwrap()],
    );
    let mut args = vec![
        "gate",
        "--certificate",
        it.envelope.to_str().unwrap(),
        "--repository",
        "clone",
    ];
    args.extend(["--commit", &it.commit, "--policy", "policy.toml"]);
    args.extend(main);
    assert_eq!(it.site.run(&args).status.code(), Some(30));
    assert_eq!(
        it.site
            .run(&[
                "gate",
                "--consume",
                "--certificate",
                "x",
                "--commit",
                &it.commit,
                "--policy",
                "policy.toml"
            ])
            .status
            .code(),
        Some(64)
    );
    it.site.at_rest();
}

#[test]
fn a_proposal_that_was_exchanged_is_refused() {
    let it = certified();
    let proposal = it.site.json(&["run", "job.toml"])["proposal"]
        .as_str()
        .unwrap()
        .to_owned();
    let proposals = it.site.home.state().join("proposals/sha256");
    let archive = std::fs::read_dir(&proposals)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|place| place.file_name().unwrap().to_str().unwrap() == format!("{proposal}.tar"))
        .expect("the archive lies under its name");
    let into = it.site.at("unsealed");
    it.site.json(&["unseal", &proposal, into.to_str().unwrap()]);
    assert!(
        std::fs::read_to_string(into.join("src/lib.rs"))
            .unwrap()
            .contains("more holds")
    );
    assert_eq!(
        it.site
            .refused(&["unseal", &proposal, into.to_str().unwrap()], 15)["code"],
        "precondition_failed"
    );
    // An archive made by another tool, with an ignored file in it, under the name of the sealed one.
    std::fs::write(into.join("ignored.txt"), "x").unwrap();
    std::fs::set_permissions(&archive, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let out = std::process::Command::new("tar")
        .args(["--format=ustar", "--sort=name", "-cf"])
        .arg(&archive)
        .arg("-C")
        .arg(&into)
        .args(["ignored.txt", "src"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let refusal = it
        .site
        .refused(&["certify", "--from", "job.toml", "--proposal", &proposal], 29);
    assert_eq!(refusal["code"], "proposal_refused", "{refusal}");
    let empty = it.site.at("empty");
    assert_eq!(
        it.site
            .refused(&["unseal", &proposal, empty.to_str().unwrap()], 29)["reason"],
        "other_archive"
    );
    it.site.refused(
        &["certify", "--from", "job.toml", "--proposal", &"0".repeat(64)],
        17,
    );
    it.site.at_rest();
}
