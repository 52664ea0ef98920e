//! The accept loops: who may connect, how many at once, and how it all ends.
//!
//! Own loops, for what `axum::serve` lacks: a timeout for half-sent heads, a cap on connections with room kept for the
//! operator, a pause where the system gives no more descriptors, a deadline for draining, and who the peer is. It does
//! *not* know what is asked.

use super::stream::Stream;
use super::wire_guard::WireGuard;
use super::{App, Peer, Who, answer, router};
use crate::limits;
use crate::telemetry::Phase;
use axum::Router;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use semel_core::{Code, Refusal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

/// How long a draining daemon still looks for connections that were made before, and for the first request on one; and
/// how long at most, where they keep coming.
const LAST_CALL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The first pause after a connection could not be accepted, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// How many bytes, and how long, are read and dropped after the last answer, so that the client can read it.
const LINGER: (usize, Duration) = (16 << 20, Duration::from_secs(2));

/// Says who is served at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Whoever holds a job's token.
    App,
    /// The operator, too.
    Operator,
}

/// Says what becomes of a Unix socket's name when the daemon drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// It goes: whoever connects after that finds no daemon.
    Ours,
    /// It stays: somebody else listens on, for the daemon's next life.
    Held,
}

/// Is an open listener.
#[derive(Debug)]
pub(crate) enum Door {
    /// A TCP port; the operator is never served there.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener, Side, Name),
}

/// Says how patient the listeners are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// With a request's head.
    pub(crate) head: Duration,
    /// With a request's body.
    pub(crate) body: Duration,
    /// With calls under way when the daemon drains.
    pub(crate) drain: Duration,
}

impl Patience {
    /// Gives the bounds of [`limits`], divided: by 1 in ordinary life, by more in tests.
    pub(crate) fn divided(by: u32) -> Self {
        Self {
            head: limits::HEADER_TIMEOUT / by.max(1),
            body: limits::BODY_TIMEOUT / by.max(1),
            drain: limits::DRAIN / by.max(1),
        }
    }
}

/// Asks the running listeners for a TCP port on the loopback device.
type Asked = oneshot::Sender<Result<String, Refusal>>;

/// Opens a loopback port where something first needs one.
#[derive(Clone, Debug)]
pub(crate) struct Network(mpsc::Sender<Asked>);

impl Network {
    /// Makes the two ends.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Asked>) {
        let (sender, receiver) = mpsc::channel(16);
        (Self(sender), receiver)
    }

    /// Gives the URL at which plain HTTP clients reach the app listener; a port is opened the first time.
    ///
    /// # Errors
    /// `io_failed` where none can be had; `draining`.
    pub(crate) async fn url(&self) -> Result<String, Refusal> {
        let ends = || Refusal::new(Code::Draining, "the daemon is shutting down");
        let (reply, answer) = oneshot::channel();
        self.0.send(reply).await.map_err(|_| ends())?;
        answer.await.map_err(|_| ends())?
    }
}

/// Is what every connection is given.
#[derive(Clone)]
struct Hall {
    router: Router,
    app: App,
    apps: Arc<Semaphore>,
    operators: Arc<Semaphore>,
}

impl Hall {
    fn seats(&self, side: Side) -> &Arc<Semaphore> {
        match side {
            Side::App => &self.apps,
            Side::Operator => &self.operators,
        }
    }
}

/// Serves all listeners until the gateway drains or is poisoned; then finishes what is under way, within bounds.
///
/// # Limits
/// [`limits::CONNECTIONS`], or half of the descriptors that the system grants where that is less, so that calls can
/// still open files; [`limits::OPERATOR_CONNECTIONS`] beside them, so that jobs never keep the operator out.
pub(crate) async fn serve(app: App, doors: Vec<Door>, mut asked: mpsc::Receiver<Asked>) {
    let granted = crate::engine::daemon::health::descriptors() / 2;
    let most = limits::CONNECTIONS.min(granted).max(8);
    let hall = Hall {
        router: router(app.clone()),
        app: app.clone(),
        apps: Arc::new(Semaphore::new(most)),
        operators: Arc::new(Semaphore::new(limits::OPERATOR_CONNECTIONS)),
    };
    let mut loops = JoinSet::new();
    for door in doors {
        loops.spawn(accept(door, hall.clone()));
    }
    let mut phase = app.gateway.phase();
    loop {
        let reply = tokio::select! {
            _ = phase.wait_for(over) => break,
            reply = asked.recv() => match reply {
                Some(reply) => reply,
                None => break,
            },
        };
        let url = match app.face.url() {
            Some(url) => Ok(url),
            None => open_loopback(&app).await.map(|(listener, url)| {
                loops.spawn(accept(Door::Tcp(listener), hall.clone()));
                url
            }),
        };
        // Whoever asked may be gone; the port stays open for the next one.
        drop(reply.send(url));
    }
    // Whoever still asks is told that it is over.
    drop(asked);
    drop(phase.wait_for(over).await);
    let deadline = if *phase.borrow() == Phase::Poisoned {
        Duration::from_secs(1)
    } else {
        app.patience.drain
    };
    let all = |seats: usize| u32::try_from(seats).unwrap_or(u32::MAX);
    let done = async {
        while loops.join_next().await.is_some() {}
        drop(hall.apps.acquire_many(all(most)).await);
        drop(
            hall.operators
                .acquire_many(all(limits::OPERATOR_CONNECTIONS))
                .await,
        );
    };
    drop(tokio::time::timeout(deadline, done).await);
}

async fn open_loopback(app: &App) -> Result<(TcpListener, String), Refusal> {
    let fail =
        |e: std::io::Error| Refusal::new(Code::IoFailed, format!("no loopback port can be opened: {e}"));
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(fail)?;
    let url = format!("http://{}", listener.local_addr().map_err(fail)?);
    app.face.reached_at(&url)?;
    Ok((listener, url))
}

fn over(phase: &Phase) -> bool {
    matches!(phase, Phase::Draining | Phase::Poisoned)
}

/// Gives the pause after another connection could not be accepted.
fn pause(last: Option<Duration>) -> Duration {
    last.map_or(PAUSE.0, |last| (last * 2).min(PAUSE.1))
}

/// Accepts at one listener until the gateway drains or is poisoned.
async fn accept(door: Door, hall: Hall) {
    let side = match &door {
        Door::Tcp(_) => Side::App,
        Door::Unix(_, side, _) => *side,
    };
    let mut phase = hall.app.gateway.phase();
    let mut paused = None;
    loop {
        let permit = tokio::select! {
            permit = hall.seats(side).clone().acquire_owned() => permit,
            _ = phase.wait_for(over) => break,
        };
        let Ok(permit) = permit else { break };
        let accepted = tokio::select! {
            _ = phase.wait_for(over) => break,
            accepted = one(&door) => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                paused = None;
                tokio::spawn(connection(hall.clone(), peer, stream, permit));
            }
            // Out of descriptors or memory: the connection stays in the queue, and is asked for again, ever more slowly.
            Err(_) => {
                hall.app.gateway.counters.accept_errors.add();
                let long = pause(paused);
                paused = Some(long);
                drop(tokio::time::timeout(long, phase.wait_for(over)).await);
            }
        }
    }
    let poisoned = *phase.borrow() == Phase::Poisoned;
    if !poisoned && !matches!(&door, Door::Unix(_, _, Name::Held)) {
        drop(tokio::time::timeout(LAST_CALL.1, last_call(&door, side, &hall)).await);
    }
}

/// Answers whoever connected before the listener goes, or its name went. At one that somebody else holds, they wait for
/// the next life.
async fn last_call(door: &Door, side: Side, hall: &Hall) {
    while let Ok(Ok((stream, peer))) = tokio::time::timeout(LAST_CALL.0, one(door)).await {
        let Ok(permit) = hall.seats(side).clone().try_acquire_owned() else {
            return;
        };
        tokio::spawn(connection(hall.clone(), peer, stream, permit));
    }
}

async fn one(door: &Door) -> std::io::Result<(Stream, Peer)> {
    match door {
        Door::Tcp(listener) => {
            let (stream, from) = listener.accept().await?;
            drop(stream.set_nodelay(true));
            let peer = Peer::App { who: Who::Tcp(from) };
            Ok((Stream::Tcp(Arc::new(stream)), peer))
        }
        Door::Unix(listener, side, _) => {
            let (stream, _) = listener.accept().await?;
            let cred = stream.peer_cred().ok();
            let pid = cred.and_then(|cred| cred.pid());
            let pid = pid
                .and_then(|pid| u32::try_from(pid).ok())
                .filter(|pid| *pid != 0);
            let uid = cred.map(|cred| cred.uid());
            let peer = match side {
                Side::App => Peer::App {
                    who: Who::Process { pid, uid },
                },
                Side::Operator => Peer::Operator { pid, uid },
            };
            Ok((Stream::Unix(Arc::new(stream)), peer))
        }
    }
}

async fn connection(hall: Hall, peer: Peer, stream: Stream, permit: OwnedSemaphorePermit) {
    let mut phase = hall.app.gateway.phase();
    let (head, watched) = (hall.app.patience.head, stream.clone());
    let asked = Arc::new(AtomicBool::new(false));
    let first = asked.clone();
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let (router, app, caller) = (hall.router.clone(), hall.app.clone(), watched.clone());
        first.store(true, Ordering::Release);
        async move { Ok::<_, std::convert::Infallible>(answer(router, app, peer, caller, request).await) }
    });
    let io = TokioIo::new(WireGuard::new(stream.clone()));
    let mut connection = Box::pin(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head)
            // Whoever has said all that it wants to say may still wait for the answer.
            .half_close(true)
            .serve_connection(io, service),
    );
    let mut ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        _ = phase.wait_for(over) => None,
    };
    if ended.is_none() && !asked.load(Ordering::Acquire) {
        // hyper would close it unread; whoever has just connected is about to ask, and is told what to do.
        ended = tokio::time::timeout(LAST_CALL.0, connection.as_mut()).await.ok();
    }
    if ended.is_none() {
        connection.as_mut().graceful_shutdown();
        drop(connection.as_mut().await);
    }
    drop(connection);
    // What is left unread when a socket closes makes the system take back the answer that was sent.
    drop(tokio::time::timeout(LINGER.1, stream.drain(LINGER.0)).await);
    drop(permit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_after_a_failure_grows_and_is_bounded() {
        let pauses = std::iter::successors(Some(pause(None)), |last| Some(pause(Some(*last))));
        let pauses: Vec<Duration> = pauses.take(12).collect();
        assert_eq!(pauses[0], PAUSE.0);
        assert!(pauses.windows(2).all(|two| two[0] < two[1] || two[1] == PAUSE.1));
        assert_eq!(pauses.last(), Some(&PAUSE.1));
    }

    #[test]
    fn bounds_are_those_of_the_table_where_nobody_tests() {
        let patience = Patience::divided(1);
        assert_eq!(
            (patience.head, patience.body, patience.drain),
            (limits::HEADER_TIMEOUT, limits::BODY_TIMEOUT, limits::DRAIN)
        );
    }
}
