//! pnpm and both kinds of Yarn. Locks are made, and tarballs fetched, by the tools themselves from their registry.

use super::*;

const MANIFEST: &str = r#"{"name":"app","version":"1.0.0","private":true,
"dependencies":{"is-odd":"3.0.1","debug":"4.3.4"},"devDependencies":{"semver":"7.6.0"}}"#;
const TEST: &str = "const test = require('node:test');\ntest('odd', () => { if (!require('is-odd')(3)) throw new Error('odd'); });\n";

/// A project of one of these tools, with a lock that the tool made; `None` where tool or registry is not to be had.
fn project(site: &Site, installer: Installer, yarn: Option<&str>) -> Option<Plan> {
    let mut hints = hints();
    if let Some(place) = yarn {
        let place = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../.tools/node/node_modules")
            .join(place);
        hints.yarn = Some(place).filter(|place| place.is_file());
    }
    let tools = match resolve(installer, &hints, &site.tree, &never()) {
        Ok(tools) => tools,
        Err(error) if error.code() == Code::NotFound => {
            skipped(&format!("{installer}: {error}"));
            return None;
        }
        Err(error) => panic!("{installer}: {error}"),
    };
    site.write("package.json", MANIFEST);
    site.write("t.test.js", TEST);
    let modern = yarn.is_some_and(|place| place.contains("cli-dist"));
    if modern {
        site.write(".yarnrc.yml", "nodeLinker: node-modules\n");
    }
    let (node, program) = (tools.node().unwrap().path.clone(), tools.program().path.clone());
    let copy = site.stock.join("copy");
    std::fs::create_dir(&copy).unwrap();
    for name in ["package.json", ".yarnrc.yml"] {
        if let Ok(text) = std::fs::read(site.tree.join(name)) {
            std::fs::write(copy.join(name), text).unwrap();
        }
    }
    let (args, lock): (&[&str], &str) = match installer {
        Installer::Pnpm => (&["install", "--lockfile-only"], "pnpm-lock.yaml"),
        _ if modern => (&["install", "--mode=update-lockfile"], "yarn.lock"),
        _ => (&["install", "--ignore-scripts", "--non-interactive"], "yarn.lock"),
    };
    let mut command = crate::process::Command::new(&node, &copy)
        .args([program.as_os_str()])
        .args(args.iter().copied());
    command.env = network();
    command
        .env
        .insert("PATH".into(), std::env::var_os("PATH").unwrap());
    command
        .env
        .insert("HOME".into(), site.stock.join("home").into_os_string());
    command
        .env
        .insert("YARN_ENABLE_IMMUTABLE_INSTALLS".into(), "0".into());
    command.env.insert("YARN_IGNORE_PATH".into(), "1".into());
    let ended = crate::process::run(&command, &never()).unwrap();
    if !ended.end.success() {
        let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
        assert!(
            ["ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED"]
                .iter()
                .any(|word| said.contains(word)),
            "{said}"
        );
        skipped("the registry is not reachable");
        return None;
    }
    site.write(lock, std::fs::read(copy.join(lock)).unwrap());
    let mut plan = site.plan(tools);
    plan.network_env = network();
    Some(plan)
}

fn certifies(site: &Site, plan: &Plan, lock: &str, weak: usize) {
    if let Err(error) = fetch(plan, &never()) {
        return unreachable(&error);
    }
    assert!(
        !site.tree.join("node_modules").exists(),
        "fetching leaves the tree empty"
    );
    install(plan, &never()).unwrap_or_else(|e| panic!("{e:#?}"));
    let (generation, locks) = (generation(), [lockfile(site, lock)]);
    let record = bind(plan, &generation, &locks).unwrap_or_else(|e| panic!("{e:#?}"));
    for wanted in ["is-odd==3.0.1", "is-number==6.0.0", "semver==7.6.0", "ms==2.1.2"] {
        assert!(
            record.packages.iter().any(|p| p == wanted),
            "{wanted}: {:?}",
            record.packages
        );
    }
    assert_eq!(record.weak.len(), weak, "{:?}", record.weak);
    let plans = [plan.clone()];
    let command = [
        "node",
        "--test",
        "--test-reporter=junit",
        "--test-reporter-destination={report}",
    ];
    let run = run_tests(&site.tests("test", &plans, &command), &never()).unwrap();
    assert_eq!(
        run.verdict.unwrap().passed,
        1,
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    verify_again(plan, &record, &generation).unwrap();
    tampered(site, plan, &generation, &locks, &record);
    // Another generation needs no network.
    let again = super::site();
    for file in std::fs::read_dir(&site.tree).unwrap().flatten() {
        if file.path().is_file() {
            again.write(
                file.file_name().to_str().unwrap(),
                std::fs::read(file.path()).unwrap(),
            );
        }
    }
    let mut second = again.plan(plan.tools.clone());
    second.artifacts = plan.artifacts.clone();
    second.network_env = BTreeMap::from([("npm_config_registry".into(), "http://127.0.0.1:9/".into())]);
    fetch(&second, &never()).unwrap();
    install(&second, &never()).unwrap();
    bind(&second, &generation, &locks).unwrap();
}

/// Vectors 37, 38 and 40: each is seen against the record, and by binding anew.
fn tampered(site: &Site, plan: &Plan, generation: &Generation, locks: &[Lockfile], record: &InstallRecord) {
    let modules = site.tree.join("node_modules");
    let odd = modules.join("is-odd").canonicalize().unwrap();
    type Change<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let changes: [Change<'_>; 4] = [
        (
            "edited",
            Box::new(|| std::fs::write(odd.join("index.js"), "module.exports = () => true;\n").unwrap()),
        ),
        (
            "stray",
            Box::new(|| std::fs::write(odd.join("stray.js"), "").unwrap()),
        ),
        (
            "extraneous",
            Box::new(|| {
                std::fs::create_dir(modules.join("evil")).unwrap();
                std::fs::write(
                    modules.join("evil/package.json"),
                    r#"{"name":"evil","version":"1.0.0"}"#,
                )
                .unwrap();
            }),
        ),
        (
            "a command",
            Box::new(|| std::fs::write(modules.join(".bin/node"), "#!/bin/sh\nexit 0\n").unwrap()),
        ),
    ];
    let kept = site.stock.join("kept");
    let copy = |from: &Path, to: &Path| {
        let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
        prepare(Path::new("/bin/cp"), &["-a", from, to], &site.stock, &[]);
    };
    copy(&modules, &kept);
    for (what, change) in changes {
        change();
        for refusal in [
            refused(verify_again(plan, record, generation)),
            refused(bind(plan, generation, locks)),
        ] {
            assert_eq!(refusal.code, Code::RecordMismatch, "{what}: {refusal}");
        }
        prepare(
            Path::new("/bin/rm"),
            &["-rf", modules.to_str().unwrap()],
            &site.stock,
            &[],
        );
        copy(&kept, &modules);
    }
    bind(plan, generation, locks).unwrap();
}

#[test]
fn registry_pnpm_installs_from_the_store() {
    let site = site();
    let Some(plan) = project(&site, Installer::Pnpm, None) else {
        return;
    };
    certifies(&site, &plan, "pnpm-lock.yaml", 0);
}

#[test]
fn registry_yarn_classic_installs_from_the_store() {
    let site = site();
    let Some(plan) = project(&site, Installer::Yarn, Some("yarn/bin/yarn.js")) else {
        return;
    };
    certifies(&site, &plan, "yarn.lock", 0);
}

#[test]
fn registry_yarn_modern_installs_from_the_store() {
    let site = site();
    let Some(plan) = project(&site, Installer::Yarn, Some("@yarnpkg/cli-dist/bin/yarn.js")) else {
        return;
    };
    certifies(&site, &plan, "yarn.lock", 0);
}

/// A link of pnpm that leads to another locked version than the lock says: both are whole, and one is the wrong one.
#[test]
fn registry_a_dependency_that_leads_elsewhere_is_seen() {
    let site = site();
    let Some(plan) = project(&site, Installer::Pnpm, None) else {
        return;
    };
    if let Err(error) = fetch(&plan, &never()) {
        return unreachable(&error);
    }
    install(&plan, &never()).unwrap();
    let (generation, locks) = (generation(), [lockfile(&site, "pnpm-lock.yaml")]);
    bind(&plan, &generation, &locks).unwrap();
    let link = site.tree.join("node_modules/.pnpm/debug@4.3.4/node_modules/ms");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("../../is-number@6.0.0/node_modules/is-number", &link).unwrap();
    let refusal = refused(bind(&plan, &generation, &locks));
    assert_eq!(refusal.code, Code::RecordMismatch, "{refusal}");
    assert!(refusal.names[0].contains("debug@4.3.4"), "{refusal}");
    std::fs::remove_file(&link).unwrap();
    // Without it Node finds the same package further up, where pnpm keeps a link to each.
    bind(&plan, &generation, &locks).unwrap();
    let above = site.tree.join("node_modules/.pnpm/node_modules/ms");
    std::fs::rename(&above, site.stock.join("above")).unwrap();
    let refusal = refused(bind(&plan, &generation, &locks));
    assert_eq!(
        (refusal.code, refusal.names[1].as_str()),
        (Code::RecordMismatch, "ms")
    );
    std::os::unix::fs::symlink("/etc", &link).unwrap();
    assert_eq!(
        refused(bind(&plan, &generation, &locks)).code,
        Code::RecordOutsideRoot
    );
}

#[test]
fn another_kind_of_yarn_and_another_linker_are_refused() {
    let site = site();
    let Some(plan) = project(&site, Installer::Yarn, Some("@yarnpkg/cli-dist/bin/yarn.js")) else {
        return;
    };
    site.write(".yarnrc.yml", "enableScripts: true\n");
    let refusal = refused(fetch(&plan, &never()));
    assert_eq!(
        (refusal.code, refusal.reason.as_deref()),
        (Code::BadConfig, Some("node_linker"))
    );
    site.write("yarn.lock", "# yarn lockfile v1\n\n\nms@2.1.2:\n  version \"2.1.2\"\n  resolved \"https://registry.yarnpkg.com/ms/-/ms-2.1.2.tgz\"\n  integrity sha512-sGkPx+VjMtmA6MX27oA4FBFELFCZZ4S4XqeGOXCv68tT+jb3vk/RyaKWP0PTKyWtmLSM0b+adUTEvbs1PEaH2w==\n");
    let refusal = refused(fetch(&plan, &never()));
    assert_eq!(refusal.code, Code::BadConfig, "{refusal}");
    assert!(refusal.names[0].starts_with("yarn 4."), "{refusal}");
}
