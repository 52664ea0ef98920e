//! Power cuts under load: in durability `power`, nothing that was acknowledged is lost, nothing is there by half, and
//! nothing is there that nobody asked for.
//!
//! `scripts/power-cuts.sh` asks for more points than an ordinary run has.

mod disk;
mod hush;
mod lab;
mod order;
mod settle;
mod work;

use crate::harness::{Daemon, Home, mode, skipped};
use disk::{Disk, Kind};
use hush::{Hears, Hush, What};
use lab::{Lab, Layout, Tally};
use serde_json::json;
use std::process::{Command, Stdio};

fn asked(name: &str, else_: u64) -> u64 {
    let asked = std::env::var(name);
    asked.map_or(else_, |text| text.parse().expect("a number"))
}

/// How many points each filesystem gets.
fn points(kind: Kind) -> u64 {
    let ordinary = match kind {
        Kind::Ext4 | Kind::Xfs => 20,
        // It takes longer for each.
        Kind::Btrfs => 8,
    };
    asked("SEMEL_POWER_CUTS", ordinary)
}

fn seed() -> u64 {
    asked("SEMEL_POWER_SEED", 1)
}

/// How many points a filesystem sees before another is made: so that none is full, and the journal is not long.
const OF_ONE: u64 = 25;

fn nothing_is_lost(kind: Kind) {
    let points = points(kind);
    for layout in [Layout::Together, Layout::Apart] {
        let mut tally = Tally::default();
        while tally.points < points / 2 {
            let dice = seed() << 32 | (layout as u64) << 24 | tally.points;
            let mut lab = match Lab::new(kind, layout, dice, None) {
                Ok(lab) => lab,
                Err(why) => return skipped(&why),
            };
            for _ in 0..OF_ONE.min(points / 2 - tally.points) {
                let point = lab.point().unwrap();
                lab.settle(&point);
            }
            tally.add(&lab.tally);
        }
        eprintln!("{} {layout:?}: {tally}", kind.name());
        let faults = &tally.faults;
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        assert!(tally.acknowledged > tally.points, "clients worked");
    }
}

#[test]
fn nothing_acknowledged_is_lost_on_ext4() {
    nothing_is_lost(Kind::Ext4);
}

#[test]
fn nothing_acknowledged_is_lost_on_xfs() {
    nothing_is_lost(Kind::Xfs);
}

#[test]
fn nothing_acknowledged_is_lost_on_btrfs() {
    nothing_is_lost(Kind::Btrfs);
}

/// Kinds of syncs, and where their absence shows: each sync of a file or directory alone is the matter of `order`.
const LEFT_OUT: &[(&str, Layout, &[What])] = &[
    ("the log of the journal", Layout::Together, &[What::Log]),
    ("the journal, checkpointed", Layout::Together, &[What::Journal]),
    ("what is staged", Layout::Apart, &[What::Staged]),
    (
        "the directories",
        Layout::Apart,
        &[What::Parent, What::Staging, What::Trash],
    ),
    ("what a volume is known by", Layout::Together, &[What::Volume]),
    ("the state root", Layout::Together, &[What::Root]),
];

/// Leaves one kind of sync out, and gives the first fault that shows.
fn noticed(kind: Kind, layout: Layout, leaves_out: &'static [What]) -> Result<Option<String>, String> {
    const MOST: u64 = 60;
    let hush = Hush::new(leaves_out, Hears::Syncs);
    let mut lab = Lab::new(kind, layout, seed(), Some(hush.clone()))?;
    while lab.tally.points < MOST && lab.tally.faults.is_empty() {
        match lab.point() {
            Ok(point) => lab.settle(&point),
            // A journal that lost its own may be refused at the next start: that is noticed, too.
            Err(why) if why.contains("does not start") => lab.tally.faults.push(why),
            Err(why) => return Err(why),
        }
    }
    assert!(hush.left_out() > 0, "some are left out");
    let points = lab.tally.points;
    Ok(lab
        .tally
        .faults
        .first()
        .map(|fault| format!("at {points}: {fault}")))
}

fn a_missing_sync_is_noticed(kind: Kind) {
    for (name, layout, leaves_out) in LEFT_OUT {
        match noticed(kind, *layout, leaves_out) {
            Ok(Some(fault)) => {
                let fault: String = fault.chars().take(200).collect();
                eprintln!("{} without a sync of {name}: {fault}", kind.name());
            }
            Ok(None) => panic!("{}: without a sync of {name} nothing is lost", kind.name()),
            Err(why) => return skipped(&why),
        }
    }
}

#[test]
fn a_missing_sync_is_noticed_on_ext4() {
    a_missing_sync_is_noticed(Kind::Ext4);
}

#[test]
fn a_missing_sync_is_noticed_on_xfs() {
    a_missing_sync_is_noticed(Kind::Xfs);
}

#[test]
fn a_missing_sync_is_noticed_on_btrfs() {
    a_missing_sync_is_noticed(Kind::Btrfs);
}

/// The volumes may lie on a filesystem of their own: it is asked, too.
#[test]
fn power_is_refused_where_the_volumes_alone_would_lose_it() {
    if !crate::harness::is_root() {
        return skipped("only root can mount");
    }
    let outside = tempfile::tempdir().unwrap();
    let at = outside.path().join("mnt");
    std::fs::create_dir(&at).unwrap();
    let disk = match Disk::new(Kind::Ext4, &outside.path().join("image"), &at) {
        Ok(disk) => disk,
        Err(why) => return skipped(&why),
    };
    let home = Home::within(&at);
    let volumes = home.state().join("volumes");
    std::fs::create_dir_all(&volumes).unwrap();
    mode(&home.state(), 0o700);
    // In a mount namespace of the daemon's own, which goes with it.
    let script = "mount -t tmpfs -o mode=700 tmpfs \"$1\" && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", home.path())
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(&volumes)
        .arg(env!("CARGO_BIN_EXE_semel"))
        .args(["serve", "--json", "--quiet", "--state"])
        .arg(home.state());
    let daemon = Daemon::started(command.stderr(Stdio::null())).expect("the daemon starts");
    let wanted = json!({"job": "job", "durability": "power"});
    let reply = home.admin("POST", "/v1/admin/volumes", &wanted);
    let told = (reply.code(), reply.reason());
    assert_eq!(told, ("durability_unavailable", "volatile"), "{}", reply.body);
    drop(daemon);
    drop(home);
    drop(disk);
}
