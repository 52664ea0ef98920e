//! Who waits for a lock now: told to the daemon by restorations while they wait, and forgotten when they fall silent.
//!
//! It is in memory alone, for people: nothing of it is journaled, and nothing is decided by it.

use crate::config::Config;
use crate::engine::daemon::admin::read;
use crate::limits;
use crate::wire::Link;
use semel_core::Refusal;
use semel_host::git::Waiting;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Tells of a wait through the admin API.
///
/// # Shape
/// `{"pid":71,"worktree":"/abs","waited_ms":1200,"bound_ms":60000,"age_ms":1500,"owner":"git (process 70)"}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LockWait {
    /// The process that waits.
    pub(crate) pid: u32,
    /// The worktree whose lock it is.
    pub(crate) worktree: String,
    /// For how long so far.
    pub(crate) waited_ms: u64,
    /// For how long at most.
    pub(crate) bound_ms: u64,
    /// How long ago the lock was changed last.
    pub(crate) age_ms: u64,
    /// Who holds it, as far as can be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
}

/// Holds the waits that the daemon was told of.
#[derive(Debug, Default)]
pub(crate) struct LockWaits(Mutex<BTreeMap<u32, (Instant, LockWait)>>);

impl LockWaits {
    /// Hears of a wait.
    ///
    /// # Errors
    /// `bad_input`; `too_many` past [`limits::LOCK_WAITS`].
    pub(crate) fn hear(&self, body: &[u8]) -> Result<Value, Refusal> {
        let wait: LockWait = read(body)?;
        let mut waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waits.retain(|_, (heard, _)| heard.elapsed() < limits::LOCK_WAIT_SILENT);
        if waits.len() >= limits::LOCK_WAITS && !waits.contains_key(&wait.pid) {
            let why = "the daemon knows of that many waits already";
            return Err(Refusal::new(semel_core::Code::TooMany, why));
        }
        waits.insert(wait.pid, (Instant::now(), wait));
        Ok(json!({"schema": "semel.lock_wait/v1", "heard": true}))
    }

    /// Lists those that wait, the longest first.
    pub(crate) fn list(&self) -> Vec<LockWait> {
        let waits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let alive = waits
            .values()
            .filter(|(heard, _)| heard.elapsed() < limits::LOCK_WAIT_SILENT);
        let mut all: Vec<LockWait> = alive.map(|(_, wait)| wait.clone()).collect();
        all.sort_by_key(|wait| std::cmp::Reverse(wait.waited_ms));
        all
    }
}

/// Tells a daemon, if one runs, of a wait: from a thread of its own, so that nobody waits longer for having told it.
pub(crate) struct Reporter {
    tell: Option<Sender<LockWait>>,
    thread: Option<JoinHandle<()>>,
    worktree: String,
    last: Mutex<Option<Instant>>,
}

impl Reporter {
    /// Begins; nothing is sent before somebody waits.
    pub(crate) fn begin(config: Arc<Config>, worktree: &Path) -> Self {
        let (tell, waits) = channel::<LockWait>();
        let thread = std::thread::Builder::new()
            .name("lock-waits".to_owned())
            .spawn(move || {
                let link = Link::telling(config);
                while let Ok(mut wait) = waits.recv() {
                    // What lay in the queue meanwhile is old.
                    loop {
                        match waits.recv_timeout(Duration::ZERO) {
                            Ok(newer) => wait = newer,
                            Err(RecvTimeoutError::Timeout) => break,
                            Err(RecvTimeoutError::Disconnected) => return,
                        }
                    }
                    let body = serde_json::to_vec(&wait).unwrap_or_default();
                    drop(link.admin("POST", "/v1/admin/lock-waits", body));
                }
            });
        let worktree = std::path::absolute(worktree).unwrap_or_else(|_| worktree.to_owned());
        Self {
            tell: thread.is_ok().then_some(tell),
            thread: thread.ok(),
            worktree: semel_core::path::shown(worktree.as_os_str().as_encoded_bytes()),
            last: Mutex::new(None),
        }
    }

    /// Tells of a wait, at most once a second.
    pub(crate) fn waiting(&self, waiting: &Waiting) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
            return;
        }
        *last = Some(Instant::now());
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if let Some(tell) = &self.tell {
            drop(tell.send(LockWait {
                pid: std::process::id(),
                worktree: self.worktree.clone(),
                waited_ms: ms(waiting.waited),
                bound_ms: ms(waiting.bound),
                age_ms: ms(waiting.age),
                owner: waiting.owner.clone(),
            }));
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        // What was not sent by now is of no use; the thread ends by itself, and nobody waits for it.
        drop(self.tell.take());
        drop(self.thread.take());
    }
}
