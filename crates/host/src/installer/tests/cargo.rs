use super::*;

fn project(site: &Site, dependencies: &str) -> Option<Plan> {
    let tools = tools(Installer::Cargo, &site.tree)?;
    let manifest = format!(
        "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\n{dependencies}"
    );
    site.write("Cargo.toml", manifest);
    site.write(
        "src/lib.rs",
        "/// ```\n/// assert_eq!(app::one(), 1);\n/// ```\npub fn one() -> u32 { leaf::LIMIT }\n\
         #[test] fn holds() { assert_eq!(one(), 1) }\n#[test] #[ignore] fn later() {}\n",
    );
    site.write(
        "leaf/Cargo.toml",
        "[package]\nname = \"leaf\"\nversion = \"1.0.0\"\nedition = \"2021\"\n",
    );
    site.write("leaf/src/lib.rs", "pub const LIMIT: u32 = 1;\n");
    Some(site.plan(tools))
}

fn generate_lock(site: &Site, plan: &Plan) {
    let Tools::Cargo { cargo, .. } = &plan.tools else {
        unreachable!();
    };
    let home = site.stock.join("cargo-home");
    let env = [("CARGO_HOME", home.as_os_str())];
    prepare(&cargo.path, &["generate-lockfile", "--offline"], &site.tree, &env);
}

#[test]
fn fetches_then_tests_without_a_network_and_outside_of_the_tree() {
    let site = site();
    let Some(plan) = project(&site, "leaf = { path = \"leaf\" }\n") else {
        return;
    };
    let Tools::Cargo { cargo, .. } = &plan.tools else {
        unreachable!();
    };
    assert_ne!(
        cargo.path.file_name(),
        Some(OsStr::new("rustup")),
        "the proxy is resolved"
    );
    generate_lock(&site, &plan);
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    observe_environment(&plan).unwrap();
    let plans = [plan];
    let run = run_tests(&site.tests("test", &plans, &["cargo", "test"]), &never()).unwrap();
    let counts = run
        .verdict
        .unwrap_or_else(|e| panic!("{e:?} {}", String::from_utf8_lossy(&run.stderr)));
    assert_eq!((counts.passed, counts.skipped), (2, 1));
    assert!(
        !site.tree.join("target").exists(),
        "the build lies outside of the tree"
    );
    // All deselected is no evidence, a failing test is named.
    let none = run_tests(
        &site.tests("none", &plans, &["cargo", "test", "nothing-of-that-name"]),
        &never(),
    );
    assert_eq!(none.unwrap().verdict.unwrap_err().code, Code::EvidenceForeign);
    site.write(
        "src/lib.rs",
        "#[test] fn holds() { assert_eq!(leaf::LIMIT, 2) }\n",
    );
    let red = run_tests(&site.tests("red", &plans, &["cargo", "test"]), &never()).unwrap();
    let refusal = red.verdict.unwrap_err();
    assert_eq!(
        (refusal.code, refusal.names),
        (Code::TestsFailed, vec!["holds".to_owned()])
    );
}

#[test]
fn a_lock_out_of_step_with_its_manifest_is_not_fetched() {
    let site = site();
    let Some(plan) = project(&site, "") else {
        return;
    };
    generate_lock(&site, &plan);
    let text = std::fs::read_to_string(site.tree.join("Cargo.toml")).unwrap();
    site.write("Cargo.toml", format!("{text}leaf = {{ path = \"leaf\" }}\n"));
    let refusal = refused(fetch(&plan, &never()));
    assert_eq!(
        (refusal.code, refusal.reason.as_deref()),
        (Code::InstallFailed, Some("fetch"))
    );
}

/// Case A06: build residue that came with the tree.
#[test]
fn a_target_directory_that_came_with_the_tree_is_refused() {
    let site = site();
    let Some(plan) = project(&site, "") else {
        return;
    };
    generate_lock(&site, &plan);
    site.write("target/.rustc_info.json", "{}");
    let refusal = refused(fetch(&plan, &never()));
    assert_eq!(refusal.code, Code::TreeNotEmpty);
    assert!(refusal.names[0].ends_with("/target"));
}

#[test]
fn a_toolchain_inside_of_the_tree_is_refused() {
    let site = site();
    site.write("bin/cargo", "#!/bin/sh\ntouch \"$0.ran\"\n");
    let hints = Hints {
        cargo: Some(site.tree.join("bin/cargo")),
        ..Hints::default()
    };
    let refusal = refused(resolve(Installer::Cargo, &hints, &site.tree, &never()));
    assert_eq!(refusal.code, Code::SandboxUnavailable);
    assert!(
        !site.tree.join("bin/cargo.ran").exists(),
        "the host never runs what the tree brought"
    );
}

#[test]
fn registry_cargo_fetches_published_crates() {
    let site = site();
    let Some(plan) = project(&site, "leaf = { path = \"leaf\" }\nitoa = \"=1.0.11\"\n") else {
        return;
    };
    site.write(
        "Cargo.lock",
        "version = 4\n\n[[package]]\nname = \"app\"\nversion = \"0.1.0\"\ndependencies = [\n \"itoa\",\n \"leaf\",\n]\n\n\
         [[package]]\nname = \"itoa\"\nversion = \"1.0.11\"\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n\
         checksum = \"49f1f14873335454500d59611f1cf4a4b0f786f9ac11f4312a78e4cf2566695b\"\n\n\
         [[package]]\nname = \"leaf\"\nversion = \"1.0.0\"\n",
    );
    let mut plan = plan;
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
            .any(|path| path.to_string().ends_with("itoa-1.0.11/src/lib.rs"))
    );
    let generation = generation();
    let record = bind(&plan, &generation, &[lockfile(&site, "Cargo.lock")]).unwrap();
    assert_eq!(record.packages, ["itoa==1.0.11"]);
    let plans = [plan];
    let run = run_tests(&site.tests("test", &plans, &["cargo", "test"]), &never()).unwrap();
    let counts = run
        .verdict
        .unwrap_or_else(|e| panic!("{e:?} {}", String::from_utf8_lossy(&run.stderr)));
    assert_eq!(counts.passed, 2);
    verify_again(&plans[0], &record, &generation).unwrap();
}

/// The settings of a tree are the proposal's; the fetch stage has the operator's credentials and a network.
#[test]
fn settings_of_the_tree_run_no_program_before_the_tests() {
    let site = site();
    let Some(plan) = project(&site, "leaf = { path = \"leaf\" }\n") else {
        return;
    };
    generate_lock(&site, &plan);
    site.write(
        ".cargo/config.toml",
        "[build]\nrustc-wrapper = \"./wrap.sh\"\nrustc-workspace-wrapper = \"./wrap.sh\"\n",
    );
    site.write("wrap.sh", "#!/bin/sh\nenv >>\"$TMPDIR/wrapped\"\nexec \"$@\"\n");
    let wrapper = site.tree.join("wrap.sh");
    std::fs::set_permissions(wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    assert!(!site.home.join("tmp/wrapped").exists());
}
