//! Published projects, each fetched, installed and bound: none may be refused. It takes minutes and registries, so it
//! runs only where it is asked for: `cargo test --release -p semel-host installer::tests::real -- --ignored --nocapture`.

use super::*;
use std::time::Instant;

fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").unwrap();
}

/// Fetches, installs, binds, and looks again; says how long each took.
fn certify(name: &str, site: &Site, plan: &Plan, lock: &str) -> InstallRecord {
    let took = |from: Instant| format!("{:.2}", from.elapsed().as_secs_f64());
    let (generation, locks) = (generation(), [lockfile(site, lock)]);
    let begun = Instant::now();
    fetch(plan, &never()).unwrap_or_else(|e| panic!("{name}: {e:#?}"));
    let fetched = took(begun);
    let begun = Instant::now();
    install(plan, &never()).unwrap_or_else(|e| panic!("{name}: {e:#?}"));
    let installed = took(begun);
    let begun = Instant::now();
    let record = bind(plan, &generation, &locks).unwrap_or_else(|e| panic!("{name}: {e:#?}"));
    let bound = took(begun);
    let begun = Instant::now();
    verify_again(plan, &record, &generation).unwrap_or_else(|e| panic!("{name}: {e:#?}"));
    let verified = took(begun);
    let (mut files, mut bytes) = (0, 0);
    for entry in record.entries.values() {
        if let semel_core::install::Entry::File { size, .. } = entry {
            files += 1;
            bytes += size;
        }
    }
    say(&format!(
        "{name}: {} packages, {files} files, {} MB; fetch {fetched} s, install {installed} s, bind {bound} s, verify {verified} s; weak {:?}",
        record.packages.len(),
        bytes / 1_000_000,
        record.weak
    ));
    // The same again, from the store alone.
    let again = super::site();
    prepare(
        Path::new("/bin/cp"),
        &[
            "-a",
            &format!("{}/.", site.tree.display()),
            again.tree.to_str().unwrap(),
        ],
        &again.stock,
        &[],
    );
    for leftover in [".venv", "node_modules"] {
        prepare(
            Path::new("/bin/rm"),
            &["-rf", again.tree.join(leftover).to_str().unwrap()],
            &again.stock,
            &[],
        );
    }
    let mut second = again.plan(plan.tools.clone());
    second.artifacts = plan.artifacts.clone();
    second.args.clone_from(&plan.args);
    let begun = Instant::now();
    fetch(&second, &never()).unwrap_or_else(|e| panic!("{name}: {e:#?}"));
    install(&second, &never()).unwrap_or_else(|e| panic!("{name}: {e:#?}"));
    let warm = took(begun);
    bind(&second, &generation, &locks).unwrap_or_else(|e| panic!("{name}: {e:#?}"));
    say(&format!("{name}: from the store alone {warm} s"));
    record
}

#[test]
#[ignore = "takes minutes and registries"]
fn real_projects_of_uv() {
    for (name, version) in [
        ("svcs", "26.2.0"),
        ("attrs", "26.1.0"),
        ("inline-snapshot", "0.36.1"),
        ("dirty-equals", "0.11"),
    ] {
        let site = site();
        let Some(tools) = tools(Installer::Uv, &site.tree) else {
            return;
        };
        let python = tools.python().unwrap().path.clone();
        if !uv::unpack_sdist(&site, &python, name, version) {
            return;
        }
        let mut plan = site.plan(tools);
        plan.network_env = network();
        certify(name, &site, &plan, "uv.lock");
    }
}

#[test]
#[ignore = "takes minutes and registries"]
fn real_project_of_npm() {
    let site = site();
    let Some(tools) = tools(Installer::Npm, &site.tree) else {
        return;
    };
    let (node, npm) = (
        tools.node().unwrap().path.clone(),
        tools.npm().unwrap().path.clone(),
    );
    let npm = npm.to_str().unwrap();
    let env: Vec<(String, OsString)> = network()
        .into_iter()
        .map(|(n, v)| (n.into_string().unwrap(), v))
        .collect();
    let env: Vec<(&str, &OsStr)> = env.iter().map(|(n, v)| (n.as_str(), v.as_os_str())).collect();
    prepare(&node, &[npm, "pack", "minimist@1.2.8"], &site.stock, &env);
    let tree = site.tree.to_str().unwrap();
    prepare(
        Path::new("/bin/tar"),
        &["-xzf", "minimist-1.2.8.tgz", "--strip-components=1", "-C", tree],
        &site.stock,
        &[],
    );
    let lock = [
        npm,
        "install",
        "--package-lock-only",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
    ];
    prepare(&node, &lock, &site.tree, &env);
    let mut plan = site.plan(tools);
    plan.network_env = network();
    let record = certify("minimist", &site, &plan, "package-lock.json");
    assert!(record.packages.len() > 200, "{}", record.packages.len());
}

#[test]
#[ignore = "takes minutes and registries"]
fn real_project_of_cargo() {
    let site = site();
    let Some(tools) = tools(Installer::Cargo, &site.tree) else {
        return;
    };
    let url = "https://static.crates.io/crates/hexyl/hexyl-0.16.0.crate";
    prepare(
        Path::new("/usr/bin/curl"),
        &["-sSfLo", "hexyl.crate", url],
        &site.stock,
        &[],
    );
    let tree = site.tree.to_str().unwrap();
    prepare(
        Path::new("/bin/tar"),
        &["-xzf", "hexyl.crate", "--strip-components=1", "-C", tree],
        &site.stock,
        &[],
    );
    let mut plan = site.plan(tools);
    plan.network_env = network();
    certify("hexyl", &site, &plan, "Cargo.lock");
}
