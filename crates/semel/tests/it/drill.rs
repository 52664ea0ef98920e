//! `semel drill`: every guard holds in this build, the damage is real, and the drill fails where either is not so.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A place for everything that a drill may touch.
struct Place(tempfile::TempDir);

/// What a drill said.
struct Drill {
    exit: i32,
    stdout: String,
    stderr: String,
}

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for name in ["tmp", "home", "bin"] {
            std::fs::create_dir(place.at(name)).unwrap();
        }
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the drill with the tester's programs, and checks that it left nothing behind.
    fn drill(&self, args: &[&str], path: &str) -> Drill {
        let out = Command::new(env!("CARGO_BIN_EXE_semel"))
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.at("home"))
            .env("TMPDIR", self.at("tmp"))
            .arg("drill")
            .args(args)
            .output()
            .unwrap();
        assert_eq!(
            names(&self.at("home")),
            [""; 0],
            "the person's own state root is untouched"
        );
        Drill {
            exit: out.status.code().unwrap(),
            stdout: String::from_utf8(out.stdout).unwrap(),
            stderr: String::from_utf8(out.stderr).unwrap(),
        }
    }

    /// Plays an incident for machines; `None` where this machine lacks a tool for it, which is said.
    fn play(&self, incident: &str) -> Option<Value> {
        let drill = self.drill(&[incident, "--json"], &path());
        assert_eq!(
            names(&self.at("tmp")),
            [""; 0],
            "nothing is left in the temporary directory"
        );
        let json = drill.json();
        assert_eq!(json["schema"], "semel.drill/v1");
        let account = &json["incidents"][0];
        assert_eq!(account["incident"], incident);
        if account["status"] == "skipped" {
            eprintln!("SKIPPED: semel drill {incident}: {}", account["reason"]);
            assert_eq!(drill.exit, 33);
            return None;
        }
        assert_eq!(
            (drill.exit, &json["verdict"]),
            (0, &Value::from("held")),
            "{json:#}\n{}",
            drill.stderr
        );
        assert_eq!(drill.stderr, "");
        Some(json)
    }

    fn program(&self, name: &str, text: &str) {
        let file = self.at("bin").join(name);
        crate::harness::executable(&file, text);
    }
}

impl Drill {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.stdout, self.stderr))
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn path() -> String {
    std::env::var("PATH").unwrap()
}

fn which(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&path())
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Gives name, status and naive outcome of every step.
fn steps(json: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let steps = json["incidents"][0]["steps"].as_array().unwrap();
    steps
        .iter()
        .map(|s| (text(&s["name"]), text(&s["status"]), text(&s["naive"]["outcome"])))
        .collect()
}

fn damages(json: &Value) -> usize {
    steps(json)
        .iter()
        .filter(|(_, _, naive)| naive == "damage")
        .count()
}

#[test]
fn the_reused_volume_is_refused_by_every_guard_alone() {
    let Some(json) = Place::new().play("reused-volume") else {
        return;
    };
    assert_eq!(
        (json["held"].as_u64(), damages(&json)),
        (Some(10), 8),
        "{:?}",
        steps(&json)
    );
    let tools = json["incidents"][0]["tools"].to_string();
    assert!(
        tools.contains("tests by pytest") || tools.contains("tests by unittest"),
        "{tools}"
    );
}

#[test]
fn the_replayed_probe_has_no_effect() {
    let Some(json) = Place::new().play("probe-replay") else {
        return;
    };
    assert_eq!(
        (json["held"].as_u64(), damages(&json)),
        (Some(10), 10),
        "{:?}",
        steps(&json)
    );
}

#[test]
fn the_transient_lock_is_waited_for() {
    let Some(json) = Place::new().play("transient-lock") else {
        return;
    };
    assert_eq!(
        (json["held"].as_u64(), damages(&json)),
        (Some(12), 9),
        "{:?}",
        steps(&json)
    );
}

/// Neither a damage that did not happen nor a guard that did not hold passes.
#[test]
fn a_drill_that_shows_nothing_fails() {
    let (Some(git), Some(_)) = (which("git"), which("sh")) else {
        eprintln!("SKIPPED: no git or no sh on PATH");
        return;
    };
    let place = Place::new();
    // This git never collides, since it never reads a tree; so no damage is done, and no worktree is restored.
    let text = format!(
        "#!/bin/sh\ncase \" $* \" in *\" read-tree \"*) exit 9;; esac\nexec '{}' \"$@\"\n",
        git.display()
    );
    place.program("git", &text);
    let path = format!("{}:{}", place.at("bin").display(), path());
    let drill = place.drill(&["transient-lock", "--json"], &path);
    let json = drill.json();
    assert_eq!((drill.exit, json["verdict"].as_str()), (33, Some("failed")));
    assert!(json["failed"].as_u64() >= Some(5), "{json:#}");
    let steps = steps(&json);
    let of = |name: &str| steps.iter().find(|(n, _, _)| n == name).unwrap().clone();
    let (_, status, naive) = of("the incident itself");
    assert_eq!((status.as_str(), naive.as_str()), ("failed", "not_reproduced"));
    // The guard holds here, but against no damage: that is not shown either.
    let (_, status, naive) = of("a symlinked lock");
    assert_eq!((status.as_str(), naive.as_str()), ("not_shown", "not_reproduced"));
    let lines: Vec<&str> = drill.stderr.lines().collect();
    assert!(
        lines[0].starts_with("error: drill_failed") && lines.len() == 3,
        "{}",
        drill.stderr
    );
    assert!(
        lines[1].contains("transient-lock: a symlinked lock"),
        "{}",
        lines[1]
    );
}

#[test]
fn a_missing_tool_is_said_and_fails_unless_allowed() {
    let place = Place::new();
    let empty = place.at("bin").display().to_string();
    let drill = place.drill(&[], &empty);
    assert_eq!(drill.exit, 33);
    for words in [
        "SKIPPED: no sh on PATH",
        "SKIPPED: no python3 on PATH",
        "SKIPPED: no git on PATH",
    ] {
        assert!(drill.stdout.contains(words), "{words} in {}", drill.stdout);
    }
    assert!(
        drill.stderr.starts_with("error: drill_failed"),
        "{}",
        drill.stderr
    );
    let allowed = place.drill(&["--allow-skips", "--json"], &empty);
    assert_eq!((allowed.exit, &allowed.json()["skipped"]), (0, &Value::from(3)));
    assert_eq!(names(&place.at("tmp")), [""; 0]);
}

#[test]
fn a_directory_that_is_kept_is_named() {
    let place = Place::new();
    let empty = place.at("bin").display().to_string();
    let kept = place.drill(&["--allow-skips", "--keep", "--json"], &empty).json()["kept"].clone();
    let kept = PathBuf::from(kept.as_str().unwrap());
    assert!(kept.is_dir() && kept.starts_with(place.at("tmp").canonicalize().unwrap()));
}

/// A person who gives up gets the status of the signal, and nothing lives on.
#[test]
fn an_interrupted_drill_ends_what_it_started() {
    if which("git").is_none() || which("sh").is_none() {
        eprintln!("SKIPPED: no git or no sh on PATH");
        return;
    }
    let place = Place::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
        .env_clear()
        .env("PATH", path())
        .env("HOME", place.at("home"))
        .env("TMPDIR", place.at("tmp"))
        .args(["drill", "transient-lock"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // It is under way as soon as its directory stands.
    while names(&place.at("tmp")).is_empty() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: a signal to a child of ours that was not reaped.
    #[expect(unsafe_code, reason = "libc is how a test sends a signal")]
    let sent = unsafe { libc::kill(pid, libc::SIGTERM) };
    assert_eq!(sent, 0);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(names(&place.at("tmp")), [""; 0]);
}
