//! The baseline of the benches: what a careful person writes in an afternoon around one table of SQLite.
//!
//! `baseline DB PORT [full|normal]`. `POST /delete` and `POST /write` take `{"path": …, "content": …}` with an
//! `Idempotency-Key`. Claim and finish are two commits, in WAL mode, by one writer thread that commits everything queued
//! in one transaction. With `full` each commit is synced; with `normal` none is, which is a ceiling and not a promise.
//! The effect itself, a plain unlink or write by an absolute path, is never synced; a kill between claim and finish leaves
//! the key in flight for ever. It has none of the rest: no tokens, no generations, no confinement, no log.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a tool of its own, beside the product"
)]

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rusqlite::{Connection, OptionalExtension, params};
use semel_core::Sha256;
use serde::Deserialize;
use std::sync::mpsc;
use tokio::sync::oneshot;

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// How many steps share a commit at most.
const GROUP: usize = 256;

enum Claim {
    New,
    Done(String),
    InFlight,
    Mismatch,
}

enum Step {
    Claim(String, String, oneshot::Sender<Claim>),
    Finish(String, String, oneshot::Sender<()>),
}

enum Reply {
    Claim(oneshot::Sender<Claim>, Claim),
    Finish(oneshot::Sender<()>),
}

#[derive(Deserialize)]
struct Call {
    path: String,
    #[serde(default)]
    content: String,
}

fn open(path: &str, synchronous: &str) -> Result<Connection, Fault> {
    let db = Connection::open(path)?;
    db.execute_batch(&format!(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous};
         CREATE TABLE IF NOT EXISTS idem(key TEXT PRIMARY KEY, digest TEXT NOT NULL, answer TEXT) WITHOUT ROWID;"
    ))?;
    Ok(db)
}

fn write(mut db: Connection, steps: &mpsc::Receiver<Step>) -> Result<(), Fault> {
    while let Ok(first) = steps.recv() {
        let queued = steps.try_iter().take(GROUP - 1);
        let group: Vec<Step> = std::iter::once(first).chain(queued).collect();
        let mut replies = Vec::with_capacity(group.len());
        let tx = db.transaction()?;
        for step in group {
            replies.push(match step {
                Step::Claim(key, digest, to) => Reply::Claim(to, claim(&tx, &key, &digest)?),
                Step::Finish(key, answer, to) => {
                    tx.prepare_cached("UPDATE idem SET answer=?2 WHERE key=?1")?
                        .execute(params![key, answer])?;
                    Reply::Finish(to)
                }
            });
        }
        tx.commit()?;
        for reply in replies {
            // Whoever went away needs none.
            match reply {
                Reply::Claim(to, claim) => drop(to.send(claim)),
                Reply::Finish(to) => drop(to.send(())),
            }
        }
    }
    Ok(())
}

fn claim(tx: &rusqlite::Transaction<'_>, key: &str, digest: &str) -> Result<Claim, Fault> {
    let row: Option<(String, Option<String>)> = tx
        .prepare_cached("SELECT digest, answer FROM idem WHERE key=?1")?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(match row {
        None => {
            tx.prepare_cached("INSERT INTO idem(key, digest) VALUES(?1, ?2)")?
                .execute(params![key, digest])?;
            Claim::New
        }
        Some((known, _)) if known != digest => Claim::Mismatch,
        Some((_, Some(answer))) => Claim::Done(answer),
        Some((_, None)) => Claim::InFlight,
    })
}

#[derive(Clone, Copy)]
enum Effect {
    Delete,
    Write,
}

async fn call(steps: mpsc::Sender<Step>, effect: Effect, headers: HeaderMap, body: Bytes) -> Response {
    let refused =
        |status: StatusCode, code: &str| (status, format!("{{\"code\":\"{code}\"}}")).into_response();
    let key = headers
        .get("idempotency-key")
        .and_then(|value| value.to_str().ok());
    let Some(key) = key.map(str::to_owned) else {
        return refused(StatusCode::BAD_REQUEST, "missing_idempotency_key");
    };
    let Ok(asked) = serde_json::from_slice::<Call>(&body) else {
        return refused(StatusCode::BAD_REQUEST, "bad_input");
    };
    let (to, claimed) = oneshot::channel();
    let digest = Sha256::of(&body).to_string();
    if steps.send(Step::Claim(key.clone(), digest, to)).is_err() {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable");
    }
    match claimed.await {
        Ok(Claim::New) => {}
        Ok(Claim::Done(answer)) => return ([("idempotency-replayed", "true")], answer).into_response(),
        Ok(Claim::InFlight) => return refused(StatusCode::CONFLICT, "call_in_flight"),
        Ok(Claim::Mismatch) => return refused(StatusCode::CONFLICT, "replay_conflict"),
        Err(_) => return refused(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
    }
    let acted = match effect {
        Effect::Delete => std::fs::remove_file(&asked.path),
        Effect::Write => std::fs::write(&asked.path, &asked.content),
    };
    let answer = format!("{{\"ok\":{}}}", acted.is_ok());
    let (to, finished) = oneshot::channel();
    if steps.send(Step::Finish(key, answer.clone(), to)).is_err() || finished.await.is_err() {
        return refused(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable");
    }
    answer.into_response()
}

fn main() -> Result<(), Fault> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: baseline DB PORT [full|normal]";
    let (db, port) = (args.next().ok_or(usage)?, args.next().ok_or(usage)?);
    let synchronous = match args.next().as_deref() {
        None | Some("full") => "FULL",
        Some("normal") => "NORMAL",
        Some(_) => return Err(usage.into()),
    };
    let db = open(&db, synchronous)?;
    let (to, steps) = mpsc::channel();
    // Where the writer ends its senders fail, and every call is refused.
    std::thread::spawn(move || write(db, &steps));
    let route = |effect: Effect| {
        post(
            move |State(to): State<mpsc::Sender<Step>>, headers: HeaderMap, body: Bytes| {
                call(to, effect, headers, body)
            },
        )
    };
    let app = Router::new()
        .route("/delete", route(Effect::Delete))
        .route("/write", route(Effect::Write))
        .with_state(to);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let service = TowerToHyperService::new(app.clone());
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // How a connection ends is its client's affair.
            tokio::spawn(async move { drop(connection.await) });
        }
    })
}
