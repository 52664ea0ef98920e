//! Another program exchanges directories and files for links out of the root, all the time, while every file tool is
//! called beneath them: nothing outside is changed, and nothing of it is told.

use crate::crash::tree::{Entry, picture};
use crate::harness::{Daemon, Home, Volume, full};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What stands outside alone, as a name and as content.
const SECRET: &str = "sEcReT";

/// What is exchanged for what: each first one is honest.
const PAIRS: &[(&str, &str)] = &[("d", "d.evil"), ("a/b", "a/b.evil"), ("g", "g.evil")];

/// Exchanges two names; false where one of them is missing.
fn exchange(one: &Path, other: &Path) -> bool {
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
    let (one, other) = (path(one), path(other));
    // SAFETY: plain system call on two strings that outlive it.
    #[expect(unsafe_code, reason = "std has no way to exchange two names")]
    let answer = unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            one.as_ptr(),
            libc::AT_FDCWD,
            other.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    answer == 0
}

/// Puts down what is exchanged: a directory and a link to one outside, also by a relative path, and the same of a file.
fn laid_out(home: &Home, volume: &Volume) {
    let (outside, tree) = (home.path().join("outside"), &volume.tree);
    for dir in [
        outside.clone(),
        outside.join("n"),
        tree.join("a"),
        tree.join("a/b"),
        tree.join("d"),
    ] {
        std::fs::create_dir(dir).unwrap();
    }
    for file in ["f", "g", "n/f", SECRET] {
        std::fs::write(outside.join(file), SECRET).unwrap();
    }
    for file in ["a/b/f", "d/f", "g"] {
        std::fs::write(tree.join(file), "mine\n").unwrap();
    }
    symlink(&outside, tree.join("d.evil")).unwrap();
    symlink(outside.join("g"), tree.join("g.evil")).unwrap();
    let from = tree.strip_prefix(home.path()).unwrap().components().count() + 1;
    symlink(format!("{}outside", "../".repeat(from)), tree.join("a/b.evil")).unwrap();
    assert!(
        tree.join("a/b.evil/f").exists(),
        "the relative one leads there, too"
    );
}

/// Puts a file back that a call was about to change when it was exchanged.
fn put_back(tree: &Path, outside: &Path, (honest, evil): (&str, &str)) {
    if honest == "g" {
        // Whichever is missing; the other one stays.
        drop(symlink(outside.join("g"), tree.join(evil)));
        let new = std::fs::File::options()
            .write(true)
            .create_new(true)
            .open(tree.join(honest));
        drop(new);
    }
}

/// Gives one call of each tool, beneath a directory that is exchanged, or of the file that is.
fn calls(dir: &str) -> Vec<(&'static str, Value)> {
    let at = |name: &str| format!("{dir}/{name}");
    let patch = format!(
        "*** Begin Patch\n*** Add File: {dir}/p\n+p\n*** Update File: {dir}/f\n@@\n-mine\n+ours\n*** End Patch\n"
    );
    vec![
        ("write_file", json!({"path": at("f"), "content": "mine\n"})),
        ("read_file", json!({"path": at("f")})),
        (
            "edit_file",
            json!({"path": at("f"), "old_string": "mine", "new_string": "ours"}),
        ),
        (
            "edit_file",
            json!({"path": at("f"), "old_string": SECRET, "new_string": "ours"}),
        ),
        ("write_file", json!({"path": at("new"), "content": "mine\n"})),
        ("list_directory", json!({"path": dir})),
        (
            "move_file",
            json!({"source": at("new"), "destination": at("moved"), "overwrite": true}),
        ),
        (
            "move_file",
            json!({"source": at("g"), "destination": "taken", "overwrite": true}),
        ),
        ("search_files", json!({"path": dir, "pattern": "*"})),
        ("grep", json!({"path": dir, "pattern": SECRET})),
        ("delete_file", json!({"path": at("moved")})),
        ("create_directory", json!({"path": at("n/m")})),
        ("apply_patch", json!({ "patch": patch })),
        ("set_mode", json!({"path": at("f"), "mode": "0600"})),
        ("get_file_info", json!({"path": at("f")})),
        ("delete_file", json!({"path": at("p")})),
        ("delete_directory", json!({"path": at("n/m")})),
        ("delete_directory", json!({"path": at("n"), "recursive": true})),
        ("write_file", json!({"path": "g", "content": "mine\n"})),
        ("read_file", json!({"path": "g"})),
        ("set_mode", json!({"path": "g", "mode": "0600"})),
    ]
}

/// How far the race has come.
#[derive(Default)]
struct Race {
    swaps: AtomicUsize,
    /// What was answered to each tool, by code; nothing where it was done.
    answers: Mutex<BTreeMap<(&'static str, String), usize>>,
    calls: AtomicUsize,
    /// Somebody failed.
    lost: AtomicUsize,
}

impl Race {
    fn over(&self, since: Instant) -> bool {
        let (swaps, calls, lasts) = if full() {
            (20_000, 3_000, Duration::from_secs(30))
        } else {
            (2_000, 250, Duration::ZERO)
        };
        let enough = |count: &AtomicUsize, wanted| count.load(Ordering::Relaxed) >= wanted;
        enough(&self.lost, 1)
            || (enough(&self.swaps, swaps) && enough(&self.calls, calls) && since.elapsed() >= lasts)
    }

    /// Calls tool after tool until it is over.
    fn call_all(&self, daemon: &Daemon, volume: &Volume, client: usize, since: Instant) {
        let mut conn = daemon.conn();
        let dir = PAIRS[client % 2].0;
        for n in 0.. {
            for (m, (tool, arguments)) in calls(dir).into_iter().enumerate() {
                if self.over(since) {
                    return;
                }
                let reply = conn.call(volume, tool, &format!("{client}-{n}-{m}"), &arguments);
                let said = reply.body.to_string();
                if tool != "grep" || reply.status != 200 {
                    assert!(
                        !said.contains(SECRET) || arguments.to_string().contains(SECRET),
                        "{tool}: {said}"
                    );
                } else {
                    assert_eq!(reply.body["matches"].as_array().map_or(0, Vec::len), 0, "{said}");
                }
                assert!(reply.status < 500, "{tool}: {said}");
                *self
                    .answers
                    .lock()
                    .unwrap()
                    .entry((tool, reply.code().to_owned()))
                    .or_default() += 1;
                self.calls.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn swap_all(&self, tree: &Path, outside: &Path, since: Instant) {
        while !self.over(since) {
            for pair in PAIRS {
                if exchange(&tree.join(pair.0), &tree.join(pair.1)) {
                    self.swaps.fetch_add(1, Ordering::Relaxed);
                } else {
                    put_back(tree, outside, *pair);
                }
            }
        }
    }
}

/// Tells the others where one fails, so that nobody goes on for ever.
struct Watch<'a>(&'a Race);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_swap_race_leads_nowhere() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    laid_out(&home, &volume);
    let outside = home.path().join("outside");
    let before = picture(&outside);
    let (race, since) = (Race::default(), Instant::now());
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (race, daemon, volume) = (&race, &daemon, &volume);
            scope.spawn(move || {
                let _watch = Watch(race);
                race.call_all(daemon, volume, client, since);
            });
        }
        race.swap_all(&volume.tree, &outside, since);
    });
    assert_eq!(picture(&outside), before, "nothing outside is changed");
    // Not in trash, not in staging, and under no other name.
    for (path, entry) in picture(volume.tree.parent().unwrap()) {
        assert!(!path.to_string_lossy().contains(SECRET), "{}", path.display());
        assert!(
            !matches!(&entry, Entry::File { content, .. } if content.contains(SECRET)),
            "{}",
            path.display()
        );
    }
    let answers = race.answers.into_inner().unwrap();
    let count = |code: &str| -> usize {
        answers
            .iter()
            .filter(|((_, got), _)| got == code)
            .map(|(_, count)| count)
            .sum()
    };
    eprintln!(
        "{} swaps in {} s under {} calls of every file tool: {} done, {} refused as leading out, {} otherwise; \
         0 escapes, 0 leaks",
        race.swaps.into_inner(),
        since.elapsed().as_secs(),
        race.calls.into_inner(),
        count(""),
        count("path_escapes_root"),
        answers.values().sum::<usize>() - count("") - count("path_escapes_root"),
    );
    eprintln!("{answers:?}");
    assert!(count("") > 0 && count("path_escapes_root") > 0, "the race was on");
}
