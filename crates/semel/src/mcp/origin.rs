//! Who may be at the other end: a page of some other site in a browser may not.
//!
//! A name that a foreign site made lead to this machine is no name of ours; an address cannot be made to lead elsewhere.

use semel_core::{Code, Refusal};
use std::net::IpAddr;

/// Says whether a request by way of TCP may be answered: `Host` has to be this machine's own name or an address, and
/// `Origin`, which only browsers send, a page of this machine.
///
/// # Errors
/// `denied`, reasons `foreign_host` and `foreign_origin`.
///
/// # Source
/// Revision 2026-07-28, "Streamable HTTP", section "Security & Endpoint".
pub(crate) fn permitted(hosts: &[&[u8]], origins: &[&[u8]]) -> Result<(), Refusal> {
    let denied = |reason: &str, why: &str, value: &[u8]| {
        let shown = value
            .escape_ascii()
            .to_string()
            .chars()
            .take(80)
            .collect::<String>();
        Err(Refusal::new(Code::Denied, why).reason(reason).name(shown))
    };
    match hosts {
        [host] if local_or_address(host) => {}
        other => {
            let why = "the request is for a host that is not this one by name";
            return denied("foreign_host", why, other.first().copied().unwrap_or_default());
        }
    }
    match origins {
        [] => Ok(()),
        [origin] if local_page(origin) => Ok(()),
        other => denied(
            "foreign_origin",
            "the request comes from a page of another site",
            other.first().copied().unwrap_or_default(),
        ),
    }
}

/// Takes the port off.
fn named(authority: &[u8]) -> Option<&str> {
    let authority = std::str::from_utf8(authority).ok()?;
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']')?;
            (name, port.strip_prefix(':').or(port.is_empty().then_some(""))?)
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    port.bytes().all(|b| b.is_ascii_digit()).then_some(name)
}

fn local_or_address(authority: &[u8]) -> bool {
    named(authority)
        .is_some_and(|name| name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok())
}

fn local_page(origin: &[u8]) -> bool {
    let page = origin
        .strip_prefix(b"http://")
        .or_else(|| origin.strip_prefix(b"https://"));
    page.and_then(named).is_some_and(|name| {
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_page_or_name_is_not_answered() {
        let ask = |hosts: &[&str], origins: &[&str]| {
            let bytes =
                |texts: &[&str]| -> Vec<Vec<u8>> { texts.iter().map(|t| t.as_bytes().to_vec()).collect() };
            let (hosts, origins) = (bytes(hosts), bytes(origins));
            let hosts: Vec<&[u8]> = hosts.iter().map(Vec::as_slice).collect();
            let origins: Vec<&[u8]> = origins.iter().map(Vec::as_slice).collect();
            permitted(&hosts, &origins).map_err(|refusal| refusal.reason.unwrap_or_default())
        };
        for host in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:80",
            "[::1]:80",
            "[::1]",
            "10.0.0.7:1",
        ] {
            assert_eq!(ask(&[host], &[]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil:1",
            "",
            "localhost:x",
            "[::1]x",
        ] {
            assert_eq!(ask(&[host], &[]), Err("foreign_host".to_owned()), "{host}");
        }
        assert!(ask(&[], &[]).is_err() && ask(&["localhost", "localhost"], &[]).is_err());
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:5"] {
            assert_eq!(ask(&["localhost"], &[origin]), Ok(()), "{origin}");
        }
        for origin in [
            "null",
            "http://evil.example",
            "http://localhost.evil.example",
            "http://10.0.0.7",
            "http://localhost@evil.example",
            "file://",
            "",
        ] {
            assert_eq!(
                ask(&["localhost"], &[origin]),
                Err("foreign_origin".to_owned()),
                "{origin}"
            );
        }
    }
}
