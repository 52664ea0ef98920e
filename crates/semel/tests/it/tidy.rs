//! The rules of the house that neither the compiler nor clippy can keep.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Lists the files of the repository as git knows them, new ones included.
fn files() -> Vec<PathBuf> {
    let out = std::process::Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(out.status.success(), "git ls-files");
    let text = String::from_utf8(out.stdout).unwrap();
    let mut files: Vec<PathBuf> = text
        .split('\0')
        .filter(|f| !f.is_empty())
        .map(PathBuf::from)
        .collect();
    files.retain(|file| root().join(file).is_file());
    assert!(files.len() > 50, "the list of files is whole");
    files
}

fn rust_files() -> Vec<(PathBuf, String)> {
    let rust = files()
        .into_iter()
        .filter(|f| f.extension().is_some_and(|e| e == "rs"));
    rust.map(|f| (f.clone(), std::fs::read_to_string(root().join(&f)).unwrap()))
        .collect()
}

/// Gives the product code of a file: what stands before its inline tests.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

fn is_test(file: &Path) -> bool {
    file.components().any(|c| c.as_os_str() == "tests") || file.file_stem().is_some_and(|s| s == "tests")
}

fn complain(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn doors_touch_neither_store_nor_host() {
    let doors = ["cli/", "http/", "mcp/", "console/", "probe.rs", "main.rs"];
    let found: Vec<String> = rust_files()
        .into_iter()
        .filter(|(file, text)| {
            let place = file
                .strip_prefix("crates/semel/src")
                .map(|p| p.to_string_lossy().into_owned());
            let door = place.is_ok_and(|p| doors.iter().any(|d| p.starts_with(d)));
            door && (text.contains("semel_store") || text.contains("semel_host"))
        })
        .map(|(file, _)| file.display().to_string())
        .collect();
    complain("a door reaches past the engine", &found);
}

#[test]
fn the_engine_calls_no_door_and_store_and_host_never_meet() {
    let mut found = Vec::new();
    for (file, text) in rust_files() {
        let name = file.display().to_string();
        let banned: &[&str] = if name.starts_with("crates/semel/src/engine") {
            &[
                "crate::cli",
                "crate::http",
                "crate::mcp",
                "crate::probe",
                "axum::",
                "clap::",
            ]
        } else if name.starts_with("crates/store") {
            &["semel_host"]
        } else if name.starts_with("crates/host") {
            &["semel_store", "rusqlite"]
        } else if name.starts_with("crates/core") {
            &[
                "semel_store",
                "semel_host",
                "std::fs",
                "std::net",
                "std::process",
                "std::thread",
                "std::env",
            ]
        } else {
            &[]
        };
        found.extend(
            banned
                .iter()
                .filter(|word| product(&text).contains(**word))
                .map(|word| format!("{name}: {word}")),
        );
    }
    complain("a room reaches where it may not", &found);
}

#[test]
fn core_depends_on_a_short_list() {
    let allowed: BTreeSet<&str> = [
        "base64",
        "ed25519-dalek",
        "ryu-js",
        "serde",
        "serde_json",
        "sha1-checked",
        "sha2",
        "thiserror",
        "toml",
        "unicode-normalization",
        "quick-xml",
    ]
    .into();
    let manifest = std::fs::read_to_string(root().join("crates/core/Cargo.toml")).unwrap();
    let dependencies = manifest
        .split("[dependencies]\n")
        .nth(1)
        .unwrap()
        .split("\n[")
        .next()
        .unwrap();
    let found: Vec<String> = dependencies
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty() && !allowed.contains(name))
        .map(str::to_owned)
        .collect();
    complain("core depends on more than its list", &found);
}

#[test]
fn every_error_page_has_its_code() {
    let codes = std::fs::read_to_string(root().join("crates/core/src/code.rs")).unwrap();
    let pages = files().into_iter().filter(|f| f.starts_with("docs/errors"));
    let orphans: Vec<String> = pages
        .filter_map(|page| page.file_stem().map(|s| s.to_string_lossy().into_owned()))
        .filter(|stem| stem != "README" && !codes.contains(&format!("= \"{stem}\",")))
        .collect();
    complain("a page is of no code", &orphans);
}

/// What stands in the place of a reason, and is no reason of a refusal that anybody is told.
const NO_REASONS: [(&str, &str); 3] = [
    ("ended_dirty", "how a volume ended, as its record says"),
    ("owner_died", "how a volume ended, as its record says"),
    ("writer_stuck", "the watchdog asks, and lets the answer go"),
];

/// Gives the reasons that a source names, each with the variant of its code where that stands right before it.
fn reasons(text: &str) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    for mark in [".reason(\"", "reason: \"", "reason: Some(\""] {
        for (at, _) in text.match_indices(mark) {
            let name = text[at + mark.len()..].split('"').next().unwrap_or_default();
            if name.is_empty() || name.contains(|c: char| !matches!(c, 'a'..='z' | '0'..='9' | '_')) {
                continue;
            }
            let made = text[..at]
                .rsplit_once("Refusal::new(")
                .map(|(_, made)| made.trim_start());
            let made = made.filter(|made| ![";", "fn ", ".reason("].iter().any(|end| made.contains(end)));
            let variant = made.and_then(|made| made.strip_prefix("Code::")).map(|made| {
                let end = made.find(|c: char| !c.is_ascii_alphanumeric());
                made[..end.unwrap_or(made.len())].to_owned()
            });
            found.push((name.to_owned(), variant.filter(|_| mark.starts_with('.'))));
        }
    }
    found
}

#[test]
fn every_reason_has_a_word_on_the_page_of_its_code() {
    let read = |file: &Path| std::fs::read_to_string(root().join(file)).unwrap();
    let codes = read(Path::new("crates/core/src/code.rs"));
    let pages: Vec<PathBuf> = files()
        .into_iter()
        .filter(|file| file.starts_with("docs/errors") && !file.ends_with("README.md"))
        .collect();
    let all: String = pages.iter().map(|page| read(page)).collect();
    let (mut names, mut placed, mut found) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (file, text) in rust_files() {
        let sample = file.starts_with("crates/store/src/conformance") || file.ends_with("sample.rs");
        if !file.starts_with("crates") || is_test(&file) || sample {
            continue;
        }
        for (name, variant) in reasons(product(&text)) {
            let word = format!("`{name}`");
            names.insert(name.clone());
            if NO_REASONS.iter().any(|(other, _)| *other == name) {
                continue;
            }
            let Some(variant) = variant else {
                if !all.contains(&word) {
                    found.insert(format!("{}: {name}, on no page", file.display()));
                }
                continue;
            };
            let wire = codes
                .split_once(&format!("    {variant} = \""))
                .and_then(|(_, rest)| rest.split('"').next())
                .unwrap_or_else(|| panic!("{variant} is in the table"));
            if !read(Path::new(&format!("docs/errors/{wire}.md"))).contains(&word) {
                found.insert(format!("{}: {name}, not on the page of {wire}", file.display()));
            }
            placed.insert(name);
        }
    }
    let found: Vec<String> = found.into_iter().collect();
    complain("a reason that no page of errors explains", &found);
    assert!(names.len() > 150, "the scan finds them: {}", names.len());
    assert!(placed.len() > 110, "and the codes of most: {}", placed.len());
    let gone: Vec<String> = NO_REASONS
        .iter()
        .filter(|(name, _)| !names.contains(*name))
        .map(|(name, why)| format!("{name}: {why}"))
        .collect();
    complain("an exception that nothing needs", &gone);
}

#[test]
fn every_file_is_declared() {
    let all = rust_files();
    let mut orphans = Vec::new();
    for (file, _) in &all {
        let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
        let parent = file.parent().unwrap();
        let roots = ["main", "lib", "build"];
        let in_targets =
            parent.ends_with("examples") || parent.ends_with("benches") || parent.ends_with("fuzz_targets");
        if roots.contains(&stem.as_str()) || in_targets {
            continue;
        }
        let (name, declarer) = if stem == "mod" {
            (
                parent.file_name().unwrap().to_string_lossy().into_owned(),
                parent.parent().unwrap(),
            )
        } else {
            (stem, parent)
        };
        let beside = declarer.with_extension("rs");
        let declared = all.iter().any(|(other, text)| {
            let near = other.parent() == Some(declarer)
                && other
                    .file_stem()
                    .is_some_and(|s| ["mod", "lib", "main"].contains(&&*s.to_string_lossy()));
            (near || *other == beside)
                && [format!("mod {name};"), format!("mod r#{name};")]
                    .iter()
                    .any(|m| text.contains(m.as_str()))
        });
        if !declared {
            orphans.push(file.display().to_string());
        }
    }
    complain("a file that no module declares", &orphans);
}

#[test]
fn no_test_is_skipped_in_silence() {
    let words = [concat!("#[", "ignore"), concat!("#[should", "_panic")];
    let found: Vec<String> = rust_files()
        .into_iter()
        .filter(|(_, text)| {
            text.lines()
                .any(|line| words.iter().any(|word| line.trim_start().starts_with(word)))
        })
        .map(|(file, _)| file.display().to_string())
        .collect();
    complain("a test is ignored or panics by intent", &found);
}

#[test]
fn a_file_is_read_in_one_sitting() {
    const MOST: usize = 600;
    let found: Vec<String> = rust_files()
        .into_iter()
        .filter(|(file, _)| !is_test(file))
        .map(|(file, text)| {
            let code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
            (file, product(&text).lines().filter(code).count())
        })
        .filter(|(_, lines)| *lines > MOST)
        .map(|(file, lines)| format!("{}: {lines} lines of code", file.display()))
        .collect();
    complain("a file is too long for one sitting", &found);
}

#[test]
fn only_sqlite_opens_the_journal() {
    let found: Vec<String> = rust_files()
        .into_iter()
        .filter(|(file, text)| {
            let home = file.starts_with("crates/store/src/sqlite");
            !home && !is_test(file) && product(text).contains(concat!("journal", ".db"))
        })
        .map(|(file, _)| file.display().to_string())
        .filter(|file| !file.starts_with("examples/"))
        .collect();
    complain("somebody but SQLite knows the journal's file", &found);
}

#[test]
fn ids_come_from_the_kernel() {
    let manifests = files()
        .into_iter()
        .filter(|f| f.file_name().is_some_and(|n| n == "Cargo.toml"));
    let found: Vec<String> = manifests
        .filter(|file| {
            let text = std::fs::read_to_string(root().join(file)).unwrap();
            text.lines().any(|line| {
                ["rand", "uuid", "fastrand"]
                    .iter()
                    .any(|c| line.split(['.', ' ', '=']).next() == Some(c))
            })
        })
        .map(|file| file.display().to_string())
        .collect();
    complain("a crate makes ids from something else than getrandom", &found);
}

#[test]
fn the_repository_speaks_of_semel_alone() {
    // Put together here, so that the list does not find itself.
    let hosts = [
        concat!("pypi", ".org"),
        concat!("pythonhosted", ".org"),
        concat!("registry.npm", "js"),
        concat!("static.crates", ".io"),
        concat!("index.crates", ".io"),
        concat!("deb.debian", ".org"),
        concat!("/work", "/main"),
        concat!("/work", "/shared"),
        concat!("/work", "/wt"),
        concat!("/root", "/.pyenv"),
    ];
    let locks = ["Cargo.lock", "uv.lock", "package-lock.json", "poetry.lock"];
    let mut found = Vec::new();
    for file in files() {
        if file
            .file_name()
            .is_some_and(|n| locks.contains(&&*n.to_string_lossy()))
        {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(root().join(&file)) else {
            continue;
        };
        found.extend(
            hosts
                .iter()
                .filter(|h| text.contains(**h))
                .map(|h| format!("{}: {h}", file.display())),
        );
    }
    complain("a machine's path or a registry's host", &found);
}
