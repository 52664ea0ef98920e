use super::*;

const RUNNER: &str = r#"
import pathlib, sys
import leaf
assert leaf.LIMIT == 1 and ".venv" in leaf.__file__, leaf.__file__
pathlib.Path(sys.argv[1]).write_text("<testsuite><testcase name='leaf'/></testsuite>")
"#;

/// A project that locks `leaf` from an index on this machine.
pub(super) fn project(site: &Site, extra: &str) -> Option<(Plan, String)> {
    let tools = tools(Installer::Uv, &site.tree)?;
    let Tools::Uv { uv, python } = &tools else {
        unreachable!();
    };
    for version in ["1.0", "2.0"] {
        let limit = format!("LIMIT = {}\n", &version[..1]);
        let files = [
            ("leaf/__init__.py", limit.as_str()),
            ("leaf/deep/__init__.py", "X = 1\n"),
            (
                "leaf-DIST.dist-info/entry_points.txt",
                "[console_scripts]\nleaf = leaf:main\n",
            ),
        ];
        let dist = format!("leaf-{version}.dist-info/entry_points.txt");
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(at, text)| (if at.contains("DIST") { dist.as_str() } else { *at }, *text))
            .collect();
        wheel(&python.path, &site.stock, "leaf", version, &files);
    }
    wheel(
        &python.path,
        &site.stock,
        "other",
        "1.0",
        &[("other.py", "X = 1\n")],
    );
    let index = index(&site.stock);
    let manifest = format!(
        "[project]\nname = \"app\"\nversion = \"0\"\nrequires-python = \">=3.9\"\n\
         dependencies = [\"leaf==1.0\", \"other\"]\n{extra}"
    );
    site.write("pyproject.toml", manifest);
    site.write("run.py", RUNNER);
    let mut plan = site.plan(tools.clone());
    let simple = format!("{index}/simple");
    plan.network_env
        .insert("UV_DEFAULT_INDEX".into(), simple.clone().into());
    lock(site, &uv.path, &python.path, &simple);
    Some((plan, simple))
}

fn lock(site: &Site, uv: &Path, python: &Path, index: &str) {
    let cache = site.stock.join("cache");
    let env = [
        ("UV_DEFAULT_INDEX", OsStr::new(index)),
        ("UV_CACHE_DIR", cache.as_os_str()),
        ("UV_PYTHON", python.as_os_str()),
    ];
    prepare(uv, &["lock"], &site.tree, &env);
}

#[test]
fn fetches_then_installs_without_a_network_and_the_tests_see_it() {
    let site = site();
    let Some((plan, _)) = project(&site, "") else {
        return;
    };
    fetch(&plan, &never()).unwrap();
    assert!(
        !site.tree.join(".venv").exists(),
        "fetching leaves the tree empty"
    );
    install(&plan, &never()).unwrap();
    let observed = observe_environment(&plan).unwrap();
    let path = RelPath::parse(b"lib64").unwrap();
    assert!(matches!(observed.entries[&path], Fact::Symlink { .. }));
    let names: Vec<String> = observed.entries.keys().map(ToString::to_string).collect();
    assert!(
        names
            .iter()
            .any(|n| n.ends_with("site-packages/leaf/deep/__init__.py"))
    );
    assert!(!names.iter().any(|n| n.ends_with(".pyc")), "nothing is compiled");
    assert_eq!(
        names.iter().filter(|n| n.ends_with("/app")).count(),
        0,
        "the project is not installed"
    );
    let plans = [plan];
    let run = run_tests(
        &site.tests("test", &plans, &["python", "run.py", "{report}"]),
        &never(),
    )
    .unwrap();
    assert_eq!(run.verdict.unwrap().passed, 1);
    // A second installation over the first is refused.
    assert_eq!(refused(install(&plans[0], &never())).code, Code::TreeNotEmpty);
    assert_eq!(refused(fetch(&plans[0], &never())).code, Code::TreeNotEmpty);
}

#[test]
fn a_lock_out_of_step_with_its_manifest_is_not_installed() {
    let site = site();
    let Some((plan, _)) = project(&site, "") else {
        return;
    };
    let text = std::fs::read_to_string(site.tree.join("pyproject.toml")).unwrap();
    site.write("pyproject.toml", text.replace("leaf==1.0", "leaf==2.0"));
    fetch(&plan, &never()).unwrap();
    let refusal = refused(install(&plan, &never()));
    assert_eq!(refusal.code, Code::InstallFailed);
    assert_eq!(refusal.reason.as_deref(), Some("install"));
    assert!(
        !refusal.names.is_empty() && refusal.names.len() <= 40,
        "{refusal:#?}"
    );
}

/// Cases A01 and A05: a lock cut in the middle, and one cut at a record boundary.
#[test]
fn a_cut_lock_is_not_installed() {
    for at_a_record in [false, true] {
        let site = site();
        let Some((plan, _)) = project(&site, "") else {
            return;
        };
        let whole = lockfile(&site, "uv.lock");
        let text = std::fs::read_to_string(site.tree.join("uv.lock")).unwrap();
        let end = if at_a_record {
            text.rfind("[[package]]").unwrap()
        } else {
            text.len() * 2 / 5
        };
        site.write("uv.lock", &text[..end]);
        // uv, too, refuses it, where it changed after it was parsed.
        let fetched = super::super::fetch(&plan, &[&whole], &never());
        let refusal = refused(fetched.and_then(|_| super::super::install(&plan, &[&whole], &never())));
        assert_eq!(refusal.code, Code::InstallFailed, "{refusal:#?}");
    }
}

#[test]
fn an_artifact_with_another_digest_is_not_installed() {
    let site = site();
    let Some((plan, _)) = project(&site, "") else {
        return;
    };
    let python = plan.tools.python().unwrap().path.clone();
    wheel(
        &python,
        &site.stock,
        "leaf",
        "1.0",
        &[("leaf/__init__.py", "LIMIT = 7\n")],
    );
    let refusal = refused(fetch(&plan, &never()));
    assert_eq!(refusal.code, Code::InstallFailed);
    assert_eq!(refusal.reason.as_deref(), Some("artifact_digest"));
    assert_eq!(refusal.names[0], "leaf-1.0-py3-none-any.whl");
}

#[test]
fn arguments_that_loosen_are_refused() {
    let site = site();
    let Some((mut plan, _)) = project(&site, "") else {
        return;
    };
    plan.args = vec!["--index-url=http://127.0.0.1:1/".to_owned()];
    assert_eq!(refused(fetch(&plan, &never())).code, Code::BadConfig);
}

#[test]
fn the_deadline_is_named() {
    let site = site();
    let Some((mut plan, _)) = project(&site, "") else {
        return;
    };
    plan.deadline = Duration::ZERO;
    assert_eq!(refused(fetch(&plan, &never())).code, Code::TimedOut);
}

const BACKEND: &str = r#"
import base64, hashlib, os, pathlib, zipfile
def get_requires_for_build_editable(config_settings=None): return []
def get_requires_for_build_wheel(config_settings=None): return []
def build_editable(out, config_settings=None, metadata_directory=None):
    TAMPER
    files = {
        "app.pth": os.path.join(os.getcwd(), "src") + "\n",
        "app-0.dist-info/METADATA": "Metadata-Version: 2.1\nName: app\nVersion: 0\nRequires-Dist: leaf==1.0\nRequires-Dist: other\n",
        "app-0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    with zipfile.ZipFile(os.path.join(out, "app-0-py3-none-any.whl"), "w") as z:
        for at, text in files.items():
            z.writestr(at, text)
            d = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{at},sha256={d},{len(text)}")
        rows.append("app-0.dist-info/RECORD,,")
        z.writestr("app-0.dist-info/RECORD", "\n".join(rows) + "\n")
    return "app-0-py3-none-any.whl"
build_wheel = build_editable
"#;

const BUILD_SYSTEM: &str =
    "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\"build\"]\n";

#[test]
fn the_projects_own_build_comes_last() {
    let site = site();
    let backend = BACKEND.replace("TAMPER", "pass");
    site.write("build/backend.py", &backend);
    site.write("src/app/__init__.py", "NAME = 'app'\n");
    let Some((mut plan, _)) = project(&site, BUILD_SYSTEM) else {
        return;
    };
    plan.project = ProjectInstall::UnboundBackend;
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    let observed = observe_environment(&plan).unwrap();
    assert!(
        observed
            .entries
            .keys()
            .any(|path| path.to_string().ends_with("site-packages/app.pth"))
    );
    assert!(
        observed
            .entries
            .keys()
            .any(|path| path.to_string().ends_with("leaf/__init__.py"))
    );
}

/// A build of the project cannot touch what was installed before it.
#[test]
fn a_build_that_writes_into_the_environment_is_refused() {
    let site = site();
    let tamper = "[p.write_text('LIMIT = 9') for p in pathlib.Path(os.getcwd()).glob('.venv/lib/*/site-packages/leaf/__init__.py')]";
    site.write("build/backend.py", BACKEND.replace("TAMPER", tamper));
    site.write("src/app/__init__.py", "NAME = 'app'\n");
    let Some((mut plan, _)) = project(
        &site,
        &format!("{BUILD_SYSTEM}\n[tool.uv]\nreinstall-package = [\"app\"]\n"),
    ) else {
        return;
    };
    plan.project = ProjectInstall::UnboundBackend;
    fetch(&plan, &never()).unwrap();
    let refusal = refused(install(&plan, &never()));
    assert_eq!(refusal.code, Code::RecordMismatch, "{refusal:#?}");
    assert_eq!(refusal.reason.as_deref(), Some("build_wrote"));
    assert!(refusal.names[0].ends_with("leaf/__init__.py"), "{refusal:#?}");
}

/// What reaches the fetch stage stays there: the same build, run again offline, sees none of it.
#[test]
fn the_operators_credentials_reach_the_fetch_stage_alone() {
    let site = site();
    let tell = "open('build/told', 'a').write(' '.join(sorted(os.environ)) + chr(10))";
    site.write("build/backend.py", BACKEND.replace("TAMPER", tell));
    site.write("src/app/__init__.py", "NAME = 'app'\n");
    let settings = format!("{BUILD_SYSTEM}\n[tool.uv]\nreinstall-package = [\"app\"]\n");
    let Some((mut plan, _)) = project(&site, &settings) else {
        return;
    };
    plan.project = ProjectInstall::UnboundBackend;
    plan.network_env
        .insert("INDEX_PASSWORD".into(), "hunter22".into());
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    let told = std::fs::read_to_string(site.tree.join("build/told")).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines.len() >= 2, "{told}");
    assert!(lines[0].contains("INDEX_PASSWORD"));
    assert!(!lines[lines.len() - 1].contains("INDEX_PASSWORD"));
    // In each stage, a git that only looks takes no lock.
    assert!(lines.iter().all(|line| line.contains("GIT_OPTIONAL_LOCKS")));
}

/// A published project with its own lock: every test of it runs, against its own source tree.
#[test]
fn registry_uv_tests_a_published_project() {
    let site = site();
    let Some(tools) = tools(Installer::Uv, &site.tree) else {
        return;
    };
    let python = tools.python().unwrap().path.clone();
    if !unpack_sdist(&site, &python, "dirty-equals", "0.11") {
        return;
    }
    let mut plan = site.plan(tools);
    plan.network_env = network();
    if let Err(error) = fetch(&plan, &never()) {
        return unreachable(&error);
    }
    install(&plan, &never()).unwrap();
    let plans = [plan];
    let run = run_tests(&site.tests("test", &plans, &["python", "-m", "pytest"]), &never()).unwrap();
    let counts = run
        .verdict
        .unwrap_or_else(|e| panic!("{e:?} {}", String::from_utf8_lossy(&run.stdout)));
    assert_eq!((counts.passed, counts.failed), (613, 0));
    let generation = generation();
    let record = bind(&plans[0], &generation, &[lockfile(&site, "uv.lock")]).unwrap();
    assert!(record.packages.len() > 20, "{:?}", record.packages);
    verify_again(&plans[0], &record, &generation).unwrap();
    // One failing test is named, whatever the exit code is made to say.
    site.write("tests/test_red.py", "def test_red():\n    assert 1 == 2\n");
    let line = "python -m pytest --junitxml={report}; exit 0";
    let red = run_tests(&site.tests("red", &plans, &["sh", "-c", line]), &never()).unwrap();
    let refusal = red.verdict.unwrap_err();
    assert_eq!(refusal.code, Code::TestsFailed);
    assert_eq!(refusal.names, ["tests.test_red::test_red"]);
    // Deselecting everything proves nothing.
    let none = site.tests("none", &plans, &["pytest", "-k", "nothing_of_that_name"]);
    assert_eq!(
        run_tests(&none, &never()).unwrap().verdict.unwrap_err().code,
        Code::EvidenceForeign
    );
}

/// pip asks a source distribution for its metadata before it keeps it; this backend answers without building.
const ANSWERS: &str = r#"
import os
def get_requires_for_build_wheel(config_settings=None): return []
def prepare_metadata_for_build_wheel(out, config_settings=None):
    name, version = os.environ["SDIST"].split("==")
    info = name.replace("-", "_") + f"-{version}.dist-info"
    os.mkdir(os.path.join(out, info))
    with open(os.path.join(out, info, "METADATA"), "w") as f:
        f.write(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return info
"#;

pub(super) fn unpack_sdist(site: &Site, python: &Path, name: &str, version: &str) -> bool {
    let backend = site.stock.join("answers/hatchling");
    std::fs::create_dir_all(&backend).unwrap();
    std::fs::write(backend.join("__init__.py"), "").unwrap();
    std::fs::write(backend.join("build.py"), ANSWERS).unwrap();
    let wanted = format!("{name}=={version}");
    let mut command = crate::process::Command::new(python, &site.stock)
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
        ])
        .args(["--no-build-isolation", "--dest", "."])
        .args([&wanted]);
    command.env = network();
    command.env.insert("SDIST".into(), wanted.into());
    command
        .env
        .insert("PYTHONPATH".into(), site.stock.join("answers").into_os_string());
    command
        .env
        .insert("HOME".into(), site.stock.clone().into_os_string());
    command
        .env
        .insert("PATH".into(), std::env::var_os("PATH").unwrap());
    let ended = crate::process::run(&command, &never()).unwrap();
    if !ended.end.success() {
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.contains("Could not find a version"), "{said}");
        skipped(&format!("the registry is not reachable: {said}"));
        return false;
    }
    let stem = format!("{}-{version}", name.replace('-', "_"));
    let archive = format!("{stem}.tar.gz");
    prepare(Path::new("/bin/tar"), &["-xzf", &archive], &site.stock, &[]);
    std::fs::remove_dir(&site.tree).unwrap();
    std::fs::rename(site.stock.join(stem), &site.tree).unwrap();
    true
}

#[test]
fn registry_uv_builds_with_an_unbound_backend() {
    let site = site();
    let Some(tools) = tools(Installer::Uv, &site.tree) else {
        return;
    };
    let Tools::Uv { uv, python } = &tools else {
        unreachable!();
    };
    site.write(
        "pyproject.toml",
        "[project]\nname = \"app\"\nversion = \"0\"\nrequires-python = \">=3.9\"\n\
         [build-system]\nrequires = [\"hatchling\"]\nbuild-backend = \"hatchling.build\"\n\
         [tool.hatch.build.targets.wheel]\npackages = [\"src/app\"]\n",
    );
    site.write("src/app/__init__.py", "");
    lock(&site, &uv.path, &python.path, "http://127.0.0.1:9/simple");
    let mut plan = site.plan(tools.clone());
    plan.network_env = network();
    plan.project = ProjectInstall::UnboundBackend;
    if let Err(error) = fetch(&plan, &never()) {
        return unreachable(&error);
    }
    install(&plan, &never()).unwrap();
    let observed = observe_environment(&plan).unwrap();
    let names: Vec<String> = observed.entries.keys().map(ToString::to_string).collect();
    assert!(
        names.iter().any(|name| name.contains("app-0.dist-info/RECORD")),
        "{names:?}"
    );
    assert!(
        !names.iter().any(|name| name.contains("hatchling")),
        "the backend stays outside"
    );
}

/// Settings are read by this very process: a link to a device, or to another's file, is not followed.
#[test]
fn settings_behind_a_link_out_of_the_tree_are_refused() {
    let site = site();
    let Some((plan, _)) = project(&site, "") else {
        return;
    };
    for elsewhere in ["/dev/zero", "/etc/passwd"] {
        let link = site.tree.join("uv.toml");
        std::os::unix::fs::symlink(elsewhere, &link).unwrap();
        let refusal = refused(fetch(&plan, &never()));
        assert_eq!(refusal.code, Code::PathEscapesRoot, "{refusal:#?}");
        std::fs::remove_file(&link).unwrap();
    }
}
