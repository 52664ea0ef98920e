//! The same proof on other filesystems than the machine's own, one of them without the flags of `renameat2`.

use super::abort::{Kills, taken_back};
use super::lab::{Lab, plainly};
use super::strace::{fail_at_every_call, kill_at_every_call, kill_recovery_at_every_call};
use super::tools;
use crate::harness::{Home, Mount, Mounted, Share, full, skipped};
use serde_json::json;

/// An ordinary run makes every so many-th trial; what is here differs little from the machine's own filesystem, where it
/// makes them all.
const EVERY: usize = 17;

/// Kills every tool once at every point, or at so many of them.
fn reduced(mount: &Mount, name: &str, durability: &str, mut share: Share) {
    let mut lab = Lab::at(Home::within(&mount.at), durability, plainly());
    for case in tools::all() {
        let before = lab.trials;
        for at in lab.points_of(case) {
            if share.takes() {
                lab.trial(case, &at, None);
            }
        }
        // The next case learns its points from a daemon that has nothing to recover.
        if lab.trials > before {
            lab.settle();
        }
    }
    eprintln!("{name}, {durability}: {} trials, 0 lost, 0 double", lab.trials);
    lab.end();
}

/// Runs on a mount, or says why it cannot be had.
fn on(mounted: Mounted, name: &str, test: impl FnOnce(&Mount)) {
    match mounted {
        Ok(mount) => test(&mount),
        Err(why) => skipped(&format!("{name} cannot be had here: {why}")),
    }
}

/// A filesystem that cannot keep what `power` promises refuses it, by name.
fn power_is_refused(mount: &Mount, reason: &str) {
    let home = Home::within(&mount.at);
    let _daemon = home.serve(&[]);
    let wanted = json!({"job": "job", "durability": "power"});
    let refused = home.admin("POST", "/v1/admin/volumes", &wanted);
    assert_eq!(
        (refused.code(), refused.reason()),
        ("durability_unavailable", reason),
        "{}",
        refused.body
    );
}

#[test]
fn on_ext4_with_a_journal() {
    on(Mount::ext4(), "ext4", |mount| {
        reduced(mount, "ext4", "process", Share::of(EVERY));
        reduced(mount, "ext4", "power", Share::of(EVERY));
    });
}

#[test]
fn on_xfs() {
    on(Mount::xfs(), "xfs", |mount| {
        reduced(mount, "xfs", "process", Share::of(EVERY));
        reduced(mount, "xfs", "power", Share::of(EVERY));
    });
}

#[test]
fn on_tmpfs() {
    on(Mount::tmpfs(), "tmpfs", |mount| {
        reduced(mount, "tmpfs", "process", Share::of(EVERY));
        power_is_refused(mount, "volatile");
    });
}

#[test]
fn on_an_overlay() {
    on(Mount::ext4().and_then(Mount::overlay), "an overlay", |mount| {
        reduced(mount, "overlay", "process", Share::of(EVERY));
        reduced(mount, "overlay", "power", Share::of(EVERY));
    });
}

/// Where `renameat2` takes no flags, every step between two names is a system call of its own.
const NO_FLAGS: &str = "without flags";

/// What is renamed by second names there.
const RENAMED: &[&str] = &[
    "write_file new",
    "write_file replace",
    "delete_file",
    "move_file",
    "move_file overwriting",
    "apply_patch",
];

/// By what it is renamed; the other system calls are the same everywhere.
const RENAMING: &[&str] = &["renameat2", "renameat", "linkat", "unlinkat", "mkdirat"];

fn without_flags(test: impl FnOnce(&Mount)) {
    on(Mount::without_flags(), "a filesystem without rename flags", test);
}

fn lab_on(mount: &Mount) -> Lab {
    Lab::at(Home::within(&mount.at), "process", plainly())
}

#[test]
fn without_flags_at_every_point() {
    without_flags(|mount| {
        power_is_refused(mount, "network");
        reduced(mount, NO_FLAGS, "process", Share::of(EVERY));
    });
}

#[test]
fn without_flags_when_killed_at_any_system_call() {
    without_flags(|mount| {
        kill_at_every_call(lab_on(mount), RENAMED, RENAMING, NO_FLAGS);
    });
}

#[test]
fn without_flags_when_recovery_is_killed_at_any_system_call() {
    without_flags(|mount| kill_recovery_at_every_call(lab_on(mount), "apply_patch", "acted:7", NO_FLAGS));
}

#[test]
fn without_flags_what_was_done_is_taken_back() {
    without_flags(|mount| {
        let kills = if full() { Kills::Two } else { Kills::One };
        taken_back(lab_on(mount), kills, NO_FLAGS);
    });
}

#[test]
fn without_flags_when_any_system_call_fails() {
    without_flags(|mount| {
        fail_at_every_call(lab_on(mount), RENAMED, RENAMING, NO_FLAGS);
    });
}
