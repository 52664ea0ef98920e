//! `semel certify` killed in every phase, and tests that do not end.

use super::lab::Liar;
use crate::cases::lab::Lab;
use crate::harness::{Site, Spoken, certifies, processes_with, said, statement, text, wait_until};
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

/// The points of a certification, by phase: open, take, bind, fetch, install, record, test, verify, sign.
const PHASES: [(&str, &str); 12] = [
    ("open", "cert_opened"),
    ("take", "taken"),
    ("bind", "bound"),
    ("fetch", "fetched"),
    ("install", "installed"),
    ("record", "recorded"),
    ("test", "tested"),
    ("verify", "verified"),
    ("sign", "stated"),
    ("sign", "judged"),
    ("sign", "cert_ended"),
    ("sign", "published"),
];

fn newest(site: &Site) -> Value {
    let certs = site
        .volumes()
        .into_iter()
        .filter(|volume| volume["role"] == "cert");
    certs.max_by_key(|volume| volume["attempt"].as_u64()).unwrap()
}

/// What becomes of a generation whose owner was killed.
const DIED: (&str, Option<&str>) = ("quarantined", Some("owner_died"));
/// Its verdict was in the journal when the owner was killed.
const JUDGED: (&str, Option<&str>) = ("clean", None);

/// The generation that was killed is nobody's any more: ended, and sealed by nobody.
fn is_refused(site: &Site, generation: &str, ended: (&str, Option<&str>)) {
    let shown = site.json(&["volume", "show", generation]);
    let volume = &shown["volume"];
    assert_eq!(
        (text(&volume["state"]), volume["dirty"].as_str()),
        ended,
        "{shown}"
    );
    assert!(!site.run(&["seal", generation]).status.success());
}

#[test]
fn a_certification_that_is_killed_in_any_phase_signs_nothing_and_blocks_nothing() {
    for (phase, point) in PHASES {
        let site = Site::new();
        let args = certifies(&site.base);
        let out = site.run(&[&args[..], &["--crash-at", point]].concat());
        assert_eq!(
            out.status.signal(),
            Some(libc::SIGKILL),
            "{phase} {point}: {}",
            said(&out)
        );
        let gone = || processes_with(&site.marker).is_empty();
        assert!(wait_until(Duration::from_secs(10), gone), "{phase}");
        let killed = text(&newest(&site)["generation"]).to_owned();
        let signed = usize::from(point == "published");
        assert_eq!(
            site.certificates().len(),
            signed,
            "{phase} {point}: no signed statement"
        );
        // As if it had been killed in the middle of a file that it signed.
        let certificates = site.home.state().join("certificates");
        std::fs::create_dir_all(&certificates).unwrap();
        std::fs::write(certificates.join(".new-00112233aabbccdd"), "{\"payload\":").unwrap();
        let done = site.json(&args);
        assert_eq!(done["status"], "certified", "{phase} {point}");
        let unfinished = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.unwrap().file_name();
            name.to_str().unwrap().starts_with(".new-")
        };
        assert!(!std::fs::read_dir(&certificates).unwrap().any(unfinished));
        assert_ne!(done["generation"], json!(killed), "{phase} {point}");
        let judged = ["judged", "cert_ended", "published"].contains(&point);
        is_refused(&site, &killed, if judged { JUDGED } else { DIED });
        let statement = statement(text(&done["envelope"]).as_ref());
        let earlier = statement["predicate"]["earlier"].as_array().unwrap().clone();
        assert_eq!(earlier.len(), 1, "{phase} {point}: {earlier:?}");
        assert_eq!(earlier[0]["generation"], json!(killed), "{phase} {point}");
        // Signed is what had ended; nothing of any form stands of a generation that was still open.
        let stands = std::fs::read_dir(site.home.state().join("certificates")).unwrap();
        let stands = stands.filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_str().unwrap().contains(&killed)
        });
        assert_eq!(
            stands.count(),
            if point == "published" { 3 } else { 0 },
            "{phase} {point}"
        );
        site.at_rest();
    }
}

/// Killed while a real tool is at work, at what it is asked first, in between and last.
#[test]
fn a_certification_that_is_killed_under_a_tool_signs_nothing_and_blocks_nothing() {
    let Some(lab) = Lab::with_uv(&json!([["leaf", "1.0", {"leaf/__init__.py": "LIMIT = 1\n"}]])) else {
        return;
    };
    lab.project("\"leaf==1.0\"", "import leaf");
    lab.uv(&["lock"]);
    let liar = Liar::new(lab);
    let marker = format!("slow-{}", liar.lab.site.home.path().display());
    for when in [" export --frozen ", " venv ", " pip sync "] {
        liar.uv_at(when, &format!("sh -c \"sleep 300; exit\" \"{marker}\""));
        let commit = liar.lab.site.commit_all("proposal");
        let args = [
            "certify",
            "--job",
            "case",
            "--repository",
            "repo",
            "--git",
            &commit,
            "--install",
            "uv",
            "--test",
            "python run.py {report}",
        ];
        let child = liar
            .command(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut killed = Spoken::of(child);
        let busy = || !processes_with(&marker).is_empty();
        assert!(wait_until(Duration::from_secs(60), busy), "{when}");
        let generation = liar.newest().file_name().unwrap().to_str().unwrap().to_owned();
        killed.signal(libc::SIGKILL);
        killed.ends(Duration::from_secs(10)).unwrap();
        let gone = || processes_with(&marker).is_empty();
        assert!(
            wait_until(Duration::from_secs(10), gone),
            "{when}: the tool outlives it"
        );
        let passes = liar.lab.site.passes();
        liar.honest();
        let out = liar.certify("uv", "python run.py {report}");
        assert!(out.status.success(), "{when}: {}", said(&out));
        assert_eq!(
            liar.lab.site.passes(),
            passes + 1,
            "{when}: of the killed one none"
        );
        is_refused(&liar.lab.site, &generation, DIED);
    }
}

/// Leaves its session, forks twice, hears no polite signal, and writes; its parent waits for ever.
const DAEMON: &str = r#"
import os, pathlib, signal, sys, time
for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(n, signal.SIG_IGN)
out = pathlib.Path("out")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3, 64):
            try: os.close(fd)
            except OSError: pass
        while True:
            (out / "alive").write_text("x")
            time.sleep(0.01)
    os._exit(0)
time.sleep(300)
"#;

#[test]
fn tests_that_do_not_end_are_ended_with_whatever_they_left() {
    let site = Site::new();
    std::fs::write(site.repository().join("daemon.py"), DAEMON).unwrap();
    let commit = site.commit_all("a daemon");
    site.job(
        "[\"python3\", \"check.py\", \"{report}\"] => [\"python3\", \"daemon.py\", \"{report}\"]\n\
         timeout = \"50s\" => timeout = \"3s\"",
    );
    let job = site.at("job.toml");
    let text_of_job = std::fs::read_to_string(&job).unwrap();
    let with_cache = text_of_job.replace("[output]", "caches = [\"out\"]\n[output]");
    std::fs::write(&job, with_cache).unwrap();
    let args = certifies(&commit);
    let refusal = site.refused(&args, 24);
    assert_eq!(refusal["code"], "timed_out");
    assert_eq!(
        processes_with(&site.marker),
        Vec::<u32>::new(),
        "dead when it returns"
    );
    let volume = newest(&site);
    let generation = text(&volume["generation"]).to_owned();
    assert_eq!(text(&volume["state"]), "quarantined", "{volume}");
    assert!(volume["dirty"].is_string(), "{volume}");
    // It was at work, and it is not any more.
    let place = site.home.state().join("volumes/small").join(&generation);
    let found = std::process::Command::new("find")
        .arg(&place)
        .args(["-name", "alive"])
        .output()
        .unwrap();
    assert!(!found.stdout.is_empty(), "it was at work");
    assert_eq!(site.passes(), 0);
    site.job("");
    assert_eq!(site.json(&args)["status"], "certified");
    site.at_rest();
}
