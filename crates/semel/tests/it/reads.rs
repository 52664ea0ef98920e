//! The tools that read, over HTTP: parts, pages, searches, and what a reader sees while others write.

use crate::harness::{Conn, Daemon, Home, Volume, is_root, skipped};
use serde_json::{Value, json};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// An open volume, and a connection to its daemon.
struct Desk {
    conn: Conn<TcpStream>,
    volume: Volume,
    daemon: Daemon,
    home: Home,
}

impl Desk {
    fn new() -> Self {
        let home = Home::new();
        let daemon = home.serve(&[]);
        let volume = home.open("job", "process");
        Self {
            conn: daemon.conn(),
            volume,
            daemon,
            home,
        }
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        let place = self.volume.tree.join(name);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, content).unwrap();
    }

    fn ok(&mut self, tool: &str, arguments: &Value) -> Value {
        let reply = self.conn.call(&self.volume, tool, "", arguments);
        assert_eq!(reply.status, 200, "{tool} {arguments}: {}", reply.body);
        reply.body
    }

    fn refused(&mut self, tool: &str, arguments: &Value) -> (String, String) {
        let reply = self.conn.call(&self.volume, tool, "", arguments);
        assert_ne!(reply.status, 200, "{tool} {arguments}: {}", reply.body);
        (reply.code().to_owned(), reply.reason().to_owned())
    }
}

fn strings(list: &Value, name: &str) -> Vec<String> {
    let list = list.as_array().unwrap().iter();
    list.map(|one| one[name].as_str().unwrap().to_owned()).collect()
}

/// What is asked for, what is given, which lines these are, and which comes next.
fn parts() -> [(Value, &'static str, Value, Value); 10] {
    [
        (
            json!({"offset": 2, "limit": 2}),
            "two\nthree\n",
            json!([2, 3]),
            json!(4),
        ),
        (
            json!({"start_line": 2, "max_lines": 2}),
            "two\nthree\n",
            json!([2, 3]),
            json!(4),
        ),
        (
            json!({"offset": 2, "end_line": 3}),
            "two\nthree\n",
            json!([2, 3]),
            json!(4),
        ),
        (
            json!({"startLine": 2.0, "endLine": 3}),
            "two\nthree\n",
            json!([2, 3]),
            json!(4),
        ),
        (
            json!({"view_range": [2, 3]}),
            "two\nthree\n",
            json!([2, 3]),
            json!(4),
        ),
        (
            json!({"view_range": [3, -1]}),
            "three\nfour\n",
            json!([3, 4]),
            Value::Null,
        ),
        (json!({"head": 1}), "one\n", json!([1, 1]), json!(2)),
        (json!({"limit": 1}), "one\n", json!([1, 1]), json!(2)),
        (json!({"tail": 1}), "four\n", json!([4, 4]), Value::Null),
        (json!({"offset": 9}), "", json!([null, null]), Value::Null),
    ]
}

#[test]
fn a_part_of_a_file_by_every_name_that_models_use() {
    let mut desk = Desk::new();
    desk.file("f", "one\ntwo\nthree\nfour\n");
    let whole = desk.ok("read_file", &json!({"path": "f"}));
    assert_eq!(
        (&whole["content"], &whole["total_lines"]),
        (&json!("one\ntwo\nthree\nfour\n"), &json!(4))
    );
    for (arguments, content, lines, next) in parts() {
        let mut asked = arguments.clone();
        asked["file_path"] = json!("f");
        let part = desk.ok("read_file", &asked);
        assert_eq!(part["content"], content, "{arguments}");
        assert_eq!(
            json!([part["first_line"], part["last_line"]]),
            lines,
            "{arguments}"
        );
        assert_eq!(
            (&part["next_offset"], &part["truncated"]),
            (&next, &json!(false)),
            "{arguments}"
        );
        // The digest is of the whole, so that a change can be made dependent on it.
        for same in ["sha256", "size_bytes", "total_lines"] {
            assert_eq!(part[same], whole[same], "{arguments}");
        }
    }
    let bytes = desk.ok(
        "read_file",
        &json!({"path": "f", "byte_offset": 4, "byte_limit": 3}),
    );
    assert_eq!(
        (&bytes["content"], &bytes["next_byte_offset"], &bytes["bytes"]),
        (&json!("two"), &json!(7), &json!(3))
    );
    let change =
        json!({"path": "f", "old_string": "two", "new_string": "2", "expected_sha256": bytes["sha256"]});
    assert_eq!(
        desk.conn.call(&desk.volume, "edit_file", "e", &change).status,
        200
    );
}

/// Calls that are refused, and the argument that the refusal names.
fn unclear() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("read_file", json!({"path": "f", "offset": 0}), "offset"),
        ("read_file", json!({"path": "f", "offset": -1}), "offset"),
        ("read_file", json!({"path": "f", "offset": "2"}), "offset"),
        ("read_file", json!({"path": "f", "offset": 1.5}), "offset"),
        ("read_file", json!({"path": "f", "limit": 0}), "limit"),
        ("read_file", json!({"path": "f", "tail": 1, "head": 1}), "tail"),
        ("read_file", json!({"path": "f", "offset": 1, "tail": 1}), "tail"),
        (
            "read_file",
            json!({"path": "f", "limit": 1, "end_line": 1}),
            "end_line",
        ),
        (
            "read_file",
            json!({"path": "f", "offset": 1, "byte_limit": 1}),
            "byte_limit",
        ),
        (
            "read_file",
            json!({"path": "f", "offset": 3, "end_line": 2}),
            "end_line",
        ),
        (
            "read_file",
            json!({"path": "f", "view_range": [0, 1]}),
            "view_range",
        ),
        (
            "read_file",
            json!({"path": "f", "view_range": [2, 1]}),
            "view_range",
        ),
        ("read_file", json!({"path": "f", "view_range": [1]}), "view_range"),
        (
            "read_file",
            json!({"path": "f", "view_range": [1, -2]}),
            "view_range",
        ),
        (
            "read_file",
            json!({"path": "f", "encoding": "latin1"}),
            "encoding",
        ),
        ("read_file", json!({"path": "f", "lines": 3}), "lines"),
    ]
}

fn unclear_searches() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("list_directory", json!({"path": ".", "depth": 65}), "depth"),
        (
            "list_directory",
            json!({"path": ".", "depth": 2, "recursive": true}),
            "depth",
        ),
        (
            "list_directory",
            json!({"path": ".", "max_results": 10_001}),
            "max_results",
        ),
        ("search_files", json!({"path": "."}), "pattern"),
        ("search_files", json!({"pattern": []}), "pattern"),
        ("search_files", json!({"pattern": [1]}), "pattern"),
        ("search_files", json!({"pattern": "a{b"}), "pattern"),
        (
            "search_files",
            json!({"pattern": "x", "exclude": "../y"}),
            "exclude",
        ),
        ("search_files", json!({"pattern": vec!["x"; 65]}), "pattern"),
        ("grep", json!({"path": "."}), "pattern"),
        ("grep", json!({"pattern": "("}), "pattern"),
        ("grep", json!({"pattern": "a\\nb"}), "pattern"),
        ("grep", json!({"pattern": "a", "context": 21}), "context"),
        ("grep", json!({"pattern": "a", "case": "loud"}), "case"),
        ("grep", json!({"pattern": "a", "query": "b"}), "query"),
    ]
}

#[test]
fn arguments_that_say_nothing_clear_are_refused_by_name() {
    let mut desk = Desk::new();
    desk.file("f", "one\n");
    for (tool, arguments, named) in unclear().into_iter().chain(unclear_searches()) {
        let reply = desk.conn.call(&desk.volume, tool, "", &arguments);
        assert_eq!(
            (reply.status, reply.code()),
            (400, "bad_input"),
            "{arguments}: {}",
            reply.body
        );
        let names = reply.body["names"].as_array().unwrap();
        assert!(names.contains(&json!(named)), "{arguments}: {}", reply.body);
    }
}

#[test]
fn bytes_are_given_as_they_are_or_not_at_all() {
    let mut desk = Desk::new();
    desk.file("latin", b"caf\xe9\nx\n");
    desk.file("text", "caf\u{e9}\n");
    let latin = desk.ok("read_file", &json!({"path": "latin"}));
    assert_eq!(
        (&latin["encoding"], &latin["content"]),
        (&json!("base64"), &json!("Y2Fm6Qp4Cg=="))
    );
    let line = desk.ok("read_file", &json!({"path": "latin", "offset": 2}));
    assert_eq!(
        (&line["encoding"], &line["content"]),
        (&json!("utf-8"), &json!("x\n"))
    );
    let text = desk.ok("read_file", &json!({"path": "text", "encoding": "base64"}));
    assert_eq!(
        (&text["encoding"], &text["content"]),
        (&json!("base64"), &json!("Y2Fmw6kK"))
    );
    assert_eq!(
        desk.ok("read_file", &json!({"path": "text", "encoding": "utf8"}))["encoding"],
        "utf-8"
    );
    let half = desk.ok(
        "read_file",
        &json!({"path": "text", "byte_offset": 0, "byte_limit": 4}),
    );
    assert_eq!(half["encoding"], "base64", "half a character is no text");
    // That is told apart from bytes that are no text at all.
    for (path, first, limit, cut) in [
        ("text", 0, 4, true),
        ("text", 4, 2, true),
        ("text", 4, 1, true),
        ("latin", 0, 64, false),
    ] {
        let asks = json!({"path": path, "byte_offset": first, "byte_limit": limit, "encoding": "utf-8"});
        let reply = desk.conn.call(&desk.volume, "read_file", "", &asks);
        assert_eq!(
            (reply.status, reply.reason()),
            (412, "not_utf8"),
            "{asks}: {}",
            reply.body
        );
        let why = reply.body["why"].as_str().unwrap();
        assert_eq!(why.contains("within a character"), cut, "{asks}: {why}");
    }
    let refused = desk.refused("read_file", &json!({"path": "latin", "encoding": "utf-8"}));
    assert_eq!(refused, ("precondition_failed".to_owned(), "not_utf8".to_owned()));
}

#[test]
fn large_files_are_read_in_parts_and_digested_when_asked() {
    let mut desk = Desk::new();
    let line = "0123456789abcdef".repeat(64) + "\n";
    desk.file("large", line.repeat(9 << 10));
    let reply = desk
        .conn
        .call(&desk.volume, "read_file", "", &json!({"path": "large"}));
    assert_eq!(
        (reply.status, reply.reason()),
        (413, "file_too_large"),
        "{}",
        reply.body
    );
    assert!(
        reply.body["why"].as_str().unwrap().contains("offset and limit"),
        "{}",
        reply.body
    );
    let part = desk.ok("read_file", &json!({"path": "large", "offset": 9000, "limit": 1}));
    assert_eq!(
        (&part["content"], &part["total_lines"]),
        (&json!(line), &json!(9 << 10))
    );
    assert_eq!(part["sha256"].as_str().unwrap().len(), 64);
    let most = desk.ok("read_file", &json!({"path": "large", "offset": 1}));
    assert_eq!(
        (&most["truncated"], &most["last_line"], &most["next_offset"]),
        (&json!(true), &json!(8184), &json!(8185))
    );
    // Sparse, so that it costs nothing: above 64 MiB a digest is made when it is asked for.
    let huge = fs::File::create(desk.volume.tree.join("huge")).unwrap();
    huge.set_len((64 << 20) + 1).unwrap();
    let info = desk.ok("get_file_info", &json!({"path": "huge"}));
    assert_eq!(
        (&info["sha256"], &info["undigested"]),
        (&Value::Null, &json!("too_large"))
    );
    let info = desk.ok("get_file_info", &json!({"path": "huge", "digest": true}));
    assert_eq!(
        (info["sha256"].as_str().map(str::len), &info["undigested"]),
        (Some(64), &Value::Null)
    );
    let end = desk.ok("read_file", &json!({"path": "huge", "byte_offset": 64 << 20}));
    assert_eq!(
        (&end["content"], &end["sha256"], &end["total_lines"]),
        (&json!("\u{0}"), &Value::Null, &Value::Null)
    );
    huge.set_len(5 << 30).unwrap();
    let info = desk.ok("get_file_info", &json!({"path": "huge", "digest": true}));
    assert_eq!(
        (&info["sha256"], &info["undigested"]),
        (&Value::Null, &json!("too_large"))
    );
    let refused = desk.refused("read_file", &json!({"path": "huge", "tail": 1}));
    assert_eq!(refused, ("too_large".to_owned(), "scan_too_long".to_owned()));
    // The only line is past what an answer holds: that is told without looking for its end.
    let refused = desk.refused("read_file", &json!({"path": "huge", "head": 1}));
    assert_eq!(refused, ("too_large".to_owned(), "line_too_long".to_owned()));
}

#[test]
fn what_is_expected_of_a_file_that_is_too_large_is_refused_at_once() {
    let mut desk = Desk::new();
    let place = desk.volume.tree.join("s");
    fs::File::create(&place).unwrap().set_len(1 << 40).unwrap();
    let zero = "0".repeat(64);
    for (tool, mut arguments) in [
        ("write_file", json!({"path": "s", "content": "x"})),
        ("delete_file", json!({"path": "s"})),
        ("move_file", json!({"source": "s", "destination": "t"})),
        ("set_mode", json!({"path": "s", "mode": "600"})),
        (
            "apply_patch",
            json!({"patch": "*** Begin Patch\n*** Delete File: s\n*** End Patch\n"}),
        ),
        (
            "apply_patch",
            json!({"patch": "*** Begin Patch\n*** Update File: s\n*** Move to: t\n*** End Patch\n"}),
        ),
    ] {
        arguments["expected_sha256"] = if tool == "apply_patch" {
            json!({"s": zero})
        } else {
            json!(zero)
        };
        let key = format!("{tool}-{}", arguments.to_string().len());
        let reply = desk.conn.call(&desk.volume, tool, &key, &arguments);
        let said = (reply.status, reply.code(), reply.reason());
        assert_eq!(
            said,
            (413, "too_large", "digest_too_large"),
            "{tool}: {}",
            reply.body
        );
    }
    assert_eq!(fs::metadata(&place).unwrap().len(), 1 << 40);
    assert_eq!((desk.volume.staged(), desk.volume.trashed()), (0, 0));
}

#[test]
fn a_patch_does_not_change_and_move_a_link_at_once() {
    let mut desk = Desk::new();
    desk.file("f", "one\n");
    symlink("f", desk.volume.tree.join("l")).unwrap();
    let patch = |hunk: &str| json!({"patch": format!("*** Begin Patch\n*** Update File: l\n*** Move to: l2\n{hunk}*** End Patch\n")});
    let arguments = patch("@@\n-one\n+two\n");
    let refused = desk.conn.call(&desk.volume, "apply_patch", "both", &arguments);
    let said = (refused.status, refused.code(), refused.reason());
    assert_eq!(
        said,
        (412, "precondition_failed", "is_symlink"),
        "{}",
        refused.body
    );
    assert_eq!(fs::read(desk.volume.tree.join("f")).unwrap(), b"one\n");
    let moved = desk.conn.call(&desk.volume, "apply_patch", "move", &patch(""));
    assert_eq!(moved.status, 200, "{}", moved.body);
    assert_eq!(
        fs::read_link(desk.volume.tree.join("l2")).unwrap(),
        std::path::Path::new("f")
    );
    assert_eq!(fs::read(desk.volume.tree.join("f")).unwrap(), b"one\n");
}

#[test]
fn what_is_known_of_an_entry() {
    let mut desk = Desk::new();
    desk.file("d/f", "one\n");
    symlink("d/f", desk.volume.tree.join("link")).unwrap();
    fs::set_permissions(desk.volume.tree.join("d/f"), fs::Permissions::from_mode(0o4755)).unwrap();
    let file = desk.ok("get_file_info", &json!({"path": "d/f"}));
    for (name, wanted) in [
        ("type", json!("file")),
        ("size_bytes", json!(4)),
        ("mode", json!("4755")),
        ("links", json!(1)),
        ("path", json!("d/f")),
    ] {
        assert_eq!(file[name], wanted, "{name}");
    }
    assert!(file["modified_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(file["sha256"].as_str().unwrap().len(), 64);
    let link = desk.ok("get_file_info", &json!({"path": "link"}));
    assert_eq!(
        (&link["type"], &link["link_target"], &link["sha256"]),
        (&json!("symlink"), &json!("d/f"), &Value::Null)
    );
    let directory = desk.ok("get_file_info", &json!({"path": "."}));
    assert_eq!(
        (&directory["type"], &directory["path"]),
        (&json!("directory"), &json!("."))
    );
    // What a program may do beyond its mode does not survive a replacement, nor a change of its mode.
    for (key, tool, arguments) in [
        ("w", "write_file", json!({"path": "d/f", "content": "two\n"})),
        ("m", "set_mode", json!({"path": "d/f", "mode": "750"})),
    ] {
        fs::set_permissions(desk.volume.tree.join("d/f"), fs::Permissions::from_mode(0o6755)).unwrap();
        let reply = desk.conn.call(&desk.volume, tool, key, &arguments);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let mode = fs::metadata(desk.volume.tree.join("d/f")).unwrap().mode();
        assert_eq!(mode & 0o7000, 0, "{tool}: {mode:o}");
    }
}

#[test]
fn a_list_has_pages_levels_and_names_that_are_no_text() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut desk = Desk::new();
    for name in ["b/x/y", "a", "c", ".git/config"] {
        desk.file(name, "12345");
    }
    let odd = std::ffi::OsStr::from_bytes(b"bad\xff");
    fs::write(desk.volume.tree.join(odd), "").unwrap();
    let flat = desk.ok("list_directory", &json!({"path": "."}));
    let entries = flat["entries"].as_array().unwrap();
    assert_eq!(entries[1], json!({"name": "a", "type": "file", "size_bytes": 5}));
    assert_eq!(
        entries[2],
        json!({"name": "b", "type": "directory", "size_bytes": null})
    );
    assert_eq!(
        entries[3],
        json!({"name_b64": "YmFk/w==", "type": "file", "size_bytes": 0})
    );
    assert_eq!(
        (entries.len(), &flat["truncated"], &flat["skipped"]),
        (5, &json!(false), &json!({}))
    );
    let two = desk.ok("list_directory", &json!({"path": ".", "depth": 2}));
    assert!(
        !two.to_string().contains("b/x/y") && two.to_string().contains("b/x"),
        "{two}"
    );
    let deep = desk.ok("list_directory", &json!({"path": "./", "recursive": true}));
    assert_eq!(
        deep["skipped"],
        json!({"git": 1}),
        "a .git is told and not entered"
    );
    let git = desk.ok(
        "list_directory",
        &json!({"path": ".", "recursive": true, "include_git": true}),
    );
    assert!(git.to_string().contains(".git/config"));
    // Page by page, past the name that is no text.
    let (mut after, mut all) = (Value::Null, Vec::new());
    loop {
        let mut asked = json!({"path": ".", "recursive": true, "max_results": 1});
        if !after.is_null() {
            asked["after"] = after;
        }
        let page = desk.ok("list_directory", &asked);
        all.extend(page["entries"].as_array().unwrap().clone());
        if page["truncated"] == json!(false) {
            assert!(page.get("next_after").is_none());
            break;
        }
        assert_eq!(page["truncated_by"], "results");
        after = page["next_after"].clone();
    }
    assert_eq!(json!(all), deep["entries"]);
    let below = desk.ok("list_directory", &json!({"path": "b"}));
    assert_eq!(
        (strings(&below["entries"], "name"), &below["path"]),
        (vec!["x".to_owned()], &json!("b"))
    );
}

#[test]
fn names_and_lines_are_found() {
    let mut desk = Desk::new();
    for (name, content) in [
        ("src/lib.rs", "// TODO one\nfn f() {}\n"),
        ("src/deep/a.rs", "fn todo() {}\r\n"),
        ("node_modules/x/index.js", "TODO two\n"),
        ("Makefile", "all:\n\techo TODO three\n"),
        (".git/HEAD", "TODO four\n"),
    ] {
        desk.file(name, content);
    }
    desk.file("bin", b"TODO\0");
    desk.file("latin", b"TODO \xe9\n");
    let paths =
        |desk: &mut Desk, arguments: Value| strings(&desk.ok("search_files", &arguments)["matches"], "path");
    assert_eq!(
        paths(&mut desk, json!({"pattern": "*.rs"})),
        ["src/deep/a.rs", "src/lib.rs"]
    );
    assert_eq!(
        paths(
            &mut desk,
            json!({"pattern": ["*.js", "make*"], "ignore_case": true})
        ),
        ["Makefile", "node_modules/x/index.js"]
    );
    assert_eq!(
        paths(
            &mut desk,
            json!({"path": "src", "glob": "**/*.rs", "exclude": ["deep/"]})
        ),
        ["src/lib.rs"]
    );
    assert_eq!(
        paths(&mut desk, json!({"pattern": "HEAD", "include_git": true})),
        [".git/HEAD"]
    );
    assert_eq!(paths(&mut desk, json!({"pattern": "HEAD"})), Vec::<String>::new());
    let cut = desk.ok("search_files", &json!({"pattern": "**", "max_results": 2}));
    assert_eq!(
        (&cut["truncated"], &cut["truncated_by"], &cut["next_after"]),
        (&json!(true), &json!("results"), &json!("bin"))
    );

    let found = desk.ok("grep", &json!({"pattern": "TODO", "exclude": "node_modules"}));
    assert_eq!(
        strings(&found["matches"], "path"),
        ["Makefile", "latin", "src/lib.rs"]
    );
    assert_eq!(
        found["matches"][0],
        json!({"path": "Makefile", "line": 2, "column": 7, "text": "\techo TODO three"})
    );
    assert_eq!(found["matches"][1]["text_b64"], "VE9ETyDp");
    assert_eq!(
        (&found["skipped"], &found["truncated"]),
        (&json!({"binary": 1, "git": 1}), &json!(false))
    );
    let both = desk.ok(
        "grep",
        &json!({"query": "^fn t.*\\{\\}$|^// todo", "-i": true, "include": "*.rs", "-C": 1}),
    );
    assert_eq!(strings(&both["matches"], "path"), ["src/deep/a.rs", "src/lib.rs"]);
    assert_eq!(
        both["matches"][1]["after"],
        json!([{"line": 2, "text": "fn f() {}"}])
    );
    let fixed = desk.ok(
        "grep",
        &json!({"pattern": "f() {}", "fixed": true, "path": "src/lib.rs"}),
    );
    assert_eq!(
        (&fixed["matches"][0]["line"], &fixed["path"]),
        (&json!(2), &json!("src/lib.rs"))
    );
    let files = desk.ok(
        "grep",
        &json!({"pattern": "todo", "case": "insensitive", "files_only": true, "max_results": 2}),
    );
    assert_eq!(strings(&files["files"], "path"), ["Makefile", "latin"]);
    assert_eq!((&files["truncated"], files.get("matches")), (&json!(true), None));
}

/// Starts a daemon with a TCP port.
const SERVE: &[&str] = &["serve", "--json", "--quiet", "--listen", "127.0.0.1:0"];

#[test]
fn what_may_not_be_read_is_counted() {
    if !is_root() {
        skipped("only root can start a daemon as another user");
        return;
    }
    let home = Home::new();
    let binary = home.path().join("semel");
    assert!(
        Command::new("/bin/cp")
            .arg(env!("CARGO_BIN_EXE_semel"))
            .arg(&binary)
            .status()
            .unwrap()
            .success()
    );
    std::os::unix::fs::chown(home.path(), Some(65534), Some(65534)).unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&binary)
            .args(args)
            .arg("--state")
            .arg(home.state())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", home.path())
            .stderr(Stdio::null());
        command
    };
    let Some(daemon) = Daemon::started(&mut run(SERVE)) else {
        skipped("no daemon can be started as another user here");
        return;
    };
    let opened = run(&["volume", "open", "job", "--json"]).output().unwrap();
    let opened: Value = serde_json::from_slice(&opened.stdout).unwrap();
    let text = |name: &str| opened[name].as_str().unwrap().to_owned();
    let volume = Volume {
        token: text("token"),
        generation: text("generation"),
        tree: text("tree").into(),
    };
    for (name, mode) in [("a", 0o644), ("closed", 0o000), ("z", 0o644)] {
        let place = volume.tree.join(name);
        fs::write(&place, "needle\n").unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
        assert!(
            fs::metadata(&place).unwrap().uid() == 0 || mode != 0,
            "of root, and closed"
        );
    }
    fs::create_dir(volume.tree.join("dir")).unwrap();
    fs::set_permissions(volume.tree.join("dir"), fs::Permissions::from_mode(0o000)).unwrap();
    let mut conn = daemon.conn();
    let found = conn.call(&volume, "grep", "", &json!({"pattern": "needle"}));
    assert_eq!(
        strings(&found.body["matches"], "path"),
        ["a", "z"],
        "{}",
        found.body
    );
    assert_eq!(found.body["skipped"], json!({"unreadable": 2}));
    let info = conn.call(&volume, "get_file_info", "", &json!({"path": "closed"}));
    assert_eq!(
        (&info.body["sha256"], &info.body["undigested"]),
        (&Value::Null, &json!("unreadable"))
    );
    let read = conn.call(&volume, "read_file", "", &json!({"path": "closed"}));
    assert_eq!((read.status, read.code()), (500, "io_failed"), "{}", read.body);
}

/// One whole content, told by its letter.
fn content(letter: u8) -> String {
    let line = char::from(letter).to_string().repeat(63) + "\n";
    line.repeat(1024)
}

/// Files are replaced, patched and moved with their directory, while others read: a reader sees one whole content or
/// no file, and no call of a writer fails.
#[test]
fn a_reader_sees_the_old_or_the_new_whole_file() {
    let desk = Desk::new();
    for name in ["d/f", "d/g"] {
        desk.file(name, content(b'a'));
    }
    let (stop, reads, gone) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let reader = |tool: &'static str, arguments: Value| {
        let mut conn = Conn::tcp(&desk.daemon.url);
        let mut here = 0;
        loop {
            // Asked before the call is sent: the writers may end while it is under way.
            let over = stop.load(Ordering::Acquire);
            if over && here >= 3 {
                break;
            }
            let reply = conn.call(&desk.volume, tool, "", &arguments);
            if reply.status == 404 {
                gone.fetch_add(1, Ordering::Relaxed);
                assert!(!over, "the last word of the writers is that the file is there");
                continue;
            }
            assert_eq!(reply.status, 200, "{tool} {arguments}: {}", reply.body);
            here += 1;
            reads.fetch_add(1, Ordering::Relaxed);
            if let Some(text) = reply.body["content"].as_str() {
                let letter = text.as_bytes()[0];
                let part = content(letter);
                assert!(text.len() == part.len() || text.len() == 640, "a whole content");
                assert!(part.starts_with(text), "one content, not two");
                assert_eq!(reply.body["size_bytes"], 65_536);
            }
        }
    };
    std::thread::scope(|scope| {
        let reader = &reader;
        let mut readers = Vec::new();
        for (tool, arguments) in [
            ("read_file", json!({"path": "d/f"})),
            ("read_file", json!({"path": "d/g", "offset": 5, "limit": 10})),
            ("get_file_info", json!({"path": "d/g"})),
            ("list_directory", json!({"path": ".", "recursive": true})),
            ("grep", json!({"pattern": "^[a-z]{63}$", "max_results": 1000})),
        ] {
            readers.push(scope.spawn(move || reader(tool, arguments)));
        }
        let (url, volume, stop) = (&desk.daemon.url, &desk.volume, &stop);
        let writer = scope.spawn(move || {
            // The readers end even where an assertion fails.
            let _end = End(stop);
            writes(&mut Conn::tcp(url), volume);
        });
        writer.join().unwrap();
        for reader in readers {
            reader.join().unwrap();
        }
    });
    eprintln!(
        "{} whole reads, {} found the directory elsewhere",
        reads.load(Ordering::Relaxed),
        gone.load(Ordering::Relaxed)
    );
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn writes(conn: &mut Conn<TcpStream>, volume: &Volume) {
    let mut call = |tool: &str, key: String, arguments: Value| {
        let reply = conn.call(volume, tool, &key, &arguments);
        assert_eq!(reply.status, 200, "{tool} {key}: {}", reply.body);
    };
    for round in 0..20_u8 {
        let letter = b'b' + round;
        call(
            "write_file",
            format!("w{round}"),
            json!({"path": "d/f", "content": content(letter)}),
        );
        let (old, new) = (content(letter - 1), content(letter));
        let lines = |sign: char, text: &str| {
            text.lines()
                .map(|line| format!("{sign}{line}\n"))
                .collect::<String>()
        };
        let patch = format!(
            "*** Begin Patch\n*** Update File: d/g\n@@\n{}{}*** End Patch\n",
            lines('-', &old),
            lines('+', &new)
        );
        call("apply_patch", format!("p{round}"), json!({"patch": patch}));
        call(
            "move_file",
            format!("m{round}"),
            json!({"source": "d", "destination": "e"}),
        );
        call(
            "move_file",
            format!("n{round}"),
            json!({"source": "e", "destination": "d"}),
        );
    }
}

/// Nearly as many searches as a token has places leave room for every other call.
#[test]
fn searches_take_no_place_from_other_calls() {
    let desk = Desk::new();
    for n in 0..300 {
        desk.file(&format!("d{}/f{n}", n % 7), "needle in a haystack\n".repeat(200));
    }
    let (stop, searched) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..90 {
            scope.spawn(|| {
                let mut conn = Conn::tcp(&desk.daemon.url);
                while !stop.load(Ordering::Relaxed) {
                    let reply = conn.call(&desk.volume, "grep", "", &json!({"pattern": "(x+x+)+y|n.*z$"}));
                    assert_eq!(reply.status, 200, "{}", reply.body);
                    searched.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _end = End(&stop);
        let mut conn = Conn::tcp(&desk.daemon.url);
        for n in 0..40 {
            let reply = conn.call(
                &desk.volume,
                "write_file",
                &format!("k{n}"),
                &json!({"path": "w", "content": format!("{n}")}),
            );
            assert_eq!(reply.status, 200, "{}", reply.body);
        }
    });
    assert!(searched.load(Ordering::Relaxed) > 0, "there were searches");
    drop(desk.home);
}
