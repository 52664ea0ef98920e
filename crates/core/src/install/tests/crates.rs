//! Crates against their `.crate`: vectors 42 to 46, in a private home and in a tree.

use super::*;
use crate::artifact::{Held, Locked, Packing, Supply};
use crate::lockset::Source;

const MANIFEST: &[u8] = b"[dependencies.try-lock]\nversion = \"0.2\"\n[dev-dependencies]\ntokio = \"1\"\n";

/// The fixture's lock, and a crate for each package in it.
fn given() -> (Lockfile, Supply) {
    let lock = lock("Cargo.lock", CARGO_LOCK);
    let mut supply = Supply::default();
    for package in lock.packages.iter().filter(|p| p.source == Source::Hashed) {
        let artifact = &package.artifacts[0];
        let mut held = Held {
            locked: Locked::of(artifact),
            sha256: Locked::of(artifact).sha256().unwrap(),
            file: artifact.name.clone(),
            packing: Packing::Crate,
            members: BTreeMap::new(),
            texts: BTreeMap::new(),
        };
        let manifest = if package.name == "want" {
            MANIFEST
        } else {
            b"[package]\n"
        };
        for (path, bytes) in [
            ("Cargo.toml", manifest),
            ("src/lib.rs", b"pub fn a() {}\n"),
            (".gitignore", b"target\n"),
        ] {
            let fact = Fact::File {
                mode: 0o644,
                size: bytes.len() as u64,
                sha256: Sha256::of(bytes),
            };
            held.members.insert(at(path), fact);
        }
        supply.add(held);
    }
    (lock, supply)
}

fn unpack(fake: &mut Fake, base: &str, held: &Held, named: &str) {
    for path in held.members.keys() {
        let bytes: &[u8] = match path.to_string().as_str() {
            "Cargo.toml" if named.starts_with("want") => MANIFEST,
            "Cargo.toml" => b"[package]\n",
            ".gitignore" => b"target\n",
            _ => b"pub fn a() {}\n",
        };
        fake.file(&format!("{base}{named}/{path}"), bytes);
    }
    let sums = rust::checksums(held).unwrap();
    fake.file(&format!("{base}{named}/.cargo-checksum.json"), &sums);
}

/// A home as the host fills it.
pub(super) fn home() -> (Fake, Lockfile, Supply) {
    let (lock, supply) = given();
    let mut home = Fake::new(Kind::Rust, "home/.cargo");
    for package in lock.packages.iter().filter(|p| p.source == Source::Hashed) {
        let held = supply.of(&package.artifacts).unwrap();
        unpack(
            &mut home,
            "vendor/",
            held,
            held.file.strip_suffix(".crate").unwrap(),
        );
    }
    home.file(
        "config.toml",
        rust::settings(&lock, b"/v/home/.cargo/vendor").as_bytes(),
    );
    home.file(".package-cache", b"");
    home.dir("registry");
    (home, lock, supply)
}

#[test]
fn a_cargo_home_is_bound_to_its_lock() {
    let (home, lock, supply) = home();
    let bind = |home: &Fake| rust::bind(&home.0, &lock, &place("home/.cargo"), &supply);
    let bound = bind(&home).unwrap();
    assert!(bound.packages.contains("want==0.3.2"), "{:?}", bound.packages);
    assert!(bound.weak.is_empty(), "{:?}", bound.weak);
    #[rustfmt::skip]
    let tampered: &[Change] = &[
        ("edited source", Code::RecordMismatch, |h| h.file("vendor/want-0.3.2/src/lib.rs", b"evil")),
        ("a build script", Code::RecordMismatch, |h| h.file("vendor/want-0.3.2/build.rs", b"fn main() {}")),
        ("a file gone", Code::RecordMismatch, |h| h.remove("vendor/want-0.3.2/.gitignore")),
        ("crate not in the lock", Code::RecordMismatch, |h| h.file("vendor/evil-1.0.0/Cargo.toml", b"")),
        ("a file beside the crates", Code::RecordMismatch, |h| h.file("vendor/x", b"")),
        ("an index of crates", Code::RecordMismatch, |h| h.file("registry/src/index-1/want-0.3.2/src/lib.rs", b"")),
        ("a command of cargo", Code::RecordMismatch, |h| h.file("bin/cargo-test", b"")),
        ("a checkout of git", Code::RecordMismatch, |h| h.file("git/db/x", b"")),
        ("other settings", Code::RecordMismatch, |h| h.edit("config.toml", "[source", "[build]\nrustc-wrapper = \"evil\"\n[source")),
        ("another source", Code::RecordMismatch, |h| h.edit("config.toml", "/v/home/.cargo/vendor", "/w/vendor")),
        ("a link out", Code::RecordOutsideRoot, |h| h.link("vendor/want-0.3.2/x", "/w/x")),
        ("a link", Code::RecordMismatch, |h| h.link("vendor/want-0.3.2/src/lib.rs", "../Cargo.toml")),
        ("a crate gone", Code::RecordMismatch, |h| {
            for path in h.0.entries.keys().cloned().collect::<Vec<_>>() {
                if path.to_string().starts_with("vendor/want-") { h.remove(&path.to_wire()); }
            }
        }),
        ("open to others", Code::RecordMismatch, |h| {
            if let Some(Fact::File { mode, .. }) = h.0.entries.get_mut(&at("vendor/want-0.3.2/src/lib.rs")) { *mode = 0o666; }
        }),
    ];
    for (name, code, change) in tampered {
        let mut changed = home.clone();
        change(&mut changed);
        let refusal = bind(&changed).err().unwrap_or_else(|| panic!("{name} passed"));
        assert_eq!(refusal.code, *code, "{name}: {refusal}");
        assert!(!refusal.names.is_empty(), "{name}: {refusal}");
    }
    let refusal = rust::bind(&home.0, &lock, &place("home/.cargo"), &Supply::default()).unwrap_err();
    assert_eq!(refusal.code, Code::RecordMismatch);
}

/// A lock that lost the dependencies of its last package looks whole; what the crate needs shows it.
#[test]
fn a_lock_cut_behind_a_crate_is_seen_in_the_crate() {
    let (mut home, lock, mut supply) = home();
    let want = lock.packages.iter().find(|p| p.name == "want").unwrap();
    let manifest = b"[dependencies]\nother = \"1\"\n";
    let mut held = supply.of(&want.artifacts).unwrap().clone();
    let fact = Fact::File {
        mode: 0o644,
        size: manifest.len() as u64,
        sha256: Sha256::of(manifest),
    };
    held.members.insert(at("Cargo.toml"), fact);
    supply.add(held);
    home.file("vendor/want-0.3.2/Cargo.toml", manifest);
    let refusal = rust::bind(&home.0, &lock, &place("home/.cargo"), &supply).unwrap_err();
    assert_eq!(
        (refusal.code, refusal.names[1].as_str()),
        (Code::RecordMismatch, "other")
    );
}

/// Vectors 44 to 46: a project that keeps its crates in its own tree, as `cargo vendor` leaves them.
#[test]
fn vendored_crates_are_bound_to_theirs() {
    let (lock, supply) = given();
    let mut vendor = Fake::new(Kind::Rust, "tree/vendor");
    for package in lock.packages.iter().filter(|p| p.source == Source::Hashed) {
        // Only where two versions are there does the directory say which.
        unpack(
            &mut vendor,
            "",
            supply.of(&package.artifacts).unwrap(),
            &package.name,
        );
        vendor.remove(&format!("{}/.gitignore", package.name));
    }
    let bind = |vendor: &Fake| rust::bind_vendored(&vendor.0, &lock, &supply);
    bind(&vendor).unwrap();
    #[rustfmt::skip]
    let tampered: &[Plain] = &[
        ("edited", |v| v.file("want/src/lib.rs", b"evil")),
        ("edited, with its checksum", |v| {
            let old = v.text("want/.cargo-checksum.json");
            v.file("want/src/lib.rs", b"evil");
            v.file("want/.cargo-checksum.json", old.replace(&Sha256::of(b"pub fn a() {}\n").to_string(), &Sha256::of(b"evil").to_string()).as_bytes());
        }),
        ("a stray build script", |v| v.file("want/build.rs", b"")),
        ("a file gone", |v| v.remove("want/src/lib.rs")),
        ("a crate of no lock", |v| { v.file("evil/Cargo.toml", b""); v.file("evil/.cargo-checksum.json", b"{\"files\":{},\"package\":\"00\"}"); }),
        ("a crate without a package", |v| v.file("want/.cargo-checksum.json", b"{\"files\":{}}")),
        ("a directory without checksums", |v| v.file("evil/Cargo.toml", b"")),
        ("a file beside them", |v| v.file("x", b"")),
    ];
    for (what, change) in tampered {
        let mut changed = vendor.clone();
        change(&mut changed);
        let refusal = bind(&changed).err().unwrap_or_else(|| panic!("{what} passed"));
        assert_eq!(refusal.code, Code::RecordMismatch, "{what}: {refusal}");
    }
}

#[test]
fn other_registries_are_replaced_too() {
    let text = CARGO_LOCK.replacen(
        "registry+https://github.com/rust-lang/crates.io-index",
        "sparse+https://crates.example/index/",
        1,
    );
    let settings = rust::settings(&lock("Cargo.lock", &text), b"/v/vendor");
    assert!(
        settings.contains("[source.\"sparse+https://crates.example/index/\"]"),
        "{settings}"
    );
    let parsed: toml::Table = settings.parse().unwrap();
    assert_eq!(parsed["source"]["semel"]["directory"].as_str(), Some("/v/vendor"));
}
