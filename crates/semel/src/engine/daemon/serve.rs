//! The running daemon behind the doors: its heartbeat, and when it ends.

use super::health;
use crate::engine::gateway::Gateway;
use crate::limits;
use crate::telemetry::Phase;
use semel_core::ids::Incarnation;
use semel_core::{Code, Refusal};
use semel_host::daemon::{Companion, Keep, StateRoot, this_binary};
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The name of the file that says where the daemon listens.
/// Where the daemon says where it listens, below the state root.
pub(super) const DAEMON_FILE: &str = "daemon.json";

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

/// Says on disk where the daemon listens.
///
/// # Errors
/// `io_failed`.
pub(crate) fn announce(root: &StateRoot, about: &Value) -> Result<(), Refusal> {
    root.replace(DAEMON_FILE, format!("{about}\n").as_bytes(), Keep::Unsynced)
        .map_err(crate::engine::host)
}

/// Takes back what was announced.
pub(crate) fn withdraw(root: &StateRoot) {
    drop(root.remove(DAEMON_FILE));
    drop(root.remove(health::HEARTBEAT_FILE));
}

/// Reads where a daemon listens, if one has announced itself.
pub(crate) fn announced(state: &Path) -> Option<Value> {
    let bytes = semel_host::daemon::read_small(&state.join(DAEMON_FILE), 64 << 10).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Writes a heartbeat now and then, until the gateway goes.
pub(crate) async fn heartbeats(gateway: Arc<Gateway>, root: Arc<StateRoot>, incarnation: Incarnation) {
    let mut phase = gateway.phase();
    loop {
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
