use super::*;
use semel_core::retry::{Change, compare};
use std::io::Write as _;
use std::process::Command;

struct Room {
    _dir: tempfile::TempDir,
    at: PathBuf,
}

impl Room {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = std::fs::canonicalize(dir.path()).unwrap();
        std::fs::write(at.join("s"), "one\n").unwrap();
        Self { _dir: dir, at }
    }

    fn open(&self) -> (Stream, Sight) {
        Stream::open(&self.at.join("s"), u32::MAX).unwrap()
    }

    fn refused(&self, name: &str) -> (Code, Option<String>) {
        let refusal = Stream::open(&self.at.join(name), u32::MAX)
            .unwrap_err()
            .into_refusal();
        (refusal.code, refusal.reason)
    }
}

fn append(path: &Path, text: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn what_is_seen_is_what_is_there() {
    let room = Room::new();
    let (stream, sight) = room.open();
    assert_eq!((sight.length, sight.links), (4, 1));
    assert_eq!(sight.sha256, Sha256::of(b"one\n"));
    assert_eq!(sight.begins, sight.sha256);
    assert_eq!(stream.look(), StreamSeen::There(sight.clone()));
    append(&room.at.join("s"), "two\n");
    let seen = stream.look();
    let StreamSeen::There(after) = &seen else {
        panic!("{seen:?}")
    };
    assert_eq!((after.length, after.sha256), (8, Sha256::of(b"one\ntwo\n")));
    assert_eq!(after.begins, Sha256::of(b"one\n"));
    assert_eq!(compare(&sight, &seen), Some(Change::Appended));
}

/// A new file with the same bytes, and, on a filesystem that gives numbers again at once, the same number: the handle
/// that is held keeps the number taken.
#[test]
fn a_replacement_is_seen_however_alike_it_is() {
    let room = Room::new();
    let (stream, sight) = room.open();
    for _ in 0..100 {
        std::fs::remove_file(room.at.join("s")).unwrap();
        assert_eq!(stream.look(), StreamSeen::Missing);
        std::fs::write(room.at.join("s"), "one\n").unwrap();
        assert_eq!(
            compare(&sight, &stream.look()),
            Some(Change::Unsafe(Hazard::Replaced))
        );
    }
}

#[test]
fn what_is_no_stream_is_refused_by_its_reason() {
    let room = Room::new();
    std::fs::create_dir(room.at.join("d")).unwrap();
    std::os::unix::fs::symlink("s", room.at.join("l")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        room.at.join("f"),
        FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for (name, reason) in [
        ("d", "directory"),
        ("l", "symlink"),
        ("f", "special"),
        ("/proc/self/status", "special"),
        ("/proc/uptime", "special"),
        ("x", "missing"),
        ("s/x", "missing"),
    ] {
        assert_eq!(
            room.refused(name),
            (Code::StreamUnsafe, Some(reason.to_owned())),
            "{name}"
        );
    }
    std::fs::hard_link(room.at.join("s"), room.at.join("h")).unwrap();
    assert_eq!(room.refused("s").1.as_deref(), Some("hard_link"));
}

/// A place in a worktree has no link on its way; one by a path of the caller's own may have.
#[test]
fn a_place_within_is_reached_without_links() {
    let room = Room::new();
    std::fs::create_dir(room.at.join("d")).unwrap();
    std::fs::rename(room.at.join("s"), room.at.join("d/s")).unwrap();
    std::os::unix::fs::symlink("d", room.at.join("e")).unwrap();
    let place = |name: &str| RelPath::parse(name.as_bytes()).unwrap();
    Stream::open_within(&room.at, &place("d/s"), u32::MAX).unwrap();
    let refusal = Stream::open_within(&room.at, &place("e/s"), u32::MAX)
        .unwrap_err()
        .into_refusal();
    assert_eq!(refusal.reason.as_deref(), Some("symlink"));
    let (stream, sight) = Stream::open(&room.at.join("e/s"), u32::MAX).unwrap();
    assert_eq!(sight.path, room.at.join("d/s").as_os_str().as_bytes());
    drop(stream);
    // Without any link at first, and with one later: the same file, and not the same place.
    let (stream, sight) = Stream::open_within(&room.at, &place("d/s"), u32::MAX).unwrap();
    std::fs::rename(room.at.join("d"), room.at.join("moved")).unwrap();
    std::os::unix::fs::symlink("moved", room.at.join("d")).unwrap();
    assert_eq!(
        compare(&sight, &stream.look()),
        Some(Change::Unsafe(Hazard::Replaced))
    );
}

/// A stream in the lower layer of an overlay is copied up by whoever first writes it. That is no replacement, and the
/// bytes that it adds are seen.
#[test]
fn a_copy_up_is_no_replacement_and_hides_nothing() {
    let room = Room::new();
    let mount = |args: &[&str], at: &str| {
        let done = Command::new("mount").args(args).arg(room.at.join(at)).output();
        done.is_ok_and(|out| out.status.success())
    };
    let unmount = |at: &str| {
        rustix::mount::unmount(room.at.join(at), rustix::mount::UnmountFlags::DETACH).unwrap();
    };
    for name in ["lower", "memory", "at"] {
        std::fs::create_dir(room.at.join(name)).unwrap();
    }
    std::fs::write(room.at.join("lower/s"), "one\n").unwrap();
    std::fs::write(room.at.join("lower/t"), "one\n").unwrap();
    // Layers on two filesystems, whose numbers are not made one: a copy-up changes the number of a file.
    let options = format!(
        "lowerdir={0}/lower,upperdir={0}/memory/upper,workdir={0}/memory/work,xino=off",
        room.at.display()
    );
    let memory = mount(&["-t", "tmpfs", "tmpfs"], "memory");
    if memory {
        std::fs::create_dir(room.at.join("memory/upper")).unwrap();
        std::fs::create_dir(room.at.join("memory/work")).unwrap();
    }
    if !memory || !mount(&["-t", "overlay", "-o", &options, "overlay"], "at") {
        writeln!(std::io::stderr(), "SKIPPED: no overlay can be mounted here").unwrap();
        if memory {
            unmount("memory");
        }
        return;
    }
    let seen = {
        let path = room.at.join("at/s");
        let (stream, sight) = Stream::open(&path, u32::MAX).unwrap();
        // Opened for writing and left as it is: a copy-up, and no change.
        drop(std::fs::OpenOptions::new().append(true).open(&path).unwrap());
        let still = compare(&sight, &stream.look());
        append(&path, "two\n");
        let appended = compare(&sight, &stream.look());
        (still, appended)
    };
    // A handle from before the copy-up, such as is held where it cannot be opened for writing, is never believed blindly.
    let path = room.at.join("at/t");
    let (stream, sight) = {
        let file = read_only(&path).unwrap();
        let stream = Stream {
            file,
            asked: path.clone(),
            path: path.clone(),
            owner: u32::MAX,
            length: 4,
        };
        let StreamSeen::There(sight) = stream.look() else {
            panic!("it is there")
        };
        (stream, sight)
    };
    append(&path, "two\n");
    let stale = compare(&sight, &stream.look());
    drop(stream);
    unmount("at");
    unmount("memory");
    assert_eq!(seen, (None, Some(Change::Appended)));
    // Newer kernels read through it what is above; older ones show the lower file, whose length is another one.
    assert!(
        stale.is_some(),
        "the event is seen, or the handle is not believed"
    );
}

/// Somebody writes it while it is first looked at.
#[test]
fn a_file_that_grows_while_it_is_read_has_moved() {
    let room = Room::new();
    let (stream, _) = room.open();
    let file = File::from(read_only(&room.at.join("s")).unwrap());
    assert!(!stream.content(&file).unwrap().moved);
    std::fs::write(room.at.join("s"), vec![b'x'; 8 << 20]).unwrap();
    let path = room.at.join("s");
    let end = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ended = std::sync::Arc::clone(&end);
    let writer = std::thread::spawn(move || {
        while !ended.load(std::sync::atomic::Ordering::SeqCst) {
            append(&path, "x");
        }
    });
    let mut moved = false;
    for _ in 0..1000 {
        let content = stream.content(&file).unwrap();
        moved |= content.moved;
        if moved {
            break;
        }
    }
    end.store(true, std::sync::atomic::Ordering::SeqCst);
    writer.join().unwrap();
    assert!(moved);
}
