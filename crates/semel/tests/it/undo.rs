//! Undoing, settling by hand, and looking at receipts.

use crate::harness::{Daemon, Home, Reply, Volume, said};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

/// Lists a tree: each path with its content, its permissions, or that it is a directory.
fn tree(volume: &Volume) -> BTreeMap<String, String> {
    fn below(root: &std::path::Path, at: &std::path::Path, all: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(at).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if entry.file_type().unwrap().is_dir() {
                all.insert(name, "directory".to_owned());
                below(root, &path, all);
            } else {
                let content = std::fs::read_to_string(&path).unwrap();
                all.insert(name, format!("{mode:o} {content}"));
            }
        }
    }
    let mut all = BTreeMap::new();
    below(&volume.tree, &volume.tree, &mut all);
    all
}

struct Lab {
    home: Home,
    daemon: Daemon,
    volume: Volume,
    calls: usize,
}

impl Lab {
    fn new() -> Self {
        let home = Home::new();
        let daemon = home.serve(&[]);
        let volume = home.open("job", "process");
        Self {
            home,
            daemon,
            volume,
            calls: 0,
        }
    }

    fn call(&mut self, tool: &str, arguments: Value) -> String {
        self.calls += 1;
        let key = format!("k{}", self.calls);
        let reply = self.daemon.conn().call(&self.volume, tool, &key, &arguments);
        assert_eq!(reply.status, 200, "{tool} {arguments}: {}", reply.body);
        reply.body["execution_id"].as_str().unwrap().to_owned()
    }

    fn undo(&self, execution: &str) -> Reply {
        let path = format!("/v1/admin/executions/{execution}/undo");
        self.home.admin("POST", &path, &Value::Null)
    }
}

#[test]
fn what_a_call_did_is_put_back_and_that_can_be_undone_in_turn() {
    let mut lab = Lab::new();
    let root = lab.volume.tree.clone();
    std::fs::create_dir_all(root.join("full/below")).unwrap();
    std::fs::create_dir(root.join("empty")).unwrap();
    for (name, content) in [
        ("a", "one\n"),
        ("b", "two\n"),
        ("full/c", "three\n"),
        ("full/below/d", "four\n"),
    ] {
        std::fs::write(root.join(name), content).unwrap();
    }
    let patch = "*** Begin Patch\n*** Update File: a\n-one\n+ONE\n*** Delete File: b\n*** Update File: full/c\n\
                 *** Move to: full/moved\n-three\n+THREE\n*** Add File: full/new\n+five\n*** End Patch\n";
    for (tool, arguments) in [
        ("write_file", json!({"path": "a", "content": "1"})),
        ("write_file", json!({"path": "new", "content": "1"})),
        (
            "edit_file",
            json!({"path": "a", "old_string": "n", "new_string": "N"}),
        ),
        ("delete_file", json!({"path": "b"})),
        ("delete_directory", json!({"path": "empty"})),
        ("delete_directory", json!({"path": "full", "recursive": true})),
        ("move_file", json!({"source": "a", "destination": "moved"})),
        (
            "move_file",
            json!({"source": "a", "destination": "b", "overwrite": true}),
        ),
        ("move_file", json!({"source": "full", "destination": "elsewhere"})),
        ("create_directory", json!({"path": "x/y/z"})),
        ("set_mode", json!({"path": "a", "mode": "755"})),
        ("apply_patch", json!({"patch": patch})),
    ] {
        let before = tree(&lab.volume);
        let done = lab.call(tool, arguments.clone());
        let after = tree(&lab.volume);
        assert_ne!(before, after, "{tool} {arguments}");
        let undone = lab.undo(&done);
        assert_eq!(undone.status, 200, "{tool} {arguments}: {}", undone.body);
        assert_eq!(tree(&lab.volume), before, "{tool} {arguments}");
        let again = lab.undo(&done);
        assert_eq!(
            (again.status, &again.body["replayed"]),
            (200, &json!(true)),
            "{tool}: {}",
            again.body
        );
        let redo = lab.undo(undone.body["execution_id"].as_str().unwrap());
        assert_eq!(redo.status, 200, "{tool} {arguments}: {}", redo.body);
        assert_eq!(tree(&lab.volume), after, "{tool} {arguments}");
        let last = lab.undo(redo.body["execution_id"].as_str().unwrap());
        assert_eq!(last.status, 200, "{tool} {arguments}: {}", last.body);
        assert_eq!(tree(&lab.volume), before, "{tool} {arguments}");
    }
    assert_eq!(lab.volume.staged(), 0);
    let log = lab.home.run(&["log", "--limit", "1000"]);
    let log = String::from_utf8(log.stdout).unwrap();
    assert!(
        log.contains(" tool=undo job=job "),
        "a call on many paths has none: {log}"
    );
    assert!(!log.contains("path= "), "{log}");
    assert_eq!(lab.home.json(&["check"])["report"]["faults"], json!([]));
}

#[test]
fn what_changed_since_is_not_undone() {
    let mut lab = Lab::new();
    let root = lab.volume.tree.clone();
    std::fs::write(root.join("f"), "old").unwrap();
    let refused = |reply: &Reply| (reply.status, reply.code().to_owned(), reply.reason().to_owned());
    let since = (412, "precondition_failed".to_owned(), "changed_since".to_owned());

    let written = lab.call("write_file", json!({"path": "f", "content": "ours"}));
    std::fs::write(root.join("f"), "theirs").unwrap();
    assert_eq!(refused(&lab.undo(&written)), since);
    assert_eq!(std::fs::read_to_string(root.join("f")).unwrap(), "theirs");

    let deleted = lab.call("delete_file", json!({"path": "f"}));
    std::fs::write(root.join("f"), "newer").unwrap();
    let reply = lab.undo(&deleted);
    assert_eq!(reply.status, 412, "{}", reply.body);
    assert_eq!(std::fs::read_to_string(root.join("f")).unwrap(), "newer");

    let made = lab.call("create_directory", json!({"path": "d"}));
    std::fs::write(root.join("d/file"), "x").unwrap();
    assert_eq!(refused(&lab.undo(&made)), since);
    assert!(root.join("d/file").exists());

    let moved = lab.call("move_file", json!({"source": "f", "destination": "g"}));
    std::fs::remove_file(root.join("g")).unwrap();
    std::fs::write(root.join("g"), "another").unwrap();
    assert_eq!(refused(&lab.undo(&moved)), since);

    let unknown = lab.undo("019aaaaa-0000-7000-8000-000000000000");
    assert_eq!((unknown.status, unknown.code()), (404, "not_found"));
    let gone = lab.call("delete_file", json!({"path": "g"}));
    let trash = root.parent().unwrap().join("trash").join(&gone);
    std::fs::remove_file(trash).unwrap();
    assert_eq!(
        (lab.undo(&gone).status, lab.undo(&gone).code()),
        (410, "undo_expired")
    );

    // An undoing that is refused leaves nothing staged and nothing open.
    assert_eq!(lab.volume.staged(), 0);
    let status = lab.home.json(&["status"]);
    assert_eq!(
        (&status["running"], &status["unknown"]),
        (&json!([]), &json!([])),
        "{status}"
    );
}

/// The keys of a person's undoings are nobody else's: an agent that uses one keeps nothing from being undone.
#[test]
fn no_agent_keeps_its_call_from_being_undone() {
    let mut lab = Lab::new();
    let wrote = lab.call("write_file", json!({"path": "f", "content": "x"}));
    let key = format!("undo-{wrote}");
    let part = lab.daemon.conn().send(
        "POST",
        "/v1/tokens",
        &[("authorization", &format!("Bearer {}", lab.volume.token))],
        json!({"name": "operator"}).to_string().as_bytes(),
    );
    let part = Volume {
        token: part.body["token"].as_str().unwrap().to_owned(),
        ..lab.volume.clone()
    };
    for (volume, path) in [(&lab.volume, "a"), (&part, "b")] {
        let squats = lab
            .daemon
            .conn()
            .call(volume, "create_directory", &key, &json!({"path": path}));
        assert_eq!(squats.status, 200, "{}", squats.body);
    }
    for replayed in [false, true] {
        let undone = lab.undo(&wrote);
        assert_eq!(
            (undone.status, &undone.body["replayed"]),
            (200, &json!(replayed)),
            "{}",
            undone.body
        );
        assert!(!lab.volume.tree.join("f").exists());
    }
    // Nor does anybody learn of the undoing by its key.
    let asks = lab
        .daemon
        .conn()
        .call(&lab.volume, "get_receipt", "", &json!({"key": key}));
    assert_eq!(asks.body["tool"], "create_directory", "{}", asks.body);
}

#[test]
fn only_the_operator_undoes_and_resolves() {
    let mut lab = Lab::new();
    let done = lab.call("write_file", json!({"path": "f", "content": "x"}));
    for what in ["undo", "resolve"] {
        let path = format!("/v1/admin/executions/{done}/{what}");
        let auth = format!("Bearer {}", lab.volume.token);
        let reply = lab
            .daemon
            .conn()
            .send("POST", &path, &[("authorization", &auth)], b"{}");
        assert_eq!((reply.status, reply.code()), (401, "unauthorized"), "{what}");
    }
    let as_a_tool = lab
        .daemon
        .conn()
        .call(&lab.volume, "undo", "k", &json!({"execution_id": done}));
    assert_eq!((as_a_tool.status, as_a_tool.code()), (404, "not_found"));
    let known = lab.home.json(&["receipt", &done]);
    assert_eq!(known["receipts"][0]["state"], "done", "{known}");
    assert_eq!(known["receipts"][0]["result"]["action"], "created", "{known}");
    assert_eq!(lab.home.json(&["receipt", "--key", "k1"]), known);
    let not_unknown = lab.home.run(&["resolve", &done, "--happened", "--note", "x"]);
    assert_eq!(not_unknown.status.code(), Some(15));
}

/// A call whose volume vanished for a moment: unknown, until a person who looked says what happened.
#[test]
fn a_person_settles_an_unknown_outcome() {
    for (settled, replayed) in [("--happened", true), ("--never-happened", false)] {
        let home = Home::new();
        let mut daemon = home.serve(&["--crash-at", "installed"]);
        let volume = home.open("job", "process");
        let arguments = json!({"path": "f", "content": "1"});
        assert!(
            daemon
                .conn()
                .try_call(&volume, "write_file", "k", &arguments)
                .is_none()
        );
        daemon.ended(std::time::Duration::from_secs(20)).unwrap();
        // Something puts another thing where the evidence lies.
        let staging = volume.tree.parent().unwrap().join("staging");
        let name = home.json(&["status"])["running"][0]["execution_id"]
            .as_str()
            .unwrap()
            .to_owned();
        std::fs::write(staging.join(&name), "not ours").unwrap();
        let daemon = home.serve(&[]);
        let reply = daemon.conn().call(&volume, "write_file", "k", &arguments);
        assert_eq!(
            (reply.status, reply.code()),
            (409, "outcome_unknown"),
            "{}",
            reply.body
        );
        let detail = reply.body["detail"].as_str().unwrap();
        assert_eq!(detail.matches(&name).count(), 1, "{detail}");
        let ended = home.run(&["volume", "end", &volume.generation]);
        assert_eq!(
            ended.status.code(),
            Some(16),
            "a volume with an unknown outcome does not end clean"
        );
        let without = home.run(&["resolve", &name, settled]);
        assert_eq!(without.status.code(), Some(64), "a note is asked for");
        let answer = home.json(&["resolve", &name, settled, "--note", "looked at f", "--by", "ada"]);
        assert_eq!(answer["volume_state"], "open", "{answer}");
        if !replayed {
            // What it was freed as is told to whoever asks for it by its name, not that there never was one.
            for asks in [["receipt", name.as_str()], ["undo", name.as_str()]] {
                let out = home.run(&[&asks[..], &["--json"]].concat());
                let said = said(&out);
                assert_eq!(out.status.code(), Some(17), "{said}");
                for part in [
                    "freed",
                    "a person says that it never happened",
                    "ada: looked at f",
                ] {
                    assert!(said.contains(part), "{asks:?}: {said}");
                }
            }
            let by_key = said(&home.run(&["receipt", "--key", "k"]));
            assert!(by_key.contains("never happened"), "{by_key}");
        }
        let reply = daemon.conn().call(&volume, "write_file", "k", &arguments);
        assert_eq!(
            (reply.status, &reply.body["replayed"]),
            (200, &json!(replayed)),
            "{}",
            reply.body
        );
        let ended = home.run(&["volume", "end", &volume.generation]);
        assert_eq!(ended.status.code(), Some(0));
        assert_eq!(home.json(&["check"])["report"]["faults"], json!([]));
    }
}
