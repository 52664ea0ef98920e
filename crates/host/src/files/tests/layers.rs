//! An overlay whose lower layer is a sealed tree: a file of it is copied up when it is changed, and is still the same
//! file; a directory of it cannot be renamed.

use super::*;
use std::process::Command;

/// A volume whose `vol/` is an overlay over a lower layer with these files; `None` where this user cannot mount.
struct Layered {
    world: World,
    at: PathBuf,
}

impl Layered {
    fn new() -> Option<Self> {
        let mut world = World::new();
        let layers = world.dir.path().join("layers");
        for dir in [
            "lower/tree/low/below",
            "lower/staging",
            "lower/trash",
            "upper",
            "work",
        ] {
            std::fs::create_dir_all(layers.join(dir)).unwrap();
        }
        for (name, content) in [("f", "file"), ("g", "other"), ("low/f", "low")] {
            std::fs::write(layers.join("lower/tree").join(name), content).unwrap();
        }
        let at = world.volume.path().join("vol");
        let layer = |name: &str| layers.join(name).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir=off",
            layer("lower"),
            layer("upper"),
            layer("work")
        );
        let mounted = Command::new("mount")
            .args(["-t", "overlay", "-o", &options, "overlay"])
            .arg(&at)
            .output();
        if !mounted.is_ok_and(|out| out.status.success()) {
            return None;
        }
        let volumes = Volumes::open(world.dir.path()).unwrap();
        world.volume = volumes
            .look(world.volume.job(), world.volume.generation())
            .unwrap();
        Some(Self { world, at })
    }
}

impl Drop for Layered {
    fn drop(&mut self) {
        // The volume's own handles are still open.
        rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

fn moving(world: &World, from: &str, to: &str) -> Result<(Slot, Prepared)> {
    let slot = slot();
    let (from, to) = (path(from), path(to));
    let wanted = Move {
        from: &from,
        to: &to,
        expected: Expected::Any,
        place: None,
    };
    let prepared = prepare_move(&world.volume, wanted, terms(&slot, Durability::Process))?;
    Ok((slot, prepared))
}

#[test]
fn a_file_of_a_lower_layer_is_changed_once() {
    let Some(layered) = Layered::new() else {
        skipped("this user cannot mount an overlay");
        return;
    };
    let world = &layered.world;
    // What is read first is what comes out, copied up or not.
    let before = world.put("f", b"new", Expected::Sha256(sha(b"file"))).unwrap();
    assert_eq!(before, Some(sha(b"file")));
    assert_eq!(std::fs::read(world.tree("f")).unwrap(), b"new");

    let (slot, prepared) = world.removal("g", Expected::Sha256(sha(b"other"))).unwrap();
    carry(&world.volume, &prepared, &NoSteps).unwrap();
    assert_eq!(std::fs::read(world.kept(&slot)).unwrap(), b"other");
    let seen = observe(&world.volume, &slot, &prepared.effect).unwrap();
    assert_eq!(seen.trashed, Some(removed(&prepared).id), "it is the same file");
    roll_back(&world.volume, &slot, &prepared.effect).unwrap();
    assert_eq!(std::fs::read(world.tree("g")).unwrap(), b"other");

    let (slot, prepared) = moving(world, "low/f", "moved").unwrap();
    carry(&world.volume, &prepared, &NoSteps).unwrap();
    assert_eq!(std::fs::read(world.tree("moved")).unwrap(), b"low");
    roll_back(&world.volume, &slot, &prepared.effect).unwrap();
    assert_eq!(std::fs::read(world.tree("low/f")).unwrap(), b"low");

    let mode = SetMode {
        path: &path("low/f"),
        mode: 0o600,
        expected: Expected::Any,
    };
    let slot = super::slot();
    let prepared = prepare_set_mode(&world.volume, mode, terms(&slot, Durability::Process)).unwrap();
    carry(&world.volume, &prepared, &NoSteps).unwrap();
    let seen = observe(&world.volume, &slot, &prepared.effect).unwrap();
    let Effect::SetMode { id, after, .. } = &prepared.effect else {
        panic!("{:?}", prepared.effect)
    };
    assert_eq!((seen.target.as_ref(), seen.mode), (Some(id), Some(*after)));
    assert_eq!(world.staged(), 0);
}

#[test]
fn a_directory_of_a_lower_layer_is_not_renamed() {
    let Some(layered) = Layered::new() else {
        skipped("this user cannot mount an overlay");
        return;
    };
    let world = &layered.world;
    let cross_layer = (Code::PreconditionFailed, "cross_layer".to_owned());
    let (_, prepared) = world
        .removing("low", Expected::Any, Removable::Directory)
        .unwrap();
    assert_eq!(
        named(carry(&world.volume, &prepared, &NoSteps).unwrap_err()),
        cross_layer
    );
    let (_, prepared) = moving(world, "low", "high").unwrap();
    assert_eq!(
        named(carry(&world.volume, &prepared, &NoSteps).unwrap_err()),
        cross_layer
    );
    assert_eq!(std::fs::read(world.tree("low/f")).unwrap(), b"low");
    assert!(!world.tree("high").exists());

    // One that is new lies in the upper layer alone, as does one without anything below it.
    std::fs::create_dir(world.tree("new")).unwrap();
    let (_, prepared) = moving(world, "new", "newer").unwrap();
    carry(&world.volume, &prepared, &NoSteps).unwrap();
    let slot = slot();
    let prepared = prepare_remove_empty(
        &world.volume,
        &path("low/below"),
        terms(&slot, Durability::Process),
    )
    .unwrap();
    carry(&world.volume, &prepared, &NoSteps).unwrap();
    assert!(!world.tree("low/below").exists());
}
