//! The wait for `index.lock`: it looks and acts as the machine ([`semel_core::restore`]) says, and tells who listens.

use super::lock::{Lock, waiting};
use super::processes::{Age, likely_owner};
use super::restore::RestoreOptions;
use super::seek::{Seeker, Standing};
use super::watch::Watch;
use super::witness::{Waiting, Witness};
use super::worktree::Checked;
use crate::clock;
use crate::error::Result;
use crate::process::Cancel;
use semel_core::restore::{Counts, Step, Wait};
use semel_core::{Code, Refusal};
use std::time::{Duration, Instant};

/// How long is waited before anybody asks who is waited for, and between two such questions.
const ASK_AFTER: Duration = Duration::from_secs(1);
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Waits for the lock.
pub(super) fn acquire<'a>(
    at: &'a Checked,
    options: &RestoreOptions,
    cancel: &Cancel,
    witness: &'a dyn Witness,
    counts: &mut Counts,
) -> Result<Lock<'a>> {
    let began = Instant::now();
    let mut seeker = Seeker::new(at, witness)?;
    let mut watch: Option<Watch> = None;
    let mut machine = Wait::new(options.wait, Duration::from_millis(50), options.stale);
    machine.set_patience(options.patience);
    let mut teller = Teller::new(options.wait);
    let mut observation = seeker.look()?;
    loop {
        let step = machine.next(began.elapsed(), &observation);
        *counts = machine.counts();
        match step {
            Step::Done => return seeker.acquired(),
            Step::Take => {
                observation = seeker.take()?;
                continue;
            }
            Step::Refuse(refusal) => return Err(refusal.into()),
            Step::Examine => {
                observation = seeker.examine();
                continue;
            }
            Step::Adopt => match seeker.adopt()? {
                Ok((lock, how)) => {
                    machine.next(began.elapsed(), &how);
                    *counts = machine.counts();
                    return Ok(lock);
                }
                Err(back) => seeker = back,
            },
            Step::Wait(until) => {
                if cancel.is_cancelled() {
                    let why = "cancelled while waiting for index.lock";
                    return Err(Refusal::new(Code::LockTimeout, why).reason("cancelled").into());
                }
                // Now, while there is time: who is first need not look at the line when the lock is let go.
                if seeker.standing() == Standing::Behind && machine.stands_first(&seeker.line()) {
                    seeker.stand_first();
                }
                match &watch {
                    Some(watch) => {
                        teller.tell(at, &seeker, began.elapsed(), witness);
                        watch.wait(began + until, cancel);
                    }
                    // Armed only now, and looked at again before the first sleep: nothing is missed in between.
                    None => {
                        let armed = Watch::new(&at.gitdir);
                        machine.set_poll(armed.net());
                        watch = Some(armed);
                    }
                }
            }
        }
        observation = seeker.look()?;
    }
}

/// Tells who is waited for, as far as can be seen.
struct Teller {
    bound: Duration,
    owner: Option<String>,
    ask: Duration,
}

impl Teller {
    fn new(bound: Duration) -> Self {
        Self {
            bound,
            owner: None,
            ask: ASK_AFTER,
        }
    }

    fn tell(&mut self, at: &Checked, seeker: &Seeker<'_>, waited: Duration, witness: &dyn Witness) {
        let (Some(shape), Some(met)) = (seeker.shape(), seeker.met_since()) else {
            return;
        };
        if waited >= self.ask {
            self.ask = waited + ASK_AGAIN;
            let changed = shape.changed();
            self.owner = match seeker.owner() {
                Some(pid) => Some(format!("semel restore (process {pid})")),
                None => likely_owner(at, &Age { changed, met }, &waiting(at)),
            };
        }
        let now = Duration::from_millis(clock::now().0);
        witness.waiting(&Waiting {
            waited,
            bound: self.bound,
            owner: self.owner.clone(),
            age: now.saturating_sub(shape.changed()),
        });
    }
}
