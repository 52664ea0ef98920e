//! Where the daemon listens: Unix sockets by default, TCP where it is asked for, and who is served at which.

use crate::harness::{Conn, Daemon, Home, RUN, Site, last_draft, said, text};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Lists the local TCP ports on which a process listens.
fn ports(pid: u32) -> Vec<String> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: Vec<String> = fds
        .filter_map(|fd| {
            Some(
                std::fs::read_link(fd.ok()?.path())
                    .ok()?
                    .to_string_lossy()
                    .into_owned(),
            )
        })
        .collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ours = open.contains(&format!("socket:[{}]", words[9]));
            found.extend((words[3] == "0A" && ours).then(|| words[1].to_owned()));
        }
    }
    found
}

fn reached(home: &Home) -> Value {
    let reply = home.admin("POST", "/v1/admin/listen", &json!({"network": "loopback"}));
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body
}

#[test]
fn by_default_there_is_no_port_and_the_socket_takes_calls() {
    let home = Home::new();
    let daemon = home.serve_unix(&[]);
    assert_eq!(daemon.url, "");
    assert_eq!(ports(daemon.child.id()), Vec::<String>::new(), "not one TCP port");
    // A volume that a person opens over the socket alone.
    let verb = json!({"network": "elsewhere"});
    assert_eq!(home.admin("POST", "/v1/admin/listen", &verb).code(), "bad_input");
    assert_eq!(ports(daemon.child.id()), Vec::<String>::new());
    let socket = home.state().join("run/app/app.sock");
    for (place, mode) in [(socket.clone(), 0o600), (socket.parent().unwrap().into(), 0o700)] {
        let facts = std::fs::metadata(place).unwrap();
        assert_eq!(facts.permissions().mode() & 0o777, mode);
    }
    let volume = home.open("job", "process");
    let arguments = json!({"path": "a", "content": "1"});
    let first = home.app().call(&volume, "write_file", "k", &arguments);
    assert_eq!((first.status, &first.body["replayed"]), (200, &json!(false)));
    let again = home.app().call(&volume, "write_file", "k", &arguments);
    assert_eq!((again.status, &again.body["replayed"]), (200, &json!(true)));
}

/// The operator's token is worth nothing at the agents' socket: what is shown to a sandbox gives no authority.
#[test]
fn the_socket_for_jobs_gives_no_authority() {
    let home = Home::new();
    let _daemon = home.serve_unix(&[]);
    let token = std::fs::read_to_string(home.state().join("operator.token")).unwrap();
    let auth = format!("Bearer {}", token.trim());
    let paths = "status journal shutdown listen volumes volumes/g/end approvals/1 x";
    for path in paths.split(' ').map(|path| format!("/v1/admin/{path}")) {
        for method in ["GET", "POST"] {
            let reply = home.app().send(
                method,
                &path,
                &[("authorization", &auth)],
                b"{\"network\":\"loopback\"}",
            );
            assert_eq!(
                (reply.status, reply.code()),
                (401, "unauthorized"),
                "{method} {path}"
            );
        }
    }
    assert_eq!(home.admin("GET", "/v1/admin/status", &Value::Null).status, 200);
}

#[test]
fn a_port_is_opened_when_it_is_first_needed_and_once() {
    let home = Home::new();
    let daemon = home.serve_unix(&[]);
    let first = reached(&home);
    assert!(text(&first["url"]).starts_with("http://127.0.0.1:"));
    assert_eq!(first["socket"], json!(home.state().join("run/app/app.sock")));
    let opened = home.json(&["volume", "open", "job"]);
    assert_eq!(
        (&opened["url"], &opened["socket"]),
        (&first["url"], &first["socket"])
    );
    assert_eq!(reached(&home), first);
    assert_eq!(ports(daemon.child.id()).len(), 1);
    let said: Value =
        serde_json::from_slice(&std::fs::read(home.state().join("daemon.json")).unwrap()).unwrap();
    assert_eq!(said["url"], first["url"], "whoever looks is told");
    assert_eq!(home.json(&["status"])["daemon"]["daemon"]["url"], first["url"]);
}

/// An agent holds the URL that it was given, over every life of the daemon, for as long as its volume is open.
#[test]
fn the_next_life_is_found_at_the_same_port_while_a_volume_is_open() {
    let home = Home::new();
    for how in ["killed", "ended"] {
        let mut daemon = home.serve_unix(&[]);
        let volume = home.open(how, "process");
        let url = text(&reached(&home)["url"]).to_owned();
        if how == "ended" {
            daemon.terminate();
            daemon
                .ended(std::time::Duration::from_secs(20))
                .expect("it drains");
        }
        daemon.kill();
        let next = home.serve_unix(&[]);
        assert_eq!(next.url, url, "{how}");
        let arguments = json!({"path": "a", "content": "1"});
        assert_eq!(
            Conn::tcp(&url)
                .call(&volume, "write_file", "k", &arguments)
                .status,
            200
        );
        home.json(&["volume", "end", &volume.generation]);
        next.kill();
    }
    let last = home.serve_unix(&[]);
    assert_eq!(last.url, "", "nobody looks for it any more");
}

/// In its sandbox an agent has the URL, the socket, and nothing else of the state root; the socket outlives the daemon.
#[test]
fn an_agent_reaches_its_gateway_by_url_and_by_socket() {
    let site = Site::new();
    site.agent(
        r#"
import http.client, json, os, socket, urllib.request
class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ["SEMEL_SOCKET"])
def call(connection, method, path, body, key=None):
    headers = {"Authorization": "Bearer " + os.environ["SEMEL_TOKEN"], "Content-Type": "application/json"}
    if key:
        headers["Idempotency-Key"] = key
    connection.request(method, path, json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())
read = call(Unix("x"), "POST", "/v1/tools/read_file", {"path": "src/lib.rs"})[1]
write = {"path": "src/lib.rs", "content": read["content"] + "//test more holds\n"}
status, first = call(Unix("x"), "POST", "/v1/tools/write_file", write, "k")
assert (status, first["replayed"]) == (200, False), first
host = os.environ["SEMEL_URL"].removeprefix("http://")
status, again = call(http.client.HTTPConnection(host), "POST", "/v1/tools/write_file", write, "k")
assert (status, again["replayed"]) == (200, True), again
assert call(Unix("x"), "POST", "/v1/admin/shutdown", {})[0] == 401
beside = os.path.dirname(os.environ["SEMEL_SOCKET"])
assert os.listdir(beside) == ["app.sock"], os.listdir(beside)
state = os.path.dirname(os.path.dirname(beside))
assert sorted(os.listdir(state)) == ["run", "volumes"], os.listdir(state)
assert os.listdir(os.path.join(state, "run")) == ["app"], os.listdir(os.path.join(state, "run"))
try:
    os.unlink(os.environ["SEMEL_SOCKET"])
    raise SystemExit("it removed the socket")
except OSError:
    pass
"#,
    );
    let out = site.run(&[RUN, &["--json"]].concat());
    let kept = PathBuf::from(text(&last_draft(&site)["generation"]));
    let stderr = site
        .home
        .state()
        .join("volumes/small")
        .join(kept)
        .join("work/stderr");
    let stderr = std::fs::read_to_string(stderr).unwrap_or_default();
    assert!(out.status.success(), "{}\n{stderr}", said(&out));
    site.at_rest();
}

/// A name that is longer than a socket's may be is no obstacle to the daemon, nor to a job.
#[test]
fn a_socket_out_of_reach_is_not_named_to_the_agent() {
    let home = Home::new();
    let long = home.path().join("a".repeat(100));
    let mut command = crate::harness::bare(&["serve", "--json", "--quiet", "--state"]);
    command.arg(&long).env("HOME", home.path());
    let _daemon = Daemon::started(&mut command).unwrap();
    let socket = long.join("run/app/app.sock");
    assert!(UnixStream::connect(&socket).is_err(), "too long to be named");
    let open = crate::harness::bare(&["volume", "open", "job", "--json", "--state"])
        .arg(&long)
        .env("HOME", home.path())
        .output()
        .unwrap();
    let opened: Value = serde_json::from_slice(&open.stdout).unwrap();
    assert!(text(&opened["url"]).starts_with("http://127.0.0.1:"));
}
