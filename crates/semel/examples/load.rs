//! The one load generator of the benches: closed loop, std only, against anything that takes a call by HTTP or MCP.
//!
//! `load http --url HOST:PORT --route PATH --root DIR --body JSON [--header LINE]... [--op delete|write] [--mode new|replay]
//!  [--clients 64] [--seconds 10] [--files 500] [--names absolute|relative] [--bytes 100] [--prefix KEY]`
//! `load stdio --root DIR --body JSON --bytes N [--clients 16] [--seconds 10] -- COMMAND…`: MCP, so many calls in flight
//! `load disk --root DIR [--seconds 2]`: 4 KiB overwritten in place, each with fdatasync, one after the other
//!
//! In JSON and headers `{key}`, `{path}` and `{content}` are filled in. A delete is of a file that was made before the
//! clock started, a write of a new name; a run ends when its time is over or its files are used up. Afterwards the
//! disk is looked at: `missed` counts successes that had no effect. One line of JSON goes to standard output.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a tool of its own, beside the product"
)]

use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

type Fault = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Delete,
    Write,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    New,
    Replay,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    Absolute,
    Relative,
}

struct Wanted {
    url: String,
    route: String,
    headers: Vec<String>,
    body: String,
    root: PathBuf,
    op: Op,
    mode: Mode,
    names: Names,
    clients: usize,
    seconds: f64,
    files: usize,
    bytes: usize,
    prefix: String,
    command: Vec<String>,
}

fn wanted(mut args: impl Iterator<Item = String>) -> Result<Wanted, Fault> {
    let mut wanted = Wanted {
        url: String::new(),
        route: "/".to_owned(),
        headers: Vec::new(),
        body: String::new(),
        root: PathBuf::new(),
        op: Op::Delete,
        mode: Mode::New,
        names: Names::Absolute,
        clients: 64,
        seconds: 10.0,
        files: 500,
        bytes: 100,
        prefix: format!("k{}", std::process::id()),
        command: Vec::new(),
    };
    while let Some(name) = args.next() {
        if name == "--" {
            wanted.command = args.by_ref().collect();
            break;
        }
        let value = args.next().ok_or("every option has a value")?;
        match (name.as_str(), value.as_str()) {
            ("--url", _) => {
                wanted.url = value
                    .trim_start_matches("http://")
                    .trim_end_matches('/')
                    .to_owned()
            }
            ("--route", _) => wanted.route = value,
            ("--header", _) => wanted.headers.push(value),
            ("--body", _) => wanted.body = value,
            ("--root", _) => wanted.root = value.into(),
            ("--op", "delete") => wanted.op = Op::Delete,
            ("--op", "write") => wanted.op = Op::Write,
            ("--mode", "new") => wanted.mode = Mode::New,
            ("--mode", "replay") => wanted.mode = Mode::Replay,
            ("--names", "absolute") => wanted.names = Names::Absolute,
            ("--names", "relative") => wanted.names = Names::Relative,
            ("--clients", _) => wanted.clients = value.parse()?,
            ("--seconds", _) => wanted.seconds = value.parse()?,
            ("--files", _) => wanted.files = value.parse()?,
            ("--bytes", _) => wanted.bytes = value.parse()?,
            ("--prefix", _) => wanted.prefix = value,
            _ => return Err(format!("no such option: {name} {value}").into()),
        }
    }
    Ok(wanted)
}

impl Wanted {
    /// Names a file of a client, relative to the root.
    fn name(&self, client: usize, n: usize) -> String {
        format!("{}-c{client}/f{n}", self.prefix)
    }

    fn fill(&self, template: &str, name: &str, key: &str) -> String {
        let path = match self.names {
            Names::Absolute => self.root.join(name).display().to_string(),
            Names::Relative => name.to_owned(),
        };
        template
            .replace("{path}", &path)
            .replace("{key}", key)
            .replace("{content}", &"x".repeat(self.bytes))
    }

    fn request(&self, client: usize, n: usize) -> String {
        let (name, key) = (self.name(client, n), format!("{}-{client}-{n}", self.prefix));
        let body = self.fill(&self.body, &name, &key);
        let mut head = format!("POST {} HTTP/1.1\r\nhost: {}\r\n", self.route, self.url);
        for header in &self.headers {
            head.push_str(&self.fill(header, &name, &key));
            head.push_str("\r\n");
        }
        format!(
            "{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    /// How many calls of each client need a file or a name of their own.
    fn calls(&self) -> usize {
        match self.mode {
            Mode::New => self.files,
            Mode::Replay => 1,
        }
    }

    /// Makes the directories, and the files that are to go.
    fn prepare(&self) -> Result<(), Fault> {
        for client in 0..self.clients {
            let first = self.root.join(self.name(client, 0));
            std::fs::create_dir_all(first.parent().ok_or("a directory")?)?;
            if self.op == Op::Delete {
                for n in 0..self.calls() {
                    std::fs::write(self.root.join(self.name(client, n)), "x")?;
                }
            }
        }
        // What was made for the run is not to be synced in the run. A disk that cannot be synced here is so later.
        drop(Command::new("sync").arg("-f").arg(&self.root).status());
        Ok(())
    }

    /// Says whether a call had its effect.
    fn happened(&self, client: usize, n: usize) -> bool {
        let there = self.root.join(self.name(client, n)).exists();
        match self.op {
            Op::Delete => !there,
            Op::Write => there,
        }
    }
}

/// Is what one client saw.
#[derive(Default)]
struct Seen {
    took: Vec<Duration>,
    bad: usize,
    replayed: usize,
    missed: usize,
    first_bad: Option<String>,
}

struct Answer {
    status: u16,
    replayed: bool,
    body: Vec<u8>,
}

fn exchange(stream: &mut BufReader<TcpStream>, request: &str) -> Result<Answer, Fault> {
    stream.get_mut().write_all(request.as_bytes())?;
    let (mut status, mut length, mut chunked, mut replayed) = (0, 0_usize, false, false);
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Err("the other end broke off".into());
        }
        let low = line.trim_end().to_ascii_lowercase();
        if low.is_empty() {
            break;
        }
        if let Some(rest) = low.strip_prefix("http/1.1 ") {
            status = rest.get(..3).unwrap_or_default().parse()?;
        }
        if let Some(value) = low.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        chunked |= low.starts_with("transfer-encoding:") && low.contains("chunked");
        replayed |= low.contains("replayed") && low.contains("true");
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    while chunked {
        line.clear();
        stream.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim(), 16)?;
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk)?;
        chunk.truncate(size);
        body.extend(chunk);
        chunked = size > 0;
    }
    Ok(Answer {
        status,
        replayed,
        body,
    })
}

fn connect(url: &str) -> Result<BufReader<TcpStream>, Fault> {
    let stream = TcpStream::connect(url)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(BufReader::new(stream))
}

fn client(wanted: &Wanted, client: usize, start: &Barrier) -> Result<Seen, Fault> {
    let ready = connect(&wanted.url).and_then(|mut stream| {
        if wanted.mode == Mode::Replay {
            let answer = exchange(&mut stream, &wanted.request(client, 0))?;
            if answer.status != 200 {
                return Err(format!("the call to be replayed: {}", told(&answer)).into());
            }
        }
        Ok(stream)
    });
    start.wait();
    let mut stream = ready?;
    let until = Instant::now() + Duration::from_secs_f64(wanted.seconds);
    let (mut seen, mut n, mut done) = (Seen::default(), 0, Vec::new());
    while Instant::now() < until && (wanted.mode == Mode::Replay || n < wanted.files) {
        let request = wanted.request(client, n);
        let since = Instant::now();
        match exchange(&mut stream, &request) {
            Ok(answer) if answer.status == 200 => {
                seen.replayed += usize::from(answer.replayed);
                done.push(n);
            }
            Ok(answer) => {
                seen.bad += 1;
                seen.first_bad.get_or_insert_with(|| told(&answer));
            }
            Err(error) => {
                seen.bad += 1;
                seen.first_bad.get_or_insert_with(|| error.to_string());
                stream = connect(&wanted.url)?;
            }
        }
        seen.took.push(since.elapsed());
        n += usize::from(wanted.mode == Mode::New);
    }
    done.dedup();
    seen.missed = done.iter().filter(|n| !wanted.happened(client, **n)).count();
    Ok(seen)
}

fn told(answer: &Answer) -> String {
    let text: String = String::from_utf8_lossy(&answer.body).chars().take(200).collect();
    format!("status {} {text}", answer.status)
}

fn http(wanted: &Wanted) -> Result<String, Fault> {
    wanted.prepare()?;
    let start = Barrier::new(wanted.clients + 1);
    let (seconds, results) = std::thread::scope(|scope| {
        let start = &start;
        let clients: Vec<_> = (0..wanted.clients)
            .map(|n| scope.spawn(move || client(wanted, n, start)))
            .collect();
        start.wait();
        let since = Instant::now();
        let results: Vec<Result<Seen, Fault>> = clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|_| Err("a client panicked".into())))
            .collect();
        (since.elapsed().as_secs_f64(), results)
    });
    let mut all = Seen::default();
    for seen in results {
        let seen = seen?;
        all.took.extend(seen.took);
        all.bad += seen.bad;
        all.replayed += seen.replayed;
        all.missed += seen.missed;
        all.first_bad = all.first_bad.or(seen.first_bad);
    }
    Ok(report(all, wanted.clients, seconds))
}

fn report(mut seen: Seen, clients: usize, seconds: f64) -> String {
    seen.took.sort_unstable();
    let at = |part: f64| {
        let index = (seen.took.len() as f64 * part) as usize;
        let found = seen.took.get(index.min(seen.took.len().saturating_sub(1)));
        found.copied().unwrap_or_default().as_secs_f64() * 1e3
    };
    let good = seen.took.len() - seen.bad;
    let mut line = format!(
        "{{\"clients\":{clients},\"calls\":{good},\"per_s\":{:.1},\"p50_ms\":{:.3},\"p99_ms\":{:.3},\"bad\":{},\"replayed\":{},\"missed\":{}",
        good as f64 / seconds,
        at(0.5),
        at(0.99),
        seen.bad,
        seen.replayed,
        seen.missed
    );
    if let Some(bad) = seen.first_bad {
        // Debug of a string is near enough to JSON for what answers hold.
        line.push_str(&format!(",\"first_bad\":{bad:?}"));
    }
    line.push('}');
    line
}

/// A server of MCP at the other end of two pipes.
struct Pipes {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Pipes {
    fn start(command: &[String]) -> Result<Self, Fault> {
        let (program, args) = command.split_first().ok_or("a command")?;
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let to = child.stdin.take().ok_or("a pipe")?;
        let from = BufReader::new(child.stdout.take().ok_or("a pipe")?);
        let mut pipes = Self { child, to, from };
        pipes.send(
            "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-06-18\",\
             \"capabilities\":{},\"clientInfo\":{\"name\":\"load\",\"version\":\"0\"}}}",
        )?;
        pipes.answer()?;
        pipes.send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}")?;
        Ok(pipes)
    }

    fn send(&mut self, line: &str) -> Result<(), Fault> {
        self.to.write_all(line.as_bytes())?;
        self.to.write_all(b"\n")?;
        Ok(self.to.flush()?)
    }

    /// Reads the next answer: its id, and the line; what the server asks or notifies is passed over.
    fn answer(&mut self) -> Result<(usize, String), Fault> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.from.read_line(&mut line)? == 0 {
                return Err("the server broke off".into());
            }
            let id = line.split("\"id\":").nth(1);
            let id = id.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
            if let Some(id) = id.filter(|_| !line.contains("\"method\":")) {
                return Ok((id, line));
            }
        }
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Keeps so many writes in flight; each is of a new name.
fn stdio(wanted: &Wanted) -> Result<String, Fault> {
    std::fs::create_dir_all(&wanted.root)?;
    let mut pipes = Pipes::start(&wanted.command)?;
    let (mut seen, mut began) = (Seen::default(), Vec::new());
    let since = Instant::now();
    let until = since + Duration::from_secs_f64(wanted.seconds);
    let mut running = 0;
    while running > 0 || Instant::now() < until {
        while running < wanted.clients && Instant::now() < until {
            let name = format!("{}-f{}", wanted.prefix, began.len());
            let body = wanted.fill(&wanted.body, &name, "");
            began.push((Instant::now(), name));
            pipes.send(&format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"tools/call\",\"params\":{body}}}",
                began.len()
            ))?;
            running += 1;
        }
        let (id, line) = pipes.answer()?;
        running -= 1;
        let (at, name) = began.get(id.wrapping_sub(1)).ok_or("an answer to no call")?;
        seen.took.push(at.elapsed());
        if line.contains("\"error\":") || line.contains("\"isError\":true") {
            seen.bad += 1;
            seen.first_bad
                .get_or_insert_with(|| line.chars().take(200).collect());
        } else if !wanted.root.join(name).exists() {
            seen.missed += 1;
        }
    }
    Ok(report(seen, wanted.clients, since.elapsed().as_secs_f64()))
}

/// Overwrites 4 KiB of a file that has its size already, and waits for the disk each time.
fn disk(root: &Path, seconds: f64) -> Result<String, Fault> {
    let place = root.join(format!("load-disk-{}", std::process::id()));
    let mut file = std::fs::File::create_new(&place)?;
    file.write_all(&[0; 1 << 20])?;
    file.sync_all()?;
    let mut seen = Seen::default();
    let since = Instant::now();
    while since.elapsed().as_secs_f64() < seconds {
        let began = Instant::now();
        file.seek(std::io::SeekFrom::Start((seen.took.len() as u64 % 256) * 4096))?;
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        seen.took.push(began.elapsed());
    }
    let seconds = since.elapsed().as_secs_f64();
    std::fs::remove_file(&place)?;
    Ok(report(seen, 1, seconds))
}

fn main() -> Result<(), Fault> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let wanted = wanted(args)?;
    let line = match what.as_str() {
        "http" => http(&wanted)?,
        "stdio" => stdio(&wanted)?,
        "disk" => disk(&wanted.root, wanted.seconds)?,
        _ => return Err("load http|stdio|disk; see the head of its source".into()),
    };
    std::io::stdout().write_all(format!("{line}\n").as_bytes())?;
    Ok(())
}
