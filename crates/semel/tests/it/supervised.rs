//! The daemon under a service manager: what it tells, what it is handed, and what no child of it gets.

use crate::harness::{Conn, Daemon, Home, LONG, bare, processes_with, said, skipped, wait_until};
use serde_json::{Value, json};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Stands for the manager's end of the datagram socket.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Self {
        Self::of(UnixDatagram::bind(path).unwrap())
    }

    fn of(socket: UnixDatagram) -> Self {
        socket.set_read_timeout(Some(LONG)).unwrap();
        Self(socket)
    }

    fn hears(&self) -> Option<String> {
        let mut heard = [0; 4096];
        let length = self.0.recv(&mut heard).ok()?;
        Some(String::from_utf8(heard[..length].to_vec()).unwrap())
    }

    /// Gives all that is heard up to and with the first that holds a text.
    fn until(&self, text: &str) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(heard) = self.hears() {
            all.push(heard);
            if all.last().unwrap().contains(text) {
                return all;
            }
        }
        panic!("no {text} in {all:?}");
    }
}

fn serve(home: &Home, notify: &str, args: &[&str]) -> Command {
    let mut command = home.command(&[&["serve", "--json", "--quiet"], args].concat());
    command.env("NOTIFY_SOCKET", notify).stderr(Stdio::null());
    command
}

#[test]
fn readiness_is_said_once_everything_is_open_and_the_end_when_it_begins() {
    let home = Home::new();
    let path = home.path().join("notify");
    let name = format!("semel-it-{}", std::process::id());
    let abstracted = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
    for (manager, place) in [
        (Manager::at(&path), path.to_str().unwrap().to_owned()),
        (
            Manager::of(UnixDatagram::bind_addr(&abstracted).unwrap()),
            format!("@{name}"),
        ),
    ] {
        let mut child = serve(&home, &place, &[]).stdout(Stdio::null()).spawn().unwrap();
        let before = manager.until("READY=1");
        assert_eq!(before.len(), 2, "{before:?}");
        assert_eq!(before[0], "STATUS=recovering");
        assert!(before[1].contains("\nSTATUS=serving, incarnation "), "{before:?}");
        // No wait: who hears it may connect.
        for socket in ["semel.sock", "run/app/app.sock"] {
            UnixStream::connect(home.state().join(socket)).unwrap();
        }
        let status = home.admin("GET", "/v1/admin/status", &Value::Null);
        assert_eq!(status.body["phase"], "ready", "{}", status.body);
        crate::harness::signal(child.id(), libc::SIGTERM);
        assert_eq!(
            manager.until("STOPPING=1").last().unwrap(),
            "STOPPING=1\nSTATUS=draining"
        );
        assert!(child.wait().unwrap().success());
        assert!(
            manager.0.set_nonblocking(true).is_ok() && manager.hears().is_none(),
            "no watchdog was asked for"
        );
    }
}

#[test]
fn a_daemon_that_cannot_start_never_says_that_it_is_ready() {
    let home = Home::new();
    let first = home.serve(&[]);
    let path = home.path().join("notify");
    let manager = Manager::at(&path);
    let out = serve(&home, path.to_str().unwrap(), &[]).output().unwrap();
    assert_eq!(out.status.code(), Some(75), "{}", said(&out));
    manager.0.set_nonblocking(true).unwrap();
    let heard: Vec<String> = std::iter::from_fn(|| manager.hears()).collect();
    assert_eq!(heard, ["STATUS=recovering"]);
    drop(first);
    for (name, value) in [
        ("NOTIFY_SOCKET", "nowhere"),
        ("LISTEN_FDS", "x"),
        ("WATCHDOG_USEC", "soon"),
    ] {
        let mut command = home.command(&["serve"]);
        command.env("NOTIFY_SOCKET", path.to_str().unwrap());
        command.env("LISTEN_PID", "1").env(name, value);
        let script = "export LISTEN_PID=$$; exec \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh", env!("CARGO_BIN_EXE_semel"), "--state"]);
        shell.arg(home.state()).arg("serve").env_clear();
        shell.envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let out = shell.output().unwrap();
        assert_eq!(out.status.code(), Some(78), "{name}: {}", said(&out));
        assert!(
            String::from_utf8_lossy(&out.stderr).contains(name),
            "{}",
            said(&out)
        );
    }
}

/// Signs of life come as long as commits pass, from an idle daemon, too; with the writer held up they stop, though the
/// rest of the daemon is as lively as before.
#[test]
fn the_watchdog_is_fed_by_the_writer_alone() {
    let home = Home::new();
    let (path, wedge) = (home.path().join("notify"), home.path().join("wedge"));
    let manager = Manager::at(&path);
    let args = [
        "--listen",
        "127.0.0.1:0",
        "--wedge-writer",
        wedge.to_str().unwrap(),
    ];
    let mut command = serve(&home, path.to_str().unwrap(), &args);
    let daemon = Daemon::started(command.env("WATCHDOG_USEC", "400000")).unwrap();
    for _ in 0..20 {
        manager.until("WATCHDOG=1");
    }
    let volume = home.open("job", "process");
    std::fs::write(volume.tree.join("a"), "1").unwrap();
    std::fs::write(&wedge, "").unwrap();
    // What was sent before is read; then comes a silence of ten times the time in which four are due.
    manager.0.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    let mut late = 0;
    while manager.hears().is_some() {
        late += 1;
        assert!(late < 50, "signs of life without a commit");
    }
    // The rest of it lives: the runtime answers, and the probe hears.
    let routes = Conn::tcp(&daemon.url).send("GET", "/v1/openapi.json", &[], b"");
    assert_eq!(routes.status, 200);
    assert_eq!(
        Conn::tcp(&daemon.probe_url)
            .send("GET", "/readyz", &[], b"")
            .status,
        200
    );
    let metrics = Conn::tcp(&daemon.probe_url).send("GET", "/metrics", &[], b"");
    assert!(
        metrics
            .body
            .to_string()
            .contains("semel_journal_writer_busy_seconds")
    );
    // Once commits pass again, so do signs of life.
    std::fs::remove_file(&wedge).unwrap();
    manager.0.set_read_timeout(Some(LONG)).unwrap();
    manager.until("WATCHDOG=1");
    let arguments = json!({"path": "b", "content": "1"});
    assert_eq!(
        daemon.conn().call(&volume, "write_file", "k", &arguments).status,
        200
    );
}

#[test]
fn a_watchdog_of_another_process_is_not_fed() {
    let home = Home::new();
    let path = home.path().join("notify");
    let manager = Manager::at(&path);
    let mut command = serve(&home, path.to_str().unwrap(), &[]);
    command.env("WATCHDOG_USEC", "40000").env("WATCHDOG_PID", "1");
    let daemon = Daemon::started(&mut command).unwrap();
    manager.until("READY=1");
    assert!(wait_until(LONG, || {
        // Two heartbeats later: fifty signs of life would have been due.
        let text = Conn::tcp(&daemon.probe_url)
            .send("GET", "/metrics", &[], b"")
            .body
            .to_string();
        text.contains("semel_ready 1")
    }));
    daemon.terminate();
    let rest = manager.until("STOPPING=1");
    assert_eq!(rest.len(), 1, "{rest:?}");
}

/// A daemon that a command starts on demand is not the service that its manager waits for.
#[test]
fn no_child_is_told_of_the_manager() {
    let home = Home::new();
    let path = home.path().join("notify");
    let manager = Manager::at(&path);
    let mine = |command: &mut Command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
        command
            .env("LISTEN_FDS", "1")
            .env("LISTEN_FDNAMES", "app")
            .env("LISTEN_PID", "1");
    };
    let mut open = home.command(&["volume", "open", "job", "--json"]);
    mine(&mut open);
    let out = open.output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let about: Value =
        serde_json::from_slice(&std::fs::read(home.state().join("daemon.json")).unwrap()).unwrap();
    let pid = about["pid"].as_u64().unwrap();
    let family = [pid.to_string()].into_iter().chain(
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    );
    let mut seen = 0;
    for pid in family {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        for name in ["NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_"] {
            assert!(!environment.contains(name), "{pid}: {environment}");
        }
        seen += 1;
    }
    assert!(seen >= 2, "the daemon and its probe");
    manager.0.set_nonblocking(true).unwrap();
    assert_eq!(manager.hears(), None);
    home.admin("POST", "/v1/admin/shutdown", &Value::Null);
    assert!(wait_until(LONG, || !home.state().join("daemon.json").exists()));
}

/// Stands for the manager that holds listeners: it binds what it is told, hands it down as its names say, and starts the
/// daemon anew when it ends, `lives` times.
const HOLDER: &str = r#"
import ctypes, fcntl, json, os, socket, sys
spec = json.loads(sys.argv[1])
held = []
for name, kind, place in spec["sockets"]:
    if kind == "unix":
        made = socket.socket(socket.AF_UNIX)
        made.bind(place)
        made.listen()
    elif kind == "tcp":
        made = socket.create_server(("127.0.0.1", 0))
    elif kind == "datagram":
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    else:
        made = socket.socket(socket.AF_INET)
    held.append(made)
for life in range(spec["lives"]):
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, 9)
        high = [fcntl.fcntl(made.fileno(), fcntl.F_DUPFD, 50) for made in held]
        for number, fd in enumerate(high):
            os.dup2(fd, 3 + number)
        os.closerange(3 + len(high), 200)
        env = {"PATH": "/usr/bin:/bin", "HOME": spec["home"], "LISTEN_PID": str(os.getpid())}
        env["LISTEN_FDS"] = str(len(high))
        if spec["names"] is not None:
            env["LISTEN_FDNAMES"] = spec["names"]
        os.execve(spec["argv"][0], spec["argv"], env)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(status)
"#;

fn holder(home: &Home, sockets: &Value, lives: u32) -> Command {
    let listed = sockets.as_array().unwrap().iter();
    let names: Vec<&str> = listed.map(|socket| socket[0].as_str().unwrap()).collect();
    let state = home.state().to_str().unwrap().to_owned();
    let argv = [
        env!("CARGO_BIN_EXE_semel"),
        "--state",
        &state,
        "serve",
        "--json",
        "--quiet",
    ];
    let spec = json!({
        "sockets": sockets,
        "lives": lives,
        "home": home.path(),
        "names": names.join(":"),
        "argv": argv,
    });
    let mut command = Command::new("python3");
    command.args(["-c", HOLDER, &spec.to_string()]);
    command
}

fn state(home: &Home) {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(home.state())
        .unwrap();
}

fn pid_of(home: &Home) -> u32 {
    let bytes = std::fs::read(home.state().join("daemon.json")).unwrap();
    let about: Value = serde_json::from_slice(&bytes).unwrap();
    u32::try_from(about["pid"].as_u64().unwrap()).unwrap()
}

/// Every listener can be handed down; a call that comes between two lives waits for the second.
#[test]
fn listeners_that_are_handed_down_are_served_and_outlive_the_daemon() {
    let home = Home::new();
    state(&home);
    let outside = home.path().join("outside.sock");
    let sockets = json!([
        ["app", "unix", outside],
        ["admin", "unix", home.state().join("semel.sock")],
        ["probe", "tcp", ""],
        ["app", "tcp", ""],
    ]);
    let daemon = Daemon::started(&mut holder(&home, &sockets, 2)).unwrap();
    let first = pid_of(&home);
    assert!(daemon.url.starts_with("http://127.0.0.1:"), "{}", daemon.url);
    let volume = home.open("job", "process");
    let write = |path: &str| json!({"path": path, "content": "1"});
    let unix = || Conn::over(UnixStream::connect(&outside).unwrap());
    assert_eq!(unix().call(&volume, "write_file", "k1", &write("a")).status, 200);
    assert_eq!(
        daemon
            .conn()
            .call(&volume, "write_file", "k2", &write("b"))
            .status,
        200
    );
    assert_eq!(
        home.app().call(&volume, "write_file", "k3", &write("c")).status,
        200
    );
    assert_eq!(
        Conn::tcp(&daemon.probe_url)
            .send("GET", "/livez", &[], b"")
            .status,
        200
    );
    // No descriptor of the daemon's is left open in its child.
    let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
    for child in children.split_whitespace() {
        let fds = std::fs::read_dir(format!("/proc/{child}/fd")).unwrap().flatten();
        let listening = fds.filter(|fd| {
            let number: u32 = fd.file_name().to_str().unwrap().parse().unwrap();
            (3..8).contains(&number)
                && std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
        });
        // Its runtime has a pair of its own for signals.
        assert!(listening.count() <= 2);
    }
    crate::harness::signal(first, libc::SIGTERM);
    // Who comes while it still takes calls is told to come again; who comes later waits, and is never turned away.
    let sent = || unix().try_call(&volume, "write_file", "k4", &write("d"));
    let mut reply = sent().expect("an answer");
    while reply.code() == "draining" {
        reply = sent().expect("an answer");
    }
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(wait_until(LONG, || home.state().join("daemon.json").exists()
        && pid_of(&home) != first));
    assert!(outside.exists() && home.state().join("semel.sock").exists());
    let status = home.admin("GET", "/v1/admin/status", &Value::Null);
    assert_eq!(status.body["journal"]["incarnation"], 2, "{}", status.body);
    let shutdown = home.admin("POST", "/v1/admin/shutdown", &Value::Null);
    assert_eq!(shutdown.status, 200);
    let mut daemon = daemon;
    assert_eq!(daemon.ended(LONG).unwrap().code(), Some(0));
    assert!(
        home.state().join("semel.sock").exists(),
        "it is not the daemon's to remove"
    );
    assert!(processes_with(home.state().to_str().unwrap()).is_empty());
}

#[test]
fn a_listener_that_is_not_what_its_name_says_is_refused() {
    let home = Home::new();
    state(&home);
    let place = |name: &str| -> PathBuf { home.path().join(name) };
    for (n, (sockets, name, why)) in [
        (
            json!([["app", "closed", ""]]),
            "app",
            "no listening stream socket",
        ),
        (
            json!([["app", "datagram", ""]]),
            "app",
            "no listening stream socket",
        ),
        (json!([["admin", "tcp", ""]]), "admin", "Unix socket alone"),
        (json!([["admin", "unix", place("a")]]), "admin", "semel.sock"),
        (json!([["probe", "unix", place("b")]]), "probe", "on TCP"),
        (
            json!([["probe", "tcp", ""], ["probe", "tcp", ""]]),
            "probe",
            "two of them",
        ),
        (
            json!([["semel.socket", "tcp", ""]]),
            "semel.socket",
            "FileDescriptorName",
        ),
        (json!([["", "tcp", ""]]), "LISTEN_FDNAMES", "FileDescriptorName"),
    ]
    .into_iter()
    .enumerate()
    {
        let out = holder(&home, &sockets, 1).output().unwrap();
        assert_eq!(out.status.code(), Some(78), "{n}: {}", said(&out));
        let refusal: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(
            (&refusal["code"], &refusal["names"]),
            (&json!("bad_config"), &json!([name])),
            "{n}: {refusal}"
        );
        assert!(refusal.to_string().contains(why), "{n}: {refusal}");
    }
    // What was handed to somebody else is none of its business.
    let out = bare(&["log", "verify", "--state"])
        .arg(home.state())
        .env("LISTEN_FDS", "7")
        .env("LISTEN_PID", "1")
        .output()
        .unwrap();
    assert_ne!(out.status.code(), Some(78), "{}", said(&out));
}

/// The units are what systemd takes, and shut the daemon in as far as its work allows; the rest is said in the unit.
#[test]
fn the_units_hold() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let place = tempfile::tempdir().unwrap();
    for name in ["semel.service", "semel.socket"] {
        let text = std::fs::read_to_string(units.join(name)).unwrap();
        let here = text.replace("/usr/bin/semel", env!("CARGO_BIN_EXE_semel"));
        std::fs::write(place.path().join(name), here).unwrap();
    }
    let analyze = |args: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        command
            .args(args)
            .arg(place.path().join("semel.service"))
            .env("LC_ALL", "C.UTF-8");
        command.output()
    };
    let verified = match analyze(&["verify", "--man=no"]) {
        Err(_) => return skipped("systemd-analyze is not there"),
        Ok(out) => out,
    };
    let ours: Vec<String> = String::from_utf8_lossy(&verified.stderr)
        .lines()
        .filter(|line| line.contains("semel."))
        .map(str::to_owned)
        .collect();
    assert!(
        verified.status.success() && ours.is_empty(),
        "{}",
        said(&verified)
    );
    let secured = analyze(&["security", "--offline=true", "--no-pager", "--threshold=26"]).unwrap();
    let text = said(&secured);
    if text.contains("unrecognized option") {
        return skipped("this systemd-analyze looks at loaded units alone");
    }
    let line = text
        .lines()
        .find(|line| line.contains("Overall exposure level"))
        .unwrap_or_default();
    eprintln!("{}", line.trim());
    assert!(
        secured.status.success(),
        "the daemon is less shut in than it was: {line}"
    );
}
