//! The driver of `bench/volumes`: makes, recycles and frees volumes, and prints what each took, one JSON object a line.
//!
//! `volumes STATE SMALL LARGE ROUNDS`: two directories that become sealed trees, and are copied where there is no overlay.
//! Overlays over the two take turns, so that the mood of the disk falls on both.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench that fails has nothing to say"
)]

use semel_core::backend::Backend;
use semel_core::ids::{Generation, JobId};
use semel_host::clock;
use semel_host::copy::copy_tree;
use semel_host::volume::{Lower, MemorySize, On, Volumes};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

struct Bench {
    volumes: Volumes,
    job: JobId,
}

/// Is a tree of some size, with the volume of it that is there now.
struct Side {
    tree: PathBuf,
    name: &'static str,
    old: Option<Generation>,
    took: [Took; 4],
}

#[derive(Default)]
struct Took(Vec<Duration>);

impl Took {
    fn add<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let done = work();
        self.0.push(since.elapsed());
        done
    }

    fn say(mut self, what: &str, backend: &str, tree: &str) {
        self.0.sort();
        let us = |of: Option<&Duration>| of.map_or(0.0, |took| took.as_secs_f64() * 1e6);
        println!(
            "{{\"what\":\"{what}\",\"backend\":\"{backend}\",\"tree\":\"{tree}\",\"n\":{},\"min_us\":{:.1},\"p50_us\":{:.1},\"max_us\":{:.1}}}",
            self.0.len(),
            us(self.0.first()),
            us(self.0.get(self.0.len() / 2)),
            us(self.0.last())
        );
    }
}

fn main() {
    let mut args = std::env::args_os().skip(1);
    let mut next = || args.next().expect("STATE SMALL LARGE ROUNDS");
    let state = PathBuf::from(next());
    let trees = [("small", PathBuf::from(next())), ("large", PathBuf::from(next()))];
    let rounds: usize = next().to_str().and_then(|n| n.parse().ok()).expect("ROUNDS");
    let bench = Bench {
        volumes: Volumes::open(&state).unwrap(),
        job: JobId::parse("bench").unwrap(),
    };
    let offers = bench.volumes.offers().unwrap();
    for offer in offers {
        if let Some(why) = offer.missing {
            println!("{{\"skipped\":\"{}\",\"why\":\"{why}\"}}", offer.backend);
            continue;
        }
        let rounds = if offer.backend == Backend::Overlay {
            rounds
        } else {
            2
        };
        let mut sides = trees.clone().map(|(name, tree)| Side {
            tree,
            name,
            old: None,
            took: Default::default(),
        });
        if offer.backend == Backend::Overlay {
            for side in &sides {
                let mut sealing = Took::default();
                sealing.add(|| drop(bench.sealed(side)));
                sealing.say("seal, once for all generations", "overlay", side.name);
            }
        }
        for _ in 0..=rounds {
            for side in &mut sides {
                bench.turn(offer.backend, side);
            }
        }
        for side in sides {
            if let Some(old) = &side.old {
                bench.volumes.destroy(&bench.job, old).unwrap();
            }
            let names = [
                "generation, with its tree",
                "put aside",
                "put aside, then generation",
                "free, behind",
            ];
            for (took, what) in side.took.into_iter().zip(names) {
                took.say(what, offer.backend.wire(), side.name);
            }
        }
    }
}

impl Bench {
    fn sealed(&self, side: &Side) -> Lower {
        let from: &Path = &side.tree;
        self.volumes
            .lower(side.name, &mut |root| {
                copy_tree(from, root.handle()).map(|_| Vec::new())
            })
            .unwrap()
    }

    fn make(&self, backend: Backend, side: &Side) -> Generation {
        let on = match backend {
            Backend::Dir => On::Dir,
            Backend::Overlay => On::Overlay(self.sealed(side)),
            Backend::Tmpfs => On::Tmpfs(MemorySize {
                bytes: 2 << 30,
                files: 1 << 20,
            }),
        };
        let generation = Generation::mint(clock::seed().unwrap());
        let nonce = clock::random().unwrap();
        let (volume, _) = self
            .volumes
            .create_on(&self.job, &generation, nonce, &on)
            .unwrap();
        if volume.backend() != Backend::Overlay {
            copy_tree(&side.tree, volume.tree().handle()).unwrap();
        }
        generation
    }

    /// Recycles once: puts the old one aside, opens the next, and frees the old one behind that.
    fn turn(&self, backend: Backend, side: &mut Side) {
        let Some(old) = side.old.take() else {
            side.old = Some(self.make(backend, side));
            return;
        };
        let since = Instant::now();
        let left = side.took[1].add(|| self.volumes.put_aside(&self.job, &old).unwrap());
        let begun = Instant::now();
        let new = self.make(backend, side);
        side.took[0].0.push(begun.elapsed());
        side.took[2].0.push(since.elapsed());
        let reaped = side.took[3].add(|| self.volumes.reap(&left).unwrap());
        assert!(reaped.kept.is_empty(), "{reaped:?}");
        side.old = Some(new);
    }
}
