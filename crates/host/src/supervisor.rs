//! What a service manager and its daemon say to each other: readiness and life over a datagram socket, and listeners
//! that are handed down. The protocol is systemd's; others speak it, too.
//!
//! It reads no environment: whoever calls knows what was said there.

use crate::error::{Error, Result};
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};
use semel_core::{Code, Refusal};
use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::PathBuf;

/// The variables that are meant for one process alone; no child gets them.
pub const VARIABLES: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];

/// The first descriptor that is handed down.
const FIRST: i32 = 3;
/// How many are taken at most.
const MOST: usize = 16;

fn wrong(why: impl Into<String>, name: &str) -> Error {
    Refusal::new(Code::BadConfig, why).name(name).into()
}

/// Is the way to a service manager.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    manager: SocketAddr,
}

impl Notifier {
    /// Finds the manager at the place that `NOTIFY_SOCKET` names: a path, or `@` and an abstract name.
    ///
    /// # Errors
    /// `bad_config` for any other form; `io_failed`.
    pub fn new(place: &OsStr) -> Result<Self> {
        let manager = match place.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            [b'/', ..] => SocketAddr::from_pathname(place),
            _ => {
                return Err(wrong(
                    "NOTIFY_SOCKET is neither a path nor an abstract name",
                    "NOTIFY_SOCKET",
                ));
            }
        };
        let manager = manager.map_err(|e| wrong(e.to_string(), "NOTIFY_SOCKET"))?;
        let socket = UnixDatagram::unbound().map_err(|e| Error::io("make", "a socket", e))?;
        // A manager that does not read must not hold the daemon up.
        socket
            .set_nonblocking(true)
            .map_err(|e| Error::io("set up", "a socket", e))?;
        Ok(Self { socket, manager })
    }

    /// Says something, such as `READY=1`, one assignment a line. A manager that cannot be told finds out by itself.
    pub fn say(&self, words: &str) {
        drop(self.socket.send_to_addr(words.as_bytes(), &self.manager));
    }
}

/// Is a listener that was handed down.
#[derive(Debug)]
pub enum Listener {
    /// On a TCP port.
    Tcp(TcpListener),
    /// On a Unix socket, at its path where it has one.
    Unix(UnixListener, Option<PathBuf>),
}

/// Takes the listeners that were handed down to this very process, with their names, in their order.
///
/// `count`, `pid` and `names` are what `LISTEN_FDS`, `LISTEN_PID` and `LISTEN_FDNAMES` say. Meant for another process,
/// there are none.
///
/// # Errors
/// `bad_config` where a number does not parse, there are not as many names as descriptors, or a descriptor is no
/// listening stream socket.
pub fn listeners(
    count: Option<&OsStr>,
    pid: Option<&OsStr>,
    names: Option<&OsStr>,
) -> Result<Vec<(String, Listener)>> {
    let number = |text: &OsStr, name: &str| {
        let number = text.to_str().and_then(|text| text.parse::<usize>().ok());
        number.ok_or_else(|| wrong("it is no number", name))
    };
    let (Some(count), Some(pid)) = (count, pid) else {
        return Ok(Vec::new());
    };
    let ours = usize::try_from(std::process::id()).unwrap_or(usize::MAX);
    if number(pid, "LISTEN_PID")? != ours {
        return Ok(Vec::new());
    }
    let count = number(count, "LISTEN_FDS")?;
    if count > MOST {
        return Err(wrong(format!("more than {MOST} listeners"), "LISTEN_FDS"));
    }
    let names = names.and_then(OsStr::to_str).unwrap_or_default();
    let names: Vec<&str> = names.split(':').filter(|name| !name.is_empty()).collect();
    if names.len() != count {
        let why = "each listener needs its name: FileDescriptorName= in its socket unit";
        return Err(wrong(why, "LISTEN_FDNAMES"));
    }
    let mut taken = Vec::new();
    for (number, name) in (FIRST..).zip(names) {
        // It is closed on exec from here on: no child has it.
        let fd =
            crate::sandbox::sys::inherited(number).map_err(|_| wrong("there is no such descriptor", name))?;
        taken.push((name.to_owned(), listener(fd, name)?));
    }
    Ok(taken)
}

fn listener(fd: OwnedFd, name: &str) -> Result<Listener> {
    let other = || wrong("it is no listening stream socket", name);
    let listens = socket_acceptconn(&fd).map_err(|_| other())?;
    let stream = socket_type(&fd).map_err(|_| other())? == SocketType::STREAM;
    if !(listens && stream) {
        return Err(other());
    }
    let fail = |e: std::io::Error| wrong(e.to_string(), name);
    match socket_domain(&fd).map_err(|_| other())? {
        AddressFamily::INET | AddressFamily::INET6 => {
            let listener = TcpListener::from(fd);
            listener.set_nonblocking(true).map_err(fail)?;
            Ok(Listener::Tcp(listener))
        }
        AddressFamily::UNIX => {
            let listener = UnixListener::from(fd);
            listener.set_nonblocking(true).map_err(fail)?;
            let place = listener.local_addr().map_err(fail)?;
            let place = place.as_pathname().map(PathBuf::from);
            Ok(Listener::Unix(listener, place))
        }
        _ => Err(other()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_at_a_path_and_by_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("semel-test-{}", std::process::id());
        let abstracted = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        for (manager, place) in [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (
                UnixDatagram::bind_addr(&abstracted).unwrap(),
                format!("@{name}").into(),
            ),
        ] {
            Notifier::new(&place).unwrap().say("READY=1\nSTATUS=x");
            let mut heard = [0; 64];
            let length = manager.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1\nSTATUS=x");
        }
        for place in ["", "notify", "vsock:2:1234"] {
            assert_eq!(
                Notifier::new(OsStr::new(place)).unwrap_err().code(),
                Code::BadConfig,
                "{place}"
            );
        }
    }

    #[test]
    fn a_manager_that_does_not_read_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let _manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(path.as_os_str()).unwrap();
        for _ in 0..10_000 {
            notifier.say("WATCHDOG=1");
        }
    }

    #[test]
    fn only_listening_stream_sockets_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let unix = UnixListener::bind(dir.path().join("a")).unwrap();
        assert!(matches!(
            listener(unix.into(), "app"),
            Ok(Listener::Unix(_, Some(_)))
        ));
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        assert!(matches!(listener(tcp.into(), "app"), Ok(Listener::Tcp(_))));
        let datagrams = UnixDatagram::bind(dir.path().join("b")).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let others: [OwnedFd; 3] = [connected.into(), datagrams.into(), file.into()];
        for other in others {
            assert_eq!(listener(other, "app").unwrap_err().code(), Code::BadConfig);
        }
    }

    #[test]
    fn what_is_meant_for_another_process_is_not_taken() {
        let ours = std::process::id().to_string();
        let take = |count: Option<&str>, pid: Option<&str>, names: Option<&str>| {
            listeners(count.map(OsStr::new), pid.map(OsStr::new), names.map(OsStr::new))
        };
        assert!(take(None, Some(&ours), None).unwrap().is_empty());
        assert!(take(Some("1"), Some("1"), Some("app")).unwrap().is_empty());
        assert!(take(Some("0"), Some(&ours), None).unwrap().is_empty());
        for (count, names) in [
            ("x", "app"),
            ("-1", "app"),
            ("1", ""),
            ("2", "app"),
            ("99", "app"),
        ] {
            let refused = take(Some(count), Some(&ours), Some(names)).unwrap_err();
            assert_eq!(refused.code(), Code::BadConfig, "{count} {names}");
        }
    }
}
