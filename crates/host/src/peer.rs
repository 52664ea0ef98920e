//! What the system tells of the other end of a connection, and how many descriptors it grants.
//!
//! It reads and writes nothing on a connection.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::Shutdown;
use rustix::process::{Resource, getrlimit};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// Says whether a peer has closed its connection for good. One that has only said that it sends no more has not.
///
/// `ends` are our address and the peer's, where the connection is TCP: there both look alike from here, and only on the
/// loopback device can the peer's own socket be looked at. Of a peer elsewhere nothing is known before it answers with
/// a reset.
pub fn has_left(connection: impl AsFd, ends: Option<(SocketAddr, SocketAddr)>) -> bool {
    let mut looked = [PollFd::new(&connection, PollFlags::RDHUP)];
    if !matches!(
        poll(&mut looked, Some(&rustix::event::Timespec::default())),
        Ok(1)
    ) {
        return false;
    }
    let found = looked[0].revents();
    if found.intersects(PollFlags::HUP | PollFlags::ERR) {
        return true;
    }
    match ends {
        Some((ours, theirs)) if found.contains(PollFlags::RDHUP) => {
            let (ours, theirs) = (canonical(ours), canonical(theirs));
            theirs.ip().is_loopback() && !held(theirs, ours)
        }
        _ => false,
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Says whether any process holds the socket of a connection between two addresses of this machine.
fn held(local: SocketAddr, remote: SocketAddr) -> bool {
    let table = match local.ip() {
        IpAddr::V4(_) => "/proc/self/net/tcp",
        IpAddr::V6(_) => "/proc/self/net/tcp6",
    };
    // Where nothing can be read, nobody is said to have left.
    let Ok(text) = std::fs::read_to_string(table) else {
        return true;
    };
    let wanted = format!("{} {} ", in_hex(local), in_hex(remote));
    text.lines().any(|line| {
        let found = line
            .split_once(": ")
            .is_some_and(|(_, rest)| rest.starts_with(&wanted));
        // A socket that nobody holds any more has no inode.
        found && line.split_whitespace().nth(9).is_some_and(|inode| inode != "0")
    })
}

fn in_hex(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words: String = octets
        .chunks_exact(4)
        .map(|four| format!("{:08X}", u32::from_ne_bytes([four[0], four[1], four[2], four[3]])))
        .collect();
    format!("{words}:{:04X}", address.port())
}

/// Says to the peer that nothing more is sent; it may still send.
///
/// # Errors
/// The system's, such as for a connection that is gone.
pub fn hang_up(connection: impl AsFd) -> std::io::Result<()> {
    Ok(rustix::net::shutdown(connection, Shutdown::Write)?)
}

/// Says how many descriptors this process may have open.
#[must_use]
pub fn descriptors() -> usize {
    let granted = getrlimit(Resource::Nofile).current;
    granted.map_or(usize::MAX, |granted| {
        usize::try_from(granted).unwrap_or(usize::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown as How, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn who_sends_no_more_is_still_there_and_who_has_closed_is_not() {
        for place in ["127.0.0.1:0", "[::1]:0"] {
            // A machine without IPv6 has no such place.
            let Ok(listener) = TcpListener::bind(place) else {
                assert_ne!(place, "127.0.0.1:0");
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, from) = listener.accept().unwrap();
            let ends = Some((server.local_addr().unwrap(), from));
            let left = || has_left(&server, ends);
            assert!(!left());
            client.shutdown(How::Write).unwrap();
            while !matches!(poll(&mut [PollFd::new(&server, PollFlags::RDHUP)], None), Ok(1)) {}
            assert!(!left(), "{place}: half closed");
            drop(client);
            gone_at_last(left);
        }
        let (client, server) = UnixStream::pair().unwrap();
        assert!(!has_left(&server, None));
        client.shutdown(How::Write).unwrap();
        assert!(!has_left(&server, None), "half closed");
        drop(client);
        gone_at_last(|| has_left(&server, None));
    }

    /// A child that another test starts just now has a copy of the client until it executes.
    fn gone_at_last(left: impl Fn() -> bool) {
        let since = std::time::Instant::now();
        while !left() {
            assert!(since.elapsed() < std::time::Duration::from_secs(20));
            std::thread::yield_now();
        }
    }
}
