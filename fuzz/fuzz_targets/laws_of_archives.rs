//! The laws of archives: what the fuzzer tries, and what a test of host tries with mutations of its own.
//!
//! Whatever is accepted, two careless readers list just the same of it; sealed again it is the same tree; and of what is
//! refused nothing is left.

use semel_core::git_tree::ObjectFormat;
use semel_core::manifest::{Entry, Manifest};
use semel_core::{Code, Sha256};
use semel_host::root::Root;
use semel_host::tarball::{Choice, Limits, clear, pack, unpack, verify};
use std::collections::BTreeMap;
use std::path::Path;

const LIMITS: Limits = Limits {
    entries: 1000,
    archive_bytes: 1 << 20,
};
const BLOCK: usize = 512;

/// Tries bytes, and the same with every checksum mended; says what was accepted. `scratch` is an empty directory, and is
/// empty again afterwards.
pub(super) fn archive(data: &[u8], scratch: &Path) -> Vec<Vec<u8>> {
    let mut accepted = Vec::new();
    for bytes in [data.to_vec(), mended(data)] {
        if tried(&bytes, scratch) {
            accepted.push(bytes);
        }
    }
    accepted.dedup();
    accepted
}

/// Gives every block that looks like a header the checksum that it should have.
pub(super) fn mended(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    for block in bytes.chunks_exact_mut(BLOCK) {
        if block[257..262] == *b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    bytes
}

fn tried(bytes: &[u8], scratch: &Path) -> bool {
    let (tree, proposals) = (scratch.join("tree"), scratch.join("proposals"));
    std::fs::create_dir(&tree).expect("the scratch directory is empty");
    let root = Root::open(&tree).expect("a new directory");
    let manifest = match unpack(&mut &bytes[..], LIMITS, &root, Some(ObjectFormat::Sha1)) {
        Ok(manifest) => manifest,
        Err(error) => {
            assert!(
                matches!(error.code(), Code::ProposalRefused | Code::TreeMismatch),
                "{error}"
            );
            assert!(!error.to_string().is_empty());
            // It fails where anything is in it.
            std::fs::remove_dir(&tree).expect("nothing is left");
            return false;
        }
    };
    assert_eq!(manifest.check(), Ok(()));
    assert_eq!(manifest.archive_sha256, Sha256::of(bytes), "every byte counts");
    verify(&manifest, &root).expect("it lies there as it is listed");
    for reader in [Careless::SkipsBodies, Careless::KnowsBodies] {
        let listed = listed(bytes, reader);
        assert_eq!(listed.as_ref(), Some(&of(&manifest)), "{reader:?}");
    }
    let take = &mut |_: &_, _| Ok(Choice::Take);
    let sealed =
        pack(&root, take, LIMITS, ObjectFormat::Sha1, &proposals).expect("what was unpacked can be sealed");
    assert_eq!(sealed.manifest.entries, manifest.entries, "the same entries");
    assert_eq!(sealed.manifest.tree, manifest.tree, "the same tree");
    clear(&root).expect("it goes away");
    let again = std::fs::read(&sealed.path).expect("the archive is there");
    let again = unpack(&mut &again[..], LIMITS, &root, Some(ObjectFormat::Sha1)).expect("our own archive");
    assert_eq!(
        again,
        Manifest {
            left_out: Vec::new(),
            ..sealed.manifest
        }
    );
    clear(&root).expect("it goes away");
    std::fs::remove_file(&sealed.path).expect("it is there");
    std::fs::remove_dir(&tree).expect("nothing is left");
    true
}

/// Says what a careless reader takes the size of something that has no content for.
#[derive(Clone, Copy, Debug)]
enum Careless {
    /// Whatever it says, so much is skipped.
    SkipsBodies,
    /// Only files have bodies.
    KnowsBodies,
}

#[derive(Debug, PartialEq, Eq)]
enum Leaf {
    File { executable: bool, sha256: Sha256 },
    Link(Vec<u8>),
}

type Leaves = BTreeMap<Vec<u8>, Leaf>;

fn of(manifest: &Manifest) -> Leaves {
    let leaf = |entry: &Entry| match entry {
        Entry::File { mode, sha256, .. } => Leaf::File {
            executable: mode.bits() & 0o100 != 0,
            sha256: *sha256,
        },
        Entry::Symlink { target, .. } => Leaf::Link(target.clone().into_bytes()),
    };
    let entries = manifest.entries.iter();
    entries
        .map(|entry| (entry.path().as_bytes().to_vec(), leaf(entry)))
        .collect()
}

/// Reads an archive without asking many questions; `None` where even that is impossible.
fn listed(bytes: &[u8], reader: Careless) -> Option<Leaves> {
    let mut found = Leaves::new();
    let (mut at, mut words) = (0, BTreeMap::<Vec<u8>, Vec<u8>>::new());
    loop {
        let block = bytes.get(at..at + BLOCK)?;
        if block.iter().all(|b| *b == 0) {
            return Some(found);
        }
        at += BLOCK;
        let word = |key: &str| words.get(key.as_bytes()).cloned();
        let kind = block[156];
        let in_header = usize::try_from(octal(&block[124..136])).ok()?;
        let size = match (reader, kind) {
            (_, b'x') => in_header,
            (Careless::KnowsBodies, b'2' | b'5') => 0,
            _ => match word("size") {
                Some(text) => String::from_utf8(text).ok()?.parse().ok()?,
                None => in_header,
            },
        };
        let body = bytes.get(at..at.checked_add(size)?)?;
        at = at.checked_add(size.checked_next_multiple_of(BLOCK)?)?;
        if kind == b'x' {
            records(body, &mut words)?;
            continue;
        }
        let (name, prefix) = (text(&block[..100]), text(&block[345..500]));
        let plain = if prefix.is_empty() {
            name
        } else {
            [prefix, b"/".to_vec(), name].concat()
        };
        let mut path = word("path").unwrap_or(plain);
        let leaf = match kind {
            b'2' => Leaf::Link(word("linkpath").unwrap_or_else(|| text(&block[157..257]))),
            b'5' => {
                words.clear();
                continue;
            }
            _ => Leaf::File {
                executable: octal(&block[100..108]) & 0o100 != 0,
                sha256: Sha256::of(body),
            },
        };
        while path.ends_with(b"/") {
            path.pop();
        }
        found.insert(path, leaf);
        words.clear();
    }
}

fn records(mut body: &[u8], words: &mut BTreeMap<Vec<u8>, Vec<u8>>) -> Option<()> {
    while !body.is_empty() {
        let space = body.iter().position(|b| *b == b' ')?;
        let length: usize = core::str::from_utf8(&body[..space]).ok()?.parse().ok()?;
        let record = body.get(space + 1..length.checked_sub(1)?)?;
        let equals = record.iter().position(|b| *b == b'=')?;
        words.insert(record[..equals].to_vec(), record[equals + 1..].to_vec());
        body = body.get(length..)?;
    }
    Some(())
}

fn text(field: &[u8]) -> Vec<u8> {
    field.iter().copied().take_while(|b| *b != 0).collect()
}

fn octal(field: &[u8]) -> u64 {
    let digits = field.iter().copied().filter(|b| (b'0'..=b'7').contains(b));
    digits.fold(0, |sum, digit| (sum << 3) | u64::from(digit - b'0'))
}
