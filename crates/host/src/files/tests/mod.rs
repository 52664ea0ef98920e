mod beneath;
mod digests;
mod kept;
mod layers;

use super::*;
use crate::root::tests::skipped;
use crate::root::{GitInternals, Resolver, Root};
use crate::volume::{Volume, Volumes};
use proptest::prelude::*;
use semel_core::RelPath;
use semel_core::effect::{Before, Content as Staged, Effect, Slot};
use semel_core::ids::{ExecutionId, FileId, Generation, JobId};
use semel_core::recovery::Tidy;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

mod reading;

pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) volume: Volume,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::at(std::env::temp_dir().as_path())
    }

    fn at(place: &Path) -> Self {
        let dir = tempfile::tempdir_in(place).unwrap();
        let volumes = Volumes::open(dir.path()).unwrap();
        let generation = Generation::mint(crate::clock::seed().unwrap());
        let job = JobId::parse("job").unwrap();
        let (volume, _) = volumes
            .create(&job, &generation, crate::clock::random().unwrap())
            .unwrap();
        Self { dir, volume }
    }

    fn tree(&self, name: &str) -> PathBuf {
        self.volume.tree_path().join(name)
    }

    fn staged(&self) -> usize {
        std::fs::read_dir(self.volume.path().join("vol/staging"))
            .unwrap()
            .count()
    }

    fn kept(&self, slot: &Slot) -> PathBuf {
        self.volume.path().join("vol/trash").join(slot.as_str())
    }

    fn write(&self, at: &str, bytes: &[u8], expected: Expected) -> Result<(Slot, Prepared)> {
        self.write_with(at, bytes, expected, Durability::Process)
    }

    fn write_with(
        &self,
        at: &str,
        bytes: &[u8],
        expected: Expected,
        durability: Durability,
    ) -> Result<(Slot, Prepared)> {
        let slot = slot();
        let terms = terms(&slot, durability);
        let prepared = prepare_write(&self.volume, writing(&path(at), bytes, expected), terms, &NoSteps)?;
        Ok((slot, prepared))
    }

    fn put(&self, at: &str, bytes: &[u8], expected: Expected) -> Result<Option<Sha256>> {
        let (_, prepared) = self.write(at, bytes, expected)?;
        carry(&self.volume, &prepared, &NoSteps)
    }

    fn removal(&self, at: &str, expected: Expected) -> Result<(Slot, Prepared)> {
        self.removing(at, expected, Removable::Leaf)
    }

    fn removing(&self, at: &str, expected: Expected, takes: Removable) -> Result<(Slot, Prepared)> {
        let slot = slot();
        let path = path(at);
        let wanted = Remove {
            path: &path,
            expected,
            takes,
        };
        let prepared = prepare_remove(&self.volume, wanted, terms(&slot, Durability::Process))?;
        Ok((slot, prepared))
    }
}

fn writing<'a>(path: &'a RelPath, bytes: &'a [u8], expected: Expected) -> Write<'a> {
    Write {
        path,
        bytes,
        expected,
        mode: None,
        like: None,
        place: None,
    }
}

fn terms(slot: &Slot, durability: Durability) -> Terms<'_> {
    Terms {
        slot,
        durability,
        git: GitInternals::Refuse,
        gone: &|| false,
    }
}

/// Does what a call does once its intent is recorded.
fn carry(volume: &Volume, prepared: &Prepared, steps: &dyn Steps) -> Result<Option<Sha256>> {
    sync_staged(std::slice::from_ref(prepared), steps)?;
    let before = prepared.carry_out(volume, steps)?;
    sync_effects(std::slice::from_ref(prepared), steps)?;
    Ok(before)
}

/// Is what the intent of a write records.
#[derive(Clone)]
struct Evidence {
    effect: Effect,
    resolved: RelPath,
    staged: FileId,
    after: Option<Sha256>,
    before: Option<Before>,
}

fn evidence_of(prepared: &Prepared) -> Evidence {
    let Effect::Install {
        at,
        staged,
        content,
        before,
    } = prepared.effect.clone()
    else {
        panic!("{:?}", prepared.effect)
    };
    Evidence {
        effect: prepared.effect.clone(),
        resolved: at,
        staged,
        after: match content {
            Staged::File { sha256, .. } => Some(sha256),
            Staged::Directory { .. } => None,
        },
        before,
    }
}

fn removed(prepared: &Prepared) -> Before {
    match &prepared.effect {
        Effect::Remove { before, .. } => before.clone(),
        other => panic!("{other:?}"),
    }
}

fn slot() -> Slot {
    Slot::of(&id(), 0)
}

fn id() -> ExecutionId {
    ExecutionId::mint(crate::clock::seed().unwrap())
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn sha(bytes: &[u8]) -> Sha256 {
    Sha256::of(bytes)
}

fn named(error: Error) -> (Code, String) {
    match error {
        Error::Refused(refusal) => (refusal.code, refusal.reason.unwrap_or_default()),
        other => panic!("{other}"),
    }
}

fn inode_id(at: &Path) -> FileId {
    file_id(std::fs::File::open(at).unwrap()).unwrap()
}

#[test]
fn a_new_file_and_a_replacement_leave_their_evidence() {
    for durability in [Durability::Process, Durability::Power] {
        let world = World::new();
        let (execution, prepared) = world
            .write_with("a", b"one", Expected::Absent, durability)
            .unwrap();
        let evidence = evidence_of(&prepared);
        assert_eq!((&evidence.before, evidence.after), (&None, Some(sha(b"one"))));
        let seen = observe(&world.volume, &execution, &evidence.effect).unwrap();
        assert_eq!(seen.staged.as_ref(), Some(&evidence.staged));
        assert_eq!((seen.trashed, seen.target), (None, None));
        assert_eq!(carry(&world.volume, &prepared, &NoSteps).unwrap(), None);
        let seen = observe(&world.volume, &execution, &evidence.effect).unwrap();
        assert_eq!(
            (seen.staged, seen.trashed, seen.target),
            (None, None, Some(evidence.staged.clone()))
        );
        assert_eq!(std::fs::metadata(world.tree("a")).unwrap().mode() & 0o7777, 0o644);

        let (execution, prepared) = world
            .write_with("a", b"two", Expected::Sha256(sha(b"one")), durability)
            .unwrap();
        let second = evidence_of(&prepared);
        let old = second.before.unwrap().id;
        assert_eq!(old, evidence.staged);
        assert_eq!(
            carry(&world.volume, &prepared, &NoSteps).unwrap(),
            Some(sha(b"one"))
        );
        let seen = observe(&world.volume, &execution, &second.effect).unwrap();
        assert_eq!(
            (seen.staged, seen.trashed, seen.target),
            (None, Some(old), Some(second.staged))
        );
        assert_eq!(std::fs::read(world.tree("a")).unwrap(), b"two");
        assert_eq!(std::fs::read(world.kept(&execution)).unwrap(), b"one");
    }
}

/// A tree with one of each thing that is no plain target.
fn odd_tree() -> World {
    let world = World::new();
    std::fs::create_dir(world.tree("dir")).unwrap();
    std::fs::create_dir(world.tree(".git")).unwrap();
    std::fs::write(world.tree("file"), "content").unwrap();
    symlink(".git", world.tree("sly")).unwrap();
    symlink("../../..", world.tree("out")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, world.tree("fifo"), fifo, Mode::RWXU, 0).unwrap();
    world
}

#[test]
fn a_write_is_refused_by_name_with_nothing_staged() {
    let world = odd_tree();
    let wrong = Expected::Sha256(sha(b"other"));
    for (at, expected, code, reason) in [
        ("file", Expected::Absent, Code::PreconditionFailed, "exists"),
        ("file", wrong, Code::PreconditionFailed, "sha256_mismatch"),
        ("none", wrong, Code::PreconditionFailed, "absent"),
        ("dir", Expected::Any, Code::PreconditionFailed, "is_directory"),
        (
            "none/x",
            Expected::Any,
            Code::PreconditionFailed,
            "parent_missing",
        ),
        (
            "file/x",
            Expected::Any,
            Code::PreconditionFailed,
            "parent_not_directory",
        ),
        ("fifo", Expected::Any, Code::PathEscapesRoot, "special_file"),
        ("", Expected::Any, Code::PathEscapesRoot, "root"),
        ("a/..", Expected::Any, Code::PathEscapesRoot, "root"),
        (
            ".git/hooks",
            Expected::Any,
            Code::PathEscapesRoot,
            "git_internals",
        ),
        (
            "sub/.GIT/x",
            Expected::Any,
            Code::PathEscapesRoot,
            "git_internals",
        ),
        (
            "sly/config",
            Expected::Any,
            Code::PathEscapesRoot,
            "git_internals",
        ),
        ("out/x", Expected::Any, Code::PathEscapesRoot, "link_outside"),
    ] {
        let error = world.write(at, b"new", expected).map(|_| ()).unwrap_err();
        assert_eq!(named(error), (code, reason.to_owned()), "{at}");
    }
    assert_eq!(world.staged(), 0);
    let (slot, config) = (slot(), path(".git/config"));
    let allowed = Terms {
        git: GitInternals::Allow,
        ..terms(&slot, Durability::Process)
    };
    let write = || writing(&config, b"[core]", Expected::Any);
    assert!(
        prepare_write(&world.volume, write(), allowed, &NoSteps).is_ok(),
        "a policy may allow it"
    );
    let again = prepare_write(&world.volume, write(), allowed, &NoSteps).unwrap_err();
    assert_eq!(named(again), (Code::UnknownState, "staged_twice".to_owned()));
}

#[test]
fn a_removal_is_refused_by_name() {
    let world = odd_tree();
    let wrong = Expected::Sha256(sha(b"other"));
    for (at, expected, code, reason) in [
        ("none", Expected::Any, Code::NotFound, ""),
        ("none/x", Expected::Any, Code::NotFound, "parent_missing"),
        ("dir", Expected::Any, Code::PreconditionFailed, "is_directory"),
        ("file", wrong, Code::PreconditionFailed, "sha256_mismatch"),
        ("fifo", Expected::Any, Code::PathEscapesRoot, "special_file"),
        ("", Expected::Any, Code::PathEscapesRoot, "root"),
        (".git", Expected::Any, Code::PathEscapesRoot, "git_internals"),
        ("out/x", Expected::Any, Code::PathEscapesRoot, "link_outside"),
    ] {
        let error = world.removal(at, expected).map(|_| ()).unwrap_err();
        assert_eq!(named(error), (code, reason.to_owned()), "{at}");
    }
}

#[test]
fn a_replacement_keeps_what_belongs_to_the_file() {
    let world = World::new();
    std::fs::create_dir(world.tree("d")).unwrap();
    std::fs::write(world.tree("d/real"), "old").unwrap();
    std::fs::hard_link(world.tree("d/real"), world.tree("second")).unwrap();
    symlink("d/real", world.tree("link")).unwrap();
    std::fs::set_permissions(world.tree("d/real"), std::fs::Permissions::from_mode(0o4751)).unwrap();
    let file = std::fs::File::open(world.tree("d/real")).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    let kept = rustix::fs::fsetxattr(&file, "user.note", b"kept", flags).is_ok();
    let root = rustix::process::geteuid().is_root();
    if root {
        std::os::unix::fs::chown(world.tree("d/real"), Some(1234), Some(4321)).unwrap();
        std::fs::set_permissions(world.tree("d/real"), std::fs::Permissions::from_mode(0o4751)).unwrap();
    } else {
        skipped("this user may not give a file away");
    }

    let (_, prepared) = world
        .write("link", b"new", Expected::Sha256(sha(b"old")))
        .unwrap();
    assert_eq!(evidence_of(&prepared).resolved, path("d/real"));
    assert_eq!(evidence_of(&prepared).before.unwrap().other_names, Some(1));
    carry(&world.volume, &prepared, &NoSteps).unwrap();
    assert!(
        world.tree("link").is_symlink(),
        "the link is followed, not replaced"
    );
    assert_eq!(std::fs::read(world.tree("d/real")).unwrap(), b"new");
    assert_eq!(
        std::fs::read(world.tree("second")).unwrap(),
        b"old",
        "the other name keeps the old content"
    );
    let meta = std::fs::metadata(world.tree("d/real")).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o751, "the mode is kept, setuid is not");
    if root {
        assert_eq!((meta.uid(), meta.gid()), (1234, 4321));
    }
    if kept {
        let file = std::fs::File::open(world.tree("d/real")).unwrap();
        assert_eq!(attribute(file.as_fd(), b"user.note").unwrap(), b"kept");
    } else {
        skipped("this filesystem has no user attributes");
    }
}

#[test]
fn an_outside_save_between_prepare_and_install_is_never_lost() {
    // Another file was saved over the target by rename.
    let world = World::new();
    world.put("f", b"old", Expected::Absent).unwrap();
    let (execution, prepared) = world.write("f", b"ours", Expected::Any).unwrap();
    std::fs::write(world.tree("tmp"), "theirs").unwrap();
    std::fs::rename(world.tree("tmp"), world.tree("f")).unwrap();
    let staged = evidence_of(&prepared).effect;
    let error = carry(&world.volume, &prepared, &NoSteps).unwrap_err();
    assert_eq!(
        named(error),
        (Code::PreconditionFailed, "changed_meanwhile".to_owned())
    );
    assert_eq!(std::fs::read(world.tree("f")).unwrap(), b"theirs");
    discard_staged(&world.volume, &execution, &staged).unwrap();
    assert_eq!(world.staged(), 0);

    // It was after the last look.
    let (_, prepared) = world.write("f", b"ours", Expected::Any).unwrap();
    let told = Mutex::new(Vec::new());
    let steps = |step: Step| {
        told.lock().unwrap().push(step);
        if step == Step::TargetSeen {
            std::fs::write(world.tree("tmp"), "theirs").unwrap();
            std::fs::rename(world.tree("tmp"), world.tree("f")).unwrap();
        }
    };
    let error = carry(&world.volume, &prepared, &steps).unwrap_err();
    assert_eq!(named(error).1, "changed_meanwhile");
    assert_eq!(told.lock().unwrap().last(), Some(&Step::ExchangedBack));
    assert_eq!(std::fs::read(world.tree("f")).unwrap(), b"theirs");

    // The same file was written in place: content was expected.
    let (_, prepared) = world
        .write("f", b"ours", Expected::Sha256(sha(b"theirs")))
        .unwrap();
    std::fs::write(world.tree("f"), "THEIRS").unwrap();
    let error = carry(&world.volume, &prepared, &NoSteps).unwrap_err();
    assert_eq!(
        named(error),
        (Code::PreconditionFailed, "changed_meanwhile".to_owned())
    );
    assert_eq!(std::fs::read(world.tree("f")).unwrap(), b"THEIRS");

    // No content was expected: the write goes through, and says what it truly replaced.
    let (execution, prepared) = world.write("f", b"ours", Expected::Any).unwrap();
    std::fs::write(world.tree("f"), "in place").unwrap();
    assert_eq!(
        carry(&world.volume, &prepared, &NoSteps).unwrap(),
        Some(sha(b"in place"))
    );
    assert_eq!(std::fs::read(world.kept(&execution)).unwrap(), b"in place");

    // It went away; something appeared.
    let (_, prepared) = world.write("f", b"x", Expected::Any).unwrap();
    std::fs::remove_file(world.tree("f")).unwrap();
    assert_eq!(
        carry(&world.volume, &prepared, &NoSteps).unwrap_err().code(),
        Code::PreconditionFailed
    );
    assert!(!world.tree("f").exists());
    let (_, prepared) = world.write("f", b"x", Expected::Any).unwrap();
    std::fs::create_dir(world.tree("f")).unwrap();
    assert_eq!(
        carry(&world.volume, &prepared, &NoSteps).unwrap_err().code(),
        Code::PreconditionFailed
    );
    assert!(world.tree("f").is_dir());
}

#[test]
fn a_save_during_the_exchange_keeps_both_sides_and_is_unknown() {
    let world = World::new();
    world.put("f", b"old", Expected::Absent).unwrap();
    let (execution, prepared) = world.write("f", b"ours", Expected::Any).unwrap();
    let tree = world.volume.tree_path();
    // An editor saves right before the exchange; and right after it, before it is undone, once more.
    let steps = move |step: Step| {
        let content = match step {
            Step::TargetSeen => "first save",
            Step::Installed => "second save",
            _ => return,
        };
        std::fs::write(tree.join("tmp"), content).unwrap();
        std::fs::rename(tree.join("tmp"), tree.join("f")).unwrap();
    };
    let error = carry(&world.volume, &prepared, &steps).unwrap_err();
    assert_eq!(named(error), (Code::OutcomeUnknown, "changed_outside".to_owned()));
    assert_eq!(
        std::fs::read(world.tree("f")).unwrap(),
        b"second save",
        "the newest stands"
    );
    let staged = world.volume.path().join("vol/staging").join(execution.as_str());
    assert_eq!(std::fs::read(staged).unwrap(), b"first save", "the other is kept");
}

#[test]
fn a_removal_is_kept_and_the_second_finds_nothing() {
    let world = World::new();
    world.put("f", b"content", Expected::Absent).unwrap();
    let (execution, first) = world.removal("f", Expected::Sha256(sha(b"content"))).unwrap();
    let (_, second) = world.removal("f", Expected::Any).unwrap();
    assert_eq!(
        carry(&world.volume, &first, &NoSteps).unwrap(),
        Some(sha(b"content"))
    );
    assert_eq!(std::fs::read(world.kept(&execution)).unwrap(), b"content");
    assert_eq!(
        carry(&world.volume, &second, &NoSteps).unwrap_err().code(),
        Code::NotFound
    );
    let seen = observe(&world.volume, &execution, &first.effect).unwrap();
    assert_eq!(
        (seen.staged, seen.trashed, seen.target),
        (None, Some(removed(&first).id), None)
    );

    // A link is itself removed, and what it points at stays.
    world.put("target", b"stays", Expected::Absent).unwrap();
    symlink("target", world.tree("link")).unwrap();
    let (execution, prepared) = world.removal("link", Expected::Any).unwrap();
    carry(&world.volume, &prepared, &NoSteps).unwrap();
    assert!(world.kept(&execution).is_symlink());
    assert_eq!(std::fs::read(world.tree("target")).unwrap(), b"stays");

    // Another file in the place is put back.
    let (_, prepared) = world.removal("target", Expected::Any).unwrap();
    std::fs::write(world.tree("tmp"), "newer").unwrap();
    std::fs::rename(world.tree("tmp"), world.tree("target")).unwrap();
    let error = carry(&world.volume, &prepared, &NoSteps).unwrap_err();
    assert_eq!(
        named(error),
        (Code::PreconditionFailed, "changed_meanwhile".to_owned())
    );
    assert_eq!(std::fs::read(world.tree("target")).unwrap(), b"newer");

    // It cannot be put back where something new is: both are kept.
    let (execution, prepared) = world.removal("target", Expected::Sha256(sha(b"newer"))).unwrap();
    std::fs::write(world.tree("target"), "other").unwrap();
    let tree = world.volume.tree_path();
    let steps = move |step: Step| {
        if step == Step::Removed {
            std::fs::write(tree.join("target"), "third").unwrap();
        }
    };
    let error = carry(&world.volume, &prepared, &steps).unwrap_err();
    assert_eq!(named(error), (Code::OutcomeUnknown, "changed_outside".to_owned()));
    assert_eq!(std::fs::read(world.tree("target")).unwrap(), b"third");
    assert_eq!(std::fs::read(world.kept(&execution)).unwrap(), b"other");
}

/// Ends a call at a step, without a word.
fn stop_at(step: Step, stop: Step) {
    if step == stop {
        std::panic::resume_unwind(Box::new("stopped here"));
    }
}

/// Stops at a step as a killed process would, and settles by what is on disk alone.
#[test]
fn at_every_step_the_disk_tells_what_happened() {
    for stop in Step::ALL.iter().copied() {
        for new in [true, false] {
            let world = World::new();
            if !new {
                world.put("f", b"old", Expected::Absent).unwrap();
            }
            let (execution, prepared) = world
                .write_with("f", b"new", Expected::Any, Durability::Power)
                .unwrap();
            let evidence = evidence_of(&prepared);
            let volume = &world.volume;
            let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let steps = |step: Step| stop_at(step, stop);
                carry(volume, &prepared, &steps)
            }));
            let seen = observe(volume, &execution, &evidence.effect).unwrap();
            if seen.target.as_ref() == Some(&evidence.staged) {
                if evidence.before.is_some() {
                    for _twice in 0..2 {
                        let before = tidy(volume, &execution, &evidence.effect, Tidy::KeepPreImage);
                        assert_eq!(before.unwrap(), Some(sha(b"old")));
                    }
                    assert_eq!(std::fs::read(world.kept(&execution)).unwrap(), b"old");
                }
                assert_eq!(std::fs::read(world.tree("f")).unwrap(), b"new");
            } else {
                assert!(stopped.is_err());
                assert_eq!(seen.staged.as_ref(), Some(&evidence.staged), "{stop:?}");
                assert_eq!(seen.target, evidence.before.map(|before| before.id));
                for _twice in 0..2 {
                    discard_staged(volume, &execution, &evidence.effect).unwrap();
                }
                world.put("f", b"new", Expected::Any).unwrap();
            }
            assert_eq!(world.staged(), 0, "{stop:?}");
        }
    }
}

#[test]
fn recovery_discards_only_what_is_ours() {
    let world = World::new();
    world.put("f", b"old", Expected::Absent).unwrap();
    let (execution, prepared) = world.write("f", b"new", Expected::Any).unwrap();
    let evidence = evidence_of(&prepared);
    let stop = |step: Step| stop_at(step, Step::Installed);
    let volume = &world.volume;
    let call = std::panic::AssertUnwindSafe(|| carry(volume, &prepared, &stop));
    assert!(std::panic::catch_unwind(call).is_err());
    // The pre-image is in staging: discarding must not lose it.
    let error = discard_staged(volume, &execution, &evidence.effect).unwrap_err();
    assert_eq!(error.code(), Code::UnknownState);
    let mut other = evidence.effect.clone();
    if let Effect::Install { before, .. } = &mut other {
        before.as_mut().unwrap().id = inode_id(world.dir.path());
    }
    let wrong = tidy(volume, &execution, &other, Tidy::KeepPreImage);
    assert_eq!(wrong.unwrap_err().code(), Code::UnknownState);
    for _twice in 0..2 {
        roll_back(volume, &execution, &evidence.effect).unwrap();
    }
    assert_eq!(std::fs::read(world.tree("f")).unwrap(), b"old");
    discard_staged(volume, &execution, &evidence.effect).unwrap();

    let (removed, prepared) = world.removal("f", Expected::Any).unwrap();
    carry(volume, &prepared, &NoSteps).unwrap();
    for _twice in 0..2 {
        roll_back(volume, &removed, &prepared.effect).unwrap();
    }
    assert_eq!(std::fs::read(world.tree("f")).unwrap(), b"old");

    let (open, _) = world.write("f", b"x", Expected::Any).unwrap();
    let (orphan, _) = world.write("f", b"y", Expected::Any).unwrap();
    std::fs::create_dir(volume.path().join("vol/staging/odd")).unwrap();
    let swept = sweep_staging(volume, &[open.execution().clone()].into()).unwrap();
    assert_eq!(swept.discarded, [orphan.as_str()]);
    assert_eq!(swept.left, ["odd"]);
    assert!(volume.path().join("vol/staging").join(open.as_str()).exists());
}

#[test]
fn steps_are_told_in_order_and_have_names() {
    let world = World::new();
    let told = Mutex::new(Vec::new());
    let steps = |step: Step| told.lock().unwrap().push(step);
    world.put("f", b"old", Expected::Absent).unwrap();
    let (slot, f) = (slot(), path("f"));
    let write = writing(&f, b"new", Expected::Any);
    let prepared = prepare_write(&world.volume, write, terms(&slot, Durability::Power), &steps).unwrap();
    carry(&world.volume, &prepared, &steps).unwrap();
    use Step::{EffectsSynced, Installed as Placed, PreImageKept, PreImageVerified, Staged, StagedSynced};
    let wanted = [
        Staged,
        StagedSynced,
        Step::TargetSeen,
        Placed,
        PreImageVerified,
        PreImageKept,
        EffectsSynced,
    ];
    assert_eq!(*told.lock().unwrap(), wanted);
    let names: std::collections::HashSet<_> = Step::ALL.iter().map(|step| step.name()).collect();
    assert_eq!(names.len(), Step::ALL.len());
}

#[test]
fn a_file_id_is_not_given_twice() {
    let world = World::new();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..200 {
        std::fs::write(world.tree("f"), "x").unwrap();
        assert!(
            seen.insert(inode_id(&world.tree("f"))),
            "an inode used again is another file"
        );
        std::fs::remove_file(world.tree("f")).unwrap();
    }
    assert!(
        seen.iter()
            .all(|id| id.as_str().starts_with("h:") || id.as_str().starts_with("f:"))
    );
}

#[test]
fn info_tells_what_is_there() {
    let world = World::new();
    world.put("f", b"content", Expected::Absent).unwrap();
    symlink("f", world.tree("l")).unwrap();
    let info = |at: &str| file_info(world.volume.tree(), &path(at), DIGEST_CAP).unwrap();
    let file = info("f");
    assert_eq!(
        (file.kind, file.size, file.sha256),
        (FileKind::File, 7, Some(sha(b"content")))
    );
    let link = info("l");
    assert_eq!(
        (link.kind, link.target, link.sha256),
        (FileKind::Symlink, Some(b"f".to_vec()), None)
    );
    assert_eq!(info("").kind, FileKind::Directory);
    let content = read_file(world.volume.tree(), &path("l"), 7).unwrap();
    assert_eq!(
        (content.bytes.as_slice(), content.resolved),
        (&b"content"[..], path("f"))
    );
    assert_eq!(
        read_file(world.volume.tree(), &path("f"), 6).unwrap_err().code(),
        Code::TooLarge
    );
    let missing = file_info(world.volume.tree(), &path("none"), 0).unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
}

#[test]
fn power_is_refused_where_it_cannot_be_kept() {
    let error = power_supported(Path::new("/dev/shm"));
    match rustix::fs::statfs("/dev/shm").map(|s| s.f_type as u64) {
        Ok(0x0102_1994) => {
            assert_eq!(
                named(error.unwrap_err()),
                (Code::DurabilityUnavailable, "volatile".to_owned())
            );
        }
        _ => skipped("/dev/shm is no tmpfs"),
    }
    assert_eq!(
        named(power_supported(Path::new("/proc")).unwrap_err()).0,
        Code::DurabilityUnavailable
    );
    // What the kernel shows decides; here it is asked by another way.
    let dir = tempfile::tempdir().unwrap();
    let journals = std::fs::read_dir("/proc/fs/jbd2").map_or(0, Iterator::count);
    let ext = rustix::fs::statfs(dir.path()).unwrap().f_type as u64 == 0xef53;
    if ext && journals == 0 {
        let error = power_supported(dir.path()).unwrap_err();
        assert_eq!(
            named(error),
            (Code::DurabilityUnavailable, "no_journal".to_owned())
        );
    }
}

/// Makes and mounts an ext4 image; `None` where this machine cannot.
fn ext4(dir: &Path, feature: &str) -> Option<PathBuf> {
    let (image, at) = (dir.join("image"), dir.join("mnt"));
    std::fs::create_dir(&at).unwrap();
    std::fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
    let ran = |program: &str, args: &[&std::ffi::OsStr]| {
        let output = std::process::Command::new(program).args(args).output();
        output.is_ok_and(|output| output.status.success())
    };
    let made = ran(
        "mkfs.ext4",
        &["-q".as_ref(), "-O".as_ref(), feature.as_ref(), image.as_ref()],
    );
    let mounted = made
        && ran(
            "mount",
            &["-o".as_ref(), "loop".as_ref(), image.as_ref(), at.as_ref()],
        );
    mounted.then_some(at)
}

#[test]
fn ext4_keeps_power_with_a_journal_and_not_without() {
    for (feature, wanted) in [("has_journal", "kept"), ("^has_journal", "no_journal")] {
        let dir = tempfile::tempdir().unwrap();
        let Some(at) = ext4(dir.path(), feature) else {
            skipped("this user cannot make and mount an ext4 image");
            return;
        };
        let found = power_supported(&at).map_or_else(|e| named(e).1, |()| "kept".to_owned());
        let written = {
            let world = World::at(&at);
            let write = world.write_with("f", b"x", Expected::Absent, Durability::Power);
            write.and_then(|(_, prepared)| carry(&world.volume, &prepared, &NoSteps))
        };
        crate::sandbox::tests::unmounted(&at);
        assert_eq!(found, wanted, "{feature}");
        assert!(written.is_ok());
    }
}

/// Says whether a race is over: all of it was seen, or, in a test that is broken, it never will be.
fn raced(began: std::time::Instant, seen: bool) -> bool {
    seen || began.elapsed().as_secs() >= 120
}

thread_local! {
    static MEANWHILE: std::cell::RefCell<Option<Box<dyn Fn()>>> = const { std::cell::RefCell::new(None) };
}

/// What another process does while this thread reads a file, until it is dropped.
struct Meanwhile;

impl Meanwhile {
    fn does(what: impl Fn() + 'static) -> Self {
        MEANWHILE.with_borrow_mut(|all| *all = Some(Box::new(what)));
        Self
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        MEANWHILE.with_borrow_mut(|all| *all = None);
    }
}

/// Is reached where a file was read, before it is looked at whether it stayed as it was.
pub(super) fn was_read() {
    MEANWHILE.with_borrow(|all| all.iter().for_each(|what| what()));
}

/// Another process swaps a directory for a link that leaves, all the time.
#[test]
fn a_swap_attack_never_gets_out() {
    for resolver in [Resolver::Openat2, Resolver::Walk] {
        let world = World::new();
        let outside = world.dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("f"), "outside").unwrap();
        std::fs::create_dir(world.tree("d")).unwrap();
        std::fs::write(world.tree("d/f"), "inside").unwrap();
        symlink(&outside, world.tree("evil")).unwrap();
        let root = Root::open(&world.volume.tree_path())
            .unwrap()
            .with_resolver(resolver);
        let stop = AtomicBool::new(false);
        let (mut reads, mut writes, mut refused) = (0_u32, 0_u32, 0_u32);
        let began = std::time::Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let tree = std::fs::File::open(world.volume.tree_path()).unwrap();
                let swap = rustix::fs::RenameFlags::EXCHANGE;
                // Bounded, so that a failed assertion below ends the test.
                while !stop.load(Ordering::Relaxed) && !raced(began, false) {
                    rustix::fs::renameat_with(&tree, "d", &tree, "evil", swap).unwrap();
                }
            });
            let mut rounds = 0_u32;
            while !raced(began, rounds >= 500 && reads > 0 && writes > 0 && refused > 0) {
                rounds += 1;
                match read_file(&root, &path("d/f"), 100) {
                    Ok(content) => {
                        assert_ne!(content.bytes, b"outside", "read outside");
                        reads += 1;
                    }
                    Err(_) => refused += 1,
                }
                if world.put("d/f", b"written", Expected::Any).is_ok() {
                    writes += 1;
                }
                if let Ok((_, prepared)) = world.removal("d/f", Expected::Any)
                    && carry(&world.volume, &prepared, &NoSteps).is_ok()
                {
                    writes += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        crate::root::tests::told(&format!(
            "{resolver:?}: {reads} reads, {writes} mutations inside, {refused} reads refused, 0 escapes"
        ));
        assert!(reads > 0 && writes > 0 && refused > 0, "the race was on");
        assert_eq!(std::fs::read(outside.join("f")).unwrap(), b"outside");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Any sequence of writes and removals gives what a map gives.
    #[test]
    fn a_volume_behaves_like_a_map(calls in proptest::collection::vec((0..4_u8, proptest::option::of("[a-z]{0,9}")), 1..24)) {
        let world = World::new();
        let mut model = std::collections::BTreeMap::<String, Vec<u8>>::new();
        for (name, content) in calls {
            let name = format!("f{name}");
            let expected = model.get(&name).map_or(Expected::Absent, |old| Expected::Sha256(sha(old)));
            match content {
                Some(content) => {
                    let done = world.put(&name, content.as_bytes(), expected).unwrap();
                    let old = model.insert(name, content.into_bytes());
                    prop_assert_eq!(done, old.map(|old| sha(&old)));
                }
                None => {
                    let done = world.removal(&name, Expected::Any).and_then(|(_, p)| carry(&world.volume, &p, &NoSteps));
                    match model.remove(&name) {
                        Some(old) => prop_assert_eq!(done.unwrap(), Some(sha(&old))),
                        None => prop_assert_eq!(done.unwrap_err().code(), Code::NotFound),
                    }
                }
            }
        }
        for listed in list_directory(world.volume.tree(), &RelPath::root(), 99).unwrap() {
            let name = String::from_utf8(listed.name).unwrap();
            let content = read_file(world.volume.tree(), &path(&name), 99).unwrap();
            prop_assert_eq!(model.remove(&name), Some(content.bytes));
        }
        prop_assert!(model.is_empty());
        prop_assert_eq!(world.staged(), 0);
    }
}
