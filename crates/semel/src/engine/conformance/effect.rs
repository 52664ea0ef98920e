//! Effects, counted by looking at the disk: a file that is put back each time it goes, a text that is written over each
//! time it appears.
//!
//! Whoever puts a file back is somebody else, who has every right to it: each time it goes again is one more effect,
//! whatever the target says. Two effects that nobody could see between count as one, so a count is never too high.

use crate::engine::trial::{Told, hands};
use semel_host::scratch::Scratch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long an effect is waited for that may never come.
const SOON: Duration = Duration::from_millis(250);

/// What somebody else has in a file.
pub(super) const OURS: &str = "of somebody else, and to stay";

/// Is a file that is watched.
#[derive(Debug)]
pub(super) struct Watched<'a> {
    files: &'a Scratch,
    /// Its name.
    pub(super) name: String,
    effect: Effect,
    seen: u32,
}

#[derive(Debug)]
enum Effect {
    Gone,
    Written(String),
}

impl<'a> Watched<'a> {
    /// Makes a file, to see it deleted.
    pub(super) fn deleted(files: &'a Scratch, name: String) -> Told<Self> {
        files.create_new(&name, OURS.as_bytes()).map_err(hands)?;
        Ok(Self::missing(files, name))
    }

    /// Watches a name where no file is yet.
    pub(super) fn missing(files: &'a Scratch, name: String) -> Self {
        Self {
            files,
            name,
            effect: Effect::Gone,
            seen: 0,
        }
    }

    /// Makes a file, to see a text written into it.
    pub(super) fn written(files: &'a Scratch, name: String, text: &str) -> Told<Self> {
        files.create_new(&name, OURS.as_bytes()).map_err(hands)?;
        Ok(Self {
            files,
            name,
            effect: Effect::Written(text.to_owned()),
            seen: 0,
        })
    }

    /// Makes the file of somebody else, where there is none.
    pub(super) fn put(&self) -> Told<()> {
        self.files
            .create_new(&self.name, OURS.as_bytes())
            .map(drop)
            .map_err(hands)
    }

    /// Looks once: an effect is counted, and undone by somebody else. Gives how many were seen since the last look.
    pub(super) fn look(&mut self) -> Told<u32> {
        let found = match &self.effect {
            Effect::Gone => {
                let gone = !self.files.exists(&self.name).map_err(hands)?;
                if gone {
                    self.put()?;
                }
                gone
            }
            Effect::Written(text) => {
                let now = self.files.read(&self.name).map_err(hands)?;
                let written = now.is_some_and(|now| now == text.as_bytes());
                if written {
                    let mine = format!("{}.mine", self.name);
                    self.files.write(&mine, OURS).map_err(hands)?;
                    self.files.rename(&mine, &self.name).map_err(hands)?;
                }
                written
            }
        };
        let seen = u32::from(found);
        self.seen += seen;
        Ok(seen)
    }

    /// Looks until an effect is seen, or it may be taken that none comes.
    pub(super) fn look_soon(&mut self) -> Told<()> {
        let began = Instant::now();
        while self.look()? == 0 && began.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Gives how many effects were seen in all.
    pub(super) fn seen(&self) -> u32 {
        self.seen
    }

    /// Looks again and again while something else is done.
    pub(super) fn during<T>(&mut self, done: impl FnOnce() -> T) -> Told<T> {
        let over = AtomicBool::new(false);
        let looking = &over;
        std::thread::scope(|scope| {
            let watch = scope.spawn(move || {
                while !looking.load(Ordering::Acquire) {
                    self.look()?;
                    std::thread::yield_now();
                }
                self.look().map(drop)
            });
            let result = done();
            over.store(true, Ordering::Release);
            let watched = watch.join().map_err(|_| "the watch broke".to_owned())?;
            watched.map(|()| result)
        })
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        // A directory that lives on is left as it was.
        self.files.remove(&self.name).ok();
    }
}
