//! The spool of a bridge as it lives: one thread writes it, for all calls that come together at once.

use crate::engine::host;
use crate::limits;
use semel_core::ids::{IdempotencyKey, UnixMs};
use semel_core::mcp::spool::{Entry, Line, Memory, read};
use semel_core::{Code, Refusal};
use semel_host::clock;
use semel_host::daemon::{Keep, StateRoot};
use semel_host::spool::{Abandoned, Alone, Spool, abandoned};
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
            if remembered(shared).open().next().is_none() {
                drop(spool.remove());
            } else {
                drop(spool);
            }
            tell.send(()).ok();
            return;
        }
    }
}

/// Appends, or writes anew what is open: where the file grew long, where an earlier write failed, and where somebody took the
/// file away.
fn put(spool: &mut Spool, shared: &Shared, bytes: &[u8]) -> Result<(), Refusal> {
    if spool.is_whole() && spool.is_named() && spool.length() + bytes.len() as u64 <= limits::BRIDGE_SPOOL {
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

/// Makes a spool, and reads what bridges left that live no more. It stays where it lies: several bridges whom it concerns
/// may begin at once, and whose client repeats a call is known only when it does.
///
/// # Errors
/// `unknown_state`, reason `spool_damaged`; `io_failed`, `bad_config`.
pub(super) fn open(
    root: &Arc<StateRoot>,
    mine: impl Fn(&Entry) -> bool,
    keep: Keep,
) -> Result<(Spool, Vec<Entry>), Refusal> {
    let alone = Alone::wait(root).map_err(host)?;
    let mut left: Vec<Entry> = Vec::new();
    let mut found = abandoned(root, &alone).map_err(host)?;
    let beyond = found.len().saturating_sub(limits::BRIDGE_SPOOLS);
    for old in found.drain(..beyond) {
        old.leave(b"").map_err(host)?;
    }
    let now = clock::now();
    for mut old in found {
        if is_past(old.changed, now) {
            old.leave(b"").map_err(host)?;
            continue;
        }
        let entries = entries(root, &mut old)?;
        if entries.is_empty() {
            old.leave(b"").map_err(host)?;
            continue;
        }
        // A kill may have left one in two spools.
        left.retain(|known| entries.iter().all(|entry| entry.key != known.key));
        left.extend(entries.into_iter().filter(&mine));
    }
    // The oldest are forgotten where there are too many.
    left.drain(..left.len().saturating_sub(limits::BRIDGE_OPEN / 2));
    let name = clock::seed().map_err(host)?.uuid_v7();
    let spool = Spool::make(root.clone(), &name, b"", keep).map_err(host)?;
    Ok((spool, left))
}

fn entries(root: &StateRoot, old: &mut Abandoned) -> Result<Vec<Entry>, Refusal> {
    let bytes = old.read(2 * limits::BRIDGE_SPOOL).map_err(host)?;
    read(&bytes).map_err(|refusal| {
        let place = root.path().join(old.name());
        refusal.name(place.display().to_string())
    })
}

/// Is an entry that an earlier life left, held so that no other bridge takes it.
pub(super) struct Claim {
    entry: Entry,
    /// Where it lies, each with what stays there.
    from: Vec<(Abandoned, Vec<u8>)>,
    _alone: Alone,
}

impl Claim {
    /// Takes hold of the entry of a key; `None` where another bridge was faster. It blocks.
    ///
    /// # Errors
    /// `unknown_state`, reason `spool_damaged`; `io_failed`.
    pub(super) fn of(root: &Arc<StateRoot>, key: &IdempotencyKey) -> Result<Option<Self>, Refusal> {
        let alone = Alone::wait(root).map_err(host)?;
        let (mut from, mut found) = (Vec::new(), None);
        for mut old in abandoned(root, &alone).map_err(host)? {
            let (claimed, others): (Vec<Entry>, Vec<Entry>) = entries(root, &mut old)?
                .into_iter()
                .partition(|entry| entry.key == *key);
            if let Some(entry) = claimed.into_iter().next() {
                from.push((old, lines(&others)?));
                found = Some(entry);
            }
        }
        Ok(found.map(|entry| Self {
            entry,
            from,
            _alone: alone,
        }))
    }

    /// Gives the line by which it lies in the spool of this life.
    pub(super) fn line(&self) -> Result<Vec<u8>, Refusal> {
        Line::Spooled(Box::new(self.entry.clone())).encode()
    }

    /// Takes it away from where it lay; that it lies in the spool of this life is known. It blocks.
    ///
    /// # Errors
    /// `io_failed`.
    pub(super) fn take_away(self) -> Result<(), Refusal> {
        for (old, others) in self.from {
            old.leave(&others).map_err(host)?;
        }
        Ok(())
    }
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
    fn what_bridges_left_is_claimed_once_by_whom_it_concerns() {
        let dir = tempfile::tempdir().unwrap();
        let root = root(&dir);
        let of = |name: &'static str| move |entry: &Entry| entry.reach.principal.as_str() == name;
        let (a1, a2) = (entry("a1", "job:a"), entry("a2", "job:a"));
        let all = lines(&[a1.clone(), entry("b1", "job:b"), a2]).unwrap();
        drop(Spool::make(root.clone(), "old", &all, Keep::Synced).unwrap());
        // One that lives keeps what it has.
        let (alive, _) = open(&root, of("job:c"), Keep::Synced).unwrap();
        let (mut first, left) = open(&root, of("job:a"), Keep::Synced).unwrap();
        assert_eq!(keys(&left), ["a1", "a2"]);
        let (second, left) = open(&root, of("job:a"), Keep::Synced).unwrap();
        assert_eq!(keys(&left), ["a1", "a2"], "whose they are is not known yet");
        let claim = Claim::of(&root, &a1.key).unwrap().unwrap();
        assert_eq!(claim.line().unwrap(), lines(std::slice::from_ref(&a1)).unwrap());
        first.append(&claim.line().unwrap()).unwrap();
        claim.take_away().unwrap();
        assert!(Claim::of(&root, &a1.key).unwrap().is_none(), "it has one owner");
        drop(second);
        let (third, left) = open(&root, of("job:a"), Keep::Synced).unwrap();
        assert_eq!(keys(&left), ["a2"]);
        drop((alive, first, third));
        let (_, left) = open(&root, of("job:b"), Keep::Synced).unwrap();
        assert_eq!(keys(&left), ["b1"]);
        let (_, mut left) = open(&root, of("job:a"), Keep::Synced).unwrap();
        left.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!(
            keys(&left),
            ["a1", "a2"],
            "what a dead one claimed is there again"
        );
        assert_eq!(root.names().unwrap().len(), 3, "empty ones go, others stay");
    }

    /// A kill between the two steps of a claim leaves an entry in two spools.
    #[test]
    fn what_lies_in_two_spools_is_claimed_from_both() {
        let dir = tempfile::tempdir().unwrap();
        let root = root(&dir);
        let one = entry("a1", "job:a");
        let bytes = lines(std::slice::from_ref(&one)).unwrap();
        for name in ["old", "older"] {
            drop(Spool::make(root.clone(), name, &bytes, Keep::Synced).unwrap());
        }
        let (_spool, left) = open(&root, |_| true, Keep::Synced).unwrap();
        assert_eq!(keys(&left), ["a1"]);
        Claim::of(&root, &one.key).unwrap().unwrap().take_away().unwrap();
        assert_eq!(root.names().unwrap().len(), 1);
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
        let claim = Claim::of(&root, &one.key).unwrap().unwrap();
        writer.append(claim.line().unwrap()).await.unwrap();
        claim.take_away().unwrap();
        remembered(&shared).claimed(&one.key);
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
