//! `semel record write` and `check` on disks that somebody else manages: each thing that moves has its own exit.

use crate::harness::{Disk, bare, said, signal};
use serde_json::Value;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Output, Stdio};

const RECORD: &str = ".install_record.json";
const SITE: &str = ".venv/lib/python3.11/site-packages";

fn command(disk: &Disk, args: &[&str], generation: &str) -> Command {
    let mut command = bare(&[&["record"], args].concat());
    command.env("WORKSPACE", disk.path());
    if generation != "-" {
        command.env("VOLUME_GENERATION", generation);
    }
    command
}

fn run(disk: &Disk, args: &[&str], generation: &str) -> Output {
    command(disk, args, generation).output().unwrap()
}

fn passes(disk: &Disk, args: &[&str]) -> Value {
    let out = run(disk, &[args, &["--json"]].concat(), "g-1");
    assert!(out.status.success(), "{args:?} {}", said(&out));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Runs what must be refused, and leaves everything as it was.
fn refused(disk: &Disk, args: &[&str], generation: &str, exit: i32) -> String {
    let before = disk.picture();
    let out = run(disk, args, generation);
    assert_eq!(out.status.code(), Some(exit), "{args:?} {}", said(&out));
    assert!(out.stdout.is_empty(), "{}", said(&out));
    assert_eq!(disk.picture(), before, "a refusal leaves everything as it was");
    String::from_utf8(out.stderr).unwrap()
}

/// A disk with a tree of each kind, made by hand.
fn disk() -> Disk {
    let disk = Disk::new();
    disk.write(
        ".venv/pyvenv.cfg",
        "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.7\n",
    );
    std::fs::create_dir(disk.at(".venv/bin")).unwrap();
    symlink("/usr/bin/python3", disk.at(".venv/bin/python")).unwrap();
    let metadata = "Metadata-Version: 2.1\nName: idna\nVersion: 3.10\n";
    let mut rows = String::new();
    for (path, text) in [
        ("idna/__init__.py", "x = 1\n"),
        ("idna/deep/__init__.py", "y = 1\n"),
        ("idna-3.10.dist-info/METADATA", metadata),
    ] {
        disk.write(&format!("{SITE}/{path}"), text);
        let digest = semel_core::Sha256::of(text.as_bytes());
        let coded = base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, digest.as_bytes());
        rows.push_str(&format!("{path},sha256={coded},{}\n", text.len()));
    }
    rows.push_str("idna-3.10.dist-info/RECORD,,\n");
    disk.write(&format!("{SITE}/idna-3.10.dist-info/RECORD"), rows);
    disk.write(
        "node_modules/.package-lock.json",
        r#"{"lockfileVersion":3,"packages":{"node_modules/ms":{"version":"2.1.3"}}}"#,
    );
    disk.write(
        "node_modules/ms/package.json",
        r#"{"name":"ms","version":"2.1.3"}"#,
    );
    disk.write("node_modules/ms/index.js", "module.exports = 1\n");
    let manifest = "[package]\nname = \"hex\"\nversion = \"0.4.3\"\n";
    disk.write("vendor/hex/Cargo.toml", manifest);
    let sum = semel_core::Sha256::of(manifest.as_bytes());
    let sums = format!(r#"{{"files":{{"Cargo.toml":"{sum}"}},"package":null}}"#);
    disk.write("vendor/hex/.cargo-checksum.json", sums);
    disk.write(
        "cargo/registry/cache/index/hex-0.4.3.crate",
        "the archive, whatever it holds",
    );
    disk
}

#[test]
fn a_record_holds_every_tree_and_is_found_again() {
    let disk = disk();
    let written = passes(&disk, &["write", "--root", "cargo"]);
    assert_eq!(written["status"], "written");
    assert_eq!(
        written["installed"],
        serde_json::json!(["hex==0.4.3", "idna==3.10", "ms==2.1.3"])
    );
    let roots = serde_json::json!({
        ".venv": "venv", "cargo": "cargo_home", "node_modules": "node_modules", "vendor": "cargo_vendor",
    });
    assert_eq!(written["roots"], roots);
    let bytes = std::fs::read(disk.at(RECORD)).unwrap();
    let record: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(record["generation"], "g-1");
    assert_eq!(record["lock"], written["lock"]);
    assert_eq!(record["files"], written["files"]);
    assert!(record["entries"][format!("{SITE}/idna/deep/__init__.py")]["file"]["sha256"].is_string());
    let checked = passes(&disk, &["check"]);
    assert_eq!(checked["status"], "matches");
    assert_eq!(checked["files"], written["files"]);
    // Writing again changes no byte; the record itself is no part of what it records.
    passes(&disk, &["write", "--root", "cargo"]);
    assert_eq!(std::fs::read(disk.at(RECORD)).unwrap(), bytes);
    let text = String::from_utf8(run(&disk, &["check"], "g-1").stdout).unwrap();
    assert!(text.starts_with("matches: 3 packages, "), "{text}");
}

#[test]
fn each_thing_that_moves_has_its_own_exit() {
    type Change = fn(&Disk);
    let init = format!("{SITE}/idna/__init__.py");
    let changes: [(&str, i32, Change); 16] = [
        ("changed requirements.txt", 6, |d| {
            d.write("requirements.txt", "idna==3.9\n")
        }),
        ("missing requirements.txt", 6, |d| {
            std::fs::remove_file(d.at("requirements.txt")).unwrap()
        }),
        ("new poetry.lock", 6, |d| d.write("poetry.lock", "")),
        ("requirements.txt", 7, |d| {
            std::fs::remove_file(d.at("requirements.txt")).unwrap();
            symlink("other", d.at("requirements.txt")).unwrap();
        }),
        (&init, 25, |d| {
            d.write(&format!("{SITE}/idna/__init__.py"), "x = 2\n")
        }),
        (&init, 25, |d| {
            std::fs::remove_file(d.at(&format!("{SITE}/idna/__init__.py"))).unwrap()
        }),
        ("new node_modules/ms/evil.js", 25, |d| {
            d.write("node_modules/ms/evil.js", "")
        }),
        ("new .venv/lib/python3.11/site-packages/x.pth", 25, |d| {
            d.write(&format!("{SITE}/x.pth"), "")
        }),
        ("changed .venv/bin/python", 25, |d| {
            std::fs::remove_file(d.at(".venv/bin/python")).unwrap();
            symlink("/usr/bin/python3.12", d.at(".venv/bin/python")).unwrap();
        }),
        ("changed node_modules/ms/index.js", 25, |d| {
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(d.at("node_modules/ms/index.js"), mode).unwrap();
        }),
        ("new vendor/hex/build.rs", 25, |d| {
            d.write("vendor/hex/build.rs", "")
        }),
        ("changed cargo/registry/cache/index/hex-0.4.3.crate", 25, |d| {
            d.write("cargo/registry/cache/index/hex-0.4.3.crate", "swapped");
        }),
        ("missing vendor", 25, |d| {
            std::fs::remove_dir_all(d.at("vendor")).unwrap()
        }),
        ("new env", 25, |d| d.write("env/pyvenv.cfg", "")),
        ("PYTHONDONTWRITEBYTECODE", 25, |d| {
            d.write(&format!("{SITE}/idna/__pycache__/a.pyc"), "")
        }),
        ("vendor", 26, |d| {
            std::fs::rename(d.at("vendor"), d.dir.path().join("away")).unwrap();
            symlink(d.dir.path().join("away"), d.at("vendor")).unwrap();
        }),
    ];
    for (named, exit, change) in changes {
        let disk = disk();
        passes(&disk, &["write", "--root", "cargo"]);
        change(&disk);
        let said = refused(&disk, &["check"], "g-1", exit);
        assert!(said.contains(named), "{named}: {said}");
    }
}

#[test]
fn another_generation_and_an_unreadable_record_are_never_a_pass() {
    let disk = disk();
    refused(&disk, &["check"], "g-1", 7);
    passes(&disk, &["write"]);
    refused(&disk, &["check"], "-", 2);
    refused(&disk, &["check"], "", 2);
    refused(&disk, &["write"], "-", 2);
    refused(&disk, &["check"], "g-2", 27);
    disk.write(".generation", "g-2\n");
    refused(&disk, &["check"], "g-1", 5);
    refused(&disk, &["write"], "g-1", 5);
    std::fs::remove_file(disk.at(".generation")).unwrap();
    let whole = std::fs::read_to_string(disk.at(RECORD)).unwrap();
    let twice = format!("{whole}\n");
    let other = whole.replacen("idna==3.10", "idna==3.11", 1);
    let files = whole.replacen("\"file\":{\"mode\":", "\"file\":{\"mode\":1", 1);
    for (bent, exit) in [
        (&whole[..whole.len() / 2], 7),
        ("", 7),
        ("{}", 7),
        (twice.as_str(), 7),
        (files.as_str(), 7),
        (other.as_str(), 25),
    ] {
        assert_ne!(bent, whole);
        disk.write(RECORD, bent);
        refused(&disk, &["check"], "g-1", exit);
    }
    std::fs::remove_file(disk.at(RECORD)).unwrap();
    symlink("elsewhere", disk.at(RECORD)).unwrap();
    refused(&disk, &["check"], "g-1", 7);
    refused(&disk, &["write"], "g-1", 7);
    std::fs::remove_file(disk.at(RECORD)).unwrap();
    disk.write(RECORD, &whole);
    passes(&disk, &["check"]);
}

#[test]
fn what_is_not_whole_is_not_recorded() {
    type Change = fn(&Disk);
    let changes: [(&str, i32, Change); 7] = [
        ("no lockfile binds", 4, |d| {
            std::fs::remove_file(d.at("requirements.txt")).unwrap()
        }),
        // The metadata is there, the package is not: what a stopped install leaves.
        ("idna/__init__.py", 25, |d| {
            std::fs::remove_dir_all(d.at(&format!("{SITE}/idna"))).unwrap()
        }),
        ("idna/__init__.py", 25, |d| {
            d.write(&format!("{SITE}/idna/__init__.py"), "")
        }),
        ("evil.py", 25, |d| d.write(&format!("{SITE}/evil.py"), "")),
        ("node_modules/ms", 25, |d| {
            std::fs::remove_dir_all(d.at("node_modules/ms")).unwrap()
        }),
        ("hex/build.rs", 25, |d| d.write("vendor/hex/build.rs", "")),
        ("other", 26, |d| {
            symlink("/tmp/other", d.at("node_modules/link")).unwrap()
        }),
    ];
    for (named, exit, change) in changes {
        let disk = disk();
        passes(&disk, &["write"]);
        change(&disk);
        let said = refused(&disk, &["write"], "g-1", exit);
        assert!(said.contains(named), "{named}: {said}");
    }
    let disk = Disk::new();
    assert!(refused(&disk, &["write"], "g-1", 7).contains("nothing_installed"));
    refused(&disk, &["write", "--root", "nowhere"], "g-1", 65);
    refused(&disk, &["write", "--root", "../disk"], "g-1", 14);
}

/// Whenever a writer is killed, there is the old record or the new one, and both hold or fail whole.
#[test]
fn a_killed_writer_leaves_a_whole_record() {
    let disk = disk();
    for n in 0..200_000 / 500 {
        disk.write(&format!("node_modules/ms/files/{n}.js"), [b'x'; 500]);
    }
    passes(&disk, &["write"]);
    let before = std::fs::read(disk.at(RECORD)).unwrap();
    for round in 0..40_u64 {
        // Another record each time, so that a half-written one could not be taken for the one before it.
        disk.write("node_modules/ms/round.js", round.to_string());
        let mut child = command(&disk, &["write", "--quiet"], "g-1")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let began = std::time::Instant::now();
        while began.elapsed().as_micros() < u128::from(round) * 400 {
            std::thread::yield_now();
        }
        signal(child.id(), libc::SIGKILL);
        child.wait().unwrap();
        let now = std::fs::read(disk.at(RECORD)).unwrap();
        semel_core::install::kept::Kept::decode(&now).unwrap();
        let code = run(&disk, &["check"], "g-1").status.code();
        assert!(matches!(code, Some(0 | 25)), "{code:?}");
        assert_eq!(
            code == Some(25),
            now == before || !said_round(&now, round),
            "{round}"
        );
    }
    passes(&disk, &["write"]);
    passes(&disk, &["check"]);
}

/// Says whether a record is of this round.
fn said_round(record: &[u8], round: u64) -> bool {
    let record: Value = serde_json::from_slice(record).unwrap();
    let digest = semel_core::Sha256::of(round.to_string().as_bytes()).to_string();
    record["entries"]["node_modules/ms/round.js"]["file"]["sha256"] == digest.as_str()
}

#[test]
fn writers_at_once_leave_one_whole_record() {
    let disk = disk();
    let writers: Vec<_> = (0..6)
        .map(|_| {
            command(&disk, &["write"], "g-1")
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    passes(&disk, &["check"]);
    let left: Vec<_> = std::fs::read_dir(disk.path())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| name.contains("install_record"))
        .collect();
    assert_eq!(left, [RECORD]);
}
