//! `node_modules` of workspaces: what one of them needs of its own lies beside its `package.json`.

use super::*;
use crate::artifact::{Held, Locked, Packing, Supply};

const LOCK: &str = r#"{"name":"app","lockfileVersion":3,"packages":{
    "":{"name":"app","workspaces":["packages/*"],"dependencies":{"ms":"^2.0.0"}},
    "packages/a":{"name":"a","version":"1.0.0","bin":{"a":"cli.js"},"dependencies":{"ms":"1.0.0"}},
    "node_modules/a":{"resolved":"packages/a","link":true},
    "node_modules/ms":{"version":"2.1.3","resolved":"https://registry.example/ms/-/ms-2.1.3.tgz","integrity":"sha512-AAA"},
    "packages/a/node_modules/ms":{"version":"1.0.0","resolved":"https://registry.example/ms/-/ms-1.0.0.tgz","integrity":"sha512-BBB","bin":{"ms":"ms.js"}}
}}"#;

fn text() -> String {
    let coded = |byte| BASE64_STANDARD.encode([byte; 64]);
    LOCK.replace("AAA", &coded(1)).replace("BBB", &coded(2))
}

/// The project's own modules, and those of its workspace.
fn installed() -> (Fake, Fake) {
    let mut main = Fake::new(Kind::Node, "tree/node_modules");
    let start = text().find("    \"node_modules/a\"").unwrap();
    let hidden = format!("{{\"lockfileVersion\":3,\"packages\":{{{}", &text()[start..]);
    main.file(".package-lock.json", hidden.as_bytes());
    main.link("a", "../packages/a");
    main.dir(".bin");
    main.link(".bin/a", "../a/cli.js");
    let mut of_a = Fake::new(Kind::Node, "tree/packages/a/node_modules");
    for (node, version) in [(&mut main, "2.1.3"), (&mut of_a, "1.0.0")] {
        node.file(
            "ms/package.json",
            format!("{{\"name\":\"ms\",\"version\":\"{version}\"}}").as_bytes(),
        );
        node.file("ms/ms.js", version.as_bytes());
    }
    of_a.dir(".bin");
    of_a.link(".bin/ms", "../ms/ms.js");
    (main, of_a)
}

fn supply(lock: &Lockfile, (main, of_a): &(Fake, Fake)) -> Supply {
    let mut supply = Supply::default();
    for package in lock
        .packages
        .iter()
        .filter(|package| !package.artifacts.is_empty())
    {
        let nested = package.place.as_deref() != Some("node_modules/ms");
        let node = if nested { of_a } else { main };
        let mut held = Held {
            locked: Locked::of(&package.artifacts[0]),
            sha256: Sha256::of(package.place.as_deref().unwrap().as_bytes()),
            file: "ms.tgz".to_owned(),
            packing: Packing::Npm,
            members: BTreeMap::new(),
            texts: BTreeMap::new(),
        };
        for name in ["package.json", "ms.js"] {
            let path = at(&format!("ms/{name}"));
            held.members.insert(at(name), node.0.entries[&path].clone());
            if let Some(text) = node.0.texts.get(&path) {
                held.texts.insert(at(name), text.clone());
            }
        }
        supply.add(held);
    }
    supply
}

fn bind(change: &dyn Fn(&mut (Fake, Fake))) -> Result<Bound, Refusal> {
    let lock = lock("package-lock.json", &text());
    let supply = supply(&lock, &installed());
    let mut seen = installed();
    change(&mut seen);
    let workspaces = lock.npm_workspaces();
    assert_eq!(workspaces, [("packages/a", at("packages/a"))]);
    let places = [place("tree/node_modules"), place("tree/packages/a/node_modules")];
    let all = [
        of_project(&seen.0, &places[0]),
        node::Modules {
            home: workspaces[0].0,
            ..of_project(&seen.1, &places[1])
        },
    ];
    node::bind(&all, &lock, &Selection::default(), &supply)
}

#[test]
fn what_a_workspace_needs_of_its_own_is_bound() {
    let bound = bind(&|_| {}).unwrap();
    let packages: Vec<&String> = bound.packages.iter().collect();
    assert_eq!(packages, ["a==(linked)", "ms==1.0.0", "ms==2.1.3"]);
}

#[test]
fn what_differs_there_is_refused_by_its_place() {
    #[rustfmt::skip]
    let tampered: &[Change] = &[
        ("ms/ms.js", Code::RecordMismatch, |n| n.file("ms/ms.js", b"evil")),
        ("packages/a/node_modules/evil", Code::RecordMismatch, |n| n.file("evil/index.js", b"")),
        ("packages/a/node_modules/.package-lock.json", Code::RecordMismatch, |n| n.file(".package-lock.json", b"{}")),
        ("packages/a/node_modules/ms", Code::RecordMismatch, |n| n.edit("ms/package.json", "1.0.0", "2.1.3")),
        ("packages/a/node_modules/ms", Code::RecordMismatch, |n| n.0.entries.clear()),
        ("ms", Code::RecordOutsideRoot, |n| n.link("ms", "/w/ms")),
        ("packages/a/node_modules/.bin/node", Code::RecordMismatch, |n| n.link(".bin/node", "../ms/ms.js")),
        ("packages/a/node_modules/.bin/ms", Code::RecordMismatch, |n| n.link(".bin/ms", "../../../../node_modules/ms/ms.js")),
        (".bin/ms", Code::RecordOutsideRoot, |n| n.link(".bin/ms", "/w/ms.js")),
    ];
    for (named, code, change) in tampered {
        let refusal = bind(&|seen| change(&mut seen.1)).unwrap_err();
        assert_eq!(refusal.code, *code, "{named}: {refusal}");
        assert!(
            refusal.names.iter().any(|name| name.contains(named)),
            "{named}: {refusal:?}"
        );
    }
    let refusal = bind(&|(main, _)| main.link("a", "../packages")).unwrap_err();
    assert_eq!(refusal.code, Code::RecordMismatch, "{refusal}");
    // A lock of which nobody knows the project.
    let refusal = bind(&|(main, _)| {
        main.edit(
            ".package-lock.json",
            "\"packages/a/node_modules/ms\"",
            "\"packages/b/node_modules/ms\"",
        );
    });
    assert_eq!(refusal.unwrap_err().code, Code::RecordMismatch);
}
