//! An environment of Python that is not what the lock says: bound in a certification, and on a disk of a person's own.

use super::lab::{Liar, PRELUDE};
use super::{Seen, show};
use crate::cases::lab::Lab;
use crate::harness::bare;
use serde_json::json;
use std::process::Command;

const TEST: &str = "python run.py {report}";

/// What is done to an installed environment, in the words of `lab::PRELUDE`.
const DAMAGE: [(&str, &str); 27] = [
    ("4", "L.write_text('LIMIT = 9\\n')"),
    ("5", "L.write_text('LIMIT = 9\\n'); fix(I)"),
    ("6", "L.write_text('LIMIT = 2\\n'); fix(I)"),
    ("7", "(S / 'leaf/deep/__init__.py').unlink()"),
    ("8", "(S / 'stray.py').write_text('')"),
    ("9", "(S / 'leaf/stray.py').write_text('')"),
    ("10", "(S / 'stray.pth').write_text('import os\\n')"),
    ("11", "(S / 'sitecustomize.py').write_text('')"),
    (
        "12",
        "(S / 'leaf/__pycache__').mkdir(exist_ok=True); s = L.stat(); name = os.path.basename(boot.cache_from_source('__init__.py'));\
         (S / 'leaf/__pycache__' / name).write_bytes(boot._code_to_timestamp_pyc(compile('LIMIT = 9', str(L), 'exec'), int(s.st_mtime), s.st_size))",
    ),
    (
        "13",
        "(S / 'leaf/__pycache__').mkdir(exist_ok=True); name = os.path.basename(boot.cache_from_source('__init__.py'));\
         (S / 'leaf/__pycache__' / name).write_bytes(boot._code_to_hash_pyc(compile('LIMIT = 9', str(L), 'exec'), b'0' * 8, False))",
    ),
    ("14", "(S / 'evil.pyc').write_bytes(b'x')"),
    (
        "15",
        "(S / 'fake-1.0.dist-info').mkdir(); (S / 'fake-1.0.dist-info/METADATA').write_text('Metadata-Version: 2.1\\nName: fake\\nVersion: 1.0\\n');\
         (S / 'fake-1.0.dist-info/entry_points.txt').write_text('[pytest11]\\nfake = leaf\\n')",
    ),
    (
        "15b",
        "dist('fake', '1.0', {'fake-1.0.dist-info/entry_points.txt': '[pytest11]\\nfake = leaf\\n'})",
    ),
    (
        "16",
        "shutil.copytree(I, S / 'leaf-0.9.dist-info'); p = S / 'leaf-0.9.dist-info/METADATA'; p.write_text(p.read_text().replace('1.0', '0.9'));\
         r = S / 'leaf-0.9.dist-info/RECORD'; r.write_text(r.read_text().replace('leaf-1.0', 'leaf-0.9')); fix(r.parent)",
    ),
    ("17", "shutil.rmtree(I)"),
    ("18", "(I / 'RECORD').unlink()"),
    ("19", "dist('extra', '1.0', {'extra.py': 'X = 1\\n'})"),
    (
        "20",
        "shutil.rmtree(I); shutil.rmtree(S / 'leaf'); print('leaf is gone')",
    ),
    (
        "21",
        "p = S / '__editable__.leaf-1.0.pth'; p.write_text('/srv/older/generation/src\\n'); fix(I, p)",
    ),
    (
        "22",
        "p = V / 'bin/tool'; p.write_text(p.read_text().replace(str(V / 'bin/python'), '/srv/older/.venv/bin/python')); fix(S / 'tool-1.0.dist-info')",
    ),
    (
        "23",
        "p = V / 'bin/python'; p.unlink(); p.symlink_to('/srv/older/bin/python')",
    ),
    (
        "23b",
        "p = V / 'bin/python'; t = os.path.realpath(p); p.unlink(); p.write_text(f'#!/bin/sh\\nexec {t} \"$@\"\\n'); p.chmod(0o755)",
    ),
    (
        "24",
        "shutil.rmtree(S / 'leaf'); (S / 'leaf').symlink_to('/srv/older/leaf')",
    ),
    (
        "25",
        "p = V / 'pyvenv.cfg'; p.write_text(p.read_text().replace('site-packages = false', 'site-packages = true'))",
    ),
    ("26", "pathlib.Path('leaf.py').write_text('LIMIT = 1\\n')"),
    (
        "26b",
        "pathlib.Path('tests').mkdir(); pathlib.Path('tests/leaf.py').write_text('')",
    ),
    ("32", "L.chmod(0o777)"),
];

fn lab() -> Option<Lab> {
    let tool = json!({
        "tool/__init__.py": "def main(): pass\n",
        "tool-1.0.dist-info/entry_points.txt": "[console_scripts]\ntool = tool:main\n",
    });
    let lab = Lab::with_uv(&json!([
        ["leaf", "1.0", {"leaf/__init__.py": "LIMIT = 1\n", "leaf/deep/__init__.py": "X = 1\n"}],
        ["tool", "1.0", tool],
    ]))?;
    lab.project("\"leaf==1.0\", \"tool\"", "import leaf; assert leaf.LIMIT <= 1");
    lab.uv(&["lock"]);
    Some(lab)
}

#[test]
fn an_environment_that_is_not_the_locks_is_refused() {
    let Some(lab) = lab() else { return };
    let liar = Liar::new(lab);
    liar.uv("pass");
    super::lab::certified(&liar.certify("uv", TEST));
    for (key, damage) in DAMAGE {
        liar.uv(damage);
        show(key, &liar.seen("uv", TEST));
    }
    assert_eq!(liar.lab.site.passes(), 1, "the honest one alone");
}

/// The same damage in an environment of a person's own, by `semel record`; rows with an r.
#[test]
fn a_persons_own_environment_is_found_changed() {
    let Some(lab) = lab() else { return };
    let repository = lab.site.repository();
    let record = |verb: &str| {
        let mut command = bare(&["record", verb, "--json"]);
        command
            .env("WORKSPACE", &repository)
            .env("VOLUME_GENERATION", "g1");
        Seen::of(&command.output().unwrap())
    };
    for (key, damage) in DAMAGE {
        // Files of the tree itself are no part of the record.
        if key.starts_with("26") {
            continue;
        }
        drop(std::fs::remove_dir_all(repository.join(".venv")));
        lab.uv(&["sync", "--link-mode", "copy"]);
        assert!(record("write").passed());
        let done = Command::new(repository.join(".venv/bin/python"))
            .args(["-I", "-B", "-c", &format!("{PRELUDE}{damage}")])
            .current_dir(&repository)
            .output()
            .unwrap();
        assert!(done.status.success(), "{key}: {}", crate::harness::said(&done));
        show(&format!("r{key}"), &record("check"));
    }
    drop(std::fs::remove_dir_all(repository.join(".venv")));
    lab.uv(&["sync", "--link-mode", "copy"]);
    assert!(record("write").passed());
    let whole = lab.read("uv.lock");
    for (key, text) in [
        ("r1", whole.replace("1.0", "2.0")),
        ("r2", whole[..whole.len() * 2 / 5].to_owned()),
        ("r30", format!("{whole}# a comment\n")),
    ] {
        lab.write("uv.lock", &text);
        show(key, &record("check"));
    }
}
