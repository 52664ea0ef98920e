//! What only the wheel knows: every change that its own `RECORD` was mended with.

use super::*;
use crate::artifact::{Held, Locked, Packing, wants_member};

/// A wheel with these members, as the artifact that the fixture's lock names for a package.
fn held(name: &str, members: &[(&str, &str)]) -> Held {
    let lock = lock("uv.lock", UV_LOCK);
    let package = lock.packages.iter().find(|p| p.name == name).unwrap();
    let artifact = &package.artifacts[0];
    let mut held = Held {
        locked: Locked::of(artifact),
        sha256: Sha256::of(name.as_bytes()),
        file: format!("{name}.whl"),
        packing: Packing::Wheel,
        members: BTreeMap::new(),
        texts: BTreeMap::new(),
    };
    let version = package.version.as_deref().unwrap();
    let metadata = format!("Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\nText.\n");
    let info = format!("{name}-{version}.dist-info");
    let own = [
        (format!("{info}/METADATA"), metadata.as_str()),
        (format!("{info}/RECORD"), "as it was shipped"),
    ];
    let given = members.iter().map(|(path, text)| ((*path).to_owned(), *text));
    for (path, text) in given.chain(own) {
        let path = at(&path);
        if wants_member(Packing::Wheel, &path, text.as_bytes()).is_some() {
            held.texts.insert(path.clone(), text.as_bytes().to_vec());
        }
        let fact = Fact::File {
            mode: 0o644,
            size: text.len() as u64,
            sha256: Sha256::of(text.as_bytes()),
        };
        held.members.insert(path, fact);
    }
    held
}

fn six(members: &[(&str, &str)]) -> Supply {
    let mut supply = Supply::default();
    supply.add(held("six", members));
    supply.add(held(
        "idna",
        &[("idna/__init__.py", ""), ("idna/core.py", "x = 1\n")],
    ));
    supply
}

const SIX: &[(&str, &str)] = &[
    ("six.py", "import sys\n"),
    ("six-1.17.0.data/scripts/six", "#!python\nrun\n"),
];

/// What the fixture's environment was installed from.
pub(super) fn supply() -> Supply {
    six(SIX)
}

const SCRIPT: (&str, &str) = ("../../../bin/six", "#!/v/tree/.venv/bin/python\nrun\n");

/// Each is installed with a RECORD that says so: vectors 4 to 6, 8, 13 and 22 with everything mended but the wheel.
#[test]
fn a_mended_record_does_not_help() {
    let installs: &[(&str, &[(&str, &str)])] = &[
        ("edited", &[("six.py", "evil\n"), SCRIPT]),
        ("added", &[("six.py", "import sys\n"), ("evil.py", ""), SCRIPT]),
        ("left out", &[SCRIPT]),
        ("no script", &[("six.py", "import sys\n")]),
        (
            "another script",
            &[
                ("six.py", "import sys\n"),
                ("../../../bin/six", "#!/v/tree/.venv/bin/python\nevil\n"),
            ],
        ),
        (
            "one script more",
            &[
                ("six.py", "import sys\n"),
                SCRIPT,
                ("../../../bin/ls", "#!/v/tree/.venv/bin/python\nrun\n"),
            ],
        ),
        (
            "compiled",
            &[
                ("six.py", "import sys\n"),
                ("__pycache__/six.cpython-311.pyc", "evil"),
                SCRIPT,
            ],
        ),
        (
            "a hook",
            &[("six.py", "import sys\n"), ("a.pth", "import evil\n"), SCRIPT],
        ),
        (
            "entry points",
            &[
                ("six.py", "import sys\n"),
                ("six-1.17.0.dist-info/entry_points.txt", "[pytest11]\nx = evil\n"),
                SCRIPT,
            ],
        ),
    ];
    for (what, files) in installs {
        let mut forged = venv();
        install(&mut forged, "six", "1.17.0", files);
        let refusal = bind_venv(&forged)
            .err()
            .unwrap_or_else(|| panic!("{what} passed"));
        assert_eq!(refusal.code, Code::RecordMismatch, "{what}: {refusal}");
        assert!(!refusal.names.is_empty(), "{what}: {refusal}");
    }
}

#[test]
fn an_artifact_that_the_generation_was_not_given_binds_nothing() {
    let refusal = bind_from(&venv(), &Supply::default()).unwrap_err();
    assert_eq!(
        (refusal.code, refusal.names[0].as_str()),
        (Code::RecordMismatch, "idna==3.20")
    );
}

/// A row without a hash: the compiled file is there, and no wheel has it.
#[test]
fn a_compiled_file_that_no_wheel_has_is_refused() {
    let mut compiled = venv();
    compiled.file(&format!("{SITE}/__pycache__/six.cpython-311.pyc"), b"evil");
    let record = format!("{SITE}/six-1.17.0.dist-info/RECORD");
    compiled.edit(&record, "six.py,", "__pycache__/six.cpython-311.pyc,,\nsix.py,");
    assert_eq!(bind_venv(&compiled).unwrap_err().code, Code::RecordMismatch);
}

#[test]
fn data_has_its_place_and_entry_points_become_scripts() {
    let members = [
        ("six.py", "import sys\n"),
        ("six-1.17.0.data/purelib/pure.py", "p"),
        ("six-1.17.0.data/platlib/plat.py", "q"),
        ("six-1.17.0.data/data/share/doc.txt", "d"),
        ("six-1.17.0.data/headers/six.h", "h"),
        ("six-1.17.0.data/scripts/run", "#!python\nrun\n"),
        ("six-1.17.0.data/scripts/binary", "\x7fELF"),
        (
            "six-1.17.0.dist-info/entry_points.txt",
            "[console_scripts]\nsixty = six.cli:main [extra]\n[other]\nx = y\n",
        ),
    ];
    let script = "#!/v/tree/.venv/bin/python\n# -*- coding: utf-8 -*-\nimport sys\nfrom six.cli import main\nif __name__ == \"__main__\":\n    sys.exit(main())\n";
    let files: Vec<(&str, &str)> = vec![
        ("six.py", "import sys\n"),
        ("pure.py", "p"),
        ("plat.py", "q"),
        ("../../../share/doc.txt", "d"),
        ("../../../include/site/python3.11/six/six.h", "h"),
        ("../../../bin/run", "#!/v/tree/.venv/bin/python3\nrun\n"),
        ("../../../bin/binary", "\x7fELF"),
        ("../../../bin/sixty", script),
        ("six-1.17.0.dist-info/entry_points.txt", members[7].1),
        ("six-1.17.0.dist-info/REQUESTED", ""),
    ];
    let mut whole = venv();
    whole.remove("bin/six");
    install(&mut whole, "six", "1.17.0", &files);
    bind_from(&whole, &six(&members)).unwrap();
    for (at, text) in [
        (5, "#!/v/tree/.venv/bin/python3\nevil\n"),
        (6, "other"),
        (7, "#!/v/tree/.venv/bin/python\nimport evil\n"),
        (4, "other"),
        (3, "other"),
        (1, "other"),
    ] {
        let mut changed = files.clone();
        changed[at].1 = text;
        let mut forged = whole.clone();
        install(&mut forged, "six", "1.17.0", &changed);
        let refusal = bind_from(&forged, &six(&members)).unwrap_err();
        assert_eq!(refusal.code, Code::RecordMismatch, "{}: {refusal}", files[at].0);
    }
    let mut fewer = whole.clone();
    fewer.remove("bin/sixty");
    let kept: Vec<(&str, &str)> = files
        .iter()
        .copied()
        .filter(|(p, _)| !p.ends_with("sixty"))
        .collect();
    install(&mut fewer, "six", "1.17.0", &kept);
    assert_eq!(
        bind_from(&fewer, &six(&members)).unwrap_err().code,
        Code::RecordMismatch
    );
}

/// Vector 32, where it happens before the record is made.
#[test]
fn a_mode_that_no_artifact_gives_is_refused() {
    for (mode, fits) in [
        (0o644, true),
        (0o664, true),
        (0o755, false),
        (0o666, false),
        (0o4755, false),
        (0o1644, false),
    ] {
        let mut changed = venv();
        let path = at(&format!("{SITE}/six.py"));
        if let Some(Fact::File { mode: own, .. }) = changed.0.entries.get_mut(&path) {
            *own = mode;
        }
        let verdict = bind_venv(&changed).map_err(|refusal| refusal.code);
        assert_eq!(verdict.is_ok(), fits, "{mode:o}: {verdict:?}");
    }
}
