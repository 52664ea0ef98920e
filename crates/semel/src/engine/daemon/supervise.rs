//! The daemon and its service manager: what it is told, the watchdog, and the listeners that it hands down.
//!
//! The watchdog proves that commits pass: its signs of life are sent by the journal's writer, right after a commit. A
//! thread of its own only sees to it that there is something to commit.

use crate::config::Supervisor;
use crate::engine::host;
use crate::wire::operator_socket;
use semel_core::{Code, Refusal};
use semel_host::supervisor::{Notifier, listeners};
use semel_store::SqliteJournal;
use semel_store::sqlite::OnCommit;
use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use semel_host::supervisor::Listener;

/// How many signs of life are sent in the time in which one is wanted.
const SIGNS: u32 = 4;

/// Is the service manager; without one, nobody is told anything.
#[derive(Clone, Debug)]
pub(crate) struct Manager(Option<Arc<Notifier>>);

/// Are the listeners that were handed down, by who is served there.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// For whoever holds a job's token.
    pub(crate) app: Vec<Listener>,
    /// The operator's.
    pub(crate) admin: Option<UnixListener>,
    /// For the probe process.
    pub(crate) probe: Option<TcpListener>,
}

/// Sends signs of life to the service manager.
#[derive(Clone, Debug)]
pub(crate) struct Watchdog {
    notifier: Arc<Notifier>,
    within: Duration,
    wedge: Option<PathBuf>,
}

impl Manager {
    /// Finds the service manager that started this process, if one did.
    ///
    /// # Errors
    /// `bad_config` where what it said has no sense.
    pub(crate) fn of(said: &Supervisor) -> Result<Self, Refusal> {
        let notifier = said.notify.as_deref().map(Notifier::new).transpose();
        Ok(Self(notifier.map_err(host)?.map(Arc::new)))
    }

    /// Tells it something, one assignment a line.
    pub(crate) fn say(&self, words: &str) {
        if let Some(notifier) = &self.0 {
            notifier.say(words);
        }
    }

    /// Gives the watchdog that it wants, if it wants one of this process. `wedge` is for tests: once there is such a
    /// file, the journal's writer stops.
    ///
    /// # Errors
    /// `bad_config` where the time is no number above zero.
    pub(crate) fn watchdog(
        &self,
        said: &Supervisor,
        wedge: Option<PathBuf>,
    ) -> Result<Option<Watchdog>, Refusal> {
        let number = |text: &OsStr| text.to_str()?.parse::<u64>().ok();
        let other = |pid: &OsStr| number(pid) != Some(u64::from(std::process::id()));
        let (Some(notifier), Some(micros)) = (&self.0, said.watchdog.as_deref()) else {
            return Ok(None);
        };
        if said.watchdog_pid.as_deref().is_some_and(other) {
            return Ok(None);
        }
        let micros = number(micros).filter(|micros| *micros > 0).ok_or_else(|| {
            Refusal::new(Code::BadConfig, "it is no number above zero").name("WATCHDOG_USEC")
        })?;
        Ok(Some(Watchdog {
            notifier: notifier.clone(),
            within: Duration::from_micros(micros),
            wedge,
        }))
    }
}

impl Watchdog {
    /// Gives what the writer does after each commit.
    pub(crate) fn on_commit(&self) -> OnCommit {
        let (notifier, wedge) = (self.notifier.clone(), self.wedge.clone());
        let apart = self.within / SIGNS;
        let last = Mutex::new(None::<Instant>);
        OnCommit(Arc::new(move || {
            while wedge.as_ref().is_some_and(|file| file.exists()) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.is_none_or(|last| last.elapsed() >= apart) {
                *last = Some(Instant::now());
                notifier.say("WATCHDOG=1");
            }
        }))
    }

    /// Sees to it that an idle journal commits now and then, as long as the journal is there.
    ///
    /// # Errors
    /// `io_failed` where no thread can be started.
    pub(crate) fn watch(&self, journal: &Arc<SqliteJournal>) -> Result<(), Refusal> {
        let (apart, journal) = (self.within / SIGNS, Arc::downgrade(journal));
        let ask = move || {
            while let Some(journal) = journal.upgrade() {
                // What comes of it is the manager's to judge: no commit, no sign of life.
                drop(journal.heartbeat(apart));
                drop(journal);
                std::thread::sleep(apart);
            }
        };
        std::thread::Builder::new()
            .name("semel-watchdog".to_owned())
            .spawn(ask)
            .map(drop)
            .map_err(|e| Refusal::new(Code::IoFailed, format!("the watchdog cannot be started: {e}")))
    }
}

/// Takes the listeners that a service manager handed down to this process: any number named `app`, one `admin`, one
/// `probe`.
///
/// # Errors
/// `bad_config` for another name, a second one, one of the wrong kind, or an `admin` that is not where commands look
/// for it.
pub(crate) fn given(said: &Supervisor, state: &Path) -> Result<Given, Refusal> {
    let taken = listeners(
        said.fds.as_deref(),
        said.fds_pid.as_deref(),
        said.fd_names.as_deref(),
    )
    .map_err(host)?;
    let mut given = Given::default();
    for (name, listener) in taken {
        let wrong = |why: &str| Err(Refusal::new(Code::BadConfig, why).name(&name));
        match (name.as_str(), listener) {
            ("app", listener) => given.app.push(listener),
            ("admin", Listener::Unix(listener, place)) if given.admin.is_none() => {
                if !place.is_some_and(|place| same_place(&place, &operator_socket(state))) {
                    return wrong("commands look for the operator's socket in the state root, as semel.sock");
                }
                given.admin = Some(listener);
            }
            ("probe", Listener::Tcp(listener)) if given.probe.is_none() => given.probe = Some(listener),
            ("admin", Listener::Tcp(_)) => return wrong("administration is taken over a Unix socket alone"),
            ("probe", Listener::Unix(..)) => return wrong("the probe listens on TCP"),
            ("admin" | "probe", _) => return wrong("there are two of them"),
            _ => return wrong("a listener is named app, admin or probe (FileDescriptorName=)"),
        }
    }
    Ok(given)
}

fn same_place(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| Some((path.parent()?.canonicalize().ok()?, path.file_name()?.to_owned()));
    whole(one).is_some() && whole(one) == whole(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(watchdog: &str, pid: Option<u32>) -> Supervisor {
        Supervisor {
            notify: Some("/nowhere/notify".into()),
            watchdog: Some(watchdog.into()),
            watchdog_pid: pid.map(|pid| pid.to_string().into()),
            ..Supervisor::default()
        }
    }

    #[test]
    fn a_watchdog_is_kept_for_whom_it_is_meant() {
        let of = |said: &Supervisor| Manager::of(said).unwrap().watchdog(said, None);
        let ours = of(&said("2000000", Some(std::process::id()))).unwrap();
        assert_eq!(ours.unwrap().within, Duration::from_secs(2));
        assert!(of(&said("2000000", None)).unwrap().is_some());
        assert!(of(&said("2000000", Some(1))).unwrap().is_none());
        assert!(of(&Supervisor::default()).unwrap().is_none());
        for wrong in ["0", "soon", "-1"] {
            assert_eq!(
                of(&said(wrong, None)).unwrap_err().code,
                Code::BadConfig,
                "{wrong}"
            );
        }
    }
}
