use super::*;

const T_JS: &str = "const test = require('node:test');\nconst leaf = require('leaf');\n\
                    test('leaf', () => { if (leaf.limit !== 1) throw new Error('limit'); });\n";

/// A project that locks an archive which `npm pack` made, inside the tree.
pub(super) fn project(site: &Site) -> Option<Plan> {
    let tools = tools(Installer::Npm, &site.tree)?;
    let Tools::Npm { node, npm } = &tools else {
        unreachable!();
    };
    let npm = npm.path.to_str().unwrap();
    let source = site.stock.join("leaf");
    std::fs::create_dir(&source).unwrap();
    let manifest = r#"{"name":"leaf","version":"1.0.0","main":"index.js","scripts":{"postinstall":"node -e \"require('fs').writeFileSync('ran','')\""}}"#;
    std::fs::write(source.join("package.json"), manifest).unwrap();
    std::fs::write(source.join("index.js"), "exports.limit = 1;\n").unwrap();
    std::fs::create_dir(site.tree.join("vendor")).unwrap();
    let to = site.tree.join("vendor");
    prepare(
        &node.path,
        &[npm, "pack", "--pack-destination", to.to_str().unwrap()],
        &source,
        &[],
    );
    site.write(
        "package.json",
        r#"{"name":"app","version":"1.0.0","private":true,"workspaces":["packages/*"],"dependencies":{"leaf":"file:vendor/leaf-1.0.0.tgz"}}"#,
    );
    site.write("packages/one/package.json", r#"{"name":"one","version":"1.0.0"}"#);
    site.write("t.test.js", T_JS);
    prepare(
        &node.path,
        &[
            npm,
            "install",
            "--package-lock-only",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--offline",
        ],
        &site.tree,
        &[],
    );
    Some(site.plan(tools))
}

#[test]
fn fetches_into_a_copy_then_installs_without_a_network() {
    let site = site();
    let Some(plan) = project(&site) else {
        return;
    };
    fetch(&plan, &never()).unwrap();
    assert!(
        !site.tree.join("node_modules").exists(),
        "fetching leaves the tree empty"
    );
    install(&plan, &never()).unwrap();
    let observed = observe_environment(&plan).unwrap();
    let has = |name: &str| {
        observed
            .entries
            .contains_key(&RelPath::parse(name.as_bytes()).unwrap())
    };
    assert!(has("leaf/index.js") && has(".package-lock.json") && has("one"));
    assert!(!has("leaf/ran"), "no script of a package runs");
    let plans = [plan];
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
    assert_eq!(
        run.report_sha256,
        run.report.as_deref().map(semel_core::Sha256::of)
    );
}

#[test]
fn another_archive_than_the_locked_one_is_not_installed() {
    let site = site();
    let Some(plan) = project(&site) else {
        return;
    };
    let path = site.tree.join("package-lock.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let at = text.find("sha512-").unwrap() + 7;
    let wrong = format!("{}{}{}", &text[..at], "A".repeat(20), &text[at + 20..]);
    std::fs::write(&path, wrong).unwrap();
    let refusal = refused(fetch(&plan, &never()));
    assert_eq!(refusal.code, Code::InstallFailed);
    assert_eq!(refusal.reason.as_deref(), Some("artifact_digest"), "{refusal:#?}");
}

#[test]
fn a_local_package_behind_a_link_is_refused() {
    let site = site();
    let Some(plan) = project(&site) else {
        return;
    };
    let archive = site.tree.join("vendor/leaf-1.0.0.tgz");
    let elsewhere = site.stock.join("elsewhere.tgz");
    std::fs::rename(&archive, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &archive).unwrap();
    let refusal = refused(fetch(&plan, &never()));
    assert_eq!(refusal.code, Code::LockIncomplete, "{refusal:#?}");
}

#[test]
fn registry_npm_installs_published_packages() {
    let site = site();
    let Some(tools) = tools(Installer::Npm, &site.tree) else {
        return;
    };
    site.write(
        "package.json",
        r#"{"name":"app","version":"1.0.0","dependencies":{"is-odd":"3.0.1"}}"#,
    );
    // Without URLs, as some settings of npm write it: the integrity alone binds.
    site.write(
        "package-lock.json",
        r#"{"name":"app","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{
        "":{"name":"app","version":"1.0.0","dependencies":{"is-odd":"3.0.1"}},
        "node_modules/is-number":{"version":"6.0.0","integrity":"sha512-Wu1VHeILBK8KAWJUAiSZQX94GmOE45Rg6/538fKwiloUu21KncEkYGPqob2oSZ5mUT73vLGrHQjKw3KMPwfDzg=="},
        "node_modules/is-odd":{"version":"3.0.1","integrity":"sha512-CQpnWPrDwmP1+SMHXZhtLtJv90yiyVfluGsX5iNCVkrhQtU3TQHsUWPG9wkdk9Lgd5yNpAg9jQEo90CBaXgWMA==","dependencies":{"is-number":"^6.0.0"}}}}"#,
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
            .contains_key(&RelPath::parse(b"is-odd/index.js").unwrap())
    );
    let record = bind(&plan, &generation(), &[lockfile(&site, "package-lock.json")]).unwrap();
    assert_eq!(record.packages, ["is-number==6.0.0", "is-odd==3.0.1"]);
}

#[test]
fn a_local_package_in_a_linked_directory_is_refused() {
    let site = site();
    let Some(plan) = project(&site) else {
        return;
    };
    let elsewhere = site.stock.join("vendor");
    std::fs::rename(site.tree.join("vendor"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, site.tree.join("vendor")).unwrap();
    let refusal = refused(fetch(&plan, &never()));
    assert_eq!(refusal.code, Code::LockIncomplete, "{refusal:#?}");
}

/// npm puts the version that one workspace alone needs beside it.
#[test]
fn what_a_workspace_needs_of_its_own_is_bound_too() {
    let site = site();
    let Some(plan) = project(&site) else {
        return;
    };
    let Tools::Npm { node, npm } = &plan.tools else {
        unreachable!();
    };
    let (node, npm) = (node.path.clone(), npm.path.to_str().unwrap().to_owned());
    let source = site.stock.join("leaf");
    std::fs::write(
        source.join("package.json"),
        r#"{"name":"leaf","version":"2.0.0","main":"index.js","bin":{"leaf":"index.js"}}"#,
    )
    .unwrap();
    let to = site.tree.join("vendor");
    prepare(
        &node,
        &[&npm, "pack", "--pack-destination", to.to_str().unwrap()],
        &source,
        &[],
    );
    site.write(
        "packages/one/package.json",
        r#"{"name":"one","version":"1.0.0","dependencies":{"leaf":"file:../../vendor/leaf-2.0.0.tgz"}}"#,
    );
    let lock = [
        "install",
        "--package-lock-only",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--offline",
    ];
    prepare(&node, &[&[npm.as_str()], &lock[..]].concat(), &site.tree, &[]);
    let nested = site.tree.join("packages/one/node_modules");
    fetch(&plan, &never()).unwrap();
    install(&plan, &never()).unwrap();
    assert!(nested.join("leaf/index.js").exists() && site.tree.join("node_modules/leaf").exists());
    let (of, locks) = (generation(), [lockfile(&site, "package-lock.json")]);
    let record = bind(&plan, &of, &locks).unwrap();
    assert_eq!(record.packages, ["leaf==1.0.0", "leaf==2.0.0", "one==(linked)"]);
    verify_again(&plan, &record, &of).unwrap();
    let stamps = stamps_of(&plan, &record).unwrap();
    assert_eq!(stamps.len(), record.entries.len());

    // What comes or changes there later, or is nobody's, is seen by its place.
    let stray = nested.join("stray.js");
    std::fs::write(&stray, "1").unwrap();
    let refusal = refused(verify_again(&plan, &record, &of));
    assert!(
        refusal.names[0].contains("packages/one/node_modules/stray.js"),
        "{refusal:#?}"
    );
    let refusal = refused(bind(&plan, &of, &locks));
    assert_eq!(refusal.code, Code::RecordMismatch);
    assert_eq!(refusal.names, ["packages/one/node_modules/stray.js"]);
    std::fs::remove_file(&stray).unwrap();
    let file = nested.join("leaf/index.js");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "exports.limit = 3;\n").unwrap();
    assert_eq!(refused(bind(&plan, &of, &locks)).code, Code::RecordMismatch);
    std::fs::write(&file, text).unwrap();
    verify_again(&plan, &record, &of).unwrap();
    let now = stamps_of(&plan, &record).unwrap();
    assert!(stamps != now, "that it was put back is seen, too");
    std::fs::rename(&nested, site.stock.join("aside")).unwrap();
    assert_eq!(
        refused(verify_again(&plan, &record, &of)).code,
        Code::RecordMismatch
    );
    assert_eq!(refused(bind(&plan, &of, &locks)).code, Code::RecordMismatch);
}
