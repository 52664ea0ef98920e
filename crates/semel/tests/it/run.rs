//! `semel run`: from a repository to a certificate; agents that misbehave; kills at every point of every stage.

use crate::harness::{Site, processes_with, said, wait_until};
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

const RUN: &[&str] = &["run", "job.toml"];

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[test]
fn a_job_is_carried_to_a_certificate_and_a_branch_of_the_same_tree() {
    let site = Site::new();
    site.job("[\"python3\", \"check.py\", \"{report}\"] => [\"cargo\", \"test\"]");
    let first = site.json(RUN);
    assert_eq!(first["status"], "certified");
    let tree = site.git(&["rev-parse", "semel/small^{tree}"]);
    assert_eq!(first["tree"], json!(tree));
    assert_eq!(site.git(&["rev-parse", "semel/small^"]), site.base);
    let lib = site.git(&["show", "semel/small:src/lib.rs"]);
    assert!(
        lib.ends_with("//test first holds\n//test more holds"),
        "one effect, sent twice: {lib}"
    );
    let statement = crate::harness::statement(text(&first["envelope"]).as_ref());
    let digests: Vec<&Value> = statement["subject"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["digest"])
        .collect();
    assert!(digests.iter().any(|d| d["gitTree"] == json!(tree)), "{digests:?}");
    assert_eq!(statement["predicate"]["report"]["counts"]["passed"], 1);
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
    assert_eq!(
        second["output"],
        json!(format!(
            "branch semel/small-attempt-3 {}",
            site.git(&["rev-parse", "semel/small-attempt-3"])
        ))
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

#[test]
fn failed_tests_are_a_signed_refusal_and_tried_again_only_where_the_job_says_so() {
    let site = Site::new();
    site.agent("from semel_client import read, write\nd, s = read('src/lib.rs')\nwrite('src/lib.rs', d + b'//test bad fails\\n', s, 'k')\n");
    let refusal = site.refused(RUN, 23);
    assert_eq!(refusal["code"], "tests_failed");
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
    let generations: std::collections::BTreeSet<&str> = signed
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

fn last_draft(site: &Site) -> Value {
    let drafts = site
        .volumes()
        .into_iter()
        .filter(|volume| volume["role"] == "draft");
    drafts.max_by_key(|draft| draft["attempt"].as_u64()).unwrap()
}

#[test]
fn an_agent_that_fails_or_overstays_leaves_a_quarantined_draft() {
    let site = Site::new();
    site.agent("import sys\nsys.exit(3)\n");
    let refusal = site.refused(RUN, 3);
    assert_eq!(
        (text(&refusal["code"]), text(&refusal["reason"])),
        ("dirty_volume", "agent_failed")
    );
    let draft = last_draft(&site);
    assert_eq!(
        (text(&draft["state"]), text(&draft["dirty"])),
        ("quarantined", "agent_failed")
    );
    let refusal = site.refused(&["seal", text(&draft["generation"])], 3);
    assert_eq!(refusal["code"], "dirty_volume");

    // Half a lockfile, a child in a session of its own, and no end.
    site.job("timeout = \"60s\" => timeout = \"2s\"");
    site.agent(
        "import subprocess, time\nfrom semel_client import read, write\nlock, digest = read('Cargo.lock')\n\
         write('Cargo.lock', lock[: len(lock) * 2 // 5], digest, key='half')\n\
         subprocess.Popen(['sleep', '300'], start_new_session=True)\ntime.sleep(300)\n",
    );
    let since = Instant::now();
    let refusal = site.refused(RUN, 24);
    assert_eq!(refusal["code"], "timed_out");
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    assert!(
        processes_with(&site.marker).is_empty(),
        "nothing is left when it returns"
    );
    let draft = last_draft(&site);
    assert_eq!(
        (text(&draft["state"]), text(&draft["dirty"])),
        ("quarantined", "timed_out")
    );
    site.refused(&["seal", text(&draft["generation"])], 3);
    assert!(site.certificates().is_empty());
    site.at_rest();
}

#[test]
fn a_leftover_environment_is_refused_by_name() {
    let site = Site::new();
    site.agent("import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'venv', '--without-pip', 'leftover'], check=True)\n");
    let refusal = site.refused(RUN, 21);
    assert_eq!(refusal["code"], "tree_not_empty");
    assert!(refusal["names"].to_string().contains("leftover"), "{refusal}");
    site.at_rest();
}

/// An ignore rule that the agent brings along hides nothing: no merge would hold what it names.
#[test]
fn an_entry_that_its_own_rules_ignore_is_refused() {
    let site = Site::new();
    site.agent(
        "open('.gitignore', 'a').write('hidden.txt\\n')\nopen('hidden.txt', 'w').write('x')\n\
         open('ignored.txt', 'w').write('x')\n",
    );
    let refusal = site.refused(RUN, 28);
    assert_eq!(
        (text(&refusal["code"]), text(&refusal["reason"])),
        ("tree_mismatch", "ignored_entry")
    );
    assert_eq!(
        refusal["names"],
        json!(["hidden.txt"]),
        "what the base ignores was never sealed"
    );
    site.at_rest();
}

#[test]
fn a_half_written_lockfile_is_refused_though_the_agent_ended_clean() {
    let site = Site::new();
    site.agent(
        "from semel_client import read, write\nlock, digest = read('Cargo.lock')\n\
         write('Cargo.lock', lock[: len(lock) * 3 // 5], digest, key='half')\n",
    );
    let refusal = site.refused(RUN, 20);
    assert_eq!(refusal["code"], "lock_incomplete");
    site.at_rest();
}

#[test]
fn an_agent_reaches_neither_journal_nor_keys_and_cannot_approve_itself() {
    let site = Site::new();
    let burglar =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/real/agents/burglar.py");
    let state = site.home.state();
    // A key to steal.
    assert!(site.run(&["key", "new"]).status.success());
    site.job(&format!(
        "\"~/agent.py\"] => \"~/agent.py\", \"{}\"]\n\"agent.py\" = \"agent.py\" => \"agent.py\" = \"{}\"",
        state.display(),
        burglar.display()
    ));
    let refusal = site.refused(RUN, 3);
    assert_eq!(refusal["reason"], "agent_failed");
    let draft = last_draft(&site);
    let output = state
        .join("volumes/small")
        .join(text(&draft["generation"]))
        .join("work/stdout");
    let output = std::fs::read_to_string(output).unwrap();
    assert_eq!(output.lines().count(), 7, "{output}");
    for line in output.lines() {
        let held =
            line.ends_with(": ENOENT") || line.ends_with(": EACCES") || line.ends_with("401 unauthorized");
        assert!(held, "{line}");
    }
    assert_eq!(output.matches("401 unauthorized").count(), 2, "{output}");
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
    let mut command = crate::harness::bare(&["run", inside.to_str().unwrap(), "--state"]);
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
    assert!(site.volumes().is_empty(), "nothing began");
    // Inside of a job, the environment names no state root.
    let mut command = crate::harness::bare(&["run", "job.toml"]);
    command
        .env("HOME", site.home.path())
        .env("SEMEL_JOB", "small")
        .current_dir(site.home.path());
    let out = command.output().unwrap();
    assert_eq!(out.status.code(), Some(78), "{}", said(&out));
    assert!(!site.at(".local").exists());
}

/// Everything that a killed run may have left is settled by the next one: it finishes, with one certificate, one
/// branch, one effect a generation, and nothing left running.
#[test]
fn a_run_that_is_killed_at_any_point_finishes_when_it_is_run_again() {
    let points = site_points();
    assert!(points.len() >= 18, "{points:?}");
    for point in &points {
        let site = Site::new();
        let out = site.run(&["run", "job.toml", "--crash-at", point]);
        assert_eq!(
            out.status.signal(),
            Some(libc::SIGKILL),
            "{point}: {}",
            said(&out)
        );
        assert!(
            wait_until(Duration::from_secs(10), || processes_with(&site.marker)
                .is_empty()),
            "{point}: the agent outlives its run"
        );
        let done = site.json(RUN);
        assert_eq!(done["status"], "certified", "{point}");
        assert_eq!(site.passes(), 1, "{point}");
        assert_eq!(site.certificates().len(), 1, "{point}");
        assert_eq!(
            done["tree"],
            json!(site.git(&["rev-parse", "semel/small^{tree}"])),
            "{point}"
        );
        assert_eq!(
            site.git(&["for-each-ref", "--format=%(refname)"]),
            "refs/heads/main\nrefs/heads/semel/small"
        );
        let lib = site.git(&["show", "semel/small:src/lib.rs"]);
        assert_eq!(lib.matches("more holds").count(), 1, "{point}");
        // The agent's stage alone is never continued.
        let drafts = site.volumes().iter().filter(|v| v["role"] == "draft").count();
        let killed_agent = ["draft_opened", "drafted", "agent_ended"].contains(&point.as_str());
        assert_eq!(drafts, if killed_agent { 2 } else { 1 }, "{point}");
        let cert = site.volumes().iter().filter(|v| v["role"] == "cert").count();
        let killed_cert = [
            "cert_opened",
            "taken",
            "installed",
            "recorded",
            "tested",
            "stated",
        ]
        .contains(&point.as_str());
        assert_eq!(cert, if killed_cert { 2 } else { 1 }, "{point}");
        if killed_cert {
            let earlier = &site.certificates()[0]["predicate"]["earlier"];
            assert_eq!(
                earlier.as_array().unwrap().len(),
                1,
                "{point}: the attempt that died is named"
            );
        }
        assert_eq!(site.json(RUN), done, "{point}");
        site.at_rest();
    }
}

fn site_points() -> Vec<String> {
    let site = Site::new();
    let refusal = site.refused(&["run", "job.toml", "--crash-at", "nowhere"], 64);
    let names = refusal["names"].as_array().unwrap().iter().skip(1);
    names.map(|name| text(name).to_owned()).collect()
}

/// The journal's word comes before the mark on the disk: what a kill left between is mended, not refused.
#[test]
fn a_draft_whose_mark_outlived_its_clean_end_goes_on() {
    let site = Site::new();
    let out = site.run(&["run", "job.toml", "--crash-at", "draft_ended"]);
    assert_eq!(out.status.signal(), Some(libc::SIGKILL));
    let draft = last_draft(&site);
    let meta = site
        .home
        .state()
        .join("volumes/small")
        .join(text(&draft["generation"]))
        .join("meta");
    std::fs::write(meta.join("dirty"), "").unwrap();
    assert_eq!(site.json(RUN)["status"], "certified");
    assert_eq!(site.volumes().iter().filter(|v| v["role"] == "draft").count(), 1);
}

const SLEEPER: &str = "import subprocess, time\nsubprocess.Popen(['sleep', '300'], start_new_session=True)\n\
    open('begun', 'w').close()\ntime.sleep(300)\n";

fn sleeping(site: &Site, agent: &str) -> crate::harness::Spoken {
    site.agent(agent);
    let run = site.spawn(RUN);
    assert!(run.hears("agent    python3"));
    let begun = || {
        let drafts = std::fs::read_dir(site.home.state().join("volumes/small"))
            .into_iter()
            .flatten();
        let newest = drafts.flatten().map(|draft| draft.path()).max();
        newest.is_some_and(|draft| draft.join("vol/tree/begun").exists())
    };
    assert!(wait_until(Duration::from_secs(20), begun));
    assert!(wait_until(Duration::from_secs(20), || processes_with(
        &site.marker
    )
    .len()
        >= 2));
    run
}

#[test]
fn a_killed_agent_is_never_continued_and_never_left_alive() {
    let site = Site::new();
    let mut run = sleeping(&site, SLEEPER);
    run.signal(libc::SIGKILL);
    run.ends(Duration::from_secs(10)).unwrap();
    assert!(wait_until(Duration::from_secs(10), || processes_with(
        &site.marker
    )
    .is_empty()));
    let killed = text(&last_draft(&site)["generation"]).to_owned();
    site.agent("from semel_client import read, write\nd, s = read('src/lib.rs')\nwrite('src/lib.rs', d + b'//test more holds\\n', s, 'k')\n");
    let done = site.json(RUN);
    assert_eq!(done["status"], "certified");
    let volumes = site.volumes();
    let old = volumes.iter().find(|v| v["generation"] == json!(killed)).unwrap();
    assert_eq!(
        (text(&old["state"]), text(&old["dirty"])),
        ("quarantined", "owner_died")
    );
    assert!(
        site.home
            .state()
            .join("volumes/small")
            .join(&killed)
            .join("vol/tree/begun")
            .exists(),
        "kept for salvage"
    );
    site.at_rest();
}

#[test]
fn a_signal_ends_the_agent_and_says_which_it_was() {
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let site = Site::new();
        let mut run = sleeping(&site, SLEEPER);
        run.signal(signal);
        assert_eq!(run.ends(Duration::from_secs(15)).unwrap().code(), Some(code));
        assert!(
            processes_with(&site.marker).is_empty(),
            "nothing is left when it returns"
        );
        let draft = last_draft(&site);
        assert_eq!(
            (text(&draft["state"]), text(&draft["dirty"])),
            ("quarantined", "cancelled")
        );
        site.at_rest();
    }
}

#[test]
fn a_second_signal_kills_the_agent_at_once() {
    let site = Site::new();
    let agent = format!("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SLEEPER}");
    let mut run = sleeping(&site, &agent);
    let since = Instant::now();
    run.signal(libc::SIGTERM);
    assert!(
        run.ends(Duration::from_millis(500)).is_none(),
        "it gets its grace"
    );
    run.signal(libc::SIGTERM);
    assert_eq!(run.ends(Duration::from_secs(10)).unwrap().code(), Some(143));
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
    site.at_rest();
}

#[test]
fn a_person_cancels_from_another_terminal() {
    let site = Site::new();
    let mut run = sleeping(&site, SLEEPER);
    let busy = site.refused(RUN, 32);
    assert_eq!(busy["code"], "volume_busy");
    let told = site.json(&["cancel", "small"]);
    assert_eq!(told["status"], "told");
    assert_eq!(run.ends(Duration::from_secs(15)).unwrap().code(), Some(143));
    site.at_rest();
    assert_eq!(site.refused(&["cancel", "small"], 17)["code"], "not_found");
    // Of a run that was killed, it ends what is left.
    let mut run = sleeping(&site, SLEEPER);
    run.signal(libc::SIGKILL);
    run.ends(Duration::from_secs(10)).unwrap();
    assert_eq!(site.json(&["cancel", "small"])["status"], "ended");
    site.refused(&["cancel", "small"], 17);
    site.at_rest();
}

#[test]
fn a_cancelled_certification_signs_nothing() {
    let site = Site::new();
    site.job("test = [\"python3\", \"check.py\", \"{report}\"] => test = [\"python3\", \"-c\", \"import time; time.sleep(300)\", \"{report}\"]");
    let mut run = site.spawn(RUN);
    assert!(run.hears("record  "));
    assert!(wait_until(Duration::from_secs(20), || !processes_with(
        &site.marker
    )
    .is_empty()));
    run.signal(libc::SIGTERM);
    assert_eq!(run.ends(Duration::from_secs(15)).unwrap().code(), Some(143));
    assert!(processes_with(&site.marker).is_empty());
    assert!(site.certificates().is_empty());
    // Nor does one that is killed while the tests run; the next run certifies the same proposal.
    let mut run = site.spawn(RUN);
    assert!(run.hears("record  "));
    assert!(wait_until(Duration::from_secs(20), || !processes_with(
        &site.marker
    )
    .is_empty()));
    run.signal(libc::SIGKILL);
    run.ends(Duration::from_secs(10)).unwrap();
    assert!(wait_until(Duration::from_secs(10), || processes_with(
        &site.marker
    )
    .is_empty()));
    assert!(site.certificates().is_empty());
    site.job("");
    assert_eq!(site.json(RUN)["status"], "certified");
    site.at_rest();
}

#[test]
fn a_closed_pipe_kills_nothing() {
    let site = Site::new();
    let mut child = site
        .command(RUN)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(site.git(&["rev-parse", "semel/small^"]), site.base);
    site.at_rest();
}

/// An agent that is silent for longer than a transient daemon idles still finds its gateway.
#[test]
fn a_long_silent_agent_still_finds_its_gateway() {
    let site = Site::new();
    site.agent("import time\ntime.sleep(13)\nfrom semel_client import read, write\nd, s = read('src/lib.rs')\nwrite('src/lib.rs', d + b'//test more holds\\n', s, 'k')\n");
    assert_eq!(site.json(RUN)["status"], "certified");
}

/// Kills at moments that no point names: in the middle of fetch, install, tests, git's own work.
#[test]
fn a_run_that_is_killed_at_any_moment_finishes_when_it_is_run_again() {
    let site = Site::new();
    let mut killed = 0;
    for round in 0_u64..18 {
        let mut run = site.spawn(&["run", "job.toml", "--new-attempt"]);
        let ended = run.ends(Duration::from_millis(40 + 110 * round)).is_some();
        if !ended && round % 3 == 2 {
            run.signal(libc::SIGTERM);
            let status = run.ends(Duration::from_secs(15)).unwrap();
            assert!(
                matches!(status.code(), Some(0 | 143)),
                "round {round}: {status:?}"
            );
        } else if !ended {
            run.signal(libc::SIGKILL);
            run.ends(Duration::from_secs(10)).unwrap();
            killed += 1;
        }
        assert!(
            wait_until(Duration::from_secs(10), || processes_with(&site.marker)
                .is_empty()),
            "round {round}: left running"
        );
        let passes = site.passes();
        let done = site.json(RUN);
        assert_eq!(done["status"], "certified", "round {round}");
        assert!(site.passes() <= passes + 1, "round {round}");
        let statement = crate::harness::statement(text(&done["envelope"]).as_ref());
        assert_eq!(statement["predicate"]["verdict"], json!("pass"), "round {round}");
        let branch = text(&done["output"]).split(' ').nth(1).unwrap().to_owned();
        assert_eq!(
            json!(site.git(&["rev-parse", &format!("{branch}^{{tree}}")])),
            done["tree"],
            "round {round}"
        );
    }
    assert!(killed >= 6, "only {killed} runs were killed");
    site.at_rest();
}

/// The daemon that a run started may die under it: it is started again at its place, and the agent's call, sent again
/// with its key, has one effect.
#[test]
fn a_daemon_that_is_killed_under_a_run_loses_nothing() {
    for heard in [
        "draft    attempt",
        "agent    python3",
        "certify  attempt",
        "record   ",
    ] {
        let site = Site::new();
        let agent = std::fs::read_to_string(site.at("agent.py")).unwrap();
        site.agent(&format!(
            "import time\n{}",
            agent.replace("for _", "time.sleep(1)\nfor _")
        ));
        let mut run = site.spawn(RUN);
        assert!(run.hears(heard));
        let about: Value =
            serde_json::from_slice(&std::fs::read(site.home.state().join("daemon.json")).unwrap()).unwrap();
        crate::harness::signal(
            u32::try_from(about["pid"].as_u64().unwrap()).unwrap(),
            libc::SIGKILL,
        );
        let status = run.ends(Duration::from_secs(60)).expect("it ends");
        assert!(
            status.success() || heard != "agent    python3",
            "{heard}: {status:?}"
        );
        assert_eq!(site.json(RUN)["status"], "certified", "{heard}");
        let lib = site.git(&["show", "semel/small:src/lib.rs"]);
        assert_eq!(lib.matches("more holds").count(), 1, "{heard}");
        assert_eq!(site.passes(), 1, "{heard}");
        site.at_rest();
    }
}

#[test]
fn certify_holds_its_job_and_a_killed_one_is_in_nobodys_way() {
    let site = Site::new();
    let base = site.base.clone();
    let certify = |test: &str| -> Vec<String> {
        [
            "certify",
            "--job",
            "small",
            "--git",
            &base,
            "--repository",
            "repo",
            "--install",
            "cargo",
            "--test",
            test,
        ]
        .iter()
        .map(ToString::to_string)
        .collect()
    };
    let slow = certify("sleep 300 {report}");
    let slow: Vec<&str> = slow.iter().map(String::as_str).collect();
    let mut under_way = site.spawn(&slow);
    assert!(under_way.hears("record   "));
    // Neither a run nor another certification ends its volume under it.
    for args in [&slow[..], RUN] {
        assert_eq!(site.refused(args, 32)["code"], "volume_busy", "{args:?}");
    }
    assert!(under_way.child.try_wait().unwrap().is_none());
    under_way.signal(libc::SIGKILL);
    under_way.ends(Duration::from_secs(10)).unwrap();
    let good = certify("python3 check.py {report}");
    let good: Vec<&str> = good.iter().map(String::as_str).collect();
    let done = site.json(&good);
    assert_eq!(done["status"], "certified");
    assert_eq!(
        done["tree"],
        json!(site.git(&["rev-parse", &format!("{base}^{{tree}}")]))
    );
    let earlier = crate::harness::statement(text(&done["envelope"]).as_ref())["predicate"]["earlier"].clone();
    assert_eq!(
        earlier.as_array().unwrap().len(),
        1,
        "the attempt that was killed counts: {earlier}"
    );
    // A person ends one from another terminal.
    let mut under_way = site.spawn(&slow);
    assert!(under_way.hears("record   "));
    assert_eq!(site.json(&["cancel", "small"])["status"], "told");
    assert_eq!(under_way.ends(Duration::from_secs(15)).unwrap().code(), Some(143));
    site.at_rest();
}

/// Whatever an agent leaves in its tree is taken whole or refused by name; never a bug, never half.
#[test]
fn what_an_agent_leaves_is_taken_whole_or_refused_by_name() {
    let cases: &[(&str, &str, i32, &str)] = &[
        ("a fifo", "os.mkfifo('pipe')", 29, "proposal_refused"),
        (
            "a socket",
            "import socket; socket.socket(socket.AF_UNIX).bind('sock')",
            29,
            "proposal_refused",
        ),
        (
            "a link that leaves",
            "os.symlink('/etc/passwd', 'out')",
            29,
            "proposal_refused",
        ),
        (
            "a link that climbs",
            "os.symlink('../../../x', 'src/out')",
            29,
            "proposal_refused",
        ),
        ("a link inside", "os.symlink('lib.rs', 'src/other.rs')", 0, ""),
        (
            "a closed file",
            "open('closed', 'w').close(); os.chmod('closed', 0)",
            0,
            "",
        ),
        (
            "a closed directory",
            "os.mkdir('d'); open('d/f', 'w').close(); os.chmod('d', 0)",
            0,
            "",
        ),
        (
            "a setuid file",
            "open('s', 'w').close(); os.chmod('s', 0o4755)",
            0,
            "",
        ),
        ("a hard link", "os.link('src/lib.rs', 'src/twin.rs')", 0, ""),
        (
            "bytes that are no text",
            "open(b'\\xff\\xfe', 'w').close()",
            29,
            "proposal_refused",
        ),
        (
            "a nested repository",
            "subprocess.run(['git', 'init', '-q', 'sub'], check=True); open('sub/f', 'w').close()",
            0,
            "",
        ),
        ("its repository gone", "shutil.rmtree('.git')", 0, ""),
        (
            "its repository a link",
            "shutil.rmtree('.git'); os.symlink('/etc', '.git')",
            0,
            "",
        ),
        ("no lockfile", "os.remove('Cargo.lock')", 4, "no_lockfile"),
        (
            "a lockfile that is a link",
            "os.rename('Cargo.lock', 'real'); os.symlink('real', 'Cargo.lock')",
            7,
            "unknown_state",
        ),
        (
            "a directory that became a link",
            "os.rename('src', 'moved'); os.symlink('moved', 'src')",
            0,
            "",
        ),
        (
            "everything gone",
            "[shutil.rmtree(n) if os.path.isdir(n) else os.remove(n) for n in os.listdir('.')]",
            4,
            "no_lockfile",
        ),
        (
            "a process that stays",
            "subprocess.Popen(['sh', '-c', 'while :; do date >> late; sleep 0.01; done'], start_new_session=True); time.sleep(0.2)",
            0,
            "",
        ),
        (
            "endless words",
            "[print('x' * 65536) for _ in range(1000)]",
            0,
            "",
        ),
        ("its own end", "os.kill(os.getpid(), 9)", 3, "dirty_volume"),
        (
            "a build residue",
            "os.makedirs('other/target/debug'); open('other/target/CACHEDIR.TAG', 'w').write('Signature: 8a477f597d28d172789f06886806bc55')",
            0,
            "",
        ),
    ];
    let site = Site::new();
    for (name, code, exit, wire) in cases {
        site.agent(&format!("import os, shutil, subprocess, time\n{code}\n"));
        let out = site.run(&["run", "job.toml", "--new-attempt", "--json"]);
        let answer: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(out.status.code(), Some(*exit), "{name}: {}", said(&out));
        if *exit == 0 {
            let branch = text(&answer["output"]).split(' ').nth(1).unwrap().to_owned();
            let tree = site.git(&["rev-parse", &format!("{branch}^{{tree}}")]);
            assert_eq!(answer["tree"], json!(tree), "{name}");
        } else {
            assert_eq!(answer["code"], *wire, "{name}");
        }
        assert!(processes_with(&site.marker).is_empty(), "{name}");
    }
    site.at_rest();
}
