//! Locks that do not hold together, locks that move, and identities that do not hold.

use super::lab::{Liar, waiting};
use super::{Seen, show};
use crate::cases::lab::Lab;
use crate::harness::Disk;
use serde_json::json;

const TEST: &str = "python run.py {report}";

fn lab() -> Option<Liar> {
    let wheel = |name: &str| json!([name, "1.0", {format!("{name}.py"): "V = 1\n"}]);
    let lab = Lab::with_uv(&["aaa", "bbb"].map(wheel).into_iter().collect())?;
    lab.project("\"aaa\", \"bbb\"", "import aaa");
    lab.uv(&["lock"]);
    Some(Liar::new(lab))
}

#[test]
fn a_lock_that_is_not_whole_is_refused() {
    let Some(liar) = lab() else { return };
    let whole = liar.lab.read("uv.lock");
    let no_hash: String = {
        let from = whole.find(", hash = \"sha256:").unwrap();
        format!("{}{}", &whole[..from], &whole[from + 82..])
    };
    let zeros = {
        let from = whole.find("sha256:").unwrap() + 7;
        format!("{}{}{}", &whole[..from], "0".repeat(64), &whole[from + 64..])
    };
    let other = {
        let from = whole.find("sha256:").unwrap() + 7;
        format!("{}{}{}", &whole[..from], "1".repeat(64), &whole[from + 64..])
    };
    for (key, text) in [
        ("2", whole[..whole.len() * 2 / 5].to_owned()),
        ("2b", whole[..whole.rfind("[[package]]").unwrap()].to_owned()),
        ("31", no_hash),
        ("31b", zeros),
        ("31c", other),
    ] {
        liar.lab.write("uv.lock", &text);
        show(key, &liar.seen("uv", TEST));
    }
    // A lock that is not there.
    std::fs::remove_file(liar.lab.site.repository().join("uv.lock")).unwrap();
    show("50", &liar.seen("uv", TEST));
    assert_eq!(liar.lab.site.passes(), 0);
}

/// Requirements whose prefix is a valid lock: before sealing the manifest tells, after it the digest does.
#[test]
fn requirements_that_are_cut_are_refused() {
    let Some(liar) = lab() else { return };
    let line = |name: &str| {
        let digest = &liar.lab.wheels[&format!("{name}-1.0-py3-none-any.whl")];
        format!("{name}==1.0 --hash=sha256:{digest}\n")
    };
    std::fs::remove_file(liar.lab.site.repository().join("uv.lock")).unwrap();
    liar.lab.write("requirements.txt", &line("aaa"));
    show("3b", &liar.seen("pip", TEST));
    liar.lab
        .write("requirements.txt", &format!("{}{}", line("aaa"), line("bbb")));
    liar.lab.write("run.py", &waiting(""));
    let cut = line("aaa");
    let out = liar.meanwhile("pip", TEST, |tree| {
        std::fs::write(tree.join("requirements.txt"), cut).unwrap();
    });
    show("3", &Seen::of(&out));
}

/// An environment that came with the input, and one that an installer left as it was.
#[test]
fn a_stale_environment_is_refused() {
    let Some(lab) = Lab::with_uv(&json!([
        ["leaf", "1.0", {"leaf/__init__.py": "LIMIT = 1\n"}],
        ["leaf", "2.0", {"leaf/__init__.py": "LIMIT = 2\n"}],
    ])) else {
        return;
    };
    let liar = Liar::new(lab);
    let lab = &liar.lab;
    lab.project("\"leaf==1.0\"", "import leaf");
    lab.uv(&["lock"]);
    lab.uv(&["sync", "--link-mode", "copy"]);
    lab.project("\"leaf==2.0\"", "import leaf");
    lab.uv(&["lock"]);
    lab.site.git(&["add", "-f", ".venv/pyvenv.cfg", ".venv/lib"]);
    show("1", &Seen::of(&liar.against_base("uv", TEST)));
    lab.site.git(&["rm", "-r", "-q", "--cached", ".venv"]);
    // The installer says that it is done, and what is there is what was there for the old lock.
    liar.uv(
        "shutil.rmtree(I) if I.exists() else None; [shutil.rmtree(p) for p in S.glob('leaf*')]\n\
         dist('leaf', '1.0', {'leaf/__init__.py': 'LIMIT = 1\\n'})",
    );
    show("1b", &liar.seen("uv", TEST));
    liar.honest();
    // Leftovers of every kind, brought in by force.
    for (key, path, text) in [
        (
            "36",
            ".pytest_cache/CACHEDIR.TAG",
            "Signature: 8a477f597d28d172789f06886806bc55\n",
        ),
        ("36b", "node_modules/.package-lock.json", "{}"),
        ("36c", "src/__pycache__/a.cpython-311.pyc", "x"),
        ("36d", "lib/site-packages/leaf-1.0.dist-info/RECORD", ""),
        ("36e", "build/.rustc_info.json", "{\"rustc_fingerprint\":1}"),
    ] {
        lab.write(path, text);
        lab.site.git(&["add", "-f", path]);
        show(key, &Seen::of(&liar.against_base("uv", TEST)));
        lab.site.git(&["rm", "-q", "-f", path]);
    }
    // What git ignores does not come along.
    lab.write(
        ".gitignore",
        ".venv\n.pytest_cache\nbuild\n*.egg-info\nnode_modules\n",
    );
    lab.write(".pytest_cache/v/cache/lastfailed", "{\"run.py\": true}");
    lab.write("build/lib/leaf/__init__.py", "LIMIT = 9\n");
    lab.write("app.egg-info/PKG-INFO", "Name: app\n");
    lab.write("node_modules/.cache/x", "");
    lab.write(
        "run.py",
        "import os, pathlib, sys\nleft = [p for p in ('.pytest_cache', 'build', 'app.egg-info', 'node_modules') if os.path.exists(p)]\n\
         assert not left, left\npathlib.Path(sys.argv[1]).write_text(\"<testsuite><testcase name='a'/></testsuite>\")\n",
    );
    show("36f", &liar.seen("uv", TEST));
    // One that git ignores, and that the proposal holds all the same.
    lab.site.git(&["add", "-f", "build"]);
    show("36g", &Seen::of(&liar.against_base("uv", TEST)));
}

/// The contract of a disk: generation missing, reused, dirty, without a lock.
#[test]
fn an_identity_that_does_not_hold_is_refused() {
    let ask = |disk: &Disk, generation: &str, attempt: &str, args: &[&str]| {
        Seen::of(&disk.run(&[&["check", "--json"], args].concat(), generation, attempt))
    };
    let disk = Disk::new();
    show("50b", &ask(&disk, "", "1", &[]));
    show("50c", &ask(&disk, "g-1", "-", &[]));
    assert!(ask(&disk, "g-1", "1", &[]).passed());
    show("50d", &ask(&disk, "g-1", "2", &[]));
    disk.write(".generation", "g-9\n");
    show("50e", &ask(&disk, "g-1", "1", &[]));
    std::fs::remove_file(disk.at(".generation")).unwrap();
    disk.write(".volume_dirty", "");
    show("50f", &ask(&disk, "g-1", "1", &[]));
    std::fs::remove_file(disk.at(".volume_dirty")).unwrap();
    disk.write("requirements.txt", "idna==3.9\n");
    show("50g", &ask(&disk, "g-1", "1", &[]));
    std::fs::remove_file(disk.at("requirements.txt")).unwrap();
    let fresh = Disk::new();
    std::fs::remove_file(fresh.at("requirements.txt")).unwrap();
    show("50h", &ask(&fresh, "g-1", "1", &[]));
}
