use super::fixtures::*;
use super::*;
use crate::installer::{Installer, ProjectInstall};
use proptest::prelude::*;

mod every;
mod formats;
mod patches;

pub(super) fn at(path: &str) -> RelPath {
    RelPath::parse(path.as_bytes()).unwrap()
}

/// Holds one fixture: the name of the lock, its text, and its manifests.
pub(super) type Sample = (&'static str, &'static str, Declared);

/// The fixtures of the formats that came first; what they share with all others is tested in `every`.
fn all() -> Vec<Sample> {
    vec![
        ("uv.lock", UV_LOCK, declared(&[("pyproject.toml", PYPROJECT)])),
        ("Cargo.lock", CARGO_LOCK, declared(&[("Cargo.toml", CARGO_TOML)])),
        (
            "package-lock.json",
            PACKAGE_LOCK,
            declared(&[("package.json", PACKAGE_JSON)]),
        ),
        (
            "requirements.txt",
            REQUIREMENTS,
            declared(&[("requirements.in", REQUIREMENTS_IN)]),
        ),
    ]
}

/// The fixtures of every format.
pub(super) fn every_format() -> Vec<Sample> {
    let one = |name, text, manifest, content| (name, text, declared(&[(manifest, content)]));
    let mut samples = all();
    samples.extend([
        one("poetry.lock", POETRY_LOCK, "pyproject.toml", POETRY_PYPROJECT),
        one("pdm.lock", PDM_LOCK, "pyproject.toml", PDM_PYPROJECT),
        one("pylock.toml", PYLOCK_UV, "pyproject.toml", PDM_PYPROJECT),
        one("pylock.toml", PYLOCK_PIP, "pyproject.toml", PDM_PYPROJECT),
        one("Pipfile.lock", PIPFILE_LOCK, "Pipfile", PIPFILE),
        one("npm-shrinkwrap.json", PACKAGE_LOCK, "package.json", PACKAGE_JSON),
        one("pnpm-lock.yaml", PNPM_LOCK, "package.json", PNPM_PACKAGE),
        ("pnpm-lock.yaml", PNPM_WORKSPACE_LOCK, declared(&PNPM_WORKSPACE)),
        one("pnpm-lock.yaml", PNPM_8_LOCK, "package.json", PNPM_PACKAGE),
        one("yarn.lock", YARN_LOCK, "package.json", YARN_PACKAGE),
        (
            "yarn.lock",
            BERRY_LOCK,
            declared(&[
                ("package.json", BERRY_PACKAGE),
                ("packages/b/package.json", BERRY_PACKAGE_B),
            ]),
        ),
        one("go.sum", GO_SUM, "go.mod", GO_MOD),
        one("Gemfile.lock", GEMFILE_LOCK, "Gemfile", GEMFILE),
        one("composer.lock", COMPOSER_LOCK, "composer.json", COMPOSER_JSON),
    ]);
    samples
}

pub(super) fn declared(files: &[(&str, &str)]) -> Declared {
    Declared {
        texts: files
            .iter()
            .map(|(path, text)| (at(path), text.as_bytes().to_vec()))
            .collect(),
    }
}

/// Gives everything weak about a lock, or the refusal.
pub(super) fn check(name: &str, text: &[u8], declared: &Declared) -> Result<Vec<String>, Refusal> {
    let lock = parse(&at(name), text)?;
    let mut weak = lock.weak.clone();
    weak.extend(close_over(&lock, declared)?);
    weak.extend(lock.open_end.iter().map(|end| format!("open end {end}")));
    Ok(weak)
}

/// Refuses with `lock_incomplete`, and names what it is about.
#[track_caller]
pub(super) fn refused(name: &str, text: &str, declared: &Declared, part: &str) {
    let refusal = check(name, text.as_bytes(), declared).unwrap_err();
    assert_eq!(refusal.code, Code::LockIncomplete, "{refusal}");
    assert!(
        refusal.names.iter().any(|n| n.contains(part)),
        "{part}: {refusal}"
    );
}

pub(super) fn edit(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

#[test]
fn every_format_is_recognised_by_name() {
    for format in Format::ALL {
        assert_eq!(Format::recognise(format.file_name().as_bytes()), Some(*format));
        let wire = serde_json::to_string(format).unwrap();
        assert_eq!(wire, format!("\"{}\"", format.file_name()));
    }
    assert_eq!(binding_names().len(), 14);
    assert_eq!(
        Format::recognise(b"requirements-dev.txt"),
        Some(Format::Requirements)
    );
    assert_eq!(Format::recognise(b"pylock.dev.toml"), Some(Format::Pylock));
    for other in [
        "requirements.in",
        "pylock..toml",
        "pylock.a.b.toml",
        "Uv.lock",
        "uv.lock.bak",
        "",
    ] {
        assert_eq!(Format::recognise(other.as_bytes()), None, "{other}");
    }
}

#[test]
fn untouched_locks_pass_and_say_what_is_weak() {
    for (name, text, declared) in all() {
        let weak = check(name, text.as_bytes(), &declared).unwrap();
        assert_eq!(
            weak.len(),
            usize::from(name == "requirements.txt"),
            "{name}: {weak:?}"
        );
    }
    let alone = check("requirements.txt", REQUIREMENTS.as_bytes(), &Declared::default()).unwrap();
    assert_eq!(alone.len(), 2);
    let below = declared(&[("sub/pyproject.toml", PYPROJECT)]);
    assert!(check("sub/uv.lock", UV_LOCK.as_bytes(), &below).is_ok());
}

/// A lock that is cut anywhere is refused; only where its format cannot show it, it is named as weak instead.
#[test]
fn a_lock_cut_at_any_byte_is_refused_or_named_weak() {
    for (name, text, declared) in all() {
        let whole = check(name, text.as_bytes(), &declared).unwrap();
        let mut unseen = Vec::new();
        for cut in 0..text.trim_end().len() {
            match check(name, &text.as_bytes()[..cut], &declared) {
                Err(refusal) => assert_eq!(refusal.code, Code::LockIncomplete, "{name} at {cut}"),
                Ok(weak) if name == "requirements.txt" => assert!(!weak.is_empty()),
                Ok(weak) => {
                    assert_ne!(weak, whole, "{name} is cut at {cut} and nothing shows it");
                    unseen.push(&text[cut..]);
                }
            }
        }
        match name {
            // The wheels of the last package alone: then it looks like a package that has none.
            "uv.lock" => {
                assert_eq!(unseen.len(), 1);
                assert!(unseen[0].starts_with("wheels = ["), "{unseen:?}");
            }
            _ => assert!(unseen.is_empty(), "{name}: {unseen:?}"),
        }
    }
}

#[test]
fn every_removed_hash_is_noticed() {
    for (name, text, declared) in all() {
        let marks = ["hash = \"sha256:", "checksum = ", "\"integrity\"", "--hash="];
        let mut removed = 0;
        for (number, line) in text
            .lines()
            .enumerate()
            .filter(|(_, l)| marks.iter().any(|m| l.contains(m)))
        {
            let bare = match line.find("hash = \"") {
                Some(from) => {
                    let end = line[from..].find(", ").map_or(line.len(), |to| from + to + 2);
                    format!("{}{}", &line[..from], &line[end..])
                }
                None => String::new(),
            };
            let kept: Vec<&str> = text
                .lines()
                .enumerate()
                .map(|(n, l)| if n == number { bare.as_str() } else { l })
                .collect();
            let result = check(name, format!("{}\n", kept.join("\n")).as_bytes(), &declared);
            // A requirement may have several hashes; its last one must stay.
            if name != "requirements.txt" {
                assert_eq!(result.unwrap_err().code, Code::LockIncomplete, "{name}: {line}");
            }
            removed += 1;
        }
        assert!(removed > 2, "{name}");
    }
    let none: Vec<&str> = REQUIREMENTS.lines().filter(|l| !l.contains("--hash=")).collect();
    refused(
        "requirements.txt",
        &none.join("\n").replace('\\', ""),
        &Declared::default(),
        "idna==3.20",
    );
}

#[test]
fn a_lock_that_differs_from_its_manifest_is_refused_by_the_dependency() {
    let uv = |from: &str, to: &str| declared(&[("pyproject.toml", &edit(PYPROJECT, from, to))]);
    for (from, to, part) in [
        ("six>=1.16,<2", "six>=1.17,<2", "declared six<2,>=1.17"),
        ("    \"six>=1.16,<2\",\n", "", "locked six"),
        ("idna >= 3", "idna[x] >= 3", "declared idna[x]>=3 (extra net)"),
        ("net = [", "web = [", "(extra web)"),
        ("\"iniconfig>=2\", ", "", "locked iniconfig>=2"),
        ("[\"zipp\"]", "[\"zipp\", \"tomli\"]", "declared tomli"),
        (
            "lint = [\"zipp\"]",
            "lint = [\"zipp\"]\nextra = [\"zipp\"]",
            "declared extra",
        ),
        (">=3.11", ">=3.12", "declared >=3.12"),
        ("version = \"0.1.0\"", "version = \"0.2.0\"", "declared 0.2.0"),
        ("name = \"demo\"", "name = \"other\"", "declared other"),
    ] {
        refused("uv.lock", UV_LOCK, &uv(from, to), part);
    }
    for (from, to) in [
        ("six>=1.16,<2", "Six <2, >= 1.16"),
        ("name = \"demo\"", "name = \"Demo\""),
    ] {
        assert!(
            check("uv.lock", UV_LOCK.as_bytes(), &uv(from, to)).is_ok(),
            "{to}"
        );
    }
    let dynamic = uv("requires-python", "dynamic = [\"dependencies\"]\nrequires-python");
    assert_eq!(check("uv.lock", UV_LOCK.as_bytes(), &dynamic).unwrap().len(), 1);
    let circle = uv("lint = [", "lint = [{ include-group = \"dev\" }, ");
    refused("uv.lock", UV_LOCK, &circle, "dev");
}

#[test]
fn a_lock_of_cargo_or_npm_that_differs_from_its_manifest_is_refused() {
    let cargo = |from: &str, to: &str| declared(&[("Cargo.toml", &edit(CARGO_TOML, from, to))]);
    for (from, to, part) in [
        ("want = \"0.3.1\"", "want = \"0.4\"", "declared want 0.4"),
        ("log = \"0.4\"\n", "", "locked log"),
        ("log = \"0.4\"", "log = \"0.4\"\nserde = \"1\"", "declared serde"),
        ("cfg-if = \"1\"", "cfg-if = \"2\"", "locked 1.0.5"),
        ("name = \"demo\"", "name = \"other\"", "declared other"),
        ("log = \"0.4\"", "log = { path = \"../log\" }", "log"),
    ] {
        refused("Cargo.lock", CARGO_LOCK, &cargo(from, to), part);
    }

    let npm = |from: &str, to: &str| declared(&[("package.json", &edit(PACKAGE_JSON, from, to))]);
    for (from, to, part) in [
        ("\"ms\":\"^2.1.3\"", "\"ms\":\"^2.1.2\"", "declared ms@^2.1.2"),
        ("\"devDependencies\"", "\"other\"", "locked dev semver"),
        (
            "\"optionalDependencies\"",
            "\"peerDependencies\"",
            "declared peer fsevents",
        ),
    ] {
        refused("package-lock.json", PACKAGE_LOCK, &npm(from, to), part);
    }

    for (text, part) in [("six\nruff\n", "ruff"), ("six==1.16.0\n", "six==1.16.0")] {
        refused(
            "requirements.txt",
            REQUIREMENTS,
            &declared(&[("requirements.in", text)]),
            part,
        );
    }
    for (name, text, _) in all()
        .into_iter()
        .filter(|(name, _, _)| *name != "requirements.txt")
    {
        let refusal = check(name, text.as_bytes(), &Declared::default()).unwrap_err();
        assert!(refusal.why.contains("no manifest"), "{name}: {refusal}");
    }
}

#[test]
fn twins_orphans_and_unbound_sources_are_refused() {
    let project = declared(&[("pyproject.toml", PYPROJECT)]);
    let zipp = UV_LOCK.find("[[package]]\nname = \"zipp\"").unwrap();
    refused(
        "uv.lock",
        &format!("{UV_LOCK}\n{}", &UV_LOCK[zipp..]),
        &project,
        "zipp==4.1.2",
    );
    let orphan = UV_LOCK[zipp..]
        .replace("\"zipp\"", "\"zzz\"")
        .replace("zipp-4", "zzz-4");
    refused("uv.lock", &format!("{UV_LOCK}\n{orphan}"), &project, "zzz==4.1.2");
    let registry =
        "name = \"six\"\nversion = \"1.17.0\"\nsource = { registry = \"https://index.example/simple\" }";
    for source in [
        "{ git = \"https://x.test/six?rev=1#0123456789012345678901234567890123456789\" }",
        "{ editable = \"../six\" }",
        "{ directory = \"/srv/six\" }",
        "{ path = \"../six-1.17.0.whl\" }",
        "{ }",
    ] {
        let source = format!("name = \"six\"\nversion = \"1.17.0\"\nsource = {source}");
        refused(
            "uv.lock",
            &edit(UV_LOCK, registry, &source),
            &project,
            "six 1.17.0",
        );
    }
    refused(
        "uv.lock",
        &edit(UV_LOCK, "version = 1\n", "version = 2\n"),
        &project,
        "2",
    );
    refused(
        "uv.lock",
        &edit(UV_LOCK, "hash = \"sha256:", "hash = \"md5:"),
        &project,
        "colorama",
    );
    refused(
        "uv.lock",
        &edit(UV_LOCK, "hash = \"sha256:", "hash = \"sha256:00"),
        &project,
        "colorama",
    );
}

#[test]
fn twins_orphans_and_unbound_sources_of_cargo_and_npm_are_refused() {
    let package = declared(&[("Cargo.toml", CARGO_TOML)]);
    let from_git = edit(
        CARGO_LOCK,
        "registry+https://github.com/rust-lang/crates.io-index",
        "git+https://x.test/a#1",
    );
    refused("Cargo.lock", &from_git, &package, "cfg-if 1.0.5");
    refused(
        "Cargo.lock",
        &edit(CARGO_LOCK, " \"log\",\n", ""),
        &package,
        "log==0.4.35",
    );
    refused(
        "Cargo.lock",
        &edit(CARGO_LOCK, "version = 4", "version = 9"),
        &package,
        "9",
    );

    let node = declared(&[("package.json", PACKAGE_JSON)]);
    let twice = edit(
        PACKAGE_LOCK,
        "\"node_modules/ms\": {",
        "\"node_modules/ms\": {}, \"node_modules/ms\": {",
    );
    refused("package-lock.json", &twice, &node, "node_modules/ms stands twice");
    let lost = edit(
        PACKAGE_LOCK,
        "\"node_modules/is-number\"",
        "\"node_modules/is-odd/node_modules/other\"",
    );
    refused(
        "package-lock.json",
        &lost,
        &node,
        "is-number of node_modules/is-odd",
    );
    refused(
        "package-lock.json",
        &edit(PACKAGE_LOCK, ": 3,", ": 1,"),
        &node,
        "1",
    );
    let nested = edit(
        PACKAGE_LOCK,
        "\"node_modules/is-number\"",
        "\"node_modules/is-odd/node_modules/is-number\"",
    );
    assert!(check("package-lock.json", nested.as_bytes(), &node).is_ok());
}

/// Cut at the end of a record, such a file is a valid one with fewer pins; the manifest beside it tells.
#[test]
fn requirements_close_over_the_project_beside_them() {
    let project = |needs: &str| {
        let text = format!("[project]\nname = \"demo\"\nversion = \"1\"\n{needs}\n");
        declared(&[("pyproject.toml", &text)])
    };
    let weak = |beside: &Declared| check("requirements.txt", REQUIREMENTS.as_bytes(), beside).unwrap();
    let whole = project("dependencies = [\"six>=1\", \"tomli ; python_version < '3.11'\"]");
    assert_eq!(weak(&whole).len(), 1, "the format is weak, its inputs are there");
    for (needs, part) in [
        ("dependencies = [\"six\", \"Ruff >= 0.1\"]", "ruff>=0.1"),
        ("dependencies = [\"six==1.16.0\"]", "six==1.16.0"),
        ("dependencies = [\"six\", \"?\"]", "?"),
        ("dependencies = [\"six\"", "pyproject.toml"),
    ] {
        refused("requirements.txt", REQUIREMENTS, &project(needs), part);
    }
    let computed = weak(&project("dynamic = [\"dependencies\"]"));
    assert!(computed[1].contains("computed"), "{computed:?}");
    let none = declared(&[("pyproject.toml", "[tool.black]\nline-length = 100\n")]);
    assert!(weak(&none)[1].contains("no declared inputs"));
    // What a constraint names is not asked for, and what an included file names is.
    let mut more = project("dependencies = [\"ruff\"]");
    let hash = "--hash=sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274";
    let ruff = format!("ruff==0.1 {hash}\n");
    more.texts.insert(at("requirements-all.txt"), ruff.into_bytes());
    let with = |option: &str| format!("{option} requirements-all.txt\n{REQUIREMENTS}");
    refused("requirements.txt", &with("-c"), &more, "ruff");
    refused("requirements.txt", &with("--constraint"), &more, "ruff");
    let lock = parse(&at("requirements.txt"), with("-r").as_bytes()).unwrap();
    assert!(close_over(&lock, &more).unwrap().is_empty());
    let files = included(&lock, &more).unwrap();
    assert_eq!(
        files.iter().map(|file| file.path.to_string()).collect::<Vec<_>>(),
        ["requirements-all.txt"]
    );
    // Another file than the usual one need not hold what the project needs.
    let other = project("dependencies = [\"ruff\"]");
    assert_eq!(
        check("requirements-dev.txt", REQUIREMENTS.as_bytes(), &other)
            .unwrap()
            .len(),
        2
    );
    // Its own input comes first.
    let mut both = other;
    both.texts.insert(at("requirements.in"), b"six\n".to_vec());
    assert_eq!(weak(&both).len(), 1);
}

#[test]
fn requirements_name_the_line() {
    let none = Declared::default();
    let hash = "--hash=sha256:4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274";
    for (text, part) in [
        (String::new(), "requirements.txt"),
        ("# nothing\n".to_owned(), "requirements.txt"),
        ("six==1.17.0\n".to_owned(), "line 1: six==1.17.0"),
        (format!("six==1.17.0 {hash}\nidna>=3 {hash}\n"), "line 2: idna>=3"),
        (format!("six==1.17.0 {}\n", &hash[..40]), "line 1"),
        (format!("six==1.17.0 {hash}\n-e .\n"), "line 2: -e"),
        (format!("six==1.17.0 {hash}\n--weird\n"), "line 2: --weird"),
        (format!("six==1.17.0 {hash}\n-r ../other.txt\n"), "line 2: -r"),
        (
            format!("six==1.17.0 {hash}\n-r requirements-base.txt\n"),
            "requirements-base.txt",
        ),
        (format!("six==1.17.0 {hash}\nsix==1.17.0 {hash}\n"), "six==1.17.0"),
        (format!("six==1.17.0 \\\n  {hash} \\\n"), "line 1"),
    ] {
        refused("requirements.txt", &text, &none, part);
    }
    let base = declared(&[("requirements-base.txt", REQUIREMENTS)]);
    let text = format!(
        "--index-url https://x.test/simple\n-r requirements-base.txt\nzipp==1.0 ; os_name == 'nt' {hash}\n"
    );
    let lock = parse(&at("requirements.txt"), text.as_bytes()).unwrap();
    assert_eq!(close_over(&lock, &base).unwrap().len(), 1);
    assert_eq!(lock.must_be_installed(&Selection::default()).len(), 0);
}

#[test]
fn workspaces_of_cargo_close_over_every_member() {
    let root = "[workspace]\nmembers = [\"crates/*\"]\nexclude = [\"crates/no\"]\n[workspace.dependencies]\nlog = \"0.4\"\nb = { path = \"crates/b\" }\n";
    let a = "[package]\nname = \"a\"\nversion = \"0.1.0\"\n[dependencies]\nb.workspace = true\nl = { package = \"log\", version = \"0.4\" }\n";
    let b = "[package]\nname = \"b\"\nversion = \"0.1.0\"\n[dev-dependencies]\nlog = { workspace = true }\n";
    let mut files = declared(&[
        ("Cargo.toml", root),
        ("crates/a/Cargo.toml", a),
        ("crates/b/Cargo.toml", b),
        (
            "crates/no/Cargo.toml",
            "[package]\nname = \"no\"\nversion = \"0.1.0\"\n",
        ),
    ]);
    let head = CARGO_LOCK.find("[[package]]").unwrap();
    let log = CARGO_LOCK.find("[[package]]\nname = \"log\"").unwrap();
    let log = &CARGO_LOCK[log..log + CARGO_LOCK[log..].find("\n\n").unwrap()];
    let own = |name: &str, deps: &str| {
        format!("[[package]]\nname = \"{name}\"\nversion = \"0.1.0\"\ndependencies = [\n{deps}]\n\n")
    };
    let lock = |a: &str, b: &str| format!("{}{}{}{log}\n", &CARGO_LOCK[..head], own("a", a), own("b", b));
    let good = lock(" \"b\",\n \"log\",\n", " \"log\",\n");
    assert_eq!(
        check("Cargo.lock", good.as_bytes(), &files).unwrap(),
        ["open end log==0.4.35"]
    );
    refused(
        "Cargo.lock",
        &lock(" \"b\",\n \"log\",\n", ""),
        &files,
        "declared log",
    );
    files.texts.insert(
        at("crates/c/Cargo.toml"),
        b"[package]\nname = \"c\"\nversion = \"0.1.0\"\n".to_vec(),
    );
    refused("Cargo.lock", &good, &files, "declared c");
}

#[test]
fn what_must_be_installed_follows_unmarked_edges_and_the_selection() {
    let lock = parse(&at("uv.lock"), UV_LOCK.as_bytes()).unwrap();
    let names = |extras: &[&str], groups: &[&str]| -> Vec<String> {
        let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        let selection = Selection {
            extras: set(extras),
            groups: set(groups),
            project: ProjectInstall::UnboundBackend,
            ..Selection::default()
        };
        lock.must_be_installed(&selection)
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(names(&[], &[]), ["demo", "six"]);
    assert_eq!(
        names(&["net"], &["dev"]),
        ["demo", "idna", "iniconfig", "six", "zipp"]
    );
    assert_eq!(lock.versions()["six"], BTreeSet::from(["1.17.0"]));
    let npm = parse(&at("package-lock.json"), PACKAGE_LOCK.as_bytes()).unwrap();
    let without: Vec<&str> = npm.must_be_installed(&Selection::default()).into_iter().collect();
    assert_eq!(without, ["is-number", "is-odd", "ms"]);
}

#[test]
fn what_is_chosen_is_read_from_the_arguments() {
    let lock = parse(&at("uv.lock"), UV_LOCK.as_bytes()).unwrap();
    let project = declared(&[("pyproject.toml", PYPROJECT)]);
    let names = |args: &[&str], declared: &Declared| -> Vec<String> {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let selection = Selection::of(&lock, declared, Installer::Uv, &args, ProjectInstall::Skip);
        lock.must_be_installed(&selection)
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    for (args, wanted) in [
        (&[][..], &["iniconfig", "six", "zipp"][..]),
        (&["--no-dev"], &["six"]),
        (&["--no-dev", "--extra", "net"], &["idna", "six"]),
        (
            &["--all-extras", "--group=lint", "--no-dev"],
            &["idna", "six", "zipp"],
        ),
        (&["--only-group", "lint"], &["zipp"]),
        (&["--package", "demo"], &[]),
    ] {
        assert_eq!(names(args, &project), wanted, "{args:?}");
    }
    let other = format!("{PYPROJECT}\n[tool.uv]\ndefault-groups = [\"lint\"]\n");
    assert_eq!(
        names(&[], &declared(&[("pyproject.toml", &other)])),
        ["six", "zipp"]
    );
    let npm = parse(&at("package-lock.json"), PACKAGE_LOCK.as_bytes()).unwrap();
    let omit = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        let chosen = Selection::of(
            &npm,
            &Declared::default(),
            Installer::Npm,
            &args,
            ProjectInstall::Skip,
        );
        npm.must_be_installed(&chosen).contains("semver")
    };
    assert_eq!(
        [omit(&[]), omit(&["--omit=dev"]), omit(&["--omit", "dev"])],
        [true, false, false]
    );
}

#[test]
fn what_only_a_bundle_has_a_use_for_is_not_certain() {
    // npm gives such a package no mark, and leaves it out all the same when its other users are left out.
    let owner = "\"node_modules/is-odd/node_modules/ms\": {\"version\":\"1.0.0\",\"inBundle\":true,\"dependencies\":{\"semver\":\"7\"}},";
    let at_ms = PACKAGE_LOCK.find("    \"node_modules/ms\"").unwrap();
    let text =
        format!("{}{owner}{}", &PACKAGE_LOCK[..at_ms], &PACKAGE_LOCK[at_ms..]).replace("\"dev\": true,", "");
    let lock = parse(&at("package-lock.json"), text.as_bytes()).unwrap();
    let certain: Vec<&str> = lock
        .must_be_installed(&Selection::default())
        .into_iter()
        .collect();
    assert_eq!(certain, ["is-number", "is-odd", "ms"]);
}

proptest! {
    /// No text whatever makes the parsers panic, and none is taken for another format's.
    #[test]
    fn any_text_is_answered(which in 0_usize..4, text in ".{0,200}") {
        let (name, _, declared) = &all()[which];
        if let Err(refusal) = check(name, text.as_bytes(), declared) {
            prop_assert_eq!(refusal.code, Code::LockIncomplete);
        }
    }

    /// A lock with one line lost, doubled or moved up is refused, or says exactly what it said before.
    #[test]
    fn a_lock_with_one_line_lost_never_loses_a_package_unseen(which in 0_usize..3, pick in any::<prop::sample::Index>()) {
        let (name, text, declared) = &all()[which];
        let lines: Vec<&str> = text.lines().collect();
        let lost = pick.index(lines.len());
        let rest: Vec<&str> = lines.iter().enumerate().filter(|(n, _)| *n != lost).map(|(_, l)| *l).collect();
        if check(name, format!("{}\n", rest.join("\n")).as_bytes(), declared).is_ok() {
            let whole = parse(&at(name), text.as_bytes()).unwrap();
            let lock = parse(&at(name), format!("{}\n", rest.join("\n")).as_bytes()).unwrap();
            let names = |lock: &Lockfile| lock.packages.iter().map(label).collect::<Vec<_>>();
            prop_assert_eq!(names(&lock), names(&whole), "lost: {}", lines[lost]);
        }
    }

    /// A hash with one digit changed still parses, and is another hash.
    #[test]
    fn the_digest_covers_every_byte(which in 0_usize..4, pick in any::<prop::sample::Index>()) {
        let (name, text, _) = &all()[which];
        let mut bytes = text.as_bytes().to_vec();
        let spot = pick.index(bytes.len());
        bytes[spot] ^= 1;
        if let Ok(lock) = parse(&at(name), &bytes) {
            prop_assert_ne!(lock.digest, Sha256::of(text.as_bytes()));
        }
    }
}
