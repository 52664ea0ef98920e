//! Too many of everything: calls of one token, connections, descriptors, and calls that outlast the daemon.

use crate::harness::{Conn, Home, LONG, wait_until};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::time::Duration;

fn status(home: &Home) -> Value {
    home.admin("GET", "/v1/admin/status", &Value::Null).body
}

/// Gives the soft bound on the descriptors of a process another value, and says what it was.
fn allow(pid: u32, soft: u64) -> u64 {
    let pid = i32::try_from(pid).unwrap();
    let mut old = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain system calls on our own child, with a structure of ours.
    #[expect(unsafe_code, reason = "std has no way to bound another process")]
    unsafe {
        assert_eq!(
            libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &mut old),
            0
        );
        let new = libc::rlimit {
            rlim_cur: soft,
            rlim_max: old.rlim_max,
        };
        assert_eq!(
            libc::prlimit(pid, libc::RLIMIT_NOFILE, &new, std::ptr::null_mut()),
            0
        );
    }
    old.rlim_cur
}

/// A job that sends all that it can keeps nobody else out, and is told when to come again.
#[test]
fn one_token_does_not_starve_the_others() {
    let home = Home::new();
    let daemon = home.serve(&["--pause-at", "begun:2500"]);
    let (greedy, modest) = (home.open("greedy", "process"), home.open("modest", "process"));
    std::fs::write(modest.tree.join("a"), "1").unwrap();
    let url = daemon.url.as_str();
    std::thread::scope(|scope| {
        // Half of them wait for the path of another: they count as well.
        let calls: Vec<_> = (0..96)
            .map(|n| {
                let greedy = &greedy;
                let call = json!({"path": format!("f{}", n % 48), "content": "1"});
                scope.spawn(move || Conn::tcp(url).call(greedy, "write_file", &format!("k{n}"), &call))
            })
            .collect();
        assert!(
            wait_until(LONG, || status(&home)["answering"] == 96),
            "{}",
            status(&home)
        );
        let more = json!({"path": "more", "content": "1"});
        let told = Conn::tcp(url).call(&greedy, "write_file", "k", &more);
        assert_eq!(
            (told.status, told.code(), told.reason()),
            (429, "too_many", "token_share")
        );
        assert_eq!(told.header("retry-after"), Some("1"));
        let read = Conn::tcp(url).call(&greedy, "read_file", "", &json!({"path": "f0"}));
        assert_eq!(read.code(), "too_many", "a read is a call, too");
        let other = Conn::tcp(url).call(&modest, "read_file", "", &json!({"path": "a"}));
        assert_eq!(other.status, 200, "{}", other.body);
        let other = Conn::tcp(url).call(&modest, "write_file", "k", &more);
        assert_eq!(other.status, 200, "{}", other.body);
        for call in calls {
            let reply = call.join().unwrap();
            assert_eq!(reply.status, 200, "{}", reply.body);
        }
        let again = Conn::tcp(url).call(&greedy, "write_file", "k", &more);
        assert_eq!(
            (again.status, &again.body["replayed"]),
            (200, &json!(false)),
            "the key was not taken"
        );
    });
    assert_eq!(status(&home)["answering"], 0, "nothing is counted for ever");
}

/// Connections that say nothing fill the app listener; the operator is still heard, and the next one only waits.
#[test]
fn a_crowd_at_the_door_keeps_the_operator_in() {
    let home = Home::new();
    let mut command = std::process::Command::new("sh");
    command
        .args([
            "-c",
            "ulimit -Sn 128 && exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_semel"),
        ])
        .args(["--state", home.state().to_str().unwrap()])
        .args(["serve", "--json", "--quiet", "--listen", "127.0.0.1:0"])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", home.path());
    let daemon = crate::harness::Daemon::started(&mut command).unwrap();
    let volume = home.open("job", "process");
    let place = daemon.url.strip_prefix("http://").unwrap();
    let crowd: Vec<TcpStream> = (0..64).map(|_| TcpStream::connect(place).unwrap()).collect();
    let sockets = || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap();
        fds.flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("socket:"))
            .count()
    };
    assert!(wait_until(LONG, || sockets() >= 64), "{}", sockets());
    let mut next = daemon.conn();
    let arguments = json!({"path": "a", "content": "1"});
    next.inner()
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    assert!(
        next.try_call(&volume, "write_file", "k", &arguments).is_none(),
        "it waits for a place"
    );
    // Sooner than the crowd is sent away for its silence, and as often as wanted.
    let operator = || {
        let socket = std::os::unix::net::UnixStream::connect(home.state().join("semel.sock")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        Conn::over(socket)
    };
    let mut held: Vec<_> = (0..3).map(|_| operator()).collect();
    for conn in &mut held {
        let heard = conn.try_send("GET", "/v1/admin/status", &[], b"");
        assert_eq!(heard.expect("the operator is heard").status, 401);
    }
    assert!(
        home.json(&["volume", "list"])
            .to_string()
            .contains(&volume.generation)
    );
    drop(crowd);
    next.inner().set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(next.receive("POST").expect("its turn comes").status, 200);
}

/// A daemon that is granted no more descriptors neither ends nor spins; once there are some, it goes on.
#[test]
fn a_daemon_without_descriptors_waits_for_some() {
    let home = Home::new();
    let mut daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut before = daemon.conn();
    let arguments = json!({"path": "a", "content": "1"});
    assert_eq!(before.call(&volume, "write_file", "k", &arguments).status, 200);
    let pid = daemon.child.id();
    let granted = allow(pid, 5);
    let mut waiting: Vec<_> = (0..4).map(|_| daemon.conn()).collect();
    let spent = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let words: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        words[11].parse::<u64>().unwrap() + words[12].parse::<u64>().unwrap()
    };
    // Ticks of 10 ms: one that spins spends nearly all of two seconds.
    let since = spent();
    std::thread::sleep(Duration::from_secs(2));
    assert!(spent() - since < 60, "{} ticks spent on waiting", spent() - since);
    assert!(daemon.child.try_wait().unwrap().is_none());
    let replay = before.call(&volume, "write_file", "k", &arguments);
    assert_eq!(replay.body["replayed"], true, "{}", replay.body);
    allow(pid, granted);
    for (n, conn) in waiting.iter_mut().enumerate() {
        let reply = conn.call(
            &volume,
            "write_file",
            &format!("k{n}"),
            &json!({"path": "b", "content": "1"}),
        );
        assert_eq!(reply.status, 200, "{}", reply.body);
    }
    let failed = status(&home)["counted"]["accept_errors"].as_u64().unwrap();
    assert!((1..60).contains(&failed), "{failed} failures in two seconds");
}

/// A call that outlasts the deadline does not keep the daemon; the next life says what became of it.
#[test]
fn draining_has_a_deadline() {
    let home = Home::new();
    let mut daemon = home.serve(&["--pause-at", "begun:60000", "--hasten", "50"]);
    let volume = home.open("job", "process");
    let (url, arguments) = (daemon.url.clone(), json!({"path": "a", "content": "1"}));
    std::thread::scope(|scope| {
        let call = scope.spawn(|| Conn::tcp(&url).try_call(&volume, "write_file", "k", &arguments));
        assert!(wait_until(LONG, || status(&home)["journal"]["running"] == 1));
        daemon.terminate();
        let status = daemon.ended(LONG).expect("it ends, though a call is under way");
        assert_eq!(status.code(), Some(0));
        assert!(call.join().unwrap().is_none(), "nobody made an answer up");
    });
    let next = home.serve(&[]);
    let again = next.conn().call(&volume, "write_file", "k", &arguments);
    assert_eq!(
        (again.status, &again.body["replayed"]),
        (200, &json!(false)),
        "{}",
        again.body
    );
}

/// While it drains, what runs goes on, what is known is answered, and what is new is sent away with a time.
#[test]
fn a_draining_daemon_says_when_to_come_again() {
    let home = Home::new();
    let mut daemon = home.serve(&["--pause-at", "begun:1500"]);
    let volume = home.open("job", "process");
    let (url, arguments) = (daemon.url.clone(), json!({"path": "a", "content": "1"}));
    // A connection whose request is half sent when the daemon begins to drain.
    let mut late = daemon.conn();
    let body = json!({"path": "b", "content": "1"}).to_string();
    let head = format!(
        "POST /v1/tools/write_file HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\nidempotency-key: late\r\ncontent-length: {}\r\n\r\n",
        volume.token,
        body.len()
    );
    late.write(head.as_bytes()).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Conn::tcp(&url).call(&volume, "write_file", "k", &arguments));
        assert!(wait_until(LONG, || status(&home)["journal"]["running"] == 1));
        assert!(
            wait_until(LONG, || status(&home)["answering"] == 2),
            "both are known"
        );
        daemon.terminate();
        assert!(wait_until(LONG, || !home.state().join("semel.sock").exists()));
        let told = late.raw(body.as_bytes()).unwrap();
        assert_eq!((told.status, told.code()), (503, "draining"), "{}", told.body);
        assert_eq!(told.header("retry-after"), Some("1"));
        assert_eq!(first.join().unwrap().status, 200);
    });
    assert_eq!(daemon.ended(LONG).unwrap().code(), Some(0));
    assert!(!volume.tree.join("b").exists());
    let free = home.serve(&[]).conn().call(
        &volume,
        "write_file",
        "late",
        &json!({"path": "b", "content": "1"}),
    );
    assert_eq!(free.body["replayed"], false);
}

/// Whoever could connect is answered, in the very moment in which the daemon begins to drain, too.
#[test]
fn nobody_who_connected_is_left_without_an_answer() {
    for _ in 0..6 {
        let home = Home::new();
        let mut daemon = home.serve(&[]);
        let socket = home.state().join("run/app/app.sock");
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let mut answered = 0;
                        while let Ok(stream) = std::os::unix::net::UnixStream::connect(&socket) {
                            let reply = Conn::over(stream).try_send("GET", "/v1/openapi.json", &[], b"");
                            assert!(reply.is_some(), "after {answered} answers");
                            answered += 1;
                        }
                        answered
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(100));
            daemon.terminate();
            for client in clients {
                assert!(client.join().unwrap() > 0);
            }
        });
        assert_eq!(daemon.ended(LONG).unwrap().code(), Some(0));
    }
}
