//! Drafts with a quota: what calls keep goes first, then calls are refused, and what grows beside them is ended.

use crate::harness::{Daemon, Home, LONG, RUN, Reply, Site, Volume, last_draft, wait_until};
use serde_json::{Value, json};

/// Writes the operator's file of a home.
fn quota(home: &std::path::Path, text: &str) {
    let dir = home.join(".config/semel");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.toml"), format!("[quota]\n{text}\n")).unwrap();
}

struct Lab {
    home: Home,
    daemon: Daemon,
    volume: Volume,
}

impl Lab {
    fn new(text: &str) -> Self {
        let home = Home::new();
        quota(home.path(), text);
        let daemon = home.serve(&[]);
        let volume = home.open("job", "process");
        Self { home, daemon, volume }
    }

    fn call(&self, tool: &str, key: &str, arguments: &Value) -> Reply {
        self.daemon.conn().call(&self.volume, tool, key, arguments)
    }

    fn write(&self, key: &str, path: &str, bytes: usize) -> Reply {
        self.call(
            "write_file",
            key,
            &json!({"path": path, "content": key[..1].repeat(bytes)}),
        )
    }

    fn undo(&self, of: &Reply) -> Reply {
        let id = of.body["execution_id"].as_str().unwrap();
        let path = format!("/v1/admin/executions/{id}/undo");
        self.home.admin("POST", &path, &Value::Null)
    }

    fn size(&self, name: &str) -> Option<u64> {
        Some(std::fs::metadata(self.volume.tree.join(name)).ok()?.len())
    }
}

#[test]
fn what_calls_keep_goes_before_a_call_is_refused() {
    let lab = Lab::new("volume_bytes = 100000");
    assert_eq!(lab.write("a", "f", 40_000).status, 200);
    let second = lab.write("b", "f", 40_000);
    assert_eq!((second.status, lab.volume.trashed()), (200, 1));
    let third = lab.write("c", "g", 40_000);
    assert_eq!(
        (third.status, lab.volume.trashed()),
        (200, 0),
        "what was kept went"
    );
    let expired = lab.undo(&second);
    assert_eq!((expired.status, expired.code()), (410, "undo_expired"));
    let fourth = lab.write("d", "g", 10_000);
    assert_eq!(
        (fourth.status, lab.volume.trashed()),
        (200, 1),
        "no more than it takes"
    );
    assert_eq!(lab.undo(&fourth).status, 200);
    let back = std::fs::read(lab.volume.tree.join("g")).unwrap();
    assert_eq!(back, b"c".repeat(40_000));

    // 80 kB of the tree, and 10 kB that the undoing keeps; the latter goes.
    assert_eq!(lab.write("k", "k", 15_000).status, 200);
    let full = lab.write("e", "h", 20_000);
    assert_eq!(
        (full.status, full.code()),
        (413, "quota_exceeded"),
        "{}",
        full.body
    );
    assert_eq!(
        (lab.size("h"), lab.volume.staged(), lab.volume.trashed()),
        (None, 0, 0)
    );
    let again = lab.write("e", "h", 20_000);
    assert_eq!((again.status, again.code()), (413, "quota_exceeded"));
    let over = lab.call(
        "write_file",
        "f",
        &json!({"path": "f", "content": "x".repeat(20_000)}),
    );
    assert_eq!(
        (over.status, over.code()),
        (413, "quota_exceeded"),
        "also over another file"
    );
    assert_eq!(lab.size("f"), Some(40_000));

    // What fits is taken, and what frees is: then the very same call goes through, once.
    assert_eq!(lab.write("i", "small", 3_000).status, 200);
    assert_eq!(
        lab.call("set_mode", "m", &json!({"path": "f", "mode": "600"}))
            .status,
        200
    );
    assert_eq!(lab.call("delete_file", "j", &json!({"path": "g"})).status, 200);
    let first = lab.write("e", "h", 20_000);
    assert_eq!(
        (first.status, &first.body["replayed"]),
        (200, &json!(false)),
        "{}",
        first.body
    );
    let replayed = lab.write("e", "h", 20_000);
    assert_eq!((replayed.status, &replayed.body["replayed"]), (200, &json!(true)));
    assert_eq!(lab.size("h"), Some(20_000));
    assert_eq!(lab.home.json(&["check"])["report"]["faults"], json!([]));
}

#[test]
fn files_are_counted_as_bytes_are() {
    let lab = Lab::new("volume_files = 6");
    for name in ["a", "b", "c"] {
        assert_eq!(lab.write(name, name, 1).status, 200);
    }
    let patch = |names: &[&str]| {
        let adds: String = names
            .iter()
            .map(|name| format!("*** Add File: {name}\n+x\n"))
            .collect();
        json!({"patch": format!("*** Begin Patch\n{adds}*** End Patch\n")})
    };
    let many = lab.call("apply_patch", "p", &patch(&["d", "e", "x/y/g"]));
    assert_eq!(
        (many.status, many.code()),
        (413, "quota_exceeded"),
        "{}",
        many.body
    );
    assert_eq!((lab.size("d"), lab.volume.staged()), (None, 0), "all or nothing");
    let fits = lab.call("apply_patch", "p2", &patch(&["d", "e", "g"]));
    assert_eq!(fits.status, 200, "{}", fits.body);
    let directories = lab.call("create_directory", "q", &json!({"path": "x"}));
    assert_eq!((directories.status, directories.code()), (413, "quota_exceeded"));
}

/// A command writes past the gateway: it is found out, ended, and its volume with it.
#[test]
fn a_volume_that_grew_past_its_quota_is_ended_dirty() {
    let lab = Lab::new("volume_bytes = 1000000");
    std::fs::write(lab.volume.tree.join("f"), vec![0; 600_000]).unwrap();
    assert_eq!(lab.call("delete_file", "d", &json!({"path": "f"})).status, 200);
    std::fs::write(lab.volume.tree.join("big"), vec![0; 900_000]).unwrap();
    // With what a call keeps it would be too much; that goes, and nobody is ended.
    assert!(wait_until(LONG, || lab.volume.trashed() == 0));
    assert_eq!(lab.write("a", "g", 10).status, 200);

    let line = "head -c 3000000 /dev/zero > more; touch begun; while :; do sleep 0.05; done";
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let arguments = json!({"command": line});
            lab.daemon
                .conn()
                .try_call(&lab.volume, "run_command", "r", &arguments)
        });
        let volume = || lab.home.json(&["volume", "show", &lab.volume.generation])["volume"].clone();
        assert!(
            wait_until(LONG, || volume()["state"] == "quarantined"),
            "{}",
            volume()
        );
        assert_eq!(volume()["dirty"], "quota_exceeded");
        let answer = running.join().unwrap().expect("it is answered");
        assert!(lab.volume.tree.join("begun").exists(), "{}", answer.body);
    });
    let late = lab.write("b", "h", 1);
    assert_eq!(
        (late.code(), late.reason()),
        ("replay_conflict", "stale_generation")
    );
    let receipt = lab.call("get_receipt", "", &json!({"key": "r"}));
    assert_eq!(
        receipt.body["state"], "done",
        "it was ended, and says so: {}",
        receipt.body
    );
    let status = lab.home.admin("GET", "/v1/admin/status", &Value::Null);
    assert_eq!(status.body["counted"]["over_quota"], 1, "{}", status.body);
    assert_eq!(lab.home.json(&["check"])["report"]["faults"], json!([]));
}

/// The draft of a job: its agent is ended, and the run says why.
#[test]
fn an_agent_whose_draft_is_over_its_quota_is_ended() {
    let site = Site::new();
    quota(site.home.path(), "volume_bytes = 20000000");
    site.agent("import time\nopen('big', 'wb').write(b'x' * 30_000_000)\ntime.sleep(300)\n");
    let refusal = site.refused(RUN, 79);
    assert_eq!(refusal["code"], "quota_exceeded", "{refusal}");
    let draft = last_draft(&site);
    assert_eq!(
        (&draft["state"], &draft["dirty"]),
        (&json!("quarantined"), &json!("quota_exceeded"))
    );
    let log = site.home.lines(&["log", "--job", "small"]);
    let cancelled = |line: &&Value| line.to_string().contains("cancelled");
    assert_eq!(log.iter().filter(cancelled).count(), 0, "nobody cancelled it");
    site.at_rest();
}
