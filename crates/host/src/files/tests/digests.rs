//! What is digested has a bound, whoever asks for it; and nobody's digest is not made to its end.

use super::*;
use crate::files::digest_within;
use std::cell::Cell;

/// More than is digested at all, and nothing on the disk.
const HUGE: u64 = 1 << 40;

fn grow(world: &World, at: &str) {
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(world.tree(at))
        .unwrap();
    file.set_len(HUGE).unwrap();
}

type Prepare<'a> = &'a dyn Fn(Terms<'_>) -> Result<Prepared>;

/// Prepares everything that holds a content against what is expected of it.
fn each(world: &World, expected: Expected, see: &dyn Fn(&str, Prepare<'_>)) {
    let (s, other) = (path("s"), path("other"));
    let volume = &world.volume;
    see("write", &|terms| {
        prepare_write(volume, writing(&s, b"x", expected), terms, &NoSteps)
    });
    see("remove", &|terms| {
        let wanted = Remove {
            path: &s,
            expected,
            takes: Removable::Leaf,
        };
        prepare_remove(volume, wanted, terms)
    });
    see("move", &|terms| {
        let wanted = Move {
            from: &s,
            to: &other,
            expected,
            place: None,
        };
        prepare_move(volume, wanted, terms)
    });
    see("set_mode", &|terms| {
        let wanted = SetMode {
            path: &s,
            mode: 0o600,
            expected,
        };
        prepare_set_mode(volume, wanted, terms)
    });
}

#[test]
fn what_is_expected_of_more_than_is_digested_is_refused_unread() {
    let world = World::new();
    grow(&world, "s");
    let slot = slot();
    each(&world, Expected::Sha256(sha(b"")), &|what, prepare| {
        let refused = prepare(terms(&slot, Durability::Process)).unwrap_err();
        let wanted = (Code::TooLarge, "digest_too_large".to_owned());
        assert_eq!(named(refused), wanted, "{what}");
    });
    assert_eq!(world.staged(), 0);
    // Where nothing is expected of it, its size is nobody's matter.
    each(&world, Expected::Any, &|what, prepare| {
        let slot = self::slot();
        assert!(prepare(terms(&slot, Durability::Process)).is_ok(), "{what}");
    });
}

#[test]
fn a_caller_that_is_gone_has_nothing_digested() {
    let world = World::new();
    world.put("s", &[b'x'; 1 << 20], Expected::Absent).unwrap();
    let slot = slot();
    each(&world, Expected::Sha256(sha(b"")), &|what, prepare| {
        let pieces = Cell::new(0);
        let gone = || {
            pieces.set(pieces.get() + 1);
            pieces.get() > 3
        };
        let terms = Terms {
            gone: &gone,
            ..terms(&slot, Durability::Process)
        };
        assert_eq!(prepare(terms).unwrap_err().code(), Code::Draining, "{what}");
        assert!(pieces.get() < 8, "{what}: it went on for {} pieces", pieces.get());
    });
    assert_eq!(world.staged(), 0);
}

#[test]
fn a_file_that_outgrows_what_is_digested_is_another_one() {
    let world = World::new();
    let old = || Expected::Sha256(sha(b"old"));
    world.put("s", b"old", Expected::Absent).unwrap();
    let (_, write) = world.write("s", b"new", old()).unwrap();
    let (_, removal) = world.removal("s", old()).unwrap();
    grow(&world, "s");
    for prepared in [write, removal] {
        let refused = carry(&world.volume, &prepared, &NoSteps).unwrap_err();
        let wanted = (Code::PreconditionFailed, "changed_meanwhile".to_owned());
        assert_eq!(named(refused), wanted);
        assert_eq!(std::fs::metadata(world.tree("s")).unwrap().len(), HUGE);
    }
}

#[test]
fn a_digest_ends_at_its_bound() {
    let world = World::new();
    for size in [0, 9, 4 << 10, (4 << 10) + 1, 300_000] {
        let content = vec![b'x'; size];
        std::fs::write(world.tree("f"), &content).unwrap();
        let file = std::fs::File::open(world.tree("f")).unwrap();
        let within = |most| digest_within(&file, most, &|| false).unwrap();
        assert_eq!(within(size as u64), Some(sha(&content)));
        assert_eq!(digest_within(&file, HUGE, &|| true).unwrap(), None);
        if let Some(less) = (size as u64).checked_sub(1) {
            assert_eq!(within(less), None);
        }
    }
}

#[test]
fn what_is_to_be_like_a_link_is_refused_by_its_name() {
    let world = World::new();
    world.put("f", b"content", Expected::Absent).unwrap();
    symlink("f", world.tree("l")).unwrap();
    let (slot, new, link) = (slot(), path("new"), path("l"));
    let write = Write {
        like: Some(&link),
        ..writing(&new, b"x", Expected::Absent)
    };
    let terms = terms(&slot, Durability::Process);
    let refused = prepare_write(&world.volume, write, terms, &NoSteps).unwrap_err();
    assert_eq!(
        named(refused),
        (Code::PreconditionFailed, "is_symlink".to_owned())
    );
    assert_eq!(world.staged(), 0);
}
