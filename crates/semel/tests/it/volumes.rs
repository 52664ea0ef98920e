//! What volumes lie on, how they are put aside, freed and salvaged, and what a certification sees of them.

use crate::harness::{
    Daemon, Home, RUN, Site, Volume, last_draft, mounts_beneath, processes_with, said, shut_down, statement,
    text, wait_until,
};
use serde_json::{Value, json};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

/// Says whether this machine has a backend; tells where it has not.
fn had(home: &Home, backend: &str) -> bool {
    let doctor = home.json(&["doctor"]);
    let findings = doctor["findings"].as_array().unwrap();
    let finding = findings
        .iter()
        .find(|finding| finding["name"] == backend)
        .unwrap();
    let had = finding["grade"] == "ok";
    if !had {
        eprintln!("SKIPPED: {}", finding["found"]);
    }
    had
}

fn source(home: &Home) -> PathBuf {
    let from = home.path().join("from");
    std::fs::create_dir_all(from.join("d/e")).unwrap();
    std::fs::write(from.join("d/e/f"), "deep\n").unwrap();
    std::fs::write(from.join("f"), "flat\n").unwrap();
    from
}

fn state_of(home: &Home, generation: &str) -> Value {
    home.json(&["volume", "show", generation])["volume"].clone()
}

struct Lab {
    home: Home,
    daemon: Daemon,
}

impl Lab {
    fn new() -> Self {
        let home = Home::new();
        let daemon = home.serve(&[]);
        Self { home, daemon }
    }

    fn open(&self, backend: &str) -> Volume {
        let from = source(&self.home);
        self.home
            .open_with(&json!({"job": "job", "backend": backend, "from": from}))
    }

    fn ends_clean(&self, volume: &Volume) {
        self.home.json(&["volume", "end", &volume.generation]);
    }
}

#[test]
fn a_backend_is_had_by_name_or_refused_and_shown() {
    let lab = Lab::new();
    let doctor = lab.home.json(&["doctor"]);
    let findings = doctor["findings"].as_array().unwrap();
    for name in ["dir", "overlay", "tmpfs"] {
        let finding = findings.iter().find(|finding| finding["name"] == name);
        assert!(!text(&finding.expect(name)["found"]).is_empty(), "{name}");
    }
    for backend in ["dir", "overlay", "tmpfs"] {
        if !had(&lab.home, backend) {
            continue;
        }
        let args = ["volume", "open", backend, "--backend", backend];
        let opened = lab.home.json(&args);
        assert_eq!(
            (&opened["backend"], &opened["backend_why"]),
            (&json!(backend), &json!("it was asked for"))
        );
        let volume = Volume::of(&opened);
        assert_eq!(state_of(&lab.home, &volume.generation)["backend"], backend);
        for shown in [&["status"][..], &["volume", "list"]] {
            let out = String::from_utf8(lab.home.run(shown).stdout).unwrap();
            let line = out
                .lines()
                .find(|line| line.contains(&volume.generation))
                .unwrap();
            assert!(line.contains(&format!(" on {backend} ")), "{line}");
        }
        let reply = lab
            .daemon
            .conn()
            .call(&volume, "write_file", "k", &json!({"path": "f", "content": "x"}));
        assert_eq!(reply.status, 200, "{}", reply.body);
        lab.ends_clean(&volume);
    }
    let auto = lab.home.json(&["volume", "open", "auto"]);
    assert_eq!(auto["backend"], "dir");
    assert!(text(&auto["backend_why"]).len() > 10, "{auto}");
    // A state root that no mount option can name.
    let odd = Home::within(&{
        let odd = lab.home.path().join("a,b");
        std::fs::create_dir(&odd).unwrap();
        odd
    });
    let out = odd.run(&["volume", "open", "job", "--backend", "overlay", "--json"]);
    assert_eq!(out.status.code(), Some(15), "{}", said(&out));
    let refusal: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&refusal["reason"], &refusal["names"]),
        (&json!("backend_unavailable"), &json!(["overlay"]))
    );
    let out = odd.run(&["volume", "list", "--all"]);
    assert_eq!(
        out.status.code(),
        Some(17),
        "no generation is spent, no journal made: {}",
        said(&out)
    );
}

#[test]
fn memory_has_a_hard_quota_and_no_power() {
    let lab = Lab::new();
    if !had(&lab.home, "tmpfs") {
        return;
    }
    drop(lab.daemon);
    let config = lab.home.path().join(".config/semel");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(
        config.join("config.toml"),
        "[quota]\nvolume_bytes = 200000\n[volumes]\nbackend = \"tmpfs\"\n",
    )
    .unwrap();
    let daemon = lab.home.serve(&[]);
    let volume = lab.home.open_with(&json!({"job": "job"}));
    assert_eq!(
        state_of(&lab.home, &volume.generation)["backend"],
        "tmpfs",
        "the file says so"
    );
    // Who writes beside us meets the wall, not a sweep.
    let full = std::fs::write(volume.tree.join("large"), vec![7; 1 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let content = "x".repeat(100);
    let reply = daemon.conn().call(
        &volume,
        "write_file",
        "k",
        &json!({"path": "f", "content": content}),
    );
    assert_eq!(
        (reply.status, reply.code()),
        (413, "quota_exceeded"),
        "{}",
        reply.body
    );
    std::fs::remove_file(volume.tree.join("large")).unwrap();
    let reply = daemon.conn().call(
        &volume,
        "write_file",
        "k",
        &json!({"path": "f", "content": content}),
    );
    assert_eq!(reply.status, 200, "the key was not used: {}", reply.body);
    let refused = lab.home.admin(
        "POST",
        "/v1/admin/volumes",
        &json!({"job": "other", "durability": "power", "backend": "tmpfs"}),
    );
    assert_eq!((refused.status, refused.code()), (409, "durability_unavailable"));
}

/// The very same work gives the very same proposal, whatever it lies on.
#[test]
fn calls_do_on_every_backend_what_they_do_on_a_directory() {
    let lab = Lab::new();
    let mut proposals = Vec::new();
    for backend in ["dir", "overlay", "tmpfs"] {
        if !had(&lab.home, backend) {
            continue;
        }
        let volume = lab.open(backend);
        let call = |tool: &str, key: &str, arguments: &Value| {
            let reply = lab.daemon.conn().call(&volume, tool, key, arguments);
            assert_eq!(reply.status, 200, "{backend}: {tool}: {}", reply.body);
            reply
        };
        call(
            "move_file",
            "1",
            &json!({"source": "d/e", "destination": "moved"}),
        );
        call(
            "edit_file",
            "2",
            &json!({"path": "f", "old_string": "flat", "new_string": "round"}),
        );
        let gone = call(
            "delete_directory",
            "3",
            &json!({"path": "moved", "recursive": true}),
        );
        let again = call(
            "delete_directory",
            "3",
            &json!({"path": "moved", "recursive": true}),
        );
        assert_eq!(again.body["replayed"], true, "{backend}");
        let path = format!("/v1/admin/executions/{}/undo", text(&gone.body["execution_id"]));
        let undone = lab.home.admin("POST", &path, &Value::Null);
        assert_eq!(undone.status, 200, "{backend}: {}", undone.body);
        assert_eq!(std::fs::read(volume.tree.join("moved/f")).unwrap(), b"deep\n");
        lab.ends_clean(&volume);
        proposals.push(lab.home.json(&["seal", &volume.generation])["proposal"].clone());
        lab.home.json(&["volume", "destroy", &volume.generation]);
        assert!(mounts_beneath(&lab.home.state()).is_empty(), "{backend}");
    }
    assert!(
        proposals.iter().all(|proposal| *proposal == proposals[0]),
        "{proposals:?}"
    );
}

#[test]
fn a_volume_that_is_written_to_does_not_end_clean() {
    let lab = Lab::new();
    if !had(&lab.home, "overlay") {
        return;
    }
    let volume = lab.open("overlay");
    let writer = std::fs::File::options()
        .append(true)
        .open(volume.tree.join("f"))
        .unwrap();
    let out = lab.home.run(&["volume", "end", &volume.generation, "--json"]);
    assert_eq!(out.status.code(), Some(3), "{}", said(&out));
    let refusal: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(refusal["reason"], "process_tree_unproved");
    let write = |key: &str| {
        let arguments = json!({"path": key, "content": "x"});
        lab.daemon
            .conn()
            .call(&volume, "write_file", key, &arguments)
            .status
    };
    assert_eq!(write("g"), 200, "it goes on");
    drop(writer);
    lab.ends_clean(&volume);
    assert_eq!(state_of(&lab.home, &volume.generation)["state"], "clean");
    assert_eq!(write("h"), 409);
    if volume.tree.exists() {
        let refused = std::fs::write(volume.tree.join("late"), "x").unwrap_err();
        assert_eq!(
            refused.kind(),
            std::io::ErrorKind::ReadOnlyFilesystem,
            "sealed as it was"
        );
    }
}

/// An overlay that ended lies mounted for nobody; who looks at it finds it again.
#[test]
fn what_ended_is_mounted_for_who_looks() {
    let lab = Lab::new();
    if !had(&lab.home, "overlay") {
        return;
    }
    let volume = lab.open("overlay");
    assert_eq!(mounts_beneath(&lab.home.state()).len(), 1);
    lab.ends_clean(&volume);
    assert!(wait_until(LONG, || mounts_beneath(&lab.home.state()).is_empty()));
    let to = lab.home.path().join("saved");
    lab.home.json(&[
        "volume",
        "salvage",
        &volume.generation,
        "--to",
        to.to_str().unwrap(),
    ]);
    assert_eq!(std::fs::read(to.join("d/e/f")).unwrap(), b"deep\n");
    assert!(!lab.home.json(&["seal", &volume.generation])["proposal"].is_null());
}

/// Who removes the state root of a daemon that ended finds nothing mounted in it.
#[test]
fn a_daemon_that_is_told_to_end_leaves_no_mount_of_what_ended() {
    let lab = Lab::new();
    if !had(&lab.home, "overlay") {
        return;
    }
    let volume = lab.open("overlay");
    lab.ends_clean(&volume);
    shut_down(&lab.home.state());
    assert_eq!(mounts_beneath(&lab.home.state()), Vec::<PathBuf>::new());
}

#[test]
fn a_recycled_volume_makes_room_at_once_and_is_freed_behind() {
    let lab = Lab::new();
    for backend in ["dir", "overlay", "tmpfs"] {
        if !had(&lab.home, backend) {
            continue;
        }
        let old = lab.open(backend);
        std::fs::create_dir(old.tree.join("closed")).unwrap();
        std::fs::write(old.tree.join("closed/f"), "x").unwrap();
        std::fs::set_permissions(old.tree.join("closed"), PermissionsExt::from_mode(0o000)).unwrap();
        let args = [
            "volume",
            "open",
            "job",
            "--backend",
            backend,
            "--recycle",
            &old.generation,
        ];
        let new = Volume::of(&lab.home.json(&args));
        assert_ne!(new.generation, old.generation);
        assert!(!old.tree.exists(), "{backend}: it has no name any more");
        assert_eq!(std::fs::read_dir(&new.tree).unwrap().count(), 0);
        let reply = lab
            .daemon
            .conn()
            .call(&old, "read_file", "", &json!({"path": "f"}));
        assert_eq!(
            (reply.status, reply.reason()),
            (409, "stale_generation"),
            "{backend}"
        );
        let gone = || state_of(&lab.home, &old.generation)["state"] == "destroyed";
        assert!(
            wait_until(LONG, gone),
            "{backend}: {}",
            state_of(&lab.home, &old.generation)
        );
        assert_eq!(state_of(&lab.home, &old.generation)["dirty"], "recycled");
        lab.ends_clean(&new);
        let of_job = std::fs::read_dir(lab.home.state().join("volumes/job")).unwrap();
        assert!(
            of_job
                .flatten()
                .all(|entry| !entry.file_name().to_string_lossy().starts_with(".aside"))
        );
        lab.home.json(&["volume", "destroy", &new.generation]);
    }
    let volume = lab.open("dir");
    let out = lab
        .home
        .run(&["volume", "open", "other", "--recycle", &volume.generation]);
    assert_eq!(out.status.code(), Some(65), "of another job: {}", said(&out));
    assert_eq!(state_of(&lab.home, &volume.generation)["state"], "open");
}

#[test]
fn what_cannot_be_freed_is_shown_and_in_nobodys_way() {
    let lab = Lab::new();
    let old = lab.open("dir");
    let outside = lab.home.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("f"), "stays").unwrap();
    let at = old.tree.join("d/e");
    let mounted = std::process::Command::new("mount")
        .arg("--bind")
        .args([&outside, &at])
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: this user may not mount");
        return;
    }
    let new = Volume::of(
        &lab.home
            .json(&["volume", "open", "job", "--recycle", &old.generation]),
    );
    assert!(new.tree.exists());
    let status = || lab.home.json(&["status"])["daemon"]["aside"].clone();
    assert!(wait_until(LONG, || status() != json!([])));
    let aside = status();
    assert_eq!(aside[0]["generation"], json!(old.generation));
    assert!(aside[0]["kept"].to_string().contains("(mount)"), "{aside}");
    let told = String::from_utf8(lab.home.run(&["status"]).stdout).unwrap();
    assert!(told.contains(&format!("KEPT     {}", old.generation)), "{told}");
    assert_eq!(std::fs::read(outside.join("f")).unwrap(), b"stays");
    for at in mounts_beneath(&lab.home.state()) {
        std::process::Command::new("umount").arg(at).status().unwrap();
    }
    assert!(wait_until(LONG, || status() == json!([])));
    assert_eq!(state_of(&lab.home, &old.generation)["state"], "destroyed");
}

#[test]
fn salvage_takes_what_it_can_and_names_the_rest() {
    let lab = Lab::new();
    let volume = lab.open("dir");
    let salvage = |to: &Path| {
        let to = to.to_str().unwrap();
        let out = lab
            .home
            .run(&["volume", "salvage", &volume.generation, "--to", to, "--json"]);
        let body: Value = serde_json::from_slice(&out.stdout).unwrap();
        (out.status.code(), body)
    };
    let to = lab.home.path().join("saved");
    assert_eq!(salvage(&to).0, Some(32), "it is open");
    symlink("/etc/passwd", volume.tree.join("out")).unwrap();
    std::fs::set_permissions(volume.tree.join("f"), PermissionsExt::from_mode(0o6755)).unwrap();
    lab.home.json(&["volume", "end", &volume.generation, "--dirty"]);
    let (code, body) = salvage(&to);
    assert_eq!(
        (code, &body["whole"], &body["files"]),
        (Some(0), &json!(true), &json!(2)),
        "{body}"
    );
    assert_eq!(body["dirty"], "ended_dirty");
    assert_eq!(std::fs::read(to.join("f")).unwrap(), b"flat\n");
    assert_eq!(
        std::fs::metadata(to.join("f")).unwrap().permissions().mode() & 0o7777,
        0o755
    );
    assert_eq!(
        std::fs::read_link(to.join("out")).unwrap(),
        Path::new("/etc/passwd")
    );
    let (code, body) = salvage(&to);
    assert_eq!(
        (code, &body["reason"]),
        (Some(15), &json!("exists")),
        "nothing is written over"
    );
    rustix_fifo(&volume.tree.join("d/fifo"));
    let more = lab.home.path().join("more");
    let (code, body) = salvage(&more);
    assert_eq!((code, &body["whole"]), (Some(7), &json!(false)), "{body}");
    assert_eq!(body["left_out"][0]["path"], "d/fifo");
    assert_eq!(std::fs::read(more.join("d/e/f")).unwrap(), b"deep\n");
    assert!(volume.tree.join("d/fifo").exists(), "the volume is as it was");
    assert_eq!(state_of(&lab.home, &volume.generation)["state"], "quarantined");
    lab.home.json(&["volume", "destroy", &volume.generation]);
    assert_eq!(salvage(&lab.home.path().join("late")).0, Some(17));
}

fn rustix_fifo(at: &Path) {
    let made = std::process::Command::new("mkfifo").arg(at).status().unwrap();
    assert!(made.success());
}

/// The sealed tree lies beneath, is read again each time, and a test that touches a source file is found out.
#[test]
fn a_certification_lies_over_its_sealed_tree() {
    let site = Site::new();
    let overlay = had(&site.home, "overlay");
    let done = site.json(RUN);
    assert_eq!(done["status"], "certified");
    let certs = || {
        let all = site.volumes();
        all.into_iter()
            .filter(|volume| volume["role"] == "cert")
            .collect::<Vec<_>>()
    };
    assert_eq!(certs()[0]["backend"], if overlay { "overlay" } else { "dir" });
    let proposal = text(&done["proposal"]);
    let again = |backend: &str| {
        let args = [
            "certify",
            "--from",
            "job.toml",
            "--proposal",
            proposal,
            "--backend",
            backend,
        ];
        let certified = site.json(&args);
        assert_eq!(certified["tree"], done["tree"], "{backend}");
    };
    for backend in ["dir", "overlay", "tmpfs"] {
        if had(&site.home, backend) {
            again(backend);
            assert_eq!(certs().last().unwrap()["backend"], backend);
        }
    }
    site.at_rest();
}

/// How somebody changes a sealed tree, and what of it is named.
struct Change(fn(&Path), &'static str);

const CHANGES: [Change; 4] = [
    Change(
        |tree| std::fs::write(tree.join("src/lib.rs"), "//test other holds\n").unwrap(),
        "src/lib.rs",
    ),
    Change(
        |tree| std::fs::write(tree.join("more.py"), "").unwrap(),
        "more.py",
    ),
    Change(|tree| std::fs::create_dir(tree.join("src/ns")).unwrap(), "src/ns"),
    Change(
        |tree| std::fs::create_dir_all(tree.join("tests/a/b")).unwrap(),
        "tests",
    ),
];

/// What a sealed tree is called, or says of itself, is not believed. The archive is what counts: another attempt is made on a
/// tree that is unpacked anew.
#[test]
fn a_sealed_tree_that_was_changed_is_refused_by_name_and_unpacked_anew() {
    let site = Site::new();
    if !had(&site.home, "overlay") {
        return;
    }
    let done = site.json(RUN);
    let proposal = text(&done["proposal"]);
    let lower = site.home.state().join("volumes/.lower");
    let sealed = |nth: usize| match nth {
        0 => lower.join(format!("p-{proposal}")),
        nth => lower.join(format!("p-{proposal}-{nth}")),
    };
    let args = ["certify", "--from", "job.toml", "--proposal", proposal];
    for (nth, Change(change, name)) in CHANGES.iter().enumerate() {
        change(&sealed(nth).join("tree"));
        let certified = site.json(&args);
        assert_eq!(certified["tree"], done["tree"], "{name}");
        let certs: Vec<Value> = site
            .volumes()
            .into_iter()
            .filter(|volume| volume["role"] == "cert")
            .collect();
        let [.., refused, passed] = certs.as_slice() else {
            panic!("{certs:?}");
        };
        assert_eq!(passed["state"], "clean", "{name}");
        let envelope = format!("certificates/{}.dsse.json", text(&refused["generation"]));
        let verdict = statement(&site.home.state().join(envelope))["predicate"]["verdict"].clone();
        assert!(verdict.to_string().contains("sealed_tree"), "{name}: {verdict}");
        assert!(verdict.to_string().contains(name), "{name}: {verdict}");
        assert!(sealed(nth).join("damaged").exists(), "{name}");
    }
    // One whose seal was taken away is none.
    std::fs::remove_file(sealed(CHANGES.len()).join("seal")).unwrap();
    site.json(&args);
    site.at_rest();
}

#[test]
fn a_source_file_that_is_changed_and_put_back_during_the_tests_is_found_out() {
    let mut site = Site::new();
    let program = "import os, subprocess, sys\np = 'out/.gitkeep'\nwas, at = open(p).read(), os.stat(p)\nopen(p, 'w').write('')\n\
        open(p, 'w').write(was)\nos.utime(p, ns=(at.st_atime_ns, at.st_mtime_ns))\n\
        sys.exit(subprocess.call([sys.executable, 'check.py', sys.argv[1]]))\n";
    std::fs::write(site.repository().join("sneaky.py"), program).unwrap();
    std::fs::create_dir(site.repository().join("out")).unwrap();
    std::fs::write(site.repository().join("out/.gitkeep"), "").unwrap();
    site.base = site_commit(&site);
    site.job("test = [\"python3\", \"check.py\", \"{report}\"] => test = [\"python3\", \"sneaky.py\", \"{report}\"]");
    let plain = std::fs::read_to_string(site.at("job.toml")).unwrap();
    in_certify(&site, "caches = [\"src\"]\n");
    let refusal = site.refused(RUN, 65);
    assert_eq!(
        (&refusal["reason"], &refusal["names"]),
        (&json!("sealed_cache"), &json!(["src/lib.rs"])),
        "{refusal}"
    );
    std::fs::write(site.at("job.toml"), plain).unwrap();
    in_certify(&site, "caches = [\"out\"]\n");
    let refusal = site.refused(RUN, 28);
    assert_eq!(
        (&refusal["reason"], &refusal["names"]),
        (&json!("touched"), &json!(["out/.gitkeep"])),
        "{refusal}"
    );
    assert_eq!(site.passes(), 0);
    site.at_rest();
}

/// Adds lines to the certification of the job.
fn in_certify(site: &Site, lines: &str) {
    let job = std::fs::read_to_string(site.at("job.toml")).unwrap();
    let job = job.replace("[certify]\n", &format!("[certify]\n{lines}"));
    std::fs::write(site.at("job.toml"), job).unwrap();
}

fn site_commit(site: &Site) -> String {
    site.commit_all("more")
}

/// Nothing warm by environment; a cargo configuration above the state root has no say.
#[test]
fn a_certification_sees_no_cache_of_anybody() {
    let site = Site::new();
    let cargo = site.home.path().join(".cargo");
    std::fs::create_dir(&cargo).unwrap();
    std::fs::write(cargo.join("config.toml"), "[build]\nrustc = \"/nonexistent\"\n").unwrap();
    std::fs::write(site.home.path().join("conftest.py"), "raise SystemExit(9)\n").unwrap();
    assert_eq!(site.json(RUN)["status"], "certified", "what lies above is hidden");
    let site = Site::new();
    let cache = site.home.state().join("cache/draft");
    for variable in [
        "CARGO_HOME = \"/var/cache/cargo\"".to_owned(),
        format!("WARM = \"{}\"", cache.display()),
    ] {
        site.job("");
        let job = std::fs::read_to_string(site.at("job.toml")).unwrap();
        let (before, certify) = job.split_once("[certify]").unwrap();
        let certify = certify.replacen("env = { ", &format!("env = {{ {variable}, "), 1);
        std::fs::write(site.at("job.toml"), format!("{before}[certify]{certify}")).unwrap();
        let refusal = site.refused(RUN, 27);
        let name = variable.split(' ').next().unwrap();
        assert_eq!(
            (&refusal["reason"], &refusal["names"]),
            (&json!("environment"), &json!([name]))
        );
    }
    site.at_rest();
}

/// A child that ignores SIGTERM, daemonises and begets another: dead, reaped, and the volume dirty.
#[test]
fn a_daemon_that_ignores_sigterm_ends_with_its_stage() {
    const DAEMON: &str = "import os, signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
        signal.signal(signal.SIGHUP, signal.SIG_IGN)\n\
        if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        subprocess.Popen(['sleep', '300'], start_new_session=True)\n\
        \x20       open('daemon', 'w').close() if os.access('.', os.W_OK) else None\n        time.sleep(300)\n    os._exit(0)\ntime.sleep(300)\n";
    let mut site = Site::new();
    site.agent(DAEMON);
    site.job("timeout = \"60s\" => timeout = \"2s\"");
    let refusal = site.refused(RUN, 24);
    assert_eq!(refusal["code"], "timed_out");
    assert!(
        processes_with(&site.marker).is_empty(),
        "{:?}",
        processes_with(&site.marker)
    );
    let draft = last_draft(&site);
    assert_eq!(
        (text(&draft["state"]), text(&draft["dirty"])),
        ("quarantined", "timed_out")
    );
    let tree = site
        .home
        .state()
        .join("volumes/small")
        .join(text(&draft["generation"]))
        .join("vol/tree");
    assert!(tree.join("daemon").exists(), "it was there");

    // The tests of a certification do the same.
    site = Site::new();
    std::fs::write(site.repository().join("daemon.py"), DAEMON).unwrap();
    site.base = site_commit(&site);
    site.job("test = [\"python3\", \"check.py\", \"{report}\"] => test = [\"python3\", \"daemon.py\", \"{report}\"]\ntimeout = \"50s\" => timeout = \"5s\"");
    let refusal = site.refused(RUN, 24);
    assert_eq!(refusal["code"], "timed_out");
    assert!(
        processes_with(&site.marker).is_empty(),
        "{:?}",
        processes_with(&site.marker)
    );
    let certs = site.volumes();
    let cert = certs.iter().rfind(|volume| volume["role"] == "cert").unwrap();
    assert_eq!(cert["state"], "quarantined", "{cert}");
    assert_eq!(site.passes(), 0);
    site.at_rest();
}
