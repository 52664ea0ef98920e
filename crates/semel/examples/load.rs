//! Drives a running daemon with many clients that each write under new keys, and says what the journal made of it.
//!
//! `cargo run -p semel --example load -- --state DIR --job JOB [--clients 64] [--seconds 10] [--durability process]`
//!
//! It opens a volume through the admin API, and prints calls/s, commits/s, rows a commit and latencies.

#![allow(clippy::disallowed_methods, reason = "a tool of its own, beside the product")]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

type Fault = Box<dyn std::error::Error + Send + Sync>;

struct Wanted {
    state: PathBuf,
    job: String,
    clients: usize,
    seconds: u64,
    durability: String,
    replays: u64,
}

fn wanted() -> Result<Wanted, Fault> {
    let mut wanted = Wanted {
        state: PathBuf::new(),
        job: "load".to_owned(),
        clients: 64,
        seconds: 10,
        durability: "process".to_owned(),
        replays: 0,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or("every option has a value")?;
        match name.as_str() {
            "--state" => wanted.state = value.into(),
            "--job" => wanted.job = value,
            "--clients" => wanted.clients = value.parse()?,
            "--seconds" => wanted.seconds = value.parse()?,
            "--durability" => wanted.durability = value,
            "--replays" => wanted.replays = value.parse()?,
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    Ok(wanted)
}

fn exchange<S: Read + Write>(stream: &mut BufReader<S>, request: &str) -> Result<(u16, Value), Fault> {
    stream.get_mut().write_all(request.as_bytes())?;
    let (mut status, mut length) = (0, 0_usize);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err("the daemon broke off".into());
        }
        if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
            status = rest.split(' ').next().unwrap_or_default().parse()?;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((status, serde_json::from_slice(&body)?))
}

fn admin(wanted: &Wanted, method: &str, path: &str, body: &str) -> Result<Value, Fault> {
    #[expect(clippy::disallowed_methods, reason = "an example outside of the house")]
    let token = std::fs::read_to_string(wanted.state.join("operator.token"))?;
    let mut stream = BufReader::new(UnixStream::connect(wanted.state.join("semel.sock"))?);
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
        token.trim(),
        body.len()
    );
    let (status, value) = exchange(&mut stream, &request)?;
    if status == 200 {
        Ok(value)
    } else {
        Err(value.to_string().into())
    }
}

fn client(url: &str, token: &str, n: usize, wanted: &Wanted) -> Result<Vec<Duration>, Fault> {
    let stream = TcpStream::connect(url)?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let until = Instant::now() + Duration::from_secs(wanted.seconds);
    let mut took = Vec::new();
    let mut sent = 0_u64;
    while Instant::now() < until {
        for again in 0..=wanted.replays {
            let body = json!({"path": format!("f{n}"), "content": format!("{sent:0100}")}).to_string();
            let request = format!(
                "POST /v1/tools/write_file HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nidempotency-key: {n}-{sent}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let since = Instant::now();
            let (status, value) = exchange(&mut stream, &request)?;
            if status != 200 || value["replayed"] != json!(again > 0) {
                return Err(format!("status {status}: {value}").into());
            }
            if again == 0 {
                took.push(since.elapsed());
            }
        }
        sent += 1;
    }
    Ok(took)
}

fn main() -> Result<(), Fault> {
    let wanted = wanted()?;
    let asked = json!({"job": wanted.job, "durability": wanted.durability}).to_string();
    let volume = admin(&wanted, "POST", "/v1/admin/volumes", &asked)?;
    let (token, url) = (
        volume["token"].as_str().ok_or("a token")?,
        volume["url"].as_str().ok_or("a URL")?,
    );
    let url = url.strip_prefix("http://").ok_or("an http URL")?;
    let before = admin(&wanted, "GET", "/v1/admin/status", "")?;
    let since = Instant::now();
    let results: Vec<Result<Vec<Duration>, Fault>> = std::thread::scope(|scope| {
        let wanted = &wanted;
        let clients: Vec<_> = (0..wanted.clients)
            .map(|n| scope.spawn(move || client(url, token, n, wanted)))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|_| Err("a client panicked".into())))
            .collect()
    });
    let seconds = since.elapsed().as_secs_f64();
    let after = admin(&wanted, "GET", "/v1/admin/status", "")?;
    let mut took = Vec::new();
    for result in results {
        took.extend(result?);
    }
    took.sort();
    let count = |name: &str| {
        let at = |status: &Value| status["journal"][name].as_f64().unwrap_or_default();
        at(&after) - at(&before)
    };
    let at = |part: f64| {
        let index = (took.len() as f64 * part) as usize;
        took.get(index.min(took.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    };
    let (commits, rows) = (count("commits"), count("rows"));
    let line = format!(
        "{} clients, durability {}, {} replays each: {:.0} new calls/s, {:.0} commits/s ({:.0} synced/s), {:.1} rows/commit, p50 {:?}, p99 {:?}\n",
        wanted.clients,
        wanted.durability,
        wanted.replays,
        took.len() as f64 / seconds,
        commits / seconds,
        count("synced_commits") / seconds,
        rows / commits.max(1.0),
        at(0.5),
        at(0.99),
    );
    std::io::stdout().write_all(line.as_bytes())?;
    let end = format!(
        "/v1/admin/volumes/{}/end",
        volume["generation"].as_str().unwrap_or_default()
    );
    admin(&wanted, "POST", &end, r#"{"end":"clean"}"#)?;
    Ok(())
}
