//! The Model Context Protocol at `/mcp`, byte by byte, as the official clients speak it, and by its conformance suite.

pub(crate) mod clients;
mod inspector;
mod keys;
mod suite;
mod tasks;
mod wire;

use crate::harness::{Conn, Daemon, Home, Reply, Volume};
use serde_json::{Value, json};
use std::net::TcpStream;

/// The newest revision, and the one before.
const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";

/// A client that says exactly what it is told to.
struct Raw {
    conn: Conn<TcpStream>,
    token: String,
    id: u64,
}

impl Raw {
    fn new(daemon: &Daemon, volume: &Volume) -> Self {
        Self {
            conn: daemon.conn(),
            token: volume.token.clone(),
            id: 0,
        }
    }

    /// Posts bytes with these headers alone, beside the token and this machine's name.
    fn post(&mut self, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let auth = format!("Bearer {}", self.token);
        let mut all = vec![("host", "localhost"), ("authorization", auth.as_str())];
        all.extend_from_slice(headers);
        self.bare(&all, body)
    }

    /// Posts bytes with these headers alone.
    fn bare(&mut self, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut head = format!("POST /mcp HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let bytes = [head.as_bytes(), b"\r\n", body].concat();
        self.conn.raw(&bytes).expect("an answer")
    }

    /// Asks as a client of the revision before the newest does after its handshake.
    fn legacy(&mut self, method: &str, params: &Value) -> Reply {
        let body = self.request(method, params);
        self.post(&[("mcp-protocol-version", LEGACY)], body.as_bytes())
    }

    /// Asks as a client of the newest revision does.
    fn modern(&mut self, method: &str, params: &Value) -> Reply {
        self.modern_with(method, params, &[])
    }

    /// Asks so, with more headers.
    fn modern_with(&mut self, method: &str, params: &Value, more: &[(&str, &str)]) -> Reply {
        let mut params = params.clone();
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
        let declared = &mut params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        if declared.is_null() {
            *declared = json!({});
        }
        let body = self.request(method, &params);
        let name = params["name"].as_str().or(params["taskId"].as_str());
        let name = name.unwrap_or_default().to_owned();
        let key = params["arguments"]["idempotency_key"].as_str().map(str::to_owned);
        let mut headers = vec![("mcp-protocol-version", MODERN), ("mcp-method", method)];
        if method == "tools/call" || method.starts_with("tasks/") {
            headers.push(("mcp-name", &name));
            headers.extend(key.as_deref().map(|key| ("mcp-param-idempotency-key", key)));
        }
        headers.extend_from_slice(more);
        self.post(&headers, body.as_bytes())
    }

    fn request(&mut self, method: &str, params: &Value) -> String {
        self.id += 1;
        json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params}).to_string()
    }
}

fn scene() -> (Home, Daemon, Volume) {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    (home, daemon, volume)
}

fn content(volume: &Volume, name: &str) -> Option<String> {
    std::fs::read_to_string(volume.tree.join(name)).ok()
}
