//! `semel run`: from a repository to a certificate and a branch; again, anew, and refused.

use crate::harness::{RUN, Site, bare, is_root, said, skipped, statement, text};
use semel_core::Sha256;
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[test]
fn a_job_is_carried_to_a_certificate_and_a_branch_of_the_same_tree() {
    let site = Site::new();
    site.job("[\"python3\", \"check.py\", \"{report}\"] => [\"cargo\", \"test\"]");
    let first = site.json(RUN);
    assert_eq!(first["status"], "certified");
    let restorations = json!({"calls": 1, "refused": 0, "collisions": 0, "adoptions": 0, "waits": 0, "waited_ms": 0, "bypassed": false});
    assert_eq!(first["restorations"], restorations, "its draft alone");
    let tree = site.git(&["rev-parse", "semel/small^{tree}"]);
    assert_eq!(first["tree"], json!(tree));
    assert_eq!(site.git(&["rev-parse", "semel/small^"]), site.base);
    let lib = site.git(&["show", "semel/small:src/lib.rs"]);
    assert!(
        lib.ends_with("//test first holds\n//test more holds"),
        "one effect, sent twice: {lib}"
    );
    let statement = statement(text(&first["envelope"]).as_ref());
    let digests: Vec<&Value> = statement["subject"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["digest"])
        .collect();
    assert!(digests.iter().any(|d| d["gitTree"] == json!(tree)), "{digests:?}");
    assert_eq!(statement["predicate"]["report"]["counts"]["passed"], 1);
    let volume = site
        .home
        .state()
        .join("volumes/small")
        .join(text(&first["generation"]));
    assert!(
        volume.join("work").is_dir() && !volume.join("work/test").exists(),
        "what the tests left is freed"
    );
    // A second run shows the same certificate and does nothing.
    let entries = site.json(&["status"]);
    let again = site.json(RUN);
    assert_eq!(again, first);
    assert_eq!(site.volumes().len(), 2);
    assert_eq!(
        site.json(&["status"])["journal"]["entries"],
        entries["journal"]["entries"]
    );
    site.at_rest();
}

#[test]
fn a_new_attempt_and_a_changed_job_begin_anew_and_move_no_branch() {
    let site = Site::new();
    let first = site.json(RUN);
    let branch = site.git(&["rev-parse", "semel/small"]);
    let second = site.json(&["run", "job.toml", "--new-attempt"]);
    assert_ne!(
        (&second["run"], &second["generation"]),
        (&first["run"], &first["generation"])
    );
    assert_eq!(second["tree"], first["tree"]);
    // Two runs within one second make the very same commit, which the branch of the first one holds already.
    let (name, commit) = text(&second["output"])
        .strip_prefix("branch ")
        .and_then(|rest| rest.split_once(' '))
        .unwrap();
    let expected = if commit == branch {
        "semel/small"
    } else {
        "semel/small-attempt-3"
    };
    assert_eq!(
        (name, commit),
        (expected, site.git(&["rev-parse", name]).as_str())
    );
    assert_eq!(site.git(&["rev-parse", "semel/small"]), branch);
    assert_eq!(site.json(RUN)["certificate"], second["certificate"]);
    site.job("branch = \"semel/small\" => patch = \"out.patch\"");
    let third = site.json(RUN);
    assert_ne!(third["run"], second["run"]);
    let scratch = site.at("scratch");
    site.git(&["worktree", "add", "-q", scratch.to_str().unwrap(), &site.base]);
    site.git_in(
        &scratch,
        &["apply", "--index", site.at("out.patch").to_str().unwrap()],
    );
    assert_eq!(json!(site.git_in(&scratch, &["write-tree"])), third["tree"]);
    site.at_rest();
}

/// The counts are of this run, and a run that never restored says so.
#[test]
fn a_failed_run_without_a_restoration_is_shown_as_bypassed() {
    let site = Site::new();
    site.agent("raise SystemExit(9)\n");
    let failed = site.refused(RUN, 3);
    assert_eq!(failed["restorations"]["calls"], 1, "{failed}");
    let whole = std::fs::read_to_string(site.at("job.toml")).unwrap();
    let absent = whole.replace(&site.base, &"0".repeat(40));
    assert_ne!(absent, whole);
    std::fs::write(site.at("job.toml"), absent).unwrap();
    let out = site.command(&[RUN, &["--json"]].concat()).output().unwrap();
    assert!(!out.status.success());
    let refused: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(refused["restorations"]["calls"], 0, "{refused}");
    assert_eq!(refused["restorations"]["bypassed"], true, "{refused}");
    assert!(said(&out).contains("bypassed"), "{}", said(&out));
}

#[test]
fn failed_tests_are_a_signed_refusal_and_tried_again_only_where_the_job_says_so() {
    let site = Site::new();
    site.agent("from semel_client import read, write\nd, s = read('src/lib.rs')\nwrite('src/lib.rs', d + b'//test bad fails\\n', s, 'k')\n");
    let refusal = site.refused(RUN, 23);
    assert_eq!(refusal["code"], "tests_failed");
    assert_eq!(refusal["restorations"]["calls"], 1);
    assert_eq!(refusal["restorations"]["bypassed"], false);
    assert!(refusal["names"].to_string().contains("bad"), "{refusal}");
    let signed = site.certificates();
    assert_eq!(signed.len(), 1);
    assert!(
        signed[0]["predicate"]["verdict"]
            .to_string()
            .contains("tests_failed"),
        "{}",
        signed[0]
    );
    assert_eq!(site.git(&["branch", "--list", "semel/*"]), "");
    // One attempt by default, also where more are allowed.
    let more = std::fs::read_to_string(site.at("job.toml")).unwrap();
    std::fs::write(
        site.at("job.toml"),
        more.replace("[output]", "attempts = 2\n[output]"),
    )
    .unwrap();
    site.refused(RUN, 23);
    assert_eq!(site.certificates().len(), 2);
    let more = std::fs::read_to_string(site.at("job.toml")).unwrap();
    std::fs::write(
        site.at("job.toml"),
        more.replace("[output]", "retry = [\"tests_failed\"]\n[output]"),
    )
    .unwrap();
    site.refused(RUN, 23);
    let signed = site.certificates();
    assert_eq!(signed.len(), 4);
    let generations: BTreeSet<&str> = signed
        .iter()
        .map(|s| text(&s["predicate"]["generation"]))
        .collect();
    assert_eq!(generations.len(), 4, "each attempt has a generation of its own");
    let most = signed
        .iter()
        .map(|s| s["predicate"]["earlier"].as_array().unwrap().len())
        .max();
    assert!(most >= Some(1), "a certificate names the attempts before it");
    site.at_rest();
}

#[test]
fn a_job_file_and_what_it_names_lie_outside_of_the_state_root() {
    let site = Site::new();
    let state = site.home.state();
    assert!(site.run(&["key", "new"]).status.success());
    let good = std::fs::read_to_string(site.at("job.toml")).unwrap();
    std::fs::create_dir_all(state.join("sub")).unwrap();
    std::fs::write(state.join("sub/job.toml"), &good).unwrap();
    let inside = state.join("sub/job.toml");
    assert_eq!(
        site.refused(&["run", inside.to_str().unwrap()], 78)["code"],
        "bad_config"
    );
    std::os::unix::fs::symlink(&inside, site.at("link.toml")).unwrap();
    site.refused(&["run", "link.toml"], 78);
    // Also where the state root is given through a link.
    std::os::unix::fs::symlink(&state, site.at("other-name")).unwrap();
    let mut command = bare(&["run", inside.to_str().unwrap(), "--state"]);
    let out = command
        .arg(site.at("other-name"))
        .env("HOME", site.home.path())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(78), "{}", said(&out));
    let key = state.join("keys/signing.pem");
    for change in [
        format!(
            "\"agent.py\" = \"agent.py\" => \"agent.py\" = \"{}\"",
            key.display()
        ),
        "\"agent.py\" = \"agent.py\" => \"agent.py\" = \"state/keys/signing.pem\"".to_owned(),
        format!(
            "branch = \"semel/small\" => patch = \"{}\"",
            state.join("journal.db").display()
        ),
        format!("repository = \"repo\" => repository = \"{}\"", state.display()),
    ] {
        site.job(&change);
        assert_eq!(site.refused(RUN, 78)["code"], "bad_config", "{change}");
    }
    // Nothing began: there is not even a journal.
    assert_eq!(site.refused(&["volume", "list"], 17)["code"], "not_found");
    // Inside of a job, the environment names no state root.
    let mut command = bare(&["run", "job.toml"]);
    command
        .env("HOME", site.home.path())
        .env("SEMEL_JOB", "small")
        .current_dir(site.home.path());
    let out = command.output().unwrap();
    assert_eq!(out.status.code(), Some(78), "{}", said(&out));
    assert!(!site.at(".local").exists());
}

/// An agent that has fetched what Git LFS keeps changed nothing by that; one that wrote other content there did.
#[test]
fn what_git_lfs_keeps_is_sealed_as_its_pointer() {
    let mut site = Site::new();
    let pointer = |content: &str| {
        let (digest, size) = (Sha256::of(content.as_bytes()), content.len());
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n")
    };
    let repository = site.repository();
    std::fs::write(repository.join(".gitattributes"), "*.bin filter=lfs -text\n").unwrap();
    std::fs::write(repository.join("a.bin"), pointer("fetched")).unwrap();
    site.base = site.commit_all("a.bin");
    let agent = |content: &str| {
        let write = |name: &str, text: &str| format!("open({name:?}, 'w').write({text:?})\n");
        site.agent(
            &[
                write("src/more.rs", "//test more holds\n"),
                write("a.bin", content),
            ]
            .concat(),
        );
        site.job("");
    };
    agent("fetched");
    let done = site.json(RUN);
    assert_eq!(done["status"], "certified");
    assert_eq!(
        site.git(&["diff", "--name-only", &site.base, "semel/small"]),
        "src/more.rs"
    );
    agent("of its own");
    let refusal = site.refused(&["run", "job.toml", "--new-attempt"], 28);
    assert_eq!(
        (&refusal["code"], &refusal["reason"], &refusal["names"]),
        (&json!("tree_mismatch"), &json!("lfs_content"), &json!(["a.bin"]))
    );
    agent(&pointer("of its own"));
    let done = site.json(&["run", "job.toml", "--new-attempt"]);
    assert_eq!(done["status"], "certified");
    site.at_rest();
}

/// For people who run their own agents: open, work, end, seal, certify, gate.
#[test]
fn a_draft_of_a_persons_own_is_sealed_certified_and_gated() {
    let site = Site::new();
    let repository = site.repository();
    let opened = site.json(&["volume", "open", "own", "--from", repository.to_str().unwrap()]);
    let generation = text(&opened["generation"]);
    assert_eq!(site.refused(&["seal", generation], 32)["code"], "volume_busy");
    std::fs::write(site.at("token"), text(&opened["token"])).unwrap();
    let arguments = json!({"path": "src/more.rs", "content": "//test own holds\n"}).to_string();
    site.json(&[
        "call",
        "--token-file",
        "token",
        "write_file",
        &arguments,
        "--key",
        "k",
    ]);
    site.json(&["volume", "end", generation]);
    let sealed = site.json(&["seal", generation]);
    let again = site.json(&["seal", generation]);
    assert_eq!(
        (&again["proposal"], &again["tree"]),
        (&sealed["proposal"], &sealed["tree"])
    );
    let proposal = text(&sealed["proposal"]);
    let certify = |more: &[&str]| {
        let args = [
            "certify",
            "--job",
            "own",
            "--proposal",
            proposal,
            "--install",
            "cargo",
            "--test",
        ];
        [&args[..], more]
            .concat()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let late = certify(&["tail -f /dev/null {report}", "--timeout", "1s", "--attempts", "2"]);
    let late: Vec<&str> = late.iter().map(String::as_str).collect();
    assert_eq!(site.refused(&late, 24)["code"], "timed_out");
    let refused = site.certificates();
    assert_eq!(refused.len(), 2, "a passed deadline is worth another generation");
    assert!(
        refused
            .iter()
            .all(|s| s["predicate"]["verdict"].to_string().contains("timed_out"))
    );
    let good = certify(&["python3 check.py {report}"]);
    let good: Vec<&str> = good.iter().map(String::as_str).collect();
    let done = site.json(&good);
    assert_eq!(done["counts"]["passed"], 1);
    gated(&site, &done);
    site.at_rest();
}

/// Merges what was certified by hand, and asks the gate.
fn gated(site: &Site, done: &Value) {
    std::fs::write(site.repository().join("src/more.rs"), "//test own holds\n").unwrap();
    let commit = site.commit_all("the person's own merge");
    let key = site.json(&["key", "show"]);
    let policy = format!(
        "[gate]\nkeys = [\"{}\"]\nrecipe = \"{}\"\nmax_attempts = 3\n",
        text(&key["ssh"]).trim(),
        text(&done["recipe"])
    );
    std::fs::write(site.at("policy.toml"), policy).unwrap();
    let envelope = text(&done["envelope"]);
    let gate = [
        "gate",
        "--repository",
        "repo",
        "--certificate",
        envelope,
        "--policy",
        "policy.toml",
        "--commit",
        &commit,
    ];
    assert_eq!(site.json(&gate)["verdict"]["pass"], json!(true));
}

/// The shim reads no configuration: its order tells it.
#[test]
fn a_command_runs_as_the_user_that_the_operator_names() {
    if !is_root() {
        skipped("programs run as another user where Semel is root");
        return;
    }
    let site = Site::new();
    std::fs::write(site.at("own.toml"), "[sandbox]\nuid = 4242\n").unwrap();
    let repository = site.repository();
    let from = repository.to_str().unwrap();
    let opened = site.json(&["--config", "own.toml", "volume", "open", "own", "--from", from]);
    std::fs::write(site.at("token"), text(&opened["token"])).unwrap();
    let call = [
        "call",
        "--token-file",
        "token",
        "run_command",
        "{\"command\":\"id -u\"}",
        "--key",
        "k",
    ];
    let ran = site.json(&[&["--config", "own.toml"], &call[..]].concat());
    assert_eq!(ran["stdout"], "4242\n");
    site.json(&["volume", "end", text(&opened["generation"])]);
    site.at_rest();
}
