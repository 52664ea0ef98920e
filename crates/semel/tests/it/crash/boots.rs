//! A kill, and another boot after it: the evidence is believed where both sides of a rename agree, and the generation is
//! over in any case.

use super::lab::{Lab, Stands};
use super::tools::{self, Case, named};
use super::tree::{Picture, picture};
use crate::harness::{Daemon, Home, Share, Volume, skipped};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// A state root that lives from boot to boot.
struct Boots {
    home: Home,
    daemon: Option<Daemon>,
    boot: u32,
}

/// What a call left.
struct Left {
    volume: Volume,
    key: String,
    picture: Picture,
}

impl Boots {
    fn new() -> Option<Self> {
        let home = Home::new();
        let daemon = Daemon::in_boot(&home, 1, &[])?;
        Some(Self {
            home,
            daemon: Some(daemon),
            boot: 1,
        })
    }

    fn starts(&mut self, args: &[&str]) -> &mut Daemon {
        self.daemon = None;
        let fresh = Daemon::in_boot(&self.home, self.boot, args).expect("it starts");
        self.daemon.insert(fresh)
    }

    /// Kills the daemon at a point of one call in a new volume.
    fn dies(&mut self, case: &Case, at: &str) -> Left {
        // Not another boot yet: a daemon in the place of this one is told where it dies.
        self.starts(&["--crash-at", at]);
        let volume = self.home.open("job", "power-best-effort");
        super::tree::chmod(&volume.tree, 0o755);
        std::fs::create_dir(volume.tree.join("d")).unwrap();
        super::tree::chmod(&volume.tree.join("d"), 0o755);
        (case.before)(&volume.tree.join("d"));
        let key = format!("k{}", self.boot);
        let daemon = self.daemon.as_mut().unwrap();
        let first = daemon
            .conn()
            .try_call(&volume, case.tool, &key, &(case.arguments)("d"));
        assert!(first.is_none(), "{} {at} is met", case.name);
        daemon.ended(Duration::from_secs(60)).expect("it dies");
        Left {
            picture: picture(&volume.tree.join("d")),
            volume,
            key,
        }
    }

    /// Starts the daemon in another boot, and gives what it then says of a call.
    fn reboots(&mut self, left: &Left) -> String {
        self.boot += 1;
        let daemon = self.starts(&[]);
        let late = daemon
            .conn()
            .call(&left.volume, "list_directory", "", &json!({"path": "d"}));
        assert_eq!(
            (late.code(), late.reason()),
            ("replay_conflict", "stale_generation")
        );
        let asked = json!({"key": left.key});
        let receipt = daemon.conn().call(&left.volume, "get_receipt", "", &asked);
        match receipt.body["state"].as_str() {
            Some(state) => state.to_owned(),
            None => receipt.code().to_owned(),
        }
    }
}

fn stands(left: &Picture, case: &Case) -> Stands {
    let scratch = tempfile::tempdir().unwrap();
    super::tree::chmod(scratch.path(), 0o755);
    (case.before)(scratch.path());
    if *left == picture(scratch.path()) {
        return Stands::Before;
    }
    (case.effect)(scratch.path());
    if *left == picture(scratch.path()) {
        Stands::After
    } else {
        Stands::Between
    }
}

/// Where the disk kept everything, another boot learns what this one would have.
#[test]
fn another_boot_believes_what_both_sides_say() {
    let Some(mut boots) = Boots::new() else {
        skipped("another boot cannot be simulated here");
        return;
    };
    let mut lab = Lab::new("power-best-effort");
    let (mut trials, mut share) = (0, Share::of(11));
    for case in tools::all() {
        for at in lab.points_of(case) {
            if !share.takes() {
                continue;
            }
            let left = boots.dies(case, &at);
            let stood = stands(&left.picture, case);
            let state = boots.reboots(&left);
            let wanted = if stood == Stands::After {
                "done"
            } else {
                "not_found"
            };
            assert_eq!(state, wanted, "{} {at}", case.name);
            let found = stands(&picture(&left.volume.tree.join("d")), case);
            assert_eq!(
                found == Stands::After,
                stood == Stands::After,
                "{} {at}",
                case.name
            );
            assert_ne!(found, Stands::Between, "{} {at}", case.name);
            trials += 1;
        }
    }
    assert_eq!(boots.home.json(&["status"])["unknown"], json!([]));
    eprintln!("another boot: {trials} trials, 0 lost, 0 invented");
}

/// A tool, the point at which it dies, and what is lost then.
type Cut = (&'static str, &'static str, fn(&Volume));

/// What a power cut may do that a kill cannot: one side of a rename is kept, the other is not.
const CUTS: &[Cut] = &[
    // The staged file left staging, and has no name.
    ("write_file new", "installed:1", |volume| {
        std::fs::remove_file(volume.tree.join("d/f")).unwrap();
    }),
    // It is still staged, and the file that it was to replace is gone.
    ("write_file replace", "begun:1", |volume| {
        std::fs::remove_file(volume.tree.join("d/f")).unwrap();
    }),
    // The pre-image went nowhere.
    ("write_file replace", "pre_image_kept:1", |volume| {
        std::fs::remove_file(only(&volume.tree.parent().unwrap().join("trash"))).unwrap();
    }),
    // What was removed has its name again, and lies in trash.
    ("delete_file", "removed:1", |volume| {
        let kept = only(&volume.tree.parent().unwrap().join("trash"));
        std::fs::hard_link(kept, volume.tree.join("d/f")).unwrap();
    }),
    // What was moved has neither name.
    ("move_file", "moved:1", |volume| {
        std::fs::remove_file(volume.tree.join("d/to/g")).unwrap();
    }),
    // A directory was removed, and another stands there.
    ("delete_directory empty", "removed:1", |volume| {
        std::fs::create_dir(volume.tree.join("d/d")).unwrap();
    }),
];

fn only(dir: &Path) -> std::path::PathBuf {
    let mut names = std::fs::read_dir(dir).unwrap();
    let first = names.next().unwrap().unwrap().path();
    assert!(names.next().is_none());
    first
}

/// Where the two sides disagree, nothing is guessed.
#[test]
fn another_boot_guesses_nothing() {
    let Some(mut boots) = Boots::new() else {
        skipped("another boot cannot be simulated here");
        return;
    };
    for (n, (name, at, cut)) in CUTS.iter().enumerate() {
        let left = boots.dies(named(name), at);
        cut(&left.volume);
        let before = picture(left.volume.tree.parent().unwrap());
        assert_eq!(boots.reboots(&left), "unknown", "{name} {at}");
        assert_eq!(
            picture(left.volume.tree.parent().unwrap()),
            before,
            "{name} {at}: nothing is touched"
        );
        let status = boots.home.json(&["status"]);
        assert_eq!(status["unknown"].as_array().unwrap().len(), n + 1, "{status}");
    }
}
