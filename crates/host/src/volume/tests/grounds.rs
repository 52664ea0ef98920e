//! Overlays, filesystems in memory, and the sealed trees beneath: real mounts, where this user may make them.

use super::*;
use crate::sandbox;
use semel_core::RelPath;
use std::time::Duration;

const SIZE: MemorySize = MemorySize {
    bytes: 256 << 10,
    files: 64,
};

/// Says whether a backend is to be had here; tells where it is not.
fn had(world: &World, backend: Backend) -> bool {
    let offers = world.volumes.offers().unwrap();
    let offer = offers.into_iter().find(|offer| offer.backend == backend).unwrap();
    if let Some(why) = offer.missing {
        skipped(&format!("{backend} is not to be had here: {why}"));
        return false;
    }
    true
}

impl World {
    /// A sealed tree with one file, one directory and one link.
    fn lower(&self) -> Lower {
        self.volumes
            .lower("sealed", &mut |root| {
                let path = PathBuf::from(format!("/proc/self/fd/{}", fd_of(root)));
                std::fs::write(path.join("f"), "sealed").unwrap();
                std::fs::create_dir(path.join("d")).unwrap();
                std::fs::write(path.join("d/g"), "sealed, too").unwrap();
                symlink("f", path.join("l")).unwrap();
                Ok(b"said of it".to_vec())
            })
            .unwrap()
    }

    fn on(&self, on: &On) -> (Volume, VolumeIdentity) {
        self.volumes
            .create_on(&self.job, &self.generation, clock::random().unwrap(), on)
            .unwrap()
    }

    fn mounts(&self) -> usize {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let here = self.dir.path().to_str().unwrap();
        table.lines().filter(|line| line.contains(here)).count()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A test that failed leaves no mount.
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for line in table.lines() {
            let at = line.split(' ').nth(4).unwrap_or_default();
            if Path::new(at).starts_with(self.dir.path()) {
                rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH).ok();
            }
        }
    }
}

fn fd_of(root: &Root) -> i32 {
    use std::os::fd::AsRawFd as _;
    root.handle().as_raw_fd()
}

fn paths(of: &[&str]) -> Vec<RelPath> {
    of.iter()
        .map(|path| RelPath::parse(path.as_bytes()).unwrap())
        .collect()
}

#[test]
fn a_trial_leaves_nothing_and_what_is_missing_is_said() {
    let world = World::new();
    let offers = world.volumes.offers().unwrap();
    assert_eq!(
        offers.iter().map(|offer| offer.backend).collect::<Vec<_>>(),
        Backend::ALL
    );
    assert_eq!(offers[0].missing, None, "a directory is to be had everywhere");
    assert_eq!(world.mounts(), 0);
    assert_eq!(
        std::fs::read_dir(world.dir.path().join("volumes"))
            .unwrap()
            .count(),
        0
    );
    // Of one that was killed, with its mount.
    let left = world.dir.path().join("volumes/.probe-0/plain/vol");
    std::fs::create_dir_all(&left).unwrap();
    let mounted = rustix::mount::mount(
        "semel-probe",
        &left,
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        None,
    );
    world.volumes.clear_trials().unwrap();
    assert!(!left.exists(), "mounted: {mounted:?}");
    // A path that cannot be said to the kernel is said to be none.
    let odd = world.dir.path().join("a,b");
    std::fs::create_dir(&odd).unwrap();
    let offers = Volumes::open(&odd).unwrap().offers().unwrap();
    assert!(offers[1].missing.is_some(), "{offers:?}");
}

#[test]
fn an_overlay_shows_its_sealed_tree_and_every_change() {
    let world = World::new();
    if !had(&world, Backend::Overlay) {
        return;
    }
    let lower = world.lower();
    assert_eq!(lower.seal(), b"said of it");
    let (volume, identity) = world.on(&On::Overlay(lower));
    assert_eq!(volume.backend(), Backend::Overlay);
    let tree = volume.tree_path();
    let sealed = world.dir.path().join("volumes/.lower/sealed/tree");
    assert_eq!(std::fs::read(tree.join("d/g")).unwrap(), b"sealed, too");
    assert_eq!(volume.changed(100).unwrap(), Some(vec![]));
    for change in [
        (|tree: &Path| std::fs::write(tree.join("f"), "other").unwrap()) as fn(&Path),
        |tree| std::fs::write(tree.join("f"), "sealed").unwrap(),
    ] {
        change(&tree);
        assert_eq!(
            volume.changed(100).unwrap(),
            Some(paths(&["f"])),
            "also where it is put back"
        );
    }
    std::fs::remove_file(tree.join("l")).unwrap();
    symlink("f", tree.join("l")).unwrap();
    std::fs::remove_file(tree.join("d/g")).unwrap();
    std::fs::write(tree.join("d/new"), "new").unwrap();
    let mode = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(tree.join("f"), mode).unwrap();
    assert_eq!(
        volume.changed(100).unwrap(),
        Some(paths(&["d/g", "d/new", "f", "l"]))
    );
    assert_eq!(volume.changed(1).unwrap_err().code(), Code::TooLarge);
    assert_eq!(
        std::fs::read(sealed.join("d/g")).unwrap(),
        b"sealed, too",
        "it is only read"
    );
    assert_eq!(std::fs::read(sealed.join("f")).unwrap(), b"sealed");
    assert_eq!(
        volume.identity().unwrap(),
        identity,
        "nothing of that makes it another volume"
    );
    drop(volume);
    let again = world.reopen(&identity).unwrap();
    assert_eq!(again.backend(), Backend::Overlay);
    drop(again);
    let aside = world.volumes.put_aside(&world.job, &world.generation).unwrap();
    assert_eq!(world.mounts(), 1, "put aside in one rename, mount and all");
    assert_eq!(world.volumes.reap(&aside).unwrap().kept, []);
    assert_eq!(world.mounts(), 0);
    assert_eq!(std::fs::read_dir(world.of_job()).unwrap().count(), 0);
    assert_eq!(
        std::fs::read(sealed.join("f")).unwrap(),
        b"sealed",
        "it outlives its volumes"
    );
}

/// What is root's in it is shown as the user's as whom programs run, and stays root's; whoever reads the options of the
/// mount finds the layers.
#[test]
fn an_overlay_that_programs_write_is_the_users_as_whom_they_run() {
    use std::os::unix::fs::MetadataExt as _;
    let world = World::new();
    if !had(&world, Backend::Overlay) {
        return;
    }
    let user = if sandbox::has_own_user() {
        sandbox::own_user()
    } else {
        rustix::process::geteuid().as_raw()
    };
    let (volume, identity) = world.on(&On::Owned(world.lower()));
    let tree = volume.tree_path();
    for place in [tree.clone(), tree.join("f"), tree.join("d")] {
        assert_eq!(place.metadata().unwrap().uid(), user, "{place:?}");
    }
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mine = table
        .lines()
        .find(|line| line.contains(world.generation.as_str()));
    for layer in ["/.lower/sealed", "/layer/upper", "/layer/work"] {
        let spelled = mine.unwrap().contains(layer) && !mine.unwrap().contains("/proc/");
        assert!(spelled, "{mine:?}");
    }
    // Made by root it is root's, until it is handed over.
    let made = tree.join("made");
    std::fs::write(&made, "x").unwrap();
    crate::plain::hand_over(&made).unwrap();
    assert_eq!(made.metadata().unwrap().uid(), user);
    let below = world
        .of_job()
        .join(world.generation.as_str())
        .join("layer/upper/tree/made");
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(below.metadata().unwrap().uid(), own, "on the disk it is root's");
    assert_eq!(volume.changed(10).unwrap(), Some(paths(&["made"])));
    drop(volume);
    // Its mount ended, as with the boot; it is made again, and is the same.
    world.volumes.rest(&world.job, &world.generation).unwrap();
    assert_eq!(world.mounts(), 0);
    let again = world.reopen(&identity).unwrap();
    assert_eq!(again.tree_path().join("f").metadata().unwrap().uid(), user);
    assert_eq!(std::fs::read(again.tree_path().join("made")).unwrap(), b"x");
    drop(again);
    let aside = world.volumes.put_aside(&world.job, &world.generation).unwrap();
    assert_eq!(world.volumes.reap(&aside).unwrap().kept, []);
    assert_eq!(world.mounts(), 0);
}

#[test]
fn a_directory_of_the_sealed_tree_is_moved_where_the_overlay_can() {
    let world = World::new();
    let offers = world.volumes.offers().unwrap();
    if offers[1].missing.is_some() || !offers[1].weaker.is_empty() {
        skipped("redirect_dir is not to be had here");
        return;
    }
    let (volume, _) = world.on(&On::Overlay(world.lower()));
    let tree = volume.tree_path();
    std::fs::rename(tree.join("d"), tree.join("e")).unwrap();
    assert_eq!(std::fs::read(tree.join("e/g")).unwrap(), b"sealed, too");
    assert_eq!(
        volume.changed(100).unwrap(),
        Some(paths(&["d"])),
        "it is whited out where it was"
    );
}

#[test]
fn a_mount_that_ended_is_made_again_and_another_is_not_taken_for_it() {
    let world = World::new();
    if !had(&world, Backend::Overlay) {
        return;
    }
    let (volume, identity) = world.on(&On::Overlay(world.lower()));
    let vol = volume.path().join("vol");
    std::fs::write(volume.tree_path().join("f"), "changed").unwrap();
    drop(volume);
    let unmount = |at: &Path| rustix::mount::unmount(at, rustix::mount::UnmountFlags::empty()).unwrap();
    unmount(&vol);
    assert!(!vol.join("tree").exists());
    // As after another boot: it is dirty, and can be looked at.
    let earlier = VolumeIdentity {
        boot_id: "earlier".into(),
        ..identity.clone()
    };
    assert_eq!(named(world.reopen(&earlier).unwrap_err()).0, Code::DirtyVolume);
    let looked = world.volumes.look(&world.job, &world.generation).unwrap();
    assert_eq!(std::fs::read(looked.tree_path().join("f")).unwrap(), b"changed");
    assert_eq!(looked.identity().unwrap(), identity, "it is the very one");
    drop(looked);
    unmount(&vol);
    // Another mount in its place is not.
    std::fs::create_dir_all(world.dir.path().join("other/tree")).unwrap();
    rustix::mount::mount_bind(world.dir.path().join("other"), &vol).unwrap();
    let error = world.reopen(&identity).unwrap_err();
    assert_eq!(error.code(), Code::UnknownState, "{error}");
    let reaped = world.volumes.destroy(&world.job, &world.generation).unwrap();
    assert_eq!(reaped.kept.len(), 1, "nor is it emptied: {reaped:?}");
    assert!(world.dir.path().join("other/tree").exists());
}

#[test]
fn a_volume_in_memory_has_a_size_and_ends_with_its_mount() {
    let world = World::new();
    if !had(&world, Backend::Tmpfs) {
        return;
    }
    let (volume, identity) = world.on(&On::Tmpfs(SIZE));
    let tree = volume.tree_path();
    let full = std::fs::write(tree.join("large"), vec![1; 1 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    std::fs::remove_file(tree.join("large")).unwrap();
    let many = (0..100).find_map(|n| std::fs::write(tree.join(n.to_string()), "").err());
    assert_eq!(
        many.map(|e| e.kind()),
        Some(std::io::ErrorKind::StorageFull),
        "files, too"
    );
    drop(volume);
    drop(world.reopen(&identity).unwrap());
    let vol = world.of_job().join(world.generation.as_str()).join("vol");
    rustix::mount::unmount(&vol, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(
        named(world.reopen(&identity).unwrap_err()),
        (Code::UnknownState, MISSING.to_owned())
    );
    let earlier = VolumeIdentity {
        boot_id: "earlier".into(),
        ..identity
    };
    assert_eq!(
        named(world.reopen(&earlier).unwrap_err()),
        (Code::DirtyVolume, "other_boot".to_owned())
    );
    // What is recorded beside it is there still.
    let records = world.volumes.records(&world.job, &world.generation).unwrap();
    assert!(records.is_dirty().unwrap());
    assert_eq!(
        world.volumes.destroy(&world.job, &world.generation).unwrap().kept,
        []
    );
}

#[test]
fn nobody_writes_to_a_volume_that_is_quiet() {
    use std::io::Write as _;
    let world = World::new();
    if !had(&world, Backend::Overlay) || !had(&world, Backend::Tmpfs) {
        return;
    }
    let dir = World::new();
    assert_eq!(dir.create().0.quiet().unwrap(), Quiet::Unproved);
    let memory = World::new();
    for (world, on) in [(&world, On::Overlay(world.lower())), (&memory, On::Tmpfs(SIZE))] {
        let (volume, _) = world.on(&on);
        let tree = volume.tree_path();
        let mut writer = std::fs::File::create(tree.join("w")).unwrap();
        let refused = named(volume.quiet().unwrap_err());
        assert_eq!(refused, (Code::VolumeBusy, "still_written".to_owned()));
        // A mapping that outlives its descriptor still writes.
        let mapped = rustix_map(&mut writer);
        drop(writer);
        assert!(volume.quiet().is_err());
        drop(mapped);
        assert_eq!(volume.quiet().unwrap(), Quiet::Proved);
        let refused = std::fs::write(tree.join("w"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        volume.loosen().unwrap();
        std::fs::File::options()
            .append(true)
            .open(tree.join("w"))
            .unwrap()
            .write_all(b"x")
            .unwrap();
    }
}

/// A process that has a file mapped for writing, and no descriptor of it.
struct Mapped(std::process::Child);

impl Drop for Mapped {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn rustix_map(file: &mut std::fs::File) -> Mapped {
    use std::io::{BufRead as _, BufReader, Write as _};
    file.write_all(&[0; 4096]).unwrap();
    let program = "import mmap,os,sys\nm=mmap.mmap(0,4096)\nos.close(0)\nprint('mapped',flush=True)\nsys.stdin=None\nimport time\ntime.sleep(600)";
    let path =
        std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file))).unwrap();
    let both = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut child = std::process::Command::new("python3")
        .args(["-c", program])
        .stdin(both)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "mapped\n");
    Mapped(child)
}

#[test]
fn a_volume_in_use_is_kept_and_freed_later() {
    let world = World::new();
    if !had(&world, Backend::Overlay) {
        return;
    }
    let (volume, _) = world.on(&On::Overlay(world.lower()));
    let held = std::fs::File::open(volume.tree_path().join("f")).unwrap();
    drop(volume);
    let aside = world.volumes.put_aside(&world.job, &world.generation).unwrap();
    let reaped = world.volumes.reap(&aside).unwrap();
    assert_eq!((reaped.removed, reaped.kept.len()), (0, 1), "{reaped:?}");
    assert_eq!(world.volumes.aside().unwrap(), std::slice::from_ref(&aside));
    drop(held);
    assert_eq!(world.volumes.reap(&aside).unwrap().kept, []);
}

#[test]
fn a_sealed_tree_is_made_once_and_freed_when_nothing_lies_over_it() {
    let world = World::new();
    let kept = world.lower();
    assert!(
        world.volumes.free_lowers(Duration::ZERO).unwrap().0.is_empty(),
        "one is held"
    );
    drop(kept);
    let again = world
        .volumes
        .lower("sealed", &mut |_| panic!("it stands already"))
        .unwrap();
    assert_eq!(again.seal(), b"said of it");
    drop(again);
    let refused = world
        .volumes
        .lower("refused", &mut |root| {
            std::fs::write(format!("/proc/self/fd/{}/f", fd_of(root)), "x").unwrap();
            Err(Refusal::new(Code::ProposalRefused, "no").into())
        })
        .unwrap_err();
    assert_eq!(refused.code(), Code::ProposalRefused);
    for name in ["", "..", "A", "a/b", "-a"] {
        let refused = world.volumes.lower(name, &mut |_| Ok(Vec::new())).unwrap_err();
        assert_eq!(refused.code(), Code::BadInput, "{name}");
    }
    // As if whoever filled one had been killed.
    std::fs::create_dir_all(world.dir.path().join("volumes/.lower/.new-0/tree")).unwrap();
    let listed = || {
        let mut names: Vec<String> = std::fs::read_dir(world.dir.path().join("volumes/.lower"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        listed(),
        [".new-0", "sealed"],
        "of the refused one nothing is left"
    );
    let hour = Duration::from_secs(3600);
    assert!(
        world.volumes.free_lowers(hour).unwrap().0.is_empty(),
        "it is young"
    );
    assert_eq!(listed(), ["sealed"]);
    let aside = if had(&world, Backend::Overlay) {
        drop(world.on(&On::Overlay(world.lower())));
        assert!(
            world.volumes.free_lowers(Duration::ZERO).unwrap().0.is_empty(),
            "it is needed"
        );
        let aside = world.volumes.put_aside(&world.job, &world.generation).unwrap();
        assert!(
            world.volumes.free_lowers(Duration::ZERO).unwrap().0.is_empty(),
            "still"
        );
        Some(aside)
    } else {
        None
    };
    if let Some(aside) = aside {
        world.volumes.reap(&aside).unwrap();
    }
    assert_eq!(world.volumes.lowers_to_free(Duration::ZERO).unwrap(), ["sealed"]);
    assert_eq!(world.volumes.free_lowers(Duration::ZERO).unwrap().0, ["sealed"]);
    assert_eq!(listed(), Vec::<String>::new());
}

/// A tree that was found damaged stays beneath what lies over it, and beneath nothing else; it goes before its time.
#[test]
fn a_damaged_tree_is_filled_anew_beside_and_freed_when_nothing_lies_over_it() {
    let world = World::new();
    if !had(&world, Backend::Overlay) {
        return;
    }
    let (volume, _) = world.on(&On::Overlay(world.lower()));
    world.volumes.damaged_lower(&volume).unwrap();
    world.volumes.damaged_lower(&volume).unwrap();
    let anew = world.lower();
    assert_eq!(
        (anew.name.as_str(), anew.seal()),
        ("sealed-1", &b"said of it"[..])
    );
    drop(anew);
    assert_eq!(world.lower().name, "sealed-1", "it is made once");
    // One without a seal is none, either.
    let lowers = world.dir.path().join("volumes/.lower");
    std::fs::remove_file(lowers.join("sealed-1/seal")).unwrap();
    assert_eq!(world.lower().name, "sealed-2");
    let hour = Duration::from_secs(3600);
    assert_eq!(world.volumes.free_lowers(hour).unwrap().0, ["sealed-1"]);
    drop(volume);
    let aside = world.volumes.put_aside(&world.job, &world.generation).unwrap();
    world.volumes.reap(&aside).unwrap();
    assert_eq!(world.volumes.free_lowers(hour).unwrap().0, ["sealed"]);
    assert!(lowers.join("sealed-2").exists(), "it is young, and whole");
}

/// Whoever clears up what killed trials left takes away no trial that only begins.
#[test]
fn a_trial_that_begins_is_not_cleared_up() {
    let world = World::new();
    let over = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(relaxed) {
                world.volumes.clear_trials().unwrap();
            }
        });
        for _ in 0..200 {
            let begun = world.volumes.trial();
            let stands = begun.as_ref().is_ok_and(|(name, _)| {
                std::fs::remove_dir(world.dir.path().join("volumes").join(name)).is_ok()
            });
            over.store(!stands, relaxed);
            assert!(stands, "{begun:?}");
        }
        over.store(true, relaxed);
    });
}
