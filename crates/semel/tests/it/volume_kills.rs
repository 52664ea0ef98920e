//! Commands on volumes, killed at each of their system calls: the job goes on, nothing is left that blocks it, and all that
//! was left can be freed.

use crate::harness::{Daemon, Home, mounts_beneath, said, wait_until};
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

/// The steps that leave something: each call of each of these is one.
const STEPS: [&str; 11] = [
    "mkdirat",
    "mount",
    "fsetxattr",
    "fchmodat",
    "fsync",
    "fdatasync",
    "renameat",
    "renameat2",
    "unlinkat",
    "umount2",
    "sendto",
];
const LONG: Duration = Duration::from_secs(30);

struct Lab {
    home: Home,
    _daemon: Daemon,
    from: PathBuf,
}

impl Lab {
    fn new() -> Option<Self> {
        let home = Home::new();
        let daemon = home.serve(&[]);
        let from = home.path().join("from");
        std::fs::create_dir_all(from.join("d")).unwrap();
        std::fs::write(from.join("d/f"), "x").unwrap();
        let tried = home
            .command_under(
                "strace",
                &[
                    "-qq",
                    "-e",
                    "inject=mkdirat:signal=SIGKILL:when=1",
                    "-o",
                    "/dev/null",
                ],
                &["volume", "open", "trial"],
            )
            .output();
        match tried {
            Ok(out) if out.status.signal() == Some(libc::SIGKILL) => Some(Self {
                home,
                _daemon: daemon,
                from,
            }),
            other => {
                eprintln!("SKIPPED: no strace here: {other:?}");
                None
            }
        }
    }

    /// Runs a command that is killed at the n-th call of a step.
    fn killed(&self, step: &str, n: u32, args: &[&str]) -> Output {
        let inject = format!("inject={step}:signal=SIGKILL:when={n}");
        let before = [
            "-f",
            "-qq",
            "-e",
            &inject,
            "-e",
            &format!("trace={step}"),
            "-o",
            "/dev/null",
        ];
        self.home.command_under("strace", &before, args).output().unwrap()
    }

    fn volumes(&self) -> Vec<Value> {
        self.home.json(&["volume", "list"])["volumes"]
            .as_array()
            .unwrap()
            .clone()
    }

    /// Ends and destroys all that is there, and says that nothing is left.
    fn clear(&self, at: &str) {
        // Whoever looks has what lost its maker ended.
        self.home.json(&["status"]);
        for volume in self.volumes() {
            let generation = volume["generation"].as_str().unwrap();
            if volume["state"] == "open" {
                self.home.json(&["volume", "end", generation, "--dirty"]);
            }
            let out = self.home.run(&["volume", "destroy", generation]);
            assert!(out.status.success(), "{at}: {volume}: {}", said(&out));
        }
        assert!(self.volumes().is_empty(), "{at}");
        // What a trial left is taken away by the daemon.
        assert!(
            wait_until(LONG, || mounts_beneath(&self.home.state()).is_empty()),
            "{at}"
        );
        let of_job = self.home.state().join("volumes/job");
        let left = || std::fs::read_dir(&of_job).map_or(0, Iterator::count);
        assert!(wait_until(LONG, || left() == 0), "{at}");
    }

    /// Kills a command at each of its steps; `prepare` gives its last arguments, `then` looks at what is left.
    fn sweep(&self, args: &[&str], prepare: &dyn Fn() -> Vec<String>, then: &dyn Fn(&str)) -> u32 {
        let mut kills = 0;
        for step in STEPS {
            for n in 1..60 {
                let more = prepare();
                let all: Vec<&str> = args
                    .iter()
                    .copied()
                    .chain(more.iter().map(String::as_str))
                    .collect();
                let out = self.killed(step, n, &all);
                let at = format!("{} at {step} {n}", all.join(" "));
                if out.status.signal() != Some(libc::SIGKILL) {
                    assert!(out.status.success(), "{at}: {}", said(&out));
                    self.clear(&at);
                    break;
                }
                kills += 1;
                then(&at);
                self.clear(&at);
            }
        }
        kills
    }

    fn had(&self, backend: &str) -> bool {
        let doctor = self.home.json(&["doctor"]);
        let findings = doctor["findings"].as_array().unwrap();
        let had = findings
            .iter()
            .any(|f| f["name"] == backend && f["grade"] == "ok");
        if !had {
            eprintln!("SKIPPED: {backend} is not to be had here");
        }
        had
    }

    fn opened(&self, backend: &str) -> String {
        let from = self.from.to_str().unwrap();
        let opened = self
            .home
            .json(&["volume", "open", "job", "--backend", backend, "--from", from]);
        opened["generation"].as_str().unwrap().to_owned()
    }
}

#[test]
fn an_opening_that_is_killed_at_any_step_is_in_nobodys_way() {
    let Some(lab) = Lab::new() else { return };
    for backend in ["dir", "overlay", "tmpfs"] {
        if !lab.had(backend) {
            continue;
        }
        let from = lab.from.to_str().unwrap();
        let args = ["volume", "open", "job", "--backend", backend, "--from", from];
        let next = |at: &str| {
            let all = lab.volumes();
            // One that was ready is a person's to end; anything less is ended for whoever comes next.
            if all.iter().any(|volume| volume["state"] == "open") {
                return;
            }
            let out = lab.home.run(&args);
            assert!(out.status.success(), "{at}: {}", said(&out));
            let opened = lab
                .volumes()
                .into_iter()
                .filter(|volume| volume["state"] == "open")
                .count();
            assert_eq!(opened, 1, "{at}");
        };
        let kills = lab.sweep(&args, &Vec::new, &next);
        assert!(kills >= 15, "{backend}: {kills}");
    }
}

#[test]
fn a_recycling_that_is_killed_at_any_step_is_done_by_the_next() {
    let Some(lab) = Lab::new() else { return };
    for backend in ["dir", "overlay"] {
        if !lab.had(backend) {
            continue;
        }
        let prepare = || vec!["--recycle".to_owned(), lab.opened(backend)];
        let next = |at: &str| {
            let all = lab.volumes();
            if all.iter().any(|volume| volume["state"] == "open") {
                return;
            }
            let out = lab.home.run(&["volume", "open", "job"]);
            assert!(out.status.success(), "{at}: {}", said(&out));
        };
        let kills = lab.sweep(&["volume", "open", "job", "--backend", backend], &prepare, &next);
        assert!(kills >= 10, "{backend}: {kills}");
    }
}

#[test]
fn a_destruction_that_is_killed_at_any_step_goes_on() {
    let Some(lab) = Lab::new() else { return };
    for backend in ["dir", "overlay"] {
        if !lab.had(backend) {
            continue;
        }
        let prepare = || {
            let generation = lab.opened(backend);
            lab.home.json(&["volume", "end", &generation, "--dirty"]);
            vec![generation]
        };
        let kills = lab.sweep(&["volume", "destroy"], &prepare, &|_| {});
        assert!(kills >= 5, "{backend}: {kills}");
    }
}

#[test]
fn a_salvage_that_is_killed_at_any_step_leaves_the_volume_and_no_half() {
    let Some(lab) = Lab::new() else { return };
    let to = lab.home.path().join("saved");
    let prepare = || {
        drop(std::fs::remove_dir_all(&to));
        let generation = lab.opened("dir");
        lab.home.json(&["volume", "end", &generation, "--dirty"]);
        vec![generation, "--to".to_owned(), to.to_str().unwrap().to_owned()]
    };
    let whole = |at: &str| {
        let generation = lab.volumes()[0]["generation"].as_str().unwrap().to_owned();
        if to.exists() {
            assert_eq!(
                std::fs::read(to.join("d/f")).unwrap(),
                b"x",
                "{at}: what has the name is whole"
            );
            std::fs::remove_dir_all(&to).unwrap();
        }
        let saved = lab
            .home
            .json(&["volume", "salvage", &generation, "--to", to.to_str().unwrap()]);
        assert_eq!(
            (&saved["whole"], &saved["files"]),
            (&json!(true), &json!(1)),
            "{at}"
        );
    };
    let kills = lab.sweep(&["volume", "salvage"], &prepare, &whole);
    assert!(kills >= 5, "{kills}");
}

/// A daemon that is killed while it ends a volume, or after it was put aside, is followed by one that finishes.
#[test]
fn what_a_daemon_left_half_done_the_next_one_does() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let generation = {
        let opened = home.json(&["volume", "open", "job"]);
        opened["generation"].as_str().unwrap().to_owned()
    };
    home.json(&["volume", "end", &generation, "--dirty"]);
    daemon.kill();
    // As if it had been put aside, and nobody had come to free it.
    let of_job = home.state().join("volumes/job");
    std::fs::rename(
        of_job.join(&generation),
        of_job.join(format!(".aside-{generation}")),
    )
    .unwrap();
    let _daemon = home.serve(&[]);
    let state = || home.json(&["volume", "show", &generation])["volume"]["state"].clone();
    assert!(wait_until(LONG, || state() == "destroyed"), "{}", state());
    assert_eq!(std::fs::read_dir(&of_job).unwrap().count(), 0);
}
