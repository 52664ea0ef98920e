//! Seals, verifies and unpacks, and does what that is held against; prints how long each took, in milliseconds.
//!
//! `seal TREE ARCHIVES INTO ROUNDS` prints lines of JSON, `{"what":…,"ms":…}`, interleaved by round, so that a busy machine is
//! busy for all. `floor` reads every file once and digests it with SHA-1, as git does, looking for collisions, and with
//! SHA-256, in one thread; `floor-git` is the SHA-1 alone, `floor-sums` the SHA-256 alone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a bench is no product"
)]

use semel_core::digest::Hasher;
use semel_core::git_tree::{BlobHasher, ObjectFormat};
use semel_host::root::Root;
use semel_host::tarball::{Choice, Limits, clear, pack, unpack, verify};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const FORMAT: ObjectFormat = ObjectFormat::Sha1;

/// Says what is digested beside the reading.
#[derive(Clone, Copy)]
enum Floor {
    Both,
    Sha1,
    Sha256,
}

fn files(at: &Path, found: &mut Vec<(PathBuf, u64)>) {
    for entry in std::fs::read_dir(at).unwrap() {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        if meta.is_dir() {
            files(&entry.path(), found);
        } else if meta.is_file() {
            found.push((entry.path(), meta.len()));
        }
    }
}

fn floor(tree: &Path, what: Floor) {
    let mut all = Vec::new();
    files(tree, &mut all);
    let mut buffer = vec![0_u8; 1 << 20];
    for (path, size) in all {
        let mut file = File::open(path).unwrap();
        let (mut blob, mut sum) = (BlobHasher::new(FORMAT, size), Hasher::new());
        let mut left = size;
        while left > 0 {
            let n = file.read(&mut buffer).unwrap();
            left -= n as u64;
            if !matches!(what, Floor::Sha256) {
                blob.update(&buffer[..n]);
            }
            if !matches!(what, Floor::Sha1) {
                sum.update(&buffer[..n]);
            }
        }
        if !matches!(what, Floor::Sha256) {
            blob.finish().unwrap();
        }
        std::hint::black_box(sum.finish());
    }
}

fn shell(text: &str, arguments: &[&Path]) {
    let mut command = Command::new("bash");
    command
        .args(["-c", text, "bash"])
        .args(arguments)
        .stdout(Stdio::null());
    assert!(command.status().unwrap().success(), "{text}");
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [tree, archives, into, rounds] = given.as_slice() else {
        panic!("seal TREE ARCHIVES INTO ROUNDS");
    };
    let (tree, archives, into) = (Path::new(tree), Path::new(archives), Path::new(into));
    let root = Root::open(tree).unwrap();
    let mut take = |_: &_, _| Ok(Choice::Take);
    let limits = Limits::default();
    let mut seal = || pack(&root, &mut take, limits, FORMAT, archives).unwrap();
    let known = seal();
    let time = |what: &str, act: &mut dyn FnMut()| {
        let begun = Instant::now();
        act();
        println!(
            "{{\"what\":\"{what}\",\"ms\":{:.2}}}",
            begun.elapsed().as_secs_f64() * 1000.0
        );
    };
    std::fs::create_dir_all(into).unwrap();
    let target = Root::open(into).unwrap();
    let unseal = |what: &str, format| {
        let mut file = File::open(&known.path).unwrap();
        time(what, &mut || {
            drop(unpack(&mut file, limits, &target, format).unwrap())
        });
        clear(&target).unwrap();
    };
    for _ in 0..rounds.parse::<usize>().unwrap() {
        time("seal", &mut || assert_eq!(seal().manifest, known.manifest));
        time("floor", &mut || floor(tree, Floor::Both));
        time("verify", &mut || verify(&known.manifest, &root).unwrap());
        time("floor-sums", &mut || floor(tree, Floor::Sha256));
        time("floor-git", &mut || floor(tree, Floor::Sha1));
        time("tar -c | sha256sum", &mut || {
            shell(
                "tar -C \"$1\" -cf - . | tee \"$2/t\" | sha256sum; rm \"$2/t\"",
                &[tree, archives],
            );
        });
        unseal("unseal", None);
        unseal("unseal, with git's tree", Some(FORMAT));
        for (what, text) in [
            (
                "tee | tar -x, sha256sum",
                "tee >(sha256sum) < \"$1\" | tar -C \"$2\" -xf -",
            ),
            (
                "tar -x, then sha256sum",
                "tar -C \"$2\" -xf \"$1\" && sha256sum \"$1\"",
            ),
            (
                "tar -x beside sha256sum",
                "sha256sum \"$1\" & tar -C \"$2\" -xf \"$1\" && wait",
            ),
        ] {
            time(what, &mut || shell(text, &[&known.path, into]));
            clear(&target).unwrap();
        }
    }
}
