//! Every tool with every kind of path: what is answered, and that nothing outside is read or changed.

use crate::harness::{Conn, Home, Volume, is_root, skipped};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
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
    fn outside(&self) -> std::path::PathBuf {
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
    let mut all: Vec<(String, Vec<u8>)> = [
        ("absolute", outside.join("secret").as_os_str().as_bytes()),
        ("absolute_inside", inside.as_os_str().as_bytes()),
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
        ("not_utf8", b"bad\xff"),
        ("not_utf8_new", b"new\xfe"),
    ]
    .into_iter()
    .map(|(label, path)| (label.to_owned(), path.to_vec()))
    .collect();
    let plain = "f d d/ f/ d/f/ none none/x f/x d/../f ./d//e/f .. ../outside/secret d/../../outside/secret ~ ~/x . d/.. in in/f to_f \
        out out/secret leak abs/secret abs_in dangling dangling_out loop loop/x root root/f gitlink gitlink/config hard fifo socket null \
        suid .git .git/ .git/config .GIT/config .git/new sub/.git/config sub/.Git/config big/.git/config .gitignore mnt mnt/file mnt/new";
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
        if (label.starts_with("mnt") && !mounted) || (label == "null" && !is_root()) {
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
    if mounted {
        let done = Command::new("umount").arg(&mount).status().unwrap();
        assert!(done.success());
    }
    compare(&made);
}

fn bind(home: &Home, mount: &Path) -> bool {
    let bound = home.path().join("bound");
    fs::create_dir(&bound).unwrap();
    fs::write(bound.join("file"), SECRET).unwrap();
    let mounted = Command::new("mount")
        .arg("--bind")
        .args([&bound, &mount.to_path_buf()])
        .output();
    let mounted = mounted.is_ok_and(|out| out.status.success());
    if !mounted {
        skipped("this user may not mount: the rows of mnt");
    }
    mounted
}

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
