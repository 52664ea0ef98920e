//! Every tool with every kind of path: what is answered, and that nothing outside is read or changed.

use crate::harness::{Conn, Home, Volume, is_root, skipped};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs;
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is answered to each tool for each path; the columns are those of [`calls`].
const TABLE: &str = include_str!("paths.txt");

/// What nobody inside may ever see.
const SECRET: &str = "s3cret";

/// Describes everything below a directory, without entering `mnt`.
fn described(at: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut todo = vec![at.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let kind = meta.file_type();
            let what = if kind.is_symlink() {
                fs::read_link(&path).unwrap().display().to_string()
            } else if kind.is_file() {
                String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned()
            } else {
                if kind.is_dir() && !path.ends_with("mnt") {
                    todo.push(path.clone());
                }
                format!("{kind:?}")
            };
            let told = format!("{:o} {} {what}", meta.mode(), meta.nlink());
            all.insert(path.display().to_string(), told);
        }
    }
    all
}

fn mknod(place: &Path, kind: u32, device: u64) -> bool {
    let name = CString::new(place.as_os_str().as_bytes()).unwrap();
    // SAFETY: a path of ours, ended by a NUL byte.
    #[expect(unsafe_code, reason = "std makes neither FIFOs nor devices")]
    unsafe {
        libc::mknod(name.as_ptr(), kind | 0o600, device) == 0
    }
}

struct Ground {
    home: Home,
    volume: Volume,
    /// Held, so that the socket stays one.
    _socket: UnixListener,
}

impl Ground {
    fn outside(&self) -> PathBuf {
        self.home.path().join("outside")
    }

    /// Lays the tree anew.
    fn lay(&self) {
        let tree = &self.volume.tree;
        for entry in fs::read_dir(tree).unwrap() {
            let path = entry.unwrap().path();
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                if path.ends_with("mnt") {
                    continue;
                }
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
        for dir in ["d/e", ".git/hooks", "sub/.git", "big/.Git"] {
            fs::create_dir_all(tree.join(dir)).unwrap();
        }
        for name in [
            "f",
            "d/f",
            "d/e/f",
            "seed",
            ".git/config",
            "sub/.git/config",
            "big/.Git/config",
            ".gitignore",
            "suid",
        ] {
            fs::write(tree.join(name), "one\n").unwrap();
        }
        fs::set_permissions(tree.join("suid"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::write(tree.join(OsStr::from_bytes(b"bad\xff")), "one\n").unwrap();
        fs::write(tree.join("n".repeat(255)), "one\n").unwrap();
        let outside = self.outside();
        for (link, target) in [
            ("in", "d/e"),
            ("to_f", "d/f"),
            ("out", "../../../../../../outside"),
            ("leak", "../../../../../../outside/secret"),
            ("abs", outside.to_str().unwrap()),
            ("abs_in", tree.join("f").to_str().unwrap()),
            ("dangling", "d/missing"),
            ("dangling_out", "../../../../../../outside/missing"),
            ("loop", "loop"),
            ("gitlink", ".git"),
            ("root", "."),
        ] {
            symlink(target, tree.join(link)).unwrap();
        }
        fs::hard_link(outside.join("secret2"), tree.join("hard")).unwrap();
        assert!(mknod(&tree.join("fifo"), libc::S_IFIFO, 0));
        fs::hard_link(self.home.path().join("socket"), tree.join("socket")).unwrap();
        if is_root() {
            mknod(&tree.join("null"), libc::S_IFCHR, libc::makedev(1, 3));
        }
    }
}

/// The calls of every tool for one path; `None` where a tool cannot say such a path.
fn calls(path: &[u8]) -> Vec<(&'static str, &'static str, Option<Value>)> {
    let text = std::str::from_utf8(path).ok();
    let at = |name: &str, more: Value| {
        let mut arguments = more;
        match text {
            Some(text) => arguments[name] = json!(text),
            None => arguments[format!("{name}_b64")] = json!(base64(path)),
        }
        Some(arguments)
    };
    let patch = |body: &dyn Fn(&str) -> String| {
        let text = text?;
        Some(json!({"patch": format!("*** Begin Patch\n{}*** End Patch\n", body(text))}))
    };
    vec![
        ("read", "read_file", at("path", json!({}))),
        ("list", "list_directory", at("path", json!({}))),
        ("info", "get_file_info", at("path", json!({}))),
        ("search", "search_files", at("path", json!({"pattern": "**"}))),
        ("grep", "grep", at("path", json!({"pattern": "[es]"}))),
        ("write", "write_file", at("path", json!({"content": "two\n"}))),
        (
            "edit",
            "edit_file",
            at("path", json!({"old_string": "one", "new_string": "two"})),
        ),
        ("delete", "delete_file", at("path", json!({}))),
        (
            "rmdir",
            "delete_directory",
            at("path", json!({"recursive": true})),
        ),
        ("from", "move_file", at("source", json!({"destination": "moved"}))),
        (
            "to",
            "move_file",
            at("destination", json!({"source": "seed", "overwrite": true})),
        ),
        ("mkdir", "create_directory", at("path", json!({}))),
        ("mode", "set_mode", at("path", json!({"mode": "750"}))),
        (
            "add",
            "apply_patch",
            patch(&|path| format!("*** Add File: {path}\n+two\n")),
        ),
        (
            "update",
            "apply_patch",
            patch(&|path| format!("*** Update File: {path}\n@@\n-one\n+two\n")),
        ),
        (
            "remove",
            "apply_patch",
            patch(&|path| format!("*** Delete File: {path}\n")),
        ),
    ]
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let n = chunk.iter().fold(0_u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = char::from(DIGITS[(n >> (18 - 6 * at)) as usize & 63]);
            text.push(if at <= chunk.len() { digit } else { '=' });
        }
    }
    text
}

/// The paths, by the names that the table gives them.
fn paths(ground: &Ground) -> Vec<(String, Vec<u8>)> {
    let outside = ground.outside();
    let inside = ground.volume.tree.join("f");
    let beside = format!("{}/f", ground.volume.tree.with_extension("x").display());
    let out_again = ground.volume.tree.join("d/../../../meta");
    let mut all: Vec<(String, Vec<u8>)> = [
        ("absolute", outside.join("secret").as_os_str().as_bytes()),
        ("absolute_inside", inside.as_os_str().as_bytes()),
        ("absolute_tree", ground.volume.tree.as_os_str().as_bytes()),
        ("absolute_beside", beside.as_bytes()),
        ("absolute_out_again", out_again.as_os_str().as_bytes()),
        ("empty", b""),
        ("nul", b"a\0b"),
        ("component_255", &[b'n'; 255]),
        ("component_256", &[b'n'; 256]),
        (
            "bytes_4095",
            &[[b'p'; 254].as_slice(), b"/"].concat().repeat(17)[..4095],
        ),
        ("bytes_4097", &b"x/".repeat(2049)[..4097]),
        ("components_65", &b"x/".repeat(65)),
        ("git_zwnj", ".g\u{200c}it/config".as_bytes()),
        ("not_utf8", b"bad\xff"),
        ("not_utf8_new", b"new\xfe"),
    ]
    .into_iter()
    .map(|(label, path)| (label.to_owned(), path.to_vec()))
    .collect();
    let plain = "f d d/ f/ d/f/ none none/x f/x d/../f ./d//e/f .. ../outside/secret d/../../outside/secret ~ ~/x . d/.. in in/f to_f \
        out out/secret leak abs/secret abs_in dangling dangling_out loop loop/x root root/f gitlink gitlink/config hard fifo socket null \
        suid .git .git/ .git/config .GIT/config .git/new git~1/config .git./config sub/.git/config sub/.Git/config big/.git/config .gitignore mnt mnt/file mnt/new";
    all.extend(
        plain
            .split_whitespace()
            .map(|path| (path.to_owned(), path.as_bytes().to_vec())),
    );
    all
}

fn cell(
    conn: &mut Conn<TcpStream>,
    ground: &Ground,
    label: &str,
    column: &str,
    tool: &str,
    arguments: &Value,
) -> String {
    ground.lay();
    let outside = described(&ground.outside());
    let inside = described(&ground.volume.tree);
    let key = format!("{label}-{column}").replace(|c: char| !c.is_ascii_graphic(), "_");
    let reply = conn.call(&ground.volume, tool, &key, arguments);
    let shown = reply.body.to_string();
    assert_eq!(
        described(&ground.outside()),
        outside,
        "{tool} {arguments}: {shown}"
    );
    assert!(
        !shown.contains(SECRET),
        "{tool} {arguments} tells a secret: {shown}"
    );
    let mutates = reply.body.get("execution_id").is_some() && reply.status == 200;
    if !mutates {
        assert_eq!(
            described(&ground.volume.tree),
            inside,
            "{tool} {arguments} was refused, and changed: {shown}"
        );
    }
    assert_eq!(ground.volume.staged(), 0, "{tool} {arguments}");
    match (reply.status, reply.reason()) {
        (200, _) => "ok".to_owned(),
        (_, "") => reply.code().to_owned(),
        (_, reason) => format!("{}/{reason}", reply.code()),
    }
}

#[test]
fn every_tool_answers_every_kind_of_path_and_nothing_outside_changes() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    fs::create_dir(home.path().join("outside")).unwrap();
    fs::write(home.path().join("outside/secret"), SECRET).unwrap();
    fs::write(home.path().join("outside/secret2"), "one\n").unwrap();
    let socket = UnixListener::bind(home.path().join("socket")).unwrap();
    let ground = Ground {
        home,
        volume,
        _socket: socket,
    };
    let up = ground.volume.tree.join("../../../../../../outside/secret");
    assert!(up.exists(), "the links that leave lead somewhere");
    let mount = ground.volume.tree.join("mnt");
    fs::create_dir(&mount).unwrap();
    let mounted = bind(&ground.home, &mount);
    let mut conn = daemon.conn();
    let mut made = String::new();
    for (label, path) in paths(&ground) {
        if (label.starts_with("mnt") && mounted.is_none()) || (label == "null" && !is_root()) {
            continue;
        }
        let calls = calls(&path);
        if made.is_empty() {
            let columns: Vec<&str> = calls.iter().map(|(column, ..)| *column).collect();
            made = format!("path {}\n", columns.join(" "));
        }
        let cells: Vec<String> = calls
            .iter()
            .map(|(column, tool, arguments)| match arguments {
                None => "-".to_owned(),
                Some(arguments) => cell(&mut conn, &ground, &label, column, tool, arguments),
            })
            .collect();
        made.push_str(&format!("{label} {}\n", cells.join(" ")));
    }
    drop(mounted);
    compare(&made);
}

/// A mount that ends with the test, however that ends.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn bind(home: &Home, mount: &Path) -> Option<Mounted> {
    let bound = home.path().join("bound");
    fs::create_dir(&bound).unwrap();
    fs::write(bound.join("file"), SECRET).unwrap();
    let done = Command::new("mount")
        .arg("--bind")
        .arg(&bound)
        .arg(mount)
        .output();
    if done.is_ok_and(|out| out.status.success()) {
        return Some(Mounted(mount.to_path_buf()));
    }
    skipped("this user may not mount: the rows of mnt");
    None
}

/// `SEMEL_TEST_PATHS_OUT=FILE` writes what was answered, for whoever renews the table.
fn compare(made: &str) {
    if let Ok(place) = std::env::var("SEMEL_TEST_PATHS_OUT") {
        fs::write(place, made).unwrap();
    }
    let wanted: BTreeMap<&str, Vec<&str>> = TABLE
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter_map(|mut cells| (!cells.is_empty()).then(|| (cells.remove(0), cells)))
        .collect();
    let columns = &wanted["path"];
    let mut wrong = Vec::new();
    for line in made.lines() {
        let mut cells = line.split_whitespace();
        let label = cells.next().unwrap();
        for ((n, got), column) in cells.enumerate().zip(columns.iter()) {
            let want = wanted
                .get(label)
                .and_then(|cells| cells.get(n))
                .unwrap_or(&"(nothing)");
            if got != *want {
                wrong.push(format!("{label} {column}: {got}, not {want}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} cells:\n{}", wrong.len(), wrong.join("\n"));
}

/// Puts the volumes of a state root on a filesystem that takes names of another case for the same; `None` where this
/// machine cannot.
fn folding(home: &Home) -> Option<Mounted> {
    let (image, at) = (home.path().join("image"), home.state().join("volumes"));
    fs::create_dir_all(&at).unwrap();
    fs::set_permissions(home.state(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let ran = |program: &str, args: &[&OsStr]| {
        let mut command = Command::new(program);
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").args(args);
        command.output().is_ok_and(|out| out.status.success())
    };
    let made = ran("mkntfs", &["-q".as_ref(), "-F".as_ref(), image.as_ref()]);
    let mounted = made
        && ran(
            "lowntfs-3g",
            &[image.as_ref(), at.as_ref(), "-o".as_ref(), "ignore_case".as_ref()],
        );
    if mounted {
        return Some(Mounted(at));
    }
    skipped("no filesystem that folds case can be mounted: ntfs-3g is missing, or the right to mount");
    None
}

#[test]
fn two_spellings_of_one_name_are_one_file() {
    let home = Home::new();
    let Some(_mounted) = folding(&home) else { return };
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut conn = daemon.conn();
    let mut call = |tool: &str, key: &str, arguments: Value| {
        let reply = conn.call(&volume, tool, key, &arguments);
        let code = if reply.reason().is_empty() {
            reply.code()
        } else {
            reply.reason()
        };
        (reply.status, code.to_owned(), reply.body)
    };
    let (status, _, body) = call("write_file", "w1", json!({"path": "README", "content": "one\n"}));
    assert_eq!(status, 200, "{body}");
    assert!(volume.tree.join("readme").exists(), "the filesystem folds case");
    let (status, _, body) = call(
        "write_file",
        "w2",
        json!({"path": "ReadMe", "content": "two\n", "expected_sha256": "absent"}),
    );
    assert_eq!(status, 412, "{body}");
    // One file under two names in one patch: refused, nothing done.
    for (key, patch) in [
        (
            "p1",
            "*** Update File: README\n@@\n-one\n+two\n*** Update File: readme\n@@\n-one\n+three\n",
        ),
        (
            "p2",
            "*** Update File: README\n@@\n-one\n+two\n*** Delete File: readme\n",
        ),
        ("p3", "*** Add File: new\n+1\n*** Add File: NEW\n+2\n"),
        (
            "p4",
            "*** Update File: README\n*** Move to: x\n@@\n-one\n+two\n*** Add File: X\n+2\n",
        ),
    ] {
        let patch = format!("*** Begin Patch\n{patch}*** End Patch\n");
        let (status, code, body) = call("apply_patch", key, json!({"patch": patch}));
        assert_eq!((status, code.as_str()), (400, "file_twice"), "{body}");
    }
    assert_eq!(fs::read(volume.tree.join("README")).unwrap(), b"one\n");
    assert_eq!(fs::read_dir(&volume.tree).unwrap().count(), 1);
    for (key, path) in [("g1", ".GIT/config"), ("g2", "sub/.Git/hooks/x"), ("g3", ".gIT")] {
        let (status, code, body) = call("create_directory", key, json!({"path": path}));
        assert_eq!((status, code.as_str()), (403, "git_internals"), "{body}");
    }
    let (status, _, body) = call("read_file", "", json!({"path": "rEADME"}));
    assert_eq!((status, &body["content"]), (200, &json!("one\n")), "{body}");
    let (status, _, body) = call("delete_file", "d", json!({"path": "readme"}));
    assert_eq!(status, 200, "{body}");
    assert_eq!(fs::read_dir(&volume.tree).unwrap().count(), 0);
    parallel_edits(&daemon.url, &volume);
}

/// Edits one file from many sides, by two spellings of its name: all are there in the end.
fn parallel_edits(url: &str, volume: &Volume) {
    let lines: String = (0..16).map(|n| format!("line {n:02} old\n")).collect();
    let reply = Conn::tcp(url).call(
        volume,
        "write_file",
        "lines",
        &json!({"path": "Lines", "content": lines}),
    );
    assert_eq!(reply.status, 200, "{}", reply.body);
    for round in ["old new", "new last"] {
        let (from, to) = round.split_once(' ').unwrap();
        std::thread::scope(|scope| {
            for n in 0..16 {
                scope.spawn(move || {
                    let path = if n % 2 == 0 { "Lines" } else { "LINES" };
                    let edit = json!({"path": path, "old_string": format!("line {n:02} {from}"), "new_string": format!("line {n:02} {to}")});
                    let reply = Conn::tcp(url).call(volume, "edit_file", &format!("{to}-{n}"), &edit);
                    assert_eq!(reply.status, 200, "{}", reply.body);
                });
            }
        });
    }
    // A connection that was idle all the while is closed by now where the machine is slow.
    let reply = Conn::tcp(url).call(volume, "read_file", "", &json!({"path": "lines"}));
    let text = reply.body["content"].as_str().unwrap();
    assert_eq!(text.matches("last").count(), 16, "{text}");
}
