//! The spool of a bridge as it lives: one thread writes it, for all calls that come together at once.

use crate::engine::host;
use crate::limits;
use semel_core::ids::UnixMs;
use semel_core::mcp::spool::{Entry, Line, Memory, read};
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::daemon::{Keep, StateRoot};
use semel_host::spool::{Abandoned, Spool, abandoned};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// Is what a bridge remembers, as the requests and the writer share it.
pub(super) type Shared = Arc<Mutex<Memory>>;

/// Locks what a bridge remembers.
pub(super) fn remembered(shared: &Shared) -> std::sync::MutexGuard<'_, Memory> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Is something for the writer to do.
enum Job {
    /// Append, and say when it lies on the disk.
    Append(Vec<u8>, oneshot::Sender<Result<(), Refusal>>),
    /// Append; nobody waits for it.
    Note(Vec<u8>),
    /// End, and say so.
    End(oneshot::Sender<()>),
}

/// Is the way to the writer.
#[derive(Clone, Debug)]
pub(super) struct Writer(Sender<Job>);

fn gone() -> Refusal {
    Refusal::new(Code::IoFailed, "the writer of the spool has ended").reason("spool_failed")
}

impl Writer {
    /// Starts it.
    ///
    /// # Errors
    /// `io_failed` where there is no thread for it.
    pub(super) fn start(spool: Spool, shared: Shared) -> Result<Self, Refusal> {
        let (jobs, todo) = channel();
        std::thread::Builder::new()
            .name("spool".to_owned())
            .spawn(move || write(spool, &shared, &todo))
            .map_err(|e| Refusal::new(Code::IoFailed, format!("no thread for the spool: {e}")))?;
        Ok(Self(jobs))
    }

    /// Appends; what comes out ends when it lies on the disk, with all that was asked for before.
    ///
    /// # Errors
    /// `io_failed`, reason `spool_failed`: it is not known to lie there.
    pub(super) fn append(&self, bytes: Vec<u8>) -> impl Future<Output = Result<(), Refusal>> + use<> {
        let (tell, told) = oneshot::channel();
        let asked = self.0.send(Job::Append(bytes, tell));
        async move {
            asked.map_err(|_| gone())?;
            told.await.map_err(|_| gone())?
        }
    }

    /// Appends what nobody waits for: what is lost of it makes the next life remember more than it has to.
    pub(super) fn note(&self, bytes: Vec<u8>) {
        drop(self.0.send(Job::Note(bytes)));
    }

    /// Ends; where nothing is open, the file goes.
    pub(super) async fn end(&self) {
        let (tell, told) = oneshot::channel();
        if self.0.send(Job::End(tell)).is_ok() {
            drop(told.await);
        }
    }
}

/// Does what there is to do, all of it that is there at once.
fn write(mut spool: Spool, shared: &Shared, todo: &Receiver<Job>) {
    while let Ok(first) = todo.recv() {
        let (mut bytes, mut waiting, mut end) = (Vec::new(), Vec::new(), None);
        for job in std::iter::once(first).chain(todo.try_iter()) {
            match job {
                Job::Append(more, tell) => {
                    bytes.extend(more);
                    waiting.push(tell);
                }
                Job::Note(more) => bytes.extend(more),
                Job::End(tell) => end = Some(tell),
            }
        }
        let mut done = put(&mut spool, shared, &bytes);
        if done.is_ok() && !waiting.is_empty() {
            done = spool.settle().map_err(host);
        }
        let done = done.map_err(|refusal| refusal.reason("spool_failed"));
        for tell in waiting {
            drop(tell.send(done.clone()));
        }
        if let Some(tell) = end {
            // Whoever hears of the end may look for what is left at once; a locked spool is one that lives.
            if remembered(shared).is_empty() {
                drop(spool.remove());
            } else {
                drop(spool);
            }
            tell.send(()).ok();
            return;
        }
    }
}

/// Appends, or writes anew what is open: where the file grew long, and where an earlier write failed.
fn put(spool: &mut Spool, shared: &Shared, bytes: &[u8]) -> Result<(), Refusal> {
    if spool.is_whole() && spool.length() + bytes.len() as u64 <= limits::BRIDGE_SPOOL {
        return spool.append(bytes).map_err(host);
    }
    // Of what is appended here, what is open is remembered already.
    let open: Vec<Entry> = remembered(shared).open().cloned().collect();
    spool.replace(&lines(&open)?).map_err(host)
}

fn lines(open: &[Entry]) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    for entry in open {
        bytes.extend(Line::Spooled(Box::new(entry.clone())).encode()?);
    }
    Ok(bytes)
}

/// Makes a spool, and takes over what bridges left that live no more.
///
/// # Errors
/// `unknown_state`, reason `spool_damaged`; `io_failed`, `bad_config`.
///
/// # Durability
/// What is taken over lies in the new spool before it goes from the old one.
pub(super) fn open(
    root: &Arc<StateRoot>,
    mine: impl Fn(&Entry) -> bool,
    keep: Keep,
) -> Result<(Spool, Vec<Entry>), Refusal> {
    let mut left: Vec<Entry> = Vec::new();
    let mut emptied: Vec<(Abandoned, Vec<u8>)> = Vec::new();
    let mut found = abandoned(root).map_err(host)?;
    let beyond = found.len().saturating_sub(limits::BRIDGE_SPOOLS);
    for old in found.drain(..beyond) {
        old.leave(b"").map_err(host)?;
    }
    let now = clock::now();
    for mut old in found {
        let bytes = old.read(2 * limits::BRIDGE_SPOOL).map_err(host)?;
        if is_past(old.changed, now) {
            emptied.push((old, Vec::new()));
            continue;
        }
        let entries = read(&bytes).map_err(|refusal| {
            let place = root.path().join(old.name());
            refusal.name(place.display().to_string())
        })?;
        let all = entries.len();
        let (ours, others): (Vec<Entry>, Vec<Entry>) = entries.into_iter().partition(&mine);
        if ours.is_empty() && all > 0 {
            continue;
        }
        // A kill may have left one in two spools.
        left.retain(|known| ours.iter().all(|entry| entry.key != known.key));
        left.extend(ours);
        emptied.push((old, lines(&others)?));
    }
    // The oldest go where there are too many.
    left.drain(..left.len().saturating_sub(limits::BRIDGE_OPEN / 2));
    let name = clock::seed().map_err(host)?.uuid_v7();
    let spool = Spool::make(root.clone(), &name, &lines(&left)?, keep).map_err(host)?;
    for (old, others) in emptied {
        old.leave(&others).map_err(host)?;
    }
    Ok((spool, left))
}

fn is_past(changed: UnixMs, now: UnixMs) -> bool {
    let age = u128::from(now.0.saturating_sub(changed.0));
    age > limits::BRIDGE_KEPT.as_millis()
}

#[cfg(test)]
mod tests {
    use super::*;
    use semel_core::ids::{Generation, IdempotencyKey, Principal};
    use semel_core::mcp::spool::{InDoubt, Reach, Salt, Spelt};

    fn entry(key: &str, of: &str) -> Entry {
        let seed = clock::seed().unwrap();
        let reach = Reach {
            principal: Principal::parse(of).unwrap(),
            generation: Some(Generation::mint(seed)),
        };
        let spelt = Spelt::of(&serde_json::Map::new());
        let key = IdempotencyKey::parse(key).unwrap();
        Entry::new(&spelt, Salt::from_bytes([1; 16]), key, reach, "t", UnixMs(1))
    }

    fn root(dir: &tempfile::TempDir) -> Arc<StateRoot> {
        Arc::new(StateRoot::make(dir.path()).unwrap())
    }

    fn keys(entries: &[Entry]) -> Vec<&str> {
        entries.iter().map(|entry| entry.key.as_str()).collect()
    }

    #[test]
    fn what_bridges_left_is_taken_over_by_whom_it_concerns() {
        let dir = tempfile::tempdir().unwrap();
        let root = root(&dir);
        let of = |name: &'static str| move |entry: &Entry| entry.reach.principal.as_str() == name;
        let both = lines(&[entry("a1", "job:a"), entry("b1", "job:b")]).unwrap();
        drop(Spool::make(root.clone(), "old", &both, Keep::Synced).unwrap());
        // One that lives keeps what it has.
        let (alive, _) = open(&root, of("job:c"), Keep::Synced).unwrap();
        let (first, left) = open(&root, of("job:a"), Keep::Synced).unwrap();
        assert_eq!(keys(&left), ["a1"]);
        let (second, left) = open(&root, of("job:b"), Keep::Synced).unwrap();
        assert_eq!(keys(&left), ["b1"]);
        assert_eq!(root.names().unwrap().len(), 3, "the old one is gone");
        drop((alive, first, second));
        let (_, left) = open(&root, of("job:a"), Keep::Synced).unwrap();
        assert_eq!(keys(&left), ["a1"]);
        assert_eq!(root.names().unwrap().len(), 2, "empty ones go, others stay");
    }

    #[test]
    fn a_damaged_spool_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let root = root(&dir);
        let mut bytes = lines(&[entry("a1", "job:a"), entry("a2", "job:a")]).unwrap();
        bytes[12] ^= 1;
        drop(Spool::make(root.clone(), "old", &bytes, Keep::Synced).unwrap());
        let refused = open(&root, |_| true, Keep::Synced).map(drop).unwrap_err();
        assert_eq!(refused.reason.as_deref(), Some("spool_damaged"));
        assert!(
            refused.names.iter().any(|name| name.ends_with("old.spool")),
            "{refused:?}"
        );
    }

    #[tokio::test]
    async fn what_was_appended_is_there_in_the_next_life_and_an_empty_spool_goes() {
        let dir = tempfile::tempdir().unwrap();
        let root = root(&dir);
        let shared = Shared::default();
        let (spool, _) = open(&root, |_| true, Keep::Synced).unwrap();
        let writer = Writer::start(spool, shared.clone()).unwrap();
        let one = entry("a1", "job:a");
        remembered(&shared).add(one.clone(), 1);
        writer
            .append(lines(std::slice::from_ref(&one)).unwrap())
            .await
            .unwrap();
        writer.end().await;
        let (spool, left) = open(&root, |_| true, Keep::Synced).unwrap();
        assert_eq!(left, std::slice::from_ref(&one));
        let shared = Arc::new(Mutex::new(Memory::new(left)));
        let writer = Writer::start(spool, shared.clone()).unwrap();
        remembered(&shared).admit(
            &Spelt::of(&serde_json::Map::new()),
            1,
            Default::default(),
            InDoubt::Wait,
        );
        remembered(&shared).written(1);
        for key in remembered(&shared).heard() {
            writer.note(Line::Settled(key).encode().unwrap());
        }
        writer.end().await;
        assert!(root.names().unwrap().is_empty());
    }
}
