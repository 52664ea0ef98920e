//! A state root that fills up under a certification: the attempt ends by name, and the next one has room.

use crate::harness::{Site, is_root, said, skipped, statement, text};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A filesystem of its own under a state root.
struct Small {
    at: PathBuf,
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.at).status());
    }
}

fn done(program: &str, args: &[&Path]) -> bool {
    let path = "/usr/sbin:/usr/bin:/sbin:/bin";
    let out = Command::new(program).args(args).env("PATH", path).output();
    out.is_ok_and(|out| out.status.success())
}

/// Mounts one, in memory or on a file; `None` where that cannot be.
fn small(site: &Site, kind: &str) -> Option<Small> {
    if !is_root() {
        skipped("only root mounts a filesystem");
        return None;
    }
    let at = site.home.state();
    std::fs::create_dir_all(&at).unwrap();
    let options = |text: &str| PathBuf::from(text);
    let mounted = match kind {
        "ext4" | "few files" => {
            let image = site.at("image");
            let file = std::fs::File::create(&image).unwrap();
            file.set_len(300 << 20).unwrap();
            let files = if kind == "ext4" { "-N20000" } else { "-N3000" };
            done("mkfs.ext4", &[&options("-q"), &options(files), &image])
                && done("mount", &[&options("-o"), &options("loop"), &image, &at])
        }
        _ => {
            let size = options("size=250m,mode=700");
            let tmpfs = options("tmpfs");
            done(
                "mount",
                &[&options("-t"), &tmpfs, &options("-o"), &size, &tmpfs, &at],
            )
        }
    };
    if !mounted {
        skipped(&format!("no {kind} can be mounted here"));
        return None;
    }
    let small = Small { at };
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&small.at, std::fs::Permissions::from_mode(0o700)).unwrap();
    Some(small)
}

const FILLS_BYTES: &str = "import os\nwith open(os.environ['TMPDIR'] + '/f', 'wb') as f:\n    while True: f.write(b'x' * (1 << 20))\n";
const FILLS_FILES: &str =
    "import os, itertools\nfor n in itertools.count(): open(f\"{os.environ['TMPDIR']}/{n}\", 'w').close()\n";

#[test]
fn tests_that_fill_the_disk_end_by_name_and_the_next_attempt_has_room() {
    for (kind, fills) in [
        ("tmpfs", FILLS_BYTES),
        ("ext4", FILLS_BYTES),
        ("few files", FILLS_FILES),
    ] {
        let mut site = Site::new();
        std::fs::write(site.repository().join("fill.py"), fills).unwrap();
        site.base = site.commit_all("fills");
        site.job("");
        let Some(_small) = small(&site, kind) else {
            continue;
        };
        let certify = |test: &str| {
            let args = ["certify", "--from", "job.toml", "--repository", "repo"];
            let args = [&args[..], &["--git", &site.base, "--test", test, "--json"]].concat();
            let out = site.run(&args);
            let answer: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
            (out.status.code(), answer, said(&out))
        };
        for _ in 0..2 {
            let (code, refusal, said) = certify("python3 fill.py {report}");
            assert_eq!(code, Some(79), "{kind}: {said}");
            assert_eq!(refusal["reason"], "disk_full", "{kind}: {said}");
            let (code, certified, said) = certify("python3 check.py {report}");
            assert_eq!(code, Some(0), "{kind}: {said}");
            let statement = statement(text(&certified["envelope"]).as_ref());
            let earlier = statement["predicate"]["earlier"].as_array().unwrap();
            assert!(
                earlier.iter().any(|one| one["verdict"] == "quota_exceeded"),
                "{kind}: {earlier:?}"
            );
        }
        site.at_rest();
    }
}

const TREE_BYTES: &str = "mkdir -p more\nexec dd if=/dev/zero of=more/f bs=1M\n";
const TREE_FILES: &str =
    "mkdir -p more/deep\ni=0\nwhile :; do : > more/deep/$i || exit 1; i=$((i+1)); done\n";

/// What a command of the job left in the tree of an attempt that used up the disk is freed with it: no later attempt of
/// whatever job is refused for it, and the volume and what is recorded of it stay.
#[test]
fn an_install_command_that_fills_the_tree_leaves_room_for_the_next_attempt() {
    for (kind, fills, backend) in [
        ("tmpfs", TREE_BYTES, "auto"),
        ("ext4", TREE_BYTES, "auto"),
        ("ext4", TREE_BYTES, "dir"),
        ("few files", TREE_FILES, "auto"),
        ("few files", TREE_FILES, "dir"),
    ] {
        let mut site = Site::new();
        std::fs::write(site.repository().join("fill.sh"), fills).unwrap();
        site.base = site.commit_all("fills");
        let Some(_small) = small(&site, kind) else {
            continue;
        };
        let certify = |job: &str, more: &[&str]| {
            let args = [
                "certify",
                "--job",
                job,
                "--repository",
                "repo",
                "--git",
                &site.base,
            ];
            let test = [
                "--install",
                "cargo",
                "--test",
                "python3 check.py {report}",
                "--json",
            ];
            let on = ["--backend", backend];
            let out = site.run(&[&args[..], &test, &on, more].concat());
            let answer: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
            (out.status.code(), answer, said(&out))
        };
        for job in ["one", "two"] {
            let (code, refusal, said) = certify(job, &["--install", "sh fill.sh"]);
            assert_eq!(code, Some(79), "{kind} {backend}: {said}");
            assert_eq!(refusal["reason"], "disk_full", "{kind} {backend}: {said}");
            // Freed at once: nothing of it is left for a person to destroy.
            assert!(!said.contains("volume destroy"), "{kind} {backend}: {said}");
            let (code, _, said) = certify(job, &[]);
            assert_eq!(code, Some(0), "{kind} {backend}: {said}");
        }
        let ended: Vec<Value> = site.volumes();
        let quarantined = ended.iter().filter(|volume| volume["state"] == "quarantined");
        for volume in quarantined.clone() {
            let (job, generation) = (text(&volume["job"]), text(&volume["generation"]));
            let place = site.home.state().join("volumes").join(job).join(generation);
            assert!(
                place.join("meta").is_dir() && place.join("vol").is_dir(),
                "{volume}"
            );
            assert!(!place.join("vol/tree/more").exists() && !place.join("layer/upper/tree/more").exists());
            // The sealed tree under it is others', too.
            site.json(&["volume", "show", generation]);
        }
        assert_eq!(quarantined.count(), 2, "{ended:?}");
        site.at_rest();
    }
}

/// Also where not one file can be made any more, not even the one that says who works on a job.
#[test]
fn a_refusal_for_want_of_the_last_file_names_the_volumes_that_hold_them() {
    let site = Site::new();
    let Some(small) = small(&site, "few files") else {
        return;
    };
    let opened = site.json(&["volume", "open", "holder", "--backend", "dir"]);
    let generation = text(&opened["generation"]).to_owned();
    let tree = site
        .home
        .state()
        .join("volumes/holder")
        .join(&generation)
        .join("vol/tree");
    for n in 0..1500 {
        std::fs::write(tree.join(n.to_string()), "").unwrap();
    }
    site.json(&["volume", "end", &generation]);
    let filler = small.at.join("filler");
    std::fs::create_dir(&filler).unwrap();
    let mut files = (0..).map(|n| std::fs::write(filler.join(n.to_string()), ""));
    assert!(files.any(|written| written.is_err()));
    let args = [
        "certify",
        "--job",
        "late",
        "--repository",
        "repo",
        "--git",
        &site.base,
    ];
    let test = ["--install", "cargo", "--test", "python3 check.py {report}"];
    let refused = site.refused(&[&args[..], &test].concat(), 74);
    assert_eq!(refused["reason"], "disk_full", "{refused}");
    let frees = format!("semel volume destroy {generation} (");
    assert!(refused["names"].to_string().contains(&frees), "{refused}");
    site.json(&["volume", "destroy", &generation]);
    assert_eq!(site.json(&[&args[..], &test].concat())["status"], "certified");
}

/// Who is refused for want of room hears which volume holds it, and how it is freed.
#[test]
fn a_refusal_for_want_of_room_names_the_volumes_that_hold_it() {
    for kind in ["tmpfs", "ext4"] {
        let site = Site::new();
        let Some(_small) = small(&site, kind) else {
            continue;
        };
        let opened = site.json(&["volume", "open", "holder", "--backend", "dir"]);
        let generation = text(&opened["generation"]).to_owned();
        let volume = site.home.state().join("volumes/holder").join(&generation);
        let filled = Command::new("dd")
            .args(["if=/dev/zero", "bs=1M", "count=200"])
            .arg(format!("of={}", volume.join("vol/tree/big").display()))
            .output()
            .unwrap();
        assert!(filled.status.success(), "{}", said(&filled));
        // The rest is held by nobody whom a person could ask to let go.
        let _rest = Command::new("dd")
            .args(["if=/dev/zero", "bs=1M"])
            .arg(format!("of={}", site.home.state().join("filler").display()))
            .output();
        let refused = site.refused(&["volume", "open", "other"], 74);
        assert_eq!(refused["reason"], "disk_full", "{kind}: {refused}");
        assert_eq!(refused["names"], json!([]), "of an open one nothing is said");
        site.json(&["volume", "end", &generation]);
        let refused = site.refused(&["volume", "open", "other"], 74);
        assert!(
            refused["names"]
                .to_string()
                .contains(&format!("semel volume destroy {generation} (200 MiB")),
            "{kind}: {refused}"
        );
        site.json(&["volume", "destroy", &generation]);
        site.json(&["volume", "open", "other"]);
    }
}
