//! By which hold of a job a request is made: of several, the last alone counts.
//!
//! That a process works on a job is the kernel's lock ([`semel_host::hold`]). What a process sent before it was killed may
//! still be under way when the next one has that lock. So a request says by which hold it is made: one by an earlier hold
//! is refused, and one by a new hold waits until what was begun by an earlier one is done.
//!
//! # Durability
//! None. A request does not outlive the daemon that it was sent to.

use semel_core::ids::JobId;
use semel_core::{Code, Refusal};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// The header of a request that is made by a hold.
pub(crate) const HEADER: &str = "semel-hold";

/// Names a hold of a job.
///
/// # Shape
/// `JOB NUMBER`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    job: JobId,
    number: u64,
}

impl Standing {
    /// Names the hold of a number.
    pub(crate) fn new(job: JobId, number: u64) -> Self {
        Self { job, number }
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `bad_input`.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let bad = || Refusal::new(Code::BadInput, "the hold is not JOB NUMBER").name(HEADER);
        let (job, number) = text.split_once(' ').ok_or_else(bad)?;
        let number = number.parse().map_err(|_| bad())?;
        Ok(Self::new(JobId::parse(job)?, number))
    }
}

impl core::fmt::Display for Standing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {}", self.job, self.number)
    }
}

/// Knows the last hold of each job.
#[derive(Debug, Default)]
pub(crate) struct Holds(Mutex<HashMap<JobId, Arc<RwLock<u64>>>>);

/// Keeps requests by a later hold waiting while one is carried out.
pub(crate) type Stands = OwnedRwLockReadGuard<u64>;

impl Holds {
    /// Lets a request by a hold begin.
    ///
    /// # Errors
    /// `replay_conflict`, reason `stale_generation`, where the job was taken over since.
    pub(crate) async fn begin(&self, by: &Standing) -> Result<Stands, Refusal> {
        let last = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(by.job.clone()).or_default().clone()
        };
        let known = last.clone().read_owned().await;
        if *known == by.number {
            return Ok(known);
        }
        by.not_before(*known)?;
        drop(known);
        // Whoever began by an earlier hold is waited for.
        let mut known = last.write_owned().await;
        by.not_before(*known)?;
        *known = by.number;
        Ok(OwnedRwLockWriteGuard::downgrade(known))
    }
}

impl Standing {
    fn not_before(&self, last: u64) -> Result<(), Refusal> {
        if self.number >= last {
            return Ok(());
        }
        let why = "another process has taken the job over";
        Err(Refusal::new(Code::ReplayConflict, why)
            .reason("stale_generation")
            .name(self.job.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn by(job: &str, number: u64) -> Standing {
        Standing::new(JobId::parse(job).unwrap(), number)
    }

    /// Looks once.
    fn now<T>(work: impl Future<Output = T>) -> Poll<T> {
        pin!(work).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn begun(holds: &Holds, by: &Standing) -> Result<Stands, Refusal> {
        match now(holds.begin(by)) {
            Poll::Ready(begun) => begun,
            Poll::Pending => panic!("{by} waits"),
        }
    }

    #[test]
    fn what_a_dead_process_sent_comes_too_late() {
        let holds = Holds::default();
        let (old, new) = (by("one", 3), by("one", 4));
        drop((begun(&holds, &old).unwrap(), begun(&holds, &old).unwrap()));
        drop(begun(&holds, &new).unwrap());
        let late = begun(&holds, &old).unwrap_err();
        assert_eq!(late.code, Code::ReplayConflict);
        assert_eq!(late.reason.as_deref(), Some("stale_generation"));
        drop(begun(&holds, &new).unwrap());
        // Each job by itself.
        drop(begun(&holds, &by("two", 1)).unwrap());
    }

    #[test]
    fn what_was_begun_is_waited_for() {
        let holds = Holds::default();
        let (old, new) = (by("one", 3), by("one", 4));
        let (first, second) = (begun(&holds, &old).unwrap(), begun(&holds, &old).unwrap());
        let mut takes = pin!(holds.begin(&new));
        let mut context = Context::from_waker(Waker::noop());
        assert!(takes.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(takes.as_mut().poll(&mut context).is_pending());
        // Nothing more begins by the old one meanwhile.
        let mut late = pin!(holds.begin(&old));
        assert!(late.as_mut().poll(&mut context).is_pending());
        drop(second);
        let Poll::Ready(Ok(stands)) = takes.as_mut().poll(&mut context) else {
            panic!("nobody is in its way");
        };
        drop(stands);
        let Poll::Ready(Err(refused)) = late.as_mut().poll(&mut context) else {
            panic!("it is too late");
        };
        assert_eq!(refused.code, Code::ReplayConflict);
    }

    #[test]
    fn a_header_says_job_and_number() {
        let standing = by("a-job", 1_790_000_000_000);
        assert_eq!(Standing::parse(&standing.to_string()).unwrap(), standing);
        for odd in ["", "a-job", "a-job x", "A 1", "a-job 1 2", " 1"] {
            assert_eq!(Standing::parse(odd).unwrap_err().code, Code::BadInput, "{odd}");
        }
    }
}
