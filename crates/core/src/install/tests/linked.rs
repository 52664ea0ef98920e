//! `node_modules` of pnpm and of both kinds of Yarn, in memory: what is there, what leads where, what nobody owns.

use super::*;
use crate::artifact::{Held, Locked, Packing, Supply};
use crate::lockset::Setting;

const SUM: &str =
    "sha512-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==";

/// Makes a whole integrity, another one for each letter.
fn sum(letter: char) -> String {
    SUM.replacen('A', &letter.to_string(), 1)
}

fn pnpm_lock() -> Lockfile {
    let package =
        |name: &str, letter| format!("  {name}:\n    resolution: {{integrity: {}}}\n\n", sum(letter));
    let text = format!(
        "lockfileVersion: '9.0'\n\nimporters:\n\n  .:\n    dependencies:\n      a:\n        specifier: ^1.0.0\n        version: 1.0.0\n      b:\n        specifier: ^1.0.0\n        version: 1.0.0\n    devDependencies:\n      d:\n        specifier: ^1.0.0\n        version: 1.0.0\n\npackages:\n\n{}{}{}{}\nsnapshots:\n\n  a@1.0.0:\n    dependencies:\n      b: 2.0.0\n\n  b@1.0.0: {{}}\n\n  b@2.0.0: {{}}\n\n  d@1.0.0: {{}}\n",
        package("a@1.0.0", 'B'),
        package("b@1.0.0", 'C'),
        package("b@2.0.0", 'D'),
        package("d@1.0.0", 'E')
    );
    lock("pnpm-lock.yaml", &text)
}

fn yarn_lock() -> Lockfile {
    lock("yarn.lock", &yarn_text())
}

fn yarn_text() -> String {
    let entry = |key: &str, version: &str, letter, more: &str| {
        let (name, _) = key.split_once('@').unwrap();
        format!(
            "{key}:\n  version \"{version}\"\n  resolved \"https://host/{name}/-/{name}-{version}.tgz\"\n  integrity {}\n{more}\n",
            sum(letter)
        )
    };
    format!(
        "# yarn lockfile v1\n\n\n{}{}{}{}",
        entry("a@^1.0.0", "1.0.0", 'B', "  dependencies:\n    b \"^2.0.0\"\n"),
        entry("b@^1.0.0", "1.0.0", 'C', ""),
        entry("b@^2.0.0", "2.0.0", 'D', ""),
        entry("d@^1.0.0", "1.0.0", 'E', "")
    )
}

const PROJECT: &str =
    r#"{"name":"app","dependencies":{"a":"^1.0.0","b":"^1.0.0"},"devDependencies":{"d":"^1.0.0"}}"#;

fn manifest(name: &str, version: &str) -> String {
    let bin = if name == "d" { ",\"bin\":\"cli.js\"" } else { "" };
    format!("{{\"name\":\"{name}\",\"version\":\"{version}\"{bin}}}")
}

fn supply(lock: &Lockfile) -> Supply {
    let mut supply = Supply::default();
    for package in &lock.packages {
        let version = package.version.as_deref().unwrap();
        let mut held = Held {
            locked: Locked::of(&package.artifacts[0]),
            sha256: Sha256::of(package.name.as_bytes()),
            file: format!("{}-{version}.tgz", package.name),
            packing: Packing::Npm,
            members: BTreeMap::new(),
            texts: BTreeMap::new(),
        };
        let text = manifest(&package.name, version);
        for (path, bytes) in [
            ("package.json", text.as_str()),
            ("index.js", "x"),
            ("cli.js", "y"),
        ] {
            let fact = Fact::File {
                mode: 0o644,
                size: bytes.len() as u64,
                sha256: Sha256::of(bytes.as_bytes()),
            };
            held.members.insert(at(path), fact);
        }
        held.texts.insert(at("package.json"), text.into_bytes());
        supply.add(held);
    }
    supply
}

fn put(node: &mut Fake, place: &str, name: &str, version: &str) {
    node.file(
        &format!("{place}/package.json"),
        manifest(name, version).as_bytes(),
    );
    node.file(&format!("{place}/index.js"), b"x");
    node.file(&format!("{place}/cli.js"), b"y");
}

/// As pnpm arranges it.
fn pnpm() -> Fake {
    let mut node = Fake::new(Kind::Node, "tree/node_modules");
    for (name, version) in [("a", "1.0.0"), ("b", "1.0.0"), ("b", "2.0.0"), ("d", "1.0.0")] {
        put(
            &mut node,
            &format!(".pnpm/{name}@{version}/node_modules/{name}"),
            name,
            version,
        );
    }
    node.link(".pnpm/a@1.0.0/node_modules/b", "../../b@2.0.0/node_modules/b");
    node.dir(".pnpm/node_modules");
    node.link(".pnpm/node_modules/b", "../b@2.0.0/node_modules/b");
    for name in ["a", "b", "d"] {
        node.link(name, &format!(".pnpm/{name}@1.0.0/node_modules/{name}"));
    }
    node.file(".modules.yaml", b"{}");
    node.file(".pnpm/lock.yaml", b"");
    let shim = "#!/bin/sh\nbasedir=$(dirname \"$(echo \"$0\" | sed -e 's,\\\\,/,g')\")\nif [ -x \"$basedir/node\" ]; then\n  exec \"$basedir/node\"  \"$basedir/../.pnpm/d@1.0.0/node_modules/d/cli.js\" \"$@\"\nelse\n  exec node  \"$basedir/../.pnpm/d@1.0.0/node_modules/d/cli.js\" \"$@\"\nfi\n";
    node.file(".bin/d", shim.as_bytes());
    node
}

/// As Yarn arranges it: what does not fit at the top lies with the one that needs it.
fn flat() -> Fake {
    let mut node = Fake::new(Kind::Node, "tree/node_modules");
    put(&mut node, "a", "a", "1.0.0");
    put(&mut node, "a/node_modules/b", "b", "2.0.0");
    put(&mut node, "b", "b", "1.0.0");
    put(&mut node, "d", "d", "1.0.0");
    node.dir(".bin");
    node.link(".bin/d", "../d/cli.js");
    node.file(".yarn-integrity", b"{}");
    node
}

fn bind(node: &Fake, lock: &Lockfile, groups: &[&str]) -> Result<Bound, Refusal> {
    let selection = Selection {
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..Selection::default()
    };
    let setting = Setting::node("x64", "glibc");
    let place = place("tree/node_modules");
    super::super::linked::bind(
        &node.0,
        lock,
        PROJECT,
        &selection,
        &setting,
        &place,
        &supply(lock),
    )
}

#[test]
fn what_each_tool_arranges_is_bound() {
    let all = ["a==1.0.0", "b==1.0.0", "b==2.0.0", "d==1.0.0"];
    for (node, lock) in [(pnpm(), pnpm_lock()), (flat(), yarn_lock())] {
        let bound = bind(&node, &lock, &["dev"]).unwrap();
        assert_eq!(bound.packages.into_iter().collect::<Vec<_>>(), all);
        assert!(bound.weak.is_empty(), "{:?}", bound.weak);
    }
    // What only development needs may be left out, where it was not asked for.
    let mut without = flat();
    for path in ["d/package.json", "d/index.js", "d/cli.js", "d", ".bin/d"] {
        without.remove(path);
    }
    bind(&without, &yarn_lock(), &[]).unwrap();
    assert_eq!(
        bind(&without, &yarn_lock(), &["dev"]).unwrap_err().code,
        Code::RecordMismatch
    );
}

#[test]
fn what_is_tampered_with_is_refused_by_its_code() {
    #[rustfmt::skip]
    let of_pnpm: &[Change] = &[
        ("edited", Code::RecordMismatch, |n| n.file(".pnpm/b@2.0.0/node_modules/b/index.js", b"evil")),
        ("stray in a package", Code::RecordMismatch, |n| n.file(".pnpm/b@2.0.0/node_modules/b/evil.js", b"")),
        ("deleted", Code::RecordMismatch, |n| n.remove(".pnpm/b@2.0.0/node_modules/b/index.js")),
        ("another version", Code::RecordMismatch, |n| n.link(".pnpm/a@1.0.0/node_modules/b", "../../b@1.0.0/node_modules/b")),
        ("another package", Code::RecordMismatch, |n| n.link(".pnpm/a@1.0.0/node_modules/b", "../../d@1.0.0/node_modules/d")),
        ("the project's own, in another version", Code::RecordMismatch, |n| n.link("b", ".pnpm/b@2.0.0/node_modules/b")),
        ("a link out", Code::RecordOutsideRoot, |n| n.link("b", "/w/b")),
        ("a link into the tree", Code::RecordMismatch, |n| n.link("b", "../src")),
        ("a link to nothing", Code::RecordMismatch, |n| n.link("b", ".pnpm/gone/node_modules/b")),
        ("a package of no lock", Code::RecordMismatch, |n| put(n, ".pnpm/e@1.0.0/node_modules/e", "e", "1.0.0")),
        ("a locked name of another version", Code::RecordMismatch, |n| put(n, "e", "b", "3.0.0")),
        ("a file in the store", Code::RecordMismatch, |n| n.file(".pnpm/evil.js", b"")),
        ("a file beside a package", Code::RecordMismatch, |n| n.file(".pnpm/b@2.0.0/evil.js", b"")),
        ("a file at the top", Code::RecordMismatch, |n| n.file("evil.js", b"")),
        ("a hidden file at the top", Code::RecordMismatch, |n| n.file(".evil", b"")),
        ("a cache", Code::RecordMismatch, |n| n.file(".cache/x", b"")),
        ("another command", Code::RecordMismatch, |n| n.file(".bin/node", b"#!/bin/sh\nexit 0\n")),
        ("a command under another name", Code::RecordMismatch, |n| { let text = n.text(".bin/d"); n.file(".bin/node", text.as_bytes()); }),
        ("a device", Code::RecordMismatch, |n| drop(n.0.entries.insert(at("x"), Fact::Other))),
    ];
    #[rustfmt::skip]
    let of_yarn: &[Change] = &[
        ("edited", Code::RecordMismatch, |n| n.file("a/node_modules/b/index.js", b"evil")),
        ("the nested one gone, so that Node finds the other", Code::RecordMismatch, |n| {
            for path in ["a/node_modules/b/package.json", "a/node_modules/b/index.js", "a/node_modules/b/cli.js", "a/node_modules/b", "a/node_modules"] { n.remove(path); }
        }),
        ("one too many, which Node finds first", Code::RecordMismatch, |n| put(n, "d/node_modules/a", "a", "9.0.0")),
        ("the two swapped", Code::RecordMismatch, |n| { put(n, "a/node_modules/b", "b", "1.0.0"); put(n, "b", "b", "2.0.0"); }),
        ("a command nobody declares", Code::RecordMismatch, |n| n.link(".bin/node", "../d/cli.js")),
        ("a command that leads elsewhere", Code::RecordMismatch, |n| n.link(".bin/d", "../d/index.js")),
        ("a command that leads out", Code::RecordOutsideRoot, |n| n.link(".bin/d", "/w/cli.js")),
        ("an empty installation", Code::RecordMismatch, |n| n.0.entries.clear()),
    ];
    for (node, lock, changes) in [(pnpm(), pnpm_lock(), of_pnpm), (flat(), yarn_lock(), of_yarn)] {
        for (what, code, change) in changes {
            let mut changed = node.clone();
            change(&mut changed);
            let refusal = bind(&changed, &lock, &["dev"])
                .err()
                .unwrap_or_else(|| panic!("{what} passed"));
            assert_eq!(refusal.code, *code, "{what}: {refusal}");
            assert!(!refusal.names.is_empty(), "{what}: {refusal}");
        }
    }
}

/// pnpm names the command of a package also by the link that it keeps to each.
#[test]
fn a_command_may_be_named_by_the_link_to_its_package() {
    let mut node = pnpm();
    node.link(".pnpm/node_modules/d", "../d@1.0.0/node_modules/d");
    let shim = node.text(".bin/d").replace(".pnpm/d@1.0.0/node_modules/d/", "d/");
    node.file(".pnpm/node_modules/.bin/d", shim.as_bytes());
    bind(&node, &pnpm_lock(), &["dev"]).unwrap();
    for (from, to) in [
        ("d/cli.js", "d/index.js"),
        ("d/cli.js", "b/cli.js"),
        ("d/cli.js", "d/gone.js"),
    ] {
        let mut changed = node.clone();
        changed.file(".pnpm/node_modules/.bin/d", shim.replace(from, to).as_bytes());
        let refusal = bind(&changed, &pnpm_lock(), &["dev"]).unwrap_err();
        assert_eq!(refusal.code, Code::RecordMismatch, "{to}");
    }
}

/// A tarball that came with packages of its own: they stay, or Yarn puts a locked one in the place of one.
#[test]
fn a_locked_package_may_stand_where_a_tarball_brought_another() {
    let lock = yarn_lock();
    let mut supply = supply(&lock);
    let mut held = supply
        .iter()
        .find(|held| held.file == "a-1.0.0.tgz")
        .unwrap()
        .clone();
    let brought = [
        ("package.json", manifest("b", "0.5.0")),
        ("old.js", "o".to_owned()),
    ];
    for (path, text) in &brought {
        let fact = Fact::File {
            mode: 0o644,
            size: text.len() as u64,
            sha256: Sha256::of(text.as_bytes()),
        };
        held.members.insert(at(&format!("node_modules/b/{path}")), fact);
    }
    supply.add(held);
    let judge = |node: &Fake| {
        let selection = Selection {
            groups: ["dev".to_owned()].into(),
            ..Selection::default()
        };
        let (setting, place) = (Setting::node("x64", "glibc"), place("tree/node_modules"));
        super::super::linked::bind(&node.0, &lock, PROJECT, &selection, &setting, &place, &supply)
    };
    // The locked one, whole; the one that it replaced is not missed.
    judge(&flat()).unwrap();
    let mut mixed = flat();
    mixed.file("a/node_modules/b/old.js", b"o");
    assert_eq!(
        judge(&mixed).unwrap_err().code,
        Code::RecordMismatch,
        "both in one"
    );
    let mut cut = flat();
    cut.remove("a/node_modules/b/index.js");
    assert_eq!(judge(&cut).unwrap_err().code, Code::RecordMismatch, "cut");
    // The one that was brought: Node would find it instead of the locked one.
    let mut old = flat();
    for name in ["index.js", "cli.js"] {
        old.remove(&format!("a/node_modules/b/{name}"));
    }
    for (path, text) in &brought {
        old.file(&format!("a/node_modules/b/{path}"), text.as_bytes());
    }
    assert_eq!(
        judge(&old).unwrap_err().code,
        Code::RecordMismatch,
        "another version"
    );
}

/// One version as published and as its tool patched it, each with a digest of its own.
#[test]
fn of_two_artifacts_of_one_version_the_one_that_stands_there_counts() {
    let second = "b@~2.0.0:\n  version \"2.0.0\"\n  resolved \"https://host/b/-/b-2.0.0.tgz\"\n  integrity ";
    let text = yarn_text() + second + &sum('F') + "\n";
    let lock = lock("yarn.lock", &text);
    let mut supply = supply(&lock);
    let patched = lock.packages.iter().find(|p| p.artifacts[0].digest[0] == 0x14);
    let patched = Locked::of(&patched.unwrap().artifacts[0]);
    let mut held = supply.iter().find(|held| held.locked == patched).unwrap().clone();
    let fact = Fact::File {
        mode: 0o644,
        size: 1,
        sha256: Sha256::of(b"p"),
    };
    held.members.insert(at("index.js"), fact);
    supply.add(held);
    let judge = |bytes: &[u8]| {
        let mut node = flat();
        node.file("a/node_modules/b/index.js", bytes);
        let selection = Selection {
            groups: ["dev".to_owned()].into(),
            ..Selection::default()
        };
        let (setting, place) = (Setting::node("x64", "glibc"), place("tree/node_modules"));
        super::super::linked::bind(&node.0, &lock, PROJECT, &selection, &setting, &place, &supply)
    };
    for bytes in [b"x", b"p"] {
        judge(bytes).unwrap();
    }
    assert_eq!(judge(b"e").unwrap_err().code, Code::RecordMismatch);
}

/// pnpm makes commands of what a package bundles, too.
#[test]
fn a_bundled_package_declares_its_commands() {
    let lock = pnpm_lock();
    let mut supply = supply(&lock);
    let mut held = supply
        .iter()
        .find(|held| held.file == "d-1.0.0.tgz")
        .unwrap()
        .clone();
    let text = "{\"name\":\"c\",\"version\":\"1.0.0\",\"bin\":{\"c\":\"run.js\"}}";
    let brought = [("package.json", text), ("run.js", "r"), ("other.js", "o")];
    let mut node = pnpm();
    for (path, text) in brought {
        let fact = Fact::File {
            mode: 0o644,
            size: text.len() as u64,
            sha256: Sha256::of(text.as_bytes()),
        };
        held.members.insert(at(&format!("node_modules/c/{path}")), fact);
        let place = format!(".pnpm/d@1.0.0/node_modules/d/node_modules/c/{path}");
        node.file(&place, text.as_bytes());
    }
    supply.add(held);
    let shim = node
        .text(".bin/d")
        .replace("../.pnpm/d@1.0.0/node_modules/d/cli.js", "../c/run.js");
    let judge = |name: &str, shim: &str| {
        let mut node = node.clone();
        node.file(
            &format!(".pnpm/d@1.0.0/node_modules/d/node_modules/.bin/{name}"),
            shim.as_bytes(),
        );
        let selection = Selection {
            groups: ["dev".to_owned()].into(),
            ..Selection::default()
        };
        let (setting, place) = (Setting::node("x64", "glibc"), place("tree/node_modules"));
        super::super::linked::bind(&node.0, &lock, PROJECT, &selection, &setting, &place, &supply)
    };
    judge("c", &shim).unwrap();
    assert_eq!(judge("node", &shim).unwrap_err().code, Code::RecordMismatch);
    let other = shim.replace("run.js", "other.js");
    assert_eq!(judge("c", &other).unwrap_err().code, Code::RecordMismatch);
}

/// Yarn 2 and later leave out what a tarball bundles, whole; other tools do not.
#[test]
fn a_bundle_may_be_left_out_whole_by_the_yarn_that_does_so() {
    let lock = yarn_lock();
    let judge = |packing: Packing, there: &[&str]| {
        let mut supply = supply(&lock);
        let mut held = supply
            .iter()
            .find(|held| held.file == "d-1.0.0.tgz")
            .unwrap()
            .clone();
        held.packing = packing;
        let mut node = flat();
        for path in ["node_modules/c/package.json", "node_modules/c/c.js"] {
            let fact = Fact::File {
                mode: 0o644,
                size: 2,
                sha256: Sha256::of(b"{}"),
            };
            held.members.insert(at(path), fact);
        }
        for path in there {
            node.file(&format!("d/node_modules/c/{path}"), b"{}");
        }
        supply.add(held);
        let selection = Selection {
            groups: ["dev".to_owned()].into(),
            ..Selection::default()
        };
        let (setting, place) = (Setting::node("x64", "glibc"), place("tree/node_modules"));
        super::super::linked::bind(&node.0, &lock, PROJECT, &selection, &setting, &place, &supply)
    };
    judge(Packing::YarnCache, &[]).unwrap();
    for packing in [Packing::YarnCache, Packing::Npm] {
        judge(packing, &["package.json", "c.js"]).unwrap();
        assert_eq!(
            judge(packing, &["package.json"]).unwrap_err().code,
            Code::RecordMismatch
        );
    }
    assert_eq!(judge(Packing::Npm, &[]).unwrap_err().code, Code::RecordMismatch);
}
