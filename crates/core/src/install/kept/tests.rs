use super::super::{Fact, Kind};
use super::*;
use crate::lockset::fixtures::{CARGO_LOCK, PACKAGE_LOCK};
use crate::lockset::parse;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};

fn at(path: &str) -> RelPath {
    RelPath::parse(path.as_bytes()).unwrap()
}

/// Makes a tree in memory: a text that begins with `->` is a link.
fn tree(tree: Tree, root: &str, files: &[(&str, &str)]) -> Seen {
    let mut observed = Observed {
        root: at(root),
        kind: Kind::Python,
        entries: BTreeMap::new(),
        texts: BTreeMap::new(),
    };
    for (path, text) in files {
        let path = at(path);
        let mut above = path.clone();
        while let Some((parent, _)) = above.split_last().filter(|(parent, _)| !parent.is_root()) {
            observed
                .entries
                .insert(parent.clone(), Fact::Directory { mode: 0o755 });
            above = parent;
        }
        let fact = match text.strip_prefix("->") {
            Some(target) => Fact::Symlink {
                target: target.as_bytes().to_vec(),
            },
            None => {
                if tree.wants_text(&path).is_some() {
                    observed.texts.insert(path.clone(), text.as_bytes().to_vec());
                }
                Fact::File {
                    mode: 0o644,
                    size: text.len() as u64,
                    sha256: Sha256::of(text.as_bytes()),
                }
            }
        };
        observed.entries.insert(path, fact);
    }
    let place = Place {
        tree: b"/disk".to_vec(),
        root: format!("/disk/{root}").into_bytes(),
        interpreters: vec![b"/usr/bin/python3".to_vec()],
    };
    Seen {
        tree,
        observed,
        place,
    }
}

fn facts() -> Facts {
    Facts {
        generation: Some("g-1".to_owned()),
        disk_generation: Found::Absent,
        record: Found::Absent,
        locks: [(at("uv.lock"), FoundLock::Digest(Sha256::of(b"lock")))].into(),
    }
}

const SITE: &str = "lib/python3.11/site-packages";

/// A virtual environment with one distribution of two modules, without the files that `left_out` names.
fn venv(left_out: &[&str], more: &[(&str, &str)]) -> Seen {
    let row = |path: &str, text: &str| {
        let coded = BASE64_URL_SAFE_NO_PAD.encode(Sha256::of(text.as_bytes()).as_bytes());
        format!("{path},sha256={coded},{}\n", text.len())
    };
    let metadata = "Metadata-Version: 2.1\nName: leaf\nVersion: 1.0\n";
    let record = [
        row("leaf/__init__.py", "x = 1\n"),
        row("leaf/deep/__init__.py", "y = 1\n"),
        row("leaf-1.0.dist-info/METADATA", metadata),
        "leaf-1.0.dist-info/RECORD,,\n".to_owned(),
    ]
    .concat();
    let owned: Vec<(String, &str)> = [
        ("leaf/__init__.py", "x = 1\n"),
        ("leaf/deep/__init__.py", "y = 1\n"),
        ("leaf-1.0.dist-info/METADATA", metadata),
        ("leaf-1.0.dist-info/RECORD", record.as_str()),
    ]
    .iter()
    .filter(|(path, _)| !left_out.contains(path))
    .map(|(path, text)| (format!("{SITE}/{path}"), *text))
    .collect();
    let config = "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.7\n";
    let mut files = vec![("pyvenv.cfg", config), ("bin/python", "->/usr/bin/python3")];
    files.extend(owned.iter().map(|(path, text)| (path.as_str(), *text)));
    files.extend(more);
    tree(Tree::Venv, ".venv", &files)
}

fn refused(seen: &Seen, locks: &[Lockfile]) -> Refusal {
    Kept::make(&facts(), locks, std::slice::from_ref(seen)).unwrap_err()
}

#[test]
fn a_record_is_what_was_written_and_nothing_else() {
    let seen = [venv(&[], &[])];
    let (record, warnings) = Kept::make(&facts(), &[], &seen).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(record.installed, ["leaf==1.0"]);
    assert_eq!(record.roots, [(at(".venv"), Tree::Venv)].into());
    let bytes = record.encode().unwrap();
    assert_eq!(Kept::decode(&bytes).unwrap(), record);
    for cut in 0..bytes.len() {
        assert_eq!(
            Kept::decode(&bytes[..cut]).unwrap_err().code,
            Code::UnknownState,
            "{cut}"
        );
    }
    // One bit anywhere is another record or none, and never one that holds.
    for byte in 0..bytes.len() {
        let mut bent = bytes.clone();
        bent[byte] ^= 1;
        let held = Kept::decode(&bent).and_then(|bent| {
            let now = Facts {
                record: Found::Bytes(bent.encode()?),
                ..facts()
            };
            Kept::of_this_generation(&now)?.still(&now, &seen)
        });
        assert!(held.is_err(), "{byte}");
    }
}

#[test]
fn a_ghost_is_seen_when_the_record_is_written() {
    let ghost = refused(&venv(&["leaf/__init__.py", "leaf/deep/__init__.py"], &[]), &[]);
    assert_eq!(ghost.code, Code::RecordMismatch);
    assert!(ghost.names[0].contains("leaf"), "{ghost}");
    let cut = refused(&venv(&["leaf-1.0.dist-info/RECORD"], &[]), &[]);
    assert_eq!(cut.code, Code::RecordMismatch);
    for stray in [
        "lib/python3.11/site-packages/evil.pth",
        "lib/python3.11/site-packages/leaf/more.py",
        "lib/python3.11/site-packages/evil.pyc",
        "bin/pytest",
    ] {
        let refusal = refused(&venv(&[], &[(stray, "x")]), &[]);
        assert_eq!(
            (refusal.code, refusal.names),
            (Code::RecordMismatch, vec![stray.to_owned()])
        );
    }
    let compiled = "lib/python3.11/site-packages/leaf/__pycache__/__init__.cpython-311.pyc";
    let (_, warnings) = Kept::make(&facts(), &[], &[venv(&[], &[(compiled, "x")])]).unwrap();
    assert!(warnings[0].contains("1 compiled"), "{warnings:?}");
    let outside = venv(&[], &[("bin/python3", "->/tmp/other/python3")]);
    assert_eq!(refused(&outside, &[]).code, Code::RecordOutsideRoot);
}

#[test]
fn each_thing_that_moves_has_its_own_refusal_in_a_fixed_order() {
    let seen = [venv(&[], &[])];
    let (record, _) = Kept::make(&facts(), &[], &seen).unwrap();
    let mut now = Facts {
        generation: None,
        disk_generation: Found::Bytes(b"g-0".to_vec()),
        record: Found::Absent,
        locks: BTreeMap::new(),
    };
    let code = |now: &Facts, seen: &[Seen]| {
        let checked = Kept::of_this_generation(now).and_then(|record| record.still(now, seen));
        checked.err().map(|refusal| refusal.code)
    };
    let moved = [venv(&[], &[("lib/python3.11/site-packages/leaf/more.py", "x")])];
    assert_eq!(code(&now, &moved), Some(Code::MissingIdentity));
    now.generation = Some("g-2".to_owned());
    assert_eq!(code(&now, &moved), Some(Code::UnknownState));
    now.record = Found::Odd("a directory".to_owned());
    assert_eq!(code(&now, &moved), Some(Code::UnknownState));
    now.record = Found::Bytes(record.encode().unwrap());
    assert_eq!(code(&now, &moved), Some(Code::EvidenceForeign));
    now.generation = Some("g-1".to_owned());
    assert_eq!(code(&now, &moved), Some(Code::GenerationReused));
    now.disk_generation = Found::Bytes(b"g-1\n".to_vec());
    assert_eq!(code(&now, &moved), Some(Code::LockfileDrift), "vanished");
    now.locks = facts().locks;
    now.locks
        .insert(at("poetry.lock"), FoundLock::Digest(Sha256::of(b"")));
    assert_eq!(code(&now, &moved), Some(Code::LockfileDrift), "appeared");
    now.locks = [(at("uv.lock"), FoundLock::Odd("a link".to_owned()))].into();
    assert_eq!(code(&now, &moved), Some(Code::UnknownState));
    now.locks = facts().locks;
    assert_eq!(code(&now, &moved), Some(Code::RecordMismatch));
    assert_eq!(code(&now, &[]), Some(Code::RecordMismatch), "the tree is gone");
    assert_eq!(code(&now, &seen), None);
}

/// Where something leads is told before what is wrong with it: nobody mends a link that leads away by installing again.
#[test]
fn what_leads_away_comes_before_what_is_not_whole() {
    let site = |path: &str| format!("{SITE}/{path}");
    let (info, pth, direct) = (
        site("lib-1.0.dist-info/METADATA"),
        site("__editable__.lib-1.0.pth"),
        site("lib-1.0.dist-info/direct_url.json"),
    );
    let metadata = "Metadata-Version: 2.1\nName: lib\nVersion: 1.0\n";
    let away = "{\"url\": \"file:///other\", \"dir_info\": {\"editable\": true}}";
    let (record, _) = Kept::make(&facts(), &[], &[venv(&[], &[])]).unwrap();
    let leads = |more: &[(&str, &str)]| {
        for seen in [venv(&[], more), venv(&["leaf/__init__.py"], more)] {
            assert_eq!(refused(&seen, &[]).code, Code::RecordOutsideRoot, "{more:?}");
            let refusal = record.still(&facts(), std::slice::from_ref(&seen)).unwrap_err();
            assert_eq!(refusal.code, Code::RecordOutsideRoot, "{more:?}");
            // The whole tree is new, too.
            let first = tree(Tree::NodeModules, "a", &[("x/package.json", "no JSON")]);
            assert_eq!(
                Kept::make(&facts(), &[], &[first, seen]).unwrap_err().code,
                Code::RecordOutsideRoot
            );
        }
    };
    // As it was handed over: an editable install of another checkout, without a RECORD.
    leads(&[(&info, metadata), (&pth, "/other/src\n"), (&direct, away)]);
    leads(&[(&info, metadata), (&direct, away)]);
    // Of no distribution.
    leads(&[(&pth, "/other/src\n")]);
    leads(&[(&site("stray.pth"), "../../../../../other\n")]);
    leads(&[(&site("stray"), "->/other")]);
    leads(&[("bin/stray", "#!/other/bin/python\nrun\n")]);
    // What leads nowhere is what it was.
    for more in [
        [(pth.as_str(), "/disk/src\n")],
        [(site("stray").as_str(), "->leaf")],
        [(direct.as_str(), "no JSON")],
    ] {
        assert_eq!(
            refused(&venv(&[], &more), &[]).code,
            Code::RecordMismatch,
            "{more:?}"
        );
    }
}

/// The host takes for interpreters what the links lead to: where one was changed, `pyvenv.cfg` alone says what was meant.
#[test]
fn a_link_to_another_interpreter_leads_away_though_it_vouches_for_itself() {
    let (record, _) = Kept::make(&facts(), &[], &[venv(&[], &[])]).unwrap();
    let check = |more: &[(&str, &str)], interpreter: &str| {
        let mut seen = venv(&["leaf/__init__.py"], more);
        seen.place.interpreters = vec![interpreter.as_bytes().to_vec()];
        let seen = [seen];
        let made = Kept::make(&facts(), &[], &seen).unwrap_err();
        let held = record.still(&facts(), &seen).unwrap_err();
        assert_eq!(made.code, held.code, "{held}");
        held
    };
    let away = check(
        &[("bin/python", "->/srv/older/bin/python")],
        "/srv/older/bin/python",
    );
    assert_eq!(away.code, Code::RecordOutsideRoot, "{away}");
    assert!(
        away.names.contains(&"changed .venv/bin/python".to_owned()),
        "{away}"
    );
    // A wrapper in the place of the link leads to itself.
    let wrapper = check(
        &[("bin/python", "#!/bin/sh\nexec /usr/bin/python3\n")],
        "/disk/.venv/bin/python",
    );
    assert_eq!(wrapper.code, Code::RecordOutsideRoot, "{wrapper}");
    // Of two lines the second could be the one that is read.
    let twice = "home = /usr/bin\nhome = /srv/older/bin\ninclude-system-site-packages = false\n";
    assert_eq!(
        check(&[("pyvenv.cfg", twice)], "/usr/bin/python3").code,
        Code::RecordOutsideRoot
    );
    for text in ["no pair\n", "home = /usr/bin\n"] {
        assert_eq!(
            check(&[("pyvenv.cfg", text)], "/usr/bin/python3").code,
            Code::RecordMismatch
        );
    }
}

#[test]
fn writing_wants_an_identity_a_lockfile_and_a_tree() {
    let seen = [venv(&[], &[])];
    let code = |facts: &Facts, seen: &[Seen]| Kept::make(facts, &[], seen).unwrap_err().code;
    let mut bad = facts();
    assert_eq!(code(&bad, &[]), Code::UnknownState);
    bad.locks = [(at("x.lock"), FoundLock::Missing)].into();
    assert_eq!(code(&bad, &seen), Code::NoLockfile);
    bad.locks.extend(facts().locks);
    assert_eq!(code(&bad, &seen), Code::UnknownState);
    bad.disk_generation = Found::Bytes(b"g-0".to_vec());
    assert_eq!(code(&bad, &seen), Code::GenerationReused);
    bad.generation = Some(" ".to_owned());
    assert_eq!(code(&bad, &seen), Code::MissingIdentity);
}

#[test]
fn node_modules_are_as_npm_says_and_lead_nowhere() {
    let hidden = r#"{"lockfileVersion":3,"packages":{"node_modules/ms":{"version":"2.1.3"},"node_modules/@a/b":{"version":"1.0.0"}}}"#;
    let ms = ("ms/package.json", r#"{"name":"ms","version":"2.1.3"}"#);
    let scoped = ("@a/b/package.json", r#"{"name":"@a/b","version":"1.0.0"}"#);
    let all = |more: &[(&str, &str)]| {
        let mut files = vec![(".package-lock.json", hidden)];
        files.extend(more);
        tree(Tree::NodeModules, "node_modules", &files)
    };
    let (record, _) = Kept::make(&facts(), &[], &[all(&[ms, scoped])]).unwrap();
    assert_eq!(record.installed, ["@a/b==1.0.0", "ms==2.1.3"]);
    assert_eq!(refused(&all(&[ms]), &[]).names, ["node_modules/@a/b"]);
    let other = ("ms/package.json", r#"{"name":"ms","version":"2.0.0"}"#);
    assert_eq!(refused(&all(&[other, scoped]), &[]).names[0], "node_modules/ms");
    let away = ("out", "->../../elsewhere");
    assert_eq!(
        refused(&all(&[ms, scoped, away]), &[]).code,
        Code::RecordOutsideRoot
    );

    let lock = parse(&at("package-lock.json"), PACKAGE_LOCK.as_bytes()).unwrap();
    let one = lock
        .packages
        .iter()
        .find(|package| package.version.is_some())
        .unwrap();
    let manifest = format!(r#"{{"name":"{}","version":"99.0.0"}}"#, one.name);
    let pnpm = format!(".pnpm/x@1/node_modules/{}/package.json", one.name);
    let seen = tree(Tree::NodeModules, "node_modules", &[(&pnpm, &manifest)]);
    let refusal = refused(&seen, &[lock]);
    assert_eq!(refusal.code, Code::RecordMismatch);
    assert!(refusal.names[0].contains("==99.0.0, locked"), "{refusal}");
}

#[test]
fn a_vendored_crate_is_as_listed_and_as_locked() {
    let lock = parse(&at("Cargo.lock"), CARGO_LOCK.as_bytes()).unwrap();
    let one = lock.packages.iter().find(|p| !p.artifacts.is_empty()).unwrap();
    let (name, version) = (one.name.as_str(), one.version.as_deref().unwrap());
    let manifest = format!("[package]\nname = \"{name}\"\nversion = \"{version}\"\n");
    let of = |text: &str| Sha256::of(text.as_bytes());
    let package = crate::digest::to_hex(&one.artifacts[0].digest);
    let sums = |package: &str| {
        format!(
            r#"{{"files":{{"Cargo.toml":"{}","src/lib.rs":"{}"}},"package":"{package}"}}"#,
            of(&manifest),
            of("fn x() {}")
        )
    };
    let vendored = |sums: &str, lib: &str, more: &[(&str, &str)]| {
        let mut files = vec![
            ("one/.cargo-checksum.json", sums),
            ("one/Cargo.toml", manifest.as_str()),
        ];
        if !lib.is_empty() {
            files.push(("one/src/lib.rs", lib));
        }
        files.extend(more);
        tree(Tree::CargoVendor, "vendor", &files)
    };
    let locks = [lock.clone()];
    let good = sums(&package);
    let (record, warnings) = Kept::make(&facts(), &locks, &[vendored(&good, "fn x() {}", &[])]).unwrap();
    assert_eq!(record.installed, [format!("{name}=={version}")]);
    assert_eq!(warnings, Vec::<String>::new());
    for (wrong, named) in [
        (vendored(&good, "fn y() {}", &[]), "one/src/lib.rs"),
        (vendored(&good, "", &[]), "one/src/lib.rs"),
        (
            vendored(&good, "fn x() {}", &[("one/build.rs", "")]),
            "one/build.rs",
        ),
        (vendored(&sums(&of("other").to_string()), "fn x() {}", &[]), name),
    ] {
        let refusal = refused(&wrong, &locks);
        assert_eq!(refusal.code, Code::RecordMismatch);
        assert!(refusal.names[0].starts_with(named), "{refusal}");
    }
    // A swapped archive in a registry cache.
    let archive = format!("registry/cache/index/{name}-{version}.crate");
    let home = tree(Tree::CargoHome, "home", &[(&archive, "swapped")]);
    assert_eq!(refused(&home, &locks).names, [format!("{name}=={version}")]);
    let lone = tree(
        Tree::CargoHome,
        "home",
        &[("registry/src/index/a-1.0.0/Cargo.toml", "")],
    );
    assert_eq!(refused(&lone, &[]).names, ["a-1.0.0"]);
}

#[test]
fn a_tree_is_known_by_what_it_holds() {
    let there = Sign::There;
    let none = Signs::default();
    let recognise = |name: &str, signs, named| Tree::recognise(name.as_bytes(), signs, named);
    assert_eq!(
        recognise("node_modules", none, Named::No),
        Some(Tree::NodeModules)
    );
    assert_eq!(recognise("src", none, Named::Yes), None);
    let venv = Signs {
        pyvenv: there,
        ..none
    };
    assert_eq!(recognise("env", venv, Named::No), Some(Tree::Venv));
    let home = Signs {
        registry: there,
        ..none
    };
    assert_eq!(recognise("cargo", home, Named::No), None);
    assert_eq!(recognise("cargo", home, Named::Yes), Some(Tree::CargoHome));
    let vendor = Signs {
        checksums: there,
        ..none
    };
    assert_eq!(recognise("vendor", vendor, Named::No), Some(Tree::CargoVendor));
}
