//! `node_modules` against its tarballs: vector 37, file by file, and what package managers change by rule.

use super::*;
use crate::artifact::{Held, Locked, Packing, Supply, wants_member};

/// Tarballs with what is installed, as the artifacts that the fixture's lock names.
pub(super) fn supply(node: &Fake) -> Supply {
    let lock = lock("package-lock.json", PACKAGE_LOCK);
    let mut supply = Supply::default();
    for package in &lock.packages {
        let mut held = Held {
            locked: Locked::of(&package.artifacts[0]),
            sha256: Sha256::of(package.name.as_bytes()),
            file: format!("{}.tgz", package.name),
            packing: Packing::Npm,
            members: BTreeMap::new(),
            texts: BTreeMap::new(),
        };
        for (path, fact) in &node.0.entries {
            let inside = path.to_string();
            let Some(rest) = inside.strip_prefix(&format!("{}/", package.name)) else {
                continue;
            };
            if matches!(fact, Fact::File { .. }) {
                held.members.insert(at(rest), fact.clone());
                if let Some(text) = node.0.texts.get(path) {
                    held.texts.insert(at(rest), text.clone());
                }
            }
        }
        supply.add(held);
    }
    supply
}

fn put(supply: &mut Supply, package: &str, path: &str, bytes: &[u8], mode: u32) {
    let found = supply.iter().find(|held| held.file == format!("{package}.tgz"));
    let mut held = found.unwrap().clone();
    let fact = Fact::File {
        mode,
        size: bytes.len() as u64,
        sha256: Sha256::of(bytes),
    };
    held.members.insert(at(path), fact);
    if wants_member(Packing::Npm, &at(path), bytes).is_some() {
        held.texts.insert(at(path), bytes.to_vec());
    }
    supply.add(held);
}

fn bind(node: &Fake, supply: &Supply) -> Result<Bound, Refusal> {
    let selection = Selection {
        groups: BTreeSet::from(["dev".to_owned()]),
        ..Selection::default()
    };
    let lock = lock("package-lock.json", PACKAGE_LOCK);
    let place = place("tree/node_modules");
    node::bind(&[of_project(node, &place)], &lock, &selection, supply)
}

/// What the project itself bundles is of a tarball like anything else; what another package is said to bundle is of that one's.
#[test]
fn what_is_bundled_is_of_a_tarball_all_the_same() {
    let bundled = |text: &str| {
        text.replacen(
            "\"node_modules/ms\": {",
            "\"node_modules/ms\": {\"inBundle\": true,",
            1,
        )
    };
    let mut node = modules();
    let hidden = bundled(&node.text(".package-lock.json"));
    node.file(".package-lock.json", hidden.as_bytes());
    bind_node_to(&node, &bundled(PACKAGE_LOCK)).unwrap();
    node.file("ms/index.js", b"evil");
    let refusal = bind_node_to(&node, &bundled(PACKAGE_LOCK)).unwrap_err();
    assert_eq!(refusal.code, Code::RecordMismatch, "{refusal}");

    let nested = |text: &str| {
        let entry = "\"node_modules/is-odd/node_modules/x\": {\"version\": \"1.0.0\", \"inBundle\": true}, \"node_modules/ms\": {";
        text.replacen("\"node_modules/ms\": {", entry, 1)
    };
    let mut node = modules();
    let hidden = nested(&node.text(".package-lock.json"));
    node.file(".package-lock.json", hidden.as_bytes());
    node.file(
        "is-odd/node_modules/x/package.json",
        b"{\"name\":\"x\",\"version\":\"1.0.0\"}",
    );
    let refusal = bind_node_to(&node, &nested(PACKAGE_LOCK)).unwrap_err();
    assert_eq!(refusal.code, Code::RecordMismatch, "{refusal}");
    assert!(
        refusal
            .names
            .iter()
            .any(|name| name.contains("is-odd/node_modules/x")),
        "{refusal:?}"
    );
}

#[test]
fn every_file_is_a_member_of_its_tarball() {
    let given = supply(&modules());
    #[rustfmt::skip]
    let tampered: &[Plain] = &[
        ("edited", |n| n.file("ms/index.js", b"evil")),
        ("edited manifest", |n| n.edit("ms/package.json", "}", ",\"main\":\"evil.js\"}")),
        ("deleted", |n| n.remove("ms/index.js")),
        ("stray", |n| n.file("ms/evil.js", b"")),
        ("stray in a folder of the package", |n| n.file("semver/test/node_modules/fixture/evil.js", b"")),
        ("content edited", |n| n.file("semver/test/node_modules/fixture/a.js", b"evil")),
        ("a link in a package", |n| n.link("ms/evil.js", "index.js")),
        ("a file that became a link", |n| n.link("ms/index.js", "package.json")),
    ];
    for (what, change) in tampered {
        let mut changed = modules();
        change(&mut changed);
        let refusal = bind(&changed, &given)
            .err()
            .unwrap_or_else(|| panic!("{what} passed"));
        assert_eq!(refusal.code, Code::RecordMismatch, "{what}: {refusal}");
        assert_eq!(
            refusal.names.len(),
            2,
            "{what}: tarball and file are named: {refusal}"
        );
    }
    for (mode, fits) in [(0o644, true), (0o755, false), (0o646, false), (0o4644, false)] {
        let mut changed = modules();
        if let Some(Fact::File { mode: own, .. }) = changed.0.entries.get_mut(&at("ms/index.js")) {
            *own = mode;
        }
        assert_eq!(bind(&changed, &given).is_ok(), fits, "{mode:o}");
    }
    let refusal = bind(&modules(), &Supply::default()).unwrap_err();
    assert_eq!(refusal.code, Code::RecordMismatch);
}

#[test]
fn what_package_managers_change_follows_from_rules() {
    let mut given = supply(&modules());
    let mut node = modules();
    put(&mut given, "ms", ".gitignore", b"dist\n", 0o644);
    node.file("ms/.npmignore", b"dist\n");
    put(
        &mut given,
        "ms",
        "cli.js",
        b"#!/usr/bin/env node\r\nrun\r\n",
        0o755,
    );
    node.file("ms/cli.js", b"#!/usr/bin/env node\nrun\r\n");
    bind(&node, &given).unwrap();
    let mut other = node.clone();
    other.file("ms/.npmignore", b"other\n");
    assert!(bind(&other, &given).is_err());
    let mut other = node.clone();
    other.file("ms/cli.js", b"#!/usr/bin/env node\nevil\r\n");
    assert!(bind(&other, &given).is_err());
    // Where the tarball has both, each is itself.
    put(&mut given, "ms", ".npmignore", b"own\n", 0o644);
    assert!(bind(&node, &given).is_err());
    node.file("ms/.npmignore", b"own\n");
    bind(&node, &given).unwrap();
    // A command may be run, though its tarball does not say so; a file that is none may not.
    let mut running = modules();
    if let Some(Fact::File { mode, .. }) = running.0.entries.get_mut(&at("semver/bin/semver.js")) {
        *mode = 0o755;
    }
    bind(&running, &supply(&modules())).unwrap();
}
