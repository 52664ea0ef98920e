//! Measures group commit: many threads begin and finish calls, in both durabilities, beside the disk's own speed.
//!
//! `group_commit DIR [SECONDS] [THREADS]`: DIR lies on the disk to be measured.

#![expect(clippy::print_stdout, reason = "it prints what it measures")]

use semel_core::Sha256;
use semel_core::ids::UnixMs;
use semel_core::volume::{Durability, Role, Volume};
use semel_store::conformance::sample;
use semel_store::sqlite::Options;
use semel_store::{Journal, OwnerLock, SqliteJournal};
use std::error::Error;
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let dir = args.next().ok_or("usage: group_commit DIR [SECONDS] [THREADS]")?;
    let mut number = |default: u64| match args.next() {
        None => Ok(default),
        Some(text) => text
            .to_str()
            .ok_or("not a number")?
            .parse()
            .map_err(|_| "not a number"),
    };
    let (seconds, threads) = (number(5)?, number(64)?);
    let dir = tempfile::tempdir_in(dir)?;
    let (time, threads) = (Duration::from_secs(seconds), usize::try_from(threads)?);
    println!(
        "{threads} threads, {seconds} s each, SQLite {}",
        rusqlite::version()
    );
    raw(dir.path(), time)?;
    for (name, durability) in [("process", Durability::Process), ("power", Durability::Power)] {
        let state = dir.path().join(name);
        std::fs::create_dir(&state)?;
        group(name, &state, durability, time, threads)?;
    }
    Ok(())
}

/// Overwrites 4 KiB of a file that has its size already, and waits for the disk each time.
fn raw(dir: &Path, time: Duration) -> Result<(), Box<dyn Error>> {
    let mut file = std::fs::File::create_new(dir.join("raw"))?;
    file.write_all(&[0; 1 << 20])?;
    file.sync_all()?;
    let (start, mut syncs) = (Instant::now(), 0_u64);
    while start.elapsed() < time {
        file.seek(std::io::SeekFrom::Start(syncs % 256 * 4096))?;
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        syncs += 1;
    }
    println!("disk     {:>8.0} fdatasync/s", per_second(syncs, start.elapsed()));
    Ok(())
}

fn group(
    name: &str,
    dir: &Path,
    durability: Durability,
    time: Duration,
    threads: usize,
) -> Result<(), Box<dyn Error>> {
    let options = Options {
        version: "bench".to_owned(),
        boot_id: "bench".to_owned(),
        policy_sha256: None,
        now: UnixMs(1),
        on_commit: None,
    };
    let journal = SqliteJournal::open(OwnerLock::take(dir)?, &options)?;
    let volume = sample::open(&journal, sample::new_volume("bench", Role::Draft, durability)?)?;
    let before = journal.status()?;
    let start = Instant::now();
    let work = |thread: usize| -> Result<Vec<Duration>, String> {
        let mut took = Vec::new();
        for n in 0_u64.. {
            let began = Instant::now();
            if start.elapsed() > time {
                break;
            }
            let intent = sample::intent(&volume, &format!("{thread}-{n}"), "src/main.rs")?;
            let receipt = sample::receipt(&intent);
            let id = intent.execution_id.clone();
            journal.begin(intent).map_err(|e| e.to_string())?;
            journal.finish(id, receipt).map_err(|e| e.to_string())?;
            took.push(began.elapsed());
        }
        Ok(took)
    };
    let mut took = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n))).collect();
        running
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err("a thread died".to_owned())))
            .collect::<Result<Vec<_>, String>>()
    })?
    .concat();
    let elapsed = start.elapsed();
    took.sort_unstable();
    let after = journal.status()?;
    let (commits, rows) = (after.commits - before.commits, after.rows - before.rows);
    let at = |part: usize| took.get(took.len() * part / 100).copied().unwrap_or_default();
    println!(
        "{name:<8} {:>8.0} commits/s  {:>8.0} rows/s  {:>5.1} rows/commit  {:>8.0} calls/s  {} synced  p50 {:?} p99 {:?}",
        per_second(commits, elapsed),
        per_second(rows, elapsed),
        per_second(rows, Duration::from_secs(commits.max(1))),
        per_second(rows / 2, elapsed),
        after.synced_commits - before.synced_commits,
        at(50),
        at(99),
    );
    replays(&journal, &volume, time, threads)?;
    let start = Instant::now();
    let report = journal.verify()?;
    println!(
        "         verified {} entries in {:?}, faults {:?}",
        report.entries,
        start.elapsed(),
        report.faults
    );
    Ok(())
}

/// Answers calls that are done already: a lease and a receipt, as each replay looks them up.
fn replays(
    journal: &SqliteJournal,
    volume: &Volume,
    time: Duration,
    threads: usize,
) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let token = Sha256::of(volume.generation.as_str().as_bytes());
    let work = |thread: usize| -> Result<u64, String> {
        let known = sample::intent(volume, &format!("{thread}-0"), "src/main.rs")?;
        let mut answers = 0;
        while start.elapsed() < time {
            let lease = journal.lease(token).map_err(|e| e.to_string())?;
            let prior = journal.prior(known.scope.clone(), known.key.clone());
            match (lease, prior.map_err(|e| e.to_string())?) {
                (Some(_), Some(_)) => answers += 1,
                other => return Err(format!("a receipt is missing: {other:?}")),
            }
        }
        Ok(answers)
    };
    let answers = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n))).collect();
        running
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err("a thread died".to_owned())))
            .sum::<Result<u64, String>>()
    })?;
    println!(
        "         {:>8.0} replays/s (lease and receipt)",
        per_second(answers, start.elapsed())
    );
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "these counts are far below 2^52")]
fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}
