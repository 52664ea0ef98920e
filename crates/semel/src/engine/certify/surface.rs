//! The test surface: what changed against the base that can change what the tests say.
//!
//! A tree can lie about its own tests; this list shows a reviewer where to look. It judges nothing.

use super::super::proposal::Base;
use super::super::{Engine, host, store};
use super::sign;
use semel_core::certificate::{self, BaseCommit, BaseTests};
use semel_core::git_tree::{BlobHasher, Mode, ObjectId};
use semel_core::manifest::{Entry, FileMode, Manifest};
use semel_core::{Refusal, RelPath, Sha256};
use semel_host::files::read_file;
use semel_host::git::{Git, Repository};
use semel_host::plain;
use semel_host::process::Cancel;
use semel_host::root::Root;
use std::collections::BTreeMap;

const LARGEST: u64 = 64 << 20;

/// Names the base that a proposal is compared with, as the certificate will.
pub(super) fn base(git: &Git, base: Option<&Base>, cancel: &Cancel) -> Result<Option<BaseCommit>, Refusal> {
    let Some(base) = base else { return Ok(None) };
    let repository = Repository::open(git, &base.repository, cancel).map_err(host)?;
    let commit = repository.parse_id(&base.commit).map_err(host)?;
    let tree = repository.read_commit(&commit).map_err(host)?.tree;
    Ok(Some(BaseCommit { commit, tree }))
}

/// Lists the paths of the surface that were changed, added or removed; all of them where there is no base.
pub(super) fn changed(
    git: &Git,
    base: Option<&Base>,
    manifest: &Manifest,
    root: &Root,
    cancel: &Cancel,
) -> Result<Vec<RelPath>, Refusal> {
    let Some(base) = base else {
        let all = manifest
            .entries
            .iter()
            .map(Entry::path)
            .filter(|path| concerns_tests(path));
        return Ok(all.cloned().collect());
    };
    let repository = Repository::open(git, &base.repository, cancel).map_err(host)?;
    let commit = repository.parse_id(&base.commit).map_err(host)?;
    let tree = repository.read_commit(&commit).map_err(host)?.tree;
    let mut before: BTreeMap<RelPath, (Mode, ObjectId)> = BTreeMap::new();
    for leaf in repository.list_tree(&tree).map_err(host)? {
        if concerns_tests(&leaf.path) {
            before.insert(leaf.path, (leaf.mode, leaf.id));
        }
    }
    let mut changed = Vec::new();
    for entry in manifest
        .entries
        .iter()
        .filter(|entry| concerns_tests(entry.path()))
    {
        let now = identity(entry, root, &repository)?;
        if before.remove(entry.path()) != Some(now) {
            changed.push(entry.path().clone());
        }
    }
    changed.extend(before.into_keys());
    changed.sort();
    Ok(changed)
}

/// Finds what the last certificate of the base's tree counted; `None` where there is none, or it is gone.
pub(super) fn base_tests(
    engine: &Engine,
    git: &Git,
    base: Option<&Base>,
    cancel: &Cancel,
) -> Result<Option<BaseTests>, Refusal> {
    let Some(base) = base else { return Ok(None) };
    let repository = Repository::open(git, &base.repository, cancel).map_err(host)?;
    let commit = repository.parse_id(&base.commit).map_err(host)?;
    let tree = repository.read_commit(&commit).map_err(host)?.tree;
    let judged = engine.journal.tree_judgements(tree.to_string()).map_err(store)?;
    let Some(last) = judged.into_iter().rfind(|judgement| judgement.refusal.is_none()) else {
        return Ok(None);
    };
    let place = sign::paths(&engine.config.state, &last.generation).envelope;
    // The journal says which bytes these are; other ones, or none, count nothing.
    let Ok(envelope) = plain::read_file(&place, LARGEST) else {
        return Ok(None);
    };
    if Sha256::of(&envelope) != last.certificate {
        return Ok(None);
    }
    let statement = certificate::open(&envelope, &[])?.statement?;
    Ok(statement.predicate.report.map(|report| BaseTests {
        certificate: last.certificate,
        counts: report.counts,
        generation: last.generation,
    }))
}

fn identity(entry: &Entry, root: &Root, repository: &Repository) -> Result<(Mode, ObjectId), Refusal> {
    let (mode, bytes) = match entry {
        Entry::Symlink { target, .. } => (Mode::Symlink, target.clone().into_bytes()),
        Entry::File { path, mode, .. } => {
            let mode = match mode {
                FileMode::Executable => Mode::Executable,
                FileMode::Plain => Mode::File,
            };
            (mode, read_file(root, path, LARGEST).map_err(host)?.bytes)
        }
    };
    let mut hasher = BlobHasher::new(repository.format(), bytes.len() as u64);
    hasher.update(&bytes);
    Ok((mode, hasher.finish()?))
}

/// Says whether a path can change what the tests say: tests, fixtures, configuration of runners and builds.
pub(super) fn concerns_tests(path: &RelPath) -> bool {
    let Some((_, name)) = path.split_last() else {
        return false;
    };
    let configuration: &[&[u8]] = &[
        b"conftest.py",
        b"pytest.ini",
        b".pytest.ini",
        b"pytest.toml",
        b".pytest.toml",
        b"tests.py",
        b"test.py",
        b"uv.toml",
        b".python-version",
        b"nextest.toml",
        b".taprc",
        b"rust-toolchain",
        b"rust-toolchain.toml",
        b"GNUmakefile",
        b"makefile",
        b"tox.ini",
        b"setup.cfg",
        b"setup.py",
        b"pyproject.toml",
        b"noxfile.py",
        b"sitecustomize.py",
        b"usercustomize.py",
        b"package.json",
        b".npmrc",
        b"Cargo.toml",
        b"build.rs",
        b"Makefile",
        b"justfile",
        b".coveragerc",
    ];
    let parts: Vec<&[u8]> = path.components().collect();
    let in_dir = |dirs: &[&[u8]]| parts[..parts.len() - 1].iter().any(|part| dirs.contains(part));
    configuration.contains(&name)
        || in_dir(&[b"test", b"tests", b"__tests__", b"spec", b".cargo"])
        || name.starts_with(b"test_")
        || [
            &b"_test."[..],
            b".test.",
            b".spec.",
            b"jest.config.",
            b"vitest.config.",
            b"vitest.workspace.",
            b"mocharc",
            b"babel.config.",
            b"ava.config.",
            b"karma.conf.",
            b"playwright.config.",
            b"tsconfig.",
        ]
        .iter()
        .any(|mark| name.windows(mark.len()).any(|window| window == *mark))
        || name.ends_with(b".pth")
}

/// Says whether a path is code that would be loaded in place of an installed module of that name.
pub(super) fn shadows(path: &RelPath) -> bool {
    let code: [&[u8]; 8] = [
        b".py", b".so", b".pyd", b".js", b".mjs", b".cjs", b".node", b".ts",
    ];
    let installed = path.components().any(|part| part == b"node_modules");
    !installed && code.iter().any(|end| path.as_bytes().ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_change_the_tests_is_known_by_its_path() {
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        for yes in [
            "tests/a.txt",
            "conftest.py",
            "a/conftest.py",
            "pytest.toml",
            "app/tests.py",
            "rust-toolchain.toml",
            ".config/nextest.toml",
            "babel.config.js",
            "src/x_test.go",
            "a.test.ts",
            ".cargo/config.toml",
        ] {
            assert!(concerns_tests(&path(yes)), "{yes}");
        }
        for no in ["src/lib.rs", "README.md", "contest.py", "docs/testing.md"] {
            assert!(!concerns_tests(&path(no)), "{no}");
        }
    }
}
