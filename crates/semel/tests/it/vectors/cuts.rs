//! Every lock of every format, cut at every line: before a tree is sealed, and after.

use crate::harness::{Disk, said};
use semel_core::ids::Generation;
use semel_core::install::{By, InstallRecord, InstalledBy, compare};
use semel_core::installer::Installer;
use semel_core::lockset::{self, Declared, Format, Weakness};
use semel_core::{Code, RelPath, Sha256};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

/// The name of a lock, the file that holds it, and the manifests beside it.
type Sample = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const SAMPLES: [Sample; 18] = [
    ("uv.lock", "uv.lock", &[("pyproject.toml", "uv.pyproject.toml")]),
    (
        "poetry.lock",
        "poetry.lock",
        &[("pyproject.toml", "poetry.pyproject.toml")],
    ),
    (
        "pdm.lock",
        "pdm.lock",
        &[("pyproject.toml", "pdm.pyproject.toml")],
    ),
    (
        "pylock.toml",
        "pylock.uv.toml",
        &[("pyproject.toml", "pdm.pyproject.toml")],
    ),
    (
        "pylock.toml",
        "pylock.pip.toml",
        &[("pyproject.toml", "pdm.pyproject.toml")],
    ),
    ("Pipfile.lock", "Pipfile.lock", &[("Pipfile", "Pipfile")]),
    (
        "requirements.txt",
        "requirements.txt",
        &[("requirements.in", "requirements.in")],
    ),
    (
        "package-lock.json",
        "package-lock.json",
        &[("package.json", "package.json")],
    ),
    (
        "npm-shrinkwrap.json",
        "package-lock.json",
        &[("package.json", "package.json")],
    ),
    (
        "pnpm-lock.yaml",
        "pnpm-lock.yaml",
        &[("package.json", "pnpm.package.json")],
    ),
    (
        "pnpm-lock.yaml",
        "pnpm-workspace-lock.yaml",
        &[
            ("package.json", "pnpm-workspace-root.package.json"),
            ("packages/a/package.json", "pnpm-workspace-a.package.json"),
            ("packages/b/package.json", "pnpm-workspace-b.package.json"),
        ],
    ),
    (
        "pnpm-lock.yaml",
        "pnpm8-lock.yaml",
        &[("package.json", "pnpm.package.json")],
    ),
    (
        "yarn.lock",
        "yarn1.lock",
        &[("package.json", "yarn1.package.json")],
    ),
    (
        "yarn.lock",
        "berry.lock",
        &[
            ("package.json", "berry.package.json"),
            ("packages/b/package.json", "berry-b.package.json"),
        ],
    ),
    (
        "Cargo.lock",
        "Cargo.lock",
        &[("Cargo.toml", "cargo.manifest.toml")],
    ),
    ("go.sum", "go.sum", &[("go.mod", "go.mod")]),
    ("Gemfile.lock", "Gemfile.lock", &[("Gemfile", "Gemfile")]),
    (
        "composer.lock",
        "composer.lock",
        &[("composer.json", "composer.json")],
    ),
];

fn fixture(name: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src/lockset/fixtures");
    std::fs::read_to_string(fixtures.join(name)).unwrap()
}

fn at(path: &str) -> RelPath {
    RelPath::parse(path.as_bytes()).unwrap()
}

/// Every place at which a line ends, the last one aside, and the beginning.
fn cuts(text: &str) -> Vec<usize> {
    let ends = text.match_indices('\n').map(|(at, _)| at + 1);
    std::iter::once(0)
        .chain(ends.filter(|end| *end < text.len()))
        .collect()
}

/// Reads, closes and requires hashes as a certification does; gives what it could not show.
fn taken(name: &str, text: &str, declared: &Declared) -> Result<Vec<String>, Code> {
    let check = || {
        let lock = lockset::parse(&at(name), text.as_bytes())?;
        let mut weak = lock.weak.clone();
        weak.extend(lockset::close_over(&lock, declared)?);
        weak.extend(lock.open_end.iter().map(|end| format!("a cut behind {end}")));
        Ok(weak)
    };
    check().map_err(|refusal: semel_core::Refusal| refusal.code)
}

/// Printed with the vectors. Before sealing: refused, or the format says that it cannot show it. After: refused, always.
#[test]
fn every_lock_cut_at_every_line_is_refused_or_named_weak() {
    let mut formats = 0;
    for (name, file, manifests) in SAMPLES {
        let text = fixture(file);
        let texts = manifests
            .iter()
            .map(|(path, file)| (at(path), fixture(file).into_bytes()));
        let declared = Declared {
            texts: texts.collect(),
        };
        taken(name, &text, &declared).unwrap();
        let format = Format::recognise(name.as_bytes()).unwrap();
        let clauses: Vec<&str> = format
            .weaknesses()
            .iter()
            .map(|weakness| match weakness {
                Weakness::Always(clause) | Weakness::Sometimes(clause) => *clause,
            })
            .collect();
        let (mut refused, mut weak, mut late) = (0, 0, 0);
        let sealed = record(name, &text);
        for cut in cuts(&text) {
            let rest = &text[..cut];
            match taken(name, rest, &declared) {
                Err(code) => {
                    assert_eq!(code, Code::LockIncomplete, "{file} at {cut}");
                    refused += 1;
                }
                Ok(said) => {
                    let listed = said.iter().any(|said| {
                        clauses.iter().any(|clause| said.contains(clause)) || said.starts_with("a cut behind")
                    });
                    assert!(listed && !clauses.is_empty(), "{file} at {cut}: {said:?}");
                    weak += 1;
                }
            }
            let now = BTreeMap::from([(at(name), Sha256::of(rest.as_bytes()))]);
            let refusal = compare(&sealed, &sealed.generation, &now, &[]).unwrap_err();
            assert_eq!(refusal.code, Code::LockfileDrift, "{file} at {cut}");
            assert!(refusal.names[0].contains(name));
            late += 1;
        }
        formats += 1;
        writeln!(
            std::io::stderr(),
            "cut {file:<26} {late:>4} lines; before sealing: {refused:>4} refused (20), {weak:>3} named weak; after: {late:>4} refused (6), 0 accepted"
        )
        .unwrap();
    }
    assert_eq!(formats, SAMPLES.len());
    let known: Vec<Format> = SAMPLES
        .iter()
        .filter_map(|(name, ..)| Format::recognise(name.as_bytes()))
        .collect();
    assert!(Format::ALL.iter().all(|format| known.contains(format)));
}

/// The record of a generation in which this lock was sealed.
fn record(name: &str, text: &str) -> InstallRecord {
    let generation = Generation::parse("g-01a229ef-60a5-797b-8bad-5a345da1a7d9").unwrap();
    let by = InstalledBy {
        command: Vec::new(),
        name: By::Installer(Installer::Uv),
        sha256: Sha256::of(b""),
        version: "1".to_owned(),
    };
    let lock = lockset::parse(&at(name), text.as_bytes()).unwrap();
    InstallRecord::make(&generation, by, &[&lock], &Default::default(), &[]).unwrap()
}

/// The same by the binary, on a disk of a person's own whose state was written over the whole lock.
#[test]
fn a_lock_that_is_cut_on_a_disk_has_moved() {
    for (name, file, _) in SAMPLES {
        let disk = Disk::new();
        std::fs::remove_file(disk.at("requirements.txt")).unwrap();
        let text = fixture(file);
        disk.write(name, &text);
        assert_eq!(disk.check("g-1", "1"), 0, "{file}");
        let cuts = cuts(&text);
        // A process for each cut: every fifth is asked of the binary, and the last.
        for cut in cuts.iter().step_by(5).chain(cuts.last()) {
            disk.write(name, &text[..*cut]);
            let out = disk.run(&["check"], "g-1", "1");
            assert_eq!(out.status.code(), Some(6), "{file} at {cut}: {}", said(&out));
        }
        disk.write(name, &text);
        assert_eq!(disk.check("g-1", "1"), 0, "{file}");
    }
}
