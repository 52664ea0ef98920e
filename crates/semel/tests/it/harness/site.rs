//! A repository with a small project, a job on it, and a state root: the main job, small and offline.

use super::{Conn, Home, git, processes_with, said, signal, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

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
        shut_down(&self.home.state());
    }
}

/// Gives the command that certifies a commit of the site's repository as its `job.toml` says.
pub(crate) fn certifies(commit: &str) -> [&str; 7] {
    [
        "certify",
        "--from",
        "job.toml",
        "--repository",
        "repo",
        "--git",
        commit,
    ]
}

/// Has the daemon of a state root end, where one runs that a command started.
pub(crate) fn shut_down(state: &Path) {
    if !state.join("semel.sock").exists() {
        return;
    }
    let token = std::fs::read_to_string(state.join("operator.token")).unwrap_or_default();
    let auth = format!("Bearer {}", token.trim());
    let asked = UnixStream::connect(state.join("semel.sock"))
        .ok()
        .and_then(|stream| {
            Conn::over(stream).try_send("POST", "/v1/admin/shutdown", &[("authorization", &auth)], b"null")
        });
    // That of another user takes no word of the tester's.
    if asked.is_none_or(|reply| reply.status != 200)
        && let Ok(text) = std::fs::read(state.join("daemon.json"))
        && let Ok(daemon) = serde_json::from_slice::<Value>(&text)
        && let Some(pid) = daemon["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())
    {
        signal(pid, libc::SIGTERM);
    }
    wait_until(Duration::from_secs(10), || !state.join("daemon.json").exists());
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
        git(dir, args)
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
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Spoken::of(child)
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
    /// Listens to a command whose streams are pipes.
    pub(crate) fn of(mut child: Child) -> Self {
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                drop(sender.send(line));
            }
        });
        Self { child, lines }
    }

    /// Waits for the end, however long it takes, and gives what it said.
    pub(crate) fn output(mut self) -> Output {
        let mut stdout = Vec::new();
        let mut pipe = self.child.stdout.take().unwrap();
        std::io::Read::read_to_end(&mut pipe, &mut stdout).unwrap();
        let status = self.child.wait().unwrap();
        let lines: Vec<String> = self.lines.iter().collect();
        Output {
            status,
            stdout,
            stderr: lines.join("\n").into_bytes(),
        }
    }

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

pub(crate) const RUN: &[&str] = &["run", "job.toml"];

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

pub(crate) fn last_draft(site: &Site) -> Value {
    let drafts = site
        .volumes()
        .into_iter()
        .filter(|volume| volume["role"] == "draft");
    drafts.max_by_key(|draft| draft["attempt"].as_u64()).unwrap()
}

pub(crate) const SLEEPER: &str = "import subprocess, time\nsubprocess.Popen(['sleep', '300'], start_new_session=True)\n\
    open('begun', 'w').close()\ntime.sleep(300)\n";

pub(crate) fn sleeping(site: &Site, agent: &str) -> Spoken {
    site.agent(agent);
    let run = site.spawn(RUN);
    assert!(run.hears("agent    python3"));
    let begun = || {
        let drafts = std::fs::read_dir(site.home.state().join("volumes/small"))
            .into_iter()
            .flatten();
        let newest = drafts.flatten().map(|draft| draft.path()).max();
        newest.is_some_and(|draft| draft.join("vol/tree/begun").exists())
    };
    assert!(wait_until(Duration::from_secs(20), begun));
    assert!(wait_until(Duration::from_secs(20), || processes_with(
        &site.marker
    )
    .len()
        >= 2));
    run
}
