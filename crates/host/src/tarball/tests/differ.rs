//! Differential tests: whatever we accept, two careless readers of our own list alike, and GNU tar, bsdtar and Python
//! extract to the same tree.
//!
//! An ordinary run makes a share of the trials; `SEMEL_FULL=1` makes many more, and `SEMEL_SEED` chooses others.

use super::laws::archive;
use super::mutate::{Dice, damaged, lawful};
use super::unpacked;
use crate::root::tests::{skipped, told};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seed() -> u64 {
    number("SEMEL_SEED").unwrap_or(7)
}

fn trials(share: usize, full: usize) -> usize {
    if number("SEMEL_FULL").is_some() {
        full
    } else {
        share
    }
}

/// Makes a place in memory where there is one: thousands of trees come and go.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

#[test]
fn careless_readers_list_what_was_accepted() {
    let (dir, mut dice) = (scratch(), Dice::new(seed()));
    let (mut tried, mut accepted) = (0, 0);
    for _ in 0..trials(400, 100_000) {
        accepted += archive(&damaged(&mut dice), dir.path()).len();
        accepted += archive(&lawful(&mut dice), dir.path()).len();
        tried += 2;
    }
    assert!(
        accepted * 10 > tried,
        "{accepted} of {tried}: too few to say anything"
    );
    assert!(accepted < 2 * tried, "nothing was refused");
}

#[test]
fn the_corpus_of_the_fuzzer_holds() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/archive");
    let (dir, mut read) = (scratch(), 0);
    for entry in std::fs::read_dir(corpus).unwrap() {
        archive(&std::fs::read(entry.unwrap().path()).unwrap(), dir.path());
        read += 1;
    }
    assert!(read > 5);
}

#[derive(Debug, PartialEq, Eq)]
enum Node {
    Directory,
    File { executable: bool, content: Vec<u8> },
    Link(Vec<u8>),
    Other(u32),
}

fn tree(at: &Path) -> BTreeMap<Vec<u8>, Node> {
    let (mut found, mut open) = (BTreeMap::new(), vec![PathBuf::new()]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(at.join(&dir)).unwrap() {
            let below = dir.join(entry.unwrap().file_name());
            let path = at.join(&below);
            let meta = std::fs::symlink_metadata(&path).unwrap();
            let node = if meta.is_dir() {
                open.push(below.clone());
                Node::Directory
            } else if meta.is_symlink() {
                Node::Link(std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
            } else if meta.is_file() {
                Node::File {
                    executable: meta.mode() & 0o100 != 0,
                    content: std::fs::read(&path).unwrap(),
                }
            } else {
                Node::Other(meta.mode())
            };
            found.insert(below.as_os_str().as_bytes().to_vec(), node);
        }
    }
    found
}

/// One process for all archives; the filter that keeps the text of links, which newer ones rewrite under `data`.
const PYTHON: &str = "
import os, sys, tarfile
for archive in sys.argv[1:]:
    into = archive + '.python'
    os.mkdir(into)
    os.chdir(into)
    try:
        with tarfile.open(archive, 'r:', encoding='utf-8') as tar:
            tar.extractall('.', filter='tar')
    except Exception as error:
        print(archive, type(error).__name__, error)
";

struct Tool {
    name: &'static str,
    program: &'static str,
}

const TOOLS: [Tool; 3] = [
    Tool {
        name: "tar",
        program: "tar",
    },
    Tool {
        name: "bsdtar",
        program: "bsdtar",
    },
    Tool {
        name: "python",
        program: "python3",
    },
];

fn there(tool: &Tool) -> bool {
    let probe: &[&str] = if tool.name == "python" {
        &["-c", "import tarfile; tarfile.tar_filter"]
    } else {
        &["--version"]
    };
    let mut command = Command::new(tool.program);
    command.args(probe).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn extracted(tool: &Tool, archives: &[PathBuf]) {
    let run = |command: &mut Command| {
        let out = command.env("LC_ALL", "C.UTF-8").output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{command:?}: {said}");
        assert!(out.stdout.is_empty(), "{}", String::from_utf8_lossy(&out.stdout));
    };
    if tool.name == "python" {
        run(Command::new(tool.program)
            .args(["-B", "-c", PYTHON])
            .args(archives));
        return;
    }
    for archive in archives {
        let into = archive.with_extension(format!("tar.{}", tool.name));
        std::fs::create_dir(&into).unwrap();
        run(Command::new(tool.program)
            .arg("-xf")
            .arg(archive)
            .current_dir(&into));
    }
}

#[test]
fn other_tools_extract_what_was_accepted_to_the_same_tree() {
    let tools: Vec<&Tool> = TOOLS.iter().filter(|tool| there(tool)).collect();
    for tool in TOOLS.iter().filter(|tool| !there(tool)) {
        skipped(&format!("no {} here to compare archives with", tool.program));
    }
    let mut dice = Dice::new(seed());
    let mut compared = BTreeMap::new();
    let (rounds, each) = (trials(2, 60), 40);
    for _ in 0..rounds {
        let dir = scratch();
        let (mut archives, mut made) = (Vec::new(), Vec::new());
        while archives.len() < each {
            let bytes = match dice.roll(2) {
                0 => lawful(&mut dice),
                _ => super::laws::mended(&damaged(&mut dice)),
            };
            let archive = dir.path().join(format!("{}.tar", archives.len()));
            let into = archive.with_extension("tar.ours");
            std::fs::create_dir(&into).unwrap();
            if unpacked(&bytes, &into).is_err() {
                std::fs::remove_dir(&into).unwrap();
                continue;
            }
            std::fs::write(&archive, &bytes).unwrap();
            made.push(tree(&into));
            archives.push(archive);
        }
        for tool in &tools {
            extracted(tool, &archives);
            for (archive, ours) in archives.iter().zip(&made) {
                let theirs = tree(&archive.with_extension(format!("tar.{}", tool.name)));
                if theirs != *ours {
                    let kept = std::env::temp_dir().join("semel-differs.tar");
                    std::fs::copy(archive, &kept).unwrap();
                    panic!("{} sees another tree in {}", tool.name, kept.display());
                }
                *compared.entry(tool.name).or_insert(0) += 1;
            }
        }
    }
    told(&format!("archives compared: {compared:?}"));
    assert!(compared.values().all(|n| *n == rounds * each));
}
