use super::*;

pub(super) fn project(site: &Site) -> Option<Plan> {
    let tools = tools(Installer::Pip, &site.tree)?;
    let python = tools.python().unwrap().path.clone();
    let digest = wheel(&python, &site.stock, "leaf", "1.0", &[("leaf.py", "LIMIT = 1\n")]);
    site.write("requirements.txt", format!("leaf==1.0 --hash=sha256:{digest}\n"));
    site.write(
        "run.py",
        "import pathlib, sys, leaf\n\
         pathlib.Path(sys.argv[1]).write_text(\"<testsuite><testcase name='leaf'/></testsuite>\")\n",
    );
    let mut plan = site.plan(tools);
    plan.network_env.insert("PIP_NO_INDEX".into(), "1".into());
    plan.network_env
        .insert("PIP_FIND_LINKS".into(), site.stock.clone().into_os_string());
    Some(plan)
}

#[test]
fn downloads_then_installs_without_an_index() {
    let site = site();
    let Some(plan) = project(&site) else {
        return;
    };
    fetch(&plan, &never()).unwrap();
    assert!(
        !site.tree.join(".venv").exists(),
        "fetching leaves the tree empty"
    );
    install(&plan, &never()).unwrap();
    let observed = observe_environment(&plan).unwrap();
    let names: Vec<String> = observed.entries.keys().map(ToString::to_string).collect();
    assert!(names.iter().any(|name| name.ends_with("site-packages/leaf.py")));
    assert!(
        !names
            .iter()
            .any(|name| name.contains("/pip/") || name.ends_with(".pyc"))
    );
    let plans = [plan];
    let run = run_tests(
        &site.tests("test", &plans, &["python", "run.py", "{report}"]),
        &never(),
    )
    .unwrap();
    assert_eq!(run.verdict.unwrap().passed, 1);
}

/// A file of the tree sends neither pip nor what the operator gave it anywhere, and has nothing built.
#[test]
fn no_option_of_the_tree_reaches_pip() {
    let site = site();
    let Some(plan) = project(&site) else {
        return;
    };
    let own = std::fs::read_to_string(site.tree.join("requirements.txt")).unwrap();
    let options =
        "--extra-index-url http://127.0.0.1:1/${PIP_INDEX_URL}\n--trusted-host h\n--no-binary leaf\n";
    site.write("requirements.txt", format!("{options}-r requirements-more.txt\n"));
    site.write(
        "requirements-more.txt",
        format!("--no-binary :all:\n-r requirements.txt\n{own}"),
    );
    let files = ["requirements.txt", "requirements-more.txt"];
    let locks = files.map(|file| lockfile(&site, file));
    let locks: Vec<&Lockfile> = locks.iter().collect();
    super::super::fetch(&plan, &locks, &never()).unwrap();
    super::super::install(&plan, &locks, &never()).unwrap();
    let read = std::fs::read_to_string(plan.place().join("requirements.txt")).unwrap();
    assert_eq!(read, own);
    for (line, why) in [
        (
            "leaf @ http://127.0.0.1:1/leaf-1.0.tar.gz",
            "no archive that is built",
        ),
        (
            "leaf @ http://127.0.0.1:1/${UV_INDEX_PASSWORD}/leaf-1.0.whl",
            "no variable",
        ),
        ("leaf==1.0 ; '${PIP_INDEX_URL}' != ''", "no variable"),
    ] {
        let text = format!("{line} --hash=sha256:{}\n", "1".repeat(64));
        let refusal =
            semel_core::lockset::parse(&RelPath::parse(b"requirements.txt").unwrap(), text.as_bytes());
        assert_eq!(refusal.unwrap_err().code, Code::LockIncomplete, "{why}");
    }
}

#[test]
fn a_wrong_or_missing_hash_is_not_installed() {
    let site = site();
    let Some(plan) = project(&site) else {
        return;
    };
    let ones = "1".repeat(64);
    site.write("requirements.txt", format!("leaf==1.0 --hash=sha256:{ones}\n"));
    let refusal = refused(fetch(&plan, &never()));
    assert_eq!(refusal.code, Code::InstallFailed);
    assert!(
        refusal.names.join(" ").to_lowercase().contains("hash"),
        "{refusal:#?}"
    );
    // Without any hash it is no lock, and nothing is installed without one.
    site.write("requirements.txt", "leaf==1.0\n");
    for refusal in [refused(fetch(&plan, &never())), refused(install(&plan, &never()))] {
        assert_eq!(refusal.code, Code::NoLockfile);
    }
}

/// What the store holds is not fetched again: no index is asked.
#[test]
fn another_generation_needs_no_network() {
    let site = site();
    let Some(mut plan) = project(&site) else {
        return;
    };
    fetch(&plan, &never()).unwrap();
    plan.home = site.stock.join("another");
    std::fs::create_dir(&plan.home).unwrap();
    plan.network_env = BTreeMap::from([("PIP_NO_INDEX".into(), "1".into())]);
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    let locks = [lockfile(&site, "requirements.txt")];
    assert_eq!(
        bind(&plan, &generation(), &locks).unwrap().packages,
        ["leaf==1.0"]
    );
}

/// Every line of the file is whole, and the one that is gone is what another package needs.
#[test]
fn a_file_that_leaves_out_what_a_package_needs_is_refused() {
    let site = site();
    let Some(plan) = project(&site) else {
        return;
    };
    let python = plan.tools.python().unwrap().path.clone();
    let needs = [("METADATA", "Requires-Dist: leaf\n"), ("top.py", "import leaf\n")];
    let top = wheel(&python, &site.stock, "top", "1.0", &needs);
    let leaf = std::fs::read_to_string(site.tree.join("requirements.txt")).unwrap();
    let pin = format!("top==1.0 --hash=sha256:{top}\n");
    site.write("requirements.txt", &pin);
    let refusal = refused(fetch(&plan, &never()));
    assert_eq!(refusal.code, Code::LockIncomplete, "{refusal:#?}");
    assert!(refusal.names.join(" ").contains("leaf"), "{refusal:#?}");
    site.write("requirements.txt", format!("{pin}{leaf}"));
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
}

#[test]
fn an_environment_that_came_with_the_tree_is_refused() {
    let site = site();
    let Some(plan) = project(&site) else {
        return;
    };
    std::os::unix::fs::symlink("/nowhere", site.tree.join(".venv")).unwrap();
    assert_eq!(refused(fetch(&plan, &never())).code, Code::TreeNotEmpty);
    assert_eq!(refused(install(&plan, &never())).code, Code::TreeNotEmpty);
}

#[test]
fn registry_pip_installs_published_wheels() {
    let site = site();
    let Some(tools) = tools(Installer::Pip, &site.tree) else {
        return;
    };
    site.write(
        "requirements.txt",
        "idna==3.10 --hash=sha256:946d195a0d259cbba61165e88e65941f16e9b36ea6ddb97f00452bae8b1287d3\n",
    );
    let mut plan = site.plan(tools);
    plan.network_env = network();
    if let Err(error) = fetch(&plan, &never()) {
        return unreachable(&error);
    }
    install(&plan, &never()).unwrap();
    let observed = observe_environment(&plan).unwrap();
    assert!(
        observed
            .entries
            .keys()
            .any(|path| path.to_string().ends_with("idna/core.py"))
    );
    let locks = [lockfile(&site, "requirements.txt")];
    let record = bind(&plan, &generation(), &locks).unwrap();
    assert_eq!(record.packages, ["idna==3.10"]);
}

/// An index that takes the connection and never answers.
#[test]
fn a_fetch_past_its_deadline_is_ended_and_named() {
    let site = site();
    let Some(mut plan) = project(&site) else {
        return;
    };
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let index = format!("http://{}/simple", silent.local_addr().unwrap());
    plan.network_env = BTreeMap::from([("PIP_INDEX_URL".into(), index.into())]);
    plan.deadline = Duration::from_secs(2);
    let started = std::time::Instant::now();
    assert_eq!(refused(fetch(&plan, &never())).code, Code::TimedOut);
    assert!(started.elapsed() < Duration::from_secs(300));
}

/// A home within the tree would be tested with it, and a path with a link in it is another path inside.
#[test]
fn places_that_overlap_or_are_not_real_are_refused() {
    let site = site();
    let Some(plan) = project(&site) else {
        return;
    };
    let mut inner = plan.clone();
    inner.home = site.tree.join("home");
    std::fs::create_dir(&inner.home).unwrap();
    assert_eq!(refused(fetch(&inner, &never())).code, Code::BadConfig);
    let mut linked = plan;
    linked.tree = site.stock.join("link");
    std::os::unix::fs::symlink(&site.tree, &linked.tree).unwrap();
    assert_eq!(refused(fetch(&linked, &never())).code, Code::BadConfig);
}

#[test]
fn a_project_below_the_root_has_its_environment_beside_its_lock() {
    let site = site();
    let Some(mut plan) = project(&site) else {
        return;
    };
    std::fs::create_dir(site.tree.join("sub")).unwrap();
    std::fs::rename(
        site.tree.join("requirements.txt"),
        site.tree.join("sub/requirements.txt"),
    )
    .unwrap();
    plan.directory = RelPath::parse(b"sub").unwrap();
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    assert!(site.tree.join("sub/.venv/pyvenv.cfg").exists());
    let generation = generation();
    let record = bind(&plan, &generation, &[lockfile(&site, "sub/requirements.txt")]).unwrap();
    assert_eq!(record.roots[0].place.to_string(), "tree/sub/.venv");
    verify_again(&plan, &record, &generation).unwrap();
    let plans = [plan];
    let run = run_tests(
        &site.tests("test", &plans, &["python", "run.py", "{report}"]),
        &never(),
    )
    .unwrap();
    assert_eq!(run.verdict.unwrap().passed, 1);
}
