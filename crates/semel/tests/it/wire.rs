//! HTTP as hostile, sloppy and slow clients speak it: each request has one end, one answer, and at most one effect.

use crate::harness::{Daemon, Home, Reply, Volume, wait_until};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const WRITE: &str = "/v1/tools/write_file";

/// A request with exactly these fields beside those that every call has.
fn raw(volume: &Volume, line: &str, key: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "{line}\r\nhost: semel\r\nauthorization: Bearer {}\r\nidempotency-key: {key}\r\n{fields}\r\n",
        volume.token
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn post(volume: &Volume, key: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    raw(volume, &format!("POST {WRITE} HTTP/1.1"), key, fields, body)
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in body.chunks(1 << 16) {
        bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

fn arguments(path: &str) -> Vec<u8> {
    json!({"path": path, "content": "1"}).to_string().into_bytes()
}

fn length(body: &[u8]) -> String {
    format!("content-length: {}\r\n", body.len())
}

/// Sends from another thread, since who refuses early does not read to the end; says whether all could be sent, too.
fn sent(daemon: &Daemon, bytes: Vec<u8>) -> (bool, Option<Reply>) {
    let mut conn = daemon.conn();
    let mut writer = conn.inner().try_clone().unwrap();
    let sends = std::thread::spawn(move || writer.write_all(&bytes).is_ok());
    let reply = conn.receive("POST");
    (sends.join().unwrap(), reply)
}

fn exchange(daemon: &Daemon, bytes: Vec<u8>) -> Option<Reply> {
    sent(daemon, bytes).1
}

/// Says that nothing was done but what is named.
fn only(volume: &Volume, names: &[&str]) {
    assert_eq!(crate::harness::listed(&volume.tree), names);
    assert_eq!(volume.staged(), 0);
}

#[test]
fn a_body_over_the_bound_is_refused_however_it_comes() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let most = 8 << 20;
    let padded = |size: usize| {
        let mut body = arguments("a");
        body.resize(size, b' ');
        body
    };
    let (fits, over) = (padded(most), padded(most + 1));
    for (name, bytes) in [
        ("with its length", post(&volume, "k", &length(&over), &over)),
        (
            "in chunks, without",
            post(&volume, "k", "transfer-encoding: chunked\r\n", &chunked(&over)),
        ),
        (
            "with a length that nobody sends",
            post(&volume, "k", "content-length: 18446744073709551615\r\n", b""),
        ),
    ] {
        let reply = exchange(&daemon, bytes).expect(name);
        assert!(
            matches!(
                (reply.status, reply.code()),
                (413, "too_large") | (400, "bad_input")
            ),
            "{name}: {} {}",
            reply.head,
            reply.body
        );
        only(&volume, &[]);
    }
    // The bound itself is within the bound, both ways.
    let whole = exchange(&daemon, post(&volume, "k1", &length(&fits), &fits)).unwrap();
    assert_eq!(whole.status, 200, "{}", whole.body);
    let parts = chunked(&fits);
    let whole = exchange(
        &daemon,
        post(&volume, "k1", "transfer-encoding: chunked\r\n", &parts),
    )
    .unwrap();
    assert_eq!(whole.body["replayed"], true, "{}", whole.body);
    only(&volume, &["a"]);
}

#[test]
fn a_length_that_lies_has_no_effect_beyond_it() {
    let home = Home::new();
    let daemon = home.serve(&["--hasten", "50"]);
    let volume = home.open("job", "process");
    // Too short: what is left over is no request, and the connection ends.
    let body = [arguments("a"), arguments("b")].concat();
    let short = format!("content-length: {}\r\n", arguments("a").len());
    let mut conn = daemon.conn();
    let first = conn.raw(&post(&volume, "k", &short, &body)).unwrap();
    assert_eq!(first.status, 200, "{}", first.body);
    let rest = conn.receive("POST").unwrap();
    assert_eq!(
        (rest.status, rest.code(), rest.reason()),
        (400, "bad_input", "malformed_http")
    );
    assert!(conn.ended());
    only(&volume, &["a"]);
    // Cut in the middle of the arguments.
    let half = daemon
        .conn()
        .raw(&post(&volume, "k2", "content-length: 10\r\n", &arguments("b")))
        .unwrap();
    assert_eq!((half.status, half.code()), (400, "bad_input"), "{}", half.body);
    // Too long: the client waits for the answer, and we for the rest.
    let long = format!("content-length: {}\r\n", arguments("c").len() + 1);
    let slow = daemon
        .conn()
        .raw(&post(&volume, "k3", &long, &arguments("c")))
        .unwrap();
    assert_eq!(
        (slow.code(), slow.reason()),
        ("bad_input", "body_timeout"),
        "{}",
        slow.body
    );
    // Too long, and the client says that no more comes.
    let mut conn = daemon.conn();
    conn.write(&post(&volume, "k4", &long, &arguments("c"))).unwrap();
    conn.inner().shutdown(Shutdown::Write).unwrap();
    let cut = conn.receive("POST").unwrap();
    assert_eq!(
        (cut.code(), cut.reason()),
        ("bad_input", "body_broken_off"),
        "{}",
        cut.body
    );
    only(&volume, &["a"]);
    // Each of them left its record, and took no key.
    for key in ["k2", "k3", "k4"] {
        let free = daemon
            .conn()
            .call(&volume, "write_file", key, &json!({"path": key, "content": "1"}));
        assert_eq!(
            (free.status, &free.body["replayed"]),
            (200, &json!(false)),
            "{key}"
        );
    }
    let log = home.lines(&["log"]);
    let told = log.iter().filter(|line| line["reason"] == "body_timeout");
    assert!(told.count() > 0, "{log:?}");
}

/// A body a byte at a time does not outlast the bound, however often something comes.
#[test]
fn a_body_that_trickles_is_given_up() {
    let home = Home::new();
    let daemon = home.serve(&["--hasten", "100"]);
    let volume = home.open("job", "process");
    let body = arguments("a");
    let mut conn = daemon.conn();
    conn.write(&post(&volume, "k", "content-length: 1000000\r\n", &body))
        .unwrap();
    let mut writer = conn.inner().try_clone().unwrap();
    let trickle = std::thread::spawn(move || {
        while writer.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let reply = conn.receive("POST").unwrap();
    assert_eq!(
        (reply.code(), reply.reason()),
        ("bad_input", "body_timeout"),
        "{}",
        reply.body
    );
    drop(conn);
    trickle.join().unwrap();
    only(&volume, &[]);
}

#[test]
fn a_packed_body_is_refused_by_name() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    for encoding in ["gzip", "br", "identity, gzip", "\u{1}"] {
        let body = arguments("a");
        let fields = format!("content-encoding: {encoding}\r\n{}", length(&body));
        let reply = daemon.conn().raw(&post(&volume, "k", &fields, &body)).unwrap();
        let wanted = if encoding == "\u{1}" {
            "malformed_http"
        } else {
            "unsupported_content_encoding"
        };
        assert_eq!(
            (reply.status, reply.reason()),
            (400, wanted),
            "{encoding}: {}",
            reply.body
        );
    }
    let body = arguments("a");
    let fields = format!("content-encoding: identity\r\n{}", length(&body));
    assert_eq!(
        daemon
            .conn()
            .raw(&post(&volume, "k", &fields, &body))
            .unwrap()
            .status,
        200
    );
}

/// What stands in a body is no request, however its length is spelt; what comes after it is one.
#[test]
fn a_long_line_hides_no_second_end() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let in_chunks = chunked(&arguments("outer"));
    for fill in ["0", " "] {
        let hides = "GET / HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n";
        let long = format!("content-length: {}{}\r\n", fill.repeat(1100), hides.len());
        let mut bytes = post(&volume, "first", &long, hides.as_bytes());
        let both = "content-length: 5\r\ntransfer-encoding: chunked\r\n";
        bytes.extend_from_slice(&post(&volume, "second", both, &in_chunks));
        let mut conn = daemon.conn();
        assert_eq!(conn.raw(&bytes).unwrap().code(), "bad_input");
        let second = conn.receive("POST").unwrap();
        assert_eq!(
            (second.status, second.reason()),
            (400, "ambiguous_length"),
            "{}",
            second.head
        );
        assert!(conn.ended());
        only(&volume, &[]);
    }
}

/// Gives a name, fields and a body for each way to say twice, or doubtfully, where the body ends.
fn two_ends(body: &[u8]) -> Vec<(&'static str, String, Vec<u8>)> {
    let (body, in_chunks) = (body.to_vec(), chunked(body));
    let own = length(&body);
    let te = "transfer-encoding: chunked\r\n";
    vec![
        ("CL, CL, equal", format!("{own}{own}"), body.clone()),
        (
            "CL, CL, other",
            format!("{own}content-length: 0\r\n"),
            body.clone(),
        ),
        (
            "CL list",
            format!("content-length: {0}, {0}\r\n", body.len()),
            body.clone(),
        ),
        (
            "CL, TE after many zeros",
            format!("content-length: {}4\r\n{te}", "0".repeat(1100)),
            in_chunks.clone(),
        ),
        (
            "TE packed",
            "transfer-encoding: gzip, chunked\r\n".to_owned(),
            in_chunks.clone(),
        ),
        ("CL, TE", format!("content-length: 4\r\n{te}"), in_chunks.clone()),
        ("TE, CL", format!("{te}content-length: 4\r\n"), in_chunks.clone()),
        (
            "TE, TE",
            format!("{te}transfer-encoding: identity\r\n"),
            in_chunks.clone(),
        ),
        (
            "TE list",
            "transfer-encoding: chunked, identity\r\n".to_owned(),
            in_chunks.clone(),
        ),
        (
            "TE odd",
            "transfer-encoding: xchunked\r\n".to_owned(),
            in_chunks.clone(),
        ),
        (
            "TE spaced",
            "transfer-encoding : chunked\r\n".to_owned(),
            in_chunks.clone(),
        ),
        (
            "TE folded",
            "transfer-encoding:\r\n chunked\r\n".to_owned(),
            in_chunks.clone(),
        ),
        (
            "CL signed",
            format!("content-length: +{}\r\n", body.len()),
            body.clone(),
        ),
        ("CL negative", "content-length: -1\r\n".to_owned(), body.clone()),
    ]
}

/// What a proxy and we could read as different requests is none; neither half of it has an effect.
#[test]
fn a_request_with_two_ends_is_refused() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let inner = post(
        &volume,
        "smuggled",
        &length(&arguments("smuggled")),
        &arguments("smuggled"),
    );
    let body = arguments("outer");
    let te = "transfer-encoding: chunked\r\n";
    let in_chunks = chunked(&body);
    for (name, fields, body) in two_ends(&body) {
        let mut bytes = post(&volume, "k", &fields, &body);
        bytes.extend_from_slice(&inner);
        let mut conn = daemon.conn();
        let reply = conn.raw(&bytes).expect(name);
        assert_eq!(
            (reply.status, reply.code()),
            (400, "bad_input"),
            "{name}: {}",
            reply.head
        );
        assert!(conn.ended(), "{name}: nothing after it is read");
        only(&volume, &[]);
        if name.contains(", TE") || name.contains(", CL") || name.starts_with("TE ") && name != "TE spaced" {
            assert_eq!(reply.reason(), "ambiguous_length", "{name}");
        }
    }
    // In an older HTTP there are no chunks.
    let old = raw(&volume, &format!("POST {WRITE} HTTP/1.0"), "k", te, &in_chunks);
    assert_eq!(daemon.conn().raw(&old).unwrap().status, 400);
    only(&volume, &[]);
}

#[test]
fn requests_in_one_piece_are_answered_in_order() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut bytes = Vec::new();
    for n in 0..20 {
        let body = arguments(&format!("f{n:02}"));
        if n % 2 == 0 {
            bytes.extend(post(&volume, &format!("k{n}"), &length(&body), &body));
        } else {
            let te = "transfer-encoding: chunked\r\n";
            bytes.extend(post(&volume, &format!("k{n}"), te, &chunked(&body)));
        }
    }
    let mut conn = daemon.conn();
    conn.write(&bytes).unwrap();
    for n in 0..20 {
        let reply = conn.receive("POST").unwrap();
        assert_eq!(reply.body["path"], json!(format!("f{n:02}")), "{}", reply.body);
    }
    assert_eq!(std::fs::read_dir(&volume.tree).unwrap().count(), 20);
}

#[test]
fn an_older_http_is_answered_and_the_connection_ends() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let body = arguments("a");
    let mut conn = daemon.conn();
    let old = raw(
        &volume,
        &format!("POST {WRITE} HTTP/1.0"),
        "k",
        &length(&body),
        &body,
    );
    let reply = conn.raw(&old).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(conn.ended());
}

#[test]
fn a_client_that_asks_first_is_told_before_it_sends() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let body = arguments("a");
    let asks =
        |key: &str, fields: &str| post(&volume, key, &format!("expect: 100-continue\r\n{fields}"), b"");
    let mut conn = daemon.conn();
    let go_on = conn.raw(&asks("k", &length(&body))).unwrap();
    assert_eq!(go_on.status, 100, "{}", go_on.head);
    let reply = conn.raw(&body).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    // Whoever would be refused anyway is refused at once.
    for (name, bytes, code) in [
        (
            "too large",
            asks("k2", "content-length: 9000000\r\n"),
            "too_large",
        ),
        (
            "packed",
            asks("k2", &format!("content-encoding: gzip\r\n{}", length(&body))),
            "bad_input",
        ),
        (
            "no token",
            format!(
                "POST {WRITE} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n{}\r\n",
                length(&body)
            )
            .into_bytes(),
            "unauthorized",
        ),
    ] {
        let told = daemon.conn().raw(&bytes).unwrap();
        assert_eq!(told.code(), code, "{name}: {}", told.head);
    }
    only(&volume, &["a"]);
}

#[test]
fn other_methods_on_a_tool_are_refused_and_do_nothing() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let auth = format!("Bearer {}", volume.token);
    let before = home.entries();
    for (path, methods, allow) in [
        (
            WRITE,
            &["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"][..],
            "POST",
        ),
        ("/v1/receipts/k", &["POST", "PUT", "DELETE"], "GET,HEAD"),
        ("/v1/openapi.json", &["POST"], "GET,HEAD"),
    ] {
        for method in methods {
            let headers = [("authorization", auth.as_str()), ("idempotency-key", "k")];
            let reply = daemon.conn().send(method, path, &headers, &arguments("a"));
            let said = reply.header("allow").unwrap_or_default().replace(", ", ",");
            assert_eq!((reply.status, said.as_str()), (405, allow), "{method} {path}");
        }
    }
    only(&volume, &[]);
    assert_eq!(home.entries(), before);
}

/// Whoever has said all may wait for the answer; whoever has left is no longer served, unless it has begun.
#[test]
fn who_stops_sending_is_answered_and_who_leaves_is_not_served() {
    for (point, leaves, happened) in [
        ("checked", false, true),
        ("checked", true, false),
        ("begun", false, true),
        ("begun", true, true),
    ] {
        for door in ["tcp", "unix"] {
            let home = Home::new();
            let daemon = home.serve(&["--pause-at", &format!("{point}:600")]);
            let volume = home.open("job", "process");
            let bytes = post(&volume, "k", &length(&arguments("a")), &arguments("a"));
            let name = format!("{door} {point} {leaves}");
            let under_way = || {
                let status = home.admin("GET", "/v1/admin/status", &Value::Null);
                status.body["in_flight"].as_u64().unwrap_or_default()
            };
            // Whoever leaves does so while the call pauses, and not before it came.
            let comes = || {
                wait_until(Duration::from_secs(20), || {
                    under_way() > 0 || volume.tree.join("a").exists()
                })
            };
            if door == "tcp" {
                let mut conn = daemon.conn();
                conn.write(&bytes).unwrap();
                conn.inner().shutdown(Shutdown::Write).unwrap();
                if leaves {
                    assert!(comes(), "{name}");
                } else {
                    assert_eq!(conn.receive("POST").expect(&name).status, 200, "{name}");
                }
            } else {
                let mut conn = home.app();
                conn.write(&bytes).unwrap();
                conn.inner().shutdown(Shutdown::Write).unwrap();
                if leaves {
                    assert!(comes(), "{name}");
                } else {
                    assert_eq!(conn.receive("POST").expect(&name).status, 200, "{name}");
                }
            }
            // The pause ends, and with it the call; then nothing is under way.
            assert!(wait_until(Duration::from_secs(20), || under_way() == 0));
            assert_eq!(volume.tree.join("a").exists(), happened, "{name}");
            let again = daemon
                .conn()
                .call(&volume, "write_file", "k", &json!({"path": "a", "content": "1"}));
            assert_eq!(
                (again.status, &again.body["replayed"]),
                (200, &json!(happened)),
                "{name}"
            );
        }
    }
}

/// A refusal is read whole by a client that was still sending, and not lost to a reset.
#[test]
fn an_early_refusal_reaches_a_client_that_sends_on() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let over = vec![b' '; 12 << 20];
    for round in 0..20 {
        let (whole, reply) = sent(&daemon, post(&volume, "k", &length(&over), &over));
        let reply = reply.unwrap_or_else(|| panic!("round {round}: no answer"));
        assert_eq!((reply.status, reply.code()), (413, "too_large"), "round {round}");
        assert!(
            whole,
            "round {round}: a client that sends first and reads then never comes to read"
        );
    }
}

#[test]
fn a_preference_is_honoured_and_said_so() {
    let home = Home::new();
    let daemon = home.serve(&["--pause-at", "begun:1500"]);
    let volume = home.open("job", "process");
    let call = arguments("a");
    let preferring = |wait: &str| {
        let auth = format!("Bearer {}", volume.token);
        let headers = [
            ("authorization", auth.as_str()),
            ("idempotency-key", "k"),
            ("prefer", wait),
        ];
        daemon.conn().send("POST", WRITE, &headers, &call)
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| preferring("wait=3"));
        let running = || home.admin("GET", "/v1/admin/status", &Value::Null).body["journal"]["running"] == 1;
        assert!(wait_until(Duration::from_secs(20), running));
        let told = preferring("wait=0");
        assert_eq!(
            (told.status, told.code()),
            (409, "call_in_flight"),
            "{}",
            told.body
        );
        let headers = (told.header("retry-after"), told.header("preference-applied"));
        assert_eq!(headers, (Some("1"), Some("wait=0")));
        let waited = preferring("wait=99999");
        assert_eq!((waited.status, &waited.body["replayed"]), (200, &json!(true)));
        assert_eq!(
            waited.header("preference-applied"),
            Some("wait=60"),
            "the bound is said"
        );
        let first = first.join().unwrap();
        assert_eq!(
            (first.status, first.header("preference-applied")),
            (200, Some("wait=3"))
        );
    });
    assert_eq!(preferring("wait=never").header("preference-applied"), None);
}

/// Silence, half a head, and a head that trickles all end; the daemon does not wait for them.
#[test]
fn a_head_that_does_not_come_ends_the_connection() {
    let home = Home::new();
    let daemon = home.serve(&["--hasten", "50"]);
    for start in ["", "POST /v1/tools/write_file HTTP/1.1\r\nhost:", "\r\n\r\n"] {
        let mut conn = daemon.conn();
        conn.write(start.as_bytes()).unwrap();
        assert!(
            conn.ended() || conn.receive("GET").is_some_and(|reply| reply.status == 408),
            "{start:?}"
        );
    }
    // And so does one that was used before.
    let mut conn = daemon.conn();
    assert_eq!(conn.send("GET", "/v1/openapi.json", &[], b"").status, 200);
    assert!(conn.ended());
    let mut slow = TcpStream::connect(daemon.url.strip_prefix("http://").unwrap()).unwrap();
    slow.write_all(b"GET /v1/openapi.json HTTP/1.1\r\n").unwrap();
    let trickle = |stream: &mut TcpStream| {
        std::thread::sleep(Duration::from_millis(20));
        stream.write_all(b"x: y\r\n").is_ok()
    };
    let mut sent = 0;
    while trickle(&mut slow) {
        sent += 1;
        assert!(sent < 1000, "a head that trickles is not given up");
    }
}
