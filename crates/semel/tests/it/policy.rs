//! The tool policy over the real gateway: whatever path a call comes by, the rule of the place that it reaches decides.

use crate::harness::{Conn, Daemon, Home, Reply, Volume, said, skipped, wait_until};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Writes a policy, and serves by it.
pub(crate) fn serve(home: &Home, policy: &str, args: &[&str]) -> Daemon {
    let place = write(home, policy);
    home.serve(&[&["--policy", place.to_str().unwrap()], args].concat())
}

pub(crate) fn write(home: &Home, policy: &str) -> PathBuf {
    let place = home.path().join("policy.toml");
    std::fs::write(&place, policy).unwrap();
    place
}

const SECRETS: &str = r#"
    [[rule]]
    paths = ["secrets/**"]
    answer = "deny"
    reason = "keys"
"#;

fn put(volume: &Volume, path: &str, text: &str) {
    let place = volume.tree.join(path);
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::write(place, text).unwrap();
}

/// Lists everything in a tree with its content, so that nothing changes unseen.
fn all(tree: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut todo = vec![tree.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let facts = path.symlink_metadata().unwrap();
            let content = if facts.is_dir() {
                todo.push(path.clone());
                format!("directory {:o}", facts.permissions().mode()).into_bytes()
            } else if facts.is_symlink() {
                std::fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            } else {
                std::fs::read(&path).unwrap()
            };
            found.push((path, content));
        }
    }
    found.sort();
    found
}

struct Lab {
    _home: Home,
    _daemon: Daemon,
    conn: Conn<TcpStream>,
    volume: Volume,
    n: usize,
}

impl Lab {
    fn new(policy: &str) -> Self {
        let home = Home::new();
        let daemon = serve(&home, policy, &[]);
        let volume = home.open("job", "process");
        Self {
            conn: daemon.conn(),
            _daemon: daemon,
            volume,
            _home: home,
            n: 0,
        }
    }

    fn call(&mut self, tool: &str, arguments: &Value) -> Reply {
        self.n += 1;
        let key = format!("k{}", self.n);
        self.conn.call(&self.volume, tool, &key, arguments)
    }

    /// A call that must be refused, with nothing changed and nothing left in staging.
    fn refused(&mut self, tool: &str, arguments: &Value, code: &str, reason: &str) -> Reply {
        let before = all(&self.volume.tree);
        let reply = self.call(tool, arguments);
        assert_eq!(
            (reply.code(), reply.reason()),
            (code, reason),
            "{tool} {arguments}: {}",
            reply.body
        );
        assert_eq!(all(&self.volume.tree), before, "{tool} {arguments}");
        assert_eq!(self.volume.staged(), 0, "{tool} {arguments}");
        reply
    }

    fn denied(&mut self, tool: &str, arguments: Value) -> Reply {
        let reply = self.refused(tool, &arguments, "denied", "policy");
        assert_eq!(reply.status, 403);
        reply
    }

    fn runs(&mut self, tool: &str, arguments: Value) -> Reply {
        let reply = self.call(tool, &arguments);
        assert_eq!(reply.status, 200, "{tool} {arguments}: {}", reply.body);
        reply
    }
}

fn lab() -> Lab {
    let lab = Lab::new(SECRETS);
    let tree = lab.volume.tree.clone();
    put(&lab.volume, "secrets/key", "k");
    put(&lab.volume, "secrets/deep/key", "k");
    put(&lab.volume, "a/f", "f");
    put(&lab.volume, "nest/inner/x", "x");
    put(&lab.volume, "other/y", "y");
    symlink("secrets", tree.join("link")).unwrap();
    symlink("secrets/key", tree.join("final")).unwrap();
    symlink("secrets/new", tree.join("dangling")).unwrap();
    symlink("../secrets", tree.join("a/up")).unwrap();
    lab
}

#[test]
fn every_way_to_a_forbidden_place_is_refused() {
    let mut lab = lab();
    let reply = lab.denied("write_file", json!({"path": "secrets/key", "content": "x"}));
    assert_eq!(reply.body["names"], json!(["secrets/key"]));
    assert!(
        reply.body["why"].as_str().unwrap().contains("rule 1"),
        "{}",
        reply.body
    );
    assert!(
        reply.body["why"].as_str().unwrap().contains("keys"),
        "{}",
        reply.body
    );
    for path in [
        "secrets/key",
        "./secrets//key",
        "a/../secrets/key",
        "link/key",
        "a/up/key",
        "link/deep/key",
        "secrets/new",
        "link/new",
        "secrets/no/such/place",
        "link/no/such/place",
        "SECRETS/key",
        "Secrets/new",
    ] {
        lab.denied("write_file", json!({"path": path, "content": "x"}));
        lab.denied(
            "write_file",
            json!({"path": path, "content": "x", "expected_sha256": "absent"}),
        );
        lab.denied(
            "edit_file",
            json!({"path": path, "old_string": "k", "new_string": "x"}),
        );
        lab.denied("delete_file", json!({"path": path}));
        lab.denied("set_mode", json!({"path": path, "mode": "600"}));
        lab.denied("create_directory", json!({"path": path}));
        lab.denied("delete_directory", json!({"path": path, "recursive": true}));
        lab.denied("move_file", json!({"source": path, "destination": "out"}));
        lab.denied("move_file", json!({"source": "a/f", "destination": path}));
        lab.denied("read_file", json!({"path": path}));
        lab.denied("get_file_info", json!({"path": path}));
        let b64 = json!({"path_b64": base64(path), "content": "x"});
        lab.denied("write_file", b64);
        let begin = format!(
            "*** Begin Patch\n*** Update File: a/f\n@@\n-f\n+g\n*** Add File: {path}\n+x\n*** End Patch"
        );
        lab.denied("apply_patch", json!({"patch": begin}));
        let moved =
            format!("*** Begin Patch\n*** Update File: a/f\n*** Move to: {path}\n@@\n-f\n+g\n*** End Patch");
        lab.denied("apply_patch", json!({"patch": moved}));
        let gone = format!("*** Begin Patch\n*** Delete File: {path}\n*** End Patch");
        lab.denied("apply_patch", json!({"patch": gone}));
    }
    assert_eq!(
        std::fs::read_to_string(lab.volume.tree.join("secrets/key")).unwrap(),
        "k"
    );
}

#[test]
fn a_link_is_judged_by_where_it_leads_or_as_itself() {
    let mut lab = lab();
    for path in ["final", "dangling"] {
        lab.denied("write_file", json!({"path": path, "content": "x"}));
        lab.denied("read_file", json!({"path": path}));
        lab.denied("set_mode", json!({"path": path, "mode": "600"}));
        lab.denied(
            "edit_file",
            json!({"path": path, "old_string": "k", "new_string": "x"}),
        );
    }
    lab.denied("list_directory", json!({"path": "link/deep"}));
    // The links themselves are not secret, and what is acted on is not what they lead to.
    lab.runs("get_file_info", json!({"path": "final"}));
    lab.runs("move_file", json!({"source": "final", "destination": "a/final"}));
    lab.runs("delete_file", json!({"path": "link"}));
    lab.runs("write_file", json!({"path": "secrets.txt", "content": "x"}));
    put(&lab.volume, "other/secrets/key", "k");
    lab.runs("write_file", json!({"path": "other/secrets/key", "content": "x"}));
    assert_eq!(
        std::fs::read_to_string(lab.volume.tree.join("secrets/key")).unwrap(),
        "k"
    );
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(text)
}

#[test]
fn what_holds_a_forbidden_place_neither_goes_nor_is_replaced() {
    let mut lab = Lab::new(
        r#"
        [[rule]]
        paths = ["a/b/secrets/**", "/top/**"]
        answer = "deny"
        [[rule]]
        paths = ["**/*.pem"]
        tools = ["delete_directory", "move_file"]
        answer = "deny"
        "#,
    );
    put(&lab.volume, "a/b/secrets/key", "k");
    put(&lab.volume, "a/b/c", "c");
    put(&lab.volume, "a/z", "z");
    put(&lab.volume, "free/x/y", "y");
    put(&lab.volume, "certs/deep/one.pem", "p");
    put(&lab.volume, "new/b/secrets/key", "k");
    std::fs::create_dir(lab.volume.tree.join("top")).unwrap();
    for directory in ["a", "a/b", "a/b/secrets", "certs", "certs/deep"] {
        lab.denied("delete_directory", json!({"path": directory, "recursive": true}));
        lab.denied(
            "move_file",
            json!({"source": directory, "destination": "elsewhere"}),
        );
    }
    // An empty directory whose whole inside is forbidden is no exception, with whatever flag.
    lab.denied("delete_directory", json!({"path": "top"}));
    lab.denied("delete_directory", json!({"path": "top", "recursive": true}));
    lab.denied("move_file", json!({"source": "top", "destination": "elsewhere"}));
    // What would lie in a forbidden place once it is moved.
    std::fs::remove_dir(lab.volume.tree.join("top")).unwrap();
    lab.denied("move_file", json!({"source": "free", "destination": "top"}));
    std::fs::rename(lab.volume.tree.join("a"), lab.volume.tree.join("aside")).unwrap();
    lab.denied("move_file", json!({"source": "new", "destination": "a"}));
    lab.denied("create_directory", json!({"path": "a/b/secrets/sub"}));
    // All else goes.
    lab.runs("create_directory", json!({"path": "a/b"}));
    lab.runs("move_file", json!({"source": "free", "destination": "a/free"}));
    lab.runs("delete_directory", json!({"path": "a/free", "recursive": true}));
    lab.runs("delete_directory", json!({"path": "a", "recursive": true}));
    lab.runs("delete_file", json!({"path": "certs/deep/one.pem"}));
    lab.runs("delete_directory", json!({"path": "certs", "recursive": true}));
}

/// By its name alone a directory is forbidden, before anything is told of what is there.
#[test]
fn a_forbidden_directory_is_not_told_about() {
    let mut lab = lab();
    std::fs::create_dir(lab.volume.tree.join("empty")).unwrap();
    for recursive in [false, true] {
        for path in ["secrets", "SECRETS"] {
            lab.denied("delete_directory", json!({"path": path, "recursive": recursive}));
        }
    }
    lab.denied("move_file", json!({"source": "secrets", "destination": "a"}));
    lab.denied(
        "move_file",
        json!({"source": "secrets", "destination": "other/y"}),
    );
    // Elsewhere it is told.
    lab.refused(
        "delete_directory",
        &json!({"path": "a"}),
        "precondition_failed",
        "not_empty",
    );
    lab.refused(
        "move_file",
        &json!({"source": "a", "destination": "other"}),
        "precondition_failed",
        "is_directory",
    );
    // A rule on what is in a directory is none on a file of its name.
    std::fs::remove_dir_all(lab.volume.tree.join("secrets")).unwrap();
    put(&lab.volume, "secrets", "a file");
    lab.runs("move_file", json!({"source": "secrets", "destination": "file"}));
    lab.denied("delete_directory", json!({"path": "secrets"}));
    lab.runs("delete_directory", json!({"path": "empty"}));
}

#[test]
fn git_internals_are_open_only_where_a_rule_names_them() {
    let mut lab = Lab::new(
        r#"
        [[rule]]
        paths = [".git/hooks/**"]
        answer = "deny"
        [[rule]]
        paths = [".git/info/**", "/sub/.git/config"]
        tools = ["write_file", "create_directory", "move_file", "delete_file"]
        answer = "allow"
        [[rule]]
        paths = ["**"]
        answer = "allow"
        "#,
    );
    for path in [".git/config", ".git/info/old", "sub/.git/config", "f"] {
        put(&lab.volume, path, "x");
    }
    let git = ("path_escapes_root", "git_internals");
    for (tool, arguments) in [
        ("write_file", json!({"path": ".git/config", "content": "y"})),
        ("write_file", json!({"path": ".GIT/info/exclude", "content": "y"})),
        ("write_file", json!({"path": "sub/.git/other", "content": "y"})),
        ("delete_directory", json!({"path": ".git", "recursive": true})),
        ("move_file", json!({"source": ".git", "destination": "x"})),
        (
            "move_file",
            json!({"source": ".git/info/old", "destination": ".git/old"}),
        ),
        (
            "edit_file",
            json!({"path": ".git/info/old", "old_string": "x", "new_string": "y"}),
        ),
    ] {
        lab.refused(tool, &arguments, git.0, git.1);
    }
    lab.denied(
        "write_file",
        json!({"path": ".git/hooks/pre-commit", "content": "y"}),
    );
    let reply = lab.runs("write_file", json!({"path": ".git/info/exclude", "content": "y"}));
    assert_eq!(reply.body["path"], ".git/info/exclude");
    lab.runs("write_file", json!({"path": "sub/.git/config", "content": "y"}));
    lab.runs("create_directory", json!({"path": ".git/info/a/b"}));
    lab.runs("move_file", json!({"source": "f", "destination": ".git/info/f"}));
    lab.runs("delete_file", json!({"path": ".git/info/f"}));
    lab.runs("read_file", json!({"path": ".git/config"}));
}

/// An effect on what belongs to git leaves the same evidence as any other.
#[test]
fn an_opened_git_path_survives_a_kill() {
    let home = Home::new();
    let rules = "[[rule]]\npaths = [\".git/**\"]\nanswer = \"allow\"\n";
    let place = write(&home, rules);
    for (n, point) in ["begun", "acted"].into_iter().enumerate() {
        let daemon = home.serve(&["--policy", place.to_str().unwrap(), "--crash-at", point]);
        let volume = home.open(&format!("job{n}"), "process");
        put(&volume, ".git/config", "before");
        let arguments = json!({"path": ".git/config", "content": "after"});
        let lost = daemon.conn().try_call(&volume, "write_file", "k", &arguments);
        assert!(lost.is_none());
        drop(daemon);
        let daemon = home.serve(&["--policy", place.to_str().unwrap()]);
        let again = daemon.conn().call(&volume, "write_file", "k", &arguments);
        assert_eq!(
            (again.status, &again.body["replayed"]),
            (200, &json!(point == "acted")),
            "{}",
            again.body
        );
    }
}

#[test]
fn a_hard_link_is_broken_or_refused_as_the_policy_says() {
    for (policy, refused) in [
        ("hard_links = \"refuse\"", true),
        ("hard_links = \"break\"", false),
        ("", false),
    ] {
        let mut lab = Lab::new(policy);
        put(&lab.volume, "one", "x");
        std::fs::hard_link(lab.volume.tree.join("one"), lab.volume.tree.join("two")).unwrap();
        for (tool, arguments) in [
            ("write_file", json!({"path": "one", "content": "y"})),
            (
                "edit_file",
                json!({"path": "one", "old_string": "x", "new_string": "y"}),
            ),
            (
                "apply_patch",
                json!({"patch": "*** Begin Patch\n*** Update File: one\n@@\n-x\n+y\n*** End Patch"}),
            ),
        ] {
            if refused {
                lab.refused(tool, &arguments, "denied", "hard_link");
            } else if tool == "write_file" {
                let reply = lab.runs(tool, arguments);
                assert_eq!(reply.body["hard_link_broken"], 1);
            }
        }
        assert_eq!(std::fs::read_to_string(lab.volume.tree.join("two")).unwrap(), "x");
        if refused {
            // Removing names breaks nothing; the new file has one name.
            lab.runs("delete_file", json!({"path": "one"}));
            lab.runs("write_file", json!({"path": "one", "content": "y"}));
        }
    }
}

#[test]
fn rules_are_of_tools_and_roles() {
    let home = Home::new();
    let policy = r#"
        [[rule]]
        paths = ["/f"]
        tools = ["delete_file"]
        answer = "deny"
        [[rule]]
        paths = ["/g"]
        roles = ["cert"]
        tools = ["mutate"]
        answer = "deny"
    "#;
    let daemon = serve(&home, policy, &[]);
    let draft = home.open("job", "process");
    let cert = home.open_with(&json!({"job": "job", "role": "cert"}));
    let mut conn = daemon.conn();
    for (volume, tool, path, status) in [
        (&draft, "write_file", "f", 200),
        (&draft, "delete_file", "f", 403),
        (&draft, "write_file", "g", 200),
        (&cert, "write_file", "g", 403),
        (&cert, "write_file", "f", 200),
        (&draft, "read_file", "g", 200),
    ] {
        let arguments = match tool {
            "write_file" => json!({"path": path, "content": "x"}),
            _ => json!({"path": path}),
        };
        let reply = conn.call(volume, tool, &format!("{tool}{path}"), &arguments);
        assert_eq!(reply.status, status, "{tool} {path}: {}", reply.body);
    }
    // Denied is no receipt: the key is free, and the refusal stays the same.
    for _ in 0..2 {
        let reply = conn.call(&draft, "delete_file", "k", &json!({"path": "f"}));
        assert_eq!((reply.status, reply.code()), (403, "denied"));
    }
    let receipt = conn.call(&draft, "get_receipt", "", &json!({"key": "k"}));
    assert_eq!(receipt.code(), "not_found");
    // What a replay answers was decided when it ran.
    let again = conn.call(
        &draft,
        "write_file",
        "write_filef",
        &json!({"path": "f", "content": "x"}),
    );
    assert_eq!((again.status, &again.body["replayed"]), (200, &json!(true)));
}

/// A command may touch whatever there is, so any rule about some path is about it, unless one says otherwise by name.
#[test]
fn a_command_runs_only_where_no_rule_is_about_any_path() {
    let mut lab = Lab::new(SECRETS);
    let command = json!({"command": "echo x > made"});
    lab.denied("run_command", command.clone());
    lab.denied("run_command", json!({"command": "true", "cwd": "nowhere"}));
    assert!(!lab.volume.tree.join("made").exists());
    let allows = "[[rule]]\npaths = ['**']\ntools = ['run_command']\nanswer = 'allow'\n";
    let mut lab = Lab::new(&format!("{allows}{SECRETS}"));
    lab.runs("run_command", command);
    assert!(lab.volume.tree.join("made").exists());
}

#[test]
fn a_bad_policy_is_no_policy_and_the_daemon_does_not_start() {
    let home = Home::new();
    let place = write(&home, SECRETS);
    let fails = |args: &[&str]| {
        let out = home.run(&[&["serve", "--json"], args].concat());
        assert_eq!(out.status.code(), Some(78), "{args:?}: {}", said(&out));
        let refusal: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(refusal["code"], "bad_config");
        refusal
    };
    fails(&["--policy", "/no/such/policy.toml"]);
    fails(&["--policy", "policy.toml"]);
    fails(&["--policy", home.path().to_str().unwrap()]);
    for text in [
        "[[rule]]\npaths = [\"*.pem\"]\nanswer = \"deny\"",
        "[[rule]]\npaths = [\"**\"]\nanswer = \"deny\"\ntools = [\"delete\"]",
        "[[rule]]\npaths = [\"**\"]\nanswer = \"deny\"\ntools = [\"get_receipt\"]",
        "surprise = 1",
    ] {
        let bad = home.path().join("bad.toml");
        std::fs::write(&bad, text).unwrap();
        let refusal = fails(&["--policy", bad.to_str().unwrap()]);
        assert!(refusal["names"].to_string().contains("bad.toml"), "{refusal}");
    }
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o666)).unwrap();
    fails(&["--policy", place.to_str().unwrap()]);
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::create_dir_all(home.state()).unwrap();
    std::fs::copy(&place, home.state().join("policy.toml")).unwrap();
    fails(&["--policy", home.state().join("policy.toml").to_str().unwrap()]);
    symlink(home.state().join("policy.toml"), home.path().join("in")).unwrap();
    fails(&["--policy", home.path().join("in").to_str().unwrap()]);
    // None of them left a daemon or a life behind; and an empty policy is one.
    std::fs::write(&place, "").unwrap();
    drop(home.serve(&["--policy", place.to_str().unwrap()]));
}

#[test]
fn a_policy_does_not_vanish_with_a_restart() {
    let home = Home::new();
    let config = home.path().join("config.toml");
    let place = write(&home, SECRETS);
    std::fs::write(&config, format!("policy = \"{}\"\n", place.display())).unwrap();
    let config = config.to_str().unwrap();
    // A command that starts a daemon of its own hands its configuration on.
    let opened = home.json(&["volume", "open", "job", "--config", config]);
    let volume = Volume {
        token: opened["token"].as_str().unwrap().to_owned(),
        generation: opened["generation"].as_str().unwrap().to_owned(),
        tree: opened["tree"].as_str().unwrap().into(),
    };
    let url = opened["url"].as_str().unwrap();
    let arguments = json!({"path": "secrets/key", "content": "x"});
    let reply = Conn::tcp(url).call(&volume, "write_file", "k", &arguments);
    assert_eq!((reply.status, reply.code()), (403, "denied"), "{}", reply.body);
    assert_eq!(home.admin("POST", "/v1/admin/shutdown", &Value::Null).status, 200);
    let ended = || {
        let out = home.run(&["serve", "--json"]);
        !String::from_utf8_lossy(&out.stdout).contains("owned_elsewhere")
    };
    assert!(wait_until(Duration::from_secs(20), ended));
    // Without it, the daemon does not serve volumes that were under it.
    for _ in 0..2 {
        let out = home.run(&["serve", "--json"]);
        assert_eq!(out.status.code(), Some(78), "{}", said(&out));
        let refusal: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(refusal["reason"], "policy_missing", "{refusal}");
    }
    let daemon = home.serve(&["--config", config]);
    let reply = daemon.conn().call(&volume, "write_file", "k", &arguments);
    assert_eq!(reply.code(), "denied");
    let log = home.lines(&["log", "--raw"]);
    let digest = log.iter().rev().find_map(|line| {
        let record = &line["record"];
        (record["kind"] == "daemon_started").then(|| record["policy_sha256"].clone())
    });
    let sha256 = std::process::Command::new("sha256sum").arg(&place).output();
    match sha256 {
        Ok(out) if out.status.success() => {
            let text = String::from_utf8(out.stdout).unwrap();
            assert_eq!(digest, Some(json!(text.split(' ').next().unwrap())));
        }
        _ => skipped("no sha256sum to compare the recorded digest with"),
    }
    let path = format!("/v1/admin/volumes/{}/end", volume.generation);
    assert_eq!(home.admin("POST", &path, &json!({"end": "clean"})).status, 200);
    drop(daemon);
    drop(home.serve(&[]));
}

#[test]
fn no_search_shows_what_is_denied_or_asked_about() {
    let rules = format!("{SECRETS}\n[[rule]]\npaths = [\"**/.env\"]\nanswer = \"ask\"\n");
    let mut lab = Lab::new(&rules);
    for path in ["secrets/key", "secrets/deep/key", "app/.env", "app/open"] {
        put(&lab.volume, path, "needle\n");
    }
    symlink("secrets", lab.volume.tree.join("link")).unwrap();
    let all = json!({"path": ".", "pattern": "needle"});
    let found = lab.runs("grep", all.clone());
    let places: Vec<&Value> = found.body["matches"].as_array().unwrap().iter().collect();
    assert_eq!(places.len(), 1, "{}", found.body);
    assert_eq!(places[0]["path"], "app/open");
    assert_eq!(found.body["skipped"]["policy"], 3, "{}", found.body);
    let files = lab.runs("search_files", json!({"path": ".", "pattern": "**"}));
    let listed = lab.runs("list_directory", json!({"path": ".", "recursive": true}));
    for (body, member, name) in [
        (&files.body, "matches", "path"),
        (&listed.body, "entries", "name"),
    ] {
        let entries = body[member].as_array().unwrap();
        let mut names: Vec<&str> = entries.iter().map(|one| one[name].as_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["app", "app/open", "link", "secrets"], "{body}");
        assert_eq!(body["skipped"]["policy"], 3, "{body}");
    }
    // Where the search begins is judged as a read of it is, with every link followed.
    for path in ["secrets/deep", "link/deep"] {
        lab.denied("search_files", json!({"path": path, "pattern": "*"}));
        lab.denied("grep", json!({"path": path, "pattern": "needle"}));
        lab.denied("list_directory", json!({"path": path}));
    }
    for path in ["secrets/key", "link/key"] {
        lab.denied("grep", json!({"path": path, "pattern": "needle"}));
    }
    for path in ["secrets", "link"] {
        let found = lab.runs("grep", json!({"path": path, "pattern": "needle"}));
        assert_eq!(found.body["matches"], json!([]), "{}", found.body);
    }
}

#[test]
fn a_rule_holds_for_what_a_person_undoes() {
    let home = Home::new();
    let rules = "[[rule]]\npaths = [\"kept/**\"]\ntools = [\"undo\"]\nanswer = \"deny\"\n";
    let daemon = serve(&home, rules, &[]);
    let volume = home.open("job", "process");
    put(&volume, "kept/there", "x");
    let mut conn = daemon.conn();
    for (path, status) in [("kept/new", 403), ("free", 200)] {
        let wrote = conn.call(
            &volume,
            "write_file",
            path,
            &json!({"path": path, "content": "x"}),
        );
        assert_eq!(wrote.status, 200, "{}", wrote.body);
        let execution = wrote.body["execution_id"].as_str().unwrap();
        let undo = format!("/v1/admin/executions/{execution}/undo");
        let reply = home.admin("POST", &undo, &Value::Null);
        assert_eq!(reply.status, status, "{}", reply.body);
        assert_eq!(volume.tree.join(path).exists(), status == 403);
        assert_eq!(volume.staged(), 0);
    }
}
