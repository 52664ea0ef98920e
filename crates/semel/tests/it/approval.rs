//! A person decides a call over the real gateway: asked once, run once, across restarts and kills.

use crate::harness::{Conn, Daemon, Home, RUN, Reply, Site, Volume, said, skipped, text, wait_until};
use crate::policy::write;
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::process::Output;
use std::time::Duration;

const ASK: &str = r#"
    [[rule]]
    paths = ["secrets/**"]
    answer = "ask"
    reason = "production keys"
    expires = "10m"
"#;

/// A state root with a policy, and the word of its operator that agents are confined otherwise.
struct Lab {
    home: Home,
    config: String,
}

impl Lab {
    fn new(policy: &str) -> Self {
        Self::with(policy, "approvals_without_confinement = true\n")
    }

    fn with(policy: &str, more: &str) -> Self {
        let home = Home::new();
        let place = write(&home, policy);
        let config = home.path().join("config.toml");
        std::fs::write(&config, format!("policy = \"{}\"\n{more}", place.display())).unwrap();
        let config = config.to_str().unwrap().to_owned();
        Self { home, config }
    }

    fn serve(&self, args: &[&str]) -> Daemon {
        self.home.serve(&[&["--config", &self.config], args].concat())
    }

    fn open(&self, job: &str) -> Volume {
        let volume = self.home.open(job, "process");
        std::fs::create_dir_all(volume.tree.join("secrets")).unwrap();
        std::fs::write(volume.tree.join("secrets/key"), "before").unwrap();
        volume
    }

    fn cli(&self, args: &[&str]) -> Output {
        self.home.run(args)
    }

    fn decide(&self, id: &str, body: &Value) -> Reply {
        self.home
            .admin("POST", &format!("/v1/admin/approvals/{id}"), body)
    }

    fn approve(&self, id: &str) {
        let reply = self.decide(id, &json!({"decision": "approve", "by": "ada"}));
        assert_eq!(reply.status, 200, "{}", reply.body);
    }

    fn waiting(&self) -> Vec<Value> {
        let listed = self.home.json(&["approvals"]);
        listed["approvals"].as_array().unwrap().clone()
    }

    fn sound(&self) {
        let report = self.home.json(&["check"]);
        assert_eq!(report["report"]["faults"], json!([]));
    }
}

fn read(volume: &Volume) -> String {
    std::fs::read_to_string(volume.tree.join("secrets/key")).unwrap()
}

fn overwrite() -> Value {
    json!({"path": "secrets/key", "content": "after"})
}

/// Takes the id of a call that waits, whose answer says plainly that nothing was done.
fn asked(reply: &Reply) -> String {
    assert_eq!(reply.status, 202, "{}", reply.body);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let body = &reply.body;
    assert_eq!(
        (&body["status"], &body["executed"], &body["code"]),
        (
            &json!("approval_required"),
            &json!(false),
            &json!("approval_required")
        )
    );
    text(&body["approval_id"]).to_owned()
}

fn is(reply: &Reply, status: u16, code: &str, reason: &str) {
    assert_eq!(
        (reply.status, reply.code(), reply.reason()),
        (status, code, reason),
        "{}",
        reply.body
    );
}

#[test]
fn a_call_is_asked_about_once() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let mut conn = daemon.conn();
    let mut call = |key: &str, arguments: &Value| conn.call(&volume, "write_file", key, arguments);
    let id = asked(&call("k", &overwrite()));
    for _ in 0..3 {
        assert_eq!(asked(&call("k", &overwrite())), id);
    }
    // Equal JSON in another spelling is the same call; another body under the key is another one.
    let spelt = json!({"content": "after", "file_path": "./secrets/key"});
    assert_eq!(asked(&call("k", &spelt)), id);
    let other = json!({"path": "secrets/key", "content": "other"});
    is(&call("k", &other), 409, "replay_conflict", "body_mismatch");
    let elsewhere = json!({"path": "a", "content": "after"});
    is(&call("k", &elsewhere), 409, "replay_conflict", "path_mismatch");
    let outside = json!({"path": "../a", "content": "after"});
    is(&call("k", &outside), 409, "replay_conflict", "path_mismatch");
    assert_eq!(
        (read(&volume).as_str(), volume.staged(), volume.trashed()),
        ("before", 0, 0)
    );
}

#[test]
fn what_waits_is_shown_to_everyone_and_without_contents() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let mut conn = daemon.conn();
    let id = asked(&conn.call(&volume, "write_file", "k", &overwrite()));
    let receipt = conn.call(&volume, "get_receipt", "", &json!({"key": "k"}));
    assert_eq!(
        (
            &receipt.body["state"],
            &receipt.body["approval"],
            &receipt.body["executed"]
        ),
        (&json!("asked"), &json!("pending"), &json!(false))
    );
    let [waiting] = &lab.waiting()[..] else {
        panic!("one call waits");
    };
    let would = &waiting["would"]["changed"][0];
    assert_eq!(
        (
            &waiting["approval_id"],
            &waiting["tool"],
            &waiting["reason"],
            &waiting["rule"]
        ),
        (
            &json!(id),
            &json!("write_file"),
            &json!("production keys"),
            &json!(1)
        )
    );
    assert_eq!(
        (&would["path"], &would["action"], &would["size_bytes"]),
        (&json!("secrets/key"), &json!("replaced"), &json!(5))
    );
    assert!(would["sha256_before"].is_string() && would["sha256_after"].is_string());
    let shown = lab.cli(&["approvals"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains(&id) && shown.contains("would replace secrets/key"),
        "{shown}"
    );
    assert!(
        !shown.contains("after\n") && !waiting.to_string().contains("\"after\""),
        "no content"
    );
    let status = lab.home.json(&["status"]);
    assert_eq!(status["approvals"][0]["approval_id"], json!(id));
    assert_eq!(status["daemon"]["approvals_pending"], 1);
}

#[test]
fn an_approved_call_runs_once_and_leaves_its_trail() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let mut conn = daemon.conn();
    let other = json!({"path": "secrets/key", "content": "other"});
    let id = asked(&conn.call(&volume, "write_file", "k", &overwrite()));
    let out = lab.cli(&["approve", &id, "--by", "ada", "--note", "looked at", "--json"]);
    assert!(out.status.success(), "{}", said(&out));
    let decided: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (
            &decided["standing"],
            &decided["decision"]["by"],
            &decided["decision"]["note"]
        ),
        (&json!("approved"), &json!("ada"), &json!("looked at"))
    );
    assert_eq!(read(&volume), "before", "a decision runs nothing");
    assert!(lab.waiting().is_empty());
    is(
        &conn.call(&volume, "write_file", "k", &other),
        409,
        "replay_conflict",
        "body_mismatch",
    );
    // The approval is of this key.
    assert_ne!(asked(&conn.call(&volume, "write_file", "k2", &overwrite())), id);
    for replayed in [false, true, true] {
        let reply = conn.call(&volume, "write_file", "k", &overwrite());
        assert_eq!(
            (reply.status, &reply.body["replayed"]),
            (200, &json!(replayed)),
            "{}",
            reply.body
        );
    }
    assert_eq!((read(&volume).as_str(), volume.trashed()), ("after", 1));
    let told = String::from_utf8(lab.cli(&["log", "--key", "k"]).stdout).unwrap();
    assert!(
        told.contains(&format!("approval_decided detail={id} approve by ada")),
        "{told}"
    );
    let log = lab.home.lines(&["log", "--raw", "--key", "k"]);
    let kinds: Vec<&str> = log
        .iter()
        .map(|line| text(&line["record"]["kind"]))
        .filter(|kind| *kind != "call_noted")
        .collect();
    assert_eq!(
        kinds,
        [
            "approval_asked",
            "approval_decided",
            "call_intended",
            "call_receipted"
        ]
    );
    lab.sound();
}

#[test]
fn the_command_line_says_that_nothing_was_done() {
    let lab = Lab::new(ASK);
    let _daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let token = lab.home.path().join("token");
    std::fs::write(&token, &volume.token).unwrap();
    let body = overwrite().to_string();
    let args = [
        "call",
        "write_file",
        &body,
        "--key",
        "k",
        "--token-file",
        token.to_str().unwrap(),
        "--json",
    ];
    let out = lab.cli(&args);
    assert_eq!(out.status.code(), Some(18), "{}", said(&out));
    let refusal: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(refusal["code"], "approval_required");
    let id = text(&refusal["names"][0]).to_owned();
    let human = String::from_utf8(out.stderr).unwrap();
    assert!(
        human.contains("nothing was done") && human.contains(&id),
        "{human}"
    );
    assert!(lab.cli(&["approve", &id]).status.success());
    assert!(lab.cli(&args).status.success());
    assert_eq!(read(&volume), "after");
    let none = lab.cli(&["approve", "0190f2f0-0000-7000-8000-000000000000", "--json"]);
    assert_eq!(none.status.code(), Some(17), "{}", said(&none));
    assert_eq!(lab.cli(&["approve", "nonsense"]).status.code(), Some(64));
}

#[test]
fn a_denial_stands_and_the_second_person_is_told() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let mut conn = daemon.conn();
    let id = asked(&conn.call(&volume, "write_file", "k", &overwrite()));
    let out = lab.cli(&["approve", &id, "--deny", "--by", "ada", "--note", "not today"]);
    assert!(out.status.success(), "{}", said(&out));
    for _ in 0..2 {
        let reply = conn.call(&volume, "write_file", "k", &overwrite());
        is(&reply, 403, "denied", "by_person");
        assert!(
            text(&reply.body["why"]).contains("ada denied it: not today"),
            "{}",
            reply.body
        );
    }
    let second = lab.decide(&id, &json!({"decision": "approve", "by": "grace"}));
    is(&second, 412, "precondition_failed", "already_decided");
    assert!(
        text(&second.body["why"]).contains("denied by ada"),
        "{}",
        second.body
    );
    let same = lab.decide(&id, &json!({"decision": "deny", "by": "grace"}));
    assert_eq!((same.status, &same.body["decision"]["by"]), (200, &json!("ada")));
    for (wrong, reason) in [
        (json!({"decision": "maybe"}), ""),
        (json!({"decision": "deny", "by": ""}), ""),
        (json!({"decision": "deny", "by": "é".repeat(201)}), ""),
        (json!({"decision": "deny", "note": "a\nb"}), ""),
        (json!({"decision": "deny", "force": true}), ""),
        (json!({}), ""),
        // Other spellings of the same, which no schema has.
        (json!(["deny", "grace", ""]), "wrong_type"),
        (json!({"decision": "deny", "by": null}), "wrong_type"),
        (json!({"decision": {"deny": null}}), "wrong_type"),
        (Value::Null, "not_json"),
    ] {
        is(&lab.decide(&id, &wrong), 400, "bad_input", reason);
    }
    let long = lab.decide(&id, &json!({"decision": "deny", "by": "é".repeat(200)}));
    assert_eq!(long.status, 200, "{}", long.body);
    assert_eq!(read(&volume), "before");
    // A new key is a new question.
    assert_ne!(asked(&conn.call(&volume, "write_file", "n", &overwrite())), id);
    // Two decide at once: one decision stands, whoever was faster.
    let id = asked(&conn.call(&volume, "write_file", "race", &overwrite()));
    let answers: Vec<Reply> = std::thread::scope(|scope| {
        let people: Vec<_> = (0..8)
            .map(|n| {
                let (lab, id) = (&lab, &id);
                let decision = if n % 2 == 0 { "approve" } else { "deny" };
                scope.spawn(move || lab.decide(id, &json!({"decision": decision, "by": format!("p{n}")})))
            })
            .collect();
        people.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let told: Vec<&Reply> = answers.iter().filter(|reply| reply.status == 200).collect();
    assert_eq!(told.len(), 4, "half of them decided as the first did");
    assert!(
        told.iter()
            .all(|reply| reply.body["decision"] == told[0].body["decision"])
    );
    lab.sound();
}

#[test]
fn a_question_and_an_approval_expire() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let mut conn = daemon.conn();
    let waits = asked(&conn.call(&volume, "write_file", "waits", &overwrite()));
    let unused = asked(&conn.call(&volume, "write_file", "unused", &overwrite()));
    lab.approve(&unused);
    drop(daemon);
    // A minute before the end both stand, also in another life of the daemon.
    let daemon = lab.serve(&["--approvals-ahead", "540000"]);
    let mut conn = daemon.conn();
    assert_eq!(
        asked(&conn.call(&volume, "write_file", "waits", &overwrite())),
        waits
    );
    drop(daemon);
    let daemon = lab.serve(&["--approvals-ahead", "600000"]);
    let mut conn = daemon.conn();
    for _ in 0..2 {
        is(
            &conn.call(&volume, "write_file", "waits", &overwrite()),
            403,
            "approval_expired",
            "not_decided",
        );
        is(
            &conn.call(&volume, "write_file", "unused", &overwrite()),
            403,
            "approval_expired",
            "not_used",
        );
    }
    let late = lab.decide(&waits, &json!({"decision": "approve"}));
    is(&late, 403, "approval_expired", "not_decided");
    let listed = lab.home.admin("GET", "/v1/admin/approvals", &Value::Null);
    assert_eq!(listed.body["approvals"], json!([]));
    // A new call is asked about anew, and its answer is good again.
    let id = asked(&conn.call(&volume, "write_file", "new", &overwrite()));
    lab.approve(&id);
    assert_eq!(conn.call(&volume, "write_file", "new", &overwrite()).status, 200);
    assert_eq!(read(&volume), "after");
}

/// Killed at every point between the question and the answer to the call: it runs once.
#[test]
fn an_approved_call_runs_once_whenever_the_daemon_dies() {
    let lab = Lab::new(ASK);
    for (n, point) in [
        "approval_asked",
        "approval_decided",
        "staged",
        "begun",
        "acted",
        "receipted",
    ]
    .into_iter()
    .enumerate()
    {
        let daemon = lab.serve(&[]);
        let volume = lab.open(&format!("job{n}"));
        daemon.kill();
        let mut daemon = lab.serve(&["--crash-at", point]);
        let first = daemon.conn().try_call(&volume, "write_file", "k", &overwrite());
        let mut id = first.as_ref().map(asked);
        if point == "approval_decided" {
            let path = format!("/v1/admin/approvals/{}", id.clone().unwrap());
            let token = std::fs::read_to_string(lab.home.state().join("operator.token")).unwrap();
            let auth = format!("Bearer {}", token.trim());
            let stream =
                std::os::unix::net::UnixStream::connect(lab.home.state().join("semel.sock")).unwrap();
            let body = json!({"decision": "approve"}).to_string();
            let lost =
                Conn::over(stream).try_send("POST", &path, &[("authorization", &auth)], body.as_bytes());
            assert!(lost.is_none(), "{point}");
        } else if point == "staged" {
            assert!(first.is_none(), "the question itself is staged for");
        } else if let Some(id) = &id {
            lab.approve(id);
            let lost = daemon.conn().try_call(&volume, "write_file", "k", &overwrite());
            assert!(lost.is_none(), "{point}");
        }
        assert!(daemon.ended(Duration::from_secs(20)).is_some(), "{point}");
        drop(daemon);
        let daemon = lab.serve(&[]);
        let mut conn = daemon.conn();
        if id.is_none() {
            assert_eq!(read(&volume), "before", "{point}");
            let again = asked(&conn.call(&volume, "write_file", "k", &overwrite()));
            let waiting = lab.waiting();
            assert_eq!(waiting.len(), 1, "{point}: asked once");
            assert_eq!(waiting[0]["approval_id"], json!(again));
            lab.approve(&again);
            id = Some(again);
        }
        let reply = conn.call(&volume, "write_file", "k", &overwrite());
        let happened = ["acted", "receipted"].contains(&point);
        assert_eq!(
            (reply.status, &reply.body["replayed"]),
            (200, &json!(happened)),
            "{point}: {}",
            reply.body
        );
        assert_eq!(read(&volume), "after");
        assert_eq!((volume.trashed(), volume.staged()), (1, 0), "{point}: one effect");
        let again = conn.call(&volume, "write_file", "k", &overwrite());
        assert_eq!(again.body["replayed"], true, "{point}");
        let decided = lab.decide(&id.unwrap(), &json!({"decision": "deny"}));
        is(&decided, 412, "precondition_failed", "already_decided");
    }
    lab.sound();
}

/// Sixteen copies of an approved call: one effect, and sixteen times the same receipt.
#[test]
fn duplicates_of_an_approved_call_run_once() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let ids: Vec<String> = together(&daemon, &volume, 16).iter().map(asked).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    lab.approve(&ids[0]);
    let answers = together(&daemon, &volume, 16);
    let first = answers
        .iter()
        .filter(|reply| reply.body["replayed"] == false)
        .count();
    assert!(answers.iter().all(|reply| reply.status == 200), "{answers:?}");
    assert_eq!((first, volume.trashed(), read(&volume).as_str()), (1, 1, "after"));
}

fn together(daemon: &Daemon, volume: &Volume, many: usize) -> Vec<Reply> {
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..many)
            .map(|_| scope.spawn(|| daemon.conn().call(volume, "write_file", "k", &overwrite())))
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    })
}

/// The person was shown places and digests; what would by now do something else does not run.
#[test]
fn approving_one_thing_never_runs_another() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let tree = &volume.tree;
    std::fs::write(tree.join("secrets/prod"), "prod").unwrap();
    std::fs::create_dir_all(tree.join("secrets/dir/sub")).unwrap();
    std::fs::write(tree.join("secrets/dir/f"), "f").unwrap();
    symlink("secrets/key", tree.join("link")).unwrap();
    let mut conn = daemon.conn();
    let cases: [(&str, &str, Value, &dyn Fn()); 4] = [
        ("saved", "write_file", overwrite(), &|| {
            std::fs::write(tree.join("secrets/key"), "saved meanwhile").unwrap();
        }),
        (
            "link",
            "write_file",
            json!({"path": "link", "content": "x"}),
            &|| {
                std::fs::remove_file(tree.join("link")).unwrap();
                symlink("secrets/prod", tree.join("link")).unwrap();
            },
        ),
        (
            "more",
            "delete_directory",
            json!({"path": "secrets/dir", "recursive": true}),
            &|| std::fs::write(tree.join("secrets/dir/sub/more"), "m").unwrap(),
        ),
        ("read", "read_file", json!({"path": "link"}), &|| {
            std::fs::remove_file(tree.join("link")).unwrap();
            symlink("secrets/key", tree.join("link")).unwrap();
        }),
    ];
    for (key, tool, arguments, change) in cases {
        let key = if tool == "read_file" { "" } else { key };
        let id = asked(&conn.call(&volume, tool, key, &arguments));
        lab.approve(&id);
        change();
        let reply = conn.call(&volume, tool, key, &arguments);
        is(&reply, 412, "precondition_failed", "changed_since_approval");
        assert_eq!(reply.body["names"][0], json!(id));
    }
    assert_eq!((volume.staged(), volume.trashed()), (0, 0));
    assert_eq!(read(&volume), "saved meanwhile");
    assert_eq!(
        std::fs::read_to_string(tree.join("secrets/prod")).unwrap(),
        "prod"
    );
}

#[test]
fn what_goes_as_a_whole_is_counted_for_the_person() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    std::fs::create_dir_all(volume.tree.join("x/secrets")).unwrap();
    let mut conn = daemon.conn();
    let gone = json!({"path": "secrets", "recursive": true});
    let id = asked(&conn.call(&volume, "delete_directory", "k", &gone));
    let waiting = lab.waiting();
    assert_eq!(waiting[0]["would"]["trees"][0]["path"], "secrets");
    assert_eq!(waiting[0]["would"]["trees"][0]["holds"]["entries"], 1);
    let shown = String::from_utf8(lab.cli(&["approvals"]).stdout).unwrap();
    assert!(shown.contains("with all in secrets: 1 entries"), "{shown}");
    lab.approve(&id);
    assert_eq!(conn.call(&volume, "delete_directory", "k", &gone).status, 200);
    assert!(!volume.tree.join("secrets").exists());
    // Onto the name: what would lie there by then is asked about, too.
    let moved = json!({"source": "x", "destination": "secrets"});
    asked(&conn.call(&volume, "move_file", "m", &moved));
    let patch = "*** Begin Patch\n*** Add File: a\n+a\n*** Add File: secrets/deep/b\n+b\n*** End Patch";
    let id = asked(&conn.call(&volume, "apply_patch", "p", &json!({"patch": patch})));
    assert!(!volume.tree.join("a").exists(), "all or nothing");
    lab.approve(&id);
    assert_eq!(
        conn.call(&volume, "apply_patch", "p", &json!({"patch": patch}))
            .status,
        200
    );
    assert!(volume.tree.join("a").exists() && volume.tree.join("secrets/deep/b").exists());
}

/// A refusal tells what is there: on a path that a person decides about, nobody is told before.
#[test]
fn what_a_guarded_path_holds_is_not_told_by_refusals() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let mut conn = daemon.conn();
    let zeros = "0".repeat(64);
    for (key, tool, arguments, code) in [
        (
            "digest",
            "write_file",
            json!({"path": "secrets/key", "content": "x", "expected_sha256": zeros}),
            "precondition_failed",
        ),
        (
            "guess",
            "edit_file",
            json!({"path": "secrets/key", "old_string": "guess", "new_string": "x"}),
            "precondition_failed",
        ),
        (
            "missing",
            "delete_file",
            json!({"path": "secrets/none"}),
            "not_found",
        ),
        (
            "filled",
            "delete_directory",
            json!({"path": "secrets"}),
            "precondition_failed",
        ),
        (
            "patch",
            "apply_patch",
            json!({"patch": "*** Begin Patch\n*** Update File: secrets/none\n@@\n-a\n+b\n*** End Patch"}),
            "not_found",
        ),
    ] {
        let reply = conn.call(&volume, tool, key, &arguments);
        let id = asked(&reply);
        assert!(!reply.body.to_string().contains("sha256"), "{}", reply.body);
        let waiting = lab.waiting();
        assert_eq!(waiting.last().unwrap()["would"], json!({"refused": code}));
        let shown = String::from_utf8(lab.cli(&["approvals"]).stdout).unwrap();
        assert!(
            shown.contains(&format!("would be refused as things stand: {code}")),
            "{shown}"
        );
        lab.approve(&id);
        assert_eq!(conn.call(&volume, tool, key, &arguments).code(), code);
    }
    // Approved while it would be refused is not approved to run.
    std::fs::write(volume.tree.join("secrets/none"), "x").unwrap();
    is(
        &conn.call(
            &volume,
            "delete_file",
            "missing",
            &json!({"path": "secrets/none"}),
        ),
        412,
        "precondition_failed",
        "changed_since_approval",
    );
    assert_eq!(
        (read(&volume).as_str(), volume.staged(), volume.trashed()),
        ("before", 0, 0)
    );
}

/// Whoever decides about a command is shown the command; it runs once.
#[test]
fn a_command_is_shown_and_runs_once() {
    let lab = Lab::new(
        "[[rule]]\npaths = ['**']\ntools = ['run_command']\nanswer = 'ask'\n[[rule]]\npaths = ['a/**']\nanswer = 'deny'",
    );
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let says = json!({"command": "echo x >> effects", "env": {"TOKEN": "hush"}, "scope": "job"});
    let mut conn = daemon.conn();
    let id = asked(&conn.call(&volume, "run_command", "k", &says));
    let out = lab.cli(&["approvals"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("would run echo x >> effects"), "{text}");
    assert!(text.contains("with the variables TOKEN"), "{text}");
    assert!(!text.contains("hush"), "{text}");
    assert!(!text.contains("run a command in"), "{text}");
    assert!(!volume.tree.join("effects").exists());
    let approve = || String::from_utf8(lab.cli(&["approve", &id, "--by", "ada"]).stdout).unwrap();
    let told = approve();
    assert!(
        told.starts_with(&format!(
            "{id} run_command .: approved by ada; sent again with its key until "
        )),
        "{told}"
    );
    for replayed in ["false", "true"] {
        let reply = conn.call(&volume, "run_command", "k", &says);
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.body["replayed"].to_string(), replayed, "{reply:?}");
    }
    assert_eq!(std::fs::read(volume.tree.join("effects")).unwrap(), b"x\n");
    // Approved once more, it does not run again, and that is said.
    let told = approve();
    let execution = conn.call(&volume, "run_command", "k", &says).body["execution_id"].clone();
    let says = format!("it has run already, as {}", crate::harness::text(&execution));
    assert!(told.contains(&says) && !told.contains("sent again"), "{told}");
    std::fs::create_dir(volume.tree.join("sub")).unwrap();
    let within = json!({"command": "true", "cwd": "sub"});
    asked(&conn.call(&volume, "run_command", "sub", &within));
    let listed = String::from_utf8(lab.cli(&["approvals"]).stdout).unwrap();
    assert!(listed.contains("would run true\n      in sub"), "{listed}");
}

#[test]
fn a_read_is_asked_about_by_what_it_says() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let mut conn = daemon.conn();
    let arguments = json!({"path": "secrets/key"});
    let id = asked(&conn.call(&volume, "read_file", "", &arguments));
    assert_eq!(asked(&conn.call(&volume, "read_file", "any", &arguments)), id);
    let waiting = lab.waiting();
    assert_eq!(waiting[0]["would"]["reads"], json!(["secrets/key"]));
    let other = asked(&conn.call(&volume, "get_file_info", "", &arguments));
    assert_ne!(other, id);
    lab.approve(&id);
    for _ in 0..2 {
        let reply = conn.call(&volume, "read_file", "", &arguments);
        assert_eq!((reply.status, &reply.body["content"]), (200, &json!("before")));
    }
    asked(&conn.call(&volume, "get_file_info", "", &arguments));
    drop(daemon);
    // Once its time is over, a person is asked again: a read has no key that could be another one.
    let daemon = lab.serve(&["--approvals-ahead", "600000"]);
    let next = asked(&daemon.conn().call(&volume, "read_file", "", &arguments));
    assert_ne!(next, id);
}

#[test]
fn an_approval_ends_with_its_generation_and_is_of_nobody_else() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let (volume, other) = (lab.open("job"), lab.open("other"));
    let mut conn = daemon.conn();
    let id = asked(&conn.call(&volume, "write_file", "k", &overwrite()));
    let theirs = asked(&conn.call(&other, "write_file", "k", &overwrite()));
    assert_ne!(id, theirs);
    lab.approve(&id);
    assert_eq!(asked(&conn.call(&other, "write_file", "k", &overwrite())), theirs);
    let end = |volume: &Volume| {
        let path = format!("/v1/admin/volumes/{}/end", volume.generation);
        assert_eq!(
            lab.home.admin("POST", &path, &json!({"end": "clean"})).status,
            200
        );
    };
    end(&volume);
    end(&other);
    is(
        &conn.call(&volume, "write_file", "k", &overwrite()),
        409,
        "replay_conflict",
        "stale_generation",
    );
    is(
        &lab.decide(&theirs, &json!({"decision": "approve"})),
        409,
        "replay_conflict",
        "stale_generation",
    );
    assert!(lab.waiting().is_empty());
    let next = lab.open("job");
    assert_ne!(asked(&conn.call(&next, "write_file", "k", &overwrite())), id);
}

#[test]
fn only_so_many_calls_wait() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let mut conn = daemon.conn();
    let mut call = |n: usize| conn.call(&volume, "write_file", &format!("k{n}"), &overwrite());
    for n in 0..100 {
        asked(&call(n));
    }
    is(&call(100), 429, "too_many", "approvals_pending");
    asked(&call(7));
    assert_eq!(volume.staged(), 0);
}

/// Who is not confined could read the operator's token and approve itself.
#[test]
fn without_confinement_nothing_is_approved() {
    let lab = Lab::with(ASK, "");
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let mut conn = daemon.conn();
    let reply = conn.call(&volume, "write_file", "k", &overwrite());
    is(&reply, 409, "sandbox_unavailable", "not_confined");
    is(
        &conn.call(&volume, "read_file", "", &json!({"path": "secrets/key"})),
        409,
        "sandbox_unavailable",
        "not_confined",
    );
    assert_eq!(
        (read(&volume).as_str(), lab.waiting().len(), volume.staged()),
        ("before", 0, 0)
    );
    // Asked while the operator vouched for it, and decided after that was taken back: it can be denied alone.
    drop(daemon);
    let place = write(&lab.home, ASK);
    let vouching = lab.home.path().join("vouching.toml");
    let both = format!(
        "policy = \"{}\"\napprovals_without_confinement = true\n",
        place.display()
    );
    std::fs::write(&vouching, both).unwrap();
    let daemon = lab.home.serve(&["--config", vouching.to_str().unwrap()]);
    let id = asked(&daemon.conn().call(&volume, "write_file", "k", &overwrite()));
    drop(daemon);
    let _daemon = lab.serve(&[]);
    let refused = lab.decide(&id, &json!({"decision": "approve"}));
    is(&refused, 409, "sandbox_unavailable", "not_confined");
    assert_eq!(lab.decide(&id, &json!({"decision": "deny"})).status, 200);
}

/// A confined agent waits for a person, cannot decide for itself, and goes on once it was approved.
#[test]
fn a_confined_agent_waits_for_a_person() {
    let site = Site::new();
    let doctor = site.json(&["doctor"]).to_string();
    if !doctor.contains("\"found\":\"full\"") {
        skipped("no full sandbox on this machine, so no agent is confined");
        return;
    }
    let place = write(
        &site.home,
        "[[rule]]\npaths = [\"src/**\"]\ntools = [\"write_file\"]\nanswer = \"ask\"\n",
    );
    let mut daemon = site.home.serve(&["--policy", place.to_str().unwrap()]);
    let job = std::fs::read_to_string(site.at("job.toml")).unwrap();
    std::fs::write(site.at("job.toml"), format!("confinement = \"require\"\n{job}")).unwrap();
    site.agent(
        r#"
import time
from semel_client import TOKEN, Refused, read, request, write
data, digest = read("src/lib.rs")
new = data + b"//test more holds\n"
for _ in range(600):
    answer = write("src/lib.rs", new, digest, "more")
    if answer.get("executed", True):
        break
    assert read("src/lib.rs")[0] == data
    try:
        request("POST", "/v1/admin/approvals/" + answer["approval_id"], {"decision": "approve"})
        raise SystemExit("approved itself")
    except Refused as refused:
        assert refused.status == 401, refused
    time.sleep(0.05)
else:
    raise SystemExit("nobody decided")
"#,
    );
    let mut run = site.spawn(RUN);
    let mut waiting = Vec::new();
    let asks = wait_until(Duration::from_secs(60), || {
        waiting = site.json(&["approvals"])["approvals"].as_array().unwrap().clone();
        !waiting.is_empty()
    });
    assert!(asks, "the agent asks");
    let out = site.run(&["approve", text(&waiting[0]["approval_id"]), "--by", "ada"]);
    assert!(out.status.success(), "{}", said(&out));
    let ended = run.ends(Duration::from_secs(120)).expect("the run ends");
    assert!(ended.success(), "{ended:?}");
    assert_eq!(site.passes(), 1);
    site.at_rest();
    daemon.terminate();
    assert!(daemon.ended(Duration::from_secs(30)).is_some());
}

#[test]
fn what_a_person_undoes_is_asked_about_like_any_call() {
    let lab = Lab::new(&ASK.replace("answer", "tools = [\"undo\"]\nanswer"));
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let wrote = daemon.conn().call(&volume, "write_file", "k", &overwrite());
    assert_eq!((wrote.status, read(&volume).as_str()), (200, "after"));
    let undo = format!("/v1/admin/executions/{}/undo", text(&wrote.body["execution_id"]));
    let id = asked(&lab.home.admin("POST", &undo, &Value::Null));
    assert_eq!(read(&volume), "after");
    assert_eq!(asked(&lab.home.admin("POST", &undo, &Value::Null)), id);
    lab.approve(&id);
    for _ in 0..2 {
        let undone = lab.home.admin("POST", &undo, &Value::Null);
        assert_eq!(undone.status, 200, "{}", undone.body);
        assert_eq!(read(&volume), "before");
    }
    lab.sound();
}

/// A part of a job, with keys of its own, is asked about as the whole is; what it is allowed is allowed to nobody else.
#[test]
fn a_part_of_a_job_waits_for_a_person_too() {
    let lab = Lab::new(ASK);
    let daemon = lab.serve(&[]);
    let volume = lab.open("job");
    let auth = format!("Bearer {}", volume.token);
    let issued = daemon.conn().send(
        "POST",
        "/v1/tokens",
        &[("authorization", &auth)],
        br#"{"name":"part"}"#,
    );
    let part = Volume {
        token: text(&issued.body["token"]).to_owned(),
        ..volume.clone()
    };
    let id = asked(&daemon.conn().call(&part, "write_file", "k", &overwrite()));
    lab.approve(&id);
    let whole = daemon.conn().call(&volume, "write_file", "k", &overwrite());
    assert_ne!(asked(&whole), id);
    let done = daemon.conn().call(&part, "write_file", "k", &overwrite());
    assert_eq!(
        (done.status, read(&volume).as_str()),
        (200, "after"),
        "{}",
        done.body
    );
    lab.sound();
}
