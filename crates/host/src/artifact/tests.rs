//! The store and the readers, on archives that other tools made, and on damaged ones.

use super::*;
use crate::installer::tests::{prepare, python};
use semel_core::artifact::{Digester, Locked};
use semel_core::install::Fact;
use semel_core::lockset::Algorithm;
use semel_core::{RelPath, Sha256};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use tempfile::TempDir;

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn sha(bytes: &[u8]) -> Sha256 {
    Sha256::of(bytes)
}

fn locked(algorithm: Algorithm, bytes: &[u8]) -> Locked {
    let mut digester = Digester::new(algorithm);
    digester.update(bytes);
    Locked {
        algorithm,
        digest: digester.finish().unwrap(),
    }
}

fn wanted(algorithm: Algorithm, bytes: &[u8]) -> Wanted {
    Wanted {
        locked: locked(algorithm, bytes),
        file: "thing-1.bin".to_owned(),
        packing: Packing::Opaque,
    }
}

struct Place {
    dir: TempDir,
    store: Store,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("artifacts")).unwrap();
    Place { dir, store }
}

impl Place {
    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn entry(&self, bytes: &[u8]) -> PathBuf {
        let hex = sha(bytes).to_string();
        self.dir.path().join("artifacts/sha256").join(&hex[..2]).join(hex)
    }
}

fn code(error: Error) -> (Code, Option<String>) {
    match error {
        Error::Refused(refusal) => (refusal.code, refusal.reason.clone()),
        error => panic!("{error}"),
    }
}

#[test]
fn what_entered_is_given_out_as_a_copy_of_its_own() {
    let place = place();
    let bytes = b"the bytes of an artifact";
    let from = place.file("fetched", bytes);
    for algorithm in [
        Algorithm::Sha256,
        Algorithm::Sha512,
        Algorithm::Sha384,
        Algorithm::Sha1,
    ] {
        let wanted = wanted(algorithm, bytes);
        let to = place.dir.path().join(format!("copy-{}", algorithm.name()));
        if algorithm != Algorithm::Sha256 {
            assert!(!place.store.holds(&wanted.locked), "no index of it yet");
        }
        assert_eq!(place.store.enter(&from, &wanted).unwrap(), sha(bytes));
        assert!(place.store.holds(&wanted.locked));
        assert_eq!(
            place.store.name_of(&wanted.locked).as_deref(),
            Some("thing-1.bin")
        );
        assert_eq!(place.store.link(&wanted, &to).unwrap(), sha(bytes));
        assert_eq!(std::fs::read(&to).unwrap(), bytes);
        let (one, two) = (to.metadata().unwrap(), place.entry(bytes).metadata().unwrap());
        assert_ne!(one.ino(), two.ino(), "never the same inode");
        assert_eq!((one.mode() & 0o777, two.mode() & 0o777), (0o444, 0o444));
        // What is done to the copy, by whoever can, is not seen in the store.
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&to, "poison").unwrap();
        assert_eq!(std::fs::read(place.entry(bytes)).unwrap(), bytes);
    }
}

#[test]
fn what_is_not_what_the_lock_names_does_not_enter() {
    let place = place();
    let from = place.file("fetched", b"other bytes");
    let wanted = wanted(Algorithm::Sha512, b"the bytes");
    let error = place.store.enter(&from, &wanted).unwrap_err();
    assert_eq!(
        code(error),
        (Code::InstallFailed, Some("artifact_digest".to_owned()))
    );
    assert!(!place.store.holds(&wanted.locked));
    // Neither does what a link leads to, though its bytes are right.
    let right = place.file("right", b"the bytes");
    let link = place.dir.path().join("link");
    std::os::unix::fs::symlink(right, &link).unwrap();
    assert_eq!(
        place.store.enter(&link, &wanted).unwrap_err().code(),
        Code::IoFailed
    );
    let left = std::fs::read_dir(place.dir.path().join("artifacts"))
        .unwrap()
        .count();
    assert_eq!(left, 0, "nothing is left of it");
}

/// Edited, cut, swapped through the index, shared by a second name, open to others, a link: each refused by name, set
/// aside, and fetched anew by the next attempt.
#[test]
fn a_poisoned_entry_is_refused_by_name_and_set_aside() {
    let bytes = b"the bytes of an artifact";
    type Poison = fn(&Place, &Path);
    let poisons: [(&str, Poison); 6] = [
        ("edited", |_, entry| {
            std::fs::set_permissions(entry, PermissionsExt::from_mode(0o644)).unwrap();
            std::fs::write(entry, b"the bytes of an artifacT").unwrap();
            std::fs::set_permissions(entry, PermissionsExt::from_mode(0o444)).unwrap();
        }),
        ("cut", |_, entry| {
            std::fs::remove_file(entry).unwrap();
            std::fs::write(entry, b"the bytes").unwrap();
            std::fs::set_permissions(entry, PermissionsExt::from_mode(0o444)).unwrap();
        }),
        ("a second name", |place, entry| {
            std::fs::hard_link(entry, place.dir.path().join("second")).unwrap();
        }),
        ("open to others", |_, entry| {
            std::fs::set_permissions(entry, PermissionsExt::from_mode(0o664)).unwrap();
        }),
        ("a link", |place, entry| {
            std::fs::rename(entry, place.dir.path().join("elsewhere")).unwrap();
            std::os::unix::fs::symlink(place.dir.path().join("elsewhere"), entry).unwrap();
        }),
        ("a directory", |_, entry| {
            std::fs::remove_file(entry).unwrap();
            std::fs::create_dir(entry).unwrap();
        }),
    ];
    for (what, poison) in poisons {
        let place = place();
        let from = place.file("fetched", bytes);
        let wanted = wanted(Algorithm::Sha512, bytes);
        place.store.enter(&from, &wanted).unwrap();
        poison(&place, &place.entry(bytes));
        let to = place.dir.path().join("copy");
        let error = place.store.link(&wanted, &to).unwrap_err();
        let Error::Refused(refusal) = &error else {
            panic!("{what}: {error}");
        };
        assert_eq!(refusal.names[0], "thing-1.bin", "{what}");
        assert_eq!(
            code(error),
            (Code::RecordMismatch, Some("poisoned_artifact".to_owned())),
            "{what}"
        );
        assert!(!to.exists(), "{what}: nothing of it reaches the generation");
        assert!(!place.store.holds(&wanted.locked), "{what}: it is out of the way");
        place.store.enter(&from, &wanted).unwrap();
        place.store.link(&wanted, &to).unwrap();
    }
}

/// The index of another digest leads to a whole, but other, artifact.
#[test]
fn an_index_that_leads_elsewhere_is_found_out() {
    let place = place();
    let (one, two) = (b"the first artifact", b"the other artifact");
    for bytes in [one, two] {
        let from = place.file("fetched", bytes);
        place
            .store
            .enter(&from, &wanted(Algorithm::Sha512, bytes))
            .unwrap();
    }
    let first = wanted(Algorithm::Sha512, one);
    let hex = first.locked.hex();
    let index = place
        .dir
        .path()
        .join("artifacts/sha512")
        .join(&hex[..2])
        .join(&hex);
    std::fs::write(index, sha(two).to_string()).unwrap();
    let error = place
        .store
        .link(&first, &place.dir.path().join("copy"))
        .unwrap_err();
    assert_eq!(code(error).1.as_deref(), Some("poisoned_artifact"));
}

const MAKE: &str = r##"
import io, json, stat, sys, tarfile, zipfile
out = sys.argv[1]
long = "package/" + "d" * 90 + "/" + "e" * 90 + ".js"
for kind, form in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
    with tarfile.open(f"{out}/{kind}.tgz", "w:gz", format=form) as tar:
        def add(name, data, mode=0o644):
            info = tarfile.TarInfo(name); info.size = len(data); info.mode = mode
            tar.addfile(info, io.BytesIO(data))
        info = tarfile.TarInfo("package"); info.type = tarfile.DIRTYPE; info.mode = 0o755; tar.addfile(info)
        add("package/package.json", b'{"name":"a"}')
        add("package/cli.js", b"#!/usr/bin/env node\r\nok\r\n", 0o755)
        add("package/empty", b"")
        add("package/b\u00e4.txt".encode().decode(), b"x" * 513)
        add(long, b"long")
        add("package/twice", b"one"); add("package/twice", b"two")
        if True:
            info = tarfile.TarInfo("package/link"); info.type = tarfile.SYMTYPE; info.linkname = "cli.js"; tar.addfile(info)
            info = tarfile.TarInfo("package/hard"); info.type = tarfile.LNKTYPE; info.linkname = "package/cli.js"; tar.addfile(info)
with zipfile.ZipFile(f"{out}/a.whl", "w") as z:
    def put(name, data, mode=0o644, how=zipfile.ZIP_DEFLATED):
        info = zipfile.ZipInfo(name); info.external_attr = (stat.S_IFREG | mode) << 16; info.compress_type = how
        z.writestr(info, data)
    put("a/__init__.py", "X = 1\n" * 40000)
    put("a/stored.py", "Y = 1\n", how=zipfile.ZIP_STORED)
    put("a/", b"", 0o755)
    put("a-1.data/scripts/run", "#!python\nimport a\n", 0o755)
    put("a-1.data/scripts/binary", b"\x7fELF", 0o755)
    put("a-1.dist-info/entry_points.txt", "[console_scripts]\na = a:main\n")
    z.comment = b"a comment with PK\x05\x06 in it"
with zipfile.ZipFile(f"{out}/twice.whl", "w") as z:
    import warnings; warnings.simplefilter("ignore")
    z.writestr("a.py", "1"); z.writestr("a.py", "2")
with zipfile.ZipFile(f"{out}/out.whl", "w") as z:
    z.writestr("../a.py", "1")
"##;

fn archives() -> Option<TempDir> {
    let python = python()?;
    let dir = tempfile::tempdir().unwrap();
    prepare(
        &python,
        &["-I", "-c", MAKE, dir.path().to_str().unwrap()],
        dir.path(),
        &[],
    );
    Some(dir)
}

#[test]
fn tarballs_are_read_as_other_tools_write_them() {
    let Some(dir) = archives() else { return };
    let long = format!("{}/{}.js", "d".repeat(90), "e".repeat(90));
    for kind in ["ustar", "gnu", "pax"] {
        let Contents { members, texts, .. } =
            contents(&dir.path().join(format!("{kind}.tgz")), Packing::Npm).unwrap();
        let of = |name: &str| {
            members
                .get(&path(name))
                .cloned()
                .unwrap_or_else(|| panic!("{kind}: {name}"))
        };
        let file = |mode, bytes: &[u8]| Fact::File {
            mode,
            size: bytes.len() as u64,
            sha256: sha(bytes),
        };
        assert_eq!(of("empty"), file(0o644, b""));
        assert_eq!(of("bä.txt"), file(0o644, &[b'x'; 513]));
        assert_eq!(of(&long), file(0o644, b"long"));
        assert_eq!(of("twice"), file(0o644, b"two"), "as tar does: the last one");
        let cli = b"#!/usr/bin/env node\r\nok\r\n";
        assert_eq!(of("cli.js"), file(0o755, cli));
        assert_eq!(
            of("link"),
            Fact::Symlink {
                target: b"cli.js".to_vec()
            }
        );
        assert_eq!(members.len(), 7, "{members:?}");
        assert_eq!(
            texts[&path("cli.js")],
            cli,
            "a command whose first line is mended"
        );
        assert_eq!(texts[&path("package.json")], b"{\"name\":\"a\"}");
        assert_eq!(texts.len(), 2);
    }
}

#[test]
fn wheels_are_read_by_their_directory() {
    let Some(dir) = archives() else { return };
    let Contents { members, texts, .. } = contents(&dir.path().join("a.whl"), Packing::Wheel).unwrap();
    let text = "X = 1\n".repeat(40_000);
    let fact = Fact::File {
        mode: 0o644,
        size: text.len() as u64,
        sha256: sha(text.as_bytes()),
    };
    assert_eq!(members[&path("a/__init__.py")], fact);
    assert!(members.contains_key(&path("a/stored.py")));
    assert_eq!(members.len(), 5);
    let kept: Vec<String> = texts.keys().map(ToString::to_string).collect();
    assert_eq!(kept, ["a-1.data/scripts/run", "a-1.dist-info/entry_points.txt"]);
    for bad in ["twice.whl", "out.whl"] {
        let error = contents(&dir.path().join(bad), Packing::Wheel).unwrap_err();
        assert_eq!(error.code(), Code::RecordMismatch, "{bad}");
    }
}

/// Cut or changed anywhere, an archive is refused or read: it never ends the process, and never takes for ever.
#[test]
fn damaged_archives_are_refused() {
    let Some(dir) = archives() else { return };
    let mut verdicts: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, packing) in [
        ("gnu.tgz", Packing::Npm),
        ("pax.tgz", Packing::Npm),
        ("a.whl", Packing::Wheel),
    ] {
        let whole = std::fs::read(dir.path().join(name)).unwrap();
        let sound = contents(&dir.path().join(name), packing).unwrap();
        let broken = dir.path().join("broken");
        for at in (0..whole.len()).step_by(3) {
            std::fs::write(&broken, &whole[..at]).unwrap();
            // A tar ends before its last blocks: nothing else may be lost.
            if let Ok(read) = contents(&broken, packing) {
                assert_eq!(read.members, sound.members, "{name} cut at {at}");
            }
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            std::fs::write(&broken, &changed).unwrap();
            let verdict = match contents(&broken, packing) {
                Ok(_) => "read",
                Err(error) if matches!(error.code(), Code::RecordMismatch | Code::TooLarge) => "refused",
                Err(error) => panic!("{name} changed at {at}: {error}"),
            };
            *verdicts.entry(verdict).or_default() += 1;
        }
    }
    assert!(verdicts["refused"] > 100, "{verdicts:?}");
}

#[test]
fn a_crate_is_unpacked_with_times_of_now() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let make = r#"
import io, sys, tarfile
for name, link in (("a", False), ("b", True)):
    with tarfile.open(f"{sys.argv[1]}/{name}.crate", "w:gz") as tar:
        info = tarfile.TarInfo("x-1.0.0/src/lib.rs"); info.size = 3; info.mtime = 0
        tar.addfile(info, io.BytesIO(b"abc"))
        if link:
            info = tarfile.TarInfo("x-1.0.0/l"); info.type = tarfile.SYMTYPE; info.linkname = "/etc/passwd"; tar.addfile(info)
"#;
    prepare(
        &python,
        &["-I", "-c", make, dir.path().to_str().unwrap()],
        dir.path(),
        &[],
    );
    let to = dir.path().join("x");
    let contents = unpack_crate(&dir.path().join("a.crate"), &to).unwrap();
    assert_eq!(contents.members.len(), 1);
    let facts = to.join("src/lib.rs").metadata().unwrap();
    assert_eq!(std::fs::read(to.join("src/lib.rs")).unwrap(), b"abc");
    assert!(
        facts.mtime() > 1_000_000_000,
        "vector 47: not the time in the archive"
    );
    let error = unpack_crate(&dir.path().join("b.crate"), &dir.path().join("y")).unwrap_err();
    assert_eq!(error.code(), Code::RecordMismatch);
}
