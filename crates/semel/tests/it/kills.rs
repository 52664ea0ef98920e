//! The main job under kills, signals and closed pipes: the next run finishes, nothing is repeated, nothing left alive.

use crate::harness::{
    RUN, SLEEPER, Site, last_draft, processes_with, said, signal, sleeping, statement, text, wait_until,
};
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Everything that a killed run may have left is settled by the next one: it finishes, with one certificate, one
/// branch, one effect a generation, and nothing left running.
#[test]
fn a_run_that_is_killed_at_any_point_finishes_when_it_is_run_again() {
    let points = site_points();
    assert!(points.len() >= 21, "{points:?}");
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
            "bound",
            "fetched",
            "installed",
            "recorded",
            "tested",
            "verified",
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

/// Kills at moments that no point names: in the middle of fetch, install, tests, git's own work.
#[test]
fn a_run_that_is_killed_at_any_moment_finishes_when_it_is_run_again() {
    const ROUNDS: u32 = 18;
    let site = Site::new();
    // The moments are spread over what a whole run takes here and now; the second one is warm, as the others will be.
    site.json(RUN);
    let began = Instant::now();
    site.json(&["run", "job.toml", "--new-attempt"]);
    let whole = began.elapsed();
    let mut killed = 0;
    for round in 0..ROUNDS {
        let mut run = site.spawn(&["run", "job.toml", "--new-attempt"]);
        let ended = run.ends(whole * (round + 1) / (ROUNDS + 2)).is_some();
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
        let statement = statement(text(&done["envelope"]).as_ref());
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

/// What a run asked of the daemon just before it was killed may be carried out when the next run is there already.
#[test]
fn a_run_that_is_killed_while_its_daemon_stands_still_is_in_nobodys_way() {
    const ROUNDS: u32 = 8;
    let site = Site::new();
    let began = Instant::now();
    site.json(RUN);
    let whole = began.elapsed();
    for round in 0..ROUNDS {
        let mut run = site.spawn(&["run", "job.toml", "--new-attempt"]);
        run.ends(whole * (round + 1) / (2 * ROUNDS));
        let daemon = daemon_of(&site);
        signal(daemon, libc::SIGSTOP);
        // It asks whatever comes next of a daemon that does not answer.
        run.ends(Duration::from_millis(50));
        run.signal(libc::SIGKILL);
        run.ends(Duration::from_secs(10)).unwrap();
        let mut next = site.spawn(RUN);
        let taken = || {
            let said = std::fs::read_to_string(site.home.state().join("run/small.lock")).unwrap();
            said.split(' ').next() == Some(&next.child.id().to_string())
        };
        let has_the_job = wait_until(Duration::from_secs(60), taken);
        signal(daemon, libc::SIGCONT);
        assert!(has_the_job, "round {round}");
        let status = next.ends(Duration::from_secs(120)).expect("it ends");
        assert!(status.success(), "round {round}: {status:?}");
        assert_eq!(site.json(RUN)["status"], "certified", "round {round}");
    }
    site.at_rest();
}

fn daemon_of(site: &Site) -> u32 {
    let about = std::fs::read(site.home.state().join("daemon.json")).unwrap();
    let about: Value = serde_json::from_slice(&about).unwrap();
    u32::try_from(about["pid"].as_u64().unwrap()).unwrap()
}

/// Every request of a run says by which hold of the job it is made; those of an earlier hold come too late.
#[test]
fn what_was_sent_by_an_earlier_hold_is_refused() {
    let site = Site::new();
    site.json(RUN);
    let ask = |hold: &str| {
        let headers: &[(&str, &str)] = if hold.is_empty() {
            &[]
        } else {
            &[("semel-hold", hold)]
        };
        let verb = json!({"verb": "last_run", "job": "small"});
        site.home
            .try_admin_with("POST", "/v1/admin/journal", headers, &verb)
            .expect("an answer")
    };
    let stale = |hold: &str| {
        let reply = ask(hold);
        assert_eq!(
            (reply.status, reply.code(), reply.reason()),
            (409, "replay_conflict", "stale_generation"),
            "{hold}"
        );
    };
    let said = std::fs::read_to_string(site.home.state().join("run/small.lock")).unwrap();
    let last: u64 = said.split(' ').nth(1).unwrap().parse().unwrap();
    // The run told the daemon its number.
    stale(&format!("small {}", last - 1));
    assert_eq!(ask(&format!("small {last}")).status, 200);
    assert_eq!(ask("").status, 200, "nothing else asks by a hold");
    assert_eq!(ask("other 1").status, 200, "each job by itself");
    assert_eq!(ask(&format!("small {}", last + 1)).status, 200);
    stale(&format!("small {last}"));
    assert_eq!(ask("small").code(), "bad_input");
    // The next run has a later one.
    std::fs::write(
        site.home.state().join("run/small.lock"),
        format!("1 {}", last + 1),
    )
    .unwrap();
    assert_eq!(
        site.json(&["run", "job.toml", "--new-attempt"])["status"],
        "certified"
    );
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
        signal(daemon_of(&site), libc::SIGKILL);
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
    let slow = certify("tail -f /dev/null {report}");
    let slow: Vec<&str> = slow.iter().map(String::as_str).collect();
    let mut under_way = site.spawn(&slow);
    assert!(under_way.hears("record   "));
    // Neither a run nor another certification ends its volume under it.
    for args in [&slow[..], RUN] {
        assert_eq!(site.refused(args, 32)["code"], "volume_busy", "{args:?}");
    }
    assert!(under_way.child.try_wait().unwrap().is_none());
    under_way.signal(libc::SIGKILL);
    let status = under_way.ends(Duration::from_secs(10)).unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    let good = certify("python3 check.py {report}");
    let good: Vec<&str> = good.iter().map(String::as_str).collect();
    let done = site.json(&good);
    assert_eq!(done["status"], "certified");
    assert_eq!(
        done["tree"],
        json!(site.git(&["rev-parse", &format!("{base}^{{tree}}")]))
    );
    let earlier = statement(text(&done["envelope"]).as_ref())["predicate"]["earlier"].clone();
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

#[test]
fn a_job_file_that_changed_ends_the_unfinished_run_of_the_old_one() {
    let site = Site::new();
    let out = site.run(&["run", "job.toml", "--crash-at", "sealed"]);
    assert_eq!(out.status.signal(), Some(libc::SIGKILL));
    site.job("timeout = \"50s\" => timeout = \"49s\"");
    assert_eq!(site.json(RUN)["status"], "certified");
    assert_eq!(site.volumes().iter().filter(|v| v["role"] == "draft").count(), 2);
    site.at_rest();
}
