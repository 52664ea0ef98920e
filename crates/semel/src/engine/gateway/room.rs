//! Whether there is room for another effect where the volumes lie.
//!
//! The journal watches its own filesystem; this is the other one. What is begun there must come to its end: a receipt
//! needs no space here, but a rename or a new directory may.

use crate::limits;
use semel_core::{Code, Refusal};
use semel_host::volume::{Space, Volumes};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer of the system is taken for true.
const TRUE_FOR: Duration = Duration::from_millis(100);

/// Watches the filesystem of the volumes; asks the system at most once in a while, however many calls come.
pub(crate) struct Room {
    volumes: Arc<Volumes>,
    seen: Seen,
    /// Held by whoever makes room; when nothing more was found to be freed.
    pub(super) making: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Seen(Mutex<Option<(Instant, Option<Space>)>>);

impl Seen {
    fn at(&self, now: Instant, ask: impl FnOnce() -> Option<Space>) -> Option<Space> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *seen {
            Some((then, space)) if now.saturating_duration_since(then) < TRUE_FOR => space,
            _ => {
                let space = ask();
                *seen = Some((now, space));
                space
            }
        }
    }

    fn anew(&self, ask: impl FnOnce() -> Option<Space>) -> Option<Space> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let space = ask();
        *seen = Some((Instant::now(), space));
        space
    }
}

impl Room {
    /// Begins to watch; nothing is asked yet.
    pub(crate) fn new(volumes: &Arc<Volumes>) -> Self {
        Self {
            volumes: volumes.clone(),
            seen: Seen::default(),
            making: Mutex::default(),
        }
    }

    /// Says whether there is room, whatever was seen a moment ago.
    pub(super) fn is_enough_now(&self) -> bool {
        !self.seen.anew(|| self.volumes.space().ok()).is_some_and(scarce)
    }

    /// Gives what is left; `None` where the system does not say.
    pub(crate) fn look(&self) -> Option<Space> {
        self.seen.at(Instant::now(), || self.volumes.space().ok())
    }

    /// Says whether something new may begin.
    ///
    /// # Errors
    /// `io_failed`, reason `disk_full`: nothing was begun, and the same key may be sent again once there is room.
    pub(crate) fn enough(&self) -> Result<(), Refusal> {
        // A disk that cannot be asked is left to tell by itself.
        match self.look() {
            Some(space) if scarce(space) => {
                let why = "the disk of the volumes is nearly full; nothing was begun";
                Err(Refusal::new(Code::IoFailed, why).reason("disk_full"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Says whether too little is left for anything new.
pub(in crate::engine) fn scarce(space: Space) -> bool {
    let files = |files: u64| files < limits::VOLUMES_FREE_FILES;
    space.bytes < limits::VOLUMES_FREE || space.files.is_some_and(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_asked_once_in_a_while() {
        let (seen, start) = (Seen::default(), Instant::now());
        let mut asked = 0;
        for millis in 0..1000 {
            let space = seen.at(start + Duration::from_millis(millis), || {
                asked += 1;
                Some(Space {
                    bytes: millis,
                    files: None,
                })
            });
            assert!(space.unwrap().bytes + 100 > millis, "no older than that");
        }
        assert_eq!(asked, 10);
    }

    #[test]
    fn what_is_seen_anew_is_seen_by_all() {
        let seen = Seen::default();
        let space = |bytes| Some(Space { bytes, files: None });
        let now = Instant::now() + Duration::from_millis(50);
        seen.at(now, || space(1));
        assert_eq!(seen.anew(|| space(2)), space(2));
        assert_eq!(seen.at(now, || space(3)), space(2));
    }

    #[test]
    fn bytes_and_files_are_both_counted() {
        let space = |bytes, files| Space { bytes, files };
        assert!(!scarce(space(
            limits::VOLUMES_FREE,
            Some(limits::VOLUMES_FREE_FILES)
        )));
        assert!(!scarce(space(limits::VOLUMES_FREE, None)));
        assert!(scarce(space(limits::VOLUMES_FREE - 1, None)));
        assert!(scarce(space(u64::MAX, Some(limits::VOLUMES_FREE_FILES - 1))));
    }
}
