//! `semel seal` and `semel unseal`: killed at any system call, in any surroundings, of anything that was meddled with.

use crate::harness::{Share, Site, full, said, skipped, text};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// A draft that ended clean.
struct Draft {
    site: Site,
    generation: String,
    sealed: Value,
}

impl Draft {
    fn new() -> Self {
        let site = Site::new();
        let repository = site.repository();
        std::fs::write(repository.join("run.sh"), "#!/bin/sh\n").unwrap();
        std::os::unix::fs::symlink("src/lib.rs", repository.join("l")).unwrap();
        std::fs::write(repository.join("large"), vec![7; 3 << 20]).unwrap();
        site.commit_all("more");
        let opened = site.json(&["volume", "open", "own", "--from", repository.to_str().unwrap()]);
        let generation = text(&opened["generation"]).to_owned();
        site.json(&["volume", "end", &generation]);
        let sealed = site.json(&["seal", &generation]);
        Self {
            site,
            generation,
            sealed,
        }
    }

    fn proposal(&self) -> &str {
        text(&self.sealed["proposal"])
    }

    fn kept(&self, below: &str) -> Vec<String> {
        let dir = self.site.home.state().join("proposals").join(below);
        names(&dir)
    }

    /// Runs a command under a tracer that kills it at the nth of these calls; `None` without a tracer.
    fn killed(&self, args: &[&str], call: &str, nth: usize) -> Option<Output> {
        let (trace, inject) = (
            format!("trace={call}"),
            format!("inject={call}:signal=SIGKILL:when={nth}"),
        );
        let traced = ["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
        let mut command = self.site.home.command_under("strace", &traced, args);
        command.current_dir(self.site.home.path()).output().ok()
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

const CALLS: &[&str] = &[
    "renameat2",
    "renameat",
    "rename",
    "fsync",
    "fdatasync",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "flock",
    "fchmod",
    "fchmodat",
    "symlinkat",
    "write",
    "openat2",
    "openat",
    "clone3",
];

/// Kills a command at a share of its system calls; `after` looks at what is left, and begins anew.
fn sweep(draft: &Draft, args: &[&str], mut after: impl FnMut(&str)) -> Option<usize> {
    let (mut killed, mut all, mut opens, mut writes) = (0, Share::of(2), Share::of(29), Share::of(5));
    for call in CALLS {
        let share = match *call {
            "openat" | "openat2" => &mut opens,
            "write" | "fchmod" => &mut writes,
            _ => &mut all,
        };
        for nth in 1.. {
            if !share.takes() {
                continue;
            }
            let out = draft.killed(args, call, nth)?;
            let what = format!("{} at {call} {nth}: {}", args[0], said(&out));
            after(&what);
            match out.status.signal() {
                Some(9) => killed += 1,
                None if out.status.success() => break,
                _ => panic!("{what}"),
            }
        }
    }
    Some(killed)
}

#[test]
fn a_seal_that_is_killed_is_in_nobodys_way() {
    let draft = Draft::new();
    let both = draft.kept("sha256");
    assert_eq!(both.len(), 2, "{both:?}");
    let whole = draft.site.home.state().join("proposals/sha256");
    let mut trials = 0;
    let killed = sweep(&draft, &["seal", &draft.generation], |what| {
        trials += 1;
        let again = draft.site.json(&["seal", &draft.generation]);
        assert_eq!(again, draft.sealed, "{what}");
        assert_eq!(draft.kept("sha256"), both, "{what}");
        assert_eq!(draft.kept("tmp"), Vec::<String>::new(), "{what}");
        // The next one begins from nothing, or from an archive whose manifest was not written any more.
        for name in both.iter().skip(trials % 2) {
            std::fs::remove_file(whole.join(name)).unwrap();
        }
    });
    match killed {
        None => skipped("no strace here"),
        Some(killed) => {
            eprintln!("seal: killed at {killed} system calls, 0 in the way of the next");
            assert!(killed > 6);
        }
    }
    draft.site.at_rest();
}

#[test]
fn an_unseal_that_is_killed_leaves_all_or_nothing() {
    let draft = Draft::new();
    let place = draft.site.at("place");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("mine"), "stays").unwrap();
    let (into, other) = (place.join("into"), place.join("other"));
    let unseal = ["unseal", draft.proposal(), into.to_str().unwrap()];
    let killed = sweep(&draft, &unseal, |what| {
        if into.exists() {
            assert_eq!(
                std::fs::read(into.join("large")).unwrap().len(),
                3 << 20,
                "{what}"
            );
            assert!(
                into.join("l").is_symlink() && into.join("src/lib.rs").is_file(),
                "{what}"
            );
            std::fs::remove_dir_all(&into).unwrap();
        }
        draft
            .site
            .json(&["unseal", draft.proposal(), other.to_str().unwrap()]);
        assert_eq!(names(&place), ["mine", "other"], "{what}");
        std::fs::remove_dir_all(&other).unwrap();
    });
    match killed {
        None => skipped("no strace here"),
        Some(killed) => {
            eprintln!("unseal: killed at {killed} system calls, 0 halves, 0 in the way of the next");
            assert!(killed > 6);
        }
    }
    draft.site.at_rest();
}

/// Neither locale, umask, time zone nor the place from where it is run has a say.
#[test]
fn a_seal_is_the_same_in_any_surroundings() {
    let draft = Draft::new();
    for (umask, locale, zone) in [
        ("077", "tr_TR.UTF-8", "Asia/Kathmandu"),
        ("000", "C", "UTC"),
        ("777", "POSIX", ""),
    ] {
        for name in draft.kept("sha256") {
            std::fs::remove_file(draft.site.home.state().join("proposals/sha256").join(name)).unwrap();
        }
        let shell = format!("umask {umask}; exec \"$0\" \"$@\"");
        let args = ["seal", &draft.generation, "--json"];
        let mut command = draft.site.home.command_under("sh", &["-c", &shell], &args);
        let out = command
            .env("LC_ALL", locale)
            .env("LANG", locale)
            .env("TZ", zone)
            .current_dir("/")
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", said(&out));
        let again: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(again, draft.sealed, "umask {umask}");
        let into = draft.site.at(&format!("u{umask}"));
        let args = ["unseal", draft.proposal(), into.to_str().unwrap()];
        let out = draft
            .site
            .home
            .command_under("sh", &["-c", &shell], &args)
            .output()
            .unwrap();
        // Root passes any mode; nobody else gets into a directory that is closed to its owner.
        if umask != "777" || by_root() {
            assert!(out.status.success(), "{}", said(&out));
            let run = std::fs::metadata(into.join("src")).unwrap();
            assert_eq!(
                std::os::unix::fs::PermissionsExt::mode(&run.permissions()) & 0o7777,
                0o755
            );
        }
    }
    draft.site.at_rest();
}

fn by_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

/// Whatever was meddled with is refused by name, and nothing is left of it.
#[test]
fn what_was_meddled_with_is_not_unsealed() {
    let draft = Draft::new();
    let digest = draft.proposal();
    let whole = draft.site.home.state().join("proposals/sha256");
    let (archive, manifest) = (
        whole.join(format!("{digest}.tar")),
        whole.join(format!("{digest}.json")),
    );
    let (good, told) = (
        std::fs::read(&archive).unwrap(),
        std::fs::read_to_string(&manifest).unwrap(),
    );
    let into = draft.site.at("into");
    let unseal = ["unseal", digest, into.to_str().unwrap()];
    let refused = |exit: i32, reason: &str| {
        let refusal = draft.site.refused(&unseal, exit);
        assert_eq!(
            refusal["reason"].as_str().unwrap_or_default(),
            reason,
            "{refusal}"
        );
        assert!(!into.exists());
        let left = names(draft.site.home.path());
        assert!(
            !left.iter().any(|name| name.starts_with(".semel-unseal")),
            "{left:?}"
        );
    };
    std::fs::remove_file(&archive).unwrap();
    let mut flipped = good.clone();
    flipped[700] ^= 1;
    for bad in [
        &good[..good.len() - 512],
        b"",
        &flipped,
        &[good.clone(), vec![0; 512]].concat(),
    ] {
        std::fs::write(&archive, bad).unwrap();
        refused(29, "other_archive");
    }
    std::fs::write(&archive, &good).unwrap();
    for (changed, exit, reason) in [
        (told.replacen("\"644\"", "\"755\"", 1), 29, "manifest_differs"),
        (
            told.replacen("\"version\":1", "\"version\":2", 1),
            29,
            "manifest_version",
        ),
        (told.replacen("{", "{\"odd\":1,", 1), 29, "manifest_shape"),
        (told[..told.len() / 2].to_owned(), 29, "manifest_shape"),
    ] {
        assert_ne!(changed, told);
        std::fs::write(&manifest, changed).unwrap();
        refused(exit, reason);
    }
    // Whoever certifies asks for the git tree, too.
    let tree = text(&draft.sealed["tree"]);
    let other_tree = tree.replace(|c: char| c != '0', "0");
    std::fs::write(&manifest, told.replace(tree, &other_tree)).unwrap();
    let certify = ["certify", "--from", "job.toml", "--proposal", digest];
    assert_eq!(draft.site.refused(&certify, 28)["code"], "tree_mismatch");
    // Sealing again mends both.
    std::fs::remove_file(&archive).unwrap();
    std::fs::write(&archive, &good[512..]).unwrap();
    assert_eq!(draft.site.json(&["seal", &draft.generation]), draft.sealed);
    let done = draft.site.json(&unseal);
    assert_eq!(
        (&done["entries"], &done["size_bytes"]),
        (&draft.sealed["entries"], &draft.sealed["size_bytes"])
    );
    assert_eq!(draft.site.refused(&unseal, 15)["code"], "precondition_failed");
    draft.site.at_rest();
}

/// Another reader gets the same files, and their digests are those of the manifest.
#[test]
fn the_manifest_lists_what_tar_extracts() {
    let draft = Draft::new();
    let whole = draft.site.home.state().join("proposals/sha256");
    let told = std::fs::read(whole.join(format!("{}.json", draft.proposal()))).unwrap();
    let told: Value = serde_json::from_slice(&told).unwrap();
    let into = draft.site.at("by-tar");
    std::fs::create_dir(&into).unwrap();
    let out = Command::new("tar")
        .arg("-xf")
        .arg(text(&draft.sealed["archive"]))
        .current_dir(&into)
        .output();
    let Ok(out) = out else {
        skipped("no tar here");
        return;
    };
    assert!(out.status.success(), "{}", said(&out));
    let entries = told["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 8);
    for entry in entries {
        let path = into.join(text(&entry["path"]));
        if entry["kind"] == "symlink" {
            assert_eq!(
                std::fs::read_link(path).unwrap().to_str(),
                entry["target"].as_str()
            );
            continue;
        }
        let content = std::fs::read(&path).unwrap();
        assert_eq!(entry["size"], content.len());
        let sum = semel_core::Sha256::of(&content).to_string();
        assert_eq!(entry["sha256"], sum);
        assert!(matches!(text(&entry["mode"]), "644" | "755"));
    }
    draft.site.at_rest();
}

/// Makes a large tree: many files, of which one is larger than memory may be used for it.
fn large(tree: &Path, entries: usize, bytes: u64) {
    use std::os::unix::fs::FileExt as _;
    for n in 0..entries - 1 {
        let dir = tree.join(format!("d{:03}/e{}", n % 800, n % 3));
        if n < 2400 {
            std::fs::create_dir_all(&dir).unwrap();
        }
        std::fs::write(dir.join(format!("f{n}")), format!("file {n}\n")).unwrap();
    }
    let sparse = std::fs::File::create(tree.join("large")).unwrap();
    sparse.set_len(bytes).unwrap();
    for at in [0, 1 << 20, bytes / 2, bytes - 3] {
        sparse.write_all_at(b"end", at).unwrap();
    }
}

/// Runs a command, and gives the most memory that it used, in KiB, and how long it took.
fn measured(draft: &Site, args: &[&str]) -> (u64, f64) {
    const PYTHON: &str = "import resource, subprocess, sys, time\nbegun = time.monotonic()\n\
        subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n\
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, time.monotonic() - begun)";
    let mut command = draft.home.command_under("python3", &["-c", PYTHON], args);
    let out = command.current_dir(draft.home.path()).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let told = String::from_utf8(out.stdout).unwrap();
    let (memory, took) = told.trim().split_once(' ').unwrap();
    (memory.parse().unwrap(), took.parse().unwrap())
}

/// With `SEMEL_FULL=1` 200,000 entries and 2.2 GB; else a share of both.
#[test]
fn a_large_tree_is_sealed_and_unsealed_in_little_memory() {
    let (entries, bytes) = if full() {
        (200_000, 2_200_000_000)
    } else {
        (4_000, 40_000_000)
    };
    let site = Site::new();
    let opened = site.json(&["volume", "open", "large"]);
    let generation = text(&opened["generation"]).to_owned();
    let tree = site
        .home
        .state()
        .join("volumes/large")
        .join(&generation)
        .join("vol/tree");
    large(&tree, entries, bytes);
    site.json(&["volume", "end", &generation]);
    let (memory, took) = measured(&site, &["seal", &generation]);
    eprintln!(
        "seal    {entries} entries, {bytes} bytes: {took:.1} s, {} MiB",
        memory >> 10
    );
    let sealed = site.json(&["seal", &generation]);
    assert_eq!(sealed["entries"], entries);
    let most = (64 << 10) + entries as u64 * 2;
    assert!(memory < most, "{memory} KiB");
    let into = site.at("into");
    let (memory, took) = measured(
        &site,
        &["unseal", text(&sealed["proposal"]), into.to_str().unwrap()],
    );
    eprintln!(
        "unseal  {entries} entries, {bytes} bytes: {took:.1} s, {} MiB",
        memory >> 10
    );
    assert!(memory < most, "{memory} KiB");
    assert_eq!(std::fs::metadata(into.join("large")).unwrap().len(), bytes);
    // One entry more is one too many.
    if full() {
        let opened = site.json(&["volume", "open", "larger"]);
        let generation = text(&opened["generation"]).to_owned();
        let tree = site
            .home
            .state()
            .join("volumes/larger")
            .join(&generation)
            .join("vol/tree");
        large(&tree, entries + 1, 1 << 21);
        site.json(&["volume", "end", &generation]);
        assert_eq!(site.refused(&["seal", &generation], 29)["reason"], "entries");
    }
    site.at_rest();
}
