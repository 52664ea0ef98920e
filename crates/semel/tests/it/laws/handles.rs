//! An empty directory is removed while another program, which has it open, puts something into it: one of the two comes
//! first, and whoever was told that it is done has done it.

use crate::crash::lab::Chance;
use crate::harness::{Conn, Home, full, wait_until};
use serde_json::json;
use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Puts something into a directory by a handle on it, in one of four ways; the content says which.
fn put(handle: &std::fs::File, beside: &Path, n: usize) -> std::io::Result<()> {
    // What is opened by the name of a descriptor is reached by the descriptor, wherever the directory is by now.
    let place = PathBuf::from(format!("/proc/self/fd/{}/x", handle.as_raw_fd()));
    match n % 4 {
        0 => std::fs::write(place, format!("{n}")),
        1 => std::fs::create_dir(place),
        2 => std::fs::rename(beside, place),
        _ => std::fs::hard_link(beside, place),
    }
}

/// Says whether what was put is there.
fn there(dir: &Path, n: usize) -> bool {
    match n % 4 {
        1 => dir.join("x").is_dir(),
        _ => std::fs::read_to_string(dir.join("x")).is_ok_and(|content| content == format!("{n}")),
    }
}

/// When the writer begins after the call: it is late where it came too early, so that the two stay close.
struct Late(Duration);

impl Late {
    fn waits(&self, chance: &mut Chance) -> Duration {
        Duration::from_micros(chance.below(self.0.as_micros() as usize + 1) as u64)
    }

    fn hears(&mut self, put: bool) {
        self.0 = if put {
            self.0 * 5 / 4 + Duration::from_micros(20)
        } else {
            self.0 * 4 / 5
        };
    }
}

fn raced(durability: &str, rounds: usize) {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", durability);
    let (mut chance, mut late) = (Chance::new(), Late(Duration::ZERO));
    let (mut kept, mut removed) = (0, 0);
    let mut conn = daemon.conn();
    for n in 0..rounds {
        let (dir, beside) = (
            volume.tree.join(format!("d{n}")),
            volume.tree.join(format!("y{n}")),
        );
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(&beside, format!("{n}")).unwrap();
        let handle = std::fs::File::open(&dir).unwrap();
        let (arguments, waits) = (json!({"path": format!("d{n}")}), late.waits(&mut chance));
        let both = Barrier::new(2);
        let (put, reply) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                both.wait();
                let since = Instant::now();
                while since.elapsed() < waits {
                    std::hint::spin_loop();
                }
                put(&handle, &beside, n)
            });
            both.wait();
            let reply = conn.call(&volume, "delete_directory", &format!("k{n}"), &arguments);
            (writer.join().unwrap(), reply)
        });
        late.hears(put.is_ok());
        match put {
            Ok(()) => {
                assert!(
                    there(&dir, n),
                    "round {n}: an acknowledged write is lost: {}",
                    reply.body
                );
                assert_eq!(
                    (reply.code(), reply.reason()),
                    ("precondition_failed", "not_empty"),
                    "round {n}: {}",
                    reply.body
                );
                kept += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "round {n}: {error}");
                assert_eq!(
                    (reply.status, dir.exists()),
                    (200, false),
                    "round {n}: {}",
                    reply.body
                );
                removed += 1;
            }
        }
    }
    eprintln!(
        "{durability}, seed {}: {rounds} empty directories removed under a writer that has them open: {kept} writes \
         acknowledged, 0 lost, {removed} removed",
        chance.seed
    );
    assert!(kept > 0 && removed > 0, "the race was on");
}

#[test]
fn no_write_into_a_directory_that_is_removed_is_lost() {
    let rounds = if full() { 5_000 } else { 150 };
    raced("process", rounds);
    raced("power-best-effort", rounds);
}

/// At the last moment before the removal, too.
#[test]
fn a_directory_that_is_filled_at_the_last_moment_stays() {
    let home = Home::new();
    let held = home.path().join("held");
    let daemon = home.serve(&["--hold-at", &format!("target_seen={}", held.display())]);
    let volume = home.open("job", "process");
    let dir = volume.tree.join("d");
    std::fs::create_dir(&dir).unwrap();
    let handle = std::fs::File::open(&dir).unwrap();
    let reply = std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            let arguments = json!({"path": "d"});
            Conn::tcp(&daemon.url).call(&volume, "delete_directory", "k", &arguments)
        });
        assert!(wait_until(Duration::from_secs(60), || held.exists()));
        put(&handle, &dir, 0).unwrap();
        std::fs::remove_file(&held).unwrap();
        call.join().unwrap()
    });
    assert_eq!(
        (reply.code(), reply.reason()),
        ("precondition_failed", "not_empty")
    );
    assert!(there(&dir, 0));
}
