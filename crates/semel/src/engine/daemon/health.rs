//! The heartbeat: one file, written by the daemon once a second, read by the probe process; one way.

use super::mark;
use crate::engine::gateway::Gateway;
use crate::engine::host;
use crate::limits;
use crate::telemetry::{Heartbeat, JournalBeat};
use semel_core::ids::Incarnation;
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::daemon::{Keep, StateRoot, in_our_pid_namespace, read_small};
pub(crate) use semel_host::peer::{descriptors, hang_up, has_left};
use std::path::Path;

/// The name of the heartbeat beneath the state root.
pub(crate) const HEARTBEAT_FILE: &str = "run/heartbeat.json";

const HEARTBEAT_CAP: u64 = 64 << 10;

/// Writes one heartbeat. A journal that is poisoned poisons the gateway here, at the latest: one that fails while nobody
/// asks for anything is not left for the next call to find.
///
/// # Errors
/// `io_failed`.
pub(crate) fn beat(gateway: &Gateway, root: &StateRoot, incarnation: Incarnation) -> Result<(), Refusal> {
    let status = gateway.engine.journal.status();
    if let Err(error @ semel_store::Error::Poisoned { .. }) = &status {
        gateway.poison(&Refusal::new(Code::StoreUnavailable, error.to_string()));
    }
    let status = status.ok();
    let mut counted = gateway.counters.read();
    counted.unnoted += status.as_ref().map_or(0, |status| status.unnoted);
    let waits = gateway.lock_waits.list();
    let heartbeat = Heartbeat {
        at: clock::now().0,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        incarnation: incarnation.0,
        phase: *gateway.phase().borrow(),
        in_flight: gateway.in_flight() as u64,
        approvals_pending: gateway.approvals_pending(),
        answering: gateway.answering() as u64,
        journal: status.map(|status| JournalBeat {
            entries: status.entries,
            commits: status.commits,
            rows: status.rows,
            synced: status.synced_commits,
            queued: status.queued,
            busy_ms: status.busy_ms,
            running: status.running,
            unknown: status.unknown,
        }),
        lock_waits: waits.len() as u64,
        lock_waits_oldest_ms: waits.first().map_or(0, |wait| wait.waited_ms),
        free_bytes: gateway.room.look().map(|space| space.bytes),
        counted,
    };
    let bytes = serde_json::to_vec(&heartbeat).map_err(|e| Refusal::new(Code::Internal, e.to_string()))?;
    root.replace(HEARTBEAT_FILE, &bytes, Keep::Unsynced)
        .map_err(host)?;
    mark::write(&gateway.engine, root)
}

/// Reads the heartbeat, if the daemon is alive.
///
/// # Errors
/// `daemon_unreachable` where there is none, or it is older than the bound.
pub(crate) fn heartbeat(file: &Path) -> Result<Heartbeat, Refusal> {
    let dead = |why: String| Refusal::new(Code::DaemonUnreachable, why);
    let bytes = read_small(file, HEARTBEAT_CAP).map_err(|e| dead(e.to_string()))?;
    let heartbeat: Heartbeat = serde_json::from_slice(&bytes).map_err(|e| dead(e.to_string()))?;
    let age = clock::now().0.saturating_sub(heartbeat.at);
    if u128::from(age) > limits::HEARTBEAT_STALE.as_millis() {
        return Err(dead(format!("the last heartbeat is {age} ms old")));
    }
    Ok(heartbeat)
}

/// Makes an id for a request.
pub(crate) fn request_id() -> Option<String> {
    Some(clock::seed().ok()?.uuid_v7())
}

/// Says whether a peer lives outside of every sandbox.
pub(crate) fn outside_of_sandboxes(pid: u32) -> bool {
    in_our_pid_namespace(pid)
}
