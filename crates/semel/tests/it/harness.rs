//! The real binary on a state root of its own, and a plain HTTP client.

mod disk;
mod git;
mod mounts;
mod site;
mod tracer;

pub(crate) use disk::{Disk, Nobody, STATE, listed, mode};
pub(crate) use git::{changed_worktree, git, git_by, git_bytes, git_command};
pub(crate) use mounts::{Mount, Mounted, beneath as mounts_beneath};
pub(crate) use site::{
    RUN, SLEEPER, Site, Spoken, certifies, last_draft, shut_down, sleeping, statement, text,
};
pub(crate) use tracer::Tracer;

use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How a daemon is started that listens on TCP, too.
pub(crate) const SERVE: &[&str] = &["serve", "--json", "--quiet", "--listen", "127.0.0.1:0"];

/// A state root that goes with the test.
pub(crate) struct Home {
    dir: tempfile::TempDir,
}

impl Drop for Home {
    fn drop(&mut self) {
        // Overlays of volumes outlive the daemon; the directory can go only without them.
        for at in mounts::beneath(self.dir.path()).iter().rev() {
            drop(Command::new("umount").arg("-l").arg(at).output());
        }
    }
}

impl Home {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// Makes it on a filesystem of the test's own.
    pub(crate) fn within(place: &Path) -> Self {
        Self {
            dir: tempfile::tempdir_in(place).unwrap(),
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

    /// The binary as another program runs it, such as a tracer.
    pub(crate) fn command_under(&self, program: &str, before: &[&str], args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
            )
            .env("HOME", self.dir.path())
            .args(before)
            .arg(env!("CARGO_BIN_EXE_semel"))
            .arg("--state")
            .arg(self.state())
            .args(args);
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

    /// Runs a command that must succeed, and gives its JSON, one object a line.
    pub(crate) fn lines(&self, args: &[&str]) -> Vec<Value> {
        let out = self.run(&[args, &["--json"]].concat());
        assert!(out.status.success(), "{args:?}: {}", said(&out));
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Starts the daemon as it is by default: no TCP port.
    pub(crate) fn serve_unix(&self, args: &[&str]) -> Daemon {
        let mut command = self.command(&[&["serve", "--json", "--quiet"], args].concat());
        Daemon::started(command.stderr(Stdio::piped())).expect("the daemon starts")
    }

    /// Connects to the socket for jobs.
    pub(crate) fn app(&self) -> Conn<UnixStream> {
        Conn::over(UnixStream::connect(self.state().join("run/app/app.sock")).unwrap())
    }

    pub(crate) fn serve(&self, args: &[&str]) -> Daemon {
        Daemon::start(self, args).expect("the daemon starts")
    }

    /// Asks the daemon as its operator.
    pub(crate) fn admin(&self, method: &str, path: &str, body: &Value) -> Reply {
        self.try_admin(method, path, body).expect("an answer")
    }

    /// Asks the daemon as its operator; `None` where it is gone, or its state root.
    pub(crate) fn try_admin(&self, method: &str, path: &str, body: &Value) -> Option<Reply> {
        self.try_admin_with(method, path, &[], body)
    }

    /// As [`Home::try_admin`], with further headers.
    pub(crate) fn try_admin_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Option<Reply> {
        let token = std::fs::read_to_string(self.state().join("operator.token")).ok()?;
        let auth = format!("Bearer {}", token.trim());
        let stream = UnixStream::connect(self.state().join("semel.sock")).ok()?;
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let headers = [&[("authorization", auth.as_str())], headers].concat();
        Conn::over(stream).try_send(method, path, &headers, body.as_bytes())
    }

    pub(crate) fn open(&self, job: &str, durability: &str) -> Volume {
        self.open_with(&json!({"job": job, "durability": durability}))
    }

    pub(crate) fn open_with(&self, wanted: &Value) -> Volume {
        let reply = self.admin("POST", "/v1/admin/volumes", wanted);
        assert_eq!(reply.status, 200, "{}", reply.body);
        Volume::of(&reply.body)
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
    /// Reads the answer to its opening.
    pub(crate) fn of(body: &Value) -> Self {
        let text = |name: &str| body[name].as_str().unwrap().to_owned();
        Self {
            token: text("token"),
            generation: text("generation"),
            tree: text("tree").into(),
        }
    }

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
    /// The daemon itself, where the child is another program that runs it.
    pub(crate) pid: u32,
    pub(crate) url: String,
    pub(crate) probe_url: String,
}

impl Daemon {
    /// Starts it, listening on TCP, too; `None` where it ended before it listened.
    pub(crate) fn start(home: &Home, args: &[&str]) -> Option<Self> {
        let mut command = home.command(&[SERVE, args].concat());
        Self::started(command.stderr(Stdio::piped()))
    }

    /// Starts it as if the machine had been started anew, for the n-th time; `None` where that cannot be done here.
    pub(crate) fn in_boot(home: &Home, n: u32, args: &[&str]) -> Option<Self> {
        const SCRIPT: &str = "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"";
        let fake = home.path().join(format!("boot-{n}"));
        std::fs::write(&fake, format!("{n:08}-2222-3333-4444-555555555555\n")).unwrap();
        let before = ["--mount", "sh", "-c", SCRIPT, "sh", fake.to_str().unwrap()];
        let args = [SERVE, args].concat();
        Self::started(
            home.command_under("unshare", &before, &args)
                .stderr(Stdio::null()),
        )
    }

    /// Starts a command that becomes a daemon; `None` where it ended before it listened. Without a TCP port its URL is
    /// empty.
    pub(crate) fn started(command: &mut Command) -> Option<Self> {
        Self::begun(command).ok()
    }

    /// Starts a command that becomes a daemon; gives how it ended where it did before it listened.
    pub(crate) fn begun(command: &mut Command) -> Result<Self, std::process::ExitStatus> {
        let Ok(mut child) = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() else {
            // As a shell says of a program that is not there.
            return Err(std::os::unix::process::ExitStatusExt::from_raw(127 << 8));
        };
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let Ok(about) = serde_json::from_str::<Value>(&line) else {
            return Err(child.wait().unwrap());
        };
        let url = |name: &str| about[name].as_str().map(str::to_owned);
        match url("probe_url") {
            Some(probe_url) => Ok(Self {
                pid: about["pid"].as_u64().unwrap().try_into().unwrap(),
                child,
                url: url("url").unwrap_or_default(),
                probe_url,
            }),
            None => Err(child.wait().unwrap()),
        }
    }

    pub(crate) fn conn(&self) -> Conn<TcpStream> {
        Conn::tcp(&self.url)
    }

    pub(crate) fn kill(self) {
        drop(self);
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
        // Before it is waited for, its id is nobody else's.
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(self.pid, libc::SIGKILL);
            // A program that runs it ends after it.
            self.ended(Duration::from_secs(10));
        }
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

    /// Sends bytes, and waits for nothing; `None` where the other end is gone.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.get_mut().write_all(bytes).ok()
    }

    /// Says whether the other end has closed, with nothing more to say.
    pub(crate) fn ended(&mut self) -> bool {
        use std::io::ErrorKind::{TimedOut, WouldBlock};
        match self.stream.fill_buf() {
            Ok(rest) => rest.is_empty(),
            Err(error) => !matches!(error.kind(), TimedOut | WouldBlock),
        }
    }

    pub(crate) fn inner(&self) -> &S {
        self.stream.get_ref()
    }

    pub(crate) fn receive(&mut self, method: &str) -> Option<Reply> {
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

/// Says whether the long tests run their full count: `SEMEL_FULL=1`.
pub(crate) fn full() -> bool {
    std::env::var_os("SEMEL_FULL").is_some_and(|value| value == "1")
}

/// Says which trials of a long test an ordinary run makes: every so many-th, from the first on.
pub(crate) struct Share {
    every: usize,
    met: usize,
}

impl Share {
    pub(crate) fn of(every: usize) -> Self {
        let every = if full() { 1 } else { every };
        Self { every, met: 0 }
    }

    /// Says whether the next trial is made.
    pub(crate) fn takes(&mut self) -> bool {
        self.met += 1;
        (self.met - 1).is_multiple_of(self.every)
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

/// How long a test waits for what must come, on a machine however slow.
pub(crate) const LONG: Duration = Duration::from_secs(60);

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

/// Writes a program that is run soon.
pub(crate) fn executable(path: &Path, script: &str) {
    use std::io::Write;
    // Written by another process: a child that another test forks meanwhile would keep it open, and it could not run.
    let mut writer = Command::new("/bin/sh")
        .args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writer.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(writer.wait().unwrap().success());
}
