//! Published projects, each fetched, installed and bound: none may be refused. Registries are needed. How long each step
//! took is printed (`-- --nocapture`), and decides nothing.

use super::*;
use std::time::Instant;

fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").unwrap();
}

/// Runs a program that needs a registry; says so, where there is none.
fn prepared(program: &Path, args: &[&str], cwd: &Path) -> bool {
    let mut command = crate::process::Command::new(program, cwd).args(args.iter().copied());
    command.env = network();
    command
        .env
        .insert("PATH".into(), std::env::var_os("PATH").unwrap());
    let home = tempfile::tempdir().unwrap();
    command
        .env
        .insert("HOME".into(), home.path().as_os_str().to_owned());
    command
        .env
        .insert("CARGO_HOME".into(), home.path().as_os_str().to_owned());
    let ended = crate::process::run(&command, &never()).unwrap();
    if ended.end.success() {
        return true;
    }
    let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
    let words = [
        "ENOTFOUND",
        "EAI_AGAIN",
        "ECONNREFUSED",
        "resolve host",
        "dns error",
        "spurious network error",
    ];
    assert!(words.iter().any(|word| said.contains(word)), "{said}");
    skipped("the registry is not reachable");
    false
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
fn registry_real_projects_of_uv() {
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
fn registry_real_project_of_npm() {
    let site = site();
    let Some(tools) = tools(Installer::Npm, &site.tree) else {
        return;
    };
    let (node, npm) = (
        tools.node().unwrap().path.clone(),
        tools.npm().unwrap().path.clone(),
    );
    let npm = npm.to_str().unwrap();
    if !prepared(&node, &[npm, "pack", "minimist@1.2.8"], &site.stock) {
        return;
    }
    let tree = site.tree.to_str().unwrap();
    let args = ["-xzf", "minimist-1.2.8.tgz", "--strip-components=1", "-C", tree];
    prepare(Path::new("/bin/tar"), &args, &site.stock, &[]);
    let lock = [
        npm,
        "install",
        "--package-lock-only",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
    ];
    if !prepared(&node, &lock, &site.tree) {
        return;
    }
    let mut plan = site.plan(tools);
    plan.network_env = network();
    let record = certify("minimist", &site, &plan, "package-lock.json");
    assert!(record.packages.len() > 200, "{}", record.packages.len());
}

#[test]
fn registry_real_project_of_cargo() {
    let site = site();
    let Some(tools) = tools(Installer::Cargo, &site.tree) else {
        return;
    };
    let Tools::Cargo { cargo, .. } = &tools else {
        unreachable!();
    };
    // The crate comes with the lock of its program.
    let source = site.stock.join("source");
    std::fs::create_dir_all(source.join("src")).unwrap();
    std::fs::write(source.join("src/lib.rs"), "").unwrap();
    let manifest = "[package]\nname = \"a\"\nversion = \"0.1.0\"\n[dependencies]\nhexyl = \"=0.16.0\"\n";
    std::fs::write(source.join("Cargo.toml"), manifest).unwrap();
    if !prepared(&cargo.path, &["vendor"], &source) {
        return;
    }
    prepare(
        Path::new("/bin/cp"),
        &["-a", "vendor/hexyl/.", site.tree.to_str().unwrap()],
        &source,
        &[],
    );
    std::fs::remove_file(site.tree.join(".cargo-checksum.json")).unwrap();
    let mut plan = site.plan(tools);
    plan.network_env = network();
    certify("hexyl", &site, &plan, "Cargo.lock");
}
