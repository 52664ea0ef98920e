//! Other servers of tools behind the gateway: which there are, what they list, and one request to one of them.
//!
//! A server is started when it is first needed, and again when it has ended, not too often. It does *not* know keys,
//! records or policies: whether a call may be sent is `gateway/forward`'s, and nothing is sent twice here.

mod child;
mod http;
mod link;
mod sse;

pub(crate) use link::{Came, Hears, Link, Wanted};

use crate::config::{Config, upstream::Upstream as Configured};
use crate::limits;
use semel_core::upstream::{Listed, Tool, UpstreamName, list, server_of};
use semel_core::{Code, Refusal};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Are the servers behind the gateway.
#[derive(Debug, Default)]
pub(crate) struct Upstreams(BTreeMap<UpstreamName, Arc<Upstream>>);

/// Is one of them.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// The operator's name for it.
    pub(crate) name: UpstreamName,
    /// What the operator says of it.
    pub(crate) configured: Configured,
    around: Around,
    life: tokio::sync::Mutex<Life>,
    listed: RwLock<Option<Arc<Listed>>>,
    /// It said that what it lists is another by now.
    stale: Arc<AtomicBool>,
}

/// Is what a program of it finds around it where the operator says nothing.
#[derive(Debug)]
struct Around {
    path: Vec<PathBuf>,
    home: PathBuf,
}

/// Is the life of a server, as far as it is known here.
#[derive(Debug, Default)]
struct Life {
    link: Option<Arc<Link>>,
    began: Option<Instant>,
    /// How often in a row it did not live long.
    short: u32,
    not_before: Option<Instant>,
}

/// Is a tool of a server, as far as it is known.
pub(crate) enum Found {
    /// It lists it.
    Listed(Tool),
    /// It lists no such tool.
    None,
    /// The server cannot be asked, and was not before.
    Unknown(Refusal),
}

impl Upstreams {
    /// Makes those of a configuration; none is started yet.
    pub(crate) fn of(config: &Config) -> Self {
        let made = config.upstreams.iter().map(|(name, configured)| {
            let upstream = Upstream {
                name: name.clone(),
                configured: configured.clone(),
                around: Around {
                    path: config.path.clone(),
                    home: config.state.join("upstream").join(name.as_str()),
                },
                life: tokio::sync::Mutex::default(),
                listed: RwLock::default(),
                stale: Arc::default(),
            };
            (name.clone(), Arc::new(upstream))
        });
        Self(made.collect())
    }

    /// Says whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Finds the server that a tool is of by its name here.
    pub(crate) fn of_tool(&self, exposed: &str) -> Option<&Arc<Upstream>> {
        self.0.get(&server_of(exposed)?)
    }

    /// Starts all of them, and waits for none; says of each that cannot be asked why.
    pub(crate) fn begin(&self, says: impl Fn(&str) + Clone + Send + 'static) {
        for upstream in self.0.values() {
            let (upstream, says) = (upstream.clone(), says.clone());
            tokio::spawn(async move {
                if let Err(refusal) = upstream.tools().await {
                    says(&format!("upstream {}: {}", upstream.name.as_str(), refusal.why));
                }
            });
        }
    }

    /// Ends all of them: programs are killed.
    pub(crate) async fn end(&self) {
        for upstream in self.0.values() {
            upstream.end().await;
        }
    }

    /// Lists the tools of all, in the order of their names here. A server that cannot be asked in time has what it listed
    /// last; one that never listed any is waited for longer, since an agent asks once, and then left out.
    pub(crate) async fn listed(&self) -> Vec<(String, Value)> {
        let asked: Vec<_> = self
            .0
            .values()
            .cloned()
            .map(|upstream| {
                tokio::spawn(async move {
                    let patience = match upstream.known() {
                        Some(_) => limits::UPSTREAM_LISTS,
                        None => limits::UPSTREAM_FIRST,
                    };
                    let asked = tokio::time::timeout(patience, upstream.tools()).await;
                    match asked {
                        Ok(Ok(listed)) => Some(listed),
                        Ok(Err(_)) | Err(_) => upstream.known(),
                    }
                })
            })
            .collect();
        let mut all = Vec::new();
        for one in asked {
            if let Ok(Some(listed)) = one.await {
                all.extend(
                    listed
                        .iter()
                        .map(|(name, tool)| (name.clone(), tool.described.clone())),
                );
            }
        }
        all
    }
}

impl Upstream {
    fn known(&self) -> Option<Arc<Listed>> {
        let listed = self.listed.read().unwrap_or_else(PoisonError::into_inner);
        listed.clone()
    }

    /// Finds a tool by its name here; the server is asked where it never was, or where it said that its list is another.
    pub(crate) async fn find(&self, exposed: &str) -> Found {
        let listed = match self.known().filter(|_| !self.stale.load(Ordering::Acquire)) {
            Some(listed) => Ok(listed),
            None => match self.tools().await {
                Err(refusal) => self.known().ok_or(refusal),
                listed => listed,
            },
        };
        match listed {
            Err(refusal) => Found::Unknown(refusal),
            Ok(listed) => listed.get(exposed).cloned().map_or(Found::None, Found::Listed),
        }
    }

    /// Lists its tools, as they are now.
    ///
    /// # Errors
    /// `io_failed`, reason `upstream_unavailable`.
    async fn tools(&self) -> Result<Arc<Listed>, Refusal> {
        if let Some(listed) = self.known().filter(|_| !self.stale.load(Ordering::Acquire)) {
            return Ok(listed);
        }
        let link = self.link().await?;
        self.stale.store(false, Ordering::Release);
        let told = link.tools().await.map_err(|why| {
            self.stale.store(true, Ordering::Release);
            self.unavailable(&why)
        })?;
        let listed = Arc::new(list(&self.name, &told));
        *self.listed.write().unwrap_or_else(PoisonError::into_inner) = Some(listed.clone());
        Ok(listed)
    }

    /// Gives a connection with it; it is started where it does not live.
    ///
    /// # Errors
    /// `io_failed`, reason `upstream_unavailable`, where it does not start, or may not yet be started again.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, Refusal> {
        let mut life = self.life.lock().await;
        if let Some(link) = life.link.take() {
            if link.lives() {
                life.link = Some(link.clone());
                return Ok(link);
            }
            // What it lists may be another after its end.
            self.stale.store(true, Ordering::Release);
            let long = life
                .began
                .is_some_and(|began| began.elapsed() >= limits::UPSTREAM_STEADY);
            life.ended(long);
        }
        if let Some(at) = life.not_before {
            let left = at.saturating_duration_since(Instant::now());
            if left > limits::UPSTREAM_START {
                return Err(self.unavailable("it ended too often, and is not started again yet"));
            }
            tokio::time::sleep(left).await;
        }
        let started = tokio::time::timeout(limits::UPSTREAM_START, self.start()).await;
        let why = match started {
            Ok(Ok(link)) => {
                let link = Arc::new(link);
                life.began = Some(Instant::now());
                life.link = Some(link.clone());
                return Ok(link);
            }
            Ok(Err(why)) => why,
            Err(_) => format!("it did not answer within {} s", limits::UPSTREAM_START.as_secs()),
        };
        life.ended(false);
        Err(self.unavailable(&why))
    }

    async fn start(&self) -> Result<Link, String> {
        link::start(
            &self.configured.way,
            &self.around.path,
            &self.around.home,
            &self.stale,
        )
        .await
    }

    /// Says that it cannot be asked.
    pub(crate) fn unavailable(&self, why: &str) -> Refusal {
        let why: String = why.chars().take(600).collect();
        self.refusal(format!(
            "the server behind the gateway cannot be asked: {why}; nothing was done"
        ))
    }

    /// Says that a call that reads, by the server's word, has no answer.
    pub(crate) fn gave_no_answer(&self, why: &str) -> Refusal {
        let why: String = why.chars().take(600).collect();
        self.refusal(format!(
            "the server behind the gateway may have had the call, which by its word only reads, and gave no answer: {why}; \
             it was not sent again"
        ))
    }

    fn refusal(&self, why: String) -> Refusal {
        Refusal::new(Code::IoFailed, why)
            .reason("upstream_unavailable")
            .name(self.name.as_str())
    }

    /// Kills it, if it is a program.
    async fn end(&self) {
        if let Some(link) = self.life.lock().await.link.take() {
            link.end();
        }
    }
}

impl Life {
    /// Hears that it ended, after a long life or a short one.
    fn ended(&mut self, long: bool) {
        self.short = if long { 1 } else { self.short.saturating_add(1) };
        // The first time it is started again at once.
        self.not_before = self.short.checked_sub(2).map(|n| Instant::now() + pause(n));
    }
}

/// Says how long is waited before it is started again.
fn pause(short: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(short.min(16));
    (Duration::from_millis(100) * doubled).min(limits::UPSTREAM_BACKOFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_and_is_bounded() {
        let mut life = Life::default();
        life.ended(false);
        assert_eq!(life.not_before, None, "the first time at once");
        life.ended(false);
        assert!(life.not_before.is_some());
        let pauses: Vec<Duration> = (0..20).map(pause).collect();
        assert!(pauses.windows(2).all(|two| two[0] <= two[1]));
        assert_eq!(pauses[0], Duration::from_millis(100));
        assert_eq!(pauses[19], limits::UPSTREAM_BACKOFF);
        life.ended(true);
        assert_eq!((life.short, life.not_before), (1, None));
    }
}
