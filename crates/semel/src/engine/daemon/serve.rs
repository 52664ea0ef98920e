//! The running daemon behind the doors: its heartbeat, and when it ends.

use super::{face, health};
use crate::engine::gateway::Gateway;
use crate::limits;
use crate::telemetry::Phase;
use semel_core::ids::Incarnation;
use semel_core::{Code, Refusal};
use semel_host::daemon::{Companion, StateRoot, this_binary};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Starts the probe process on its listener; it dies with the thread that calls this.
///
/// # Errors
/// `io_failed`.
pub(crate) fn start_probe(state: &Path, listener: std::net::TcpListener) -> Result<Companion, Refusal> {
    let heartbeat = state.join(health::HEARTBEAT_FILE).into_os_string();
    let args = ["__probe".into(), "--heartbeat".into(), heartbeat];
    let binary = this_binary().map_err(crate::engine::host)?;
    Companion::spawn(&binary, &args, OwnedFd::from(listener)).map_err(crate::engine::host)
}

/// Takes back what was announced.
pub(crate) fn withdraw(root: &StateRoot) {
    drop(root.remove(face::DAEMON_FILE));
    drop(root.remove(health::HEARTBEAT_FILE));
}

/// Writes a heartbeat now and then, until the gateway goes. Where the state root was removed or moved away, nobody can reach the
/// daemon any more, and what it would write is nobody's: it ends.
pub(crate) async fn heartbeats(gateway: Arc<Gateway>, root: Arc<StateRoot>, incarnation: Incarnation) {
    let mut phase = gateway.phase();
    let mut gone = 0;
    loop {
        gone = if root.is_in_place() { 0 } else { gone + 1 };
        if gone > 1 {
            let why = "the state root is not where it was any more";
            let place = root.path().display().to_string();
            gateway.poison(&Refusal::new(Code::StoreUnavailable, why).name(place));
            return;
        }
        let (beating, dir) = (gateway.clone(), root.clone());
        // A heartbeat that cannot be written is as good as none: the probe sees that it is stale.
        drop(tokio::task::spawn_blocking(move || health::beat(&beating, &dir, incarnation)).await);
        drop(tokio::time::timeout(limits::HEARTBEAT, phase.changed()).await);
    }
}

/// Drains a transient daemon once nobody asked for anything for a while and no volume is held open.
pub(crate) async fn end_when_idle(gateway: Arc<Gateway>, idle: impl Fn() -> Duration + Send) {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        if idle() < limits::TRANSIENT_IDLE || gateway.in_flight() > 0 {
            continue;
        }
        let looking = gateway.clone();
        let held = tokio::task::spawn_blocking(move || looking.held_open()).await;
        if matches!(held, Ok(false)) && idle() >= limits::TRANSIENT_IDLE {
            gateway.enter(Phase::Draining);
            return;
        }
    }
}

/// Gives the refusal that a poisoned daemon ends with.
pub(crate) fn poisoned(gateway: &Gateway) -> Option<Refusal> {
    gateway.poisoned().map(|why| {
        Refusal::new(
            Code::StoreUnavailable,
            format!("the daemon ends, to recover when it is started again: {why}"),
        )
        .reason("poisoned")
    })
}
