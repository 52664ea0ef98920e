//! What a volume holds beside its tree: weighed, put aside, freed.

use super::*;

const ALL: Weight = Weight {
    bytes: u64::MAX,
    entries: u64::MAX,
};

fn weight(bytes: u64, entries: u64) -> Weight {
    Weight { bytes, entries }
}

impl World {
    fn done(&self, (slot, prepared): (Slot, Prepared)) -> Slot {
        prepared.carry_out(&self.volume, &NoSteps).unwrap();
        slot
    }

    fn removes(&self, at: &str, takes: Removable) -> (Slot, Prepared) {
        let slot = Slot::of(&ExecutionId::mint(crate::clock::seed().unwrap()), 0);
        let terms = Terms {
            slot: &slot,
            durability: Durability::Process,
            git: GitInternals::Refuse,
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
fn what_a_call_keeps_is_known_before_it_does() {
    let world = World::new();
    std::fs::create_dir_all(world.tree("d/e/f")).unwrap();
    for (name, len) in [("d/a", 5000), ("d/e/b", 9000), ("d/e/f/c", 1), ("g", 8000)] {
        std::fs::write(world.tree(name), vec![b'x'; len]).unwrap();
    }
    symlink("/etc", world.tree("d/link")).unwrap();
    let hole = std::fs::File::create(world.tree("hole")).unwrap();
    hole.set_len(1 << 40).unwrap();
    assert_eq!(weigh(&world.volume, ALL).unwrap(), weight(0, 0));

    let write = world.write("g", &[b'y'; 100], Expected::Any).unwrap();
    let added = write.1.weigh(ALL).unwrap();
    assert_eq!((added.staged, added.kept), (weight(100, 1), weight(8000, 1)));
    assert_eq!(
        weigh(&world.volume, ALL).unwrap(),
        weight(100, 1),
        "what is staged counts"
    );
    world.done(write);
    assert_eq!(weigh(&world.volume, ALL).unwrap(), weight(8000, 1));

    let new = world.write("new", b"z", Expected::Any).unwrap();
    assert_eq!(new.1.weigh(ALL).unwrap().kept, weight(0, 0));
    world.done(new);

    let tree = world.removes("d", Removable::Directory);
    let kept = tree.1.weigh(ALL).unwrap().kept;
    assert_eq!(kept, weight(5000 + 9000 + 1, 7), "links are not followed");
    let some = tree.1.weigh(weight(ALL.bytes, 3)).unwrap().kept;
    assert!(some.entries > 3 && some.entries <= 5, "it ends early: {some:?}");
    let tree = world.done(tree);
    assert_eq!(weigh_pre_image(&world.volume, &tree).unwrap(), kept);
    assert_eq!(weigh(&world.volume, ALL).unwrap(), kept.plus(weight(8000, 1)));

    let hole = world.removes("hole", Removable::Leaf);
    assert!(
        hole.1.weigh(ALL).unwrap().kept.bytes < 1 << 20,
        "holes are not counted"
    );
}

#[test]
fn a_tree_of_any_depth_is_weighed_with_few_handles() {
    let world = World::new();
    let mut dir = std::fs::File::open(world.volume.path().join("vol/trash")).unwrap();
    for _ in 0..3000 {
        rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        dir = rustix::fs::openat(&dir, "d", flags, Mode::empty())
            .unwrap()
            .into();
    }
    assert_eq!(weigh(&world.volume, ALL).unwrap(), weight(0, 3000));
}

#[test]
fn a_pre_image_goes_whole_and_what_is_cut_off_is_done_later() {
    let world = World::new();
    std::fs::create_dir_all(world.tree("d/e")).unwrap();
    for name in ["d/e/b", "a", "z"] {
        std::fs::write(world.tree(name), name).unwrap();
    }
    let first = world.done(world.removes("a", Removable::Leaf));
    let tree = world.done(world.removes("d", Removable::Directory));
    let last = world.done(world.removes("z", Removable::Leaf));
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
    assert_eq!(weigh(&world.volume, ALL).unwrap().entries, 6);
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
        weigh(&world.volume, ALL).unwrap().entries,
        2,
        "the last one, and what is not ours"
    );
    assert_eq!(free_aside(&world.volume).unwrap(), []);
    assert!(world.kept(&last).exists());
}
