mod commands;
mod crates;
mod linked;
mod tarballs;
mod wheels;
mod workspaces;

use super::*;
use crate::artifact::Supply;
use crate::ids::Seed;
use crate::installer::ProjectInstall;
use crate::lockset::fixtures::{CARGO_LOCK, PACKAGE_LOCK, UV_LOCK};
use crate::lockset::{Selection, parse};
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use proptest::prelude::*;

fn at(path: &str) -> RelPath {
    RelPath::parse(path.as_bytes()).unwrap()
}

/// A root in memory, with the operations that a test needs.
#[derive(Clone)]
struct Fake(Observed);

impl Fake {
    fn new(kind: Kind, root: &str) -> Self {
        Fake(Observed {
            root: at(root),
            kind,
            entries: BTreeMap::new(),
            texts: BTreeMap::new(),
        })
    }

    fn dir(&mut self, path: &str) {
        let mut whole = String::new();
        for part in path.split('/') {
            whole = if whole.is_empty() {
                part.to_owned()
            } else {
                format!("{whole}/{part}")
            };
            self.0
                .entries
                .entry(at(&whole))
                .or_insert(Fact::Directory { mode: 0o755 });
        }
    }

    fn file(&mut self, path: &str, bytes: &[u8]) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.dir(parent);
        }
        let path = at(path);
        match wants_text(self.0.kind, &path) {
            Some(most) => {
                let head = &bytes[..bytes.len().min(usize::try_from(most).unwrap())];
                self.0.texts.insert(path.clone(), head.to_vec());
            }
            None => drop(self.0.texts.remove(&path)),
        }
        let fact = Fact::File {
            mode: 0o644,
            size: bytes.len() as u64,
            sha256: Sha256::of(bytes),
        };
        self.0.entries.insert(path, fact);
    }

    fn link(&mut self, path: &str, target: &str) {
        self.0.texts.remove(&at(path));
        self.0.entries.insert(
            at(path),
            Fact::Symlink {
                target: target.as_bytes().to_vec(),
            },
        );
    }

    fn remove(&mut self, path: &str) {
        assert!(self.0.entries.remove(&at(path)).is_some(), "{path}");
        self.0.texts.remove(&at(path));
    }

    fn text(&self, path: &str) -> String {
        String::from_utf8(self.0.texts[&at(path)].clone()).unwrap()
    }

    fn edit(&mut self, path: &str, from: &str, to: &str) {
        let text = self.text(path);
        assert!(text.contains(from), "{from} in {text}");
        self.file(path, text.replacen(from, to, 1).as_bytes());
    }
}

const SITE: &str = "lib/python3.11/site-packages";

fn row(path: &str, bytes: &[u8]) -> String {
    let coded = BASE64_URL_SAFE_NO_PAD.encode(Sha256::of(bytes).as_bytes());
    format!("{path},sha256={coded},{}\n", bytes.len())
}

/// Installs a distribution the way uv does.
fn install(venv: &mut Fake, name: &str, version: &str, files: &[(&str, &str)]) {
    let info = format!("{name}-{version}.dist-info");
    let metadata = format!("Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\nText.\n");
    let mut record = String::new();
    for (path, text) in files.iter().map(|(p, t)| ((*p).to_owned(), *t)).chain([
        (format!("{info}/METADATA"), metadata.as_str()),
        (format!("{info}/INSTALLER"), "uv"),
    ]) {
        venv.file(&at(&format!("{SITE}/{path}")).to_wire(), text.as_bytes());
        record.push_str(&row(&path, text.as_bytes()));
    }
    record.push_str(&format!("{info}/RECORD,,\n"));
    venv.file(&format!("{SITE}/{info}/RECORD"), record.as_bytes());
}

/// A small environment as uv makes it for the fixture's project, in /v/tree.
fn venv() -> Fake {
    let mut venv = Fake::new(Kind::Python, "tree/.venv");
    venv.file(
        "pyvenv.cfg",
        b"home = /opt/py/bin\nversion_info = 3.11.7\ninclude-system-site-packages = false\n",
    );
    for name in [
        ".gitignore",
        ".lock",
        "CACHEDIR.TAG",
        "bin/activate",
        "bin/activate_this.py",
    ] {
        venv.file(name, b"*");
    }
    venv.link("bin/python", "/opt/py/bin/python3");
    venv.link("bin/python3", "python");
    venv.link("bin/python3.11", "python");
    venv.link("lib64", "lib");
    install(
        &mut venv,
        "six",
        "1.17.0",
        &[
            ("six.py", "import sys\n"),
            ("../../../bin/six", "#!/v/tree/.venv/bin/python\nrun\n"),
        ],
    );
    install(
        &mut venv,
        "idna",
        "3.20",
        &[("idna/__init__.py", ""), ("idna/core.py", "x = 1\n")],
    );
    install(
        &mut venv,
        "demo",
        "0.1.0",
        &[
            ("_editable_impl_demo.pth", "/v/tree/src"),
            (
                "demo-0.1.0.dist-info/direct_url.json",
                "{\"url\":\"file:///v/tree\",\"dir_info\":{\"editable\":true}}",
            ),
        ],
    );
    venv
}

fn place(root: &str) -> Place {
    Place {
        tree: b"/v/tree".to_vec(),
        root: format!("/v/{root}").into_bytes(),
        interpreters: vec![b"/opt/py/bin/python3".to_vec()],
    }
}

fn lock(name: &str, text: &str) -> Lockfile {
    parse(&at(name), text.as_bytes()).unwrap()
}

fn built() -> Selection {
    Selection {
        project: ProjectInstall::UnboundBackend,
        ..Selection::default()
    }
}

fn bind_venv(venv: &Fake) -> Result<Bound, Refusal> {
    bind_from(venv, &wheels::supply())
}

fn bind_from(venv: &Fake, supply: &Supply) -> Result<Bound, Refusal> {
    let lock = lock("uv.lock", UV_LOCK);
    python::bind(&venv.0, &[&lock], &built(), &place("tree/.venv"), supply)
}

#[test]
fn an_untouched_environment_is_bound() {
    let bound = bind_venv(&venv()).unwrap();
    assert_eq!(
        bound.packages.into_iter().collect::<Vec<_>>(),
        ["demo==0.1.0", "idna==3.20", "six==1.17.0"]
    );
    assert_eq!(bound.weak.len(), 1, "{:?}", bound.weak);
}

type Change = (&'static str, Code, fn(&mut Fake));
type Plain = (&'static str, fn(&mut Fake));

/// What can be wrong with an environment, each alone.
#[rustfmt::skip]
const TAMPERED: &[Change] = &[
    ("edited file", Code::RecordMismatch, |v| v.file("lib/python3.11/site-packages/six.py", b"import os\n")),
    ("deleted file", Code::RecordMismatch, |v| v.remove("lib/python3.11/site-packages/idna/core.py")),
    ("stray module", Code::RecordMismatch, |v| v.file("lib/python3.11/site-packages/stray.py", b"")),
    ("stray file in a package", Code::RecordMismatch, |v| v.file("lib/python3.11/site-packages/idna/x.py", b"")),
    ("stray pth", Code::RecordMismatch, |v| v.file("lib/python3.11/site-packages/a.pth", b"import evil\n")),
    ("sitecustomize", Code::RecordMismatch, |v| v.file("lib/python3.11/site-packages/sitecustomize.py", b"")),
    ("stray pyc", Code::RecordMismatch, |v| v.file("lib/python3.11/site-packages/__pycache__/six.cpython-311.pyc", b"x")),
    ("sourceless pyc", Code::RecordMismatch, |v| v.file("lib/python3.11/site-packages/evil.pyc", b"x")),
    ("fake dist-info", Code::RecordMismatch, |v| install(v, "evil", "1.0", &[])),
    ("a second dist-info", Code::RecordMismatch, |v| install(v, "Six", "1.16.0", &[])),
    ("dist-info removed", Code::RecordMismatch, |v| {
        for name in ["METADATA", "INSTALLER", "RECORD"] { v.remove(&format!("lib/python3.11/site-packages/idna-3.20.dist-info/{name}")); }
        v.remove("lib/python3.11/site-packages/idna-3.20.dist-info");
    }),
    ("RECORD removed", Code::RecordMismatch, |v| v.remove("lib/python3.11/site-packages/six-1.17.0.dist-info/RECORD")),
    ("RECORD cut", Code::RecordMismatch, |v| v.edit("lib/python3.11/site-packages/six-1.17.0.dist-info/RECORD", "six-1.17.0.dist-info/RECORD,,\n", "")),
    ("row without a hash", Code::RecordMismatch, |v| {
        let record = "lib/python3.11/site-packages/six-1.17.0.dist-info/RECORD";
        let first = v.text(record).lines().next().unwrap().to_owned();
        v.edit(record, &first, "six.py,,");
    }),
    ("row that leads out", Code::RecordOutsideRoot, |v| v.edit("lib/python3.11/site-packages/six-1.17.0.dist-info/RECORD", "six.py,", "../../../../../x,")),
    ("absolute row", Code::RecordOutsideRoot, |v| v.edit("lib/python3.11/site-packages/six-1.17.0.dist-info/RECORD", "six.py,", "/etc/passwd,")),
    ("other version", Code::RecordMismatch, |v| {
        for name in ["METADATA", "INSTALLER", "RECORD"] { v.remove(&format!("lib/python3.11/site-packages/idna-3.20.dist-info/{name}")); }
        v.remove("lib/python3.11/site-packages/idna-3.20.dist-info");
        install(v, "idna", "3.19", &[("idna/__init__.py", ""), ("idna/core.py", "x = 1\n")]);
    }),
    ("package missing", Code::RecordMismatch, |v| {
        for path in v.0.entries.keys().cloned().collect::<Vec<_>>() {
            if path.to_string().contains("six") { v.remove(&path.to_wire()); }
        }
    }),
    ("editable of another generation", Code::RecordOutsideRoot, |v| {
        v.file("lib/python3.11/site-packages/_editable_impl_demo.pth", b"/w/tree/src");
        install(v, "demo", "0.1.0", &[("_editable_impl_demo.pth", "/w/tree/src"), ("demo-0.1.0.dist-info/direct_url.json", "{\"url\":\"file:///v/tree\",\"dir_info\":{}}")]);
    }),
    ("pth that leads out beside no RECORD", Code::RecordOutsideRoot, |v| {
        v.remove("lib/python3.11/site-packages/six-1.17.0.dist-info/RECORD");
        v.file("lib/python3.11/site-packages/stray.pth", b"/w/tree/src\n");
    }),
    ("pth by dots", Code::RecordOutsideRoot, |v| install(v, "demo", "0.1.0", &[("_editable_impl_demo.pth", "../../../../../../w"), ("demo-0.1.0.dist-info/direct_url.json", "{\"url\":\"file:///v/tree\",\"dir_info\":{}}")])),
    ("finder into another generation", Code::RecordOutsideRoot, |v| install(v, "demo", "0.1.0", &[("_editable_impl_demo.pth", "/v/tree/src"), ("__editable___demo_finder.py", "MAPPING = {'demo': '/w/tree/demo'}\n"), ("demo-0.1.0.dist-info/direct_url.json", "{\"url\":\"file:///v/tree\",\"dir_info\":{}}")])),
    ("direct url outside", Code::RecordOutsideRoot, |v| install(v, "demo", "0.1.0", &[("_editable_impl_demo.pth", "/v/tree/src"), ("demo-0.1.0.dist-info/direct_url.json", "{\"url\":\"file:///v/tree/../other\",\"dir_info\":{}}")])),
    ("registry package from a directory", Code::RecordMismatch, |v| install(v, "idna", "3.20", &[("idna/__init__.py", ""), ("idna/core.py", "x = 1\n"), ("idna-3.20.dist-info/direct_url.json", "{\"url\":\"file:///v/tree/idna\",\"dir_info\":{}}")])),
    ("project from elsewhere", Code::RecordMismatch, |v| {
        v.remove("lib/python3.11/site-packages/demo-0.1.0.dist-info/direct_url.json");
        install(v, "demo", "0.1.0", &[("_editable_impl_demo.pth", "/v/tree/src")]);
    }),
    ("script of another environment", Code::RecordOutsideRoot, |v| install(v, "six", "1.17.0", &[("six.py", "import sys\n"), ("../../../bin/six", "#!/w/tree/.venv/bin/python\nrun\n")])),
    ("long script of another environment", Code::RecordOutsideRoot, |v| install(v, "six", "1.17.0", &[("six.py", "import sys\n"), ("../../../bin/six", "#!/bin/sh\n'''exec' \"/w/tree/.venv/bin/python\" \"$0\" \"$@\"\n")])),
    ("long script of another environment, quoted as uv does", Code::RecordOutsideRoot, |v| install(v, "six", "1.17.0", &[("six.py", "import sys\n"), ("../../../bin/six", "#!/bin/sh\n'''exec' '/w/tree/.venv/bin/python' \"$0\" \"$@\"\n' '''\n")])),
    ("long script with a command of its own", Code::RecordOutsideRoot, |v| install(v, "six", "1.17.0", &[("six.py", "import sys\n"), ("../../../bin/six", "#!/bin/sh\n'''exec' '/v/tree/.venv/bin/python' evil.py \"$0\" \"$@\"\n' '''\n")])),
    ("stray script", Code::RecordMismatch, |v| v.file("bin/pytest", b"#!/v/tree/.venv/bin/python\n")),
    ("interpreter swapped", Code::RecordOutsideRoot, |v| v.link("bin/python", "/tmp/python3")),
    ("interpreter by another name", Code::RecordOutsideRoot, |v| v.link("bin/python", "/opt/py/bin/wrapper")),
    ("interpreter copied", Code::RecordMismatch, |v| v.file("bin/python", b"\x7fELF")),
    ("a link out", Code::RecordOutsideRoot, |v| v.link("lib/python3.11/site-packages/pkg", "/w/pkg")),
    ("a link out by dots", Code::RecordOutsideRoot, |v| v.link("lib/python3.11/site-packages/pkg", "../../../../../w")),
    ("a link inside", Code::RecordMismatch, |v| v.link("lib/python3.11/site-packages/pkg", "idna")),
    ("lib64 elsewhere", Code::RecordOutsideRoot, |v| v.link("lib64", "/usr/lib64")),
    ("system packages let in", Code::RecordMismatch, |v| v.edit("pyvenv.cfg", "= false", "= true")),
    ("system packages said twice", Code::RecordMismatch, |v| v.edit("pyvenv.cfg", "include-", "Include-system-site-packages = true\ninclude-")),
    ("another home", Code::RecordOutsideRoot, |v| v.edit("pyvenv.cfg", "/opt/py/bin", "/opt/other/bin")),
    ("another python", Code::RecordMismatch, |v| v.edit("pyvenv.cfg", "3.11.7", "3.12.1")),
    ("no pyvenv.cfg", Code::RecordMismatch, |v| v.remove("pyvenv.cfg")),
    ("a second site", Code::RecordMismatch, |v| v.dir("lib/python3.12/site-packages")),
    ("an empty directory", Code::RecordMismatch, |v| v.dir("lib/python3.11/site-packages/evil")),
    ("a device", Code::RecordMismatch, |v| drop(v.0.entries.insert(at("lib/x"), Fact::Other))),
];

/// Where the interpreter's path is too long for a first line, installers write it into a line for the shell.
#[test]
fn a_long_script_of_this_environment_is_taken_however_it_is_quoted() {
    for quoted in [
        "'/v/tree/.venv/bin/python'",
        "\"/v/tree/.venv/bin/python3\"",
        "/v/tree/.venv/bin/python3.11",
    ] {
        let mut changed = venv();
        let script = format!("#!/bin/sh\n'''exec' {quoted} \"$0\" \"$@\"\n' '''\nrun\n");
        install(
            &mut changed,
            "six",
            "1.17.0",
            &[("six.py", "import sys\n"), ("../../../bin/six", &script)],
        );
        bind_venv(&changed).unwrap();
    }
}

#[test]
fn every_tampered_environment_is_refused_by_its_code() {
    for (name, code, change) in TAMPERED {
        let mut changed = venv();
        change(&mut changed);
        let refusal = bind_venv(&changed)
            .err()
            .unwrap_or_else(|| panic!("{name} passed"));
        assert_eq!(refusal.code, *code, "{name}: {refusal}");
        assert!(!refusal.names.is_empty(), "{name}: {refusal}");
    }
}

fn modules() -> Fake {
    let mut node = Fake::new(Kind::Node, "tree/node_modules");
    let start = PACKAGE_LOCK.find("    \"node_modules/is-number\"").unwrap();
    let hidden = format!(
        "{{\"lockfileVersion\":3,\"packages\":{{{}",
        &PACKAGE_LOCK[start..]
    );
    node.file(".package-lock.json", hidden.as_bytes());
    for (name, version) in [
        ("is-number", "6.0.0"),
        ("is-odd", "3.0.1"),
        ("ms", "2.1.3"),
        ("semver", "7.8.6"),
    ] {
        let bin = match name {
            "semver" => ",\"bin\":{\"semver\":\"bin/semver.js\"}",
            _ => "",
        };
        node.file(
            &format!("{name}/package.json"),
            format!("{{\"name\":\"{name}\",\"version\":\"{version}\"{bin}}}").as_bytes(),
        );
        node.file(&format!("{name}/index.js"), b"x");
    }
    node.file("semver/bin/semver.js", b"#!/usr/bin/env node\n");
    node.file("semver/test/node_modules/fixture/a.js", b"content of the package");
    node.dir(".bin");
    node.link(".bin/semver", "../semver/bin/semver.js");
    node
}

fn bind_node(node: &Fake) -> Result<Bound, Refusal> {
    bind_node_to(node, PACKAGE_LOCK)
}

fn bind_node_to(node: &Fake, text: &str) -> Result<Bound, Refusal> {
    let selection = Selection {
        groups: BTreeSet::from(["dev".to_owned()]),
        ..Selection::default()
    };
    let place = place("tree/node_modules");
    node::bind(
        &[of_project(node, &place)],
        &lock("package-lock.json", text),
        &selection,
        &tarballs::supply(&modules()),
    )
}

fn of_project<'a>(node: &'a Fake, place: &'a Place) -> node::Modules<'a> {
    node::Modules {
        home: "",
        observed: &node.0,
        place,
    }
}

#[test]
fn node_modules_are_bound_to_their_lock() {
    let bound = bind_node(&modules()).unwrap();
    assert_eq!(bound.packages.len(), 4);
    assert!(bound.weak.is_empty(), "{:?}", bound.weak);
    let scripted = PACKAGE_LOCK.replace(
        "\"node_modules/ms\": {",
        "\"node_modules/ms\": {\n      \"hasInstallScript\": true,",
    );
    let weak = bind_node_to(&modules(), &scripted).unwrap().weak;
    assert!(weak[0].ends_with("not run: node_modules/ms"), "{weak:?}");
    #[rustfmt::skip]
    let tampered: &[Change] = &[
        ("forged version", Code::RecordMismatch, |n| n.edit("ms/package.json", "2.1.3", "2.1.2")),
        ("forged name", Code::RecordMismatch, |n| n.edit("ms/package.json", "\"ms\"", "\"mz\"")),
        ("extraneous package", Code::RecordMismatch, |n| n.file("evil/index.js", b"")),
        ("extraneous scope", Code::RecordMismatch, |n| n.file("@a/evil/index.js", b"")),
        ("nested package", Code::RecordMismatch, |n| n.file("ms/node_modules/evil/index.js", b"")),
        ("a cache", Code::RecordMismatch, |n| n.file(".cache/x", b"")),
        ("package gone", Code::RecordMismatch, |n| { for p in ["ms/package.json", "ms/index.js", "ms"] { n.remove(p); } }),
        ("no record of npm", Code::RecordMismatch, |n| n.remove(".package-lock.json")),
        ("integrity changed", Code::RecordMismatch, |n| n.edit(".package-lock.json", "sha512-6Flz", "sha512-7Flz")),
        ("package not in the lock", Code::RecordMismatch, |n| n.edit(".package-lock.json", "node_modules/ms", "node_modules/evil")),
        ("package is a link out", Code::RecordOutsideRoot, |n| n.link("ms", "/w/ms")),
        ("package is a link in", Code::RecordMismatch, |n| n.link("ms", "../src")),
        ("a command that is a file", Code::RecordMismatch, |n| n.file(".bin/node", b"#!/bin/sh\nexit 0\n")),
        ("a command nobody declares", Code::RecordMismatch, |n| n.link(".bin/node", "../semver/bin/semver.js")),
        ("a command that leads out", Code::RecordOutsideRoot, |n| n.link(".bin/semver", "/w/semver.js")),
        ("a command that leads elsewhere", Code::RecordMismatch, |n| n.link(".bin/semver", "../ms/index.js")),
        ("nothing installed", Code::RecordMismatch, |n| n.0.entries.clear()),
    ];
    for (name, code, change) in tampered {
        let mut changed = modules();
        change(&mut changed);
        let refusal = bind_node(&changed)
            .err()
            .unwrap_or_else(|| panic!("{name} passed"));
        assert_eq!(refusal.code, *code, "{name}: {refusal}");
    }
}

fn generation(byte: u8) -> Generation {
    Generation::mint(Seed {
        unix_ms: 1_795_996_351_007,
        random: [byte; 10],
    })
}

fn record() -> (InstallRecord, Vec<Fake>) {
    let (venv, node) = (venv(), modules());
    let locks = [lock("uv.lock", UV_LOCK), lock("package-lock.json", PACKAGE_LOCK)];
    let installer = InstalledBy {
        command: Vec::new(),
        name: By::Installer(Installer::Uv),
        sha256: Sha256::of(b"uv"),
        version: "0.13.9".to_owned(),
    };
    let (a, b) = (bind_venv(&venv).unwrap(), bind_node(&node).unwrap());
    let refs: Vec<&Lockfile> = locks.iter().collect();
    let record = InstallRecord::make(
        &generation(1),
        installer,
        &refs,
        &wheels::supply(),
        &[(&venv.0, &a), (&node.0, &b)],
    )
    .unwrap();
    (record, vec![venv, node])
}

fn same(record: &InstallRecord, roots: &[Fake]) -> Result<(), Refusal> {
    let seen: Vec<&Observed> = roots.iter().map(|r| &r.0).collect();
    compare(record, &generation(1), &record.locks, &seen)
}

#[test]
fn a_record_has_one_form_and_one_digest() {
    let (record, _) = record();
    let bytes = record.encode().unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.starts_with("{\"artifacts\":{\""), "{text}");
    assert!(
        text.contains("\"tree/.venv/bin/python\":{\"symlink\":{\"target\":\"/opt/py/bin/python3\"}}"),
        "{text}"
    );
    assert!(
        text.contains("\"packages\":[\"demo==0.1.0\",\"idna==3.20\",\"is-number==6.0.0\""),
        "{text}"
    );
    assert!(
        text.contains("\"roots\":[{\"kind\":\"python\",\"place\":\"tree/.venv\"},{\"kind\":\"node\""),
        "{text}"
    );
    let again = InstallRecord::decode(&bytes).unwrap();
    assert_eq!(
        (again.digest().unwrap(), &again),
        (record.digest().unwrap(), &record)
    );
    for bad in [
        text.replace("\"version\":2", "\"version\":1"),
        text.replacen('{', "{\"more\":1,", 1),
        text.replacen(':', ": ", 1),
        text[..text.len() - 1].to_owned(),
        String::new(),
        "null".to_owned(),
    ] {
        assert_eq!(
            InstallRecord::decode(bad.as_bytes()).unwrap_err().code,
            Code::UnknownState
        );
    }
}

#[test]
fn a_later_change_is_found_and_named() {
    let (record, roots) = record();
    same(&record, &roots).unwrap();
    let seen: Vec<&Observed> = roots.iter().map(|r| &r.0).collect();
    let other = compare(&record, &generation(2), &record.locks, &seen).unwrap_err();
    assert_eq!(other.code, Code::EvidenceForeign);
    let mut locks = record.locks.clone();
    locks.insert(at("Cargo.lock"), Sha256::of(b""));
    let moved = compare(&record, &generation(1), &locks, &seen).unwrap_err();
    assert_eq!(
        (moved.code, moved.names),
        (Code::LockfileDrift, vec!["new Cargo.lock".to_owned()])
    );
    assert_eq!(same(&record, &roots[..1]).unwrap_err().code, Code::RecordMismatch);
    let mut crowded = roots.clone();
    for number in 0..30 {
        crowded[0].file(
            &format!("lib/python3.11/site-packages/__pycache__/m{number}.pyc"),
            b"",
        );
    }
    let refusal = same(&record, &crowded).unwrap_err();
    assert_eq!((refusal.code, refusal.names.len()), (Code::RecordMismatch, 20));
    assert!(refusal.why.contains("31"), "{refusal}");
}

#[test]
fn what_cargo_writes_while_it_reads_is_not_recorded() {
    let (home, lock, supply) = crates::home();
    let bound = rust::bind(&home.0, &lock, &place("home/.cargo"), &supply).unwrap();
    let installer = record().0.installer;
    let made =
        InstallRecord::make(&generation(1), installer, &[&lock], &supply, &[(&home.0, &bound)]).unwrap();
    let mut later = home.clone();
    later.file(".package-cache", b"x");
    later.file("registry/index/index-1/.cache/wa/nt/want", b"x");
    same(&made, &[later]).unwrap();
    let mut edited = home;
    edited.file("vendor/want-0.3.2/src/lib.rs", b"x");
    assert_eq!(same(&made, &[edited]).unwrap_err().code, Code::RecordMismatch);
}

proptest! {
    /// Any one change of any one entry is found; the untouched roots pass.
    #[test]
    fn a_changed_root_never_passes(
        root in 0_usize..2, pick in any::<prop::sample::Index>(), how in 0_u8..6, name in "[a-z]{1,8}", mode in 0_u32..0o7777,
    ) {
        let (record, mut roots) = record();
        same(&record, &roots).unwrap();
        let entries = &mut roots[root].0.entries;
        let path = entries.keys().nth(pick.index(entries.len())).unwrap().clone();
        let before = entries.clone();
        match (how, entries.get_mut(&path).unwrap()) {
            (0, _) => drop(entries.remove(&path)),
            (1, Fact::File { mode: old, .. } | Fact::Directory { mode: old }) => *old = mode,
            (2, Fact::File { sha256, .. }) => *sha256 = Sha256::of(name.as_bytes()),
            (3, Fact::File { size, .. }) => *size += 1,
            (4, Fact::Symlink { target }) => target.extend_from_slice(name.as_bytes()),
            (5, _) => drop(entries.insert(at(&format!("zz/{name}")), Fact::Directory { mode })),
            (_, fact) => *fact = Fact::Symlink { target: name.clone().into_bytes() },
        }
        let unchanged = before == *entries;
        match same(&record, &roots) {
            Ok(()) => prop_assert!(unchanged, "{how} at {path} passed"),
            Err(refusal) => prop_assert_eq!(refusal.code, Code::RecordMismatch),
        }
    }

    /// A file with other bytes is never bound; only the scaffold's activation scripts are free text, and recorded.
    #[test]
    fn a_changed_file_is_never_bound(pick in any::<prop::sample::Index>(), tail in "[ -~]{1,20}") {
        let mut changed = venv();
        let files: Vec<RelPath> = changed.0.entries.iter()
            .filter(|(_, fact)| matches!(fact, Fact::File { .. })).map(|(path, _)| path.clone()).collect();
        let path = &files[pick.index(files.len())];
        let free = [".gitignore", ".lock", "CACHEDIR.TAG", "bin/activate", "bin/activate_this.py", "pyvenv.cfg"];
        prop_assume!(!free.contains(&path.to_wire().as_str()));
        let text = changed.0.texts.get(path).map(|t| String::from_utf8(t.clone()).unwrap()).unwrap_or_default();
        changed.file(&path.to_wire(), format!("{text}{tail}\n").as_bytes());
        let code = bind_venv(&changed).unwrap_err().code;
        prop_assert!(matches!(code, Code::RecordMismatch | Code::RecordOutsideRoot), "{code}");
    }

    /// A record with one byte changed is refused, or is another record with another digest.
    #[test]
    fn a_changed_record_never_keeps_its_digest(pick in any::<prop::sample::Index>(), flip in 1_u8..=255) {
        let (record, _) = record();
        let mut bytes = record.encode().unwrap();
        let spot = pick.index(bytes.len());
        bytes[spot] ^= flip;
        if let Ok(other) = InstallRecord::decode(&bytes) {
            prop_assert_ne!(other.digest().unwrap(), record.digest().unwrap());
        }
    }
}
