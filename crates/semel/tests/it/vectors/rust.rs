//! Crates that are not what the lock says, and builds that are older than their source.

use super::lab::{Liar, certified, real_cargo};
use super::show;
use crate::cases::lab::{Lab, serve};
use crate::harness::said;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const TEST: &str = "cargo test";

/// A project with a crate from a sparse registry on this machine, and what it has to be asked with.
struct Cargo {
    liar: Liar,
    url: String,
}

impl Cargo {
    fn new() -> Self {
        let lab = Lab::new(&json!([]));
        let source = lab.site.at("sap-1.0.0");
        std::fs::create_dir_all(source.join("src")).unwrap();
        let manifest = "[package]\nname = \"sap\"\nversion = \"1.0.0\"\nedition = \"2021\"\n";
        std::fs::write(source.join("Cargo.toml"), manifest).unwrap();
        std::fs::write(source.join("src/lib.rs"), "pub const SAP: u32 = 1;\n").unwrap();
        let packed = Command::new("tar")
            .args(["-czf", "sap-1.0.0.crate", "--mtime=2001-01-01", "sap-1.0.0"])
            .current_dir(lab.site.home.path())
            .output()
            .unwrap();
        assert!(packed.status.success(), "{}", said(&packed));
        let bytes = std::fs::read(lab.site.at("sap-1.0.0.crate")).unwrap();
        let digest = semel_core::Sha256::of(&bytes);
        // The port is known only once it listens, so that what is served names it by what it was asked by.
        let line = json!({"name": "sap", "vers": "1.0.0", "deps": [], "cksum": digest.to_string(), "features": {}, "yanked": false});
        let files = serve(BTreeMap::from([("files/sap-1.0.0.crate".to_owned(), bytes)]));
        let config = json!({"dl": format!("{files}/files/{{crate}}-{{version}}.crate")});
        let url = serve(BTreeMap::from([
            ("index/config.json".to_owned(), config.to_string().into_bytes()),
            ("index/3/s/sap".to_owned(), format!("{line}\n").into_bytes()),
        ]));
        let cargo = Self {
            liar: Liar::new(lab),
            url: format!("sparse+{url}/index/"),
        };
        let lab = &cargo.liar.lab;
        lab.write(
            "Cargo.toml",
            "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\nsap = { version = \"1\", registry-index = \"URL\" }\n"
                .replace("URL", &cargo.url)
                .as_str(),
        );
        lab.write(
            "src/lib.rs",
            "#[test]\nfn holds() {\n    assert_eq!(sap::SAP, 1);\n}\n",
        );
        lab.write(".gitignore", "target\n");
        cargo.run(&["generate-lockfile"]);
        cargo
    }

    /// Runs the real cargo as a person does, with a home of the person's own.
    fn run(&self, args: &[&str]) -> std::process::Output {
        let out = Command::new(real_cargo())
            .args(args)
            .current_dir(self.liar.lab.site.repository())
            .env("CARGO_HOME", self.liar.lab.site.at("person"))
            .env("CARGO_TARGET_DIR", "target")
            .env_remove("CARGO_INCREMENTAL")
            .output()
            .unwrap();
        assert!(out.status.success(), "{args:?}: {}", said(&out));
        out
    }

    fn certify(&self) -> std::process::Output {
        self.liar.certify("cargo", TEST)
    }

    #[track_caller]
    fn show(&self, key: &str) {
        show(key, &super::Seen::of(&self.certify()));
    }
}

/// Every file of this name beneath a directory.
fn all(dir: &Path, end: &str) -> Vec<std::path::PathBuf> {
    let out = Command::new("find")
        .arg(dir)
        .args(["-path", end])
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().map(Into::into).collect()
}

#[test]
fn crates_that_are_not_the_locks_are_refused() {
    let cargo = Cargo::new();
    certified(&cargo.certify());
    // A person's own cache: the unpacked source, then the archive. cargo itself is taken in by both.
    cargo.run(&["fetch", "--locked"]);
    let person = cargo.liar.lab.site.at("person");
    for place in all(&person, "*/registry/src/*/sap-1.0.0/src/lib.rs") {
        std::fs::write(place, "pub const SAP: u32 = 1; pub const EVIL: u32 = 1;\n").unwrap();
    }
    let evil = "#[test]\nfn holds() {\n    assert_eq!(sap::SAP, 1);\n    let _ = sap::EVIL;\n}\n";
    let good = cargo.liar.lab.read("src/lib.rs");
    cargo.liar.lab.write("src/lib.rs", evil);
    cargo.run(&["test", "--locked", "--offline"]);
    cargo.liar.lab.write("src/lib.rs", &good);
    cargo.show("42");
    let site = &cargo.liar.lab.site;
    let swapped = site.at("sap-1.0.0/src/lib.rs");
    std::fs::write(&swapped, "pub const SAP: u32 = 1; pub const SWAPPED: u32 = 1;\n").unwrap();
    let packed = Command::new("tar")
        .args(["-czf", "sap-1.0.0.crate", "sap-1.0.0"])
        .current_dir(site.home.path())
        .output()
        .unwrap();
    assert!(packed.status.success());
    for place in all(&person, "*/registry/cache/*/sap-1.0.0.crate") {
        std::fs::copy(site.at("sap-1.0.0.crate"), place).unwrap();
    }
    for place in all(&person, "*/registry/src/*/sap-1.0.0") {
        std::fs::remove_dir_all(place).unwrap();
    }
    // A warm target would hide the swap, as it hides its cure.
    std::fs::remove_dir_all(site.repository().join("target")).unwrap();
    cargo
        .liar
        .lab
        .write("src/lib.rs", &evil.replace("EVIL", "SWAPPED"));
    cargo.run(&["test", "--locked", "--offline"]);
    cargo.liar.lab.write("src/lib.rs", &good);
    cargo.show("43");
    // A cargo that lies: what the project would be built from is changed before it is recorded.
    let vendor = "\"$CARGO_HOME\"/vendor/sap-1.0.0";
    for (key, damage) in [
        (
            "42b",
            format!("echo 'pub const SAP: u32 = 2;' > {vendor}/src/lib.rs"),
        ),
        ("45b", format!("echo 'fn main() {{}}' > {vendor}/build.rs")),
        ("42c", format!("rm {vendor}/src/lib.rs")),
        ("48b", "echo '[build]' >> \"$CARGO_HOME\"/config.toml".to_owned()),
    ] {
        cargo.liar.cargo(&damage);
        cargo.show(key);
    }
    cargo.liar.honest();
    // Its own store.
    let store = site.home.state().join("artifacts/sha256");
    let entered = all(&store, "*/??/*");
    assert_eq!(entered.len(), 1, "{entered:?}");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&entered[0], mode).unwrap();
    std::fs::copy(site.at("sap-1.0.0.crate"), &entered[0]).unwrap();
    cargo.show("43b");
}

/// Crates that lie in the tree, as `cargo vendor` leaves them.
#[test]
fn vendored_crates_that_are_not_the_locks_are_refused() {
    let cargo = Cargo::new();
    let lab = &cargo.liar.lab;
    let settings = cargo.run(&["vendor", "--locked", "vendor"]);
    lab.write(
        ".cargo/config.toml",
        std::str::from_utf8(&settings.stdout).unwrap(),
    );
    certified(&cargo.certify());
    let place = lab.site.repository().join("vendor/sap/src/lib.rs");
    let sums = lab.read("vendor/sap/.cargo-checksum.json");
    let whole = std::fs::read_to_string(&place).unwrap();
    let edited = format!("{whole}pub const MORE: u32 = 1;\n");
    std::fs::write(&place, &edited).unwrap();
    cargo.show("44");
    let digest = |text: &str| semel_core::Sha256::of(text.as_bytes()).to_string();
    let mended = sums.replace(&digest(&whole), &digest(&edited));
    assert_ne!(mended, sums);
    lab.write("vendor/sap/.cargo-checksum.json", &mended);
    // cargo takes it for what it is said to be.
    cargo.run(&["test", "--locked", "--offline"]);
    cargo.show("46");
    lab.write("vendor/sap/.cargo-checksum.json", &sums);
    std::fs::write(&place, &whole).unwrap();
    lab.write("vendor/sap/build.rs", "fn main() { panic!(\"it ran\") }\n");
    cargo.show("45");
}

/// An archive with old times over a build that is there: cargo tests the old binary; a certification builds.
#[test]
fn old_times_build_the_new_source() {
    let cargo = Cargo::new();
    let lab = &cargo.liar.lab;
    lab.write(
        "src/lib.rs",
        "pub fn says() -> u32 { 1 }\n#[test]\nfn holds() {\n    assert_eq!(says(), 1);\n}\n",
    );
    cargo.run(&["test", "--locked"]);
    lab.write(
        "src/lib.rs",
        "pub fn says() -> u32 { 2 }\n#[test]\nfn holds() {\n    assert_eq!(says(), 1);\n}\n",
    );
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_577_836_800);
    let file = std::fs::File::options()
        .write(true)
        .open(lab.site.repository().join("src/lib.rs"))
        .unwrap();
    file.set_modified(long_ago).unwrap();
    cargo.run(&["test", "--locked"]);
    cargo.show("47");
}
