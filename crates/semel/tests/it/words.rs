//! What a person reads, and what may be typed: advice that fits the case, numbers that say what they count.

use crate::harness::{Home, Site, bare, said, text};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Output;

/// Gives exit status, code with its reason, and what to do next, of a command that is refused.
fn refusal(out: &Output) -> (Option<i32>, String, String) {
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    let line = |mark: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(mark));
        found.unwrap_or_else(|| panic!("{}", said(out))).trim().to_owned()
    };
    let error = line("error:");
    let name = error.split(": ").next().unwrap_or_default().to_owned();
    (out.status.code(), name, line("next:"))
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn what_helps_fits_the_case() {
    let home = Home::new();
    let out = home.run(&["key", "show"]);
    assert_eq!(
        refusal(&out),
        (
            Some(78),
            "bad_config (no_signing_key)".to_owned(),
            "make a signing key with semel key new".to_owned()
        )
    );
    assert!(home.run(&["key", "new"]).status.success());
    let (exit, name, next) = refusal(&home.run(&["key", "new"]));
    assert_eq!(
        (exit, name.as_str()),
        (Some(15), "precondition_failed (key_exists)")
    );
    assert!(!next.contains("new key"), "{next}");
    let out = home.run(&["gate", "--certificate", "x", "--commit", "y"]);
    assert_eq!(out.status.code(), Some(64));
    for way in ["--policy", "--base"] {
        assert!(stderr(&out).contains(way), "{}", stderr(&out));
    }
    // Both are given; what is wrong is the path.
    let wipe = ["contract", "wipe", "--generation", "g-1", "--workspace", "other"];
    let (exit, name, next) = refusal(&home.run(&wipe));
    assert_eq!((exit, name.as_str()), (Some(2), "missing_identity (workspace)"));
    assert!(next.contains("absolute"), "{next}");
    // A file of a key, a line of one, another kind of one.
    for (given, name) in [
        (
            "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ== me",
            "bad_input (key_kind)",
        ),
        ("ssh-ed25519 AAAA", "bad_input"),
        ("nothing-there.pub", "not_found"),
    ] {
        let (_, told, _) = refusal(&home.run(&["key", "trust", given]));
        assert_eq!(told, name, "{given}");
    }
}

#[test]
fn whom_this_host_trusts_is_said_as_it_changes() {
    let home = Home::new();
    home.json(&["key", "new"]);
    let line = home.json(&["key", "show"])["ssh"].as_str().unwrap().to_owned();
    for (args, said) in [
        (&["key", "trust", "--remove", &line][..], "was not trusted"),
        (&["key", "trust", &line], "is trusted"),
        (&["key", "trust", &line], "was trusted before"),
        (&["key", "trust", "--remove", &line], "is trusted no longer"),
    ] {
        let out = home.run(args);
        assert!(out.status.success());
        assert!(
            stderr(&out).trim_end().ends_with(said),
            "{args:?}: {}",
            stderr(&out)
        );
    }
}

/// A state root is typed as any other path; in the operator's file it stands whole.
#[test]
fn a_state_root_is_named_from_where_one_stands() {
    let home = Home::new();
    let run = |args: &[&str]| bare(args).current_dir(home.path()).output().unwrap();
    let out = run(&["--state", "here/state", "key", "new"]);
    assert!(out.status.success(), "{}", said(&out));
    assert!(home.path().join("here/state/keys/signing.pem").is_file());
    assert_eq!(refusal(&run(&["--state", "", "key", "show"])).0, Some(64));
    std::fs::write(home.path().join("c.toml"), "state = \"here/state\"\n").unwrap();
    assert_eq!(refusal(&run(&["--config", "c.toml", "key", "show"])).0, Some(78));
}

#[test]
fn the_limits_in_force_are_shown() {
    let home = Home::new();
    let config = home.path().join("c.toml");
    std::fs::write(
        &config,
        "[limits]\nfile_bytes = 1000000\nmemory_bytes = 536870912\n[quota]\nvolume_bytes = 3000000\n",
    )
    .unwrap();
    let config = config.to_str().unwrap();
    let status = home.json(&["--config", config, "status"]);
    assert_eq!(
        (&status["limits"]["file_bytes"], &status["limits"]["memory_bytes"]),
        (&json!(1_000_000), &json!(536_870_912))
    );
    let users = [json!("own"), json!("caller"), json!("root"), Value::Null];
    assert!(users.contains(&status["user"]), "{status}");
    let doctor = home.json(&["--config", config, "doctor"]);
    let found = |name: &str| {
        let findings = doctor["findings"].as_array().unwrap();
        let finding = findings.iter().find(|finding| finding["name"] == name);
        text(&finding.expect(name)["found"]).to_owned()
    };
    for name in ["uv", "pip3", "poetry", "npm", "pnpm", "yarn", "cargo"] {
        assert!(!found(name).is_empty());
    }
    let bounds = "512 MiB of memory, files of 1000000 bytes";
    assert!(found("limits").ends_with(bounds), "{}", found("limits"));
    assert_eq!(found("quota"), "3000000 bytes a volume");
    let out = stdout(&home.run(&["--config", config, "status"]));
    let line = out.lines().find(|line| line.starts_with("limits   ")).unwrap();
    assert!(line.contains(bounds), "{line}");
    // A daemon that was started otherwise has its own.
    let _daemon = home.serve(&["--config", config]);
    let other = home.json(&["status"]);
    assert_eq!(other["daemon"]["limits"], status["limits"]);
    let out = stdout(&home.run(&["status"]));
    let lines = out.lines().filter(|line| line.starts_with("limits   "));
    assert_eq!(lines.filter(|line| line.contains(bounds)).count(), 1, "{out}");
    let out = stdout(&home.run(&["--config", config, "status"]));
    assert_eq!(
        out.lines().filter(|line| line.starts_with("limits   ")).count(),
        1,
        "{out}"
    );
    // Both were found out in the same way.
    let own = found("user").starts_with("a user of its own");
    assert_eq!(own, status["user"] == "own", "{status}");
}

#[test]
fn a_volume_is_shown_for_people_and_arguments_are_asked_for() {
    let home = Home::new();
    let _daemon = home.serve(&[]);
    let from = home.path().join("from");
    std::fs::create_dir_all(from.join("d/e")).unwrap();
    std::fs::write(from.join("d/e/f"), "x").unwrap();
    let opened = home.json(&["volume", "open", "job", "--from", from.to_str().unwrap()]);
    let generation = text(&opened["generation"]);
    let call = |args: &[&str]| {
        let mut command = home.command(&[&["call"], args].concat());
        command
            .env("SEMEL_TOKEN", text(&opened["token"]))
            .output()
            .unwrap()
    };
    for tool in ["list_directory", "delete_file"] {
        let out = call(&[tool]);
        assert_eq!(out.status.code(), Some(64), "{}", said(&out));
        assert!(stderr(&out).contains("-a NAME=VALUE"), "{}", stderr(&out));
    }
    let out = call(&["list_directory", "-a", "path=."]);
    assert!(out.status.success(), "{}", said(&out));
    let out = stdout(&home.run(&["volume", "show", generation]));
    for line in [
        "attempt     1 of the job",
        "state       open",
        "lies on     dir",
        "owner       operator",
    ] {
        assert!(out.lines().any(|one| one == line), "{line}\n{out}");
    }
    let opened_at = out
        .lines()
        .find_map(|line| line.strip_prefix("opened      "))
        .unwrap();
    assert!(
        opened_at.starts_with("20") && opened_at.ends_with('Z'),
        "{opened_at}"
    );
    home.json(&["volume", "end", generation]);
    let to = home.path().join("saved");
    let out = home.run(&["volume", "salvage", generation, "--to", to.to_str().unwrap()]);
    assert!(
        stdout(&out).contains("1 file, 0 links and 2 directories of "),
        "{}",
        stdout(&out)
    );
    let sealed = home.json(&["seal", generation]);
    let digest = text(&sealed["proposal"]);
    let into = home.path().join("saved").display().to_string();
    let (exit, name, next) = refusal(&home.run(&["unseal", digest, &into]));
    assert_eq!((exit, name.as_str()), (Some(15), "precondition_failed (exists)"));
    assert_eq!(next, "name a place where nothing is yet");
}

fn certify<'a>(site: &'a Site, more: &[&'a str]) -> Output {
    let args = [
        "certify",
        "--from",
        "job.toml",
        "--repository",
        "repo",
        "--git",
        &site.base,
    ];
    site.run(&[&args[..], more].concat())
}

#[test]
fn a_certification_names_its_files_and_its_numbers() {
    let site = Site::new();
    let out = certify(&site, &["--json"]);
    assert!(out.status.success(), "{}", said(&out));
    let done: Value = serde_json::from_slice(&out.stdout).unwrap();
    for (name, end) in [
        ("envelope", ".dsse.json"),
        ("sigstore_bundle", ".sigstore.json"),
        ("ssh_signature", ".sig"),
        ("install_record", "install-record.json"),
    ] {
        let place = text(&done[name]);
        assert!(
            place.ends_with(end) && Path::new(place).is_file(),
            "{name}: {place}"
        );
    }
    let told = stderr(&out);
    assert!(told.contains("attempt 2 of job small in generation g-"), "{told}");
    let sign = format!("sign     certificate {}", text(&done["certificate"]));
    assert_eq!(told.lines().last(), Some(sign.as_str()));
    let shown = site.json(&["key", "show"]);
    let policy = format!(
        "[gate]\nkeys = [\"{}\"]\nrecipe = \"any\"\nmax_attempts = 1\n",
        text(&shown["ssh"])
    );
    std::fs::write(site.at("policy.toml"), policy).unwrap();
    let gate = [
        "gate",
        "--certificate",
        text(&done["envelope"]),
        "--repository",
        "repo",
    ];
    let verdict = site.json(&[&gate[..], &["--commit", &site.base, "--policy", "policy.toml"]].concat());
    let checks = verdict["verdict"]["checks"].as_array().unwrap();
    let attempts = checks.iter().find(|check| check["name"] == "attempts").unwrap();
    assert_eq!(
        (text(&attempts["expected"]), text(&attempts["actual"])),
        ("at most 1 try at this proposal", "1")
    );
}

/// A runner that could make nothing of its arguments says so on stderr: that is told, and where all of it is kept.
#[test]
fn a_refused_test_run_tells_what_the_runner_said() {
    let site = Site::new();
    let script = "echo 'ERROR: not found: and' >&2; echo '<testsuites/>' > \"$1\"; exit 4\n";
    std::fs::write(site.repository().join("odd.sh"), script).unwrap();
    std::fs::write(
        site.repository().join("src/lib.rs"),
        "#[test]\nfn holds() {}\n//test first fails\n",
    )
    .unwrap();
    let commit = site.commit_all("a runner that fails");
    let refused = |command: &str, code: i32| {
        let args = [
            "certify",
            "--from",
            "job.toml",
            "--repository",
            "repo",
            "--git",
            &commit,
        ];
        site.refused(&[&args[..], &["--test", command]].concat(), code)
    };
    let last = || site.volumes().pop().unwrap();
    let odd = refused("sh odd.sh {report}", 27);
    let generation = text(&last()["generation"]).to_owned();
    let kept = format!("what it printed is kept in reports/{generation}/ of the state root");
    let why = text(&odd["why"]);
    assert!(
        why.contains("exited with status 4") && why.contains(&kept),
        "{why}"
    );
    assert_eq!(odd["names"], json!(["ERROR: not found: and"]));
    assert_eq!(odd["reason"], "no_test_ran");
    let printed = site.home.state().join("reports").join(&generation).join("stderr");
    assert_eq!(
        std::fs::read_to_string(printed).unwrap(),
        "ERROR: not found: and\n"
    );
    assert_eq!(last()["dirty"], "certification_refused");
    // Failed tests are named, and what the runner printed stays where it is.
    let failed = refused("python3 check.py {report}", 23);
    assert_eq!(failed["names"], json!(["check::first"]));
    assert!(text(&failed["why"]).contains("reports/g-"), "{failed}");
}

#[test]
fn a_certification_past_its_deadline_is_quarantined_as_that() {
    let site = Site::new();
    let out = certify(
        &site,
        &["--test", "tail -f /dev/null {report}", "--timeout", "2s"],
    );
    assert_eq!(out.status.code(), Some(24), "{}", said(&out));
    assert_eq!(site.volumes().pop().unwrap()["dirty"], "timed_out");
}

/// Restorations that nobody was in the way of are no part of a failure.
#[test]
fn a_failed_run_tells_of_restorations_only_where_there_is_something_to_tell() {
    let site = Site::new();
    site.agent("raise SystemExit(3)\n");
    let out = site.run(&["run", "job.toml"]);
    assert_eq!(out.status.code(), Some(3), "{}", said(&out));
    assert!(!stderr(&out).contains("restore  "), "{}", stderr(&out));
}

/// What follows a refusal can be done, and helps.
#[test]
fn what_is_said_to_do_next_can_be_done() {
    let home = Home::new();
    let (exit, name, next) = refusal(&home.run(&["volume", "list"]));
    assert_eq!((exit, name.as_str()), (Some(17), "not_found (nothing_begun)"));
    assert!(next.contains("semel volume open"), "{next}");

    // A disk of one's own is marked: another generation alone does not help.
    let disk = home.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    std::fs::write(disk.join("Cargo.lock"), "version = 4\n").unwrap();
    let contract = |generation: &str, more: &[&str]| {
        let mut command = home.command(&[&["contract"], more].concat());
        command
            .env("WORKSPACE", &disk)
            .env("VOLUME_GENERATION", generation)
            .env("JOB_ATTEMPT", "1");
        command.output().unwrap()
    };
    assert_eq!(
        contract("g1", &["run", "--", "sh", "-c", "exit 9"]).status.code(),
        Some(9)
    );
    for generation in ["g1", "g2"] {
        let (exit, name, next) = refusal(&contract(generation, &["check"]));
        assert_eq!((exit, name.as_str()), (Some(3), "dirty_volume (marked)"));
        assert!(next.contains("semel contract wipe"), "{next}");
    }
    let wiped = contract("g2", &["wipe"]);
    assert!(wiped.status.success(), "{}", said(&wiped));

    // What is mistyped leaves nothing behind.
    let nowhere = home.path().join("nowhere");
    let out = home.run(&["volume", "open", "j", "--from", nowhere.to_str().unwrap()]);
    assert_eq!(refusal(&out).1, "not_found");
    let opened = home.json(&["volume", "open", "j"]);
    assert_eq!(opened["attempt"], json!(1), "{opened}");
    let copy = home.path().join("copy");
    assert!(home.run(&["backup", copy.to_str().unwrap()]).status.success());
    let (_, name, next) = refusal(&home.run(&["backup", copy.to_str().unwrap()]));
    assert_eq!(name, "precondition_failed (exists)");
    assert!(next.contains("nothing is yet"), "{next}");
}

/// An installer that is missing is told of before anything is opened, by its name.
#[test]
fn a_missing_installer_costs_no_generation() {
    for (change, program) in [
        ("install = [\"cargo\"] => install = [\"yarn\"]\n", "yarn"),
        ("install = [\"cargo\"] => install = \"uvz sync\"\n", "uvz"),
    ] {
        let site = Site::new();
        site.job(change);
        let nothing = site.home.path().join("programs");
        std::fs::create_dir(&nothing).unwrap();
        let mut command = site.command(&["run", "job.toml"]);
        command.env("PATH", format!("{}:/bin", nothing.display()));
        let out = command.output().unwrap();
        let (exit, name, next) = refusal(&out);
        assert_eq!(
            (exit, name.as_str()),
            (Some(17), "not_found (no_executable)"),
            "{}",
            said(&out)
        );
        assert!(
            stderr(&out).contains(program) && next.contains("install it"),
            "{next}"
        );
        assert!(site.volumes().is_empty(), "{program}");
    }
}

#[test]
fn a_command_that_is_missing_is_asked_for_as_anything_else() {
    for args in [&["volume", "--json"][..], &["--json"]] {
        let out = bare(args).output().unwrap();
        assert_eq!(out.status.code(), Some(64), "{}", said(&out));
        let refusal: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(refusal["code"], "usage", "{refusal}");
    }
    for args in [&["volume"][..], &[], &["--quiet"]] {
        let out = bare(args).output().unwrap();
        assert_eq!(refusal(&out).1, "usage", "{}", said(&out));
        assert!(!stderr(&out).contains("__probe"), "{}", stderr(&out));
    }
}
