//! A process of its own that writes a journal, so that a test can kill it or take its disk away.

#![expect(
    clippy::disallowed_methods,
    reason = "a test kills real processes; host never runs here"
)]

use super::{open, options};
use crate::conformance::sample;
use crate::{Journal, OwnerLock, SqliteJournal};
use semel_core::volume::{Durability, Role};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DIR: &str = "SEMEL_STORE_CHILD_DIR";
const PART: &str = "SEMEL_STORE_CHILD_PART";

/// Makes the command that plays a part in a process of its own, behind `before` where that is not empty.
pub(super) fn command(before: &[&str], part: &str, dir: &Path) -> Command {
    let mut words: Vec<OsString> = before.iter().map(OsString::from).collect();
    words.push(std::env::current_exe().unwrap().into_os_string());
    words.extend(["--exact", "sqlite::tests::child::part", "--nocapture"].map(OsString::from));
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .env(DIR, dir)
        .env(PART, part)
        .stdin(Stdio::null());
    command
}

/// Says on standard error that a test could not run here.
pub(super) fn skipped(reason: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {reason}").unwrap();
}

/// Says whether a tool does what it is asked here.
pub(super) fn works(words: &[&str]) -> bool {
    Command::new(words[0])
        .args(&words[1..])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn say(line: &str) {
    // One write a line, so that a kill never cuts one.
    std::io::stdout()
        .write_all(format!("\n{line}\n").as_bytes())
        .unwrap();
}

/// Plays the part that the environment names; alone it has none.
#[test]
fn part() {
    let (Some(dir), Some(part)) = (std::env::var_os(DIR), std::env::var_os(PART)) else {
        return;
    };
    let dir = PathBuf::from(dir);
    match part.to_str().unwrap() {
        "write" => write(&dir, Durability::Process),
        "write-power" => write(&dir, Durability::Power),
        "until-poisoned" => until_poisoned(&dir),
        "count" => count(&dir),
        "full" => full(&dir),
        "full-behind" => full_behind(&dir),
        "full-start" => full_start(&dir),
        "no-descriptors" => no_descriptors(&dir),
        other => panic!("no such part: {other}"),
    }
}

/// Begins and finishes calls for ever; says each answer after it came.
fn write(dir: &Path, durability: Durability) {
    let journal = open(dir).unwrap();
    let job = format!("job-{}", journal.incarnation().0);
    let volume = sample::open(
        &journal,
        sample::new_volume(&job, Role::Draft, durability).unwrap(),
    )
    .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (journal, volume) = (&journal, &volume);
            scope.spawn(move || {
                for n in 0_u64.. {
                    let intent = sample::intent(volume, &format!("{thread}-{n}"), "a").unwrap();
                    let receipt = sample::receipt(&intent);
                    let id = intent.execution_id.clone();
                    journal.begin(intent).unwrap();
                    say(&format!("began {id}"));
                    journal.finish(id.clone(), receipt).unwrap();
                    say(&format!("finished {id}"));
                }
            });
        }
    });
}

/// Reads by every connection at once, and writes, while the process may open no more files.
fn no_descriptors(dir: &Path) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let journal = open(dir).unwrap();
    let granted = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        maximum: granted.maximum,
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let new = sample::new_volume("job-a", Role::Draft, Durability::Power).unwrap();
    let volume = sample::open(&journal, new).unwrap();
    let gate = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (journal, volume, gate) = (&journal, &volume, &gate);
            scope.spawn(move || {
                gate.wait();
                for n in 0..50 {
                    let intent = sample::intent(volume, &format!("{thread}-{n}"), "a").unwrap();
                    let (id, receipt) = (intent.execution_id.clone(), sample::receipt(&intent));
                    journal.begin(intent).unwrap();
                    journal.finish(id.clone(), receipt).unwrap();
                    assert!(journal.execution(id).unwrap().is_some());
                    assert!(!journal.volumes(None).unwrap().is_empty());
                }
            });
        }
    });
    let refused = journal.verify().unwrap_err().into_refusal();
    say(&format!("{} {:?}", refused.code, refused.reason));
    assert_eq!(journal.poisoned(), None);
    setrlimit(Resource::Nofile, granted).unwrap();
    let report = journal.verify().unwrap();
    say(&format!("{} entries, faults {:?}", report.entries, report.faults));
}

/// Writes durably until the disk fails; then every verb must say so.
fn until_poisoned(dir: &Path) {
    let journal = open(dir).unwrap();
    let volume = sample::open(
        &journal,
        sample::new_volume("job-a", Role::Draft, Durability::Power).unwrap(),
    );
    let Ok(volume) = volume else {
        say("too early");
        return;
    };
    let mut acked = 0;
    for n in 0..2000 {
        let intent = sample::intent(&volume, &format!("k{n}"), "a").unwrap();
        match journal.begin(intent.clone()) {
            Ok(_) => acked += 1,
            Err(e) => {
                say(&format!("failed {} {e}", e.code()));
                break;
            }
        }
    }
    say(&format!("acked {acked}"));
    let scope = sample::intent(&volume, "k", "a").unwrap().scope;
    let errors = [
        journal
            .begin(sample::intent(&volume, "new", "a").unwrap())
            .unwrap_err(),
        journal.prior(scope, sample::key("k0").unwrap()).unwrap_err(),
        journal.status().unwrap_err(),
        journal.heartbeat(std::time::Duration::from_secs(1)).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, crate::Error::Poisoned { .. }), "{error}");
    }
    say(&format!("poisoned {}", journal.poisoned().unwrap()));
}

/// Commits a hundred durable calls one by one, then a hundred that are not; marks the borders for a tracer.
fn count(dir: &Path) {
    for (name, durability) in [("power", Durability::Power), ("process", Durability::Process)] {
        let state = dir.join(name);
        std::fs::create_dir(&state).unwrap();
        let journal = SqliteJournal::open(OwnerLock::take(&state).unwrap(), &options()).unwrap();
        let new = sample::new_volume("job-a", Role::Draft, durability).unwrap();
        let volume = sample::open(&journal, new).unwrap();
        let before = journal.status().unwrap();
        let start = std::time::Instant::now();
        // A call that a tracer sees.
        drop(std::fs::metadata(dir.join(format!("{name}-begins"))));
        for n in 0..50 {
            let intent = sample::intent(&volume, &format!("k{n}"), "a").unwrap();
            journal.begin(intent.clone()).unwrap();
            journal
                .finish(intent.execution_id.clone(), sample::receipt(&intent))
                .unwrap();
        }
        drop(std::fs::metadata(dir.join(format!("{name}-ends"))));
        let after = journal.status().unwrap();
        say(&format!("{name} took_ms {}", start.elapsed().as_millis()));
        say(&format!("{name} commits {}", after.commits - before.commits));
    }
}

/// On a small disk: fills it, is refused what is new, and finishes what was begun.
fn full(dir: &Path) {
    let journal = open(dir).unwrap();
    let new = sample::new_volume("job-a", Role::Draft, Durability::Power).unwrap();
    let volume = sample::open(&journal, new).unwrap();
    let mut begun = Vec::new();
    for n in 0..40 {
        let intent = sample::intent(&volume, &format!("k{n}"), "a").unwrap();
        journal.begin(intent.clone()).unwrap();
        begun.push(intent);
    }
    let ballast = fill(dir);
    let refused = journal.begin(sample::intent(&volume, "new", "a").unwrap());
    let refusal = refused.unwrap_err().into_refusal();
    say(&format!("refused {} {:?}", refusal.code, refusal.reason));
    for intent in &begun {
        journal
            .finish(intent.execution_id.clone(), sample::receipt(intent))
            .unwrap();
    }
    let reserve = std::fs::metadata(dir.join("reserve")).unwrap().len();
    say(&format!("finished {} reserve {reserve}", begun.len()));
    ballast.set_len(0).unwrap();
    journal
        .begin(sample::intent(&volume, "new", "a").unwrap())
        .unwrap();
    let reserve = std::fs::metadata(dir.join("reserve")).unwrap().len();
    assert_eq!(journal.check().unwrap().faults, vec![]);
    say(&format!("begun again, reserve {reserve}"));
}

/// Takes all the room that there is.
fn fill(dir: &Path) -> std::fs::File {
    let mut ballast = std::fs::File::create(dir.join("ballast")).unwrap();
    while ballast.write_all(&[7; 1 << 16]).is_ok() {}
    while ballast.write_all(&[7; 4096]).is_ok() {}
    ballast
}

/// On a small disk: fills it between a commit and the sync behind it, which finds no room.
fn full_behind(dir: &Path) {
    let journal = open(dir).unwrap();
    let new = sample::new_volume("job-a", Role::Draft, Durability::Process).unwrap();
    let volume = sample::open(&journal, new).unwrap();
    let reserve = || std::fs::metadata(dir.join("reserve")).unwrap().len();
    let mut begun = Vec::new();
    // A machine that is busy may sync before the disk is full: then it is tried anew.
    for n in 0..20 {
        let intent = sample::intent(&volume, &format!("k{n}"), "a").unwrap();
        journal.begin(intent.clone()).unwrap();
        begun.push(intent);
        let ballast = fill(dir);
        let until = std::time::Instant::now() + 4 * crate::sqlite::writer::SYNC_WITHIN;
        while reserve() > 0 && journal.poisoned().is_none() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        if reserve() == 0 || journal.poisoned().is_some() {
            break;
        }
        ballast.set_len(0).unwrap();
    }
    say(&format!(
        "reserve {} poisoned {:?}",
        reserve(),
        journal.poisoned()
    ));
    for intent in &begun {
        journal
            .finish(intent.execution_id.clone(), sample::receipt(intent))
            .unwrap();
    }
    assert_eq!(journal.check().unwrap().faults, vec![]);
    say(&format!("finished, open {}", journal.open_calls().unwrap().len()));
}

/// On a small disk that is full: opens the journal again, where the log and its index need room.
fn full_start(dir: &Path) {
    let journal = open(dir).unwrap();
    let new = sample::new_volume("job-a", Role::Draft, Durability::Process).unwrap();
    let volume = sample::open(&journal, new).unwrap();
    let intent = sample::intent(&volume, "k", "a").unwrap();
    journal.begin(intent.clone()).unwrap();
    drop(journal);
    // What a sound end left of them is empty.
    for beside in ["journal.db-wal", "journal.db-shm"] {
        drop(std::fs::remove_file(dir.join(beside)));
    }
    drop(fill(dir));
    let journal = open(dir).unwrap();
    journal
        .finish(intent.execution_id.clone(), sample::receipt(&intent))
        .unwrap();
    say(&format!("opened, open {}", journal.open_calls().unwrap().len()));
}
