//! Checkpoints of the log, and its verification: beside the daemon, offline, and by a program that knows nothing of us.

use crate::harness::{Home, said, skipped, wait_until};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// A log with a few calls in it, a copy of its journal, and two checkpoints: of half of it, and of all.
struct Log {
    home: Home,
    key: String,
    early: PathBuf,
    late: PathBuf,
}

impl Log {
    fn new() -> Self {
        let home = Home::new();
        let mut daemon = home.serve(&[]);
        let volume = home.open("job", "process");
        let mut conn = daemon.conn();
        let mut checkpoints = Vec::new();
        for half in ["early", "late"] {
            for n in 0..6 {
                let key = format!("{half}-{n}");
                let arguments = json!({"path": key, "content": "1"});
                conn.call(&volume, "write_file", &key, &arguments);
                conn.call(&volume, "write_file", &key, &arguments);
            }
            let note = home.json(&["log", "checkpoint"])["note"]
                .as_str()
                .unwrap()
                .to_owned();
            let file = home.path().join(format!("{half}.note"));
            std::fs::write(&file, note).unwrap();
            checkpoints.push(file);
        }
        let key = home.json(&["log", "key"])["key"].as_str().unwrap().to_owned();
        daemon.terminate();
        assert!(daemon.ended(Duration::from_secs(30)).unwrap().success());
        let late = checkpoints.pop().unwrap();
        let early = checkpoints.pop().unwrap();
        Self {
            home,
            key,
            early,
            late,
        }
    }

    fn backup(&self, name: &str) -> PathBuf {
        let to = self.home.path().join(name);
        self.home.json(&["backup", to.to_str().unwrap()]);
        to
    }

    fn verify(&self, copy: &Path, since: &[&Path]) -> Output {
        let mut args = vec![
            "log",
            "verify",
            "--json",
            "--key",
            &self.key,
            "--offline",
            copy.to_str().unwrap(),
        ];
        for file in since {
            args.extend(["--since", file.to_str().unwrap()]);
        }
        // Nothing of this home: whoever audits has a copy, the key and the checkpoints.
        crate::harness::bare(&args).output().unwrap()
    }

    /// Gives the kinds and places of the faults, and holds the exit status against them.
    fn faults(&self, copy: &Path, since: &[&Path]) -> Vec<String> {
        let out = self.verify(copy, since);
        let told: Value =
            serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&out)));
        let faults = told["report"]["faults"].as_array().unwrap();
        assert_eq!(
            out.status.code(),
            Some(if faults.is_empty() { 0 } else { 7 }),
            "{}",
            said(&out)
        );
        let shown = |fault: &Value| {
            let kind = fault["kind"].as_str().unwrap();
            match fault["seq"].as_u64() {
                Some(seq) => format!("{kind} at entry {seq}"),
                None => kind.to_owned(),
            }
        };
        faults.iter().map(shown).collect()
    }
}

fn size_of(note: &Path) -> u64 {
    let text = std::fs::read_to_string(note).unwrap();
    text.lines().nth(1).unwrap().parse().unwrap()
}

/// Gives a checkpoint that says one entry more than was signed.
fn grown(note: &Path) -> String {
    let (text, size) = (std::fs::read_to_string(note).unwrap(), size_of(note));
    text.replacen(&format!("\n{size}\n"), &format!("\n{}\n", size + 1), 1)
}

#[test]
fn a_checkpoint_is_verified_online_and_offline() {
    let log = Log::new();
    let verified = log
        .home
        .json(&["log", "verify", "--since", log.early.to_str().unwrap()]);
    assert_eq!(verified["report"]["faults"], json!([]));
    // The early one of the command line, and the kept ones: two that were asked for; the last words of two daemons.
    let held = verified["checkpoints"].as_array().unwrap();
    assert!(held.len() >= 3, "{verified}");
    assert_eq!(held[0]["size"], size_of(&log.early));
    let sizes: Vec<u64> = held[1..]
        .iter()
        .map(|held| held["size"].as_u64().unwrap())
        .collect();
    assert!(
        sizes.is_sorted() && *sizes.last().unwrap() == verified["report"]["entries"],
        "{verified}"
    );
    let copy = log.backup("copy.db");
    assert_eq!(log.faults(&copy, &[&log.early, &log.late]), Vec::<String>::new());
    let beside = std::fs::read_dir(log.home.path()).unwrap();
    let beside = beside.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_str().unwrap().starts_with("copy.db")
    });
    assert_eq!(beside.count(), 1, "to look makes nothing beside a copy");
    let text = log.home.run(&["log", "verify"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("no fault") && text.contains("checkpoints, the newest of"),
        "{text}"
    );
}

#[test]
fn an_older_backup_is_a_truncated_log() {
    let log = Log::new();
    let older = log.backup("older.db");
    let daemon = log.home.serve(&[]);
    let held = log.home.path().join("held.note");
    let note = log.home.json(&["log", "checkpoint"]);
    std::fs::write(&held, note["note"].as_str().unwrap()).unwrap();
    drop(daemon);
    let entries = size_of(&held) - 1;
    assert_eq!(
        log.faults(&older, &[&log.early, &held]),
        [format!("truncated at entry {}", entries + 1)]
    );
    // Put in place of the journal, it is found by what lies beside it, and nothing new is signed over it.
    for name in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        drop(std::fs::remove_file(log.home.state().join(name)));
    }
    std::fs::copy(&older, log.home.state().join("journal.db")).unwrap();
    let online = log.home.run(&["log", "verify"]);
    assert_eq!(online.status.code(), Some(7), "{}", said(&online));
    let err = String::from_utf8(online.stderr).unwrap();
    assert!(
        err.starts_with("error: unknown_state (checkpoint_mismatch)"),
        "{err}"
    );
    let _restored = log.home.serve(&[]);
    let signed = log.home.run(&["log", "checkpoint"]);
    assert_eq!(signed.status.code(), Some(7), "{}", said(&signed));
    // Once the operator has moved them away, the log is signed again from here.
    std::fs::rename(
        log.home.state().join("checkpoints"),
        log.home.path().join("moved"),
    )
    .unwrap();
    assert!(log.home.run(&["log", "checkpoint"]).status.success());
    assert!(log.home.run(&["log", "verify"]).status.success());
}

#[test]
fn a_wrong_checkpoint_is_a_fault_and_a_missing_one_is_none() {
    let log = Log::new();
    let kept = log.home.state().join("checkpoints");
    let newest = std::fs::read_dir(&kept)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .max()
        .unwrap();
    let whole = std::fs::read_to_string(&newest).unwrap();
    // What a crash leaves half-written is not looked at, and swept at the next start.
    let left = kept.join("00000000000000009999-0000000000000000.note.77.tmp");
    std::fs::write(&left, "half").unwrap();
    assert!(log.home.run(&["log", "verify"]).status.success());
    drop(log.home.serve(&[]));
    assert!(!left.exists());
    for (bent, why) in [
        (whole.replace("semel.dev", "semel.deu"), "checkpoint_malformed"),
        (whole[..whole.len() / 2].to_owned(), "checkpoint_malformed"),
        (String::new(), "checkpoint_malformed"),
        (grown(&log.late), "checkpoint_signature"),
    ] {
        std::fs::write(&newest, &bent).unwrap();
        let out = log.home.run(&["log", "verify", "--json"]);
        assert_eq!(out.status.code(), Some(7), "{why}: {}", said(&out));
        let told: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(told["report"]["faults"][0]["kind"], "bad_checkpoint", "{told}");
        let named = String::from_utf8(out.stderr).unwrap();
        assert!(
            named.contains(newest.file_name().unwrap().to_str().unwrap()),
            "{named}"
        );
        // The same, held by a person: their own input is wrong, not the log.
        let held = log.home.path().join("bent.note");
        std::fs::write(&held, &bent).unwrap();
        let copy = log.home.state().join("journal.db");
        let out = log.verify(&copy, &[&held]);
        assert_eq!(out.status.code(), Some(65), "{}", said(&out));
        let told: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(told["reason"], *why, "{told}");
    }
    // An older one under the name of a newer: it would keep the daemon from signing.
    std::fs::copy(
        &log.early,
        kept.join("00000000000000099999-0000000000000000.note"),
    )
    .unwrap();
    assert_eq!(log.home.run(&["log", "verify"]).status.code(), Some(7));
    std::fs::remove_dir_all(&kept).unwrap();
    let without = log.home.json(&["log", "verify"]);
    assert_eq!(
        (&without["report"]["faults"], &without["checkpoints"]),
        (&json!([]), &json!([]))
    );
}

#[test]
fn a_checkpoint_needs_its_own_key() {
    let (log, other) = (Log::new(), Log::new());
    let copy = log.backup("copy.db");
    // Of another log, by another key, or by none: not a fault of this log, but of what was held against it.
    for (key, note, exit) in [
        (Some(other.key.as_str()), &log.late, 65),
        (Some(log.key.as_str()), &other.late, 65),
        (Some("nonsense"), &log.late, 64),
        (None, &log.late, 64),
    ] {
        let mut args = vec![
            "log",
            "verify",
            "--offline",
            copy.to_str().unwrap(),
            "--since",
            note.to_str().unwrap(),
        ];
        args.extend(key.into_iter().flat_map(|key| ["--key", key]));
        let out = crate::harness::bare(&args).output().unwrap();
        assert_eq!(out.status.code(), Some(exit), "{key:?}: {}", said(&out));
    }
    // Another log, honestly signed, and its key given: this copy is not that log.
    let raw = other.key.splitn(3, '+').nth(2).unwrap();
    let raw = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, raw).unwrap();
    let hex: String = raw[1..].iter().map(|byte| format!("{byte:02x}")).collect();
    let args = [
        "log",
        "verify",
        "--json",
        "--offline",
        copy.to_str().unwrap(),
        "--key",
        &hex,
        "--since",
        other.late.to_str().unwrap(),
    ];
    let out = crate::harness::bare(&args).output().unwrap();
    let told: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(told["report"]["faults"][0]["kind"], "other_log", "{told}");
    // The daemon does not start with a key that others could read.
    let key = log.home.state().join("keys/log.pem");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let out = log.home.run(&["serve"]);
    assert_eq!(out.status.code(), Some(78), "{}", said(&out));
}

#[test]
fn a_daemon_signs_at_its_end_and_a_killed_one_leaves_nothing_wrong() {
    let home = Home::new();
    let covered = || {
        let kept = std::fs::read_dir(home.state().join("checkpoints")).unwrap();
        let names = kept.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .max()
            .map(|name| name.split('-').next().unwrap().parse::<u64>().unwrap())
    };
    let mut daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let entries = home.entries();
    daemon.terminate();
    assert!(daemon.ended(Duration::from_secs(30)).unwrap().success());
    assert_eq!(covered(), Some(entries));
    for round in 0..5 {
        let daemon = home.serve(&[]);
        let key = format!("k{round}");
        let reply = daemon
            .conn()
            .call(&volume, "write_file", &key, &json!({"path": "a", "content": key}));
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert!(home.run(&["log", "checkpoint"]).status.success());
        let status = home.admin("GET", "/v1/admin/status", &Value::Null);
        assert_eq!(
            status.body["checkpoints"]["why_not"],
            Value::Null,
            "{}",
            status.body
        );
        daemon.kill();
        assert!(home.run(&["log", "verify"]).status.success());
    }
    assert!(covered() > Some(entries));
}

fn python() -> Option<()> {
    let runs = |command: &str, args: &[&str], needs: &str| {
        let out = Command::new(command).args(args).output();
        out.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains(needs))
    };
    (runs("openssl", &["version"], "OpenSSL 3")
        && runs("python3", &["-c", "import sqlite3; print('yes')"], "yes"))
    .then_some(())
}

/// Bends a copy of a journal, by a program that is not ours: SQL, and then all digests anew where asked.
const BEND: &str = r#"
import hashlib, sqlite3, sys
db = sqlite3.connect(sys.argv[1])
triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
for name, _ in triggers:
    db.execute(f"DROP TRIGGER {name}")
db.executescript(sys.argv[2])
if sys.argv[3] == "rechain":
    prev = bytes(32)
    for seq, version, body in db.execute("SELECT seq, version, body FROM records ORDER BY seq").fetchall():
        data = b"semel.chain.v1\0" + prev + seq.to_bytes(8, "big") + version.to_bytes(2, "big") + body.encode()
        digest = hashlib.sha256(data).digest()
        db.execute("UPDATE records SET prev = ?, hash = ? WHERE seq = ?", (prev, digest, seq))
        prev = digest
for _, sql in triggers:
    db.execute(sql)
db.commit()
"#;

/// Bends, with whether all digests are made anew, and the faults that both must name. E and L stand for the sizes of
/// the two checkpoints that are held.
const CASES: &[(&str, &str, &str)] = &[
    ("", "as-is", ""),
    (
        "UPDATE records SET body = body || ' ' WHERE seq = 5",
        "as-is",
        "changed 5",
    ),
    (
        "UPDATE records SET version = version - 1 WHERE seq = 5",
        "as-is",
        "changed 5",
    ),
    (
        "UPDATE records SET hash = zeroblob(32) WHERE seq = 5",
        "as-is",
        "changed 5, unlinked 6",
    ),
    (
        "UPDATE records SET prev = zeroblob(32) WHERE seq = 5",
        "as-is",
        "unlinked 5",
    ),
    ("DELETE FROM records WHERE seq = 9", "as-is", "gap 10"),
    (
        "DELETE FROM records WHERE seq = 9",
        "rechain",
        "gap 10, rewritten E, rewritten L",
    ),
    (
        "UPDATE records SET body = replace(body, 'took_us\":', 'took_us\":1') WHERE seq = 6",
        "rechain",
        "rewritten E, rewritten L",
    ),
    (
        "UPDATE records SET body = replace(body, 'took_us\":', 'took_us\":1') WHERE seq = E + 3",
        "rechain",
        "rewritten L",
    ),
    ("DELETE FROM records WHERE seq > L - 1", "rechain", "truncated L"),
    (
        "DELETE FROM records WHERE seq > E - 1",
        "rechain",
        "truncated E, truncated E",
    ),
    (
        "UPDATE records SET body = replace(body, 'version\":\"', 'version\":\"9') WHERE seq = 1",
        "rechain",
        "other_log 1, other_log 1",
    ),
    // A second effect of a key that had one: its own intent and receipt again, under another execution.
    (
        "CREATE TEMP TABLE pair AS SELECT * FROM records WHERE key = 'late-5' ORDER BY seq LIMIT 2;
         CREATE TEMP TABLE other AS SELECT DISTINCT substr(execution_id, 1, 35)
             || CASE substr(execution_id, 36) WHEN '0' THEN '1' ELSE '0' END AS id FROM pair;
         UPDATE pair SET body = replace(body, execution_id, (SELECT id FROM other)),
             execution_id = (SELECT id FROM other);
         UPDATE pair SET seq = seq - (SELECT min(seq) FROM pair) + 1 + (SELECT max(seq) FROM records);
         INSERT INTO records SELECT * FROM pair",
        "rechain",
        "second_effect N",
    ),
];

/// Asks the independent program.
fn theirs(log: &Log, copy: &Path, notes: &[&Path]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/verify/verify_log.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(copy).arg(&log.key).args(notes);
    let out = command.output().unwrap();
    let text = String::from_utf8(out.stdout.clone()).unwrap();
    let found = text.lines().filter(|line| *line != "no fault");
    let found: Vec<String> = found.map(str::to_owned).collect();
    let exit = i32::from(!found.is_empty());
    assert_eq!(out.status.code(), Some(exit), "{}", said(&out));
    found
}

/// Keeps the faults that both look for: ours finds more, such as what the tables say.
fn common(found: &[String]) -> Vec<String> {
    let kinds = [
        "gap",
        "unlinked",
        "changed",
        "second_effect",
        "truncated",
        "rewritten",
        "other_log",
    ];
    let known = |fault: &&String| kinds.contains(&fault.split(' ').next().unwrap());
    let mut common: Vec<String> = found.iter().filter(known).cloned().collect();
    common.sort_unstable();
    common
}

/// What the independent program checks, it finds as we do, by the same name and at the same place.
#[test]
fn an_independent_verifier_agrees() {
    let Some(()) = python() else {
        return skipped("python3 with sqlite3, or OpenSSL 3, is not here");
    };
    let log = Log::new();
    let whole = log.backup("whole.db");
    let both = [log.early.as_path(), log.late.as_path()];
    let (early, late) = (size_of(&log.early), size_of(&log.late));
    // The backup ends with the entry of the daemon's last words or later; the forged pair comes behind it.
    let entries = log.home.json(&["log", "verify"])["report"]["entries"]
        .as_u64()
        .unwrap();
    let filled = |text: &str| {
        let text = text
            .replace("seq = E", &format!("seq = {early}"))
            .replace("seq > E", &format!("seq > {early}"));
        text.replace("seq > L", &format!("seq > {late}"))
    };
    let copy = log.home.path().join("bent.db");
    for (sql, then, must) in CASES {
        std::fs::copy(&whole, &copy).unwrap();
        let mut command = Command::new("python3");
        command.args(["-c", BEND]).arg(&copy).args([&filled(sql), *then]);
        let bent = command.output().unwrap();
        assert!(bent.status.success(), "{sql}: {}", said(&bent));
        let (ours, theirs) = (log.faults(&copy, &both), theirs(&log, &copy, &both));
        let must: Vec<String> = must
            .split(", ")
            .filter(|fault| !fault.is_empty())
            .map(|fault| {
                let (kind, place) = fault.split_once(' ').unwrap();
                let place = match place {
                    "E" => early,
                    "L" => late,
                    "N" => entries + 2,
                    other => other.parse().unwrap(),
                };
                format!("{kind} at entry {place}")
            })
            .collect();
        assert_eq!(common(&theirs), common(&must), "{sql} {then}: theirs");
        assert_eq!(common(&ours), common(&must), "{sql} {then}: ours of {ours:?}");
    }
    // A note that is bent: refused by both.
    let bent = log.home.path().join("bent.note");
    std::fs::write(&bent, grown(&log.late)).unwrap();
    assert!(theirs(&log, &whole, &[&bent])[0].starts_with("bad_checkpoint"));
    assert_eq!(log.verify(&whole, &[&bent]).status.code(), Some(65));
    eprintln!(
        "{} bent logs: the independent verifier agrees on each",
        CASES.len()
    );
}

/// The daemon does not have to be there, and is not disturbed: verified while it writes.
#[test]
fn a_log_is_verified_while_it_grows() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut conn = daemon.conn();
            for n in 0..300 {
                let key = format!("k{n}");
                assert_eq!(
                    conn.call(&volume, "write_file", &key, &json!({"path": "a", "content": key}))
                        .status,
                    200
                );
            }
        });
        let mut rounds = 0;
        while !writing.is_finished() || rounds == 0 {
            assert!(home.run(&["log", "checkpoint"]).status.success());
            let out = home.run(&["log", "verify"]);
            assert!(out.status.success(), "{}", said(&out));
            rounds += 1;
        }
        assert!(wait_until(Duration::from_secs(1), || rounds > 0));
    });
}
