//! Power cuts under load: in durability `power`, nothing that was acknowledged is lost, nothing is there by half, and
//! nothing is there that nobody asked for.

mod disk;
mod hush;
mod lab;
mod order;
mod settle;
mod work;

use crate::harness::skipped;
use disk::Kind;
use hush::{Hears, Hush, What};
use lab::{Lab, Layout};

/// How many points each filesystem gets; the bench asks for more.
fn points() -> u64 {
    let asked = std::env::var("SEMEL_POWER_CUTS");
    asked.map_or(16, |text| text.parse().expect("a number of points"))
}

fn seed() -> u64 {
    let asked = std::env::var("SEMEL_POWER_SEED");
    asked.map_or(1, |text| text.parse().expect("a seed"))
}

fn nothing_is_lost(kind: Kind) {
    for (n, layout) in [Layout::Together, Layout::Apart].into_iter().enumerate() {
        let mut lab = match Lab::new(kind, layout, seed() * 2 + n as u64, None) {
            Ok(lab) => lab,
            Err(why) => return skipped(&why),
        };
        for _ in 0..points() / 2 {
            let point = match lab.point() {
                Ok(point) => point,
                Err(why) => return skipped(&why),
            };
            lab.settle(&point);
        }
        eprintln!("{} {layout:?}: {}", kind.name(), lab.tally);
        let faults = &lab.tally.faults;
        assert!(faults.is_empty(), "{}", faults.join("\n"));
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

/// Leaves one kind of sync out, and says after how many points that was noticed.
fn noticed(kind: Kind, layout: Layout, leaves_out: &'static [What]) -> Result<Option<(u64, String)>, String> {
    const MOST: u64 = 40;
    let hush = Hush::new(leaves_out, Hears::Syncs);
    let mut lab = Lab::new(kind, layout, seed(), Some(hush.clone()))?;
    while lab.tally.points < MOST && lab.tally.faults.is_empty() {
        let point = lab.point()?;
        lab.settle(&point);
    }
    eprintln!("{} {layout:?} without {leaves_out:?}: {} {:?}", kind.name(), lab.tally, hush.left_out());
    let points = lab.tally.points;
    Ok(lab.tally.faults.first().map(|fault| (points, fault.clone())))
}

#[test]
fn explore() {
    let all = [What::Journal, What::Root, What::File];
    for kind in [Kind::Xfs, Kind::Ext4] {
        for layout in [Layout::Together, Layout::Apart] {
            for one in all.into_iter().filter(|_| std::env::var("ALL").is_ok()) {
                let leaves_out: &'static [What] = Box::leak(Box::new([one]));
                let found = std::panic::catch_unwind(|| noticed(kind, layout, leaves_out));
                eprintln!("EXPLORED {} {layout:?} {one:?}: {found:?}", kind.name());
            }
            let found = std::panic::catch_unwind(|| noticed(kind, layout, &[What::Staging, What::Trash, What::Parent]));
            eprintln!("EXPLORED {} {layout:?} Directories: {found:?}", kind.name());
        }
    }
}
