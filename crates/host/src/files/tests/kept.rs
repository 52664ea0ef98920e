//! What a volume holds, weighed; pre-images, put aside and freed.

use super::*;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

fn weight(bytes: u64, entries: u64) -> Weight {
    Weight { bytes, entries }
}

impl World {
    fn done(&self, (slot, prepared): (Slot, Prepared)) -> Slot {
        prepared.carry_out(&self.volume, &NoSteps).unwrap();
        slot
    }

    fn removes(&self, at: &str, takes: Removable, ms: u64) -> (Slot, Prepared) {
        let seed = semel_core::ids::Seed {
            unix_ms: ms,
            random: [1; 10],
        };
        let slot = Slot::of(&ExecutionId::mint(seed), 0);
        let terms = Terms {
            slot: &slot,
            durability: Durability::Process,
            git: GitInternals::Refuse,
            gone: &|| false,
        };
        let path = RelPath::parse(at.as_bytes()).unwrap();
        let wanted = Remove {
            path: &path,
            expected: Expected::Any,
            takes,
        };
        let prepared = prepare_remove(&self.volume, wanted, terms).unwrap();
        (slot, prepared)
    }
}

#[test]
fn all_that_a_volume_holds_is_weighed() {
    let world = World::new();
    std::fs::create_dir_all(world.tree("d/e/f")).unwrap();
    for (name, len) in [("d/a", 5000), ("d/e/b", 9000), ("d/e/f/c", 1), ("g", 8000)] {
        std::fs::write(world.tree(name), vec![b'x'; len]).unwrap();
    }
    symlink("/etc", world.tree("d/link")).unwrap();
    let tree = weight(5000 + 9000 + 1 + 8000, 8);
    assert_eq!(weigh(&world.volume).unwrap(), tree, "links are not followed");

    let write = world.write("g", &[b'y'; 100], Expected::Any).unwrap();
    assert_eq!(write.1.stages(), weight(100, 1));
    let with = tree.plus(weight(100, 1));
    assert_eq!(weigh(&world.volume).unwrap(), with, "what is staged counts");
    world.done(write);
    assert_eq!(weigh(&world.volume).unwrap(), with, "what was replaced is kept");

    let removal = world.removes("d", Removable::Directory, 2);
    assert_eq!(removal.1.stages(), weight(0, 0));
    let slot = world.done(removal);
    assert_eq!(weigh(&world.volume).unwrap(), with, "and so is what was removed");
    let kept = weigh_pre_image(&world.volume, &slot).unwrap();
    assert_eq!(kept, weight(5000 + 9000 + 1, 7));

    for place in ["meta/exec/id", "work/home"] {
        let place = world.volume.path().join(place);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("out"), [b'z'; 10]).unwrap();
    }
    let with = with.plus(weight(20, 4));
    assert_eq!(weigh(&world.volume).unwrap(), with);
    // One that only root may enter weighs as one entry to all others, and keeps nothing else from being weighed.
    std::fs::create_dir(world.tree("a-closed")).unwrap();
    std::fs::write(world.tree("a-closed/x"), [0; 10]).unwrap();
    std::fs::set_permissions(world.tree("a-closed"), Permissions::from_mode(0o400)).unwrap();
    let inside = if rustix::process::geteuid().is_root() {
        weight(10, 2)
    } else {
        weight(0, 1)
    };
    let with = with.plus(inside);
    assert_eq!(weigh(&world.volume).unwrap(), with);
    std::fs::set_permissions(world.tree("a-closed"), Permissions::from_mode(0o700)).unwrap();

    let hole = std::fs::File::create(world.tree("hole")).unwrap();
    hole.set_len(1 << 40).unwrap();
    assert!(
        weigh(&world.volume).unwrap().bytes < with.bytes + (1 << 20),
        "holes are not counted"
    );
}

#[test]
fn a_tree_of_any_depth_is_weighed_with_few_handles() {
    let world = World::new();
    let mut dir = std::fs::File::open(world.volume.path().join("vol/trash")).unwrap();
    for _ in 0..1500 {
        rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        dir = rustix::fs::openat(&dir, "d", flags, Mode::empty())
            .unwrap()
            .into();
    }
    assert_eq!(weigh(&world.volume).unwrap(), weight(0, 1500));
}

#[test]
fn a_pre_image_goes_whole_and_what_is_cut_off_is_done_later() {
    let world = World::new();
    std::fs::create_dir_all(world.tree("d/e")).unwrap();
    for name in ["d/e/b", "a", "z"] {
        std::fs::write(world.tree(name), name).unwrap();
    }
    let first = world.done(world.removes("a", Removable::Leaf, 1));
    let tree = world.done(world.removes("d", Removable::Directory, 2));
    let last = world.done(world.removes("z", Removable::Leaf, 3));
    std::fs::write(world.volume.path().join("vol/trash/not-ours"), "x").unwrap();
    let listed = pre_images(&world.volume).unwrap();
    assert_eq!(
        listed,
        [first.clone(), tree.clone(), last.clone()],
        "the oldest first"
    );

    let gone = [first.clone(), tree.clone()];
    put_aside(&world.volume, &gone).unwrap();
    assert_eq!(pre_images(&world.volume).unwrap(), std::slice::from_ref(&last));
    // Nothing is freed yet, and a second time changes nothing.
    assert_eq!(weigh(&world.volume).unwrap().entries, 6);
    put_aside(&world.volume, &gone).unwrap();
    // A life that ends here leaves the rest to the next one, in the middle of a tree, too.
    let aside = world
        .volume
        .path()
        .join("vol/trash")
        .join(format!(".evicted-{}", tree.as_str()));
    std::fs::remove_file(aside.join("e/b")).unwrap();
    assert_eq!(free_aside(&world.volume).unwrap(), []);
    assert_eq!(
        weigh(&world.volume).unwrap().entries,
        2,
        "the last one, and what is not ours"
    );
    assert_eq!(free_aside(&world.volume).unwrap(), []);
    assert!(world.kept(&last).exists());
}
