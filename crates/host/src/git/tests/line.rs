//! The line of our own waiters: served by age, whoever is stopped or killed in it.

use super::restore::no_residue;
use super::*;
use crate::git::lock::private_lock;
use crate::git::record::{Arrival, OwnerRecord};
use crate::git::repository::Repository;
use crate::git::seek::Seeker;
use crate::git::wait::acquire;
use crate::git::worktree::{self, Checked};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use semel_core::restore::{Counts, Observation};

/// Longer than any moment in which a busy machine keeps a process from going on.
const PATIENCE: Duration = Duration::from_secs(10);

struct Holds(PathBuf);

impl Witness for Holds {
    fn reached(&self, point: Point) {
        if point == Point::Taken {
            crate::daemon::hold(&self.0).unwrap();
        }
    }
}

/// The other half of the next test: one of those in the line.
#[test]
fn child_in_line() {
    let (Some(git), Some(worktree), Ok(tree), Some(took)) = (
        std::env::var_os("SEMEL_TEST_LINE_GIT"),
        std::env::var_os("SEMEL_TEST_LINE_WORKTREE"),
        std::env::var("SEMEL_TEST_LINE_TREE"),
        std::env::var_os("SEMEL_TEST_LINE_TOOK"),
    ) else {
        return;
    };
    let git = Git::at(Path::new(&git)).unwrap();
    let options = RestoreOptions {
        wait: Duration::from_secs(600),
        patience: PATIENCE,
        ..RestoreOptions::default()
    };
    let holds = Holds(PathBuf::from(took));
    restore_watched(&git, Path::new(&worktree), &tree, options, &cancel(), &holds).unwrap();
}

fn stands_in_line(lock: &Path, pid: u32) -> bool {
    let entries = std::fs::read_dir(lock.parent().unwrap()).unwrap();
    entries.filter_map(std::result::Result::ok).any(|entry| {
        let ours = entry
            .file_name()
            .to_string_lossy()
            .starts_with("index.lock.semel-");
        let record = std::fs::read(entry.path()).ok().filter(|_| ours);
        record.is_some_and(|bytes| OwnerRecord::parse(&bytes).is_some_and(|record| record.pid == pid))
    })
}

fn stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().starts_with('T')
}

#[test]
fn eight_in_line_are_served_in_the_order_in_which_they_came() {
    let git = gits().remove(0);
    let lab = Lab::new(&git);
    let (tree, lock) = lab.linked();
    std::fs::write(&lock, b"").unwrap();
    let took = |n: usize| lab.path(&format!("took-{n}"));
    let mut children: Vec<Ends> = Vec::new();
    for n in 0..8 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "git::tests::line::child_in_line"])
            .env("SEMEL_TEST_LINE_GIT", git.program())
            .env("SEMEL_TEST_LINE_WORKTREE", lab.path("wt"))
            .env("SEMEL_TEST_LINE_TREE", &tree)
            .env("SEMEL_TEST_LINE_TOOK", took(n))
            .stdout(Stdio::null());
        children.push(Ends(child.spawn().unwrap()));
        let pid = children[n].0.id();
        until("it stands in the line", || stands_in_line(&lock, pid));
    }
    let signal = |child: &Ends, signal| kill_process(Pid::from_child(&child.0), signal).unwrap();
    signal(&children[2], Signal::STOP);
    until("the third one is stopped", || stopped(children[2].0.id()));
    children[4].0.kill().unwrap();
    children[4].0.wait().unwrap();
    std::fs::remove_file(&lock).unwrap();
    let next = |expected: usize| {
        let taken = || (0..8).filter(|n| took(*n).exists()).collect::<Vec<_>>();
        until("somebody takes the lock", || !taken().is_empty());
        assert_eq!(taken(), [expected]);
        std::fs::remove_file(took(expected)).unwrap();
    };
    for n in [0, 1, 3, 5, 6, 7] {
        next(n);
        assert!(children[n].0.wait().unwrap().success());
    }
    signal(&children[2], Signal::CONT);
    next(2);
    assert!(children[2].0.wait().unwrap().success());
    assert!(!lock.exists());
    no_residue(&lock);
}

fn checked(lab: &Lab) -> Checked {
    let found = worktree::find(&lab.path("wt")).unwrap();
    let repo = Repository::at(&lab.git, found.clone(), &cancel()).unwrap();
    worktree::check(&found, &repo).unwrap()
}

fn at_once(at: &Checked) -> Result<()> {
    let options = RestoreOptions {
        wait: Duration::ZERO,
        patience: PATIENCE,
        ..RestoreOptions::default()
    };
    let lock = acquire(at, &options, &cancel(), &Nobody, &mut Counts::default())?;
    lock.sweep()?;
    lock.release()
}

#[test]
fn who_comes_later_does_not_jump_and_who_left_is_not_waited_for() {
    let lab = Lab::new(&gits().remove(0));
    let (_, lock) = lab.linked();
    let at = checked(&lab);
    let mut first = Seeker::new(&at, &Nobody).unwrap();
    assert!(matches!(first.look().unwrap(), Observation::Free(line) if line.others.is_empty()));
    let refused = at_once(&at).unwrap_err().into_refusal();
    assert_eq!(refused.code, Code::LockTimeout);
    assert!(refused.why.contains("first in the line"), "{}", refused.why);
    // The one that came later stands behind it, and is nobody to it.
    let mut second = Seeker::new(&at, &Nobody).unwrap();
    let Observation::Free(line) = second.look().unwrap() else {
        panic!("held")
    };
    assert!(line.others.iter().all(|other| *other < line.own) && line.others.len() == 1);
    assert!(matches!(first.take().unwrap(), Observation::Acquired));
    first.acquired().unwrap().release().unwrap();
    assert!(at_once(&at).is_err());
    drop(second);
    at_once(&at).unwrap();
    no_residue(&lock);
}

#[test]
fn who_stands_in_no_line_is_nobody() {
    let lab = Lab::new(&gits().remove(0));
    let (_, lock) = lab.linked();
    let at = checked(&lab);
    let put = |n: usize, edit: &dyn Fn(&mut OwnerRecord)| {
        let nonce = format!("{n:020}");
        let mut record = OwnerRecord::ours(&nonce).unwrap();
        record.arrived = Some(Arrival::now());
        edit(&mut record);
        let place = lock.with_file_name(private_lock(&nonce));
        std::fs::write(&place, record.bytes().unwrap()).unwrap();
        let file = OwnedFd::from(std::fs::File::open(&place).unwrap());
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        (file, place)
    };
    let lives = put(0, &|_| {});
    assert!(at_once(&at).is_err(), "a living one is waited for");
    // Its process is gone, by all that can be seen, once the flock is: another boot's number is nobody's here.
    drop(lives.0);
    at_once(&at).unwrap();
    std::fs::remove_file(&lives.1).unwrap();
    let others = [
        put(1, &|record| record.arrived = None),
        put(2, &|record| record.boot_id = "another".to_owned()),
        put(3, &|record| record.nonce = "9".repeat(20)),
        put(4, &|record| {
            if let Some(arrived) = &mut record.arrived {
                arrived.time_ns = "time:[1]".to_owned();
            }
        }),
    ];
    at_once(&at).unwrap();
    std::fs::write(
        lock.with_file_name(private_lock(&"5".repeat(20))),
        "no record, of whomever\n".repeat(4),
    )
    .unwrap();
    std::fs::write(lock.with_file_name("index.lock.semel-not-a-nonce"), "").unwrap();
    at_once(&at).unwrap();
    // A dead one is swept by the next owner.
    let (dead, place) = put(6, &|record| record.started += 1);
    assert!(at_once(&at).is_err());
    drop(dead);
    at_once(&at).unwrap();
    assert!(!place.exists());
    drop(others);
}
