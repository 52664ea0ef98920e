//! The cases of what an earlier attempt left, by `semel certify`, `semel contract` and `semel seal`.

use super::lab::{Lab, answer, with_tarball};
use crate::harness::{Site, bare, certifies, processes_with, said, skipped, statement, text, wait_until};
use crate::vectors::lab::{Liar, PRELUDE};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn weak(certified: &Value) -> String {
    statement(text(&certified["envelope"]).as_ref())["predicate"]["weak"].to_string()
}

fn leaf() -> Value {
    json!([
        ["leaf", "1.0", {"leaf/__init__.py": "LIMIT = 1\n", "leaf/deep/__init__.py": "X = 1\n"}],
        ["leaf", "2.0", {"leaf/__init__.py": "LIMIT = 2\n", "leaf/deep/__init__.py": "X = 1\n"}],
    ])
}

fn cut(text: &str) -> &str {
    &text[..text.len() * 2 / 5]
}

#[test]
fn a01_an_environment_that_is_there_already_certifies_nothing() {
    let Some(lab) = Lab::with_uv(&leaf()) else { return };
    lab.project("\"leaf==1.0\"", "import leaf; assert leaf.LIMIT <= 1");
    lab.uv(&["sync"]);
    lab.certified("uv");
    // The draft bumps the dependency and is stopped while it writes the lock; .venv still has the old one.
    lab.project("\"leaf==2.0\"", "import leaf; assert leaf.LIMIT <= 1");
    lab.uv(&["lock"]);
    let whole = lab.read("uv.lock");
    lab.write("uv.lock", cut(&whole));
    assert_eq!(lab.contract("1", &["--strict"]), Some(21));
    assert_eq!(lab.contract("1", &[]), Some(0));
    assert_eq!(lab.contract("2", &[]), Some(5));
    std::fs::remove_file(lab.site.repository().join(".workspace_contract.json")).unwrap();
    let refusal = lab.draft().unwrap_err();
    assert_eq!(refusal["code"], "tree_not_empty");
    assert!(text(&refusal["names"][0]).starts_with(".venv/"), "{refusal}");
    lab.refused("uv", 20, "lock_incomplete");
    lab.write("uv.lock", &whole);
    lab.refused("uv", 23, "tests_failed");
    assert_eq!(lab.site.passes(), 1, "the first alone");
}

#[test]
fn a01_a_committed_environment_as_tools_make_it_is_a_leftover() {
    let lab = Lab::new(&leaf());
    lab.project("", "");
    lab.write(".gitignore", "");
    lab.write("requirements.txt", "");
    let made = Command::new("/usr/bin/env")
        .args(["python3", "-m", "venv", "--without-pip", ".venv"])
        .current_dir(lab.site.repository())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", said(&made));
    let refusal = lab.refused("pip", 21, "tree_not_empty");
    assert_eq!(refusal["names"][0], ".venv/pyvenv.cfg");
    assert!(
        text(&refusal["names"][1]).contains(" -> /"),
        "the absolute link: {refusal}"
    );
}

#[test]
fn a02_the_record_holds_every_file_and_not_only_names() {
    let Some(lab) = Lab::with_uv(&leaf()) else { return };
    lab.project("\"leaf==1.0\"", "import leaf.deep");
    lab.uv(&["lock"]);
    let certified = lab.certified("uv");
    let record = std::fs::read(text(&certified["install_record"])).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let entries = record[0]["entries"].as_object().unwrap();
    for end in [
        "leaf/__init__.py",
        "leaf/deep/__init__.py",
        "leaf-1.0.dist-info/METADATA",
    ] {
        let (_, entry) = entries.iter().find(|(path, _)| path.ends_with(end)).expect(end);
        assert_eq!(text(&entry["file"]["sha256"]).len(), 64, "{end}");
    }
}

/// The installer stops half-way and says that it is done: the metadata is whole, the package is not there.
#[test]
fn a02_a_ghost_distribution_is_never_certified() {
    let Some(lab) = Lab::with_uv(&leaf()) else { return };
    lab.project("\"leaf==1.0\"", "import leaf");
    lab.uv(&["lock"]);
    let liar = Liar::new(lab);
    liar.uv("shutil.rmtree(S / 'leaf')");
    let out = liar.certify("uv", "python run.py {report}");
    assert_eq!(out.status.code(), Some(25), "{}", said(&out));
    let refusal = answer(&out);
    assert_eq!(refusal["code"], "record_mismatch");
    assert!(
        refusal["names"].to_string().contains("leaf/__init__.py"),
        "{refusal}"
    );
    assert_eq!(liar.lab.site.passes(), 0);
}

#[test]
fn a02_a_ghost_distribution_is_never_recorded() {
    let Some(lab) = Lab::with_uv(&leaf()) else { return };
    let repository = lab.site.repository();
    lab.write("requirements.txt", "leaf==1.0\n");
    lab.uv(&["venv", ".venv"]);
    let stock = lab.site.at("stock");
    let install = [
        "pip",
        "install",
        "--no-index",
        "--find-links",
        stock.to_str().unwrap(),
    ];
    let install = [&install[..], &["--python", ".venv/bin/python", "leaf==1.0"]].concat();
    lab.uv(&install);
    let record = |verb: &str| {
        let mut command = bare(&["record", verb]);
        command
            .env("WORKSPACE", &repository)
            .env("VOLUME_GENERATION", "g1");
        let out = command.output().unwrap();
        (out.status.code(), said(&out))
    };
    assert_eq!(record("write").0, Some(0), "{}", record("write").1);
    assert_eq!(record("check").0, Some(0), "{}", record("check").1);
    // What a stopped extraction leaves out: the metadata stays whole.
    let site = std::fs::read_dir(repository.join(".venv/lib"))
        .unwrap()
        .next()
        .unwrap();
    let site = site.unwrap().path().join("site-packages");
    std::fs::remove_dir_all(site.join("leaf")).unwrap();
    // The installer calls it satisfied.
    lab.uv(&install);
    assert!(site.join("leaf-1.0.dist-info/RECORD").is_file() && !site.join("leaf").exists());
    for verb in ["check", "write"] {
        let (code, said) = record(verb);
        assert_eq!(code, Some(25), "{verb}: {said}");
        assert!(said.contains("leaf/__init__.py"), "{verb}: {said}");
    }
}

/// What an editable install of another checkout leaves in an environment.
const EDITABLE: &str = "p = S / '__editable__.lib-1.0.pth'; p.write_text('OTHER/src\\n')\n\
    dist('lib', '1.0', {'lib-1.0.dist-info/direct_url.json': '{\"url\": \"file://OTHER\", \"dir_info\": {\"editable\": true}}'})\n\
    fix(S / 'lib-1.0.dist-info', p)";

/// The tests of a worktree would import the main checkout: in a person's own environment, and in one that an installer made.
#[test]
fn a04_an_editable_of_another_checkout_leads_out() {
    let Some(lab) = Lab::with_uv(&leaf()) else { return };
    let other = lab.site.at("other");
    std::fs::create_dir_all(other.join("src/lib")).unwrap();
    std::fs::write(other.join("src/lib/__init__.py"), "").unwrap();
    let editable = EDITABLE.replace("OTHER", other.to_str().unwrap());
    lab.project("\"leaf==1.0\"", "import lib");
    lab.uv(&["lock"]);
    lab.uv(&["sync", "--link-mode", "copy"]);
    let repository = lab.site.repository();
    let record = |verb: &str| {
        let mut command = bare(&["record", verb, "--json"]);
        command
            .env("WORKSPACE", &repository)
            .env("VOLUME_GENERATION", "g1");
        let out = command.output().unwrap();
        (out.status.code(), answer(&out))
    };
    assert_eq!(record("write").0, Some(0));
    let python = |code: &str| {
        Command::new(repository.join(".venv/bin/python"))
            .args(["-I", "-B", "-c", code])
            .current_dir(&repository)
            .output()
            .unwrap()
    };
    let done = python(&format!("{PRELUDE}{editable}"));
    assert!(done.status.success(), "{}", said(&done));
    let imported = python("import lib; print(lib.__file__)");
    assert!(
        said(&imported).contains(other.to_str().unwrap()),
        "it is real: {}",
        said(&imported)
    );
    for verb in ["check", "write"] {
        let (exit, refusal) = record(verb);
        assert_eq!(exit, Some(26), "{verb}: {refusal}");
        assert_eq!(refusal["code"], "record_outside_root");
        assert!(
            refusal["names"].to_string().contains(other.to_str().unwrap()),
            "{refusal}"
        );
    }
    // As it was handed over: a distribution without a RECORD; nor one whose import path is nobody's.
    for gone in ["S / 'lib-1.0.dist-info/RECORD'", "S / 'lib-1.0.dist-info'"] {
        let done = python(&format!(
            "{PRELUDE}import shutil\nshutil.rmtree({gone}, True); ({gone}).exists() and ({gone}).unlink()"
        ));
        assert!(done.status.success(), "{}", said(&done));
        for verb in ["check", "write"] {
            let (exit, refusal) = record(verb);
            assert_eq!(exit, Some(26), "{gone}: {verb}: {refusal}");
        }
    }
    std::fs::remove_dir_all(repository.join(".venv")).unwrap();
    let liar = Liar::new(lab);
    // Under the name of what is locked, so that nothing but where it leads is wrong.
    liar.uv(&format!(
        "p = S / '__editable__.leaf-1.0.pth'; p.write_text('{}/src\\n'); fix(I, p)",
        other.display()
    ));
    let out = liar.certify("uv", "python run.py {report}");
    assert_eq!(out.status.code(), Some(26), "{}", said(&out));
    assert_eq!(answer(&out)["code"], "record_outside_root");
    assert_eq!(liar.lab.site.passes(), 0);
}

#[test]
fn a04_a_package_of_another_checkout_is_refused() {
    let lab = Lab::new(&json!([]));
    let other = lab.site.at("other");
    std::fs::create_dir_all(other.join("lib")).unwrap();
    lab.project("\"lib\"", "import lib");
    let lock = |source: &str| {
        format!(
            "version = 1\nrevision = 2\nrequires-python = \">=3.9\"\n\n[[package]]\nname = \"app\"\nversion = \"0\"\n\
             source = {{ virtual = \".\" }}\ndependencies = [\n    {{ name = \"lib\" }},\n]\n\n[package.metadata]\n\
             requires-dist = [{{ name = \"lib\", {source} }}]\n\n[[package]]\nname = \"lib\"\nversion = \"1.0\"\n\
             source = {{ {source} }}\n"
        )
    };
    for source in [
        "editable = \"../other\"".to_owned(),
        format!("editable = \"{}\"", other.display()),
    ] {
        lab.write("uv.lock", &lock(&source));
        let refusal = lab.refused("uv", 20, "lock_incomplete");
        assert!(text(&refusal["why"]).contains("outside of the tree"), "{refusal}");
    }
    std::fs::remove_file(lab.site.repository().join("uv.lock")).unwrap();
    for line in ["-e ../other", "lib @ file:///other", "../other"] {
        lab.write("requirements.txt", &format!("{line}\n"));
        lab.refused("pip", 20, "lock_incomplete");
    }
    lab.write(
        "package.json",
        r#"{"name":"app","version":"1.0.0","dependencies":{"lib":"file:../other"}}"#,
    );
    lab.write(
        "package-lock.json",
        r#"{"name":"app","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{
            "":{"name":"app","version":"1.0.0","dependencies":{"lib":"file:../other"}},
            "../other":{"version":"1.0.0"},"node_modules/lib":{"resolved":"../other","link":true}}}"#,
    );
    let refusal = lab.refused("npm", 20, "lock_incomplete");
    assert!(text(&refusal["why"]).contains("outside of the tree"), "{refusal}");
    assert_eq!(lab.site.passes(), 0);
}

const FOUR: [&str; 4] = ["aaa", "bbb", "ccc", "ddd"];

fn four() -> Lab {
    let wheel = |name: &&str| json!([name, "1.0", {format!("{name}.py"): "V = 1\n"}]);
    let lab = Lab::new(&FOUR.iter().map(wheel).collect());
    lab.project("\"aaa\", \"bbb\", \"ccc\", \"ddd\"", "import aaa");
    lab
}

/// Gives the first pinned and hashed requirements.
fn pins(lab: &Lab, count: usize) -> String {
    let record = |name: &&str| {
        let digest = &lab.wheels[&format!("{name}-1.0-py3-none-any.whl")];
        format!("{name}==1.0 \\\n    --hash=sha256:{digest}\n")
    };
    FOUR.iter().take(count).map(record).collect()
}

#[test]
fn a05_requirements_cut_at_a_record_are_refused_where_anything_tells() {
    let lab = four();
    lab.write("requirements.txt", &pins(&lab, 2));
    let refusal = lab.refused("pip", 20, "lock_incomplete");
    assert_eq!(
        refusal["names"],
        json!(["requirements.txt", "ccc", "pyproject.toml"])
    );
    lab.write("requirements.in", "aaa\nbbb\nccc\nddd\n");
    let refusal = lab.refused("pip", 20, "lock_incomplete");
    assert!(
        refusal["names"].to_string().contains("requirements.in line 3"),
        "{refusal}"
    );
    // A constraint names all four and asks for none.
    lab.write("requirements-all.txt", &pins(&lab, 4));
    lab.write(
        "requirements.txt",
        &format!("-c requirements-all.txt\n{}", pins(&lab, 2)),
    );
    let refusal = lab.refused("pip", 20, "lock_incomplete");
    assert!(refusal["names"].to_string().contains("ccc"), "{refusal}");
    std::fs::remove_file(lab.site.repository().join("requirements-all.txt")).unwrap();
    assert_eq!(lab.site.passes(), 0);
}

#[test]
fn a05_requirements_that_include_themselves_are_refused_and_another_name_is_taken() {
    let lab = four();
    lab.write(
        "requirements.txt",
        &format!("-r requirements.txt\n{}", pins(&lab, 4)),
    );
    let refusal = lab.refused("pip", 20, "lock_incomplete");
    assert!(text(&refusal["why"]).contains("includes itself"), "{refusal}");
    lab.write(
        "requirements.txt",
        &format!("-r requirements-more.txt\n{}", pins(&lab, 4)),
    );
    lab.write("requirements-more.txt", "-r requirements.txt\n");
    let refusal = lab.refused("pip", 20, "lock_incomplete");
    assert!(text(&refusal["why"]).contains("includes itself"), "{refusal}");
    for name in ["requirements.txt", "requirements-more.txt"] {
        std::fs::remove_file(lab.site.repository().join(name)).unwrap();
    }
    lab.write("requirements-test.txt", &pins(&lab, 4));
    lab.certified("pip");
}

#[test]
fn arguments_that_are_no_selections_cost_no_attempt() {
    let lab = four();
    lab.write("requirements.txt", &pins(&lab, 4));
    let commit = lab.site.commit_all("proposal");
    let args = [
        "certify",
        "--job",
        "case",
        "--repository",
        "repo",
        "--git",
        &commit,
    ];
    let recipe = ["--install", "pip", "--test", "python run.py {report}"];
    for wrong in ["--no-build", "--group test", "--index-url=x"] {
        let with = ["--install-args", wrong];
        let out = lab
            .command(&[&args[..], &recipe, &with].concat())
            .output()
            .unwrap();
        let refusal = answer(&out);
        assert_eq!(refusal["code"], "bad_config", "{}", said(&out));
        assert!(text(&refusal["why"]).ends_with("takes none"), "{refusal}");
    }
    let done = lab.certified("pip");
    let predicate = &statement(text(&done["envelope"]).as_ref())["predicate"];
    assert_eq!(predicate["earlier"], json!([]));
}

#[test]
fn a05_whole_requirements_are_taken_and_their_weakness_is_named() {
    let lab = four();
    let pip = Command::new("/usr/bin/env")
        .args(["python3", "-I", "-m", "pip", "--version"])
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .output();
    if !pip.is_ok_and(|out| out.status.success()) {
        return skipped("pip is not on this machine");
    }
    lab.write("requirements.txt", &pins(&lab, 4));
    assert!(weak(&lab.certified("pip")).contains("a cut made before sealing cannot be seen"));
    // What is included is installed, and bound, too.
    lab.write("requirements-base.txt", &pins(&lab, 3));
    let rest = pins(&lab, 4)[pins(&lab, 3).len()..].to_owned();
    lab.write("requirements.txt", &format!("-r requirements-base.txt\n{rest}"));
    let certified = lab.certified("pip");
    let record = std::fs::read_to_string(text(&certified["install_record"])).unwrap();
    assert!(record.contains("\"requirements-base.txt\""), "{record}");
    std::fs::remove_file(lab.site.repository().join("requirements-base.txt")).unwrap();
    // Where nothing else tells, the certificate does.
    std::fs::remove_file(lab.site.repository().join("pyproject.toml")).unwrap();
    lab.write("requirements.txt", &pins(&lab, 2));
    assert!(weak(&lab.certified("pip")).contains("no declared inputs lie beside it"));
}

#[test]
fn a05_a_uv_lock_without_its_last_record_is_refused() {
    let lab = four();
    if lab.uv.is_none() {
        return skipped("uv is not on this machine");
    }
    lab.uv(&["lock"]);
    let whole = lab.read("uv.lock");
    lab.write("uv.lock", &whole[..whole.rfind("[[package]]").unwrap()]);
    let refusal = lab.refused("uv", 20, "lock_incomplete");
    assert!(refusal["names"].to_string().contains("ddd"), "{refusal}");
}

/// Sets the time of a file as a restored cache or checkout does.
fn age(place: &Path) {
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_577_836_800);
    let file = std::fs::File::options().write(true).open(place).unwrap();
    file.set_modified(long_ago).unwrap();
}

#[test]
fn a06_a_warm_target_directory_is_refused_and_an_old_time_builds_the_new_source() {
    let lab = Lab::new(&json!([]));
    lab.write(".gitignore", "target\n");
    lab.write(
        "Cargo.toml",
        "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    );
    lab.write(
        "Cargo.lock",
        "version = 4\n\n[[package]]\nname = \"app\"\nversion = \"0.1.0\"\n",
    );
    lab.write(
        "tests/says.rs",
        "#[test]\nfn says_two() {\n    assert_eq!(app::SAYS, \"TWO\");\n}\n",
    );
    lab.write("src/lib.rs", "pub const SAYS: &str = \"ONE\";\n");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline", "--tests"])
        .current_dir(lab.site.repository())
        .env("CARGO_TARGET_DIR", "target")
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", said(&built));
    lab.write("src/lib.rs", "pub const SAYS: &str = \"TWO\";\n");
    age(&lab.site.repository().join("src/lib.rs"));
    let generation = lab.draft().unwrap();
    let refusal = lab.site.refused(&["seal", &generation], 21);
    assert!(refusal["names"].to_string().contains("target/"), "{refusal}");
    let out = lab.certify("cargo", "cargo test");
    assert!(out.status.success(), "{}", said(&out));
    assert_eq!(answer(&out)["counts"]["passed"], 1);
}

/// A build that copies what is new over what an earlier one left, as many do; then a test of a removed module.
const OVERLAID: &str = r#"
import os, pathlib, shutil, sys
lib = os.path.join(os.environ["HOME"], "lib")
if os.path.isdir("build/lib"):
    shutil.copytree("build/lib", lib)
shutil.copytree("pk", os.path.join(lib, "pk"), dirs_exist_ok=True)
sys.path.insert(0, lib)
import pk.old
pathlib.Path(sys.argv[1]).write_text("<testsuite><testcase name='a'/></testsuite>")
"#;

#[test]
fn a07_the_residue_of_a_build_is_not_in_the_tree_that_is_tested() {
    let lab = Lab::new(&json!([]));
    lab.write(".gitignore", "build/\n");
    lab.write(
        "Cargo.toml",
        "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    );
    lab.write(
        "Cargo.lock",
        "version = 4\n\n[[package]]\nname = \"app\"\nversion = \"0.1.0\"\n",
    );
    lab.write("src/lib.rs", "");
    lab.write("pk/__init__.py", "");
    lab.write("build/lib/pk/__init__.py", "");
    lab.write("build/lib/pk/old.py", "");
    lab.write("check.py", OVERLAID);
    let warm = Command::new("/usr/bin/env")
        .args(["python3", "check.py"])
        .arg(lab.site.at("warm.xml"))
        .current_dir(lab.site.repository())
        .env("HOME", lab.site.home.path())
        .output()
        .unwrap();
    assert!(
        warm.status.success(),
        "green where the residue is: {}",
        said(&warm)
    );
    let out = lab.certify("cargo", "python3 check.py {report}");
    assert_eq!(out.status.code(), Some(23), "{}", said(&out));
    // A proposal that brings the residue is refused by its name.
    let generation = lab.draft().unwrap();
    let sealed = lab.site.json(&["seal", &generation]);
    let args = [
        "certify",
        "--job",
        "by-hand",
        "--install",
        "cargo",
        "--test",
        "true {report}",
        "--proposal",
    ];
    let refusal = lab
        .site
        .refused(&[&args[..], &[text(&sealed["proposal"])]].concat(), 28);
    assert_eq!(refusal["reason"], "ignored_entry");
    assert!(
        refusal["names"].to_string().contains("build/lib/pk/old.py"),
        "{refusal}"
    );
    assert_eq!(lab.site.passes(), 0);
}

/// Leaves a child behind that hears no polite signal, and writes as long as it lives.
const STUBBORN: &str = r#"
import os, subprocess, sys, time
child = """
import pathlib, os, signal
for number in (1, 2, 15):
    signal.signal(number, signal.SIG_IGN)
n = 0
while True:
    pathlib.Path(os.environ["HOME"], f"f{n % 99}").write_text("x")
    n += 1
"""
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
time.sleep(300)
"#;

#[test]
fn a08_a_child_of_a_stopped_attempt_is_in_nobodys_way() {
    let site = Site::new();
    std::fs::write(site.repository().join("stubborn.py"), STUBBORN).unwrap();
    let commit = site.commit_all("stubborn");
    site.job("[\"python3\", \"check.py\", \"{report}\"] => [\"python3\", \"stubborn.py\", \"{report}\"]");
    let args = certifies(&commit);
    let mut stopped = site.spawn(&args);
    assert!(stopped.hears("record   "));
    // The runner itself, and the child that it leaves.
    let running = || processes_with(&site.marker).len() >= 2;
    assert!(wait_until(Duration::from_secs(20), running));
    stopped.signal(libc::SIGKILL);
    stopped.ends(Duration::from_secs(10)).unwrap();
    let gone = || processes_with(&site.marker).is_empty();
    assert!(
        wait_until(Duration::from_secs(10), gone),
        "{:?}",
        processes_with(&site.marker)
    );
    site.job("");
    let next = site.json(&args);
    assert_eq!(next["status"], "certified");
    assert_eq!(site.passes(), 1);
    site.at_rest();
}

#[test]
fn a08_an_install_script_is_not_run_and_the_certificate_says_so() {
    let about = r#"{"name":"dep","version":"1.0.0","scripts":{"postinstall":"node slow.js"}}"#;
    let Some(lab) = with_tarball(about, "slow.js", "require('fs').mkdirSync('out')\n") else {
        return;
    };
    lab.write(
        "run.js",
        "require('fs').writeFileSync(process.argv[2], \"<testsuite><testcase name='a'/></testsuite>\")",
    );
    let out = lab.certify("npm", "node run.js {report}");
    assert!(out.status.success(), "{}", said(&out));
    let certified = answer(&out);
    assert!(
        weak(&certified).contains("which was not run: node_modules/dep"),
        "{}",
        weak(&certified)
    );
    let record = std::fs::read_to_string(text(&certified["install_record"])).unwrap();
    assert!(record.contains("node_modules/dep/slow.js") && !record.contains("node_modules/dep/out"));
}

#[test]
fn a10_the_report_of_an_earlier_attempt_is_no_evidence() {
    let site = Site::new();
    let runner = "import os, pathlib, sys\nif 'CRASH' in os.environ:\n    os.kill(os.getpid(), 9)\n\
        pathlib.Path(sys.argv[1]).write_text(\"<testsuite><testcase name='a'/></testsuite>\")\n";
    std::fs::write(site.repository().join("run.py"), runner).unwrap();
    let none = site.commit_all("no report");
    std::fs::create_dir(site.repository().join("reports")).unwrap();
    let green = "<testsuite><testcase name='a'/></testsuite>";
    std::fs::write(site.repository().join("reports/junit.xml"), green).unwrap();
    let old = site.commit_all("an old report");
    let certify = |commit: &str| {
        let args = [&certifies(commit)[..], &["--json"]].concat();
        let out = site.run(&args);
        (out.status.code(), answer(&out))
    };
    let in_tree = "[\"sh\", \"-c\", \"python3 run.py reports/junit.xml || true\"]\nreport = \"reports/junit.xml\"\ncaches = [\"reports\"]";
    let own = "[\"sh\", \"-c\", \"python3 run.py {report} || true\"]";
    let write = |test: &str, env: &str| {
        site.job("");
        let text = std::fs::read_to_string(site.at("job.toml")).unwrap();
        let text = text.replace("[\"python3\", \"check.py\", \"{report}\"]", test);
        let (head, tail) = text.rsplit_once("env = {").unwrap();
        std::fs::write(site.at("job.toml"), format!("{head}env = {{{env}{tail}")).unwrap();
    };
    for (test, env, commit, exit, reason) in [
        (in_tree, "", &old, 27, "not_fresh"),
        (in_tree, " CRASH = \"1\",", &old, 27, "not_fresh"),
        (in_tree, " CRASH = \"1\",", &none, 27, "no_report"),
        (own, " CRASH = \"1\",", &old, 27, "no_report"),
    ] {
        write(test, env);
        let (status, refusal) = certify(commit);
        assert_eq!(
            (status, &refusal["reason"]),
            (Some(exit), &json!(reason)),
            "{test} {env}: {refusal}"
        );
    }
    assert_eq!(site.passes(), 0);
    write(in_tree, "");
    assert_eq!(certify(&none).0, Some(0), "a fresh one is evidence");
}
