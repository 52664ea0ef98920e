//! Another server of tools behind the gateway: each call once, whatever breaks on the way.

mod bridged;
mod broken;
mod crashes;
mod guarded;
mod http;
mod peers;

use crate::harness::{Conn, Daemon, Home, LONG, Reply, Volume, wait_until};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::path::PathBuf;

const FAKE: &str = include_str!("upstream/fake.py");

/// A server that does what a test wants, behind a daemon of its own.
struct Scene {
    home: Home,
    place: PathBuf,
    /// How the server is named to the daemon.
    upstream: String,
}

impl Scene {
    fn new() -> Self {
        Self::with("")
    }

    /// Makes it, with further arguments of the server.
    fn with(more: &str) -> Self {
        let home = Home::new();
        let place = home.path().join("fake");
        std::fs::create_dir(&place).unwrap();
        let program = home.path().join("fake.py");
        std::fs::write(&program, FAKE).unwrap();
        let upstream = format!("fake=python3 {} {} {more}", program.display(), place.display());
        Self {
            home,
            place,
            upstream,
        }
    }

    fn serve(&self) -> Daemon {
        self.serve_with(&[])
    }

    fn serve_with(&self, more: &[&str]) -> Daemon {
        let args = [&["--upstream", self.upstream.as_str()], more].concat();
        self.home.serve(&args)
    }

    /// Writes a configuration that names the server, with further settings of it, and starts a daemon by it.
    fn serve_by_file(&self, settings: &str, more: &[&str]) -> Daemon {
        let (_, command) = self.upstream.split_once('=').unwrap();
        let words: Vec<&str> = command.split_whitespace().collect();
        let file = self.home.path().join("config.toml");
        let text = format!("[upstream.fake]\ncommand = {}\n{settings}\n", json!(words));
        std::fs::write(&file, text).unwrap();
        self.home
            .serve(&[&["--config", file.to_str().unwrap()], more].concat())
    }

    /// Counts what the server did.
    fn effects(&self) -> usize {
        self.lines("effects").len()
    }

    /// Counts how often the server was started.
    fn starts(&self) -> usize {
        self.lines("starts").len()
    }

    /// Gives what the server was sent.
    fn seen(&self) -> Vec<Value> {
        let lines = self.lines("seen");
        lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.place.join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn wait_for(&self, name: &str) {
        let file = self.place.join(format!("{name}.here"));
        assert!(
            wait_until(LONG, || file.exists()),
            "the server never came to {name}"
        );
    }

    fn let_go(&self, name: &str) {
        std::fs::write(self.place.join(format!("{name}.go")), "").unwrap();
    }
}

/// A client of the gateway.
struct Client {
    conn: Conn<TcpStream>,
    token: String,
    id: u64,
}

impl Client {
    fn new(daemon: &Daemon, volume: &Volume) -> Self {
        Self {
            conn: daemon.conn(),
            token: volume.token.clone(),
            id: 0,
        }
    }

    fn ask(&mut self, method: &str, params: &Value) -> Reply {
        self.try_ask(method, params, &[]).expect("an answer")
    }

    fn try_ask(&mut self, method: &str, params: &Value, more: &[(&str, &str)]) -> Option<Reply> {
        self.write(method, params, more)?;
        self.conn.receive("POST")
    }

    /// Asks, and waits for nothing.
    fn write(&mut self, method: &str, params: &Value, more: &[(&str, &str)]) -> Option<()> {
        self.id += 1;
        let body = json!({"jsonrpc": "2.0", "id": self.id, "method": method, "params": params}).to_string();
        let mut head = format!(
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nmcp-protocol-version: 2025-11-25\r\n\
             authorization: Bearer {}\r\ncontent-length: {}\r\n",
            self.token,
            body.len()
        );
        for (name, value) in more {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.conn.write(format!("{head}\r\n{body}").as_bytes())
    }

    fn call(&mut self, tool: &str, key: Option<&str>, arguments: &Value) -> Reply {
        self.ask("tools/call", &params(tool, key, arguments))
    }

    /// Calls the tool that has an effect.
    fn note(&mut self, key: &str, how: &str) -> Reply {
        self.call("fake__note", Some(key), &json!({"text": key, "how": how}))
    }

    /// Lists the names of all tools.
    fn tools(&mut self) -> Vec<Value> {
        let listed = self.ask("tools/list", &json!({}));
        listed.body["result"]["tools"].as_array().unwrap().clone()
    }
}

fn params(tool: &str, key: Option<&str>, arguments: &Value) -> Value {
    let mut params = json!({"name": tool, "arguments": arguments});
    if let Some(key) = key {
        params["_meta"]["dev.semel/idempotencyKey"] = json!(key);
    }
    params
}

/// Gives the wire name of a refusal, in either face; empty for an answer.
fn refused(reply: &Reply) -> &str {
    let in_error = reply.body["error"]["data"]["type"].as_str();
    let in_result = reply.body["result"]["structuredContent"]["error"]["type"].as_str();
    in_error.or(in_result).unwrap_or_default()
}

fn replayed(reply: &Reply) -> Option<bool> {
    reply.body["result"]["_meta"]["dev.semel/replayed"].as_bool()
}

fn execution(reply: &Reply) -> &str {
    let error = reply.body["error"]["data"]["execution_id"].as_str();
    let result = reply.body["result"]["_meta"]["dev.semel/executionId"].as_str();
    let refused = reply.body["result"]["structuredContent"]["error"]["execution_id"].as_str();
    error.or(result).or(refused).expect("an execution")
}
