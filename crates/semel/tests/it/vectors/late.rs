//! Writes after the install: by the tests themselves, by what they leave behind, and by a process outside of every sandbox.

use super::lab::{Liar, PRELUDE, certified, waiting};
use super::{Seen, show};
use crate::cases::lab::Lab;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

const TEST: &str = "python run.py {report}";

fn liar() -> Option<Liar> {
    let lab = Lab::with_uv(&json!([["leaf", "1.0", {"leaf/__init__.py": "LIMIT = 1\n"}]]))?;
    lab.project("\"leaf==1.0\"", "import leaf; assert leaf.LIMIT <= 1");
    lab.uv(&["lock"]);
    Some(Liar::new(lab))
}

fn leaf(tree: &Path) -> PathBuf {
    let lib = std::fs::read_dir(tree.join(".venv/lib")).unwrap().next().unwrap();
    lib.unwrap().path().join("site-packages/leaf/__init__.py")
}

/// Changes a file and puts it back, times and all, as whoever hides something does.
fn there_and_back(place: &Path) {
    let (before, text) = (std::fs::metadata(place).unwrap(), std::fs::read(place).unwrap());
    std::fs::write(place, "LIMIT = 0\n").unwrap();
    std::fs::write(place, text).unwrap();
    let times = std::fs::FileTimes::new()
        .set_modified(before.modified().unwrap())
        .set_accessed(before.accessed().unwrap());
    let file = std::fs::File::options().write(true).open(place).unwrap();
    file.set_times(times).unwrap();
}

#[test]
fn writes_from_outside_after_the_install_are_seen() {
    let Some(liar) = liar() else { return };
    liar.lab.write("run.py", &waiting("import leaf"));
    type Act = fn(&Path);
    let acts: [(&str, Act); 9] = [
        ("35", |tree| {
            std::fs::write(leaf(tree), "LIMIT = 9\n").unwrap();
        }),
        ("35b", |tree| there_and_back(&leaf(tree))),
        ("35c", |tree| there_and_back(&tree.join("run.py"))),
        ("35d", |tree| {
            let stray = leaf(tree).with_file_name("stray.py");
            std::fs::write(&stray, "").unwrap();
            std::fs::remove_file(&stray).unwrap();
        }),
        ("30", |tree| {
            let lock = tree.join("uv.lock");
            let text = std::fs::read_to_string(&lock).unwrap();
            std::fs::write(&lock, format!("{text}# a comment\n")).unwrap();
        }),
        ("30b", |tree| there_and_back(&tree.join("uv.lock"))),
        ("26c", |tree| {
            std::fs::write(tree.join("leaf.py"), "LIMIT = 1\n").unwrap()
        }),
        ("26d", |tree| std::fs::write(tree.join("run.py"), "").unwrap()),
        ("32b", |tree| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(leaf(tree), mode).unwrap();
        }),
    ];
    for (key, act) in acts {
        show(key, &Seen::of(&liar.meanwhile("uv", TEST, act)));
    }
    assert_eq!(liar.lab.site.passes(), 0);
    certified(&liar.meanwhile("uv", TEST, |_| ()));
}

/// The tests try it themselves: change, change and put back, add, compile, leave a process behind. Nothing is written.
const HOSTILE: &str = r#"
import errno, subprocess, signal
import leaf
place = pathlib.Path(leaf.__file__)
def refused(act):
    try:
        act()
    except OSError as e:
        assert e.errno in (errno.EROFS, errno.EACCES, errno.EPERM), e
        return
    raise SystemExit("it could write")
refused(lambda: place.write_text("LIMIT = 9\n"))
refused(lambda: place.unlink())
refused(lambda: place.chmod(0o777))
refused(lambda: place.with_name("stray.py").write_text(""))
refused(lambda: pathlib.Path("uv.lock").write_text(""))
refused(lambda: pathlib.Path("run.py").write_text(""))
refused(lambda: pathlib.Path("leaf.py").write_text(""))
refused(lambda: os.utime(place))
"#;

#[test]
fn hostile_tests_change_nothing() {
    let Some(liar) = liar() else { return };
    let lines = waiting(HOSTILE).replace("while not (home / 'go').exists():\n    time.sleep(0.02)\n", "");
    liar.lab.write("run.py", &lines);
    show("35e", &liar.seen("uv", TEST));
}

/// Attempt 1 leaves a process of its own session behind that hears no signal and writes as long as it lives; attempt 2 is
/// certified, and nothing of attempt 1 runs.
#[test]
fn a_process_of_an_earlier_attempt_is_gone() {
    let Some(liar) = liar() else { return };
    let marker = format!("leaked-{}", liar.lab.site.home.path().display());
    let child = format!(
        "import os, pathlib, signal, sys, time\n\
         for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n\
         sys.argv.append('{marker}')\n\
         while True:\n    for p in pathlib.Path('/').glob('**/leaf/__init__.py'):\n        \
         try: p.write_text('LIMIT = 9')\n        except OSError: pass\n"
    );
    liar.lab.write("child.py", &child);
    let leak = format!(
        "import subprocess\nsubprocess.Popen(['sh', '-c', 'exec python child.py {marker} &'], start_new_session=True)\n\
         time.sleep(0.3)"
    );
    let lines = waiting(&leak).replace("while not (home / 'go').exists():\n    time.sleep(0.02)\n", "");
    liar.lab.write("run.py", &lines);
    show("35f", &liar.seen("uv", TEST));
    assert_eq!(crate::harness::processes_with(&marker), Vec::<u32>::new());
    liar.lab
        .project("\"leaf==1.0\"", "import leaf; assert leaf.LIMIT <= 1");
    show("35g", &liar.seen("uv", TEST));
}

/// A person's uv cache is poisoned: through a hard link into it, and directly. uv itself is taken in; a certification is
/// not, and neither is one whose own store was.
#[test]
fn a_poisoned_cache_poisons_nothing() {
    let Some(liar) = liar() else { return };
    let lab = &liar.lab;
    let repository = lab.site.repository();
    let installed = |mode: &str| {
        drop(std::fs::remove_dir_all(repository.join(".venv")));
        lab.uv(&["sync", "--locked", "--link-mode", mode]);
        std::fs::read_to_string(leaf(&repository)).unwrap()
    };
    for (key, mode) in [("33", "hardlink"), ("34", "copy")] {
        drop(std::fs::remove_dir_all(lab.site.at("uv-cache")));
        assert_eq!(installed(mode), "LIMIT = 1\n");
        if mode == "hardlink" {
            std::fs::write(leaf(&repository), "LIMIT = 9\n").unwrap();
        } else {
            let out = Command::new("find")
                .arg(lab.site.at("uv-cache"))
                .args(["-path", "*/leaf/__init__.py", "-print"])
                .output()
                .unwrap();
            for place in String::from_utf8(out.stdout).unwrap().lines() {
                std::fs::write(place, "LIMIT = 9\n").unwrap();
            }
        }
        assert_eq!(
            installed(mode),
            "LIMIT = 9\n",
            "uv is taken in, in a fresh environment"
        );
        show(key, &liar.seen("uv", TEST));
    }
    // Our own store, changed by who may: named, set aside, and fetched anew by the next attempt.
    let store = lab.site.home.state().join("artifacts/sha256");
    let digest = &lab.wheels["leaf-1.0-py3-none-any.whl"];
    let place = store.join(&digest[..2]).join(digest);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&place, mode).unwrap();
    let mut bytes = std::fs::read(&place).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&place, bytes).unwrap();
    show("34b", &liar.seen("uv", TEST));
    show("34c", &liar.seen("uv", TEST));
}

/// The prelude is code that runs.
#[test]
fn the_words_of_damage_are_python() {
    let out = Command::new("/usr/bin/env")
        .args([
            "python3",
            "-I",
            "-c",
            "import sys; compile(sys.argv[1], 'x', 'exec')",
            PRELUDE,
        ])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", crate::harness::said(&out));
}
