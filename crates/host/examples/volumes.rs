//! The driver of `bench/volumes`: makes, recycles and frees volumes, and prints what each took, one JSON object a line.
//!
//! `volumes STATE TREE ROUNDS`: TREE is a directory that becomes the sealed tree, and is copied for a plain directory.

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
use semel_host::volume::{MemorySize, On, Volumes};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

struct Bench {
    volumes: Volumes,
    tree: PathBuf,
    job: JobId,
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

    fn say(mut self, what: &str, backend: &str) {
        self.0.sort();
        let us = |of: Option<&Duration>| of.map_or(0.0, |took| took.as_secs_f64() * 1e6);
        println!(
            "{{\"what\":\"{what}\",\"backend\":\"{backend}\",\"n\":{},\"min_us\":{:.1},\"p50_us\":{:.1},\"max_us\":{:.1}}}",
            self.0.len(),
            us(self.0.first()),
            us(self.0.get(self.0.len() / 2)),
            us(self.0.last())
        );
    }
}

fn main() {
    let mut args = std::env::args_os().skip(1);
    let mut next = || args.next().expect("STATE TREE ROUNDS");
    let (state, tree) = (PathBuf::from(next()), PathBuf::from(next()));
    let rounds = next().to_str().and_then(|n| n.parse().ok()).expect("ROUNDS");
    let bench = Bench {
        volumes: Volumes::open(&state).unwrap(),
        tree,
        job: JobId::parse("bench").unwrap(),
    };
    let offers = bench.volumes.offers().unwrap();
    let missing = |backend| {
        offers
            .iter()
            .find(|offer| offer.backend == backend)
            .unwrap()
            .missing
            .clone()
    };
    bench.run("dir", 3.min(rounds), &mut || On::Dir);
    match missing(Backend::Tmpfs) {
        Some(why) => println!("{{\"skipped\":\"tmpfs\",\"why\":\"{why}\"}}"),
        None => bench.run("tmpfs", 3.min(rounds), &mut || {
            On::Tmpfs(MemorySize {
                bytes: 2 << 30,
                files: 1 << 20,
            })
        }),
    }
    match missing(Backend::Overlay) {
        Some(why) => println!("{{\"skipped\":\"overlay\",\"why\":\"{why}\"}}"),
        None => {
            let mut sealing = Took::default();
            sealing.add(|| drop(bench.sealed()));
            sealing.say("seal once", "overlay");
            bench.run("overlay", rounds, &mut || On::Overlay(bench.sealed()));
        }
    }
}

impl Bench {
    fn sealed(&self) -> semel_host::volume::Lower {
        let from: &Path = &self.tree;
        self.volumes
            .lower("bench", &mut |root| {
                copy_tree(from, root.handle()).map(|_| Vec::new())
            })
            .unwrap()
    }

    fn make(&self, on: &On) -> Generation {
        let generation = Generation::mint(clock::seed().unwrap());
        let nonce = clock::random().unwrap();
        let (volume, _) = self.volumes.create_on(&self.job, &generation, nonce, on).unwrap();
        if volume.backend() != Backend::Overlay {
            copy_tree(&self.tree, volume.tree().handle()).unwrap();
        }
        // A change or two, as an attempt leaves them.
        let tree = volume.tree_path();
        std::fs::write(tree.join("left.txt"), "left by an attempt\n").unwrap();
        generation
    }

    /// Recycles again and again: puts the old one aside, opens the next, and frees the old one behind that.
    fn run(&self, backend: &str, rounds: usize, on: &mut dyn FnMut() -> On) {
        let (mut made, mut aside, mut until, mut freed) = <(Took, Took, Took, Took)>::default();
        let mut old = made.add(|| self.make(&on()));
        for _ in 0..rounds {
            let since = Instant::now();
            let left = aside.add(|| self.volumes.put_aside(&self.job, &old).unwrap());
            let ground = on();
            old = made.add(|| self.make(&ground));
            until.0.push(since.elapsed());
            let reaped = freed.add(|| self.volumes.reap(&left).unwrap());
            assert!(reaped.kept.is_empty(), "{reaped:?}");
        }
        self.volumes.destroy(&self.job, &old).unwrap();
        made.say("generation, filled", backend);
        aside.say("put aside", backend);
        until.say("put aside and next generation, filled", backend);
        freed.say("free, behind", backend);
    }
}
