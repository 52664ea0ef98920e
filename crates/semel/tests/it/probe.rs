//! The probe process, and probe-shaped requests on the app listener.

use crate::harness::{Conn, Home, bare};
use std::time::Duration;

/// Ten thousand requests such as probes, scanners and half-configured clients send, against every app route: no
/// effect, no intent, no entry of any kind.
#[test]
fn ten_thousand_probe_shaped_requests_do_nothing() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let arguments = serde_json::json!({"path": "a", "content": "1"});
    assert_eq!(
        daemon.conn().call(&volume, "write_file", "k", &arguments).status,
        200
    );
    let out = bare(&["generate", "routes"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let mut paths: Vec<String> = text
        .lines()
        .map(|line| line.split_once(' ').unwrap().1.to_owned())
        .collect();
    let tools = [
        "read_file",
        "list_directory",
        "get_file_info",
        "write_file",
        "delete_file",
        "get_receipt",
    ];
    paths.extend(tools.map(|tool| format!("/v1/tools/{tool}")));
    paths.extend(["/", "/healthz", "/livez", "/v1", "/mcp", "/v1/tools/"].map(str::to_owned));
    let paths: Vec<String> = paths
        .iter()
        .map(|path| {
            path.replace("{key}", "k")
                .replace("{tool}", "x")
                .replace("{id}", "1")
                .replace("{generation}", "g")
        })
        .collect();
    let auth = format!("Bearer {}", volume.token);
    let before = home.entries();
    let mut statuses = std::collections::BTreeMap::new();
    let mut sent = 0;
    let mut conn = daemon.conn();
    'all: loop {
        for path in &paths {
            for (method, body) in [
                ("GET", ""),
                ("HEAD", ""),
                ("POST", ""),
                ("POST", "{}"),
                ("OPTIONS", ""),
            ] {
                for key in [false, true] {
                    for token in [false, true] {
                        let mut headers = Vec::new();
                        headers.extend(token.then_some(("authorization", auth.as_str())));
                        headers.extend(key.then_some(("idempotency-key", "k")));
                        let reply = conn.send(method, path, &headers, body.as_bytes());
                        let reads = ["/v1/receipts/k", "/v1/openapi.json"].contains(&path.as_str());
                        let allowed: &[u16] = if reads {
                            &[200, 401, 404, 405]
                        } else {
                            &[400, 401, 404, 405]
                        };
                        assert!(allowed.contains(&reply.status), "{method} {path}: {}", reply.head);
                        *statuses.entry(reply.status).or_insert(0) += 1;
                        sent += 1;
                        if sent == 10_000 {
                            break 'all;
                        }
                    }
                }
            }
        }
    }
    eprintln!(
        "{sent} probe-shaped requests over {} paths: {statuses:?}",
        paths.len()
    );
    assert_eq!(home.entries(), before, "not one entry");
    assert_eq!(volume.trashed() + volume.staged(), 0);
    assert_eq!(std::fs::read_to_string(volume.tree.join("a")).unwrap(), "1");
}

/// Finds the probe process of a daemon.
fn probe_of(daemon: u32) -> u32 {
    let children = format!("/proc/{daemon}/task/{daemon}/children");
    let text = std::fs::read_to_string(children).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

fn plain(url: &str, method: &str, path: &str) -> (u16, String) {
    let reply = Conn::tcp(url).send(method, path, &[], b"");
    (reply.status, reply.body.as_str().unwrap_or_default().to_owned())
}

#[test]
fn the_probe_process_answers_and_holds_nothing() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut conn = daemon.conn();
    conn.call(
        &volume,
        "write_file",
        "k",
        &serde_json::json!({"path": "a", "content": "1"}),
    );
    let probe = probe_of(daemon.child.id());
    let state = home.state();
    let open = std::fs::read_dir(format!("/proc/{probe}/fd")).unwrap();
    let targets: Vec<String> = open
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect();
    eprintln!("/proc/{probe}/fd of the probe: {targets:?}");
    assert!(
        targets
            .iter()
            .all(|target| !target.contains(state.to_str().unwrap())),
        "{targets:?}"
    );
    // Beside its listener it has only what its runtime made itself: event queues and a socket pair for signals.
    let tcp = std::fs::read_to_string(format!("/proc/{probe}/net/tcp")).unwrap();
    let listed: Vec<&str> = tcp
        .lines()
        .filter_map(|line| line.split_whitespace().nth(9))
        .collect();
    let mut sockets: Vec<&String> = targets
        .iter()
        .filter(|target| listed.iter().any(|inode| **target == format!("socket:[{inode}]")))
        .collect();
    sockets.sort();
    sockets.dedup();
    assert_eq!(
        sockets.len(),
        1,
        "its listener is its only TCP socket: {targets:?}"
    );
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while plain(&daemon.probe_url, "GET", "/readyz").0 != 200 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    for path in ["/livez", "/readyz", "/startupz", "/metrics"] {
        assert_eq!(plain(&daemon.probe_url, "GET", path).0, 200, "{path}");
        assert_eq!(plain(&daemon.probe_url, "HEAD", path).0, 200, "{path}");
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(plain(&daemon.probe_url, method, path).0, 405, "{method} {path}");
        }
    }
    assert_eq!(plain(&daemon.probe_url, "GET", "/v1/tools/write_file").0, 404);
    let metrics = plain(&daemon.probe_url, "GET", "/metrics").1;
    assert!(
        metrics.contains("semel_up 1") && metrics.contains("# TYPE semel_executed_total counter"),
        "{metrics}"
    );
    daemon.kill();
    let gone = std::time::Instant::now() + Duration::from_secs(10);
    while std::path::Path::new(&format!("/proc/{probe}/fd/0")).exists() {
        assert!(std::time::Instant::now() < gone, "the probe dies with the daemon");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A daemon that hangs is not alive, however long its probe process lives.
#[test]
fn a_stale_heartbeat_is_no_sign_of_life() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while plain(&daemon.probe_url, "GET", "/livez").0 != 200 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    let file = home.state().join("run/heartbeat.json");
    let mut beat: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let pid = i32::try_from(daemon.child.id()).unwrap();
    // SAFETY: plain system call on our own child.
    #[expect(unsafe_code, reason = "std has no way to send SIGSTOP")]
    unsafe {
        libc::kill(pid, libc::SIGSTOP);
    }
    let old = beat["at"].as_u64().unwrap() - 60_000;
    beat["at"] = serde_json::json!(old);
    std::fs::write(&file, beat.to_string()).unwrap();
    for path in ["/livez", "/readyz", "/startupz"] {
        let (status, text) = plain(&daemon.probe_url, "GET", path);
        assert_eq!(status, 503, "{path}: {text}");
        assert!(text.contains("heartbeat"), "{text}");
    }
    assert!(
        plain(&daemon.probe_url, "GET", "/metrics")
            .1
            .contains("semel_up 0")
    );
}
