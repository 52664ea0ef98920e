use super::*;

mod grounds;

use crate::root::tests::skipped;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

struct World {
    dir: tempfile::TempDir,
    volumes: Volumes,
    job: JobId,
    generation: Generation,
}

impl World {
    fn new() -> Self {
        Self::at(&std::env::temp_dir())
    }

    fn at(place: &Path) -> Self {
        let dir = tempfile::tempdir_in(place).unwrap();
        Self {
            volumes: Volumes::open(dir.path()).unwrap(),
            dir,
            job: JobId::parse("job").unwrap(),
            generation: Generation::mint(clock::seed().unwrap()),
        }
    }

    fn create(&self) -> (Volume, VolumeIdentity) {
        self.volumes
            .create(&self.job, &self.generation, clock::random().unwrap())
            .unwrap()
    }

    fn of_job(&self) -> PathBuf {
        self.dir.path().join("volumes/job")
    }

    fn reopen(&self, known: &VolumeIdentity) -> Result<Volume> {
        self.volumes.reopen(&self.job, &self.generation, known)
    }
}

fn named(error: Error) -> (Code, String) {
    match error {
        Error::Refused(refusal) => (refusal.code, refusal.reason.unwrap_or_default()),
        other => panic!("{other}"),
    }
}

#[test]
fn a_volume_is_closed_dirty_and_known_again() {
    let world = World::new();
    let (volume, identity) = world.create();
    for part in ["", "vol", "vol/tree", "vol/staging", "vol/trash", "meta"] {
        let mode = std::fs::metadata(volume.path().join(part)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700, "{part}");
    }
    assert!(volume.is_dirty().unwrap());
    assert_eq!(volume.identity().unwrap(), identity);
    let again = world.reopen(&identity).unwrap();
    again.mark_clean().unwrap();
    again.mark_clean().unwrap();
    assert!(!volume.is_dirty().unwrap());
    volume.quarantine("outcome unknown").unwrap();
    assert!(again.is_dirty().unwrap());
    let why = read_record(&again, "quarantined", 100).unwrap();
    assert_eq!(why.as_deref(), Some(&b"outcome unknown"[..]));
    let json = serde_json::to_string(&identity).unwrap();
    assert_eq!(serde_json::from_str::<VolumeIdentity>(&json).unwrap(), identity);
}

#[test]
fn a_mark_of_any_type_is_dirt() {
    let world = World::new();
    let (volume, _) = world.create();
    volume.mark_clean().unwrap();
    let mark = volume.path().join("meta/dirty");
    symlink("nowhere", &mark).unwrap();
    assert!(volume.is_dirty().unwrap());
    std::fs::remove_file(&mark).unwrap();
    std::fs::create_dir(&mark).unwrap();
    assert!(volume.is_dirty().unwrap());
    assert!(volume.mark_clean().is_err(), "it is not unmarked by halves");
}

#[test]
fn a_generation_is_made_once() {
    let world = World::new();
    let (volume, _) = world.create();
    let again = || {
        world
            .volumes
            .create(&world.job, &world.generation, [7; 16])
            .map(|_| ())
    };
    assert_eq!(again().unwrap_err().code(), Code::GenerationReused);
    drop(volume);
    world.volumes.put_aside(&world.job, &world.generation).unwrap();
    assert_eq!(again().unwrap_err().code(), Code::GenerationReused);
}

#[test]
fn another_directory_is_never_taken_for_the_volume() {
    let world = World::new();
    let (volume, identity) = world.create();
    let tree = volume.tree_path();
    let identity_differs = (Code::UnknownState, "volume_identity".to_owned());

    // The tree was deleted and made anew; its inode may well be the same.
    std::fs::remove_dir(&tree).unwrap();
    std::fs::create_dir(&tree).unwrap();
    let error = world.reopen(&identity).unwrap_err();
    assert!(error.to_string().contains("handle"), "{error}");
    assert_eq!(named(error), identity_differs);

    let world = World::new();
    let (volume, identity) = world.create();
    let vol = subdirectory(volumes_dir(&volume).as_fd(), "vol").unwrap();
    match rustix::fs::fsetxattr(&vol, NONCE, &[b'0'; 32], XattrFlags::empty()) {
        Ok(()) => assert_eq!(named(world.reopen(&identity).unwrap_err()), identity_differs),
        Err(_) => skipped("this filesystem has no user attributes"),
    }

    let world = World::new();
    let (volume, identity) = world.create();
    for (other, wanted) in [
        (
            VolumeIdentity {
                fsid: "00".into(),
                ..identity.clone()
            },
            identity_differs.clone(),
        ),
        (
            VolumeIdentity {
                boot_id: "earlier".into(),
                ..identity.clone()
            },
            (Code::DirtyVolume, "other_boot".to_owned()),
        ),
    ] {
        assert_eq!(named(world.reopen(&other).unwrap_err()), wanted);
    }
    std::fs::remove_file(volume.path().join("meta/identity.json")).unwrap();
    assert_eq!(named(world.reopen(&identity).unwrap_err()), identity_differs);
    std::fs::remove_dir(volume.path().join("vol/trash")).unwrap();
    let missing = (Code::UnknownState, "volume_missing".to_owned());
    assert_eq!(named(world.reopen(&identity).unwrap_err()), missing);
}

fn volumes_dir(volume: &Volume) -> OwnedFd {
    std::fs::File::open(volume.path()).unwrap().into()
}

#[test]
fn one_owner_lives_and_the_lock_goes_with_its_last_handle() {
    let world = World::new();
    let (volume, _) = world.create();
    assert!(!owner_alive(&volume).unwrap());
    let owner = claim_owner(&volume).unwrap();
    assert!(owner_alive(&volume).unwrap());
    assert_eq!(claim_owner(&volume).unwrap_err().code(), Code::VolumeBusy);
    assert_eq!(
        world
            .volumes
            .destroy(&world.job, &world.generation)
            .unwrap_err()
            .code(),
        Code::VolumeBusy
    );
    // Another process that inherited the handle keeps the ownership when we let go of it.
    let mut child = std::process::Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .stdout(owner.as_fd().try_clone_to_owned().unwrap())
        .spawn()
        .unwrap();
    drop(owner);
    assert!(owner_alive(&volume).unwrap());
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(!owner_alive(&volume).unwrap());
    assert!(claim_owner(&volume).is_ok());
}

#[test]
fn records_are_whole_and_of_one_type() {
    let world = World::new();
    let (volume, _) = world.create();
    assert_eq!(read_record(&volume, "r", 10).unwrap(), None);
    write_record(&volume, "r", b"one").unwrap();
    std::fs::write(
        volume.path().join("meta/.r.new"),
        "half-written by a killed process",
    )
    .unwrap();
    write_record(&volume, "r", b"two").unwrap();
    assert_eq!(
        read_record(&volume, "r", 10).unwrap().as_deref(),
        Some(&b"two"[..])
    );
    assert_eq!(read_record(&volume, "r", 2).unwrap_err().code(), Code::TooLarge);
    for name in ["", ".hidden", "a/b", "..", "A"] {
        assert_eq!(
            write_record(&volume, name, b"x").unwrap_err().code(),
            Code::BadInput,
            "{name}"
        );
    }
    symlink("r", volume.path().join("meta/link")).unwrap();
    assert_eq!(
        read_record(&volume, "link", 10).unwrap_err().code(),
        Code::UnknownState
    );
    assert_eq!(read_record(&volume, "link2", 10).unwrap(), None);
    std::fs::create_dir(volume.path().join("meta/dir")).unwrap();
    assert_eq!(
        read_record(&volume, "dir", 10).unwrap_err().code(),
        Code::UnknownState
    );
}

#[test]
fn a_destroyed_volume_is_gone_and_a_cut_off_reaping_resumes() {
    let world = World::new();
    let outside = world.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("f"), "stays").unwrap();
    let (volume, _) = world.create();
    let tree = volume.tree_path();
    std::fs::create_dir_all(tree.join("a/b/c")).unwrap();
    std::fs::write(tree.join("a/b/c/f"), "x").unwrap();
    std::fs::write(tree.join("a/f"), "x").unwrap();
    symlink(&outside, tree.join("a/link")).unwrap();
    std::fs::create_dir_all(tree.join("closed/in")).unwrap();
    std::fs::set_permissions(tree.join("closed"), std::fs::Permissions::from_mode(0o000)).unwrap();
    drop(volume);
    let aside = world.volumes.put_aside(&world.job, &world.generation).unwrap();
    assert!(!world.of_job().join(world.generation.as_str()).exists());
    assert_eq!(world.volumes.aside().unwrap(), std::slice::from_ref(&aside));
    // As if an earlier reaper had been killed after it moved something up.
    let left = world.of_job().join(format!("{ASIDE}{}", world.generation));
    std::fs::rename(left.join("vol/tree/a/b"), left.join(".r0-1")).unwrap();
    let reaped = world.volumes.reap(&aside).unwrap();
    assert_eq!(reaped.kept, []);
    assert_eq!(std::fs::read_dir(world.of_job()).unwrap().count(), 0);
    assert_eq!(std::fs::read(outside.join("f")).unwrap(), b"stays");
    assert_eq!(
        world.volumes.reap(&aside).unwrap(),
        Reaped::default(),
        "a second time is no error"
    );
    let gone = world.volumes.destroy(&world.job, &world.generation).unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
}

#[test]
fn what_is_mounted_or_immutable_stays_and_is_named() {
    let world = World::new();
    let outside = world.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("f"), "stays").unwrap();
    let (volume, _) = world.create();
    let tree = volume.tree_path();
    for name in ["d/mnt", "e", "g"] {
        std::fs::create_dir_all(tree.join(name)).unwrap();
    }
    std::fs::write(tree.join("e/fixed"), "x").unwrap();
    std::fs::write(tree.join("g/free"), "x").unwrap();
    if rustix::mount::mount_bind(&outside, tree.join("d/mnt")).is_err() {
        skipped("this user may not mount");
        return;
    }
    let fixed = std::fs::File::open(tree.join("e/fixed")).unwrap();
    let immutable = rustix::fs::ioctl_setflags(&fixed, rustix::fs::IFlags::IMMUTABLE).is_ok();
    drop(volume);
    let aside = world.volumes.put_aside(&world.job, &world.generation).unwrap();
    let reaped = world.volumes.reap(&aside).unwrap();
    assert_eq!(
        std::fs::read(outside.join("f")).unwrap(),
        b"stays",
        "never across a mount"
    );
    let named = |name: &str| reaped.kept.iter().find(|kept| kept.path.ends_with(name));
    assert_eq!(
        named("/mnt").map(|kept| kept.why.as_str()),
        Some("mount"),
        "{reaped:?}"
    );
    if immutable {
        assert_eq!(
            named("/fixed").map(|kept| kept.why.as_str()),
            Some("immutable or foreign")
        );
        rustix::fs::ioctl_setflags(&fixed, rustix::fs::IFlags::empty()).unwrap();
    } else {
        skipped("no immutable files here");
    }
    assert!(reaped.kept.len() <= 2, "{reaped:?}");
    let left = world.of_job().join(format!("{ASIDE}{}", world.generation));
    let find = |name: &str| {
        let mut dirs = std::fs::read_dir(&left)
            .unwrap()
            .map(|e| e.unwrap().path().join(name));
        dirs.find(|path| path.exists())
    };
    let mount = find("mnt").unwrap();
    crate::sandbox::tests::unmounted(&mount);
    assert_eq!(world.volumes.reap(&aside).unwrap().kept, []);
    assert_eq!(std::fs::read_dir(world.of_job()).unwrap().count(), 0);
}

#[test]
fn a_mount_over_the_volume_itself_is_not_emptied() {
    let world = World::new();
    let outside = world.dir.path().join("outside");
    std::fs::create_dir_all(outside.join("d")).unwrap();
    std::fs::write(outside.join("d/f"), "stays").unwrap();
    let (volume, _) = world.create();
    if rustix::mount::mount_bind(&outside, volume.path().join("vol")).is_err() {
        skipped("this user may not mount");
        return;
    }
    drop(volume);
    let reaped = world.volumes.destroy(&world.job, &world.generation).unwrap();
    assert_eq!(std::fs::read(outside.join("d/f")).unwrap(), b"stays");
    let kept: Vec<(&str, &str)> = reaped
        .kept
        .iter()
        .map(|k| (k.path.as_str(), k.why.as_str()))
        .collect();
    assert_eq!(kept, [("vol", "mount")]);
    let aside = world.volumes.aside().unwrap().remove(0);
    let left = world.of_job().join(format!("{ASIDE}{}", world.generation));
    crate::sandbox::tests::unmounted(&left.join("vol"));
    assert_eq!(world.volumes.reap(&aside).unwrap().kept, []);
}

/// A tree deeper than any descriptor limit; freed in a process that may hold 64 descriptors.
#[test]
fn a_tree_of_20_000_levels_is_freed_with_64_descriptors() {
    const CHILD: &str = "SEMEL_TEST_REAP";
    if let Some(state) = std::env::var_os(CHILD) {
        let limit = rustix::process::Rlimit {
            current: Some(64),
            maximum: Some(64),
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let volumes = Volumes::open(Path::new(&state)).unwrap();
        for aside in volumes.aside().unwrap() {
            assert_eq!(volumes.reap(&aside).unwrap().kept, []);
        }
        return;
    }
    // In memory where that is to be had: the disk under the descriptors is not what is tested here.
    let memory = Path::new("/dev/shm");
    let world = if tempfile::tempdir_in(memory).is_ok() {
        World::at(memory)
    } else {
        World::new()
    };
    let (volume, _) = world.create();
    let mut dir: OwnedFd = std::fs::File::open(volume.tree_path()).unwrap().into();
    for _ in 0..20_000 {
        rustix::fs::mkdirat(&dir, "d", Mode::RWXU).unwrap();
        dir = subdirectory(dir.as_fd(), "d").unwrap();
    }
    drop((dir, volume));
    world.volumes.put_aside(&world.job, &world.generation).unwrap();
    let name = "volume::tests::a_tree_of_20_000_levels_is_freed_with_64_descriptors";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--test-threads=1"])
        .env(CHILD, world.dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_dir(world.of_job()).unwrap().count(), 0);
}
