//! The real binary on a state root of its own, and a plain HTTP client.

use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A state root that goes with the test.
pub(crate) struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// The binary with this state root and nothing of the tester's environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = bare(args);
        command.env("HOME", self.dir.path());
        let state = self.state();
        command.arg("--state").arg(state);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed, and gives its JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let out = self.run(&[args, &["--json"]].concat());
        assert!(
            out.status.success(),
            "{args:?}: {}\n{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        serde_json::from_slice(&out.stdout).unwrap()
    }

    pub(crate) fn serve(&self, args: &[&str]) -> Daemon {
        Daemon::start(self, args).expect("the daemon starts")
    }

    /// Asks the daemon as its operator.
    pub(crate) fn admin(&self, method: &str, path: &str, body: &Value) -> Reply {
        let token = std::fs::read_to_string(self.state().join("operator.token")).unwrap();
        let auth = format!("Bearer {}", token.trim());
        let stream = UnixStream::connect(self.state().join("semel.sock")).unwrap();
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        Conn::over(stream).send(method, path, &[("authorization", &auth)], body.as_bytes())
    }

    pub(crate) fn open(&self, job: &str, durability: &str) -> Volume {
        self.open_with(&json!({"job": job, "durability": durability}))
    }

    pub(crate) fn open_with(&self, wanted: &Value) -> Volume {
        let reply = self.admin("POST", "/v1/admin/volumes", wanted);
        assert_eq!(reply.status, 200, "{}", reply.body);
        Volume {
            token: reply.body["token"].as_str().unwrap().to_owned(),
            generation: reply.body["generation"].as_str().unwrap().to_owned(),
            tree: reply.body["tree"].as_str().unwrap().into(),
        }
    }

    pub(crate) fn entries(&self) -> u64 {
        let reply = self.admin("GET", "/v1/admin/status", &Value::Null);
        reply.body["journal"]["entries"].as_u64().unwrap()
    }
}

pub(crate) fn bare(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .args(args);
    command
}

#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) token: String,
    pub(crate) generation: String,
    pub(crate) tree: PathBuf,
}

impl Volume {
    fn beside(&self, name: &str) -> usize {
        std::fs::read_dir(self.tree.parent().unwrap().join(name))
            .unwrap()
            .count()
    }

    pub(crate) fn staged(&self) -> usize {
        self.beside("staging")
    }

    pub(crate) fn trashed(&self) -> usize {
        self.beside("trash")
    }
}

/// A running daemon; killed when dropped.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) url: String,
    pub(crate) probe_url: String,
}

impl Daemon {
    /// Starts it; `None` where it ended before it listened.
    pub(crate) fn start(home: &Home, args: &[&str]) -> Option<Self> {
        let mut command = home.command(&[&["serve", "--json", "--quiet"], args].concat());
        Self::started(command.stderr(Stdio::piped()))
    }

    /// Starts a command that becomes a daemon; `None` where it ended before it listened.
    pub(crate) fn started(command: &mut Command) -> Option<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let Ok(about) = serde_json::from_str::<Value>(&line) else {
            child.wait().unwrap();
            return None;
        };
        let url = |name: &str| about[name].as_str().map(str::to_owned);
        match (url("url"), url("probe_url")) {
            (Some(url), Some(probe_url)) => Some(Self {
                child,
                url,
                probe_url,
            }),
            _ => {
                child.wait().unwrap();
                None
            }
        }
    }

    pub(crate) fn conn(&self) -> Conn<TcpStream> {
        Conn::tcp(&self.url)
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it ends by itself.
    pub(crate) fn ended(&mut self, within: Duration) -> Option<std::process::ExitStatus> {
        let since = Instant::now();
        while since.elapsed() < within {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    pub(crate) fn terminate(&self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: plain system call on our own child.
        #[expect(unsafe_code, reason = "std has no way to send SIGTERM")]
        unsafe {
            libc::kill(pid, libc::SIGTERM);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    pub(crate) fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or("")
    }
}

/// A connection that stays open.
pub(crate) struct Conn<S: Read + Write> {
    stream: BufReader<S>,
}

impl Conn<TcpStream> {
    pub(crate) fn tcp(url: &str) -> Self {
        let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self::over(stream)
    }
}

impl<S: Read + Write> Conn<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self {
            stream: BufReader::new(stream),
        }
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.try_send(method, path, headers, body).expect("an answer")
    }

    /// Sends; `None` where the other end is gone before it answered.
    pub(crate) fn try_send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Option<Reply> {
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nhost: semel\r\ncontent-length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.stream.get_mut().write_all(&bytes).ok()?;
        self.receive(method)
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Option<Reply> {
        self.stream.get_mut().write_all(bytes).ok()?;
        self.receive("GET")
    }

    fn receive(&mut self, method: &str) -> Option<Reply> {
        let mut head = String::new();
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            head.push_str(&line);
        }
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let mut reply = Reply {
            status,
            head,
            body: Value::Null,
        };
        let length: usize = reply
            .header("content-length")
            .and_then(|n| n.parse().ok())
            .unwrap_or(0);
        if method != "HEAD" && length > 0 {
            let mut body = vec![0; length];
            self.stream.read_exact(&mut body).ok()?;
            reply.body = serde_json::from_slice(&body)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
        }
        Some(reply)
    }

    pub(crate) fn call(&mut self, volume: &Volume, tool: &str, key: &str, arguments: &Value) -> Reply {
        self.try_call(volume, tool, key, arguments).expect("an answer")
    }

    pub(crate) fn try_call(
        &mut self,
        volume: &Volume,
        tool: &str,
        key: &str,
        arguments: &Value,
    ) -> Option<Reply> {
        let auth = format!("Bearer {}", volume.token);
        let mut headers = vec![
            ("authorization", auth.as_str()),
            ("content-type", "application/json"),
        ];
        if !key.is_empty() {
            headers.push(("idempotency-key", key));
        }
        self.try_send(
            "POST",
            &format!("/v1/tools/{tool}"),
            &headers,
            arguments.to_string().as_bytes(),
        )
    }
}

/// Prints why a test cannot run here, and counts as skipped.
pub(crate) fn skipped(why: &str) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    eprintln!("SKIPPED: {name}: {why}");
}

pub(crate) fn is_root() -> bool {
    // SAFETY: plain system call without arguments.
    #[expect(unsafe_code, reason = "std has no way to ask for the effective user")]
    let user = unsafe { libc::geteuid() };
    user == 0
}

pub(crate) fn signal(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).unwrap();
    // SAFETY: plain system call; the process is one that the test started.
    #[expect(unsafe_code, reason = "std has no way to send a signal")]
    unsafe {
        libc::kill(pid, signal);
    }
}

/// Waits until something holds, at most for a while.
pub(crate) fn wait_until(within: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let since = Instant::now();
    loop {
        if holds() {
            return true;
        }
        if since.elapsed() > within {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lists the living processes that carry a text in their arguments or environment, zombies excepted.
pub(crate) fn processes_with(marker: &str) -> Vec<u32> {
    let carries = |pid: u32| {
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        [read("cmdline"), read("environ")].iter().any(|bytes| {
            bytes
                .windows(marker.len())
                .any(|window| window == marker.as_bytes())
        })
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| carries(*pid))
        .collect()
}

/// Says what a command printed, for a failed assertion.
pub(crate) fn said(out: &Output) -> String {
    format!(
        "{:?}\n{}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

/// A directory of the programs that a job needs, in front of those of the system.
fn programs() -> String {
    let cargo = Path::new(env!("CARGO")).parent().unwrap();
    format!("{}:/usr/local/bin:/usr/bin:/bin", cargo.display())
}

const CARGO_LOCK: &str = "version = 4\n\n[[package]]\nname = \"app\"\nversion = \"0.1.0\"\n";

/// Stands for a test runner: reads the source, and reports a case for each promise in it.
const CHECK: &str = r#"
import pathlib, sys
lines = pathlib.Path("src/lib.rs").read_text().splitlines()
cases = [line.split()[1:3] for line in lines if line.startswith("//test ")]
out = ['<testsuites><testsuite name="check">']
for name, state in cases:
    inner = '<failure message="no"/>' if state == "fails" else ""
    out.append(f'<testcase classname="check" name="{name}">{inner}</testcase>')
out.append("</testsuite></testsuites>")
pathlib.Path(sys.argv[1]).write_text("".join(out))
sys.exit(any(state == "fails" for _, state in cases))
"#;

const GOOD_AGENT: &str = r#"
from semel_client import read, write
data, digest = read("src/lib.rs")
for _ in range(2):
    done = write("src/lib.rs", data + b"//test more holds\n", digest, "more")
"#;

/// A repository with a small project, a job on it, and a state root.
pub(crate) struct Site {
    pub(crate) home: Home,
    pub(crate) base: String,
    pub(crate) marker: String,
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.home.state().join("semel.sock").exists() {
            let token = std::fs::read_to_string(self.home.state().join("operator.token")).unwrap_or_default();
            let auth = format!("Bearer {}", token.trim());
            if let Ok(stream) = UnixStream::connect(self.home.state().join("semel.sock")) {
                Conn::over(stream).try_send(
                    "POST",
                    "/v1/admin/shutdown",
                    &[("authorization", &auth)],
                    b"null",
                );
            }
            wait_until(Duration::from_secs(10), || {
                !self.home.state().join("daemon.json").exists()
            });
        }
    }
}

impl Site {
    pub(crate) fn new() -> Self {
        let home = Home::new();
        let marker = format!("semel-site-{}", home.path().display());
        let mut site = Self {
            home,
            base: String::new(),
            marker,
        };
        for (name, text) in [
            (".gitignore", "target\nignored.txt\n"),
            (
                "Cargo.toml",
                "[package]\nname = \"app\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
            ),
            ("Cargo.lock", CARGO_LOCK),
            ("src/lib.rs", "#[test]\nfn holds() {}\n//test first holds\n"),
            ("check.py", CHECK),
        ] {
            let place = site.repository().join(name);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(place, text).unwrap();
        }
        site.git(&["init", "-q", "-b", "main"]);
        site.base = site.commit_all("base");
        site.agent(GOOD_AGENT);
        let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/real/agents/semel_client.py");
        std::fs::copy(client, site.at("semel_client.py")).unwrap();
        site.job("");
        site
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.at("repo")
    }

    pub(crate) fn agent(&self, text: &str) {
        std::fs::write(self.at("agent.py"), text).unwrap();
    }

    /// Writes the job; `changes` are `old => new` pairs, one a line.
    pub(crate) fn job(&self, changes: &str) {
        let mut text = format!(
            r#"job = "small"
repository = "repo"
base = "{}"
[agent]
command = ["python3", "~/agent.py"]
env = {{ MARKER = "{}" }}
timeout = "60s"
files = {{ "agent.py" = "agent.py", "semel_client.py" = "semel_client.py" }}
[certify]
install = ["cargo"]
test = ["python3", "check.py", "{{report}}"]
timeout = "50s"
env = {{ MARKER = "{}" }}
[output]
branch = "semel/small"
"#,
            self.base, self.marker, self.marker
        );
        for change in changes.lines().filter(|line| !line.is_empty()) {
            let (old, new) = change.split_once(" => ").unwrap();
            assert!(text.contains(old), "{old}");
            text = text.replace(old, new);
        }
        std::fs::write(self.at("job.toml"), text).unwrap();
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        self.git_in(&self.repository(), args)
    }

    pub(crate) fn git_in(&self, dir: &Path, args: &[&str]) -> String {
        let out = Command::new("git")
            .args(["-c", "user.name=A", "-c", "user.email=a@example.org"])
            .args(args)
            .current_dir(dir)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_SYSTEM", "/dev/null")
            .output()
            .unwrap();
        assert!(out.status.success(), "git {args:?}: {}", said(&out));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn commit_all(&self, message: &str) -> String {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command(args);
        command.env("PATH", programs()).current_dir(self.home.path());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let out = self.run(&[args, &["--json"]].concat());
        assert!(out.status.success(), "{args:?}: {}", said(&out));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// Runs a command that must be refused with this exit status, and gives the refusal.
    pub(crate) fn refused(&self, args: &[&str], code: i32) -> Value {
        let out = self.run(&[args, &["--json"]].concat());
        assert_eq!(out.status.code(), Some(code), "{args:?}: {}", said(&out));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// Starts a command whose lines on stderr can be waited for.
    pub(crate) fn spawn(&self, args: &[&str]) -> Spoken {
        let mut command = self.command(args);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                drop(sender.send(line));
            }
        });
        Spoken { child, lines }
    }

    /// The volumes of the job, oldest first, as the journal knows them.
    pub(crate) fn volumes(&self) -> Vec<Value> {
        let listed = self.json(&["volume", "list"]);
        listed["volumes"].as_array().unwrap().clone()
    }

    /// Says that nothing of a job is left running, and that the journal holds.
    pub(crate) fn at_rest(&self) {
        assert!(
            wait_until(Duration::from_secs(10), || processes_with(&self.marker)
                .is_empty()),
            "left running: {:?}",
            processes_with(&self.marker)
        );
        let verified = self.json(&["log", "verify"]);
        assert_eq!(verified["report"]["faults"], json!([]), "{verified}");
        let open: Vec<Value> = self
            .volumes()
            .into_iter()
            .filter(|volume| matches!(volume["state"].as_str(), Some("open" | "opening")))
            .collect();
        assert!(open.is_empty(), "left open: {open:?}");
    }

    /// The verdicts of the certificates that stand, with the tree that each names.
    pub(crate) fn certificates(&self) -> Vec<Value> {
        let Ok(entries) = std::fs::read_dir(self.home.state().join("certificates")) else {
            return Vec::new();
        };
        let places = entries.map(|entry| entry.unwrap().path());
        places
            .filter(|place| place.to_str().unwrap().ends_with(".dsse.json"))
            .map(|place| statement(&place))
            .collect()
    }

    pub(crate) fn passes(&self) -> usize {
        let passed = |statement: &&Value| statement["predicate"]["verdict"] == json!("pass");
        self.certificates().iter().filter(passed).count()
    }
}

/// Reads the statement in an envelope, without judging it.
pub(crate) fn statement(envelope: &Path) -> Value {
    use base64::Engine as _;
    let envelope: Value = serde_json::from_slice(&std::fs::read(envelope).unwrap()).unwrap();
    let payload = base64::prelude::BASE64_STANDARD
        .decode(envelope["payload"].as_str().unwrap())
        .unwrap();
    serde_json::from_slice(&payload).unwrap()
}

/// A command that is under way.
pub(crate) struct Spoken {
    pub(crate) child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Spoken {
    /// Waits for a line that holds a text.
    pub(crate) fn hears(&self, text: &str) -> bool {
        let since = Instant::now();
        while let Some(left) = Duration::from_secs(60).checked_sub(since.elapsed()) {
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        false
    }

    pub(crate) fn signal(&self, number: i32) {
        signal(self.child.id(), number);
    }

    /// Waits for the end, at most for a while.
    pub(crate) fn ends(&mut self, within: Duration) -> Option<std::process::ExitStatus> {
        let child = &mut self.child;
        let mut status = None;
        wait_until(within, || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status
    }
}

impl Drop for Spoken {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
