//! `node_modules` that are not what the lock says.

use super::lab::{Liar, certified};
use super::show;
use crate::cases::lab::{Lab, on_path, with_tarball};
use crate::harness::skipped;
use serde_json::json;

const TEST: &str = "node run.js {report}";

/// What is done to an installed `node_modules`, in JavaScript.
const DAMAGE: [(&str, &str); 10] = [
    (
        "37",
        "fs.writeFileSync('node_modules/dep/index.js', 'exports.LIMIT = 9\\n')",
    ),
    ("37b", "fs.rmSync('node_modules/dep/index.js')"),
    ("37c", "fs.writeFileSync('node_modules/dep/stray.js', '')"),
    (
        "37d",
        "const p = 'node_modules/dep/package.json'; fs.writeFileSync(p, fs.readFileSync(p, 'utf8').replace('1.0.0', '1.0.1'))",
    ),
    (
        "38",
        "fs.mkdirSync('node_modules/evil'); fs.writeFileSync('node_modules/evil/package.json', '{\"name\":\"evil\",\"version\":\"1.0.0\"}')",
    ),
    (
        "38b",
        "const h = 'node_modules/.package-lock.json'; const l = JSON.parse(fs.readFileSync(h)); l.packages['node_modules/evil'] = { version: '1.0.0' };\
         fs.writeFileSync(h, JSON.stringify(l)); fs.mkdirSync('node_modules/evil'); fs.writeFileSync('node_modules/evil/package.json', '{\"name\":\"evil\",\"version\":\"1.0.0\"}')",
    ),
    (
        "39",
        "fs.rmSync('node_modules/dep', { recursive: true }); console.log('dep is gone')",
    ),
    (
        "40",
        "fs.mkdirSync('node_modules/.bin', { recursive: true }); fs.writeFileSync('node_modules/.bin/node', '#!/bin/sh\\nexit 0\\n', { mode: 0o755 })",
    ),
    (
        "40b",
        "fs.mkdirSync('node_modules/.bin', { recursive: true }); fs.symlinkSync('/bin/true', 'node_modules/.bin/node')",
    ),
    (
        "24n",
        "fs.rmSync('node_modules/dep', { recursive: true }); fs.symlinkSync('/srv/older/node_modules/dep', 'node_modules/dep')",
    ),
];

/// A project with one package from a tarball in its tree.
pub(crate) fn project() -> Option<Lab> {
    let about = r#"{"name":"dep","version":"1.0.0","main":"index.js"}"#;
    let lab = with_tarball(about, "index.js", "exports.LIMIT = 1\n")?;
    lab.write(".gitignore", "node_modules\n");
    lab.write(
        "run.js",
        "if (require('dep').LIMIT > 1) process.exit(1)\n\
         require('fs').writeFileSync(process.argv[2], \"<testsuite><testcase name='a'/></testsuite>\")\n",
    );
    Some(lab)
}

#[test]
fn node_modules_that_are_not_the_locks_are_refused() {
    let Some(lab) = project() else { return };
    let liar = Liar::new(lab);
    liar.npm("");
    certified(&liar.certify("npm", TEST));
    for (key, damage) in DAMAGE {
        liar.npm(damage);
        show(key, &liar.seen("npm", TEST));
    }
    liar.honest();
    // What came with the tree, or was made of the lock.
    let whole = liar.lab.read("package-lock.json");
    let about = liar.lab.read("package.json");
    let start = whole.find("\"integrity\": \"sha512-").unwrap();
    let end = start + whole[start..].find('\n').unwrap();
    let altered = format!("{}A{}", &whole[..start + 21], &whole[start + 22..]);
    assert_ne!(altered, whole);
    for (key, lock) in [
        (
            "39b",
            format!(
                "{}{}",
                whole[..start].trim_end().trim_end_matches(','),
                &whole[end..]
            ),
        ),
        ("39c", altered),
        ("39d", String::new()),
        ("39e", whole[..whole.len() / 2].to_owned()),
        ("39f", whole.replace("1.0.0", "2.0.0")),
    ] {
        liar.lab.write("package-lock.json", &lock);
        show(key, &liar.seen("npm", TEST));
    }
    liar.lab.write("package-lock.json", &whole);
    liar.lab.write("package.json", &about.replace("dep-1", "dep-2"));
    show("39g", &liar.seen("npm", TEST));
    assert_eq!(liar.lab.site.passes(), 1, "the honest one alone");
}

/// A project that asks for nothing has no `node_modules`, and nothing is missing.
#[test]
fn a_project_without_dependencies_is_certified() {
    if on_path("npm").is_none() {
        return skipped("npm is not on this machine");
    }
    let liar = Liar::new(Lab::new(&json!([])));
    let lab = &liar.lab;
    lab.write("package.json", r#"{"name":"app","version":"1.0.0"}"#);
    lab.write(
        "package-lock.json",
        r#"{"name":"app","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{"":{"name":"app","version":"1.0.0"}}}"#,
    );
    lab.write(
        "run.js",
        "require('fs').writeFileSync(process.argv[2], \"<testsuite><testcase name='a'/></testsuite>\")\n",
    );
    certified(&liar.certify("npm", TEST));
    // Who puts something there all the same is refused.
    liar.npm("fs.mkdirSync('node_modules/evil', { recursive: true }); fs.writeFileSync('node_modules/evil/index.js', '')");
    show("38c", &liar.seen("npm", TEST));
}
