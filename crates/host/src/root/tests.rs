use super::*;
use crate::files::{list_directory, read_file};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

/// Says, past the capture of the test's output, that a test could not run here, or only in part.
pub(crate) fn skipped(why: &str) {
    told(&format!("SKIPPED: {why}"));
}

/// Writes past the capture of the test's output.
pub(crate) fn told(what: &str) {
    use std::io::Write as _;
    writeln!(std::io::stderr(), "{what}").unwrap();
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

/// The same directory by either resolver: each must answer alike.
fn both(dir: &Path) -> [Root; 2] {
    let open = || Root::open(dir).unwrap();
    assert_eq!(open().resolver(), Resolver::Openat2, "this kernel has openat2");
    [open(), open().with_resolver(Resolver::Walk)]
}

fn refusal(error: Error) -> (Code, String) {
    match error {
        Error::Refused(refusal) => (refusal.code, refusal.reason.unwrap_or_default()),
        other => panic!("{other}"),
    }
}

#[test]
fn links_inside_are_followed_and_links_outside_are_not() {
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("root");
    std::fs::create_dir_all(dir.join("a/b/c")).unwrap();
    std::fs::write(outer.path().join("secret"), "secret").unwrap();
    std::fs::write(dir.join("a/b/file"), "inside").unwrap();
    std::fs::write(dir.join("plain"), "").unwrap();
    for (link, target) in [
        ("dir", "a/b"),
        ("a/up", "../dir/file"),
        ("last", "dir/../b/file"),
        ("out", ".."),
        ("abs", "/etc"),
        ("circle", "circle"),
        ("a/b/c/top", "../../.."),
        ("sly", "a/b/c/top/.."),
        ("here", "."),
        ("new", "a/new"),
    ] {
        symlink(target, dir.join(link)).unwrap();
    }
    for root in both(&dir) {
        for (given, resolved) in [
            ("a/b/file", "a/b/file"),
            ("dir/file", "a/b/file"),
            ("a/up", "a/b/file"),
            ("last", "a/b/file"),
            ("here/here/dir/file", "a/b/file"),
            ("a/b/c/top/plain", "plain"),
            ("new", "a/new"),
        ] {
            let found = root.place(&path(given), LastLink::Follow).unwrap();
            assert_eq!(found.resolved, path(resolved), "{given} by {:?}", root.resolver());
        }
        let kept = root.place(&path("here/a/up"), LastLink::Keep).unwrap();
        assert_eq!((kept.resolved, kept.name.as_slice()), (path("a/up"), &b"up"[..]));
        for (given, reason) in [
            ("out/secret", "link_outside"),
            ("abs/passwd", "link_outside"),
            ("abs", "link_outside"),
            ("circle", "link_circle"),
            ("circle/x", "link_circle"),
            ("sly/secret", "link_outside"),
            ("here", "root"),
        ] {
            let error = root.place(&path(given), LastLink::Follow).unwrap_err();
            let wanted = (Code::PathEscapesRoot, reason.to_owned());
            assert_eq!(refusal(error), wanted, "{given} by {:?}", root.resolver());
        }
        for (given, reason) in [
            ("none/x", "parent_missing"),
            ("plain/x", "parent_not_directory"),
            ("dir/file/x", "parent_not_directory"),
        ] {
            let error = root.place(&path(given), LastLink::Follow).unwrap_err();
            assert_eq!(refusal(error), (Code::NotFound, reason.to_owned()), "{given}");
        }
        assert_eq!(read_file(&root, &path("a/up"), 100).unwrap().bytes, b"inside");
        assert_eq!(list_directory(&root, &path("dir"), 10).unwrap().len(), 2);
    }
}

#[test]
fn a_link_that_ends_above_leads_to_a_directory_that_was_passed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
    for (link, target) in [
        ("dir", "a/b"),
        ("here", "."),
        ("a/b/above", ".."),
        ("a/b/deep", "c/.."),
        ("a/b/c/top", "../../.."),
        ("a/b/c/out", "../../../.."),
    ] {
        symlink(target, dir.path().join(link)).unwrap();
    }
    for root in both(dir.path()) {
        for (given, resolved) in [
            ("a/b/above", "a"),
            ("a/b/deep", "a/b"),
            ("dir/above", "a"),
            ("a/b/c/top", ""),
            ("here", ""),
        ] {
            let found = root.directory(&path(given)).unwrap().1;
            assert_eq!(found, path(resolved), "{given} by {:?}", root.resolver());
        }
        let error = root.directory(&path("a/b/c/out")).unwrap_err();
        assert_eq!(refusal(error), (Code::PathEscapesRoot, "link_outside".to_owned()));
    }
}

#[test]
fn fifos_sockets_and_devices_are_refused_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(CWD, dir.path().join("fifo"), fifo, Mode::RWXU, 0).unwrap();
    let _socket = UnixListener::bind(dir.path().join("socket")).unwrap();
    let device = rustix::fs::makedev(1, 3);
    let kind = rustix::fs::FileType::CharacterDevice;
    let made = rustix::fs::mknodat(CWD, dir.path().join("null"), kind, Mode::RWXU, device);
    for root in both(dir.path()) {
        for name in ["fifo", "socket"] {
            let error = read_file(&root, &path(name), 10).unwrap_err();
            assert_eq!(
                refusal(error),
                (Code::PathEscapesRoot, "special_file".to_owned()),
                "{name}"
            );
        }
        if made.is_ok() {
            let error = read_file(&root, &path("null"), 10).unwrap_err();
            assert_eq!(error.code(), Code::PathEscapesRoot);
        } else {
            skipped("this user may not make a device");
        }
        assert_eq!(
            read_file(&root, &path("none"), 10).unwrap_err().code(),
            Code::NotFound
        );
    }
}

#[test]
fn a_mount_inside_the_root_is_not_entered() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("mnt");
    std::fs::create_dir(&at).unwrap();
    // A bind mount of the same filesystem: device ids do not tell it.
    let bound = dir.path().join("other");
    std::fs::create_dir(&bound).unwrap();
    std::fs::write(bound.join("file"), "x").unwrap();
    if rustix::mount::mount_bind(&bound, &at).is_err() {
        skipped("this user may not mount");
        return;
    }
    for root in both(dir.path()) {
        for given in ["mnt/file", "mnt/new"] {
            let error = root.place(&path(given), LastLink::Follow).unwrap_err();
            assert_eq!(
                refusal(error),
                (Code::PathEscapesRoot, "mount".to_owned()),
                "{given}"
            );
        }
        assert_eq!(
            list_directory(&root, &path("mnt"), 9).unwrap_err().code(),
            Code::PathEscapesRoot
        );
    }
    crate::sandbox::tests::unmounted(&at);
}

#[test]
fn names_are_bytes() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"bad\xff\xfe");
    std::fs::write(dir.path().join(name), "x").unwrap();
    let long = vec!["d".repeat(60); 63].join("/");
    std::fs::create_dir_all(dir.path().join(&long)).unwrap();
    for root in both(dir.path()) {
        let bytes = RelPath::parse(b"bad\xff\xfe").unwrap();
        assert_eq!(read_file(&root, &bytes, 10).unwrap().bytes, b"x");
        let listed = list_directory(&root, &RelPath::root(), 10).unwrap();
        assert_eq!(listed[0].name, b"bad\xff\xfe");
        assert_eq!(list_directory(&root, &path(&long), 10).unwrap(), vec![]);
        assert_eq!(
            list_directory(&root, &RelPath::root(), 1).unwrap_err().code(),
            Code::TooLarge
        );
    }
}
