use super::*;
use crate::installer::cargo::home;

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
    let red = |run: &str| {
        let red = run_tests(&site.tests(run, &plans, &["cargo", "test"]), &never()).unwrap();
        let refusal = red.verdict.unwrap_err();
        assert_eq!(
            (refusal.code, refusal.names),
            (Code::TestsFailed, vec!["holds".to_owned()]),
            "{run}"
        );
    };
    red("red");
    // Also where a file of settings names a program that runs none of them.
    site.write(".cargo/config.toml", "[target.'cfg(all())']\nrunner = \"true\"\n");
    red("not-run");
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
    fetch(&plan, &never()).unwrap();
    let refusal = refused(install(&plan, &never()));
    assert_eq!(
        (refusal.code, refusal.reason.as_deref()),
        (Code::InstallFailed, Some("install"))
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
    assert!(record.weak.is_empty(), "{:?}", record.weak);
    let plans = [plan];
    let run = run_tests(&site.tests("test", &plans, &["cargo", "test"]), &never()).unwrap();
    let counts = run
        .verdict
        .unwrap_or_else(|e| panic!("{e:?} {}", String::from_utf8_lossy(&run.stderr)));
    assert_eq!(counts.passed, 2);
    verify_again(&plans[0], &record, &generation).unwrap();
}

/// A crate that is made here, and a lock that names it.
fn with_a_crate(site: &Site) -> Option<Plan> {
    let plan = project(site, "leaf = { path = \"leaf\" }\nsap = \"1\"\n")?;
    let source = site.stock.join("sap-1.0.0");
    std::fs::create_dir_all(source.join("src")).unwrap();
    let manifest = "[package]\nname = \"sap\"\nversion = \"1.0.0\"\nedition = \"2021\"\n";
    std::fs::write(source.join("Cargo.toml"), manifest).unwrap();
    std::fs::write(source.join("src/lib.rs"), "pub const SAP: u32 = 1;\n").unwrap();
    std::fs::write(source.join(".gitignore"), "target\n").unwrap();
    pack(site);
    let digest = crate::plain::digest_file(&site.stock.join("sap-1.0.0.crate")).unwrap();
    site.write(
        "Cargo.lock",
        format!(
            "version = 4\n\n[[package]]\nname = \"app\"\nversion = \"0.1.0\"\ndependencies = [\n \"leaf\",\n \"sap\",\n]\n\n\
             [[package]]\nname = \"leaf\"\nversion = \"1.0.0\"\n\n\
             [[package]]\nname = \"sap\"\nversion = \"1.0.0\"\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n\
             checksum = \"{digest}\"\n"
        ),
    );
    site.write(
        "src/lib.rs",
        "#[test] fn holds() { assert_eq!((leaf::LIMIT, sap::SAP), (1, 1)) }\n",
    );
    Some(plan)
}

fn pack(site: &Site) {
    let args = ["-czf", "sap-1.0.0.crate", "--mtime=2001-01-01", "sap-1.0.0"];
    prepare(Path::new("/bin/tar"), &args, &site.stock, &[]);
}

/// Lets the crate enter the store, as a fetch from a registry would.
fn enter(site: &Site, plan: &Plan) {
    let lock = lockfile(site, "Cargo.lock");
    let sap = lock.packages.iter().find(|p| p.name == "sap").unwrap();
    let wanted = crate::artifact::Wanted {
        locked: semel_core::artifact::Locked::of(&sap.artifacts[0]),
        file: "sap-1.0.0.crate".to_owned(),
        packing: semel_core::artifact::Packing::Crate,
    };
    plan.artifacts
        .enter(&site.stock.join("sap-1.0.0.crate"), &wanted)
        .unwrap();
}

fn passes(site: &Site, plans: &[Plan], run: &str) -> Refusal {
    let run = run_tests(&site.tests(run, plans, &["cargo", "test", "--locked"]), &never()).unwrap();
    match run.verdict {
        Ok(_) => Refusal::new(Code::Internal, "the tests passed"),
        Err(refusal) => refusal,
    }
}

/// Vector 43: cargo itself compiles a `.crate` that was swapped in its cache. Here it never looks into one: a swapped
/// artifact does not enter, a swapped entry of the store is refused by name, and what is compiled is bound.
#[test]
fn a_swapped_crate_is_never_compiled() {
    let site = site();
    let Some(mut plan) = with_a_crate(&site) else {
        return;
    };
    enter(&site, &plan);
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    let generation = generation();
    let locks = [lockfile(&site, "Cargo.lock")];
    let record = bind(&plan, &generation, &locks).unwrap();
    assert_eq!(record.packages, ["sap==1.0.0"]);
    let source = home(&plan).join("vendor/sap-1.0.0/src/lib.rs");
    let facts = std::fs::metadata(&source).unwrap();
    assert!(
        std::os::unix::fs::MetadataExt::mtime(&facts) > 1_100_000_000,
        "vector 47: times are those of now"
    );
    let plans = [plan.clone()];
    assert_eq!(passes(&site, &plans, "first").why, "the tests passed");
    verify_again(&plan, &record, &generation).unwrap();
    // Vector 42: an edited file is seen, before and after it is recorded.
    std::fs::write(&source, "pub const SAP: u32 = 2;\n").unwrap();
    assert_eq!(
        refused(verify_again(&plan, &record, &generation)).code,
        Code::RecordMismatch
    );
    let refusal = refused(bind(&plan, &generation, &locks));
    assert_eq!(
        (refusal.code, refusal.names[0].as_str()),
        (Code::RecordMismatch, "sap-1.0.0.crate")
    );
    // Vector 46: with its checksum, too.
    let sums = source.with_file_name("../.cargo-checksum.json");
    std::fs::write(sums, "{\"files\":{}}").unwrap();
    assert_eq!(
        refused(bind(&plan, &generation, &locks)).code,
        Code::RecordMismatch
    );
    // The swap.
    std::fs::write(
        site.stock.join("sap-1.0.0/src/lib.rs"),
        "pub const SAP: u32 = 3;\n",
    )
    .unwrap();
    pack(&site);
    let line =
        "f=$(find artifacts/sha256 -type f); rm \"$f\"; cp stock/sap-1.0.0.crate \"$f\"; chmod 444 \"$f\"";
    prepare(Path::new("/bin/sh"), &["-c", line], site.dir.path(), &[]);
    plan.home = site.stock.join("second");
    std::fs::create_dir(&plan.home).unwrap();
    fetch(&plan, &never()).unwrap();
    let refusal = refused(install(&plan, &never()));
    assert_eq!(
        refusal.reason.as_deref(),
        Some("poisoned_artifact"),
        "{refusal:#?}"
    );
    assert_eq!(refusal.names[0], "sap-1.0.0.crate");
}

/// Vectors 44 to 46, where the crates are part of the project.
#[test]
fn crates_that_a_project_vendors_are_bound_to_the_registrys() {
    let site = site();
    let Some(plan) = with_a_crate(&site) else { return };
    enter(&site, &plan);
    site.write(
        ".cargo/config.toml",
        "[source.crates-io]\nreplace-with = \"own\"\n[source.own]\ndirectory = \"third/party\"\n",
    );
    let crate_file = |name: &str, text: &str| site.write(&format!("third/party/sap/{name}"), text);
    crate_file(
        "Cargo.toml",
        "[package]\nname = \"sap\"\nversion = \"1.0.0\"\nedition = \"2021\"\n",
    );
    crate_file("src/lib.rs", "pub const SAP: u32 = 1;\n");
    let digest = crate::plain::digest_file(&site.stock.join("sap-1.0.0.crate")).unwrap();
    crate_file(
        ".cargo-checksum.json",
        &format!("{{\"files\":{{}},\"package\":\"{digest}\"}}"),
    );
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    let locks = [lockfile(&site, "Cargo.lock")];
    bind(&plan, &generation(), &locks).unwrap();
    assert_eq!(
        passes(&site, std::slice::from_ref(&plan), "own").why,
        "the tests passed"
    );
    // Settings that include others, and such of a directory below, name crates as well.
    site.write(".cargo/more.toml", "[source.crates-io]\nreplace-with = \"own\"\n");
    site.write(".cargo/config.toml", "include = [\"more.toml\"]\n");
    let refusal = refused(bind(&plan, &generation(), &locks));
    assert_eq!(
        (refusal.code, refusal.reason.as_deref()),
        (Code::LockIncomplete, Some("included_settings"))
    );
    site.write(".cargo/config.toml", "");
    site.write("broken/.cargo/config.toml", "[");
    site.write(
        "third/.cargo/config",
        "[source.crates-io]\nreplace-with = \"own\"\n[source.own]\ndirectory = \"party\"\n",
    );
    bind(&plan, &generation(), &locks).unwrap();
    crate_file("build.rs", "fn main() {}\n");
    let refusal = refused(bind(&plan, &generation(), &locks));
    assert_eq!(
        (refusal.code, refusal.names[1].as_str()),
        (Code::RecordMismatch, "sap/build.rs")
    );
    std::fs::remove_file(site.tree.join("third/party/sap/build.rs")).unwrap();
    crate_file("src/lib.rs", "pub const SAP: u32 = 2;\n");
    assert_eq!(
        refused(bind(&plan, &generation(), &locks)).code,
        Code::RecordMismatch
    );
    site.write(
        ".cargo/config.toml",
        "[source.own]\ndirectory = \"../elsewhere\"\n",
    );
    assert_eq!(
        refused(bind(&plan, &generation(), &locks)).code,
        Code::RecordOutsideRoot
    );
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
