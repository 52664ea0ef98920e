//! One tree is one archive and one git tree, wherever and however it came to lie there; another tree is another.

use super::mutate::Dice;
use super::{LIMITS, SHA1, reason, take};
use crate::root::Root;
use crate::root::tests::skipped;
use crate::tarball::store::Store;
use crate::tarball::{Choice, Sealed, clear, pack, unpack, verify};
use semel_core::Code;
use semel_core::git_tree::ObjectFormat;
use std::ffi::OsStr;
use std::fs::{FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

#[derive(Clone)]
enum Made {
    File(Vec<u8>, u32),
    Link(&'static str),
}

fn file(path: &str, content: &[u8], mode: u32) -> (PathBuf, Made) {
    (path.into(), Made::File(content.to_vec(), mode))
}

fn build(at: &Path, tree: &[(PathBuf, Made)]) {
    for (path, made) in tree {
        let path = at.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match made {
            Made::File(content, mode) => {
                std::fs::write(&path, content).unwrap();
                std::fs::set_permissions(&path, Permissions::from_mode(*mode)).unwrap();
            }
            Made::Link(target) => symlink(target, &path).unwrap(),
        }
    }
}

fn sealed(tree: &Path, format: ObjectFormat, proposals: &Path) -> crate::Result<Sealed> {
    pack(&Root::open(tree).unwrap(), &mut take, LIMITS, format, proposals)
}

type Change<'c> = &'c dyn Fn(&Path);

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";

fn sample() -> Vec<(PathBuf, Made)> {
    vec![
        file("README", b"one\r\ntwo\n", 0o644),
        file("a.b", b"", 0o644),
        file("a/b", b"#!/bin/sh\n", 0o755),
        file("a-b", b"x", 0o644),
        file("big.bin", POINTER, 0o644),
        file("caf\u{e9}/\u{1f980}", &[0, 255, 10, 13], 0o644),
        file(&("n".repeat(200) + "/" + &"m".repeat(255)), &[7; 3000], 0o644),
        ("a/l".into(), Made::Link("../README")),
        ("z".into(), Made::Link("./a/b")),
    ]
}

/// The same on every machine and in every release: an archive that was sealed once keeps its name.
#[test]
fn the_digests_of_a_known_tree_are_known() {
    let dir = tempfile::tempdir().unwrap();
    build(&dir.path().join("t"), &sample());
    let found = sealed(&dir.path().join("t"), SHA1, &dir.path().join("p")).unwrap();
    assert_eq!(
        found.manifest.archive_sha256.to_string(),
        "284fade8ccebdd0c23a72c19d32b03760ecf9d9d9e2b74f42f60c15835377a49"
    );
    assert_eq!(found.tree.to_string(), "3507b0aa981be3055a28e2e057c560943fd0c988");
}

/// Order of creation, filesystem, modes beyond the executable bit, times, owner, hard links and holes say nothing.
#[test]
fn what_says_nothing_changes_nothing() {
    let (dir, proposals) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let memory = tempfile::tempdir_in("/dev/shm");
    build(dir.path(), &sample());
    let first = sealed(dir.path(), SHA1, proposals.path()).unwrap();
    let elsewhere = memory.unwrap_or_else(|_| {
        skipped("no filesystem in memory here");
        tempfile::tempdir().unwrap()
    });
    let mut tree = sample();
    tree.reverse();
    for (_, made) in &mut tree {
        if let Made::File(_, mode) = made {
            *mode = if *mode == 0o755 { 0o4700 } else { 0o666 };
        }
    }
    build(elsewhere.path(), &tree);
    let odd = SystemTime::UNIX_EPOCH + Duration::from_secs(77);
    for (path, made) in &tree {
        let path = elsewhere.path().join(path);
        if let Made::File(content, _) = made {
            let open = std::fs::File::options().write(true).open(&path).unwrap();
            open.set_times(FileTimes::new().set_modified(odd)).unwrap();
            if content.len() == 3000 {
                let other = elsewhere.path().join("other-name");
                std::fs::hard_link(&path, &other).unwrap();
                std::fs::rename(
                    &other,
                    elsewhere.path().parent().unwrap().join("semel-other-name"),
                )
                .unwrap();
            }
        }
        // Only root may give files away; that is no condition.
        std::os::unix::fs::lchown(&path, Some(65_534), Some(65_534)).ok();
    }
    std::fs::remove_file(elsewhere.path().parent().unwrap().join("semel-other-name")).unwrap();
    std::fs::set_permissions(elsewhere.path().join("a"), Permissions::from_mode(0o700)).unwrap();
    let second = sealed(elsewhere.path(), SHA1, proposals.path()).unwrap();
    assert_eq!(second, first);
}

/// Whatever says something changes the name.
#[test]
fn what_says_something_changes_everything() {
    let proposals = tempfile::tempdir().unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let mut one = |change: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        build(dir.path(), &sample());
        change(dir.path());
        let found = sealed(dir.path(), SHA1, proposals.path()).unwrap();
        assert!(seen.insert(found.manifest.archive_sha256), "another archive");
        assert!(
            seen.insert(semel_core::Sha256::of(found.tree.as_raw())),
            "another tree"
        );
    };
    one(&|_| {});
    one(&|at| std::fs::set_permissions(at.join("a/b"), Permissions::from_mode(0o644)).unwrap());
    one(&|at| std::fs::rename(at.join("a/b"), at.join("a/c")).unwrap());
    one(&|at| std::fs::write(at.join("a-b"), "y").unwrap());
    one(&|at| std::fs::write(at.join("new"), "").unwrap());
    one(&|at| std::fs::remove_file(at.join("a.b")).unwrap());
    one(&|at| {
        std::fs::remove_file(at.join("z")).unwrap();
        symlink("a/b", at.join("z")).unwrap();
    });
}

/// Random trees, made by the dice, against `git write-tree` in both object formats.
#[test]
fn the_tree_is_the_one_that_git_writes() {
    let mut dice = Dice::new(11);
    for format in [ObjectFormat::Sha1, ObjectFormat::Sha256] {
        for _ in 0..12 {
            let dir = tempfile::tempdir().unwrap();
            let tree = dir.path().join("t");
            random(&tree, &mut dice);
            let found = sealed(&tree, format, &dir.path().join("p")).unwrap();
            let Some(git) = written_by_git(&tree, format) else {
                skipped("git is not here, or knows no sha256");
                return;
            };
            assert_eq!(found.tree.to_string(), git);
            assert_eq!(found.manifest.tree.as_deref(), Some(git.as_str()));
            let bytes = std::fs::read(&found.path).unwrap();
            std::fs::create_dir(dir.path().join("u")).unwrap();
            let root = Root::open(&dir.path().join("u")).unwrap();
            let again = unpack(&mut &bytes[..], LIMITS, &root, Some(format)).unwrap();
            assert_eq!(again.tree.as_deref(), Some(git.as_str()));
        }
    }
}

fn random(at: &Path, dice: &mut Dice) {
    const WORDS: [&str; 9] = [
        "a",
        "a.b",
        "a-b",
        "a0",
        "lib",
        "LIB2",
        "\u{e9}",
        "x y",
        ".gitattributes.d",
    ];
    std::fs::create_dir(at).unwrap();
    std::fs::write(
        at.join(".gitattributes"),
        "*.bin filter=lfs -text\n* text=auto eol=crlf\n",
    )
    .unwrap();
    for n in 0..30 {
        let mut place = at.to_owned();
        for _ in 0..dice.roll(4) {
            place.push(WORDS[dice.roll(WORDS.len())]);
        }
        if std::fs::create_dir_all(&place).is_err() {
            continue;
        }
        let path = place.join(format!("{}{n}", WORDS[dice.roll(WORDS.len())]));
        match dice.roll(6) {
            0 => symlink(format!("t{n}"), path).unwrap(),
            1 => std::fs::write(path.with_extension("bin"), POINTER).unwrap(),
            2 => {
                std::fs::write(&path, "#!/bin/sh\r\n").unwrap();
                std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            }
            sides => std::fs::write(&path, vec![b'\n'; sides * 700]).unwrap(),
        }
    }
}

/// What git writes when it stores bytes as they are.
fn written_by_git(tree: &Path, format: ObjectFormat) -> Option<String> {
    let name = match format {
        ObjectFormat::Sha1 => "sha1",
        ObjectFormat::Sha256 => "sha256",
    };
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.args(args).current_dir(tree);
        for (key, value) in [
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_ATTR_NOSYSTEM", "1"),
        ] {
            command.env(key, value);
        }
        let out = command.output().ok()?;
        out.status
            .success()
            .then(|| String::from_utf8(out.stdout).unwrap().trim().to_owned())
    };
    git(&["init", "-q", &format!("--object-format={name}")])?;
    std::fs::create_dir_all(tree.join(".git/info")).unwrap();
    std::fs::write(tree.join(".git/info/attributes"), "* -text -filter -ident\n").unwrap();
    git(&["-c", "core.autocrlf=false", "add", "-A", "-f"])?;
    git(&["write-tree"])
}

#[test]
fn names_at_the_limits() {
    let dir = tempfile::tempdir().unwrap();
    let proposals = dir.path().join("p");
    let one = |name: &OsStr| {
        let tree = tempfile::tempdir_in(dir.path()).unwrap();
        let path = tree.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
        sealed(tree.path(), SHA1, &proposals).map(|sealed| {
            let bytes = std::fs::read(&sealed.path).unwrap();
            let into = tempfile::tempdir_in(dir.path()).unwrap();
            let root = Root::open(into.path()).unwrap();
            let back = unpack(&mut &bytes[..], LIMITS, &root, Some(SHA1)).unwrap();
            assert_eq!(
                (back.entries, back.tree),
                (sealed.manifest.entries, sealed.manifest.tree)
            );
            std::fs::read(into.path().join(name)).unwrap()
        })
    };
    let deep = |depth: usize| "d/".repeat(depth - 1) + "f";
    let long = vec!["l".repeat(250); 14].join("/");
    for name in [
        deep(64),
        long,
        "w".repeat(255),
        "q/".repeat(49) + "00",
        "q/".repeat(50) + "1",
    ] {
        assert_eq!(one(OsStr::new(&name)).unwrap(), b"x", "{name}");
    }
    for (name, wanted) in [
        (deep(65).into_bytes(), "path"),
        (b"bad\xff".to_vec(), "name_encoding"),
        (b"new\nline".to_vec(), "control_character"),
        ("cafe\u{301}".into(), "name_form"),
        (b"C:x".to_vec(), "foreign_root"),
        (b"~x".to_vec(), "path"),
        (b".GIT~1/x".to_vec(), "ok"),
        (b"GIT~1/x".to_vec(), "git_internals"),
    ] {
        let found = one(OsStr::from_bytes(&name)).map_or_else(reason, |_| "ok".to_owned());
        assert_eq!(found, wanted, "{}", String::from_utf8_lossy(&name));
    }
}

/// A tree that is not quiet is noticed; nothing is left.
#[test]
fn what_changes_while_it_is_sealed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, proposals) = (dir.path().join("t"), dir.path().join("p"));
    let changes: [&dyn Fn(&Path); 5] = [
        &|at| std::fs::write(at, "longer").unwrap(),
        &|at| std::fs::write(at, "").unwrap(),
        &|at| std::fs::remove_file(at).unwrap(),
        &|at| {
            std::fs::remove_file(at).unwrap();
            symlink("b", at).unwrap();
        },
        &|at| {
            std::fs::remove_file(at).unwrap();
            std::fs::create_dir(at).unwrap();
        },
    ];
    for change in changes {
        build(&tree, &[file("a", b"one", 0o644), file("b", b"two", 0o644)]);
        let root = Root::open(&tree).unwrap();
        // The first is looked at before the second is asked for, and read after both.
        let mut choose = |path: &semel_core::RelPath, _| {
            if path.as_bytes() == b"b" {
                change(&tree.join("a"));
            }
            Ok(Choice::Take)
        };
        let error = pack(&root, &mut choose, LIMITS, SHA1, &proposals)
            .map(drop)
            .unwrap_err();
        assert!(
            matches!(error.code(), Code::TreeMismatch | Code::ProposalRefused),
            "{error}"
        );
        for place in ["tmp", "sha256"] {
            let left = std::fs::read_dir(proposals.join(place)).map_or(0, Iterator::count);
            assert_eq!(left, 0, "{place}");
        }
        clear(&root).unwrap();
    }
}

/// After an attempt used it, a tree is looked at again.
#[test]
fn what_changed_afterwards_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, proposals) = (dir.path().join("t"), dir.path().join("p"));
    let mut all = sample();
    all.extend((0..700).map(|n| file(&format!("many/{n}"), b"same", 0o644)));
    build(&tree, &all);
    let manifest = sealed(&tree, SHA1, &proposals).unwrap().manifest;
    let root = Root::open(&tree).unwrap();
    std::fs::write(tree.join("extra"), "does not matter").unwrap();
    verify(&manifest, &root).unwrap();
    let swap = |at: &Path, into: &dyn Fn(&Path)| {
        std::fs::rename(at, dir.path().join("kept")).unwrap();
        into(at);
    };
    let back = |at: &Path| {
        if at.is_dir() && !at.is_symlink() {
            std::fs::remove_dir(at).unwrap();
        } else {
            std::fs::remove_file(at).ok();
        }
        std::fs::rename(dir.path().join("kept"), at).unwrap();
    };
    let mode = |bits| {
        move |at: &Path| {
            std::fs::write(at, "same").unwrap();
            std::fs::set_permissions(at, Permissions::from_mode(bits)).unwrap();
        }
    };
    let changes: [(&str, Change<'_>); 9] = [
        ("many/650", &|at| std::fs::write(at, "sane").unwrap()),
        ("many/1", &|at| std::fs::write(at, "same and more").unwrap()),
        ("many/2", &mode(0o755)),
        ("many/3", &|_| {}),
        ("many/4", &|at| symlink("5", at).unwrap()),
        ("many/6", &|at| std::fs::create_dir(at).unwrap()),
        ("a/l", &|at| symlink("../a.b", at).unwrap()),
        ("z", &|at| std::fs::write(at, "").unwrap()),
        ("a", &|at| symlink("many", at).unwrap()),
    ];
    for (path, change) in changes {
        swap(&tree.join(path), change);
        let refusal = verify(&manifest, &root).unwrap_err().into_refusal();
        assert_eq!(refusal.code, Code::TreeMismatch, "{path}");
        assert!(refusal.names[0].starts_with(path), "{path}: {refusal:?}");
        back(&tree.join(path));
        verify(&manifest, &root).unwrap();
    }
}

/// What somebody who was killed left is removed; what somebody holds is not.
#[test]
fn only_names_of_the_dead_are_swept() {
    let dir = tempfile::tempdir().unwrap();
    let tmp = dir.path().join("tmp");
    let store = Store::open(dir.path()).unwrap();
    let held = store.part().unwrap();
    let dead = tmp.join(format!("part-{}", "0".repeat(32)));
    std::fs::write(&dead, "half").unwrap();
    std::fs::write(tmp.join("part-mine"), "somebody's own").unwrap();
    Store::open(dir.path()).unwrap();
    assert!(!dead.exists());
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 2);
    drop(held);
    Store::open(dir.path()).unwrap();
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 1);
}
