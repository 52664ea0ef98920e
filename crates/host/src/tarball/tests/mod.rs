use super::*;
mod differ;
mod identity;
#[path = "../../../../../fuzz/fuzz_targets/laws_of_archives.rs"]
mod laws;
mod mutate;
mod pointers;

use crate::files::FileKind;
use crate::root::Root;
use crate::root::tests::skipped;
use crate::tarball::header::{Header, Type, encode};
use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode};
use semel_core::RelPath;
use semel_core::git_tree::ObjectFormat;
use semel_core::manifest::{Entry, Manifest, WhyLeftOut};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

const END: [u8; 1024] = [0; 1024];
const MOST: u64 = 1 << 30;
const LIMITS: Limits = Limits {
    entries: 200_000,
    archive_bytes: MOST,
};
const SHA1: ObjectFormat = ObjectFormat::Sha1;

/// Writes a header field by field, also such as no honest writer would.
#[derive(Clone)]
struct Raw {
    name: Vec<u8>,
    kind: u8,
    size: Vec<u8>,
    link: Vec<u8>,
    mode: u32,
    magic: [u8; 8],
    device: (u32, u32),
}

fn raw(name: impl AsRef<[u8]>, size: usize, kind: u8) -> Raw {
    Raw {
        name: name.as_ref().to_vec(),
        kind,
        size: format!("{size:011o}\0").into_bytes(),
        link: Vec::new(),
        mode: if kind == b'5' { 0o755 } else { 0o644 },
        magic: *b"ustar\x0000",
        device: (0, 0),
    }
}

impl Raw {
    fn block(&self) -> Vec<u8> {
        let mut b = vec![0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| b[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.name);
        put(100, format!("{:07o}\0", self.mode).as_bytes());
        put(108, b"0000000\x000000000\0");
        put(124, &self.size);
        put(136, b"00000000000\0");
        put(156, &[self.kind]);
        put(157, &self.link);
        put(257, &self.magic);
        put(
            329,
            format!("{:07o}\0{:07o}\0", self.device.0, self.device.1).as_bytes(),
        );
        put(148, b"        ");
        let sum: u32 = b.iter().map(|x| u32::from(*x)).sum();
        b[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        b
    }
}

fn pad(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = bytes.as_ref().to_vec();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn with(name: impl AsRef<[u8]>, content: &[u8]) -> Vec<u8> {
    [raw(name, content.len(), b'0').block(), pad(content)].concat()
}

fn f(name: impl AsRef<[u8]>) -> Vec<u8> {
    with(name, b"data")
}

fn link(name: &str, target: &str, kind: u8) -> Vec<u8> {
    let mut header = raw(name, 0, kind);
    header.link = target.as_bytes().to_vec();
    header.block()
}

fn mode(name: &str, kind: u8, mode: u32) -> Vec<u8> {
    let mut header = raw(name, 0, kind);
    header.mode = mode;
    header.block()
}

fn magic(name: &str, kind: u8, magic: &[u8; 8]) -> Vec<u8> {
    let mut header = raw(name, 0, kind);
    header.magic = *magic;
    header.block()
}

fn sized(name: &str, size: &[u8]) -> Vec<u8> {
    let mut header = raw(name, 0, b'0');
    header.size = size.to_vec();
    header.block()
}

fn pax(records: &[(&str, &[u8])], kind: u8) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let length = (rest..).find(|n| n.to_string().len() + rest == *n).unwrap();
        body.extend_from_slice(format!("{length} {key}=").as_bytes());
        body.extend_from_slice(value);
        body.push(b'\n');
    }
    [raw("PaxHeaders/x", body.len(), kind).block(), pad(body)].concat()
}

fn cat(parts: &[Vec<u8>]) -> Vec<u8> {
    parts.concat()
}

fn ended(parts: &[Vec<u8>]) -> Vec<u8> {
    [parts.concat(), END.to_vec()].concat()
}

#[expect(clippy::too_many_lines, reason = "one table, a case a line")]
/// Every hostile or ambiguous archive, with the reason for which it is refused.
fn hostile() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let out = "/OUTSIDE";
    let mut device = raw("null", 0, b'3');
    device.device = (1, 3);
    let long = |text: &[u8]| [raw("././@LongLink", text.len(), b'L').block(), pad(text)].concat();
    let mut bad_checksum = raw("bc", 4, b'0').block();
    bad_checksum[148..156].copy_from_slice(b"000000\0 ");
    let deep = [b"d/".repeat(2100), b"x".to_vec()].concat();
    let mut all = vec![
        ("abs", f("/OUTSIDE/abs"), "path_escapes"),
        ("dotdot", f("../OUTSIDE/dd"), "path_escapes"),
        ("dotdot_mid", f("a/../../OUTSIDE/dm"), "path_escapes"),
        (
            "symlink_abs_then_file",
            cat(&[link("l", out, b'2'), f("l/through")]),
            "parent_not_directory",
        ),
        (
            "symlink_rel_then_file",
            cat(&[link("l", "../OUTSIDE", b'2'), f("l/x")]),
            "parent_not_directory",
        ),
        (
            "symlink_then_same_name",
            cat(&[link("l", "x", b'2'), f("l")]),
            "duplicate",
        ),
        (
            "symlink_escape_alone",
            link("l", "../../../../etc/passwd", b'2'),
            "link_outside",
        ),
        (
            "symlink_abs_alone",
            link("l", "/etc/passwd", b'2'),
            "link_outside",
        ),
        ("hardlink_abs", link("hl", "/OUTSIDE/secret", b'1'), "hard_link"),
        (
            "hardlink_dotdot_then_write",
            cat(&[link("hl", "../s", b'1'), f("hl")]),
            "hard_link",
        ),
        (
            "hardlink_to_symlink",
            cat(&[link("s", "x", b'2'), link("hl", "s", b'1'), f("hl")]),
            "hard_link",
        ),
        (
            "dir_over_symlink_chmod",
            cat(&[link("d", "e", b'2'), mode("d/", b'5', 0o777)]),
            "empty_directory",
        ),
        (
            "dir_over_symlink_filled",
            cat(&[link("d", "e", b'2'), raw("d/", 0, b'5').block(), f("d/x")]),
            "parent_not_directory",
        ),
        ("device", device.block(), "special_file"),
        ("fifo", raw("p", 0, b'6').block(), "special_file"),
        ("setuid", cat(&[mode("su", b'0', 0o4755)]), "mode"),
        ("unreadable", mode("x", b'0', 0o044), "mode"),
        (
            "closed_directory",
            cat(&[mode("d/", b'5', 0o500), f("d/x")]),
            "mode",
        ),
        ("sticky_world", mode("w/", b'5', 0o1777), "mode"),
        (
            "dup",
            cat(&[with("x", b"first"), with("x", b"second")]),
            "duplicate",
        ),
        (
            "dup_dir",
            cat(&[raw("x/", 0, b'5').block(), raw("x/", 0, b'5').block(), f("x/y")]),
            "duplicate",
        ),
        (
            "dup_dir_file",
            cat(&[raw("x/", 0, b'5').block(), f("x/y"), f("x")]),
            "duplicate",
        ),
        ("file_as_parent", cat(&[f("x"), f("x/y")]), "parent_not_directory"),
        ("case", cat(&[f("Readme"), f("README")]), "name_collision"),
        ("nfc_nfd", cat(&[f("caf\u{e9}"), f("cafe\u{301}")]), "name_form"),
        ("badutf8", f(b"bad\xff\xfe"), "name_encoding"),
        ("newline", f("new\nline"), "control_character"),
        ("ctrl", f("esc\x1b[31m"), "control_character"),
        ("dot_git", f(".git/hooks/pre-commit"), "git_internals"),
        ("dot_git_deep", f("a/b/.GIT/config"), "git_internals"),
        ("drive", f("C:x"), "foreign_root"),
        (
            "drive_directory",
            cat(&[raw("c:/", 0, b'5').block(), f("c:/x")]),
            "foreign_root",
        ),
        ("backslash", f("\\x"), "foreign_root"),
        ("empty_comp", f("a//b"), "path"),
        ("dot_comp", f("./a/./b"), "path"),
        ("trailing_slash_file", f("file/"), "path"),
        ("root", raw("./", 0, b'5').block(), "path"),
        ("no_name", f(""), "path"),
        (
            "tarmageddon_ustar0_pax_size",
            cat(&[
                pax(&[("size", b"1024")], b'x'),
                raw("outer", 0, b'0').block(),
                raw("smuggled", 0, b'0').block(),
                pad(vec![b'x'; 512]),
            ]),
            "extended_size",
        ),
        (
            "pax_x_L_file",
            cat(&[
                pax(&[("size", b"2048")], b'x'),
                long(b"longname.txt\0"),
                f("file_a"),
            ]),
            "entry_type",
        ),
        (
            "pax_size_vs_nonzero",
            cat(&[
                pax(&[("size", b"512")], b'x'),
                raw("big", 1024, b'0').block(),
                vec![b'1'; 512],
                f("tail"),
            ]),
            "extended_size",
        ),
        (
            "pax_path_override",
            cat(&[pax(&[("path", b"../OUTSIDE/pax")], b'x'), f("innocent")]),
            "path_escapes",
        ),
        (
            "pax_linkpath",
            cat(&[pax(&[("linkpath", b"/OUTSIDE")], b'x'), link("l", "ok", b'2')]),
            "link_outside",
        ),
        (
            "pax_linkpath_on_file",
            cat(&[pax(&[("linkpath", b"x")], b'x'), f("n")]),
            "extended_key",
        ),
        (
            "pax_nul_path",
            cat(&[pax(&[("path", b"a\0b")], b'x'), f("n")]),
            "extended_header",
        ),
        (
            "pax_dup_key",
            cat(&[pax(&[("path", b"one"), ("path", b"two")], b'x'), f("n")]),
            "extended_twice",
        ),
        (
            "pax_two",
            cat(&[
                pax(&[("path", b"one")], b'x'),
                pax(&[("path", b"two")], b'x'),
                f("n"),
            ]),
            "extended_twice",
        ),
        (
            "pax_other_key",
            cat(&[pax(&[("mtime", b"1")], b'x'), f("n")]),
            "extended_key",
        ),
        (
            "pax_empty",
            cat(&[raw("PaxHeaders/x", 0, b'x').block(), f("n")]),
            "extended_header",
        ),
        (
            "pax_global_path",
            cat(&[pax(&[("path", b"glob")], b'g'), f("n1"), f("n2")]),
            "global_header",
        ),
        (
            "pax_garbage",
            cat(&[raw("PaxHeaders/x", 8, b'x').block(), pad("zzzzzzzz"), f("n")]),
            "extended_header",
        ),
        ("pax_at_end", pax(&[("path", b"one")], b'x'), "checksum"),
        (
            "gnu_longname",
            cat(&[long(&[b'q'; 150]), f("short")]),
            "entry_type",
        ),
        (
            "two_longnames",
            cat(&[long(b"aaa\0"), long(b"bbb\0"), f("short")]),
            "entry_type",
        ),
        (
            "base256_size",
            cat(&[sized("b256", b"\x80\0\0\0\0\0\0\0\0\0\0\x04"), pad("data")]),
            "number",
        ),
        ("base256_negative", sized("neg", &[0xff; 12]), "number"),
        (
            "huge_size",
            cat(&[sized("huge", b"77777777777\0"), pad("data")]),
            "archive_bytes",
        ),
        (
            "size_spaces",
            cat(&[sized("sp", b"         4 \0"), pad("data")]),
            "number",
        ),
        ("bad_checksum", cat(&[bad_checksum, pad("data")]), "checksum"),
        ("sparse_gnu", magic("sparse", b'S', b"ustar  \0"), "format"),
        (
            "type_V",
            cat(&[raw("label", 0, b'V').block(), f("a")]),
            "entry_type",
        ),
        (
            "type_unknown",
            cat(&[raw("unk", 4, b'Z').block(), pad("data"), f("a")]),
            "entry_type",
        ),
        (
            "type_7_contig",
            cat(&[raw("contig", 4, b'7').block(), pad("data")]),
            "entry_type",
        ),
        (
            "type_nul",
            cat(&[raw("old", 4, 0).block(), pad("data")]),
            "entry_type",
        ),
        ("old_v7_dir", magic("v7dir/", 0, &[0; 8]), "format"),
        (
            "dir_with_size",
            cat(&[
                raw("d/", 512, b'5').block(),
                raw("in_body", 0, b'0').block(),
                f("tail"),
            ]),
            "size",
        ),
        (
            "symlink_with_size",
            cat(&[
                {
                    let mut l = raw("l", 512, b'2');
                    l.link = b"x".to_vec();
                    l.block()
                },
                raw("in_body", 0, b'0').block(),
            ]),
            "size",
        ),
        ("deep_name", cat(&[pax(&[("path", &deep)], b'x'), f("n")]), "path"),
        (
            "too_deep",
            cat(&[
                pax(&[("path", &[b"d/".repeat(64), b"x".to_vec()].concat())], b'x'),
                f("n"),
            ]),
            "path",
        ),
        (
            "long_component",
            cat(&[pax(&[("path", &[b'n'; 256])], b'x'), f("n")]),
            "path",
        ),
        ("empty_directory", raw("d/", 0, b'5').block(), "empty_directory"),
        ("name_behind_nul", f(b"a\0b"), "field"),
        (
            "file_padding",
            cat(&[raw("p", 4, b'0').block(), {
                let mut d = pad("data");
                d[9] = 1;
                d
            }]),
            "padding",
        ),
    ];
    for (_, bytes, _) in &mut all {
        bytes.extend_from_slice(&END);
    }
    let z = with("a", &[b'z'; 5000]);
    all.extend([
        (
            "after_end",
            cat(&[f("a"), END.to_vec(), f("after_end_marker")]),
            "trailing_data",
        ),
        (
            "one_zero_block",
            cat(&[f("a"), vec![0; 512], f("after_one_zero"), END.to_vec()]),
            "end",
        ),
        ("no_end", f("a"), "truncated"),
        ("half_an_end", cat(&[f("a"), vec![0; 512]]), "truncated"),
        ("truncated", z[..2000].to_vec(), "truncated"),
        (
            "much_padding",
            cat(&[f("a"), vec![0; 1024 + 10_241]]),
            "trailing_data",
        ),
        ("nothing", Vec::new(), "truncated"),
        (
            "part_of_a_block",
            cat(&[f("a"), vec![0; 1024 + 3]]),
            "trailing_data",
        ),
        (
            "part_of_a_block_of_padding",
            cat(&[f("a"), vec![0; 1024 + 512 + 511]]),
            "trailing_data",
        ),
    ]);
    all
}

fn unpacked(archive: &[u8], into: &Path) -> Result<Manifest> {
    let limits = Limits {
        entries: 1000,
        archive_bytes: 1 << 30,
    };
    unpack(&mut &archive[..], limits, &Root::open(into).unwrap(), Some(SHA1))
}

fn reason(error: crate::Error) -> String {
    assert_eq!(error.code(), Code::ProposalRefused, "{error}");
    error.into_refusal().reason.unwrap()
}

#[test]
fn hostile_archives_are_refused_by_name_and_leave_nothing() {
    let outer = tempfile::tempdir().unwrap();
    let into = outer.path().join("tree");
    std::fs::create_dir(&into).unwrap();
    let all = hostile();
    assert!(all.len() > 56, "{} cases", all.len());
    for (name, archive, wanted) in all {
        // A good entry before it must vanish as well.
        for archive in [archive.clone(), [f("good/entry"), archive].concat()] {
            let error = unpacked(&archive, &into).map(|_| ()).unwrap_err();
            assert_eq!(reason(error), wanted, "{name}");
            assert_eq!(
                std::fs::read_dir(&into).unwrap().count(),
                0,
                "{name} left something"
            );
        }
    }
    assert_eq!(
        std::fs::read_dir(outer.path()).unwrap().count(),
        1,
        "nothing outside"
    );
}

#[test]
fn plain_archives_of_other_writers_are_read() {
    let into = tempfile::tempdir().unwrap();
    let archive = ended(&[
        raw("a/", 0, b'5').block(),
        f("a/b"),
        mode("a/run", b'0', 0o775),
        link("l", "a/b", b'2'),
        f("C\\x"),
        vec![0; 8192],
    ]);
    let manifest = unpacked(&archive, into.path()).unwrap();
    let names: Vec<String> = manifest.entries.iter().map(|e| e.path().to_string()).collect();
    assert_eq!(names, ["C\\x", "a/b", "a/run", "l"]);
    assert_eq!(manifest.archive_sha256, Sha256::of(&archive));
    assert_eq!(manifest.archive_size, archive.len() as u64);
    assert_eq!(
        std::fs::metadata(into.path().join("a/run")).unwrap().mode() & 0o7777,
        0o755
    );
    assert_eq!(std::fs::read(into.path().join("l")).unwrap(), b"data");
    let again = unpacked(&archive, into.path()).unwrap_err();
    assert_eq!(
        again.code(),
        Code::PreconditionFailed,
        "only into an empty directory"
    );
    assert_eq!(
        std::fs::read_dir(into.path()).unwrap().count(),
        3,
        "what was there stays"
    );
}

#[test]
fn limits_hold() {
    let into = tempfile::tempdir().unwrap();
    let root = Root::open(into.path()).unwrap();
    let archive = ended(&[f("a"), f("b"), f("c")]);
    let limits = |entries, archive_bytes| Limits {
        entries,
        archive_bytes,
    };
    for (limits, wanted) in [
        (limits(2, 1 << 20), "entries"),
        (limits(9, archive.len() as u64 - 1), "archive_bytes"),
    ] {
        let error = unpack(&mut archive.as_slice(), limits, &root, None).unwrap_err();
        assert_eq!(reason(error), wanted);
        assert_eq!(std::fs::read_dir(into.path()).unwrap().count(), 0);
    }
    assert!(
        unpack(
            &mut archive.as_slice(),
            limits(3, archive.len() as u64),
            &root,
            None
        )
        .is_ok()
    );
}

#[test]
fn long_fields_go_through_extended_headers() {
    let deep = vec!["n".repeat(60); 60].join("/");
    let big = Header {
        kind: Type::File,
        name: deep.clone().into_bytes(),
        link: Vec::new(),
        mode: 0o644,
        size: 9 << 30,
    };
    let bytes = encode(&big);
    assert!(bytes.len().is_multiple_of(512));
    let archive = [bytes, vec![0; 512]].concat();
    let into = tempfile::tempdir().unwrap();
    let limits = Limits {
        archive_bytes: 10 << 30,
        ..Limits::default()
    };
    let root = Root::open(into.path()).unwrap();
    // The size of nine gibibytes is understood: it is what goes past the end, or past the limit.
    let error = unpack(&mut archive.as_slice(), limits, &root, None).unwrap_err();
    assert_eq!(reason(error), "truncated");
    let error = unpack(&mut archive.as_slice(), Limits::default(), &root, Some(SHA1)).unwrap_err();
    assert_eq!(reason(error), "archive_bytes");
}

fn take(_: &RelPath, _: FileKind) -> std::result::Result<Choice, Refusal> {
    Ok(Choice::Take)
}

#[test]
fn what_is_left_out_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, proposals) = (dir.path().join("tree"), dir.path().join("proposals"));
    for name in ["empty", "src", "node_modules/x", ".git", "vendor/.git"] {
        std::fs::create_dir_all(tree.join(name)).unwrap();
    }
    for name in [
        "src/a",
        "node_modules/x/y",
        ".git/HEAD",
        "vendor/.git/HEAD",
        "vendor/v",
    ] {
        std::fs::write(tree.join(name), name).unwrap();
    }
    std::fs::set_permissions(tree.join("src/a"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let root = Root::open(&tree).unwrap();
    let mut choose = |path: &RelPath, _: FileKind| {
        Ok(match path.as_bytes() {
            b"node_modules" => Choice::LeaveOut(WhyLeftOut::Ignored),
            _ => Choice::Take,
        })
    };
    let sealed = pack(&root, &mut choose, LIMITS, SHA1, &proposals).unwrap();
    let names: Vec<String> = sealed
        .manifest
        .entries
        .iter()
        .map(|e| e.path().to_string())
        .collect();
    assert_eq!(names, ["src/a", "vendor/v"]);
    let left: Vec<(String, WhyLeftOut)> = sealed
        .manifest
        .left_out
        .iter()
        .map(|l| (l.path.to_string(), l.why))
        .collect();
    assert_eq!(
        left,
        [
            (".git".to_owned(), WhyLeftOut::GitInternals),
            ("empty".to_owned(), WhyLeftOut::EmptyDirectory),
            ("node_modules".to_owned(), WhyLeftOut::Ignored),
            ("vendor/.git".to_owned(), WhyLeftOut::GitInternals),
        ]
    );
    let bytes = std::fs::read(&sealed.path).unwrap();
    assert_eq!(Sha256::of(&bytes), sealed.manifest.archive_sha256);
    assert_eq!(bytes.len() as u64, sealed.manifest.archive_size);
    assert_eq!(
        sealed.path,
        archive_path(&proposals, &sealed.manifest.archive_sha256)
    );
    assert_eq!(std::fs::metadata(&sealed.path).unwrap().mode() & 0o7777, 0o444);
    assert_eq!(
        pack(&root, &mut choose, LIMITS, SHA1, &proposals).unwrap(),
        sealed,
        "sealed twice is one archive"
    );
}

#[test]
fn what_cannot_be_sealed_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, proposals) = (dir.path().join("tree"), dir.path().join("proposals"));
    std::fs::create_dir_all(tree.join("src")).unwrap();
    std::fs::write(tree.join("src/a"), "").unwrap();
    let root = Root::open(&tree).unwrap();
    let refused = |why: &str| {
        let error = pack(&root, &mut take, LIMITS, SHA1, &proposals)
            .map(|_| ())
            .unwrap_err();
        assert_eq!(reason(error), why);
        for place in ["tmp", "sha256"] {
            let left = std::fs::read_dir(proposals.join(place)).map_or(0, Iterator::count);
            assert_eq!(left, 0, "nothing is left");
        }
    };
    rustix::fs::mknodat(CWD, tree.join("src/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    refused("special_file");
    std::fs::remove_file(tree.join("src/fifo")).unwrap();
    symlink("/etc", tree.join("src/out")).unwrap();
    refused("link_outside");
    std::fs::remove_file(tree.join("src/out")).unwrap();
    std::fs::write(tree.join("src/A"), "").unwrap();
    refused("name_collision");
    std::fs::remove_file(tree.join("src/A")).unwrap();
    // A sparse file costs its maker nothing.
    std::fs::File::create(tree.join("src/sparse"))
        .unwrap()
        .set_len(MOST + 1)
        .unwrap();
    refused("archive_size");
    std::fs::remove_file(tree.join("src/sparse")).unwrap();
    let refusing = &mut |_: &RelPath, _: FileKind| Err(refused_by_rule());
    assert_eq!(
        pack(&root, refusing, LIMITS, SHA1, &proposals)
            .unwrap_err()
            .code(),
        Code::TreeMismatch
    );
}

fn refused_by_rule() -> Refusal {
    Refusal::new(Code::TreeMismatch, "the caller's rule")
}

#[test]
fn other_readers_see_the_same_entries() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    let long = format!("{}/{}", "p".repeat(90), "q".repeat(90));
    std::fs::create_dir_all(tree.join(&long)).unwrap();
    std::fs::write(tree.join(&long).join("f"), "long").unwrap();
    std::fs::write(tree.join("short"), "short").unwrap();
    symlink(format!("{long}/f"), tree.join("link")).unwrap();
    let sealed = pack(
        &Root::open(&tree).unwrap(),
        &mut take,
        LIMITS,
        SHA1,
        &dir.path().join("p"),
    )
    .unwrap();
    let Ok(listed) = std::process::Command::new("tar")
        .arg("-tvf")
        .arg(&sealed.path)
        .output()
    else {
        skipped("no tar here");
        return;
    };
    assert!(listed.status.success(), "{listed:?}");
    let text = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.contains(&format!("link -> {long}/f")), "{text}");
    assert!(text.contains(&format!("{long}/f\n")), "{text}");
}

#[derive(Clone, Debug)]
enum Made {
    File(Vec<u8>, bool),
    Link(String),
}

fn trees() -> impl Strategy<Value = BTreeMap<String, Made>> {
    let name = "[a-c]{1,2}(/[d-f]{1,2}){0,3}/[g-i]{1,3}|[g-i]{1,3}|[j-l]{120}/[m-o]{3}";
    let made = prop_oneof![
        4 => (proptest::collection::vec(any::<u8>(), 0..1500), any::<bool>()).prop_map(|(b, x)| Made::File(b, x)),
        1 => "[a-i]{1,3}|[a-i]{110}".prop_map(Made::Link),
    ];
    proptest::collection::btree_map(name, made, 0..12)
}

fn build(at: &Path, tree: &BTreeMap<String, Made>) {
    for (name, made) in tree {
        let path = at.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match made {
            Made::File(bytes, executable) => {
                std::fs::write(&path, bytes).unwrap();
                let bits = if *executable { 0o755 } else { 0o640 };
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(bits)).unwrap();
            }
            Made::Link(target) => symlink(target, &path).unwrap(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_was_sealed_is_what_is_unpacked(tree in trees()) {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let (first, second, unpacked_to) = (place("first"), place("second"), place("unpacked"));
        let proposals = dir.path().join("proposals");
        build(&first, &tree);
        let sealed = match pack(&Root::open(&first).unwrap(), &mut take, LIMITS, SHA1, &proposals) {
            Ok(sealed) => sealed,
            // Links made at random may lead in a circle.
            Err(error) => {
                prop_assert_eq!(reason(error), "link_outside");
                return Ok(());
            }
        };
        prop_assert_eq!(sealed.manifest.check(), Ok(()));
        build(&second, &tree);
        let again = pack(&Root::open(&second).unwrap(), &mut take, LIMITS, SHA1, &proposals).unwrap();
        prop_assert_eq!(&again, &sealed, "the same tree is the same archive");

        let bytes = std::fs::read(&sealed.path).unwrap();
        let root = Root::open(&unpacked_to).unwrap();
        let manifest = unpack(&mut bytes.as_slice(), Limits::default(), &root, Some(SHA1)).unwrap();
        prop_assert_eq!(&manifest, &sealed.manifest);
        let third = pack(&root, &mut take, LIMITS, SHA1, &proposals).unwrap();
        prop_assert_eq!(&third.manifest, &sealed.manifest);
        for (name, made) in &tree {
            if let Made::File(bytes, _) = made {
                prop_assert_eq!(&std::fs::read(unpacked_to.join(name)).unwrap(), bytes);
            }
        }
    }

    /// One flipped byte is refused, or it is another archive: never the same one with another content.
    #[test]
    fn a_flipped_byte_never_passes_as_the_same(at in any::<proptest::sample::Index>(), bit in 0..8_u8) {
        let into = tempfile::tempdir().unwrap();
        let mut bytes = ended(&[f("a/b"), link("l", "a/b", b'2'), f("c")]);
        let honest = Sha256::of(&bytes);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(manifest) = unpacked(&bytes, into.path()) {
            prop_assert_ne!(manifest.archive_sha256, honest);
            let sizes = manifest.entries.iter().filter(|e| matches!(e, Entry::File { size: 4, .. })).count();
            prop_assert_eq!((manifest.entries.len(), sizes), (3, 2), "only content changed");
        } else {
            prop_assert_eq!(std::fs::read_dir(into.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        let into = tempfile::tempdir().unwrap();
        if unpacked(&bytes, into.path()).is_err() {
            prop_assert_eq!(std::fs::read_dir(into.path()).unwrap().count(), 0);
        }
    }
}
