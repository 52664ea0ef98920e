//! What a command of the job installed: bound as far as its locks and its own layout go, and no further.

use super::super::commanded::{Filled, bind};
use super::super::kept::Tree;
use super::*;
use crate::installer::InstallCommand;

fn command() -> InstallCommand {
    InstallCommand::new(vec!["sh".to_owned(), "install it.sh".to_owned()]).unwrap()
}

fn filled(fake: &Fake, tree: Option<Tree>) -> Filled {
    let root = fake.0.root.to_string();
    let mut observed = fake.0.clone();
    // Of a tree that nobody but its own installer vouches for, other files are read.
    for (path, fact) in &observed.entries {
        let (Some(tree), Fact::File { .. }) = (tree, fact) else {
            continue;
        };
        if tree.wants_text(path).is_none() {
            observed.texts.remove(path);
        }
    }
    Filled {
        tree,
        observed,
        place: place(&root),
    }
}

fn venv_of(fake: &Fake) -> Result<Vec<Bound>, Refusal> {
    bind(
        &command(),
        &[filled(fake, Some(Tree::Venv))],
        &[lock("uv.lock", UV_LOCK)],
    )
}

fn node_filled(fake: &Fake) -> Filled {
    filled(fake, Some(Tree::NodeModules))
}

#[test]
fn an_environment_is_compared_with_its_lock_and_said_to_be_unbound() {
    let bounds = venv_of(&venv()).unwrap();
    let packages: Vec<&String> = bounds[0].packages.iter().collect();
    assert_eq!(packages, ["demo==0.1.0", "idna==3.20", "six==1.17.0"]);
    let weak = bounds[0].weak.join("\n");
    assert!(weak.contains("by the command `sh \"install it.sh\"`"), "{weak}");
    assert!(weak.contains("no artifact was compared"), "{weak}");
    assert!(weak.contains("demo was built from the tree"), "{weak}");
}

/// A new generation does not help against what comes again with each.
#[test]
fn what_leads_out_is_told_of_as_such_whatever_else_is_wrong() {
    let mut changed = venv();
    changed.remove("lib/python3.11/site-packages/six-1.17.0.dist-info/RECORD");
    assert_eq!(venv_of(&changed).unwrap_err().code, Code::RecordMismatch);
    changed.file("lib/python3.11/site-packages/stray.pth", b"/w/tree/src\n");
    let refusal = venv_of(&changed).unwrap_err();
    assert_eq!(refusal.code, Code::RecordOutsideRoot, "{refusal}");
    assert!(refusal.names.join(" ").contains("stray.pth"), "{refusal}");
}

#[test]
fn what_differs_from_the_lock_is_refused() {
    let refused = |change: &dyn Fn(&mut Fake)| {
        let mut changed = venv();
        change(&mut changed);
        let refusal = venv_of(&changed).unwrap_err();
        (refusal.code, refusal.names.join(" "))
    };
    let more = |venv: &mut Fake| install(venv, "evil", "1.0", &[("evil.py", "")]);
    let (code, names) = refused(&more);
    assert_eq!(code, Code::RecordMismatch);
    assert!(names.contains("evil==1.0"), "{names}");
    let fewer = |venv: &mut Fake| {
        let gone: Vec<RelPath> = venv.0.entries.keys().cloned().collect();
        let six = |path: &&RelPath| path.to_string().contains("/six");
        for path in gone.iter().filter(six) {
            venv.remove(&path.to_string());
        }
    };
    let (code, names) = refused(&fewer);
    assert_eq!(code, Code::RecordMismatch);
    assert!(names.contains("uv.lock") && names.contains("six"), "{names}");
    let (code, _) = refused(&|venv| venv.edit("bin/six", "run", "ruin"));
    assert_eq!(code, Code::RecordMismatch);
    let (code, _) = refused(&|venv| venv.link("bin/python", "/w/python3"));
    assert_eq!(code, Code::RecordOutsideRoot);
    let (code, _) = refused(&|venv| {
        let other = "{\"url\":\"file:///w/demo\",\"dir_info\":{}}";
        let info = format!("{SITE}/demo-0.1.0.dist-info");
        let text = venv.text(&format!("{info}/direct_url.json"));
        let record = venv.text(&format!("{info}/RECORD"));
        let name = "demo-0.1.0.dist-info/direct_url.json";
        let record = record.replace(&row(name, text.as_bytes()), &row(name, other.as_bytes()));
        venv.file(&format!("{info}/direct_url.json"), other.as_bytes());
        venv.file(&format!("{info}/RECORD"), record.as_bytes());
    });
    assert_eq!(code, Code::RecordOutsideRoot);
}

#[test]
fn what_makes_an_environment_may_leave_its_seeds() {
    let mut seeded = venv();
    install(&mut seeded, "pip", "26.0", &[("pip/__init__.py", "")]);
    let weak = venv_of(&seeded).unwrap()[0].weak.join("\n");
    assert!(weak.contains("pip==26.0 is in no lock"), "{weak}");
}

#[test]
fn packages_without_a_lock_of_their_ecosystem_are_refused() {
    let node = lock("package-lock.json", PACKAGE_LOCK);
    let refusal = bind(&command(), &[filled(&venv(), Some(Tree::Venv))], &[node]).unwrap_err();
    assert_eq!(refusal.code, Code::RecordMismatch);
    let refusal = bind(&command(), &[filled(&venv(), Some(Tree::Venv))], &[]).unwrap_err();
    assert_eq!(refusal.code, Code::RecordMismatch);
}

#[test]
fn node_modules_are_held_against_their_lock() {
    let locks = [lock("package-lock.json", PACKAGE_LOCK)];
    let bounds = bind(&command(), &[node_filled(&modules())], &locks).unwrap();
    assert_eq!(bounds[0].packages.len(), 4);
    let mut more = node_filled(&modules());
    let mut evil = modules();
    evil.file("evil/package.json", b"{\"name\":\"evil\",\"version\":\"1.0.0\"}");
    let (path, text) = (
        at("evil/package.json"),
        b"{\"name\":\"evil\",\"version\":\"1.0.0\"}",
    );
    more.observed.entries = evil.0.entries;
    more.observed.texts.insert(path, text.to_vec());
    let refusal = bind(&command(), &[more], &locks).unwrap_err();
    assert!(refusal.names.join(" ").contains("evil==1.0.0"), "{refusal}");
    // A lock whose packages are nowhere.
    let refusal = bind(&command(), &[other(&[("vendor/a", "1")])], &locks).unwrap_err();
    assert_eq!(refusal.code, Code::RecordMismatch);
    assert!(refusal.why.contains("not installed"), "{refusal}");
}

fn other(files: &[(&str, &str)]) -> Filled {
    let mut fake = Fake::new(Kind::Other, "tree");
    for (path, text) in files {
        fake.file(path, text.as_bytes());
    }
    Filled {
        tree: None,
        observed: fake.0,
        place: place("tree"),
    }
}

#[test]
fn what_is_of_no_known_layout_is_recorded_and_stays_inside() {
    let mut one = other(&[("vendor/a", "1"), ("vendor/b", "2")]);
    one.observed.entries.insert(
        at("vendor/in"),
        Fact::Symlink {
            target: b"../src".to_vec(),
        },
    );
    let bounds = bind(&command(), std::slice::from_ref(&one), &[]).unwrap();
    let weak = bounds[0].weak.join("\n");
    assert!(
        weak.contains("vendor/a and 2 more files are of no known layout"),
        "{weak}"
    );
    for target in ["/etc/passwd", "../../x", "/v/tre"] {
        let mut out = one.clone();
        out.observed.entries.insert(
            at("vendor/out"),
            Fact::Symlink {
                target: target.as_bytes().to_vec(),
            },
        );
        let refusal = bind(&command(), &[out], &[]).unwrap_err();
        assert_eq!(refusal.code, Code::RecordOutsideRoot, "{target}");
    }
    assert!(bind(&command(), &[], &[]).is_err());
}

#[test]
fn a_record_names_the_command_and_claims_no_artifact() {
    let one = other(&[("vendor/a", "1")]);
    let bounds = bind(&command(), std::slice::from_ref(&one), &[]).unwrap();
    let by = InstalledBy {
        command: command().words().to_vec(),
        name: By::Command,
        sha256: Sha256::of(b"sh"),
        version: "not asked".to_owned(),
    };
    let parts = [(&one.observed, &bounds[0])];
    let record = InstallRecord::make(&generation(1), by, &[], &Supply::default(), &parts).unwrap();
    let bytes = record.encode().unwrap();
    assert_eq!(InstallRecord::decode(&bytes).unwrap(), record);
    let text = String::from_utf8(bytes).unwrap();
    assert!(
        text.contains("\"command\":[\"sh\",\"install it.sh\"],\"name\":\"command\""),
        "{text}"
    );
    assert!(text.contains("no artifact"), "{text}");
    assert!(text.contains("\"tree/vendor/a\""), "{text}");
}

/// Binds the modules of the fixture after a change.
fn bound(change: &dyn Fn(&mut Fake)) -> Result<Vec<Bound>, Refusal> {
    let mut fake = modules();
    change(&mut fake);
    bind(
        &command(),
        &[node_filled(&fake)],
        &[lock("package-lock.json", PACKAGE_LOCK)],
    )
}

/// The package of a command that a workspace has may lie in the modules of the whole project.
#[test]
fn a_command_of_a_workspace_may_be_of_the_projects_modules() {
    let locks = [lock("package-lock.json", PACKAGE_LOCK)];
    let of_a = |target: &str| {
        let mut of_a = Fake::new(Kind::Node, "tree/packages/a/node_modules");
        of_a.dir(".bin");
        of_a.link(".bin/semver", target);
        node_filled(&of_a)
    };
    let whole = node_filled(&modules());
    let target = "../../../../node_modules/semver/bin/semver.js";
    bind(&command(), &[whole.clone(), of_a(target)], &locks).unwrap();
    for target in [
        "../../../../node_modules/semver/index.js",
        "../../../../node_modules/ms/index.js",
        "../../../../node_modules/gone.js",
        "../../evil.js",
    ] {
        let refusal = bind(&command(), &[whole.clone(), of_a(target)], &locks).unwrap_err();
        assert_eq!(refusal.code, Code::RecordMismatch, "{target}: {refusal}");
    }
}

/// A locked project of the tree is installed where a link leads to it.
#[test]
fn a_linked_project_counts_as_installed() {
    let text = PACKAGE_LOCK.replacen(
        "\"node_modules/is-number\": {",
        "\"packages/a\": {\"name\":\"a\",\"version\":\"1.0.0\"}, \"node_modules/a\": {\"resolved\":\"packages/a\",\"link\":true}, \"node_modules/is-number\": {",
        1,
    );
    let locks = [lock("package-lock.json", &text)];
    let with = |target: Option<&str>| {
        let mut fake = modules();
        // What npm says of itself is compared with what is there by another test.
        fake.remove(".package-lock.json");
        if let Some(target) = target {
            fake.link("a", target);
        }
        bind(&command(), &[node_filled(&fake)], &locks)
    };
    with(Some("../packages/a")).unwrap();
    for wrong in [None, Some("../packages"), Some("../packages/b")] {
        let refusal = with(wrong).unwrap_err();
        assert_eq!(refusal.code, Code::RecordMismatch, "{wrong:?}: {refusal}");
        assert!(refusal.names.contains(&"a".to_owned()), "{refusal:?}");
    }
}

/// Every command of `node_modules` leads to a file that a package there declares, whoever made the link.
#[test]
fn a_command_of_nobody_is_refused() {
    bound(&|_| {}).unwrap();
    for (path, target) in [
        (".bin/cargo", "../semver/bin/semver.js"),
        (".bin/other", "../semver/bin/semver.js"),
        (".bin/semver", "../semver/index.js"),
        (".bin/semver", "../ms/../semver/bin/semver.js"),
        (".bin/semver", "../semver/bin/gone.js"),
        (".bin/semver", "../../evil/semver"),
        (".bin/semver", "semver"),
        (".bin", "../evil"),
        ("is-odd/node_modules/.bin/x", "../../index.js"),
        ("is-odd/node_modules/.bin", "../../ms"),
    ] {
        let refusal = bound(&|fake| fake.link(path, target)).unwrap_err();
        assert_eq!(
            refusal.code,
            Code::RecordMismatch,
            "{path} -> {target}: {refusal}"
        );
        assert!(
            refusal.names.iter().any(|name| name == path),
            "{path} -> {target}: {refusal}"
        );
    }
    for lines in ["#!/bin/sh\necho test result: ok\n", ""] {
        for path in [".bin/cargo", ".bin/sh", ".bin/semver"] {
            assert!(
                bound(&|fake| fake.file(path, lines.as_bytes())).is_err(),
                "{path}"
            );
        }
    }
}

#[test]
fn a_command_is_no_tool_and_may_be_written_as_pnpm_does() {
    // What a package declares is no tool by which tests are run, but of the package that is one.
    for tool in ["sh", "node", "cargo", "python3"] {
        let declared = format!(
            "{{\"name\":\"semver\",\"version\":\"7.8.6\",\"bin\":{{\"semver\":\"bin/semver.js\",\"{tool}\":\"bin/semver.js\"}}}}"
        );
        let refusal = bound(&|fake| {
            fake.file("semver/package.json", declared.as_bytes());
            fake.link(&format!(".bin/{tool}"), "../semver/bin/semver.js");
        })
        .unwrap_err();
        assert!(refusal.why.contains("the tool of its name"), "{refusal}");
    }
    // As pnpm writes it, and through a link to a package, as pnpm keeps them.
    let lines = |file: &str| {
        format!(
            "#!/bin/sh\nif [ -x \"$basedir/node\" ]; then\n  exec \"$basedir/node\"  \"$basedir/{file}\" \"$@\"\nelse\n  exec node  \"$basedir/{file}\" \"$@\"\nfi\n"
        )
    };
    let written = |file: &str| bound(&|fake| fake.file(".bin/semver", lines(file).as_bytes()));
    written("../semver/bin/semver.js").unwrap();
    assert!(written("../semver/index.js").is_err());
    assert!(written("../ms/../semver/bin/semver.js").is_err());
    // It has Node look in installed modules, and nowhere else.
    let looking = |paths: &str| {
        let found = format!("#!/bin/sh\n  export NODE_PATH=\"{paths}\"\n");
        let script = lines("../semver/bin/semver.js").replacen("#!/bin/sh\n", &found, 1);
        bound(&|fake| fake.file(".bin/semver", script.as_bytes()))
    };
    looking("/v/tree/node_modules/.pnpm/node_modules:/v/tree/node_modules").unwrap();
    for outside in [
        "/v/tree/src",
        "/v/tree/node_modules:/v/tree/src",
        "/v/tree/node_modules/../src",
        "/etc",
    ] {
        let refusal = looking(outside).unwrap_err();
        assert!(
            refusal.why.contains("not as package managers"),
            "{outside}: {refusal}"
        );
    }
    bound(&|fake| {
        fake.link("linked", "semver");
        fake.link(".bin/semver", "../linked/bin/semver.js");
    })
    .unwrap();
}

#[test]
fn modules_without_a_lock_of_node_are_refused() {
    let mut bare = Fake::new(Kind::Node, "tree/node_modules");
    bare.dir(".bin");
    for locks in [vec![], vec![lock("uv.lock", UV_LOCK)]] {
        let refusal = bind(&command(), &[filled(&bare, Some(Tree::NodeModules))], &locks).unwrap_err();
        assert_eq!(refusal.code, Code::RecordMismatch);
        assert!(refusal.why.contains("no lock of Node"), "{refusal}");
    }
}
