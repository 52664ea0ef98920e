//! The probe process, and probe-shaped requests on the app listener.

use crate::harness::{Conn, Home, bare};
use std::time::Duration;

/// Gives every path of the app listener with its blanks filled in, each tool's, and some that probes try.
fn paths() -> Vec<String> {
    let out = bare(&["generate", "routes"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let routes = text.lines().map(|line| line.split_once(' ').unwrap().1);
    let more = "read_file list_directory get_file_info write_file delete_file get_receipt";
    let tools = more.split(' ').map(|tool| format!("/v1/tools/{tool}"));
    let tried = "/ /healthz /livez /v1 /mcp /v1/tools/".split(' ');
    let filled = |path: &str| {
        path.replace("{key}", "k")
            .replace("{tool}", "x")
            .replace("{id}", "1")
            .replace("{generation}", "g")
    };
    routes
        .map(filled)
        .chain(tools)
        .chain(tried.map(str::to_owned))
        .collect()
}

/// Gives the requests that probes, scanners and half-configured clients send to a path.
fn shapes() -> Vec<(&'static str, &'static str, bool, bool)> {
    let methods = [
        ("GET", ""),
        ("HEAD", ""),
        ("POST", ""),
        ("POST", "{}"),
        ("OPTIONS", ""),
    ];
    let with = [(false, false), (false, true), (true, false), (true, true)];
    let all = methods
        .into_iter()
        .flat_map(|(method, body)| with.map(|(key, token)| (method, body, key, token)));
    all.collect()
}

/// Ten thousand probe-shaped requests against every app route: no effect, no intent, and no entry of anybody's.
#[test]
fn ten_thousand_probe_shaped_requests_do_nothing() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let arguments = serde_json::json!({"path": "a", "content": "1"});
    let written = daemon.conn().call(&volume, "write_file", "k", &arguments);
    assert_eq!(written.status, 200);
    let auth = format!("Bearer {}", volume.token);
    let (before, paths, since) = (home.entries(), paths(), std::time::Instant::now());
    let mut statuses = std::collections::BTreeMap::new();
    let mut conn = daemon.conn();
    let one_of_each = paths
        .iter()
        .flat_map(|path| shapes().into_iter().map(move |shape| (path, shape)));
    let requests: Vec<_> = one_of_each.collect();
    for (path, (method, body, key, token)) in requests.iter().cycle().take(10_000) {
        let mut headers = Vec::new();
        headers.extend(token.then_some(("authorization", auth.as_str())));
        headers.extend(key.then_some(("idempotency-key", "k")));
        let reply = conn.send(method, path, &headers, body.as_bytes());
        let reads = ["/v1/receipts/k", "/v1/openapi.json"].contains(&path.as_str());
        let fits = matches!(reply.status, 400 | 401 | 404 | 405)
            || (reads && reply.status == 200)
            // A host that is none of ours is told no more there.
            || (*path == "/mcp" && reply.status == 403);
        assert!(fits, "{method} {path}: {}", reply.head);
        *statuses.entry(reply.status).or_insert(0) += 1;
    }
    eprintln!(
        "10000 probe-shaped requests over {} paths: {statuses:?}",
        paths.len()
    );
    // Those without a token are nobody's: a few a minute are noted as refused, and the rest as a number.
    let after = before.to_string();
    let noted = home.lines(&["log", "--after", &after]);
    let minutes = since.elapsed().as_secs() / 60 + 2;
    assert!(noted.len() as u64 <= minutes * 7, "{} entries", noted.len());
    for line in &noted {
        assert_eq!(line["code"], "unauthorized", "{line}");
        assert!(
            ["refused", "suppressed"].contains(&line["event"].as_str().unwrap()),
            "{line}"
        );
        assert!(line["execution_id"].is_null(), "{line}");
    }
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
    for method in ["GET", "HEAD", "POST", "DELETE"] {
        for path in ["/v1/tools/write_file", "/internal/replay-last", "/mcp", "/"] {
            assert_eq!(plain(&daemon.probe_url, method, path).0, 404, "{method} {path}");
        }
    }
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
