//! What a command of an agent can reach: its tree, and nothing of the house.

use super::*;
use crate::harness::skipped;

#[test]
fn a_command_is_no_burglar() {
    let lab = Lab::new();
    let probe = lab.sh("probe", "true").body;
    if probe["confinement"] != "full" {
        return skipped(&format!(
            "no whole sandbox here: {}",
            probe["confinement_missing"]
        ));
    }
    let other = lab.home.open("other", "process");
    std::fs::write(other.tree.join("secret"), "theirs").unwrap();
    let state = lab.home.state();
    let token = std::fs::read_to_string(state.join("operator.token")).unwrap();
    // With the operator's own token, and every name that there is.
    let script = format!(
        r#"
import errno, os, socket, sys
state, other, token = {state:?}, {other:?}, {token:?}
for name in ["journal.db", "journal.db-wal", "keys/log.pem", "operator.token", "semel.sock", "run/app/app.sock", "owner.lock"]:
    try:
        os.close(os.open(os.path.join(state, name), os.O_RDONLY)); print("OPENED", name)
    except OSError as e:
        print("open", name, errno.errorcode[e.errno])
for place in [other, state, state + "/volumes", os.path.dirname(os.path.dirname(os.getcwd())) + "/meta"]:
    try:
        print("LISTED" if [n for n in os.listdir(place) if n != "job" and n != "tree" and n != "vol" and n != "volumes" and not n.startswith("g-")] else "empty", place)
    except OSError as e:
        print("list", errno.errorcode[e.errno])
for name in ["semel.sock", "run/app/app.sock"]:
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect(os.path.join(state, name)); print("CONNECTED", name)
    except OSError as e:
        print("connect", name, errno.errorcode[e.errno])
s = socket.create_connection(("127.0.0.1", {port}))
for path in ["/v1/admin/status", "/v1/admin/journal"]:
    s.sendall(("GET %s HTTP/1.1\r\nhost: semel\r\nauthorization: Bearer %s\r\n\r\n" % (path, token.strip())).encode())
    print("status", s.recv(65536).split(b" ")[1].decode())
for pid in os.listdir("/proc"):
    if pid.isdigit():
        try:
            if b"serve" in open("/proc/%s/cmdline" % pid, "rb").read(): print("SAW", pid)
        except OSError:
            pass
"#,
        state = state.display().to_string(),
        other = other.tree.display().to_string(),
        port = lab.daemon().url.rsplit(':').next().unwrap(),
    );
    std::fs::write(lab.in_tree("burglar.py"), script).unwrap();
    let done = lab.call("k", &json!({"argv": ["python3", "burglar.py"]}));
    let (said, err) = (done.body["stdout"].as_str().unwrap(), &done.body["stderr"]);
    if done.body["exit_code"] == 127 {
        return skipped("no python3 on the path of the system");
    }
    assert_eq!(done.body["exit_code"], 0, "{said}{err}");
    for loud in ["OPENED", "LISTED", "CONNECTED", "SAW", "status 2"] {
        assert!(!said.contains(loud), "{said}");
    }
    assert_eq!(said.matches("status 401").count(), 2, "{said}");
    // Nor can it write what it is told by: its status, or the journal of its own volume.
    let forged = lab.sh(
        "forge",
        "for at in ../staging ../trash ../../meta ../../work; do touch $at/x 2>/dev/null && echo WROTE $at; done; kill -9 -1 2>/dev/null; true",
    );
    assert!(
        !forged.body["stdout"].as_str().unwrap().contains("WROTE"),
        "{}",
        forged.body
    );
    assert_eq!(lab.sh("after", EFFECT).status, 200, "the daemon lives");
}

/// Where the operator wants a whole sandbox, there is a whole one or nothing.
#[test]
fn a_whole_sandbox_can_be_demanded() {
    let home = Home::new();
    let file = home.path().join("config.toml");
    std::fs::write(&file, "[commands]\nconfinement = \"require\"\n").unwrap();
    let daemon = home.serve(&["--config", file.to_str().unwrap()]);
    let volume = home.open("job", "process");
    let arguments = json!({"command": EFFECT});
    let reply = daemon.conn().call(&volume, "run_command", "k", &arguments);
    if reply.status == 200 {
        assert_eq!(reply.body["confinement"], "full", "{}", reply.body);
        return;
    }
    assert_eq!(reply.code(), "sandbox_unavailable", "{}", reply.body);
    assert!(!volume.tree.join("effects").exists());
    let again = daemon.conn().call(&volume, "run_command", "k", &arguments);
    assert_eq!(
        (again.code(), &again.body["replayed"]),
        ("sandbox_unavailable", &json!(true))
    );
}
