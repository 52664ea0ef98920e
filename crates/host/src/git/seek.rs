//! Seeking `index.lock`: the owner record stands ready in a private file that is renamed to the lock without replacing
//! anything; what is in the way is described, and where the machine says so, adopted in place. It does not decide.

use super::line;
use super::lock::{
    self, LOCK, Lock, Released, Shape, adopted_record, is_at, private_index, private_lock, read_record,
    records, write_all,
};
use super::place::LOOK;
use super::processes::Moment;
use super::record::{Arrival, OwnerRecord};
use super::stale;
use super::witness::{Point, Witness};
use super::worktree::Checked;
use crate::clock;
use crate::error::Result;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RenameFlags, Stat, fdatasync, flock, openat, renameat_with,
    unlinkat,
};
use rustix::io::Errno;
use semel_core::digest::to_hex;
use semel_core::path::shown;
use semel_core::restore::{
    Fact, Line, LockKind, LockOwner, Names, Observation, Provenance, Sight, Since, Ticket,
};
use semel_core::{Code, Refusal};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

/// A lock that is being sought: the record stands ready in a private file.
pub(super) struct Seeker<'a> {
    at: &'a Checked,
    points: &'a dyn Witness,
    nonce: String,
    /// Kept through every new nonce: it is the place in the line.
    arrived: Arrival,
    standing: Standing,
    file: Option<OwnedFd>,
    met: Option<Met>,
    /// The handle of the examination, with the flock on a lock that seems to have no owner.
    candidate: Option<OwnedFd>,
}

/// A lock in the way. The handle only keeps its inode, and counts as open for nobody.
struct Met {
    _pin: OwnedFd,
    shape: Shape,
    since: Moment,
    record: Option<OwnerRecord>,
}

/// Says where a seeker stands among those of ours that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// First, for as long as it waits.
    First,
    /// Behind others, or it is not known.
    Behind,
}

/// What is at the place of the lock.
enum Place {
    Free,
    Held(Sight),
    /// It changes while it is looked at.
    Moving,
}

/// A lock that was there, and was gone before it could be looked at.
const MOVING: Observation = Observation::Held(Sight {
    kind: LockKind::Regular,
    names: Names::One,
    owner: LockOwner::Ours,
    provenance: Provenance::Alive,
    since: Since::Now,
});

impl<'a> Seeker<'a> {
    pub(super) fn new(at: &'a Checked, points: &'a dyn Witness) -> Result<Self> {
        Ok(Self {
            at,
            points,
            nonce: to_hex(&clock::random::<10>()?),
            arrived: Arrival::now(),
            standing: Standing::Behind,
            file: None,
            met: None,
            candidate: None,
        })
    }

    /// Gives what the lock in the way looked like at the last look.
    pub(super) fn shape(&self) -> Option<Shape> {
        self.met.as_ref().map(|met| met.shape)
    }

    /// Gives when the lock in the way was met.
    pub(super) fn met_since(&self) -> Option<Moment> {
        self.met.as_ref().map(|met| met.since)
    }

    /// Gives the process that our own record names as the owner of the lock in the way.
    pub(super) fn owner(&self) -> Option<u32> {
        self.met
            .as_ref()
            .and_then(|met| met.record.as_ref())
            .map(|record| record.pid)
    }

    /// Says what is at the place of the lock, and where nothing is, who else waits. Where the record cannot be written,
    /// it says so.
    pub(super) fn look(&mut self) -> Result<Observation> {
        self.candidate = None;
        if self.file.is_none() {
            match self.prepare(&private_lock(&self.nonce))? {
                Ok(file) => self.file = Some(file),
                Err(errno) => return self.denied(errno),
            }
            self.points.reached(Point::Recorded);
        }
        // A lock that changes while it is looked at is looked at again, a bounded number of times.
        for _ in 0..16 {
            if self.standing == Standing::First
                && let Some(seen) = self.rename()?
            {
                return Ok(seen);
            }
            match (self.sight()?, self.standing) {
                (Place::Free, Standing::Behind) => return Ok(Observation::Free(self.line())),
                (Place::Held(sight), _) => {
                    // A lock in a git directory that was moved away is nobody's who works here.
                    self.at.still_there()?;
                    return Ok(Observation::Held(sight));
                }
                (Place::Free | Place::Moving, _) => {}
            }
        }
        Ok(MOVING)
    }

    /// Takes the lock, if it is free still.
    pub(super) fn take(&mut self) -> Result<Observation> {
        if let Some(seen) = self.rename()? {
            return Ok(seen);
        }
        // Somebody was faster. Should it be gone already, it moved: whoever waits for that is woken.
        Ok(match self.look()? {
            Observation::Free(_) => MOVING,
            seen => seen,
        })
    }

    /// Gives those of ours that wait, as they are now.
    pub(super) fn line(&self) -> Line {
        Line {
            own: Ticket {
                arrived_ns: self.arrived.boot_ns,
                nonce: self.nonce.clone(),
            },
            others: line::others(self.at, &self.nonce),
        }
    }

    pub(super) fn standing(&self) -> Standing {
        self.standing
    }

    /// Hears that nobody of ours is before it: it takes a free lock as soon as it is woken.
    pub(super) fn stand_first(&mut self) {
        self.standing = Standing::First;
    }

    /// Renames the private file to the lock; `None` where something is there.
    fn rename(&self) -> Result<Option<Observation>> {
        let (dir, name) = (&self.at.dir, private_lock(&self.nonce));
        match renameat_with(dir, &name, dir, LOCK, RenameFlags::NOREPLACE) {
            Ok(()) => {
                self.points.reached(Point::Taken);
                Ok(Some(Observation::Acquired))
            }
            Err(Errno::EXIST) => Ok(None),
            Err(errno) => self.denied(errno).map(Some),
        }
    }

    /// Says that no lock can be made. A full disk is no matter of the lock: room can be made, and then it goes on.
    fn denied(&self, errno: Errno) -> Result<Observation> {
        if errno == Errno::NOENT {
            // The git directory has no name any more: it was removed, or other ones stand in its place.
            self.at.still_there()?;
        }
        if !matches!(errno, Errno::NOSPC | Errno::DQUOT) {
            return Ok(Observation::Denied(errno.to_string()));
        }
        let why = format!("index.lock cannot be created: {errno}");
        let refusal = Refusal::new(Code::IoFailed, why).reason("disk_full");
        Err(refusal.name(shown(self.at.gitdir.as_os_str().as_bytes())).into())
    }

    fn prepare(&self, name: &str) -> Result<core::result::Result<OwnedFd, Errno>> {
        let mut record = OwnerRecord::ours(&self.nonce)?;
        record.arrived = Some(self.arrived.clone());
        let bytes = record.bytes()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&self.at.dir, name, flags, Mode::from_raw_mode(0o644)) {
            Ok(file) => file,
            Err(errno) => return Ok(Err(errno)),
        };
        let written = flock(&file, FlockOperation::NonBlockingLockExclusive)
            .and_then(|()| write_all(&file, &bytes))
            .and_then(|()| fdatasync(&file));
        if let Err(errno) = written {
            unlinkat(&self.at.dir, name, AtFlags::empty()).ok();
            return Ok(Err(errno));
        }
        Ok(Ok(file))
    }

    /// Describes what is at the place of the lock.
    fn sight(&mut self) -> Result<Place> {
        let (stat, kind, names, owner) = match lock::meet(self.at)? {
            lock::Met::Nothing => return Ok(Place::Free),
            lock::Met::Going => return Ok(Place::Moving),
            lock::Met::There {
                stat,
                kind,
                names,
                owner,
            } => (stat, kind, names, owner),
        };
        let mut sight = Sight {
            kind,
            names,
            owner,
            provenance: Provenance::Stranger,
            since: Since::Before,
        };
        if kind != LockKind::Regular {
            self.met = None;
            return Ok(Place::Held(sight));
        }
        if self.shape() != Some(Shape::of(&stat)) {
            sight.since = Since::Now;
            let Some(met) = self.meet(&stat) else {
                return Ok(Place::Moving);
            };
            self.met = Some(met);
        }
        sight.provenance = self.provenance();
        Ok(Place::Held(sight))
    }

    fn meet(&self, stat: &Stat) -> Option<Met> {
        let since = Moment::now();
        let pin = openat(&self.at.dir, LOCK, LOOK | OFlags::NOFOLLOW, Mode::empty()).ok()?;
        let shape = Shape::of(stat);
        if Shape::of_open(&pin) != Some(shape) {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let content = openat(&self.at.dir, LOCK, flags, Mode::empty()).ok();
        let content = content.filter(|file| Shape::of_open(file) == Some(shape));
        Some(Met {
            _pin: pin,
            shape,
            since,
            record: content.and_then(|file| read_record(&file)),
        })
    }

    /// Says what our records prove of the lock that was met.
    fn provenance(&self) -> Provenance {
        let Some(met) = &self.met else {
            return Provenance::Stranger;
        };
        match &met.record {
            Some(record) => match stale::open(self.at, &met.shape) {
                Some(file) => record.judge(&file),
                None => Provenance::Stranger,
            },
            None => self
                .adopter(&met.shape)
                .map_or(Provenance::Stranger, |(_, found)| found),
        }
    }

    /// Finds the restoration that adopted a stranger's lock, and says whether it lives.
    fn adopter(&self, shape: &Shape) -> Option<(OwnerRecord, Provenance)> {
        let mut found = records(self.at).into_iter().filter_map(|(file, record)| {
            let same = record.adopted.as_ref() == Some(shape);
            same.then(|| (record.judge(&file), record))
        });
        found.next().map(|(provenance, record)| (record, provenance))
    }

    /// Looks at all that can be known of the owner of the lock that was met.
    pub(super) fn examine(&mut self) -> Observation {
        let Some(met) = &self.met else {
            return Observation::Examined(semel_core::restore::Evidence {
                namespace: Fact::Holds,
                filesystem: Fact::Holds,
                alone: Fact::Doubted("it is gone".to_owned()),
                lease: Fact::Holds,
                scan: Fact::Holds,
                tied: Vec::new(),
            });
        };
        let (evidence, handle) = stale::examine(self.at, &met.shape, met.since);
        self.candidate = handle;
        Observation::Examined(evidence)
    }

    /// Takes the lock that was met over: the same inode, in place. The seeker comes back where it is not so any more.
    pub(super) fn adopt(mut self) -> Result<core::result::Result<(Lock<'a>, Observation), Self>> {
        let Some((shape, record)) = self.met.as_ref().map(|met| (met.shape, met.record.clone())) else {
            return Ok(Err(self));
        };
        let Some(record) = record else {
            return self.adopt_strangers(shape);
        };
        let Some(file) = stale::open(self.at, &shape) else {
            return Ok(Err(self));
        };
        self.points.reached(Point::Adopting);
        // A dead judgement leaves the flock with this handle: from here on nobody else can adopt.
        if record.judge(&file) != Provenance::Dead || !is_at(self.at, LOCK, &file) {
            return Ok(Err(self));
        }
        if self.file.take().is_some() {
            unlinkat(&self.at.dir, private_lock(&self.nonce), AtFlags::empty()).ok();
        }
        for name in [
            private_index(&record.nonce),
            private_index(&record.nonce) + ".lock",
        ] {
            unlinkat(&self.at.dir, name, AtFlags::empty()).ok();
        }
        Ok(Ok((self.lock(file, None), Observation::Adopted)))
    }

    /// Takes over a lock without a record in it: its owner is gone by all evidence, or it was adopted already by a
    /// restoration that is gone. Its content stays: should its owner live after all, it publishes its own index.
    fn adopt_strangers(
        mut self,
        shape: Shape,
    ) -> Result<core::result::Result<(Lock<'a>, Observation), Self>> {
        let examined = self.candidate.take();
        let came = if examined.is_some() {
            Observation::Recovered
        } else {
            Observation::Adopted
        };
        let Some(file) = examined.or_else(|| self.left_by_ours(&shape)) else {
            return Ok(Err(self));
        };
        let Some(beside) = self.write_beside(&shape)? else {
            return Ok(Err(self));
        };
        self.points.reached(Point::Adopting);
        // With the flock and nobody else's handle, what stands there is what was looked at, or it is not taken.
        let same = Shape::of_open(&file) == Some(shape) && is_at(self.at, LOCK, &file);
        if same && stale::lease(&file, stale::PATIENT) == Fact::Holds && is_at(self.at, LOCK, &file) {
            return Ok(Ok((self.lock(file, Some(beside)), came)));
        }
        unlinkat(&self.at.dir, adopted_record(&self.nonce), AtFlags::empty()).ok();
        self.nonce = to_hex(&clock::random::<10>()?);
        Ok(Err(self))
    }

    /// Opens a stranger's lock that a restoration which is gone had adopted, with its flock.
    fn left_by_ours(&self, shape: &Shape) -> Option<OwnedFd> {
        let (_, provenance) = self.adopter(shape)?;
        let file = stale::open(self.at, shape).filter(|_| provenance == Provenance::Dead)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(file)
    }

    /// Writes beside the lock that it is about to be adopted: who comes after us, should we die, knows it by that.
    fn write_beside(&mut self, shape: &Shape) -> Result<Option<OwnedFd>> {
        let (Some(file), name) = (self.file.take(), private_lock(&self.nonce)) else {
            return Ok(None);
        };
        let mut record = OwnerRecord::ours(&self.nonce)?;
        record.arrived = Some(self.arrived.clone());
        record.adopted = Some(*shape);
        let bytes = record.bytes()?;
        let beside = adopted_record(&self.nonce);
        let dir = &self.at.dir;
        // Longer than what it replaces, and written at once: nobody reads half of each.
        let written = rustix::io::pwrite(&file, &bytes, 0)
            .and_then(|n| if n == bytes.len() { Ok(()) } else { Err(Errno::IO) })
            .and_then(|()| fdatasync(&file))
            .and_then(|()| renameat_with(dir, &name, dir, &beside, RenameFlags::NOREPLACE));
        if written.is_ok() {
            return Ok(Some(file));
        }
        unlinkat(dir, &name, AtFlags::empty()).ok();
        self.nonce = to_hex(&clock::random::<10>()?);
        Ok(None)
    }

    fn lock(mut self, file: OwnedFd, beside: Option<OwnedFd>) -> Lock<'a> {
        self.points.reached(Point::Adopted);
        self.finished(file, beside)
    }

    fn finished(&mut self, file: OwnedFd, beside: Option<OwnedFd>) -> Lock<'a> {
        Lock {
            at: self.at,
            nonce: core::mem::take(&mut self.nonce),
            file: Arc::new(file),
            beside,
            points: self.points,
            released: Released::NotYet,
        }
    }

    /// Turns an acquired lock into one that can be released.
    pub(super) fn acquired(mut self) -> Result<Lock<'a>> {
        let file = self.file.take();
        let file = file.ok_or_else(|| Refusal::new(Code::Internal, "a lock without its file"))?;
        Ok(self.finished(file, None))
    }
}

impl Drop for Seeker<'_> {
    fn drop(&mut self) {
        if self.file.is_some() {
            unlinkat(&self.at.dir, private_lock(&self.nonce), AtFlags::empty()).ok();
        }
    }
}
