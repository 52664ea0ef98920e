//! What lies around a tree, the variables, and tests that prove nothing.

use super::lab::{Liar, certified};
use super::{Seen, show};
use crate::cases::lab::{Lab, answer};
use crate::harness::{Site, certifies, text};
use serde_json::json;

const TEST: &str = "python run.py {report}";
const REPORT: &str =
    "pathlib.Path(sys.argv[1]).write_text(\"<testsuite><testcase name='a'/></testsuite>\")\n";

fn job(site: &Site, env: &str) {
    site.job("");
    let whole = std::fs::read_to_string(site.at("job.toml")).unwrap();
    let (head, tail) = whole.rsplit_once("env = {").unwrap();
    std::fs::write(site.at("job.toml"), format!("{head}env = {{ {env},{tail}")).unwrap();
}

/// A job that names them is refused; those of whoever starts it do not reach the tests.
#[test]
fn variables_change_nothing_or_are_refused() {
    let site = Site::new();
    for (key, env) in [
        ("27", "PYTHONPATH = \"/opt/warm\""),
        ("28", "PYTEST_ADDOPTS = \"-k nothing\""),
        ("28b", "PYTEST_PLUGINS = \"green\""),
        ("41", "NODE_OPTIONS = \"--require /opt/green.js\""),
        ("41b", "NODE_PATH = \"/opt/warm/node_modules\""),
        ("34d", "UV_CACHE_DIR = \"/var/cache/uv\""),
        ("47b", "CARGO_TARGET_DIR = \"/var/cache/target\""),
    ] {
        job(&site, env);
        let args = [&certifies(&site.base)[..], &["--json"]].concat();
        show(key, &Seen::of(&site.run(&args)));
    }
    let liar = Liar::new(Lab::new(&json!([])));
    rust_project(&liar.lab);
    let names = [
        "PYTHONPATH",
        "PYTEST_ADDOPTS",
        "PYTEST_PLUGINS",
        "NODE_OPTIONS",
        "NODE_PATH",
        "LD_PRELOAD",
        "RUSTFLAGS",
        "UV_CACHE_DIR",
    ];
    let list = names.map(|name| format!("'{name}'")).join(", ");
    liar.lab.write(
        "check.py",
        &format!("import os, pathlib, sys\nleft = [n for n in ({list}) if n in os.environ]\nassert not left, left\n{REPORT}"),
    );
    let commit = liar.lab.site.commit_all("proposal");
    let mut command = liar.command(&[
        "certify",
        "--job",
        "case",
        "--repository",
        "repo",
        "--git",
        &commit,
        "--install",
        "cargo",
        "--test",
        "python3 check.py {report}",
    ]);
    for name in names.iter().filter(|name| **name != "LD_PRELOAD") {
        command.env(name, "/opt/warm");
    }
    show("27b", &Seen::of(&command.output().unwrap()));
}

fn rust_project(lab: &Lab) {
    lab.write(
        "Cargo.toml",
        "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    );
    lab.write(
        "Cargo.lock",
        "version = 4\n\n[[package]]\nname = \"app\"\nversion = \"0.1.0\"\n",
    );
    lab.write("src/lib.rs", "#[test]\nfn holds() {}\n");
}

/// Files above the tree that tools read unasked: in the state root's own directories, where a draft could have put them.
#[test]
fn what_lies_above_the_tree_is_not_seen() {
    let liar = Liar::new(Lab::new(&json!([])));
    let lab = &liar.lab;
    rust_project(lab);
    let above = lab.site.home.path();
    std::fs::create_dir_all(above.join(".cargo")).unwrap();
    std::fs::write(
        above.join(".cargo/config.toml"),
        "[build]\nrustflags = [\"--cfg\", \"warm\"]\n",
    )
    .unwrap();
    std::fs::write(above.join("pytest.ini"), "[pytest]\naddopts = -k nothing\n").unwrap();
    std::fs::write(above.join("conftest.py"), "raise SystemExit(0)\n").unwrap();
    std::fs::create_dir_all(above.join("node_modules/missing")).unwrap();
    std::fs::write(above.join("node_modules/missing/index.js"), "").unwrap();
    // A test that the settings above would turn green.
    lab.write(
        "src/lib.rs",
        "#[cfg(not(warm))]\n#[test]\nfn holds() {}\n#[cfg(warm)]\n#[test]\nfn warm() { panic!() }\n",
    );
    show("48", &liar.seen("cargo", "cargo test"));
    let looks = "import os, pathlib, sys\nhere = pathlib.Path.cwd()\n\
        found = [str(p / n) for p in here.parents for n in ('pytest.ini', 'conftest.py', 'node_modules', '.cargo/config.toml') if (p / n).exists()]\n\
        assert not found, found\n";
    lab.write("check.py", &format!("{looks}{REPORT}"));
    show("29", &liar.seen("cargo", "python3 check.py {report}"));
    if let Some(lab) = super::node::project() {
        let liar = Liar::new(lab);
        let above = liar.lab.site.home.path();
        std::fs::create_dir_all(above.join("node_modules/missing")).unwrap();
        std::fs::write(above.join("node_modules/missing/index.js"), "").unwrap();
        let runner = liar.lab.read("run.js");
        liar.lab.write("run.js", &format!("require('missing')\n{runner}"));
        show("41c", &liar.seen("npm", "node run.js {report}"));
    }
}

/// An exit status of nothing, no tests, all of them deselected, a runner that never ran.
#[test]
fn tests_that_prove_nothing_are_no_evidence() {
    let liar = Liar::new(Lab::new(&json!([])));
    let lab = &liar.lab;
    rust_project(lab);
    lab.write(
        "zero.py",
        "import pathlib, sys\npathlib.Path(sys.argv[1]).write_text('<testsuite></testsuite>')\n",
    );
    lab.write(
        "skip.py",
        "import pathlib, sys\npathlib.Path(sys.argv[1]).write_text(\"<testsuite><testcase name='a'><skipped/></testcase></testsuite>\")\n",
    );
    lab.write(
        "red.py",
        "import pathlib, sys\npathlib.Path(sys.argv[1]).write_text(\"<testsuite><testcase name='a'><failure/></testcase></testsuite>\")\n",
    );
    for (key, test) in [
        ("49", "true {report}"),
        ("49b", "python3 zero.py {report}"),
        ("49c", "python3 skip.py {report}"),
        ("49d", "python3 red.py {report}"),
        ("49e", "cargo test nothing-of-that-name"),
    ] {
        show(key, &liar.seen("cargo", test));
    }
    assert_eq!(lab.site.passes(), 0);
}

/// A runner that is there under a false name, and runs nothing: `npm test` would say that all is well.
#[test]
fn a_false_command_runs_no_test() {
    let Some(lab) = super::node::project() else { return };
    let liar = Liar::new(lab);
    liar.lab.write("run.js", "process.exit(0)\n");
    show("40c", &liar.seen("npm", "node run.js {report}"));
}

/// A module beside the tests is a part of the proposal: certified as what it is, and named to a reviewer.
#[test]
fn a_shadowing_module_of_the_proposal_is_named() {
    let Some(lab) = Lab::with_uv(&json!([["leaf", "1.0", {"leaf/__init__.py": "LIMIT = 1\n"}]])) else {
        return;
    };
    lab.project("\"leaf==1.0\"", "import leaf");
    lab.uv(&["lock"]);
    let liar = Liar::new(lab);
    liar.lab.write("tests/leaf.py", "LIMIT = 9\n");
    let out = liar.against_base("uv", TEST);
    show("26e", &Seen::of(&out));
    certified(&out);
    let statement = crate::harness::statement(text(&answer(&out)["envelope"]).as_ref());
    assert!(
        statement["predicate"]["test_surface"]
            .to_string()
            .contains("tests/leaf.py"),
        "{statement}"
    );
}
