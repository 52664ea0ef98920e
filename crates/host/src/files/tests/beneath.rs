//! What goes with a directory.

use super::*;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use semel_core::ignore::EntryKind;
use semel_core::policy::{Beneath, Entry};

fn removed(world: &World, at: &str, most: usize) -> Beneath {
    let (_, prepared) = world.removing(at, Expected::Any, Removable::Directory).unwrap();
    prepared.beneath(&world.volume, most).unwrap()
}

#[test]
fn all_that_goes_with_a_directory_is_seen_and_no_link_is_followed() {
    let world = World::new();
    std::fs::create_dir_all(world.tree("d/sub/deep")).unwrap();
    std::fs::create_dir_all(world.tree("else")).unwrap();
    std::fs::write(world.tree("else/x"), "x").unwrap();
    std::fs::write(world.tree("d/sub/f"), "x").unwrap();
    symlink("../else", world.tree("d/link")).unwrap();
    let entry = |path: &str, kind| Entry {
        path: path.as_bytes().to_vec(),
        kind,
    };
    let all = Beneath::Seen(vec![
        entry("link", EntryKind::Other),
        entry("sub", EntryKind::Directory),
        entry("sub/deep", EntryKind::Directory),
        entry("sub/f", EntryKind::Other),
    ]);
    assert_eq!(removed(&world, "d", 100), all);
    assert_eq!(removed(&world, "d", 4), all);
    assert_eq!(removed(&world, "d", 3), Beneath::Unseen);
    let slot = slot();
    let (from, to) = (path("d"), path("moved"));
    let wanted = Move {
        from: &from,
        to: &to,
        expected: Expected::Any,
        place: None,
    };
    let moved = prepare_move(&world.volume, wanted, terms(&slot, Durability::Process)).unwrap();
    assert_eq!(moved.beneath(&world.volume, 100).unwrap(), all);
    // Another directory in its place is not what was looked at.
    std::fs::rename(world.tree("d"), world.tree("aside")).unwrap();
    std::fs::create_dir(world.tree("d")).unwrap();
    assert_eq!(moved.beneath(&world.volume, 100).unwrap(), Beneath::Unseen);
}

#[test]
fn what_is_no_directory_has_nothing_in_it() {
    let world = World::new();
    std::fs::create_dir_all(world.tree("d")).unwrap();
    symlink("d", world.tree("link")).unwrap();
    std::fs::write(world.tree("f"), "x").unwrap();
    for at in ["f", "link"] {
        let (_, prepared) = world.removal(at, Expected::Any).unwrap();
        assert_eq!(
            prepared.beneath(&world.volume, 9).unwrap(),
            Beneath::Nothing,
            "{at}"
        );
    }
    let (_, prepared) = world.write("f", b"y", Expected::Any).unwrap();
    assert_eq!(prepared.beneath(&world.volume, 9).unwrap(), Beneath::Nothing);
    let slot = slot();
    let empty = prepare_remove_empty(&world.volume, &path("d"), terms(&slot, Durability::Process)).unwrap();
    assert_eq!(
        empty.beneath(&world.volume, 9).unwrap(),
        Beneath::Seen(Vec::new())
    );
}

#[test]
fn what_cannot_be_looked_through_is_said_to_be_unseen() {
    let world = World::new();
    let deep = vec!["d"; 70].join("/");
    std::fs::create_dir_all(world.tree(&deep)).unwrap();
    assert_eq!(removed(&world, "d", 1000), Beneath::Unseen);
    std::fs::create_dir_all(world.tree("closed/in")).unwrap();
    std::fs::set_permissions(world.tree("closed/in"), std::fs::Permissions::from_mode(0o000)).unwrap();
    // Root looks through any directory, but not without these capabilities, which are each thread's own.
    let seen = std::thread::scope(|scope| {
        let looks = || {
            let mut sets = capabilities(None).unwrap();
            sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, sets).unwrap();
            removed(&world, "closed", 1000)
        };
        scope.spawn(looks).join().unwrap()
    });
    assert_eq!(seen, Beneath::Unseen);
    std::fs::set_permissions(world.tree("closed/in"), std::fs::Permissions::from_mode(0o700)).unwrap();
}
