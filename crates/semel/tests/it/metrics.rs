//! What the probe process says, by the rules of those who read it: Prometheus, kubelets, service managers.

use crate::harness::{Conn, Daemon, Home, LONG, signal, skipped, wait_until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

fn plain(url: &str, path: &str) -> (u16, String, String) {
    let reply = Conn::tcp(url).send("GET", path, &[], b"");
    let kind = reply.header("content-type").unwrap_or_default().to_owned();
    (
        reply.status,
        reply.body.as_str().unwrap_or_default().to_owned(),
        kind,
    )
}

fn named(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Reads a page of metrics by the letter of the text format and the naming practices; gives each sample.
fn strict(text: &str) -> BTreeMap<String, f64> {
    assert!(
        text.ends_with('\n') && !text.contains("\n\n") && !text.contains('\r'),
        "{text}"
    );
    let mut samples = BTreeMap::new();
    let (mut families, mut helped, mut family) = (BTreeSet::new(), None, None::<(String, String)>);
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect(line);
            assert!(named(name) && words.ends_with('.') && words.len() > 10, "{line}");
            assert!(families.insert(name.to_owned()), "{line}: a second time");
            helped = Some(name.to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect(line);
            assert_eq!(helped.take().as_deref(), Some(name), "{line}: help comes first");
            assert!(["gauge", "counter", "summary"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            family = Some((name.to_owned(), kind.to_owned()));
        } else {
            let (series, value) = line.rsplit_once(' ').expect(line);
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let (of, kind) = family.as_ref().expect(line);
            let suffix = name.strip_prefix(of.as_str()).expect(line);
            let fits: &[&str] = if kind == "summary" {
                &["_sum", "_count"]
            } else {
                &[""]
            };
            assert!(named(name) && fits.contains(&suffix), "{line}");
            assert!(name.starts_with("semel_"), "{line}");
            let inner = labels.strip_suffix('}').expect(line);
            for label in inner.split(',').filter(|label| !label.is_empty()) {
                let (key, value) = label.split_once('=').expect(line);
                assert!(named(key) && value.len() >= 2, "{line}");
                assert!(value.starts_with('"') && value.ends_with('"'), "{line}");
            }
            let value: f64 = value.parse().expect(line);
            assert!(value >= 0.0, "{line}");
            assert!(
                samples.insert(series.to_owned(), value).is_none(),
                "{line}: a second time"
            );
        }
    }
    samples
}

#[test]
fn metrics_are_read_by_the_strictest_reader() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    for key in ["k", "k", "l"] {
        let arguments = json!({"path": key, "content": "1"});
        assert_eq!(
            daemon.conn().call(&volume, "write_file", key, &arguments).status,
            200
        );
    }
    let page = || plain(&daemon.probe_url, "/metrics");
    let executed = || strict(&page().1).get("semel_executed_total").copied();
    assert!(wait_until(LONG, || executed() == Some(2.0)), "{}", page().1);
    let (status, text, kind) = page();
    assert_eq!(
        (status, kind.as_str()),
        (200, "text/plain; version=0.0.4; charset=utf-8")
    );
    let samples = strict(&text);
    let build = format!("semel_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    for (name, value) in [
        (build.as_str(), 1.0),
        ("semel_up", 1.0),
        ("semel_ready", 1.0),
        ("semel_draining", 0.0),
        ("semel_poisoned", 0.0),
        ("semel_incarnation", 1.0),
        ("semel_replayed_total", 1.0),
        ("semel_inflight_executions", 0.0),
        ("semel_inflight_requests", 0.0),
        ("semel_running_calls", 0.0),
        ("semel_unknown_outcomes", 0.0),
        ("semel_journal_queue_length", 0.0),
        ("semel_accept_errors_total", 0.0),
    ] {
        assert_eq!(samples.get(name), Some(&value), "{name}: {text}");
    }
    let (sum, count) = (
        samples["semel_journal_batch_size_sum"],
        samples["semel_journal_batch_size_count"],
    );
    assert!(sum >= count && count >= 1.0, "{text}");
    assert!(samples["semel_volumes_free_bytes"] > 0.0 && samples["semel_heartbeat_timestamp_seconds"] > 1e9);
    // And by the reader that made the rules, where it is.
    let tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    match tool {
        // This test's own reader is the strict one; promtool is a second opinion, where it is.
        Err(_) => eprintln!("promtool is not there; the metrics were read by the reader of this test"),
        Ok(mut tool) => {
            tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            let out = tool.wait_with_output().unwrap();
            let said =
                String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success() && said.trim().is_empty(), "{said}");
        }
    }
}

/// The probe process with a daemon that stands still, so that what it reads is what the test wrote.
struct Still {
    home: Home,
    daemon: Daemon,
    beat: Value,
}

impl Still {
    fn new() -> Self {
        let home = Home::new();
        let daemon = home.serve(&[]);
        let file = home.state().join("run/heartbeat.json");
        assert!(wait_until(LONG, || plain(&daemon.probe_url, "/readyz").0 == 200));
        signal(daemon.child.id(), libc::SIGSTOP);
        let beat = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        Self { home, daemon, beat }
    }

    /// Answers of `/livez`, `/readyz` and `/startupz` to a fresh heartbeat that was changed, and its metrics.
    fn says(&self, change: impl FnOnce(&mut Value)) -> ([u16; 3], BTreeMap<String, f64>) {
        let mut beat = self.beat.clone();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        beat["at"] = json!(u64::try_from(now.unwrap().as_millis()).unwrap());
        change(&mut beat);
        std::fs::write(self.home.state().join("run/heartbeat.json"), beat.to_string()).unwrap();
        let url = &self.daemon.probe_url;
        let statuses = ["/livez", "/readyz", "/startupz"].map(|path| plain(url, path).0);
        (statuses, strict(&plain(url, "/metrics").1))
    }
}

#[test]
fn readiness_drops_and_life_goes_on_until_the_writer_hangs() {
    let still = Still::new();
    let (ready, _) = still.says(|_| {});
    assert_eq!(ready, [200, 200, 200]);
    for (phase, statuses, gauge) in [
        ("starting", [200, 503, 503], ""),
        ("draining", [200, 503, 200], "semel_draining"),
        ("poisoned", [200, 503, 200], "semel_poisoned"),
    ] {
        let (got, samples) = still.says(|beat| beat["phase"] = json!(phase));
        assert_eq!(got, statuses, "{phase}");
        assert_eq!(samples["semel_ready"], 0.0, "{phase}");
        assert!(gauge.is_empty() || samples[gauge] == 1.0, "{phase}");
    }
    let (works, samples) = still.says(|beat| beat["journal"]["busy_ms"] = json!(30_000));
    assert_eq!(
        (works, samples["semel_journal_writer_busy_seconds"]),
        ([200, 200, 200], 30.0)
    );
    let (hangs, _) = still.says(|beat| beat["journal"]["busy_ms"] = json!(30_001));
    assert_eq!(hangs, [503, 503, 200]);
    // A journal that cannot say how it is leaves its gauges out, rather than at zero.
    let (_, samples) = still.says(|beat| beat["journal"] = Value::Null);
    assert!(!samples.contains_key("semel_unknown_outcomes") && samples["semel_up"] == 1.0);
    let (_, samples) = still.says(|beat| beat["journal"]["unknown"] = json!(3));
    assert_eq!(samples["semel_unknown_outcomes"], 3.0);
    let (stale, samples) = still.says(|beat| beat["at"] = json!(beat["at"].as_u64().unwrap() - 6_000));
    assert_eq!(
        (stale, samples.len(), samples["semel_up"]),
        ([503, 503, 503], 1, 0.0)
    );
}

/// The probe opens nothing but the heartbeat, whatever it is asked.
#[test]
fn the_probe_opens_the_heartbeat_and_nothing_else() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    assert!(wait_until(LONG, || plain(&daemon.probe_url, "/readyz").0 == 200));
    let pid = daemon.child.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let probe = children.split_whitespace().next().unwrap().to_owned();
    let trace = home.path().join("trace");
    let strace = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=%file,connect,sendto,sendmsg", "-o"])
        .arg(&trace)
        .args(["-p", &probe])
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut strace) = strace else {
        return skipped("strace cannot be run here");
    };
    let traced = || {
        let status = std::fs::read_to_string(format!("/proc/{probe}/status")).unwrap();
        !status.contains("TracerPid:\t0\n")
    };
    if !wait_until(Duration::from_secs(5), traced) {
        drop(strace.kill());
        drop(strace.wait());
        return skipped("strace cannot trace here");
    }
    for path in [
        "/livez",
        "/readyz",
        "/startupz",
        "/metrics",
        "/../journal.db",
        "//x",
        "/v1/admin/status",
    ] {
        for _ in 0..5 {
            plain(&daemon.probe_url, path);
        }
    }
    drop(strace.kill());
    drop(strace.wait());
    let text = std::fs::read_to_string(trace).unwrap();
    let opened: Vec<&str> = text.lines().filter(|line| line.contains("open")).collect();
    assert!(opened.len() >= 20, "{text}");
    let others: Vec<&&str> = opened
        .iter()
        .filter(|line| !line.contains("run/heartbeat.json"))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(!text.contains("journal") && !text.contains("connect("), "{text}");
}

#[test]
fn a_draining_daemon_is_not_ready() {
    let home = Home::new();
    let mut daemon = home.serve(&["--pause-at", "begun:2500"]);
    let volume = home.open("job", "process");
    let (url, probe) = (daemon.url.clone(), daemon.probe_url.clone());
    std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            Conn::tcp(&url).call(&volume, "write_file", "k", &json!({"path": "a", "content": "1"}))
        });
        assert!(wait_until(LONG, || strict(&plain(&probe, "/metrics").1)
            .get("semel_inflight_executions")
            == Some(&1.0)));
        daemon.terminate();
        assert!(wait_until(LONG, || plain(&probe, "/readyz").1 == "draining\n"));
        assert_eq!(plain(&probe, "/livez").0, 200);
        assert_eq!(call.join().unwrap().status, 200);
    });
    assert_eq!(daemon.ended(LONG).unwrap().code(), Some(0));
}
