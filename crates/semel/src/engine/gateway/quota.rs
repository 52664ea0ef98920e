//! How large drafts become: counted at each call, looked at now and then, since commands and agents write beside us.
//!
//! What calls keep for `undo` is in it, and goes first, the oldest before the others. A call that does not fit even then
//! is refused before it begins; a volume that is over its quota otherwise is ended, dirty.

use super::arguments::Args;
use super::mutation::Mutation;
use super::prepare::Ready;
use super::{Gateway, lock};
use crate::config::Quota;
use crate::engine::host;
use crate::limits;
use crate::telemetry::Phase;
use semel_core::backend::Backend;
use semel_core::ids::{FencingToken, Generation};
use semel_core::volume::Role;
use semel_core::{Code, Refusal};
use semel_host::Error;
use semel_host::files::{self, Prepared, Weight};
use semel_host::volume::Volume as Disk;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// By why a volume is dirty that was over its quota.
pub(crate) const REASON: &str = "quota_exceeded";

/// A look at the volumes takes at most this share of the time.
const SHARE: u32 = 20;

/// Knows how large volumes are, as far as it was looked.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<HashMap<Generation, Arc<Mutex<Size>>>>);

/// Is how large a volume was when it was looked at, with what calls added since.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    /// `None` before the first look.
    used: Option<Weight>,
    /// When a look found that nothing fits.
    full: Option<Instant>,
}

/// Says what a call can do that adds so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adding {
    Fits,
    Look,
    Refused,
}

impl Size {
    /// Counts what a call adds, if it is known to fit.
    fn add(&mut self, adds: Weight, most: Weight, now: Instant) -> Adding {
        let fresh = |full: Instant| now.saturating_duration_since(full) < limits::QUOTA_LOOK;
        match self.used.map(|used| used.plus(adds)) {
            Some(used) if used.fits(most) => {
                self.used = Some(used);
                Adding::Fits
            }
            Some(_) if self.full.is_some_and(fresh) => Adding::Refused,
            Some(_) | None => Adding::Look,
        }
    }
}

impl Ledger {
    fn of(&self, generation: &Generation) -> Arc<Mutex<Size>> {
        lock(&self.0).entry(generation.clone()).or_default().clone()
    }

    /// Forgets a volume that ended.
    pub(super) fn forget(&self, generation: &Generation) {
        lock(&self.0).remove(generation);
    }
}

/// Gives the bound as a weight; `None` where there is none.
fn most(quota: Quota) -> Option<Weight> {
    let bound = |said: Option<u64>| said.unwrap_or(u64::MAX);
    (quota != Quota::default()).then(|| Weight {
        bytes: bound(quota.volume_bytes),
        entries: bound(quota.volume_files),
    })
}

impl Gateway {
    /// Says whether what a call has staged fits into the quota of its volume; where it does not, pre-images are freed
    /// first. What adds nothing always fits. The caller holds the volume against `undo`.
    ///
    /// # Errors
    /// `quota_exceeded`; `io_failed` where the volume cannot be looked at.
    pub(super) fn fits(&self, mutation: &Mutation<'_>, ready: &Ready) -> Result<(), Refusal> {
        let adds = ready
            .effects
            .iter()
            .map(Prepared::stages)
            .fold(Weight::default(), Weight::plus);
        // What is put back was in the volume all the time; it is never held up, and frees nothing that it needs.
        let undoes = matches!(mutation.asked.understood.args, Args::Undo { .. });
        let Some(most) = most(self.engine.config.quota).filter(|_| !undoes) else {
            return Ok(());
        };
        let size = self.ledger.of(&mutation.asked.lease.generation);
        let mut size = lock(&size);
        if adds == Weight::default() {
            // What it removes may go: the next call that does not fit is worth another look.
            size.full = None;
            return Ok(());
        }
        match size.add(adds, most, Instant::now()) {
            Adding::Fits => return Ok(()),
            Adding::Refused => return Err(over(most)),
            Adding::Look => {}
        }
        // What is staged lies there already.
        let used = self.slimmed(&mutation.disk, most)?;
        if used.fits(most) {
            *size = Size {
                used: Some(used),
                full: None,
            };
            return Ok(());
        }
        *size = Size {
            used: Some(used.minus(adds)),
            full: Some(Instant::now()),
        };
        Err(over(most))
    }

    /// Looks how large a volume is, and frees what it has to of its pre-images.
    fn slimmed(&self, disk: &Disk, most: Weight) -> Result<Weight, Refusal> {
        let used = files::weigh(disk).map_err(host)?;
        if used.fits(most) {
            return Ok(used);
        }
        Ok(used.minus(self.evict_oldest(disk, used.minus(most))?))
    }

    /// Lists the drafts that are over their quota, after their pre-images are freed.
    fn over_quota(&self, most: Weight) -> Vec<(Generation, FencingToken)> {
        let mut over = Vec::new();
        for volume in self.open_volumes().unwrap_or_default() {
            // A volume that is held alone, or cannot be looked at, is looked at the next time.
            let Some(still) = (volume.role == Role::Draft)
                .then(|| self.still_now(&volume))
                .flatten()
            else {
                continue;
            };
            let size = self.ledger.of(&volume.generation);
            let mut size = lock(&size);
            let Ok(used) = self.slimmed(still.disk(), most) else {
                continue;
            };
            size.used = Some(used);
            if !used.fits(most) {
                over.push((volume.generation, volume.fencing_token));
            }
        }
        over
    }
}

/// Turns an error of a volume into what a caller is told: of a volume in memory, that it is full is its quota.
pub(super) fn full(disk: &Disk, error: Error) -> Refusal {
    match &error {
        Error::Io { source, .. }
            if disk.backend() == Backend::Tmpfs && source.kind() == std::io::ErrorKind::StorageFull =>
        {
            Refusal::new(
                Code::QuotaExceeded,
                "the volume lies in memory, and what it may hold is full",
            )
        }
        _ => host(error),
    }
}

fn over(most: Weight) -> Refusal {
    let bound = |of: u64, what: &str| (of < u64::MAX).then(|| format!("{of} {what}"));
    let bounds = [bound(most.bytes, "bytes"), bound(most.entries, "files")];
    let bounds: Vec<String> = bounds.into_iter().flatten().collect();
    let why = format!("the volume would hold more than {}", bounds.join(" or "));
    Refusal::new(Code::QuotaExceeded, why)
}

/// Looks after the space of the volumes until the daemon drains: frees what an earlier life left aside, makes room on a
/// disk that is nearly full, and ends volumes over their quota.
pub(crate) async fn keep(gateway: Arc<Gateway>) {
    let most = most(gateway.engine.config.quota);
    let mut phase = gateway.phase();
    let ends = |phase: &Phase| matches!(phase, Phase::Draining | Phase::Poisoned);
    drop(gateway.blocking(|gateway| gateway.free_what_is_left()).await);
    let mut next = Instant::now();
    loop {
        // Where there is nothing to be freed, calls are told so.
        drop(gateway.blocking(|gateway| gateway.open_for_effects()).await);
        if let Some(most) = most.filter(|_| Instant::now() >= next) {
            let since = Instant::now();
            let over = gateway.blocking(move |gateway| gateway.over_quota(most)).await;
            for (generation, fence) in over.unwrap_or_default() {
                if gateway.end_over_quota(generation, fence).await.is_ok() {
                    gateway.counters.over_quota.add();
                }
            }
            next = Instant::now() + pause(since.elapsed());
        }
        if tokio::time::timeout(limits::HEARTBEAT, phase.wait_for(ends))
            .await
            .is_ok()
        {
            return;
        }
    }
}

/// Says how long after a look that took so long the next one comes.
fn pause(took: Duration) -> Duration {
    took.saturating_mul(SHARE).max(limits::QUOTA_LOOK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(bytes: u64, entries: u64) -> Weight {
        Weight { bytes, entries }
    }

    #[test]
    fn it_is_looked_before_it_is_refused_and_not_too_often() {
        let (most, start) = (weight(100, 10), Instant::now());
        let mut size = Size::default();
        assert_eq!(
            size.add(weight(1, 1), most, start),
            Adding::Look,
            "nothing is known"
        );
        size.used = Some(weight(60, 5));
        assert_eq!(size.add(weight(40, 1), most, start), Adding::Fits);
        assert_eq!(size.used, Some(weight(100, 6)), "it is counted");
        assert_eq!(size.add(weight(0, 4), most, start), Adding::Fits);
        assert_eq!(
            size.add(weight(1, 0), most, start),
            Adding::Look,
            "too many bytes"
        );
        assert_eq!(
            size.add(weight(0, 1), most, start),
            Adding::Look,
            "too many files"
        );
        size.full = Some(start);
        let at = |ms| start + Duration::from_millis(ms);
        let look = u64::try_from(limits::QUOTA_LOOK.as_millis()).unwrap();
        assert_eq!(size.add(weight(1, 0), most, at(look - 1)), Adding::Refused);
        assert_eq!(size.add(weight(1, 0), most, at(look)), Adding::Look);
        assert_eq!(size.used, Some(weight(100, 10)), "what is refused counts nothing");
    }

    #[test]
    fn a_bound_that_is_not_said_is_none() {
        assert_eq!(most(Quota::default()), None);
        let bytes = Quota {
            volume_bytes: Some(5),
            volume_files: None,
        };
        assert_eq!(most(bytes), Some(weight(5, u64::MAX)));
        assert_eq!(
            over(weight(5, u64::MAX)).why,
            "the volume would hold more than 5 bytes"
        );
    }

    #[test]
    fn looking_takes_a_small_share_of_the_time() {
        assert_eq!(pause(Duration::ZERO), limits::QUOTA_LOOK);
        assert_eq!(pause(Duration::from_secs(9)), Duration::from_secs(180));
    }
}
