//! Noise: which requests of nobody leave an entry in the journal, and which are only counted.
//!
//! Whoever has no token must not be able to fill the disk. This module does *not* know clocks, requests or the
//! journal: it gets the time, and says what is to be noted.

use crate::ids::UnixMs;

/// How long a window is.
const WINDOW_MS: u64 = 60_000;

/// Says what is to be noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// First, that so many left no note since the last such word; 0 says nothing.
    pub suppressed: u64,
    /// Then, how many of the requests at hand leave a note of their own: 1 or 0.
    pub own: u64,
}

/// Lets a few through in each minute, and counts the rest.
///
/// # Limits
/// In any minute at most `most` notes of their own, and one of how many there were besides.
#[derive(Clone, Debug)]
pub struct Sampler {
    most: u64,
    window: UnixMs,
    own: u64,
    suppressed: u64,
}

impl Sampler {
    /// Makes a sampler that has heard nothing.
    #[must_use]
    pub const fn new(most: u64) -> Self {
        Self {
            most,
            window: UnixMs(0),
            own: 0,
            suppressed: 0,
        }
    }

    /// Hears of a request.
    pub fn hear(&mut self, at: UnixMs) -> Noted {
        let suppressed = self.turn(at);
        let own = u64::from(self.own < self.most);
        self.own += own;
        self.suppressed += 1 - own;
        Noted { suppressed, own }
    }

    /// Hears that time went by.
    pub fn tick(&mut self, at: UnixMs) -> Noted {
        Noted {
            suppressed: self.turn(at),
            own: 0,
        }
    }

    /// Hears that nothing more will come.
    pub fn end(&mut self) -> Noted {
        Noted {
            suppressed: core::mem::take(&mut self.suppressed),
            own: 0,
        }
    }

    /// Begins a new window where the last one is over, or the clock was set back; gives what the last one suppressed.
    fn turn(&mut self, at: UnixMs) -> u64 {
        let over = at.0 >= self.window.0.saturating_add(WINDOW_MS) || at.0 < self.window.0;
        if !over {
            return 0;
        }
        self.window = at;
        self.own = 0;
        core::mem::take(&mut self.suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_few_are_noted_and_the_rest_is_counted() {
        let mut sampler = Sampler::new(3);
        let start = 1_790_000_000_000;
        let own: u64 = (0..1000).map(|n| sampler.hear(UnixMs(start + n)).own).sum();
        assert_eq!(own, 3);
        assert_eq!(sampler.tick(UnixMs(start + 59_999)), Noted::default());
        let told = sampler.tick(UnixMs(start + 60_000));
        assert_eq!(
            told,
            Noted {
                suppressed: 997,
                own: 0
            }
        );
        assert_eq!(
            sampler.tick(UnixMs(start + 120_000)),
            Noted::default(),
            "told once"
        );
        assert_eq!(
            sampler.hear(UnixMs(start + 120_001)),
            Noted {
                suppressed: 0,
                own: 1
            }
        );
        assert_eq!(sampler.end(), Noted::default());
    }

    proptest! {
        /// Whatever comes when: each is noted or counted, and no window has more than its share.
        #[test]
        fn nothing_is_lost_and_the_notes_are_bounded(steps in prop::collection::vec(0..30_000_u64, 1..400), most in 0..5_u64) {
            let mut sampler = Sampler::new(most);
            let (mut at, mut own, mut suppressed) = (1_790_000_000_000, 0, 0);
            let start = at;
            for step in &steps {
                at += step;
                let noted = sampler.hear(UnixMs(at));
                own += noted.own;
                suppressed += noted.suppressed;
            }
            suppressed += sampler.end().suppressed;
            prop_assert_eq!(own + suppressed, steps.len() as u64);
            let windows = (at - start) / WINDOW_MS + 1;
            prop_assert!(own <= windows * most, "{} notes in {} windows of {}", own, windows, most);
        }
    }
}
