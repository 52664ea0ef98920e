//! What the daemon says of itself: in memory for its status, and on disk for whoever looks for it.

use crate::engine::host;
use semel_core::Refusal;
use semel_host::daemon::{Keep, StateRoot, read_small};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Where the daemon says where it listens, below the state root; it goes when the daemon ends.
pub(super) const DAEMON_FILE: &str = "daemon.json";
/// Where agents were told that it listens; it stays, so that the next life listens there, too.
const REACHED_FILE: &str = "run/reached.json";
const CAP: u64 = 64 << 10;

/// Is what the daemon says of itself.
pub(crate) struct Face {
    root: Arc<StateRoot>,
    about: Mutex<Value>,
}

impl Face {
    /// Makes it; nothing is announced yet.
    pub(crate) fn new(root: Arc<StateRoot>, about: Value) -> Arc<Self> {
        Arc::new(Self {
            root,
            about: Mutex::new(about),
        })
    }

    /// Gives the whole.
    pub(crate) fn about(&self) -> Value {
        self.about.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives the URL at which plain HTTP clients reach the app listener, if there is one.
    pub(crate) fn url(&self) -> Option<String> {
        self.about()["url"].as_str().map(str::to_owned)
    }

    /// Says on disk where the daemon listens.
    ///
    /// # Errors
    /// `io_failed`.
    pub(crate) fn announce(&self) -> Result<(), Refusal> {
        let about = self.about();
        if let Some(url) = about["url"].as_str() {
            let place = json!({"url": url}).to_string();
            self.root
                .replace(REACHED_FILE, place.as_bytes(), Keep::Unsynced)
                .map_err(host)?;
        }
        self.root
            .replace(DAEMON_FILE, format!("{about}\n").as_bytes(), Keep::Unsynced)
            .map_err(host)
    }

    /// Says that plain HTTP clients reach the app listener at a URL from now on.
    ///
    /// # Errors
    /// `io_failed`.
    pub(crate) fn reached_at(&self, url: &str) -> Result<(), Refusal> {
        self.about.lock().unwrap_or_else(PoisonError::into_inner)["url"] = json!(url);
        self.announce()
    }
}

/// Gives the URL at which agents of an earlier life may still look for the daemon.
pub(crate) fn reached(state: &Path) -> Option<String> {
    let bytes = read_small(&state.join(REACHED_FILE), CAP).ok()?;
    let place: Value = serde_json::from_slice(&bytes).ok()?;
    place["url"].as_str().map(str::to_owned)
}

/// Reads what a running daemon, or one that was killed, says of itself.
pub(crate) fn announced(state: &Path) -> Option<Value> {
    let bytes = read_small(&state.join(DAEMON_FILE), CAP).ok()?;
    serde_json::from_slice(&bytes).ok()
}
